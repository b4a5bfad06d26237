//! Measured runs: scenarios and benches. Crate `offload-bench-tls` has the bulk transfer over TLS, and the facts and
//! tables of every run.
//!
//! - [`iperf`]: many simultaneous streams, limited by bytes or time;
//! - [`http`]: a web server, and many clients that fetch files;
//! - [`drive_storage`]: NVMe storage on a drive in virtual time;
//! - [`fio`]: commands to an NVMe/TCP target, several at a time;
//! - [`mod@nvme`]: a disk read or written over NVMe/TCP, with different offloads;
//! - [`mod@ipsec`]: packets of one size, in clear text and under ESP, over several SAs;
//! - [`mod@pdcp`]: user packets of 5G, ciphered by the CPU, by jobs or by the NIC;
//! - [`services`]: NICs with ciphers as services on a small device;
//! - [`quic`]: one stream of QUIC, without protection, sealed by the CPU or by the NIC;
//! - [`reservoir`]: bulk transfer from disk to disk over a long fat path;
//! - [`vms`]: virtual machines behind switches, in overlays and under ESP;
//! - [`recovery`]: the share of offload that remains under loss and reordering;
//! - [`cipher`]: the ciphers of 5G beside AES-GCM, on one core;
//! - [`jobs`]: one transform on the CPU, by jobs of an accelerator, inline in a NIC;
//! - [`workbench`], [`sa_tables`]: a device and its driver, and tables of SAs, alone, for the benches;
//! - [`published`]: figures of published studies;
//! - [`keys`]: IPsec for emulated hosts, with SAs and policies from a file.

#![forbid(unsafe_code)]

#[cfg(test)]
mod bounded;
pub mod cipher;
mod crowd;
mod disk;
pub mod drive_storage;
pub mod fio;
pub mod http;
pub mod iperf;
pub mod ipsec;
pub mod jobs;
pub mod keys;
mod latency;
pub mod nvme;
pub mod pdcp;
pub mod published;
pub mod quic;
pub mod recovery;
pub mod reservoir;
pub mod sa_tables;
pub mod services;
pub mod vms;
pub mod workbench;

/// Runs the README's example as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
