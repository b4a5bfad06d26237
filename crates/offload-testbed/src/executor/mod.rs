//! Our own executor: one thread, tasks in the order they were woken, and an event queue in nanoseconds.
//!
//! Two forms of one core:
//!
//! - [`VirtualTime`]: runs every task until none can go on, then jumps to the next event. Deterministic.
//! - [`RealTime`]: a thread of its own on the machine's clock, that spins a while and then parks.
//!
//! `task` holds what is run, `timers` the event queue, `shared` what tasks, wakers and handles have in common.

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
use shared::Shared;
use std::borrow::Cow;
use std::sync::Arc;
use timers::TaskAlarm;

/// Spawns on an executor, tells its time and makes its alarms, from any task or thread.
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
    shared: Arc<Shared>,
}

impl Handle {
    /// Runs `future`, under `name`, whether or not anybody waits for what it comes to. On an executor that is
    /// gone, it is dropped.
    pub fn spawn<T: Send + 'static>(
        &self,
        name: impl Into<Cow<'static, str>>,
        future: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        spawn_on(self, name.into(), future)
    }

    /// Ready when `span` has passed.
    pub fn sleep(&self, span: Duration) -> Sleep {
        self.sleep_until(self.now() + span)
    }

    /// Ready when `deadline` has come.
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
        Shared::spawn(&self.shared, name, task);
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("now", &self.now()).field("tasks", &self.shared.task_names()).finish()
    }
}
