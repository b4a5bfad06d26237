//! A software offload NIC behind its rings: steering, contexts and their store, segmentation and joining. The crate
//! does not depend on any driver, and knows engines only by the traits of [`nic_engine`].
//!
//! ```text
//! wire - parse - steer - packet engines - stream engines - join (LRO) - queue - host        receive
//! host - queue - shape - cut (TSO, USO) - stream engines - packet engines - checksum - wire   send
//! ```
//!
//! - [`Device`]: the device for its port and its thread; [`Function`]: the part of the device that a host sees, with
//!   the choice of a queue for each packet; [`QueuePair`]: the rings of one driver with their engines and contexts;
//! - [`eswitch`]: a device with a switch between its port and its functions;
//! - `context`: the store of all contexts, with its cache; `steering`: the contexts of a packet;
//! - [`lookaside`]: engines behind job queues, from memory to memory, without a port;
//! - [`stats`] has the counters.
//!
//! Most users want `nic-sim`, which combines a device and its driver.

#![forbid(unsafe_code)]

mod context;
mod device;
pub mod eswitch;
mod function;
pub mod lookaside;
mod queue_pair;
pub mod stats;
mod steering;

pub use device::Device;
pub use eswitch::SwitchedDevice;
pub use function::Function;
pub use queue_pair::QueuePair;

/// Compiles and runs the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
