//! Latency, rate, fairness, and bytes over PCIe.

use crate::{job, run};
use core::time::Duration;
use nic_sim::Delays;
use nic_sim::lookaside;
use nic_sim::lookaside::{LookasideConfig, LookasideUnit};
use nic_sim::stats::TransformCounters;
use offload_api::{Job, JobQueue, JobStatus, Way};
use offload_base::Instant;
use offload_base::counters::CounterSet;
use offload_jobs::{OpenTransform, TransformCapabilities};
use offload_transforms::{Aead, SecretBytes, Transform};

/// 16 KiB take 10 us at this rate.
const UNIT: LookasideUnit = LookasideUnit { latency: Duration::from_micros(90), rate: Some(1_638_400_000) };

fn config() -> LookasideConfig {
    LookasideConfig { units: vec![UNIT], delays: Delays::NONE, ..LookasideConfig::default() }
}

/// Returns the bytes per second with `in_flight` jobs of 16 KiB in flight.
fn throughput(config: LookasideConfig, in_flight: usize) -> f64 {
    let (mut device, mut queues) = lookaside(config, |_| ());
    let queue = &mut queues[0];
    let session = queue.open(Transform::Copy).unwrap();
    let (mut now, mut submitted, mut ended) = (Instant::ZERO, 0, 0);
    while ended < 400 {
        while submitted < 400 && submitted - ended < in_flight {
            queue.submit(now, job(session, 0, vec![7; 16 << 10].into())).unwrap();
            submitted += 1;
        }
        queue.flush(now);
        device.process(now);
        let before = ended;
        while let Some(done) = queue.complete(now) {
            assert_eq!(done.outcome.status, JobStatus::Done);
            ended += 1;
        }
        if ended == before {
            now = device.next_event().unwrap();
        }
    }
    (400 * (16 << 10)) as f64 / (now - Instant::ZERO).as_secs_f64()
}

/// A unit that starts a job every 10 us and takes 100 us per job is full with ten in flight. Fewer give their share;
/// more give no more.
#[test]
fn full_rate_needs_rate_times_latency_jobs_in_flight() {
    let rate = |in_flight| throughput(config(), in_flight) / 1_638_400_000.0;
    for (in_flight, expected) in [(1, 0.1), (5, 0.5), (10, 1.0), (40, 1.0)] {
        let found = rate(in_flight);
        // At the end the queue runs dry: at most 9 of 400 jobs overlap no other.
        assert!((expected * 0.97..=expected * 1.001).contains(&found), "{in_flight} in flight: {found}");
    }
    let two = LookasideConfig { units: vec![UNIT; 2], ..config() };
    let found = throughput(two, 20) / 1_638_400_000.0;
    assert!((1.9..=2.0).contains(&found), "two units: {found}");
}

/// Jobs go to the units in turn, and overtake each other.
#[test]
fn units_take_turns_and_completions_come_in_any_order() {
    let slow = LookasideUnit { latency: Duration::from_micros(500), ..UNIT };
    let (mut device, mut queues) = lookaside(LookasideConfig { units: vec![slow, UNIT], ..config() }, |_| ());
    let queue = &mut queues[0];
    let session = queue.open(Transform::Copy).unwrap();
    for user in 0..6 {
        queue.submit(Instant::ZERO, job(session, user, vec![0; 16 << 10].into())).unwrap();
    }
    queue.flush(Instant::ZERO);
    let order: Vec<u64> = run(&mut device, queue, &mut { Instant::ZERO }).iter().map(|(_, done)| done.user).collect();
    assert_eq!(order, [1, 3, 5, 0, 2, 4]);
}

/// A tenant that floods its queue gets its share and no more; a tenant with few jobs is served at once.
#[test]
fn a_queue_gets_its_share() {
    let (mut device, mut queues) = lookaside(LookasideConfig { shares: vec![1, 3, 1], ..config() }, |_| ());
    let sessions: Vec<_> = queues.iter_mut().map(|queue| queue.open(Transform::Copy).unwrap()).collect();
    let (mut now, mut bytes, mut waited) = (Instant::ZERO, [0; 3], Duration::ZERO);
    let mut asked = None;
    while now < Instant::from_nanos(20_000_000) {
        for (number, queue) in queues.iter_mut().enumerate() {
            // The first floods with large jobs, the second with small ones, and the third submits little.
            let len = [64 << 10, 4 << 10, 512][number];
            let most = [100, 100, 1][number];
            while queue.room() > 256 - most {
                queue.submit(now, job(sessions[number], 0, vec![0; len].into())).unwrap();
                if number == 2 {
                    asked = Some(now);
                }
            }
            queue.flush(now);
        }
        device.process(now);
        for (number, queue) in queues.iter_mut().enumerate() {
            while let Some(done) = queue.complete(now) {
                bytes[number] += done.source[0].len();
                if number == 2 {
                    waited = waited.max(now - asked.take().unwrap());
                }
            }
        }
        now = device.next_event().unwrap().max(now);
    }
    let ratio = bytes[1] as f64 / bytes[0] as f64;
    assert!((2.8..=3.2).contains(&ratio), "{bytes:?}");
    // At most one large job of the first queue, and the second queue's share, may be ahead.
    assert!(waited < UNIT.latency + 2 * UNIT.time_of(64 << 10) + UNIT.time_of(64 << 10) * 3, "{waited:?}");
}

/// Lookaside crosses PCIe twice: the source, and the result with its tag.
#[test]
fn bytes_over_pcie_are_counted_by_purpose() {
    let (mut device, mut queues) = lookaside(config(), |_| ());
    let queue = &mut queues[0];
    let session = queue.open(Transform::Aead { aead: Aead::Aes128Gcm, key: SecretBytes::new(vec![1; 16]) }).unwrap();
    for _ in 0..10 {
        let mut job = job(session, 0, vec![0; 1000].into());
        job.aad.extend_from_slice(&[0; 13]);
        queue.submit(Instant::ZERO, job).unwrap();
    }
    queue.flush(Instant::ZERO);
    assert_eq!(run(&mut device, queue, &mut { Instant::ZERO }).len(), 10);
    let dma = device.dma();
    assert_eq!((dma.job_source, dma.job_target), (10 * 1013, 10 * 1016));
    assert_eq!((dma.job_descriptors, dma.completions), (512 + 10 * 128, 11 * 64));
    assert_eq!((device.counters(0).done, device.counters(0).bytes), (10, 10_000));
    let sealed = dma.job_target - 10 * 16;
    // A plaintext does not authenticate as ciphertext.
    queue.submit(Instant::ZERO, Job { way: Way::Undo, ..job(session, 0, vec![0; 100].into()) }).unwrap();
    queue.flush(Instant::ZERO);
    run(&mut device, queue, &mut { Instant::ZERO });
    let mut set = CounterSet::default();
    device.count(&mut set);
    let counted = ["transform_applied_bytes", "transform_undone_bytes", "transform_failed", "jobs_done", "jobs_failed"];
    assert_eq!(counted.map(|name| set.value(name)), [sealed, 0, 1, 10, 1]);
    assert_eq!(device.engine_counters::<TransformCounters>().applied_bytes, sealed);
}

/// An accelerator without an AEAD does not list the AEAD as a capability, and refuses its sessions.
#[test]
fn an_accelerators_capabilities_are_reported_and_enforced() {
    for driver in TransformCapabilities::drivers() {
        let transforms = TransformCapabilities::for_driver(driver).unwrap();
        let (mut device, mut queues) = lookaside(LookasideConfig { transforms, ..config() }, |_| ());
        let queue = &mut queues[0];
        assert_eq!(queue.capabilities(), Some(transforms));
        for aead in Aead::ALL {
            let session = queue.open(Transform::Aead { aead, key: SecretBytes::new(vec![1; aead.key_len()]) }).unwrap();
            queue.submit(Instant::ZERO, job(session, 0, vec![0; 100].into())).unwrap();
            queue.flush(Instant::ZERO);
            let (_, done) = run(&mut device, queue, &mut { Instant::ZERO }).pop().unwrap();
            assert_eq!(done.outcome.status == JobStatus::Done, transforms.aeads.contains(&aead), "{driver}: {aead:?}");
        }
    }
}
