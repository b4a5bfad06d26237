//! Impairments: composable faults of a wire.
//!
//! An impairment receives a frame that has left the line, with its arrival time, and passes on the resulting frames:
//! the same frame, a changed one, several frames or no frame. [`Impairments`] is the configuration of the usual
//! impairments, and [`ImpairmentChain`] is their running instance. Each draws from its own random stream, so that
//! adding an impairment does not change the other impairments. All are off by default, and each has counters.
//!
//! The order of the chain is [`RandomLoss`], [`BurstLoss`], [`EcnMarking`], [`Duplicate`], [`Corrupt`], [`Jitter`],
//! [`Reorder`]. A copy is corrupted or held back independently of its original. Jitter keeps the order, so reordering
//! comes after jitter.

mod corrupt;
mod cut;
mod duplicate;
mod loss;
mod mark;
mod share;
mod timing;

pub use corrupt::Corrupt;
pub use cut::WireCut;
pub use duplicate::Duplicate;
pub use loss::{Burst, BurstLoss, RandomLoss};
pub use mark::EcnMarking;
pub use share::{InvalidShare, Share};
pub use timing::{Jitter, Reorder, Reordering};

use crate::frame::Frame;
use core::fmt;
use core::time::Duration;
use offload_base::counters::{CounterSet, Counters};
use offload_base::{Instant, Seed};

/// A frame in flight.
///
/// See [`Impairment`] for an example.
#[derive(Clone, Debug)]
pub struct Crossing {
    /// The frame.
    pub frame: Frame,
    /// Arrival time, which later impairments may still change.
    pub arrives: Instant,
}

/// A fault that may affect a frame in flight.
///
/// ```
/// use offload_wire::{Crossing, Impairment};
/// use offload_base::Instant;
/// use offload_base::counters::Counters;
///
/// offload_base::counters! {
///     /// Counters of oversized frames.
///     pub struct Oversize {
///         /// Frames dropped.
///         pub dropped: "wire_oversize",
///     }
/// }
///
/// /// A part of the wire with a maximum frame length.
/// #[derive(Debug)]
/// struct LongestFrame(usize, Oversize);
///
/// impl Impairment for LongestFrame {
///     fn pass(&mut self, crossing: Crossing, onward: &mut dyn FnMut(Crossing)) {
///         if crossing.frame.len() <= self.0 { onward(crossing) } else { self.1.dropped += 1 }
///     }
///     fn counters(&self) -> &dyn Counters {
///         &self.1
///     }
/// }
///
/// let mut stretch = LongestFrame(1514, Oversize::default());
/// stretch.pass(Crossing { frame: vec![0; 9000].into(), arrives: Instant::ZERO }, &mut |_| unreachable!());
/// assert_eq!(stretch.1.dropped, 1);
/// ```
pub trait Impairment: fmt::Debug + Send {
    /// Calls `onward` for each resulting frame: not at all if this frame is lost, twice if it is duplicated.
    fn pass(&mut self, crossing: Crossing, onward: &mut dyn FnMut(Crossing));

    /// Returns the counters.
    fn counters(&self) -> &dyn Counters;
}

/// The impairments of a link. All are off by default.
///
/// ```
/// use offload_wire::{Impairments, Share};
/// use offload_base::Seed;
///
/// let rough = Impairments { loss: Share::new(0.01)?, corrupt: "0.001".parse()?, ..Impairments::default() };
/// let chain = rough.chain(Seed(7));
/// assert_eq!(chain.len(), 2);
/// # Ok::<(), offload_wire::InvalidShare>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Impairments {
    /// Share of frames lost, independently of each other.
    pub loss: Share,
    /// Burst loss.
    pub burst_loss: Option<Burst>,
    /// Share of packets marked "congestion experienced" (RFC 3168), or lost if they are not ECN-capable.
    pub mark: Share,
    /// Share of frames that arrive twice.
    pub duplicate: Share,
    /// Share of frames with one flipped bit.
    pub corrupt: Share,
    /// Maximum random delay, without overtaking.
    pub jitter: Duration,
    /// Frames held back, so that others overtake them.
    pub reorder: Option<Reorder>,
}

impl Impairments {
    /// Creates the chain of the enabled impairments. They draw from streams of `seed`.
    pub fn chain(&self, seed: Seed) -> ImpairmentChain {
        let mut chain = ImpairmentChain::default();
        if self.loss != Share::NEVER {
            chain.push(Box::new(RandomLoss::new(self.loss, seed.stream("loss"))));
        }
        if let Some(burst) = self.burst_loss.filter(|burst| burst.share != Share::NEVER) {
            chain.push(Box::new(BurstLoss::new(burst, seed.stream("burst loss"))));
        }
        if self.mark != Share::NEVER {
            chain.push(Box::new(EcnMarking::new(self.mark, seed.stream("mark"))));
        }
        if self.duplicate != Share::NEVER {
            chain.push(Box::new(Duplicate::new(self.duplicate, seed.stream("duplicate"))));
        }
        if self.corrupt != Share::NEVER {
            chain.push(Box::new(Corrupt::new(self.corrupt, seed.stream("corrupt"))));
        }
        if !self.jitter.is_zero() {
            chain.push(Box::new(Jitter::new(self.jitter, seed.stream("jitter"))));
        }
        if let Some(reorder) = self.reorder.filter(|reorder| reorder.share != Share::NEVER) {
            chain.push(Box::new(Reordering::new(reorder, seed.stream("reorder"))));
        }
        chain
    }
}

/// A sequence of impairments.
///
/// See [`Impairments`] for an example.
#[derive(Debug, Default)]
pub struct ImpairmentChain {
    impairments: Vec<Box<dyn Impairment>>,
}

impl ImpairmentChain {
    /// Adds an impairment at the end.
    pub fn push(&mut self, impairment: Box<dyn Impairment>) {
        self.impairments.push(impairment);
    }

    /// Sends a frame through all impairments, and calls `onward` for each resulting frame.
    pub fn pass(&mut self, crossing: Crossing, onward: &mut dyn FnMut(Crossing)) {
        pass(&mut self.impairments, crossing, onward);
    }

    /// Returns the number of impairments.
    pub fn len(&self) -> usize {
        self.impairments.len()
    }

    /// Tests whether there are no impairments.
    pub fn is_empty(&self) -> bool {
        self.impairments.is_empty()
    }

    /// Adds the counters of all impairments to `set`.
    pub fn count(&self, set: &mut CounterSet) {
        for impairment in &self.impairments {
            set.add(impairment.counters());
        }
    }
}

fn pass(chain: &mut [Box<dyn Impairment>], crossing: Crossing, onward: &mut dyn FnMut(Crossing)) {
    match chain.split_first_mut() {
        None => onward(crossing),
        Some((first, rest)) => first.pass(crossing, &mut |crossing| pass(rest, crossing, onward)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Impairments {
        let share = Share::new(0.1).expect("a share");
        Impairments {
            loss: share,
            burst_loss: Some(Burst { share, mean_length: 3.0 }),
            mark: share,
            duplicate: share,
            corrupt: share,
            jitter: Duration::from_micros(3),
            reorder: Some(Reorder { share, hold: Duration::from_micros(50) }),
        }
    }

    fn run(impairments: Impairments, seed: Seed) -> (Vec<(u64, Frame)>, CounterSet) {
        let mut chain = impairments.chain(seed);
        let mut out = Vec::new();
        for number in 0..20_000u64 {
            let frame = Frame::from(number.to_be_bytes().to_vec());
            chain.pass(Crossing { frame, arrives: Instant::from_nanos(number * 100) }, &mut |crossing| {
                out.push((crossing.arrives.as_nanos(), crossing.frame));
            });
        }
        let mut set = CounterSet::default();
        chain.count(&mut set);
        (out, set)
    }

    #[test]
    fn impairments_are_off_by_default() {
        assert!(Impairments::default().chain(Seed(1)).is_empty());
        let off = Impairments {
            burst_loss: Some(Burst { share: Share::NEVER, mean_length: 3.0 }),
            reorder: Some(Reorder { share: Share::NEVER, hold: Duration::from_micros(1) }),
            ..Impairments::default()
        };
        assert!(off.chain(Seed(1)).is_empty());
    }

    #[test]
    fn runs_repeat_with_the_same_seed_only() {
        assert_eq!(run(all(), Seed(3)), run(all(), Seed(3)));
        assert_ne!(run(all(), Seed(3)).0, run(all(), Seed(4)).0);
    }

    #[test]
    fn added_impairment_does_not_affect_other_draws() {
        // Jitter and reordering come last in the chain, and only change times. The order of the output is the same.
        let without = Impairments { corrupt: Share::NEVER, jitter: Duration::ZERO, reorder: None, ..all() };
        let with = Impairments { corrupt: Share::NEVER, ..all() };
        let numbers = |run: (Vec<(u64, Frame)>, CounterSet)| run.0.into_iter().map(|(_, frame)| frame).collect();
        let (without, with): (Vec<Frame>, Vec<Frame>) = (numbers(run(without, Seed(5))), numbers(run(with, Seed(5))));
        assert_eq!(without, with, "the same frames are lost and doubled, however they are timed");
    }

    #[test]
    fn counters_explain_the_number_of_frames() {
        let (out, set) = run(all(), Seed(6));
        let lost = set.value("wire_lost") + set.value("wire_burst_lost") + set.value("wire_not_ect_dropped");
        assert_eq!(out.len() as u64, 20_000 - lost + set.value("wire_duplicated"));
        for name in [
            "wire_lost",
            "wire_burst_lost",
            "wire_not_ect_dropped",
            "wire_duplicated",
            "wire_corrupted",
            "wire_reordered",
        ] {
            // Each impairment must have acted, or the sum above would prove nothing.
            assert!(set.value(name) > 1000, "{name}: {}", set.value(name));
        }
    }
}
