//! The copy of one file: opened at both ends, copied block by block by any number of streams, and renamed at the end.

use super::list::CopyItem;
use super::place::CopyEnd;
use super::presence::{has_anything, is_present};
use super::source::{self, BlockSource, keeps_no_attributes};
use super::target::{self, BlockTarget};
use super::{Copy, CopyError};
use crate::attributes::{Attributes, Preserve};
use crate::blocks::{BlockSum, Blocks};
use crate::remote::RemoteError;
use core::ops::Range;
use core::time::Duration;
use hyper::StatusCode;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// A file being copied.
pub(super) struct FileJob {
    pub(super) copy: Copy,
    pub(super) item: CopyItem,
    pub(super) blocks: Blocks,
    pub(super) source: Box<dyn BlockSource>,
    target: Box<dyn BlockTarget>,
    pub(super) attributes: Attributes,
    /// The mode of the source. For a source on a server, set by the first response that tells it.
    pub(super) mode: OnceLock<u32>,
    state: Mutex<FileJobState>,
}

/// A block to copy: one of the file's blocks, or the whole file as number 0.
#[derive(Clone)]
pub(super) struct FileBlock {
    pub(super) number: u64,
    pub(super) range: Range<u64>,
    pub(super) stream: usize,
}

struct FileJobState {
    waiting: VecDeque<u64>,
    left: u64,
    sums: BTreeMap<u64, BlockSum>,
    attempts: u32,
    ended: bool,
}

/// The outcome of opening a file.
pub(super) enum OpenOutcome {
    Present,
    /// The job, and the bytes already present.
    Job(Arc<FileJob>, u64),
}

/// The outcome of finishing a file.
pub(super) enum FinishOutcome {
    Done,
    /// This number of blocks was wrong and must be sent again.
    Again(u64),
    LeftToOthers,
}

impl FileJob {
    pub(super) async fn open(copy: &Copy, item: CopyItem) -> Result<OpenOutcome, CopyError> {
        if !copy.replaces && has_anything(copy, &item).await? {
            return Err(CopyError::Exists(item.to.0.shown(&item.to.1)));
        }
        if is_present(copy, &item).await? {
            return Ok(OpenOutcome::Present);
        }
        let mode = OnceLock::new();
        let source = source::open(copy, &item, &mode).await?;
        let attributes = FileJob::attributes(copy, &item, &*source).await?;
        let blocks = Blocks::new(item.size(), copy.block).expect("checked where it was set");
        let (target, present) = target::open(copy, &item, blocks, &*source, &attributes).await?;
        let mut waiting: VecDeque<u64> = match target.takes_whole_file() || !source.has_ranges() {
            // A target or a source without ranges needs the whole file in one request.
            true => [0].into(),
            false => (0..blocks.count()).filter(|number| !present.contains_key(number)).collect(),
        };
        // In a planned copy, other parts copy the remaining blocks.
        waiting.retain(|number| item.has(*number));
        let resumed = present.keys().map(|number| blocks.range(*number)).map(|range| range.end - range.start).sum();
        let left = waiting.len() as u64;
        let state = Mutex::new(FileJobState { waiting, left, sums: present, attempts: 0, ended: false });
        let copy = copy.clone();
        Ok(OpenOutcome::Job(Arc::new(FileJob { copy, item, blocks, source, target, attributes, mode, state }), resumed))
    }

    /// Reads the attributes to copy with the file.
    async fn attributes(copy: &Copy, item: &CopyItem, source: &dyn BlockSource) -> Result<Attributes, CopyError> {
        if copy.preserve.is_empty() {
            return Ok(Attributes::default());
        }
        match &item.to.0 {
            CopyEnd::Remote(server, _) if !server.is_reservoir().await? => Err(keeps_no_attributes(&item.to)),
            _ => source.attributes(copy, item).await,
        }
    }

    /// Takes the next waiting block.
    pub(super) fn take(&self) -> Option<u64> {
        self.state().waiting.pop_front()
    }

    /// Returns the number of blocks of a stream that should be in flight: two, and as many as the stream can carry
    /// within one round trip.
    pub(super) async fn depth(&self, stream: usize) -> usize {
        let Some(server) = self.target.pipelined(self, stream) else { return 1 };
        let round_trip = server.round_trip(stream).await.unwrap_or(Duration::ZERO);
        let bytes = round_trip.as_nanos() * FASTEST_STREAM / 8_000_000_000;
        let blocks =
            bytes.div_ceil(u128::from(self.copy.block)).min(MAX_BYTES_AHEAD.div_ceil(u128::from(self.copy.block)));
        // Two, because one block arrives while the other is written.
        2 + usize::try_from(blocks).unwrap_or(0).min(MAX_BLOCKS_AHEAD)
    }

    /// Returns the number of waiting blocks.
    pub(super) fn waiting(&self) -> usize {
        self.state().waiting.len()
    }

    /// Records a copied block. Returns whether it was the last.
    pub(super) fn is_last(&self) -> bool {
        let mut state = self.state();
        state.left = state.left.saturating_sub(1);
        state.left == 0
    }

    /// Returns whether no blocks are left to copy.
    pub(super) fn has_nothing_left(&self) -> bool {
        self.state().left == 0
    }

    /// Ends the file, as failed or done. Returns false if it was ended before.
    pub(super) fn end(&self) -> bool {
        let mut state = self.state();
        state.waiting.clear();
        // Several blocks may fail, and the file must be reported once.
        !core::mem::replace(&mut state.ended, true)
    }

    /// Copies a block.
    pub(super) async fn transfer(&self, number: u64, stream: usize) -> Result<(), CopyError> {
        let range = match self.target.takes_whole_file() || !self.source.has_ranges() {
            true => 0..self.blocks.size(),
            false => self.blocks.range(number),
        };
        self.target.transfer(self, FileBlock { number, range, stream }).await
    }

    /// Returns whether a server no longer knows the upload, because the server was restarted or another part ended the
    /// upload.
    pub(super) fn is_forgotten(&self, error: &CopyError) -> bool {
        let is_gone = matches!(error, CopyError::Remote(RemoteError::Refused { status: StatusCode::GONE, .. }));
        is_gone && self.target.can_resume()
    }

    /// Makes a server resume the upload from its journal. Returns `true` if the file is complete already.
    pub(super) async fn resume_upload(&self) -> Result<bool, CopyError> {
        self.target.resume(self).await
    }

    /// Completes the file after all blocks were copied: renames it, unless some blocks are wrong.
    pub(super) async fn finish(&self) -> Result<FinishOutcome, CopyError> {
        self.target.finish(self).await
    }

    /// Returns the mode of the source. If no response has told the mode, its server is asked now.
    pub(super) async fn source_mode(&self) -> Result<Option<u32>, CopyError> {
        match self.source.server() {
            // An empty or resumed file may complete without a response that has the mode.
            Some(server) if self.item.is_reservoir && self.mode.get().is_none() => {
                let told = server.attributes(&self.item.from.1, Preserve { mode: true, extended: false }).await?;
                Ok(told.and_then(|told| told.mode))
            }
            _ => Ok(self.mode.get().copied()),
        }
    }

    /// Schedules these blocks to be copied again.
    pub(super) fn again(&self, lost: Vec<u64>) -> Result<FinishOutcome, CopyError> {
        let count = lost.len() as u64;
        let mut state = self.state();
        state.attempts += 1;
        // A medium that fails repeatedly would otherwise keep the copy running forever.
        if state.attempts >= ATTEMPTS {
            return Err(CopyError::Unhealed(self.item.to.0.shown(&self.item.to.1), count));
        }
        state.sums.retain(|number, _| lost.binary_search(number).is_err());
        // Without ranges, the whole file must be read again.
        let lost = if self.source.has_ranges() { lost } else { vec![0] };
        state.left = lost.len() as u64;
        state.waiting.extend(lost);
        Ok(FinishOutcome::Again(count))
    }

    /// Records the checksums of a block at the destination.
    pub(super) fn add_sum(&self, number: u64, sum: BlockSum) {
        self.state().sums.insert(number, sum);
    }

    /// Returns the checksums of the blocks at the destination, in order.
    pub(super) fn sums(&self) -> Vec<BlockSum> {
        self.state().sums.values().copied().collect()
    }

    /// Returns the error of a destination that must not be replaced.
    pub(super) fn exists(&self) -> CopyError {
        CopyError::Exists(self.item.to.0.shown(&self.item.to.1))
    }

    pub(super) fn unproved(&self, why: &'static str) -> CopyError {
        CopyError::Unproved(self.item.source(), why)
    }

    fn state(&self) -> MutexGuard<'_, FileJobState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Number of attempts to repair a file after reading it back.
const ATTEMPTS: u32 = 3;
/// A rate in bits per second that a single stream hardly exceeds: a window of 1 GiB per half second.
const FASTEST_STREAM: u128 = 16_000_000_000;
/// Maximum number of bytes requested in advance: the largest TCP window (RFC 7323 section 2.3).
const MAX_BYTES_AHEAD: u128 = 1 << 30;
/// Maximum number of blocks requested in advance, for small blocks.
const MAX_BLOCKS_AHEAD: usize = 256;
