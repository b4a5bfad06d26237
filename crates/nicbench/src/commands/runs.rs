//! The scenarios by name and options, for the command line and for sweeps.

use super::{
    cipher::CipherOptions, crypto::CryptoOptions, esp::IpsecLoopback, fio::FioOptions, http::HttpOptions,
    iperf::IperfOptions, ipsec::IpsecOptions, nvme::NvmeLoopback, pdcp::PdcpLoopback, quic::QuicOptions,
    recovery::RecoveryOptions, reservoir::ReservoirOptions, vms::VmsOptions,
};
use clap::{Parser, Subcommand};
use core::ops::Deref;
use offload_cli::program;
use offload_cli::scenario::Scenario;
use offload_cli::tls::TlsLoopback;

/// A command that makes runs.
#[derive(Debug, Subcommand)]
pub(crate) enum Runnable {
    Tls(TlsLoopback),
    Nvme(NvmeLoopback),
    Esp(IpsecLoopback),
    Quic(QuicOptions),
    Pdcp(PdcpLoopback),
    Iperf(IperfOptions),
    Http(HttpOptions),
    Fio(FioOptions),
    Ipsec(IpsecOptions),
    Recovery(RecoveryOptions),
    Reservoir(ReservoirOptions),
    Crypto(CryptoOptions),
    Cipher(CipherOptions),
    Vms(VmsOptions),
}

impl Runnable {
    /// Parses a sweep's command from its arguments, without the program's name. `--json` is added, so that the run
    /// draws no progress bar.
    pub(crate) fn parse(arguments: &[String]) -> Result<Runnable, String> {
        #[derive(Parser)]
        #[command(allow_negative_numbers = true)]
        struct One {
            #[command(subcommand)]
            run: Runnable,
        }
        // clap expects the program's name first.
        let line = core::iter::once("nicbench").chain(arguments.iter().map(String::as_str)).chain(["--json"]);
        One::try_parse_from(line).map(|one| one.run).map_err(|error| program::one_line(&error))
    }
}

impl Deref for Runnable {
    type Target = dyn Scenario + Send + Sync;

    fn deref(&self) -> &Self::Target {
        match self {
            Runnable::Tls(options) => options,
            Runnable::Nvme(options) => options,
            Runnable::Esp(options) => options,
            Runnable::Quic(options) => options,
            Runnable::Pdcp(options) => options,
            Runnable::Iperf(options) => options,
            Runnable::Http(options) => options,
            Runnable::Fio(options) => options,
            Runnable::Ipsec(options) => options,
            Runnable::Recovery(options) => options,
            Runnable::Reservoir(options) => options,
            Runnable::Crypto(options) => options,
            Runnable::Cipher(options) => options,
            Runnable::Vms(options) => options,
        }
    }
}
