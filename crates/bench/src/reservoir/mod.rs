//! Bulk transfer over a long fat path: the reservoir's own server and copy on two emulated hosts, from disk to disk or
//! from memory to memory.
//!
//! - `over_tcp`, `over_quic`: the connections of the hosts; `medium`: the disks; `series`: received bytes over time.
//!
//! The server's file is copied by several streams until the time is over. The NICs are faster than the bottleneck
//! between them, and the bottleneck's queue is far shorter than the data in flight, so an unpaced sender loses packets
//! there. Everything starts cold: connections, windows, receive buffers.
//!
//! A run may be *scaled*: the rates of line, NIC, drive and pace, the windows and the queue are divided by the same
//! number, which divides the computing time too. Round trips, packets and blocks stay the same. Reported rates are
//! multiplied again.

mod medium;
mod over_quic;
mod over_tcp;
mod series;

use bytes::BytesMut;
use core::pin::pin;
use core::time::Duration;
use futures_util::future::{Either, select};
use ktls_offload::Blocking;
use medium::Medium;
use nic_sim::NicConfig;
use nic_sim::wire::{LinkConfig, Overflow};
use offload_base::Seed;
use offload_base::cost::CpuMeter;
use offload_bench_tls::choice::Choice;
use offload_bench_tls::choices;
use offload_bench_tls::connection::{Mode, tcp};
use offload_bench_tls::facts::Run;
use offload_bench_tls::measured::Measured;
use offload_bench_tls::observers::Observers;
use offload_host_stack::TcpConfig;
use offload_reservoir::copy::{Copy, CopyLocation};
use offload_reservoir::dial::Dial;
use offload_reservoir::name::Name;
use offload_reservoir::{Server, ServerLimits, Shell, Task};
use offload_testbed::bed::{BedHost, Testbed};
use offload_testbed::drive::threads::VirtualThreads;
use offload_testbed::drive::{Drive, DriveConfig};
use serde::Serialize;
use series::Series;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

choices! {
    /// Whether the sender's NIC paces.
    pub enum Pacing {
        /// Data is sent as the window allows.
        Unpaced = "unpaced",
        /// Each stream is limited to its share of the pace.
        Paced = "paced",
    }
}

choices! {
    /// The location of files.
    pub enum Disks {
        /// On drives.
        Disk = "disk",
        /// In memory, which takes no time.
        Memory = "memory",
    }
}

choices! {
    /// The transport of requests and answers.
    pub enum Transport {
        /// HTTP/1.1, with a connection of TLS over TCP for each stream.
        Tcp = "tcp",
        /// HTTP/3, with all streams on one QUIC connection.
        Http3 = "http3",
    }
}

/// The settings of a transfer.
///
/// ```
/// use core::time::Duration;
/// use offload_bench_tls::bulk::Mode;
/// use offload_bench::reservoir::Reservoir;
///
/// // A hundredth of 100 Gb/s, over 20 ms and back.
/// let run = Reservoir {
///     streams: 2,
///     round_trip: Duration::from_millis(40),
///     time: Duration::from_secs(1),
///     scale: 100,
///     ..Reservoir::new(Mode::TlsNic)
/// };
/// let came = run.run()?;
/// assert!(came.run.sha256_ok && came.average_gbps > 1.0, "{came:?}");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Reservoir {
    /// The mode of TLS, or of packet protection over QUIC.
    pub mode: Mode,
    /// The transport of requests and answers.
    pub transport: Transport,
    /// Simultaneous connections; over QUIC, simultaneous requests.
    pub streams: u16,
    /// Round-trip time between the hosts.
    pub round_trip: Duration,
    /// Duration of the run from the first connection on.
    pub time: Duration,
    /// Time at the start that does not count as steady. The counted time is a whole number of round trips.
    pub omit: Duration,
    /// Bits per second of the bottleneck.
    pub rate: u64,
    /// Bytes that may wait in front of the bottleneck; further packets are dropped.
    pub queue: usize,
    /// Settings of both NICs: `line_rate` is their maximum sending rate, `mtu` the largest IP packet.
    pub nic: NicConfig,
    /// Whether the sender's NIC paces.
    pub pacing: Pacing,
    /// Bits per second of all paced streams together, in equal shares.
    pub pace: u64,
    /// Bytes of the send buffer and of the receive buffer of a connection, which limit its window. Over QUIC the one
    /// connection has the windows of all streams, up to 4 GiB.
    pub window: usize,
    /// The location of both hosts' files.
    pub disks: Disks,
    /// Settings of both hosts' drives.
    pub drive: DriveConfig,
    /// Bytes of a block.
    pub block: u64,
    /// Divisor of rates, windows and the queue.
    pub scale: u64,
    /// The seed of all random numbers.
    pub seed: Seed,
    /// The observers of the run.
    pub observers: Observers,
}

impl Reservoir {
    /// Returns eight unpaced streams from disk to disk for 20 s: 100 Gb/s, a round trip of 274 ms, windows of 512 MiB.
    pub fn new(mode: Mode) -> Reservoir {
        Reservoir {
            mode,
            transport: Transport::Tcp,
            streams: 8,
            round_trip: Duration::from_millis(274),
            time: Duration::from_secs(20),
            omit: Duration::from_secs(10),
            rate: 100_000_000_000,
            queue: 64 << 20,
            nic: NicConfig { line_rate: Some(120_000_000_000), mtu: 9000, ..NicConfig::default() },
            pacing: Pacing::Unpaced,
            pace: 97_000_000_000,
            window: 512 << 20,
            disks: Disks::Disk,
            drive: DriveConfig::EIGHT_SSDS,
            block: 16 << 20,
            scale: 1,
            seed: Seed(1),
            observers: Observers::default(),
        }
    }

    /// Returns the name of the run among others. Runs that differ in mode, transport, round trip, pacing or disks have
    /// different names.
    ///
    /// ```
    /// use core::time::Duration;
    /// use offload_bench::reservoir::Reservoir;
    /// use offload_bench_tls::bulk::Mode;
    ///
    /// let near = Reservoir { round_trip: Duration::from_micros(1500), ..Reservoir::new(Mode::TlsNic) };
    /// assert!(near.label().starts_with("tls-nic-tcp-1.5ms-"), "{}", near.label());
    /// ```
    pub fn label(&self) -> String {
        let Reservoir { mode, transport, round_trip, pacing, disks, .. } = self;
        format!("{mode}-{transport}-{}ms-{pacing}-{disks}", round_trip.as_nanos() as f64 / 1e6)
    }

    /// Returns the theoretical rate of line, disks and windows, in 10^9 bits per second: the least of the line, the
    /// disks' rates, and for each stream its disks' share and a window per round trip.
    ///
    /// ```
    /// use core::time::Duration;
    /// use offload_bench_tls::bulk::Mode;
    /// use offload_bench::reservoir::Reservoir;
    ///
    /// let far = Reservoir { round_trip: Duration::from_millis(806), ..Reservoir::new(Mode::TlsNic) };
    /// assert_eq!(far.law_gbps().round(), 43.0); // 8 x 512 MiB in 806 ms
    /// ```
    pub fn law_gbps(&self) -> f64 {
        let by_window = self.window as f64 * 8.0 / self.round_trip.as_nanos().max(1) as f64;
        let line = match self.pacing {
            Pacing::Unpaced => self.rate,
            Pacing::Paced => self.pace.min(self.rate),
        };
        let (of_stream, most) = match self.disks {
            Disks::Memory => (by_window, line),
            Disks::Disk => {
                (by_window.min(self.drive.stream as f64 / 1e9), line.min(self.drive.read).min(self.drive.write))
            }
        };
        (of_stream * f64::from(self.streams)).min(most as f64 / 1e9)
    }

    /// Runs the transfer and returns the result. Wrong bytes are reported in the result and are not an error.
    ///
    /// # Errors If the testbed cannot be set up, or the copy fails.
    pub fn run(self) -> io::Result<ReservoirRun> {
        let meter = CpuMeter::new();
        let mut bed = self.bed(&meter)?;
        let (server, client) = (bed.host(0).clone(), bed.host(1).clone());
        let mut pattern = BytesMut::zeroed(PATTERN);
        self.seed.stream("file").fill(&mut pattern);
        let pattern = pattern.freeze();
        let disk = |host: &BedHost, name: &str| {
            let drive =
                (self.disks == Disks::Disk).then(|| Drive::new(self.drive.slower(self.scale), self.seed.derive(name)));
            Medium::new(pattern.clone(), drive, host.runtime())
        };
        let (source, target) = (disk(&server, "source"), disk(&client, "target"));
        let name = Name::from_url("/file").map_err(io::Error::other)?;
        source.add(&name, FILE);
        let limits = ServerLimits { connections: usize::from(self.streams) * 2 + 2, ..ServerLimits::default() };
        let serving = Server::new(Arc::new(source), shell(&server, &meter), limits).open_to_all();
        let dial: Arc<dyn Dial> = match self.transport {
            Transport::Tcp => {
                over_tcp::serve(&self, &server, serving, &meter)?;
                Arc::new(over_tcp::BenchTcpDialer::new(&self, &client, &server))
            }
            Transport::Http3 => {
                over_quic::serve(&self, &server, serving, &meter)?;
                Arc::new(over_quic::BenchQuicDialer::new(&self, &client, &server)?)
            }
        };
        let copy = Copy::new(shell(&client, &meter), dial).streams(usize::from(self.streams));
        let copy = copy.block(self.block).map_err(io::Error::other)?.retries(0);
        let url = CopyLocation::parse("https://server.nic-offload.test/file", None).map_err(io::Error::other)?;
        let into = CopyLocation::in_folder(Arc::new(target.clone()), name);

        let series = Series::new(STEP);
        let attached = meter.attach();
        let (watched, progress, runtime) = (series.clone(), copy.progress(), client.runtime());
        let observers = self.observers.clone();
        let _samples = client.spawn("sampler", async move {
            loop {
                runtime.sleep(STEP).await;
                let streams = progress.streams();
                observers.received.store(streams.iter().sum(), Ordering::Relaxed);
                watched.add(&streams);
            }
        });
        let (runtime, time) = (client.runtime(), self.time);
        let ended = self.observers.run(&mut bed, self.label(), async {
            // The file is longer than any copy, so a copy that ends before the time has failed.
            let (copying, over) = (pin!(copy.run(core::slice::from_ref(&url), &into)), pin!(runtime.sleep(time)));
            match select(copying, over).await {
                Either::Left((Ok(outcome), _)) => {
                    Err(io::Error::other(format!("the copy ended: {:?}", outcome.failed)))
                }
                Either::Left((Err(error), _)) => Err(io::Error::other(error)),
                Either::Right(_) => Ok(()),
            }
        });
        ended?;
        self.observers.finish()?;
        drop((attached, copy));
        let (bytes, whole) = (target.written(), target.is_whole());
        let measured = Measured::take(bed, &meter, []);
        let mut run = measured.run(self.mode, bytes, whole, self.time);
        run.goodput_gbps *= self.scale as f64;
        Ok(self.told(run, &series))
    }

    fn told(self, run: Run, series: &Series) -> ReservoirRun {
        let scale = self.scale as f64;
        let whole = series.over(Duration::ZERO, self.time);
        // The counted time consists of whole round trips, because the data of one may arrive in a burst.
        let round_trips =
            ((self.time - self.omit.min(self.time)).as_nanos() / self.round_trip.as_nanos().max(1)).max(1);
        let span = self.round_trip * u32::try_from(round_trips).unwrap_or(u32::MAX);
        let steady = series.over(self.time.saturating_sub(span), self.time);
        // The law is unscaled, like all reported rates.
        let law_gbps = self.law_gbps();
        ReservoirRun {
            run,
            transport: self.transport.name().into(),
            streams: self.streams,
            round_trip_s: self.round_trip.as_secs_f64(),
            pacing: self.pacing.name().into(),
            disks: self.disks.name().into(),
            window: self.window as u64,
            scale: self.scale,
            average_gbps: whole.mean * scale,
            peak_gbps: whole.peak * scale,
            seconds_to_90: series.seconds_to(0.9 * whole.peak),
            steady_gbps: steady.mean * scale,
            deviation_gbps: steady.deviation * scale,
            slowest_gbps: steady.slowest * scale,
            fastest_gbps: steady.fastest * scale,
            fairness: steady.fairness,
            law_gbps,
            of_law: steady.mean * scale / law_gbps,
            seconds_gbps: series.seconds().into_iter().map(|gbps| gbps * scale).collect(),
        }
    }

    fn bed(&self, meter: &CpuMeter) -> io::Result<Testbed> {
        // A rate must not become zero, however large the scale.
        let scaled = |rate: u64| (rate / self.scale.max(1)).max(1000);
        let window = (self.window / self.scale.max(1) as usize).max(64 << 10);
        let tcp = TcpConfig {
            send_buffer: window,
            receive_buffer: window,
            initial_receive_buffer: tcp().initial_receive_buffer.min(window),
            ..tcp()
        };
        let mut nic = self.nic.clone();
        for rate in [&mut nic.line_rate, &mut nic.costs.pcie_rate, &mut nic.costs.crypto_rate] {
            *rate = rate.map(scaled);
        }
        let link = LinkConfig {
            rate: Some(scaled(self.rate)),
            delay: self.round_trip / 2,
            queue_limit: (self.queue / self.scale.max(1) as usize).max(usize::from(self.nic.mtu)),
            overflow: Overflow::Drop,
            ..LinkConfig::default()
        };
        let builder = Testbed::builder(self.seed)
            .meter(meter)
            .host("server", nic.clone(), tcp.clone())
            .host("client", nic, tcp)
            .wire(0, 1, link);
        self.observers.attach(builder).build()
    }
}

/// The result of one transfer. Rates are of user data on the destination's disk, in 10^9 bits per second, multiplied by
/// the scale.
///
/// See [`Reservoir`] for an example.
#[derive(Clone, Debug, Serialize)]
pub struct ReservoirRun {
    /// The common fields, with bytes and packets of the scaled run.
    #[serde(flatten)]
    pub run: Run,
    /// The transport: `tcp`, `http3`.
    pub transport: String,
    /// Simultaneous connections; over QUIC, requests.
    pub streams: u16,
    /// Round-trip time in seconds.
    pub round_trip_s: f64,
    /// Whether the sender's NIC paced: `paced`, `unpaced`.
    pub pacing: String,
    /// The location of files: `disk`, `memory`.
    pub disks: String,
    /// Bytes of a connection's receive buffer.
    pub window: u64,
    /// Divisor of rates, windows and the queue.
    pub scale: u64,
    /// Mean rate from the first connection to the end.
    pub average_gbps: f64,
    /// Rate of the best second.
    pub peak_gbps: f64,
    /// End of the first second with 90 % of the peak, from the first connection on.
    pub seconds_to_90: f64,
    /// Mean rate without the start.
    pub steady_gbps: f64,
    /// Standard deviation of the seconds, without the start.
    pub deviation_gbps: f64,
    /// Rate of the slowest stream, without the start.
    pub slowest_gbps: f64,
    /// Rate of the fastest stream, without the start.
    pub fastest_gbps: f64,
    /// Jain's index of the streams' rates, without the start.
    pub fairness: f64,
    /// The theoretical rate of line, pace, disks and windows.
    pub law_gbps: f64,
    /// The steady rate as a share of the theoretical rate.
    pub of_law: f64,
    /// Rate of each second.
    pub seconds_gbps: Vec<f64>,
}

/// Returns the environment of the engine on a host: timers, tasks, and threads that wait for its disk.
fn shell(host: &BedHost, meter: &CpuMeter) -> Shell {
    let threads = VirtualThreads::metered(host.runtime(), meter, host.domain());
    let pool: Arc<dyn Blocking> = Arc::new(move |work: Box<dyn FnOnce() + Send>| {
        // Without a thread the work is dropped, and its operation fails.
        let _no_more_threads = threads.run(work);
    });
    let tasks = host.clone();
    let spawn = move |task: Task| drop(tasks.spawn("reservoir", task));
    Shell::new(host.runtime(), pool, Arc::new(spawn))
}

const PORT: u16 = 443;
/// Bytes of the file, more than any run copies.
const FILE: u64 = 1 << 42;
/// Bytes of the repeated content. Not a power of two, so that blocks differ.
const PATTERN: usize = (1 << 20) + 7;
/// Interval of the samples of received bytes.
const STEP: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    fn small(mode: Mode) -> Reservoir {
        Reservoir { time: Duration::from_secs(4), omit: Duration::from_secs(2), scale: 200, ..Reservoir::new(mode) }
    }

    #[test]
    fn run_repeats_and_delivers_intact_data() {
        let run = || small(Mode::TlsNic).run().unwrap();
        let (one, other) = (run(), run());
        assert!(one.run.sha256_ok && one.run.bytes > 0);
        assert_eq!((one.run.bytes, &one.seconds_gbps), (other.run.bytes, &other.seconds_gbps));
        assert_eq!(one.run.counters, other.run.counters);
    }

    /// One QUIC connection carries as much as eight TCP connections, with packets protected by the NICs.
    #[test]
    fn one_connection_of_quic_comes_to_the_law_too() {
        let (time, omit) = (Duration::from_secs(12), Duration::from_secs(9));
        // A large scale keeps the test short; the law does not depend on it.
        let far = Reservoir { time, omit, scale: 400, transport: Transport::Http3, ..Reservoir::new(Mode::TlsNic) };
        let run = far.run().unwrap();
        assert!(run.run.sha256_ok && run.of_law > 0.9, "{run:?}");
        assert!(run.run.counters["quic_rx_pkts"] > 1000, "{:?}", run.run.counters);
    }

    /// With pacing, nothing is lost: windows grow to the limit of disks and line, and the scale changes only the
    /// computing time.
    #[test]
    fn paced_streams_come_to_the_law_at_any_scale() {
        let run = |scale| {
            let (time, omit) = (Duration::from_secs(8), Duration::from_secs(5));
            Reservoir { time, omit, scale, pacing: Pacing::Paced, ..Reservoir::new(Mode::TlsNic) }.run().unwrap()
        };
        let (one, other) = (run(400), run(200));
        for run in [&one, &other] {
            assert!((0.95..1.05).contains(&run.of_law) && run.fairness > 0.99, "{run:?}");
            // Paced below the bottleneck's rate, the queue cannot overflow.
            assert_eq!(run.run.counters.get("wire_queue_drops"), None);
        }
        assert!((0.97..1.03).contains(&(one.steady_gbps / other.steady_gbps)), "{one:?} and {other:?}");
    }
}
