//! A task and its schedule.
//!
//! Invariant: a task is in the run queue at most once. A task that is woken while it runs will run again.

use super::shared::ExecutorState;
use crate::runtime::{TaskFuture, lock};
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Context, Waker};
use std::borrow::Cow;
use std::sync::{Arc, Mutex};
use std::task::Wake;

/// A named future. The task is its own waker.
pub(super) struct Task {
    name: Cow<'static, str>,
    /// Key in the executor's table of tasks.
    key: usize,
    shared: Arc<ExecutorState>,
    queued: AtomicBool,
    /// The future. `None` once the task has ended, and always for a future that `block_on` polls.
    future: Mutex<Option<TaskFuture>>,
}

impl Task {
    pub(super) fn new(
        name: Cow<'static, str>,
        key: usize,
        shared: Arc<ExecutorState>,
        future: Option<TaskFuture>,
    ) -> Arc<Task> {
        Arc::new(Task { name, key, shared, queued: AtomicBool::new(false), future: Mutex::new(future) })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Appends the task to the run queue unless it is queued already.
    pub(super) fn schedule(self: Arc<Task>) {
        if !self.queued.swap(true, Ordering::AcqRel) {
            let shared = self.shared.clone();
            shared.push_ready(self);
        }
    }

    /// Marks the task as not queued, so that a wake queues it again. This must be a swap and not a plain store: the
    /// poll that follows must see all writes made by a waker that still found the task queued.
    pub(super) fn left_queue(&self) {
        self.queued.swap(false, Ordering::AcqRel);
    }

    /// Polls the task once. An ended task is removed from the executor's table.
    pub(super) fn run(self: Arc<Task>) {
        self.left_queue();
        let waker = Waker::from(self.clone());
        let mut slot = lock(&self.future);
        // A wake may come after the task's end.
        let Some(future) = slot.as_mut() else { return };
        if future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
            let ended = slot.take();
            // The future's destructor may wake or spawn tasks, so the lock is released first.
            drop(slot);
            self.shared.forget(self.key);
            drop(ended);
        }
    }

    /// Drops the future in any state.
    pub(super) fn cancel(&self) {
        let future = lock(&self.future).take();
        drop(future);
    }
}

impl Wake for Task {
    fn wake(self: Arc<Task>) {
        self.schedule();
    }

    fn wake_by_ref(self: &Arc<Task>) {
        if !self.queued.swap(true, Ordering::AcqRel) {
            self.shared.push_ready(self.clone());
        }
    }
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").field("name", &self.name).finish_non_exhaustive()
    }
}
