//! Measured runs: scenarios, the facts they report, and the benches.
//!
//! - [`options`], [`tls_options`]: what examples and tools are told on the command line;
//! - [`payload`]: what is sent: a file, or seeded data;
//! - [`bulk`]: one stream from one host to the other, plain, sealed by the CPU or by the NIC;
//! - [`iperf`]: many streams at once, for so long or so much;
//! - [`http`]: a web server and many clients that ask it for files;
//! - [`fio`]: commands to an NVMe/TCP target, so many under way at a time;
//! - [`mod@ipsec`]: packets of one size, plain and under ESP, over so many SAs;
//! - [`quic`]: one stream of QUIC, without protection, sealed by the CPU or by the NIC;
//! - [`recovery`]: what loss and reordering leave of the offload;
//! - [`workbench`], [`sa_tables`]: a device and its driver, and tables of SAs, alone, for the benches;
//! - [`facts`], [`table`]: what came of it, for programs and for people;
//! - [`sweep`]: any of these over a grid; [`results`]: what came of it; [`published`]: figures of others; [`report`]: both as one page;
//! - [`keys`]: IPsec for emulated hosts, with SAs and policies from a file;
//! - [`program`]: how our programs speak.

#![forbid(unsafe_code)]

mod bounded;
pub mod bulk;
mod connection;
mod crowd;
mod disk;
pub mod facts;
pub mod fio;
pub mod http;
pub mod iperf;
pub mod ipsec;
pub mod keys;
mod latency;
mod measured;
pub mod options;
pub mod payload;
pub mod program;
pub mod published;
pub mod quic;
pub mod recovery;
pub mod report;
pub mod results;
pub mod sa_tables;
pub mod sweep;
pub mod table;
pub mod tls_options;
pub mod workbench;

/// The README's example runs with the others.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
