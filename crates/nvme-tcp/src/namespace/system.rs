//! The calls of the system that the files of a namespace need. Tests put a system in its place that loses all that was not
//! made durable.

use rustix::fs::{Advice, FallocateFlags, fadvise, fallocate};
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, IoSlice, Read, Write as _};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Files by their names.
pub(super) trait System: fmt::Debug + Send + Sync {
    /// A new file that holds `content`, in place of one of that name. Neither content nor name is durable.
    fn create(&self, path: &Path, content: &[u8]) -> io::Result<Box<dyn Medium>>;

    /// What a file holds, `most` bytes at most; `None` if there is none.
    fn read(&self, path: &Path, most: u64) -> io::Result<Option<Vec<u8>>>;

    /// Gives a file another name, and takes that from the file that had it.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Takes a file away, if there is one.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Makes the names in a folder durable.
    fn sync_folder(&self, folder: &Path) -> io::Result<()>;
}

/// An open file.
pub(super) trait Medium: fmt::Debug + Send + Sync {
    /// Reads what there is, up to the end of `buffer`.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes by one call, as much as that takes.
    fn write_at(&self, slices: &[IoSlice<'_>], offset: u64) -> io::Result<usize>;

    /// Makes bytes zeros and gives their room back; the file becomes no longer.
    fn punch_hole(&self, offset: u64, bytes: u64) -> io::Result<()>;

    /// Where the file ends.
    fn end(&self) -> io::Result<u64>;

    /// Makes all written bytes durable. A failed write is reported once, and the lost bytes count as synced from then on.
    fn sync(&self) -> io::Result<()>;

    /// Drops the cache, so that the next read comes from the medium.
    fn drop_cache(&self);
}

/// The real one.
#[derive(Debug)]
pub(super) struct Real;

/// A real file or block device.
#[derive(Debug)]
pub(super) struct RealFile {
    pub(super) file: File,
    /// A block device's length is no file's.
    pub(super) device_bytes: Option<u64>,
}

impl System for Real {
    fn create(&self, path: &Path, content: &[u8]) -> io::Result<Box<dyn Medium>> {
        // An existing link at this name is not followed.
        self.remove(path)?;
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(content)?;
        Ok(Box::new(RealFile { file, device_bytes: None }))
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

impl Medium for RealFile {
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
        // Dirty pages stay in the cache without a sync. If they are lost now, an earlier process promised nothing about them.
        let _ = self.file.sync_data();
        // If the system ignores the advice, reads come from the cache.
        let _ = fadvise(&self.file, 0, None, Advice::DontNeed);
    }
}

/// Has the file at `path` hold `content`: whenever the machine ends, it is the old file or the new one, whole. Which of
/// them is certain after [`sync_name`].
pub(super) fn replace(system: &dyn System, path: &Path, content: &[u8]) -> io::Result<()> {
    let new = with_suffix(path, ".new");
    system.create(&new, content)?.sync()?;
    system.rename(&new, path)
}

/// Makes durable which file has the name `path`, if any.
pub(super) fn sync_name(system: &dyn System, path: &Path) -> io::Result<()> {
    // A name is durable when its folder is. An absolute path has one.
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

    /// Marks that cannot be read are not taken for none.
    #[test]
    fn only_what_is_not_there_is_nothing() {
        let (absent, unseen) = (Path::new("/dev/absent"), Path::new("/dev/null/unseen"));
        assert_eq!(Real.read(absent, 1).unwrap(), None);
        assert!(Real.remove(absent).is_ok());
        assert_eq!(Real.read(unseen, 1).unwrap_err().kind(), io::ErrorKind::NotADirectory);
        assert_eq!(Real.remove(unseen).unwrap_err().kind(), io::ErrorKind::NotADirectory);
    }

    /// What cannot be synchronised says so: then the system was asked to.
    #[test]
    fn files_are_synchronised() {
        let nothing = Path::new("/dev/null");
        let file = RealFile { file: File::open(nothing).unwrap(), device_bytes: None };
        assert_eq!(file.sync().unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(Real.sync_folder(nothing).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
