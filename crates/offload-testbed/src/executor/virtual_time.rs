//! The executor in virtual time: all tasks run on the caller's thread, and the clock moves only when no task can
//! continue.
//!
//! Invariant: the tasks alone determine which task runs when, and the clock. A run with the same seed is therefore the
//! same run.

use super::clock::ExecutorClock;
use super::shared::ExecutorState;
use super::task::Task;
use super::{Handle, JoinHandle};
use core::future::Future;
use core::pin::pin;
use core::sync::atomic::AtomicU64;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use offload_base::{Clock, Instant};
use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// An executor in virtual time. A task spawns further tasks by a [`Handle`].
///
/// ```
/// use core::time::Duration;
/// use offload_base::Instant;
/// use offload_testbed::VirtualTime;
///
/// let mut run = VirtualTime::new();
/// let handle = run.handle();
/// run.spawn("ticker", async move {
///     loop {
///         handle.sleep(Duration::from_millis(10)).await;
///     }
/// });
/// run.run_for(Duration::from_secs(1));
/// assert_eq!(run.now(), Instant::from_nanos(1_000_000_000));
/// ```
///
/// Dropping the executor drops all tasks with their values.
#[derive(Debug)]
pub struct VirtualTime {
    shared: Arc<ExecutorState>,
    /// The tasks taken from the run queue and not run yet.
    batch: VecDeque<Arc<Task>>,
    polls_at_this_instant: u64,
    /// Polled tasks with their number of polls, counted once an instant lasts too long.
    suspects: BTreeMap<String, u64>,
}

impl VirtualTime {
    /// Creates an executor without tasks, at [`Instant::ZERO`].
    pub fn new() -> VirtualTime {
        VirtualTime {
            shared: ExecutorState::new(ExecutorClock::Virtual(AtomicU64::new(0))),
            batch: VecDeque::new(),
            polls_at_this_instant: 0,
            suspects: BTreeMap::new(),
        }
    }

    /// Returns a handle, for tasks on this executor only: the executor does not wait for wakes from other threads.
    pub fn handle(&self) -> Handle {
        Handle { shared: self.shared.clone() }
    }

    /// Returns the present instant.
    pub fn now(&self) -> Instant {
        self.shared.now()
    }

    /// Spawns a task, which runs when the executor does.
    pub fn spawn<T: Send + 'static>(
        &self,
        name: impl Into<Cow<'static, str>>,
        future: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.handle().spawn(name, future)
    }

    /// Runs `future` and all tasks until `future` is ready. Unfinished tasks continue in the next call.
    ///
    /// # Panics
    /// - If nothing can ever happen again: no task can continue, and no task has an alarm.
    /// - If a million polls do not get past one instant.
    /// - If a task panics.
    ///
    /// The first two panics name the tasks.
    pub fn block_on<T>(&mut self, future: impl Future<Output = T>) -> T {
        self.block_until(Instant::MAX, future)
    }

    /// Runs `future` as [`block_on`](Self::block_on) does, for at most `span` of virtual time. Without a limit a run
    /// may last for ever, because timers of other tasks keep firing.
    ///
    /// # Panics
    /// As [`block_on`](Self::block_on), and if `future` is not ready within `span`; this panic names the tasks, too.
    pub fn block_within<T>(&mut self, span: Duration, future: impl Future<Output = T>) -> T {
        self.block_until(self.now() + span, future)
    }

    fn block_until<T>(&mut self, end: Instant, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        let main = Task::new(Cow::Borrowed(MAIN), usize::MAX, self.shared.clone(), None);
        let waker = Waker::from(main.clone());
        main.clone().schedule();
        self.polls_at_this_instant = 0;
        loop {
            while let Some(task) = self.next_ready() {
                self.count_poll(&task);
                // The main future is not in the table of tasks: it may borrow from the caller and need not be `Send`.
                if Arc::ptr_eq(&task, &main) {
                    task.left_queue();
                    if let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                        return result;
                    }
                } else {
                    task.run();
                }
            }
            match self.shared.first_deadline() {
                Some(next) if next <= end => self.advance(next),
                Some(_) => self.overdue(end),
                None => self.deadlock(),
            }
        }
    }

    /// Runs all tasks for `span`, including the events due exactly at its end.
    ///
    /// # Panics
    /// If a million polls do not get past one instant, with the tasks' names; if a task panics.
    pub fn run_for(&mut self, span: Duration) {
        let end = self.now() + span;
        self.polls_at_this_instant = 0;
        loop {
            while let Some(task) = self.next_ready() {
                self.count_poll(&task);
                task.run();
            }
            match self.shared.first_deadline() {
                Some(next) if next <= end => self.advance(next),
                _ => break,
            }
        }
        self.advance(end);
    }

    fn next_ready(&mut self) -> Option<Arc<Task>> {
        if self.batch.is_empty() {
            self.shared.take_ready(&mut self.batch);
        }
        self.batch.pop_front()
    }

    /// Advances to `next`, because no task can continue at this instant, and fires the alarms due then.
    fn advance(&mut self, next: Instant) {
        self.shared.advance(next);
        self.polls_at_this_instant = 0;
        // Time has moved, so no task is in a loop.
        self.suspects.clear();
        self.shared.fire(next);
    }

    fn deadlock(&self) -> ! {
        panic!(
            "deadlock at {:?}: no task can go on and none waits for a point in time; waiting: {MAIN}{}",
            self.now(),
            names(&self.shared.task_names())
        );
    }

    fn overdue(&self, end: Instant) -> ! {
        panic!("not ready at {end:?}; waiting: {MAIN}{}", names(&self.shared.task_names()));
    }

    fn count_poll(&mut self, task: &Task) {
        // Counting names from the start would cost too much, so only the polls after the limit are counted by name.
        self.polls_at_this_instant += 1;
        if self.polls_at_this_instant > POLLS_AT_ONE_INSTANT {
            *self.suspects.entry(task.name().to_owned()).or_default() += 1;
            if self.polls_at_this_instant >= POLLS_AT_ONE_INSTANT + POLLS_WATCHED {
                let suspects: Vec<String> =
                    self.suspects.iter().map(|(name, polls)| format!("{name} ({polls})")).collect();
                panic!(
                    "no end to {:?}: {POLLS_AT_ONE_INSTANT} polls and time stands still; the last {POLLS_WATCHED} by{}",
                    self.now(),
                    names(&suspects)
                );
            }
        }
    }
}

impl Default for VirtualTime {
    fn default() -> VirtualTime {
        VirtualTime::new()
    }
}

impl Clock for VirtualTime {
    fn now(&self) -> Instant {
        self.shared.now()
    }
}

impl Drop for VirtualTime {
    fn drop(&mut self) {
        self.batch.clear();
        self.shared.close();
    }
}

/// Formats a list of names for a message, truncated if too long.
fn names(all: &[String]) -> String {
    let shown: String = all.iter().take(NAMES_SHOWN).map(|name| format!(", {name}")).collect();
    match all.len().saturating_sub(NAMES_SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Name of a future that `block_on` runs.
const MAIN: &str = "block_on";
/// Number of polls in one instant that counts as an endless loop.
const POLLS_AT_ONE_INSTANT: u64 = 1_000_000;
/// Number of further polls counted by task, to name the tasks in the loop.
const POLLS_WATCHED: u64 = 1_000;
const NAMES_SHOWN: usize = 50;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::lock;
    use core::future::poll_fn;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Mutex;

    /// Runs `act`, which must panic, and returns the panic's message.
    fn panic_message(act: impl FnOnce()) -> String {
        let panic = catch_unwind(AssertUnwindSafe(act)).expect_err("it was to panic");
        panic.downcast::<String>().map_or_else(|_| String::new(), |message| *message)
    }

    #[test]
    fn tasks_run_in_wake_order_and_alarms_in_set_order() {
        let mut run = VirtualTime::new();
        let log = Arc::new(Mutex::new(Vec::new()));
        for (name, nap) in [("a", 2), ("b", 1), ("c", 2), ("d", 0)] {
            let (handle, log) = (run.handle(), log.clone());
            run.spawn(name, async move {
                lock(&log).push((handle.now().as_nanos(), name));
                handle.sleep(Duration::from_nanos(nap)).await;
                lock(&log).push((handle.now().as_nanos(), name));
            });
        }
        run.run_for(Duration::from_nanos(10));
        let expected = [(0, "a"), (0, "b"), (0, "c"), (0, "d"), (0, "d"), (1, "b"), (2, "a"), (2, "c")];
        assert_eq!(*lock(&log), expected);
    }

    #[test]
    fn task_woken_while_running_runs_again() {
        let mut run = VirtualTime::new();
        let log = Arc::new(Mutex::new(Vec::new()));
        for name in ["a", "b"] {
            let log = log.clone();
            let mut polls = 0;
            run.spawn(
                name,
                poll_fn(move |cx| {
                    lock(&log).push(name);
                    polls += 1;
                    cx.waker().wake_by_ref();
                    cx.waker().wake_by_ref(); // the second wake has no effect
                    if polls == 3 { Poll::Ready(()) } else { Poll::Pending }
                }),
            );
        }
        run.run_for(Duration::from_nanos(1));
        assert_eq!(*lock(&log), ["a", "b", "a", "b", "a", "b"]);
    }

    #[test]
    fn deadlock_names_the_waiting_tasks() {
        let message = panic_message(|| {
            let mut run = VirtualTime::new();
            run.spawn("ended", async {});
            run.spawn("reader of nothing", core::future::pending::<()>());
            run.block_on(core::future::pending::<()>());
        });
        assert!(message.contains("deadlock") && message.contains("reader of nothing"), "{message}");
        assert!(!message.contains("ended"), "{message}");
    }

    #[test]
    fn overdue_future_names_the_waiting_tasks() {
        let message = panic_message(|| {
            let mut run = VirtualTime::new();
            let handle = run.handle();
            let _runs_on = run.spawn("ticker", async move {
                loop {
                    handle.sleep(Duration::from_secs(1)).await;
                }
            });
            assert_eq!(run.block_within(Duration::from_secs(5), async { 1 }), 1);
            run.block_within(Duration::from_secs(5), core::future::pending::<()>());
        });
        assert!(message.contains("not ready at") && message.contains("ticker"), "{message}");
    }

    #[test]
    fn stuck_time_names_the_busy_tasks() {
        let message = panic_message(|| {
            let mut run = VirtualTime::new();
            run.spawn("idle", core::future::pending::<()>());
            for name in ["spinner one", "spinner two"] {
                run.spawn(
                    name,
                    poll_fn::<(), _>(|cx| {
                        cx.waker().wake_by_ref();
                        Poll::Pending
                    }),
                );
            }
            run.run_for(Duration::from_nanos(1));
        });
        assert!(message.contains("spinner one (500)") && message.contains("spinner two (500)"), "{message}");
        assert!(!message.contains("idle"), "{message}");
    }

    #[test]
    fn many_polls_are_fine_while_time_moves() {
        let mut run = VirtualTime::new();
        let handle = run.handle();
        run.block_on(async move {
            for _ in 0..POLLS_AT_ONE_INSTANT + POLLS_WATCHED {
                handle.sleep(Duration::from_nanos(1)).await;
            }
        });
    }

    #[test]
    fn moved_alarm_fires_once_and_dropped_alarm_never() {
        use offload_base::Timers;
        let mut run = VirtualTime::new();
        let handle = run.handle();
        let woken = Arc::new(Mutex::new(Vec::new()));
        {
            let (handle, woken) = (handle.clone(), woken.clone());
            let (mut moved, mut dropped) = (handle.alarm(), Some(handle.alarm()));
            run.spawn(
                "sleeper",
                poll_fn::<(), _>(move |cx| {
                    let now = handle.now();
                    lock(&woken).push(now.as_nanos());
                    if let Some(mut alarm) = dropped.take() {
                        assert!(alarm.poll(cx, Some(Instant::from_nanos(3))).is_pending());
                        assert!(moved.poll(cx, Some(Instant::from_nanos(5))).is_pending());
                        assert!(moved.poll(cx, Some(Instant::from_nanos(7))).is_pending());
                    } else {
                        assert!(moved.poll(cx, Some(Instant::from_nanos(7))).is_ready());
                        assert!(moved.poll(cx, Some(Instant::MAX)).is_pending());
                    }
                    Poll::Pending
                }),
            );
        }
        run.run_for(Duration::from_nanos(20));
        assert_eq!(*lock(&woken), [0, 7]);
        assert_eq!(handle.shared.first_deadline(), None);
    }

    #[test]
    fn values_of_tasks_drop_with_the_executor() {
        let held = Arc::new(());
        let run = VirtualTime::new();
        let (handle, kept) = (run.handle(), held.clone());
        let waiting = run.spawn("holder", async move {
            let _kept = kept;
            handle.sleep(Duration::from_secs(1)).await;
        });
        let mut run = run;
        run.run_for(Duration::from_nanos(1));
        assert_eq!(Arc::strong_count(&held), 2);
        let handle = run.handle();
        drop(run);
        assert_eq!(Arc::strong_count(&held), 1);
        assert!(waiting.is_finished());

        let late = held.clone();
        let never = handle.spawn("late", async move { drop(late) });
        assert_eq!((never.is_finished(), Arc::strong_count(&held)), (true, 1));
        let message = panic_message(|| VirtualTime::new().block_on(never));
        assert!(message.contains("\"late\" was dropped"), "{message}");
    }

    #[test]
    fn two_calls_share_their_tasks() {
        let mut run = VirtualTime::new();
        let handle = run.handle();
        let sum = run.spawn("sum", async move {
            handle.sleep(Duration::from_secs(2)).await;
            7
        });
        run.run_for(Duration::from_secs(1));
        assert!(!sum.is_finished());
        assert_eq!(run.block_on(sum), 7);
        assert_eq!(run.now(), Instant::from_nanos(2_000_000_000));
    }
}
