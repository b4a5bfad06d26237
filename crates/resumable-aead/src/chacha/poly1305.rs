//! Poly1305 (RFC 8439 2.5) as a plain value that can be copied and written out.
//!
//! Invariant: `accumulator` is below 5 * 2^128, in three words, least first; `multiplier` is clamped.

use zeroize::Zeroize;

use super::Vectors;
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
    /// Makes an authenticator from a key that no other message uses.
    pub(crate) fn new(key: &[u8; 32]) -> Self {
        let word = |index: usize| u64::from_le_bytes(array(key, 8 * index));
        Poly1305 { accumulator: [0; 3], multiplier: [word(0) & CLAMP[0], word(1) & CLAMP[1]], mask: [word(2), word(3)] }
    }

    /// Absorbs whole blocks, by vectors if the processor has them and there are enough blocks.
    pub(crate) fn absorb(&mut self, vectors: Option<Vectors>, blocks: &[u8]) {
        debug_assert_eq!(blocks.len() % 16, 0);
        if vectors.is_some_and(|vectors| vectors.absorb(&mut self.accumulator, self.multiplier, blocks)) {
            return;
        }
        let multiplier = Multiplier::new(self.multiplier);
        for block in blocks.chunks_exact(16) {
            absorb_block(&mut self.accumulator, &multiplier, &array(block, 0));
        }
    }

    /// Returns the accumulator and the multiplier.
    pub(super) fn parts(&mut self) -> (&mut [u64; 3], [u64; 2]) {
        (&mut self.accumulator, self.multiplier)
    }

    /// Returns the tag of the absorbed blocks.
    pub(crate) fn tag(&self) -> [u8; TAG_LEN] {
        let [h0, h1, h2] = self.accumulator;
        // The accumulator is below 2 * (2^130 - 5): if adding 5 reaches 2^130, the prime is subtracted, without a branch.
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

    /// Makes an authenticator with an accumulator within the invariant.
    #[cfg(all(test, target_arch = "x86_64"))]
    pub(crate) fn at(key: &[u8; 32], accumulator: [u64; 3]) -> Self {
        Poly1305 { accumulator, ..Poly1305::new(key) }
    }

    #[cfg(all(test, target_arch = "x86_64"))]
    pub(crate) fn multiplier(&self) -> [u64; 2] {
        self.multiplier
    }

    /// Serialises accumulator, multiplier and mask.
    pub(crate) fn to_bytes(self) -> [u8; 56] {
        let mut bytes = [0; 56];
        let words = self.accumulator.into_iter().chain(self.multiplier).chain(self.mask);
        for (bytes, word) in bytes.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Parses the bytes that `to_bytes` wrote. Returns `None` if the invariant does not hold.
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

/// A clamped multiplier in two words; `s1` replaces `r1` in products from 2^128 on.
#[derive(Clone, Copy)]
pub(super) struct Multiplier {
    r0: u64,
    r1: u64,
    s1: u64,
}

impl Multiplier {
    pub(super) fn new([r0, r1]: [u64; 2]) -> Multiplier {
        // Clamping made r1 a multiple of 4, so that r1 * 2^128 = (r1 / 4) * 2^130 = (r1 / 4) * 5 modulo 2^130 - 5.
        Multiplier { r0, r1, s1: r1 + (r1 >> 2) }
    }
}

impl Zeroize for Multiplier {
    fn zeroize(&mut self) {
        [&mut self.r0, &mut self.r1, &mut self.s1].into_iter().for_each(Zeroize::zeroize);
    }
}

/// Absorbs a block into an accumulator within the invariant, and keeps the invariant.
#[inline(always)]
pub(super) fn absorb_block(accumulator: &mut [u64; 3], multiplier: &Multiplier, block: &[u8; 16]) {
    let [h0, h1, h2] = *accumulator;
    let Multiplier { r0, r1, s1 } = *multiplier;
    // The block is followed by a one after its last byte.
    let (h0, carry) = add(h0, u64::from_le_bytes(array(block, 0)), 0);
    let (h1, carry) = add(h1, u64::from_le_bytes(array(block, 8)), carry);
    let h2 = h2 + carry + 1;

    // h2 is at most 6 here, r0, r1 below 2^60 and s1 below 2^61: no product or sum overflows.
    let d0 = mul(h0, r0) + mul(h1, s1);
    let d1 = mul(h0, r1) + mul(h1, r0) + u128::from(h2 * s1) + (d0 >> 64);
    let d2 = h2 * r0 + (d1 >> 64) as u64;

    // Bits above 2^130 come back times 5.
    let above = (d2 >> 2) + (d2 & !3);
    let (h0, carry) = add(d0 as u64, above, 0);
    let (h1, carry) = add(d1 as u64, 0, carry);
    *accumulator = [h0, h1, (d2 & 3) + carry];
}

fn add(left: u64, right: u64, carry: u64) -> (u64, u64) {
    let sum = u128::from(left) + u128::from(right) + u128::from(carry);
    (sum as u64, (sum >> 64) as u64)
}

fn mul(left: u64, right: u64) -> u128 {
    u128::from(left) * u128::from(right)
}

/// The bits of the multiplier that remain after clamping (RFC 8439 2.5).
const CLAMP: [u64; 2] = [0x0fff_fffc_0fff_ffff, 0x0fff_fffc_0fff_fffc];

#[cfg(test)]
mod tests {
    use super::*;
    use poly1305::universal_hash::KeyInit;
    use proptest::prelude::*;

    fn tag_of(key: &[u8; 32], blocks: &[u8]) -> [u8; TAG_LEN] {
        let mut poly = Poly1305::new(key);
        poly.absorb(None, blocks);
        poly.tag()
    }

    /// Returns a key with this multiplier and mask.
    fn key(multiplier: u128, mask: u128) -> [u8; 32] {
        let mut key = [0; 32];
        key[..16].copy_from_slice(&multiplier.to_le_bytes());
        key[16..].copy_from_slice(&mask.to_le_bytes());
        key
    }

    fn bytes(blocks: &[u128]) -> Vec<u8> {
        blocks.iter().flat_map(|block| block.to_le_bytes()).collect()
    }

    /// The vectors have sums at or just below the prime, and sums with the longest carries.
    #[test]
    fn rfc_8439_a_3_vectors_7_to_9() {
        let vectors = [(0, u128::MAX, 3), (u128::MAX, 2, 3), (0, u128::MAX - 2, u128::MAX - 5)];
        for (mask, block, tag) in vectors {
            assert_eq!(tag_of(&key(2, mask), &bytes(&[block])), u128::to_le_bytes(tag));
        }
    }

    /// Numbers near a carry or the prime.
    fn extreme() -> impl Strategy<Value = u128> {
        let edge = prop_oneof![
            Just(0u128),
            Just(u128::MAX),
            Just(1 << 64),
            Just((1 << 64) - 1),
            Just(1 << 127),
            any::<u128>()
        ];
        (edge, -6i8..=6).prop_map(|(edge, beside)| edge.wrapping_add_signed(beside.into()))
    }

    proptest! {
        #[test]
        fn tags_match_another_implementation(
            multiplier in extreme(),
            mask in extreme(),
            blocks in prop::collection::vec(extreme(), 0..6),
        ) {
            let (key, blocks) = (key(multiplier, mask), bytes(&blocks));
            let theirs = poly1305::Poly1305::new(&key.into()).compute_unpadded(&blocks);
            prop_assert_eq!(&tag_of(&key, &blocks)[..], &theirs[..]);
        }

        /// Tests the last step alone: an accumulator within the invariant, near the prime, its double and five times 2^128.
        #[test]
        fn accumulator_is_fully_reduced(low in extreme(), high in 0u64..=4) {
            let poly = Poly1305 { accumulator: [low as u64, (low >> 64) as u64, high], multiplier: [0; 2], mask: [0; 2] };
            // 2^130 is 5 modulo the prime.
            let (above, kept) = (u128::from(high >> 2), u128::from(high & 3));
            let (sum, carry) = low.overflowing_add(5 * above);
            let high = kept + u128::from(carry);
            let is_prime_or_more = high == 3 && sum >= u128::MAX - 4;
            let expected = if is_prime_or_more { sum.wrapping_add(5) } else { sum };
            prop_assert_eq!(poly.tag(), expected.to_le_bytes());
        }
    }
}
