//! What is remembered of keys, so that no two packets share a nonce.
//!
//! The IV of a packet is its sequence number, so a key and salt that count from the start again use nonces twice, and that
//! gives away what was sent and the key of the ICV (RFC 4106 9). Two things prevent it:
//! - `used`: a key that began to send in this process begins no second time, whatever became of its first SA;
//! - `marks`: the last written number of an SA, if its numbers are to outlive the process; `store`: the folder of these numbers, which
//!   processes share; `file`: the file in that folder;
//! - `spent`: the oldest of either, of which only that they were used is kept.
//!
//! Invariant: no number is sent, and none accepted, that a process which starts after this one, however this one ended,
//! could take for one that is new.

mod file;
mod marks;
mod spent;
mod store;
mod used;

pub(crate) use marks::Marks;
pub use store::{NumberFile, NumberFileError};
pub use used::UsedKeys;

use crate::keying::KeyingError;
use core::fmt;
use core::hash::BuildHasher;
use offload_api::{Direction, EspKey, SaParams};
use std::collections::hash_map::RandomState;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Where the numbers of SAs outlive the process.
///
/// ```
/// use ipsec::{KeyMemory, Mark, NumberStore};
/// use offload_api::{Direction, EspKey};
/// use std::sync::{Arc, Mutex};
///
/// /// Of one key, in the memory of a test.
/// #[derive(Clone, Debug, Default)]
/// struct One(Arc<Mutex<u64>>);
/// impl NumberStore for One {
///     fn mark(&self, _: Direction, _: &EspKey, _: u32) -> u64 {
///         *self.0.lock().unwrap()
///     }
///     fn write(&mut self, marks: &[Mark<'_>]) -> std::io::Result<()> {
///         *self.0.lock().unwrap() = marks.iter().map(|mark| mark.number).max().unwrap_or(0);
///         Ok(())
///     }
/// }
/// let memory = KeyMemory::new().with_store(One::default());
/// assert!(memory.has_store());
/// ```
pub trait NumberStore: Send + fmt::Debug {
    /// The mark that was written last for a key, or, of packets received, for an SPI under it: they had numbers up to that
    /// one at most. 0: none was written; [`SPENT`]: how far it came is forgotten, and it may not be used again.
    fn mark(&self, direction: Direction, key: &EspKey, spi: u32) -> u64;

    /// Claims a key, before an SA is added with it, and returns its mark. No other process can claim the key until this one ends.
    ///
    /// # Errors
    /// [`KeyingError::KeyInUse`] if another process has claimed the key, [`KeyingError::NotWritten`] if the store cannot be used. A store of
    /// one process cannot fail, as here.
    fn claim(&mut self, direction: Direction, key: &EspKey, spi: u32) -> Result<u64, KeyingError> {
        Ok(self.mark(direction, key, spi))
    }

    /// Writes marks, all or none of them. Of several for the same, the highest counts. When it returns, they are there
    /// whatever happens to the process or the machine.
    ///
    /// # Errors
    /// If they may not be there; those that were before are, or these.
    fn write(&mut self, marks: &[Mark<'_>]) -> io::Result<()>;
}

/// The mark of a key of which is forgotten how far it came: no SA gets so far, and the last number of all is that of one that is used up.
///
/// ```
/// assert_eq!(ipsec::SPENT, u64::MAX - 1);
/// ```
pub const SPENT: u64 = u64::MAX - 1;

/// How far the numbers of a key may have come.
///
/// See [`NumberStore`] for an example.
#[derive(Clone, Copy, Debug)]
pub struct Mark<'a> {
    /// Whether they are of packets sent or received.
    pub direction: Direction,
    /// Under this key.
    pub key: &'a EspKey,
    /// Of this SPI. Of packets sent it does not matter, for it is no part of the nonce; of packets received it is a part of
    /// what is authentic, and senders that share a key have numbers of their own.
    pub spi: u32,
    /// The highest.
    pub number: u64,
}

/// What an IPsec layer remembers of keys. A clone is the same memory.
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
///     let mut queues = SecureDevice::of_queues_with(vec![Box::new(driver)], memory.clone());
///     queues[0].keying().unwrap().add_sa(Instant::ZERO, sa.clone()).map(drop)
/// };
/// assert_eq!(add(), Ok(()));
/// assert_eq!(add(), Err(KeyingError::KeyReused), "another layer, and the same key");
/// ```
#[derive(Clone, Debug, Default)]
pub struct KeyMemory {
    used: UsedKeys,
    store: Option<Arc<Mutex<dyn NumberStore>>>,
    /// Where the identifications of packets begin that are cut.
    identification: u32,
}

impl KeyMemory {
    /// A memory of its own, which ends with the last that has it: for runs in virtual time, which begin anew with the same
    /// keys and speak to nobody.
    pub fn new() -> KeyMemory {
        KeyMemory::default()
    }

    /// The memory that everybody in this process shares who asks for it: for layers with a real peer.
    pub fn of_process() -> KeyMemory {
        let identification = RandomState::new().hash_one("identifications") as u32;
        KeyMemory { used: UsedKeys::of_process(), store: None, identification }
    }

    /// The same, and numbers outlive the process in `store`.
    #[must_use]
    pub fn with_store(self, store: impl NumberStore + 'static) -> KeyMemory {
        KeyMemory { store: Some(Arc::new(Mutex::new(store))), ..self }
    }

    /// A copy of it as it is, with the same store: to try what would be refused.
    #[must_use]
    pub fn trial(&self) -> KeyMemory {
        KeyMemory { used: self.used.copy(), ..self.clone() }
    }

    /// Whether numbers outlive the process.
    pub fn has_store(&self) -> bool {
        self.store.is_some()
    }

    pub(crate) fn used(&self) -> &UsedKeys {
        &self.used
    }

    /// Where the identifications of packets begin that are cut: with a real peer, nobody guesses it.
    pub(crate) fn first_identification(&self) -> u32 {
        self.identification
    }

    /// What was written for an SA, if there is a store.
    pub(crate) fn mark(&self, sa: &SaParams) -> Option<u64> {
        Some(lock(self.store.as_ref()?).mark(sa.direction, &sa.key, sa.spi))
    }

    /// Claims the key of a new SA, and returns the number that was written for the key, if there is a store.
    pub(crate) fn claim(&self, sa: &SaParams) -> Result<Option<u64>, KeyingError> {
        self.store.as_ref().map(|store| lock(store).claim(sa.direction, &sa.key, sa.spi)).transpose()
    }

    /// Writes marks, if there is a store.
    pub(crate) fn write(&self, marks: &[Mark<'_>]) -> io::Result<()> {
        match &self.store {
            Some(store) => lock(store).write(marks),
            None => Ok(()),
        }
    }
}

fn lock<T: ?Sized>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is behind it changes as a whole, or not at all.
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keying::KeyingError;
    use offload_api::EspSuite;

    #[test]
    fn layers_with_real_peers_know_each_others_keys_and_number_packets_from_anywhere() {
        let [one, another] = [KeyMemory::of_process(), KeyMemory::of_process()];
        let key = EspKey::new(EspSuite::Aes128Gcm, b"of the whole process").unwrap();
        assert_eq!(one.used().begin(&key), Ok(()));
        assert_eq!(another.used().begin(&key), Err(KeyingError::KeyReused));
        assert_ne!(one.first_identification(), another.first_identification(), "nobody guesses where it begins");
        assert!(!one.has_store());
    }
}
