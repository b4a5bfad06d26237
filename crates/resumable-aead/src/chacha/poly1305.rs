//! Poly1305 (RFC 8439 2.5) as a plain value that can be copied and written out.
//!
//! Invariant: `accumulator` is below 5 * 2^128, in three words, least first; `multiplier` is clamped.

use crate::TAG_LEN;
use crate::state_bytes::array;

/// A one-time authenticator that has absorbed whole blocks.
#[derive(Clone, Copy)]
pub(crate) struct Poly1305 {
    accumulator: [u64; 3],
    /// `r` of the RFC.
    multiplier: [u64; 2],
    /// `s` of the RFC.
    mask: [u64; 2],
}

impl Poly1305 {
    /// With a key that no other message uses.
    pub(crate) fn new(key: &[u8; 32]) -> Self {
        let word = |index: usize| u64::from_le_bytes(array(key, 8 * index));
        Poly1305 { accumulator: [0; 3], multiplier: [word(0) & CLAMP[0], word(1) & CLAMP[1]], mask: [word(2), word(3)] }
    }

    /// Absorbs whole blocks.
    pub(crate) fn absorb(&mut self, blocks: &[u8]) {
        debug_assert_eq!(blocks.len() % 16, 0);
        let [mut h0, mut h1, mut h2] = self.accumulator;
        let [r0, r1] = self.multiplier;
        // Clamping made r1 a multiple of 4, so that r1 * 2^128 = (r1 / 4) * 2^130 = (r1 / 4) * 5 modulo 2^130 - 5.
        let s1 = r1 + (r1 >> 2);
        for block in blocks.chunks_exact(16) {
            // The block with a one after its last byte.
            let (sum, carry) = add(h0, u64::from_le_bytes(array(block, 0)), 0);
            h0 = sum;
            let (sum, carry) = add(h1, u64::from_le_bytes(array(block, 8)), carry);
            h1 = sum;
            h2 += carry + 1;

            // h2 is at most 6 here and r below 2^124: no product or sum overflows.
            let d0 = mul(h0, r0) + mul(h1, s1);
            let d1 = mul(h0, r1) + mul(h1, r0) + mul(h2, s1) + (d0 >> 64);
            let d2 = h2 * r0 + (d1 >> 64) as u64;

            // What is above 2^130 comes back times 5.
            let above = (d2 >> 2) + (d2 & !3);
            let (sum, carry) = add(d0 as u64, above, 0);
            h0 = sum;
            let (sum, carry) = add(d1 as u64, 0, carry);
            h1 = sum;
            h2 = (d2 & 3) + carry;
        }
        self.accumulator = [h0, h1, h2];
    }

    /// The tag of what was absorbed.
    pub(crate) fn tag(&self) -> [u8; TAG_LEN] {
        let [h0, h1, h2] = self.accumulator;
        // The accumulator is below 2 * (2^130 - 5): subtract the prime where adding 5 reaches 2^130, without a branch.
        let (g0, carry) = add(h0, 5, 0);
        let (g1, carry) = add(h1, 0, carry);
        let reached = 0u64.wrapping_sub(((h2 + carry) >> 2) & 1);
        let h0 = (h0 & !reached) | (g0 & reached);
        let h1 = (h1 & !reached) | (g1 & reached);

        let (t0, carry) = add(h0, self.mask[0], 0);
        let (t1, _) = add(h1, self.mask[1], carry);
        let mut tag = [0; TAG_LEN];
        tag[..8].copy_from_slice(&t0.to_le_bytes());
        tag[8..].copy_from_slice(&t1.to_le_bytes());
        tag
    }

    /// Accumulator, multiplier, mask.
    pub(crate) fn to_bytes(self) -> [u8; 56] {
        let mut bytes = [0; 56];
        let words = self.accumulator.into_iter().chain(self.multiplier).chain(self.mask);
        for (bytes, word) in bytes.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Reads back what `to_bytes` wrote, unless the invariant does not hold.
    pub(crate) fn from_bytes(bytes: &[u8; 56]) -> Option<Self> {
        let word = |index: usize| u64::from_le_bytes(array(bytes, 8 * index));
        let state = Poly1305 {
            accumulator: [word(0), word(1), word(2)],
            multiplier: [word(3), word(4)],
            mask: [word(5), word(6)],
        };
        let clamped = state.multiplier[0] & !CLAMP[0] == 0 && state.multiplier[1] & !CLAMP[1] == 0;
        (clamped && state.accumulator[2] <= 4).then_some(state)
    }
}

fn add(left: u64, right: u64, carry: u64) -> (u64, u64) {
    let sum = u128::from(left) + u128::from(right) + u128::from(carry);
    (sum as u64, (sum >> 64) as u64)
}

fn mul(left: u64, right: u64) -> u128 {
    u128::from(left) * u128::from(right)
}

/// RFC 8439 2.5: the bits of the multiplier that are kept.
const CLAMP: [u64; 2] = [0x0fff_fffc_0fff_ffff, 0x0fff_fffc_0fff_fffc];
