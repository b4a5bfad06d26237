//! Pieces of a stream that came in any order, and leave in the stream's own.
//!
//! Invariants: runs neither touch nor overlap, and none begins before `next`; of two neighbours in a run, one is large, unless
//! together they are: so what is kept beside the bytes is bounded by the number of runs and by the number of bytes.

use bytes::Bytes;
use core::ops::Range;
use std::collections::{BTreeMap, VecDeque};

/// The bytes of a stream that an application has not taken yet.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    /// The offset of what leaves next.
    next: u64,
    /// By the offsets that they begin at.
    runs: BTreeMap<u64, Run>,
    bytes: u64,
}

/// Bytes without a gap.
#[derive(Debug, Default)]
struct Run {
    parts: VecDeque<Bytes>,
    bytes: u64,
}

impl Pieces {
    /// Bytes that are kept.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Runs without a gap.
    pub(super) fn runs(&self) -> usize {
        self.runs.len()
    }

    /// Whether bytes are kept that others, still to come, go before.
    pub(super) fn has_gaps(&self) -> bool {
        self.runs.last_key_value().is_some_and(|(at, _)| *at != self.next)
    }

    /// The offset of what leaves next: all before has left.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Runs of which bytes are among these.
    pub(super) fn runs_among(&self, range: Range<u64>) -> usize {
        let first = self.runs.range(..=range.start).next_back().filter(|(at, run)| *at + run.bytes > range.start);
        usize::from(first.is_some()) + self.runs.range(range.start + 1..range.end.max(range.start + 1)).count()
    }

    /// The first of these bytes that neither are here nor were.
    pub(super) fn missing(&self, range: Range<u64>) -> Option<Range<u64>> {
        let mut from = range.start.max(self.next);
        if let Some((at, run)) = self.runs.range(..=from).next_back() {
            from = from.max(at + run.bytes);
        }
        let to = self.runs.range(from..range.end.max(from)).next().map_or(range.end, |(at, _)| *at);
        (from < to).then_some(from..to)
    }

    /// What is kept, part by part, and where each one is.
    pub(super) fn parts(&self) -> impl Iterator<Item = (u64, &Bytes)> {
        self.runs.iter().flat_map(|(at, run)| {
            run.parts.iter().scan(*at, |at, part| Some((core::mem::replace(at, *at + part.len() as u64), part)))
        })
    }

    /// What is new of the bytes at an offset.
    pub(super) fn new_of<'a>(&'a self, at: u64, data: &'a Bytes) -> impl Iterator<Item = (u64, Bytes)> + 'a {
        let end = at + data.len() as u64;
        let ranges = core::iter::successors(self.missing(at..end), move |last| self.missing(last.end..end));
        ranges.map(move |new| (new.start, data.slice((new.start - at) as usize..(new.end - at) as usize)))
    }

    /// Keeps what is new of the bytes at an offset.
    pub(super) fn insert(&mut self, at: u64, data: Bytes) {
        let end = at + data.len() as u64;
        let mut from = at;
        while let Some(new) = self.missing(from..end) {
            from = new.end;
            self.put(new.start, data.slice((new.start - at) as usize..(new.end - at) as usize));
        }
    }

    /// Puts bytes where there are none.
    fn put(&mut self, at: u64, data: Bytes) {
        self.bytes += data.len() as u64;
        let mut new = Run { bytes: data.len() as u64, parts: [owned(data)].into() };
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

    /// The next bytes, `most` at most, if they are here.
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
            self.runs.insert(self.next, rest);
        }
        Some(data)
    }
}

impl Run {
    /// Appends what follows. What is moved is the shorter of the two.
    fn join(&mut self, mut follows: Run) {
        if let (Some(last), Some(first)) = (self.parts.back_mut(), follows.parts.front())
            && last.len() + first.len() <= SMALL
        {
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

/// A small part of a packet does not keep all of the packet.
fn owned(data: Bytes) -> Bytes {
    if data.len() < SMALL { Bytes::copy_from_slice(&data) } else { data }
}

/// Bytes below which a copy costs less than what else is kept for them.
const SMALL: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What a stream holds at an offset.
    fn at(offset: u64) -> u8 {
        (offset % 251) as u8
    }

    fn bytes(from: u64, count: u64) -> Bytes {
        (from..from + count).map(at).collect()
    }

    /// A byte after the other, each there or not.
    #[derive(Default)]
    struct Model {
        next: u64,
        there: std::collections::BTreeSet<u64>,
    }

    impl Model {
        fn gaps(&self) -> bool {
            self.there.last().is_some_and(|last| last + 1 - self.next != self.there.len() as u64)
        }

        fn runs(&self) -> usize {
            self.there.iter().filter(|at| at.checked_sub(1).is_none_or(|before| !self.there.contains(&before))).count()
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u64, u64),
        Take(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0u64..6000, 0u64..2500).prop_map(|(at, count)| Step::Insert(at, count)),
            4 => (0u64..6000, 0u64..8).prop_map(|(at, count)| Step::Insert(at, count)),
            3 => (1usize..3000).prop_map(Step::Take),
        ]
    }

    proptest! {
        #[test]
        fn they_leave_as_a_plain_model_has_them(steps in prop::collection::vec(step(), 1..50)) {
            let (mut pieces, mut model) = (Pieces::default(), Model::default());
            for step in steps {
                match step {
                    Step::Insert(from, count) => {
                        pieces.insert(from, bytes(from, count));
                        model.there.extend((from..from + count).filter(|at| *at >= model.next));
                    }
                    Step::Take(most) => {
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

    /// A byte a packet, whatever the order: no more than two parts are kept for each kibibyte.
    #[test]
    fn tiny_ones_are_kept_together() {
        let count = 64 << 10;
        for order in [0, 1, 2] {
            let mut pieces = Pieces::default();
            for step in 0..count {
                let from = match order {
                    0 => step,
                    1 => count - 1 - step,
                    // Each second one, and then the others.
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
