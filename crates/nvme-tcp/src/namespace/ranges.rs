//! Ranges of bytes that are being read or written, so that nothing is read or written half.
//!
//! Invariant: a range that is held for writing overlaps no other that is held. The first to come goes first, so nobody
//! waits for ever; and nobody holds two, so nobody waits in a circle.

use core::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// What is held, and who waits. As many entries at most as there are threads.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    next: u64,
    /// In the order they came.
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    range: Range<u64>,
    writes: bool,
}

/// A range that is held, until this is dropped.
#[derive(Debug)]
pub(super) struct Held<'a> {
    ranges: &'a Ranges,
    number: u64,
}

impl Ranges {
    /// Waits until nobody writes to `range`.
    pub(super) fn read(&self, range: Range<u64>) -> Held<'_> {
        self.hold(range, false)
    }

    /// Waits until nobody reads or writes in `range`.
    pub(super) fn write(&self, range: Range<u64>) -> Held<'_> {
        self.hold(range, true)
    }

    fn hold(&self, range: Range<u64>, writes: bool) -> Held<'_> {
        let mut queue = self.queue();
        let number = queue.next;
        queue.next += 1;
        queue.entries.push(Entry { number, range, writes });
        while queue.has_to_wait(number) {
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        Held { ranges: self, number }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// Whether an entry that came before `number` is in its way.
    fn has_to_wait(&self, number: u64) -> bool {
        let Some(place) = self.entries.iter().position(|entry| entry.number == number) else { return false };
        let (before, entry) = (&self.entries[..place], &self.entries[place]);
        before.iter().any(|other| {
            (entry.writes || other.writes) && other.range.start < entry.range.end && entry.range.start < other.range.end
        })
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let others = {
            let mut queue = self.ranges.queue();
            queue.entries.retain(|entry| entry.number != self.number);
            !queue.entries.is_empty()
        };
        if others {
            self.ranges.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_wait_for_what_they_overlap_and_readers_for_writers() {
        let ranges = Ranges::default();
        let (first, second) = (ranges.read(0..10), ranges.read(5..15));
        let beside = ranges.write(15..20);
        let waits = |range: Range<u64>, writes| {
            let mut queue = ranges.queue();
            let number = queue.next;
            queue.next += 1;
            queue.entries.push(Entry { number, range, writes });
            let waits = queue.has_to_wait(number);
            queue.entries.pop();
            waits
        };
        assert!(waits(9..10, true) && !waits(9..10, false), "readers share");
        assert!(waits(19..30, false) && !waits(20..30, true));
        drop((first, beside));
        assert!(waits(9..10, true), "the second reader");
        drop(second);
        assert!(!waits(0..30, true));
    }
}
