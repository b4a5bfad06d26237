//! A namespace's bytes in a file, and in another beside it which of them are not to be read.
//!
//! Invariants: what was flushed is on the disk, or was given to it with a request to make it durable (`fdatasync`). A
//! write is one call of the system, and nothing is read or written beside it where it writes: a block is the old one or
//! the new one, also after the process was killed.

use super::ranges::Ranges;
use super::side_file::SideFile;
use super::{Pieces, Storage};
use bytes::{Bytes, BytesMut};
use core::ops::Range;
use offload_base::cost::{self, Work};
use rustix::fs::{FallocateFlags, FlockOperation, OFlags, fallocate, flock};
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// Bytes in a file or on a block device. A file's bytes that are not to be read are kept in `PATH.uncorrectable`, as long
/// as there are some; those of a block device are forgotten with the process.
///
/// ```
/// use bytes::Bytes;
/// use nvme_tcp::namespace::{FileStorage, Storage};
///
/// let path = std::env::temp_dir().join(format!("nvme-tcp-doc-{}", std::process::id()));
/// std::fs::write(&path, vec![0; 8192])?;
/// let storage = FileStorage::open(&path, false)?;
/// storage.write(4096, &[Bytes::from(vec![7; 512])])?;
/// storage.flush()?;
/// assert_eq!(storage.read(4096, 512)?.concat(), [7; 512]);
/// # std::fs::remove_file(&path)?;
/// # std::io::Result::Ok(())
/// ```
#[derive(Debug)]
pub struct FileStorage {
    file: File,
    capacity: u64,
    direct: bool,
    /// What is being read and written.
    ranges: Ranges,
    side: Option<SideFile>,
    /// What the other file holds.
    unreadable: Mutex<Vec<Range<u64>>>,
}

impl FileStorage {
    /// The file at `path`, as large as it is; with `direct` past the page cache (O_DIRECT), where the file system can.
    ///
    /// # Errors
    /// If it cannot be opened for reading and writing, or is served already; if what is beside it is not what was kept.
    pub fn open(path: &Path, direct: bool) -> io::Result<FileStorage> {
        let flags = if direct { OFlags::DIRECT.bits() as i32 } else { 0 };
        let mut file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)?;
        // Two that serve the same bytes would not know of each other's writes. Some file systems know no locks.
        if let Err(error @ rustix::io::Errno::WOULDBLOCK) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
            return Err(io::Error::new(io::Error::from(error).kind(), "it is in use already"));
        }
        // A block device has no length in its metadata, but it has an end.
        let capacity = file.seek(SeekFrom::End(0))?;
        let is_device = file.metadata()?.file_type().is_block_device();
        let side = if is_device { None } else { Some(SideFile::of(path)?) };
        let unreadable = side.as_ref().map_or(Ok(Vec::new()), |side| side.read(capacity))?;
        Ok(FileStorage { file, capacity, direct, ranges: Ranges::default(), side, unreadable: Mutex::new(unreadable) })
    }

    /// What is read and written for `bytes` bytes from `offset` on: with O_DIRECT, whole aligned blocks.
    fn around(&self, offset: u64, bytes: u64) -> Range<u64> {
        match self.direct {
            true => offset - offset % ALIGNMENT as u64..(offset + bytes).next_multiple_of(ALIGNMENT as u64),
            false => offset..offset + bytes,
        }
    }

    /// Writes to a range that is held.
    fn put(&self, offset: u64, data: &[Bytes]) -> io::Result<()> {
        if self.direct {
            return self.write_direct(offset, data);
        }
        write_at_once(data, offset, |slices, offset| Ok(rustix::io::pwritev(&self.file, slices, offset)?))
    }

    /// Writes whole aligned blocks from one aligned buffer, as O_DIRECT asks.
    fn write_direct(&self, offset: u64, data: &[Bytes]) -> io::Result<()> {
        let bytes: usize = data.iter().map(Bytes::len).sum();
        let Range { start, end } = self.around(offset, bytes as u64);
        let mut buffer = aligned((end - start) as usize);
        let (before, after) = ((offset - start) as usize, (end - offset) as usize - bytes);
        if before > 0 || after > 0 {
            read_up_to_the_end(&self.file, &mut buffer, start)?;
        }
        gather(data, &mut buffer[before..]);
        self.file.write_all_at(&buffer, start)
    }
}

impl Storage for FileStorage {
    fn capacity(&self) -> u64 {
        // O_DIRECT works on whole blocks only.
        if self.direct { self.capacity - self.capacity % ALIGNMENT as u64 } else { self.capacity }
    }

    fn read(&self, offset: u64, bytes: usize) -> io::Result<Pieces> {
        let around = self.around(offset, bytes as u64);
        let (before, whole) = ((offset - around.start) as usize, (around.end - around.start) as usize);
        let mut buffer = if self.direct { aligned(whole) } else { BytesMut::zeroed(whole) };
        let start = around.start;
        let _held = self.ranges.read(around);
        self.file.read_exact_at(&mut buffer, start)?;
        Ok([buffer.freeze().slice(before..before + bytes)].into_iter().collect())
    }

    fn write(&self, offset: u64, data: &[Bytes]) -> io::Result<()> {
        let bytes: usize = data.iter().map(Bytes::len).sum();
        let _held = self.ranges.write(self.around(offset, bytes as u64));
        self.put(offset, data)
    }

    fn zero(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let _held = self.ranges.write(self.around(offset, bytes));
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if bytes == 0 || fallocate(&self.file, hole, offset, bytes).is_ok() {
            return Ok(());
        }
        // A file system without holes: zeros in pieces.
        let zeros = Bytes::from_static(&ZEROS);
        let (mut at, end) = (offset, offset + bytes);
        while at < end {
            let piece = zeros.slice(..zeros.len().min((end - at) as usize));
            at += piece.len() as u64;
            self.put(at - piece.len() as u64, &[piece])?;
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn unreadable(&self) -> Vec<Range<u64>> {
        self.unreadable.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn keep_unreadable(&self, ranges: &[Range<u64>]) -> io::Result<()> {
        let mut unreadable = self.unreadable.lock().unwrap_or_else(PoisonError::into_inner);
        self.side.as_ref().map_or(Ok(()), |side| side.replace(ranges))?;
        *unreadable = ranges.to_vec();
        self.side.as_ref().map_or(Ok(()), SideFile::sync)
    }

    fn may_block(&self) -> bool {
        true
    }
}

/// Writes all of `data` by one call of `write`, unless that writes less than it is given: pieces end where segments
/// did, and between two calls a process may end.
fn write_at_once(
    data: &[Bytes],
    mut offset: u64,
    mut write: impl FnMut(&[IoSlice<'_>], u64) -> io::Result<usize>,
) -> io::Result<()> {
    let gathered: Vec<u8>;
    let mut slices: Vec<IoSlice<'_>> = if data.len() <= MAX_SLICES {
        data.iter().map(|piece| IoSlice::new(piece)).collect()
    } else {
        let mut whole = vec![0; data.iter().map(Bytes::len).sum()];
        gather(data, &mut whole);
        gathered = whole;
        vec![IoSlice::new(&gathered)]
    };
    let mut slices = &mut slices[..];
    IoSlice::advance_slices(&mut slices, 0); // empty ones
    while !slices.is_empty() {
        match write(slices, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                offset += written as u64;
                IoSlice::advance_slices(&mut slices, written);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Copies `data` to the beginning of `buffer`.
fn gather(data: &[Bytes], buffer: &mut [u8]) {
    let _scope = cost::work(Work::Copy);
    let mut at = 0;
    for piece in data {
        buffer[at..at + piece.len()].copy_from_slice(piece);
        at += piece.len();
    }
}

/// `bytes` zeros that begin at a multiple of [`ALIGNMENT`] in memory.
fn aligned(bytes: usize) -> BytesMut {
    let mut buffer = BytesMut::zeroed(bytes + ALIGNMENT);
    let skipped = buffer.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
    let mut aligned = buffer.split_off(skipped);
    aligned.truncate(bytes);
    aligned
}

fn read_up_to_the_end(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    let mut have = 0;
    while have < buffer.len() {
        match file.read_at(&mut buffer[have..], offset + have as u64) {
            Ok(0) => break,
            Ok(read) => have += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// What O_DIRECT wants buffers, offsets and lengths to be multiples of, on any disk.
const ALIGNMENT: usize = 4096;
/// IOV_MAX: what one call takes.
const MAX_SLICES: usize = 1024;
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // lists of one range
mod tests {
    use super::*;

    #[test]
    fn direct_or_not_the_file_holds_the_same() {
        let images: Vec<Vec<u8>> = [false, true].map(after_some_writes).into_iter().flatten().collect();
        assert!(!images.is_empty());
        assert!(images.windows(2).all(|pair| pair[0] == pair[1]));
    }

    #[test]
    fn blocks_beside_each_other_are_written_at_the_same_time() {
        for direct in [false, true] {
            let path = path(&format!("beside-{direct}"));
            std::fs::write(&path, vec![0; 8192]).unwrap();
            if let Ok(storage) = FileStorage::open(&path, direct) {
                std::thread::scope(|scope| {
                    for block in 0..8u8 {
                        let storage = &storage;
                        scope.spawn(move || {
                            for value in 1..=100 {
                                let data = [Bytes::from(vec![value; 200]), Bytes::from(vec![value; 312])];
                                storage.write(u64::from(block) * 512, &data).unwrap();
                                storage.zero(4096 + u64::from(block) * 512, 512).unwrap();
                                assert_eq!(storage.read(u64::from(block) * 512, 512).unwrap().concat(), [value; 512]);
                            }
                        });
                    }
                });
                assert_eq!(std::fs::read(&path).unwrap(), [[100; 4096], [0; 4096]].concat());
            }
            std::fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn a_block_is_read_as_it_was_or_as_it_will_be() {
        let path = path("whole");
        std::fs::write(&path, vec![0; 4096]).unwrap();
        let storage = FileStorage::open(&path, false).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for value in 0..500u32 {
                    let pieces: Vec<Bytes> = (0..2048).map(|_| Bytes::from(vec![value as u8; 2])).collect();
                    storage.write(0, &pieces[..]).unwrap();
                }
            });
            for _ in 0..500 {
                let read = storage.read(0, 4096).unwrap().concat();
                assert!(read.iter().all(|byte| *byte == read[0]), "half of a write");
            }
        });
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_write_is_one_call_however_many_pieces_it_has() {
        for (pieces, most) in [(3, usize::MAX), (1024, usize::MAX), (5000, usize::MAX), (700, 1000), (2000, 999)] {
            let data: Vec<Bytes> =
                (0..pieces).map(|number| Bytes::from(vec![number as u8; 7 * (number % 3)])).collect();
            let (mut calls, mut file) = (0, Vec::new());
            write_at_once(&data, 100, |slices, offset| {
                assert!(slices.len() <= MAX_SLICES && offset == 100 + file.len() as u64);
                let whole: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
                file.extend_from_slice(&whole[..whole.len().min(most)]);
                calls += 1;
                Ok(whole.len().min(most))
            })
            .unwrap();
            assert_eq!(file, data.concat());
            assert_eq!(calls, file.len().div_ceil(most), "{pieces} pieces");
        }
        assert!(write_at_once(&[Bytes::from_static(b"full")], 0, |_, _| Ok(0)).is_err());
        write_at_once(&[Bytes::new()], 0, |_, _| panic!("nothing to write")).unwrap();
    }

    #[test]
    fn a_file_is_served_once() {
        let path = path("twice");
        std::fs::write(&path, vec![0; 4096]).unwrap();
        let storage = FileStorage::open(&path, false).unwrap();
        assert!(FileStorage::open(&path, false).is_err());
        drop(storage);
        assert!(FileStorage::open(&path, false).is_ok());
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn what_is_not_to_be_read_is_what_was_kept_last() {
        let path = path("kept");
        std::fs::write(&path, vec![0; 4096]).unwrap();
        let storage = FileStorage::open(&path, false).unwrap();
        storage.keep_unreadable(&[512..1024]).unwrap();
        assert_eq!(storage.unreadable(), [512..1024]);
        // Nothing can be put where a folder is.
        let new = path.with_extension("uncorrectable.new");
        std::fs::create_dir(&new).unwrap();
        assert!(storage.keep_unreadable(&[0..512]).is_err());
        assert_eq!(storage.unreadable(), [512..1024]);
        std::fs::remove_dir(&new).unwrap();
        storage.keep_unreadable(&[]).unwrap();
        assert_eq!(storage.unreadable(), []);
        std::fs::remove_file(&path).unwrap();
    }

    fn path(name: &str) -> std::path::PathBuf {
        std::env::temp_dir().join(format!("nvme-tcp-file-{}-{name}", std::process::id()))
    }

    /// `None` if the file system knows no O_DIRECT.
    fn after_some_writes(direct: bool) -> Option<Vec<u8>> {
        let path = path(&format!("{direct}"));
        std::fs::write(&path, vec![0xaa; 64 << 10]).unwrap();
        let storage = FileStorage::open(&path, direct).ok();
        let image = storage.map(|storage| {
            storage.write(512, &[Bytes::from(vec![1; 512]), Bytes::from(vec![2; 4096])]).unwrap();
            storage.write(16384, &[Bytes::from(vec![3; 8192])]).unwrap();
            storage.zero(20480, 1024).unwrap();
            storage.flush().unwrap();
            assert_eq!(storage.read(1024, 512).unwrap().concat(), [2; 512]);
            assert_eq!(storage.read(20480 + 512, 1024).unwrap().concat(), [[0; 512], [3; 512]].concat());
            std::fs::read(&path).unwrap()
        });
        std::fs::remove_file(&path).unwrap();
        image
    }
}
