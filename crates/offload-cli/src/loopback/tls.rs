//! Sends a file over TLS through two emulated NICs, three ways or four, and shows what the offload saves.

use super::{self as loopback, Common, Failure, Loopback, OutputFiles, Ways};
use crate::options;
use crate::tls_options::TlsOptions;
use clap::Parser;
use nic_sim::NicConfig;
use offload_bench_tls::bulk::{Bulk, BulkError, TlsWay};
use offload_bench_tls::facts::Facts;
use offload_bench_tls::payload::Payload;
use offload_bench_tls::table;
use std::path::PathBuf;
use std::process::ExitCode;

/// Sends a file over TLS through two emulated NICs: as plain TCP, with TLS on the CPU, with TLS on the NICs; if asked
/// for, with TLS by jobs of accelerators beside the CPUs.
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
    /// Only these modes, comma-separated: tcp, tls-cpu, tls-nic; tls-lookaside, by accelerators whose units have a latency of
    /// 60 us and a rate of 25 Gb/s
    #[arg(long, value_parser = options::choice::<TlsWay>(), value_delimiter = ',', default_values_t = [TlsWay::Tcp, TlsWay::Cpu, TlsWay::Nic])]
    mode: Vec<TlsWay>,
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
    #[command(flatten)]
    common: Common,
}

impl Loopback for TlsLoopback {
    fn run(&self, program: &str) -> ExitCode {
        let shown = |facts: &Facts| self.common.shown(facts, || report(self, facts));
        loopback::finish(program, run(self), shown, |run| run.sha256_ok)
    }
}

fn run(options: &TlsLoopback) -> Result<Facts, Failure> {
    let seed = options.common.wire.seed();
    let payload = loopback::payload(options.file.as_deref(), seed, options.size)?;
    options.tls.check().map_err(Failure::Unusable)?;
    loopback::check_family(options.ipv6, options.common.wire.mtu)?;
    let files = OutputFiles {
        read: options.file.iter().map(PathBuf::as_path).collect(),
        out: options.out.as_deref(),
        pcap: options.pcap.as_deref(),
        ..OutputFiles::default()
    };
    let ways = Ways::new(NAME, &options.common, &options.mode, files)?;
    let unreadable = |error| Failure::Unusable(format!("what is to be sent cannot be read: {error}"));
    let checksum = payload.checksum().map_err(unreadable)?;
    let own = [
        ("file", loopback::named(options.file.as_ref())),
        ("record_size", options.record_size.to_string()),
        ("ipv6", options.ipv6.to_string()),
    ];
    let mut facts = options.common.facts(NAME, own.into_iter().chain(options.tls.facts()));
    for mode in ways.modes() {
        warm_up(options, *mode, payload.len()).map_err(|error| loopback::failed(mode, error))?;
    }
    ways.make(payload.len(), &mut facts, |mode, way| {
        let (who, accelerator) = mode.parts();
        let bulk = Bulk {
            checksum: Some(checksum),
            record_size: usize::from(options.record_size),
            clock: options.common.clock(),
            seed,
            nic: nic(options),
            accelerator,
            agreement: options.tls.agreement(),
            padding: options.tls.padding.into(),
            link: options.common.wire.link(),
            ipv6: options.ipv6,
            capture: way.capture,
            tracer: way.tracer,
            out: way.out,
            progress: Some(way.progress),
            ..Bulk::new(who, payload.clone())
        };
        bulk.run().map_err(|error| loopback::failed(mode, error))
    })?;
    Ok(facts)
}

/// Whatever runs first pays for memory and code that it finds unused: this does, and is not reported.
fn warm_up(options: &TlsLoopback, mode: TlsWay, bytes: u64) -> Result<(), BulkError> {
    let (who, accelerator) = mode.parts();
    let bulk = Bulk {
        record_size: usize::from(options.record_size),
        nic: nic(options),
        accelerator,
        agreement: options.tls.agreement(),
        padding: options.tls.padding.into(),
        ipv6: options.ipv6,
        ..Bulk::new(who, Payload::seeded(options.common.wire.seed(), bytes.min(WARM_UP_BYTES)))
    };
    bulk.run().map(drop)
}

fn nic(options: &TlsLoopback) -> NicConfig {
    options.tls.nic(NicConfig { mtu: options.common.wire.mtu, ..NicConfig::default() })
}

fn report(options: &TlsLoopback, facts: &Facts) -> String {
    let runs = &facts.runs;
    let remarks = table::timeouts(runs) + &table::saved(runs) + table::noise(runs);
    loopback::text(facts, options.wide, "", &remarks)
}

const NAME: &str = "ktls_loopback";
/// Enough to have seen everything once.
const WARM_UP_BYTES: u64 = 8 << 20;
