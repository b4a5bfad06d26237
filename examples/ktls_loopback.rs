//! Sends a file over TLS through two emulated NICs, three ways, and shows what the offload saves.
//!
//! `cargo run --release --example ktls_loopback -- [FILE]`; `nicbench tls` is the same.

use offload_cli::scenario;
use offload_cli::tls::TlsLoopback;
use std::process::ExitCode;

fn main() -> ExitCode {
    scenario::main::<TlsLoopback>("ktls_loopback")
}
