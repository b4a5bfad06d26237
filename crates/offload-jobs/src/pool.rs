//! A job queue on worker threads, in real time.
//!
//! Invariant: until a submitted job is returned, it is in `waiting`, in `ended`, or with a thread. A thread that panics
//! still ends its job.

use crate::perform;
use crate::sessions::CpuSessions;
use core::panic::AssertUnwindSafe;
use core::task::Waker;
use offload_api::{CompletedJob, Contexts, Job, JobOutcome, JobQueue, JobStatus};
use offload_base::Instant;
use offload_transforms::Session;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

/// A [`JobQueue`] with its own threads, which end when the queue is dropped.
///
/// ```
/// use bytes::BytesMut;
/// use offload_api::{Job, JobQueue, JobStatus};
/// use offload_base::Instant;
/// use offload_jobs::{OpenTransform, PoolQueue};
/// use offload_transforms::Transform;
///
/// let mut queue = PoolQueue::new(2, 64);
/// let copy = queue.open(Transform::Copy).map_err(|(refused, _)| refused)?;
/// queue.submit(Instant::ZERO, Job::new(copy, "bytes".into(), BytesMut::with_capacity(5))).expect("there is room");
/// queue.flush(Instant::ZERO);
/// queue.wait();
/// assert_eq!(queue.complete(Instant::ZERO).expect("it has ended").outcome.status, JobStatus::Done);
/// # Ok::<(), offload_api::ContextRefusal>(())
/// ```
#[derive(Debug)]
pub struct PoolQueue {
    sessions: CpuSessions,
    depth: usize,
    /// Jobs that were submitted, but not flushed to the threads.
    staged: Vec<(Option<Arc<Session>>, Job)>,
    under_way: usize,
    shared: Arc<PoolShared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct PoolShared {
    state: Mutex<PoolState>,
    /// Signals work, or the end, to the threads.
    work: Condvar,
    /// Signals a completed job to a program in [`PoolQueue::wait`].
    end: Condvar,
}

#[derive(Debug, Default)]
struct PoolState {
    waiting: VecDeque<(Option<Arc<Session>>, Job)>,
    ended: VecDeque<CompletedJob>,
    waker: Option<Waker>,
    stop: bool,
}

impl PoolShared {
    fn state(&self) -> MutexGuard<'_, PoolState> {
        // A panic under the lock is only possible in an allocation, and leaves the state consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PoolQueue {
    /// Creates a queue for `depth` jobs, with `threads` threads, at least one.
    ///
    /// # Panics
    /// If the system cannot create a thread.
    pub fn new(threads: usize, depth: usize) -> PoolQueue {
        let shared = Arc::new(PoolShared::default());
        let spawn = |_| {
            let shared = shared.clone();
            thread::spawn(move || work(&shared))
        };
        PoolQueue {
            threads: (0..threads.max(1)).map(spawn).collect(),
            sessions: CpuSessions::new(1 << 20),
            depth,
            staged: Vec::new(),
            under_way: 0,
            shared,
        }
    }

    /// Waits until a job has ended. Returns at once if no job is in progress.
    pub fn wait(&self) {
        let mut state = self.shared.state();
        // Jobs that were not flushed cannot end, and waiting for them would never return.
        while state.ended.is_empty() && self.under_way > self.staged.len() {
            state = self.shared.end.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl JobQueue for PoolQueue {
    fn contexts(&mut self) -> &mut dyn Contexts {
        &mut self.sessions
    }

    fn room(&self) -> usize {
        self.depth - self.under_way
    }

    fn submit(&mut self, _: Instant, job: Job) -> Result<(), Job> {
        if self.room() == 0 {
            return Err(job);
        }
        self.under_way += 1;
        // The job keeps the session alive, so the session can be closed behind it.
        self.staged.push((self.sessions.get(job.session).cloned(), job));
        Ok(())
    }

    fn flush(&mut self, _: Instant) {
        let count = self.staged.len();
        self.shared.state().waiting.extend(self.staged.drain(..));
        match count {
            // Waking all threads for one job would only cause contention.
            0 => {}
            1 => self.shared.work.notify_one(),
            _ => self.shared.work.notify_all(),
        }
    }

    fn complete(&mut self, _: Instant) -> Option<CompletedJob> {
        let done = self.shared.state().ended.pop_front()?;
        self.under_way -= 1;
        Some(done)
    }

    fn arm(&mut self, waker: &Waker) -> bool {
        let mut state = self.shared.state();
        state.waker = Some(waker.clone());
        state.ended.is_empty()
    }

    fn next_event(&self) -> Option<Instant> {
        None
    }
}

impl Drop for PoolQueue {
    fn drop(&mut self) {
        self.shared.state().stop = true;
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            let _panicked = thread.join();
        }
    }
}

/// Runs jobs until the queue is dropped.
fn work(shared: &PoolShared) {
    let mut state = shared.state();
    while !state.stop {
        let Some((session, mut job)) = state.waiting.pop_front() else {
            state = shared.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        drop(state);
        let before = job.target.len();
        let outcome = match &session {
            None => Ok(JobOutcome::failed(JobStatus::NoSession)),
            // Unwind-safe, because the target is truncated below, and a session is never modified.
            Some(session) => std::panic::catch_unwind(AssertUnwindSafe(|| perform(session, &mut job))),
        };
        // A panic must not lose the job: its buffers belong to the caller.
        let outcome = outcome.unwrap_or_else(|_| {
            job.target.truncate(before);
            JobOutcome::failed(JobStatus::EngineLost)
        });
        // Dropped without the lock, because this may be the last reference to a removed session, which wipes its keys.
        drop(session);
        state = shared.state();
        state.ended.push_back(job.done(outcome));
        shared.end.notify_one();
        if let Some(waker) = state.waker.take() {
            // The woken tasks may use the queue at once, so the lock is released first.
            drop(state);
            waker.wake();
            state = shared.state();
        }
    }
}
