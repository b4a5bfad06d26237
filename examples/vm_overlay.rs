//! Virtual machines on two hypervisors send to each other: in clear text, in an overlay, and in an overlay under ESP.
//! The NICs encapsulate and encrypt; the table shows the remaining cost of guests and hypervisors, for increasing
//! numbers of virtual machines.
//!
//! `cargo run --release --example vm_overlay -- --vms 8`; `nicbench vms` is the same.

use nicbench::commands::vms::VmsOptions;
use offload_cli::scenario;
use std::process::ExitCode;

fn main() -> ExitCode {
    scenario::main::<VmsOptions>("vm_overlay")
}
