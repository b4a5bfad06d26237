//! Handshakes over transports that give them little room, and futures of handshakes that are dropped.

use crate::rig;

use ktls_offload::{KtlsStream, accept, connect};
use rig::{End, Wire};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion};
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

/// Shakes hands with so many bytes under way at most; `None` if both wait for each other.
fn shake(
    window: usize,
    version: &'static SupportedProtocolVersion,
) -> Option<(Wire, KtlsStream<End>, KtlsStream<End>)> {
    let wire = Wire::new(1);
    wire.lock().iter_mut().for_each(|half| half.window = window);
    let (a, b) = wire.ends();
    let (client, server) = configs(version);
    let mut connecting = pin!(connect(a, client, "localhost".try_into().unwrap()));
    let mut accepting = pin!(accept(b, server));
    let mut cx = Context::from_waker(Waker::noop());
    let (mut near, mut far) = (None, None);
    // Each round moves at least a window of bytes.
    for _ in 0..10_000 {
        if near.is_none()
            && let Poll::Ready(ended) = connecting.as_mut().poll(&mut cx)
        {
            near = Some(ended.unwrap());
        }
        if far.is_none()
            && let Poll::Ready(ended) = accepting.as_mut().poll(&mut cx)
        {
            far = Some(ended.unwrap());
        }
        (0..2).for_each(|side| wire.pump(side, usize::MAX));
        if near.is_some() && far.is_some() {
            break;
        }
    }
    Some((wire, near?, far?))
}

#[test]
fn a_window_smaller_than_a_record_is_enough() {
    for version in [&TLS12, &TLS13] {
        for window in [1, 5, 300, 3000, usize::MAX] {
            let shaken = shake(window, version);
            let (wire, mut near, mut far) = shaken.unwrap_or_else(|| panic!("stuck with a window of {window} bytes"));
            // What was told to be done with early is not told again.
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
