//! An HTTP/3 server of a [`Site`] on an emulated host, within [`WebLimits`].
//!
//! Each request has its own deadlines, because a connection has many at a time. Each connection is charged one send
//! window of memory.

use super::super::WebFailure;
use super::super::limits::{Charge, WebLimits};
use super::super::patience::{ConnectionStep, StepTimeout};
use super::super::server::HttpCounters;
use super::super::site::Site;
use super::Mode;
use super::body::RequestBody;
use bytes::{Buf, Bytes};
use core::future::Future;
use core::time::Duration;
use h3::error::{Code, StreamError};
use h3::server::RequestResolver;
use http_body_util::BodyExt;
use http_rules::http3::check_head;
use hyper::{Method, Response, StatusCode};
use offload_base::counters::{CounterSet, Counters};
use offload_base::slots::ConnectionSlot;
use offload_base::text::with_causes;
use offload_console::say;
use offload_testbed::{BedHost, JoinHandle};
use quic_offload::http3::{ALPN, H3Connection};
use quic_offload::{Closed, Config, Connection, Endpoint, Offload, ServerTls};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::watch;

/// A server of a site in one mode. Clones share one set of counters.
#[derive(Clone)]
pub struct Server {
    site: Site,
    mode: Mode,
    tls: ServerTls,
    config: Config,
    limits: WebLimits,
    key_update_every: Option<u64>,
    counted: Arc<Mutex<CounterSet>>,
    endpoint: Arc<Mutex<Option<Endpoint>>>,
    /// Number of open connections.
    open: watch::Sender<usize>,
    /// Whether the server stops after the current requests.
    closing: watch::Sender<bool>,
}

impl Server {
    /// Creates a server of `site`. Its connections have `config`, except for settings that `mode` and the limits
    /// decide.
    ///
    /// # Errors If `tls` is not suitable for QUIC.
    pub fn new(site: Site, mode: Mode, mut tls: rustls::ServerConfig, config: Config) -> io::Result<Server> {
        tls.alpn_protocols = vec![ALPN.to_vec()];
        let offload = if mode == Mode::Nic { Offload::Both } else { Offload::None };
        let (open, closing) = (watch::Sender::new(0), watch::Sender::new(false));
        Ok(Server {
            site,
            mode,
            tls: ServerTls::new(tls).map_err(io::Error::other)?,
            config: config.with(|c| (c.offload, c.send_window) = (offload, SEND_WINDOW)),
            limits: WebLimits::default(),
            key_update_every: None,
            counted: Arc::default(),
            endpoint: Arc::default(),
            open,
            closing,
        })
    }

    /// Sets the limits of clients. Servers with clones of `limits` share its slots and its memory.
    #[must_use]
    pub fn with_limits(mut self, limits: WebLimits) -> Server {
        (self.config.idle, self.config.handshake) = (limits.idle, limits.handshake);
        self.limits = limits;
        self
    }

    /// Requests a key update each time a connection has sent this many packets.
    #[must_use]
    pub fn with_key_update_every(mut self, packets: Option<u64>) -> Server {
        self.key_update_every = packets;
        self
    }

    /// Returns the counters of closed connections, and of QUIC.
    pub fn counters(&self) -> CounterSet {
        let mut set = self.counted.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(endpoint) = &*self.endpoint.lock().unwrap_or_else(PoisonError::into_inner) {
            set.add(&endpoint.counters());
        }
        set
    }

    /// Stops accepting connections. Connections end after their current answers. Completes when all have ended.
    pub async fn close(&self) {
        self.closing.send_replace(true);
        none_left(&self.open).await;
        let endpoint = self.endpoint.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(endpoint) = endpoint {
            endpoint.close(Code::H3_NO_ERROR.value(), "");
            endpoint.drained().await;
        }
    }

    /// Listens at `port` of `host` and returns the task that serves clients until the server is closed.
    ///
    /// # Errors If the port is taken.
    pub fn listen(&self, host: &BedHost, port: u16) -> io::Result<JoinHandle<io::Result<()>>> {
        let socket = host.stack().bind_udp(Some(port))?;
        let (endpoint, driver) = Endpoint::new(socket, host.runtime(), self.config.clone(), Some(self.tls.clone()))?;
        *self.endpoint.lock().unwrap_or_else(PoisonError::into_inner) = Some(endpoint.clone());
        let (server, acceptor) = (self.clone(), host.clone());
        let _ends_with_the_endpoint = host.spawn("listener", async move {
            loop {
                let connection = tokio::select! {
                    biased;
                    () = server.closed() => return,
                    accepted = endpoint.accept() => accepted,
                };
                let Some(connection) = connection else { return };
                // A client that has left needs no slot.
                let Ok(peer) = connection.remote_addr() else { continue };
                let Some(slot) = server.limits.capacity.enter(peer.ip()) else {
                    server.count(&HttpCounters { refused: 1, ..HttpCounters::default() });
                    connection.close(Code::H3_EXCESSIVE_LOAD.value(), "");
                    continue;
                };
                let (server, host) = (server.clone(), acceptor.clone());
                server.open.send_modify(|open| *open += 1);
                // Connections end by themselves, so the task is not awaited.
                let _ends_by_itself = acceptor.spawn("connection", async move {
                    // A connection may fill its send window at any time, so the whole window is charged at once.
                    let _charge = Charge::new(server.limits.capacity.clone(), SEND_WINDOW as usize);
                    let slot = Arc::new(slot);
                    let ended = server.converse(&host, connection.clone(), &slot).await;
                    // A client that closes without an error has everything that it wanted.
                    let ended = if has_left(&connection) { Ok(()) } else { ended };
                    server.note(ended, &peer.to_string());
                    drop(slot);
                    server.open.send_modify(|open| *open -= 1);
                });
            }
        });
        Ok(host.spawn("quic", driver))
    }

    /// Answers a connection's requests until the connection ends.
    async fn converse(
        &self,
        host: &BedHost,
        connection: Connection,
        slot: &Arc<ConnectionSlot>,
    ) -> Result<(), WebFailure> {
        let mut builder = h3::server::builder();
        // Reserved frames and settings would make captures and byte counts vary.
        builder.send_grease(false).max_field_section_size(MAX_OF_A_HEADER);
        let mut http = builder.build::<_, Bytes>(H3Connection(connection.clone())).await?;
        let (under_way, closed) = (watch::Sender::new(0_usize), self.closed());
        let answers = Arc::new(Answers { slot: slot.clone(), count: Mutex::new(0) });
        tokio::pin!(closed);
        loop {
            // The idle time starts anew whenever the last request ends, so the timer is part of the loop.
            let idle = async {
                none_left(&under_way).await;
                host.runtime().sleep(self.limits.idle).await;
            };
            let accepted = tokio::select! {
                biased;
                () = &mut closed => {
                    http.shutdown(0).await?;
                    break;
                }
                accepted = http.accept() => accepted,
                () = idle => return Err(StepTimeout(ConnectionStep::Idle).into()),
                () = slot.revoked() => {
                    self.count(&HttpCounters { refused: 1, ..HttpCounters::default() });
                    connection.close(Code::H3_EXCESSIVE_LOAD.value(), "");
                    break;
                }
            };
            let resolver = match accepted {
                Ok(Some(resolver)) => resolver,
                Ok(None) => break,
                Err(error) => return Err(error.into()),
            };
            under_way.send_modify(|count| *count += 1);
            let (server, host, count) = (self.clone(), host.clone(), under_way.clone());
            let (connection, answers) = (connection.clone(), answers.clone());
            let _ends_by_itself = host.clone().spawn("request", async move {
                let ended = server.answer(&host, resolver, &connection, &answers).await;
                if ended.is_err() && has_left(&connection) {
                    server.count(&HttpCounters { cut_off: 1, ..HttpCounters::default() });
                } else {
                    server.note(ended, "a request");
                }
                count.send_modify(|count| *count -= 1);
            });
        }
        none_left(&under_way).await;
        Ok(())
    }

    async fn answer(
        &self,
        host: &BedHost,
        resolver: RequestResolver<H3Connection, Bytes>,
        connection: &Connection,
        answers: &Answers,
    ) -> Result<(), WebFailure> {
        let WebLimits { header, body, stall, .. } = self.limits;
        let (request, stream) = within(host, header, ConnectionStep::Header, resolver.resolve_request()).await?;
        let _answer = answers.begin();
        let (mut send, mut receive) = stream.split();
        let length = match check_head(&request) {
            Ok(length) => length,
            // RFC 9114 4.1.2: a malformed request is a stream error.
            Err(malformed) => {
                send.stop_stream(Code::H3_MESSAGE_ERROR);
                receive.stop_sending(Code::H3_MESSAGE_ERROR);
                return Err(malformed.into());
            }
        };
        let is_head = *request.method() == Method::HEAD;
        let mut body = RequestBody::new(receive, host.runtime(), body, length);
        // GET and the like do not use their body, but a short body is read because its length may prove the request
        // malformed.
        if !matches!(*request.method(), Method::PUT | Method::POST) && length.declared() <= Some(MAX_UNREAD) {
            let _told_below = body.discard().await;
        }
        let request = request.map(|()| &mut body);
        let answer = self.site.answer(request, None, &self.limits.capacity).await;
        if let Some(malformed) = body.malformed() {
            send.stop_stream(Code::H3_MESSAGE_ERROR);
            return Err(malformed.into());
        }
        let (head, mut content) = answer.into_parts();
        let parts = u64::from(head.status == StatusCode::PARTIAL_CONTENT);
        self.count(&HttpCounters { requests: 1, parts, ..HttpCounters::default() });
        within(host, stall, ConnectionStep::Answer, send.send_response(Response::from_parts(head, ()))).await?;
        while !is_head && let Some(frame) = content.frame().await {
            let Ok(mut data) = frame?.into_data() else { continue };
            while data.has_remaining() {
                // Small pieces let each deadline cover a bounded number of bytes.
                let piece = data.split_to(data.len().min(PIECE));
                within(host, stall, ConnectionStep::Answer, send.send_data(piece)).await?;
                self.update_keys(connection);
            }
        }
        let ended = within(host, stall, ConnectionStep::AnswerEnd, send.finish()).await;
        if ended.is_err() && has_left(connection) {
            // A client that has everything need not acknowledge it before closing.
            return Ok(());
        }
        // The end of the request may still be in transit. Dropping an unread body stops the client's stream.
        let _end_or_body = body.frame().await;
        ended
    }

    fn update_keys(&self, connection: &Connection) {
        let Some(every) = self.key_update_every else { return };
        let now = connection.statistics();
        if now.sent / every.max(1) > now.key_updates {
            connection.update_keys();
        }
    }

    fn note(&self, ended: Result<(), WebFailure>, who: &str) {
        let Err(error) = ended else { return };
        if error.is::<StepTimeout>() {
            return self.count(&HttpCounters { timed_out: 1, ..HttpCounters::default() });
        }
        self.count(&HttpCounters { cut_off: 1, ..HttpCounters::default() });
        say!("{} {who}: {}", self.mode, with_causes(&*error));
    }

    /// Completes when the server is closed.
    async fn closed(&self) {
        let mut closing = self.closing.subscribe();
        // The sender is a field of `self`, so waiting cannot fail.
        let _ = closing.wait_for(|closing| *closing).await.is_ok();
    }

    fn count(&self, counters: &dyn Counters) {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner).add(counters);
    }
}

/// The requests of a connection that are being answered. The connection keeps its slot as long as there is one.
struct Answers {
    slot: Arc<ConnectionSlot>,
    count: Mutex<usize>,
}

impl Answers {
    fn begin(&self) -> AnswerGuard<'_> {
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        *count += 1;
        self.slot.set_busy();
        AnswerGuard(self)
    }
}

/// One request of [`Answers`], until this is dropped.
struct AnswerGuard<'a>(&'a Answers);

impl Drop for AnswerGuard<'_> {
    fn drop(&mut self) {
        let mut count = self.0.count.lock().unwrap_or_else(PoisonError::into_inner);
        *count -= 1;
        if *count == 0 {
            self.0.slot.set_idle();
        }
    }
}

/// Completes when `count` is zero.
async fn none_left(count: &watch::Sender<usize>) {
    // `count` is the sender, so waiting cannot fail.
    let _ = count.subscribe().wait_for(|count| *count == 0).await.is_ok();
}

/// Returns whether the client closed the connection without an error code.
fn has_left(connection: &Connection) -> bool {
    let no_error = |code| code == 0 || code == Code::H3_NO_ERROR.value();
    matches!(connection.remote_addr(), Err(Closed::ByPeer { code, .. }) if no_error(code))
}

/// Runs `future`, which fails if the client exceeds `span`.
async fn within<T>(
    host: &BedHost,
    span: Duration,
    step: ConnectionStep,
    future: impl Future<Output = Result<T, StreamError>>,
) -> Result<T, WebFailure> {
    tokio::select! {
        biased;
        done = future => Ok(done?),
        () = host.runtime().sleep(span) => Err(StepTimeout(step).into()),
    }
}

/// Most unacknowledged bytes of a connection.
const SEND_WINDOW: u32 = 1 << 20;
/// Most bytes handed to the connection at a time.
const PIECE: usize = 64 << 10;
/// Most bytes of an unused body that are read to check the request.
const MAX_UNREAD: u64 = 64 << 10;
const MAX_OF_A_HEADER: u64 = 64 << 10;
