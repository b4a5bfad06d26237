//! A queue whose jobs threads do, in real time.
//!
//! Invariant: a job that was taken is in `waiting`, with a thread, or in `ended`, until it is handed out; a thread that panics
//! ends its job all the same.

use crate::perform;
use crate::sessions::Sessions;
use core::panic::AssertUnwindSafe;
use core::task::Waker;
use offload_api::{Contexts, CompletedJob, Job, JobQueue, JobStatus, JobOutcome};
use offload_base::Instant;
use offload_transforms::Session;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

/// A [`JobQueue`] on threads of its own. They end when it is dropped.
///
/// ```
/// use bytes::BytesMut;
/// use offload_api::{Job, JobQueue, JobStatus};
/// use offload_base::Instant;
/// use offload_jobs::{Opens, PoolQueue};
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
    sessions: Sessions,
    depth: usize,
    /// Submitted, and no thread was told yet.
    staged: Vec<(Option<Arc<Session>>, Job)>,
    under_way: usize,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// For threads: there is something to do, or to end.
    work: Condvar,
    /// For the program, if it waits: something has ended.
    end: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<(Option<Arc<Session>>, Job)>,
    ended: VecDeque<CompletedJob>,
    waker: Option<Waker>,
    stop: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is locked but allocation.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PoolQueue {
    /// A queue with room for `depth` jobs, and so many threads, one at least.
    ///
    /// # Panics
    /// If the system gives no thread.
    pub fn new(threads: usize, depth: usize) -> PoolQueue {
        let shared = Arc::new(Shared::default());
        let spawn = |_| {
            let shared = shared.clone();
            thread::spawn(move || work(&shared))
        };
        PoolQueue {
            threads: (0..threads.max(1)).map(spawn).collect(),
            sessions: Sessions::new(1 << 20),
            depth,
            staged: Vec::new(),
            under_way: 0,
            shared,
        }
    }

    /// Waits until a job has ended, if one is under way.
    pub fn wait(&self) {
        let mut state = self.shared.state();
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
        self.staged.push((self.sessions.get(job.session).cloned(), job));
        Ok(())
    }

    fn flush(&mut self, _: Instant) {
        let count = self.staged.len();
        self.shared.state().waiting.extend(self.staged.drain(..));
        match count {
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

/// What a thread does.
fn work(shared: &Shared) {
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
            // The target is cut back below, and a session is never changed.
            Some(session) => std::panic::catch_unwind(AssertUnwindSafe(|| perform(session, &mut job))),
        };
        let outcome = outcome.unwrap_or_else(|_| {
            job.target.truncate(before);
            JobOutcome::failed(JobStatus::EngineLost)
        });
        // A session that was given up meanwhile ends here, not with the queue locked.
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
