//! Slow start that ends before the queue overflows: HyStart++ (RFC 9406).
//!
//! If a round's minimum RTT exceeds that of the previous round by an eighth, growth becomes conservative. If the RTT
//! stays high for five rounds, slow start ends; if it falls back, the rise was noise.
//!
//! Deviation: growth per ACK is not limited to eight segments (RFC 9406 4.2), because receivers that process packets in
//! batches acknowledge many segments at once.

use super::AckedBytes;

#[derive(Clone, Copy, Debug)]
pub(super) struct SlowStart {
    /// Position at which the next round starts.
    round_end: u64,
    /// Minimum RTT of this round, in nanoseconds.
    least: u64,
    /// Minimum RTT of the previous round, in nanoseconds.
    least_before: u64,
    /// Minimum RTT that made growth conservative. [`NO_RTT`] if growth is not conservative.
    baseline: u64,
    /// Rounds of conservative growth, including the one in which it began.
    careful_rounds: u8,
    samples: u8,
    /// Whether this is the first slow start. RFC 9406 4.3: later ones have a measured threshold and are not watched.
    first: bool,
    /// Acknowledged bytes that did not suffice for a byte of growth.
    rest: u8,
}

impl Default for SlowStart {
    fn default() -> SlowStart {
        SlowStart {
            round_end: 0,
            least: NO_RTT,
            least_before: NO_RTT,
            baseline: NO_RTT,
            careful_rounds: 0,
            samples: 0,
            first: true,
            rest: 0,
        }
    }
}

impl SlowStart {
    /// Grows `window` for an acknowledgment, up to `threshold`. Sets `threshold` when slow start ends. Returns the
    /// acknowledged bytes left for congestion avoidance.
    pub(super) fn grow(&mut self, ack: &AckedBytes, window: &mut u64, threshold: &mut u64) -> u64 {
        self.first &= *threshold == u64::MAX;
        if self.first && self.watch(ack) {
            *threshold = *window;
            return ack.bytes;
        }
        let divisor = if self.first && self.baseline != NO_RTT { GROWTH_DIVISOR } else { 1 };
        let counted = ack.bytes + u64::from(self.rest);
        let growth = (counted / divisor).min(*threshold - *window);
        *window += growth;
        self.rest = (counted % divisor) as u8;
        if *window < *threshold { 0 } else { counted - growth * divisor }
    }

    /// Evaluates the round-trip times. Returns true if slow start is over.
    fn watch(&mut self, ack: &AckedBytes) -> bool {
        // A round ends when all data sent before its start are acknowledged (RFC 9406 4.2).
        if ack.una >= self.round_end {
            self.round_end = ack.next;
            if self.least != NO_RTT {
                self.least_before = self.least;
            }
            (self.least, self.samples) = (NO_RTT, 0);
            if self.baseline != NO_RTT {
                self.careful_rounds += 1;
                if self.careful_rounds > CAREFUL_ROUNDS {
                    return true;
                }
            }
        }
        let Some(rtt) = ack.rtt else { return false };
        self.least = self.least.min(u64::try_from(rtt.as_nanos()).unwrap_or(NO_RTT - 1));
        self.samples = self.samples.saturating_add(1);
        // With too few samples a single delayed ACK could end slow start.
        if self.samples < MIN_SAMPLES_PER_ROUND {
            return false;
        }
        if self.baseline != NO_RTT {
            // The RTT fell below the baseline, so the rise was jitter and growth becomes full again.
            if self.least < self.baseline {
                self.baseline = NO_RTT;
            }
        } else if self.least_before != NO_RTT {
            let rise = (self.least_before / RTT_DIVISOR).clamp(MIN_RISE, MAX_RISE);
            if self.least >= self.least_before.saturating_add(rise) {
                (self.baseline, self.careful_rounds) = (self.least, 1);
            }
        }
        false
    }
}

/// No RTT yet.
const NO_RTT: u64 = u64::MAX;
// Constants of RFC 9406 4.3; times in nanoseconds.
const MIN_RISE: u64 = 4_000_000;
const MAX_RISE: u64 = 16_000_000;
const RTT_DIVISOR: u64 = 8;
const MIN_SAMPLES_PER_ROUND: u8 = 8;
const GROWTH_DIVISOR: u64 = 4;
const CAREFUL_ROUNDS: u8 = 5;

#[cfg(test)]
mod tests {
    use super::super::tests::acked;
    use super::*;
    use core::time::Duration;

    /// A sender that sends segments of 1000 bytes in rounds.
    struct RoundSender {
        slow_start: SlowStart,
        window: u64,
        threshold: u64,
        una: u64,
    }

    impl RoundSender {
        fn new() -> RoundSender {
            RoundSender { slow_start: SlowStart::default(), window: 10_000, threshold: u64::MAX, una: 0 }
        }

        /// Acknowledges one window, segment by segment, each after `millis`.
        fn round(&mut self, millis: u64) -> u64 {
            let before = self.window;
            let end = self.una + self.window;
            while self.una < end && self.window < self.threshold {
                self.una += 1000;
                let rtt = Some(Duration::from_millis(millis));
                let next = self.una + self.window;
                let ack = AckedBytes { una: self.una, next, rtt, ..acked(0, 1000) };
                self.slow_start.grow(&ack, &mut self.window, &mut self.threshold);
            }
            self.window - before
        }
    }

    #[test]
    fn window_doubles_on_a_steady_path() {
        let mut rounds = RoundSender::new();
        assert_eq!([rounds.round(40), rounds.round(41), rounds.round(44)], [10_000, 20_000, 40_000]);
        assert_eq!(rounds.threshold, u64::MAX);
    }

    #[test]
    fn slow_start_ends_after_five_conservative_rounds() {
        let mut rounds = RoundSender::new();
        rounds.round(40);
        // 45 ms exceed 40 ms by an eighth. After eight samples this is certain, and growth falls to a quarter.
        let growth = rounds.round(45);
        assert!((8_000..12_000).contains(&growth), "{growth}");
        for _ in 0..4 {
            let before = rounds.window;
            let growth = rounds.round(45);
            assert!(growth.abs_diff(before / 4) <= 1000, "{growth} of {before}");
            assert_eq!(rounds.threshold, u64::MAX);
        }
        rounds.round(45);
        assert_eq!(rounds.threshold, rounds.window, "slow start must have ended");
    }

    #[test]
    fn transient_rtt_rise_keeps_full_growth() {
        let mut rounds = RoundSender::new();
        rounds.round(40);
        rounds.round(45);
        rounds.round(40);
        let before = rounds.window;
        let growth = rounds.round(40);
        assert!(growth.abs_diff(before) <= 1000, "{growth} of {before}");
    }

    #[test]
    fn known_threshold_is_reached_at_full_growth() {
        let mut rounds = RoundSender { threshold: 25_000, ..RoundSender::new() };
        rounds.round(40);
        rounds.round(80);
        assert_eq!(rounds.window, 25_000);
    }
}
