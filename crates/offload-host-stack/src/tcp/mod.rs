//! TCP, one connection at a time and without I/O.
//!
//! ```text
//!   segment (headers)                    stack
//!       |  parsed                          ^ packets, by way of the device
//!       v                                  |
//!   input --> acknowledge --> recovery --> output <-- send_queue (RecordSource, sealing)
//!       |         |             |            |
//!       v         v             v            v
//!   recv_queue   rtt    loss, congestion   flight (what is unacknowledged)
//! ```
//!
//! - [`connection`]: the state of a connection; [`application`]: what the application does to it; [`report`]: what it tells;
//!   [`device_events`]: what the device has to say about it;
//! - [`input`], [`acknowledge`]: a segment arrives (RFC 9293 3.10.7); [`path`]: what peer and path take;
//!   [`recovery`]: what loss and repair lead to;
//! - [`output`]: what may be sent now; [`deadlines`]: what happens when nothing arrives; [`liveness`]: for how
//!   long;
//! - [`send_queue`], [`sealing`], [`recv_queue`], [`ranges`]: the bytes;
//! - [`outbox`], [`acks`], [`closed_window`], [`backoff`], [`pace`], [`labels`], [`tally`]: parts of a connection that own what changes
//!   together;
//! - [`flight`], [`loss`], [`rtt`], [`congestion`], [`ecn`]: the network, as far as it can be known.

pub(crate) mod acknowledge;
mod acks;
mod application;
mod backoff;
mod closed_window;
pub(crate) mod congestion;
pub(crate) mod connection;
pub(crate) mod deadlines;
mod device_events;
pub(crate) mod ecn;
pub(crate) mod flight;
pub(crate) mod input;
mod labels;
mod liveness;
pub(crate) mod loss;
mod outbox;
pub(crate) mod output;
mod pace;
mod path;
pub(crate) mod ranges;
pub(crate) mod recovery;
pub(crate) mod recv_queue;
mod report;
pub(crate) mod rtt;
pub(crate) mod sealing;
pub(crate) mod segment;
pub(crate) mod send_queue;
pub(crate) mod state;
mod tally;

pub(crate) use connection::Connection;
pub use report::{ConnectionError, Readiness, TcpStats};
pub use state::State;
