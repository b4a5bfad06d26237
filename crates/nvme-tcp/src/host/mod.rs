//! A host: connected to one controller by an admin queue and any number of I/O queues, and again when it loses them.
//!
//! - [`Host`]: what applications hold: commands go in, futures of their ends come out;
//! - [`Disk`]: one namespace: read, write, and the rest by block;
//! - [`discover()`]: what there is to connect to;
//! - [`HostEvent`]: what a controller tells unasked;
//! - `session`: the tasks: connect, keep alive, back off, connect again;
//! - `serving`: one queue's work; `link`: one stream; `offloading`: what the device below it does;
//! - `lane`: commands on their way to a queue, wherever that is; `given_up`: those that wait for others to end;
//! - `scope`: what a command may do, and to what;
//! - `known`: namespaces, to be known again; `looking`: how they are looked at again.
//!
//! Invariants: a command ends once, and its buffer comes back with it, whatever becomes of queues in between: what was
//! under way when a queue was lost is replayed on the next, if it may be carried out twice and is about the same
//! namespace as before. A command that has ended is not carried out any more, unless the host has given up or lost a
//! silent controller without a keep-alive, and its error says that; so no command is overtaken by one that ended, or was
//! given up, before it was submitted. If a task is lost, the host ends, and so do all commands; buffers that the task had
//! are lost with it.

mod connector;
mod discover;
mod disk;
mod error;
mod events;
mod given_up;
mod identity;
mod known;
mod lane;
mod link;
mod looking;
mod offloading;
mod scope;
mod serving;
mod session;

pub use connector::{Connecting, Connector};
pub use discover::discover;
pub use disk::Disk;
pub use error::{CommandError, Failed, HostError, Unsuitable};
pub use events::HostEvent;
pub use identity::HostIdentity;
pub use lane::{Done, Read};
pub use session::Task;

pub use crate::core::queue::{Buffer, Payload, Submission};
pub use crate::volume::KeyedVolume;

use crate::asking::{OffloadCounters, SharedCounters};
use crate::core::queue::QueueConfig;
use crate::lock;
use crate::namespace::Pieces;
use crate::wire::{Command, Completion, ControllerData, NamespaceData, NamespaceIds, commands, identify};
use bytes::Bytes;
use core::future::poll_fn;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::task::{Poll, Waker};
use core::time::Duration;
use given_up::GivenUp;
use known::{Known, NAMESPACE, NAMESPACE_DESCRIPTORS};
use lane::{Lane, Pending, Ticket};
use offload_base::{Instant, Timers};
use scope::Scope;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// The identity of a host, its target, and the parameters of the connections.
///
/// ```
/// use nvme_tcp::host::{HostConfig, HostIdentity};
/// use offload_base::Seed;
///
/// let identity = HostIdentity::drawn_from(&mut Seed(7).stream("host"));
/// let mut config = HostConfig::new("nqn.2026-01.example:disk", identity);
/// config.queues = 4;
/// config.data_digest = true;
/// assert_eq!(config.depth, 128);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostConfig {
    /// The subsystem to connect to.
    pub subsystem: String,
    /// This host's name.
    pub host: String,
    /// This host's identifier. Controllers take hosts with the same one for the same host, whose earlier connections the
    /// later ones replace.
    pub host_id: [u8; 16],
    /// I/O queues to ask for, at least one.
    pub queues: u16,
    /// Commands in an I/O queue at a time, at most.
    pub depth: u16,
    /// Asks for header digests; [`Host::digests`] tells what the controller says.
    pub header_digest: bool,
    /// Asks for data digests.
    pub data_digest: bool,
    /// Requests to transfer that a command may have outstanding.
    pub requests: u32,
    /// HPDA: controllers begin data at a multiple of `(alignment + 1) * 4` bytes.
    pub alignment: u8,
    /// What the NIC of an emulated host does for I/O queues.
    pub offload: Offload,
    /// The controller gives the host up when it has not heard of it for this long; zero: never. So long a host waits that
    /// has lost a controller without a word, by a timeout: before, what it sent may still be carried out, and it would
    /// be after what is sent again. With zero there is nothing to wait for: what was under way and may change something
    /// is not sent again, but ends with [`CommandError::Uncertain`], and may still be carried out after that.
    pub keep_alive: Duration,
    /// In which a stream has to open.
    pub connect_timeout: Duration,
    /// In which a command has to be answered.
    pub command_timeout: Duration,
    /// How long to wait after a loss before connecting again; each failure doubles it.
    pub reconnect_delay: Duration,
    /// But to no more than this.
    pub reconnect_delay_max: Duration,
    /// After this long without a connection, commands fail.
    pub give_up_after: Duration,
    /// How often a command is tried again that the controller says may be.
    pub retries: u32,
    /// How long a command is tried again, with pauses of up to a second, that the controller cannot carry out now: the path
    /// to the namespace is changing, the namespace is not ready, or the controller has no room for the command. So long it
    /// is asked, too, what a namespace is that it cannot tell of now; after that the namespace counts as gone. Behind a new
    /// connection the time begins anew.
    pub path_wait: Duration,
    /// How often a command is sent again that was under way when a connection was lost. Then it fails: it may be what the
    /// controller does not survive.
    pub replays: u32,
}

/// What a NIC is asked to do for the I/O queues of a host. Whatever it does not do, the CPU does. A NIC that refuses for the
/// time being, for it has no room, say, is asked again: for want of room with the next PDU that a queue sends, then with the
/// second after that, the fourth and so on, up to every 32nd. [`Host::offload_counters`] tells how often.
///
/// ```
/// use nvme_tcp::host::{HostConfig, HostIdentity, Offload};
///
/// let mut config = HostConfig::new("nqn.2026-01.example:disk", HostIdentity::of_uuid([7; 16]));
/// config.offload = Offload::PlaceAndCheck;
/// assert_ne!(config.offload, Offload::default());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Offload {
    /// Nothing.
    #[default]
    None,
    /// It places data in the buffers of commands.
    Place,
    /// It checks data digests, too, and fills in those of what is sent.
    PlaceAndCheck,
    /// Nothing, but the host spends as little as if the NIC had placed and checked: an estimate of what an offload would
    /// save, for measurements only. Received digests are not checked at all. Data of a read are not copied if the
    /// segment they come in begins with eight bytes CCh, or is shorter and all of it is CCh; what follows in the segment
    /// is not looked at. So the target should serve blocks full of CCh, and buffers stay as they were.
    #[cfg(feature = "measure")]
    Emulate,
}

/// A host connected to a controller. Clones are the same host; with the last one the connection ends.
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
///     spawn: impl Fn(nvme_tcp::host::Task),
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
    handle: Arc<Handle>,
}

/// How often what has happened.
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
    /// Connections to the controller, all queues at once.
    pub connects: u64,
    /// Commands that were sent again after a loss.
    pub replays: u64,
    /// Commands that were sent again because the controller said that they may be.
    pub retries: u64,
}

/// Ends everything when the last [`Host`] is dropped.
struct Handle {
    shared: Arc<Shared>,
}

/// What hosts and tasks have in common.
struct Shared {
    config: HostConfig,
    connector: Box<dyn Connector>,
    timers: Arc<dyn Timers>,
    /// The admin queue's, then those of I/O queues.
    lanes: Vec<Arc<Lane>>,
    /// I/O queues in use, and the one whose turn it is.
    queues: AtomicUsize,
    turn: AtomicUsize,
    given_up: Arc<GivenUp>,
    offloads: SharedCounters,
    central: Mutex<Central>,
    /// The parent of the host's events.
    span: tracing::Span,
}

#[derive(Default)]
struct Central {
    /// Which attempt to connect this is.
    generation: u64,
    association: Option<Arc<Association>>,
    /// I/O queues that are connected.
    connected: u16,
    /// The last attempt that is known to have come to nothing.
    lost: u64,
    /// Since when the host has not been connected.
    lost_since: Option<Instant>,
    /// When the controllers that were lost have all given the host up.
    quiet_until: Option<Instant>,
    /// Since when it is connected, or was before the loss.
    live_since: Option<Instant>,
    last_error: Option<HostError>,
    /// After which there is no use in trying again.
    is_final: bool,
    /// Connected at least once.
    was_live: bool,
    ended: Option<HostError>,
    waiting: Vec<Waker>,
    /// Namespaces that somebody has looked at.
    known: BTreeMap<u32, Arc<Known>>,
    /// How often all of them were put in doubt.
    doubts: u64,
    untold: events::Untold,
    stats: HostStats,
}

/// A controller, as long as its admin queue lives.
#[derive(Debug)]
struct Association {
    generation: u64,
    data: ControllerData,
    /// Of headers, of data: what its admin queue agreed to.
    digests: (bool, bool),
    queues: u16,
    depth: u16,
    in_capsule: u32,
    max_transfer: u32,
}

impl Offload {
    fn asks_a_device(self) -> bool {
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
    /// The usual, for a `subsystem` and the host with this identity.
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
    /// A host, and the tasks that do its work, to be spawned: one for each queue. A host that loses one, because it was
    /// dropped or has panicked, ends with [`HostError::TaskLost`].
    pub fn new(connector: impl Connector + 'static, timers: Arc<dyn Timers>, config: HostConfig) -> (Host, Vec<Task>) {
        let config = HostConfig { queues: config.queues.max(1), ..config };
        let given_up = Arc::<GivenUp>::default();
        let lanes = (0..=usize::from(config.queues)).map(|_| Arc::new(Lane::new(given_up.clone()))).collect();
        let span = tracing::debug_span!("nvme_host", subsystem = config.subsystem);
        let shared = Arc::new(Shared {
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
        (Host { handle: Arc::new(Handle { shared }) }, tasks)
    }

    /// Waits until all queues are connected.
    ///
    /// # Errors
    /// The host has given up; at the first attempt it does at the first failure.
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

    /// What the controller says of itself; `None` while there is none.
    pub fn controller(&self) -> Option<ControllerData> {
        lock(&self.handle.shared.central).association.as_ref().map(|association| association.data.clone())
    }

    /// Whether the controller agreed to digests of headers, and of data; `None` while there is none.
    pub fn digests(&self) -> Option<(bool, bool)> {
        lock(&self.handle.shared.central).association.as_ref().map(|association| association.digests)
    }

    /// I/O queues that the controller has granted.
    pub fn queues(&self) -> usize {
        self.handle.shared.queues.load(Ordering::Relaxed)
    }

    /// How often what has happened.
    pub fn stats(&self) -> HostStats {
        lock(&self.handle.shared.central).stats
    }

    /// How often devices were asked to work for the I/O queues.
    pub fn offload_counters(&self) -> OffloadCounters {
        *lock(&self.handle.shared.offloads)
    }

    /// Waits for something that the controller tells without having been asked. Of what happens while nobody waits the
    /// last is kept; what happens while there is no connection a controller may not tell.
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
    /// The host has given up, or was closed.
    pub async fn next_event(&self) -> Result<HostEvent, HostError> {
        poll_fn(|cx| {
            let mut central = lock(&self.handle.shared.central);
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

    /// The namespaces there are.
    ///
    /// # Errors
    /// As any command.
    pub async fn namespaces(&self) -> Result<Vec<u32>, CommandError> {
        let buffer = Buffer::zeroed(identify::LEN);
        let read = self.admin_read(commands::identify(ACTIVE_NAMESPACES, 0), buffer).await;
        Ok(identify::parse_namespace_list(&read.map_err(|failed| failed.error)?.to_vec()))
    }

    /// A namespace, as it is now. Behind each new connection, and when the controller tells that it has changed, it is
    /// looked at again, and its commands wait for that. If it is another then, by its identifiers, its block size or fewer
    /// blocks, or is not there, the disk is gone: its commands end with [`CommandError::NamespaceChanged`], and none is
    /// sent to what is there now. A command that was sent before the controller told is carried out on what is there.
    ///
    /// # Errors
    /// As any command; [`CommandError::Invalid`] if there is no such namespace.
    pub async fn disk(&self, namespace: u32) -> Result<Disk, CommandError> {
        loop {
            let (generation, doubts) = {
                let central = lock(&self.handle.shared.central);
                (central.generation, central.doubts)
            };
            let (data, ids) = self.look_at(namespace).await?;
            let mut central = lock(&self.handle.shared.central);
            let there = central.association.clone().filter(|there| there.generation == generation);
            let Some(association) = there.filter(|_| central.doubts == doubts) else {
                continue; // part of it may have been told by another controller, or before the namespace changed
            };
            let known = match central.known.get(&namespace) {
                Some(known) if !known.is_gone() && known.is(&data, &ids) => match known.data == data {
                    true => known.clone(),
                    false => Arc::new(known.grown(data)),
                },
                before => {
                    before.into_iter().for_each(|before| before.take_away());
                    Arc::new(Known::new(namespace, data, ids))
                }
            };
            central.known.insert(namespace, known.clone());
            let max_transfer = association.max_transfer;
            drop(central);
            // What waits for one that was taken away is to hear of that.
            self.handle.shared.wake_lanes();
            return Ok(Disk::new(self.clone(), known, max_transfer));
        }
    }

    /// A command of the admin queue, which brings `data` along. After the loss of a connection it is sent again if it is
    /// known to change nothing, or to come to the same twice (Set Features); otherwise it ends with
    /// [`CommandError::Uncertain`].
    pub fn admin(&self, command: Command, data: impl IntoIterator<Item = Bytes>) -> Done {
        Done(self.submit_admin(command, write_payload(data)))
    }

    /// A command of the admin queue that fills `buffer`. It is sent again as [`Host::admin`] says.
    pub fn admin_read(&self, command: Command, buffer: Buffer) -> Read {
        Read(self.submit_admin(command, Payload::Read(buffer)))
    }

    /// A command of an I/O queue, which brings `data` along. If the controller says that it may be, or after the loss of a
    /// connection, it is sent again if it is known to change nothing, or to come to the same twice, as Write, Write Zeroes,
    /// Write Uncorrectable and Dataset Management do on a namespace that was looked at by [`Host::disk`]. Otherwise, as
    /// for reservations, Copy or Zone Append, it is sent once, and ends with [`CommandError::Uncertain`] if the connection
    /// is lost.
    pub fn io(&self, command: Command, data: impl IntoIterator<Item = Bytes>) -> Done {
        Done(self.submit_io(command, write_payload(data), self.known(command.namespace())))
    }

    /// A command of an I/O queue that fills `buffer`. It is sent again as [`Host::io`] says.
    pub fn io_read(&self, command: Command, buffer: Buffer) -> Read {
        Read(self.submit_io(command, Payload::Read(buffer), self.known(command.namespace())))
    }

    /// Tells the controller goodbye, and ends the connection. What is under way fails.
    pub async fn close(&self) {
        self.handle.shared.lanes[0].tell(lane::News::End);
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

    async fn look_at(&self, namespace: u32) -> Result<(NamespaceData, NamespaceIds), CommandError> {
        let read = |cns| self.admin_read(commands::identify(cns, namespace), Buffer::zeroed(identify::LEN));
        let page = read(NAMESPACE).await.map_err(|failed| failed.error)?.to_vec();
        let data = NamespaceData::parse(&page)
            .filter(|data| data.block_shift > 0)
            .ok_or(CommandError::Invalid("there is no such namespace, or its format is unknown"))?;
        let version = self.controller().map_or(0, |controller| controller.version);
        let descriptors = match known::has_descriptors(version) {
            true => match read(NAMESPACE_DESCRIPTORS).await {
                Ok(buffer) => buffer.to_vec(),
                // It can do without.
                Err(Failed { error: CommandError::Status(status), .. }) if status.do_not_retry() => Vec::new(),
                Err(failed) => return Err(failed.error),
            },
            false => Vec::new(),
        };
        Ok((data, NamespaceIds::parse(&page, &descriptors)))
    }

    fn submit_admin(&self, command: Command, payload: Payload) -> Pending {
        let ticket = Ticket::new(Scope::of_admin(&command), None);
        self.handle.shared.lanes[0].submit(Submission { command, payload }, ticket)
    }

    fn submit_io(&self, command: Command, payload: Payload, known: Option<Arc<Known>>) -> Pending {
        let ticket = Ticket::new(Scope::of_io(&command, &payload), known);
        self.handle.shared.lanes[self.next_lane()].submit(Submission { command, payload }, ticket)
    }

    fn known(&self, namespace: u32) -> Option<Arc<Known>> {
        lock(&self.handle.shared.central).known.get(&namespace).cloned()
    }

    /// I/O queues take turns.
    fn next_lane(&self) -> usize {
        let shared = &self.handle.shared;
        let queues = shared.queues.load(Ordering::Relaxed).clamp(1, shared.lanes.len() - 1);
        1 + shared.turn.fetch_add(1, Ordering::Relaxed) % queues
    }
}

impl Central {
    fn is_live(&self) -> bool {
        self.association.as_ref().is_some_and(|association| association.queues == self.connected)
    }

    /// Puts all namespaces in doubt, and returns them.
    fn doubt(&mut self) -> Vec<Arc<Known>> {
        self.doubts += 1;
        let known: Vec<Arc<Known>> = self.known.values().filter(|known| !known.is_gone()).cloned().collect();
        known.iter().for_each(|known| known.doubt());
        known
    }

    fn wake(&mut self) {
        self.waiting.drain(..).for_each(Waker::wake);
        self.untold.waiting.drain(..).for_each(Waker::wake);
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.lanes[0].tell(lane::News::End);
    }
}

impl core::fmt::Debug for Handle {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Handle").field("config", &self.shared.config).finish_non_exhaustive()
    }
}

/// Has `waker` woken with the others. A task that asks again and again is on the list once.
fn wait(waiting: &mut Vec<Waker>, waker: &Waker) {
    if !waiting.iter().any(|other| other.will_wake(waker)) {
        waiting.push(waker.clone());
    }
}

fn write_payload(data: impl IntoIterator<Item = Bytes>) -> Payload {
    let pieces: Pieces = data.into_iter().filter(|piece| !piece.is_empty()).collect();
    if pieces.is_empty() { Payload::None } else { Payload::Write(pieces) }
}

/// What a command comes to.
type Outcome = (Result<Completion, CommandError>, Payload);

/// CNS.
const ACTIVE_NAMESPACES: u8 = 0x02;
