//! A client that fetches from a web server, over plain TCP or over TLS, on one persistent connection.

use super::WebFailure;
use bytes::Bytes;
use core::future::poll_fn;
use core::net::SocketAddr;
use core::time::Duration;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{HOST, RANGE};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use ktls_offload::{KtlsStream, Offload};
use offload_api::SegmentStream;
use offload_base::counters::CounterSet;
use offload_host_stack::{TcpState, TcpStream};
use offload_testbed::{BedHost, JoinHandle};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};

/// TLS settings of a client.
#[derive(Clone)]
pub struct HttpsClientTls {
    /// The configuration with the trusted authorities.
    pub config: Arc<ClientConfig>,
    /// The expected name of the server.
    pub name: ServerName<'static>,
    /// Whether the NIC encrypts and decrypts.
    pub nic: bool,
    /// Number of records after which the client updates its key.
    pub records_per_key: Option<u64>,
}

/// A connection to a web server.
pub struct Session {
    requests: SendRequest<Empty<Bytes>>,
    driver: JoinHandle<(hyper::Result<()>, Box<dyn CountedClose>)>,
    authority: String,
    /// The negotiated cipher suite; empty without TLS.
    suite: String,
}

impl Session {
    /// Connects `host` to the server of `authority` at `to`.
    ///
    /// # Errors If nobody listens, or the handshake fails, for example because the certificate is not trusted.
    pub async fn open(
        host: &BedHost,
        to: SocketAddr,
        authority: &str,
        tls: Option<HttpsClientTls>,
    ) -> Result<Session, WebFailure> {
        let stream = host.stack().connect(None, to).await?;
        let Some(tls) = tls else {
            let state = |stream: &TcpStream| stream.stats().state;
            return Session::over(host, stream, authority, |_| CounterSet::default(), state).await;
        };
        let mut stream = ktls_offload::connect(stream, tls.config, tls.name).await?;
        if let Some(records) = tls.records_per_key {
            stream.set_records_per_key(records);
        }
        if tls.nic {
            stream.offload(Offload::BOTH);
        }
        let suite = stream.negotiated().suite.map_or_else(String::new, |suite| format!("{suite:?}"));
        let count = |stream: KtlsStream<TcpStream>| {
            let mut set = CounterSet::default();
            set.add(&stream.into_counters());
            set
        };
        let state = |stream: &KtlsStream<TcpStream>| stream.get_ref().stats().state;
        Ok(Session { suite, ..Session::over(host, stream, authority, count, state).await? })
    }

    async fn over<S: SegmentStream + AsyncRead + AsyncWrite + 'static>(
        host: &BedHost,
        stream: S,
        authority: &str,
        count: fn(S) -> CounterSet,
        state: fn(&S) -> TcpState,
    ) -> Result<Session, WebFailure> {
        let (requests, mut connection) = http1::handshake(TokioIo::new(stream)).await?;
        // The transport is returned from the task instead of dropped, because its counters and its closing state are
        // read later.
        let driver = host.spawn("http", async move {
            let ended = poll_fn(|cx| connection.poll_without_shutdown(cx)).await;
            let mut stream = connection.into_parts().io.into_inner();
            // Only the sending direction is closed: the server may still send its own end.
            stream.finish();
            let closing: Box<dyn CountedClose> = Box::new(ClosingStream { stream, count, state });
            (ended, closing)
        });
        Ok(Session { requests, driver, authority: authority.into(), suite: String::new() })
    }

    /// Returns the cipher suite by its rustls name; empty without TLS.
    pub fn suite(&self) -> &str {
        &self.suite
    }

    /// Requests `path`, or the part of it that `range` names (`bytes=0-99`).
    ///
    /// # Errors If the connection fails.
    pub async fn get(&mut self, path: &str, range: Option<&str>) -> Result<Response<Incoming>, WebFailure> {
        let mut request = Request::get(path).header(HOST, &self.authority);
        if let Some(range) = range {
            request = request.header(RANGE, range);
        }
        let request = request.body(Empty::new())?;
        self.requests.ready().await?;
        Ok(self.requests.send_request(request).await?)
    }

    /// Ends the connection and returns its TLS counters.
    ///
    /// # Errors If the connection had failed.
    pub async fn close(self) -> Result<CounterSet, WebFailure> {
        drop(self.requests);
        let (ended, closing) = self.driver.await;
        ended?;
        Ok(closing.counted())
    }

    /// Ends the connection like [`close`](Self::close), and waits until the server has closed its end and has the
    /// acknowledgment of that, but at most for `patience`. For programs that end together with their host.
    ///
    /// # Errors If the connection had failed.
    pub async fn close_both_sides(self, host: &BedHost, patience: Duration) -> Result<CounterSet, WebFailure> {
        drop(self.requests);
        let (ended, closing) = self.driver.await;
        let until = host.now() + patience;
        while !matches!(closing.state(), TcpState::TimeWait | TcpState::Closed) && host.now() < until {
            host.runtime().sleep(A_MOMENT).await;
        }
        // The last acknowledgment has left the stack and still has to leave the NIC.
        host.runtime().sleep(A_MOMENT).await;
        ended?;
        Ok(closing.counted())
    }
}

/// A connection that is being closed.
trait CountedClose: Send {
    fn state(&self) -> TcpState;
    /// Drops the stream and returns its TLS counters.
    fn counted(self: Box<Self>) -> CounterSet;
}

struct ClosingStream<S> {
    stream: S,
    count: fn(S) -> CounterSet,
    state: fn(&S) -> TcpState,
}

impl<S: Send> CountedClose for ClosingStream<S> {
    fn state(&self) -> TcpState {
        (self.state)(&self.stream)
    }

    fn counted(self: Box<Self>) -> CounterSet {
        (self.count)(self.stream)
    }
}

/// Passes each chunk of an answer's body to `take`, in order, and returns the number of bytes.
///
/// # Errors If the body is cut off; errors of `take`.
pub async fn read_body(
    response: Response<Incoming>,
    mut take: impl FnMut(&[u8]) -> Result<(), WebFailure>,
) -> Result<u64, WebFailure> {
    let mut body = response.into_body();
    let mut bytes = 0;
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            bytes += data.len() as u64;
            take(&data)?;
        }
    }
    Ok(bytes)
}

/// Interval of checks of a connection that is being closed.
const A_MOMENT: Duration = Duration::from_millis(10);
