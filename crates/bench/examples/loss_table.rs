//! What loss and reordering leave of the TLS offload, as a table in Markdown.
//!
//! `cargo run --release -p offload-bench --example loss_table`

use clap::Parser;
use offload_base::Seed;
use offload_bench::recovery::{PERCENTAGES, Recovery, Table, Trouble};
use std::process::ExitCode;

/// Sends streams of 16 KiB records through one pair of NICs over a wire that loses or reorders packets, and prints who
/// opened the records, and what the sender's NIC read again to find its place.
#[derive(Debug, Parser)]
#[command(version)]
struct Options {
    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Connections at once
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u64).range(1..=20_000))]
    streams: u64,
    /// Records that each sends
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..))]
    records: u64,
}

fn main() -> ExitCode {
    let Options { seed, streams, records } = Options::parse();
    let mut rows = Vec::new();
    for trouble in [Trouble::Loss, Trouble::Reordering] {
        for percent in PERCENTAGES {
            let recovery = Recovery { streams, records, ..Recovery::new(trouble, percent / 100.0, Seed(seed)) };
            match recovery.run() {
                Ok(row) => rows.push(row),
                Err(error) => {
                    eprintln!("loss_table: at {percent} %: {error}");
                    return ExitCode::from(2);
                }
            }
        }
    }
    print!("{}", Table(&rows));
    ExitCode::SUCCESS
}
