//! Received ranges that are not yet cut into records.
//!
//! Invariant: the ranges follow each other without a gap and none is empty; `bytes` is their sum. Cutting never
//! copies payload. Small ranges about which the device said the same are copied together, so that the memory taken is a
//! small multiple of the bytes received, however they were cut: the window, which was told that some are done with before
//! their record is whole, does not bound it.

use super::HEADER_LEN;
use bytes::BytesMut;
use offload_api::rx::Checksums;
use offload_api::{PacketMark, RxBuf, RxMeta, RxSegment};
use offload_base::Seq;
use offload_base::cost::{self, WorkKind};
use std::collections::VecDeque;

/// The received ranges, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    segments: VecDeque<RxSegment>,
    bytes: usize,
    end: Option<Seq>,
    /// The last range is a copy of several.
    copied: bool,
    /// Ranges looked at in search of headers.
    #[cfg(test)]
    steps: std::cell::Cell<usize>,
}

impl Inbox {
    /// Adds the next range.
    pub(crate) fn push(&mut self, segment: RxSegment) {
        if segment.data.is_empty() {
            return;
        }
        self.bytes += segment.data.len();
        self.end = Some(segment.end());
        // What a stage has worked on is told apart by its piece.
        if segment.data.len() < SMALL
            && !segment.data.is_opened()
            && let Some(last) = self.segments.back_mut()
            && let Some(meta) = both(last.meta, segment.meta)
            && let RxBuf::Pool(bytes) = &mut last.data
            && bytes.len() < if self.copied { COPIED_MAX } else { SMALL }
        {
            let _copy = cost::work(WorkKind::Copy);
            if !core::mem::replace(&mut self.copied, true) {
                // What a small range lies in may be large.
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

    /// Gives memory back, if nothing is there.
    pub(crate) fn shrink(&mut self) {
        shrink(&mut self.segments);
    }

    /// Bytes received and not cut off.
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    /// Sequence number of the next byte to be cut off; `None` before anything arrived.
    pub(crate) fn start(&self) -> Option<Seq> {
        self.segments.front().map(|segment| segment.seq).or(self.end)
    }

    /// Says where the first range will begin, if nothing has arrived yet.
    pub(crate) fn begin_at(&mut self, seq: Seq) {
        self.end.get_or_insert(seq);
    }

    /// The record header at `at` bytes from the start; `None` if it is not all here. Takes time logarithmic in the number
    /// of ranges: a peer that sends records of a byte each gets as many headers looked for.
    pub(crate) fn header_at(&self, at: usize) -> Option<[u8; HEADER_LEN]> {
        if self.bytes < at + HEADER_LEN {
            return None;
        }
        let front = self.segments.front()?;
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

    /// The next `bytes` bytes, as runs of one range each: how many, and what the device said about them.
    pub(crate) fn runs(&self, bytes: usize) -> impl Iterator<Item = (usize, &RxMeta)> {
        let mut left = bytes;
        self.segments.iter().map_while(move |segment| {
            let run = segment.data.len().min(left);
            left -= run;
            (run > 0).then_some((run, &segment.meta))
        })
    }

    /// Cuts `bytes` bytes off and gives each range to `sink`.
    ///
    /// # Panics
    /// If there are fewer.
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

    /// Cuts `into.len()` bytes off and copies them.
    ///
    /// # Panics
    /// If there are fewer.
    pub(crate) fn copy_off(&mut self, into: &mut [u8]) {
        let mut filled = 0;
        self.skip_over(into.len(), |bytes| {
            into[filled..filled + bytes.len()].copy_from_slice(bytes);
            filled += bytes.len();
        });
    }

    /// Cuts `bytes` bytes off.
    ///
    /// # Panics
    /// If there are fewer.
    pub(crate) fn skip(&mut self, bytes: usize) {
        self.skip_over(bytes, |_| ());
    }

    /// Cuts `bytes` bytes off, having shown them.
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

    /// Forgets everything.
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

/// What can be said of two ranges copied into one; `None` if what was said of them differs in a way that counts. What a
/// peer changes from packet to packet as it likes does not: whether the device could check a packet's checksums (not those
/// of a fragment), and which SA it came by. The lesser word holds.
fn both(one: RxMeta, other: RxMeta) -> Option<RxMeta> {
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

/// Gives the memory of ranges back if there are none, but for that of a few.
pub(crate) fn shrink(ranges: &mut VecDeque<RxSegment>) {
    if ranges.is_empty() && ranges.capacity() > RANGES_KEPT {
        *ranges = VecDeque::new();
    }
}

/// Ranges of fewer bytes are copied together.
const SMALL: usize = 512;
/// Until the copy has as many.
const COPIED_MAX: usize = 4096;
/// Ranges that an idle stream has memory for: 416 bytes.
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
            let mut inbox = Inbox::default();
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
        // As a driver's buffers are: much larger than what is in them.
        let mut data = BytesMut::with_capacity(64 << 10);
        data.extend_from_slice(bytes);
        RxSegment { seq: Seq(seq), data: data.into(), meta }
    }

    /// Bytes of memory for what is in an inbox.
    fn held(inbox: &Inbox) -> usize {
        let buffers = inbox.segments.iter().map(|segment| match &segment.data {
            RxBuf::Pool(bytes) => bytes.capacity(),
            RxBuf::Placed(_) => 0,
        });
        buffers.sum::<usize>() + inbox.segments.capacity() * size_of::<RxSegment>()
    }

    #[test]
    fn small_ranges_take_memory_for_their_bytes_and_the_buffers_are_given_back() {
        for size in [1, 7, 100, SMALL - 1] {
            let bytes: Vec<u8> = (0..16_406).map(|at| at as u8).collect();
            let mut inbox = Inbox::default();
            for (at, chunk) in bytes.chunks(size).enumerate() {
                inbox.push(range((at * size) as u32, chunk, RxMeta::default()));
                if at * size > 3 * COPIED_MAX {
                    // The last range may be a buffer of one piece.
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

    /// Fragments come unchecked, and each SA has its word: no reason to keep a range for each byte.
    #[test]
    fn what_a_peer_changes_at_will_keeps_no_ranges_apart() {
        let checked = RxMeta { checksums: Checksums::Good, protection: Protection::Secret, ..RxMeta::default() };
        let mut inbox = Inbox::default();
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
        let mut inbox = Inbox::default();
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
