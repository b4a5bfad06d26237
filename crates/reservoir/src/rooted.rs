//! A folder of this machine that no path can leave, neither by `..` nor by a link. (cap-std opens every component below
//! the root.)

use crate::attributes::{Attributes, MAX_FIELD_BYTES, Preserve, USERS};
use crate::direct::{DirectFile, DirectState};
use crate::name::{Name, is_unfinished};
use crate::storage::{FileInfo, FileKind, Folder, FolderEntries, OpenFolder, Rights, StoredFile};
use cap_std::ambient_authority;
use cap_std::fs::{Dir, DirEntry, Metadata, MetadataExt as _, OpenOptions, OpenOptionsExt};
use http_rules::FileVersion;
use rustix::fs::{
    Advice, FallocateFlags, Mode, OFlags, RenameFlags, XattrFlags, fadvise, fallocate, fchmod, fgetxattr, flistxattr,
    fremovexattr, fsetxattr, renameat_with,
};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::{File, FileTimes, TryLockError};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

/// A folder of this machine as a [`Folder`].
///
/// ```
/// use offload_reservoir::name::Name;
/// use offload_reservoir::rooted::Rooted;
/// use offload_reservoir::storage::{Folder, FileKind, OpenFolder, StoredFile};
///
/// # let there = tempfile::tempdir()?;
/// # let there = there.path();
/// let root = Rooted::open(there)?;
/// let folder = root.open_folder(&Name::root())?;
/// let file = root.open_or_create(&Name::from_url("/greeting").unwrap())?;
/// file.write_at(b"hello", 0)?;
/// file.sync()?;
/// folder.sync_names()?;
/// let about = file.about()?;
/// assert_eq!((about.kind, about.size), (FileKind::File, 5));
/// assert_eq!(root.rights(&Name::from_url("/greeting").unwrap(), None)?.mode, Some(0o600));
/// std::os::unix::fs::symlink("/etc", there.join("out"))?;
/// assert!(root.open(&Name::from_url("/out/passwd").unwrap()).is_err());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Rooted {
    dir: Arc<Dir>,
    /// Permission bits that new files do not get.
    umask: u32,
    /// State of accesses that bypass the page cache, if enabled.
    past: Option<Arc<DirectState>>,
}

impl Rooted {
    /// Opens the folder at `path`.
    ///
    /// # Errors
    /// If `path` is not a folder or cannot be opened.
    pub fn open(path: &Path) -> io::Result<Rooted> {
        let opened = Dir::open_ambient_dir(path, ambient_authority());
        opened.map(|dir| Rooted { dir: Arc::new(dir), umask: umask(), past: None })
    }

    /// Enables or disables large accesses that bypass the page cache (`O_DIRECT`). If the file system does not support
    /// them, a warning is logged and the cache is used.
    ///
    /// ```
    /// use offload_reservoir::rooted::Rooted;
    ///
    /// # let there = tempfile::tempdir()?;
    /// # let there = there.path();
    /// let root = Rooted::open(there)?.direct(true);
    /// # let _ = root;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn direct(mut self, direct: bool) -> Rooted {
        // The path is used in the log only, so a failure is no error.
        let folder = std::fs::read_link(format!("/proc/self/fd/{}", self.dir.as_raw_fd())).unwrap_or_default();
        self.past = direct.then(|| Arc::new(DirectState::new(folder.display().to_string())));
        self
    }

    #[cfg(test)]
    pub(crate) fn past_cache(&self) -> Option<&DirectState> {
        self.past.as_deref()
    }

    fn folder(&self, name: &Name) -> io::Result<cap_std::fs::File> {
        // The root may have been opened with O_PATH only.
        if name == &Name::root() { self.dir.open(".") } else { self.dir.open(name.path()) }
    }

    fn open_with(&self, name: &Name, options: &mut OpenOptions, writes: bool) -> io::Result<Arc<dyn StoredFile>> {
        // Without NONBLOCK, opening a pipe would wait for its other end.
        options.custom_flags(OFlags::NONBLOCK.bits() as i32);
        let file = self.dir.open_with(name.path(), options)?.into_std();
        let direct = self.past.as_ref().map(|past| DirectFile::new(past.clone(), writes));
        let file = RootedFile { file, direct };
        match file.about()?.kind {
            FileKind::File => Ok(Arc::new(file)),
            _ => Err(no_file()),
        }
    }
}

impl Folder for Rooted {
    fn open(&self, name: &Name) -> io::Result<Arc<dyn StoredFile>> {
        // Opening a pipe or a device has side effects: a writer of the pipe continues, and its bytes are lost.
        match self.about(name)?.kind {
            FileKind::File => self.open_with(name, OpenOptions::new().read(true), false),
            FileKind::Folder => Err(io::ErrorKind::IsADirectory.into()),
            FileKind::Other => Err(no_file()),
        }
    }

    fn open_or_create(&self, name: &Name) -> io::Result<Arc<dyn StoredFile>> {
        self.open_with(name, OpenOptions::new().read(true).write(true).create(true).mode(0o600), true)
    }

    fn about(&self, name: &Name) -> io::Result<FileInfo> {
        about_name(&self.dir, name)
    }

    fn rights(&self, name: &Name, source: Option<u32>) -> io::Result<Rights> {
        let is_link = || self.dir.symlink_metadata(name.path()).is_ok_and(|found| found.is_symlink());
        match self.dir.metadata(name.path()) {
            Ok(replaced) => {
                let mode = Some(cap_std::fs::MetadataExt::mode(&replaced) & 0o777);
                let owner = Some((cap_std::fs::MetadataExt::uid(&replaced), cap_std::fs::MetadataExt::gid(&replaced)));
                Ok(Rights { mode, owner })
            }
            // A link that is broken or leads out of the root is replaced itself.
            Err(error) if error.kind() == io::ErrorKind::NotFound || is_link() => {
                Ok(Rights { mode: Some(source.unwrap_or(0o666) & 0o777 & !self.umask), owner: None })
            }
            Err(error) => Err(error),
        }
    }

    fn list(&self, name: &Name) -> io::Result<FolderEntries> {
        let entries = if name == &Name::root() { self.dir.entries() } else { self.dir.read_dir(name.path()) };
        let (dir, folder) = (self.dir.clone(), name.clone());
        let listed = entries?.filter_map(move |entry| {
            let part = entry.as_ref().map(DirEntry::file_name).unwrap_or_default();
            (!is_unfinished(&part)).then(|| Ok((part.clone(), about_entry(&dir, &folder, &part, &entry?)?)))
        });
        Ok(Box::new(listed))
    }

    fn create_folder(&self, name: &Name) -> io::Result<()> {
        if self.about(name).is_ok_and(|about| about.kind == FileKind::Folder) {
            return Ok(());
        }
        self.create_folder(&name.folder())?;
        let above = self.open_folder(&name.folder())?;
        match self.dir.create_dir(name.path()) {
            // Another writer created the folder first.
            Err(_) if self.about(name).is_ok_and(|about| about.kind == FileKind::Folder) => return Ok(()),
            made => made?,
        }
        above.sync_names().inspect_err(|_| {
            // The next attempt must create the folder again, because a sync without changed names would write nothing.
            let _ = self.dir.remove_dir(name.path());
        })
    }

    fn rename(&self, from: &Name, to: &Name) -> io::Result<()> {
        self.dir.rename(from.path(), &self.dir, to.path())
    }

    fn rename_to_new(&self, from: &Name, to: &Name) -> io::Result<()> {
        let (old, new) = (self.folder(&from.folder())?, self.folder(&to.folder())?);
        let (from_last, to_last) = (from.last().unwrap_or_default(), to.last().unwrap_or_default());
        match renameat_with(&old, from_last, &new, to_last, RenameFlags::NOREPLACE) {
            // The file system lacks this operation.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) if self.dir.symlink_metadata(to.path()).is_err() => {
                self.rename(from, to)
            }
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => Err(io::ErrorKind::AlreadyExists.into()),
            renamed => Ok(renamed?),
        }
    }

    fn remove(&self, name: &Name) -> io::Result<()> {
        self.dir.remove_file(name.path())
    }

    fn open_folder(&self, name: &Name) -> io::Result<Arc<dyn OpenFolder>> {
        Ok(Arc::new(RealFolder(self.folder(name)?.into_std())))
    }
}

/// A folder opened for syncing its contents.
struct RealFolder(File);

impl OpenFolder for RealFolder {
    fn sync_files(&self) -> io::Result<()> {
        // `syncfs` reports failed writes since Linux 5.8.
        Ok(rustix::fs::syncfs(&self.0)?)
    }

    fn sync_names(&self) -> io::Result<()> {
        self.0.sync_all()
    }

    fn file_system(&self) -> io::Result<u64> {
        self.0.metadata().map(|metadata| metadata.dev())
    }
}

fn no_file() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "this is no regular file")
}

fn about_name(dir: &Dir, name: &Name) -> io::Result<FileInfo> {
    let metadata = if name == &Name::root() { dir.dir_metadata() } else { dir.metadata(name.path()) };
    metadata.map(|metadata| about(&metadata))
}

/// Describes the entry `part` of `folder`. A link to a file counts as that file. Other links count as unusable, because
/// links to folders may form cycles.
fn about_entry(dir: &Dir, folder: &Name, part: &OsStr, entry: &DirEntry) -> io::Result<FileInfo> {
    // `about_name` resolves links below the root only, so a link out of the root has no target.
    let found = if entry.file_type()?.is_symlink() {
        let linked = folder.join(part).ok().and_then(|name| about_name(dir, &name).ok());
        linked.filter(|about| about.kind == FileKind::File)
    } else {
        // The entry may be removed while its folder is listed.
        entry.metadata().ok().map(|metadata| about(&metadata))
    };
    Ok(found.unwrap_or(FileInfo::without_inode(FileKind::Other, 0, SystemTime::UNIX_EPOCH)))
}

struct RootedFile {
    file: File,
    direct: Option<DirectFile>,
}

impl StoredFile for RootedFile {
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut filled = match &self.direct {
            Some(direct) => direct.read(&self.file, into, offset)?,
            None => 0,
        };
        while filled < into.len() {
            match self.file.read_at(&mut into[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let written = match &self.direct {
            Some(direct) => direct.write(&self.file, bytes, offset)?,
            None => 0,
        };
        self.file.write_all_at(&bytes[written..], offset + written as u64)
    }

    fn write_zeros(&self, offset: u64, length: u64) -> io::Result<()> {
        let punched = fallocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, length);
        match punched.map_err(io::Error::from) {
            // The file system does not support holes.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                let zeros = vec![0; length as usize];
                self.write_at(&zeros, offset)
            }
            punched => punched,
        }
    }

    fn attributes(&self, wanted: Preserve) -> io::Result<Attributes> {
        let mut attributes = Attributes::default();
        if wanted.mode {
            attributes.mode = Some(self.file.metadata()?.mode() & 0o777);
        }
        if wanted.extended {
            attributes.extended = extended(&self.file)?;
        }
        Ok(attributes)
    }

    fn set_attributes(&self, attributes: &Attributes) -> io::Result<()> {
        let is_named = |name: &[u8]| attributes.extended.iter().any(|(named, _)| named == name);
        for name in extended_names(&self.file)?.iter().filter(|name| !is_named(name)) {
            fremovexattr(&self.file, &name[..])?;
        }
        for (name, value) in &attributes.extended {
            fsetxattr(&self.file, &name[..], value, XattrFlags::empty())?;
        }
        // The mode is set last, because it may remove the right to write.
        match attributes.mode {
            Some(mode) => Ok(fchmod(&self.file, Mode::from_bits_truncate(mode & 0o777))?),
            None => Ok(()),
        }
    }

    fn set_owner(&self, (user, group): (u32, u32)) -> bool {
        let set = |user| std::os::unix::fs::fchown(&self.file, user, Some(group));
        // Only the superuser may change the owner; any process may set a group of which it is a member.
        set(Some(user)).or_else(|_| set(None)).is_ok()
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        self.file.set_len(size)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn drop_cache(&self) {
        // This is advice only: if the system ignores it, reads come from the cache.
        let _ = fadvise(&self.file, 0, None, Advice::DontNeed);
    }

    fn about(&self) -> io::Result<FileInfo> {
        self.file.metadata().map(|metadata| about(&Metadata::from_just_metadata(metadata)))
    }

    fn set_modified(&self, time: SystemTime) -> io::Result<()> {
        self.file.set_times(FileTimes::new().set_modified(time))
    }

    fn identity(&self) -> io::Result<u64> {
        self.file.metadata().map(|metadata| metadata.ino())
    }

    fn try_lock(&self) -> io::Result<bool> {
        match self.file.try_lock() {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

/// Returns the umask of the process. If the system does not tell the umask, new files are private to their owner.
fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let told = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    told.and_then(|octal| u32::from_str_radix(octal.trim(), 8).ok()).unwrap_or(0o077)
}

/// Returns the extended attributes that users may set.
fn extended(file: &File) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    // A longer value could not be sent anyway.
    let mut value = vec![0; MAX_FIELD_BYTES];
    let mut read = |name: Vec<u8>| {
        let length = fgetxattr(file, &name[..], &mut value[..])?;
        Ok((name, value[..length].to_vec()))
    };
    extended_names(file)?.into_iter().map(&mut read).collect()
}

fn extended_names(file: &File) -> io::Result<Vec<Vec<u8>>> {
    let mut names = vec![0; MAX_NAMES];
    let length = match flistxattr(file, &mut names[..]).map_err(io::Error::from) {
        // The file system has no extended attributes.
        Err(error) if error.kind() == io::ErrorKind::Unsupported => 0,
        length => length?,
    };
    let names = names[..length].split(|byte| *byte == 0).filter(|name| name.starts_with(USERS));
    Ok(names.map(<[u8]>::to_vec).collect())
}

/// Linux' limit (XATTR_LIST_MAX).
const MAX_NAMES: usize = 64 << 10;

fn about(metadata: &Metadata) -> FileInfo {
    let kind = match metadata {
        _ if metadata.is_file() => FileKind::File,
        _ if metadata.is_dir() => FileKind::Folder,
        _ => FileKind::Other,
    };
    let modified = metadata.modified().map_or(SystemTime::UNIX_EPOCH, |time| time.into_std());
    let changed = FileVersion::change_time(metadata.ctime(), metadata.ctime_nsec());
    FileInfo { kind, size: metadata.len(), modified, inode: metadata.ino(), changed }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn rename_to_new_never_replaces_a_file() {
        let there = tempfile::tempdir().unwrap();
        std::fs::create_dir(there.path().join("folder")).unwrap();
        let folder = Rooted::open(there.path()).unwrap();
        let name = |url: &str| Name::from_url(url).unwrap();
        for place in ["", "/folder"] {
            let at = |last: &str| name(&format!("{place}/{last}"));
            let path = |last: &str| there.path().join(at(last).path());
            std::fs::write(path("from"), "new").unwrap();
            std::fs::write(path("file"), "old").unwrap();
            symlink("nowhere", path("link")).unwrap();
            for taken in ["file", "link"] {
                let refused = folder.rename_to_new(&at("from"), &at(taken)).unwrap_err();
                assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists, "{place}/{taken}");
            }
            assert_eq!(std::fs::read(path("file")).unwrap(), b"old");
            folder.rename_to_new(&at("from"), &at("to")).unwrap();
            assert_eq!((std::fs::read(path("to")).unwrap(), path("from").exists()), (b"new".to_vec(), false));
        }
    }

    #[test]
    fn links_to_files_are_listed_and_cannot_leave_or_loop() {
        let outer = tempfile::tempdir().unwrap();
        let root = outer.path().join("root");
        std::fs::create_dir_all(root.join("folder")).unwrap();
        std::fs::write(root.join("file"), "text").unwrap();
        std::fs::write(outer.path().join("secret"), "no").unwrap();
        symlink("file", root.join("link")).unwrap();
        symlink(".", root.join("circle")).unwrap();
        symlink("../secret", root.join("leads out")).unwrap();
        symlink(outer.path().join("secret"), root.join("leads out too")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, root.join("pipe"), rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0)
            .unwrap();
        let folder = Rooted::open(&root).unwrap();
        let entries = folder.list(&Name::root()).unwrap().map(Result::unwrap);
        let mut seen: Vec<_> = entries.map(|(part, about)| (part.into_string().unwrap(), about.kind)).collect();
        seen.sort_by(|one, other| one.0.cmp(&other.0));
        // Entries that cannot be copied are listed too, so that the user learns of them.
        let expected = [
            ("circle", FileKind::Other),
            ("file", FileKind::File),
            ("folder", FileKind::Folder),
            ("leads out", FileKind::Other),
            ("leads out too", FileKind::Other),
            ("link", FileKind::File),
            ("pipe", FileKind::Other),
        ];
        assert_eq!(seen, expected.map(|(name, kind)| (name.to_owned(), kind)));
        let name = |url: &str| Name::from_url(url).unwrap();
        for refused in ["/leads%20out", "/leads%20out%20too", "/pipe", "/folder", "/none"] {
            assert!(folder.open(&name(refused)).is_err(), "{refused}");
        }
        assert_eq!(folder.open(&name("/link")).unwrap().about().unwrap().size, 4);
    }
    /// A writer of the pipe must still wait for a reader afterwards.
    #[test]
    fn pipe_is_not_opened() {
        use std::io::{Read, Write};
        let root = tempfile::tempdir().unwrap();
        let pipe = root.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
        let writer = std::thread::spawn({
            let pipe = pipe.clone();
            move || File::options().write(true).open(pipe)?.write_all(b"precious")
        });
        let folder = Rooted::open(root.path()).unwrap();
        for _ in 0..1000 {
            assert!(folder.open(&Name::from_url("/pipe").unwrap()).is_err());
        }
        let flags = OFlags::NONBLOCK.bits() as i32;
        let mut options = File::options();
        std::os::unix::fs::OpenOptionsExt::custom_flags(options.read(true), flags);
        let mut reader = options.open(pipe).unwrap();
        writer.join().unwrap().unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "precious");
    }
}
