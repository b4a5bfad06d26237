//! Metering of CPU time: one table per metered thread, summed in a report.
//!
//! A thread counts ticks of the cycle counter by domain and work. The total comes from the thread's CPU time, and the
//! ticks only divide it. The cycle counter does not stop while a thread is preempted. After every span that is long
//! enough to contain a preemption, the meter therefore reads the thread's CPU time and removes the ticks in which the
//! thread did not run.
//!
//! Opening or closing a scope reads the counter, which takes some 20 ns and can exceed the measured work. On attaching,
//! the thread measures this overhead and charges it to [`Domain::Outside`] for every scope.
//!
//! Invariant: at any moment exactly one (domain, work) slot of a metered thread is running.

use super::{Domain, WORKS, WorkKind, work};
use core::cell::RefCell;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

/// A meter that collects the CPU time of every attached thread.
///
/// ```
/// use offload_base::cost::{self, Domain, CpuMeter, WorkKind};
///
/// let meter = CpuMeter::new();
/// let attached = meter.attach();
/// {
///     let _host = cost::domain(Domain::Host(0));
///     let _copy = cost::work(WorkKind::Copy);
///     std::hint::black_box(vec![1u8; 1 << 20].clone());
/// }
/// drop(attached);
/// let report = meter.report();
/// assert!(report.cpu(Domain::Host(0), WorkKind::Copy) > core::time::Duration::ZERO);
/// assert_eq!(report.cpu(Domain::Host(1), WorkKind::Copy), core::time::Duration::ZERO);
/// ```
#[derive(Clone, Debug, Default)]
pub struct CpuMeter {
    shared: Arc<MeterState>,
}

#[derive(Debug, Default)]
struct MeterState {
    report: Mutex<CpuReport>,
    /// Generation of the tables. Incremented to discard all measurements so far.
    round: AtomicU64,
}

impl MeterState {
    fn report(&self) -> MutexGuard<'_, CpuReport> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CpuMeter {
    /// Creates a meter without measurements.
    pub fn new() -> CpuMeter {
        CpuMeter::default()
    }

    /// Meters this thread until the guard is dropped. Scopes opened before are ignored.
    ///
    /// # Panics
    /// If this thread is already metered.
    pub fn attach(&self) -> MeterGuard {
        // The slot starts as `Outside`, because scopes opened before the attachment have no record to return to.
        LOCAL.with_borrow_mut(|local| {
            assert!(local.is_none(), "this thread is metered already");
            *local = Some(ThreadMeter {
                ticks: TimeTable::default(),
                running: OUTSIDE,
                before_park: None,
                since: ticks(),
                cpu_at_start: thread_cpu_time(),
                asked: CpuTimeSample::now(),
                round: self.shared.round.load(Ordering::Relaxed),
                shared: self.shared.clone(),
                own: 0,
            });
        });
        // The calibration uses the same thread-local path as any metered code.
        let own = (0..CALIBRATIONS).map(|_| {
            drop(work(WorkKind::Stack));
            let begin = ticks();
            for _ in 0..CALIBRATION_SCOPES {
                drop(work(WorkKind::Stack));
            }
            (ticks() - begin) / (2 * CALIBRATION_SCOPES)
        });
        let own = own.min().unwrap_or(0);
        LOCAL.with_borrow_mut(|local| {
            if let Some(local) = local {
                local.own = own;
            }
        });
        MeterGuard { thread_bound: PhantomData }
    }

    /// Discards all measurements so far, on every thread, such as the warm-up of a benchmark. A thread inside a scope
    /// discards that scope's past when it opens or closes its next scope.
    pub fn restart(&self) {
        let mut report = self.shared.report();
        *report = CpuReport::default();
        self.shared.round.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the time of the threads that have detached since the last call of [`CpuMeter::take`].
    pub fn report(&self) -> CpuReport {
        self.shared.report().clone()
    }

    /// Takes the report, and leaves an empty one.
    pub fn take(&self) -> CpuReport {
        core::mem::take(&mut self.shared.report())
    }
}

/// A guard that keeps the thread metered. Dropping it adds the thread's time to the meter.
///
/// See [`CpuMeter`] for an example.
#[derive(Debug)]
pub struct MeterGuard {
    thread_bound: PhantomData<*const ()>,
}

impl Drop for MeterGuard {
    fn drop(&mut self) {
        if let Some(local) = LOCAL.take() {
            local.finish();
        }
    }
}

/// Charges the running slot and starts the one that `next` derives from its domain. Returns the previous slot, or
/// `None` if the thread is not metered.
pub(super) fn open(next: impl FnOnce(Domain) -> (Domain, WorkKind)) -> Option<TimeSlot> {
    LOCAL.with_borrow_mut(|local| {
        local.as_mut().map(|local| {
            let (domain, work) = next(local.running.domain);
            local.run(TimeSlot { domain, work })
        })
    })
}

/// Charges the running slot and resumes `outer`.
pub(super) fn close(outer: TimeSlot) {
    LOCAL.with_borrow_mut(|local| {
        if let Some(local) = local {
            local.run(outer);
        }
    });
}

/// Implements [`park`](super::park).
pub(super) fn park() {
    LOCAL.with_borrow_mut(|local| {
        if let Some(local) = local
            // A runtime may park twice in a row. The slot before the first park is the one to resume.
            && local.before_park.is_none()
        {
            local.before_park = Some(local.run(TimeSlot { domain: Domain::Parked, work: WorkKind::Stack }));
        }
    });
}

/// Implements [`unpark`](super::unpark).
pub(super) fn unpark() {
    LOCAL.with_borrow_mut(|local| {
        if let Some(local) = local
            && let Some(before) = local.before_park.take()
        {
            local.run(before);
        }
    });
}

/// CPU time by domain and work.
///
/// See [`CpuMeter`] for an example.
#[derive(Clone, Debug, Default)]
pub struct CpuReport {
    nanos: TimeTable<f64>,
}

impl CpuReport {
    /// Returns the CPU time that `domain` spent on `work`.
    pub fn cpu(&self, domain: Domain, work: WorkKind) -> Duration {
        Duration::from_nanos(self.nanos.get(TimeSlot { domain, work }) as u64)
    }

    /// Returns the CPU time of `domain` without the application's own work.
    pub fn total(&self, domain: Domain) -> Duration {
        WORKS.iter().filter(|work| **work != WorkKind::Application).map(|work| self.cpu(domain, *work)).sum()
    }
}

/// A pair of domain and work, the unit of charging.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeSlot {
    domain: Domain,
    work: WorkKind,
}

/// One value per slot. The table grows with the highest domain in use.
#[derive(Clone, Debug, Default)]
struct TimeTable<T> {
    rows: Vec<[T; WORKS.len()]>,
}

impl<T: Copy + Default + core::ops::AddAssign> TimeTable<T> {
    fn add(&mut self, slot: TimeSlot, amount: T) {
        let row = row_of(slot.domain);
        if row >= self.rows.len() {
            self.rows.resize(row + 1, Default::default());
        }
        self.rows[row][slot.work as usize] += amount;
    }

    fn get(&self, slot: TimeSlot) -> T {
        self.rows.get(row_of(slot.domain)).map_or(T::default(), |row| row[slot.work as usize])
    }
}

fn row_of(domain: Domain) -> usize {
    match domain {
        Domain::Outside => 0,
        Domain::Parked => PARKED_ROW,
        Domain::Wire => 2,
        Domain::Host(number) => 3 + 2 * usize::from(number),
        Domain::Device(number) => 4 + 2 * usize::from(number),
    }
}

const PARKED_ROW: usize = 1;

const OUTSIDE: TimeSlot = TimeSlot { domain: Domain::Outside, work: WorkKind::Stack };

/// Calibration rounds in [`CpuMeter::attach`]. The minimum counts, because an interrupt only adds time.
const CALIBRATIONS: u32 = 16;

/// Scopes opened and closed in each calibration round.
const CALIBRATION_SCOPES: u64 = 64;

/// The measurements of one metered thread.
struct ThreadMeter {
    ticks: TimeTable<u64>,
    running: TimeSlot,
    before_park: Option<TimeSlot>,
    /// Ticks at the start of the running slot.
    since: u64,
    cpu_at_start: Duration,
    /// The last comparison of the counter with the thread's CPU time.
    asked: CpuTimeSample,
    round: u64,
    shared: Arc<MeterState>,
    /// Ticks between two slot changes without work in between: the meter's overhead.
    own: u64,
}

impl ThreadMeter {
    /// Charges the running slot, starts `next`, and returns the previous slot.
    fn run(&mut self, next: TimeSlot) -> TimeSlot {
        let now = ticks();
        let round = self.shared.round.load(Ordering::Relaxed);
        if round != self.round {
            // The meter was restarted: older ticks, and the span that is still open, must not reach the new report.
            self.round = round;
            self.ticks = TimeTable::default();
            self.asked = CpuTimeSample::now();
            self.cpu_at_start = self.asked.cpu;
            self.since = now;
        }
        let mut passed = now.saturating_sub(self.since);
        if passed > LONG {
            // The sample is a system call, during which a thread with an expired time slice is preempted. The span
            // therefore ends after the sample.
            let asked = CpuTimeSample::now();
            passed = asked.ticks.saturating_sub(self.since).saturating_sub(asked.not_spent_since(&self.asked));
            self.since = asked.ticks;
            self.asked = asked;
        } else {
            self.since = now;
        }
        let own = self.own.min(passed);
        self.ticks.add(self.running, passed - own);
        self.ticks.add(OUTSIDE, own);
        core::mem::replace(&mut self.running, next)
    }

    /// Divides the thread's CPU time over the slots, without the parked one, and adds the result to the meter.
    fn finish(mut self) {
        self.run(OUTSIDE);
        // The system measures the CPU time exactly; the ticks only give the proportions.
        let cpu = (thread_cpu_time() - self.cpu_at_start).as_nanos() as f64;
        let charged = |row: usize| row != PARKED_ROW;
        let total: u64 =
            self.ticks.rows.iter().enumerate().filter(|(row, _)| charged(*row)).flat_map(|(_, row)| row).sum();
        // No tick was counted, so there is no proportion by which to divide the CPU time.
        if total == 0 {
            return;
        }
        let mut report = self.shared.report();
        // The report grows to the highest domain of any thread.
        if report.nanos.rows.len() < self.ticks.rows.len() {
            report.nanos.rows.resize(self.ticks.rows.len(), Default::default());
        }
        for (row, works) in self.ticks.rows.iter().enumerate().filter(|(row, _)| charged(*row)) {
            for (sum, ticks) in report.nanos.rows[row].iter_mut().zip(works) {
                *sum += cpu * (*ticks as f64 / total as f64);
            }
        }
    }
}

/// A sample of the counter and of the thread's CPU time at one moment.
struct CpuTimeSample {
    ticks: u64,
    cpu: Duration,
}

impl CpuTimeSample {
    fn now() -> CpuTimeSample {
        CpuTimeSample { cpu: thread_cpu_time(), ticks: ticks() }
    }

    /// Returns the ticks since `earlier` in which the thread did not run.
    fn not_spent_since(&self, earlier: &CpuTimeSample) -> u64 {
        // Saturating, because counters of different cores may differ slightly after a migration.
        let ticks = self.ticks.saturating_sub(earlier.ticks);
        let passed = CLOCK.delta_as_nanos(earlier.ticks, self.ticks) as f64;
        let spent = self.cpu.saturating_sub(earlier.cpu).as_nanos() as f64;
        // Computed as a share of the ticks, so that the length of a tick need not be known here.
        (ticks as f64 * (1.0 - spent / passed).max(0.0)) as u64
    }
}

/// Ticks after which a span may contain a preemption: tens of microseconds. Spans of a running thread are nearly always
/// shorter.
const LONG: u64 = 100_000;

static CLOCK: LazyLock<quanta::Clock> = LazyLock::new(quanta::Clock::new);

fn ticks() -> u64 {
    CLOCK.raw()
}

fn thread_cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

thread_local! {
    static LOCAL: RefCell<Option<ThreadMeter>> = const { RefCell::new(None) };
}

#[cfg(test)]
mod tests {
    use super::super::{domain, park, unpark};
    use super::{CpuMeter, Domain, Duration, LOCAL, TimeSlot, WorkKind, thread_cpu_time, work};

    fn spin(rounds: u64) {
        for round in 0..rounds {
            core::hint::black_box(round);
        }
    }

    #[test]
    fn nested_scopes_add_up_to_the_cpu_time() {
        let meter = CpuMeter::new();
        let before = thread_cpu_time();
        let attached = meter.attach();
        {
            let _host = domain(Domain::Host(1));
            spin(1_000_000);
            {
                let _crypto = work(WorkKind::Crypto);
                spin(1_000_000);
                let _device = domain(Domain::Device(0));
                spin(1_000_000);
            }
            spin(1_000_000);
        }
        drop(attached);
        let spent = thread_cpu_time() - before;
        let report = meter.take();
        for slot in [
            (Domain::Host(1), WorkKind::Stack),
            (Domain::Host(1), WorkKind::Crypto),
            (Domain::Device(0), WorkKind::Stack),
        ] {
            assert!(report.cpu(slot.0, slot.1) > Duration::ZERO, "{slot:?} was charged nothing");
        }
        let charged = report.total(Domain::Host(1)) + report.total(Domain::Device(0)) + report.total(Domain::Outside);
        assert!(charged <= spent);
        assert_eq!(meter.report().total(Domain::Host(1)), Duration::ZERO, "taking empties the meter");
    }

    #[test]
    fn waiting_thread_is_not_charged_for_running_threads() {
        let meter = CpuMeter::new();
        let attached = meter.attach();
        {
            let _waiting = domain(Domain::Host(0));
            std::thread::spawn(|| spin(50_000_000)).join().unwrap();
        }
        {
            let _running = domain(Domain::Host(1));
            spin(50_000_000);
        }
        drop(attached);
        let report = meter.take();
        let (waiting, running) = (report.total(Domain::Host(0)), report.total(Domain::Host(1)));
        assert!(waiting * 4 < running, "{waiting:?} of waiting, {running:?} of running");
    }

    #[test]
    fn restart_discards_earlier_time() {
        let meter = CpuMeter::new();
        let attached = meter.attach();
        {
            let _before = domain(Domain::Host(0));
            spin(1000);
        }
        meter.restart();
        {
            let _after = domain(Domain::Host(1));
            spin(1000);
        }
        drop(attached);
        let report = meter.report();
        assert_eq!(report.total(Domain::Host(0)), Duration::ZERO);
        assert!(report.total(Domain::Host(1)) > Duration::ZERO);
    }

    #[test]
    fn unparked_thread_resumes_its_slot_without_parked_time() {
        let slots = |host: &mut u64, parked: &mut u64| {
            LOCAL.with_borrow(|local| {
                let ticks = &local.as_ref().expect("metered").ticks;
                *host = ticks.get(TimeSlot { domain: Domain::Host(0), work: WorkKind::Crypto });
                *parked = ticks.get(TimeSlot { domain: Domain::Parked, work: WorkKind::Stack });
            });
        };
        let attached = CpuMeter::new().attach();
        let (mut host_at_park, mut host_at_unpark, mut parked) = (0, 0, 0);
        unpark(); // not parked: ignored
        {
            let _host = domain(Domain::Host(0));
            let _crypto = work(WorkKind::Crypto);
            spin(100_000);
            park();
            park(); // already parked: ignored
            slots(&mut host_at_park, &mut parked);
            spin(100_000);
            unpark();
            slots(&mut host_at_unpark, &mut parked);
            spin(100_000);
        }
        assert!(host_at_park > 0 && host_at_unpark == host_at_park && parked > 0);
        slots(&mut host_at_unpark, &mut parked);
        assert!(host_at_unpark > host_at_park, "the scope that was open at the park goes on");
        drop(attached);
    }

    #[test]
    fn unmetered_thread_is_charged_nothing() {
        let meter = CpuMeter::new();
        {
            let _host = domain(Domain::Host(0));
            spin(1000);
        }
        assert_eq!(meter.report().total(Domain::Host(0)), Duration::ZERO);
    }
}
