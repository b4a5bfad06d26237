//! One job queue in the device: fetched jobs, started jobs and completions.
//!
//! Invariant: a job taken off the ring is in `fetched`, `running` or `under_way` until its completion is on the
//! completion ring. That ring always has room, because the driver bounds its submissions. Dropping the queue completes
//! all jobs.

use super::{Bus, LookasideUnit, SessionStore};
use core::ops::Range;
use core::task::Waker;
use nic_engine::hosted::Subject;
use nic_rings::Delays;
use nic_rings::dma::{self, DmaBytes};
use nic_rings::job::{DeviceJobRings, JobCompletion, JobDescriptor, JobEntry, JobSlot};
use nic_rings::packet::{ControlCommand, ControlCompletion};
use offload_api::{Handle, Job, JobOutcome, JobStatus};
use offload_base::Instant;
use offload_base::time::earliest;
use std::collections::VecDeque;

offload_base::counters! {
    /// Counters of a job queue.
    pub struct JobCounters {
        /// Jobs started by a unit.
        pub started: "jobs_started",
        /// Jobs completed with a result.
        pub done: "jobs_done",
        /// Jobs completed without a result.
        pub failed: "jobs_failed",
        /// Source bytes of started jobs.
        pub bytes: "jobs_bytes",
        /// Jobs with a session that the queue does not have.
        pub no_session: "jobs_no_session",
        /// Resets.
        pub resets: "jobs_resets",
    }
}

/// The device's end of a job queue.
#[derive(Debug)]
pub(super) struct DeviceJobQueue {
    number: usize,
    rings: DeviceJobRings,
    /// Session slots of this queue, by engine.
    places: Vec<Range<u32>>,
    delays: Delays,
    /// Time at which the ring's entries are fetched.
    fetch_at: Option<Instant>,
    fetched: VecDeque<JobEntry>,
    /// The job in an engine's hands, which may panic, and the original length of its target.
    running: Option<(Box<JobSlot>, usize)>,
    under_way: Vec<RunningJob>,
    interrupt_at: Option<Instant>,
    share: u32,
    /// Bytes that the queue may still start in its turn.
    credit: usize,
    /// Whether the driver is gone and the queue's state was removed.
    is_cleared: bool,
    counters: JobCounters,
    dma: DmaBytes,
}

/// A job that a unit has started. The work is done, but the result is hidden until its time.
#[derive(Debug)]
struct RunningJob {
    ends_at: Instant,
    /// The unit; `None` if the job only waits to be reported.
    unit: Option<usize>,
    slot: Box<JobSlot>,
}

impl DeviceJobQueue {
    pub(super) fn new(
        number: usize,
        rings: DeviceJobRings,
        places: Vec<Range<u32>>,
        share: u32,
        delays: Delays,
    ) -> DeviceJobQueue {
        DeviceJobQueue {
            number,
            rings,
            places,
            delays,
            fetch_at: None,
            fetched: VecDeque::new(),
            running: None,
            under_way: Vec::new(),
            interrupt_at: None,
            share,
            credit: 0,
            is_cleared: false,
            counters: JobCounters::default(),
            dma: DmaBytes::default(),
        }
    }

    pub(super) fn counters(&self) -> JobCounters {
        self.counters
    }

    pub(super) fn dma(&self) -> DmaBytes {
        self.dma
    }

    /// Fetches submitted entries if they are due.
    pub(super) fn fetch(&mut self, now: Instant) {
        if self.rings.submitted.is_empty() {
            self.fetch_at = None;
            return;
        }
        let due = *self.fetch_at.get_or_insert(now + self.delays.doorbell + self.delays.dma);
        if due > now {
            return;
        }
        self.fetch_at = None;
        while let Some(entry) = self.rings.submitted.pop() {
            self.dma.job_descriptors += match &entry.descriptor {
                JobDescriptor::Job(slot) => dma::job_descriptor_bytes(slot.job.source.len()),
                JobDescriptor::Control(ControlCommand::Create { .. } | ControlCommand::Destroy { .. }) => {
                    dma::CONTROL_COMMAND
                }
                JobDescriptor::Control(_) => dma::CONTROL_QUERY,
            };
            self.fetched.push_back(entry);
        }
    }

    /// Removes the state of a queue without a driver: submitted jobs, sessions and their keys. No completion is sent.
    pub(super) fn clear_if_abandoned(&mut self, sessions: &mut SessionStore) {
        if self.is_cleared || !self.rings.completions.is_abandoned() {
            return;
        }
        self.is_cleared = true;
        while self.rings.submitted.pop().is_some() {}
        self.fetched.clear();
        self.under_way.clear();
        (self.fetch_at, self.interrupt_at) = (None, None);
        sessions.store.forget_queue(self.number, &self.places, &mut sessions.steering);
    }

    pub(super) fn has_fetched(&self) -> bool {
        !self.fetched.is_empty()
    }

    pub(super) fn next_event(&self) -> Option<Instant> {
        let ends = self.under_way.iter().map(|job| job.ends_at).min();
        earliest(earliest(self.fetch_at, ends), self.interrupt_at)
    }

    pub(super) fn arm(&mut self, waker: &Waker) -> bool {
        self.rings.doorbell.arm(waker);
        let is_abandoned = !self.is_cleared && self.rings.completions.is_abandoned();
        !is_abandoned && (self.rings.submitted.is_empty() || self.fetch_at.is_some())
    }

    /// Returns the bytes of the next job that a unit could start, with its additional data. Executes the commands
    /// before the job, and ends jobs that need no unit.
    pub(super) fn next_job(&mut self, sessions: &mut SessionStore, now: Instant) -> Option<usize> {
        loop {
            match self.fetched.front()? {
                JobEntry { epoch, descriptor: JobDescriptor::Job(slot) } => {
                    let job = &slot.job;
                    let status = if *epoch != self.counters.resets {
                        JobStatus::Reset
                    } else if !self.has(job.session) {
                        self.counters.no_session += 1;
                        JobStatus::NoSession
                    } else {
                        return Some(job.read_len());
                    };
                    if let Some(slot) = self.pop_job() {
                        self.fail_at(now, slot, status);
                    }
                }
                JobEntry { descriptor: JobDescriptor::Control(_), .. } => self.run_command(sessions, now),
            }
        }
    }

    pub(super) fn has_credit(&self, bytes: usize) -> bool {
        self.credit >= bytes
    }

    pub(super) fn add_credit(&mut self) {
        self.credit += self.share as usize * QUANTUM;
    }

    /// Removes the credit, because a queue without jobs must not save credit.
    pub(super) fn lose_credit(&mut self) {
        self.credit = 0;
    }

    /// Starts the next job on a unit. Returns the time at which its bytes, counted as by [`next_job`](Self::next_job), have
    /// passed unit and bus.
    pub(super) fn start(
        &mut self,
        sessions: &mut SessionStore,
        bus: &mut Bus,
        unit: usize,
        speed: LookasideUnit,
        now: Instant,
    ) -> Option<Instant> {
        let slot = self.pop_job()?;
        let bytes = slot.job.read_len();
        self.credit = self.credit.saturating_sub(bytes);
        self.counters.started += 1;
        self.counters.bytes += slot.job.source_len() as u64;
        self.dma.job_source += bytes as u64;
        let before = slot.job.target.len();
        let (context, fetched) = (self.dma.context, sessions.store.counters().fetched);
        // Kept in `running` during the call, so that the job still completes if the engine panics.
        let (slot, _) = self.running.insert((slot, before));
        let outcome = sessions.store.run(&mut slot.job, &mut self.dma);
        slot.outcome = outcome.unwrap_or_else(|| JobOutcome::failed(JobStatus::NoSession));
        if slot.outcome.status != JobStatus::Done {
            take_back(&mut slot.job, before);
        }
        let read = dma::job_descriptor_bytes(slot.job.source.len()) + bytes as u64 + self.dma.context - context;
        let written = slot.outcome.produced as u64 + dma::COMPLETION;
        // The unit processes bytes while the bus moves others, so the slower one decides.
        let moved_at = bus.move_job(now, read, sessions.store.counters().fetched - fetched, written);
        let through_at = moved_at.max(now + speed.time_of(bytes));
        if let Some((slot, _)) = self.running.take() {
            self.end_at(through_at + speed.latency, Some(unit), slot);
        }
        Some(through_at)
    }

    /// Reports completed jobs to the driver.
    pub(super) fn end_jobs(&mut self, now: Instant) {
        // In the order of their ends, so that a queue with one unit completes in order.
        while let Some(first) = (0..self.under_way.len())
            .min_by_key(|at| self.under_way[*at].ends_at)
            .filter(|at| self.under_way[*at].ends_at <= now)
        {
            // Keeps the order of the other jobs: jobs with equal ends complete in the order of submission.
            let RunningJob { slot, .. } = self.under_way.remove(first);
            self.dma.job_target += slot.outcome.produced as u64;
            match slot.outcome.status {
                JobStatus::Done => self.counters.done += 1,
                _ => self.counters.failed += 1,
            }
            self.report(now, JobCompletion::Done(slot));
        }
        if self.interrupt_at.is_some_and(|at| at <= now) {
            self.interrupt_at = None;
            self.rings.interrupt.raise();
        }
    }

    /// Ends the jobs that a lost unit had started.
    pub(super) fn lose(&mut self, now: Instant, unit: usize) {
        for job in self.under_way.iter_mut().filter(|job| job.unit == Some(unit)) {
            job.fail(now, JobStatus::EngineLost);
        }
        self.rings.doorbell.raise();
    }

    /// Ends a fetched job because no unit is left.
    pub(super) fn refuse_fetched(&mut self, now: Instant) {
        if let Some(slot) = self.pop_job() {
            self.fail_at(now, slot, JobStatus::EngineLost);
        }
    }

    pub(super) fn reset(&mut self, now: Instant) {
        self.counters.resets += 1;
        self.under_way.iter_mut().for_each(|job| job.fail(now, JobStatus::Reset));
        // Entries on the ring, and entries that the driver adds before it learns of the reset, are stale.
        self.rings.resets.count();
        self.interrupt_at.get_or_insert(now + self.delays.interrupt);
        self.rings.doorbell.raise();
    }

    /// Tests whether a session belongs to this queue.
    fn has(&self, session: Handle) -> bool {
        self.places.get(usize::from(session.engine())).is_some_and(|places| places.contains(&session.place()))
    }

    /// Takes the job at the front, if the front is a job.
    fn pop_job(&mut self) -> Option<Box<JobSlot>> {
        match self.fetched.pop_front()? {
            JobEntry { descriptor: JobDescriptor::Job(slot), .. } => Some(slot),
            command => {
                self.fetched.push_front(command);
                None
            }
        }
    }

    fn end_at(&mut self, at: Instant, unit: Option<usize>, slot: Box<JobSlot>) {
        self.under_way.push(RunningJob { ends_at: at + self.delays.dma, unit, slot });
    }

    /// Ends a job without a unit.
    fn fail_at(&mut self, at: Instant, mut slot: Box<JobSlot>, status: JobStatus) {
        slot.outcome = JobOutcome::failed(status);
        self.end_at(at, None, slot);
    }

    /// Executes the command at the front.
    fn run_command(&mut self, sessions: &mut SessionStore, now: Instant) {
        let Some(JobEntry { epoch, descriptor: JobDescriptor::Control(command) }) = self.fetched.pop_front() else {
            return;
        };
        let is_old = epoch != self.counters.resets;
        sessions.store.serve(self.number);
        let SessionStore { store, steering, engines } = sessions;
        let completion = match command {
            // Stale commands have no effect but an answer, because every entry is answered. The driver learns of the
            // reset separately.
            ControlCommand::Create { handle, .. }
            | ControlCommand::Command { handle, .. }
            | ControlCommand::Destroy { handle }
                if is_old =>
            {
                ControlCompletion::Answered(handle)
            }
            ControlCommand::Change { engine, .. } if is_old => ControlCompletion::Changed(engine),
            ControlCommand::Create { handle, direction, spec, .. } => {
                let made = self.has(handle)
                    && store.create(handle, direction, spec, Subject::default(), steering, &mut self.dma);
                if made { ControlCompletion::Created(handle) } else { ControlCompletion::Refused(handle) }
            }
            ControlCommand::Command { handle, command } => {
                if self.has(handle) {
                    store.command(handle, command, &mut self.dma);
                }
                ControlCompletion::Answered(handle)
            }
            ControlCommand::Change { engine, change } => {
                if usize::from(engine) < engines.len() {
                    store.change(engine, change);
                }
                ControlCompletion::Changed(engine)
            }
            ControlCommand::Destroy { handle } => {
                if self.has(handle) {
                    store.remove(handle, steering);
                }
                ControlCompletion::Destroyed(handle)
            }
            // The driver posts no other commands.
            other => {
                debug_assert!(false, "{other:?} is not a command of a job ring");
                return;
            }
        };
        self.report(now, JobCompletion::Control(completion));
    }

    fn report(&mut self, now: Instant, completion: JobCompletion) {
        let pushed = self.rings.completions.push(completion);
        debug_assert!(pushed.is_ok(), "the driver bounds its submissions by the completion ring");
        self.dma.completions += dma::COMPLETION;
        let at = now + self.delays.interrupt;
        // One interrupt serves all completions until it is raised.
        self.interrupt_at.get_or_insert(at);
    }

    /// Ends a job at once, because the device will do nothing more.
    fn give_back(&mut self, mut slot: Box<JobSlot>) {
        slot.outcome = JobOutcome::failed(JobStatus::Gone);
        // There is room; if there were not, the driver could not be told.
        let _ = self.rings.completions.push(JobCompletion::Done(slot));
    }
}

impl Drop for DeviceJobQueue {
    fn drop(&mut self) {
        let mut under_way = core::mem::take(&mut self.under_way);
        under_way.iter_mut().for_each(|job| job.fail(Instant::ZERO, JobStatus::Gone));
        let fetched = core::mem::take(&mut self.fetched).into_iter().filter_map(|entry| match entry.descriptor {
            JobDescriptor::Job(slot) => Some(slot),
            JobDescriptor::Control(_) => None,
        });
        let running = self.running.take().map(|(mut slot, before)| {
            take_back(&mut slot.job, before);
            slot
        });
        for slot in under_way.into_iter().map(|job| job.slot).chain(running).chain(fetched) {
            self.give_back(slot);
        }
        // The rings raise the interrupt when they are dropped. An earlier wakeup would not show that the device is
        // gone.
    }
}

impl RunningJob {
    /// Ends the job now without a result.
    fn fail(&mut self, now: Instant, status: JobStatus) {
        let JobSlot { job, outcome } = &mut *self.slot;
        if outcome.status == JobStatus::Done {
            let before = job.target.len().saturating_sub(outcome.produced);
            take_back(job, before);
        }
        *outcome = JobOutcome::failed(status);
        (self.ends_at, self.unit) = (now, None);
    }
}

/// Wipes and removes the bytes after the first `before` bytes of the target.
fn take_back(job: &mut Job, before: usize) {
    if let Some(written) = job.target.get_mut(before..) {
        written.fill(0);
    }
    job.target.truncate(before);
}

/// Bytes per share and turn.
const QUANTUM: usize = 4096;
