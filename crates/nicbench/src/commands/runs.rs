//! What can be run, by name and options: from the command line and from sweeps alike.

use super::{
    cipher::CipherOptions, crypto::CryptoOptions, fio::FioOptions, http::HttpOptions, iperf::IperfOptions,
    ipsec::IpsecOptions, quic::QuicOptions, recovery::RecoveryOptions, reservoir::ReservoirOptions, vms::VmsOptions,
};
use clap::{Parser, Subcommand};
use offload_bench_tls::facts::{Clock, Facts};
use offload_cli::options::WireOptions;
use offload_cli::program;
use serde_json::Value;
use std::collections::BTreeMap;

/// A command that makes runs.
#[derive(Debug, Subcommand)]
pub(crate) enum Runnable {
    Iperf(IperfOptions),
    Http(HttpOptions),
    Fio(FioOptions),
    Ipsec(IpsecOptions),
    Quic(QuicOptions),
    Recovery(RecoveryOptions),
    Reservoir(ReservoirOptions),
    Crypto(CryptoOptions),
    Cipher(CipherOptions),
    Vms(VmsOptions),
}

/// What a command made.
pub(crate) struct Made {
    /// For programs.
    pub facts: Facts<Value>,
    /// For people.
    pub text: String,
    /// Whether all data arrived whole.
    pub whole: bool,
}

impl Runnable {
    /// The command that these arguments, without the program's name, ask for.
    pub(crate) fn parse(arguments: &[String]) -> Result<Runnable, String> {
        #[derive(Parser)]
        #[command(allow_negative_numbers = true)]
        struct One {
            #[command(subcommand)]
            run: Runnable,
        }
        let line = core::iter::once("nicbench").chain(arguments.iter().map(String::as_str));
        One::try_parse_from(line).map(|one| one.run).map_err(|error| program::one_line(&error))
    }

    pub(crate) fn run(&self) -> Result<Made, String> {
        match self {
            Runnable::Iperf(options) => options.run(),
            Runnable::Http(options) => options.run(),
            Runnable::Fio(options) => options.run(),
            Runnable::Ipsec(options) => options.run(),
            Runnable::Quic(options) => options.run(),
            Runnable::Recovery(options) => options.run(),
            Runnable::Reservoir(options) => options.run(),
            Runnable::Crypto(options) => options.run(),
            Runnable::Cipher(options) => options.run(),
            Runnable::Vms(options) => options.run(),
        }
    }

    pub(crate) fn json(&self) -> bool {
        match self {
            Runnable::Iperf(options) => options.json,
            Runnable::Http(options) => options.json,
            Runnable::Fio(options) => options.json,
            Runnable::Ipsec(options) => options.json,
            Runnable::Quic(options) => options.json,
            Runnable::Recovery(options) => options.json,
            Runnable::Reservoir(options) => options.json,
            Runnable::Crypto(options) => options.json,
            Runnable::Cipher(options) => options.json,
            Runnable::Vms(options) => options.json,
        }
    }

    /// How many runs it makes.
    pub(crate) fn runs(&self) -> usize {
        match self {
            Runnable::Iperf(options) => options.mode.len(),
            Runnable::Http(options) => options.mode.len(),
            Runnable::Fio(options) => options.mode.len(),
            Runnable::Ipsec(options) => options.mode.len(),
            Runnable::Quic(options) => options.mode.len(),
            Runnable::Recovery(options) => options.runs().len(),
            Runnable::Reservoir(options) => options.runs(),
            Runnable::Crypto(options) => options.runs(),
            Runnable::Cipher(options) => options.runs(),
            Runnable::Vms(options) => options.runs(),
        }
    }

    /// Whether it runs on the machine's clock, so that nothing else should run beside it.
    pub(crate) fn real(&self) -> bool {
        match self {
            Runnable::Iperf(options) => options.wire.real,
            Runnable::Http(options) => options.wire.real,
            Runnable::Fio(options) => options.wire.real,
            Runnable::Quic(options) => options.wire.real,
            // The CPU's rows are by the machine's clock.
            Runnable::Crypto(_) | Runnable::Cipher(_) => true,
            Runnable::Ipsec(_) | Runnable::Recovery(_) | Runnable::Reservoir(_) | Runnable::Vms(_) => false,
        }
    }
}

/// Facts about runs over a wire.
pub(crate) fn facts(command: &str, wire: &WireOptions, own: &[(&str, String)], runs: Vec<Value>) -> Facts<Value> {
    let mut options = wire_options(wire);
    options.extend(own.iter().map(|(name, value)| (name.to_string(), value.clone())));
    let clock = if wire.real { Clock::Real } else { Clock::Virtual };
    Facts { command: command.into(), seed: wire.seed().0, clock, options, runs }
}

/// The options of a wire that another run needs to be the same.
fn wire_options(wire: &WireOptions) -> BTreeMap<String, String> {
    wire.facts().into_iter().map(|(name, value)| (name.to_string(), value)).collect()
}

/// As JSON. What we report has names and numbers only, so it always can be.
pub(crate) fn value(run: impl serde::Serialize) -> Value {
    serde_json::to_value(run).unwrap_or(Value::Null)
}
