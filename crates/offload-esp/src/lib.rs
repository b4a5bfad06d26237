//! ESP (RFC 4303) as pure functions and small state machines, shared by an IPsec stack on a host and an IPsec engine in
//! a NIC. Contains no clocks, tables or I/O.
//!
//! ```text
//!  plain packet -- OuterHeaders: headers -- EspCipher: trailer, ICV --> ESP packet
//!  plain packet <-- unwrap: headers -- EspCipher: ICV, trailer -- EspAt: position of ESP -- ESP packet
//!                          SendNumber, ReplayWindow, LifetimeMeter: permission, and the sequence number
//! ```
//!
//! - [`checksum`]: checksums of sealed and opened packets;
//! - [`cipher`]: sealing and opening of the bytes after the IV;
//! - [`outer`]: the headers in front of ESP; [`inner`]: finding and removing them;
//! - [`selectors`]: look-up of values by a packet's addresses and ports;
//! - [`number`]: sequence numbers of sent packets, replay window of received ones; [`lifetime`]: limits of an SA.
//!
//! Frames are whole Ethernet frames, because host and device both handle these.
//!
//! ```
//! use bytes::BytesMut;
//! use offload_esp::{EspCipher, EspAt, OuterHeaders, unwrap};
//! use offload_api::{Direction, EspKey, EspSuite, SaParams};
//!
//! let key = EspKey::new(EspSuite::Aes128Gcm, &[7; 20]).unwrap();
//! let sa = SaParams::new(Direction::Transmit, 0x1001, [10, 0, 0, 1].into(), [10, 0, 0, 2].into(), key);
//! let cipher = EspCipher::new(&sa);
//! // Ethernet, IPv4 and ICMP headers, and a word.
//! let mut plain = vec![0; 12];
//! plain.extend_from_slice(&[0x08, 0, 0x45, 0, 0, 33, 0, 1, 0, 0, 64, 1, 0x66, 0xd9, 10, 0, 0, 1, 10, 0, 0, 2]);
//! plain.extend_from_slice(b"\x08\x00\x01\x02\x00\x01\x00\x01hello");
//!
//! let outer = OuterHeaders::for_packet(&sa, &plain[14..])?;
//! let mut frame = BytesMut::new();
//! outer.wrap(&cipher, &plain, 1, &mut frame);
//! let at = EspAt::find(&frame).expect("ESP");
//! assert_eq!((at.spi, at.low), (0x1001, 1));
//!
//! let trailer = cipher.open(&mut frame, &at, 1)?;
//! let inner = unwrap(frame, &at, &trailer, &sa)?;
//! assert_eq!(inner, plain);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

pub mod checksum;
pub mod cipher;
pub mod inner;
pub mod lifetime;
pub mod number;
pub mod outer;
pub mod selectors;

pub use cipher::{EspCipher, EspOpenError, EspTrailer};
pub use inner::{EspAt, UnwrapError, unwrap};
pub use lifetime::{LifetimeMeter, ReachedLimit};
pub use number::{NotNew, ReplayWindow, SendNumber};
pub use outer::{OuterHeaders, WrapError};
pub use selectors::SelectorTable;

/// Size of an Ethernet header in bytes.
pub const ETHERNET: usize = offload_formats::frame::ETHERNET_BYTES;
/// Size of an ESP header with its IV in bytes.
pub const ESP_AND_IV: usize = 16;
/// Size of an ICV in bytes.
pub const ICV: usize = 16;
/// UDP port of ESP (RFC 3948).
pub const UDP_ENCAPSULATION_PORT: u16 = offload_formats::esp::UDP_PORT;

/// Returns the number of bytes after a payload of `payload` bytes: padding, pad length, next header and ICV. The
/// encrypted part is a multiple of 4 bytes long (RFC 4303 2.4).
///
/// ```
/// assert_eq!(offload_esp::trailer_len(2), 18);
/// assert_eq!(offload_esp::trailer_len(3), 21);
/// ```
pub const fn trailer_len(payload: usize) -> usize {
    (payload + 2).next_multiple_of(4) - payload + ICV
}

/// Compiles and runs the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
