//! What was handed to the transport and may still have to be sent: the [`RecordSource`] of a connection.
//!
//! Positions are stream positions that do not wrap: the SYN is at 0, the first byte at 1.
//!
//! Invariants: chunks are not empty and follow each other without a gap up to `end`; everything from `acked` on
//! is there, and so is every byte of a unit that is not wholly acknowledged. A chunk lies within one unit of a
//! layer, and has a context there as long as the layer's work on it is still to be done. Software seals no unit before those
//! that lie in its content; so while one of them is to be sealed, all of it is there as it was queued.

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
pub(crate) struct SendQueue {
    initial: Seq,
    chunks: VecDeque<Chunk>,
    /// Plain bytes at the end of the queue that small writes are gathered in.
    open: BytesMut,
    /// What all of it takes in memory.
    charged: usize,
    acked: u64,
    end: u64,
    /// Where in each layer's stream the first unit began.
    first_unit: [Option<u64>; LAYERS],
    /// Where the streams of the layers above the first end, and the last unit of each.
    above: [Above; LAYERS - 1],
    /// Boxed: most connections have none.
    sealers: Option<Box<Sealers>>,
}

#[derive(Debug)]
struct Chunk {
    start: u64,
    data: Bytes,
    tag: TxTag,
    /// Where it is in the streams of the layers above the first, or where those go on.
    above: [u64; LAYERS - 1],
}

/// A layer's stream, as far as it is queued.
#[derive(Clone, Copy, Debug, Default)]
struct Above {
    end: u64,
    /// Where its last unit begins and ends.
    last: (u64, u64),
}

/// Payload for one packet.
#[derive(Debug, Default)]
pub(crate) struct Cut {
    pub(crate) fragments: SmallVec<[Bytes; 4]>,
    pub(crate) streams: [Option<StreamAsk>; LAYERS],
    pub(crate) len: usize,
}

/// Why a unit is not sealed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SealFailure {
    /// Not all of its bytes are queued yet.
    Incomplete,
    /// Nobody was installed who could.
    NoSealer,
    /// The sealer would not, or returned another number of bytes.
    Refused(SealError),
    /// The queue holds no such unit whose bytes are still to be worked on.
    NotPending,
}

impl SendQueue {
    /// A queue for the stream whose SYN has the sequence number `initial`.
    pub(crate) fn new(initial: Seq) -> SendQueue {
        SendQueue {
            initial,
            chunks: VecDeque::new(),
            open: BytesMut::new(),
            charged: 0,
            acked: FIRST_BYTE,
            end: FIRST_BYTE,
            first_unit: [None; LAYERS],
            above: [Above::default(); LAYERS - 1],
            sealers: None,
        }
    }

    /// The sequence number of a position.
    pub(crate) fn seq(&self, position: u64) -> Seq {
        self.initial + position as u32
    }

    /// The position that `seq` stands for, taken to be near the first unacknowledged byte; `None` before the stream.
    pub(crate) fn position(&self, seq: Seq) -> Option<u64> {
        self.acked.checked_add_signed(i64::from(seq - self.seq(self.acked)))
    }

    /// The position after the last byte queued.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// What the queue takes in memory: of each chunk its bytes, even if others share them, and its place.
    pub(crate) fn charged(&self) -> usize {
        self.charged
    }

    /// Bytes queued and not acknowledged. Acknowledged bytes kept for their unit's sake do not count.
    pub(crate) fn unacknowledged(&self) -> u64 {
        self.end - self.acked
    }

    /// Queues `data`, and returns the position of its first byte.
    pub(crate) fn append(&mut self, data: Bytes, tag: TxTag) -> u64 {
        let start = self.end;
        if data.is_empty() {
            return start;
        }
        if tag == TxTag::PLAIN && data.len() <= GATHERED_BYTES {
            return self.append_copy(&data);
        }
        self.close_open();
        let above = self.above.map(|stream| stream.end);
        for layer in Layer::ALL {
            let Some(unit) = tag.unit(layer) else { continue };
            debug_assert!(unit.at as usize + data.len() <= unit.len as usize, "a chunk lies within its unit");
            let offset = offset_of(layer, start, above);
            let begins = offset.saturating_sub(u64::from(unit.at));
            self.first_unit[layer.index()].get_or_insert(begins);
            if layer > Layer::FIRST {
                let last = (begins, begins + u64::from(unit.len));
                self.above[layer.index() - 1] = Above { end: offset + data.len() as u64, last };
            }
        }
        self.end += data.len() as u64;
        self.charged += data.len() + CHUNK_BYTES;
        self.chunks.push_back(Chunk { start, data, tag, above });
        start
    }

    /// Queues a copy of `data`, which goes out as it is.
    pub(crate) fn append_copy(&mut self, data: &[u8]) -> u64 {
        let _scope = cost::work(WorkKind::Copy);
        let start = self.end;
        if self.open.len() + data.len() > OPEN_BYTES {
            self.close_open();
        }
        self.open.extend_from_slice(data);
        self.charged += data.len();
        self.end += data.len() as u64;
        start
    }

    /// Keeps `sealer` for the units of `layer` queued from now on.
    pub(crate) fn install(&mut self, layer: Layer, sealer: Box<dyn Sealer>) {
        let kept_from = self.chunks.front().map_or(self.end - self.open.len() as u64, |chunk| chunk.start);
        let sealers = self.sealers.get_or_insert_default();
        sealers.install(layer, self.end, sealer);
        // Of the one before all may be acknowledged already.
        sealers.release(kept_from);
    }

    /// Nothing more will be queued for `context`.
    pub(crate) fn leave(&mut self, context: Handle) {
        self.sealers.get_or_insert_default().leave(context, self.end);
    }

    /// Moves to `left` the contexts that are left, and no byte still to be acknowledged needs.
    pub(crate) fn take_left(&mut self, left: &mut Vec<Handle>) {
        if let Some(sealers) = &mut self.sealers {
            sealers.take_left(self.acked, left);
        }
    }

    /// Everything before `position` is acknowledged. Whole units are freed.
    pub(crate) fn acknowledge(&mut self, position: u64) {
        debug_assert!(position <= self.end);
        self.acked = self.acked.max(position);
        if self.acked > self.end - self.open.len() as u64 {
            self.close_open();
        }
        // From the front, where what is acknowledged is: a search would ask chunks that are in no cache.
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
        if self.chunks.is_empty() {
            self.chunks = VecDeque::new();
        }
    }

    /// Where the first byte is that is needed if the chunk of this index is: a unit that may be sent again may be sealed
    /// again, with what is sealed in its content, and that is done by whole units.
    fn needed_from(&self, first_needed: usize) -> u64 {
        let first = self.chunks.get(first_needed);
        let mut needed_from = first.map_or(self.acked, |chunk| chunk.start);
        for layer in Layer::ALL.into_iter().filter(|layer| *layer > Layer::FIRST) {
            let Above { end, last } = self.above[layer.index() - 1];
            let next = first.and_then(|chunk| self.chunks.get(self.index_in(layer, chunk.offset(layer))));
            let begun = match next.and_then(|chunk| Some((chunk.offset(layer), chunk.tag.unit(layer)?))) {
                Some((offset, unit)) => offset.saturating_sub(u64::from(unit.at)),
                // Of the last unit a part may be still to come.
                None if last.1 > end => last.0,
                None => continue,
            };
            if let Some(chunk) = self.chunks.get(self.index_in(layer, begun)) {
                needed_from = needed_from.min(chunk.start);
            }
        }
        needed_from
    }

    /// Throws everything away: nothing will be sent any more.
    pub(crate) fn release(&mut self) {
        self.acked = self.end;
        self.chunks = VecDeque::new();
        self.open = BytesMut::new();
        self.charged = 0;
        if let Some(sealers) = &mut self.sealers {
            sealers.clear();
        }
    }

    /// Payload for a packet: bytes from `range.start` on, at most up to `range.end`; of each layer, one context works on all
    /// bytes that are of its stream, or none does.
    pub(crate) fn cut(&mut self, range: Range<u64>) -> Cut {
        if range.end > self.end - self.open.len() as u64 {
            self.close_open();
        }
        let mut cut = Cut::default();
        let mut at = range.start;
        let mut contexts = [None; LAYERS];
        let first = self.index_of(at);
        for chunk in self.chunks.range(first..) {
            if at >= range.end || cut.fragments.len() == MAX_FRAGMENTS || !chunk.agrees_with(&mut contexts) {
                break;
            }
            let from = (at - chunk.start) as usize;
            let to = chunk.data.len().min((range.end - chunk.start) as usize);
            cut.push(chunk, from..to);
            at = chunk.end();
        }
        cut
    }

    /// Has `unit` sealed by software, and whatever units of higher layers it holds, and replaces the queued bytes.
    pub(crate) fn seal(&mut self, unit: Unit) -> Result<(), SealFailure> {
        let layer = unit.layer;
        let queued = match self.unit_at(layer, unit.offset) {
            Lookup::In(found) => found == unit && self.is_pending(unit),
            _ => false,
        };
        if !queued {
            return Err(SealFailure::NotPending);
        }
        // What lies in its content is sealed first, the highest layer before all.
        for higher in Layer::ALL.into_iter().rev().filter(|higher| *higher > layer) {
            while let Some(found) = self.next_pending(higher, unit) {
                self.seal_one(found)?;
            }
        }
        self.seal_one(unit)
    }

    fn seal_one(&mut self, unit: Unit) -> Result<(), SealFailure> {
        let Unit { layer, number, offset, len, .. } = unit;
        if unit.end() > self.end_of(layer) {
            return Err(SealFailure::Incomplete);
        }
        let (first, last) = (self.index_in(layer, offset), self.index_in(layer, unit.end()));
        let start = match self.chunks.get(first).filter(|chunk| chunk.offset(layer) == offset) {
            Some(chunk) => chunk.start,
            None => return Err(SealFailure::NotPending),
        };
        let is_of_unit = |chunk: &Chunk| chunk.tag.unit(layer).is_some_and(|tag| tag.number == number);
        let parts = self.chunks.range(first..last).filter(|chunk| is_of_unit(chunk));
        let plain: SmallVec<[Bytes; 8]> = parts.map(|chunk| chunk.data.clone()).collect();
        let sealer = self.sealers.as_mut().and_then(|sealers| sealers.of(layer, start)).ok_or(SealFailure::NoSealer)?;
        let sealed = {
            let _scope = cost::work(WorkKind::Crypto);
            sealer.seal(unit, &plain).map_err(SealFailure::Refused)?
        };
        let length: usize = plain.iter().map(Bytes::len).sum();
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

    /// Whether a byte of `unit`, which is queued, is still to be worked on. Its first need not be: a header may have been queued
    /// as it is to leave.
    fn is_pending(&self, unit: Unit) -> bool {
        let Unit { layer, offset, .. } = unit;
        let chunks = self.chunks.range(self.index_in(layer, offset)..);
        let mut of_unit = chunks.take_while(|chunk| chunk.offset(layer) < unit.end());
        of_unit.any(|chunk| chunk.tag.context(layer).is_some())
    }

    /// The first unit of `higher` with bytes in those of `unit` that is still to be worked on, there or further on: its bytes
    /// are not to be replaced before.
    fn next_pending(&self, higher: Layer, unit: Unit) -> Option<Unit> {
        let chunks = self.chunks.range(self.index_in(unit.layer, unit.offset)..);
        let chunks = chunks.take_while(|chunk| chunk.offset(unit.layer) < unit.end());
        let mut units = chunks.filter_map(|chunk| self.unit_of(chunk, higher));
        units.find(|found| self.is_pending(*found))
    }

    fn unit_of(&self, chunk: &Chunk, layer: Layer) -> Option<Unit> {
        let tag = chunk.tag.unit(layer)?;
        let offset = chunk.offset(layer).saturating_sub(u64::from(tag.at));
        let start = match layer {
            Layer::FIRST => offset + FIRST_BYTE,
            _ => self.chunks.get(self.index_in(layer, offset))?.start,
        };
        let start = self.seq(start);
        Some(Unit { layer, number: tag.number, offset, start, len: tag.len, touched_from: tag.touched_from })
    }

    /// The index of the first chunk that ends after `position`.
    fn index_of(&self, position: u64) -> usize {
        self.chunks.partition_point(|chunk| chunk.end() <= position)
    }

    /// The index of the first chunk with bytes of a layer's stream that end after `offset`.
    fn index_in(&self, layer: Layer, offset: u64) -> usize {
        match layer {
            Layer::FIRST => self.index_of(offset + FIRST_BYTE),
            _ => self.chunks.partition_point(|chunk| chunk.end_in(layer) <= offset),
        }
    }

    /// Where a layer's stream ends, as far as it is queued and not only gathered.
    fn end_of(&self, layer: Layer) -> u64 {
        match layer {
            Layer::FIRST => self.end - self.open.len() as u64 - FIRST_BYTE,
            _ => self.above[layer.index() - 1].end,
        }
    }

    /// Makes a chunk of the gathered bytes.
    fn close_open(&mut self) {
        if !self.open.is_empty() {
            let data = self.open.split().freeze();
            // What is left of the buffer is too small to be worth keeping the whole of it.
            self.open = BytesMut::new();
            let start = self.end - data.len() as u64;
            self.charged += CHUNK_BYTES;
            let above = self.above.map(|stream| stream.end);
            self.chunks.push_back(Chunk { start, data, tag: TxTag::PLAIN, above });
        }
    }
}

impl RecordSource for SendQueue {
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

impl Chunk {
    fn end(&self) -> u64 {
        self.start + self.data.len() as u64
    }

    /// Whether its bytes are of a layer's stream.
    fn is_of(&self, layer: Layer) -> bool {
        layer == Layer::FIRST || self.tag.unit(layer).is_some()
    }

    /// Where in a layer's stream it is, or where that goes on.
    fn offset(&self, layer: Layer) -> u64 {
        offset_of(layer, self.start, self.above)
    }

    /// Where a layer's stream goes on behind it.
    fn end_in(&self, layer: Layer) -> u64 {
        self.offset(layer) + if self.is_of(layer) { self.data.len() as u64 } else { 0 }
    }

    /// The end of the unit of the first layer that the chunk is part of: up to there its bytes may be asked for again.
    fn needed_until(&self) -> u64 {
        let unit = self.tag.unit(Layer::FIRST);
        unit.map_or(self.end(), |unit| self.start - u64::from(unit.at) + u64::from(unit.len))
    }

    /// Whether it may be in a packet with these contexts, for each layer of whose stream the packet has bytes. If so, they are
    /// its own, too.
    fn agrees_with(&self, contexts: &mut [Option<Option<Handle>>; LAYERS]) -> bool {
        let mut layers = Layer::ALL.into_iter().filter(|layer| self.is_of(*layer));
        layers.all(|layer| {
            let context = self.tag.context(layer);
            *contexts[layer.index()].get_or_insert(context) == context
        })
    }
}

impl Cut {
    /// The next fragment is a part of `chunk`.
    fn push(&mut self, chunk: &Chunk, part: Range<usize>) {
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

/// Where in a layer's stream the byte at the position `start` is, or where that goes on; `above`: of those above the first.
fn offset_of(layer: Layer, start: u64, above: [u64; LAYERS - 1]) -> u64 {
    match layer {
        Layer::FIRST => start - FIRST_BYTE,
        _ => above[layer.index() - 1],
    }
}

/// The position of a stream's first byte; the SYN comes before it.
pub(crate) const FIRST_BYTE: u64 = 1;
/// Plain data up to this size are gathered by copying rather than kept as chunks of their own.
const GATHERED_BYTES: usize = 256;
/// What a chunk takes beside its bytes.
const CHUNK_BYTES: usize = size_of::<Chunk>();
/// How much is gathered before a new buffer is begun.
const OPEN_BYTES: usize = 16 << 10;
/// More pieces than this would cost the device more than a second packet.
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

    /// A PDU's place in a record, both to be worked on.
    fn stacked(pdu: UnitTag, record: UnitTag) -> TxTag {
        TxTag::device(DIGESTS, pdu).within(Some(CONTEXT), record).unwrap()
    }

    fn queue_with_record() -> SendQueue {
        let mut queue = SendQueue::new(Seq(u32::MAX - 20));
        queue.append(vec![0; 300].into(), TxTag::PLAIN);
        for at in [0, 5, 95] {
            let length = [5, 90, 16][[0, 5, 95].iter().position(|start| *start == at).unwrap()];
            queue.append(vec![at as u8; length].into(), tagged(7, at, 111));
        }
        queue
    }

    #[test]
    fn a_unit_is_found_by_any_of_its_bytes_until_all_are_acknowledged() {
        let mut queue = queue_with_record();
        let start = queue.seq(301);
        let unit = Unit { layer: Layer::FIRST, number: 7, offset: 300, start, len: 111, touched_from: 0 };
        assert_eq!(queue.unit_at(Layer::FIRST, 299), Lookup::BeforeStart);
        assert_eq!(queue.unit_at(Layer::SECOND, 300), Lookup::BeforeStart);
        for offset in [300, 304, 305, 394, 395, 410] {
            assert_eq!(queue.unit_at(Layer::FIRST, offset), Lookup::In(unit));
        }
        assert_eq!(queue.unit_at(Layer::FIRST, 411), Lookup::Released, "never queued");
        queue.acknowledge(411);
        assert_eq!(queue.unacknowledged(), 1, "what is kept for the unit's sake does not count");
        assert_eq!(queue.unit_at(Layer::FIRST, 300), Lookup::In(unit));
        let mut bytes = Vec::new();
        queue.pieces(Layer::FIRST, 300, 411, &mut |piece| bytes.extend_from_slice(&piece.bytes));
        assert_eq!(bytes, [vec![0; 5], vec![5; 90], vec![95; 16]].concat());
        queue.acknowledge(412);
        assert_eq!(queue.unit_at(Layer::FIRST, 300), Lookup::Released);
        assert!(queue.chunks.is_empty());
    }

    #[test]
    fn packets_end_where_the_context_changes() {
        let mut queue = queue_with_record();
        let cut = queue.cut(1..412);
        assert_eq!((cut.len, cut.streams), (300, [None; LAYERS]));
        let cut = queue.cut(301..412);
        let ask = StreamAsk { context: CONTEXT, bytes: 111, offset: 300, fragments: 0b111 };
        assert_eq!((cut.len, cut.streams, cut.fragments.len()), (111, [Some(ask), None], 3));
        let cut = queue.cut(303..308);
        assert_eq!((cut.len, cut.fragments.len()), (5, 2));
    }

    /// Adds one to every byte, and writes down what it was asked.
    struct AddOne(Arc<Mutex<Vec<(Layer, u64)>>>, Layer);

    impl Sealer for AddOne {
        fn seal(&mut self, unit: Unit, plain: &[Bytes]) -> Result<Bytes, SealError> {
            self.0.lock().unwrap().push((self.1, unit.number));
            Ok(plain.concat().into_iter().map(|byte| byte + 1).collect())
        }
    }

    #[test]
    fn sealing_replaces_the_bytes_and_nothing_else() {
        let mut queue = queue_with_record();
        let start = queue.seq(301);
        let unit = Unit { layer: Layer::FIRST, number: 7, offset: 300, start, len: 111, touched_from: 0 };
        assert_eq!(queue.seal(unit), Err(SealFailure::NoSealer));
        let log = Arc::default();
        queue.install(Layer::FIRST, Box::new(AddOne(Arc::clone(&log), Layer::FIRST)));
        assert_eq!(queue.seal(unit), Err(SealFailure::NoSealer), "it answers for what is queued from then on");
        queue.sealers = None;
        queue.sealers.get_or_insert_default().install(
            Layer::FIRST,
            301,
            Box::new(AddOne(Arc::clone(&log), Layer::FIRST)),
        );
        assert_eq!(queue.seal(Unit { number: 8, ..unit }), Err(SealFailure::NotPending));
        assert_eq!(queue.seal(unit), Ok(()));
        assert_eq!(queue.seal(unit), Err(SealFailure::NotPending), "once is enough");
        assert_eq!(queue.unit_at(Layer::FIRST, 300), Lookup::In(unit));
        let cut = queue.cut(301..412);
        assert_eq!((cut.streams[0], cut.fragments.concat()), (None, [vec![1; 5], vec![6; 90], vec![96; 16]].concat()));
    }

    #[test]
    fn a_sealer_goes_with_its_last_byte_once_another_has_followed() {
        let key = Arc::new(());
        let sealer = |key: &Arc<()>| {
            let key = Arc::clone(key);
            Box::new(Holding(key)) as Box<dyn Sealer>
        };
        for acknowledged_first in [false, true] {
            let mut queue = SendQueue::new(Seq(0));
            queue.install(Layer::FIRST, sealer(&key));
            let start = queue.append(vec![1; 100].into(), tagged(0, 0, 100));
            if acknowledged_first {
                queue.acknowledge(start + 100);
                assert_eq!(Arc::strong_count(&key), 2, "more may be queued for it");
                queue.install(Layer::FIRST, sealer(&Arc::default()));
            } else {
                queue.install(Layer::FIRST, sealer(&Arc::default()));
                queue.acknowledge(start + 99);
                assert_eq!(Arc::strong_count(&key), 2, "its record may have to be sealed");
                queue.acknowledge(start + 100);
            }
            assert_eq!(Arc::strong_count(&key), 1);
        }
    }

    /// Has a key.
    struct Holding(#[allow(dead_code)] Arc<()>);

    impl Sealer for Holding {
        fn seal(&mut self, unit: Unit, _: &[Bytes]) -> Result<Bytes, SealError> {
            Err(SealError::Malformed { number: unit.number })
        }
    }

    #[test]
    fn digests_are_made_before_the_records_they_are_in_are_sealed() {
        // PDUs of 100 bytes, records of 80 bytes over them: records 0..5, PDUs 0..4.
        let (log, mut queue) = (Arc::default(), SendQueue::new(Seq(0)));
        for layer in Layer::ALL {
            queue.install(layer, Box::new(AddOne(Arc::clone(&log), layer)));
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
        assert_eq!(queue.cut(1..401).len, 80, "record 0 is still for the context");
        assert_eq!(queue.seal(record(0)), Ok(()));
        assert_eq!(log.lock().unwrap().len(), 4, "PDU 0 has its digest already");
        // All of a PDU is kept until all of its records are acknowledged too.
        queue.acknowledge(161);
        assert!(matches!(queue.unit_at(Layer::SECOND, 100), Lookup::In(_)));
        assert_eq!(queue.unit_at(Layer::SECOND, 99), Lookup::Released);
    }

    /// PDUs of 100 bytes as the content of records of 30 bytes of it each, with 5 bytes before and 17 behind.
    fn queue_with_pdus_in_records(log: &Arc<Mutex<Vec<(Layer, u64)>>>) -> SendQueue {
        let mut queue = SendQueue::new(Seq(0));
        for layer in Layer::ALL {
            queue.install(layer, Box::new(AddOne(log.clone(), layer)));
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
    fn a_pdu_in_records_is_sealed_and_kept_as_a_whole() {
        let log = Arc::default();
        let mut queue = queue_with_pdus_in_records(&log);
        // Records are at 1, 53, 105, 157, ...; PDU 1 begins behind 10 bytes of content of the fourth.
        let Lookup::In(unit) = queue.unit_at(Layer::SECOND, 100) else { panic!("there is one") };
        assert_eq!((unit.number, unit.start, unit.offset, unit.len), (1, Seq(172), 100, 100));
        let cut = queue.cut(160..230);
        let record = StreamAsk { context: CONTEXT, bytes: 70, offset: 159, fragments: 0b111111 };
        let ask = StreamAsk { context: DIGESTS, bytes: 46, offset: 90, fragments: 0b100110 };
        assert_eq!((cut.len, cut.streams), (70, [Some(record), Some(ask)]));
        // The digest of PDU 1 only: what frames its records, and PDU 0, stay as they are.
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
        // Record 3 is sealed with the digests of both.
        let (layer, start) = (Layer::FIRST, Seq(157));
        let record = Unit { layer, number: 3, offset: 156, start, len: 52, touched_from: 0 };
        assert_eq!(queue.seal(record), Ok(()));
        assert_eq!(log.lock().unwrap()[1..], [(Layer::SECOND, 0), (Layer::FIRST, 3)]);
        // As long as record 3 is not acknowledged as a whole, PDU 0 is there to make its digest of.
        let mut queue = queue_with_pdus_in_records(&Arc::default());
        queue.acknowledge(208);
        assert!(matches!(queue.unit_at(Layer::SECOND, 0), Lookup::In(unit) if unit.number == 0));
        queue.acknowledge(209);
        assert_eq!(queue.unit_at(Layer::SECOND, 0), Lookup::Released);
        assert!(matches!(queue.unit_at(Layer::SECOND, 100), Lookup::In(_)));
        queue.acknowledge(521);
        assert!(queue.chunks.is_empty());
    }

    /// All of it that was queued is acknowledged; software may still have to seal it, once the rest has come.
    #[test]
    fn a_pdu_of_which_a_part_is_queued_is_kept() {
        let (log, mut queue) = (Arc::default(), SendQueue::new(Seq(0)));
        for layer in Layer::ALL {
            queue.install(layer, Box::new(AddOne(Arc::clone(&log), layer)));
        }
        queue.append(vec![10; 60].into(), stacked(unit(0, 0, 100), unit(0, 0, 60)));
        queue.acknowledge(61);
        assert_eq!(queue.unacknowledged(), 0);
        queue.append(vec![20; 40].into(), stacked(unit(0, 60, 100), unit(1, 0, 40)));
        let Lookup::In(pdu) = queue.unit_at(Layer::SECOND, 60) else { panic!("it is there") };
        assert_eq!((pdu.offset, pdu.start), (0, Seq(1)));
        assert_eq!(queue.seal(pdu), Ok(()));
        assert_eq!(queue.cut(61..101).fragments.concat(), [21; 40]);
        queue.acknowledge(101);
        assert!(queue.chunks.is_empty());
    }

    /// A protocol may have said of a unit's header that nothing is to be done with it.
    #[test]
    fn a_unit_is_sealed_whose_header_is_queued_as_it_is_to_leave() {
        for layer in Layer::ALL {
            let (log, mut queue) = (Arc::default(), SendQueue::new(Seq(0)));
            queue.install(layer, Box::new(AddOne(Arc::clone(&log), layer)));
            let tagged = |tag: TxTag, at, len| match layer {
                Layer::FIRST => tag,
                _ => tag.within(None, unit(0, at, len)).unwrap(),
            };
            queue.append(vec![10; 4].into(), tagged(TxTag::done(unit(0, 0, 100)), 0, 100));
            queue.append(vec![20; 96].into(), tagged(TxTag::device(DIGESTS, unit(0, 4, 100)), 4, 100));
            let Lookup::In(found) = queue.unit_at(layer, 50) else { panic!("it is there") };
            assert_eq!(queue.seal(found), Ok(()));
            assert_eq!(queue.cut(1..101).streams, [None; LAYERS]);
            assert_eq!(queue.seal(found), Err(SealFailure::NotPending), "once");
        }
    }

    /// Nothing is to be done with the header that one record has, but with the rest, which another has.
    #[test]
    fn a_record_is_not_sealed_before_a_pdu_of_which_it_has_the_header() {
        let (log, mut queue) = (Arc::default(), SendQueue::new(Seq(0)));
        for layer in Layer::ALL {
            queue.install(layer, Box::new(AddOne(Arc::clone(&log), layer)));
        }
        let header = TxTag::done(unit(0, 0, 100)).within(Some(CONTEXT), unit(0, 0, 4)).unwrap();
        queue.append(vec![10; 4].into(), header);
        queue.append(vec![20; 96].into(), stacked(unit(0, 4, 100), unit(1, 0, 96)));
        let Lookup::In(record) = queue.unit_at(Layer::FIRST, 0) else { panic!("it is there") };
        assert_eq!(queue.seal(record), Ok(()));
        assert_eq!(*log.lock().unwrap(), [(Layer::SECOND, 0), (Layer::FIRST, 0)]);
        assert_eq!(queue.cut(1..101).fragments.concat(), [12; 4]);
    }

    #[test]
    fn small_plain_writes_become_one_chunk() {
        let mut queue = SendQueue::new(Seq(0));
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
        fn whatever_is_cut_is_what_was_queued(
            initial: u32,
            writes in proptest::collection::vec((1usize..600, any::<bool>(), any::<bool>()), 1..40),
            cuts in proptest::collection::vec((0.0f64..1.0, 1u64..3000, any::<bool>()), 1..40),
        ) {
            let mut queue = SendQueue::new(Seq(initial));
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
