//! What it takes to plug a wire into something outside: how frames are written down on a stream.
//!
//! - [`length_prefix`]: frames on a byte stream, each behind its length, as QEMU's socket network devices have them.
//!
//! Everything here is sans-IO; the sockets and files are the runtime's.

pub mod length_prefix;

pub use length_prefix::{FrameReader, FrameTooLong, frame_prefix};
