//! Sends a file over TLS through two emulated NICs, three ways, and shows what the offload saves.
//!
//! `cargo run --release --example ktls_loopback -- [FILE]`

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use nic_sim::NicConfig;
use offload_base::Seed;
use offload_bench::bulk::{Bulk, BulkError, Mode};
use offload_bench::facts::{Clock, Facts};
use offload_bench::options::{self, WireOptions};
use offload_bench::payload::Payload;
use offload_bench::{program, table};
use offload_examples::files::{check_outputs, named_for};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use testbed::Capture;
use testbed::bed::ClockKind;

/// Sends a file over TLS through two emulated NICs: as plain TCP, with TLS on the CPU, with TLS on the NICs.
/// Prints what each way cost, a table and the counters that moved; costs are nanoseconds of CPU time per byte.
///
/// Exit status: 0; 1 if what was sent did not arrive whole; 2 if an option is bad or a file cannot be used.
#[derive(Debug, Parser)]
#[command(name = "ktls_loopback", version, allow_negative_numbers = true)]
struct Options {
    /// What to send. Without it: seeded data
    file: Option<PathBuf>,
    /// How much to send without a file: 256MiB, 1GB, 4096
    #[arg(long, value_parser = options::bytes, default_value = "256MiB", conflicts_with = "file")]
    size: u64,
    /// Content bytes of a full TLS record
    #[arg(long, value_name = "BYTES", default_value_t = 16384, value_parser = clap::value_parser!(u16).range(1..=16384))]
    record_size: u16,
    /// Only these ways, comma-separated: tcp, tls-cpu, tls-nic
    #[arg(long, value_delimiter = ',', default_values_t = Mode::ALL)]
    mode: Vec<Mode>,
    /// Capture what the server's NIC sends and receives (pcapng, TLS secrets inside). With several ways, one
    /// file each: its name gets the way's before the extension
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Keep what arrived (the last way's)
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Over IPv6
    #[arg(long)]
    ipv6: bool,
    /// Print the facts as one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    wire: WireOptions,
}

fn main() -> ExitCode {
    let options: Options = match program::options(NAME) {
        Ok(options) => options,
        Err(status) => return status,
    };
    match run(&options) {
        Ok(facts) => {
            let written = program::write_out(NAME, &report(&options, &facts));
            let all_equal = facts.runs.iter().all(|run| run.sha256_ok);
            if all_equal { written } else { ExitCode::from(program::FAILED) }
        }
        Err(Failure::Unusable(message)) => program::fail(NAME, &message, program::UNUSABLE),
        Err(Failure::Transfer(message)) => program::fail(NAME, &message, program::FAILED),
    }
}

/// Why there is nothing to report.
enum Failure {
    /// An option or a file is of no use.
    Unusable(String),
    /// The transfer came to nothing.
    Transfer(String),
}

fn run(options: &Options) -> Result<Facts, Failure> {
    let seed = Seed(options.wire.seed);
    let payload = match &options.file {
        Some(file) => Payload::file(file).map_err(|error| about(file, &error))?,
        None => Payload::seeded(seed, options.size),
    };
    let modes = modes(options);
    check_files(options, &modes)?;
    if options.ipv6 && options.wire.mtu < LEAST_MTU_OF_IPV6 {
        return Err(Failure::Unusable(format!("IPv6 needs an MTU of {LEAST_MTU_OF_IPV6} bytes at least")));
    }
    let unreadable = |error| Failure::Unusable(format!("what is to be sent cannot be read: {error}"));
    let checksum = payload.checksum().map_err(unreadable)?;
    let mut facts = Facts {
        command: "ktls_loopback".into(),
        seed: seed.0,
        clock: if options.wire.real { Clock::Real } else { Clock::Virtual },
        options: facts_of(options),
        runs: Vec::new(),
    };
    for mode in &modes {
        let progress = progress_bar(*mode, payload.len(), options.json);
        let bar = progress.clone();
        let bulk = Bulk {
            checksum: Some(checksum),
            record_size: usize::from(options.record_size),
            clock: if options.wire.real { ClockKind::Real } else { ClockKind::Virtual },
            seed,
            nic: NicConfig { mtu: options.wire.mtu, ..NicConfig::default() },
            link: options.wire.link(),
            ipv6: options.ipv6,
            capture: capture(options, &modes, *mode)?,
            out: if Some(mode) == modes.last() { options.out.clone() } else { None },
            progress: Some(Arc::new(move |bytes| bar.set_position(bytes))),
            ..Bulk::new(*mode, payload.clone())
        };
        let run = bulk.run();
        progress.finish_and_clear();
        facts.runs.push(run.map_err(|error: BulkError| Failure::Transfer(format!("{mode}: {error}")))?);
    }
    Ok(facts)
}

fn report(options: &Options, facts: &Facts) -> String {
    if options.json {
        return facts.to_json() + "\n";
    }
    let runs = &facts.runs;
    let mut text = format!("{}\n{}\n{}", table::runs(runs), table::counters(runs), table::saved(runs));
    for run in runs.iter().filter(|run| !run.sha256_ok) {
        text += &format!("{}: what arrived is NOT what was sent\n", run.mode);
    }
    text
}

/// The options that another run needs to be the same.
fn facts_of(options: &Options) -> BTreeMap<String, String> {
    let own = [
        ("file", options.file.as_ref().map_or(String::new(), |file| file.display().to_string())),
        ("record_size", options.record_size.to_string()),
        ("ipv6", options.ipv6.to_string()),
    ];
    own.into_iter().chain(options.wire.facts()).map(|(name, value)| (name.to_string(), value)).collect()
}

/// The ways, each once.
fn modes(options: &Options) -> Vec<Mode> {
    let mut modes = Vec::new();
    for mode in &options.mode {
        if !modes.contains(mode) {
            modes.push(*mode);
        }
    }
    modes
}

/// Files to write can be written, and none of them is another one, or the one to be sent.
fn check_files(options: &Options, modes: &[Mode]) -> Result<(), Failure> {
    let captures: Vec<PathBuf> = modes.iter().filter_map(|mode| capture_path(options, modes, *mode)).collect();
    let read: Vec<&Path> = options.file.iter().map(PathBuf::as_path).collect();
    let written: Vec<&Path> = options.out.iter().chain(&captures).map(PathBuf::as_path).collect();
    check_outputs(&read, &written).map_err(Failure::Unusable)
}

fn about(path: &Path, error: &std::io::Error) -> Failure {
    Failure::Unusable(format!("{}: {error}", path.display()))
}

fn capture(options: &Options, modes: &[Mode], mode: Mode) -> Result<Option<Capture>, Failure> {
    let Some(path) = capture_path(options, modes, mode) else { return Ok(None) };
    let begun = File::create(&path).and_then(|file| Capture::new(BufWriter::new(file)));
    begun.map(Some).map_err(|error| about(&path, &error))
}

fn capture_path(options: &Options, modes: &[Mode], mode: Mode) -> Option<PathBuf> {
    options.pcap.as_ref().map(|path| if modes.len() > 1 { named_for(path, mode) } else { path.clone() })
}

fn progress_bar(mode: Mode, bytes: u64, quiet: bool) -> ProgressBar {
    if quiet {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{prefix:8} {wide_bar} {bytes}/{total_bytes} {eta}");
    let bar = ProgressBar::new(bytes).with_prefix(mode.name());
    if let Ok(style) = style {
        bar.set_style(style);
    }
    bar
}

const NAME: &str = "ktls_loopback";
/// RFC 8200 5.
const LEAST_MTU_OF_IPV6: u16 = 1280;
