//! The PDCP loopback: user packets of a mobile network in GTP-U, ciphered four ways, and the saving of the offload.

use clap::Parser;
use core::time::Duration;
use nic_sim::NicConfig;
use offload_bench::pdcp::{PdcpBulk, PdcpMode};
use offload_bench_tls::facts::Run;
use offload_bench_tls::payload::Payload;
use offload_bench_tls::table;
use offload_cli::options;
use offload_cli::own;
use offload_cli::run_options::RunOptions;
use offload_cli::scenario::{self, About, Failure, Made, Modes, OutputFiles, Scenario};
use pdcp::SnLen;
use pdcp::crypto::Algorithm;
use std::path::PathBuf;

/// Sends packets of a mobile network's users from host to host, as PDCP PDUs in GTP-U: with the null algorithms;
/// ciphered and authenticated by the CPU, by jobs of an accelerator, by the NICs. Prints the cost of each way in
/// nanoseconds of CPU time per byte.
///
/// Exit status: 0; 1 if an SDU arrived changed, twice or out of order, or was lost on a wire without loss; 2 if an
/// option is bad or a file cannot be used.
#[derive(Debug, Parser)]
#[command(name = "pdcp", version, allow_negative_numbers = true)]
pub struct PdcpLoopback {
    /// The file to send. Default: seeded data
    file: Option<PathBuf>,
    /// Bytes to send on each bearer without a file: 64MiB, 1GB, 4096
    #[arg(long, value_parser = options::some_bytes, default_value = "64MiB", conflicts_with = "file")]
    size: u64,
    /// Only these ways, comma-separated: pdcp-plain, pdcp-cpu, pdcp-jobs, pdcp-nic
    #[arg(long, value_parser = options::choice::<PdcpMode>(), value_delimiter = ',', default_values_t = PdcpMode::ALL)]
    mode: Vec<PdcpMode>,
    /// NEA and NIA 1 to 6: SNOW 3G, AES-128, ZUC-128, Snow 5G, AES-256, ZUC-256
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=6))]
    algorithm: u8,
    /// Cipher without integrity, which is optional for data bearers
    #[arg(long)]
    no_integrity: bool,
    /// Bits of a sequence number: 12 or 18
    #[arg(long, default_value_t = 18, value_parser = sn)]
    sn: u32,
    /// Time that a missing PDU delays later PDUs; at most half of all sequence numbers may pass meanwhile
    #[arg(long, value_name = "TIME", value_parser = options::time, default_value = "1ms")]
    t_reordering: Duration,
    /// Bytes of an SDU, such as an IP packet of a user
    #[arg(long, value_name = "SIZE", default_value = "1400", value_parser = options::size::<u16>(1..=9000))]
    sdu: u16,
    /// Concurrent bearers, each with keys of its own
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    bearers: u16,
    /// Queues of each NIC: a NIC that ciphers steers each bearer's PDUs to the bearer's queue, by port and TEID
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    queues: u16,
    /// Write the keys, for readers of a capture: TEID, direction, bearer, bits of a sequence number, algorithm, and the
    /// keys of ciphering and of integrity. The keys derive from the seed and protect nothing else
    #[arg(long, value_name = "FILE")]
    keys: Option<PathBuf>,
    /// GTP-U over IPv6
    #[arg(long)]
    ipv6: bool,
    #[command(flatten)]
    run: RunOptions,
}

fn sn(text: &str) -> Result<u32, String> {
    match text {
        "12" => Ok(12),
        "18" => Ok(18),
        _ => Err("sequence numbers have 12 or 18 bits".into()),
    }
}

impl Scenario for PdcpLoopback {
    fn about(&self) -> About<'_> {
        self.run.about(self.mode.len())
    }

    fn run(&self) -> Result<Made, Failure> {
        run(self)
    }
}

fn run(options: &PdcpLoopback) -> Result<Made, Failure> {
    scenario::check_family(options.ipv6, &options.run.wire)?;
    let payload = scenario::payload(options.file.as_deref(), options.run.wire.seed(), options.size)?;
    let most = bulk(options, PdcpMode::PdcpCpu, payload.clone()).most_sdu();
    // PDCP PDUs are not segmented here: RLC, which would do so, is not modelled.
    if options.sdu > most {
        return Err(Failure::Unusable(format!("--sdu {}: the MTU takes SDUs of {most} bytes", options.sdu)));
    }
    let read = options.file.iter().map(PathBuf::as_path).collect();
    let keys = options.keys.as_deref();
    let files = OutputFiles { read, keys, ..OutputFiles::default() };
    let modes = Modes::new(NAME, &options.run, &options.mode, files)?;
    let own = own!(options: algorithm, sn, sdu, bearers, queues, ipv6).into_iter().chain([
        ("file", scenario::named(options.file.as_ref())),
        ("integrity", (!options.no_integrity).to_string()),
        ("t_reordering_us", options.t_reordering.as_micros().to_string()),
    ]);
    if let Some(path) = keys {
        let lines = bulk(options, PdcpMode::PdcpCpu, payload.clone()).key_lines();
        std::fs::write(path, lines).map_err(|error| Failure::Unusable(format!("{}: {error}", path.display())))?;
    }
    for mode in modes.modes() {
        // The first run pays for memory and code that no run used before. This run takes that cost and is not reported.
        let little = Payload::seeded(options.run.wire.seed(), payload.len().min(WARM_UP_BYTES));
        bulk(options, *mode, little).run().map_err(|error| Failure::in_mode(mode, error))?;
    }
    let all = payload.len() * u64::from(options.bearers);
    let runs = modes.make(all, |mode, observers, _| {
        let bulk = PdcpBulk {
            link: options.run.wire.link(),
            clock: options.run.clock(),
            observers,
            ..bulk(options, mode, payload.clone())
        };
        bulk.run().map_err(|error| Failure::in_mode(mode, error))
    })?;
    let whole = runs.iter().all(|run| run.sha256_ok);
    let nic = bulk(options, PdcpMode::PdcpCpu, payload).nic;
    Ok(Made::new(options.run.facts(NAME, &nic, own), &runs, whole, report(&runs, options.run.common.wide)))
}

fn bulk(options: &PdcpLoopback, mode: PdcpMode, payload: Payload) -> PdcpBulk {
    let usual = PdcpBulk::new(mode, payload);
    PdcpBulk {
        algorithm: Algorithm::from_number(options.algorithm).unwrap_or(usual.algorithm),
        integrity: !options.no_integrity,
        sn: if options.sn == 12 { SnLen::Twelve } else { SnLen::Eighteen },
        reordering: options.t_reordering,
        sdu: options.sdu,
        bearers: options.bearers,
        seed: options.run.wire.seed(),
        nic: NicConfig { queues: options.queues, ..options.run.nic(usual.nic) },
        ipv6: options.ipv6,
        ..usual
    }
}

fn report(runs: &[Run], wide: bool) -> String {
    let lost = |run: &Run| run.counters.get("PdcpGivenUp").copied().unwrap_or(0);
    let given_up: u64 = runs.iter().map(lost).sum();
    let lossy = match given_up {
        0 => String::new(),
        _ => "What the wire lost is lost: sending again is RLC's work, which is not here.\n".into(),
    };
    scenario::text(runs, wide, "", &(lossy + table::noise(runs)))
}

const NAME: &str = "pdcp";
/// Size of the unreported first run, enough to touch all code and buffers.
const WARM_UP_BYTES: u64 = 4 << 20;
