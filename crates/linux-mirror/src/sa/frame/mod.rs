//! What agent and mirror say to each other, over any stream of bytes.
//!
//! Each message is a frame of SLIP (RFC 1055): `END`, the message, `END`, with `END` and `ESC` escaped in between. So who joins in the middle
//! of a stream, as an agent does that comes back on a virtio-serial port, finds the next message. A message is its kind (1 byte)
//! and its fields, numbers in network order; none is the beginning of another, so what was cut off is not understood.
//!
//! - `message`: messages to bytes and back; `field`: what they are made of.
//!
//! Bounds: a message has at most [`MOST_BYTES`] bytes, and a decoder holds no more than one.

mod field;
mod message;

pub use message::Message;

use field::Reader;
use zeroize::{Zeroize, Zeroizing};

/// Bytes to messages. What it held is overwritten, for it may have been a key.
///
/// ```
/// use linux_mirror::sa::{Decoder, Message, encode};
///
/// let mut bytes = b"the end of something".to_vec();
/// bytes.extend(encode(&Message::Ask(1)).iter());
/// let mut said = Vec::new();
/// Decoder::new().decode(&bytes, |message| said.push(message));
/// assert!(said[0].is_err() && matches!(said[1], Ok(Message::Ask(1))));
/// ```
#[derive(Debug)]
pub struct Decoder {
    frame: Frame,
    /// The last byte announced an escaped one.
    escaped: bool,
    /// What there is of the frame is no message; the rest is passed over.
    bad: Option<FrameError>,
}

/// The frame that is being received, without escapes.
struct Frame(Zeroizing<Vec<u8>>);

impl core::fmt::Debug for Frame {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Frame({} bytes)", self.0.len())
    }
}

/// Why a frame is no message: its sender's fault.
///
/// ```
/// use linux_mirror::sa::{Decoder, FrameError};
///
/// let mut said = Vec::new();
/// Decoder::new().decode(&[0xc0, 99, 0xc0], |message| said.extend(message.err()));
/// assert_eq!(said, [FrameError::Kind(99)]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// No message is so long.
    #[error("a frame has more than {MOST_BYTES} bytes")]
    TooLong,
    /// An escape that is not one.
    #[error("a frame has an escape that SLIP does not know")]
    Escape,
    /// Another kind of message.
    #[error("no message is of kind {0}")]
    Kind(u8),
    /// The message ends too early, or goes on too long.
    #[error("a message is not as long as its fields")]
    Length,
    /// A field that cannot have this value.
    #[error("a field of a message has an impossible value: {0}")]
    Value(&'static str),
}

impl Default for Decoder {
    fn default() -> Decoder {
        Decoder::new()
    }
}

impl Decoder {
    /// In the middle of a stream, perhaps.
    pub fn new() -> Decoder {
        // All the room at once: what grows leaves copies behind.
        Decoder { frame: Frame(Zeroizing::new(Vec::with_capacity(MOST_BYTES))), escaped: false, bad: None }
    }

    /// Takes the next bytes of the stream, and gives `take` the messages that are whole.
    pub fn decode(&mut self, bytes: &[u8], mut take: impl FnMut(Result<Message, FrameError>)) {
        for byte in bytes {
            match *byte {
                END => {
                    let ended = core::mem::take(&mut self.escaped);
                    let bad = self.bad.take().or(ended.then_some(FrameError::Escape));
                    let frame = &mut self.frame.0;
                    // Between two frames there may be several.
                    if !frame.is_empty() || bad.is_some() {
                        take(bad.map_or_else(|| Message::decode(Reader(frame)), Err));
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
                    if self.frame.0.len() == MOST_BYTES {
                        self.bad = self.bad.or(Some(FrameError::TooLong));
                    } else {
                        self.frame.0.push(byte);
                    }
                }
            }
        }
    }
}

/// A message as the stream carries it.
///
/// ```
/// use linux_mirror::sa::{Message, encode};
///
/// assert_eq!(encode(&Message::Ask(1))[..], [0xc0, 2, 0, 1, 0xc0]);
/// ```
pub fn encode(message: &Message) -> Zeroizing<Vec<u8>> {
    let plain = message.encoded();
    let mut bytes = Zeroizing::new(Vec::with_capacity(2 * MOST_BYTES + 2));
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

/// The version of what is said here.
pub const VERSION: u16 = 1;
/// How long a message may be.
pub const MOST_BYTES: usize = 512;
const END: u8 = 0xc0;
const ESC: u8 = 0xdb;
const ESCAPED_END: u8 = 0xdc;
const ESCAPED_ESC: u8 = 0xdd;
