//! Runs a file through a lookaside accelerator as jobs from memory to memory, and on the CPU for comparison.
//!
//! `cargo run --release --example lookaside -- [FILE] --transform aes-128-gcm --in-flight 1,4,13,32`; `nicbench crypto`
//! is the same.

use nicbench::commands::crypto::CryptoOptions;
use offload_cli::scenario;
use std::process::ExitCode;

fn main() -> ExitCode {
    scenario::main::<CryptoOptions>("lookaside")
}
