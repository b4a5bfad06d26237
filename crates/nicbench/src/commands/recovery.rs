//! `nicbench recovery`.

use super::runs::{Made, value};
use clap::{Args, ValueEnum};
use nic_sim::wire::Share;
use offload_base::Seed;
use offload_bench::recovery::{Recovery, Table, Trouble};
use offload_bench_tls::facts::Facts;
use offload_cli::options::name;
use offload_cli::tls_options::{ResyncName, TransmitResyncName};

/// What loss and reordering leave of the TLS offload: records by who opened them, bytes read again; virtual time
#[derive(Args, Debug)]
#[command(allow_negative_numbers = true)]
pub(crate) struct RecoveryOptions {
    /// What the wire does to a share of the packets
    #[arg(long, value_enum, default_value_t = TroubleName::Loss)]
    trouble: TroubleName,
    /// To which share; 0.01 is 1 %
    #[arg(long, default_value = "0.01")]
    share: Share,
    /// Connections at once
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u64).range(1..=20_000))]
    streams: u64,
    /// Records of 16 KiB that each sends
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..))]
    records: u64,
    /// How the receiving NIC finds its place again
    #[arg(long, value_enum, default_value_t = ResyncName::DriverRequest)]
    resync: ResyncName,
    /// How the sending NIC goes on after a retransmission
    #[arg(long, value_enum, default_value_t = TransmitResyncName::Dump)]
    transmit_resync: TransmitResyncName,
    /// The whole table: loss and reordering from 0 to 5 %, and all of those ways
    #[arg(long, conflicts_with_all = ["trouble", "share", "resync", "transmit_resync"])]
    all: bool,
    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print the facts as one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum TroubleName {
    Loss,
    Reordering,
}

impl RecoveryOptions {
    /// The runs that are asked for.
    pub(crate) fn runs(&self) -> Vec<Recovery> {
        let trouble = match self.trouble {
            TroubleName::Loss => Trouble::Loss,
            TroubleName::Reordering => Trouble::Reordering,
        };
        let recovery = Recovery {
            streams: self.streams,
            records: self.records,
            resync: self.resync.into(),
            transmit_resync: self.transmit_resync.into(),
            ..Recovery::new(trouble, self.share.as_f64(), Seed(self.seed))
        };
        if self.all { recovery.grid().collect() } else { vec![recovery] }
    }

    pub(crate) fn run(&self) -> Result<Made, String> {
        let runs: Result<Vec<_>, _> = self.runs().into_iter().map(Recovery::run).collect();
        let runs = runs.map_err(|error| error.to_string())?;
        let rows: Vec<_> = runs.iter().map(|made| made.row).collect();
        // Each run of the whole table says of itself what varies.
        let mut options = vec![("streams", self.streams.to_string()), ("records", self.records.to_string())];
        if !self.all {
            options.extend([
                ("trouble", name(self.trouble)),
                ("share", self.share.as_f64().to_string()),
                ("resync", name(self.resync)),
                ("transmit_resync", name(self.transmit_resync)),
            ]);
        }
        let facts = Facts {
            command: "recovery".into(),
            seed: self.seed,
            options: options.into_iter().map(|(name, value)| (name.to_string(), value)).collect(),
            runs: runs.iter().map(value).collect(),
            ..Facts::default()
        };
        Ok(Made { facts, text: Table(&rows).to_string(), whole: runs.iter().all(|made| made.run.sha256_ok) })
    }
}
