//! `nicbench iperf`.

use super::runs::{Made, facts, value};
use super::watch::Watch;
use crate::openmetrics::{self, Server};
use clap::{Args, ValueEnum};
use core::net::SocketAddr;
use core::time::Duration;
use nic_sim::NicConfig;
use offload_bench::iperf::{Ends, Iperf, IperfRun, Until};
use offload_bench::live::Live;
use offload_bench_tls::bulk::Mode;
use offload_bench_tls::table;
use offload_cli::options::{self, WireOptions, name};
use offload_cli::tls_options::SuiteName;
use offload_cli::trace_options::TraceOptions;
use offload_console::say;
use offload_testbed::bed::ClockKind;

/// Many streams at once, from the server to the client: goodput, fairness, host cost
#[derive(Args, Debug)]
#[command(allow_negative_numbers = true)]
pub(crate) struct IperfOptions {
    /// Who does the TLS, comma-separated: tcp, tls-cpu, tls-nic
    #[arg(long, value_parser = options::choice::<Mode>(), value_delimiter = ',', default_values_t = Mode::ALL)]
    pub mode: Vec<Mode>,
    /// Connections at once
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=32_768))]
    streams: u16,
    /// Bytes that each stream sends: 64MiB, 1GB. Default: 64MiB
    #[arg(long, value_parser = some_bytes, conflicts_with = "time")]
    bytes: Option<u64>,
    /// How long streams send, on the run's clock: 20ms, 2s
    #[arg(long, value_parser = some_time)]
    time: Option<Duration>,
    /// How long streams send before anything is counted, with --time: 2s. For slow start over a long path
    #[arg(long, value_name = "TIME", value_parser = options::time, requires = "time", default_value = "0s")]
    omit: Duration,
    /// Bytes of memory that received data of a connection may take, and that its sender queues: its window, nearly. Default:
    /// what TCP takes by itself
    #[arg(long, value_name = "SIZE", value_parser = window)]
    window: Option<usize>,
    /// Bytes handed to a stream at once: 256KiB, 4096
    #[arg(long, value_name = "SIZE", value_parser = message, default_value = "256KiB")]
    message_size: usize,
    /// Content bytes of a full TLS record
    #[arg(long, value_name = "SIZE", default_value = "16KiB", value_parser = options::size::<u16>(1..=16384))]
    record_size: u16,
    /// Which ends hand their direction to the NIC, in mode tls-nic
    #[arg(long, value_enum, default_value_t = EndsName::Both)]
    offload: EndsName,
    /// The cipher suite
    #[arg(long, value_enum, default_value_t = SuiteName::Aes128Gcm)]
    suite: SuiteName,
    /// Queues of each NIC, and shards of each host, over which RSS spreads streams
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    queues: u16,
    /// Show how the run goes, on standard error: rates, retransmits, resyncs, contexts, and on a terminal every counter that moves
    #[arg(long)]
    watch: bool,
    /// Serve the counters for Prometheus while the run goes, at /metrics: a port of the loopback address, or an address with
    /// a port
    #[arg(long, value_name = "ADDR", value_parser = openmetrics::address)]
    openmetrics: Option<SocketAddr>,
    /// The step of --watch and --openmetrics, on the run's clock. Default: 1ms, in real time 1s
    #[arg(long, value_name = "TIME", value_parser = some_time)]
    every: Option<Duration>,
    /// Print the facts as one JSON object
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    trace: TraceOptions,
    #[command(flatten)]
    pub wire: WireOptions,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum EndsName {
    Both,
    Sender,
    Receiver,
}

impl IperfOptions {
    pub(crate) fn run(&self) -> Result<Made, String> {
        let (mut runs, live) = (Vec::new(), self.live()?);
        for mode in &self.mode {
            let trace = self.trace.begin_for(mode, self.mode.len() > 1)?;
            let tracer = trace.as_ref().map(|trace| trace.tracer().clone());
            let run = Iperf { tracer, live: live.clone(), ..self.iperf(*mode) }.run();
            if let Some(trace) = trace {
                say!("{}", trace.end()?);
            }
            runs.push(run.map_err(|error| format!("{mode}: {error}"))?);
        }
        let own = [
            ("streams", self.streams.to_string()),
            ("message_size", self.message_size.to_string()),
            ("record_size", self.record_size.to_string()),
            ("queues", self.queues.to_string()),
            ("bytes_per_stream", self.bytes.map_or_else(|| "-".into(), |bytes| bytes.to_string())),
            ("time_ns", self.time.map_or_else(|| "-".into(), |time| time.as_nanos().to_string())),
            ("omit_ns", self.omit.as_nanos().to_string()),
            ("window", self.window.map_or_else(|| "-".into(), |bytes| bytes.to_string())),
            ("offload", name(self.offload)),
            ("suite", name(self.suite)),
        ];
        Ok(Made {
            facts: facts("iperf", &self.wire, &own, runs.iter().map(value).collect()),
            text: text(&runs),
            whole: runs.iter().all(|run| run.run.sha256_ok),
        })
    }

    /// Who is to be told how the runs go.
    fn live(&self) -> Result<Option<Live>, String> {
        let serve = |address| {
            let server = Server::bind(address).map_err(|error| format!("--openmetrics {address}: {error}"))?;
            say!("nicbench: metrics are at http://{}/metrics", server.address());
            Ok::<_, String>(server)
        };
        let server = self.openmetrics.map(serve).transpose()?;
        let watch = self.watch.then(Watch::on_standard_error);
        if server.is_none() && watch.is_none() {
            return Ok(None);
        }
        let usual = if self.wire.real { Duration::from_secs(1) } else { Duration::from_millis(1) };
        Ok(Some(Live::new(self.every.unwrap_or(usual), move |sample| {
            server.iter().for_each(|server| server.show(sample));
            watch.iter().for_each(|watch| watch.show(sample));
        })))
    }

    fn iperf(&self, mode: Mode) -> Iperf {
        Iperf {
            streams: self.streams,
            until: match self.time {
                Some(time) => Until::Elapsed(time),
                None => Until::Bytes(self.bytes.unwrap_or(64 << 20)),
            },
            omit: self.omit,
            window: self.window,
            record_size: usize::from(self.record_size),
            message_size: self.message_size,
            ends: match self.offload {
                EndsName::Both => Ends::Both,
                EndsName::Sender => Ends::Sender,
                EndsName::Receiver => Ends::Receiver,
            },
            suite: self.suite.into(),
            clock: if self.wire.real { ClockKind::Real } else { ClockKind::Virtual },
            seed: self.wire.seed(),
            nic: NicConfig { mtu: self.wire.mtu, queues: self.queues, ..NicConfig::default() },
            link: self.wire.link(),
            ..Iperf::new(mode)
        }
    }
}

fn text(runs: &[IperfRun]) -> String {
    let common: Vec<_> = runs.iter().map(|run| run.run.clone()).collect();
    let heading = ["mode", "streams", "seconds", "fairness", "slowest Gb/s", "fastest Gb/s"].map(String::from).to_vec();
    let mut rows = vec![heading];
    rows.extend(runs.iter().map(|run| {
        vec![
            run.run.mode.clone(),
            run.streams.to_string(),
            format!("{:.4}", run.seconds),
            format!("{:.3}", run.fairness),
            format!("{:.3}", run.slowest_gbps),
            format!("{:.3}", run.fastest_gbps),
        ]
    }));
    let (costs, streams) = (table::runs(&common), table::align(&rows));
    format!("{costs}\n{streams}\n{}{}", table::saved(&common), table::noise(&common))
}

/// Of nothing there is no cost per byte.
fn some_bytes(text: &str) -> Result<u64, String> {
    let bytes = options::bytes(text)?;
    if bytes > 0 { Ok(bytes) } else { Err("a stream sends 1 byte at least".into()) }
}

fn some_time(text: &str) -> Result<Duration, String> {
    let time = options::time(text)?;
    if time > Duration::ZERO { Ok(time) } else { Err("streams send for 1ns at least".into()) }
}

/// RFC 7323 2.3: a window has no more than 2^30 bytes.
fn window(text: &str) -> Result<usize, String> {
    let bytes = options::bytes(text)?;
    if (4096..=1 << 30).contains(&bytes) { Ok(bytes as usize) } else { Err("a window has 4KiB to 1GiB".into()) }
}

/// A message is kept in memory.
fn message(text: &str) -> Result<usize, String> {
    let bytes = options::bytes(text)?;
    if (1..=64 << 20).contains(&bytes) { Ok(bytes as usize) } else { Err("a message has 1 byte to 64MiB".into()) }
}
