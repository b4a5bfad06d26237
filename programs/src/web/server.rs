//! An HTTP/1.1 server of a [`Site`] on an emulated host, over plain TCP or over TLS, within [`WebLimits`].

use super::limits::{Charge, WebLimits};
use super::patience::{ConnectionStep, Patience, SlotRevoked, StepTimeout};
use super::rationed::{Outstanding, Rationed};
use super::site::{Body, Site};
use super::{Mode, WebFailure};
use bytes::Bytes;
use core::convert::Infallible;
use core::future::poll_fn;
use core::pin::{Pin, pin};
use core::task::{Context, Poll};
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use ktls_offload::{LentPieces, Offload, SharedWrites};
use offload_api::SegmentStream;
use offload_base::counters::{CounterSet, Counters};
use offload_base::slots::ConnectionSlot;
use offload_base::text::with_causes;
use offload_console::say;
use offload_host_stack::TcpStream;
use offload_testbed::BedHost;
use rustls::ServerConfig;
use std::io::{self, ErrorKind};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::watch;

offload_base::counters! {
    /// Counters of a server.
    pub struct HttpCounters {
        /// Answered requests.
        pub requests: "http_requests",
        /// Requests answered with a part of a file.
        pub parts: "http_partial_content",
        /// Connections cut off in the middle of a request or an answer, mostly by the client.
        pub cut_off: "http_cut_off",
        /// Connections ended by the server because the client took too long.
        pub timed_out: "http_timed_out",
        /// Connections that were refused, or ended without a request under way, because all slots were taken.
        pub refused: "http_refused",
    }
}

/// A server of a site in one mode. Clones share one set of counters.
#[derive(Clone)]
pub struct Server {
    site: Site,
    mode: Mode,
    tls: Arc<ServerConfig>,
    records_per_key: Option<u64>,
    dates: bool,
    limits: WebLimits,
    counted: Arc<Mutex<CounterSet>>,
    /// Number of open connections.
    open: watch::Sender<usize>,
    /// Whether the server stops after the current requests.
    closing: watch::Sender<bool>,
}

impl Server {
    /// Creates a server of `site`. `tls` is used in the modes with TLS.
    pub fn new(site: Site, mode: Mode, mut tls: ServerConfig) -> Server {
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        let (counted, open, closing) = (Arc::default(), watch::Sender::new(0), watch::Sender::new(false));
        let limits = WebLimits::default();
        Server { site, mode, tls: Arc::new(tls), records_per_key: None, dates: true, limits, counted, open, closing }
    }

    /// Sets the limits of clients. Servers with clones of `limits` share the slots and the memory.
    #[must_use]
    pub fn with_limits(mut self, limits: WebLimits) -> Server {
        self.limits = limits;
        self
    }

    /// Updates the transmit key of each connection after this many records.
    #[must_use]
    pub fn with_records_per_key(mut self, records: Option<u64>) -> Server {
        self.records_per_key = records;
        self
    }

    /// Omits the time of day from answers, so that two runs are the same.
    #[must_use]
    pub fn without_dates(mut self) -> Server {
        self.dates = false;
        self
    }

    /// Returns the counters of closed connections, TLS included.
    pub fn counters(&self) -> CounterSet {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the number of open connections.
    pub fn open(&self) -> usize {
        *self.open.borrow()
    }

    /// Completes when every connection has ended.
    pub async fn idle(&self) {
        let mut open = self.open.subscribe();
        // The sender is a field of `self`, so waiting cannot fail.
        let _never_fails = open.wait_for(|open| *open == 0).await;
    }

    /// Stops accepting connections, closes idle connections, and closes the other connections after their current
    /// answer. Completes when all have ended.
    pub async fn close(&self) {
        self.closing.send_replace(true);
        self.idle().await;
    }

    /// Listens at `port` of `host` and returns the task that serves clients until the listener fails or the server is
    /// closed.
    ///
    /// # Errors If the port is taken.
    pub fn listen(&self, host: &BedHost, port: u16) -> io::Result<impl Future<Output = io::Result<()>> + use<>> {
        let mut listener = host.stack().listen(port, BACKLOG)?;
        let (server, acceptor) = (self.clone(), host.clone());
        Ok(host.spawn("listener", async move {
            loop {
                let mut stream = tokio::select! {
                    biased;
                    () = server.closed() => return Ok(()),
                    accepted = listener.accept() => accepted?,
                };
                // A refused connection is reset and not closed, so that no state remains for it.
                let Some(slot) = server.limits.capacity.enter(stream.peer_addr().ip()) else {
                    server.count(&HttpCounters { refused: 1, ..HttpCounters::default() });
                    stream.abort();
                    continue;
                };
                let (server, host) = (server.clone(), acceptor.clone());
                server.open.send_modify(|open| *open += 1);
                // Connections end by themselves, so the task is not awaited.
                let _ends_by_itself = acceptor.spawn("connection", async move {
                    server.welcome(&host, stream, slot).await;
                    server.open.send_modify(|open| *open -= 1);
                });
            }
        }))
    }

    /// Serves a connection from its first byte to its last.
    async fn welcome(&self, host: &BedHost, stream: TcpStream, slot: ConnectionSlot) {
        let peer = stream.peer_addr();
        // TCP enforces this limit itself, because queued data outlives the connection's task.
        stream.set_user_timeout(Some(self.limits.stall));
        // The slot is held until the client has received everything.
        let slot = Arc::new(slot);
        let Err(error) = self.converse(host, stream, slot.clone()).await else { return };
        // A revoked connection is no client's fault and counts as refused.
        if error.is::<SlotRevoked>() {
            return self.count(&HttpCounters { refused: 1, ..HttpCounters::default() });
        }
        if error.is::<StepTimeout>() || has_kind(&*error, &[ErrorKind::TimedOut]) {
            return self.count(&HttpCounters { timed_out: 1, ..HttpCounters::default() });
        }
        self.count(&HttpCounters { cut_off: 1, ..HttpCounters::default() });
        if !peer_is_gone(&error) {
            say!("{peer}: {}", with_causes(&*error));
        }
    }

    async fn converse(&self, host: &BedHost, stream: TcpStream, slot: Arc<ConnectionSlot>) -> Result<(), WebFailure> {
        if !self.mode.is_secure() {
            return self.speak(host, stream, slot).await.0;
        }
        let mut stream = tokio::select! {
            biased;
            shaken = ktls_offload::accept(stream, self.tls.clone()) => shaken?,
            () = host.runtime().sleep(self.limits.handshake) => return Err(StepTimeout(ConnectionStep::Handshake).into()),
            () = slot.revoked() => return Err(SlotRevoked.into()),
        };
        if let Some(records) = self.records_per_key {
            stream.set_records_per_key(records);
        }
        if self.mode == Mode::HttpsNic {
            stream.offload(Offload::BOTH);
        }
        let (ended, stream) = self.speak(host, stream, slot).await;
        self.count(&stream.into_counters());
        ended
    }

    /// Answers requests until the connection ends, and returns the stream for its counters.
    async fn speak<S: Outstanding>(
        &self,
        host: &BedHost,
        stream: S,
        slot: Arc<ConnectionSlot>,
    ) -> (Result<(), WebFailure>, S) {
        // Pieces of files are lent to the transport through this wrapper, which avoids a copy into the HTTP library.
        let (stream, lent) = SharedWrites::new(stream);
        let patience = Patience::new(self.limits.clone(), slot, host.runtime());
        let stream = Rationed::new(stream, patience.clone(), self.limits.capacity.clone());
        let service = service_fn(|request| {
            let (server, lent, patience) = (self.clone(), lent.clone(), patience.clone());
            let answer: Pin<Box<dyn Future<Output = Result<_, Infallible>> + Send>> =
                Box::pin(async move { Ok(server.answer(request, &lent, patience).await) });
            answer
        });
        let mut connection = hyper::server::conn::http1::Builder::new()
            .auto_date_header(self.dates)
            .max_buf_size(MAX_BUFFERED)
            .serve_connection(TokioIo::new(stream), service);
        let (mut alarm, mut closing) = (host.runtime().alarm(), pin!(self.closed()));
        let mut is_closing = false;
        let ended = poll_fn(|cx| {
            if !is_closing && closing.as_mut().poll(cx).is_ready() {
                is_closing = true;
                Pin::new(&mut connection).graceful_shutdown();
            }
            match connection.poll_without_shutdown(cx) {
                Poll::Ready(ended) => Poll::Ready(ended.map_err(WebFailure::from)),
                Poll::Pending => match patience.poll_revoked(cx) {
                    Poll::Ready(revoked) => Poll::Ready(Err(revoked.into())),
                    Poll::Pending => patience.poll_late(&mut *alarm, cx).map(|late| Err(late.into())),
                },
            }
        })
        .await;
        let stream = connection.into_parts().io.into_inner();
        self.count(stream.counters());
        // The order matters: a revoked or cut off answer is reset below, before the ordinary end could send a FIN.
        let (mut stream, charge, written) = stream.into_parts();
        let is_revoked = ended.as_ref().is_err_and(|error| error.is::<SlotRevoked>());
        if ended.as_ref().is_err_and(is_cut_short) || is_revoked && stream.outstanding() > 0 {
            // A FIN would make an incomplete answer look like a complete shorter one.
            stream.abort();
            return (ended, stream);
        }
        stream.finish();
        if is_revoked {
            return (ended, stream);
        }
        let delivered = self.deliver(host, &mut stream, charge, written).await;
        (ended.and(delivered.map_err(WebFailure::from)), stream)
    }

    /// Waits until the client has acknowledged everything. Aborts the connection of a client that acknowledges too
    /// little in its time.
    async fn deliver<S: Outstanding>(
        &self,
        host: &BedHost,
        stream: &mut S,
        mut charge: Charge,
        written: u64,
    ) -> Result<(), StepTimeout> {
        loop {
            let before = stream.outstanding();
            charge.set(before);
            let acknowledged = poll_fn(|cx| stream.poll_acked(cx, written));
            tokio::select! {
                biased;
                // An error here means that the client is gone: either the loss was reported already, or there is
                // nothing to report.
                _ = acknowledged => return Ok(()),
                () = host.runtime().sleep(self.limits.stall) => {}
            }
            if stream.outstanding() + MIN_TAKEN > before {
                stream.abort();
                return Err(StepTimeout(ConnectionStep::AnswerEnd));
            }
        }
    }

    /// Completes when the server is closed.
    async fn closed(&self) {
        let mut closing = self.closing.subscribe();
        // The sender is a field of `self`, so waiting cannot fail.
        let _never_fails = closing.wait_for(|closing| *closing).await;
    }

    async fn answer(&self, request: Request<Incoming>, lent: &LentPieces, patience: Patience) -> Response<TrackedBody> {
        patience.asked(!request.body().is_end_stream());
        let answer = self.site.answer(request, Some(lent), &self.limits.capacity).await;
        let part = answer.status() == StatusCode::PARTIAL_CONTENT;
        self.count(&HttpCounters { requests: 1, parts: u64::from(part), ..HttpCounters::default() });
        patience.answers();
        answer.map(|body| TrackedBody { body, patience })
    }

    fn count(&self, counters: &dyn Counters) {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner).add(counters);
    }
}

/// A body that reports its end to the timeouts.
struct TrackedBody {
    body: Body,
    patience: Patience,
}

impl HttpBody for TrackedBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for TrackedBody {
    fn drop(&mut self) {
        self.patience.answered();
    }
}

/// Returns whether the client has received a part of an answer that will not be completed.
fn is_cut_short(error: &WebFailure) -> bool {
    match error.downcast_ref::<StepTimeout>() {
        Some(late) => late.0 == ConnectionStep::Answer || late.0 == ConnectionStep::AnswerEnd,
        None => error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_user),
    }
}

/// Returns whether a connection ended the way it does if a client has read enough and leaves.
fn peer_is_gone(error: &WebFailure) -> bool {
    error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_incomplete_message) || has_kind(&**error, &GONE)
}

/// Returns whether the error or one of its causes is an I/O error of one of these kinds.
fn has_kind(error: &(dyn core::error::Error + 'static), kinds: &[ErrorKind]) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error.downcast_ref::<io::Error>().is_some_and(|error| kinds.contains(&error.kind())) {
            return true;
        }
        cause = error.source();
    }
    false
}

const GONE: [ErrorKind; 3] = [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];

/// Connections that may wait to be accepted.
const BACKLOG: usize = 1024;
/// Bytes that the HTTP library buffers for a connection in each direction. Headers cannot be longer.
const MAX_BUFFERED: usize = 64 << 10;
/// Bytes that a client must acknowledge in each [`WebLimits::stall`] after the end of the last answer.
const MIN_TAKEN: usize = 16 << 10;
