//! How fast data may leave at most. The device spaces the packets.

use core::num::NonZeroU64;
use core::time::Duration;

#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Bytes a second at most, as the device counts them; it keeps to that.
    rate: Option<NonZeroU64>,
    /// No faster than window and round-trip time ask for, either.
    by_window: bool,
}

impl Pace {
    /// Whether the device is asked to keep to a rate.
    pub(super) fn is_asked(&self) -> bool {
        self.by_window || self.rate.is_some()
    }

    pub(super) fn set_by_window(&mut self, by_window: bool) {
        self.by_window = by_window;
    }

    pub(super) fn set_rate(&mut self, rate: Option<NonZeroU64>) {
        self.rate = rate;
    }

    /// The bytes a second that the device is to keep to. A window spread over its round trip goes out without bursts that
    /// queues on the way would have to hold; a little faster, so that it is the window that limits, and twice as fast while
    /// it doubles (Linux's sk_pacing_rate). Before the first RTT sample nothing is known.
    pub(super) fn of(&self, window: u64, threshold: u64, smoothed: Option<Duration>) -> Option<NonZeroU64> {
        let by_window = smoothed.filter(|_| self.by_window).and_then(|smoothed| {
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
