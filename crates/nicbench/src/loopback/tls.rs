//! Sends a file over TLS through two emulated NICs, three ways, and shows what the offload saves.

use super::{self as loopback, Failure, Loopback, Outputs};
use crate::options::{self, WireOptions};
use crate::tls_options::TlsOptions;
use crate::trace_options::TraceOptions;
use clap::Parser;
use nic_sim::NicConfig;
use offload_bench::bulk::{Bulk, BulkError, Mode};
use offload_bench::facts::Facts;
use offload_bench::payload::Payload;
use offload_bench::table;
use offload_testbed::bed::ClockKind;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

/// Sends a file over TLS through two emulated NICs: as plain TCP, with TLS on the CPU, with TLS on the NICs.
/// Prints what each mode costs the hosts: nanoseconds of CPU time per byte.
///
/// Exit status: 0; 1 if what was sent did not arrive whole; 2 if an option is bad or a file cannot be used.
#[derive(Debug, Parser)]
#[command(name = "ktls_loopback", version, allow_negative_numbers = true)]
pub struct TlsLoopback {
    /// The file to send. Without it: seeded data
    file: Option<PathBuf>,
    /// How many bytes to send without a file: 256MiB, 1GB, 4096
    #[arg(long, value_parser = options::bytes, default_value = "256MiB", conflicts_with = "file")]
    size: u64,
    /// Content bytes of a full TLS record
    #[arg(long, value_name = "SIZE", default_value = "16KiB", value_parser = options::size::<u16>(1..=16384))]
    record_size: u16,
    /// Only these modes, comma-separated: tcp, tls-cpu, tls-nic
    #[arg(long, value_parser = options::choice::<Mode>(), value_delimiter = ',', default_values_t = Mode::ALL)]
    mode: Vec<Mode>,
    /// Capture what the server's NIC sends and receives (pcapng, TLS secrets inside). With several ways, one
    /// file each: its name gets the mode's before the extension
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Write what arrived into this file (of the last mode)
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    tls: TlsOptions,
    /// Use IPv6 in place of IPv4
    #[arg(long)]
    ipv6: bool,
    /// Show all columns (copy, framing and crypto, the devices, DMA) and the counters that moved
    #[arg(long, conflicts_with = "json")]
    wide: bool,
    /// Print the facts as one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    trace: TraceOptions,
    #[command(flatten)]
    wire: WireOptions,
}

impl Loopback for TlsLoopback {
    fn run(&self, program: &str) -> ExitCode {
        loopback::finish(program, run(self), |facts| report(self, facts))
    }
}

fn run(options: &TlsLoopback) -> Result<Facts, Failure> {
    let seed = options.wire.seed();
    let payload = loopback::payload(options.file.as_deref(), seed, options.size)?;
    options.tls.check().map_err(Failure::Unusable)?;
    loopback::check_family(options.ipv6, options.wire.mtu)?;
    let modes = loopback::each_once(&options.mode);
    let outputs =
        Outputs { out: options.out.as_deref(), pcap: options.pcap.as_deref(), trace: &options.trace, modes: &modes };
    outputs.check(&[&options.file])?;
    let unreadable = |error| Failure::Unusable(format!("what is to be sent cannot be read: {error}"));
    let checksum = payload.checksum().map_err(unreadable)?;
    let own = [
        ("file", loopback::named(options.file.as_ref())),
        ("record_size", options.record_size.to_string()),
        ("ipv6", options.ipv6.to_string()),
    ];
    let mut facts = loopback::facts(NAME, &options.wire, own.into_iter().chain(options.tls.facts()));
    for mode in &modes {
        warm_up(options, *mode, payload.len()).map_err(|error| Failure::Transfer(format!("{mode}: {error}")))?;
    }
    for mode in &modes {
        let progress = loopback::progress_bar(&mode.to_string(), payload.len(), options.json);
        let bar = progress.clone();
        let trace = outputs.trace(mode)?;
        let bulk = Bulk {
            checksum: Some(checksum),
            record_size: usize::from(options.record_size),
            clock: if options.wire.real { ClockKind::Real } else { ClockKind::Virtual },
            seed,
            nic: nic(options),
            agreement: options.tls.agreement(),
            padding: options.tls.padding.into(),
            link: options.wire.link(),
            ipv6: options.ipv6,
            capture: outputs.capture(mode)?,
            tracer: trace.as_ref().map(|trace| trace.tracer().clone()),
            out: if Some(mode) == modes.last() { options.out.clone() } else { None },
            progress: Some(Arc::new(move |bytes| bar.set_position(bytes))),
            ..Bulk::new(*mode, payload.clone())
        };
        let run = bulk.run();
        progress.finish_and_clear();
        loopback::end_trace(NAME, trace)?;
        facts.runs.push(run.map_err(|error: BulkError| Failure::Transfer(format!("{mode}: {error}")))?);
    }
    Ok(facts)
}

/// Whatever runs first pays for memory and code that it finds unused: this does, and is not reported.
fn warm_up(options: &TlsLoopback, mode: Mode, bytes: u64) -> Result<(), BulkError> {
    let bulk = Bulk {
        record_size: usize::from(options.record_size),
        nic: nic(options),
        agreement: options.tls.agreement(),
        padding: options.tls.padding.into(),
        ipv6: options.ipv6,
        ..Bulk::new(mode, Payload::seeded(options.wire.seed(), bytes.min(WARM_UP_BYTES)))
    };
    bulk.run().map(drop)
}

fn nic(options: &TlsLoopback) -> NicConfig {
    options.tls.nic(NicConfig { mtu: options.wire.mtu, ..NicConfig::default() })
}

fn report(options: &TlsLoopback, facts: &Facts) -> String {
    if options.json {
        return facts.to_json() + "\n";
    }
    let runs = &facts.runs;
    let remarks = table::timeouts(runs) + &table::saved(runs) + table::noise(runs);
    loopback::text(facts, options.wide, "", &remarks)
}

const NAME: &str = "ktls_loopback";
/// Enough to have seen everything once.
const WARM_UP_BYTES: u64 = 8 << 20;
