//! A folder that counts its reads. `/` is an infinite list, `/broken` is a list that fails, and `/huge` is a file of 8
//! TiB.

use core::sync::atomic::{AtomicU64, Ordering};
use offload_reservoir::name::Name;
use offload_reservoir::storage::{FileInfo, FileKind, Folder, FolderEntries, OpenFolder, StoredFile};
use std::io;
use std::sync::Arc;
use std::time::SystemTime;

#[derive(Default)]
pub(crate) struct CountingFolder {
    /// The number of entries that the server has read.
    pub(crate) listed: Arc<AtomicU64>,
    pub(crate) lists: Arc<()>,
    /// The number of pieces of files that the server has read.
    pub(crate) read: Arc<AtomicU64>,
}

/// A file of zeros.
struct ZeroFile {
    size: u64,
    read: Arc<AtomicU64>,
}

pub(crate) const HUGE: u64 = 8 << 40;

impl Folder for CountingFolder {
    fn open(&self, name: &Name) -> io::Result<Arc<dyn StoredFile>> {
        let size = self.about(name)?.size;
        Ok(Arc::new(ZeroFile { size, read: self.read.clone() }))
    }

    fn open_or_create(&self, _: &Name) -> io::Result<Arc<dyn StoredFile>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn about(&self, name: &Name) -> io::Result<FileInfo> {
        let (kind, size) = match name.to_url().as_str() {
            "/" | "/broken" => (FileKind::Folder, 0),
            "/huge" | "/other" => (FileKind::File, HUGE),
            "/small" => (FileKind::File, 3),
            _ => return Err(io::ErrorKind::NotFound.into()),
        };
        Ok(FileInfo::without_inode(kind, size, SystemTime::UNIX_EPOCH))
    }

    fn list(&self, name: &Name) -> io::Result<FolderEntries> {
        let about = FileInfo::without_inode(FileKind::File, 3, SystemTime::UNIX_EPOCH);
        let is_broken = name != &Name::root();
        let (listed, open) = (self.listed.clone(), self.lists.clone());
        Ok(Box::new((0..).map(move |number: u64| {
            // The closure captures `open`, so the count of `lists` is the count of open lists.
            let _is_open = &open;
            listed.fetch_add(1, Ordering::Relaxed);
            if is_broken && number == 5000 {
                Err(io::Error::other("no more"))
            } else {
                Ok((format!("file-{number}").into(), about))
            }
        })))
    }

    fn create_folder(&self, _: &Name) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn rename(&self, _: &Name, _: &Name) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn remove(&self, _: &Name) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn open_folder(&self, _: &Name) -> io::Result<Arc<dyn OpenFolder>> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl StoredFile for ZeroFile {
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        self.read.fetch_add(1, Ordering::Relaxed);
        let read = (into.len() as u64).min(self.size.saturating_sub(offset)) as usize;
        into[..read].fill(0);
        Ok(read)
    }

    fn write_at(&self, _: &[u8], _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn set_size(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn drop_cache(&self) {}

    fn about(&self) -> io::Result<FileInfo> {
        Ok(FileInfo::without_inode(FileKind::File, self.size, SystemTime::UNIX_EPOCH))
    }

    fn set_modified(&self, _: SystemTime) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn identity(&self) -> io::Result<u64> {
        Ok(self.size)
    }

    fn try_lock(&self) -> io::Result<bool> {
        Ok(true)
    }
}
