//! Key expansion: AES round keys and the powers of the hash key.
//!
//! GHASH numbers the bits of a block in the reverse order of the multiplier's. With the bytes of each
//! block reversed, the carry-less product of two such numbers is the reversed product, short of one shift. Therefore the hash
//! key is multiplied by x beforehand (as POLYVAL does, RFC 8452 appendix A).
//!
//! # Safety of this module
//!
//! The only unsafe condition is that the instructions exist: `expand` passes it on to its caller.
#![allow(unsafe_code)]

use zeroize::{Zeroize, ZeroizeOnDrop};

use super::ghash::next_power;
use crate::x86::aes::{RoundKeys, encrypt_block};

/// Powers of the hash key in the table, which is the number of blocks for each reduction. A multiple of every
/// vector's batch, and enough for a packet of 1500 bytes.
pub(super) const POWERS: usize = 96;

/// Round keys and powers.
#[derive(Zeroize, ZeroizeOnDrop)]
#[repr(C, align(64))]
pub(super) struct GcmSchedule {
    pub(super) round_keys: RoundKeys,
    /// Powers of the hash key, byte-reversed and times x, the highest first; then zeros, so that a vector that begins
    /// at any power may be read.
    pub(super) powers: [[u8; 16]; POWERS + 4],
    /// For each power the sum of its halves, in both halves.
    pub(super) folded_powers: [[u8; 16]; POWERS + 4],
}

impl GcmSchedule {
    /// Returns an empty schedule, to be expanded in place.
    pub(super) fn empty() -> Self {
        GcmSchedule {
            round_keys: RoundKeys::empty(),
            powers: [[0; 16]; POWERS + 4],
            folded_powers: [[0; 16]; POWERS + 4],
        }
    }

    /// Expands a key of 16 or 32 bytes into `schedule`, which is all zeros.
    ///
    /// # Safety
    /// The processor has AES-NI, PCLMULQDQ and SSSE3.
    #[target_feature(enable = "aes,pclmulqdq,ssse3")]
    pub(super) unsafe fn expand(&mut self, key: &[u8]) {
        // SAFETY: AES-NI is there, and `encrypt_block` needs no other instructions for `__m128i`.
        let mut hash_key = unsafe {
            self.round_keys.expand(key);
            if key.len() == 16 {
                encrypt_block::<10>(&self.round_keys, &[0; 16])
            } else {
                encrypt_block::<14>(&self.round_keys, &[0; 16])
            }
        };
        // Times x: a shift to the left in this order of bits; bits shifted out come back as the field's polynomial.
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

/// x^128 + x^127 + x^126 + x^121 + 1 without its highest term, as RFC 8452 writes POLYVAL's field.
const POLYNOMIAL: u128 = 0xc200_0000_0000_0000_0000_0000_0000_0001;
