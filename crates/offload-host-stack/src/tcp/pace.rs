//! The send rate limit of a connection. The device spaces the packets.

use core::num::NonZeroU64;
use core::time::Duration;

#[derive(Debug, Default)]
pub(super) struct PacingRate {
    /// Maximum rate in bytes per second, as the device counts them.
    rate: Option<NonZeroU64>,
    /// Whether the rate also follows from window and round-trip time.
    by_window: bool,
}

impl PacingRate {
    /// Returns whether the device is asked for a rate.
    pub(super) fn is_enabled(&self) -> bool {
        self.by_window || self.rate.is_some()
    }

    pub(super) fn set_by_window(&mut self, by_window: bool) {
        self.by_window = by_window;
    }

    pub(super) fn set_rate(&mut self, rate: Option<NonZeroU64>) {
        self.rate = rate;
    }

    /// Returns the rate for the device, in bytes per second. A window spread over its round trip causes no bursts that
    /// queues on the path would have to hold. The rate exceeds this by a fifth, so that the window stays the limit, and
    /// is twice as high in slow start (Linux's sk_pacing_rate). `None` before the first RTT sample.
    pub(super) fn rate_for(&self, window: u64, threshold: u64, smoothed: Option<Duration>) -> Option<NonZeroU64> {
        let by_window = smoothed.filter(|_| self.by_window).and_then(|smoothed| {
            // In slow start the window doubles per round trip, so the rate must not hold it back.
            let percent = if window < threshold / 2 { 200 } else { 120 };
            let rate = u128::from(window) * percent * 10_000_000 / smoothed.as_nanos().max(1);
            NonZeroU64::new(u64::try_from(rate).unwrap_or(u64::MAX))
        });
        match (by_window, self.rate) {
            (Some(rate), Some(most)) => Some(rate.min(most)),
            (one, other) => one.or(other),
        }
    }
}
