//! AEADs that stop and go on at any byte.
//!
//! AES-GCM, AES-CCM and ChaCha20-Poly1305 over a message that arrives in pieces: a [`State`] is a small plain
//! value (key by reference) that takes the next piece whatever its length, can be copied, written out and read back,
//! and gives the tag at the end. A [`Key`] holds the expanded key and the back-end chosen for this processor, seals
//! and opens whole messages, and applies the keystream alone from any offset. A [`MaskKey`] makes the masks of QUIC's
//! header protection; an [`XtsKey`] encrypts storage by data units (AES-XTS), and an [`AesKey`] is AES by itself, in counter mode and as
//! many [`CbcMac`]s side by side, for what AEADs share with them: AES on vectors.
//!
//! Where things live, callers first:
//!
//! - [`Key`] (`key.rs`): expands a key, whole messages, keystream from any offset;
//! - [`State`] (`state.rs`): a message under way; `state_bytes.rs` writes it out and reads it back;
//! - `gcm/`: AES-GCM, one file per back-end; `chacha/`: ChaCha20-Poly1305 likewise;
//! - `ccm.rs`: AES-CCM, [`MaskKey`] (`mask.rs`), [`AesKey`] (`aes_key.rs`) and [`CbcMac`] (`cbc_mac.rs`), over `block/`: AES block after
//!   block;
//! - `x86/`: instructions by width and AES over them, which `gcm/`, `block/` and `xts/` share: unsafe AES is
//!   written once, and this crate is its home;
//! - `xts/`: AES-XTS, one file for the portable back-end, one for x86-64;
//! - `whole.rs`: whole messages by ring, where it is the fastest (feature `ring`, on by default);
//! - `piece.rs`: what an update works on, in place or from source to destination.
//!
//! A piece flows from `State` (order, length limits, direction) to the key's back-end (bytes), which hands back the
//! authenticator and the rest of the keystream block. Nothing below `State` checks limits, nothing above knows
//! instructions.
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
//! values. A [`Key`] is wiped where it lies, on the heap, when dropped, and never printed. What making it leaves on the
//! stack is not wiped: ring's and RustCrypto's keys, of which [`Backend::Portable`] is made, are returned by value, and a
//! move may leave a copy behind. The other back-ends expand a key where it stays. The code of a
//! call copies no key, but vectors that hold rows of one (ChaCha20) live in registers, which the compiler may spill to the
//! stack. A [`State`] is `Copy`, so it is not wiped: it holds what an attacker could use against its one message (the rest of a keystream block, the one-time Poly1305 key), never
//! what would reveal the key.
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

/// The README's example is run with the others.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
