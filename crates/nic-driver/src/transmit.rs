//! Packets to descriptors.
//!
//! The driver shadows, for every transmit context, where in its stream the device goes on. A packet that begins there is posted
//! as it is; what any other takes is in `recovery`.

use crate::Driver;
use crate::control::Waiting;
use crate::ipsec::{self, SaChange};
use crate::recovery::descriptors_at_most;
use core::cell::Cell;
use core::num::NonZeroU64;
use nic_rings::config::NicConfig;
use nic_rings::packet::{SendDescriptor, SendEntry};
use offload_api::{DropReason, FlowKey, Handle, LAYERS, PacketAsk, Protocol, RecordSource, Sent, TxPacket};
use offload_base::Instant;
use offload_formats::Headers;
use offload_formats::frame::ETHERNET_BYTES;
use std::collections::HashMap;

/// What is on its way to the device.
#[derive(Debug)]
pub(super) struct SendQueue {
    /// Each descriptor that is not reported done, by the name its completion will have.
    slots: Vec<Option<Posted>>,
    free: Vec<u32>,
    /// Payload bytes of those that ask for no rate.
    bytes: usize,
    /// Packets that ask for one, in all and by flow.
    paced: usize,
    paced_flows: HashMap<FlowKey, PacedFlow>,
    /// Somebody was told that there is no room, and nothing was done since.
    starved: Cell<bool>,
    /// Somebody was, and something was done since.
    room_again: Cell<bool>,
}

#[derive(Clone, Copy, Debug)]
struct Posted {
    bytes: u32,
    /// Of stream engines, and of the engine that wraps it.
    contexts: [Option<Handle>; LAYERS + 1],
    paced: Option<FlowKey>,
    /// It changed the SA's being there.
    sa: Option<SaChange>,
}

#[derive(Clone, Copy, Debug, Default)]
struct PacedFlow {
    packets: usize,
    bytes: u64,
    /// The last packet's, in bytes a second.
    rate: u64,
}

impl SendQueue {
    pub(super) fn new(entries: usize) -> SendQueue {
        SendQueue {
            slots: vec![None; entries],
            free: (0..entries as u32).rev().collect(),
            bytes: 0,
            paced: 0,
            paced_flows: HashMap::new(),
            starved: Cell::new(false),
            room_again: Cell::new(false),
        }
    }

    /// How many packets fit, should each of them need a resync from the far end of the longest record.
    pub(super) fn room(&self, config: &NicConfig) -> usize {
        let room = if self.bytes >= config.send_queue_bytes { 0 } else { self.packets(config) };
        self.note_room(room)
    }

    /// How many packets of `flow` that ask for a rate do: some that the flow can go on with while others are made, as
    /// with Linux's small queues, and a part of the ring is for those that ask for none.
    pub(super) fn room_paced(&self, flow: &FlowKey, config: &NicConfig) -> usize {
        let held = self.paced_flows.get(flow).copied().unwrap_or_default();
        let of_flow = match PACED_PACKETS.saturating_sub(held.packets) {
            0 => usize::from(held.bytes < held.rate / PACED_SHARE_OF_A_SECOND),
            packets => packets,
        };
        let of_all = (config.send_ring / 4 * 3).saturating_sub(self.paced);
        self.note_room(of_flow.min(of_all).min(self.packets(config)))
    }

    /// Whether there may be room again for those who were told that the ring is full. It is said once: a sender that
    /// was told may be gone; one that still wants to send asks for room, and is told again.
    pub(super) fn take_room_again(&self) -> bool {
        self.room_again.take()
    }

    pub(super) fn is_starved(&self) -> bool {
        self.starved.get()
    }

    /// Whether one descriptor fits that needs nothing before it.
    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    fn packets(&self, config: &NicConfig) -> usize {
        self.free.len() / descriptors_at_most(config)
    }

    fn note_room(&self, room: usize) -> usize {
        self.room_again.set(false);
        if room == 0 {
            self.starved.set(true);
        }
        room
    }

    /// Takes a slot for a descriptor; there is one, for its room was made sure of.
    fn note_posted(&mut self, posted: Posted, rate: Option<NonZeroU64>) -> Option<u32> {
        let slot = self.free.pop()?;
        match (posted.paced, rate) {
            (Some(flow), Some(rate)) => {
                let held = self.paced_flows.entry(flow).or_default();
                held.packets += 1;
                held.bytes += u64::from(posted.bytes);
                held.rate = rate.get();
                self.paced += 1;
            }
            _ => self.bytes += posted.bytes as usize,
        }
        self.slots[slot as usize] = Some(posted);
        Some(slot)
    }

    /// Frees the slot of a descriptor that is done, and says what it was.
    fn note_done(&mut self, slot: u32) -> Option<Posted> {
        let posted = self.slots.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        match posted.paced {
            Some(flow) => {
                if let Some(held) = self.paced_flows.get_mut(&flow) {
                    held.packets -= 1;
                    held.bytes -= u64::from(posted.bytes);
                    if held.packets == 0 {
                        self.paced_flows.remove(&flow);
                    }
                }
                self.paced -= 1;
            }
            None => self.bytes -= posted.bytes as usize,
        }
        if self.starved.take() {
            self.room_again.set(true);
        }
        Some(posted)
    }
}

impl Driver {
    /// Posts a packet, with whatever its context needs before it.
    pub(super) fn post_packet(&mut self, _now: Instant, packet: TxPacket, source: &dyn RecordSource) -> Sent {
        if !self.can_send(&packet) {
            self.counters.tx_drop_unsupported += 1;
            return Sent::Dropped(DropReason::Unsupported);
        }
        if let Some(ask) = packet.ask.packet
            && !self.can_wrap(&packet, ask)
        {
            match ipsec::has(ask.context.engine()) {
                true => self.counters.tx_ipsec_refused += 1,
                false => self.counters.tx_drop_unsupported += 1,
            }
            return Sent::Dropped(DropReason::Unsupported);
        }
        let has_context = packet.ask.has_context();
        let fits = if has_context { self.send.packets(&self.config) > 0 } else { self.send.has_room() };
        if !fits {
            self.counters.tx_queue_dropped += 1;
            return Sent::Dropped(DropReason::RingFull);
        }
        if has_context {
            return self.post_in_step(packet, source);
        }
        self.post(SendDescriptor::Packet(packet));
        Sent::Posted
    }

    /// Rings the doorbell if there is something to see.
    pub(super) fn ring_doorbell(&mut self) {
        let published = self.rings.send.publish() + self.rings.control.publish();
        if published > 0 {
            self.counters.doorbells += 1;
            self.rings.doorbell.raise();
        }
    }

    /// Takes note of descriptors that are done.
    pub(super) fn reap_sent(&mut self) {
        let mut any = false;
        while let Some(completion) = self.rings.send_completions.pop() {
            for slot in completion.slots {
                let Some(Posted { contexts, sa, .. }) = self.send.note_done(slot) else { continue };
                for handle in contexts.into_iter().flatten() {
                    if self.contexts.note_done(handle) {
                        self.give_or_wait(Waiting::GiveUp(handle));
                    }
                }
                if let Some(change) = sa {
                    self.sas.note_done(change);
                }
            }
            any = true;
        }
        if any {
            self.give_waiting();
            self.post_waiting_commands();
        }
    }

    /// Whether the device can make of a packet what it is to be.
    fn can_wrap(&self, packet: &TxPacket, ask: PacketAsk) -> bool {
        match ipsec::has(ask.context.engine()) {
            true => self.can_protect(packet, ask.into()),
            false => !packet.ask.has_context() && packet.ask.rate.is_none() && self.contexts.can_transmit(ask.context),
        }
    }

    /// What the device could not do is refused here, where it can still be told.
    fn can_send(&self, packet: &TxPacket) -> bool {
        let payload = packet.payload_len();
        let frame = packet.header.len() + payload;
        let fits = match packet.ask.mss {
            None => frame <= usize::from(self.config.mtu) + ETHERNET_BYTES,
            Some(mss) => {
                let segment = packet.header.len() + usize::from(mss);
                mss > 0
                    && (self.config.udp_segmentation
                        || sender(packet).is_none_or(|flow| flow.protocol != Protocol::Udp))
                    && payload <= self.config.tso_max_bytes as usize
                    && segment <= usize::from(self.config.mtu) + ETHERNET_BYTES
            }
        };
        let paced = packet.ask.rate.is_none() || (self.config.pacing && sender(packet).is_some());
        fits && paced && (self.config.checksum_offload || !packet.ask.checksum)
    }

    pub(super) fn post(&mut self, descriptor: SendDescriptor) {
        let mut contexts = [None; LAYERS + 1];
        let mut paced = None;
        let bytes = match &descriptor {
            SendDescriptor::Packet(packet) => {
                paced = packet.ask.rate.and_then(|_| sender(packet));
                for (context, ask) in contexts.iter_mut().zip(packet.ask.streams) {
                    *context = ask.map(|ask| ask.context);
                }
                // SAs are given up on this ring, in order.
                let wraps = packet.ask.packet.map(|ask| ask.context);
                contexts[LAYERS] = wraps.filter(|context| !ipsec::has(context.engine()));
                packet.payload_len() as u32
            }
            SendDescriptor::Dump { contexts: through, bytes, .. } => {
                contexts[..LAYERS].copy_from_slice(through);
                bytes.len() as u32
            }
            SendDescriptor::StaticParameters { handle, .. } | SendDescriptor::ProgressParameters { handle, .. } => {
                contexts[0] = Some(*handle);
                0
            }
            SendDescriptor::Fence | SendDescriptor::Control { .. } => 0,
        };
        let sa = if let SendDescriptor::Control { command, .. } = &descriptor { SaChange::by(command) } else { None };
        let rate = if let SendDescriptor::Packet(packet) = &descriptor { packet.ask.rate } else { None };
        let slot = self.send.note_posted(Posted { bytes, contexts, paced, sa }, rate);
        let staged = slot.map(|slot| self.rings.send.stage(SendEntry { slot, descriptor }).is_ok());
        debug_assert_eq!(staged, Some(true), "room for the worst case was made sure of");
        for handle in contexts.into_iter().flatten() {
            self.contexts.note_posted(handle);
        }
    }
}

/// The flow of a packet, as its sender sees it, if the device can tell.
fn sender(packet: &TxPacket) -> Option<FlowKey> {
    Some(Headers::parse_unfinished(&packet.header).transport()?.flow_of_receiver(&packet.header).reversed())
}

/// Packets that ask for a rate, of one flow in the device: one that leaves and one behind it. More if both together are
/// less than a millisecond's worth, as Linux's TCP small queues have it.
const PACED_PACKETS: usize = 2;
const PACED_SHARE_OF_A_SECOND: u64 = 1000;
