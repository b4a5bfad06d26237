//! Time-based loss detection: RACK (RFC 8985).
//!
//! Data are lost if they were sent earlier than delivered data, by more than the reordering window. This rule finds
//! lost retransmissions and losses near the end, and tolerates late data. Before any reordering was seen, three
//! segments of selectively acknowledged data suffice (RFC 6675's rule).

use super::flight::{FlightScoreboard, OverdueData, SentRange};
use super::rtt::RttEstimator;
use core::time::Duration;
use offload_base::Instant;

#[derive(Clone, Copy, Debug)]
pub(crate) struct RackDetector {
    /// Order and end of the delivered transmission that was sent last.
    latest: Option<(u64, u64)>,
    /// Round-trip time of that transmission.
    rtt: Duration,
    /// End of the furthest delivered data.
    forward: u64,
    reordering_seen: bool,
    window_multiplier: u32,
    /// Recoveries until the multiplier returns to one.
    window_persist: u32,
    /// Position up to which further duplicate reports belong to the same round trip.
    round_end: u64,
}

impl RackDetector {
    pub(crate) fn new() -> RackDetector {
        RackDetector {
            latest: None,
            rtt: Duration::ZERO,
            forward: 0,
            reordering_seen: false,
            window_multiplier: 1,
            window_persist: 0,
            round_end: 0,
        }
    }

    /// Returns the end of the furthest delivered data.
    pub(crate) fn forward(&self) -> u64 {
        self.forward
    }

    /// Records the delivery of `sent`. `forward` is [`Self::forward`] before this ACK. `original` means that the
    /// arrived copy is known not to be the retransmission. Returns whether data sent once arrived late, so that the
    /// network reorders.
    pub(crate) fn on_delivered(
        &mut self,
        now: Instant,
        sent: &SentRange,
        forward: u64,
        original: bool,
        rtt: &RttEstimator,
    ) -> bool {
        self.forward = self.forward.max(sent.end);
        let late = !sent.retransmitted && sent.end < forward;
        self.reordering_seen |= late;
        let took = now - sent.sent_at;
        // RFC 8985 6.2 step 2: faster than the minimum RTT, so the original arrived. With long queues, half of the
        // smoothed RTT is a better bound. To mistake the original for its retransmission would mean to declare lost all
        // data sent in between.
        let least = rtt.min().max(rtt.smoothed().map(|smoothed| smoothed / 2));
        if sent.retransmitted && (original || least.is_none_or(|least| took < least)) {
            return late;
        }
        if self.latest.is_none_or(|latest| (sent.order, sent.end) > latest) {
            self.latest = Some((sent.order, sent.end));
            self.rtt = took;
        }
        late
    }

    /// Widens the reordering window, at most once per round trip, because a duplicate report or a timestamp showed a
    /// needless retransmission.
    pub(crate) fn widen_reordering_window(&mut self, acknowledged: u64, next: u64) {
        if acknowledged >= self.round_end {
            self.round_end = next;
            self.window_multiplier = (self.window_multiplier + 1).min(MAX_MULTIPLIER);
        }
        self.window_persist = PERSIST_RECOVERIES;
        self.reordering_seen = true;
    }

    /// Records the end of a recovery.
    pub(crate) fn on_recovered(&mut self) {
        self.window_persist = self.window_persist.saturating_sub(1);
        if self.window_persist == 0 {
            self.window_multiplier = 1;
        }
    }

    /// Marks the data that are lost at `now`. `recovering` means that a recovery is under way; `mss` is in bytes.
    pub(crate) fn detect(
        &self,
        now: Instant,
        flight: &mut FlightScoreboard,
        rtt: &RttEstimator,
        recovering: bool,
        mss: u64,
    ) -> OverdueData {
        // Before the first delivery no transmission order is known.
        let Some(latest) = self.latest else { return OverdueData::default() };
        let window = self.reordering_window(flight, rtt, recovering, mss);
        flight.expire(latest, now, |sent_at| sent_at + self.rtt + window)
    }

    /// Returns the reordering window (RFC 8985 6.2 step 4).
    fn reordering_window(&self, flight: &FlightScoreboard, rtt: &RttEstimator, recovering: bool, mss: u64) -> Duration {
        // Without observed reordering, three later segments are sufficient evidence for a loss.
        if !self.reordering_seen && (recovering || flight.sacked() >= DUPLICATE_THRESHOLD * mss) {
            return Duration::ZERO;
        }
        let (Some(min), Some(smoothed)) = (rtt.min(), rtt.smoothed()) else { return Duration::ZERO };
        (min * self.window_multiplier / 4).min(smoothed)
    }
}

/// RFC 5681's three duplicate ACKs.
pub(crate) const DUPLICATE_THRESHOLD: u64 = 3;
/// Number of recoveries for which a widened window lasts (RFC 8985 6.2).
const PERSIST_RECOVERIES: u32 = 16;
/// Maximum multiplier. The window never exceeds the smoothed RTT, so a larger one makes no difference on most paths.
const MAX_MULTIPLIER: u32 = 255;
