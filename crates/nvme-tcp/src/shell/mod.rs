//! What drives the cores: streams, time and threads, of whatever runtime.
//!
//! - [`server`]: serves a [`Target`](crate::controller::Target) on streams;
//! - [`blocking`]: threads for storage that may wait.
//!
//! A stream is a [`SegmentStream`](offload_api::SegmentStream): an emulated TCP, TLS over it, or an adapter around any
//! `AsyncRead + AsyncWrite`. Nothing here spawns tasks or sleeps by itself: futures are the caller's to run, and alarms
//! come from the [`Timers`](offload_base::Timers) given.

pub mod blocking;
pub mod server;

pub use blocking::{Blocking, Threads};
pub use server::{ServeError, Server};
