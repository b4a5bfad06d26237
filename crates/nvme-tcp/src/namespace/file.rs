//! Storage in a file. Side files hold the list of unreadable bytes and the UUID by which hosts recognise the file.
//!
//! Invariants: flushed data are on the disk, or were given to the disk with a request to make them durable
//! (`fdatasync`). A write is one system call, and conflicts with other reads and writes of the same range are excluded.
//! A block therefore holds the old or the new data, even if the process is killed.

use super::open_error::OpenError;
use super::ranges::BlockingRangeLocks;
use super::side_file::SideFile;
use super::system::{FileSystem, MediumFile, RealSystem, StorageMedium};
use super::{DataPieces, Storage, identity};
use bytes::{Bytes, BytesMut};
use core::ops::Range;
use offload_base::cost::{self, WorkKind};
use rustix::fs::{FlockOperation, MemfdFlags, OFlags, flock, major, memfd_create, minor};
use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// Storage in a file or on a block device. The ranges of a file that are unreadable are stored in `PATH.uncorrectable`
/// while there are any; on a block device they are lost with the process. The UUID by which hosts recognise a file is
/// stored in `PATH.identity`; the UUID of a block device is derived from its hardware name.
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
/// # std::fs::remove_file(format!("{}.identity", path.display()))?;
/// # std::fs::remove_file(&path)?;
/// # std::io::Result::Ok(())
/// ```
#[derive(Debug)]
pub struct FileStorage {
    file: Box<dyn StorageMedium>,
    uuid: [u8; 16],
    capacity: u64,
    direct: bool,
    /// The ranges being read and written.
    ranges: BlockingRangeLocks,
    side: Option<SideFile>,
    /// Contents of the side file.
    unreadable: Mutex<Vec<Range<u64>>>,
    /// Whether reads and writes may block on a device.
    may_block: bool,
    /// Memory limit of a file in memory. `None` for other files.
    room: Option<MemoryRoom>,
}

/// Memory left for files in memory. Their pages are allocated one by one, and the system kills a process when there is
/// no memory left.
struct MemoryRoom {
    /// Returns the available bytes, if the system reports them.
    available: Box<dyn Fn() -> Option<u64> + Send + Sync>,
    /// Bytes that may be written before the next query.
    left: Mutex<u64>,
}

impl FileStorage {
    /// Opens the file at `path` with its current size; with `direct` past the page cache (O_DIRECT), if the file system
    /// supports it.
    ///
    /// # Errors
    /// If the file cannot be opened for reading and writing or is already served; if a side file is damaged or cannot
    /// be written.
    pub fn open(path: &Path, direct: bool) -> Result<FileStorage, OpenError> {
        let (file, capacity) = open_file(path, direct)?;
        let metadata = file.metadata().map_err(OpenError::about(path))?;
        if metadata.file_type().is_block_device() {
            let (device, ranges) = (metadata.rdev(), BlockingRangeLocks::default());
            let uuid = identity::device_uuid(major(device), minor(device)).map_err(OpenError::about(path))?;
            let file = Box::new(MediumFile { file, device_bytes: Some(capacity) });
            file.drop_cache();
            // A block device has no side file, so its marks do not outlive the process.
            let unreadable = Mutex::default();
            let (side, room) = (None, None);
            return Ok(FileStorage { file, uuid, capacity, direct, ranges, side, unreadable, may_block: true, room });
        }
        let file = Box::new(MediumFile { file, device_bytes: None });
        let path = fs::canonicalize(path).map_err(OpenError::about(path))?;
        FileStorage::from_medium(file, &path, direct, &(Arc::new(RealSystem) as Arc<dyn FileSystem>))
    }

    /// Creates storage for the open `file` at `path`, which is absolute and without links.
    pub(super) fn from_medium(
        file: Box<dyn StorageMedium>,
        path: &Path,
        direct: bool,
        system: &Arc<dyn FileSystem>,
    ) -> Result<FileStorage, OpenError> {
        // After a failed flush, the cache may hold bytes that the medium does not have.
        file.drop_cache();
        let capacity = file.end().map_err(OpenError::about(path))?;
        let side = SideFile::for_file(path, system);
        let unreadable = Mutex::new(side.read(capacity)?);
        let uuid = identity::file_uuid(&**system, path)?;
        let ranges = BlockingRangeLocks::default();
        let (side, room) = (Some(side), None);
        Ok(FileStorage { file, uuid, capacity, direct, ranges, side, unreadable, may_block: true, room })
    }

    /// Creates `capacity` bytes of zeros in a file that exists only in memory and is lost with the process. Unlike
    /// [`MemoryStorage`](super::MemoryStorage), it returns memory to the system, and is full when the system has less
    /// than 64 MiB left. Limits of control groups are not considered.
    ///
    /// # Errors
    /// If the system does not support such files, or not of this size.
    pub fn in_memory(capacity: u64) -> io::Result<FileStorage> {
        FileStorage::from_memory_file(memory_file(capacity)?, capacity, Box::new(available_memory))
    }

    fn from_memory_file(
        file: File,
        capacity: u64,
        available: Box<dyn Fn() -> Option<u64> + Send + Sync>,
    ) -> io::Result<FileStorage> {
        let room = Some(MemoryRoom { available, left: Mutex::new(0) });
        let (ranges, unreadable) = Default::default();
        let (file, uuid) = (Box::new(MediumFile { file, device_bytes: None }), identity::random_uuid()?);
        Ok(FileStorage { file, uuid, capacity, direct: false, ranges, side: None, unreadable, may_block: false, room })
    }

    /// Returns the range to access for `bytes` bytes at `offset`: whole aligned blocks with O_DIRECT.
    fn around(&self, offset: u64, bytes: u64) -> Range<u64> {
        match self.direct {
            true => offset - offset % ALIGNMENT as u64..(offset + bytes).next_multiple_of(ALIGNMENT as u64),
            false => offset..offset + bytes,
        }
    }

    /// Writes to a range that the caller has locked.
    fn put(&self, offset: u64, data: &[Bytes]) -> io::Result<()> {
        if self.direct {
            return self.write_direct(offset, data);
        }
        if let Some(room) = &self.room {
            room.take(data.iter().map(|piece| piece.len() as u64).sum())?;
        }
        write_at_once(data, offset, |slices, offset| self.file.write_at(slices, offset))
    }

    /// Writes whole aligned blocks from one aligned buffer, as O_DIRECT requires.
    fn write_direct(&self, offset: u64, data: &[Bytes]) -> io::Result<()> {
        let bytes: usize = data.iter().map(Bytes::len).sum();
        let Range { start, end } = self.around(offset, bytes as u64);
        let mut buffer = aligned((end - start) as usize);
        let (before, after) = ((offset - start) as usize, (end - offset) as usize - bytes);
        // The surrounding bytes of the first and last block are rewritten unchanged.
        if before > 0 || after > 0 {
            read_up_to_the_end(&*self.file, &mut buffer, start)?;
        }
        gather(data, &mut buffer[before..]);
        let whole = [buffer.freeze()];
        write_at_once(&whole, start, |slices, offset| self.file.write_at(slices, offset))
    }

    /// Deallocates a range. Returns false if the file system does not support holes.
    fn punch(&self, offset: u64, bytes: u64) -> io::Result<bool> {
        if bytes == 0 {
            return Ok(true);
        }
        if self.file.punch_hole(offset, bytes).is_err() {
            return Ok(false);
        }
        // A file that was truncated by another program has no zeros past its end. Writing the last block extends the
        // file.
        if self.file.end()? < offset + bytes {
            let last = bytes.min(ALIGNMENT as u64);
            self.put(offset + bytes - last, &[Bytes::from_static(&ZEROS).slice(..last as usize)])?;
        }
        Ok(true)
    }
}

impl MemoryRoom {
    fn take(&self, bytes: u64) -> io::Result<()> {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        if *left < bytes {
            let available = (self.available)().unwrap_or(u64::MAX);
            let usable = available.saturating_sub(MEMORY_KEPT);
            if usable < bytes {
                return Err(io::ErrorKind::StorageFull.into());
            }
            // Reserved in larger steps, because a query reads a file of the system.
            *left = usable.min(MEMORY_LOOK.max(bytes));
        }
        *left -= bytes;
        Ok(())
    }
}

impl core::fmt::Debug for MemoryRoom {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("MemoryRoom").field("left", &self.left).finish_non_exhaustive()
    }
}

impl Storage for FileStorage {
    fn capacity(&self) -> u64 {
        // O_DIRECT can only access whole blocks.
        if self.direct { self.capacity - self.capacity % ALIGNMENT as u64 } else { self.capacity }
    }

    fn read(&self, offset: u64, bytes: usize) -> io::Result<DataPieces> {
        let around = self.around(offset, bytes as u64);
        let (before, whole) = ((offset - around.start) as usize, (around.end - around.start) as usize);
        let mut buffer = if self.direct { aligned(whole) } else { BytesMut::zeroed(whole) };
        let start = around.start;
        let _range_lock = self.ranges.read(around);
        // A file that was truncated by another program must not read as zeros.
        if read_up_to_the_end(&*self.file, &mut buffer, start)? < whole {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok([buffer.freeze().slice(before..before + bytes)].into_iter().collect())
    }

    fn write(&self, offset: u64, data: &[Bytes]) -> io::Result<()> {
        let bytes: usize = data.iter().map(Bytes::len).sum();
        let _range_lock = self.ranges.write(self.around(offset, bytes as u64));
        self.put(offset, data)
    }

    fn zero(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let _range_lock = self.ranges.write(self.around(offset, bytes));
        if self.punch(offset, bytes)? {
            return Ok(());
        }
        // The file system does not support holes, so zeros are written.
        let zeros = Bytes::from_static(&ZEROS);
        let (mut at, end) = (offset, offset + bytes);
        while at < end {
            let piece = zeros.slice(..zeros.len().min((end - at) as usize));
            at += piece.len() as u64;
            self.put(at - piece.len() as u64, &[piece])?;
        }
        Ok(())
    }

    fn deallocate(&self, offset: u64, bytes: u64) -> io::Result<bool> {
        let _range_lock = self.ranges.write(self.around(offset, bytes));
        self.punch(offset, bytes)
    }

    fn flush(&self) -> io::Result<()> {
        self.file.sync()
    }

    fn uuid(&self) -> Option<[u8; 16]> {
        Some(self.uuid)
    }

    fn granule(&self) -> u64 {
        if self.direct { ALIGNMENT as u64 } else { 1 }
    }

    fn unreadable(&self) -> Vec<Range<u64>> {
        self.unreadable.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn keep_unreadable(&self, ranges: &[Range<u64>]) -> io::Result<()> {
        let mut unreadable = self.unreadable.lock().unwrap_or_else(PoisonError::into_inner);
        self.side.as_ref().map_or(Ok(()), |side| side.replace(ranges))?;
        // The side file has the new list from here on, even if the sync fails.
        *unreadable = ranges.to_vec();
        let Some(side) = &self.side else { return Ok(()) };
        side.sync().inspect_err(|_| {
            // A list that stays on the medium makes the next process write it again. A missing list would not.
            let _ = side.replace(ranges);
        })
    }

    fn may_block(&self) -> bool {
        self.may_block
    }
}

/// Opens and locks the file at `path`. Returns its size, too.
fn open_file(path: &Path, direct: bool) -> Result<(File, u64), OpenError> {
    let flags = if direct { OFlags::DIRECT.bits() as i32 } else { 0 };
    let opened = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path);
    let mut file = opened.map_err(OpenError::about(path))?;
    // Two servers of the same file would not see each other's locks and marks. Some file systems do not support file
    // locks.
    if let Err(rustix::io::Errno::WOULDBLOCK) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
        return Err(OpenError::InUse { path: path.to_owned() });
    }
    // The metadata of a block device have no length, but its end can be sought.
    let end = file.seek(SeekFrom::End(0)).map_err(OpenError::about(path))?;
    Ok((file, end))
}

/// Creates a file in memory with `bytes` zeros.
fn memory_file(bytes: u64) -> io::Result<File> {
    let file = File::from(memfd_create("nvme-tcp", MemfdFlags::CLOEXEC)?);
    file.set_len(bytes)?;
    Ok(file)
}

/// Returns the bytes of memory that the system can give without swapping.
fn available_memory() -> Option<u64> {
    let information = fs::read_to_string("/proc/meminfo").ok()?;
    let line = information.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Writes all of `data` with a single call of `write`, unless that call is short. Between two calls, the process could
/// be killed, and pieces do not end at block boundaries.
fn write_at_once(
    data: &[Bytes],
    mut offset: u64,
    mut write: impl FnMut(&[IoSlice<'_>], u64) -> io::Result<usize>,
) -> io::Result<()> {
    let gathered: Vec<u8>;
    let mut slices: Vec<IoSlice<'_>> = if data.len() <= MAX_SLICES {
        data.iter().map(|piece| IoSlice::new(piece)).collect()
    // More pieces than one call accepts are copied into one buffer first.
    } else {
        let mut whole = vec![0; data.iter().map(Bytes::len).sum()];
        gather(data, &mut whole);
        gathered = whole;
        vec![IoSlice::new(&gathered)]
    };
    let mut slices = &mut slices[..];
    IoSlice::advance_slices(&mut slices, 0); // removes empty slices
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
    let _scope = cost::work(WorkKind::Copy);
    let mut at = 0;
    for piece in data {
        buffer[at..at + piece.len()].copy_from_slice(piece);
        at += piece.len();
    }
}

/// Allocates `bytes` zeros at a multiple of [`ALIGNMENT`] in memory.
fn aligned(bytes: usize) -> BytesMut {
    let mut buffer = BytesMut::zeroed(bytes + ALIGNMENT);
    let skipped = buffer.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
    let mut aligned = buffer.split_off(skipped);
    aligned.truncate(bytes);
    aligned
}

/// Reads until `buffer` is full or the file ends. Returns the number of bytes read.
fn read_up_to_the_end(file: &dyn StorageMedium, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut have = 0;
    while have < buffer.len() {
        match file.read_at(&mut buffer[have..], offset + have as u64) {
            Ok(0) => break,
            Ok(read) => have += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(have)
}

/// Required multiple of O_DIRECT addresses, offsets and lengths, on any disk.
const ALIGNMENT: usize = 4096;
/// Bytes of memory that files in memory leave to other users.
const MEMORY_KEPT: u64 = 64 << 20;
/// Bytes written to a file in memory between two queries of the available memory.
const MEMORY_LOOK: u64 = 16 << 20;
/// IOV_MAX: maximum number of slices of one call.
const MAX_SLICES: usize = 1024;
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // lists of one range
mod tests {
    use super::super::system::with_suffix;
    use super::*;

    #[test]
    fn direct_and_cached_writes_match() {
        let images: Vec<Vec<u8>> = [false, true].map(after_some_writes).into_iter().flatten().collect();
        assert!(!images.is_empty());
        assert!(images.windows(2).all(|pair| pair[0] == pair[1]));
    }

    #[test]
    fn adjacent_blocks_are_written_concurrently() {
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
            remove(&path);
        }
    }

    #[test]
    fn block_is_read_before_or_after_a_write() {
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
        remove(&path);
    }

    #[test]
    fn write_of_many_pieces_is_one_call() {
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
    fn served_file_cannot_be_opened_again() {
        let path = path("twice");
        std::fs::write(&path, vec![0; 4096]).unwrap();
        let storage = FileStorage::open(&path, false).unwrap();
        let refused = FileStorage::open(&path, false).err();
        assert!(matches!(refused, Some(OpenError::InUse { path: served }) if served == path));
        drop(storage);
        assert!(FileStorage::open(&path, false).is_ok());
        remove(&path);
    }

    #[test]
    fn unreadable_ranges_are_the_last_stored() {
        let path = path("kept");
        std::fs::write(&path, vec![0; 4096]).unwrap();
        let storage = FileStorage::open(&path, false).unwrap();
        storage.keep_unreadable(&[512..1024]).unwrap();
        assert_eq!(storage.unreadable(), [512..1024]);
        // A directory at this path makes the replacement fail.
        let new = path.with_extension("uncorrectable.new");
        std::fs::create_dir(&new).unwrap();
        assert!(storage.keep_unreadable(&[0..512]).is_err());
        assert_eq!(storage.unreadable(), [512..1024]);
        std::fs::remove_dir(&new).unwrap();
        storage.keep_unreadable(&[]).unwrap();
        assert_eq!(storage.unreadable(), []);
        remove(&path);
    }

    /// The flag is checked on the open file, because all reads and writes use it.
    #[test]
    fn direct_files_bypass_the_page_cache() {
        for direct in [false, true] {
            let path = path(&format!("flags-{direct}"));
            std::fs::write(&path, vec![0; 4096]).unwrap();
            match open_file(&path, direct) {
                Ok((file, _)) => {
                    let flags = rustix::fs::fcntl_getfl(&file).unwrap();
                    assert_eq!(flags.contains(OFlags::DIRECT), direct);
                }
                // A file system without O_DIRECT reports this error.
                Err(error) => assert!(direct && error.kind() == io::ErrorKind::InvalidInput, "{error}"),
            }
            std::fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn moved_file_keeps_its_uuid() {
        let (old, new) = (path("moved"), path("moved-away"));
        std::fs::write(&old, vec![0; 4096]).unwrap();
        let uuid = |path: &Path| FileStorage::open(path, false).map(|storage| storage.uuid().unwrap());
        let first = uuid(&old).unwrap();
        assert_eq!(uuid(&old).unwrap(), first);
        let link = path("linked");
        std::os::unix::fs::symlink(&old, &link).unwrap();
        assert_eq!(uuid(&link).unwrap(), first);
        std::fs::remove_file(&link).unwrap();
        for suffix in ["", ".identity"] {
            std::fs::rename(with_suffix(&old, suffix), with_suffix(&new, suffix)).unwrap();
        }
        assert_eq!(uuid(&new).unwrap(), first);
        // A new file at the same path is another disk.
        std::fs::write(&old, vec![0; 4096]).unwrap();
        assert_ne!(uuid(&old).unwrap(), first);
        std::fs::write(with_suffix(&old, ".identity"), "what is this").unwrap();
        let kept = with_suffix(&old, ".identity");
        assert!(matches!(uuid(&old), Err(OpenError::Identity { path }) if path == kept));
        [old, new].iter().for_each(|path| remove(path));
    }

    #[test]
    fn deallocated_memory_returns_to_the_system() {
        let file = memory_file(1 << 40).unwrap();
        let same = file.try_clone().unwrap();
        let taken = || same.metadata().unwrap().blocks() * 512;
        let storage = FileStorage::from_memory_file(file, 1 << 40, Box::new(available_memory)).unwrap();
        storage.write(1 << 39, &[Bytes::from(vec![7; 1 << 20])]).unwrap();
        assert!(taken() >= 1 << 20);
        assert!(storage.deallocate(1 << 39, 1 << 20).unwrap());
        assert_eq!(taken(), 0);
        assert_eq!(storage.read(1 << 39, 512).unwrap().concat(), [0; 512]);
        assert!(!storage.may_block());
        assert_ne!(storage.uuid(), FileStorage::in_memory(1 << 20).unwrap().uuid());
    }

    #[test]
    fn memory_file_leaves_memory_to_the_system() {
        let available = Arc::new(Mutex::new(Some(MEMORY_KEPT + (1 << 20))));
        let told = available.clone();
        let available_now = Box::new(move || *told.lock().unwrap());
        let storage = FileStorage::from_memory_file(memory_file(1 << 40).unwrap(), 1 << 40, available_now).unwrap();
        let write = |offset: u64| storage.write(offset, &[Bytes::from(vec![7; 1 << 20])]);
        write(0).unwrap();
        *available.lock().unwrap() = Some(MEMORY_KEPT + (1 << 20) - 1);
        assert_eq!(write(1 << 30).unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(storage.read(0, 512).unwrap().concat(), [7; 512]);
        assert_eq!(storage.read(1 << 30, 512).unwrap().concat(), [0; 512]);
        assert!(storage.deallocate(0, 1 << 20).unwrap());
        *available.lock().unwrap() = Some(u64::MAX);
        for number in 0..16 {
            write(number << 20).unwrap();
            *available.lock().unwrap() = Some(0);
        }
        assert!(write(16 << 20).is_err(), "available memory is queried again every 16 MiB");
        // If the system does not report available memory, there is no limit.
        *available.lock().unwrap() = None;
        write(0).unwrap();
        assert!(available_memory().is_none_or(|bytes| bytes > 0));
    }

    #[test]
    fn zeroing_extends_a_truncated_file() {
        for direct in [false, true] {
            let path = path(&format!("short-{direct}"));
            std::fs::write(&path, vec![1; 64 << 10]).unwrap();
            if let Ok(storage) = FileStorage::open(&path, direct) {
                let cut = || std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(8192).unwrap();
                cut();
                storage.zero(16384, 16384).unwrap();
                assert_eq!(storage.read(12288, 4096).unwrap().concat(), [0; 4096]);
                assert_eq!(storage.read(16384, 16384).unwrap().concat(), [0; 16384]);
                assert!(storage.read(32768, 4096).is_err(), "this range was not extended");
                cut();
                assert!(storage.deallocate(8192, 8192).unwrap());
                assert_eq!(storage.read(4096, 12288).unwrap().concat(), [[1; 4096], [0; 4096], [0; 4096]].concat());
            }
            remove(&path);
        }
    }

    /// Removes a file and its side file.
    fn remove(path: &Path) {
        for suffix in ["", ".identity"] {
            std::fs::remove_file(with_suffix(path, suffix)).unwrap();
        }
    }

    fn path(name: &str) -> std::path::PathBuf {
        std::env::temp_dir().join(format!("nvme-tcp-file-{}-{name}", std::process::id()))
    }

    /// Returns the file's contents after some writes; `None` without O_DIRECT.
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
        remove(&path);
        image
    }
}
