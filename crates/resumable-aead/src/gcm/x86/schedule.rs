//! Key expansion: AES round keys and the powers of the hash key.
//!
//! GHASH reads a block as a polynomial with its bits the other way round than the multiplier's. With the bytes of each
//! block reversed, the carry-less product of two such numbers is the reversed product short of one shift; the hash
//! key is multiplied by x beforehand instead (as POLYVAL does, RFC 8452 appendix A).
//!
//! # Safety of this module
//!
//! Its only unsafety is that instructions must be there: `expand` passes that on to its caller.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use zeroize::{Zeroize, ZeroizeOnDrop};

use super::ghash::next_power;
use super::kernel::encrypt_block;

/// Powers of the hash key in the table: as many blocks as are multiplied with one reduction. A multiple of every
/// vector's batch, and enough for a packet of 1500 bytes.
pub(super) const POWERS: usize = 96;

/// Round keys and powers.
#[derive(Zeroize, ZeroizeOnDrop)]
#[repr(C, align(64))]
pub(super) struct Schedule {
    /// AES round keys: the first 11 for AES-128, all 15 for AES-256.
    pub(super) round_keys: [[u8; 16]; 16],
    /// Powers of the hash key, byte-reversed and times x, the highest first; then zeros, so that a vector that begins
    /// at any power may be read.
    pub(super) powers: [[u8; 16]; POWERS + 4],
    /// Of each power the sum of its halves, in both halves.
    pub(super) folded_powers: [[u8; 16]; POWERS + 4],
}

impl Schedule {
    /// To be expanded where it will stay.
    pub(super) fn empty() -> Self {
        Schedule { round_keys: [[0; 16]; 16], powers: [[0; 16]; POWERS + 4], folded_powers: [[0; 16]; POWERS + 4] }
    }

    /// Expands a key of 16 or 32 bytes into what `schedule`, all zeros, holds.
    ///
    /// # Safety
    /// The processor has AES-NI, PCLMULQDQ and SSSE3.
    #[target_feature(enable = "aes,pclmulqdq,ssse3")]
    pub(super) unsafe fn expand(&mut self, key: &[u8]) {
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
        for (round_key, words) in self.round_keys.iter_mut().zip(words[..4 * (rounds + 1)].chunks_exact(4)) {
            for (bytes, word) in round_key.chunks_exact_mut(4).zip(words) {
                bytes.copy_from_slice(&word.to_le_bytes());
            }
        }
        words.zeroize();

        // SAFETY: this function's instructions are what the two need of `__m128i`.
        let mut hash_key = unsafe {
            if rounds == 10 { encrypt_block::<10>(self, &[0; 16]) } else { encrypt_block::<14>(self, &[0; 16]) }
        };
        // Times x: a shift to the left in this order of bits; what falls out comes back as the field's polynomial.
        let number = u128::from_be_bytes(hash_key);
        let first = (number << 1) ^ ((number >> 127).wrapping_neg() & POLYNOMIAL);
        hash_key.zeroize();
        self.set_power(POWERS - 1, first.to_le_bytes());
        for index in (0..POWERS - 1).rev() {
            // SAFETY: as above.
            let power = unsafe { next_power(self, &self.powers[index + 1]) };
            self.set_power(index, power);
        }
    }

    fn set_power(&mut self, index: usize, power: [u8; 16]) {
        let number = u128::from_le_bytes(power);
        self.powers[index] = power;
        self.folded_powers[index] = (number ^ number.rotate_left(64)).to_le_bytes();
    }
}

/// SubWord of FIPS 197.
#[target_feature(enable = "aes")]
fn substitute(word: u32) -> u32 {
    // The instruction substitutes word 1 into word 0.
    _mm_cvtsi128_si32(_mm_aeskeygenassist_si128::<0>(_mm_set1_epi32(word as i32))) as u32
}

/// x^128 + x^127 + x^126 + x^121 + 1 without its highest term, as RFC 8452 writes POLYVAL's field.
const POLYNOMIAL: u128 = 0xc200_0000_0000_0000_0000_0000_0000_0001;
