//! Sends a file over QUIC through two emulated NICs, three ways, and shows what the offload saves.

use super::{self as loopback, Failure, Loopback, Outputs};
use crate::options::{self, WireOptions};
use crate::own_wires::OwnWires;
use crate::trace_options::TraceOptions;
use clap::Parser;
use nic_sim::NicConfig;
use offload_api::TlsSuite;
use offload_bench::facts::Facts;
use offload_bench::payload::Payload;
use offload_bench::quic::{Mode, QuicBulk};
use offload_bench::table;
use offload_testbed::bed::ClockKind;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

/// Sends a file over QUIC through two emulated NICs: with packets as they are, sealed and opened by the CPU, sealed and opened by
/// the NICs. Prints what each way cost; costs are nanoseconds of CPU time per byte.
///
/// Exit status: 0; 1 if what was sent did not arrive whole; 2 if an option is bad or a file cannot be used.
#[derive(Debug, Parser)]
#[command(name = "quic_loopback", version, allow_negative_numbers = true)]
pub struct QuicLoopback {
    /// What to send. Without it: seeded data
    file: Option<PathBuf>,
    /// How much to send without a file: 256MiB, 1GB, 4096
    #[arg(long, value_parser = options::bytes, default_value = "256MiB", conflicts_with = "file")]
    size: u64,
    /// Only these ways, comma-separated: quic-plain, quic-cpu, quic-nic
    #[arg(long, value_parser = options::choice::<Mode>(), value_delimiter = ',', default_values_t = Mode::ALL)]
    mode: Vec<Mode>,
    /// The cipher: aes128-gcm, aes256-gcm, chacha20-poly1305
    #[arg(long, value_enum, default_value = "aes128-gcm")]
    suite: Suite,
    /// Paths of the connection, over IPv4 and IPv6 in turn; with --own-wires each has a wire
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=8))]
    paths: u32,
    /// Ask for other keys after so many packets; the state machine allows it every three probe timeouts
    #[arg(long, value_name = "PACKETS", value_parser = clap::value_parser!(u32).range(1..))]
    key_update_every: Option<u32>,
    /// Capture what the server's NIC sends and receives (pcapng, TLS secrets inside). With several ways, one
    /// file each: its name gets the way's before the extension
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Over IPv6
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
    own_wires: OwnWires,
    #[command(flatten)]
    wire: WireOptions,
}

/// The ciphers.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Suite {
    #[value(name = "aes128-gcm")]
    Aes128Gcm,
    #[value(name = "aes256-gcm")]
    Aes256Gcm,
    #[value(name = "chacha20-poly1305")]
    ChaCha20Poly1305,
}

impl Suite {
    fn of_tls(self) -> TlsSuite {
        match self {
            Suite::Aes128Gcm => TlsSuite::Aes128Gcm,
            Suite::Aes256Gcm => TlsSuite::Aes256Gcm,
            Suite::ChaCha20Poly1305 => TlsSuite::ChaCha20Poly1305,
        }
    }
}

impl Loopback for QuicLoopback {
    fn run(&self, program: &str) -> ExitCode {
        loopback::finish(program, run(self), |facts| report(self, facts))
    }
}

fn run(options: &QuicLoopback) -> Result<Facts, Failure> {
    let payload = loopback::payload(options.file.as_deref(), options.wire.seed(), options.size)?;
    if options.wire.mtu < LEAST_MTU {
        return Err(Failure::Unusable(format!("QUIC needs an MTU of {LEAST_MTU} bytes at least")));
    }
    let modes = loopback::each_once(&options.mode);
    let outputs = Outputs { out: None, pcap: options.pcap.as_deref(), trace: &options.trace, modes: &modes };
    outputs.check(&[&options.file])?;
    let wires = options.own_wires.links(options.paths, &options.wire).map_err(Failure::Unusable)?;
    let own = [
        options.own_wires.fact(),
        ("file", loopback::named(options.file.as_ref())),
        ("suite", format!("{:?}", options.suite)),
        ("paths", options.paths.to_string()),
        ("key_update_every", options.key_update_every.map_or("never".into(), |packets| packets.to_string())),
        ("ipv6", options.ipv6.to_string()),
    ];
    let mut facts = loopback::facts(NAME, &options.wire, own);
    let failed = |mode: &Mode, error: &dyn core::fmt::Display| Failure::Transfer(format!("{mode}: {error}"));
    for mode in &modes {
        // Whatever runs first pays for memory and code that it finds unused: this does, and is not reported.
        let little = Payload::seeded(options.wire.seed(), payload.len().min(WARM_UP_BYTES));
        bulk(options, *mode, little).run().map_err(|error| failed(mode, &error))?;
    }
    for mode in &modes {
        let progress = loopback::progress_bar(&mode.to_string(), payload.len(), options.json);
        let bar = progress.clone();
        let trace = outputs.trace(mode)?;
        let bulk = QuicBulk {
            link: options.wire.link(),
            wires: wires.clone(),
            cuts: options.own_wires.cut.clone(),
            clock: if options.wire.real { ClockKind::Real } else { ClockKind::Virtual },
            capture: outputs.capture(mode)?,
            tracer: trace.as_ref().map(|trace| trace.tracer().clone()),
            progress: Some(Arc::new(move |bytes| bar.set_position(bytes))),
            ..bulk(options, *mode, payload.clone())
        };
        let run = bulk.run();
        progress.finish_and_clear();
        loopback::end_trace(NAME, trace)?;
        facts.runs.push(run.map_err(|error| failed(mode, &error))?);
    }
    Ok(facts)
}

fn bulk(options: &QuicLoopback, mode: Mode, payload: Payload) -> QuicBulk {
    let usual = QuicBulk::new(mode, payload);
    QuicBulk {
        suite: options.suite.of_tls(),
        paths: options.paths,
        key_update_every: options.key_update_every,
        seed: options.wire.seed(),
        nic: NicConfig { mtu: options.wire.mtu, ..usual.nic },
        ipv6: options.ipv6,
        ..usual
    }
}

fn report(options: &QuicLoopback, facts: &Facts) -> String {
    if options.json {
        return facts.to_json() + "\n";
    }
    let count = |name: &str| facts.runs.iter().filter_map(|run| run.counters.get(name)).sum::<u64>();
    let (device, software) = (count("QuicOpenedDevice"), count("QuicOpenedSw"));
    let nic_alone = facts.runs.iter().all(|run| run.mode == Mode::QuicNic.to_string());
    let opened = match nic_alone && device > 0 {
        true => format!("the NICs opened {device} packets, software {software}\n"),
        false => String::new(),
    };
    loopback::text(facts, options.wide, "", &(opened + table::noise(&facts.runs)))
}

const NAME: &str = "quic_loopback";
/// Enough to have seen everything once.
const WARM_UP_BYTES: u64 = 8 << 20;
/// RFC 9000 14: datagrams of 1,200 bytes, and IPv6's and UDP's headers.
const LEAST_MTU: u16 = 1248;
