//! The ciphers and MACs of 5G: 128-NEA/NIA 1 to 3, 256-NEA/NIA/NCA 4 to 6.
//!
//! | number | cipher | key | ciphering (NEA) | integrity (NIA) | AEAD (NCA) |
//! |---|---|---|---|---|---|
//! | 1 | SNOW 3G | 128 bits | keystream | polynomial over 64 bits (UIA2) | |
//! | 2 | AES | 128 | counter mode | CMAC | |
//! | 3 | ZUC | 128 | keystream | windows of the keystream (EIA3) | |
//! | 4 | Snow 5G | 256 | keystream | POLYVAL with a key per message | yes |
//! | 5 | AES | 256 | counter mode | POLYVAL with a key per message | yes |
//! | 6 | ZUC-256 | 256 | keystream | POLYVAL with a key per message | yes |
//!
//! A [`Key`] processes one message at a time. An [`Engine`] processes a batch of messages with any keys and lengths. A
//! base station has many flows, and SNOW 3G, Snow 5G and ZUC are fast only with messages side by side.
//!
//! Modules, callers first:
//!
//! - [`Key`] (`key.rs`), [`Iv`] and [`PduNumber`] (`iv.rs`), [`Tag`] (`tag.rs`): the values that callers hold;
//! - [`Engine`] (`engine.rs`): assignment of jobs (`jobs.rs`) to lanes (`lane.rs`), and jobs that need no lane;
//! - `run.rs`: generators (`snow3g.rs`, `snow5g.rs`, `zuc.rs`) over lanes, written once over `words/`, which has a file
//!   for each back-end;
//! - `aes_modes.rs`: counter mode, and CMAC of many messages, over `resumable-aead`;
//! - `uia2.rs` over `gf64.rs`, `eia3.rs`, `sst.rs`: the MACs;
//! - `sbox.rs`: S-boxes without tables in memory.
//!
//! # Protection of secrets
//!
//! No branch and no address depends on a key, keystream or data. Keys are stored on the heap, wiped there when dropped,
//! and never printed. Keystream kept in memory is wiped too. The generators' registers and stack are not wiped.
//!
//! The caller must not use a nonce (COUNT, BEARER, DIRECTION) twice with one key.
//!
//! # Verification of the 256-bit set
//!
//! The rules come from open implementations and papers, because the texts of the specifications were not available. All
//! 234 published vectors pass. Not verified: the meaning of bytes 2 to 7 of an IV ([`Iv::with_middle`]), and messages
//! that are not whole bytes, which are refused.
//!
//! # Licence of the algorithms
//!
//! This crate's licence covers its code. For SNOW 3G, ZUC and the 256-bit set, ETSI and GSMA ask users of the
//! algorithms in equipment for an agreement. Countries regulate cryptography. Clarify both before you ship a product.
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
