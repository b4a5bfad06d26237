//! Sends a file over TLS through two emulated NICs in three modes, and shows the savings of offload.
//!
//! `cargo run --release --example ktls_loopback -- [FILE]`; `nicbench tls` is the same.

use offload_cli::scenario;
use offload_cli::tls::TlsLoopback;
use std::process::ExitCode;

fn main() -> ExitCode {
    scenario::main::<TlsLoopback>("ktls_loopback")
}
