//! The TLS handshake of a connection (RFC 9001 4), by rustls.

use super::keyring::Keyring;
use super::{acknowledgements, level};
use noq_proto::crypto::{
    ClientConfig, ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey, ServerConfig, Session,
    UnsupportedVersion,
};
use noq_proto::transport_parameters::TransportParameters;
use noq_proto::{ConnectError, ConnectionId, Side, TransportError, TransportErrorCode};
use offload_api::QuicCipher;
use ring::aead;
use rustls::pki_types::CertificateDer;
use rustls::quic::{Connection, KeyChange, Suite, Version};
use rustls::{CipherSuite, KeyLog};
use std::any::Any;
use std::io::Cursor;
use std::sync::{Arc, Mutex, PoisonError};

/// Error: the TLS configuration lacks the cipher suite of QUIC's first packets.
///
/// ```
/// use quic_offload::{ClientTls, NoInitialSuite};
/// use rustls::crypto::{CryptoProvider, ring};
/// use rustls::{ClientConfig, RootCertStore};
/// use std::sync::Arc;
///
/// let suites = vec![ring::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256];
/// let provider = CryptoProvider { cipher_suites: suites, ..ring::default_provider() };
/// let tls = ClientConfig::builder_with_provider(Arc::new(provider)).with_protocol_versions(&[&rustls::version::TLS13])?;
/// let tls = tls.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
/// assert_eq!(ClientTls::new(tls).err(), Some(NoInitialSuite));
/// # Ok::<(), rustls::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("QUIC's first packets are protected by TLS13_AES_128_GCM_SHA256: leave it among the provider's cipher suites")]
pub struct NoInitialSuite;

/// Results of a handshake.
///
/// See [`Connection::handshake_data`](crate::Connection::handshake_data) for an example.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HandshakeData {
    /// The application protocol (ALPN). `None` if the ends agreed on no protocol.
    pub alpn: Option<Vec<u8>>,
    /// The server name that the client sent (SNI). `None` at the client, and if the client sent no name.
    pub server_name: Option<String>,
    /// The peer's certificate chain, its own certificate first. Empty if the peer sent no certificate.
    pub certificates: Vec<CertificateDer<'static>>,
}

/// Returns the cipher suite of Initial packets (RFC 9001 5.2).
pub(crate) fn initial_suite(provider: &rustls::crypto::CryptoProvider) -> Result<Suite, NoInitialSuite> {
    let suites = provider.cipher_suites.iter();
    let mut quic = suites.filter(|suite| suite.suite() == CipherSuite::TLS13_AES_128_GCM_SHA256);
    quic.find_map(|suite| suite.tls13()?.quic_suite()).ok_or(NoInitialSuite)
}

/// The TLS configuration of one client connection.
pub(crate) struct ClientHandshake {
    pub(crate) tls: rustls::ClientConfig,
    pub(crate) initial: Suite,
    pub(crate) keyring: Arc<Keyring>,
}

/// The TLS configuration of one server connection, or of connections that are not accepted yet.
pub(crate) struct ServerHandshake {
    pub(crate) tls: rustls::ServerConfig,
    pub(crate) initial: Suite,
    pub(crate) keyring: Arc<Keyring>,
}

impl ClientConfig for ClientHandshake {
    fn start_session(
        &self,
        version: u32,
        server_name: &str,
        parameters: &TransportParameters,
    ) -> Result<Box<dyn Session>, ConnectError> {
        let version = known(version)?;
        let invalid = || ConnectError::InvalidServerName(server_name.into());
        let name = rustls::pki_types::ServerName::try_from(server_name).map_err(|_| invalid())?.to_owned();
        // Each connection has its own key log, so that secrets cannot be mixed up.
        let secrets = Arc::new(SecretLog::new(self.tls.key_log.clone()));
        let mut tls = self.tls.clone();
        tls.key_log = secrets.clone();
        let inner = rustls::quic::ClientConnection::new(Arc::new(tls), version, name, written(parameters));
        let inner = Connection::Client(inner.map_err(|_| invalid())?);
        Ok(Box::new(TlsSession::new(inner, version, self.initial, secrets, self.keyring.clone())))
    }
}

impl ServerConfig for ServerHandshake {
    fn initial_keys(&self, version: u32, cid: ConnectionId) -> Result<Keys, UnsupportedVersion> {
        Ok(level::initial(&self.initial, known(version)?, cid, rustls::Side::Server))
    }

    fn retry_tag(&self, _: u32, cid: ConnectionId, packet: &[u8]) -> [u8; 16] {
        let whole = [&[cid.len() as u8], &cid[..], packet].concat();
        let (key, nonce) = retry_key();
        let tag = key.seal_in_place_separate_tag(nonce, aead::Aad::from(whole), &mut []);
        let tag = tag.ok().and_then(|tag| tag.as_ref().try_into().ok());
        tag.expect("nothing is sealed but a packet's header")
    }

    fn start_session(&self, version: u32, parameters: &TransportParameters) -> Box<dyn Session> {
        // Other versions never get here, because they have no Initial keys.
        let version = known(version).unwrap_or(Version::V1);
        let secrets = Arc::new(SecretLog::new(self.tls.key_log.clone()));
        let mut tls = self.tls.clone();
        tls.key_log = secrets.clone();
        let inner = rustls::quic::ServerConnection::new(Arc::new(tls), version, written(parameters));
        let inner = Connection::Server(inner.expect("the configuration was looked at when the endpoint was made"));
        Box::new(TlsSession::new(inner, version, self.initial, secrets, self.keyring.clone()))
    }
}

/// The handshake of one connection.
struct TlsSession {
    inner: Connection,
    version: Version,
    initial: Suite,
    secrets: Arc<SecretLog>,
    keyring: Arc<Keyring>,
    told_data: bool,
}

impl TlsSession {
    fn new(
        inner: Connection,
        version: Version,
        initial: Suite,
        secrets: Arc<SecretLog>,
        keyring: Arc<Keyring>,
    ) -> TlsSession {
        TlsSession { inner, version, initial, secrets, keyring, told_data: false }
    }

    /// Returns the negotiated cipher, if `offload-quic` supports it.
    fn cipher(&self) -> Option<QuicCipher> {
        Some(match self.inner.negotiated_cipher_suite()?.suite() {
            CipherSuite::TLS13_AES_128_GCM_SHA256 => QuicCipher::Aes128Gcm,
            CipherSuite::TLS13_AES_256_GCM_SHA384 => QuicCipher::Aes256Gcm,
            CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => QuicCipher::ChaCha20Poly1305,
            CipherSuite::TLS13_AES_128_CCM_SHA256 => QuicCipher::Aes128Ccm,
            _ => return None,
        })
    }
}

impl Session for TlsSession {
    fn initial_keys(&self, cid: ConnectionId, side: Side) -> Keys {
        let side = if side.is_client() { rustls::Side::Client } else { rustls::Side::Server };
        level::initial(&self.initial, self.version, cid, side)
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        let certificates = self.inner.peer_certificates().unwrap_or_default();
        Some(Box::new(HandshakeData {
            alpn: self.inner.alpn_protocol().map(<[u8]>::to_vec),
            server_name: match &self.inner {
                Connection::Client(_) => None,
                Connection::Server(server) => server.server_name().map(str::to_owned),
            },
            certificates: certificates.iter().map(|one| one.clone().into_owned()).collect(),
        }))
    }

    /// The certificates are part of the handshake data.
    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        None
    }

    /// 0-RTT is not supported.
    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        None
    }

    fn early_data_accepted(&self) -> Option<bool> {
        Some(false)
    }

    fn is_handshaking(&self) -> bool {
        self.inner.is_handshaking()
    }

    fn read_handshake(&mut self, bytes: &[u8]) -> Result<bool, TransportError> {
        self.inner.read_hs(bytes).map_err(|error| {
            // RFC 9001 4.8: a TLS alert becomes a QUIC error code.
            let code = match self.inner.alert() {
                Some(alert) => TransportErrorCode::crypto(alert.into()),
                None => TransportErrorCode::PROTOCOL_VIOLATION,
            };
            TransportError::new(code, error.to_string())
        })?;
        // The state machine must be told once when the application protocol is known.
        let known = self.inner.alpn_protocol().is_some() || !self.inner.is_handshaking();
        Ok(known && !core::mem::replace(&mut self.told_data, known))
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        let side = match self.inner {
            Connection::Client(_) => Side::Client,
            Connection::Server(_) => Side::Server,
        };
        let Some(bytes) = self.inner.quic_transport_parameters() else { return Ok(None) };
        let (bytes, is_asked) = acknowledgements::check_min_ack_delay(bytes);
        self.keyring.lock().acknowledges_as_asked = is_asked;
        Ok(Some(TransportParameters::read(side, &mut Cursor::new(bytes))?))
    }

    fn write_handshake(&mut self, out: &mut Vec<u8>) -> Option<Keys> {
        match self.inner.write_hs(out)? {
            KeyChange::Handshake { keys } => Some(level::keys(keys)),
            KeyChange::OneRtt { keys, .. } => {
                let is_client = matches!(self.inner, Connection::Client(_));
                let secrets = self.secrets.take();
                // The packets are sealed with these keys instead of rustls's, so that a device can share them.
                let ours = self.cipher().and_then(|cipher| self.keyring.begin(cipher, is_client, &secrets?));
                // With any other cipher, rustls seals and opens the packets and no device can.
                Some(ours.unwrap_or_else(|| level::keys(keys)))
            }
        }
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        self.keyring.next()
    }

    fn is_valid_retry(&self, cid: ConnectionId, header: &[u8], payload: &[u8]) -> bool {
        let whole = [&[cid.len() as u8], &cid[..], header, payload].concat();
        let Some((packet, tag)) = whole.split_last_chunk::<16>() else { return false };
        let (key, nonce) = retry_key();
        payload.len() >= tag.len() && key.open_in_place(nonce, aead::Aad::from(packet), &mut tag.to_vec()).is_ok()
    }

    fn export_keying_material(
        &self,
        output: &mut [u8],
        label: &[u8],
        context: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        let exported = self.inner.export_keying_material(output, label, Some(context));
        exported.map(|_| ()).map_err(|_| ExportKeyingMaterialError)
    }
}

/// A key log that captures the first traffic secrets, which rustls exposes nowhere else.
#[derive(Debug)]
struct SecretLog {
    kept: Mutex<[Option<Secret>; 2]>,
    /// The application's own key log.
    log: Arc<dyn KeyLog>,
}

/// A secret of one direction.
pub(crate) type Secret = zeroize::Zeroizing<Vec<u8>>;

impl SecretLog {
    fn new(log: Arc<dyn KeyLog>) -> SecretLog {
        SecretLog { kept: Mutex::default(), log }
    }

    /// Takes the client's and the server's secret, once.
    fn take(&self) -> Option<[Secret; 2]> {
        let [client, server] = core::mem::take(&mut *self.kept.lock().unwrap_or_else(PoisonError::into_inner));
        Some([client?, server?])
    }
}

impl KeyLog for SecretLog {
    fn log(&self, label: &str, client_random: &[u8], secret: &[u8]) {
        if self.log.will_log(label) {
            self.log.log(label, client_random, secret);
        }
        if let Some(at) = LABELS.iter().position(|known| *known == label) {
            self.kept.lock().unwrap_or_else(PoisonError::into_inner)[at] = Some(secret.to_vec().into());
        }
    }

    fn will_log(&self, label: &str) -> bool {
        LABELS.contains(&label) || self.log.will_log(label)
    }
}

fn known(version: u32) -> Result<Version, UnsupportedVersion> {
    if version == 1 { Ok(Version::V1) } else { Err(UnsupportedVersion) }
}

fn written(parameters: &TransportParameters) -> Vec<u8> {
    let mut bytes = Vec::new();
    parameters.write(&mut bytes);
    bytes
}

/// Returns the key and nonce of Retry integrity tags (RFC 9001 5.8).
fn retry_key() -> (aead::LessSafeKey, aead::Nonce) {
    let key = 0xbe0c_690b_9f66_575a_1d76_6b54_e368_c84e_u128.to_be_bytes();
    let nonce = [0x46, 0x15, 0x99, 0xd3, 0x5d, 0x63, 0x2b, 0xf2, 0x23, 0x98, 0x25, 0xbb];
    let key = aead::UnboundKey::new(&aead::AES_128_GCM, &key).expect("as long as AES-128 wants");
    (aead::LessSafeKey::new(key), aead::Nonce::assume_unique_for_key(nonce))
}

const LABELS: [&str; 2] = ["CLIENT_TRAFFIC_SECRET_0", "SERVER_TRAFFIC_SECRET_0"];
