//! An executor: one thread, tasks in the order of their wakes, and an event queue in nanoseconds.
//!
//! The core has two forms:
//!
//! - [`VirtualTime`]: runs all tasks until none can continue, then jumps to the next event. Deterministic.
//! - [`RealTime`]: a thread of its own on the machine's clock, which spins for a while and then parks.
//!
//! `task` holds the tasks, `timers` the event queue, and `shared` the state shared by tasks, wakers and handles.

mod clock;
mod real_time;
mod shared;
mod task;
mod timers;
mod virtual_time;

pub use real_time::{RealTime, RealTimeConfig};
pub use virtual_time::VirtualTime;

use crate::runtime::{JoinHandle, Runtime, Sleep, TaskFuture, spawn_on};
use core::fmt;
use core::future::Future;
use core::time::Duration;
use offload_base::{Alarm, Clock, Instant, Timers};
use shared::ExecutorState;
use std::borrow::Cow;
use std::sync::Arc;
use timers::TaskAlarm;

/// A handle to an executor, for spawning tasks, reading the clock and making alarms from any task or thread.
///
/// ```
/// use core::time::Duration;
/// use offload_base::{Clock, Instant};
/// use offload_testbed::VirtualTime;
///
/// let mut run = VirtualTime::new();
/// let handle = run.handle();
/// let woken_at = run.block_on(async move {
///     let other = handle.clone();
///     let napper = handle.spawn("napper", async move {
///         other.sleep(Duration::from_millis(5)).await;
///         other.now()
///     });
///     napper.await
/// });
/// assert_eq!(woken_at, Instant::from_nanos(5_000_000));
/// ```
#[derive(Clone)]
pub struct Handle {
    shared: Arc<ExecutorState>,
}

impl Handle {
    /// Runs `future` under `name`, even if the returned handle is dropped. If the executor is gone, the future is
    /// dropped.
    pub fn spawn<T: Send + 'static>(
        &self,
        name: impl Into<Cow<'static, str>>,
        future: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        spawn_on(self, name.into(), future)
    }

    /// Returns a future that is ready after `span`.
    pub fn sleep(&self, span: Duration) -> Sleep {
        self.sleep_until(self.now() + span)
    }

    /// Returns a future that is ready at `deadline`.
    pub fn sleep_until(&self, deadline: Instant) -> Sleep {
        Sleep::new(self.alarm(), deadline)
    }
}

impl Clock for Handle {
    fn now(&self) -> Instant {
        self.shared.now()
    }
}

impl Timers for Handle {
    fn alarm(&self) -> Box<dyn Alarm> {
        Box::new(TaskAlarm::new(self.shared.clone()))
    }
}

impl Runtime for Handle {
    fn spawn_task(&self, name: Cow<'static, str>, task: TaskFuture) {
        ExecutorState::spawn(&self.shared, name, task);
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("now", &self.now()).field("tasks", &self.shared.task_names()).finish()
    }
}
