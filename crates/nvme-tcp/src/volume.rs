//! Volumes of a host: encrypted by the CPU with the volume's own key, or by a device that holds the key as a context.
//!
//! Invariant: after an erasure, this module encrypts and decrypts nothing for the volume, and asks no device to.

use crate::lock;
use offload_api::{Handle, XtsStage};
use resumable_aead::{Volume, VolumeError};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// A volume and its data-encryption key on the device below. Clones are the same volume.
///
/// The program that manages the device imports the key into the device and calls
/// [`set_device_key`](Self::set_device_key). A reset of the device makes the volume forget the key, so the program
/// repeats both steps. Commands name the key by its handle. The CPU encrypts when the device does not.
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
pub struct KeyedVolume(Arc<VolumeShared>);

/// State shared by clones.
#[derive(Debug)]
struct VolumeShared {
    volume: Volume,
    on_device: Mutex<DeviceKeyState>,
}

/// A weak reference to a volume, for streams: they must not keep the keys of unused volumes.
#[derive(Clone, Debug)]
pub(crate) struct KnownVolume(Weak<VolumeShared>);

impl KnownVolume {
    /// Returns whether this is `volume`.
    pub(crate) fn is(&self, volume: &KeyedVolume) -> bool {
        core::ptr::eq(self.0.as_ptr(), Arc::as_ptr(&volume.0))
    }

    /// Returns whether the volume was erased or dropped.
    pub(crate) fn is_over(&self) -> bool {
        self.get().is_none_or(|volume| volume.is_erased())
    }

    fn get(&self) -> Option<KeyedVolume> {
        self.0.upgrade().map(KeyedVolume)
    }
}

/// The key's location on a device, and the streams to notify of an erasure.
#[derive(Debug, Default)]
struct DeviceKeyState {
    key: Option<XtsStage>,
    /// Flags of the streams, set at an erasure.
    watching: Vec<Weak<AtomicBool>>,
}

impl KeyedVolume {
    /// Returns the key and the units for the CPU.
    pub fn volume(&self) -> &Volume {
        &self.0.volume
    }

    /// Sets the key's location on the device; `None` if the device does not have it. Ignored after an erasure.
    pub fn set_device_key(&self, key: Option<XtsStage>) {
        self.on_device().key = key.filter(|_| !self.is_erased());
    }

    /// Forgets the device key if it is still `key`.
    pub(crate) fn forget_device_key(&self, key: XtsStage) {
        self.on_device().key.take_if(|known| *known == key);
    }

    /// Returns the key's location on the device.
    pub fn device_key(&self) -> Option<XtsStage> {
        self.on_device().key
    }

    /// Crypto-erase: wipes the key. All commands of the volume, running ones included, end with
    /// [`CommandError::Erased`](super::host::CommandError::Erased). Returns the device key, so that the caller can
    /// remove its context.
    pub fn erase(&self) -> Option<XtsStage> {
        let mut on_device = self.on_device();
        // Under the lock, so that `set_device_key` cannot set a key afterwards.
        self.volume().erase();
        on_device.watching.drain(..).filter_map(|stream| stream.upgrade()).for_each(|erased| note(&erased));
        on_device.key.take()
    }

    /// Sets `erased` at the volume's erasure, or at once if the volume is erased.
    pub(crate) fn watch(&self, erased: &Arc<AtomicBool>) {
        let mut on_device = self.on_device();
        if self.is_erased() {
            return note(erased);
        }
        on_device.watching.retain(|stream| stream.strong_count() > 0);
        on_device.watching.push(Arc::downgrade(erased));
    }

    /// Returns whether the volume was [erased](Self::erase).
    pub fn is_erased(&self) -> bool {
        self.volume().is_erased()
    }

    pub(crate) fn encrypt(&self, first: u64, at: u64, data: &mut [u8]) -> Result<(), VolumeError> {
        self.volume().encrypt(first, at, data)
    }

    pub(crate) fn decrypt(&self, first: u64, at: u64, data: &mut [u8]) -> Result<(), VolumeError> {
        self.volume().decrypt(first, at, data)
    }

    fn on_device(&self) -> MutexGuard<'_, DeviceKeyState> {
        lock(&self.0.on_device)
    }

    pub(crate) fn known(&self) -> KnownVolume {
        KnownVolume(Arc::downgrade(&self.0))
    }
}

fn note(erased: &AtomicBool) {
    erased.store(true, Ordering::Release);
}

/// Creates a volume without a device key.
impl From<Volume> for KeyedVolume {
    fn from(volume: Volume) -> KeyedVolume {
        KeyedVolume(Arc::new(VolumeShared { volume, on_device: Mutex::default() }))
    }
}

/// Compares the underlying volumes.
impl PartialEq for KeyedVolume {
    fn eq(&self, other: &KeyedVolume) -> bool {
        self.volume() == other.volume()
    }
}

impl Eq for KeyedVolume {}

/// Keys named to the device of one stream, for sending or receiving, since its last reset. Clones share the list.
#[derive(Clone, Debug, Default)]
pub(crate) struct NamedKeys(Arc<Mutex<NamedKeyMap>>);

/// The named keys by the address of the volume. A weak reference keeps the address from being reused.
type NamedKeyMap = BTreeMap<usize, (KnownVolume, XtsStage)>;

impl NamedKeys {
    /// Returns the location of a volume's key on the device, and records that it will be named.
    pub(crate) fn name_key(&self, volume: &KeyedVolume) -> Option<XtsStage> {
        let key = volume.device_key()?;
        let mut named = lock(&self.0);
        let place = Arc::as_ptr(&volume.0).addr();
        // Dropped volumes are removed whenever a new one is added, so the list stays small.
        if named.insert(place, (volume.known(), key)).is_none() {
            named.retain(|_, (volume, _)| !volume.is_over());
        }
        Some(key)
    }

    /// Forgets a key that is missing on the device.
    pub(crate) fn forget(&self, key: Handle) {
        lock(&self.0).retain(|_, (volume, named)| {
            let is_lost = named.key == key;
            if is_lost && let Some(volume) = volume.get() {
                volume.forget_device_key(*named);
            }
            !is_lost
        });
    }

    /// Forgets all keys after a reset of the device.
    pub(crate) fn forget_all(&self) {
        let named = core::mem::take(&mut *lock(&self.0));
        for (volume, key) in named.into_values() {
            if let Some(volume) = volume.get() {
                volume.forget_device_key(key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use resumable_aead::{DataUnits, XtsKey};

    #[test]
    fn dropped_volumes_are_forgotten_in_named_keys() {
        let keys = NamedKeys::default();
        let new = |index| {
            let key: Vec<u8> = (index..index + 64).collect();
            let volume = KeyedVolume::from(Volume::new(XtsKey::new(&key).unwrap(), DataUnits::new(512).unwrap()));
            let on_device = XtsStage { key: Handle { index: index.into(), generation: 0 }, tenant: 7, volume: 1 };
            volume.set_device_key(Some(on_device));
            assert_eq!(keys.name_key(&volume), Some(on_device));
            volume
        };
        let (dropped, lost, reset) = (new(1), new(2), new(3));
        let known = dropped.known();
        drop(dropped);
        assert!(known.get().is_none() && known.is_over());
        keys.forget(Handle { index: 2, generation: 0 });
        assert!(lost.device_key().is_none() && reset.device_key().is_some());
        drop(new(4));
        assert!(lock(&keys.0).len() <= 2, "dropped volumes are forgotten when new ones arrive");
        keys.forget_all();
        assert!(reset.device_key().is_none());
    }

    #[test]
    fn watchers_see_one_erasure_and_dead_ones_are_forgotten() {
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
        assert!(late.load(Ordering::Relaxed), "the volume was erased before");
    }
}
