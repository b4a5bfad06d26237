//! Packets of TLS contexts whose records hold PDUs, the digests of which the device fills in first.
//!
//! Two contexts work on such a packet, and either may stand elsewhere: the one for TLS has to come back to the record, and
//! then the one for digests may be needed where that begins, for the tag is over them too. One DUMP descriptor names the
//! lowest layer that its bytes go through: those of the PDU before the record go to the digest engine alone, those of the
//! record before the packet go through both, as far as they are PDUs that still need their digest.
//!
//! As without TLS, what holds no digest and was sent before leaves without the digest context, and does not disturb it; and a
//! PDU whose DUMPs would be too many has its digest made by software, once.
//!
//! Invariant: no byte of a digest is encrypted, in a packet or a DUMP, but as the context made it, in step, or software.

use crate::driver::Driver;
use crate::driver::digests::{DIGEST_BYTES, has_digest};
use crate::driver::resync::dumps_at_most;
use crate::packet::SendDescriptor;
use bytes::Bytes;
use offload_api::{DropReason, Handle, Layer, Lookup, RecordSource, Sent, TxPacket, Unit, UnitPlace, UnitTag};
use offload_base::Seq;

/// Bytes of a PDU that still needs its digest.
#[derive(Clone, Copy, Debug)]
struct Content {
    context: Handle,
    /// Where the first of them is.
    seq: Seq,
    tag: UnitTag,
    /// How many there are.
    bytes: u32,
}

impl Driver {
    /// Whether the digest context that a packet asks for, if it does, stands where it begins.
    pub(super) fn digests_in_step(&mut self, packet: &TxPacket) -> bool {
        packet.ask.digests.is_none_or(|ask| {
            self.nvme.transmit(ask.context).is_some_and(|transmit| transmit.stands_at == Some(ask.first))
        })
    }

    /// Posts what brings the contexts of a packet to it. The packet asks for no digests then, if it needs none.
    ///
    /// # Errors
    /// What becomes of the packet otherwise; nothing was posted.
    pub(super) fn restore_both(
        &mut self,
        handle: Handle,
        packet: &mut TxPacket,
        source: &dyn RecordSource,
    ) -> Result<(), Sent> {
        let (seq, bytes) = (packet.ask.seq, packet.payload_len() as u32);
        let record = match self.contexts.expected(handle) == Some(seq) {
            true => None,
            false => Some(self.record_to_restore(handle, seq, source)?),
        };
        if self.nvme.was_never_used() {
            return self.restore_record(handle, record, seq, bytes, None, source);
        }
        let from = record.map_or(seq, |record| record.start);
        let before = content(from, seq, source);
        let within = content(seq, seq + bytes, source);
        let mut digest = self.first_digest(&before, source)?;
        if digest.is_none() {
            if self.digests_in_step(packet) {
                return self.restore_record(handle, record, seq, bytes, None, source);
            }
            // What is sent for the first time is followed, for a digest will come.
            let is_new = packet.ask.digests.is_some_and(|ask| {
                let transmit = self.nvme.transmit(ask.context);
                transmit.is_some_and(|transmit| transmit.sent_to.is_none_or(|sent_to| ask.first >= sent_to))
            });
            digest = self.first_digest(&within, source)?;
            if digest.is_none() && !is_new {
                return self.restore_without_digests(handle, record, packet, source);
            }
        }
        let all = || before.iter().chain(&within);
        let Some(first) = all().next().copied() else {
            return self.restore_without_digests(handle, record, packet, source);
        };
        let is_alike = all().all(|content| content.context == first.context);
        let known = self.nvme.transmit(first.context).copied().filter(|_| is_alike);
        let dumps = known.and_then(|_| self.dumps_before(first, record, seq, source));
        let Some(dumps) = dumps else {
            let Some(unit) = digest else {
                return self.restore_without_digests(handle, record, packet, source);
            };
            self.counters.tx_nvmeotcp_needs_software += 1;
            return Err(Sent::NeedsSoftware(unit));
        };
        let begun = known.is_some_and(|transmit| transmit.stands_at.is_some());
        self.counters.tx_nvmeotcp_ooo += u64::from(begun);
        self.counters.tx_nvmeotcp_dump_packets += dumps.len() as u64;
        self.counters.tx_nvmeotcp_dump_bytes += u64::from(first.tag.at);
        self.post(SendDescriptor::ProgressParameters { handle: first.context, start: first.seq - first.tag.at });
        // If nothing of a PDU comes first, the fence behind the record's parameters is theirs, too.
        if record.is_none() || !dumps.is_empty() {
            self.post(SendDescriptor::Fence);
        }
        for bytes in dumps {
            self.post(SendDescriptor::DumpContent { handle: first.context, bytes });
        }
        if let Some(transmit) = self.nvme.transmit(first.context) {
            let place = before.last().map(|last| UnitPlace::behind(last.tag, last.bytes));
            transmit.stands_at = place.or(Some(UnitPlace::of(first.tag)));
        }
        self.restore_record(handle, record, seq, bytes, Some(first.context), source)
    }

    /// A packet with contexts in step was posted: they stand behind it.
    pub(super) fn note_digests_sent(&mut self, packet: &TxPacket, sent_to: Option<(Handle, UnitPlace)>) {
        if let Some((context, place)) = sent_to
            && let Some(transmit) = self.nvme.transmit(context)
        {
            transmit.sent_to = transmit.sent_to.max(Some(place));
            if packet.ask.digests.is_some() {
                transmit.stands_at = Some(place);
            }
        }
    }

    /// Brings the TLS context back for a packet that leaves without the digest context.
    fn restore_without_digests(
        &mut self,
        handle: Handle,
        record: Option<Unit>,
        packet: &mut TxPacket,
        source: &dyn RecordSource,
    ) -> Result<(), Sent> {
        let (seq, bytes) = (packet.ask.seq, packet.payload_len() as u32);
        self.counters.tx_nvmeotcp_bypass += u64::from(packet.ask.digests.take().is_some());
        self.restore_record(handle, record, seq, bytes, None, source)
    }

    fn restore_record(
        &mut self,
        handle: Handle,
        record: Option<Unit>,
        seq: Seq,
        bytes: u32,
        through: Option<Handle>,
        source: &dyn RecordSource,
    ) -> Result<(), Sent> {
        record.map_or(Ok(()), |record| self.resync(handle, record, seq, bytes, through, source))
    }

    /// The bytes of the PDU before `first`, for the digest engine alone. `None`: with those of the record before the packet
    /// at `seq`, they take too many descriptors.
    fn dumps_before(
        &self,
        first: Content,
        record: Option<Unit>,
        seq: Seq,
        source: &dyn RecordSource,
    ) -> Option<Vec<Bytes>> {
        let (most, mtu) = (dumps_at_most(&self.config), usize::from(self.config.mtu));
        if first.tag.at as usize > most * mtu {
            return None;
        }
        let mut dumps = Vec::new();
        if first.tag.at > 0 {
            let Lookup::In(unit) = source.unit_at(Layer::NvmeTcp, first.seq) else { return None };
            let mut missing = first.tag.at as usize;
            source.bytes(Layer::NvmeTcp, unit.start, first.seq, &mut |mut bytes: Bytes| {
                missing = missing.saturating_sub(bytes.len());
                while !bytes.is_empty() {
                    dumps.push(bytes.split_to(bytes.len().min(mtu)));
                }
            });
            if missing > 0 {
                return None;
            }
        }
        let Some(record) = record else { return (dumps.len() <= most).then_some(dumps) };
        // Progress parameters and their fence.
        let mut descriptors = dumps.len() + 2;
        source.bytes(Layer::Tls, record.start, seq, &mut |bytes| descriptors += bytes.len().div_ceil(mtu));
        (descriptors <= most).then_some(dumps)
    }

    /// The first PDU with a byte of its data digest among `content`.
    fn first_digest(&mut self, content: &[Content], source: &dyn RecordSource) -> Result<Option<Unit>, Sent> {
        for part in content {
            if part.tag.at + part.bytes + DIGEST_BYTES <= part.tag.len {
                continue;
            }
            let Lookup::In(unit) = source.unit_at(Layer::NvmeTcp, part.seq) else {
                self.counters.tx_nvmeotcp_drop_no_sync_data += 1;
                return Err(Sent::Dropped(DropReason::NoSyncData));
            };
            if has_digest(unit, source) {
                return Ok(Some(unit));
            }
        }
        Ok(None)
    }
}

/// What still needs digests of the bytes from `from` up to `to`.
fn content(from: Seq, to: Seq, source: &dyn RecordSource) -> Vec<Content> {
    let (mut all, mut seq) = (Vec::new(), from);
    if from == to {
        return all;
    }
    source.pieces(Layer::Tls, from, to, &mut |bytes, tag| {
        let bytes = bytes.len() as u32;
        if let (Some(context), Some(tag)) = (tag.digests, tag.unit(Layer::NvmeTcp)) {
            all.push(Content { context, seq, tag, bytes });
        }
        seq += bytes;
    });
    all
}
