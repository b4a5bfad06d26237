//! Streams of QUIC from one host to another: without protection, or protected by the hosts or by the NICs.
//!
//! The client connects, opens further paths if requested, waits until both NICs have their contexts, and then says *go*
//! on each stream. The clock and the meter run from there to the last byte. With several queues, each host has an
//! endpoint on each of its shards, and connections take turns.

use core::fmt;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use futures_util::future::{try_join, try_join_all};
use nic_sim::NicConfig;
use nic_sim::wire::LinkConfig;
use nic_sim::wire::impairment::WireCut;
use offload_api::QuicCipher;
use offload_base::cost::{self, CpuMeter, WorkKind};
use offload_base::counters::CounterSet;
use offload_base::{Instant, RandomSource, Seed};
use offload_bench_tls::bulk::PORT;
use offload_bench_tls::choices;
use offload_bench_tls::connection::{GO, nic_on, tcp};
use offload_bench_tls::facts::Run;
use offload_bench_tls::measured::Measured;
use offload_bench_tls::observers::Observers;
use offload_bench_tls::payload::{Checksum, Payload};
use offload_host_stack::Host;
use offload_testbed::Cable;
use offload_testbed::bed::{BedHost, ClockKind, Testbed};
use offload_testbed::identity::{self, Randomness};
use quic_offload::{ClientTls, Closed, Config, ConnectError, Connection, Counters, Endpoint, Offload};
use quic_offload::{Qlog, ReceiveStream, SendStream, ServerTls};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

choices! {
    /// The place of packet protection.
    pub enum QuicMode {
        /// No protection: packets have room for a tag, but are sent in clear text.
        QuicPlain = "quic-plain",
        /// The hosts' CPUs.
        QuicCpu = "quic-cpu",
        /// The NICs.
        QuicNic = "quic-nic",
    }
}

impl QuicMode {
    fn offload(self) -> Offload {
        match self {
            QuicMode::QuicPlain => Offload::Unprotected,
            QuicMode::QuicCpu => Offload::None,
            QuicMode::QuicNic => Offload::Both,
        }
    }
}

/// The settings of a transfer.
///
/// ```
/// use offload_base::Seed;
/// use offload_bench_tls::payload::Payload;
/// use offload_bench::quic::{QuicMode, QuicBulk};
///
/// let run = QuicBulk::new(QuicMode::QuicNic, Payload::seeded(Seed(1), 1_000_000)).run()?;
/// assert!(run.sha256_ok && run.counters["QuicSealedDevice"] > 500);
/// # Ok::<(), offload_bench::quic::QuicError>(())
/// ```
#[derive(Clone)]
pub struct QuicBulk {
    /// The place of packet protection.
    pub mode: QuicMode,
    /// The data sent on each stream.
    pub payload: Payload,
    /// Simultaneous connections.
    pub connections: u16,
    /// Streams of each connection.
    pub streams: u16,
    /// The cipher of packets.
    pub suite: QuicCipher,
    /// Number of paths. The first is over IPv4, or over IPv6 if `ipv6` is set; further paths alternate. With separate
    /// wires, each wire has one path.
    pub paths: u32,
    /// Number of packets after which the sender updates its key. `None`: never.
    pub key_update_every: Option<u32>,
    /// The clock.
    pub clock: ClockKind,
    /// The seed of all random numbers.
    pub seed: Seed,
    /// Settings of both NICs.
    pub nic: NicConfig,
    /// Settings of each direction of the wire.
    pub link: LinkConfig,
    /// Separate wires for the paths, one to three, instead of a common one: the first for IPv4, the second for IPv6,
    /// the third for link-local addresses.
    pub wires: Vec<LinkConfig>,
    /// Time at the beginning that is excluded from the result.
    pub omit: Duration,
    /// Wires to cut, with the time from the start of the transfer.
    pub cuts: Vec<(usize, Duration)>,
    /// Whether to use IPv6 instead of IPv4.
    pub ipv6: bool,
    /// The observers of the run.
    pub observers: Observers,
    /// An existing folder for event logs (qlog), one file for each end of each connection.
    pub qlog: Option<PathBuf>,
}

/// The reason why a transfer failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QuicError {
    /// An error of the testbed, of a socket or of the payload.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The connection could not be started.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The connection ended early.
    #[error("the connection ended: {0}")]
    Closed(#[from] Closed),
    /// A stream ended early.
    #[error("the stream ended: {0}")]
    Stream(#[from] quic_offload::StreamError),
    /// Another path could not be opened.
    #[error("no further path: {0}")]
    Path(#[from] quic_offload::PathError),
    /// All data arrived within the excluded time.
    #[error("all data arrived within the first {0:?}, which are not counted: send more, or omit less")]
    NothingCounted(Duration),
}

impl QuicBulk {
    /// Returns a transfer in virtual time over a clean wire, on one path.
    pub fn new(mode: QuicMode, payload: Payload) -> QuicBulk {
        QuicBulk {
            mode,
            payload,
            connections: 1,
            streams: 1,
            suite: QuicCipher::Aes128Gcm,
            paths: 1,
            key_update_every: None,
            clock: ClockKind::Virtual,
            seed: Seed(1),
            nic: NicConfig { lro_datagrams: true, ..NicConfig::default() },
            link: LinkConfig::default(),
            wires: Vec::new(),
            omit: Duration::ZERO,
            cuts: Vec::new(),
            ipv6: false,
            qlog: None,
            observers: Observers::default(),
        }
    }

    fn config(&self, end: &str) -> Config {
        // The UDP payload must fit the MTU on every path, so IPv6 headers count as soon as a path may use IPv6.
        let headers = if self.ipv6 || self.paths > 1 { 48 } else { 28 };
        Config::default().with(|c| {
            c.random = match self.clock {
                ClockKind::Virtual => Some(RandomSource::from(self.seed.derive(end))),
                ClockKind::Real => None,
            };
            c.offload = self.mode.offload();
            c.paths = self.paths;
            c.udp_payload = self.nic.mtu.saturating_sub(headers).max(1200);
            c.stream_window = self.window(c.stream_window);
            c.receive_window = self.window(c.receive_window);
            c.send_window = self.window(c.send_window);
            c.qlog = self.qlog.clone().map(|folder| events(folder, self.mode));
        })
    }

    /// Returns a window for the data in flight on all wires, and for the data that waits meanwhile for losses on the
    /// slowest one.
    fn window(&self, usual: u32) -> u32 {
        let slowest = self.wires.iter().map(|wire| wire.delay).max().unwrap_or_default();
        let rates = self.wires.iter().filter_map(|wire| wire.rate).sum::<u64>();
        let under_way = 2.0 * slowest.as_secs_f64() * rates as f64 / 8.0;
        usual.max((WINDOW_ROUND_TRIPS * under_way) as u32)
    }

    /// Returns the source and the destination of each path.
    fn routes(&self, server: &BedHost, client: &BedHost) -> Vec<(IpAddr, IpAddr)> {
        let four = (client.address().into(), server.address().into());
        let six = (client.ipv6_address().into(), server.ipv6_address().into());
        let near = (client.link_local_address().into(), server.link_local_address().into());
        match (self.wires.len(), self.ipv6) {
            (0 | 1, false) => vec![four, six],
            (0 | 1, true) => vec![six, four],
            _ => vec![four, six, near],
        }
    }

    fn randomness(&self, end: &str) -> Randomness {
        match self.clock {
            ClockKind::Virtual => Randomness::Seeded(self.seed.derive(end)),
            ClockKind::Real => Randomness::System,
        }
    }

    fn client_tls(&self) -> Result<ClientTls, QuicError> {
        let config = identity::quic_client_config(self.suite, self.randomness("client"), None);
        Ok(ClientTls::new(config).map_err(io::Error::other)?)
    }

    fn server_tls(&self) -> Result<ServerTls, QuicError> {
        let log = self.observers.key_log();
        let config = identity::quic_server_config(self.suite, self.randomness("server"), log);
        Ok(ServerTls::new(config).map_err(io::Error::other)?)
    }

    /// Runs the transfer and returns the result. A wrong checksum is reported in the result and is not an error.
    ///
    /// # Errors If the transfer cannot be made.
    pub fn run(self) -> Result<Run, QuicError> {
        let expected = self.payload.checksum()?;
        let (meter, nic) = (CpuMeter::new(), nic_on(self.clock, &self.nic));
        let builder = Testbed::builder(self.seed).clock(self.clock).meter(&meter);
        let wires = if self.wires.is_empty() { vec![self.link.clone()] } else { self.wires.clone() };
        let builder = builder.host("server", nic.clone(), tcp()).host("client", nic, tcp()).wires(0, 1, wires);
        let mut bed = self.observers.attach(builder).build()?;
        let (server, client) = (bed.host(0).clone(), bed.host(1).clone());
        let attached = meter.attach();
        let tls = self.server_tls()?;
        let at_shards = |host: &BedHost, first: u16, tls: Option<&ServerTls>| -> io::Result<(Vec<_>, Vec<_>)> {
            let used = host.shards().iter().take(self.connections.into()).zip(first..);
            let name = if tls.is_some() { "server" } else { "client" };
            let ends = used.map(|(shard, port)| {
                let config = self.config(&if port == first { name.into() } else { format!("{name} {}", port - first) });
                start(host, shard, port, config, tls.cloned())
            });
            ends.collect::<io::Result<Vec<_>>>().map(|ends| ends.into_iter().unzip())
        };
        let (serving, serves) = at_shards(&server, PORT, Some(&tls))?;
        let (connecting, connects) = at_shards(&client, PORT + 1, None)?;
        let bulk = Arc::new(self);
        let wires = bulk.cuts.iter().map(|(wire, after)| (bed.cable(*wire).clone(), *after)).collect();
        let serve = serve(bulk.clone(), serving.clone(), server.clone(), meter.clone(), wires);
        let routes = bulk.routes(&server, &client);
        let sent = server.spawn("application", serve);
        let fetched = client.spawn("application", fetch(bulk.clone(), connecting.clone(), client.clone(), routes));
        let ends: Vec<Endpoint> = serving.into_iter().chain(connecting).collect();
        let both = bulk.observers.run(&mut bed, bulk.mode, async {
            let (started, fetched) = try_join(sent, fetched).await?;
            for end in &ends {
                end.close(0, "");
                end.drained().await;
            }
            Ok::<_, QuicError>((started, fetched))
        });
        drop((attached, serves, connects));
        let (started, fetched) = both?;
        bulk.observers.finish()?;
        let QuicClientResult { asked, ended, counted, streams } = fetched;
        let whole = streams.iter().all(|(bytes, checksum)| *bytes == bulk.payload.len() && *checksum == expected);
        let counters: Vec<_> = ends.iter().map(Endpoint::counters).collect();
        // Without an excluded time, the server's clock starts the count, as in the other scenarios.
        let counted_from = if bulk.omit.is_zero() { started } else { asked + bulk.omit };
        if ended <= counted_from {
            return Err(QuicError::NothingCounted(bulk.omit));
        }
        let mut run = Measured::take(bed, &meter, []).run(bulk.mode, counted, whole, ended - counted_from);
        add(&mut run.counters, counters);
        Ok(run)
    }
}

impl fmt::Debug for QuicBulk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuicBulk").field("mode", &self.mode).field("bytes", &self.payload.len()).finish_non_exhaustive()
    }
}

type EndpointTask = offload_testbed::JoinHandle<io::Result<()>>;

fn start(
    host: &BedHost,
    shard: &Host,
    port: u16,
    config: Config,
    tls: Option<ServerTls>,
) -> io::Result<(Endpoint, EndpointTask)> {
    let (endpoint, driver) = Endpoint::new(shard.bind_udp(Some(port))?, host.runtime(), config, tls)?;
    Ok((endpoint, host.spawn("quic", driver)))
}

async fn serve(
    bulk: Arc<QuicBulk>,
    endpoints: Vec<Endpoint>,
    host: BedHost,
    meter: CpuMeter,
    cuts: Vec<(Cable, Duration)>,
) -> Result<Instant, QuicError> {
    // Streams are accepted before the clock starts, so that handshakes are not measured.
    let mut streams = Vec::new();
    for number in 0..usize::from(bulk.connections) {
        let connection = endpoints[number % endpoints.len()].accept().await.ok_or(Closed::Endpoint)?;
        for _ in 0..bulk.streams {
            let (send, mut receive) = connection.accept_bi().await?;
            while receive.receive(GO.len()).await?.is_some() {}
            streams.push((connection.clone(), send));
        }
    }
    meter.restart();
    let started = host.now();
    if bulk.omit > Duration::ZERO {
        let (runtime, omit) = (host.runtime(), bulk.omit);
        drop(host.spawn("counting begins", async move {
            runtime.sleep(omit).await;
            meter.restart();
        }));
    }
    for (wire, after) in cuts {
        wire.impair(|| WireCut::new(started + after..Instant::MAX));
    }
    try_join_all(streams.into_iter().map(|(connection, stream)| send(&bulk, connection, stream))).await?;
    Ok(started)
}

/// Sends the payload on one stream.
async fn send(bulk: &QuicBulk, connection: Connection, mut stream: SendStream) -> Result<(), QuicError> {
    let mut pieces = bulk.payload.pieces(PIECE)?;
    let (mut left, each) = (u64::MAX, bulk.key_update_every.map(|packets| u64::from(packets) * A_PACKET));
    while let Some(piece) = {
        let _application = cost::work(WorkKind::Application);
        pieces.next()
    } {
        let piece = piece?;
        // Updates are requested by bytes, because the application does not see packets.
        if let Some(each) = each {
            left = left.min(each).saturating_sub(piece.len() as u64);
            if left == 0 {
                connection.update_keys();
                left = each;
            }
        }
        stream.send(piece).await?;
    }
    stream.finish()?;
    // The client closes when it has received everything; its checksum proves that.
    connection.closed().await;
    Ok(())
}

/// Measurements at the client.
struct QuicClientResult {
    /// Time of the client's *go*.
    asked: Instant,
    /// Time of the last byte.
    ended: Instant,
    /// Bytes received after the excluded time.
    counted: u64,
    /// Bytes and checksum of each stream.
    streams: Vec<(u64, Checksum)>,
}

async fn fetch(
    bulk: Arc<QuicBulk>,
    endpoints: Vec<Endpoint>,
    host: BedHost,
    routes: Vec<(IpAddr, IpAddr)>,
) -> Result<QuicClientResult, QuicError> {
    let tls = bulk.client_tls()?;
    let connecting = (0..usize::from(bulk.connections)).map(|number| {
        // Each client endpoint talks to the server endpoint of the same number.
        let at = number % endpoints.len();
        connect(&bulk, &endpoints[at], &tls, PORT + at as u16, &routes)
    });
    let connections = try_join_all(connecting).await?;
    // The contexts of both NICs are installed by then.
    host.runtime().sleep(SETTLED).await;
    let mut streams = Vec::new();
    for connection in &connections {
        for _ in 0..bulk.streams {
            let (mut send, receive) = connection.open_bi().await?;
            send.send(GO.into()).await?;
            send.finish()?;
            streams.push(receive);
        }
    }
    let counted = AtomicU64::new(0);
    let asked = host.now();
    let counted_from = asked + bulk.omit;
    // Bytes of the excluded beginning still count as progress.
    let note = |bytes: u64| {
        if host.now() >= counted_from {
            counted.fetch_add(bytes, Relaxed);
        }
        bulk.observers.arrived(bytes);
    };
    let fetched = try_join_all(streams.into_iter().map(|stream| receive(stream, &note))).await?;
    let ended = host.now();
    connections.iter().for_each(close);
    Ok(QuicClientResult { asked, ended, counted: counted.into_inner(), streams: fetched })
}

async fn connect(
    bulk: &QuicBulk,
    endpoint: &Endpoint,
    tls: &ClientTls,
    port: u16,
    routes: &[(IpAddr, IpAddr)],
) -> Result<Connection, QuicError> {
    let name = identity::server_name();
    let connection = endpoint.connect(tls, SocketAddr::new(routes[0].1, port), name.to_str().as_ref())?.await?;
    for path in 1..bulk.paths as usize {
        let (from, to) = routes[path % routes.len()];
        connection.open_path(SocketAddr::new(to, port), Some(from)).await?;
    }
    Ok(connection)
}

/// Receives one stream and returns its length and checksum.
async fn receive(mut stream: ReceiveStream, note: &impl Fn(u64)) -> Result<(u64, Checksum), QuicError> {
    let (mut hasher, mut bytes) = (Sha256::new(), 0);
    while let Some(data) = stream.receive(PIECE).await? {
        let _application = cost::work(WorkKind::Application);
        hasher.update(&data);
        bytes += data.len() as u64;
        note(data.len() as u64);
    }
    Ok((bytes, hasher.finalize().into()))
}

fn close(connection: &Connection) {
    connection.close(0, "");
}

/// Returns a log that writes one file in `folder` for each end of a connection.
fn events(folder: PathBuf, mode: QuicMode) -> Qlog {
    Qlog::new(move |of| {
        let file = File::create(folder.join(format!("{mode}-{}", of.file_name()))).ok()?;
        Some(Box::new(BufWriter::new(file)))
    })
}

/// Adds the counters of all endpoints.
fn add(counters: &mut BTreeMap<String, u64>, ends: Vec<Counters>) {
    let mut set = CounterSet::default();
    ends.iter().for_each(|end| set.add(end));
    counters.extend(set.moved().map(|(name, value)| (name.into(), value)));
}

/// Bytes handed to the stream at once.
const PIECE: usize = 256 << 10;
/// Stream bytes in a packet of 1,472 bytes.
const A_PACKET: u64 = 1437;
const SETTLED: Duration = Duration::from_millis(5);
/// Round trips of data that may arrive while a lost packet is retransmitted, and perhaps lost again.
const WINDOW_ROUND_TRIPS: f64 = 4.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mode_carries_the_payload_and_counts_its_packets() {
        for mode in QuicMode::ALL {
            let payload = Payload::seeded(Seed(1), 2_000_000);
            // Key updates and a second path exercise every kind of context.
            let run = QuicBulk { paths: 2, key_update_every: Some(100), ..QuicBulk::new(mode, payload) }.run().unwrap();
            assert!(run.sha256_ok, "{mode}");
            let counted = |name: &str| run.counters.get(name).copied().unwrap_or(0);
            assert_eq!(counted("QuicSealedDevice") > 1000, mode == QuicMode::QuicNic, "{mode}");
            assert_eq!(counted("QuicSealedSw") > 1000, mode == QuicMode::QuicCpu, "{mode}");
            assert_eq!(counted("QuicOpenedDevice") > 1000, mode == QuicMode::QuicNic, "{mode}");
            assert_eq!(counted("QuicOpenedSw") > 1000, mode == QuicMode::QuicCpu, "{mode}");
        }
    }

    /// Each shard has its own connections, and packets on any path of a connection reach its shard.
    #[test]
    fn many_connections_are_spread_over_queues() {
        let payload = Payload::seeded(Seed(1), 20_000);
        let usual = QuicBulk::new(QuicMode::QuicNic, payload);
        let nic = NicConfig { queues: 4, ..usual.nic.clone() };
        let bulk = QuicBulk { connections: 22, streams: 2, paths: 4, nic, ..usual };
        let run = bulk.run().unwrap();
        assert!(run.sha256_ok && run.bytes == 22 * 2 * 20_000);
        assert_eq!(run.counters["QuicContexts"], 22 * 2 * 2, "for each connection and direction, at both ends");
        let count = |name: &str| run.counters.get(name).copied().unwrap_or(0);
        assert!(count("QuicOpenedDevice") > 22 * 40 && count("QuicCidsDevice") >= 22 * 4 * 2, "{:?}", run.counters);
    }

    /// Each path has its own wire, and one wire is cut.
    #[test]
    fn a_wire_may_be_cut_while_others_carry_on() {
        for mode in [QuicMode::QuicCpu, QuicMode::QuicNic] {
            let wire =
                LinkConfig { rate: Some(1_000_000_000), delay: Duration::from_millis(1), ..LinkConfig::default() };
            let bulk = QuicBulk {
                paths: 3,
                wires: vec![wire; 3],
                // The cut comes after the start, when all three paths carry data.
                cuts: vec![(1, Duration::from_millis(20))],
                ..QuicBulk::new(mode, Payload::seeded(Seed(1), 40_000_000))
            };
            let run = bulk.run().unwrap();
            assert!(run.sha256_ok && run.counters["wire_cut"] > 10, "{mode}: {:?}", run.counters);
            assert_eq!(run.counters["QuicPathsSilent"], 1, "{mode}");
        }
    }

    /// Slow start is excluded, and the remaining time fills the wire.
    #[test]
    fn bytes_of_the_excluded_beginning_are_not_counted() {
        let wire = LinkConfig { rate: Some(100_000_000), delay: Duration::from_millis(5), ..LinkConfig::default() };
        let usual = QuicBulk::new(QuicMode::QuicNic, Payload::seeded(Seed(1), 4_000_000));
        let run = |omit| QuicBulk { link: wire.clone(), omit, ..usual.clone() }.run();
        let (all, rest) = (run(Duration::ZERO).unwrap(), run(Duration::from_millis(200)).unwrap());
        assert!(all.bytes == 4_000_000 && rest.bytes < 3_000_000, "{}", rest.bytes);
        assert!(rest.sha256_ok && rest.goodput_gbps > 1.05 * all.goodput_gbps, "{rest:?} {all:?}");
        assert!(matches!(run(Duration::from_secs(9)), Err(QuicError::NothingCounted(_))));
    }

    #[test]
    fn any_suite_may_be_asked_for() {
        for (suite, mode) in
            QuicCipher::ALL.into_iter().flat_map(|suite| [(suite, QuicMode::QuicCpu), (suite, QuicMode::QuicNic)])
        {
            let payload = Payload::seeded(Seed(1), 100_000);
            let run = QuicBulk { suite, ..QuicBulk::new(mode, payload) }.run().unwrap();
            let opened_by = if mode == QuicMode::QuicNic { "QuicOpenedDevice" } else { "QuicOpenedSw" };
            assert!(run.sha256_ok && run.counters[opened_by] > 50, "{suite:?} {mode:?}: {:?}", run.counters);
        }
    }
}
