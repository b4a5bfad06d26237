//! Numbers of the volumes with data that a stream leaves to a device. Queued data name a volume by its number.
//!
//! Invariants: a number names one volume until the volume is erased or dropped and all its queued data are
//! acknowledged. The volume, and with it the key, is kept only while queued data are unacknowledged. No lock is held
//! during calls of the stream, because the stream may be waiting for the sealer, which looks up volumes.

use crate::lock;
use crate::volume::{KeyedVolume, KnownVolume};
use core::task::Context;
use offload_api::{SegmentStream, XtsStage};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// The numbered volumes of one stream.
#[derive(Debug, Default)]
pub(crate) struct NumberedVolumes {
    carried: Vec<NumberedVolume>,
    by_number: VolumesByNumber,
    /// Set when one of the volumes is erased, until the next query.
    erased: Arc<AtomicBool>,
}

/// The volumes with unacknowledged data by number, for the sealer.
#[derive(Clone, Debug, Default)]
pub(crate) struct VolumesByNumber(Arc<Mutex<Vec<Option<KeyedVolume>>>>);

/// A numbered volume.
#[derive(Debug)]
struct NumberedVolume {
    volume: KnownVolume,
    /// The key that the device uses for the volume; `None` if it uses none.
    told: Option<XtsStage>,
    /// Stream position of the end of the volume's last data.
    queued_to: u64,
    /// Whether data of the volume may be unacknowledged.
    is_needed: bool,
}

impl NumberedVolumes {
    /// Returns the number of a volume, assigning one if necessary. `None` if all numbers are taken.
    pub(crate) fn number(&mut self, volume: &KeyedVolume) -> Option<u16> {
        let known = self.carried.iter().position(|known| known.volume.is(volume));
        let place = match known {
            Some(place) => place,
            None => {
                let place = self.carried.iter().position(NumberedVolume::is_over).unwrap_or(self.carried.len());
                self.put(place, volume)?;
                place
            }
        };
        u16::try_from(place + 1).ok()
    }

    fn put(&mut self, place: usize, volume: &KeyedVolume) -> Option<()> {
        let new = NumberedVolume { volume: volume.known(), told: None, queued_to: 0, is_needed: false };
        match self.carried.get_mut(place) {
            Some(over) => *over = new,
            None if place < MAX_VOLUMES => self.carried.push(new),
            None => return None,
        }
        volume.watch(&self.erased);
        Some(())
    }

    /// Returns whether the device uses `key` for a number. If not, calls `tell`, which returns whether it told the
    /// device.
    pub(crate) fn tell_key(&mut self, number: u16, key: XtsStage, tell: impl FnOnce() -> bool) -> bool {
        let Some(known) = self.carried.get_mut(usize::from(number) - 1) else { return false };
        if known.told != Some(key) {
            known.told = tell().then_some(key);
        }
        known.told.is_some()
    }

    /// Forgets the keys of a context that was replaced.
    pub(crate) fn forget_device_keys(&mut self) {
        self.carried.iter_mut().for_each(|known| known.told = None);
    }

    /// Notes queued data of a volume; `sent` is the stream position of their end.
    pub(crate) fn note_queued(&mut self, number: u16, volume: &KeyedVolume, sent: u64) {
        let place = usize::from(number) - 1;
        let Some(known) = self.carried.get_mut(place) else { return };
        known.queued_to = sent;
        if !core::mem::replace(&mut known.is_needed, true) {
            let mut by_number = lock(&self.by_number.0);
            let places = by_number.len().max(place + 1);
            by_number.resize(places, None);
            by_number[place] = Some(volume.clone());
        }
    }

    /// Drops volumes with all data acknowledged. The task is woken when more data are acknowledged.
    pub(crate) fn poll_arrived(&mut self, cx: &mut Context<'_>, stream: &mut dyn SegmentStream) {
        for (place, known) in self.carried.iter_mut().enumerate().filter(|(_, known)| known.is_needed) {
            // An error also makes this ready: nothing more is sent then.
            if stream.poll_acked(cx, known.queued_to).is_ready() {
                known.is_needed = false;
                if let Some(of_sealer) = lock(&self.by_number.0).get_mut(place) {
                    *of_sealer = None;
                }
            }
        }
    }

    /// Returns whether one of the volumes was erased since the last call.
    pub(crate) fn take_erased(&self) -> bool {
        self.erased.load(Ordering::Acquire) && self.erased.swap(false, Ordering::AcqRel)
    }

    /// Returns the table for the sealer.
    pub(crate) fn by_number(&self) -> VolumesByNumber {
        self.by_number.clone()
    }
}

impl VolumesByNumber {
    /// Returns the volume with this number.
    pub(crate) fn get(&self, number: u16) -> Option<KeyedVolume> {
        lock(&self.0).get(usize::from(number).checked_sub(1)?)?.clone()
    }
}

impl NumberedVolume {
    /// Returns whether the number can be reused.
    fn is_over(&self) -> bool {
        !self.is_needed && self.volume.is_over()
    }
}

/// Maximum number of volumes of one stream on a device.
const MAX_VOLUMES: usize = 255;

#[cfg(test)]
impl VolumesByNumber {
    /// Creates a table with numbers from 1.
    pub(crate) fn from_volumes(volumes: Vec<KeyedVolume>) -> VolumesByNumber {
        VolumesByNumber(Arc::new(Mutex::new(volumes.into_iter().map(Some).collect())))
    }
}
