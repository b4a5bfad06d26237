//! TLS 1.3 with AES-256-GCM over kernel TCP, by rustls.

use crate::dial::{Dial, DialFuture, DialStream, QuicDialFuture};
use crate::pace::Rate;
use crate::pin::{Pin, trust};
use crate::quic::QuicDialer;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig, version::TLS13};
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

pub use crate::kernel_pace::pace;

/// Returns rustls' provider, restricted to AES-256-GCM.
fn provider() -> CryptoProvider {
    CryptoProvider { cipher_suites: vec![ring::cipher_suite::TLS13_AES_256_GCM_SHA384], ..ring::default_provider() }
}

/// Returns the provider for QUIC, whose Initial packets always use AES-128-GCM (RFC 9001 section 5.2).
pub(crate) fn provider_of_quic() -> CryptoProvider {
    let mut provider = provider();
    provider.cipher_suites.push(ring::cipher_suite::TLS13_AES_128_GCM_SHA256);
    provider
}

/// Creates a server configuration from a certificate chain and its key.
///
/// # Errors
/// If the key does not match the certificate.
pub fn server_config(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ServerConfig, rustls::Error> {
    server_of(provider(), chain, key, b"http/1.1")
}

pub(crate) fn server_of(
    provider: CryptoProvider,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    protocol: &[u8],
) -> Result<ServerConfig, rustls::Error> {
    let builder = ServerConfig::builder_with_provider(Arc::new(provider)).with_protocol_versions(&[&TLS13])?;
    let mut config = builder.with_no_client_auth().with_single_cert(chain, key)?;
    config.alpn_protocols = vec![protocol.to_vec()];
    // The server's order has AES-256-GCM first.
    config.ignore_client_order = true;
    Ok(config)
}

/// Creates a client configuration that trusts `authorities` and, if `pin` is set, only the pinned certificate.
///
/// ```
/// use offload_reservoir::tls::{TlsDialer, client_config, server_config};
/// use std::sync::Arc;
///
/// let signed = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
/// let certificate = signed.cert.der().clone();
/// let key = rustls::pki_types::PrivatePkcs8KeyDer::from(signed.signing_key.serialize_der());
/// server_config(vec![certificate.clone()], key.into())?;
/// let _ = TlsDialer::new(Arc::new(client_config(vec![certificate], None)?));
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
///
/// # Errors
/// If one of the authorities is not a CA certificate.
pub fn client_config(
    authorities: Vec<CertificateDer<'static>>,
    pin: Option<Pin>,
) -> Result<ClientConfig, rustls::Error> {
    client_of(provider(), authorities, pin, b"http/1.1")
}

pub(crate) fn client_of(
    provider: CryptoProvider,
    authorities: Vec<CertificateDer<'static>>,
    pin: Option<Pin>,
    protocol: &[u8],
) -> Result<ClientConfig, rustls::Error> {
    let builder = ClientConfig::builder_with_provider(Arc::new(provider)).with_protocol_versions(&[&TLS13])?;
    let mut config = builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
    trust(&mut config, authorities, pin)?;
    config.alpn_protocols = vec![protocol.to_vec()];
    Ok(config)
}

/// Reads the certificates of a PEM file.
///
/// # Errors
/// A text for the user, if the file cannot be read or has no certificate.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(found) if found.is_empty() => Err(format!("{}: has no certificate in PEM", path.display())),
        read => read.map_err(|error| format!("{}: {error}", path.display())),
    }
}

/// Reads the key of a PEM file.
///
/// # Errors
/// A text for the user, if the file cannot be read or has no key.
pub fn key(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// A connector by TLS over kernel TCP.
///
/// See [`client_config`] for an example.
pub struct TlsDialer {
    connector: TlsConnector,
    pacing_rate: Option<Rate>,
}

impl TlsDialer {
    /// Creates a connector with this configuration.
    pub fn new(config: Arc<ClientConfig>) -> TlsDialer {
        TlsDialer { connector: config.into(), pacing_rate: None }
    }

    /// Asks the kernel to pace the packets of each connection at this rate.
    #[must_use]
    pub fn paced(self, rate: Option<Rate>) -> TlsDialer {
        TlsDialer { pacing_rate: rate, ..self }
    }
}

impl Dial for TlsDialer {
    fn dial<'a>(&'a self, host: &'a str, port: u16) -> DialFuture<'a> {
        Box::pin(async move {
            let name = server_name(host)?;
            self.greet(name, TcpStream::connect((host, port)).await?).await
        })
    }
}

impl TlsDialer {
    async fn greet(&self, name: ServerName<'static>, stream: TcpStream) -> io::Result<Box<dyn DialStream>> {
        // Requests are short, and must not wait for acknowledgments of earlier ones.
        stream.set_nodelay(true)?;
        pace(&stream, self.pacing_rate);
        Ok(Box::new(self.connector.connect(name, stream).await?) as Box<dyn DialStream>)
    }
}

fn server_name(host: &str) -> io::Result<ServerName<'static>> {
    ServerName::try_from(host.to_owned()).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))
}

/// A connector restricted to the named hosts, for copies that a client requests from a server. A host name that
/// resolves to this machine or to a link-local address is refused: such hosts must be named as addresses or as
/// `localhost`.
///
/// ```
/// use offload_reservoir::dial::Dial;
/// use offload_reservoir::tls::{AllowlistDialer, Host, TlsDialer, client_config};
/// use std::sync::Arc;
///
/// let hosts: Vec<Host> = vec!["store.test".parse()?, "other.test:8443".parse()?, "[::1]:8443".parse()?];
/// let signed = rcgen::generate_simple_self_signed(["store.test".to_owned()])?;
/// let dial = AllowlistDialer::new(TlsDialer::new(Arc::new(client_config(vec![signed.cert.der().clone()], None)?)), hosts);
/// assert!(dial.may_reach("STORE.test", 1) && dial.may_reach("other.test", 8443) && dial.may_reach("::1", 8443));
/// assert!(!dial.may_reach("other.test", 443) && !dial.may_reach("127.0.0.1", 8443));
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
pub struct AllowlistDialer {
    tls: TlsDialer,
    quic: Option<QuicDialer>,
    hosts: Vec<Host>,
}

/// A host by name or address, with one port or any.
///
/// See [`AllowlistDialer`] for an example.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    name: String,
    port: Option<u16>,
}

impl core::str::FromStr for Host {
    type Err = String;

    fn from_str(text: &str) -> Result<Host, String> {
        let wrong = || format!("`{text}` is no host: HOST, HOST:PORT or [ADDRESS]:PORT");
        let (name, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((address, "")) => (address, None),
            Some((address, rest)) => (address, Some(rest.strip_prefix(':').ok_or_else(wrong)?)),
            // An IPv6 address contains colons itself.
            None if text.parse::<Ipv6Addr>().is_ok() => (text, None),
            None => text.split_once(':').map_or((text, None), |(name, port)| (name, Some(port))),
        };
        let port = port.map(str::parse).transpose().map_err(|_| wrong())?;
        let fits = !name.is_empty() && !name.contains(['/', '@', ' ', '[', ']']);
        fits.then(|| Host { name: name.to_owned(), port }).ok_or_else(wrong)
    }
}

impl Host {
    /// Returns the name or address.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the port, if one is named.
    pub fn port(&self) -> Option<u16> {
        self.port
    }
}

impl AllowlistDialer {
    /// Creates a connector by `tls` to these hosts.
    pub fn new(tls: TlsDialer, hosts: Vec<Host>) -> AllowlistDialer {
        AllowlistDialer { tls, quic: None, hosts }
    }

    /// Uses HTTP/3 over connections of `quic`.
    #[must_use]
    pub fn by_http3(self, quic: QuicDialer) -> AllowlistDialer {
        AllowlistDialer { quic: Some(quic), ..self }
    }

    /// Resolves a host to the addresses that may be reached.
    async fn addresses(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let refused = |text: &str| io::Error::new(io::ErrorKind::PermissionDenied, format!("{host}: {text}"));
        if !self.may_reach(host, port) {
            return Err(refused("not among the hosts that are allowed"));
        }
        // The operator allowed this address itself. A DNS name could be changed to point here later.
        let is_named = host.parse::<IpAddr>().is_ok() || host.eq_ignore_ascii_case("localhost");
        let all = tokio::net::lookup_host((host, port)).await?;
        let found: Vec<SocketAddr> = all.filter(|address| is_named || !is_near(address.ip())).collect();
        match found.is_empty() {
            true => Err(refused("leads to this machine or to its own link, which are to be named as addresses")),
            false => Ok(found),
        }
    }
}

impl Dial for AllowlistDialer {
    fn dial<'a>(&'a self, host: &'a str, port: u16) -> DialFuture<'a> {
        Box::pin(async move {
            let addresses = self.addresses(host, port).await?;
            // Connects to the checked addresses. A second resolution could give others.
            self.tls.greet(server_name(host)?, TcpStream::connect(&addresses[..]).await?).await
        })
    }

    fn speaks_quic(&self, _: &str, _: u16) -> bool {
        self.quic.is_some()
    }

    fn quic<'a>(&'a self, host: &'a str, port: u16) -> QuicDialFuture<'a> {
        Box::pin(async move {
            let addresses = self.addresses(host, port).await?;
            match &self.quic {
                Some(quic) => quic.greet_one_of(host, addresses).await,
                None => Err(io::ErrorKind::Unsupported.into()),
            }
        })
    }

    fn may_reach(&self, host: &str, port: u16) -> bool {
        let same = |one: &Host| match (one.name.parse::<IpAddr>(), host.parse::<IpAddr>()) {
            // Addresses have several spellings.
            (Ok(one), Ok(other)) => one == other,
            _ => one.name.eq_ignore_ascii_case(host),
        };
        self.hosts.iter().any(|one| same(one) && one.port.is_none_or(|its| its == port))
    }
}

/// Tests whether an address is of this machine, link-local, unspecified, broadcast or multicast.
fn is_near(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => {
            address.is_loopback()
                || address.is_link_local()
                || address.is_unspecified()
                || address.is_broadcast()
                || address.is_multicast()
                || address.octets()[0] == 0
        }
        IpAddr::V6(address) => {
            address.is_loopback()
                || address.is_unicast_link_local()
                || address.is_unspecified()
                || address.is_multicast()
                // ::a.b.c.d, an obsolete form (RFC 4291 section 2.5.5.1).
                || (address.octets()[..12] == [0; 12])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_parsed_and_invalid_ones_refused() {
        let host = |name: &str, port| Ok(Host { name: name.into(), port });
        let read = |text: &str| text.parse::<Host>();
        assert_eq!((read("a.test"), read("a.test:1")), (host("a.test", None), host("a.test", Some(1))));
        assert_eq!(
            (read("::1"), read("[::1]"), read("[::1]:9")),
            (host("::1", None), host("::1", None), host("::1", Some(9)))
        );
        for wrong in ["", ":1", "a:b", "a:70000", "https://a", "a/b", "me@a", "[::1", "[::1]x"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn this_machine_and_its_link_are_near_however_they_are_written() {
        for near in [
            "127.0.0.1",
            "127.8.9.1",
            "169.254.169.254",
            "0.0.0.0",
            "0.1.2.3",
            "255.255.255.255",
            "224.0.0.1",
            "::1",
            "::",
            "fe80::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.1.1",
            "::127.0.0.1",
        ] {
            assert!(is_near(near.parse().unwrap()), "{near}");
        }
        for far in ["192.0.2.1", "10.0.0.1", "2001:db8::1", "::ffff:192.0.2.1"] {
            assert!(!is_near(far.parse().unwrap()), "{far}");
        }
    }

    /// A name that resolves to this machine is refused, unless it is `localhost`.
    #[tokio::test]
    async fn a_name_that_leads_here_is_not_followed() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let signed = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let config = || Arc::new(client_config(vec![signed.cert.der().clone()], None).unwrap());
        // Another spelling of localhost, known to every system.
        let name = "localhost.";
        let dial = AllowlistDialer::new(TlsDialer::new(config()), vec![name.parse().unwrap()]);
        if let Err(error) = dial.dial(name, port).await {
            let resolves = tokio::net::lookup_host((name, port)).await.is_ok();
            assert!(!resolves || error.kind() == io::ErrorKind::PermissionDenied, "{error}");
        } else {
            panic!("{name} was reached");
        }
        let dial = AllowlistDialer::new(TlsDialer::new(config()), Vec::new());
        assert_eq!(dial.dial("127.0.0.1", port).await.err().unwrap().kind(), io::ErrorKind::PermissionDenied);
        let dial = AllowlistDialer::new(TlsDialer::new(config()), vec!["127.0.0.1".parse().unwrap()]);
        tokio::select! {
            _ = dial.dial("127.0.0.1", port) => panic!("nobody shakes hands"),
            accepted = listener.accept() => drop(accepted.unwrap()),
        }
    }
}
