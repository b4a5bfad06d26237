//! Commands of admin queues.

use super::features;
use super::job::Reply;
use super::session::{ERROR_ENTRIES, EVENT_REQUESTS, Session};
use super::{Subsystem, Target, derived_serial};
use crate::namespace::{DataPieces, MAX_IDENTIFIER, Namespace};
use crate::wire::{
    AdminOpcode, Command, ControllerData, ControllerKind, NamespaceData, Notices, Smart, Status, VERSION, identify,
    log, page,
};
use bytes::Bytes;
use core::sync::atomic::Ordering::Relaxed;
use offload_base::Instant;
use std::sync::Arc;

/// Returns the number of data bytes that the host must send with `command`.
pub(super) fn data_len(command: &Command) -> Result<u32, Status> {
    match AdminOpcode::from_u8(command.opcode()) {
        Some(AdminOpcode::SetFeatures) => Ok(features::data_len(command)),
        Some(_) => Ok(0),
        None => Err(Status::INVALID_OPCODE),
    }
}

/// Executes `command` on the controller `id`, which is ready.
pub(super) fn execute(
    target: &mut Target,
    id: u16,
    command: &Command,
    data: &[u8],
    now: Instant,
) -> Result<Reply, Status> {
    let queues = target.config.max_queues;
    let opcode = AdminOpcode::from_u8(command.opcode()).ok_or(Status::INVALID_OPCODE)?;
    // Identify and Get Log Page read the subsystems and other sessions, too, so they run before one session is
    // borrowed.
    if opcode == AdminOpcode::Identify {
        return identify(target, id, command).map(Reply::data);
    }
    if opcode == AdminOpcode::GetLogPage {
        return log_page(target, id, command, now).map(Reply::Data);
    }
    let session = target.sessions.get_mut(&id).ok_or(Status::INTERNAL_ERROR)?;
    match opcode {
        AdminOpcode::SetFeatures => {
            features::set(session, command, data, now, queues).map(|result| Reply::Result(u64::from(result)))
        }
        AdminOpcode::GetFeatures => features::get(session, command, now, queues)
            .map(|(result, data)| if data.is_empty() { Reply::Result(u64::from(result)) } else { Reply::data(data) }),
        AdminOpcode::AsyncEventRequest => {
            if session.wait_for_event(command.identifier()) {
                Ok(Reply::Waits)
            } else {
                Err(Status::ASYNC_LIMIT_EXCEEDED)
            }
        }
        AdminOpcode::KeepAlive => {
            // Only this command and Set Features with a new timeout restart the timer of a ready controller.
            session.note_contact(now);
            Ok(Reply::Result(0))
        }
        AdminOpcode::Abort => {
            let (queue, aborted) = (command.u16(40), command.u16(42));
            if queue == 0 && session.remove_event_request(aborted) {
                return Ok(Reply::Aborted(aborted));
            }
            // An I/O command belongs to another connection, which aborts it later. The result says: not aborted yet.
            let called = if queue > 0 { session.abort_io(queue, aborted) } else { None };
            target.wakeups.extend(called);
            Ok(Reply::Result(1))
        }
        AdminOpcode::Identify | AdminOpcode::GetLogPage | AdminOpcode::Fabrics => Err(Status::INVALID_OPCODE),
    }
}

fn identify(target: &Target, id: u16, command: &Command) -> Result<Vec<u8>, Status> {
    let session = target.sessions.get(&id).ok_or(Status::INTERNAL_ERROR)?;
    let structure = command.u32(10) as u8;
    if structure == cns::CONTROLLER {
        return Ok(controller_data(target, id, session).to_bytes());
    }
    // A discovery controller has no subsystem here, and thus no namespaces.
    let subsystem = target.subsystems.get(session.subsystem()).ok_or(Status::INVALID_FIELD)?;
    let number = command.namespace();
    let command_set = (command.u32(11) >> 24) as u8;
    let namespace = || -> Result<Option<&Arc<Namespace>>, Status> {
        if number == 0 || number > MAX_IDENTIFIER {
            return Err(Status::INVALID_NAMESPACE);
        }
        Ok(subsystem.namespaces.get(&number))
    };
    let active = || namespace()?.ok_or(Status::INVALID_FIELD);
    match structure {
        // The structure of an unallocated namespace is all zeros. FFFFFFFFh requests the common capabilities of all
        // namespaces, which only controllers with Namespace Management support: 5.17.2.1.
        cns::NAMESPACE | cns::ALLOCATED_NAMESPACE => {
            Ok(namespace()?.map_or_else(empty, |namespace| namespace_data(namespace).to_bytes()))
        }
        cns::ACTIVE_NAMESPACES | cns::ALLOCATED_NAMESPACES => {
            if number >= u32::MAX - 1 {
                return Err(Status::INVALID_NAMESPACE);
            }
            Ok(identify::namespace_list(subsystem.namespaces.keys().copied(), number))
        }
        cns::DESCRIPTORS => Ok(identify::namespace_descriptors(&active()?.uuid())),
        cns::SET_NAMESPACE if command_set == 0 => active().map(|_| identify::nvm_namespace()),
        cns::SET_CONTROLLER if command_set == 0 => Ok(identify::nvm_controller()),
        cns::SET_ACTIVE_NAMESPACES if command_set == 0 => {
            Ok(identify::namespace_list(subsystem.namespaces.keys().copied(), number))
        }
        cns::INDEPENDENT_NAMESPACE => active().map(|_| identify::independent_namespace()),
        cns::ATTACHED_CONTROLLERS | cns::CONTROLLERS => {
            if structure == cns::ATTACHED_CONTROLLERS {
                active()?;
            }
            let same = target.sessions.iter().filter(|(_, other)| other.subsystem() == session.subsystem());
            Ok(identify::controller_list(same.map(|(id, _)| *id), (command.u32(10) >> 16) as u16))
        }
        cns::COMMAND_SETS => Ok(identify::command_sets()),
        _ => Err(Status::INVALID_FIELD),
    }
}

fn controller_data(target: &Target, id: u16, session: &Session) -> ControllerData {
    let config = &target.config;
    let common = ControllerData {
        serial: if config.serial.is_empty() { derived_serial(session.subsystem()) } else { config.serial.clone() },
        model: config.model.clone(),
        firmware: FIRMWARE.into(),
        controller: id,
        version: VERSION,
        event_requests: EVENT_REQUESTS,

        // Extended data: offsets and lengths of 32 bits.
        log_attributes: 1 << 2,
        keep_alive: 10, // in units of 100 ms
        max_commands: config.max_queue_entries,
        // SGLS: data blocks without alignment; offsets in SGLs.
        sgl_support: 1 | 1 << 20,
        subsystem: session.subsystem().to_owned(),
        response_capsule: 1,
        ..ControllerData::default()
    };
    if session.is_discovery() {
        return ControllerData {
            kind: ControllerKind::Discovery,
            notices: Notices::DISCOVERY,
            command_capsule: 4,
            ..common
        };
    }
    ControllerData {
        kind: ControllerKind::Io,
        max_transfer: config.transport.max_transfer,
        notices: Notices::NAMESPACES,
        // LPA bit 1: the effects log is supported.
        log_attributes: common.log_attributes | 1 << 1,
        error_entries: (ERROR_ENTRIES - 1) as u8,
        namespaces: MAX_IDENTIFIER,
        // ONCS: Compare, Write Uncorrectable, Dataset Management, Write Zeroes, Timestamp, Verify.
        optional_commands: 0b1100_1111 & !(1 << 4),
        volatile_cache: true,
        command_capsule: (64 + config.transport.in_capsule) / 16,
        disconnect: true,
        ..common
    }
}

fn namespace_data(namespace: &Namespace) -> NamespaceData {
    NamespaceData {
        blocks: namespace.blocks(),
        block_shift: namespace.block_size().trailing_zeros() as u8,
        nguid: namespace.uuid(),
    }
}

fn log_page(target: &mut Target, id: u16, command: &Command, now: Instant) -> Result<DataPieces, Status> {
    // NUMD is a 0's based number of double words in two halves; LPO is a byte offset.
    let words = u64::from(command.u32(10) >> 16 | (command.u32(11) & 0xffff) << 16) + 1;
    let length = words * 4;
    let offset = command.u64(12);
    if !offset.is_multiple_of(4) {
        return Err(Status::INVALID_FIELD);
    }
    // The SGL must have the length of the command: otherwise the host would wait for data that never come.
    if length != u64::from(command.sgl().length) {
        return Err(Status::INVALID_SGL_LENGTH);
    }
    if length > u64::from(target.config.transport.max_transfer_bytes()) {
        return Err(Status::INVALID_FIELD);
    }
    let mut whole = whole_log_page(target, id, command, now)?;
    let offset = usize::try_from(offset).ok().filter(|offset| *offset <= whole.len()).ok_or(Status::INVALID_FIELD)?;
    let mut part = whole.split_off(offset);
    part.truncate(length as usize);
    // Bytes beyond the end of the page are zeros. A static array holds them, so that a host cannot make the target
    // allocate.
    let mut left = length as usize - part.len();
    let mut pieces = DataPieces::from_iter([Bytes::from(part)]);
    while left > 0 {
        let zeros = Bytes::from_static(&ZEROS[..left.min(ZEROS.len())]);
        left -= zeros.len();
        pieces.push(zeros);
    }
    Ok(pieces)
}

fn whole_log_page(target: &mut Target, id: u16, command: &Command, now: Instant) -> Result<Vec<u8>, Status> {
    let page = command.u32(10) as u8;
    let retain = command.u32(10) & RETAIN_EVENT != 0;
    let host = target.sessions.get(&id).map(|session| session.host.clone()).unwrap_or_default();
    // Built before the session is borrowed mutably, because the log depends on the subsystems.
    let discovery_log = (page == page::DISCOVERY).then(|| target.discovery_log(&host));
    let session = target.sessions.get_mut(&id).ok_or(Status::INTERNAL_ERROR)?;
    if session.is_discovery() {
        return match (page, discovery_log) {
            (page::DISCOVERY, Some(log)) => {
                if !retain {
                    session.discovery_read();
                }
                Ok(log.to_bytes())
            }
            (page::SUPPORTED, _) => Ok(log::supported(&[page::SUPPORTED, page::DISCOVERY])),
            _ => Err(Status::INVALID_LOG_PAGE),
        };
    }
    Ok(match page {
        page::SUPPORTED => log::supported(&IO_PAGES),
        // Zeros follow the entries, so that the page always has its full length.
        page::ERROR => session.errors().flat_map(|entry| entry.to_bytes()).chain([0; ERROR_ENTRIES * 64]).collect(),
        page::SMART => {
            let subsystem = target.subsystems.get(session.subsystem()).ok_or(Status::INTERNAL_ERROR)?;
            smart(subsystem, session, command.namespace(), now)?
        }
        page::FIRMWARE => log::firmware_slots(FIRMWARE),
        page::CHANGED_NAMESPACES => session.changed_namespaces(retain),
        page::EFFECTS => log::effects(),
        _ => return Err(Status::INVALID_LOG_PAGE),
    })
}

fn smart(subsystem: &Subsystem, session: &Session, number: u32, now: Instant) -> Result<Vec<u8>, Status> {
    // LPA bit 0 is clear: the log exists per controller only, for namespace 0 or FFFFFFFFh.
    if !matches!(number, 0 | u32::MAX) {
        return Err(Status::INVALID_FIELD);
    }
    let mut smart = Smart {
        hours: (now - session.began).as_secs() / 3600,
        error_entries: session.error_count(),
        ..Smart::default()
    };
    for usage in subsystem.namespaces.values().map(|namespace| namespace.usage()) {
        smart.read_bytes += usage.read_bytes.load(Relaxed);
        smart.written_bytes += usage.written_bytes.load(Relaxed);
        smart.read_commands += usage.read_commands.load(Relaxed);
        smart.write_commands += usage.write_commands.load(Relaxed);
        smart.media_errors += usage.media_errors.load(Relaxed);
    }
    Ok(smart.to_bytes())
}

fn empty() -> Vec<u8> {
    vec![0; identify::LEN]
}

/// Identify structures (CNS).
mod cns {
    pub(super) const NAMESPACE: u8 = 0x00;
    pub(super) const CONTROLLER: u8 = 0x01;
    pub(super) const ACTIVE_NAMESPACES: u8 = 0x02;
    pub(super) const DESCRIPTORS: u8 = 0x03;
    pub(super) const SET_NAMESPACE: u8 = 0x05;
    pub(super) const SET_CONTROLLER: u8 = 0x06;
    pub(super) const SET_ACTIVE_NAMESPACES: u8 = 0x07;
    pub(super) const INDEPENDENT_NAMESPACE: u8 = 0x08;
    pub(super) const ALLOCATED_NAMESPACES: u8 = 0x10;
    pub(super) const ALLOCATED_NAMESPACE: u8 = 0x11;
    pub(super) const ATTACHED_CONTROLLERS: u8 = 0x12;
    pub(super) const CONTROLLERS: u8 = 0x13;
    pub(super) const COMMAND_SETS: u8 = 0x1c;
}

const IO_PAGES: [u8; 6] =
    [page::SUPPORTED, page::ERROR, page::SMART, page::FIRMWARE, page::CHANGED_NAMESPACES, page::EFFECTS];
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
/// RAE, bit 15 of double word 10: retain the event.
const RETAIN_EVENT: u32 = 1 << 15;
const FIRMWARE: &str = env!("CARGO_PKG_VERSION");
