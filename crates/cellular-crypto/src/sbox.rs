//! S-boxes without tables in memory: 64 bytes at a time, as eight bit planes.
//!
//! The address of a table look-up would reveal the secret index through the caches. Here an S-box is a polynomial over
//! bits (the algebraic normal form), derived from its table at compile time. The terms of the polynomial are public.

use crate::linear::{self, Columns};

/// An S-box of eight bits.
pub(crate) struct Sbox {
    /// Per product of the four high bits and per result bit: the products of the four low bits that are its factor.
    terms: [[u16; 8]; 16],
}

impl Sbox {
    /// Derives the polynomial of a table.
    pub(crate) const fn new(table: &[u8; 256]) -> Sbox {
        // The Moebius transform: from values to coefficients.
        let mut coefficients = *table;
        let mut bit = 1;
        while bit < 256 {
            let mut index = 0;
            while index < 256 {
                if index & bit != 0 {
                    coefficients[index] ^= coefficients[index ^ bit];
                }
                index += 1;
            }
            bit <<= 1;
        }
        // Grouped by the products of the high bits, so that each has one factor per result bit.
        let mut terms = [[0; 8]; 16];
        let mut index = 0;
        while index < 256 {
            let mut out = 0;
            while out < 8 {
                terms[index >> 4][out] |= ((coefficients[index] >> out & 1) as u16) << (index & 15);
                out += 1;
            }
            index += 1;
        }
        Sbox { terms }
    }

    /// Substitutes 64 bytes.
    #[inline(never)] // once for all steps of all generators
    pub(crate) fn substitute(&self, words: &mut [u64; 8]) {
        transpose(words);
        let [low, high] = [products(&words[..4]), products(&words[4..])];
        // Sums of each set of four neighbouring products, so that a factor takes four look-ups with public indices.
        let mut sums = [[0; 16]; 4];
        for (sums, products) in sums.iter_mut().zip(low.chunks_exact(4)) {
            for set in 1..16usize {
                let last = set.trailing_zeros() as usize;
                sums[set] = sums[set & (set - 1)] ^ products[last];
            }
        }
        // Each result plane is the sum of high products times their factors.
        let mut planes = [0; 8];
        for (high, terms) in high.iter().zip(&self.terms) {
            for (plane, terms) in planes.iter_mut().zip(terms) {
                let [a, b, c, d] = [terms & 15, terms >> 4 & 15, terms >> 8 & 15, terms >> 12].map(usize::from);
                *plane ^= high & (sums[0][a] ^ sums[1][b] ^ sums[2][c] ^ sums[3][d]);
            }
        }
        *words = planes;
        transpose(words);
    }
}

/// Returns all products of four planes. The first is the empty product, one.
#[inline]
fn products(planes: &[u64]) -> [u64; 16] {
    let mut products = [u64::MAX; 16];
    for set in 1..16usize {
        products[set] = products[set & (set - 1)] & planes[set.trailing_zeros() as usize];
    }
    products
}

/// Converts bytes to planes and back: exchanges bit j of word i's bytes with bit i of word j's.
#[inline]
fn transpose(words: &mut [u64; 8]) {
    for (distance, mask) in [(1, 0x5555_5555_5555_5555), (2, 0x3333_3333_3333_3333), (4, 0x0f0f_0f0f_0f0f_0f0f)] {
        for low in (0..8).filter(|index| index & distance == 0) {
            let swap = ((words[low] >> distance) ^ words[low + distance]) & mask;
            words[low + distance] ^= swap;
            words[low] ^= swap << distance;
        }
    }
}

/// Multiplies in the field of 256 elements modulo `polynomial`, for tables computed at compile time.
pub(crate) const fn multiply(a: u8, b: u8, polynomial: u16) -> u8 {
    let (mut a, mut result) = (a as u16, 0);
    let mut bit = 0;
    while bit < 8 {
        if b >> bit & 1 != 0 {
            result ^= a;
        }
        a <<= 1;
        if a & 0x100 != 0 {
            a ^= polynomial;
        }
        bit += 1;
    }
    result as u8
}

/// Raises `base` to the power of `exponent`.
pub(crate) const fn power(base: u8, exponent: u32, polynomial: u16) -> u8 {
    let mut result = 1;
    let mut done = 0;
    while done < exponent {
        result = multiply(result, base, polynomial);
        done += 1;
    }
    result
}

/// Returns the table of an affine map of the inverse.
const fn affine_of_inverse(polynomial: u16, map: Columns, constant: u8) -> [u8; 256] {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        table[index] = linear::apply(map, power(index as u8, 254, polynomial)) ^ constant;
        index += 1;
    }
    table
}

/// AES's S-box (FIPS 197 5.1.1).
pub(crate) const AES: [u8; 256] = affine_of_inverse(0x11b, linear::AES, 0x63);
/// SNOW 3G's second S-box: a Dickson polynomial and 0x25 (TS 35.216 3.3.2).
pub(crate) const SNOW_3G: [u8; 256] = {
    const EXPONENTS: [u32; 9] = [1, 9, 13, 15, 33, 41, 45, 47, 49];
    let mut table = [0x25; 256];
    let mut index = 0;
    while index < 256 {
        let mut term = 0;
        while term < 9 {
            table[index] ^= power(index as u8, EXPONENTS[term], 0x169);
            term += 1;
        }
        index += 1;
    }
    table
};
/// ZUC's S1 (TS 35.222 3.4.2).
pub(crate) const ZUC_1: [u8; 256] = affine_of_inverse(0x18b, linear::ZUC_1, 0x55);
/// ZUC's S0 (TS 35.222 3.4.2): three rounds of a Feistel network on halves, then a rotation by five.
pub(crate) const ZUC_0: [u8; 256] = {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let (mut high, mut low) = (index >> 4, index & 15);
        high ^= ZUC_P[0][low] as usize;
        low ^= ZUC_P[1][high] as usize;
        high ^= ZUC_P[2][low] as usize;
        table[index] = ((high << 4 | low) as u8).rotate_left(5);
        index += 1;
    }
    table
};
/// The round functions of ZUC's S0 on halves.
pub(crate) const ZUC_P: [[u8; 16]; 3] = [
    [9, 15, 0, 14, 15, 15, 2, 10, 0, 4, 0, 12, 7, 5, 3, 9],
    [8, 13, 6, 5, 7, 0, 12, 4, 11, 1, 14, 10, 15, 3, 9, 2],
    [2, 6, 10, 6, 0, 13, 10, 15, 3, 3, 13, 5, 0, 9, 12, 13],
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn substitution_matches_the_tables() {
        for table in [AES, SNOW_3G, ZUC_0, ZUC_1] {
            let sbox = Sbox::new(&table);
            for start in (0..256).step_by(64) {
                let bytes: [u8; 64] = std::array::from_fn(|index| (start + index * 7 % 64) as u8);
                let mut words: [u64; 8] =
                    std::array::from_fn(|word| u64::from_le_bytes(bytes[8 * word..8 * word + 8].try_into().unwrap()));
                sbox.substitute(&mut words);
                let out: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                let expected: Vec<u8> = bytes.iter().map(|byte| table[usize::from(*byte)]).collect();
                assert_eq!(out, expected);
            }
        }
    }

    /// Rows as printed in the specifications.
    #[test]
    fn tables_begin_as_printed() {
        assert_eq!(AES[..4], [0x63, 0x7c, 0x77, 0x7b]);
        assert_eq!(SNOW_3G[..4], [0x25, 0x24, 0x73, 0x67]);
        assert_eq!(ZUC_0[..4], [0x3e, 0x72, 0x5b, 0x47]);
        assert_eq!(ZUC_1[..4], [0x55, 0xc2, 0x63, 0x71]);
    }
}
