//! An offload NIC in software, as it is behind its rings: steering, contexts and their store, segmentation and joining. It knows
//! no driver, and engines by the traits of [`nic_engine`] only.
//!
//! ```text
//! wire - parse - steer - packet engines - stream engines - join (LRO) - queue - host        receive
//! host - queue - shape - cut (TSO, USO) - stream engines - packet engines - checksum - wire   send
//! ```
//!
//! - [`Device`]: the device, seen from its port and from the thread that runs it; [`Function`]: what a host sees of it, and
//!   which queue a packet comes to; [`QueuePair`]: the rings of one driver, and what is behind them;
//! - [`eswitch`]: a device with a switch between its port and its functions;
//! - `context`: the store of all contexts, with its cache; `steering`: which contexts a packet finds;
//! - [`lookaside`]: engines behind job queues, from memory to memory: a device that is no port;
//! - [`stats`]: what is counted.
//!
//! Most users want `nic-sim`, which puts a device and its driver together.

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

/// The README's example runs with the others.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
