//! QUIC (RFC 9000, 9001, 9002, 9221; several paths by draft-ietf-quic-multipath-21) whose 1-RTT packets an offload NIC seals
//! and opens, where there is one, and the CPU where there is none.
//!
//! ```text
//!  application -- SendStream, ReceiveStream -- Connection -- Endpoint, Driver -- DatagramSocket (host stack, tokio)
//!                                                |               |
//!                                      noq-proto: the protocol   '-- asks, contexts, keys --> NIC
//! ```
//!
//! - [`Endpoint`] (`endpoint.rs`): a socket's connections, and the [`Driver`] that runs them, for a task to poll;
//! - [`Connection`], [`SendStream`], [`ReceiveStream`]: what an application works with;
//! - `core/`: the endpoint without sockets, clocks and tasks; which packets a device seals, what it is told of connections;
//! - `crypto/`: handshakes by rustls, and the keys that state machine and device share;
//! - [`Config`], [`Offload`]: how it is set up; [`Closed`], [`StreamError`]: what goes wrong.
//!
//! Whatever the device refuses, loses or does not know, software does: the wire shows the same packets. 0-RTT and version 2
//! are left out.

#![forbid(unsafe_code)]

mod config;
mod connection;
mod core;
mod crypto;
mod endpoint;
mod error;
mod stream;

pub use crate::core::Counters;
pub use config::{AeadLimits, ClientTls, Config, Offload, ServerTls};
pub use connection::{Connection, PathStatistics, Statistics};
pub use crypto::session::NoInitialSuite;
pub use endpoint::{Connecting, Driver, Endpoint};
pub use error::{Closed, ConnectError, DatagramError, PathError, StreamError};
pub use stream::{ReceiveStream, SendStream};

/// The README's example is run with the others.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
