//! The send queue: bytes that may still have to be sent, or sent again. It is the [`RecordSource`] of a connection.
//!
//! Positions are stream positions that do not wrap: the SYN is at 0, the first byte at 1.
//!
//! Invariants:
//! - The chunks are non-empty and contiguous up to `end`. They hold all bytes from `acked` on, and all bytes of each
//!   unit that is not completely acknowledged.
//! - A chunk lies within one unit of each layer. It has a context of a layer as long as the layer's work on it is
//!   pending.
//! - Software seals a unit only after all higher-layer units in its content. While a higher-layer unit waits to be
//!   sealed, all its bytes are therefore in the queue as they were queued.

use super::sealing::Sealers;
use bytes::{Bytes, BytesMut};
use core::ops::Range;
use offload_api::{
    Handle, LAYERS, Layer, Lookup, QueuedBytes, RecordSource, SealError, Sealer, StreamAsk, TxTag, Unit,
};
use offload_base::Seq;
use offload_base::cost::{self, WorkKind};
use smallvec::SmallVec;
use std::collections::VecDeque;

#[derive(Debug)]
pub(crate) struct TcpSendQueue {
    initial: Seq,
    chunks: VecDeque<SendChunk>,
    /// Buffer at the end of the queue that collects small plain writes.
    open: BytesMut,
    /// Memory charge of the queue, in bytes.
    charged: usize,
    acked: u64,
    end: u64,
    /// Offset of the first unit in each layer's stream.
    first_unit: [Option<u64>; LAYERS],
    /// The streams of the layers above the first.
    above: [LayerStream; LAYERS - 1],
    /// Boxed because most connections have no sealers.
    sealers: Option<Box<Sealers>>,
}

#[derive(Debug)]
struct SendChunk {
    start: u64,
    data: Bytes,
    tag: TxTag,
    /// Its offsets in the streams of the layers above the first. If a chunk has no bytes of a layer, the offset of the
    /// layer's next byte.
    above: [u64; LAYERS - 1],
}

/// The queued part of a higher layer's stream.
#[derive(Clone, Copy, Debug, Default)]
struct LayerStream {
    end: u64,
    /// Start and end of its last unit.
    last: (u64, u64),
}

/// The payload of one packet.
#[derive(Debug, Default)]
pub(crate) struct PacketPayload {
    pub(crate) fragments: SmallVec<[Bytes; 4]>,
    pub(crate) streams: [Option<StreamAsk>; LAYERS],
    pub(crate) len: usize,
}

/// Reason for which a unit was not sealed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SealFailure {
    /// The unit is not completely queued yet.
    Incomplete,
    /// No sealer was installed for the unit.
    NoSealer,
    /// The sealer failed, or returned a wrong number of bytes.
    Refused(SealError),
    /// The queue holds no such unit with pending bytes.
    NotPending,
}

impl TcpSendQueue {
    /// Returns an empty queue for a stream with the SYN's sequence number `initial`.
    pub(crate) fn new(initial: Seq) -> TcpSendQueue {
        TcpSendQueue {
            initial,
            chunks: VecDeque::new(),
            open: BytesMut::new(),
            charged: 0,
            acked: FIRST_BYTE,
            end: FIRST_BYTE,
            first_unit: [None; LAYERS],
            above: [LayerStream::default(); LAYERS - 1],
            sealers: None,
        }
    }

    /// Returns the sequence number of a position.
    pub(crate) fn seq(&self, position: u64) -> Seq {
        self.initial + position as u32
    }

    /// Returns the position of `seq`, close to the first unacknowledged byte. `None` if `seq` lies before the stream.
    pub(crate) fn position(&self, seq: Seq) -> Option<u64> {
        self.acked.checked_add_signed(i64::from(seq - self.seq(self.acked)))
    }

    /// Returns the position after the last queued byte.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Returns the memory charge: for each chunk its entry and its bytes, even shared ones.
    pub(crate) fn charged(&self) -> usize {
        self.charged
    }

    /// Returns the number of unacknowledged bytes. Acknowledged bytes that are kept because of their unit do not count.
    pub(crate) fn unacknowledged(&self) -> u64 {
        self.end - self.acked
    }

    /// Queues `data` and returns the position of the first byte.
    pub(crate) fn append(&mut self, data: Bytes, tag: TxTag) -> u64 {
        let start = self.end;
        if data.is_empty() {
            return start;
        }
        // Many small writes would otherwise become many small chunks, each with its own overhead.
        if tag == TxTag::PLAIN && data.len() <= MAX_COPIED_BYTES {
            return self.append_copy(&data);
        }
        self.finish_copy_buffer();
        let above = self.above.map(|stream| stream.end);
        for layer in Layer::ALL {
            let Some(unit) = tag.unit(layer) else { continue };
            debug_assert!(unit.at as usize + data.len() <= unit.len as usize, "a chunk must lie within its unit");
            let offset = offset_of(layer, start, above);
            let begins = offset.saturating_sub(u64::from(unit.at));
            self.first_unit[layer.index()].get_or_insert(begins);
            if layer > Layer::FIRST {
                let last = (begins, begins + u64::from(unit.len));
                self.above[layer.index() - 1] = LayerStream { end: offset + data.len() as u64, last };
            }
        }
        self.end += data.len() as u64;
        self.charged += data.len() + CHUNK_BYTES;
        self.chunks.push_back(SendChunk { start, data, tag, above });
        start
    }

    /// Queues a copy of `data`, which no device context processes. Returns the position of the first byte.
    pub(crate) fn append_copy(&mut self, data: &[u8]) -> u64 {
        let _cost_scope = cost::work(WorkKind::Copy);
        let start = self.end;
        if self.open.len() + data.len() > COPY_BUFFER_BYTES {
            self.finish_copy_buffer();
        }
        self.open.extend_from_slice(data);
        self.charged += data.len();
        self.end += data.len() as u64;
        start
    }

    /// Installs `sealer` for the units of `layer` that are queued from now on.
    pub(crate) fn install(&mut self, layer: Layer, sealer: Box<dyn Sealer>) {
        let kept_from = self.chunks.front().map_or(self.end - self.open.len() as u64, |chunk| chunk.start);
        let sealers = self.sealers.get_or_insert_default();
        sealers.install(layer, self.end, sealer);
        // All data of the previous sealer may be acknowledged already.
        sealers.release(kept_from);
    }

    /// Schedules the removal of `context`, which no later data will use.
    pub(crate) fn leave(&mut self, context: Handle) {
        self.sealers.get_or_insert_default().leave(context, self.end);
    }

    /// Moves to `left` the scheduled contexts that no unacknowledged byte needs.
    pub(crate) fn take_left(&mut self, left: &mut Vec<Handle>) {
        if let Some(sealers) = &mut self.sealers {
            sealers.take_left(self.acked, left);
        }
    }

    /// Processes the acknowledgment of all bytes before `position`, and frees the units that are completely
    /// acknowledged.
    pub(crate) fn acknowledge(&mut self, position: u64) {
        debug_assert!(position <= self.end);
        self.acked = self.acked.max(position);
        // Acknowledged bytes must be in a chunk before they can be freed.
        if self.acked > self.end - self.open.len() as u64 {
            self.finish_copy_buffer();
        }
        // A linear search from the front, where the acknowledged chunks are. A binary search would touch chunks outside
        // the cache.
        let first_needed = self.chunks.iter().take_while(|chunk| chunk.needed_until() <= self.acked).count();
        let needed_from = self.needed_from(first_needed);
        while self.chunks.front().is_some_and(|chunk| chunk.end() <= needed_from) {
            if let Some(chunk) = self.chunks.pop_front() {
                self.charged -= chunk.data.len() + CHUNK_BYTES;
            }
        }
        let kept_from = self.chunks.front().map_or(self.end, |chunk| chunk.start);
        if let Some(sealers) = &mut self.sealers {
            sealers.release(kept_from);
        }
        // An idle connection keeps no memory here.
        if self.chunks.is_empty() {
            self.chunks = VecDeque::new();
        }
    }

    /// Returns the position of the first byte that must be kept if the chunk at `first_needed` is kept. A unit that may
    /// be sent again may have to be sealed again, together with the higher-layer units in its content, and sealing
    /// takes whole units.
    fn needed_from(&self, first_needed: usize) -> u64 {
        let first = self.chunks.get(first_needed);
        let mut needed_from = first.map_or(self.acked, |chunk| chunk.start);
        for layer in Layer::ALL.into_iter().filter(|layer| *layer > Layer::FIRST) {
            let LayerStream { end, last } = self.above[layer.index() - 1];
            let next = first.and_then(|chunk| self.chunks.get(self.index_in(layer, chunk.offset(layer))));
            let begun = match next.and_then(|chunk| Some((chunk.offset(layer), chunk.tag.unit(layer)?))) {
                Some((offset, unit)) => offset.saturating_sub(u64::from(unit.at)),
                // A part of the last unit may not be queued yet.
                None if last.1 > end => last.0,
                None => continue,
            };
            if let Some(chunk) = self.chunks.get(self.index_in(layer, begun)) {
                needed_from = needed_from.min(chunk.start);
            }
        }
        needed_from
    }

    /// Discards all data, because nothing will be sent any more.
    pub(crate) fn release(&mut self) {
        self.acked = self.end;
        self.chunks = VecDeque::new();
        self.open = BytesMut::new();
        self.charged = 0;
        if let Some(sealers) = &mut self.sealers {
            sealers.clear();
        }
    }

    /// Returns the payload of a packet: bytes of `range`, from its start on. Per layer, one context processes all bytes
    /// of the layer's stream, or no context does.
    pub(crate) fn cut(&mut self, range: Range<u64>) -> PacketPayload {
        if range.end > self.end - self.open.len() as u64 {
            self.finish_copy_buffer();
        }
        let mut cut = PacketPayload::default();
        let mut at = range.start;
        let mut contexts = [None; LAYERS];
        let first = self.index_of(at);
        for chunk in self.chunks.range(first..) {
            if at >= range.end || cut.fragments.len() == MAX_FRAGMENTS || !chunk.may_join(&mut contexts) {
                break;
            }
            let from = (at - chunk.start) as usize;
            let to = chunk.data.len().min((range.end - chunk.start) as usize);
            cut.push(chunk, from..to);
            at = chunk.end();
        }
        cut
    }

    /// Seals `unit` in software, after the higher-layer units that it contains, and replaces the queued bytes.
    pub(crate) fn seal(&mut self, unit: Unit) -> Result<(), SealFailure> {
        let layer = unit.layer;
        let queued = match self.unit_at(layer, unit.offset) {
            Lookup::In(found) => found == unit && self.is_pending(unit),
            _ => false,
        };
        if !queued {
            return Err(SealFailure::NotPending);
        }
        // The units in its content are sealed first, from the highest layer down.
        for higher in Layer::ALL.into_iter().rev().filter(|higher| *higher > layer) {
            while let Some(found) = self.next_pending(higher, unit) {
                self.seal_one(found)?;
            }
        }
        self.seal_one(unit)
    }

    fn seal_one(&mut self, unit: Unit) -> Result<(), SealFailure> {
        let Unit { layer, number, offset, len, .. } = unit;
        // A sealer needs the whole unit, because its tag covers all bytes.
        if unit.end() > self.end_of(layer) {
            return Err(SealFailure::Incomplete);
        }
        let (first, last) = (self.index_in(layer, offset), self.index_in(layer, unit.end()));
        let start = match self.chunks.get(first).filter(|chunk| chunk.offset(layer) == offset) {
            Some(chunk) => chunk.start,
            None => return Err(SealFailure::NotPending),
        };
        // Chunks between two parts of a higher-layer unit hold framing of the layer below.
        let is_of_unit = |chunk: &SendChunk| chunk.tag.unit(layer).is_some_and(|tag| tag.number == number);
        let parts = self.chunks.range(first..last).filter(|chunk| is_of_unit(chunk));
        let plain: SmallVec<[Bytes; 8]> = parts.map(|chunk| chunk.data.clone()).collect();
        // The sealer of the unit's own start applies, because a later one may already be installed for the next key.
        let sealer =
            self.sealers.as_mut().and_then(|sealers| sealers.find(layer, start)).ok_or(SealFailure::NoSealer)?;
        let sealed = {
            let _cost_scope = cost::work(WorkKind::Crypto);
            sealer.seal(unit, &plain).map_err(SealFailure::Refused)?
        };
        let length: usize = plain.iter().map(Bytes::len).sum();
        // A different length would shift all later sequence numbers.
        if sealed.len() != length || length != len as usize {
            return Err(SealFailure::Refused(SealError::Malformed { number }));
        }
        let mut at = 0;
        for chunk in self.chunks.range_mut(first..last).filter(|chunk| is_of_unit(chunk)) {
            chunk.data = sealed.slice(at..at + chunk.data.len());
            at += chunk.data.len();
            chunk.tag.note_done(layer);
        }
        Ok(())
    }

    /// Returns whether a byte of the queued `unit` is pending. Its first byte may be done, because a protocol may queue
    /// a header in final form.
    fn is_pending(&self, unit: Unit) -> bool {
        let Unit { layer, offset, .. } = unit;
        let chunks = self.chunks.range(self.index_in(layer, offset)..);
        let mut of_unit = chunks.take_while(|chunk| chunk.offset(layer) < unit.end());
        of_unit.any(|chunk| chunk.tag.context(layer).is_some())
    }

    /// Returns the first unit of `higher` with bytes in the content of `unit` that is pending anywhere. It must be
    /// sealed before its bytes are replaced.
    fn next_pending(&self, higher: Layer, unit: Unit) -> Option<Unit> {
        let chunks = self.chunks.range(self.index_in(unit.layer, unit.offset)..);
        let chunks = chunks.take_while(|chunk| chunk.offset(unit.layer) < unit.end());
        let mut units = chunks.filter_map(|chunk| self.unit_of(chunk, higher));
        units.find(|found| self.is_pending(*found))
    }

    fn unit_of(&self, chunk: &SendChunk, layer: Layer) -> Option<Unit> {
        let tag = chunk.tag.unit(layer)?;
        let offset = chunk.offset(layer).saturating_sub(u64::from(tag.at));
        let start = match layer {
            Layer::FIRST => offset + FIRST_BYTE,
            _ => self.chunks.get(self.index_in(layer, offset))?.start,
        };
        let start = self.seq(start);
        Some(Unit { layer, number: tag.number, offset, start, len: tag.len, touched_from: tag.touched_from })
    }

    /// Returns the index of the first chunk that ends after `position`.
    fn index_of(&self, position: u64) -> usize {
        self.chunks.partition_point(|chunk| chunk.end() <= position)
    }

    /// Returns the index of the first chunk with bytes of the layer's stream after `offset`.
    fn index_in(&self, layer: Layer, offset: u64) -> usize {
        match layer {
            Layer::FIRST => self.index_of(offset + FIRST_BYTE),
            _ => self.chunks.partition_point(|chunk| chunk.end_in(layer) <= offset),
        }
    }

    /// Returns the end of a layer's stream, without the bytes in the collecting buffer.
    fn end_of(&self, layer: Layer) -> u64 {
        match layer {
            Layer::FIRST => self.end - self.open.len() as u64 - FIRST_BYTE,
            _ => self.above[layer.index() - 1].end,
        }
    }

    /// Makes a chunk of the collected bytes.
    fn finish_copy_buffer(&mut self) {
        if !self.open.is_empty() {
            let data = self.open.split().freeze();
            // The rest of the buffer is too small to justify the whole buffer.
            self.open = BytesMut::new();
            let start = self.end - data.len() as u64;
            self.charged += CHUNK_BYTES;
            let above = self.above.map(|stream| stream.end);
            self.chunks.push_back(SendChunk { start, data, tag: TxTag::PLAIN, above });
        }
    }
}

impl RecordSource for TcpSendQueue {
    fn unit_at(&self, layer: Layer, offset: u64) -> Lookup {
        if self.first_unit[layer.index()].is_none_or(|first| offset < first) {
            return Lookup::BeforeStart;
        }
        let chunk = self.chunks.get(self.index_in(layer, offset)).filter(|chunk| chunk.offset(layer) <= offset);
        match chunk.and_then(|chunk| self.unit_of(chunk, layer)) {
            Some(unit) => Lookup::In(unit),
            None => Lookup::Released,
        }
    }

    fn pieces(&self, layer: Layer, from: u64, to: u64, sink: &mut dyn FnMut(QueuedBytes)) {
        let chunks = self.chunks.range(self.index_in(layer, from)..);
        for chunk in chunks.take_while(|chunk| chunk.offset(layer) < to).filter(|chunk| chunk.is_of(layer)) {
            let start = from.saturating_sub(chunk.offset(layer)) as usize;
            let end = chunk.data.len().min((to - chunk.offset(layer)) as usize);
            let offsets = Layer::ALL.map(|layer| match chunk.is_of(layer) {
                true => chunk.offset(layer) + start as u64,
                false => chunk.offset(layer),
            });
            sink(QueuedBytes { bytes: chunk.data.slice(start..end), tag: chunk.tag.advanced(start as u32), offsets });
        }
    }
}

impl SendChunk {
    fn end(&self) -> u64 {
        self.start + self.data.len() as u64
    }

    /// Returns whether the chunk's bytes belong to the layer's stream.
    fn is_of(&self, layer: Layer) -> bool {
        layer == Layer::FIRST || self.tag.unit(layer).is_some()
    }

    /// Returns the chunk's offset in the layer's stream, or the offset of the layer's next byte.
    fn offset(&self, layer: Layer) -> u64 {
        offset_of(layer, self.start, self.above)
    }

    /// Returns the offset in the layer's stream after the chunk.
    fn end_in(&self, layer: Layer) -> u64 {
        self.offset(layer) + if self.is_of(layer) { self.data.len() as u64 } else { 0 }
    }

    /// Returns the end of the chunk's unit of the first layer. Until that is acknowledged, the chunk may be needed
    /// again.
    fn needed_until(&self) -> u64 {
        let unit = self.tag.unit(Layer::FIRST);
        unit.map_or(self.end(), |unit| self.start - u64::from(unit.at) + u64::from(unit.len))
    }

    /// Returns whether the chunk may join a packet with these contexts. For each layer of the chunk, the packet's
    /// context must be equal or not chosen yet; this call then chooses it.
    fn may_join(&self, contexts: &mut [Option<Option<Handle>>; LAYERS]) -> bool {
        let mut layers = Layer::ALL.into_iter().filter(|layer| self.is_of(*layer));
        layers.all(|layer| {
            let context = self.tag.context(layer);
            *contexts[layer.index()].get_or_insert(context) == context
        })
    }
}

impl PacketPayload {
    /// Appends a part of `chunk` as the next fragment.
    fn push(&mut self, chunk: &SendChunk, part: Range<usize>) {
        let bytes = part.len() as u32;
        for layer in Layer::ALL {
            let Some(context) = chunk.tag.context(layer) else { continue };
            let offset = chunk.offset(layer) + part.start as u64;
            let begin = StreamAsk { context, bytes: 0, offset, fragments: 0 };
            let ask = self.streams[layer.index()].get_or_insert(begin);
            ask.bytes += bytes;
            ask.fragments |= 1 << self.fragments.len();
        }
        self.len += part.len();
        self.fragments.push(chunk.data.slice(part));
    }
}

/// Returns the offset in a layer's stream of the byte at position `start`. `above` holds the offsets of the layers
/// above the first.
fn offset_of(layer: Layer, start: u64, above: [u64; LAYERS - 1]) -> u64 {
    match layer {
        Layer::FIRST => start - FIRST_BYTE,
        _ => above[layer.index() - 1],
    }
}

/// Position of a stream's first byte, directly after the SYN.
pub(crate) const FIRST_BYTE: u64 = 1;
/// Maximum length of plain data that are copied together instead of queued as separate chunks.
const MAX_COPIED_BYTES: usize = 256;
/// Memory of a chunk besides its bytes.
const CHUNK_BYTES: usize = size_of::<SendChunk>();
/// Size of the collecting buffer.
const COPY_BUFFER_BYTES: usize = 16 << 10;
/// Maximum number of fragments per packet. More would cost the device more than a second packet.
const MAX_FRAGMENTS: usize = StreamAsk::FRAGMENTS;

#[cfg(test)]
mod tests {
    use super::*;
    use offload_api::UnitTag;
    use proptest::prelude::*;
    use std::sync::{Arc, Mutex};

    const CONTEXT: Handle = Handle { index: 1, generation: 0 };
    const DIGESTS: Handle = Handle { index: 2, generation: 0 };

    fn unit(number: u64, at: u32, len: u32) -> UnitTag {
        UnitTag { number, at, len, touched_from: 0 }
    }

    fn tagged(number: u64, at: u32, len: u32) -> TxTag {
        TxTag::device(CONTEXT, unit(number, at, len))
    }

    /// Returns the tag of a part of a PDU within a record, both pending.
    fn stacked(pdu: UnitTag, record: UnitTag) -> TxTag {
        TxTag::device(DIGESTS, pdu).within(Some(CONTEXT), record).unwrap()
    }

    fn queue_with_record() -> TcpSendQueue {
        let mut queue = TcpSendQueue::new(Seq(u32::MAX - 20));
        queue.append(vec![0; 300].into(), TxTag::PLAIN);
        for at in [0, 5, 95] {
            let length = [5, 90, 16][[0, 5, 95].iter().position(|start| *start == at).unwrap()];
            queue.append(vec![at as u8; length].into(), tagged(7, at, 111));
        }
        queue
    }

    #[test]
    fn unit_is_found_by_any_byte_until_all_are_acknowledged() {
        let mut queue = queue_with_record();
        // The unit at offset 300 follows 300 plain bytes.
        let start = queue.seq(301);
        let unit = Unit { layer: Layer::FIRST, number: 7, offset: 300, start, len: 111, touched_from: 0 };
        assert_eq!(queue.unit_at(Layer::FIRST, 299), Lookup::BeforeStart);
        assert_eq!(queue.unit_at(Layer::SECOND, 300), Lookup::BeforeStart);
        for offset in [300, 304, 305, 394, 395, 410] {
            assert_eq!(queue.unit_at(Layer::FIRST, offset), Lookup::In(unit));
        }
        assert_eq!(queue.unit_at(Layer::FIRST, 411), Lookup::Released, "the offset was never queued");
        queue.acknowledge(411);
        assert_eq!(queue.unacknowledged(), 1, "bytes kept for their unit must not count");
        assert_eq!(queue.unit_at(Layer::FIRST, 300), Lookup::In(unit));
        let mut bytes = Vec::new();
        queue.pieces(Layer::FIRST, 300, 411, &mut |piece| bytes.extend_from_slice(&piece.bytes));
        assert_eq!(bytes, [vec![0; 5], vec![5; 90], vec![95; 16]].concat());
        queue.acknowledge(412);
        assert_eq!(queue.unit_at(Layer::FIRST, 300), Lookup::Released);
        assert!(queue.chunks.is_empty());
    }

    #[test]
    fn packet_ends_at_a_change_of_context() {
        let mut queue = queue_with_record();
        let cut = queue.cut(1..412);
        assert_eq!((cut.len, cut.streams), (300, [None; LAYERS]));
        let cut = queue.cut(301..412);
        let ask = StreamAsk { context: CONTEXT, bytes: 111, offset: 300, fragments: 0b111 };
        assert_eq!((cut.len, cut.streams, cut.fragments.len()), (111, [Some(ask), None], 3));
        let cut = queue.cut(303..308);
        assert_eq!((cut.len, cut.fragments.len()), (5, 2));
    }

    /// A sealer that adds one to each byte, and logs its calls.
    struct AddOneSealer(Arc<Mutex<Vec<(Layer, u64)>>>, Layer);

    impl Sealer for AddOneSealer {
        fn seal(&mut self, unit: Unit, plain: &[Bytes]) -> Result<Bytes, SealError> {
            self.0.lock().unwrap().push((self.1, unit.number));
            Ok(plain.concat().into_iter().map(|byte| byte + 1).collect())
        }
    }

    #[test]
    fn sealing_replaces_only_the_units_bytes() {
        let mut queue = queue_with_record();
        let start = queue.seq(301);
        let unit = Unit { layer: Layer::FIRST, number: 7, offset: 300, start, len: 111, touched_from: 0 };
        assert_eq!(queue.seal(unit), Err(SealFailure::NoSealer));
        let log = Arc::default();
        queue.install(Layer::FIRST, Box::new(AddOneSealer(Arc::clone(&log), Layer::FIRST)));
        assert_eq!(queue.seal(unit), Err(SealFailure::NoSealer), "a sealer serves later units only");
        queue.sealers = None;
        queue.sealers.get_or_insert_default().install(
            Layer::FIRST,
            301,
            Box::new(AddOneSealer(Arc::clone(&log), Layer::FIRST)),
        );
        assert_eq!(queue.seal(Unit { number: 8, ..unit }), Err(SealFailure::NotPending));
        assert_eq!(queue.seal(unit), Ok(()));
        assert_eq!(queue.seal(unit), Err(SealFailure::NotPending), "a unit is sealed once");
        assert_eq!(queue.unit_at(Layer::FIRST, 300), Lookup::In(unit));
        let cut = queue.cut(301..412);
        assert_eq!((cut.streams[0], cut.fragments.concat()), (None, [vec![1; 5], vec![6; 90], vec![96; 16]].concat()));
    }

    #[test]
    fn sealer_is_dropped_with_its_last_byte_after_a_successor() {
        let key = Arc::new(());
        let sealer = |key: &Arc<()>| {
            let key = Arc::clone(key);
            Box::new(KeyHoldingSealer(key)) as Box<dyn Sealer>
        };
        for acknowledged_first in [false, true] {
            let mut queue = TcpSendQueue::new(Seq(0));
            queue.install(Layer::FIRST, sealer(&key));
            let start = queue.append(vec![1; 100].into(), tagged(0, 0, 100));
            if acknowledged_first {
                queue.acknowledge(start + 100);
                assert_eq!(Arc::strong_count(&key), 2, "later units may need the sealer");
                queue.install(Layer::FIRST, sealer(&Arc::default()));
            } else {
                queue.install(Layer::FIRST, sealer(&Arc::default()));
                queue.acknowledge(start + 99);
                assert_eq!(Arc::strong_count(&key), 2, "the record may have to be sealed again");
                queue.acknowledge(start + 100);
            }
            assert_eq!(Arc::strong_count(&key), 1);
        }
    }

    /// A sealer that holds a key.
    struct KeyHoldingSealer(#[allow(dead_code)] Arc<()>);

    impl Sealer for KeyHoldingSealer {
        fn seal(&mut self, unit: Unit, _: &[Bytes]) -> Result<Bytes, SealError> {
            Err(SealError::Malformed { number: unit.number })
        }
    }

    #[test]
    fn digests_are_made_before_their_records_are_sealed() {
        // PDUs of 100 bytes in records of 80 bytes: records 0..5, PDUs 0..4.
        let (log, mut queue) = (Arc::default(), TcpSendQueue::new(Seq(0)));
        for layer in Layer::ALL {
            queue.install(layer, Box::new(AddOneSealer(Arc::clone(&log), layer)));
        }
        for at in (0..400u32).step_by(20) {
            let (pdu, record) = (unit((at / 100).into(), at % 100, 100), unit((at / 80).into(), at % 80, 80));
            queue.append(vec![10; 20].into(), stacked(pdu, record));
        }
        let record = |number: u32| Unit {
            layer: Layer::FIRST,
            number: u64::from(number),
            offset: u64::from(number * 80),
            start: Seq(1 + number * 80),
            len: 80,
            touched_from: 0,
        };
        assert_eq!(queue.seal(record(1)), Ok(()));
        assert_eq!(*log.lock().unwrap(), [(Layer::SECOND, 0), (Layer::SECOND, 1), (Layer::FIRST, 1)]);
        assert_eq!(queue.cut(81..161).fragments.concat(), [12; 80]);
        assert_eq!(queue.cut(1..401).len, 80, "record 0 is still pending");
        assert_eq!(queue.seal(record(0)), Ok(()));
        assert_eq!(log.lock().unwrap().len(), 4, "PDU 0 must not be sealed twice");
        // A PDU is kept until all its records are acknowledged, too.
        queue.acknowledge(161);
        assert!(matches!(queue.unit_at(Layer::SECOND, 100), Lookup::In(_)));
        assert_eq!(queue.unit_at(Layer::SECOND, 99), Lookup::Released);
    }

    /// Returns a queue with PDUs of 100 bytes in records with 30 bytes of content, 5 bytes of header and 17 bytes of
    /// trailer.
    fn queue_with_pdus_in_records(log: &Arc<Mutex<Vec<(Layer, u64)>>>) -> TcpSendQueue {
        let mut queue = TcpSendQueue::new(Seq(0));
        for layer in Layer::ALL {
            queue.install(layer, Box::new(AddOneSealer(log.clone(), layer)));
        }
        for number in 0..10u32 {
            let record = |at| unit(number.into(), at, 52);
            queue.append(vec![1; 5].into(), TxTag::device(CONTEXT, record(0)));
            let mut at = number * 30;
            while at < number * 30 + 30 {
                let bytes = (number * 30 + 30 - at).min(100 - at % 100);
                let tag = stacked(unit((at / 100).into(), at % 100, 100), record(5 + at % 30));
                queue.append(vec![10; bytes as usize].into(), tag);
                at += bytes;
            }
            queue.append(vec![2; 17].into(), TxTag::device(CONTEXT, record(35)));
        }
        queue
    }

    #[test]
    fn pdu_in_records_is_sealed_and_kept_as_a_whole() {
        let log = Arc::default();
        let mut queue = queue_with_pdus_in_records(&log);
        // Records begin at 1, 53, 105, 157, ...; PDU 1 begins after 10 bytes of the fourth record's content.
        let Lookup::In(unit) = queue.unit_at(Layer::SECOND, 100) else { panic!("the PDU must be found") };
        assert_eq!((unit.number, unit.start, unit.offset, unit.len), (1, Seq(172), 100, 100));
        let cut = queue.cut(160..230);
        let record = StreamAsk { context: CONTEXT, bytes: 70, offset: 159, fragments: 0b111111 };
        let ask = StreamAsk { context: DIGESTS, bytes: 46, offset: 90, fragments: 0b100110 };
        assert_eq!((cut.len, cut.streams), (70, [Some(record), Some(ask)]));
        // Only the digest of PDU 1 is made: the framing of its records, and PDU 0, stay unchanged.
        assert_eq!(queue.seal(unit), Ok(()));
        assert_eq!(*log.lock().unwrap(), [(Layer::SECOND, 1)]);
        let cut = queue.cut(160..230);
        assert_eq!(
            (cut.fragments.concat(), cut.streams[1].map(|ask| ask.end())),
            ([[1; 2].as_slice(), &[10; 10]].concat(), Some(100))
        );
        let cut = queue.cut(172..240);
        let expected = [[11; 20].as_slice(), &[2; 17], &[1; 5], &[11; 26]].concat();
        let contexts = cut.streams.map(|ask| ask.map(|ask| ask.context));
        assert_eq!((cut.fragments.concat(), contexts), (expected, [Some(CONTEXT), None]));
        // Record 3 is sealed after the digests of both PDUs.
        let (layer, start) = (Layer::FIRST, Seq(157));
        let record = Unit { layer, number: 3, offset: 156, start, len: 52, touched_from: 0 };
        assert_eq!(queue.seal(record), Ok(()));
        assert_eq!(log.lock().unwrap()[1..], [(Layer::SECOND, 0), (Layer::FIRST, 3)]);
        // Until record 3 is completely acknowledged, PDU 0 is kept to make its digest again.
        let mut queue = queue_with_pdus_in_records(&Arc::default());
        queue.acknowledge(208);
        assert!(matches!(queue.unit_at(Layer::SECOND, 0), Lookup::In(unit) if unit.number == 0));
        queue.acknowledge(209);
        assert_eq!(queue.unit_at(Layer::SECOND, 0), Lookup::Released);
        assert!(matches!(queue.unit_at(Layer::SECOND, 100), Lookup::In(_)));
        queue.acknowledge(521);
        assert!(queue.chunks.is_empty());
    }

    /// All queued bytes of the PDU are acknowledged, but software may have to seal the PDU when the rest is queued.
    #[test]
    fn partly_queued_pdu_is_kept() {
        let (log, mut queue) = (Arc::default(), TcpSendQueue::new(Seq(0)));
        for layer in Layer::ALL {
            queue.install(layer, Box::new(AddOneSealer(Arc::clone(&log), layer)));
        }
        queue.append(vec![10; 60].into(), stacked(unit(0, 0, 100), unit(0, 0, 60)));
        queue.acknowledge(61);
        assert_eq!(queue.unacknowledged(), 0);
        queue.append(vec![20; 40].into(), stacked(unit(0, 60, 100), unit(1, 0, 40)));
        let Lookup::In(pdu) = queue.unit_at(Layer::SECOND, 60) else { panic!("the PDU must be found") };
        assert_eq!((pdu.offset, pdu.start), (0, Seq(1)));
        assert_eq!(queue.seal(pdu), Ok(()));
        assert_eq!(queue.cut(61..101).fragments.concat(), [21; 40]);
        queue.acknowledge(101);
        assert!(queue.chunks.is_empty());
    }

    /// A protocol may queue a unit's header in final form.
    #[test]
    fn unit_with_final_header_is_sealed() {
        for layer in Layer::ALL {
            let (log, mut queue) = (Arc::default(), TcpSendQueue::new(Seq(0)));
            queue.install(layer, Box::new(AddOneSealer(Arc::clone(&log), layer)));
            let tagged = |tag: TxTag, at, len| match layer {
                Layer::FIRST => tag,
                _ => tag.within(None, unit(0, at, len)).unwrap(),
            };
            queue.append(vec![10; 4].into(), tagged(TxTag::done(unit(0, 0, 100)), 0, 100));
            queue.append(vec![20; 96].into(), tagged(TxTag::device(DIGESTS, unit(0, 4, 100)), 4, 100));
            let Lookup::In(found) = queue.unit_at(layer, 50) else { panic!("the unit must be found") };
            assert_eq!(queue.seal(found), Ok(()));
            assert_eq!(queue.cut(1..101).streams, [None; LAYERS]);
            assert_eq!(queue.seal(found), Err(SealFailure::NotPending), "a unit is sealed once");
        }
    }

    /// One record holds only the PDU's header, which is final; another holds the rest, which is pending.
    #[test]
    fn pdu_is_sealed_before_the_record_with_its_header() {
        let (log, mut queue) = (Arc::default(), TcpSendQueue::new(Seq(0)));
        for layer in Layer::ALL {
            queue.install(layer, Box::new(AddOneSealer(Arc::clone(&log), layer)));
        }
        let header = TxTag::done(unit(0, 0, 100)).within(Some(CONTEXT), unit(0, 0, 4)).unwrap();
        queue.append(vec![10; 4].into(), header);
        queue.append(vec![20; 96].into(), stacked(unit(0, 4, 100), unit(1, 0, 96)));
        let Lookup::In(record) = queue.unit_at(Layer::FIRST, 0) else { panic!("the record must be found") };
        assert_eq!(queue.seal(record), Ok(()));
        assert_eq!(*log.lock().unwrap(), [(Layer::SECOND, 0), (Layer::FIRST, 0)]);
        assert_eq!(queue.cut(1..101).fragments.concat(), [12; 4]);
    }

    #[test]
    fn small_plain_writes_become_one_chunk() {
        let mut queue = TcpSendQueue::new(Seq(0));
        (0..100).for_each(|byte| {
            queue.append_copy(&[byte]);
        });
        let cut = queue.cut(1..101);
        assert_eq!((cut.len, cut.fragments.len()), (100, 1));
        queue.acknowledge(51);
        assert_eq!(queue.cut(51..101).fragments[0][0], 50);
    }

    proptest! {
        #[test]
        fn packets_carry_the_queued_bytes(
            initial: u32,
            writes in proptest::collection::vec((1usize..600, any::<bool>(), any::<bool>()), 1..40),
            cuts in proptest::collection::vec((0.0f64..1.0, 1u64..3000, any::<bool>()), 1..40),
        ) {
            let mut queue = TcpSendQueue::new(Seq(initial));
            let (mut oracle, mut number) = (Vec::new(), 0);
            let mut tags = Vec::new();
            for (bytes, unit, copy) in writes {
                let data: Vec<u8> = (0..bytes).map(|place| (place * 7 + oracle.len()) as u8).collect();
                let tag = if unit { tagged(number, 0, bytes as u32) } else { TxTag::PLAIN };
                number += u64::from(unit);
                oracle.extend_from_slice(&data);
                tags.resize(oracle.len(), tag.context(Layer::FIRST));
                if copy && !unit { queue.append_copy(&data); } else { queue.append(data.into(), tag); }
            }
            prop_assert_eq!(queue.end(), 1 + oracle.len() as u64);
            let mut acked = 0;
            for (share, length, acknowledge) in cuts {
                let from = acked + ((oracle.len() - acked) as f64 * share) as usize;
                if acknowledge {
                    acked = from;
                    queue.acknowledge(1 + acked as u64);
                    prop_assert_eq!(queue.unacknowledged() as usize, oracle.len() - acked);
                    continue;
                }
                let to = oracle.len().min(from + length as usize);
                let cut = queue.cut(1 + from as u64..1 + to as u64);
                prop_assert_eq!(&cut.fragments.concat()[..], &oracle[from..from + cut.len]);
                let same = tags[from..to].iter().take_while(|context| **context == tags[from]).count();
                prop_assert!(cut.len == same || cut.fragments.len() == MAX_FRAGMENTS);
                prop_assert_eq!(cut.streams[0].map(|ask| ask.context), tags[from]);
            }
        }
    }
}
