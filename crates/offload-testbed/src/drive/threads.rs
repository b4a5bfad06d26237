//! Threads that wait in virtual time: storage behind a synchronous interface, on a clock that jumps.
//!
//! Invariant: at any moment either the executor or exactly one of these threads runs. A run therefore repeats although
//! it uses threads: work begins at once on its own thread, and the task that started the work continues when the work
//! waits or ends.
//!
//! ```text
//!  task      run(work) ------------------+                  +-- goes on, other tasks too; at the deadline: ---+
//!  thread              work, wait_until -+- told: deadline -+                                                +- work goes on, done
//! ```
//!
//! Work must not hold a lock over a wait if a task takes the same lock without waiting: the executor would block for
//! ever, because only the executor can end the wait.

use crate::runtime::{Runtime, lock};
use core::fmt;
use offload_base::Instant;
use offload_base::cost::{self, CpuMeter, Domain};
use std::cell::RefCell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;

/// A pool of threads on which [`wait_until`] takes virtual time. A clone refers to the same pool; the threads end with
/// the last clone.
///
/// ```
/// use core::time::Duration;
/// use offload_base::Clock;
/// use offload_testbed::VirtualTime;
/// use offload_testbed::drive::threads::{VirtualThreads, wait_until};
/// use std::sync::Arc;
/// use tokio::sync::oneshot;
///
/// let mut run = VirtualTime::new();
/// let handle = run.handle();
/// let threads = VirtualThreads::new(Arc::new(run.handle()));
/// let (done, result) = oneshot::channel();
/// threads.run(Box::new(move || {
///     wait_until(handle.now() + Duration::from_secs(3600)); // returns an hour later, at once
///     done.send(42).unwrap();
/// }))?;
/// assert_eq!(run.block_on(result), Ok(42));
/// assert_eq!(run.now().as_millis(), 3_600_000);
/// # std::io::Result::Ok(())
/// ```
#[derive(Clone)]
pub struct VirtualThreads(Arc<ThreadPool>);

struct ThreadPool {
    runtime: Arc<dyn Runtime>,
    metered: Option<(CpuMeter, Domain)>,
    idle: Mutex<Vec<Worker>>,
    threads: Mutex<Vec<thread::JoinHandle<()>>>,
}

/// The pool's handle of a thread.
struct Worker {
    turn: SyncSender<WorkerCommand>,
    told: Receiver<WorkerReport>,
}

enum WorkerCommand {
    Work(Box<dyn FnOnce() + Send>),
    GoOn,
}

enum WorkerReport {
    Waits(Instant),
    Done,
}

impl VirtualThreads {
    /// Creates a pool that waits on the virtual clock of `runtime`. Threads are started on demand.
    pub fn new(runtime: Arc<dyn Runtime>) -> VirtualThreads {
        VirtualThreads(Arc::new(ThreadPool {
            runtime,
            metered: None,
            idle: Mutex::default(),
            threads: Mutex::default(),
        }))
    }

    /// Creates a pool with its CPU time charged to `domain`.
    #[cfg(feature = "meter")]
    pub fn metered(runtime: Arc<dyn Runtime>, meter: &CpuMeter, domain: Domain) -> VirtualThreads {
        let metered = Some((meter.clone(), domain));
        VirtualThreads(Arc::new(ThreadPool { runtime, metered, idle: Mutex::default(), threads: Mutex::default() }))
    }

    /// Starts `work`, and returns when the work waits or ends.
    ///
    /// # Errors
    /// If the system refuses another thread.
    pub fn run(&self, work: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        // Idle threads are reused, so that the number of threads is the number of concurrent works.
        let idle = lock(&self.0.idle).pop();
        let worker = match idle {
            Some(worker) => worker,
            None => self.0.start()?,
        };
        // The send cannot fail, because an idle worker waits for its next turn.
        let _sent = worker.turn.send(WorkerCommand::Work(work));
        follow(&self.0, worker);
        Ok(())
    }
}

impl fmt::Debug for VirtualThreads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VirtualThreads").field("started", &lock(&self.0.threads).len()).finish_non_exhaustive()
    }
}

/// Waits until a thread waits or ends. If the thread waits, spawns a task that continues the thread at its deadline.
fn follow(pool: &Arc<ThreadPool>, worker: Worker) {
    match worker.told.recv() {
        Ok(WorkerReport::Done) => lock(&pool.idle).push(worker),
        Ok(WorkerReport::Waits(deadline)) => {
            let waiting = WaitingWorker { worker, pool: pool.clone() };
            let timers = pool.runtime.clone();
            let task = Box::pin(async move {
                let waiting = waiting;
                timers.sleep_until(deadline).await;
                waiting.go_on();
            });
            pool.runtime.spawn_task("a thread that waits".into(), task);
        }
        // The thread is gone, and so is its work.
        Err(_) => {}
    }
}

/// A waiting thread. Fields drop in this order: the worker first, which ends its thread, and then the pool, which joins
/// its threads.
struct WaitingWorker {
    worker: Worker,
    pool: Arc<ThreadPool>,
}

impl WaitingWorker {
    fn go_on(self) {
        // The send cannot fail, because the thread waits for this message.
        let _sent = self.worker.turn.send(WorkerCommand::GoOn);
        follow(&self.pool, self.worker);
    }
}

impl ThreadPool {
    fn start(&self) -> io::Result<Worker> {
        let (turn, turns) = sync_channel(1);
        let (tell, told) = sync_channel(1);
        let metered = self.metered.clone();
        let started = thread::Builder::new().name("virtual".into()).spawn(move || {
            let attached = metered.as_ref().map(|(meter, _)| meter.attach());
            OWN.set(Some(WorkerChannels { tell, turns }));
            while let Some(work) = next_work() {
                let scope = metered.as_ref().map(|(_, domain)| cost::domain(*domain));
                // A panic drops the work's channels, so that callers who wait for its result are told.
                let _panicked = catch_unwind(AssertUnwindSafe(work));
                drop(scope);
                report(WorkerReport::Done);
            }
            drop(attached);
        })?;
        lock(&self.threads).push(started);
        Ok(Worker { turn, told })
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        // Dropping the workers closes their channels, which ends the idle threads.
        lock(&self.idle).clear();
        // Joining makes the threads' CPU time count. The last clone may be dropped on one of the threads, which cannot
        // join itself.
        for thread in lock(&self.threads).drain(..).filter(|thread| thread.thread().id() != thread::current().id()) {
            let _panicked = thread.join();
        }
    }
}

/// A pool thread's end of its channels.
struct WorkerChannels {
    tell: SyncSender<WorkerReport>,
    turns: Receiver<WorkerCommand>,
}

thread_local! {
    static OWN: RefCell<Option<WorkerChannels>> = const { RefCell::new(None) };
}

/// Waits on a pool thread until the pool's clock shows `deadline`. Returns at once on any other thread, and after the
/// clock has ended.
///
/// See [`VirtualThreads`] for an example.
pub fn wait_until(deadline: Instant) {
    report(WorkerReport::Waits(deadline));
    OWN.with_borrow(|own| {
        if let Some(own) = own {
            cost::park();
            let _ended = own.turns.recv();
            cost::unpark();
        }
    });
}

fn report(told: WorkerReport) {
    OWN.with_borrow(|own| {
        if let Some(own) = own {
            // The receiver is gone once the clock has ended.
            let _nobody = own.tell.send(told);
        }
    });
}

fn next_work() -> Option<Box<dyn FnOnce() + Send>> {
    OWN.with_borrow(|own| {
        let own = own.as_ref()?;
        cost::park();
        let turn = own.turns.recv();
        cost::unpark();
        match turn {
            Ok(WorkerCommand::Work(work)) => Some(work),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::VirtualTime;
    use core::time::Duration;
    use offload_base::Clock;
    use tokio::sync::oneshot;

    /// Virtual time alone interleaves the work of several tasks, in the same order in every run.
    #[test]
    fn waiting_work_continues_by_deadline() {
        let order = || {
            let mut run = VirtualTime::new();
            let threads = VirtualThreads::new(Arc::new(run.handle()));
            let log = Arc::new(Mutex::new(Vec::new()));
            let mut ends = Vec::new();
            for number in 0..20_u64 {
                let (handle, log) = (run.handle(), log.clone());
                let (done, end) = oneshot::channel();
                ends.push(end);
                let work = move || {
                    for step in 0..3 {
                        lock(&log).push((handle.now().as_nanos(), number));
                        wait_until(handle.now() + Duration::from_nanos(1 + number * 7 % 5 + step));
                    }
                    done.send(()).unwrap();
                };
                threads.run(Box::new(work)).unwrap();
            }
            run.block_on(async { for_all(ends).await });
            let log = lock(&log).clone();
            (log, run.now())
        };
        let (log, end) = order();
        assert_eq!(log.len(), 60);
        assert!(log.is_sorted_by_key(|(at, _)| *at), "{log:?}");
        assert_eq!(end, Instant::from_nanos(3 * 5 + 3));
        assert_eq!((log, end), order());
    }

    async fn for_all(ends: Vec<oneshot::Receiver<()>>) {
        for end in ends {
            end.await.unwrap();
        }
    }

    #[test]
    fn work_that_waits_for_ever_ends_with_the_clock() {
        let run = VirtualTime::new();
        let threads = VirtualThreads::new(Arc::new(run.handle()));
        let (done, mut end) = oneshot::channel();
        let work = move || {
            wait_until(Instant::from_nanos(1));
            wait_until(Instant::from_nanos(2));
            done.send(()).unwrap();
        };
        threads.run(Box::new(work)).unwrap();
        drop(run);
        drop(threads);
        assert_eq!(end.try_recv(), Ok(()));
    }

    #[test]
    fn panic_ends_only_its_work() {
        let mut run = VirtualTime::new();
        let threads = VirtualThreads::new(Arc::new(run.handle()));
        threads.run(Box::new(|| panic!("as it should"))).unwrap();
        let (done, end) = oneshot::channel();
        threads.run(Box::new(move || done.send(1).unwrap())).unwrap();
        assert_eq!(run.block_on(end), Ok(1));
        assert_eq!(lock(&threads.0.threads).len(), 1);
    }

    #[test]
    fn work_is_charged_to_its_domain() {
        let mut run = VirtualTime::new();
        let meter = CpuMeter::new();
        let threads = VirtualThreads::metered(Arc::new(run.handle()), &meter, Domain::Host(3));
        let (done, end) = oneshot::channel();
        let handle = run.handle();
        let work = move || {
            core::hint::black_box(vec![1_u8; 1 << 20]);
            wait_until(handle.now() + Duration::from_secs(1));
            done.send(()).unwrap();
        };
        threads.run(Box::new(work)).unwrap();
        run.block_on(end).unwrap();
        drop((run, threads));
        assert!(!meter.report().total(Domain::Host(3)).is_zero());
    }
}
