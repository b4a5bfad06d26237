//! The host side: one connection of a controller, commands in, completions out.
//!
//! - [`Queue`]: the state machine of one connection: commands and PDUs in, PDUs and completions out;
//! - [`Buffer`]: memory that commands read into;
//! - [`commands`]: commands made from what they are to do.
//!
//! ```text
//!   submit -> Queue -- poll_transmit -> stream -- handle_segment -> Queue -- poll_finished -> completion, buffer
//! ```
//!
//! Connecting, keeping alive, reconnecting and replaying are the shell's ([`shell::host`](crate::shell::host)).
//!
//! Invariant: a command that was submitted comes back exactly once, with its buffer: finished, or given up.

pub mod buffer;
pub mod commands;
mod landing;
mod queue;
mod submission;

pub use buffer::Buffer;
pub use queue::Queue;
pub use submission::{Abandoned, Finished, Order, Payload, QueueConfig, QueueError, Submission};
