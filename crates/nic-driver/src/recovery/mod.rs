//! Restoration of transmit contexts that are not at the beginning of a packet, for any engines.
//!
//! - **DUMP** rebuilds the context at the packet, with descriptors on the packet's own ring: static parameters (omitted
//!   if the device counts from the unit's number already, or the engine does not count), progress parameters, a fence,
//!   and DUMPs with the unit's bytes before the packet.
//! - **Next record** leaves packets after the context, or in the middle of a unit, to software. The context restarts
//!   at a packet ahead of the context that begins a unit, with parameters and a fence. No bytes are read twice. A unit
//!   sealed by software stays sealed in the send queue, so repeated retransmissions cause the work only once.
//!
//! If units of one layer lie in the content of another, a packet has two contexts, and either may be out of place. The
//! lower context is examined first, because the bytes of its DUMPs may need the higher one. A DUMP passes through its
//! own context and those above. An engine that processes whole blocks is given the bytes that follow a packet in its
//! unit ([`looks_ahead`](offload_api::EngineInfo::looks_ahead)), and those that follow a DUMP with content for a lower
//! engine.
//!
//! A context is needed where the engine changes a byte ([`UnitTag::touched_from`](offload_api::UnitTag::touched_from)),
//! and to follow first transmissions, because such a byte will come. A retransmission without such a byte is sent
//! without the context, and does not disturb it. If too many DUMPs would be needed, or the context is gone, software
//! seals the unit.
//!
//! A device that identifies packets by sequence numbers passes packets from before a context's start unchanged
//! (`tx_tls_skip_no_sync_data` in Linux), and must refuse a packet that straddles the start. Neither occurs here: each
//! range of the send queue carries its contexts, a packet has one context per layer, and bytes queued before a context
//! existed request none. If a transport contradicts this, its packet is dropped, because a packet that requests
//! encryption never leaves without it.
//!
//! If the device reports a packet as not sent, for example because of a missing key, all contexts of the packet are
//! restarted.
//!
//! Invariants: the driver's position of a context moves only when all descriptors are posted, and not if the packet is
//! left to software. A byte that an engine changes leaves, or is sealed by a lower engine, only as written by an engine
//! at the right position, or by software.

use crate::Driver;
use bytes::{Bytes, BytesMut};
use nic_rings::packet::SendDescriptor;
use nic_rings::{EngineDescription, NicConfig, TransmitResync};
use offload_api::{
    DropReason, Handle, LAYERS, Layer, Lookup, QueuedBytes, RecordSource, StreamAsk, TransmitResult, TxPacket, TxTag,
    Unit,
};
use offload_base::Seq;

/// The driver's record of a transmit context: positions in its layer's stream.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TransmitPosition {
    /// Position of the device. `None` before the first parameters, and after a failed descriptor.
    stands_at: Option<u64>,
    /// End of the bytes sent so far, with or without the context.
    sent_to: Option<u64>,
    /// Unit number in the device's static parameters.
    counts_from: Option<u64>,
}

/// A range of bytes that needs a context.
#[derive(Clone, Copy, Debug)]
struct StreamPart {
    context: Handle,
    offset: u64,
    bytes: u32,
}

impl StreamPart {
    fn end(&self) -> u64 {
        self.offset + u64::from(self.bytes)
    }
}

/// The action at a layer before a packet is posted.
enum RecoveryStep {
    /// No action, because the context is in position, or there is no context.
    Ready,
    /// The packet is sent without the context.
    Bypass,
    Begin(ContextRestart),
}

/// The bytes of one DUMP.
struct DumpBytes {
    bytes: Bytes,
    /// Contexts of other layers that process the bytes.
    tag: TxTag,
    /// Position in the stream of the layer above.
    above: u64,
    /// Bytes that follow in the stream of the layer above, if a context there needs them.
    ahead: Bytes,
}

/// The restart of a context.
struct ContextRestart {
    context: Handle,
    /// Unit at which the context restarts.
    unit: Unit,
    /// Bytes of the unit before the packet, or before the bytes that the DUMPs of a lower layer bring.
    dumps: Vec<DumpBytes>,
    /// End of the DUMPs.
    from: u64,
    /// Position of the context before the packet.
    until: u64,
}

impl Driver {
    /// Posts a packet that needs contexts, and the descriptors to restore them. The caller has checked for room.
    pub(super) fn post_in_step(&mut self, mut packet: TxPacket, source: &dyn RecordSource) -> TransmitResult {
        let asked = packet.ask.streams;
        let ahead = match self.ahead_of(&packet, source) {
            Ok(ahead) => ahead,
            Err(unit) => return TransmitResult::NeedsSoftware(unit),
        };
        let is_in_step = asked.iter().flatten().all(|ask| self.stands_at(ask.context) == Some(ask.offset));
        if !is_in_step && let Err(sent) = self.restore(&mut packet, source) {
            return sent;
        }
        // Everything is posted from here on, so the positions may move. A bypassed context stays where it is.
        for (ask, works) in asked.into_iter().zip(packet.ask.streams) {
            if let Some(ask) = ask
                && let Some(sending) = self.contexts.sending_mut(ask.context)
            {
                sending.sent_to = sending.sent_to.max(Some(ask.end()));
                if works.is_some() {
                    sending.stands_at = Some(ask.end());
                }
            }
        }
        if let Some((context, bytes)) = ahead.filter(|(of, _)| asks_for(&packet, *of)) {
            self.post(SendDescriptor::Ahead { context, bytes });
        }
        self.post(SendDescriptor::Packet(packet));
        TransmitResult::Posted
    }

    /// Returns the bytes that follow a packet in a unit that the packet cuts, with the context that may need them.
    ///
    /// # Errors
    /// Returns the unit if its bytes are not in the queue as they were first queued.
    fn ahead_of(&self, packet: &TxPacket, source: &dyn RecordSource) -> Result<Option<(Handle, Bytes)>, Unit> {
        for (layer, ask) in Layer::ALL.into_iter().zip(packet.ask.streams) {
            let Some(ask) = ask else { continue };
            let ahead = self.ahead(layer, ask.context, ask.end(), source)?;
            if !ahead.is_empty() {
                return Ok(Some((ask.context, ahead)));
            }
        }
        Ok(None)
    }

    /// Returns the bytes that follow `end` in the unit of a layer, as far as the context needs them to change earlier
    /// bytes.
    ///
    /// # Errors
    /// Returns the unit if its bytes are not in the queue as they were first queued.
    fn ahead(&self, layer: Layer, context: Handle, end: u64, source: &dyn RecordSource) -> Result<Bytes, Unit> {
        // Most engines need no bytes ahead, and then the transport is not asked.
        let looks_ahead = self.description(context.engine()).map_or(0, |engine| engine.info.looks_ahead);
        if looks_ahead == 0 {
            return Ok(Bytes::new());
        }
        let Lookup::In(unit) = source.unit_at(layer, end) else { return Ok(Bytes::new()) };
        if unit.offset == end || !unit.is_touched_before(end) {
            return Ok(Bytes::new());
        }
        let until = unit.end().min(end + looks_ahead as u64);
        let mut bytes = BytesMut::new();
        let mut is_queued = true;
        source.pieces(layer, end, until, &mut |piece| {
            // Bytes that software has sealed meanwhile are ciphertext, which the engine cannot use as content.
            is_queued &= piece.tag.context(layer) == Some(context);
            bytes.extend_from_slice(&piece.bytes);
        });
        if is_queued && bytes.len() as u64 == until - end { Ok(bytes.freeze()) } else { Err(unit) }
    }

    /// Posts the descriptors that restore a packet's contexts, and removes unneeded contexts from the packet.
    ///
    /// # Errors
    /// Returns the fate of the packet. Nothing was posted then.
    fn restore(&mut self, packet: &mut TxPacket, source: &dyn RecordSource) -> Result<(), TransmitResult> {
        // First pass, upwards: decide without posting, because an error must leave the ring unchanged.
        let mut steps = Layer::ALL.map(|_| RecoveryStep::Ready);
        let mut brought = Vec::new();
        for layer in Layer::ALL {
            let ask = packet.ask.streams[layer.index()];
            let below = &steps[..layer.index()];
            let step = self.step(layer, ask, &brought, below, source)?;
            brought = match (&step, layer.above()) {
                (RecoveryStep::Begin(begin), Some(above)) => begin.brings(above, source),
                _ => Vec::new(),
            };
            steps[layer.index()] = step;
        }
        let bytes = packet.payload_len();
        // Second pass, downwards: a lower context's DUMPs pass the higher context, which must be in position first.
        for layer in Layer::ALL.into_iter().rev() {
            let (lower, rest) = steps.split_at_mut(layer.index());
            let [step, higher @ ..] = rest else { continue };
            match step {
                RecoveryStep::Ready => {}
                RecoveryStep::Bypass => {
                    let ask = packet.ask.streams[layer.index()].take();
                    ask.into_iter().for_each(|ask| self.counts.for_context(ask.context).bypass += 1);
                }
                RecoveryStep::Begin(begin) => {
                    let fence_follows = lower.iter().any(|step| matches!(step, RecoveryStep::Begin(_)));
                    self.begin(layer, begin, higher, fence_follows, bytes);
                }
            }
        }
        Ok(())
    }

    /// Determines the action of a layer for a packet that requests `ask`. The DUMPs of the layer below bring the bytes
    /// `brought`, which end where the packet begins.
    fn step(
        &mut self,
        layer: Layer,
        ask: Option<StreamAsk>,
        brought: &[StreamPart],
        below: &[RecoveryStep],
        source: &dyn RecordSource,
    ) -> Result<RecoveryStep, TransmitResult> {
        let within = ask.map(|ask| StreamPart { context: ask.context, offset: ask.offset, bytes: ask.bytes });
        let mut needed = self.first_touched(layer, brought, source)?;
        if needed.is_none() {
            let Some(part) = within else { return Ok(RecoveryStep::Ready) };
            let sending = self.contexts.sending(part.context).copied();
            if sending.is_some_and(|sending| sending.stands_at == Some(part.offset)) {
                return Ok(RecoveryStep::Ready);
            }
            // A first transmission moves the context along even without changed bytes, or it would be out of place for
            // the next packet.
            let is_new = sending.is_some_and(|at| at.sent_to.is_none_or(|sent_to| part.offset >= sent_to));
            needed = self.first_touched(layer, &[part], source)?;
            if needed.is_none() && !is_new {
                return Ok(RecoveryStep::Bypass);
            }
        }
        match self.beginning(layer, brought, within, below, source) {
            Some(begin) => Ok(RecoveryStep::Begin(begin)),
            None => match needed {
                Some(unit) => {
                    let context = brought.first().copied().or(within).map(|part| part.context);
                    context.into_iter().for_each(|context| self.counts.for_context(context).needs_software += 1);
                    Err(TransmitResult::NeedsSoftware(unit))
                }
                None => Ok(RecoveryStep::Bypass),
            },
        }
    }

    /// Plans the restart of a context at the first of some bytes. Returns `None` if that is impossible, or takes too
    /// many DUMPs.
    fn beginning(
        &mut self,
        layer: Layer,
        brought: &[StreamPart],
        within: Option<StreamPart>,
        below: &[RecoveryStep],
        source: &dyn RecordSource,
    ) -> Option<ContextRestart> {
        let first = brought.first().copied().or(within)?;
        let parts = brought.iter().chain(&within);
        // One restart serves one context. A packet with bytes of two needs software.
        if parts.clone().any(|part| part.context != first.context) {
            return None;
        }
        // Software may have sealed the bytes in between, and an engine that counts units would then have a wrong number
        // after the gap.
        if parts.clone().zip(parts.skip(1)).any(|(part, next)| part.end() != next.offset) {
            return None;
        }
        let sending = self.contexts.sending(first.context).copied()?;
        let Lookup::In(unit) = source.unit_at(layer, first.offset) else { return None };
        let resync = self.transmit_resync(first.context);
        if resync == TransmitResync::NextRecord {
            // Going back would need the bytes in between again, which this method never reads twice.
            let is_ahead = sending.stands_at.is_none_or(|stands_at| first.offset > stands_at);
            if !is_ahead || first.offset != unit.offset {
                self.counts.for_context(first.context).ooo += 1;
                return None;
            }
        }
        let most = dumps_at_most(&self.config, resync);
        let dumps = self.dumps_of(unit, first.offset, most, source)?;
        let until = brought.last().map_or(first.offset, |last| last.end());
        let begin = ContextRestart { context: first.context, unit, dumps, from: first.offset, until };
        let lower = below.iter().filter_map(|step| match step {
            RecoveryStep::Begin(begin) => Some(begin.dumps.len() + PARAMETERS),
            _ => None,
        });
        let lower: usize = lower.sum();
        // The room on the ring was checked for one restart. A second one must fit into the same room.
        (lower == 0 || begin.dumps.len() + lower <= most).then_some(begin)
    }

    /// Cuts the bytes of `unit` before `until` into DUMPs of at most an MTU. Returns `None` if bytes are missing, or
    /// too many.
    fn dumps_of(&self, unit: Unit, until: u64, most: usize, source: &dyn RecordSource) -> Option<Vec<DumpBytes>> {
        let longest = usize::from(self.config.mtu);
        let missing = usize::try_from(until - unit.offset).ok().filter(|bytes| *bytes <= most * longest)?;
        if missing == 0 {
            return Some(Vec::new());
        }
        let (mut dumps, mut there, mut is_known) = (Vec::new(), 0, true);
        source.pieces(unit.layer, unit.offset, until, &mut |QueuedBytes { mut bytes, tag, offsets }| {
            there += bytes.len();
            let above = unit.layer.above().and_then(|layer| Some((layer, tag.context(layer)?)));
            let mut at = above.map_or(0, |(layer, _)| offsets[layer.index()]);
            while !bytes.is_empty() {
                let bytes = bytes.split_to(bytes.len().min(longest));
                let from = at;
                at += bytes.len() as u64;
                let ahead = above.map_or(Ok(Bytes::new()), |(layer, context)| self.ahead(layer, context, at, source));
                is_known &= ahead.is_ok();
                dumps.push(DumpBytes { bytes, tag, above: from, ahead: ahead.unwrap_or_default() });
            }
        });
        (is_known && there == missing && dumps.len() <= most).then_some(dumps)
    }

    /// Returns the first unit with a byte among `parts` that an engine changes.
    fn first_touched(
        &mut self,
        layer: Layer,
        parts: &[StreamPart],
        source: &dyn RecordSource,
    ) -> Result<Option<Unit>, TransmitResult> {
        for part in parts {
            let end = part.end();
            let mut at = part.offset;
            while at < end {
                let unit = match source.unit_at(layer, at) {
                    Lookup::In(unit) => unit,
                    lookup => return Err(self.drop_without_unit(part.context, lookup)),
                };
                if unit.is_touched_before(end) {
                    return Ok(Some(unit));
                }
                at = unit.end();
            }
        }
        Ok(None)
    }

    /// Drops a packet because the transport does not know the unit of a byte that needs a context.
    fn drop_without_unit(&mut self, context: Handle, lookup: Lookup) -> TransmitResult {
        let recovery = self.counts.for_context(context);
        match lookup {
            Lookup::Released => recovery.no_sync_data += 1,
            _ => recovery.no_unit += 1,
        }
        let is_known = self.contexts.sending(context).is_some();
        TransmitResult::Dropped(if is_known { DropReason::NoSyncData } else { DropReason::DeviceGone })
    }

    /// Posts the descriptors that restart a context for a packet of `bytes` bytes.
    fn begin(
        &mut self,
        layer: Layer,
        begin: &mut ContextRestart,
        higher: &[RecoveryStep],
        fence_follows: bool,
        bytes: usize,
    ) {
        let ContextRestart { context, unit, from, until, .. } = *begin;
        let begun = self.stands_at(context).is_some();
        let resync = self.transmit_resync(context);
        let recovery = self.counts.for_context(context);
        match resync {
            TransmitResync::NextRecord => recovery.next_record += u64::from(begun),
            TransmitResync::Dump => {
                recovery.dump_packets += begin.dumps.len() as u64;
                recovery.dump_bytes += from - unit.offset;
                if begun {
                    recovery.ooo += 1;
                    recovery.resync_bytes += bytes as u64;
                }
            }
        }
        self.post_parameters(context, unit);
        // The fence of a lower layer serves this layer too, if no descriptor depends on its parameters in between.
        // Without DUMPs, nothing depends on these parameters before the lower layer's fence.
        if !fence_follows || !begin.dumps.is_empty() {
            self.post(SendDescriptor::Fence);
        }
        let mut at = place_of(&unit);
        for DumpBytes { bytes, tag, ahead, above: above_at } in begin.dumps.drain(..) {
            let mut contexts = [None; LAYERS];
            contexts[layer.index()] = Some(context);
            for (above, step) in Layer::ALL.into_iter().skip(layer.index() + 1).zip(higher) {
                if let RecoveryStep::Begin(higher) = step {
                    contexts[above.index()] = tag.context(above).filter(|context| *context == higher.context);
                }
            }
            let length = bytes.len() as u32;
            let places = Layer::ALL.map(|of| if of == layer { at } else { Seq(above_at as u32) });
            self.post(SendDescriptor::Dump { contexts, places, bytes, ahead });
            at += length;
        }
        if let Some(sending) = self.contexts.sending_mut(context) {
            sending.stands_at = Some(until);
        }
    }

    /// Posts the parameters that move a context to the first byte of `unit`.
    fn post_parameters(&mut self, handle: Handle, unit: Unit) {
        let counts = self.description(handle.engine()).is_some_and(|engine| engine.info.counts_units);
        if counts
            && let Some(sending) = self.contexts.sending_mut(handle)
            && sending.counts_from.replace(unit.number) != Some(unit.number)
        {
            self.post(SendDescriptor::StaticParameters { handle, number: unit.number });
        }
        self.post(SendDescriptor::ProgressParameters { handle, start: place_of(&unit) });
    }

    /// Forgets a context's position after the device failed to carry out a descriptor, so that the next packet restarts
    /// the context.
    pub(super) fn lose_place(&mut self, context: Handle) {
        if let Some(sending) = self.contexts.sending_mut(context) {
            sending.stands_at = None;
        }
    }

    fn transmit_resync(&self, context: Handle) -> TransmitResync {
        self.description(context.engine()).and_then(|engine| engine.transmit_resync).unwrap_or_default()
    }

    fn stands_at(&self, context: Handle) -> Option<u64> {
        self.contexts.sending(context)?.stands_at
    }
}

/// Returns the position of a unit as the device counts it, modulo 2^32: in the first layer's stream, the TCP sequence
/// number.
fn place_of(unit: &Unit) -> Seq {
    if unit.layer == Layer::FIRST { unit.start } else { Seq(unit.offset as u32) }
}

fn asks_for(packet: &TxPacket, context: Handle) -> bool {
    packet.ask.streams.iter().flatten().any(|ask| ask.context == context)
}

impl ContextRestart {
    /// Returns the parts of the DUMPs that contexts of the layer above still have to process.
    fn brings(&self, above: Layer, source: &dyn RecordSource) -> Vec<StreamPart> {
        let mut parts = Vec::new();
        if self.from > self.unit.offset {
            source.pieces(self.unit.layer, self.unit.offset, self.from, &mut |QueuedBytes { bytes, tag, offsets }| {
                if let Some(context) = tag.context(above) {
                    parts.push(StreamPart { context, offset: offsets[above.index()], bytes: bytes.len() as u32 });
                }
            });
        }
        parts
    }
}

/// Returns the maximum number of descriptors for a packet: the restoration of its contexts, the packet, and the bytes
/// ahead.
pub(super) fn descriptors_at_most(config: &NicConfig, engines: &[EngineDescription]) -> usize {
    let dumps = engines.iter().filter_map(|engine| Some(dumps_at_most(config, engine.transmit_resync?))).max();
    PARAMETERS + dumps.unwrap_or_default() + 2
}

/// Returns the maximum number of DUMPs for one packet. DUMPs are cut at the MTU, and at the ends of queued pieces. A
/// record is queued as header, payload and trailer, and its payload may have several pieces; software seals a record
/// with more pieces, which is cheaper. PDUs of NVMe/TCP may be longer than the limit; software seals packets late in
/// such a PDU.
fn dumps_at_most(config: &NicConfig, resync: TransmitResync) -> usize {
    match resync {
        TransmitResync::Dump => LONGEST_UNIT.div_ceil(usize::from(config.mtu)) + PIECES_OF_A_UNIT,
        TransmitResync::NextRecord => 0,
    }
}

/// Number of descriptors for static parameters, progress parameters and a fence.
const PARAMETERS: usize = 3;
/// Maximum size of a TLS record with header and ciphertext in bytes (RFC 8446 5.2).
const LONGEST_UNIT: usize = 5 + (1 << 14) + 256;
const PIECES_OF_A_UNIT: usize = 15;

#[cfg(test)]
mod tests;
