//! Sends user packets of a mobile network over PDCP in GTP-U in four modes, and shows the savings of ciphering in the
//! NIC.
//!
//! `cargo run --release --example pdcp`; `nicbench pdcp` is the same.

use nicbench::commands::pdcp::PdcpLoopback;
use offload_cli::scenario;
use std::process::ExitCode;

fn main() -> ExitCode {
    scenario::main::<PdcpLoopback>("pdcp")
}
