//! The controller side: subsystems, controllers, and their connections.
//!
//! - [`Target`]: subsystems with namespaces, and the controllers that hosts have connected to;
//! - [`Connection`]: one connection, which is one queue: PDUs in, PDUs out;
//! - [`Job`]: work on a namespace, which the driver of the connection runs on any thread.
//!
//! ```text
//!   stream -- handle_segment -> Connection -- poll_job -> Job::run -- complete -> Connection -- poll_transmit -> stream
//!                                   |  fabrics.rs, admin.rs, features.rs, io.rs: what commands mean
//!                                 Target  session.rs: one controller's state
//! ```
//!
//! Invariant: a command gets exactly one completion, or its connection ends. When an admin queue ends, its controller
//! and the controller's I/O queues end as well.

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
pub use job::{Job, JobResult};

use crate::namespace::{Namespace, fnv1a};
use crate::wire::{ConnectData, DISCOVERY_NQN, DiscoveryEntry, DiscoveryLog};
use bell::ConnectionBell;
use connection::{OPENING_BYTES, STREAM_BYTES, STREAM_DATA, queue_bytes};
use core::net::SocketAddr;
use core::time::Duration;
use memory::TargetMemory;
use offload_base::Instant;
use session::{EventNotice, Session};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use work::Backlog;

/// Configuration of a target, the same for all hosts.
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
    /// Serial number, at most 20 ASCII characters. If empty, it is [derived](derived_serial) from the subsystem's name,
    /// so that subsystems have different serial numbers.
    pub serial: String,
    /// Model, at most 40 ASCII characters.
    pub model: String,
    /// Maximum number of I/O queues of a controller.
    pub max_queues: u16,
    /// Maximum number of entries of a queue.
    pub max_queue_entries: u16,
    /// Maximum number of controllers, 1 to 65519. At the limit, a host that already has controllers gets a new one in
    /// place of its least recently heard one, because the host may have lost that connection unnoticed by the target.
    /// Another host gets the place of the least recently heard controller that is older than ten seconds and has no I/O
    /// queues. If there is no such controller, the host gets the place of a controller with no keep-alive, or one of
    /// ten minutes or more, that has received no command for two minutes.
    pub max_controllers: u16,
    /// Bytes that all hosts together may make the target hold: data of pending writes, data of reads that hosts have
    /// not taken, and the cost of connections. A stream costs 8 KiB until its host has sent an ICReq, and 152 KiB
    /// afterwards. An I/O queue costs 128 KiB, plus about 1 KiB and the in-capsule data for each entry, and is promised
    /// memory for one of the largest commands. Without enough memory, a stream is reset and a Connect is refused as
    /// busy. Commands that need more than the promise wait in order of arrival.
    pub memory: usize,
    /// Parameters of the transport.
    pub transport: TransportConfig,
}

/// Transport parameters of a target.
///
/// See [`TargetConfig`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransportConfig {
    /// Whether the target agrees to header digests.
    pub header_digest: bool,
    /// Whether the target agrees to data digests.
    pub data_digest: bool,
    /// CPDA: hosts begin data at a multiple of `(alignment + 1) * 4` bytes. Linux accepts only 0.
    pub alignment: u8,
    /// MAXH2CDATA: maximum number of data bytes of an H2CData PDU; at least 4096, and a multiple of 4.
    pub max_data: u32,
    /// Maximum number of data bytes in a command capsule; a multiple of 16.
    pub in_capsule: u32,
    /// MDTS: a command moves at most `4096 << max_transfer` bytes.
    pub max_transfer: u8,
    /// Maximum bytes of a request to transfer (R2T).
    pub request_bytes: u32,
    /// Maximum number of outstanding requests to transfer of a command, if the host allows as many.
    pub requests: u32,
    /// Maximum number of data bytes of a C2HData PDU.
    pub data_bytes: u32,
    /// Maximum bytes requested from one host on one queue at a time, and maximum bytes read for it.
    pub budget: usize,
    /// Maximum size of a receive buffer of the streams. A large piece of data that stays in its receive buffer is
    /// charged with this size to [`TargetConfig::memory`]. The default of 128 KiB fits TLS and `nic-sim`; a NIC that
    /// joins segments to more than 64 KiB has larger buffers (`NicConfig::receive_buffer_bytes`).
    pub receive_buffer: usize,
}

/// Subsystems, their namespaces and controllers. All connections share a target.
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
    /// Controllers by CNTLID.
    sessions: BTreeMap<u16, Session>,
    next_controller: u16,
    next_connection: u64,
    advertised: Vec<SocketAddr>,
    generation: u64,
    wakeups: Vec<ConnectionId>,
    bell: Arc<ConnectionBell>,
    memory: Arc<TargetMemory>,
    refused_connections: u64,
    stalled_connections: u64,
    /// Controllers by subsystem and host.
    by_host: BTreeMap<HostKey, BTreeSet<u16>>,
    /// Commands of ended controllers that are still running.
    unfinished: BTreeMap<HostKey, Backlog>,
}

/// Counters of a target.
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
    /// Streams and Connects of I/O queues that were refused for lack of memory.
    pub refused_connections: u64,
    /// Connections that were closed because their hosts took no answers, or did not send requested data.
    pub stalled_connections: u64,
}

/// Subsystem, host name and host identifier. The name is included because hosts may share a default identifier.
type HostKey = (String, String, [u8; 16]);

#[derive(Debug, Default)]
struct Subsystem {
    namespaces: BTreeMap<u32, Arc<Namespace>>,
    /// Hosts that may connect; `None` admits every host.
    hosts: Option<BTreeSet<String>>,
}

/// Error in the setup of a target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// The name is not an NVMe qualified name.
    #[error("{0:?} is not an NVMe qualified name: \"nqn.\" and at most 223 bytes")]
    Name(String),
    /// The subsystem already exists.
    #[error("subsystem {0} already exists")]
    SubsystemExists(String),
    /// The subsystem does not exist.
    #[error("there is no subsystem {0}")]
    NoSubsystem(String),
    /// The subsystem already has a namespace with this identifier.
    #[error("namespace {0} already exists")]
    NamespaceExists(u32),
    /// A namespace with this UUID is served already. Hosts would take both for the same namespace.
    #[error(
        "namespace {0} of {1} has the same UUID: give one of the two another UUID; if one is a copy of the other's file, \
         remove the copy's .identity file"
    )]
    SameUuid(u32, String),
    /// The subsystem has no namespace with this identifier.
    #[error("there is no namespace {0}")]
    NoNamespace(u32),
    /// The memory is too small for a host with one I/O queue.
    #[error(
        "{memory} bytes of memory, but a host with one I/O queue needs {needed}: give the target more `memory`, or lower \
         `max_transfer` or `in_capsule`"
    )]
    Memory {
        /// [`TargetConfig::memory`].
        memory: usize,
        /// Smallest sufficient value.
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
    /// Returns the maximum number of bytes a command moves.
    pub(crate) fn max_transfer_bytes(&self) -> u32 {
        4096u32.checked_shl(u32::from(self.max_transfer)).filter(|bytes| *bytes > 0).unwrap_or(1 << 31)
    }
}

impl Target {
    /// Creates a target without subsystems.
    ///
    /// # Errors
    /// If the memory is too small for a host.
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
            memory: TargetMemory::new(config.memory, &bell),
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

    /// Adds a subsystem. If `hosts` is given, only these hosts may connect.
    ///
    /// # Errors
    /// If the name is invalid or taken.
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

    /// Adds a namespace to a subsystem and notifies connected hosts.
    ///
    /// # Errors
    /// If the subsystem does not exist, if it has a namespace with this identifier, or if a namespace with this UUID is
    /// served.
    pub fn add_namespace(&mut self, subsystem: &str, namespace: Namespace) -> Result<(), TargetError> {
        let id = namespace.id();
        if self.subsystem(subsystem)?.namespaces.contains_key(&id) {
            return Err(TargetError::NamespaceExists(id));
        }
        // The UUID may be derived from the subsystem's name, so it is fixed before the comparison.
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

    /// Removes a namespace and notifies connected hosts. Running commands complete.
    ///
    /// # Errors
    /// If the subsystem or the namespace does not exist.
    pub fn remove_namespace(&mut self, subsystem: &str, id: u32) -> Result<(), TargetError> {
        self.subsystem(subsystem)?.namespaces.remove(&id).ok_or(TargetError::NoNamespace(id))?;
        self.namespace_changed(subsystem, id);
        Ok(())
    }

    /// Adds `address` to the discovery log.
    pub fn advertise(&mut self, address: SocketAddr) {
        self.advertised.push(address);
        self.discovery_changed();
    }

    /// Creates the state machine of a stream that a host opened. If there is no memory, the connection is already
    /// [closing](Connection::is_closing).
    pub fn accept(&mut self, now: Instant) -> Connection {
        self.next_connection += 1;
        let id = ConnectionId(self.next_connection);
        let account = self.memory.open(id);
        // The connection object is created in any case. A refused one closes itself at once.
        let has_room = account.promise(OPENING_BYTES, 0);
        let connection = Connection::new(id, now, self.config.transport, account);
        if has_room {
            return connection;
        }
        self.refused_connections += 1;
        connection.refused()
    }

    /// Returns the counters.
    pub fn stats(&self) -> TargetStats {
        TargetStats {
            memory: self.memory.used(),
            refused_connections: self.refused_connections,
            stalled_connections: self.stalled_connections,
        }
    }

    /// Counts a connection that was closed because its host did nothing.
    pub(crate) fn note_stalled(&mut self) {
        self.stalled_connections += 1;
    }

    /// Returns the connections that must be [woken](Connection::handle_wakeup).
    pub fn take_wakeups(&mut self) -> Vec<ConnectionId> {
        self.wakeups.extend(self.bell.take());
        core::mem::take(&mut self.wakeups)
    }

    /// Calls `listener` at once for connections that must be [woken](Connection::handle_wakeup) because of events
    /// outside the target: a finished [`Job`], or released data. The listener runs on the thread of the event and must
    /// touch neither the target nor a connection. Without a listener, [`take_wakeups`](Self::take_wakeups) returns
    /// these connections.
    pub fn listen(&mut self, listener: impl Fn(&[ConnectionId]) + Send + Sync + 'static) {
        self.bell.set_listener(Box::new(listener));
    }

    /// Returns the number of controllers.
    pub fn controllers(&self) -> usize {
        self.sessions.len()
    }

    /// Returns the configuration.
    pub fn config(&self) -> &TargetConfig {
        &self.config
    }

    fn subsystem(&mut self, name: &str) -> Result<&mut Subsystem, TargetError> {
        self.subsystems.get_mut(name).ok_or_else(|| TargetError::NoSubsystem(name.to_owned()))
    }

    /// Returns the log of the subsystems that `host` may connect to.
    fn discovery_log(&self, host: &str) -> DiscoveryLog {
        let visible = self.subsystems.iter().filter(|(_, subsystem)| subsystem.admits(host));
        let entries = visible
            .flat_map(|(name, _)| self.advertised.iter().map(move |address| DiscoveryEntry::new(name, *address)))
            .collect();
        DiscoveryLog { generation: self.generation, entries }
    }

    fn discovery_changed(&mut self) {
        // The generation starts at zero and changes only once a host may have read the log.
        self.generation += u64::from(self.next_connection > 0);
        self.notify(|session| session.is_discovery().then_some(EventNotice::Discovery));
    }

    fn namespace_changed(&mut self, subsystem: &str, id: u32) {
        self.notify(|session| (session.subsystem() == subsystem).then_some(EventNotice::Namespace(id)));
    }

    fn notify(&mut self, notice: impl Fn(&Session) -> Option<EventNotice>) {
        for session in self.sessions.values_mut() {
            if let Some(notice) = notice(session) {
                session.notice(notice);
                self.wakeups.push(session.admin());
            }
        }
    }

    /// Creates a controller for a host. Returns `None` if the limit is reached and no controller may be replaced.
    fn begin_session(
        &mut self,
        data: ConnectData,
        admin: ConnectionId,
        now: Instant,
        keep_alive: Duration,
    ) -> Option<u16> {
        let key = (data.subsystem.clone(), data.host.clone(), data.host_id);
        let mut unfinished = self.unfinished.remove(&key).unwrap_or_default();
        // Running commands of the host's earlier controllers delay the new one: see `work`.
        let others = self.by_host.get(&key).into_iter().flatten().filter_map(|id| Some((*id, self.sessions.get(id)?)));
        let mut oldest: Option<(Instant, u16)> = None;
        for (id, session) in others {
            unfinished.extend(session.under_way().iter().cloned());
            let heard = (session.last_heard(), id);
            oldest = Some(oldest.map_or(heard, |oldest| heard.min(oldest)));
        }
        // Replaces the host's own oldest controller first: it is probably the one that this connection replaces.
        if self.sessions.len() >= usize::from(self.config.max_controllers.clamp(1, MAX_CONTROLLER)) {
            let forsaken = || {
                let sessions =
                    self.sessions.iter().filter_map(|(id, session)| Some((session.replacement_order(now)?, *id)));
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

    /// Ends a controller. Its connections are woken and then find it gone.
    fn end_session(&mut self, controller: u16) {
        // Pruned here, because some hosts never come back to have their own entry pruned.
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
        // The host's next controller has to wait for these commands.
        self.keep_unfinished(key, session.end_work().clone());
    }

    fn keep_unfinished(&mut self, key: HostKey, mut under_way: Backlog) {
        if !under_way.prune() {
            self.unfinished.entry(key).or_default().extend(under_way.iter().cloned());
        }
    }

    fn free_controller(&mut self) -> Option<u16> {
        if self.sessions.len() >= usize::from(MAX_CONTROLLER) {
            return None;
        }
        // Identifiers are reused as late as possible, so that late references do not match another controller.
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

/// Derives a serial number from `name`, so that different names have different serial numbers.
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

/// Tests for an NVMe qualified name. NVM Express Base Specification 2.0, 4.5: UTF-8, at most 223 bytes.
fn is_qualified_name(name: &str) -> bool {
    name.starts_with("nqn.") && name.len() <= 223
}

/// Minimum number of entries that the memory must suffice for.
const MIN_ENTRIES: u16 = 32;
/// Highest controller identifier: FFF0h and above are reserved.
const MAX_CONTROLLER: u16 = 0xffef;

#[cfg(test)]
mod tests {
    use super::*;

    fn connect(target: &mut Target, number: u8) -> Option<u16> {
        let (subsystem, host) = ("nqn.disk".to_owned(), "nqn.host".to_owned());
        let data = ConnectData { host_id: [number; 16], controller: 0xffff, subsystem, host };
        target.begin_session(data, ConnectionId(1), Instant::ZERO, Duration::ZERO)
    }

    fn begin_work(target: &mut Target, controller: u16) -> work::CommandGuard {
        let session = target.sessions.get_mut(&controller).unwrap();
        let (work, _) = session.add_queue(1, ConnectionId(2), &target.bell).unwrap();
        work.begin(1).unwrap()
    }

    #[test]
    fn absent_hosts_are_forgotten() {
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
    fn refused_host_still_waits_for_its_old_commands() {
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
