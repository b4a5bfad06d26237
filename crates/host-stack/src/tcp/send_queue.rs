//! What was handed to the transport and may still have to be sent: the [`RecordSource`] of a connection.
//!
//! Positions are stream positions that do not wrap: the SYN is at 0, the first byte at 1.
//!
//! Invariants: chunks are not empty and follow each other without a gap up to `end`; everything from `acked` on
//! is there, and so is every byte of a unit that is not wholly acknowledged. A chunk lies within one unit of a
//! layer, and has a context as long as some layer's work on it is still to be done. No byte of a PDU in records is
//! sealed before the PDU has its digest; so while that is to be made, all of the PDU is there as it was queued.

use super::sealing::Sealers;
use super::spans::{Span, Spans};
use bytes::{Bytes, BytesMut};
use core::ops::Range;
use offload_api::unit::LAYERS;
use offload_api::{DigestAsk, Handle, Layer, Lookup, RecordSource, SealError, Sealer, TxTag, Unit, UnitPlace, UnitTag};
use offload_base::Seq;
use offload_base::cost::{self, Work};
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
    /// Where the first unit of each layer began.
    first_unit: [Option<u64>; LAYERS],
    /// Where the units of the highest layer are: those of lower ones may cut them into parts.
    pdus: Spans,
    /// Boxed: most connections have none.
    sealers: Option<Box<Sealers>>,
}

#[derive(Debug)]
struct Chunk {
    start: u64,
    data: Bytes,
    tag: TxTag,
    /// The layers whose work on these bytes the context is still to do, a bit each.
    pending: u8,
}

/// Payload for one packet.
#[derive(Debug, Default)]
pub(crate) struct Cut {
    pub(crate) fragments: SmallVec<[Bytes; 4]>,
    pub(crate) context: Option<Handle>,
    pub(crate) digests: Option<DigestAsk>,
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
            pdus: Spans::default(),
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

    /// What the queue takes in memory: of each chunk its bytes, whoever else has them too, and its place.
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
        let mut pending = 0;
        for layer in 0..LAYERS {
            if let Some(unit) = tag.units[layer] {
                debug_assert!(unit.at as usize + data.len() <= unit.len as usize, "a chunk lies within its unit");
                self.first_unit[layer].get_or_insert(start.saturating_sub(u64::from(unit.at)));
                if tag.context.is_some()
                    && (layer == Layer::Tls as usize || !tag.is_in_record() || tag.digests.is_some())
                {
                    pending |= 1 << layer;
                }
            }
        }
        if let Some(unit) = tag.unit(Layer::NvmeTcp) {
            self.pdus.extend(unit, start, data.len() as u64);
        }
        self.end += data.len() as u64;
        self.charged += data.len() + CHUNK_BYTES;
        self.chunks.push_back(Chunk { start, data, tag, pending });
        start
    }

    /// Queues a copy of `data`, which goes out as it is.
    pub(crate) fn append_copy(&mut self, data: &[u8]) -> u64 {
        let _scope = cost::work(Work::Copy);
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
        // A record that may be sent again is sealed again, with the digests in it: so their PDUs are kept as well.
        // From the front, where what is acknowledged is: a search would ask chunks that are in no cache.
        let first_needed = self.chunks.iter().take_while(|chunk| chunk.needed_until() <= self.acked).count();
        let needed_from = self.chunks.get(first_needed).map_or(self.acked, |chunk| chunk.start);
        let needed_from = self.pdus.forget_before(needed_from).map_or(needed_from, |pdu| pdu.min(needed_from));
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

    /// Throws everything away: nothing will be sent any more.
    pub(crate) fn release(&mut self) {
        self.acked = self.end;
        self.chunks = VecDeque::new();
        self.open = BytesMut::new();
        self.charged = 0;
        self.pdus = Spans::default();
        if let Some(sealers) = &mut self.sealers {
            sealers.clear();
        }
    }

    /// Payload for a packet: bytes from `range.start` on, at most up to `range.end`, that one context works on; and if they
    /// are PDUs in records, either all of those still need their digests from one context, or none does.
    pub(crate) fn cut(&mut self, range: Range<u64>) -> Cut {
        if range.end > self.end - self.open.len() as u64 {
            self.close_open();
        }
        let mut cut = Cut::default();
        let mut at = range.start;
        let mut content = None;
        let first = self.index_of(at);
        for chunk in self.chunks.range(first..) {
            if at >= range.end || cut.fragments.len() == MAX_FRAGMENTS {
                break;
            }
            if cut.fragments.is_empty() {
                cut.context = chunk.tag.context;
            } else if cut.context != chunk.tag.context {
                break;
            }
            let from = (at - chunk.start) as usize;
            let to = chunk.data.len().min((range.end - chunk.start) as usize);
            if chunk.tag.is_in_record()
                && chunk.tag.unit(Layer::NvmeTcp).is_some()
                && let Some(unit) = chunk.tag.advanced(from as u32).unit(Layer::NvmeTcp)
            {
                if content.is_some_and(|digests| digests != chunk.tag.digests) {
                    break;
                }
                content = Some(chunk.tag.digests);
                cut.note_content(chunk.tag.digests, unit, (to - from) as u32);
            }
            cut.fragments.push(chunk.data.slice(from..to));
            cut.len += to - from;
            at = chunk.end();
        }
        cut
    }

    /// Has `unit` sealed by software, and whatever units of higher layers it holds, and replaces the queued bytes.
    pub(crate) fn seal(&mut self, unit: Unit) -> Result<(), SealFailure> {
        let Some(start) = self.position(unit.start) else { return Err(SealFailure::NotPending) };
        let range = start..start + u64::from(unit.len());
        let layer = unit.layer;
        if !self.is_pending_unit(&unit, &range) {
            return Err(SealFailure::NotPending);
        }
        // A unit of a higher layer is sealed first: its digest is part of what the lower layer encrypts.
        for higher in LAYERS_FROM_THE_TOP.into_iter().filter(|higher| *higher > layer) {
            let mut at = range.start;
            while let Some(found) = self.next_pending(higher, at..range.end) {
                self.seal_one(higher, found)?;
                at = found_end(self, found);
            }
        }
        self.seal_one(layer, unit)
    }

    fn seal_one(&mut self, layer: Layer, unit: Unit) -> Result<(), SealFailure> {
        let start = self.position(unit.start).ok_or(SealFailure::NotPending)?;
        let end = start + u64::from(unit.len());
        if end > self.end - self.open.len() as u64 {
            return Err(SealFailure::Incomplete);
        }
        let first = self.index_of(start);
        let last = self.index_of(end);
        if self.chunks.get(first).is_none_or(|chunk| chunk.start != start) {
            return Err(SealFailure::NotPending);
        }
        let is_of_unit = |chunk: &Chunk| chunk.tag.unit(layer).is_some_and(|tag| tag.number == unit.number);
        let parts = self.chunks.range(first..last).filter(|chunk| is_of_unit(chunk));
        let plain: SmallVec<[Bytes; 8]> = parts.map(|chunk| chunk.data.clone()).collect();
        let length: usize = plain.iter().map(Bytes::len).sum();
        // A sealer knows nothing of what lies between the parts.
        let whole = Unit { end: unit.start + length as u32, ..unit };
        if self.pdus.at(start).is_some_and(|pdu| layer == Layer::NvmeTcp && !pdu.is_complete()) {
            return Err(SealFailure::Incomplete);
        }
        let sealer = self.sealers.as_mut().and_then(|sealers| sealers.of(layer, start)).ok_or(SealFailure::NoSealer)?;
        let sealed = {
            let _scope = cost::work(Work::Crypto);
            sealer.seal(whole, &plain).map_err(SealFailure::Refused)?
        };
        if sealed.len() != length {
            return Err(SealFailure::Refused(SealError::Malformed { number: unit.number }));
        }
        let mut at = 0;
        for chunk in self.chunks.range_mut(first..last).filter(|chunk| is_of_unit(chunk)) {
            chunk.data = sealed.slice(at..at + chunk.data.len());
            at += chunk.data.len();
            chunk.pending &= !(1 << layer as usize);
            if layer == Layer::NvmeTcp {
                chunk.tag.digests = None;
            }
            if chunk.pending == 0 {
                chunk.tag.context = None;
            }
        }
        Ok(())
    }

    /// Whether `unit` is queued at exactly `range`, and still to be worked on.
    fn is_pending_unit(&self, unit: &Unit, range: &Range<u64>) -> bool {
        let chunk = self.chunks.get(self.index_of(range.start)).filter(|chunk| chunk.start == range.start);
        chunk.is_some_and(|chunk| {
            let found = self.unit_of(chunk, unit.layer);
            chunk.is_pending(unit.layer) && found == Some(*unit)
        })
    }

    /// The first unit of `layer` with bytes in `range` that are still to be worked on.
    fn next_pending(&self, layer: Layer, range: Range<u64>) -> Option<Unit> {
        let chunks = self.chunks.range(self.index_of(range.start)..);
        let chunk = chunks.take_while(|chunk| chunk.start < range.end).find(|chunk| chunk.is_pending(layer))?;
        self.unit_of(chunk, layer)
    }

    fn unit_of(&self, chunk: &Chunk, layer: Layer) -> Option<Unit> {
        if layer == Layer::NvmeTcp {
            return self.pdus.at(chunk.start).map(|pdu| self.pdu(pdu));
        }
        let unit = chunk.tag.unit(layer)?;
        let start = self.seq(chunk.start) - unit.at;
        Some(Unit { layer, number: unit.number, start, end: start + unit.len })
    }

    fn pdu(&self, pdu: &Span) -> Unit {
        Unit { layer: Layer::NvmeTcp, number: pdu.number, start: self.seq(pdu.start), end: self.seq(pdu.end()) }
    }

    /// The index of the first chunk that ends after `position`.
    fn index_of(&self, position: u64) -> usize {
        self.chunks.partition_point(|chunk| chunk.end() <= position)
    }

    /// Makes a chunk of the gathered bytes.
    fn close_open(&mut self) {
        if !self.open.is_empty() {
            let data = self.open.split().freeze();
            // What is left of the buffer is too small to be worth keeping the whole of it.
            self.open = BytesMut::new();
            let start = self.end - data.len() as u64;
            self.charged += CHUNK_BYTES;
            self.chunks.push_back(Chunk { start, data, tag: TxTag::PLAIN, pending: 0 });
        }
    }
}

impl RecordSource for SendQueue {
    fn unit_at(&self, layer: Layer, seq: Seq) -> Lookup {
        let Some(first) = self.first_unit[layer as usize] else { return Lookup::BeforeStart };
        let Some(position) = self.position(seq).filter(|position| *position >= first) else {
            return Lookup::BeforeStart;
        };
        let chunk = self.chunks.get(self.index_of(position)).filter(|chunk| chunk.start <= position);
        match chunk.and_then(|chunk| self.unit_of(chunk, layer)) {
            Some(unit) => Lookup::In(unit),
            None => Lookup::Released,
        }
    }

    fn bytes(&self, layer: Layer, from: Seq, to: Seq, sink: &mut dyn FnMut(Bytes)) {
        self.pieces(layer, from, to, &mut |bytes, _| sink(bytes));
    }

    fn pieces(&self, layer: Layer, from: Seq, to: Seq, sink: &mut dyn FnMut(Bytes, TxTag)) {
        let (Some(from), Some(to)) = (self.position(from), self.position(to)) else { return };
        let chunks = self.chunks.range(self.index_of(from)..);
        for chunk in chunks.take_while(|chunk| chunk.start < to).filter(|chunk| chunk.tag.unit(layer).is_some()) {
            let start = from.saturating_sub(chunk.start) as usize;
            let end = chunk.data.len().min((to - chunk.start) as usize);
            sink(chunk.data.slice(start..end), chunk.tag.advanced(start as u32));
        }
    }
}

impl Chunk {
    fn end(&self) -> u64 {
        self.start + self.data.len() as u64
    }

    fn is_pending(&self, layer: Layer) -> bool {
        self.pending & 1 << layer as usize != 0
    }

    /// The end of the record that this chunk is part of: up to there its bytes may be asked for again.
    fn needed_until(&self) -> u64 {
        let record = self.tag.unit(Layer::Tls);
        record.map_or(self.end(), |record| self.start - u64::from(record.at) + u64::from(record.len))
    }
}

impl Cut {
    /// The next fragment is `bytes` bytes of a PDU in a record, from a place in it on; `digests` is to fill its digest in.
    fn note_content(&mut self, digests: Option<Handle>, unit: UnitTag, bytes: u32) {
        let Some(context) = digests else { return };
        let (first, next) = (UnitPlace::of(unit), UnitPlace::behind(unit, bytes));
        let ask = self.digests.get_or_insert(DigestAsk { context, content: 0, first, next });
        ask.content |= 1 << self.fragments.len();
        ask.next = next;
    }
}

fn found_end(queue: &SendQueue, unit: Unit) -> u64 {
    queue.position(unit.end).unwrap_or(queue.end)
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
const MAX_FRAGMENTS: usize = DigestAsk::FRAGMENTS;
const LAYERS_FROM_THE_TOP: [Layer; LAYERS] = [Layer::NvmeTcp, Layer::Tls];

#[cfg(test)]
mod tests {
    use super::*;
    use offload_api::UnitTag;
    use proptest::prelude::*;
    use std::sync::{Arc, Mutex};

    const CONTEXT: Handle = Handle { index: 1, generation: 0 };
    const DIGESTS: Handle = Handle { index: 2, generation: 0 };

    fn tagged(layer: Layer, number: u64, at: u32, len: u32) -> TxTag {
        TxTag::device(CONTEXT, layer, UnitTag { number, at, len })
    }

    fn queue_with_record() -> SendQueue {
        let mut queue = SendQueue::new(Seq(u32::MAX - 20));
        queue.append(vec![0; 300].into(), TxTag::PLAIN);
        for at in [0, 5, 95] {
            let length = [5, 90, 16][[0, 5, 95].iter().position(|start| *start == at).unwrap()];
            queue.append(vec![at as u8; length].into(), tagged(Layer::Tls, 7, at, 111));
        }
        queue
    }

    #[test]
    fn a_unit_is_found_by_any_of_its_bytes_until_all_are_acknowledged() {
        let mut queue = queue_with_record();
        let start = queue.seq(301);
        let unit = Unit { layer: Layer::Tls, number: 7, start, end: start + 111 };
        assert_eq!(queue.unit_at(Layer::Tls, queue.seq(300)), Lookup::BeforeStart);
        assert_eq!(queue.unit_at(Layer::NvmeTcp, start), Lookup::BeforeStart);
        for position in [301, 305, 306, 395, 396, 411] {
            assert_eq!(queue.unit_at(Layer::Tls, queue.seq(position)), Lookup::In(unit));
        }
        assert_eq!(queue.unit_at(Layer::Tls, queue.seq(412)), Lookup::Released, "never queued");
        queue.acknowledge(411);
        assert_eq!(queue.unacknowledged(), 1, "what is kept for the unit's sake does not count");
        assert_eq!(queue.unit_at(Layer::Tls, start), Lookup::In(unit));
        let mut bytes = Vec::new();
        queue.bytes(Layer::Tls, start, start + 111, &mut |piece| bytes.extend_from_slice(&piece));
        assert_eq!(bytes, [vec![0; 5], vec![5; 90], vec![95; 16]].concat());
        queue.acknowledge(412);
        assert_eq!(queue.unit_at(Layer::Tls, start), Lookup::Released);
        assert!(queue.chunks.is_empty());
    }

    #[test]
    fn packets_end_where_the_context_changes() {
        let mut queue = queue_with_record();
        let cut = queue.cut(1..412);
        assert_eq!((cut.len, cut.context), (300, None));
        let cut = queue.cut(301..412);
        assert_eq!((cut.len, cut.context, cut.fragments.len()), (111, Some(CONTEXT), 3));
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
        let unit = Unit { layer: Layer::Tls, number: 7, start, end: start + 111 };
        assert_eq!(queue.seal(unit), Err(SealFailure::NoSealer));
        let log = Arc::default();
        queue.install(Layer::Tls, Box::new(AddOne(Arc::clone(&log), Layer::Tls)));
        assert_eq!(queue.seal(unit), Err(SealFailure::NoSealer), "it answers for what is queued from then on");
        queue.sealers = None;
        queue.sealers.get_or_insert_default().install(Layer::Tls, 301, Box::new(AddOne(Arc::clone(&log), Layer::Tls)));
        assert_eq!(queue.seal(Unit { number: 8, ..unit }), Err(SealFailure::NotPending));
        assert_eq!(queue.seal(unit), Ok(()));
        assert_eq!(queue.seal(unit), Err(SealFailure::NotPending), "once is enough");
        assert_eq!(queue.unit_at(Layer::Tls, start), Lookup::In(unit));
        let cut = queue.cut(301..412);
        assert_eq!((cut.context, cut.fragments.concat()), (None, [vec![1; 5], vec![6; 90], vec![96; 16]].concat()));
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
            queue.install(Layer::Tls, sealer(&key));
            let start = queue.append(vec![1; 100].into(), tagged(Layer::Tls, 0, 0, 100));
            if acknowledged_first {
                queue.acknowledge(start + 100);
                assert_eq!(Arc::strong_count(&key), 2, "more may be queued for it");
                queue.install(Layer::Tls, sealer(&Arc::default()));
            } else {
                queue.install(Layer::Tls, sealer(&Arc::default()));
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
        for layer in [Layer::Tls, Layer::NvmeTcp] {
            queue.install(layer, Box::new(AddOne(Arc::clone(&log), layer)));
        }
        for at in (0..400u32).step_by(20) {
            let mut tag = tagged(Layer::Tls, u64::from(at / 80), at % 80, 80);
            tag.digests = Some(DIGESTS);
            tag.units[Layer::NvmeTcp as usize] = Some(UnitTag { number: u64::from(at / 100), at: at % 100, len: 100 });
            queue.append(vec![10; 20].into(), tag);
        }
        let record = |number: u32| Unit {
            layer: Layer::Tls,
            number: u64::from(number),
            start: queue_seq(number * 80),
            end: queue_seq(number * 80 + 80),
        };
        assert_eq!(queue.seal(record(1)), Ok(()));
        assert_eq!(*log.lock().unwrap(), [(Layer::NvmeTcp, 0), (Layer::NvmeTcp, 1), (Layer::Tls, 1)]);
        assert_eq!(queue.cut(81..161).fragments.concat(), [12; 80]);
        assert_eq!(queue.cut(1..401).len, 80, "record 0 is still for the context");
        assert_eq!(queue.seal(record(0)), Ok(()));
        assert_eq!(log.lock().unwrap().len(), 4, "PDU 0 has its digest already");
        // All of a PDU is kept until all of its records are acknowledged too.
        queue.acknowledge(161);
        assert!(matches!(queue.unit_at(Layer::NvmeTcp, queue_seq(100)), Lookup::In(_)));
        assert_eq!(queue.unit_at(Layer::NvmeTcp, queue_seq(99)), Lookup::Released);
    }

    /// PDUs of 100 bytes as the content of records of 30 bytes of it each, with 5 bytes before and 17 behind.
    fn queue_with_pdus_in_records(log: &Arc<Mutex<Vec<(Layer, u64)>>>) -> SendQueue {
        let mut queue = SendQueue::new(Seq(0));
        for layer in [Layer::Tls, Layer::NvmeTcp] {
            queue.install(layer, Box::new(AddOne(log.clone(), layer)));
        }
        for number in 0..10u32 {
            let record = |at| tagged(Layer::Tls, number.into(), at, 52);
            queue.append(vec![1; 5].into(), record(0));
            let mut at = number * 30;
            while at < number * 30 + 30 {
                let bytes = (number * 30 + 30 - at).min(100 - at % 100);
                let mut tag = record(5 + at % 30);
                tag.digests = Some(DIGESTS);
                let unit = UnitTag { number: u64::from(at / 100), at: at % 100, len: 100 };
                tag.units[Layer::NvmeTcp as usize] = Some(unit);
                queue.append(vec![10; bytes as usize].into(), tag);
                at += bytes;
            }
            queue.append(vec![2; 17].into(), record(35));
        }
        queue
    }

    #[test]
    fn a_pdu_in_records_is_sealed_and_kept_as_a_whole() {
        let log = Arc::default();
        let mut queue = queue_with_pdus_in_records(&log);
        // Records are at 1, 53, 105, 157, ...; PDU 1 begins behind 10 bytes of content of the fourth.
        let Lookup::In(unit) = queue.unit_at(Layer::NvmeTcp, Seq(157 + 15)) else { panic!("there is one") };
        assert_eq!((unit.number, unit.start, unit.end), (1, Seq(172), Seq(6 * 52 + 1 + 25)));
        let cut = queue.cut(160..230);
        let place = |number, at| UnitPlace { number, at };
        let ask = DigestAsk { context: DIGESTS, content: 0b100110, first: place(0, 90), next: place(1, 36) };
        assert_eq!((cut.len, cut.context, cut.digests), (70, Some(CONTEXT), Some(ask)));
        // The digest of PDU 1 only: what frames its records, and PDU 0, stay as they are.
        assert_eq!(queue.seal(unit), Ok(()));
        assert_eq!(*log.lock().unwrap(), [(Layer::NvmeTcp, 1)]);
        let cut = queue.cut(160..230);
        assert_eq!(
            (cut.fragments.concat(), cut.digests.map(|ask| ask.next)),
            ([[1; 2].as_slice(), &[10; 10]].concat(), Some(place(1, 0)))
        );
        let cut = queue.cut(172..240);
        let expected = [[11; 20].as_slice(), &[2; 17], &[1; 5], &[11; 26]].concat();
        assert_eq!((cut.fragments.concat(), cut.context, cut.digests), (expected, Some(CONTEXT), None));
        // Record 3 is sealed with the digests of both.
        let record = Unit { layer: Layer::Tls, number: 3, start: Seq(157), end: Seq(209) };
        assert_eq!(queue.seal(record), Ok(()));
        assert_eq!(log.lock().unwrap()[1..], [(Layer::NvmeTcp, 0), (Layer::Tls, 3)]);
        // As long as record 3 is not acknowledged as a whole, PDU 0 is there to make its digest of.
        let mut queue = queue_with_pdus_in_records(&Arc::default());
        queue.acknowledge(208);
        assert!(matches!(queue.unit_at(Layer::NvmeTcp, Seq(6)), Lookup::In(unit) if unit.number == 0));
        queue.acknowledge(209);
        assert_eq!(queue.unit_at(Layer::NvmeTcp, Seq(6)), Lookup::Released);
        assert!(matches!(queue.unit_at(Layer::NvmeTcp, Seq(172)), Lookup::In(_)));
        queue.acknowledge(521);
        assert!(queue.chunks.is_empty());
    }

    fn queue_seq(offset: u32) -> Seq {
        Seq(1 + offset)
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
                let tag = if unit { tagged(Layer::Tls, number, 0, bytes as u32) } else { TxTag::PLAIN };
                number += u64::from(unit);
                oracle.extend_from_slice(&data);
                tags.resize(oracle.len(), tag.context);
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
                prop_assert_eq!(cut.context, tags[from]);
            }
        }
    }
}
