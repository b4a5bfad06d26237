//! TLS handshakes by rustls. This is the only file that uses rustls' unbuffered and kernel-connection APIs.
//!
//! Invariant: rustls gets one record at a time, and no record after the last record of the handshake. Every data record
//! therefore reaches the record layer with its sequence number and the device's verdict.

use crate::exporter::ExporterLog;
use crate::keys::{KeySchedule, ScheduleError, TrafficKeys, UnsupportedKey};
use crate::messages::HandshakeRole;
use crate::record::HEADER_LEN;
use crate::record::inbox::RecordInbox;
use crate::stream::{HandshakeState, KtlsStream};
use bytes::Bytes;
use core::fmt;
use core::future::poll_fn;
use offload_api::{SegmentStream, TlsKey, TlsSuite, TlsVersion, TxTag};
use offload_base::Seq;
use offload_base::cost::{self, WorkKind};
use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::kernel::KernelConnection;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::{
    Accepted, AcceptedAlert, Acceptor, ClientHello, ServerConnectionData, UnbufferedServerConnection,
};
use rustls::unbuffered::{ConnectionState, EncodeError, UnbufferedStatus};
use rustls::{
    CipherSuite, ClientConfig, CommonState, ConnectionTrafficSecrets, ExtractedSecrets, HandshakeKind, ProtocolVersion,
    ServerConfig,
};
use std::io;
use std::sync::Arc;

/// Performs a client handshake over a stream on which no bytes were sent yet, and returns the TLS stream.
///
/// `config` needs [`enable_secret_extraction`](ClientConfig::enable_secret_extraction), and TLS 1.2 or 1.3. Records
/// begin in software; [`KtlsStream::offload`] moves them to a device. Dropping the future abandons the connection.
///
/// ```
/// use ktls_offload::{accept, api::TokioSegments, connect};
/// use rustls::pki_types::PrivatePkcs8KeyDer;
/// use rustls::{ClientConfig, RootCertStore, ServerConfig};
/// use std::sync::Arc;
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let certified = rcgen::generate_simple_self_signed(["localhost".to_string()])?;
/// let mut roots = RootCertStore::empty();
/// roots.add(certified.cert.der().clone())?;
/// let mut client = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
/// client.enable_secret_extraction = true;
/// let key = PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der());
/// let mut server =
///     ServerConfig::builder().with_no_client_auth().with_single_cert(vec![certified.cert.into()], key.into())?;
/// server.enable_secret_extraction = true;
///
/// let (near, far) = tokio::io::duplex(1 << 16); // or two ends of a TCP connection
/// let (client, server) = tokio::join!(
///     connect(TokioSegments::new(near), Arc::new(client), "localhost".try_into()?),
///     accept(TokioSegments::new(far), Arc::new(server)),
/// );
/// let (mut client, mut server) = (client?, server?);
/// client.write_all(b"hello").await?;
/// client.close().await?;
/// let mut hello = String::new();
/// server.read_to_string(&mut hello).await?;
/// assert_eq!(hello, "hello");
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`HandshakeError`]. If the peer is at fault, an alert is sent first. The connection is closed in any case.
pub async fn connect<S: SegmentStream>(
    stream: S,
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
) -> Result<KtlsStream<S>, HandshakeError> {
    if !config.enable_secret_extraction {
        return Err(HandshakeError::SecretExtractionDisabled);
    }
    let server_name = match &name {
        ServerName::DnsName(name) if config.enable_sni => Some(name.as_ref().to_owned()),
        _ => None, // RFC 6066 section 3: IP addresses are not sent
    };
    let log = ExporterLog::wrap(&config.key_log);
    let mut config = ClientConfig::clone(&config);
    config.key_log = log.clone();
    run(stream, UnbufferedClientConnection::new(Arc::new(config), name)?, HandshakeRecords::default(), server_name, log)
        .await
}

/// Performs a server handshake; see [`connect`].
///
/// `config` must not offer early data, because early data would never be read.
///
/// # Errors
/// The errors of [`connect`], and [`HandshakeError::EarlyDataEnabled`].
pub async fn accept<S: SegmentStream>(
    mut stream: S,
    config: Arc<ServerConfig>,
) -> Result<KtlsStream<S>, HandshakeError> {
    check(&config)?;
    let mut records = HandshakeRecords::default();
    match records.receive_hello(&mut stream).await {
        // If the ClientHello is invalid, the rustls connection meets the same error and answers according to its
        // configuration.
        Ok(hello) => {
            let server_name = hello.ok().and_then(|accepted| server_name(&accepted));
            serve(stream, config, records, server_name).await
        }
        Err(error) => give_up(stream, error).await,
    }
}

/// A connection with a parsed ClientHello and no reply yet, so that a server can choose its configuration.
///
/// ```
/// use ktls_offload::{HandshakeError, KtlsStream, SegmentStream, StartHandshake};
/// use rustls::ServerConfig;
/// use std::sync::Arc;
///
/// async fn accept<S: SegmentStream>(
///     stream: S,
///     configs: [Arc<ServerConfig>; 2],
/// ) -> Result<KtlsStream<S>, HandshakeError> {
///     let start = StartHandshake::read(stream).await?;
///     let [usual, internal] = configs;
///     let is_internal = start.client_hello().server_name() == Some("internal.example");
///     start.into_stream(if is_internal { internal } else { usual }).await
/// }
/// ```
pub struct StartHandshake<S> {
    stream: S,
    accepted: Accepted,
    records: HandshakeRecords,
}

impl<S: SegmentStream> StartHandshake<S> {
    /// Reads the ClientHello.
    ///
    /// # Errors
    /// [`HandshakeError`]. The peer gets an alert, and the connection is closed.
    pub async fn read(mut stream: S) -> Result<StartHandshake<S>, HandshakeError> {
        let mut records = HandshakeRecords::default();
        let error = match records.receive_hello(&mut stream).await {
            Ok(Ok(accepted)) => return Ok(StartHandshake { stream, accepted, records }),
            Ok(Err((error, mut alert))) => {
                let mut bytes = Vec::new();
                if alert.write_all(&mut bytes).is_ok() && !bytes.is_empty() {
                    records.send(&mut stream, bytes);
                }
                error.into()
            }
            Err(error) => error,
        };
        give_up(stream, error).await
    }

    /// Returns the ClientHello: the server name, application protocols and suites that the client offers.
    pub fn client_hello(&self) -> ClientHello<'_> {
        self.accepted.client_hello()
    }

    /// Completes the handshake with the chosen configuration.
    ///
    /// # Errors
    /// The errors of [`accept`].
    pub async fn into_stream(self, config: Arc<ServerConfig>) -> Result<KtlsStream<S>, HandshakeError> {
        check(&config)?;
        let server_name = server_name(&self.accepted);
        serve(self.stream, config, self.records, server_name).await
    }
}

impl<S> fmt::Debug for StartHandshake<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StartHandshake").field("server_name", &server_name(&self.accepted)).finish_non_exhaustive()
    }
}

/// Runs a server handshake with the ClientHello in `records`.
async fn serve<S: SegmentStream>(
    stream: S,
    config: Arc<ServerConfig>,
    records: HandshakeRecords,
    server_name: Option<String>,
) -> Result<KtlsStream<S>, HandshakeError> {
    let log = ExporterLog::wrap(&config.key_log);
    let mut config = ServerConfig::clone(&config);
    config.key_log = log.clone();
    run(stream, UnbufferedServerConnection::new(Arc::new(config))?, records, server_name, log).await
}

fn server_name(accepted: &Accepted) -> Option<String> {
    accepted.client_hello().server_name().map(str::to_owned)
}

/// Checks that the configuration lets this crate take over the record layer.
fn check(config: &ServerConfig) -> Result<(), HandshakeError> {
    if !config.enable_secret_extraction {
        return Err(HandshakeError::SecretExtractionDisabled);
    }
    // Early data are protected by a key that this crate does not have.
    if config.max_early_data_size != 0 {
        return Err(HandshakeError::EarlyDataEnabled);
    }
    Ok(())
}

/// Error of a handshake.
///
/// ```
/// use ktls_offload::HandshakeError;
///
/// let error = std::io::Error::from(HandshakeError::SecretExtractionDisabled);
/// assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// Caller's fault: the configuration does not release the keys.
    #[error("the rustls configuration keeps its secrets: set enable_secret_extraction to true")]
    SecretExtractionDisabled,
    /// Caller's fault: the configuration offers early data.
    #[error("the rustls configuration offers early data, which is not supported: set max_early_data_size to 0")]
    EarlyDataEnabled,
    /// The transport failed.
    #[error("the transport failed: {0}")]
    Io(#[from] io::Error),
    /// The peer closed the connection before the handshake was complete.
    #[error("the peer closed the connection during the handshake")]
    Closed,
    /// TLS failed; [`rustls::Error`] tells the cause.
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// The negotiated version has no supported record format.
    #[error("{0:?} is not supported")]
    UnsupportedVersion(ProtocolVersion),
    /// The negotiated suite has no supported record format.
    #[error("{0:?} is not supported")]
    UnsupportedSuite(CipherSuite),
    /// Peer's fault: a handshake message exceeds the maximum length.
    #[error("peer's fault: a handshake message is too long")]
    TooLong,
    /// Peer's fault: an incomplete message follows the handshake.
    #[error("peer's fault: a piece of a message follows the handshake")]
    Trailing,
}

impl From<HandshakeError> for io::Error {
    fn from(error: HandshakeError) -> io::Error {
        let kind = match &error {
            HandshakeError::Io(error) => error.kind(),
            HandshakeError::Closed => io::ErrorKind::UnexpectedEof,
            HandshakeError::SecretExtractionDisabled | HandshakeError::EarlyDataEnabled => io::ErrorKind::InvalidInput,
            HandshakeError::UnsupportedVersion(_) | HandshakeError::UnsupportedSuite(_) => io::ErrorKind::Unsupported,
            _ => io::ErrorKind::InvalidData,
        };
        io::Error::new(kind, error)
    }
}

/// The outcome of a handshake.
///
/// ```
/// use ktls_offload::Negotiated;
///
/// fn is_http2(negotiated: &Negotiated) -> bool {
///     negotiated.alpn.as_deref() == Some(b"h2")
/// }
/// assert!(!is_http2(&Negotiated::default()));
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Negotiated {
    /// The DNS name in the client's SNI extension (RFC 6066). `None` if the client sent no name.
    pub server_name: Option<String>,
    /// The protocol version.
    pub version: Option<ProtocolVersion>,
    /// The application protocol.
    pub alpn: Option<Vec<u8>>,
    /// The cipher suite.
    pub suite: Option<CipherSuite>,
    /// The peer's certificate chain, its own certificate first.
    pub peer_certificates: Vec<CertificateDer<'static>>,
    /// The kind of handshake: full or resumed.
    pub kind: Option<HandshakeKind>,
}

/// Runs a handshake to completion. On failure, sends the alert and closes the stream.
async fn run<S: SegmentStream, C: RustlsConnection>(
    mut stream: S,
    connection: C,
    records: HandshakeRecords,
    server_name: Option<String>,
    log: Arc<ExporterLog>,
) -> Result<KtlsStream<S>, HandshakeError> {
    let mut handshake = Handshake { connection, records };
    let concluded = match handshake.drive(&mut stream).await {
        Ok(()) => {
            // In a TLS 1.2 handshake either end may send the last message.
            let is_12 = handshake.connection.common().protocol_version() == Some(ProtocolVersion::TLSv1_2);
            handshake.conclude(server_name, &log).map(|established| (established, C::PEER_WAITS || is_12))
        }
        Err(error) => Err(error),
    };
    match concluded {
        Ok((established, peer_waits)) => {
            stream.flush();
            // The peer cannot continue without these bytes, even if the application never polls the stream again.
            if peer_waits {
                // An error here is ignored: the peer's last data may still be readable.
                let _ = poll_fn(|cx| stream.poll_committed(cx)).await;
            }
            let stream = KtlsStream::established(stream, established);
            let Negotiated { server_name, version, suite, kind, .. } = stream.negotiated();
            tracing::debug!(role = ?C::ROLE, server_name, ?version, ?suite, ?kind, "handshake done");
            Ok(stream)
        }
        Err(error) => give_up(stream, error).await,
    }
}

/// Closes the stream after any queued alert, and returns `error`.
async fn give_up<S: SegmentStream, T>(mut stream: S, error: HandshakeError) -> Result<T, HandshakeError> {
    tracing::debug!(%error, "handshake failed");
    stream.finish();
    // The handshake error is more informative than a failure to deliver the alert.
    let _ = poll_fn(|cx| stream.poll_committed(cx)).await;
    Err(error)
}

/// A handshake in progress.
struct Handshake<C> {
    connection: C,
    records: HandshakeRecords,
}

/// The records of a handshake in both directions.
#[derive(Default)]
struct HandshakeRecords {
    inbox: RecordInbox,
    /// Bytes already reported to the transport's `consume`, although their record is incomplete.
    early_credit: usize,
    /// Bytes of records that rustls has not finished with.
    incoming: Vec<u8>,
    /// The sequence number of the next byte to send, and the number of bytes sent. `None` before the first byte.
    next: Option<(Seq, u64)>,
}

/// The next action that rustls requires.
enum HandshakeAction {
    /// Call rustls again.
    Again,
    /// Send these bytes.
    Send(Vec<u8>),
    /// Receive another record.
    Record,
    /// No action: rustls is ready for data, so the handshake may be complete.
    Traffic,
    /// Stop: the peer closed the connection.
    Closed,
}

impl<C: RustlsConnection> Handshake<C> {
    async fn drive<S: SegmentStream>(&mut self, stream: &mut S) -> Result<(), HandshakeError> {
        loop {
            match self.step() {
                Err(error) => {
                    self.send_alerts(stream);
                    let disagrees = matches!(error, rustls::Error::PeerIncompatible(_) | rustls::Error::General(_));
                    if C::ROLE == HandshakeRole::Server && self.records.next.is_none() && disagrees {
                        // rustls sends no alert to a TLS 1.2 client that supports no signature scheme of the server's
                        // key. RFC 8446 section 6.2 demands one.
                        self.records.send(stream, HANDSHAKE_FAILURE.to_vec());
                    }
                    return Err(error.into());
                }
                Ok(HandshakeAction::Again) => {}
                Ok(HandshakeAction::Send(bytes)) => self.records.send(stream, bytes),
                // A server may write data before the client's Finished arrives, but the handshake is complete only
                // after Finished.
                Ok(HandshakeAction::Traffic) if !self.connection.common().is_handshaking() => return Ok(()),
                // The records of a flight are flushed together, just before waiting for the peer.
                Ok(HandshakeAction::Traffic | HandshakeAction::Record) => {
                    stream.flush();
                    self.records.receive(stream).await?;
                }
                Ok(HandshakeAction::Closed) => return Err(HandshakeError::Closed),
            }
        }
    }

    /// Lets rustls take one step.
    fn step(&mut self) -> Result<HandshakeAction, rustls::Error> {
        let _crypto = cost::work(WorkKind::Crypto);
        let UnbufferedStatus { discard, state, .. } = self.connection.process(&mut self.records.incoming);
        let step = match state {
            Ok(ConnectionState::EncodeTlsData(mut data)) => {
                let mut bytes = Vec::new();
                if let Err(EncodeError::InsufficientSize(size)) = data.encode(&mut bytes) {
                    bytes.resize(size.required_size, 0);
                    data.encode(&mut bytes).map_err(|_| rustls::Error::EncryptError)?;
                }
                Ok(HandshakeAction::Send(bytes))
            }
            Ok(ConnectionState::TransmitTlsData(data)) => {
                data.done(); // the encoded bytes are queued already
                Ok(HandshakeAction::Again)
            }
            Ok(ConnectionState::BlockedHandshake) => Ok(HandshakeAction::Record),
            Ok(ConnectionState::WriteTraffic(_)) => Ok(HandshakeAction::Traffic),
            Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => Ok(HandshakeAction::Closed),
            // rustls never gets data records.
            Ok(_) => Err(rustls::Error::General("data inside the handshake".into())),
            Err(error) => Err(error),
        };
        self.records.incoming.drain(..discard);
        step
    }

    /// Sends the alerts that rustls queued for the peer after an error.
    fn send_alerts<S: SegmentStream>(&mut self, stream: &mut S) {
        // Stop when rustls has nothing to write: one step more would process the invalid record again.
        while self.connection.common().wants_write() {
            let Ok(HandshakeAction::Send(bytes)) = self.step() else { return };
            self.records.send(stream, bytes);
        }
    }

    /// Extracts the keys and the negotiated parameters.
    fn conclude(self, server_name: Option<String>, log: &ExporterLog) -> Result<HandshakeState, HandshakeError> {
        // A leftover fragment would be part of a message that spans the key change (RFC 8446 section 5.1).
        if !self.records.incoming.is_empty() {
            return Err(HandshakeError::Trailing);
        }
        let common = self.connection.common();
        let exporter = log.exporter(common.negotiated_cipher_suite());
        let suite = common.negotiated_cipher_suite().map(|suite| suite.suite());
        let negotiated = Negotiated {
            server_name,
            version: common.protocol_version(),
            alpn: common.alpn_protocol().map(<[u8]>::to_vec),
            suite,
            peer_certificates: common
                .peer_certificates()
                .map(|chain| chain.iter().map(|certificate| certificate.clone().into_owned()).collect())
                .unwrap_or_default(),
            kind: common.handshake_kind(),
        };
        let version = match common.protocol_version() {
            Some(ProtocolVersion::TLSv1_2) => TlsVersion::Tls12,
            Some(ProtocolVersion::TLSv1_3) => TlsVersion::Tls13,
            other => return Err(HandshakeError::UnsupportedVersion(other.unwrap_or(ProtocolVersion::Unknown(0)))),
        };
        let unsupported = HandshakeError::UnsupportedSuite(suite.unwrap_or(CipherSuite::Unknown(0)));
        // This consumes the rustls connection: from here on the record layer alone counts records.
        let (secrets, schedule) = self.connection.into_keys()?;
        let (Some(transmit), Some(receive)) = (traffic_key(version, secrets.tx.1), traffic_key(version, secrets.rx.1))
        else {
            return Err(unsupported);
        };
        let keys = TrafficKeys { transmit: (secrets.tx.0, transmit), receive: (secrets.rx.0, receive) };
        HandshakeState::new(keys, schedule, Some(C::ROLE), self.records.inbox, self.records.next)
            .map(|established| established.with_negotiated(negotiated, exporter))
            .map_err(|UnsupportedKey { .. }| unsupported)
    }
}

impl HandshakeRecords {
    fn send<S: SegmentStream>(&mut self, stream: &mut S, bytes: Vec<u8>) {
        let length = bytes.len();
        let sent = self.next.map_or(0, |(_, sent)| sent) + length as u64;
        self.next = Some((stream.send(Bytes::from(bytes), TxTag::PLAIN) + length as u32, sent));
    }

    /// Receives the ClientHello and keeps its records for the rustls connection.
    async fn receive_hello<S: SegmentStream>(
        &mut self,
        stream: &mut S,
    ) -> Result<Result<Accepted, (rustls::Error, AcceptedAlert)>, HandshakeError> {
        let mut acceptor = Acceptor::default();
        loop {
            // The acceptor keeps earlier records itself, so it gets only the new one.
            let known = self.incoming.len();
            self.receive(stream).await?;
            let mut record = &self.incoming[known..];
            while !record.is_empty() {
                acceptor.read_tls(&mut record).map_err(|_| HandshakeError::TooLong)?;
                let _crypto = cost::work(WorkKind::Crypto);
                if let Some(ended) = acceptor.accept().transpose() {
                    return Ok(ended);
                }
            }
        }
    }

    /// Appends the next record to the input of rustls.
    async fn receive<S: SegmentStream>(&mut self, stream: &mut S) -> Result<(), HandshakeError> {
        loop {
            if let Some(header) = self.inbox.header_at(0) {
                let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
                let plausible = (20..=24).contains(&header[0]) && header[1] == 3 && length <= RECORD_MAX;
                // An implausible header is not TLS. rustls reports the error from the header alone, so the body is not
                // awaited.
                let take = if plausible { HEADER_LEN + length } else { HEADER_LEN };
                if self.inbox.len() >= take {
                    if self.incoming.len() + take > INCOMING_MAX {
                        return Err(HandshakeError::TooLong);
                    }
                    self.inbox.take(take, |range| self.incoming.extend_from_slice(&range.data));
                    // Bytes credited early must not be credited again.
                    let told = core::mem::take(&mut self.early_credit).min(take);
                    stream.consume(take - told);
                    return Ok(());
                }
            }
            let segment = poll_fn(|cx| {
                let segment = stream.poll_segment(cx);
                if segment.is_pending() {
                    // A window smaller than a record would otherwise never open again. The inbox holds at most one
                    // partial record, so the early credit stays small.
                    let due = self.inbox.len() - self.early_credit;
                    if due > 0 {
                        self.early_credit += due;
                        stream.consume(due);
                    }
                }
                segment
            });
            match segment.await? {
                Some(segment) => self.inbox.push(segment),
                None => return Err(HandshakeError::Closed),
            }
        }
    }
}

/// A common interface for client and server connections of rustls.
trait RustlsConnection {
    type Data;
    /// Whether the peer waits for the last flight of this end. A server's last flight is its tickets, which the client
    /// may read late.
    const PEER_WAITS: bool;
    const ROLE: HandshakeRole;
    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;
    fn common(&self) -> &CommonState;
    fn into_keys(self) -> Result<(ExtractedSecrets, Box<dyn KeySchedule>), rustls::Error>;
}

impl RustlsConnection for UnbufferedClientConnection {
    type Data = ClientConnectionData;
    const PEER_WAITS: bool = true;
    const ROLE: HandshakeRole = HandshakeRole::Client;

    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, ClientConnectionData> {
        self.process_tls_records(incoming)
    }

    fn common(&self) -> &CommonState {
        self
    }

    fn into_keys(self) -> Result<(ExtractedSecrets, Box<dyn KeySchedule>), rustls::Error> {
        let (secrets, kernel) = self.dangerous_into_kernel_connection()?;
        Ok((secrets, Box::new(ClientSchedule(kernel))))
    }
}

impl RustlsConnection for UnbufferedServerConnection {
    type Data = ServerConnectionData;
    const PEER_WAITS: bool = false;
    const ROLE: HandshakeRole = HandshakeRole::Server;

    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, ServerConnectionData> {
        self.process_tls_records(incoming)
    }

    fn common(&self) -> &CommonState {
        self
    }

    fn into_keys(self) -> Result<(ExtractedSecrets, Box<dyn KeySchedule>), rustls::Error> {
        let (secrets, kernel) = self.dangerous_into_kernel_connection()?;
        Ok((secrets, Box::new(ServerSchedule(kernel))))
    }
}

struct ClientSchedule(KernelConnection<ClientConnectionData>);

impl KeySchedule for ClientSchedule {
    fn next_transmit_key(&mut self) -> Result<TlsKey, ScheduleError> {
        next_key(self.0.update_tx_secret())
    }

    fn next_receive_key(&mut self) -> Result<TlsKey, ScheduleError> {
        next_key(self.0.update_rx_secret())
    }

    fn store_ticket(&mut self, ticket: &[u8]) -> Result<(), ScheduleError> {
        self.0.handle_new_session_ticket(ticket).map_err(|_| ScheduleError::BadTicket)
    }
}

struct ServerSchedule(KernelConnection<ServerConnectionData>);

impl KeySchedule for ServerSchedule {
    fn next_transmit_key(&mut self) -> Result<TlsKey, ScheduleError> {
        next_key(self.0.update_tx_secret())
    }

    fn next_receive_key(&mut self) -> Result<TlsKey, ScheduleError> {
        next_key(self.0.update_rx_secret())
    }

    fn store_ticket(&mut self, _: &[u8]) -> Result<(), ScheduleError> {
        Err(ScheduleError::NoTickets)
    }
}

fn next_key(updated: Result<(u64, ConnectionTrafficSecrets), rustls::Error>) -> Result<TlsKey, ScheduleError> {
    updated.ok().and_then(|(_, secrets)| traffic_key(TlsVersion::Tls13, secrets)).ok_or(ScheduleError::NoMoreKeys)
}

/// Converts secrets that rustls extracted (`dangerous_extract_secrets`) into the key of one direction. Returns `None`
/// if the suite is not supported.
///
/// ```
/// use ktls_offload::traffic_key;
/// use offload_api::{TlsSuite, TlsVersion};
/// use rustls::ConnectionTrafficSecrets;
/// use rustls::crypto::cipher::{AeadKey, Iv};
///
/// let secrets = ConnectionTrafficSecrets::Chacha20Poly1305 { key: AeadKey::from([7; 32]), iv: Iv::from([1; 12]) };
/// let key = traffic_key(TlsVersion::Tls13, secrets).expect("an offload does ChaCha20-Poly1305");
/// assert_eq!((key.suite(), key.iv()), (TlsSuite::ChaCha20Poly1305, &[1; 12]));
/// ```
pub fn traffic_key(version: TlsVersion, secrets: ConnectionTrafficSecrets) -> Option<TlsKey> {
    let (suite, key, iv) = match secrets {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (TlsSuite::Aes128Gcm, key, iv),
        ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (TlsSuite::Aes256Gcm, key, iv),
        ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (TlsSuite::ChaCha20Poly1305, key, iv),
        _ => return None,
    };
    let iv: [u8; 12] = iv.as_ref().try_into().ok()?;
    // For AES-GCM with TLS 1.2, the IV is the salt followed by rustls' first explicit nonce; this crate continues from
    // that nonce.
    TlsKey::new(version, suite, key.as_ref(), iv)
}

/// Maximum length of a handshake record body: that of TLS 1.2.
const RECORD_MAX: usize = (1 << 14) + 2048;
/// Maximum input of rustls: a handshake message of 2^16 bytes, with a record before and after.
const INCOMING_MAX: usize = (1 << 16) + 2 * (HEADER_LEN + RECORD_MAX);
/// A record with a fatal handshake_failure alert.
const HANDSHAKE_FAILURE: [u8; 7] = [21, 3, 3, 0, 2, 2, 40];
