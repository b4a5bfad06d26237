//! What it takes to plug a wire into something outside: how frames are written down on a stream, and how the
//! super-segments of a kernel become frames and frames become super-segments.
//!
//! ```text
//!  socket, device file --bytes--> FrameReader, Resegmenter --Frame--> Port --> wire
//!                      <--bytes-- length, Coalescer <------Frame----- Port <--
//! ```
//!
//! - [`length_prefix`]: frames on a byte stream, each behind its length, as QEMU's socket network devices have them;
//! - [`vnet_header`]: the virtio network header, by which a kernel says what is left to do to a packet;
//! - [`resegment`]: a packet of up to 64 KiB with half a checksum in, frames that fit a wire out;
//! - [`coalesce`]: frames in, such packets out, where that changes nothing for the receiver.
//!
//! Everything here is sans-IO; the sockets and files are the runtime's.

pub mod coalesce;
pub mod length_prefix;
pub mod resegment;
pub mod vnet_header;

pub use coalesce::{Coalescer, OutPacket};
pub use length_prefix::{FrameReader, FrameTooLong, frame_prefix};
pub use resegment::{MalformedPacket, Resegmenter};
pub use vnet_header::{Gso, GsoKind, InvalidVnetHeader, PartialChecksum, VnetHeader};
