//! Many simultaneous streams between two hosts, limited by bytes or by time.
//!
//! Keys are installed as after a handshake, so that thousands of streams start together and no handshake is measured.
//! The clock and the meter start when all streams are ready and stop at the last received byte. Received data is
//! compared with the sent data, byte by byte, on the application's account.
//!
//! The goodput of a run by time counts the bytes received within that time, so that one stream in a timeout at the end
//! does not distort the others. The beginning may be excluded, for example slow start over a long path; costs and bytes
//! then cover the rest.

use crate::crowd::ConnectionGroup;
use bytes::{Bytes, BytesMut};
use core::time::Duration;
use futures_util::future::{join_all, try_join};
use ktls_offload::{Offload, TlsCounters};
use nic_sim::NicConfig;
use nic_sim::wire::LinkConfig;
use offload_api::TlsSuite;
use offload_base::cost::{self, CpuMeter, WorkKind};
use offload_base::{Instant, Seed};
use offload_bench_tls::connection::{Connection, Mode, nic_on, tcp};
use offload_bench_tls::facts::Run;
use offload_bench_tls::measured::Measured;
use offload_bench_tls::observers::Observers;
use offload_host_stack::{TcpConfig, TcpListener};
use offload_testbed::bed::{BedHost, ClockKind, Testbed};
use serde::Serialize;
use std::io;
use std::sync::{Arc, OnceLock};

/// The end of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// After this many bytes on each stream.
    Bytes(u64),
    /// After this time, not counting the excluded beginning.
    Elapsed(Duration),
}

/// The ends that offload their direction, in mode `tls-nic`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// The sending end.
    Sender,
    /// The receiving end.
    Receiver,
    /// Both ends.
    Both,
}

/// The settings of a run.
///
/// ```
/// use offload_bench_tls::bulk::Mode;
/// use offload_bench::iperf::{Ends, Iperf, Until};
///
/// let (until, ends) = (Until::Bytes(100_000), Ends::Sender);
/// let run = Iperf { streams: 3, until, ends, ..Iperf::new(Mode::TlsNic) }.run()?;
/// assert_eq!(run.run.bytes, 300_000);
/// assert!(run.run.sha256_ok && run.fairness > 0.99);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Iperf {
    /// The mode of TLS.
    pub mode: Mode,
    /// Connections at once, 1 to 32,768.
    pub streams: u16,
    /// The end of each stream.
    pub until: Until,
    /// Time at the beginning that is excluded. Only with [`Until::Elapsed`].
    pub omit: Duration,
    /// Bytes of the send buffer and of the receive buffer of a connection, which limit its window. `None`: the defaults
    /// of TCP.
    pub window: Option<usize>,
    /// Content bytes of a full record, 1 to 16384.
    pub record_size: usize,
    /// Bytes handed to a stream at once.
    pub message_size: usize,
    /// The offloading ends, in mode `tls-nic`.
    pub ends: Ends,
    /// The cipher suite.
    pub suite: TlsSuite,
    /// The clock.
    pub clock: ClockKind,
    /// The seed of all random numbers.
    pub seed: Seed,
    /// Settings of both NICs. Each host has one shard per queue.
    pub nic: NicConfig,
    /// Settings of each direction of the wire.
    pub link: LinkConfig,
    /// The observers of the run.
    pub observers: Observers,
}

impl Iperf {
    /// Returns one stream of 64 MiB in virtual time over a clean wire, with 16 KiB records and 256 KiB messages.
    pub fn new(mode: Mode) -> Iperf {
        Iperf {
            mode,
            streams: 1,
            until: Until::Bytes(64 << 20),
            omit: Duration::ZERO,
            window: None,
            record_size: 16 * 1024,
            message_size: 256 * 1024,
            ends: Ends::Both,
            suite: TlsSuite::Aes128Gcm,
            clock: ClockKind::Virtual,
            seed: Seed(1),
            nic: NicConfig::default(),
            link: LinkConfig::default(),
            observers: Observers::default(),
        }
    }

    /// Runs the streams and returns the result. Wrong bytes are reported in the result and are not an error.
    ///
    /// # Errors If the testbed cannot be set up or a connection fails.
    pub fn run(self) -> io::Result<IperfRun> {
        let meter = CpuMeter::new();
        let nic = nic_on(self.clock, &self.nic);
        let builder = Testbed::builder(self.seed)
            .clock(self.clock)
            .meter(&meter)
            .host("server", nic.clone(), self.tcp())
            .host("client", nic, self.tcp())
            .wire(SERVER, CLIENT, self.link.clone());
        let mut bed = self.observers.attach(builder).build()?;
        let plan =
            Arc::new(IperfPlan { message: self.message(), crowd: self.crowd(), iperf: self, started: OnceLock::new() });
        let (server, client) = (bed.host(SERVER).clone(), bed.host(CLIENT).clone());
        let attached = meter.attach();
        let listeners = plan.crowd.listen(&server)?;
        let serving = server.spawn("application", serve(plan.clone(), server.clone(), listeners, meter.clone()));
        let fetching = client.spawn("application", fetch(plan.clone(), client.clone(), server.clone()));
        let both = plan.iperf.observers.run(&mut bed, plan.iperf.mode, try_join(serving, fetching));
        drop(attached);
        let (served, fetched) = both?;
        plan.iperf.observers.finish()?;
        let measured = Measured::take(bed, &meter, served.tls.iter().chain(&fetched.tls));
        let bytes: u64 = fetched.streams.iter().map(|stream| stream.bytes).sum();
        // The slowest stream ends the run by bytes, so costs and time cover all of them.
        let ended = fetched.streams.iter().map(|stream| stream.ended).max().unwrap_or(served.started);
        let whole = fetched.streams.iter().all(|stream| stream.equal) && bytes == served.bytes;
        let counted = fetched.streams.iter().map(|stream| stream.counted).sum();
        // A run by time counts only bytes within the time: the last stream may end much later.
        let goodput = |stream: &ReceivedStream| match plan.iperf.until {
            Until::Bytes(_) => gbps(stream.bytes, stream.ended - served.started),
            Until::Elapsed(span) => gbps(stream.in_time, span),
        };
        let goodputs: Vec<f64> = fetched.streams.iter().map(goodput).collect();
        let mut run = measured.run(plan.iperf.mode, counted, whole, ended - served.started);
        if let Until::Elapsed(_) = plan.iperf.until {
            run.goodput_gbps = goodputs.iter().sum();
        }
        Ok(IperfRun {
            run,
            streams: plan.iperf.streams,
            seconds: (ended - served.started).as_secs_f64(),
            fairness: jain(&goodputs),
            slowest_gbps: goodputs.iter().copied().fold(f64::INFINITY, f64::min),
            fastest_gbps: goodputs.iter().copied().fold(0.0, f64::max),
        })
    }

    fn tcp(&self) -> TcpConfig {
        match self.window {
            Some(window) => TcpConfig {
                send_buffer: window,
                receive_buffer: window,
                initial_receive_buffer: tcp().initial_receive_buffer.min(window),
                ..tcp()
            },
            None => tcp(),
        }
    }

    fn crowd(&self) -> ConnectionGroup {
        ConnectionGroup {
            mode: self.mode,
            connections: self.streams,
            record_size: self.record_size,
            suite: self.suite,
            seed: self.seed,
            of_server: Offload { tx: self.ends != Ends::Receiver, rx: false },
            of_client: Offload { tx: false, rx: self.ends != Ends::Sender },
            port: PORT,
        }
    }

    /// Returns the content of every message.
    fn message(&self) -> Bytes {
        let mut message = BytesMut::zeroed(self.message_size.max(1));
        self.seed.stream("message").fill(&mut message);
        message.freeze()
    }
}

/// The result of one run: the fields of `ktls_loopback`, and a comparison of the streams.
///
/// See [`Iperf`] for an example.
#[derive(Clone, Debug, Serialize)]
pub struct IperfRun {
    /// The common fields.
    #[serde(flatten)]
    pub run: Run,
    /// Connections at once.
    pub streams: u16,
    /// Seconds from the common start to the last byte of the last stream.
    pub seconds: f64,
    /// Jain's index of the streams' goodputs: 1 if all are equal, 1/n if one stream has everything.
    pub fairness: f64,
    /// The goodput of the slowest stream, in 10^9 bits per second.
    pub slowest_gbps: f64,
    /// The goodput of the fastest stream, in 10^9 bits per second.
    pub fastest_gbps: f64,
}

/// Returns Jain's fairness index, (sum x)^2 / (n sum x^2). The index of no shares is 1.
///
/// ```
/// assert_eq!(offload_bench::iperf::jain(&[2.0, 2.0]), 1.0);
/// assert_eq!(offload_bench::iperf::jain(&[4.0, 0.0]), 0.5);
/// ```
pub fn jain(shares: &[f64]) -> f64 {
    let (sum, squares) = shares.iter().fold((0.0, 0.0), |(sum, squares), x| (sum + x, squares + x * x));
    if squares == 0.0 { 1.0 } else { sum * sum / (shares.len() as f64 * squares) }
}

fn gbps(bytes: u64, span: Duration) -> f64 {
    bytes as f64 * 8.0 / span.as_nanos().max(1) as f64
}

struct IperfPlan {
    iperf: Iperf,
    crowd: ConnectionGroup,
    message: Bytes,
    /// Start of the clock, before the first byte is sent.
    started: OnceLock<Instant>,
}

/// Measurements at the server.
struct ServerResult {
    started: Instant,
    bytes: u64,
    tls: Vec<TlsCounters>,
}

async fn serve(
    plan: Arc<IperfPlan>,
    host: BedHost,
    listeners: Vec<TcpListener>,
    meter: CpuMeter,
) -> io::Result<ServerResult> {
    let ready = plan.crowd.admit(&host, listeners).await?;
    meter.restart();
    let started = *plan.started.get_or_init(|| host.now());
    // The meter restarts after the excluded beginning, so that costs and bytes cover the same time.
    if plan.iperf.omit > Duration::ZERO {
        let runtime = host.runtime();
        let omit = plan.iperf.omit;
        host.spawn("omitting", async move {
            runtime.sleep(omit).await;
            meter.restart();
        });
    }
    let sending: Vec<_> = ready
        .into_iter()
        .map(|connection| host.spawn("sending", send(plan.clone(), host.clone(), started, connection)))
        .collect();
    let (mut bytes, mut tls) = (0, Vec::new());
    for sent in join_all(sending).await {
        let (sent, counters) = sent?;
        bytes += sent;
        tls.extend(counters);
    }
    Ok(ServerResult { started, bytes, tls })
}

async fn send(
    plan: Arc<IperfPlan>,
    host: BedHost,
    started: Instant,
    mut connection: Connection,
) -> io::Result<(u64, Option<TlsCounters>)> {
    let mut sent = 0;
    loop {
        let left = match plan.iperf.until {
            Until::Bytes(bytes) => bytes - sent,
            Until::Elapsed(span) if host.now() - started < plan.iperf.omit + span => u64::MAX,
            Until::Elapsed(_) => 0,
        };
        let message = plan.message.slice(..left.min(plan.message.len() as u64) as usize);
        if message.is_empty() {
            break;
        }
        sent += message.len() as u64;
        connection.send(message).await?;
    }
    connection.close().await?;
    // The stream must not be dropped with unacknowledged data, or a failure would go unnoticed.
    connection.acknowledged(sent).await?;
    connection.closed().await;
    Ok((sent, connection.counters()))
}

/// Measurements at the client.
struct ClientResult {
    streams: Vec<ReceivedStream>,
    tls: Vec<TlsCounters>,
}

struct ReceivedStream {
    ended: Instant,
    bytes: u64,
    /// Bytes after the excluded beginning.
    counted: u64,
    /// Bytes before the end of the time.
    in_time: u64,
    equal: bool,
}

async fn fetch(plan: Arc<IperfPlan>, host: BedHost, server: BedHost) -> io::Result<ClientResult> {
    let receiving: Vec<_> = (0..plan.iperf.streams)
        .map(|number| host.spawn("receiving", receive(plan.clone(), host.clone(), server.clone(), number)))
        .collect();
    let (mut streams, mut tls) = (Vec::new(), Vec::new());
    for received in join_all(receiving).await {
        let (stream, counters) = received?;
        streams.push(stream);
        tls.extend(counters);
    }
    Ok(ClientResult { streams, tls })
}

async fn receive(
    plan: Arc<IperfPlan>,
    host: BedHost,
    server: BedHost,
    number: u16,
) -> io::Result<(ReceivedStream, Option<TlsCounters>)> {
    let mut connection = plan.crowd.join(&host, &server, number).await?;
    let mut arrived = ReceivedStream { ended: host.now(), bytes: 0, counted: 0, in_time: 0, equal: true };
    while let Some(chunk) = connection.receive().await? {
        // Comparing is the work of the test application and is not charged to the host.
        let _application = cost::work(WorkKind::Application);
        arrived.equal &= continues(&plan.message, arrived.bytes, &chunk);
        let (bytes, now) = (chunk.len() as u64, host.now());
        // The server sets the start; data cannot arrive before it.
        let at = plan.started.get().map_or(Duration::ZERO, |started| now - *started);
        arrived.bytes += bytes;
        arrived.ended = now;
        plan.iperf.observers.arrived(bytes);
        if at >= plan.iperf.omit {
            arrived.counted += bytes;
            let until = plan.iperf.until;
            arrived.in_time +=
                if matches!(until, Until::Elapsed(span) if at < plan.iperf.omit + span) { bytes } else { 0 };
        }
    }
    connection.close().await?;
    Ok((arrived, connection.counters()))
}

/// Tests whether `chunk` is at `offset` in an endless repetition of `message`.
pub(crate) fn continues(message: &[u8], offset: u64, mut chunk: &[u8]) -> bool {
    let mut at = (offset % message.len() as u64) as usize;
    while !chunk.is_empty() {
        let length = chunk.len().min(message.len() - at);
        let (now, later) = chunk.split_at(length);
        if now != &message[at..at + length] {
            return false;
        }
        (chunk, at) = (later, 0);
    }
    true
}

const SERVER: usize = 0;
const CLIENT: usize = 1;
const PORT: u16 = 5201;

#[cfg(test)]
mod tests {
    use super::*;
    use nic_sim::Costs;

    #[test]
    fn a_byte_that_differs_is_seen_wherever_it_stands() {
        let message = b"offload";
        let stream: Vec<u8> = message.iter().copied().cycle().take(40).collect();
        for from in 0..20 {
            // All positions and lengths, so that wrap-arounds at the message's end are covered.
            for to in from..=40 {
                assert!(continues(message, from as u64, &stream[from..to]));
                for at in from..to {
                    let mut broken = stream[from..to].to_vec();
                    broken[at - from] ^= 1;
                    assert!(!continues(message, from as u64, &broken));
                }
            }
        }
    }

    #[test]
    fn a_run_by_time_ends_and_all_that_was_sent_arrives() {
        for mode in Mode::ALL {
            let until = Until::Elapsed(Duration::from_micros(500));
            let made = Iperf { streams: 4, until, message_size: 10_000, ..Iperf::new(mode) }.run().unwrap();
            assert!(made.run.sha256_ok && made.run.bytes > 1_000_000, "{made:?}");
            assert!(made.seconds < 0.002, "{made:?}");
        }
    }

    #[test]
    fn long_path_carries_one_window_per_round_trip() {
        // The window of each run is far below the bandwidth-delay product of the wire, so the window alone limits
        // goodput.
        let link = LinkConfig { delay: Duration::from_millis(10), ..LinkConfig::default() };
        let (until, omit) = (Until::Elapsed(Duration::from_millis(200)), Duration::from_millis(300));
        let with = |window, omit| Iperf { until, omit, window, link: link.clone(), ..Iperf::new(Mode::TlsNic) }.run();
        for window in [1_usize << 20, 4 << 20] {
            // After slow start, each round trip of 20 ms carries one window.
            let made = with(Some(window), omit).unwrap();
            let law = window as f64 * 8.0 / 20e6;
            assert!((0.85..1.05).contains(&(made.run.goodput_gbps / law)), "{window}: {made:?}");
            assert!(made.run.sha256_ok);
            let all = with(Some(window), Duration::ZERO).unwrap();
            assert!(all.run.goodput_gbps < made.run.goodput_gbps, "slow start is left out");
        }
    }

    /// Streams that find the control ring full request offload again with their next record.
    #[test]
    fn all_simultaneous_streams_are_offloaded_in_the_end() {
        let until = Until::Bytes(500_000);
        let made = Iperf { streams: 256, until, message_size: 16_384, ..Iperf::new(Mode::TlsNic) }.run().unwrap();
        assert!(made.run.sha256_ok && made.run.bytes == 256 * 500_000, "{made:?}");
        let counted = |name| made.run.counters.get(name).copied().unwrap_or(0);
        assert_eq!((counted("TlsTxDevice"), counted("TlsRxDevice")), (256, 256), "{:?}", made.run.counters);
        // Each refusal must be followed by a later success.
        assert_eq!(counted("TlsOffloadRefused"), counted("TlsOffloadLater"));
        assert!(counted("TlsOffloadLater") > 0, "nobody found it full");
    }

    /// By default, PCIe, context fetches and engines take no time.
    #[test]
    fn bus_fetches_and_engines_bound_goodput() {
        let goodput = |context_cache_bytes, costs| {
            let nic = NicConfig { context_cache_bytes, costs, ..NicConfig::default() };
            let until = Until::Bytes(2_000_000);
            let made =
                Iperf { streams: 8, until, nic, message_size: 65_536, ..Iperf::new(Mode::TlsNic) }.run().unwrap();
            assert!(made.run.sha256_ok && made.run.bytes == 16_000_000, "{made:?}");
            (made.run.goodput_gbps, made.run.counters["tx_tls_encrypted_bytes"])
        };
        let (one_context, all) = (208, 4 << 20);
        let usual = goodput(all, Costs::default());
        // A tiny cache costs nothing as long as a fetch takes no time.
        assert_eq!(goodput(one_context, Costs::default()), usual);
        let fetch = Costs { context_fetch: Duration::from_micros(5), ..Costs::default() };
        let (few, many) = (goodput(all, fetch), goodput(one_context, fetch));
        assert!(few.0 > 0.99 * usual.0 && many.0 < 0.9 * usual.0, "{usual:?} {few:?} {many:?}");
        let limit = Some(20_000_000_000);
        let costs = [Costs { pcie_rate: limit, ..Costs::default() }, Costs { crypto_rate: limit, ..Costs::default() }];
        for costs in costs {
            let bound = goodput(all, costs).0;
            assert!((15.0..20.0).contains(&bound), "{costs:?}: {bound}");
        }
    }

    #[test]
    fn streams_are_spread_over_queues_and_stay_there() {
        for mode in Mode::ALL {
            let nic = NicConfig { queues: 4, ..NicConfig::default() };
            let until = Until::Bytes(200_000);
            let made = Iperf { streams: 16, until, nic, ..Iperf::new(mode) }.run().unwrap();
            assert!(made.run.sha256_ok && made.run.bytes == 3_200_000, "{made:?}");
            // A packet that arrives at a shard other than its connection's is passed on and counted.
            assert_eq!(made.run.counters.get("HostShardPassed"), None, "{mode}: a packet came to another shard");
        }
    }
}
