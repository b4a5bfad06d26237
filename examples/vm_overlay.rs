//! Virtual machines on two hypervisors send to each other: plain, in an overlay, and in one under ESP. The NICs wrap and encrypt;
//! the table shows what that leaves for guests and hypervisors to do, for more and more virtual machines.
//!
//! `cargo run --release --example vm_overlay -- --vms 8`; `nicbench vms` is the same.

use nicbench::commands::vms::VmsOptions;
use offload_cli::scenario;
use std::process::ExitCode;

fn main() -> ExitCode {
    scenario::main::<VmsOptions>("vm_overlay")
}
