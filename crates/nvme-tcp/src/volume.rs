//! A volume as a host has it: encrypted by the CPU under a key of its own, or by a device that has the key as a context.
//!
//! Invariant: once it was erased, nothing is encrypted or decrypted for it here, and no device is asked to.

use crate::lock;
use offload_api::{Handle, XtsStage};
use resumable_aead::{Volume, VolumeError};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// A volume, and which data-encryption key of the device below is its. Clones are the same volume.
///
/// The program that looks after the device imports the key there, tells the volume ([`set_device_key`](Self::set_device_key)), and does so
/// again after a reset of the device, which makes the volume forget where the key was. Commands name the key by its handle. What the device does not do, the CPU does.
///
/// ```
/// use nvme_tcp::host::KeyedVolume;
/// use nvme_tcp::resumable_aead::{DataUnits, Volume, XtsKey};
/// use offload_api::{Handle, XtsStage};
///
/// let key: Vec<u8> = (0..64).collect();
/// let volume = KeyedVolume::from(Volume::new(XtsKey::new(&key)?, DataUnits::new(512)?));
/// let on_device = XtsStage { key: Handle { index: 4 << 24, generation: 0 }, tenant: 7, volume: 1 };
/// volume.set_device_key(Some(on_device));
/// assert_eq!(volume.device_key(), Some(on_device));
/// // Crypto-erase: the context that is to be removed comes back.
/// assert_eq!(volume.erase(), Some(on_device));
/// assert!(volume.is_erased() && volume.device_key().is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct KeyedVolume(Arc<Shared>);

/// What clones share.
#[derive(Debug)]
struct Shared {
    volume: Volume,
    on_device: Mutex<OnDevice>,
}

/// A volume as streams know it: they keep no key of one that nobody uses any more.
#[derive(Clone, Debug)]
pub(crate) struct KnownVolume(Weak<Shared>);

impl KnownVolume {
    /// Whether it is this one.
    pub(crate) fn is(&self, volume: &KeyedVolume) -> bool {
        core::ptr::eq(self.0.as_ptr(), Arc::as_ptr(&volume.0))
    }

    /// Whether nothing more is to be encrypted for it: it was erased, or dropped.
    pub(crate) fn is_over(&self) -> bool {
        self.get().is_none_or(|volume| volume.is_erased())
    }

    fn get(&self) -> Option<KeyedVolume> {
        self.0.upgrade().map(KeyedVolume)
    }
}

/// Where a device has the key of a volume, and who is to hear of an erasure.
#[derive(Debug, Default)]
struct OnDevice {
    key: Option<XtsStage>,
    /// Streams that are to know when it is erased.
    watching: Vec<Weak<AtomicBool>>,
}

impl KeyedVolume {
    /// The key and units by which the CPU works.
    pub fn volume(&self) -> &Volume {
        &self.0.volume
    }

    /// The device has its key there now; `None`: it has none. Ignored if the volume was erased.
    pub fn set_device_key(&self, key: Option<XtsStage>) {
        self.on_device().key = key.filter(|_| !self.is_erased());
    }

    /// The device has it no more where it was; elsewhere it may.
    pub(crate) fn lose_device_key(&self, key: XtsStage) {
        self.on_device().key.take_if(|known| *known == key);
    }

    /// Where the device has its key.
    pub fn device_key(&self) -> Option<XtsStage> {
        self.on_device().key
    }

    /// Crypto-erase: wipes the key. Commands end with [`CommandError::Erased`](super::host::CommandError::Erased) from now on,
    /// those under way included. The device's key comes back, for its context to be removed.
    pub fn erase(&self) -> Option<XtsStage> {
        let mut on_device = self.on_device();
        self.volume().erase();
        on_device.watching.drain(..).filter_map(|stream| stream.upgrade()).for_each(|erased| note(&erased));
        on_device.key.take()
    }

    /// Sets `erased` when it is erased, or at once if it was.
    pub(crate) fn watch(&self, erased: &Arc<AtomicBool>) {
        let mut on_device = self.on_device();
        if self.is_erased() {
            return note(erased);
        }
        on_device.watching.retain(|stream| stream.strong_count() > 0);
        on_device.watching.push(Arc::downgrade(erased));
    }

    /// Whether it was [erased](Self::erase).
    pub fn is_erased(&self) -> bool {
        self.volume().is_erased()
    }

    pub(crate) fn encrypt(&self, first: u64, at: u64, data: &mut [u8]) -> Result<(), VolumeError> {
        self.volume().encrypt(first, at, data)
    }

    pub(crate) fn decrypt(&self, first: u64, at: u64, data: &mut [u8]) -> Result<(), VolumeError> {
        self.volume().decrypt(first, at, data)
    }

    fn on_device(&self) -> MutexGuard<'_, OnDevice> {
        lock(&self.0.on_device)
    }

    pub(crate) fn known(&self) -> KnownVolume {
        KnownVolume(Arc::downgrade(&self.0))
    }
}

fn note(erased: &AtomicBool) {
    erased.store(true, Ordering::Release);
}

/// One that no device has a key for.
impl From<Volume> for KeyedVolume {
    fn from(volume: Volume) -> KeyedVolume {
        KeyedVolume(Arc::new(Shared { volume, on_device: Mutex::default() }))
    }
}

/// The same volume.
impl PartialEq for KeyedVolume {
    fn eq(&self, other: &KeyedVolume) -> bool {
        self.volume() == other.volume()
    }
}

impl Eq for KeyedVolume {}

/// The keys that one stream's device was told of, sending or receiving, since its last reset. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct NamedKeys(Arc<Mutex<Named>>);

/// By where volumes are: as long as one is known here, no other is in its place.
type Named = BTreeMap<usize, (KnownVolume, XtsStage)>;

impl NamedKeys {
    /// Where the device has the key of a volume; it is going to be told.
    pub(crate) fn of(&self, volume: &KeyedVolume) -> Option<XtsStage> {
        let key = volume.device_key()?;
        let mut named = lock(&self.0);
        let place = Arc::as_ptr(&volume.0).addr();
        if named.insert(place, (volume.known(), key)).is_none() {
            named.retain(|_, (volume, _)| !volume.is_over());
        }
        Some(key)
    }

    /// The device does not have this one.
    pub(crate) fn lose(&self, key: Handle) {
        lock(&self.0).retain(|_, (volume, named)| {
            let is_lost = named.key == key;
            if is_lost && let Some(volume) = volume.get() {
                volume.lose_device_key(*named);
            }
            !is_lost
        });
    }

    /// The device was reset: it has none of them any more.
    pub(crate) fn lose_all(&self) {
        let named = core::mem::take(&mut *lock(&self.0));
        for (volume, key) in named.into_values() {
            if let Some(volume) = volume.get() {
                volume.lose_device_key(key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use resumable_aead::{DataUnits, XtsKey};

    #[test]
    fn volumes_that_were_dropped_are_not_kept_where_their_keys_are_named() {
        let keys = NamedKeys::default();
        let new = |index| {
            let key: Vec<u8> = (index..index + 64).collect();
            let volume = KeyedVolume::from(Volume::new(XtsKey::new(&key).unwrap(), DataUnits::new(512).unwrap()));
            let on_device = XtsStage { key: Handle { index: index.into(), generation: 0 }, tenant: 7, volume: 1 };
            volume.set_device_key(Some(on_device));
            assert_eq!(keys.of(&volume), Some(on_device));
            volume
        };
        let (dropped, lost, reset) = (new(1), new(2), new(3));
        let known = dropped.known();
        drop(dropped);
        assert!(known.get().is_none() && known.is_over());
        keys.lose(Handle { index: 2, generation: 0 });
        assert!(lost.device_key().is_none() && reset.device_key().is_some());
        drop(new(4));
        assert!(lock(&keys.0).len() <= 2, "they are forgotten when others come");
        keys.lose_all();
        assert!(reset.device_key().is_none());
    }

    #[test]
    fn those_that_watch_hear_of_an_erasure_once_and_those_that_are_gone_are_forgotten() {
        let key: Vec<u8> = (0..64).collect();
        let volume = KeyedVolume::from(Volume::new(XtsKey::new(&key).unwrap(), DataUnits::new(512).unwrap()));
        let (one, late) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        volume.clone().watch(&one);
        (0..100).for_each(|_| volume.watch(&Arc::default()));
        assert!(volume.on_device().watching.len() <= 2 && !one.load(Ordering::Relaxed));
        volume.erase();
        assert!(one.swap(false, Ordering::Relaxed), "a clone is the same volume");
        volume.erase();
        assert!(!one.load(Ordering::Relaxed));
        volume.watch(&late);
        assert!(late.load(Ordering::Relaxed), "it was erased before");
    }
}
