//! Sends a file over QUIC through two emulated NICs, three ways, and shows what the offload saves.
//!
//! `cargo run --release --example quic_loopback -- [FILE]`; `nicbench loopback quic` is the same.

use nicbench::loopback::quic::QuicLoopback;
use offload_cli::loopback;
use std::process::ExitCode;

fn main() -> ExitCode {
    loopback::main::<QuicLoopback>("quic_loopback")
}
