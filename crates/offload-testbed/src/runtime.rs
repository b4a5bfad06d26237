//! The runtime interface: tasks and alarms for hosts, devices and wires, in virtual or in real time.
//!
//! Code that takes an `Arc<dyn Runtime>` runs in both kinds of time, and must neither spawn nor sleep by other means:
//! for example, a tokio timer does not know virtual time.

use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use offload_base::{Alarm, Instant, Timers};
use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard};

/// A task: a future that only its runtime polls.
pub type TaskFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A runtime of tasks, with alarms for them.
///
/// ```
/// use core::time::Duration;
/// use std::sync::Arc;
/// use offload_testbed::{Runtime, VirtualTime};
///
/// async fn shell(runtime: Arc<dyn Runtime>) -> u32 {
///     let answer = runtime.spawn("answer", async { 42 });
///     runtime.sleep(Duration::from_secs(3600)).await;
///     answer.await
/// }
///
/// let mut run = VirtualTime::new();
/// let runtime: Arc<dyn Runtime> = Arc::new(run.handle());
/// assert_eq!(run.block_on(shell(runtime)), 42); // an hour later, at once
/// ```
pub trait Runtime: Timers {
    /// Runs `task` to its end, under `name`.
    fn spawn_task(&self, name: Cow<'static, str>, task: TaskFuture);
}

impl dyn Runtime {
    /// Runs `future` under `name`, even if the returned handle is dropped.
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
        Sleep { alarm: self.alarm(), deadline }
    }
}

/// Spawns a future on `runtime` and returns a handle of its result.
pub(crate) fn spawn_on<T: Send + 'static>(
    runtime: &(impl Runtime + ?Sized),
    name: Cow<'static, str>,
    future: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    let outcome = Arc::new(Mutex::new(TaskOutcome::Running(None)));
    let promise = Promise { outcome: outcome.clone() };
    runtime.spawn_task(name.clone(), Box::pin(async move { promise.keep(future.await) }));
    JoinHandle { name, outcome }
}

/// A future of a task's result. If dropped, the task keeps running.
///
/// See [`Runtime`] for an example.
///
/// # Panics
/// If polled after the task has been dropped before its end, for example with its runtime, or after the result has been
/// taken.
pub struct JoinHandle<T> {
    name: Cow<'static, str>,
    outcome: Arc<Mutex<TaskOutcome<T>>>,
}

impl<T> JoinHandle<T> {
    /// Returns whether the task has ended or was dropped.
    pub fn is_finished(&self) -> bool {
        !matches!(*lock(&self.outcome), TaskOutcome::Running(_))
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let mut outcome = lock(&self.outcome);
        match &mut *outcome {
            TaskOutcome::Running(waiting) => {
                match waiting {
                    // The handle may have moved to another task, so the latest waker counts.
                    Some(waker) => waker.clone_from(cx.waker()),
                    None => *waiting = Some(cx.waker().clone()),
                }
                return Poll::Pending;
            }
            TaskOutcome::Finished(result) => {
                if let Some(result) = result.take() {
                    return Poll::Ready(result);
                }
            }
            TaskOutcome::Dropped => {
                drop(outcome);
                panic!("task {:?} was dropped before it came to its end", self.name);
            }
        }
        drop(outcome);
        panic!("the result of task {:?} was taken already", self.name);
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle").field("name", &self.name).field("finished", &self.is_finished()).finish()
    }
}

enum TaskOutcome<T> {
    Running(Option<Waker>),
    Finished(Option<T>),
    Dropped,
}

/// The task's end of a [`JoinHandle`].
struct Promise<T> {
    outcome: Arc<Mutex<TaskOutcome<T>>>,
}

impl<T> Promise<T> {
    fn keep(self, result: T) {
        self.complete(TaskOutcome::Finished(Some(result)));
    }

    /// Stores the result. Only the first call counts, because a promise that was kept is dropped afterwards.
    fn complete(&self, settled: TaskOutcome<T>) {
        let mut outcome = lock(&self.outcome);
        let waiting = match &mut *outcome {
            TaskOutcome::Running(waiting) => waiting.take(),
            _ => return,
        };
        *outcome = settled;
        // The waker may run code that takes this lock.
        drop(outcome);
        if let Some(waker) = waiting {
            waker.wake();
        }
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        self.complete(TaskOutcome::Dropped);
    }
}

/// A future that is ready at an instant. Made by a [`Runtime`] or a [`Handle`](crate::Handle).
///
/// See [`Runtime`] for an example.
pub struct Sleep {
    alarm: Box<dyn Alarm>,
    deadline: Instant,
}

impl Sleep {
    pub(crate) fn new(alarm: Box<dyn Alarm>, deadline: Instant) -> Sleep {
        Sleep { alarm, deadline }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let deadline = self.deadline;
        self.alarm.poll(cx, Some(deadline))
    }
}

impl fmt::Debug for Sleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sleep").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}

/// Locks a mutex and ignores poisoning, because no critical section here leaves shared state half changed.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
