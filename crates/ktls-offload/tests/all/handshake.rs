//! Handshakes over transports with little room, and dropped handshake futures.

use crate::rig;

use ktls_offload::{
    HandshakeError, KtlsStream, SegmentStream, StartHandshake, TlsAcceptor, TlsConnector, accept, connect,
};
use rig::{MockTransport, MockWire};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

fn configs(version: &'static SupportedProtocolVersion) -> (Arc<ClientConfig>, Arc<ServerConfig>) {
    let certified = rcgen::generate_simple_self_signed(["localhost".to_string()]).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certified.cert.der().clone()).unwrap();
    let versions = [version];
    let mut client =
        ClientConfig::builder_with_protocol_versions(&versions).with_root_certificates(roots).with_no_client_auth();
    client.enable_secret_extraction = true;
    let key = PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der());
    let mut server = ServerConfig::builder_with_protocol_versions(&versions)
        .with_no_client_auth()
        .with_single_cert(vec![certified.cert.into()], key.into())
        .unwrap();
    server.enable_secret_extraction = true;
    (Arc::new(client), Arc::new(server))
}

/// Polls both ends until complete. Returns `None` if they wait for each other.
fn both<A, B>(wire: &MockWire, near: impl Future<Output = A>, far: impl Future<Output = B>) -> Option<(A, B)> {
    let (mut near, mut far) = (pin!(near), pin!(far));
    let mut cx = Context::from_waker(Waker::noop());
    let (mut near_end, mut far_end) = (None, None);
    // Each round moves at least a window of bytes.
    for _ in 0..10_000 {
        if near_end.is_none()
            && let Poll::Ready(end) = near.as_mut().poll(&mut cx)
        {
            near_end = Some(end);
        }
        if far_end.is_none()
            && let Poll::Ready(end) = far.as_mut().poll(&mut cx)
        {
            far_end = Some(end);
        }
        (0..2).for_each(|side| wire.pump(side, usize::MAX));
        if near_end.is_some() && far_end.is_some() {
            break;
        }
    }
    Some((near_end?, far_end?))
}

/// Performs a handshake with at most `window` bytes in flight. Returns `None` if both ends wait for each other.
fn shake(
    window: usize,
    version: &'static SupportedProtocolVersion,
) -> Option<(MockWire, KtlsStream<MockTransport>, KtlsStream<MockTransport>)> {
    let wire = MockWire::new(1);
    wire.lock().iter_mut().for_each(|half| half.window = window);
    let (a, b) = wire.ends();
    let (client, server) = configs(version);
    let (near, far) = both(&wire, connect(a, client, "localhost".try_into().unwrap()), accept(b, server))?;
    Some((wire, near.unwrap(), far.unwrap()))
}

#[test]
fn a_window_smaller_than_a_record_is_enough() {
    for version in [&TLS12, &TLS13] {
        for window in [1, 5, 300, 3000, usize::MAX] {
            let shaken = shake(window, version);
            let (wire, mut near, mut far) = shaken.unwrap_or_else(|| panic!("stuck with a window of {window} bytes"));
            // Bytes credited early must not be credited again.
            let mut cx = Context::from_waker(Waker::noop());
            let mut sending = pin!(near.send_chunk(vec![7; 1000].into()));
            assert!(sending.as_mut().poll(&mut cx).is_ready());
            let mut got = 0;
            for _ in 0..10_000 {
                if let Poll::Ready(chunk) = far.poll_chunk(&mut cx) {
                    got += chunk.unwrap().unwrap().len();
                }
                wire.pump(0, usize::MAX);
            }
            assert_eq!(got, 1000);
            let halves = wire.lock();
            assert_eq!(halves[1].consumed, halves[1].received);
        }
    }
}

#[test]
fn server_name_is_known_at_both_ends() {
    for version in [&TLS12, &TLS13] {
        let (client, server) = configs(version);
        let (connector, acceptor) = (TlsConnector::from(client.clone()), TlsAcceptor::from(server.clone()));
        let wire = MockWire::new(1);
        let (a, b) = wire.ends();
        let (near, far) =
            both(&wire, connector.connect("localhost".try_into().unwrap(), a), acceptor.accept(b)).expect("stuck");
        let names = [near.unwrap(), far.unwrap()].map(|stream| stream.negotiated().server_name.clone());
        assert_eq!(names, [Some("localhost".to_owned()), Some("localhost".to_owned())]);

        let mut silent = ClientConfig::clone(&client);
        // Without SNI neither end knows a server name.
        silent.enable_sni = false;
        let wire = MockWire::new(1);
        let (a, b) = wire.ends();
        let (near, far) = both(&wire, connect(a, Arc::new(silent), "localhost".try_into().unwrap()), accept(b, server))
            .expect("stuck");
        let names = [near.unwrap(), far.unwrap()].map(|stream| stream.negotiated().server_name.clone());
        assert_eq!(names, [None, None]);
    }
}

#[test]
fn server_chooses_its_configuration_by_the_hello() {
    for version in [&TLS12, &TLS13] {
        let (client, server) = configs(version);
        let wire = MockWire::new(1);
        let (a, b) = wire.ends();
        // Only the chosen configuration has the protocol that both ends negotiate below.
        let accepting = async move {
            let start = StartHandshake::read(b).await?;
            assert_eq!(start.client_hello().server_name(), Some("localhost"));
            let mut config = ServerConfig::clone(&server);
            config.alpn_protocols = vec![b"chosen".to_vec()];
            start.into_stream(Arc::new(config)).await
        };
        let mut offers = ClientConfig::clone(&client);
        offers.alpn_protocols = vec![b"other".to_vec(), b"chosen".to_vec()];
        let connecting = connect(a, Arc::new(offers), "localhost".try_into().unwrap());
        let (near, far) = both(&wire, connecting, accepting).expect("stuck");
        for stream in [near.unwrap(), far.unwrap()] {
            assert_eq!(stream.negotiated().alpn.as_deref(), Some(&b"chosen"[..]));
            assert_eq!(stream.negotiated().server_name.as_deref(), Some("localhost"));
        }
    }
}

#[test]
fn start_answers_garbage_with_an_alert() {
    let wire = MockWire::new(1);
    let (mut a, b) = wire.ends();
    a.send(bytes::Bytes::from_static(b"GET / HTTP/1.1\r\n\r\n"), offload_api::TxTag::PLAIN);
    let alert = async { std::future::poll_fn(|cx| a.poll_segment(cx)).await.unwrap().unwrap().data.to_vec() };
    let (alert, failed) = both(&wire, alert, StartHandshake::read(b)).expect("stuck");
    assert!(matches!(failed, Err(HandshakeError::Tls(_))), "{failed:?}");
    assert_eq!((alert[0], alert[5]), (21, 2), "a fatal alert: {alert:?}");
}
