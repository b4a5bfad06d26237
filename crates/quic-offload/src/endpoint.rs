//! A socket's connections, and the task that runs them.

use crate::config::{ClientTls, Config, ServerTls};
use crate::connection::{Connection, code_of};
use crate::core::{Awaited, Core, Counters, Stage, WaitFor, Waiter};
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

/// QUIC at a UDP socket: connects, and accepts if it has a server's side of TLS. Clones are the same endpoint.
///
/// Its connections are run by the [`Driver`] that comes with it, which some task has to poll.
#[derive(Clone)]
pub struct Endpoint {
    pub(crate) shared: Arc<Shared>,
    /// Shared by all clones.
    _last: Arc<LastHandle>,
}

/// Tells the core that the last clone of an endpoint is dropped.
struct LastHandle(Arc<Shared>);

impl Drop for LastHandle {
    fn drop(&mut self) {
        let now = self.0.now();
        self.0.lock().leave(now);
    }
}

pub(crate) struct Shared {
    core: WakingMutex<Core>,
    timers: Arc<dyn Timers>,
    local: SocketAddr,
}

impl Shared {
    pub(crate) fn lock(&self) -> WakingGuard<'_, Core> {
        self.core.lock()
    }

    pub(crate) fn now(&self) -> Instant {
        self.timers.now()
    }

    pub(crate) fn alarm(&self) -> Box<dyn Alarm> {
        self.timers.alarm()
    }
}

/// Runs an endpoint's connections: a future that ends with the socket's error, or when the last connection is drained after the endpoint
/// was closed or its last handle dropped. Dropping the driver ends all connections at once.
#[must_use = "nothing happens unless a task polls it"]
pub struct Driver {
    shared: Arc<Shared>,
    socket: Box<dyn DatagramSocket>,
    alarm: Box<dyn Alarm>,
    batch: Vec<Datagram>,
}

impl Endpoint {
    /// An endpoint at a socket of `port`, and what runs it.
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
        let random = match &config.random {
            Some(random) => random.clone(),
            None => RandomSource::from_system()?,
        };
        let core = WakingMutex::new(Core::new(config, server, &random, local.port()));
        let alarm = timers.alarm();
        let shared = Arc::new(Shared { core, timers, local });
        let driver = Driver { shared: shared.clone(), socket: Box::new(socket), alarm, batch: Vec::new() };
        let _last = Arc::new(LastHandle(shared.clone()));
        Ok((Endpoint { shared, _last }, driver))
    }

    /// Connects to `to`, which has to show a certificate of `name`.
    ///
    /// # Errors
    /// If the endpoint is closed or full, or address or name make no sense.
    pub fn connect(&self, tls: &ClientTls, to: SocketAddr, name: &str) -> Result<Connecting, ConnectError> {
        let mut core = self.shared.lock();
        let at = core.connect(self.shared.now(), tls.clone(), to, name)?;
        let name = core.name_of(at).ok_or(ConnectError::Endpoint)?;
        core.touch(at);
        drop(core);
        let connection = Connection::new(self.shared.clone(), at, name);
        let waiter = connection.held().waiter(Awaited::Stage);
        Ok(Connecting { connection: Some(connection), waiter })
    }

    /// The next connection of a client whose handshake is done. `None`: the endpoint is closed, or has [failed](Self::failure).
    pub async fn accept(&self) -> Option<Connection> {
        let mut waiter = Waiter::new(self.shared.clone(), WaitFor::Accept);
        poll_fn(|cx| self.poll_accept(cx, &mut waiter)).await
    }

    fn poll_accept(&self, cx: &mut Context<'_>, waiter: &mut Waiter) -> Poll<Option<Connection>> {
        let mut core = self.shared.lock();
        while let Some(at) = core.arrived.pop_front() {
            if let Some(name) = core.name_of(at) {
                return Poll::Ready(Some(Connection::new(self.shared.clone(), at, name)));
            }
        }
        if core.closing || core.dead {
            return Poll::Ready(None);
        }
        waiter.wait(&mut core, cx)
    }

    /// The next client that asks for a connection, if [`Config::decides`] leaves clients to the application. `None`: the endpoint is closed,
    /// or has [failed](Self::failure).
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

    /// Closes all connections, with a code and a reason of the application's, and takes no more.
    ///
    /// # Panics
    /// If the code is above 2^62 - 1 (RFC 9000 16).
    pub fn close(&self, code: u64, reason: impl Into<Bytes>) {
        let code = code_of(code);
        let mut core = self.shared.lock();
        core.close_all(self.shared.now(), code, &reason.into());
    }

    /// Waits until no connection is left, not even one whose peer may not have heard that it is closed.
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

    /// Returns the socket's address and port. The address is unspecified if the socket takes datagrams to any address of its host.
    pub fn local_addr(&self) -> SocketAddr {
        self.shared.local
    }

    /// Why the driver ended, if its socket failed: the connections ended with the same words.
    pub fn failure(&self) -> Option<Closed> {
        self.shared.lock().failure.clone()
    }

    /// What it counted.
    pub fn counters(&self) -> Counters {
        self.shared.lock().counters
    }
}

/// A connection whose handshake is under way. Dropped, it is given up.
#[must_use = "a connection is of use when its handshake is done"]
pub struct Connecting {
    connection: Option<Connection>,
    waiter: Waiter,
}

impl Future for Connecting {
    type Output = Result<Connection, Closed>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Connecting { connection, waiter } = &mut *self;
        let Some(held) = connection.as_ref().map(Connection::held) else { return Poll::Ready(Err(Closed::Endpoint)) };
        let mut core = held.core();
        let done = match held.get(&mut core) {
            Err(closed) => Err(closed),
            Ok(conn) => match conn.stage {
                Stage::Open => Ok(()),
                Stage::Closed => Err(conn.closed.clone().unwrap_or(Closed::Endpoint)),
                Stage::Handshake => return waiter.wait(&mut core, cx),
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
            while let Poll::Ready(event) = socket.poll_device_event(cx) {
                shared.lock().note_device(event);
            }
            let received = match socket.poll_receive(cx, batch, MOST_RECEIVED) {
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
            // A handle that does something while the lock is free wakes this task.
            core.waiting.driver = Some(cx.waker().clone());
            // Tasks whose events occurred are woken before the socket may wake others.
            let mut core = WakingGuard::relock(core);
            core.tell_device(now, socket);
            let sent = core.poll_send(cx, socket);
            core.give_back(socket);
            if core.closing && !core.has_connections() && sent {
                return Poll::Ready(Ok(()));
            }
            turns += 1;
            // What is received goes on, though nothing can be sent. Once all is sent, there is room for those who had none.
            if received || sent && (worked || core.has_ready()) {
                if turns == MOST_TURNS {
                    // Others have their turn.
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                continue;
            }
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

const MOST_RECEIVED: usize = 64;
const MOST_TURNS: usize = 64;
