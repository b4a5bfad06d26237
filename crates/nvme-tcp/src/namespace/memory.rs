//! Storage in memory.
//!
//! Invariant: a later write does not change data that were read. A chunk that a reader still holds is copied before it
//! is written. Reads therefore do not copy, and only written chunks occupy memory.

use super::{DataPieces, Storage};
use bytes::{Bytes, BytesMut};
use offload_base::cost::{self, WorkKind};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Storage in memory, lost with the process.
///
/// ```
/// use bytes::Bytes;
/// use nvme_tcp::namespace::{MemoryStorage, Storage};
///
/// let storage = MemoryStorage::new(1 << 30); // takes no memory before it is written
/// storage.write(100, &[Bytes::from_static(b"abc")]).unwrap();
/// assert_eq!(storage.read(99, 5).unwrap().concat(), b"\0abc\0");
/// ```
#[derive(Debug)]
pub struct MemoryStorage {
    capacity: u64,
    /// Chunks by number. A missing chunk reads as zeros.
    chunks: Mutex<BTreeMap<u64, Bytes>>,
}

impl MemoryStorage {
    /// Creates `capacity` bytes of zeros.
    pub fn new(capacity: u64) -> MemoryStorage {
        MemoryStorage { capacity, chunks: Mutex::default() }
    }

    fn chunks(&self) -> MutexGuard<'_, BTreeMap<u64, Bytes>> {
        self.chunks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the parts of a range, one for each chunk. Fails if the range exceeds the capacity.
    fn parts(&self, offset: u64, bytes: u64) -> io::Result<impl Iterator<Item = ChunkPart>> {
        offset.checked_add(bytes).filter(|end| *end <= self.capacity).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(parts(offset, bytes))
    }
}

impl Storage for MemoryStorage {
    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn read(&self, offset: u64, bytes: usize) -> io::Result<DataPieces> {
        let chunks = self.chunks();
        let read = |part: ChunkPart| match chunks.get(&part.chunk) {
            None => Bytes::from_static(&ZEROS[..part.len]),
            Some(chunk) => chunk.slice(part.at..part.at + part.len),
        };
        Ok(self.parts(offset, bytes as u64)?.map(read).collect())
    }

    fn write(&self, offset: u64, data: &[Bytes]) -> io::Result<()> {
        let _scope = cost::work(WorkKind::Copy);
        let mut chunks = self.chunks();
        let mut at = offset;
        for piece in data {
            let mut rest = &piece[..];
            for part in self.parts(at, piece.len() as u64)? {
                // Taken out of the map, so that the chunk is unique unless a reader holds it.
                let chunk = chunks.entry(part.chunk).or_default();
                let mut unique = writable(core::mem::take(chunk));
                let (now, later) = rest.split_at(part.len);
                unique[part.at..part.at + part.len].copy_from_slice(now);
                rest = later;
                *chunk = unique.freeze();
            }
            at += piece.len() as u64;
        }
        Ok(())
    }

    fn deallocate(&self, offset: u64, bytes: u64) -> io::Result<bool> {
        self.zero(offset, bytes).map(|()| true)
    }

    fn zero(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let _ = self.parts(offset, bytes)?;
        let whole = offset.div_ceil(CHUNK as u64)..(offset + bytes) / CHUNK as u64;
        let mut chunks = self.chunks();
        // Removes whole chunks without visiting missing ones: a range may be much larger than memory.
        let edges = if whole.is_empty() {
            [(offset, bytes), (0, 0)]
        } else {
            let (start, end) = (whole.start * CHUNK as u64, whole.end * CHUNK as u64);
            let numbers: Vec<u64> = chunks.range(whole).map(|(number, _)| *number).collect();
            numbers.iter().for_each(|number| drop(chunks.remove(number)));
            [(offset, start - offset), (end, offset + bytes - end)]
        };
        for (offset, bytes) in edges {
            for part in self.parts(offset, bytes)? {
                let Some(chunk) = chunks.remove(&part.chunk) else { continue };
                let mut unique = writable(chunk);
                unique[part.at..part.at + part.len].fill(0);
                // A chunk of zeros is removed, even if it was zeroed in small steps.
                if unique.iter().any(|byte| *byte != 0) {
                    chunks.insert(part.chunk, unique.freeze());
                }
            }
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn may_block(&self) -> bool {
        false
    }
}

/// A range of bytes within one chunk.
struct ChunkPart {
    chunk: u64,
    at: usize,
    len: usize,
}

fn parts(offset: u64, bytes: u64) -> impl Iterator<Item = ChunkPart> {
    let (mut at, end) = (offset, offset.saturating_add(bytes));
    core::iter::from_fn(move || {
        let within = at % CHUNK as u64;
        let len = (CHUNK as u64 - within).min(end.checked_sub(at)?);
        let part = ChunkPart { chunk: at / CHUNK as u64, at: within as usize, len: len as usize };
        at += len;
        (len > 0).then_some(part)
    })
}

/// Returns a writable chunk: the chunk itself if no reader holds it, or a copy.
fn writable(chunk: Bytes) -> BytesMut {
    if chunk.is_empty() {
        return BytesMut::zeroed(CHUNK);
    }
    chunk.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]))
}

/// Bytes of a chunk, the most that a reader can cause to be copied.
const CHUNK: usize = 16 << 10;
static ZEROS: [u8; CHUNK] = [0; CHUNK];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_read_before_a_write_stay_unchanged() {
        let storage = MemoryStorage::new(3 * CHUNK as u64);
        storage.write(CHUNK as u64 - 2, &[Bytes::from_static(b"ab"), Bytes::from_static(b"cd")]).unwrap();
        let before = storage.read(CHUNK as u64 - 2, 4).unwrap();
        storage.write(CHUNK as u64 - 1, &[Bytes::from_static(b"XY")]).unwrap();
        storage.zero(0, CHUNK as u64).unwrap();
        assert_eq!(before.concat(), b"abcd");
        assert_eq!(storage.read(CHUNK as u64 - 2, 4).unwrap().concat(), b"\0\0Yd");
    }

    #[test]
    fn unwritten_chunks_use_no_memory() {
        let storage = MemoryStorage::new(1 << 60);
        storage.write((1 << 59) - 1, &[Bytes::from_static(b"abcd")]).unwrap();
        assert_eq!(storage.read((1 << 59) - 2, 6).unwrap().concat(), b"\0abcd\0");
        storage.zero(1, (1 << 59) - 1).unwrap();
        assert_eq!(storage.read((1 << 59) - 2, 6).unwrap().concat(), b"\0\0bcd\0");
        storage.zero(1, (1 << 60) - 2).unwrap();
        assert!(storage.chunks().is_empty());
    }

    #[test]
    fn chunk_zeroed_in_steps_uses_no_memory() {
        let storage = MemoryStorage::new(1 << 20);
        storage.write(0, &[Bytes::from(vec![7; 2 * CHUNK])]).unwrap();
        for block in 0..2 * CHUNK as u64 / 512 {
            assert!(!storage.chunks().is_empty(), "block {block}");
            storage.zero(block * 512, 512).unwrap();
        }
        assert!(storage.chunks().is_empty());
    }

    #[test]
    fn access_beyond_the_end_fails() {
        let storage = MemoryStorage::new(CHUNK as u64);
        assert!(storage.read(CHUNK as u64, 1).is_err());
        assert!(storage.write(CHUNK as u64 - 1, &[Bytes::from_static(b"ab")]).is_err());
    }
}
