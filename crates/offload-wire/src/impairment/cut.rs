//! A wire that is cut, and possibly repaired.

use super::{Crossing, Impairment};
use core::ops::Range;
use offload_base::Instant;
use offload_base::counters::Counters;

offload_base::counters! {
    /// Counters of a cut wire.
    pub struct CutCounters {
        /// Frames lost.
        pub lost: "wire_cut",
    }
}

/// An impairment that loses every frame that would arrive within a time span.
///
/// ```
/// use offload_wire::impairment::{Crossing, WireCut, Impairment};
/// use offload_base::Instant;
///
/// let mut cut = WireCut::new(Instant::from_nanos(20)..Instant::MAX);
/// let mut arrived = 0;
/// for at in [19, 20, 21] {
///     let crossing = Crossing { frame: vec![0; 60].into(), arrives: Instant::from_nanos(at) };
///     cut.pass(crossing, &mut |_| arrived += 1);
/// }
/// assert_eq!(arrived, 1);
/// ```
#[derive(Debug)]
pub struct WireCut {
    span: Range<Instant>,
    counters: CutCounters,
}

impl WireCut {
    /// Loses every frame that would arrive within `span`.
    pub fn new(span: Range<Instant>) -> WireCut {
        WireCut { span, counters: CutCounters::default() }
    }
}

impl Impairment for WireCut {
    fn pass(&mut self, crossing: Crossing, onward: &mut dyn FnMut(Crossing)) {
        if self.span.contains(&crossing.arrives) {
            self.counters.lost += 1;
        } else {
            onward(crossing);
        }
    }

    fn counters(&self) -> &dyn Counters {
        &self.counters
    }
}
