//! Which blocks of a namespace are unreadable: what Write Uncorrectable marked, and no write has healed.
//!
//! Invariant: ranges are in order and do not touch, and neither they nor the blocks in them become more than there may
//! be: each change that lasts has the whole list written.

use core::ops::Range;
use std::collections::BTreeMap;

/// Blocks that are unreadable.
#[derive(Clone, Debug, Default)]
pub(super) struct Marks {
    /// First block to the one after the last.
    ranges: BTreeMap<u64, u64>,
    /// In all ranges.
    blocks: u64,
    /// Whether some were made readable since the last [`take_changed`](Self::take_changed).
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

    /// Whether all of these blocks are marked.
    pub(super) fn contain(&self, blocks: &Range<u64>) -> bool {
        self.ranges.range(..=blocks.start).next_back().is_some_and(|(_, end)| *end >= blocks.end)
    }

    /// All that would be marked if these were too; `None` if that were too many.
    pub(super) fn with(&self, blocks: Range<u64>) -> Option<Vec<Range<u64>>> {
        let mut all = self.clone();
        all.insert(blocks);
        let fits = all.blocks <= MAX_BLOCKS.max(self.blocks) && all.ranges.len() <= MAX_RANGES.max(self.ranges.len());
        fits.then(|| all.list())
    }

    /// Marks blocks.
    pub(super) fn insert(&mut self, blocks: Range<u64>) {
        let mut whole = blocks.clone();
        let touching: Vec<Range<u64>> = self.touching(blocks).collect();
        for range in touching {
            whole = whole.start.min(range.start)..whole.end.max(range.end);
            self.remove(&range);
        }
        self.add(whole);
    }

    /// Makes blocks readable again; false if that were too many ranges: the blocks are in the middle of one.
    pub(super) fn clear(&mut self, blocks: Range<u64>) -> bool {
        let marked: Vec<Range<u64>> =
            self.touching(blocks.clone()).filter(|range| overlap(range, &blocks) > 0).collect();
        let splits = |range: &Range<u64>| range.start < blocks.start && blocks.end < range.end;
        if self.ranges.len() >= MAX_RANGES && marked.iter().any(splits) {
            return false;
        }
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
        true
    }

    /// All that are marked, if there are fewer since it was asked for last.
    pub(super) fn take_changed(&mut self) -> Option<Vec<Range<u64>>> {
        let changed = core::mem::take(&mut self.changed);
        changed.then(|| self.list())
    }

    /// What was taken is of no use.
    pub(super) fn give_back(&mut self) {
        self.changed = true;
    }

    fn list(&self) -> Vec<Range<u64>> {
        self.ranges.iter().map(|(start, end)| *start..*end).collect()
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
const MAX_BLOCKS: u64 = 1 << 20;
/// Ranges at a time: the list of them is less than 200 kB.
const MAX_RANGES: usize = 4096;

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // lists of one range
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn no_more_are_marked_than_may_be() {
        let mut marks = Marks::new([0..MAX_BLOCKS - 1]);
        assert_eq!(marks.with(MAX_BLOCKS..MAX_BLOCKS + 2), None);
        let all = [0..MAX_BLOCKS];
        assert_eq!(marks.with(MAX_BLOCKS - 2..MAX_BLOCKS).unwrap(), all, "one of them is marked");
        marks.insert(MAX_BLOCKS - 2..MAX_BLOCKS);
        assert!(marks.contain(&(5..MAX_BLOCKS)) && marks.with(5..MAX_BLOCKS).is_some(), "all of them are");
        assert_eq!(marks.with(MAX_BLOCKS..MAX_BLOCKS + 1), None);
        assert_eq!(marks.take_changed(), None, "what was marked was kept before");
        assert!(marks.clear(7..8));
        marks.insert(MAX_BLOCKS + 5..MAX_BLOCKS + 6);
        assert_eq!(marks.take_changed().unwrap(), [0..7, 8..MAX_BLOCKS, MAX_BLOCKS + 5..MAX_BLOCKS + 6]);
        assert_eq!(marks.take_changed(), None);
        assert!(marks.clear(7..8));
        assert_eq!(marks.take_changed(), None, "nothing was changed");
        marks.give_back();
        assert_eq!(marks.take_changed().map(|ranges| ranges.len()), Some(3));
    }

    #[test]
    fn there_are_no_more_ranges_than_may_be() {
        let every_other = |count: u64| (0..count).map(|number| 10 * number..10 * number + 3);
        let most = MAX_RANGES as u64;
        let mut marks = Marks::new(every_other(most));
        assert_eq!(marks.with(5..6), None);
        assert_eq!(marks.with(3..4).map(|ranges| ranges.len()), Some(MAX_RANGES), "at the end of one");
        assert!(!marks.clear(1..2));
        assert!(marks.contain(&(0..3)), "as it was");
        assert!(marks.clear(1..11), "in none's middle");
        assert!(marks.clear(20..23));
        assert!(marks.clear(31..32), "one is gone");
        assert!(!marks.clear(41..42));
        // A longer one, as a process of another time may have kept, becomes no longer.
        let mut long = Marks::new(every_other(most + 5));
        assert!(!long.clear(1..2) && long.with(5..6).is_none());
        assert!(long.clear(2..3) && long.with(3..10).is_some());
    }

    proptest! {
        /// Against an array of blocks.
        #[test]
        fn marks_are_what_was_marked(steps in prop::collection::vec((any::<bool>(), 0u64..100, 1u64..40), 1..60)) {
            let (mut marks, mut oracle) = (Marks::default(), [false; 140]);
            for (set, first, count) in steps {
                let range = first..first + count;
                if set {
                    let with = marks.with(range.clone());
                    marks.insert(range.clone());
                    prop_assert_eq!(with, Some(marks.list()));
                } else {
                    prop_assert!(marks.clear(range.clone()));
                }
                prop_assert_eq!(marks.contain(&range), set);
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
