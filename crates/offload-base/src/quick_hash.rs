//! A fast hash for tables with keys that no attacker chooses.
//!
//! Such a table is filled by an administrator or a keying daemon, while anybody's packets may look up keys in it. A
//! look-up of an absent key ends at the first free slot, so an attacker gains nothing by choosing keys. The hash
//! therefore needs no secret. A table that packets *fill* needs a keyed hash, such as the standard library's.

use core::hash::{BuildHasher, Hasher};

/// A builder of [`QuickHasher`]s. All hashers are alike, so equal keys give equal tables in every run.
///
/// ```
/// use offload_base::quick_hash::QuickHash;
/// use std::collections::HashMap;
///
/// let mut table: HashMap<(u32, [u8; 4]), &str, QuickHash> = HashMap::default();
/// table.insert((0x1001, [10, 0, 0, 1]), "here");
/// assert_eq!(table.get(&(0x1001, [10, 0, 0, 1])), Some(&"here"));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct QuickHash;

/// A hasher that folds each word into its state by one 64 by 64 bit multiplication, and adds the product's halves
/// without carry.
///
/// ```
/// use core::hash::{BuildHasher, Hasher};
/// use offload_base::quick_hash::{QuickHash, QuickHasher};
///
/// let hash = |number: u32| {
///     let mut hasher: QuickHasher = QuickHash.build_hasher();
///     hasher.write_u32(number);
///     hasher.finish()
/// };
/// assert_eq!(hash(7), hash(7));
/// assert_ne!(hash(7), hash(8));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct QuickHasher(u64);

impl BuildHasher for QuickHash {
    type Hasher = QuickHasher;

    fn build_hasher(&self) -> QuickHasher {
        QuickHasher(START)
    }
}

impl Hasher for QuickHasher {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let mut words = bytes.chunks_exact(8);
        for word in &mut words {
            self.write_u64(u64::from_le_bytes([
                word[0], word[1], word[2], word[3], word[4], word[5], word[6], word[7],
            ]));
        }
        let rest = words.remainder();
        if !rest.is_empty() {
            let word = rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
            // The length in the top byte keeps trailing zero bytes significant.
            self.write_u64(word ^ (rest.len() as u64) << 56);
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.write_u64(value.into());
    }

    fn write_u16(&mut self, value: u16) {
        self.write_u64(value.into());
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(value.into());
    }

    #[inline]
    fn write_u64(&mut self, value: u64) {
        // The rotation makes the hash depend on the order of the words. The multiplier is odd, so the low half of the
        // product alone already is a permutation of the input.
        self.0 = folded(self.0.rotate_left(23) ^ value, MULTIPLIER);
    }

    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }

    #[inline]
    fn finish(&self) -> u64 {
        // One more multiplication, because hash tables use the upper and the lower bits of the result.
        folded(self.0, START)
    }
}

#[inline]
fn folded(one: u64, other: u64) -> u64 {
    let product = u128::from(one) * u128::from(other);
    product as u64 ^ (product >> 64) as u64
}

/// Start and multiplier: digits of pi and of the golden ratio, made odd.
const START: u64 = 0x2437_85a3_0888_68d3;
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// A hash table takes the slot from the lower bits, and compares the upper seven before it compares keys.
    #[test]
    fn consecutive_keys_spread_evenly() {
        let hashes: Vec<u64> =
            (0..1u32 << 16).map(|number| QuickHash.hash_one((number, [10u8, 0, 0, 1], number >> 8))).collect();
        for bits in [0, 48] {
            let places: HashSet<u64> = hashes.iter().map(|hash| hash >> bits & 0xffff).collect();
            let share = places.len() as f64 / 65536.0;
            assert!((0.62..0.65).contains(&share), "{share} where chance takes 1 - 1/e");
        }
        assert_eq!(hashes.iter().collect::<HashSet<_>>().len(), hashes.len());
    }

    #[test]
    fn hash_depends_on_byte_positions() {
        let hash = |bytes: &[u8]| QuickHash.hash_one(bytes);
        let different = [&[][..], &[0], &[0, 0], &[0, 1], &[1, 0], &[0; 8], &[0; 9], &[1, 0, 0, 0, 0, 0, 0, 0, 0]];
        let hashes: HashSet<u64> = different.into_iter().map(hash).collect();
        assert_eq!(hashes.len(), different.len());
        // `write` alone, because hashing a slice writes its length first.
        let alone = |bytes: &[u8]| {
            let mut hasher = QuickHash.build_hasher();
            hasher.write(bytes);
            hasher.finish()
        };
        let hashes: HashSet<u64> = different.into_iter().map(alone).collect();
        assert_eq!(hashes.len(), different.len());
    }
}
