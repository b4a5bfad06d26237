//! The TLS loopback: sends a file over TLS through two emulated NICs in three or four modes, and shows the saving of
//! the offload.

use crate::options;
use crate::run_options::RunOptions;
use crate::scenario::{self, About, Failure, Made, Modes, OutputFiles, Scenario};
use crate::tls_options::TlsOptions;
use clap::Parser;
use nic_sim::NicConfig;
use offload_bench_tls::bulk::{Bulk, TlsWay};
use offload_bench_tls::payload::Payload;
use offload_bench_tls::table;
use std::path::PathBuf;

/// Sends a file over TLS through two emulated NICs: as plain TCP, with TLS on the CPU, with TLS on the NICs; on
/// request, with TLS by jobs of accelerators beside the CPUs. Prints the cost of each mode for the hosts: nanoseconds
/// of CPU time per byte.
///
/// Exit status: 0; 1 if the data did not arrive whole; 2 if an option is bad or a file cannot be used.
#[derive(Debug, Parser)]
#[command(name = "ktls_loopback", version, allow_negative_numbers = true)]
pub struct TlsLoopback {
    /// The file to send. Default: seeded data
    file: Option<PathBuf>,
    /// Bytes to send without a file: 256MiB, 1GB, 4096
    #[arg(long, value_parser = options::some_bytes, default_value = "256MiB", conflicts_with = "file")]
    size: u64,
    /// Content bytes of a full TLS record
    #[arg(long, value_name = "SIZE", default_value = "16KiB", value_parser = options::size::<u16>(1..=16384))]
    record_size: u16,
    /// Only these modes, comma-separated: tcp, tls-cpu, tls-nic; tls-lookaside, by accelerators with units of 60 us
    /// latency and 25 Gb/s
    #[arg(long, value_parser = options::choice::<TlsWay>(), value_delimiter = ',', default_values_t = [TlsWay::Tcp, TlsWay::Cpu, TlsWay::Nic])]
    mode: Vec<TlsWay>,
    /// Write the received bytes of the last mode into this file
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    tls: TlsOptions,
    /// Use IPv6 instead of IPv4
    #[arg(long)]
    ipv6: bool,
    #[command(flatten)]
    run: RunOptions,
}

impl Scenario for TlsLoopback {
    fn about(&self) -> About<'_> {
        self.run.about(self.mode.len())
    }

    fn run(&self) -> Result<Made, Failure> {
        self.tls.check().map_err(Failure::Unusable)?;
        scenario::check_family(self.ipv6, &self.run.wire)?;
        let payload = scenario::payload(self.file.as_deref(), self.run.wire.seed(), self.size)?;
        let files = OutputFiles {
            read: self.file.iter().map(PathBuf::as_path).collect(),
            out: self.out.as_deref(),
            ..OutputFiles::default()
        };
        // Outputs are claimed before the checksum, which may take a while.
        let modes = Modes::new(NAME, &self.run, &self.mode, files)?;
        let checksum = scenario::checksum(&payload, &self.run)?;
        for mode in modes.modes() {
            // The first run pays for memory and code that no run used before. This run takes that cost and is not
            // reported.
            let little = Payload::seeded(self.run.wire.seed(), payload.len().min(WARM_UP_BYTES));
            self.bulk(*mode, little).run().map_err(|error| Failure::in_mode(mode, error))?;
        }
        let runs = modes.make(payload.len(), |mode, observers, out| {
            let bulk = Bulk {
                // The checksum is computed once, so that no mode's CPU time includes it.
                checksum: Some(checksum),
                clock: self.run.clock(),
                link: self.run.wire.link(),
                observers,
                out,
                ..self.bulk(mode, payload.clone())
            };
            bulk.run().map_err(|error| Failure::in_mode(mode, error))
        })?;
        let own = [
            ("file", scenario::named(self.file.as_ref())),
            ("record_size", self.record_size.to_string()),
            ("ipv6", self.ipv6.to_string()),
        ];
        let facts = self.run.facts(NAME, &self.nic(), own.into_iter().chain(self.tls.facts(&self.nic())));
        let remarks = table::timeouts(&runs) + &table::saved(&runs) + table::noise(&runs);
        let text = scenario::text(&runs, self.run.common.wide, "", &remarks);
        Ok(Made::new(facts, &runs, runs.iter().all(|run| run.sha256_ok), text))
    }
}

impl TlsLoopback {
    fn nic(&self) -> NicConfig {
        self.tls.nic(self.run.nic(NicConfig::default()))
    }

    fn bulk(&self, mode: TlsWay, payload: Payload) -> Bulk {
        let (mode, accelerator) = mode.parts();
        Bulk {
            record_size: usize::from(self.record_size),
            seed: self.run.wire.seed(),
            nic: self.nic(),
            accelerator,
            agreement: self.tls.agreement(),
            padding: self.tls.padding.into(),
            ipv6: self.ipv6,
            ..Bulk::new(mode, payload)
        }
    }
}

const NAME: &str = "ktls_loopback";
/// Size of the unreported first run, enough to touch all code and buffers.
const WARM_UP_BYTES: u64 = 8 << 20;
