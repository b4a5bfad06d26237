//! Reads a disk over NVMe/TCP through two emulated NICs with different offloads, and shows how much host time each
//! saves.
//!
//! `cargo run --release --example nvme_loopback`; `nicbench nvme` is the same.

use nicbench::commands::nvme::NvmeLoopback;
use offload_cli::scenario;
use std::process::ExitCode;

fn main() -> ExitCode {
    scenario::main::<NvmeLoopback>("nvme_loopback")
}
