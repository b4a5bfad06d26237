//! File system calls for the files of a namespace. Tests substitute a system that loses unsynced data.

use rustix::fs::{Advice, FallocateFlags, fadvise, fallocate};
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, IoSlice, Read, Write as _};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A file system.
pub(super) trait FileSystem: fmt::Debug + Send + Sync {
    /// Creates a file with `content`, replacing an existing file. Neither content nor name is durable.
    fn create(&self, path: &Path, content: &[u8]) -> io::Result<Box<dyn StorageMedium>>;

    /// Reads at most `most` bytes of a file; `None` if the file does not exist.
    fn read(&self, path: &Path, most: u64) -> io::Result<Option<Vec<u8>>>;

    /// Renames a file, replacing the target.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file, if it exists.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Makes the names in a folder durable.
    fn sync_folder(&self, folder: &Path) -> io::Result<()>;
}

/// An open file.
pub(super) trait StorageMedium: fmt::Debug + Send + Sync {
    /// Reads up to the end of `buffer` or of the file.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes with one system call, which may be short.
    fn write_at(&self, slices: &[IoSlice<'_>], offset: u64) -> io::Result<usize>;

    /// Sets bytes to zero and frees their space, without extending the file.
    fn punch_hole(&self, offset: u64, bytes: u64) -> io::Result<()>;

    /// Returns the end of the file.
    fn end(&self) -> io::Result<u64>;

    /// Makes all written bytes durable. A failed write is reported once, and the lost bytes count as synced from then
    /// on.
    fn sync(&self) -> io::Result<()>;

    /// Drops the cache, so that the next read comes from the medium.
    fn drop_cache(&self);
}

/// The real file system.
#[derive(Debug)]
pub(super) struct RealSystem;

/// A real file or block device.
#[derive(Debug)]
pub(super) struct MediumFile {
    pub(super) file: File,
    /// Size of a block device. `None` for a file, whose metadata have the size.
    pub(super) device_bytes: Option<u64>,
}

impl FileSystem for RealSystem {
    fn create(&self, path: &Path, content: &[u8]) -> io::Result<Box<dyn StorageMedium>> {
        // Removed first, because an existing link at this path must not be followed.
        self.remove(path)?;
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(content)?;
        Ok(Box::new(MediumFile { file, device_bytes: None }))
    }

    fn read(&self, path: &Path, most: u64) -> io::Result<Option<Vec<u8>>> {
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let mut content = Vec::new();
        file.take(most).read_to_end(&mut content)?;
        Ok(Some(content))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        File::open(folder)?.sync_all()
    }
}

impl StorageMedium for MediumFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buffer, offset)
    }

    fn write_at(&self, slices: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        Ok(rustix::io::pwritev(&self.file, slices, offset)?)
    }

    fn punch_hole(&self, offset: u64, bytes: u64) -> io::Result<()> {
        Ok(fallocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, bytes)?)
    }

    fn end(&self) -> io::Result<u64> {
        self.device_bytes.map_or_else(|| Ok(self.file.metadata()?.len()), Ok)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn drop_cache(&self) {
        // Dirty pages stay in the cache without a sync. If they are lost now, no earlier process had promised their
        // durability.
        let _ = self.file.sync_data();
        // If the system ignores the advice, reads come from the cache.
        let _ = fadvise(&self.file, 0, None, Advice::DontNeed);
    }
}

/// Replaces the content of the file at `path` atomically: after a crash, the old or the new file is there.
/// [`sync_name`] makes the new one durable.
pub(super) fn replace(system: &dyn FileSystem, path: &Path, content: &[u8]) -> io::Result<()> {
    let new = with_suffix(path, ".new");
    // Synced before the rename, so that the name never refers to incomplete content.
    system.create(&new, content)?.sync()?;
    system.rename(&new, path)
}

/// Makes the name `path`, or its absence, durable.
pub(super) fn sync_name(system: &dyn FileSystem, path: &Path) -> io::Result<()> {
    // A name becomes durable with its folder. An absolute path has one.
    path.parent().map_or(Ok(()), |folder| system.sync_folder(folder))
}

pub(super) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Unreadable marks must not count as absent.
    #[test]
    fn missing_file_is_none() {
        let (absent, unseen) = (Path::new("/dev/absent"), Path::new("/dev/null/unseen"));
        assert_eq!(RealSystem.read(absent, 1).unwrap(), None);
        assert!(RealSystem.remove(absent).is_ok());
        assert_eq!(RealSystem.read(unseen, 1).unwrap_err().kind(), io::ErrorKind::NotADirectory);
        assert_eq!(RealSystem.remove(unseen).unwrap_err().kind(), io::ErrorKind::NotADirectory);
    }

    /// Syncing these files fails, which shows that the system was asked to sync.
    #[test]
    fn files_are_synced() {
        let nothing = Path::new("/dev/null");
        let file = MediumFile { file: File::open(nothing).unwrap(), device_bytes: None };
        assert_eq!(file.sync().unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(RealSystem.sync_folder(nothing).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
