//! Sends a file over QUIC through two emulated NICs in three modes, and shows the savings of offload.
//!
//! `cargo run --release --example quic_loopback -- [FILE]`; `nicbench quic` is the same.

use nicbench::commands::quic::QuicOptions;
use offload_cli::scenario;
use std::process::ExitCode;

fn main() -> ExitCode {
    scenario::main::<QuicOptions>("quic_loopback")
}
