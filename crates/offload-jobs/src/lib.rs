//! Jobs from memory to memory on the CPU, and code shared with job engines of devices.
//!
//! - [`perform`]: runs a job with a [`Session`](offload_transforms::Session) of `offload-transforms`, as the device's
//!   engine does; [`OpenTransform`]: opens such a session on any queue;
//! - [`TransformCapabilities`]: the transforms of an accelerator;
//! - [`CpuQueue`]: a [`JobQueue`](offload_api::JobQueue) in virtual time, with work charged to a host's cores at a
//!   stated rate;
//! - [`PoolQueue`]: a job queue in real time, with worker threads;
//! - [`SharedQueue`]: any of these queues, or a device's, shared by many tasks, with futures for jobs;
//! - [`DataKey`], [`WrappingKey`]: data-encryption keys by tenant and volume, imported wrapped.

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
pub use perform::{OpenTransform, TRANSFORM, perform};
pub use pool::PoolQueue;
pub use shared::{JobClient, RunQueue, SharedQueue};

/// Compiles and runs the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
