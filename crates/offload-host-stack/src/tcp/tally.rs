//! Send statistics of a connection.

use core::time::Duration;
use offload_api::SentBytes;
use offload_base::Instant;

#[derive(Debug)]
pub(super) struct SendTally {
    /// Number of retransmitted segments.
    retransmits: u64,
    /// Payload bytes given to the device.
    bytes: SentBytes,
    last: Instant,
}

impl Default for SendTally {
    fn default() -> SendTally {
        SendTally { retransmits: 0, bytes: SentBytes::default(), last: Instant::ZERO }
    }
}

impl SendTally {
    /// Records that `bytes` were sent. `again` marks a retransmission.
    pub(super) fn note_sent(&mut self, bytes: u64, again: bool, now: Instant) {
        self.bytes.total += bytes;
        self.bytes.again += if again { bytes } else { 0 };
        self.last = now;
    }

    /// Records `segments` retransmitted segments.
    pub(super) fn note_again(&mut self, segments: u64) {
        self.retransmits += segments;
    }

    pub(super) fn retransmits(&self) -> u64 {
        self.retransmits
    }

    pub(super) fn bytes(&self) -> SentBytes {
        self.bytes
    }

    /// Returns the time since the last transmission.
    pub(super) fn idle_time(&self, now: Instant) -> Duration {
        now - self.last
    }
}
