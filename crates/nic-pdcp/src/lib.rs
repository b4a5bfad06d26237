//! Engines that cipher and authenticate PDCP PDUs (TS 38.323) in a device: packets in GTP-U, and batches by jobs.
//!
//! - [`PdcpPackets`] (`packets.rs`): for a NIC, by [`add_packet`](nic_engine::Engines::add_packet);
//! - [`PdcpBatches`] (`batches.rs`): for an accelerator, by [`add_job`](nic_engine::Engines::add_job).
//!
//! Their parameters are in `pdcp::device`; `pdcp::gtpu::Node` uses them.

#![forbid(unsafe_code)]

mod batches;
mod packets;

pub use batches::PdcpBatches;
pub use packets::{PdcpCounters, PdcpKeys, PdcpPacketView, PdcpPackets, PdcpProtection, PdcpState};

/// Compiles the README's example as a doc test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
