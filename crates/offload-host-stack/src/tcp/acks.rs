//! What this side owes the peer to say of what it received.
//!
//! Invariant: whatever was to be acknowledged at once stays owed until a segment has said it: any segment, or one of its own
//! if there are blocks or duplicates to report.

use core::ops::Range;
use core::time::Duration;
use offload_base::Instant;

#[derive(Debug)]
pub(super) struct Acks {
    /// One is to leave with the next packet, or alone at the end of this turn.
    owed: bool,
    /// Segments that are still acknowledged at once, at the beginning and after a hole.
    quick: u8,
    /// The last window told was zero.
    window_closed: bool,
    /// When a segment that fits nowhere was answered last.
    answered: Option<Instant>,
    /// The first position after what was acknowledged last.
    until: u64,
    /// What came twice, and the peer does not know yet; empty: nothing did.
    duplicate: Range<u64>,
}

impl Default for Acks {
    fn default() -> Acks {
        Acks { owed: false, quick: QUICK_ACKS, window_closed: false, answered: None, until: 0, duplicate: 0..0 }
    }
}

impl Acks {
    /// The peer is to hear at once.
    pub(super) fn owe(&mut self) {
        self.owed = true;
    }

    /// It is, if `at_once`.
    pub(super) fn owe_if(&mut self, at_once: bool) {
        self.owed |= at_once;
    }

    pub(super) fn is_owed(&self) -> bool {
        self.owed
    }

    /// The connection is over.
    pub(super) fn drop_owed(&mut self) {
        self.owed = false;
    }

    /// A hole, or the end of one: the peer is to hear at once, and of the next segments too.
    pub(super) fn hurry(&mut self) {
        self.quick = QUICK_ACKS;
        self.owed = true;
    }

    /// Whether segments are acknowledged at once.
    pub(super) fn is_hurried(&self) -> bool {
        self.quick > 0
    }

    /// Whether each segment gets an acknowledgment of its own; `holed`: something is missing.
    pub(super) fn is_one_by_one(&self, holed: bool) -> bool {
        holed || !self.duplicate.is_empty() || self.quick > 0
    }

    /// Whether a segment that fits nowhere was answered less than `time` ago.
    pub(super) fn answered_within(&self, time: Duration, now: Instant) -> bool {
        self.answered.is_some_and(|at| now - at < time)
    }

    /// One is answered now.
    pub(super) fn answer(&mut self, now: Instant) {
        self.answered = Some(now);
        self.owed = true;
    }

    /// The peer sent `range` again, and is told so (RFC 2883).
    pub(super) fn note_duplicate(&mut self, range: Range<u64>) {
        self.duplicate = range;
    }

    /// What came twice and was not reported.
    pub(super) fn duplicate(&self) -> Option<&Range<u64>> {
        Some(&self.duplicate).filter(|duplicate| !duplicate.is_empty())
    }

    /// The first position after what was acknowledged last.
    pub(super) fn until(&self) -> u64 {
        self.until
    }

    /// A segment that acknowledged all before `until` has left.
    pub(super) fn note_told(&mut self, until: u64) {
        self.until = until;
    }

    /// It told of a window, which was zero if `closed`. True if that changed.
    pub(super) fn note_window(&mut self, closed: bool) -> bool {
        core::mem::replace(&mut self.window_closed, closed) != closed
    }

    /// It was any segment. Data carry no blocks: what there is to report goes in an acknowledgment of its own.
    pub(super) fn note_carried(&mut self, holed: bool) {
        self.quick = self.quick.saturating_sub(1);
        if !holed && self.duplicate.is_empty() {
            self.owed = false;
        }
    }

    /// It was an acknowledgment with all that there is to report.
    pub(super) fn note_reported(&mut self) {
        self.duplicate = 0..0;
        self.owed = false;
    }
}

/// Linux's TCP_MAX_QUICKACKS.
const QUICK_ACKS: u8 = 16;
