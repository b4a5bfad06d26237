//! The ciphers and MACs of 5G: 128-NEA/NIA 1 to 3, 256-NEA/NIA/NCA 4 to 6.
//!
//! | number | cipher | key | ciphering (NEA) | integrity (NIA) | both in one (NCA) |
//! |---|---|---|---|---|---|
//! | 1 | SNOW 3G | 128 bits | keystream | polynomial over 64 bits (UIA2) | |
//! | 2 | AES | 128 | counter mode | CMAC | |
//! | 3 | ZUC | 128 | keystream | windows of the keystream (EIA3) | |
//! | 4 | Snow 5G | 256 | keystream | POLYVAL, keys by message | yes |
//! | 5 | AES | 256 | counter mode | the same | yes |
//! | 6 | ZUC-256 | 256 | keystream | the same | yes |
//!
//! A [`Key`] does one message at a time; an [`Engine`] does many together, of any keys and lengths: a base station has many
//! flows, and SNOW 3G, Snow 5G and ZUC are fast only side by side.
//!
//! Where things live, callers first:
//!
//! - [`Key`] (`key.rs`), [`Iv`] and [`PduNumber`] (`iv.rs`), [`Tag`] (`tag.rs`): what a user has in hand;
//! - [`Engine`] (`engine.rs`): jobs (`jobs.rs`) to lanes (`lane.rs`), and what runs without lanes;
//! - `run.rs`: generators (`snow3g.rs`, `snow5g.rs`, `zuc.rs`) over lanes, written once over `words/`, which has a file for each back-end;
//! - `aes_modes.rs`: counter mode, and CMAC of many messages, over `resumable-aead`;
//! - `uia2.rs` over `gf64.rs`, `eia3.rs`, `sst.rs`: the MACs;
//! - `sbox.rs`: S-boxes without tables in memory.
//!
//! # What is kept secret, and how
//!
//! No branch and no address depends on a key, keystream or data. Keys are wiped where they lie, on the heap, when dropped, and not
//! printed; so is the keystream that is kept in memory. What generators leave in registers and on the stack is not wiped.
//!
//! A nonce (COUNT, BEARER, DIRECTION) must not come twice with one key: the caller sees to it.
//!
//! # What the 256-bit set is checked against
//!
//! The rules come from open implementations and papers, since the specifications' texts were not at hand; all 234 published vectors hold.
//! Not verified: what bytes 2 to 7 of an IV are for ([`Iv::with_middle`]), and messages that are not whole bytes, which are refused.
//!
//! # Licence of the algorithms
//!
//! This crate's licence covers its code. For SNOW 3G, ZUC and the 256-bit set, ETSI and GSMA ask for an agreement from those who use them in
//! equipment, and countries regulate cryptography: ask before you ship.
#![deny(unsafe_code)]

mod aes_modes;
mod algorithm;
mod backend;
mod eia3;
mod engine;
mod error;
mod gf64;
mod iv;
mod jobs;
mod key;
mod lane;
mod linear;
mod run;
mod sbox;
mod snow3g;
mod snow5g;
mod sst;
mod tag;
mod uia2;
mod words;
mod zuc;

pub use algorithm::Algorithm;
pub use backend::Backend;
pub use engine::Engine;
pub use error::{KeyLengthError, MessageError, VerifyError};
pub use iv::{Direction, Iv, PduNumber};
pub use jobs::{CipherJob, MacJob, OpenJob, SealJob};
pub use key::{Key, MESSAGE_MAX};
pub use tag::{Tag, TagLen};
