//! The hash of 128-NIA1 (UIA2, TS 35.215 4): a polynomial over 64-bit blocks modulo x^64 + x^4 + x^3 + x + 1.

/// Multiplies two elements.
pub(crate) fn multiply(a: u64, b: u64) -> u64 {
    // The high half is the low half of the mirrored product.
    let low = multiply_low(a, b);
    let high = multiply_low(a.reverse_bits(), b.reverse_bits()).reverse_bits() >> 1;
    reduce(high, low)
}

/// Reduces `high * x^64 + low`.
#[inline(always)]
pub(crate) fn reduce(high: u64, low: u64) -> u64 {
    let over = high >> 63 ^ high >> 61 ^ high >> 60;
    let high = high ^ over;
    low ^ high ^ high << 1 ^ high << 3 ^ high << 4
}

/// Returns the low half of the carry-less product. Masked operands have one bit in four: the gaps take up the integer
/// product's carries.
fn multiply_low(a: u64, b: u64) -> u64 {
    const MASKS: [u64; 4] =
        [0x1111_1111_1111_1111, 0x2222_2222_2222_2222, 0x4444_4444_4444_4444, 0x8888_8888_8888_8888];
    let (a, b) = (MASKS.map(|mask| a & mask), MASKS.map(|mask| b & mask));
    let mut result = 0;
    for (index, mask) in MASKS.iter().enumerate() {
        let sum = (0..4).fold(0, |sum, of_a: usize| sum ^ a[of_a].wrapping_mul(b[(index + 4 - of_a) % 4]));
        result |= sum & mask;
    }
    result
}

/// Hashes whole blocks of eight bytes. The sum starts at zero and becomes `(sum + block) * p` with each block.
pub(crate) fn absorb(p: u64, blocks: &[u8]) -> u64 {
    blocks.as_chunks::<8>().0.iter().fold(0, |sum, block| multiply(sum ^ u64::from_be_bytes(*block), p))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bit_by_bit(a: u64, b: u64) -> u64 {
        (0..64).rev().fold(0, |result: u64, bit| {
            let doubled = result << 1 ^ if result >> 63 == 1 { 0x1b } else { 0 };
            doubled ^ if b >> bit & 1 == 1 { a } else { 0 }
        })
    }

    proptest! {
        #[test]
        fn products_match_a_bit_by_bit_model(a: u64, b: u64) {
            prop_assert_eq!(multiply(a, b), bit_by_bit(a, b));
            prop_assert_eq!(multiply(a, u64::MAX), bit_by_bit(a, u64::MAX));
        }
    }
}
