//! Where the last records began: a device that lost its place asks late, about records long given out.
//!
//! Invariant: the starts are in the order of the stream, and each is that of a record that was opened with the
//! present key.

use offload_base::Seq;
use std::collections::VecDeque;

/// The starts and numbers of the last records.
#[derive(Debug, Default)]
pub(crate) struct RecordStarts {
    last: VecDeque<(Seq, u64)>,
}

impl RecordStarts {
    /// The record `number` began at `start`.
    pub(crate) fn note(&mut self, start: Seq, number: u64) {
        if self.last.len() == REMEMBERED {
            self.last.pop_front();
        }
        self.last.push_back((start, number));
    }

    /// The number of the record that began at `start`, if it is remembered.
    pub(crate) fn number_at(&self, start: Seq) -> Option<u64> {
        self.last.iter().rev().find(|(at, _)| *at == start).map(|(_, number)| *number)
    }

    /// All that are remembered, the oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Seq, u64)> {
        self.last.iter().copied()
    }

    /// Forgets all: a new key counts anew.
    pub(crate) fn clear(&mut self) {
        self.last.clear();
    }
}

/// A megabyte of full records. What is asked about before that gets a no, and the device asks again.
const REMEMBERED: usize = 64;
