//! Time for state machines: nanoseconds since the start of a run.
//!
//! State machines take `now: Instant` and return the `Instant` of their next event. They never read a clock. Only the
//! shells around them own a [`Clock`].

use core::fmt;
use core::ops::{Add, AddAssign, Sub};
use core::task::{Context, Poll};
use core::time::Duration;

/// A point in time, in nanoseconds since the start of the run. Saturates after 584 years.
///
/// ```
/// use core::time::Duration;
/// use offload_base::Instant;
///
/// let sent = Instant::from_nanos(1_500);
/// let acknowledged = sent + Duration::from_micros(10);
/// assert_eq!(acknowledged - sent, Duration::from_micros(10));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(u64);

impl Instant {
    /// The start of the run.
    pub const ZERO: Instant = Instant(0);
    /// An instant later than every event: a deadline that never comes.
    pub const MAX: Instant = Instant(u64::MAX);

    /// Creates the instant `nanos` nanoseconds after the start.
    pub const fn from_nanos(nanos: u64) -> Instant {
        Instant(nanos)
    }

    /// Returns the nanoseconds since the start of the run.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the whole microseconds since the start of the run.
    pub const fn as_micros(self) -> u64 {
        self.0 / 1_000
    }

    /// Returns the whole milliseconds since the start of the run.
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// Returns the time from `earlier` to `self`, or zero if `earlier` is later.
    pub const fn saturating_since(self, earlier: Instant) -> Duration {
        // State machines compare times of different sources, and must not panic if two arrive out of order.
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Saturates at [`Instant::MAX`].
impl Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, span: Duration) -> Instant {
        // A span beyond 584 years ends at `Instant::MAX`, which is never reached anyway.
        let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        Instant(self.0.saturating_add(nanos))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, span: Duration) {
        *self = *self + span;
    }
}

/// Returns the time from the right-hand instant to the left-hand one, or zero if it would be negative.
impl Sub for Instant {
    type Output = Duration;
    fn sub(self, earlier: Instant) -> Duration {
        self.saturating_since(earlier)
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}s", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

/// A clock for the shells around the state machines: virtual, jumping from event to event, or real.
pub trait Clock: Send + Sync {
    /// Returns the present instant, which never decreases.
    fn now(&self) -> Instant;
}

/// The machine's monotonic clock, with the moment of its creation as zero. Copies agree, so all parts of a real-time
/// run use copies of one clock.
///
/// ```
/// use offload_base::{Clock, RealClock};
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
    /// Creates a clock that shows zero now.
    pub fn new() -> RealClock {
        RealClock { start: std::time::Instant::now() }
    }

    /// Converts `instant` to the machine's clock. Returns `None` if it cannot represent the instant.
    pub fn to_std(self, instant: Instant) -> Option<std::time::Instant> {
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

/// A clock that also makes alarms. A runtime, virtual or real, provides it to the shells that wait.
///
/// ```
/// use core::task::{Context, Poll, Waker};
/// use offload_base::Instant;
/// use offload_base::time::{Alarm, Clock, Timers};
///
/// /// A clock that stands still, for a test of past deadlines.
/// struct Stopped(Instant);
///
/// impl Clock for Stopped {
///     fn now(&self) -> Instant {
///         self.0
///     }
/// }
///
/// impl Timers for Stopped {
///     fn alarm(&self) -> Box<dyn Alarm> {
///         Box::new(Stopped(self.0))
///     }
/// }
///
/// impl Alarm for Stopped {
///     fn poll(&mut self, _: &mut Context<'_>, deadline: Option<Instant>) -> Poll<()> {
///         if deadline.is_some_and(|deadline| deadline <= self.0) { Poll::Ready(()) } else { Poll::Pending }
///     }
/// }
///
/// let mut alarm = Stopped(Instant::from_nanos(5)).alarm();
/// let mut cx = Context::from_waker(Waker::noop());
/// assert!(alarm.poll(&mut cx, Some(Instant::from_nanos(5))).is_ready());
/// assert!(alarm.poll(&mut cx, Some(Instant::from_nanos(6))).is_pending());
/// ```
pub trait Timers: Clock {
    /// Creates an alarm for one waiting task.
    fn alarm(&self) -> Box<dyn Alarm>;
}

/// The wait of one task for a point in time. Each poll sets the time anew.
pub trait Alarm: Send {
    /// Returns `Ready` once `deadline` has come. Otherwise wakes the task at the deadline, and no longer at the
    /// deadline of an earlier call. `None` never wakes the task. An alarm may be late, by a millisecond in real time,
    /// but is never early.
    fn poll(&mut self, cx: &mut Context<'_>, deadline: Option<Instant>) -> Poll<()>;
}

/// Returns the earlier of two optional deadlines.
///
/// ```
/// use offload_base::{Instant, time::earliest};
///
/// let soon = Some(Instant::from_nanos(5));
/// assert_eq!(earliest(None, soon), soon);
/// assert_eq!(earliest(Some(Instant::from_nanos(9)), soon), soon);
/// ```
#[inline]
pub fn earliest(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (one, None) | (None, one) => one,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates_at_both_ends() {
        assert_eq!(Instant::MAX + Duration::from_secs(1), Instant::MAX);
        assert_eq!(Instant::ZERO + Duration::MAX, Instant::MAX);
        assert_eq!(Instant::ZERO - Instant::from_nanos(1), Duration::ZERO);
    }

    #[test]
    fn instant_prints_as_seconds() {
        assert_eq!(format!("{:?}", Instant::from_nanos(1_000_000_042)), "1.000000042s");
    }
}
