//! Namespaces: blocks, and the operations that commands perform on them.
//!
//! Invariants:
//! - A written block reads as written, or not at all. A block that was never written, or was deallocated, reads as
//!   zeros.
//! - After a Flush, data of all earlier completed commands survive the end of the process, as far as the storage
//!   allows. If a Flush fails, all later writes and flushes fail, because earlier writes are in doubt: the system
//!   reports a failed write once and drops the lost bytes. A process that opens the storage anew reads the medium.
//! - A block marked by Write Uncorrectable stays unreadable until the next write, if the storage is persistent. The
//!   mark is durable before its command completes, and is removed by the Flush of the data written in its place, so
//!   that the old data are never read again.
//!
//! A namespace is shared by all queues and does its own locking. The queues' state machines only create an
//! [`Operation`]. Their driver executes the operation, on another thread if the storage [may
//! block](Storage::may_block).

mod file;
mod identity;
mod marks;
mod memory;
mod open_error;
mod range_locks;
mod ranges;
mod side_file;
mod system;

pub use file::FileStorage;
pub(crate) use identity::fnv1a;
pub use identity::random_uuid;
pub use memory::MemoryStorage;
pub use open_error::{MarksFault, OpenError};

use crate::wire::Status;
use bytes::Bytes;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use identity::derived_uuid;
use marks::UnreadableMarks;
use offload_base::cost::{self, WorkKind};
pub(crate) use range_locks::{LockSpan, RangeLock, RangeLocks};
use smallvec::SmallVec;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes in pieces.
pub type DataPieces = SmallVec<[Bytes; 4]>;

/// The storage of a namespace's bytes.
pub trait Storage: Send + Sync {
    /// Returns the size in bytes.
    fn capacity(&self) -> u64;

    /// Reads `bytes` bytes at `offset`.
    ///
    /// # Errors
    /// If the medium cannot be read.
    fn read(&self, offset: u64, bytes: usize) -> io::Result<DataPieces>;

    /// Writes `data` at `offset`.
    ///
    /// # Errors
    /// If the medium cannot be written.
    fn write(&self, offset: u64, data: &[Bytes]) -> io::Result<()>;

    /// Sets `bytes` bytes at `offset` to zero, and frees their space if possible.
    ///
    /// # Errors
    /// If the medium cannot be written.
    fn zero(&self, offset: u64, bytes: u64) -> io::Result<()>;

    /// Deallocates `bytes` bytes at `offset`, at most 1 GiB, if that is cheap. Returns true if the bytes are zeros now,
    /// and false if they are unchanged, for example for lack of support.
    ///
    /// # Errors
    /// If the medium cannot be written.
    fn deallocate(&self, offset: u64, bytes: u64) -> io::Result<bool> {
        let _ = (offset, bytes);
        Ok(false)
    }

    /// Makes all written data durable.
    ///
    /// # Errors
    /// If durability cannot be guaranteed.
    fn flush(&self) -> io::Result<()>;

    /// Returns the ranges last stored by [`keep_unreadable`](Self::keep_unreadable), in this process or an earlier one.
    /// A new namespace reads these ranges. Only one namespace at a time may use a storage.
    fn unreadable(&self) -> Vec<Range<u64>> {
        Vec::new()
    }

    /// Stores `ranges` of bytes, sorted and disjoint, in place of the ranges stored before. They are durable when this
    /// returns. Storage in memory need not do anything.
    ///
    /// # Errors
    /// If the ranges cannot be stored. The storage then has the old or the new ranges, as far as known those that
    /// [`unreadable`](Self::unreadable) returns.
    fn keep_unreadable(&self, ranges: &[Range<u64>]) -> io::Result<()> {
        let _ = ranges;
        Ok(())
    }

    /// Returns the UUID by which hosts recognise the data on any target. `None` if the data have no UUID.
    fn uuid(&self) -> Option<[u8; 16]> {
        None
    }

    /// Returns the alignment of accesses: the storage reads and writes whole blocks of this size.
    fn granule(&self) -> u64 {
        1
    }

    /// Returns whether calls may block on a device and should be made on another thread.
    fn may_block(&self) -> bool;
}

/// A namespace of a subsystem.
///
/// ```
/// use nvme_tcp::namespace::{MemoryStorage, Namespace, NamespaceError, Operation, IoOutcome};
/// use std::sync::Arc;
///
/// let odd = Namespace::new(1, 520, Arc::new(MemoryStorage::new(1 << 20)));
/// assert_eq!(odd.err(), Some(NamespaceError::BlockSize(520)));
/// let namespace = Namespace::new(1, 512, Arc::new(MemoryStorage::new(1 << 20))).unwrap();
/// assert_eq!(namespace.blocks(), 2048);
/// let read: IoOutcome = namespace.execute(&Operation::Read { first: 2047, blocks: 1 });
/// assert!(read.status.is_success() && read.data.concat() == [0; 512]);
/// ```
pub struct Namespace {
    id: u32,
    block_size: u32,
    /// UUID; `None` if it is to be derived from the names.
    uuid: Option<[u8; 16]>,
    storage: Arc<dyn Storage>,
    /// Range locks of the operations that run on threads.
    turns: Arc<RangeLocks>,
    /// Held while storage or marks are made durable. `failed` is set when a flush has failed.
    flushing: Mutex<()>,
    failed: AtomicBool,
    flushes: Flushes,
    /// Unreadable blocks.
    marks: Mutex<UnreadableMarks>,
    /// Unreadable bytes after the last block. Stored unchanged, because another block size or another way to open the
    /// storage may reach them.
    behind: Vec<Range<u64>>,
    usage: Usage,
}

/// Sequence numbers of a namespace's flushes, beginning with 1.
#[derive(Debug, Default)]
struct Flushes {
    begun: AtomicU64,
    /// Number of the last successful flush.
    done: AtomicU64,
}

/// Usage counters for the SMART log.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    pub(crate) read_commands: AtomicU64,
    pub(crate) write_commands: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    pub(crate) written_bytes: AtomicU64,
    pub(crate) media_errors: AtomicU64,
}

/// An operation on the blocks of a namespace. Its ranges were checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reads blocks.
    Read {
        /// First block.
        first: u64,
        /// Number of blocks.
        blocks: u32,
    },
    /// Writes blocks.
    Write {
        /// First block.
        first: u64,
        /// Data of whole blocks.
        data: DataPieces,
        /// Whether the data must be durable at completion (FUA).
        durable: bool,
    },
    /// Makes all written data durable.
    Flush,
    /// Compares blocks with data.
    Compare {
        /// First block.
        first: u64,
        /// Data of whole blocks.
        data: DataPieces,
    },
    /// Sets blocks to zero.
    WriteZeroes {
        /// First block.
        first: u64,
        /// Number of blocks.
        blocks: u32,
        /// Whether the zeros must be durable at completion (FUA).
        durable: bool,
    },
    /// Makes blocks unreadable until they are written.
    WriteUncorrectable {
        /// First block.
        first: u64,
        /// Number of blocks.
        blocks: u32,
    },
    /// Deallocates blocks, where that is cheap.
    Deallocate {
        /// Ranges of blocks, sorted and disjoint.
        ranges: Vec<Range<u64>>,
        /// Whether the change must be durable at completion.
        durable: bool,
    },
    /// Reads blocks and discards the data.
    Verify {
        /// First block.
        first: u64,
        /// Number of blocks.
        blocks: u32,
    },
}

/// Progress of an operation.
#[derive(Debug)]
pub(crate) enum IoStep {
    /// More to do; the value is the progress so far.
    More(u64),
    /// The operation has ended.
    Done(IoOutcome),
}

/// Result of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IoOutcome {
    /// Status for the host.
    pub status: Status,
    /// The data read.
    pub data: DataPieces,
}

/// Reason why a namespace cannot be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NamespaceError {
    /// Identifiers are 1 to 1024.
    #[error("{0:#x} is not a namespace identifier")]
    Identifier(u32),
    /// The block size is neither 512 nor 4096.
    #[error("blocks of {0} bytes are not possible: use 512 or 4096")]
    BlockSize(u32),
    /// The storage is smaller than one block.
    #[error("no room for one block")]
    TooSmall,
}

impl Namespace {
    /// Creates namespace `id` with blocks of 512 or 4096 bytes.
    ///
    /// # Errors
    /// If the identifier or the block size is invalid, or if the storage is smaller than one block.
    pub fn new(id: u32, block_size: u32, storage: Arc<dyn Storage>) -> Result<Namespace, NamespaceError> {
        if id == 0 || id > MAX_IDENTIFIER {
            return Err(NamespaceError::Identifier(id));
        }
        if !matches!(block_size, 512 | 4096) {
            return Err(NamespaceError::BlockSize(block_size));
        }
        if storage.capacity() < u64::from(block_size) {
            return Err(NamespaceError::TooSmall);
        }
        // The ranges may have been stored with another block size, so they are rounded to whole blocks.
        let size = u64::from(block_size);
        let end = storage.capacity() / size * size;
        let (mut marks, mut behind) = (Vec::new(), Vec::new());
        for bytes in storage.unreadable() {
            if bytes.start < end {
                marks.push(bytes.start / size..bytes.end.min(end).div_ceil(size));
            }
            if bytes.end > end {
                behind.push(bytes.start.max(end)..bytes.end);
            }
        }
        let marks = Mutex::new(UnreadableMarks::new(marks));
        let (turns, usage, flushing, failed, flushes) = Default::default();
        let uuid = storage.uuid();
        Ok(Namespace { id, block_size, uuid, storage, turns, flushing, failed, flushes, marks, behind, usage })
    }

    /// Sets the UUID by which hosts recognise the namespace. The default is the UUID of the [storage](Storage::uuid),
    /// or a UUID derived from the names of subsystem and namespace, which is the same in every run.
    #[must_use]
    pub fn with_uuid(mut self, uuid: [u8; 16]) -> Namespace {
        self.uuid = Some(uuid);
        self
    }

    /// Fixes the UUID of a namespace in `subsystem`: hosts take two namespaces with one UUID for two paths to the same
    /// blocks.
    #[must_use]
    pub(crate) fn in_subsystem(mut self, subsystem: &str) -> Namespace {
        self.uuid.get_or_insert_with(|| derived_uuid(subsystem, self.id));
        self
    }

    /// Returns the namespace identifier.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Returns the block size in bytes.
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Returns the number of blocks.
    pub fn blocks(&self) -> u64 {
        self.storage.capacity() / u64::from(self.block_size)
    }

    /// Returns the UUID by which hosts recognise the namespace.
    pub fn uuid(&self) -> [u8; 16] {
        self.uuid.unwrap_or_else(|| derived_uuid("", self.id))
    }

    /// Returns whether [`execute`](Self::execute) may block on a device.
    pub fn may_block(&self) -> bool {
        self.storage.may_block()
    }

    /// Returns whether `blocks` blocks from `first` on exist.
    pub fn contains(&self, first: u64, blocks: u64) -> bool {
        first.checked_add(blocks).is_some_and(|end| end <= self.blocks())
    }

    /// Executes `operation`.
    pub fn execute(&self, operation: &Operation) -> IoOutcome {
        let mut done = 0;
        loop {
            match self.step(operation, done) {
                IoStep::More(further) => done = further,
                IoStep::Done(outcome) => return outcome,
            }
        }
    }

    /// Executes the next part of `operation`. `done` is the progress, initially 0. No part takes long.
    ///
    /// If data must become durable, the last part does that. Other operations run before it, and one flush covers
    /// everything written before the flush began.
    pub(crate) fn step(&self, operation: &Operation, done: u64) -> IoStep {
        let mut data = DataPieces::new();
        let all = self.parts(operation);
        // Returns the next progress value. Values above `all` encode the number of the first flush that covers the
        // data.
        let rest = |done: u64, durable: bool| match done < all {
            true => Some(done),
            false => durable.then(|| all + self.flushes.begun.load(Ordering::Acquire) + 1),
        };
        let result = match operation {
            _ if done > all => self.flush_since(done - all).map(|()| None),
            Operation::Read { first, blocks } => self.read(*first, *blocks).map(|read| {
                self.usage.read(u64::from(*blocks) * u64::from(self.block_size));
                data = read;
                None
            }),
            Operation::Write { first, data, durable } => self.write(*first, data).map(|()| rest(all, *durable)),
            Operation::Flush => Ok(rest(all, true)),
            Operation::Compare { first, data } => self.compare(*first, data).map(|()| None),
            Operation::WriteUncorrectable { first, blocks } => self.make_unreadable(*first, *blocks).map(|()| None),
            Operation::WriteZeroes { durable, .. } => match self.part(operation, done) {
                None => Ok(rest(all, *durable)),
                Some(part) => {
                    let done = done + (part.end - part.start);
                    self.zero(part).map(|()| rest(done, *durable))
                }
            },
            Operation::Deallocate { durable, .. } => match self.part(operation, done) {
                None => Ok(rest(all, *durable)),
                Some(part) => {
                    let done = done + (part.end - part.start);
                    self.deallocate(part).map(|()| rest(done, *durable))
                }
            },
            Operation::Verify { .. } => match self.part(operation, done) {
                None => Ok(None),
                Some(part) => {
                    let (blocks, done) = ((part.end - part.start) as u32, done + (part.end - part.start));
                    self.read(part.start, blocks).map(|_| rest(done, false))
                }
            },
        };
        let status = match result {
            Ok(Some(done)) => return IoStep::More(done),
            Ok(None) => Status::SUCCESS,
            Err(status) => status,
        };
        // A failed comparison is not a media error of the SMART log.
        if status.code_type() == MEDIA_ERROR && status != Status::COMPARE_FAILURE {
            self.usage.media_errors.fetch_add(1, Ordering::Relaxed);
        }
        IoStep::Done(IoOutcome { status, data })
    }

    /// Returns the resources that this part locks.
    pub(crate) fn span(&self, operation: &Operation, done: u64) -> LockSpan {
        if done > self.parts(operation) {
            return LockSpan { flushes: true, ..LockSpan::default() };
        }
        let count = |data: &[Bytes]| data.iter().map(Bytes::len).sum::<usize>() as u64 / u64::from(self.block_size);
        let (blocks, writes, flushes) = match operation {
            Operation::Read { first, blocks } => (Some(*first..first + u64::from(*blocks)), false, false),
            Operation::Compare { first, data } => (Some(*first..first + count(data)), false, false),
            Operation::Verify { .. } => (self.part(operation, done), false, false),
            Operation::Write { first, data, .. } => (Some(*first..first + count(data)), true, false),
            Operation::WriteZeroes { .. } | Operation::Deallocate { .. } => (self.part(operation, done), true, false),
            Operation::Flush => (None, false, false),
            // A mark flushes the storage first, so it needs the flush lock.
            Operation::WriteUncorrectable { .. } => (None, false, true),
        };
        let blocks = blocks.unwrap_or_default();
        let (start, end, granule) = (self.offset(blocks.start), self.offset(blocks.end), self.storage.granule());
        LockSpan { bytes: start - start % granule..end.next_multiple_of(granule), writes, flushes }
    }

    /// Returns the range locks.
    pub(crate) fn turns(&self) -> &Arc<RangeLocks> {
        &self.turns
    }

    /// Returns the number of blocks of an operation that runs in parts; 0 for other operations.
    fn parts(&self, operation: &Operation) -> u64 {
        match operation {
            Operation::WriteZeroes { blocks, .. } | Operation::Verify { blocks, .. } => u64::from(*blocks),
            Operation::Deallocate { ranges, .. } => ranges.iter().map(|range| range.end - range.start).sum(),
            _ => 0,
        }
    }

    /// Returns the next blocks after `done` blocks of an operation that runs in parts. `None` if no blocks are left.
    fn part(&self, operation: &Operation, done: u64) -> Option<Range<u64>> {
        let one;
        let (ranges, most) = match operation {
            Operation::WriteZeroes { first, blocks, .. } | Operation::Verify { first, blocks } => {
                one = *first..first + u64::from(*blocks);
                (core::slice::from_ref(&one), PART_BYTES)
            }
            Operation::Deallocate { ranges, .. } => (&ranges[..], HOLE_BYTES),
            _ => return None,
        };
        let mut before = done;
        for range in ranges {
            let blocks = range.end - range.start;
            if before < blocks {
                let start = range.start + before;
                return Some(start..range.end.min(start + u64::from(most / self.block_size)));
            }
            before -= blocks;
        }
        None
    }

    pub(crate) fn usage(&self) -> &Usage {
        &self.usage
    }

    fn read(&self, first: u64, blocks: u32) -> Result<DataPieces, Status> {
        if self.marks().overlap(first..first + u64::from(blocks)) {
            return Err(Status::UNRECOVERED_READ_ERROR);
        }
        let bytes = blocks as usize * self.block_size as usize;
        self.storage.read(self.offset(first), bytes).map_err(|_| Status::UNRECOVERED_READ_ERROR)
    }

    fn write(&self, first: u64, data: &[Bytes]) -> Result<(), Status> {
        self.check_writable()?;
        let bytes: usize = data.iter().map(Bytes::len).sum();
        // Written before the marks are cleared: a concurrent read must not see the old data.
        self.storage.write(self.offset(first), data).map_err(|error| not_written(&error))?;
        self.heal(first..first + bytes as u64 / u64::from(self.block_size))?;
        self.usage.written(bytes as u64);
        Ok(())
    }

    fn zero(&self, blocks: Range<u64>) -> Result<(), Status> {
        self.check_writable()?;
        let (start, end) = (self.offset(blocks.start), self.offset(blocks.end));
        self.storage.zero(start, end - start).map_err(|error| not_written(&error))?;
        self.heal(blocks)
    }

    fn deallocate(&self, blocks: Range<u64>) -> Result<(), Status> {
        self.check_writable()?;
        let (start, end) = (self.offset(blocks.start), self.offset(blocks.end));
        let are_zeros = self.storage.deallocate(start, end - start).map_err(|error| not_written(&error))?;
        if are_zeros { self.heal(blocks) } else { Ok(()) }
    }

    /// Makes written blocks readable. If the marks have reached their limit, the blocks stay marked, and nobody can
    /// read the written data.
    fn heal(&self, blocks: Range<u64>) -> Result<(), Status> {
        if self.marks().clear(blocks) { Ok(()) } else { Err(Status::CAPACITY_EXCEEDED) }
    }

    /// Makes storage and marks durable, unless flush `first` or a later one has succeeded: that flush began after the
    /// data were written.
    ///
    /// Only one flush runs at a time, because a system reports a failed write to one caller, and success to the next.
    ///
    /// The data are synced first, then the marks from before that sync. A mark removed in between still protects data
    /// that may not be durable.
    fn flush_since(&self, first: u64) -> Result<(), Status> {
        let _flush_lock = self.flushing.lock().unwrap_or_else(PoisonError::into_inner);
        self.check_writable()?;
        if self.flushes.done.load(Ordering::Acquire) >= first {
            return Ok(());
        }
        let number = self.flushes.begun.fetch_add(1, Ordering::AcqRel) + 1;
        // Taken before the flush: marks removed later belong to data that this flush may not cover.
        let changed = self.marks().take_changed();
        self.flush_storage()?;
        if let Some(marked) = changed {
            self.keep(marked).map_err(|_| {
                self.marks().give_back();
                Status::WRITE_FAULT
            })?;
        }
        self.flushes.done.store(number, Ordering::Release);
        Ok(())
    }

    /// Stores the marks before applying them, so that a failed command has no effect.
    fn make_unreadable(&self, first: u64, blocks: u32) -> Result<(), Status> {
        let _flush_lock = self.flushing.lock().unwrap_or_else(PoisonError::into_inner);
        self.check_writable()?;
        let blocks = first..first + u64::from(blocks);
        let (marked, healed) = {
            let mut marks = self.marks();
            // Marked blocks are stored already.
            if marks.contain(&blocks) {
                return Ok(());
            }
            let marked = marks.with(blocks.clone()).ok_or(Status::CAPACITY_EXCEEDED)?;
            (marked, marks.take_changed().is_some())
        };
        // The marks that writes have removed leave the list with this change, so those writes must be durable first.
        self.flush_storage()?;
        let before = self.storage.unreadable();
        if let Err(error) = self.keep(marked) {
            if healed || self.storage.unreadable() != before {
                self.marks().give_back();
            }
            return Err(not_written(&error));
        }
        self.marks().insert(blocks);
        Ok(())
    }

    fn flush_storage(&self) -> Result<(), Status> {
        self.storage.flush().map_err(|_| {
            self.failed.store(true, Ordering::Release);
            IN_DOUBT
        })
    }

    /// Stores these blocks and the ranges after the last block.
    fn keep(&self, marked: Vec<Range<u64>>) -> io::Result<()> {
        let mut bytes: Vec<Range<u64>> =
            marked.into_iter().map(|blocks| self.offset(blocks.start)..self.offset(blocks.end)).collect();
        for behind in &self.behind {
            match bytes.last_mut() {
                Some(last) if last.end == behind.start => last.end = behind.end,
                _ => bytes.push(behind.clone()),
            }
        }
        self.storage.keep_unreadable(&bytes)
    }

    fn check_writable(&self) -> Result<(), Status> {
        if self.failed.load(Ordering::Acquire) { Err(IN_DOUBT) } else { Ok(()) }
    }

    fn compare(&self, first: u64, data: &[Bytes]) -> Result<(), Status> {
        let bytes: usize = data.iter().map(Bytes::len).sum();
        let stored = self.read(first, (bytes / self.block_size as usize) as u32)?;
        let _scope = cost::work(WorkKind::Copy);
        if data.iter().flatten().eq(stored.iter().flatten()) { Ok(()) } else { Err(Status::COMPARE_FAILURE) }
    }

    fn offset(&self, block: u64) -> u64 {
        block * u64::from(self.block_size)
    }

    fn marks(&self) -> MutexGuard<'_, UnreadableMarks> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl core::fmt::Debug for Namespace {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Namespace({}, {} blocks of {})", self.id, self.blocks(), self.block_size)
    }
}

impl Usage {
    fn read(&self, bytes: u64) {
        self.read_commands.fetch_add(1, Ordering::Relaxed);
        self.read_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn written(&self, bytes: u64) {
        self.write_commands.fetch_add(1, Ordering::Relaxed);
        self.written_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Converts a write error: a full medium is not a media error.
fn not_written(error: &io::Error) -> Status {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            Status::CAPACITY_EXCEEDED
        }
        _ => Status::WRITE_FAULT,
    }
}

/// Status after a failed flush: the storage may have dropped data, and later flushes cannot bring them back.
const IN_DOUBT: Status = Status::new(MEDIA_ERROR, Status::WRITE_FAULT.code(), true);
/// Bytes of one part of Verify, which reads the data into memory, and of Write Zeroes.
const PART_BYTES: u32 = 1 << 20;
/// Bytes of one part of Deallocate.
const HOLE_BYTES: u32 = 1 << 30;
/// Highest namespace identifier (MNAN).
pub(crate) const MAX_IDENTIFIER: u32 = 1024;
/// Status code type: media and data integrity errors.
const MEDIA_ERROR: u8 = 2;

#[cfg(test)]
mod durability;
#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // lists of one range
mod tests;
