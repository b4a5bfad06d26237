//! Ethernet frames, from the destination address to the last byte of the payload.
//!
//! Preamble, padding, frame check sequence and gap are not stored, but they occupy the line (IEEE 802.3 clauses 3.2 and
//! 4.4.2).

use bytes::{Bytes, BytesMut};
use core::fmt;

/// An Ethernet frame without its frame check sequence. Immutable: clones share the bytes.
///
/// ```
/// use offload_wire::frame::Frame;
///
/// let frame = Frame::from(vec![0; 1514]);
/// assert_eq!(frame.len(), 1514);
/// assert_eq!(frame.wire_len(), 1538);
/// assert_eq!(Frame::from(vec![0; 54]).wire_len(), 84, "a short frame is padded to 60 bytes");
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Frame {
    /// Bytes of the frame, starting with the Ethernet header.
    pub data: Bytes,
}

impl Frame {
    /// Creates a frame of these bytes, which start with the Ethernet header.
    pub const fn new(data: Bytes) -> Frame {
        Frame { data }
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.data.len()
    }

    /// Tests whether the frame has no bytes.
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// Returns the time on the line in byte times, until the next frame can start.
    pub fn wire_len(&self) -> usize {
        self.data.len().max(SHORTEST) + PREAMBLE + CHECK_SEQUENCE + GAP
    }
}

impl From<Vec<u8>> for Frame {
    fn from(data: Vec<u8>) -> Frame {
        Frame::new(data.into())
    }
}

impl From<Bytes> for Frame {
    fn from(data: Bytes) -> Frame {
        Frame::new(data)
    }
}

impl From<BytesMut> for Frame {
    fn from(data: BytesMut) -> Frame {
        Frame::new(data.freeze())
    }
}

/// Prints the length and the first bytes only, because a frame may be long and may hold secrets.
impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frame({} bytes", self.len())?;
        // The Ethernet header identifies the frame, and contains no payload.
        if let Some(header) = self.data.first_chunk::<14>() {
            f.write_str(",")?;
            for byte in header {
                write!(f, " {byte:02x}")?;
            }
        }
        f.write_str(")")
    }
}

/// Minimum number of bytes on the line, without frame check sequence.
const SHORTEST: usize = 60;
/// Size of preamble and start of frame in bytes.
const PREAMBLE: usize = 8;
/// Size of the frame check sequence in bytes.
const CHECK_SEQUENCE: usize = 4;
/// Gap between two frames in byte times.
const GAP: usize = 12;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_contains_only_the_header() {
        let mut data = vec![0xaa; 14];
        data.extend_from_slice(&[0x5e; 100]);
        let printed = format!("{:?}", Frame::from(data));
        assert!(printed.starts_with("Frame(114 bytes, aa aa") && !printed.contains("5e"), "{printed}");
        assert_eq!(format!("{:?}", Frame::default()), "Frame(0 bytes)");
    }
}
