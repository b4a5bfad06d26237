//! Linear maps of bytes, for tables computed at compile time.

use crate::sbox::{multiply, power};

/// The image of each bit, from the lowest.
pub(crate) type Columns = [u8; 8];

/// Multiplication by two modulo `polynomial`.
pub(crate) const fn doubling(polynomial: u16) -> Columns {
    let mut columns = [0; 8];
    let mut bit = 0;
    while bit < 8 {
        columns[bit] = multiply(1 << bit, 2, polynomial);
        bit += 1;
    }
    columns
}

/// The linear part of AES's S-box (FIPS 197 5.1.1), which follows the inversion.
pub(crate) const AES: Columns = [0x1f, 0x3e, 0x7c, 0xf8, 0xf1, 0xe3, 0xc7, 0x8f];
/// The linear part of ZUC's S1.
pub(crate) const ZUC_1: Columns = [0x97, 0x3e, 0x6d, 0xcb, 0xee, 0xdd, 0xbb, 0x77];
/// The isomorphism from the field of ZUC's S1 to AES's: it keeps sums and products.
pub(crate) const ZUC_TO_AES: Columns = {
    // The image of x is a root of the first field's polynomial in the second: x^8 = x^7 + x^3 + x + 1.
    let mut root = 2;
    while power(root, 8, 0x11b) != power(root, 7, 0x11b) ^ power(root, 3, 0x11b) ^ root ^ 1 {
        root += 1;
    }
    let mut columns = [0; 8];
    let mut bit = 0;
    while bit < 8 {
        columns[bit] = power(root, bit as u32, 0x11b);
        bit += 1;
    }
    columns
};
/// ZUC's S1 of a byte is this map of the inverse, in AES's field, of the byte's [`ZUC_TO_AES`], plus 0x55.
pub(crate) const ZUC_1_OF_AES_INVERSE: Columns = compose(ZUC_1, invert(ZUC_TO_AES));
/// ZUC's S1 of a byte is also this map of AES's S-box of the byte's [`ZUC_TO_AES`], plus [`ZUC_1_CONSTANT`].
pub(crate) const ZUC_1_OF_AES_SBOX: Columns = compose(ZUC_1_OF_AES_INVERSE, invert(AES));
/// See [`ZUC_1_OF_AES_SBOX`].
pub(crate) const ZUC_1_CONSTANT: u8 = apply(ZUC_1_OF_AES_SBOX, 0x63) ^ 0x55;

/// Sums the images of a byte's bits.
pub(crate) const fn apply(map: Columns, byte: u8) -> u8 {
    let (mut sum, mut bit) = (0, 0);
    while bit < 8 {
        if byte >> bit & 1 != 0 {
            sum ^= map[bit];
        }
        bit += 1;
    }
    sum
}

/// Applies `inner`, then `outer`.
const fn compose(outer: Columns, inner: Columns) -> Columns {
    let mut columns = [0; 8];
    let mut bit = 0;
    while bit < 8 {
        columns[bit] = apply(outer, inner[bit]);
        bit += 1;
    }
    columns
}

/// Inverts the map by a search over all bytes.
const fn invert(map: Columns) -> Columns {
    let mut columns = [0; 8];
    let mut byte = 0;
    while byte < 256 {
        let image = apply(map, byte as u8);
        if image.is_power_of_two() {
            columns[image.trailing_zeros() as usize] = byte as u8;
        }
        byte += 1;
    }
    columns
}

/// Returns the map in the layout of GF2P8AFFINEQB: the row of the highest bit first.
pub(crate) const fn matrix(map: Columns) -> i64 {
    let mut rows = [0; 8];
    let mut bit = 0;
    while bit < 8 {
        let mut from = 0;
        while from < 8 {
            rows[7 - bit] |= (map[from] >> bit & 1) << from;
            from += 1;
        }
        bit += 1;
    }
    i64::from_le_bytes(rows)
}

/// Returns the map as two look-ups: images of the low and of the high half of a byte.
pub(crate) const fn halves(map: Columns) -> [[u8; 16]; 2] {
    let mut tables = [[0; 16]; 2];
    let mut half = 0;
    while half < 16 {
        tables[0][half] = apply(map, half as u8);
        tables[1][half] = apply(map, (half << 4) as u8);
        half += 1;
    }
    tables
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sbox;

    #[test]
    fn zuc_s1_is_the_aes_sbox_between_two_maps() {
        for byte in 0..=255u8 {
            let in_aes = apply(ZUC_TO_AES, byte);
            let inverse = power(in_aes, 254, 0x11b);
            assert_eq!(apply(ZUC_1_OF_AES_INVERSE, inverse) ^ 0x55, sbox::ZUC_1[usize::from(byte)]);
            let of_sbox = apply(ZUC_1_OF_AES_SBOX, sbox::AES[usize::from(in_aes)]) ^ ZUC_1_CONSTANT;
            assert_eq!(of_sbox, sbox::ZUC_1[usize::from(byte)]);
        }
    }
}
