//! Interoperability with rustls' own record layer over kernel sockets, in both roles and with every suite; and failing
//! handshakes.

use ktls_offload::{AlertDescription, HandshakeError, KtlsStream, TlsError, accept, connect};
use offload_api::TokioSegments;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{
    CipherSuite, ClientConfig, ClientConnection, ConfigBuilder, ConnectionCommon, HandshakeKind, ProtocolVersion,
    RootCertStore, ServerConfig, ServerConnection, SideData, SignatureScheme, WantsVerifier,
};
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpListener;
use std::ops::DerefMut;
use std::sync::Arc;
use std::thread::JoinHandle;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const CIPHERS: [(ProtocolVersion, CipherSuite); 6] = [
    (ProtocolVersion::TLSv1_2, CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
    (ProtocolVersion::TLSv1_2, CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384),
    (ProtocolVersion::TLSv1_2, CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
    (ProtocolVersion::TLSv1_3, CipherSuite::TLS13_AES_128_GCM_SHA256),
    (ProtocolVersion::TLSv1_3, CipherSuite::TLS13_AES_256_GCM_SHA384),
    (ProtocolVersion::TLSv1_3, CipherSuite::TLS13_CHACHA20_POLY1305_SHA256),
];

struct TestIdentity {
    certificate: CertificateDer<'static>,
    key: Vec<u8>,
}

impl TestIdentity {
    fn new() -> TestIdentity {
        let certified = rcgen::generate_simple_self_signed(["localhost".to_string()]).unwrap();
        TestIdentity { certificate: certified.cert.into(), key: certified.signing_key.serialize_der() }
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).unwrap();
        roots
    }

    fn client(&self, suite: Option<CipherSuite>) -> ClientConfig {
        let mut provider = rustls::crypto::ring::default_provider();
        provider.cipher_suites.retain(|known| suite.is_none_or(|suite| known.suite() == suite));
        let builder: ConfigBuilder<ClientConfig, WantsVerifier> =
            ClientConfig::builder_with_provider(Arc::new(provider)).with_safe_default_protocol_versions().unwrap();
        let mut config = builder.with_root_certificates(self.roots()).with_no_client_auth();
        config.enable_secret_extraction = true;
        config.alpn_protocols = vec![b"offload".to_vec()];
        config
    }

    fn server(&self) -> ServerConfig {
        let key = PrivatePkcs8KeyDer::from(self.key.clone()).into();
        let mut config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![self.certificate.clone()], key)
            .unwrap();
        config.enable_secret_extraction = true;
        config.alpn_protocols = vec![b"offload".to_vec()];
        config
    }
}

fn name() -> ServerName<'static> {
    "localhost".try_into().unwrap()
}

/// Starts a peer with rustls' own records on a thread. The peer echoes until close_notify and changes its keys
/// meanwhile.
fn echo<C, D>(mut connection: C, mut socket: std::net::TcpStream) -> JoinHandle<io::Result<usize>>
where
    C: DerefMut<Target = ConnectionCommon<D>> + Send + 'static,
    D: SideData + 'static,
{
    std::thread::spawn(move || {
        let mut echoed = 0;
        let mut buffer = vec![0; 50_000];
        loop {
            let mut tls = rustls::Stream::new(&mut connection, &mut socket);
            let read = tls.read(&mut buffer)?;
            if read == 0 {
                break;
            }
            tls.write_all(&buffer[..read])?;
            // Only TLS 1.3 has key updates.
            let has_key_updates = connection.protocol_version() == Some(ProtocolVersion::TLSv1_3);
            if has_key_updates && (echoed + read) / 100_000 > echoed / 100_000 {
                connection.refresh_traffic_keys().map_err(io::Error::other)?;
            }
            echoed += read;
        }
        connection.send_close_notify();
        while connection.wants_write() {
            connection.write_tls(&mut socket)?;
        }
        Ok(echoed)
    })
}

/// Sends `bytes` bytes to the peer and back, and closes. Returns the numbers of key changes received and sent.
async fn exercise(stream: KtlsStream<TokioSegments<TcpStream>>, bytes: usize) -> (u64, u64) {
    let payload: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
    let expected = payload.clone();
    let (mut reader, mut writer) = stream.into_split();
    let write = async move {
        for chunk in payload.chunks(33_333) {
            writer.write_all(chunk).await.unwrap();
        }
        writer.flush().await.unwrap();
        writer
    };
    let read = async move {
        let mut got = vec![0; expected.len()];
        reader.read_exact(&mut got).await.unwrap();
        assert!(got == expected);
        reader
    };
    let (writer, reader) = tokio::join!(write, read);
    let mut stream = reader.unsplit(writer);
    stream.close().await.unwrap();
    assert_eq!(stream.next_chunk().await.unwrap(), None, "the peer closes too");
    (stream.counters().rx_rekey_ok, stream.counters().tx_rekey_ok)
}

#[tokio::test]
async fn as_a_client_of_rustls() {
    let identity = TestIdentity::new();
    let server_config = Arc::new(identity.server());
    for (version, suite) in CIPHERS {
        let config = Arc::new(identity.client(Some(suite)));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // The second connection resumes with a ticket that the first received after its handshake.
        for expected in [HandshakeKind::Full, HandshakeKind::Resumed] {
            let socket = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let server = ServerConnection::new(server_config.clone()).unwrap();
            let peer = echo(server, listener.accept().unwrap().0);
            let stream = connect(TokioSegments::new(socket), config.clone(), name()).await.unwrap();
            assert_eq!(stream.negotiated().suite, Some(suite));
            assert_eq!(stream.negotiated().version, Some(version));
            assert_eq!(stream.negotiated().alpn.as_deref(), Some(&b"offload"[..]));
            assert_eq!(stream.negotiated().kind, Some(expected));
            let (received, sent) = exercise(stream, 1_000_000).await;
            if version == ProtocolVersion::TLSv1_3 {
                // The echo peer changes its key every 100,000 bytes.
                assert!(received >= 5, "the peer changed keys {received} times");
                assert!(sent >= 1, "and requested the same");
            }
            assert_eq!(peer.join().unwrap().unwrap(), 1_000_000);
        }
    }
}

#[tokio::test]
async fn as_a_server_of_rustls() {
    let identity = TestIdentity::new();
    let config = Arc::new(identity.server());
    for (version, suite) in CIPHERS {
        let client_config = Arc::new(identity.client(Some(suite)));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        for expected in [HandshakeKind::Full, HandshakeKind::Resumed] {
            let socket = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let client = ClientConnection::new(client_config.clone(), name()).unwrap();
            let peer = echo(client, listener.accept().unwrap().0);
            let stream = accept(TokioSegments::new(socket), config.clone()).await;
            // rustls' client starts its handshake with the first read, which the echo thread performs.
            let stream = stream.unwrap();
            assert_eq!(stream.negotiated().kind, Some(expected));
            assert_eq!((stream.negotiated().version, stream.negotiated().suite), (Some(version), Some(suite)));
            exercise(stream, 1_000_000).await;
            assert_eq!(peer.join().unwrap().unwrap(), 1_000_000);
        }
    }
}

#[tokio::test]
async fn exporter_agrees_with_that_of_rustls() {
    let identity = TestIdentity::new();
    for (version, suite) in CIPHERS {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let mut client = ClientConnection::new(Arc::new(identity.client(Some(suite))), name()).unwrap();
        let mut peer = listener.accept().unwrap().0;
        let exporting = std::thread::spawn(move || {
            while client.is_handshaking() {
                client.complete_io(&mut peer).unwrap();
            }
            client.export_keying_material([0; 40], b"label", Some(b"context")).unwrap()
        });
        let stream = accept(TokioSegments::new(socket), Arc::new(identity.server())).await.unwrap();
        let (mut ours, theirs) = ([0; 40], exporting.join().unwrap());
        match stream.export_keying_material(&mut ours, b"label", b"context") {
            Ok(()) => assert_eq!(ours, theirs),
            Err(error) => assert_eq!((version, error.kind()), (ProtocolVersion::TLSv1_2, ErrorKind::Unsupported)),
        }
        assert!(stream.export_keying_material(&mut ours, &[b'x'; 300], b"").is_err());
    }
}

#[tokio::test]
async fn inner_stream_goes_on_in_plaintext() {
    let identity = TestIdentity::new();
    let (near, far) = tokio::io::duplex(1 << 16);
    let (client, server) = tokio::join!(
        connect(TokioSegments::new(near), Arc::new(identity.client(None)), name()),
        accept(TokioSegments::new(far), Arc::new(identity.server())),
    );
    let (mut client, mut server) = (client.unwrap(), server.unwrap());
    client.write_all(b"protected").await.unwrap();
    client.flush().await.unwrap();
    server.read_exact(&mut [0; 9]).await.unwrap();
    let (mut near, mut far) = (client.into_inner().unwrap(), server.into_inner().unwrap());
    near.write_all(b"plain").await.unwrap();
    let mut plain = [0; 5];
    far.read_exact(&mut plain).await.unwrap();
    assert_eq!(&plain, b"plain");
}

#[tokio::test]
async fn both_ends_ours_with_a_client_certificate() {
    let identity = TestIdentity::new();
    let verifier = WebPkiClientVerifier::builder(Arc::new(identity.roots())).build().unwrap();
    let key = || PrivatePkcs8KeyDer::from(identity.key.clone()).into();
    let mut server = ServerConfig::builder()
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![identity.certificate.clone()], key())
        .unwrap();
    server.enable_secret_extraction = true;
    let mut client = ClientConfig::builder()
        .with_root_certificates(identity.roots())
        .with_client_auth_cert(vec![identity.certificate.clone()], key())
        .unwrap();
    client.enable_secret_extraction = true;
    // A tiny pipe splits every record and message.
    let (near, far) = tokio::io::duplex(7);
    let (client, server) = tokio::join!(
        connect(TokioSegments::new(near), Arc::new(client), name()),
        accept(TokioSegments::new(far), Arc::new(server)),
    );
    let (mut client, mut server) = (client.unwrap(), server.unwrap());
    assert_eq!(server.negotiated().peer_certificates, std::slice::from_ref(&identity.certificate));
    let task = tokio::spawn(async move {
        client.write_all(&[5; 40_000]).await.unwrap();
        client.close().await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        answer
    });
    let mut got = Vec::new();
    server.read_to_end(&mut got).await.unwrap();
    assert_eq!(got, [5; 40_000]);
    // The client closed only its own direction (RFC 8446 section 6.1).
    server.write_all(b"a half-closed stream still answers").await.unwrap();
    server.close().await.unwrap();
    assert_eq!(task.await.unwrap(), "a half-closed stream still answers");
}

#[tokio::test]
async fn client_without_trusted_roots_sends_a_reason() {
    let identity = TestIdentity::new();
    let mut config = ClientConfig::builder().with_root_certificates(RootCertStore::empty()).with_no_client_auth();
    config.enable_secret_extraction = true;
    config.alpn_protocols = vec![b"offload".to_vec()];
    let (near, far) = tokio::io::duplex(1 << 16);
    let (client, server) = tokio::join!(
        connect(TokioSegments::new(near), Arc::new(config), name()),
        accept(TokioSegments::new(far), Arc::new(identity.server())),
    );
    assert!(matches!(client, Err(HandshakeError::Tls(rustls::Error::InvalidCertificate(_)))), "{client:?}");
    let Err(HandshakeError::Tls(rustls::Error::AlertReceived(alert))) = server else { panic!("{server:?}") };
    assert_eq!(AlertDescription(alert.into()), AlertDescription::UNKNOWN_CA);
}

#[tokio::test]
async fn client_without_a_common_signature_scheme_gets_an_alert() {
    let identity = TestIdentity::new();
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    let certificate = rcgen::CertificateParams::new(["localhost".to_string()]).unwrap().self_signed(&key).unwrap();
    for (version, suite) in CIPHERS {
        let mut server = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], PrivatePkcs8KeyDer::from(key.serialize_der()).into())
            .unwrap();
        server.enable_secret_extraction = true;
        let mut provider = identity.client(Some(suite)).crypto_provider().as_ref().clone();
        let known = provider.signature_verification_algorithms.mapping;
        // Without a common signature scheme the server cannot choose a certificate.
        let without = known.iter().filter(|(scheme, _)| *scheme != SignatureScheme::ED25519).copied();
        provider.signature_verification_algorithms.mapping = without.collect::<Vec<_>>().leak();
        let mut client = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(identity.roots())
            .with_no_client_auth();
        client.enable_secret_extraction = true;
        let (near, far) = tokio::io::duplex(1 << 16);
        let (client, server) = tokio::join!(
            connect(TokioSegments::new(near), Arc::new(client), name()),
            accept(TokioSegments::new(far), Arc::new(server)),
        );
        // Both ends must learn of the failure, not only the server.
        assert!(matches!(server, Err(HandshakeError::Tls(_))), "{version:?}: {server:?}");
        let Err(HandshakeError::Tls(rustls::Error::AlertReceived(alert))) = client else {
            panic!("{version:?}: {client:?}")
        };
        assert_eq!(AlertDescription(alert.into()), AlertDescription::HANDSHAKE_FAILURE, "{version:?}");
    }
}

#[tokio::test]
async fn client_learns_of_a_rejected_certificate_after_its_handshake() {
    let identity = TestIdentity::new();
    let verifier = WebPkiClientVerifier::builder(Arc::new(identity.roots())).build().unwrap();
    let key = PrivatePkcs8KeyDer::from(identity.key.clone()).into();
    let mut server = ServerConfig::builder()
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![identity.certificate.clone()], key)
        .unwrap();
    server.enable_secret_extraction = true;
    let (near, far) = tokio::io::duplex(1 << 16);
    let (client, server) = tokio::join!(
        connect(TokioSegments::new(near), Arc::new(identity.client(None)), name()),
        accept(TokioSegments::new(far), Arc::new(server)),
    );
    assert!(matches!(server, Err(HandshakeError::Tls(_))), "{server:?}");
    let error = client.unwrap().next_chunk().await.unwrap_err();
    let expected = TlsError::AlertReceived(AlertDescription::CERTIFICATE_REQUIRED);
    assert_eq!(error.get_ref().unwrap().downcast_ref(), Some(&expected));
}

#[tokio::test]
async fn misconfigurations_are_refused_before_anything_is_sent() {
    let identity = TestIdentity::new();
    let mut client = identity.client(None);
    client.enable_secret_extraction = false;
    let mut server = identity.server();
    server.max_early_data_size = 1000;
    let (near, mut far) = tokio::io::duplex(1 << 16);
    let error = connect(TokioSegments::new(near), Arc::new(client), name()).await.unwrap_err();
    assert!(matches!(error, HandshakeError::SecretExtractionDisabled));
    assert_eq!(far.read(&mut [0]).await.unwrap(), 0);
    let error = accept(TokioSegments::new(far), Arc::new(server)).await.unwrap_err();
    assert!(matches!(error, HandshakeError::EarlyDataEnabled));
}

#[tokio::test]
async fn invalid_handshake_gets_an_alert_or_a_close() {
    let server = Arc::new(TestIdentity::new().server());
    // A message with a length field far beyond the limit.
    let long = [&[22, 3, 1, 0x40, 0, 1, 0xff, 0xff, 0xff][..], &[0; 0x3ffc]].concat();
    let cases: [(&[u8], bool); 6] = [
        (b"GET / HTTP/1.1\r\n\r\n", true),
        (&[22, 3, 1, 0xff, 0xff, 1], true),
        (&[22, 3, 1, 0, 0, 22, 3, 1, 0, 0], true),
        (&[23, 3, 3, 0, 17, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17], true),
        (&long, false),
        (b"\x16\x03\x01", false),
    ];
    for (bytes, alerts) in cases {
        let (near, mut far) = tokio::io::duplex(1 << 20);
        far.write_all(bytes).await.unwrap();
        far.shutdown().await.unwrap();
        let error = accept(TokioSegments::new(near), server.clone()).await.unwrap_err();
        assert!(matches!(error, HandshakeError::Tls(_) | HandshakeError::Closed), "{error:?}");
        assert_ne!(io::Error::from(error).kind(), ErrorKind::Other);
        let mut answer = Vec::new();
        far.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer.first() == Some(&21), alerts, "{bytes:?} was answered with {answer:?}");
    }
}
