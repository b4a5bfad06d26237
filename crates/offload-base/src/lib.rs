//! Utilities that all crates of nic-offload share.
//!
//! - [`time`]: nanosecond [`Instant`]s, the [`Clock`] that measures them, and [`Timers`] for waiting, virtual or real;
//! - [`seq`]: wrapping TCP sequence numbers;
//! - [`counters!`]: structs of counters under the names that hardware and Linux use;
//! - [`pool`]: receive buffers carved from recycled slabs;
//! - [`quick_hash`]: a fast hash for tables that no attacker can fill;
//! - [`random`]: one seed for a run, or the system's randomness; one independent generator for each component;
//! - [`slots`]: a server's connection slots, with rules for revoking one when all are taken;
//! - [`tasks`]: the tasks that wait for one stream, woken together;
//! - `descriptors` (a feature): the limit of open files;
//! - [`part`]: this process's share of a divided job, as set by a scheduler;
//! - [`text`]: parsing of rates, formatting of errors with their causes;
//! - [`waking`]: a mutex that wakes tasks only after it is unlocked;
//! - [`cost`]: CPU time by domain (host, device, wire) and by kind of work.
//!
//! The crate depends on no protocol, device or runtime.

#![forbid(unsafe_code)]

pub mod cost;
pub mod counters;
#[cfg(feature = "descriptors")]
pub mod descriptors;
pub mod part;
pub mod pool;
pub mod quick_hash;
pub mod random;
pub mod seq;
pub mod slots;
pub mod tasks;
pub mod text;
pub mod time;
pub mod waking;

pub use pool::BufferPool;
pub use quick_hash::QuickHash;
pub use random::{RandomSource, Rng, Seed};
pub use seq::Seq;
pub use time::{Alarm, Clock, Instant, RealClock, Timers};
pub use waking::{HasWakeList, WaitList, WakeList, WakingGuard, WakingMutex};

/// Compiles and runs the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
