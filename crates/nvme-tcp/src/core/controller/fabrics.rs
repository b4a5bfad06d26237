//! Fabrics commands: Connect, properties, Disconnect.
//!
//! NVM Express Base Specification 2.0, 6.

use super::connection::{ConnectionId, queue_bytes};
use super::job::Reply;
use super::memory::MemoryAccount;
use super::work::{Backlog, QueueWork};
use super::{Target, is_qualified_name};
use crate::namespace::Namespace;
use crate::wire::{
    CC_ENABLE, CC_SHUTDOWN, Command, ConnectData, DISCOVERY_NQN, NO_FLOW_CONTROL, Status, VERSION, property,
};
use core::time::Duration;
use offload_base::Instant;
use smallvec::SmallVec;
use std::sync::Arc;

/// The queue properties of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueProperties {
    /// The queue identifier; 0 is the admin queue.
    pub(super) id: u16,
    /// Number of entries.
    pub(super) entries: u16,
    pub(super) controller: u16,
    /// Whether the host uses the reported queue head.
    pub(super) flow_control: bool,
    pub(super) head: u16,
}

/// Result of a successful Connect.
pub(super) struct ConnectResult {
    pub(super) queue: QueueProperties,
    /// Tracker of running commands; `None` for an admin queue.
    pub(super) work: Option<Arc<QueueWork>>,
    /// Earlier commands of the queue that must end before the Connect is answered.
    pub(super) waits_for: Backlog,
}

/// Makes `connection` a queue. For queue 0, also creates the controller. Errors carry a status and the completion's
/// result.
pub(super) fn connect(
    target: &mut Target,
    connection: ConnectionId,
    account: &MemoryAccount,
    command: &Command,
    data: &[u8],
    now: Instant,
) -> Result<ConnectResult, (Status, u64)> {
    let data = ConnectData::parse(data).ok_or((Status::INVALID_SGL_LENGTH, 0))?;
    let (format, id, size) = (command.u16(40), command.u16(42), command.u16(44));
    let flow_control = command.u8(46) & NO_FLOW_CONTROL == 0;
    if format != 0 {
        return Err((Status::CONNECT_FORMAT, 0));
    }
    let most = target.config.max_queue_entries;
    // SQSIZE is a 0's based number, and one entry of a queue stays empty: 0 is not allowed.
    if size == 0 || size >= most {
        return Err(in_command(44));
    }
    if !is_qualified_name(&data.host) {
        return Err(in_data(512));
    }
    if data.subsystem != DISCOVERY_NQN {
        let subsystem = target.subsystems.get(&data.subsystem).ok_or(in_data(256))?;
        if !subsystem.admits(&data.host) {
            return Err((Status::CONNECT_INVALID_HOST, 0));
        }
    }
    let (mut work, mut waits_for) = (None, Backlog::default());
    let controller = if id == 0 {
        // FFFFh requests a new controller, FFFEh any controller. This target creates controllers only on demand.
        if data.controller < 0xfffe {
            return Err(in_data(16));
        }
        let keep_alive = Duration::from_millis(u64::from(command.u32(12)));
        target.begin_session(data, connection, now, keep_alive).ok_or((Status::CONNECT_BUSY, 0))?
    } else {
        if id > target.config.max_queues {
            return Err(in_command(42));
        }
        let session = target.sessions.get_mut(&data.controller).ok_or(in_data(16))?;
        if session.subsystem() != data.subsystem || session.is_discovery() {
            return Err(in_data(256));
        }
        // A queue must come from the controller's own host. Another host must not be able to join.
        if session.host != data.host || session.host_id != data.host_id {
            return Err(in_data(if session.host == data.host { 0 } else { 512 }));
        }
        if !session.is_ready() {
            return Err((Status::CONNECT_BUSY, 0));
        }
        if session.queue_exists(id) {
            return Err(in_command(42));
        }
        let transport = &target.config.transport;
        // The queue's memory is reserved before the queue exists, so that an accepted queue always makes progress.
        let own = queue_bytes(size + 1, transport.in_capsule);
        if !account.promise(own, transport.max_transfer_bytes() as usize) {
            target.refused_connections += 1;
            return Err((Status::CONNECT_BUSY, 0));
        }
        let (own, left_behind) = session.add_queue(id, connection, &target.bell).ok_or(in_command(42))?;
        (work, waits_for) = (Some(own), left_behind);
        data.controller
    };
    Ok(ConnectResult {
        queue: QueueProperties { id, entries: size + 1, controller, flow_control, head: 0 },
        work,
        waits_for,
    })
}

/// Reads a property of controller `id`.
pub(super) fn property_get(target: &mut Target, id: u16, command: &Command, now: Instant) -> Result<Reply, Status> {
    let session = target.sessions.get_mut(&id).ok_or(Status::INTERNAL_ERROR)?;
    session.note_property_access(now);
    let (wide, offset) = (command.u8(40) & 7 == 1, command.u32(11));
    let value = match (offset, wide) {
        (property::CAP, true) => capabilities(target.config.max_queue_entries),
        (property::VS, false) => u64::from(VERSION),
        (property::CC, false) => u64::from(session.configuration()),
        (property::CSTS, false) => u64::from(session.status()),
        // Same times as in CAP.TO: Linux treats smaller values as an error.
        (property::CRTO, false) => READY_TIME | READY_TIME << 16,
        _ => return Err(Status::INVALID_FIELD),
    };
    Ok(Reply::Result(value))
}

/// Follow-up of a property write.
pub(super) struct PropertySet {
    /// Commands of the admin queue that will not be answered.
    pub(super) given_up: Vec<u16>,
    /// Namespaces to flush before the write is answered.
    pub(super) flush: SmallVec<[Arc<Namespace>; 1]>,
}

/// Writes a property of controller `id`.
pub(super) fn property_set(
    target: &mut Target,
    id: u16,
    command: &Command,
    now: Instant,
) -> Result<PropertySet, Status> {
    let session = target.sessions.get_mut(&id).ok_or(Status::INTERNAL_ERROR)?;
    session.note_property_access(now);
    let (wide, offset, value) = (command.u8(40) & 7 == 1, command.u32(11), command.u32(12));
    if (offset, wide) != (property::CC, false) {
        return Err(Status::INVALID_FIELD);
    }
    // CC.IOSQES and CC.IOCQES: I/O queue entries of 64 and 16 bytes. CC.CSS: the NVM command set, or all supported
    // ones.
    let sizes = value >> 16 & 0xff;
    let set = value >> 4 & 7;
    if value & CC_ENABLE != 0 && ((sizes != 0x46 && !session.is_discovery()) || !matches!(set, 0 | 6)) {
        return Err(Status::INVALID_FIELD);
    }
    let reset = session.configure(value);
    // A shutdown request flushes all namespaces of the subsystem. The controller reports completion after the flush.
    let subsystem = target.subsystems.get(session.subsystem()).filter(|_| value & CC_SHUTDOWN != 0);
    let flush: SmallVec<_> =
        subsystem.into_iter().flat_map(|subsystem| subsystem.namespaces.values().cloned()).collect();
    if flush.is_empty() {
        session.shut_down();
    }
    session.watch(now);
    // The connections of removed queues are woken, find the queues gone, and close.
    target.wakeups.extend(reset.queues);
    Ok(PropertySet { given_up: reset.waiting, flush })
}

/// Returns CAP: queue entries, contiguous queues, time to get ready, the NVM command set, ready with media.
fn capabilities(max_queue_entries: u16) -> u64 {
    u64::from(max_queue_entries - 1) | 1 << 16 | READY_TIME << 24 | 1 << 37 | 1 << 59
}

/// Returns the error for a wrong field at `offset` of the command.
fn in_command(offset: u64) -> (Status, u64) {
    (Status::CONNECT_INVALID_PARAMETERS, offset)
}

/// Returns the error for a wrong field at `offset` of the data.
fn in_data(offset: u64) -> (Status, u64) {
    (Status::CONNECT_INVALID_PARAMETERS, 1 << 16 | offset)
}

/// Maximum time to get ready, in units of 500 ms. The controller is ready at once.
const READY_TIME: u64 = 20;
