//! Memory for the data of reads.

use crate::volume::KeyedVolume;
use bytes::BytesMut;
use core::ops::Range;
use offload_base::cost::{self, WorkKind};

/// A buffer of several parts, filled as if the parts were contiguous.
///
/// ```
/// use bytes::BytesMut;
/// use nvme_tcp::host::Buffer;
///
/// let mut buffer = Buffer::from_parts([BytesMut::zeroed(3), BytesMut::zeroed(5)]);
/// buffer.put(1, b"ab-cd");
/// assert_eq!(buffer.len(), 8);
/// assert_eq!(buffer.to_vec(), b"\0ab-cd\0\0");
/// assert_eq!(buffer.parts()[1][..], b"-cd\0\0"[..]);
/// ```
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Buffer {
    parts: Vec<BytesMut>,
    len: usize,
    /// Decryption state, if blocks of an encrypted volume are read into the buffer.
    volume: Option<Box<BlockDecryption>>,
}

#[derive(Debug, PartialEq, Eq)]
struct BlockDecryption {
    volume: KeyedVolume,
    /// Ranges decrypted by a device, in order; whole cipher blocks.
    opened: Vec<Range<u64>>,
}

impl Buffer {
    /// Creates a buffer of `bytes` zeros in one part.
    pub fn zeroed(bytes: usize) -> Buffer {
        Buffer::from_parts([BytesMut::zeroed(bytes)])
    }

    /// Creates a buffer from `parts`; empty parts are dropped.
    pub fn from_parts(parts: impl IntoIterator<Item = BytesMut>) -> Buffer {
        let parts: Vec<BytesMut> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        let len = parts.iter().map(|part| part.len()).sum();
        Buffer { parts, len, volume: None }
    }

    /// Makes this a buffer for blocks of `volume`, whose data are decrypted.
    #[must_use]
    pub(crate) fn for_volume(self, volume: Option<KeyedVolume>) -> Buffer {
        let volume = volume.map(|volume| Box::new(BlockDecryption { volume, opened: Vec::new() }));
        Buffer { volume, ..self }
    }

    /// Returns the volume of the blocks, if any.
    pub(super) fn volume(&self) -> Option<&KeyedVolume> {
        self.volume.as_ref().map(|of| &of.volume)
    }

    /// Sets the ranges that a device has decrypted.
    pub(super) fn with_opened(mut self, opened: Vec<Range<u64>>) -> Buffer {
        if let Some(of) = &mut self.volume {
            of.opened = opened;
        }
        self
    }

    /// Forgets which ranges were decrypted, because the contents are obsolete.
    pub(super) fn close(&mut self) {
        self.volume.iter_mut().for_each(|of| of.opened.clear());
    }

    /// Decrypts the ranges that no device decrypted; `first` is the first block. Returns false if the volume was erased
    /// or has no such blocks.
    pub(super) fn open(&mut self, first: u64) -> bool {
        let Some(of) = self.volume.take_if(|of| !of.volume.is_erased()) else { return self.volume.is_none() };
        let BlockDecryption { volume, opened } = *of;
        let _scope = cost::work(WorkKind::Crypto);
        gaps(&opened, 0..self.len as u64).all(|gap| self.open_range(&volume, first, gap).is_some())
    }

    fn open_range(&mut self, volume: &KeyedVolume, first: u64, range: Range<u64>) -> Option<()> {
        let (mut at, end) = (range.start as usize, range.end as usize);
        let mut start = 0;
        for part in 0..self.parts.len() {
            let part_end = start + self.parts[part].len();
            while at < end.min(part_end) {
                let here = end.min(part_end) - at;
                let whole = here - here % CIPHER_BLOCK;
                if whole > 0 {
                    let from = at - start;
                    volume.decrypt(first, at as u64, &mut self.parts[part][from..from + whole]).ok()?;
                    at += whole;
                    continue;
                }
                // A cipher block that crosses the boundary to the next part is decrypted in a copy.
                let mut block = [0; CIPHER_BLOCK];
                self.take_out(at, &mut block);
                volume.decrypt(first, at as u64, &mut block).ok()?;
                self.put(at, &block);
                at += CIPHER_BLOCK;
            }
            start = part_end;
        }
        (at >= end).then_some(())
    }

    /// Copies the bytes at `offset`, as far as there are any.
    fn take_out(&self, offset: usize, into: &mut [u8]) {
        let bytes = self.parts.iter().flat_map(|part| part.iter());
        into.iter_mut().zip(bytes.skip(offset)).for_each(|(into, byte)| *into = *byte);
    }

    /// Returns the size of all parts together.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the buffer has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the parts in order.
    pub fn parts(&self) -> &[BytesMut] {
        &self.parts
    }

    /// Takes the parts.
    pub fn into_parts(self) -> Vec<BytesMut> {
        self.parts
    }

    /// Copies all bytes into one vector.
    pub fn to_vec(&self) -> Vec<u8> {
        self.parts.concat()
    }

    /// Copies `data` to `offset`.
    ///
    /// # Panics
    /// If `data` does not fit.
    pub fn put(&mut self, offset: usize, data: &[u8]) {
        let _scope = cost::work(WorkKind::Copy);
        assert!(offset + data.len() <= self.len, "data beyond the end of a buffer");
        let (mut skip, mut rest) = (offset, data);
        for part in &mut self.parts {
            if rest.is_empty() {
                return;
            }
            if skip >= part.len() {
                skip -= part.len();
                continue;
            }
            let (now, later) = rest.split_at(rest.len().min(part.len() - skip));
            part[skip..skip + now.len()].copy_from_slice(now);
            (skip, rest) = (0, later);
        }
    }
}

/// Returns the parts of `range` outside `taken`, which is sorted.
pub(super) fn gaps(taken: &[Range<u64>], range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let starts = core::iter::once(range.start).chain(taken.iter().map(|taken| taken.end));
    let ends = taken.iter().map(|taken| taken.start).chain(core::iter::once(range.end));
    let gaps = starts.zip(ends).map(move |(start, end)| start.max(range.start)..end.min(range.end));
    gaps.filter(|gap| gap.start < gap.end)
}

/// Bytes of an AES block.
const CIPHER_BLOCK: usize = 16;

impl From<BytesMut> for Buffer {
    fn from(part: BytesMut) -> Buffer {
        Buffer::from_parts([part])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use resumable_aead::{DataUnits, Volume, XtsKey};

    #[test]
    fn gaps_complement_the_taken_ranges() {
        let left = |taken: &[Range<u64>], range| gaps(taken, range).collect::<Vec<_>>();
        assert_eq!(left(&[], 3..9), vec![3..9]);
        assert_eq!(left(&[0..4, 6..7, 9..20], 2..12), vec![4..6, 7..9]);
        assert_eq!(left(&[0..9, 9..20], 2..12), Vec::<Range<u64>>::new());
    }

    proptest! {
        #[test]
        fn blocks_are_decrypted_once_in_any_partition(
            cuts in prop::collection::vec(1usize..1023, 0..6),
            opened in prop::collection::vec(any::<bool>(), 64),
            first in 0u64..1000,
        ) {
            let key: Vec<u8> = (0..32).collect();
            let volume = Volume::new(XtsKey::new(&key).unwrap(), DataUnits::new(512).unwrap());
            let plain: Vec<u8> = (0..1024).map(|at| (at * 11 / 7) as u8).collect();
            let mut bytes = plain.clone();
            volume.encrypt(first, 0, &mut bytes).unwrap();
            let of_block = |block: usize| block * CIPHER_BLOCK..(block + 1) * CIPHER_BLOCK;
            let blocks: Vec<usize> = (0..64).filter(|block| opened[*block]).collect();
            blocks.iter().for_each(|block| bytes[of_block(*block)].copy_from_slice(&plain[of_block(*block)]));
            let opened = blocks.iter().map(|block| of_block(*block).start as u64..of_block(*block).end as u64);
            let mut ends: Vec<usize> = cuts.into_iter().chain([1024]).collect();
            ends.sort_unstable();
            let mut start = 0;
            let parts = ends.iter().map(|end| BytesMut::from(&bytes[core::mem::replace(&mut start, *end)..*end]));
            let mut buffer = Buffer::from_parts(parts).for_volume(Some(volume.into())).with_opened(opened.collect());
            prop_assert!(buffer.open(first));
            prop_assert_eq!(buffer.to_vec(), plain);
        }
    }
}
