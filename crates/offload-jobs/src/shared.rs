//! A job queue shared by many tasks.
//!
//! Invariant: every job in progress has a ticket, which names the owner. A completed job without an owner is dropped,
//! with its buffers.

use crate::OpenTransform;
use core::fmt;
use core::future::{Future, poll_fn};
use core::pin::Pin;
use core::task::{Context, Poll, Waker, ready};
use offload_api::{CompletedJob, ContextRefusal, Handle, Job, JobQueue};
use offload_base::{Alarm, Instant, Timers};
use offload_transforms::Transform;
use slab::Slab;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A [`JobQueue`] for many tasks. Each task uses a [`JobClient`] of its own, which returns only its own jobs.
///
/// ```
/// use bytes::BytesMut;
/// use offload_api::{Job, JobStatus, TokioTimers};
/// use offload_jobs::{JobClient, PoolQueue, RunQueue, SharedQueue};
/// use offload_transforms::Transform;
/// use std::sync::Arc;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (queue, runs) = SharedQueue::new(PoolQueue::new(2, 64), Arc::new(TokioTimers::current()));
/// let running = tokio::spawn(runs);
/// let mut client: JobClient = queue.client();
/// drop(queue);
/// let copy = client.open(Transform::Copy).map_err(|(refused, _)| refused)?;
/// let done = client.run(Job::new(copy, "bytes".into(), BytesMut::with_capacity(5))).await;
/// assert_eq!((done.outcome.status, &done.target[..]), (JobStatus::Done, &b"bytes"[..]));
/// drop(client);
/// running.await?; // Ends because nobody can submit jobs.
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct SharedQueue {
    shared: Arc<QueueShared>,
}

/// A client of a [`SharedQueue`].
///
/// Dropping a client closes its sessions. Jobs in progress are discarded when they end.
#[derive(Debug)]
pub struct JobClient {
    shared: Arc<QueueShared>,
    id: usize,
}

/// The future that runs a [`SharedQueue`]: delivers completed jobs to their clients, and wakes the clients. Poll it in
/// a task of its own. The future ends when the queue and all clients are dropped, and the last job has ended.
pub struct RunQueue {
    shared: Arc<QueueShared>,
    alarm: Box<dyn Alarm>,
}

struct QueueShared {
    timers: Arc<dyn Timers>,
    inner: Mutex<QueueState>,
}

struct QueueState {
    queue: Box<dyn JobQueue>,
    clients: Slab<ClientState>,
    /// Wakers of clients that wait for room.
    waiting_for_room: BTreeMap<usize, Waker>,
    /// Jobs in progress, by their number in the queue.
    tickets: Slab<JobTicket>,
    /// Number of existing `SharedQueue`s and clients.
    users: usize,
    runner: Option<Waker>,
    /// Number of jobs submitted so far.
    serial: u64,
}

/// The owner of a job, and the job's number there. `client` is `None` once the client is dropped.
struct JobTicket {
    client: Option<usize>,
    user: u64,
    serial: u64,
}

#[derive(Default)]
struct ClientState {
    sessions: Vec<Handle>,
    under_way: usize,
    /// Completed jobs with their serial numbers.
    done: VecDeque<(u64, CompletedJob)>,
    waits_for_done: Option<Waker>,
}

impl SharedQueue {
    /// Shares `queue`, which uses the clock of `timers`.
    pub fn new(queue: impl JobQueue + 'static, timers: Arc<dyn Timers>) -> (SharedQueue, RunQueue) {
        let inner = QueueState {
            queue: Box::new(queue),
            clients: Slab::new(),
            waiting_for_room: BTreeMap::new(),
            tickets: Slab::new(),
            users: 1,
            runner: None,
            serial: 0,
        };
        let alarm = timers.alarm();
        let shared = Arc::new(QueueShared { timers, inner: Mutex::new(inner) });
        (SharedQueue { shared: shared.clone() }, RunQueue { shared, alarm })
    }

    /// Creates a client.
    pub fn client(&self) -> JobClient {
        let mut inner = self.shared.lock();
        inner.users += 1;
        JobClient { id: inner.clients.insert(ClientState::default()), shared: self.shared.clone() }
    }
}

impl Drop for SharedQueue {
    fn drop(&mut self) {
        self.shared.leave(|_| {});
    }
}

impl JobClient {
    /// Creates a session of [`TRANSFORM`](crate::TRANSFORM). Dropping the client closes the session.
    ///
    /// # Errors
    /// See [`OpenTransform::open`].
    pub fn open(&mut self, transform: Transform) -> Result<Handle, (ContextRefusal, Option<Transform>)> {
        let mut inner = self.shared.lock();
        let session = inner.queue.open(transform)?;
        inner.clients[self.id].sessions.push(session);
        Ok(session)
    }

    /// Closes a session of this client, after its jobs.
    pub fn close(&mut self, session: Handle) {
        let mut inner = self.shared.lock();
        let sessions = &mut inner.clients[self.id].sessions;
        if let Some(at) = sessions.iter().position(|known| *known == session) {
            sessions.swap_remove(at);
            inner.queue.contexts().remove(session);
        }
    }

    /// Submits a job. The device learns of the job at the next [`flush`](Self::flush).
    ///
    /// # Errors
    /// Returns the job if there is no room: see [`poll_room`](Self::poll_room).
    #[expect(clippy::result_large_err, reason = "a refused job is returned by value, with its buffers")]
    pub fn submit(&mut self, job: Job) -> Result<(), Job> {
        self.submit_one(job).map(|_serial| ())
    }

    #[expect(clippy::result_large_err, reason = "a refused job is returned by value, with its buffers")]
    fn submit_one(&mut self, mut job: Job) -> Result<u64, Job> {
        let now = self.shared.timers.now();
        let mut inner = self.shared.lock();
        if inner.queue.room() == 0 {
            return Err(job);
        }
        inner.serial += 1;
        let serial = inner.serial;
        let ticket = inner.tickets.insert(JobTicket { client: Some(self.id), user: job.user, serial });
        // The queue sees the ticket's number, and the client gets its own number back.
        let user = core::mem::replace(&mut job.user, ticket as u64);
        match inner.queue.submit(now, job) {
            Ok(()) => {
                inner.clients[self.id].under_way += 1;
                Ok(serial)
            }
            Err(job) => {
                inner.tickets.remove(ticket);
                Err(Job { user, ..job })
            }
        }
    }

    /// Calls `f` with the queue and this client's sessions.
    pub(crate) fn queue<T>(&self, f: impl FnOnce(&mut dyn JobQueue, &mut Vec<Handle>) -> T) -> T {
        let mut inner = self.shared.lock();
        let QueueState { queue, clients, .. } = &mut *inner;
        f(&mut **queue, &mut clients[self.id].sessions)
    }

    /// Registers `waker` for the end of one of this client's jobs, and for room. Returns false if a job has ended
    /// already.
    pub(crate) fn wait(&mut self, waker: &Waker) -> bool {
        let mut inner = self.shared.lock();
        // A client with room to submit need not be woken for more.
        let is_full = inner.queue.room() == 0;
        let client = &mut inner.clients[self.id];
        client.waits_for_done = Some(waker.clone());
        let sleeps = client.done.is_empty();
        let replaced = match is_full {
            true => inner.waiting_for_room.insert(self.id, waker.clone()),
            false => inner.waiting_for_room.remove(&self.id),
        };
        // The last waker of a task may drop a client, which takes the lock.
        drop(inner);
        drop(replaced);
        sleeps
    }

    /// Tells the device of all jobs submitted so far.
    pub fn flush(&mut self) {
        let now = self.shared.timers.now();
        let mut inner = self.shared.lock();
        inner.queue.flush(now);
        // Jobs that end without a device, such as on the CPU, are completed by the runner's alarm.
        let runner = inner.queue.next_event().and_then(|_| inner.runner.take());
        drop(inner);
        runner.into_iter().for_each(Waker::wake);
    }

    /// Polls for the client's next completed job. Returns `None` if no job is in progress.
    pub fn poll_done(&mut self, cx: &mut Context<'_>) -> Poll<Option<CompletedJob>> {
        self.poll_ended(cx, |done| done.pop_front())
    }

    /// Returns `Ready` when there is room for a job. Another client may take the room before [`submit`](Self::submit).
    pub fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut inner = self.shared.lock();
        if inner.queue.room() > 0 {
            return Poll::Ready(());
        }
        let replaced = inner.waiting_for_room.insert(self.id, cx.waker().clone());
        drop(inner);
        drop(replaced);
        Poll::Pending
    }

    /// Submits a job as soon as there is room, and waits until the job has ended.
    ///
    /// If the future is dropped while the job is in progress, [`poll_done`](Self::poll_done) returns the job.
    pub async fn run(&mut self, job: Job) -> CompletedJob {
        let mut job = Some(job);
        let serial = poll_fn(|cx| {
            loop {
                ready!(self.poll_room(cx));
                match self.submit_one(job.take().expect("it came back")) {
                    Ok(serial) => return Poll::Ready(serial),
                    Err(back) => job = Some(back),
                }
            }
        })
        .await;
        self.flush();
        let ended = poll_fn(|cx| {
            self.poll_ended(cx, |done| {
                let at = done.iter().position(|(known, _)| *known == serial)?;
                done.remove(at)
            })
        });
        ended.await.expect("it is under way")
    }

    /// Polls for the completed job that `pick` selects. Returns `None` if `pick` selects no job, and no job is in
    /// progress.
    fn poll_ended(
        &mut self,
        cx: &mut Context<'_>,
        pick: impl FnOnce(&mut VecDeque<(u64, CompletedJob)>) -> Option<(u64, CompletedJob)>,
    ) -> Poll<Option<CompletedJob>> {
        let now = self.shared.timers.now();
        let mut inner = self.shared.lock();
        let wakers = inner.hand_out(now);
        let client = &mut inner.clients[self.id];
        let poll = match pick(&mut client.done) {
            Some((_, done)) => Poll::Ready(Some(done)),
            None if client.under_way == 0 => Poll::Ready(None),
            None => {
                client.waits_for_done = Some(cx.waker().clone());
                Poll::Pending
            }
        };
        drop(inner);
        wakers.into_iter().for_each(Waker::wake);
        poll
    }
}

impl Drop for JobClient {
    fn drop(&mut self) {
        self.shared.leave(|inner| {
            let mut client = inner.clients.remove(self.id);
            for session in client.sessions.drain(..) {
                inner.queue.contexts().remove(session);
            }
            for (_, ticket) in &mut inner.tickets {
                // The jobs continue in the device. Without an owner, they are dropped when they end.
                if ticket.client == Some(self.id) {
                    ticket.client = None;
                }
            }
            (client, inner.waiting_for_room.remove(&self.id))
        });
    }
}

impl Future for RunQueue {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let RunQueue { shared, alarm } = &mut *self;
        let now = shared.timers.now();
        let mut inner = shared.lock();
        let wakers = inner.hand_out(now);
        // Jobs of dropped clients still use buffers, so the queue runs until all are back.
        let ended = inner.users == 0 && inner.tickets.is_empty();
        let sleeps = inner.queue.arm(cx.waker());
        let deadline = inner.queue.next_event();
        inner.runner = Some(cx.waker().clone());
        drop(inner);
        wakers.into_iter().for_each(Waker::wake);
        if ended {
            return Poll::Ready(());
        }
        if !sleeps || alarm.poll(cx, deadline).is_ready() {
            // A loop would starve other tasks if the queue never advanced beyond this instant.
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

impl QueueShared {
    /// Locks the state. Ignores poisoning, because no code panics in the middle of a change.
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes a user of the queue, which ends without users. The result of `f` is dropped without the lock.
    fn leave<T>(&self, f: impl FnOnce(&mut QueueState) -> T) {
        let mut inner = self.lock();
        inner.users -= 1;
        let dropped = f(&mut inner);
        let runner = inner.runner.take();
        drop(inner);
        drop(dropped);
        runner.into_iter().for_each(Waker::wake);
    }
}

impl QueueState {
    /// Delivers completed jobs to their clients. Returns the wakers of these clients.
    fn hand_out(&mut self, now: Instant) -> Vec<Waker> {
        let mut wakers = Vec::new();
        let mut any = false;
        // News of sessions are discarded, because jobs may follow directly after the command that creates a session.
        while self.queue.contexts().poll_news().is_some() {}
        while let Some(mut done) = self.queue.complete(now) {
            any = true;
            // A queue that returns an unknown job is faulty, but must not stop the other queues.
            let Some(ticket) = self.tickets.try_remove(done.user as usize) else { continue };
            done.user = ticket.user;
            if let Some(client) = ticket.client.and_then(|id| self.clients.get_mut(id)) {
                client.under_way -= 1;
                client.done.push_back((ticket.serial, done));
                wakers.extend(client.waits_for_done.take());
            }
        }
        // A completed command makes room as well, without a completed job.
        if any || self.queue.room() > 0 {
            wakers.extend(core::mem::take(&mut self.waiting_for_room).into_values());
        }
        wakers
    }
}

impl fmt::Debug for QueueShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = self.lock();
        let mut debug = f.debug_struct("QueueShared");
        debug.field("clients", &inner.clients.len()).field("under_way", &inner.tickets.len()).finish_non_exhaustive()
    }
}

impl fmt::Debug for RunQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunQueue").field("shared", &self.shared).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CpuConfig, CpuQueue};
    use bytes::{Bytes, BytesMut};
    use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
    use core::time::Duration;
    use offload_api::JobStatus;
    use offload_base::Clock;
    use std::task::Wake;

    /// A clock that the test advances.
    #[derive(Clone, Default)]
    struct TestClock(Arc<AtomicU64>);

    impl Clock for TestClock {
        fn now(&self) -> Instant {
            Instant::from_nanos(self.0.load(Ordering::Relaxed))
        }
    }

    impl Timers for TestClock {
        fn alarm(&self) -> Box<dyn Alarm> {
            Box::new(self.clone())
        }
    }

    impl Alarm for TestClock {
        fn poll(&mut self, _: &mut Context<'_>, deadline: Option<Instant>) -> Poll<()> {
            if deadline.is_some_and(|deadline| deadline <= self.now()) { Poll::Ready(()) } else { Poll::Pending }
        }
    }

    #[derive(Default)]
    struct WakeCounter(AtomicUsize);

    impl Wake for WakeCounter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Creates a queue for `depth` jobs. Each takes a microsecond, and time for its bytes.
    fn shared(depth: usize) -> (SharedQueue, RunQueue, TestClock) {
        let time = TestClock::default();
        let config = CpuConfig { depth, per_job: Duration::from_micros(1), ..CpuConfig::default() };
        let (queue, runs) = SharedQueue::new(CpuQueue::new(config), Arc::new(time.clone()));
        (queue, runs, time)
    }

    fn copy_job(session: Handle, user: u64, text: &'static str) -> Job {
        Job { user, ..Job::new(session, Bytes::from_static(text.as_bytes()), BytesMut::with_capacity(64)) }
    }

    fn runs_on(runs: &mut RunQueue, time: &TestClock) -> Poll<()> {
        time.0.fetch_add(1_000_000, Ordering::Relaxed);
        Pin::new(runs).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn each_client_gets_its_own_jobs_and_numbers() {
        let (queue, mut runs, time) = shared(8);
        let (mut one, mut other) = (queue.client(), queue.client());
        let session = one.open(Transform::Copy).unwrap();
        let others = other.open(Transform::Copy).unwrap();
        for user in [7, 9] {
            one.submit(copy_job(session, user, "one")).unwrap();
            other.submit(copy_job(others, user, "other")).unwrap();
        }
        let wakes = Arc::new(WakeCounter::default());
        let waker = Waker::from(wakes.clone());
        let cx = &mut Context::from_waker(&waker);
        assert!(one.poll_done(cx).is_pending());
        assert!(runs_on(&mut runs, &time).is_pending());
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1, "who waited is woken, once");
        for (client, text) in [(&mut one, "one"), (&mut other, "other")] {
            for user in [7, 9] {
                let Poll::Ready(Some(done)) = client.poll_done(cx) else { panic!("it has ended") };
                assert_eq!((done.user, &done.target[..]), (user, text.as_bytes()));
            }
            assert!(matches!(client.poll_done(cx), Poll::Ready(None)), "none is under way");
        }
    }

    #[test]
    fn room_in_a_full_queue_wakes_all_waiting_clients() {
        let (queue, mut runs, time) = shared(1);
        let mut clients = [queue.client(), queue.client(), queue.client()];
        let session = clients[0].open(Transform::Copy).unwrap();
        clients[0].submit(copy_job(session, 1, "first")).unwrap();
        let refused = clients[1].submit(copy_job(session, 5, "second")).unwrap_err();
        assert_eq!(refused.user, 5, "it comes back as it went");
        let wakes = Arc::new(WakeCounter::default());
        let waker = Waker::from(wakes.clone());
        for client in &mut clients[1..] {
            assert!(client.poll_room(&mut Context::from_waker(&waker)).is_pending());
        }
        assert!(runs_on(&mut runs, &time).is_pending());
        assert_eq!(wakes.0.load(Ordering::Relaxed), 2);
        assert!(clients[2].submit(refused).is_ok());
    }

    #[test]
    fn dropped_future_leaves_its_job_to_poll_done() {
        let (queue, mut runs, time) = shared(8);
        let mut client = queue.client();
        let session = client.open(Transform::Copy).unwrap();
        let cx = &mut Context::from_waker(Waker::noop());
        {
            let future = core::pin::pin!(client.run(copy_job(session, 1, "dropped")));
            assert!(future.poll(cx).is_pending());
        }
        let mut future = Box::pin(client.run(copy_job(session, 2, "kept")));
        assert!(future.as_mut().poll(cx).is_pending());
        assert!(runs_on(&mut runs, &time).is_pending());
        // The dropped future's job comes back through the client, not through a later future.
        let Poll::Ready(done) = future.as_mut().poll(cx) else { panic!("it has ended") };
        assert_eq!(&done.target[..], b"kept");
        drop(future);
        let Poll::Ready(Some(done)) = client.poll_done(cx) else { panic!("its buffers come home") };
        assert_eq!((done.user, &done.target[..]), (1, &b"dropped"[..]));
    }

    #[test]
    fn runner_ends_without_clients_after_the_last_job() {
        let (queue, mut runs, time) = shared(8);
        let mut client = queue.client();
        let session = client.open(Transform::Copy).unwrap();
        client.submit(copy_job(session, 1, "nobody waits for it")).unwrap();
        let wakes = Arc::new(WakeCounter::default());
        let waker = Waker::from(wakes.clone());
        assert!(Pin::new(&mut runs).poll(&mut Context::from_waker(&waker)).is_pending());
        drop(client);
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1, "the runner looks whether it is the last");
        drop(queue);
        assert!(Pin::new(&mut runs).poll(&mut Context::from_waker(&waker)).is_pending(), "a job is under way");
        assert!(runs_on(&mut runs, &time).is_ready());
    }

    #[test]
    fn dropped_client_closes_its_sessions() {
        let (queue, _runs, time) = shared(8);
        let mut client = queue.client();
        let session = client.open(Transform::Copy).unwrap();
        let mut other = queue.client();
        other.close(session); // not its own
        drop(client);
        other.submit(copy_job(session, 1, "too late")).unwrap();
        time.0.store(1_000_000, Ordering::Relaxed);
        let Poll::Ready(Some(done)) = other.poll_done(&mut Context::from_waker(Waker::noop())) else {
            panic!("it ended")
        };
        assert_eq!(done.outcome.status, JobStatus::NoSession);
    }

    /// A queue that always reports work, but is empty.
    struct Restless {
        sessions: crate::sessions::CpuSessions,
        looks: usize,
    }

    impl JobQueue for Restless {
        fn contexts(&mut self) -> &mut dyn offload_api::Contexts {
            &mut self.sessions
        }

        fn room(&self) -> usize {
            0
        }

        fn submit(&mut self, _: Instant, job: Job) -> Result<(), Job> {
            Err(job)
        }

        fn flush(&mut self, _: Instant) {}

        fn complete(&mut self, _: Instant) -> Option<CompletedJob> {
            None
        }

        fn arm(&mut self, _: &Waker) -> bool {
            self.looks += 1;
            assert!(self.looks < 100, "the runner keeps its thread");
            false
        }

        fn next_event(&self) -> Option<Instant> {
            Some(Instant::ZERO)
        }
    }

    #[test]
    fn queue_that_never_arms_does_not_block_the_thread() {
        let restless = Restless { sessions: crate::sessions::CpuSessions::new(1), looks: 0 };
        let (_queue, mut runs) = SharedQueue::new(restless, Arc::new(TestClock::default()));
        let wakes = Arc::new(WakeCounter::default());
        assert!(Pin::new(&mut runs).poll(&mut Context::from_waker(&Waker::from(wakes.clone()))).is_pending());
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1, "it asks to be polled again");
    }

    #[test]
    fn flushed_job_wakes_the_runner() {
        let (queue, mut runs, time) = shared(8);
        let mut client = queue.client();
        let session = client.open(Transform::Copy).unwrap();
        let wakes = Arc::new(WakeCounter::default());
        let waker = Waker::from(wakes.clone());
        let cx = &mut Context::from_waker(&waker);
        assert!(Pin::new(&mut runs).poll(cx).is_pending());
        client.submit(copy_job(session, 1, "one")).unwrap();
        assert_eq!(wakes.0.load(Ordering::Relaxed), 0);
        client.flush();
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1, "the runner learns when the job ends");
        time.0.store(1_000_000, Ordering::Relaxed);
        assert!(Pin::new(&mut runs).poll(cx).is_pending());
        assert!(matches!(client.poll_done(cx), Poll::Ready(Some(_))));
    }
}
