//! HTTP/3 over QUIC on kernel UDP, sealed and opened by the CPU. (On an emulated host, the NIC does that.)

use crate::dial::{Dial, DialFuture, QuicDialFuture};
use crate::digest::hexadecimal;
use crate::name::RESERVED;
use crate::pace::Rate;
use crate::pin::Pin;
use crate::tls::{self, TlsDialer};
use core::num::NonZeroU64;
use core::time::Duration;
use offload_base::RandomSource;
use quic_offload::http3::ALPN;
use quic_offload::{Closed, Config, Connection, Endpoint, ResetKey, ServerTls, TokioDatagrams, TokioEndpoint};
use rustix::fs::OFlags;
use rustix::system::uname;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::fs::{File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

pub use quic_offload::{self, ClientTls};

/// Creates a server's TLS configuration with AES-256-GCM from a certificate chain and its key.
///
/// See [`QuicDialer`] for an example.
///
/// # Errors
/// If the key does not match the certificate.
pub fn server_tls(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ServerTls, rustls::Error> {
    let config = tls::server_of(tls::provider_of_quic(), chain, key, ALPN)?;
    ServerTls::new(config).map_err(|error| rustls::Error::General(error.to_string()))
}

/// Creates a client's TLS configuration that trusts `authorities` and, if `pin` is set, only the pinned certificate.
///
/// See [`QuicDialer`] for an example.
///
/// # Errors
/// If one of the authorities is not a CA certificate.
pub fn client_tls(authorities: Vec<CertificateDer<'static>>, pin: Option<Pin>) -> Result<ClientTls, rustls::Error> {
    let config = tls::client_of(tls::provider_of_quic(), authorities, pin, ALPN)?;
    ClientTls::new(config).map_err(|error| rustls::Error::General(error.to_string()))
}

/// Returns a configuration for bulk transfer. On each connection, a peer may send `window` bytes ahead of the reader,
/// and as many sent bytes are kept until acknowledged.
///
/// ```
/// assert_eq!(offload_reservoir::quic::config(64 << 20).receive_window, 64 << 20);
/// ```
pub fn config(window: u32) -> Config {
    Config::default()
        .with(|c| (c.streams, c.stream_window, c.receive_window, c.send_window) = (STREAMS, window, window, window))
}

/// Returns the key with which a server of the folder `root` at `address` of this machine resets connections of its
/// predecessor, so that clients reconnect at once. The key is derived from a secret, which is created on first use in a
/// hidden file of the folder.
///
/// ```
/// use offload_reservoir::quic::{config, quic_offload::Config, reset_key};
///
/// # let there = tempfile::tempdir()?;
/// # let there = there.path();
/// let kept = reset_key(there, "0.0.0.0:8443".parse().unwrap())?;
/// let config = config(16 << 20).with(|c| c.reset_key = Some(kept.key.clone()));
/// assert!(reset_key(there, "0.0.0.0:8443".parse().unwrap()).is_err(), "only one server at a time has the key");
/// # drop(config);
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// If the secret cannot be stored, other users may read it, or another server holds it.
pub fn reset_key(root: &Path, address: SocketAddr) -> io::Result<LockedResetKey> {
    // Servers on several machines may share a folder. Cloned machines still differ in their machine id.
    let machine = std::fs::read("/etc/machine-id").unwrap_or_default();
    let server = [uname().nodename().to_bytes(), machine.trim_ascii(), address.to_string().as_bytes()].join(&b'\n');
    let of_server = hexadecimal(&blake3::hash(&server).as_bytes()[..12]);
    let path = root.join(format!("{RESERVED}{of_server}.reset-key"));
    let about = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let (secret, file) = secret_in(&path).map_err(about)?;
    Ok(LockedResetKey { key: ResetKey::derive(&secret, &server), _locked: file })
}

/// A stored key with an exclusive lock: no other server gets the key while this value exists.
///
/// See [`reset_key`] for an example.
pub struct LockedResetKey {
    /// The key.
    pub key: ResetKey,
    _locked: File,
}

/// Returns the secret in a file. Creates the secret if the file is missing.
fn secret_in(path: &Path) -> io::Result<(ServerSecret, File)> {
    let mut options = File::options();
    options.read(true).write(true).mode(0o600).custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32);
    let mut file = options.create(true).truncate(false).open(path)?;
    file.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => io::Error::new(io::ErrorKind::WouldBlock, "another server has it"),
        TryLockError::Error(error) => error,
    })?;
    let about = file.metadata()?;
    if !about.is_file() || about.mode() & 0o077 != 0 {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "others may read it: remove it"));
    }
    let mut secret = ServerSecret::default();
    if about.len() == secret.len() as u64 {
        file.read_exact(&mut secret)?;
    }
    if secret == ServerSecret::default() {
        // The file is new, or the machine lost power while it was new.
        RandomSource::from_system()?.stream("reset key").fill(&mut secret);
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(&secret)?;
        file.sync_all().inspect_err(|_| {
            // The next server must not find a secret that was never synced.
            let _ = file.set_len(0);
        })?;
    }
    Ok((secret, file))
}

type ServerSecret = [u8; 32];

/// Listens at `address`. The endpoint accepts connections while the runtime runs, until it is closed, dropped, or
/// [fails](Endpoint::failure).
///
/// See [`QuicDialer`] for an example.
///
/// # Errors
/// If the port is in use.
///
/// # Panics
/// Outside of a tokio runtime.
pub fn listen(address: SocketAddr, tls: ServerTls, config: Config) -> io::Result<Endpoint> {
    run(address, config, Some(tls))
}

fn run(address: SocketAddr, config: Config, tls: Option<ServerTls>) -> io::Result<Endpoint> {
    let socket = TokioDatagrams::bind(address)?;
    socket.set_buffers(BUFFER, TokioDatagrams::SOCKET_BUFFER)?;
    TokioEndpoint::over(socket, config, tls)
}

/// A connector by QUIC, and by TLS over TCP for servers without HTTP/3, such as buckets.
///
/// ```
/// use offload_reservoir::copy::{Copy, CopyLocation};
/// use offload_reservoir::quic::{self, QuicDialer, client_tls, server_tls};
/// use offload_reservoir::rooted::Rooted;
/// use offload_reservoir::tls::{TlsDialer, client_config};
/// use offload_reservoir::{ServerLimits, Server, Shell};
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
/// let server = Server::new(Arc::new(Rooted::open(there)?), Shell::tokio(), ServerLimits::default()).open_to_all();
/// let tls = server_tls(vec![certificate.clone()], key.into())?;
/// // Any free port.
/// let address = std::net::UdpSocket::bind("127.0.0.1:0")?.local_addr()?;
/// let endpoint = quic::listen(address, tls, quic::config(16 << 20))?;
/// tokio::spawn(async move {
///     while let Some(connection) = endpoint.accept().await {
///         let server = server.clone();
///         tokio::spawn(async move { server.serve_http3(connection).await });
///     }
/// });
/// let tls = TlsDialer::new(Arc::new(client_config(vec![certificate.clone()], None)?));
/// let dial = QuicDialer::new(tls, client_tls(vec![certificate], None)?, 16 << 20);
/// let copy = Copy::new(Shell::tokio(), Arc::new(dial));
/// let from = CopyLocation::parse(&format!("https://localhost:{}/film", address.port()), None)?;
/// let outcome = copy.run(&[from], &CopyLocation::local(&there.join("copy of film"))?).await?;
/// assert_eq!((outcome.copied, outcome.failed.len()), (1, 0), "{:?}", outcome.failed);
/// assert_eq!(std::fs::read(there.join("copy of film"))?, [7; 100_000]);
/// # Ok(())
/// # }
/// # serve(there)?;
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
pub struct QuicDialer {
    tls: TlsDialer,
    quic: ClientTls,
    window: u32,
    pacing_rate: Option<NonZeroU64>,
}

impl QuicDialer {
    /// Creates a connector with these TLS configurations. QUIC connections are configured by [`config`].
    pub fn new(tls: TlsDialer, quic: ClientTls, window: u32) -> QuicDialer {
        QuicDialer { tls, quic, window, pacing_rate: None }
    }

    /// Paces the packets of each connection at this rate.
    #[must_use]
    pub fn paced(mut self, rate: Option<Rate>) -> QuicDialer {
        self.pacing_rate = rate.and_then(|rate| NonZeroU64::new(rate.as_bits() / 8));
        self
    }

    /// Connects to the first address that answers.
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
        // Only silence reveals that a machine is gone. Keep-alives prevent that a slow disk looks like silence.
        let (keep_alive, pacing_rate) = (Some(KEEP_ALIVE), self.pacing_rate);
        let config =
            config(self.window).with(|c| (c.keep_alive, c.idle, c.pacing_rate) = (keep_alive, SILENCE, pacing_rate));
        let endpoint = run(any, config, None)?;
        let connection = endpoint.connect(&self.quic, address, host).map_err(io::Error::other)?.await;
        connection.map_err(|closed| match closed {
            // An invalid certificate stays invalid, so the error must not be retried.
            Closed::Protocol(_) => io::Error::new(io::ErrorKind::InvalidData, closed),
            closed => closed.into(),
        })
    }
}

impl Dial for QuicDialer {
    fn dial<'a>(&'a self, host: &'a str, port: u16) -> DialFuture<'a> {
        self.tls.dial(host, port)
    }

    fn speaks_quic(&self, _: &str, _: u16) -> bool {
        true
    }

    fn quic<'a>(&'a self, host: &'a str, port: u16) -> QuicDialFuture<'a> {
        Box::pin(async move {
            let addresses = tokio::net::lookup_host((host, port)).await?;
            self.greet_one_of(host, addresses).await
        })
    }
}

/// Socket buffer in bytes, for packets that arrive while the endpoint is busy.
const BUFFER: usize = 8 << 20;
/// Maximum number of concurrent requests on a connection.
const STREAMS: u32 = 256;
const KEEP_ALIVE: Duration = Duration::from_secs(4);
/// Time without packets after which the client opens a new connection.
const SILENCE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn kept(folder: &Path) -> (ServerSecret, u32) {
        let _reset_key_lock = reset_key(folder, "0.0.0.0:8443".parse().unwrap()).unwrap();
        let entry = std::fs::read_dir(folder).unwrap().next().unwrap().unwrap();
        (std::fs::read(entry.path()).unwrap().try_into().unwrap(), entry.metadata().unwrap().mode() & 0o777)
    }

    /// Machines with equal name, address and certificate have different keys. A server finds its own key again, which
    /// only its owner may read.
    #[test]
    fn a_reset_key_is_that_of_its_folder() {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let [one, other] = folders.each_ref().map(|folder| kept(folder.path()));
        assert_eq!((one.1, other.1), (0o600, 0o600));
        assert_ne!(one.0, other.0);
        assert_eq!(kept(folders[0].path()), one, "a server that is begun anew has another one");
        // A truncated secret is replaced, and a secret readable by others is refused.
        let path = std::fs::read_dir(folders[0].path()).unwrap().next().unwrap().unwrap().path();
        std::fs::write(&path, [7; 31]).unwrap();
        assert_ne!(kept(folders[0].path()).0[..31], [7; 31]);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        let refused = reset_key(folders[0].path(), "0.0.0.0:8443".parse().unwrap());
        assert!(refused.is_err_and(|error| error.to_string().contains("others may read it")));
    }

    /// After a power loss, a file may have its length and only zeros.
    #[test]
    fn secret_of_zeros_is_made_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        let (made, locked) = secret_in(&path).unwrap();
        drop(locked);
        assert_eq!(secret_in(&path).unwrap().0, made);
        std::fs::write(&path, ServerSecret::default()).unwrap();
        let (anew, locked) = secret_in(&path).unwrap();
        assert!(anew != ServerSecret::default() && anew != made);
        drop(locked);
        assert_eq!(std::fs::read(&path).unwrap(), anew);
    }
}
