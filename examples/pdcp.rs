//! Sends packets of a mobile network's users over PDCP in GTP-U, four ways, and shows what ciphering in the NIC saves.
//!
//! `cargo run --release --example pdcp`; `nicbench pdcp` is the same.

use nicbench::commands::pdcp::PdcpLoopback;
use offload_cli::scenario;
use std::process::ExitCode;

fn main() -> ExitCode {
    scenario::main::<PdcpLoopback>("pdcp")
}
