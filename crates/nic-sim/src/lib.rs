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
//! - [`rss`]: how received packets are spread over queues;
//! - [`frame`]: what crosses a wire; [`packet`]: what crosses PCIe; [`dma`]: what that weighs;
//! - [`ring`], [`signal`]: descriptor rings, doorbells and interrupts;
//! - [`device`]: the device; its `steering` table and `context` store; [`engine`]: what works on packets there;
//! - [`driver`]: shadows what the device expects, and rebuilds it;
//! - [`wire`]: links, impairments, taps, captures;
//! - [`stats`]: what is counted.
//!
//! Transmit payload goes from the stack through the send ring to the port by reference, and is read, encrypted
//! and copied once, into the frame. Receive buffers go to the device empty and come back with a frame in them.

#![forbid(unsafe_code)]

pub mod config;
mod context;
pub mod device;
pub mod dma;
pub mod driver;
pub mod engine;
pub mod frame;
mod nic;
pub mod packet;
pub mod ring;
pub mod rss;
pub mod signal;
pub mod stats;
mod steering;
pub mod wire;

pub use config::{Delays, NicConfig, TransmitResync};
pub use device::{Device, MultiQueueDevice};
pub use driver::Driver;
pub use nic::{multi_queue_nic, multi_queue_nic_with, nic, nic_with};
