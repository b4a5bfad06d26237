//! Attachments of a wire to other programs: framing on a byte stream, and conversion between the frames of a wire and
//! the super-segments of a kernel.
//!
//! ```text
//!  socket, device file --bytes--> FrameReader, Resegmenter --Frame--> Port --> wire
//!                      <--bytes-- length, Coalescer <------Frame----- Port <--
//! ```
//!
//! - [`length_prefix`]: frames on a byte stream, each preceded by its length, as in QEMU's socket network devices;
//! - [`vnet_header`]: the virtio network header, in which a kernel describes the unfinished work on a packet;
//! - [`resegment`]: cutting of packets up to 64 KiB, with partial checksums, into frames that fit a wire;
//! - [`coalesce`]: the reverse: joining of frames into such packets, where this is invisible to the receiver.
//!
//! The module is sans-IO: sockets and files belong to the runtime.

pub mod coalesce;
pub mod length_prefix;
pub mod resegment;
pub mod vnet_header;

pub use coalesce::{Coalescer, OutPacket};
pub use length_prefix::{FrameReader, FrameTooLong, frame_prefix};
pub use resegment::{MalformedPacket, Resegmenter};
pub use vnet_header::{Gso, GsoKind, InvalidVnetHeader, PartialChecksum, VnetHeader};
