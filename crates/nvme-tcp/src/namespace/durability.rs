//! Crash tests of file namespaces, on a model file system that keeps synced data and optionally some unsynced data, and
//! whose power fails after any of its calls.

use super::system::{FileSystem, StorageMedium};
use super::*;
use std::collections::BTreeMap;
use std::io::IoSlice;
use std::path::{Path, PathBuf};

/// A file system in memory that can lose its power.
#[derive(Clone, Debug, Default)]
struct LossySystem(Arc<Mutex<LossyDisk>>);

#[derive(Debug, Default)]
struct LossyDisk {
    files: Vec<FileContent>,
    names: BTreeMap<PathBuf, usize>,
    durable_names: BTreeMap<PathBuf, usize>,
    /// Number of calls until the power fails. `None` if it does not fail.
    calls_left: Option<usize>,
    names_changed: bool,
    /// Syncs that succeed before one fails. `None` if none fails.
    syncs_left: Option<usize>,
}

#[derive(Clone, Debug, Default)]
struct FileContent {
    now: Vec<u8>,
    durable: Vec<u8>,
    /// Ranges written since the last sync.
    dirty: Vec<Range<usize>>,
}

impl FileContent {
    fn write(&mut self, data: &[u8], start: usize) {
        let end = start + data.len();
        self.now.resize(self.now.len().max(end), 0);
        self.now[start..end].copy_from_slice(data);
        self.dirty.push(start..end);
    }
}

/// Unsynced state that the system happened to write back before its power failed.
#[derive(Clone, Copy, Debug)]
struct WrittenBack {
    content: bool,
    names: bool,
}

type SyncHook = Mutex<Option<Box<dyn FnOnce() + Send>>>;

struct LossyFile {
    system: LossySystem,
    number: usize,
    /// Called once when a sync has completed, before its caller continues.
    synced: Arc<SyncHook>,
}

impl core::fmt::Debug for LossyFile {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "LossyFile({})", self.number)
    }
}

impl LossySystem {
    /// Creates a system with one durable file of bytes 1.
    fn with_blocks(bytes: usize) -> LossySystem {
        let system = LossySystem::default();
        let content = vec![1; bytes];
        let mut disk = system.0.lock().unwrap();
        disk.files.push(FileContent { now: content.clone(), durable: content, dirty: Vec::new() });
        disk.names.insert(PathBuf::from(PATH), 0);
        disk.durable_names.insert(PathBuf::from(PATH), 0);
        drop(disk);
        system
    }

    fn disk(&self) -> io::Result<MutexGuard<'_, LossyDisk>> {
        let mut disk = self.0.lock().unwrap();
        match &mut disk.calls_left {
            Some(0) => Err(io::Error::other("no power")),
            Some(left) => {
                *left -= 1;
                Ok(disk)
            }
            None => Ok(disk),
        }
    }

    /// Counts a sync and returns whether it fails. Only this caller gets the error.
    fn sync_disk(&self) -> io::Result<(MutexGuard<'_, LossyDisk>, bool)> {
        let mut disk = self.disk()?;
        let fails = disk.syncs_left == Some(0);
        disk.syncs_left = disk.syncs_left.and_then(|left| left.checked_sub(1));
        Ok((disk, fails))
    }

    fn fail_after(&self, calls: usize) {
        self.0.lock().unwrap().calls_left = Some(calls);
    }

    /// Simulates a power failure and a restart. Returns whether the power had failed already.
    fn restart(&self, kept: WrittenBack) -> bool {
        let mut disk = self.0.lock().unwrap();
        if !kept.names {
            disk.names = disk.durable_names.clone();
        }
        disk.durable_names = disk.names.clone();
        for file in &mut disk.files {
            if !kept.content {
                file.now = file.durable.clone();
            }
            file.durable = file.now.clone();
            file.dirty.clear();
        }
        disk.names_changed = false;
        disk.calls_left.take() == Some(0)
    }

    fn namespace(&self) -> io::Result<(Namespace, Arc<SyncHook>)> {
        let synced = Arc::<SyncHook>::default();
        let file = Box::new(LossyFile { system: self.clone(), number: 0, synced: synced.clone() });
        let system: Arc<dyn FileSystem> = Arc::new(self.clone());
        let storage = FileStorage::from_medium(file, Path::new(PATH), false, &system)?;
        Ok((Namespace::new(1, 512, Arc::new(storage)).unwrap(), synced))
    }
}

impl FileSystem for LossySystem {
    fn create(&self, path: &Path, content: &[u8]) -> io::Result<Box<dyn StorageMedium>> {
        let mut disk = self.disk()?;
        let number = disk.files.len();
        let mut file = FileContent::default();
        file.write(content, 0);
        disk.files.push(file);
        disk.names.insert(path.to_owned(), number);
        disk.names_changed = true;
        Ok(Box::new(LossyFile { system: self.clone(), number, synced: Arc::default() }))
    }

    fn read(&self, path: &Path, _: u64) -> io::Result<Option<Vec<u8>>> {
        let disk = self.disk()?;
        Ok(disk.names.get(path).map(|number| disk.files[*number].now.clone()))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut disk = self.disk()?;
        let number = disk.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
        disk.names.insert(to.to_owned(), number);
        disk.names_changed = true;
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut disk = self.disk()?;
        disk.names_changed |= disk.names.remove(path).is_some();
        Ok(())
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        assert_eq!(Some(folder), Path::new(PATH).parent());
        let (mut disk, fails) = self.sync_disk()?;
        let changed = core::mem::take(&mut disk.names_changed);
        if fails {
            return Err(io::Error::other("a write failed"));
        }
        // A folder is only written if an entry has changed since the last sync, as on a real file system.
        if changed {
            disk.durable_names = disk.names.clone();
        }
        Ok(())
    }
}

impl StorageMedium for LossyFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let disk = self.system.disk()?;
        let content = disk.files[self.number].now.get(offset as usize..).unwrap_or_default();
        let read = content.len().min(buffer.len());
        buffer[..read].copy_from_slice(&content[..read]);
        Ok(read)
    }

    fn write_at(&self, slices: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        let mut disk = self.system.disk()?;
        let data: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
        disk.files[self.number].write(&data, offset as usize);
        Ok(data.len())
    }

    fn punch_hole(&self, _: u64, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn end(&self) -> io::Result<u64> {
        Ok(self.system.disk()?.files[self.number].now.len() as u64)
    }

    fn sync(&self) -> io::Result<()> {
        {
            let (mut disk, fails) = self.system.sync_disk()?;
            let file = &mut disk.files[self.number];
            let dirty = core::mem::take(&mut file.dirty);
            if fails {
                return Err(io::Error::other("a write failed"));
            }
            for range in dirty {
                file.durable.resize(file.durable.len().max(range.end), 0);
                file.durable[range.clone()].copy_from_slice(&file.now[range]);
            }
        }
        if let Some(then) = self.synced.lock().unwrap().take() {
            then();
        }
        Ok(())
    }

    fn drop_cache(&self) {
        let mut disk = self.system.0.lock().unwrap();
        let file = &mut disk.files[self.number];
        if file.dirty.is_empty() {
            file.now = file.durable.clone();
        }
    }
}

const PATH: &str = "/images/disk";
const EVERYTHING: [WrittenBack; 4] = [
    WrittenBack { content: false, names: false },
    WrittenBack { content: true, names: false },
    WrittenBack { content: false, names: true },
    WrittenBack { content: true, names: true },
];

fn write(first: u64, value: u8, durable: bool) -> Operation {
    Operation::Write { first, data: DataPieces::from_iter([Bytes::from(vec![value; 512])]), durable }
}

/// Returns the value of a block; `None` if it is unreadable.
fn block(namespace: &Namespace, first: u64) -> Option<u8> {
    let outcome = namespace.execute(&Operation::Read { first, blocks: 1 });
    outcome.status.is_success().then(|| outcome.data.concat()[0])
}

/// An operation, and the values that blocks may hold from its success on.
type ExpectedStep = (Operation, &'static [(u64, &'static [Option<u8>])]);

/// Runs the steps with a power failure after each possible number of calls.
fn check_power_failures(steps: &[ExpectedStep]) {
    for kept in EVERYTHING {
        for calls in 0.. {
            let system = LossySystem::with_blocks(16 * 512);
            let (namespace, _) = system.namespace().unwrap();
            system.fail_after(calls);
            let done =
                steps.iter().take_while(|(operation, _)| namespace.execute(operation).status.is_success()).count();
            drop(namespace);
            let failed = system.restart(kept);
            let (namespace, _) = system.namespace().expect("the side files must be intact");
            let mut expected: BTreeMap<u64, &[Option<u8>]> = BTreeMap::new();
            steps[..done].iter().for_each(|(_, blocks)| expected.extend(blocks.iter().copied()));
            for (first, may_hold) in expected {
                let holds = block(&namespace, first);
                // The power may have failed during the next operation, so its result is allowed as well.
                let or = steps.get(done).and_then(|(_, blocks)| blocks.iter().find(|(block, _)| *block == first));
                let or = or.map_or(&[][..], |(_, may_hold)| may_hold);
                assert!(
                    may_hold.contains(&holds) || or.contains(&holds),
                    "block {first} holds {holds:?}, not {may_hold:?}: {done} steps, {calls} calls, {kept:?}"
                );
            }
            if !failed {
                assert_eq!(done, steps.len());
                break;
            }
        }
    }
}

/// Runs the steps once for each sync that can fail. Only the caller of that sync gets the error. If the namespace is in
/// doubt, it is reopened and written again. Then the power fails.
fn check_failed_syncs(steps: &[ExpectedStep]) {
    for syncs in 0.. {
        let system = LossySystem::with_blocks(16 * 512);
        system.0.lock().unwrap().syncs_left = Some(syncs);
        // The failing sync may be one of the open itself, so a second attempt is allowed.
        let open = || system.namespace().or_else(|_| system.namespace()).unwrap().0;
        let (mut namespace, mut at) = (open(), 0);
        let uuid = namespace.uuid();
        while let Some((operation, _)) = steps.get(at) {
            if namespace.execute(operation).status.is_success() {
                at += 1;
            } else if namespace.execute(&Operation::Flush).status.is_success() {
                // Only the mark was in doubt; the host repeats the command.
            } else {
                let outcome = namespace.execute(&write(9, 1, true));
                assert!(!outcome.status.is_success(), "a write to a namespace in doubt");
                drop(namespace);
                (namespace, at) = (open(), 0);
            }
        }
        drop(namespace);
        system.restart(EVERYTHING[0]);
        let namespace = open();
        assert_eq!(namespace.uuid(), uuid, "{syncs} syncs");
        let mut expected: BTreeMap<u64, &[Option<u8>]> = BTreeMap::new();
        steps.iter().for_each(|(_, blocks)| expected.extend(blocks.iter().copied()));
        for (first, may_hold) in expected {
            let holds = block(&namespace, first);
            assert!(may_hold.contains(&holds), "block {first} holds {holds:?}, not {may_hold:?}: {syncs} syncs");
        }
        if system.0.lock().unwrap().syncs_left.is_some() {
            break;
        }
    }
}

#[test]
fn flushed_blocks_survive_any_failed_sync() {
    check_failed_syncs(&[
        (write(2, 7, false), &[]),
        (Operation::Flush, &[(2, &[Some(7)])]),
        (write(3, 8, true), &[(3, &[Some(8)])]),
        (Operation::WriteUncorrectable { first: 4, blocks: 1 }, &[(4, &[None])]),
        (write(4, 5, true), &[(4, &[Some(5)])]),
        (Operation::WriteZeroes { first: 2, blocks: 1, durable: true }, &[(2, &[Some(0)])]),
    ]);
}

/// Runs the steps once for each sync that can fail. After each failed operation, another process opens the namespace
/// and its host repeats the operation. Then the power fails.
fn check_failed_syncs_across_processes(steps: &[ExpectedStep]) {
    for syncs in 0.. {
        let system = LossySystem::with_blocks(16 * 512);
        system.0.lock().unwrap().syncs_left = Some(syncs);
        // The failing sync may be one of the open itself, so a second attempt is allowed.
        let open = || system.namespace().or_else(|_| system.namespace()).unwrap().0;
        let mut namespace = open();
        for (operation, _) in steps {
            while !namespace.execute(operation).status.is_success() {
                drop(namespace);
                namespace = open();
            }
        }
        drop(namespace);
        system.restart(EVERYTHING[0]);
        let namespace = open();
        for (first, may_hold) in steps.iter().flat_map(|(_, blocks)| *blocks) {
            let holds = block(&namespace, *first);
            assert!(may_hold.contains(&holds), "block {first} holds {holds:?}, not {may_hold:?}: {syncs} syncs");
        }
        if system.0.lock().unwrap().syncs_left.is_some() {
            break;
        }
    }
}

#[test]
fn marks_survive_a_failed_sync_and_a_new_process() {
    check_failed_syncs_across_processes(&[
        (Operation::WriteUncorrectable { first: 4, blocks: 2 }, &[]),
        (Operation::WriteUncorrectable { first: 4, blocks: 1 }, &[]),
        (write(4, 5, true), &[(4, &[Some(5)])]),
        (write(5, 6, true), &[(5, &[Some(6)])]),
        (Operation::WriteUncorrectable { first: 7, blocks: 1 }, &[(7, &[None])]),
    ]);
}

#[test]
fn identity_survives_any_failed_sync() {
    check_failed_syncs(&[]);
}

/// A host must not rely on cached bytes whose write was lost.
#[test]
fn reopened_namespace_reads_the_medium() {
    let system = LossySystem::with_blocks(16 * 512);
    let (namespace, _) = system.namespace().unwrap();
    assert!(namespace.execute(&write(2, 7, false)).status.is_success());
    system.0.lock().unwrap().syncs_left = Some(0);
    assert!(!namespace.execute(&Operation::Flush).status.is_success());
    assert!(!namespace.execute(&Operation::Flush).status.is_success());
    drop(namespace);
    let (namespace, _) = system.namespace().unwrap();
    assert_eq!(block(&namespace, 2), Some(1));
}

#[test]
fn flushed_blocks_survive_a_power_failure() {
    check_power_failures(&[
        (write(2, 7, false), &[(2, &[Some(1), Some(7)])]),
        (Operation::Flush, &[(2, &[Some(7)])]),
        (write(3, 8, true), &[(3, &[Some(8)])]),
        (write(2, 9, false), &[(2, &[Some(7), Some(9)])]),
        (Operation::WriteZeroes { first: 2, blocks: 1, durable: true }, &[(2, &[Some(0)])]),
    ]);
}

#[test]
fn data_before_a_mark_are_never_read_again() {
    let mark = |first| Operation::WriteUncorrectable { first, blocks: 1 };
    check_power_failures(&[
        (mark(3), &[(3, &[None])]),
        (mark(4), &[(4, &[None])]),
        (write(3, 2, false), &[(3, &[None, Some(2)])]),
        // The list kept with this mark no longer contains block 3.
        (mark(5), &[(3, &[Some(2)]), (5, &[None])]),
        (write(4, 2, false), &[(4, &[None, Some(2)])]),
        (Operation::Flush, &[(4, &[Some(2)])]),
        (write(5, 2, true), &[(5, &[Some(2)])]),
        (mark(3), &[(3, &[None])]),
        (write(3, 4, true), &[(3, &[Some(4)])]),
    ]);
}

#[test]
fn write_during_a_flush_keeps_needed_marks() {
    let system = LossySystem::with_blocks(16 * 512);
    let (namespace, synced) = system.namespace().unwrap();
    let namespace = Arc::new(namespace);
    let mark = |first| Operation::WriteUncorrectable { first, blocks: 1 };
    assert!(namespace.execute(&mark(3)).status.is_success() && namespace.execute(&mark(4)).status.is_success());
    assert!(namespace.execute(&write(3, 2, false)).status.is_success());
    // During the flush: after the file is synced, and before the list of marks is stored.
    let beside = namespace.clone();
    *synced.lock().unwrap() = Some(Box::new(move || {
        assert!(beside.execute(&write(4, 2, false)).status.is_success());
    }));
    assert!(namespace.execute(&Operation::Flush).status.is_success());
    assert!(synced.lock().unwrap().is_none());
    system.restart(EVERYTHING[0]);
    let (namespace, _) = system.namespace().unwrap();
    assert_eq!((block(&namespace, 3), block(&namespace, 4)), (Some(2), None));
}

#[test]
fn uuid_survives_any_power_failure() {
    for kept in EVERYTHING {
        for calls in 0.. {
            let system = LossySystem::with_blocks(16 * 512);
            system.fail_after(calls);
            let told = system.namespace().map(|(namespace, _)| namespace.uuid());
            let failed = system.restart(kept);
            let (namespace, _) = system.namespace().expect("the side files must be intact");
            if let Ok(told) = told {
                assert_eq!(namespace.uuid(), told, "{calls} calls, {kept:?}");
            }
            if !failed {
                break;
            }
        }
    }
}

#[test]
fn file_without_holes_is_not_deallocated() {
    let system = LossySystem::with_blocks(16 * 512);
    let (namespace, _) = system.namespace().unwrap();
    let mark = Operation::WriteUncorrectable { first: 4, blocks: 1 };
    assert!(namespace.execute(&mark).status.is_success());
    let deallocate = Operation::Deallocate { ranges: vec![2..4, 4..6], durable: false };
    system.fail_after(0);
    assert!(namespace.execute(&deallocate).status.is_success());
    system.restart(EVERYTHING[3]);
    assert_eq!((block(&namespace, 3), block(&namespace, 4), block(&namespace, 5)), (Some(1), None, Some(1)));
    let zero = Operation::WriteZeroes { first: 2, blocks: 3, durable: false };
    assert!(namespace.execute(&zero).status.is_success());
    assert_eq!((block(&namespace, 3), block(&namespace, 4), block(&namespace, 5)), (Some(0), Some(0), Some(1)));
}
