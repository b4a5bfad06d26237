//! Two endpoints without sockets, with datagrams passed by hand.

use super::crafted::CraftedPair;
use super::*;
use crate::endpoint::Endpoint;
use bytes::BytesMut;
use core::future::Future;
use core::task::{Context, Poll};
use offload_api::{DatagramSocket, EcnCodepoint, RxMeta, SendLimits, SendRefusal, SocketEvent, TxDatagram};
use offload_base::{Alarm, Clock, Seed, Timers};
use offload_testbed::identity::{Randomness, client_config, server_config, server_name};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

pub(super) const NOW: Instant = Instant::ZERO;

pub(super) fn config(seed: u64) -> Config {
    Config { random: Some(Seed(seed).into()), offload: crate::Offload::None, ..Config::default() }
}

fn server() -> EndpointCore {
    server_of(config(2))
}

pub(super) fn server_of(config: Config) -> EndpointCore {
    let tls = ServerTls::new(server_config(Randomness::Seeded(Seed(1)), None)).unwrap();
    let random = config.random.clone().unwrap();
    EndpointCore::new(config, Some(tls), &random, 443)
}

pub(super) fn client() -> EndpointCore {
    client_of(config(3))
}

pub(super) fn client_of(config: Config) -> EndpointCore {
    let random = config.random.clone().unwrap();
    EndpointCore::new(config, None, &random, 5000)
}

pub(super) fn connect(client: &mut EndpointCore) -> usize {
    let tls = ClientTls::new(client_config(Randomness::Seeded(Seed(4)), None)).unwrap();
    let name = server_name();
    client.connect(NOW, tls, address(443), &name.to_str()).unwrap()
}

pub(super) fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], port))
}

pub(super) fn datagram(from: u16, to: u16, data: BytesMut) -> Datagram {
    let meta = RxMeta::default();
    Datagram { from: address(from), to: address(to), ecn: EcnCodepoint::NotCapable, data, meta, joined: None }
}

/// Returns the endpoint's datagrams, one by one.
pub(super) fn sent(core: &mut EndpointCore) -> Vec<BytesMut> {
    sent_at(core, NOW)
}

fn sent_at(core: &mut EndpointCore, now: Instant) -> Vec<BytesMut> {
    core.expire(now);
    core.work(now);
    core.outgoing.plain.clear();
    let mut all = Vec::new();
    for out in core.outgoing.batch.drain(..) {
        let bytes = out.pieces.iter().fold(BytesMut::new(), |mut bytes, piece| {
            bytes.extend_from_slice(piece);
            bytes
        });
        let segment = out.segment.map_or(usize::MAX, |bytes| bytes.get().into());
        all.extend(bytes.chunks(segment.min(bytes.len())).map(BytesMut::from));
    }
    all
}

/// A socket that takes all datagrams or none, and counts them.
#[derive(Clone, Default)]
pub(super) struct CountingSocket {
    open: bool,
    sent: Arc<AtomicUsize>,
    fails: bool,
}

impl DatagramSocket for CountingSocket {
    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(address(443))
    }

    fn limits(&mut self, _: SocketAddr) -> SendLimits {
        SendLimits { bytes: 1472, segments: 1, segments_bytes: 1472 }
    }

    fn poll_send(&mut self, _: &mut Context<'_>, batch: &mut VecDeque<TxDatagram>) -> Poll<Result<usize, SendRefusal>> {
        if !self.open {
            return Poll::Pending;
        }
        self.sent.fetch_add(batch.len(), Ordering::Relaxed);
        Poll::Ready(Ok(batch.drain(..).count()))
    }

    fn poll_receive(&mut self, _: &mut Context<'_>, _: &mut Vec<Datagram>, _: usize) -> Poll<io::Result<usize>> {
        if self.fails { Poll::Ready(Err(io::ErrorKind::NetworkDown.into())) } else { Poll::Pending }
    }

    fn control(&mut self, _: &mut dyn FnMut(&mut dyn offload_api::Contexts)) -> bool {
        false
    }

    fn poll_device_event(&mut self, _: &mut Context<'_>) -> Poll<SocketEvent> {
        Poll::Pending
    }
}

/// A clock that stands still.
struct StoppedClock;

impl Clock for StoppedClock {
    fn now(&self) -> Instant {
        NOW
    }
}

impl Timers for StoppedClock {
    fn alarm(&self) -> Box<dyn Alarm> {
        Box::new(StoppedClock)
    }
}

impl Alarm for StoppedClock {
    fn poll(&mut self, _: &mut Context<'_>, _: Option<Instant>) -> Poll<()> {
        Poll::Pending
    }
}

/// A connection had no room for its packets, and then the socket takes all waiting ones: the connection continues at
/// once, not with the next datagram or deadline.
#[test]
fn blocked_connection_continues_when_the_socket_has_room() {
    let socket = CountingSocket { open: true, ..CountingSocket::default() };
    let (endpoint, driver) = Endpoint::new(socket.clone(), Arc::new(StoppedClock), config(3), None).unwrap();
    let tls = ClientTls::new(client_config(Randomness::Seeded(Seed(4)), None)).unwrap();
    let _connecting = endpoint.connect(&tls, address(443), &server_name().to_str()).unwrap();
    for _ in 0..MAX_WAITING {
        endpoint.shared.lock().outgoing.batch.push_back(TxDatagram::new(address(443), Default::default()));
    }
    let mut cx = Context::from_waker(Waker::noop());
    assert!(core::pin::pin!(driver).poll(&mut cx).is_pending());
    let sent = socket.sent.load(Ordering::Relaxed);
    assert!(sent > MAX_WAITING, "its first datagram is not among the {sent} that were sent");
}

/// Connections and waiting tasks get the socket's error as their reason.
#[test]
fn socket_error_reaches_connections_and_tasks() {
    let socket = CountingSocket { open: true, fails: true, ..CountingSocket::default() };
    let (endpoint, driver) = Endpoint::new(socket, Arc::new(StoppedClock), config(3), None).unwrap();
    let tls = ClientTls::new(client_config(Randomness::Seeded(Seed(4)), None)).unwrap();
    let connect = || endpoint.connect(&tls, address(443), &server_name().to_str());
    let mut connecting = core::pin::pin!(connect().unwrap());
    let mut cx = Context::from_waker(Waker::noop());
    let mut accepted = core::pin::pin!(endpoint.accept());
    assert!(accepted.as_mut().poll(&mut cx).is_pending() && endpoint.failure().is_none());
    let error = match core::pin::pin!(driver).poll(&mut cx) {
        Poll::Ready(Err(error)) => error.to_string(),
        other => panic!("{other:?}"),
    };
    let failure = Closed::Socket(error);
    assert!(matches!(accepted.poll(&mut cx), Poll::Ready(None)));
    assert_eq!(endpoint.failure(), Some(failure.clone()));
    assert!(matches!(connecting.as_mut().poll(&mut cx), Poll::Ready(Err(closed)) if closed == failure));
    assert_eq!(connect().err(), Some(ConnectError::Refused(failure.to_string())));
}

/// A client closes before the event of its established connection is processed: the connection must not count as
/// established.
#[test]
fn connection_closed_before_its_handshake_event_stays_closed() {
    let (mut client, mut server) = (client(), server());
    let at = connect(&mut client);
    for data in sent(&mut client) {
        server.receive(NOW, datagram(5000, 443, data));
    }
    let flight = sent(&mut server);
    // With a full queue, the connection's events wait.
    for _ in 0..MAX_WAITING {
        client.outgoing.batch.push_back(TxDatagram::new(address(443), Default::default()));
    }
    for data in flight {
        client.receive(NOW, datagram(443, 5000, data));
    }
    client.work(NOW);
    assert_eq!((client.established, client.connections[at].stage), (0, ConnectionStage::Handshake));
    // The application closes the connection before it is told that the connection is open.
    client.close(at, NOW, VarInt::from_u32(0), bytes::Bytes::new());
    client.outgoing.batch.clear();
    client.work(NOW);
    assert_eq!((client.established, client.connections[at].stage), (0, ConnectionStage::Closed));
    assert_eq!(client.counters.connections, 0);
}

/// An endpoint that cannot send keeps only a bounded number of answers to unknown hosts.
#[test]
fn answers_to_unknown_hosts_are_bounded() {
    let mut server = server();
    let mut cx = Context::from_waker(Waker::noop());
    for number in 0..1000u32 {
        // A long header with an unknown version, which is answered by version negotiation.
        let mut packet = BytesMut::from(&[0xc0, 0x1a, 0x2a, 0x3a, 0x4a, 8][..]);
        packet.extend_from_slice(&[7; 4]);
        packet.extend_from_slice(&number.to_be_bytes());
        packet.extend_from_slice(&[8, 9, 9, 9, 9, 9, 9, 9, 9]);
        packet.resize(1200, 0);
        server.receive(NOW, datagram(5000, 443, packet));
        assert!(!server.poll_send(&mut cx, &mut CountingSocket::default()) || number == 0);
    }
    assert_eq!(server.outgoing.batch.len(), MAX_WAITING);
    assert_eq!(server.counters.dropped, 1000 - MAX_WAITING as u64);
}

/// A panic of the state machine over one client's packet ends that connection only.
#[test]
fn panic_over_a_packet_ends_only_its_connection() {
    let mut server = server();
    let mut clients = [3, 4].map(|seed| client_of(config(seed)));
    for (client, port) in clients.iter_mut().zip([5000, 5001]) {
        let _ = connect(client);
        for _ in 0..3 {
            sent(client).into_iter().for_each(|data| server.receive(NOW, datagram(port, 443, data)));
            sent(&mut server).into_iter().for_each(|data| client.receive(NOW, datagram(443, port, data)));
        }
        assert_eq!(client.connections[0].stage, ConnectionStage::Open);
    }
    assert_eq!(server.connections.len(), 2);
    let ended = server.connections[0].record.clone();
    // The panic happens inside the call that guards connection 0.
    server.catch_panic(0, |_| panic!("as the state machine would"));
    server.work(NOW);
    assert_eq!((ended.why().as_ref(), server.counters.failed), (Some(&Closed::Failed), 1));
    assert!(server.connections.get(0).is_none() && server.connections.get(1).is_some());
    // The connection's index is free in both tables, and its client gets a reset when it sends.
    let mut third = client_of(config(5));
    connect(&mut third);
    sent(&mut third).into_iter().for_each(|data| server.receive(NOW, datagram(5002, 443, data)));
    assert_eq!((server.connections.len(), server.established), (2, 1));
    let told = clients[0].connections[0].record.clone();
    clients[0].connections[0].noq.ping();
    clients[0].note_ready(0);
    server.outgoing.batch.clear();
    sent(&mut clients[0]).into_iter().for_each(|data| server.receive(NOW, datagram(5000, 443, data)));
    for data in sent(&mut server) {
        clients[0].receive(NOW, datagram(443, 5000, data));
    }
    clients[0].work(NOW);
    assert_eq!(told.why().as_ref(), Some(&Closed::Reset));
}

/// Creates a server and connected clients, from port 5000 on.
fn connected<const N: usize>() -> (EndpointCore, [EndpointCore; N]) {
    let mut server = server_of(Config { stream_window: 4 << 20, ..config(2) });
    let clients = core::array::from_fn(|at| {
        let (mut client, port) = (client_of(config(3 + at as u64)), 5000 + at as u16);
        connect(&mut client);
        for _ in 0..3 {
            sent(&mut client).into_iter().for_each(|data| server.receive(NOW, datagram(port, 443, data)));
            sent(&mut server).into_iter().for_each(|data| client.receive(NOW, datagram(443, port, data)));
        }
        assert_eq!(client.connections[0].stage, ConnectionStage::Open);
        client
    });
    (server, clients)
}

/// The panic occurs while processing events, or bytes read from streams.
#[cfg(debug_assertions)] // Sums that overflow are what panics here.
#[test]
fn panic_in_events_or_streams_ends_only_its_connection() {
    let spoil: [fn(&mut EndpointCore); 2] = [
        |server| {
            // The next packet overflows the counter while events are processed.
            server.counters.opened_by_device = u64::MAX;
            server.connections[0].keyring.lock().opened[0] = 1;
        },
        |server| {
            let mut reading = unordered_reader::lock(&server.connections[0].reading);
            // The next byte overflows the count while the stream is read.
            reading.bytes = u64::MAX;
            reading.streams.entry(noq_proto::StreamId::from(noq_proto::VarInt::from_u32(2))).or_default();
        },
    ];
    for spoil in spoil {
        let (mut server, clients) = connected::<2>();
        server.counters.opened_by_device = 0;
        let ended = server.connections[0].record.clone();
        spoil(&mut server);
        for (mut client, port) in clients.into_iter().zip([5000, 5001]) {
            let conn = &mut client.connections[0];
            let id = conn.noq.streams().open(noq_proto::Dir::Uni).unwrap();
            conn.noq.send_stream(id).write(&[7; 100]).unwrap();
            client.note_ready(0);
            sent(&mut client).into_iter().for_each(|data| server.receive(NOW, datagram(port, 443, data)));
            let _ = sent(&mut server);
            assert_eq!((ended.why().as_ref(), server.counters.failed), (Some(&Closed::Failed), 1), "client at {port}");
            server.counters.opened_by_device = 0;
        }
        let id = server.connections[1].noq.streams().accept(noq_proto::Dir::Uni).unwrap();
        assert!(matches!(server.connections[1].read_stream(id, 100), (ReadResult::Data(data), _) if data.len() == 100));
    }
}

/// The state machine panics over a datagram of no connection, or over a client's first datagram: the datagram is
/// dropped, and the tables stay consistent.
#[test]
fn panic_over_an_unknown_datagram_drops_it() {
    #[derive(Debug)]
    struct FailsOnce(Arc<dyn rustls::server::ResolvesServerCert>, std::sync::atomic::AtomicBool);
    impl rustls::server::ResolvesServerCert for FailsOnce {
        fn resolve(&self, hello: rustls::server::ClientHello<'_>) -> Option<Arc<rustls::sign::CertifiedKey>> {
            assert!(self.1.swap(true, Ordering::Relaxed), "as a state machine would");
            self.0.resolve(hello)
        }
    }
    let mut tls = server_config(Randomness::Seeded(Seed(1)), None);
    // The first client's handshake panics in rustls.
    tls.cert_resolver = Arc::new(FailsOnce(tls.cert_resolver.clone(), Default::default()));
    let config = config(2);
    let random = config.random.clone().unwrap();
    let mut server = EndpointCore::new(config, Some(ServerTls::new(tls).unwrap()), &random, 443);
    for (seed, dropped, connections) in [(3, 1, 0), (4, 1, 1), (5, 1, 2)] {
        let (mut client, port) = (client_of(self::config(seed)), 5000 + seed as u16);
        connect(&mut client);
        for _ in 0..3 {
            sent(&mut client).into_iter().for_each(|data| server.receive(NOW, datagram(port, 443, data)));
            sent(&mut server).into_iter().for_each(|data| client.receive(NOW, datagram(443, port, data)));
        }
        assert_eq!((server.counters.dropped, server.established), (dropped, connections), "client {seed}");
        assert_eq!(server.noq.open_connections(), server.connections.len());
    }
    struct Fails;
    impl noq_proto::crypto::HmacKey for Fails {
        fn sign(&self, _: &[u8], _: &mut [u8]) {
            panic!("as a state machine would");
        }

        fn signature_len(&self) -> usize {
            32
        }

        fn verify(&self, _: &[u8], _: &[u8]) -> Result<(), noq_proto::crypto::CryptoError> {
            Ok(())
        }
    }
    // A packet of an unknown connection is answered by a stateless reset.
    let mut endpoint = EndpointConfig::new(Arc::new(Fails));
    let random = server.client_cids.clone();
    endpoint.cid_generator(Arc::new(move || Box::new(RandomCids { random: random.clone(), bytes: 8 })));
    server.noq = noq_proto::Endpoint::new(Arc::new(endpoint), None, true);
    server.receive(NOW, datagram(6000, 443, BytesMut::from(&[0x40; 100][..])));
    assert_eq!(server.counters.dropped, 2);
}

/// Clients that start handshakes and then stop: even as many as a program allows do not block others.
#[test]
fn half_open_connections_do_not_block_clients() {
    // The limits of h3_server and reservoir.
    let mut server = server_of(Config { max_connections: 1024, ..config(2) });
    let hello = |client: &mut EndpointCore| {
        connect(client);
        let first = sent(client).into_iter().next().unwrap();
        client.outgoing = OutgoingDatagrams::default();
        first
    };
    let mut strangers = client_of(Config { max_connections: 2000, ..config(3) });
    for port in 10_000..11_100 {
        let first = hello(&mut strangers);
        server.receive(NOW, datagram(port, 443, first));
        let _ = sent(&mut server);
    }
    assert_eq!((server.counters.refused, server.connections.len()), (0, 256));
    assert_eq!(server.counters.retries, 1100 - 256);
    let mut client = client_of(config(4));
    connect(&mut client);
    let mut now = NOW;
    for _ in 0..5 {
        // The state machine's pacer needs some time after a Retry.
        now += core::time::Duration::from_millis(100);
        for data in sent_at(&mut client, now) {
            server.receive(now, datagram(5000, 443, data));
        }
        for data in sent_at(&mut server, now) {
            client.receive(now, datagram(443, 5000, data));
        }
    }
    assert_eq!((client.connections[0].stage, server.established), (ConnectionStage::Open, 1));
    // Half-open connections end at their deadline.
    let late = NOW + Config::default().handshake;
    server.expire(late);
    while server.work(late) {
        server.outgoing = OutgoingDatagrams::default();
    }
    assert_eq!((server.counters.handshakes_timed_out, server.connections.len()), (256, 1));
    assert_eq!(server.noq.open_connections(), 1);
}

/// More clients than the limit shake hands at the same time: the last one is refused when its handshake is done.
#[test]
fn connection_beyond_the_limit_is_refused_after_its_handshake() {
    let mut server = server_of(Config { max_connections: 1, ..config(2) });
    let mut clients = [3, 4].map(|seed| client_of(config(seed)));
    for client in &mut clients {
        connect(client);
    }
    for _ in 0..4 {
        for (client, port) in clients.iter_mut().zip([5000, 5001]) {
            sent(client).into_iter().for_each(|data| server.receive(NOW, datagram(port, 443, data)));
        }
        // One queue has datagrams for both clients, so they are delivered by port.
        for out in {
            server.work(NOW);
            core::mem::take(&mut server.outgoing.batch)
        } {
            let client = &mut clients[usize::from(out.to.port() - 5000)];
            let bytes: Vec<u8> = out.pieces.iter().flatten().copied().collect();
            let segment = out.segment.map_or(usize::MAX, |bytes| bytes.get().into()).min(bytes.len());
            bytes
                .chunks(segment)
                .for_each(|data| client.receive(NOW, datagram(443, out.to.port(), BytesMut::from(data))));
        }
        server.outgoing.plain.clear();
    }
    assert_eq!((server.established, server.arrived.len(), server.counters.refused), (1, 1, 1));
    let closed = clients.map(|mut client| {
        client.work(NOW);
        client.connections[0].closed.clone()
    });
    assert!(matches!(&closed, [None, Some(Closed::ByPeer { code: 2, .. })]), "{closed:?}");
}

/// RFC 9000 6.1: clients of other versions, of a draft or of RFC 9369, get the list of supported versions and nothing
/// else.
#[test]
fn other_versions_are_answered_with_supported_ones() {
    for version in [0xff00_001du32, 0xff00_0022, 0x6b33_43cf] {
        let mut server = server();
        let mut packet = BytesMut::from(&[0xc0][..]);
        packet.extend_from_slice(&version.to_be_bytes());
        packet.extend_from_slice(&[8, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0x44, 0x00]);
        packet.resize(1200, 0);
        server.receive(NOW, datagram(5000, 443, packet));
        let answers = sent(&mut server);
        assert_eq!((answers.len(), server.connections.len()), (1, 0), "{version:x}");
        // Long header, version 0, no connection ID, and the client's connection ID.
        assert_eq!(answers[0][1..15], [0, 0, 0, 0, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8]);
        let versions: Vec<_> =
            answers[0][15..].chunks(4).map(|four| u32::from_be_bytes(four.try_into().unwrap())).collect();
        assert!(versions.len() == 2 && versions[0] & 0x0f0f_0f0f == 0x0a0a_0a0a && versions[1] == 1, "{versions:x?}");
    }
}

/// RFC 9000 20.1: clients without an application code, such as nghttp3's, leave with NO_ERROR. Other codes are errors.
#[test]
fn close_without_an_error_ends_normally() {
    for (code, expected) in [(0, Some(0)), (1, None)] {
        let mut crafted = CraftedPair::new(1 << 20, 1 << 20);
        // A transport CONNECTION_CLOSE: code, frame type, reason.
        crafted.send_payload(&[0x1c, code, 0, 3, b'b', b'y', b'e']);
        let closed = crafted.conn().closed.clone();
        let by_peer = match &closed {
            Some(Closed::ByPeer { code, reason }) if reason == "bye" => Some(*code),
            _ => None,
        };
        assert_eq!(by_peer, expected, "{closed:?}");
    }
}

/// A connection ends before the application accepts it, and another connection reuses its index.
#[test]
fn ended_connection_is_not_accepted() {
    let (mut server, _clients) = connected::<2>();
    assert_eq!(server.arrived, [0, 1]);
    server.discard(0, Closed::TimedOut);
    assert_eq!(server.arrived, [1]);
    let mut third = client_of(config(9));
    connect(&mut third);
    for _ in 0..3 {
        sent(&mut third).into_iter().for_each(|data| server.receive(NOW, datagram(5009, 443, data)));
        sent(&mut server).into_iter().for_each(|data| third.receive(NOW, datagram(443, 5009, data)));
    }
    assert_eq!((server.arrived, third.connections[0].stage), (VecDeque::from([1, 0]), ConnectionStage::Open));
}
