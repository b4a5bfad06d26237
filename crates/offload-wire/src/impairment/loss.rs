//! RandomLoss: frames that never arrive, independently or in bursts.
//!
//! Bursts follow Gilbert's two-state model (Bell System Technical Journal 39, 1960): every frame is lost in the bad
//! state, no frame in the good state. This is also Elliott's and netem's model with the other parameters at their
//! limits. The parameters here are the measurable ones: the share of lost frames and the mean length of a run of
//! losses. Like that of a radio channel, the state also advances in time: a millisecond without frames is a step, just
//! like a frame. A burst is therefore over when a sender returns after a timeout, and retransmissions are lost no more
//! often than other frames.

use super::{Crossing, Impairment, Share};
use core::time::Duration;
use offload_base::counters::Counters;
use offload_base::{Instant, Rng};

offload_base::counters! {
    /// Counters of independent loss.
    pub struct RandomLossCounters {
        /// Frames lost.
        pub lost: "wire_lost",
    }
}

offload_base::counters! {
    /// Counters of burst loss.
    pub struct BurstLossCounters {
        /// Frames lost.
        pub lost: "wire_burst_lost",
        /// Runs of losses.
        pub bursts: "wire_bursts",
    }
}

/// An impairment that loses a share of the frames, each independently of the other frames.
///
/// ```
/// use offload_wire::impairment::{Crossing, Impairment, RandomLoss, Share};
/// use offload_base::{Instant, Seed};
///
/// let mut loss = RandomLoss::new(Share::ALWAYS, Seed(1).stream("loss"));
/// loss.pass(Crossing { frame: vec![0; 60].into(), arrives: Instant::ZERO }, &mut |_| unreachable!());
/// ```
#[derive(Debug)]
pub struct RandomLoss {
    share: Share,
    rng: Rng,
    counters: RandomLossCounters,
}

impl RandomLoss {
    /// Loses `share` of the frames.
    pub fn new(share: Share, rng: Rng) -> RandomLoss {
        RandomLoss { share, rng, counters: RandomLossCounters::default() }
    }
}

impl Impairment for RandomLoss {
    fn pass(&mut self, crossing: Crossing, onward: &mut dyn FnMut(Crossing)) {
        if self.rng.chance(self.share.as_f64()) {
            self.counters.lost += 1;
        } else {
            onward(crossing);
        }
    }

    fn counters(&self) -> &dyn Counters {
        &self.counters
    }
}

/// The parameters of burst loss.
///
/// See [`BurstLoss`] for an example.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Burst {
    /// Share of lost frames.
    pub share: Share,
    /// Mean number of frames lost in a row, at least 1, if the frames follow each other within a millisecond. With
    /// fewer frames, a burst lasts as many milliseconds instead. If bursts of this length cannot reach the share, even
    /// with a single good frame between two bursts, bursts are longer.
    pub mean_length: f64,
}

/// An impairment that loses frames in bursts of random length.
///
/// ```
/// use offload_wire::impairment::{Burst, BurstLoss, Crossing, Impairment, Share};
/// use offload_base::{Instant, Seed};
///
/// let burst = Burst { share: Share::new(0.02).unwrap(), mean_length: 5.0 };
/// let mut loss = BurstLoss::new(burst, Seed(1).stream("burst loss"));
/// let mut arrived = 0;
/// for _ in 0..10_000 {
///     loss.pass(Crossing { frame: vec![0; 60].into(), arrives: Instant::ZERO }, &mut |_| arrived += 1);
/// }
/// assert!((9_700..9_900).contains(&arrived));
/// ```
#[derive(Debug)]
pub struct BurstLoss {
    /// Probability of a change from good to bad, per frame.
    begin: f64,
    /// Probability of a change from bad to good, per frame.
    end: f64,
    bad: bool,
    /// Time of the last frame. `None` before the first one.
    last: Option<Instant>,
    rng: Rng,
    counters: BurstLossCounters,
}

impl BurstLoss {
    /// Loses frames as described by `burst`.
    ///
    /// # Panics
    /// If the mean length is less than 1.
    pub fn new(burst: Burst, mut rng: Rng) -> BurstLoss {
        assert!(burst.mean_length >= 1.0, "a burst has at least one frame, not {}", burst.mean_length);
        let share = burst.share.as_f64();
        // In the long run share = begin / (begin + end), and the mean burst has 1 / end frames.
        let end = 1.0 / burst.mean_length;
        let begin = end * share / (1.0 - share);
        // A probability above one means that the share needs longer bursts than requested.
        let (begin, end) = if begin <= 1.0 { (begin, end) } else { (1.0, (1.0 - share) / share) };
        // The chain starts in its stationary distribution, so that the first frames are lost as often as later ones.
        let bad = rng.chance(share);
        let counters = BurstLossCounters { bursts: u64::from(bad), lost: 0 };
        BurstLoss { begin, end, bad, last: None, rng, counters }
    }

    /// Advances the state to a frame at `now`.
    fn step(&mut self, now: Instant) {
        let Some(last) = self.last.replace(now) else { return };
        let steps = (now.saturating_since(last).as_nanos() / STEP.as_nanos()).clamp(1, MANY);
        // All steps at once: each step shrinks the chain's memory of its state by the same factor.
        let both = self.begin + self.end;
        let forgotten = 1.0 - (1.0 - both).powi(steps as i32);
        let changes = if self.bad { self.end } else { self.begin } / both * forgotten;
        if self.rng.chance(changes) {
            self.bad = !self.bad;
            self.counters.bursts += u64::from(self.bad);
        }
    }
}

impl Impairment for BurstLoss {
    fn pass(&mut self, crossing: Crossing, onward: &mut dyn FnMut(Crossing)) {
        self.step(crossing.arrives);
        if self.bad {
            self.counters.lost += 1;
        } else {
            onward(crossing);
        }
    }

    fn counters(&self) -> &dyn Counters {
        &self.counters
    }
}

/// Length of a silence that counts as one frame.
const STEP: Duration = Duration::from_millis(1);
/// Maximum number of steps. After this many, nothing of the old state is left in a floating-point number.
const MANY: u128 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use offload_base::Seed;

    /// Measures the share of losses and the mean length of runs, with frames following each other at once.
    fn measure(impairment: &mut dyn Impairment, frames: u32) -> (f64, f64) {
        measure_at(impairment, frames, Duration::ZERO)
    }

    /// Measures the same with the time `between` from frame to frame.
    fn measure_at(impairment: &mut dyn Impairment, frames: u32, between: Duration) -> (f64, f64) {
        let (mut lost, mut runs, mut in_run) = (0, 0, false);
        let mut arrives = Instant::ZERO;
        for _ in 0..frames {
            let mut arrived = false;
            arrives += between;
            impairment.pass(Crossing { frame: vec![0; 60].into(), arrives }, &mut |_| arrived = true);
            if !arrived {
                lost += 1;
                runs += u32::from(!in_run);
            }
            in_run = !arrived;
        }
        (f64::from(lost) / f64::from(frames), f64::from(lost) / f64::from(runs.max(1)))
    }

    fn near(value: f64, target: f64) -> bool {
        // Ten percent: far above the deviation of these many frames.
        (value / target - 1.0).abs() < 0.1
    }

    #[test]
    fn bursts_have_the_configured_share_and_length() {
        for (share, mean_length) in [(0.01, 4.0), (0.05, 1.0), (0.1, 20.0), (0.5, 2.0)] {
            let burst = Burst { share: Share::new(share).expect("a share"), mean_length };
            let mut loss = BurstLoss::new(burst, Seed(1).stream("burst loss"));
            let (measured, length) = measure(&mut loss, 400_000);
            assert!(near(measured, share), "{measured} lost of {share}");
            assert!(near(length, mean_length), "{length} frames long, not {mean_length}");
        }
    }

    #[test]
    fn unreachable_share_makes_bursts_longer() {
        let burst = Burst { share: Share::new(0.9).expect("a share"), mean_length: 1.0 };
        let (measured, length) = measure(&mut BurstLoss::new(burst, Seed(2).stream("burst loss")), 200_000);
        assert!(near(measured, 0.9) && near(length, 9.0), "{measured} lost, {length} frames long");
    }

    #[test]
    fn burst_ends_within_a_timeout() {
        let burst = || Burst { share: Share::new(0.05).expect("a share"), mean_length: 20.0 };
        let loss = || BurstLoss::new(burst(), Seed(1).stream("burst loss"));
        // A burst lasts 20 ms on average. Frames farther apart meet fewer lost ones in a row, down to a single one.
        for (between, expected) in [(0, 20.0), (1, 20.0), (2, 10.5), (20, 1.6), (200, 1.05)] {
            let (measured, length) = measure_at(&mut loss(), 400_000, Duration::from_millis(between));
            assert!(near(measured, 0.05), "{measured} lost of 0.05, {between} ms apart");
            assert!(near(length, expected), "{length} frames long, not {expected}, {between} ms apart");
        }
    }

    #[test]
    fn share_of_one_loses_every_frame() {
        let burst = Burst { share: Share::ALWAYS, mean_length: 3.0 };
        assert_eq!(measure(&mut BurstLoss::new(burst, Seed(3).stream("burst loss")), 1000).0, 1.0);
        assert_eq!(measure(&mut RandomLoss::new(Share::ALWAYS, Seed(3).stream("loss")), 1000).0, 1.0);
    }

    #[test]
    fn independent_losses_have_the_configured_share() {
        let share = Share::new(0.02).expect("a share");
        let (measured, length) = measure(&mut RandomLoss::new(share, Seed(4).stream("loss")), 400_000);
        assert!(near(measured, 0.02) && near(length, 1.02), "{measured} lost, {length} in a row");
    }
}
