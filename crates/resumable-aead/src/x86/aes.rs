//! AES over any [`Vector`]: round keys, both directions, and all rounds on a vector of blocks.
//!
//! # Safety of this module
//!
//! All functions are `unsafe` for one reason, and their callers vouch for it: the processor has the instructions of `V`,
//! or, without a `V`, the instructions that the function names. Round keys are read within their table.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use zeroize::{Zeroize, ZeroizeOnDrop};

use super::vector::Vector;

/// The round keys of AES-128 (the first 11) or AES-256 (the first 15). The last one aligns the fields after the table.
#[derive(Zeroize, ZeroizeOnDrop)]
#[repr(C, align(64))]
pub(crate) struct RoundKeys(pub(crate) [[u8; 16]; 16]);

impl RoundKeys {
    /// Returns empty round keys, to be expanded in place.
    pub(crate) fn empty() -> Self {
        RoundKeys([[0; 16]; 16])
    }

    /// Expands a key of 16 or 32 bytes.
    ///
    /// # Safety
    /// The processor has AES-NI.
    #[target_feature(enable = "aes")]
    pub(crate) unsafe fn expand(&mut self, key: &[u8]) {
        let key_words = key.len() / 4;
        debug_assert!(key_words == 4 || key_words == 8);
        let rounds = key_words + 6;

        // FIPS 197 5.2. Words are little-endian here, so that RotWord is a rotation to the right.
        let mut words = [0u32; 60];
        for (word, bytes) in words.iter_mut().zip(key.chunks_exact(4)) {
            *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        let mut round_constant = 1u32;
        for index in key_words..4 * (rounds + 1) {
            let mut word = words[index - 1];
            if index % key_words == 0 {
                word = substitute(word).rotate_right(8) ^ round_constant;
                round_constant = (round_constant << 1) ^ (0x11b * (round_constant >> 7));
            } else if key_words == 8 && index % 8 == 4 {
                word = substitute(word);
            }
            words[index] = words[index - key_words] ^ word;
        }
        for (round_key, words) in self.0.iter_mut().zip(words[..4 * (rounds + 1)].chunks_exact(4)) {
            for (bytes, word) in round_key.chunks_exact_mut(4).zip(words) {
                bytes.copy_from_slice(&word.to_le_bytes());
            }
        }
        words.zeroize();
    }

    /// Sets these to the round keys of the equivalent inverse cipher (FIPS 197 5.3.5) of `keys`, for the given number of rounds.
    ///
    /// # Safety
    /// The processor has AES-NI.
    #[target_feature(enable = "aes")]
    pub(crate) unsafe fn invert(&mut self, keys: &RoundKeys, rounds: usize) {
        for (index, inverse) in self.0[..=rounds].iter_mut().enumerate() {
            let key = &keys.0[rounds - index];
            // SAFETY: loads and stores are of 16 bytes.
            unsafe {
                let mut key = _mm_loadu_si128(key.as_ptr().cast());
                if index != 0 && index != rounds {
                    key = _mm_aesimc_si128(key);
                }
                _mm_storeu_si128(inverse.as_mut_ptr().cast(), key);
            }
        }
    }
}

/// Encrypts a vector of blocks.
#[inline(always)]
pub(crate) unsafe fn encipher_vector<V: Vector, const ROUNDS: usize>(keys: &RoundKeys, blocks: V) -> V {
    // SAFETY: the caller keeps the module's contract; round keys are 16 bytes.
    unsafe {
        let mut blocks = blocks.xor(V::broadcast(keys.0[0].as_ptr()));
        for key in &keys.0[1..ROUNDS] {
            blocks = blocks.round(V::broadcast(key.as_ptr()));
        }
        blocks.last_round(V::broadcast(keys.0[ROUNDS].as_ptr()))
    }
}

/// Encrypts one block.
#[inline(always)]
pub(crate) unsafe fn encrypt_block<const ROUNDS: usize>(keys: &RoundKeys, block: &[u8; 16]) -> [u8; 16] {
    let mut result = [0; 16];
    // SAFETY: the caller keeps the module's contract; loads and stores are of 16 bytes.
    unsafe {
        let block = __m128i::load(block.as_ptr());
        encipher_vector::<__m128i, ROUNDS>(keys, block).store(result.as_mut_ptr());
    }
    result
}

/// Applies SubWord of FIPS 197.
#[target_feature(enable = "aes")]
fn substitute(word: u32) -> u32 {
    // The instruction substitutes word 1 into word 0.
    _mm_cvtsi128_si32(_mm_aeskeygenassist_si128::<0>(_mm_set1_epi32(word as i32))) as u32
}
