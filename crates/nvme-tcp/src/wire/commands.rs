//! Builders of commands. The queue fills in the identifier and the SGL.
//!
//! NVM Express Base Specification 2.0, 5 and 6; NVM Command Set Specification 1.0, 3.
//!
//! ```
//! use nvme_tcp::wire::commands;
//!
//! let read = commands::range(nvme_tcp::IoOpcode::Read, 1, 0x1000, 8);
//! assert_eq!((read.namespace(), read.u64(10), read.u32(12)), (1, 0x1000, 7));
//! ```

use crate::wire::{AdminOpcode, Command, FabricsType, IoOpcode, NO_FLOW_CONTROL, Notices, put};
use core::time::Duration;

/// Builds an I/O command for `blocks` blocks (1 to 65536), beginning with block `first`.
pub fn range(opcode: IoOpcode, namespace: u32, first: u64, blocks: u32) -> Command {
    Command::new(opcode as u8, 0)
        .with_namespace(namespace)
        .with_u64(10, first)
        // NLB is a 0's based number: 65536 blocks are 0xffff.
        .with_u32(12, blocks.wrapping_sub(1) & 0xffff)
}

/// Builds a Flush of `namespace`.
pub fn flush(namespace: u32) -> Command {
    Command::new(IoOpcode::Flush as u8, 0).with_namespace(namespace)
}

/// Builds a command that deallocates at most 256 `ranges` (first block, number of blocks), and its data.
pub fn deallocate(namespace: u32, ranges: &[(u64, u32)]) -> (Command, Vec<u8>) {
    let mut data = vec![0; ranges.len() * 16];
    for ((first, blocks), entry) in ranges.iter().zip(data.chunks_exact_mut(16)) {
        put(entry, 4, &blocks.to_le_bytes());
        put(entry, 8, &first.to_le_bytes());
    }
    let command = Command::new(IoOpcode::DatasetManagement as u8, 0)
        .with_namespace(namespace)
        .with_u32(10, (ranges.len() as u32).saturating_sub(1))
        .with_u32(11, 1 << 2);
    (command, data)
}

/// Builds an Identify for the structure `cns` of `namespace`: 4096 bytes.
pub fn identify(cns: u8, namespace: u32) -> Command {
    Command::new(AdminOpcode::Identify as u8, 0).with_namespace(namespace).with_u32(10, cns.into())
}

/// Builds a Get Log Page for `bytes` bytes (a multiple of 4) from `offset`. The event of the page stays pending.
pub fn log_page(page: u8, offset: u64, bytes: u32) -> Command {
    log_page_with(page, RETAIN_EVENT, bytes).with_u64(12, offset)
}

/// Builds a Get Log Page from offset 0 that also clears the event of the page.
pub(crate) fn log_page_of_event(page: u8, bytes: u32) -> Command {
    log_page_with(page, 0, bytes)
}

/// Builds an Asynchronous Event Request.
pub(crate) fn event_request() -> Command {
    Command::new(AdminOpcode::AsyncEventRequest as u8, 0)
}

/// Builds a Set Features that enables `notices` and disables all other notices.
pub(crate) fn enable_notices(notices: Notices) -> Command {
    Command::new(AdminOpcode::SetFeatures as u8, 0).with_u32(10, 0x0b).with_u32(11, notices.0)
}

/// Builds a Set Features for `queues` I/O submission and completion queues. Both halves of the result hold the number
/// granted, less one.
pub(crate) fn number_of_queues(queues: u16) -> Command {
    let queues = u32::from(queues.saturating_sub(1));
    Command::new(AdminOpcode::SetFeatures as u8, 0).with_u32(10, 0x07).with_u32(11, queues | queues << 16)
}

/// Builds a Keep Alive.
pub fn keep_alive() -> Command {
    Command::new(AdminOpcode::KeepAlive as u8, 0)
}

/// Builds a Connect for queue `id` with `commands` commands at a time. Flow control is off: the controller need not
/// report the queue's head.
pub fn connect(id: u16, commands: u16, keep_alive: Duration) -> Command {
    let millis = if id == 0 { u32::try_from(keep_alive.as_millis()).unwrap_or(u32::MAX) } else { 0 };
    // SQSIZE@44 is the entries less one; an entry stays free.
    Command::fabrics(FabricsType::Connect, 0)
        .with_u32(10, u32::from(id) << 16)
        .with_u32(11, u32::from(commands) | u32::from(NO_FLOW_CONTROL) << 16)
        .with_u32(12, millis)
}

/// Builds a Property Get of 8 bytes if `wide`, of 4 bytes otherwise.
pub fn property_get(offset: u32, wide: bool) -> Command {
    Command::fabrics(FabricsType::PropertyGet, 0).with_u32(10, wide.into()).with_u32(11, offset)
}

/// Builds a Property Set of 4 bytes.
pub fn property_set(offset: u32, value: u32) -> Command {
    Command::fabrics(FabricsType::PropertySet, 0).with_u32(11, offset).with_u32(12, value)
}

/// Builds a Get Log Page; `flags` are the upper bits of command dword 10.
fn log_page_with(page: u8, flags: u32, bytes: u32) -> Command {
    // NUMD is a 0's based number, split into NUMDL (dword 10) and NUMDU (dword 11).
    let words = (bytes / 4).saturating_sub(1);
    Command::new(AdminOpcode::GetLogPage as u8, 0)
        .with_namespace(u32::MAX)
        .with_u32(10, u32::from(page) | flags | words << 16)
        .with_u32(11, words >> 16)
}
/// RAE: retain the event of the page.
const RETAIN_EVENT: u32 = 1 << 15;
