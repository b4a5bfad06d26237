//! A device with several queues, a shard of the host at each: one IPsec layer between all of them.
//!
//! What the shards share is shared, for it cannot be counted in several places: SAs, policies, windows, lifetimes, and the
//! fragments that wait. An SA is at one queue. By that its packets leave, whichever shard sends them, so that the
//! device makes one row of its numbers; and there the device has it, if it has it at all, and brings what it opens. What
//! is opened goes to the shard that RSS would have brought it to, had it come plain. Successors stay where their
//! predecessors are.
//!
//! A shard that found no room at another's queue is woken by the shard that serves that one, when there is some.
//!
//! Invariant: whatever is done for one queue, those who serve the others hear of it if there is something for them.

use super::transmit::flow_of;
use super::{DROPPED_A_CALL, ONLY, SecureDevice, packet_of};
use crate::keying::{Keying, KeyingError, SaAdded, SaEvent, SaId, SaUse};
use crate::memory::KeyMemory;
use bytes::BytesMut;
use core::any::Any;
use core::cell::Cell;
use core::net::IpAddr;
use core::task::Waker;
use offload_api::ipsec::Packet;
use offload_api::rss::INDIRECTION_ENTRIES;
use offload_api::{
    Action, ContextRefusal, Contexts, DeviceEvent, Direction, EspKey, FlowKey, Handle, IpsecDevice, Lifetime,
    NetDevice, NoRecords, PathCaps, Policy, RecordSource, RssDevice, RxPacket, SaParams, Selector, TransmitResult,
    TxPacket,
};
use offload_base::Instant;
use offload_base::counters::CounterSet;
use offload_base::time::earliest;
use offload_esp::EspAt;
use offload_formats::protocol;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A queue of the device, and what waits at it.
///
/// Invariant: wrapped packets reach the device in the order of their numbers, those in the backlog first.
pub(super) struct Queue {
    pub(super) inner: Box<dyn NetDevice>,
    /// Packets that are wrapped and wait for room in the device: what is left of one that was cut.
    backlog: VecDeque<(FlowKey, TxPacket)>,
    /// Packets for the shard of this queue that were opened at another.
    opened: VecDeque<RxPacket>,
    /// ESP packets whose SA came after them, to be opened.
    released: VecDeque<BytesMut>,
    /// A flow of another shard for which there was no room.
    awaited: Cell<Option<FlowKey>>,
    /// Something was posted since the doorbell rang.
    unflushed: bool,
}

impl Queue {
    pub(super) fn new(inner: Box<dyn NetDevice>) -> Queue {
        Queue {
            inner,
            backlog: VecDeque::new(),
            opened: VecDeque::new(),
            released: VecDeque::new(),
            awaited: Cell::new(None),
            unflushed: false,
        }
    }

    /// Hands over a packet that is, or will be, protected; the calling shard may serve another queue.
    pub(super) fn post(&mut self, now: Instant, packet: TxPacket) -> TransmitResult {
        self.unflushed = true;
        self.inner.transmit(now, packet, &NoRecords)
    }

    /// Queues a wrapped packet behind those that wait for room.
    pub(super) fn push(&mut self, flow: FlowKey, packet: TxPacket) {
        self.backlog.push_back((flow, packet));
    }

    /// Has an ESP packet opened when the shard of this queue asks for packets next.
    pub(super) fn release(&mut self, frame: BytesMut) {
        self.released.push_back(frame);
    }

    /// The room for a packet behind the backlog.
    pub(super) fn room(&self, flow: &FlowKey) -> usize {
        if self.backlog.is_empty() { self.inner.room(flow) } else { 0 }
    }

    /// Hands wrapped packets to the device as long as it has room; false if some are left.
    fn drain(&mut self, now: Instant) -> bool {
        while let Some((flow, _)) = self.backlog.front() {
            if self.inner.room(flow) == 0 {
                return false;
            }
            let Some((_, packet)) = self.backlog.pop_front() else { break };
            // A packet the device does not take is a packet lost on its way; it has counted it.
            let _lost_if_dropped = self.post(now, packet);
        }
        true
    }
}

impl SecureDevice {
    /// An IPsec layer over all queues of a device, without SAs and policies: what the shards of a host are to have in
    /// place of the drivers, in the same order. Each has the layer's [`keying`](crate::KeyedDevice::keying), and it is the same one.
    /// As long as somebody uses one of them, all are to be served: packets of any shard leave by any queue.
    ///
    /// ```
    /// use ipsec::{KeyedDevice, SecureDevice};
    /// use nic_sim::{NicConfig, multi_queue_nic};
    /// use offload_api::{Direction, Selector};
    ///
    /// let (_device, drivers) = multi_queue_nic(NicConfig { queues: 4, ..NicConfig::default() });
    /// let mut queues = SecureDevice::of_queues(drivers.into_iter().map(|driver| Box::new(driver) as _).collect());
    /// assert_eq!(queues.len(), 4);
    /// let policy = ipsec::KeyFile::default();
    /// policy.apply(offload_base::Instant::ZERO, queues[3].keying().unwrap(), &[])?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn of_queues(queues: Vec<Box<dyn NetDevice>>) -> Vec<Box<dyn NetDevice>> {
        SecureDevice::of_queues_with(queues, KeyMemory::new())
    }

    /// The same with a memory of keys that others share, or that outlives the process: what a layer with a real peer needs.
    ///
    /// See [`KeyMemory`] for an example.
    pub fn of_queues_with(queues: Vec<Box<dyn NetDevice>>, memory: KeyMemory) -> Vec<Box<dyn NetDevice>> {
        let count = queues.len();
        let layer = SecureDevice::around(queues, memory);
        if count == 1 {
            return vec![Box::new(layer)];
        }
        let layer = Arc::new(Mutex::new(layer));
        (0..count).map(|queue| Box::new(SecureQueue { layer: layer.clone(), queue }) as _).collect()
    }

    pub(super) fn path_at(&self, queue: usize, flow: &FlowKey) -> PathCaps {
        let decision = self.decide(&packet_of(flow));
        let leaves_by = self.home(decision.sa).unwrap_or(queue);
        let caps = self.queues[leaves_by].inner.path(flow);
        // All of them only grow, so their sum moves when one of them does, and when a flow comes to leave by another.
        let others = self.queues.iter().enumerate().filter(|(at, _)| *at != leaves_by);
        let others: u64 = others.map(|(_, other)| other.inner.path(flow).epoch).sum();
        let caps = PathCaps { epoch: caps.epoch + others + self.sas.epoch(), ..caps };
        match decision.action {
            Some(Action::Protect(_)) => self.protected_path(flow, decision.sa, caps),
            _ => caps,
        }
    }

    pub(super) fn room_at(&self, queue: usize, flow: &FlowKey) -> usize {
        let decision = self.decide(&packet_of(flow));
        let Some(Action::Protect(_)) = decision.action else { return self.queues[queue].inner.room(flow) };
        let home = self.home(decision.sa).unwrap_or(queue);
        let leaves_by = &self.queues[home];
        let room = leaves_by.inner.room(flow);
        // A packet may become many. One is taken at a time, then; what does not fit at once waits here.
        let room = match decision.sa {
            _ if !leaves_by.backlog.is_empty() => 0,
            sa if self.is_cut_by_device(sa) => room,
            _ => room.min(1),
        };
        if room == 0 && home != queue {
            leaves_by.awaited.set(Some(*flow));
        }
        room
    }

    /// The same of packets that ask for a rate, which those that are protected never do.
    pub(super) fn room_paced_at(&self, queue: usize, flow: &FlowKey) -> usize {
        match self.decide(&packet_of(flow)).action {
            Some(Action::Protect(_)) => self.room_at(queue, flow),
            _ => self.queues[queue].inner.room_paced(flow),
        }
    }

    pub(super) fn transmit_at(
        &mut self,
        now: Instant,
        queue: usize,
        packet: TxPacket,
        source: &dyn RecordSource,
    ) -> TransmitResult {
        self.drain_backlog(now, queue);
        self.send(now, queue, packet, source)
    }

    pub(super) fn flush_at(&mut self, now: Instant, queue: usize) {
        for at in 0..self.queues.len() {
            if at == queue || self.queues[at].unflushed {
                self.drain_backlog(now, at);
                self.queues[at].unflushed = false;
                self.queues[at].inner.flush(now);
            }
        }
    }

    pub(super) fn receive_at(&mut self, now: Instant, queue: usize) -> Option<RxPacket> {
        self.drain_backlog(now, queue);
        if let Some(packet) = self.queues[queue].opened.pop_front() {
            return Some(packet);
        }
        while let Some(frame) = self.queues[queue].released.pop_front() {
            let at = EspAt::find(&frame);
            if let Some(packet) = at.and_then(|at| self.open(now, queue, frame, &at)) {
                return Some(packet);
            }
        }
        // Whoever sends what is dropped here does not keep the stack from its other work.
        for _ in 0..DROPPED_A_CALL {
            let packet = self.queues[queue].inner.receive(now)?;
            if let Some(packet) = self.take_in(now, queue, packet) {
                return Some(packet);
            }
        }
        None
    }

    pub(super) fn poll_event_at(&mut self, queue: usize) -> Option<DeviceEvent> {
        self.offload.hear(&mut self.queues, &mut self.sas, queue);
        let event = self.queues[queue].inner.poll_event();
        if event == Some(DeviceEvent::Reset) {
            // Which SAs it had is told there.
            self.offload.hear(&mut self.queues, &mut self.sas, queue);
        }
        event
    }

    pub(super) fn arm_at(&mut self, queue: usize, waker: &Waker) -> bool {
        self.sas.serve(queue, waker);
        let served = &mut self.queues[queue];
        let idle = served.opened.is_empty() && served.released.is_empty() && served.inner.arm(waker);
        self.tell_of_room(queue);
        idle
    }

    pub(super) fn next_event_at(&self, queue: usize) -> Option<Instant> {
        let own = self.queues[queue].inner.next_event();
        let waiting = earliest(self.fragments.next_event(), self.held.next_event());
        earliest(earliest(own, waiting), self.sas.sad().next_event())
    }

    pub(super) fn handle_timeout_at(&mut self, now: Instant, queue: usize) {
        let inner = &mut self.queues[queue].inner;
        if inner.next_event().is_some_and(|at| at <= now) {
            inner.handle_timeout(now);
        }
        self.counters.in_reassembly_failed += self.fragments.expire(now);
        self.counters.in_no_states += self.held.expire(now);
        self.handle_sa_timeouts(now);
    }

    pub(super) fn count_at(&self, queue: usize, set: &mut CounterSet) {
        if queue == ONLY {
            set.add(&self.counters());
        }
        self.queues[queue].inner.count(set);
    }

    /// The queue that an SA's packets leave by.
    pub(super) fn home(&self, sa: Option<SaId>) -> Option<usize> {
        Some(self.sas.find(sa?)?.queue)
    }

    /// Hands wrapped packets to a queue as long as it has room.
    pub(super) fn drain_backlog(&mut self, now: Instant, queue: usize) {
        if self.queues[queue].drain(now) {
            self.tell_of_room(queue);
        }
    }

    /// A packet that was opened at `queue`: for the shard there, or for the one that it would have come to had it been
    /// plain. The parts of a packet are to meet, and nothing but their addresses is in all of them.
    pub(super) fn hand_over(
        &mut self,
        queue: usize,
        id: SaId,
        packet: RxPacket,
        selectors: &Packet,
        fragment: bool,
    ) -> Option<RxPacket> {
        if self.queues.len() == 1 {
            return Some(packet);
        }
        let to = if fragment { ONLY } else { self.queue_of_flow(id, selectors).unwrap_or(queue) };
        let other = &mut self.queues[to];
        // Too much for one that nobody serves: shards find whose it is among themselves.
        if to == queue || other.opened.len() >= MOST_OPENED {
            return Some(packet);
        }
        other.opened.push_back(packet);
        // Where others wait, it was woken, and has not looked yet.
        if other.opened.len() == 1 {
            self.sas.wake_one(to);
        }
        None
    }

    /// The queue that plain packets like this one of an SA come to. A hash for each queue to find it is dear, and most SAs have few flows: the last
    /// one's is remembered.
    fn queue_of_flow(&mut self, id: SaId, packet: &Packet) -> Option<usize> {
        let hashed = packet.ports.is_some() && matches!(packet.protocol, protocol::TCP | protocol::UDP);
        let flow = hashed.then(|| flow_of(packet).reversed())?;
        let sa = self.sas.find_mut(id)?;
        if let Some((last, queue)) = &sa.last_flow
            && *last == flow
        {
            return Some(*queue);
        }
        let queue = self.queues.iter().position(|queue| queue.inner.serves(&flow))?;
        sa.last_flow = Some((flow, queue));
        Some(queue)
    }

    /// Wakes those who serve other queues and wait for room at this one, if there is some.
    fn tell_of_room(&self, queue: usize) {
        let awaits = &self.queues[queue];
        if awaits.awaited.get().is_some_and(|flow| awaits.room(&flow) > 0) {
            awaits.awaited.set(None);
            self.sas.wake();
        }
    }
}

/// One queue of a device under an IPsec layer that is around all of them.
pub(crate) struct SecureQueue {
    layer: Arc<Mutex<SecureDevice>>,
    pub(super) queue: usize,
}

impl SecureQueue {
    pub(super) fn layer(&self) -> MutexGuard<'_, SecureDevice> {
        // A panic elsewhere leaves a layer that is whole between calls.
        self.layer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl NetDevice for SecureQueue {
    fn path(&self, flow: &FlowKey) -> PathCaps {
        self.layer().path_at(self.queue, flow)
    }

    fn room(&self, flow: &FlowKey) -> usize {
        self.layer().room_at(self.queue, flow)
    }

    fn room_paced(&self, flow: &FlowKey) -> usize {
        self.layer().room_paced_at(self.queue, flow)
    }

    fn transmit(&mut self, now: Instant, packet: TxPacket, source: &dyn RecordSource) -> TransmitResult {
        self.layer().transmit_at(now, self.queue, packet, source)
    }

    fn flush(&mut self, now: Instant) {
        self.layer().flush_at(now, self.queue);
    }

    fn receive(&mut self, now: Instant) -> Option<RxPacket> {
        self.layer().receive_at(now, self.queue)
    }

    fn poll_event(&mut self) -> Option<DeviceEvent> {
        self.layer().poll_event_at(self.queue)
    }

    fn serves(&self, flow: &FlowKey) -> bool {
        self.layer().queues[self.queue].inner.serves(flow)
    }

    fn arm(&mut self, waker: &Waker) -> bool {
        self.layer().arm_at(self.queue, waker)
    }

    fn next_event(&self) -> Option<Instant> {
        self.layer().next_event_at(self.queue)
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.layer().handle_timeout_at(now, self.queue);
    }

    fn count(&self, set: &mut CounterSet) {
        self.layer().count_at(self.queue, set);
    }

    /// It is this layer's.
    fn ipsec(&mut self) -> Option<&mut dyn IpsecDevice> {
        None
    }

    fn rss(&mut self) -> Option<&mut dyn RssDevice> {
        self.layer().queues[self.queue].inner.rss()?;
        Some(self)
    }

    fn contexts(&mut self) -> Option<&mut dyn Contexts> {
        self.layer().queues[self.queue].inner.contexts()?;
        Some(self)
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

impl RssDevice for SecureQueue {
    fn queue(&self) -> u16 {
        self.queue as u16
    }

    fn queues(&self) -> u16 {
        self.layer().queues.len() as u16
    }

    fn set_indirection(&mut self, table: &[u16; INDIRECTION_ENTRIES]) -> Result<(), ContextRefusal> {
        self.layer().queues[self.queue].inner.rss().ok_or(ContextRefusal::Unsupported)?.set_indirection(table)
    }
}

impl Keying for SecureQueue {
    fn add_sa(&mut self, now: Instant, sa: SaParams) -> Result<SaAdded, KeyingError> {
        self.layer().add_sa(now, sa)
    }

    fn update_sa(&mut self, now: Instant, sa: SaId, lifetime: Lifetime) -> Result<(), KeyingError> {
        self.layer().update_sa(now, sa, lifetime)
    }

    fn rekey_sa(&mut self, now: Instant, sa: SaId, spi: u32, key: EspKey) -> Result<SaAdded, KeyingError> {
        self.layer().rekey_sa(now, sa, spi, key)
    }

    fn delete_sa(&mut self, sa: SaId) -> Result<(), KeyingError> {
        self.layer().delete_sa(sa)
    }

    fn find_sa(&self, direction: Direction, spi: u32, source: IpAddr, destination: IpAddr) -> Option<SaId> {
        self.layer().find_sa(direction, spi, source, destination)
    }

    fn sa_use(&self, sa: SaId) -> Option<SaUse> {
        self.layer().sa_use(sa)
    }

    fn lend_sas(&mut self, direction: Direction, reqid: u32) -> Result<Vec<Handle>, KeyingError> {
        self.layer().lend_sas(direction, reqid)
    }

    fn add_policy(&mut self, policy: Policy) -> Result<(), KeyingError> {
        self.layer().add_policy(policy)
    }

    fn delete_policy(&mut self, direction: Direction, selector: &Selector, priority: u32) -> Result<(), KeyingError> {
        self.layer().delete_policy(direction, selector, priority)
    }

    fn policies(&self, direction: Direction) -> Vec<Policy> {
        self.layer().policies(direction)
    }

    fn set_default(&mut self, direction: Direction, bypass: bool) {
        self.layer().set_default(direction, bypass);
    }

    fn poll_sa_event(&mut self) -> Option<SaEvent> {
        self.layer().poll_sa_event()
    }

    fn write_numbers(&mut self) {
        self.layer().write_numbers();
    }
}

/// Packets that wait for a shard: as many as shards hand to each other.
const MOST_OPENED: usize = 1024;
