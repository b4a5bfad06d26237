//! What an offload NIC and its driver share, and nothing else of the two: descriptor rings, doorbells and interrupts, what
//! ring entries say, and what they weigh on the bus.
//!
//! - [`rings`](rings()): the rings and signals of a queue pair, by their two ends; [`config`]: what a NIC is built with;
//! - [`EngineDescription`]: what the driver is told of an engine;
//! - [`packet`]: what crosses PCIe; [`dma`]: what that weighs; [`job`]: the rings of a job queue;
//!   [`eswitch`]: those by which a host manages the switch of its NIC;
//! - [`ring`], [`signal`]: descriptor rings, doorbells and interrupts;
//! - [`rss`]: the hash by which received packets are spread over queues, which both ends compute.
//!
//! Most users want `nic-sim`, which puts a device and its driver together.

#![forbid(unsafe_code)]

pub mod config;
pub mod dma;
mod engine;
pub mod eswitch;
pub mod job;
pub mod packet;
mod pair;
pub mod ring;
pub mod rss;
pub mod signal;

pub use config::{Costs, Delays, NicConfig};
pub use engine::{ContextCounters, EngineDescription, Lifecycles, Publish, TransmitResync};
pub use pair::{DeviceRings, DriverRings, rings};

/// The README's example runs with the others.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
