//! NewReno: RFC 5681 with the byte counting of RFC 3465. As in Linux, slow start counts all bytes of an ACK, because
//! receivers that process packets in batches acknowledge many segments at once.

use super::slow_start::SlowStart;
use super::{AckedBytes, CongestionControl, CongestionSignal, MAX_WINDOW, rescaled};

#[derive(Clone, Copy, Debug)]
pub(crate) struct NewReno {
    mss: u64,
    initial: u64,
    window: u64,
    threshold: u64,
    slow_start: SlowStart,
    /// Acknowledged bytes that count towards the next segment of growth.
    counted: u64,
    before: Option<(u64, u64)>,
}

impl NewReno {
    pub(crate) fn new(mss: u64, initial_segments: u32) -> NewReno {
        let initial = u64::from(initial_segments);
        NewReno {
            mss,
            initial,
            window: initial * mss,
            threshold: u64::MAX,
            slow_start: SlowStart::default(),
            counted: 0,
            before: None,
        }
    }
}

impl CongestionControl for NewReno {
    fn window(&self) -> u64 {
        self.window
    }

    fn threshold(&self) -> u64 {
        self.threshold
    }

    fn set_mss(&mut self, mss: u64) {
        let old = core::mem::replace(&mut self.mss, mss);
        let before = self.before.iter_mut().flat_map(|(window, threshold)| [window, threshold]);
        for bytes in before.chain([&mut self.window, &mut self.threshold, &mut self.counted]) {
            *bytes = rescaled(*bytes, old, mss);
        }
        self.window = self.window.max(mss);
    }

    fn on_ack(&mut self, ack: &AckedBytes) {
        // A window that did not limit the sender gives no evidence for a larger one.
        if !ack.limited {
            return;
        }
        let mut acked = ack.bytes;
        if self.window < self.threshold {
            acked = self.slow_start.grow(ack, &mut self.window, &mut self.threshold);
        }
        // RFC 3465 2.1: one segment per window of acknowledged bytes.
        self.counted += acked;
        if self.counted >= self.window {
            self.counted -= self.window;
            self.window += self.mss;
        }
        self.window = self.window.min(MAX_WINDOW);
    }

    fn on_congestion(&mut self, signal: CongestionSignal, carried: u64) {
        // A mark is certain, so it is never undone.
        self.before = (signal == CongestionSignal::Loss).then_some((self.window, self.threshold));
        // RFC 5681 (4): half of the data in flight.
        self.threshold = (carried.min(self.window) / 2).max(2 * self.mss);
        self.window = self.threshold;
        self.counted = 0;
    }

    fn on_timeout(&mut self, carried: Option<u64>) {
        if let Some(carried) = carried {
            self.on_congestion(CongestionSignal::Loss, carried);
        }
        self.window = self.mss;
        self.counted = 0;
    }

    fn on_spurious(&mut self) {
        if let Some((window, threshold)) = self.before.take() {
            self.window = self.window.max(window);
            self.threshold = threshold;
        }
    }

    fn on_idle(&mut self, long: bool) {
        if long {
            // RFC 5681 4.1: the restart window.
            self.window = self.window.min(self.initial * self.mss);
        }
    }

    fn on_quiet(&mut self) {}

    fn adopt(&mut self, window: u64, threshold: u64) {
        (self.window, self.threshold) = (window, threshold);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::acked;
    use super::*;

    #[test]
    fn window_doubles_then_grows_by_a_segment_per_window() {
        let mut reno = NewReno::new(1000, 10);
        reno.on_ack(&acked(0, 10_000));
        assert_eq!(reno.window(), 20_000);
        reno.on_congestion(CongestionSignal::Loss, 20_000);
        assert_eq!((reno.window(), reno.threshold()), (10_000, 10_000));
        (0..10).for_each(|_| reno.on_ack(&acked(0, 1000)));
        assert_eq!(reno.window(), 11_000);
        (0..20).for_each(|_| reno.on_ack(&AckedBytes { limited: false, ..acked(0, 1000) }));
        assert_eq!(reno.window(), 11_000, "an unused window must not grow");
    }

    #[test]
    fn spurious_timeout_is_undone() {
        let mut reno = NewReno::new(1000, 10);
        reno.on_timeout(Some(10_000));
        assert_eq!((reno.window(), reno.threshold()), (1000, 5000));
        reno.on_spurious();
        assert_eq!((reno.window(), reno.threshold()), (10_000, u64::MAX));
        reno.on_congestion(CongestionSignal::Loss, 1000);
        assert_eq!(reno.window(), 2000, "the window is at least two segments");
    }

    #[test]
    fn window_keeps_its_number_of_segments() {
        let mut reno = NewReno::new(1000, 10);
        reno.on_congestion(CongestionSignal::Loss, 10_000);
        reno.set_mss(500);
        assert_eq!((reno.window(), reno.threshold()), (2500, 2500));
        reno.on_spurious();
        assert_eq!((reno.window(), reno.threshold()), (5000, u64::MAX));
    }

    #[test]
    fn timeout_in_a_recovery_keeps_the_threshold() {
        let mut reno = NewReno::new(1000, 10);
        reno.on_congestion(CongestionSignal::Loss, 10_000);
        reno.on_timeout(None);
        assert_eq!((reno.window(), reno.threshold()), (1000, 5000));
        reno.on_spurious();
        assert_eq!((reno.window(), reno.threshold()), (10_000, u64::MAX));
    }
}
