//! Packets whose data digests the device fills in.
//!
//! Unlike a cipher, a digest is a few bytes of a PDU, and all others leave as they were queued. So a packet that is sent
//! again and holds no digest needs no context, and does not disturb the one there is. One that does hold a digest, and is
//! not what the context expects, has the context rebuilt as with TLS: at the PDU, then DUMPs of what is before the packet.
//! If those would be too many, or the context is gone, software makes the digest.
//!
//! Invariant: no packet with a digest in it leaves but through the context, in step, or with the digest made.

use crate::driver::Driver;
use crate::packet::SendDescriptor;
use bytes::Bytes;
use offload_api::{DropReason, Handle, Layer, Lookup, RecordSource, Sent, TxPacket, Unit};
use offload_base::Seq;
use offload_formats::nvme::PduHeader;

impl Driver {
    /// Posts a packet of an NVMe/TCP transmit context, for which there is room.
    pub(super) fn post_digested(&mut self, handle: Handle, mut packet: TxPacket, source: &dyn RecordSource) -> Sent {
        let seq = packet.ask.seq;
        let end = seq + packet.payload_len() as u32;
        let transmit = self.nvme.transmit(handle).copied();
        let in_step = transmit.is_some_and(|transmit| transmit.expected == Some(seq));
        if !in_step {
            let digested = match first_digest(seq, end, source) {
                Ok(digested) => digested,
                Err(Unknown) => {
                    self.counters.tx_nvmeotcp_drop_no_sync_data += 1;
                    return Sent::Dropped(DropReason::NoSyncData);
                }
            };
            // What is sent for the first time is followed, for a digest will come.
            let is_new = transmit.is_some_and(|transmit| transmit.reached.is_none_or(|reached| !seq.before(reached)));
            let followed = transmit.is_some() && (digested.is_some() || is_new) && {
                let begun = transmit.is_some_and(|transmit| transmit.expected.is_some());
                self.counters.tx_nvmeotcp_ooo += u64::from(begun);
                self.restore_digest(handle, seq, source)
            };
            match digested {
                Some(unit) if !followed => {
                    self.counters.tx_nvmeotcp_needs_software += 1;
                    return Sent::NeedsSoftware(unit);
                }
                None if !followed => {
                    packet.ask.context = None;
                    self.counters.tx_nvmeotcp_bypass += 1;
                }
                _ => {}
            }
        }
        if let Some(transmit) = self.nvme.transmit(handle) {
            if packet.ask.context.is_some() {
                transmit.expected = Some(end);
            }
            transmit.reached = Some(transmit.reached.map_or(end, |reached| reached.max(end)));
        }
        self.post(SendDescriptor::Packet(packet));
        Sent::Posted
    }

    /// Brings the context to `seq`; false, and nothing was posted, if that takes too much.
    fn restore_digest(&mut self, handle: Handle, seq: Seq, source: &dyn RecordSource) -> bool {
        let Lookup::In(unit) = source.unit_at(Layer::NvmeTcp, seq) else { return false };
        let Some(dumps) = self.dumps_of(handle, unit, seq, None, source) else { return false };
        self.counters.tx_nvmeotcp_dump_packets += dumps.len() as u64;
        self.counters.tx_nvmeotcp_dump_bytes += u64::from(seq.distance_from(unit.start));
        self.post(SendDescriptor::ProgressParameters { handle, start: unit.start });
        self.post(SendDescriptor::Fence);
        dumps.into_iter().for_each(|dump| self.post(dump));
        true
    }
}

/// The queue no longer knows a PDU.
struct Unknown;

/// The first PDU with a byte of its data digest among those from `seq` to `end`.
fn first_digest(seq: Seq, end: Seq, source: &dyn RecordSource) -> Result<Option<Unit>, Unknown> {
    let mut at = seq;
    while at.before(end) {
        let Lookup::In(unit) = source.unit_at(Layer::NvmeTcp, at) else { return Err(Unknown) };
        if (unit.end - DIGEST_BYTES).before(end) && has_digest(unit, source) {
            return Ok(Some(unit));
        }
        at = unit.end;
    }
    Ok(None)
}

/// Whether the flags in a PDU's header say that a data digest ends it.
pub(super) fn has_digest(unit: Unit, source: &dyn RecordSource) -> bool {
    let mut first = [0; PduHeader::BYTES];
    // Mostly the first bytes are in one piece; in records they may not be.
    for end in [unit.start + first.len() as u32, unit.end] {
        let mut at = 0;
        source.bytes(Layer::NvmeTcp, unit.start, end, &mut |bytes: Bytes| {
            let taken = bytes.len().min(first.len() - at);
            first[at..at + taken].copy_from_slice(&bytes[..taken]);
            at += taken;
        });
        if at == first.len() {
            break;
        }
    }
    PduHeader::parse(&first).has_data_digest()
}

pub(super) const DIGEST_BYTES: u32 = 4;
