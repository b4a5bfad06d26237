//! Delays: jitter keeps the order of frames, reordering does not.

use super::{Crossing, Impairment, Share};
use core::time::Duration;
use offload_base::counters::Counters;
use offload_base::{Instant, Rng};

offload_base::counters! {
    /// Counters of jitter.
    pub struct JitterCounters {
        /// Frames delayed.
        pub delayed: "wire_jittered",
    }
}

offload_base::counters! {
    /// Counters of reordering.
    pub struct ReorderCounters {
        /// Frames held back.
        pub held: "wire_reordered",
    }
}

/// An impairment that delays each frame by a uniformly random time up to a limit, but never lets a frame overtake
/// another one: the model of a busy queue on the way.
///
/// ```
/// use core::time::Duration;
/// use offload_wire::impairment::{Crossing, Impairment, Jitter};
/// use offload_base::{Instant, Seed};
///
/// let mut jitter = Jitter::new(Duration::from_micros(1), Seed(1).stream("jitter"));
/// jitter.pass(Crossing { frame: vec![0; 60].into(), arrives: Instant::ZERO }, &mut |late| {
///     assert!(late.arrives <= Instant::from_nanos(1_000));
/// });
/// ```
#[derive(Debug)]
pub struct Jitter {
    most: Duration,
    last_arrival: Instant,
    rng: Rng,
    counters: JitterCounters,
}

impl Jitter {
    /// Delays frames by up to `most`.
    pub fn new(most: Duration, rng: Rng) -> Jitter {
        Jitter { most, last_arrival: Instant::ZERO, rng, counters: JitterCounters::default() }
    }
}

impl Impairment for Jitter {
    fn pass(&mut self, mut crossing: Crossing, onward: &mut dyn FnMut(Crossing)) {
        let most = u64::try_from(self.most.as_nanos()).unwrap_or(u64::MAX - 1);
        // Kept for the counter: only a frame that arrives later than planned counts as delayed.
        let on_time = crossing.arrives;
        let delayed = on_time + Duration::from_nanos(self.rng.below(most.saturating_add(1)));
        // A frame never arrives before the previous one, so jitter keeps the order.
        self.last_arrival = self.last_arrival.max(delayed);
        crossing.arrives = self.last_arrival;
        self.counters.delayed += u64::from(crossing.arrives > on_time);
        onward(crossing);
    }

    fn counters(&self) -> &dyn Counters {
        &self.counters
    }
}

/// The parameters of reordering.
///
/// See [`Reordering`] for an example.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reorder {
    /// Share of frames held back.
    pub share: Share,
    /// Time for which a frame is held back. Frames that arrive in this time overtake it; without such frames, the order
    /// does not change.
    pub hold: Duration,
}

/// An impairment that holds back a share of the frames for a fixed time, so that later frames overtake them.
///
/// The hold is a time rather than a number of frames, so that a frame at the end of a burst arrives late instead of
/// never.
///
/// ```
/// use core::time::Duration;
/// use offload_wire::impairment::{Crossing, Impairment, Reorder, Reordering, Share};
/// use offload_base::{Instant, Seed};
///
/// let reorder = Reorder { share: Share::ALWAYS, hold: Duration::from_micros(30) };
/// let mut reordering = Reordering::new(reorder, Seed(1).stream("reorder"));
/// reordering.pass(Crossing { frame: vec![0; 60].into(), arrives: Instant::ZERO }, &mut |held| {
///     assert_eq!(held.arrives, Instant::from_nanos(30_000));
/// });
/// ```
#[derive(Debug)]
pub struct Reordering {
    reorder: Reorder,
    rng: Rng,
    counters: ReorderCounters,
}

impl Reordering {
    /// Holds frames back as described by `reorder`.
    pub fn new(reorder: Reorder, rng: Rng) -> Reordering {
        Reordering { reorder, rng, counters: ReorderCounters::default() }
    }
}

impl Impairment for Reordering {
    fn pass(&mut self, mut crossing: Crossing, onward: &mut dyn FnMut(Crossing)) {
        if self.rng.chance(self.reorder.share.as_f64()) {
            self.counters.held += 1;
            crossing.arrives += self.reorder.hold;
        }
        onward(crossing);
    }

    fn counters(&self) -> &dyn Counters {
        &self.counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use offload_base::Seed;

    #[test]
    fn jitter_is_bounded_and_keeps_the_order() {
        let mut jitter = Jitter::new(Duration::from_nanos(1000), Seed(1).stream("jitter"));
        let (mut last, mut early, mut late) = (Instant::ZERO, 0, 0);
        for number in 0..10_000u64 {
            let on_time = Instant::from_nanos(number * 400);
            jitter.pass(Crossing { frame: vec![0; 60].into(), arrives: on_time }, &mut |crossing| {
                assert!(crossing.arrives >= last && crossing.arrives - on_time <= Duration::from_nanos(1000));
                last = crossing.arrives;
                early += u32::from(crossing.arrives - on_time < Duration::from_nanos(200));
                late += u32::from(crossing.arrives - on_time > Duration::from_nanos(800));
            });
        }
        assert!(early > 100 && late > 100, "{early} early, {late} late");
    }
}
