//! A table with entries found by [`Handle`].
//!
//! Invariant: a handle finds its own entry, and nothing after the entry is removed, because a reused slot has the next
//! generation.

use crate::unit::Handle;
use core::ops::Range;

/// A table of entries indexed by [`Handle`]. All operations except [`handles`](Self::handles) take constant time.
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
    places: Vec<Slot<T>>,
    /// Free slots, last freed at the end.
    free: Vec<u32>,
    indices: Range<u32>,
    len: usize,
}

#[derive(Clone, Debug)]
struct Slot<T> {
    generation: u32,
    content: SlotContent<T>,
}

#[derive(Clone, Debug)]
enum SlotContent<T> {
    Free,
    Reserved,
    Entry(T),
}

impl<T> Default for Slots<T> {
    /// Makes an empty table over all indices.
    fn default() -> Slots<T> {
        Slots::new(0..u32::MAX)
    }
}

impl<T> Slots<T> {
    /// Makes an empty table with the given indices. Memory is allocated as entries are added.
    pub const fn new(indices: Range<u32>) -> Slots<T> {
        Slots { places: Vec::new(), free: Vec::new(), indices, len: 0 }
    }

    /// Adds an entry.
    ///
    /// # Errors
    /// The entry, if the table is full.
    pub fn insert(&mut self, entry: T) -> Result<Handle, T> {
        let at = match self.free.pop() {
            // Reused first, so that the table stays as small as the number of entries.
            Some(at) => at,
            // The table grows on demand: most tables use a small part of their range.
            None if self.places.len() < self.indices.len() => {
                self.places.push(Slot { generation: 0, content: SlotContent::Free });
                self.places.len() as u32 - 1
            }
            None => return Err(entry),
        };
        let place = &mut self.places[at as usize];
        place.content = SlotContent::Entry(entry);
        self.len += 1;
        Ok(Handle { index: self.indices.start + at, generation: place.generation })
    }

    /// Returns the entry of a handle.
    pub fn get(&self, handle: Handle) -> Option<&T> {
        match &self.place(handle)?.content {
            SlotContent::Entry(entry) => Some(entry),
            _ => None,
        }
    }

    /// Returns the entry of a handle for changes.
    pub fn get_mut(&mut self, handle: Handle) -> Option<&mut T> {
        match &mut self.place_mut(handle)?.content {
            SlotContent::Entry(entry) => Some(entry),
            _ => None,
        }
    }

    /// Removes an entry and frees its slot.
    pub fn remove(&mut self, handle: Handle) -> Option<T> {
        let (entry, next) = self.reserve(handle)?;
        self.release(next);
        Some(entry)
    }

    /// Removes an entry and keeps its slot reserved. The returned handle [fills](Self::fill) or
    /// [releases](Self::release) the slot.
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
        let entry = match core::mem::replace(&mut place.content, SlotContent::Reserved) {
            SlotContent::Entry(entry) => entry,
            other => {
                // The slot has no entry, so it is left as it was.
                place.content = other;
                return None;
            }
        };
        // The generation changes now and not at reuse, so that the old handle finds nothing while the slot is reserved.
        place.generation = place.generation.wrapping_add(1);
        let next = Handle { generation: place.generation, ..handle };
        self.len -= 1;
        Some((entry, next))
    }

    /// Puts an entry into a [reserved](Self::reserve) slot.
    ///
    /// # Errors
    /// The entry, if the handle names no reserved slot.
    pub fn fill(&mut self, reserved: Handle, entry: T) -> Result<(), T> {
        match self.place_mut(reserved) {
            Some(Slot { content: content @ SlotContent::Reserved, .. }) => *content = SlotContent::Entry(entry),
            _ => return Err(entry),
        }
        self.len += 1;
        Ok(())
    }

    /// Frees a [reserved](Self::reserve) slot.
    pub fn release(&mut self, reserved: Handle) {
        if let Some(Slot { content: content @ SlotContent::Reserved, .. }) = self.place_mut(reserved) {
            *content = SlotContent::Free;
            self.free.push(reserved.index - self.indices.start);
        }
    }

    /// Returns the number of entries.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Tests whether the table is empty.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// Returns the handles of all entries in index order.
    pub fn handles(&self) -> impl Iterator<Item = Handle> {
        let places = self
            .places
            .iter()
            .zip(self.indices.clone())
            .filter(|(place, _)| matches!(place.content, SlotContent::Entry(_)));
        places.map(|(place, index)| Handle { index, generation: place.generation })
    }

    fn place(&self, handle: Handle) -> Option<&Slot<T>> {
        let at = handle.index.checked_sub(self.indices.start)?;
        self.places.get(at as usize).filter(|place| place.generation == handle.generation)
    }

    fn place_mut(&mut self, handle: Handle) -> Option<&mut Slot<T>> {
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
    fn handles_find_the_same_entries_as_a_map() {
        let mut random = Seed(7).stream("slots");
        let mut slots = Slots::new(5..25);
        let (mut map, mut gone, mut reserved) = (BTreeMap::new(), Vec::new(), Vec::new());
        for entry in 0..20_000u32 {
            // The map is the oracle: it contains every entry under its current handle.
            let any = |map: &BTreeMap<Handle, u32>, at: usize| map.keys().nth(at % map.len().max(1)).copied();
            let at = random.below(1 << 20) as usize;
            match random.below(5) {
                0 | 1 => match slots.insert(entry) {
                    Ok(handle) => {
                        assert!((5..25).contains(&handle.index) && !gone.contains(&handle));
                        assert_eq!(map.insert(handle, entry), None);
                    }
                    // Reserved slots count against the capacity.
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
                    // A reserved slot is either filled or released, and accepts neither twice.
                    match at % 2 {
                        0 => {
                            slots.fill(handle, entry).unwrap();
                            map.insert(handle, entry);
                            assert_eq!(slots.fill(handle, 0), Err(0), "the slot is filled");
                        }
                        _ => {
                            slots.release(handle);
                            slots.release(handle);
                            assert_eq!(slots.fill(handle, 0), Err(0), "the slot is free");
                        }
                    }
                }
            }
            assert_eq!((slots.len(), slots.is_empty()), (map.len(), map.is_empty()));
            assert!(slots.handles().eq(map.keys().copied()));
            assert!(map.iter().all(|(handle, entry)| slots.get(*handle) == Some(entry)));
            // Stale handles find nothing, even if their slot is in use again.
            assert!(gone.iter().rev().take(50).all(|handle| slots.get(*handle).is_none()));
        }
    }
}
