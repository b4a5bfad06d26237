//! The contexts of one engine, by place.
//!
//! Invariant: an entry has its state, and a place in the circle of those on the NIC; or an image.

use crate::hosted::{Subject, face};
use crate::{Context, ContextImage, Engine};
use core::ops::Range;
use offload_api::Handle;

/// All contexts of an engine.
#[derive(Debug)]
pub(crate) struct Slab<E: Engine> {
    places: Vec<Option<Entry<E>>>,
}

#[derive(Debug)]
struct Entry<E: Engine> {
    handle: Handle,
    /// `None`: nothing. Sessions of jobs are about nothing, and there may be a million of them.
    subject: Option<Box<Subject>>,
    state: Stored<E::State>,
    held: E::Held,
    /// Used since the hand last came by.
    used: bool,
}

/// The NIC's memory is made for states that lie in it, not behind a pointer.
#[derive(Debug)]
enum Stored<S> {
    /// With its place in the circle.
    OnNic(S, usize),
    InHost(ContextImage),
}

impl<E: Engine> Default for Slab<E> {
    fn default() -> Slab<E> {
        Slab { places: Vec::new() }
    }
}

face! {
    /// The contexts of an engine, whatever engine it is.
    pub trait AnySlab for [E: Engine] Slab<E> {
        /// The context in a place.
        fn in_place(&self, place: u32) -> Option<Handle> {
            Some(self.places.get(place as usize)?.as_ref()?.handle)
        }

        /// Returns the contexts in these places.
        fn in_places(&self, places: Range<u32>) -> Vec<Handle> {
            let used = places.start..places.end.min(self.places.len() as u32);
            used.filter_map(|place| self.in_place(place)).collect()
        }

        /// What a context is about, if it is about anything.
        fn subject(&self, handle: Handle) -> Option<&Subject> {
            self.entry(handle)?.subject.as_deref()
        }

        /// The same, to be changed; nothing, of one that is about nothing yet. `None`: there is no such context.
        fn subject_mut(&mut self, handle: Handle) -> Option<&mut Subject> {
            self.entry_mut(handle).map(|entry| &mut **entry.subject.get_or_insert_default())
        }

        /// Reads a state back from its image. False: there is none.
        fn read_back(&mut self, handle: Handle, at: usize) -> bool {
            let Some(entry) = self.entry_mut(handle) else { return false };
            let Stored::InHost(image) = &entry.state else { return false };
            let Some(state) = image.read(E::load) else { return false };
            entry.state = Stored::OnNic(state, at);
            true
        }

        /// Writes a state out, unless it was used since this was last asked. True: it is in host memory now.
        fn write_out_if_unused(&mut self, handle: Handle) -> bool {
            let Some(entry) = self.entry_mut(handle) else { return false };
            if core::mem::take(&mut entry.used) {
                return false;
            }
            let Stored::OnNic(state, _) = &entry.state else { return false };
            entry.state = Stored::InHost(ContextImage::of(|image| E::save(state, image)));
            true
        }

        /// Its place in the circle is another.
        fn moved(&mut self, handle: Handle, at: usize) {
            if let Some(Entry { state: Stored::OnNic(_, place), .. }) = self.entry_mut(handle) {
                *place = at;
            }
        }

        /// Gives up a context: what it was about, and its place in the circle.
        fn remove(&mut self, handle: Handle) -> Option<(Subject, Option<usize>)> {
            self.entry(handle)?;
            let entry = self.places[handle.place() as usize].take()?;
            let at = match entry.state {
                Stored::OnNic(_, at) => Some(at),
                Stored::InHost(_) => None,
            };
            Some((entry.subject.map(|subject| *subject).unwrap_or_default(), at))
        }
    }
}

impl<E: Engine> Slab<E> {
    /// Puts a context in its handle's place, with its place in the circle.
    pub(crate) fn insert(&mut self, handle: Handle, subject: Subject, state: E::State, held: E::Held, at: usize) {
        let place = handle.place() as usize;
        if place >= self.places.len() {
            self.places.resize_with(place + 1, || None);
        }
        let subject = (subject != Subject::default()).then(|| Box::new(subject));
        self.places[place] = Some(Entry { handle, subject, state: Stored::OnNic(state, at), held, used: true });
    }

    /// Whether the state of a context is on the NIC; `None`: there is no such context.
    pub(crate) fn is_there(&self, handle: Handle) -> Option<bool> {
        Some(matches!(self.entry(handle)?.state, Stored::OnNic(..)))
    }

    /// The context, if it is on the NIC.
    pub(crate) fn get(&mut self, handle: Handle) -> Option<Context<'_, E>> {
        let entry = self.entry_mut(handle)?;
        entry.used = true;
        match &mut entry.state {
            Stored::OnNic(state, _) => Some(Context { handle, state, held: &mut entry.held }),
            Stored::InHost(_) => None,
        }
    }

    pub(crate) fn held(&mut self, handle: Handle) -> Option<&mut E::Held> {
        self.entry_mut(handle).map(|entry| &mut entry.held)
    }

    fn entry(&self, handle: Handle) -> Option<&Entry<E>> {
        self.places.get(handle.place() as usize)?.as_ref().filter(|entry| entry.handle == handle)
    }

    fn entry_mut(&mut self, handle: Handle) -> Option<&mut Entry<E>> {
        self.places.get_mut(handle.place() as usize)?.as_mut().filter(|entry| entry.handle == handle)
    }
}
