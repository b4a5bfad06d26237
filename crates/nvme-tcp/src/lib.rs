#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod context_request;
pub mod core;
#[cfg(feature = "measure")]
pub mod exercise;
pub mod host;
pub mod namespace;
mod pdu_sender;
pub mod target;
mod volume;
mod volumes;
pub mod wire;

pub use context_request::OffloadCounters;
pub use host::{
    Buffer, CommandError, ConnectFuture, Connector, Disk, Host, HostConfig, HostError, HostIdentity, Offload,
};
pub use namespace::{FileStorage, MemoryStorage, Namespace, Storage};
pub use target::{Server, Target, TargetConfig, Threads};
pub use wire::{AdminOpcode, Command, Completion, IoOpcode, Status};

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks `mutex`, poisoned or not: no code of this crate panics with shared state half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(feature = "tokio")]
pub use offload_api::TokioTimers;

/// Crates with types in this crate's public API, re-exported so that a program needs no other entry in its Cargo.toml.
pub use {bytes, offload_api as api, offload_base as base, resumable_aead};
