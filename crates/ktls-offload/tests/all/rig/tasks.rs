//! An executor that polls only woken tasks, so that a missing wake shows as a standstill.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// A flag that tells whether a task was woken.
struct WakeFlag(AtomicBool);

impl Wake for WakeFlag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

pub(crate) type TlsTask<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// Runs tasks until all are complete. Returns false if some are pending and no task is woken.
pub(crate) fn run(tasks: Vec<TlsTask<'_>>) -> bool {
    run_beside(tasks, |_| false)
}

/// Runs tasks like [`run`], with another activity: `step` is called between polls and told whether any task is awake.
/// It returns false if no task is awake and nothing more will happen.
pub(crate) fn run_beside(tasks: Vec<TlsTask<'_>>, mut step: impl FnMut(bool) -> bool) -> bool {
    let mut tasks: Vec<(Option<TlsTask<'_>>, Arc<WakeFlag>)> =
        tasks.into_iter().map(|task| (Some(task), Arc::new(WakeFlag(AtomicBool::new(true))))).collect();
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

/// Polls `future` at most `polls` times, then drops it.
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
            // Gives up at once, as `select` does: no later wake of this future may count.
            return Poll::Ready(None);
        }
        polled
    })
    .await
}

/// Lets the other tasks run.
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
