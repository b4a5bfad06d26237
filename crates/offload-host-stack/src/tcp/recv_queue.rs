//! The receive queue: in-order ranges for the application, and out-of-order ranges.
//!
//! Positions are stream positions that do not wrap: the peer's SYN is at 0, its first byte at 1.
//!
//! Invariants:
//! - Out-of-order ranges are sorted, do not overlap, and begin after `next`.
//! - Each range keeps its metadata. Ranges are trimmed, but never merged.
//! - `charged` is the memory of all ranges at true buffer size, and stays within the limit.

use super::ranges::RangeSet;
use super::segment::MAX_SACK_BLOCKS;
use crate::memory::{MIN_QUEUE_BYTES, MemoryLevel};
use bytes::BytesMut;
use core::ops::Range;
use core::time::Duration;
use offload_api::{Placements, RxBuf, RxMeta, RxSegment};
use offload_base::cost::{self, WorkKind};
use offload_base::{Instant, Seq};
use smallvec::SmallVec;
use std::collections::{BTreeMap, VecDeque};

#[derive(Debug)]
pub(crate) struct TcpReceiveQueue {
    initial: Seq,
    next: u64,
    ready: VecDeque<HeldSegment>,
    /// Out-of-order ranges, by start.
    out_of_order: BTreeMap<u64, HeldSegment>,
    /// Positions of the out-of-order bytes.
    islands: RangeSet,
    /// Starts of the islands, most recently changed first (RFC 2018 4).
    recent: SmallVec<[u64; MAX_SACK_BLOCKS]>,
    charged: usize,
    limit: usize,
    /// Memory level of the whole stack.
    memory: MemoryLevel,
    tuning: LimitTuning,
    /// Bytes taken by the application and not consumed, and their memory charge.
    taken: usize,
    /// Memory charge of the taken bytes.
    taken_charge: usize,
    /// Payload bytes per charged byte, in 256ths, as measured on recent full segments.
    density: u32,
    /// Largest payload of a segment so far: an estimate of the peer's segment size.
    largest: u32,
    /// Right edge of the advertised window, as a position.
    edge: u64,
}

/// Dynamic growth of the limit: Linux's dynamic right-sizing.
#[derive(Clone, Copy, Debug)]
struct LimitTuning {
    /// Maximum of the limit.
    most: usize,
    /// Bytes consumed so far.
    consumed: u64,
    consumed_before: u64,
    since: Instant,
    /// Maximum number of bytes consumed in a round.
    in_a_round: u64,
}

#[derive(Debug)]
struct HeldSegment {
    start: u64,
    charge: usize,
    segment: RxSegment,
}

/// Result of an insertion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct InsertResult {
    /// Bytes that became in-order.
    pub(crate) in_order: u64,
    /// Bytes queued out of order.
    pub(crate) out_of_order: u64,
    /// First range that was a duplicate.
    pub(crate) duplicate: Option<Range<u64>>,
    /// Whether a gap was filled, in whole or in part.
    pub(crate) filled: bool,
    /// Whether bytes were dropped because of the memory limit.
    pub(crate) dropped: bool,
    /// Number of out-of-order ranges discarded to make room.
    pub(crate) pruned: u64,
    /// Whether bytes were copied to save memory.
    pub(crate) collapsed: bool,
}

impl InsertResult {
    /// Adds the result for the bytes that follow.
    fn add(&mut self, behind: InsertResult) {
        self.in_order += behind.in_order;
        self.out_of_order += behind.out_of_order;
        self.duplicate = self.duplicate.take().or(behind.duplicate);
        self.filled |= behind.filled;
        self.dropped |= behind.dropped;
        self.pruned += behind.pruned;
        self.collapsed |= behind.collapsed;
    }
}

impl TcpReceiveQueue {
    /// Returns an empty queue for a peer whose SYN had sequence number `initial`. Its memory limit is `limit` bytes at
    /// first, and may grow to `most`.
    pub(crate) fn new(initial: Seq, limit: usize, most: usize) -> TcpReceiveQueue {
        let limit = limit.min(most);
        let tuning =
            LimitTuning { most, consumed: 0, consumed_before: 0, since: Instant::ZERO, in_a_round: limit as u64 / 4 };
        let mut queue = TcpReceiveQueue {
            initial,
            next: 1,
            ready: VecDeque::new(),
            out_of_order: BTreeMap::new(),
            islands: RangeSet::default(),
            recent: SmallVec::new(),
            charged: 0,
            limit,
            memory: MemoryLevel::Free,
            tuning,
            taken: 0,
            taken_charge: 0,
            density: INITIAL_DENSITY,
            largest: 0,
            edge: 1,
        };
        queue.edge = queue.next + queue.space();
        queue
    }

    /// Returns the position after the last in-order byte, or after the peer's FIN if that was received.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Returns the position after the last received byte, in order or not.
    pub(crate) fn furthest(&self) -> u64 {
        self.out_of_order.last_key_value().map_or(self.next, |(start, last)| start + last.segment.data.len() as u64)
    }

    pub(crate) fn seq(&self, position: u64) -> Seq {
        self.initial + position as u32
    }

    /// Returns the position of `seq`. `None` if `seq` lies before the stream.
    pub(crate) fn position(&self, seq: Seq) -> Option<u64> {
        self.next.checked_add_signed(i64::from(seq - self.seq(self.next)))
    }

    /// Returns the right edge of the advertised window.
    pub(crate) fn edge(&self) -> u64 {
        self.edge
    }

    /// Returns the memory charge of the queue, in bytes.
    pub(crate) fn charged(&self) -> usize {
        self.charged
    }

    /// Sets the memory level and the first window, before any window is advertised.
    pub(crate) fn begin_with(&mut self, memory: MemoryLevel) {
        self.memory = memory;
        self.edge = self.next + self.space();
    }

    /// Sets the memory level of the whole stack.
    pub(crate) fn set_memory(&mut self, memory: MemoryLevel) {
        self.memory = memory;
    }

    /// Returns the largest payload of a segment so far.
    pub(crate) fn largest(&self) -> usize {
        self.largest as usize
    }

    /// Records the payload length of a received segment.
    pub(crate) fn note_segment_bytes(&mut self, bytes: usize) {
        self.largest = self.largest.max(bytes as u32);
    }

    /// Returns whether out-of-order bytes are queued.
    pub(crate) fn has_holes(&self) -> bool {
        !self.out_of_order.is_empty()
    }

    /// Returns whether the application has data to take.
    pub(crate) fn has_unread(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Inserts `data` at position `start`, within the window. Some parts were placed elsewhere by the
    /// device.
    pub(crate) fn insert_parts(
        &mut self,
        start: u64,
        mut data: BytesMut,
        placed: Placements,
        meta: RxMeta,
    ) -> InsertResult {
        if placed.is_empty() {
            return self.insert(start, data, meta);
        }
        let (mut received, mut at) = (InsertResult::default(), 0);
        for (offset, mut piece) in placed {
            // The data beyond the window were cut off, and the placed parts there are dropped.
            if offset >= at + data.len() {
                break;
            }
            if offset > at {
                received.add(self.insert(start + at as u64, data.split_to(offset - at), meta));
            }
            piece.truncate(data.len());
            let length = piece.len();
            drop(data.split_to(length));
            received.add(self.insert(start + offset as u64, RxBuf::Placed(piece), meta));
            at = offset + length;
        }
        if !data.is_empty() {
            received.add(self.insert(start + at as u64, data, meta));
        }
        received
    }

    /// Inserts `data` at position `start`, within the window. Bytes received before are kept.
    pub(crate) fn insert(&mut self, start: u64, data: impl Into<RxBuf>, meta: RxMeta) -> InsertResult {
        let mut data = data.into();
        let mut received = InsertResult::default();
        let end = start + data.len() as u64;
        if end <= self.next {
            received.duplicate = Some(start..end);
            return received;
        }
        // Only the new part is kept; the first part was received before.
        let (start, data) = if start < self.next {
            received.duplicate = Some(start..self.next);
            drop(data.split_to((self.next - start) as usize));
            (self.next, data)
        } else {
            (start, data)
        };
        // The overlap is reported by a DSACK; the bytes received first are kept.
        if let Some(known) = self.islands.containing(start) {
            received.duplicate = Some(start..known.end.min(end));
        }
        let in_order = start <= self.next;
        // Memory is checked before the insertion, because an out-of-order piece may be discarded for in-order data.
        let Some(data) = self.afford(data, in_order, &mut received) else {
            received.dropped = true;
            return received;
        };
        let segment = RxSegment { seq: self.seq(start), data, meta };
        if !in_order {
            self.keep_out_of_order(start, segment, &mut received);
        } else if self.out_of_order.is_empty() {
            self.take_in_order(segment, &mut received);
        } else {
            received.filled = true;
            self.keep_out_of_order(start, segment, &mut received);
            received.out_of_order = 0;
            while let Some(first) = self.out_of_order.first_entry().filter(|first| *first.key() == self.next) {
                let mut held = first.remove();
                let freed = held.charge - charge(&held.segment.data);
                held.charge -= freed;
                self.charged -= freed;
                self.next += held.segment.data.len() as u64;
                received.in_order += held.segment.data.len() as u64;
                self.ready.push_back(held);
            }
            // The joined ranges are in order now and must not be reported as SACK blocks.
            self.islands.remove_before(self.next);
            if self.out_of_order.is_empty() {
                // An empty tree keeps a node, which is larger than all other memory of an idle connection.
                self.out_of_order = BTreeMap::new();
                self.islands = RangeSet::default();
            }
            let next = self.next;
            self.recent.retain(|first| *first >= next);
        }
        received
    }

    /// Advances past the peer's FIN, which must be next.
    pub(crate) fn skip_fin(&mut self) {
        self.next += 1;
        self.edge = self.edge.max(self.next);
    }

    /// Returns the sequence number of the next range to take.
    pub(crate) fn next_taken(&self) -> Seq {
        self.seq(self.ready.front().map_or(self.next, |held| held.start))
    }

    /// Takes the next in-order range, which the application must later consume.
    pub(crate) fn take(&mut self) -> Option<RxSegment> {
        let held = self.ready.pop_front()?;
        self.taken += held.segment.data.len();
        self.taken_charge += held.charge;
        // An idle connection gives the queue's memory back.
        if self.ready.is_empty() && self.ready.capacity() > IDLE_SEGMENTS {
            self.ready = VecDeque::new();
        }
        Some(held.segment)
    }

    /// Releases the memory of `bytes` taken bytes.
    pub(crate) fn consume(&mut self, bytes: usize) {
        let bytes = bytes.min(self.taken);
        if bytes == 0 {
            return;
        }
        // Frees the proportional share of the taken charge, or the exact rest if all bytes are consumed, as is usual.
        let freed = match bytes == self.taken {
            true => self.taken_charge,
            false => (self.taken_charge as u128 * bytes as u128 / self.taken as u128) as usize,
        };
        self.taken -= bytes;
        self.taken_charge -= freed;
        self.charged -= freed;
        self.tuning.consumed += bytes as u64;
    }

    /// Adapts the limit to the application's read rate, once per `round_trip`, when data arrive at `now`.
    pub(crate) fn tune(&mut self, now: Instant, round_trip: Duration) {
        let tuning = &mut self.tuning;
        if self.limit >= tuning.most || self.memory != MemoryLevel::Free || now - tuning.since < round_trip {
            return;
        }
        let consumed = tuning.consumed - core::mem::replace(&mut tuning.consumed_before, tuning.consumed);
        let first = core::mem::replace(&mut tuning.since, now) == Instant::ZERO;
        if first || consumed <= tuning.in_a_round {
            return;
        }
        // The window is twice the bytes consumed per round, because the sender may double its own window while the
        // update travels. If consumption grows, the sender will be further ahead by then.
        let growth = 4 * (consumed - tuning.in_a_round);
        let grown = growth.saturating_mul(consumed) / tuning.in_a_round.max(1);
        let window = 2 * consumed + grown.min(4 * consumed);
        tuning.in_a_round = consumed;
        let limit = window.saturating_mul(256) / u64::from(self.density.max(1));
        self.limit = self.limit.max(usize::try_from(limit).unwrap_or(usize::MAX).min(tuning.most));
    }

    /// Discards the data that the application has not taken. Returns their length.
    pub(crate) fn discard(&mut self) -> u64 {
        let mut bytes = 0;
        // The dropped reader's data will never be taken, so their memory is freed at once.
        while let Some(held) = self.ready.pop_front() {
            bytes += held.segment.data.len() as u64;
            self.charged -= held.charge;
        }
        self.charged -= core::mem::take(&mut self.taken_charge);
        self.taken = 0;
        bytes
    }

    /// Frees all out-of-order memory, because nothing more will be received.
    pub(crate) fn release(&mut self) {
        self.out_of_order = BTreeMap::new();
        self.islands = RangeSet::default();
        self.recent = SmallVec::new();
        // Data that the application can still read, and data that it has not consumed yet, stay charged.
        self.charged = self.taken_charge + self.ready.iter().map(|held| held.charge).sum::<usize>();
    }

    /// Returns the window to advertise: the bytes that the peer may send beyond `next`. The right edge never moves back
    /// (RFC 9293 3.8.6), and moves forward only in useful steps (3.8.6.2.2).
    pub(crate) fn window(&self, mss: usize) -> u64 {
        let step = (mss as u64).min(self.whole_space() / 2).max(1);
        let edge = self.next + self.space();
        if edge >= self.edge + step { edge - self.next } else { self.edge.saturating_sub(self.next) }
    }

    /// Records an advertised window of `window` bytes beyond `next`.
    pub(crate) fn advertise(&mut self, window: u64) {
        self.edge = self.edge.max(self.next + window);
    }

    /// Returns whether the window has grown enough for an update: by at least two segments, and to twice the advertised
    /// size.
    pub(crate) fn wants_update(&self, mss: usize) -> bool {
        let known = self.edge.saturating_sub(self.next);
        let window = self.window(mss);
        let step = (2 * mss as u64).min(self.whole_space() / 2).max(1);
        window >= known + step && window >= 2 * known
    }

    /// Returns the SACK blocks to report, most recently changed first.
    pub(crate) fn sack_blocks(&self, duplicate: Option<&Range<u64>>) -> SmallVec<[(Seq, Seq); MAX_SACK_BLOCKS]> {
        let mut blocks = SmallVec::new();
        if let Some(duplicate) = duplicate {
            blocks.push((self.seq(duplicate.start), self.seq(duplicate.end)));
            // RFC 2883 4.2: a duplicate beyond the acknowledgment is followed by the block that contains it.
            if let Some(whole) = self.islands.containing(duplicate.start) {
                blocks.push((self.seq(whole.start), self.seq(whole.end)));
            }
        }
        for first in &self.recent {
            if blocks.len() >= MAX_SACK_BLOCKS {
                break;
            }
            let Some(island) = self.islands.containing(*first) else { continue };
            let block = (self.seq(island.start), self.seq(island.end));
            if !blocks.contains(&block) {
                blocks.push(block);
            }
        }
        blocks
    }

    /// Finds memory for `data`, by copying them into a buffer of their own size, or by discarding the furthest
    /// out-of-order data (RFC 2018 8 allows it). Returns `None` if there is not enough.
    fn afford(&mut self, data: RxBuf, in_order: bool, received: &mut InsertResult) -> Option<RxBuf> {
        // Placed bytes lie in the application's own memory.
        let RxBuf::Pool(data) = data else { return Some(data) };
        let bytes = data.len();
        let roomy = data.capacity() > 2 * bytes;
        let mut charge = data.capacity() + OVERHEAD_BYTES;
        if 2 * bytes >= self.largest as usize {
            self.density = (bytes * 256 / charge).clamp(1, 256) as u32;
        }
        let short = self.charged + charge > self.bound();
        // A few bytes must not keep a whole buffer in use. In-order data must be taken if at all possible, because the
        // window offered room for them, by an estimate of their memory.
        let copy = bytes <= MAX_COPIED_BYTES || short && (in_order || roomy);
        if copy {
            charge = if in_order { bytes + OVERHEAD_BYTES } else { small_piece_charge(bytes) };
            received.collapsed = short;
        }
        if in_order {
            while self.charged + charge > self.bound() {
                let Some((_, last)) = self.out_of_order.pop_last() else { break };
                self.charged -= last.charge;
                self.islands.remove_from(last.start);
                received.pruned += 1;
            }
        }
        // An empty queue takes any segment. Otherwise a limit below the size of a segment would stop the stream.
        if self.charged + charge > self.bound() && self.charged > 0 {
            return None;
        }
        if !copy {
            return Some(RxBuf::Pool(data));
        }
        let _cost_scope = cost::work(WorkKind::Copy);
        Some(RxBuf::Pool(BytesMut::from(&data[..])))
    }

    fn take_in_order(&mut self, segment: RxSegment, received: &mut InsertResult) {
        let charge = charge(&segment.data);
        self.charged += charge;
        received.in_order = segment.data.len() as u64;
        self.ready.push_back(HeldSegment { start: self.next, charge, segment });
        self.next += received.in_order;
    }

    fn keep_out_of_order(&mut self, start: u64, mut segment: RxSegment, received: &mut InsertResult) {
        let end = start + segment.data.len() as u64;
        let mut at = start;
        let whole = memory(&segment.data);
        let mut changed = None;
        let mut missing: SmallVec<[Range<u64>; 2]> = SmallVec::new();
        self.islands.gaps(start..end, |gap| missing.push(gap));
        for gap in missing {
            let mut piece = trimmed(segment, gap.start - at);
            let length = (gap.end - gap.start) as usize;
            if piece.data.len() > length {
                let first = piece.split_to(length);
                segment = core::mem::replace(&mut piece, first);
            } else {
                segment = RxSegment { seq: piece.end(), data: BytesMut::new().into(), meta: piece.meta };
            }
            at = gap.end;
            // A tiny piece must not keep its whole buffer in use.
            if length <= MAX_COPIED_BYTES && whole > 2 * length + MAX_COPIED_BYTES / 4 {
                piece.data = BytesMut::from(&piece.data[..]).into();
            }
            let charge = match memory(&piece.data) {
                bytes if bytes <= MAX_COPIED_BYTES => small_piece_charge(bytes),
                _ => charge(&piece.data),
            };
            // Each piece is charged separately. Any piece may be dropped except the next in order.
            if self.charged + charge > self.bound() && self.charged > 0 && gap.start != self.next {
                received.dropped = true;
                break;
            }
            self.charged += charge;
            received.out_of_order += length as u64;
            self.out_of_order.insert(gap.start, HeldSegment { start: gap.start, charge, segment: piece });
            changed = Some(self.islands.insert(gap));
        }
        if let Some(island) = changed {
            self.recent.retain(|first| !island.contains(first));
            self.recent.truncate(MAX_SACK_BLOCKS - 1);
            self.recent.insert(0, island.start);
        }
    }

    /// Returns the memory limit for new data. It exceeds the advertised memory, because part of the window was
    /// advertised before memory became scarce.
    fn bound(&self) -> usize {
        if self.memory == MemoryLevel::Full { self.limit.min(MIN_QUEUE_BYTES) } else { self.limit }
    }

    /// Returns the payload bytes for which the memory suffices while the queue is empty.
    fn whole_space(&self) -> u64 {
        (self.memory.wanted(self.limit) as u64 * u64::from(self.density)) / 256
    }

    /// Returns the payload bytes for which the free memory suffices.
    fn space(&self) -> u64 {
        (self.memory.wanted(self.limit).saturating_sub(self.charged) as u64 * u64::from(self.density)) / 256
    }
}

/// Returns the segment without its first `bytes` bytes.
fn trimmed(mut segment: RxSegment, bytes: u64) -> RxSegment {
    if bytes > 0 {
        segment.split_to(bytes as usize);
    }
    segment
}

/// Returns the memory charge of a segment.
fn charge(data: &RxBuf) -> usize {
    memory(data) + OVERHEAD_BYTES
}

/// Returns the memory charge of `bytes` out-of-order bytes in a buffer of their own size. For tiny pieces the trees
/// dominate: their nodes may be less than half full, and an allocation has a minimum size. For large buffers this adds
/// less than a tenth.
fn small_piece_charge(bytes: usize) -> usize {
    bytes.max(MIN_ALLOCATION)
        + (size_of::<(u64, HeldSegment)>() + size_of::<(u64, u64)>()) * MAX_NODE_ENTRIES / MIN_NODE_ENTRIES
}

/// Returns the size of the buffer, or 0 for placed bytes, which lie in the application's memory.
fn memory(data: &RxBuf) -> usize {
    match data {
        RxBuf::Pool(buffer) => buffer.capacity(),
        RxBuf::Placed(_) => 0,
    }
}

/// Maximum length of payloads that are copied out of larger buffers.
const MAX_COPIED_BYTES: usize = 256;
/// Memory of a held segment besides its data.
const OVERHEAD_BYTES: usize = size_of::<HeldSegment>();
/// Maximum number of entries of a B-tree node.
const MAX_NODE_ENTRIES: usize = 11;
/// Minimum number of entries of a B-tree node.
const MIN_NODE_ENTRIES: usize = 5;
/// Smallest allocation of common allocators.
const MIN_ALLOCATION: usize = 32;
/// Density before the first full segment: half of the memory holds payload (Linux's guess).
const INITIAL_DENSITY: u32 = 128;
/// Capacity that an empty queue keeps.
const IDLE_SEGMENTS: usize = 4;
/// Memory of an empty queue besides itself.
#[cfg(test)]
pub(super) const IDLE_BYTES: usize = IDLE_SEGMENTS * size_of::<HeldSegment>();

#[cfg(test)]
mod tests {
    use super::*;
    use offload_api::rx::TlsVerdict;
    use offload_api::{Handle, Verdict};
    use proptest::prelude::*;

    fn buffer(bytes: &[u8], capacity: usize) -> BytesMut {
        let mut buffer = BytesMut::with_capacity(capacity.max(bytes.len()));
        buffer.extend_from_slice(bytes);
        buffer
    }

    fn check(queue: &TcpReceiveQueue) {
        let held: usize = queue.ready.iter().chain(queue.out_of_order.values()).map(|held| held.charge).sum();
        assert_eq!(queue.charged, held + queue.taken_charge);
        let mut end = queue.next;
        let mut islands = RangeSet::default();
        for (start, held) in &queue.out_of_order {
            assert_eq!(*start, held.start);
            assert!(held.start >= end && (end > queue.next || held.start > end));
            end = held.start + held.segment.data.len() as u64;
            islands.insert(held.start..end);
        }
        assert_eq!(queue.islands, islands);
    }

    #[test]
    fn first_copy_and_its_metadata_are_kept() {
        let mut queue = TcpReceiveQueue::new(Seq(99), 1 << 20, 1 << 20);
        let decrypted = RxMeta::default().marked(Handle { index: 0, generation: 0 }, Verdict::Done);
        assert_eq!(queue.insert(11, buffer(&[2; 10], 10), decrypted).out_of_order, 10);
        let received = queue.insert(6, buffer(&[3; 20], 20), RxMeta::default());
        assert_eq!((received.out_of_order, received.duplicate), (10, None));
        let received = queue.insert(1, buffer(&[1; 7], 7), RxMeta::default());
        assert_eq!((received.in_order, received.filled), (25, true));
        let taken: Vec<_> = core::iter::from_fn(|| queue.take())
            .map(|segment| (segment.seq.0, segment.data.to_vec(), segment.meta.tls()))
            .collect();
        let plain = TlsVerdict::NotDecrypted;
        assert_eq!(
            taken,
            [
                (100, vec![1; 5], plain),
                (105, vec![3; 5], plain),
                (110, vec![2; 10], TlsVerdict::Decrypted),
                (120, vec![3; 5], plain)
            ]
        );
        queue.consume(25);
        assert_eq!(queue.charged, 0);
    }

    #[test]
    fn sack_blocks_are_reported_latest_first() {
        let mut queue = TcpReceiveQueue::new(Seq(0), 1 << 20, 1 << 20);
        for start in [101, 301, 201, 501, 401] {
            queue.insert(start, buffer(&[0; 10], 10), RxMeta::default());
        }
        let firsts =
            |queue: &TcpReceiveQueue| queue.sack_blocks(None).iter().map(|block| block.0.0).collect::<Vec<_>>();
        assert_eq!(firsts(&queue), [401, 501, 201]);
        queue.insert(311, buffer(&[0; 10], 10), RxMeta::default());
        assert_eq!(queue.sack_blocks(None)[0], (Seq(301), Seq(321)));
        // RFC 2883 4.2: first the duplicate, then the block that contains it.
        let received = queue.insert(503, buffer(&[0; 4], 4), RxMeta::default());
        assert_eq!(received.duplicate, Some(503..507));
        let blocks = queue.sack_blocks(received.duplicate.as_ref());
        assert_eq!(blocks[..2], [(Seq(503), Seq(507)), (Seq(501), Seq(511))]);
    }

    #[test]
    fn single_bytes_from_the_middle_outwards_form_the_stream() {
        const CRUMBS: u64 = 40_000;
        let mut queue = TcpReceiveQueue::new(Seq(0), 32 << 20, 32 << 20);
        // Every second byte, alternating between both sides of the earlier ones.
        for number in 0..CRUMBS {
            let place = if number % 2 == 0 { CRUMBS + number } else { CRUMBS - 1 - number };
            let received = queue.insert(2 + place, buffer(&[place as u8], 1), RxMeta::default());
            assert_eq!((received.out_of_order, received.dropped), (1, false));
        }
        assert_eq!(queue.out_of_order.len() as u64, CRUMBS);
        let all: Vec<u8> = (0..=2 * CRUMBS).map(|place| place.wrapping_sub(1) as u8).collect();
        assert_eq!(queue.insert(1, buffer(&all, all.len()), RxMeta::default()).in_order, 2 * CRUMBS + 1);
        let read: Vec<u8> = core::iter::from_fn(|| queue.take()).flat_map(|segment| segment.data.to_vec()).collect();
        assert!(read == all);
        check(&queue);
    }

    #[test]
    fn memory_is_charged_at_buffer_size_or_copied_size() {
        let mut queue = TcpReceiveQueue::new(Seq(0), 100_000, 100_000);
        queue.insert(1, buffer(&[0; 1400], 2048), RxMeta::default());
        assert_eq!(queue.charged, 2048 + OVERHEAD_BYTES);
        queue.insert(1401, buffer(&[0; 10], 2048), RxMeta::default());
        assert_eq!(queue.charged, 2048 + 10 + 2 * OVERHEAD_BYTES);
    }

    #[test]
    fn out_of_order_data_yield_memory_to_in_order_data() {
        let mut queue = TcpReceiveQueue::new(Seq(0), 10 * (1000 + OVERHEAD_BYTES), 10 * (1000 + OVERHEAD_BYTES));
        for number in 1..=12 {
            let received = queue.insert(1 + number * 1000, buffer(&[0; 1000], 1000), RxMeta::default());
            assert_eq!(received.dropped, number > 10);
            check(&queue);
        }
        let received = queue.insert(1, buffer(&[0; 1000], 1000), RxMeta::default());
        assert_eq!((received.pruned, received.in_order), (1, 10_000));
        check(&queue);
    }

    #[test]
    fn window_never_shrinks_and_grows_in_steps() {
        let mut queue = TcpReceiveQueue::new(Seq(0), 100_000, 100_000);
        let first = queue.window(1000);
        queue.advertise(first);
        queue.insert(1, buffer(&[0; 1000], 30_000), RxMeta::default());
        assert_eq!(queue.window(1000), first - 1000, "the window shrinks only by the received bytes");
        queue.take();
        queue.consume(1000);
        assert!(!queue.wants_update(1000));
    }

    /// Fills the window with segments over one round trip; the application reads them or not.
    fn round(queue: &mut TcpReceiveQueue, now: &mut Instant, takes: bool) -> u64 {
        const ROUND_TRIP: Duration = Duration::from_millis(10);
        let window = queue.window(1000);
        queue.advertise(window);
        for _ in 0..window / 1000 {
            *now += ROUND_TRIP / (window / 1000) as u32;
            queue.tune(*now, ROUND_TRIP);
            queue.note_segment_bytes(1000);
            let next = queue.next();
            queue.insert(next, BytesMut::from(&[0; 1000][..]), RxMeta::default());
            while takes && let Some(segment) = queue.take() {
                queue.consume(segment.data.len());
            }
        }
        window
    }

    #[test]
    fn limit_grows_with_reads_per_round_trip_up_to_maximum() {
        let mut now = Instant::ZERO;
        let mut queue = TcpReceiveQueue::new(Seq(0), 100_000, 2_000_000);
        let windows: Vec<u64> = (0..12).map(|_| round(&mut queue, &mut now, true)).collect();
        assert!(windows[0] < 100_000 && windows.is_sorted(), "{windows:?}");
        assert!((1_000_000..=2_000_000).contains(&windows[11]) && queue.limit == 2_000_000, "{windows:?}");

        let mut queue = TcpReceiveQueue::new(Seq(0), 100_000, 2_000_000);
        (0..12).for_each(|_| {
            round(&mut queue, &mut now, false);
        });
        assert_eq!((queue.limit, queue.charged <= 100_000), (100_000, true), "without reads the limit must not grow");

        let mut queue = TcpReceiveQueue::new(Seq(0), 100_000, 2_000_000);
        for _ in 0..1000 {
            // One segment per round trip is little, even over a long time.
            now += Duration::from_millis(10);
            queue.tune(now, Duration::from_millis(10));
            let next = queue.next();
            queue.insert(next, BytesMut::from(&[0; 1000][..]), RxMeta::default());
            queue.take().unwrap();
            queue.consume(1000);
        }
        assert_eq!(queue.limit, 100_000);
    }

    proptest! {
        #[test]
        fn pieces_in_any_order_form_the_stream(
            limit in 2_000usize..200_000,
            capacity in 1usize..4000,
            pieces in proptest::collection::vec((0.0f64..1.0, 1usize..900), 1..200),
        ) {
            let stream: Vec<u8> = (0..20_000u32).map(|place| (place * 31 / 7) as u8).collect();
            let mut queue = TcpReceiveQueue::new(Seq(u32::MAX - 5000), limit, limit);
            let mut read = Vec::new();
            for (place, length) in pieces {
                let from = ((read.len() + 3000).min(stream.len() - 1) as f64 * place) as usize;
                let to = stream.len().min(from + length);
                let expected = queue.next();
                let received = queue.insert(1 + from as u64, buffer(&stream[from..to], capacity), RxMeta::default());
                prop_assert_eq!(queue.next(), expected + received.in_order);
                prop_assert!(queue.charged <= limit.max(capacity.max(length) + small_piece_charge(0)));
                check(&queue);
                if place < 0.5 {
                    while let Some(segment) = queue.take() {
                        prop_assert_eq!(segment.seq, queue.seq(1 + read.len() as u64));
                        read.extend_from_slice(&segment.data);
                        queue.consume(segment.data.len());
                    }
                    check(&queue);
                }
            }
            prop_assert_eq!(&read[..], &stream[..read.len()]);
        }
    }
}
