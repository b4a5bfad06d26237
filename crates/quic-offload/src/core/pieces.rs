//! Reassembly of a stream from pieces in any order.
//!
//! Invariants: runs neither touch nor overlap, and no run begins before `next`. Of two neighbouring parts in a run, at
//! least one is large, or both together are. So the overhead is bounded by the number of runs and the number of bytes.

use bytes::Bytes;
use core::ops::Range;
use std::collections::{BTreeMap, VecDeque};

/// Received bytes of a stream that the application has not taken yet.
#[derive(Debug, Default)]
pub(super) struct StreamPieces {
    /// Offset of the next byte for the application.
    next: u64,
    /// Runs by offset.
    runs: BTreeMap<u64, PieceRun>,
    bytes: u64,
}

/// Bytes without a gap.
#[derive(Debug, Default)]
struct PieceRun {
    parts: VecDeque<Bytes>,
    bytes: u64,
}

impl StreamPieces {
    /// Returns the number of buffered bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of runs.
    pub(super) fn runs(&self) -> usize {
        self.runs.len()
    }

    /// Tests whether bytes are missing before buffered ones.
    pub(super) fn has_gaps(&self) -> bool {
        self.runs.last_key_value().is_some_and(|(at, _)| *at != self.next)
    }

    /// Returns the offset of the next byte for the application.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Returns the number of runs that overlap a range.
    pub(super) fn runs_among(&self, range: Range<u64>) -> usize {
        let first = self.runs.range(..=range.start).next_back().filter(|(at, run)| *at + run.bytes > range.start);
        usize::from(first.is_some()) + self.runs.range(range.start + 1..range.end.max(range.start + 1)).count()
    }

    /// Returns the first missing part of a range.
    pub(super) fn missing(&self, range: Range<u64>) -> Option<Range<u64>> {
        let mut from = range.start.max(self.next);
        if let Some((at, run)) = self.runs.range(..=from).next_back() {
            from = from.max(at + run.bytes);
        }
        // The missing part ends where the next run begins.
        let to = self.runs.range(from..range.end.max(from)).next().map_or(range.end, |(at, _)| *at);
        (from < to).then_some(from..to)
    }

    /// Returns the buffered parts with their offsets.
    pub(super) fn parts(&self) -> impl Iterator<Item = (u64, &Bytes)> {
        self.runs.iter().flat_map(|(at, run)| {
            run.parts.iter().scan(*at, |at, part| Some((core::mem::replace(at, *at + part.len() as u64), part)))
        })
    }

    /// Returns the missing parts among the bytes at an offset.
    pub(super) fn new_of<'a>(&'a self, at: u64, data: &'a Bytes) -> impl Iterator<Item = (u64, Bytes)> + 'a {
        let end = at + data.len() as u64;
        let ranges = core::iter::successors(self.missing(at..end), move |last| self.missing(last.end..end));
        ranges.map(move |new| (new.start, data.slice((new.start - at) as usize..(new.end - at) as usize)))
    }

    /// Adds the missing parts among the bytes at an offset.
    pub(super) fn insert(&mut self, at: u64, data: Bytes) {
        let end = at + data.len() as u64;
        let mut from = at;
        while let Some(new) = self.missing(from..end) {
            from = new.end;
            self.put(new.start, data.slice((new.start - at) as usize..(new.end - at) as usize));
        }
    }

    /// Adds bytes to a gap, and joins them with adjacent runs.
    fn put(&mut self, at: u64, data: Bytes) {
        self.bytes += data.len() as u64;
        let mut new = PieceRun { bytes: data.len() as u64, parts: [owned(data)].into() };
        // The new bytes may close a gap, and so join two runs.
        let follows = self.runs.remove(&(at + new.bytes));
        match self.runs.range_mut(..at).next_back().filter(|(begin, run)| **begin + run.bytes == at) {
            Some((_, run)) => {
                run.join(new);
                follows.into_iter().for_each(|follows| run.join(follows));
            }
            None => {
                follows.into_iter().for_each(|follows| new.join(follows));
                self.runs.insert(at, new);
            }
        }
    }

    /// Takes the next bytes, at most `most`, if they have arrived.
    pub(super) fn take(&mut self, most: usize) -> Option<Bytes> {
        let mut entry = self.runs.first_entry().filter(|entry| *entry.key() == self.next)?;
        let run = entry.get_mut();
        let first = run.parts.front_mut()?;
        let data = first.split_to(most.min(first.len()));
        if first.is_empty() {
            run.parts.pop_front();
        }
        let bytes = data.len() as u64;
        run.bytes -= bytes;
        let rest = entry.remove();
        self.next += bytes;
        self.bytes -= bytes;
        if rest.bytes > 0 {
            // The rest of the run has a new first offset, which is its key.
            self.runs.insert(self.next, rest);
        }
        Some(data)
    }
}

impl PieceRun {
    /// Appends the following run. The shorter list of parts is moved.
    fn join(&mut self, mut follows: PieceRun) {
        if let (Some(last), Some(first)) = (self.parts.back_mut(), follows.parts.front())
            && last.len() + first.len() <= SMALL
        {
            // Two small parts become one, which bounds the number of parts.
            *last = [&last[..], &first[..]].concat().into();
            follows.parts.pop_front();
        }
        self.bytes += follows.bytes;
        if self.parts.len() < follows.parts.len() {
            core::mem::swap(&mut self.parts, &mut follows.parts);
            follows.parts.drain(..).rev().for_each(|part| self.parts.push_front(part));
        } else {
            self.parts.append(&mut follows.parts);
        }
    }
}

/// Copies a small part, so that it does not keep a whole packet in memory.
fn owned(data: Bytes) -> Bytes {
    if data.len() < SMALL { Bytes::copy_from_slice(&data) } else { data }
}

/// Parts below this size are copied, because a copy costs less than the bookkeeping of a reference.
const SMALL: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The byte of the test stream at an offset.
    fn at(offset: u64) -> u8 {
        (offset % 251) as u8
    }

    fn bytes(from: u64, count: u64) -> Bytes {
        (from..from + count).map(at).collect()
    }

    /// A model: the set of arrived bytes.
    #[derive(Default)]
    struct ArrivalModel {
        next: u64,
        there: std::collections::BTreeSet<u64>,
    }

    impl ArrivalModel {
        fn gaps(&self) -> bool {
            self.there.last().is_some_and(|last| last + 1 - self.next != self.there.len() as u64)
        }

        fn runs(&self) -> usize {
            self.there.iter().filter(|at| at.checked_sub(1).is_none_or(|before| !self.there.contains(&before))).count()
        }
    }

    #[derive(Clone, Debug)]
    enum PieceStep {
        Insert(u64, u64),
        Take(usize),
    }

    fn step() -> impl Strategy<Value = PieceStep> {
        prop_oneof![
            4 => (0u64..6000, 0u64..2500).prop_map(|(at, count)| PieceStep::Insert(at, count)),
            4 => (0u64..6000, 0u64..8).prop_map(|(at, count)| PieceStep::Insert(at, count)),
            3 => (1usize..3000).prop_map(PieceStep::Take),
        ]
    }

    proptest! {
        #[test]
        fn pieces_match_a_simple_model(steps in prop::collection::vec(step(), 1..50)) {
            let (mut pieces, mut model) = (StreamPieces::default(), ArrivalModel::default());
            for step in steps {
                match step {
                    PieceStep::Insert(from, count) => {
                        pieces.insert(from, bytes(from, count));
                        model.there.extend((from..from + count).filter(|at| *at >= model.next));
                    }
                    PieceStep::Take(most) => {
                        let data = pieces.take(most);
                        prop_assert_eq!(data.is_some(), model.there.contains(&model.next));
                        let data = data.unwrap_or_default();
                        prop_assert!(data.len() <= most && data == bytes(model.next, data.len() as u64));
                        for _ in 0..data.len() {
                            prop_assert!(model.there.remove(&model.next));
                            model.next += 1;
                        }
                    }
                }
                prop_assert_eq!(pieces.bytes(), model.there.len() as u64);
                prop_assert_eq!((pieces.runs(), pieces.has_gaps()), (model.runs(), model.gaps()));
            }
        }
    }

    /// One byte per packet, in any order: at most two parts per kibibyte are kept.
    #[test]
    fn tiny_pieces_are_merged() {
        let count = 64 << 10;
        for order in [0, 1, 2] {
            let mut pieces = StreamPieces::default();
            for step in 0..count {
                let from = match order {
                    0 => step,
                    1 => count - 1 - step,
                    // Every second byte first, then the others.
                    _ => (2 * step) % count + 2 * step / count,
                };
                pieces.insert(from, bytes(from, 1));
            }
            let parts: usize = pieces.runs.values().map(|run| run.parts.len()).sum();
            assert!(pieces.runs() == 1 && parts <= 2 * count as usize / SMALL, "{order}: {parts}");
            while let Some(data) = pieces.take(usize::MAX) {
                assert_eq!(data, bytes(pieces.next - data.len() as u64, data.len() as u64));
            }
            assert_eq!((pieces.next, pieces.bytes()), (count, 0));
        }
    }
}
