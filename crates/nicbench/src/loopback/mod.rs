//! Programs that send one file, or read one disk, several ways, and show what the offload saves: `nicbench loopback tls`, and the
//! example `ktls_loopback`, are one program.

pub mod ipsec;
pub mod nvme;
pub mod quic;
pub mod tls;

use crate::files;
use crate::options::WireOptions;
use crate::program;
use crate::trace_options::{TraceFile, TraceOptions};
use clap::{Parser, Subcommand};
use core::fmt;
use indicatif::{ProgressBar, ProgressStyle};
use offload_base::Seed;
use offload_bench::facts::{Clock, Facts};
use offload_bench::payload::Payload;
use offload_bench::table;
use offload_testbed::Capture;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// A program of its own, and a subcommand of `nicbench loopback`.
///
/// ```
/// use nicbench::loopback::{Loopback, ipsec::IpsecLoopback, nvme::NvmeLoopback, quic::QuicLoopback, tls::TlsLoopback};
///
/// /// Whether a program knows an option.
/// fn knows<L: Loopback>(option: &str) -> bool {
///     L::command().get_arguments().any(|argument| argument.get_long() == Some(option))
/// }
/// assert!(knows::<TlsLoopback>("resync") && knows::<NvmeLoopback>("depth"));
/// assert!(knows::<IpsecLoopback>("ipv6") && knows::<QuicLoopback>("paths") && !knows::<QuicLoopback>("depth"));
/// ```
pub trait Loopback: Parser {
    /// Makes the runs, reports them, and tells what to exit with. `program` is who speaks where something is wrong.
    fn run(&self, program: &str) -> ExitCode;
}

/// One of them as a program: reads its options and runs it.
pub fn main<L: Loopback>(program: &str) -> ExitCode {
    program::main(program, |options: &L| options.run(program))
}

/// A file over two emulated NICs several ways, or a disk read over them: what the offload saves
#[derive(Debug, Subcommand)]
pub(crate) enum LoopbackCommand {
    /// TLS: as plain TCP, with TLS on the CPU, with TLS on the NICs
    Tls(tls::TlsLoopback),
    /// NVMe/TCP: a disk read with data placed and checked by the CPU or by the NIC
    Nvme(nvme::NvmeLoopback),
    /// ESP: plain, by the hosts, by the NICs under headers of the hosts, by the NICs alone
    Ipsec(ipsec::IpsecLoopback),
    /// QUIC: packets as they are, protected by the CPU, protected by the NICs
    Quic(quic::QuicLoopback),
}

impl LoopbackCommand {
    /// Runs the one that was chosen.
    pub(crate) fn run(&self, program: &str) -> ExitCode {
        match self {
            LoopbackCommand::Tls(options) => options.run(program),
            LoopbackCommand::Nvme(options) => options.run(program),
            LoopbackCommand::Ipsec(options) => options.run(program),
            LoopbackCommand::Quic(options) => options.run(program),
        }
    }
}

/// Why there is nothing to report.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// An option or a file is of no use.
    Unusable(String),
    /// The transfer came to nothing.
    Transfer(String),
}

impl Failure {
    /// A file is of no use.
    pub(crate) fn about(path: &Path, error: &dyn fmt::Display) -> Failure {
        Failure::Unusable(format!("{}: {error}", path.display()))
    }
}

/// Prints what came of it and tells what to exit with.
pub(crate) fn finish(program: &str, made: Result<Facts, Failure>, report: impl FnOnce(&Facts) -> String) -> ExitCode {
    match made {
        Ok(facts) => {
            let written = program::write_out(program, &report(&facts));
            let all_equal = facts.runs.iter().all(|run| run.sha256_ok);
            if all_equal { written } else { ExitCode::from(program::FAILED) }
        }
        Err(Failure::Unusable(message)) => program::fail(program, &message, program::UNUSABLE),
        Err(Failure::Transfer(message)) => program::fail(program, &message, program::FAILED),
    }
}

/// Facts for a person: four columns and `remarks`; with `wide`, all columns, `details` and the counters too.
pub(crate) fn text(facts: &Facts, wide: bool, details: &str, remarks: &str) -> String {
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
pub(crate) fn payload(file: Option<&Path>, seed: Seed, size: u64) -> Result<Payload, Failure> {
    match file {
        Some(file) => Payload::file(file).map_err(|error| Failure::about(file, &error)),
        None => Ok(Payload::seeded(seed, size)),
    }
}

/// The wire's packets are long enough for the family.
///
/// # Errors
/// If they are not.
pub(crate) fn check_family(ipv6: bool, mtu: u16) -> Result<(), Failure> {
    if ipv6 && mtu < LEAST_MTU_OF_IPV6 {
        return Err(Failure::Unusable(format!("IPv6 needs an MTU of {LEAST_MTU_OF_IPV6} bytes at least")));
    }
    Ok(())
}

/// Facts without runs. `own` are the options of this program that another run needs to be the same.
pub(crate) fn facts(command: &str, wire: &WireOptions, own: impl IntoIterator<Item = (&'static str, String)>) -> Facts {
    let all = own.into_iter().chain(wire.facts());
    let options: BTreeMap<String, String> = all.map(|(name, value)| (name.to_string(), value)).collect();
    let clock = if wire.real { Clock::Real } else { Clock::Virtual };
    Facts { command: command.into(), seed: wire.seed().0, clock, options, runs: Vec::new() }
}

/// A path as an option of a run.
pub(crate) fn named(path: Option<&PathBuf>) -> String {
    path.map_or(String::new(), |path| path.display().to_string())
}

/// What the ways are, each once.
pub(crate) fn each_once<M: Copy + PartialEq>(modes: &[M]) -> Vec<M> {
    let mut once = Vec::new();
    for mode in modes {
        if !once.contains(mode) {
            once.push(*mode);
        }
    }
    once
}

/// Files that a program writes of several ways: the last one's result, a capture and a timeline of each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outputs<'a, M> {
    /// What arrived.
    pub(crate) out: Option<&'a Path>,
    /// Captures, each in a file of its own where there are several.
    pub(crate) pcap: Option<&'a Path>,
    /// Timelines, likewise.
    pub(crate) trace: &'a TraceOptions,
    /// The ways.
    pub(crate) modes: &'a [M],
}

impl<M: fmt::Display> Outputs<'_, M> {
    /// They can be written, and none of them is another one, or one of those to be read.
    ///
    /// # Errors
    /// If one of them is of no use.
    pub(crate) fn check(&self, read: &[&Option<PathBuf>]) -> Result<(), Failure> {
        let traces = self.modes.iter().filter_map(|mode| self.path_of(self.trace.trace.as_deref(), mode));
        let captures = self.modes.iter().filter_map(|mode| self.path_of(self.pcap, mode));
        let each: Vec<PathBuf> = captures.chain(traces).collect();
        let read: Vec<&Path> = read.iter().filter_map(|path| path.as_deref()).collect();
        let written: Vec<&Path> = self.out.into_iter().chain(each.iter().map(PathBuf::as_path)).collect();
        files::check_outputs(&read, &written).map_err(Failure::Unusable)
    }

    /// The capture of one way, if there are to be any.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn capture(&self, mode: &M) -> Result<Option<Capture>, Failure> {
        let Some(path) = self.path_of(self.pcap, mode) else { return Ok(None) };
        let begun = File::create(&path).and_then(|file| Capture::new(BufWriter::new(file)));
        begun.map(Some).map_err(|error| Failure::about(&path, &error))
    }

    /// The timeline of one way, if there are to be any.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn trace(&self, mode: &M) -> Result<Option<TraceFile>, Failure> {
        self.trace.begin_for(mode, self.modes.len() > 1).map_err(Failure::Unusable)
    }

    fn path_of(&self, path: Option<&Path>, mode: &M) -> Option<PathBuf> {
        path.map(|path| if self.modes.len() > 1 { files::named_for(path, mode) } else { path.to_path_buf() })
    }
}

/// Ends a timeline, and says on standard error what it holds.
///
/// # Errors
/// If it could not be written.
pub(crate) fn end_trace(program: &str, trace: Option<TraceFile>) -> Result<(), Failure> {
    if let Some(trace) = trace {
        eprintln!("{program}: {}", trace.end().map_err(Failure::Unusable)?);
    }
    Ok(())
}

/// Shows how far one way has come, unless nobody wants to see it.
pub(crate) fn progress_bar(mode: &str, bytes: u64, quiet: bool) -> ProgressBar {
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
