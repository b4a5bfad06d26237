//! A set of positions as sorted ranges.
//!
//! Invariant: ranges are not empty, in order, and neither overlap nor touch.

use core::ops::Range;
use std::collections::VecDeque;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranges {
    ranges: VecDeque<Range<u64>>,
}

impl Ranges {
    /// Adds a range, and returns the one it has become part of.
    pub(crate) fn insert(&mut self, added: Range<u64>) -> Range<u64> {
        if added.is_empty() {
            return added;
        }
        let first = self.ranges.partition_point(|range| range.end < added.start);
        let mut merged = added;
        while let Some(range) = self.ranges.get(first).filter(|range| range.start <= merged.end) {
            merged = merged.start.min(range.start)..merged.end.max(range.end);
            self.ranges.remove(first);
        }
        self.ranges.insert(first, merged.clone());
        merged
    }

    /// The range that holds `position`.
    pub(crate) fn containing(&self, position: u64) -> Option<Range<u64>> {
        let index = self.ranges.partition_point(|range| range.end <= position);
        self.ranges.get(index).filter(|range| range.start <= position).cloned()
    }

    /// Calls `f` with each part of `wanted` that is not in the set, in order.
    pub(crate) fn gaps(&self, wanted: Range<u64>, mut f: impl FnMut(Range<u64>)) {
        let mut from = wanted.start;
        let first = self.ranges.partition_point(|range| range.end <= wanted.start);
        for range in self.ranges.range(first..) {
            if range.start >= wanted.end {
                break;
            }
            if from < range.start {
                f(from..range.start);
            }
            from = range.end;
        }
        if from < wanted.end {
            f(from..wanted.end);
        }
    }

    /// Removes everything before `position`.
    pub(crate) fn remove_before(&mut self, position: u64) {
        while let Some(first) = self.ranges.front_mut() {
            if first.start >= position {
                break;
            }
            if first.end > position {
                first.start = position;
                break;
            }
            self.ranges.pop_front();
        }
        if self.ranges.is_empty() {
            self.ranges = VecDeque::new();
        }
    }

    /// Removes everything from `position` on.
    pub(crate) fn remove_from(&mut self, position: u64) {
        while let Some(last) = self.ranges.back_mut() {
            if last.end <= position {
                break;
            }
            if last.start < position {
                last.end = position;
                break;
            }
            self.ranges.pop_back();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn behaves_like_a_set(steps in proptest::collection::vec((0u8..4, 0u64..64, 0u64..16), 1..60)) {
            let mut ranges = Ranges::default();
            let mut oracle = BTreeSet::new();
            for (step, start, length) in steps {
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
                prop_assert_eq!(ranges.ranges.iter().cloned().flatten().collect::<Vec<_>>(), oracle.iter().copied().collect::<Vec<_>>());
                prop_assert!(ranges.ranges.iter().zip(ranges.ranges.iter().skip(1)).all(|(a, b)| a.end < b.start));
                for position in 0..96 {
                    prop_assert_eq!(ranges.containing(position).is_some(), oracle.contains(&position));
                }
            }
        }
    }
}
