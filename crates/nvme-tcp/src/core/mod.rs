//! Sans-IO state machines: bytes and the time in, bytes out; no sockets, clocks or tasks.
//!
//! - [`queue`]: one connection of a host;
//! - [`controller`]: subsystems, controllers, and their connections.
//!
//! [`host`](crate::host) and [`target`](crate::target) run them over streams.

pub mod controller;
pub mod queue;
