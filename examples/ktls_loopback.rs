//! Sends a file over TLS through two emulated NICs, three ways, and shows what the offload saves.
//!
//! `cargo run --release --example ktls_loopback -- [FILE]`; `nicbench loopback tls` is the same.

use offload_cli::loopback::{self, tls::TlsLoopback};
use std::process::ExitCode;

fn main() -> ExitCode {
    loopback::main::<TlsLoopback>("ktls_loopback")
}
