//! `reservoir serve`.

use crate::{UNUSABLE, fail};
use clap::Args;
use offload_reservoir::rooted::Rooted;
use offload_reservoir::tls::{Allowed, Tls};
use offload_reservoir::tokens::Tokens;
use offload_reservoir::{Limits, Server, Shell, tls};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;

/// Serve a folder over HTTPS, by TLS 1.3 with AES-256-GCM
///
/// GET with ranges, HEAD, PUT whole or by Content-Range; digests as RFC 9530 and RFC 3230 have them. No path leads out of the
/// folder, neither by dots nor by links. Uploads appear under their names once they are whole.
///
/// SIGHUP reads the tokens again. SIGINT or SIGTERM ends it; requests under way have ten more seconds, or until a second one.
///
/// FILE of --tokens is TOML, a table for each token: `[[token]]` with name = "lab", sha256 = "..." (of the token: `printf %s "$TOKEN" |
/// sha256sum`), rights = ["read", "write"], and if wanted path = "/incoming", rate = "2G", expires = "2027-01-31T00:00:00Z".
#[derive(Debug, Args)]
pub(crate) struct ServeOptions {
    /// Where to listen
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:8443")]
    listen: SocketAddr,
    /// The folder
    #[arg(long, value_name = "FOLDER")]
    root: PathBuf,
    /// The certificate, and the chain up to its authority (PEM)
    #[arg(long, value_name = "FILE")]
    cert: PathBuf,
    /// Its key (PEM)
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// Who may do what
    #[arg(long, value_name = "FILE", required_unless_present = "open_to_all")]
    tokens: Option<PathBuf>,
    /// Everybody may read and write everything, without a token
    #[arg(long, conflicts_with = "tokens")]
    open_to_all: bool,
    /// Tell of each request on standard error: peer, user, method, path, status
    #[arg(long)]
    log: bool,
    /// Copy files from and to this server when a client asks for it (COPY): HOST or HOST:PORT, an address of IPv6 in brackets; may be given several times
    #[arg(long, value_name = "HOST")]
    tpc_allow: Vec<tls::Host>,
    /// The authorities to trust with those servers (PEM). Default: those of this machine
    #[arg(long, value_name = "FILE", requires = "tpc_allow")]
    tpc_cacert: Option<PathBuf>,
    /// Such copies at a time
    #[arg(long, value_name = "COUNT", default_value_t = 8)]
    tpc_copies: usize,
    /// Connections at a time; more are closed
    #[arg(long, value_name = "COUNT", default_value_t = Limits::usual().connections)]
    max_connections: usize,
    /// Unfinished files of a user
    #[arg(long, value_name = "COUNT", default_value_t = Limits::usual().uploads_of_a_user)]
    max_uploads: usize,
}

pub(crate) async fn run(options: ServeOptions) -> ExitCode {
    match serve(options).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => fail(&message, UNUSABLE),
    }
}

async fn serve(options: ServeOptions) -> Result<(), String> {
    let root = Rooted::open(&options.root).map_err(|error| format!("{}: {error}", options.root.display()))?;
    let mut limits = Limits::default();
    (limits.connections, limits.uploads_of_a_user) = (options.max_connections, options.max_uploads);
    let mut server = Server::new(Arc::new(root), Shell::tokio(), limits);
    if options.open_to_all {
        server = server.open_to_all();
    }
    if options.log {
        server = server.with_log(Arc::new(|line: &str| eprintln!("{line}")));
    }
    if !options.tpc_allow.is_empty() {
        let trusted = crate::copy::authorities(options.tpc_cacert.as_deref())?;
        let config = tls::client_config(trusted, None).map_err(|error| format!("the authorities: {error}"))?;
        let dial = Allowed::new(Tls::new(Arc::new(config)), options.tpc_allow.clone());
        server = server.with_third_party(Arc::new(dial), options.tpc_copies);
    }
    if let Some(file) = &options.tokens {
        server.set_tokens(read_tokens(file)?);
    }
    let config = tls::server_config(tls::certificates(&options.cert)?, tls::key(&options.key)?);
    let config = config.map_err(|error| format!("{}: {error}", options.cert.display()))?;
    // Signals are heard before anybody can know that it serves.
    let signals = |error: std::io::Error| format!("signals: {error}");
    let mut hangup = signal(SignalKind::hangup()).map_err(signals)?;
    let mut signals = Signals::listen().map_err(signals)?;
    let listener = TcpListener::bind(options.listen).await.map_err(|error| format!("{}: {error}", options.listen))?;
    let address = listener.local_addr().map_err(|error| error.to_string())?;
    println!("{} at https://{address}/", options.root.display());

    let acceptor = TlsAcceptor::from(Arc::new(config));
    // Each connection holds one end: the other is told when all have gone.
    let (open, mut all_gone) = mpsc::channel::<()>(1);
    loop {
        tokio::select! {
            biased;
            () = signals.end() => break,
            _ = hangup.recv() => reload(&server, options.tokens.as_deref()),
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => welcome(&server, &acceptor, stream, peer, open.clone()),
                // Out of descriptors, for example: others will end.
                Err(error) => {
                    eprintln!("reservoir: {error}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
        }
    }
    drop((listener, open));
    server.close();
    tokio::select! {
        biased;
        _ = all_gone.recv() => {}
        () = signals.end() => {}
        () = tokio::time::sleep(FAREWELL) => {}
    }
    Ok(())
}

fn welcome(server: &Server, acceptor: &TlsAcceptor, stream: TcpStream, peer: SocketAddr, open: mpsc::Sender<()>) {
    // Without a place the stream is closed.
    let Some(place) = server.enter() else { return };
    let (server, acceptor) = (server.clone(), acceptor.clone());
    tokio::spawn(async move {
        // A wish: without it small answers come later.
        let _not_granted = stream.set_nodelay(true);
        if let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
            server.serve(stream, &peer.to_string()).await;
        }
        drop((place, open));
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
            eprintln!("reservoir: tokens were read again");
        }
        Some(Err(error)) => eprintln!("reservoir: the tokens stay as they were: {error}"),
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

    /// Ready when somebody wants the program to end.
    async fn end(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// For a TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// For requests under way at the end.
const FAREWELL: Duration = Duration::from_secs(10);
