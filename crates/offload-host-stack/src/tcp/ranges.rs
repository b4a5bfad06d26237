//! A set of positions, stored as sorted ranges.
//!
//! Invariant: the ranges are non-empty, sorted, and neither overlap nor touch.

use core::ops::Range;
use std::collections::BTreeMap;

/// Ranges by start. A tree instead of a vector, because a peer that sends tiny pieces chooses where they are inserted,
/// and must not make each insertion move all others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RangeSet {
    ends: BTreeMap<u64, u64>,
}

impl RangeSet {
    /// Adds a range and returns the merged range that now contains it.
    pub(crate) fn insert(&mut self, added: Range<u64>) -> Range<u64> {
        if added.is_empty() {
            return added;
        }
        let mut merged = added;
        // Touching ranges are merged, too, so that each gap between ranges is real.
        while let Some(range) = self.last_until(merged.end).filter(|range| range.end >= merged.start) {
            merged = merged.start.min(range.start)..merged.end.max(range.end);
            self.ends.remove(&range.start);
        }
        self.ends.insert(merged.start, merged.end);
        merged
    }

    /// Returns the range that contains `position`.
    pub(crate) fn containing(&self, position: u64) -> Option<Range<u64>> {
        self.last_until(position).filter(|range| range.end > position)
    }

    /// Calls `f` with each part of `wanted` outside the set, in order.
    pub(crate) fn gaps(&self, wanted: Range<u64>, mut f: impl FnMut(Range<u64>)) {
        if wanted.is_empty() {
            return;
        }
        let mut from = self.containing(wanted.start).map_or(wanted.start, |range| range.end);
        for (start, end) in self.ends.range(wanted.start..wanted.end) {
            if from < *start {
                f(from..*start);
            }
            from = *end;
        }
        if from < wanted.end {
            f(from..wanted.end);
        }
    }

    /// Removes all positions before `position`.
    pub(crate) fn remove_before(&mut self, position: u64) {
        while let Some(first) = self.ends.first_entry().filter(|first| *first.key() < position) {
            let end = first.remove();
            if end > position {
                self.ends.insert(position, end);
            }
        }
    }

    /// Removes all positions from `position` on.
    pub(crate) fn remove_from(&mut self, position: u64) {
        while let Some(mut last) = self.ends.last_entry().filter(|last| *last.get() > position) {
            if *last.key() < position {
                last.insert(position);
            } else {
                last.remove();
            }
        }
    }

    /// Returns the last range that begins at or before `position`.
    fn last_until(&self, position: u64) -> Option<Range<u64>> {
        self.ends.range(..=position).next_back().map(|(start, end)| *start..*end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn range_set_matches_a_set_of_positions(steps in proptest::collection::vec((0u8..4, 0u64..64, 0u64..16), 1..60)) {
            let mut ranges = RangeSet::default();
            let mut oracle = BTreeSet::new();
            for (step, start, length) in steps {
                // Each operation is compared with the same operation on a plain set.
                match step {
                    0 => {
                        ranges.remove_before(start);
                        oracle.retain(|position| *position >= start);
                    }
                    1 => {
                        ranges.remove_from(start + 32);
                        oracle.retain(|position| *position < start + 32);
                    }
                    _ => {
                        let mut gaps = Vec::new();
                        ranges.gaps(start..start + length, |gap| gaps.extend(gap));
                        let missing: Vec<u64> = (start..start + length).filter(|at| !oracle.contains(at)).collect();
                        prop_assert_eq!(gaps, missing);
                        ranges.insert(start..start + length);
                        oracle.extend(start..start + length);
                    }
                }
                let held: Vec<_> = ranges.ends.iter().map(|(start, end)| *start..*end).collect();
                prop_assert!(held.iter().all(|range| !range.is_empty()));
                prop_assert!(held.iter().zip(held.iter().skip(1)).all(|(a, b)| a.end < b.start));
                prop_assert_eq!(held.into_iter().flatten().collect::<Vec<_>>(), oracle.iter().copied().collect::<Vec<_>>());
                for position in 0..96 {
                    prop_assert_eq!(ranges.containing(position).is_some(), oracle.contains(&position));
                }
            }
        }
    }
}
