//! Streams of QUIC from one host to the other: without protection, sealed and opened by the hosts, or by the NICs.
//!
//! The client connects, opens more paths if it is to, and a while later, when both NICs have what they need, says *go* on each stream.
//! From there the clock runs and the meter counts, until the last byte has arrived. Where NICs have several queues, each host has an
//! endpoint at each of its shards, and connections take them by turns.

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
    /// Who protects the packets.
    pub enum Mode {
        /// Nobody: they have room for a tag, and leave as they are.
        QuicPlain = "quic-plain",
        /// The hosts.
        QuicCpu = "quic-cpu",
        /// The NICs.
        QuicNic = "quic-nic",
    }
}

impl Mode {
    fn offload(self) -> Offload {
        match self {
            Mode::QuicPlain => Offload::Unprotected,
            Mode::QuicCpu => Offload::None,
            Mode::QuicNic => Offload::Both,
        }
    }
}

/// A transfer to be made.
///
/// ```
/// use offload_base::Seed;
/// use offload_bench_tls::payload::Payload;
/// use offload_bench::quic::{Mode, QuicBulk};
///
/// let run = QuicBulk::new(Mode::QuicNic, Payload::seeded(Seed(1), 1_000_000)).run()?;
/// assert!(run.sha256_ok && run.counters["QuicSealedDevice"] > 500);
/// # Ok::<(), offload_bench::quic::QuicError>(())
/// ```
#[derive(Clone)]
pub struct QuicBulk {
    /// Who protects the packets.
    pub mode: Mode,
    /// What is sent, on each stream.
    pub payload: Payload,
    /// Connections at the same time.
    pub connections: u16,
    /// Streams of each connection.
    pub streams: u16,
    /// By what.
    pub suite: QuicCipher,
    /// Paths: the first over IPv4, or IPv6, further ones over either in turn; with wires of their own, one on each.
    pub paths: u32,
    /// The sender asks for other keys after so many packets, if ever.
    pub key_update_every: Option<u32>,
    /// The clock.
    pub clock: ClockKind,
    /// The seed of everything random.
    pub seed: Seed,
    /// Both NICs.
    pub nic: NicConfig,
    /// Each direction of the wire.
    pub link: LinkConfig,
    /// Wires of their own for the paths, one to three, instead of one for all: the first for IPv4, the second for IPv6, the
    /// third for link-local addresses.
    pub wires: Vec<LinkConfig>,
    /// How long it goes on before anything is counted.
    pub omit: Duration,
    /// Wires that are cut so long after the transfer began.
    pub cuts: Vec<(usize, Duration)>,
    /// Over IPv6 rather than IPv4.
    pub ipv6: bool,
    /// The observers of the run.
    pub observers: Observers,
    /// A folder that is there, for the events of both ends (qlog): a file for each end of each connection.
    pub qlog: Option<PathBuf>,
}

/// Why a transfer could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QuicError {
    /// The testbed, a socket or what is to be sent.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The connection did not even begin.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The connection came to an end too early.
    #[error("the connection ended: {0}")]
    Closed(#[from] Closed),
    /// A stream of it did.
    #[error("the stream ended: {0}")]
    Stream(#[from] quic_offload::StreamError),
    /// There is no second path.
    #[error("there is no path more: {0}")]
    Path(#[from] quic_offload::PathError),
    /// Everything arrived while nothing was counted.
    #[error("all had arrived after {0:?}, which are not counted: send more, or omit less")]
    NothingCounted(Duration),
}

impl QuicBulk {
    /// A transfer in virtual time over a clean wire, on one path.
    pub fn new(mode: Mode, payload: Payload) -> QuicBulk {
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

    /// Room for what is under way on all wires, and for what waits meanwhile for what was lost on the slowest.
    fn window(&self, usual: u32) -> u32 {
        let slowest = self.wires.iter().map(|wire| wire.delay).max().unwrap_or_default();
        let rates = self.wires.iter().filter_map(|wire| wire.rate).sum::<u64>();
        let under_way = 2.0 * slowest.as_secs_f64() * rates as f64 / 8.0;
        usual.max((WINDOW_ROUND_TRIPS * under_way) as u32)
    }

    /// Where each path goes: from, and to.
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

    /// Makes the transfer and tells what came of it. A checksum that differs is a fact, not an error.
    ///
    /// # Errors
    /// When the transfer cannot be made.
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
        let Fetched { asked, ended, counted, streams } = fetched;
        let whole = streams.iter().all(|(bytes, checksum)| *bytes == bulk.payload.len() && *checksum == expected);
        let counters: Vec<_> = ends.iter().map(Endpoint::counters).collect();
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

type Running = offload_testbed::JoinHandle<io::Result<()>>;

fn start(
    host: &BedHost,
    shard: &Host,
    port: u16,
    config: Config,
    tls: Option<ServerTls>,
) -> io::Result<(Endpoint, Running)> {
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

/// Sends what is to be sent, on one stream.
async fn send(bulk: &QuicBulk, connection: Connection, mut stream: SendStream) -> Result<(), QuicError> {
    let mut pieces = bulk.payload.pieces(PIECE)?;
    let (mut left, each) = (u64::MAX, bulk.key_update_every.map(|packets| u64::from(packets) * A_PACKET));
    while let Some(piece) = {
        let _application = cost::work(WorkKind::Application);
        pieces.next()
    } {
        let piece = piece?;
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
    // The client closes when it has all of it; its checksum says whether that is so.
    connection.closed().await;
    Ok(())
}

/// What the client got.
struct Fetched {
    /// When it said *go*.
    asked: Instant,
    /// When the last byte came.
    ended: Instant,
    /// Bytes that came when they were to be counted.
    counted: u64,
    /// What came on each stream.
    streams: Vec<(u64, Checksum)>,
}

async fn fetch(
    bulk: Arc<QuicBulk>,
    endpoints: Vec<Endpoint>,
    host: BedHost,
    routes: Vec<(IpAddr, IpAddr)>,
) -> Result<Fetched, QuicError> {
    let tls = bulk.client_tls()?;
    let connecting = (0..usize::from(bulk.connections)).map(|number| {
        let at = number % endpoints.len();
        connect(&bulk, &endpoints[at], &tls, PORT + at as u16, &routes)
    });
    let connections = try_join_all(connecting).await?;
    // Both NICs have what they need by then.
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
    let note = |bytes: u64| {
        if host.now() >= counted_from {
            counted.fetch_add(bytes, Relaxed);
        }
        bulk.observers.arrived(bytes);
    };
    let fetched = try_join_all(streams.into_iter().map(|stream| receive(stream, &note))).await?;
    let ended = host.now();
    connections.iter().for_each(close);
    Ok(Fetched { asked, ended, counted: counted.into_inner(), streams: fetched })
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

/// All that comes on one stream.
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

/// A file for each end of a connection, in a folder.
fn events(folder: PathBuf, mode: Mode) -> Qlog {
    Qlog::new(move |of| {
        let file = File::create(folder.join(format!("{mode}-{}", of.file_name()))).ok()?;
        Some(Box::new(BufWriter::new(file)))
    })
}

/// All ends' together.
fn add(counters: &mut BTreeMap<String, u64>, ends: Vec<Counters>) {
    let mut set = CounterSet::default();
    ends.iter().for_each(|end| set.add(end));
    counters.extend(set.moved().map(|(name, value)| (name.into(), value)));
}

/// Bytes handed to the stream at once.
const PIECE: usize = 256 << 10;
/// Bytes of a stream in a packet of 1,472.
const A_PACKET: u64 = 1437;
const SETTLED: Duration = Duration::from_millis(5);
/// What goes on arriving while what was lost is sent again, and lost again.
const WINDOW_ROUND_TRIPS: f64 = 4.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mode_carries_the_payload_and_counts_what_it_should() {
        for mode in Mode::ALL {
            let payload = Payload::seeded(Seed(1), 2_000_000);
            let run = QuicBulk { paths: 2, key_update_every: Some(100), ..QuicBulk::new(mode, payload) }.run().unwrap();
            assert!(run.sha256_ok, "{mode}");
            let counted = |name: &str| run.counters.get(name).copied().unwrap_or(0);
            assert_eq!(counted("QuicSealedDevice") > 1000, mode == Mode::QuicNic, "{mode}");
            assert_eq!(counted("QuicSealedSw") > 1000, mode == Mode::QuicCpu, "{mode}");
            assert_eq!(counted("QuicOpenedDevice") > 1000, mode == Mode::QuicNic, "{mode}");
            assert_eq!(counted("QuicOpenedSw") > 1000, mode == Mode::QuicCpu, "{mode}");
        }
    }

    /// Each shard has its connections, and each connection its paths; what comes by any of them comes to its shard.
    #[test]
    fn many_connections_are_spread_over_queues() {
        let payload = Payload::seeded(Seed(1), 20_000);
        let usual = QuicBulk::new(Mode::QuicNic, payload);
        let nic = NicConfig { queues: 4, ..usual.nic.clone() };
        let bulk = QuicBulk { connections: 22, streams: 2, paths: 4, nic, ..usual };
        let run = bulk.run().unwrap();
        assert!(run.sha256_ok && run.bytes == 22 * 2 * 20_000);
        assert_eq!(run.counters["QuicContexts"], 22 * 2 * 2, "for each connection and direction, at both ends");
        let count = |name: &str| run.counters.get(name).copied().unwrap_or(0);
        assert!(count("QuicOpenedDevice") > 22 * 40 && count("QuicCidsDevice") >= 22 * 4 * 2, "{:?}", run.counters);
    }

    /// Each path has a wire of its own, and one of them is cut.
    #[test]
    fn a_wire_may_be_cut_while_others_carry_on() {
        for mode in [Mode::QuicCpu, Mode::QuicNic] {
            let wire =
                LinkConfig { rate: Some(1_000_000_000), delay: Duration::from_millis(1), ..LinkConfig::default() };
            let bulk = QuicBulk {
                paths: 3,
                wires: vec![wire; 3],
                cuts: vec![(1, Duration::from_millis(20))],
                ..QuicBulk::new(mode, Payload::seeded(Seed(1), 40_000_000))
            };
            let run = bulk.run().unwrap();
            assert!(run.sha256_ok && run.counters["wire_cut"] > 10, "{mode}: {:?}", run.counters);
            assert_eq!(run.counters["QuicPathsSilent"], 1, "{mode}");
        }
    }

    /// Slow start is left out, and what is counted fills the wire.
    #[test]
    fn what_came_before_counting_began_is_not_counted() {
        let wire = LinkConfig { rate: Some(100_000_000), delay: Duration::from_millis(5), ..LinkConfig::default() };
        let usual = QuicBulk::new(Mode::QuicNic, Payload::seeded(Seed(1), 4_000_000));
        let run = |omit| QuicBulk { link: wire.clone(), omit, ..usual.clone() }.run();
        let (all, rest) = (run(Duration::ZERO).unwrap(), run(Duration::from_millis(200)).unwrap());
        assert!(all.bytes == 4_000_000 && rest.bytes < 3_000_000, "{}", rest.bytes);
        assert!(rest.sha256_ok && rest.goodput_gbps > 1.05 * all.goodput_gbps, "{rest:?} {all:?}");
        assert!(matches!(run(Duration::from_secs(9)), Err(QuicError::NothingCounted(_))));
    }

    #[test]
    fn any_suite_may_be_asked_for() {
        for (suite, mode) in
            QuicCipher::ALL.into_iter().flat_map(|suite| [(suite, Mode::QuicCpu), (suite, Mode::QuicNic)])
        {
            let payload = Payload::seeded(Seed(1), 100_000);
            let run = QuicBulk { suite, ..QuicBulk::new(mode, payload) }.run().unwrap();
            let opened_by = if mode == Mode::QuicNic { "QuicOpenedDevice" } else { "QuicOpenedSw" };
            assert!(run.sha256_ok && run.counters[opened_by] > 50, "{suite:?} {mode:?}: {:?}", run.counters);
        }
    }
}
