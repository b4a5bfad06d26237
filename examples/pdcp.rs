//! Sends packets of a mobile network's users over PDCP in GTP-U, four ways, and shows what ciphering in the NIC saves.
//!
//! `cargo run --release --example pdcp`; `nicbench loopback pdcp` is the same.

use nicbench::loopback::pdcp::PdcpLoopback;
use offload_cli::loopback;
use std::process::ExitCode;

fn main() -> ExitCode {
    loopback::main::<PdcpLoopback>("pdcp")
}
