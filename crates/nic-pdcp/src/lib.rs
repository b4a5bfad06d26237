//! Engines that cipher and authenticate PDUs of PDCP (TS 38.323) in the NIC: on packets in GTP-U, and on batches by jobs.
//!
//! - [`PdcpPackets`] (`packets.rs`): for a NIC, by [`add_packet`](nic_engine::Engines::add_packet);
//! - [`PdcpBatches`] (`batches.rs`): for an accelerator, by [`add_job`](nic_engine::Engines::add_job).
//!
//! What they are told, `pdcp::device` says; who tells them is `pdcp::gtpu::Node`.

#![forbid(unsafe_code)]

mod batches;
mod packets;

pub use batches::PdcpBatches;
pub use packets::{PdcpCounters, PdcpHeld, PdcpPackets, PdcpState, Protecting, Seen};

/// The README's example runs with the others.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
