//! One IPsec layer around all queues of a device, each served by a shard of the host.
//!
//! The shards share SAs, policies, replay windows, lifetimes and the waiting fragments, because these cannot be split.
//! Each SA belongs to one queue: all its packets leave there, whichever shard sends them, so that the device numbers
//! them in one sequence. If the SA is offloaded, the device holds it at that queue, and delivers the packets that it
//! decrypts ("opens") at that queue. An opened packet goes to the shard that RSS would have chosen for the plain
//! packet. An SA that replaces another by rekeying keeps the queue of the old SA.
//!
//! A shard that finds no room at another shard's queue is woken by the other shard when there is room.
//!
//! Invariant: if the work for one queue produces work for another, the other queue's task is woken.

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

/// A device queue with its backlog.
///
/// Invariant: wrapped packets reach the device in the order of their numbers, the backlog first.
pub(super) struct DeviceQueue {
    pub(super) inner: Box<dyn NetDevice>,
    /// Wrapped packets that wait for room in the device: the rest of a segmented packet.
    backlog: VecDeque<(FlowKey, TxPacket)>,
    /// Packets for this queue's shard that were opened at another queue.
    opened: VecDeque<RxPacket>,
    /// ESP packets that arrived before their SA and can be opened now.
    released: VecDeque<BytesMut>,
    /// A flow of another shard that found no room here.
    awaited: Cell<Option<FlowKey>>,
    /// Whether packets were posted since the last flush.
    unflushed: bool,
}

impl DeviceQueue {
    pub(super) fn new(inner: Box<dyn NetDevice>) -> DeviceQueue {
        DeviceQueue {
            inner,
            backlog: VecDeque::new(),
            opened: VecDeque::new(),
            released: VecDeque::new(),
            awaited: Cell::new(None),
            unflushed: false,
        }
    }

    /// Posts a protected packet, or one that the device will protect. The calling shard may serve another queue.
    pub(super) fn post(&mut self, now: Instant, packet: TxPacket) -> TransmitResult {
        self.unflushed = true;
        self.inner.transmit(now, packet, &NoRecords)
    }

    /// Queues a wrapped packet after the backlog.
    pub(super) fn push(&mut self, flow: FlowKey, packet: TxPacket) {
        self.backlog.push_back((flow, packet));
    }

    /// Queues an ESP packet to be opened when this queue's shard receives next.
    pub(super) fn release(&mut self, frame: BytesMut) {
        self.released.push_back(frame);
    }

    /// Returns the device's room for packets of `flow`, or 0 while the backlog is not empty.
    pub(super) fn room(&self, flow: &FlowKey) -> usize {
        if self.backlog.is_empty() { self.inner.room(flow) } else { 0 }
    }

    /// Posts wrapped packets while the device has room. Returns false if some are left.
    fn drain(&mut self, now: Instant) -> bool {
        while let Some((flow, _)) = self.backlog.front() {
            if self.inner.room(flow) == 0 {
                return false;
            }
            let Some((_, packet)) = self.backlog.pop_front() else { break };
            // A refused packet counts as lost on the wire; the device has counted it.
            let _ = self.post(now, packet);
        }
        true
    }
}

impl SecureDevice {
    /// Creates an IPsec layer over all queues of a device, without SAs and policies. Returns the layer's queues in the
    /// order of `queues`; use them in place of `queues`. The [`keying`](crate::KeyedDevice::keying) of every queue
    /// controls the same SAs and policies. All queues must be served as long as one is used, because a shard's packets
    /// may leave by any queue.
    pub fn for_queues(queues: Vec<Box<dyn NetDevice>>) -> Vec<Box<dyn NetDevice>> {
        SecureDevice::for_queues_with(queues, KeyMemory::new())
    }

    /// Creates the layer with a shared or persistent memory of used keys. Required for a layer with a real peer.
    pub fn for_queues_with(queues: Vec<Box<dyn NetDevice>>, memory: KeyMemory) -> Vec<Box<dyn NetDevice>> {
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
        // The path is that of the SA's queue, because the packets leave there.
        let leaves_by = self.home(decision.sa).unwrap_or(queue);
        let caps = self.queues[leaves_by].inner.path(flow);
        // Epochs only grow, so the sum over all queues changes if any of them does; the epoch of the SAs changes if the
        // flow may have changed its queue.
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
        // Software may turn one packet into many. So one packet is accepted at a time, and its rest waits in the
        // backlog.
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

    /// Returns the room for paced packets. Protected packets are never paced.
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
            // This shard may have posted at other queues, and no other task knows of these packets.
            if at == queue || self.queues[at].unflushed {
                self.drain_backlog(now, at);
                self.queues[at].unflushed = false;
                self.queues[at].inner.flush(now);
            }
        }
    }

    pub(super) fn receive_at(&mut self, now: Instant, queue: usize) -> Option<RxPacket> {
        self.drain_backlog(now, queue);
        // Packets opened at other queues come first, because they arrived before.
        if let Some(packet) = self.queues[queue].opened.pop_front() {
            return Some(packet);
        }
        while let Some(frame) = self.queues[queue].released.pop_front() {
            let at = EspAt::find(&frame);
            if let Some(packet) = at.and_then(|at| self.open(now, queue, frame, &at)) {
                return Some(packet);
            }
        }
        // A flood of packets that are dropped must not keep the stack from its other work.
        for _ in 0..DROPPED_A_CALL {
            let packet = self.queues[queue].inner.receive(now)?;
            if let Some(packet) = self.process_received(now, queue, packet) {
                return Some(packet);
            }
        }
        None
    }

    pub(super) fn poll_event_at(&mut self, queue: usize) -> Option<DeviceEvent> {
        self.offload.apply_device_events(&mut self.queues, &mut self.sas, queue);
        let event = self.queues[queue].inner.poll_event();
        if event == Some(DeviceEvent::Reset) {
            // After a reset, the device's SA events name the SAs that were lost.
            self.offload.apply_device_events(&mut self.queues, &mut self.sas, queue);
        }
        event
    }

    pub(super) fn arm_at(&mut self, queue: usize, waker: &Waker) -> bool {
        self.sas.set_waker(queue, waker);
        // The task must not sleep while packets wait in `opened` or `released`, because no interrupt announces them.
        let served = &mut self.queues[queue];
        let idle = served.opened.is_empty() && served.released.is_empty() && served.inner.arm(waker);
        self.wake_if_room(queue);
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
        // Packets held until their SA exists, fragments, and SAs belong to the whole layer, so any queue's timeout
        // serves them.
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

    /// Returns the queue of an SA.
    pub(super) fn home(&self, sa: Option<SaId>) -> Option<usize> {
        Some(self.sas.find(sa?)?.queue)
    }

    /// Posts wrapped packets of a queue while the device has room.
    pub(super) fn drain_backlog(&mut self, now: Instant, queue: usize) {
        if self.queues[queue].drain(now) {
            self.wake_if_room(queue);
        }
    }

    /// Delivers a packet opened at `queue` to the shard that RSS would choose for the plain packet, or returns the
    /// packet if this shard must take it. All fragments go to one queue, because they must meet there and not all of
    /// them have ports.
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
        // Only the addresses are in every fragment of a packet.
        let to = if fragment { ONLY } else { self.queue_of_flow(id, selectors).unwrap_or(queue) };
        let other = &mut self.queues[to];
        // A full queue means that no task serves it. Shards also forward packets among themselves, so this shard can
        // take the packet.
        if to == queue || other.opened.len() >= MAX_OPENED {
            return Some(packet);
        }
        other.opened.push_back(packet);
        // If packets were waiting already, the task has been woken and has not polled yet.
        if other.opened.len() == 1 {
            self.sas.wake_one(to);
        }
        None
    }

    /// Returns the queue at which RSS delivers plain packets of a flow. Asking each queue costs a hash, and most SAs
    /// have few flows, so each SA caches its last flow's queue.
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

    /// Wakes the tasks of other queues if one of them waits for room at this queue and there is room.
    fn wake_if_room(&self, queue: usize) {
        let awaits = &self.queues[queue];
        if awaits.awaited.get().is_some_and(|flow| awaits.room(&flow) > 0) {
            awaits.awaited.set(None);
            self.sas.wake();
        }
    }
}

/// One queue of a multi-queue IPsec layer.
pub(crate) struct SecureQueue {
    layer: Arc<Mutex<SecureDevice>>,
    pub(super) queue: usize,
}

impl SecureQueue {
    pub(super) fn layer(&self) -> MutexGuard<'_, SecureDevice> {
        // A panic in another thread leaves the layer consistent, because invariants hold between calls.
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

    /// The device's IPsec is used by this layer alone.
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

/// Limit of packets that wait for another shard; equal to the shards' own limit.
const MAX_OPENED: usize = 1024;
