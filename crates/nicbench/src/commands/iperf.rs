//! `nicbench iperf`.

use crate::openmetrics::{self, Server};
use clap::{Args, ValueEnum};
use core::net::SocketAddr;
use core::ops::RangeInclusive;
use core::time::Duration;
use nic_sim::NicConfig;
use offload_api::TlsSuite;
use offload_bench::iperf::{Ends, Iperf, IperfRun, Until};
use offload_bench_tls::bulk::Mode;
use offload_bench_tls::table;
use offload_cli::options::{self, name};
use offload_cli::own;
use offload_cli::run_options::{RunOptions, StepObserver};
use offload_cli::scenario::{self, About, Failure, Made, Modes, OutputFiles, Scenario};
use offload_cli::tls_options::SUITES;
use offload_console::say;
use std::sync::Arc;

/// Concurrent streams from the server to the client: goodput, fairness, host cost
#[derive(Args, Debug)]
#[command(allow_negative_numbers = true)]
pub(crate) struct IperfOptions {
    /// Modes of TLS, comma-separated: tcp, tls-cpu, tls-nic
    #[arg(long, value_parser = options::choice::<Mode>(), value_delimiter = ',', default_values_t = Mode::ALL)]
    pub mode: Vec<Mode>,
    /// Concurrent connections
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=32_768))]
    streams: u16,
    /// Bytes sent by each stream: 64MiB, 1GB. Default: 64MiB
    #[arg(long, value_parser = options::some_bytes, conflicts_with = "time")]
    bytes: Option<u64>,
    /// Sending time of the streams, on the run's clock: 20ms, 2s. The run ends when the last data have arrived; goodput
    /// covers the sending time
    #[arg(long, value_parser = options::some_time)]
    time: Option<Duration>,
    /// Time before counting starts, with --time: 2s. For slow start over a long path
    #[arg(long, value_name = "TIME", value_parser = options::time, requires = "time", default_value = "0s")]
    omit: Duration,
    /// Receive buffer and send queue of a connection, about its window. Default: TCP's own limits
    #[arg(long, value_name = "SIZE", value_parser = options::size::<usize>(WINDOW))]
    window: Option<usize>,
    /// Bytes of each write to a stream: 256KiB, 4096
    #[arg(long, value_name = "SIZE", value_parser = options::size::<usize>(1..=64 << 20), default_value = "256KiB")]
    message_size: usize,
    /// Content bytes of a full TLS record
    #[arg(long, value_name = "SIZE", default_value = "16KiB", value_parser = options::size::<u16>(1..=16384))]
    record_size: u16,
    /// Ends that offload their direction to the NIC, in mode tls-nic
    #[arg(long, value_enum, default_value_t = EndsName::Both)]
    offload: EndsName,
    /// The cipher suite
    #[arg(long, value_parser = SUITES.parser(), default_value = "aes-128-gcm")]
    suite: TlsSuite,
    /// Queues of each NIC, and shards of each host, over which RSS spreads streams
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    queues: u16,
    /// Serve the counters for Prometheus during the run, at /metrics: a port of the loopback address, or an address
    /// with a port
    #[arg(long, value_name = "ADDR", value_parser = openmetrics::address)]
    openmetrics: Option<SocketAddr>,
    #[command(flatten)]
    run: RunOptions,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum EndsName {
    Both,
    Sender,
    Receiver,
}

impl Scenario for IperfOptions {
    fn about(&self) -> About<'_> {
        self.run.about(self.mode.len())
    }

    fn run(&self) -> Result<Made, Failure> {
        let modes = Modes::new("iperf", &self.run, &self.mode, OutputFiles::default())?.showing(self.served()?);
        let runs = modes.make(0, |mode, observers, _| {
            Iperf { observers, ..self.iperf(mode) }.run().map_err(|error| Failure::in_mode(mode, error))
        })?;
        let own = own!(self: streams, message_size, record_size, queues).into_iter().chain([
            ("bytes_per_stream", self.bytes.map_or_else(|| "-".into(), |bytes| bytes.to_string())),
            ("time_ns", self.time.map_or_else(|| "-".into(), |time| time.as_nanos().to_string())),
            ("omit_ns", self.omit.as_nanos().to_string()),
            ("window", self.window.map_or_else(|| "-".into(), |bytes| bytes.to_string())),
            ("offload", name(self.offload)),
            ("suite", SUITES.name(&self.suite)),
        ]);
        let whole = runs.iter().all(|run| run.run.sha256_ok);
        Ok(Made::new(self.run.facts("iperf", &self.nic(), own), &runs, whole, text(&runs, self.run.common.wide)))
    }
}

impl IperfOptions {
    fn nic(&self) -> NicConfig {
        NicConfig { queues: self.queues, ..self.run.nic(NicConfig::default()) }
    }

    /// Starts the metrics server if the option is given.
    fn served(&self) -> Result<Option<StepObserver>, Failure> {
        let Some(address) = self.openmetrics else { return Ok(None) };
        let server = Server::bind(address).map_err(|error| format!("--openmetrics {address}: {error}"))?;
        // With port 0 only this line tells the port.
        say!("nicbench: metrics are at http://{}/metrics", server.address());
        Ok(Some(Arc::new(move |sample| server.show(sample))))
    }

    fn iperf(&self, mode: Mode) -> Iperf {
        Iperf {
            streams: self.streams,
            // clap refuses `--bytes` together with `--time`.
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
            suite: self.suite,
            clock: self.run.clock(),
            seed: self.run.wire.seed(),
            nic: self.nic(),
            link: self.run.wire.link(),
            ..Iperf::new(mode)
        }
    }
}

fn text(runs: &[IperfRun], wide: bool) -> String {
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
    let remarks = format!("{}\n{}{}", table::align(&rows), table::saved(&common), table::noise(&common));
    scenario::text(&common, wide, "", &remarks)
}

/// Limits of a window. RFC 7323 2.3: at most 2^30.
pub(super) const WINDOW: RangeInclusive<u64> = 4096..=1 << 30;
