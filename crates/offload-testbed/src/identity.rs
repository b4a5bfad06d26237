//! Identities of the testbed's servers, and TLS configurations for both ends.
//!
//! The certificate and the authority that signed it are fixed files (see `identity/README.md`). With a seed, randomness
//! and the time of day are fixed too, and a handshake repeats to the byte.

use crate::ccm_suite::tls13_aes_128_ccm;
use crate::secrets::{seeded, seeded_provider, system_provider};
use core::time::Duration;
use offload_api::{QuicCipher, TlsSuite, TlsVersion};
use offload_base::Seed;
use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::time_provider::{DefaultTimeProvider, TimeProvider};
use rustls::{CipherSuite, ClientConfig, KeyLog, RootCertStore, ServerConfig, SignatureScheme};
use std::sync::Arc;

/// Source of randomness and time of day for an end of a TLS connection.
///
/// See [`client_config`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Randomness {
    /// From a seed, which should differ between the ends. The time of day stands still. For virtual time.
    Seeded(Seed),
    /// From the system. For real time.
    System,
}

/// Returns a client configuration: TLS 1.3 (and 1.2 if not seeded), trust in the testbed's authority alone, extractable
/// secrets. The client keeps no session tickets, so that every handshake is a full one.
///
/// ```
/// use offload_base::Seed;
/// use std::sync::Arc;
/// use offload_testbed::identity::{Randomness, client_config, server_config, server_name};
///
/// let client = client_config(Randomness::Seeded(Seed(1)), None);
/// let server = server_config(Randomness::Seeded(Seed(2)), None);
/// let mut client = rustls::ClientConnection::new(Arc::new(client), server_name())?;
/// let mut server = rustls::ServerConnection::new(Arc::new(server))?;
/// # let mut flight = Vec::new();
/// # while client.is_handshaking() || server.is_handshaking() {
/// #     client.write_tls(&mut flight).unwrap();
/// #     server.read_tls(&mut &flight[..]).unwrap();
/// #     server.process_new_packets()?;
/// #     flight.clear();
/// #     server.write_tls(&mut flight).unwrap();
/// #     client.read_tls(&mut &flight[..]).unwrap();
/// #     client.process_new_packets()?;
/// #     flight.clear();
/// # }
/// // ... they shake hands ...
/// assert_eq!(client.negotiated_cipher_suite().unwrap().suite(), rustls::CipherSuite::TLS13_AES_128_GCM_SHA256);
/// # Ok::<(), rustls::Error>(())
/// ```
pub fn client_config(randomness: Randomness, key_log: Option<Arc<dyn KeyLog>>) -> ClientConfig {
    client(sources(randomness), key_log)
}

/// Returns a server configuration: TLS 1.3 (and 1.2 if not seeded), the testbed's certificate, extractable secrets. The
/// server sends session tickets by rustls's defaults, so record 0 of its application key is used before data begin. If
/// not seeded, clients without Ed25519 get a certificate with an ECDSA key on P-256; its signatures cannot repeat from
/// a seed.
///
/// See [`client_config`] for an example.
pub fn server_config(randomness: Randomness, key_log: Option<Arc<dyn KeyLog>>) -> ServerConfig {
    for_clients(randomness, server(sources(randomness), key_log))
}

/// Returns a [`client_config`] for QUIC that offers `cipher` first, AES-128-CCM included.
///
/// ```
/// use offload_api::QuicCipher;
/// use offload_base::Seed;
/// use offload_testbed::identity::{Randomness, quic_client_config};
///
/// let config = quic_client_config(QuicCipher::Aes128Ccm, Randomness::Seeded(Seed(1)), None);
/// assert_eq!(config.crypto_provider().cipher_suites[0].suite(), rustls::CipherSuite::TLS13_AES_128_CCM_SHA256);
/// ```
pub fn quic_client_config(
    cipher: QuicCipher,
    randomness: Randomness,
    key_log: Option<Arc<dyn KeyLog>>,
) -> ClientConfig {
    let (mut provider, time) = sources(randomness);
    prefer(cipher, &mut provider);
    client((provider, time), key_log)
}

/// Returns a [`server_config`] for QUIC that prefers `cipher`, in any order of the client's.
///
/// See [`quic_client_config`] for a similar example.
pub fn quic_server_config(
    cipher: QuicCipher,
    randomness: Randomness,
    key_log: Option<Arc<dyn KeyLog>>,
) -> ServerConfig {
    let (mut provider, time) = sources(randomness);
    prefer(cipher, &mut provider);
    let mut config = for_clients(randomness, server((provider, time), key_log));
    // Without this, the client's order would decide the cipher.
    config.ignore_client_order = true;
    config
}

/// TLS version and suite that a handshake must agree on.
///
/// ```
/// use offload_api::{TlsSuite, TlsVersion};
/// use offload_base::Seed;
/// use offload_testbed::identity::{Agreement, Randomness};
///
/// let agreement = Agreement { version: TlsVersion::Tls12, suite: TlsSuite::Aes256Gcm };
/// let config = agreement.client_config(Randomness::Seeded(Seed(1)), None).unwrap();
/// assert_eq!(config.crypto_provider().cipher_suites.len(), 1);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// TLS version.
    pub version: TlsVersion,
    /// Suite that protects records.
    pub suite: TlsSuite,
}

/// TLS 1.3 with AES-128-GCM.
impl Default for Agreement {
    fn default() -> Agreement {
        Agreement { version: TlsVersion::Tls13, suite: TlsSuite::Aes128Gcm }
    }
}

impl Agreement {
    /// Returns a [`client_config`] that offers only this version and suite, seeded or not. `None` if rustls has no such
    /// suite.
    pub fn client_config(self, randomness: Randomness, key_log: Option<Arc<dyn KeyLog>>) -> Option<ClientConfig> {
        Some(client(self.sources(randomness)?, key_log))
    }

    /// Returns a [`server_config`] that accepts only this version and suite, seeded or not. `None` if rustls has no
    /// such suite.
    pub fn server_config(self, randomness: Randomness, key_log: Option<Arc<dyn KeyLog>>) -> Option<ServerConfig> {
        Some(server(self.sources(randomness)?, key_log))
    }

    fn sources(self, randomness: Randomness) -> Option<Sources> {
        let name = match (self.version, self.suite) {
            (TlsVersion::Tls12, TlsSuite::Aes128Gcm) => CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
            (TlsVersion::Tls12, TlsSuite::Aes256Gcm) => CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
            (TlsVersion::Tls12, TlsSuite::ChaCha20Poly1305) => {
                CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256
            }
            (TlsVersion::Tls13, TlsSuite::Aes128Gcm) => CipherSuite::TLS13_AES_128_GCM_SHA256,
            (TlsVersion::Tls13, TlsSuite::Aes256Gcm) => CipherSuite::TLS13_AES_256_GCM_SHA384,
            (TlsVersion::Tls13, TlsSuite::ChaCha20Poly1305) => CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
            _ => return None,
        };
        // The seeded provider with TLS 1.2 suites is needed here, because the version may be 1.2.
        let (mut provider, time): Sources = match randomness {
            Randomness::Seeded(seed) => (seeded(seed), Arc::new(StoppedTimeProvider)),
            Randomness::System => sources(randomness),
        };
        provider.cipher_suites.retain(|suite| suite.suite() == name);
        (!provider.cipher_suites.is_empty()).then_some((provider, time))
    }
}

/// Returns the server's name for clients. The certificate also has `localhost` and the addresses `127.0.0.1`, `::1`,
/// `10.0.0.1` and `10.0.0.2`.
///
/// ```
/// assert_eq!(offload_testbed::identity::server_name().to_str(), "server.nic-offload.test");
/// ```
pub fn server_name() -> ServerName<'static> {
    ServerName::try_from("server.nic-offload.test").expect("a name")
}

/// Returns the authority's certificate.
pub fn authority() -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(AUTHORITIES).expect("a certificate")
}

/// Returns the certificate of the authority that signed [`server_certificate_p256`].
///
/// ```
/// use offload_testbed::identity::{authority, authority_p256};
///
/// assert_ne!(authority(), authority_p256());
/// ```
pub fn authority_p256() -> CertificateDer<'static> {
    let mut both = CertificateDer::pem_slice_iter(AUTHORITIES);
    both.nth(1).expect("there are two").expect("a certificate")
}

/// Returns the server's certificate with an ECDSA key on P-256.
pub fn server_certificate_p256() -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(SERVER_CERTIFICATE_P256).expect("a certificate")
}

/// Returns the server's certificate.
pub fn server_certificate() -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(SERVER_CERTIFICATE).expect("a certificate")
}

/// Returns the server's key. The key is public, like all files here, and protects nothing.
pub fn server_key() -> PrivateKeyDer<'static> {
    PrivateKeyDer::from_pem_slice(SERVER_KEY).expect("a key")
}

/// Moves a suite for QUIC packets to the front of a provider. The other suites stay, because Initial packets need
/// AES-128-GCM.
fn prefer(cipher: QuicCipher, provider: &mut CryptoProvider) {
    use rustls::crypto::ring::cipher_suite as suite;
    let wanted = match cipher {
        QuicCipher::Aes256Gcm => suite::TLS13_AES_256_GCM_SHA384,
        QuicCipher::ChaCha20Poly1305 => suite::TLS13_CHACHA20_POLY1305_SHA256,
        QuicCipher::Aes128Ccm => tls13_aes_128_ccm(),
        _ => suite::TLS13_AES_128_GCM_SHA256,
    };
    // A suite must not occur twice in the list.
    provider.cipher_suites.retain(|suite| suite.suite() != wanted.suite());
    provider.cipher_suites.insert(0, wanted);
}

fn client((provider, time): Sources, key_log: Option<Arc<dyn KeyLog>>) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(authority()).expect("the authority's certificate is a trust anchor");
    let mut config = ClientConfig::builder_with_details(Arc::new(provider), time)
        .with_safe_default_protocol_versions()
        .expect("there are suites")
        .with_root_certificates(roots)
        .with_no_client_auth();
    // A resumed handshake would have other bytes and secrets than a full one.
    config.resumption = Resumption::disabled();
    config.enable_secret_extraction = true;
    if let Some(key_log) = key_log {
        config.key_log = key_log;
    }
    config
}

fn server((provider, time): Sources, key_log: Option<Arc<dyn KeyLog>>) -> ServerConfig {
    let mut config = ServerConfig::builder_with_details(Arc::new(provider), time)
        .with_safe_default_protocol_versions()
        .expect("there are suites")
        .with_no_client_auth()
        .with_single_cert(vec![server_certificate()], server_key())
        .expect("certificate and key belong together");
    config.enable_secret_extraction = true;
    if let Some(key_log) = key_log {
        config.key_log = key_log;
    }
    config
}

/// Adds a certificate for clients without Ed25519, unless the server is seeded.
fn for_clients(randomness: Randomness, mut config: ServerConfig) -> ServerConfig {
    if randomness == Randomness::System {
        let identities = Identities::new(config.crypto_provider()).expect("certificates and keys belong together");
        config.cert_resolver = Arc::new(identities);
    }
    config
}

/// The server's certificates, each with its key.
#[derive(Debug)]
struct Identities {
    ed25519: Arc<CertifiedKey>,
    p256: Arc<CertifiedKey>,
}

impl Identities {
    fn new(provider: &CryptoProvider) -> Result<Identities, rustls::Error> {
        let key = PrivateKeyDer::from_pem_slice(SERVER_KEY_P256).expect("a key");
        Ok(Identities {
            ed25519: Arc::new(CertifiedKey::from_der(vec![server_certificate()], server_key(), provider)?),
            p256: Arc::new(CertifiedKey::from_der(vec![server_certificate_p256()], key, provider)?),
        })
    }
}

impl ResolvesServerCert for Identities {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let knows_ed25519 = hello.signature_schemes().contains(&SignatureScheme::ED25519);
        Some(if knows_ed25519 { self.ed25519.clone() } else { self.p256.clone() })
    }
}

/// A crypto provider with its randomness, and the time of day.
type Sources = (CryptoProvider, Arc<dyn TimeProvider>);

fn sources(randomness: Randomness) -> Sources {
    match randomness {
        Randomness::Seeded(seed) => (seeded_provider(seed), Arc::new(StoppedTimeProvider)),
        Randomness::System => (system_provider(), Arc::new(DefaultTimeProvider)),
    }
}

/// A clock that always shows the beginning of 2026.
#[derive(Debug)]
struct StoppedTimeProvider;

impl TimeProvider for StoppedTimeProvider {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(START_OF_2026))
    }
}

const START_OF_2026: Duration = Duration::from_secs(1_767_225_600);
const AUTHORITIES: &[u8] = include_bytes!("../identity/ca.pem");
const SERVER_CERTIFICATE: &[u8] = include_bytes!("../identity/server.pem");
const SERVER_KEY: &[u8] = include_bytes!("../identity/server.key");
const SERVER_CERTIFICATE_P256: &[u8] = include_bytes!("../identity/server-p256.pem");
const SERVER_KEY_P256: &[u8] = include_bytes!("../identity/server-p256.key");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secrets::KeyLines;
    use rustls::{ClientConnection, Connection, ProtocolVersion, ServerConnection};
    use std::io::{Read, Write};

    /// Moves all pending bytes from one end to the other, and returns the bytes.
    fn flight(from: &mut Connection, to: &mut Connection) -> Vec<u8> {
        let mut sent = Vec::new();
        while from.wants_write() {
            from.write_tls(&mut sent).expect("memory takes everything");
        }
        let mut unread = &sent[..];
        while !unread.is_empty() {
            to.read_tls(&mut unread).expect("memory gives everything");
            to.process_new_packets().expect("an honest peer");
        }
        sent
    }

    /// Runs a connection with a little data. Returns all bytes, in the order of the flights, and the server's key log.
    fn connection(client: Randomness, server: Randomness, name: ServerName<'static>) -> (Vec<u8>, String) {
        let key_log = Arc::new(KeyLines::default());
        let client_side = ClientConnection::new(Arc::new(client_config(client, None)), name).expect("a client");
        let server_side =
            ServerConnection::new(Arc::new(server_config(server, Some(key_log.clone())))).expect("a server");
        let (mut client, mut server) = (Connection::from(client_side), Connection::from(server_side));
        let mut wire = Vec::new();
        while client.is_handshaking() || server.is_handshaking() {
            wire.extend(flight(&mut client, &mut server));
            wire.extend(flight(&mut server, &mut client));
        }
        client.writer().write_all(b"hello").expect("a small write");
        wire.extend(flight(&mut client, &mut server));
        let mut heard = [0; 5];
        server.reader().read_exact(&mut heard).expect("what was sent");
        assert_eq!(&heard, b"hello");
        server.send_close_notify();
        wire.extend(flight(&mut server, &mut client));
        (wire, key_log.text())
    }

    fn seeded(seed: u64) -> (Vec<u8>, String) {
        let of = |name| Randomness::Seeded(Seed(seed).derive(name));
        connection(of("client"), of("server"), server_name())
    }

    #[test]
    fn a_seed_decides_every_byte() {
        let (once, again) = (seeded(1), seeded(1));
        assert_eq!(once, again);
        assert_ne!(once.0, seeded(2).0);
        assert_eq!(once.1.lines().count(), 5, "two handshake, two traffic and one exporter secret: {}", once.1);
    }

    #[test]
    fn system_randomness_differs_and_ends_may_be_seeded() {
        let system = || connection(Randomness::System, Randomness::System, server_name()).0;
        assert_ne!(system(), system());
        connection(Randomness::Seeded(Seed(1)), Randomness::System, server_name());
        connection(Randomness::System, Randomness::Seeded(Seed(1)), server_name());
    }

    #[test]
    fn the_certificate_has_all_its_names_and_no_other() {
        for name in ["localhost", "server.nic-offload.test", "127.0.0.1", "::1", "10.0.0.1", "10.0.0.2"] {
            let name = ServerName::try_from(name).expect("a name");
            connection(Randomness::Seeded(Seed(1)), Randomness::Seeded(Seed(2)), name);
        }
        let stranger = ServerName::try_from("example.org").expect("a name");
        let refused = std::panic::catch_unwind(|| {
            connection(Randomness::Seeded(Seed(1)), Randomness::Seeded(Seed(2)), stranger);
        });
        assert!(refused.is_err(), "the client verifies");
    }

    #[test]
    fn every_version_and_suite_can_be_agreed_on_and_repeats() {
        for version in [TlsVersion::Tls12, TlsVersion::Tls13] {
            for suite in [TlsSuite::Aes128Gcm, TlsSuite::Aes256Gcm, TlsSuite::ChaCha20Poly1305] {
                let agreement = Agreement { version, suite };
                let handshake = || {
                    let config = agreement.client_config(Randomness::Seeded(Seed(1)), None).expect("a suite");
                    let client = ClientConnection::new(Arc::new(config), server_name()).expect("a client");
                    let config = agreement.server_config(Randomness::Seeded(Seed(2)), None).expect("a suite");
                    let server = ServerConnection::new(Arc::new(config)).expect("a server");
                    let (mut client, mut server) = (Connection::from(client), Connection::from(server));
                    let mut wire = Vec::new();
                    while client.is_handshaking() || server.is_handshaking() {
                        wire.extend(flight(&mut client, &mut server));
                        wire.extend(flight(&mut server, &mut client));
                    }
                    (wire, client.protocol_version(), client.negotiated_cipher_suite().map(|suite| suite.suite()))
                };
                let (wire, agreed, name) = handshake();
                let expected = match version {
                    TlsVersion::Tls12 => ProtocolVersion::TLSv1_2,
                    _ => ProtocolVersion::TLSv1_3,
                };
                assert_eq!((agreed, &wire), (Some(expected), &handshake().0), "{agreement:?}");
                let protection = match suite {
                    TlsSuite::Aes128Gcm => "AES_128_GCM",
                    TlsSuite::Aes256Gcm => "AES_256_GCM",
                    _ => "CHACHA20_POLY1305",
                };
                assert!(format!("{name:?}").contains(protection), "{agreement:?}: {name:?}");
            }
        }
    }

    #[test]
    fn a_client_without_ed25519_gets_an_ecdsa_certificate() {
        let mut provider = system_provider();
        let known = provider.signature_verification_algorithms;
        let without = |scheme: &&(SignatureScheme, _)| scheme.0 != SignatureScheme::ED25519;
        let mapping: Vec<_> = known.mapping.iter().filter(without).copied().collect();
        provider.signature_verification_algorithms.mapping = mapping.leak();
        let mut roots = RootCertStore::empty();
        roots.add(authority_p256()).expect("a trust anchor");
        for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
            let config = ClientConfig::builder_with_provider(Arc::new(provider.clone()))
                .with_protocol_versions(&[version])
                .expect("there are suites")
                .with_root_certificates(roots.clone())
                .with_no_client_auth();
            let client = ClientConnection::new(Arc::new(config), server_name()).expect("a client");
            let server = ServerConnection::new(Arc::new(server_config(Randomness::System, None))).expect("a server");
            let (mut client, mut server) = (Connection::from(client), Connection::from(server));
            while client.is_handshaking() || server.is_handshaking() {
                flight(&mut client, &mut server);
                flight(&mut server, &mut client);
            }
            assert_eq!(client.peer_certificates(), Some(&[server_certificate_p256()][..]), "{version:?}");
        }
    }

    #[test]
    fn the_traffic_secrets_can_be_taken_out() {
        let config = |seed| Randomness::Seeded(Seed(seed));
        let client = ClientConnection::new(Arc::new(client_config(config(1), None)), server_name()).expect("a client");
        let server = ServerConnection::new(Arc::new(server_config(config(2), None))).expect("a server");
        let (mut client, mut server) = (Connection::from(client), Connection::from(server));
        while client.is_handshaking() || server.is_handshaking() {
            flight(&mut client, &mut server);
            flight(&mut server, &mut client);
        }
        let client = client.dangerous_extract_secrets().expect("extraction is on");
        let server = server.dangerous_extract_secrets().expect("extraction is on");
        assert_eq!((client.tx.0, server.rx.0), (0, 0));
        assert_eq!((client.rx.0, server.tx.0), (1, 1), "the tickets were one record");
    }
}
