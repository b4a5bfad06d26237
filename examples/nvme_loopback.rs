//! Reads a disk over NVMe/TCP through two emulated NICs, several ways, and shows what the offloads save the host.
//!
//! `cargo run --release --example nvme_loopback`; `nicbench loopback nvme` is the same.

use nicbench::loopback::nvme::NvmeLoopback;
use offload_cli::loopback;
use std::process::ExitCode;

fn main() -> ExitCode {
    loopback::main::<NvmeLoopback>("nvme_loopback")
}
