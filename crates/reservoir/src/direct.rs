//! Reads and writes past the page cache (`O_DIRECT`), where the file system takes them.
//!
//! Invariant: what does not fit (an offset, a length or an address that is not a multiple of [`ALIGNMENT`]), and whatever the file
//! system refuses, is left to the caller, who goes through the cache. The kernel keeps both views of a file the same.

use bytes::{Buf, BytesMut};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use rustix::fs::{CWD, Mode, OFlags, openat};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, OnceLock};

/// What is known of a folder's file system.
#[derive(Debug, Default)]
pub(crate) struct Past {
    folder: String,
    /// That it does not take such accesses was told.
    told: AtomicBool,
    /// Bytes that went past the cache.
    bytes: AtomicU64,
}

impl Past {
    pub(crate) fn new(folder: String) -> Past {
        Past { folder, ..Past::default() }
    }

    #[cfg(test)]
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// One file's accesses past the cache.
#[derive(Debug)]
pub(crate) struct Direct {
    past: Arc<Past>,
    flags: OFlags,
    /// The file once more, opened at its first such access; `None`: there will be none.
    opened: OnceLock<Option<File>>,
    is_refused: AtomicBool,
}

impl Direct {
    pub(crate) fn new(past: Arc<Past>, writes: bool) -> Direct {
        let flags = if writes { OFlags::RDWR } else { OFlags::RDONLY };
        Direct { past, flags, opened: OnceLock::new(), is_refused: AtomicBool::new(false) }
    }

    /// Reads what can be read so of `file`, from the front of `into` on; gives the bytes.
    pub(crate) fn read(&self, file: &File, into: &mut [u8], offset: u64) -> io::Result<usize> {
        let Some((direct, whole)) = self.fits(file, into, offset) else { return Ok(0) };
        let mut filled = 0;
        // After a short read the end of the file is near.
        while filled < whole && filled.is_multiple_of(ALIGNMENT) {
            match self.taken(direct.read_at(&mut into[filled..whole], offset + filled as u64))? {
                None | Some(0) => break,
                Some(read) => filled += read,
            }
        }
        Ok(filled)
    }

    /// Writes what can be written so, from the front of `bytes` on; gives how many these are.
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

    /// The file to do it by, and the bytes.
    fn fits(&self, file: &File, bytes: &[u8], offset: u64) -> Option<(&File, usize)> {
        let whole = bytes.len() / ALIGNMENT * ALIGNMENT;
        let is_aligned = offset.is_multiple_of(ALIGNMENT as u64) && bytes.as_ptr().align_offset(ALIGNMENT) == 0;
        if whole == 0 || !is_aligned || self.is_refused.load(Ordering::Relaxed) {
            return None;
        }
        let opened = self.opened.get_or_init(|| {
            // The same file, whatever its name is by now.
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

    /// `None`: the rest is the caller's.
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

/// So many zeros, at an address that fits.
pub(crate) fn aligned(length: usize) -> BytesMut {
    let mut bytes = BytesMut::zeroed(length + ALIGNMENT);
    bytes.advance(bytes.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT));
    bytes.truncate(length);
    bytes
}

/// No file system in use wants more of offsets, lengths and addresses.
pub(crate) const ALIGNMENT: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::Name;
    use crate::rooted::Rooted;
    use crate::storage::{Folder, read_exactly};
    use offload_base::Seed;
    use std::io::Write;

    /// Accesses of any offset and length, some of which fit: what is read is what was written, by both ways.
    #[test]
    fn both_ways_see_the_same_file() {
        let Some(there) = folder_that_takes_it() else {
            // Not by `eprintln`, which a test that passes keeps to itself.
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

    /// Of temporary files, or else beside this crate: the first may be in memory.
    fn folder_that_takes_it() -> Option<tempfile::TempDir> {
        let parents = [std::env::temp_dir(), env!("CARGO_MANIFEST_DIR").into()];
        parents.into_iter().filter_map(|parent| tempfile::tempdir_in(parent).ok()).find(|folder| {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::DIRECT;
            openat(CWD, folder.path().join("probe"), flags, Mode::RWXU).is_ok()
        })
    }

    /// The kernel's own files have no blocks to go to.
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
