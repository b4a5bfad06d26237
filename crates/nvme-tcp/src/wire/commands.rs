//! Commands, made from what they are to do. Identifier and SGL are the queue's to fill in.
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

/// An I/O command about `blocks` blocks, 1 to 65536, from `first` on.
pub fn range(opcode: IoOpcode, namespace: u32, first: u64, blocks: u32) -> Command {
    Command::new(opcode as u8, 0)
        .with_namespace(namespace)
        .with_u64(10, first)
        .with_u32(12, blocks.wrapping_sub(1) & 0xffff)
}

/// Makes durable what was written to `namespace`.
pub fn flush(namespace: u32) -> Command {
    Command::new(IoOpcode::Flush as u8, 0).with_namespace(namespace)
}

/// Deallocates `ranges` (first block, blocks), at most 256, and the data that go with the command.
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

/// Asks for the structure `cns` about `namespace`: 4096 bytes.
pub fn identify(cns: u8, namespace: u32) -> Command {
    Command::new(AdminOpcode::Identify as u8, 0).with_namespace(namespace).with_u32(10, cns.into())
}

/// Asks for `bytes` bytes, a multiple of 4, of a log page, from `offset` on; events stay as they are.
pub fn log_page(page: u8, offset: u64, bytes: u32) -> Command {
    log_page_with(page, RETAIN_EVENT, bytes).with_u64(12, offset)
}

/// The same for the page that an event is about, from its beginning: with that the event is over.
pub(crate) fn log_page_of_event(page: u8, bytes: u32) -> Command {
    log_page_with(page, 0, bytes)
}

/// Asks to be told of the next event.
pub(crate) fn event_request() -> Command {
    Command::new(AdminOpcode::AsyncEventRequest as u8, 0)
}

/// Has the controller tell of these, and of nothing else.
pub(crate) fn enable_notices(notices: Notices) -> Command {
    Command::new(AdminOpcode::SetFeatures as u8, 0).with_u32(10, 0x0b).with_u32(11, notices.0)
}

/// Asks for `queues` I/O queues each way; the result is how many there may be, less one, in both its halves.
pub(crate) fn number_of_queues(queues: u16) -> Command {
    let queues = u32::from(queues.saturating_sub(1));
    Command::new(AdminOpcode::SetFeatures as u8, 0).with_u32(10, 0x07).with_u32(11, queues | queues << 16)
}

/// Says that the host is alive.
pub fn keep_alive() -> Command {
    Command::new(AdminOpcode::KeepAlive as u8, 0)
}

/// Makes the connection queue `id` with room for `commands` commands. The controller need not tell the queue's head.
pub fn connect(id: u16, commands: u16, keep_alive: Duration) -> Command {
    let millis = if id == 0 { u32::try_from(keep_alive.as_millis()).unwrap_or(u32::MAX) } else { 0 };
    // SQSIZE@44 is the entries less one; an entry stays free.
    Command::fabrics(FabricsType::Connect, 0)
        .with_u32(10, u32::from(id) << 16)
        .with_u32(11, u32::from(commands) | u32::from(NO_FLOW_CONTROL) << 16)
        .with_u32(12, millis)
}

/// Reads a property of 8 bytes if `wide`, of 4 otherwise.
pub fn property_get(offset: u32, wide: bool) -> Command {
    Command::fabrics(FabricsType::PropertyGet, 0).with_u32(10, wide.into()).with_u32(11, offset)
}

/// Writes a property of 4 bytes.
pub fn property_set(offset: u32, value: u32) -> Command {
    Command::fabrics(FabricsType::PropertySet, 0).with_u32(11, offset).with_u32(12, value)
}

/// Get Log Page of NUMDL and NUMDU, the upper bits of command dword 10 in `flags`.
fn log_page_with(page: u8, flags: u32, bytes: u32) -> Command {
    let words = (bytes / 4).saturating_sub(1);
    Command::new(AdminOpcode::GetLogPage as u8, 0)
        .with_namespace(u32::MAX)
        .with_u32(10, u32::from(page) | flags | words << 16)
        .with_u32(11, words >> 16)
}
/// RAE: the event that the page is about stays.
const RETAIN_EVENT: u32 = 1 << 15;
