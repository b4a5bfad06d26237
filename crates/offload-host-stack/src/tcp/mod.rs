//! TCP without I/O, one connection at a time.
//!
//! ```text
//!   segment (headers)                    stack
//!       |  parsed                          ^ packets, through the device
//!       v                                  |
//!   input --> acknowledge --> recovery --> output <-- send_queue (RecordSource, sealing)
//!       |         |             |            |
//!       v         v             v            v
//!   recv_queue   rtt    loss, congestion   flight (unacknowledged data)
//! ```
//!
//! - [`connection`]: the state of a connection; [`application`]: the application's operations; [`report`]: errors,
//!   readiness and figures; [`device_events`]: events of the device.
//! - [`input`], [`acknowledge`]: received segments (RFC 9293 3.10.7); [`path`]: limits of peer and path; [`recovery`]:
//!   responses to losses.
//! - [`output`]: transmission; [`deadlines`]: timers; [`liveness`]: limits on silence.
//! - [`send_queue`], [`sealing`], [`recv_queue`], [`ranges`]: the bytes.
//! - [`outbox`], [`acks`], [`closed_window`], [`backoff`], [`pace`], [`labels`], [`tally`]: parts of a connection, each
//!   with the data that change together.
//! - [`flight`], [`loss`], [`rtt`], [`congestion`], [`ecn`]: the state of the network, as far as it is known.

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
pub use state::TcpState;
