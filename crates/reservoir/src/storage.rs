//! Storage: a folder that no path can leave, and open files in it.
//!
//! Both are traits, implemented by real folders (`rooted`) and by simulated media. Calls block; callers run them on the
//! pool.

use crate::attributes::{Attributes, Preserve};
use crate::name::Name;
use http_rules::{CurrentState, FileVersion, Preconditions, UnmetPrecondition};
use std::ffi::OsString;
use std::io;
use std::sync::Arc;
use std::time::SystemTime;

/// A folder and its contents.
///
/// See [`Rooted`](crate::rooted::Rooted) for an example.
pub trait Folder: Send + Sync {
    /// Opens a regular file for reading.
    ///
    /// # Errors
    /// If there is no such file.
    fn open(&self, name: &Name) -> io::Result<Arc<dyn StoredFile>>;

    /// Opens a file for reading and writing. A missing file is created, accessible to its owner only.
    ///
    /// # Errors
    /// If the file cannot be opened, or is not a regular file.
    fn open_or_create(&self, name: &Name) -> io::Result<Arc<dyn StoredFile>>;

    /// Describes the entry of a name.
    ///
    /// # Errors
    /// If there is no such entry.
    fn about(&self, name: &Name) -> io::Result<FileInfo>;

    /// Returns the rights of a new file under a name. A file that replaces another one gets that file's rights.
    /// Otherwise the mode is `source`, or read and write for all, reduced by the process' umask. Media without rights
    /// return the default.
    ///
    /// # Errors
    /// If the system fails.
    fn rights(&self, name: &Name, source: Option<u32>) -> io::Result<Rights> {
        let _ = (name, source);
        Ok(Rights::default())
    }

    /// Starts listing a folder, in no particular order and without unfinished files.
    ///
    /// # Errors
    /// If the name is not a folder.
    fn list(&self, name: &Name) -> io::Result<FolderEntries>;

    /// Creates a folder and its parents.
    ///
    /// # Errors
    /// If the folder cannot be created.
    fn create_folder(&self, name: &Name) -> io::Result<()>;

    /// Renames a file, replacing an existing one. After a crash the file has one of the two names.
    ///
    /// # Errors
    /// If the file cannot be renamed.
    fn rename(&self, from: &Name, to: &Name) -> io::Result<()>;

    /// Renames a file, unless the new name exists. After a crash the file has one of the two names.
    ///
    /// # Errors
    /// [`AlreadyExists`](io::ErrorKind::AlreadyExists) if the new name exists; others if the system fails.
    fn rename_to_new(&self, from: &Name, to: &Name) -> io::Result<()> {
        // Implementations with an atomic operation override this method.
        match self.about(to) {
            Err(error) if is_absent(&error) => self.rename(from, to),
            Err(error) => Err(error),
            Ok(_) => Err(io::ErrorKind::AlreadyExists.into()),
        }
    }

    /// Removes a file.
    ///
    /// # Errors
    /// If the file cannot be removed.
    fn remove(&self, name: &Name) -> io::Result<()>;

    /// Opens a folder for syncing files that will be written in it.
    ///
    /// # Errors
    /// If the name is not a folder, or the folder cannot be opened.
    fn open_folder(&self, name: &Name) -> io::Result<Arc<dyn OpenFolder>>;
}

/// An open folder. Its syncs report each write that failed since the folder was opened.
///
/// The system reports a failed write once to each file that was open then, and afterwards treats the lost bytes as
/// synced. So a folder must be opened before its files are written. After a failed sync, all data since the last
/// successful one count as lost and must be written again.
///
/// See [`Rooted`](crate::rooted::Rooted) for an example.
pub trait OpenFolder: Send + Sync {
    /// Waits until all files of the folder's file system are on the medium.
    ///
    /// # Errors
    /// If a write to the file system failed.
    fn sync_files(&self) -> io::Result<()>;

    /// Waits until the names in the folder are on the medium.
    ///
    /// # Errors
    /// If a write to the folder failed.
    fn sync_names(&self) -> io::Result<()>;

    /// Returns the number of the folder's file system.
    ///
    /// # Errors
    /// If the system fails.
    fn file_system(&self) -> io::Result<u64>;
}

/// The entries of a folder, read one by one. Each call of `next` may block.
pub type FolderEntries = Box<dyn Iterator<Item = io::Result<(OsString, FileInfo)>> + Send>;

/// An open file.
///
/// See [`Rooted`](crate::rooted::Rooted) for an example.
pub trait StoredFile: Send + Sync {
    /// Reads at `offset` and fills `into`, except at the end of the file. Returns the number of bytes.
    ///
    /// # Errors
    /// If the medium fails.
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes all of `bytes` at `offset`.
    ///
    /// # Errors
    /// If the medium fails or is full.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Writes `length` zeros at `offset`, as a hole if the medium supports holes.
    ///
    /// # Errors
    /// If the medium fails or is full.
    fn write_zeros(&self, mut offset: u64, mut length: u64) -> io::Result<()> {
        const ZEROS: [u8; 4096] = [0; 4096];
        while length > 0 {
            let some = length.min(ZEROS.len() as u64);
            self.write_at(&ZEROS[..some as usize], offset)?;
            (offset, length) = (offset + some, length - some);
        }
        Ok(())
    }

    /// Reads the wanted attributes. The result is empty if the medium has no attributes.
    ///
    /// # Errors
    /// If the medium fails.
    fn attributes(&self, wanted: Preserve) -> io::Result<Attributes> {
        let _ = wanted;
        Ok(Attributes::default())
    }

    /// Sets the attributes and removes all other extended attributes that users may set.
    ///
    /// # Errors
    /// If the medium has no attributes or refuses them.
    fn set_attributes(&self, attributes: &Attributes) -> io::Result<()> {
        if attributes.is_empty() { Ok(()) } else { Err(io::ErrorKind::Unsupported.into()) }
    }

    /// Sets owner and group of the file, as far as permitted. Returns whether the file has that group.
    fn set_owner(&self, owner: (u32, u32)) -> bool {
        let _ = owner;
        true
    }

    /// Truncates the file, or extends it with zeros.
    ///
    /// # Errors
    /// If the size cannot be set.
    fn set_size(&self, size: u64) -> io::Result<()>;

    /// Waits until the written data are on the medium.
    ///
    /// # Errors
    /// If a write failed since the file was opened. This is reported once: all bytes written since the last successful
    /// sync count as lost, and a later sync succeeds without them.
    fn sync(&self) -> io::Result<()>;

    /// Drops synced pages from the cache, so that the next read comes from the medium.
    fn drop_cache(&self);

    /// Describes the file.
    ///
    /// # Errors
    /// If the system fails.
    fn about(&self) -> io::Result<FileInfo>;

    /// Sets the modification time.
    ///
    /// # Errors
    /// If the time cannot be set.
    fn set_modified(&self, time: SystemTime) -> io::Result<()>;

    /// Returns a number that is unique among the open files of the folder.
    ///
    /// # Errors
    /// If the system fails.
    fn identity(&self) -> io::Result<u64>;

    /// Locks the file for this process until it is closed. Returns false if another process holds the lock.
    ///
    /// # Errors
    /// If the system fails.
    fn try_lock(&self) -> io::Result<bool>;
}

/// The description of a file or folder.
///
/// See [`Rooted`](crate::rooted::Rooted) for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileInfo {
    /// Kind of the entry.
    pub kind: FileKind,
    /// Size in bytes.
    pub size: u64,
    /// Modification time.
    pub modified: SystemTime,
    /// Inode number; 0 if unknown.
    pub inode: u64,
    /// Time of the last inode change, which users cannot set, or a change counter if the medium has no such time.
    pub changed: SystemTime,
}

impl FileInfo {
    /// Describes an entry of another machine, without an inode number.
    pub const fn without_inode(kind: FileKind, size: u64, modified: SystemTime) -> FileInfo {
        FileInfo { kind, size, modified, inode: 0, changed: SystemTime::UNIX_EPOCH }
    }

    /// Returns the version of the file.
    pub(crate) fn version(&self) -> FileVersion {
        FileVersion { inode: self.inode, size: self.size, modified: self.modified, changed: self.changed }
    }

    /// Returns the entity tag of this version of the file.
    pub(crate) fn entity_tag(&self) -> String {
        self.version().entity_tag().to_string()
    }
}

/// The rights of a file.
///
/// See [`Rooted`](crate::rooted::Rooted) for an example.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// The nine permission bits. `None` if the medium has no rights.
    pub mode: Option<u32>,
    /// Owner and group of the file. `None` if the process determines both.
    pub owner: Option<(u32, u32)>,
}

impl Rights {
    /// Sets the file's owner and group, and returns the mode that must be set afterwards.
    pub(crate) fn owned(self, file: &dyn StoredFile) -> Option<u32> {
        match self.owner {
            // The rights of one group must not go to another group.
            Some(owner) if !file.set_owner(owner) => self.mode.map(|mode| mode & !0o070),
            _ => self.mode,
        }
    }
}

/// The kind of an entry.
///
/// See [`Rooted`](crate::rooted::Rooted) for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A folder.
    Folder,
    /// A pipe, a device, or a link that leads out of the root.
    Other,
}

/// Evaluates preconditions for the present state of a name.
pub(crate) fn evaluate(
    folder: &dyn Folder,
    name: &Name,
    preconditions: &Preconditions,
) -> io::Result<Result<(), UnmetPrecondition>> {
    if preconditions.is_empty() {
        return Ok(Ok(()));
    }
    Ok(match folder.about(name) {
        Ok(about) if about.kind == FileKind::File => evaluate_for(&about, preconditions),
        // A link that leads out of the root has the name too.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            preconditions.evaluate(CurrentState::Unversioned)
        }
        Ok(_) => preconditions.evaluate(CurrentState::Unversioned),
        Err(error) if is_absent(&error) => preconditions.evaluate(CurrentState::Absent),
        Err(error) => return Err(error),
    })
}

/// Evaluates preconditions for a file.
pub(crate) fn evaluate_for(file: &FileInfo, preconditions: &Preconditions) -> Result<(), UnmetPrecondition> {
    preconditions.evaluate(CurrentState::Version(&file.version()))
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Fills `into` from `offset` on.
pub(crate) fn read_exactly(file: &dyn StoredFile, mut into: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !into.is_empty() {
        let read = file.read_at(into, offset)?;
        if read == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file has become shorter"));
        }
        into = &mut into[read..];
        offset += read as u64;
    }
    Ok(())
}
