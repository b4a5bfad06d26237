//! Where the last records began: a device that lost its place asks late, about records long given out.
//!
//! Invariant: the starts are in the order of the stream, and each is that of a record that was opened with the
//! present key; no record is missing between them, so one number says them all.

use offload_base::Seq;
use std::collections::VecDeque;

/// The starts and numbers of the last records.
#[derive(Debug, Default)]
pub(crate) struct RecordStarts {
    last: VecDeque<Seq>,
    /// The number of the record that begins behind them.
    next: u64,
}

impl RecordStarts {
    /// The record `number` began at `start`.
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

    /// The number of the record that began at `start`, if it is remembered.
    pub(crate) fn number_at(&self, start: Seq) -> Option<u64> {
        self.iter().rev().find(|(at, _)| *at == start).map(|(_, number)| number)
    }

    /// All that are remembered, the oldest first.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (Seq, u64)> {
        let first = self.next.wrapping_sub(self.last.len() as u64);
        self.last.iter().enumerate().map(move |(index, start)| (*start, first.wrapping_add(index as u64)))
    }

    /// Forgets all: a new key counts anew.
    pub(crate) fn clear(&mut self) {
        self.last.clear();
    }
}

/// A megabyte of full records. What is asked about before that gets a no, and the device asks again.
const REMEMBERED: usize = 64;
