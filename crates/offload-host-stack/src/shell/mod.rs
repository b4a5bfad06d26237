//! The async shell: one mutex around a stack and its device, and the wakers of the tasks that wait for them.
//!
//! A host with several device queues consists of several such shards ([`Host::shards`]), connected by a [`mesh`].
//!
//! Application calls run under the mutex from start to end: they queue data and send as much as possible. A service
//! task ([`Host::serve`]) does the same for interrupts and timers. Wakers are called after the mutex is released.
//!
//! Invariants, whenever the mutex is free:
//! - Each task for which something changed has been woken, or is about to be.
//! - The service task has an alarm that is not later than the stack's next deadline.

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
use crate::flow_table::FlowId;
use crate::stack::Stack;
use crate::stack::shards::PassedPacket;
use core::fmt;
use core::future::{Future, poll_fn};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::task::{Context, Poll, Waker};
use mesh::ShardMesh;
use offload_api::rss::INDIRECTION_ENTRIES;
use offload_api::{ContextRefusal, NetDevice, Prefix};
use offload_base::{Instant, Timers, time::earliest};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use udp::UdpWakers;

/// A host on a network: a stack and its device, shared by any number of tasks and threads. Clones are handles of the
/// same host.
///
/// A task must run [`serve`](Host::serve).
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

/// One stack with its device and the wakers of waiting tasks.
pub(crate) struct Shard {
    inner: Mutex<Inner>,
    timers: Arc<dyn Timers>,
    /// The mesh that connects the host's shards, and the index of this shard. `None` if the host has one shard only.
    mesh: Option<(Arc<ShardMesh>, usize)>,
}

pub(crate) struct Inner {
    pub(crate) stack: Stack,
    pub(crate) device: Box<dyn NetDevice>,
    /// Wakers by [`FlowId::index`].
    waiting: Vec<ConnectionWakers>,
    accepting: BTreeMap<u16, Waker>,
    udp: BTreeMap<u16, UdpWakers>,
    service: Option<Waker>,
    /// Time of the service task's alarm.
    service_at: Option<Instant>,
    /// Whether there is more to send, so that the service task must continue.
    unfinished: bool,
    /// Number of hosts, streams, sockets and listeners that use the shard.
    handles: usize,
}

/// Tasks that wait for a connection.
#[derive(Debug, Default)]
pub(crate) struct ConnectionWakers {
    pub(crate) opened: Option<Waker>,
    pub(crate) readable: Option<Waker>,
    pub(crate) writable: Option<Waker>,
    pub(crate) acknowledged: Option<Waker>,
    pub(crate) device_event: Option<Waker>,
}

type ReadyWakers = SmallVec<[Waker; 8]>;

impl Host {
    /// Returns a host with `config` on `device`.
    pub fn new(config: Config, device: Box<dyn NetDevice>, timers: Arc<dyn Timers>) -> Host {
        Host::from_stack(Stack::new(config), device, timers, None)
    }

    /// Returns the shards of one host: one shard per queue of its device, in the order of the queues. Each shard has
    /// its own connections and its own [`serve`](Host::serve) task. A packet for a connection of another shard is
    /// passed on.
    ///
    /// Passing packets on costs time. Two kinds of connections avoid it: connections opened from a shard, and
    /// connections to a port at which every shard listens. A socket on one shard only also gets the packets that other
    /// shards receive for it.
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
    /// Panics if there are more than 32,767 queues.
    pub fn shards(config: Config, queues: Vec<Box<dyn NetDevice>>, timers: Arc<dyn Timers>) -> Vec<Host> {
        let count = u16::try_from(queues.len()).ok().filter(|count| *count <= u16::MAX / 2);
        let count = count.expect("a host must have at most 32,767 queues");
        let mesh = Arc::new(ShardMesh::new(queues.len()));
        let shard = |(index, device): (usize, Box<dyn NetDevice>)| {
            let stack = Stack::for_shard(config.clone(), index as u16, count);
            let mesh = (count > 1).then(|| (mesh.clone(), index));
            Host::from_stack(stack, device, timers.clone(), mesh)
        };
        queues.into_iter().enumerate().map(shard).collect()
    }

    fn from_stack(
        stack: Stack,
        device: Box<dyn NetDevice>,
        timers: Arc<dyn Timers>,
        mesh: Option<(Arc<ShardMesh>, usize)>,
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

    /// Returns the task that serves interrupts and timers. It ends when no handle is left and the last connection has
    /// closed (including TIME-WAIT). Run one such task per shard: a second one would steal the first one's wake-ups.
    pub fn serve(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        serve::serve(self.shard.clone())
    }

    /// Opens a connection to `remote`, from `local_port` or from a free port. The SYN leaves now. Dropping the future
    /// aborts the attempt.
    pub fn connect(
        &self,
        local_port: Option<u16>,
        remote: SocketAddr,
    ) -> impl Future<Output = io::Result<TcpStream>> + Send + 'static + use<> {
        let opened = self.shard.with(|inner, now| {
            let Inner { stack, device, .. } = inner;
            // The port is chosen so that the device delivers the flow's packets to this shard.
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

    /// Listens at `port`. At most `backlog` connections wait to be accepted.
    ///
    /// # Errors
    /// Fails if the port has a listener already.
    pub fn listen(&self, port: u16, backlog: usize) -> io::Result<TcpListener> {
        self.shard.with(|inner, _| inner.stack.listen(port, backlog))?;
        Ok(TcpListener::new(self.shard.clone(), port))
    }

    /// Opens a UDP socket at `port`, or at a free port if `port` is `None`.
    ///
    /// # Errors
    /// Fails if the port is in use, or if no free port was found.
    pub fn bind_udp(&self, port: Option<u16>) -> io::Result<UdpSocket> {
        let port = self.shard.with(|inner, _| inner.stack.bind_udp(port))?;
        Ok(UdpSocket::new(self.shard.clone(), port))
    }

    /// Returns the host's IPv4 address.
    pub fn address(&self) -> Ipv4Addr {
        self.shard.with(|inner, _| inner.stack.config().address)
    }

    /// Returns the host's configured IPv6 address. `None` if the host speaks IPv4 only.
    pub fn ipv6_address(&self) -> Option<Ipv6Addr> {
        self.shard.with(|inner, _| inner.stack.config().ipv6.map(|six| six.address))
    }

    /// Returns the Ethernet address of the next hop to `destination`: a neighbour or a gateway. Returns `None` without
    /// a route, and while address resolution, which this call starts, is under way; then call again later. A NIC that
    /// sends packets of its own needs this address, for example for tunnels.
    pub fn next_hop(&self, destination: IpAddr) -> Option<[u8; 6]> {
        self.shard.with(|inner, now| inner.stack.next_hop(now, destination))
    }

    /// Replaces all routes ([`Config::with_route`]) of this shard. Connections use the new routes from their next
    /// packet on.
    pub fn set_routes(&self, routes: Vec<(Prefix, Option<IpAddr>)>) {
        self.shard.with(|inner, _| inner.stack.set_routes(routes));
    }

    /// Returns the counters.
    pub fn counters(&self) -> HostCounters {
        self.shard.with(|inner, _| *inner.stack.counters())
    }

    /// Returns the number of connections, in any state.
    pub fn connections(&self) -> usize {
        self.shard.with(|inner, _| inner.stack.connections())
    }

    /// Returns the memory of all connections' queues in bytes: unacknowledged and unread data.
    pub fn tcp_memory(&self) -> usize {
        self.shard.with(|inner, _| inner.stack.tcp_memory())
    }

    /// Sets the device's indirection table: packets with hash `n` go to shard `table[n]`. Existing connections stay at
    /// their shards. Their packets are passed on if they arrive elsewhere; flows that the device steers by itself keep
    /// their queue. Connections from peers follow the table, and connections opened from here do not.
    ///
    /// # Errors
    /// Fails if the host has one shard only, `table` names a missing shard, or the device is busy.
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

    /// Calls `f` with the host's device, between packets. No one gets the events of contexts that are created here
    /// without a flow. A protocol that needs them creates its contexts through a
    /// [`DatagramSocket`](offload_api::DatagramSocket).
    pub fn with_device<R>(&self, f: impl FnOnce(&mut dyn NetDevice) -> R) -> R {
        self.shard.with(|inner, _| f(&mut *inner.device))
    }
}

impl Clone for Host {
    fn clone(&self) -> Host {
        self.shard.add_handle();
        Host { shard: self.shard.clone() }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.shard.remove_handle();
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("address", &self.address()).finish_non_exhaustive()
    }
}

impl Shard {
    /// Calls `f` under the mutex, then wakes the tasks for which something changed.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut Inner, Instant) -> R) -> R {
        let mut inner = self.lock();
        // The clock is read under the mutex, so that the stack's time never goes back, on whichever thread a call runs.
        let now = self.timers.now();
        let result = f(&mut inner, now);
        // Wakers are called after the lock is released, because a waker may run its task on this thread.
        let mut wakers = ReadyWakers::new();
        inner.collect_ready(&mut wakers);
        inner.collect_service(&mut wakers);
        drop(inner);
        wakers.into_iter().for_each(Waker::wake);
        result
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic elsewhere leaves the stack consistent, because the stack is consistent between calls.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn timers(&self) -> &dyn Timers {
        &*self.timers
    }

    /// Passes packets on to the other shards.
    pub(crate) fn pass_on_packets(&self, packets: Vec<PassedPacket>) {
        let Some((mesh, index)) = &self.mesh else { return };
        let dropped = mesh.post(*index, packets);
        if dropped > 0 {
            self.lock().stack.note_shard_drops(dropped);
        }
    }

    /// Adds a handle.
    pub(crate) fn add_handle(&self) {
        self.lock().handles += 1;
    }

    /// Removes a handle. The last one wakes the service task, which may have to end.
    pub(crate) fn remove_handle(&self) {
        let service = {
            let mut inner = self.lock();
            // The last handle wakes the service task, which ends when the last connection has closed.
            inner.handles -= 1;
            if inner.handles == 0 { inner.service.take() } else { None }
        };
        if let Some(service) = service {
            service.wake();
        }
    }
}

impl Inner {
    /// Sends as much as possible. The service task continues if data are left.
    pub(crate) fn transmit(&mut self, now: Instant) {
        self.unfinished |= !self.stack.transmit(now, &mut *self.device);
    }

    /// Returns the wakers of connection `id`.
    pub(crate) fn waiting(&mut self, id: FlowId) -> &mut ConnectionWakers {
        if id.index() >= self.waiting.len() {
            self.waiting.resize_with(id.index() + 1, ConnectionWakers::default);
        }
        &mut self.waiting[id.index()]
    }

    /// Stores the waker for a connection at `port`. A listener has one waker.
    pub(crate) fn wait_to_accept(&mut self, port: u16, cx: &Context<'_>) {
        self.accepting.insert(port, cx.waker().clone());
    }

    /// Returns the wakers of the UDP socket at `port`.
    pub(crate) fn udp_waiting(&mut self, port: u16) -> &mut UdpWakers {
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

    pub(crate) fn collect_ready(&mut self, wakers: &mut ReadyWakers) {
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

    /// Wakes the service task if there is work left, or if the next deadline is earlier than its alarm.
    fn collect_service(&mut self, wakers: &mut ReadyWakers) {
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
