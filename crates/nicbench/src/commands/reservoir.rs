//! `nicbench reservoir`.

use super::iperf::WINDOW;
use clap::Args;
use core::time::Duration;
use nic_sim::NicConfig;
use offload_bench::published;
use offload_bench::reservoir::{Disks, Pacing, Reservoir, ReservoirRun, Transport};
use offload_bench_tls::bulk::Mode;
use offload_bench_tls::choice::Choice;
use offload_bench_tls::table;
use offload_cli::options::{self, WireRate};
use offload_cli::own;
use offload_cli::run_options::VirtualOptions;
use offload_cli::scenario::{About, Failure, Made, Modes, Scenario};

/// Bulk transfer over long fat paths: the reservoir's server and copy on emulated hosts, from disk to disk, cold start
/// included, beside the Secure Data Reservoir's published figures; virtual time
///
/// Both NICs are faster than the bottleneck between them, and the bottleneck's queue is far shorter than the
/// bandwidth-delay product. Steady figures omit the start and cover whole round trips. The law is the limit set by
/// line, pace, disks and windows.
#[derive(Args, Debug)]
#[command(allow_negative_numbers = true)]
pub(crate) struct ReservoirOptions {
    /// Modes of TLS (AES-256-GCM), comma-separated: tcp, tls-cpu, tls-nic
    #[arg(long, value_parser = options::choice::<Mode>(), value_delimiter = ',', default_value = "tls-nic")]
    pub mode: Vec<Mode>,
    /// Transports of the requests, comma-separated: tcp (one TLS connection for each stream), http3 (one QUIC
    /// connection for all)
    #[arg(long, value_parser = options::choice::<Transport>(), value_delimiter = ',', default_value = "tcp")]
    transport: Vec<Transport>,
    /// Round-trip times of the path, comma-separated
    #[arg(long, value_name = "TIME", value_parser = options::some_time, value_delimiter = ',', default_value = "274ms,444ms,806ms")]
    round_trip: Vec<Duration>,
    /// Pacing by the sender, comma-separated: unpaced, paced (by its NIC for TCP, by the sender itself for QUIC)
    #[arg(long, value_parser = options::choice::<Pacing>(), value_delimiter = ',', default_values_t = Pacing::ALL)]
    pacing: Vec<Pacing>,
    /// Location of the files, comma-separated: disk, memory
    #[arg(long, value_parser = options::choice::<Disks>(), value_delimiter = ',', default_value = "disk")]
    disks: Vec<Disks>,
    /// Concurrent connections
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1024))]
    streams: u16,
    /// Receive buffer and send queue of a connection, about its window
    #[arg(long, value_name = "SIZE", value_parser = options::size::<usize>(WINDOW), default_value = "512MiB")]
    window: usize,
    /// Duration of each transfer
    #[arg(long, value_name = "TIME", value_parser = options::time, default_value = "60s")]
    time: Duration,
    /// Time omitted from the steady figures at the beginning
    #[arg(long, value_name = "TIME", value_parser = options::time, default_value = "30s")]
    omit: Duration,
    /// Rate of the bottleneck
    #[arg(long, default_value = "100G")]
    rate: WireRate,
    /// Bytes of the queue in front of the bottleneck
    #[arg(long, value_name = "SIZE", value_parser = options::size::<usize>(WINDOW), default_value = "64MiB")]
    queue: usize,
    /// Rate of both NICs. Default: 120G
    #[arg(long, value_name = "RATE")]
    nic_rate: Option<WireRate>,
    /// Pace of all streams together. Default: 97 % of the bottleneck
    #[arg(long, value_name = "RATE")]
    pace: Option<WireRate>,
    /// Bytes of a block
    #[arg(long, value_name = "SIZE", default_value = "16MiB", value_parser = options::size::<u64>(1024..=1 << 30))]
    block: u64,
    /// Divides rates, windows and the queue, and multiplies the resulting rates: for studies on a small machine
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    scale: u64,
    /// Largest IP packet
    #[arg(long, value_name = "SIZE", default_value = "9000", value_parser = options::size::<u16>(576..=9216))]
    mtu: u16,
    #[command(flatten)]
    run: VirtualOptions,
}

impl Scenario for ReservoirOptions {
    fn about(&self) -> About<'_> {
        self.run.about(self.plans().len())
    }

    fn run(&self) -> Result<Made, Failure> {
        if !self.block.is_power_of_two() {
            return Err(Failure::Unusable("--block is a power of two".into()));
        }
        let modes = Modes::of_plans("reservoir", &self.run.common, self.plans())?;
        let runs = modes.make(0, |plan, observers, _| {
            let label = plan.label();
            Reservoir { observers, ..plan }.run().map_err(|error| Failure::in_mode(label, error))
        })?;
        let nic = self.nic();
        let options = own!(self: streams, window, queue, block, scale, mtu).into_iter().chain([
            ("time_ns", self.time.as_nanos().to_string()),
            ("omit_ns", self.omit.as_nanos().to_string()),
            ("rate_bps", bits(self.rate).to_string()),
            ("nic_rate_bps", bits(WireRate(nic.line_rate)).to_string()),
            ("pace_bps", self.pace().to_string()),
        ]);
        let whole = runs.iter().all(|run| run.run.sha256_ok);
        let text = text(modes.labels(), &runs, self.run.common.wide);
        Ok(Made::new(self.run.facts("reservoir", &nic, options), &runs, whole, text))
    }
}

impl ReservoirOptions {
    fn nic(&self) -> NicConfig {
        let usual = Reservoir::new(Mode::TlsNic).nic;
        let nic = self.run.common.nic.apply(NicConfig { mtu: self.mtu, ..usual });
        NicConfig { line_rate: self.nic_rate.map_or(nic.line_rate, |rate| Some(bits(rate))), ..nic }
    }

    /// Returns the runs by their labels.
    fn plans(&self) -> Vec<(String, Reservoir)> {
        let nic = self.nic();
        let of = |mode: Mode, transport: Transport, round_trip: Duration, pacing: Pacing, disks: Disks| Reservoir {
            transport,
            streams: self.streams,
            round_trip,
            time: self.time,
            omit: self.omit,
            rate: bits(self.rate),
            queue: self.queue,
            nic: nic.clone(),
            pacing,
            pace: self.pace(),
            window: self.window,
            disks,
            block: self.block,
            scale: self.scale,
            seed: self.run.seed(),
            ..Reservoir::new(mode)
        };
        let mut all = Vec::new();
        for (mode, transport) in self.mode.iter().flat_map(|mode| self.transport.iter().map(move |over| (*mode, *over)))
        {
            for round_trip in &self.round_trip {
                for pacing in &self.pacing {
                    // The order of the nested loops is the order of the table's rows.
                    all.extend(self.disks.iter().map(|disks| of(mode, transport, *round_trip, *pacing, *disks)));
                }
            }
        }
        all.into_iter().map(|plan| (plan.label(), plan)).collect()
    }

    fn pace(&self) -> u64 {
        self.pace.map_or(bits(self.rate) / 100 * 97, bits)
    }
}

/// Converts a rate to bits per second. `unlimited` becomes a rate above every other limit here.
fn bits(rate: WireRate) -> u64 {
    rate.0.unwrap_or(100_000_000_000_000)
}

fn text<'a>(labels: impl Iterator<Item = &'a str>, runs: &'a [ReservoirRun], wide: bool) -> String {
    let figures = published::figures();
    let theirs = |run: &ReservoirRun, what: &str| {
        let id = format!("sdr18-{what}{}", if run.pacing == Pacing::Paced.name() { "-paced" } else { "" });
        let figure = figures.iter().find(|figure| figure.id == id);
        // The published figures are of eight TCP streams from disk to disk. Beside other runs they would mislead.
        let is_theirs = run.streams == 8 && run.transport == Transport::Tcp.name() && run.disks == Disks::Disk.name();
        let value = figure.filter(|_| is_theirs).and_then(|figure| figure.value("tls-nic", run.round_trip_s));
        value.map_or_else(|| "-".into(), |value| format!("{value:.1}"))
    };
    let cells = |run: &ReservoirRun| -> Vec<(bool, &'static str, String)> {
        let (tx, rx) = (&run.run.tx_host_ns_per_byte, &run.run.rx_host_ns_per_byte);
        let counted = |name: &str| run.run.counters.get(name).copied().unwrap_or(0).to_string();
        vec![
            (false, "mode", run.run.mode.clone()),
            (false, "over", run.transport.clone()),
            (false, "RTT ms", format!("{:.0}", run.round_trip_s * 1000.0)),
            (false, "pacing", run.pacing.clone()),
            (false, "files", run.disks.clone()),
            (false, "average Gb/s", format!("{:.1}", run.average_gbps)),
            (false, "published", theirs(run, "average")),
            (true, "peak", format!("{:.1}", run.peak_gbps)),
            (true, "published", theirs(run, "peak")),
            (true, "90 % after s", format!("{:.1}", run.seconds_to_90)),
            (false, "steady", format!("{:.1}", run.steady_gbps)),
            (true, "law", format!("{:.1}", run.law_gbps)),
            (false, "of law", format!("{:.3}", run.of_law)),
            (true, "std dev", format!("{:.2}", run.deviation_gbps)),
            (true, "slowest", format!("{:.2}", run.slowest_gbps)),
            (true, "fastest", format!("{:.2}", run.fastest_gbps)),
            (true, "tx ns/B", format!("{:.3}", tx.total)),
            (true, "of it TLS", format!("{:.3}", tx.crypto)),
            (true, "hash", format!("{:.3}", tx.crc)),
            (true, "rx ns/B", format!("{:.3}", rx.total)),
            (true, "of it TLS", format!("{:.3}", rx.crypto)),
            (true, "hash", format!("{:.3}", rx.crc)),
            (true, "retransmits", counted("TcpRetransSegs")),
            (true, "queue drops", counted("wire_queue_drops")),
            (false, "hosts ns/B", format!("{:.3}", run.run.host_ns_per_byte())),
        ]
    };
    // The first column of a cell tells whether it is only for wide tables.
    let shown = |run| cells(run).into_iter().filter(|(only_wide, ..)| wide || !only_wide);
    let mut rows: Vec<Vec<String>> = Vec::new();
    rows.extend(runs.first().map(|run| shown(run).map(|cell| cell.1.to_owned()).collect()));
    rows.extend(runs.iter().map(|run| shown(run).map(|cell| cell.2).collect()));
    // The factor compares modes only within one setting of all other options.
    let setting = |run: &'a ReservoirRun| (&run.transport, run.round_trip_s, &run.pacing, &run.disks);
    table::add_factor(&mut rows, runs.iter().map(|run| (setting(run), &run.run.mode[..], run.run.host_ns_per_byte())));
    let memory =
        peak_memory().map_or_else(String::new, |bytes| format!("\npeak memory: {:.2} GiB\n", bytes as f64 / GIB));
    let more = match wide {
        true => format!("\n{}", table::counters(labels.zip(runs.iter().map(|run| &run.run.counters)))),
        false => "hosts: CPU time of both hosts, nanoseconds per byte; --wide shows all columns and counters\n".into(),
    };
    format!("{}{more}{memory}", table::align(&rows))
}

/// Returns the peak memory of this process, as reported by Linux.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
}

const GIB: f64 = (1_u64 << 30) as f64;
