//! Conversion of packets to descriptors.
//!
//! For every transmit context, the driver tracks the device's position in the stream. A packet at that position is
//! posted unchanged. For any other packet, `recovery` first restores the context.

use crate::Driver;
use crate::control::WaitingCommand;
use crate::ordered::ContextChange;
use core::cell::Cell;
use core::num::NonZeroU64;
use nic_rings::config::NicConfig;
use nic_rings::packet::{SendDescriptor, SendEntry};
use offload_api::{DropReason, FlowKey, Handle, LAYERS, PacketAsk, Protocol, RecordSource, TransmitResult, TxPacket};
use offload_base::Instant;
use offload_formats::Headers;
use offload_formats::frame::ETHERNET_BYTES;
use std::collections::HashMap;

/// The descriptors in flight to the device.
#[derive(Debug)]
pub(super) struct DescriptorQueue {
    /// Descriptors in flight, by the identifier in their completion.
    slots: Vec<Option<PostedDescriptor>>,
    free: Vec<u32>,
    /// Maximum number of descriptors for one packet, with the longest resync.
    descriptors_at_most: usize,
    /// Payload bytes of packets without a rate.
    bytes: usize,
    /// Number of packets with a rate, in total and by flow.
    paced: usize,
    paced_flows: HashMap<FlowKey, PacedFlow>,
    /// Whether a caller was told that there is no room, and no descriptor was done since.
    starved: Cell<bool>,
    /// Whether a caller was told that there is no room, and a descriptor was done since.
    room_again: Cell<bool>,
}

#[derive(Clone, Copy, Debug)]
struct PostedDescriptor {
    bytes: u32,
    /// Contexts of the stream engines, and of the engine that encapsulates the packet.
    contexts: [Option<Handle>; LAYERS + 1],
    paced: Option<FlowKey>,
    /// Creation or removal of a context on this ring.
    change: Option<ContextChange>,
}

#[derive(Clone, Copy, Debug, Default)]
struct PacedFlow {
    packets: usize,
    bytes: u64,
    /// Rate of the last packet, in bytes per second.
    rate: u64,
}

impl DescriptorQueue {
    pub(super) fn new(entries: usize, descriptors_at_most: usize) -> DescriptorQueue {
        DescriptorQueue {
            slots: vec![None; entries],
            free: (0..entries as u32).rev().collect(),
            descriptors_at_most,
            bytes: 0,
            paced: 0,
            paced_flows: HashMap::new(),
            starved: Cell::new(false),
            room_again: Cell::new(false),
        }
    }

    /// Returns the number of packets that fit, even if each needs the longest resync.
    pub(super) fn room(&self, config: &NicConfig) -> usize {
        let room = if self.bytes >= config.send_queue_bytes { 0 } else { self.packets() };
        self.note_room(room)
    }

    /// Returns the number of packets of `flow` with a rate that fit. A flow gets enough to continue while further
    /// packets are built, as with Linux's small queues, and a quarter of the ring is reserved for packets without a
    /// rate.
    pub(super) fn room_paced(&self, flow: &FlowKey, config: &NicConfig) -> usize {
        let held = self.paced_flows.get(flow).copied().unwrap_or_default();
        let of_flow = match PACED_PACKETS.saturating_sub(held.packets) {
            0 => usize::from(held.bytes < held.rate / PACED_SHARE_OF_A_SECOND),
            packets => packets,
        };
        // Paced packets may wait for long. The last quarter keeps the ring usable for all others.
        let of_all = (config.send_ring / 4 * 3).saturating_sub(self.paced);
        self.note_room(of_flow.min(of_all).min(self.packets()))
    }

    /// Tests whether there may be room again for callers that were told otherwise. Returns true only once: such a
    /// caller may have gone, and one that still wants to send asks for room again.
    pub(super) fn take_room_again(&self) -> bool {
        self.room_again.take()
    }

    pub(super) fn is_starved(&self) -> bool {
        self.starved.get()
    }

    /// Tests whether there is room for a descriptor that needs no others in front.
    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    fn packets(&self) -> usize {
        self.free.len() / self.descriptors_at_most
    }

    fn note_room(&self, room: usize) -> usize {
        // Cleared on every question: the caller has now learned about the room that was announced.
        self.room_again.set(false);
        if room == 0 {
            self.starved.set(true);
        }
        room
    }

    /// Occupies a slot for a descriptor. The caller has checked for room.
    fn note_posted(&mut self, posted: PostedDescriptor, rate: Option<NonZeroU64>) -> Option<u32> {
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

    /// Frees the slot of a completed descriptor, and returns the descriptor's record.
    fn note_done(&mut self, slot: u32) -> Option<PostedDescriptor> {
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
        // One completion is enough to announce room, because the caller asks for the exact amount itself.
        if self.starved.take() {
            self.room_again.set(true);
        }
        Some(posted)
    }
}

impl Driver {
    /// Posts a packet, with the descriptors that its contexts need in front.
    pub(super) fn post_packet(&mut self, _now: Instant, packet: TxPacket, source: &dyn RecordSource) -> TransmitResult {
        if !self.can_send(&packet) {
            self.counters.tx_drop_unsupported += 1;
            return TransmitResult::Dropped(DropReason::Unsupported);
        }
        if let Some(ask) = packet.ask.packet
            && !self.can_wrap(&packet, ask)
        {
            return TransmitResult::Dropped(DropReason::Unsupported);
        }
        let has_context = packet.ask.has_context();
        // A packet with contexts may need a resync in front, so it requires the room of the worst case.
        let fits = if has_context { self.send.packets() > 0 } else { self.send.has_room() };
        if !fits {
            self.counters.tx_queue_dropped += 1;
            return TransmitResult::Dropped(DropReason::RingFull);
        }
        if has_context {
            return self.post_in_step(packet, source);
        }
        self.post(SendDescriptor::Packet(packet));
        TransmitResult::Posted
    }

    /// Rings the doorbell if there are new entries.
    pub(super) fn ring_doorbell(&mut self) {
        let published = self.rings.send.publish() + self.rings.control.publish();
        if published > 0 {
            self.counters.doorbells += 1;
            self.rings.doorbell.raise();
        }
    }

    /// Processes the completions of descriptors.
    pub(super) fn reap_sent(&mut self) {
        let mut any = false;
        while let Some(completion) = self.rings.send_completions.pop() {
            for (place, slot) in completion.slots.iter().enumerate() {
                let Some(PostedDescriptor { contexts, change, .. }) = self.send.note_done(*slot) else { continue };
                for handle in contexts.into_iter().flatten() {
                    // The device could not bring the context to the packet, so its position is unknown.
                    if completion.has_failed(place) {
                        self.lose_place(handle);
                    }
                    if self.contexts.note_done(handle) {
                        self.give_or_wait(WaitingCommand::GiveUp(handle));
                    }
                }
                if let Some(change) = change {
                    self.ordered.note_done(change);
                }
            }
            any = true;
        }
        if any {
            self.give_waiting();
            self.post_waiting_commands();
        }
    }

    /// Tests whether the device can encapsulate a packet as requested. A failure is counted.
    fn can_wrap(&mut self, packet: &TxPacket, ask: PacketAsk) -> bool {
        if self.is_ordered(ask.context) {
            return self.can_protect(packet, ask);
        }
        let can = !packet.ask.has_context() && packet.ask.rate.is_none() && self.contexts.can_transmit(ask.context);
        self.counters.tx_drop_unsupported += u64::from(!can);
        can
    }

    /// Tests whether the device can send a packet. Refused here, because the device could no longer tell the caller.
    fn can_send(&self, packet: &TxPacket) -> bool {
        let payload = packet.payload_len();
        let frame = packet.header.len() + payload;
        let fits = match packet.ask.mss {
            None => frame <= usize::from(self.config.mtu) + ETHERNET_BYTES,
            Some(mss) => {
                let segment = packet.header.len() + usize::from(mss);
                mss > 0
                    // Only UDP datagrams need this capability.
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
                // Contexts commanded on this ring are removed in order, so their descriptors need not be counted.
                let wraps = packet.ask.packet.map(|ask| ask.context);
                contexts[LAYERS] = wraps.filter(|context| !self.is_ordered(*context));
                packet.payload_len() as u32
            }
            SendDescriptor::Dump { contexts: through, bytes, ahead, .. } => {
                contexts[..LAYERS].copy_from_slice(through);
                (bytes.len() + ahead.len()) as u32
            }
            SendDescriptor::StaticParameters { handle, .. } | SendDescriptor::ProgressParameters { handle, .. } => {
                contexts[0] = Some(*handle);
                0
            }
            SendDescriptor::Ahead { context, bytes } => {
                contexts[0] = Some(*context);
                bytes.len() as u32
            }
            SendDescriptor::Fence | SendDescriptor::Control { .. } => 0,
        };
        let change =
            if let SendDescriptor::Control { command, .. } = &descriptor { ContextChange::by(command) } else { None };
        let rate = if let SendDescriptor::Packet(packet) = &descriptor { packet.ask.rate } else { None };
        let slot = self.send.note_posted(PostedDescriptor { bytes, contexts, paced, change }, rate);
        let staged = slot.map(|slot| self.rings.send.stage(SendEntry { slot, descriptor }).is_ok());
        debug_assert_eq!(staged, Some(true), "the caller has checked the room for the worst case");
        for handle in contexts.into_iter().flatten() {
            self.contexts.note_posted(handle);
        }
    }
}

/// Returns the flow of a packet, as its sender sees it, or `None` for a packet without a flow.
fn sender(packet: &TxPacket) -> Option<FlowKey> {
    Some(Headers::parse_unfinished(&packet.header).transport()?.flow_of_receiver(&packet.header).reversed())
}

/// Packets of one paced flow that may be in the device: the packet that leaves and the next packet. More are allowed if
/// all together are less than a millisecond's worth, as with Linux's TCP small queues.
const PACED_PACKETS: usize = 2;
const PACED_SHARE_OF_A_SECOND: u64 = 1000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::driver;
    use bytes::Bytes;
    use offload_api::{NetDevice, NoRecords, TxAsk};
    use offload_formats::protocol::{ICMP, TCP, UDP};

    /// Builds TCP or UDP headers, in which the device fills in lengths and checksums, and `payload` bytes.
    fn packet(protocol: u8, payload: usize, ask: TxAsk) -> TxPacket {
        let mut header = vec![2; 12];
        header.extend_from_slice(&[8, 0, 0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        let ports = [1, 0xbb, 0x13, 0x88];
        header.extend_from_slice(&ports);
        let tcp = [0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0];
        header.extend_from_slice(if protocol == TCP { &tcp } else { &[0; 4] });
        TxPacket { header: header.into(), fragments: [Bytes::from(vec![1; payload])].into_iter().collect(), ask }
    }

    #[test]
    fn driver_refuses_packets_beyond_device_capabilities() {
        let able = NicConfig::default;
        // Each row of the table changes one capability or one request, so that a failure names its cause.
        let cut = |mss| TxAsk { mss: Some(mss), ..TxAsk::default() };
        let checked = TxAsk { checksum: true, ..TxAsk::default() };
        let paced = TxAsk { rate: NonZeroU64::new(1_000_000), ..TxAsk::default() };
        let cuts_no_datagrams = || NicConfig { udp_segmentation: false, ..able() };
        for (config, protocol, payload, ask, is_sent) in [
            // An MTU of 1,500 bytes, with 40 bytes for the TCP and IP headers.
            (able(), TCP, 1460, TxAsk::default(), true),
            (able(), TCP, 1461, TxAsk::default(), false),
            (able(), TCP, 5000, cut(1460), true),
            (able(), TCP, 5000, cut(1461), false),
            (able(), TCP, 5000, cut(0), false),
            (able(), TCP, 64 << 10, cut(1000), true),
            (able(), TCP, (64 << 10) + 1, cut(1000), false),
            (able(), UDP, 5000, cut(1000), true),
            (cuts_no_datagrams(), UDP, 5000, cut(1000), false),
            (cuts_no_datagrams(), TCP, 5000, cut(1000), true),
            (cuts_no_datagrams(), ICMP, 5000, cut(1000), true),
            (able(), TCP, 100, paced, true),
            (able(), ICMP, 100, paced, false),
            (NicConfig { pacing: false, ..able() }, TCP, 100, paced, false),
            (able(), TCP, 100, checked, true),
            (NicConfig { checksum_offload: false, ..able() }, TCP, 100, checked, false),
            (NicConfig { checksum_offload: false, ..able() }, TCP, 100, TxAsk::default(), true),
        ] {
            let (_device, mut driver) = driver(config);
            let sent = driver.transmit(Instant::ZERO, packet(protocol, payload, ask), &NoRecords);
            let expected =
                if is_sent { TransmitResult::Posted } else { TransmitResult::Dropped(DropReason::Unsupported) };
            assert_eq!(sent, expected, "protocol {protocol}, {payload} bytes, {ask:?}");
            assert_eq!(driver.counters().tx_drop_unsupported, u64::from(!is_sent));
        }
    }
}
