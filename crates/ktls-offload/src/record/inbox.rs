//! Received ranges that are not yet cut into records.
//!
//! Invariant: the ranges are contiguous, none is empty, and `bytes` is the sum of their lengths. Cutting never copies
//! payload. Small ranges with equal device verdicts are copied together, so that memory stays a small multiple of the
//! bytes received. The receive window does not bound this memory, because some bytes are credited to the window before
//! their record is complete.

use super::HEADER_LEN;
use bytes::BytesMut;
use offload_api::rx::Checksums;
use offload_api::{PacketMark, RxBuf, RxMeta, RxSegment};
use offload_base::Seq;
use offload_base::cost::{self, WorkKind};
use std::collections::VecDeque;

/// The received ranges, oldest first.
#[derive(Debug, Default)]
pub(crate) struct RecordInbox {
    segments: VecDeque<RxSegment>,
    bytes: usize,
    end: Option<Seq>,
    /// Whether the last range is a copy of several ranges.
    copied: bool,
    /// Ranges visited in searches for headers.
    #[cfg(test)]
    steps: std::cell::Cell<usize>,
}

impl RecordInbox {
    /// Appends the next range.
    pub(crate) fn push(&mut self, segment: RxSegment) {
        if segment.data.is_empty() {
            return;
        }
        self.bytes += segment.data.len();
        self.end = Some(segment.end());
        // Ranges that a stage has worked on are identified by their piece, so they are never merged.
        if segment.data.len() < SMALL
            && !segment.data.is_opened()
            && let Some(last) = self.segments.back_mut()
            && let Some(meta) = merge_meta(last.meta, segment.meta)
            && let RxBuf::Pool(bytes) = &mut last.data
            && bytes.len() < if self.copied { COPIED_MAX } else { SMALL }
        {
            let _copy = cost::work(WorkKind::Copy);
            if !core::mem::replace(&mut self.copied, true) {
                // The small range may pin a large receive buffer; the copy releases that buffer.
                let mut copy = BytesMut::with_capacity(SMALL);
                copy.extend_from_slice(bytes);
                *bytes = copy;
            }
            bytes.extend_from_slice(&segment.data);
            last.meta = meta;
            return;
        }
        self.copied = false;
        self.segments.push_back(segment);
    }

    /// Frees memory if the inbox is empty.
    pub(crate) fn shrink(&mut self) {
        shrink(&mut self.segments);
    }

    /// Returns the number of bytes in the inbox.
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    /// Returns the sequence number of the next byte, or `None` before the first range.
    pub(crate) fn start(&self) -> Option<Seq> {
        self.segments.front().map(|segment| segment.seq).or(self.end)
    }

    /// Sets the sequence number of the first range, if no range has arrived.
    pub(crate) fn begin_at(&mut self, seq: Seq) {
        self.end.get_or_insert(seq);
    }

    /// Returns the record header at offset `at`, or `None` if the header is incomplete. The search is logarithmic in
    /// the number of ranges, because a peer can send one-byte ranges and records, and each record needs a search.
    pub(crate) fn header_at(&self, at: usize) -> Option<[u8; HEADER_LEN]> {
        if self.bytes < at + HEADER_LEN {
            return None;
        }
        let front = self.segments.front()?;
        // The common case: the header is at the start of the first range.
        if at == 0
            && let Some(header) = front.data.first_chunk()
        {
            return Some(*header);
        }
        let start = front.seq;
        let ahead = |seq: Seq| seq.distance_from(start) as usize;
        let first = self.segments.partition_point(|segment| {
            self.count_step();
            ahead(segment.end()) <= at
        });
        let mut header = [0; HEADER_LEN];
        let mut filled = 0;
        let mut skip = at - ahead(self.segments.get(first)?.seq);
        // A header may be spread over several ranges.
        for segment in self.segments.range(first..) {
            self.count_step();
            let data = &segment.data[skip..];
            skip = 0;
            let take = data.len().min(HEADER_LEN - filled);
            header[filled..filled + take].copy_from_slice(&data[..take]);
            filled += take;
            if filled == HEADER_LEN {
                break;
            }
        }
        Some(header)
    }

    /// Returns the next `bytes` bytes as runs within one range each, as (length, device verdict).
    pub(crate) fn runs(&self, bytes: usize) -> impl Iterator<Item = (usize, &RxMeta)> {
        let mut left = bytes;
        self.segments.iter().map_while(move |segment| {
            let run = segment.data.len().min(left);
            left -= run;
            (run > 0).then_some((run, &segment.meta))
        })
    }

    /// Cuts off `bytes` bytes and passes each range to `sink`.
    ///
    /// # Panics
    /// If the inbox has fewer bytes.
    pub(crate) fn take(&mut self, bytes: usize, mut sink: impl FnMut(RxSegment)) {
        self.bytes -= bytes;
        let mut left = bytes;
        while left > 0 {
            let front = self.segments.front_mut().expect("the ranges add up to what they are said to");
            if front.data.len() > left {
                sink(front.split_to(left));
                return;
            }
            left -= front.data.len();
            self.segments.pop_front().map(&mut sink);
        }
    }

    /// Cuts off `into.len()` bytes and copies them into `into`.
    ///
    /// # Panics
    /// If the inbox has fewer bytes.
    pub(crate) fn copy_off(&mut self, into: &mut [u8]) {
        let mut filled = 0;
        self.skip_over(into.len(), |bytes| {
            into[filled..filled + bytes.len()].copy_from_slice(bytes);
            filled += bytes.len();
        });
    }

    /// Discards `bytes` bytes.
    ///
    /// # Panics
    /// If the inbox has fewer bytes.
    pub(crate) fn skip(&mut self, bytes: usize) {
        self.skip_over(bytes, |_| ());
    }

    /// Passes the next `bytes` bytes to `show`, then discards them.
    fn skip_over(&mut self, bytes: usize, mut show: impl FnMut(&[u8])) {
        self.bytes -= bytes;
        let mut left = bytes;
        while left > 0 {
            let front = self.segments.front_mut().expect("the ranges add up to what they are said to");
            let here = left.min(front.data.len());
            show(&front.data[..here]);
            left -= here;
            if here == front.data.len() {
                self.segments.pop_front();
            } else {
                front.skip(here);
            }
        }
    }

    /// Discards all ranges.
    pub(crate) fn clear(&mut self) {
        self.segments = VecDeque::new();
        self.bytes = 0;
    }

    #[cfg(test)]
    pub(crate) fn steps(&self) -> usize {
        self.steps.get()
    }

    fn count_step(&self) {
        #[cfg(test)]
        self.steps.set(self.steps.get() + 1);
    }
}

/// Returns the metadata of two ranges merged into one, or `None` if the ranges must stay apart. Differences that a peer
/// can cause from packet to packet do not keep ranges apart: whether the device could verify checksums (impossible for
/// fragments), and the SA of the packet. The weaker statement applies to the merged range.
fn merge_meta(one: RxMeta, other: RxMeta) -> Option<RxMeta> {
    let mut lesser = RxMeta {
        checksums: if one.checksums == other.checksums { one.checksums } else { Checksums::Unchecked },
        protection: one.protection.min(other.protection),
        ..one
    };
    let mut theirs = other.marks;
    if one.marks.packet() != theirs.packet() {
        lesser.marks.set_packet(PacketMark::None);
        theirs.set_packet(PacketMark::None);
    }
    (lesser.marks == theirs).then_some(lesser)
}

/// Frees the buffer of an empty range queue, unless the buffer is small.
pub(crate) fn shrink(ranges: &mut VecDeque<RxSegment>) {
    if ranges.is_empty() && ranges.capacity() > RANGES_KEPT {
        *ranges = VecDeque::new();
    }
}

/// Length in bytes below which ranges are copied together.
const SMALL: usize = 512;
/// Length in bytes at which a copy stops growing.
const COPIED_MAX: usize = 4096;
/// Ranges for which an idle stream keeps memory: 416 bytes.
const RANGES_KEPT: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use offload_api::rx::TlsVerdict;
    use offload_api::{Handle, Protection, Verdict};

    #[test]
    fn headers_are_found_and_ranges_cut_whatever_the_segments() {
        let bytes: Vec<u8> = (0..20).collect();
        for size in 1..=20 {
            let mut inbox = RecordInbox::default();
            assert_eq!(inbox.start(), None);
            for (index, chunk) in bytes.chunks(size).enumerate() {
                let seq = Seq(u32::MAX - 3) + (index * size) as u32;
                inbox.push(RxSegment { seq, data: BytesMut::from(chunk).into(), meta: RxMeta::default() });
            }
            assert_eq!(inbox.header_at(7), Some([7, 8, 9, 10, 11]));
            assert_eq!(inbox.header_at(15), Some([15, 16, 17, 18, 19]));
            assert_eq!(inbox.header_at(16), None);
            assert_eq!(inbox.runs(13).map(|(run, _)| run).sum::<usize>(), 13);
            let mut head = [0; 6];
            inbox.copy_off(&mut head);
            assert_eq!(head, [0, 1, 2, 3, 4, 5]);
            assert_eq!(inbox.start(), Some(Seq(2)));
            assert_eq!(inbox.header_at(0), Some([6, 7, 8, 9, 10]), "the first range is a part of one");
            assert_eq!(inbox.header_at(9), Some([15, 16, 17, 18, 19]));
            inbox.skip(3);
            assert_eq!(inbox.header_at(0), Some([9, 10, 11, 12, 13]));
            let mut rest = Vec::new();
            inbox.take(11, |range| {
                assert_eq!(range.seq, Seq(5) + rest.len() as u32);
                rest.extend_from_slice(&range.data);
            });
            assert_eq!(rest, bytes[9..]);
            assert_eq!((inbox.len(), inbox.start()), (0, Some(Seq(16))));
        }
    }

    fn range(seq: u32, bytes: &[u8], meta: RxMeta) -> RxSegment {
        // A driver's receive buffer is much larger than the packet in it.
        let mut data = BytesMut::with_capacity(64 << 10);
        data.extend_from_slice(bytes);
        RxSegment { seq: Seq(seq), data: data.into(), meta }
    }

    /// Returns the memory in bytes that an inbox occupies.
    fn held(inbox: &RecordInbox) -> usize {
        let buffers = inbox.segments.iter().map(|segment| match &segment.data {
            RxBuf::Pool(bytes) => bytes.capacity(),
            RxBuf::Placed(_) => 0,
        });
        buffers.sum::<usize>() + inbox.segments.capacity() * size_of::<RxSegment>()
    }

    #[test]
    fn small_ranges_are_copied_and_their_buffers_released() {
        for size in [1, 7, 100, SMALL - 1] {
            let bytes: Vec<u8> = (0..16_406).map(|at| at as u8).collect();
            let mut inbox = RecordInbox::default();
            for (at, chunk) in bytes.chunks(size).enumerate() {
                inbox.push(range((at * size) as u32, chunk, RxMeta::default()));
                if at * size > 3 * COPIED_MAX {
                    // The last range may be a whole receive buffer.
                    assert!(held(&inbox) < 3 * inbox.len() + (64 << 10), "{} for {}", held(&inbox), inbox.len());
                }
            }
            assert!(inbox.segments.len() <= 6);
            let mut taken = Vec::new();
            inbox.take(bytes.len(), |range| taken.extend_from_slice(&range.data));
            assert_eq!(taken, bytes);
            inbox.shrink();
            assert!(inbox.segments.capacity() <= RANGES_KEPT);
        }
    }

    /// Fragments arrive unchecked, and each SA marks its packets. Neither must lead to a range per byte.
    #[test]
    fn ranges_with_peer_controlled_differences_are_merged() {
        let checked = RxMeta { checksums: Checksums::Good, protection: Protection::Secret, ..RxMeta::default() };
        let mut inbox = RecordInbox::default();
        for at in 0..16_406 {
            inbox.push(range(at, &[at as u8], if at % 2 == 0 { checked } else { RxMeta::default() }));
        }
        assert!(inbox.segments.len() <= 6, "{} ranges", inbox.segments.len());
        assert!(held(&inbox) < 3 * inbox.len() + (64 << 10));
        assert!(inbox.runs(16_406).all(|(_, meta)| *meta == RxMeta::default()), "the lesser word");
    }

    #[test]
    fn ranges_that_differ_stay_apart() {
        let decrypted = RxMeta::default().marked(Handle { index: 0, generation: 0 }, Verdict::Done);
        let mut inbox = RecordInbox::default();
        for (at, meta) in (0..).zip([decrypted, decrypted, RxMeta::default(), RxMeta::default(), decrypted]) {
            inbox.push(range(at, &[at as u8], meta));
        }
        inbox.push(range(5, &[5; SMALL], decrypted));
        inbox.push(range(5 + SMALL as u32, &[6], decrypted));
        let runs: Vec<_> = inbox.runs(usize::MAX).map(|(bytes, meta)| (bytes, meta.tls())).collect();
        let plain = TlsVerdict::NotDecrypted;
        let whole = TlsVerdict::Decrypted;
        assert_eq!(runs, [(2, whole), (2, plain), (1, whole), (SMALL, whole), (1, whole)]);
    }
}
