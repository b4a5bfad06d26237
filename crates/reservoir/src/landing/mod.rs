//! A file being received: its bytes under a hidden name, with a journal beside them. The file gets its own name when
//! complete.
//!
//! Invariant: a block in the journal was on the medium before its line was written. The system reports a failed sync to
//! one caller only, and treats the lost bytes as synced afterwards. Therefore syncs run one at a time, and after a
//! failed sync all blocks being written count as lost, by whichever stream; they get no line and must be written again.
//! When a file is resumed, each journaled block is read from the medium. Blocks that differ from their line count as
//! missing: the journal saves transfers, but the medium decides.
//!
//! Several processes may write one file, each its own share of the blocks with its own journal. The process with the
//! first share creates the file, gathers the journals of the other shares, and renames the file.
//!
//! All calls block. `syncs`: syncs of the data; `shares`: shares of other processes; `names`: hidden names and the
//! final name.

mod names;
mod shares;
mod syncs;

pub(crate) use names::{lock_journal, secure_name};
pub use syncs::SyncEpoch;

use crate::attributes::Attributes;
use crate::blocks::{BlockHasher, BlockSum, Blocks, root};
use crate::digest::{DigestHasher, HashAlgorithm};
use crate::direct::aligned;
use crate::journal;
use crate::name::Name;
use crate::shell::Shell;
use crate::storage::{Folder, StoredFile, read_exactly};
use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};
use http_rules::{Preconditions, UnmetPrecondition};
use names::LandingState;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use syncs::Syncs;

/// A file being received.
///
/// ```
/// use offload_reservoir::blocks::{BlockHasher, Blocks};
/// use offload_reservoir::landing::{ResumeMode, LandingFile};
/// use offload_reservoir::name::Name;
/// use offload_reservoir::rooted::Rooted;
/// use std::sync::Arc;
///
/// # let there = tempfile::tempdir()?;
/// # let there = there.path();
/// let (folder, name) = (Arc::new(Rooted::open(there)?), Name::from_url("/film").unwrap());
/// let blocks = Blocks::new(1500, 1024).unwrap();
/// let landing = LandingFile::open(folder.clone(), &name, blocks, "the source's identity", ResumeMode::Resume)?;
/// for number in landing.missing() {
///     let (range, epoch) = (blocks.range(number), landing.epoch());
///     let bytes = vec![7; (range.end - range.start) as usize];
///     let mut hasher = BlockHasher::new(blocks, number);
///     hasher.update(&bytes);
///     landing.write(&bytes, range.start)?;
///     landing.done(number, hasher.finish(), epoch)?; // survives a kill from now on
/// }
/// assert!(!there.join("film").exists());
/// landing.finish(None)?;
/// assert_eq!(std::fs::read(there.join("film"))?, [7; 1500]);
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
pub struct LandingFile {
    folder: Arc<dyn Folder>,
    name: Name,
    blocks: Blocks,
    /// Identity of the source.
    source: String,
    /// Number of this process' share. Share 0 creates the file.
    share: u16,
    data: Arc<dyn StoredFile>,
    journal: Arc<dyn StoredFile>,
    state: Mutex<BlockState>,
    syncs: Syncs,
    end: Mutex<LandingState>,
    /// Whether runs of zeros become holes.
    leaves_holes: AtomicBool,
    attributes: Mutex<Attributes>,
    /// Preconditions that are evaluated again when the file is renamed.
    preconditions: Mutex<Preconditions>,
    /// The nine permission bits of the source.
    source_mode: Mutex<Option<u32>>,
}

struct BlockState {
    sums: BTreeMap<u64, BlockSum>,
    /// Offset of the next journal line.
    end: u64,
}

/// The treatment of an unfinished file.
///
/// See [`LandingFile`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResumeMode {
    /// Discard the unfinished file and start again.
    Anew,
    /// Resume if the journal has the same source; otherwise start again.
    Resume,
    /// Resume. It is an error if there is no unfinished file.
    Begun,
}

/// Error of receiving a file.
///
/// See [`LandingFile`] for an example.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LandingError {
    /// Another process is writing the file.
    #[error("{0} is being written by another process: wait for that, or choose another name")]
    Taken(Name),
    /// The upload was not begun, or is complete.
    #[error("the upload of {0} has not begun, or is done: begin it again")]
    NotBegun(Name),
    /// The name belongs to something other than a regular file.
    #[error("{0} is no regular file: choose another name")]
    NoFile(Name),
    /// Blocks are missing.
    #[error("{missing} blocks of {name} are missing")]
    Missing {
        /// The file.
        name: Name,
        /// Number of missing blocks.
        missing: u64,
    },
    /// The medium does not support the extended attributes.
    #[error("{0} cannot have its extended attributes here: {1}: leave xattrs out of what is preserved")]
    Attributes(Name, #[source] io::Error),
    /// The preconditions are not met: the name now belongs to another version, or to no file.
    #[error("{0}: {1}")]
    Unmet(Name, #[source] UnmetPrecondition),
    /// The medium or the system failed.
    #[error("{0}: {1}")]
    Medium(Name, #[source] io::Error),
}

impl LandingFile {
    /// Opens the unfinished file `name`. It is resumed if its journal has the same `blocks` and `source` and `begin`
    /// allows; otherwise it is started again.
    ///
    /// # Errors
    /// If another process is writing the file, or the medium fails.
    pub fn open(
        folder: Arc<dyn Folder>,
        name: &Name,
        blocks: Blocks,
        source: &str,
        begin: ResumeMode,
    ) -> Result<LandingFile, LandingError> {
        LandingFile::open_share(folder, name, blocks, source, begin, 0)
    }

    /// Opens one share of a file. The process with share 0 must have created the file.
    pub(crate) fn open_share(
        folder: Arc<dyn Folder>,
        name: &Name,
        blocks: Blocks,
        source: &str,
        begin: ResumeMode,
        share: u16,
    ) -> Result<LandingFile, LandingError> {
        let medium = |error| LandingError::Medium(name.clone(), error);
        if folder.about(name).is_ok_and(|about| about.kind != crate::storage::FileKind::File) {
            return Err(LandingError::NoFile(name.clone()));
        }
        if (begin == ResumeMode::Begun || share > 0) && folder.about(&name.unfinished()).is_err() {
            return Err(LandingError::NotBegun(name.clone()));
        }
        folder.create_folder(&name.folder()).map_err(medium)?;
        let journal = lock_journal(&*folder, name, share)?;
        let had_data = folder.about(&name.unfinished()).is_ok();
        let data = folder.open_or_create(&name.unfinished()).map_err(|error| {
            if !had_data {
                let _ = folder.remove(&name.journal_of(share));
            }
            medium(error)
        })?;
        let mut landing = LandingFile {
            folder,
            name: name.clone(),
            blocks,
            source: source.into(),
            share,
            data,
            journal,
            state: Mutex::new(BlockState { sums: BTreeMap::new(), end: 0 }),
            syncs: Syncs::default(),
            end: Mutex::new(LandingState::Open),
            leaves_holes: AtomicBool::new(false),
            attributes: Mutex::default(),
            preconditions: Mutex::default(),
            source_mode: Mutex::default(),
        };
        if begin != ResumeMode::Anew && had_data && landing.resume_from_journal().map_err(medium)? {
            return Ok(landing);
        }
        // The request belongs to another upload, and the present one stays.
        if begin == ResumeMode::Begun {
            return Err(LandingError::NotBegun(name.clone()));
        }
        if let Err(error) = landing.begin_anew(had_data) {
            // The disk is full or refuses this size. Without this, the hidden files would stay forever.
            let _ = landing.discard();
            return Err(medium(error));
        }
        Ok(landing)
    }

    /// Resumes the file by its journal. Returns `false` if the journal belongs to another upload.
    fn resume_from_journal(&self) -> io::Result<bool> {
        if let Some(text) = self.read_journal(&*self.journal)?
            && let Some(sums) = journal::read(&text, self.blocks, &self.source)
        {
            let mut state = self.state();
            // Terminates a torn last line.
            state.end = text.len() as u64;
            if !text.ends_with(b"\n") {
                self.journal.write_at(b"\n", state.end)?;
                state.end += 1;
            }
            state.sums = sums;
            drop(state);
            self.check()?;
            return Ok(true);
        }
        Ok(false)
    }

    fn begin_anew(&mut self, had_data: bool) -> io::Result<()> {
        // The journal is emptied first, because no line may refer to deleted bytes.
        self.journal.set_size(0)?;
        self.journal.sync()?;
        if self.share == 0 {
            if had_data {
                // Writers of the earlier upload may still have the old hidden file open. This upload gets a new file,
                // without the old attributes.
                self.folder.remove(&self.name.unfinished())?;
                self.data = self.folder.open_or_create(&self.name.unfinished())?;
            }
            self.data.set_size(self.blocks.size())?;
        }
        let heading = journal::heading(self.blocks, &self.source);
        self.journal.write_at(heading.as_bytes(), 0)?;
        // Without its heading the journal is ignored. Lines need no sync: losing a line costs one block.
        self.journal.sync()?;
        self.state().end = heading.len() as u64;
        Ok(())
    }

    /// Reads a journal. Returns `None` if the journal is empty or longer than any valid one.
    fn read_journal(&self, journal: &dyn StoredFile) -> io::Result<Option<Vec<u8>>> {
        let size = journal.about()?.size;
        if size == 0 || size > journal::most_bytes(self.blocks) {
            return Ok(None);
        }
        let mut text = vec![0; size as usize];
        read_exactly(journal, &mut text, 0)?;
        Ok(Some(text))
    }

    /// Returns the division into blocks.
    pub fn blocks(&self) -> Blocks {
        self.blocks
    }

    /// Returns the final name.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Returns the missing blocks.
    pub fn missing(&self) -> Vec<u64> {
        let state = self.state();
        (0..self.blocks.count()).filter(|number| !state.sums.contains_key(number)).collect()
    }

    /// Returns the checksums of a block, if the block is present.
    pub fn sum(&self, number: u64) -> Option<BlockSum> {
        self.state().sums.get(&number).copied()
    }

    /// Returns the number of present blocks.
    pub fn present(&self) -> u64 {
        self.state().sums.len() as u64
    }

    /// Returns the journal lines of the present blocks.
    pub(crate) fn lines(&self) -> String {
        self.state().sums.iter().map(|(number, sum)| journal::line(*number, sum)).collect()
    }

    /// Writes bytes of a missing block.
    ///
    /// # Errors
    /// If the medium fails or is full.
    pub fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if self.epoch() != SyncEpoch::default() {
            // On ext4, a rewritten lost page goes to its old extent, which the failed write has left marked as
            // unwritten. A file system mounted later would read zeros. Punching a hole releases the extent.
            self.data.write_zeros(offset, bytes.len() as u64)?;
        }
        if !self.leaves_holes.load(Ordering::Relaxed) {
            return self.data.write_at(bytes, offset);
        }
        let is_hole = |at: usize| bytes[at..bytes.len().min(at + PAGE)].iter().all(|byte| *byte == 0);
        let mut start = 0;
        while start < bytes.len() {
            let (hole, mut end) = (is_hole(start), start + PAGE);
            while end < bytes.len() && is_hole(end) == hole {
                end += PAGE;
            }
            let end = end.min(bytes.len());
            match hole {
                true => self.data.write_zeros(offset + start as u64, (end - start) as u64)?,
                false => self.data.write_at(&bytes[start..end], offset + start as u64)?,
            }
            start = end;
        }
        Ok(())
    }

    /// From now on, turns runs of zeros into holes, if the medium supports holes.
    pub fn leave_holes(&self) {
        self.leaves_holes.store(true, Ordering::Relaxed);
    }

    /// Sets the attributes that the file is to have. Extended attributes are set at once, so that an unsupported medium
    /// is reported before the transfer. In that case, a file without any blocks is discarded.
    ///
    /// # Errors
    /// If the medium does not support the attributes.
    pub fn keep(&self, attributes: Attributes) -> Result<(), LandingError> {
        if !attributes.extended.is_empty() {
            let extended = Attributes { mode: None, extended: attributes.extended.clone() };
            if let Err(error) = self.data.set_attributes(&extended) {
                if self.present() == 0 {
                    self.discard().map_err(|error| LandingError::Medium(self.name.clone(), error))?;
                }
                return Err(LandingError::Attributes(self.name.clone(), error));
            }
        }
        *self.attributes.lock().unwrap_or_else(PoisonError::into_inner) = attributes;
        Ok(())
    }

    /// Sets the preconditions of the final rename, replacing earlier ones. Empty preconditions change nothing.
    pub(crate) fn require(&self, preconditions: Preconditions) {
        if !preconditions.is_empty() {
            *self.preconditions() = preconditions;
        }
    }

    /// Returns the sync epoch of bytes written from now on.
    pub fn epoch(&self) -> SyncEpoch {
        self.syncs.epoch()
    }

    /// Waits until the bytes written since `epoch` are on the medium.
    ///
    /// # Errors
    /// If the medium fails, or has failed since `epoch`: the bytes must be written again.
    fn sync(&self, epoch: SyncEpoch) -> io::Result<()> {
        self.sync_to(self.syncs.next(), epoch)
    }

    /// Runs work that may sync on the pool of `shell`, one at a time. The work gets the number of the first sync that
    /// covers all bytes written before this call.
    ///
    /// The caller waits asynchronously. A pool thread must not wait, because in virtual time no thread may wait for
    /// another.
    pub(crate) async fn in_turn<T: Send + 'static>(
        self: &Arc<LandingFile>,
        shell: &Shell,
        work: impl FnOnce(&LandingFile, u64) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let enough = self.syncs.next();
        let turn = self.syncs.take_turn().await;
        let landing = self.clone();
        let done = shell.blocking(move || {
            let done = work(&landing, enough);
            // If the caller is dropped, the work continues and keeps its turn.
            drop(turn);
            done
        });
        done.await
    }

    /// Waits until the bytes written since `epoch` and before sync number `enough` are on the medium.
    ///
    /// # Errors
    /// If the medium fails, or has failed since `epoch`: the bytes must be written again.
    pub(crate) fn sync_to(&self, enough: u64, epoch: SyncEpoch) -> io::Result<()> {
        self.syncs.sync_to(&*self.data, enough, epoch)
    }

    /// Completes a block written entirely since `epoch`: syncs the block and appends its journal line.
    ///
    /// # Errors
    /// If the medium fails, or has failed since `epoch`: the block must be written again.
    pub fn done(&self, number: u64, sum: BlockSum, epoch: SyncEpoch) -> io::Result<()> {
        self.done_to(self.syncs.next(), number, sum, epoch)
    }

    /// Completes a block written before sync number `enough`; see [`done`](Self::done).
    ///
    /// # Errors
    /// See [`done`](Self::done).
    pub(crate) fn done_to(&self, enough: u64, number: u64, sum: BlockSum, epoch: SyncEpoch) -> io::Result<()> {
        // The line must follow the sync, because a line promises that its block is on the medium.
        self.sync_to(enough, epoch)?;
        let line = journal::line(number, &sum);
        let mut state = self.state();
        self.journal.write_at(line.as_bytes(), state.end)?;
        state.end += line.len() as u64;
        state.sums.insert(number, sum);
        Ok(())
    }

    /// Records a written block of a file that is never resumed, without a journal line. The block is not synced, so if
    /// [`finish`](Self::finish) fails, the file must be [discarded](Self::discard).
    pub(crate) fn note(&self, number: u64, sum: BlockSum) {
        self.state().sums.insert(number, sum);
    }

    /// Computes the checksums of a block from the medium.
    ///
    /// # Errors
    /// If the medium fails.
    pub fn read_back(&self, number: u64) -> io::Result<BlockSum> {
        let mut hasher = BlockHasher::new(self.blocks, number);
        self.read_pieces(self.blocks.range(number), |piece| hasher.update(piece))?;
        Ok(hasher.finish())
    }

    /// Computes digests of a range of the file from the medium.
    ///
    /// # Errors
    /// If the medium fails.
    pub(crate) fn digests(
        &self,
        range: Range<u64>,
        algorithms: &[HashAlgorithm],
    ) -> io::Result<Vec<(HashAlgorithm, Vec<u8>)>> {
        let mut summers: Vec<_> =
            algorithms.iter().map(|algorithm| (*algorithm, DigestHasher::new(*algorithm))).collect();
        self.read_pieces(range, |piece| summers.iter_mut().for_each(|(_, summer)| summer.update(piece)))?;
        Ok(summers.into_iter().map(|(algorithm, summer)| (algorithm, summer.finish())).collect())
    }

    fn read_pieces(&self, range: Range<u64>, mut take: impl FnMut(&[u8])) -> io::Result<()> {
        let mut piece = aligned((PIECE as u64).min(range.end - range.start) as usize);
        let mut at = range.start;
        while at < range.end {
            let part = &mut piece[..(PIECE as u64).min(range.end - at) as usize];
            read_exactly(&*self.data, part, at)?;
            take(part);
            at += part.len() as u64;
        }
        Ok(())
    }

    /// Reads every present block from the medium. Blocks that differ from their checksums, or cannot be read, count as
    /// missing from now on. Returns their numbers.
    ///
    /// # Errors
    /// If the medium cannot be written.
    pub fn check(&self) -> io::Result<Vec<u64>> {
        self.sync(self.epoch())?;
        self.data.drop_cache();
        let sums = self.state().sums.clone();
        let differs = |(number, sum): &(u64, BlockSum)| !self.read_back(*number).is_ok_and(|read| read == *sum);
        let lost: Vec<u64> = sums.into_iter().filter(differs).map(|(number, _)| number).collect();
        let mut state = self.state();
        state.sums.retain(|number, _| lost.binary_search(number).is_err());
        // Withdraws the old lines. Otherwise a block that is written again and lost by a failed sync would match its
        // old line while cached.
        let withdrawn: String = lost.iter().map(|number| journal::line(*number, &journal::WITHDRAWN)).collect();
        self.journal.write_at(withdrawn.as_bytes(), state.end)?;
        state.end += withdrawn.len() as u64;
        Ok(lost)
    }

    /// Returns the BLAKE3 hash of the file, if all blocks are present.
    pub fn root(&self) -> Option<[u8; 32]> {
        let state = self.state();
        let all = state.sums.len() as u64 == self.blocks.count();
        all.then(|| root(&state.sums.values().copied().collect::<Vec<_>>()))
    }

    fn preconditions(&self) -> MutexGuard<'_, Preconditions> {
        self.preconditions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self) -> MutexGuard<'_, LandingState> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, BlockState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A multiple of the hole size of common file systems.
const PAGE: usize = 16 << 10;
/// Bytes per read.
const PIECE: usize = 1 << 20;

#[cfg(test)]
mod tests;
