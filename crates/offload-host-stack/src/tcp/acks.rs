//! Acknowledgments owed to the peer.
//!
//! Invariant: an acknowledgment that is due at once stays owed until a segment carries it. Any segment does, unless
//! SACK blocks or duplicates must be reported; only a pure ACK carries those.

use core::ops::Range;
use core::time::Duration;
use offload_base::Instant;

#[derive(Debug)]
pub(super) struct OwedAcks {
    /// Whether an acknowledgment must leave with the next packet, or alone at the end of this turn.
    owed: bool,
    /// Number of segments still to be acknowledged at once, at the start and after a gap.
    quick: u8,
    /// Whether the last advertised window was zero.
    window_closed: bool,
    /// Time of the last answer to an unacceptable segment.
    answered: Option<Instant>,
    /// Position after the last acknowledged byte.
    until: u64,
    /// Duplicate range not reported to the peer yet. Empty without a duplicate.
    duplicate: Range<u64>,
}

impl Default for OwedAcks {
    fn default() -> OwedAcks {
        OwedAcks { owed: false, quick: QUICK_ACKS, window_closed: false, answered: None, until: 0, duplicate: 0..0 }
    }
}

impl OwedAcks {
    /// Makes an acknowledgment due at once.
    pub(super) fn owe(&mut self) {
        self.owed = true;
    }

    /// Makes an acknowledgment due at once, if `at_once`.
    pub(super) fn owe_if(&mut self, at_once: bool) {
        self.owed |= at_once;
    }

    pub(super) fn is_owed(&self) -> bool {
        self.owed
    }

    /// Drops the owed acknowledgment, because the connection has ended.
    pub(super) fn drop_owed(&mut self) {
        self.owed = false;
    }

    /// Makes an acknowledgment due at once, for the following segments too, because a gap began or ended.
    pub(super) fn enter_quick_mode(&mut self) {
        self.quick = QUICK_ACKS;
        self.owed = true;
    }

    /// Returns whether segments are acknowledged at once.
    pub(super) fn is_in_quick_mode(&self) -> bool {
        self.quick > 0
    }

    /// Returns whether each segment gets its own acknowledgment. `holed` means that data are missing.
    pub(super) fn is_one_by_one(&self, holed: bool) -> bool {
        holed || !self.duplicate.is_empty() || self.quick > 0
    }

    /// Returns whether an unacceptable segment was answered less than `time` ago.
    pub(super) fn answered_within(&self, time: Duration, now: Instant) -> bool {
        self.answered.is_some_and(|at| now - at < time)
    }

    /// Records the answer to an unacceptable segment, due at once.
    pub(super) fn answer(&mut self, now: Instant) {
        self.answered = Some(now);
        self.owed = true;
    }

    /// Records the duplicate `range`, to be reported to the peer (RFC 2883).
    pub(super) fn note_duplicate(&mut self, range: Range<u64>) {
        self.duplicate = range;
    }

    /// Returns the duplicate range not reported yet.
    pub(super) fn duplicate(&self) -> Option<&Range<u64>> {
        Some(&self.duplicate).filter(|duplicate| !duplicate.is_empty())
    }

    /// Returns the position after the last acknowledged byte.
    pub(super) fn until(&self) -> u64 {
        self.until
    }

    /// Records that a segment acknowledged all bytes before `until`.
    pub(super) fn note_acknowledged_until(&mut self, until: u64) {
        self.until = until;
    }

    /// Records an advertised window, zero if `closed`. Returns whether that changed.
    pub(super) fn note_window(&mut self, closed: bool) -> bool {
        core::mem::replace(&mut self.window_closed, closed) != closed
    }

    /// Records that a segment carried an acknowledgment. A data segment carries no SACK blocks, so with blocks or
    /// duplicates to report, a pure ACK stays owed.
    pub(super) fn note_carried(&mut self, holed: bool) {
        // Quick mode ends after some segments, because the sender's window has grown by then.
        self.quick = self.quick.saturating_sub(1);
        if !holed && self.duplicate.is_empty() {
            self.owed = false;
        }
    }

    /// Records that a pure ACK carried all reports.
    pub(super) fn note_reported(&mut self) {
        self.duplicate = 0..0;
        self.owed = false;
    }
}

/// Linux's TCP_MAX_QUICKACKS.
const QUICK_ACKS: u8 = 16;
