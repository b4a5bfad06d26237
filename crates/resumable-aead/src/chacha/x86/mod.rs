//! ChaCha20 and Poly1305 with the instructions of x86-64: AVX2 on 256 bits, AVX-512 with IFMA on 512.
//!
//! `rows.rs` makes keystream; `poly_avx2.rs` and `poly_ifma.rs` multiply, in limbs as wide as their instruction takes;
//! `limbs.rs` prepares powers for both. With AVX2, cipher and authenticator run together (`scalar_poly1305.rs`): while vector units make keystream, Poly1305
//! multiplies words in the scalar units. This module makes functions for one back-end each.
//!
//! # Safety of this module
//!
//! Only [`X86ChaCha::new`] makes an [`X86ChaCha`], and only if it found the instructions of its width; a processor
//! does not lose instructions. Every call into an entry point rests on this. Pointers come from pieces that live
//! through the call.
#![allow(unsafe_code)]

mod limbs;
mod poly_avx2;
mod poly_ifma;
mod rows;
mod scalar_poly1305;

use std::arch::x86_64::{__m256i, __m512i};

use scalar_poly1305::ScalarPoly1305;

use crate::piece::MessagePiece;
use crate::x86::KernelSpan;
use crate::{Backend, NONCE_LEN};

/// The entry points of an available back-end.
#[derive(Clone, Copy)]
pub(super) struct X86ChaCha(&'static ChaChaEntryPoints);

struct ChaChaEntryPoints {
    apply: unsafe fn(&[u8; 32], &[u8; NONCE_LEN], u32, usize, KernelSpan),
    absorb: unsafe fn(&mut [u64; 3], [u64; 2], &[u8]),
    /// Length in bytes from which powers of the multiplier are worth computing.
    absorb_from: usize,
    /// Cipher and authenticator together, if that is faster.
    crypt: Option<ChaChaCryptFn>,
}

type ChaChaCryptFn = unsafe fn(&[u8; 32], &[u8; NONCE_LEN], u32, usize, KernelSpan, &mut ScalarPoly1305);

impl X86ChaCha {
    /// Returns `None` if this processor lacks the instructions of `backend`.
    pub(super) fn new(backend: Backend) -> Option<Self> {
        macro_rules! has {
            ($($feature:tt)*) => { $(is_x86_feature_detected!($feature))&&* };
        }
        match backend {
            Backend::Avx512 if has!("avx512f" "avx512bw" "avx512vl" "avx512ifma") => Some(X86ChaCha(&AVX512)),
            Backend::Avx2 if has!("avx2" "bmi2") => Some(X86ChaCha(&AVX2_TOGETHER)),
            Backend::Avx2 if has!("avx2") => Some(X86ChaCha(&AVX2)),
            _ => None,
        }
    }

    /// XORs the keystream from byte `skip` (less than 64) of block `counter` on.
    pub(super) fn apply(
        self,
        key: &[u8; 32],
        nonce: &[u8; NONCE_LEN],
        counter: u32,
        skip: usize,
        piece: MessagePiece<'_>,
    ) {
        // SAFETY: the instructions are there; the run is that of a piece that lives through the call.
        unsafe { (self.0.apply)(key, nonce, counter, skip, KernelSpan::for_piece(piece)) }
    }

    /// XORs the keystream as [`apply`](Self::apply) does, and meanwhile absorbs the ciphertext: the input if `opens`, the output otherwise, except
    /// its last blocks. `used` bytes of `block` precede the piece; only whole blocks are absorbed. Returns the number of bytes of the piece that were absorbed, or
    /// `None` if the piece is too short to be worth it; then nothing was done.
    #[allow(clippy::too_many_arguments, reason = "what a message, a piece and an authenticator are")]
    pub(super) fn crypt(
        self,
        key: &[u8; 32],
        nonce: &[u8; NONCE_LEN],
        (counter, skip): (u32, usize),
        piece: MessagePiece<'_>,
        opens: bool,
        (accumulator, multiplier): (&mut [u64; 3], [u64; 2]),
        (block, used): (&[u8; 16], usize),
    ) -> Option<usize> {
        let crypt = self.0.crypt.filter(|_| piece.len() >= TOGETHER_FROM)?;
        let run = KernelSpan::for_piece(piece);
        let mut words = ScalarPoly1305::new(run, opens, *accumulator, multiplier, block, used);
        // SAFETY: the instructions are there; the run is that of a piece that lives through the call, and the words were made from that run.
        unsafe { crypt(key, nonce, counter, skip, run, &mut words) };
        *accumulator = words.accumulator();
        Some(words.absorbed())
    }

    /// Absorbs whole blocks into an accumulator of Poly1305 if there are enough blocks to be worth it.
    pub(super) fn absorb(self, accumulator: &mut [u64; 3], multiplier: [u64; 2], blocks: &[u8]) -> bool {
        let is_worth_it = blocks.len() >= self.0.absorb_from;
        if is_worth_it {
            // SAFETY: the instructions are there.
            unsafe { (self.0.absorb)(accumulator, multiplier, blocks) }
        }
        is_worth_it
    }
}

static AVX2: ChaChaEntryPoints =
    ChaChaEntryPoints { apply: apply_avx2, absorb: poly_avx2::absorb, absorb_from: 256, crypt: None };

static AVX2_TOGETHER: ChaChaEntryPoints = ChaChaEntryPoints { crypt: Some(crypt_avx2), ..AVX2 };

static AVX512: ChaChaEntryPoints =
    ChaChaEntryPoints { apply: apply_avx512, absorb: poly_ifma::absorb, absorb_from: 256, crypt: None };

/// Length in bytes from which cipher and authenticator run together.
const TOGETHER_FROM: usize = 256;

#[target_feature(enable = "avx2,bmi2")]
unsafe fn crypt_avx2(
    key: &[u8; 32],
    nonce: &[u8; NONCE_LEN],
    counter: u32,
    skip: usize,
    run: KernelSpan,
    words: &mut ScalarPoly1305,
) {
    // SAFETY: the enabled instructions are the vector's; the caller vouches for the run, and that the words belong to it.
    unsafe { rows::apply::<__m256i>(key, nonce, counter, skip, run, words) }
}

#[target_feature(enable = "avx2")]
unsafe fn apply_avx2(key: &[u8; 32], nonce: &[u8; NONCE_LEN], counter: u32, skip: usize, run: KernelSpan) {
    // SAFETY: the enabled instructions are the vector's; the caller vouches for the run.
    unsafe { rows::apply::<__m256i>(key, nonce, counter, skip, run, &mut ()) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn apply_avx512(key: &[u8; 32], nonce: &[u8; NONCE_LEN], counter: u32, skip: usize, run: KernelSpan) {
    // SAFETY: the enabled instructions are the vector's; the caller vouches for the run.
    unsafe { rows::apply::<__m512i>(key, nonce, counter, skip, run, &mut ()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Numbers with many limbs of all ones or all zeros.
    fn extreme_bytes(len: usize) -> impl Strategy<Value = Vec<u8>> {
        let word = prop_oneof![Just(u64::MAX), Just(0), Just(1), Just(u64::MAX << 20), any::<u64>()];
        prop::collection::vec(word, len / 8).prop_map(|words| words.into_iter().flat_map(u64::to_le_bytes).collect())
    }

    proptest! {
        /// Compares with absorbing block by block, from any accumulator, for any number of blocks.
        #[test]
        fn vectors_match_blockwise_absorption(
            low: u64, high: u64, top in 0u64..=4,
            key in extreme_bytes(32),
            blocks in extreme_bytes(16 * 45),
        ) {
            use crate::chacha::poly1305::Poly1305;
            let accumulator = [low, high, top];
            let start = Poly1305::at(&key[..].try_into().unwrap(), accumulator);
            for backend in [Backend::Avx2, Backend::Avx512] {
                let Some(X86ChaCha(entries)) = X86ChaCha::new(backend) else { continue };
                for len in (16..=blocks.len()).step_by(16) {
                    let mut expected = start;
                    expected.absorb(None, &blocks[..len]);
                    let mut vectors = accumulator;
                    // SAFETY: `new` found the instructions.
                    unsafe { (entries.absorb)(&mut vectors, start.multiplier(), &blocks[..len]) };
                    prop_assert!(vectors[2] <= 4, "{:?}", vectors);
                    let vectors = Poly1305::at(&key[..].try_into().unwrap(), vectors);
                    prop_assert_eq!(vectors.tag(), expected.tag(), "{:?} {}", backend, len);
                }
            }
        }
    }
}
