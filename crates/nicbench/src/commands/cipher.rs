//! `nicbench cipher`.

use clap::Args;
use offload_bench::cipher::{Cipher, CipherLanes, Packets, table};
use offload_bench_tls::facts::{Facts, RunClock};
use offload_cli::options;
use offload_cli::output::OutputOptions;
use offload_cli::scenario::{self, About, Failure, Made, Scenario};

/// The ciphers of 5G beside AES-GCM on one core of this machine, by length of a packet and packets side by side
#[derive(Args, Debug)]
#[command(allow_negative_numbers = true)]
pub(crate) struct CipherOptions {
    /// Ciphers, comma-separated. Default: all of them
    #[arg(long, value_parser = options::choice::<Cipher>(), value_delimiter = ',')]
    cipher: Vec<Cipher>,
    /// Instruction sets of the lanes, comma-separated
    #[arg(long, value_parser = options::choice::<CipherLanes>(), value_delimiter = ',', default_value = "best")]
    lanes: Vec<CipherLanes>,
    /// Bytes of a packet, comma-separated
    #[arg(long, value_name = "SIZE", value_delimiter = ',', default_value = "64,1464", value_parser = options::size::<u32>(1..=1 << 20))]
    size: Vec<u32>,
    /// Packets processed together, each with a key of its own, comma-separated
    #[arg(long, value_delimiter = ',', default_value = "1,32", value_parser = clap::value_parser!(u16).range(1..=4096))]
    in_flight: Vec<u16>,
    /// Bytes processed by each row
    #[arg(long, value_parser = options::bytes, default_value = "16MiB")]
    bytes: u64,
    #[command(flatten)]
    output: OutputOptions,
}

impl Scenario for CipherOptions {
    fn about(&self) -> About<'_> {
        // The rows measure the CPU, so they follow the machine's clock.
        About { output: &self.output, runs: self.rows().len(), is_real: true }
    }

    fn run(&self) -> Result<Made, Failure> {
        // All packets of a row are in memory at once, so a typing error could exhaust it.
        if let Some(rows) = self.rows().iter().find(|rows| rows.size * rows.in_flight > MEMORY_MAX) {
            return Err(Failure::Unusable(format!(
                "{} packets of {} bytes together are more than 1 GiB",
                rows.in_flight, rows.size
            )));
        }
        let runs = self.rows().iter().map(Packets::run).collect::<Result<Vec<_>, _>>();
        let runs = runs.map_err(|error| error.to_string())?;
        let whole = true;
        Ok(Made::new(
            Facts { clock: RunClock::Real, ..scenario::facts("cipher", 0, [("bytes", self.bytes.to_string())]) },
            &runs,
            whole,
            table(&runs),
        ))
    }
}

impl CipherOptions {
    fn rows(&self) -> Vec<Packets> {
        let ciphers = if self.cipher.is_empty() { &Cipher::ALL[..] } else { &self.cipher };
        let mut rows = Vec::new();
        for cipher in ciphers {
            for lanes in &self.lanes {
                for size in &self.size {
                    rows.extend(self.in_flight.iter().map(|in_flight| Packets {
                        cipher: *cipher,
                        lanes: *lanes,
                        size: *size as usize,
                        in_flight: usize::from(*in_flight),
                        bytes: self.bytes,
                    }));
                }
            }
        }
        rows
    }
}

/// Limit for the bytes of packets that are processed together.
const MEMORY_MAX: usize = 1 << 30;
