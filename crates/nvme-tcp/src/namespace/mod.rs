//! Namespaces: blocks, and what commands do to them.
//!
//! Invariants: a block that was written reads as written, or not at all; one never written, or deallocated, reads as
//! zeros. After a Flush everything completed before it survives the end of the process, as far as the storage can; once
//! fails, no command writes or flushes any more, because earlier writes are in doubt: the system reports a failed
//! write once, and drops the lost bytes. A process that opens the storage anew reads the medium. A block marked by Write Uncorrectable
//! stays unreadable until it is written, as long as its storage keeps data: a mark is durable before its command
//! completes, and goes with the Flush of what was written in its place, so that what was there before is never read again.
//!
//! A namespace is shared by all queues, so it looks after its own locking; the queues' state machines only name the
//! [`Operation`], and their driver carries it out, on another thread if the storage [may block](Storage::may_block).

mod file;
mod identity;
mod marks;
mod memory;
mod open_error;
mod ranges;
mod side_file;
mod system;
mod turns;

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
use marks::Marks;
use offload_base::cost::{self, WorkKind};
use smallvec::SmallVec;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
pub(crate) use turns::{Span, Turn, Turns};

/// Bytes in pieces.
pub type Pieces = SmallVec<[Bytes; 4]>;

/// Where a namespace keeps its bytes.
pub trait Storage: Send + Sync {
    /// Bytes there is room for.
    fn capacity(&self) -> u64;

    /// Reads `bytes` bytes from `offset` on.
    ///
    /// # Errors
    /// When the medium cannot be read.
    fn read(&self, offset: u64, bytes: usize) -> io::Result<Pieces>;

    /// Writes `data` from `offset` on.
    ///
    /// # Errors
    /// When the medium cannot be written.
    fn write(&self, offset: u64, data: &[Bytes]) -> io::Result<()>;

    /// Makes `bytes` bytes from `offset` on zeros, and gives their room back if it can.
    ///
    /// # Errors
    /// When the medium cannot be written.
    fn zero(&self, offset: u64, bytes: u64) -> io::Result<()>;

    /// Gives up what `bytes` bytes from `offset` on hold, if that is little work: they are zeros then. False: they are as
    /// they were, as it is with storage that cannot do it. It is asked for at most 1 GiB at a time.
    ///
    /// # Errors
    /// When the medium cannot be written.
    fn deallocate(&self, offset: u64, bytes: u64) -> io::Result<bool> {
        let _stay = (offset, bytes);
        Ok(false)
    }

    /// Makes everything written durable.
    ///
    /// # Errors
    /// When that cannot be promised.
    fn flush(&self) -> io::Result<()>;

    /// Ranges of bytes that [`keep_unreadable`](Self::keep_unreadable) kept last, in this process or in one before it.
    /// A namespace asks when it is made, and goes on from there: one at a time may use a storage.
    fn unreadable(&self) -> Vec<Range<u64>> {
        Vec::new()
    }

    /// Keeps `ranges` of bytes, in order and apart from each other, in place of those kept before; durable when this
    /// returns. Storage that is gone with the process has nothing to do.
    ///
    /// # Errors
    /// When they cannot be kept. Those from before are, then, or the new ones: [`unreadable`](Self::unreadable) tells
    /// which, as far as is known.
    fn keep_unreadable(&self, ranges: &[Range<u64>]) -> io::Result<()> {
        let _gone_with_the_process = ranges;
        Ok(())
    }

    /// By which hosts recognise the bytes, wherever they are served; `None`: they have no name of their own.
    fn uuid(&self) -> Option<[u8; 16]> {
        None
    }

    /// What is read and written beside what was asked for: whole blocks of so many bytes.
    fn granule(&self) -> u64 {
        1
    }

    /// Whether the calls above may wait for a device, and are better made where nothing else waits.
    fn may_block(&self) -> bool;
}

/// One namespace of a subsystem.
///
/// ```
/// use nvme_tcp::namespace::{MemoryStorage, Namespace, NamespaceError, Operation, Outcome};
/// use std::sync::Arc;
///
/// let odd = Namespace::new(1, 520, Arc::new(MemoryStorage::new(1 << 20)));
/// assert_eq!(odd.err(), Some(NamespaceError::BlockSize(520)));
/// let namespace = Namespace::new(1, 512, Arc::new(MemoryStorage::new(1 << 20))).unwrap();
/// assert_eq!(namespace.blocks(), 2048);
/// let read: Outcome = namespace.execute(&Operation::Read { first: 2047, blocks: 1 });
/// assert!(read.status.is_success() && read.data.concat() == [0; 512]);
/// ```
pub struct Namespace {
    id: u32,
    block_size: u32,
    /// `None`: what follows from its name.
    uuid: Option<[u8; 16]>,
    storage: Arc<dyn Storage>,
    /// What is done to its blocks on threads.
    turns: Arc<Turns>,
    /// Held while storage, or a mark, is made durable, and whether that failed once.
    flushing: Mutex<()>,
    failed: AtomicBool,
    flushes: Flushes,
    /// Blocks that are not to be read.
    marks: Mutex<Marks>,
    /// Bytes behind the last block that are not to be read: blocks of another size, or another way to open the storage,
    /// may reach them, so they are kept as they were.
    behind: Vec<Range<u64>>,
    usage: Usage,
}

/// Flushes of a namespace, numbered from 1 as they begin.
#[derive(Debug, Default)]
struct Flushes {
    begun: AtomicU64,
    /// The last that did what it is for.
    done: AtomicU64,
}

/// What hosts did to a namespace, as the SMART log tells it.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    pub(crate) read_commands: AtomicU64,
    pub(crate) write_commands: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    pub(crate) written_bytes: AtomicU64,
    pub(crate) media_errors: AtomicU64,
}

/// What is to be done to the blocks of a namespace. Ranges were checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reads blocks.
    Read {
        /// The first.
        first: u64,
        /// How many.
        blocks: u32,
    },
    /// Writes blocks.
    Write {
        /// The first.
        first: u64,
        /// Whole blocks.
        data: Pieces,
        /// Not complete before it is durable (FUA).
        durable: bool,
    },
    /// Makes everything written durable.
    Flush,
    /// Compares blocks with data.
    Compare {
        /// The first.
        first: u64,
        /// Whole blocks.
        data: Pieces,
    },
    /// Sets blocks to zero.
    WriteZeroes {
        /// The first.
        first: u64,
        /// How many.
        blocks: u32,
        /// Not complete before it is durable (FUA).
        durable: bool,
    },
    /// Marks blocks unreadable until they are written.
    WriteUncorrectable {
        /// The first.
        first: u64,
        /// How many.
        blocks: u32,
    },
    /// Gives up what blocks hold, where that is little work.
    Deallocate {
        /// Blocks, in order and apart from each other.
        ranges: Vec<Range<u64>>,
        /// Not complete before it is durable.
        durable: bool,
    },
    /// Reads blocks and keeps the data.
    Verify {
        /// The first.
        first: u64,
        /// How many.
        blocks: u32,
    },
}

/// How far an operation got.
#[derive(Debug)]
pub(crate) enum Step {
    /// Not to its end: as much is done.
    More(u64),
    /// To its end.
    Done(Outcome),
}

/// How an operation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What to tell the host.
    pub status: Status,
    /// What was read.
    pub data: Pieces,
}

/// A namespace cannot be like that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NamespaceError {
    /// Namespaces are numbered from 1; the last number stands for all of them.
    #[error("{0:#x} is not a namespace identifier")]
    Identifier(u32),
    /// Blocks have 512 or 4096 bytes.
    #[error("blocks of {0} bytes are not possible: use 512 or 4096")]
    BlockSize(u32),
    /// There is no room for one block.
    #[error("no room for one block")]
    TooSmall,
}

impl Namespace {
    /// Namespace `id`, with blocks of 512 or 4096 bytes.
    ///
    /// # Errors
    /// If the identifier or the block size is none, or there is no room for one block.
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
        // Marked with blocks of another size, maybe.
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
        let marks = Mutex::new(Marks::new(marks));
        let (turns, usage, flushing, failed, flushes) = Default::default();
        let uuid = storage.uuid();
        Ok(Namespace { id, block_size, uuid, storage, turns, flushing, failed, flushes, marks, behind, usage })
    }

    /// With a UUID of one's own, by which hosts recognise it. Without, it is that of its [storage](Storage::uuid); if that
    /// has none, it follows from the names of the subsystem and of the namespace, and is the same in every run.
    #[must_use]
    pub fn with_uuid(mut self, uuid: [u8; 16]) -> Namespace {
        self.uuid = Some(uuid);
        self
    }

    /// As part of `subsystem`: hosts take two namespaces with one UUID for two ways to the same blocks.
    #[must_use]
    pub(crate) fn in_subsystem(mut self, subsystem: &str) -> Namespace {
        self.uuid.get_or_insert_with(|| derived_uuid(subsystem, self.id));
        self
    }

    /// Its number in its subsystem.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Bytes of a block.
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// How many blocks.
    pub fn blocks(&self) -> u64 {
        self.storage.capacity() / u64::from(self.block_size)
    }

    /// By which hosts recognise it.
    pub fn uuid(&self) -> [u8; 16] {
        self.uuid.unwrap_or_else(|| derived_uuid("", self.id))
    }

    /// Whether [`execute`](Self::execute) may wait for a device.
    pub fn may_block(&self) -> bool {
        self.storage.may_block()
    }

    /// Whether `blocks` blocks from `first` on exist.
    pub fn contains(&self, first: u64, blocks: u64) -> bool {
        first.checked_add(blocks).is_some_and(|end| end <= self.blocks())
    }

    /// Carries `operation` out.
    pub fn execute(&self, operation: &Operation) -> Outcome {
        let mut done = 0;
        loop {
            match self.step(operation, done) {
                Step::More(further) => done = further,
                Step::Done(outcome) => return outcome,
            }
        }
    }

    /// Carries out the part of `operation` that is next when as much is `done`, at first nothing. No part is long.
    ///
    /// What makes something durable does it in a part of its own, the last: others read and write meanwhile, and one flush
    /// is enough for all that was written before it began.
    pub(crate) fn step(&self, operation: &Operation, done: u64) -> Step {
        let mut data = Pieces::new();
        let all = self.parts(operation);
        // What is left to do, and to be made durable by the next flush or a later one.
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
            Ok(Some(done)) => return Step::More(done),
            Ok(None) => Status::SUCCESS,
            Err(status) => status,
        };
        if status.code_type() == MEDIA_ERROR && status != Status::COMPARE_FAILURE {
            self.usage.media_errors.fetch_add(1, Ordering::Relaxed);
        }
        Step::Done(Outcome { status, data })
    }

    /// What that part needs for itself.
    pub(crate) fn span(&self, operation: &Operation, done: u64) -> Span {
        if done > self.parts(operation) {
            return Span { flushes: true, ..Span::default() };
        }
        let count = |data: &[Bytes]| data.iter().map(Bytes::len).sum::<usize>() as u64 / u64::from(self.block_size);
        let (blocks, writes, flushes) = match operation {
            Operation::Read { first, blocks } => (Some(*first..first + u64::from(*blocks)), false, false),
            Operation::Compare { first, data } => (Some(*first..first + count(data)), false, false),
            Operation::Verify { .. } => (self.part(operation, done), false, false),
            Operation::Write { first, data, .. } => (Some(*first..first + count(data)), true, false),
            Operation::WriteZeroes { .. } | Operation::Deallocate { .. } => (self.part(operation, done), true, false),
            Operation::Flush => (None, false, false),
            Operation::WriteUncorrectable { .. } => (None, false, true),
        };
        let blocks = blocks.unwrap_or_default();
        let (start, end, granule) = (self.offset(blocks.start), self.offset(blocks.end), self.storage.granule());
        Span { bytes: start - start % granule..end.next_multiple_of(granule), writes, flushes }
    }

    /// Who goes first among parts of operations.
    pub(crate) fn turns(&self) -> &Arc<Turns> {
        &self.turns
    }

    /// As much has to be done of `operation`, in blocks if it goes by parts, before it is made durable.
    fn parts(&self, operation: &Operation) -> u64 {
        match operation {
            Operation::WriteZeroes { blocks, .. } | Operation::Verify { blocks, .. } => u64::from(*blocks),
            Operation::Deallocate { ranges, .. } => ranges.iter().map(|range| range.end - range.start).sum(),
            _ => 0,
        }
    }

    /// The blocks of an operation that goes by parts that are next after `done` of them; `None`: there are no more.
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

    fn read(&self, first: u64, blocks: u32) -> Result<Pieces, Status> {
        if self.marks().overlap(first..first + u64::from(blocks)) {
            return Err(Status::UNRECOVERED_READ_ERROR);
        }
        let bytes = blocks as usize * self.block_size as usize;
        self.storage.read(self.offset(first), bytes).map_err(|_| Status::UNRECOVERED_READ_ERROR)
    }

    fn write(&self, first: u64, data: &[Bytes]) -> Result<(), Status> {
        self.check_writable()?;
        let bytes: usize = data.iter().map(Bytes::len).sum();
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

    /// Makes blocks readable that were written. Where that cannot be, all of them are marked and stay so: nobody sees
    /// what was written.
    fn heal(&self, blocks: Range<u64>) -> Result<(), Status> {
        if self.marks().clear(blocks) { Ok(()) } else { Err(Status::CAPACITY_EXCEEDED) }
    }

    /// One at a time: that data could not be written a system tells once, and the next caller that all is well.
    ///
    /// What was written is made durable, and then the marks as they were before: those that are gone since then mark what
    /// may not be durable, and what was there before it is not to be read.
    ///
    /// A flush that was done is enough if it has the number `first` or a later one: it began after what is to be durable
    /// was written.
    fn flush_since(&self, first: u64) -> Result<(), Status> {
        let _one = self.flushing.lock().unwrap_or_else(PoisonError::into_inner);
        self.check_writable()?;
        if self.flushes.done.load(Ordering::Acquire) >= first {
            return Ok(());
        }
        let number = self.flushes.begun.fetch_add(1, Ordering::AcqRel) + 1;
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

    /// Kept first, and marked when that is done: a command that fails has marked nothing.
    fn make_unreadable(&self, first: u64, blocks: u32) -> Result<(), Status> {
        let _one = self.flushing.lock().unwrap_or_else(PoisonError::into_inner);
        self.check_writable()?;
        let blocks = first..first + u64::from(blocks);
        let (marked, healed) = {
            let mut marks = self.marks();
            // What is marked is kept.
            if marks.contain(&blocks) {
                return Ok(());
            }
            let marked = marks.with(blocks.clone()).ok_or(Status::CAPACITY_EXCEEDED)?;
            (marked, marks.take_changed().is_some())
        };
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

    /// Has the storage keep these blocks, and what is behind the last one.
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

    fn marks(&self) -> MutexGuard<'_, Marks> {
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

/// A medium that has no room is not broken.
fn not_written(error: &io::Error) -> Status {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            Status::CAPACITY_EXCEEDED
        }
        _ => Status::WRITE_FAULT,
    }
}

/// Storage did not make durable what it was given: neither would it the next time, whatever it says then.
const IN_DOUBT: Status = Status::new(MEDIA_ERROR, Status::WRITE_FAULT.code(), true);
/// Bytes of one part of Verify, which reads them into memory, and of Write Zeroes.
const PART_BYTES: u32 = 1 << 20;
/// Bytes of one part of Deallocate, which makes holes.
const HOLE_BYTES: u32 = 1 << 30;
/// The greatest namespace identifier that names one namespace: MNAN.
pub(crate) const MAX_IDENTIFIER: u32 = 1024;
/// Status code type: media and data integrity errors.
const MEDIA_ERROR: u8 = 2;

#[cfg(test)]
mod durability;
#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // lists of one range
mod tests;
