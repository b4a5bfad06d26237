//! Sends a file over TCP through two emulated NICs, plain and under ESP, and shows what ESP costs.
//!
//! `cargo run --release --example ipsec_loopback -- [FILE]`; `nicbench loopback ipsec` is the same.

use nicbench::loopback::ipsec::IpsecLoopback;
use offload_cli::loopback;
use std::process::ExitCode;

fn main() -> ExitCode {
    loopback::main::<IpsecLoopback>("ipsec_loopback")
}
