//! A host: connected to one controller by an admin queue and any number of I/O queues, with reconnects after a loss.
//!
//! - [`Host`]: the interface for applications: submits commands and returns futures;
//! - [`Disk`]: block access to one namespace;
//! - [`discover()`]: discovery of subsystems;
//! - [`HostEvent`]: asynchronous events of the controller;
//! - `session`: the tasks: connect, keep alive, back off, reconnect;
//! - `serving`: the work of one queue; `link`: one stream; `offloading`: offload by the device below;
//! - `lane`: commands on their way to any queue; `given_up`: commands that wait for abandoned commands;
//! - `scope`: effects of commands;
//! - `known`: inspected namespaces; `looking`: repeated inspection.
//!
//! Invariants:
//! - A command ends exactly once and returns its buffer, even if queues are lost. Commands that were running when a
//!   queue was lost are sent again on the next queue, if executing a command twice is harmless and its namespace is the
//!   same as before.
//! - A command that has ended is not executed any more, so no command is overtaken by one that ended or was abandoned
//!   before. The exception is a host without a keep-alive that has lost or given up a silent controller. The command's
//!   error reports this case.
//! - If a task is lost, the host ends, and so do all commands. Buffers held by the task are lost.

mod abandoned_commands;
mod connector;
mod discover;
mod disk;
mod error;
mod events;
mod identity;
mod inspected_namespace;
mod inspections;
mod lane;
mod link;
mod queue_service;
mod receive_offload;
mod scope;
mod session;

pub use connector::{ConnectFuture, Connector};
pub use discover::discover;
pub use disk::Disk;
pub use error::{CommandError, HostError, ReadError, Unsuitable};
pub use events::HostEvent;
pub use identity::HostIdentity;
pub use lane::{CommandFuture, ReadFuture};
pub use session::HostTask;

pub use crate::core::queue::{Buffer, CommandData, Submission};
pub use crate::volume::KeyedVolume;

use crate::context_request::{OffloadCounters, SharedCounters};
use crate::core::queue::QueueConfig;
use crate::lock;
use crate::namespace::DataPieces;
use crate::wire::{Command, Completion, ControllerData, NamespaceData, NamespaceIds, commands, identify};
use abandoned_commands::AbandonedCommands;
use bytes::Bytes;
use core::future::poll_fn;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::task::{Poll, Waker};
use core::time::Duration;
use inspected_namespace::{InspectedNamespace, NAMESPACE, NAMESPACE_DESCRIPTORS};
use lane::{CommandLane, CommandTicket, PendingCommand};
use offload_base::{Instant, Timers};
use scope::CommandScope;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Configuration of a host: its identity, its target, and the parameters of the connections.
///
/// ```
/// use nvme_tcp::host::{HostConfig, HostIdentity};
/// use offload_base::Seed;
///
/// let identity = HostIdentity::random(&mut Seed(7).stream("host"));
/// let mut config = HostConfig::new("nqn.2026-01.example:disk", identity);
/// config.queues = 4;
/// config.data_digest = true;
/// assert_eq!(config.depth, 128);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostConfig {
    /// NQN of the subsystem.
    pub subsystem: String,
    /// NQN of this host.
    pub host: String,
    /// Identifier of this host. Controllers treat hosts with the same identifier as one host, and its later connections
    /// replace earlier ones.
    pub host_id: [u8; 16],
    /// Number of I/O queues to request, at least 1.
    pub queues: u16,
    /// Maximum number of commands in an I/O queue.
    pub depth: u16,
    /// Whether to request header digests. [`Host::digests`] returns the controller's answer.
    pub header_digest: bool,
    /// Whether to request data digests.
    pub data_digest: bool,
    /// Maximum number of outstanding requests to transfer of a command.
    pub requests: u32,
    /// HPDA: controllers begin data at a multiple of `(alignment + 1) * 4` bytes.
    pub alignment: u8,
    /// Offload by the NIC on I/O queues.
    pub offload: Offload,
    /// Time after which the controller gives up a silent host; zero for never. A host that loses a silent controller
    /// waits as long before sending commands again, because until then the controller may still execute the old ones.
    /// With zero there is no such limit: running commands that may change something are not sent again. Such commands
    /// end with [`CommandError::Uncertain`], and may still be executed afterwards.
    pub keep_alive: Duration,
    /// Time for a stream to open.
    pub connect_timeout: Duration,
    /// Time for a command to be answered.
    pub command_timeout: Duration,
    /// Delay before the first reconnect. Each failure doubles the delay.
    pub reconnect_delay: Duration,
    /// Maximum delay between reconnects.
    pub reconnect_delay_max: Duration,
    /// Time without a connection after which commands fail.
    pub give_up_after: Duration,
    /// Maximum number of retries that a status allows.
    pub retries: u32,
    /// Maximum time to retry a command that the controller cannot execute now, with pauses of up to a second: the path
    /// to the namespace is changing, the namespace is not ready, or the controller has no room. Also the maximum time
    /// to inspect a namespace that the controller cannot describe now; afterwards the namespace counts as gone. The
    /// time starts anew after a reconnect.
    pub path_wait: Duration,
    /// Maximum number of resubmissions of a command after lost connections. It fails then, because the command itself
    /// may be the cause.
    pub replays: u32,
}

/// Offload requested of a NIC for the I/O queues of a host. The CPU does everything else. A NIC that refuses
/// temporarily is asked again. After a refusal for lack of room, that is with the next PDU of the queue, then with the
/// second after that, the fourth, and so on, up to every 32nd. [`Host::offload_counters`] counts the requests.
///
/// ```
/// use nvme_tcp::host::{HostConfig, HostIdentity, Offload};
///
/// let mut config = HostConfig::new("nqn.2026-01.example:disk", HostIdentity::from_uuid([7; 16]));
/// config.offload = Offload::PlaceAndCheck;
/// assert_ne!(config.offload, Offload::default());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Offload {
    /// No offload.
    #[default]
    None,
    /// Place received data in the buffers of commands.
    Place,
    /// Place received data, check received data digests, and fill in sent ones.
    PlaceAndCheck,
    /// No offload, but the host saves as much work as if the NIC placed and checked data. For measurements only, as an
    /// estimate of the benefit. Received digests are not checked at all. Data of a read are not copied if their segment
    /// begins with eight bytes CCh, or is shorter and entirely CCh; the rest of the segment is not checked. The target
    /// should therefore serve blocks full of CCh. Buffers keep their old content.
    #[cfg(feature = "measure")]
    Emulate,
}

/// A host connected to a controller. Clones are the same host. Dropping the last clone ends the connection.
///
/// ```
/// use nvme_tcp::host::{Connector, Host, HostConfig, HostIdentity};
/// use offload_base::Timers;
/// use std::sync::Arc;
///
/// async fn first_block(
///     identity: HostIdentity,
///     connector: impl Connector + 'static,
///     timers: Arc<dyn Timers>,
///     spawn: impl Fn(nvme_tcp::host::HostTask),
/// ) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
///     let (host, tasks) = Host::new(connector, timers, HostConfig::new("nqn.2026-01.example:disk", identity));
///     tasks.into_iter().for_each(spawn);
///     host.ready().await?;
///     let disk = host.disk(1).await?;
///     let buffer = disk.read(0, disk.buffer(1)).await?;
///     Ok(buffer.to_vec())
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Host {
    handle: Arc<HostHandle>,
}

/// Counters of a host.
///
/// ```
/// use nvme_tcp::Host;
/// use nvme_tcp::host::HostStats;
///
/// /// Whether a host has lost connections since it came up.
/// fn was_lost(host: &Host) -> bool {
///     host.stats().connects > 1
/// }
/// assert_eq!(HostStats::default().replays, 0);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostStats {
    /// Number of times all queues were connected.
    pub connects: u64,
    /// Commands sent again after a loss.
    pub replays: u64,
    /// Commands sent again because their status allowed it.
    pub retries: u64,
}

/// Ends the host when the last [`Host`] is dropped.
struct HostHandle {
    shared: Arc<HostShared>,
}

/// State shared by hosts and tasks.
struct HostShared {
    config: HostConfig,
    connector: Box<dyn Connector>,
    timers: Arc<dyn Timers>,
    /// Lanes of the admin queue and of the I/O queues, in this order.
    lanes: Vec<Arc<CommandLane>>,
    /// Number of I/O queues in use, and a counter that selects the next queue.
    queues: AtomicUsize,
    turn: AtomicUsize,
    given_up: Arc<AbandonedCommands>,
    offloads: SharedCounters,
    central: Mutex<HostState>,
    /// Parent span of the host's log events.
    span: tracing::Span,
}

#[derive(Default)]
struct HostState {
    /// Number of the current attempt to connect.
    generation: u64,
    association: Option<Arc<Association>>,
    /// Number of connected I/O queues.
    connected: u16,
    /// Number of the last failed attempt.
    lost: u64,
    /// When the connection was lost. `None` while connected.
    lost_since: Option<Instant>,
    /// When all lost controllers have given the host up.
    quiet_until: Option<Instant>,
    /// When the current or last connection was completed.
    live_since: Option<Instant>,
    last_error: Option<HostError>,
    /// Whether `last_error` makes further attempts useless.
    is_final: bool,
    /// Whether the host was connected at least once.
    was_live: bool,
    ended: Option<HostError>,
    waiting: Vec<Waker>,
    /// Inspected namespaces by identifier.
    known: BTreeMap<u32, Arc<InspectedNamespace>>,
    /// Number of times all namespaces were put in doubt.
    doubts: u64,
    untold: events::StoredEvents,
    stats: HostStats,
}

/// A controller, while its admin queue exists.
#[derive(Debug)]
struct Association {
    generation: u64,
    data: ControllerData,
    /// Header and data digests that the admin queue agreed to.
    digests: (bool, bool),
    queues: u16,
    depth: u16,
    in_capsule: u32,
    max_transfer: u32,
}

impl Offload {
    fn uses_device(self) -> bool {
        matches!(self, Offload::Place | Offload::PlaceAndCheck)
    }

    #[cfg(feature = "measure")]
    fn is_emulation(self) -> bool {
        self == Offload::Emulate
    }

    #[cfg(not(feature = "measure"))]
    fn is_emulation(self) -> bool {
        false
    }
}

impl HostConfig {
    /// Creates a configuration with default values.
    pub fn new(subsystem: &str, identity: HostIdentity) -> HostConfig {
        HostConfig {
            subsystem: subsystem.to_owned(),
            host: identity.name,
            host_id: identity.id,
            queues: 1,
            depth: 128,
            header_digest: false,
            data_digest: false,
            requests: 4,
            alignment: 0,
            offload: Offload::None,
            keep_alive: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(10),
            command_timeout: Duration::from_secs(30),
            reconnect_delay: Duration::from_millis(500),
            reconnect_delay_max: Duration::from_secs(10),
            give_up_after: Duration::from_secs(600),
            retries: 5,
            path_wait: Duration::from_secs(60),
            replays: 8,
        }
    }

    fn queue_config(&self, depth: u16, in_capsule: u32) -> QueueConfig {
        QueueConfig {
            depth,
            header_digest: self.header_digest,
            data_digest: self.data_digest,
            alignment: self.alignment,
            requests: self.requests,
            in_capsule,
            command_timeout: self.command_timeout,
        }
    }
}

impl Host {
    /// Creates a host, and one task for each queue, which the caller must spawn. If a task is dropped or panics, the
    /// host ends with [`HostError::TaskLost`].
    pub fn new(
        connector: impl Connector + 'static,
        timers: Arc<dyn Timers>,
        config: HostConfig,
    ) -> (Host, Vec<HostTask>) {
        let config = HostConfig { queues: config.queues.max(1), ..config };
        let given_up = Arc::<AbandonedCommands>::default();
        // The first lane belongs to the admin queue.
        let lanes = (0..=usize::from(config.queues)).map(|_| Arc::new(CommandLane::new(given_up.clone()))).collect();
        let span = tracing::debug_span!("nvme_host", subsystem = config.subsystem);
        let shared = Arc::new(HostShared {
            span,
            config,
            connector: Box::new(connector),
            timers,
            lanes,
            queues: AtomicUsize::new(1),
            turn: AtomicUsize::new(0),
            given_up,
            offloads: SharedCounters::default(),
            central: Mutex::default(),
        });
        let tasks = session::tasks(&shared);
        (Host { handle: Arc::new(HostHandle { shared }) }, tasks)
    }

    /// Waits until all queues are connected.
    ///
    /// # Errors
    /// If the host has given up. During the first attempt, it gives up at the first failure.
    pub async fn ready(&self) -> Result<(), HostError> {
        poll_fn(|cx| {
            let mut central = lock(&self.handle.shared.central);
            if let Some(error) = &central.ended {
                return Poll::Ready(Err(error.clone()));
            }
            if central.is_live() {
                return Poll::Ready(Ok(()));
            }
            wait(&mut central.waiting, cx.waker());
            Poll::Pending
        })
        .await
    }

    /// Returns the controller's Identify data; `None` while not connected.
    pub fn controller(&self) -> Option<ControllerData> {
        lock(&self.handle.shared.central).association.as_ref().map(|association| association.data.clone())
    }

    /// Returns whether the controller agreed to header digests and to data digests; `None` while not connected.
    pub fn digests(&self) -> Option<(bool, bool)> {
        lock(&self.handle.shared.central).association.as_ref().map(|association| association.digests)
    }

    /// Returns the number of I/O queues that the controller granted.
    pub fn queues(&self) -> usize {
        self.handle.shared.queues.load(Ordering::Relaxed)
    }

    /// Returns the counters.
    pub fn stats(&self) -> HostStats {
        lock(&self.handle.shared.central).stats
    }

    /// Returns the counters of offload requests for the I/O queues.
    pub fn offload_counters(&self) -> OffloadCounters {
        *lock(&self.handle.shared.offloads)
    }

    /// Waits for the next event of the controller. A limited number of events is stored while no caller waits. Events
    /// during a loss of the connection may be missing.
    ///
    /// ```
    /// use nvme_tcp::host::{Host, HostError, HostEvent};
    ///
    /// async fn follow(host: &Host) -> Result<(), HostError> {
    ///     loop {
    ///         if let HostEvent::NamespacesChanged(namespaces) = host.next_event().await? {
    ///             println!("look at {namespaces:?} again");
    ///         }
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    /// If the host has given up or was closed.
    pub async fn next_event(&self) -> Result<HostEvent, HostError> {
        poll_fn(|cx| {
            let mut central = lock(&self.handle.shared.central);
            // Stored events are returned even after the host has ended.
            if let Some(event) = central.untold.take() {
                return Poll::Ready(Ok(event));
            }
            if let Some(error) = &central.ended {
                return Poll::Ready(Err(error.clone()));
            }
            wait(&mut central.untold.waiting, cx.waker());
            Poll::Pending
        })
        .await
    }

    /// Returns the identifiers of the active namespaces.
    ///
    /// # Errors
    /// As for any command.
    pub async fn namespaces(&self) -> Result<Vec<u32>, CommandError> {
        let buffer = Buffer::zeroed(identify::LEN);
        let read = self.admin_read(commands::identify(ACTIVE_NAMESPACES, 0), buffer).await;
        Ok(identify::parse_namespace_list(&read.map_err(|failed| failed.error)?.to_vec()))
    }

    /// Inspects a namespace and returns its disk. After each reconnect, and when the controller reports a change, the
    /// namespace is inspected again, and its commands wait. If identifiers, block size or a smaller size show that the
    /// namespace was replaced, or if it was removed, the disk is gone: its commands end with
    /// [`CommandError::NamespaceChanged`], and nothing is sent to the new namespace. A command that was sent before the
    /// controller reported the change runs on the new namespace.
    ///
    /// # Errors
    /// As for any command; [`CommandError::Invalid`] if the namespace does not exist.
    pub async fn disk(&self, namespace: u32) -> Result<Disk, CommandError> {
        loop {
            let (generation, doubts) = {
                let central = lock(&self.handle.shared.central);
                (central.generation, central.doubts)
            };
            let (data, ids) = self.inspect_namespace(namespace).await?;
            let mut central = lock(&self.handle.shared.central);
            let there = central.association.clone().filter(|there| there.generation == generation);
            let Some(association) = there.filter(|_| central.doubts == doubts) else {
                continue; // parts may come from another controller, or from before the change
            };
            // The same namespace keeps its entry, so that disks created earlier stay usable.
            let known = match central.known.get(&namespace) {
                Some(known) if !known.is_gone() && known.is(&data, &ids) => match known.data == data {
                    true => known.clone(),
                    false => Arc::new(known.with_size(data)),
                },
                before => {
                    before.into_iter().for_each(|before| before.mark_gone());
                    Arc::new(InspectedNamespace::new(namespace, data, ids))
                }
            };
            central.known.insert(namespace, known.clone());
            let max_transfer = association.max_transfer;
            drop(central);
            // Commands that wait for a namespace that is gone must fail now.
            self.handle.shared.wake_lanes();
            return Ok(Disk::new(self.clone(), known, max_transfer));
        }
    }

    /// Submits a command to the admin queue, with `data`. After the loss of a connection, commands known to change
    /// nothing, or to have the same effect when repeated (Set Features), are sent again. Others end with
    /// [`CommandError::Uncertain`].
    pub fn admin(&self, command: Command, data: impl IntoIterator<Item = Bytes>) -> CommandFuture {
        CommandFuture(self.submit_admin(command, write_payload(data)))
    }

    /// Submits a command to the admin queue that reads into `buffer`. The rules of [`Host::admin`] apply to its
    /// resubmission.
    pub fn admin_read(&self, command: Command, buffer: Buffer) -> ReadFuture {
        ReadFuture(self.submit_admin(command, CommandData::Read(buffer)))
    }

    /// Submits a command to an I/O queue, with `data`. If the status allows a retry, or after the loss of a connection,
    /// commands known to change nothing, or to have the same effect when repeated, are sent again: Write, Write Zeroes,
    /// Write Uncorrectable and Dataset Management on a namespace that was inspected by [`Host::disk`]. Other commands,
    /// for example reservations, Copy or Zone Append, are sent once, and end with [`CommandError::Uncertain`] if the
    /// connection is lost.
    pub fn io(&self, command: Command, data: impl IntoIterator<Item = Bytes>) -> CommandFuture {
        CommandFuture(self.submit_io(command, write_payload(data), self.known(command.namespace())))
    }

    /// Submits a command to an I/O queue that reads into `buffer`. The rules of [`Host::io`] apply to its resubmission.
    pub fn io_read(&self, command: Command, buffer: Buffer) -> ReadFuture {
        ReadFuture(self.submit_io(command, CommandData::Read(buffer), self.known(command.namespace())))
    }

    /// Shuts the controller down and ends the connection. Running commands fail.
    pub async fn close(&self) {
        self.handle.shared.lanes[0].instruct(lane::LaneInstruction::End);
        poll_fn(|cx| {
            let mut central = lock(&self.handle.shared.central);
            if central.ended.is_some() {
                return Poll::Ready(());
            }
            wait(&mut central.waiting, cx.waker());
            Poll::Pending
        })
        .await;
    }

    async fn inspect_namespace(&self, namespace: u32) -> Result<(NamespaceData, NamespaceIds), CommandError> {
        let read = |cns| self.admin_read(commands::identify(cns, namespace), Buffer::zeroed(identify::LEN));
        let page = read(NAMESPACE).await.map_err(|failed| failed.error)?.to_vec();
        let data = NamespaceData::parse(&page)
            .filter(|data| data.block_shift > 0)
            .ok_or(CommandError::Invalid("there is no such namespace, or its format is unknown"))?;
        let version = self.controller().map_or(0, |controller| controller.version);
        let descriptors = match inspected_namespace::has_descriptors(version) {
            true => match read(NAMESPACE_DESCRIPTORS).await {
                Ok(buffer) => buffer.to_vec(),
                // Descriptors are optional.
                Err(ReadError { error: CommandError::Status(status), .. }) if status.do_not_retry() => Vec::new(),
                Err(failed) => return Err(failed.error),
            },
            false => Vec::new(),
        };
        Ok((data, NamespaceIds::parse(&page, &descriptors)))
    }

    fn submit_admin(&self, command: Command, payload: CommandData) -> PendingCommand {
        let ticket = CommandTicket::new(CommandScope::for_admin(&command), None);
        self.handle.shared.lanes[0].submit(Submission { command, payload }, ticket)
    }

    fn submit_io(
        &self,
        command: Command,
        payload: CommandData,
        known: Option<Arc<InspectedNamespace>>,
    ) -> PendingCommand {
        let ticket = CommandTicket::new(CommandScope::for_io(&command, &payload), known);
        self.handle.shared.lanes[self.next_lane()].submit(Submission { command, payload }, ticket)
    }

    fn known(&self, namespace: u32) -> Option<Arc<InspectedNamespace>> {
        lock(&self.handle.shared.central).known.get(&namespace).cloned()
    }

    /// Returns the next lane: I/O queues take turns.
    fn next_lane(&self) -> usize {
        let shared = &self.handle.shared;
        let queues = shared.queues.load(Ordering::Relaxed).clamp(1, shared.lanes.len() - 1);
        1 + shared.turn.fetch_add(1, Ordering::Relaxed) % queues
    }
}

impl HostState {
    fn is_live(&self) -> bool {
        self.association.as_ref().is_some_and(|association| association.queues == self.connected)
    }

    /// Puts all namespaces in doubt, and returns them.
    fn doubt(&mut self) -> Vec<Arc<InspectedNamespace>> {
        self.doubts += 1;
        // A namespace that is gone stays gone, so it needs no inspection.
        let known: Vec<Arc<InspectedNamespace>> =
            self.known.values().filter(|known| !known.is_gone()).cloned().collect();
        known.iter().for_each(|known| known.doubt());
        known
    }

    fn wake(&mut self) {
        self.waiting.drain(..).for_each(Waker::wake);
        self.untold.waiting.drain(..).for_each(Waker::wake);
    }
}

impl Drop for HostHandle {
    fn drop(&mut self) {
        self.shared.lanes[0].instruct(lane::LaneInstruction::End);
    }
}

impl core::fmt::Debug for HostHandle {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("HostHandle").field("config", &self.shared.config).finish_non_exhaustive()
    }
}

/// Registers `waker`, unless it is already registered.
fn wait(waiting: &mut Vec<Waker>, waker: &Waker) {
    if !waiting.iter().any(|other| other.will_wake(waker)) {
        waiting.push(waker.clone());
    }
}

fn write_payload(data: impl IntoIterator<Item = Bytes>) -> CommandData {
    let pieces: DataPieces = data.into_iter().filter(|piece| !piece.is_empty()).collect();
    if pieces.is_empty() { CommandData::None } else { CommandData::Write(pieces) }
}

/// Result of a command, with its payload.
type CommandOutcome = (Result<Completion, CommandError>, CommandData);

/// CNS of the active namespace list.
const ACTIVE_NAMESPACES: u8 = 0x02;
