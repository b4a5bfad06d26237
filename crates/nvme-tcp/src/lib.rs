//! NVMe/TCP, host and controller, over any stream.
//!
//! - [`host`]: a host: connected to a controller, reconnected when it loses it; disks, discovery;
//! - [`target`]: a target, served on streams;
//! - [`namespace`]: blocks in memory or in a file;
//! - [`core`]: the state machines under both, for those who drive them by themselves;
//! - [`wire`]: commands, completions, structures and PDUs.
//!
//! A stream is a [`SegmentStream`](offload_api::SegmentStream): an emulated TCP, TLS over it, or an adapter around any
//! `AsyncRead + AsyncWrite`. Nothing here spawns tasks or sleeps by itself: futures are the caller's to run, and alarms
//! come from the [`Timers`](offload_base::Timers) given.

#![forbid(unsafe_code)]

pub mod core;
pub mod exercise;
pub mod host;
pub mod namespace;
mod sending;
pub mod target;
pub mod wire;

pub use host::{Buffer, CommandError, Connecting, Connector, Disk, Host, HostConfig, HostError, HostIdentity, Offload};
pub use namespace::{FileStorage, MemoryStorage, Namespace, Storage};
pub use target::{Server, Target, TargetConfig, Threads};
pub use wire::{AdminOpcode, Command, Completion, IoOpcode, Status};

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Nothing here leaves shared state half changed, so a lock that a panic poisoned is as good as any.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
