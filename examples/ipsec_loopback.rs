//! Sends a file over TCP through two emulated NICs, plain and under ESP, and shows what ESP costs.
//!
//! `cargo run --release --example ipsec_loopback -- [FILE]`; `nicbench esp` is the same.

use nicbench::commands::esp::IpsecLoopback;
use offload_cli::scenario;
use std::process::ExitCode;

fn main() -> ExitCode {
    scenario::main::<IpsecLoopback>("ipsec_loopback")
}
