//! The clock of an executor.

use core::sync::atomic::{AtomicU64, Ordering};
use offload_base::{Clock, Instant, RealClock};

/// The clock that an executor reads.
#[derive(Debug)]
pub(super) enum ExecutorClock {
    /// Virtual nanoseconds. Only the executor advances them, from event to event.
    Virtual(AtomicU64),
    Real(RealClock),
}

impl ExecutorClock {
    pub(super) fn now(&self) -> Instant {
        match self {
            ExecutorClock::Virtual(nanos) => Instant::from_nanos(nanos.load(Ordering::Relaxed)),
            ExecutorClock::Real(clock) => clock.now(),
        }
    }

    /// Advances a virtual clock; never moves it back.
    pub(super) fn advance(&self, to: Instant) {
        if let ExecutorClock::Virtual(nanos) = self {
            nanos.fetch_max(to.as_nanos(), Ordering::Relaxed);
        }
    }
}
