//! QUIC over the kernel's UDP, under HTTP/3: packets are sealed and opened by the CPU. On an emulated host its NIC does that.

use crate::pace::Rate;
use crate::pin::Pin;
use crate::remote::{Dial, Dialed, QuicDialed};
use crate::tls::{self, Tls};
use core::num::NonZeroU64;
use core::time::Duration;
use quic_offload::http3::ALPN;
use quic_offload::{Closed, Config, Connection, Endpoint, ResetKey, ServerTls, TokioDatagrams, TokioTimers};
use rustix::net::sockopt::set_socket_recv_buffer_size;
use rustix::system::uname;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use tokio::net::UdpSocket;

pub use quic_offload::{self, ClientTls};

/// A server with this certificate, the chain up to its authority, and its key: AES-256-GCM.
///
/// See [`Quic`] for an example.
///
/// # Errors
/// If they do not belong together.
pub fn server_tls(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ServerTls, rustls::Error> {
    let config = tls::server_of(tls::provider_of_quic(), chain, key, ALPN)?;
    ServerTls::new(config).map_err(|error| rustls::Error::General(error.to_string()))
}

/// A client that trusts these authorities, and of what they signed only what `pin` names, if there is one.
///
/// See [`Quic`] for an example.
///
/// # Errors
/// If one of the authorities is none.
pub fn client_tls(authorities: Vec<CertificateDer<'static>>, pin: Option<Pin>) -> Result<ClientTls, rustls::Error> {
    let config = tls::client_of(tls::provider_of_quic(), authorities, pin, ALPN)?;
    ClientTls::new(config).map_err(|error| rustls::Error::General(error.to_string()))
}

/// Connections for bulk transfer, on each of which a peer may send `window` bytes before they are read, and as many are kept until it
/// has acknowledged them.
///
/// ```
/// assert_eq!(offload_reservoir::quic::config(64 << 20).receive_window, 64 << 20);
/// ```
pub fn config(window: u32) -> Config {
    Config { streams: STREAMS, stream_window: window, receive_window: window, send_window: window, ..Config::default() }
}

/// The key with which a server at `address` of this machine resets the connections of one before it there, which had the same private key:
/// their clients ask again at once, over new connections.
///
/// ```
/// use offload_reservoir::quic::{config, quic_offload::Config, reset_key};
///
/// # fn example(key: &rustls::pki_types::PrivateKeyDer<'static>) {
/// let address = "0.0.0.0:8443".parse().unwrap();
/// let config = Config { reset_key: Some(reset_key(key, address)), ..config(16 << 20) };
/// # }
/// ```
pub fn reset_key(key: &PrivateKeyDer<'_>, address: SocketAddr) -> ResetKey {
    // Other machines may have the same private key, and listen at any address of theirs.
    let machine = uname();
    let server = [machine.nodename().to_bytes(), address.to_string().as_bytes()].join(&b'\n');
    ResetKey::derive(key.secret_der(), &server)
}

/// Listens at `address`; connections are taken while the runtime runs, until the endpoint is closed, or [fails](Endpoint::failure).
///
/// See [`Quic`] for an example.
///
/// # Errors
/// If the port is taken.
///
/// # Panics
/// Outside of a tokio runtime.
pub async fn listen(address: SocketAddr, tls: ServerTls, config: Config) -> io::Result<Endpoint> {
    run(UdpSocket::bind(address).await?, config, Some(tls))
}

fn run(socket: UdpSocket, config: Config, tls: Option<ServerTls>) -> io::Result<Endpoint> {
    // A wish, which the kernel grants as far as its limit: what comes in a burst, and is lost, comes again.
    let _granted_in_part = set_socket_recv_buffer_size(&socket, BUFFER);
    let timers = Arc::new(TokioTimers::current());
    let (endpoint, driver) = Endpoint::new(TokioDatagrams::new(socket)?, timers, config, tls)?;
    tokio::spawn(async move {
        // Its connections are told as well.
        if let Err(error) = driver.await {
            tracing::error!(%error, "a UDP socket failed, and HTTP/3 ended on it");
        }
    });
    Ok(endpoint)
}

/// Connects by QUIC, and by TLS over TCP to what speaks no HTTP/3, such as buckets.
///
/// ```
/// use offload_reservoir::copy::{Copy, Place};
/// use offload_reservoir::quic::{self, Quic, client_tls, server_tls};
/// use offload_reservoir::rooted::Rooted;
/// use offload_reservoir::tls::{Tls, client_config};
/// use offload_reservoir::{Limits, Server, Shell};
/// use std::sync::Arc;
///
/// # let there = tempfile::tempdir()?;
/// # let there = there.path();
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn serve(there: &std::path::Path) -> Result<(), Box<dyn core::error::Error>> {
/// let signed = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
/// let certificate = signed.cert.der().clone();
/// let key = rustls::pki_types::PrivatePkcs8KeyDer::from(signed.signing_key.serialize_der());
/// std::fs::write(there.join("film"), [7; 100_000])?;
/// let server = Server::new(Arc::new(Rooted::open(there)?), Shell::tokio(), Limits::default()).open_to_all();
/// let tls = server_tls(vec![certificate.clone()], key.into())?;
/// // The port is one that is free.
/// let address = std::net::UdpSocket::bind("127.0.0.1:0")?.local_addr()?;
/// let endpoint = quic::listen(address, tls, quic::config(16 << 20)).await?;
/// tokio::spawn(async move {
///     while let Some(connection) = endpoint.accept().await {
///         let server = server.clone();
///         tokio::spawn(async move { server.serve_http3(connection).await });
///     }
/// });
/// let tls = Tls::new(Arc::new(client_config(vec![certificate.clone()], None)?));
/// let dial = Quic::new(tls, client_tls(vec![certificate], None)?, 16 << 20);
/// let copy = Copy::new(Shell::tokio(), Arc::new(dial));
/// let from = Place::parse(&format!("https://localhost:{}/film", address.port()), None)?;
/// let outcome = copy.run(&[from], &Place::local(&there.join("copy of film"))?).await?;
/// assert_eq!((outcome.copied, outcome.failed.len()), (1, 0), "{:?}", outcome.failed);
/// assert_eq!(std::fs::read(there.join("copy of film"))?, [7; 100_000]);
/// # Ok(())
/// # }
/// # serve(there)?;
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
pub struct Quic {
    tls: Tls,
    quic: ClientTls,
    window: u32,
    pacing_rate: Option<NonZeroU64>,
}

impl Quic {
    /// With these configurations, and connections as [`config`] makes them.
    pub fn new(tls: Tls, quic: ClientTls, window: u32) -> Quic {
        Quic { tls, quic, window, pacing_rate: None }
    }

    /// Has each connection send its packets one after the other, no faster than this.
    #[must_use]
    pub fn paced(mut self, rate: Option<Rate>) -> Quic {
        self.pacing_rate = rate.and_then(|rate| NonZeroU64::new(rate.as_bits() / 8));
        self
    }

    /// The first that answers.
    pub(crate) async fn greet_one_of(
        &self,
        host: &str,
        addresses: impl IntoIterator<Item = SocketAddr>,
    ) -> io::Result<Connection> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, format!("{host}: has no address"));
        for address in addresses {
            match self.greet(host, address).await {
                Ok(connection) => return Ok(connection),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn greet(&self, host: &str, address: SocketAddr) -> io::Result<Connection> {
        let any = match address {
            SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
        };
        // A machine that is gone is told by silence alone. A slow disk is no silence.
        let (keep_alive, pacing_rate) = (Some(KEEP_ALIVE), self.pacing_rate);
        let config = Config { keep_alive, idle: SILENCE, pacing_rate, ..config(self.window) };
        let endpoint = run(UdpSocket::bind(any).await?, config, None)?;
        let connection = endpoint.connect(&self.quic, address, host).map_err(io::Error::other)?.await;
        let connection = connection.map_err(|closed| match closed {
            // Certificates that are wrong stay wrong.
            Closed::Protocol(_) => io::Error::new(io::ErrorKind::InvalidData, closed),
            closed => closed.into(),
        })?;
        let held = connection.clone();
        tokio::spawn(async move {
            held.closed().await;
            endpoint.close(0, "");
        });
        Ok(connection)
    }
}

impl Dial for Quic {
    fn dial<'a>(&'a self, host: &'a str, port: u16) -> Dialed<'a> {
        self.tls.dial(host, port)
    }

    fn speaks_quic(&self, _: &str, _: u16) -> bool {
        true
    }

    fn quic<'a>(&'a self, host: &'a str, port: u16) -> QuicDialed<'a> {
        Box::pin(async move {
            let addresses = tokio::net::lookup_host((host, port)).await?;
            self.greet_one_of(host, addresses).await
        })
    }
}

/// Of a socket, for what arrives while the endpoint is busy.
const BUFFER: usize = 8 << 20;
/// Requests of a connection at a time.
const STREAMS: u32 = 256;
const KEEP_ALIVE: Duration = Duration::from_secs(4);
/// After which a server is asked over a new connection.
const SILENCE: Duration = Duration::from_secs(10);
