//! Drivers that submit arbitrary entries, and drivers that are dropped.

use super::*;
use bytes::BytesMut;
use core::convert::Infallible;
use nic_engine::{Context, Engine, ImageReader, ImageWriter, JobEngine, NoCounters};
use nic_rings::dma;
use nic_rings::job::{DriverJobRings, JobCompletion, JobDescriptor, JobEntry, JobSlot, job_rings};
use nic_rings::packet::{ControlCommand, ControlCompletion};
use offload_api::{Direction, Handle, Job, JobOutcome, JobStatus};
use offload_transforms::Transform;

/// Makes a device with two queues that takes no time, and the drivers' ends of their rings.
fn two_queues() -> (Lookaside, [DriverJobRings; 2]) {
    let (units, delays) = (vec![LookasideUnit::NO_TIME], Delays::NONE);
    let config = LookasideConfig { shares: vec![1, 1], units, delays, ..LookasideConfig::default() };
    let mut engines = Engines::none();
    engines.add_job(nic_engines::Transforms::with(config.transforms), 100);
    let ((first, own), (second, other)) = (job_rings(8), job_rings(8));
    (Lookaside::new(&config, vec![first, second], engines), [own, other])
}

/// Submits an entry and returns the device's answer.
fn ask(device: &mut Lookaside, rings: &mut DriverJobRings, descriptor: JobDescriptor) -> JobCompletion {
    rings.submit.push(JobEntry { epoch: 0, descriptor }).unwrap();
    device.process(Instant::ZERO);
    rings.completions.pop().expect("each entry is answered")
}

fn create(device: &mut Lookaside, rings: &mut DriverJobRings, handle: Handle) -> bool {
    let spec = Box::new(Transform::Copy);
    let direction = Direction::Transmit;
    let command = ControlCommand::Create { handle, flow: None, direction, keys: Vec::new(), spec };
    let answer = ask(device, rings, JobDescriptor::Control(command));
    matches!(answer, JobCompletion::Control(ControlCompletion::Created(_)))
}

fn run_job(device: &mut Lookaside, rings: &mut DriverJobRings, session: Handle) -> JobStatus {
    let job = Job::new(session, "bytes".into(), BytesMut::with_capacity(5));
    match ask(device, rings, JobDescriptor::Job(JobSlot::new(job))) {
        JobCompletion::Done(slot) => slot.outcome.status,
        other => panic!("{other:?} is not the completion of a job"),
    }
}

fn destroy(device: &mut Lookaside, rings: &mut DriverJobRings, handle: Handle) {
    let answer = ask(device, rings, JobDescriptor::Control(ControlCommand::Destroy { handle }));
    assert!(matches!(answer, JobCompletion::Control(ControlCompletion::Destroyed(_))));
}

/// The first session slot of each queue.
const SESSIONS: [Handle; 2] = [Handle { index: 0, generation: 0 }, Handle { index: 50, generation: 0 }];

#[test]
fn session_of_another_queue_is_refused() {
    let (mut device, [mut own, mut other]) = two_queues();
    assert!(create(&mut device, &mut own, SESSIONS[0]));
    assert!(!create(&mut device, &mut other, SESSIONS[0]), "the slot belongs to the other queue");
    assert_eq!(run_job(&mut device, &mut other, SESSIONS[0]), JobStatus::NoSession);
    destroy(&mut device, &mut other, SESSIONS[0]);
    assert_eq!(run_job(&mut device, &mut own, SESSIONS[0]), JobStatus::Done, "the session still exists");
    assert_eq!((device.counters(0).no_session, device.counters(1).no_session), (0, 1));
    destroy(&mut device, &mut own, SESSIONS[0]);
    assert_eq!(run_job(&mut device, &mut own, SESSIONS[0]), JobStatus::NoSession);
}

/// A bus that moves a byte in a nanosecond, and a unit that takes two for each: the bus is the faster one for large jobs only.
#[test]
fn jobs_end_later_by_their_cost() {
    let unit = LookasideUnit { latency: Duration::ZERO, rate: Some(500_000_000) };
    let costs = Costs { pcie_rate: Some(8_000_000_000), context_fetch: Duration::from_micros(5), ..Costs::default() };
    let config = LookasideConfig {
        units: vec![unit],
        delays: Delays::NONE,
        context_cache_bytes: 208,
        costs,
        ..LookasideConfig::default()
    };
    let mut engines = Engines::none();
    engines.add_job(nic_engines::Transforms::default(), 100);
    let (rings, mut own) = job_rings(8);
    let mut device = Lookaside::new(&config, vec![rings], engines);
    let [first, second] = [0, 1].map(|index| Handle { index, generation: 0 });
    assert!(create(&mut device, &mut own, first) && create(&mut device, &mut own, second));
    let mut now = Instant::ZERO;
    let mut time_of = |session, bytes: usize| {
        let (before, began) = (device.dma(), now);
        let job = Job::new(session, vec![7; bytes].into(), BytesMut::with_capacity(bytes));
        own.submit.push(JobEntry { epoch: 0, descriptor: JobDescriptor::Job(JobSlot::new(job)) }).unwrap();
        loop {
            device.process(now);
            if own.completions.pop().is_some() {
                let dma = device.dma();
                let read = dma.job_descriptors + dma.job_source + dma.context;
                return (now - began, read - before.job_descriptors - before.job_source - before.context);
            }
            now = device.next_event().expect("the job is under way");
        }
    };
    let nanos = |(took, read): (Duration, u64)| (took.as_nanos() as u64, read);
    let (took, read) = nanos(time_of(second, 10));
    let small = dma::job_descriptor_bytes(1) + 10;
    assert_eq!((took, read), (small, small), "descriptor and source take longer than the unit");
    let (took, read) = nanos(time_of(first, 10));
    assert_eq!((took, read), (5000 + read, small + 2 * 208), "one context comes, one goes");
    let (took, _) = nanos(time_of(first, 1000));
    assert_eq!(took, 2000, "the unit's time");
}

/// An engine with sessions that refuse jobs before a command enables the session.
#[derive(Debug)]
struct Switchable;

impl Engine for Switchable {
    const NAME: &'static str = "switchable";
    type Spec = ();
    type Command = ();
    type Change = Infallible;
    type State = bool;
    type Objects = ();
    type Counters = NoCounters;

    fn create(&mut self, _: Direction, (): ()) -> Option<(bool, ())> {
        Some((false, ()))
    }

    fn save(is_enabled: &bool, image: &mut ImageWriter<'_>) {
        image.put_u8((*is_enabled).into());
    }

    fn load(image: &mut ImageReader<'_>) -> Option<bool> {
        Some(image.take_u8()? != 0)
    }

    fn command(context: Context<'_, Switchable>, (): ()) {
        *context.state = true;
    }
}

impl JobEngine for Switchable {
    fn run(&mut self, context: Context<'_, Switchable>, _: &mut Job, _: &mut NoCounters) -> JobOutcome {
        let status = if *context.state { JobStatus::Done } else { JobStatus::Length };
        JobOutcome { status, ..JobOutcome::failed(status) }
    }
}

#[test]
fn command_for_a_session_of_another_queue_is_ignored() {
    let config = LookasideConfig {
        shares: vec![1, 1],
        units: vec![LookasideUnit::NO_TIME],
        delays: Delays::NONE,
        ..LookasideConfig::default()
    };
    let mut engines = Engines::none();
    engines.add_job(Switchable, 100);
    let ((first, mut own), (second, mut other)) = (job_rings(8), job_rings(8));
    let mut device = Lookaside::new(&config, vec![first, second], engines);
    let (handle, direction) = (SESSIONS[0], Direction::Transmit);
    let create = ControlCommand::Create { handle, flow: None, direction, keys: Vec::new(), spec: Box::new(()) };
    ask(&mut device, &mut own, JobDescriptor::Control(create));
    let command = || JobDescriptor::Control(ControlCommand::Command { handle, command: Box::new(()) });
    ask(&mut device, &mut other, command());
    assert_eq!(run_job(&mut device, &mut own, handle), JobStatus::Length, "a command of another queue has no effect");
    ask(&mut device, &mut own, command());
    assert_eq!(run_job(&mut device, &mut own, handle), JobStatus::Done);
}

#[test]
fn sessions_of_a_dropped_driver_are_given_up() {
    let (mut device, [mut own, mut other]) = two_queues();
    assert!(create(&mut device, &mut own, SESSIONS[0]) && create(&mut device, &mut other, SESSIONS[1]));
    assert!(device.arm(Waker::noop()));
    drop(own);
    assert!(!device.arm(Waker::noop()), "the dropped queue must be cleared");
    device.process(Instant::ZERO);
    assert_eq!(device.sessions(), 1);
    assert!(device.arm(Waker::noop()));
    assert_eq!(
        run_job(&mut device, &mut other, SESSIONS[1]),
        JobStatus::Done,
        "the other queue's session still exists"
    );
}
