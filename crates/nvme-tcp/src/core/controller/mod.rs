//! The controller side: subsystems, controllers, and the connections that are their queues.
//!
//! - [`Target`]: what is served: subsystems with namespaces, and the controllers hosts have connected to;
//! - [`Connection`]: one connection, which is one queue: PDUs in, PDUs out;
//! - [`Job`]: work on a namespace, to be carried out by the driver of the connection, on whatever thread.
//!
//! ```text
//!   stream -- handle_segment -> Connection -- poll_job -> Job::run -- complete -> Connection -- poll_transmit -> stream
//!                                   |  fabrics.rs, admin.rs, features.rs, io.rs: what commands mean
//!                                 Target  session.rs: one controller's state
//! ```
//!
//! Invariant: a command gets one completion, or its connection ends. When an admin queue goes, its controller goes,
//! and with it its I/O queues.

mod admin;
mod bell;
mod connection;
mod fabrics;
mod features;
mod io;
mod job;
mod memory;
mod session;
mod work;

pub use connection::{Connection, ConnectionId};
pub use job::{Done, Job};

use crate::namespace::{Namespace, fnv1a};
use crate::wire::{ConnectData, DISCOVERY_NQN, DiscoveryEntry, DiscoveryLog};
use bell::Bell;
use connection::{OPENING_BYTES, STREAM_BYTES, STREAM_DATA, queue_bytes};
use core::net::SocketAddr;
use core::time::Duration;
use memory::Memory;
use offload_base::Instant;
use session::{Notice, Session};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use work::AllUnderWay;

/// How a target behaves towards all hosts. Build it from the default, as here, because later versions may add fields.
///
/// ```
/// use nvme_tcp::target::{TargetConfig, TransportConfig};
///
/// // Data for a write are asked for in pieces of 16 KiB, data of a read sent in PDUs of 8 KiB.
/// let transport = TransportConfig { request_bytes: 16 << 10, data_bytes: 8 << 10, ..TransportConfig::default() };
/// let config = TargetConfig { transport, ..TargetConfig::default() };
/// assert_eq!(config.max_queues, 64);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetConfig {
    /// Serial number, at most 20 ASCII characters. Empty: the one that [follows](derived_serial) from the subsystem's name,
    /// so that those of different subsystems differ.
    pub serial: String,
    /// Model, at most 40 ASCII characters.
    pub model: String,
    /// I/O queues of a controller at most.
    pub max_queues: u16,
    /// Entries of a queue at most.
    pub max_queue_entries: u16,
    /// Controllers at a time at most, 1 to 65519. A host that comes when there are as many gets one all the same if it
    /// has others: the one that it has not been heard of at for longest gives way, for it may be one whose end went unnoticed.
    /// Another host gets the place of a controller that is older than ten seconds and has no I/O queues, of the one that was
    /// not heard of for longest. If there is none, it gets that of a controller whose host asked for no keep-alive, or one of
    /// ten minutes or more, and has sent no command for two minutes.
    pub max_controllers: u16,
    /// Bytes that all hosts together may make the target hold: data of writes that are not carried out, data of reads that
    /// were not taken, and what connections cost by themselves. A stream costs 8 KiB until its host has sent an ICReq, and
    /// 152 KiB then. An I/O queue costs 128 KiB, for each of its entries about 1 KiB and the data that a capsule may bring
    /// along, and is promised room for one of the largest commands. A stream that there is no room for is reset, a Connect
    /// refused as busy. Commands that need more than was promised wait until others end, in the order they came.
    pub memory: usize,
    /// How data travel.
    pub transport: TransportConfig,
}

/// How a target moves data.
///
/// See [`TargetConfig`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransportConfig {
    /// Agrees to header digests.
    pub header_digest: bool,
    /// Agrees to data digests.
    pub data_digest: bool,
    /// CPDA: hosts begin data at a multiple of `(alignment + 1) * 4` bytes. Linux insists on 0.
    pub alignment: u8,
    /// MAXH2CDATA: most data bytes of an H2CData PDU; at least 4096, and a multiple of 4.
    pub max_data: u32,
    /// Data bytes in a command's capsule; a multiple of 16.
    pub in_capsule: u32,
    /// MDTS: a command moves at most `4096 << max_transfer` bytes.
    pub max_transfer: u8,
    /// Most bytes of one request to transfer (R2T).
    pub request_bytes: u32,
    /// Requests to transfer that a command may have outstanding at most, if its host allows as many.
    pub requests: u32,
    /// Most data bytes of a C2HData PDU.
    pub data_bytes: u32,
    /// Bytes asked of one host at a time at most, on one queue, and bytes read for it: its share of memory.
    pub budget: usize,
    /// Bytes of a buffer that streams are received in, at most: so much is charged to [`TargetConfig::memory`] for a large
    /// piece of data that stays in the buffer it came in. 128 KiB by default, which is what TLS and `nic-sim` receive in; a
    /// NIC that joins segments to more than 64 KiB has larger ones (`NicConfig::receive_buffer_bytes`).
    pub receive_buffer: usize,
}

/// Subsystems, their namespaces and controllers. All connections share it.
///
/// ```
/// use nvme_tcp::target::{Target, TargetConfig};
/// use nvme_tcp::namespace::{MemoryStorage, Namespace};
/// use std::sync::Arc;
///
/// let mut target = Target::new(TargetConfig::default())?;
/// target.add_subsystem("nqn.2026-01.example:disk", None)?;
/// let disk = Namespace::new(1, 4096, Arc::new(MemoryStorage::new(1 << 20)))?;
/// target.add_namespace("nqn.2026-01.example:disk", disk)?;
/// target.advertise("192.0.2.1:4420".parse()?);
/// let connection = target.accept(offload_base::Instant::ZERO); // for each stream that hosts open
/// # let _ = connection;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Target {
    config: TargetConfig,
    subsystems: BTreeMap<String, Subsystem>,
    /// By CNTLID.
    sessions: BTreeMap<u16, Session>,
    next_controller: u16,
    next_connection: u64,
    advertised: Vec<SocketAddr>,
    generation: u64,
    wakeups: Vec<ConnectionId>,
    bell: Arc<Bell>,
    memory: Arc<Memory>,
    refused_connections: u64,
    stalled_connections: u64,
    /// Controllers by subsystem and host.
    by_host: BTreeMap<HostKey, BTreeSet<u16>>,
    /// Of controllers that are gone: what was under way when one went last.
    unfinished: BTreeMap<HostKey, AllUnderWay>,
}

/// Counts of what a target holds, and of what it had no room for.
///
/// ```
/// use nvme_tcp::target::{Target, TargetConfig};
///
/// let mut target = Target::new(TargetConfig { memory: 2 << 20, ..TargetConfig::default() })?;
/// let streams: Vec<_> = (0..300).map(|_| target.accept(offload_base::Instant::ZERO)).collect();
/// assert!(!streams[0].is_refused() && streams[299].is_refused());
/// assert_eq!(target.stats().refused_connections, 300 - 256); // 8 KiB each until their hosts say something
/// # Ok::<(), nvme_tcp::target::TargetError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TargetStats {
    /// Bytes of [`TargetConfig::memory`] that are promised or held.
    pub memory: usize,
    /// Streams, and Connects of I/O queues, that there was no memory for.
    pub refused_connections: u64,
    /// Connections that were ended because their hosts took nothing, or gave nothing that they were asked for.
    pub stalled_connections: u64,
}

/// A subsystem, and a host's name and identifier: hosts of a kind may have the same identifier by default.
type HostKey = (String, String, [u8; 16]);

#[derive(Debug, Default)]
struct Subsystem {
    namespaces: BTreeMap<u32, Arc<Namespace>>,
    /// `None`: every host.
    hosts: Option<BTreeSet<String>>,
}

/// A target cannot be made like that.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// Not a name as NVMe has them.
    #[error("{0:?} is not an NVMe qualified name: \"nqn.\" and at most 223 bytes")]
    Name(String),
    /// There is a subsystem of that name.
    #[error("there is a subsystem {0} already")]
    SubsystemExists(String),
    /// There is no subsystem of that name.
    #[error("there is no subsystem {0}")]
    NoSubsystem(String),
    /// The subsystem has a namespace of that number.
    #[error("there is a namespace {0} already")]
    NamespaceExists(u32),
    /// A namespace of that UUID is served already: hosts would take both for one.
    #[error(
        "namespace {0} of {1} has the same UUID: give one of them another; of two copies of a file, remove the .identity \
         beside the one that is to be another disk"
    )]
    SameUuid(u32, String),
    /// The subsystem has no namespace of that number.
    #[error("there is no namespace {0}")]
    NoNamespace(u32),
    /// There is no memory for a host with one I/O queue.
    #[error(
        "memory for {memory} bytes, but a host with one I/O queue needs {needed}: give the target more `memory`, or lower \
         `max_transfer` or `in_capsule`"
    )]
    Memory {
        /// [`TargetConfig::memory`].
        memory: usize,
        /// As much would do.
        needed: usize,
    },
}

impl Default for TargetConfig {
    fn default() -> TargetConfig {
        TargetConfig {
            serial: String::new(),
            model: "nic-offload nvme-tcp".into(),
            max_queues: 64,
            max_queue_entries: 1024,
            max_controllers: 4096,
            memory: 1 << 30,
            transport: TransportConfig::default(),
        }
    }
}

impl Default for TransportConfig {
    fn default() -> TransportConfig {
        TransportConfig {
            header_digest: true,
            data_digest: true,
            alignment: 0,
            max_data: 1 << 20,
            in_capsule: 8192,
            max_transfer: 8,
            request_bytes: 1 << 20,
            requests: 4,
            data_bytes: 1 << 20,
            budget: 8 << 20,
            receive_buffer: 128 << 10,
        }
    }
}

impl TransportConfig {
    /// Most bytes a command moves.
    pub(crate) fn max_transfer_bytes(&self) -> u32 {
        4096u32.checked_shl(u32::from(self.max_transfer)).filter(|bytes| *bytes > 0).unwrap_or(1 << 31)
    }
}

impl Target {
    /// A target that serves nothing yet.
    ///
    /// # Errors
    /// If its memory is too little for any host.
    pub fn new(config: TargetConfig) -> Result<Target, TargetError> {
        let transport = &config.transport;
        let queue = queue_bytes(MIN_ENTRIES.min(config.max_queue_entries), transport.in_capsule);
        let streams = 2 * (OPENING_BYTES + STREAM_BYTES + STREAM_DATA);
        let needed = streams + queue + transport.max_transfer_bytes() as usize;
        if config.memory < needed {
            return Err(TargetError::Memory { memory: config.memory, needed });
        }
        let bell = Arc::default();
        Ok(Target {
            memory: Memory::new(config.memory, &bell),
            config,
            subsystems: BTreeMap::new(),
            sessions: BTreeMap::new(),
            next_controller: 1,
            next_connection: 0,
            advertised: Vec::new(),
            generation: 0,
            wakeups: Vec::new(),
            bell,
            refused_connections: 0,
            stalled_connections: 0,
            by_host: BTreeMap::new(),
            unfinished: BTreeMap::new(),
        })
    }

    /// Serves a subsystem called `name`, to the `hosts` named only, or to any.
    ///
    /// # Errors
    /// If the name is none, or taken.
    pub fn add_subsystem(&mut self, name: &str, hosts: Option<Vec<String>>) -> Result<(), TargetError> {
        if !is_qualified_name(name) || name == DISCOVERY_NQN {
            return Err(TargetError::Name(name.to_owned()));
        }
        if self.subsystems.contains_key(name) {
            return Err(TargetError::SubsystemExists(name.to_owned()));
        }
        let hosts = hosts.map(BTreeSet::from_iter);
        self.subsystems.insert(name.to_owned(), Subsystem { hosts, ..Subsystem::default() });
        self.discovery_changed();
        Ok(())
    }

    /// Adds a namespace to a subsystem; hosts that are connected are told.
    ///
    /// # Errors
    /// If there is no such subsystem, or it has a namespace of that number, or one of that UUID is served.
    pub fn add_namespace(&mut self, subsystem: &str, namespace: Namespace) -> Result<(), TargetError> {
        let id = namespace.id();
        if self.subsystem(subsystem)?.namespaces.contains_key(&id) {
            return Err(TargetError::NamespaceExists(id));
        }
        let namespace = namespace.in_subsystem(subsystem);
        for (name, other) in &self.subsystems {
            if let Some(same) = other.namespaces.values().find(|other| other.uuid() == namespace.uuid()) {
                return Err(TargetError::SameUuid(same.id(), name.clone()));
            }
        }
        self.subsystem(subsystem)?.namespaces.insert(id, Arc::new(namespace));
        self.namespace_changed(subsystem, id);
        Ok(())
    }

    /// Takes a namespace away; commands under way finish.
    ///
    /// # Errors
    /// If there is no such subsystem or namespace.
    pub fn remove_namespace(&mut self, subsystem: &str, id: u32) -> Result<(), TargetError> {
        self.subsystem(subsystem)?.namespaces.remove(&id).ok_or(TargetError::NoNamespace(id))?;
        self.namespace_changed(subsystem, id);
        Ok(())
    }

    /// Has discovery tell hosts to connect to `address`.
    pub fn advertise(&mut self, address: SocketAddr) {
        self.advertised.push(address);
        self.discovery_changed();
    }

    /// The state machine of a stream that a host has opened at `now`. It is [closing](Connection::is_closing) already if
    /// there is no memory for it.
    pub fn accept(&mut self, now: Instant) -> Connection {
        self.next_connection += 1;
        let id = ConnectionId(self.next_connection);
        let account = self.memory.open(id);
        let has_room = account.promise(OPENING_BYTES, 0);
        let connection = Connection::new(id, now, self.config.transport, account);
        if has_room {
            return connection;
        }
        self.refused_connections += 1;
        connection.refused()
    }

    /// Counts of what it holds, and of what it had no room for.
    pub fn stats(&self) -> TargetStats {
        TargetStats {
            memory: self.memory.used(),
            refused_connections: self.refused_connections,
            stalled_connections: self.stalled_connections,
        }
    }

    /// A connection was ended because its host did nothing.
    pub(crate) fn note_stalled(&mut self) {
        self.stalled_connections += 1;
    }

    /// Connections that have to be [woken](Connection::handle_wakeup), for something happened that concerns them.
    pub fn take_wakeups(&mut self) -> Vec<ConnectionId> {
        self.wakeups.extend(self.bell.take());
        core::mem::take(&mut self.wakeups)
    }

    /// Has `listener` told at once of connections that have to be [woken](Connection::handle_wakeup) because of what
    /// happened outside the target: a [`Job`] that ran, data that were let go. It is called on the thread where that
    /// was, and is to touch neither the target nor a connection. Without one, [`take_wakeups`](Self::take_wakeups) tells.
    pub fn listen(&mut self, listener: impl Fn(&[ConnectionId]) + Send + Sync + 'static) {
        self.bell.set_listener(Box::new(listener));
    }

    /// How many controllers hosts are connected to.
    pub fn controllers(&self) -> usize {
        self.sessions.len()
    }

    /// How it was made.
    pub fn config(&self) -> &TargetConfig {
        &self.config
    }

    fn subsystem(&mut self, name: &str) -> Result<&mut Subsystem, TargetError> {
        self.subsystems.get_mut(name).ok_or_else(|| TargetError::NoSubsystem(name.to_owned()))
    }

    /// The subsystems that a host called `host` may connect to.
    fn discovery_log(&self, host: &str) -> DiscoveryLog {
        let visible = self.subsystems.iter().filter(|(_, subsystem)| subsystem.admits(host));
        let entries = visible
            .flat_map(|(name, _)| self.advertised.iter().map(move |address| DiscoveryEntry::new(name, *address)))
            .collect();
        DiscoveryLog { generation: self.generation, entries }
    }

    fn discovery_changed(&mut self) {
        // Discovery Log Page: the counter begins at zero, and moves when somebody may have read what was there before.
        self.generation += u64::from(self.next_connection > 0);
        self.notify(|session| session.is_discovery().then_some(Notice::Discovery));
    }

    fn namespace_changed(&mut self, subsystem: &str, id: u32) {
        self.notify(|session| (session.subsystem() == subsystem).then_some(Notice::Namespace(id)));
    }

    fn notify(&mut self, notice: impl Fn(&Session) -> Option<Notice>) {
        for session in self.sessions.values_mut() {
            if let Some(notice) = notice(session) {
                session.notice(notice);
                self.wakeups.push(session.admin());
            }
        }
    }

    /// A controller for a host; `None`: there are as many as may be, and none of them is the host's, or forsaken.
    fn begin_session(
        &mut self,
        data: ConnectData,
        admin: ConnectionId,
        now: Instant,
        keep_alive: Duration,
    ) -> Option<u16> {
        let key = (data.subsystem.clone(), data.host.clone(), data.host_id);
        let mut unfinished = self.unfinished.remove(&key).unwrap_or_default();
        let others = self.by_host.get(&key).into_iter().flatten().filter_map(|id| Some((*id, self.sessions.get(id)?)));
        let mut oldest: Option<(Instant, u16)> = None;
        for (id, session) in others {
            unfinished.extend(session.under_way().iter().cloned());
            let heard = (session.last_heard(), id);
            oldest = Some(oldest.map_or(heard, |oldest| heard.min(oldest)));
        }
        if self.sessions.len() >= usize::from(self.config.max_controllers.clamp(1, MAX_CONTROLLER)) {
            let forsaken = || {
                let sessions = self.sessions.iter().filter_map(|(id, session)| Some((session.is_forsaken(now)?, *id)));
                sessions.min().map(|(_, id)| id)
            };
            let Some(gives_way) = oldest.map(|(_, id)| id).or_else(forsaken) else {
                self.keep_unfinished(key, unfinished);
                return None;
            };
            self.end_session(gives_way);
        }
        let id = self.free_controller()?;
        self.by_host.entry(key).or_default().insert(id);
        let session = Session::new(data.subsystem, data.host, data.host_id, admin, now, keep_alive, unfinished);
        self.sessions.insert(id, session);
        Some(id)
    }

    /// Ends a controller: its queues are woken, and find it gone.
    fn end_session(&mut self, controller: u16) {
        // Not every host comes back to have its own forgotten.
        self.unfinished.retain(|_, under_way| !under_way.prune());
        let Some(mut session) = self.sessions.remove(&controller) else { return };
        self.wakeups.extend(session.queues().chain([session.admin()]));
        let key = (session.subsystem().to_owned(), session.host.clone(), session.host_id);
        if let Some(controllers) = self.by_host.get_mut(&key) {
            controllers.remove(&controller);
            if controllers.is_empty() {
                self.by_host.remove(&key);
            }
        }
        self.keep_unfinished(key, session.end_work().clone());
    }

    fn keep_unfinished(&mut self, key: HostKey, mut under_way: AllUnderWay) {
        if !under_way.prune() {
            self.unfinished.entry(key).or_default().extend(under_way.iter().cloned());
        }
    }

    fn free_controller(&mut self) -> Option<u16> {
        if self.sessions.len() >= usize::from(MAX_CONTROLLER) {
            return None;
        }
        loop {
            let id = self.next_controller;
            self.next_controller = if id >= MAX_CONTROLLER { 1 } else { id + 1 };
            if !self.sessions.contains_key(&id) {
                return Some(id);
            }
        }
    }
}

impl Subsystem {
    fn admits(&self, host: &str) -> bool {
        self.hosts.as_ref().is_none_or(|hosts| hosts.contains(host))
    }
}

/// A serial number that follows from `name`: others have others.
///
/// ```
/// use nvme_tcp::target::derived_serial;
///
/// assert_eq!(derived_serial("first").len(), 16);
/// assert_ne!(derived_serial("first"), derived_serial("second"));
/// ```
pub fn derived_serial(name: &str) -> String {
    format!("{:016X}", fnv1a(name.bytes()) as u64)
}

/// NVM Express Base Specification 2.0, 4.5: UTF-8, at most 223 bytes.
fn is_qualified_name(name: &str) -> bool {
    name.starts_with("nqn.") && name.len() <= 223
}

/// Entries of a queue that there has to be memory for.
const MIN_ENTRIES: u16 = 32;
/// FFF0h and above are reserved.
const MAX_CONTROLLER: u16 = 0xffef;

#[cfg(test)]
mod tests {
    use super::*;

    fn connect(target: &mut Target, number: u8) -> Option<u16> {
        let (subsystem, host) = ("nqn.disk".to_owned(), "nqn.host".to_owned());
        let data = ConnectData { host_id: [number; 16], controller: 0xffff, subsystem, host };
        target.begin_session(data, ConnectionId(1), Instant::ZERO, Duration::ZERO)
    }

    fn begin_work(target: &mut Target, controller: u16) -> work::Running {
        let session = target.sessions.get_mut(&controller).unwrap();
        let (work, _) = session.add_queue(1, ConnectionId(2), &target.bell).unwrap();
        work.begin(1).unwrap()
    }

    #[test]
    fn hosts_that_do_not_come_back_are_forgotten() {
        let mut target = Target::new(TargetConfig::default()).unwrap();
        for number in 0..100 {
            let controller = connect(&mut target, number).unwrap();
            let running = begin_work(&mut target, controller);
            target.end_session(controller);
            assert_eq!((target.unfinished.len(), target.by_host.len()), (1, 0), "host {number}");
            drop(running);
        }
    }

    #[test]
    fn what_a_host_left_behind_is_not_forgotten_when_there_is_no_room_for_it() {
        let mut target = Target::new(TargetConfig { max_controllers: 1, ..TargetConfig::default() }).unwrap();
        let first = connect(&mut target, 1).unwrap();
        let running = begin_work(&mut target, first);
        target.end_session(first);
        let other = connect(&mut target, 2).unwrap();
        assert_eq!(connect(&mut target, 1), None);
        target.end_session(other);
        let second = connect(&mut target, 1).unwrap();
        target.sessions.get_mut(&second).unwrap().configure(1);
        assert!(!target.sessions[&second].is_ready());
        drop(running);
        assert!(target.sessions[&second].is_ready());
    }
}
