//! A software offload NIC: rings, DMA, contexts, inline crypto engines, its driver, and the wire.
//!
//! ```text
//!   host stack                                                                     other ports
//!       | NetDevice                                                                     |
//!   driver  == send, receive, control rings ==  device: steering, contexts, engines -- Port -- wire
//!             doorbells, interrupts; nothing else crosses
//! ```
//!
//! - [`nic`](nic()), [`multi_queue_nic`]: build a device with one or more drivers; [`config`]: their configuration;
//! - [`switched_nic`], [`function`]: a device with a switch, and the functions behind the switch; [`eswitch`]:
//!   management by the host; [`switch`]: its rules;
//! - [`lookaside`](lookaside()): an accelerator from memory to memory, without a port; [`mod@lookaside`]: its parts;
//! - [`rss`]: distribution of received packets over queues;
//! - [`frame`]: frames on a wire; [`packet`]: packets on PCIe; [`dma`]: their cost in bytes;
//! - [`ring`], [`signal`]: descriptor rings, doorbells and interrupts;
//! - [`device`]: the device; its `steering` table and `context` store;
//! - [`engine`]: the traits for authors of engines; [`engines`]: the built-in engines;
//! - [`driver`]: tracks the device's expected state and restores it;
//! - [`wire`]: links, impairments, taps, captures;
//! - [`stats`] has the counters.
//!
//! Transmit payload goes from the stack through the send ring to the port by reference. It is read, encrypted and
//! copied once, into the frame. Empty receive buffers go to the device and return with a frame.

#![forbid(unsafe_code)]

mod accelerator;
mod nic;

pub use accelerator::lookaside;
pub use nic::{function, function_with, multi_queue_nic, multi_queue_nic_with, nic, nic_with, switched_nic};
pub use nic_device::{self as device, Device, Function, QueuePair, SwitchedDevice, lookaside};
pub use nic_driver::{self as driver, Driver, EswitchDriver, JobDriver};
pub use nic_engine::{self as engine};
pub use nic_engines::{
    self as engines, EngineConfigs, EspEngineConfig, NvmeTcpEngineConfig, QuicEngineConfig, TlsEngineConfig,
};
pub use nic_rings::{ContextCounters, Costs, Delays, TransmitResync, config, dma, eswitch, packet, ring, rss, signal};
pub use nic_switch::{self as switch, SwitchConfig, Vport};
pub use offload_wire::{self as wire, frame};

/// Size, speed and delays of a NIC, and the configuration of its engines.
///
/// ```
/// use nic_sim::{NicConfig, QuicEngineConfig, nic};
///
/// let config = NicConfig { engines: QuicEngineConfig { contexts: 0 }.into(), mtu: 9000, ..NicConfig::default() };
/// let (device, _driver) = nic(config);
/// assert_eq!(device.config().mtu, 9000);
/// ```
pub type NicConfig = nic_rings::NicConfig<EngineConfigs>;

/// Counters. Names follow the mlx5 driver and Linux where possible.
pub mod stats {
    pub use nic_device::stats::DeviceCounters;
    pub use nic_driver::stats::DriverCounters;
    pub use nic_engines::{EspCounters, NvmeTcpCounters, QuicCounters, TlsEngineCounters, TransformCounters};
}

/// Re-exports of the crates in this API, so that a program needs no other dependency.
pub use {offload_api as api, offload_base as base, offload_jobs as jobs, offload_transforms as transforms};

/// Compiles and runs the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
