//! AES-GCM with the instructions of x86-64: AES-NI and PCLMULQDQ on 128 bits, VAES and VPCLMULQDQ on 256 and 512.
//!
//! `schedule.rs` expands keys, `ghash.rs` multiplies, `kernel.rs` has the loops. This module compiles them for each width
//! and makes back-ends of them. Instructions and AES come from `crate::x86`.
//!
//! # Safety of this module
//!
//! An [`X86Gcm`] exists only where [`is_available`](crate::x86::is_available) found the instructions of its width, because only `new` makes
//! one, and asserts it; a processor does not lose instructions. Every call into an entry point rests on this.
//! Pointers come from slices that live through the call.
#![allow(unsafe_code)]

mod ghash;
mod kernel;
mod schedule;

use std::arch::x86_64::{__m128i, __m256i, __m512i};

use bytes::BytesMut;
use schedule::GcmSchedule;

use super::GcmState;
use crate::piece::MessagePiece;
use crate::state::MessageDirection;
use crate::x86::aes;
use crate::x86::{KernelSpan, is_available};
use crate::{Backend, NONCE_LEN, TAG_LEN};

/// An expanded key and the entry points for its width and number of rounds.
pub(crate) struct X86Gcm {
    schedule: Box<GcmSchedule>,
    entries: &'static GcmEntryPoints,
}

impl X86Gcm {
    /// Expands a key of 16 or 32 bytes.
    pub(crate) fn new(key: &[u8], backend: Backend) -> Self {
        assert!(is_available(backend), "callers ask before");
        assert!(key.len() == 16 || key.len() == 32, "callers pass arrays");
        let entries = match (backend, key.len()) {
            (Backend::Avx512, 16) => &avx512::AES_128,
            (Backend::Avx512, _) => &avx512::AES_256,
            (Backend::Avx2, 16) => &avx2::AES_128,
            (Backend::Avx2, _) => &avx2::AES_256,
            (_, 16) => &aes_ni::AES_128,
            (_, _) => &aes_ni::AES_256,
        };
        let mut schedule = Box::new(GcmSchedule::empty());
        // SAFETY: every back-end here includes AES-NI, PCLMULQDQ and SSSE3, and this one is available.
        unsafe { schedule.expand(key) };
        X86Gcm { schedule, entries }
    }

    pub(crate) fn encrypt_block(&self, block: &[u8; 16]) -> [u8; 16] {
        // SAFETY: the instructions are there (see the module).
        unsafe { (self.entries.encrypt_block)(&self.schedule, block) }
    }

    /// Absorbs `data`, padded with zeros to whole blocks.
    pub(crate) fn ghash(&self, accumulator: &mut [u8; 16], data: &[u8]) {
        // SAFETY: the instructions are there; the pointer is good for the slice's length.
        unsafe { (self.entries.ghash)(&self.schedule, accumulator, data.as_ptr(), data.len()) }
    }

    /// Returns the tag of a message of `len` bytes.
    pub(crate) fn finish(&self, state: &GcmState, nonce: &[u8; NONCE_LEN], aad_len: u64, len: u64) -> [u8; TAG_LEN] {
        // SAFETY: the instructions are there.
        unsafe { (self.entries.finish)(&self.schedule, state, nonce, aad_len, len) }
    }

    #[inline]
    pub(crate) fn crypt(
        &self,
        state: &mut GcmState,
        nonce: &[u8; NONCE_LEN],
        position: u64,
        direction: MessageDirection,
        piece: MessagePiece<'_>,
    ) {
        // SAFETY: the instructions are there; the run is that of a piece that lives through the call.
        unsafe { (self.entry(direction))(&self.schedule, state, nonce, position, KernelSpan::for_piece(piece)) }
    }

    #[inline]
    pub(crate) fn append(
        &self,
        state: &mut GcmState,
        nonce: &[u8; NONCE_LEN],
        position: u64,
        direction: MessageDirection,
        source: &[u8],
        destination: &mut BytesMut,
    ) {
        let len = source.len();
        destination.reserve(len);
        let room = destination.spare_capacity_mut()[..len].as_mut_ptr().cast();
        let run = KernelSpan { source: source.as_ptr(), destination: room, len };
        // SAFETY: the instructions are there; `source` lives through the call, `room` is as long and lent exclusively, so
        // the two do not overlap. A run's destination is read only after it was written: the bytes read are the new
        // ciphertext.
        unsafe { (self.entry(direction))(&self.schedule, state, nonce, position, run) }
        // SAFETY: the capacity was reserved, and the run is over: each of its bytes was written.
        unsafe { destination.set_len(destination.len() + len) }
    }

    fn entry(&self, direction: MessageDirection) -> GcmCryptFn {
        match direction {
            MessageDirection::Encrypt => self.entries.encrypt,
            MessageDirection::Decrypt => self.entries.decrypt,
        }
    }

    /// XORs the keystream that begins with the block of `counter`.
    pub(crate) fn apply_keystream(&self, nonce: &[u8; NONCE_LEN], counter: u32, data: &mut [u8]) {
        // SAFETY: as in `crypt`.
        unsafe {
            (self.entries.apply_keystream)(
                &self.schedule,
                nonce,
                counter,
                KernelSpan::for_piece(MessagePiece::InPlace(data)),
            )
        }
    }
}

/// Encrypts or decrypts a piece.
type GcmCryptFn = unsafe fn(&GcmSchedule, &mut GcmState, &[u8; NONCE_LEN], u64, KernelSpan);

/// The functions of one width and number of rounds. All are unsafe for the reasons in `kernel.rs`.
struct GcmEntryPoints {
    encrypt_block: unsafe fn(&GcmSchedule, &[u8; 16]) -> [u8; 16],
    ghash: unsafe fn(&GcmSchedule, &mut [u8; 16], *const u8, usize),
    finish: unsafe fn(&GcmSchedule, &GcmState, &[u8; NONCE_LEN], u64, u64) -> [u8; TAG_LEN],
    encrypt: GcmCryptFn,
    decrypt: GcmCryptFn,
    apply_keystream: unsafe fn(&GcmSchedule, &[u8; NONCE_LEN], u32, KernelSpan),
}

/// The kernel for one vector, compiled with its instructions.
macro_rules! entries {
    ($name:ident, $vector:ty, $features:literal) => {
        mod $name {
            use super::*;

            pub(super) static AES_128: GcmEntryPoints = GcmEntryPoints {
                encrypt_block: encrypt_block::<10>,
                ghash,
                finish: finish::<10>,
                encrypt: crypt::<10, true>,
                decrypt: crypt::<10, false>,
                apply_keystream: apply_keystream::<10>,
            };

            pub(super) static AES_256: GcmEntryPoints = GcmEntryPoints {
                encrypt_block: encrypt_block::<14>,
                ghash,
                finish: finish::<14>,
                encrypt: crypt::<14, true>,
                decrypt: crypt::<14, false>,
                apply_keystream: apply_keystream::<14>,
            };

            #[target_feature(enable = $features)]
            unsafe fn encrypt_block<const ROUNDS: usize>(schedule: &GcmSchedule, block: &[u8; 16]) -> [u8; 16] {
                // SAFETY: the enabled instructions are the vector's.
                unsafe { aes::encrypt_block::<ROUNDS>(&schedule.round_keys, block) }
            }

            #[target_feature(enable = $features)]
            unsafe fn ghash(schedule: &GcmSchedule, accumulator: &mut [u8; 16], from: *const u8, len: usize) {
                // SAFETY: the enabled instructions are the vector's; the caller vouches for the bytes.
                unsafe { ghash::absorb::<$vector>(schedule, accumulator, from, len) }
            }

            #[target_feature(enable = $features)]
            unsafe fn finish<const ROUNDS: usize>(
                schedule: &GcmSchedule,
                state: &GcmState,
                nonce: &[u8; NONCE_LEN],
                aad_len: u64,
                len: u64,
            ) -> [u8; TAG_LEN] {
                // SAFETY: the enabled instructions are the vector's.
                unsafe { kernel::finish::<ROUNDS>(schedule, state, nonce, aad_len, len) }
            }

            #[target_feature(enable = $features)]
            unsafe fn crypt<const ROUNDS: usize, const ENCRYPT: bool>(
                schedule: &GcmSchedule,
                state: &mut GcmState,
                nonce: &[u8; NONCE_LEN],
                position: u64,
                run: KernelSpan,
            ) {
                // SAFETY: the enabled instructions are the vector's; the caller vouches for the run.
                unsafe { kernel::crypt::<$vector, ROUNDS, ENCRYPT>(schedule, state, nonce, position, run) }
            }

            #[target_feature(enable = $features)]
            unsafe fn apply_keystream<const ROUNDS: usize>(
                schedule: &GcmSchedule,
                nonce: &[u8; NONCE_LEN],
                counter: u32,
                run: KernelSpan,
            ) {
                // SAFETY: the enabled instructions are the vector's; the caller vouches for the run.
                unsafe { kernel::apply_keystream::<$vector, ROUNDS>(schedule, nonce, counter, run) }
            }
        }
    };
}

entries!(aes_ni, __m128i, "aes,pclmulqdq,ssse3");
entries!(avx2, __m256i, "aes,pclmulqdq,avx2,vaes,vpclmulqdq");
entries!(avx512, __m512i, "aes,pclmulqdq,avx2,vaes,vpclmulqdq,avx512f,avx512bw,avx512dq,avx512vl");
