//! ESP (RFC 4303) as pure functions and small state machines: what an IPsec stack on a host and an IPsec engine in a
//! NIC have in common. No clocks, no tables, no I/O.
//!
//! ```text
//!  plain packet -- Outer: headers -- Cipher: trailer, ICV --> ESP packet
//!  plain packet <-- unwrap: headers -- Cipher: ICV, trailer -- EspAt: where ESP is -- ESP packet
//!                          SendNumber, ReplayWindow, Meter: may it be, and under which number
//! ```
//!
//! - [`checksum`]: the checksums of a packet that is sealed or opened;
//! - [`cipher`]: sealing and opening what is behind the IV;
//! - [`outer`]: what stands in front of it; [`inner`]: what is left once that is gone;
//! - [`selectors`]: what packets find by their addresses and ports;
//! - [`number`]: sequence numbers out, the replay window in; [`lifetime`]: how much is left.
//!
//! Frames are whole Ethernet frames, for that is what both sides have in their hands.
//!
//! ```
//! use bytes::BytesMut;
//! use offload_esp::{Cipher, EspAt, Outer, unwrap};
//! use offload_api::{Direction, EspKey, EspSuite, SaParams};
//!
//! let key = EspKey::new(EspSuite::Aes128Gcm, &[7; 20]).unwrap();
//! let sa = SaParams::new(Direction::Transmit, 0x1001, [10, 0, 0, 1].into(), [10, 0, 0, 2].into(), key);
//! let cipher = Cipher::new(&sa);
//! // Ethernet, IPv4 and ICMP headers, and a word.
//! let mut plain = vec![0; 12];
//! plain.extend_from_slice(&[0x08, 0, 0x45, 0, 0, 33, 0, 1, 0, 0, 64, 1, 0x66, 0xd9, 10, 0, 0, 1, 10, 0, 0, 2]);
//! plain.extend_from_slice(b"\x08\x00\x01\x02\x00\x01\x00\x01hello");
//!
//! let outer = Outer::for_packet(&sa, &plain[14..])?;
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

pub use cipher::{Cipher, OpenError, Trailer};
pub use inner::{EspAt, UnwrapError, unwrap};
pub use lifetime::{Meter, Reached};
pub use number::{NotNew, ReplayWindow, SendNumber};
pub use outer::{Outer, WrapError};
pub use selectors::SelectorTable;

/// Bytes of an Ethernet header.
pub const ETHERNET: usize = offload_formats::frame::ETHERNET_BYTES;
/// Bytes of an ESP header with its IV.
pub const ESP_AND_IV: usize = 16;
/// Bytes of an ICV.
pub const ICV: usize = 16;
/// The port of ESP in UDP (RFC 3948).
pub const UDP_ENCAPSULATION_PORT: u16 = offload_formats::esp::UDP_PORT;

/// Bytes behind the payload of `payload` bytes: padding, pad length, next header, ICV. RFC 4303 2.4: what is encrypted
/// ends at a multiple of 4 bytes.
///
/// ```
/// assert_eq!(offload_esp::trailer_len(2), 18);
/// assert_eq!(offload_esp::trailer_len(3), 21);
/// ```
pub const fn trailer_len(payload: usize) -> usize {
    (payload + 2).next_multiple_of(4) - payload + ICV
}

/// The README's example runs with the others.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
