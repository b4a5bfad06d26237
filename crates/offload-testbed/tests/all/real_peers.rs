//! TLS with an independent peer: plain rustls on the kernel's sockets, on its own threads, bridged to an emulated host
//! with a NIC that handles the records of `ktls-offload`.
//!
//! The tests run in real time and do not depend on durations; a wait without an end times out.

use crate::rig;

use bytes::Bytes;
use core::future::Future;
use core::ops::{Deref, DerefMut};
use core::pin::pin;
use core::time::Duration;
use futures_util::future::{Either, join_all, select};
use ktls_offload::{KtlsStream, Offload, TlsCounters};
use nic_sim::wire::impairment::{Impairments, Reorder, Share};
use nic_sim::wire::{FrameRecorder, LinkConfig};
use nic_sim::{Delays, NicConfig};
use offload_base::Seed;
use offload_base::counters::CounterSet;
use offload_host_stack::{TcpConfig, TcpStream};
use offload_testbed::identity::{
    Randomness, authority, client_config, server_certificate, server_config, server_key, server_name,
};
use offload_testbed::{BedHost, ClockKind, Testbed, bridge};
use rig::MARKER;
use rustls::crypto::ring::{self, cipher_suite};
use rustls::{
    CipherSuite, ClientConfig, ClientConnection, ConnectionCommon, HandshakeKind, RootCertStore, ServerConfig,
    ServerConnection, SideData, StreamOwned, SupportedCipherSuite,
};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener as KernelListener, TcpStream as KernelStream};
use std::sync::Arc;
use std::thread;

#[test]
fn a_rustls_client_talks_to_our_server() {
    // Two rounds: the second round resumes the session with a ticket of the first.
    let talk = Talk { rounds: 2, ..Talk::default() };
    let outcome = to_our_server(&talk);
    outcome.check(&talk);
    outcome.check_nics_worked();
    let kinds: Vec<_> = outcome.theirs.iter().flatten().map(|theirs| theirs.kind).collect();
    assert_eq!(kinds, [Some(HandshakeKind::Full), Some(HandshakeKind::Resumed)]);
}

#[test]
fn our_client_talks_to_a_rustls_server() {
    let talk = Talk { we_close_first: true, ..Talk::default() };
    let outcome = to_rustls_server(&talk);
    outcome.check(&talk);
    outcome.check_nics_worked();
}

#[test]
fn peers_do_not_notice_a_rough_wire() {
    let talk = Talk { link: rough(), ..Talk::default() };
    for (outcome, who) in [(to_our_server(&talk), "our server"), (to_rustls_server(&talk), "our client")] {
        outcome.check(&talk);
        assert!(outcome.counters.value("wire_lost") > 0, "{who}: {:?}", outcome.counters);
        // Loss may move the receive direction to software for good, but the NIC still retransmits.
        assert!(outcome.counters.value("tx_tls_resync_bytes") > 0, "{who}: {:?}", outcome.counters);
    }
}

#[test]
fn peers_do_not_notice_resets_of_nics() {
    for (link, we_close_first) in [(LinkConfig::default(), false), (rough(), true)] {
        let turns = vec![(250, TalkAction::Reset), (750, TalkAction::Reset)];
        let talk = Talk { link, turns, we_close_first, ..Talk::default() };
        for (outcome, who) in [(to_our_server(&talk), "our server"), (to_rustls_server(&talk), "our client")] {
            outcome.check(&talk);
            assert_eq!(outcome.counters.value("resets"), 4, "{who}: {:?}", outcome.counters);
            for ours in outcome.ours.iter().flatten() {
                assert!(ours.tls.device_resets >= 1, "{who}: {:?}", ours.tls);
                // The flow returns to the device by itself; after the second reset only if the end writes more.
                assert!((2..=3).contains(&ours.tls.tx_device), "{who}: {:?}", ours.tls);
                assert!((2..=3).contains(&ours.tls.rx_device), "{who}: {:?}", ours.tls);
            }
        }
    }
}

#[test]
fn either_side_may_change_keys() {
    let turns = vec![(200, TalkAction::UpdateKeys), (700, TalkAction::UpdateKeys)];
    let talk = Talk { link: rough(), peer_updates_keys: true, turns, ..Talk::default() };
    for (outcome, who) in [(to_our_server(&talk), "our server"), (to_rustls_server(&talk), "our client")] {
        outcome.check(&talk);
        for ours in outcome.ours.iter().flatten() {
            // Each update asks for the peer's update too: two of ours and one of theirs make three.
            assert_eq!((ours.tls.tx_rekey_ok, ours.tls.rx_rekey_ok), (3, 3), "{who}: {:?}", ours.tls);
            // The NIC gets each key, unless the next key comes first.
            let on_device = (ours.tls.tx_rekey_device, ours.tls.rx_rekey_device);
            assert!(on_device.0 > 0 && on_device.1 > 0, "{who}: {:?}", ours.tls);
            assert_eq!(on_device.0 + ours.tls.tx_rekey_sw + ours.tls.tx_rekey_aborted, 3, "{who}: {:?}", ours.tls);
        }
    }
}

#[test]
fn clients_with_any_suite_are_served() {
    // rustls prefers AES-256.
    for (suites, agreed) in [
        (ring::default_provider().cipher_suites, CipherSuite::TLS13_AES_256_GCM_SHA384),
        (vec![cipher_suite::TLS13_CHACHA20_POLY1305_SHA256], CipherSuite::TLS13_CHACHA20_POLY1305_SHA256),
        (vec![cipher_suite::TLS13_AES_128_GCM_SHA256], CipherSuite::TLS13_AES_128_GCM_SHA256),
    ] {
        let talk = Talk { suites, clients: 3, up: 300_000, down: 700_000, link: rough(), ..Talk::default() };
        let outcome = to_our_server(&talk);
        outcome.check(&talk);
        for (ours, theirs) in outcome.ours.iter().flatten().zip(outcome.theirs.iter().flatten()) {
            assert_eq!((ours.suite, theirs.suite), (Some(agreed), Some(agreed)));
            assert_eq!(ours.tls.offload_refused, 0, "{agreed:?}: {:?}", ours.tls);
            assert!(ours.tls.tx_records_device > 0, "{agreed:?}: {:?}", ours.tls);
        }
    }
}

#[test]
fn a_client_that_does_not_trust_our_authority_goes_away() {
    let talk = Talk { trusting: false, ..Talk::default() };
    let outcome = to_our_server(&talk);
    let theirs = outcome.theirs[0].as_ref().map(|_| ()).unwrap_err().to_string();
    assert!(theirs.contains("UnknownIssuer"), "{theirs}");
    let ours = outcome.ours[0].as_ref().map(|_| ()).unwrap_err().to_string();
    assert!(ours.contains("UnknownCA"), "{ours}");
}

/// A conversation of the two ends, and its wire.
///
/// Our end sends one word when its NIC has both directions. The peer then sends `up` bytes, and receives `down` bytes
/// meanwhile; it cannot continue without a part of these bytes. Then each end closes.
#[derive(Clone)]
struct Talk {
    link: LinkConfig,
    up: usize,
    down: usize,
    /// Actions of our end, each at a count of received thousandths of `up`.
    turns: Vec<(usize, TalkAction)>,
    /// Whether our end sends twice as fast, and closes before it has received everything.
    we_close_first: bool,
    /// Whether the peer changes its keys half way and asks for the same.
    peer_updates_keys: bool,
    /// Suites of a rustls client, in order of preference.
    suites: Vec<SupportedCipherSuite>,
    /// Whether a rustls client trusts the testbed's authority.
    trusting: bool,
    /// Number of concurrent clients.
    clients: usize,
    /// Consecutive connections of each client.
    rounds: usize,
}

impl Default for Talk {
    fn default() -> Talk {
        Talk {
            link: LinkConfig::default(),
            up: 4 << 20,
            down: 6 << 20,
            turns: Vec::new(),
            we_close_first: false,
            peer_updates_keys: false,
            suites: vec![cipher_suite::TLS13_AES_128_GCM_SHA256, cipher_suite::TLS13_AES_256_GCM_SHA384],
            trusting: true,
            clients: 1,
            rounds: 1,
        }
    }
}

impl Talk {
    /// Returns the number of bytes that our end must have sent after receiving `received` bytes.
    fn due(&self, received: usize) -> usize {
        let pace = if self.we_close_first { 2 } else { 1 };
        (received * self.down * pace / self.up).min(self.down)
    }
}

#[derive(Clone, Copy, Debug)]
enum TalkAction {
    /// Resets the NICs of both hosts.
    Reset,
    /// Changes our end's keys and asks the peer for the same.
    UpdateKeys,
}

/// The results of all connections. The two lists have no common order.
struct TalkOutcome {
    ours: Vec<io::Result<OurResult>>,
    theirs: Vec<io::Result<PeerResult>>,
    counters: CounterSet,
    wire: FrameRecorder,
}

/// The result of our end.
struct OurResult {
    received: Vec<u8>,
    tls: TlsCounters,
    suite: Option<CipherSuite>,
}

/// The result of the peer.
struct PeerResult {
    received: Vec<u8>,
    suite: Option<CipherSuite>,
    kind: Option<HandshakeKind>,
}

impl TalkOutcome {
    /// Checks that both ends of all connections got all data and a close_notify, and that the wire showed no plaintext.
    fn check(&self, talk: &Talk) {
        let failures: Vec<_> = self.ours.iter().filter_map(|ours| ours.as_ref().err()).collect();
        let their_failures: Vec<_> = self.theirs.iter().filter_map(|theirs| theirs.as_ref().err()).collect();
        assert!(failures.is_empty() && their_failures.is_empty(), "ours: {failures:?}, theirs: {their_failures:?}");
        assert_eq!((self.ours.len(), self.theirs.len()), (talk.clients * talk.rounds, talk.clients * talk.rounds));
        let (up, down) = (payload("up", talk.up), payload("down", talk.down));
        for ours in self.ours.iter().flatten() {
            assert!(ours.received == up, "{} of {} bytes, or others", ours.received.len(), up.len());
            assert_eq!(ours.tls.decrypt_error, 0);
        }
        for theirs in self.theirs.iter().flatten() {
            assert!(theirs.received == down, "{} of {} bytes, or others", theirs.received.len(), down.len());
        }
        assert!(!self.wire.seen().is_empty() && !self.wire.contains(MARKER), "plaintext on the wire");
    }

    /// Checks that the device handled records in both directions of each connection.
    fn check_nics_worked(&self) {
        for ours in self.ours.iter().flatten() {
            assert!(ours.tls.tx_records_device > 0 && ours.tls.rx_records_device > 0, "{:?}", ours.tls);
        }
        assert!(self.counters.value("tx_tls_encrypted_bytes") > 0, "{:?}", self.counters);
        assert!(self.counters.value("rx_tls_decrypted_bytes") > 0, "{:?}", self.counters);
    }
}

/// Runs rustls clients against our server; the bridge is on the emulated client.
fn to_our_server(talk: &Talk) -> TalkOutcome {
    let (mut bed, wire) = bed(talk);
    let (server, client) = (bed.host(0).clone(), bed.host(1).clone());
    let mut listener = server.stack().listen(PORT, 16).unwrap();
    let kernel = KernelListener::bind("127.0.0.1:0").unwrap();
    let address = kernel.local_addr().unwrap();
    let _runs_on = client.spawn("bridge", bridge::inward(kernel, client.clone(), (server.address(), PORT).into()));

    let (connections, ends, hosts) = (talk.clients * talk.rounds, talk.clone(), [server.clone(), client]);
    let serving = server.clone().spawn("server", async move {
        let config = Arc::new(server_config(Randomness::System, None));
        let mut running = Vec::new();
        for _ in 0..connections {
            // Handshakes run in their own tasks, so that a slow client does not block the other clients.
            let stream = listener.accept().await.unwrap();
            let (config, talk, hosts) = (config.clone(), ends.clone(), hosts.clone());
            running.push(server.spawn("connection", async move {
                our_end(ktls_offload::accept(stream, config).await?, talk, hosts).await
            }));
        }
        join_all(running).await
    });
    let config = Arc::new(rustls_client_config(talk));
    let peers = (0..talk.clients).map(|_| {
        let (config, talk) = (config.clone(), talk.clone());
        thread::spawn(move || {
            let connection = || {
                let tls = ClientConnection::new(config.clone(), server_name()).map_err(io::Error::other)?;
                rustls_end(StreamOwned::new(tls, patient(KernelStream::connect(address)?)?), &talk)
            };
            (0..talk.rounds).map(|_| connection()).collect::<Vec<_>>()
        })
    });
    // Collecting starts all threads before the testbed runs.
    let peers: Vec<_> = peers.collect();
    let ours = bed.run(in_the_end(&bed.host(0).clone(), serving));
    finish(bed, wire, ours, move || peers.into_iter().flat_map(|peer| peer.join().unwrap()).collect())
}

/// Runs our client against a rustls server; the bridge is on the emulated server.
fn to_rustls_server(talk: &Talk) -> TalkOutcome {
    let (mut bed, wire) = bed(talk);
    let (server, client) = (bed.host(0).clone(), bed.host(1).clone());
    let kernel = KernelListener::bind("127.0.0.1:0").unwrap();
    let address = kernel.local_addr().unwrap();
    let listener = server.stack().listen(PORT, 16).unwrap();
    let _runs_on = server.spawn("bridge", bridge::outward(listener, server.clone(), address));

    let ends = talk.clone();
    let peer = thread::spawn(move || {
        let tls = ServerConnection::new(Arc::new(rustls_server_config())).map_err(io::Error::other)?;
        rustls_end(StreamOwned::new(tls, patient(kernel.accept()?.0)?), &ends)
    });
    let (ends, hosts) = (talk.clone(), [client.clone(), server.clone()]);
    let running = client.clone().spawn("client", async move {
        let stream = client.stack().connect(None, (server.address(), PORT).into()).await?;
        let config = Arc::new(client_config(Randomness::System, None));
        our_end(ktls_offload::connect(stream, config, server_name()).await?, ends, hosts).await
    });
    // The peers are threads of their own, so only our end needs the testbed to run.
    let ours = bed.run(in_the_end(&bed.host(1).clone(), running)).map(|ours| vec![ours]);
    finish(bed, wire, ours, move || {
        // If no client came, this connection ends the server's wait.
        let _ = KernelStream::connect(address);
        vec![peer.join().unwrap()]
    })
}

fn finish(
    bed: Testbed,
    wire: FrameRecorder,
    ours: io::Result<Vec<io::Result<OurResult>>>,
    peers: impl FnOnce() -> Vec<io::Result<PeerResult>>,
) -> TalkOutcome {
    match ours {
        // The peer may still be reading data that our end has left to its host.
        Ok(ours) => {
            let theirs = peers();
            TalkOutcome { ours, theirs, counters: bed.counters(), wire }
        }
        Err(error) => {
            let counters = bed.counters();
            drop(bed); // also stops the bridge, so that the peer stops waiting
            TalkOutcome { ours: vec![Err(error)], theirs: peers(), counters, wire }
        }
    }
}

fn bed(talk: &Talk) -> (Testbed, FrameRecorder) {
    let nic = NicConfig { delays: Delays::NONE, line_rate: None, receive_ring: 8192, ..NicConfig::default() };
    let wire = FrameRecorder::default();
    let bed = Testbed::builder(Seed(1))
        .clock(ClockKind::Real)
        .host("server", nic.clone(), TcpConfig::default())
        .host("client", nic, TcpConfig::default())
        .wire(0, 1, talk.link.clone())
        .recorded(&wire)
        .build()
        .unwrap();
    (bed, wire)
}

/// Runs our end, on the first of the hosts.
async fn our_end(mut stream: KtlsStream<TcpStream>, talk: Talk, hosts: [BedHost; 2]) -> io::Result<OurResult> {
    stream.offload(Offload::BOTH);
    stream.ready().await?;
    stream.send_chunk(Bytes::from_static(GO)).await?;
    let down = Bytes::from(payload("down", talk.down));
    let mut turns = talk.turns.iter().peekable();
    let (mut received, mut sent) = (Vec::with_capacity(talk.up), 0);
    while let Some(chunk) = stream.next_chunk().await? {
        received.extend_from_slice(&chunk);
        // One chunk may pass several turns.
        while let Some((_, turn)) = turns.next_if(|(at, _)| received.len() * 1000 >= at * talk.up) {
            match turn {
                TalkAction::Reset => hosts.iter().for_each(BedHost::reset_device),
                TalkAction::UpdateKeys => stream.update_keys(true)?,
            }
        }
        let due = talk.due(received.len());
        if sent < due {
            stream.send_chunk(down.slice(sent..due)).await?;
            sent = due;
            // The peer may still send after our close_notify (RFC 8446 6.1).
            if sent == talk.down && talk.we_close_first {
                stream.close().await?;
            }
        }
    }
    stream.close().await?;
    Ok(OurResult { received, tls: *stream.counters(), suite: stream.negotiated().suite })
}

/// Runs the peer: only rustls and a socket.
fn rustls_end<C, D>(mut stream: StreamOwned<C, KernelStream>, talk: &Talk) -> io::Result<PeerResult>
where
    C: DerefMut + Deref<Target = ConnectionCommon<D>>,
    D: SideData,
{
    let mut go = [0; GO.len()];
    stream.read_exact(&mut go)?;
    let mut received = vec![0; talk.down];
    let mut have = 0;
    let mut sent = 0;
    for part in payload("up", talk.up).chunks(CHUNK) {
        stream.write_all(part)?;
        sent += part.len();
        // The peer must read too, because our end waits for it to do so.
        let due = talk.due(sent.saturating_sub(AHEAD));
        stream.read_exact(&mut received[have..due])?;
        have = due;
        if talk.peer_updates_keys && (sent - part.len()..sent).contains(&(talk.up / 2)) {
            stream.conn.refresh_traffic_keys().map_err(io::Error::other)?;
        }
    }
    stream.conn.send_close_notify();
    stream.flush()?;
    stream.sock.shutdown(Shutdown::Write)?;
    received.truncate(have);
    // A missing close_notify would be an error here.
    stream.read_to_end(&mut received)?;
    let suite = stream.conn.negotiated_cipher_suite().map(|suite| suite.suite());
    Ok(PeerResult { received, suite, kind: stream.conn.handshake_kind() })
}

/// Builds a configuration as rustls' own examples do.
fn rustls_client_config(talk: &Talk) -> ClientConfig {
    let provider = rustls::crypto::CryptoProvider { cipher_suites: talk.suites.clone(), ..ring::default_provider() };
    let mut roots = RootCertStore::empty();
    if talk.trusting {
        roots.add(authority()).unwrap();
    }
    ClientConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth()
}

fn rustls_server_config() -> ServerConfig {
    ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![server_certificate()], server_key())
        .unwrap()
}

/// Waits for `future`, for at most [`PATIENCE`].
async fn in_the_end<T>(host: &BedHost, future: impl Future<Output = T>) -> io::Result<T> {
    let runtime = host.runtime();
    match select(pin!(future), pin!(runtime.sleep(PATIENCE))).await {
        Either::Left((result, _)) => Ok(result),
        Either::Right(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "our end came to no end")),
    }
}

fn patient(socket: KernelStream) -> io::Result<KernelStream> {
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    Ok(socket)
}

/// Returns data that differs at every offset, with a marker in it.
fn payload(name: &str, bytes: usize) -> Vec<u8> {
    let mut data = Vec::with_capacity(bytes + 64);
    let mut number = 0u32;
    while data.len() < bytes {
        data.extend_from_slice(MARKER);
        data.extend_from_slice(name.as_bytes());
        data.extend_from_slice(&number.to_be_bytes());
        number += 1;
    }
    data.truncate(bytes);
    data
}

fn rough() -> LinkConfig {
    let share = |share| Share::new(share).unwrap();
    let reorder = Reorder { share: share(0.01), hold: Duration::from_micros(30) };
    let impairments = Impairments { loss: share(0.01), reorder: Some(reorder), ..Impairments::default() };
    LinkConfig { impairments, ..LinkConfig::default() }
}

const PORT: u16 = 443;
const GO: &[u8] = b"go";
/// Bytes of each write of the peer.
const CHUNK: usize = 64 << 10;
/// Bytes that the peer writes before it waits for data; the buffers on the path hold more.
const AHEAD: usize = 512 << 10;
/// Time limit of each wait.
const PATIENCE: Duration = Duration::from_secs(120);
