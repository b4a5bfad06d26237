//! A command's buffer while a device has it, and the return of its pieces.
//!
//! Invariants: every piece returns exactly once, filled or not. Only then is the buffer complete, and data that the
//! device did not place are copied. No returned piece crosses the boundary between two parts, although the parts may be
//! neighbours in memory and their pieces may have been joined on the way.

use super::Buffer;
use super::buffer::gaps;
use crate::volume::KeyedVolume;
use bytes::BytesMut;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::Waker;
use offload_api::{Piece, PieceHome, RxBuf};
use offload_base::cost::{self, WorkKind};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A buffer lent to a device.
#[derive(Debug)]
pub(super) struct LentBuffer {
    home: Arc<BufferStore>,
    /// Data that the device did not place.
    late: Vec<(u32, RxBuf)>,
    /// Ranges that the device placed and decrypted, in order; whole cipher blocks. Part of a block may also be in
    /// `late`, encrypted.
    opened: Vec<Range<u64>>,
}

/// A wakeup for complete buffers.
#[derive(Debug, Default)]
pub(super) struct BufferBell {
    rung: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

#[derive(Debug)]
struct BufferStore {
    total: usize,
    /// End offsets of the buffer's parts, in order.
    ends: Vec<u64>,
    bell: Arc<BufferBell>,
    /// The volume of the data, and the first block.
    volume: Option<(KeyedVolume, u64)>,
    parts: Mutex<ReturnedParts>,
}

#[derive(Debug, Default)]
struct ReturnedParts {
    by_offset: BTreeMap<u64, BytesMut>,
    bytes: usize,
}

impl LentBuffer {
    /// Splits a buffer into pieces for a device. `first` is the first block, if the buffer is for blocks of a volume.
    pub(super) fn lend(buffer: Buffer, first: u64, bell: &Arc<BufferBell>) -> (LentBuffer, Vec<Piece>) {
        let ends = buffer.parts().iter().scan(0, |end, part| {
            *end += part.len() as u64;
            Some(*end)
        });
        let ends = ends.collect();
        let volume = buffer.volume().cloned().map(|volume| (volume, first));
        let home =
            Arc::new(BufferStore { total: buffer.len(), ends, bell: bell.clone(), volume, parts: Mutex::default() });
        let starts = core::iter::once(0).chain(home.ends.iter().copied());
        let pieces =
            starts.zip(buffer.into_parts()).map(|(start, part)| Piece::new(start, part, home.clone())).collect();
        (LentBuffer { home, late: Vec::new(), opened: Vec::new() }, pieces)
    }

    /// Takes data that belong at `offset`. Placed data are in the buffer already.
    pub(super) fn take(&mut self, offset: u32, data: RxBuf) {
        match data {
            RxBuf::Placed(piece) if piece.is_from(&self.home) && piece.offset() == u64::from(offset) => {
                self.note_opened(piece.opened());
            }
            // This piece belongs elsewhere. It is copied, because a kept piece would be missing in its own buffer.
            RxBuf::Placed(mut piece) => {
                let _ = piece.close();
                self.late.push((offset, BytesMut::from(&*piece.bytes_mut()).into()));
            }
            RxBuf::Pool(_) => self.late.push((offset, data)),
        }
    }

    fn note_opened(&mut self, Range { start, end }: Range<u64>) {
        if start == end {
            return;
        }
        // Decryption works on whole cipher blocks, so the range covers whole blocks, too.
        let (start, end) = (start - start % Piece::BLOCK, end.next_multiple_of(Piece::BLOCK));
        match self.opened.last_mut() {
            Some(last) if last.end >= start => last.end = last.end.max(end),
            _ => self.opened.push(start..end),
        }
    }

    /// Returns whether all pieces are back.
    pub(super) fn is_home(&self) -> bool {
        self.home.parts().bytes == self.home.total
    }

    /// Reassembles the buffer.
    pub(super) fn finish(self) -> Buffer {
        let mut pieces = core::mem::take(&mut self.home.parts().by_offset).into_values();
        let mut start = 0;
        let parts: Vec<BytesMut> = self
            .home
            .ends
            .iter()
            .map(|end| {
                let length = (end - core::mem::replace(&mut start, *end)) as usize;
                let mut part = pieces.next().unwrap_or_default();
                while part.len() < length {
                    // Pieces of one part are neighbours in memory, so this does not copy.
                    part.unsplit(pieces.next().unwrap_or_else(|| BytesMut::zeroed(length - part.len())));
                }
                part
            })
            .collect();
        let mut buffer = Buffer::from_parts(parts);
        for (offset, data) in self.late {
            let offset = u64::from(offset);
            // Data of a decrypted block that came once more are encrypted; the plaintext is in the buffer already.
            for gap in gaps(&self.opened, offset..offset + data.len() as u64) {
                buffer.put(gap.start as usize, &data[(gap.start - offset) as usize..(gap.end - offset) as usize]);
            }
        }
        let volume = self.home.volume.as_ref().map(|(volume, _)| volume.clone());
        buffer.for_volume(volume).with_opened(self.opened)
    }
}

impl BufferBell {
    /// Returns whether the bell rang since the last call. `waker` is woken at the next ring.
    pub(super) fn listen(&self, waker: &Waker) -> bool {
        *lock(&self.waker) = Some(waker.clone());
        self.rung.swap(false, Ordering::AcqRel)
    }

    fn ring(&self) {
        self.rung.store(true, Ordering::Release);
        let waker = lock(&self.waker).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl BufferStore {
    fn parts(&self) -> MutexGuard<'_, ReturnedParts> {
        lock(&self.parts)
    }

    /// Returns the start offset of part number `part`.
    fn start(&self, part: usize) -> u64 {
        part.checked_sub(1).map_or(0, |before| self.ends[before])
    }
}

impl ReturnedParts {
    /// Adds a piece of the part that begins at `start`. Neighbouring pieces of one part are joined.
    fn insert(&mut self, start: u64, offset: u64, bytes: BytesMut) {
        // Pieces usually return in order, so the one before is usually the neighbour.
        match self.by_offset.range_mut(start..offset).next_back() {
            Some((at, before)) if at + before.len() as u64 == offset && before.as_ptr_range().end == bytes.as_ptr() => {
                before.unsplit(bytes);
            }
            _ => {
                self.by_offset.insert(offset, bytes);
            }
        }
    }
}

impl PieceHome for BufferStore {
    fn take_back(&self, mut offset: u64, mut bytes: BytesMut) {
        let _scope = cost::work(WorkKind::Framing);
        let whole = {
            let mut parts = self.parts();
            parts.bytes += bytes.len();
            let mut part = self.ends.partition_point(|end| *end <= offset);
            // Pieces of parts that are neighbours in memory may have been joined on the way, so the bytes are divided
            // again.
            while let Some(end) = self.ends.get(part).filter(|end| **end < offset + bytes.len() as u64) {
                parts.insert(self.start(part), offset, bytes.split_to((end - offset) as usize));
                (offset, part) = (*end, part + 1);
            }
            parts.insert(self.start(part), offset, bytes);
            parts.bytes == self.total
        };
        if whole {
            self.bell.ring();
        }
    }

    fn close(&self, offset: u64, bytes: &mut [u8]) -> bool {
        let _scope = cost::work(WorkKind::Crypto);
        self.volume.as_ref().is_some_and(|(volume, first)| volume.encrypt(*first, offset, bytes).is_ok())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Creates parts of these lengths, each allocated separately, or all cut from one slab.
    fn parts(lengths: &[usize], from_one_slab: bool) -> Vec<BytesMut> {
        let mut slab = BytesMut::zeroed(if from_one_slab { lengths.iter().sum() } else { 0 });
        let part = |length: &usize| if from_one_slab { slab.split_to(*length) } else { BytesMut::zeroed(*length) };
        lengths.iter().map(part).collect()
    }

    #[test]
    fn parts_cut_from_one_slab_stay_separate() {
        let (landing, pieces) = LentBuffer::lend(Buffer::from_parts(parts(&[32, 32], true)), 0, &Arc::default());
        for (number, mut piece) in pieces.into_iter().enumerate() {
            piece.bytes_mut().fill(number as u8 + 1);
            drop(piece);
        }
        assert!(landing.is_home());
        let buffer = landing.finish();
        assert_eq!(buffer.parts(), [&[1; 32][..], &[2; 32][..]]);
        assert_eq!(buffer.len(), 64);
    }

    #[test]
    fn pieces_joined_across_parts_are_divided() {
        let (landing, pieces) = LentBuffer::lend(Buffer::from_parts(parts(&[32, 16, 48], true)), 0, &Arc::default());
        let mut pieces = pieces.into_iter();
        let mut all = pieces.next().expect("the first part");
        pieces.for_each(|piece| all.join(piece).expect("the next piece follows"));
        for (at, byte) in all.bytes_mut().iter_mut().enumerate() {
            *byte = at as u8;
        }
        drop(all);
        assert!(landing.is_home());
        let buffer = landing.finish();
        assert_eq!(buffer.parts().iter().map(|part| part.len()).collect::<Vec<_>>(), [32, 16, 48]);
        assert_eq!(buffer.to_vec(), (0..96).collect::<Vec<u8>>());
    }

    #[test]
    fn neighbouring_pieces_are_joined() {
        let (landing, mut pieces) = LentBuffer::lend(Buffer::from_parts(parts(&[4000], false)), 0, &Arc::default());
        let mut rest = pieces.pop().expect("the buffer has one part");
        while rest.len() > 10 {
            drop(rest.split_to(10));
            assert_eq!(landing.home.parts().by_offset.len(), 1);
        }
    }

    proptest! {
        #[test]
        fn pieces_return_in_any_order(
            cuts in prop::collection::vec(1usize..100, 1..5),
            from_one_slab: bool,
            splits in prop::collection::vec((0usize..100, any::<prop::sample::Index>()), 0..20),
            joins in prop::collection::vec(any::<prop::sample::Index>(), 0..10),
            late in prop::option::of(0u32..50),
        ) {
            let buffer = Buffer::from_parts(parts(&cuts, from_one_slab));
            let total = buffer.len();
            let parts: Vec<(*const u8, usize)> = buffer.parts().iter().map(|part| (part.as_ptr(), part.len())).collect();
            let (mut landing, mut pieces) = LentBuffer::lend(buffer, 0, &Arc::default());
            // A device splits pieces at packet boundaries and may join them again.
            for (at, which) in splits {
                let index = which.index(pieces.len());
                let at = at.min(pieces[index].len());
                let taken = pieces[index].split_to(at);
                if !taken.is_empty() {
                    pieces.push(taken);
                }
            }
            pieces.retain(|piece| !piece.is_empty());
            for which in joins {
                let mut first = pieces.swap_remove(which.index(pieces.len()));
                let end = first.offset() + first.len() as u64;
                if let Some(next) = pieces.iter().position(|piece| piece.offset() == end) {
                    let next = pieces.swap_remove(next);
                    pieces.extend(first.join(next).err());
                }
                pieces.push(first);
            }
            let mut expected = vec![0; total];
            for (number, mut piece) in pieces.into_iter().enumerate() {
                prop_assert!(!landing.is_home());
                piece.bytes_mut().fill(number as u8 + 1);
                let (from, length) = (piece.offset() as usize, piece.len());
                expected[from..from + length].fill(number as u8 + 1);
                landing.take(from as u32, RxBuf::Placed(piece));
            }
            // Data that the device did not place overwrite the buffer at the end.
            if let Some(offset) = late.filter(|offset| (*offset as usize) < total) {
                landing.take(offset, BytesMut::from(&[0xee][..]).into());
                expected[offset as usize] = 0xee;
            }
            prop_assert!(landing.is_home());
            let buffer = landing.finish();
            prop_assert_eq!(buffer.to_vec(), expected);
            let after: Vec<(*const u8, usize)> = buffer.parts().iter().map(|part| (part.as_ptr(), part.len())).collect();
            prop_assert_eq!(after, parts, "the memory of the parts must be the same");
        }
    }
}
