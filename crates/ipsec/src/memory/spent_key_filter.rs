//! A compact set of the oldest used keys.
//!
//! An exact memory grows with each key, and a daemon that keeps changing keys never stops. So the oldest keys are
//! *spent*: only a few bits in a fixed table (a Bloom filter) remain of each. A spent key is always recognised and
//! refused, because its last number is forgotten. A new key is taken for a spent one with a probability of 1 in 1700
//! when the table has 2 million keys, and 1 in 40 when it is full. Such a key is refused too, and its daemon agrees on
//! another. Old keys can never be forgotten safely, because manually configured keys may return at any time.
//!
//! Invariant: an inserted key is found for ever.

use core::fmt;

/// A Bloom filter of the keyed hashes of spent keys.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct SpentKeyFilter {
    bits: Vec<u64>,
    keys: u32,
}

impl SpentKeyFilter {
    pub(super) fn new() -> SpentKeyFilter {
        SpentKeyFilter { bits: vec![0; SpentKeyFilter::BYTES / 8], keys: 0 }
    }

    /// Returns the number of inserted keys.
    pub(super) fn keys(&self) -> u32 {
        self.keys
    }

    /// Tests whether another key has room. A fuller table would refuse new keys too often.
    pub(super) fn has_room(&self) -> bool {
        self.keys < SpentKeyFilter::MAX_KEYS
    }

    /// Inserts a key by 128 bits of a keyed hash.
    pub(super) fn insert(&mut self, hash: u128) {
        for (word, bit) in places(hash) {
            self.bits[word] |= bit;
        }
        self.keys += 1;
    }

    /// Tests whether a key may have been inserted.
    pub(super) fn contains(&self, hash: u128) -> bool {
        places(hash).all(|(word, bit)| self.bits[word] & bit != 0)
    }

    /// Serializes the filter: the number of keys, then the table, in network byte order.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        self.keys.to_be_bytes().into_iter().chain(self.bits.iter().flat_map(|word| word.to_be_bytes())).collect()
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<SpentKeyFilter> {
        let (keys, table) = bytes.split_first_chunk()?;
        let (words, rest) = table.as_chunks::<8>();
        let bits: Vec<u64> = words.iter().map(|word| u64::from_be_bytes(*word)).collect();
        (rest.is_empty() && bits.len() == SpentKeyFilter::BYTES / 8)
            .then(|| SpentKeyFilter { bits, keys: u32::from_be_bytes(*keys) })
    }

    /// Size of the table.
    pub(super) const BYTES: usize = 4 << 20;
    /// At 8 bits a key, a new key is taken for a spent one with a probability of (1 - 1/e)^8, 1 in 40.
    const MAX_KEYS: u32 = (SpentKeyFilter::BYTES * 8 / BITS_A_KEY) as u32;
}

/// Returns eight positions in the table: `a + i * b`, as good as eight hashes (Kirsch, Mitzenmacher: Less Hashing, Same
/// Performance).
fn places(hash: u128) -> impl Iterator<Item = (usize, u64)> {
    let (a, b) = (hash as u64, (hash >> 64) as u64 | 1);
    (0..8u64).map(move |i| {
        let at = a.wrapping_add(i.wrapping_mul(b)) % (SpentKeyFilter::BYTES as u64 * 8);
        ((at / 64) as usize, 1 << (at % 64))
    })
}

impl fmt::Debug for SpentKeyFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SpentKeyFilter({} keys)", self.keys)
    }
}

const BITS_A_KEY: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers that look like hashes (splitmix64).
    fn hash(number: u64) -> u128 {
        let mix = |mut x: u64| {
            x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            x ^ x >> 31
        };
        let number = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        u128::from(mix(number)) << 64 | u128::from(mix(!number))
    }

    #[test]
    fn spent_keys_are_recognised_with_few_false_positives() {
        let mut spent = SpentKeyFilter::new();
        (0..1 << 20).for_each(|number| spent.insert(hash(number)));
        assert!((0..1 << 20).all(|number| spent.contains(hash(number))), "none is forgotten");
        let mistaken = (1 << 20..1 << 21).filter(|number| spent.contains(hash(*number))).count();
        assert!(mistaken < 40, "{mistaken} of a million");
        assert_eq!(SpentKeyFilter::from_bytes(&spent.to_bytes()), Some(spent));
    }

    #[test]
    fn malformed_table_is_refused() {
        let bytes = SpentKeyFilter::new().to_bytes();
        assert!(SpentKeyFilter::from_bytes(&bytes[1..]).is_none() && SpentKeyFilter::from_bytes(&[]).is_none());
        assert!(SpentKeyFilter::from_bytes(&[&bytes[..], &[0; 8]].concat()).is_none());
    }
}
