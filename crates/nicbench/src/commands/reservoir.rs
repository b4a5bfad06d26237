//! `nicbench reservoir`.

use clap::Args;
use core::time::Duration;
use offload_base::Seed;
use offload_bench::published;
use offload_bench::reservoir::{Disks, Pacing, Reservoir, ReservoirRun, Transport};
use offload_bench_tls::bulk::Mode;
use offload_bench_tls::choice::Choice;
use offload_bench_tls::table;
use offload_cli::options::{self, Rate};
use offload_cli::output::OutputOptions;
use offload_cli::own;
use offload_cli::scenario::{self, About, Failure, Made, Scenario};

/// Bulk transfer over long fat paths: the reservoir's server and copy on emulated hosts, from disk to disk, cold start included,
/// beside the Secure Data Reservoir's published figures; virtual time
///
/// Both NICs are faster than the bottleneck between them, whose queue is far shorter than what is on the way. Steady figures leave the
/// start out, and are over whole round trips. The law is what line, pace, disks and windows allow.
#[derive(Args, Debug)]
#[command(allow_negative_numbers = true)]
pub(crate) struct ReservoirOptions {
    /// Who does the TLS (AES-256-GCM), comma-separated: tcp, tls-cpu, tls-nic
    #[arg(long, value_parser = options::choice::<Mode>(), value_delimiter = ',', default_value = "tls-nic")]
    pub mode: Vec<Mode>,
    /// What requests go over, comma-separated: tcp (a connection of TLS for each stream), http3 (all on one connection of QUIC)
    #[arg(long, value_parser = options::choice::<Transport>(), value_delimiter = ',', default_value = "tcp")]
    transport: Vec<Transport>,
    /// From one host to the other and back, comma-separated
    #[arg(long, value_name = "TIME", value_parser = options::some_time, value_delimiter = ',', default_value = "274ms,444ms,806ms")]
    round_trip: Vec<Duration>,
    /// Whether the sender paces, its NIC for TCP and itself for QUIC, comma-separated: unpaced, paced
    #[arg(long, value_parser = options::choice::<Pacing>(), value_delimiter = ',', default_values_t = Pacing::ALL)]
    pacing: Vec<Pacing>,
    /// Where files are, comma-separated: disk, memory
    #[arg(long, value_parser = options::choice::<Disks>(), value_delimiter = ',', default_value = "disk")]
    disks: Vec<Disks>,
    /// Connections at once
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1024))]
    streams: u16,
    /// Bytes of memory that received data of a connection may take, and that its sender queues: its window, nearly
    #[arg(long, value_name = "SIZE", value_parser = window, default_value = "512MiB")]
    window: usize,
    /// How long each transfer runs
    #[arg(long, value_name = "TIME", value_parser = options::time, default_value = "60s")]
    time: Duration,
    /// What is left out of the steady figures in the beginning
    #[arg(long, value_name = "TIME", value_parser = options::time, default_value = "30s")]
    omit: Duration,
    /// Rate of the bottleneck
    #[arg(long, default_value = "100G")]
    rate: Rate,
    /// Bytes that may wait in front of the bottleneck
    #[arg(long, value_name = "SIZE", value_parser = window, default_value = "64MiB")]
    queue: usize,
    /// Rate of both NICs
    #[arg(long, value_name = "RATE", default_value = "120G")]
    nic_rate: Rate,
    /// What all streams together are paced to. Default: 97 % of the bottleneck
    #[arg(long, value_name = "RATE")]
    pace: Option<Rate>,
    /// Bytes of a block
    #[arg(long, value_name = "SIZE", default_value = "16MiB", value_parser = options::size::<u64>(1024..=1 << 30))]
    block: u64,
    /// Divides rates, windows and the queue, and multiplies what comes of it: a study on a small machine
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    scale: u64,
    /// Largest IP packet
    #[arg(long, value_name = "SIZE", default_value = "9000", value_parser = options::size::<u16>(576..=9216))]
    mtu: u16,
    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    output: OutputOptions,
}

impl Scenario for ReservoirOptions {
    fn about(&self) -> About<'_> {
        About { output: &self.output, runs: self.plans().count(), is_real: false }
    }

    fn run(&self) -> Result<Made, Failure> {
        if !self.block.is_power_of_two() {
            return Err(Failure::Unusable("--block is a power of two".into()));
        }
        let mut runs = Vec::new();
        for plan in self.plans() {
            let what = format!("{}, {} ms, {}", plan.mode, plan.round_trip.as_millis(), plan.disks);
            runs.push(plan.run().map_err(|error| format!("{what}: {error}"))?);
        }
        let options = own!(self: streams, window, queue, block, scale, mtu).into_iter().chain([
            ("time_ns", self.time.as_nanos().to_string()),
            ("omit_ns", self.omit.as_nanos().to_string()),
            ("rate_bps", bits(self.rate).to_string()),
            ("nic_rate_bps", bits(self.nic_rate).to_string()),
            ("pace_bps", self.pace().to_string()),
        ]);
        let whole = runs.iter().all(|run| run.run.sha256_ok);
        Ok(Made::new(scenario::facts("reservoir", self.seed, options), &runs, whole, text(&runs)))
    }
}

impl ReservoirOptions {
    fn plans(&self) -> impl Iterator<Item = Reservoir> {
        let of = |mode: Mode, transport: Transport, round_trip: Duration, pacing: Pacing, disks: Disks| Reservoir {
            transport,
            streams: self.streams,
            round_trip,
            time: self.time,
            omit: self.omit,
            rate: bits(self.rate),
            queue: self.queue,
            nic_rate: bits(self.nic_rate),
            pacing,
            pace: self.pace(),
            window: self.window,
            disks,
            block: self.block,
            scale: self.scale,
            mtu: self.mtu,
            seed: Seed(self.seed),
            ..Reservoir::new(mode)
        };
        let mut all = Vec::new();
        for (mode, transport) in self.mode.iter().flat_map(|mode| self.transport.iter().map(move |over| (*mode, *over)))
        {
            for round_trip in &self.round_trip {
                for pacing in &self.pacing {
                    all.extend(self.disks.iter().map(|disks| of(mode, transport, *round_trip, *pacing, *disks)));
                }
            }
        }
        all.into_iter()
    }

    fn pace(&self) -> u64 {
        self.pace.map_or(bits(self.rate) / 100 * 97, bits)
    }
}

/// `unlimited` is faster than anything here.
fn bits(rate: Rate) -> u64 {
    rate.0.unwrap_or(100_000_000_000_000)
}

fn text(runs: &[ReservoirRun]) -> String {
    let figures = published::figures();
    let theirs = |run: &ReservoirRun, what: &str| {
        let id = format!("sdr18-{what}{}", if run.pacing == Pacing::Paced.name() { "-paced" } else { "" });
        let figure = figures.iter().find(|figure| figure.id == id);
        let is_theirs = run.streams == 8 && run.transport == Transport::Tcp.name() && run.disks == Disks::Disk.name();
        let value = figure.filter(|_| is_theirs).and_then(|figure| figure.value("tls-nic", run.round_trip_s));
        value.map_or_else(|| "-".into(), |value| format!("{value:.1}"))
    };
    let heading = [
        "mode",
        "over",
        "RTT ms",
        "pacing",
        "files",
        "average Gb/s",
        "published",
        "peak",
        "published",
        "90 % after s",
        "steady",
        "law",
        "of law",
        "std dev",
        "slowest",
        "fastest",
        "tx ns/B",
        "of it TLS",
        "hash",
        "rx ns/B",
        "of it TLS",
        "hash",
        "retransmits",
        "queue drops",
    ];
    let mut rows = vec![heading.map(String::from).to_vec()];
    rows.extend(runs.iter().map(|run| {
        let (tx, rx) = (&run.run.tx_host_ns_per_byte, &run.run.rx_host_ns_per_byte);
        let counted = |name: &str| run.run.counters.get(name).copied().unwrap_or(0).to_string();
        vec![
            run.run.mode.clone(),
            run.transport.clone(),
            format!("{:.0}", run.round_trip_s * 1000.0),
            run.pacing.clone(),
            run.disks.clone(),
            format!("{:.1}", run.average_gbps),
            theirs(run, "average"),
            format!("{:.1}", run.peak_gbps),
            theirs(run, "peak"),
            format!("{:.1}", run.seconds_to_90),
            format!("{:.1}", run.steady_gbps),
            format!("{:.1}", run.law_gbps),
            format!("{:.3}", run.of_law),
            format!("{:.2}", run.deviation_gbps),
            format!("{:.2}", run.slowest_gbps),
            format!("{:.2}", run.fastest_gbps),
            format!("{:.3}", tx.total),
            format!("{:.3}", tx.crypto),
            format!("{:.3}", tx.crc),
            format!("{:.3}", rx.total),
            format!("{:.3}", rx.crypto),
            format!("{:.3}", rx.crc),
            counted("TcpRetransSegs"),
            counted("wire_queue_drops"),
        ]
    }));
    let memory =
        peak_memory().map_or_else(String::new, |bytes| format!("\npeak memory: {:.2} GiB\n", bytes as f64 / GIB));
    format!("{}{memory}", table::align(&rows))
}

/// The most memory that this process has had, as Linux tells it.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
}

/// RFC 7323 2.3: a window has no more than 2^30 bytes.
fn window(text: &str) -> Result<usize, String> {
    let bytes = options::bytes(text)?;
    if (4096..=1 << 30).contains(&bytes) { Ok(bytes as usize) } else { Err("it has 4KiB to 1GiB".into()) }
}

const GIB: f64 = (1_u64 << 30) as f64;
