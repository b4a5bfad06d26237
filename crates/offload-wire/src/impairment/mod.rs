//! What may happen to a frame on its way: small rules that compose.
//!
//! A rule sees a frame that has left the line, and the time it would arrive, and hands on what becomes of it:
//! the same, something else, more, nothing. [`Impairments`] describes the usual ones; [`ImpairmentChain`] is
//! them at work, each drawing from a random stream of its own, so that one more rule does not change what the
//! others do. All of them are off by default, and each counts what it did.
//!
//! The order of the chain: [`Loss`], [`BurstLoss`], [`Mark`], [`Duplicate`], [`Corrupt`], [`Jitter`], [`Reorder`]. A copy
//! is corrupted or held back independently of its original; jitter keeps the order, so what is reordered is
//! reordered after it.

mod corrupt;
mod cut;
mod duplicate;
mod loss;
mod mark;
mod share;
mod timing;

pub use corrupt::Corrupt;
pub use cut::Cut;
pub use duplicate::Duplicate;
pub use loss::{Burst, BurstLoss, Loss};
pub use mark::Mark;
pub use share::{InvalidShare, Share};
pub use timing::{Jitter, Reorder, Reordering};

use crate::frame::Frame;
use core::fmt;
use core::time::Duration;
use offload_base::counters::{CounterSet, Counters};
use offload_base::{Instant, Seed};

/// A frame on its way.
///
/// See [`Impairment`] for an example.
#[derive(Clone, Debug)]
pub struct Crossing {
    /// The frame.
    pub frame: Frame,
    /// When it arrives, as things stand.
    pub arrives: Instant,
}

/// Something that may happen to a frame on its way.
///
/// ```
/// use offload_wire::{Crossing, Impairment};
/// use offload_base::Instant;
/// use offload_base::counters::Counters;
///
/// offload_base::counters! {
///     /// What was too long.
///     pub struct Oversize {
///         /// Frames dropped.
///         pub dropped: "wire_oversize",
///     }
/// }
///
/// /// A stretch of the way that carries no long frames.
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
    /// Calls `onward` for each frame that goes on: not at all if this one is lost, twice if it is doubled.
    fn pass(&mut self, crossing: Crossing, onward: &mut dyn FnMut(Crossing));

    /// What it did so far.
    fn counters(&self) -> &dyn Counters;
}

/// Which impairments a link has. None by default.
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
    /// Frames lost, each independently of the others.
    pub loss: Share,
    /// Frames lost in bursts.
    pub burst_loss: Option<Burst>,
    /// Packets marked "congestion experienced" (RFC 3168), or lost if they are not ECN-capable.
    pub mark: Share,
    /// Frames that arrive twice.
    pub duplicate: Share,
    /// Frames in which one bit is flipped.
    pub corrupt: Share,
    /// The most a frame is delayed by chance, without overtaking.
    pub jitter: Duration,
    /// Frames held back, so that others overtake them.
    pub reorder: Option<Reorder>,
}

impl Impairments {
    /// The impairments that are on, at work, drawing from streams of `seed`.
    pub fn chain(&self, seed: Seed) -> ImpairmentChain {
        let mut chain = ImpairmentChain::default();
        if self.loss != Share::NEVER {
            chain.push(Box::new(Loss::new(self.loss, seed.stream("loss"))));
        }
        if let Some(burst) = self.burst_loss.filter(|burst| burst.share != Share::NEVER) {
            chain.push(Box::new(BurstLoss::new(burst, seed.stream("burst loss"))));
        }
        if self.mark != Share::NEVER {
            chain.push(Box::new(Mark::new(self.mark, seed.stream("mark"))));
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

/// Impairments one after the other.
///
/// See [`Impairments`] for an example.
#[derive(Debug, Default)]
pub struct ImpairmentChain {
    impairments: Vec<Box<dyn Impairment>>,
}

impl ImpairmentChain {
    /// Adds one at the end.
    pub fn push(&mut self, impairment: Box<dyn Impairment>) {
        self.impairments.push(impairment);
    }

    /// Sends a frame through all of them, and calls `onward` for what comes out.
    pub fn pass(&mut self, crossing: Crossing, onward: &mut dyn FnMut(Crossing)) {
        pass(&mut self.impairments, crossing, onward);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.impairments.len()
    }

    /// Whether frames pass as they are.
    pub fn is_empty(&self) -> bool {
        self.impairments.is_empty()
    }

    /// Adds what they counted to `set`.
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
    fn off_by_default() {
        assert!(Impairments::default().chain(Seed(1)).is_empty());
        let off = Impairments {
            burst_loss: Some(Burst { share: Share::NEVER, mean_length: 3.0 }),
            reorder: Some(Reorder { share: Share::NEVER, hold: Duration::from_micros(1) }),
            ..Impairments::default()
        };
        assert!(off.chain(Seed(1)).is_empty());
    }

    #[test]
    fn the_same_seed_does_the_same_and_another_does_not() {
        assert_eq!(run(all(), Seed(3)), run(all(), Seed(3)));
        assert_ne!(run(all(), Seed(3)).0, run(all(), Seed(4)).0);
    }

    #[test]
    fn one_more_impairment_does_not_change_what_the_others_draw() {
        let without = Impairments { corrupt: Share::NEVER, jitter: Duration::ZERO, reorder: None, ..all() };
        let with = Impairments { corrupt: Share::NEVER, ..all() };
        let numbers = |run: (Vec<(u64, Frame)>, CounterSet)| run.0.into_iter().map(|(_, frame)| frame).collect();
        let (without, with): (Vec<Frame>, Vec<Frame>) = (numbers(run(without, Seed(5))), numbers(run(with, Seed(5))));
        assert_eq!(without, with, "the same frames are lost and doubled, however they are timed");
    }

    #[test]
    fn what_was_counted_explains_how_many_frames_came_out() {
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
            assert!(set.value(name) > 1000, "{name}: {}", set.value(name));
        }
    }
}
