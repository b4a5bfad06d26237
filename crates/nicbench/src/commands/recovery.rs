//! `nicbench recovery`.

use clap::{Args, ValueEnum};
use nic_sim::TransmitResync;
use nic_sim::wire::Share;
use offload_api::ResyncMode;
use offload_base::Seed;
use offload_bench::recovery::{Recovery, Table, Trouble};
use offload_bench_tls::table;
use offload_cli::options::name;
use offload_cli::output::OutputOptions;
use offload_cli::scenario::{self, About, Failure, Made, Scenario};
use offload_cli::tls_options::{RESYNCS, TRANSMIT_RESYNCS};

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
    #[arg(long, value_parser = RESYNCS.parser(), default_value = "driver-request")]
    resync: ResyncMode,
    /// How the sending NIC goes on after a retransmission
    #[arg(long, value_parser = TRANSMIT_RESYNCS.parser(), default_value = "dump")]
    transmit_resync: TransmitResync,
    /// The whole table: loss and reordering from 0 to 5 %, and all of those ways
    #[arg(long, conflicts_with_all = ["trouble", "share", "resync", "transmit_resync"])]
    all: bool,
    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    output: OutputOptions,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum TroubleName {
    Loss,
    Reordering,
}

impl RecoveryOptions {
    /// The runs that are asked for.
    fn plans(&self) -> Vec<Recovery> {
        let trouble = match self.trouble {
            TroubleName::Loss => Trouble::Loss,
            TroubleName::Reordering => Trouble::Reordering,
        };
        let recovery = Recovery {
            streams: self.streams,
            records: self.records,
            resync: self.resync,
            transmit_resync: self.transmit_resync,
            ..Recovery::new(trouble, self.share.as_f64(), Seed(self.seed))
        };
        if self.all { recovery.grid().collect() } else { vec![recovery] }
    }
}

impl Scenario for RecoveryOptions {
    fn about(&self) -> About<'_> {
        About { output: &self.output, runs: self.plans().len(), is_real: false }
    }

    fn run(&self) -> Result<Made, Failure> {
        let runs: Result<Vec<_>, _> = self.plans().into_iter().map(Recovery::run).collect();
        let runs = runs.map_err(|error| error.to_string())?;
        let rows: Vec<_> = runs.iter().map(|made| made.row).collect();
        // Each run of the whole table says of itself what varies.
        let mut options = vec![("streams", self.streams.to_string()), ("records", self.records.to_string())];
        if !self.all {
            options.extend([
                ("trouble", name(self.trouble)),
                ("share", self.share.as_f64().to_string()),
                ("resync", RESYNCS.name(&self.resync)),
                ("transmit_resync", TRANSMIT_RESYNCS.name(&self.transmit_resync)),
            ]);
        }
        let whole = runs.iter().all(|made| made.run.sha256_ok);
        Ok(Made::new(scenario::facts("recovery", self.seed, options), &runs, whole, aligned(&Table(&rows).to_string())))
    }
}

/// Aligns the columns of a table in Markdown.
fn aligned(markdown: &str) -> String {
    let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let rows: Vec<_> = markdown.lines().filter(|line| !line.starts_with("|--")).map(cells).collect();
    table::align(&rows)
}
