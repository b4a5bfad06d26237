//! Round-trip time estimation and the retransmission timeout (RFC 6298).
//!
//! Samples come from segments sent once (Karn's rule), on the stack's nanosecond clock.
//!
//! Deviation from RFC 6298: instead of a minimum timeout of one second, the timeout exceeds the round-trip time by at
//! least Linux's 200 ms. A steady path, however long, therefore does not time out on the first delayed ACK.

use core::time::Duration;
use offload_base::Instant;

#[derive(Clone, Copy, Debug)]
pub(crate) struct RttEstimator {
    smoothed: Option<Duration>,
    variance: Duration,
    min: Duration,
    min_at: Instant,
    latest: Duration,
}

impl RttEstimator {
    pub(crate) fn new() -> RttEstimator {
        RttEstimator {
            smoothed: None,
            variance: Duration::ZERO,
            min: Duration::MAX,
            min_at: Instant::ZERO,
            latest: Duration::ZERO,
        }
    }

    /// Adds a sample measured at `now`.
    pub(crate) fn sample(&mut self, now: Instant, rtt: Duration) {
        self.latest = rtt;
        // An old minimum expires, so that a route change to a longer path is noticed.
        if rtt <= self.min || now - self.min_at > MIN_RTT_LIFETIME {
            self.min = rtt;
            self.min_at = now;
        }
        match self.smoothed {
            None => {
                // RFC 6298 2.2.
                self.smoothed = Some(rtt);
                self.variance = rtt / 2;
            }
            Some(smoothed) => {
                // RFC 6298 2.3: alpha 1/8, beta 1/4.
                self.variance = (self.variance * 3 + smoothed.abs_diff(rtt)) / 4;
                self.smoothed = Some((smoothed * 7 + rtt) / 8);
            }
        }
    }

    pub(crate) fn smoothed(&self) -> Option<Duration> {
        self.smoothed
    }

    pub(crate) fn variance(&self) -> Duration {
        self.variance
    }

    /// Returns the minimum RTT of the last minutes. `None` before the first sample.
    pub(crate) fn min(&self) -> Option<Duration> {
        self.smoothed.map(|_| self.min)
    }

    /// Returns the timeout after `backoff` consecutive timeouts (RFC 6298 5.5).
    pub(crate) fn timeout(&self, initial: Duration, least: Duration, most: Duration, backoff: u32) -> Duration {
        let base = match self.smoothed {
            None => initial,
            Some(smoothed) => smoothed + (self.variance * 4).max(least),
        };
        base.saturating_mul(1 << backoff.min(16)).min(most)
    }
}

/// Lifetime of the minimum RTT: Linux's tcp_min_rtt_wlen. Later samples of a longer path are then accepted.
const MIN_RTT_LIFETIME: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn estimator_follows_rfc_6298() {
        let mut rtt = RttEstimator::new();
        let rto = |rtt: &RttEstimator, backoff| rtt.timeout(MS * 1000, MS * 200, MS * 120_000, backoff);
        assert_eq!(rto(&rtt, 0), MS * 1000);
        rtt.sample(Instant::ZERO, MS * 100);
        assert_eq!((rtt.smoothed(), rtt.variance()), (Some(MS * 100), MS * 50));
        assert_eq!(rto(&rtt, 0), MS * 300);
        rtt.sample(Instant::ZERO, MS * 180);
        assert_eq!((rtt.smoothed(), rtt.variance()), (Some(MS * 110), MS * 115 / 2));
        assert_eq!(rtt.min(), Some(MS * 100));
        assert_eq!(rto(&rtt, 2), MS * 340 * 4);
        assert_eq!(rto(&rtt, 60), MS * 120_000);
    }

    #[test]
    fn steady_path_keeps_the_minimum_timeout() {
        let mut rtt = RttEstimator::new();
        (0..100).for_each(|_| rtt.sample(Instant::ZERO, MS / 10));
        assert_eq!(rtt.timeout(MS * 1000, MS * 200, MS * 120_000, 0), MS * 200 + MS / 10);
    }
}
