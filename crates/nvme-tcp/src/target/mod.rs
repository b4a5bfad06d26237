//! A target and the server of its streams.
//!
//! - [`Target`]: subsystems with namespaces, and the controllers that hosts have connected to;
//! - [`Server`]: serves a target on any number of streams;
//! - [`BlockingExecutor`], [`Threads`]: threads for storage that may block.

mod blocking;
mod server;

pub use crate::core::controller::{Target, TargetConfig, TargetError, TargetStats, TransportConfig, derived_serial};
pub use blocking::{BlockingExecutor, Threads};
pub use server::{ServeError, Server};
