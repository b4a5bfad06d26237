//! A [`NetDevice`] around a [`NetDevice`]: plain packets towards the stack, protected ones towards the wire.
//!
//! Parts, each with its invariant:
//! - `sas`: SAs, their limits, numbers (`numbers`) and events (`events`), and the epoch that moves with them;
//! - `policies`: policies, and the last decision;
//! - `offload`: SAs and policies in the device; `lending`: SAs that the device works by for somebody else;
//! - `queues`: a queue of the device, with the packets that wait at it; the same layer around several queues;
//! - `wrapper`: packets wrapped in software, cut before (`segment`) or behind ESP;
//! - `fragments`: put together where policies, or ESP, need the whole packet; `held`: what comes before its SA.
//!
//! The way of a packet through the parts:
//! - `transmit`: by policy, past, away, or through an SA; `protect`: through one;
//! - `receive`: ESP opened, by whom ever; policies held to what arrives; `path_mtu`: what routers say about the size of
//!   ESP packets;
//! - `keying`: SAs and policies come and go; `keep_alive`: what address translators need to hear;
//! - `contexts`: those of the device, for flows that pass as they are.
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
mod policies;
mod protect;
mod queues;
mod receive;
mod sas;
mod segment;
mod transmit;
mod wrapper;

use crate::counters::IpsecCounters;
use crate::keying::SaId;
use crate::memory::KeyMemory;
use crate::sad::{Sa, Sad};
use crate::spd::Spd;
use core::any::Any;
use core::fmt;
use core::task::Waker;
use fragments::Fragments;
use held::Held;
use lending::Lent;
use offload::Offload;
use offload_api::ipsec::Packet;
use offload_api::{
    Contexts, DeviceEvent, Direction, FlowKey, Handle, IpsecDevice, NetDevice, OffloadKind, PathCaps, Protocol,
    RecordSource, RssDevice, RxPacket, TransmitResult, TxPacket,
};
use offload_base::Instant;
use offload_base::counters::CounterSet;
use policies::{Decision, Policies};
use queues::Queue;
pub(crate) use queues::SecureQueue;
use sas::Sas;
use wrapper::Wrapper;

/// An IPsec layer over a device.
///
/// Until it has policies, all IP packets are discarded, both ways (RFC 4301 4.4.1); what they do not say is decided by
/// [`Keying::set_default`](crate::Keying::set_default). ARP and IPv6's neighbour discovery always pass.
///
/// See the [crate] for an example.
pub struct SecureDevice {
    /// The device's queues, each served by one shard of the host.
    queues: Vec<Queue>,
    sas: Sas,
    policies: Policies,
    offload: Offload,
    lent: Lent,
    wrapper: Wrapper,
    fragments: Fragments,
    held: Held,
    /// Counters of packets; `sas` and `offload` have counters of their own.
    counters: IpsecCounters,
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
            sas: Sas::new(queues.len(), memory.clone()),
            policies: Policies::default(),
            offload: Offload::new(queues.len()),
            lent: Lent::default(),
            wrapper: Wrapper::new(memory.first_identification()),
            fragments: Fragments::new(),
            held: Held::default(),
            counters: IpsecCounters::default(),
            queues: queues.into_iter().map(Queue::new).collect(),
        }
    }

    /// What was counted so far.
    pub fn counters(&self) -> IpsecCounters {
        let mut counters = self.counters;
        counters += self.sas.counters();
        counters += self.offload.counters();
        counters
    }

    /// The SAs.
    pub fn sad(&self) -> &Sad {
        self.sas.sad()
    }

    /// The policies of one direction.
    pub fn spd(&self, direction: Direction) -> &Spd {
        self.policies.of(direction)
    }

    /// What is done with a packet to be sent, and by which SA.
    fn decide(&self, packet: &Packet) -> Decision {
        self.policies.decide(&self.sas, packet)
    }

    /// Whether an SA is worked on by the device, and how much of it.
    pub fn offloaded(&self, id: SaId) -> OffloadKind {
        match self.sas.find(id).map(Sa::by) {
            Some(By::Device(_, kind)) => kind,
            Some(By::Software) | None => OffloadKind::None,
        }
    }
}

/// A flow as policies see it.
fn packet_of(flow: &FlowKey) -> Packet {
    Packet {
        source: flow.local.ip(),
        destination: flow.remote.ip(),
        protocol: match flow.protocol {
            Protocol::Tcp => offload_formats::protocol::TCP,
            _ => offload_formats::protocol::UDP,
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

    fn transmit(&mut self, now: Instant, packet: TxPacket, source: &dyn RecordSource) -> TransmitResult {
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

    fn contexts(&mut self) -> Option<&mut dyn Contexts> {
        self.queues[ONLY].inner.contexts()?;
        Some(self)
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

impl fmt::Debug for SecureDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("SecureDevice");
        debug.field("sas", &self.sas.sad().len()).field("counters", &self.counters()).finish_non_exhaustive()
    }
}

/// How an SA is worked on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Software,
    Device(Handle, OffloadKind),
}

/// Packets that are dropped, or go to another shard, before others have their turn.
const DROPPED_A_CALL: usize = 256;
/// The queue of a device that has one.
const ONLY: usize = 0;
