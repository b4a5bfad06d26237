//! Jobs from memory to memory on the CPU, and what they have in common with those of a device.
//!
//! - [`perform`]: runs a job by a [`Session`](offload_transforms::Session) of `offload-transforms`; the device's engine does just
//!   that; [`Opens`] opens such a session on any queue;
//! - [`TransformCapabilities`]: what an accelerator has, as a query;
//! - [`CpuQueue`]: a [`JobQueue`](offload_api::JobQueue) in virtual time, whose work is charged to a host's cores by stated
//!   figures;
//! - [`PoolQueue`]: one in real time, with a thread for each core;
//! - [`SharedQueue`]: any of them, or a device's, for many tasks, with futures around jobs;
//! - [`DataKey`], [`WrappingKey`]: data-encryption keys, named by tenant and volume, imported wrapped.

#![forbid(unsafe_code)]

mod capabilities;
mod client_queue;
mod cpu;
mod data_key;
mod perform;
mod pool;
mod sessions;
mod shared;

pub use capabilities::TransformCapabilities;
pub use cpu::{CpuConfig, CpuQueue};
pub use data_key::{DATA_KEYS, DataKey, DataKeySpec, ImportError, WrappingKey};
pub use perform::{Opens, TRANSFORM, perform};
pub use pool::PoolQueue;
pub use shared::{JobClient, RunQueue, SharedQueue};

/// The README's example runs with the others.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
