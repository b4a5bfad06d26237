//! A namespace's bytes in a file.
//!
//! Invariant: what was flushed is on the disk, or was given to it with a request to make it durable (`fdatasync`).

use super::{Pieces, Storage};
use bytes::{Bytes, BytesMut};
use offload_base::cost::{self, Work};
use rustix::fs::{FallocateFlags, OFlags, fallocate};
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Bytes in a file or on a block device.
///
/// ```
/// use bytes::Bytes;
/// use nvme_tcp::namespace::{FileStorage, Storage};
///
/// let path = std::env::temp_dir().join(format!("nvme-tcp-doc-{}", std::process::id()));
/// std::fs::write(&path, vec![0; 8192])?;
/// let storage = FileStorage::open(&path, false)?;
/// storage.write(4096, &[Bytes::from(vec![7; 512])])?;
/// storage.flush()?;
/// assert_eq!(storage.read(4096, 512)?.concat(), [7; 512]);
/// # std::fs::remove_file(&path)?;
/// # std::io::Result::Ok(())
/// ```
#[derive(Debug)]
pub struct FileStorage {
    file: File,
    capacity: u64,
    direct: bool,
}

impl FileStorage {
    /// The file at `path`, as large as it is; with `direct` past the page cache (O_DIRECT), where the file system can.
    ///
    /// # Errors
    /// If it cannot be opened for reading and writing.
    pub fn open(path: &Path, direct: bool) -> io::Result<FileStorage> {
        let flags = if direct { OFlags::DIRECT.bits() as i32 } else { 0 };
        let mut file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)?;
        // A block device has no length in its metadata, but it has an end.
        let capacity = file.seek(SeekFrom::End(0))?;
        Ok(FileStorage { file, capacity, direct })
    }

    /// Writes whole aligned blocks from one aligned buffer, as O_DIRECT asks.
    fn write_direct(&self, offset: u64, data: &[Bytes]) -> io::Result<()> {
        let bytes: usize = data.iter().map(Bytes::len).sum();
        let start = offset - offset % ALIGNMENT as u64;
        let end = (offset + bytes as u64).next_multiple_of(ALIGNMENT as u64);
        let mut buffer = aligned((end - start) as usize);
        let (before, after) = ((offset - start) as usize, (end - offset) as usize - bytes);
        if before > 0 || after > 0 {
            read_up_to_the_end(&self.file, &mut buffer, start)?;
        }
        {
            let _scope = cost::work(Work::Copy);
            let mut at = before;
            for piece in data {
                buffer[at..at + piece.len()].copy_from_slice(piece);
                at += piece.len();
            }
        }
        self.file.write_all_at(&buffer, start)
    }
}

impl Storage for FileStorage {
    fn capacity(&self) -> u64 {
        // O_DIRECT works on whole blocks only.
        if self.direct { self.capacity - self.capacity % ALIGNMENT as u64 } else { self.capacity }
    }

    fn read(&self, offset: u64, bytes: usize) -> io::Result<Pieces> {
        let start = if self.direct { offset - offset % ALIGNMENT as u64 } else { offset };
        let before = (offset - start) as usize;
        let whole = if self.direct { (before + bytes).next_multiple_of(ALIGNMENT) } else { bytes };
        let mut buffer = if self.direct { aligned(whole) } else { BytesMut::zeroed(whole) };
        self.file.read_exact_at(&mut buffer, start)?;
        Ok([buffer.freeze().slice(before..before + bytes)].into_iter().collect())
    }

    fn write(&self, offset: u64, data: &[Bytes]) -> io::Result<()> {
        if self.direct {
            return self.write_direct(offset, data);
        }
        let mut at = offset;
        for piece in data {
            self.file.write_all_at(piece, at)?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    fn zero(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if bytes == 0 || fallocate(&self.file, hole, offset, bytes).is_ok() {
            return Ok(());
        }
        // A file system without holes: zeros in pieces.
        let zeros = Bytes::from_static(&ZEROS);
        let (mut at, end) = (offset, offset + bytes);
        while at < end {
            let piece = zeros.slice(..zeros.len().min((end - at) as usize));
            at += piece.len() as u64;
            self.write(at - piece.len() as u64, &[piece])?;
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn may_block(&self) -> bool {
        true
    }
}

/// `bytes` zeros that begin at a multiple of [`ALIGNMENT`] in memory.
fn aligned(bytes: usize) -> BytesMut {
    let mut buffer = BytesMut::zeroed(bytes + ALIGNMENT);
    let skipped = buffer.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
    let mut aligned = buffer.split_off(skipped);
    aligned.truncate(bytes);
    aligned
}

fn read_up_to_the_end(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    let mut have = 0;
    while have < buffer.len() {
        match file.read_at(&mut buffer[have..], offset + have as u64) {
            Ok(0) => break,
            Ok(read) => have += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// What O_DIRECT wants buffers, offsets and lengths to be multiples of, on any disk.
const ALIGNMENT: usize = 4096;
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn direct_or_not_the_file_holds_the_same() {
        let images: Vec<Vec<u8>> = [false, true].map(after_some_writes).into_iter().flatten().collect();
        assert!(!images.is_empty());
        assert!(images.windows(2).all(|pair| pair[0] == pair[1]));
    }

    /// `None` if the file system knows no O_DIRECT.
    fn after_some_writes(direct: bool) -> Option<Vec<u8>> {
        let path = std::env::temp_dir().join(format!("nvme-tcp-file-{}-{direct}", std::process::id()));
        std::fs::write(&path, vec![0xaa; 64 << 10]).unwrap();
        let storage = FileStorage::open(&path, direct).ok();
        let image = storage.map(|storage| {
            storage.write(512, &[Bytes::from(vec![1; 512]), Bytes::from(vec![2; 4096])]).unwrap();
            storage.write(16384, &[Bytes::from(vec![3; 8192])]).unwrap();
            storage.zero(20480, 1024).unwrap();
            storage.flush().unwrap();
            assert_eq!(storage.read(1024, 512).unwrap().concat(), [2; 512]);
            assert_eq!(storage.read(20480 + 512, 1024).unwrap().concat(), [[0; 512], [3; 512]].concat());
            std::fs::read(&path).unwrap()
        });
        std::fs::remove_file(&path).unwrap();
        image
    }
}
