//! Duplication: frames that arrive twice.

use super::{Crossing, Impairment, Share};
use offload_base::Rng;
use offload_base::counters::Counters;

offload_base::counters! {
    /// Counters of duplication.
    pub struct DuplicateCounters {
        /// Frames duplicated.
        pub duplicated: "wire_duplicated",
    }
}

/// An impairment that duplicates a share of the frames. The copy arrives right after the original, and takes no time
/// on the line.
///
/// ```
/// use offload_wire::impairment::{Crossing, Duplicate, Impairment, Share};
/// use offload_base::{Instant, Seed};
///
/// let mut duplicate = Duplicate::new(Share::ALWAYS, Seed(1).stream("duplicate"));
/// let mut arrived = 0;
/// duplicate.pass(Crossing { frame: vec![0; 60].into(), arrives: Instant::ZERO }, &mut |_| arrived += 1);
/// assert_eq!(arrived, 2);
/// ```
#[derive(Debug)]
pub struct Duplicate {
    share: Share,
    rng: Rng,
    counters: DuplicateCounters,
}

impl Duplicate {
    /// Duplicates `share` of the frames.
    pub fn new(share: Share, rng: Rng) -> Duplicate {
        Duplicate { share, rng, counters: DuplicateCounters::default() }
    }
}

impl Impairment for Duplicate {
    fn pass(&mut self, crossing: Crossing, onward: &mut dyn FnMut(Crossing)) {
        if self.rng.chance(self.share.as_f64()) {
            self.counters.duplicated += 1;
            // The clone shares the bytes. Later impairments copy them before a change.
            onward(crossing.clone());
        }
        onward(crossing);
    }

    fn counters(&self) -> &dyn Counters {
        &self.counters
    }
}
