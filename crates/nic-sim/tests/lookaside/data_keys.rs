//! Data-encryption keys: eviction, isolation of tenants, erasure.

use crate::memory_search::{copies, scrub_stack};
use crate::{job, run};
use nic_sim::lookaside;
use nic_sim::lookaside::{Lookaside, LookasideConfig};
use nic_sim::{Delays, JobDriver};
use offload_api::{Handle, JobQueue, JobStatus, Way};
use offload_base::Instant;
use offload_jobs::{DATA_KEYS, OpenTransform, WrappingKey};
use offload_transforms::{SecretBytes, Transform, Tweak};

const TENANT: u32 = 7;

fn wrapping(tenant: u32) -> WrappingKey {
    WrappingKey { tenant, key: SecretBytes::new(vec![tenant as u8; 32]) }
}

/// Returns a byte of a volume's key. The whole key is never in memory as a copy.
fn key_byte(volume: u64, at: usize) -> u8 {
    ((volume ^ 0x5ca1_ab1e).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(at as u32 * 7) >> 13) as u8 ^ at as u8
}

fn key(volume: u64) -> SecretBytes {
    SecretBytes::new((0..64).map(|at| key_byte(volume, at)).collect())
}

fn import(queue: &mut JobDriver, tenant: u32) {
    let engine = queue.contexts().engine(DATA_KEYS).unwrap().number;
    queue.contexts().change(engine, Box::new(wrapping(tenant))).unwrap();
}

fn open(queue: &mut JobDriver, tenant: u32, volume: u64) -> Handle {
    wrapping(tenant).wrap(volume, &key(volume), 512, Tweak::Unit).unwrap().open(queue).unwrap()
}

fn one(
    device: &mut Lookaside,
    queue: &mut JobDriver,
    way: Way,
    session: Handle,
    source: Vec<u8>,
) -> (JobStatus, Vec<u8>) {
    let mut job = job(session, 0, source.into());
    (job.way, job.iv) = (way, 77u128.to_le_bytes());
    queue.submit(Instant::ZERO, job).unwrap();
    queue.flush(Instant::ZERO);
    let (_, done) = run(device, queue, &mut { Instant::ZERO }).pop().unwrap();
    (done.outcome.status, done.target.to_vec())
}

fn accelerator(cached: usize, shares: Vec<u32>) -> (Lookaside, Vec<JobDriver>) {
    let delays = Delays::NONE;
    let config = LookasideConfig { context_cache_bytes: cached * 208, shares, delays, ..LookasideConfig::default() };
    lookaside(config, |_| ())
}

/// Each volume keeps its own key through eviction, and encrypts as AES-XTS does.
#[test]
fn keys_that_were_evicted_are_the_same() {
    let (mut device, mut queues) = accelerator(3, vec![1]);
    let queue = &mut queues[0];
    import(queue, TENANT);
    let volumes: Vec<_> = (0..20).map(|volume| open(queue, TENANT, volume)).collect();
    let plain = vec![9; 1024];
    for round in 0..3 {
        for (volume, session) in (0..).zip(&volumes) {
            let (status, sealed) = one(&mut device, queue, Way::Apply, *session, plain.clone());
            assert_eq!(status, JobStatus::Done, "volume {volume}, round {round}");
            let reference = queue.open(Transform::Xts { key: key(volume), unit: 512, tweak: Tweak::Unit }).unwrap();
            assert_eq!(one(&mut device, queue, Way::Apply, reference, plain.clone()).1, sealed);
            assert_eq!(one(&mut device, queue, Way::Undo, *session, sealed).1, plain);
            queue.contexts().remove(reference);
        }
    }
    assert!(device.dma().context > 3 * 17 * 208);
}

#[test]
fn other_tenants_keys_and_handles_are_refused() {
    let (mut device, mut queues) = accelerator(100, vec![1, 1]);
    let [mine, theirs] = &mut queues[..] else { panic!("two queues") };
    import(mine, TENANT);
    let session = open(mine, TENANT, 1);
    assert_eq!(one(&mut device, mine, Way::Apply, session, vec![0; 512]).0, JobStatus::Done);
    // A key wrapped under a tenant without a wrapping key here, and a modified key.
    let stranger = open(mine, 8, 1);
    assert_eq!(one(&mut device, mine, Way::Apply, stranger, vec![0; 512]).0, JobStatus::NoSession);
    let mut forged = wrapping(8).wrap(1, &key(1), 512, Tweak::Unit).unwrap();
    forged.tenant = TENANT;
    let forged = forged.open(mine).unwrap();
    assert_eq!(one(&mut device, mine, Way::Apply, forged, vec![0; 512]).0, JobStatus::NoSession);
    // The same handle from the other queue: its driver does not know the handle. The device would refuse it as well.
    assert_eq!(one(&mut device, theirs, Way::Undo, session, vec![0; 512]).0, JobStatus::NoSession);
    let own = open(theirs, TENANT, 2);
    assert_ne!(own.index, session.index, "each has its own range");
    assert_eq!(one(&mut device, mine, Way::Undo, session, vec![0; 512]).0, JobStatus::Done);
}

/// A wrapped key is not secret: it may lie in host memory or on a disk. Only the queue with the wrapping key can open
/// it.
#[test]
fn wrapping_keys_belong_to_their_queue() {
    let (mut device, mut queues) = accelerator(100, vec![1, 1]);
    let [mine, theirs] = &mut queues[..] else { panic!("two queues") };
    import(mine, TENANT);
    let session = open(mine, TENANT, 1);
    let (status, sealed) = one(&mut device, mine, Way::Apply, session, vec![9; 512]);
    assert_eq!(status, JobStatus::Done);
    let used = open(theirs, TENANT, 1);
    assert_eq!(one(&mut device, theirs, Way::Undo, used, sealed.clone()).0, JobStatus::NoSession);
    // Another queue can neither replace nor remove the wrapping key.
    for key in [vec![8; 32], vec![]] {
        WrappingKey { tenant: TENANT, key: SecretBytes::new(key) }.give(theirs.contexts()).unwrap();
        run(&mut device, theirs, &mut { Instant::ZERO });
        let again = open(mine, TENANT, 1);
        assert_eq!(one(&mut device, mine, Way::Undo, again, sealed.clone()), (JobStatus::Done, vec![9; 512]));
    }
    // The queue that set the wrapping key can remove it.
    WrappingKey { tenant: TENANT, key: SecretBytes::new(vec![]) }.give(mine.contexts()).unwrap();
    let late = open(mine, TENANT, 1);
    assert_eq!(one(&mut device, mine, Way::Apply, late, vec![0; 512]).0, JobStatus::NoSession);
}

fn copies_of_the_key(volume: u64) -> usize {
    copies(|at| key_byte(volume, at))
}

/// Crypto-erase: no copy of a removed key remains in the store, the cache, host memory or a ring.
#[test]
fn an_erased_key_is_nowhere() {
    let (mut device, mut queues) = accelerator(2, vec![1]);
    let queue = &mut queues[0];
    import(queue, TENANT);
    let volumes: Vec<_> = (100..106).map(|volume| open(queue, TENANT, volume)).collect();
    // Several rounds, so that every key was evicted and fetched.
    for _ in 0..3 {
        for session in &volumes {
            assert_eq!(one(&mut device, queue, Way::Apply, *session, vec![1; 512]).0, JobStatus::Done);
        }
    }
    // Return values of earlier calls may still lie on the stack.
    scrub_stack();
    assert!((100..106).all(|volume| copies_of_the_key(volume) > 0), "the search finds keys that are there");
    // One key on the device, one in host memory, and one with jobs queued before the removal.
    for (place, session) in [(0, volumes[0]), (5, volumes[5]), (2, volumes[2])] {
        if place == 2 {
            for user in 0..50 {
                queue.submit(Instant::ZERO, job(session, user, vec![1; 512].into())).unwrap();
            }
        }
        queue.contexts().remove(session);
        queue.flush(Instant::ZERO);
        let ended = run(&mut device, queue, &mut { Instant::ZERO });
        assert!(ended.iter().all(|(_, done)| done.outcome.status == JobStatus::Done));
        // The stale handle is refused even if the slot is still in the cache.
        assert_eq!(one(&mut device, queue, Way::Undo, session, vec![1; 512]).0, JobStatus::NoSession);
    }
    scrub_stack();
    let copies: Vec<usize> = (100..106).map(copies_of_the_key).collect();
    assert_eq!((copies[0], copies[2], copies[5]), (0, 0, 0), "erased keys have no copies: {copies:?}");
    assert!(copies[1] > 0 && copies[3] > 0 && copies[4] > 0, "the other keys have copies: {copies:?}");
    device.reset(Instant::ZERO);
    assert_eq!(device.sessions(), 0);
    scrub_stack();
    assert_eq!((100..106).map(copies_of_the_key).sum::<usize>(), 0, "no copies after a reset");
}
