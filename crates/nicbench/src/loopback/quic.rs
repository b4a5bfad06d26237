//! Sends a file over QUIC through two emulated NICs, three ways, and shows what the offload saves.

use clap::Parser;
use core::time::Duration;
use nic_sim::NicConfig;
use offload_bench::quic::{Mode, QuicBulk};
use offload_bench_tls::facts::Facts;
use offload_bench_tls::payload::Payload;
use offload_bench_tls::table;
use offload_cli::loopback::{self, Common, Failure, Loopback, OutputFiles, Ways};
use offload_cli::options;
use offload_cli::own_wires::OwnWires;
use offload_cli::quic_suite::QuicSuite;
use std::path::PathBuf;
use std::process::ExitCode;

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
    /// The cipher of packets
    #[arg(long, value_enum, default_value_t = QuicSuite::Aes128Gcm)]
    suite: QuicSuite,
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
    /// Write the events of both ends (qlog) into a folder that is there: quic-nic-client-*.sqlog and the like
    #[arg(long, value_name = "FOLDER")]
    qlog: Option<PathBuf>,
    /// How long to send before anything is counted: 500ms. For slow start over a long path
    #[arg(long, value_parser = options::time, value_name = "TIME", default_value = "0s")]
    omit: Duration,
    /// Over IPv6
    #[arg(long)]
    ipv6: bool,
    /// Show all columns (copy, framing and crypto, the devices, DMA) and the counters that moved
    #[arg(long, conflicts_with = "json")]
    wide: bool,
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    own_wires: OwnWires,
}

impl Loopback for QuicLoopback {
    fn run(&self, program: &str) -> ExitCode {
        let shown = |facts: &Facts| self.common.shown(facts, || report(self, facts));
        loopback::finish(program, run(self), shown, |run| run.sha256_ok)
    }
}

fn run(options: &QuicLoopback) -> Result<Facts, Failure> {
    let payload = loopback::payload(options.file.as_deref(), options.common.wire.seed(), options.size)?;
    if options.common.wire.mtu < LEAST_MTU {
        return Err(Failure::Unusable(format!("QUIC needs an MTU of {LEAST_MTU} bytes at least")));
    }
    let read = options.file.iter().map(PathBuf::as_path).collect();
    let files = OutputFiles { read, pcap: options.pcap.as_deref(), ..OutputFiles::default() };
    let ways = Ways::new(NAME, &options.common, &options.mode, files)?;
    if let Some(folder) = options.qlog.as_ref().filter(|folder| !folder.is_dir()) {
        return Err(Failure::Unusable(format!("{} is no folder: make it, for --qlog", folder.display())));
    }
    let wires = options.own_wires.links(options.paths, &options.common.wire).map_err(Failure::Unusable)?;
    let own = [
        options.own_wires.fact(),
        ("file", loopback::named(options.file.as_ref())),
        ("suite", format!("{:?}", options.suite)),
        ("paths", options.paths.to_string()),
        ("key_update_every", options.key_update_every.map_or("never".into(), |packets| packets.to_string())),
        ("omit_ns", options.omit.as_nanos().to_string()),
        ("ipv6", options.ipv6.to_string()),
    ];
    let mut facts = options.common.facts(NAME, own);
    for mode in ways.modes() {
        // Whatever runs first pays for memory and code that it finds unused: this does, and is not reported.
        let little = Payload::seeded(options.common.wire.seed(), payload.len().min(WARM_UP_BYTES));
        bulk(options, *mode, little).run().map_err(|error| loopback::failed(mode, error))?;
    }
    ways.make(payload.len(), &mut facts, |mode, way| {
        let bulk = QuicBulk {
            link: options.common.wire.link(),
            wires: wires.clone(),
            omit: options.omit,
            qlog: options.qlog.clone(),
            cuts: options.own_wires.cut.clone(),
            clock: options.common.clock(),
            capture: way.capture,
            tracer: way.tracer,
            progress: Some(way.progress),
            ..bulk(options, mode, payload.clone())
        };
        bulk.run().map_err(|error| loopback::failed(mode, error))
    })?;
    Ok(facts)
}

fn bulk(options: &QuicLoopback, mode: Mode, payload: Payload) -> QuicBulk {
    let usual = QuicBulk::new(mode, payload);
    QuicBulk {
        suite: options.suite.into(),
        paths: options.paths,
        key_update_every: options.key_update_every,
        seed: options.common.wire.seed(),
        nic: NicConfig { mtu: options.common.wire.mtu, ..usual.nic },
        ipv6: options.ipv6,
        ..usual
    }
}

fn report(options: &QuicLoopback, facts: &Facts) -> String {
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
