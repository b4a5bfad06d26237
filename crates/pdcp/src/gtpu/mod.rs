//! Bearers with PDUs in GTP-U (TS 29.281) over a UDP socket, as between the units of a base station and its gateway.
//!
//! A [`Node`] has a socket at port 2152, or one for each queue of its NIC, and any number of bearers. Each bearer has a
//! tunnel, identified by a number (TEID) at each end. The CPU, an accelerator's jobs or the NIC cipher and authenticate
//! the PDUs; the wire shows the same bytes in each case.
//!
//! - `mod.rs`: the handles for programs; `core.rs`: bearers and received datagrams; `sending.rs`: sent datagrams;
//!   `queues.rs`: the queue of a bearer;
//! - `contexts.rs`: contexts in the NIC; `batches.rs`: jobs.
//!
//! Invariants: PDUs to be ciphered never leave in clear; a COUNT is used once, by CPU or device; the buffers for unread
//! SDUs and for waiting datagrams are bounded.
//!
//! Not supported: error indications, because a third party could forge them in another host's name; path supervision
//! (echo requests are answered).

mod batches;
mod contexts;
mod core;
mod opening;
mod queues;
mod sending;
mod used_keys;
mod waiting;

use self::core::NodeCore;
use self::queues::{QueuePlace, forward, queue_of};
use self::used_keys::RecentKeys;
use self::waiting::WaitingTask;
use crate::{Config, ConfigError, Entity, RepeatedKeys, Sdu, SduSendError, Security};
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

/// A GTP-U node on a UDP socket, or on one for each queue of a NIC. Clones share the node. Tasks must poll its
/// [`Driver`]s, which run the bearers.
///
/// ```
/// use offload_testbed::wire::LinkConfig;
/// use offload_testbed::{NicConfig, Seed, TcpConfig, Testbed};
/// use pdcp::crypto::{Algorithm, Direction, Key};
/// use pdcp::gtpu::{Bearer, Driver, Node, PduProtection, GtpTunnel};
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
///     // These NICs lack the engine, so the CPU does the work: nic-pdcp provides one.
///     let (node, driver): (Node, Driver) =
///         Node::new(host.stack().bind_udp(Some(2152))?, host.runtime(), PduProtection::Device);
///     drop(host.spawn("gtp-u", driver));
///     let peer = (bed.host(1 - at).address(), 2152).into();
///     let tunnel = GtpTunnel { local: 1 + at as u32, remote: 2 - at as u32, peer };
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
    /// Per queue.
    queues: Arc<[Arc<NodeShared>]>,
}

struct NodeShared {
    core: WakingMutex<NodeCore>,
    timers: Arc<dyn Timers>,
}

impl NodeShared {
    fn lock(&self) -> WakingGuard<'_, NodeCore> {
        self.core.lock()
    }
}

/// The component that ciphers and authenticates.
///
/// ```
/// use pdcp::gtpu::PduProtection;
///
/// assert_eq!(format!("{:?}", PduProtection::Device), "Device");
/// ```
pub enum PduProtection {
    /// The CPU.
    Cpu,
    /// The socket's NIC if it has the engine and room, otherwise the CPU.
    Device,
    /// Jobs of an accelerator with the engine [`BATCHES`](crate::device::BATCHES). The CPU processes jobs that the
    /// accelerator refuses or loses.
    Jobs(Box<dyn JobQueue>),
}

impl fmt::Debug for PduProtection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PduProtection::Cpu => "Cpu",
            PduProtection::Device => "Device",
            PduProtection::Jobs(_) => "Jobs(..)",
        })
    }
}

/// The endpoints of a bearer's tunnel.
///
/// See [`Node`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GtpTunnel {
    /// The local TEID, which received PDUs carry.
    pub local: u32,
    /// The peer's TEID.
    pub remote: u32,
    /// The peer's address.
    pub peer: SocketAddr,
}

/// Error of the caller: the reason why a bearer was not opened.
///
/// ```
/// use pdcp::gtpu::BearerOpenError;
///
/// assert_eq!(BearerOpenError::InUse(7).to_string(), "TEID 7 is another bearer's: choose one that is free");
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BearerOpenError {
    /// Another bearer has this TEID.
    #[error("TEID {0} is another bearer's: choose one that is free")]
    InUse(u32),
    /// The configuration is inconsistent.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The node has sent PDUs under one of these keys, with the same identity and direction. COUNTs would be reused.
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
    /// The SDU is too long.
    #[error(transparent)]
    Send(SduSendError),
    /// All COUNTs are used: re-establish the bearer with new keys.
    #[error("no COUNT is left: re-establish the bearer with new keys")]
    CountExhausted,
    /// The node has sent PDUs under one of these keys, with the same identity and direction. COUNTs would be reused.
    #[error(transparent)]
    RepeatedKeys(#[from] RepeatedKeys),
    /// The driver was dropped, or its socket failed.
    #[error("the node has ended")]
    Ended,
}

impl Node {
    /// Creates a node on a socket, and its driver. The socket must be bound to port 2152 if a NIC opens the PDUs.
    pub fn new(
        socket: impl DatagramSocket + 'static,
        timers: Arc<dyn Timers>,
        protection: PduProtection,
    ) -> (Node, Driver) {
        let (node, mut drivers) = Node::for_queues([(socket, protection)], timers);
        (node, drivers.remove(0))
    }

    /// Creates a node on one socket per queue of a NIC, all bound to port 2152, and a driver per queue. A bearer
    /// belongs to one queue, chosen by the local TEID. Once the NIC has the bearer's context, it steers the PDUs there;
    /// other queues forward the PDUs.
    ///
    /// ```
    /// use offload_testbed::{NicConfig, Seed, TcpConfig, Testbed};
    /// use pdcp::gtpu::{Node, PduProtection};
    ///
    /// let nic = NicConfig { queues: 4, ..NicConfig::default() };
    /// // The crate nic-pdcp has the engine that this NIC would need; without the engine, the CPU does the work.
    /// let bed = Testbed::builder(Seed(1)).host("gateway", nic, TcpConfig::default()).build()?;
    /// let host = bed.host(0);
    /// let sockets: Vec<_> = host.shards().iter().map(|shard| shard.bind_udp(Some(2152))).collect::<Result<_, _>>()?;
    /// let queues = sockets.into_iter().map(|socket| (socket, PduProtection::Device));
    /// let (_node, drivers) = Node::for_queues(queues, host.runtime());
    /// assert_eq!(drivers.len(), 4);
    /// drivers.into_iter().for_each(|driver| drop(host.spawn("gtp-u", driver)));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Panics
    /// If there is no queue.
    pub fn for_queues<S: DatagramSocket + 'static>(
        queues: impl IntoIterator<Item = (S, PduProtection)>,
        timers: Arc<dyn Timers>,
    ) -> (Node, Vec<Driver>) {
        let queues: Vec<_> = queues.into_iter().collect();
        assert!(!queues.is_empty(), "a node has a socket");
        let parted = queues.into_iter().map(|(socket, protection)| match protection {
            PduProtection::Cpu => (socket, false, None),
            PduProtection::Device => (socket, true, None),
            PduProtection::Jobs(queue) => (socket, false, Some(batches::JobBatches::new(queue))),
        });
        let parted: Vec<_> = parted.collect();
        let count = parted.len();
        // One for all queues, because a TEID's queue may change while its keys are the same.
        let used_keys = Arc::new(Mutex::new(RecentKeys::default()));
        let shared = parted.iter().enumerate().map(|(number, (_, is_device, jobs))| {
            let core = NodeCore::new(QueuePlace::new(number, count), *is_device, jobs.is_some(), used_keys.clone());
            Arc::new(NodeShared { core: WakingMutex::new(core), timers: timers.clone() })
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

    /// Opens a bearer with the keys of both directions.
    ///
    /// # Errors
    /// If the TEID belongs to another bearer, the configuration is inconsistent, the node has used a key of `sent`
    /// before under the same identity and direction (among the last 65,536), or the node has ended.
    pub fn open(
        &self,
        tunnel: GtpTunnel,
        config: Config,
        sent: Security,
        received: Security,
    ) -> Result<Bearer, BearerOpenError> {
        let entity = Entity::new(config.clone(), sent.clone(), received.clone())?;
        let shared = &self.queues[queue_of(tunnel.local, self.queues.len())];
        let mut core = shared.lock();
        if core.ended {
            return Err(BearerOpenError::Ended);
        }
        core.open(tunnel, config, [sent, received], entity)?;
        Ok(Bearer { shared: shared.clone(), tunnel })
    }

    /// Returns the counters of all queues.
    pub fn counters(&self) -> GtpuCounters {
        let mut all = GtpuCounters::default();
        self.queues.iter().for_each(|shared| all += shared.lock().counters());
        all
    }
}

/// A bearer of a [`Node`]. Dropping it closes the bearer and drops its waiting SDUs.
///
/// See [`Node`] for an example.
pub struct Bearer {
    shared: Arc<NodeShared>,
    tunnel: GtpTunnel,
}

impl Bearer {
    /// Sends an SDU as soon as there is room ([`Config::buffer`]).
    ///
    /// # Errors
    /// [`BearerError`] gives the reason.
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
                Err(SduSendError::Full) => {
                    _replaced = waiting.register(&mut state.senders, cx.waker());
                    Poll::Pending
                }
                Err(error) => Poll::Ready(Err(BearerError::Send(error))),
            };
            // The driver also runs after a failed send, which may have been caused by a full buffer.
            core.note_ready(self.tunnel.local);
            sent
        })
        .await
    }

    /// Receives the next SDU. Returns `None` if the peer has announced the end ([`Bearer::end`]), or the node has
    /// ended.
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

    /// Tells the peer, after all waiting SDUs, that no more follow (an end marker). The marker may be lost: call this
    /// again if the peer does not react.
    pub fn end(&self) {
        let mut core = self.shared.lock();
        if let Some(state) = core.get(self.tunnel.local) {
            state.end_marker = true;
            core.note_ready(self.tunnel.local);
        }
    }

    /// Switches to new keys ([`Entity::reestablish`]). A NIC gets new contexts. PDUs that have a COUNT and are not sent
    /// yet are lost, unless the bearer retransmits them.
    ///
    /// # Errors
    /// [`BearerError::RepeatedKeys`] if the node has used a key of `sent` before under the same identity and direction;
    /// the bearer then keeps its old keys. [`BearerError::Ended`] if the node has ended.
    pub fn reestablish(&self, sent: Security, received: Security) -> Result<(), BearerError> {
        self.shared.lock().reestablish(self.tunnel.local, sent, received)
    }

    /// Processes RLC's confirmation, however transported, that the peer has received an SDU. An acknowledged bearer
    /// keeps SDUs until then.
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

/// The future that runs a node, or one queue of it. It ends only with its socket's error. Dropping the driver ends all
/// bearers of the queue.
///
/// See [`Node`] for an example.
#[must_use = "nothing happens unless a task polls it"]
pub struct Driver {
    shared: Arc<NodeShared>,
    queues: Arc<[Arc<NodeShared>]>,
    socket: Box<dyn DatagramSocket>,
    alarm: Box<dyn Alarm>,
    jobs: Option<batches::JobBatches>,
    batch: Vec<Datagram>,
}

impl Future for Driver {
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Driver { shared, queues, socket, alarm, jobs, batch } = &mut *self;
        let socket = &mut **socket;
        for _ in 0..MAX_ROUNDS {
            let mut events = Vec::new();
            while let Poll::Ready(event) = socket.poll_device_event(cx) {
                events.push(event);
            }
            let received = match socket.poll_receive(cx, batch, MAX_RECEIVED) {
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
            let handed = core.place.take_forwarded();
            core.receive(now, batch.drain(..).chain(handed), jobs.as_mut());
            // Other queues' locks are taken only while this queue's lock is free.
            let astray = core.place.take_astray();
            if !astray.is_empty() {
                drop(core);
                forward(queues, astray);
                core = shared.lock();
            }
            core.expire(now);
            // From here on, a handle that changes the core wakes this task.
            core.driver = Some(cx.waker().clone());
            // Waiting tasks are woken before the socket wakes other tasks.
            core = WakingGuard::relock(core);
            core.update_device(socket);
            let had_room = core.outgoing.has_room() && !jobs.as_ref().is_some_and(|jobs| jobs.is_full());
            let made = core.make(now, socket, jobs.as_mut());
            core = WakingGuard::relock(core);
            let sent = core.poll_send(cx, socket);
            let worked = jobs.as_mut().is_some_and(|jobs| jobs.complete(cx, now, &mut core, socket));
            let has_room = core.outgoing.has_room() && !jobs.as_ref().is_some_and(|jobs| jobs.is_full());
            let is_handed = core.place.has_forwarded();
            if received || is_handed || worked || made && sent || has_room && !had_room {
                continue;
            }
            // Finished jobs are processed only when there is room for their PDUs.
            let of_jobs = jobs.as_ref().filter(|_| core.outgoing.has_room()).and_then(|jobs| jobs.next_event());
            let due = offload_base::time::earliest(core.next_event(), of_jobs);
            drop(core);
            if alarm.poll(cx, due).is_pending() {
                return Poll::Pending;
            }
        }
        // Yield, so that other tasks run.
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

const MAX_RECEIVED: usize = 64;
const MAX_ROUNDS: usize = 64;
