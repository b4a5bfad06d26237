//! AEADs that can stop and continue at any byte.
//!
//! AES-GCM, AES-CCM and ChaCha20-Poly1305 over a message that arrives in pieces. A [`State`] is a small plain
//! value (key by reference): it takes pieces of any length, can be copied, serialised and parsed,
//! and returns the tag at the end. A [`Key`] holds the expanded key and the back-end chosen for this processor, seals
//! and opens whole messages, and applies the keystream alone from any offset. A [`MaskKey`] makes the masks of QUIC's
//! header protection; an [`XtsKey`] encrypts storage by data units (AES-XTS). An [`AesKey`] is AES by itself, in counter mode and as
//! many [`CbcMac`]s side by side; it is here because it shares AES on vectors with the AEADs.
//!
//! Modules, callers first:
//!
//! - [`Key`] (`key.rs`): expands a key, whole messages, keystream from any offset;
//! - [`State`] (`state.rs`): an unfinished message; `state_bytes.rs` serialises and parses it;
//! - `gcm/`: AES-GCM, one file per back-end; `chacha/`: ChaCha20-Poly1305 likewise;
//! - `ccm.rs`: AES-CCM, [`MaskKey`] (`mask.rs`), [`AesKey`] (`aes_key.rs`) and [`CbcMac`] (`cbc_mac.rs`), over `block/`: AES block after
//!   block;
//! - `x86/`: instructions by width and AES over them, which `gcm/`, `block/` and `xts/` share: unsafe AES is
//!   written once, and this crate is its home;
//! - `xts/`: AES-XTS, one file for the portable back-end, one for x86-64;
//! - `whole.rs`: whole messages by ring, where it is the fastest (feature `ring`, on by default);
//! - `piece.rs`: input and output of an update, in place or from source to destination.
//!
//! A piece flows from `State` (order, length limits, direction) to the key's back-end (bytes), which returns the
//! authenticator and the rest of the keystream block. Limits are checked in `State` only, and instructions are used
//! in back-ends only.
//!
//! # Example
//!
//! ```
//! use resumable_aead::{Algorithm, Key, State};
//!
//! let key = Key::new(Algorithm::Aes128Gcm, &[7; 16])?;
//! let nonce = [1; 12];
//! let mut whole = *b"a record in one piece, or in three";
//! let tag = key.seal_in_place(&nonce, b"header", &mut whole)?;
//!
//! let mut pieces = *b"a record in one piece, or in three";
//! let mut state = State::new(&key, &nonce, b"header");
//! let (first, rest) = pieces.split_at_mut(5);
//! let (second, third) = rest.split_at_mut(22);
//! for piece in [first, second, third] {
//!     state.encrypt(&key, piece)?;
//! }
//! assert_eq!(pieces, whole);
//! assert_eq!(state.tag(&key)?, tag);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is kept secret, and how
//!
//! All back-ends run in constant time with respect to keys and data: no table look-ups and no branches on secret
//! values. A [`Key`] is wiped on the heap when dropped, and never printed. Copies that the making of a key leaves on the
//! stack are not wiped: ring's and RustCrypto's keys, which [`Backend::Portable`] uses, are returned by value, and a
//! move may leave a copy behind. The other back-ends expand a key in place. The code of a
//! call copies no key, but vectors that hold rows of one (ChaCha20) live in registers, which the compiler may spill to the
//! stack. A [`State`] is `Copy`, so it is not wiped: it holds secrets of its one message (the rest of a keystream block, the one-time Poly1305 key), but
//! nothing that would reveal the key.
#![deny(unsafe_code)]

mod aes_key;
mod algorithm;
mod backend;
mod block;
mod cbc_mac;
mod ccm;
mod chacha;
mod error;
mod gcm;
mod key;
mod mask;
mod piece;
mod state;
mod state_bytes;
#[cfg(feature = "ring")]
mod whole;
#[cfg(target_arch = "x86_64")]
mod x86;
mod xts;

pub use aes_key::{AesKey, AesKeyError};
pub use algorithm::{Algorithm, NONCE_LEN, TAG_LEN};
pub use backend::Backend;
pub use cbc_mac::CbcMac;
pub use error::{KeyError, KeyLengthError, MessageTooLong, StateBytesError, StateError, TagMismatch, VerifyError};
pub use key::Key;
pub use mask::{MASK_LEN, MaskKey, SAMPLE_LEN};
pub use state::State;
pub use xts::{DataUnits, NotWholeUnits, UnitLengthError, Volume, VolumeError, XtsKey, XtsKeyError};

/// Runs the README's example with the other doc tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
