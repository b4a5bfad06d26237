//! Clients of a shared queue, its runner, and a device that disappears at any step, each polled only when woken.
//!
//! `JOB_SCHEDULES` sets the number of schedules; each is a seed.

use crate::job;
use core::future::Future;
use core::pin::Pin;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use nic_sim::lookaside;
use nic_sim::lookaside::{Lookaside, LookasideConfig, LookasideUnit};
use offload_api::{CompletedJob, JobStatus};
use offload_base::{Alarm, Clock, Instant, Timers};
use offload_jobs::{JobClient, RunQueue, SharedQueue};
use offload_transforms::Transform;
use std::sync::{Arc, Mutex};
use std::task::Wake;

/// A clock that advances when no task can run, and the task that waits for it.
#[derive(Clone, Default)]
struct VirtualClock {
    now: Arc<AtomicU64>,
    waiting: Arc<Mutex<Option<(Instant, Waker)>>>,
}

impl Clock for VirtualClock {
    fn now(&self) -> Instant {
        Instant::from_nanos(self.now.load(Ordering::Relaxed))
    }
}

impl Timers for VirtualClock {
    fn alarm(&self) -> Box<dyn Alarm> {
        Box::new(self.clone())
    }
}

impl Alarm for VirtualClock {
    fn poll(&mut self, cx: &mut Context<'_>, deadline: Option<Instant>) -> Poll<()> {
        let due = deadline.is_some_and(|deadline| deadline <= self.now());
        *self.waiting.lock().unwrap() = deadline.filter(|_| !due).map(|at| (at, cx.waker().clone()));
        if due { Poll::Ready(()) } else { Poll::Pending }
    }
}

struct TaskFlag(AtomicBool);

impl Wake for TaskFlag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl TaskFlag {
    fn new() -> Arc<TaskFlag> {
        Arc::new(TaskFlag(AtomicBool::new(true)))
    }

    fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

/// The SplitMix64 generator.
struct SplitMix(u64);

impl SplitMix {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (value ^ value >> 31) % end
    }
}

/// Runs jobs one after the other, and opens and closes sessions meanwhile.
async fn work(mut client: JobClient, mut random: SplitMix, seen: Arc<Mutex<Vec<JobStatus>>>) {
    let mut session = None;
    for number in 0..1 + random.below(6) {
        if session.is_none() || random.below(3) == 0 {
            session.take().into_iter().for_each(|session| client.close(session));
            // If the session is refused for lack of room or device, the next turn asks again.
            session = client.open(Transform::Copy).ok();
        }
        let Some(session) = session else { continue };
        let source = vec![number as u8; random.below(3000) as usize];
        let CompletedJob { outcome, source: back, target, .. } =
            client.run(job(session, number, source.clone().into())).await;
        assert_eq!(back[0], source);
        assert_eq!(target[..], if outcome.status == JobStatus::Done { source } else { Vec::new() });
        seen.lock().unwrap().push(outcome.status);
    }
}

type BoxedTask = Pin<Box<dyn Future<Output = ()>>>;

fn run_schedule(seed: u64) -> Vec<JobStatus> {
    let mut random = SplitMix(seed);
    let units = vec![LookasideUnit { latency: Duration::from_micros(random.below(30)), rate: Some(1_000_000_000) }; 2];
    let config = LookasideConfig { units, depth: 1 + random.below(6) as usize, ..LookasideConfig::default() };
    let time = VirtualClock::default();
    let (device, mut queues) = lookaside(config, |_| ());
    let (queue, runs) = SharedQueue::new(queues.remove(0), Arc::new(time.clone()));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let mut tasks: Vec<(Option<BoxedTask>, Arc<TaskFlag>)> = Vec::new();
    let runs: RunQueue = runs;
    tasks.push((Some(Box::pin(runs)), TaskFlag::new()));
    for _ in 0..1 + random.below(4) {
        let task = work(queue.client(), SplitMix(random.below(u64::MAX)), seen.clone());
        tasks.push((Some(Box::pin(task)), TaskFlag::new()));
    }
    drop(queue);
    let (mut device, device_flag): (Option<Lookaside>, _) = (Some(device), TaskFlag::new());
    let goes_at = random.below(120);
    for step in 0..10_000 {
        match step {
            at if at == goes_at => drop(device.take()),
            at if at + 7 == goes_at && seed.is_multiple_of(3) => {
                device.iter_mut().for_each(|device| device.reset(time.now()));
            }
            _ => {}
        }
        // One of the runnable tasks is picked at random; the device counts as a task.
        let count = tasks.len() as u64 + 1;
        let first = random.below(count);
        let ran = (0..count).any(|turn| {
            let at = ((first + turn) % count) as usize;
            let Some((task, flag)) = tasks.get_mut(at) else {
                let Some(device) = device.as_mut().filter(|_| device_flag.take()) else { return false };
                device.process(time.now());
                if !device.arm(&Waker::from(device_flag.clone())) {
                    device_flag.0.store(true, Ordering::Relaxed);
                }
                return true;
            };
            let Some(running) = task.as_mut().filter(|_| flag.take()) else { return false };
            if running.as_mut().poll(&mut Context::from_waker(&Waker::from(flag.clone()))).is_ready() {
                *task = None;
            }
            true
        });
        if ran {
            continue;
        }
        if tasks.iter().all(|(task, _)| task.is_none()) {
            return Arc::into_inner(seen).unwrap().into_inner().unwrap();
        }
        // No task can run, so time advances.
        let of_device = device.as_ref().and_then(Lookaside::next_event);
        let of_alarm = time.waiting.lock().unwrap().as_ref().map(|(at, _)| *at);
        let next = offload_base::time::earliest(of_device, of_alarm);
        let next = next.unwrap_or_else(|| panic!("schedule {seed}: a task sleeps forever"));
        time.now.store((next - Instant::ZERO).as_nanos() as u64, Ordering::Relaxed);
        if of_device.is_some_and(|at| at <= next) {
            device_flag.0.store(true, Ordering::Relaxed);
        }
        if of_alarm.is_some_and(|at| at <= next)
            && let Some((_, waker)) = time.waiting.lock().unwrap().take()
        {
            waker.wake();
        }
    }
    panic!("schedule {seed} does not end");
}

#[test]
fn every_schedule_with_a_device_that_goes_ends() {
    let schedules = std::env::var("JOB_SCHEDULES").map_or(300, |count| count.parse().expect("a number"));
    let mut all: Vec<JobStatus> = (0..schedules).flat_map(run_schedule).collect();
    // The schedules must reach every way in which a job can end.
    for status in [JobStatus::Done, JobStatus::Gone, JobStatus::Reset] {
        let before = all.len();
        all.retain(|seen| *seen != status);
        assert!(all.len() < before, "no job ended as {status:?}");
    }
}
