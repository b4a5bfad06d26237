//! A disk test: seeded random writes, and reads that check the written data.
//!
//! Requires the feature `measure`.
//!
//! Invariant: expected data are computed, not stored. They follow from the seed, the block's number, and the number of
//! writes to the block.

use crate::core::queue::Buffer;
use crate::host::{CommandError, Disk, HostError};
use bytes::{Bytes, BytesMut};
use core::future::Future;
use core::pin::Pin;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use offload_base::cost::{self, WorkKind};
use offload_base::{Rng, Seed};

/// Parameters of a disk test.
///
/// ```
/// use nvme_tcp::host::Disk;
/// use nvme_tcp::exercise::{Exercise, ExerciseError, ExerciseReport};
/// use offload_base::Seed;
///
/// async fn test(disk: &Disk) -> Result<(), ExerciseError> {
///     let exercise = Exercise { bytes: 1 << 20, ..Exercise::new(Seed(7)) };
///     let report: ExerciseReport = exercise.run(disk, |done| println!("{done} bytes")).await?;
///     assert!(report.read_bytes + report.written_bytes >= 1 << 20);
///     Ok(())
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exercise {
    /// Seed of all random choices.
    pub seed: Seed,
    /// Bytes to write and read in total, without the final pass over all blocks.
    pub bytes: u64,
    /// Number of concurrent commands.
    pub depth: usize,
    /// Maximum bytes of a command.
    pub command_bytes: u32,
    /// Number of blocks to use, from the beginning of the disk.
    pub blocks: u64,
    /// Whether some ranges are set to zero by a command without data. Never done on a [volume](Disk::with_volume).
    pub zeroes: bool,
}

/// Counters of a finished test.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExerciseReport {
    /// Bytes written.
    pub written_bytes: u64,
    /// Bytes read and compared.
    pub read_bytes: u64,
    /// Commands of any kind.
    pub commands: u64,
}

/// Reason why a disk test failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExerciseError {
    /// A command failed.
    #[error("{0}")]
    Command(#[from] CommandError),
    /// A block does not hold the data last written to it.
    #[error("block {block} does not hold the data of write {write}, its last write (seed {seed})")]
    Differs {
        /// The first such block.
        block: u64,
        /// Number of the write to this block.
        write: u32,
        /// The seed.
        seed: u64,
    },
    /// The connection is lost.
    #[error("{0}")]
    Host(#[from] HostError),
}

impl Exercise {
    /// Creates a test of 64 MiB in commands of up to 128 KiB, 32 at a time, on the first 64 MiB of a disk.
    pub fn new(seed: Seed) -> Exercise {
        Exercise { seed, bytes: 64 << 20, depth: 32, command_bytes: 128 << 10, blocks: 16 << 10, zeroes: true }
    }

    /// Runs the test and a final pass that reads all blocks. `progress` is called with the bytes done so far.
    ///
    /// # Errors
    /// [`ExerciseError`]; running commands are abandoned.
    pub async fn run(self, disk: &Disk, mut progress: impl FnMut(u64)) -> Result<ExerciseReport, ExerciseError> {
        let blocks = self.blocks.min(disk.blocks()).max(1);
        let most = (self.command_bytes.min(disk.max_transfer()) / disk.block_size()).clamp(1, blocks as u32);
        let mut work = RunningExercise {
            rng: self.seed.stream("exercise"),
            seed: self.seed.0,
            disk,
            writes: vec![0; blocks as usize],
            busy: vec![false; blocks as usize],
            most,
            zeroes: self.zeroes && !disk.has_volume(),
            report: ExerciseReport::default(),
            under_way: FuturesUnordered::new(),
        };
        // Concurrent commands use disjoint ranges, so the expected data do not depend on their order.
        while work.bytes() < self.bytes {
            while work.under_way.len() < self.depth.max(1) && work.begin() {}
            work.end_one().await?;
            progress(work.bytes().min(self.bytes));
        }
        // The final pass must not overlap a write that is still running.
        while !work.under_way.is_empty() {
            work.end_one().await?;
        }
        let mut first = 0;
        while first < blocks || !work.under_way.is_empty() {
            while first < blocks && work.under_way.len() < self.depth.max(1) {
                let count = u64::from(most).min(blocks - first) as u32;
                work.read(first, count);
                first += u64::from(count);
            }
            work.end_one().await?;
        }
        Ok(work.report)
    }
}

type ExerciseStep = Pin<Box<dyn Future<Output = (BlockRange, Result<Option<Buffer>, CommandError>)> + Send>>;

#[derive(Clone, Copy)]
struct BlockRange {
    first: u64,
    count: u32,
}

struct RunningExercise<'a> {
    rng: Rng,
    seed: u64,
    disk: &'a Disk,
    /// Number of writes to each block, 0 if never written. The highest bit marks zeros.
    writes: Vec<u32>,
    busy: Vec<bool>,
    most: u32,
    zeroes: bool,
    report: ExerciseReport,
    under_way: FuturesUnordered<ExerciseStep>,
}

impl RunningExercise<'_> {
    fn bytes(&self) -> u64 {
        self.report.read_bytes + self.report.written_bytes
    }

    /// Begins a command on a range without a running command. Returns false if no such range was found.
    fn begin(&mut self) -> bool {
        let blocks = self.writes.len() as u64;
        for _ in 0..TRIES {
            let count = 1 + self.rng.below(u64::from(self.most)) as u32;
            let first = self.rng.below(blocks - u64::from(count) + 1);
            if self.busy[first as usize..][..count as usize].contains(&true) {
                continue;
            }
            match self.rng.below(32) {
                0 => self.flush(),
                1 if self.zeroes => self.write_zeroes(first, count),
                2..16 => self.read(first, count),
                _ => self.write(first, count),
            }
            return true;
        }
        false
    }

    fn flush(&mut self) {
        let flushing = self.disk.flush();
        let range = BlockRange { first: 0, count: 0 };
        self.under_way.push(Box::pin(async move { (range, flushing.await.map(|_| None)) }));
    }

    fn write_zeroes(&mut self, first: u64, count: u32) {
        for block in first..first + u64::from(count) {
            self.writes[block as usize] = (self.writes[block as usize] + 1) | ZEROS;
        }
        let writing = self.disk.write_zeroes(first, count);
        let range = self.take(first, count);
        self.under_way.push(Box::pin(async move { (range, writing.await.map(|_| None)) }));
    }

    fn write(&mut self, first: u64, count: u32) {
        let size = self.disk.block_size() as usize;
        let mut data = BytesMut::zeroed(size * count as usize);
        {
            let _scope = cost::work(WorkKind::Application);
            for (block, bytes) in (first..).zip(data.chunks_exact_mut(size)) {
                let writes = &mut self.writes[block as usize];
                *writes = (*writes & !ZEROS) + 1;
                fill(bytes, self.seed, block, *writes);
            }
        }
        let mut data = data.freeze();
        self.report.written_bytes += data.len() as u64;
        // Two parts, divided anywhere, so that data with odd boundaries are tested as well.
        let rest = data.split_off(self.rng.below(data.len() as u64) as usize);
        let writing = self.disk.write(first, [data, rest].into_iter().filter(|part: &Bytes| !part.is_empty()));
        let range = self.take(first, count);
        self.under_way.push(Box::pin(async move { (range, writing.await.map(|_| None)) }));
    }

    fn read(&mut self, first: u64, count: u32) {
        let bytes = self.disk.block_size() as usize * count as usize;
        self.report.read_bytes += bytes as u64;
        let cut = self.rng.below(bytes as u64) as usize;
        // Two parts that are neighbours in memory, so that a device may join their pieces.
        let mut whole = BytesMut::zeroed(bytes);
        let rest = whole.split_off(cut);
        let buffer = Buffer::from_parts([whole, rest]);
        let reading = self.disk.read(first, buffer);
        let range = self.take(first, count);
        self.under_way.push(Box::pin(async move {
            match reading.await {
                Ok(buffer) => (range, Ok(Some(buffer))),
                Err(failed) => (range, Err(failed.error)),
            }
        }));
    }

    fn take(&mut self, first: u64, count: u32) -> BlockRange {
        self.busy[first as usize..][..count as usize].fill(true);
        self.report.commands += 1;
        BlockRange { first, count }
    }

    async fn end_one(&mut self) -> Result<(), ExerciseError> {
        let Some((range, result)) = self.under_way.next().await else { return Ok(()) };
        self.busy[range.first as usize..][..range.count as usize].fill(false);
        if let Some(buffer) = result? {
            self.check(range, &buffer)?;
        }
        Ok(())
    }

    fn check(&self, range: BlockRange, buffer: &Buffer) -> Result<(), ExerciseError> {
        let _scope = cost::work(WorkKind::Application);
        let bytes = buffer.to_vec();
        let size = self.disk.block_size() as usize;
        let mut expected = vec![0; size];
        for (block, found) in (range.first..).zip(bytes.chunks_exact(size)) {
            let write = self.writes[block as usize];
            if write == 0 {
                continue;
            }
            expected.fill(0);
            if write & ZEROS == 0 {
                fill(&mut expected, self.seed, block, write);
            }
            if found != expected {
                return Err(ExerciseError::Differs { block, write: write & !ZEROS, seed: self.seed });
            }
        }
        Ok(())
    }
}

/// Fills `bytes` with the data of write number `write` to `block`.
fn fill(bytes: &mut [u8], seed: u64, block: u64, write: u32) {
    let mut state = seed ^ block.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(write) << 40;
    for word in bytes.chunks_mut(8) {
        // SplitMix64 (Steele, Lea, Flood 2014).
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        word.copy_from_slice(&mixed.to_le_bytes()[..word.len()]);
    }
}

/// Marks a block that was last set to zero.
const ZEROS: u32 = 1 << 31;
/// Number of attempts to find a free range.
const TRIES: usize = 64;
