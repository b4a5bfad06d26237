//! Datagrams into a QUIC endpoint that accepts connections, in software: each datagram is answered, dropped or
//! accepted, memory for handshakes is bounded, and nothing panics.
//!
//! Input: a byte of sender and delay, a word of length, that many bytes of datagram, and so on. Every other datagram
//! gets the outer form of a client's first one: version 1, and long enough.

use crate::input::Input;
use crate::still::{FuzzClock, Inbox, Socket};
use bytes::BytesMut;
use core::net::SocketAddr;
use core::pin::Pin;
use core::task::{Context, Waker};
use core::time::Duration;
use offload_base::{RandomSource, Seed};
use quic_offload::{Config, Endpoint, ServerTls};
use std::future::Future;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

/// Runs one input.
pub fn run(data: &[u8]) {
    let (clock, inbox) = (Arc::new(FuzzClock::default()), Inbox::default());
    let config = Config::default().with(|c| {
        c.random = Some(RandomSource::from(Seed(1)));
        c.retry_above = 2;
        // Low limits, so that the bounds are reached.
        c.max_handshakes = 4;
        c.max_connections = 6;
    });
    let socket = Socket(inbox.clone());
    let Ok((endpoint, mut driver)) = Endpoint::new(socket, clock.clone(), config, Some(tls())) else { return };
    let mut cx = Context::from_waker(Waker::noop());
    let mut input = Input(data);
    let mut count = 0u32;
    while !input.0.is_empty() && count < 64 {
        let (head, bytes) = (input.byte(), usize::from(input.word()) % 1500);
        let mut datagram = BytesMut::from(input.take(bytes));
        if count % 2 == 1 {
            shape(&mut datagram);
        }
        count += 1;
        clock.0.fetch_add(u64::from(head) << 20, Ordering::Relaxed);
        inbox.lock().expect("nobody panicked").push_back((SocketAddr::from(([10, 0, 0, head & 3], 999)), datagram));
        assert!(Pin::new(&mut driver).poll(&mut cx).is_pending());
    }
    let counters = endpoint.counters();
    assert!(counters.connections == 0, "no handshake can succeed by chance");
    assert_eq!(counters.opened_by_software + counters.opened_by_device, 0);
    // Every connection must end, even if its handshake was never completed.
    endpoint.close(0, "");
    for _ in 0..64 {
        clock.0.fetch_add(Duration::from_secs(60).as_nanos() as u64, Ordering::Relaxed);
        if Pin::new(&mut driver).poll(&mut cx).is_ready() {
            return;
        }
    }
    panic!("a connection does not end");
}

/// Gives a datagram the beginning of a client's first one.
fn shape(datagram: &mut BytesMut) {
    let len = datagram.len().max(1200);
    datagram.resize(len, 0);
    let first = 0xc0 | datagram[0] & 0x0f;
    datagram[..6].copy_from_slice(&[first, 0, 0, 0, 1, 8]);
    // The token is empty, and the length is the datagram's own.
    datagram[14..16].copy_from_slice(&[0, 0]);
    let rest = (len - 18) as u16 | 0x4000;
    datagram[16..18].copy_from_slice(&rest.to_be_bytes());
}

/// Returns the TLS configuration, which is built once because a key pair takes longer than an input.
fn tls() -> ServerTls {
    static TLS: OnceLock<ServerTls> = OnceLock::new();
    let make = || {
        let made = rcgen::generate_simple_self_signed(["server".to_string()]).expect("a name is a name");
        let key = rustls::pki_types::PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ServerConfig::builder_with_provider(provider);
        let builder = builder.with_protocol_versions(&[&rustls::version::TLS13]).expect("ring has TLS 1.3");
        let config = builder.with_no_client_auth().with_single_cert(vec![made.cert.der().clone()], key.into());
        ServerTls::new(config.expect("they belong together")).expect("ring has the suite")
    };
    TLS.get_or_init(make).clone()
}
