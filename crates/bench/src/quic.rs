//! One stream of QUIC from one host to the other: without protection, sealed and opened by the hosts, or by the NICs.
//!
//! The client connects, opens more paths if it is to, and a while later, when both NICs have what they need, says *go*. From there
//! the clock runs and the meter counts, until the last byte has arrived.

use crate::bounded;
use crate::bulk::PORT;
use crate::choice::choices;
use crate::connection::{GO, nic_on, tcp};
use crate::facts::Run;
use crate::measured::Measured;
use crate::payload::{Checksum, Payload};
use core::fmt;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use futures_util::future::try_join;
use nic_sim::NicConfig;
use nic_sim::wire::LinkConfig;
use nic_sim::wire::impairment::Cut;
use offload_api::TlsSuite;
use offload_base::cost::{self, Meter, Work};
use offload_base::counters::CounterSet;
use offload_base::{Instant, RandomSource, Seed};
use offload_testbed::bed::{BedHost, ClockKind, Testbed};
use offload_testbed::identity::{self, Agreement, Randomness};
use offload_testbed::{Cable, Capture, Tracer};
use quic_offload::{ClientTls, Closed, Config, ConnectError, Connection, Counters, Endpoint, Offload, ServerTls};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

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
/// use offload_bench::payload::Payload;
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
    /// What is sent.
    pub payload: Payload,
    /// By what.
    pub suite: TlsSuite,
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
    /// Wires that are cut so long after the transfer began.
    pub cuts: Vec<(usize, Duration)>,
    /// Over IPv6 rather than IPv4.
    pub ipv6: bool,
    /// Where what the server's NIC sends and receives is captured.
    pub capture: Option<Capture>,
    /// Who writes the timeline of the run.
    pub tracer: Option<Tracer>,
    /// Called with the number of bytes that arrived so far.
    pub progress: Option<Arc<dyn Fn(u64) + Send + Sync>>,
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
    /// Nobody here has that suite.
    #[error("there is no such suite: {0:?}")]
    NoSuchSuite(TlsSuite),
}

impl QuicBulk {
    /// A transfer in virtual time over a clean wire, on one path.
    pub fn new(mode: Mode, payload: Payload) -> QuicBulk {
        QuicBulk {
            mode,
            payload,
            suite: TlsSuite::Aes128Gcm,
            paths: 1,
            key_update_every: None,
            clock: ClockKind::Virtual,
            seed: Seed(1),
            nic: NicConfig { lro_datagrams: true, ..NicConfig::default() },
            link: LinkConfig::default(),
            wires: Vec::new(),
            cuts: Vec::new(),
            ipv6: false,
            capture: None,
            tracer: None,
            progress: None,
        }
    }

    fn config(&self, end: &str) -> Config {
        let headers = if self.ipv6 || self.paths > 1 { 48 } else { 28 };
        let usual = Config::default();
        Config {
            random: match self.clock {
                ClockKind::Virtual => Some(RandomSource::from(self.seed.derive(end))),
                ClockKind::Real => None,
            },
            offload: self.mode.offload(),
            paths: self.paths,
            udp_payload: self.nic.mtu.saturating_sub(headers).max(1200),
            stream_window: self.window(usual.stream_window),
            receive_window: self.window(usual.receive_window),
            send_window: self.window(usual.send_window),
            ..usual
        }
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

    /// Initial packets are protected by AES-128-GCM, so that is always offered; the other comes first.
    fn client_tls(&self) -> Result<ClientTls, QuicError> {
        let config = identity::client_config(self.randomness("client"), None);
        Ok(ClientTls::new(config).map_err(io::Error::other)?)
    }

    fn server_tls(&self) -> Result<ServerTls, QuicError> {
        let log = self.capture.clone().map(|capture| Arc::new(capture) as Arc<dyn rustls::KeyLog>);
        let mut config = identity::server_config(self.randomness("server"), log);
        let wanted = Agreement { suite: self.suite, ..Agreement::default() };
        let alone = wanted.server_config(self.randomness("server"), None).ok_or(QuicError::NoSuchSuite(self.suite))?;
        let wanted: Vec<_> = alone.crypto_provider().cipher_suites.iter().map(|suite| suite.suite()).collect();
        let mut provider = (**config.crypto_provider()).clone();
        provider.cipher_suites.sort_by_key(|suite| !wanted.contains(&suite.suite()));
        let builder = rustls::ServerConfig::builder_with_details(Arc::new(provider), config.time_provider.clone());
        let versions = builder.with_protocol_versions(&[&rustls::version::TLS13]).map_err(io::Error::other)?;
        let mut ours = versions.with_no_client_auth().with_cert_resolver(config.cert_resolver.clone());
        ours.key_log = core::mem::replace(&mut config.key_log, Arc::new(rustls::NoKeyLog));
        ours.ignore_client_order = true;
        Ok(ServerTls::new(ours).map_err(io::Error::other)?)
    }

    /// Makes the transfer and tells what came of it. A checksum that differs is a fact, not an error.
    ///
    /// # Errors
    /// When the transfer cannot be made.
    pub fn run(self) -> Result<Run, QuicError> {
        let expected = self.payload.checksum()?;
        let (meter, nic) = (Meter::new(), nic_on(self.clock, &self.nic));
        let mut builder = Testbed::builder(self.seed).clock(self.clock).meter(&meter).traced(self.tracer.as_ref());
        let wires = if self.wires.is_empty() { vec![self.link.clone()] } else { self.wires.clone() };
        builder = builder.host("server", nic.clone(), tcp()).host("client", nic, tcp()).wires(0, 1, wires);
        if let Some(capture) = &self.capture {
            builder = builder.captured(capture);
        }
        let mut bed = builder.build()?;
        let (server, client) = (bed.host(0).clone(), bed.host(1).clone());
        let attached = meter.attach();
        let (serving, serves) = start(&server, PORT, self.config("server"), Some(self.server_tls()?))?;
        let (connecting, connects) = start(&client, PORT + 1, self.config("client"), None)?;
        let bulk = Arc::new(self);
        let wires = bulk.cuts.iter().map(|(wire, after)| (bed.cable(*wire).clone(), *after)).collect();
        let serve = serve(bulk.clone(), serving.clone(), server.clone(), meter.clone(), wires);
        let routes = bulk.routes(&server, &client);
        let sent = server.spawn("application", serve);
        let fetched = client.spawn("application", fetch(bulk.clone(), connecting.clone(), client.clone(), routes));
        let both = bounded::run(&mut bed, async {
            let (started, fetched) = try_join(sent, fetched).await?;
            for end in [&serving, &connecting] {
                end.close(0, "");
                end.drained().await;
            }
            Ok::<_, QuicError>((started, fetched))
        });
        drop((attached, serves, connects));
        let (started, (ended, bytes, checksum)) = both?;
        if let Some(capture) = &bulk.capture {
            capture.finish()?;
        }
        let counters = [serving.counters(), connecting.counters()];
        let whole = bytes == bulk.payload.len() && checksum == expected;
        let mut run = Measured::take(bed, &meter, []).run(bulk.mode, bytes, whole, ended - started);
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

fn start(host: &BedHost, port: u16, config: Config, tls: Option<ServerTls>) -> io::Result<(Endpoint, Running)> {
    let socket = host.stack().bind_udp(Some(port))?;
    let (endpoint, driver) = Endpoint::new(socket, host.runtime(), config, tls)?;
    Ok((endpoint, host.spawn("quic", driver)))
}

async fn serve(
    bulk: Arc<QuicBulk>,
    endpoint: Endpoint,
    host: BedHost,
    meter: Meter,
    cuts: Vec<(Cable, Duration)>,
) -> Result<Instant, QuicError> {
    let connection = endpoint.accept().await.ok_or(Closed::Endpoint)?;
    let (mut send, mut receive) = connection.accept_bi().await?;
    while receive.receive(GO.len()).await?.is_some() {}
    meter.restart();
    let started = host.now();
    for (wire, after) in cuts {
        wire.impair(|| Cut::new(started + after..Instant::MAX));
    }
    let mut pieces = bulk.payload.pieces(PIECE)?;
    let (mut left, each) = (u64::MAX, bulk.key_update_every.map(|packets| u64::from(packets) * A_PACKET));
    while let Some(piece) = {
        let _application = cost::work(Work::Application);
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
        send.send(piece).await?;
    }
    send.finish()?;
    // The client closes when it has all of it; its checksum says whether that is so.
    connection.closed().await;
    Ok(started)
}

async fn fetch(
    bulk: Arc<QuicBulk>,
    endpoint: Endpoint,
    host: BedHost,
    routes: Vec<(IpAddr, IpAddr)>,
) -> Result<(Instant, u64, Checksum), QuicError> {
    let name = identity::server_name();
    let first = SocketAddr::new(routes[0].1, PORT);
    let connection = endpoint.connect(&bulk.client_tls()?, first, name.to_str().as_ref())?.await?;
    for path in 1..bulk.paths as usize {
        let (from, to) = routes[path % routes.len()];
        connection.open_path(SocketAddr::new(to, PORT), Some(from)).await?;
    }
    // Both NICs have what they need by then.
    host.runtime().sleep(SETTLED).await;
    let (mut send, mut receive) = connection.open_bi().await?;
    send.send(GO.into()).await?;
    send.finish()?;
    let (mut hasher, mut bytes) = (Sha256::new(), 0);
    while let Some(data) = receive.receive(PIECE).await? {
        let _application = cost::work(Work::Application);
        hasher.update(&data);
        bytes += data.len() as u64;
        if let Some(progress) = &bulk.progress {
            progress(bytes);
        }
    }
    let ended = host.now();
    close(&connection);
    Ok((ended, bytes, hasher.finalize().into()))
}

fn close(connection: &Connection) {
    connection.close(0, "");
}

/// Both ends' together.
fn add(counters: &mut BTreeMap<String, u64>, ends: [Counters; 2]) {
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

    #[test]
    fn any_suite_may_be_asked_for() {
        for suite in [TlsSuite::Aes128Gcm, TlsSuite::Aes256Gcm, TlsSuite::ChaCha20Poly1305] {
            let payload = Payload::seeded(Seed(1), 100_000);
            let run = QuicBulk { suite, ..QuicBulk::new(Mode::QuicNic, payload) }.run().unwrap();
            assert!(run.sha256_ok && run.counters["QuicOpenedDevice"] > 50, "{suite:?}");
        }
    }
}
