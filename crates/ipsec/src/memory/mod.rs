//! Memory of used keys and sequence numbers, so that no two packets share a nonce.
//!
//! The IV of a packet is its sequence number. If a key and salt count from the start again, nonces repeat, which
//! reveals the plaintext and the authentication key (RFC 4106 9). Two mechanisms prevent this:
//! - `used`: a key that began to send in this process never begins again, even if its first SA is deleted;
//! - `marks`: the last written number of an SA whose numbers outlive the process; `store`: the folder of these numbers,
//!   shared by processes; `file`: the file in that folder.
//!
//! `spent` compacts the oldest keys of both.
//!
//! Invariant: a later process never takes a sent or accepted number for a new one, however this process ended.

mod file;
mod marks;
mod spent_key_filter;
mod store;
mod used;

pub(crate) use marks::SaMarks;
pub use store::{NumberFile, NumberFileError};
pub use used::UsedKeys;

use crate::keying::KeyingError;
use core::fmt;
use core::hash::BuildHasher;
use offload_api::{Direction, EspKey, SaParams};
use std::collections::hash_map::RandomState;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A store of sequence numbers that outlives the process.
///
/// ```
/// use ipsec::{KeyMemory, NumberMark, NumberStore};
/// use offload_api::{Direction, EspKey};
/// use std::sync::{Arc, Mutex};
///
/// /// A store of one key, in a test's memory.
/// #[derive(Clone, Debug, Default)]
/// struct One(Arc<Mutex<u64>>);
/// impl NumberStore for One {
///     fn mark(&self, _: Direction, _: &EspKey, _: u32) -> u64 {
///         *self.0.lock().unwrap()
///     }
///     fn write(&mut self, marks: &[NumberMark<'_>]) -> std::io::Result<()> {
///         *self.0.lock().unwrap() = marks.iter().map(|mark| mark.number).max().unwrap_or(0);
///         Ok(())
///     }
/// }
/// let memory = KeyMemory::new().with_store(One::default());
/// assert!(memory.has_store());
/// ```
pub trait NumberStore: Send + fmt::Debug {
    /// Returns the last mark written for a key, or, for received packets, for an SPI under a key: no packet had a
    /// higher number. Returns 0 if no mark was written, and [`SPENT`] if the number is forgotten and the key may not be
    /// used again.
    fn mark(&self, direction: Direction, key: &EspKey, spi: u32) -> u64;

    /// Claims a key before an SA is added with it, and returns the key's mark. No other process can claim the key until
    /// this process ends.
    ///
    /// # Errors
    /// [`KeyingError::KeyInUse`] if another process has claimed the key, [`KeyingError::NotWritten`] if the store
    /// cannot be used. This default implementation, for a store of one process, never fails.
    fn claim(&mut self, direction: Direction, key: &EspKey, spi: u32) -> Result<u64, KeyingError> {
        Ok(self.mark(direction, key, spi))
    }

    /// Writes all marks or no mark. If several marks concern the same key, the highest counts. When the call returns,
    /// the marks are durable.
    ///
    /// # Errors
    /// If the marks may not be durable. The store then has either the old or the new marks.
    fn write(&mut self, marks: &[NumberMark<'_>]) -> io::Result<()>;
}

/// The mark of a used key with a forgotten number. No SA reaches this number, and the highest `u64` is the mark of an
/// SA that is used up.
///
/// ```
/// assert_eq!(ipsec::SPENT, u64::MAX - 1);
/// ```
pub const SPENT: u64 = u64::MAX - 1;

/// A bound on the numbers used under a key.
///
/// See [`NumberStore`] for an example.
#[derive(Clone, Copy, Debug)]
pub struct NumberMark<'a> {
    /// The direction of the packets.
    pub direction: Direction,
    /// The key.
    pub key: &'a EspKey,
    /// The SPI. Ignored for sent packets, because the SPI is not part of the nonce. Received packets are separated by
    /// SPI, because the SPI is authenticated and senders that share a key count separately.
    pub spi: u32,
    /// The highest number that may have been used.
    pub number: u64,
}

/// The memory of an IPsec layer about used keys and numbers. Clones share the memory.
///
/// ```
/// use ipsec::{KeyMemory, KeyedDevice, KeyingError, SecureDevice};
/// use nic_sim::{NicConfig, nic};
/// use offload_api::{Direction, EspKey, EspSuite, SaParams};
/// use offload_base::Instant;
///
/// let memory = KeyMemory::new();
/// let key = EspKey::new(EspSuite::Aes128Gcm, &[7; 20]).unwrap();
/// let sa = SaParams::new(Direction::Transmit, 0x1001, [10, 0, 0, 1].into(), [10, 0, 0, 2].into(), key);
/// let mut add = || {
///     let (_device, driver) = nic(NicConfig::default());
///     let mut queues = SecureDevice::for_queues_with(vec![Box::new(driver)], memory.clone());
///     queues[0].keying().unwrap().add_sa(Instant::ZERO, sa.clone()).map(drop)
/// };
/// assert_eq!(add(), Ok(()));
/// assert_eq!(add(), Err(KeyingError::KeyReused), "another layer, and the same key");
/// ```
#[derive(Clone, Debug, Default)]
pub struct KeyMemory {
    used: UsedKeys,
    store: Option<Arc<Mutex<dyn NumberStore>>>,
    /// The first IP identification of packets that are fragmented.
    identification: u32,
}

impl KeyMemory {
    /// Creates an independent memory, which ends with its last clone. For runs in virtual time, which use the same keys
    /// in each run and have no real peer.
    pub fn new() -> KeyMemory {
        KeyMemory::default()
    }

    /// Returns the memory shared by the whole process, for layers with a real peer.
    pub fn process_wide() -> KeyMemory {
        let identification = RandomState::new().hash_one("identifications") as u32;
        KeyMemory { used: UsedKeys::process_wide(), store: None, identification }
    }

    /// Adds a store, so that sequence numbers outlive the process.
    #[must_use]
    pub fn with_store(self, store: impl NumberStore + 'static) -> KeyMemory {
        KeyMemory { store: Some(Arc::new(Mutex::new(store))), ..self }
    }

    /// Returns an independent copy of the used keys with the same store, to test which keys would be refused.
    #[must_use]
    pub fn trial(&self) -> KeyMemory {
        KeyMemory { used: self.used.copy(), ..self.clone() }
    }

    /// Tests whether numbers outlive the process.
    pub fn has_store(&self) -> bool {
        self.store.is_some()
    }

    pub(crate) fn used(&self) -> &UsedKeys {
        &self.used
    }

    /// Returns the first IP identification of packets that are fragmented. With a real peer it is random, so that an
    /// attacker cannot predict it.
    pub(crate) fn first_identification(&self) -> u32 {
        self.identification
    }

    /// Returns the mark of an SA's key, if there is a store.
    pub(crate) fn mark(&self, sa: &SaParams) -> Option<u64> {
        Some(lock(self.store.as_ref()?).mark(sa.direction, &sa.key, sa.spi))
    }

    /// Claims the key of a new SA and returns its mark, if there is a store.
    pub(crate) fn claim(&self, sa: &SaParams) -> Result<Option<u64>, KeyingError> {
        self.store.as_ref().map(|store| lock(store).claim(sa.direction, &sa.key, sa.spi)).transpose()
    }

    /// Writes marks, if there is a store.
    pub(crate) fn write(&self, marks: &[NumberMark<'_>]) -> io::Result<()> {
        match &self.store {
            Some(store) => lock(store).write(marks),
            None => Ok(()),
        }
    }
}

fn lock<T: ?Sized>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    // Recovery from poisoning is safe, because the protected data changes as a whole or not at all.
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keying::KeyingError;
    use offload_api::EspSuite;

    #[test]
    fn layers_of_one_process_share_used_keys() {
        let [one, another] = [KeyMemory::process_wide(), KeyMemory::process_wide()];
        let key = EspKey::new(EspSuite::Aes128Gcm, b"of the whole process").unwrap();
        assert_eq!(one.used().begin(&key), Ok(()));
        assert_eq!(another.used().begin(&key), Err(KeyingError::KeyReused));
        assert_ne!(one.first_identification(), another.first_identification(), "nobody guesses where it begins");
        assert!(!one.has_store());
    }
}
