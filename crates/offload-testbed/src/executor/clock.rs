//! The two clocks.

use core::sync::atomic::{AtomicU64, Ordering};
use offload_base::{Clock, Instant};

/// The machine's monotonic clock, counted from the moment this was made. Copies agree: give all parts of a
/// real-time run copies of one.
///
/// ```
/// use offload_base::Clock;
/// use offload_testbed::RealClock;
///
/// let clock = RealClock::new();
/// let copy = clock;
/// assert!(clock.now() <= copy.now());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RealClock {
    start: std::time::Instant,
}

impl RealClock {
    /// A clock that shows zero now.
    pub fn new() -> RealClock {
        RealClock { start: std::time::Instant::now() }
    }

    /// When the machine's clock shows what is `instant` here; `None` if it never will.
    pub(crate) fn to_std(self, instant: Instant) -> Option<std::time::Instant> {
        self.start.checked_add(instant - Instant::ZERO)
    }
}

impl Default for RealClock {
    fn default() -> RealClock {
        RealClock::new()
    }
}

impl Clock for RealClock {
    fn now(&self) -> Instant {
        Instant::ZERO + self.start.elapsed()
    }
}

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
