//! Eight words, or two blocks, in a 256-bit register. S-boxes use AES-NI and byte shuffles.
//!
//! See [`x86`](super::x86) for the safety argument.
#![allow(unsafe_code)]

use std::arch::x86_64::*;
use std::arch::x86_64::{
    _mm256_add_epi16 as add_16, _mm256_add_epi32 as add_32, _mm256_alignr_epi8 as join_bytes, _mm256_and_si256 as and,
    _mm256_loadu_si256 as load, _mm256_min_epu32 as min_32, _mm256_set1_epi32 as set_32, _mm256_sllv_epi32 as left_32,
    _mm256_srlv_epi32 as right_32, _mm256_sub_epi32 as sub_32, _mm256_xor_si256 as xor,
};

use super::clmul::{self, absorb};
use super::{Block, KeystreamBlocks, Wide, Words};
use crate::lane::Lane;
use crate::linear::{self, halves};
use crate::run::{self, GeneratorKind};
use crate::sbox;
use crate::words::portable::{DIV, MUL, TURNED};

backend!(Avx2(__m256i), "avx2" "aes" "pclmulqdq" "ssse3" "sse4.1");

impl Avx2 {
    methods! {
        fn table(_value: __m256i, table: &[u8; 16]) -> __m256i {
            _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()))
        }
        fn low_half(bytes: __m256i) -> __m256i { and(bytes, _mm256_set1_epi8(0x0f)) }
        fn high_half(bytes: __m256i) -> __m256i { Avx2::low_half(_mm256_srli_epi16::<4>(bytes)) }
        fn linear_bytes(bytes: __m256i, tables: &[[u8; 16]; 2]) -> __m256i {
            let (low, high) = (Avx2::table(bytes, &tables[0]), Avx2::table(bytes, &tables[1]));
            xor(
                _mm256_shuffle_epi8(low, Avx2::low_half(bytes)),
                _mm256_shuffle_epi8(high, Avx2::high_half(bytes)),
            )
        }
        fn rotate_bytes(words: __m256i, by: &[u8; 16]) -> __m256i {
            _mm256_shuffle_epi8(words, Avx2::table(words, by))
        }
        /// Looks up a table of 256 bytes: sixteen look-ups, and a tree of selections by the four high bits.
        fn look_up(bytes: __m256i, table: &[[u8; 16]; 16]) -> __m256i {
            let low = Avx2::low_half(bytes);
            let mut found = [bytes; 16];
            for (found, table) in found.iter_mut().zip(table) {
                *found = _mm256_shuffle_epi8(Avx2::table(bytes, table), low);
            }
            // A selection tests the highest bit of each byte.
            let by_4 = _mm256_slli_epi16::<3>(bytes);
            for index in 0..8 {
                found[index] = _mm256_blendv_epi8(found[2 * index], found[2 * index + 1], by_4);
            }
            let by_5 = _mm256_slli_epi16::<2>(bytes);
            for index in 0..4 {
                found[index] = _mm256_blendv_epi8(found[2 * index], found[2 * index + 1], by_5);
            }
            let by_6 = _mm256_slli_epi16::<1>(bytes);
            for index in 0..2 {
                found[index] = _mm256_blendv_epi8(found[2 * index], found[2 * index + 1], by_6);
            }
            _mm256_blendv_epi8(found[0], found[1], bytes)
        }
        /// Applies a linear map from the lowest byte of each word to words, three bits at a time.
        fn linear_words(words: [__m256i; 3], tables: &[[u32; 8]; 3]) -> Self {
            let a = load(tables[0].as_ptr().cast());
            let b = load(tables[1].as_ptr().cast());
            let c = load(tables[2].as_ptr().cast());
            let [of_a, of_b, of_c] = [
                // The instruction uses only the lowest three bits of an index.
                _mm256_permutevar8x32_epi32(a, words[0]),
                _mm256_permutevar8x32_epi32(b, words[1]),
                _mm256_permutevar8x32_epi32(c, words[2]),
            ];
            Avx2(xor(xor(of_a, of_b), of_c))
        }
        /// Applies an AES round without ShiftRows to both halves.
        fn aes_rows(bytes: __m256i, mix: bool) -> __m256i {
            Avx2::aes_halves(Avx2::rotate_bytes(bytes, &UNSHIFT_ROWS), mix)
        }
        /// Applies an AES round to both halves. Without `mix` it is the last round.
        fn aes_halves(bytes: __m256i, mix: bool) -> __m256i {
            let zero = _mm_setzero_si128();
            let (low, high) = (_mm256_castsi256_si128(bytes), _mm256_extracti128_si256::<1>(bytes));
            let (low, high) = match mix {
                true => (_mm_aesenc_si128(low, zero), _mm_aesenc_si128(high, zero)),
                false => (_mm_aesenclast_si128(low, zero), _mm_aesenclast_si128(high, zero)),
            };
            _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(low), high)
        }
    }
}

impl Words for Avx2 {
    words_of_any_width!(Avx2, 8);

    methods! {
        fn rotate<const BITS: u32>(self: Self) -> Self {
            match BITS {
                8 => Avx2(Avx2::rotate_bytes(self.0, &ROTATE_8)),
                24 => Avx2(Avx2::rotate_bytes(self.0, &ROTATE_24)),
                _ => {
                    let left = left_32(self.0, set_32(BITS as i32));
                    let right = right_32(self.0, set_32(32 - BITS as i32));
                    Avx2(_mm256_or_si256(left, right))
                }
            }
        }

        fn snow_3g_s1(self: Self) -> Self {
            // In memory the lowest byte of a word is the first of AES's column, and MixColumns turns the same way.
            Avx2(Avx2::aes_rows(self.0, true))
        }
        fn snow_3g_s2(self: Self) -> Self {
            let bytes = Avx2::look_up(self.0, &S2);
            let after = Avx2::rotate_bytes(bytes, &ROTATE_24);
            let both = xor(bytes, after);
            // Bytes with the highest bit set are reduced after doubling.
            let carries = _mm256_cmpgt_epi8(_mm256_setzero_si256(), both);
            let doubled =
                xor(_mm256_add_epi8(both, both), and(carries, _mm256_set1_epi8(0x69)));
            let far = Avx2::rotate_bytes(both, &ROTATE_16);
            Avx2(xor(xor(doubled, after), far))
        }
        fn mul_alpha(self: Self) -> Self {
            let words =
                [_mm256_srli_epi32::<24>(self.0), _mm256_srli_epi32::<27>(self.0), _mm256_srli_epi32::<30>(self.0)];
            Avx2::linear_words(words, &MUL_THIRDS)
        }
        fn div_alpha(self: Self) -> Self {
            Avx2::linear_words([self.0, _mm256_srli_epi32::<3>(self.0), _mm256_srli_epi32::<6>(self.0)], &DIV_THIRDS)
        }

        fn zuc_substitute(self: Self, other: Self) -> (Self, Self) {
            // Bytes 3 and 1 take S0, bytes 2 and 0 take S1. Each S-box takes its bytes of both words together.
            let odd = _mm256_set1_epi16(0xff00u16 as i16);
            let first = _mm256_blendv_epi8(_mm256_srli_epi16::<8>(other.0), self.0, odd);
            let second = _mm256_blendv_epi8(other.0, _mm256_slli_epi16::<8>(self.0), odd);

            // S0: three rounds of a Feistel network on the halves of each byte.
            let p1 = Avx2::table(first, &sbox::ZUC_P[0]);
            let p2 = Avx2::table(first, &sbox::ZUC_P[1]);
            let p3 = Avx2::table(first, &sbox::ZUC_P[2]);
            let (mut low, mut high) = (Avx2::low_half(first), Avx2::high_half(first));
            high = xor(high, _mm256_shuffle_epi8(p1, low));
            low = xor(low, _mm256_shuffle_epi8(p2, high));
            high = xor(high, _mm256_shuffle_epi8(p3, low));
            // The halves are joined by a rotation.
            let of_low = Avx2::table(first, &ROTATED_HALVES[0]);
            let of_high = Avx2::table(first, &ROTATED_HALVES[1]);
            let first = _mm256_or_si256(_mm256_shuffle_epi8(of_low, low), _mm256_shuffle_epi8(of_high, high));

            // S1: AES's S-box between two linear maps.
            let in_aes = Avx2::linear_bytes(second, &TO_AES);
            let second = Avx2::linear_bytes(Avx2::aes_rows(in_aes, false), &FROM_AES);
            let second = xor(second, _mm256_set1_epi8(linear::ZUC_1_CONSTANT as i8));
            (
                Avx2(_mm256_blendv_epi8(_mm256_srli_epi16::<8>(second), first, odd)),
                Avx2(_mm256_blendv_epi8(second, _mm256_slli_epi16::<8>(first), odd)),
            )
        }
        fn high_low(self: Self, other: Self) -> Self { Avx2(_mm256_blend_epi16::<0xaa>(other.0, self.0)) }
        fn low_high(self: Self, other: Self) -> Self {
            Avx2(_mm256_or_si256(_mm256_slli_epi32::<16>(self.0), _mm256_srli_epi32::<16>(other.0)))
        }
        fn rotate_31<const BITS: u32>(self: Self) -> Self {
            let left = left_32(self.0, set_32(BITS as i32));
            let right = right_32(self.0, set_32(31 - BITS as i32));
            Avx2(and(_mm256_or_si256(left, right), set_32(0x7fff_ffff)))
        }

        fn keystream(words: &[Self; 16], out: &mut KeystreamBlocks) -> () {
            let (of_eight, _) = words.as_chunks::<8>();
            for (half, rows) in of_eight.iter().enumerate() {
                // Keystream has the high byte of each word first.
                let mut swapped = [rows[0].0; 8];
                for (swapped, row) in swapped.iter_mut().zip(rows) {
                    *swapped = Avx2::rotate_bytes(row.0, &SWAP);
                }
                let rows = swapped;
                // A transposition of four by four in both halves of the registers. Then the halves are exchanged.
                let mut columns = [rows[0]; 8];
                for (group, [a, b, c, d]) in rows.as_chunks::<4>().0.iter().enumerate() {
                    let [ab_low, ab_high] = [_mm256_unpacklo_epi32(*a, *b), _mm256_unpackhi_epi32(*a, *b)];
                    let [cd_low, cd_high] = [_mm256_unpacklo_epi32(*c, *d), _mm256_unpackhi_epi32(*c, *d)];
                    columns[4 * group] = _mm256_unpacklo_epi64(ab_low, cd_low);
                    columns[4 * group + 1] = _mm256_unpackhi_epi64(ab_low, cd_low);
                    columns[4 * group + 2] = _mm256_unpacklo_epi64(ab_high, cd_high);
                    columns[4 * group + 3] = _mm256_unpackhi_epi64(ab_high, cd_high);
                }
                for column in 0..4 {
                    let (above, below) = (columns[column], columns[column + 4]);
                    let left = _mm256_permute2x128_si256::<0x20>(above, below);
                    let right = _mm256_permute2x128_si256::<0x31>(above, below);
                    let at = 4 * half;
                    _mm256_storeu_si256(out.0[column][at..at + 4].as_mut_ptr().cast(), left);
                    _mm256_storeu_si256(out.0[column + 4][at..at + 4].as_mut_ptr().cast(), right);
                }
            }
        }
    }
}

impl Wide for Avx2 {
    blocks_of_any_width!(Avx2, 2);

    methods! {
        fn double_16<const POLYNOMIAL: u16>(self: Self) -> Self {
            let carries = _mm256_srai_epi16::<15>(self.0);
            let reduced = and(carries, _mm256_set1_epi16(POLYNOMIAL as i16));
            Avx2(xor(add_16(self.0, self.0), reduced))
        }
        fn transpose(self: Self) -> Self { Avx2(Avx2::rotate_bytes(self.0, &TURNED)) }
        fn aes_round(self: Self) -> Self { Avx2(Avx2::aes_halves(self.0, true)) }
        fn keystream(blocks: &[Self; 4], out: &mut KeystreamBlocks, first: usize) -> () {
            let lanes = &mut out.0[first..first + 2];
            for (half, [a, b]) in blocks.as_chunks::<2>().0.iter().enumerate() {
                let messages =
                    [_mm256_permute2x128_si256::<0x20>(a.0, b.0), _mm256_permute2x128_si256::<0x31>(a.0, b.0)];
                for (lane, message) in lanes.iter_mut().zip(messages) {
                    _mm256_storeu_si256(lane[4 * half..4 * half + 4].as_mut_ptr().cast(), message);
                }
            }
        }
    }
}

/// The inverse of ShiftRows, applied in advance.
static UNSHIFT_ROWS: [u8; 16] = [0, 13, 10, 7, 4, 1, 14, 11, 8, 5, 2, 15, 12, 9, 6, 3];
/// Rotations to the left within words.
static ROTATE_8: [u8; 16] = [3, 0, 1, 2, 7, 4, 5, 6, 11, 8, 9, 10, 15, 12, 13, 14];
static ROTATE_16: [u8; 16] = [2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13];
static ROTATE_24: [u8; 16] = [1, 2, 3, 0, 5, 6, 7, 4, 9, 10, 11, 8, 13, 14, 15, 12];
static SWAP: [u8; 16] = [3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12];

static S2: [[u8; 16]; 16] = {
    let mut tables = [[0; 16]; 16];
    let mut index = 0;
    while index < 256 {
        tables[index >> 4][index & 15] = sbox::SNOW_3G[index];
        index += 1;
    }
    tables
};
static TO_AES: [[u8; 16]; 2] = halves(linear::ZUC_TO_AES);
static FROM_AES: [[u8; 16]; 2] = halves(linear::ZUC_1_OF_AES_SBOX);
/// The rotation by five at the end of S0.
static ROTATED_HALVES: [[u8; 16]; 2] = halves([0x20, 0x40, 0x80, 1, 2, 4, 8, 0x10]);

static MUL_THIRDS: [[u32; 8]; 3] = thirds(&MUL);
static DIV_THIRDS: [[u32; 8]; 3] = thirds(&DIV);

/// Returns the images of three, three and two bits of a byte. The last table ignores the third bit.
const fn thirds(images: &[u32; 8]) -> [[u32; 8]; 3] {
    let mut thirds = [[0; 8]; 3];
    let mut index = 0;
    while index < 8 {
        let mut bit = 0;
        while bit < 8 {
            if index >> (bit % 3) & 1 != 0 {
                thirds[bit / 3][index] ^= images[bit];
            }
            bit += 1;
        }
        index += 1;
    }
    thirds
}
