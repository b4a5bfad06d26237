//! A medium in memory that loses unsynced bytes. Its processes die inside a call, and its power can fail.
//!
//! All processes see a write at once. Synced bytes survive a power failure. Of the unsynced sectors, any selection
//! survives. Of the changes to names, a prefix survives, as with journaling file systems.
//!
//! Once per run, the medium can lose all unsynced bytes while the machine runs, as on Linux. Every process still sees
//! the bytes, and each open file and folder gets an error from its next sync. No later sync brings the bytes to the
//! medium unless a process writes them again, either into a hole or after it dropped the cache, as on ext4.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use offload_base::{Rng, Seed};
use offload_reservoir::attributes::{Attributes, Preserve};
use offload_reservoir::name::Name;
use offload_reservoir::storage::{FileInfo, FileKind, Folder, FolderEntries, OpenFolder, StoredFile};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

/// The medium, which outlives processes.
#[derive(Clone)]
pub(crate) struct RamDisk(Arc<Mutex<TestMediumState>>);

struct TestMediumState {
    names: BTreeMap<Name, u64>,
    /// The names that survive any power failure. `changes` are the later changes.
    durable_names: BTreeMap<Name, u64>,
    changes: Vec<NameChange>,
    /// The number of calls until the medium loses all unsynced bytes. `None` for no loss.
    fails_in: Option<u64>,
    /// The losses so far, and whether a sync has reported the last loss.
    failures: Failures,
    name_failures: Failures,
    files: BTreeMap<u64, TestFile>,
    next_file: u64,
    random: Rng,
    process: u64,
    calls_left: Option<u64>,
    room: u64,
    /// The number of calls until another program makes a file, and that file.
    appears: Option<(u64, Name, Vec<u8>)>,
    /// The ranges of unfinished files that were written since the last call of `take_written`.
    written: Vec<(PathBuf, Range<u64>)>,
    lies_in: Option<u64>,
    lied: Vec<(PathBuf, u64)>,
    clock: u64,
}

#[derive(Clone)]
enum NameChange {
    Link(Name, u64),
    Rename(Name, Name),
    Remove(Name),
}

/// The failed writes of a file or of a file system. The next file to be opened gets the errors that no sync has
/// reported yet.
#[derive(Clone, Copy, Debug, Default)]
struct Failures {
    count: u64,
    told: bool,
}

impl Failures {
    /// Adds a failure. `told` means that a sync of another process has reported the failure.
    fn add(&mut self, told: bool) {
        *self = Failures { count: self.count + 1, told };
    }

    /// Returns the number of failures that a newly opened file counts as reported.
    fn at_open(self) -> u64 {
        if self.told { self.count } else { self.count.saturating_sub(1) }
    }

    fn sync(&mut self, heard: &AtomicU64) -> io::Result<()> {
        if heard.swap(self.count, Ordering::Relaxed) == self.count {
            return Ok(());
        }
        self.told = true;
        Err(io::Error::other("a write to the medium failed"))
    }
}

#[derive(Default)]
struct TestFile {
    seen: Vec<u8>,
    durable: Vec<u8>,
    /// Written and unsynced bytes.
    dirty: Vec<Range<usize>>,
    resized: bool,
    /// Lost bytes. Later writes to these bytes are also lost.
    stuck: Vec<Range<usize>>,
    failures: Failures,
    modified: u64,
    /// A counter in place of a time of change.
    changes: u64,
    locked_by: Option<(u64, u64)>,
    spoilt_from: Option<u64>,
    touched_in: Option<u64>,
    extended: Vec<(Vec<u8>, Vec<u8>)>,
}

/// The medium as one process sees it. The process is dead as soon as another process has mounted the medium.
#[derive(Clone)]
pub(crate) struct MediumMount {
    medium: RamDisk,
    process: u64,
}

impl TestFile {
    fn sync(&mut self) {
        if core::mem::take(&mut self.resized) {
            self.durable.resize(self.seen.len(), 0);
        }
        for range in self.dirty.drain(..) {
            let range = range.start.min(self.seen.len())..range.end.min(self.seen.len());
            if self.durable.len() < range.end {
                self.durable.resize(range.end, 0);
            }
            for at in range {
                if !self.stuck.iter().any(|stuck| stuck.contains(&at)) {
                    self.durable[at] = self.seen[at];
                }
            }
        }
    }

    /// Gives these bytes another place on the medium, so that writes to the bytes work again.
    fn free(&mut self, range: &Range<usize>) {
        let pieces = self.stuck.drain(..).flat_map(|stuck| {
            let (before, after) = (stuck.start..stuck.end.min(range.start), stuck.start.max(range.end)..stuck.end);
            [before, after].into_iter().filter(|piece| !piece.is_empty())
        });
        self.stuck = pieces.collect::<Vec<_>>();
    }

    fn lose(&mut self, told: bool) {
        if self.resized || !self.dirty.is_empty() {
            self.failures.add(told);
        }
        self.resized = false;
        self.stuck.append(&mut self.dirty);
    }
}

impl RamDisk {
    pub(crate) fn new(seed: Seed) -> RamDisk {
        RamDisk(Arc::new(Mutex::new(TestMediumState {
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            changes: Vec::new(),
            fails_in: None,
            failures: Failures::default(),
            name_failures: Failures::default(),
            files: BTreeMap::new(),
            next_file: 1,
            random: seed.stream("medium"),
            process: 0,
            calls_left: None,
            room: u64::MAX,
            appears: None,
            written: Vec::new(),
            lies_in: None,
            lied: Vec::new(),
            clock: 1,
        })))
    }

    /// Starts a new process. With `calls`, the process dies in its call of that number.
    pub(crate) fn mount(&self, calls: Option<u64>) -> MediumMount {
        let mut state = self.state();
        state.process += 1;
        state.calls_left = calls;
        MediumMount { medium: self.clone(), process: state.process }
    }

    /// Makes the bytes from `from` on unreadable.
    pub(crate) fn spoil(&self, path: &Path, from: u64) {
        let mut state = self.state();
        let id = state.id(path).unwrap();
        state.files.get_mut(&id).unwrap().spoilt_from = Some(from);
    }

    /// Changes a file after `reads` reads, as another program does.
    pub(crate) fn touch_after(&self, path: &Path, reads: u64) {
        let mut state = self.state();
        let id = state.id(path).unwrap();
        state.files.get_mut(&id).unwrap().touched_in = Some(reads);
    }

    /// Gives a file an extended attribute, though processes cannot set attributes here.
    pub(crate) fn give_attribute(&self, path: &Path, name: &[u8], value: &[u8]) {
        let mut state = self.state();
        let id = state.id(path).unwrap();
        state.files.get_mut(&id).unwrap().extended.push((name.to_vec(), value.to_vec()));
    }

    /// Tests whether the process of the medium dies in a later call.
    pub(crate) fn kills(&self) -> bool {
        self.state().calls_left.is_some()
    }

    /// Limits the number of bytes that can still be written.
    pub(crate) fn set_room(&self, room: u64) {
        self.state().room = room;
    }

    pub(crate) fn put(&self, name: &Name, bytes: &[u8]) {
        self.state().put(name, bytes);
    }

    /// Makes a file just before the call of number `calls` from now on, as another program does.
    pub(crate) fn put_in(&self, calls: u64, name: &Name, bytes: &[u8]) {
        self.state().appears = Some((calls, name.clone(), bytes.into()));
    }

    /// Tests whether the file of `put_in` does not exist yet.
    pub(crate) fn awaits_a_file(&self) -> bool {
        self.state().appears.is_some()
    }

    /// Makes the medium lose all unsynced bytes in this call from now on, or in the next call that finds any.
    pub(crate) fn lose_in(&self, calls: Option<u64>) {
        self.state().fails_in = calls;
    }

    /// Returns the number of losses.
    pub(crate) fn losses(&self) -> u64 {
        let state = self.state();
        state.failures.count + state.name_failures.count
    }

    /// Returns the content of this file after the worst power failure.
    pub(crate) fn durable(&self, path: &Path) -> Option<Vec<u8>> {
        let state = self.state();
        state.id(path).map(|id| state.files[&id].durable.clone())
    }

    /// Tests whether the file keeps its name after a power failure.
    pub(crate) fn is_name_durable(&self, name: &Name) -> bool {
        let state = self.state();
        state.durable_names.get(name) == state.names.get(name)
    }

    pub(crate) fn get(&self, path: &Path) -> Option<Vec<u8>> {
        let state = self.state();
        state.id(path).map(|id| state.files[&id].seen.clone())
    }

    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        self.state().names.keys().map(|name| name.path().to_owned()).collect()
    }

    /// Makes the write of number `writes` to an unfinished file change one bit.
    pub(crate) fn lie(&self, writes: u64) {
        self.state().lies_in = Some(writes);
    }

    /// Changes a byte without a write.
    pub(crate) fn corrupt(&self, path: &Path, at: usize) {
        let mut state = self.state();
        if let Some(id) = state.id(path) {
            let file = state.files.get_mut(&id).unwrap();
            file.seen[at] = file.seen[at].wrapping_add(1);
            file.durable[at] = file.seen[at];
        }
    }

    /// Returns the places of the writes that changed a bit.
    pub(crate) fn lied(&self) -> Vec<(PathBuf, u64)> {
        self.state().lied.clone()
    }

    /// Returns the ranges of unfinished files that were written since the last call.
    pub(crate) fn take_written(&self) -> Vec<(PathBuf, Range<u64>)> {
        core::mem::take(&mut self.state().written)
    }

    /// Ends the process. If `power`, the power fails too.
    pub(crate) fn crash(&self, power: bool) {
        let mut state = self.state();
        let state = &mut *state;
        state.process += 1;
        state.files.values_mut().for_each(|file| file.locked_by = None);
        if !power {
            return;
        }
        let kept = state.random.below(state.changes.len() as u64 + 1) as usize;
        let mut names = core::mem::take(&mut state.durable_names);
        for change in state.changes.drain(..).take(kept) {
            apply(&mut names, change);
        }
        state.names = names.clone();
        state.durable_names = names;
        for file in state.files.values_mut() {
            file.resized = false;
            file.dirty.clear();
            file.stuck.clear();
            // The new size survives, or the old one.
            let length = if state.random.below(2) == 0 { file.seen.len() } else { file.durable.len() };
            let mut left = file.durable.clone();
            left.resize(length, 0);
            for sector in (0..length).step_by(SECTOR) {
                let end = length.min(sector + SECTOR).min(file.seen.len());
                if sector < end && state.random.below(2) == 0 {
                    left[sector..end].copy_from_slice(&file.seen[sector..end]);
                }
            }
            file.seen = left.clone();
            file.durable = left;
        }
    }

    fn state(&self) -> MutexGuard<'_, TestMediumState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn apply(names: &mut BTreeMap<Name, u64>, change: NameChange) {
    match change {
        NameChange::Link(name, id) => drop(names.insert(name, id)),
        NameChange::Remove(name) => drop(names.remove(&name)),
        NameChange::Rename(from, to) => {
            if let Some(id) = names.remove(&from) {
                names.insert(to, id);
            }
        }
    }
}

impl TestMediumState {
    fn id(&self, path: &Path) -> Option<u64> {
        self.names.iter().find(|(name, _)| name.path() == path).map(|(_, id)| *id)
    }

    fn change(&mut self, change: NameChange) {
        apply(&mut self.names, change.clone());
        self.changes.push(change);
    }

    fn put(&mut self, name: &Name, bytes: &[u8]) {
        let id = self.next_file;
        self.next_file += 1;
        self.files
            .insert(id, TestFile { seen: bytes.into(), durable: bytes.into(), modified: 7, ..TestFile::default() });
        self.names.insert(name.clone(), id);
        self.durable_names.insert(name.clone(), id);
    }

    /// Counts a call. Just before the call, the medium may fail, or another program may make a file.
    fn tick(&mut self) {
        if let Some((left, ..)) = &mut self.appears {
            *left -= 1;
        }
        if let Some((_, name, bytes)) = self.appears.take_if(|(left, ..)| *left == 0) {
            self.put(&name, &bytes);
        }
        let Some(left) = &mut self.fails_in else { return };
        *left = left.saturating_sub(1);
        let is_dirty = |file: &TestFile| file.resized || !file.dirty.is_empty();
        if *left > 0 || !self.files.values().any(is_dirty) && self.changes.is_empty() {
            return;
        }
        self.fails_in = None;
        // In half of the cases, a sync of another process has already reported the loss.
        let told = self.random.below(2) == 0;
        if self.files.values().any(is_dirty) {
            self.failures.add(told);
            self.files.values_mut().for_each(|file| file.lose(told));
        }
        if !self.changes.is_empty() {
            self.name_failures.add(told);
            self.changes.clear();
        }
    }
}

impl MediumMount {
    /// Tests whether the process has died.
    pub(crate) fn is_dead(&self) -> bool {
        let state = self.medium.state();
        state.process != self.process || state.calls_left == Some(0)
    }

    /// Starts a call. Also returns whether the process dies inside the call.
    fn call(&self) -> io::Result<(MutexGuard<'_, TestMediumState>, bool)> {
        let mut state = self.medium.state();
        if state.process != self.process || state.calls_left == Some(0) {
            return Err(dead());
        }
        state.tick();
        let mut dies = false;
        if let Some(left) = &mut state.calls_left {
            *left -= 1;
            dies = *left == 0;
        }
        Ok((state, dies))
    }

    /// Starts a call that takes effect completely or not at all.
    fn whole_call(&self) -> io::Result<MutexGuard<'_, TestMediumState>> {
        let (mut state, dies) = self.call()?;
        if dies && state.random.below(2) == 0 {
            return Err(dead());
        }
        Ok(state)
    }

    fn handle(&self, name: &Name, id: u64, state: &mut TestMediumState) -> Arc<dyn StoredFile> {
        state.clock += 1;
        let heard = AtomicU64::new(state.files[&id].failures.at_open());
        Arc::new(OpenTestFile { mounted: self.clone(), id, name: name.clone(), number: state.clock, heard })
    }
}

fn dead() -> io::Error {
    io::Error::other("this process is dead")
}

fn none() -> io::Error {
    io::ErrorKind::NotFound.into()
}

impl Folder for MediumMount {
    fn open(&self, name: &Name) -> io::Result<Arc<dyn StoredFile>> {
        let mut state = self.whole_call()?;
        let id = *state.names.get(name).ok_or_else(none)?;
        Ok(self.handle(name, id, &mut state))
    }

    fn open_or_create(&self, name: &Name) -> io::Result<Arc<dyn StoredFile>> {
        let mut state = self.whole_call()?;
        let id = match state.names.get(name) {
            Some(id) => *id,
            None => {
                let id = state.next_file;
                state.next_file += 1;
                state.files.insert(id, TestFile::default());
                state.change(NameChange::Link(name.clone(), id));
                id
            }
        };
        Ok(self.handle(name, id, &mut state))
    }

    fn about(&self, name: &Name) -> io::Result<FileInfo> {
        let state = self.whole_call()?;
        if name == &Name::root() {
            return Ok(FileInfo::without_inode(FileKind::Folder, 0, SystemTime::UNIX_EPOCH));
        }
        let id = state.names.get(name).ok_or_else(none)?;
        Ok(about(*id, &state.files[id]))
    }

    fn list(&self, _: &Name) -> io::Result<FolderEntries> {
        let state = self.whole_call()?;
        let names =
            state.names.iter().map(|(name, id)| (name.last().unwrap().to_owned(), about(*id, &state.files[id])));
        let listed = names.filter(|(part, _)| !part.to_string_lossy().starts_with(".reservoir-")).map(Ok);
        Ok(Box::new(listed.collect::<Vec<_>>().into_iter()))
    }

    fn create_folder(&self, _: &Name) -> io::Result<()> {
        self.whole_call().map(drop)
    }

    fn rename(&self, from: &Name, to: &Name) -> io::Result<()> {
        let mut state = self.whole_call()?;
        let id = *state.names.get(from).ok_or_else(none)?;
        state.files.get_mut(&id).unwrap().changes += 1;
        state.change(NameChange::Rename(from.clone(), to.clone()));
        Ok(())
    }

    fn rename_to_new(&self, from: &Name, to: &Name) -> io::Result<()> {
        let mut state = self.whole_call()?;
        if state.names.contains_key(to) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let id = *state.names.get(from).ok_or_else(none)?;
        state.files.get_mut(&id).unwrap().changes += 1;
        state.change(NameChange::Rename(from.clone(), to.clone()));
        Ok(())
    }

    fn remove(&self, name: &Name) -> io::Result<()> {
        let mut state = self.whole_call()?;
        state.names.get(name).ok_or_else(none)?;
        state.change(NameChange::Remove(name.clone()));
        Ok(())
    }

    fn open_folder(&self, _: &Name) -> io::Result<Arc<dyn OpenFolder>> {
        let state = self.whole_call()?;
        let [heard, heard_of_names] = [state.failures, state.name_failures].map(|of| AtomicU64::new(of.at_open()));
        Ok(Arc::new(OpenNames { mounted: self.clone(), heard, heard_of_names }))
    }
}

struct OpenNames {
    mounted: MediumMount,
    heard: AtomicU64,
    heard_of_names: AtomicU64,
}

impl OpenFolder for OpenNames {
    fn sync_files(&self) -> io::Result<()> {
        let mut state = self.mounted.whole_call()?;
        state.files.values_mut().for_each(TestFile::sync);
        state.failures.sync(&self.heard)
    }

    fn sync_names(&self) -> io::Result<()> {
        let mut state = self.mounted.whole_call()?;
        // Writes the folder as it is now, if it has changed.
        if !state.changes.is_empty() {
            state.changes.clear();
            state.durable_names = state.names.clone();
        }
        state.name_failures.sync(&self.heard_of_names)
    }

    fn file_system(&self) -> io::Result<u64> {
        Ok(1)
    }
}

fn about(inode: u64, file: &TestFile) -> FileInfo {
    let after = |number| SystemTime::UNIX_EPOCH + Duration::from_secs(number);
    let (modified, changed) = (after(file.modified), after(file.changes));
    FileInfo { kind: FileKind::File, size: file.seen.len() as u64, modified, inode, changed }
}

struct OpenTestFile {
    mounted: MediumMount,
    id: u64,
    name: Name,
    number: u64,
    heard: AtomicU64,
}

impl StoredFile for OpenTestFile {
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut state = self.mounted.whole_call()?;
        let file = state.files.get_mut(&self.id).unwrap();
        if file.spoilt_from.is_some_and(|from| offset + into.len() as u64 > from) {
            return Err(io::Error::other("a sector cannot be read"));
        }
        if let Some(reads) = &mut file.touched_in {
            *reads = reads.saturating_sub(1);
            if *reads == 0 {
                file.touched_in = None;
                file.modified += 1;
                file.changes += 1;
            }
        }
        let bytes = &file.seen;
        let from = (offset as usize).min(bytes.len());
        let read = into.len().min(bytes.len() - from);
        into[..read].copy_from_slice(&bytes[from..from + read]);
        Ok(read)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let (mut state, dies) = self.mounted.call()?;
        let end = offset + bytes.len() as u64;
        if bytes.len() as u64 > state.room {
            return Err(io::ErrorKind::StorageFull.into());
        }
        state.room -= bytes.len() as u64;
        let written = if dies { state.random.below(bytes.len() as u64 + 1) as usize } else { bytes.len() };
        let path = self.name.path().to_owned();
        let is_data = path.extension().is_some_and(|kind| kind == "part");
        state.written.push((path, offset..end));
        let mut bytes = bytes.to_vec();
        if is_data && let Some(left) = &mut state.lies_in {
            *left = left.saturating_sub(1);
            if *left == 0 {
                state.lies_in = None;
                state.lied.push((self.name.path().to_owned(), offset));
                // The writer sees a success, and only a comparison of digests can find the changed bit.
                bytes[0] ^= 1;
            }
        }
        let file = state.files.get_mut(&self.id).unwrap();
        file.changes += 1;
        let end = offset as usize + written;
        if file.seen.len() < end {
            file.seen.resize(end, 0);
        }
        file.seen[offset as usize..end].copy_from_slice(&bytes[..written]);
        file.dirty.push(offset as usize..end);
        if dies { Err(dead()) } else { Ok(()) }
    }

    fn attributes(&self, wanted: Preserve) -> io::Result<Attributes> {
        let state = self.mounted.whole_call()?;
        let extended = if wanted.extended { state.files[&self.id].extended.clone() } else { Vec::new() };
        Ok(Attributes { mode: None, extended })
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        let mut state = self.mounted.whole_call()?;
        if size > LARGEST {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let file = state.files.get_mut(&self.id).unwrap();
        file.changes += 1;
        let (before, size) = (file.seen.len(), size as usize);
        file.seen.resize(size, 0);
        file.dirty.push(before.min(size)..before.max(size));
        file.free(&(size..usize::MAX));
        file.resized = true;
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.mounted.whole_call()?;
        let file = state.files.get_mut(&self.id).unwrap();
        file.sync();
        file.failures.sync(&self.heard)
    }

    fn write_zeros(&self, offset: u64, length: u64) -> io::Result<()> {
        let range = offset as usize..(offset + length) as usize;
        self.mounted.whole_call()?.files.get_mut(&self.id).unwrap().free(&range);
        self.write_at(&vec![0; length as usize], offset)
    }

    /// Frees the lost bytes for new writes. Reads still come from the cache, because other processes may have the file
    /// open.
    fn drop_cache(&self) {
        self.mounted.medium.state().files.get_mut(&self.id).unwrap().stuck.clear();
    }

    fn about(&self) -> io::Result<FileInfo> {
        let state = self.mounted.whole_call()?;
        Ok(about(self.id, &state.files[&self.id]))
    }

    fn set_modified(&self, time: SystemTime) -> io::Result<()> {
        let mut state = self.mounted.whole_call()?;
        let seconds = time.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        let file = state.files.get_mut(&self.id).unwrap();
        file.changes += 1;
        file.modified = seconds;
        Ok(())
    }

    fn identity(&self) -> io::Result<u64> {
        self.mounted.whole_call().map(|_| self.id)
    }

    fn try_lock(&self) -> io::Result<bool> {
        let mut state = self.mounted.whole_call()?;
        let me = Some((self.mounted.process, self.number));
        let file = state.files.get_mut(&self.id).unwrap();
        let free = file.locked_by.is_none() || file.locked_by == me;
        if free {
            file.locked_by = me;
        }
        Ok(free)
    }
}

impl Drop for OpenTestFile {
    fn drop(&mut self) {
        let mut state = self.mounted.medium.state();
        let me = Some((self.mounted.process, self.number));
        if let Some(file) = state.files.get_mut(&self.id)
            && file.locked_by == me
        {
            file.locked_by = None;
        }
    }
}

const SECTOR: usize = 512;

/// The size of the largest file on the medium.
const LARGEST: u64 = 1 << 30;
