//! State shared by an executor, its tasks, their wakers and its handles.
//!
//! In virtual time all access is on one thread, and the locks never wait. In real time other threads only push onto the
//! run queue or set alarms, and unpark the executor's thread if it is parked.

use super::clock::ExecutorClock;
use super::task::Task;
use super::timers::AlarmQueue;
use crate::runtime::{TaskFuture, lock};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::task::Waker;
use offload_base::Instant;
use slab::Slab;
use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::Thread;

#[derive(Debug)]
pub(super) struct ExecutorState {
    clock: ExecutorClock,
    /// Woken tasks, in the order of their wakes.
    ready: Mutex<VecDeque<Arc<Task>>>,
    /// Whether `ready` has tasks. Readable without the lock.
    any_ready: AtomicBool,
    timers: Mutex<AlarmQueue>,
    /// The first deadline in `timers`, in nanoseconds. Readable without the lock.
    first_deadline: AtomicU64,
    tasks: Mutex<TaskTable>,
    /// Whether the executor's thread is parked or about to park.
    parked: AtomicBool,
    thread: OnceLock<Thread>,
}

#[derive(Debug, Default)]
struct TaskTable {
    live: Slab<Arc<Task>>,
    /// Whether the executor is gone.
    closed: bool,
}

impl ExecutorState {
    pub(super) fn new(clock: ExecutorClock) -> Arc<ExecutorState> {
        Arc::new(ExecutorState {
            clock,
            ready: Mutex::default(),
            any_ready: AtomicBool::new(false),
            timers: Mutex::default(),
            first_deadline: AtomicU64::new(NEVER),
            tasks: Mutex::default(),
            parked: AtomicBool::new(false),
            thread: OnceLock::new(),
        })
    }

    pub(super) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Moves a virtual clock to `to`.
    pub(super) fn advance(&self, to: Instant) {
        self.clock.advance(to);
    }

    /// Creates a task of `future` and schedules it.
    pub(super) fn spawn(shared: &Arc<ExecutorState>, name: Cow<'static, str>, future: TaskFuture) {
        let mut tasks = lock(&shared.tasks);
        if tasks.closed {
            // The future's destructor may take this lock.
            drop(tasks);
            drop(future);
            return;
        }
        let entry = tasks.live.vacant_entry();
        let task = Task::new(name, entry.key(), shared.clone(), Some(future));
        entry.insert(task.clone());
        drop(tasks);
        task.schedule();
    }

    /// Removes the ended task `key`.
    pub(super) fn forget(&self, key: usize) {
        let ended = lock(&self.tasks).live.try_remove(key);
        drop(ended);
    }

    /// Returns the names of the live tasks.
    pub(super) fn task_names(&self) -> Vec<String> {
        lock(&self.tasks).live.iter().map(|(_, task)| task.name().to_owned()).collect()
    }

    pub(super) fn push_ready(&self, task: Arc<Task>) {
        lock(&self.ready).push_back(task);
        self.any_ready.store(true, Ordering::SeqCst);
        self.unpark();
    }

    /// Swaps the run queue with `batch`, which must be empty.
    pub(super) fn take_ready(&self, batch: &mut VecDeque<Arc<Task>>) {
        let mut ready = lock(&self.ready);
        self.any_ready.store(false, Ordering::SeqCst);
        core::mem::swap(&mut *ready, batch);
    }

    pub(super) fn any_ready(&self) -> bool {
        self.any_ready.load(Ordering::SeqCst)
    }

    /// Sets, moves or clears the alarm at `entry` in the queue.
    pub(super) fn set_alarm(&self, entry: &mut Option<(Instant, u64)>, next: Option<(Instant, &Waker)>) {
        let mut timers = lock(&self.timers);
        timers.set(entry, next);
        let first = timers.first().map_or(NEVER, Instant::as_nanos);
        // The thread may be parked until the old deadline and must learn of an earlier one.
        let earlier = first < self.first_deadline.swap(first, Ordering::SeqCst);
        drop(timers);
        if earlier {
            self.unpark();
        }
    }

    /// Returns the first deadline of all alarms.
    pub(super) fn first_deadline(&self) -> Option<Instant> {
        let nanos = self.first_deadline.load(Ordering::SeqCst);
        (nanos != NEVER).then(|| Instant::from_nanos(nanos))
    }

    /// Wakes tasks whose deadlines have come by `now`, in the order of deadlines and then of setting.
    pub(super) fn fire(&self, now: Instant) {
        while self.first_deadline().is_some_and(|first| first <= now) {
            let mut timers = lock(&self.timers);
            let due = timers.take_due(now);
            self.first_deadline.store(timers.first().map_or(NEVER, Instant::as_nanos), Ordering::SeqCst);
            // A woken task may set an alarm, which takes this lock.
            drop(timers);
            if let Some(waker) = due {
                waker.wake();
            }
        }
    }

    /// Makes the current thread the one that wakes unpark.
    pub(super) fn run_here(&self) {
        self.thread.get_or_init(std::thread::current);
    }

    /// Announces that the executor's thread will park. Changes made after this call unpark the thread.
    pub(super) fn about_to_park(&self) {
        self.parked.store(true, Ordering::SeqCst);
    }

    pub(super) fn awake(&self) {
        self.parked.store(false, Ordering::SeqCst);
    }

    /// Unparks the executor's thread if it is parked.
    pub(super) fn unpark(&self) {
        if self.parked.load(Ordering::SeqCst)
            && self.parked.swap(false, Ordering::SeqCst)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }

    /// Closes the executor: drops all futures with their values, and also futures that their destructors spawn.
    pub(super) fn close(&self) {
        let mut tasks = lock(&self.tasks);
        tasks.closed = true;
        let live = core::mem::take(&mut tasks.live);
        // Destructors may spawn or wake, which takes the locks, so every lock is released before anything is dropped.
        drop(tasks);
        for (_, task) in &live {
            task.cancel();
        }
        let ready = core::mem::take(&mut *lock(&self.ready));
        let timers = core::mem::take(&mut *lock(&self.timers));
        self.first_deadline.store(NEVER, Ordering::SeqCst);
        drop((live, ready, timers));
    }
}

/// A deadline that never comes.
const NEVER: u64 = u64::MAX;
