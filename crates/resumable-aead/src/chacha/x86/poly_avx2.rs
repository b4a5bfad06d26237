//! Poly1305 over four blocks at a time, in limbs of 26 bits multiplied by AVX2.
//!
//! Uses the algorithm of `poly_ifma.rs` with four lanes.
//!
//! # Safety of this module
//!
//! Functions are compiled for their instructions, and callable from functions compiled for the same. The caller of `absorb` vouches
//! for the processor. The only other unsafe operations are loads: of arrays of 32 bytes, and of 64 bytes of a slice that is at least
//! as long.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use zeroize::Zeroize;

use super::limbs;

/// Absorbs whole blocks, at least one.
#[target_feature(enable = "avx2")]
pub(super) fn absorb(accumulator: &mut [u64; 3], multiplier: [u64; 2], blocks: &[u8]) {
    let mut wide = limbs::powers::<LANES>(multiplier);
    let mut eighth = narrow(limbs::to_words(limbs::multiply(&wide[LANES - 1], &wide[LANES - 1])));
    let mut powers = wide.map(|power| narrow(limbs::to_words(power)));
    wide.as_flattened_mut().zeroize();
    let by_fourth = Avx2Multiplier::all(&powers[LANES - 1]);
    let by_eighth = Avx2Multiplier::all(&eighth);
    let by_lanes = Avx2Multiplier::by_lanes(&powers);
    powers.as_flattened_mut().zeroize();
    eighth.zeroize();

    // The first vector may have fewer than four blocks. Missing blocks come first: they are zero, without the one after their last byte.
    let count = blocks.len() / BLOCK;
    let first = match count % LANES {
        0 => LANES,
        some => some,
    };
    let (head, mut rest) = blocks.split_at(BLOCK * first);
    let mut padded = [0; 2 * VECTOR];
    padded[2 * VECTOR - head.len()..].copy_from_slice(head);
    let missing = LANES - first;
    let mut ones = [0; LANES];
    for &lane in &LANE_OF[missing..] {
        ones[lane] = ONE_ABOVE as u64;
    }
    let mut sum = split(&padded, load(&ones));
    for (sum, before) in sum.iter_mut().zip(narrow(*accumulator)) {
        let mut lanes = [0; LANES];
        lanes[LANE_OF[missing]] = before;
        *sum = _mm256_add_epi64(*sum, load(&lanes));
    }

    let one = _mm256_set1_epi64x(ONE_ABOVE);
    while rest.len() >= 4 * VECTOR {
        // The first four blocks do not depend on the accumulator.
        let mut product = [_mm256_setzero_si256(); 5];
        add_product(&mut product, &split(rest, one), &by_fourth);
        add_product(&mut product, &sum, &by_eighth);
        sum = add(reduce(product), split(&rest[2 * VECTOR..], one));
        rest = &rest[4 * VECTOR..];
    }
    if !rest.is_empty() {
        let mut product = [_mm256_setzero_si256(); 5];
        add_product(&mut product, &sum, &by_fourth);
        sum = add(reduce(product), split(rest, one));
    }
    let mut product = [_mm256_setzero_si256(); 5];
    add_product(&mut product, &sum, &by_lanes);
    let mut limbs = [0; 5];
    for (limb, lanes) in limbs.iter_mut().zip(&reduce(product)) {
        *limb = sum_of(lanes);
    }
    *accumulator = widen(limbs);
}

/// Splits words of 64 bits into five limbs of 26 bits; the third word is at most 4.
fn narrow([w0, w1, w2]: [u64; 3]) -> [u64; 5] {
    let low = u128::from(w0) | u128::from(w1) << 64;
    let limb = |at: u32| (low >> at) as u64 & MASK;
    [limb(0), limb(26), limb(52), limb(78), w1 >> 40 | w2 << 24]
}

/// Joins limbs, which may be a little too large, into words.
fn widen([l0, l1, l2, l3, l4]: [u64; 5]) -> [u64; 3] {
    // As limbs of 44, 44 and 42 bits.
    let low = l0 + (l1 << 26);
    let middle = (u128::from(l2) << 52) + (u128::from(l3) << 78);
    let top = middle >> 88;
    let middle = ((middle as u64) >> 44 | ((middle >> 64) as u64) << 20) & limbs::MASK_44;
    limbs::to_words([low, middle, top as u64 + (l4 << 16)])
}

/// One number in each lane, by limbs.
type LimbLanes26 = [__m256i; 5];

/// Avx2Multiplier of the lanes.
struct Avx2Multiplier {
    limbs: LimbLanes26,
    /// All limbs but the first, times 2^130 modulo the prime.
    folded: [__m256i; 4],
}

impl Avx2Multiplier {
    #[inline]
    #[target_feature(enable = "avx2")]
    fn all(power: &[u64; 5]) -> Self {
        Avx2Multiplier::new(power.map(|limb| _mm256_set1_epi64x(limb as i64)))
    }

    /// Returns for each lane the missing power of its blocks: the fourth for the first block, the first for the last.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn by_lanes(powers: &[[u64; 5]; LANES]) -> Self {
        let mut lanes = [[0; LANES]; 5];
        for (block, &lane) in LANE_OF.iter().enumerate() {
            for (lanes, limb) in lanes.iter_mut().zip(powers[LANES - 1 - block]) {
                lanes[lane] = limb;
            }
        }
        let limbs = [load(&lanes[0]), load(&lanes[1]), load(&lanes[2]), load(&lanes[3]), load(&lanes[4])];
        lanes.as_flattened_mut().zeroize();
        Avx2Multiplier::new(limbs)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn new(limbs: LimbLanes26) -> Self {
        let five_times = |limb: __m256i| _mm256_add_epi64(limb, _mm256_slli_epi64::<2>(limb));
        let [_, r1, r2, r3, r4] = limbs;
        Avx2Multiplier { limbs, folded: [five_times(r1), five_times(r2), five_times(r3), five_times(r4)] }
    }
}

/// Adds the products of `numbers`, which have limbs below 2^29, and a multiplier.
#[inline]
#[target_feature(enable = "avx2")]
fn add_product(product: &mut LimbLanes26, numbers: &LimbLanes26, multiplier: &Avx2Multiplier) {
    let [r0, r1, r2, r3, r4] = multiplier.limbs;
    let [s1, s2, s3, s4] = multiplier.folded;
    let [n0, n1, n2, n3, n4] = *numbers;
    macro_rules! column {
        ($limb:literal, $($number:ident * $by:ident),*) => {
            $(product[$limb] = _mm256_add_epi64(product[$limb], _mm256_mul_epu32($number, $by));)*
        };
    }
    column!(0, n0 * r0, n1 * s4, n2 * s3, n3 * s2, n4 * s1);
    column!(1, n0 * r1, n1 * r0, n2 * s4, n3 * s3, n4 * s2);
    column!(2, n0 * r2, n1 * r1, n2 * r0, n3 * s4, n4 * s3);
    column!(3, n0 * r3, n1 * r2, n2 * r1, n3 * r0, n4 * s4);
    column!(4, n0 * r4, n1 * r3, n2 * r2, n3 * r1, n4 * r0);
}

/// Carries into limbs of 26 bits; the second may be a little larger.
#[inline]
#[target_feature(enable = "avx2")]
fn reduce(product: LimbLanes26) -> LimbLanes26 {
    let mask = _mm256_set1_epi64x(MASK as i64);
    let [d0, d1, d2, d3, d4] = product;
    // Two independent carry chains run at a time.
    let d1 = _mm256_add_epi64(d1, _mm256_srli_epi64::<26>(d0));
    let d4 = _mm256_add_epi64(d4, _mm256_srli_epi64::<26>(d3));
    let (d0, d3) = (_mm256_and_si256(d0, mask), _mm256_and_si256(d3, mask));
    let d2 = _mm256_add_epi64(d2, _mm256_srli_epi64::<26>(d1));
    let above = _mm256_srli_epi64::<26>(d4);
    let d0 = _mm256_add_epi64(d0, _mm256_add_epi64(above, _mm256_slli_epi64::<2>(above)));
    let (d1, d4) = (_mm256_and_si256(d1, mask), _mm256_and_si256(d4, mask));
    let d3 = _mm256_add_epi64(d3, _mm256_srli_epi64::<26>(d2));
    let d1 = _mm256_add_epi64(d1, _mm256_srli_epi64::<26>(d0));
    let (d0, d2) = (_mm256_and_si256(d0, mask), _mm256_and_si256(d2, mask));
    let d4 = _mm256_add_epi64(d4, _mm256_srli_epi64::<26>(d3));
    [d0, d1, d2, _mm256_and_si256(d3, mask), d4]
}

#[inline]
#[target_feature(enable = "avx2")]
fn add(mut left: LimbLanes26, right: LimbLanes26) -> LimbLanes26 {
    for (left, right) in left.iter_mut().zip(right) {
        *left = _mm256_add_epi64(*left, right);
    }
    left
}

/// Splits the first four blocks of `bytes` into limbs, and adds `above` to the fifth.
#[inline]
#[target_feature(enable = "avx2")]
fn split(bytes: &[u8], above: __m256i) -> LimbLanes26 {
    let bytes: &[u8; 2 * VECTOR] = bytes.first_chunk().expect("callers have four blocks");
    // SAFETY: an array of two vectors.
    let (first, second) =
        unsafe { (_mm256_loadu_si256(bytes.as_ptr().cast()), _mm256_loadu_si256(bytes.as_ptr().add(VECTOR).cast())) };
    let low = _mm256_unpacklo_epi64(first, second);
    let high = _mm256_unpackhi_epi64(first, second);
    let mask = _mm256_set1_epi64x(MASK as i64);
    let middle = _mm256_or_si256(_mm256_srli_epi64::<52>(low), _mm256_slli_epi64::<12>(high));
    [
        _mm256_and_si256(low, mask),
        _mm256_and_si256(_mm256_srli_epi64::<26>(low), mask),
        _mm256_and_si256(middle, mask),
        _mm256_and_si256(_mm256_srli_epi64::<14>(high), mask),
        _mm256_or_si256(_mm256_srli_epi64::<40>(high), above),
    ]
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(lanes: &[u64; LANES]) -> __m256i {
    // SAFETY: an array of four words.
    unsafe { _mm256_loadu_si256(lanes.as_ptr().cast()) }
}

/// Returns the sum of all lanes.
#[inline]
#[target_feature(enable = "avx2")]
fn sum_of(lanes: &__m256i) -> u64 {
    let mut words = [0u64; LANES];
    // SAFETY: an array of four words.
    unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast(), *lanes) };
    words.iter().sum()
}

const BLOCK: usize = 16;
const LANES: usize = 4;
const VECTOR: usize = 32;
const MASK: u64 = (1 << 26) - 1;

/// The lane of each block: `split` interleaves low and high halves.
const LANE_OF: [usize; LANES] = [0, 2, 1, 3];

/// The bit after a block's last byte, in the fifth limb.
const ONE_ABOVE: i64 = 1 << 24;
