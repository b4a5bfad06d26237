//! Congestion control: how many bytes may be in flight.
//!
//! Loss detection and recovery ([`recovery`](super::recovery)) tell a [`CongestionControl`] what happened; it
//! answers with a window and a threshold, in bytes. During fast recovery the sender paces itself by PRR towards
//! the threshold, and does not look at the window.

use core::fmt::Debug;
use offload_base::Instant;

pub(crate) trait CongestionControl: Debug + Send {
    /// Bytes that may be in flight.
    fn window(&self) -> u64;

    /// Where slow start ends.
    fn threshold(&self) -> u64;

    /// The segment size, when it is known or changes.
    fn set_mss(&mut self, mss: u64);

    /// `acked` bytes were acknowledged while the window was what limited the sender.
    fn on_ack(&mut self, now: Instant, acked: u64);

    /// A loss was found, once per window; `outstanding` bytes were unacknowledged.
    fn on_loss(&mut self, now: Instant, outstanding: u64);

    /// The retransmission timer fired; `outstanding` bytes were unacknowledged.
    fn on_timeout(&mut self, now: Instant, outstanding: u64);

    /// The last loss or timeout was none: back to what was before.
    fn on_spurious(&mut self);

    /// Nothing was sent for longer than the retransmission timeout.
    fn on_idle(&mut self);
}

/// NewReno: RFC 5681 with the byte counting of RFC 3465. As in Linux, slow start counts all bytes of an ACK, for
/// receivers that process packets in batches acknowledge many segments at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewReno {
    mss: u64,
    initial: u64,
    window: u64,
    threshold: u64,
    /// Bytes acknowledged towards the next segment of growth.
    counted: u64,
    before: Option<(u64, u64)>,
}

impl NewReno {
    pub(crate) fn new(mss: u64, initial_segments: u32) -> NewReno {
        let initial = u64::from(initial_segments);
        NewReno { mss, initial, window: initial * mss, threshold: u64::MAX, counted: 0, before: None }
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
        self.window = (self.window / self.mss).max(1) * mss;
        self.mss = mss;
    }

    fn on_ack(&mut self, _: Instant, mut acked: u64) {
        if self.window < self.threshold {
            let growth = acked.min(self.threshold - self.window);
            self.window += growth;
            acked -= growth;
        }
        // RFC 3465 2.1: a segment for every window's worth of bytes.
        self.counted += acked;
        if self.counted >= self.window {
            self.counted -= self.window;
            self.window += self.mss;
        }
        self.window = self.window.min(MAX_WINDOW);
    }

    fn on_loss(&mut self, _: Instant, outstanding: u64) {
        self.before = Some((self.window, self.threshold));
        // RFC 5681 (4).
        self.threshold = (outstanding / 2).max(2 * self.mss);
        self.window = self.threshold;
        self.counted = 0;
    }

    fn on_timeout(&mut self, now: Instant, outstanding: u64) {
        self.on_loss(now, outstanding);
        self.window = self.mss;
    }

    fn on_spurious(&mut self) {
        if let Some((window, threshold)) = self.before.take() {
            self.window = self.window.max(window);
            self.threshold = threshold;
        }
    }

    fn on_idle(&mut self) {
        // RFC 5681 4.1: the restart window.
        self.window = self.window.min(self.initial * self.mss);
    }
}

/// Far beyond any window a peer can offer.
const MAX_WINDOW: u64 = 1 << 40;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_then_grows_by_a_segment_a_window() {
        let mut reno = NewReno::new(1000, 10);
        reno.on_ack(Instant::ZERO, 10_000);
        assert_eq!(reno.window(), 20_000);
        reno.on_loss(Instant::ZERO, 20_000);
        assert_eq!((reno.window(), reno.threshold()), (10_000, 10_000));
        (0..10).for_each(|_| reno.on_ack(Instant::ZERO, 1000));
        assert_eq!(reno.window(), 11_000);
    }

    #[test]
    fn a_timeout_that_was_none_is_taken_back() {
        let mut reno = NewReno::new(1000, 10);
        reno.on_timeout(Instant::ZERO, 10_000);
        assert_eq!((reno.window(), reno.threshold()), (1000, 5000));
        reno.on_spurious();
        assert_eq!((reno.window(), reno.threshold()), (10_000, u64::MAX));
        reno.on_loss(Instant::ZERO, 1000);
        assert_eq!(reno.window(), 2000, "never under two segments");
    }
}
