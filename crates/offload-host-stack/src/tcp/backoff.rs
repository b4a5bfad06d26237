//! What went without an answer.
//!
//! Invariant: `unanswered` counts what was sent since the peer last said anything; the exponent may be less, for a peer that
//! answers is not given up.

#[derive(Debug, Default)]
pub(super) struct Backoff {
    /// Timeouts in a row.
    exponent: u32,
    /// Retransmission timeouts and window probes since the peer last said anything.
    unanswered: u32,
}

impl Backoff {
    /// By which power of two the timeout is longer.
    pub(super) fn exponent(&self) -> u32 {
        self.exponent
    }

    pub(super) fn unanswered(&self) -> u32 {
        self.unanswered
    }

    /// Bytes arrived, or may arrive from now on.
    pub(super) fn reset(&mut self) {
        self.exponent = 0;
    }

    /// The peer said something.
    pub(super) fn hear(&mut self) {
        self.unanswered = 0;
    }

    /// Another timeout; the exponent stays below `most`.
    pub(super) fn note_timeout(&mut self, most: u32) {
        self.unanswered += 1;
        self.exponent = (self.exponent + 1).min(most);
    }

    /// A probe of the window is sent, or a small one is used.
    pub(super) fn note_probe(&mut self) {
        self.unanswered += 1;
    }
}
