//! Serves a [`Site`] from an emulated host, over plain TCP or over TLS.

use super::site::{Body, Site};
use super::{Failure, Mode};
use core::convert::Infallible;
use core::future::poll_fn;
use core::pin::Pin;
use host_stack::TcpStream;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use ktls_offload::{LentPieces, Offload, SharedWrites};
use offload_api::SegmentStream;
use offload_base::counters::{CounterSet, Counters};
use rustls::ServerConfig;
use std::io::{self, ErrorKind};
use std::sync::{Arc, Mutex, PoisonError};
use testbed::BedHost;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

offload_base::counters! {
    /// What a server counts.
    pub struct HttpCounters {
        /// Requests answered.
        pub requests: "http_requests",
        /// Those of them that were answered with a part of a file.
        pub parts: "http_partial_content",
        /// Connections that ended in the middle of something, the client's fault mostly.
        pub cut_off: "http_cut_off",
    }
}

/// Serves a site in one mode. Cloned, it is the same one, with one set of counters.
#[derive(Clone)]
pub struct Server {
    site: Site,
    mode: Mode,
    tls: Arc<ServerConfig>,
    records_per_key: Option<u64>,
    dates: bool,
    counted: Arc<Mutex<CounterSet>>,
    /// Connections that have not ended.
    open: watch::Sender<usize>,
}

impl Server {
    /// Serves `site`; `tls` is for the modes that have TLS.
    pub fn new(site: Site, mode: Mode, mut tls: ServerConfig) -> Server {
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        let (counted, open) = (Arc::default(), watch::Sender::new(0));
        Server { site, mode, tls: Arc::new(tls), records_per_key: None, dates: true, counted, open }
    }

    /// Changes the transmit key of each connection after so many records.
    #[must_use]
    pub fn with_records_per_key(mut self, records: Option<u64>) -> Server {
        self.records_per_key = records;
        self
    }

    /// Leaves the time of day out of answers, so that two runs are the same.
    #[must_use]
    pub fn without_dates(mut self) -> Server {
        self.dates = false;
        self
    }

    /// What was counted on connections that have ended, TLS included.
    pub fn counters(&self) -> CounterSet {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ready when every connection has ended.
    pub async fn idle(&self) {
        let mut open = self.open.subscribe();
        // The sender is here: it cannot have gone.
        let _never_fails = open.wait_for(|open| *open == 0).await;
    }

    /// Listens at `port` of `host`, and gives what serves whoever comes until the listener fails.
    ///
    /// # Errors
    /// If the port is taken.
    pub fn listen(&self, host: &BedHost, port: u16) -> io::Result<impl Future<Output = io::Result<()>> + use<>> {
        let mut listener = host.stack().listen(port, BACKLOG)?;
        let (server, acceptor) = (self.clone(), host.clone());
        Ok(host.spawn("listener", async move {
            loop {
                let stream = listener.accept().await?;
                let (peer, server) = (stream.peer_addr(), server.clone());
                server.open.send_modify(|open| *open += 1);
                // A connection ends when it ends: nobody waits for it.
                let _ends_by_itself = acceptor.spawn("connection", async move {
                    if let Err(error) = server.converse(stream).await {
                        server.count(&HttpCounters { cut_off: 1, ..HttpCounters::default() });
                        if !peer_is_gone(&*error) {
                            eprintln!("{peer}: {error}");
                        }
                    }
                    server.open.send_modify(|open| *open -= 1);
                });
            }
        }))
    }

    async fn converse(&self, stream: TcpStream) -> Result<(), Failure> {
        if !self.mode.is_secure() {
            return Ok(self.speak(stream).await.0?);
        }
        let mut stream = ktls_offload::accept(stream, self.tls.clone()).await?;
        if let Some(records) = self.records_per_key {
            stream.set_records_per_key(records);
        }
        if self.mode == Mode::HttpsNic {
            stream.offload(Offload::BOTH);
        }
        let (ended, stream) = self.speak(stream).await;
        self.count(stream.counters());
        Ok(ended?)
    }

    /// Answers requests until there are no more; gives the stream back for what it counted.
    async fn speak<S: SegmentStream + AsyncRead + AsyncWrite>(&self, stream: S) -> (hyper::Result<()>, S) {
        let (stream, lent) = SharedWrites::new(stream);
        let service = service_fn(|request| {
            let (server, lent) = (self.clone(), lent.clone());
            let answer: Pin<Box<dyn Future<Output = Result<_, Infallible>> + Send>> =
                Box::pin(async move { Ok(server.answer(request, &lent).await) });
            answer
        });
        let mut connection = hyper::server::conn::http1::Builder::new()
            .auto_date_header(self.dates)
            .serve_connection(TokioIo::new(stream), service);
        let ended = poll_fn(|cx| connection.poll_without_shutdown(cx)).await;
        let stream = connection.into_parts().io.into_inner();
        self.count(stream.counters());
        let mut stream = stream.into_inner();
        match &ended {
            // A file that came to an early end must not look like a shorter one.
            Err(error) if error.is_user() => stream.abort(),
            _ => stream.finish(),
        }
        (ended, stream)
    }

    async fn answer(&self, request: Request<Incoming>, lent: &LentPieces) -> Response<Body> {
        let answer = self.site.answer(request, lent).await;
        let part = answer.status() == StatusCode::PARTIAL_CONTENT;
        self.count(&HttpCounters { requests: 1, parts: u64::from(part), ..HttpCounters::default() });
        answer
    }

    fn count(&self, counters: &dyn Counters) {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner).add(counters);
    }
}

/// Whether a connection just ended, as clients end theirs that have heard enough.
fn peer_is_gone(error: &(dyn core::error::Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let gone = [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
        if error.downcast_ref::<io::Error>().is_some_and(|error| gone.contains(&error.kind())) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Connections that may wait to be accepted.
const BACKLOG: usize = 1024;
