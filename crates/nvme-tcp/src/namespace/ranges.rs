//! Blocking range locks, so that no read or write sees half of another write.
//!
//! Invariant: a range locked for writing overlaps no other locked range. Locks are granted in order of arrival, so
//! every wait ends. A thread locks only one range at a time, so there are no deadlocks.

use core::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The locked ranges and the waiting ones. At most one entry per thread.
#[derive(Debug, Default)]
pub(super) struct BlockingRangeLocks {
    queue: Mutex<LockQueue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct LockQueue {
    next: u64,
    /// Entries in order of arrival.
    entries: Vec<LockEntry>,
}

#[derive(Debug)]
struct LockEntry {
    number: u64,
    range: Range<u64>,
    writes: bool,
}

/// A locked range; unlocked on drop.
#[derive(Debug)]
pub(super) struct BlockingRangeLock<'a> {
    ranges: &'a BlockingRangeLocks,
    number: u64,
}

impl BlockingRangeLocks {
    /// Locks `range` for reading. Waits for overlapping writers.
    pub(super) fn read(&self, range: Range<u64>) -> BlockingRangeLock<'_> {
        self.lock_range(range, false)
    }

    /// Locks `range` for writing. Waits for all overlapping entries.
    pub(super) fn write(&self, range: Range<u64>) -> BlockingRangeLock<'_> {
        self.lock_range(range, true)
    }

    fn lock_range(&self, range: Range<u64>, writes: bool) -> BlockingRangeLock<'_> {
        let mut queue = self.queue();
        let number = queue.next;
        queue.next += 1;
        queue.entries.push(LockEntry { number, range, writes });
        while queue.has_conflict(number) {
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        BlockingRangeLock { ranges: self, number }
    }

    fn queue(&self) -> MutexGuard<'_, LockQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LockQueue {
    /// Returns whether an earlier entry conflicts with `number`.
    fn has_conflict(&self, number: u64) -> bool {
        let Some(place) = self.entries.iter().position(|entry| entry.number == number) else { return false };
        let (before, entry) = (&self.entries[..place], &self.entries[place]);
        before.iter().any(|other| {
            (entry.writes || other.writes) && other.range.start < entry.range.end && entry.range.start < other.range.end
        })
    }
}

impl Drop for BlockingRangeLock<'_> {
    fn drop(&mut self) {
        // One release may unblock several entries, so all waiting threads are woken.
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
    fn writers_exclude_overlapping_entries() {
        let ranges = BlockingRangeLocks::default();
        let (first, second) = (ranges.read(0..10), ranges.read(5..15));
        let beside = ranges.write(15..20);
        let waits = |range: Range<u64>, writes| {
            let mut queue = ranges.queue();
            let number = queue.next;
            queue.next += 1;
            queue.entries.push(LockEntry { number, range, writes });
            let waits = queue.has_conflict(number);
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
