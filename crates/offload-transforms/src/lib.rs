//! Memory-to-memory transforms of an accelerator, as pure functions without a device, a queue or a clock.
//!
//! A [`Transform`] is a specification with its keys. A [`Session`] is a transform with expanded keys, and runs in both
//! directions: [`TransformDirection::Apply`] seals, encrypts, compresses or adds protection information, and
//! [`TransformDirection::Undo`] reverses this. The source is a list of pieces. The result is appended to a target,
//! which never grows: a longer result fails with [`Fault::OutOfSpace`], so a few bytes of compressed data cannot
//! exhaust the memory.
//!
//! - `session.rs`: [`Transform`], [`Session`], and chains;
//! - `aead.rs`, `cbc_hmac.rs` (with `constant_time.rs` and `hash.rs`), `stream.rs` (AES-CTR and AES-CMAC), `xts.rs`:
//!   ciphers;
//! - [`protection`]: T10-DIF and NVMe protection information;
//! - [`Compressor`]: the interface of compression, implemented by the crate `offload-compression`; `copy.rs`: copies with a CRC, and padding;
//! - [`pieces`], `fault.rs`, `secret.rs`: sources and targets, errors, keys.
//!
//! # Example
//!
//! Compresses, encrypts and protects a block in one run:
//!
//! ```
//! use bytes::{Bytes, BytesMut};
//! use offload_transforms::protection::{Check, Format, Guard, ProtectionType, BlockProtection};
//! use offload_compression::Compression;
//! use offload_transforms::{Parameters, SecretBytes, Session, Transform, TransformDirection, Tweak};
//!
//! let wire = Format { kind: ProtectionType::Type1, guard: Guard::Crc16, ..Format::default() };
//! let session = Session::new(&Transform::Chain(vec![
//!     Compression::Deflate.at_level(1),
//!     Transform::Pad { unit: 512 },
//!     Transform::Xts { key: SecretBytes::new((0..64).collect()), unit: 512, tweak: Tweak::Unit },
//!     Transform::Protection(BlockProtection { memory: None, wire: Some(wire), check: Check::ALL }),
//! ]))?;
//! let at_lba_1000 = Parameters { iv: 1000u128.to_le_bytes(), aad: &[] };
//! let text = Bytes::from(vec![b'a'; 4096]);
//!
//! let mut stored = BytesMut::with_capacity(8192);
//! session.run(TransformDirection::Apply, at_lba_1000, &[text.clone()], &mut stored)?;
//! assert_eq!(stored.len(), 520, "one block, with its protection information");
//!
//! let mut read = BytesMut::with_capacity(4096);
//! session.run(TransformDirection::Undo, at_lba_1000, &[stored.freeze()], &mut read)?;
//! assert_eq!(read, text);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod aead;
mod aes_key;
mod cbc_hmac;
mod constant_time;
mod copy;
mod fault;
mod hash;
pub mod pieces;
pub mod protection;
mod secret;
mod session;
mod stream;
mod xts;

pub use aead::Aead;
pub use cbc_hmac::MacOrder;
pub use fault::{Fault, SpecError};
pub use hash::HmacHash;
pub use secret::SecretBytes;
pub use session::{Compressor, Parameters, RunChecksums, RunReport, Session, Transform, TransformDirection};
pub use xts::Tweak;

/// Compiles and runs the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
