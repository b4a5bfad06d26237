//! The store of used numbers: a folder that all processes of a user share.
//!
//! ```text
//!   numbers          the entries, by hashes of keys      see `file`
//!   numbers.spent    the oldest keys
//!   numbers.lock     its bytes are locked, and it stays empty: byte 0 while a process reads or writes the files,
//!                    and a byte a key, by its hash, as long as the process that claimed the key runs
//! ```
//!
//! An entry is found by key and salt; the name and path of a key file do not matter.
//!
//! Invariant: the files change only under the lock of byte 0. Only the process that claimed a key changes its marks.

use super::file::{DiskFolder, NumberEntries, private_options, spent_path, sync_folder_of, with_ending};
use super::{NumberMark, NumberStore};
use crate::keying::KeyingError;
use offload_api::{Direction, EspKey};
use std::fs::{DirBuilder, File, Metadata, TryLockError};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The used numbers of keys, in the files of a folder. Processes that use different keys share the folder.
///
/// ```
/// use ipsec::{KeyMemory, KeyingError, NumberMark, NumberFile, NumberStore};
/// use offload_api::{Direction, EspKey, EspSuite};
///
/// let folder = std::env::temp_dir().join(format!("numbers-{}", std::process::id()));
/// let key = EspKey::new(EspSuite::Aes128Gcm, &[7; 20]).unwrap();
///
/// let mut numbers = NumberFile::in_folder(&folder)?;
/// assert_eq!(numbers.claim(Direction::Transmit, &key, 0x1001), Ok(0));
/// let mut others = NumberFile::in_folder(&folder)?;
/// # #[cfg(target_os = "linux")]
/// assert_eq!(others.claim(Direction::Transmit, &key, 0x1001), Err(KeyingError::KeyInUse));
/// numbers.write(&[NumberMark { direction: Direction::Transmit, key: &key, spi: 0x1001, number: 1 << 20 }])?;
/// drop(numbers);
///
/// assert_eq!(others.claim(Direction::Transmit, &key, 0x1001), Ok(1 << 20));
/// let memory = KeyMemory::process_wide().with_store(others);
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct NumberFile {
    entries: NumberEntries,
    path: PathBuf,
    /// The file as this process last read or wrote it. It stays open, so that no new file gets its inode number. `None`
    /// if the file must be read anew.
    known: Option<(File, FileState)>,
    folder: DiskFolder,
    /// The file of spent keys, as this process last read or wrote it.
    spent: DiskFolder,
    lock: LockFile,
    /// Whether the store began with this process, and so cannot have lost an entry.
    is_new: bool,
    earlier: Vec<EarlierFile>,
}

/// A file of numbers beside a key file or a socket, as earlier versions kept it. Only read, never written.
#[derive(Debug)]
struct EarlierFile {
    entries: NumberEntries,
    /// The lock that excludes programs of earlier versions.
    _lock: File,
}

/// An error of a number store.
///
/// ```
/// let error = ipsec::NumberFile::in_folder("Cargo.toml".as_ref()).unwrap_err();
/// assert!(error.to_string().starts_with("Cargo.toml"), "{error}: it is no folder");
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NumberFileError {
    /// The file cannot be read, or its folder cannot be written to.
    #[error("{}: {error}: it keeps the numbers that were sent under the keys, and must be readable and writable", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// Other users may write to the folder.
    #[error("{}: other users may write to it, and it keeps the numbers that were sent under the keys: chmod go-w, or name a folder of your own", path.display())]
    NotPrivate {
        /// The folder.
        path: PathBuf,
    },
    /// Another process uses the store or its keys.
    #[error("{}: another process uses these keys: end it, or use other keys", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// A line of the file is damaged.
    #[error("{}: line {line} is damaged: replace all keys that are in use, then remove the file", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The number of the line, from 1 on.
        line: usize,
    },
    /// The file of spent keys is missing or damaged.
    #[error("{}: the file is missing or damaged: replace all keys that are in use, then remove it and the file of numbers", path.display())]
    SpentDamaged {
        /// The file.
        path: PathBuf,
    },
}

impl NumberFile {
    /// Opens the store in `folder`, or starts a new one. A missing folder is created, accessible to this user only.
    ///
    /// # Errors
    /// If the files cannot be read or written, or are damaged, or other users may write to the folder.
    pub fn in_folder(folder: &Path) -> Result<NumberFile, NumberFileError> {
        let path = folder.join("numbers");
        let about = |error| NumberFileError::Io { path: path.clone(), error };
        create_folder(folder).map_err(about)?;
        if others_may_write(&folder.metadata().map_err(about)?) {
            return Err(NumberFileError::NotPrivate { path: folder.into() });
        }
        let lock = LockFile::open(&path)?;
        let _write_lock = lock.lock().map_err(about)?;
        let (entries, is_new) = match NumberEntries::open(&path)? {
            Some(mut entries) => {
                // Numbers that an earlier process could not make durable become durable with the first write.
                entries.discard_file();
                (entries, false)
            }
            None => (NumberEntries::new().map_err(about)?, true),
        };
        let (folder, spent) = (DiskFolder::new(&path), DiskFolder::new(&spent_path(&path)));
        let (known, earlier) = (None, Vec::new());
        let mut file = NumberFile { entries, path: path.clone(), known, folder, spent, lock, is_new, earlier };
        // A write at this point reports a failure now instead of at the first packet.
        file.write_locked(&[]).map_err(about)?;
        Ok(file)
    }

    /// Imports the numbers that earlier versions kept beside a key file or a socket, in a file with `.numbers` appended
    /// to its name. The file remains unchanged. Without such a file, this does nothing.
    pub fn take_over(&mut self, beside: &Path) -> Result<(), NumberFileError> {
        let named = beside.canonicalize().unwrap_or(beside.into());
        let path = with_ending(&named, ".numbers");
        let about = |error| NumberFileError::Io { path: path.clone(), error };
        if !path.try_exists().map_err(about)? {
            return Ok(());
        }
        let lock = private_options().read(true).create(true).truncate(false).open(with_ending(&path, ".lock"));
        let lock = lock.map_err(about)?;
        match lock.try_lock_shared() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(NumberFileError::InUse { path }),
            Err(TryLockError::Error(error)) => return Err(about(error)),
        }
        // Read only under the lock, because a program of an earlier version may be writing.
        if let Some(entries) = NumberEntries::open(&path)? {
            self.earlier.push(EarlierFile { entries, _lock: lock });
        }
        Ok(())
    }

    /// Tests whether all numbers used under a key are known: the key has an entry, or its key file is newer than the
    /// store. `written` is the time of the key file's last change.
    ///
    /// File times are inexact, so a key file that is up to an hour older than the store counts as newer.
    pub fn accounts_for(&self, key: &EspKey, spi: u32, written: SystemTime) -> bool {
        let ways = [Direction::Transmit, Direction::Receive];
        let has_entry = |entries: &NumberEntries| {
            ways.into_iter().any(|direction| entries.find(entries.name(direction, key, spi)).is_some())
        };
        self.is_new
            || self.entries.began_before(written.checked_add(core::time::Duration::from_secs(3600)).unwrap_or(written))
            || has_entry(&self.entries)
            || self.earlier.iter().any(|earlier| has_entry(&earlier.entries))
    }

    /// Reads the entries that other processes wrote. The caller holds the lock.
    fn refresh(&mut self) -> io::Result<()> {
        let (mut file, now) = match FileState::open(&self.path) {
            Ok(opened) => opened,
            // If the file was removed, the next write creates a complete one.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.entries.discard_file();
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        match self.known.take() {
            Some((_, known)) if known == now => {}
            Some((_, known)) if known.identity == now.identity && known.length < now.length => {
                file.seek(SeekFrom::Start(known.length))?;
                let mut text = Vec::new();
                file.read_to_end(&mut text)?;
                self.entries.read_appended(&String::from_utf8_lossy(&text)).map_err(|_| damaged(&self.path))?;
            }
            known => {
                let read = NumberEntries::open(&self.path).map_err(io::Error::other)?;
                let mut read = read.filter(|read| read.is_of(&self.entries)).ok_or_else(|| damaged(&self.path))?;
                self.entries.begun().iter().for_each(|name| read.begin(*name));
                if known.is_none() {
                    // After a failed write, the file or its name may not be durable, and a further sync would not
                    // report that.
                    read.discard_file();
                }
                self.entries = read;
            }
        }
        self.known = Some((file, now));
        Ok(())
    }

    /// Writes marks. The caller holds the lock.
    fn write_locked(&mut self, marks: &[NumberMark<'_>]) -> io::Result<()> {
        self.known = None;
        self.entries.write(marks, &mut self.folder, &mut self.spent)?;
        self.known = FileState::open(&self.path).ok();
        Ok(())
    }

    fn mark_before(&self, direction: Direction, key: &EspKey, spi: u32) -> u64 {
        self.earlier.iter().map(|earlier| earlier.entries.mark(direction, key, spi)).max().unwrap_or(0)
    }
}

impl NumberStore for NumberFile {
    fn mark(&self, direction: Direction, key: &EspKey, spi: u32) -> u64 {
        self.entries.mark(direction, key, spi).max(self.mark_before(direction, key, spi))
    }

    fn claim(&mut self, direction: Direction, key: &EspKey, spi: u32) -> Result<u64, KeyingError> {
        let not_written = |_| KeyingError::NotWritten;
        let name = self.entries.name(direction, key, spi);
        let (_, hash) = name;
        if !self.lock.claim(hash).map_err(not_written)? {
            return Err(KeyingError::KeyInUse);
        }
        let _write_lock = self.lock.lock().map_err(not_written)?;
        self.refresh().map_err(not_written)?;
        let before = self.mark_before(direction, key, spi);
        let number = before.max(self.entries.find(name).unwrap_or(0));
        match self.entries.find(name) {
            // The next start may name another key file and miss the file of the earlier version.
            found if found.unwrap_or(0) < before => {
                self.write_locked(&[NumberMark { direction, key, spi, number }]).map_err(not_written)?;
            }
            Some(_) => {}
            None => self.entries.begin(name),
        }
        Ok(number)
    }

    fn write(&mut self, marks: &[NumberMark<'_>]) -> io::Result<()> {
        let _write_lock = self.lock.lock()?;
        self.refresh()?;
        self.write_locked(marks)
    }
}

impl Drop for NumberFile {
    fn drop(&mut self) {
        if !self.entries.begun().is_empty() {
            // Losing these entries is harmless, because no packet was sent under these keys.
            let _ = self.write(&[]);
        }
    }
}

/// The identity of a file, and its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileState {
    identity: (u64, u64),
    length: u64,
}

impl FileState {
    fn open(path: &Path) -> io::Result<(File, FileState)> {
        let file = File::open(path)?;
        let state = FileState::from_metadata(&file.metadata()?);
        Ok((file, state))
    }

    #[cfg(unix)]
    fn from_metadata(metadata: &Metadata) -> FileState {
        use std::os::unix::fs::MetadataExt;
        FileState { identity: (metadata.dev(), metadata.ino()), length: metadata.len() }
    }

    /// Without file locks, only one process can use a store, so the identity does not matter.
    #[cfg(not(unix))]
    fn from_metadata(metadata: &Metadata) -> FileState {
        FileState { identity: (0, 0), length: metadata.len() }
    }
}

/// The file that carries the locks.
#[derive(Debug)]
struct LockFile(std::sync::Arc<File>);

/// The lock of byte 0, held until dropped.
struct WriteLock(#[cfg_attr(not(target_os = "linux"), expect(dead_code))] std::sync::Arc<File>);

#[cfg(target_os = "linux")]
mod by_byte {
    use super::{LockFile, NumberFileError, WriteLock, io, private_options, with_ending};
    use nix::errno::Errno;
    use nix::fcntl::{FcntlArg, fcntl};
    use nix::libc::{F_UNLCK, F_WRLCK, SEEK_SET, c_int, flock};
    use std::path::Path;
    use std::sync::Arc;

    impl LockFile {
        pub(super) fn open(path: &Path) -> Result<LockFile, NumberFileError> {
            let file = private_options().create(true).truncate(false).open(with_ending(path, ".lock"));
            let file = file.map_err(|error| NumberFileError::Io { path: path.into(), error })?;
            Ok(LockFile(Arc::new(file)))
        }

        /// Waits for the lock of byte 0, which other processes hold no longer than a write takes.
        pub(super) fn lock(&self) -> io::Result<WriteLock> {
            let lock = range(F_WRLCK, 0);
            while let Err(error) = fcntl(&self.0, FcntlArg::F_OFD_SETLKW(&lock)) {
                if error != Errno::EINTR {
                    return Err(error.into());
                }
            }
            Ok(WriteLock(self.0.clone()))
        }

        /// Locks the byte of a hash until the file is closed. Returns false if another process has the lock.
        pub(super) fn claim(&self, hash: [u8; 16]) -> io::Result<bool> {
            let (start, _) = hash.split_at(8);
            let at = start.iter().fold(0u64, |at, byte| at << 8 | u64::from(*byte));
            match fcntl(&self.0, FcntlArg::F_OFD_SETLK(&range(F_WRLCK, 1 + (at >> 2) as i64))) {
                Ok(_) => Ok(true),
                Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
                Err(error) => Err(error.into()),
            }
        }
    }

    impl Drop for WriteLock {
        fn drop(&mut self) {
            // Unlocking cannot fail, because this process holds the lock.
            let _ = fcntl(&self.0, FcntlArg::F_OFD_SETLK(&range(F_UNLCK, 0)));
        }
    }

    fn range(kind: c_int, at: i64) -> flock {
        flock { l_type: kind as i16, l_whence: SEEK_SET as i16, l_start: at, l_len: 1, l_pid: 0 }
    }
}

/// For systems without byte-range locks per open file: the first process has the store to itself.
#[cfg(not(target_os = "linux"))]
mod whole {
    use super::{LockFile, NumberFileError, TryLockError, WriteLock, io, private_options, with_ending};
    use std::path::Path;
    use std::sync::Arc;

    impl LockFile {
        pub(super) fn open(path: &Path) -> Result<LockFile, NumberFileError> {
            let about = |error| NumberFileError::Io { path: path.into(), error };
            let file =
                private_options().create(true).truncate(false).open(with_ending(path, ".lock")).map_err(about)?;
            match file.try_lock() {
                Ok(()) => Ok(LockFile(Arc::new(file))),
                Err(TryLockError::WouldBlock) => Err(NumberFileError::InUse { path: path.into() }),
                Err(TryLockError::Error(error)) => Err(about(error)),
            }
        }

        pub(super) fn lock(&self) -> io::Result<WriteLock> {
            Ok(WriteLock(self.0.clone()))
        }

        pub(super) fn claim(&self, _: [u8; 16]) -> io::Result<bool> {
            Ok(true)
        }
    }
}

/// Creates a folder and its missing parents, accessible to this user only, and syncs their names.
fn create_folder(folder: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    match (builder.create(folder), folder.parent()) {
        (Ok(()), _) => sync_folder_of(folder),
        (Err(error), _) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        (Err(error), Some(above)) if error.kind() == io::ErrorKind::NotFound && above != Path::new("") => {
            create_folder(above)?;
            create_folder(folder)
        }
        (Err(error), _) => Err(error),
    }
}

#[cfg(unix)]
fn others_may_write(folder: &Metadata) -> bool {
    std::os::unix::fs::PermissionsExt::mode(&folder.permissions()) & 0o022 != 0 || belongs_to_another_user(folder)
}

/// Tests whether another user owns the folder. Such a user could write to the folder or remove the store.
#[cfg(target_os = "linux")]
fn belongs_to_another_user(folder: &Metadata) -> bool {
    std::os::unix::fs::MetadataExt::uid(folder) != nix::unistd::geteuid().as_raw()
}

#[cfg(all(unix, not(target_os = "linux")))]
fn belongs_to_another_user(_: &Metadata) -> bool {
    false
}

#[cfg(not(unix))]
fn others_may_write(_: &Metadata) -> bool {
    false
}

fn damaged(path: &Path) -> io::Error {
    io::Error::other(format!("{}: the file is damaged", path.display()))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::memory::SPENT;
    use core::time::Duration;
    use offload_api::EspSuite;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use zeroize::Zeroizing;

    const SEND: Direction = Direction::Transmit;
    const SPI: u32 = 7;

    fn key(byte: u8) -> EspKey {
        EspKey::new(EspSuite::Aes128Gcm, &[byte; 20]).unwrap()
    }

    fn mark(key: &EspKey, number: u64) -> NumberMark<'_> {
        NumberMark { direction: SEND, key, spi: SPI, number }
    }

    /// Opens the store as a new process does.
    fn begin(folder: &Path) -> NumberFile {
        NumberFile::in_folder(folder).unwrap()
    }

    /// Writes a file in the format of earlier versions beside `keys`.
    fn earlier_file(keys: &Path, key: &EspKey, number: u64) {
        let path = with_ending(keys, ".numbers");
        let mut entries = NumberEntries::with(Zeroizing::new([9; 32]));
        entries
            .write(&[mark(key, number)], &mut DiskFolder::new(&path), &mut DiskFolder::new(&spent_path(&path)))
            .unwrap();
    }

    #[test]
    fn key_is_used_by_one_process_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let mut one = begin(folder.path());
        let mut other = begin(folder.path());
        assert_eq!(one.claim(SEND, &key(1), SPI), Ok(0));
        assert_eq!(one.claim(SEND, &key(1), 8), Ok(0), "the same process, which knows its keys itself");
        assert_eq!(other.claim(SEND, &key(1), 8), Err(KeyingError::KeyInUse), "nonces do not depend on the SPI");
        assert_eq!(other.claim(SEND, &key(2), SPI), Ok(0));
        assert_eq!(other.claim(Direction::Receive, &key(1), SPI), Ok(0), "the other end, on this machine");
        assert_eq!(one.claim(Direction::Receive, &key(1), SPI), Err(KeyingError::KeyInUse));
        assert_eq!(one.claim(Direction::Receive, &key(1), 8), Ok(0), "another sender's numbers");
        one.write(&[mark(&key(1), 77)]).unwrap();
        drop(one);
        assert_eq!(other.claim(SEND, &key(1), SPI), Ok(77));
    }

    #[test]
    fn processes_keep_each_others_entries() {
        let folder = tempfile::tempdir().unwrap();
        let mut processes = [1, 2, 3].map(|byte| (key(byte), begin(folder.path())));
        for (key, process) in &mut processes {
            assert_eq!(process.claim(SEND, key, SPI), Ok(0));
            process.write(&[mark(key, 1)]).unwrap();
        }
        let inode = || folder.path().join("numbers").metadata().unwrap().ino();
        let before = inode();
        for number in 2..100 {
            processes.iter_mut().for_each(|(key, process)| process.write(&[mark(key, number)]).unwrap());
        }
        assert_eq!(inode(), before, "a mark costs a line, however many processes there are");
        for number in 100..2000 {
            processes.iter_mut().for_each(|(key, process)| process.write(&[mark(key, number)]).unwrap());
        }
        assert_ne!(inode(), before, "the file does not grow without end");
        drop(processes);
        let mut next = begin(folder.path());
        assert_eq!([1, 2, 3].map(|byte| next.claim(SEND, &key(byte), SPI)), [Ok(1999); 3]);
    }

    #[test]
    fn folder_and_files_are_private_to_their_owner() {
        let above = tempfile::tempdir().unwrap();
        let folder = above.path().join("made/below");
        begin(&folder).write(&[mark(&key(3), 1)]).unwrap();
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&above.path().join("made")), mode(&folder)), (0o700, 0o700));
        let names = ["numbers", "numbers.lock"];
        assert_eq!(names.map(|name| mode(&folder.join(name))), [0o600; 2]);
        let text = std::fs::read_to_string(folder.join("numbers")).unwrap();
        assert!(!text.contains(&"03".repeat(8)), "no keys in it");
        if nix::unistd::geteuid().is_root() {
            // Only root can change a folder's owner.
            let of_another = tempfile::tempdir().unwrap();
            std::os::unix::fs::chown(of_another.path(), Some(65_534), None).unwrap();
            let refused = NumberFile::in_folder(of_another.path()).unwrap_err();
            assert!(matches!(refused, NumberFileError::NotPrivate { .. }), "{refused}");
        }
        for loose in [0o770, 0o707] {
            std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(loose)).unwrap();
            let refused = NumberFile::in_folder(&folder).unwrap_err();
            assert!(matches!(refused, NumberFileError::NotPrivate { .. }), "{loose:o}: {refused}");
        }
    }

    #[test]
    fn earlier_files_are_imported_permanently() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("keys"), "").unwrap();
        std::os::unix::fs::symlink(at("keys"), at("link")).unwrap();
        earlier_file(&at("keys"), &key(1), 77);
        // A program of an earlier version is running.
        let running = File::create(at("keys.numbers.lock")).unwrap();
        running.lock().unwrap();
        let mut process = begin(&at("store"));
        let refused = process.take_over(&at("keys")).unwrap_err();
        assert!(matches!(refused, NumberFileError::InUse { .. }), "{refused}");
        drop(running);
        process.take_over(&at("link")).unwrap();
        assert!(process.accounts_for(&key(1), SPI, std::time::UNIX_EPOCH));
        assert_eq!((process.mark(SEND, &key(1), SPI), process.claim(SEND, &key(1), SPI)), (77, Ok(77)));
        drop(process);
        // The earlier file is removed, and nothing was sent in the meantime.
        std::fs::remove_file(at("keys.numbers")).unwrap();
        let mut next = begin(&at("store"));
        next.take_over(&at("keys")).unwrap();
        assert_eq!(next.claim(SEND, &key(1), SPI), Ok(77));
        std::fs::write(at("keys.numbers"), "else").unwrap();
        let refused = next.take_over(&at("keys")).unwrap_err().to_string();
        let wanted = "line 1 is damaged: replace all keys that are in use, then remove the file";
        assert!(refused.ends_with(wanted), "{refused}");
    }

    #[test]
    fn spent_keys_of_an_earlier_file_stay_spent() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        earlier_file(&at("keys"), &key(1), SPENT);
        let mut process = begin(&at("store"));
        process.take_over(&at("keys")).unwrap();
        assert_eq!(process.claim(SEND, &key(1), SPI), Ok(SPENT));
        drop(process);
        std::fs::remove_file(at("keys.numbers")).unwrap();
        assert_eq!(begin(&at("store")).claim(SEND, &key(1), SPI), Ok(SPENT));
    }

    #[test]
    fn earlier_file_is_read_under_its_lock() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        earlier_file(&at("keys"), &key(1), 77);
        let running = File::create(at("keys.numbers.lock")).unwrap();
        running.lock().unwrap();
        let text = std::fs::read(at("keys.numbers")).unwrap();
        // The running program writes.
        std::fs::write(at("keys.numbers"), &text[..text.len() / 2]).unwrap();
        let mut process = begin(&at("store"));
        let refused = process.take_over(&at("keys")).unwrap_err();
        assert!(matches!(refused, NumberFileError::InUse { .. }), "{refused}");
        std::fs::write(at("keys.numbers"), &text).unwrap();
        drop(running);
        process.take_over(&at("keys")).unwrap();
        assert_eq!(process.claim(SEND, &key(1), SPI), Ok(77));
    }

    #[test]
    fn old_keys_without_an_entry_are_reported() {
        let folder = tempfile::tempdir().unwrap();
        let (now, hour) = (SystemTime::now(), Duration::from_secs(3600));
        let mut first = begin(folder.path());
        assert!(first.accounts_for(&key(1), SPI, now - 9 * hour), "it has forgotten nothing");
        first.claim(SEND, &key(1), SPI).unwrap();
        drop(first);
        let next = begin(folder.path());
        assert!(next.accounts_for(&key(1), SPI, now - 9 * hour), "it was there, and sent nothing");
        assert!(!next.accounts_for(&key(2), SPI, now - 2 * hour));
        assert!(next.accounts_for(&key(2), SPI, now) && next.accounts_for(&key(2), SPI, now + hour));
    }

    /// File systems give a new file the inode number of one that was removed: ext4 does so with every second file here.
    #[test]
    fn file_replaced_twice_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        begin(folder.path()).write(&[mark(&key(1), 100)]).unwrap();
        let mut process = begin(folder.path());
        let inode = || folder.path().join("numbers").metadata().unwrap().ino();
        let (known, mut number) = (inode(), 100);
        while number == 100 || (inode() != known && number < 120) {
            number += 1;
            let mut other = begin(folder.path());
            other.claim(SEND, &key(1), SPI).unwrap();
            other.write(&[mark(&key(1), number)]).unwrap();
            drop(other);
            // A starting program replaces the file.
            drop(begin(folder.path()));
        }
        assert_eq!(process.claim(SEND, &key(1), SPI), Ok(number));
    }

    #[test]
    fn failed_marks_do_not_count_as_written() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let mut process = begin(folder.path());
        process.claim(SEND, &key(1), SPI).unwrap();
        process.write(&[mark(&key(1), 5)]).unwrap();
        // Now appending fails, and so does creating a new file.
        std::fs::rename(at("numbers"), at("gone")).unwrap();
        std::fs::create_dir(at("numbers.new")).unwrap();
        assert!(process.write(&[mark(&key(1), 9)]).is_err());
        assert_eq!(process.mark(SEND, &key(1), SPI), 5);
        assert!(NumberFile::in_folder(folder.path()).is_err(), "nor does a program begin without it");
        std::fs::remove_dir(at("numbers.new")).unwrap();
        process.write(&[mark(&key(2), 6)]).unwrap();
        drop(process);
        let next = begin(folder.path());
        assert_eq!([1, 2].map(|byte| next.mark(SEND, &key(byte), SPI)), [5, 6], "all that it knew");
    }

    /// After a failed write, the file's content and name may not be durable.
    #[test]
    fn write_after_a_failed_one_replaces_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let mut process = begin(folder.path());
        process.write(&[mark(&key(1), 5)]).unwrap();
        // A sync cannot be made to fail in a test, so the entries are marked directly.
        process.entries.discard_file();
        std::fs::create_dir(at("numbers.new")).unwrap();
        assert!(process.write(&[mark(&key(1), 6)]).is_err());
        std::fs::remove_dir(at("numbers.new")).unwrap();
        let known = File::open(at("numbers")).unwrap();
        process.write(&[mark(&key(1), 7)]).unwrap();
        assert_ne!(at("numbers").metadata().unwrap().ino(), known.metadata().unwrap().ino());
    }

    #[test]
    fn damage_is_refused_and_an_incomplete_line_is_repaired() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("numbers");
        let mut process = begin(folder.path());
        process.write(&[mark(&key(1), 5)]).unwrap();
        let append = |text: &str| io::Write::write_all(&mut File::options().append(true).open(&path)?, text.as_bytes());
        // Another process was killed during a write.
        append("sent 00").unwrap();
        process.write(&[mark(&key(1), 6)]).unwrap();
        assert_eq!(begin(folder.path()).mark(SEND, &key(1), SPI), 6);
        append("sent 00\nsent 000102030405060708090a0b0c0d0e0f 9\n").unwrap();
        assert!(process.write(&[mark(&key(1), 7)]).is_err());
        assert_eq!(process.claim(SEND, &key(2), SPI), Err(KeyingError::NotWritten));
        assert!(matches!(NumberFile::in_folder(folder.path()), Err(NumberFileError::Damaged { .. })));
        // A store that another process started anew is not mistaken for this store.
        std::fs::remove_file(&path).unwrap();
        drop(begin(folder.path()));
        assert!(process.write(&[mark(&key(1), 7)]).is_err());
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(matches!(NumberFile::in_folder(file.path()), Err(NumberFileError::Io { .. })));
    }
}
