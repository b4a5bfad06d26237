//! QUIC packet protection (RFC 9001 5 and 6) as pure functions, shared by a QUIC stack on a host and a QUIC engine in a
//! NIC. Contains no clocks, tables or I/O.
//!
//! ```text
//!  secret -- TrafficSecret: expand --> PacketKey of a generation, HeaderKey of the connection
//!  plain packet, path, number -- seal: tag, then mask --> packet
//!  plain packet, number <-- UnmaskedHeader: number length, key phase; open: number, tag -- packet
//! ```
//!
//! - [`secret`]: derivation of keys and of the next secret from a traffic secret;
//! - [`packet`]: sealing and opening of whole packets; [`key`]: the AEAD and its nonces; [`mask`]: header protection;
//! - [`number`]: expansion of truncated packet numbers.
//!
//! A packet is the bytes of one QUIC packet with a short header, from its first byte to the end of its tag.
//!
//! ```
//! use offload_api::QuicCipher;
//! use offload_quic::{TrafficSecret, UnmaskedHeader, seal};
//!
//! let secret = TrafficSecret::new(QuicCipher::Aes128Gcm, &[7; 32])?;
//! let (key, header_key) = (secret.packet_key(), secret.header_key());
//! // First byte, connection ID, number 513 in two bytes, payload, room for the tag.
//! let mut packet = [&[0x41, 0xaa, 0xbb, 2, 1][..], b"hello", &[0; 16]].concat();
//! seal(&key, &header_key, &mut packet, 3, 1, 513)?;
//!
//! let header = UnmaskedHeader::read(&header_key, &packet, 3)?;
//! let number = header.number(Some(500));
//! assert_eq!((number, header.key_phase()), (513, false));
//! header.open(&key, &mut packet, 1, number)?;
//! assert_eq!(&packet[..10], b"\x41\xaa\xbb\x02\x01hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

pub mod key;
pub mod mask;
pub mod number;
pub mod packet;
pub mod secret;

pub use key::PacketKey;
pub use mask::HeaderKey;
pub use packet::{QuicOpenError, TooShort, UnmaskedHeader, seal};
pub use secret::{SecretLengthError, TrafficSecret};

/// Size of a tag in bytes, for all ciphers.
pub const TAG: usize = resumable_aead::TAG_LEN;
/// Size of the sample for a mask in bytes.
pub const SAMPLE: usize = 16;
/// Maximum size of a packet number in a header, in bytes.
const MAX_NUMBER_BYTES: usize = 4;

/// Compiles and runs the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
