//! Slow start that ends before the queue overflows: HyStart++ (RFC 9406).
//!
//! When the least round-trip time of a round exceeds the one of the round before by an eighth, growth becomes
//! conservative; if the time stays there for five rounds, slow start is over; if it falls back, it was noise.
//!
//! Deviation: growth is not limited to eight segments for an ACK (RFC 9406 4.2), for receivers that process packets in
//! batches acknowledge many segments at once.

use super::Acked;

#[derive(Clone, Copy, Debug)]
pub(super) struct SlowStart {
    /// What is sent from here on belongs to the next round.
    round_end: u64,
    /// The least round-trip time of this round, and of the one before, in nanoseconds.
    least: u64,
    least_before: u64,
    /// The one that made growth conservative; [`NONE`]: it is not.
    baseline: u64,
    /// Rounds of conservative growth, the one in which it began included.
    careful_rounds: u8,
    samples: u8,
    /// RFC 9406 4.3: only the first slow start is watched, the later ones have a threshold that was found out.
    first: bool,
    /// Acknowledged bytes that were not enough for a byte of growth.
    rest: u8,
}

impl Default for SlowStart {
    fn default() -> SlowStart {
        SlowStart {
            round_end: 0,
            least: NONE,
            least_before: NONE,
            baseline: NONE,
            careful_rounds: 0,
            samples: 0,
            first: true,
            rest: 0,
        }
    }
}

impl SlowStart {
    /// Grows `window` for an acknowledgment, not beyond `threshold`, which is set if the time has come. Returns the
    /// bytes acknowledged that are left for congestion avoidance.
    pub(super) fn grow(&mut self, ack: &Acked, window: &mut u64, threshold: &mut u64) -> u64 {
        self.first &= *threshold == u64::MAX;
        if self.first && self.watch(ack) {
            *threshold = *window;
            return ack.bytes;
        }
        let divisor = if self.first && self.baseline != NONE { GROWTH_DIVISOR } else { 1 };
        let counted = ack.bytes + u64::from(self.rest);
        let growth = (counted / divisor).min(*threshold - *window);
        *window += growth;
        self.rest = (counted % divisor) as u8;
        if *window < *threshold { 0 } else { counted - growth * divisor }
    }

    /// Looks at the round-trip times; true when slow start is over.
    fn watch(&mut self, ack: &Acked) -> bool {
        if ack.una >= self.round_end {
            self.round_end = ack.next;
            if self.least != NONE {
                self.least_before = self.least;
            }
            (self.least, self.samples) = (NONE, 0);
            if self.baseline != NONE {
                self.careful_rounds += 1;
                if self.careful_rounds > CAREFUL_ROUNDS {
                    return true;
                }
            }
        }
        let Some(rtt) = ack.rtt else { return false };
        self.least = self.least.min(u64::try_from(rtt.as_nanos()).unwrap_or(NONE - 1));
        self.samples = self.samples.saturating_add(1);
        if self.samples < SAMPLES_OF_A_ROUND {
            return false;
        }
        if self.baseline != NONE {
            if self.least < self.baseline {
                self.baseline = NONE;
            }
        } else if self.least_before != NONE {
            let rise = (self.least_before / RTT_DIVISOR).clamp(LEAST_RISE, MOST_RISE);
            if self.least >= self.least_before.saturating_add(rise) {
                (self.baseline, self.careful_rounds) = (self.least, 1);
            }
        }
        false
    }
}

/// No time yet.
const NONE: u64 = u64::MAX;
// RFC 9406 4.3; times in nanoseconds.
const LEAST_RISE: u64 = 4_000_000;
const MOST_RISE: u64 = 16_000_000;
const RTT_DIVISOR: u64 = 8;
const SAMPLES_OF_A_ROUND: u8 = 8;
const GROWTH_DIVISOR: u64 = 4;
const CAREFUL_ROUNDS: u8 = 5;

#[cfg(test)]
mod tests {
    use super::super::tests::acked;
    use super::*;
    use core::time::Duration;

    /// A sender of segments of 1000 bytes in rounds.
    struct Rounds {
        slow_start: SlowStart,
        window: u64,
        threshold: u64,
        una: u64,
    }

    impl Rounds {
        fn new() -> Rounds {
            Rounds { slow_start: SlowStart::default(), window: 10_000, threshold: u64::MAX, una: 0 }
        }

        /// A window's worth is acknowledged segment by segment, each after `millis`.
        fn round(&mut self, millis: u64) -> u64 {
            let before = self.window;
            let end = self.una + self.window;
            while self.una < end && self.window < self.threshold {
                self.una += 1000;
                let rtt = Some(Duration::from_millis(millis));
                let next = self.una + self.window;
                let ack = Acked { una: self.una, next, rtt, ..acked(0, 1000) };
                self.slow_start.grow(&ack, &mut self.window, &mut self.threshold);
            }
            self.window - before
        }
    }

    #[test]
    fn a_steady_path_doubles() {
        let mut rounds = Rounds::new();
        assert_eq!([rounds.round(40), rounds.round(41), rounds.round(44)], [10_000, 20_000, 40_000]);
        assert_eq!(rounds.threshold, u64::MAX);
    }

    #[test]
    fn a_queue_ends_it_after_five_careful_rounds() {
        let mut rounds = Rounds::new();
        rounds.round(40);
        // An eighth of 40 ms: at eight samples it is certain, from then on a quarter counts.
        let growth = rounds.round(45);
        assert!((8_000..12_000).contains(&growth), "{growth}");
        for _ in 0..4 {
            let before = rounds.window;
            let growth = rounds.round(45);
            assert!(growth.abs_diff(before / 4) <= 1000, "{growth} of {before}");
            assert_eq!(rounds.threshold, u64::MAX);
        }
        rounds.round(45);
        assert_eq!(rounds.threshold, rounds.window, "slow start is over");
    }

    #[test]
    fn a_time_that_falls_back_was_noise() {
        let mut rounds = Rounds::new();
        rounds.round(40);
        rounds.round(45);
        rounds.round(40);
        let before = rounds.window;
        let growth = rounds.round(40);
        assert!(growth.abs_diff(before) <= 1000, "{growth} of {before}");
    }

    #[test]
    fn a_threshold_that_is_known_is_reached_at_full_speed() {
        let mut rounds = Rounds { threshold: 25_000, ..Rounds::new() };
        rounds.round(40);
        rounds.round(80);
        assert_eq!(rounds.window, 25_000);
    }
}
