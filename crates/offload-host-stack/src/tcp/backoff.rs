//! Timeouts and probes without an answer.
//!
//! Invariant: `unanswered` counts the timeouts and probes since the last segment from the peer. The exponent may be
//! larger, because a peer that answers is never given up, even if it acknowledges nothing.

#[derive(Debug, Default)]
pub(super) struct Backoff {
    /// Consecutive timeouts.
    exponent: u32,
    /// Retransmission timeouts and window probes since the last segment from the peer.
    unanswered: u32,
}

impl Backoff {
    /// Returns the exponent of the timeout's factor, to base two.
    pub(super) fn exponent(&self) -> u32 {
        self.exponent
    }

    pub(super) fn unanswered(&self) -> u32 {
        self.unanswered
    }

    /// Resets the exponent, because bytes arrived, or the peer's window has opened.
    pub(super) fn reset(&mut self) {
        self.exponent = 0;
    }

    /// Records a segment from the peer.
    pub(super) fn note_answer(&mut self) {
        self.unanswered = 0;
    }

    /// Records a timeout. The exponent stays at most `most`.
    pub(super) fn note_timeout(&mut self, most: u32) {
        self.unanswered += 1;
        self.exponent = (self.exponent + 1).min(most);
    }

    /// Records a window probe, or the use of a small window.
    pub(super) fn note_probe(&mut self) {
        self.unanswered += 1;
    }
}
