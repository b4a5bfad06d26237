//! `nicbench quic`.

use super::runs::{Made, facts, value};
use clap::Args;
use core::time::Duration;
use nic_sim::NicConfig;
use offload_bench::quic::{Mode, QuicBulk};
use offload_bench_tls::facts::Run;
use offload_bench_tls::payload::Payload;
use offload_bench_tls::table;
use offload_cli::options::{self, WireOptions};
use offload_cli::own_wires::OwnWires;
use offload_testbed::bed::ClockKind;

/// Streams of QUIC from one host to another: packets as they are, protected by the CPU, protected by the NICs
#[derive(Args, Debug)]
#[command(allow_negative_numbers = true)]
pub(crate) struct QuicOptions {
    /// Who protects the packets, comma-separated: quic-plain (nobody), quic-cpu (the hosts), quic-nic (the NICs)
    #[arg(long, value_parser = options::choice::<Mode>(), value_delimiter = ',', default_values_t = Mode::ALL)]
    pub mode: Vec<Mode>,
    /// How much is sent on each stream
    #[arg(long, value_parser = options::bytes, default_value = "64MiB")]
    size: u64,
    /// Connections at the same time
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    connections: u16,
    /// Streams of each connection
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=100))]
    streams: u16,
    /// Paths of each connection, over IPv4 and IPv6 in turn
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=8))]
    paths: u32,
    /// Ask for other keys after so many packets
    #[arg(long, value_name = "PACKETS", value_parser = clap::value_parser!(u32).range(1..))]
    key_update_every: Option<u32>,
    /// Queues of each NIC, and shards of each host, over which connections are spread
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    queues: u16,
    /// NICs that do not cut datagrams (no USO)
    #[arg(long)]
    no_uso: bool,
    /// NICs that do not join datagrams
    #[arg(long)]
    no_joining: bool,
    /// How long streams send before anything is counted: 500ms. For slow start over a long path
    #[arg(long, value_parser = options::time, value_name = "TIME", default_value = "0s")]
    omit: Duration,
    /// Over IPv6
    #[arg(long)]
    ipv6: bool,
    /// Print the facts as one JSON object
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    own_wires: OwnWires,
    #[command(flatten)]
    pub wire: WireOptions,
}

impl QuicOptions {
    pub(crate) fn run(&self) -> Result<Made, String> {
        let runs: Vec<Run> = self.mode.iter().map(|mode| self.one(*mode)).collect::<Result<_, _>>()?;
        let own = [
            self.own_wires.fact(),
            ("size", self.size.to_string()),
            ("connections", self.connections.to_string()),
            ("streams", self.streams.to_string()),
            ("paths", self.paths.to_string()),
            ("key_update_every", self.key_update_every.unwrap_or(0).to_string()),
            ("omit_ns", self.omit.as_nanos().to_string()),
            ("queues", self.queues.to_string()),
            ("uso", (!self.no_uso).to_string()),
            ("joining", (!self.no_joining).to_string()),
            ("ipv6", self.ipv6.to_string()),
        ];
        let made = facts("quic", &self.wire, &own, runs.iter().map(value).collect());
        Ok(Made { facts: made, text: text(&runs), whole: runs.iter().all(|run| run.sha256_ok) })
    }

    fn one(&self, mode: Mode) -> Result<Run, String> {
        let seed = self.wire.seed();
        let usual = QuicBulk::new(mode, Payload::seeded(seed, self.size));
        let nic = NicConfig {
            mtu: self.wire.mtu,
            queues: self.queues,
            udp_segmentation: !self.no_uso,
            lro_datagrams: !self.no_joining,
            ..usual.nic
        };
        let bulk = QuicBulk {
            connections: self.connections,
            streams: self.streams,
            paths: self.paths,
            key_update_every: self.key_update_every,
            clock: if self.wire.real { ClockKind::Real } else { ClockKind::Virtual },
            seed,
            nic,
            link: self.wire.link(),
            wires: self.own_wires.links(self.paths, &self.wire)?,
            cuts: self.own_wires.cut.clone(),
            omit: self.omit,
            ipv6: self.ipv6,
            ..usual
        };
        bulk.run().map_err(|error| format!("{mode}: {error}"))
    }
}

fn text(runs: &[Run]) -> String {
    let heading = ["mode", "sealed by NIC", "by CPU", "opened by NIC", "by CPU"];
    let mut rows = vec![heading.map(String::from).to_vec()];
    rows.extend(runs.iter().map(|run| {
        let count = |name: &str| run.counters.get(name).copied().unwrap_or(0).to_string();
        let counts = ["QuicSealedDevice", "QuicSealedSw", "QuicOpenedDevice", "QuicOpenedSw"].map(count);
        core::iter::once(run.mode.clone()).chain(counts).collect()
    }));
    format!("{}\n{}", table::runs(runs), table::align(&rows))
}
