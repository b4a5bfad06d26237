//! A [`NetDevice`] around a [`NetDevice`]: plain packets towards the stack, protected ones towards the wire.
//!
//! - `transmit`: by policy, past, away, or through an SA; `protect`: through one; `segment`: large packets cut into those
//!   that ESP wraps;
//! - `receive`: ESP opened, by whom ever; policies held to what arrives;
//! - `fragments`: put together where policies, or ESP, need the whole packet;
//! - `keying`: SAs and policies come and go; `offload`: what the device does of it, and what it tells;
//! - `events`: what keying is to hear of it all;
//! - `path_mtu`: what routers say about the size of ESP packets; `keep_alive`: what address translators need to hear.
//!
//! Invariants: nothing that a policy wants protected reaches the device but wrapped, or marked so that the device drops
//! it rather than send it plain; no sequence number is used twice, whoever counts.

mod events;
mod fragments;
mod keep_alive;
mod keying;
mod offload;
mod path_mtu;
mod protect;
mod receive;
mod segment;
mod transmit;

use crate::counters::IpsecCounters;
use crate::sad::Sad;
use crate::spd::Spd;
use core::cell::Cell;
use core::fmt;
use core::task::Waker;
use esp::QuickHash;
use events::Events;
use fragments::Fragments;
use offload_api::ipsec::Packet;
use offload_api::{
    Action, DeviceEvent, Direction, FlowKey, Handle, IpsecDevice, Keying, NetDevice, OffloadKind, PathCaps, Protocol,
    RecordSource, Refused, RxPacket, SaEvent, SaId, Selector, Sent, TlsDevice, TlsKey, TxPacket,
};
use offload_base::counters::CounterSet;
use offload_base::time::earliest;
use offload_base::{BufferPool, Instant, Seq};
use std::collections::{HashMap, VecDeque};

/// An IPsec layer over a device.
///
/// Until it has policies, all IP packets are discarded, both ways (RFC 4301 4.4.1); what they do not say is decided by
/// [`Keying::set_default`]. ARP and IPv6's neighbour discovery always pass.
///
/// See the [crate] for an example.
pub struct SecureDevice {
    inner: Box<dyn NetDevice>,
    sad: Sad,
    /// For packets sent, and for packets received.
    policies: [Spd; 2],
    /// Whether packets pass that no policy is about.
    bypass: [bool; 2],
    /// Packets that are wrapped and wait for room in the device: what is left of one that was cut.
    backlog: VecDeque<(FlowKey, TxPacket)>,
    frames: BufferPool,
    fragments: Fragments,
    events: Events,
    /// By the device's names. Looked up, never walked.
    in_device: HashMap<Handle, SaId, QuickHash>,
    /// SAs that the device had no time for yet, the oldest first.
    waiting_for_device: VecDeque<SaId>,
    /// What the device was told to protect, by the policies it came from.
    told: HashMap<(Selector, u32), Vec<(Selector, SaId)>>,
    counters: IpsecCounters,
    /// Moves with policies and SAs.
    epoch: u64,
    /// What is done with packets like the one that was asked about last. A stack asks three times about each: for its
    /// path, for room, and when it sends it.
    decided: Cell<Option<(Packet, Decision)>>,
    /// Somebody waits, and is to hear of new keys.
    waiting: Option<Waker>,
}

impl SecureDevice {
    /// An IPsec layer over `inner`, without SAs and policies.
    pub fn new(inner: Box<dyn NetDevice>) -> SecureDevice {
        SecureDevice {
            inner,
            sad: Sad::default(),
            policies: [Spd::default(), Spd::default()],
            bypass: [false; 2],
            backlog: VecDeque::new(),
            frames: BufferPool::new(FRAME_BYTES, FRAMES_PER_SLAB),
            fragments: Fragments::new(),
            events: Events::default(),
            in_device: HashMap::default(),
            told: HashMap::new(),
            waiting_for_device: VecDeque::new(),
            counters: IpsecCounters::default(),
            epoch: 0,
            decided: Cell::new(None),
            waiting: None,
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

    /// Counts an event, and notes it unless there is such a one that nobody has asked for yet.
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
            let Self { events, sad, .. } = self;
            events.keep_within(sad.len(), |sa| sad.find(sa).is_some());
            self.wake();
        }
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waiting.take() {
            waker.wake();
        }
    }
}

/// A flow as policies see it.
fn packet_of(flow: &FlowKey) -> Packet {
    Packet {
        source: flow.local.ip(),
        destination: flow.remote.ip(),
        protocol: match flow.protocol {
            Protocol::Tcp => esp::PROTOCOL_TCP,
            _ => esp::PROTOCOL_UDP,
        },
        ports: Some((flow.local.port(), flow.remote.port())),
    }
}

impl NetDevice for SecureDevice {
    fn path(&self, flow: &FlowKey) -> PathCaps {
        let caps = self.inner.path(flow);
        // Both only grow, so their sum moves when one of them does.
        let caps = PathCaps { epoch: caps.epoch + self.epoch, ..caps };
        match self.decide(&packet_of(flow)) {
            Decision { action: Some(Action::Protect(_)), sa, .. } => self.protected_path(flow, sa, caps),
            _ => caps,
        }
    }

    fn room(&self, flow: &FlowKey) -> usize {
        let room = self.inner.room(flow);
        // A packet may become many. One is taken at a time, then; what does not fit at once waits here.
        let Decision { action, sa, .. } = self.decide(&packet_of(flow));
        match action {
            Some(Action::Protect(_)) if !self.backlog.is_empty() => 0,
            Some(Action::Protect(_)) if self.is_cut_by_device(sa) => room,
            Some(Action::Protect(_)) => room.min(1),
            _ => room,
        }
    }

    fn transmit(&mut self, now: Instant, packet: TxPacket, source: &dyn RecordSource) -> Sent {
        self.drain_backlog(now);
        self.send(now, packet, source)
    }

    fn flush(&mut self, now: Instant) {
        self.drain_backlog(now);
        self.inner.flush(now);
    }

    fn receive(&mut self, now: Instant) -> Option<RxPacket> {
        self.drain_backlog(now);
        // Whoever sends what is dropped here does not keep the stack from its other work.
        for _ in 0..DROPPED_A_CALL {
            let packet = self.inner.receive(now)?;
            if let Some(packet) = self.take_in(now, packet) {
                return Some(packet);
            }
        }
        None
    }

    fn poll_event(&mut self) -> Option<DeviceEvent> {
        self.hear_device();
        let event = self.inner.poll_event();
        if event == Some(DeviceEvent::Reset) {
            // Which SAs it had is told there.
            self.hear_device();
        }
        event
    }

    fn arm(&mut self, waker: &Waker) -> bool {
        self.waiting = Some(waker.clone());
        self.inner.arm(waker)
    }

    fn next_event(&self) -> Option<Instant> {
        let fragments = self.fragments.next_event();
        earliest(earliest(self.inner.next_event(), fragments), self.sad.next_event())
    }

    fn handle_timeout(&mut self, now: Instant) {
        if self.inner.next_event().is_some_and(|at| at <= now) {
            self.inner.handle_timeout(now);
        }
        self.expire_fragments(now);
        self.handle_sa_timeouts(now);
    }

    fn count(&self, set: &mut CounterSet) {
        set.add(&self.counters);
        self.inner.count(set);
    }

    fn tls(&mut self) -> Option<&mut dyn TlsDevice> {
        self.inner.tls()?;
        Some(self)
    }

    fn ipsec(&mut self) -> Option<&mut dyn IpsecDevice> {
        None
    }

    fn keying(&mut self) -> Option<&mut dyn Keying> {
        Some(self)
    }
}

/// Flows that pass as they are have the device's TLS; below ESP, a device cannot follow a stream (it is refused).
impl TlsDevice for SecureDevice {
    fn add(
        &mut self,
        flow: &FlowKey,
        direction: offload_api::Direction,
        start: Seq,
        number: u64,
        key: &TlsKey,
    ) -> Result<Handle, Refused> {
        let is_plain = |action| matches!(action, Some(Action::Bypass));
        let both = is_plain(self.decide(&packet_of(flow)).action)
            && is_plain(self.action(Direction::Receive, &packet_of(&flow.reversed())));
        match self.inner.tls() {
            Some(tls) if both => tls.add(flow, direction, start, number, key),
            _ => Err(Refused::Unsupported),
        }
    }

    fn answer_resync(&mut self, handle: Handle, header: Seq, number: Option<u64>) {
        if let Some(tls) = self.inner.tls() {
            tls.answer_resync(handle, header, number);
        }
    }

    fn remove(&mut self, handle: Handle) {
        if let Some(tls) = self.inner.tls() {
            tls.remove(handle);
        }
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

const DROPPED_A_CALL: usize = 256;
/// Most frames are no longer than this; what is gets a buffer of its own.
const FRAME_BYTES: usize = 2048;
const FRAMES_PER_SLAB: usize = 64;
