//! The commands of `nicbench`.
//!
//! - `runs`: the scenarios, by name and options;
//! - [`nvme`], [`esp`], [`quic`], [`pdcp`], [`vms`], [`crypto`]: scenarios that are also separate programs;
//! - `iperf`, `http`, `fio`, `ipsec`, `recovery`, `reservoir`, `cipher`: their options and tables;
//! - `sweep`: a scenario over a grid, into a results file; `merge`: joins the files of its parts; `submit`: the parts
//!   as tasks of a scheduler;
//! - `wire`: the emulated wire between two TAPs, with feature `tap`;
//! - `report`: a results file as one page;
//! - `extcap`: a run that Wireshark captures.
//!
//! ```
//! use nicbench::commands::{crypto::CryptoOptions, esp::IpsecLoopback, nvme::NvmeLoopback};
//! use nicbench::commands::{pdcp::PdcpLoopback, quic::QuicOptions, vms::VmsOptions};
//! use offload_cli::scenario::Scenario;
//!
//! /// Tests whether a program has an option.
//! fn has<S: clap::Parser + Scenario>(option: &str) -> bool {
//!     S::command().get_arguments().any(|argument| argument.get_long() == Some(option))
//! }
//! assert!(has::<NvmeLoopback>("depth") && has::<IpsecLoopback>("keys") && has::<QuicOptions>("paths"));
//! assert!(has::<PdcpLoopback>("bearers") && has::<VmsOptions>("sas") && !has::<CryptoOptions>("loss"));
//! ```

mod cipher;
pub mod crypto;
pub mod esp;
mod extcap;
mod fio;
mod http;
mod iperf;
mod ipsec;
mod merge;
pub mod nvme;
pub mod pdcp;
pub mod quic;
mod recovery;
mod report;
mod reservoir;
mod runs;
mod submit;
mod sweep;
pub mod vms;
#[cfg(all(feature = "tap", target_os = "linux"))]
mod wire;

use clap::{Parser, Subcommand};
use offload_cli::program;
use offload_cli::scenario;
use runs::Runnable;
use std::process::ExitCode;

/// Performance studies of offload over emulated NICs, in virtual time (the same run every time) or in real time.
///
/// Goodput is user data in 10^9 bits per second of the run's clock. Host cost is CPU time of this machine, with either
/// clock, in nanoseconds per byte of user data. Sizes are bytes: 4KiB is 4096, 4kB 4000; times have a unit: 5us, 10ms;
/// rates are bits per second: 10G; shares go from 0 to 1: 0.01 is 1 %. Latencies are in microseconds of the run's
/// clock.
///
/// Exit status: 0; 1 if a run failed or data did not arrive whole; 2 if an option is bad or a file cannot be used.
#[derive(Debug, Parser)]
#[command(name = "nicbench", version, allow_negative_numbers = true)]
struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(flatten)]
    Run(Box<Runnable>),
    Sweep(sweep::SweepOptions),
    Merge(merge::MergeOptions),
    Report(report::ReportOptions),
    Extcap(extcap::ExtcapOptions),
    #[cfg(all(feature = "tap", target_os = "linux"))]
    Wire(wire::WireCommandOptions),
}

/// Parses the options, runs the command and returns the exit status.
pub fn main() -> ExitCode {
    program::main(NAME, |options: &Options| match &options.command {
        Command::Run(run) => scenario::finish(NAME, &***run),
        Command::Sweep(options) => sweep::run(options),
        Command::Merge(options) => merge::run(options),
        Command::Report(options) => report::run(options),
        Command::Extcap(options) => extcap::run(options),
        #[cfg(all(feature = "tap", target_os = "linux"))]
        Command::Wire(options) => wire::run(NAME, options),
    })
}

const NAME: &str = "nicbench";
