//! Sixteen words, or four blocks, in a 512-bit register. S-boxes use GFNI and VBMI, rounds of AES use VAES.
//!
//! See [`x86`](super::x86) for the safety argument.
#![allow(unsafe_code)]

use std::arch::x86_64::*;
use std::arch::x86_64::{
    _mm512_add_epi16 as add_16, _mm512_add_epi32 as add_32, _mm512_alignr_epi8 as join_bytes, _mm512_and_si512 as and,
    _mm512_loadu_si512 as load, _mm512_min_epu32 as min_32, _mm512_set1_epi32 as set_32, _mm512_sllv_epi32 as left_32,
    _mm512_srlv_epi32 as right_32, _mm512_sub_epi32 as sub_32, _mm512_xor_si512 as xor,
};

use super::clmul::{self, absorb_512 as absorb};
use super::{Block, KeystreamBlocks, Wide, Words};
use crate::lane::Lane;
use crate::linear::{self, matrix};
use crate::run::{self, GeneratorKind};
use crate::sbox;
use crate::words::portable::{DIV, MUL, TURNED};

backend!(
    Avx512(__m512i),
    "avx512f" "avx512bw" "avx512dq" "avx512vl" "avx512vbmi" "avx512vbmi2" "gfni" "vaes" "pclmulqdq" "vpclmulqdq" "ssse3"
);

impl Avx512 {
    methods! {
        fn mix(words: Self, doubling: i64) -> Self {
            // After a rotation to the right by a byte, b[r - 1] is at the place of b[r].
            let after = _mm512_ror_epi32::<8>(words.0);
            let both = xor(words.0, after);
            let doubled = _mm512_gf2p8affine_epi64_epi8::<0>(both, _mm512_set1_epi64(doubling));
            Avx512(_mm512_ternarylogic_epi32::<XOR>(doubled, after, _mm512_ror_epi32::<16>(both)))
        }
        fn look_up(bytes: __m512i, table: &[u8; 256]) -> __m512i {
            let quarters: *const __m512i = table.as_ptr().cast();
            let (a, b) = (load(quarters), load(quarters.add(1)));
            let (c, d) = (load(quarters.add(2)), load(quarters.add(3)));
            let low = _mm512_permutex2var_epi8(a, bytes, b);
            let high = _mm512_permutex2var_epi8(c, bytes, d);
            _mm512_mask_blend_epi8(_mm512_movepi8_mask(bytes), low, high)
        }
        fn linear(low: __m512i, high: __m512i, images: &[[u32; 16]; 2]) -> Self {
            // The instruction uses only the lowest four bits of an index.
            let of_low = load(images[0].as_ptr().cast());
            let of_high = load(images[1].as_ptr().cast());
            Avx512(xor(_mm512_permutexvar_epi32(low, of_low), _mm512_permutexvar_epi32(high, of_high)))
        }
        fn zuc_word(words: Self) -> Self {
            // Bytes 3 and 1 take S0, bytes 2 and 0 take S1.
            let first = Avx512::look_up(words.0, &sbox::ZUC_0);
            let in_aes = _mm512_gf2p8affine_epi64_epi8::<0>(words.0, _mm512_set1_epi64(matrix(linear::ZUC_TO_AES)));
            let map = _mm512_set1_epi64(matrix(linear::ZUC_1_OF_AES_INVERSE));
            Avx512(_mm512_mask_gf2p8affineinv_epi64_epi8::<0x55>(first, 0x5555_5555_5555_5555, in_aes, map))
        }
        /// Transposes a matrix with quarters of registers as elements.
        fn turn_quarters(rows: [__m512i; 4]) -> [__m512i; 4] {
            let [a, b, c, d] = rows;
            let [ab_low, ab_high] = [_mm512_shuffle_i32x4::<0x44>(a, b), _mm512_shuffle_i32x4::<0xee>(a, b)];
            let [cd_low, cd_high] = [_mm512_shuffle_i32x4::<0x44>(c, d), _mm512_shuffle_i32x4::<0xee>(c, d)];
            [
                _mm512_shuffle_i32x4::<0x88>(ab_low, cd_low),
                _mm512_shuffle_i32x4::<0xdd>(ab_low, cd_low),
                _mm512_shuffle_i32x4::<0x88>(ab_high, cd_high),
                _mm512_shuffle_i32x4::<0xdd>(ab_high, cd_high),
            ]
        }
        /// Writes four whole columns. The rows are in four groups of four, each with one column per quarter.
        fn columns(rows: [__m512i; 4], out: &mut KeystreamBlocks, first: usize) -> () {
            for (quarter, column) in Avx512::turn_quarters(rows).into_iter().enumerate() {
                _mm512_storeu_si512(out.0[4 * quarter + first].as_mut_ptr().cast(), column);
            }
        }
    }
}

impl Words for Avx512 {
    words_of_any_width!(Avx512, 16);

    methods! {
        fn rotate<const BITS: u32>(self: Self) -> Self {
            Avx512(_mm512_rolv_epi32(self.0, set_32(BITS as i32)))
        }

        fn snow_3g_s1(self: Self) -> Self {
            let map = _mm512_set1_epi64(matrix(linear::AES));
            let substituted = Avx512(_mm512_gf2p8affineinv_epi64_epi8::<0x63>(self.0, map));
            Avx512::mix(substituted, const { matrix(linear::doubling(0x11b)) })
        }
        fn snow_3g_s2(self: Self) -> Self {
            let substituted = Avx512(Avx512::look_up(self.0, &sbox::SNOW_3G));
            Avx512::mix(substituted, const { matrix(linear::doubling(0x169)) })
        }
        fn mul_alpha(self: Self) -> Self {
            Avx512::linear(_mm512_srli_epi32::<24>(self.0), _mm512_srli_epi32::<28>(self.0), &MUL_HALVES)
        }
        fn div_alpha(self: Self) -> Self {
            Avx512::linear(self.0, _mm512_srli_epi32::<4>(self.0), &DIV_HALVES)
        }

        fn zuc_substitute(self: Self, other: Self) -> (Self, Self) {
            (Avx512::zuc_word(self), Avx512::zuc_word(other))
        }
        fn high_low(self: Self, other: Self) -> Self {
            Avx512(_mm512_mask_blend_epi16(0xaaaa_aaaa, other.0, self.0))
        }
        fn low_high(self: Self, other: Self) -> Self { Avx512(_mm512_shldi_epi32::<16>(self.0, other.0)) }
        fn rotate_31<const BITS: u32>(self: Self) -> Self {
            // The doubled cell has its highest bit at bit 31. The funnel shift moves the highest bits in from below.
            let doubled = add_32(self.0, self.0);
            let rotated = _mm512_shldv_epi32(self.0, doubled, set_32(BITS as i32));
            Avx512(and(rotated, set_32(0x7fff_ffff)))
        }

        fn keystream(words: &[Self; 16], out: &mut KeystreamBlocks) -> () {
            let swap = _mm512_broadcast_i32x4(_mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3));
            // Keystream has the high byte of each word first.
            let mut groups = [[_mm512_setzero_si512(); 4]; 4];
            for (group, rows) in groups.iter_mut().zip(words.as_chunks::<4>().0) {
                let (a, b) = (_mm512_shuffle_epi8(rows[0].0, swap), _mm512_shuffle_epi8(rows[1].0, swap));
                let (c, d) = (_mm512_shuffle_epi8(rows[2].0, swap), _mm512_shuffle_epi8(rows[3].0, swap));
                // A transposition of four by four in each quarter of the registers.
                let [ab_low, ab_high] = [_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b)];
                let [cd_low, cd_high] = [_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d)];
                *group = [
                    _mm512_unpacklo_epi64(ab_low, cd_low),
                    _mm512_unpackhi_epi64(ab_low, cd_low),
                    _mm512_unpacklo_epi64(ab_high, cd_high),
                    _mm512_unpackhi_epi64(ab_high, cd_high),
                ];
            }
            // The quarters of one column are in one register of each group.
            let [a, b, c, d] = groups;
            Avx512::columns([a[0], b[0], c[0], d[0]], out, 0);
            Avx512::columns([a[1], b[1], c[1], d[1]], out, 1);
            Avx512::columns([a[2], b[2], c[2], d[2]], out, 2);
            Avx512::columns([a[3], b[3], c[3], d[3]], out, 3);
        }
    }
}

impl Wide for Avx512 {
    blocks_of_any_width!(Avx512, 4);

    methods! {
        fn double_16<const POLYNOMIAL: u16>(self: Self) -> Self {
            let carries = _mm512_srai_epi16::<15>(self.0);
            let doubled = add_16(self.0, self.0);
            let polynomial = _mm512_set1_epi16(POLYNOMIAL as i16);
            Avx512(_mm512_ternarylogic_epi32::<AND_XOR>(carries, polynomial, doubled))
        }
        fn transpose(self: Self) -> Self {
            let turned = _mm512_broadcast_i32x4(_mm_loadu_si128(TURNED.as_ptr().cast()));
            Avx512(_mm512_shuffle_epi8(self.0, turned))
        }
        fn aes_round(self: Self) -> Self { Avx512(_mm512_aesenc_epi128(self.0, _mm512_setzero_si512())) }
        fn keystream(blocks: &[Self; 4], out: &mut KeystreamBlocks, first: usize) -> () {
            let [a, b, c, d] = *blocks;
            let messages = Avx512::turn_quarters([a.0, b.0, c.0, d.0]);
            let lanes = &mut out.0[first..first + 4];
            for (lane, message) in lanes.iter_mut().zip(messages) {
                _mm512_storeu_si512(lane.as_mut_ptr().cast(), message);
            }
        }
    }
}

/// VPTERNLOGD: the sum of three.
const XOR: i32 = 0x96;
/// VPTERNLOGD: the third, inverted where the first two are both one.
const AND_XOR: i32 = 0x6a;

static MUL_HALVES: [[u32; 16]; 2] = halves(&MUL);
static DIV_HALVES: [[u32; 16]; 2] = halves(&DIV);

/// Returns the images of the low and of the high half of a byte.
const fn halves(images: &[u32; 8]) -> [[u32; 16]; 2] {
    let mut halves = [[0; 16]; 2];
    let mut half = 0;
    while half < 16 {
        let mut bit = 0;
        while bit < 4 {
            if half >> bit & 1 != 0 {
                halves[0][half] ^= images[bit];
                halves[1][half] ^= images[4 + bit];
            }
            bit += 1;
        }
        half += 1;
    }
    halves
}
