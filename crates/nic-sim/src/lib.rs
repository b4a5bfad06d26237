//! An offload NIC in software: rings, DMA, contexts, inline crypto engines, its driver, and the wire.
//!
//! ```text
//!   host stack                                                                     other ports
//!       | NetDevice                                                                     |
//!   driver  == send, receive, control rings ==  device: steering, contexts, engines -- Port -- wire
//!             doorbells, interrupts; nothing else crosses
//! ```
//!
//! - [`nic`](nic()), [`multi_queue_nic`]: build a device and its driver, or its drivers; [`config`]: with what;
//! - [`switched_nic`], [`function`]: a device with a switch, and the functions behind it; [`eswitch`]: how a host manages
//!   it; [`switch`]: its rules;
//! - [`lookaside`](lookaside()): an accelerator from memory to memory, which is no port; [`mod@lookaside`]: what it is made of;
//! - [`rss`]: how received packets are spread over queues;
//! - [`frame`]: what crosses a wire; [`packet`]: what crosses PCIe; [`dma`]: what that weighs;
//! - [`ring`], [`signal`]: descriptor rings, doorbells and interrupts;
//! - [`device`]: the device; its `steering` table and `context` store;
//! - [`engine`]: what the author of an engine writes; [`engines`]: the built-in ones;
//! - [`driver`]: shadows what the device expects, and rebuilds it;
//! - [`wire`]: links, impairments, taps, captures;
//! - [`stats`]: what is counted.
//!
//! Transmit payload goes from the stack through the send ring to the port by reference, and is read, encrypted
//! and copied once, into the frame. Receive buffers go to the device empty and come back with a frame in them.

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

/// A NIC's size, speed and delays, and the configuration of its engines.
///
/// ```
/// use nic_sim::{NicConfig, QuicEngineConfig, nic};
///
/// let config = NicConfig { engines: QuicEngineConfig { contexts: 0 }.into(), mtu: 9000, ..NicConfig::default() };
/// let (device, _driver) = nic(config);
/// assert_eq!(device.config().mtu, 9000);
/// ```
pub type NicConfig = nic_rings::NicConfig<EngineConfigs>;

/// What is counted, under the names of the mlx5 driver and of Linux where those exist.
pub mod stats {
    pub use nic_device::stats::DeviceCounters;
    pub use nic_driver::stats::DriverCounters;
    pub use nic_engines::{EspCounters, NvmeTcpCounters, QuicCounters, TlsCounters, TransformCounters};
}

/// The crates whose types appear here, so that a program needs no other in its Cargo.toml.
pub use {offload_api as api, offload_base as base, offload_jobs as jobs, offload_transforms as transforms};

/// The README's example runs with the others.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
