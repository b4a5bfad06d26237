//! Which blocks of a namespace are unreadable: what Write Uncorrectable marked, and no write has healed.
//!
//! Invariant: ranges are in order and do not touch, and there are no more of them than blocks may be marked.

use core::ops::Range;
use std::collections::BTreeMap;

/// Blocks that are unreadable.
#[derive(Debug, Default)]
pub(super) struct Marks {
    /// First block to the one after the last.
    ranges: BTreeMap<u64, u64>,
    /// In all ranges.
    blocks: u64,
    /// Since the last [`take_changed`](Self::take_changed).
    changed: bool,
}

impl Marks {
    /// With these blocks marked.
    pub(super) fn new(ranges: impl IntoIterator<Item = Range<u64>>) -> Marks {
        let mut marks = Marks::default();
        ranges.into_iter().for_each(|range| marks.insert(range));
        marks
    }

    /// Whether one of these blocks is marked.
    pub(super) fn overlap(&self, blocks: Range<u64>) -> bool {
        self.ranges.range(..blocks.end).next_back().is_some_and(|(_, end)| *end > blocks.start)
    }

    /// Marks blocks; false if that were too many.
    pub(super) fn set(&mut self, blocks: Range<u64>) -> bool {
        let marked: u64 = self.touching(blocks.clone()).map(|range| overlap(&range, &blocks)).sum();
        let more = blocks.end - blocks.start - marked;
        if more == 0 {
            return true;
        }
        if self.blocks + more > MOST_BLOCKS {
            return false;
        }
        self.insert(blocks);
        self.changed = true;
        true
    }

    /// Makes blocks readable again.
    pub(super) fn clear(&mut self, blocks: Range<u64>) {
        let marked: Vec<Range<u64>> =
            self.touching(blocks.clone()).filter(|range| overlap(range, &blocks) > 0).collect();
        for range in marked {
            self.remove(&range);
            if range.start < blocks.start {
                self.add(range.start..blocks.start);
            }
            if blocks.end < range.end {
                self.add(blocks.end..range.end);
            }
            self.changed = true;
        }
    }

    /// All that are marked, if that has changed since it was asked for last.
    pub(super) fn take_changed(&mut self) -> Option<Vec<Range<u64>>> {
        let changed = core::mem::take(&mut self.changed);
        changed.then(|| self.ranges.iter().map(|(start, end)| *start..*end).collect())
    }

    /// What was taken is of no use.
    pub(super) fn give_back(&mut self) {
        self.changed = true;
    }

    fn insert(&mut self, blocks: Range<u64>) {
        let mut whole = blocks.clone();
        let touching: Vec<Range<u64>> = self.touching(blocks).collect();
        for range in touching {
            whole = whole.start.min(range.start)..whole.end.max(range.end);
            self.remove(&range);
        }
        self.add(whole);
    }

    /// Ranges that overlap `blocks` or lie beside them, from the last one on.
    fn touching(&self, blocks: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let ranges = self.ranges.range(..=blocks.end).rev().map(|(start, end)| *start..*end);
        ranges.take_while(move |range| range.end >= blocks.start)
    }

    fn add(&mut self, range: Range<u64>) {
        self.blocks += range.end - range.start;
        self.ranges.insert(range.start, range.end);
    }

    fn remove(&mut self, range: &Range<u64>) {
        self.blocks -= range.end - range.start;
        self.ranges.remove(&range.start);
    }
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> u64 {
    a.end.min(b.end).saturating_sub(a.start.max(b.start))
}

/// Blocks marked at a time: hosts are not to fill memory with holes between them. Sixteen of the largest commands.
const MOST_BLOCKS: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn no_more_are_marked_than_may_be() {
        let mut marks = Marks::default();
        assert!(marks.set(0..MOST_BLOCKS - 1));
        assert!(!marks.set(MOST_BLOCKS..MOST_BLOCKS + 2));
        assert!(marks.set(MOST_BLOCKS - 2..MOST_BLOCKS), "one of them is marked");
        assert!(marks.set(5..MOST_BLOCKS), "all of them are");
        assert!(!marks.set(MOST_BLOCKS..MOST_BLOCKS + 1));
        marks.clear(7..8);
        assert!(marks.set(MOST_BLOCKS + 5..MOST_BLOCKS + 6));
        assert_eq!(marks.take_changed().unwrap(), [0..7, 8..MOST_BLOCKS, MOST_BLOCKS + 5..MOST_BLOCKS + 6]);
        assert_eq!(marks.take_changed(), None);
        assert!(marks.set(0..3));
        marks.clear(7..8);
        assert_eq!(marks.take_changed(), None, "nothing was changed");
        marks.give_back();
        assert_eq!(marks.take_changed().map(|ranges| ranges.len()), Some(3));
    }

    proptest! {
        /// Against an array of blocks.
        #[test]
        fn marks_are_what_was_marked(steps in prop::collection::vec((any::<bool>(), 0u64..100, 1u64..40), 1..60)) {
            let (mut marks, mut oracle) = (Marks::default(), [false; 140]);
            for (set, first, count) in steps {
                let range = first..first + count;
                if set {
                    prop_assert!(marks.set(range.clone()));
                } else {
                    marks.clear(range.clone());
                }
                oracle[range.start as usize..range.end as usize].fill(set);
                for block in 0..140 {
                    prop_assert_eq!(marks.overlap(block..block + 1), oracle[block as usize], "block {}", block);
                }
                prop_assert_eq!(marks.blocks, oracle.iter().filter(|marked| **marked).count() as u64);
                let ranges: Vec<_> = marks.ranges.iter().map(|(start, end)| *start..*end).collect();
                prop_assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start), "{:?}", ranges);
            }
        }
    }
}
