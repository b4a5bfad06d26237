//! A [`NetDevice`] around a [`NetDevice`]: plain packets towards the stack, protected ones towards the wire.
//!
//! State, each part with its own invariant:
//! - `sas`: the SAs with their limits, numbers (`numbers`) and events (`events`), and the epoch that advances with each
//!   change;
//! - `policies`: the policies, and a cache of the last decision;
//! - `offload`: SAs and policies in the device; `lending`: SAs that the device uses for another host component;
//! - `queues`: a device queue with its backlog; the same layer around several queues;
//! - `wrapper`: packets wrapped in software, segmented before ESP (`segment`) or fragmented after ESP;
//! - `fragments`: reassembly where a policy, or ESP, needs the whole packet; `held`: packets that arrive before their
//!   SA.
//!
//! Packet flow:
//! - `transmit`: bypass, discard or protect by policy; `protect`: sends by an SA;
//! - `receive`: opens ESP and applies policies to arriving packets; `path_mtu`: ICMP messages about the size of ESP
//!   packets;
//! - `keying`: adds and deletes SAs and policies; `keep_alive`: NAT keep-alives;
//! - `contexts`: the device's stream contexts, for flows that bypass IPsec.
//!
//! Invariants:
//! - A packet that a policy protects reaches the device wrapped, or marked so that the device drops the packet instead
//!   of sending it plain.
//! - No sequence number is used twice under one key, by the host and the NIC together.
//! - The packets of an SA leave by one queue, in the order of their numbers.

mod contexts;
mod events;
mod fragments;
mod keep_alive;
mod keying;
mod lending;
mod numbers;
mod offload;
mod path_mtu;
mod pending_packets;
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
use fragments::PendingFragments;
use lending::LentSas;
use offload::OffloadedSas;
use offload_api::ipsec::Packet;
use offload_api::{
    Contexts, DeviceEvent, Direction, FlowKey, Handle, IpsecDevice, NetDevice, OffloadKind, PathCaps, Protocol,
    RecordSource, RssDevice, RxPacket, TransmitResult, TxPacket,
};
use offload_base::Instant;
use offload_base::counters::CounterSet;
use pending_packets::PendingPackets;
use policies::{PolicyDecision, PolicyTables};
use queues::DeviceQueue;
pub(crate) use queues::SecureQueue;
use sas::SaTable;
use wrapper::PacketWrapper;

/// An IPsec layer over a device.
///
/// Without policies, all IP packets are discarded in both directions (RFC 4301 4.4.1).
/// [`Keying::set_default`](crate::Keying::set_default) decides about packets that match no policy. ARP and IPv6
/// neighbour discovery always pass.
///
/// See the [crate] for an example.
pub struct SecureDevice {
    /// The device's queues, each served by one shard of the host.
    queues: Vec<DeviceQueue>,
    sas: SaTable,
    policies: PolicyTables,
    offload: OffloadedSas,
    lent: LentSas,
    wrapper: PacketWrapper,
    fragments: PendingFragments,
    held: PendingPackets,
    /// Packet counters; `sas` and `offload` have counters of their own.
    counters: IpsecCounters,
}

impl SecureDevice {
    /// Creates an IPsec layer over `inner`, without SAs and policies.
    ///
    /// The layer has its own memory of used keys; see [`with_memory`](Self::with_memory).
    pub fn new(inner: Box<dyn NetDevice>) -> SecureDevice {
        SecureDevice::with_memory(inner, KeyMemory::new())
    }

    /// Creates a layer with a shared or persistent memory of used keys. Required for a layer with a real peer.
    pub fn with_memory(inner: Box<dyn NetDevice>, memory: KeyMemory) -> SecureDevice {
        SecureDevice::around(vec![inner], memory)
    }

    fn around(queues: Vec<Box<dyn NetDevice>>, memory: KeyMemory) -> SecureDevice {
        SecureDevice {
            sas: SaTable::new(queues.len(), memory.clone()),
            policies: PolicyTables::default(),
            offload: OffloadedSas::new(queues.len()),
            lent: LentSas::default(),
            wrapper: PacketWrapper::new(memory.first_identification()),
            fragments: PendingFragments::new(),
            held: PendingPackets::default(),
            counters: IpsecCounters::default(),
            queues: queues.into_iter().map(DeviceQueue::new).collect(),
        }
    }

    /// Returns the counters.
    pub fn counters(&self) -> IpsecCounters {
        let mut counters = self.counters;
        counters += self.sas.counters();
        counters += self.offload.counters();
        counters
    }

    /// Returns the SAs.
    pub fn sad(&self) -> &Sad {
        self.sas.sad()
    }

    /// Returns the policies of one direction.
    pub fn spd(&self, direction: Direction) -> &Spd {
        self.policies.table(direction)
    }

    /// Decides about a packet to be sent.
    fn decide(&self, packet: &Packet) -> PolicyDecision {
        self.policies.decide(&self.sas, packet)
    }

    /// Returns how much of an SA's work the device does.
    pub fn offloaded(&self, id: SaId) -> OffloadKind {
        match self.sas.find(id).map(Sa::by) {
            Some(SaWorker::Device(_, kind)) => kind,
            Some(SaWorker::Software) | None => OffloadKind::None,
        }
    }
}

/// Returns a flow's fields that policies match.
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

/// Serves the only queue.
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

    /// The device's IPsec is used by this layer alone.
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

/// The worker of an SA's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SaWorker {
    Software,
    Device(Handle, OffloadKind),
}

/// Limit of packets that one call drops or passes to other shards.
const DROPPED_A_CALL: usize = 256;
/// The index of the only queue of a single-queue device.
const ONLY: usize = 0;
