//! What acknowledged bytes of the transport say of the content in them.

use std::collections::VecDeque;

/// Tells the transport's offsets from the content's: which byte has to be acknowledged for a byte of content to be.
///
/// Invariant: in the order of their ends, and bounded; an entry that is dropped is answered for by the one after it,
/// so the answer may come late and never early.
#[derive(Debug)]
pub(super) struct AckLog {
    ends: VecDeque<(u64, u64)>,
    content: u64,
    wire: u64,
}

impl AckLog {
    /// A log for a stream that has `wire` bytes behind it.
    pub(super) fn new(wire: u64) -> AckLog {
        AckLog { ends: VecDeque::new(), content: 0, wire }
    }

    /// `bytes` more bytes were given to the transport.
    pub(super) fn wire(&mut self, bytes: usize) {
        self.wire += bytes as u64;
    }

    /// They ended a record with `content` bytes.
    pub(super) fn record(&mut self, content: usize) {
        self.content += content as u64;
        if self.ends.len() == ENDS_MAX {
            let mut index = 0;
            self.ends.retain(|_| {
                index += 1;
                index % 2 == 0
            });
        }
        self.ends.push_back((self.content, self.wire));
    }

    /// Bytes of content so far.
    pub(super) fn content(&self) -> u64 {
        self.content
    }

    /// The transport's offset that stands for `offset` bytes of content.
    pub(super) fn wire_offset(&self, offset: u64) -> u64 {
        let at = self.ends.partition_point(|(content, _)| *content < offset);
        match self.ends.get(at) {
            _ if offset == 0 => 0,
            Some((_, wire)) => *wire,
            None => self.wire.saturating_add(offset.saturating_sub(self.content)),
        }
    }

    /// The content before `offset` is acknowledged.
    pub(super) fn forget(&mut self, offset: u64) {
        while self.ends.front().is_some_and(|(content, _)| *content <= offset) {
            self.ends.pop_front();
        }
    }
}

/// Ends kept: a kilobyte.
const ENDS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn content_is_never_said_to_be_acknowledged_early(lengths in prop::collection::vec(1usize..1000, 1..400)) {
            let mut log = AckLog::new(500);
            let mut exact = Vec::new();
            for length in lengths {
                log.wire(length + 22);
                log.record(length);
                exact.push((log.content, log.wire));
            }
            prop_assert!(log.ends.len() <= ENDS_MAX);
            prop_assert_eq!(log.wire_offset(0), 0);
            for (content, wire) in &exact {
                prop_assert!(log.wire_offset(*content) >= *wire);
                prop_assert!(log.wire_offset(*content) <= log.wire);
            }
            prop_assert_eq!(log.wire_offset(log.content), log.wire);
            prop_assert!(log.wire_offset(log.content + 1) > log.wire);
            prop_assert_eq!(log.wire_offset(u64::MAX), u64::MAX);
            log.forget(exact[0].0);
            prop_assert!(log.wire_offset(exact.last().unwrap().0) == log.wire);
        }
    }
}
