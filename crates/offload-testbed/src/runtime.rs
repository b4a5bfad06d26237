//! What the shells of hosts, devices and wires are run by: tasks and alarms, in virtual or in real time.
//!
//! Code that takes an `Arc<dyn Runtime>` runs in both, and may neither spawn nor sleep by any other means: a
//! tokio timer does not know virtual time.

use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use offload_base::{Alarm, Instant, Timers};
use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard};

/// A task: a future that nobody waits for but its runtime.
pub type TaskFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs tasks, and makes alarms for them.
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
    /// Runs `future`, under `name`, whether or not anybody waits for what it comes to.
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
        Sleep { alarm: self.alarm(), deadline }
    }
}

/// Gives the task a place to leave its result, and has `runtime` run it.
pub(crate) fn spawn_on<T: Send + 'static>(
    runtime: &(impl Runtime + ?Sized),
    name: Cow<'static, str>,
    future: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    let outcome = Arc::new(Mutex::new(Outcome::Running(None)));
    let promise = Promise { outcome: outcome.clone() };
    runtime.spawn_task(name.clone(), Box::pin(async move { promise.keep(future.await) }));
    JoinHandle { name, outcome }
}

/// Waits for what a task comes to; dropped, it lets the task run on.
///
/// See [`Runtime`] for an example.
///
/// # Panics
/// When polled after the task was dropped before its end (its runtime was), or after it was ready already.
pub struct JoinHandle<T> {
    name: Cow<'static, str>,
    outcome: Arc<Mutex<Outcome<T>>>,
}

impl<T> JoinHandle<T> {
    /// Whether the task has come to its end, or was dropped.
    pub fn is_finished(&self) -> bool {
        !matches!(*lock(&self.outcome), Outcome::Running(_))
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let mut outcome = lock(&self.outcome);
        match &mut *outcome {
            Outcome::Running(waiting) => {
                match waiting {
                    Some(waker) => waker.clone_from(cx.waker()),
                    None => *waiting = Some(cx.waker().clone()),
                }
                return Poll::Pending;
            }
            Outcome::Finished(result) => {
                if let Some(result) = result.take() {
                    return Poll::Ready(result);
                }
            }
            Outcome::Dropped => {
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

enum Outcome<T> {
    Running(Option<Waker>),
    Finished(Option<T>),
    Dropped,
}

/// The task's side of a [`JoinHandle`].
struct Promise<T> {
    outcome: Arc<Mutex<Outcome<T>>>,
}

impl<T> Promise<T> {
    fn keep(self, result: T) {
        self.settle(Outcome::Finished(Some(result)));
    }

    /// The first call counts: a promise that was kept is dropped afterwards.
    fn settle(&self, settled: Outcome<T>) {
        let mut outcome = lock(&self.outcome);
        let waiting = match &mut *outcome {
            Outcome::Running(waiting) => waiting.take(),
            _ => return,
        };
        *outcome = settled;
        drop(outcome);
        if let Some(waker) = waiting {
            waker.wake();
        }
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        self.settle(Outcome::Dropped);
    }
}

/// Ready at a point in time. Made by a [`Runtime`] or a [`Handle`](crate::Handle).
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

/// Nothing here leaves shared state half changed, so a lock that a panic poisoned is as good as any.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
