//! The interface between an offload NIC and its driver: descriptor rings, doorbells and interrupts, the entries on the
//! rings, and their sizes on the bus.
//!
//! - [`rings`](rings()): creates both ends of a queue pair's rings and signals; [`config`]: the configuration of a NIC;
//! - [`EngineDescription`]: the description of an engine for the driver;
//! - [`packet`]: entries of the rings; [`dma`]: their sizes on PCIe; [`job`]: the rings of a job queue; [`eswitch`]:
//!   the rings by which a host controls its NIC's switch;
//! - [`ring`], [`signal`]: descriptor rings, doorbells and interrupts;
//! - [`rss`]: the hash that spreads received packets over queues, computed by both ends.
//!
//! Most users want `nic-sim`, which connects a device with its driver.

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

/// Compiles and runs the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
