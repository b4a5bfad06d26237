//! Sends a file over TCP through two emulated NICs, in clear text and under ESP, and shows the cost of ESP.
//!
//! `cargo run --release --example ipsec_loopback -- [FILE]`; `nicbench esp` is the same.

use nicbench::commands::esp::IpsecLoopback;
use offload_cli::scenario;
use std::process::ExitCode;

fn main() -> ExitCode {
    scenario::main::<IpsecLoopback>("ipsec_loopback")
}
