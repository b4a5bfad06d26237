//! A host: connected to one controller by an admin queue and any number of I/O queues, and again when it loses them.
//!
//! - [`Host`]: what applications hold: commands go in, futures of their ends come out;
//! - [`Disk`]: one namespace: read, write, and the rest by block;
//! - [`discover()`]: what there is to connect to;
//! - [`HostEvent`]: what a controller tells unasked;
//! - `session`: the tasks: connect, keep alive, back off, connect again;
//! - `serving`: one queue's work; `link`: one stream; `offloading`: what the device below it does; `lane`: commands on their way to a queue, wherever that is.
//!
//! Invariant: a command ends once, and its buffer comes back with it, whatever becomes of queues in between: what was
//! under way when a queue was lost is replayed on the next. If a task is lost, the host ends, and so do all commands;
//! buffers that the task had are lost with it.

mod connector;
mod discover;
mod disk;
mod error;
mod events;
mod lane;
mod link;
mod offloading;
mod serving;
mod session;

pub use connector::{Connecting, Connector};
pub use discover::discover;
pub use disk::Disk;
pub use error::{CommandError, Failed, HostError};
pub use events::HostEvent;
pub use lane::{Done, Read};
pub use session::Task;

use super::lock;
use crate::host::{Buffer, Payload, QueueConfig, Submission, commands};
use crate::namespace::Pieces;
use crate::nvme::identify::{self, ControllerData, NamespaceData};
use crate::nvme::{Command, Completion};
use bytes::Bytes;
use core::future::poll_fn;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::task::{Poll, Waker};
use core::time::Duration;
use lane::{Lane, Pending};
use offload_base::{Instant, Timers};
use std::sync::{Arc, Mutex};

/// Who a host is, whom it connects to, and how.
///
/// ```
/// use nvme_tcp::shell::host::HostConfig;
///
/// let config = HostConfig { queues: 4, data_digest: true, ..HostConfig::new("nqn.2026-01.example:disk") };
/// assert_eq!(config.depth, 128);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostConfig {
    /// The subsystem to connect to.
    pub subsystem: String,
    /// This host's name.
    pub host: String,
    /// This host's identifier.
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
    /// be after what is sent again.
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
    /// How often a command is sent again that was under way when a connection was lost. Then it fails: it may be what the
    /// controller does not survive.
    pub replays: u32,
}

/// What a NIC is asked to do for the I/O queues of a host. Whatever it does not do, the CPU does.
///
/// ```
/// use nvme_tcp::shell::host::{HostConfig, Offload};
///
/// let config = HostConfig { offload: Offload::PlaceAndCheck, ..HostConfig::new("nqn.2026-01.example:disk") };
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
    /// Nothing; but data made of nothing but the magic byte CCh are neither copied nor checked, as if it had done both:
    /// what an offload would save, estimated without one. For measurements only: the buffers stay as they were.
    Emulate,
}

/// A host connected to a controller. Clones are the same host; with the last one the connection ends.
///
/// ```
/// use nvme_tcp::shell::host::{Connector, Host, HostConfig};
/// use offload_base::Timers;
/// use std::sync::Arc;
///
/// async fn first_block(
///     connector: impl Connector + 'static,
///     timers: Arc<dyn Timers>,
///     spawn: impl Fn(nvme_tcp::shell::host::Task),
/// ) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
///     let (host, tasks) = Host::new(connector, timers, HostConfig::new("nqn.2026-01.example:disk"));
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
    central: Mutex<Central>,
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

impl HostConfig {
    /// The usual, for a `subsystem`.
    pub fn new(subsystem: &str) -> HostConfig {
        HostConfig {
            subsystem: subsystem.to_owned(),
            host: DEFAULT_HOST.to_owned(),
            host_id: *b"nic-offload host",
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
        let lanes = (0..=usize::from(config.queues)).map(|_| Arc::default()).collect();
        let shared = Arc::new(Shared {
            config,
            connector: Box::new(connector),
            timers,
            lanes,
            queues: AtomicUsize::new(1),
            turn: AtomicUsize::new(0),
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

    /// Waits for something that the controller tells without having been asked. Of what happens while nobody waits the
    /// last is kept; what happens while there is no connection a controller may not tell.
    ///
    /// ```
    /// use nvme_tcp::shell::host::{Host, HostError, HostEvent};
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

    /// A namespace.
    ///
    /// # Errors
    /// As any command; [`CommandError::Invalid`] if there is no such namespace.
    pub async fn disk(&self, namespace: u32) -> Result<Disk, CommandError> {
        let buffer = Buffer::zeroed(identify::LEN);
        let read = self.admin_read(commands::identify(NAMESPACE, namespace), buffer).await;
        let data = NamespaceData::parse(&read.map_err(|failed| failed.error)?.to_vec())
            .filter(|data| data.block_shift > 0)
            .ok_or(CommandError::Invalid("there is no such namespace, or its format is unknown"))?;
        let max_transfer = lock(&self.handle.shared.central).association.as_ref().map_or(u32::MAX, |a| a.max_transfer);
        Ok(Disk::new(self.clone(), namespace, data, max_transfer))
    }

    /// A command of the admin queue, which brings `data` along.
    pub fn admin(&self, command: Command, data: impl IntoIterator<Item = Bytes>) -> Done {
        Done(self.submit(0, command, write_payload(data)))
    }

    /// A command of the admin queue that fills `buffer`.
    pub fn admin_read(&self, command: Command, buffer: Buffer) -> Read {
        Read(self.submit(0, command, Payload::Read(buffer)))
    }

    /// A command of an I/O queue, which brings `data` along.
    pub fn io(&self, command: Command, data: impl IntoIterator<Item = Bytes>) -> Done {
        Done(self.submit(self.next_lane(), command, write_payload(data)))
    }

    /// A command of an I/O queue that fills `buffer`.
    pub fn io_read(&self, command: Command, buffer: Buffer) -> Read {
        Read(self.submit(self.next_lane(), command, Payload::Read(buffer)))
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

    fn submit(&self, lane: usize, command: Command, payload: Payload) -> Pending {
        self.handle.shared.lanes[lane].submit(Submission { command, payload })
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

/// Has `waker` woken with the others. Whoever asks again and again is on the list once.
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

/// Who a host is that says nothing else.
const DEFAULT_HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:6e69632d-6f66-466c-af61-6420686f7374";
/// CNS.
const NAMESPACE: u8 = 0x00;
const ACTIVE_NAMESPACES: u8 = 0x02;
