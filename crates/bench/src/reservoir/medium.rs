//! Disks of a bulk transfer: a source file whose bytes follow from their offsets, and a target that compares written
//! bytes and stores nothing, so that a terabyte needs no memory. Both are as slow as a drive, if there is one.

use crate::iperf::continues;
use bytes::Bytes;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use offload_base::Clock;
use offload_base::cost::{self, WorkKind};
use offload_reservoir::name::Name;
use offload_reservoir::storage::{FileInfo, FileKind, Folder, FolderEntries, OpenFolder, StoredFile};
use offload_testbed::drive::Drive;
use offload_testbed::drive::threads::wait_until;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

/// A folder in memory.
#[derive(Clone)]
pub(super) struct Medium(Arc<MediumState>);

struct MediumState {
    /// The repeated content of a large file.
    pattern: Bytes,
    drive: Option<Drive>,
    clock: Arc<dyn Clock>,
    files: Mutex<BTreeMap<Name, Arc<File>>>,
    number: AtomicU64,
    written: AtomicU64,
    differs: AtomicBool,
}

struct File {
    number: u64,
    holds: MediumContent,
}

enum MediumContent {
    /// Number of bytes of the pattern that the file holds, or will hold.
    Pattern(AtomicU64),
    /// The bytes of a journal, which takes no time.
    Bytes(Mutex<Vec<u8>>),
}

impl Medium {
    pub(super) fn new(pattern: Bytes, drive: Option<Drive>, clock: Arc<dyn Clock>) -> Medium {
        let (files, number, written) = (Mutex::default(), AtomicU64::new(1), AtomicU64::new(0));
        Medium(Arc::new(MediumState { pattern, drive, clock, files, number, written, differs: AtomicBool::new(false) }))
    }

    /// Adds a file of `bytes` bytes.
    pub(super) fn add(&self, name: &Name, bytes: u64) {
        let file = self.file(MediumContent::Pattern(AtomicU64::new(bytes)));
        self.files().insert(name.clone(), file);
    }

    /// Returns the bytes written to large files.
    pub(super) fn written(&self) -> u64 {
        self.0.written.load(Ordering::Relaxed)
    }

    /// Returns whether all written bytes were right.
    pub(super) fn is_whole(&self) -> bool {
        !self.0.differs.load(Ordering::Relaxed)
    }

    fn file(&self, holds: MediumContent) -> Arc<File> {
        Arc::new(File { number: self.0.number.fetch_add(1, Ordering::Relaxed), holds })
    }

    fn files(&self) -> MutexGuard<'_, BTreeMap<Name, Arc<File>>> {
        self.0.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, name: &Name) -> io::Result<Arc<File>> {
        self.files().get(name).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn handle(&self, file: Arc<File>) -> Arc<dyn StoredFile> {
        Arc::new(OpenMediumFile { medium: self.clone(), file })
    }
}

impl Folder for Medium {
    fn open(&self, name: &Name) -> io::Result<Arc<dyn StoredFile>> {
        Ok(self.handle(self.find(name)?))
    }

    fn open_or_create(&self, name: &Name) -> io::Result<Arc<dyn StoredFile>> {
        if let Ok(file) = self.find(name) {
            return Ok(self.handle(file));
        }
        // Only a journal is read back with its own content; data files follow from the pattern.
        let is_journal = name.path().extension().is_some_and(|kind| kind == "journal");
        let holds =
            if is_journal { MediumContent::Bytes(Mutex::default()) } else { MediumContent::Pattern(AtomicU64::new(0)) };
        let file = self.file(holds);
        self.files().insert(name.clone(), file.clone());
        Ok(self.handle(file))
    }

    fn about(&self, name: &Name) -> io::Result<FileInfo> {
        if name == &Name::root() {
            return Ok(FileInfo::without_inode(FileKind::Folder, 0, SystemTime::UNIX_EPOCH));
        }
        Ok(self.find(name)?.about())
    }

    fn list(&self, _: &Name) -> io::Result<FolderEntries> {
        let files = self.files();
        let listed = files.iter().filter_map(|(name, file)| Some(Ok((name.last()?.to_owned(), file.about()))));
        Ok(Box::new(listed.collect::<Vec<_>>().into_iter()))
    }

    fn create_folder(&self, _: &Name) -> io::Result<()> {
        Ok(())
    }

    fn rename(&self, from: &Name, to: &Name) -> io::Result<()> {
        let mut files = self.files();
        let file = files.remove(from).ok_or(io::ErrorKind::NotFound)?;
        files.insert(to.clone(), file);
        Ok(())
    }

    fn remove(&self, name: &Name) -> io::Result<()> {
        self.files().remove(name).map(drop).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn open_folder(&self, _: &Name) -> io::Result<Arc<dyn OpenFolder>> {
        Ok(Arc::new(self.clone()))
    }
}

impl OpenFolder for Medium {
    fn sync_files(&self) -> io::Result<()> {
        Ok(())
    }

    fn sync_names(&self) -> io::Result<()> {
        Ok(())
    }

    fn file_system(&self) -> io::Result<u64> {
        Ok(0)
    }
}

impl File {
    fn about(&self) -> FileInfo {
        let size = match &self.holds {
            MediumContent::Pattern(size) => size.load(Ordering::Relaxed),
            MediumContent::Bytes(bytes) => locked(bytes).len() as u64,
        };
        FileInfo::without_inode(FileKind::File, size, SystemTime::UNIX_EPOCH)
    }
}

struct OpenMediumFile {
    medium: Medium,
    file: Arc<File>,
}

impl OpenMediumFile {
    /// Waits for the drive, if there is one.
    fn wait(&self, until: impl FnOnce(&Drive, offload_base::Instant) -> offload_base::Instant) {
        if let Some(drive) = &self.medium.0.drive {
            wait_until(until(drive, self.medium.0.clock.now()));
        }
    }
}

impl StoredFile for OpenMediumFile {
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        match &self.file.holds {
            MediumContent::Pattern(size) => {
                let left = size.load(Ordering::Relaxed).saturating_sub(offset);
                let count = (into.len() as u64).min(left);
                self.wait(|drive, now| drive.read(now, self.file.number, offset..offset + count));
                // The drive produces the bytes, so filling the buffer is not charged to the host.
                let _drive = cost::work(WorkKind::Application);
                fill(&mut into[..count as usize], &self.medium.0.pattern, offset);
                Ok(count as usize)
            }
            MediumContent::Bytes(bytes) => {
                let bytes = locked(bytes);
                let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
                let count = into.len().min(bytes.len() - from);
                into[..count].copy_from_slice(&bytes[from..from + count]);
                Ok(count)
            }
        }
    }

    fn write_at(&self, written: &[u8], offset: u64) -> io::Result<()> {
        let end = offset + written.len() as u64;
        match &self.file.holds {
            MediumContent::Pattern(size) => {
                // The time of the drive passes before the bytes count as written.
                self.wait(|drive, now| drive.write(now, self.file.number, offset..end));
                let _drive = cost::work(WorkKind::Application);
                size.fetch_max(end, Ordering::Relaxed);
                self.medium.0.written.fetch_add(written.len() as u64, Ordering::Relaxed);
                // Writes arrive in any order, so each is compared at its own offset.
                if !continues(&self.medium.0.pattern, offset, written) {
                    self.medium.0.differs.store(true, Ordering::Relaxed);
                }
            }
            MediumContent::Bytes(bytes) => {
                let mut bytes = locked(bytes);
                let (from, end) = (offset as usize, end as usize);
                let length = bytes.len().max(end);
                bytes.resize(length, 0);
                bytes[from..end].copy_from_slice(written);
            }
        }
        Ok(())
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        match &self.file.holds {
            MediumContent::Pattern(present) => present.store(size, Ordering::Relaxed),
            MediumContent::Bytes(bytes) => locked(bytes).resize(size as usize, 0),
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        if let MediumContent::Pattern(_) = &self.file.holds {
            self.wait(|drive, now| drive.flush(now));
        }
        Ok(())
    }

    fn drop_cache(&self) {}

    fn about(&self) -> io::Result<FileInfo> {
        Ok(self.file.about())
    }

    fn set_modified(&self, _: SystemTime) -> io::Result<()> {
        Ok(())
    }

    fn identity(&self) -> io::Result<u64> {
        Ok(self.file.number)
    }

    fn try_lock(&self) -> io::Result<bool> {
        Ok(true)
    }
}

/// Fills `into` with the repeated pattern at `offset`.
fn fill(into: &mut [u8], pattern: &[u8], offset: u64) {
    let mut at = (offset % pattern.len() as u64) as usize;
    let mut done = 0;
    while done < into.len() {
        let count = (into.len() - done).min(pattern.len() - at);
        into[done..done + count].copy_from_slice(&pattern[at..at + count]);
        (done, at) = (done + count, 0);
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
