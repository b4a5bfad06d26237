//! Framing on a byte stream: each frame follows its length, a big-endian number of four bytes. QEMU's `-netdev stream`
//! (and `-netdev socket`) use this format.
//!
//! Invariant: a [`FrameReader`] buffers less than one frame of the maximum length, plus the bytes of one push.

use crate::frame::Frame;
use bytes::BytesMut;

/// A parser for a stream of frames, which may be split anywhere.
///
/// ```
/// use offload_wire::frame::Frame;
/// use offload_wire::attach::{FrameReader, frame_prefix};
///
/// let frame = Frame::from(vec![7; 60]);
/// let stream = [&frame_prefix(&frame)[..], &frame.data].concat();
///
/// let mut reader = FrameReader::default();
/// reader.push(&stream[..10]);
/// assert_eq!(reader.next_frame(), Ok(None));
/// reader.push(&stream[10..]);
/// assert_eq!(reader.next_frame(), Ok(Some(frame)));
/// ```
#[derive(Debug, Default)]
pub struct FrameReader {
    unread: BytesMut,
}

/// The error for a frame length above the maximum: the stream is corrupt, or not a stream of frames.
///
/// ```
/// use offload_wire::attach::{FrameReader, FrameTooLong};
///
/// let mut reader = FrameReader::default();
/// reader.push(b"HTTP");
/// assert_eq!(reader.next_frame(), Err(FrameTooLong(0x4854_5450)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a frame of {0} bytes was announced; at most {MAX_FRAME_BYTES} are accepted")]
pub struct FrameTooLong(pub u32);

impl FrameReader {
    /// Appends the next bytes of the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        self.unread.extend_from_slice(bytes);
    }

    /// Returns the next complete frame. Empty frames are skipped.
    ///
    /// # Errors
    /// If the announced frame is too long. The rest of the stream is then unreadable.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameTooLong> {
        while let Some(prefix) = self.unread.first_chunk::<4>() {
            let announced = u32::from_be_bytes(*prefix);
            // Checked before the bytes arrive: a forged length must not make the buffer grow.
            if announced > MAX_FRAME_BYTES {
                return Err(FrameTooLong(announced));
            }
            let bytes = announced as usize;
            if self.unread.len() < PREFIX + bytes {
                break;
            }
            let frame = self.unread.split_to(PREFIX + bytes).split_off(PREFIX);
            if !frame.is_empty() {
                return Ok(Some(Frame::from(frame)));
            }
        }
        Ok(None)
    }
}

/// Returns the length prefix of a frame.
pub fn frame_prefix(frame: &Frame) -> [u8; PREFIX] {
    (frame.len() as u32).to_be_bytes()
}

/// Size of a length in bytes.
const PREFIX: usize = 4;
/// Maximum length of a frame, as in QEMU: a packet of 64 KiB and 4 KiB of headers.
const MAX_FRAME_BYTES: u32 = 64 * 1024 + 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn frames_survive_any_cutting_of_the_stream(
            frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..3000), 0..20),
            cuts in prop::collection::vec(1usize..2000, 1..20),
        ) {
            let frames: Vec<Frame> = frames.into_iter().map(Frame::from).collect();
            let stream: Vec<u8> = frames.iter().flat_map(|frame| [&frame_prefix(frame)[..], &frame.data].concat()).collect();
            let mut reader = FrameReader::default();
            let mut read = Vec::new();
            let (mut rest, mut cuts) = (&stream[..], cuts.iter().cycle());
            while !rest.is_empty() {
                let piece = rest.len().min(*cuts.next().unwrap());
                reader.push(&rest[..piece]);
                rest = &rest[piece..];
                while let Some(frame) = reader.next_frame().unwrap() {
                    read.push(frame);
                }
            }
            prop_assert_eq!(read, frames);
        }

        #[test]
        fn any_bytes_give_frames_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..3000)) {
            let mut reader = FrameReader::default();
            reader.push(&bytes);
            while let Ok(Some(frame)) = reader.next_frame() {
                prop_assert!(!frame.is_empty());
            }
        }
    }

    #[test]
    fn excessive_length_is_a_permanent_error() {
        let mut reader = FrameReader::default();
        // 0x11000 is the maximum of 64 KiB and 4 KiB.
        reader.push(&[0, 1, 0x10, 1]);
        assert_eq!(reader.next_frame(), Err(FrameTooLong(MAX_FRAME_BYTES + 1)));
        assert_eq!(reader.next_frame(), Err(FrameTooLong(MAX_FRAME_BYTES + 1)));
    }

    #[test]
    fn empty_frames_are_skipped() {
        let mut reader = FrameReader::default();
        reader.push(&[0, 0, 0, 0, 0, 0, 0, 1, 9]);
        assert_eq!(reader.next_frame(), Ok(Some(Frame::from(vec![9]))));
        assert_eq!(reader.next_frame(), Ok(None));
    }
}
