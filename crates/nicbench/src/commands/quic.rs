//! `nicbench quic`, and the program `quic_loopback`.

use clap::Parser;
use core::time::Duration;
use nic_sim::NicConfig;
use offload_api::QuicCipher;
use offload_bench::quic::{QuicBulk, QuicMode};
use offload_bench_tls::facts::Run;
use offload_bench_tls::payload::Payload;
use offload_bench_tls::table;
use offload_cli::options;
use offload_cli::own;
use offload_cli::own_wires::OwnWires;
use offload_cli::run_options::RunOptions;
use offload_cli::scenario::{self, About, Failure, Made, Modes, OutputFiles, Scenario};
use offload_cli::tls_options::QUIC_CIPHERS;
use std::path::PathBuf;

/// Sends a file over QUIC through two emulated NICs: with plain packets, sealed and opened by the CPU, sealed and
/// opened by the NICs. Prints the cost of each mode: nanoseconds of CPU time per byte.
///
/// Exit status: 0; 1 if the data did not arrive whole; 2 if an option is bad or a file cannot be used.
#[derive(Debug, Parser)]
#[command(name = "quic_loopback", version, allow_negative_numbers = true)]
pub struct QuicOptions {
    /// The file to send on each stream. Default: seeded data
    file: Option<PathBuf>,
    /// Bytes to send on each stream without a file: 256MiB, 1GB, 4096
    #[arg(long, value_parser = options::some_bytes, default_value = "256MiB", conflicts_with = "file")]
    size: u64,
    /// Only these modes, comma-separated: quic-plain, quic-cpu, quic-nic
    #[arg(long, value_parser = options::choice::<QuicMode>(), value_delimiter = ',', default_values_t = QuicMode::ALL)]
    mode: Vec<QuicMode>,
    /// The cipher of packets
    #[arg(long, value_parser = QUIC_CIPHERS.parser(), default_value = "aes128-gcm")]
    suite: QuicCipher,
    /// Concurrent connections
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    connections: u16,
    /// Streams of each connection
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=100))]
    streams: u16,
    /// Paths of each connection, over IPv4 and IPv6 in turn; with --own-wires each has a wire
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=8))]
    paths: u32,
    /// Request a key update after this many packets; the state machine allows one every three probe timeouts
    #[arg(long, value_name = "PACKETS", value_parser = clap::value_parser!(u32).range(1..))]
    key_update_every: Option<u32>,
    /// Queues of each NIC, and shards of each host, over which connections are spread
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    queues: u16,
    /// Turn off the segmentation of datagrams by the NICs (USO)
    #[arg(long)]
    no_uso: bool,
    /// Turn off the joining of datagrams by the NICs
    #[arg(long)]
    no_joining: bool,
    /// Write the events of both ends (qlog) into an existing folder: quic-nic-client-*.sqlog and the like
    #[arg(long, value_name = "FOLDER")]
    qlog: Option<PathBuf>,
    /// Time before counting starts: 500ms. For slow start over a long path
    #[arg(long, value_parser = options::time, value_name = "TIME", default_value = "0s")]
    omit: Duration,
    /// Use IPv6 instead of IPv4
    #[arg(long)]
    ipv6: bool,
    #[command(flatten)]
    run: RunOptions,
    #[command(flatten)]
    own_wires: OwnWires,
}

impl Scenario for QuicOptions {
    fn about(&self) -> About<'_> {
        self.run.about(self.mode.len())
    }

    fn run(&self) -> Result<Made, Failure> {
        // RFC 9000 14: a path that cannot carry 1,200 bytes cannot be used.
        if self.run.wire.mtu < MIN_MTU {
            return Err(Failure::Unusable(format!("QUIC needs an MTU of {MIN_MTU} bytes at least")));
        }
        if let Some(folder) = self.qlog.as_ref().filter(|folder| !folder.is_dir()) {
            return Err(Failure::Unusable(format!("{} is no folder: make it, for --qlog", folder.display())));
        }
        let wires = self.own_wires.links(self.paths, &self.run.wire).map_err(Failure::Unusable)?;
        let payload = scenario::payload(self.file.as_deref(), self.run.wire.seed(), self.size)?;
        let read = self.file.iter().map(PathBuf::as_path).collect();
        let modes = Modes::new("quic", &self.run, &self.mode, OutputFiles { read, ..OutputFiles::default() })?;
        for mode in modes.modes().iter().filter(|_| self.connections == 1 && self.streams == 1) {
            // The first run pays for memory and code that no run used before. This run takes that cost and is not
            // reported.
            let little = Payload::seeded(self.run.wire.seed(), payload.len().min(WARM_UP_BYTES));
            self.bulk(*mode, little).run().map_err(|error| Failure::in_mode(mode, error))?;
        }
        let all = payload.len() * u64::from(self.connections) * u64::from(self.streams);
        let runs = modes.make(all, |mode, observers, _| {
            let bulk = QuicBulk {
                link: self.run.wire.link(),
                wires: wires.clone(),
                omit: self.omit,
                qlog: self.qlog.clone(),
                cuts: self.own_wires.cut.clone(),
                clock: self.run.clock(),
                observers,
                ..self.bulk(mode, payload.clone())
            };
            bulk.run().map_err(|error| Failure::in_mode(mode, error))
        })?;
        let own = own!(self: connections, streams, paths, queues, ipv6).into_iter().chain([
            self.own_wires.fact(),
            ("file", scenario::named(self.file.as_ref())),
            ("size", payload.len().to_string()),
            ("suite", QUIC_CIPHERS.name(&self.suite)),
            ("key_update_every", self.key_update_every.unwrap_or(0).to_string()),
            ("omit_ns", self.omit.as_nanos().to_string()),
            ("uso", (!self.no_uso).to_string()),
            ("joining", (!self.no_joining).to_string()),
        ]);
        let whole = runs.iter().all(|run| run.sha256_ok);
        let nic = self.bulk(QuicMode::QuicCpu, payload).nic;
        Ok(Made::new(self.run.facts("quic", &nic, own), &runs, whole, text(&runs, self.run.common.wide)))
    }
}

impl QuicOptions {
    fn bulk(&self, mode: QuicMode, payload: Payload) -> QuicBulk {
        let usual = QuicBulk::new(mode, payload);
        let nic = self.run.nic(usual.nic);
        QuicBulk {
            suite: self.suite,
            connections: self.connections,
            streams: self.streams,
            paths: self.paths,
            key_update_every: self.key_update_every,
            seed: self.run.wire.seed(),
            nic: NicConfig {
                queues: self.queues,
                udp_segmentation: nic.udp_segmentation && !self.no_uso,
                lro_datagrams: nic.lro_datagrams && !self.no_joining,
                ..nic
            },
            ipv6: self.ipv6,
            ..usual
        }
    }
}

fn text(runs: &[Run], wide: bool) -> String {
    let heading = ["mode", "sealed by NIC", "by CPU", "opened by NIC", "by CPU"];
    let mut rows = vec![heading.map(String::from).to_vec()];
    rows.extend(runs.iter().map(|run| {
        let count = |name: &str| run.counters.get(name).copied().unwrap_or(0).to_string();
        let counts = ["QuicSealedDevice", "QuicSealedSw", "QuicOpenedDevice", "QuicOpenedSw"].map(count);
        core::iter::once(run.mode.clone()).chain(counts).collect()
    }));
    let remarks = table::noise(runs);
    let details = format!("\n{}", table::align(&rows));
    scenario::text(runs, wide, &details, remarks)
}

/// The size of the unreported run.
const WARM_UP_BYTES: u64 = 8 << 20;
/// RFC 9000 14: datagrams of 1,200 bytes, and IPv6's and UDP's headers.
const MIN_MTU: u16 = 1248;
