//! The clock of an executor.

use core::sync::atomic::{AtomicU64, Ordering};
use offload_base::{Clock, Instant, RealClock};

/// Which clock an executor goes by.
#[derive(Debug)]
pub(super) enum ClockKind {
    /// Stands still but for the executor, which moves it from event to event.
    Virtual(AtomicU64),
    Real(RealClock),
}

impl ClockKind {
    pub(super) fn now(&self) -> Instant {
        match self {
            ClockKind::Virtual(nanos) => Instant::from_nanos(nanos.load(Ordering::Relaxed)),
            ClockKind::Real(clock) => clock.now(),
        }
    }

    /// Moves a virtual clock forward, never back.
    pub(super) fn advance(&self, to: Instant) {
        if let ClockKind::Virtual(nanos) = self {
            nanos.fetch_max(to.as_nanos(), Ordering::Relaxed);
        }
    }
}
