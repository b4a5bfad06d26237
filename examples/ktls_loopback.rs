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
use offload_bench::table;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use testbed::Capture;
use testbed::bed::ClockKind;

/// Sends a file over TLS through two emulated NICs: as plain TCP, with TLS on the CPU, with TLS on the NICs.
/// Prints what each way cost, a table and the counters that moved; costs are nanoseconds of CPU time per byte.
#[derive(Debug, Parser)]
#[command(version)]
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
    /// Print the facts as one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    wire: WireOptions,
}

fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(facts) => {
            report(&options, &facts);
            let all_equal = facts.runs.iter().all(|run| run.sha256_ok);
            if all_equal { ExitCode::SUCCESS } else { ExitCode::from(CHECKSUM_DIFFERS) }
        }
        Err(message) => {
            eprintln!("ktls_loopback: {message}");
            ExitCode::from(CANNOT_RUN)
        }
    }
}

fn run(options: &Options) -> Result<Facts, String> {
    let seed = Seed(options.wire.seed);
    let payload = match &options.file {
        Some(file) => Payload::file(file).map_err(|error| format!("{}: {error}", file.display()))?,
        None => Payload::seeded(seed, options.size),
    };
    let checksum = payload.checksum().map_err(|error| format!("what is to be sent cannot be read: {error}"))?;
    let mut facts = Facts {
        command: "ktls_loopback".into(),
        seed: seed.0,
        clock: if options.wire.real { Clock::Real } else { Clock::Virtual },
        runs: Vec::new(),
    };
    for mode in &options.mode {
        let progress = progress_bar(*mode, payload.len(), options.json);
        let bar = progress.clone();
        let bulk = Bulk {
            checksum: Some(checksum),
            record_size: usize::from(options.record_size),
            clock: if options.wire.real { ClockKind::Real } else { ClockKind::Virtual },
            seed,
            nic: NicConfig { mtu: options.wire.mtu, ..NicConfig::default() },
            link: options.wire.link(),
            capture: capture(options, *mode)?,
            out: options.out.clone(),
            progress: Some(Arc::new(move |bytes| bar.set_position(bytes))),
            ..Bulk::new(*mode, payload.clone())
        };
        let run = bulk.run().map_err(|error: BulkError| format!("{mode}: {error}"))?;
        progress.finish_and_clear();
        facts.runs.push(run);
    }
    Ok(facts)
}

fn report(options: &Options, facts: &Facts) {
    if options.json {
        println!("{}", facts.to_json());
        return;
    }
    println!("{}", table::runs(&facts.runs));
    println!("{}", table::counters(&facts.runs));
    print!("{}", table::saved(&facts.runs));
    for run in facts.runs.iter().filter(|run| !run.sha256_ok) {
        println!("{}: what arrived is NOT what was sent", run.mode);
    }
}

fn capture(options: &Options, mode: Mode) -> Result<Option<Capture>, String> {
    let Some(path) = &options.pcap else { return Ok(None) };
    let path = if options.mode.len() > 1 { named_for(path, mode) } else { path.clone() };
    let begun = File::create(&path).and_then(|file| Capture::new(BufWriter::new(file)));
    begun.map(Some).map_err(|error| format!("{}: {error}", path.display()))
}

/// `dir/name.pcapng` for one way: `dir/name-tls-nic.pcapng`.
fn named_for(path: &Path, mode: Mode) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let extension = path.extension().map(|extension| format!(".{}", extension.to_string_lossy())).unwrap_or_default();
    path.with_file_name(format!("{stem}-{mode}{extension}"))
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

/// What arrived differs from what was sent.
const CHECKSUM_DIFFERS: u8 = 1;
/// A bad option, an unreadable file, or a run that could not be made.
const CANNOT_RUN: u8 = 2;
