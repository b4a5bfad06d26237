//! Received ranges that are not yet cut into records.
//!
//! Invariant: the ranges follow each other without a gap and none is empty; `bytes` is their sum. Cutting never
//! copies payload and never joins two ranges.

use super::HEADER_LEN;
use offload_api::{RxMeta, RxSegment};
use offload_base::Seq;
use std::collections::VecDeque;

/// The received ranges, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    segments: VecDeque<RxSegment>,
    bytes: usize,
    end: Option<Seq>,
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
        self.segments.push_back(segment);
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

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::BytesMut;

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
}
