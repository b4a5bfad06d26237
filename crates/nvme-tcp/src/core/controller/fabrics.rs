//! Fabrics commands: Connect, properties, Disconnect.
//!
//! NVM Express Base Specification 2.0, 6.

use super::connection::{ConnectionId, queue_bytes};
use super::job::Reply;
use super::memory::Account;
use super::work::{AllUnderWay, Work};
use super::{Target, is_qualified_name};
use crate::namespace::Namespace;
use crate::wire::{
    CC_ENABLE, CC_SHUTDOWN, Command, ConnectData, DISCOVERY_NQN, NO_FLOW_CONTROL, Status, VERSION, property,
};
use core::time::Duration;
use offload_base::Instant;
use smallvec::SmallVec;
use std::sync::Arc;

/// A connection that has become a queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queue {
    /// 0: the admin queue.
    pub(super) id: u16,
    /// Entries.
    pub(super) entries: u16,
    pub(super) controller: u16,
    /// The host heeds the queue head it is told.
    pub(super) flow_control: bool,
    pub(super) head: u16,
}

/// A connection that was made a queue.
pub(super) struct Connected {
    pub(super) queue: Queue,
    /// An I/O queue's.
    pub(super) work: Option<Arc<Work>>,
    /// Commands that have to be over before anything is done for the queue.
    pub(super) waits_for: AllUnderWay,
}

/// Makes `connection` a queue, and its controller if it is the first. Refused: with a status, and what its completion
/// says beside it.
pub(super) fn connect(
    target: &mut Target,
    connection: ConnectionId,
    account: &Account,
    command: &Command,
    data: &[u8],
    now: Instant,
) -> Result<Connected, (Status, u64)> {
    let data = ConnectData::parse(data).ok_or((Status::INVALID_SGL_LENGTH, 0))?;
    let (format, id, size) = (command.u16(40), command.u16(42), command.u16(44));
    let flow_control = command.u8(46) & NO_FLOW_CONTROL == 0;
    if format != 0 {
        return Err((Status::CONNECT_FORMAT, 0));
    }
    let most = target.config.max_queue_entries;
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
    let (mut work, mut waits_for) = (None, AllUnderWay::default());
    let controller = if id == 0 {
        // FFFFh: a controller for this host; FFFEh: any. Controllers are made as hosts come.
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
        let own = queue_bytes(size + 1, transport.in_capsule);
        if !account.promise(own, transport.max_transfer_bytes() as usize) {
            target.refused_connections += 1;
            return Err((Status::CONNECT_BUSY, 0));
        }
        let (own, left_behind) = session.add_queue(id, connection, &target.bell).ok_or(in_command(42))?;
        (work, waits_for) = (Some(own), left_behind);
        data.controller
    };
    Ok(Connected { queue: Queue { id, entries: size + 1, controller, flow_control, head: 0 }, work, waits_for })
}

/// Reads a property of the controller `id`.
pub(super) fn property_get(target: &mut Target, id: u16, command: &Command, now: Instant) -> Result<Reply, Status> {
    let session = target.sessions.get_mut(&id).ok_or(Status::INTERNAL_ERROR)?;
    session.hear_property(now);
    let (wide, offset) = (command.u8(40) & 7 == 1, command.u32(11));
    let value = match (offset, wide) {
        (property::CAP, true) => capabilities(target.config.max_queue_entries),
        (property::VS, false) => u64::from(VERSION),
        (property::CC, false) => u64::from(session.configuration()),
        (property::CSTS, false) => u64::from(session.status()),
        // The same times as CAP.TO has: Linux takes less for a mistake.
        (property::CRTO, false) => READY_TIME | READY_TIME << 16,
        _ => return Err(Status::INVALID_FIELD),
    };
    Ok(Reply::Result(value))
}

/// The work that a written property makes.
pub(super) struct PropertySet {
    /// Commands of the admin queue that are not answered any more.
    pub(super) given_up: Vec<u16>,
    /// Namespaces to be flushed before the host is told that it was done.
    pub(super) flush: SmallVec<[Arc<Namespace>; 1]>,
}

/// Writes a property of the controller `id`.
pub(super) fn property_set(
    target: &mut Target,
    id: u16,
    command: &Command,
    now: Instant,
) -> Result<PropertySet, Status> {
    let session = target.sessions.get_mut(&id).ok_or(Status::INTERNAL_ERROR)?;
    session.hear_property(now);
    let (wide, offset, value) = (command.u8(40) & 7 == 1, command.u32(11), command.u32(12));
    if (offset, wide) != (property::CC, false) {
        return Err(Status::INVALID_FIELD);
    }
    // IOSQES and IOCQES: I/O queue entries have 64 and 16 bytes; the NVM command set, or all there are.
    let sizes = value >> 16 & 0xff;
    let set = value >> 4 & 7;
    if value & CC_ENABLE != 0 && ((sizes != 0x46 && !session.is_discovery()) || !matches!(set, 0 | 6)) {
        return Err(Status::INVALID_FIELD);
    }
    let reset = session.configure(value);
    let subsystem = target.subsystems.get(session.subsystem()).filter(|_| value & CC_SHUTDOWN != 0);
    let flush: SmallVec<_> =
        subsystem.into_iter().flat_map(|subsystem| subsystem.namespaces.values().cloned()).collect();
    if flush.is_empty() {
        session.shut_down();
    }
    session.watch(now);
    target.wakeups.extend(reset.queues);
    Ok(PropertySet { given_up: reset.waiting, flush })
}

/// CAP: queue entries, contiguous queues, time to get ready, the NVM command set, ready with media.
fn capabilities(max_queue_entries: u16) -> u64 {
    u64::from(max_queue_entries - 1) | 1 << 16 | READY_TIME << 24 | 1 << 37 | 1 << 59
}

/// A wrong field at `offset` of the command.
fn in_command(offset: u64) -> (Status, u64) {
    (Status::CONNECT_INVALID_PARAMETERS, offset)
}

/// A wrong field at `offset` of the data.
fn in_data(offset: u64) -> (Status, u64) {
    (Status::CONNECT_INVALID_PARAMETERS, 1 << 16 | offset)
}

/// How long a controller may take to get ready, in units of 500 ms. It takes none of it.
const READY_TIME: u64 = 20;
