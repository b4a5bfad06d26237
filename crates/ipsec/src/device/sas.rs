//! The table of SAs, which packets, timers and the device change.

use super::events::SaEventQueue;
use super::numbers;
use super::path_mtu::TooBig;
use super::receive::ReceiveRefusal;
use crate::counters::IpsecCounters;
use crate::keying::{KeyingError, SaEvent, SaId};
use crate::memory::KeyMemory;
use crate::sad::{LastSent, Sa, SaPathMtu, Sad, Sequence};
use core::ops::RangeInclusive;
use core::task::Waker;
use offload_api::{Direction, Lifetime, Limit, SaParams};
use offload_base::Instant;
use offload_esp::{ETHERNET, ReachedLimit, ReplayWindow};

/// The SAs of a layer with their numbers and events, and the tasks to wake after a change.
///
/// Invariant: if a key has a store, a number is used only after the store has recorded it. When an SA reaches its hard
/// limit or last number, the same call retires the SA, reports an event and advances the epoch, so that cached SA
/// choices are recomputed.
#[derive(Debug)]
pub(super) struct SaTable {
    sad: Sad,
    memory: KeyMemory,
    events: SaEventQueue,
    /// Number of SAs per queue.
    sas_per_queue: Vec<usize>,
    /// The task that serves each queue.
    wakers: Vec<Option<Waker>>,
    /// Advances with each change of policies or SAs.
    epoch: u64,
    counters: IpsecCounters,
}

/// The due work of an SA.
pub(super) struct DueWork {
    pub(super) sa: SaId,
    /// The limit of its lifetime that was reached.
    pub(super) reached: Option<ReachedLimit>,
    /// Whether its path MTU expired, so that larger packets are tried.
    pub(super) path_mtu_expired: bool,
    /// The Ethernet addresses of the keep-alive to send.
    pub(super) keep_alive: Option<[u8; ETHERNET - 2]>,
}

impl SaTable {
    pub(super) fn new(queues: usize, memory: KeyMemory) -> SaTable {
        SaTable {
            sad: Sad::default(),
            memory,
            events: SaEventQueue::default(),
            sas_per_queue: vec![0; queues],
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

    /// Adds an SA with a given queue.
    pub(super) fn add(&mut self, now: Instant, queue: usize, mut params: SaParams) -> Result<SaId, KeyingError> {
        let marks = self.memory.continue_after_mark(&mut params)?;
        // A sending key may be added once only, whatever its first number, because only a store can prove which numbers
        // a key has used.
        let sends = (params.direction == Direction::Transmit).then(|| params.key.clone());
        let id = self.sad.add(now, params)?;
        if let Some(Err(refused)) = sends.map(|key| self.memory.used().begin(&key)) {
            self.sad.remove(id);
            return Err(refused);
        }
        self.sad.find_mut(id).into_iter().for_each(|sa| (sa.queue, sa.marks) = (queue, marks));
        self.sas_per_queue[queue] += 1;
        Ok(id)
    }

    /// Gives an SA a new lifetime.
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

    /// Removes an SA that the device no longer has.
    pub(super) fn remove(&mut self, id: SaId) {
        numbers::pass_numbers_on(&mut self.sad, id);
        if let Some(sa) = self.sad.remove(id) {
            self.sas_per_queue[sa.queue] -= 1;
        }
        self.changed();
    }

    /// Returns the queue with the fewest SAs.
    pub(super) fn least_used_queue(&self) -> usize {
        (0..self.sas_per_queue.len()).min_by_key(|queue| self.sas_per_queue[*queue]).unwrap_or(0)
    }

    /// Counts the event if it has a counter, and queues it unless an equal event waits.
    pub(super) fn report(&mut self, event: SaEvent) {
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

    /// Returns the oldest event.
    pub(super) fn pop_event(&mut self) -> Option<SaEvent> {
        self.events.pop()
    }

    /// Invalidates cached SA choices, so that they are recomputed. Wakes no task.
    pub(super) fn invalidate_paths(&mut self) {
        self.epoch += 1;
    }

    /// Invalidates cached SA choices and wakes all tasks, because packets that waited for an SA may leave now.
    pub(super) fn changed(&mut self) {
        self.epoch += 1;
        self.wake();
    }

    /// Registers the task that serves `queue`.
    pub(super) fn set_waker(&mut self, queue: usize, waker: &Waker) {
        let served = &mut self.wakers[queue];
        if !served.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *served = Some(waker.clone());
        }
    }

    /// Wakes the tasks of all queues.
    pub(super) fn wake(&self) {
        self.wakers.iter().flatten().for_each(Waker::wake_by_ref);
    }

    /// Wakes the task of `queue`.
    pub(super) fn wake_one(&self, queue: usize) {
        self.wakers[queue].iter().for_each(Waker::wake_by_ref);
    }

    /// Tests whether an SA may use its numbers up to `number`, and writes them to the store if necessary.
    pub(super) fn may_use(&mut self, now: Instant, id: SaId, number: u64) -> bool {
        self.sad.find_mut(id).is_some_and(|sa| self.memory.may_use(now, sa, number))
    }

    /// Consumes numbers for `packets` packets.
    pub(super) fn take_numbers(&mut self, id: SaId, packets: u32) {
        if let Some(Sa { sequence: Sequence::Send(numbers), .. }) = self.sad.find_mut(id) {
            numbers.take(packets);
        }
    }

    /// Records the numbers of authentic packets as received, unless one of them is a replay.
    pub(super) fn accept(
        &mut self,
        now: Instant,
        id: SaId,
        numbers: RangeInclusive<u64>,
    ) -> Result<(), ReceiveRefusal> {
        let Some(sa) = self.sad.find_mut(id) else { return Err(ReceiveRefusal::Mode) };
        let Sequence::Receive(window) = &sa.sequence else { return Err(ReceiveRefusal::Mode) };
        if !sa.marks.cover(*numbers.end()) {
            // A replay must not cause a write to the store.
            if !numbers.clone().all(|number| window.is_new(number)) {
                return Err(ReceiveRefusal::Replay);
            }
            if !self.memory.may_use(now, sa, *numbers.end()) {
                return Err(ReceiveRefusal::Unwritten);
            }
        }
        let Sequence::Receive(window) = &mut sa.sequence else { return Err(ReceiveRefusal::Mode) };
        if take_all(window, numbers) { Ok(()) } else { Err(ReceiveRefusal::Replay) }
    }

    /// Charges packets and bytes to an SA's lifetime.
    pub(super) fn spend(&mut self, id: SaId, packets: u64, bytes: u64) {
        let Some(sa) = self.sad.find_mut(id) else { return };
        if let Some(reached) = sa.meter.spend(packets, bytes) {
            self.on_limit(id, reached);
        }
    }

    /// Ends an SA as used up because the next packet, or packets joined or segmented together, exceed the rest of its
    /// lifetime. Without this the SA would refuse every packet and report no event.
    pub(super) fn note_too_many(&mut self, id: SaId) {
        self.note_limit(id, ReachedLimit::Hard(Limit::Packets));
    }

    /// Applies a limit counted by the device or by this layer. Each limit is reported once.
    pub(super) fn note_limit(&mut self, id: SaId, reached: ReachedLimit) {
        if let Some(reached) = self.sad.find_mut(id).and_then(|sa| sa.meter.note(reached)) {
            self.on_limit(id, reached);
        }
    }

    pub(super) fn on_limit(&mut self, id: SaId, reached: ReachedLimit) {
        match reached {
            ReachedLimit::Soft(limit) => self.report(SaEvent::SoftLimit { sa: id, limit }),
            ReachedLimit::Hard(limit) => self.retire(id, SaEvent::HardLimit { sa: id, limit }),
        }
    }

    /// Retires an SA and reports an event.
    pub(super) fn retire(&mut self, id: SaId, event: SaEvent) {
        self.sad.retire(id);
        self.epoch += 1;
        self.report(event);
    }

    /// Hands the numbers of an SA over to the device, which alone counts them from now on.
    ///
    /// # Errors
    /// If an earlier process lent the SA, which is also reported as `SoftLimit`; or if the store cannot be written.
    pub(super) fn lend(&mut self, id: SaId) -> Result<(), KeyingError> {
        let sa = self.sad.find_mut(id).ok_or(KeyingError::NotFound)?;
        let given = self.memory.write_last_number(sa);
        match given {
            Ok(()) => {
                // The host's own packets must use another SA from now on.
                self.sad.hide(id);
                self.changed();
            }
            Err(KeyingError::UsedUp) => {
                self.sad.retire(id);
                self.report(SaEvent::SoftLimit { sa: id, limit: Limit::Packets });
            }
            Err(_) => {}
        }
        given
    }

    /// Continues an SA without the device, from the highest number that the device can have used. A lent SA is retired,
    /// because its highest number is unknown.
    pub(super) fn continue_in_software(&mut self, id: SaId) {
        let Some(sa) = self.sad.find_mut(id) else { return };
        sa.offload = None;
        if sa.lent {
            self.sad.retire(id);
        }
        self.report(SaEvent::OffloadLost { sa: id });
        self.epoch += 1;
    }

    /// Records that a packet with these Ethernet addresses was sent through an SA, if the SA has a keep-alive and UDP
    /// encapsulation.
    pub(super) fn note_sent(&mut self, now: Instant, id: SaId, ethernet: Option<[u8; ETHERNET - 2]>) {
        let wanted = |sa: &&mut Sa| sa.params.keep_alive.is_some() && sa.params.encapsulation.is_some();
        let (Some(sa), Some(ethernet)) = (self.sad.find_mut(id).filter(wanted), ethernet) else { return };
        // The timer is not moved for each packet. When it fires, it is set again from the time of the last packet.
        if sa.quiet.replace(LastSent { since: now, ethernet }).is_none() {
            self.sad.note_deadline(id);
        }
    }

    /// Lowers the path MTU of an SA after a router's message.
    pub(super) fn note_too_big(&mut self, now: Instant, TooBig { mtu, id }: TooBig) {
        if let Some(sa) = self.sad.find_mut(id)
            && sa.path_mtu.is_none_or(|before| mtu < before.bytes)
        {
            sa.path_mtu = Some(SaPathMtu { bytes: mtu, learned: now });
            self.sad.note_deadline(id);
            self.counters.in_path_mtu += 1;
            self.changed();
        }
    }

    /// Returns the due work of the next SA, or `None` if no timer is due at `now`.
    pub(super) fn next_due(&mut self, now: Instant) -> Option<DueWork> {
        let id = self.sad.next_due(now)?;
        let sa = self.sad.find_mut(id)?;
        let reached = sa.meter.handle_timeout(now);
        let (path_mtu_expired, keep_alive) = (sa.forget_path_mtu(now), sa.take_keep_alive(now));
        // These calls change the deadlines, so the timer entry is updated before the next call looks for due work.
        self.sad.note_deadline(id);
        Some(DueWork { sa: id, reached, path_mtu_expired, keep_alive })
    }

    /// Writes the exact numbers of all SAs to the store.
    pub(super) fn write_exact_numbers(&mut self) {
        self.memory.write_exact_numbers(&mut self.sad);
    }
}

impl Drop for SaTable {
    fn drop(&mut self) {
        self.write_exact_numbers();
    }
}

/// Records all numbers as received, unless one of them is a replay.
fn take_all(window: &mut ReplayWindow, mut numbers: RangeInclusive<u64>) -> bool {
    if numbers.start() == numbers.end() {
        return window.accept(*numbers.start());
    }
    numbers.clone().all(|number| window.is_new(number)) && numbers.all(|number| window.accept(number))
}
