//! The protocol between agent and mirror, over any byte stream.
//!
//! Each message is a SLIP frame (RFC 1055): `END`, the message, `END`, with `END` and `ESC` escaped inside. A peer that
//! joins in the middle of a stream, such as an agent that returns on a virtio-serial port, finds the next message. A
//! message consists of its type (1 byte) and its fields, with numbers in network byte order. No message is a prefix of
//! another, so a truncated message is detected.
//!
//! - `message`: encoding of messages; `field`: encoding of fields.
//!
//! Bounds: a message has at most [`MAX_FRAME_BYTES`] bytes, and a decoder holds at most one message.

mod field;
mod message;

pub use message::Message;

use field::FieldReader;
use zeroize::{Zeroize, Zeroizing};

/// A decoder from bytes to messages. Its buffer is overwritten after use, because it may have contained a key.
///
/// ```
/// use linux_mirror::sa::{FrameDecoder, Message, encode};
///
/// let mut bytes = b"the end of something".to_vec();
/// bytes.extend(encode(&Message::Ask(1)).iter());
/// let mut said = Vec::new();
/// FrameDecoder::new().decode(&bytes, |message| said.push(message));
/// assert!(said[0].is_err() && matches!(said[1], Ok(Message::Ask(1))));
/// ```
#[derive(Debug)]
pub struct FrameDecoder {
    frame: PartialFrame,
    /// Whether the last byte was an escape.
    escaped: bool,
    /// Error of the current frame, whose remaining bytes are skipped.
    bad: Option<FrameError>,
}

/// The current frame, unescaped.
struct PartialFrame(Zeroizing<Vec<u8>>);

impl core::fmt::Debug for PartialFrame {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Frame({} bytes)", self.0.len())
    }
}

/// Error of a malformed frame.
///
/// ```
/// use linux_mirror::sa::{FrameDecoder, FrameError};
///
/// let mut said = Vec::new();
/// FrameDecoder::new().decode(&[0xc0, 99, 0xc0], |message| said.extend(message.err()));
/// assert_eq!(said, [FrameError::Kind(99)]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The frame exceeds the maximum length of a message.
    #[error("a frame has more than {MAX_FRAME_BYTES} bytes")]
    TooLong,
    /// The frame contains an invalid escape.
    #[error("a frame has an escape that SLIP does not know")]
    Escape,
    /// The message type is unknown.
    #[error("no message is of kind {0}")]
    Kind(u8),
    /// The message is shorter or longer than its fields.
    #[error("a message is not as long as its fields")]
    Length,
    /// A field has an invalid value.
    #[error("a field of a message has an impossible value: {0}")]
    Value(&'static str),
}

impl Default for FrameDecoder {
    fn default() -> FrameDecoder {
        FrameDecoder::new()
    }
}

impl FrameDecoder {
    /// Returns a decoder, which may start in the middle of a stream.
    pub fn new() -> FrameDecoder {
        // The whole capacity is allocated at once, because a growing vector would leave copies behind.
        FrameDecoder {
            frame: PartialFrame(Zeroizing::new(Vec::with_capacity(MAX_FRAME_BYTES))),
            escaped: false,
            bad: None,
        }
    }

    /// Processes the next bytes of the stream, and passes complete messages to `take`.
    pub fn decode(&mut self, bytes: &[u8], mut take: impl FnMut(Result<Message, FrameError>)) {
        for byte in bytes {
            match *byte {
                END => {
                    let ended = core::mem::take(&mut self.escaped);
                    let bad = self.bad.take().or(ended.then_some(FrameError::Escape));
                    let frame = &mut self.frame.0;
                    // Consecutive frames may have one or two `END` bytes between them.
                    if !frame.is_empty() || bad.is_some() {
                        take(bad.map_or_else(|| Message::decode(FieldReader(frame)), Err));
                    }
                    frame.zeroize();
                }
                ESC if !self.escaped => self.escaped = true,
                byte => {
                    let byte = match (core::mem::take(&mut self.escaped), byte) {
                        (false, byte) => byte,
                        (true, ESCAPED_END) => END,
                        (true, ESCAPED_ESC) => ESC,
                        (true, _) => {
                            self.bad = self.bad.or(Some(FrameError::Escape));
                            continue;
                        }
                    };
                    // The rest of a long frame is skipped, so that a peer cannot make the buffer grow.
                    if self.frame.0.len() == MAX_FRAME_BYTES {
                        self.bad = self.bad.or(Some(FrameError::TooLong));
                    } else {
                        self.frame.0.push(byte);
                    }
                }
            }
        }
    }
}

/// Encodes a message as a frame for the stream.
///
/// ```
/// use linux_mirror::sa::{Message, encode};
///
/// assert_eq!(encode(&Message::Ask(1))[..], [0xc0, 2, 0, 1, 0xc0]);
/// ```
pub fn encode(message: &Message) -> Zeroizing<Vec<u8>> {
    let plain = message.encoded();
    // Room for the worst case, in which each byte is escaped: a growing vector would leave copies of keys behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(2 * MAX_FRAME_BYTES + 2));
    bytes.push(END);
    for byte in plain.iter() {
        match *byte {
            END => bytes.extend([ESC, ESCAPED_END]),
            ESC => bytes.extend([ESC, ESCAPED_ESC]),
            byte => bytes.push(byte),
        }
    }
    bytes.push(END);
    bytes
}

/// Version of the protocol.
pub const VERSION: u16 = 1;
/// Maximum length of a message in bytes.
pub const MAX_FRAME_BYTES: usize = 512;
const END: u8 = 0xc0;
const ESC: u8 = 0xdb;
const ESCAPED_END: u8 = 0xdc;
const ESCAPED_ESC: u8 = 0xdd;
