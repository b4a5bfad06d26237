//! What drives the cores: streams, time and threads, of whatever runtime.
//!
//! - [`server`]: serves a [`Target`](crate::controller::Target) on streams;
//! - [`host`]: a host connected to a controller, discovery;
//! - [`exercise`]: a disk put to the test;
//! - [`blocking`]: threads for storage that may wait;
//! - `sending`: PDUs into a stream, digests by the CPU or by the device below it.
//!
//! A stream is a [`SegmentStream`](offload_api::SegmentStream): an emulated TCP, TLS over it, or an adapter around any
//! `AsyncRead + AsyncWrite`. Nothing here spawns tasks or sleeps by itself: futures are the caller's to run, and alarms
//! come from the [`Timers`](offload_base::Timers) given.

pub mod blocking;
pub mod exercise;
pub mod host;
mod sending;
pub mod server;

pub use blocking::{Blocking, Threads};
pub use exercise::{Exercise, ExerciseError, ExerciseReport};
pub use server::{ServeError, Server};

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Nothing here leaves shared state half changed, so a lock that a panic poisoned is as good as any.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
