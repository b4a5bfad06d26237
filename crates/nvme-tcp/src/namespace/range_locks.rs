//! Asynchronous range locks: conflicting reads and writes run one after the other, and no thread blocks.
//!
//! Invariants: a granted turn overlaps no other granted turn unless both only read. Conflicting turns are granted in
//! order of arrival, so every wait ends. A turn that needs a range and the flush gets both at once, so there are no
//! deadlocks.
//!
//! The bytes of all turns are divided into segments, each with its last writer and the readers after that writer. A new
//! turn has to wait only for these, because earlier turns end before them. The cost of a turn is therefore proportional
//! to its segments and to the turns it waits for, not to the number of all turns.

use core::fmt;
use core::ops::Range;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The queue of granted and waiting turns.
#[derive(Debug, Default)]
pub(crate) struct RangeLocks {
    queue: Mutex<RangeQueue>,
}

/// Resources that an operation locks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LockSpan {
    /// Range of bytes.
    pub(crate) bytes: Range<u64>,
    /// Whether the bytes are written.
    pub(crate) writes: bool,
    /// Whether the storage is flushed. Only one turn at a time may do that.
    pub(crate) flushes: bool,
}

#[derive(Debug, Default)]
struct RangeQueue {
    next: u64,
    /// Entries by number, in order of arrival.
    entries: BTreeMap<u64, RangeEntry>,
    /// Segments by start; they do not overlap.
    segments: BTreeMap<u64, RangeSegment>,
    /// The last entry that flushes.
    last_flush: Option<u64>,
    /// Segments and entries visited so far.
    #[cfg(test)]
    steps: usize,
}

#[derive(Debug)]
struct RangeEntry {
    span: LockSpan,
    /// Number of entries that this entry waits for.
    blockers: usize,
    /// Entries that wait for this entry, in order of arrival.
    behind: Vec<u64>,
    /// Callback for a waiting entry. `None` once the turn is granted.
    then: Option<LockCallback>,
}

/// A range of bytes with the same writer and readers, at least one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RangeSegment {
    end: u64,
    /// The last writer.
    writer: Option<u64>,
    /// Readers after the last writer, in order of arrival.
    readers: Vec<u64>,
}

struct LockCallback(Box<dyn FnOnce(RangeLock) + Send>);

/// A granted span; released on drop.
#[derive(Debug)]
pub(crate) struct RangeLock {
    turns: Arc<RangeLocks>,
    number: u64,
}

impl RangeLocks {
    /// Requests a turn for `span`. Returns it if nothing conflicts. Otherwise returns `None`, and the callback made by
    /// `then` is called with the turn later.
    pub(crate) fn take<F>(self: &Arc<RangeLocks>, span: LockSpan, then: impl FnOnce() -> F) -> Option<RangeLock>
    where
        F: FnOnce(RangeLock) + Send + 'static,
    {
        let mut queue = self.queue();
        let number = queue.next;
        queue.next += 1;
        let blockers = queue.add_entry(number, &span);
        for blocker in &blockers {
            if let Some(blocker) = queue.entries.get_mut(blocker) {
                blocker.behind.push(number);
            }
        }
        let (blockers, waits) = (blockers.len(), !blockers.is_empty());
        // The callback is created only if the turn has to wait.
        let then = waits.then(|| LockCallback(Box::new(then())));
        queue.entries.insert(number, RangeEntry { span, blockers, behind: Vec::new(), then });
        (!waits).then(|| RangeLock { turns: self.clone(), number })
    }

    fn queue(&self) -> MutexGuard<'_, RangeQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RangeQueue {
    /// Enters `number` into its segments. Returns the entries it has to wait for.
    fn add_entry(&mut self, number: u64, span: &LockSpan) -> Vec<u64> {
        let mut blockers = Vec::new();
        if span.flushes {
            blockers.extend(self.last_flush.replace(number));
        }
        if !span.bytes.is_empty() {
            self.split_segment(span.bytes.start);
            self.split_segment(span.bytes.end);
            match span.writes {
                true => self.write(number, &span.bytes, &mut blockers),
                false => self.read(number, &span.bytes, &mut blockers),
            }
        }
        self.count(blockers.len());
        blockers.sort_unstable();
        blockers.dedup();
        blockers
    }

    fn write(&mut self, number: u64, bytes: &Range<u64>, blockers: &mut Vec<u64>) {
        // Readers of a segment came after its writer and wait for it, so waiting for the readers is enough.
        for (_, segment) in self.segments.extract_if(bytes.clone(), |_, _| true) {
            match segment.readers.is_empty() {
                true => blockers.extend(segment.writer),
                false => blockers.extend(segment.readers),
            }
        }
        self.segments.insert(bytes.start, RangeSegment { end: bytes.end, writer: Some(number), readers: Vec::new() });
    }

    fn read(&mut self, number: u64, bytes: &Range<u64>, blockers: &mut Vec<u64>) {
        let (mut at, mut seen, mut gaps) = (bytes.start, 0, Vec::new());
        for (start, segment) in self.segments.range_mut(bytes.clone()) {
            seen += 1;
            if *start > at {
                gaps.push(at..*start);
            }
            at = segment.end;
            blockers.extend(segment.writer);
            segment.readers.push(number);
        }
        if at < bytes.end {
            gaps.push(at..bytes.end);
        }
        self.count(seen + gaps.len());
        for gap in gaps {
            self.segments.insert(gap.start, RangeSegment { end: gap.end, writer: None, readers: vec![number] });
        }
    }

    /// Removes `number`. Returns the callbacks of entries that no longer wait, in order of arrival.
    fn remove_entry(&mut self, number: u64) -> Vec<(u64, LockCallback)> {
        let Some(RangeEntry { span, behind, .. }) = self.entries.remove(&number) else { return Vec::new() };
        self.last_flush.take_if(|last| *last == number);
        let mut seen = behind.len();
        let bytes = if span.bytes.is_empty() { 0..0 } else { span.bytes.clone() };
        // Segments without a writer and readers are removed, so the map never holds more than the current turns need.
        let left = self.segments.extract_if(bytes, |_, segment| {
            seen += 1;
            segment.writer.take_if(|writer| *writer == number);
            if let Ok(place) = segment.readers.binary_search(&number) {
                segment.readers.remove(place);
            }
            segment.writer.is_none() && segment.readers.is_empty()
        });
        left.for_each(drop);
        self.count(seen);
        self.join(span.bytes.start);
        self.join(span.bytes.end);
        let mut due = Vec::new();
        for number in behind {
            let Some(entry) = self.entries.get_mut(&number) else { continue };
            entry.blockers -= 1;
            if entry.blockers == 0 {
                due.extend(entry.then.take().map(|then| (number, then)));
            }
        }
        due
    }

    /// Divides the segment around `at`, if there is one.
    fn split_segment(&mut self, at: u64) {
        let around = self.segments.range_mut(..at).next_back();
        let Some((_, segment)) = around.filter(|(_, segment)| segment.end > at) else { return };
        let second = segment.clone();
        segment.end = at;
        self.count(second.readers.len());
        self.segments.insert(at, second);
    }

    /// Joins the two segments that touch at `at`, if they have the same writer and readers.
    fn join(&mut self, at: u64) {
        let Some(second) = self.segments.get(&at) else { return };
        let before = self.segments.range(..at).next_back();
        let Some((start, first)) = before.filter(|(_, first)| first.end == at) else { return };
        if first.writer == second.writer && first.readers == second.readers {
            let (start, end) = (*start, second.end);
            self.segments.remove(&at);
            self.segments.entry(start).and_modify(|first| first.end = end);
        }
    }

    fn count(&mut self, _steps: usize) {
        #[cfg(test)]
        {
            self.steps += _steps;
        }
    }
}

impl Drop for RangeLock {
    fn drop(&mut self) {
        // Callbacks run without the lock, because they may request further turns.
        let due = self.turns.queue().remove_entry(self.number);
        for (number, LockCallback(then)) in due {
            then(RangeLock { turns: self.turns.clone(), number });
        }
    }
}

impl fmt::Debug for LockCallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LockCallback")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    impl LockSpan {
        fn conflicts_with(&self, other: &LockSpan) -> bool {
            let overlap = self.bytes.start.max(other.bytes.start) < self.bytes.end.min(other.bytes.end);
            (overlap && (self.writes || other.writes)) || (self.flushes && other.flushes)
        }
    }

    /// A reference model that compares each span with all others.
    #[derive(Default)]
    struct LockModel {
        /// Entries in order of arrival, and whether their turns were granted.
        entries: Vec<(u64, LockSpan, bool)>,
    }

    impl LockModel {
        /// Returns the entries granted now.
        fn due(&mut self) -> Vec<u64> {
            let mut due = Vec::new();
            for place in 0..self.entries.len() {
                let (before, rest) = self.entries.split_at_mut(place);
                let (number, span, has_come) = &mut rest[0];
                if !*has_come && !before.iter().any(|(_, other, _)| other.conflicts_with(span)) {
                    *has_come = true;
                    due.push(*number);
                }
            }
            due
        }
    }

    /// Granted turns, in order.
    type GrantedLocks = Arc<Mutex<Vec<(u64, RangeLock)>>>;

    fn take(turns: &Arc<RangeLocks>, came: &GrantedLocks, number: u64, span: LockSpan) {
        let later = came.clone();
        let turn = turns.take(span, || move |turn| later.lock().unwrap().push((number, turn)));
        came.lock().unwrap().extend(turn.map(|turn| (number, turn)));
    }

    fn spans() -> impl Strategy<Value = LockSpan> {
        let bytes = prop_oneof![(0u64..40, 0u64..6), (0u64..40, 0u64..40)];
        (bytes, any::<bool>(), prop::bool::weighted(0.1)).prop_map(|((start, length), writes, flushes)| LockSpan {
            bytes: start..start + length,
            writes,
            flushes,
        })
    }

    proptest! {
        #[test]
        fn turns_match_the_reference_model(
            steps in prop::collection::vec(prop_oneof![3 => spans().prop_map(Ok), 2 => any::<usize>().prop_map(Err)], 1..120)
        ) {
            let (turns, came) = (Arc::<RangeLocks>::default(), GrantedLocks::default());
            let (mut model, mut next) = (LockModel::default(), 0);
            let mut held = Vec::new();
            let end = |held: &mut Vec<(u64, RangeLock)>, model: &mut LockModel, place: usize| {
                let (number, turn) = held.remove(place);
                model.entries.retain(|(other, ..)| *other != number);
                drop(turn);
            };
            let check = |held: &mut Vec<(u64, RangeLock)>, model: &mut LockModel| {
                let now = core::mem::take(&mut *came.lock().unwrap());
                let numbers: Vec<u64> = now.iter().map(|(number, _)| *number).collect();
                held.extend(now);
                (numbers, model.due())
            };
            for step in steps {
                match step {
                    Ok(span) => {
                        model.entries.push((next, span.clone(), false));
                        take(&turns, &came, next, span);
                        next += 1;
                    }
                    Err(_) if held.is_empty() => {}
                    Err(place) => {
                        let place = place % held.len();
                        end(&mut held, &mut model, place);
                    }
                }
                // The locks and the model must grant the same turns after each step.
                let (numbers, expected) = check(&mut held, &mut model);
                prop_assert_eq!(numbers, expected);
            }
            while !held.is_empty() {
                end(&mut held, &mut model, 0);
                let (numbers, expected) = check(&mut held, &mut model);
                prop_assert_eq!(numbers, expected);
            }
            let queue = turns.queue();
            prop_assert!(model.entries.is_empty() && queue.entries.is_empty());
            prop_assert!(queue.segments.is_empty() && queue.last_flush.is_none());
        }
    }

    /// Returns the number of steps for `count` concurrent turns.
    fn steps(count: u64, span: impl Fn(u64) -> LockSpan) -> usize {
        let (turns, came) = (Arc::<RangeLocks>::default(), GrantedLocks::default());
        (0..count).for_each(|number| take(&turns, &came, number, span(number)));
        let mut ended = 0;
        while let Some((_, turn)) = { came.lock().unwrap().pop() } {
            drop(turn);
            ended += 1;
        }
        assert_eq!(ended, count);
        turns.queue().steps
    }

    #[test]
    fn cost_of_a_turn_is_constant() {
        type SpanRow = fn(u64) -> LockSpan;
        let rows: [(&str, SpanRow); 5] = [
            ("apart", |number| span(number * 8..number * 8 + 8, true)),
            ("in one place", |_| span(0..8, true)),
            ("readers in one place", |_| span(0..8, false)),
            ("by turns in one place", |number| span(0..8, number % 2 == 0)),
            ("overlapping", |number| span(number * 4..number * 4 + 8, number % 3 == 0)),
        ];
        for (name, row) in rows {
            for count in [512, 8192] {
                let steps = steps(count, row);
                assert!(steps <= 8 * count as usize, "{name}: {steps} steps for {count} turns");
            }
        }
    }

    #[test]
    fn unneeded_segments_are_joined() {
        let (turns, came) = (Arc::<RangeLocks>::default(), GrantedLocks::default());
        take(&turns, &came, 0, span(0..100, false));
        for number in 1..50 {
            take(&turns, &came, number, span(number * 2..number * 2 + 1, false));
            came.lock().unwrap().pop();
        }
        assert_eq!(turns.queue().segments.len(), 1);
    }

    fn span(bytes: Range<u64>, writes: bool) -> LockSpan {
        LockSpan { bytes, writes, flushes: false }
    }

    #[test]
    fn writers_exclude_overlapping_turns() {
        let turns = Arc::<RangeLocks>::default();
        let came = Arc::<Mutex<Vec<(u8, RangeLock)>>>::default();
        let take = |name: u8, span: LockSpan| {
            let came = came.clone();
            turns.take(span, || move |turn| came.lock().unwrap().push((name, turn)))
        };
        let names = || came.lock().unwrap().iter().map(|(name, _)| *name).collect::<Vec<_>>();
        let first = take(1, span(0..10, false)).unwrap();
        let second = take(2, span(5..15, false)).expect("readers share");
        let beside = take(3, span(15..20, true)).unwrap();
        assert!(take(4, span(9..12, true)).is_none());
        assert!(take(5, span(10..11, false)).is_none(), "queued behind the waiting writer");
        assert!(take(6, span(19..30, false)).is_none());
        drop(first);
        assert_eq!(names(), []);
        drop(beside);
        assert_eq!(names(), [6]);
        drop(second);
        assert_eq!(names(), [6, 4]);
        let (_, fourth) = came.lock().unwrap().remove(1);
        drop(fourth);
        assert_eq!(names(), [6, 5]);
    }

    #[test]
    fn only_one_turn_flushes_at_a_time() {
        let turns = Arc::<RangeLocks>::default();
        let came = Arc::<Mutex<Vec<RangeLock>>>::default();
        let take = |span: LockSpan| {
            let came = came.clone();
            turns.take(span, || move |turn| came.lock().unwrap().push(turn))
        };
        let flush = take(LockSpan { flushes: true, ..LockSpan::default() }).unwrap();
        assert!(take(LockSpan { bytes: 0..4, writes: true, flushes: true }).is_none());
        let _second_lock = take(span(4..8, true)).expect("a flush blocks only other flushes");
        assert!(take(span(0..4, false)).is_none(), "queued behind the waiting write");
        drop(flush);
        assert_eq!(came.lock().unwrap().len(), 1);
    }
}
