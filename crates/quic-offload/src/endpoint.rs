//! An endpoint: the connections of a UDP socket, and the task that runs them.

use crate::config::{ClientTls, Config, ServerTls};
use crate::connection::{Connection, code_of};
use crate::core::{ConnectionStage, Counters, EndpointCore, WaitFor, Waiter, WakeReason};
use crate::error::{Closed, ConnectError};
use crate::incoming::Incoming;
use bytes::Bytes;
use core::fmt;
use core::future::{Future, poll_fn};
use core::net::SocketAddr;
use core::pin::Pin;
use core::task::{Context, Poll};
use offload_api::{Datagram, DatagramSocket};
use offload_base::{Alarm, Instant, RandomSource, Timers, WakingGuard, WakingMutex};
use std::io;
use std::sync::Arc;

/// A QUIC endpoint on a UDP socket: connects, and with a server's TLS configuration also accepts. Clones share the
/// endpoint.
///
/// A task must poll the [`Driver`], which runs the connections.
#[derive(Clone)]
pub struct Endpoint {
    pub(crate) shared: Arc<EndpointShared>,
    /// One for all clones; its drop marks the last one.
    _last: Arc<LastHandle>,
}

/// A guard that reports the drop of the last clone to the core.
struct LastHandle(Arc<EndpointShared>);

impl Drop for LastHandle {
    fn drop(&mut self) {
        let now = self.0.now();
        self.0.lock().leave(now);
    }
}

pub(crate) struct EndpointShared {
    core: WakingMutex<EndpointCore>,
    timers: Arc<dyn Timers>,
    local: SocketAddr,
}

impl EndpointShared {
    pub(crate) fn lock(&self) -> WakingGuard<'_, EndpointCore> {
        self.core.lock()
    }

    pub(crate) fn now(&self) -> Instant {
        self.timers.now()
    }

    pub(crate) fn alarm(&self) -> Box<dyn Alarm> {
        self.timers.alarm()
    }
}

/// The future that runs an endpoint's connections. It ends with the socket's error. Otherwise it ends when the last
/// connection is drained, after the endpoint is closed or its last handle is dropped. Dropping the driver ends all
/// connections at once.
#[must_use = "nothing happens unless a task polls it"]
pub struct Driver {
    shared: Arc<EndpointShared>,
    socket: Box<dyn DatagramSocket>,
    alarm: Box<dyn Alarm>,
    batch: Vec<Datagram>,
}

impl Endpoint {
    /// Creates an endpoint and its driver.
    ///
    /// # Errors
    /// If the socket has no address, or the system no randomness.
    pub fn new(
        socket: impl DatagramSocket + 'static,
        timers: Arc<dyn Timers>,
        config: Config,
        server: Option<ServerTls>,
    ) -> io::Result<(Endpoint, Driver)> {
        let local = DatagramSocket::local_addr(&socket)?;
        // A seed is for virtual time; real endpoints need unpredictable IDs and tokens.
        let random = match &config.random {
            Some(random) => random.clone(),
            None => RandomSource::from_system()?,
        };
        let core = WakingMutex::new(EndpointCore::new(config, server, &random, local.port()));
        let alarm = timers.alarm();
        let shared = Arc::new(EndpointShared { core, timers, local });
        let driver = Driver { shared: shared.clone(), socket: Box::new(socket), alarm, batch: Vec::new() };
        let _last = Arc::new(LastHandle(shared.clone()));
        Ok((Endpoint { shared, _last }, driver))
    }

    /// Connects to `to`, which must have a certificate for `name`.
    ///
    /// # Errors
    /// If the endpoint is closed or full, or the address or name is invalid.
    pub fn connect(&self, tls: &ClientTls, to: SocketAddr, name: &str) -> Result<Connecting, ConnectError> {
        let mut core = self.shared.lock();
        let at = core.connect(self.shared.now(), tls.clone(), to, name)?;
        let name = core.number_and_record(at).ok_or(ConnectError::Endpoint)?;
        core.touch(at);
        drop(core);
        let connection = Connection::new(self.shared.clone(), at, name);
        let waiter = connection.guard().waiter(WakeReason::Stage);
        Ok(Connecting { connection: Some(connection), waiter })
    }

    /// Accepts the next connection with a finished handshake. Returns `None` if the endpoint is closed or has
    /// [failed](Self::failure).
    pub async fn accept(&self) -> Option<Connection> {
        let mut waiter = Waiter::new(self.shared.clone(), WaitFor::Accept);
        poll_fn(|cx| self.poll_accept(cx, &mut waiter)).await
    }

    fn poll_accept(&self, cx: &mut Context<'_>, waiter: &mut Waiter) -> Poll<Option<Connection>> {
        let mut core = self.shared.lock();
        // A connection may have ended before it is accepted.
        while let Some(at) = core.arrived.pop_front() {
            if let Some(name) = core.number_and_record(at) {
                return Poll::Ready(Some(Connection::new(self.shared.clone(), at, name)));
            }
        }
        if core.closing || core.dead {
            return Poll::Ready(None);
        }
        waiter.wait(&mut core, cx)
    }

    /// Returns the next client, if [`Config::decides`] leaves clients to the application. Returns `None` if the
    /// endpoint is closed or has [failed](Self::failure).
    pub async fn incoming(&self) -> Option<Incoming> {
        let mut waiter = Waiter::new(self.shared.clone(), WaitFor::Incoming);
        poll_fn(|cx| {
            let mut core = self.shared.lock();
            if let Some(client) = core.undecided.pop_front() {
                return Poll::Ready(Some(Incoming::new(self.shared.clone(), client)));
            }
            if core.closing || core.dead {
                return Poll::Ready(None);
            }
            waiter.wait(&mut core, cx)
        })
        .await
    }

    /// Closes all connections with the application's code and reason, and refuses new ones.
    ///
    /// # Panics
    /// If the code is above 2^62 - 1 (RFC 9000 16).
    pub fn close(&self, code: u64, reason: impl Into<Bytes>) {
        let code = code_of(code);
        let mut core = self.shared.lock();
        core.close_all(self.shared.now(), code, &reason.into());
    }

    /// Waits until all connections are drained, including closed ones whose peers may not know it yet.
    pub async fn drained(&self) {
        let mut waiter = Waiter::new(self.shared.clone(), WaitFor::Drained);
        poll_fn(|cx| {
            let mut core = self.shared.lock();
            if core.dead || !core.has_connections() {
                return Poll::Ready(());
            }
            waiter.wait(&mut core, cx)
        })
        .await;
    }

    /// Returns the socket's address and port. The address is unspecified if the socket receives on all addresses of its
    /// host.
    pub fn local_addr(&self) -> SocketAddr {
        self.shared.local
    }

    /// Returns the reason why the driver ended, if its socket failed. The connections ended with the same reason.
    pub fn failure(&self) -> Option<Closed> {
        self.shared.lock().failure.clone()
    }

    /// Returns the endpoint's counters.
    pub fn counters(&self) -> Counters {
        self.shared.lock().counters
    }
}

/// A connection during its handshake. Dropping it abandons the connection.
#[must_use = "a connection is of use when its handshake is done"]
pub struct Connecting {
    connection: Option<Connection>,
    waiter: Waiter,
}

impl Future for Connecting {
    type Output = Result<Connection, Closed>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Connecting { connection, waiter } = &mut *self;
        let Some(held) = connection.as_ref().map(Connection::guard) else { return Poll::Ready(Err(Closed::Endpoint)) };
        let mut core = held.core();
        let done = match held.get(&mut core) {
            Err(closed) => Err(closed),
            Ok(conn) => match conn.stage {
                ConnectionStage::Open => Ok(()),
                ConnectionStage::Closed => Err(conn.closed.clone().unwrap_or(Closed::Endpoint)),
                ConnectionStage::Handshake => return waiter.wait(&mut core, cx),
            },
        };
        drop(core);
        let connection = connection.take();
        Poll::Ready(done.and_then(|()| connection.ok_or(Closed::Endpoint)))
    }
}

impl Future for Driver {
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Driver { shared, socket, alarm, batch } = &mut *self;
        let socket = &mut **socket;
        let mut turns = 0;
        loop {
            // Device events come first: a lost context must not be used for the packets below.
            while let Poll::Ready(event) = socket.poll_device_event(cx) {
                shared.lock().note_device(event);
            }
            let received = match socket.poll_receive(cx, batch, MAX_RECEIVED) {
                Poll::Ready(Ok(_)) => true,
                Poll::Ready(Err(error)) => {
                    shared.lock().fail(&error);
                    return Poll::Ready(Err(error));
                }
                Poll::Pending => false,
            };
            let mut core = shared.lock();
            let now = shared.timers.now();
            for datagram in batch.drain(..) {
                core.receive(now, datagram);
            }
            core.expire(now);
            let worked = core.work(now);
            // From here on, a handle that changes the core wakes this task.
            core.waiting.driver = Some(cx.waker().clone());
            // Tasks with pending events are woken before the socket wakes other tasks.
            let mut core = WakingGuard::relock(core);
            core.update_device(now, socket);
            let sent = core.poll_send(cx, socket);
            core.release_contexts(socket);
            if core.closing && !core.has_connections() && sent {
                return Poll::Ready(Ok(()));
            }
            turns += 1;
            // Receiving continues even if sending is blocked. When all packets are sent, connections without room can
            // continue.
            if received || sent && (worked || core.has_ready()) {
                if turns == MAX_ROUNDS {
                    // Yield, so that other tasks run.
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                continue;
            }
            // Nothing is left to do before the next deadline, datagram or handle.
            if alarm.poll(cx, core.next_event()).is_pending() {
                return Poll::Pending;
            }
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.shared.lock().die();
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Endpoint(..)")
    }
}

impl fmt::Debug for Connecting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connecting(..)")
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Driver(..)")
    }
}

const MAX_RECEIVED: usize = 64;
const MAX_ROUNDS: usize = 64;
