//! A device that disappears, and a queue full of commands: no task waits forever, and no key stays in memory.

use crate::{job, run};
use core::convert::Infallible;
use core::future::Future;
use core::pin::Pin;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use nic_sim::engine::{self, Engine, ImageReader, ImageWriter, JobEngine, NoCounters};
use nic_sim::lookaside::{Lookaside, LookasideConfig};
use nic_sim::{JobDriver, lookaside};
use offload_api::{ContextNews, Direction, Handle, Job, JobOutcome, JobQueue, JobStatus, NewContext};
use offload_base::{Alarm, Clock, Instant, Timers};
use offload_jobs::{JobClient, OpenTransform, RunQueue, SharedQueue};
use offload_transforms::{Aead, SecretBytes, Transform};
use std::sync::{Arc, Mutex};
use std::task::Wake;

/// A clock that the test advances.
#[derive(Clone, Default)]
struct JobClock(Arc<AtomicU64>);

impl Clock for JobClock {
    fn now(&self) -> Instant {
        Instant::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

impl Timers for JobClock {
    fn alarm(&self) -> Box<dyn Alarm> {
        Box::new(self.clone())
    }
}

impl Alarm for JobClock {
    fn poll(&mut self, _: &mut Context<'_>, deadline: Option<Instant>) -> Poll<()> {
        if deadline.is_some_and(|deadline| deadline <= self.now()) { Poll::Ready(()) } else { Poll::Pending }
    }
}

#[derive(Default)]
struct WakeCount(AtomicUsize);

impl WakeCount {
    fn take(&self) -> usize {
        self.0.swap(0, Ordering::Relaxed)
    }
}

impl Wake for WakeCount {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn accelerator(depth: usize) -> (Lookaside, JobDriver) {
    let (device, mut queues) = lookaside(LookasideConfig { depth, ..LookasideConfig::default() }, |_| ());
    (device, queues.remove(0))
}

fn open_sealing(queue: &mut dyn JobQueue) -> Handle {
    queue.open(Transform::Aead { aead: Aead::Aes128Gcm, key: SecretBytes::new(vec![7; 16]) }).unwrap()
}

/// Polls the runner until it sleeps, as an executor does.
fn run_until_idle(runs: &mut RunQueue) {
    let wakes = Arc::new(WakeCount::default());
    let waker = Waker::from(wakes.clone());
    for _ in 0..10 {
        assert!(Pin::new(&mut *runs).poll(&mut Context::from_waker(&waker)).is_pending());
        if wakes.take() == 0 {
            return;
        }
    }
    panic!("the runner never sleeps");
}

fn take_removed(queue: &mut JobDriver) -> Vec<Handle> {
    let news = core::iter::from_fn(|| queue.contexts().poll_news());
    news.filter_map(|news| if let ContextNews::Removed(handle) = news { Some(handle) } else { None }).collect()
}

#[test]
fn runner_sleeps_when_the_device_is_gone() {
    let (device, queue) = accelerator(8);
    let (queue, mut runs) = SharedQueue::new(queue, Arc::new(JobClock::default()));
    let mut client = queue.client();
    let session = client.open(Transform::Copy).unwrap();
    client.submit(job(session, 1, vec![1; 8].into())).unwrap();
    client.flush();
    run_until_idle(&mut runs);
    drop(device);
    run_until_idle(&mut runs);
    let cx = &mut Context::from_waker(Waker::noop());
    let Poll::Ready(Some(done)) = client.poll_done(cx) else { panic!("the job comes back") };
    assert_eq!((done.user, done.outcome.status), (1, JobStatus::Gone));
    assert!(matches!(client.poll_done(cx), Poll::Ready(None)), "no other job is under way");
}

/// A queue without a device reports pending work until the last job and all events are returned.
#[test]
fn arm_is_true_once_a_gone_device_gave_all_back() {
    let (device, mut queue) = accelerator(8);
    let session = open_sealing(&mut queue);
    queue.submit(Instant::ZERO, job(session, 1, vec![1; 8].into())).unwrap();
    queue.flush(Instant::ZERO);
    assert!(queue.arm(Waker::noop()));
    assert_eq!(queue.next_event(), None);
    drop(device);
    assert!(!queue.arm(Waker::noop()), "a job is still to be returned");
    assert_eq!(queue.next_event(), Some(Instant::ZERO));
    assert_eq!(queue.complete(Instant::ZERO).unwrap().outcome.status, JobStatus::Gone);
    assert!(queue.complete(Instant::ZERO).is_none());
    assert!(!queue.arm(Waker::noop()), "an event is pending");
    assert_eq!(take_removed(&mut queue), [session]);
    assert!(queue.arm(Waker::noop()));
    assert_eq!(queue.next_event(), None);
    // A job submitted now ends at once.
    queue.submit(Instant::ZERO, job(session, 2, vec![1; 8].into())).unwrap();
    assert_eq!(queue.next_event(), Some(Instant::ZERO));
    assert!(!queue.arm(Waker::noop()));
    assert_eq!(queue.complete(Instant::ZERO).unwrap().outcome.status, JobStatus::Gone);
    assert!(queue.arm(Waker::noop()));
}

/// The device wakes the driver only once: an entry that the driver misses then is never found.
#[test]
fn a_driver_woken_by_the_devices_end_sees_the_end() {
    /// A waker that takes all completions.
    struct CompletionTaker(Arc<Mutex<JobDriver>>, Mutex<Vec<u64>>);

    impl Wake for CompletionTaker {
        fn wake(self: Arc<Self>) {
            let mut queue = self.0.lock().unwrap();
            let ended = core::iter::from_fn(|| queue.complete(Instant::ZERO)).map(|done| done.user);
            self.1.lock().unwrap().extend(ended);
        }
    }

    let (mut device, mut queue) = accelerator(8);
    let session = queue.open(Transform::Copy).unwrap();
    queue.submit(Instant::ZERO, job(session, 1, vec![1; 8].into())).unwrap();
    queue.flush(Instant::ZERO);
    device.process(Instant::from_nanos(10_000));
    // The device has not fetched the second job.
    queue.submit(Instant::ZERO, job(session, 2, vec![1; 8].into())).unwrap();
    queue.flush(Instant::ZERO);
    let queue = Arc::new(Mutex::new(queue));
    let takes = Arc::new(CompletionTaker(queue.clone(), Mutex::default()));
    assert!(queue.lock().unwrap().arm(&Waker::from(takes.clone())));
    drop(device);
    assert_eq!(*takes.1.lock().unwrap(), [1, 2]);
}

#[test]
fn command_places_come_back_when_the_device_is_gone() {
    for fetched in [false, true] {
        let (mut device, mut queue) = accelerator(2);
        let sessions = [(); 2].map(|()| queue.open(Transform::Copy).unwrap());
        if fetched {
            device.process(Instant::ZERO);
        }
        drop(device);
        while queue.complete(Instant::ZERO).is_some() {}
        assert_eq!(queue.room(), 2);
        assert_eq!(take_removed(&mut queue), sessions);
        assert!(queue.submit(Instant::ZERO, job(sessions[0], 1, vec![1; 8].into())).is_ok());
        assert_eq!(queue.complete(Instant::ZERO).unwrap().outcome.status, JobStatus::Gone);
    }
}

#[test]
fn client_of_a_gone_device_does_not_wait_for_room() {
    let (device, queue) = accelerator(2);
    let (queue, _runs) = SharedQueue::new(queue, Arc::new(JobClock::default()));
    let mut client = queue.client();
    let session = client.open(Transform::Copy).unwrap();
    let _other = client.open(Transform::Copy).unwrap();
    drop(device);
    let mut done = core::pin::pin!(client.run(job(session, 1, vec![1; 8].into())));
    let Poll::Ready(done) = done.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
        panic!("it waits for room")
    };
    assert_eq!(done.outcome.status, JobStatus::Gone);
}

/// An engine without keys. Reference counts of its specs show how many are still in memory.
#[derive(Debug)]
struct KeylessEngine;

impl Engine for KeylessEngine {
    const NAME: &'static str = "keyless";
    type Spec = Arc<()>;
    type Command = Infallible;
    type Change = Infallible;
    type State = ();
    type Objects = Arc<()>;
    type Counters = NoCounters;

    fn create(&mut self, _: Direction, key: Arc<()>) -> Option<((), Arc<()>)> {
        Some(((), key))
    }

    fn save((): &(), _: &mut ImageWriter<'_>) {}

    fn load(_: &mut ImageReader<'_>) -> Option<()> {
        Some(())
    }
}

impl JobEngine for KeylessEngine {
    fn run(&mut self, _: engine::Context<'_, KeylessEngine>, _: &mut Job, _: &mut Self::Counters) -> JobOutcome {
        JobOutcome::failed(JobStatus::Own(1))
    }
}

fn open_keyless(queue: &mut dyn JobQueue, key: &Arc<()>) -> Handle {
    let engine = queue.contexts().engine("keyless").unwrap().number;
    let spec = Box::new(key.clone());
    queue
        .contexts()
        .create(NewContext { engine, direction: Direction::Transmit, flow: None, keys: Vec::new(), spec })
        .unwrap()
}

#[test]
fn keys_on_the_ring_go_with_the_device() {
    let (device, mut queues) = lookaside(LookasideConfig::default(), |engines| engines.add_job(KeylessEngine, 10));
    let key = Arc::new(());
    for _ in 0..3 {
        open_keyless(&mut queues[0], &key);
    }
    drop(device);
    assert!(queues[0].complete(Instant::ZERO).is_none());
    assert_eq!(Arc::strong_count(&key), 1);
}

/// All sessions leave the device with their driver: created ones, ones on the ring, and removed ones.
#[test]
fn keys_of_a_dropped_driver_leave_the_device() {
    let config = LookasideConfig { shares: vec![1, 1], ..LookasideConfig::default() };
    let (mut device, mut queues) = lookaside(config, |engines| engines.add_job(KeylessEngine, 10));
    let (key, others) = (Arc::new(()), Arc::new(()));
    let now = &mut { Instant::ZERO };
    open_keyless(&mut queues[1], &others);
    let sessions = [(); 3].map(|()| open_keyless(&mut queues[0], &key));
    run(&mut device, &mut queues[1], now);
    open_keyless(&mut queues[0], &key);
    queues[0].contexts().remove(sessions[1]);
    queues[0].submit(*now, job(sessions[0], 1, vec![1; 8].into())).unwrap();
    queues[0].flush(*now);
    drop(queues.remove(0));
    device.process(*now);
    assert_eq!((Arc::strong_count(&key), device.sessions()), (1, 1));
    assert_eq!(Arc::strong_count(&others), 2);
    assert_eq!(device.next_event(), None);
}

/// While commands fill the queue, removals wait; the first completed command makes room.
#[test]
fn sessions_given_up_at_a_full_queue_leave_without_a_job() {
    let (mut device, mut queue) = accelerator(4);
    let sessions: Vec<_> = (0..4).map(|_| open_sealing(&mut queue)).collect();
    sessions.iter().for_each(|session| queue.contexts().remove(*session));
    let now = &mut { Instant::ZERO };
    assert!(run(&mut device, &mut queue, now).is_empty());
    assert_eq!(device.sessions(), 0, "keys of removed sessions are still in the device");
    assert_eq!((take_removed(&mut queue), queue.room()), (sessions, 4));
}

/// The removal is queued after earlier jobs; a later job would race with it.
#[test]
fn session_given_up_takes_no_more_jobs() {
    let (mut device, mut queue) = accelerator(8);
    let now = &mut { Instant::ZERO };
    let session = queue.open(Transform::Copy).unwrap();
    run(&mut device, &mut queue, now);
    queue.submit(*now, job(session, 1, vec![1; 8].into())).unwrap();
    queue.contexts().remove(session);
    queue.submit(*now, job(session, 2, vec![1; 8].into())).unwrap();
    let late = queue.complete(*now).expect("the job ends without the device");
    assert_eq!((late.user, late.outcome.status), (2, JobStatus::NoSession));
    queue.flush(*now);
    let ended = run(&mut device, &mut queue, now);
    assert_eq!(
        ended.iter().map(|(_, done)| (done.user, done.outcome.status)).collect::<Vec<_>>(),
        [(1, JobStatus::Done)]
    );
}

fn polls(client: &mut JobClient, runs: &mut RunQueue, device: &mut Lookaside, time: &JobClock) {
    for _ in 0..20 {
        device.process(time.now());
        run_until_idle(runs);
        let _ = client.poll_done(&mut Context::from_waker(Waker::noop()));
        time.0.fetch_add(Duration::from_millis(1).as_nanos() as u64, Ordering::Relaxed);
    }
}

#[test]
fn sessions_of_a_dropped_client_leave_the_device() {
    let (mut device, queue) = accelerator(4);
    let time = JobClock::default();
    let (queue, mut runs) = SharedQueue::new(queue, Arc::new(time.clone()));
    let (mut client, mut other) = (queue.client(), queue.client());
    for _ in 0..4 {
        open_sealing(&mut client);
    }
    drop(client);
    polls(&mut other, &mut runs, &mut device, &time);
    assert_eq!(device.sessions(), 0);
}

#[test]
fn news_behind_a_job_keep_the_queue_awake() {
    let (mut device, mut queue) = accelerator(8);
    let now = &mut { Instant::ZERO };
    let session = queue.open(Transform::Copy).unwrap();
    run(&mut device, &mut queue, now);
    while queue.contexts().poll_news().is_some() {}
    queue.submit(*now, job(session, 1, vec![1; 8].into())).unwrap();
    queue.flush(*now);
    finish_jobs(&mut device, now);
    queue.contexts().remove(session);
    finish_jobs(&mut device, now);
    assert_eq!(queue.contexts().poll_news(), None, "the event is behind the job");
    assert_eq!(core::iter::from_fn(|| queue.complete(*now)).count(), 1);
    assert!(!queue.arm(Waker::noop()), "the session's removal is pending");
    assert_eq!(take_removed(&mut queue), [session]);
    assert!(queue.arm(Waker::noop()));
}

/// Runs the device alone until nothing is due.
fn finish_jobs(device: &mut Lookaside, now: &mut Instant) {
    device.process(*now);
    while let Some(at) = device.next_event() {
        *now = at.max(*now);
        device.process(*now);
    }
}
