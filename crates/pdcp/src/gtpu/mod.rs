//! Bearers whose PDUs ride in GTP-U (TS 29.281) over a UDP socket, as between the units of a base station and its gateway.
//!
//! A [`Node`] has a socket at port 2152, or one for each queue of its NIC, and any number of bearers, each in a tunnel: a number (TEID) at each end.
//! PDUs are ciphered and authenticated by the CPU, by an accelerator's jobs, or by the NIC, and look the same on the wire in each case.
//!
//! - `mod.rs`: what a program holds; `core.rs`: bearers and what comes for them; `sending.rs`: what they send; `queues.rs`: which queue has a bearer;
//!   `contexts.rs`: what the NIC is told; `batches.rs`: jobs.
//!
//! Invariants: what is to be ciphered never leaves in clear; a COUNT is used once, by CPU or device; what is kept for a bearer whose
//! program does not read is bounded, and so is what waits to be sent.
//!
//! Not here: error indications, which a stranger could ask for in a victim's name; supervision of paths (echo requests are answered).

mod batches;
mod contexts;
mod core;
mod opening;
mod queues;
mod sending;
mod used_keys;
mod waiting;

use self::core::Core;
use self::queues::{Place, hand_on, queue_of};
use self::used_keys::UsedKeys;
use self::waiting::WaitingTask;
use crate::{Config, ConfigError, Entity, RepeatedKeys, Sdu, Security, SendError};
use ::core::fmt;
use ::core::future::{Future, poll_fn};
use ::core::net::SocketAddr;
use ::core::pin::Pin;
use ::core::task::{Context, Poll};
use bytes::Bytes;
use offload_api::{Datagram, DatagramSocket, JobQueue};
use offload_base::{Alarm, Timers, WakingGuard, WakingMutex};
use std::io;
use std::sync::{Arc, Mutex};

pub use self::core::GtpuCounters;

/// GTP-U at a UDP socket, or at one for each queue of a NIC. Clones are the same node. Its bearers are run by the [`Driver`]s that come with it,
/// which some task polls.
///
/// ```
/// use offload_testbed::wire::LinkConfig;
/// use offload_testbed::{NicConfig, Seed, TcpConfig, Testbed};
/// use pdcp::crypto::{Algorithm, Direction, Key};
/// use pdcp::gtpu::{Bearer, Driver, Node, Protection, Tunnel};
/// use pdcp::{BearerKind, Config, Security, SnLen};
///
/// let mut bed = Testbed::builder(Seed(1))
///     .host("base station", NicConfig::default(), TcpConfig::default())
///     .host("gateway", NicConfig::default(), TcpConfig::default())
///     .wire(0, 1, LinkConfig::default())
///     .build()?;
/// let keys = |direction| -> Result<Security, Box<dyn std::error::Error>> {
///     Ok(Security::new(1, direction)?.ciphered(Key::new(Algorithm::Zuc128, &[direction as u8; 16])?))
/// };
/// let open = |at: usize, directions: [Direction; 2]| -> Result<Bearer, Box<dyn std::error::Error>> {
///     let host = bed.host(at).clone();
///     // These NICs have no engine for it, so the CPU does it: nic-pdcp has one.
///     let (node, driver): (Node, Driver) =
///         Node::new(host.stack().bind_udp(Some(2152))?, host.runtime(), Protection::Device);
///     drop(host.spawn("gtp-u", driver));
///     let peer = (bed.host(1 - at).address(), 2152).into();
///     let tunnel = Tunnel { local: 1 + at as u32, remote: 2 - at as u32, peer };
///     let config = Config::data(BearerKind::Unacknowledged, SnLen::Eighteen);
///     let [sent, received] = directions;
///     Ok(node.open(tunnel, config, keys(sent)?, keys(received)?)?)
/// };
/// let near = open(0, [Direction::Uplink, Direction::Downlink])?;
/// let far = open(1, [Direction::Downlink, Direction::Uplink])?;
/// let sdu = bed.run(async {
///     near.send(b"an IP packet".as_slice().into()).await?;
///     Ok::<_, pdcp::gtpu::BearerError>(far.receive().await)
/// })?;
/// assert_eq!(sdu.unwrap().data, b"an IP packet".as_slice());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Node {
    /// For each queue.
    queues: Arc<[Arc<Shared>]>,
}

struct Shared {
    core: WakingMutex<Core>,
    timers: Arc<dyn Timers>,
}

impl Shared {
    fn lock(&self) -> WakingGuard<'_, Core> {
        self.core.lock()
    }
}

/// Who ciphers and authenticates.
///
/// ```
/// use pdcp::gtpu::Protection;
///
/// assert_eq!(format!("{:?}", Protection::Device), "Device");
/// ```
pub enum Protection {
    /// The CPU.
    Cpu,
    /// The socket's NIC, where it has the engine and room; the CPU otherwise.
    Device,
    /// Jobs of an accelerator with the engine [`BATCHES`](crate::device::BATCHES); the CPU, where it has not, or loses them.
    Jobs(Box<dyn JobQueue>),
}

impl fmt::Debug for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Protection::Cpu => "Cpu",
            Protection::Device => "Device",
            Protection::Jobs(_) => "Jobs(..)",
        })
    }
}

/// Where a bearer's PDUs go and come from.
///
/// See [`Node`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tunnel {
    /// The TEID that this end chose: what comes has it.
    pub local: u32,
    /// The TEID that the peer chose.
    pub remote: u32,
    /// The peer.
    pub peer: SocketAddr,
}

/// Why a bearer was not opened: the caller's mistake.
///
/// ```
/// use pdcp::gtpu::OpenError;
///
/// assert_eq!(OpenError::InUse(7).to_string(), "TEID 7 is another bearer's: choose one that is free");
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another bearer has this TEID.
    #[error("TEID {0} is another bearer's: choose one that is free")]
    InUse(u32),
    /// The configuration makes no sense.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The node has sent PDUs under one of these keys, with the same identity and direction, and would reuse its COUNTs.
    #[error(transparent)]
    RepeatedKeys(#[from] RepeatedKeys),
    /// The driver was dropped, or its socket failed.
    #[error("the node has ended")]
    Ended,
}

/// The reason why an SDU was not sent, or keys were not taken.
///
/// ```
/// use pdcp::gtpu::BearerError;
///
/// assert!(BearerError::Ended.to_string().contains("ended"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BearerError {
    /// It is too long.
    #[error(transparent)]
    Send(SendError),
    /// All COUNTs are used: re-establish the bearer with new keys.
    #[error("no COUNT is left: re-establish the bearer with new keys")]
    CountExhausted,
    /// The node has sent PDUs under one of these keys, with the same identity and direction, and would reuse its COUNTs.
    #[error(transparent)]
    RepeatedKeys(#[from] RepeatedKeys),
    /// The driver was dropped, or its socket failed.
    #[error("the node has ended")]
    Ended,
}

impl Node {
    /// A node at a socket, which is bound to port 2152 if a NIC is to open what comes; and what runs it.
    pub fn new(
        socket: impl DatagramSocket + 'static,
        timers: Arc<dyn Timers>,
        protection: Protection,
    ) -> (Node, Driver) {
        let (node, mut drivers) = Node::of_queues([(socket, protection)], timers);
        (node, drivers.remove(0))
    }

    /// A node at a socket for each queue of a NIC, all bound to port 2152; and what runs it, for each queue. A bearer is at one of the queues, by its TEID at this
    /// end: the NIC, once it has the bearer's context, brings its PDUs there. What comes to another queue is handed on.
    ///
    /// ```
    /// use offload_testbed::{NicConfig, Seed, TcpConfig, Testbed};
    /// use pdcp::gtpu::{Node, Protection};
    ///
    /// let nic = NicConfig { queues: 4, ..NicConfig::default() };
    /// // The crate nic-pdcp has the engine that this NIC would need, and that its host does without.
    /// let bed = Testbed::builder(Seed(1)).host("gateway", nic, TcpConfig::default()).build()?;
    /// let host = bed.host(0);
    /// let sockets: Vec<_> = host.shards().iter().map(|shard| shard.bind_udp(Some(2152))).collect::<Result<_, _>>()?;
    /// let queues = sockets.into_iter().map(|socket| (socket, Protection::Device));
    /// let (_node, drivers) = Node::of_queues(queues, host.runtime());
    /// assert_eq!(drivers.len(), 4);
    /// drivers.into_iter().for_each(|driver| drop(host.spawn("gtp-u", driver)));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Panics
    /// If there is no queue.
    pub fn of_queues<S: DatagramSocket + 'static>(
        queues: impl IntoIterator<Item = (S, Protection)>,
        timers: Arc<dyn Timers>,
    ) -> (Node, Vec<Driver>) {
        let queues: Vec<_> = queues.into_iter().collect();
        assert!(!queues.is_empty(), "a node has a socket");
        let parted = queues.into_iter().map(|(socket, protection)| match protection {
            Protection::Cpu => (socket, false, None),
            Protection::Device => (socket, true, None),
            Protection::Jobs(queue) => (socket, false, Some(batches::Batches::new(queue))),
        });
        let parted: Vec<_> = parted.collect();
        let count = parted.len();
        let used_keys = Arc::new(Mutex::new(UsedKeys::default()));
        let shared = parted.iter().enumerate().map(|(number, (_, is_device, jobs))| {
            let core = Core::new(Place::new(number, count), *is_device, jobs.is_some(), used_keys.clone());
            Arc::new(Shared { core: WakingMutex::new(core), timers: timers.clone() })
        });
        let node = Node { queues: shared.collect() };
        let drivers = parted.into_iter().zip(&*node.queues).map(|((socket, _, jobs), shared)| Driver {
            shared: shared.clone(),
            queues: node.queues.clone(),
            socket: Box::new(socket),
            alarm: timers.alarm(),
            jobs,
            batch: Vec::new(),
        });
        let drivers = drivers.collect();
        (node, drivers)
    }

    /// Opens a bearer, with the keys of what it sends and of what it receives.
    ///
    /// # Errors
    /// If its TEID belongs to another bearer, its configuration is inconsistent, the node has used a key of `sent` before under the same
    /// identity and direction (of the last 65,536), or the node has ended.
    pub fn open(
        &self,
        tunnel: Tunnel,
        config: Config,
        sent: Security,
        received: Security,
    ) -> Result<Bearer, OpenError> {
        let entity = Entity::new(config.clone(), sent.clone(), received.clone())?;
        let shared = &self.queues[queue_of(tunnel.local, self.queues.len())];
        let mut core = shared.lock();
        if core.ended {
            return Err(OpenError::Ended);
        }
        core.open(tunnel, config, [sent, received], entity)?;
        Ok(Bearer { shared: shared.clone(), tunnel })
    }

    /// What it counted, at all queues.
    pub fn counters(&self) -> GtpuCounters {
        let mut all = GtpuCounters::default();
        self.queues.iter().for_each(|shared| all += shared.lock().counters());
        all
    }
}

/// A bearer of a [`Node`]. Dropped, it is closed, and what waits is not sent.
///
/// See [`Node`] for an example.
pub struct Bearer {
    shared: Arc<Shared>,
    tunnel: Tunnel,
}

impl Bearer {
    /// Sends an SDU, once there is room for it ([`Config::buffer`]).
    ///
    /// # Errors
    /// [`BearerError`] says why not.
    pub async fn send(&self, sdu: Bytes) -> Result<(), BearerError> {
        let mut waiting = WaitingTask::new(self, |state| &mut state.senders);
        poll_fn(|cx| {
            // Dropped after the lock.
            let mut _replaced = None;
            let mut core = self.shared.lock();
            let Some(state) = core.get(self.tunnel.local) else { return Poll::Ready(Err(BearerError::Ended)) };
            if state.exhausted {
                return Poll::Ready(Err(BearerError::CountExhausted));
            }
            let sent = match state.entity.send(self.shared.timers.now(), sdu.clone()) {
                Ok(()) => Poll::Ready(Ok(())),
                Err(SendError::Full) => {
                    _replaced = waiting.register(&mut state.senders, cx.waker());
                    Poll::Pending
                }
                Err(error) => Poll::Ready(Err(BearerError::Send(error))),
            };
            core.note_ready(self.tunnel.local);
            sent
        })
        .await
    }

    /// The next SDU. `None`: the peer said that it is the last ([`Bearer::end`]), or the node has ended.
    pub async fn receive(&self) -> Option<Sdu> {
        let mut waiting = WaitingTask::new(self, |state| &mut state.receivers);
        poll_fn(|cx| {
            // Dropped after the lock.
            let mut _replaced = None;
            let mut core = self.shared.lock();
            let Some(state) = core.get(self.tunnel.local) else { return Poll::Ready(None) };
            match state.take_sdu() {
                Some(sdu) => Poll::Ready(Some(sdu)),
                None if state.has_ended() => Poll::Ready(None),
                None => {
                    _replaced = waiting.register(&mut state.receivers, cx.waker());
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Tells the peer, behind all that waits, that no more comes (an end marker). It may be lost: say it again if the peer does not act
    /// on it.
    pub fn end(&self) {
        let mut core = self.shared.lock();
        if let Some(state) = core.get(self.tunnel.local) {
            state.end_marker = true;
            core.note_ready(self.tunnel.local);
        }
    }

    /// Goes on with new keys ([`Entity::reestablish`]). A NIC gets new contexts. PDUs that had their COUNT and were not sent are lost, as far as
    /// the bearer does not send them again.
    ///
    /// # Errors
    /// [`BearerError::RepeatedKeys`] if the node has used a key of `sent` before under the same identity and direction; the bearer then goes
    /// on with its old keys. [`BearerError::Ended`] if the node has ended.
    pub fn reestablish(&self, sent: Security, received: Security) -> Result<(), BearerError> {
        self.shared.lock().reestablish(self.tunnel.local, sent, received)
    }

    /// RLC's word, by whatever way it came, that the peer has this SDU: of an acknowledged bearer, which keeps it until then.
    pub fn confirm(&self, count: u32) {
        let mut core = self.shared.lock();
        if let Some(state) = core.get(self.tunnel.local) {
            state.entity.confirm(count);
            core.note_confirmed(self.tunnel.local);
        }
    }
}

impl Drop for Bearer {
    fn drop(&mut self) {
        self.shared.lock().close(self.tunnel.local);
    }
}

/// Runs a node, or a queue of it: a future that ends with its socket's error alone. Dropped, all bearers there end.
///
/// See [`Node`] for an example.
#[must_use = "nothing happens unless a task polls it"]
pub struct Driver {
    shared: Arc<Shared>,
    queues: Arc<[Arc<Shared>]>,
    socket: Box<dyn DatagramSocket>,
    alarm: Box<dyn Alarm>,
    jobs: Option<batches::Batches>,
    batch: Vec<Datagram>,
}

impl Future for Driver {
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Driver { shared, queues, socket, alarm, jobs, batch } = &mut *self;
        let socket = &mut **socket;
        for _ in 0..MOST_TURNS {
            let mut events = Vec::new();
            while let Poll::Ready(event) = socket.poll_device_event(cx) {
                events.push(event);
            }
            let received = match socket.poll_receive(cx, batch, MOST_RECEIVED) {
                Poll::Ready(Ok(_)) => true,
                Poll::Ready(Err(error)) => {
                    shared.lock().end();
                    return Poll::Ready(Err(error));
                }
                Poll::Pending => false,
            };
            let mut core = shared.lock();
            let now = shared.timers.now();
            events.into_iter().for_each(|event| core.note_event(event));
            let handed = core.place.take_handed();
            core.receive(now, batch.drain(..).chain(handed), jobs.as_mut());
            let astray = core.place.take_astray();
            if !astray.is_empty() {
                drop(core);
                hand_on(queues, astray);
                core = shared.lock();
            }
            core.expire(now);
            // A handle that does something while the lock is free wakes this task.
            core.driver = Some(cx.waker().clone());
            // Tasks are woken before the socket may wake others.
            core = WakingGuard::relock(core);
            core.tell_device(socket);
            let had_room = core.outgoing.has_room() && !jobs.as_ref().is_some_and(|jobs| jobs.is_full());
            let made = core.make(now, socket, jobs.as_mut());
            core = WakingGuard::relock(core);
            let sent = core.poll_send(cx, socket);
            let worked = jobs.as_mut().is_some_and(|jobs| jobs.complete(cx, now, &mut core, socket));
            let has_room = core.outgoing.has_room() && !jobs.as_ref().is_some_and(|jobs| jobs.is_full());
            let is_handed = core.place.has_handed();
            if received || is_handed || worked || made && sent || has_room && !had_room {
                continue;
            }
            // What has ended is not taken before there is room for it.
            let of_jobs = jobs.as_ref().filter(|_| core.outgoing.has_room()).and_then(|jobs| jobs.next_event());
            let due = offload_base::time::earliest(core.next_event(), of_jobs);
            drop(core);
            if alarm.poll(cx, due).is_pending() {
                return Poll::Pending;
            }
        }
        // Others have their turn.
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.shared.lock().end();
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Node(..)")
    }
}

impl fmt::Debug for Bearer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bearer").field("tunnel", &self.tunnel).finish_non_exhaustive()
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Driver(..)")
    }
}

const MOST_RECEIVED: usize = 64;
const MOST_TURNS: usize = 64;
