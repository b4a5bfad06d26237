//! Positions of recent records. A device that lost synchronization asks late, about records already released.
//!
//! Invariant: the positions are in stream order, each is the start of a record opened with the present key, and the
//! records are consecutive, so that one number determines all of them.

use offload_base::Seq;
use std::collections::VecDeque;

/// The positions and numbers of recent records.
#[derive(Debug, Default)]
pub(crate) struct RecordStarts {
    last: VecDeque<Seq>,
    /// The number of the next record.
    next: u64,
}

impl RecordStarts {
    /// Notes that record `number` began at `start`.
    pub(crate) fn note(&mut self, start: Seq, number: u64) {
        if self.next != number {
            self.last.clear();
        }
        if self.last.len() == REMEMBERED {
            self.last.pop_front();
        }
        self.last.push_back(start);
        self.next = number.wrapping_add(1);
    }

    /// Returns the number of the record that began at `start`, if that record is remembered.
    pub(crate) fn number_at(&self, start: Seq) -> Option<u64> {
        self.iter().rev().find(|(at, _)| *at == start).map(|(_, number)| number)
    }

    /// Returns all remembered records, oldest first.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (Seq, u64)> {
        let first = self.next.wrapping_sub(self.last.len() as u64);
        self.last.iter().enumerate().map(move |(index, start)| (*start, first.wrapping_add(index as u64)))
    }

    /// Forgets all records, because a new key restarts the numbers.
    pub(crate) fn clear(&mut self) {
        self.last.clear();
    }
}

/// Records remembered: a megabyte of full records. A question about older records gets a negative answer, and the
/// device asks again.
const REMEMBERED: usize = 64;
