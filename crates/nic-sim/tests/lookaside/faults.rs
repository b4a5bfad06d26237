//! Under any fault, each accepted job returns once, with its buffers and a status.

use crate::job;
use bytes::{Bytes, BytesMut};
use core::time::Duration;
use nic_sim::lookaside;
use nic_sim::lookaside::{LookasideConfig, LookasideUnit};
use offload_api::{ContextNews, Handle, Job, JobQueue, JobStatus, Way};
use offload_base::Instant;
use offload_compression::Compression;
use offload_jobs::{CpuConfig, CpuQueue, OpenTransform, PoolQueue, perform};
use offload_transforms::{Aead, SecretBytes, Session, Transform, Tweak};
use proptest::prelude::*;

fn transforms() -> [Transform; 3] {
    [
        Transform::Aead { aead: Aead::Aes256Gcm, key: SecretBytes::new(vec![3; 32]) },
        Transform::Xts { key: SecretBytes::new((0..64).collect()), unit: 512, tweak: Tweak::Unit },
        Compression::Lz4.at_level(0),
    ]
}

#[derive(Clone, Copy, Debug)]
enum FaultStep {
    Open(usize),
    Close(usize),
    /// Session, length, room in the target, and whether to undo.
    Submit(usize, usize, usize, bool),
    Flush,
    Pass(u64),
    Complete,
    Lose(usize),
    Restore(usize),
    Reset,
}

fn step() -> impl Strategy<Value = FaultStep> {
    prop_oneof![
        3 => (0usize..3).prop_map(FaultStep::Open),
        2 => (0usize..8).prop_map(FaultStep::Close),
        20 => (0usize..8, prop_oneof![Just(512), Just(1024), 0usize..2000], 0usize..4000, any::<bool>())
            .prop_map(|(session, len, room, undo)| FaultStep::Submit(session, len, room, undo)),
        6 => Just(FaultStep::Flush),
        8 => (0u64..100_000).prop_map(FaultStep::Pass),
        5 => Just(FaultStep::Complete),
        1 => (0usize..2).prop_map(FaultStep::Lose),
        1 => (0usize..2).prop_map(FaultStep::Restore),
        1 => Just(FaultStep::Reset),
    ]
}

/// A submitted job, as the test knows it.
struct SubmittedJob {
    transform: usize,
    source: Bytes,
    capacity: usize,
    undo: bool,
    back: bool,
}

/// Checks a returned job: returned once, with its own buffers, and with the CPU's result unless a fault occurred.
fn check(jobs: &mut [SubmittedJob], sessions: &[Session], done: offload_api::CompletedJob) {
    let job = &mut jobs[done.user as usize];
    assert!(!core::mem::replace(&mut job.back, true), "job {} ended twice", done.user);
    assert_eq!(done.source[0].as_ptr(), job.source.as_ptr(), "its own source");
    assert_eq!(done.target.capacity(), job.capacity, "its own target");
    assert_eq!(&done.target[..2], b"in");
    match done.outcome.status {
        JobStatus::NoSession | JobStatus::EngineLost | JobStatus::Reset | JobStatus::Gone => {
            assert_eq!(done.target.len(), 2, "a failed job appends nothing");
        }
        _ => {
            let mut target = BytesMut::with_capacity(job.capacity);
            target.extend_from_slice(b"in");
            let mut expected = Job::new(done.session, job.source.clone(), target);
            expected.way = if job.undo { Way::Undo } else { Way::Apply };
            assert_eq!(perform(&sessions[job.transform], &mut expected), done.outcome);
            assert_eq!(expected.target, done.target);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn each_job_comes_back_once(steps in prop::collection::vec(step(), 0..150), cached in 0usize..4, dies in any::<bool>()) {
        let units = vec![LookasideUnit { latency: Duration::from_micros(20), rate: Some(1_000_000_000) }; 2];
        let config = LookasideConfig { units, depth: 12, context_cache_bytes: 208 * cached, ..LookasideConfig::default() };
        let (mut device, mut queues) = lookaside(config, |_| ());
        let queue = &mut queues[0];
        let sessions = transforms().map(|transform| Session::new(&transform).unwrap());
        let mut open: Vec<(Handle, usize)> = Vec::new();
        let mut jobs: Vec<SubmittedJob> = Vec::new();
        let mut now = Instant::ZERO;
        for step in steps {
            match step {
                FaultStep::Open(transform) => {
                    if let Ok(handle) = queue.open(transforms()[transform].clone()) {
                        open.push((handle, transform));
                    }
                }
                // The session stays in the list, so that jobs with removed sessions are submitted too.
                FaultStep::Close(at) if !open.is_empty() => queue.contexts().remove(open[at % open.len()].0),
                FaultStep::Submit(at, len, room, undo) if !open.is_empty() => {
                    let (handle, transform) = open[at % open.len()];
                    let mut job = job(handle, jobs.len() as u64, Bytes::from(vec![7; len]));
                    job.target = BytesMut::with_capacity(room + 2);
                    job.target.extend_from_slice(b"in");
                    job.way = if undo { Way::Undo } else { Way::Apply };
                    let (source, capacity) = (job.source[0].clone(), job.target.capacity());
                    let room = queue.room();
                    match queue.submit(now, job) {
                        Ok(()) => jobs.push(SubmittedJob { transform, source, capacity, undo, back: false }),
                        Err(job) => {
                            prop_assert_eq!((room, job.source[0].as_ptr(), &job.target[..]), (0, source.as_ptr(), &b"in"[..]));
                        }
                    }
                }
                FaultStep::Flush => queue.flush(now),
                FaultStep::Pass(nanos) => {
                    now += Duration::from_nanos(nanos);
                    device.process(now);
                }
                FaultStep::Complete => while let Some(done) = queue.complete(now) {
                    check(&mut jobs, &sessions, done);
                },
                FaultStep::Lose(unit) => device.lose_unit(now, unit),
                FaultStep::Restore(unit) => device.restore_unit(now, unit),
                FaultStep::Reset => device.reset(now),
                FaultStep::Close(_) | FaultStep::Submit(..) => {}
            }
        }
        queue.flush(now);
        if dies {
            drop(device);
            while let Some(done) = queue.complete(now) {
                check(&mut jobs, &sessions, done);
            }
        } else {
            for (_, done) in crate::run(&mut device, queue, &mut now) {
                check(&mut jobs, &sessions, done);
            }
            while let Some(done) = queue.complete(now) {
                check(&mut jobs, &sessions, done);
            }
            // Removals wait until the queue has room.
            prop_assert!(crate::run(&mut device, queue, &mut now).is_empty());
            prop_assert_eq!(queue.room(), 12, "all of the room is free again");
        }
        prop_assert!(jobs.iter().all(|job| job.back), "some jobs did not return");
    }
}

/// A program produces the same bytes on the device, on the CPU in virtual time, and on threads.
#[test]
fn three_queues_give_the_same() {
    let device = {
        let (mut device, mut queues) = lookaside(LookasideConfig::default(), |_| ());
        program(&mut queues[0], |queue, now| {
            device.process(*now);
            *now = device.next_event().or(queue.next_event()).unwrap_or(*now).max(*now);
        })
    };
    let cpu = program(&mut CpuQueue::new(CpuConfig::default()), |queue, now| {
        *now = queue.next_event().unwrap_or(*now).max(*now);
    });
    let threads = program(&mut PoolQueue::new(2, 256), |queue, _| queue.wait());
    assert_eq!(device.len(), 300);
    assert!(device == cpu && cpu == threads);
}

/// Seals, encrypts and compresses; returns the results by job number.
fn program<Q: JobQueue>(queue: &mut Q, mut pass: impl FnMut(&mut Q, &mut Instant)) -> Vec<(u64, JobStatus, Vec<u8>)> {
    let sessions = transforms().map(|transform| queue.open(transform).unwrap());
    let (mut now, mut next, mut ended) = (Instant::ZERO, 0, Vec::new());
    while ended.len() < 300 {
        while next < 300 && queue.room() > 0 {
            let len = [512, 1024, 1500][next as usize % 3];
            let mut job = job(sessions[next as usize / 2 % 3], next, Bytes::from(vec![next as u8; len]));
            job.iv[0] = next as u8;
            queue.submit(now, job).unwrap();
            next += 1;
        }
        queue.flush(now);
        pass(queue, &mut now);
        while let Some(done) = queue.complete(now) {
            ended.push((done.user, done.outcome.status, done.target.to_vec()));
        }
    }
    ended.sort_by_key(|(user, ..)| *user);
    ended
}

#[test]
fn a_reset_is_told_and_sessions_open_again() {
    let (mut device, mut queues) = lookaside(LookasideConfig::default(), |_| ());
    let queue = &mut queues[0];
    let [session, ..] = transforms().map(|transform| queue.open(transform).unwrap());
    for user in 0..20 {
        queue.submit(Instant::ZERO, job(session, user, vec![0; 512].into())).unwrap();
    }
    queue.flush(Instant::ZERO);
    device.process(Instant::ZERO);
    device.reset(Instant::from_nanos(50_000));
    let mut now = Instant::from_nanos(50_000);
    let ended = crate::run(&mut device, queue, &mut now);
    assert_eq!(ended.len(), 20);
    assert!(ended.iter().all(|(_, done)| done.outcome.status == JobStatus::Reset && done.target.is_empty()));
    let removed = core::iter::from_fn(|| queue.contexts().poll_news())
        .filter(|news| matches!(news, ContextNews::Removed(_)))
        .count();
    assert_eq!((removed, device.sessions()), (3, 0));
    queue.submit(now, job(session, 0, vec![0; 512].into())).unwrap();
    assert_eq!(queue.complete(now).unwrap().outcome.status, JobStatus::NoSession);
    let again = queue.open(transforms()[0].clone()).unwrap();
    assert_ne!(again, session);
    queue.submit(now, job(again, 0, vec![0; 512].into())).unwrap();
    queue.flush(now);
    assert_eq!(crate::run(&mut device, queue, &mut now)[0].1.outcome.status, JobStatus::Done);
}
