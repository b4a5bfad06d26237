//! Keys that were used for sending.
//!
//! The memory holds keyed hashes instead of keys, because it outlives the SAs. The last 65,536 or fewer hashes are
//! exact: about one new key in 2^48 is taken for a used one. Older hashes are [spent](super::spent). A used key never
//! passes for a new one.

use super::lock;
use super::spent_key_filter::SpentKeyFilter;
use crate::keying::KeyingError;
use core::fmt;
use core::hash::BuildHasher;
use offload_api::EspKey;
use std::collections::HashSet;
use std::collections::hash_map::RandomState;
use std::sync::{Arc, Mutex, OnceLock};

/// The keys that were used for sending. Clones share the memory.
///
/// ```
/// use ipsec::{KeyingError, UsedKeys};
/// use offload_api::{EspKey, EspSuite};
///
/// let key = |suite, byte| EspKey::new(suite, &[byte; 20]).unwrap();
/// let used = UsedKeys::default();
/// assert_eq!(used.begin(&key(EspSuite::Aes128Gcm, 7)), Ok(()));
/// assert_eq!(used.begin(&key(EspSuite::Aes128Gmac, 7)), Err(KeyingError::KeyReused), "the same key and nonces");
/// assert_eq!(used.begin(&key(EspSuite::Aes128Gcm, 8)), Ok(()));
/// ```
#[derive(Clone, Default)]
pub struct UsedKeys(Arc<Mutex<UsedHashes>>);

#[derive(Clone, Default)]
struct UsedHashes {
    /// The hasher's random key, from the system's generator.
    hasher: RandomState,
    hashes: HashSet<u64>,
    /// The older keys.
    spent: Option<Arc<SpentKeyFilter>>,
}

impl UsedKeys {
    /// The approximate capacity. A full memory refuses all keys, because used and new keys can no longer be told apart.
    pub const MAX_KEYS: usize = 4 << 20;
    /// The number of exact hashes.
    const WHOLE: usize = 65_536;

    /// Returns the process's shared memory.
    pub fn process_wide() -> UsedKeys {
        static OF_PROCESS: OnceLock<UsedKeys> = OnceLock::new();
        OF_PROCESS.get_or_init(UsedKeys::default).clone()
    }

    /// Returns an independent copy.
    pub(super) fn copy(&self) -> UsedKeys {
        UsedKeys(Arc::new(Mutex::new(lock(&self.0).clone())))
    }

    /// Records that a key begins to send.
    ///
    /// # Errors
    /// If the key was used before, or if the memory is full.
    pub fn begin(&self, key: &EspKey) -> Result<(), KeyingError> {
        let mut used = lock(&self.0);
        let hash = used.hash(key);
        if used.hashes.contains(&hash) || used.is_spent(hash) {
            return Err(KeyingError::KeyReused);
        }
        if used.hashes.len() >= UsedKeys::WHOLE && !used.spend() {
            return Err(KeyingError::TooManyKeys(UsedKeys::MAX_KEYS));
        }
        used.hashes.insert(hash);
        Ok(())
    }
}

impl UsedHashes {
    /// Returns the hash of all inputs of nonces and key streams: key and salt.
    fn hash(&self, key: &EspKey) -> u64 {
        self.hasher.hash_one((key.key(), key.salt()))
    }

    fn is_spent(&self, hash: u64) -> bool {
        self.spent.as_ref().is_some_and(|spent| spent.contains(self.wide(hash)))
    }

    /// Spends all exact hashes to make room. Returns false if the filter is full.
    fn spend(&mut self) -> bool {
        if self.spent.as_ref().is_some_and(|spent| !spent.has_room()) {
            return false;
        }
        let hashes = core::mem::take(&mut self.hashes);
        let wide: Vec<u128> = hashes.into_iter().map(|hash| self.wide(hash)).collect();
        let spent = Arc::make_mut(self.spent.get_or_insert_with(|| Arc::new(SpentKeyFilter::new())));
        wide.into_iter().for_each(|hash| spent.insert(hash));
        true
    }

    fn wide(&self, hash: u64) -> u128 {
        u128::from(hash) << 64 | u128::from(self.hasher.hash_one(hash))
    }
}

impl fmt::Debug for UsedKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = lock(&self.0);
        let spent = used.spent.as_ref().map_or(0, |spent| spent.keys() as usize);
        write!(f, "UsedKeys({} of {})", used.hashes.len() + spent, UsedKeys::MAX_KEYS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use offload_api::EspSuite;

    fn key(number: u32) -> EspKey {
        let mut material = [1; 20];
        material[12..16].copy_from_slice(&number.to_be_bytes());
        EspKey::new(EspSuite::Aes128Gcm, &material).unwrap()
    }

    #[test]
    fn used_key_is_refused_after_any_number_of_others() {
        let used = UsedKeys::default();
        // Enough keys to spend the exact hashes twice.
        let (mut refused, count) = (0, 2 * UsedKeys::WHOLE as u32 + 10);
        for number in 0..count {
            refused += u32::from(used.begin(&key(number)).is_err());
        }
        assert!(refused < 3, "{refused} of {count} new keys were taken for others");
        for number in (0..count).step_by(97).chain([0, count - 1]) {
            assert_eq!(used.begin(&key(number)), Err(KeyingError::KeyReused), "{number}");
        }
        assert_eq!(format!("{used:?}"), format!("UsedKeys({} of 4194304)", count - refused));
        // The memory has a capacity, however large.
        // Filled directly, because four million insertions would take too long.
        let full = UsedKeys::default();
        {
            let mut hashes = lock(&full.0);
            let spent = Arc::make_mut(hashes.spent.get_or_insert_with(|| Arc::new(SpentKeyFilter::new())));
            while spent.has_room() {
                spent.insert(0);
            }
            hashes.hashes.extend(0..UsedKeys::WHOLE as u64);
        }
        let refused = full.begin(&key(u32::MAX)).unwrap_err();
        assert_eq!(refused, KeyingError::TooManyKeys(4_194_304));
        assert!(refused.to_string().ends_with("restart the program to use others"), "{refused}");
    }

    #[test]
    fn keys_differ_by_salt_and_by_length() {
        let used = UsedKeys::default();
        let salted = |salt: u8| EspKey::new(EspSuite::Aes128Gcm, &[[7; 16].as_slice(), &[salt; 4]].concat()).unwrap();
        assert_eq!((used.begin(&salted(1)), used.begin(&salted(2))), (Ok(()), Ok(())));
        assert_eq!(used.begin(&EspKey::new(EspSuite::Aes256Gcm, &[7; 36]).unwrap()), Ok(()));
        assert_eq!(used.begin(&salted(1)), Err(KeyingError::KeyReused));
        assert_eq!(format!("{used:?}"), "UsedKeys(3 of 4194304)");
    }
}
