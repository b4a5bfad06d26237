//! A [`NetDevice`] around a [`NetDevice`]: plain packets towards the stack, protected ones towards the wire.
//!
//! - `transmit`: by policy, past, away, or through an SA; `protect`: through one; `segment`: large packets cut into those
//!   that ESP wraps;
//! - `receive`: ESP opened, by whom ever; policies held to what arrives;
//! - `fragments`: put together where policies, or ESP, need the whole packet; `held`: what comes before its SA;
//! - `keying`: SAs and policies come and go; `offload`: what the device does of it, and what it tells;
//! - `contexts`: those of the device, for flows that pass as they are;
//! - `lending`: SAs that the device works by for somebody else;
//! - `numbers`: how far they are written down, if they outlive the process;
//! - `events`: what keying is to hear of it all;
//! - `path_mtu`: what routers say about the size of ESP packets; `keep_alive`: what address translators need to hear;
//! - `queues`: the same around a device with several queues.
//!
//! Invariants: nothing that a policy wants protected reaches the device but wrapped, or marked so that the device drops
//! it rather than send it plain; no sequence number is used twice under one key, host or NIC; the packets of an SA leave by one
//! queue, in the order of their numbers.

mod contexts;
mod events;
mod fragments;
mod held;
mod keep_alive;
mod keying;
mod lending;
mod numbers;
mod offload;
mod path_mtu;
mod protect;
mod queues;
mod receive;
mod segment;
mod transmit;

use crate::counters::IpsecCounters;
use crate::memory::KeyMemory;
use crate::sad::Sad;
use crate::spd::Spd;
use core::cell::Cell;
use core::fmt;
use core::task::Waker;
use events::Events;
use fragments::Fragments;
use held::Held;
use offload_api::ipsec::Packet;
use offload_api::{
    Action, Contexts, DeviceEvent, Direction, FlowKey, Handle, IpsecDevice, Keying, NetDevice, OffloadKind, PathCaps,
    Protocol, RecordSource, RssDevice, RxPacket, SaEvent, SaId, Selector, Sent, TxPacket,
};
use offload_base::counters::CounterSet;
use offload_base::{BufferPool, Instant};
use queues::Queue;
use std::collections::{HashMap, VecDeque};

/// An IPsec layer over a device.
///
/// Until it has policies, all IP packets are discarded, both ways (RFC 4301 4.4.1); what they do not say is decided by
/// [`Keying::set_default`]. ARP and IPv6's neighbour discovery always pass.
///
/// See the [crate] for an example.
pub struct SecureDevice {
    /// Of the device, each with a shard of the host above it. One of them, mostly.
    queues: Vec<Queue>,
    sad: Sad,
    /// For packets sent, and for packets received.
    policies: [Spd; 2],
    /// Whether packets pass that no policy is about.
    bypass: [bool; 2],
    /// Of the last packet that was cut here, before it went into a tunnel or behind ESP.
    identification: u32,
    /// Which keys were used, and how far their numbers came.
    memory: KeyMemory,
    frames: BufferPool,
    fragments: Fragments,
    held: Held,
    events: Events,
    /// SAs that the device had no time for yet, the oldest first.
    waiting_for_device: VecDeque<SaId>,
    /// SAs that the device works by for somebody else, in the order they were lent.
    lent: Vec<SaId>,
    /// How many SAs ever waited for room in the device.
    waited_for_room: u64,
    /// What the device was told to protect, by the policies it came from.
    told: HashMap<(Selector, u32), Vec<Told>>,
    counters: IpsecCounters,
    /// Moves with policies and SAs.
    epoch: u64,
    /// What is done with packets like the one that was asked about last. A stack asks three times about each: for its
    /// path, for room, and when it sends it.
    decided: Cell<Option<(Packet, Decision)>>,
}

impl SecureDevice {
    /// An IPsec layer over `inner`, without SAs and policies.
    ///
    /// Which keys were used, it remembers for itself; see [`with_memory`](Self::with_memory).
    pub fn new(inner: Box<dyn NetDevice>) -> SecureDevice {
        SecureDevice::with_memory(inner, KeyMemory::new())
    }

    /// The same with a memory that others share, or that outlives the process: what a layer with a real peer needs.
    pub fn with_memory(inner: Box<dyn NetDevice>, memory: KeyMemory) -> SecureDevice {
        SecureDevice::around(vec![inner], memory)
    }

    fn around(queues: Vec<Box<dyn NetDevice>>, memory: KeyMemory) -> SecureDevice {
        SecureDevice {
            identification: memory.first_identification(),
            memory,
            queues: queues.into_iter().map(Queue::new).collect(),
            sad: Sad::default(),
            policies: [Spd::default(), Spd::default()],
            bypass: [false; 2],
            frames: BufferPool::new(FRAME_BYTES, FRAMES_PER_SLAB),
            fragments: Fragments::new(),
            held: Held::default(),
            events: Events::default(),
            told: HashMap::new(),
            waiting_for_device: VecDeque::new(),
            lent: Vec::new(),
            waited_for_room: 0,
            counters: IpsecCounters::default(),
            epoch: 0,
            decided: Cell::new(None),
        }
    }

    /// What was counted so far.
    pub fn counters(&self) -> IpsecCounters {
        self.counters
    }

    /// The SAs.
    pub fn sad(&self) -> &Sad {
        &self.sad
    }

    /// The policies of one direction.
    pub fn spd(&self, direction: Direction) -> &Spd {
        &self.policies[direction as usize]
    }

    /// What is done with a packet to be sent, and by which SA.
    fn decide(&self, packet: &Packet) -> Decision {
        if let Some((asked, decision)) = self.decided.get()
            && decision.epoch == self.epoch
            && asked == *packet
        {
            return decision;
        }
        let policy = self.policies[Direction::Transmit as usize].find(packet);
        let bypass = self.bypass[Direction::Transmit as usize].then_some(Action::Bypass);
        let action = policy.map(|policy| policy.action).or(bypass);
        let named = policy.map(|policy| (policy.selector, policy.priority));
        let sa = match &action {
            Some(Action::Protect(template)) => self.sad.find_wanted(template, packet),
            _ => None,
        };
        let decision = Decision { epoch: self.epoch, action, policy: named, sa };
        self.decided.set(Some((*packet, decision)));
        decision
    }

    /// What is done with a packet.
    fn action(&self, direction: Direction, packet: &Packet) -> Option<Action> {
        let bypass = self.bypass[direction as usize].then_some(Action::Bypass);
        self.policies[direction as usize].action(packet).or(bypass)
    }

    /// Counts an event, and notes it, unless one like it waits to be asked for.
    fn tell(&mut self, event: SaEvent) {
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
            let Self { events, sad, .. } = self;
            events.keep_within(sad.len(), |sa| sad.find(sa).is_some());
            self.wake();
        }
    }
}

/// A flow as policies see it.
fn packet_of(flow: &FlowKey) -> Packet {
    Packet {
        source: flow.local.ip(),
        destination: flow.remote.ip(),
        protocol: match flow.protocol {
            Protocol::Tcp => offload_esp::PROTOCOL_TCP,
            _ => offload_esp::PROTOCOL_UDP,
        },
        ports: Some((flow.local.port(), flow.remote.port())),
    }
}

/// Of the one queue that there is.
impl NetDevice for SecureDevice {
    fn path(&self, flow: &FlowKey) -> PathCaps {
        self.path_at(ONLY, flow)
    }

    fn room(&self, flow: &FlowKey) -> usize {
        self.room_at(ONLY, flow)
    }

    fn room_paced(&self, flow: &FlowKey) -> usize {
        self.room_paced_at(ONLY, flow)
    }

    fn transmit(&mut self, now: Instant, packet: TxPacket, source: &dyn RecordSource) -> Sent {
        self.transmit_at(now, ONLY, packet, source)
    }

    fn flush(&mut self, now: Instant) {
        self.flush_at(now, ONLY);
    }

    fn receive(&mut self, now: Instant) -> Option<RxPacket> {
        self.receive_at(now, ONLY)
    }

    fn poll_event(&mut self) -> Option<DeviceEvent> {
        self.poll_event_at(ONLY)
    }

    fn arm(&mut self, waker: &Waker) -> bool {
        self.arm_at(ONLY, waker)
    }

    fn next_event(&self) -> Option<Instant> {
        self.next_event_at(ONLY)
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.handle_timeout_at(now, ONLY);
    }

    fn count(&self, set: &mut CounterSet) {
        self.count_at(ONLY, set);
    }

    fn serves(&self, flow: &FlowKey) -> bool {
        self.queues[ONLY].inner.serves(flow)
    }

    /// It is this layer's.
    fn ipsec(&mut self) -> Option<&mut dyn IpsecDevice> {
        None
    }

    fn rss(&mut self) -> Option<&mut dyn RssDevice> {
        self.queues[ONLY].inner.rss()
    }

    fn keying(&mut self) -> Option<&mut dyn Keying> {
        Some(self)
    }

    fn contexts(&mut self) -> Option<&mut dyn Contexts> {
        self.queues[ONLY].inner.contexts()?;
        Some(self)
    }
}

impl fmt::Debug for SecureDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("SecureDevice");
        debug.field("sas", &self.sad.len()).field("counters", &self.counters).finish_non_exhaustive()
    }
}

/// What is done with packets to be sent, as long as policies and SAs are what they are.
#[derive(Clone, Copy, Debug)]
struct Decision {
    /// When it was decided.
    epoch: u64,
    /// What policies say.
    action: Option<Action>,
    /// Which one: its selector and priority.
    policy: Option<(Selector, u32)>,
    /// The SA, if they are to be protected and there is one.
    sa: Option<SaId>,
}

/// How an SA is worked on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Software,
    Device(Handle, OffloadKind),
}

/// Packets that are dropped, or go to another shard, before others have their turn.
const DROPPED_A_CALL: usize = 256;
/// What the device was told to protect by which SA, and at which queue.
#[derive(Debug)]
struct Told {
    selector: Selector,
    sa: SaId,
    queue: usize,
}

/// The queue of a device that has one.
const ONLY: usize = 0;
/// Most frames are no longer than this; what is gets a buffer of its own.
const FRAME_BYTES: usize = 2048;
const FRAMES_PER_SLAB: usize = 64;
