//! `nicbench cipher`.

use super::runs::{Made, value};
use clap::Args;
use offload_bench::cipher::{Cipher, Lanes, Packets, table};
use offload_bench_tls::facts::{Clock, Facts};
use offload_cli::options;

/// The ciphers of 5G beside AES-GCM on one core of this machine, by length of a packet and packets side by side
#[derive(Args, Debug)]
#[command(allow_negative_numbers = true)]
pub(crate) struct CipherOptions {
    /// What is done, comma-separated. Default: all of them
    #[arg(long, value_parser = options::choice::<Cipher>(), value_delimiter = ',')]
    cipher: Vec<Cipher>,
    /// Instructions that lanes are made of, comma-separated
    #[arg(long, value_parser = options::choice::<Lanes>(), value_delimiter = ',', default_value = "best")]
    lanes: Vec<Lanes>,
    /// Bytes of a packet, comma-separated
    #[arg(long, value_name = "SIZE", value_delimiter = ',', default_value = "64,1464", value_parser = options::size::<u32>(1..=1 << 20))]
    size: Vec<u32>,
    /// Packets that are there together, each with a key of its own, comma-separated
    #[arg(long, value_delimiter = ',', default_value = "1,32", value_parser = clap::value_parser!(u16).range(1..=4096))]
    in_flight: Vec<u16>,
    /// Bytes that each row works on
    #[arg(long, value_parser = options::bytes, default_value = "16MiB")]
    bytes: u64,
    /// Print the facts as one JSON object
    #[arg(long)]
    pub json: bool,
}

impl CipherOptions {
    pub(crate) fn run(&self) -> Result<Made, String> {
        if let Some(rows) = self.rows().iter().find(|rows| rows.size * rows.in_flight > MEMORY_MAX) {
            return Err(format!("{} packets of {} bytes together are more than 1 GiB", rows.in_flight, rows.size));
        }
        let runs = self.rows().iter().map(Packets::run).collect::<Result<Vec<_>, _>>();
        let runs = runs.map_err(|error| error.to_string())?;
        let facts = Facts {
            command: "cipher".into(),
            clock: Clock::Real,
            options: [("bytes".to_string(), self.bytes.to_string())].into(),
            runs: runs.iter().map(value).collect(),
            ..Facts::default()
        };
        Ok(Made { facts, text: table(&runs), whole: true })
    }

    /// How many runs it makes.
    pub(crate) fn runs(&self) -> usize {
        self.rows().len()
    }

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

/// Bytes of packets that are there together.
const MEMORY_MAX: usize = 1 << 30;
