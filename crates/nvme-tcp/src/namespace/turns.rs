//! Whose turn it is: what is read or written in one place goes one after the other, and nobody waits for it on a thread.
//!
//! Invariant: a turn that is held overlaps no other that is held, unless both only read. Who came first goes first, so
//! nobody waits for ever; and who needs two things gets both at once, so nobody waits in a circle.

use core::fmt;
use core::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What is held, and what waits.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    queue: Mutex<Queue>,
}

/// What something needs for itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    /// Bytes.
    pub(crate) bytes: Range<u64>,
    /// They are written.
    pub(crate) writes: bool,
    /// Storage is made durable: one at a time does that.
    pub(crate) flushes: bool,
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
    span: Span,
    /// What is to be done when its turn comes; `None`: it has come.
    then: Option<Then>,
}

struct Then(Box<dyn FnOnce(Turn) + Send>);

/// A span that is held, until this is dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    turns: Arc<Turns>,
    number: u64,
}

impl Turns {
    /// A turn for `span`. `None`: something is in its way; what `then` gives is called when that is over.
    pub(crate) fn take<F>(self: &Arc<Turns>, span: Span, then: impl FnOnce() -> F) -> Option<Turn>
    where
        F: FnOnce(Turn) + Send + 'static,
    {
        let mut queue = self.queue();
        let number = queue.next;
        queue.next += 1;
        let waits = queue.entries.iter().any(|other| other.span.is_in_the_way_of(&span));
        let then = waits.then(|| Then(Box::new(then())));
        queue.entries.push(Entry { number, span, then });
        (!waits).then(|| Turn { turns: self.clone(), number })
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// Those that wait for nothing any more.
    fn due(&mut self) -> Vec<(u64, Then)> {
        let mut due = Vec::new();
        for place in 0..self.entries.len() {
            let (before, rest) = self.entries.split_at_mut(place);
            let Some(entry) = rest.first_mut() else { break };
            if entry.then.is_some() && !before.iter().any(|other| other.span.is_in_the_way_of(&entry.span)) {
                due.extend(entry.then.take().map(|then| (entry.number, then)));
            }
        }
        due
    }
}

impl Span {
    fn is_in_the_way_of(&self, other: &Span) -> bool {
        let overlap = self.bytes.start < other.bytes.end && other.bytes.start < self.bytes.end;
        (overlap && (self.writes || other.writes)) || (self.flushes && other.flushes)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let due = {
            let mut queue = self.turns.queue();
            queue.entries.retain(|entry| entry.number != self.number);
            queue.due()
        };
        for (number, Then(then)) in due {
            then(Turn { turns: self.turns.clone(), number });
        }
    }
}

impl fmt::Debug for Then {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Then")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(bytes: Range<u64>, writes: bool) -> Span {
        Span { bytes, writes, flushes: false }
    }

    #[test]
    fn writers_wait_for_what_they_overlap_and_readers_for_writers() {
        let turns = Arc::<Turns>::default();
        let came = Arc::<Mutex<Vec<(u8, Turn)>>>::default();
        let take = |name: u8, span: Span| {
            let came = came.clone();
            turns.take(span, || move |turn| came.lock().unwrap().push((name, turn)))
        };
        let names = || came.lock().unwrap().iter().map(|(name, _)| *name).collect::<Vec<_>>();
        let first = take(1, span(0..10, false)).unwrap();
        let second = take(2, span(5..15, false)).expect("readers share");
        let beside = take(3, span(15..20, true)).unwrap();
        assert!(take(4, span(9..12, true)).is_none());
        assert!(take(5, span(10..11, false)).is_none(), "behind the writer that waits");
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
    fn one_at_a_time_flushes_whatever_it_writes() {
        let turns = Arc::<Turns>::default();
        let came = Arc::<Mutex<Vec<Turn>>>::default();
        let take = |span: Span| {
            let came = came.clone();
            turns.take(span, || move |turn| came.lock().unwrap().push(turn))
        };
        let flush = take(Span { flushes: true, ..Span::default() }).unwrap();
        assert!(take(Span { bytes: 0..4, writes: true, flushes: true }).is_none());
        let _beside = take(span(4..8, true)).expect("a flush is in no other's way");
        assert!(take(span(0..4, false)).is_none(), "behind the write that waits");
        drop(flush);
        assert_eq!(came.lock().unwrap().len(), 1);
    }
}
