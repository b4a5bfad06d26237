//! Reads and writes that bypass the page cache (`O_DIRECT`), if the file system supports them.
//!
//! Invariant: accesses that cannot bypass the cache are left to the caller, which uses the cache: offsets, lengths or
//! addresses that are not multiples of [`ALIGNMENT`], and accesses that the file system refuses. The kernel keeps both
//! views of a file coherent.

use bytes::{Buf, BytesMut};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use rustix::fs::{CWD, Mode, OFlags, openat};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, OnceLock};

/// State shared by the files of a folder.
#[derive(Debug, Default)]
pub(crate) struct DirectState {
    folder: String,
    /// Whether the refusal of direct accesses was logged.
    told: AtomicBool,
    /// Bytes transferred without the cache.
    bytes: AtomicU64,
}

impl DirectState {
    pub(crate) fn new(folder: String) -> DirectState {
        DirectState { folder, ..DirectState::default() }
    }

    #[cfg(test)]
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// Direct accesses to one file.
#[derive(Debug)]
pub(crate) struct DirectFile {
    past: Arc<DirectState>,
    flags: OFlags,
    /// A second open file with `O_DIRECT`, opened at the first direct access. `None` inside if opening failed.
    opened: OnceLock<Option<File>>,
    is_refused: AtomicBool,
}

impl DirectFile {
    pub(crate) fn new(past: Arc<DirectState>, writes: bool) -> DirectFile {
        let flags = if writes { OFlags::RDWR } else { OFlags::RDONLY };
        DirectFile { past, flags, opened: OnceLock::new(), is_refused: AtomicBool::new(false) }
    }

    /// Reads as much as possible of `file` into the front of `into`, without the cache. Returns the number of bytes.
    pub(crate) fn read(&self, file: &File, into: &mut [u8], offset: u64) -> io::Result<usize> {
        let Some((direct, whole)) = self.fits(file, into, offset) else { return Ok(0) };
        let mut filled = 0;
        // A short read means that the end of the file is close.
        while filled < whole && filled.is_multiple_of(ALIGNMENT) {
            match self.taken(direct.read_at(&mut into[filled..whole], offset + filled as u64))? {
                None | Some(0) => break,
                Some(read) => filled += read,
            }
        }
        Ok(filled)
    }

    /// Writes as much as possible from the front of `bytes`, without the cache. Returns the number of bytes.
    pub(crate) fn write(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let Some((direct, whole)) = self.fits(file, bytes, offset) else { return Ok(0) };
        let mut written = 0;
        while written < whole && written.is_multiple_of(ALIGNMENT) {
            match self.taken(direct.write_at(&bytes[written..whole], offset + written as u64))? {
                None | Some(0) => break,
                Some(some) => written += some,
            }
        }
        Ok(written)
    }

    /// Returns the direct file and the number of bytes to transfer. `None` if the access cannot bypass the cache.
    fn fits(&self, file: &File, bytes: &[u8], offset: u64) -> Option<(&File, usize)> {
        let whole = bytes.len() / ALIGNMENT * ALIGNMENT;
        let is_aligned = offset.is_multiple_of(ALIGNMENT as u64) && bytes.as_ptr().align_offset(ALIGNMENT) == 0;
        if whole == 0 || !is_aligned || self.is_refused.load(Ordering::Relaxed) {
            return None;
        }
        let opened = self.opened.get_or_init(|| {
            // Opens the same file, even if it was renamed since.
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            match openat(CWD, path, self.flags | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty()) {
                Ok(opened) => Some(opened.into()),
                Err(error) => {
                    self.refused(&error.into());
                    None
                }
            }
        });
        opened.as_ref().map(|opened| (opened, whole))
    }

    /// Maps a refusal to `None`: the caller transfers the rest.
    fn taken(&self, result: io::Result<usize>) -> io::Result<Option<usize>> {
        match result {
            Ok(bytes) => {
                self.past.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
                Ok(Some(bytes))
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => {
                self.refused(&error);
                Ok(None)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn refused(&self, error: &io::Error) {
        self.is_refused.store(true, Ordering::Relaxed);
        if !self.past.told.swap(true, Ordering::Relaxed) {
            let folder = &self.past.folder;
            tracing::warn!(%folder, %error, "the file system takes no O_DIRECT: files go through the cache");
        }
    }
}

/// Returns `length` zeros at an aligned address.
pub(crate) fn aligned(length: usize) -> BytesMut {
    let mut bytes = BytesMut::zeroed(length + ALIGNMENT);
    bytes.advance(bytes.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT));
    bytes.truncate(length);
    bytes
}

/// Alignment that all common file systems accept for offsets, lengths and addresses.
pub(crate) const ALIGNMENT: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::Name;
    use crate::rooted::Rooted;
    use crate::storage::{Folder, read_exactly};
    use offload_base::Seed;
    use std::io::Write;

    /// Random accesses, some of them aligned: data read equal data written, for both kinds of access.
    #[test]
    fn both_ways_see_the_same_file() {
        let Some(there) = folder_that_takes_it() else {
            // `eprintln` is captured if the test passes, so the skip is written to standard error directly.
            let told = b"SKIPPED: direct::tests::both_ways_see_the_same_file: no folder here takes O_DIRECT\n";
            return std::io::stderr().write_all(told).unwrap();
        };
        let (direct, cached) = (Rooted::open(there.path()).unwrap().direct(true), Rooted::open(there.path()).unwrap());
        let name = Name::from_url("/file").unwrap();
        let mut random = Seed(1).stream("accesses");
        let mut expected = vec![0; 300_000];
        let file = direct.open_or_create(&name).unwrap();
        file.set_size(expected.len() as u64).unwrap();
        let by_cache = cached.open_or_create(&name).unwrap();
        for round in 0..200 {
            // Some accesses are aligned for direct access, some are not.
            let grain = [1, 512, ALIGNMENT as u64][random.below(3) as usize];
            let from = (random.below(250_000) / grain * grain) as usize;
            let length = (1 + random.below(49_999)) as usize;
            let mut bytes = aligned(length);
            random.fill(&mut bytes);
            let writer = if round % 3 == 0 { &by_cache } else { &file };
            writer.write_at(&bytes, from as u64).unwrap();
            expected[from..from + length].copy_from_slice(&bytes);
            for reader in [&file, &by_cache] {
                let mut read = aligned(expected.len());
                read_exactly(&**reader, &mut read, 0).unwrap();
                assert!(read[..] == expected[..], "round {round}");
            }
        }
        assert!(direct.past_cache().unwrap().bytes() > 0);
    }

    /// Prefers the folder of temporary files, which may be in memory; the alternative is this crate's folder.
    fn folder_that_takes_it() -> Option<tempfile::TempDir> {
        let parents = [std::env::temp_dir(), env!("CARGO_MANIFEST_DIR").into()];
        parents.into_iter().filter_map(|parent| tempfile::tempdir_in(parent).ok()).find(|folder| {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::DIRECT;
            openat(CWD, folder.path().join("probe"), flags, Mode::RWXU).is_ok()
        })
    }

    /// Files of procfs have no blocks on a medium.
    #[test]
    fn where_it_is_not_taken_files_go_through_the_cache() {
        let folder = Rooted::open(std::path::Path::new("/proc/self")).unwrap().direct(true);
        let file = folder.open(&Name::from_url("/status").unwrap()).unwrap();
        for _ in 0..2 {
            let mut read = aligned(ALIGNMENT);
            assert!(file.read_at(&mut read, 0).unwrap() > 0 && read.starts_with(b"Name:"));
        }
        let past = folder.past_cache().unwrap();
        assert!(past.told.load(Ordering::Relaxed) && past.bytes() == 0);
    }
}
