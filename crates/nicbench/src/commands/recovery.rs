//! `nicbench recovery`.

use clap::{Args, ValueEnum};
use nic_sim::wire::Share;
use nic_sim::{NicConfig, TransmitResync};
use offload_api::ResyncMode;
use offload_bench::recovery::{Recovery, RecoveryRun, Table, Trouble};
use offload_bench_tls::table;
use offload_cli::options::name;
use offload_cli::run_options::VirtualOptions;
use offload_cli::scenario::{About, Failure, Made, Modes, Scenario};
use offload_cli::tls_options::{RESYNCS, TRANSMIT_RESYNCS};

/// TLS offload under loss and reordering: records by the side that opened them, bytes read again; virtual time
#[derive(Args, Debug)]
#[command(allow_negative_numbers = true)]
pub(crate) struct RecoveryOptions {
    /// Impairment of a share of the packets
    #[arg(long, value_enum, default_value_t = TroubleName::Loss)]
    trouble: TroubleName,
    /// Share of the packets; 0.01 is 1 %
    #[arg(long, default_value = "0.01")]
    share: Share,
    /// Concurrent connections
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u64).range(1..=20_000))]
    streams: u64,
    /// Records of 16 KiB sent by each connection
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..))]
    records: u64,
    /// Resynchronization of the receiving NIC. Default: driver-request
    #[arg(long, value_parser = RESYNCS.parser())]
    resync: Option<ResyncMode>,
    /// Resynchronization of the sending NIC after a retransmission. Default: dump
    #[arg(long, value_parser = TRANSMIT_RESYNCS.parser())]
    transmit_resync: Option<TransmitResync>,
    /// The whole table: loss and reordering from 0 to 5 %, with all resynchronization modes
    #[arg(long, conflicts_with_all = ["trouble", "share", "resync", "transmit_resync"])]
    all: bool,
    #[command(flatten)]
    run: VirtualOptions,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum TroubleName {
    Loss,
    Reordering,
}

impl RecoveryOptions {
    /// Returns the NICs' configuration with both resynchronization modes.
    fn nic(&self) -> NicConfig {
        let mut nic = self.run.common.nic.apply(NicConfig::default());
        let tls = &mut nic.engines.tls;
        tls.resync = self.resync.unwrap_or(tls.resync);
        tls.transmit_resync = self.transmit_resync.unwrap_or(tls.transmit_resync);
        nic
    }

    /// Returns the requested runs by their labels.
    fn plans(&self) -> Vec<(String, Recovery)> {
        let trouble = match self.trouble {
            TroubleName::Loss => Trouble::Loss,
            TroubleName::Reordering => Trouble::Reordering,
        };
        let nic = self.nic();
        let recovery = Recovery {
            streams: self.streams,
            records: self.records,
            resync: nic.engines.tls.resync,
            transmit_resync: nic.engines.tls.transmit_resync,
            nic,
            ..Recovery::new(trouble, self.share.as_f64(), self.run.seed())
        };
        let runs = if self.all { recovery.grid() } else { vec![recovery] };
        runs.into_iter().map(|run| (run.label(), run)).collect()
    }
}

impl Scenario for RecoveryOptions {
    fn about(&self) -> About<'_> {
        self.run.about(self.plans().len())
    }

    fn run(&self) -> Result<Made, Failure> {
        let modes = Modes::of_plans("recovery", &self.run.common, self.plans())?;
        let runs = modes.make(0, |plan, observers, _| {
            let label = plan.label();
            Recovery { observers, ..plan }.run().map_err(|error| Failure::in_mode(label, error))
        })?;
        let nic = self.nic();
        // In the whole table, each run reports its own varying options.
        let mut options = vec![("streams", self.streams.to_string()), ("records", self.records.to_string())];
        if !self.all {
            let tls = &nic.engines.tls;
            options.extend([
                ("trouble", name(self.trouble)),
                ("share", self.share.as_f64().to_string()),
                ("resync", RESYNCS.name(&tls.resync)),
                ("transmit_resync", TRANSMIT_RESYNCS.name(&tls.transmit_resync)),
            ]);
        }
        let whole = runs.iter().all(|made| made.run.sha256_ok);
        let text = text(&runs, self.run.common.wide);
        Ok(Made::new(self.run.facts("recovery", &nic, options), &runs, whole, text))
    }
}

fn text(runs: &[RecoveryRun], wide: bool) -> String {
    let rows: Vec<_> = runs.iter().map(|made| made.row).collect();
    let table = aligned(&Table(&rows).to_string(), if wide { usize::MAX } else { NARROW_COLUMNS });
    match runs {
        // The narrow table omits columns, so it names the option that shows them.
        _ if !wide => table + "--wide shows descriptors, segments, questions and the counters of a single run\n",
        [made] => table + "\n" + &table::counters([(&made.run.mode[..], &made.run.counters)]),
        // The whole table has too many runs for a column each.
        _ => table,
    }
}

/// Aligns the first columns of a Markdown table.
fn aligned(markdown: &str, columns: usize) -> String {
    let cells = |line: &str| {
        let cells = line.trim_matches('|').split('|').take(columns);
        cells.map(|cell| cell.trim().to_owned()).collect::<Vec<_>>()
    };
    let rows: Vec<_> = markdown.lines().filter(|line| !line.starts_with("|--")).map(cells).collect();
    table::align(&rows)
}

/// Number of columns without `--wide`: the wire, the NICs, the records by the side that opened them, the payload read
/// again.
const NARROW_COLUMNS: usize = 7;
