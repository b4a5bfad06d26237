//! The volumes whose data a stream leaves to a device, by the numbers that queued data name them by.
//!
//! Invariants: a number names one volume until that was erased or dropped, and all of its data that were queued have arrived. Only as
//! long as some have not is the volume, and with it the key, kept here. No lock is held while the stream is called: the stream may
//! be waiting for the sealer, which asks for volumes.

use crate::lock;
use crate::volume::{KeyedVolume, KnownVolume};
use core::task::Context;
use offload_api::{SegmentStream, XtsStage};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Those of one stream.
#[derive(Debug, Default)]
pub(crate) struct Volumes {
    carried: Vec<Carried>,
    by_number: ByNumber,
    /// One of them was erased, and nobody has asked since.
    erased: Arc<AtomicBool>,
}

/// What the sealer knows of them: those with data that have not arrived.
#[derive(Clone, Debug, Default)]
pub(crate) struct ByNumber(Arc<Mutex<Vec<Option<KeyedVolume>>>>);

/// A volume with a number.
#[derive(Debug)]
struct Carried {
    volume: KnownVolume,
    /// By what key the device works for it; `None`: it does not.
    told: Option<XtsStage>,
    /// Its last data end the first so many bytes of the stream.
    queued_to: u64,
    /// Not all of them have arrived, as far as is known.
    is_needed: bool,
}

impl Volumes {
    /// The number of a volume, which has one from now on; `None`: all are taken.
    pub(crate) fn number(&mut self, volume: &KeyedVolume) -> Option<u16> {
        let known = self.carried.iter().position(|known| known.volume.is(volume));
        let place = match known {
            Some(place) => place,
            None => {
                let place = self.carried.iter().position(Carried::is_over).unwrap_or(self.carried.len());
                self.put(place, volume)?;
                place
            }
        };
        u16::try_from(place + 1).ok()
    }

    fn put(&mut self, place: usize, volume: &KeyedVolume) -> Option<()> {
        let new = Carried { volume: volume.known(), told: None, queued_to: 0, is_needed: false };
        match self.carried.get_mut(place) {
            Some(over) => *over = new,
            None if place < MOST => self.carried.push(new),
            None => return None,
        }
        volume.watch(&self.erased);
        Some(())
    }

    /// Whether the device works by this key for a number; if not, `tell` tells it, and says whether it was told.
    pub(crate) fn is_told(&mut self, number: u16, key: XtsStage, tell: impl FnOnce() -> bool) -> bool {
        let Some(known) = self.carried.get_mut(usize::from(number) - 1) else { return false };
        if known.told != Some(key) {
            known.told = tell().then_some(key);
        }
        known.told.is_some()
    }

    /// The context is another one, and knows nothing yet.
    pub(crate) fn forget_told(&mut self) {
        self.carried.iter_mut().for_each(|known| known.told = None);
    }

    /// Data that name this volume are queued, and end the first `sent` bytes of the stream.
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

    /// Keeps no volume any more of which all data have arrived; the task is woken when more have.
    pub(crate) fn poll_arrived(&mut self, cx: &mut Context<'_>, stream: &mut dyn SegmentStream) {
        for (place, known) in self.carried.iter_mut().enumerate().filter(|(_, known)| known.is_needed) {
            // After an error nothing more is sent.
            if stream.poll_acked(cx, known.queued_to).is_ready() {
                known.is_needed = false;
                if let Some(of_sealer) = lock(&self.by_number.0).get_mut(place) {
                    *of_sealer = None;
                }
            }
        }
    }

    /// Whether one of them was erased since this was last asked.
    pub(crate) fn take_erased(&self) -> bool {
        self.erased.load(Ordering::Acquire) && self.erased.swap(false, Ordering::AcqRel)
    }

    /// For the sealer.
    pub(crate) fn by_number(&self) -> ByNumber {
        self.by_number.clone()
    }
}

impl ByNumber {
    /// The volume that a number names.
    pub(crate) fn get(&self, number: u16) -> Option<KeyedVolume> {
        lock(&self.0).get(usize::from(number).checked_sub(1)?)?.clone()
    }
}

impl Carried {
    /// Whether nothing is to be encrypted for it any more.
    fn is_over(&self) -> bool {
        !self.is_needed && self.volume.is_over()
    }
}

/// Volumes that one stream has a device encrypt for at a time.
const MOST: usize = 255;

#[cfg(test)]
impl ByNumber {
    /// Numbers from one on.
    pub(crate) fn of(volumes: Vec<KeyedVolume>) -> ByNumber {
        ByNumber(Arc::new(Mutex::new(volumes.into_iter().map(Some).collect())))
    }
}
