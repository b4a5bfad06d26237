//! The state machines: bytes and the time in, bytes out; no sockets, clocks or tasks.
//!
//! - [`queue`]: one connection of a host;
//! - [`controller`]: what serves commands: subsystems, controllers, and the connections that are their queues.
//!
//! [`host`](crate::host) and [`target`](crate::target) drive them over streams.

pub mod controller;
pub mod queue;
