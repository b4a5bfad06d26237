//! What every crate of nic-offload stands on.
//!
//! - [`time`]: nanosecond [`Instant`]s, the [`Clock`] that tells them and the [`Timers`] to wait on, virtual or real;
//! - [`seq`]: TCP sequence numbers that wrap;
//! - [`counters!`]: structs of counters under the names that hardware and Linux use;
//! - [`pool`]: receive buffers carved from recycled slabs;
//! - [`quick_hash`]: for tables that nobody hostile fills;
//! - [`random`]: one seed for a run, or the system's randomness; one independent generator for each component;
//! - [`slots`]: the slots of a server's connections, which strangers and idle connections give up first;
//! - [`tasks`]: the tasks that wait for a stream, woken together;
//! - `descriptors`, with that feature: the limit of open files;
//! - [`part`]: which part of a work in parts this process has, as schedulers tell it;
//! - [`text`]: what people write and read: rates, errors with their causes;
//! - [`waking`]: a lock under which no task is woken;
//! - [`cost`]: where the CPU time went, by domain (host, device, wire) and by kind of work.
//!
//! Nothing here knows a protocol, a device or a runtime.

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
pub use waking::{WaitList, WakeList, Wakes, WakingGuard, WakingMutex};

/// The README's example runs with the others.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
