//! Packets to descriptors.
//!
//! The driver shadows, for every transmit context, the sequence number the device expects next. A packet that
//! starts there is posted as it is. Any other makes the driver rebuild the context first: static parameters
//! (skipped when the record number is the one the device counts from already), progress parameters, a fence,
//! DUMPs with the record's bytes before the packet, all on the ring the packet goes to; and the shadow moves
//! when all are posted.

use crate::config::NicConfig;
use crate::driver::Driver;
use crate::packet::SendDescriptor;
use bytes::Bytes;
use core::cell::Cell;
use offload_api::{DropReason, Handle, Layer, Lookup, RecordSource, Sent, TxPacket, Unit};
use offload_base::{Instant, Seq};
use std::collections::VecDeque;

/// What is on its way to the device.
#[derive(Debug, Default)]
pub(super) struct SendQueue {
    /// Payload bytes of each descriptor not reported done, oldest first.
    under_way: VecDeque<u32>,
    bytes: usize,
    /// Descriptors posted since the beginning.
    pub(super) posted: u64,
    /// Somebody was told that there is no room, and waits.
    starved: Cell<bool>,
}

impl SendQueue {
    /// How many packets fit, should each of them need a resync from the far end of the longest record.
    pub(super) fn room(&self, config: &NicConfig) -> usize {
        let free = config.send_ring - self.under_way.len();
        let room = if self.bytes >= config.send_queue_bytes { 0 } else { free / descriptors_at_most(config) };
        self.starved.set(room == 0);
        room
    }

    pub(super) fn is_starved(&self) -> bool {
        self.starved.get()
    }

    /// Descriptors reported done since the beginning.
    pub(super) fn done(&self) -> u64 {
        self.posted - self.under_way.len() as u64
    }

    fn note_done(&mut self, descriptors: u32) {
        for bytes in self.under_way.drain(..descriptors as usize) {
            self.bytes -= bytes as usize;
        }
    }
}

impl Driver {
    /// Posts a packet, with whatever its context needs before it.
    pub(super) fn post_packet(&mut self, _now: Instant, packet: TxPacket, source: &dyn RecordSource) -> Sent {
        if !self.can_send(&packet) {
            self.counters.tx_drop_unsupported += 1;
            return Sent::Dropped(DropReason::Unsupported);
        }
        if self.config.send_ring - self.send.under_way.len() < descriptors_at_most(&self.config) {
            self.counters.tx_queue_dropped += 1;
            return Sent::Dropped(DropReason::RingFull);
        }
        let Some(handle) = packet.ask.context else {
            self.post(SendDescriptor::Packet(packet));
            return Sent::Posted;
        };
        let (seq, bytes) = (packet.ask.seq, packet.payload_len() as u32);
        if !self.contexts.can_transmit(handle) {
            return self.send_back(seq, source);
        }
        if self.contexts.expected(handle) != Some(seq)
            && let Err(dropped) = self.resync(handle, seq, bytes, source)
        {
            return dropped;
        }
        self.post(SendDescriptor::Packet(packet));
        self.contexts.note_posted(handle, seq + bytes, self.send.posted);
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
            self.send.note_done(completion.descriptors);
            any = true;
        }
        if any {
            self.finish_removals();
        }
    }

    /// What the device could not do is refused here, where it can still be told.
    fn can_send(&self, packet: &TxPacket) -> bool {
        let payload = packet.payload_len();
        let frame = packet.header.len() + payload;
        let fits = match packet.ask.mss {
            None => frame <= usize::from(self.config.mtu) + crate::device::ETHERNET_HEADER,
            Some(mss) => {
                let segment = packet.header.len() + usize::from(mss);
                mss > 0
                    && payload <= self.config.tso_max_bytes as usize
                    && segment <= usize::from(self.config.mtu) + crate::device::ETHERNET_HEADER
            }
        };
        fits && (self.config.checksum_offload || !packet.ask.checksum)
    }

    /// A packet whose context the device does not have any more: its unit has to be sealed in software.
    fn send_back(&mut self, seq: Seq, source: &dyn RecordSource) -> Sent {
        match source.unit_at(Layer::Tls, seq) {
            Lookup::In(unit) => {
                self.counters.tx_tls_needs_software += 1;
                Sent::NeedsSoftware(unit)
            }
            Lookup::BeforeStart | Lookup::Released => {
                self.counters.tx_tls_drop_bypass_req += 1;
                Sent::Dropped(DropReason::DeviceGone)
            }
        }
    }

    /// Brings the device's context to `seq`.
    fn resync(&mut self, handle: Handle, seq: Seq, bytes: u32, source: &dyn RecordSource) -> Result<(), Sent> {
        let Lookup::In(unit) = source.unit_at(Layer::Tls, seq) else {
            self.counters.tx_tls_drop_no_sync_data += 1;
            return Err(Sent::Dropped(DropReason::NoSyncData));
        };
        let Some(dumps) = self.dumps_of(handle, unit, seq, source) else {
            return Err(self.send_back(seq, source));
        };
        if self.contexts.has_sent(handle) {
            self.counters.tx_tls_ooo += 1;
            self.counters.tx_tls_resync_bytes += u64::from(bytes);
        }
        if self.contexts.counts_from(handle) != Some(unit.number) {
            self.post(SendDescriptor::TlsStatic { handle, number: unit.number });
            self.contexts.note_counts_from(handle, unit.number);
        }
        self.post(SendDescriptor::TlsProgress { handle, start: unit.start });
        self.post(SendDescriptor::Fence);
        for dump in dumps {
            self.post(dump);
        }
        Ok(())
    }

    /// The bytes of `unit` before `seq`, each DUMP at most an MTU of them. `None`: it takes too many.
    fn dumps_of(
        &mut self,
        handle: Handle,
        unit: Unit,
        seq: Seq,
        source: &dyn RecordSource,
    ) -> Option<Vec<SendDescriptor>> {
        let mut dumps = Vec::new();
        let mut at = unit.start;
        let most = usize::from(self.config.mtu);
        source.bytes(Layer::Tls, unit.start, seq, &mut |mut bytes: Bytes| {
            while !bytes.is_empty() {
                let piece = bytes.split_to(bytes.len().min(most));
                let piece_seq = at;
                at += piece.len() as u32;
                dumps.push(SendDescriptor::Dump { handle, seq: piece_seq, bytes: piece });
            }
        });
        if at != seq || dumps.len() > dumps_at_most(&self.config) {
            return None;
        }
        self.counters.tx_tls_dump_packets += dumps.len() as u64;
        self.counters.tx_tls_dump_bytes += u64::from(seq.distance_from(unit.start));
        Some(dumps)
    }

    fn post(&mut self, descriptor: SendDescriptor) {
        let bytes = match &descriptor {
            SendDescriptor::Packet(packet) => packet.payload_len() as u32,
            SendDescriptor::Dump { bytes, .. } => bytes.len() as u32,
            SendDescriptor::TlsStatic { .. } | SendDescriptor::TlsProgress { .. } | SendDescriptor::Fence => 0,
        };
        let staged = self.rings.send.stage(descriptor);
        debug_assert!(staged.is_ok(), "room for the worst case was made sure of");
        self.send.under_way.push_back(bytes);
        self.send.bytes += bytes as usize;
        self.send.posted += 1;
    }
}

/// Static parameters, progress parameters, fence, DUMPs, and the packet itself.
pub(super) fn descriptors_at_most(config: &NicConfig) -> usize {
    3 + dumps_at_most(config) + 1
}

/// DUMPs are cut at the MTU and at the ends of what was queued. A record comes as header, payload and trailer;
/// its payload may be of several pieces, and what has more of them than this is cheaper to seal in software.
fn dumps_at_most(config: &NicConfig) -> usize {
    LONGEST_UNIT.div_ceil(usize::from(config.mtu)) + PIECES_OF_A_UNIT
}

/// A TLS record with header, longest ciphertext and all: RFC 8446 5.2.
const LONGEST_UNIT: usize = 5 + (1 << 14) + 256;
const PIECES_OF_A_UNIT: usize = 16;
