//! An executor that polls only what was woken, so that a wake that is missing shows as a standstill.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// Whether a task was woken.
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

pub(crate) type Task<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// Runs tasks until all are done; false if some wait and nobody is awake.
pub(crate) fn run(tasks: Vec<Task<'_>>) -> bool {
    run_beside(tasks, |_| false)
}

/// As [`run`], with something that goes on beside the tasks: `step` is called between polls, and told whether any task is
/// awake. False, when none is, says that nothing will ever happen again.
pub(crate) fn run_beside(tasks: Vec<Task<'_>>, mut step: impl FnMut(bool) -> bool) -> bool {
    let mut tasks: Vec<(Option<Task<'_>>, Arc<Flag>)> =
        tasks.into_iter().map(|task| (Some(task), Arc::new(Flag(AtomicBool::new(true))))).collect();
    loop {
        let mut polled = false;
        for (slot, flag) in &mut tasks {
            let Some(task) = slot else { continue };
            if !flag.0.swap(false, Ordering::Relaxed) {
                continue;
            }
            polled = true;
            if task.as_mut().poll(&mut Context::from_waker(&Waker::from(flag.clone()))).is_ready() {
                *slot = None;
            }
            step(true);
        }
        if !polled && !step(false) {
            return tasks.iter().all(|(task, _)| task.is_none());
        }
    }
}

/// Polls `future` at most so many times, then drops it.
pub(crate) async fn within<T>(polls: u64, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        let polled = future.as_mut().poll(cx).map(Some);
        if polled.is_pending() && left == 0 {
            // Given up at once, as when another branch is ready: no wake of this future will be heard.
            return Poll::Ready(None);
        }
        polled
    })
    .await
}

/// Lets the others go on.
pub(crate) async fn turn() {
    let mut waited = false;
    poll_fn(|cx| {
        if core::mem::replace(&mut waited, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
