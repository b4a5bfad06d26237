//! The unreadable blocks of a namespace: marked by Write Uncorrectable and not written since.
//!
//! Invariant: ranges are sorted and do not touch. The number of ranges and of blocks is limited, because each durable
//! change writes the whole list.

use core::ops::Range;
use std::collections::BTreeMap;

/// A set of unreadable blocks.
#[derive(Clone, Debug, Default)]
pub(super) struct UnreadableMarks {
    /// Ranges from first block to the block after the last.
    ranges: BTreeMap<u64, u64>,
    /// Number of blocks in all ranges.
    blocks: u64,
    /// Whether blocks became readable since the last [`take_changed`](Self::take_changed).
    changed: bool,
}

impl UnreadableMarks {
    /// Creates a set of these ranges.
    pub(super) fn new(ranges: impl IntoIterator<Item = Range<u64>>) -> UnreadableMarks {
        let mut marks = UnreadableMarks::default();
        ranges.into_iter().for_each(|range| marks.insert(range));
        marks
    }

    /// Returns whether at least one of these blocks is marked.
    pub(super) fn overlap(&self, blocks: Range<u64>) -> bool {
        self.ranges.range(..blocks.end).next_back().is_some_and(|(_, end)| *end > blocks.start)
    }

    /// Returns whether all of these blocks are marked.
    pub(super) fn contain(&self, blocks: &Range<u64>) -> bool {
        self.ranges.range(..=blocks.start).next_back().is_some_and(|(_, end)| *end >= blocks.end)
    }

    /// Returns the list with `blocks` added; `None` if that exceeds the limits.
    pub(super) fn with(&self, blocks: Range<u64>) -> Option<Vec<Range<u64>>> {
        let mut all = self.clone();
        all.insert(blocks);
        // A longer list from storage is accepted, but must not grow further.
        let fits = all.blocks <= MAX_BLOCKS.max(self.blocks) && all.ranges.len() <= MAX_RANGES.max(self.ranges.len());
        fits.then(|| all.list())
    }

    /// Adds marks for blocks.
    pub(super) fn insert(&mut self, blocks: Range<u64>) {
        let mut whole = blocks.clone();
        let touching: Vec<Range<u64>> = self.touching(blocks).collect();
        for range in touching {
            whole = whole.start.min(range.start)..whole.end.max(range.end);
            self.remove(&range);
        }
        self.add(whole);
    }

    /// Makes blocks readable. Returns false if that would split a range and exceed the limit.
    pub(super) fn clear(&mut self, blocks: Range<u64>) -> bool {
        let marked: Vec<Range<u64>> =
            self.touching(blocks.clone()).filter(|range| overlap(range, &blocks) > 0).collect();
        let splits = |range: &Range<u64>| range.start < blocks.start && blocks.end < range.end;
        // Only a split adds a range. Shortening or removing ranges is always possible.
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

    /// Returns the list if blocks became readable since the last call.
    pub(super) fn take_changed(&mut self) -> Option<Vec<Range<u64>>> {
        let changed = core::mem::take(&mut self.changed);
        changed.then(|| self.list())
    }

    /// Undoes [`take_changed`](Self::take_changed), because the list could not be stored.
    pub(super) fn give_back(&mut self) {
        self.changed = true;
    }

    fn list(&self) -> Vec<Range<u64>> {
        self.ranges.iter().map(|(start, end)| *start..*end).collect()
    }

    /// Returns the ranges that overlap `blocks` or are adjacent, in descending order.
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

/// Maximum number of marked blocks, so that hosts cannot exhaust memory. The size of sixteen of the largest commands.
const MAX_BLOCKS: u64 = 1 << 20;
/// Maximum number of ranges. The list is smaller than 200 kB.
const MAX_RANGES: usize = 4096;

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // lists of one range
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn number_of_marked_blocks_is_limited() {
        let mut marks = UnreadableMarks::new([0..MAX_BLOCKS - 1]);
        assert_eq!(marks.with(MAX_BLOCKS..MAX_BLOCKS + 2), None);
        let all = [0..MAX_BLOCKS];
        assert_eq!(marks.with(MAX_BLOCKS - 2..MAX_BLOCKS).unwrap(), all, "one of the blocks is marked already");
        marks.insert(MAX_BLOCKS - 2..MAX_BLOCKS);
        assert!(
            marks.contain(&(5..MAX_BLOCKS)) && marks.with(5..MAX_BLOCKS).is_some(),
            "all of the blocks are marked already"
        );
        assert_eq!(marks.with(MAX_BLOCKS..MAX_BLOCKS + 1), None);
        assert_eq!(marks.take_changed(), None, "insertions are stored by the caller");
        assert!(marks.clear(7..8));
        marks.insert(MAX_BLOCKS + 5..MAX_BLOCKS + 6);
        assert_eq!(marks.take_changed().unwrap(), [0..7, 8..MAX_BLOCKS, MAX_BLOCKS + 5..MAX_BLOCKS + 6]);
        assert_eq!(marks.take_changed(), None);
        assert!(marks.clear(7..8));
        assert_eq!(marks.take_changed(), None, "no block changed");
        marks.give_back();
        assert_eq!(marks.take_changed().map(|ranges| ranges.len()), Some(3));
    }

    #[test]
    fn number_of_ranges_is_limited() {
        let every_other = |count: u64| (0..count).map(|number| 10 * number..10 * number + 3);
        let most = MAX_RANGES as u64;
        let mut marks = UnreadableMarks::new(every_other(most));
        assert_eq!(marks.with(5..6), None);
        assert_eq!(marks.with(3..4).map(|ranges| ranges.len()), Some(MAX_RANGES), "extends a range");
        assert!(!marks.clear(1..2));
        assert!(marks.contain(&(0..3)), "unchanged");
        assert!(marks.clear(1..11), "splits no range");
        assert!(marks.clear(20..23));
        assert!(marks.clear(31..32), "a range was removed before");
        assert!(!marks.clear(41..42));
        // A longer list, stored by another version, is accepted but cannot grow.
        let mut long = UnreadableMarks::new(every_other(most + 5));
        assert!(!long.clear(1..2) && long.with(5..6).is_none());
        assert!(long.clear(2..3) && long.with(3..10).is_some());
    }

    proptest! {
        /// Compares with an array of blocks.
        #[test]
        fn marks_match_an_array_of_blocks(steps in prop::collection::vec((any::<bool>(), 0u64..100, 1u64..40), 1..60)) {
            let (mut marks, mut oracle) = (UnreadableMarks::default(), [false; 140]);
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
