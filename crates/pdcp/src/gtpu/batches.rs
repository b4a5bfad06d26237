//! PDUs in jobs of an accelerator: each job has those of one bearer and direction that were there at once.

use super::core::{Core, GtpuCounters, State};
use crate::device::{BATCHES, BatchPdu, PdcpContext, batch, batch_done, run_batch};
use crate::{ClearPdu, Incoming, Security};
use ::core::task::Context;
use bytes::BytesMut;
use offload_api::{
    CompletedJob, DatagramSocket, Direction, Handle, Job, JobOutcome, JobQueue, JobStatus, NewContext, Way,
};
use offload_base::{Instant, WakeList};
use std::collections::{BTreeMap, VecDeque};

/// A queue, the sessions there, and what is under way.
pub(super) struct Batches {
    queue: Box<dyn JobQueue>,
    /// By TEID, by which of its keys, and whether they open.
    sessions: BTreeMap<(u32, u64, bool), Handle>,
    under_way: BTreeMap<u64, UnderWay>,
    /// Jobs that the queue had no place for.
    refused: VecDeque<CompletedJob>,
    next: u64,
}

struct UnderWay {
    tunnel: u32,
    /// By which of its keys.
    epoch: u64,
    way: Way,
    context: PdcpContext,
    session: Option<Handle>,
}

impl Batches {
    pub(super) fn new(queue: Box<dyn JobQueue>) -> Batches {
        Batches { queue, sessions: BTreeMap::new(), under_way: BTreeMap::new(), refused: VecDeque::new(), next: 0 }
    }

    pub(super) fn is_full(&self) -> bool {
        self.under_way.len() >= MOST || self.queue.room() == 0
    }

    /// The keys of a bearer are no longer used.
    fn forget(&mut self, (tunnel, epoch): (u32, u64)) {
        for opens in [false, true] {
            if let Some(session) = self.sessions.remove(&(tunnel, epoch, opens)) {
                self.queue.contexts().remove(session);
            }
        }
    }

    /// Whether PDUs of a bearer are under way that are to be sent.
    pub(super) fn is_sending(&self, tunnel: u32) -> bool {
        self.under_way.values().any(|one| one.tunnel == tunnel && one.way == Way::Apply)
    }

    pub(super) fn next_event(&self) -> Option<Instant> {
        self.queue.next_event()
    }

    /// Protects PDUs, which are sent when the job ends.
    pub(super) fn protect(&mut self, now: Instant, state: &mut State, pdus: &[ClearPdu]) {
        let pdus: Vec<_> = pdus.iter().map(|pdu| (pdu.count(), pdu.to_bytes())).collect();
        self.submit(now, state, Way::Apply, pdus);
    }

    /// Opens PDUs. The PDUs of a bearer go up in the order of their arrival, as they do without an accelerator, so that slow or overtaking jobs
    /// do not move the window of COUNTs.
    pub(super) fn open(
        &mut self,
        now: Instant,
        state: &mut State,
        pdus: Vec<Incoming>,
        counters: &mut GtpuCounters,
        woken: &mut WakeList,
    ) {
        let (sn, is_signalling) = (state.config.sn, state.config.kind == crate::BearerKind::Signalling);
        // A job needs its COUNTs now. Without losses, all PDUs under way come first. A wrong guess costs a second pass by the CPU.
        let next = state.entity.receiver().expected() + state.opening.pdus() as u64;
        let (mut closed, mut others): (Vec<(u32, BytesMut)>, Vec<Incoming>) = Default::default();
        for pdu in pdus {
            match pdu {
                Incoming::Pdu(bytes) if is_signalling || bytes.first().is_some_and(|first| first & 0x80 != 0) => {
                    match sn.count_near(next, &bytes) {
                        Some(count) => closed.push((count, bytes)),
                        None => others.push(Incoming::Pdu(bytes)),
                    }
                }
                other => others.push(other),
            }
        }
        state.receive(now, others, &mut counters.unread, woken);
        if closed.is_empty() {
            return;
        }
        if self.is_full() || state.opening.is_full(state.config.buffer) {
            let pdus = closed.into_iter().map(|(_, pdu)| Incoming::Pdu(pdu)).collect();
            match state.opening.push_ready(pdus, state.config.buffer) {
                Ok(()) => state.take_opened(now, &mut counters.unread, woken),
                Err(pdus) => counters.dropped += pdus as u64,
            }
            return;
        }
        state.opening.push_job(self.next, closed.len());
        self.submit(now, state, Way::Undo, closed);
    }

    fn submit(&mut self, now: Instant, state: &State, way: Way, pdus: Vec<(u32, BytesMut)>) {
        let security = &state.keys[usize::from(way == Way::Undo)];
        let context = self.context(state, security);
        let session = self.session((state.tunnel.local, state.epoch), way, &context);
        let mut job = batch(session.unwrap_or(NONE), way, &pdus);
        job.user = self.next;
        self.next += 1;
        self.under_way
            .insert(job.user, UnderWay { tunnel: state.tunnel.local, epoch: state.epoch, way, context, session });
        let user = job.user;
        let taken = if session.is_some() { self.queue.submit(now, job) } else { Err(job) };
        match taken {
            Ok(()) => self.queue.flush(now),
            // The session took the last place, or another client did: the CPU does it, as it does what is lost. The session is all right.
            Err(job) => {
                self.under_way.entry(user).and_modify(|of| of.session = None);
                self.refused.push_back(job.done(JobOutcome::failed(JobStatus::NoSession)));
                self.queue.flush(now);
            }
        }
    }

    fn context(&self, state: &State, security: &Security) -> PdcpContext {
        PdcpContext { config: state.config.clone(), security: security.clone(), next: 0, drops_duplicates: false }
    }

    /// The session of a bearer and direction, made when it is used first. `None`: the accelerator has no room, or not the engine.
    fn session(&mut self, (tunnel, epoch): (u32, u64), way: Way, context: &PdcpContext) -> Option<Handle> {
        let key = (tunnel, epoch, way == Way::Undo);
        if let Some(session) = self.sessions.get(&key) {
            return Some(*session);
        }
        let contexts = self.queue.contexts();
        let direction = if way == Way::Apply { Direction::Transmit } else { Direction::Receive };
        let (engine, spec) = (contexts.engine(BATCHES)?.number, Box::new(context.clone()));
        let made = contexts.create(NewContext { engine, direction, flow: None, keys: Vec::new(), spec }).ok()?;
        self.sessions.insert(key, made);
        Some(made)
    }

    /// Takes ended jobs, as long as there is room for their PDUs. Returns whether the driver is to come back at once.
    pub(super) fn complete(
        &mut self,
        cx: &mut Context<'_>,
        now: Instant,
        core: &mut Core,
        socket: &mut dyn DatagramSocket,
    ) -> bool {
        let mut any = false;
        core.closed.drain(..).for_each(|keys| self.forget(keys));
        // What happens to sessions, the status of jobs says.
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

    fn take(&mut self, now: Instant, done: CompletedJob, core: &mut Core, socket: &mut dyn DatagramSocket) {
        let Some(UnderWay { tunnel, epoch, way, context, session }) = self.under_way.remove(&done.user) else { return };
        let (user, source, (status, mut pdus)) = (done.user, done.source.clone(), batch_done(done));
        let is_done = status == JobStatus::Done;
        if !is_done {
            core.counters.batches_lost += 1;
            // It is asked for anew, and given back if the device has it still.
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
            true => Incoming::Opened { count, pdu },
            false => Incoming::Rejected { count, pdu },
        });
        state.opening.complete(user, opened.collect());
        state.take_opened(now, &mut core.counters.unread, &mut core.woken);
        core.schedule(tunnel);
    }
}

/// Of jobs that the CPU does.
const NONE: Handle = Handle { index: u32::MAX, generation: u32::MAX };
/// Jobs under way.
const MOST: usize = 64;
