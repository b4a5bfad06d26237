//! Maps acknowledged bytes of the transport to content.

use std::collections::VecDeque;

/// Maps content offsets to transport offsets: the transport bytes that must be acknowledged for a content byte to count
/// as acknowledged.
///
/// Invariant: entries are ordered and bounded in number. The entry after a dropped one takes its place, so an
/// acknowledgment may be reported late but never early.
#[derive(Debug)]
pub(super) struct AckLog {
    ends: VecDeque<(u64, u64)>,
    content: u64,
    wire: u64,
}

impl AckLog {
    /// Creates a log for a stream that has sent `wire` bytes already.
    pub(super) fn new(wire: u64) -> AckLog {
        AckLog { ends: VecDeque::new(), content: 0, wire }
    }

    /// Notes that `bytes` bytes were given to the transport.
    pub(super) fn wire(&mut self, bytes: usize) {
        self.wire += bytes as u64;
    }

    /// Notes that these bytes completed a record with `content` bytes.
    pub(super) fn record(&mut self, content: usize) {
        // Every second entry is dropped. The remaining entries have later wire offsets, which errs on the safe side.
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

    /// Returns the number of content bytes so far.
    pub(super) fn content(&self) -> u64 {
        self.content
    }

    /// Returns the transport offset that corresponds to the content offset `offset`.
    pub(super) fn wire_offset(&self, offset: u64) -> u64 {
        let at = self.ends.partition_point(|(content, _)| *content < offset);
        match self.ends.get(at) {
            _ if offset == 0 => 0,
            // The first record that ends at or after `offset` holds its last byte.
            Some((_, wire)) => *wire,
            None => self.wire.saturating_add(offset.saturating_sub(self.content)),
        }
    }

    /// Forgets the entries before `offset`, which are acknowledged.
    pub(super) fn forget(&mut self, offset: u64) {
        while self.ends.front().is_some_and(|(content, _)| *content <= offset) {
            self.ends.pop_front();
        }
    }
}

/// Maximum number of entries: a kilobyte.
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
