//! The timers of tokio as [`Timers`].

use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use offload_base::{Alarm, Clock, Instant, RealClock, Timers};
use tokio::runtime::Handle;

/// The timers of a tokio runtime, for protocols that run on it. The resolution is a millisecond. (Feature `tokio`.)
///
/// ```
/// use core::future::poll_fn;
/// use core::time::Duration;
/// use offload_api::TokioTimers;
/// use offload_base::{Clock, Timers};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let timers = TokioTimers::current();
/// let deadline = timers.now() + Duration::from_millis(1);
/// let mut alarm = timers.alarm();
/// poll_fn(|cx| alarm.poll(cx, Some(deadline))).await;
/// assert!(timers.now() >= deadline);
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct TokioTimers {
    tokio: Handle,
    clock: RealClock,
}

impl TokioTimers {
    /// Makes timers of the runtime `tokio`, which must have time enabled, with `clock` as the clock.
    pub fn new(tokio: Handle, clock: RealClock) -> TokioTimers {
        TokioTimers { tokio, clock }
    }

    /// Makes timers of the current runtime, with a clock that starts now.
    ///
    /// # Panics
    /// If the caller runs outside of a tokio runtime.
    pub fn current() -> TokioTimers {
        TokioTimers::new(Handle::current(), RealClock::new())
    }
}

impl Clock for TokioTimers {
    fn now(&self) -> Instant {
        self.clock.now()
    }
}

impl Timers for TokioTimers {
    fn alarm(&self) -> Box<dyn Alarm> {
        Box::new(TokioAlarm { timers: self.clone(), pending: None })
    }
}

struct TokioAlarm {
    timers: TokioTimers,
    /// The armed deadline and tokio's timer.
    pending: Option<(Instant, Pin<Box<tokio::time::Sleep>>)>,
}

impl Alarm for TokioAlarm {
    fn poll(&mut self, cx: &mut Context<'_>, deadline: Option<Instant>) -> Poll<()> {
        // A deadline beyond the clock's range never comes.
        let Some((deadline, at)) = deadline.and_then(|at| Some((at, self.timers.clock.to_std(at)?))) else {
            self.pending = None;
            return Poll::Pending;
        };
        // tokio rounds deadlines up to a millisecond, so a deadline in the past is answered without a timer.
        if deadline <= self.timers.clock.now() {
            self.pending = None;
            return Poll::Ready(());
        }
        let sleep = match &mut self.pending {
            Some((present, sleep)) => {
                if *present != deadline {
                    *present = deadline;
                    // Resetting avoids a new registration.
                    sleep.as_mut().reset(at.into());
                }
                sleep
            }
            None => {
                // A timer can be created only inside of the runtime's context.
                let _context = self.timers.tokio.enter();
                let sleep = Box::pin(tokio::time::sleep_until(at.into()));
                &mut self.pending.insert((deadline, sleep)).1
            }
        };
        let poll = sleep.as_mut().poll(cx);
        if poll.is_ready() {
            self.pending = None;
        }
        poll
    }
}

impl fmt::Debug for TokioAlarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokioAlarm").field("deadline", &self.pending.as_ref().map(|(at, _)| at)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::future::poll_fn;
    use core::time::Duration;

    #[tokio::test]
    async fn alarms_are_never_early_and_follow_their_deadline() {
        let timers = TokioTimers::current();
        let mut alarm = timers.alarm();
        let far = timers.now() + Duration::from_secs(3600);
        let deadline = timers.now() + Duration::from_millis(3);
        let mut first = true;
        poll_fn(|cx| {
            if core::mem::take(&mut first) {
                assert!(alarm.poll(cx, Some(far)).is_pending());
                assert!(alarm.poll(cx, None).is_pending());
                assert!(alarm.poll(cx, Some(Instant::MAX)).is_pending());
                assert!(alarm.poll(cx, Some(far)).is_pending());
            }
            alarm.poll(cx, Some(deadline))
        })
        .await;
        assert!(timers.now() >= deadline);
        poll_fn(|cx| alarm.poll(cx, Some(deadline))).await; // past already
    }
}
