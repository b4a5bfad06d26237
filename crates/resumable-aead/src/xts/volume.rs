//! Volumes: data units under one key, in blocks of any order.
//!
//! Invariants: the result for a block depends only on its place in the volume, never on the other blocks of a call. All clones share
//! one key; after an erasure no clone encrypts or decrypts.

use super::{DataUnits, NotWholeUnits, XtsKey};
use crate::state::MessageDirection;
use std::sync::{Arc, PoisonError, RwLock};

/// An XTS key with the data units of a volume. Clones share the key.
///
/// ```
/// use resumable_aead::{DataUnits, Volume, XtsKey};
///
/// let key: Vec<u8> = (0..64).collect();
/// let volume = Volume::new(XtsKey::new(&key)?, DataUnits::new(512)?);
/// let mut data = [7; 1024]; // units 5 and 6
/// volume.encrypt(5, 0, &mut data)?;
/// // From the middle of one into the middle of the other.
/// volume.decrypt(5, 480, &mut data[480..560])?;
/// assert_eq!(data[480..560], [7; 80]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Volume {
    /// `None` if the key was erased.
    key: Arc<RwLock<Option<XtsKey>>>,
    units: DataUnits,
}

/// Error of a volume operation.
///
/// ```
/// use resumable_aead::{DataUnits, Volume, VolumeError, XtsKey};
///
/// let key: Vec<u8> = (0..64).collect();
/// let volume = Volume::new(XtsKey::new(&key)?, DataUnits::new(512)?);
/// assert!(matches!(volume.encrypt(5, 0, &mut [7; 100]), Err(VolumeError::Blocks(_))));
/// volume.erase();
/// assert_eq!(volume.encrypt(5, 0, &mut [7; 512]), Err(VolumeError::Erased));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VolumeError {
    /// The bytes are not whole blocks of the volume.
    #[error(transparent)]
    Blocks(#[from] NotWholeUnits),
    /// The volume's key was erased.
    #[error("the volume was erased: it has no key any more")]
    Erased,
}

impl Volume {
    /// Makes a volume of `units` with this key.
    pub fn new(key: XtsKey, units: DataUnits) -> Volume {
        Volume { key: Arc::new(RwLock::new(Some(key))), units }
    }

    /// Returns the data units of the volume.
    pub fn units(&self) -> DataUnits {
        self.units
    }

    /// Wipes the key: neither this volume nor a clone of it encrypts or decrypts after this. A call under way in another thread ends
    /// first.
    pub fn erase(&self) {
        // The key wipes itself in place.
        *self.key.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Tests whether the volume was [erased](Self::erase).
    pub fn is_erased(&self) -> bool {
        self.key.read().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// Encrypts blocks of 16 bytes in place, which begin `at` bytes after the start of the volume's unit `first`.
    ///
    /// # Errors
    /// [`VolumeError::Blocks`] unless `at` and `data` are whole blocks, of units whose numbers stay below 2^64;
    /// [`VolumeError::Erased`]. `data` is then untouched.
    pub fn encrypt(&self, first: u64, at: u64, data: &mut [u8]) -> Result<(), VolumeError> {
        self.run(MessageDirection::Encrypt, first, at, data)
    }

    /// Decrypts blocks of 16 bytes in place, which begin `at` bytes after the start of the volume's unit `first`.
    ///
    /// # Errors
    /// As [`encrypt`](Volume::encrypt).
    pub fn decrypt(&self, first: u64, at: u64, data: &mut [u8]) -> Result<(), VolumeError> {
        self.run(MessageDirection::Decrypt, first, at, data)
    }

    fn run(&self, direction: MessageDirection, first: u64, at: u64, data: &mut [u8]) -> Result<(), VolumeError> {
        let DataUnits { len, step } = self.units;
        let error = NotWholeUnits { unit: 16, len: data.len() };
        if !at.is_multiple_of(16) || !data.len().is_multiple_of(16) {
            return Err(error.into());
        }
        let end = at.checked_add(data.len() as u64).ok_or(error)?;
        let after_last = first.checked_add(end.div_ceil(len as u64)).ok_or(error)?;
        after_last.checked_mul(step).ok_or(error)?;
        let number = |at: u64| u128::from((first + at / len as u64) * step);
        let key = self.key.read().unwrap_or_else(PoisonError::into_inner);
        let key = key.as_ref().ok_or(VolumeError::Erased)?;
        let (mut at, mut rest) = (at, data);
        while !rest.is_empty() {
            let within = (at % len as u64) as usize;
            let (units, taken) = if within == 0 && rest.len() >= len {
                (self.units, rest.len() - rest.len() % len)
            } else {
                let part = rest.len().min(len - within);
                (DataUnits { len: part, step }, part)
            };
            let (now, later) = rest.split_at_mut(taken);
            key.apply(units, number(at), (within / 16) as u32, direction, now);
            (at, rest) = (at + taken as u64, later);
        }
        Ok(())
    }
}

/// Compares by identity: clones with the same units are equal; keys are not compared.
impl PartialEq for Volume {
    fn eq(&self, other: &Volume) -> bool {
        Arc::ptr_eq(&self.key, &other.key) && self.units == other.units
    }
}

impl Eq for Volume {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_ranges_match_the_whole() {
        let key: Vec<u8> = (0..64).collect();
        for units in [DataUnits::new(512), DataUnits::new(4096), DataUnits::counting_512(4096)].map(Result::unwrap) {
            let volume = Volume::new(XtsKey::new(&key).unwrap(), units);
            let plain: Vec<u8> = (0..4 * 4096).map(|at| (at * 7 / 3) as u8).collect();
            let mut whole = plain.clone();
            XtsKey::new(&key).unwrap().encrypt(units, 9 * units.step, &mut whole).unwrap();
            for (from, to) in [(0, 16), (16, 512), (496, 528), (32, 4096 + 48), (4096, 3 * 4096), (4080, 4 * 4096)] {
                let mut part = plain[from..to].to_vec();
                volume.encrypt(9, from as u64, &mut part).unwrap();
                assert_eq!(part, whole[from..to], "{units:?} {from}..{to}");
                volume.decrypt(9, from as u64, &mut part).unwrap();
                assert_eq!(part, plain[from..to], "{units:?} {from}..{to}");
            }
        }
    }

    #[test]
    fn erased_volume_and_its_clones_refuse_blocks() {
        let key: Vec<u8> = (0..64).collect();
        let volume = Volume::new(XtsKey::new(&key).unwrap(), DataUnits::new(512).unwrap());
        let clone = volume.clone();
        assert!(!clone.is_erased());
        volume.erase();
        volume.erase();
        let mut data = [3; 512];
        assert_eq!(clone.encrypt(0, 0, &mut data), Err(VolumeError::Erased));
        assert_eq!(clone.decrypt(0, 0, &mut data), Err(VolumeError::Erased));
        assert_eq!(clone.encrypt(0, 0, &mut []), Err(VolumeError::Erased), "though there is nothing to be done");
        assert!(data == [3; 512] && clone == volume && clone.is_erased());
    }

    #[test]
    fn partial_blocks_and_unit_numbers_past_64_bits_are_refused() {
        let key: Vec<u8> = (0..32).collect();
        let volume = Volume::new(XtsKey::new(&key).unwrap(), DataUnits::counting_512(4096).unwrap());
        let mut data = [3; 32];
        assert!(volume.encrypt(0, 8, &mut data).is_err());
        assert!(volume.encrypt(0, 16, &mut data[..24]).is_err());
        assert!(volume.encrypt(u64::MAX / 8 + 1, 0, &mut data).is_err());
        assert!(volume.decrypt(u64::MAX, 0, &mut data).is_err());
        assert_eq!(data, [3; 32]);
    }
}
