//! tokio for applications in real time, on the clock of the devices.
//!
//! Hosts, devices and wires of a [`Testbed`](crate::Testbed) run on a [`RealTime`](crate::RealTime) executor, because
//! microseconds matter there: tokio's timers count milliseconds, and its threads sleep at once.

use crate::runtime::{Runtime, TaskFuture};
use offload_api::TokioTimers;
use offload_base::cost::{self, CpuMeter, MeterGuard};
use offload_base::{Alarm, Clock, Instant, RealClock, Timers};
use std::borrow::Cow;
use std::cell::RefCell;
use std::io;
use tokio::runtime::Builder;

/// A tokio runtime as a [`Runtime`].
///
/// ```
/// use core::time::Duration;
/// use std::sync::Arc;
/// use offload_testbed::tokio_runtime::start;
/// use offload_base::RealClock;
/// use offload_testbed::{Runtime, TokioRuntime};
///
/// let tokio = start(1, None)?;
/// let runtime: Arc<dyn Runtime> = Arc::new(TokioRuntime::new(tokio.handle().clone(), RealClock::new()));
/// let napper = runtime.clone();
/// let nap = runtime.spawn("nap", async move {
///     napper.sleep(Duration::from_millis(1)).await;
///     42
/// });
/// assert_eq!(tokio.block_on(nap), 42);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct TokioRuntime {
    tokio: tokio::runtime::Handle,
    timers: TokioTimers,
}

impl TokioRuntime {
    /// Creates a runtime with tasks on `tokio`, which must have timers enabled, and the time of `clock`.
    pub fn new(tokio: tokio::runtime::Handle, clock: RealClock) -> TokioRuntime {
        TokioRuntime { timers: TokioTimers::new(tokio.clone(), clock), tokio }
    }
}

/// Starts tokio on `threads` worker threads, with all compiled features enabled.
///
/// If a meter is given, the threads are metered; their time is in the meter after the runtime is dropped. Only tasks
/// are metered: `block_on` runs its future on the calling thread.
///
/// See [`TokioRuntime`] for an example.
///
/// # Errors
/// If the system refuses threads, or the crate was built without the feature `real-time`.
///
/// # Panics
/// If `threads` is zero.
pub fn start(threads: usize, meter: Option<CpuMeter>) -> io::Result<tokio::runtime::Runtime> {
    let mut builder = multi_thread()?;
    builder.worker_threads(threads).max_blocking_threads(BLOCKING_THREADS).thread_name("tokio").enable_all();
    if let Some(meter) = meter {
        builder
            .on_thread_start(move || ATTACHED.set(Some(meter.attach())))
            .on_thread_stop(|| drop(ATTACHED.take()))
            .on_thread_park(cost::park)
            .on_thread_unpark(cost::unpark);
    }
    builder.build()
}

#[cfg(feature = "real-time")]
fn multi_thread() -> io::Result<Builder> {
    Ok(Builder::new_multi_thread())
}

#[cfg(not(feature = "real-time"))]
fn multi_thread() -> io::Result<Builder> {
    let missing = "real time needs the feature `real-time` of offload-testbed";
    Err(io::Error::new(io::ErrorKind::Unsupported, missing))
}

impl Clock for TokioRuntime {
    fn now(&self) -> Instant {
        self.timers.now()
    }
}

impl Timers for TokioRuntime {
    fn alarm(&self) -> Box<dyn Alarm> {
        self.timers.alarm()
    }
}

impl Runtime for TokioRuntime {
    fn spawn_task(&self, _name: Cow<'static, str>, task: TaskFuture) {
        // tokio's tasks have no names; a waiting task holds the handle.
        drop(self.tokio.spawn(task));
    }
}

thread_local! {
    static ATTACHED: RefCell<Option<MeterGuard>> = const { RefCell::new(None) };
}

/// Maximum number of threads for blocking calls, such as reading files. Each thread needs a stack and an allocator
/// arena in address space that may be limited. tokio's default is 512.
const BLOCKING_THREADS: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;
    use offload_base::cost::Domain;
    use std::sync::Arc;

    fn runtime() -> (tokio::runtime::Runtime, Arc<dyn Runtime>) {
        let tokio = start(1, None).expect("a thread");
        let runtime = Arc::new(TokioRuntime::new(tokio.handle().clone(), RealClock::new()));
        (tokio, runtime)
    }

    #[test]
    fn worker_threads_are_metered_and_their_waits_are_not() {
        let meter = CpuMeter::new();
        let tokio = start(2, Some(meter.clone())).expect("threads");
        let runtime: Arc<dyn Runtime> = Arc::new(TokioRuntime::new(tokio.handle().clone(), RealClock::new()));
        let timers = runtime.clone();
        tokio.block_on(runtime.spawn("work", async move {
            timers.sleep(Duration::from_millis(2)).await;
            crate::in_domain(Domain::Host(0), async {
                for round in 0..1_000_000 {
                    core::hint::black_box(round);
                }
            })
            .await;
        }));
        drop(tokio);
        let report = meter.take();
        assert!(report.total(Domain::Host(0)) > Duration::ZERO);
        assert_eq!(report.total(Domain::Parked), Duration::ZERO);
    }

    #[test]
    #[should_panic(expected = "\"doomed\" was dropped")]
    fn panic_reaches_waiters() {
        let (tokio, runtime) = runtime();
        tokio.block_on(runtime.spawn("doomed", async { panic!("on purpose") }));
    }
}
