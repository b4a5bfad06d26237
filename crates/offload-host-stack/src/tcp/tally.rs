//! What a connection has sent, in figures.

use core::time::Duration;
use offload_api::SentBytes;
use offload_base::Instant;

#[derive(Debug)]
pub(super) struct Tally {
    /// Retransmitted segments in all.
    retransmits: u64,
    /// Payload bytes handed to the device.
    bytes: SentBytes,
    last: Instant,
}

impl Default for Tally {
    fn default() -> Tally {
        Tally { retransmits: 0, bytes: SentBytes::default(), last: Instant::ZERO }
    }
}

impl Tally {
    /// `bytes` have left; `again`: once more.
    pub(super) fn note_sent(&mut self, bytes: u64, again: bool, now: Instant) {
        self.bytes.total += bytes;
        self.bytes.again += if again { bytes } else { 0 };
        self.last = now;
    }

    /// In `segments` segments, that left once more.
    pub(super) fn note_again(&mut self, segments: u64) {
        self.retransmits += segments;
    }

    pub(super) fn retransmits(&self) -> u64 {
        self.retransmits
    }

    pub(super) fn bytes(&self) -> SentBytes {
        self.bytes
    }

    /// For how long nothing was sent.
    pub(super) fn rest(&self, now: Instant) -> Duration {
        now - self.last
    }
}
