//! Transmit contexts that do not stand where a packet begins, whichever engines they are of.
//!
//! - **DUMP** rebuilds a context at the packet: static parameters (skipped when the unit's number is the one the device counts
//!   from already, or the engine does not count), progress parameters, a fence, DUMPs with the unit's bytes before the packet,
//!   all on the ring that the packet goes to.
//! - **Next record** leaves what is behind the context, or in the middle of a unit, to software, and begins afresh where
//!   a packet ahead of it begins a unit: parameters and a fence. Nothing is read twice. A unit that software sealed
//!   stays sealed in the send queue, so however often it is sent again, that is done once.
//!
//! Where units of one layer lie in the content of another's, two contexts work on a packet, and either may stand elsewhere.
//! First the lower one is looked at: bytes that its DUMPs bring may need the higher one. A DUMP goes through the context that
//! it is for and those above. An engine that works on whole blocks is told what follows the bytes of a packet in its unit
//! ([`looks_ahead`](offload_api::EngineInfo::looks_ahead)), and those of a DUMP whose content one below works on.
//!
//! A context is needed where the engine changes a byte ([`UnitTag::touched_from`](offload_api::UnitTag::touched_from)), and to
//! follow what is sent for the first time, for such a byte will come. A packet that was sent before and has none leaves without
//! the context, and does not disturb it. If too many DUMPs would be needed, or the context is gone, software seals the unit.
//!
//! A device that tells its packets by sequence numbers passes on, untouched, those from before a context's start
//! (`tx_tls_skip_no_sync_data` in Linux), and has to refuse one that straddles it. Neither occurs here: each range of the
//! send queue carries its contexts, a packet is of one a layer, and what was queued before asks for none. A transport that says
//! otherwise has its packet dropped, for what asks to be encrypted never leaves without.
//!
//! Of a packet that the device could not send, one that lacks a key for instance, it says so: then all contexts of that are begun anew.
//!
//! Invariants: the driver's shadow of a context moves when all is posted, and not when the packet is for software. No byte that
//! an engine changes leaves, or is sealed by an engine below, but as the context in step made it, or software.

use crate::Driver;
use bytes::{Bytes, BytesMut};
use nic_rings::packet::SendDescriptor;
use nic_rings::{EngineDescription, NicConfig, TransmitResync};
use offload_api::{
    DropReason, Handle, LAYERS, Layer, Lookup, QueuedBytes, RecordSource, TransmitResult, StreamAsk, TxPacket, TxTag, Unit,
};
use offload_base::Seq;

/// What the driver remembers of a transmit context: places in its layer's stream.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sending {
    /// Where the device goes on; `None` before the first parameters, and after it failed to do what was posted.
    stands_at: Option<u64>,
    /// The end of what was sent so far, through the context or not.
    sent_to: Option<u64>,
    /// The unit number in the device's static parameters.
    counts_from: Option<u64>,
}

/// Bytes on which a context is to work.
#[derive(Clone, Copy, Debug)]
struct Part {
    context: Handle,
    offset: u64,
    bytes: u32,
}

impl Part {
    fn end(&self) -> u64 {
        self.offset + u64::from(self.bytes)
    }
}

/// What is to be done at a layer before a packet is posted.
enum Step {
    /// Nothing: the context stands there, or there is none.
    Ready,
    /// The packet leaves without the context.
    Bypass,
    Begin(Beginning),
}

/// Bytes of a DUMP.
struct Dumped {
    bytes: Bytes,
    /// What else is to work on them.
    tag: TxTag,
    /// Where they are in the stream of the layer above.
    above: u64,
    /// What follows them in the stream of the layer above, if a context there needs to know.
    ahead: Bytes,
}

/// A context begins anew.
struct Beginning {
    context: Handle,
    /// At this unit.
    unit: Unit,
    /// The bytes of the unit before what a packet or the DUMPs of a layer below bring.
    dumps: Vec<Dumped>,
    /// Where those end.
    from: u64,
    /// Where it stands before the packet.
    until: u64,
}

impl Driver {
    /// Posts a packet on which contexts are to work, and for which there is room, with whatever they need before it.
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

    /// What follows a packet in a unit that it cuts, for the context that may need it.
    ///
    /// # Errors
    /// The unit, if that is not there as it was queued.
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

    /// What follows `end` in the unit of a layer, as far as a context may need it that changes what is before.
    ///
    /// # Errors
    /// The unit, if that is not there as it was queued.
    fn ahead(&self, layer: Layer, context: Handle, end: u64, source: &dyn RecordSource) -> Result<Bytes, Unit> {
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
            is_queued &= piece.tag.context(layer) == Some(context);
            bytes.extend_from_slice(&piece.bytes);
        });
        if is_queued && bytes.len() as u64 == until - end { Ok(bytes.freeze()) } else { Err(unit) }
    }

    /// Posts what brings the contexts of a packet to it. The packet does not ask any more for those that it does not need.
    ///
    /// # Errors
    /// What becomes of the packet otherwise; nothing was posted.
    fn restore(&mut self, packet: &mut TxPacket, source: &dyn RecordSource) -> Result<(), TransmitResult> {
        let mut steps = Layer::ALL.map(|_| Step::Ready);
        let mut brought = Vec::new();
        for layer in Layer::ALL {
            let ask = packet.ask.streams[layer.index()];
            let below = &steps[..layer.index()];
            let step = self.step(layer, ask, &brought, below, source)?;
            brought = match (&step, layer.above()) {
                (Step::Begin(begin), Some(above)) => begin.brings(above, source),
                _ => Vec::new(),
            };
            steps[layer.index()] = step;
        }
        let bytes = packet.payload_len();
        for layer in Layer::ALL.into_iter().rev() {
            let (lower, rest) = steps.split_at_mut(layer.index());
            let [step, higher @ ..] = rest else { continue };
            match step {
                Step::Ready => {}
                Step::Bypass => {
                    let ask = packet.ask.streams[layer.index()].take();
                    ask.into_iter().for_each(|ask| self.counts.of(ask.context).bypass += 1);
                }
                Step::Begin(begin) => {
                    let fence_follows = lower.iter().any(|step| matches!(step, Step::Begin(_)));
                    self.begin(layer, begin, higher, fence_follows, bytes);
                }
            }
        }
        Ok(())
    }

    /// What a layer needs for a packet that asks for `ask`; `brought`: bytes of the layer that DUMPs of the one below bring,
    /// which go on where the packet begins.
    fn step(
        &mut self,
        layer: Layer,
        ask: Option<StreamAsk>,
        brought: &[Part],
        below: &[Step],
        source: &dyn RecordSource,
    ) -> Result<Step, TransmitResult> {
        let within = ask.map(|ask| Part { context: ask.context, offset: ask.offset, bytes: ask.bytes });
        let mut needed = self.first_touched(layer, brought, source)?;
        if needed.is_none() {
            let Some(part) = within else { return Ok(Step::Ready) };
            let sending = self.contexts.sending(part.context).copied();
            if sending.is_some_and(|sending| sending.stands_at == Some(part.offset)) {
                return Ok(Step::Ready);
            }
            let is_new = sending.is_some_and(|at| at.sent_to.is_none_or(|sent_to| part.offset >= sent_to));
            needed = self.first_touched(layer, &[part], source)?;
            if needed.is_none() && !is_new {
                return Ok(Step::Bypass);
            }
        }
        match self.beginning(layer, brought, within, below, source) {
            Some(begin) => Ok(Step::Begin(begin)),
            None => match needed {
                Some(unit) => {
                    let context = brought.first().copied().or(within).map(|part| part.context);
                    context.into_iter().for_each(|context| self.counts.of(context).needs_software += 1);
                    Err(TransmitResult::NeedsSoftware(unit))
                }
                None => Ok(Step::Bypass),
            },
        }
    }

    /// How a context is brought to the first of some bytes. `None`: it cannot be, or takes too much.
    fn beginning(
        &mut self,
        layer: Layer,
        brought: &[Part],
        within: Option<Part>,
        below: &[Step],
        source: &dyn RecordSource,
    ) -> Option<Beginning> {
        let first = brought.first().copied().or(within)?;
        let parts = brought.iter().chain(&within);
        if parts.clone().any(|part| part.context != first.context) {
            return None;
        }
        // Between them may be what software has sealed: an engine that counts units would not be at what follows.
        if parts.clone().zip(parts.skip(1)).any(|(part, next)| part.end() != next.offset) {
            return None;
        }
        let sending = self.contexts.sending(first.context).copied()?;
        let Lookup::In(unit) = source.unit_at(layer, first.offset) else { return None };
        let resync = self.transmit_resync(first.context);
        if resync == TransmitResync::NextRecord {
            let is_ahead = sending.stands_at.is_none_or(|stands_at| first.offset > stands_at);
            if !is_ahead || first.offset != unit.offset {
                self.counts.of(first.context).ooo += 1;
                return None;
            }
        }
        let most = dumps_at_most(&self.config, resync);
        let dumps = self.dumps_of(unit, first.offset, most, source)?;
        let until = brought.last().map_or(first.offset, |last| last.end());
        let begin = Beginning { context: first.context, unit, dumps, from: first.offset, until };
        let lower = below.iter().filter_map(|step| match step {
            Step::Begin(begin) => Some(begin.dumps.len() + PARAMETERS),
            _ => None,
        });
        let lower: usize = lower.sum();
        (lower == 0 || begin.dumps.len() + lower <= most).then_some(begin)
    }

    /// The bytes of `unit` before `until`, each DUMP at most an MTU of them. `None`: they are not all there, or too many.
    fn dumps_of(&self, unit: Unit, until: u64, most: usize, source: &dyn RecordSource) -> Option<Vec<Dumped>> {
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
                dumps.push(Dumped { bytes, tag, above: from, ahead: ahead.unwrap_or_default() });
            }
        });
        (is_known && there == missing && dumps.len() <= most).then_some(dumps)
    }

    /// The first unit of which an engine changes a byte among `parts`.
    fn first_touched(&mut self, layer: Layer, parts: &[Part], source: &dyn RecordSource) -> Result<Option<Unit>, TransmitResult> {
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

    /// The transport does not know the unit of a byte that a context is to work on.
    fn drop_without_unit(&mut self, context: Handle, lookup: Lookup) -> TransmitResult {
        let recovery = self.counts.of(context);
        match lookup {
            Lookup::Released => recovery.no_sync_data += 1,
            _ => recovery.no_unit += 1,
        }
        let is_known = self.contexts.sending(context).is_some();
        TransmitResult::Dropped(if is_known { DropReason::NoSyncData } else { DropReason::DeviceGone })
    }

    /// Posts what brings a context to a packet of `bytes` bytes.
    fn begin(&mut self, layer: Layer, begin: &mut Beginning, higher: &[Step], fence_follows: bool, bytes: usize) {
        let Beginning { context, unit, from, until, .. } = *begin;
        let begun = self.stands_at(context).is_some();
        let resync = self.transmit_resync(context);
        let recovery = self.counts.of(context);
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
        // Those of the layers below are this one's, too, if nothing goes by its parameters before.
        if !fence_follows || !begin.dumps.is_empty() {
            self.post(SendDescriptor::Fence);
        }
        let mut at = place_of(&unit);
        for Dumped { bytes, tag, ahead, above: above_at } in begin.dumps.drain(..) {
            let mut contexts = [None; LAYERS];
            contexts[layer.index()] = Some(context);
            for (above, step) in Layer::ALL.into_iter().skip(layer.index() + 1).zip(higher) {
                if let Step::Begin(higher) = step {
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

    /// Puts a context at the first byte of `unit`.
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

    /// The device did not do with a context what was posted: where it goes on is not known, so that the next packet begins it anew.
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

/// Where a unit starts, as the device is told places: up to 2^32, and in the stream of the first layer by TCP sequence numbers.
fn place_of(unit: &Unit) -> Seq {
    if unit.layer == Layer::FIRST { unit.start } else { Seq(unit.offset as u32) }
}

fn asks_for(packet: &TxPacket, context: Handle) -> bool {
    packet.ask.streams.iter().flatten().any(|ask| ask.context == context)
}

impl Beginning {
    /// What its DUMPs bring of the layer above that contexts of that are still to work on.
    fn brings(&self, above: Layer, source: &dyn RecordSource) -> Vec<Part> {
        let mut parts = Vec::new();
        if self.from > self.unit.offset {
            source.pieces(self.unit.layer, self.unit.offset, self.from, &mut |QueuedBytes { bytes, tag, offsets }| {
                if let Some(context) = tag.context(above) {
                    parts.push(Part { context, offset: offsets[above.index()], bytes: bytes.len() as u32 });
                }
            });
        }
        parts
    }
}

/// Descriptors that a packet and what it may need before it take, what follows it included.
pub(super) fn descriptors_at_most(config: &NicConfig, engines: &[EngineDescription]) -> usize {
    let dumps = engines.iter().filter_map(|engine| Some(dumps_at_most(config, engine.transmit_resync?))).max();
    PARAMETERS + dumps.unwrap_or_default() + 2
}

/// DUMPs are cut at the MTU and at the ends of what was queued. A record comes as header, payload and trailer;
/// its payload may be of several pieces, and what has more of them than this is cheaper to seal in software. (PDUs of
/// NVMe/TCP may be longer: what comes late in them is software's.)
fn dumps_at_most(config: &NicConfig, resync: TransmitResync) -> usize {
    match resync {
        TransmitResync::Dump => LONGEST_UNIT.div_ceil(usize::from(config.mtu)) + PIECES_OF_A_UNIT,
        TransmitResync::NextRecord => 0,
    }
}

/// Static parameters, progress parameters, fence.
const PARAMETERS: usize = 3;
/// A TLS record with header, longest ciphertext and all: RFC 8446 5.2.
const LONGEST_UNIT: usize = 5 + (1 << 14) + 256;
const PIECES_OF_A_UNIT: usize = 15;

#[cfg(test)]
mod tests;
