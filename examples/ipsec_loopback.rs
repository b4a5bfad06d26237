//! Sends a file over TCP through two emulated NICs, plain and under ESP, and shows what ESP costs.
//!
//! `cargo run --release --example ipsec_loopback -- [FILE]`

use clap::Parser;
use core::fmt;
use core::net::IpAddr;
use indicatif::{ProgressBar, ProgressStyle};
use ipsec::KeyFile;
use nic_sim::NicConfig;
use offload_base::Seed;
use offload_bench::bulk::{Bulk, BulkError, LayerOfHost, Mode as Stream};
use offload_bench::facts::{Clock, Facts};
use offload_bench::ipsec::EspMode as Mode;
use offload_bench::options::{self, WireOptions};
use offload_bench::payload::Payload;
use offload_bench::{program, table};
use offload_examples::files::{check_outputs, named_for};
use offload_examples::keys;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use testbed::Capture;
use testbed::bed::ClockKind;

/// Sends a file over TCP through two emulated NICs: plain, and under ESP: by the hosts, by the NICs under headers of
/// the hosts (crypto offload), and by the NICs alone (packet offload).
/// Prints what each way cost, tables and the counters that moved.
///
/// Exit status: 0; 1 if what was sent did not arrive whole; 2 if an option is bad or a file cannot be used.
#[derive(Debug, Parser)]
#[command(name = "ipsec_loopback", version, allow_negative_numbers = true)]
struct Options {
    /// What to send. Without it: seeded data
    file: Option<PathBuf>,
    /// How much to send without a file: 256MiB, 1GB, 4096
    #[arg(long, value_parser = options::bytes, default_value = "256MiB", conflicts_with = "file")]
    size: u64,
    /// Only these ways, comma-separated: plain, esp-cpu, esp-crypto, esp-packet
    #[arg(long, value_delimiter = ',', default_values_t = Mode::ALL)]
    mode: Vec<Mode>,
    /// SAs and policies of the server, 10.0.0.1, in words of `ip xfrm`; the client, 10.0.0.2, gets the same mirrored.
    /// Without it: AES-128-GCM in transport mode, extended sequence numbers, keys from the seed
    #[arg(long, value_name = "FILE")]
    keys: Option<PathBuf>,
    /// Capture what the server's NIC sends and receives (pcapng). With several ways, one file each: its name gets the
    /// way's before the extension
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
    let keys = match &options.keys {
        Some(path) => keys::read(path, &addresses(SERVER)).map_err(Failure::Unusable)?,
        None => usual_keys(seed).parse().map_err(|error| Failure::Unusable(format!("the usual keys: {error}")))?,
    };
    let unreadable = |error| Failure::Unusable(format!("what is to be sent cannot be read: {error}"));
    let checksum = payload.checksum().map_err(unreadable)?;
    let mut facts = Facts {
        command: NAME.into(),
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
            clock: if options.wire.real { ClockKind::Real } else { ClockKind::Virtual },
            seed,
            nic: NicConfig { mtu: options.wire.mtu, ..NicConfig::default() },
            link: options.wire.link(),
            layer: mode.offload().map(|kind| layer(keys.clone().offloaded(kind))),
            capture: capture(options, &modes, *mode)?,
            out: if Some(mode) == modes.last() { options.out.clone() } else { None },
            progress: Some(Arc::new(move |bytes| bar.set_position(bytes))),
            ..Bulk::new(Stream::Tcp, payload.clone())
        };
        let run = bulk.run();
        progress.finish_and_clear();
        let mut run = run.map_err(|error: BulkError| Failure::Transfer(format!("{mode}: {error}")))?;
        run.mode = mode.to_string();
        facts.runs.push(run);
    }
    Ok(facts)
}

/// IPsec around the driver of each host.
fn layer(keys: KeyFile) -> LayerOfHost {
    let mirrored = keys.mirrored();
    Arc::new(move |host, driver| keys::tried(if host == SERVER { &keys } else { &mirrored }, driver, &addresses(host)))
}

/// The addresses of a host.
fn addresses(host: usize) -> [IpAddr; 2] {
    let number = host as u8 + 1;
    [[10, 0, 0, number].into(), [0xfd00, 0, 0, 0, 0, 0, 0, number.into()].into()]
}

/// An SA each way, and policies that want everything protected by them.
fn usual_keys(seed: Seed) -> String {
    let mut text = String::new();
    for (source, destination, spi, direction) in
        [("10.0.0.1", "10.0.0.2", 0x1001, "out"), ("10.0.0.2", "10.0.0.1", 0x1002, "in")]
    {
        let mut key = [0; 20];
        seed.stream(&format!("key from {source}")).fill(&mut key);
        let key: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        text += &format!(
            "state add src {source} dst {destination} proto esp spi {spi:#x} reqid 1 mode transport\n \
             replay-window 256 flag esn aead rfc4106(gcm(aes)) 0x{key} 128\n\
             policy add src {source} dst {destination} dir {direction} tmpl proto esp reqid 1 mode transport\n"
        );
    }
    text
}

fn report(options: &Options, facts: &Facts) -> String {
    if options.json {
        return facts.to_json() + "\n";
    }
    let runs = &facts.runs;
    let mut text = format!("{}\n{}\n{}", table::runs(runs), table::per_packet(runs), table::counters(runs));
    for run in runs.iter().filter(|run| !run.sha256_ok) {
        text += &format!("{}: what arrived is NOT what was sent\n", run.mode);
    }
    text
}

/// The options that another run needs to be the same.
fn facts_of(options: &Options) -> BTreeMap<String, String> {
    let name = |path: &Option<PathBuf>| path.as_ref().map_or(String::new(), |path| path.display().to_string());
    let own = [("file", name(&options.file)), ("keys", name(&options.keys))];
    own.into_iter().chain(options.wire.facts()).map(|(name, value)| (name.to_string(), value)).collect()
}

fn about(path: &Path, error: &dyn fmt::Display) -> Failure {
    Failure::Unusable(format!("{}: {error}", path.display()))
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

/// Files to write can be written, and none of them is another one, or one to be read.
fn check_files(options: &Options, modes: &[Mode]) -> Result<(), Failure> {
    let captures: Vec<PathBuf> = modes.iter().filter_map(|mode| capture_path(options, modes, *mode)).collect();
    let read: Vec<&Path> = options.file.iter().chain(&options.keys).map(PathBuf::as_path).collect();
    let written: Vec<&Path> = options.out.iter().chain(&captures).map(PathBuf::as_path).collect();
    check_outputs(&read, &written).map_err(Failure::Unusable)
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
    let bar = ProgressBar::new(bytes).with_prefix(mode.to_string());
    if let Ok(style) = ProgressStyle::with_template("{prefix:10} {wide_bar} {bytes}/{total_bytes} {eta}") {
        bar.set_style(style);
    }
    bar
}

const NAME: &str = "ipsec_loopback";
const SERVER: usize = 0;
