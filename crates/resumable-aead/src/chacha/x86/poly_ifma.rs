//! Poly1305 over eight blocks at a time, in limbs of 44 bits multiplied by AVX-512 IFMA.
//!
//! Lane by lane, blocks eight apart are summed with powers of the eighth power of the multiplier; at the end each lane is
//! multiplied by the power that its blocks still lack, and lanes are summed.
//!
//! # Safety of this module
//!
//! Functions are compiled for their instructions, and callable from functions compiled for the same. The caller of `absorb` vouches
//! for the processor. The only other unsafe operations are loads: of 128 bytes of a slice that is at least as long, and
//! masked loads of the remaining bytes of the slice.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use zeroize::Zeroize;

use super::limbs::{self, Limbs, MASK_42, MASK_44};

/// Absorbs whole blocks, at least one.
#[target_feature(enable = "avx512f,avx512ifma")]
pub(super) fn absorb(accumulator: &mut [u64; 3], multiplier: [u64; 2], blocks: &[u8]) {
    let mut powers = limbs::powers::<LANES>(multiplier);
    let mut sixteenth = limbs::multiply(&powers[LANES - 1], &powers[LANES - 1]);
    let by_eighth = IfmaMultiplier::all(&powers[LANES - 1]);
    let by_sixteenth = IfmaMultiplier::all(&sixteenth);
    let by_lanes = IfmaMultiplier::by_lanes(&powers);
    powers.as_flattened_mut().zeroize();
    sixteenth.zeroize();

    // The first vector may have fewer than eight blocks. Missing blocks come first: they are zero, without the one after their last byte.
    let count = blocks.len() / BLOCK;
    let first = match count % LANES {
        0 => LANES,
        some => some,
    };
    let (head, mut rest) = blocks.split_at(BLOCK * first);
    let missing = LANES - first;
    let before = limbs::from_words(*accumulator);
    let (first, second) = load_last(head);
    let mut sum = split_vectors(first, second, _mm512_maskz_set1_epi64(LANES_FROM[missing], ONE_ABOVE));
    for (sum, before) in sum.iter_mut().zip(before) {
        let before = _mm512_maskz_set1_epi64(1 << LANE_OF[missing], before as i64);
        *sum = _mm512_add_epi64(*sum, before);
    }

    let one = _mm512_set1_epi64(ONE_ABOVE);
    while rest.len() >= 4 * VECTOR {
        // The first eight blocks do not depend on the accumulator.
        let mut product = Product::zero();
        product.add(&split(rest, one), &by_eighth);
        product.add(&sum, &by_sixteenth);
        sum = add(product.reduce(), split(&rest[2 * VECTOR..], one));
        rest = &rest[4 * VECTOR..];
    }
    if !rest.is_empty() {
        let mut product = Product::zero();
        product.add(&sum, &by_eighth);
        sum = add(product.reduce(), split(rest, one));
    }
    let mut product = Product::zero();
    product.add(&sum, &by_lanes);
    let reduced = product.reduce();
    *accumulator = limbs::to_words([sum_of(&reduced[0]), sum_of(&reduced[1]), sum_of(&reduced[2])]);
}

/// One number in each lane, by limbs.
type LimbLanes44 = [__m512i; 3];

/// IfmaMultiplier of the lanes.
struct IfmaMultiplier {
    limbs: LimbLanes44,
    /// The second and third limbs, times 2^132 modulo the prime.
    folded: [__m512i; 2],
}

impl IfmaMultiplier {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn all(power: &Limbs) -> Self {
        let all = |limb: u64| _mm512_set1_epi64(limb as i64);
        IfmaMultiplier { limbs: power.map(all), folded: [all(20 * power[1]), all(20 * power[2])] }
    }

    /// Returns for each lane the missing power of its blocks: the eighth for the first block, the first for the last.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn by_lanes(powers: &[Limbs; LANES]) -> Self {
        let by_lanes = |limb: usize| {
            let [p1, p2, p3, p4, p5, p6, p7, p8] = powers.map(|power| power[limb] as i64);
            // The powers follow the order of `LANE_OF`.
            _mm512_setr_epi64(p8, p4, p7, p3, p6, p2, p5, p1)
        };
        let limbs = [by_lanes(0), by_lanes(1), by_lanes(2)];
        IfmaMultiplier { limbs, folded: [twenty_times(limbs[1]), twenty_times(limbs[2])] }
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn twenty_times(limb: __m512i) -> __m512i {
    _mm512_add_epi64(_mm512_slli_epi64::<4>(limb), _mm512_slli_epi64::<2>(limb))
}

/// Sums of products before carries: for each limb the low 52 bits and the bits above.
struct Product {
    low: LimbLanes44,
    high: LimbLanes44,
}

impl Product {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn zero() -> Self {
        let zero = _mm512_setzero_si512();
        Product { low: [zero; 3], high: [zero; 3] }
    }

    /// Adds the products of `numbers`, which have limbs below 2^46, and a multiplier.
    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    fn add(&mut self, numbers: &LimbLanes44, multiplier: &IfmaMultiplier) {
        let [r0, r1, r2] = multiplier.limbs;
        let [s1, s2] = multiplier.folded;
        let columns = [[r0, s2, s1], [r1, r0, s2], [r2, r1, r0]];
        // The third limb of the numbers is ready first, and the first limb last.
        for index in [2, 1, 0] {
            for (limb, column) in columns.iter().enumerate() {
                self.low[limb] = _mm512_madd52lo_epu64(self.low[limb], numbers[index], column[index]);
                self.high[limb] = _mm512_madd52hi_epu64(self.high[limb], numbers[index], column[index]);
            }
        }
    }

    /// Carries into limbs of 44, 44 and 42 bits; the second may be a little larger.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn reduce(&self) -> LimbLanes44 {
        let mask_44 = _mm512_set1_epi64(MASK_44 as i64);
        let mask_42 = _mm512_set1_epi64(MASK_42 as i64);
        let [low, high] = [self.low, self.high];
        // Bits above 52 of a limb count 2^8 in the next. Bits above the third count 2^10 of 2^130, which is 5.
        let d1 = _mm512_add_epi64(low[1], _mm512_slli_epi64::<8>(high[0]));
        let d2 = _mm512_add_epi64(low[2], _mm512_slli_epi64::<8>(high[1]));
        let d1 = _mm512_add_epi64(d1, _mm512_srli_epi64::<44>(low[0]));
        let d2 = _mm512_add_epi64(d2, _mm512_srli_epi64::<44>(d1));
        let above = _mm512_add_epi64(_mm512_slli_epi64::<10>(high[2]), _mm512_srli_epi64::<42>(d2));
        let above = _mm512_add_epi64(above, _mm512_slli_epi64::<2>(above));
        let h0 = _mm512_add_epi64(_mm512_and_si512(low[0], mask_44), above);
        let h1 = _mm512_add_epi64(_mm512_and_si512(d1, mask_44), _mm512_srli_epi64::<44>(h0));
        [_mm512_and_si512(h0, mask_44), h1, _mm512_and_si512(d2, mask_42)]
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn add(left: LimbLanes44, right: LimbLanes44) -> LimbLanes44 {
    [_mm512_add_epi64(left[0], right[0]), _mm512_add_epi64(left[1], right[1]), _mm512_add_epi64(left[2], right[2])]
}

/// Splits the first eight blocks of `bytes` into limbs, and adds `above` to the third.
#[inline]
#[target_feature(enable = "avx512f")]
fn split(bytes: &[u8], above: __m512i) -> LimbLanes44 {
    let bytes: &[u8; 2 * VECTOR] = bytes.first_chunk().expect("callers have eight blocks");
    // SAFETY: an array of two vectors.
    let (first, second) =
        unsafe { (_mm512_loadu_si512(bytes.as_ptr().cast()), _mm512_loadu_si512(bytes.as_ptr().add(VECTOR).cast())) };
    split_vectors(first, second, above)
}

/// Splits up to eight blocks into limbs, aligned to the end of two vectors that are zero before them.
#[inline]
#[target_feature(enable = "avx512f")]
fn load_last(blocks: &[u8]) -> (__m512i, __m512i) {
    debug_assert!(blocks.len() <= 2 * VECTOR);
    let missing = 2 * VECTOR - blocks.len();
    let words = u32::from(u16::MAX) << (missing / 8);
    let start = blocks.as_ptr().wrapping_sub(missing);
    // SAFETY: a masked load does not read excluded words, which may lie outside the memory. The other words are in `blocks`, which
    // ends where the second vector does.
    unsafe {
        (
            _mm512_maskz_loadu_epi64(words as u8, start.cast()),
            _mm512_maskz_loadu_epi64((words >> 8) as u8, start.wrapping_add(VECTOR).cast()),
        )
    }
}

/// Splits eight loaded blocks into limbs.
#[inline]
#[target_feature(enable = "avx512f")]
fn split_vectors(first: __m512i, second: __m512i, above: __m512i) -> LimbLanes44 {
    let low = _mm512_unpacklo_epi64(first, second);
    let high = _mm512_unpackhi_epi64(first, second);
    let mask_44 = _mm512_set1_epi64(MASK_44 as i64);
    let middle = _mm512_or_si512(_mm512_srli_epi64::<44>(low), _mm512_slli_epi64::<20>(high));
    [
        _mm512_and_si512(low, mask_44),
        _mm512_and_si512(middle, mask_44),
        _mm512_or_si512(_mm512_srli_epi64::<24>(high), above),
    ]
}

/// Returns the sum of all lanes.
#[inline]
#[target_feature(enable = "avx512f")]
fn sum_of(lanes: &__m512i) -> u64 {
    _mm512_reduce_add_epi64(*lanes) as u64
}

const BLOCK: usize = 16;
const LANES: usize = 8;
const VECTOR: usize = 64;

/// The lane of each block: `split` interleaves low and high halves.
const LANE_OF: [usize; LANES] = [0, 2, 4, 6, 1, 3, 5, 7];

/// Returns the mask of the lanes of a block and the blocks after it.
const LANES_FROM: [u8; LANES] = {
    let mut masks = [0; LANES];
    let mut block = LANES;
    let mut mask = 0;
    while block != 0 {
        block -= 1;
        mask |= 1 << LANE_OF[block];
        masks[block] = mask;
    }
    masks
};

/// The bit after a block's last byte, in the third limb.
const ONE_ABOVE: i64 = 1 << 40;
