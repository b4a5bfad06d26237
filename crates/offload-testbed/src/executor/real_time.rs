//! The executor in real time, on a thread of its own.
//!
//! The thread runs the ready tasks. If no task is ready, the thread spins for a while, because the next event usually
//! comes soon, and then parks until any thread wakes a task or the next alarm is due.

use super::clock::ExecutorClock;
use super::shared::ExecutorState;
use super::{Handle, JoinHandle};
use core::future::Future;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use offload_base::cost::{self, CpuMeter, Domain};
use offload_base::{Clock, Instant, RealClock};
use std::borrow::Cow;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::thread;

/// Configuration of a [`RealTime`].
///
/// See [`RealTime`] for an example.
#[derive(Clone, Debug)]
pub struct RealTimeConfig {
    /// The clock, shared by all participants of the run.
    pub clock: RealClock,
    /// Time that the thread spins before parking. A spinning thread reacts in a fraction of a microsecond, a parked one
    /// in tens of microseconds. But spinning occupies a core, which hosts on a small machine may need.
    pub spin: Duration,
    /// The meter of the thread. Waiting is charged to no domain.
    pub meter: Option<CpuMeter>,
    /// The tokio runtime for sockets and timers of the tasks.
    pub tokio: Option<tokio::runtime::Handle>,
}

impl Default for RealTimeConfig {
    fn default() -> RealTimeConfig {
        RealTimeConfig { clock: RealClock::new(), spin: Duration::from_micros(20), meter: None, tokio: None }
    }
}

/// An executor on a thread of its own, in real time.
///
/// ```
/// use core::time::Duration;
/// use offload_testbed::{RealTime, RealTimeConfig, VirtualTime};
/// use std::sync::mpsc;
///
/// let devices = RealTime::start("devices", RealTimeConfig::default())?;
/// let (answer, answered) = mpsc::channel();
/// let handle = devices.handle();
/// devices.spawn("sleeper", async move {
///     handle.sleep(Duration::from_micros(50)).await;
///     answer.send(42)
/// });
/// assert_eq!(answered.recv(), Ok(42));
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// Dropping the executor stops the thread and drops all tasks with their values. If a task panics, the thread ends and
/// all other tasks are dropped; a task elsewhere that waits for one of these tasks then panics as well.
#[derive(Debug)]
pub struct RealTime {
    shared: Arc<ExecutorState>,
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl RealTime {
    /// Starts the thread, under `name`.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub fn start(name: &str, config: RealTimeConfig) -> io::Result<RealTime> {
        let shared = ExecutorState::new(ExecutorClock::Real(config.clock));
        let stop = Arc::new(AtomicBool::new(false));
        let runner = Runner { shared: shared.clone(), stop: stop.clone(), spin: config.spin };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            let _metered = config.meter.as_ref().map(CpuMeter::attach);
            let _within = config.tokio.as_ref().map(tokio::runtime::Handle::enter);
            runner.run();
        })?;
        Ok(RealTime { shared, stop, thread: Some(thread) })
    }

    /// Returns a handle that works from any thread.
    pub fn handle(&self) -> Handle {
        Handle { shared: self.shared.clone() }
    }

    /// Spawns a task.
    pub fn spawn<T: Send + 'static>(
        &self,
        name: impl Into<Cow<'static, str>>,
        future: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.handle().spawn(name, future)
    }

    /// Stops the thread. Its CPU time is then in its meter.
    ///
    /// # Panics
    /// If a task has panicked, with the same message.
    pub fn shutdown(mut self) {
        if let Some(Err(panic)) = self.stop() {
            std::panic::resume_unwind(panic);
        }
    }

    fn stop(&mut self) -> Option<thread::Result<()>> {
        self.stop.store(true, Ordering::SeqCst);
        self.shared.unpark();
        let thread = self.thread.take()?;
        // A task that owns its own executor cannot join its thread; the thread ends after the task.
        (thread.thread().id() != thread::current().id()).then(|| thread.join())
    }
}

impl Drop for RealTime {
    fn drop(&mut self) {
        // The thread itself has reported a panic, and so have all tasks that wait for one of its tasks.
        let _panicked = self.stop();
    }
}

/// The state of the executor's thread.
struct Runner {
    shared: Arc<ExecutorState>,
    stop: Arc<AtomicBool>,
    spin: Duration,
}

impl Runner {
    fn run(self) {
        self.shared.run_here();
        let mut batch = VecDeque::new();
        while !self.stop.load(Ordering::SeqCst) {
            // Alarms fire before the batch is taken, so that due tasks run in this round.
            self.shared.fire(self.shared.now());
            self.shared.take_ready(&mut batch);
            if batch.is_empty() {
                self.wait();
            }
            for task in batch.drain(..) {
                task.run();
            }
        }
    }

    /// Waits until there may be work.
    fn wait(&self) {
        // The time is taken once, so that a spin lasts `spin` however often the loop runs.
        let since = self.shared.now();
        loop {
            let now = self.shared.now();
            if self.is_needed(now) {
                return;
            }
            if now - since >= self.spin {
                break;
            }
            core::hint::spin_loop();
        }
        self.shared.about_to_park();
        // A wake before `about_to_park` did not unpark the thread, so the queue is checked once more. A later wake
        // unparks it.
        if !self.is_needed(self.shared.now()) {
            // The meter must not charge sleep to the last task's domain.
            let _parked = cost::domain(Domain::Parked);
            match self.shared.first_deadline() {
                Some(deadline) => thread::park_timeout(deadline - self.shared.now()),
                None => thread::park(),
            }
        }
        self.shared.awake();
    }

    fn is_needed(&self, now: Instant) -> bool {
        self.shared.any_ready()
            || self.shared.first_deadline().is_some_and(|deadline| deadline <= now)
            || self.stop.load(Ordering::SeqCst)
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl Clock for RealTime {
    fn now(&self) -> Instant {
        self.shared.now()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::future::poll_fn;
    use core::task::{Poll, Waker};
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::{Mutex, mpsc};

    #[test]
    fn wakes_from_another_thread_are_never_lost() {
        // Without spinning, every wake meets a thread that parks, is about to park, or has just returned.
        let config = RealTimeConfig { spin: Duration::ZERO, ..RealTimeConfig::default() };
        let executor = RealTime::start("test", config).expect("a thread");
        let (to_task, from_here) = mpsc::channel::<u32>();
        let (to_here, from_task) = mpsc::channel::<u32>();
        let waker = Arc::new(Mutex::new(Waker::noop().clone()));
        let shared_waker = waker.clone();
        let from_here = Mutex::new(from_here);
        executor.spawn(
            "echo",
            poll_fn::<(), _>(move |cx| {
                shared_waker.lock().expect("no panic").clone_from(cx.waker());
                while let Ok(number) = from_here.lock().expect("no panic").try_recv() {
                    to_here.send(number).expect("the test listens");
                }
                Poll::Pending
            }),
        );
        for number in 0..20_000 {
            to_task.send(number).expect("the task lives");
            waker.lock().expect("no panic").wake_by_ref();
            assert_eq!(from_task.recv(), Ok(number));
        }
    }

    #[test]
    fn alarms_are_never_early_and_may_be_set_from_another_thread() {
        let executor = RealTime::start("test", RealTimeConfig::default()).expect("a thread");
        let handle = executor.handle();
        // The pause lets the thread park without a deadline.
        std::thread::spawn(move || {
            let clock = handle.clone();
            let deadline = clock.now() + Duration::from_millis(2);
            let (woken, wait) = mpsc::channel();
            struct Notify(Mutex<mpsc::Sender<()>>);
            impl std::task::Wake for Notify {
                fn wake(self: Arc<Notify>) {
                    let _nobody_left = self.0.lock().expect("no panic").send(());
                }
            }
            let waker = Waker::from(Arc::new(Notify(Mutex::new(woken))));
            let mut sleep = core::pin::pin!(handle.sleep_until(deadline));
            let mut cx = core::task::Context::from_waker(&waker);
            while sleep.as_mut().poll(&mut cx).is_pending() {
                wait.recv().expect("the alarm goes off");
            }
            assert!(clock.now() >= deadline);
        })
        .join()
        .expect("never early");
    }

    #[test]
    fn panic_reaches_waiters_and_shutdown() {
        let executor = RealTime::start("test", RealTimeConfig::default()).expect("a thread");
        let bystander = executor.spawn("bystander", core::future::pending::<()>());
        let culprit = executor.spawn("culprit", async { panic!("on purpose") });
        let waited = catch_unwind(AssertUnwindSafe(|| futures_block_on(culprit)));
        assert!(waited.is_err());
        let waited = catch_unwind(AssertUnwindSafe(|| futures_block_on(bystander)));
        assert!(waited.is_err());
        let panic = catch_unwind(AssertUnwindSafe(|| executor.shutdown())).expect_err("it was to panic");
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"on purpose"));
    }

    #[test]
    fn waiting_is_charged_to_no_domain() {
        let meter = CpuMeter::new();
        let config = RealTimeConfig { spin: Duration::ZERO, meter: Some(meter.clone()), ..RealTimeConfig::default() };
        let executor = RealTime::start("test", config).expect("a thread");
        let work = executor.spawn(
            "work",
            crate::in_domain(Domain::Wire, async {
                for round in 0..1_000_000 {
                    core::hint::black_box(round);
                }
            }),
        );
        futures_block_on(work);
        executor.shutdown();
        let report = meter.take();
        assert!(report.total(Domain::Wire) > Duration::ZERO);
        assert_eq!(report.total(Domain::Parked), Duration::ZERO);
    }

    /// Blocks this thread on `future`.
    fn futures_block_on<T>(future: impl Future<Output = T>) -> T {
        struct Unpark(thread::Thread);
        impl std::task::Wake for Unpark {
            fn wake(self: Arc<Unpark>) {
                self.0.unpark();
            }
        }
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut cx = core::task::Context::from_waker(&waker);
        let mut future = core::pin::pin!(future);
        loop {
            if let Poll::Ready(result) = future.as_mut().poll(&mut cx) {
                return result;
            }
            thread::park();
        }
    }
}
