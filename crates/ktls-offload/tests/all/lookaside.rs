//! Records sealed by jobs that finish in any order, or fail. The bytes must equal software's.

use crate::rig;

use bytes::Bytes;
use ktls_offload::{KtlsStream, LookasideCounters, LookasideStream, Offload, RunLookaside, TlsError};
use offload_api::{CompletedJob, Contexts, Job, JobOutcome, JobQueue, JobStatus, SegmentStream, TlsSuite};
use offload_base::{Alarm, Clock, Instant, Rng, Seed, Timers};
use offload_jobs::{CpuConfig, CpuQueue, RunQueue, SharedQueue};
use proptest::prelude::*;
use rig::tasks::{TlsTask, run_beside};
use rig::{CIPHERS, CountingSchedule, MockTransport, MockWire, SegmentLengths, TestCipher, data};
use std::cell::RefCell;
use std::future::poll_fn;
use std::io::ErrorKind;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

/// A clock that does not advance.
struct FixedClock;

impl Clock for FixedClock {
    fn now(&self) -> Instant {
        Instant::ZERO
    }
}

impl Timers for FixedClock {
    fn alarm(&self) -> Box<dyn Alarm> {
        Box::new(FixedClock)
    }
}

impl Alarm for FixedClock {
    fn poll(&mut self, _: &mut Context<'_>, _: Option<Instant>) -> Poll<()> {
        Poll::Pending
    }
}

/// An accelerator whose jobs finish in random order when the test says so. Some jobs fail.
#[derive(Clone)]
struct RandomAccelerator(Arc<Mutex<AcceleratorState>>);

struct AcceleratorState {
    depth: usize,
    under_way: Vec<CompletedJob>,
    ended: Vec<CompletedJob>,
    waker: Option<Waker>,
    rng: Rng,
    /// Percentage of jobs lost by an engine.
    lost: u64,
    /// Number of jobs that finished before an earlier one.
    overtook: usize,
    gone: bool,
}

/// The accelerator's job queue, with a CPU queue that does the work.
struct AcceleratorQueue(RandomAccelerator, CpuQueue);

impl RandomAccelerator {
    fn new(seed: u64, depth: usize, lost: u64) -> RandomAccelerator {
        RandomAccelerator(Arc::new(Mutex::new(AcceleratorState {
            depth,
            under_way: Vec::new(),
            ended: Vec::new(),
            waker: None,
            rng: Seed(seed).stream("jobs"),
            lost,
            overtook: 0,
            gone: false,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, AcceleratorState> {
        self.0.lock().unwrap()
    }

    /// Finishes one job. Returns whether there was one.
    fn step(&self) -> bool {
        let mut state = self.lock();
        if state.under_way.is_empty() {
            return false;
        }
        let count = state.under_way.len() as u64;
        // Any job may finish first, as with several engines.
        let at = state.rng.below(count) as usize;
        let mut done = state.under_way.remove(at);
        state.overtook += usize::from(at > 0);
        if state.rng.below(100) < state.lost {
            fail(&mut done, JobStatus::EngineLost);
        }
        state.ended.push(done);
        let waker = state.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
        true
    }

    /// Resets or removes the accelerator: all jobs fail, and all sessions end.
    fn end_all(&self, status: JobStatus) {
        let mut state = self.lock();
        let mut all = core::mem::take(&mut state.under_way);
        all.iter_mut().for_each(|done| fail(done, status));
        state.ended.append(&mut all);
        state.gone = status == JobStatus::Gone;
        let waker = state.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }
}

fn fail(done: &mut CompletedJob, status: JobStatus) {
    let before = done.target.len() - done.outcome.produced;
    done.target.truncate(before);
    done.outcome = JobOutcome::failed(status);
}

impl JobQueue for AcceleratorQueue {
    fn contexts(&mut self) -> &mut dyn Contexts {
        self.1.contexts()
    }

    fn room(&self) -> usize {
        let state = self.0.lock();
        state.depth.saturating_sub(state.under_way.len() + state.ended.len())
    }

    fn submit(&mut self, now: Instant, job: Job) -> Result<(), Job> {
        if self.room() == 0 {
            return Err(job);
        }
        let AcceleratorQueue(tangled, work) = self;
        work.submit(now, job)?;
        let mut done = work.complete(Instant::MAX).expect("it was submitted");
        let mut state = tangled.lock();
        if state.gone {
            fail(&mut done, JobStatus::Gone);
        }
        state.under_way.push(done);
        Ok(())
    }

    fn flush(&mut self, _: Instant) {}

    fn complete(&mut self, _: Instant) -> Option<CompletedJob> {
        let mut state = self.0.lock();
        if state.ended.is_empty() { None } else { Some(state.ended.remove(0)) }
    }

    fn arm(&mut self, waker: &Waker) -> bool {
        let mut state = self.0.lock();
        state.waker = Some(waker.clone());
        state.ended.is_empty()
    }

    fn next_event(&self) -> Option<Instant> {
        None
    }
}

type LookasideTls = KtlsStream<LookasideStream<MockTransport>>;

/// Creates two streams over one accelerator, and the tasks that must run for them.
fn streams(
    wire: &MockWire,
    tangled: &RandomAccelerator,
    cipher: TestCipher,
) -> (LookasideTls, LookasideTls, RunQueue, [RunLookaside<MockTransport>; 2]) {
    let queue = AcceleratorQueue(tangled.clone(), CpuQueue::new(CpuConfig::default()));
    let (queue, runs) = SharedQueue::new(queue, Arc::new(FixedClock));
    let (one, other, keys) = CountingSchedule::pair(cipher);
    let (a, b) = wire.ends();
    let (a, sends_a) = LookasideStream::new(a, &queue);
    let (b, sends_b) = LookasideStream::new(b, &queue);
    let near = KtlsStream::new(a, keys.clone(), Box::new(one)).unwrap();
    let far = KtlsStream::new(b, keys.swapped(), Box::new(other)).unwrap();
    (near, far, runs, [sends_a, sends_b])
}

#[derive(Clone, Debug)]
struct LookasidePlan {
    seed: u64,
    cipher: TestCipher,
    writes: Vec<usize>,
    /// For each write, whether the key changes afterwards.
    rekeys: Vec<bool>,
    record_size: usize,
    padding: usize,
    cut: SegmentLengths,
    window: usize,
    tx: bool,
    rx: bool,
    depth: usize,
    lost: u64,
    /// The step at which the accelerator is reset, or removed if true.
    end: Option<(usize, bool)>,
}

struct LookasideRun {
    wire: Vec<u8>,
    plain: Vec<u8>,
    sender: LookasideCounters,
    receiver: LookasideCounters,
    overtook: usize,
}

fn run(plan: &LookasidePlan) -> LookasideRun {
    let wire = MockWire::new(plan.seed);
    wire.lock()[0].cut = plan.cut;
    wire.lock()[0].window = plan.window;
    let tangled = RandomAccelerator::new(plan.seed, plan.depth, plan.lost);
    let (mut near, mut far, runs, [sends, answers]) = streams(&wire, &tangled, plan.cipher);
    let (sender, plain) = (RefCell::default(), RefCell::new((Vec::new(), LookasideCounters::default())));
    let write = async {
        near.set_record_size(plan.record_size);
        near.set_padding(plan.padding);
        let offloaded = near.offload(Offload { tx: plan.tx, rx: false });
        assert_eq!(offloaded.tx.handle().is_some(), plan.tx);
        for (number, length) in (0..).zip(&plan.writes) {
            near.send_chunk(Bytes::from(data(plan.seed ^ number, *length))).await.unwrap();
            if plan.rekeys[number as usize] && plan.cipher.version == offload_api::TlsVersion::Tls13 {
                near.update_keys(false).unwrap();
            }
        }
        near.close().await.unwrap();
        // Read before the drop, which takes the counters with it.
        *sender.borrow_mut() = near.get_ref().counters();
        drop(near);
    };
    let read = async {
        far.offload(Offload { tx: false, rx: plan.rx });
        while let Some(chunk) = far.next_chunk().await.unwrap() {
            plain.borrow_mut().0.extend_from_slice(&chunk);
        }
        plain.borrow_mut().1 = far.get_ref().counters();
        drop(far);
    };
    let tasks: Vec<TlsTask<'_>> =
        vec![Box::pin(write), Box::pin(read), Box::pin(runs), Box::pin(sends), Box::pin(answers)];
    let mut steps = 0;
    let all_ended = run_beside(tasks, |awake| {
        steps += 1;
        if let Some((at, gone)) = plan.end
            && at == steps
        {
            tangled.end_all(if gone { JobStatus::Gone } else { JobStatus::Reset });
            return true;
        }
        // Jobs finish when no task is awake, and sometimes earlier.
        (!awake || steps % 7 == 0) && tangled.step()
    });
    assert!(all_ended, "a task waits for an event that never comes");
    let halves = wire.lock();
    assert_eq!(halves[1].consumed, halves[1].received, "every byte was given back to the window");
    let (plain, receiver) = plain.into_inner();
    let overtook = tangled.lock().overtook;
    LookasideRun { wire: halves[0].wire.clone(), plain, sender: sender.into_inner(), receiver, overtook }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn bytes_equal_software_for_any_job_result(
        cipher in prop::sample::select(CIPHERS.to_vec()),
        writes in prop::collection::vec((0usize..40_000, prop::bool::weighted(0.2)), 1..6),
        record_size in prop_oneof![Just(16384usize), 200usize..2000],
        padding in prop_oneof![Just(1usize), 2usize..500],
        cut in prop_oneof![Just(SegmentLengths::Every(1448)), (20u64..3000).prop_map(SegmentLengths::UpTo), Just(SegmentLengths::Every(65536))],
        window in prop_oneof![Just(usize::MAX), 1000usize..20_000],
        tx: bool,
        rx: bool,
        depth in prop_oneof![Just(1usize), 2usize..100],
        lost in prop_oneof![Just(0u64), Just(20), Just(100)],
        end in prop::option::weighted(0.3, (1usize..60, any::<bool>())),
        seed: u64,
    ) {
        let (writes, rekeys) = writes.into_iter().unzip();
        let plan = LookasidePlan { seed, cipher, writes, rekeys, record_size, padding, cut, window, tx, rx, depth, lost, end };
        let software = run(&LookasidePlan { tx: false, rx: false, lost: 0, end: None, ..plan.clone() });
        let expected: Vec<u8> =
            (0..).zip(&plan.writes).flat_map(|(number, length)| data(plan.seed ^ number, *length)).collect();
        prop_assert_eq!(&software.plain, &expected);
        let found = run(&plan);
        prop_assert_eq!(&found.plain, &expected);
        prop_assert_eq!(&found.wire, &software.wire);
        if plan.tx && plan.lost == 0 && plan.end.is_none() {
            prop_assert_eq!(found.sender.sealed_here, 0);
            prop_assert!(found.sender.sealed > 0, "the alert at least");
        }
        if plan.lost == 100 {
            prop_assert_eq!((found.sender.sealed, found.receiver.opened), (0, 0));
        }
    }
}

fn plan(tx: bool, rx: bool) -> LookasidePlan {
    LookasidePlan {
        seed: 5,
        cipher: TlsSuite::Aes128Gcm.into(),
        writes: vec![200_000; 5],
        rekeys: vec![false; 5],
        record_size: 16_384,
        padding: 1,
        cut: SegmentLengths::Every(1448),
        window: usize::MAX,
        tx,
        rx,
        depth: 256,
        lost: 0,
        end: None,
    }
}

#[test]
fn jobs_overtake_each_other_and_records_do_not() {
    let run = run(&plan(true, true));
    assert_eq!(run.plain.len(), 1_000_000);
    assert!(run.overtook > 20, "{} of them", run.overtook);
    // 13 records per write, and the alert.
    assert_eq!(run.sender, LookasideCounters { sealed: 66, ..LookasideCounters::default() });
    assert_eq!(run.receiver, LookasideCounters { opened: 66, ..LookasideCounters::default() });
}

/// After a reset the streams return to the accelerator by themselves.
#[test]
fn a_reset_costs_the_records_under_way_and_no_more() {
    let run = run(&LookasidePlan { end: Some((20, false)), ..plan(true, true) });
    assert_eq!(run.plain.len(), 1_000_000);
    assert!(run.sender.sealed_here > 0 && run.sender.contexts_lost == 1, "{:?}", run.sender);
    assert_eq!(
        run.sender.sealed + run.sender.sealed_here,
        66,
        "no record was sealed twice, and none by the stream itself"
    );
}

/// A dropped stream sends no close_notify, but the jobs of written data are awaited.
#[test]
fn written_data_arrive_after_the_stream_is_dropped() {
    let (wire, tangled) = (MockWire::new(1), RandomAccelerator::new(1, 256, 0));
    let (mut near, mut far, runs, [sends, answers]) = streams(&wire, &tangled, TlsSuite::Aes256Gcm.into());
    let got = RefCell::new(0);
    let write = async {
        near.offload(Offload { tx: true, rx: false });
        near.send_chunk(vec![7; 100_000].into()).await.unwrap();
        drop(near);
    };
    let read = async {
        let error = loop {
            match far.next_chunk().await {
                Ok(chunk) => *got.borrow_mut() += chunk.expect("there was no close_notify").len(),
                Err(error) => break error,
            }
        };
        let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<TlsError>());
        assert_eq!(tls, Some(&TlsError::Truncated));
        drop(far);
    };
    let tasks: Vec<TlsTask<'_>> =
        vec![Box::pin(write), Box::pin(read), Box::pin(runs), Box::pin(sends), Box::pin(answers)];
    assert!(run_beside(tasks, |awake| !awake && tangled.step()), "all tasks complete");
    assert_eq!(*got.borrow(), 100_000);
}

/// Without a task that passes on sealed records, the stream seals in software.
#[test]
fn without_its_runner_a_stream_goes_on_in_software() {
    let (wire, tangled) = (MockWire::new(2), RandomAccelerator::new(2, 256, 0));
    let (mut near, mut far, runs, [sends, answers]) = streams(&wire, &tangled, TlsSuite::ChaCha20Poly1305.into());
    let write = async {
        near.offload(Offload { tx: true, rx: false });
        near.send_chunk(vec![1; 50_000].into()).await.unwrap();
        drop(sends);
        assert_eq!(near.get_ref().counters().sealed_here, 4);
        near.send_chunk(vec![2; 50_000].into()).await.unwrap();
        near.close().await.unwrap();
        drop(near);
    };
    let read = async {
        let mut got = 0;
        while let Some(chunk) = far.next_chunk().await.unwrap() {
            got += chunk.len();
        }
        assert_eq!(got, 100_000);
        drop(far);
    };
    let tasks: Vec<TlsTask<'_>> = vec![Box::pin(write), Box::pin(read), Box::pin(runs), Box::pin(answers)];
    assert!(run_beside(tasks, |awake| !awake && tangled.step()));
}

/// A record changed in transit must not yield plaintext. The stream above reports the error as in software.
#[test]
fn a_forged_record_fails_the_stream() {
    let (wire, tangled) = (MockWire::new(3), RandomAccelerator::new(3, 256, 0));
    let (near, mut far, runs, [sends, answers]) = streams(&wire, &tangled, TlsSuite::Aes128Gcm.into());
    drop(near);
    far.offload(Offload { tx: false, rx: true });
    let key = rig::counted(TlsSuite::Aes128Gcm, 1);
    let mut record = rig::record(&key, 0, 23, &[9; 500], 0);
    record[100] ^= 1;
    wire.inject(1, &record, Default::default());
    let read = async {
        let error = far.next_chunk().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        assert_eq!(far.get_ref().counters().not_opened, 1);
        // The alert is sent before the end of the stream.
        poll_fn(|cx| far.poll_committed(cx)).await.unwrap();
        drop(far);
    };
    let tasks: Vec<TlsTask<'_>> = vec![Box::pin(read), Box::pin(runs), Box::pin(sends), Box::pin(answers)];
    assert!(run_beside(tasks, |awake| !awake && tangled.step()));
}

/// With an inline device, host memory holds only plaintext. With jobs, the ciphertext is in host memory before it
/// leaves.
#[test]
fn ciphertext_lies_in_host_memory_by_jobs_and_never_inline() {
    let content = data(9, 40_000);
    let has = |memory: &[u8], bytes: &[u8]| memory.windows(bytes.len()).any(|window| window == bytes);
    // A part of the second record, as on the wire and before sealing.
    let (at, length) = (16_406 + 5 + 1000, 64);
    let plain = &content[16_384 + 1000..][..length];
    let look = |wire: &MockWire| {
        let halves = wire.lock();
        let (queued, sealed) = (halves[0].queued_bytes(), halves[0].wire[at..at + length].to_vec());
        (has(&queued, plain), has(&queued, &sealed))
    };

    let inline = MockWire::new(4).with_devices(0.0, 4);
    let (mut near, _far) = rig::streams(&inline, TlsSuite::Aes128Gcm);
    near.offload(Offload { tx: true, rx: false });
    let sends = async { near.send_chunk(Bytes::from(content.clone())).await.unwrap() };
    assert!(run_beside(vec![Box::pin(sends)], |_| false));
    assert_eq!(look(&inline), (true, false), "plaintext, and no ciphertext");

    let (wire, tangled) = (MockWire::new(4), RandomAccelerator::new(4, 256, 0));
    let (mut near, far, runs, [sends, answers]) = streams(&wire, &tangled, TlsSuite::Aes128Gcm.into());
    near.offload(Offload { tx: true, rx: false });
    let writes = async {
        near.send_chunk(Bytes::from(content.clone())).await.unwrap();
        drop((near, far));
    };
    let tasks: Vec<TlsTask<'_>> = vec![Box::pin(writes), Box::pin(runs), Box::pin(sends), Box::pin(answers)];
    assert!(run_beside(tasks, |awake| !awake && tangled.step()));
    assert_eq!(look(&wire), (false, true), "queued data are sealed");
}
