//! `nicbench recovery`.

use crate::runs::{Made, value};
use clap::{Args, ValueEnum};
use nic_sim::wire::Share;
use offload_base::Seed;
use offload_bench::facts::Facts;
use offload_bench::recovery::{Recovery, Table, Trouble};
use std::collections::BTreeMap;

/// What loss and reordering leave of the TLS offload: records by who opened them, bytes read again; virtual time
#[derive(Args, Debug)]
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
    pub(crate) fn run(&self) -> Result<Made, String> {
        let trouble = match self.trouble {
            TroubleName::Loss => Trouble::Loss,
            TroubleName::Reordering => Trouble::Reordering,
        };
        let recovery = Recovery {
            streams: self.streams,
            records: self.records,
            ..Recovery::new(trouble, self.share.as_f64(), Seed(self.seed))
        };
        let row = recovery.run().map_err(|error| error.to_string())?;
        let options = [("streams", self.streams), ("records", self.records)];
        let facts = Facts {
            command: "recovery".into(),
            seed: self.seed,
            options: BTreeMap::from(options.map(|(name, value)| (name.to_string(), value.to_string()))),
            runs: vec![value(row)],
            ..Facts::default()
        };
        Ok(Made { facts, text: Table(&[row]).to_string(), whole: true })
    }
}
