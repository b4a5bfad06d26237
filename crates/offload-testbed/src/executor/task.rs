//! A task, and the order tasks run in.
//!
//! Invariant: a task is in the run queue at most once; one that is woken while it runs runs again.

use super::shared::Shared;
use crate::runtime::{TaskFuture, lock};
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Context, Waker};
use std::borrow::Cow;
use std::sync::{Arc, Mutex};
use std::task::Wake;

/// A future with a name. Its waker is the task itself.
pub(super) struct Task {
    name: Cow<'static, str>,
    /// Its place in the executor's table.
    key: usize,
    shared: Arc<Shared>,
    queued: AtomicBool,
    /// `None` once it has ended; never there for a future that somebody else polls.
    future: Mutex<Option<TaskFuture>>,
}

impl Task {
    pub(super) fn new(
        name: Cow<'static, str>,
        key: usize,
        shared: Arc<Shared>,
        future: Option<TaskFuture>,
    ) -> Arc<Task> {
        Arc::new(Task { name, key, shared, queued: AtomicBool::new(false), future: Mutex::new(future) })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Puts it at the end of the run queue, unless it is in it.
    pub(super) fn schedule(self: Arc<Task>) {
        if !self.queued.swap(true, Ordering::AcqRel) {
            let shared = self.shared.clone();
            shared.push_ready(self);
        }
    }

    /// It left the run queue: from here on, waking it puts it there again. Not a mere store: a waker that still
    /// found it queued has to be seen, with all it did before, by the poll that follows.
    pub(super) fn left_queue(&self) {
        self.queued.swap(false, Ordering::AcqRel);
    }

    /// Polls it once. A task that has ended is gone from the executor's table.
    pub(super) fn run(self: Arc<Task>) {
        self.left_queue();
        let waker = Waker::from(self.clone());
        let mut slot = lock(&self.future);
        let Some(future) = slot.as_mut() else { return };
        if future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
            let ended = slot.take();
            drop(slot);
            self.shared.forget(self.key);
            drop(ended);
        }
    }

    /// Drops the future, whatever it was waiting for.
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
