//! Loss detection by time: RACK (RFC 8985).
//!
//! Whatever was sent before something that has arrived, by more than the reordering window, is lost; so lost
//! retransmissions and losses near the end are found, and data that merely come late are not. As long as no
//! reordering was seen, three segments' worth of selective acknowledgments are enough (RFC 6675's rule).

use super::flight::{Flight, Overdue, Sent};
use super::rtt::RttEstimator;
use core::time::Duration;
use offload_base::Instant;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Rack {
    /// Order and end of the transmission sent last among those that arrived.
    latest: Option<(u64, u64)>,
    /// The RTT it had.
    rtt: Duration,
    /// The end of what arrived furthest.
    forward: u64,
    reordering_seen: bool,
    window_multiplier: u32,
    /// Recoveries until the multiplier falls back to one.
    window_persist: u32,
    /// Further duplicates reported before this position is acknowledged are of the same round trip.
    round_end: u64,
}

impl Rack {
    pub(crate) fn new() -> Rack {
        Rack {
            latest: None,
            rtt: Duration::ZERO,
            forward: 0,
            reordering_seen: false,
            window_multiplier: 1,
            window_persist: 0,
            round_end: 0,
        }
    }

    /// The end of what arrived furthest.
    pub(crate) fn forward(&self) -> u64 {
        self.forward
    }

    /// The peer has `sent`; `forward` is [`Self::forward`] before this ACK; `original`: it is known that what arrived
    /// was not the retransmission. Returns whether it came late, though
    /// it had been sent only once: the network reorders.
    pub(crate) fn on_delivered(
        &mut self,
        now: Instant,
        sent: &Sent,
        forward: u64,
        original: bool,
        rtt: &RttEstimator,
    ) -> bool {
        self.forward = self.forward.max(sent.end);
        let late = !sent.retransmitted && sent.end < forward;
        self.reordering_seen |= late;
        let took = now - sent.sent_at;
        // RFC 8985 6.2 step 2: faster than possible, so it is the original that arrived. Half of the smoothed RTT is a
        // better bound than the least RTT where queues are long: to take the original for its retransmission is to
        // take all that was sent in between for lost.
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

    /// Something was sent again that had arrived, as a duplicate report or a timestamp shows: the reordering window
    /// was too small. Grows it once a round trip.
    pub(crate) fn on_too_early(&mut self, acknowledged: u64, next: u64) {
        if acknowledged >= self.round_end {
            self.round_end = next;
            self.window_multiplier = (self.window_multiplier + 1).min(MAX_MULTIPLIER);
        }
        self.window_persist = PERSIST_RECOVERIES;
        self.reordering_seen = true;
    }

    /// A recovery ended.
    pub(crate) fn on_recovered(&mut self) {
        self.window_persist = self.window_persist.saturating_sub(1);
        if self.window_persist == 0 {
            self.window_multiplier = 1;
        }
    }

    /// Marks what is lost at `now`. `recovering`: a recovery is under way; `mss` in bytes.
    pub(crate) fn detect(
        &self,
        now: Instant,
        flight: &mut Flight,
        rtt: &RttEstimator,
        recovering: bool,
        mss: u64,
    ) -> Overdue {
        let Some(latest) = self.latest else { return Overdue::default() };
        let window = self.reordering_window(flight, rtt, recovering, mss);
        flight.expire(latest, now, |sent_at| sent_at + self.rtt + window)
    }

    /// RFC 8985 6.2 step 4.
    fn reordering_window(&self, flight: &Flight, rtt: &RttEstimator, recovering: bool, mss: u64) -> Duration {
        if !self.reordering_seen && (recovering || flight.sacked() >= DUPLICATE_THRESHOLD * mss) {
            return Duration::ZERO;
        }
        let (Some(min), Some(smoothed)) = (rtt.min(), rtt.smoothed()) else { return Duration::ZERO };
        (min * self.window_multiplier / 4).min(smoothed)
    }
}

/// RFC 5681's three duplicate ACKs.
pub(crate) const DUPLICATE_THRESHOLD: u64 = 3;
/// RFC 8985 6.2: how many recoveries a grown window lasts.
const PERSIST_RECOVERIES: u32 = 16;
/// The window never exceeds the smoothed RTT; more steps than this change nothing on most paths.
const MAX_MULTIPLIER: u32 = 255;
