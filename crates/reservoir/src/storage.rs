//! Where files are: a folder that no path leads out of, and open files in it.
//!
//! Both are traits, for real folders (`rooted`) and for media that are simulated. Calls block: the shells have them run by a pool.

use crate::attributes::{Attributes, Preserve};
use crate::name::Name;
use http_rules::{CurrentState, FileVersion, Preconditions, UnmetPrecondition};
use std::ffi::OsString;
use std::io;
use std::sync::Arc;
use std::time::SystemTime;

/// A folder, and what is below it.
///
/// See [`Rooted`](crate::rooted::Rooted) for an example.
pub trait Folder: Send + Sync {
    /// Opens a regular file to be read.
    ///
    /// # Errors
    /// If there is none.
    fn open(&self, name: &Name) -> io::Result<Arc<dyn Stored>>;

    /// Opens a file to be read and written. A missing file is made, for its owner alone to read and write.
    ///
    /// # Errors
    /// If it cannot be, or is no regular file.
    fn open_or_create(&self, name: &Name) -> io::Result<Arc<dyn Stored>>;

    /// What there is under a name.
    ///
    /// # Errors
    /// If there is nothing.
    fn about(&self, name: &Name) -> io::Result<About>;

    /// Returns the rights of a new file under a name: the rights of the file that it replaces; or else the nine bits of its `source`, or reading
    /// and writing for all, less the process' umask. Media without rights return the default.
    ///
    /// # Errors
    /// If the system fails.
    fn rights(&self, name: &Name, source: Option<u32>) -> io::Result<Rights> {
        let _has_none = (name, source);
        Ok(Rights::default())
    }

    /// Begins to list a folder, in no order. Unfinished files are left out.
    ///
    /// # Errors
    /// If it is no folder.
    fn list(&self, name: &Name) -> io::Result<Entries>;

    /// Makes a folder, and those above it.
    ///
    /// # Errors
    /// If it cannot be made.
    fn create_folder(&self, name: &Name) -> io::Result<()>;

    /// Gives a file another name, in the place of what had that. After a crash it has the one or the other.
    ///
    /// # Errors
    /// If it cannot be.
    fn rename(&self, from: &Name, to: &Name) -> io::Result<()>;

    /// Renames a file, unless the new name exists. After a crash the file has one of the two names.
    ///
    /// # Errors
    /// [`AlreadyExists`](io::ErrorKind::AlreadyExists) if the new name exists; others if the system fails.
    fn rename_to_new(&self, from: &Name, to: &Name) -> io::Result<()> {
        // An implementation with an atomic operation overrides this.
        match self.about(to) {
            Err(error) if is_absent(&error) => self.rename(from, to),
            Err(error) => Err(error),
            Ok(_) => Err(io::ErrorKind::AlreadyExists.into()),
        }
    }

    /// Removes a file.
    ///
    /// # Errors
    /// If it cannot be.
    fn remove(&self, name: &Name) -> io::Result<()>;

    /// Opens a folder to sync what will be written in it.
    ///
    /// # Errors
    /// If the name is no folder, or the folder cannot be opened.
    fn open_folder(&self, name: &Name) -> io::Result<Arc<dyn OpenFolder>>;
}

/// An open folder, whose syncs report each write that failed since the folder was opened.
///
/// A system reports a failed write once to each file that was open then, and takes the lost bytes for synced from then on. So a folder must be
/// open before its files are written. After a failed sync, everything since the last good one counts as lost and must be written again.
///
/// See [`Rooted`](crate::rooted::Rooted) for an example.
pub trait OpenFolder: Send + Sync {
    /// Returns when all files of the folder's file system are on the medium.
    ///
    /// # Errors
    /// If a write to the file system failed.
    fn sync_files(&self) -> io::Result<()>;

    /// Returns when the names in the folder are on the medium.
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
pub type Entries = Box<dyn Iterator<Item = io::Result<(OsString, About)>> + Send>;

/// An open file.
///
/// See [`Rooted`](crate::rooted::Rooted) for an example.
pub trait Stored: Send + Sync {
    /// Reads at `offset`; fewer bytes than asked for only at the end of the file.
    ///
    /// # Errors
    /// If the medium fails.
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes all of `bytes` at `offset`.
    ///
    /// # Errors
    /// If the medium fails, or is full.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Writes so many zeros at `offset`: a hole, where the medium has such.
    ///
    /// # Errors
    /// If the medium fails, or is full.
    fn write_zeros(&self, mut offset: u64, mut length: u64) -> io::Result<()> {
        const ZEROS: [u8; 4096] = [0; 4096];
        while length > 0 {
            let some = length.min(ZEROS.len() as u64);
            self.write_at(&ZEROS[..some as usize], offset)?;
            (offset, length) = (offset + some, length - some);
        }
        Ok(())
    }

    /// Its rights and extended attributes, as far as they are wanted; none, where the medium has no such.
    ///
    /// # Errors
    /// If the medium fails.
    fn attributes(&self, wanted: Preserve) -> io::Result<Attributes> {
        let _has_none = wanted;
        Ok(Attributes::default())
    }

    /// Sets them; it has no others of those that users may set from then on.
    ///
    /// # Errors
    /// If the medium has no such, or does not allow it.
    fn set_attributes(&self, attributes: &Attributes) -> io::Result<()> {
        if attributes.is_empty() { Ok(()) } else { Err(io::ErrorKind::Unsupported.into()) }
    }

    /// Sets the owner and the group of the file, as far as the process may. Returns whether the file has that group.
    fn set_owner(&self, owner: (u32, u32)) -> bool {
        let _has_none = owner;
        true
    }

    /// Cuts the file, or makes it longer by zeros.
    ///
    /// # Errors
    /// If it cannot be.
    fn set_size(&self, size: u64) -> io::Result<()>;

    /// Returns when what was written is on the medium.
    ///
    /// # Errors
    /// If a write failed since the file was opened. This is reported once: all bytes written since the last good sync count as lost, and a
    /// later sync succeeds without them.
    fn sync(&self) -> io::Result<()>;

    /// Forgets what is cached and synced, so that it is read from the medium next.
    fn drop_cache(&self);

    /// What it is.
    ///
    /// # Errors
    /// If the system fails.
    fn about(&self) -> io::Result<About>;

    /// Sets when it was modified.
    ///
    /// # Errors
    /// If that is not allowed.
    fn set_modified(&self, time: SystemTime) -> io::Result<()>;

    /// A number that no other file of the folder has while this one is open.
    ///
    /// # Errors
    /// If the system fails.
    fn identity(&self) -> io::Result<u64>;

    /// Takes the file for this process until it is closed; false if another one has it.
    ///
    /// # Errors
    /// If the system fails.
    fn try_lock(&self) -> io::Result<bool>;
}

/// What is known of a file or folder.
///
/// See [`Rooted`](crate::rooted::Rooted) for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct About {
    /// What it is.
    pub kind: Kind,
    /// Its bytes.
    pub size: u64,
    /// When it was modified.
    pub modified: SystemTime,
    /// Number of the inode; 0 if it is unknown.
    pub inode: u64,
    /// Time of the last change of the inode, which users cannot set, or a counter of changes where a medium has no such time.
    pub changed: SystemTime,
}

impl About {
    /// Describes an entry of another machine, without a number of the inode.
    pub const fn without_inode(kind: Kind, size: u64, modified: SystemTime) -> About {
        About { kind, size, modified, inode: 0, changed: SystemTime::UNIX_EPOCH }
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
    /// Nine bits of rights. `None` if the medium has no rights.
    pub mode: Option<u32>,
    /// Owner and group of the file. `None` if the process determines both.
    pub owner: Option<(u32, u32)>,
}

impl Rights {
    /// Gives a file its owner and group, and returns the mode that must be set afterwards.
    pub(crate) fn owned(self, file: &dyn Stored) -> Option<u32> {
        match self.owner {
            // The rights of one group must not go to another group.
            Some(owner) if !file.set_owner(owner) => self.mode.map(|mode| mode & !0o070),
            _ => self.mode,
        }
    }
}

/// What is under a name.
///
/// See [`Rooted`](crate::rooted::Rooted) for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A folder.
    Folder,
    /// A pipe, a device, a link that leads out.
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
        Ok(about) if about.kind == Kind::File => evaluate_for(&about, preconditions),
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
pub(crate) fn evaluate_for(file: &About, preconditions: &Preconditions) -> Result<(), UnmetPrecondition> {
    preconditions.evaluate(CurrentState::Version(&file.version()))
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Fills `into` from `offset` on.
pub(crate) fn read_exactly(file: &dyn Stored, mut into: &mut [u8], mut offset: u64) -> io::Result<()> {
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
