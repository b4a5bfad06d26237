//! The contexts of one engine, indexed by place.
//!
//! Invariant: an entry has either its state and a position in the clock of contexts on the NIC, or an image in host
//! memory.

use crate::hosted::{Subject, face};
use crate::{Context, ContextImage, Engine};
use core::ops::Range;
use offload_api::Handle;

/// All contexts of an engine.
#[derive(Debug)]
pub(crate) struct Slab<E: Engine> {
    places: Vec<Option<SlabEntry<E>>>,
}

#[derive(Debug)]
struct SlabEntry<E: Engine> {
    handle: Handle,
    /// Flow and keys. `None` for sessions of jobs, which have neither, and of which there may be a million.
    subject: Option<Box<Subject>>,
    state: StoredState<E::State>,
    held: E::Objects,
    /// Whether the context was used since the last round of the clock hand.
    used: bool,
}

/// A state, on the NIC or in host memory. Not boxed, because the NIC's memory holds the states themselves.
#[derive(Debug)]
enum StoredState<S> {
    /// State, and its position in the clock.
    OnNic(S, usize),
    InHost(ContextImage),
}

impl<E: Engine> Default for Slab<E> {
    fn default() -> Slab<E> {
        Slab { places: Vec::new() }
    }
}

face! {
    /// The contexts of any engine.
    pub trait AnySlab for [E: Engine] Slab<E> {
        /// Returns the context in a place.
        fn in_place(&self, place: u32) -> Option<Handle> {
            Some(self.places.get(place as usize)?.as_ref()?.handle)
        }

        /// Returns the contexts in these places.
        fn in_places(&self, places: Range<u32>) -> Vec<Handle> {
            let used = places.start..places.end.min(self.places.len() as u32);
            used.filter_map(|place| self.in_place(place)).collect()
        }

        /// Returns the flow and keys of a context. Returns `None` if there are no flow and keys.
        fn subject(&self, handle: Handle) -> Option<&Subject> {
            self.entry(handle)?.subject.as_deref()
        }

        /// Returns the flow and keys of a context for modification, and creates empty ones if needed. Returns `None` if
        /// there is no such context.
        fn subject_mut(&mut self, handle: Handle) -> Option<&mut Subject> {
            self.entry_mut(handle).map(|entry| &mut **entry.subject.get_or_insert_default())
        }

        /// Restores a state from its image. Returns false if there is no image.
        fn read_back(&mut self, handle: Handle, at: usize) -> bool {
            let Some(entry) = self.entry_mut(handle) else { return false };
            let StoredState::InHost(image) = &entry.state else { return false };
            // `load` refuses an image that `save` cannot have written.
            let Some(state) = image.read(E::load) else { return false };
            entry.state = StoredState::OnNic(state, at);
            true
        }

        /// Moves a state to host memory, unless the context was used since the last call. Returns whether the state was
        /// moved.
        fn write_out_if_unused(&mut self, handle: Handle) -> bool {
            let Some(entry) = self.entry_mut(handle) else { return false };
            // A second chance: a context that was used since the last round stays, as in the CLOCK algorithm.
            if core::mem::take(&mut entry.used) {
                return false;
            }
            let StoredState::OnNic(state, _) = &entry.state else { return false };
            entry.state = StoredState::InHost(ContextImage::build(|image| E::save(state, image)));
            true
        }

        /// Sets the context's position in the clock.
        fn moved(&mut self, handle: Handle, at: usize) {
            if let Some(SlabEntry { state: StoredState::OnNic(_, place), .. }) = self.entry_mut(handle) {
                *place = at;
            }
        }

        /// Removes a context. Returns its flow and keys, and the position in the clock of a context on the NIC.
        fn remove(&mut self, handle: Handle) -> Option<(Subject, Option<usize>)> {
            self.entry(handle)?;
            let entry = self.places[handle.place() as usize].take()?;
            let at = match entry.state {
                StoredState::OnNic(_, at) => Some(at),
                StoredState::InHost(_) => None,
            };
            Some((entry.subject.map(|subject| *subject).unwrap_or_default(), at))
        }
    }
}

impl<E: Engine> Slab<E> {
    /// Stores a context in its handle's place. `at` is its position in the clock.
    pub(crate) fn insert(&mut self, handle: Handle, subject: Subject, state: E::State, held: E::Objects, at: usize) {
        let place = handle.place() as usize;
        // Grown on demand: an engine may have room for a million contexts that never come.
        if place >= self.places.len() {
            self.places.resize_with(place + 1, || None);
        }
        // Sessions of jobs have no flow, and should take no memory for one.
        let subject = (subject != Subject::default()).then(|| Box::new(subject));
        // A new context counts as used, or it might be moved to host memory before its first packet.
        self.places[place] =
            Some(SlabEntry { handle, subject, state: StoredState::OnNic(state, at), held, used: true });
    }

    /// Tests whether the state of a context is on the NIC. Returns `None` if there is no such context.
    pub(crate) fn is_there(&self, handle: Handle) -> Option<bool> {
        Some(matches!(self.entry(handle)?.state, StoredState::OnNic(..)))
    }

    /// Returns the context if it is on the NIC.
    pub(crate) fn get(&mut self, handle: Handle) -> Option<Context<'_, E>> {
        let entry = self.entry_mut(handle)?;
        entry.used = true;
        match &mut entry.state {
            StoredState::OnNic(state, _) => Some(Context { handle, state, held: &mut entry.held }),
            StoredState::InHost(_) => None,
        }
    }

    pub(crate) fn held(&mut self, handle: Handle) -> Option<&mut E::Objects> {
        self.entry_mut(handle).map(|entry| &mut entry.held)
    }

    fn entry(&self, handle: Handle) -> Option<&SlabEntry<E>> {
        self.places.get(handle.place() as usize)?.as_ref().filter(|entry| entry.handle == handle)
    }

    fn entry_mut(&mut self, handle: Handle) -> Option<&mut SlabEntry<E>> {
        self.places.get_mut(handle.place() as usize)?.as_mut().filter(|entry| entry.handle == handle)
    }
}
