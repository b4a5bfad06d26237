//! A table whose entries are found by [`Handle`].
//!
//! Invariant: a handle finds the entry that it was given for, and nothing once that is gone: a place is used again under the
//! next generation.

use crate::unit::Handle;
use core::ops::Range;

/// Entries by [`Handle`]. Everything but [`handles`](Self::handles) takes the same time however
/// many entries there are.
///
/// ```
/// use offload_api::Slots;
///
/// let mut slots = Slots::new(0..100);
/// let old = slots.insert("one").unwrap();
/// assert_eq!(slots.remove(old), Some("one"));
/// let new = slots.insert("another").unwrap();
/// assert_eq!((new.index, slots.get(old), slots.get(new)), (old.index, None, Some(&"another")));
/// ```
#[derive(Clone, Debug)]
pub struct Slots<T> {
    places: Vec<Place<T>>,
    /// Places to be used again, the last one first.
    free: Vec<u32>,
    indices: Range<u32>,
    len: usize,
}

#[derive(Clone, Debug)]
struct Place<T> {
    generation: u32,
    content: Content<T>,
}

#[derive(Clone, Debug)]
enum Content<T> {
    Free,
    Reserved,
    Entry(T),
}

impl<T> Default for Slots<T> {
    /// An empty table of as many entries as there are indices.
    fn default() -> Slots<T> {
        Slots::new(0..u32::MAX)
    }
}

impl<T> Slots<T> {
    /// An empty table whose handles have these indices. It takes memory as entries come.
    pub const fn new(indices: Range<u32>) -> Slots<T> {
        Slots { places: Vec::new(), free: Vec::new(), indices, len: 0 }
    }

    /// Adds an entry.
    ///
    /// # Errors
    /// The entry, if there are as many as there may be.
    pub fn insert(&mut self, entry: T) -> Result<Handle, T> {
        let at = match self.free.pop() {
            Some(at) => at,
            None if self.places.len() < self.indices.len() => {
                self.places.push(Place { generation: 0, content: Content::Free });
                self.places.len() as u32 - 1
            }
            None => return Err(entry),
        };
        let place = &mut self.places[at as usize];
        place.content = Content::Entry(entry);
        self.len += 1;
        Ok(Handle { index: self.indices.start + at, generation: place.generation })
    }

    /// The entry of a handle.
    pub fn get(&self, handle: Handle) -> Option<&T> {
        match &self.place(handle)?.content {
            Content::Entry(entry) => Some(entry),
            _ => None,
        }
    }

    /// The entry of a handle, to be changed.
    pub fn get_mut(&mut self, handle: Handle) -> Option<&mut T> {
        match &mut self.place_mut(handle)?.content {
            Content::Entry(entry) => Some(entry),
            _ => None,
        }
    }

    /// Takes an entry out. Its place is free.
    pub fn remove(&mut self, handle: Handle) -> Option<T> {
        let (entry, next) = self.reserve(handle)?;
        self.release(next);
        Some(entry)
    }

    /// Takes an entry out and keeps its place, under the handle that is returned, to be [filled](Self::fill) or
    /// [released](Self::release).
    ///
    /// ```
    /// use offload_api::Slots;
    ///
    /// let mut slots = Slots::new(0..1);
    /// let old = slots.insert("one").unwrap();
    /// let (one, kept) = slots.reserve(old).unwrap();
    /// assert!(slots.insert("no place").is_err() && slots.get(kept).is_none());
    /// assert!(slots.fill(kept, one).is_ok());
    /// assert_eq!(slots.get(kept), Some(&"one"));
    /// ```
    pub fn reserve(&mut self, handle: Handle) -> Option<(T, Handle)> {
        let place = self.place_mut(handle)?;
        let entry = match core::mem::replace(&mut place.content, Content::Reserved) {
            Content::Entry(entry) => entry,
            other => {
                place.content = other;
                return None;
            }
        };
        place.generation = place.generation.wrapping_add(1);
        let next = Handle { generation: place.generation, ..handle };
        self.len -= 1;
        Some((entry, next))
    }

    /// Puts an entry into a place that was [reserved](Self::reserve).
    ///
    /// # Errors
    /// The entry, if the handle names no such place.
    pub fn fill(&mut self, reserved: Handle, entry: T) -> Result<(), T> {
        match self.place_mut(reserved) {
            Some(Place { content: content @ Content::Reserved, .. }) => *content = Content::Entry(entry),
            _ => return Err(entry),
        }
        self.len += 1;
        Ok(())
    }

    /// Frees a place that was [reserved](Self::reserve).
    pub fn release(&mut self, reserved: Handle) {
        if let Some(Place { content: content @ Content::Reserved, .. }) = self.place_mut(reserved) {
            *content = Content::Free;
            self.free.push(reserved.index - self.indices.start);
        }
    }

    /// How many entries there are.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no entry.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// The handles of all entries, in the order of their indices.
    pub fn handles(&self) -> impl Iterator<Item = Handle> {
        let places = self
            .places
            .iter()
            .zip(self.indices.clone())
            .filter(|(place, _)| matches!(place.content, Content::Entry(_)));
        places.map(|(place, index)| Handle { index, generation: place.generation })
    }

    fn place(&self, handle: Handle) -> Option<&Place<T>> {
        let at = handle.index.checked_sub(self.indices.start)?;
        self.places.get(at as usize).filter(|place| place.generation == handle.generation)
    }

    fn place_mut(&mut self, handle: Handle) -> Option<&mut Place<T>> {
        let at = handle.index.checked_sub(self.indices.start)?;
        self.places.get_mut(at as usize).filter(|place| place.generation == handle.generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use offload_base::Seed;
    use std::collections::BTreeMap;

    #[test]
    fn handles_find_what_a_map_would() {
        let mut random = Seed(7).stream("slots");
        let mut slots = Slots::new(5..25);
        let (mut map, mut gone, mut reserved) = (BTreeMap::new(), Vec::new(), Vec::new());
        for entry in 0..20_000u32 {
            let any = |map: &BTreeMap<Handle, u32>, at: usize| map.keys().nth(at % map.len().max(1)).copied();
            let at = random.below(1 << 20) as usize;
            match random.below(5) {
                0 | 1 => match slots.insert(entry) {
                    Ok(handle) => {
                        assert!((5..25).contains(&handle.index) && !gone.contains(&handle));
                        assert_eq!(map.insert(handle, entry), None);
                    }
                    Err(back) => assert_eq!((back, map.len() + reserved.len()), (entry, 20)),
                },
                2 => {
                    let Some(handle) = any(&map, at) else { continue };
                    assert_eq!(slots.remove(handle), map.remove(&handle));
                    gone.push(handle);
                }
                3 => {
                    let Some(handle) = any(&map, at) else { continue };
                    let (entry, next) = slots.reserve(handle).unwrap();
                    assert_eq!(map.remove(&handle), Some(entry));
                    gone.push(handle);
                    reserved.push(next);
                }
                _ => {
                    let Some(handle) = reserved.pop() else { continue };
                    match at % 2 {
                        0 => {
                            slots.fill(handle, entry).unwrap();
                            map.insert(handle, entry);
                            assert_eq!(slots.fill(handle, 0), Err(0), "it is filled");
                        }
                        _ => {
                            slots.release(handle);
                            slots.release(handle);
                            assert_eq!(slots.fill(handle, 0), Err(0), "it is free");
                        }
                    }
                }
            }
            assert_eq!((slots.len(), slots.is_empty()), (map.len(), map.is_empty()));
            assert!(slots.handles().eq(map.keys().copied()));
            assert!(map.iter().all(|(handle, entry)| slots.get(*handle) == Some(entry)));
            assert!(gone.iter().rev().take(50).all(|handle| slots.get(*handle).is_none()));
        }
    }
}
