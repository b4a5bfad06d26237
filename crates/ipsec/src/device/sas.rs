//! SAs and the changes that packets, time and the device make to them.

use super::events::Events;
use super::numbers;
use super::path_mtu::TooBig;
use super::receive::Refusal;
use crate::counters::IpsecCounters;
use crate::keying::{KeyingError, SaEvent, SaId};
use crate::memory::KeyMemory;
use crate::sad::{PathMtu, Quiet, Sa, Sad, Sequence};
use core::ops::RangeInclusive;
use core::task::Waker;
use offload_api::{Direction, Lifetime, Limit, SaParams};
use offload_base::Instant;
use offload_esp::{ETHERNET, ReachedLimit, ReplayWindow};

/// The SAs of a layer, their numbers and events, and the tasks to wake after a change.
///
/// Invariant: a number is used only after it is written down, if its key has a store. An SA that reaches its hard limit or
/// its last number is retired and reported in the same call, and the epoch moves, so that each path is looked at anew.
#[derive(Debug)]
pub(super) struct Sas {
    sad: Sad,
    memory: KeyMemory,
    events: Events,
    /// SAs whose packets leave by each queue.
    used: Vec<usize>,
    /// The task that serves each queue.
    wakers: Vec<Option<Waker>>,
    /// Moves with policies and SAs.
    epoch: u64,
    counters: IpsecCounters,
}

/// The work of an SA whose time has come.
pub(super) struct DueWork {
    pub(super) sa: SaId,
    /// The limit of its lifetime.
    pub(super) reached: Option<ReachedLimit>,
    /// Its path may have become wider.
    pub(super) widened: bool,
    /// The Ethernet addresses of the keep-alive to send.
    pub(super) silent: Option<[u8; ETHERNET - 2]>,
}

impl Sas {
    pub(super) fn new(queues: usize, memory: KeyMemory) -> Sas {
        Sas {
            sad: Sad::default(),
            memory,
            events: Events::default(),
            used: vec![0; queues],
            wakers: vec![None; queues],
            epoch: 0,
            counters: IpsecCounters::default(),
        }
    }

    pub(super) fn sad(&self) -> &Sad {
        &self.sad
    }

    pub(super) fn find(&self, id: SaId) -> Option<&Sa> {
        self.sad.find(id)
    }

    pub(super) fn find_mut(&mut self, id: SaId) -> Option<&mut Sa> {
        self.sad.find_mut(id)
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(super) fn counters(&self) -> IpsecCounters {
        self.counters
    }

    /// Adds an SA whose packets leave by `queue`.
    pub(super) fn add(&mut self, now: Instant, queue: usize, mut params: SaParams) -> Result<SaId, KeyingError> {
        let marks = self.memory.go_on_after_mark(&mut params)?;
        // Whatever its number: nobody but a store is believed to know what was sent under it.
        let sends = (params.direction == Direction::Transmit).then(|| params.key.clone());
        let id = self.sad.add(now, params)?;
        if let Some(Err(refused)) = sends.map(|key| self.memory.used().begin(&key)) {
            self.sad.remove(id);
            return Err(refused);
        }
        self.sad.find_mut(id).into_iter().for_each(|sa| (sa.queue, sa.marks) = (queue, marks));
        self.used[queue] += 1;
        Ok(id)
    }

    /// Gives an SA another lifetime.
    pub(super) fn renew(&mut self, now: Instant, id: SaId, lifetime: Lifetime) -> Result<&Sa, KeyingError> {
        let sa = self.sad.find_mut(id).ok_or(KeyingError::NotFound)?;
        if sa.retired {
            return Err(KeyingError::UsedUp);
        }
        sa.meter.renew(now, lifetime);
        sa.params.lifetime = lifetime;
        self.sad.note_deadline(id);
        self.sad.find(id).ok_or(KeyingError::NotFound)
    }

    /// Removes an SA, which the device no longer has.
    pub(super) fn remove(&mut self, id: SaId) {
        numbers::leave_to_others(&mut self.sad, id);
        if let Some(sa) = self.sad.remove(id) {
            self.used[sa.queue] -= 1;
        }
        self.changed();
    }

    /// The queue of the fewest SAs.
    pub(super) fn least_used_queue(&self) -> usize {
        (0..self.used.len()).min_by_key(|queue| self.used[*queue]).unwrap_or(0)
    }

    /// Counts an event, and notes it, unless one like it waits to be asked for.
    pub(super) fn tell(&mut self, event: SaEvent) {
        let counters = &mut self.counters;
        match event {
            SaEvent::Acquire { .. } => counters.sa_acquires += 1,
            SaEvent::SoftLimit { .. } => counters.sa_soft_limits += 1,
            SaEvent::HardLimit { .. } => counters.sa_hard_limits += 1,
            SaEvent::SequenceExhausted { .. } => counters.sa_exhausted += 1,
            SaEvent::OffloadLost { .. } => counters.sa_offload_lost += 1,
            _ => {}
        }
        if self.events.push(event) {
            tracing::debug!(?event, "SA event");
            let sad = &self.sad;
            self.events.keep_within(sad.len(), |sa| sad.find(sa).is_some());
            self.wake();
        }
    }

    /// The oldest event that keying has not heard of.
    pub(super) fn pop_event(&mut self) -> Option<SaEvent> {
        self.events.pop()
    }

    /// Paths are others now; tasks that wait are not woken.
    pub(super) fn move_epoch(&mut self) {
        self.epoch += 1;
    }

    /// Paths may be others now, and what waited for an SA may go.
    pub(super) fn changed(&mut self) {
        self.epoch += 1;
        self.wake();
    }

    /// The task that serves `queue` is to be woken by `waker`.
    pub(super) fn serve(&mut self, queue: usize, waker: &Waker) {
        let served = &mut self.wakers[queue];
        if !served.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *served = Some(waker.clone());
        }
    }

    /// Tasks that wait are to look again, at whichever queue.
    pub(super) fn wake(&self) {
        self.wakers.iter().flatten().for_each(Waker::wake_by_ref);
    }

    /// The task that serves `queue` is to look again.
    pub(super) fn wake_one(&self, queue: usize) {
        self.wakers[queue].iter().for_each(Waker::wake_by_ref);
    }

    /// Whether an SA may use its numbers up to `number`: if not yet, they are written down.
    pub(super) fn may_use(&mut self, now: Instant, id: SaId, number: u64) -> bool {
        self.sad.find_mut(id).is_some_and(|sa| self.memory.may_use(now, sa, number))
    }

    pub(super) fn take_numbers(&mut self, id: SaId, packets: u32) {
        if let Some(Sa { sequence: Sequence::Send(numbers), .. }) = self.sad.find_mut(id) {
            numbers.take(packets);
        }
    }

    /// Takes note of packets that are authentic, unless one of them is not new.
    pub(super) fn accept(&mut self, now: Instant, id: SaId, numbers: RangeInclusive<u64>) -> Result<(), Refusal> {
        let Some(sa) = self.sad.find_mut(id) else { return Err(Refusal::Mode) };
        let Sequence::Receive(window) = &sa.sequence else { return Err(Refusal::Mode) };
        if !sa.marks.cover(*numbers.end()) {
            // Nothing is written down for what is no new packet.
            if !numbers.clone().all(|number| window.is_new(number)) {
                return Err(Refusal::Replay);
            }
            if !self.memory.may_use(now, sa, *numbers.end()) {
                return Err(Refusal::Unwritten);
            }
        }
        let Sequence::Receive(window) = &mut sa.sequence else { return Err(Refusal::Mode) };
        if take_all(window, numbers) { Ok(()) } else { Err(Refusal::Replay) }
    }

    /// Counts what an SA did against its lifetime.
    pub(super) fn spend(&mut self, id: SaId, packets: u64, bytes: u64) {
        let Some(sa) = self.sad.find_mut(id) else { return };
        if let Some(reached) = sa.meter.spend(packets, bytes) {
            self.on_limit(id, reached);
        }
    }

    /// What came or is to leave at once is more than an SA has left, and the next may be as much: it would stand still
    /// without a word.
    pub(super) fn note_too_many(&mut self, id: SaId) {
        self.note_limit(id, ReachedLimit::Hard(Limit::Packets));
    }

    /// A limit is reached, by the count of the device or of this layer; each is told once.
    pub(super) fn note_limit(&mut self, id: SaId, reached: ReachedLimit) {
        if let Some(reached) = self.sad.find_mut(id).and_then(|sa| sa.meter.note(reached)) {
            self.on_limit(id, reached);
        }
    }

    pub(super) fn on_limit(&mut self, id: SaId, reached: ReachedLimit) {
        match reached {
            ReachedLimit::Soft(limit) => self.tell(SaEvent::SoftLimit { sa: id, limit }),
            ReachedLimit::Hard(limit) => self.retire(id, SaEvent::HardLimit { sa: id, limit }),
        }
    }

    /// No packet finds the SA any more: it is used up.
    pub(super) fn retire(&mut self, id: SaId, event: SaEvent) {
        self.sad.retire(id);
        self.epoch += 1;
        self.tell(event);
    }

    /// Gives the numbers of an SA to the device, which is to count them alone.
    ///
    /// # Errors
    /// If an earlier process gave them away, of which keying hears, or they cannot be written down.
    pub(super) fn lend(&mut self, id: SaId) -> Result<(), KeyingError> {
        let sa = self.sad.find_mut(id).ok_or(KeyingError::NotFound)?;
        let given = self.memory.give_away(sa);
        match given {
            Ok(()) => {
                self.sad.hide(id);
                self.changed();
            }
            Err(KeyingError::UsedUp) => {
                self.sad.retire(id);
                self.tell(SaEvent::SoftLimit { sa: id, limit: Limit::Packets });
            }
            Err(_) => {}
        }
        given
    }

    /// An SA goes on without the device. Its numbers go on where the device can have been at most; of one that is lent, nobody
    /// knows where that is.
    pub(super) fn go_on_in_software(&mut self, id: SaId) {
        let Some(sa) = self.sad.find_mut(id) else { return };
        sa.offload = None;
        if sa.lent {
            self.sad.retire(id);
        }
        self.tell(SaEvent::OffloadLost { sa: id });
        self.epoch += 1;
    }

    /// A packet has left by an SA, with these Ethernet addresses.
    pub(super) fn note_sent(&mut self, now: Instant, id: SaId, ethernet: Option<[u8; ETHERNET - 2]>) {
        let wanted = |sa: &&mut Sa| sa.params.keep_alive.is_some() && sa.params.encapsulation.is_some();
        let (Some(sa), Some(ethernet)) = (self.sad.find_mut(id).filter(wanted), ethernet) else { return };
        // The alarm rings for the packet before, and is put on then: not for each packet.
        if sa.quiet.replace(Quiet { since: now, ethernet }).is_none() {
            self.sad.note_deadline(id);
        }
    }

    /// A router says that packets of an SA are too big.
    pub(super) fn note_too_big(&mut self, now: Instant, TooBig { mtu, id }: TooBig) {
        if let Some(sa) = self.sad.find_mut(id)
            && sa.path_mtu.is_none_or(|before| mtu < before.bytes)
        {
            sa.path_mtu = Some(PathMtu { bytes: mtu, learned: now });
            self.sad.note_deadline(id);
            self.counters.in_path_mtu += 1;
            self.changed();
        }
    }

    /// The next SA that has something to do by `now`: a lifetime ends, a path may have become wider, or a translator needs to
    /// hear of it.
    pub(super) fn next_due(&mut self, now: Instant) -> Option<DueWork> {
        let id = self.sad.next_due(now)?;
        let sa = self.sad.find_mut(id)?;
        let reached = sa.meter.handle_timeout(now);
        let (widened, silent) = (sa.forget_path_mtu(now), sa.was_silent(now));
        self.sad.note_deadline(id);
        Some(DueWork { sa: id, reached, widened, silent })
    }

    /// Writes numbers down as they are, not ahead.
    pub(super) fn settle_numbers(&mut self) {
        self.memory.settle(&mut self.sad);
    }
}

impl Drop for Sas {
    fn drop(&mut self) {
        self.settle_numbers();
    }
}

/// Takes note of numbers, unless one of them is not new.
fn take_all(window: &mut ReplayWindow, mut numbers: RangeInclusive<u64>) -> bool {
    if numbers.start() == numbers.end() {
        return window.accept(*numbers.start());
    }
    numbers.clone().all(|number| window.is_new(number)) && numbers.all(|number| window.accept(number))
}
