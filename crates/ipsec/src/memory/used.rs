//! Keys that were used for sending.
//!
//! Kept are hashes under a key that nobody knows, not the keys themselves: they outlive their SAs. One key in 2^48 or so is
//! taken for one of 65,536 others; none that was used passes for a new one.

use super::lock;
use core::fmt;
use core::hash::BuildHasher;
use offload_api::{EspKey, KeyingError};
use std::collections::HashSet;
use std::collections::hash_map::RandomState;
use std::sync::{Arc, Mutex, OnceLock};

/// Keys that were used for sending. A clone is the same memory.
///
/// ```
/// use ipsec::UsedKeys;
/// use offload_api::{EspKey, EspSuite, KeyingError};
///
/// let key = |suite, byte| EspKey::new(suite, &[byte; 20]).unwrap();
/// let used = UsedKeys::default();
/// assert_eq!(used.begin(&key(EspSuite::Aes128Gcm, 7)), Ok(()));
/// assert_eq!(used.begin(&key(EspSuite::Aes128Gmac, 7)), Err(KeyingError::KeyReused), "the same key and nonces");
/// assert_eq!(used.begin(&key(EspSuite::Aes128Gcm, 8)), Ok(()));
/// ```
#[derive(Clone, Default)]
pub struct UsedKeys(Arc<Mutex<Hashes>>);

#[derive(Clone, Default)]
struct Hashes {
    /// With a key of its own from the system's generator.
    hasher: RandomState,
    hashes: HashSet<u64>,
}

impl UsedKeys {
    /// So many keys are remembered. What is beyond is refused, for it could not be told from what was used.
    pub const MOST: usize = 65_536;

    /// The one memory of the process.
    pub fn of_process() -> UsedKeys {
        static OF_PROCESS: OnceLock<UsedKeys> = OnceLock::new();
        OF_PROCESS.get_or_init(UsedKeys::default).clone()
    }

    /// Another memory, of the same keys.
    pub(super) fn copy(&self) -> UsedKeys {
        UsedKeys(Arc::new(Mutex::new(lock(&self.0).clone())))
    }

    /// A key begins to send.
    ///
    /// # Errors
    /// If it was used before, or there is no telling.
    pub fn begin(&self, key: &EspKey) -> Result<(), KeyingError> {
        let mut used = lock(&self.0);
        let hash = used.hash(key);
        if used.hashes.contains(&hash) {
            return Err(KeyingError::KeyReused);
        }
        if used.hashes.len() >= UsedKeys::MOST {
            return Err(KeyingError::TooManyKeys(UsedKeys::MOST));
        }
        used.hashes.insert(hash);
        Ok(())
    }
}

impl Hashes {
    /// Of all that nonces and key streams depend on.
    fn hash(&self, key: &EspKey) -> u64 {
        self.hasher.hash_one((key.key(), key.salt()))
    }
}

impl fmt::Debug for UsedKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UsedKeys({} of {})", lock(&self.0).hashes.len(), UsedKeys::MOST)
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
    fn as_many_keys_as_are_remembered_may_send_and_no_more() {
        let used = UsedKeys::default();
        for number in 0..UsedKeys::MOST as u32 {
            assert_eq!(used.begin(&key(number)), Ok(()));
        }
        assert_eq!(used.begin(&key(0)), Err(KeyingError::KeyReused), "the first is not forgotten");
        let refused = used.clone().begin(&key(u32::MAX)).unwrap_err();
        assert_eq!(refused, KeyingError::TooManyKeys(65_536));
        assert!(refused.to_string().ends_with("restart the program to use others"), "{refused}");
    }

    #[test]
    fn keys_that_differ_in_their_salt_or_their_length_differ() {
        let used = UsedKeys::default();
        let salted = |salt: u8| EspKey::new(EspSuite::Aes128Gcm, &[[7; 16].as_slice(), &[salt; 4]].concat()).unwrap();
        assert_eq!((used.begin(&salted(1)), used.begin(&salted(2))), (Ok(()), Ok(())));
        assert_eq!(used.begin(&EspKey::new(EspSuite::Aes256Gcm, &[7; 36]).unwrap()), Ok(()));
        assert_eq!(used.begin(&salted(1)), Err(KeyingError::KeyReused));
        assert_eq!(format!("{used:?}"), "UsedKeys(3 of 65536)");
    }
}
