//! Numbers modulo 2^130 - 5 in three limbs of 44, 44 and 42 bits: powers of a multiplier, before vectors take over.

/// A number, the least significant limb first. The first is below 2^44, the second little above, the third below 2^43.
pub(super) type Limbs = [u64; 3];

/// Splits words of 64 bits; the third is at most 4.
pub(super) fn from_words([w0, w1, w2]: [u64; 3]) -> Limbs {
    [w0 & MASK_44, (w0 >> 44 | w1 << 20) & MASK_44, w1 >> 24 | w2 << 40]
}

/// Joins limbs into words of 64 bits: below 5 * 2^128. Limbs may be sums of lanes, below 2^60.
pub(super) fn to_words([h0, h1, h2]: Limbs) -> [u64; 3] {
    let h1 = h1 + (h0 >> 44);
    let h2 = h2 + (h1 >> 44);
    // Bits from 2^130 on count five times, modulo the prime.
    let h0 = (h0 & MASK_44) + 5 * (h2 >> 42);
    let (h1, h2) = (h1 & MASK_44, h2 & MASK_42);
    let low = u128::from(h0) + (u128::from(h1) << 44);
    let (low, carry) = low.overflowing_add(u128::from(h2) << 88);
    [low as u64, (low >> 64) as u64, (h2 >> 40) + u64::from(carry)]
}

/// Returns the product, modulo the prime but not fully reduced.
pub(super) fn multiply(a: &Limbs, b: &Limbs) -> Limbs {
    // Modulo the prime, 2^132 is 20.
    let [s1, s2] = [20 * b[1], 20 * b[2]];
    let d0 = mul(a[0], b[0]) + mul(a[1], s2) + mul(a[2], s1);
    let d1 = mul(a[0], b[1]) + mul(a[1], b[0]) + mul(a[2], s2) + (d0 >> 44);
    let d2 = mul(a[0], b[2]) + mul(a[1], b[1]) + mul(a[2], b[0]) + (d1 >> 44);
    let h0 = (d0 as u64 & MASK_44) + 5 * (d2 >> 42) as u64;
    [h0 & MASK_44, (d1 as u64 & MASK_44) + (h0 >> 44), d2 as u64 & MASK_42]
}

/// Returns the powers from the first to the `N`th.
pub(super) fn powers<const N: usize>(multiplier: [u64; 2]) -> [Limbs; N] {
    let first = from_words([multiplier[0], multiplier[1], 0]);
    let mut powers = [first; N];
    for index in 1..N {
        // Each power is the product of two of about half its exponent, so that few products wait for each other.
        let half = index.div_ceil(2);
        powers[index] = multiply(&powers[half - 1], &powers[index - half]);
    }
    powers
}

fn mul(left: u64, right: u64) -> u128 {
    u128::from(left) * u128::from(right)
}

pub(super) const MASK_44: u64 = (1 << 44) - 1;
pub(super) const MASK_42: u64 = (1 << 42) - 1;
