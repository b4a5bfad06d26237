//! The options of every scenario between emulated hosts.

use crate::nic_options::{self, NicOptions};
use crate::options::{self, WireOptions};
use crate::output::OutputOptions;
use crate::scenario::{self, About};
use crate::trace_options::TraceOptions;
use crate::watch::CounterWatch;
use clap::Args;
use core::time::Duration;
use nic_sim::NicConfig;
use offload_base::Seed;
use offload_bench_tls::connection::nic_on;
use offload_bench_tls::facts::{Facts, RunClock};
use offload_bench_tls::live::{Live, Sample};
use offload_testbed::bed::ClockKind;
use serde_json::Value;
use std::sync::Arc;

/// An observer of the counters at each step of a run.
pub type StepObserver = Arc<dyn Fn(&Sample) + Send + Sync>;

/// The output, the observers and the NICs of a run: the options of every scenario with emulated NICs.
///
/// ```
/// use clap::Parser;
/// use nic_sim::NicConfig;
/// use offload_cli::run_options::CommonOptions;
///
/// #[derive(Parser)]
/// struct Options {
///     #[command(flatten)]
///     common: CommonOptions,
/// }
///
/// let common = Options::parse_from(["demo", "--wide", "--watch", "--nic-set", "lro=false"]).common;
/// assert!(common.wide && common.is_quiet() && !common.nic.apply(NicConfig::default()).lro);
/// assert!(Options::try_parse_from(["demo", "--wide", "--json"]).is_err());
/// ```
#[derive(Args, Clone, Debug)]
pub struct CommonOptions {
    /// The form of the results.
    #[command(flatten)]
    pub output: OutputOptions,
    /// Show all columns (copy, framing and crypto, the devices, DMA) and the counters that moved
    #[arg(long, conflicts_with_all = ["json", "csv"])]
    pub wide: bool,
    /// The capture and the timeline.
    #[command(flatten)]
    pub trace: TraceOptions,
    /// Show the progress of the run on standard error: rates, retransmits, resyncs, contexts, and on a terminal every
    /// counter that moves
    #[arg(long)]
    pub watch: bool,
    /// The step of --watch and --openmetrics, on the run's clock. Default: 1ms, in real time 1s
    #[arg(long, value_name = "TIME", value_parser = options::some_time)]
    pub every: Option<Duration>,
    /// The model of the NICs.
    #[command(flatten)]
    pub nic: NicOptions,
}

impl CommonOptions {
    /// Tests whether the progress bar is hidden, because a program reads the output or `--watch` draws on the terminal.
    pub fn is_quiet(&self) -> bool {
        self.output.json || self.output.csv || self.watch
    }

    /// Returns the observer of the counters, for `--watch` or `also`. `None` if neither is given. `usual_step` is the
    /// default of `--every`.
    pub fn live(&self, usual_step: Duration, also: Option<StepObserver>) -> Option<Live> {
        let watch = self.watch.then(CounterWatch::on_standard_error);
        if watch.is_none() && also.is_none() {
            return None;
        }
        Some(Live::new(self.every.unwrap_or(usual_step), move |sample| {
            watch.iter().for_each(|watch| watch.show(sample));
            also.iter().for_each(|also| also(sample));
        }))
    }
}

/// The options of a scenario in virtual time with a fixed wire.
///
/// ```
/// use clap::Parser;
/// use offload_cli::run_options::VirtualOptions;
///
/// #[derive(Parser)]
/// struct Options {
///     #[command(flatten)]
///     run: VirtualOptions,
/// }
///
/// let run = Options::parse_from(["demo", "--seed", "7"]).run;
/// assert_eq!((run.seed().0, run.about(3).is_real), (7, false));
/// assert!(Options::try_parse_from(["demo", "--real"]).is_err());
/// ```
#[derive(Args, Clone, Debug)]
pub struct VirtualOptions {
    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The output, the observers and the NICs.
    #[command(flatten)]
    pub common: CommonOptions,
}

impl VirtualOptions {
    /// Describes `runs` runs with these options.
    pub fn about(&self, runs: usize) -> About<'_> {
        About { output: &self.common.output, runs, is_real: false }
    }

    /// Returns the seed of the run.
    pub fn seed(&self) -> Seed {
        Seed(self.seed)
    }

    /// Returns facts without runs. `own` holds the options of `command` that a repeated run needs.
    pub fn facts(
        &self,
        command: &str,
        nic: &NicConfig,
        own: impl IntoIterator<Item = (&'static str, String)>,
    ) -> Facts<Value> {
        Facts { nic: nic_options::values(nic), ..scenario::facts(command, self.seed, own) }
    }
}

/// The output, the observers, the NICs and the wire of a run.
///
/// ```
/// use clap::Parser;
/// use offload_cli::run_options::RunOptions;
/// use offload_testbed::bed::ClockKind;
///
/// #[derive(Parser)]
/// struct Options {
///     #[command(flatten)]
///     run: RunOptions,
/// }
///
/// let options = Options::parse_from(["demo", "--real", "--csv", "--pcap", "wire.pcapng"]);
/// assert_eq!(options.run.clock(), ClockKind::Real);
/// assert!(options.run.common.is_quiet() && options.run.common.trace.pcap.is_some());
/// ```
#[derive(Args, Clone, Debug)]
pub struct RunOptions {
    /// The output, the observers and the NICs.
    #[command(flatten)]
    pub common: CommonOptions,
    /// The wire between the hosts, and the clock.
    #[command(flatten)]
    pub wire: WireOptions,
}

impl RunOptions {
    /// Describes `runs` runs with these options.
    pub fn about(&self, runs: usize) -> About<'_> {
        About { output: &self.common.output, runs, is_real: self.wire.real }
    }

    /// Returns the clock of the runs.
    pub fn clock(&self) -> ClockKind {
        if self.wire.real { ClockKind::Real } else { ClockKind::Virtual }
    }

    /// Returns `usual` with the wire's MTU and the values of the options.
    pub fn nic(&self, usual: NicConfig) -> NicConfig {
        self.common.nic.apply(NicConfig { mtu: self.wire.mtu, ..usual })
    }

    /// Returns facts without runs. `own` holds the options of `command` that a repeated run needs.
    pub fn facts(
        &self,
        command: &str,
        nic: &NicConfig,
        own: impl IntoIterator<Item = (&'static str, String)>,
    ) -> Facts<Value> {
        let clock = if self.wire.real { RunClock::Real } else { RunClock::Virtual };
        let own = own.into_iter().chain(self.wire.facts());
        // In real time some values have no effect: facts hold the values that were used.
        let nic = nic_options::values(&nic_on(self.clock(), nic));
        Facts { clock, nic, ..scenario::facts(command, self.wire.seed().0, own) }
    }
}
