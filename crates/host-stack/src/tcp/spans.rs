//! Where the PDUs of a stream are.
//!
//! A PDU may be the content of several records, and what frames those lies between its parts; so where it ends is known when
//! all of it is queued.
//!
//! Invariant: spans are in the order of the stream and do not overlap; those that nobody needs any more are gone.

use offload_api::UnitTag;
use std::collections::VecDeque;

/// The PDUs that are queued, whole or in part, and needed.
#[derive(Debug, Default)]
pub(crate) struct Spans {
    spans: VecDeque<Span>,
}

/// One of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) number: u64,
    /// The position of its first byte.
    pub(crate) start: u64,
    /// The position behind what is queued of it.
    reached: u64,
    /// Bytes of it that are not.
    missing: u64,
}

impl Spans {
    /// `bytes` bytes of a unit are queued at `start`.
    pub(crate) fn extend(&mut self, unit: UnitTag, start: u64, bytes: u64) {
        let reached = start + bytes;
        let missing = u64::from(unit.len).saturating_sub(u64::from(unit.at) + bytes);
        match self.spans.back_mut().filter(|span| span.number == unit.number && !span.is_complete()) {
            Some(span) => (span.reached, span.missing) = (reached, missing),
            None => self.spans.push_back(Span { number: unit.number, start, reached, missing }),
        }
    }

    /// The one that the byte at `position` is of, or lies between the parts of.
    pub(crate) fn at(&self, position: u64) -> Option<&Span> {
        let index = self.spans.partition_point(|span| span.end() <= position);
        self.spans.get(index).filter(|span| span.start <= position)
    }

    /// Nothing before `position` will be asked for any more. Where the first one begins of which some is.
    pub(crate) fn forget_before(&mut self, position: u64) -> Option<u64> {
        while self.spans.front().is_some_and(|span| span.is_complete() && span.end() <= position) {
            self.spans.pop_front();
        }
        if self.spans.is_empty() {
            self.spans = VecDeque::new();
        }
        self.spans.front().map(|span| span.start)
    }
}

impl Span {
    /// The position behind its last byte; of one that is not complete, the first that it can be.
    pub(crate) fn end(&self) -> u64 {
        self.reached + self.missing
    }

    /// Whether all of it is queued.
    pub(crate) fn is_complete(&self) -> bool {
        self.missing == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_frames_records_lies_between_the_parts_of_a_pdu() {
        let mut spans = Spans::default();
        spans.extend(UnitTag { number: 4, at: 0, len: 30 }, 100, 10);
        assert_eq!(spans.at(105).map(|span| (span.start, span.end(), span.is_complete())), Some((100, 130, false)));
        spans.extend(UnitTag { number: 4, at: 10, len: 30 }, 132, 20);
        spans.extend(UnitTag { number: 5, at: 0, len: 7 }, 160, 7);
        assert_eq!(spans.at(99).map(|span| span.number), None);
        for position in [100, 110, 151] {
            assert_eq!(spans.at(position).map(|span| (span.number, span.end())), Some((4, 152)));
        }
        assert_eq!(spans.at(152).map(|span| span.number), None);
        assert_eq!((spans.forget_before(151), spans.forget_before(152)), (Some(100), Some(160)));
        assert_eq!((spans.forget_before(167), spans.spans.len()), (None, 0));
    }
}
