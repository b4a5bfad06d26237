//! An external engine beside the built-in ones, and an engine that panics.

use crate::{job, run};
use core::convert::Infallible;
use core::task::Waker;
use nic_sim::engine::{Context, Engine, ImageReader, ImageWriter, JobEngine, NoCounters};
use nic_sim::lookaside;
use nic_sim::lookaside::{LookasideConfig, StopSignal};
use offload_api::{Direction, Handle, Job, JobOutcome, JobQueue, JobStatus, NewContext};
use offload_base::Instant;

/// An engine that adds up the bytes of all jobs of a session, and panics at a given sum.
#[derive(Debug)]
struct Adder {
    panics_at: u64,
}

impl Engine for Adder {
    const NAME: &'static str = "adder";
    type Spec = u64;
    type Command = u64;
    type Change = Infallible;
    type State = u64;
    type Objects = ();
    type Counters = NoCounters;

    fn create(&mut self, _: Direction, start: u64) -> Option<(u64, ())> {
        (start < 1000).then_some((start, ()))
    }

    fn save(sum: &u64, image: &mut ImageWriter<'_>) {
        image.put_u64(*sum);
    }

    fn load(image: &mut ImageReader<'_>) -> Option<u64> {
        image.take_u64()
    }

    fn command(context: Context<'_, Adder>, sum: u64) {
        *context.state = sum;
    }
}

impl JobEngine for Adder {
    fn run(&mut self, context: Context<'_, Adder>, job: &mut Job, _: &mut NoCounters) -> JobOutcome {
        *context.state += job.source.iter().flatten().map(|byte| u64::from(*byte)).sum::<u64>();
        job.target.extend_from_slice(&context.state.to_be_bytes());
        assert_ne!(*context.state, self.panics_at, "the sum at which it panics");
        let status = if context.state.is_multiple_of(2) { JobStatus::Done } else { JobStatus::Own(7) };
        JobOutcome { status, consumed: job.source_len(), produced: 8, checksums: None }
    }
}

fn open(queue: &mut impl JobQueue, start: u64) -> Handle {
    let engine = queue.contexts().engine("adder").unwrap().number;
    let new = NewContext { engine, direction: Direction::Transmit, flow: None, keys: vec![], spec: Box::new(start) };
    queue.contexts().create(new).unwrap()
}

/// With space for one context on the device, all other states are in host memory.
#[test]
fn its_states_are_evicted_and_come_back() {
    let config = LookasideConfig { context_cache_bytes: 0, ..LookasideConfig::default() };
    let (mut device, mut queues) = lookaside(config, |engines| engines.add_job(Adder { panics_at: u64::MAX }, 100));
    let queue = &mut queues[0];
    let sessions: Vec<_> = (0..5).map(|start| open(queue, 2 * start)).collect();
    let refused = open(queue, 1000);
    for round in 0..4 {
        for (user, session) in (0..).zip(&sessions) {
            queue.submit(Instant::ZERO, job(*session, user + 10 * round, vec![1, 1].into())).unwrap();
        }
    }
    queue.submit(Instant::ZERO, job(refused, 99, vec![1].into())).unwrap();
    queue.contexts().command(sessions[0], Box::new(51u64)).unwrap();
    queue.submit(Instant::ZERO, job(sessions[0], 100, vec![2].into())).unwrap();
    queue.flush(Instant::ZERO);
    let ended = run(&mut device, queue, &mut { Instant::ZERO });
    assert_eq!(ended.len(), 22);
    for (_, done) in ended {
        match done.user {
            99 => assert_eq!((done.outcome.status, done.target.len()), (JobStatus::NoSession, 0)),
            100 => assert_eq!((done.outcome.status, done.target.len()), (JobStatus::Own(7), 0), "53 is odd"),
            user => {
                let sum = 2 * (user % 10) + 2 * (user / 10 + 1);
                assert_eq!(done.target[..], sum.to_be_bytes(), "job {user}");
            }
        }
    }
    assert!(device.dma().context >= 2 * 208 * 19, "evicted and fetched nearly each time");
}

/// The device's thread panics during a job: every job returns with its buffers and a status.
#[test]
fn jobs_of_a_thread_that_dies_come_back() {
    let (device, mut queues) =
        lookaside(LookasideConfig::default(), |engines| engines.add_job(Adder { panics_at: 40 }, 100));
    let queue = &mut queues[0];
    // Each job adds 2, so the sum of 40 is reached by the 20th job.
    let session = open(queue, 0);
    let submit = |queue: &mut nic_sim::JobDriver, user| {
        queue.submit(Instant::ZERO, job(session, user, vec![1, 1].into())).unwrap();
    };
    (0..100).for_each(|user| submit(queue, user));
    queue.flush(Instant::ZERO);
    let clock = std::time::Instant::now();
    let thread = std::thread::spawn(move || {
        std::panic::set_hook(Box::new(|_| ())); // it is meant to
        lookaside::run(device, || Instant::from_nanos(clock.elapsed().as_nanos() as u64), &StopSignal::default());
    });
    assert!(thread.join().is_err());
    let _hook = std::panic::take_hook();
    // Some jobs are submitted after the panic.
    (100..110).for_each(|user| submit(queue, user));
    queue.flush(Instant::ZERO);
    assert!(!queue.arm(Waker::noop()), "jobs are still to be returned");
    let mut seen = [false; 110];
    while let Some(done) = queue.complete(Instant::ZERO) {
        assert!(!core::mem::replace(&mut seen[done.user as usize], true), "job {} ended twice", done.user);
        assert_eq!((done.source[0].len(), done.target.capacity()), (2, 1004));
        match done.outcome.status {
            JobStatus::Done => assert!(done.user < 19 && done.target.len() == 8),
            status => assert_eq!((status, done.target.len()), (JobStatus::Gone, 0)),
        }
    }
    assert_eq!(seen, [true; 110]);
    while queue.contexts().poll_news().is_some() {}
    assert!(queue.arm(Waker::noop()), "all jobs are returned");
    assert_eq!(queue.room(), 256, "all of the room is free again");
}
