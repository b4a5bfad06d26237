//! Chains of services behind a job queue.

use bytes::{Bytes, BytesMut};
use crypto_services::{
    Controller, Fixed, Goal, InstanceDecision, Predictive, SERVICES, Service, ServiceQueue, ServiceQueueConfig,
    ServiceSpec, ServiceWindow, Suite, SuiteCipher, SuiteKeys,
};
use offload_api::{CompletedJob, ContextRefusal, Direction, Handle, Job, JobQueue, JobStatus, NewContext, Way};
use offload_base::Instant;
use offload_jobs::{CpuConfig, CpuQueue, OpenTransform};
use offload_transforms::{Aead, HmacHash, MacOrder, SecretBytes, Transform, Tweak};
use proptest::prelude::*;

fn key(bytes: u8) -> SecretBytes {
    SecretBytes::new((0..bytes).collect())
}

fn transforms() -> Vec<Transform> {
    let aead = |aead: Aead| Transform::Aead { aead, key: key(aead.key_len() as u8) };
    let cbc =
        |order, bytes| Transform::CbcHmac { order, hash: HmacHash::Sha1, cipher_key: key(bytes), mac_key: key(20) };
    vec![
        aead(Aead::Aes128Gcm),
        aead(Aead::Aes256Gcm),
        aead(Aead::ChaCha20Poly1305),
        cbc(MacOrder::EncryptThenMac, 16),
        cbc(MacOrder::MacThenEncrypt, 32),
    ]
}

fn spec(suite: Suite, tenant: u16, share: u32) -> ServiceSpec {
    let [cipher, mac, header] = suite.key_lengths().map(|bytes| key(bytes as u8));
    ServiceSpec { suite, keys: SuiteKeys { cipher, mac, header }, tenant, share }
}

fn open(queue: &mut ServiceQueue, spec: ServiceSpec) -> Result<Handle, ContextRefusal> {
    let engine = queue.contexts().engine(SERVICES).unwrap().number;
    let new = NewContext { engine, direction: Direction::Transmit, flow: None, keys: vec![], spec: Box::new(spec) };
    queue.contexts().create(new).map_err(|(refused, _)| refused)
}

fn job(session: Handle, user: u64, source: &[u8]) -> Job {
    let target = BytesMut::with_capacity(source.len() + 64);
    Job {
        user,
        iv: [user as u8; 16],
        aad: [9; 11].into_iter().collect(),
        ..Job::new(session, Bytes::copy_from_slice(source), target)
    }
}

/// Runs until no job is left. Returns the jobs with the times of their ends.
fn run(queue: &mut impl JobQueue, jobs: Vec<Job>) -> Vec<(Instant, CompletedJob)> {
    let (mut now, mut jobs, mut done) = (Instant::ZERO, jobs.into_iter().peekable(), Vec::new());
    loop {
        while queue.room() > 0
            && let Some(job) = jobs.next()
        {
            queue.submit(now, job).unwrap();
        }
        queue.flush(now);
        while let Some(one) = queue.complete(now) {
            done.push((now, one));
        }
        match queue.next_event() {
            Some(at) => now = at,
            None if jobs.peek().is_some() => {}
            None => return done,
        }
    }
}

proptest! {
    /// Services and a CPU must produce the same results and statuses.
    #[test]
    fn services_and_cpu_produce_the_same_results(
        jobs in prop::collection::vec((0usize..5, 0usize..2000, any::<bool>(), any::<bool>()), 1..40),
        depth in 1usize..64,
        queue in 1usize..8,
    ) {
        let mut config = ServiceQueueConfig { depth, ..ServiceQueueConfig::default() };
        config.fabric.queue = queue;
        let mut services = ServiceQueue::new(config, Box::new(Fixed));
        let mut cpu = CpuQueue::new(CpuConfig::default());
        let by_services: Vec<_> = transforms().into_iter().map(|one| services.open(one).unwrap()).collect();
        let by_cpu: Vec<_> = transforms().into_iter().map(|one| cpu.open(one).unwrap()).collect();
        let sealed: Vec<(usize, Vec<u8>)> = {
            let jobs = jobs.iter().enumerate().map(|(n, (kind, bytes, ..))| job(by_cpu[*kind], n as u64, &vec![n as u8; *bytes]));
            let mut done = run(&mut cpu, jobs.collect());
            done.sort_by_key(|(_, done)| done.user);
            done.into_iter().map(|(_, done)| (jobs_kind(&by_cpu, done.session), done.target.to_vec())).collect()
        };
        let made = |sessions: &[Handle]| -> Vec<Job> {
            jobs.iter().zip(&sealed).enumerate().map(|(n, ((kind, bytes, undo, damaged), (_, sealed)))| {
                let mut source = if *undo { sealed.clone() } else { vec![n as u8; *bytes] };
                // Both must report a damaged packet in the same way.
                if *damaged && *undo && let Some(byte) = source.first_mut() {
                    *byte ^= 1;
                }
                Job { way: if *undo { Way::Undo } else { Way::Apply }, ..job(sessions[*kind], n as u64, &source) }
            }).collect()
        };
        let mut ours: Vec<CompletedJob> = run(&mut services, made(&by_services)).into_iter().map(|(_, done)| done).collect();
        let mut theirs: Vec<CompletedJob> = run(&mut cpu, made(&by_cpu)).into_iter().map(|(_, done)| done).collect();
        // Jobs of different sessions may end in another order.
        ours.sort_by_key(|done| done.user);
        theirs.sort_by_key(|done| done.user);
        prop_assert_eq!(ours.len(), jobs.len());
        for (ours, theirs) in ours.iter().zip(&theirs) {
            prop_assert_eq!(ours.user, theirs.user);
            prop_assert_eq!(ours.outcome, theirs.outcome);
            prop_assert_eq!(&ours.target, &theirs.target);
        }
    }
}

fn jobs_kind(sessions: &[Handle], session: Handle) -> usize {
    sessions.iter().position(|known| *known == session).unwrap()
}

#[test]
fn every_suite_round_trips_in_order() {
    for suite in Suite::ALL {
        let mut queue = ServiceQueue::new(ServiceQueueConfig::default(), Box::new(Fixed));
        let spec = spec(suite, 3, 1);
        let cipher = SuiteCipher::new(suite, &spec.keys).unwrap();
        let session = open(&mut queue, spec).unwrap();
        let packets: Vec<Vec<u8>> = (0..50).map(|n| vec![n; 1 + 97 * usize::from(n) % 1300]).collect();
        let sealed =
            run(&mut queue, packets.iter().enumerate().map(|(n, packet)| job(session, n as u64, packet)).collect());
        assert!(sealed.iter().map(|(_, done)| done.user).eq(0..50), "{suite:?}");
        assert!(sealed.is_sorted_by_key(|(at, _)| *at) && sealed[0].0 > Instant::ZERO);
        let mut opens = Vec::new();
        for ((_, done), packet) in sealed.iter().zip(&packets) {
            let mut expected = packet.clone();
            cipher.seal(&[done.user as u8; 16], &[9; 11], &mut expected);
            assert_eq!(done.target, expected, "{suite:?}");
            opens.push(Job { way: Way::Undo, ..job(session, done.user, &done.target) });
        }
        for ((_, done), packet) in run(&mut queue, opens).iter().zip(&packets) {
            assert_eq!((done.outcome.status, &done.target[..]), (JobStatus::Done, &packet[..]), "{suite:?}");
        }
    }
}

/// A tenant that floods the device delays another only within its share.
#[test]
fn tenant_does_not_starve_another() {
    let mut queue =
        ServiceQueue::new(ServiceQueueConfig { depth: 1000, ..ServiceQueueConfig::default() }, Box::new(Fixed));
    let [greedy, modest] = [1, 2].map(|tenant| open(&mut queue, spec(Suite::Nea(1), tenant, 1)).unwrap());
    let flood = (0..900).map(|n| job(greedy, n, &[0; 1400])).chain((900..1000).map(|n| job(modest, n, &[0; 1400])));
    let done = run(&mut queue, flood.collect());
    let last = |of: Handle| done.iter().filter(|(_, done)| done.session == of).map(|(at, _)| *at).max().unwrap();
    let (all, modest) = (last(greedy) - Instant::ZERO, last(modest) - Instant::ZERO);
    // The modest tenant gets half of the capacity until its hundred jobs are done.
    assert!(modest < all / 4, "{modest:?} of {all:?}");
}

/// Under load the bottleneck gets more instances, and fewer afterwards.
#[test]
fn controller_follows_the_demand_of_jobs() {
    let goal = Goal::new(200_000.0, 64.0);
    let mut queue = ServiceQueue::new(ServiceQueueConfig::default(), Box::new(Predictive::new(goal)));
    let session = open(&mut queue, spec(Suite::Aes128Gcm, 1, 1)).unwrap();
    let alone = queue.fabric().instances(Service::Aes128);
    let (mut now, mut most, mut ended) = (Instant::ZERO, alone, 0);
    for number in 0..20_000u64 {
        // A job every 6 us needs several AES instances.
        now = Instant::ZERO + core::time::Duration::from_micros(6 * number);
        while queue.complete(now).is_some() {
            ended += 1;
        }
        most = most.max(queue.fabric().instances(Service::Aes128));
        if queue.room() > 0 {
            queue.submit(now, job(session, number, &[0; 1464])).unwrap();
            queue.flush(now);
        }
    }
    assert!(most > 3 * alone && ended > 19_000, "{most} instances, {ended} jobs");
    assert!(queue.changes().any(|change| change.done && change.decision.service == Service::Aes128));
    now += core::time::Duration::from_secs(3600);
    while queue.complete(now).is_some() {}
    assert_eq!(queue.fabric().instances(Service::Aes128), alone, "instances after an hour without jobs");
}

#[test]
fn impossible_sessions_and_jobs_are_refused() {
    let mut config = ServiceQueueConfig { depth: 2, sessions: 2, ..ServiceQueueConfig::default() };
    config.fabric.area = 4.0;
    let mut queue = ServiceQueue::new(config, Box::new(Fixed));
    let refused = |opened: Result<Handle, (ContextRefusal, Option<Transform>)>| opened.unwrap_err().0;
    let xts = Transform::Xts { key: key(64), unit: 512, tweak: Tweak::Unit };
    assert_eq!(refused(queue.open(xts)), ContextRefusal::Unsupported);
    assert_eq!(refused(queue.open(Transform::Copy)), ContextRefusal::Unsupported);
    let short = ServiceSpec { keys: SuiteKeys::from_cipher_key(vec![1; 3]), ..spec(Suite::Nea(1), 1, 1) };
    assert_eq!(open(&mut queue, short), Err(ContextRefusal::Unsupported));

    let session = open(&mut queue, spec(Suite::Aes128Gcm, 1, 1)).unwrap();
    let other = open(&mut queue, spec(Suite::Aes128Gcm, 1, 1)).unwrap();
    assert_eq!(open(&mut queue, spec(Suite::Aes128Gcm, 1, 1)), Err(ContextRefusal::NoSpace), "sessions");
    assert_eq!(open(&mut queue, spec(Suite::Aes256CbcSha, 1, 1)), Err(ContextRefusal::NoSpace), "area");

    queue.contexts().remove(other);
    queue.submit(Instant::ZERO, job(session, 1, &[1; 100])).unwrap();
    queue.submit(Instant::ZERO, job(other, 2, &[1; 100])).unwrap();
    assert_eq!(queue.submit(Instant::ZERO, job(session, 3, &[])).unwrap_err().user, 3, "two places");
    queue.flush(Instant::ZERO);
    // The job was accepted, so removing its session does not matter.
    queue.contexts().remove(session);
    let mut done = run(&mut queue, vec![]);
    done.sort_by_key(|(_, done)| done.user);
    let statuses: Vec<_> = done.iter().map(|(_, done)| (done.user, done.outcome.status)).collect();
    assert_eq!(statuses, [(1, JobStatus::Done), (2, JobStatus::NoSession)]);
    assert_eq!(queue.room(), 2);

    let session = open(&mut queue, spec(Suite::Aes128Gcm, 1, 1)).unwrap();
    let small = Job { target: BytesMut::with_capacity(100), ..job(session, 1, &[1; 100]) };
    let [(_, done)] = &run(&mut queue, vec![small])[..] else { panic!("one job") };
    assert_eq!((done.outcome.status, done.target.len()), (JobStatus::OutOfSpace, 0));
}

/// After hours, `f64` nanoseconds are coarser than picoseconds.
#[test]
fn jobs_end_after_hours_of_virtual_time() {
    let late = Instant::ZERO + core::time::Duration::from_secs(100_000);
    let mut queue = ServiceQueue::new(ServiceQueueConfig::default(), Box::new(Fixed));
    let session = open(&mut queue, spec(Suite::Nea(2), 1, 1)).unwrap();
    for number in 0..200 {
        queue.submit(late, job(session, number, &[7; 333])).unwrap();
    }
    queue.flush(late);
    let (mut now, mut ended) = (late, 0);
    while let Some(at) = queue.next_event() {
        now = now.max(at);
        while queue.complete(now).is_some() {
            ended += 1;
        }
    }
    assert!(ended == 200 && now > late, "{ended} by {now:?}");
}

/// Two instances for a service with packets in the window, otherwise one.
#[derive(Debug)]
struct TwoIfBusy;

impl Controller for TwoIfBusy {
    fn name(&self) -> &'static str {
        "two if busy"
    }

    fn decide(&mut self, _: f64, services: &[ServiceWindow]) -> Vec<InstanceDecision> {
        let of = |of: &ServiceWindow| InstanceDecision {
            service: of.service,
            instances: if of.work.packets() > 0 { 2 } else { 1 },
            why: String::new(),
        };
        services.iter().map(of).collect()
    }
}

/// After a long steady load, the controller must still notice its end.
#[test]
fn controller_notices_the_end_of_a_long_load() {
    let mut queue = ServiceQueue::new(ServiceQueueConfig::default(), Box::new(TwoIfBusy));
    let session = open(&mut queue, spec(Suite::Nea(1), 1, 1)).unwrap();
    let at = |millis| Instant::ZERO + core::time::Duration::from_millis(millis);
    for number in 0..1500 {
        queue.submit(at(number), job(session, number, &[0; 100])).unwrap();
        queue.flush(at(number));
        while queue.complete(at(number)).is_some() {}
    }
    assert_eq!(queue.fabric().instances(Service::Snow3g), 2);
    while queue.complete(at(20_000)).is_some() {}
    assert_eq!(queue.fabric().instances(Service::Snow3g), 1);
    // Ten years without jobs must not take time.
    while queue.complete(at(315_360_000_000)).is_some() {}
}

#[test]
fn refused_session_takes_no_area() {
    let fits = |area| {
        let mut config = ServiceQueueConfig::default();
        (config.fabric.area, config.fabric.queue) = (area, 0);
        ServiceQueue::new(config, Box::new(Fixed))
    };
    let mut whole = fits(64.0);
    open(&mut whole, spec(Suite::Aes128Gcm, 1, 1)).unwrap();
    let area = whole.fabric().area();
    let mut queue = fits(area - 0.1);
    assert_eq!(open(&mut queue, spec(Suite::Aes128Gcm, 1, 1)), Err(ContextRefusal::NoSpace));
    assert_eq!(queue.fabric().area(), 0.0);

    // A queue of zero places is given one.
    let mut queue = fits(64.0);
    let session = open(&mut queue, spec(Suite::Aes128CbcSha, 1, 1)).unwrap();
    let empty = Job { aad: Default::default(), ..job(session, 1, &[]) };
    let [(_, done)] = &run(&mut queue, vec![empty])[..] else { panic!("one job") };
    assert_eq!(done.outcome.status, JobStatus::Length, "TLS's header has 11 bytes without its length");
}
