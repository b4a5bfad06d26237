//! A file that is arriving: its bytes under a name of its own, its journal beside it, its own name only once it is whole.
//!
//! Invariant: a block that the journal vouches for was on the medium before its line was written. A failed sync is reported to one caller
//! only, and the lost bytes count as synced from then on; so syncs run one at a time, and after a failed one every block that was being
//! written is lost, whichever stream writes it: it has no line, and must be written again. When a file is taken up again,
//! each of these blocks is read from the medium, and those that differ from their line count as missing: the journal saves
//! sending, and is never believed over the medium.
//!
//! Several processes may write one file, each its share of the blocks, with a journal of its own: the first one makes the file and gives it its
//! name, after it has gathered what the journals of the others vouch for.
//!
//! All calls block.

use crate::attributes::Attributes;
use crate::blocks::{BlockHasher, BlockSum, Blocks, root};
use crate::digest::{Algorithm, Summer};
use crate::direct::aligned;
use crate::journal;
use crate::name::Name;
use crate::shell::Shell;
use crate::storage::{self, Folder, Rights, Stored, read_exactly};
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use http_rules::{Preconditions, Unmet};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

/// A file that is arriving.
///
/// ```
/// use offload_reservoir::blocks::{BlockHasher, Blocks};
/// use offload_reservoir::landing::{Begin, Landing};
/// use offload_reservoir::name::Name;
/// use offload_reservoir::rooted::Rooted;
/// use std::sync::Arc;
///
/// # let there = tempfile::tempdir()?;
/// # let there = there.path();
/// let (folder, name) = (Arc::new(Rooted::open(there)?), Name::from_url("/film").unwrap());
/// let blocks = Blocks::new(1500, 1024).unwrap();
/// let landing = Landing::open(folder.clone(), &name, blocks, "whence it comes", Begin::Resume)?;
/// for number in landing.missing() {
///     let (range, epoch) = (blocks.range(number), landing.epoch());
///     let bytes = vec![7; (range.end - range.start) as usize];
///     let mut hasher = BlockHasher::new(blocks, number);
///     hasher.update(&bytes);
///     landing.write(&bytes, range.start)?;
///     landing.done(number, hasher.finish(), epoch)?; // from now on a kill does not cost it
/// }
/// assert!(!there.join("film").exists());
/// landing.finish(None)?;
/// assert_eq!(std::fs::read(there.join("film"))?, [7; 1500]);
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
pub struct Landing {
    folder: Arc<dyn Folder>,
    name: Name,
    blocks: Blocks,
    /// Whence it comes.
    source: String,
    /// Which share of it this is: the first makes the file.
    share: u16,
    data: Arc<dyn Stored>,
    journal: Arc<dyn Stored>,
    state: Mutex<State>,
    syncs: Syncs,
    end: Mutex<End>,
    /// Whether runs of zeros become holes.
    leaves_holes: AtomicBool,
    attributes: Mutex<Attributes>,
    /// Preconditions that are evaluated again when the file gets its name.
    preconditions: Mutex<Preconditions>,
    /// The rights of the source: nine bits.
    source_mode: Mutex<Option<u32>>,
}

/// Syncs of the data, numbered from 1 as they begin.
#[derive(Default)]
struct Syncs {
    begun: AtomicU64,
    failed: AtomicU64,
    /// The number of the last sync that succeeded. The lock is held during a sync.
    done: Mutex<u64>,
    /// The turn of the work that may sync: see [`Landing::in_turn`].
    turn: Arc<tokio::sync::Mutex<()>>,
}

/// The number of failed syncs of a [`Landing`] before a write. If that number grows before the next sync that succeeds, the write is lost.
///
/// See [`Landing`] for an example.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SyncEpoch(u64);

struct State {
    sums: BTreeMap<u64, BlockSum>,
    /// Where the next line of the journal goes.
    end: u64,
}

/// What became of its hidden names, which another one may have since.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Open,
    /// The file has its name and these rights, but the name may not be on the medium.
    Renamed(Rights),
    Finished,
    Discarded,
}

/// What is made of what is there of a file.
///
/// See [`Landing`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// Nothing: it begins anew.
    Anew,
    /// It goes on, if it is of the same source.
    Resume,
    /// It goes on; a file that has not begun is an error.
    Begun,
}

/// Why a file cannot arrive.
///
/// See [`Landing`] for an example.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LandingError {
    /// Another process writes it.
    #[error("{0} is being written by another process: wait for that, or choose another name")]
    Taken(Name),
    /// It has not begun, or is done.
    #[error("the upload of {0} has not begun, or is done: begin it again")]
    NotBegun(Name),
    /// There is something that is no file.
    #[error("{0} is no regular file: choose another name")]
    NoFile(Name),
    /// Blocks are missing.
    #[error("{missing} blocks of {name} are missing")]
    Missing {
        /// The file.
        name: Name,
        /// How many.
        missing: u64,
    },
    /// The medium does not take its extended attributes.
    #[error("{0} cannot have its extended attributes here: {1}: leave xattrs out of what is preserved")]
    Attributes(Name, #[source] io::Error),
    /// The preconditions are not met: the name belongs to another version now, or to no file.
    #[error("{0}: {1}")]
    Unmet(Name, #[source] Unmet),
    /// The medium, or the system.
    #[error("{0}: {1}")]
    Medium(Name, #[source] io::Error),
}

impl Landing {
    /// Takes up the file `name` again, if there is a journal of the same file (`blocks`, `source`) and `begin` has it so; begins anew
    /// otherwise.
    ///
    /// # Errors
    /// If another process has it, or the medium fails.
    pub fn open(
        folder: Arc<dyn Folder>,
        name: &Name,
        blocks: Blocks,
        source: &str,
        begin: Begin,
    ) -> Result<Landing, LandingError> {
        Landing::open_share(folder, name, blocks, source, begin, 0)
    }

    /// The same for a share of the file, which the first has begun.
    pub(crate) fn open_share(
        folder: Arc<dyn Folder>,
        name: &Name,
        blocks: Blocks,
        source: &str,
        begin: Begin,
        share: u16,
    ) -> Result<Landing, LandingError> {
        let medium = |error| LandingError::Medium(name.clone(), error);
        if folder.about(name).is_ok_and(|about| about.kind != crate::storage::Kind::File) {
            return Err(LandingError::NoFile(name.clone()));
        }
        if (begin == Begin::Begun || share > 0) && folder.about(&name.unfinished()).is_err() {
            return Err(LandingError::NotBegun(name.clone()));
        }
        folder.create_folder(&name.folder()).map_err(medium)?;
        let journal = lock_journal(&*folder, name, share)?;
        let had_data = folder.about(&name.unfinished()).is_ok();
        let data = folder.open_or_create(&name.unfinished()).map_err(|error| {
            if !had_data {
                let _first_error_counts = folder.remove(&name.journal_of(share));
            }
            medium(error)
        })?;
        let mut landing = Landing {
            folder,
            name: name.clone(),
            blocks,
            source: source.into(),
            share,
            data,
            journal,
            state: Mutex::new(State { sums: BTreeMap::new(), end: 0 }),
            syncs: Syncs::default(),
            end: Mutex::new(End::Open),
            leaves_holes: AtomicBool::new(false),
            attributes: Mutex::default(),
            preconditions: Mutex::default(),
            source_mode: Mutex::default(),
        };
        if begin != Begin::Anew && had_data && landing.take_up().map_err(medium)? {
            return Ok(landing);
        }
        // The request belongs to another upload, and the present one stays.
        if begin == Begin::Begun {
            return Err(LandingError::NotBegun(name.clone()));
        }
        if let Err(error) = landing.begin_anew(had_data) {
            // The disk is full, or takes no file of this size: without this the hidden files would stay for ever.
            let _first_error_counts = landing.discard();
            return Err(medium(error));
        }
        Ok(landing)
    }

    /// Resumes the file by its journal. Returns `false` if the journal belongs to another upload.
    fn take_up(&self) -> io::Result<bool> {
        if let Some(text) = self.read_journal(&*self.journal)?
            && let Some(sums) = journal::read(&text, self.blocks, &self.source)
        {
            let mut state = self.state();
            // A line that was torn ends here.
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
        // Lines first: none may vouch for bytes that are gone.
        self.journal.set_size(0)?;
        self.journal.sync()?;
        if self.share == 0 {
            if had_data {
                // Writers of the earlier upload still have the old hidden file open, so this upload gets a new file, without the old attributes.
                self.folder.remove(&self.name.unfinished())?;
                self.data = self.folder.open_or_create(&self.name.unfinished())?;
            }
            self.data.set_size(self.blocks.size())?;
        }
        let heading = journal::heading(self.blocks, &self.source);
        self.journal.write_at(heading.as_bytes(), 0)?;
        // Without it no line counts. Lines need no sync: to lose one is to send a block again.
        self.journal.sync()?;
        self.state().end = heading.len() as u64;
        Ok(())
    }

    /// A journal of the file, unless it is empty, or longer than one can be.
    fn read_journal(&self, journal: &dyn Stored) -> io::Result<Option<Vec<u8>>> {
        let size = journal.about()?.size;
        if size == 0 || size > journal::most_bytes(self.blocks) {
            return Ok(None);
        }
        let mut text = vec![0; size as usize];
        read_exactly(journal, &mut text, 0)?;
        Ok(Some(text))
    }

    /// Takes over what the journals of the other shares vouch for, of so many in all, and what this file has: one of them may have written to
    /// a file before it. Those who wrote them must be done.
    ///
    /// # Errors
    /// If another process still has one, or the medium fails.
    pub(crate) fn gather(&self, shares: u16) -> Result<(), LandingError> {
        // From the last on: what a kill leaves of them begins with the first, and is found by that.
        self.gather_beyond(shares)?;
        for share in (1..shares).rev() {
            self.take_over(share, &*lock_journal(&*self.folder, &self.name, share)?)?;
        }
        Ok(())
    }

    /// The same of the shares that an earlier copy had, by more servers than the `shares` of this one. Those that another process still has
    /// are left.
    ///
    /// # Errors
    /// If the medium fails.
    pub(crate) fn gather_beyond(&self, shares: u16) -> Result<(), LandingError> {
        let is_there = |share: &u16| self.folder.about(&self.name.journal_of(*share)).is_ok();
        let there: Vec<u16> = (shares.max(1)..).take_while(is_there).collect();
        for share in there.into_iter().rev() {
            match lock_journal(&*self.folder, &self.name, share) {
                Err(LandingError::Taken(_)) => {}
                journal => self.take_over(share, &*journal?)?,
            }
        }
        Ok(())
    }

    fn take_over(&self, share: u16, journal: &dyn Stored) -> Result<(), LandingError> {
        let medium = |error| LandingError::Medium(self.name.clone(), error);
        let text = self.read_journal(journal).map_err(medium)?;
        let sums = text.and_then(|text| journal::read(&text, self.blocks, &self.source)).unwrap_or_default();
        let there = |(number, sum): &(u64, BlockSum)| {
            self.sum(*number).is_none() && self.read_back(*number).is_ok_and(|read| read == *sum)
        };
        let new: Vec<_> = sums.into_iter().filter(there).collect();
        if !new.is_empty() {
            let mut state = self.state();
            state.sums.extend(new.iter().copied());
            let lines: String = new.iter().map(|(number, sum)| journal::line(*number, sum)).collect();
            self.journal.write_at(lines.as_bytes(), state.end).map_err(medium)?;
            state.end += lines.len() as u64;
            drop(state);
            // Before the other journal goes: this one has its lines then.
            self.journal.sync().map_err(medium)?;
        }
        self.folder.remove(&self.name.journal_of(share)).map_err(medium)
    }

    /// How it is cut.
    pub fn blocks(&self) -> Blocks {
        self.blocks
    }

    /// Its name, once it is whole.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// The blocks that are not there.
    pub fn missing(&self) -> Vec<u64> {
        let state = self.state();
        (0..self.blocks.count()).filter(|number| !state.sums.contains_key(number)).collect()
    }

    /// The checksums of a block that is there.
    pub fn sum(&self, number: u64) -> Option<BlockSum> {
        self.state().sums.get(&number).copied()
    }

    /// How many blocks are there.
    pub fn present(&self) -> u64 {
        self.state().sums.len() as u64
    }

    /// The lines of the blocks that are there, as the journal has them.
    pub(crate) fn lines(&self) -> String {
        self.state().sums.iter().map(|(number, sum)| journal::line(*number, sum)).collect()
    }

    /// Writes bytes of a block that is not there yet.
    ///
    /// # Errors
    /// If the medium fails, or is full.
    pub fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if self.epoch() != SyncEpoch::default() {
            // On ext4, a lost page that is written again goes to its old extent, which the failed write has left marked as unwritten: a
            // file system mounted later reads zeros. A hole gives the extent up.
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

    /// From now on runs of zeros become holes, where the medium has such.
    pub fn leave_holes(&self) {
        self.leaves_holes.store(true, Ordering::Relaxed);
    }

    /// The file is to have these. Extended ones it gets now, so that a medium that does not take them says so before the bytes come; of a
    /// file that has none of its blocks nothing is left then.
    ///
    /// # Errors
    /// If the medium does not take them.
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

    /// Sets the preconditions under which the file gets its name, instead of earlier ones. Empty preconditions change nothing.
    pub(crate) fn require(&self, preconditions: Preconditions) {
        if !preconditions.is_empty() {
            *self.preconditions() = preconditions;
        }
    }

    /// Returns the epoch of bytes that are written from now on.
    pub fn epoch(&self) -> SyncEpoch {
        SyncEpoch(self.syncs.failed.load(Ordering::Acquire))
    }

    /// Returns when the bytes that were written since `epoch` are on the medium.
    ///
    /// # Errors
    /// If the medium fails, or has failed since `epoch`: the bytes must be written again.
    fn sync(&self, epoch: SyncEpoch) -> io::Result<()> {
        self.sync_to(self.next_sync(), epoch)
    }

    /// Returns the number of the first sync that covers all bytes written so far, whichever caller makes that sync.
    fn next_sync(&self) -> u64 {
        self.syncs.begun.load(Ordering::Acquire) + 1
    }

    /// Runs work that may sync on the pool of `shell`, one at a time. The work gets the number of the first sync that covers all bytes written
    /// before this call.
    ///
    /// The caller waits here, and no thread of the pool waits, because a thread in virtual time must not wait for another thread.
    pub(crate) async fn in_turn<T: Send + 'static>(
        self: &Arc<Landing>,
        shell: &Shell,
        work: impl FnOnce(&Landing, u64) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let enough = self.next_sync();
        let turn = self.syncs.turn.clone().lock_owned().await;
        let landing = self.clone();
        let done = shell.blocking(move || {
            let done = work(&landing, enough);
            // If the caller is dropped, the work goes on and keeps its turn.
            drop(turn);
            done
        });
        done.await
    }

    /// Returns when the bytes that were written since `epoch`, and before sync number `enough`, are on the medium.
    ///
    /// # Errors
    /// If the medium fails, or has failed since `epoch`: the bytes must be written again.
    pub(crate) fn sync_to(&self, enough: u64, epoch: SyncEpoch) -> io::Result<()> {
        // Syncs run one at a time: of two at once, the system would report a failed write to one and success to the other.
        let mut done = self.syncs.done.lock().unwrap_or_else(PoisonError::into_inner);
        if self.epoch() != epoch {
            return Err(io::Error::other("the medium failed while this was written: it must be written again"));
        }
        if *done < enough {
            let number = self.syncs.begun.fetch_add(1, Ordering::AcqRel) + 1;
            if let Err(error) = self.data.sync() {
                self.syncs.failed.fetch_add(1, Ordering::AcqRel);
                return Err(error);
            }
            *done = number;
        }
        Ok(())
    }

    /// Sets the rights of the source. The file gets the bits that the process' umask leaves, unless it replaces a file, whose rights it takes
    /// over, or [has](Self::keep) a mode of its own.
    pub fn inherit(&self, mode: u32) {
        *self.source_mode.lock().unwrap_or_else(PoisonError::into_inner) = Some(mode);
    }

    /// Records that a block is written, all of it since `epoch`. Once the block is on the medium, the journal gets its line.
    ///
    /// # Errors
    /// If the medium fails, or has failed since `epoch`: the block must be written again.
    pub fn done(&self, number: u64, sum: BlockSum, epoch: SyncEpoch) -> io::Result<()> {
        self.done_to(self.next_sync(), number, sum, epoch)
    }

    /// Does [`done`](Self::done) for a block that was written before sync number `enough`.
    ///
    /// # Errors
    /// See [`done`](Self::done).
    pub(crate) fn done_to(&self, enough: u64, number: u64, sum: BlockSum, epoch: SyncEpoch) -> io::Result<()> {
        self.sync_to(enough, epoch)?;
        let line = journal::line(number, &sum);
        let mut state = self.state();
        self.journal.write_at(line.as_bytes(), state.end)?;
        state.end += line.len() as u64;
        state.sums.insert(number, sum);
        Ok(())
    }

    /// Records that a block of a file that is never resumed is written, without a line in the journal. No sync has covered the block, so if
    /// [`finish`](Self::finish) fails, the file must be [discarded](Self::discard).
    pub(crate) fn note(&self, number: u64, sum: BlockSum) {
        self.state().sums.insert(number, sum);
    }

    /// The checksums of a block as the medium has it.
    ///
    /// # Errors
    /// If the medium fails.
    pub fn read_back(&self, number: u64) -> io::Result<BlockSum> {
        let mut hasher = BlockHasher::new(self.blocks, number);
        self.read_pieces(self.blocks.range(number), |piece| hasher.update(piece))?;
        Ok(hasher.finish())
    }

    /// Returns the digests of a range of the file, read from the medium.
    ///
    /// # Errors
    /// If the medium fails.
    pub(crate) fn digests(&self, range: Range<u64>, algorithms: &[Algorithm]) -> io::Result<Vec<(Algorithm, Vec<u8>)>> {
        let mut summers: Vec<_> = algorithms.iter().map(|algorithm| (*algorithm, Summer::new(*algorithm))).collect();
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

    /// Reads every block that is there from the medium. Those that differ count as missing from now on; gives their numbers.
    ///
    /// # Errors
    /// If the medium cannot be written; a block that cannot be read counts as one that differs.
    pub fn check(&self) -> io::Result<Vec<u64>> {
        self.sync(self.epoch())?;
        self.data.drop_cache();
        let sums = self.state().sums.clone();
        let differs = |(number, sum): &(u64, BlockSum)| !self.read_back(*number).is_ok_and(|read| read == *sum);
        let lost: Vec<u64> = sums.into_iter().filter(differs).map(|(number, _)| number).collect();
        let mut state = self.state();
        state.sums.retain(|number, _| lost.binary_search(number).is_err());
        // A block that is written again and lost by a failed sync would match its old line as long as the cache has it.
        let withdrawn: String = lost.iter().map(|number| journal::line(*number, &journal::WITHDRAWN)).collect();
        self.journal.write_at(withdrawn.as_bytes(), state.end)?;
        state.end += withdrawn.len() as u64;
        Ok(lost)
    }

    /// The BLAKE3 hash of the file, if all blocks are there.
    pub fn root(&self) -> Option<[u8; 32]> {
        let state = self.state();
        let all = state.sums.len() as u64 == self.blocks.count();
        all.then(|| root(&state.sums.values().copied().collect::<Vec<_>>()))
    }

    /// The file is whole: gives it its name, and the time when it was `modified`.
    ///
    /// # Errors
    /// If it is not whole, or the medium fails. It can be taken up again.
    pub fn finish(&self, modified: Option<SystemTime>) -> Result<(), LandingError> {
        let missing = self.blocks.count() - self.present();
        if missing > 0 {
            return Err(LandingError::Missing { name: self.name.clone(), missing });
        }
        let mut end = self.end();
        match *end {
            End::Open | End::Renamed(_) => {
                // Nothing else of them is left then.
                self.gather_beyond(1)?;
                self.settle(&mut end, modified).map_err(|error| match error.downcast() {
                    Ok(unmet) => {
                        // This error tells the client. A later request without preconditions finishes the file nevertheless.
                        *self.preconditions() = Preconditions::default();
                        LandingError::Unmet(self.name.clone(), unmet)
                    }
                    Err(error) => LandingError::Medium(self.name.clone(), error),
                })?;
            }
            End::Finished => {}
            End::Discarded => return Err(LandingError::NotBegun(self.name.clone())),
        }
        *end = End::Finished;
        Ok(())
    }

    fn settle(&self, end: &mut End, modified: Option<SystemTime>) -> io::Result<()> {
        let mut rights = None;
        if let End::Renamed(had) = *end {
            if !self.take_name_back(end)? {
                // Another file has taken the name.
                return self.folder.remove(&self.name.journal());
            }
            rights = Some(had);
        }
        // The preconditions were met when the file got its name the first time.
        let is_met = rights.is_some();
        let folder = self.folder.open_folder(&self.name.folder())?;
        let Attributes { mode, extended } = self.attributes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // A copy before this one may have given it others.
        let set = |mode| self.data.set_attributes(&Attributes { mode, extended: extended.clone() });
        let source = *self.source_mode.lock().unwrap_or_else(PoisonError::into_inner);
        let rights = match (rights, mode) {
            (Some(had), None) => had,
            (None, None) => self.folder.rights(&self.name, source)?,
            (_, mode) => Rights { mode, owner: None },
        };
        let mode = rights.owned(&*self.data);
        // A file that is not to be written could not be taken up again, should this be cut off: that comes last.
        let writable = mode.map(|mode| mode | 0o600);
        set(writable)?;
        if let Some(time) = modified {
            self.data.set_modified(time)?;
        }
        let synced = self.sync(self.epoch());
        let named = synced.and_then(|()| match is_met {
            true => self.folder.rename(&self.name.unfinished(), &self.name),
            false => self.give_name(),
        });
        if let Err(error) = named {
            // It may wait for its name for long, and get other rights then.
            let _first_error_counts = set(mode.map(|_| 0o600));
            return Err(error);
        }
        *end = End::Renamed(rights);
        let lasts = if mode == writable { Ok(()) } else { set(mode) }.and_then(|()| folder.sync_names());
        if let Err(error) = lasts {
            if self.preconditions().is_for_new_file() && self.take_name_back(end).is_ok_and(|is_back| is_back) {
                // The client's next attempt expects that there is none, and may take this one for the answer of a request that was lost.
                let _first_error_counts = set(mode.map(|_| 0o600));
            }
            return Err(error);
        }
        self.folder.remove(&self.name.journal())
    }

    /// Gives the file its hidden name again; `false` if another file has its name. A name counts as lost once a sync of names has failed, and a
    /// sync of names that nobody changes would write nothing.
    fn take_name_back(&self, end: &mut End) -> io::Result<bool> {
        if !is_there(&*self.folder, &self.name, &*self.data)? {
            return Ok(false);
        }
        self.folder.rename(&self.name, &self.name.unfinished())?;
        *end = End::Open;
        Ok(true)
    }

    /// Renames the file, if the preconditions are met at this moment. The error is [`Unmet`] if they are not.
    fn give_name(&self) -> io::Result<()> {
        let preconditions = self.preconditions();
        // The journal is locked, so no other server or copy gives a file this name in between.
        storage::evaluate(&*self.folder, &self.name, &preconditions)?.map_err(io::Error::other)?;
        let (from, to) = (self.name.unfinished(), &self.name);
        if !preconditions.is_for_new_file() {
            return self.folder.rename(&from, to);
        }
        // Other programs may create the name in between: here one step does both.
        self.folder.rename_to_new(&from, to).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => io::Error::other(Unmet::Failed),
            _ => error,
        })
    }

    /// Removes what there is of it, unless it is the file by now.
    ///
    /// # Errors
    /// If that cannot be done.
    pub fn discard(&self) -> io::Result<()> {
        let mut end = self.end();
        if matches!(*end, End::Finished | End::Discarded) {
            return Ok(());
        }
        // The data are the first share's.
        let data = (self.share == 0 && *end == End::Open).then(|| self.name.unfinished());
        for name in data.into_iter().chain([self.name.journal_of(self.share)]) {
            match self.folder.remove(&name) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        *end = End::Discarded;
        Ok(())
    }

    fn preconditions(&self) -> MutexGuard<'_, Preconditions> {
        self.preconditions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self) -> MutexGuard<'_, End> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The journal of a file, which is this process' until it is closed.
pub(crate) fn lock_journal(folder: &dyn Folder, name: &Name, share: u16) -> Result<Arc<dyn Stored>, LandingError> {
    let of_share = name.journal_of(share);
    let medium = |error| LandingError::Medium(name.clone(), error);
    loop {
        let journal = folder.open_or_create(&of_share).map_err(medium)?;
        if !journal.try_lock().map_err(medium)? {
            return Err(LandingError::Taken(name.clone()));
        }
        // The one that had it may have removed it in between: then the lock is on a file that nobody finds any more.
        if is_there(folder, &of_share, &*journal).map_err(medium)? {
            return Ok(journal);
        }
    }
}

/// Brings the name of a finished file to the medium, if that is not known to be there: the journal is left where a sync of names has failed.
///
/// # Errors
/// If another process writes the file, or the medium fails.
pub(crate) fn secure_name(folder: &dyn Folder, name: &Name) -> Result<(), LandingError> {
    if folder.about(&name.journal()).is_err() || folder.about(&name.unfinished()).is_ok() {
        return Ok(());
    }
    let _lock = lock_journal(folder, name, 0)?;
    let secured = folder.open_folder(&name.folder()).and_then(|above| {
        // A sync of names that nobody changes would write nothing.
        folder.rename(name, &name.unfinished())?;
        folder.rename(&name.unfinished(), name)?;
        above.sync_names()?;
        folder.remove(&name.journal())
    });
    secured.map_err(|error| LandingError::Medium(name.clone(), error))
}

/// Whether the journal that is open is the one that is found under its name.
fn is_there(folder: &dyn Folder, name: &Name, journal: &dyn Stored) -> io::Result<bool> {
    match folder.open(name) {
        Ok(found) => Ok(found.identity()? == journal.identity()?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// What file systems have holes of, or a multiple.
const PAGE: usize = 16 << 10;
/// Bytes read at once.
const PIECE: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attributes::Preserve;
    use crate::blocks::BlockHasher;
    use crate::rooted::Rooted;

    fn open(folder: &Arc<dyn Folder>, begin: Begin, share: u16) -> Result<Landing, LandingError> {
        let blocks = Blocks::new(3 << 16, 1 << 16).unwrap();
        Landing::open_share(folder.clone(), &Name::from_url("/file").unwrap(), blocks, "source", begin, share)
    }

    fn land(landing: &Landing, number: u64, byte: u8) {
        let (bytes, epoch) = ([byte; 1 << 16], landing.epoch());
        let mut hasher = BlockHasher::new(landing.blocks(), number);
        hasher.update(&bytes);
        landing.write(&bytes, number << 16).unwrap();
        landing.done(number, hasher.finish(), epoch).unwrap();
    }

    /// A file that begins anew is not the one that another share still writes to, and blocks that went there do not count.
    #[test]
    fn what_a_share_writes_to_a_file_before_is_not_of_this_one() {
        let store = tempfile::tempdir().unwrap();
        let folder: Arc<dyn Folder> = Arc::new(Rooted::open(store.path()).unwrap());
        let (first, second) = (open(&folder, Begin::Anew, 0).unwrap(), open(&folder, Begin::Anew, 1).unwrap());
        land(&first, 0, 1);
        land(&second, 1, 1);
        drop(first);

        let anew = open(&folder, Begin::Anew, 0).unwrap();
        assert_eq!(anew.missing(), [0, 1, 2]);
        land(&anew, 0, 2);
        land(&second, 2, 1);
        drop(second);
        anew.gather(2).unwrap();
        assert_eq!(anew.missing(), [1, 2]);
        (1..3).for_each(|number| land(&anew, number, 2));
        anew.finish(None).unwrap();
        assert!(std::fs::read(store.path().join("file")).unwrap() == [2; 3 << 16]);
    }

    /// A copy that is taken up again may bring other attributes: the file has those, and none of before.
    #[test]
    fn attributes_are_those_that_were_told_last() {
        let store = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let folder: Arc<dyn Folder> = Arc::new(Rooted::open(store.path()).unwrap());
        let of = |names: &[&str]| {
            let extended = names.iter().map(|name| (format!("user.{name}").into_bytes(), b"value".to_vec()));
            Attributes { mode: None, extended: extended.collect() }
        };
        for told in [&["b", "c"][..], &[]] {
            let before = open(&folder, Begin::Anew, 0).unwrap();
            before.keep(of(&["a", "b"])).unwrap();
            drop(before);
            let landing = open(&folder, Begin::Resume, 0).unwrap();
            landing.keep(of(told)).unwrap();
            (0..3).for_each(|number| land(&landing, number, 7));
            landing.finish(None).unwrap();
            let file = folder.open(&Name::from_url("/file").unwrap()).unwrap();
            let mut has = file.attributes(Preserve { mode: false, extended: true }).unwrap();
            has.extended.sort();
            assert_eq!(has, of(told));
        }
    }

    /// What was discarded is another's to write, though who discarded it does so again.
    #[test]
    fn what_comes_after_it_was_discarded_stays() {
        let store = tempfile::tempdir().unwrap();
        let folder: Arc<dyn Folder> = Arc::new(Rooted::open(store.path()).unwrap());
        let before = open(&folder, Begin::Anew, 0).unwrap();
        before.discard().unwrap();
        let landing = open(&folder, Begin::Anew, 0).unwrap();
        before.discard().unwrap();
        assert!(matches!(before.finish(None), Err(LandingError::Missing { .. })));
        (0..3).for_each(|number| land(&landing, number, 7));
        landing.finish(None).unwrap();
    }

    /// So it has no attributes of the one before, and who still has that open does not write to it.
    #[test]
    fn a_file_that_begins_anew_is_another_one() {
        let store = tempfile::tempdir().unwrap();
        let folder: Arc<dyn Folder> = Arc::new(Rooted::open(store.path()).unwrap());
        let kept = store.path().join("before");
        let before = open(&folder, Begin::Anew, 0).unwrap();
        let mut files = std::fs::read_dir(store.path()).unwrap().map(|entry| entry.unwrap().path());
        let unfinished = files.find(|path| path.metadata().unwrap().len() == 3 << 16).unwrap();
        std::fs::hard_link(&unfinished, &kept).unwrap();
        drop(before);
        let anew = open(&folder, Begin::Anew, 0).unwrap();
        land(&anew, 0, 7);
        assert!(std::fs::read(&kept).unwrap().iter().all(|byte| *byte == 0), "it is the same file");
    }

    /// A share of the upload of the earlier source may be at work yet.
    #[test]
    fn resumed_file_of_another_source_is_another_one() {
        let store = tempfile::tempdir().unwrap();
        let folder: Arc<dyn Folder> = Arc::new(Rooted::open(store.path()).unwrap());
        let (first, second) = (open(&folder, Begin::Anew, 0).unwrap(), open(&folder, Begin::Anew, 1).unwrap());
        drop(first);
        let (name, blocks) = (Name::from_url("/file").unwrap(), second.blocks());
        let other = Landing::open(folder.clone(), &name, blocks, "other source", Begin::Resume).unwrap();
        (0..3).for_each(|number| land(&other, number, 2));
        land(&second, 1, 1);
        other.finish(None).unwrap();
        assert!(std::fs::read(store.path().join("file")).unwrap() == [2; 3 << 16]);
    }

    /// The file may wait for its name for hours, and get another mode then.
    #[test]
    fn refused_file_stays_private() {
        use std::os::unix::fs::PermissionsExt;
        let store = tempfile::tempdir().unwrap();
        let folder: Arc<dyn Folder> = Arc::new(Rooted::open(store.path()).unwrap());
        let path = store.path().join("file");
        std::fs::write(&path, "old").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        let landing = open(&folder, Begin::Anew, 0).unwrap();
        (0..3).for_each(|number| land(&landing, number, 7));
        let fields = [(hyper::header::IF_NONE_MATCH, "*".parse().unwrap())].into_iter().collect();
        landing.require(Preconditions::of(&hyper::Method::PUT, &fields));
        assert!(matches!(landing.finish(None), Err(LandingError::Unmet(..))));
        let hidden = store.path().join(landing.name().unfinished().path());
        assert_eq!(hidden.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        landing.finish(None).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o644);
    }

    #[test]
    fn link_that_leads_out_is_replaced() {
        let outer = tempfile::tempdir().unwrap();
        let store = outer.path().join("store");
        std::fs::create_dir(&store).unwrap();
        std::fs::write(outer.path().join("secret"), "text").unwrap();
        let folder: Arc<dyn Folder> = Arc::new(Rooted::open(&store).unwrap());
        for target in ["../secret", "file"] {
            std::os::unix::fs::symlink(target, store.join("file")).unwrap();
            let landing = open(&folder, Begin::Anew, 0).unwrap();
            (0..3).for_each(|number| land(&landing, number, 7));
            landing.finish(None).unwrap();
            assert!(std::fs::read(store.join("file")).unwrap() == [7; 3 << 16]);
            std::fs::remove_file(store.join("file")).unwrap();
        }
        assert_eq!(std::fs::read(outer.path().join("secret")).unwrap(), b"text");
    }
}
