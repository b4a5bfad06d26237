//! A quick hash for tables whose keys nobody hostile chooses.
//!
//! What an administrator or a keying daemon puts into a table may be looked up by anybody's packets: a look-up that finds
//! nothing ends at the first free place, for any key. So such tables need no secret, and a few multiplications do.
//! Tables that packets *fill* are for a keyed hash, such as the standard library's.

use core::hash::{BuildHasher, Hasher};

/// Builds [`QuickHasher`]s. All are alike: the same keys give the same table in every run.
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

/// Folds words into a state, each by one multiplication of 64 by 64 bits whose halves are added without carry.
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
        self.0 = folded(self.0.rotate_left(23) ^ value, MULTIPLIER);
    }

    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }

    #[inline]
    fn finish(&self) -> u64 {
        folded(self.0, START)
    }
}

#[inline]
fn folded(one: u64, other: u64) -> u64 {
    let product = u128::from(one) * u128::from(other);
    product as u64 ^ (product >> 64) as u64
}

/// Digits of pi and of the golden ratio, made odd: nobody's choice.
const START: u64 = 0x2437_85a3_0888_68d3;
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Hash tables take places by the lower bits and tell neighbours apart by the upper seven.
    #[test]
    fn keys_that_are_counted_up_spread() {
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
    fn bytes_count_where_they_are() {
        let hash = |bytes: &[u8]| QuickHash.hash_one(bytes);
        let different = [&[][..], &[0], &[0, 0], &[0, 1], &[1, 0], &[0; 8], &[0; 9], &[1, 0, 0, 0, 0, 0, 0, 0, 0]];
        let hashes: HashSet<u64> = different.into_iter().map(hash).collect();
        assert_eq!(hashes.len(), different.len());
        // Written alone, without the length that goes before a slice.
        let alone = |bytes: &[u8]| {
            let mut hasher = QuickHash.build_hasher();
            hasher.write(bytes);
            hasher.finish()
        };
        let hashes: HashSet<u64> = different.into_iter().map(alone).collect();
        assert_eq!(hashes.len(), different.len());
    }
}
