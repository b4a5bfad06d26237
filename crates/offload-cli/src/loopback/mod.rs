//! Programs that send one file, or read one disk, several ways, and show what the offload saves: `nicbench loopback tls`, and the
//! example `ktls_loopback`, are one program.

pub mod tls;

use crate::files::{self, Files};
use crate::options::WireOptions;
use crate::program;
use crate::trace_options::{TraceFile, TraceOptions};
use clap::{Args, Parser};
use core::fmt;
use indicatif::{ProgressBar, ProgressStyle};
use offload_base::Seed;
use offload_bench_tls::facts::{Clock, Facts};
use offload_bench_tls::payload::Payload;
use offload_bench_tls::table;
use offload_console::say;
use offload_testbed::bed::ClockKind;
use offload_testbed::{Capture, Tracer};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// A program of its own, and a subcommand of `nicbench loopback`.
///
/// ```
/// use offload_cli::loopback::{Loopback, tls::TlsLoopback};
///
/// /// Whether a program knows an option.
/// fn knows<L: Loopback>(option: &str) -> bool {
///     L::command().get_arguments().any(|argument| argument.get_long() == Some(option))
/// }
/// assert!(knows::<TlsLoopback>("resync") && !knows::<TlsLoopback>("depth"));
/// ```
pub trait Loopback: Parser {
    /// Makes the runs, reports them, and tells what to exit with. `program` is who speaks where something is wrong.
    fn run(&self, program: &str) -> ExitCode;
}

/// One of them as a program: reads its options and runs it.
pub fn main<L: Loopback>(program: &str) -> ExitCode {
    program::main(program, |options: &L| options.run(program))
}

/// What all of them are told.
#[derive(Args, Clone, Debug)]
pub struct Common {
    /// Print the facts as one JSON object
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    /// The timeline.
    pub trace: TraceOptions,
    #[command(flatten)]
    /// The wire between the hosts, and the clock.
    pub wire: WireOptions,
}

impl Common {
    /// The clock of the runs.
    pub fn clock(&self) -> ClockKind {
        if self.wire.real { ClockKind::Real } else { ClockKind::Virtual }
    }

    /// Facts without runs. `own` are the options of the program `command` that another run needs to be the same.
    pub fn facts<R>(&self, command: &str, own: impl IntoIterator<Item = (&'static str, String)>) -> Facts<R> {
        let all = own.into_iter().chain(self.wire.facts());
        let options: BTreeMap<String, String> = all.map(|(name, value)| (name.to_string(), value)).collect();
        let clock = if self.wire.real { Clock::Real } else { Clock::Virtual };
        Facts { command: command.into(), seed: self.wire.seed().0, clock, options, runs: Vec::new() }
    }

    /// The facts as JSON, if that is wanted, or else as `text` tells them.
    pub fn shown<R: Serialize>(&self, facts: &Facts<R>, text: impl FnOnce() -> String) -> String {
        if self.json { facts.to_json() + "\n" } else { text() }
    }
}

/// Why there is nothing to report.
#[derive(Debug, PartialEq, Eq)]
pub enum Failure {
    /// An option or a file is of no use.
    Unusable(String),
    /// The transfer came to nothing.
    Transfer(String),
}

impl Failure {
    /// A file is of no use.
    pub fn about(path: &Path, error: &dyn fmt::Display) -> Failure {
        Failure::Unusable(format!("{}: {error}", path.display()))
    }
}

/// Prints what came of it and tells what to exit with: in the end every run has to be `all_right`.
pub fn finish<R>(
    program: &str,
    made: Result<Facts<R>, Failure>,
    report: impl FnOnce(&Facts<R>) -> String,
    all_right: impl Fn(&R) -> bool,
) -> ExitCode {
    match made {
        Ok(facts) => {
            let written = program::write_out(program, &report(&facts));
            if facts.runs.iter().all(all_right) { written } else { ExitCode::from(program::FAILED) }
        }
        Err(Failure::Unusable(message)) => program::fail(program, &message, program::UNUSABLE),
        Err(Failure::Transfer(message)) => program::fail(program, &message, program::FAILED),
    }
}

/// A way failed.
pub fn failed(mode: impl fmt::Display, error: impl fmt::Display) -> Failure {
    Failure::Transfer(format!("{mode}: {error}"))
}

/// Facts for a person: four columns and `remarks`; with `wide`, all columns, `details` and the counters too.
pub fn text(facts: &Facts, wide: bool, details: &str, remarks: &str) -> String {
    let runs = &facts.runs;
    let spoilt = spoilt(facts);
    if wide {
        return format!("{}{details}\n{}\n{remarks}{spoilt}", table::runs(runs), table::counters(runs));
    }
    format!(
        "{}CPU time of the hosts, per byte of user data; --wide shows all columns and counters\n\n{remarks}{spoilt}",
        table::short(runs)
    )
}

/// What to say of runs whose file did not arrive as it was sent.
fn spoilt(facts: &Facts) -> String {
    let spoilt = facts.runs.iter().filter(|run| !run.sha256_ok);
    spoilt.map(|run| format!("{}: what arrived is NOT what was sent\n", run.mode)).collect()
}

/// What is to be sent: a file, or so many seeded bytes.
///
/// # Errors
/// If it cannot be read.
pub fn payload(file: Option<&Path>, seed: Seed, size: u64) -> Result<Payload, Failure> {
    match file {
        Some(file) => Payload::file(file).map_err(|error| Failure::about(file, &error)),
        None => Ok(Payload::seeded(seed, size)),
    }
}

/// The wire's packets are long enough for the family.
///
/// # Errors
/// If they are not.
pub fn check_family(ipv6: bool, mtu: u16) -> Result<(), Failure> {
    if ipv6 && mtu < LEAST_MTU_OF_IPV6 {
        return Err(Failure::Unusable(format!("IPv6 needs an MTU of {LEAST_MTU_OF_IPV6} bytes at least")));
    }
    Ok(())
}

/// A path as an option of a run.
pub fn named(path: Option<&PathBuf>) -> String {
    path.map_or(String::new(), |path| path.display().to_string())
}

/// What the ways are, each once.
fn each_once<M: Copy + PartialEq>(modes: &[M]) -> Vec<M> {
    let mut once = Vec::new();
    for mode in modes {
        if !once.contains(mode) {
            once.push(*mode);
        }
    }
    once
}

/// The ways in which a program does what it does, one after the other, and the files that it writes of them: the last one's
/// result, a capture and a timeline of each.
#[derive(Clone, Debug)]
pub struct Ways<'a, M> {
    /// The program, as it calls itself.
    name: &'static str,
    common: &'a Common,
    modes: Vec<M>,
    files: OutputFiles<'a>,
}

/// Files that are read, and files that may be written.
#[derive(Clone, Debug, Default)]
pub struct OutputFiles<'a> {
    /// Files that the program reads.
    pub read: Vec<&'a Path>,
    /// What arrived in the last way.
    pub out: Option<&'a Path>,
    /// Captures, each in a file of its own where there are several.
    pub pcap: Option<&'a Path>,
    /// Keys for those who read them.
    pub keys: Option<&'a Path>,
}

/// What one way is given.
pub struct Way {
    /// The capture of this way.
    pub capture: Option<Capture>,
    /// The timeline of this way.
    pub tracer: Option<Tracer>,
    /// The file for the received bytes.
    pub out: Option<PathBuf>,
    /// To be told how many bytes have arrived.
    pub progress: Arc<dyn Fn(u64) + Send + Sync>,
}

impl<'a, M: Copy + PartialEq + fmt::Display> Ways<'a, M> {
    /// Each of `modes` once. The files can be written, and none of them is another one, or one of those to be read.
    ///
    /// # Errors
    /// If one of them is of no use.
    pub fn new(
        name: &'static str,
        common: &'a Common,
        modes: &[M],
        files: OutputFiles<'a>,
    ) -> Result<Ways<'a, M>, Failure> {
        let ways = Ways { name, common, modes: each_once(modes), files };
        let of_each = [common.trace.trace.as_deref(), ways.files.pcap];
        let of_each = of_each.iter().flat_map(|path| ways.modes.iter().filter_map(|mode| ways.path_of(*path, mode)));
        let alone = [ways.files.out, ways.files.keys].into_iter().flatten().map(Path::to_owned);
        let written: Vec<PathBuf> = alone.chain(of_each).collect();
        let written = written.iter().map(PathBuf::as_path).collect();
        let files = Files { read: ways.files.read.clone(), served: None, written };
        files.claim().map_err(Failure::Unusable)?.keep();
        Ok(ways)
    }

    /// All of them.
    pub fn modes(&self) -> &[M] {
        &self.modes
    }

    /// Does something of `bytes` bytes in each way, with a bar that shows how far it is, and adds the runs to `facts`.
    ///
    /// # Errors
    /// If one of them comes to nothing, or a file cannot be written.
    pub fn make<R>(
        &self,
        bytes: u64,
        facts: &mut Facts<R>,
        mut make: impl FnMut(M, Way) -> Result<R, Failure>,
    ) -> Result<(), Failure> {
        for mode in &self.modes {
            let progress = progress_bar(&mode.to_string(), bytes, self.common.json);
            let bar = progress.clone();
            let trace = self.common.trace.begin_for(mode, self.modes.len() > 1).map_err(Failure::Unusable)?;
            let way = Way {
                capture: self.capture(mode)?,
                tracer: trace.as_ref().map(|trace| trace.tracer().clone()),
                out: self.files.out.filter(|_| Some(mode) == self.modes.last()).map(Path::to_owned),
                progress: Arc::new(move |bytes| bar.set_position(bytes)),
            };
            let made = make(*mode, way);
            progress.finish_and_clear();
            if let Some(summary) = trace.map(TraceFile::end).transpose().map_err(Failure::Unusable)? {
                say!("{}: {summary}", self.name);
            }
            facts.runs.push(made?);
        }
        Ok(())
    }

    fn capture(&self, mode: &M) -> Result<Option<Capture>, Failure> {
        let Some(path) = self.path_of(self.files.pcap, mode) else { return Ok(None) };
        Capture::create(&path).map(Some).map_err(|error| Failure::about(&path, &error))
    }

    fn path_of(&self, path: Option<&Path>, mode: &M) -> Option<PathBuf> {
        path.map(|path| if self.modes.len() > 1 { files::named_for(path, mode) } else { path.to_path_buf() })
    }
}

/// Shows how far one way has come, unless nobody wants to see it.
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

/// RFC 8200 5.
const LEAST_MTU_OF_IPV6: u16 = 1280;
