//! Programs that send one file, or read one disk, several ways, and show what the offload saves: `nicbench loopback tls`, and the
//! example `ktls_loopback`, are one program.

pub mod ipsec;
pub mod nvme;
pub mod pdcp;
pub mod quic;

use clap::Subcommand;
use offload_cli::loopback::{Loopback, tls::TlsLoopback};
use std::process::ExitCode;

/// A file over two emulated NICs several ways, or a disk read over them: what the offload saves
#[derive(Debug, Subcommand)]
pub(crate) enum LoopbackCommand {
    /// TLS: as plain TCP, with TLS on the CPU, with TLS on the NICs
    Tls(TlsLoopback),
    /// NVMe/TCP: a disk read with data placed and checked by the CPU or by the NIC
    Nvme(nvme::NvmeLoopback),
    /// ESP: plain, by the hosts, by the NICs under headers of the hosts, by the NICs alone
    Ipsec(ipsec::IpsecLoopback),
    /// QUIC: packets as they are, protected by the CPU, protected by the NICs
    Quic(quic::QuicLoopback),
    /// PDCP of 5G in GTP-U: in clear, ciphered by the CPU, by jobs of an accelerator, by the NICs
    Pdcp(pdcp::PdcpLoopback),
}

impl LoopbackCommand {
    /// Runs the one that was chosen.
    pub(crate) fn run(&self, program: &str) -> ExitCode {
        match self {
            LoopbackCommand::Tls(options) => options.run(program),
            LoopbackCommand::Nvme(options) => options.run(program),
            LoopbackCommand::Ipsec(options) => options.run(program),
            LoopbackCommand::Quic(options) => options.run(program),
            LoopbackCommand::Pdcp(options) => options.run(program),
        }
    }
}
