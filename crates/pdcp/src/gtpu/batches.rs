//! PDUs in jobs of an accelerator. Each job has the PDUs of one bearer and direction that were available together.

use super::core::{BearerState, GtpuCounters, NodeCore};
use crate::device::{BATCHES, BatchPdu, PdcpContext, batch, batch_done, run_batch};
use crate::{ClearPdu, IncomingPdu, Security};
use ::core::task::Context;
use bytes::BytesMut;
use offload_api::{
    CompletedJob, DatagramSocket, Direction, Handle, Job, JobOutcome, JobQueue, JobStatus, NewContext, Way,
};
use offload_base::{Instant, WakeList};
use std::collections::{BTreeMap, VecDeque};

/// A job queue, its sessions and the jobs under way.
pub(super) struct JobBatches {
    queue: Box<dyn JobQueue>,
    /// Sessions by TEID, epoch of the keys, and whether the session opens PDUs.
    sessions: BTreeMap<(u32, u64, bool), Handle>,
    under_way: BTreeMap<u64, SentBatch>,
    /// Jobs that the queue refused.
    refused: VecDeque<CompletedJob>,
    next: u64,
}

struct SentBatch {
    tunnel: u32,
    /// The epoch of the bearer's keys.
    epoch: u64,
    way: Way,
    context: PdcpContext,
    session: Option<Handle>,
}

impl JobBatches {
    pub(super) fn new(queue: Box<dyn JobQueue>) -> JobBatches {
        JobBatches { queue, sessions: BTreeMap::new(), under_way: BTreeMap::new(), refused: VecDeque::new(), next: 0 }
    }

    pub(super) fn is_full(&self) -> bool {
        self.under_way.len() >= MAX_JOBS || self.queue.room() == 0
    }

    /// Removes the sessions of keys that are no longer used.
    fn forget(&mut self, (tunnel, epoch): (u32, u64)) {
        for opens in [false, true] {
            if let Some(session) = self.sessions.remove(&(tunnel, epoch, opens)) {
                self.queue.contexts().remove(session);
            }
        }
    }

    /// Tests whether jobs have PDUs of a bearer that must still be sent.
    pub(super) fn is_sending(&self, tunnel: u32) -> bool {
        self.under_way.values().any(|one| one.tunnel == tunnel && one.way == Way::Apply)
    }

    pub(super) fn next_event(&self) -> Option<Instant> {
        self.queue.next_event()
    }

    /// Protects PDUs by a job, which sends the PDUs when it ends.
    pub(super) fn protect(&mut self, now: Instant, state: &mut BearerState, pdus: &[ClearPdu]) {
        let pdus: Vec<_> = pdus.iter().map(|pdu| (pdu.count(), pdu.to_bytes())).collect();
        self.submit(now, state, Way::Apply, pdus);
    }

    /// Opens PDUs by a job. The PDUs of a bearer reach the receiver in the order of arrival, as without an accelerator,
    /// so that slow or overtaking jobs do not move the window of COUNTs.
    pub(super) fn open(
        &mut self,
        now: Instant,
        state: &mut BearerState,
        pdus: Vec<IncomingPdu>,
        counters: &mut GtpuCounters,
        woken: &mut WakeList,
    ) {
        let (sn, is_signalling) = (state.config.sn, state.config.kind == crate::BearerKind::Signalling);
        // A job needs the COUNTs now. Without losses, all PDUs under way come first. A wrong guess costs a second pass
        // by the CPU.
        let next = state.entity.receiver().expected() + state.opening.pdus() as u64;
        // Control PDUs are neither ciphered nor authenticated, so no job gets them.
        let (mut closed, mut others): (Vec<(u32, BytesMut)>, Vec<IncomingPdu>) = Default::default();
        for pdu in pdus {
            match pdu {
                IncomingPdu::Pdu(bytes) if is_signalling || bytes.first().is_some_and(|first| first & 0x80 != 0) => {
                    match sn.count_near(next, &bytes) {
                        Some(count) => closed.push((count, bytes)),
                        None => others.push(IncomingPdu::Pdu(bytes)),
                    }
                }
                other => others.push(other),
            }
        }
        state.receive(now, others, &mut counters.unread, woken);
        if closed.is_empty() {
            return;
        }
        // The PDUs still wait for earlier jobs, although the CPU opens them.
        if self.is_full() || state.opening.is_full(state.config.buffer) {
            let pdus = closed.into_iter().map(|(_, pdu)| IncomingPdu::Pdu(pdu)).collect();
            match state.opening.push_ready(pdus, state.config.buffer) {
                Ok(()) => state.take_opened(now, &mut counters.unread, woken),
                Err(pdus) => counters.dropped += pdus as u64,
            }
            return;
        }
        state.opening.push_job(self.next, closed.len());
        self.submit(now, state, Way::Undo, closed);
    }

    fn submit(&mut self, now: Instant, state: &BearerState, way: Way, pdus: Vec<(u32, BytesMut)>) {
        let security = &state.keys[usize::from(way == Way::Undo)];
        let context = self.context(state, security);
        let session = self.session((state.tunnel.local, state.epoch), way, &context);
        // A job without a session is still recorded, so that the CPU processes it in its turn.
        let mut job = batch(session.unwrap_or(NONE), way, &pdus);
        job.user = self.next;
        self.next += 1;
        self.under_way
            .insert(job.user, SentBatch { tunnel: state.tunnel.local, epoch: state.epoch, way, context, session });
        let user = job.user;
        let taken = if session.is_some() { self.queue.submit(now, job) } else { Err(job) };
        match taken {
            Ok(()) => self.queue.flush(now),
            // The session may have taken the last place in the queue, or another client did. The CPU processes the job
            // like a lost one. The session remains valid.
            Err(job) => {
                self.under_way.entry(user).and_modify(|of| of.session = None);
                self.refused.push_back(job.done(JobOutcome::failed(JobStatus::NoSession)));
                self.queue.flush(now);
            }
        }
    }

    fn context(&self, state: &BearerState, security: &Security) -> PdcpContext {
        PdcpContext { config: state.config.clone(), security: security.clone(), next: 0, drops_duplicates: false }
    }

    /// Returns the session of a bearer and direction, created at first use. `None` if the accelerator has no room or
    /// lacks the engine.
    fn session(&mut self, (tunnel, epoch): (u32, u64), way: Way, context: &PdcpContext) -> Option<Handle> {
        let key = (tunnel, epoch, way == Way::Undo);
        if let Some(session) = self.sessions.get(&key) {
            return Some(*session);
        }
        let contexts = self.queue.contexts();
        // The engine keeps one context per direction, as a NIC's packet engine does.
        let direction = if way == Way::Apply { Direction::Transmit } else { Direction::Receive };
        let (engine, spec) = (contexts.engine(BATCHES)?.number, Box::new(context.clone()));
        let made = contexts.create(NewContext { engine, direction, flow: None, keys: Vec::new(), spec }).ok()?;
        self.sessions.insert(key, made);
        Some(made)
    }

    /// Processes finished jobs while there is room for their PDUs. Returns whether the driver must poll again at once.
    pub(super) fn complete(
        &mut self,
        cx: &mut Context<'_>,
        now: Instant,
        core: &mut NodeCore,
        socket: &mut dyn DatagramSocket,
    ) -> bool {
        let mut any = false;
        core.closed.drain(..).for_each(|keys| self.forget(keys));
        // The status of jobs shows the loss of sessions, so the events are not needed.
        while self.queue.contexts().poll_news().is_some() {}
        while core.outgoing.has_room()
            && let Some(done) = self.refused.pop_front().or_else(|| self.queue.complete(now))
        {
            any = true;
            self.take(now, done, core, socket);
        }
        // If the queue cannot be armed, a job has ended since: the driver's next turn takes it.
        any || core.outgoing.has_room() && !self.queue.arm(cx.waker())
    }

    fn take(&mut self, now: Instant, done: CompletedJob, core: &mut NodeCore, socket: &mut dyn DatagramSocket) {
        let Some(SentBatch { tunnel, epoch, way, context, session }) = self.under_way.remove(&done.user) else {
            return;
        };
        let (user, source, (status, mut pdus)) = (done.user, done.source.clone(), batch_done(done));
        let is_done = status == JobStatus::Done;
        if !is_done {
            core.counters.batches_lost += 1;
            // A new session is requested with the next job. The device frees the old one if it still exists.
            if let Some(session) = session {
                let key = (tunnel, epoch, way == Way::Undo);
                if self.sessions.get(&key) == Some(&session) {
                    self.sessions.remove(&key);
                }
                self.queue.contexts().remove(session);
            }
            let room = source.iter().map(bytes::Bytes::len).sum();
            let mut job = Job { way, source, ..Job::new(NONE, Default::default(), BytesMut::with_capacity(room)) };
            let outcome = run_batch(&context, &mut job);
            pdus = batch_done(job.done(outcome)).1;
        }
        // The bearer was closed or has new keys, so the PDUs belong to no SDU any more.
        if core.bearers.get(&tunnel).is_none_or(|state| state.epoch != epoch) {
            core.counters.stale += pdus.len() as u64;
            return;
        }
        if way == Way::Apply {
            let GtpuCounters { protected_by_jobs, protected_by_software, .. } = &mut core.counters;
            *(if is_done { protected_by_jobs } else { protected_by_software }) += pdus.len() as u64;
            return core.push_protected(tunnel, pdus.into_iter().map(|pdu| pdu.pdu.freeze()), socket);
        }
        let Some(state) = core.bearers.get_mut(&tunnel) else { return };
        let opened = pdus.into_iter().map(|BatchPdu { count, pdu, authentic }| match authentic {
            true => IncomingPdu::Opened { count, pdu },
            false => IncomingPdu::Rejected { count, pdu },
        });
        state.opening.complete(user, opened.collect());
        state.take_opened(now, &mut core.counters.unread, &mut core.woken);
        core.schedule(tunnel);
    }
}

/// The session handle of jobs that the CPU processes.
const NONE: Handle = Handle { index: u32::MAX, generation: u32::MAX };
/// Limit of jobs under way.
const MAX_JOBS: usize = 64;
