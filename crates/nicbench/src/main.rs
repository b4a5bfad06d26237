//! `nicbench`: measured runs over emulated NICs, sweeps of them, and reports.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    nicbench::commands::main()
}
