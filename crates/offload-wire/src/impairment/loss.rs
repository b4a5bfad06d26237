//! Frames that never arrive: one by one, or in bursts.
//!
//! Bursts follow the two-state model of Gilbert (Bell System Technical Journal 39, 1960) with loss certain in
//! the bad state and impossible in the good one, which is what Elliott's and netem's models come to with their
//! further parameters left at the ends. Here it is given by what one measures: the share of frames lost, and
//! the mean length of a run of losses. The state goes on in time, too, as a radio channel's does: each millisecond without a
//! frame is a step as a frame is. So a burst is over when a sender comes back after a timeout, and what it sends again is
//! lost no more often than anything else.

use super::{Crossing, Impairment, Share};
use core::time::Duration;
use offload_base::counters::Counters;
use offload_base::{Instant, Rng};

offload_base::counters! {
    /// What independent loss counts.
    pub struct LossCounters {
        /// Frames lost.
        pub lost: "wire_lost",
    }
}

offload_base::counters! {
    /// What loss in bursts counts.
    pub struct BurstLossCounters {
        /// Frames lost.
        pub lost: "wire_burst_lost",
        /// Runs of losses.
        pub bursts: "wire_bursts",
    }
}

/// Loses a share of the frames, each independently of the others.
///
/// ```
/// use offload_wire::impairment::{Crossing, Impairment, Loss, Share};
/// use offload_base::{Instant, Seed};
///
/// let mut loss = Loss::new(Share::ALWAYS, Seed(1).stream("loss"));
/// loss.pass(Crossing { frame: vec![0; 60].into(), arrives: Instant::ZERO }, &mut |_| unreachable!());
/// ```
#[derive(Debug)]
pub struct Loss {
    share: Share,
    rng: Rng,
    counters: LossCounters,
}

impl Loss {
    /// Loses `share` of the frames.
    pub fn new(share: Share, rng: Rng) -> Loss {
        Loss { share, rng, counters: LossCounters::default() }
    }
}

impl Impairment for Loss {
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

/// How much is lost in bursts, and how long they are.
///
/// See [`BurstLoss`] for an example.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Burst {
    /// Frames lost, of all.
    pub share: Share,
    /// Mean number of frames lost in a row, at least 1, of those that follow each other within a millisecond: a burst
    /// lasts as many milliseconds where there are fewer frames. A share that bursts so short cannot reach, even with
    /// only one frame between two of them, makes them longer.
    pub mean_length: f64,
}

/// Loses frames in bursts of random length.
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
    /// From good to bad, at each frame.
    begin: f64,
    /// From bad to good, at each frame.
    end: f64,
    bad: bool,
    /// When the last frame came, if one did.
    last: Option<Instant>,
    rng: Rng,
    counters: BurstLossCounters,
}

impl BurstLoss {
    /// Loses frames as `burst` says.
    ///
    /// # Panics
    /// If the mean length is less than 1.
    pub fn new(burst: Burst, mut rng: Rng) -> BurstLoss {
        assert!(burst.mean_length >= 1.0, "a burst has at least one frame, not {}", burst.mean_length);
        let share = burst.share.as_f64();
        // In the long run share = begin / (begin + end), and a burst lasts 1 / end frames.
        let end = 1.0 / burst.mean_length;
        let begin = end * share / (1.0 - share);
        let (begin, end) = if begin <= 1.0 { (begin, end) } else { (1.0, (1.0 - share) / share) };
        let bad = rng.chance(share);
        let counters = BurstLossCounters { bursts: u64::from(bad), lost: 0 };
        BurstLoss { begin, end, bad, last: None, rng, counters }
    }

    /// Goes on to the frame that comes at `now`.
    fn step(&mut self, now: Instant) {
        let Some(last) = self.last.replace(now) else { return };
        let steps = (now.saturating_since(last).as_nanos() / STEP.as_nanos()).clamp(1, MANY);
        // So many steps at once: what the chain still knows of its state shrinks by one factor with each.
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

/// A silence so long is as good as a frame.
const STEP: Duration = Duration::from_millis(1);
/// After so many steps nothing of the state is left that a number could tell.
const MANY: u128 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use offload_base::Seed;

    /// Share of losses and mean length of a run of them, frames following each other at once.
    fn measure(impairment: &mut dyn Impairment, frames: u32) -> (f64, f64) {
        measure_at(impairment, frames, Duration::ZERO)
    }

    /// The same with so much time from one to the next.
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
        (value / target - 1.0).abs() < 0.1
    }

    #[test]
    fn bursts_have_the_share_and_the_length_asked_for() {
        for (share, mean_length) in [(0.01, 4.0), (0.05, 1.0), (0.1, 20.0), (0.5, 2.0)] {
            let burst = Burst { share: Share::new(share).expect("a share"), mean_length };
            let mut loss = BurstLoss::new(burst, Seed(1).stream("burst loss"));
            let (measured, length) = measure(&mut loss, 400_000);
            assert!(near(measured, share), "{measured} lost of {share}");
            assert!(near(length, mean_length), "{length} frames long, not {mean_length}");
        }
    }

    #[test]
    fn a_share_out_of_reach_of_short_bursts_makes_them_longer() {
        let burst = Burst { share: Share::new(0.9).expect("a share"), mean_length: 1.0 };
        let (measured, length) = measure(&mut BurstLoss::new(burst, Seed(2).stream("burst loss")), 200_000);
        assert!(near(measured, 0.9) && near(length, 9.0), "{measured} lost, {length} frames long");
    }

    #[test]
    fn a_burst_is_over_when_a_timeout_is() {
        let burst = || Burst { share: Share::new(0.05).expect("a share"), mean_length: 20.0 };
        let loss = || BurstLoss::new(burst(), Seed(1).stream("burst loss"));
        for (between, expected) in [(0, 20.0), (1, 20.0), (2, 10.5), (20, 1.6), (200, 1.05)] {
            let (measured, length) = measure_at(&mut loss(), 400_000, Duration::from_millis(between));
            assert!(near(measured, 0.05), "{measured} lost of 0.05, {between} ms apart");
            assert!(near(length, expected), "{length} frames long, not {expected}, {between} ms apart");
        }
    }

    #[test]
    fn everything_can_be_lost() {
        let burst = Burst { share: Share::ALWAYS, mean_length: 3.0 };
        assert_eq!(measure(&mut BurstLoss::new(burst, Seed(3).stream("burst loss")), 1000).0, 1.0);
        assert_eq!(measure(&mut Loss::new(Share::ALWAYS, Seed(3).stream("loss")), 1000).0, 1.0);
    }

    #[test]
    fn independent_losses_keep_their_share() {
        let share = Share::new(0.02).expect("a share");
        let (measured, length) = measure(&mut Loss::new(share, Seed(4).stream("loss")), 400_000);
        assert!(near(measured, 0.02) && near(length, 1.02), "{measured} lost, {length} in a row");
    }
}
