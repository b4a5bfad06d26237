//! The tasks that wait for one stream: its reader, its writer, and a protocol layer that listens for device events.
//!
//! A transport stores one waker per event, but several tasks may wait for the same event. The transport is therefore
//! given the waker of `TaskWakers`, which wakes all waiting tasks.
//!
//! Invariant: every task that registered is woken by the next wake, no matter which task polled last.

use core::task::{Context, Waker};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Wake;

/// The wakers of the waiting tasks, by [`TaskRole`].
#[derive(Debug, Default)]
struct TaskWakers {
    waiting: Mutex<[Option<Waker>; TASKS]>,
}

/// The role of a task at a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskRole {
    /// Receives.
    Reader,
    /// Sends.
    Writer,
    /// Waits for device events.
    Listener,
}

/// The waiting tasks of a stream, and one waker for all of them.
///
/// ```
/// use core::task::{Context, Waker};
/// use offload_base::tasks::{TaskRole, WaitingTasks};
///
/// let tasks = WaitingTasks::default();
/// tasks.wait(TaskRole::Reader, &Context::from_waker(Waker::noop()));
/// tasks.wait(TaskRole::Writer, &Context::from_waker(Waker::noop()));
/// // A transport that keeps one waker gets this waker; waking it wakes both tasks.
/// tasks.waker().wake();
/// ```
#[derive(Debug)]
pub struct WaitingTasks {
    tasks: Arc<TaskWakers>,
    waker: Waker,
}

impl Default for WaitingTasks {
    fn default() -> WaitingTasks {
        let tasks = Arc::new(TaskWakers::default());
        WaitingTasks { waker: tasks.clone().into(), tasks }
    }
}

impl WaitingTasks {
    /// Registers `task` as waiting.
    pub fn wait(&self, task: TaskRole, cx: &Context<'_>) {
        let mut waiting = self.tasks.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = &mut waiting[task as usize];
        // Cloning a waker costs an atomic operation, and most polls come from the same task as before.
        if !kept.as_ref().is_some_and(|kept| kept.will_wake(cx.waker())) {
            *kept = Some(cx.waker().clone());
        }
    }

    /// Returns a waker that wakes all waiting tasks.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Borrows the waker that wakes all waiting tasks.
    pub fn waker_ref(&self) -> &Waker {
        &self.waker
    }

    /// Wakes all waiting tasks.
    pub fn wake_all(&self) {
        self.tasks.wake_but(None, false);
    }

    /// Wakes all waiting tasks except `task`, which keeps waiting.
    pub fn wake_others(&self, task: TaskRole) {
        self.tasks.wake_but(Some(task), true);
    }

    /// Notes that `task` no longer waits, and wakes the other tasks.
    pub fn done(&self, task: TaskRole) {
        self.tasks.wake_but(Some(task), false);
    }
}

impl TaskWakers {
    fn wake_but(&self, knows: Option<TaskRole>, waits_on: bool) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let mut woken = core::mem::take(&mut *waiting);
        if let Some(task) = knows {
            let kept = woken[task as usize].take();
            waiting[task as usize] = kept.filter(|_| waits_on);
        }
        drop(waiting); // A waker may poll its task at once, and the task may register again.
        woken.into_iter().flatten().for_each(Waker::wake);
    }
}

impl Wake for TaskWakers {
    fn wake(self: Arc<Self>) {
        self.wake_but(None, false);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.wake_but(None, false);
    }
}

const TASKS: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[derive(Default)]
    struct CountingWaker(AtomicUsize);

    impl Wake for CountingWaker {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn each_waiting_task_is_woken_once() {
        let [reader, writer] = [(); 2].map(|()| Arc::new(CountingWaker::default()));
        let (reading, writing) = (Waker::from(reader.clone()), Waker::from(writer.clone()));
        let waiting = WaitingTasks::default();
        waiting.wait(TaskRole::Writer, &Context::from_waker(&writing));
        waiting.wait(TaskRole::Reader, &Context::from_waker(&reading));
        waiting.waker().wake();
        waiting.waker().wake_by_ref();
        let woken = || [&reader, &writer].map(|task| task.0.load(Ordering::Relaxed));
        assert_eq!(woken(), [1, 1]);
        waiting.wait(TaskRole::Writer, &Context::from_waker(&writing));
        waiting.wait(TaskRole::Reader, &Context::from_waker(&reading));
        waiting.wake_others(TaskRole::Writer);
        assert_eq!(woken(), [2, 1]);
        waiting.done(TaskRole::Reader);
        assert_eq!(woken(), [2, 2], "the writer still waited");
        waiting.wake_all();
        assert_eq!(woken(), [2, 2], "nobody waits");
    }
}
