//! Scenarios. Each is a subcommand of `nicbench` and a possible point of a sweep; some are also separate programs.

use crate::files::{self, Files};
use crate::options::WireOptions;
use crate::output::OutputOptions;
use crate::program;
use crate::run_options::{CommonOptions, RunOptions, StepObserver};
use crate::trace_options::TraceFile;
use clap::Parser;
use core::fmt;
use core::time::Duration;
use indicatif::{ProgressBar, ProgressStyle};
use offload_base::Seed;
use offload_bench_tls::facts::{Facts, Run, RunClock};
use offload_bench_tls::observers::Observers;
use offload_bench_tls::payload::{Checksum, Payload};
use offload_bench_tls::table;
use offload_console::say;
use offload_testbed::Capture;
use serde::Serialize;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// A scenario with its options.
///
/// ```
/// use offload_cli::scenario::Scenario;
/// use offload_cli::tls::TlsLoopback;
///
/// let options = <TlsLoopback as clap::Parser>::parse_from(["demo", "--size", "64KiB", "--mode", "tls-nic", "--json"]);
/// let made = options.run().unwrap();
/// assert!(made.whole && made.facts.runs[0]["mode"] == "tls-nic");
/// assert!(options.about().output.shown(&made).starts_with('{'));
/// ```
pub trait Scenario {
    /// Describes the runs before they are made.
    fn about(&self) -> About<'_>;

    /// Makes the runs.
    ///
    /// # Errors
    /// If an option is bad, or a run failed.
    fn run(&self) -> Result<Made, Failure>;
}

/// The runs of a scenario before they are made. See [`Scenario`] for an example.
#[derive(Clone, Copy, Debug)]
pub struct About<'a> {
    /// The options of the output.
    pub output: &'a OutputOptions,
    /// The number of runs.
    pub runs: usize,
    /// Whether the runs follow the machine's clock, so that nothing else should run beside them.
    pub is_real: bool,
}

/// The plain fields of an options struct by name, for [`facts`] and [`RunOptions::facts`].
///
/// ```
/// struct Options {
///     streams: u16,
/// }
///
/// let options = Options { streams: 8 };
/// assert_eq!(offload_cli::own!(options: streams), [("streams", "8".to_owned())]);
/// ```
#[macro_export]
macro_rules! own {
    ($options:ident: $($field:ident),+) => {
        [$((stringify!($field), $options.$field.to_string())),+]
    };
}

/// The runs that a scenario made. See [`Scenario`] for an example.
#[derive(Clone, Debug)]
pub struct Made {
    /// The facts, for programs.
    pub facts: Facts<Value>,
    /// The tables, for people.
    pub text: String,
    /// Whether all data arrived whole.
    pub whole: bool,
}

impl Made {
    /// Completes `facts` with the runs.
    pub fn new<R: Serialize>(facts: Facts<Value>, runs: &[R], whole: bool, text: String) -> Made {
        // A run consists of names and numbers, so its conversion to JSON cannot fail.
        let runs = runs.iter().map(|run| serde_json::to_value(run).unwrap_or(Value::Null)).collect();
        Made { facts: Facts { runs, ..facts }, text, whole }
    }
}

/// Runs a scenario as a separate program.
pub fn main<S: Parser + Scenario>(program: &'static str) -> ExitCode {
    program::main(program, |scenario: &S| finish(program, scenario))
}

/// Makes the runs of a scenario, prints them, and returns the exit status.
pub fn finish(program: &str, scenario: &dyn Scenario) -> ExitCode {
    match scenario.run() {
        Ok(made) => {
            let written = program::write_out(program, &scenario.about().output.shown(&made));
            if made.whole { written } else { program::fail(program, "data did not arrive whole", program::FAILED) }
        }
        Err(failure) => program::fail(program, &failure.to_string(), failure.status()),
    }
}

/// The reason why a scenario has no result.
///
/// ```
/// use offload_cli::scenario::Failure;
///
/// assert_eq!(Failure::from("the connection failed".to_owned()).status(), 1);
/// assert_eq!(Failure::Unusable("--size 0".into()).status(), 2);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// An option or a file cannot be used.
    #[error("{0}")]
    Unusable(String),
    /// A run failed.
    #[error("{0}")]
    Run(String),
}

impl Failure {
    /// Names the file that cannot be used.
    pub fn about(path: &Path, error: &dyn fmt::Display) -> Failure {
        Failure::Unusable(format!("{}: {error}", path.display()))
    }

    /// Names the mode that failed.
    pub fn in_mode(mode: impl fmt::Display, error: impl fmt::Display) -> Failure {
        Failure::Run(format!("{mode}: {error}"))
    }

    /// Returns the exit status.
    pub fn status(&self) -> u8 {
        match self {
            Failure::Unusable(_) => program::UNUSABLE,
            Failure::Run(_) => program::FAILED,
        }
    }
}

impl From<String> for Failure {
    fn from(message: String) -> Failure {
        Failure::Run(message)
    }
}

/// Returns facts without runs, for a scenario in virtual time with a fixed wire. `own` holds the options that a
/// repeated run needs.
pub fn facts(command: &str, seed: u64, own: impl IntoIterator<Item = (&'static str, String)>) -> Facts<Value> {
    let options = own.into_iter().map(|(name, value)| (name.to_string(), value)).collect();
    Facts { command: command.into(), seed, clock: RunClock::Virtual, options, ..Facts::default() }
}

/// Formats `runs`: a narrow table and `remarks`; if `wide`, all columns, `details` and the counters too.
pub fn text(runs: &[Run], wide: bool, details: &str, remarks: &str) -> String {
    let spoilt = runs.iter().filter(|run| !run.sha256_ok);
    let spoilt: String = spoilt.map(|run| format!("{}: what arrived is NOT what was sent\n", run.mode)).collect();
    if wide {
        let counters = table::counters(runs.iter().map(|run| (&run.mode[..], &run.counters)));
        return format!("{}{details}\n{counters}\n{remarks}{spoilt}", table::runs(runs));
    }
    format!(
        "{}CPU time of the hosts, per byte of user data; --wide shows all columns and counters\n\n{remarks}{spoilt}",
        table::short(runs)
    )
}

/// Checks that the MTU is large enough for the IP version.
///
/// # Errors
/// If the MTU is too small.
pub fn check_family(ipv6: bool, wire: &WireOptions) -> Result<(), Failure> {
    if ipv6 && wire.mtu < MIN_MTU_OF_IPV6 {
        return Err(Failure::Unusable(format!("IPv6 needs an MTU of {MIN_MTU_OF_IPV6} bytes at least")));
    }
    Ok(())
}

/// The runs of a scenario, one after the other: one for each mode or plan. If there are several runs, each has its own
/// capture and timeline, with its label in the file name.
///
/// ```
/// use clap::Parser;
/// use offload_bench_tls::bulk::Mode;
/// use offload_cli::run_options::RunOptions;
/// use offload_cli::scenario::{Modes, OutputFiles};
///
/// #[derive(Parser)]
/// struct Options {
///     #[command(flatten)]
///     run: RunOptions,
/// }
///
/// let options = Options::parse_from(["demo"]);
/// let modes = Modes::new("demo", &options.run, &[Mode::Tcp, Mode::Tcp, Mode::TlsNic], OutputFiles::default())?;
/// let made = modes.make(0, |mode, _, _| Ok(mode.to_string()))?;
/// assert_eq!(made, ["tcp", "tls-nic"]);
/// # Ok::<(), offload_cli::scenario::Failure>(())
/// ```
pub struct Modes<'a, M> {
    name: &'static str,
    common: &'a CommonOptions,
    /// The default of `--every`.
    usual_step: Duration,
    labels: Vec<String>,
    modes: Vec<M>,
    files: OutputFiles<'a>,
    also: Option<StepObserver>,
}

/// Input and output files besides captures and timelines.
#[derive(Clone, Debug, Default)]
pub struct OutputFiles<'a> {
    /// Files that the program reads.
    pub read: Vec<&'a Path>,
    /// Output for the received bytes of the last mode.
    pub out: Option<&'a Path>,
    /// Output for the keys, for readers of the capture.
    pub keys: Option<&'a Path>,
}

impl<'a, M: Clone + fmt::Display> Modes<'a, M> {
    /// Prepares a run in each of `modes`, without repetitions. Checks that all outputs can be written and are distinct
    /// from each other and from the inputs.
    ///
    /// # Errors
    /// If a file cannot be used.
    pub fn new(
        name: &'static str,
        run: &'a RunOptions,
        modes: &[M],
        files: OutputFiles<'a>,
    ) -> Result<Modes<'a, M>, Failure> {
        let usual_step = if run.wire.real { REAL_STEP } else { VIRTUAL_STEP };
        let labelled = modes.iter().map(|mode| (mode.to_string(), mode.clone())).collect();
        Modes::build(name, &run.common, usual_step, labelled, files)
    }
}

impl<'a, M: Clone> Modes<'a, M> {
    /// Prepares runs in virtual time by their labels, each label once. Files are checked as [`new`](Self::new) does.
    ///
    /// # Errors
    /// If a file cannot be used.
    pub fn of_plans(
        name: &'static str,
        common: &'a CommonOptions,
        plans: Vec<(String, M)>,
    ) -> Result<Modes<'a, M>, Failure> {
        Modes::build(name, common, VIRTUAL_STEP, plans, OutputFiles::default())
    }

    fn build(
        name: &'static str,
        common: &'a CommonOptions,
        usual_step: Duration,
        labelled: Vec<(String, M)>,
        files: OutputFiles<'a>,
    ) -> Result<Modes<'a, M>, Failure> {
        let (mut labels, mut modes) = (Vec::new(), Vec::new());
        for (label, mode) in labelled {
            // Labels name files, so two runs with one label would overwrite each other.
            if !labels.contains(&label) {
                labels.push(label);
                modes.push(mode);
            }
        }
        let modes = Modes { name, common, usual_step, labels, modes, files, also: None };
        let of_each = [&common.trace.trace, &common.trace.pcap].into_iter().flatten();
        let of_each = of_each.flat_map(|path| modes.labels.iter().map(|label| modes.path_of(path, label)));
        // `out` and `keys` exist once; captures and timelines once for each run.
        let alone = [modes.files.out, modes.files.keys].into_iter().flatten().map(Path::to_owned);
        let written: Vec<PathBuf> = alone.chain(of_each).collect();
        let written = written.iter().map(PathBuf::as_path).collect();
        let files = Files { read: modes.files.read.clone(), served: None, written };
        // Files are claimed before the first run, so that a bad path fails at once and not after minutes.
        files.claim().map_err(Failure::Unusable)?.keep();
        Ok(modes)
    }

    /// Shows the counters of each step to `also` too.
    pub fn showing(self, also: Option<StepObserver>) -> Modes<'a, M> {
        Modes { also, ..self }
    }

    /// Returns the labels of the runs.
    pub fn labels(&self) -> impl Iterator<Item = &str> {
        self.labels.iter().map(String::as_str)
    }

    /// Returns the modes.
    pub fn modes(&self) -> &[M] {
        &self.modes
    }

    /// Makes a run in each mode with `make`, under a progress bar of `bytes` bytes; with 0 there is no bar. `make`
    /// receives the run's observers, and the file for the received bytes.
    ///
    /// # Errors
    /// If a run failed, or a file cannot be written.
    pub fn make<R>(
        &self,
        bytes: u64,
        mut make: impl FnMut(M, Observers, Option<PathBuf>) -> Result<R, Failure>,
    ) -> Result<Vec<R>, Failure> {
        let mut runs = Vec::new();
        for (label, mode) in self.labels.iter().zip(&self.modes) {
            let progress = progress_bar(label, bytes, bytes == 0 || self.common.is_quiet());
            let bar = progress.clone();
            let trace = self.common.trace.begin_for(label, self.labels.len() > 1).map_err(Failure::Unusable)?;
            let observers = Observers {
                capture: self.capture(label)?,
                tracer: trace.as_ref().map(|trace| trace.tracer().clone()),
                progress: Some(Arc::new(move |bytes| bar.set_position(bytes))),
                live: self.common.live(self.usual_step, self.also.clone()),
                ..Observers::default()
            };
            // One file cannot hold the bytes of several modes, so only the last mode writes.
            let out = self.files.out.filter(|_| Some(label) == self.labels.last()).map(Path::to_owned);
            // The result is examined only after bar and timeline are closed, so that a failed run leaves a readable
            // timeline.
            let made = make(mode.clone(), observers, out);
            progress.finish_and_clear();
            if let Some(summary) = trace.map(TraceFile::end).transpose().map_err(Failure::Unusable)? {
                say!("{}: {summary}", self.name);
            }
            runs.push(made?);
        }
        Ok(runs)
    }

    fn capture(&self, label: &str) -> Result<Option<Capture>, Failure> {
        let Some(path) = self.common.trace.pcap.as_deref() else { return Ok(None) };
        let path = self.path_of(path, label);
        Capture::create(&path).map(Some).map_err(|error| Failure::about(&path, &error))
    }

    fn path_of(&self, path: &Path, label: &str) -> PathBuf {
        if self.labels.len() > 1 { files::named_for(path, label) } else { path.to_path_buf() }
    }
}

/// Returns a file's bytes, or `size` seeded bytes.
///
/// # Errors
/// If the file cannot be read.
pub fn payload(file: Option<&Path>, seed: Seed, size: u64) -> Result<Payload, Failure> {
    match file {
        Some(file) => Payload::file(file).map_err(|error| Failure::about(file, &error)),
        None => Ok(Payload::seeded(seed, size)),
    }
}

/// Returns the checksum of a payload, under a progress bar, because reading a file or making seeded bytes may take a
/// while.
///
/// # Errors
/// If the file cannot be read.
pub fn checksum(payload: &Payload, run: &RunOptions) -> Result<Checksum, Failure> {
    let bar = progress_bar("data", payload.len(), run.common.is_quiet());
    bar.tick();
    let checksum = payload.checksum();
    bar.finish_and_clear();
    checksum.map_err(|error| Failure::Unusable(format!("the data to send cannot be read: {error}")))
}

/// Formats a path as an option of a run.
pub fn named(path: Option<&PathBuf>) -> String {
    path.map_or(String::new(), |path| path.display().to_string())
}

fn progress_bar(mode: &str, bytes: u64, quiet: bool) -> ProgressBar {
    if quiet {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(bytes).with_prefix(mode.to_string());
    if let Ok(style) = ProgressStyle::with_template("{prefix:10} {wide_bar} {bytes}/{total_bytes} {eta}") {
        bar.set_style(style);
    }
    bar
}

/// The default of `--every`, on the run's clock.
const VIRTUAL_STEP: Duration = Duration::from_millis(1);
const REAL_STEP: Duration = Duration::from_secs(1);
/// RFC 8200 5.
const MIN_MTU_OF_IPV6: u16 = 1280;
