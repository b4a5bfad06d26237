//! `reservoir serve`. Clients arrive through a [`ClientSource`]: kernel TCP here, an emulated host's TCP in `emulated`.

use crate::emulated::HostOptions;
use crate::{FAILED, UNUSABLE, fail};
use clap::Args;
use core::num::NonZeroU64;
use core::pin::Pin;
use offload_reservoir::base::descriptors;
use offload_reservoir::dial::DialStream;
use offload_reservoir::pace::Rate;
use offload_reservoir::quic::quic_offload::{Config, Connection, Endpoint, ServerTls};
use offload_reservoir::quic::{self, LockedResetKey};
use offload_reservoir::rooted::Rooted;
use offload_reservoir::rustls::ServerConfig;
use offload_reservoir::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use offload_reservoir::tokens::Tokens;
use offload_reservoir::{Server, ServerLimits, Shell, tls};
#[cfg(feature = "third-party")]
use offload_reservoir::{
    quic::QuicDialer,
    tls::{AllowlistDialer, TlsDialer},
};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;

/// Serve a folder over HTTPS, by TLS 1.3 with AES-256-GCM
///
/// Supports GET with ranges, HEAD, and PUT of whole files or by Content-Range, with digests of RFC 9530 and RFC 3230.
/// No path leads out of the folder, neither by dots nor by links. Uploads appear under their names when complete.
///
/// SIGHUP reads the tokens again. SIGINT or SIGTERM ends the server; requests in progress get ten more seconds, or
/// until a second signal.
///
/// FILE of --tokens is TOML with a table for each token: `[[token]]` with name = "lab", sha256 = "..." (of the token:
/// `printf %s "$TOKEN" | sha256sum`), rights = ["read", "write"], and optionally path = "/incoming", rate = "2G",
/// expires = "2027-01-31T00:00:00Z".
///
/// With --tap or --dgram the server runs on an emulated host, whose NIC does the TLS. It listens on the port of
/// --listen there, and prints its counters at the end.
#[derive(Debug, Args)]
pub(crate) struct ServeOptions {
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:8443")]
    pub(crate) listen: SocketAddr,
    #[command(flatten)]
    pub(crate) host: HostOptions,
    /// Folder to serve
    #[arg(long, value_name = "FOLDER")]
    root: PathBuf,
    /// Certificate with the chain up to its authority (PEM)
    #[arg(long, value_name = "FILE")]
    cert: PathBuf,
    /// Key of the certificate (PEM)
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// File with the rights of tokens
    #[arg(long, value_name = "FILE", required_unless_present = "open_to_all")]
    tokens: Option<PathBuf>,
    /// Let all clients read and write all files, without a token
    #[arg(long, conflicts_with = "tokens")]
    open_to_all: bool,
    /// Serve over HTTP/3 too, on the UDP port of the same number
    #[arg(long)]
    http3: bool,
    /// Flow-control window of an HTTP/3 connection, for each direction
    #[arg(long, value_name = "SIZE", default_value_t = HTTP3_WINDOW, value_parser = window, requires = "http3")]
    http3_window: bytesize::ByteSize,
    /// Bypass the page cache (O_DIRECT) for large files, if the file system supports it
    #[arg(long)]
    direct: bool,
    /// Rate in bits per second at which the kernel paces the packets of each connection: 1G
    #[arg(long, value_name = "RATE", conflicts_with = "end")]
    pace: Option<Rate>,
    /// Log each request on standard error: peer, user, method, path, status
    #[arg(long)]
    log: bool,
    /// Allow copies from and to this server at a client's request (COPY): HOST or HOST:PORT, an IPv6 address in
    /// brackets; may be repeated
    #[cfg(feature = "third-party")]
    #[arg(long, value_name = "HOST", conflicts_with = "end")]
    tpc_allow: Vec<tls::Host>,
    /// Trusted authorities for these servers (PEM). Default: the system's
    #[cfg(feature = "third-party")]
    #[arg(long, value_name = "FILE", requires = "tpc_allow")]
    tpc_cacert: Option<PathBuf>,
    /// Use HTTP/3 with these servers, on the UDP port of the same number
    #[cfg(feature = "third-party")]
    #[arg(long, requires = "tpc_allow")]
    tpc_http3: bool,
    /// Maximum number of concurrent copies of this kind
    #[cfg(feature = "third-party")]
    #[arg(long, value_name = "COUNT", default_value_t = 8)]
    tpc_copies: usize,
    /// Maximum number of connections. A further one replaces a connection without a token, or else one without a
    /// request in progress
    #[arg(long, value_name = "COUNT", default_value_t = ServerLimits::defaults().connections)]
    max_connections: usize,
    /// Maximum number of unfinished files of a user
    #[arg(long, value_name = "COUNT", default_value_t = ServerLimits::defaults().uploads_of_a_user)]
    max_uploads: usize,
}

/// The reason for ending, as a text and an exit status.
pub(crate) type ExitReason = (String, u8);

pub(crate) fn unusable(error: impl ToString) -> ExitReason {
    (error.to_string(), UNUSABLE)
}

/// A source of clients.
pub(crate) trait ClientSource: Sized {
    /// Returns the address for the first line of output.
    fn address(&self) -> String;

    /// Waits for the next client, before its handshake.
    async fn next(&mut self) -> Result<(SocketAddr, HandshakeFuture), AcceptError>;
}

/// The reason for which no client arrives.
pub(crate) enum AcceptError {
    /// A temporary error, such as a lack of descriptors.
    Now(io::Error),
    /// A permanent error, such as a deleted TAP device. Kernel TCP has none.
    #[cfg_attr(not(feature = "tap"), expect(dead_code, reason = "the kernel's TCP stays"))]
    AnyMore(io::Error),
}

/// A pending handshake. `None` if the client left or does not support this TLS version.
pub(crate) type HandshakeFuture = Pin<Box<dyn Future<Output = Option<Box<dyn DialStream>>> + Send>>;

/// Serves over kernel TCP.
pub(crate) async fn run(options: ServeOptions) -> ExitCode {
    let served = async {
        let listener = TcpListener::bind(options.listen).await;
        let listener = listener.map_err(|error| unusable(format!("{}: {error}", options.listen)))?;
        let acceptor = TlsAcceptor::from(Arc::new(options.tls()?));
        let mut kept = None;
        let address = listener.local_addr().map_err(unusable)?;
        let http3 = match options.http3(address)? {
            Some(http3) => {
                let listening = quic::listen(address, http3.tls, http3.config);
                kept = http3.kept;
                Some(listening.map_err(|error| unusable(format!("{address}, UDP: {error}")))?)
            }
            None => None,
        };
        let served = serve(&options, KernelListener { listener, acceptor, pace: options.pace }, http3, "").await;
        drop(kept);
        served
    };
    match served.await {
        Ok(()) => ExitCode::SUCCESS,
        Err((message, status)) => fail(&message, status),
    }
}

/// Serves the clients of `door` until a signal, or until the door fails. `instructions` follow the first line of
/// output.
pub(crate) async fn serve(
    options: &ServeOptions,
    mut door: impl ClientSource,
    http3: Option<Endpoint>,
    instructions: &str,
) -> Result<(), ExitReason> {
    let server = options.server()?;
    // Signal handlers are installed before the first line tells that the server is ready.
    let mut hangup = signal(SignalKind::hangup()).map_err(unusable)?;
    let mut signals = Signals::listen().map_err(unusable)?;
    crate::print(&format!("{} at https://{}/\n{instructions}", options.root.display(), door.address()));

    // Each connection holds a sender, so the receiver learns when all connections have ended.
    let (open, mut all_gone) = mpsc::channel::<()>(1);
    let mut takes_http3 = http3.as_ref();
    let ended = loop {
        tokio::select! {
            biased;
            () = signals.end() => break Ok(()),
            _ = hangup.recv() => reload(&server, options.tokens.as_deref()),
            came = next_of(takes_http3) => match came {
                Some(connection) => {
                    let (server, open) = (server.clone(), open.clone());
                    tokio::spawn(async move {
                        server.serve_http3(connection).await;
                        drop(open);
                    });
                }
                None => {
                    let why = takes_http3.and_then(Endpoint::failure).map_or("the endpoint is closed".into(), |why| why.to_string());
                    offload_console::say!("reservoir: no more HTTP/3 until the server is restarted: {why}");
                    takes_http3 = None;
                }
            },
            came = door.next() => match came {
                Ok((peer, handshake)) => welcome(&server, peer, handshake, open.clone()),
                Err(AcceptError::AnyMore(error)) => break Err((error.to_string(), FAILED)),
                Err(AcceptError::Now(error)) => {
                    offload_console::say!("reservoir: {error}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
        }
    };
    drop((door, open));
    server.close();
    if ended.is_ok() {
        tokio::select! {
            biased;
            _ = all_gone.recv() => {}
            () = signals.end() => {}
            () = tokio::time::sleep(FAREWELL) => {}
        }
    }
    if let Some(endpoint) = http3 {
        endpoint.close(NO_ERROR, "");
        let _ = tokio::time::timeout(GOODBYE, endpoint.drained()).await;
    }
    ended
}

impl ServeOptions {
    fn server(&self) -> Result<Server, ExitReason> {
        let root = Rooted::open(&self.root).map_err(|error| unusable(format!("{}: {error}", self.root.display())))?;
        let mut limits = ServerLimits::default();
        (limits.connections, limits.uploads_of_a_user) = (self.connections()?, self.max_uploads);
        let mut server = Server::new(Arc::new(root.direct(self.direct)), Shell::tokio(), limits);
        if self.open_to_all {
            server = server.open_to_all();
        }
        if self.log {
            server = server.with_log(Arc::new(|line: &str| offload_console::say!("{line}")));
        }
        #[cfg(feature = "third-party")]
        if !self.tpc_allow.is_empty() {
            let trusted = crate::copy::authorities(self.tpc_cacert.as_deref()).map_err(unusable)?;
            let wrong = |error| unusable(format!("the authorities: {error}"));
            let tls = || -> Result<TlsDialer, ExitReason> {
                Ok(TlsDialer::new(Arc::new(tls::client_config(trusted.clone(), None).map_err(wrong)?)))
            };
            let mut dial = AllowlistDialer::new(tls()?, self.tpc_allow.clone());
            if self.tpc_http3 {
                let quic = quic::client_tls(trusted.clone(), None).map_err(wrong)?;
                dial = dial.by_http3(QuicDialer::new(tls()?, quic, self.http3_window.0 as u32));
            }
            server = server.with_third_party(Arc::new(dial), self.tpc_copies);
        }
        if let Some(file) = &self.tokens {
            server.set_tokens(read_tokens(file).map_err(unusable)?);
        }
        Ok(server)
    }

    /// Returns the number of connections that the limit of open files allows, at most `--max-connections`.
    fn connections(&self) -> Result<usize, ExitReason> {
        let about = |error| unusable(format!("the limit of open files cannot be raised: {error}"));
        let Some(limit) = descriptors::raise_limit().map_err(about)? else { return Ok(self.max_connections) };
        // A connection has a socket, and a file with its journal. With --direct, a file is opened twice.
        let of_connection = if self.direct { 4 } else { 3 };
        // Uploads between requests have open files too.
        let others = OTHER_FILES + 2 * self.max_uploads as u64;
        let fit = (limit.saturating_sub(others.min(limit / 2)) / of_connection) as usize;
        if fit >= self.max_connections {
            return Ok(self.max_connections);
        }
        let needed = self.max_connections as u64 * of_connection + others;
        let said = format!(
            "the hard limit of {limit} open files is enough for {fit} connections, and not for {}",
            self.max_connections
        );
        let remedy = format!("raise it to {needed} (ulimit -Hn, LimitNOFILE of systemd), or lower --max-connections");
        if fit == 0 {
            return Err(unusable(format!("{said}: {remedy}")));
        }
        // Standard error may be closed or full.
        let _ = writeln!(io::stderr(), "reservoir: {said}, so at most {fit} are served at a time: {remedy}");
        Ok(fit)
    }

    /// Returns the configuration of HTTP/3 at `address`, if requested.
    pub(crate) fn http3(&self, address: SocketAddr) -> Result<Option<Http3Options>, ExitReason> {
        if !self.http3 {
            return Ok(None);
        }
        let (chain, key) = self.identity()?;
        let kept = quic::reset_key(&self.root, address);
        let kept = kept
            .inspect_err(|error| {
                offload_console::say!(
                    "reservoir: {error}: HTTP/3 clients will notice a restarted server only after ten seconds"
                )
            })
            .ok();
        let reset_key = kept.as_ref().map(|kept| kept.key.clone());
        let tls = quic::server_tls(chain, key);
        let tls = tls.map_err(|error| unusable(format!("{}: {error}", self.cert.display())))?;
        let max_connections = self.max_connections;
        let pacing_rate = self.pace.and_then(|rate| NonZeroU64::new(rate.as_bits() / 8));
        let config = quic::config(self.http3_window.0 as u32)
            .with(|c| (c.max_connections, c.reset_key, c.pacing_rate) = (max_connections, reset_key, pacing_rate));
        Ok(Some(Http3Options { tls, config, kept }))
    }

    fn identity(&self) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), ExitReason> {
        Ok((tls::certificates(&self.cert).map_err(unusable)?, tls::key(&self.key).map_err(unusable)?))
    }

    /// Returns the TLS configuration.
    pub(crate) fn tls(&self) -> Result<ServerConfig, ExitReason> {
        let (chain, key) = self.identity()?;
        tls::server_config(chain, key).map_err(|error| unusable(format!("{}: {error}", self.cert.display())))
    }
}

/// The configuration of HTTP/3.
pub(crate) struct Http3Options {
    pub(crate) tls: ServerTls,
    pub(crate) config: Config,
    /// The lock of the reset key, held while serving.
    pub(crate) kept: Option<LockedResetKey>,
}

/// Waits for the next HTTP/3 connection, forever without an endpoint. Returns `None` if there will be no more.
async fn next_of(endpoint: Option<&Endpoint>) -> Option<Connection> {
    match endpoint {
        Some(endpoint) => endpoint.accept().await,
        None => core::future::pending().await,
    }
}

/// Parses the flow-control window of an HTTP/3 connection, within the bounds of its configuration.
pub(crate) fn window(text: &str) -> Result<bytesize::ByteSize, String> {
    let size = text.parse::<bytesize::ByteSize>().ok().filter(|size| (64 << 10..=2 << 30).contains(&size.0));
    size.ok_or_else(|| "takes a size from 64KiB to 2GiB".to_owned())
}

/// Kernel TCP, with TLS on the CPU.
struct KernelListener {
    listener: TcpListener,
    acceptor: TlsAcceptor,
    pace: Option<Rate>,
}

impl ClientSource for KernelListener {
    fn address(&self) -> String {
        self.listener.local_addr().map_or_else(|error| error.to_string(), |address| address.to_string())
    }

    async fn next(&mut self) -> Result<(SocketAddr, HandshakeFuture), AcceptError> {
        let (stream, peer) = self.listener.accept().await.map_err(AcceptError::Now)?;
        let acceptor = self.acceptor.clone();
        tls::pace(&stream, self.pace);
        let handshake = async move {
            // An optimization only: without it small responses are delayed.
            let _ = stream.set_nodelay(true);
            acceptor.accept(stream).await.ok().map(|stream| Box::new(stream) as Box<dyn DialStream>)
        };
        Ok((peer, Box::pin(handshake)))
    }
}

fn welcome(server: &Server, peer: SocketAddr, handshake: HandshakeFuture, open: mpsc::Sender<()>) {
    // Without a slot the stream is closed.
    let Some(slot) = server.enter(peer.ip()) else { return };
    let server = server.clone();
    tokio::spawn(async move {
        let shaken = slot.unless_revoked(tokio::time::timeout(HANDSHAKE, handshake)).await;
        if let Some(Ok(Some(stream))) = shaken {
            server.serve_in(slot, stream, &peer.to_string()).await;
        }
        drop(open);
    });
}

fn read_tokens(file: &Path) -> Result<Tokens, String> {
    let about = |error: String| format!("{}: {error}", file.display());
    let text = std::fs::read_to_string(file).map_err(|error| about(error.to_string()))?;
    Tokens::read(&text).map_err(about)
}

fn reload(server: &Server, file: Option<&Path>) {
    match file.map(read_tokens) {
        Some(Ok(tokens)) => {
            server.set_tokens(tokens);
            offload_console::say!("reservoir: tokens were read again");
        }
        Some(Err(error)) => offload_console::say!("reservoir: the tokens stay as they were: {error}"),
        None => {}
    }
}

struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn listen() -> std::io::Result<Signals> {
        Ok(Signals { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Waits for a signal to end.
    async fn end(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Default flow-control window of an HTTP/3 connection.
pub(crate) const HTTP3_WINDOW: bytesize::ByteSize = bytesize::ByteSize(16 << 20);
/// HTTP/3's code for an end without an error (RFC 9114 section 8.1).
const NO_ERROR: u64 = 0x100;
/// Time for telling HTTP/3 clients about the end.
const GOODBYE: Duration = Duration::from_secs(2);
/// Open files besides the files of connections and uploads: listening sockets, the root, and the runtime's own.
const OTHER_FILES: u64 = 64;
/// Time limit of a TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Time for requests in progress at the end.
pub(crate) const FAREWELL: Duration = Duration::from_secs(10);
