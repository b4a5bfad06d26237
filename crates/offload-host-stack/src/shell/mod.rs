//! The async shell: one mutex around a stack and its device, and the tasks that wait for them.
//!
//! A host with several queues to its device is several such shards ([`Host::shards`]), and [`mesh`] between them.
//!
//! Calls of the application run to completion under the mutex: they queue, and send what may be sent. A service
//! task ([`Host::serve`]) does the same for interrupts and timers. Wakers are called after the mutex is free.
//!
//! Invariant: whenever the mutex is free, everybody for whom something has changed was or will be woken, and the
//! service task knows of a deadline at least as early as the stack's next one.

mod listener;
mod mesh;
mod serve;
mod stream;
mod udp;

pub use listener::TcpListener;
pub use stream::TcpStream;
pub use udp::UdpSocket;

use crate::config::Config;
use crate::counters::HostCounters;
use crate::flow_table::ConnectionId;
use crate::stack::Stack;
use crate::stack::shards::Passed;
use core::fmt;
use core::future::{Future, poll_fn};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::task::{Context, Poll, Waker};
use mesh::Mesh;
use offload_api::rss::INDIRECTION_ENTRIES;
use offload_api::{ContextRefusal, NetDevice, Prefix};
use offload_base::{Instant, Timers, time::earliest};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use udp::UdpWaiting;

/// A host on a network: a stack and its device, for as many tasks and threads as want it. Clones are the same host.
///
/// Somebody has to run [`serve`](Host::serve).
///
/// ```
/// use offload_host_stack::{Config, Host, TcpStream};
/// use offload_api::NetDevice;
/// use offload_base::Timers;
/// use std::sync::Arc;
/// use tokio::io::AsyncWrite;
///
/// async fn dial(config: Config, device: Box<dyn NetDevice>, timers: Arc<dyn Timers>) -> std::io::Result<TcpStream> {
///     let host = Host::new(config, device, timers);
///     // `host.serve()` goes to the executor's spawn.
///     host.connect(None, "10.0.0.2:80".parse().unwrap()).await
/// }
/// ```
pub struct Host {
    shard: Arc<Shard>,
}

/// A stack, its device, and who waits.
pub(crate) struct Shard {
    inner: Mutex<Inner>,
    timers: Arc<dyn Timers>,
    /// What it shares with the other shards of its host, if there are some, and which one it is.
    mesh: Option<(Arc<Mesh>, usize)>,
}

pub(crate) struct Inner {
    pub(crate) stack: Stack,
    pub(crate) device: Box<dyn NetDevice>,
    /// By [`ConnectionId::index`].
    waiting: Vec<Waiting>,
    accepting: BTreeMap<u16, Waker>,
    udp: BTreeMap<u16, UdpWaiting>,
    service: Option<Waker>,
    /// When the service task will look again by itself.
    service_at: Option<Instant>,
    /// There is more to send, which the service task is to go on with.
    unfinished: bool,
    /// Hosts, streams and listeners there are.
    handles: usize,
}

/// Who waits for a connection.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    pub(crate) opened: Option<Waker>,
    pub(crate) readable: Option<Waker>,
    pub(crate) writable: Option<Waker>,
    pub(crate) acknowledged: Option<Waker>,
    pub(crate) device_event: Option<Waker>,
}

type Wakers = SmallVec<[Waker; 8]>;

impl Host {
    /// A host with `config` on `device`.
    pub fn new(config: Config, device: Box<dyn NetDevice>, timers: Arc<dyn Timers>) -> Host {
        Host::of_stack(Stack::new(config), device, timers, None)
    }

    /// The shards of one host with `config`, one for each queue of its device, in the order of the queues. Each has its own
    /// connections, and its own [`serve`](Host::serve) to be run; what one receives for another, it hands on.
    ///
    /// Each flow should be where its packets come to: connections opened from a shard are, and those that come to a
    /// port at which every shard listens. A socket on one shard only is found by what comes to the others as well, at the
    /// price of handing it on.
    ///
    /// ```
    /// use offload_host_stack::{Config, Host, TcpListener};
    /// use offload_api::NetDevice;
    /// use offload_base::Timers;
    /// use std::sync::Arc;
    ///
    /// fn listen(config: Config, queues: Vec<Box<dyn NetDevice>>, timers: Arc<dyn Timers>) -> std::io::Result<Vec<TcpListener>> {
    ///     let shards = Host::shards(config, queues, timers);
    ///     // Each shard's `serve()` goes to the executor's spawn.
    ///     shards.iter().map(|shard| shard.listen(443, 128)).collect()
    /// }
    /// ```
    ///
    /// # Panics
    /// If there are more than 32,767 queues.
    pub fn shards(config: Config, queues: Vec<Box<dyn NetDevice>>, timers: Arc<dyn Timers>) -> Vec<Host> {
        let count = u16::try_from(queues.len()).ok().filter(|count| *count <= u16::MAX / 2);
        let count = count.expect("a device has at most 32,767 queues");
        let mesh = Arc::new(Mesh::new(queues.len()));
        let shard = |(index, device): (usize, Box<dyn NetDevice>)| {
            let stack = Stack::of_shard(config.clone(), index as u16, count);
            let mesh = (count > 1).then(|| (mesh.clone(), index));
            Host::of_stack(stack, device, timers.clone(), mesh)
        };
        queues.into_iter().enumerate().map(shard).collect()
    }

    fn of_stack(
        stack: Stack,
        device: Box<dyn NetDevice>,
        timers: Arc<dyn Timers>,
        mesh: Option<(Arc<Mesh>, usize)>,
    ) -> Host {
        let inner = Inner {
            stack,
            device,
            waiting: Vec::new(),
            accepting: BTreeMap::new(),
            udp: BTreeMap::new(),
            service: None,
            service_at: None,
            unfinished: false,
            handles: 1,
        };
        Host { shard: Arc::new(Shard { inner: Mutex::new(inner), timers, mesh }) }
    }

    /// The task that serves interrupts and timers. It ends when no host, stream or listener is left and the last
    /// connection is over (TIME-WAIT included). Run it once; a second one would take the first one's wake-ups.
    pub fn serve(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        serve::serve(self.shard.clone())
    }

    /// Opens a connection to `remote`, from `local_port` or from any port that is free. The SYN leaves now; to
    /// drop the future is to give up.
    pub fn connect(
        &self,
        local_port: Option<u16>,
        remote: SocketAddr,
    ) -> impl Future<Output = io::Result<TcpStream>> + Send + 'static + use<> {
        let opened = self.shard.with(|inner, now| {
            let Inner { stack, device, .. } = inner;
            let id = stack.connect_where(now, local_port, remote, &|flow| device.serves(flow))?;
            inner.transmit(now);
            Ok::<_, io::Error>(id)
        });
        let mut stream = opened.map(|id| TcpStream::new(self.shard.clone(), id));
        poll_fn(move |cx| match &mut stream {
            Err(error) => Poll::Ready(Err(core::mem::replace(error, io::ErrorKind::Other.into()))),
            Ok(opening) => match opening.poll_opened(cx) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                Poll::Ready(Ok(())) => core::mem::replace(&mut stream, Err(io::ErrorKind::Other.into())).into(),
            },
        })
    }

    /// Listens at `port`, with up to `backlog` connections that nobody has accepted.
    ///
    /// # Errors
    /// If somebody else listens there.
    pub fn listen(&self, port: u16, backlog: usize) -> io::Result<TcpListener> {
        self.shard.with(|inner, _| inner.stack.listen(port, backlog))?;
        Ok(TcpListener::new(self.shard.clone(), port))
    }

    /// Opens a UDP socket at `port`, or at any port that is free.
    ///
    /// # Errors
    /// If somebody else has the port, or none is free.
    pub fn bind_udp(&self, port: Option<u16>) -> io::Result<UdpSocket> {
        let port = self.shard.with(|inner, _| inner.stack.bind_udp(port))?;
        Ok(UdpSocket::new(self.shard.clone(), port))
    }

    /// The host's IPv4 address.
    pub fn address(&self) -> Ipv4Addr {
        self.shard.with(|inner, _| inner.stack.config().address)
    }

    /// The host's IPv6 address, if it speaks IPv6.
    pub fn ipv6_address(&self) -> Option<Ipv6Addr> {
        self.shard.with(|inner, _| inner.stack.config().ipv6.map(|six| six.address))
    }

    /// The Ethernet address to which packets for `destination` go: a neighbour's or a gateway's. `None`: there is no way, or it is
    /// not known yet, and is asked for: ask again later. What a NIC is told that sends by itself, of tunnels for example.
    pub fn next_hop(&self, destination: IpAddr) -> Option<[u8; 6]> {
        self.shard.with(|inner, now| inner.stack.next_hop(now, destination))
    }

    /// Puts these in the place of all routes that there are ([`Config::with_route`]); of several shards, each has its own. Connections go the new way
    /// from their next packet on.
    pub fn set_routes(&self, routes: Vec<(Prefix, Option<IpAddr>)>) {
        self.shard.with(|inner, _| inner.stack.set_routes(routes));
    }

    /// What was counted so far.
    pub fn counters(&self) -> HostCounters {
        self.shard.with(|inner, _| *inner.stack.counters())
    }

    /// How many connections there are, in whatever state.
    pub fn connections(&self) -> usize {
        self.shard.with(|inner, _| inner.stack.connections())
    }

    /// Bytes that the queues of all connections take now: what is to be sent and is not acknowledged, what came and is not read.
    pub fn tcp_memory(&self) -> usize {
        self.shard.with(|inner, _| inner.stack.tcp_memory())
    }

    /// Has packets whose hash ends in `n` come to the shard `table[n]` from now on. Connections stay where they are: what
    /// comes to another shard for them is handed on, but for those that the device follows itself, whose packets come as
    /// before. New ones that come from elsewhere follow the table; those opened from here do not.
    ///
    /// # Errors
    /// If this is not one of several shards, if `table` names one that is not there, or if the device is busy.
    pub fn set_indirection(&self, table: &[u16; INDIRECTION_ENTRIES]) -> io::Result<()> {
        if let Some((mesh, _)) = &self.shard.mesh {
            mesh.note_flows_moved();
        }
        self.shard.with(|inner, _| {
            let rss = inner.device.rss().ok_or(io::ErrorKind::Unsupported)?;
            rss.set_indirection(table).map_err(|refused| match refused {
                ContextRefusal::Busy => io::Error::new(io::ErrorKind::WouldBlock, refused),
                _ => io::Error::new(io::ErrorKind::InvalidInput, refused),
            })
        })
    }

    /// Calls `f` with the host's device, between packets. What happens to contexts that are made here and follow no flow,
    /// nobody hears: the [`DatagramSocket`](offload_api::DatagramSocket) that wants to know makes its own.
    pub fn with_device<R>(&self, f: impl FnOnce(&mut dyn NetDevice) -> R) -> R {
        self.shard.with(|inner, _| f(&mut *inner.device))
    }
}

impl Clone for Host {
    fn clone(&self) -> Host {
        self.shard.hold();
        Host { shard: self.shard.clone() }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.shard.let_go();
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("address", &self.address()).finish_non_exhaustive()
    }
}

impl Shard {
    /// Runs `f` under the mutex, then wakes the tasks that it concerns.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut Inner, Instant) -> R) -> R {
        let mut inner = self.lock();
        // Under the mutex, so that time goes forward for the stack whichever thread calls.
        let now = self.timers.now();
        let result = f(&mut inner, now);
        let mut wakers = Wakers::new();
        inner.collect_ready(&mut wakers);
        inner.collect_service(&mut wakers);
        drop(inner);
        wakers.into_iter().for_each(Waker::wake);
        result
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic elsewhere leaves a stack that is whole between calls.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn timers(&self) -> &dyn Timers {
        &*self.timers
    }

    /// Gives the other shards what is theirs.
    pub(crate) fn hand_on(&self, packets: Vec<Passed>) {
        let Some((mesh, index)) = &self.mesh else { return };
        let dropped = mesh.post(*index, packets);
        if dropped > 0 {
            self.lock().stack.note_shard_drops(dropped);
        }
    }

    /// One more handle.
    pub(crate) fn hold(&self) {
        self.lock().handles += 1;
    }

    /// One handle less; the service task looks whether it is needed.
    pub(crate) fn let_go(&self) {
        let service = {
            let mut inner = self.lock();
            inner.handles -= 1;
            if inner.handles == 0 { inner.service.take() } else { None }
        };
        if let Some(service) = service {
            service.wake();
        }
    }
}

impl Inner {
    /// Sends what may be sent.
    pub(crate) fn transmit(&mut self, now: Instant) {
        self.unfinished |= !self.stack.transmit(now, &mut *self.device);
    }

    /// Who waits for connection `id`.
    pub(crate) fn waiting(&mut self, id: ConnectionId) -> &mut Waiting {
        if id.index() >= self.waiting.len() {
            self.waiting.resize_with(id.index() + 1, Waiting::default);
        }
        &mut self.waiting[id.index()]
    }

    /// Waits for a connection at `port`, with one waker.
    pub(crate) fn wait_to_accept(&mut self, port: u16, cx: &Context<'_>) {
        self.accepting.insert(port, cx.waker().clone());
    }

    /// Who waits for the UDP socket at `port`.
    pub(crate) fn udp_waiting(&mut self, port: u16) -> &mut UdpWaiting {
        self.udp.entry(port).or_default()
    }

    pub(crate) fn forget_udp(&mut self, port: u16) {
        self.udp.remove(&port);
    }

    pub(crate) fn is_needed(&self) -> bool {
        self.handles > 0 || self.stack.connections() > 0
    }

    pub(crate) fn next_event(&self) -> Option<Instant> {
        earliest(self.stack.next_event(), self.device.next_event())
    }

    pub(crate) fn collect_ready(&mut self, wakers: &mut Wakers) {
        while let Some((id, ready)) = self.stack.next_ready() {
            let Some(waiting) = self.waiting.get_mut(id.index()) else { continue };
            let mut take = |ready: bool, waker: &mut Option<Waker>| {
                if ready {
                    wakers.extend(waker.take());
                }
            };
            take(ready.opened, &mut waiting.opened);
            take(ready.readable, &mut waiting.readable);
            take(ready.writable, &mut waiting.writable);
            take(ready.acknowledged, &mut waiting.acknowledged);
            take(ready.device_event, &mut waiting.device_event);
        }
        while let Some(port) = self.stack.next_acceptable() {
            wakers.extend(self.accepting.remove(&port));
        }
        while let Some(port) = self.stack.next_udp_ready() {
            if let Some(waiting) = self.udp.get_mut(&port) {
                wakers.extend(waiting.readable.drain(..));
                wakers.extend(waiting.writable.drain(..));
                wakers.extend(waiting.device_event.drain(..));
            }
        }
    }

    /// The service task has to know of an earlier deadline, and of what is left to do.
    fn collect_service(&mut self, wakers: &mut Wakers) {
        if core::mem::take(&mut self.unfinished) {
            wakers.extend(self.service.clone());
            return;
        }
        let Some(next) = self.next_event() else { return };
        if self.service_at.is_none_or(|at| next < at) {
            self.service_at = Some(next);
            wakers.extend(self.service.clone());
        }
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").field("stack", &self.stack).field("handles", &self.handles).finish_non_exhaustive()
    }
}
