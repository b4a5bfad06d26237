//! The driver of a lookaside accelerator: a [`JobQueue`].
//!
//! For the host, a session exists at once, because its command precedes its jobs on the same ring. The session is
//! removed after its jobs, and its place is reused, with the next generation, after the device has confirmed the
//! removal.
//!
//! Invariant: jobs and commands in flight never exceed the entries of the ring. A submitted job is in flight until
//! `complete` returns it, once. `arm` lets the caller sleep only if neither `complete` nor `poll_news` has a result,
//! with a device or without one.

use core::task::Waker;
use nic_rings::job::{DriverJobRings, JobCompletion, JobDescriptor, JobEntry, JobSlot};
use nic_rings::packet::{ControlCommand, ControlCompletion};
use offload_api::{
    CompletedJob, ContextNews, ContextRefusal, Contexts, EngineInfo, Handle, Job, JobOutcome, JobQueue, JobStatus,
    NewContext, Piece, Slots, Spec,
};
use offload_base::Instant;
use std::collections::VecDeque;

/// The host's driver of an accelerator's job queue. Created by `nic_sim::lookaside`, which has an example.
///
/// ```
/// use bytes::BytesMut;
/// use nic_driver::JobDriver;
/// use nic_rings::job::job_rings;
/// use offload_api::{Handle, Job, JobQueue, JobStatus};
/// use offload_base::Instant;
///
/// // The device has no engine, so there is no session, and the job comes back without reaching the device.
/// let (_device, rings) = job_rings(4);
/// let mut queue = JobDriver::new(rings, 4, Vec::new(), &[]);
/// let job = Job::new(Handle { index: 0, generation: 0 }, "bytes".into(), BytesMut::new());
/// queue.submit(Instant::ZERO, job).expect("there is room");
/// let done = queue.complete(Instant::ZERO).expect("it is back");
/// assert_eq!((done.outcome.status, &done.source[0][..]), (JobStatus::NoSession, &b"bytes"[..]));
/// ```
#[derive(Debug)]
pub struct JobDriver {
    rings: DriverJobRings,
    depth: usize,
    engines: Vec<EngineInfo>,
    /// Existing sessions by engine, with a mark on sessions being removed.
    sessions: Vec<Slots<JobSession>>,
    jobs_under_way: usize,
    commands_under_way: usize,
    /// Jobs that ended without the device.
    ended: VecDeque<CompletedJob>,
    news: VecDeque<ContextNews>,
    /// Sessions to be removed in the device once there is room for the commands.
    leaving: VecDeque<Handle>,
    /// Number of resets that the driver has seen.
    epoch: u64,
    /// Whether the device is gone and all jobs and commands have come back.
    is_over: bool,
}

#[derive(Debug)]
struct JobSession {
    leaving: bool,
}

impl JobDriver {
    /// Creates the driver. Called by `nic-sim`, which also creates the device: `engines` are the device's engines,
    /// `places` are the places of this queue's sessions by engine, and `depth` is the size of the rings.
    pub fn new(
        rings: DriverJobRings,
        depth: usize,
        engines: Vec<EngineInfo>,
        places: &[core::ops::Range<u32>],
    ) -> JobDriver {
        let slots = engines.iter().zip(places).map(|(engine, places)| {
            let first = Handle::indices(engine.number, 0).start;
            Slots::new(first + places.start..first + places.end)
        });
        JobDriver {
            sessions: slots.collect(),
            rings,
            depth,
            engines,
            jobs_under_way: 0,
            commands_under_way: 0,
            ended: VecDeque::new(),
            news: VecDeque::new(),
            leaving: VecDeque::new(),
            epoch: 0,
            is_over: false,
        }
    }

    fn session(&self, handle: Handle) -> Option<&JobSession> {
        self.sessions.get(usize::from(handle.engine()))?.get(handle)
    }

    fn is_gone(&self) -> bool {
        self.rings.completions.is_abandoned()
    }

    /// Returns the reason that no command can be given now, or `None` if there is room.
    fn refuses(&self) -> Option<ContextRefusal> {
        if self.is_gone() {
            return Some(ContextRefusal::Resetting);
        }
        (self.room() == 0).then_some(ContextRefusal::Busy)
    }

    /// Gives a command at once, because jobs depend on it. The caller has checked for room.
    fn give(&mut self, command: ControlCommand) {
        let entry = JobEntry { epoch: self.epoch, descriptor: JobDescriptor::Control(command) };
        let staged = self.rings.submit.stage(entry);
        debug_assert!(staged.is_ok(), "jobs and commands in flight never exceed the ring's entries");
        self.commands_under_way += 1;
        self.ring();
    }

    /// Removes leaving sessions in the device, as far as there is room.
    fn give_leaving(&mut self) {
        while self.refuses().is_none()
            && let Some(handle) = self.leaving.pop_front()
        {
            self.give(ControlCommand::Destroy { handle });
        }
    }

    fn ring(&mut self) {
        if self.rings.submit.publish() > 0 {
            self.rings.doorbell.raise();
        }
    }

    /// Marks all sessions as gone, because the device was reset.
    fn note_reset(&mut self, resets: u64) {
        self.epoch = resets;
        self.lose_sessions();
    }

    /// Notes that the device is gone and the rings are empty, so that no command will be answered.
    fn note_gone(&mut self) {
        self.is_over = true;
        self.commands_under_way = 0;
        self.lose_sessions();
    }

    fn lose_sessions(&mut self) {
        self.leaving.clear();
        for slots in &mut self.sessions {
            let all: Vec<Handle> = slots.handles().collect();
            for handle in all {
                slots.remove(handle);
                self.news.push_back(ContextNews::Removed(handle));
            }
        }
    }

    fn note(&mut self, completion: ControlCompletion) {
        self.commands_under_way = self.commands_under_way.saturating_sub(1);
        // The completion made room for a removal, and there may be no further job to trigger the removal.
        self.give_leaving();
        match completion {
            ControlCompletion::Created(handle) => self.news.push_back(ContextNews::Ready(handle)),
            ControlCompletion::Refused(handle) | ControlCompletion::Destroyed(handle) => {
                let slots = self.sessions.get_mut(usize::from(handle.engine()));
                if slots.and_then(|slots| slots.remove(handle)).is_some() {
                    self.news.push_back(ContextNews::Removed(handle));
                }
            }
            ControlCompletion::Event(event) => self.news.push_back(ContextNews::Event(event)),
            _ => {}
        }
    }

    /// Returns the next job that the device has completed, or has left behind on disappearing.
    fn next_of_device(&mut self) -> Option<CompletedJob> {
        loop {
            // Read first: entries that the device pushed before disappearing or being reset are then still found on the
            // ring.
            let (is_gone, resets) = (self.is_gone(), self.rings.resets.read());
            match self.rings.completions.pop() {
                Some(JobCompletion::Done(slot)) => return Some(slot.done()),
                Some(JobCompletion::Control(completion)) => self.note(completion),
                None if resets != self.epoch => self.note_reset(resets),
                None if !is_gone || self.is_over => return None,
                None => {
                    self.rings.submit.publish();
                    match self.rings.submitted.pop().map(|entry| entry.descriptor) {
                        // The device never reported this job, so its outcome is `Gone`.
                        Some(JobDescriptor::Job(slot)) => return Some(slot.done()),
                        Some(JobDescriptor::Control(_)) => {}
                        None => self.note_gone(),
                    }
                }
            }
        }
    }

    /// Tests whether the device is gone and some of its jobs or news have not come back yet.
    fn has_lost(&self) -> bool {
        !self.is_over && self.is_gone()
    }
}

impl JobQueue for JobDriver {
    fn contexts(&mut self) -> &mut dyn Contexts {
        self
    }

    fn room(&self) -> usize {
        // A device that is gone answers no command, so commands then occupy no room.
        let commands = if self.is_gone() { 0 } else { self.commands_under_way };
        self.depth - self.jobs_under_way - commands
    }

    fn submit(&mut self, _: Instant, job: Job) -> Result<(), Job> {
        if self.room() == 0 {
            return Err(job);
        }
        self.jobs_under_way += 1;
        if self.is_gone() {
            self.ended.push_back(job.done(JobOutcome::failed(JobStatus::Gone)));
            return Ok(());
        }
        if self.session(job.session).is_none_or(|session| session.leaving) {
            self.ended.push_back(job.done(JobOutcome::failed(JobStatus::NoSession)));
            return Ok(());
        }
        let entry = JobEntry { epoch: self.epoch, descriptor: JobDescriptor::Job(JobSlot::new(job)) };
        if let Err(JobEntry { descriptor: JobDescriptor::Job(slot), .. }) = self.rings.submit.stage(entry) {
            self.jobs_under_way -= 1;
            return Err(slot.job);
        }
        Ok(())
    }

    fn flush(&mut self, _: Instant) {
        self.ring();
    }

    fn complete(&mut self, _: Instant) -> Option<CompletedJob> {
        let done = self.ended.pop_front().or_else(|| self.next_of_device())?;
        self.jobs_under_way -= 1;
        if !self.leaving.is_empty() {
            self.give_leaving();
        }
        Some(done)
    }

    fn arm(&mut self, waker: &Waker) -> bool {
        self.rings.interrupt.arm(waker);
        // A reset without any completion must also wake the task, because it ends the sessions.
        let is_reset = self.rings.resets.read() != self.epoch;
        let nothing_here = self.ended.is_empty() && self.news.is_empty();
        // Read before the completion ring, so that entries that the device pushed before disappearing are still found.
        let has_lost = self.has_lost();
        nothing_here && !has_lost && !is_reset && self.rings.completions.is_empty()
    }

    fn next_event(&self) -> Option<Instant> {
        (!self.ended.is_empty() || self.has_lost()).then_some(Instant::ZERO)
    }
}

impl Contexts for JobDriver {
    fn engine(&mut self, name: &str) -> Option<EngineInfo> {
        self.engines.iter().find(|engine| engine.name == name).cloned()
    }

    fn create(&mut self, new: NewContext) -> Result<Handle, (ContextRefusal, Spec)> {
        let NewContext { engine, direction, flow, keys, spec } = new;
        if let Some(refused) = self.refuses() {
            return Err((refused, spec));
        }
        let Some(slots) = self.sessions.get_mut(usize::from(engine)) else {
            return Err((ContextRefusal::Unsupported, spec));
        };
        let Ok(handle) = slots.insert(JobSession { leaving: false }) else {
            return Err((ContextRefusal::NoSpace, spec));
        };
        self.give(ControlCommand::Create { handle, flow, direction, keys, spec });
        Ok(handle)
    }

    fn command(&mut self, handle: Handle, command: Spec) -> Result<(), (ContextRefusal, Spec)> {
        if self.session(handle).is_none() {
            return Ok(());
        }
        if let Some(refused) = self.refuses() {
            return Err((refused, command));
        }
        self.give(ControlCommand::Command { handle, command });
        Ok(())
    }

    fn change(&mut self, engine: u8, change: Spec) -> Result<(), (ContextRefusal, Spec)> {
        if usize::from(engine) >= self.engines.len() {
            return Err((ContextRefusal::Unsupported, change));
        }
        if let Some(refused) = self.refuses() {
            return Err((refused, change));
        }
        self.give(ControlCommand::Change { engine, change });
        Ok(())
    }

    /// Jobs place no buffers, so the pieces are dropped and return to their owner at once.
    fn place(&mut self, _: Handle, _: u64, _: Vec<Piece>, _: Option<Spec>) {}

    fn remove(&mut self, handle: Handle) {
        let session = self.sessions.get_mut(usize::from(handle.engine())).and_then(|slots| slots.get_mut(handle));
        let Some(session) = session.filter(|session| !session.leaving) else { return };
        session.leaving = true;
        self.leaving.push_back(handle);
        self.give_leaving();
    }

    fn poll_news(&mut self) -> Option<ContextNews> {
        if self.news.is_empty() && self.ended.is_empty() {
            // Only news are returned here. A completed job waits for `complete`.
            if let Some(done) = self.next_of_device() {
                self.ended.push_back(done);
            }
        }
        self.news.pop_front()
    }
}
