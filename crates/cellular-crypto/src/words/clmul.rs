//! Carry-less products of x86-64 for the MACs of SNOW 3G and ZUC.
//!
//! # Safety of this module
//!
//! The functions are `unsafe` for one reason: the processor must have PCLMULQDQ and SSSE3, and for [`absorb_512`] also
//! AVX-512 and VPCLMULQDQ. Callers hold a [`Proof`](super::avx2::Proof) of this. Loads are of 16 or 64 bytes, from
//! chunks of that size.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::Block;
use crate::gf64;

/// See [`gf64::absorb`]. Takes eight blocks at a time, each times its own power of `p`, with one reduction at the end.
#[target_feature(enable = "pclmulqdq,ssse3")]
pub(super) fn absorb(p: u64, blocks: &[u8]) -> u64 {
    let (many, rest) = blocks.as_chunks::<64>();
    if many.len() > 1 {
        let powers = powers(p);
        let pair = |high: usize| _mm_set_epi64x(powers[high - 2] as i64, powers[high - 1] as i64);
        let pairs = [pair(8), pair(6), pair(4), pair(2)];
        // The sum so far is `low + high * x^64`. It is multiplied by p^8 for the next eight blocks without a reduction.
        let carried = _mm_set_epi64x(gf64_times_x64(powers[7]) as i64, powers[7] as i64);
        let swap = _mm_set_epi8(8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
        let mut acc = _mm_setzero_si128();
        for blocks in many {
            let mut next =
                _mm_xor_si128(_mm_clmulepi64_si128::<0x00>(acc, carried), _mm_clmulepi64_si128::<0x11>(acc, carried));
            for (blocks, powers) in blocks.as_chunks::<16>().0.iter().zip(pairs) {
                // SAFETY: the chunk has 16 bytes.
                let blocks = _mm_shuffle_epi8(unsafe { _mm_loadu_si128(blocks.as_ptr().cast()) }, swap);
                next = _mm_xor_si128(next, _mm_clmulepi64_si128::<0x00>(blocks, powers));
                next = _mm_xor_si128(next, _mm_clmulepi64_si128::<0x11>(blocks, powers));
            }
            acc = next;
        }
        let [low, high] = halves(acc);
        return serial(p, gf64::reduce(high, low), rest);
    }
    serial(p, 0, blocks)
}

/// See [`absorb`]. Computes four products per instruction.
#[target_feature(enable = "avx512f,avx512bw,vpclmulqdq,pclmulqdq,ssse3")]
pub(super) fn absorb_512(p: u64, blocks: &[u8]) -> u64 {
    let blocks = &blocks[..blocks.len() / 8 * 8];
    if blocks.len() < 128 {
        return absorb(p, blocks);
    }
    let [p1, p2, p3, p4, p5, p6, p7, p8] = powers(p);
    let powers =
        _mm512_set_epi64(p1 as i64, p2 as i64, p3 as i64, p4 as i64, p5 as i64, p6 as i64, p7 as i64, p8 as i64);
    // Each lane is `low + high * x^64`. It is multiplied by p^8 for the next eight blocks.
    let carried = _mm512_broadcast_i32x4(_mm_set_epi64x(gf64_times_x64(p8) as i64, p8 as i64));
    let swap = _mm512_broadcast_i32x4(_mm_set_epi8(8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));
    // An incomplete group of eight blocks comes first, after zero blocks that complete it. Zero blocks do not change
    // the sum.
    let (short, rest) = blocks.split_at(blocks.len() % 64);
    let mut padded = [0; 64];
    padded[64 - short.len()..].copy_from_slice(short);
    let mut acc = _mm512_setzero_si512();
    for blocks in core::iter::once(&padded).chain(rest.as_chunks::<64>().0) {
        // SAFETY: the chunk has 64 bytes.
        let blocks = _mm512_shuffle_epi8(unsafe { _mm512_loadu_si512(blocks.as_ptr().cast()) }, swap);
        let of_blocks = _mm512_xor_si512(
            _mm512_clmulepi64_epi128::<0x00>(blocks, powers),
            _mm512_clmulepi64_epi128::<0x11>(blocks, powers),
        );
        let of_before =
            [_mm512_clmulepi64_epi128::<0x00>(acc, carried), _mm512_clmulepi64_epi128::<0x11>(acc, carried)];
        acc = _mm512_ternarylogic_epi64::<0x96>(of_blocks, of_before[0], of_before[1]);
    }
    // The sum of the four lanes is the unreduced hash.
    let half = _mm256_xor_si256(_mm512_castsi512_si256(acc), _mm512_extracti64x4_epi64::<1>(acc));
    let [low, high] = halves(_mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256::<1>(half)));
    gf64::reduce(high, low)
}

#[inline]
#[target_feature(enable = "pclmulqdq,ssse3")]
fn serial(p: u64, mut sum: u64, blocks: &[u8]) -> u64 {
    for block in blocks.as_chunks::<8>().0 {
        sum = multiply(sum ^ u64::from_be_bytes(*block), p);
    }
    sum
}

/// Returns p to p^8.
#[inline]
#[target_feature(enable = "pclmulqdq,ssse3")]
fn powers(p: u64) -> [u64; 8] {
    let p2 = multiply(p, p);
    let [p3, p4] = [multiply(p2, p), multiply(p2, p2)];
    [p, p2, p3, p4, multiply(p4, p), multiply(p4, p2), multiply(p4, p3), multiply(p4, p4)]
}

fn gf64_times_x64(element: u64) -> u64 {
    gf64::reduce(element, 0)
}

/// See [`gf64::multiply`].
#[inline]
#[target_feature(enable = "pclmulqdq,ssse3")]
pub(super) fn multiply(a: u64, b: u64) -> u64 {
    let product = _mm_clmulepi64_si128::<0x00>(_mm_cvtsi64_si128(a as i64), _mm_cvtsi64_si128(b as i64));
    let [low, high] = halves(product);
    gf64::reduce(high, low)
}

#[inline]
#[target_feature(enable = "ssse3")]
fn halves(vector: __m128i) -> [u64; 2] {
    [_mm_cvtsi128_si64(vector) as u64, _mm_cvtsi128_si64(_mm_unpackhi_epi64(vector, vector)) as u64]
}

/// See [`eia3::windows`](crate::eia3::windows).
///
/// The sum of the windows that begin at a word's ones is the middle of a carry-less product. The factors are the 64
/// bits of keystream from the word's position, and the word with its bits reversed.
#[target_feature(enable = "pclmulqdq,ssse3")]
pub(super) fn windows(previous: u32, block: &Block, message: &[u8; 64]) -> u32 {
    let swap = _mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3);
    // Nibble tables that reverse bits.
    let [low_half, high_half] = [
        _mm_set_epi8(15, 7, 11, 3, 13, 5, 9, 1, 14, 6, 10, 2, 12, 4, 8, 0),
        _mm_slli_epi16::<4>(_mm_set_epi8(15, 7, 11, 3, 13, 5, 9, 1, 14, 6, 10, 2, 12, 4, 8, 0)),
    ];
    let nibble = _mm_set1_epi8(0x0f);
    let zero = _mm_setzero_si128();
    let mut before = _mm_set1_epi32(previous as i32);
    let mut sum = zero;
    for (block, message) in block.as_chunks::<2>().0.iter().zip(message.as_chunks::<16>().0) {
        // SAFETY: both chunks have 16 bytes.
        let (words, message) =
            unsafe { (_mm_loadu_si128(block.as_ptr().cast()), _mm_loadu_si128(message.as_ptr().cast())) };
        let words = _mm_shuffle_epi8(words, swap);
        let earlier = _mm_alignr_epi8::<12>(words, before);
        before = words;
        // Reverses the bits of each byte. The order of the bytes is already right.
        let reversed = _mm_or_si128(
            _mm_shuffle_epi8(high_half, _mm_and_si128(message, nibble)),
            _mm_shuffle_epi8(low_half, _mm_and_si128(_mm_srli_epi16::<4>(message), nibble)),
        );
        // Pairs of adjacent words: 64 bits of keystream per message word.
        let [first, last] = [_mm_unpacklo_epi32(words, earlier), _mm_unpackhi_epi32(words, earlier)];
        let [of_first, of_last] = [_mm_unpacklo_epi32(reversed, zero), _mm_unpackhi_epi32(reversed, zero)];
        let products = [
            _mm_clmulepi64_si128::<0x00>(first, of_first),
            _mm_clmulepi64_si128::<0x11>(first, of_first),
            _mm_clmulepi64_si128::<0x00>(last, of_last),
            _mm_clmulepi64_si128::<0x11>(last, of_last),
        ];
        for product in products {
            sum = _mm_xor_si128(sum, product);
        }
    }
    (_mm_cvtsi128_si64(sum) as u64 >> 32) as u32
}
