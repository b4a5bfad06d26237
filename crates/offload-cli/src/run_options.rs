//! The options that every scenario between emulated hosts takes.

use crate::nic_options::{self, NicOptions};
use crate::options::{self, WireOptions};
use crate::output::OutputOptions;
use crate::scenario::About;
use crate::trace_options::TraceOptions;
use crate::watch::Watch;
use clap::Args;
use core::time::Duration;
use nic_sim::NicConfig;
use offload_bench_tls::connection::nic_on;
use offload_bench_tls::facts::{Clock, Facts};
use offload_bench_tls::live::{Live, Sample};
use offload_testbed::bed::ClockKind;
use serde_json::Value;
use std::sync::Arc;

/// Sees the counters of each step of a run.
pub type StepObserver = Arc<dyn Fn(&Sample) + Send + Sync>;

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
/// assert!(options.run.is_quiet() && options.run.trace.pcap.is_some());
/// ```
#[derive(Args, Clone, Debug)]
pub struct RunOptions {
    /// The form of the results.
    #[command(flatten)]
    pub output: OutputOptions,
    /// The capture and the timeline.
    #[command(flatten)]
    pub trace: TraceOptions,
    /// Show how the run goes, on standard error: rates, retransmits, resyncs, contexts, and on a terminal every counter that moves
    #[arg(long)]
    pub watch: bool,
    /// The step of --watch and --openmetrics, on the run's clock. Default: 1ms, in real time 1s
    #[arg(long, value_name = "TIME", value_parser = options::some_time)]
    pub every: Option<Duration>,
    /// The model of the NICs.
    #[command(flatten)]
    pub nic: NicOptions,
    /// The wire between the hosts, and the clock.
    #[command(flatten)]
    pub wire: WireOptions,
}

impl RunOptions {
    /// Describes so many runs with these options.
    pub fn about(&self, runs: usize) -> About<'_> {
        About { output: &self.output, runs, is_real: self.wire.real }
    }

    /// Returns the clock of the runs.
    pub fn clock(&self) -> ClockKind {
        if self.wire.real { ClockKind::Real } else { ClockKind::Virtual }
    }

    /// Tests whether no bar is shown: a program reads the output, or `--watch` draws on the terminal.
    pub fn is_quiet(&self) -> bool {
        self.output.json || self.output.csv || self.watch
    }

    /// Returns `usual` with the wire's MTU and the values that the options give.
    pub fn nic(&self, usual: NicConfig) -> NicConfig {
        self.nic.apply(NicConfig { mtu: self.wire.mtu, ..usual })
    }

    /// Returns facts without runs. `own` are the options of `command` that another run needs to be the same.
    pub fn facts(
        &self,
        command: &str,
        nic: &NicConfig,
        own: impl IntoIterator<Item = (&'static str, String)>,
    ) -> Facts<Value> {
        let all = own.into_iter().chain(self.wire.facts());
        let options = all.map(|(name, value)| (name.to_string(), value)).collect();
        let clock = if self.wire.real { Clock::Real } else { Clock::Virtual };
        Facts {
            command: command.into(),
            seed: self.wire.seed().0,
            clock,
            options,
            nic: nic_options::values(&nic_on(self.clock(), nic)),
            runs: Vec::new(),
        }
    }

    /// Returns the observer of the counters, if there is one: `--watch`, or `also`.
    pub fn live(&self, also: Option<StepObserver>) -> Option<Live> {
        let watch = self.watch.then(Watch::on_standard_error);
        if watch.is_none() && also.is_none() {
            return None;
        }
        let usual = if self.wire.real { Duration::from_secs(1) } else { Duration::from_millis(1) };
        Some(Live::new(self.every.unwrap_or(usual), move |sample| {
            watch.iter().for_each(|watch| watch.show(sample));
            also.iter().for_each(|also| also(sample));
        }))
    }
}
