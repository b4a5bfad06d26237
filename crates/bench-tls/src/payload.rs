//! The data to send: a file, or seeded data. Pieces are owned buffers, because a retransmission must find the same
//! bytes even if the file has changed.

use bytes::{Bytes, BytesMut};
use offload_base::Seed;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// A SHA-256.
pub type Checksum = [u8; 32];

/// The source of the sent bytes.
///
/// ```
/// use offload_base::Seed;
/// use offload_bench_tls::payload::Payload;
///
/// let payload = Payload::seeded(Seed(1), 1000);
/// let pieces: Vec<_> = payload.pieces(300).unwrap().collect::<Result<_, _>>().unwrap();
/// assert_eq!(pieces.iter().map(|piece| piece.len()).collect::<Vec<_>>(), [300, 300, 300, 100]);
/// ```
#[derive(Clone, Debug)]
pub struct Payload {
    source: PayloadSource,
    bytes: u64,
}

#[derive(Clone, Debug)]
enum PayloadSource {
    Memory(Bytes),
    File(PathBuf),
}

impl Payload {
    /// Creates `bytes` bytes from `seed`. Beyond [`KEPT_IN_MEMORY`] the bytes repeat.
    pub fn seeded(seed: Seed, bytes: u64) -> Payload {
        let mut block = BytesMut::zeroed(bytes.min(KEPT_IN_MEMORY) as usize);
        seed.stream("payload").fill(&mut block);
        Payload { source: PayloadSource::Memory(block.freeze()), bytes }
    }

    /// Opens the file at `path`. A file of up to [`KEPT_IN_MEMORY`] is read now, a longer one while it is sent.
    ///
    /// # Errors If the file cannot be opened or read.
    pub fn file(path: &Path) -> io::Result<Payload> {
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        // A folder can be opened, and would fail only at the first read.
        if metadata.is_dir() {
            return Err(io::Error::from(io::ErrorKind::IsADirectory));
        }
        if metadata.len() > KEPT_IN_MEMORY {
            return Ok(Payload { source: PayloadSource::File(path.to_owned()), bytes: metadata.len() });
        }
        let mut content = Vec::new();
        // A file that is not regular, such as a pipe, shows its length only when read.
        file.take(KEPT_IN_MEMORY + 1).read_to_end(&mut content)?;
        if content.len() as u64 > KEPT_IN_MEMORY {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "longer than 1 GiB, and no regular file"));
        }
        Ok(Payload { bytes: content.len() as u64, source: PayloadSource::Memory(content.into()) })
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> u64 {
        self.bytes
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Returns all bytes in pieces of `piece_bytes`, the last one shorter.
    ///
    /// # Errors If the file cannot be opened any more; a piece is an error if it cannot be read, or the file has become
    /// shorter.
    pub fn pieces(&self, piece_bytes: usize) -> io::Result<impl Iterator<Item = io::Result<Bytes>> + Send + use<>> {
        let mut file = match &self.source {
            PayloadSource::Memory(_) => None,
            PayloadSource::File(path) => Some(File::open(path)?),
        };
        let (source, mut left, mut at) = (self.source.clone(), self.bytes, 0);
        Ok(core::iter::from_fn(move || {
            if left == 0 {
                return None;
            }
            let wanted = left.min(piece_bytes as u64) as usize;
            let piece = match (&source, &mut file) {
                (PayloadSource::Memory(block), _) => {
                    let piece = block.slice(at..block.len().min(at + wanted));
                    at = (at + piece.len()) % block.len();
                    Ok(piece)
                }
                (PayloadSource::File(_), Some(file)) => read_piece(file, wanted),
                (PayloadSource::File(_), None) => Err(io::ErrorKind::NotFound.into()),
            };
            // After an error there are no more pieces.
            left = piece.as_ref().map_or(0, |piece| left - piece.len() as u64);
            Some(piece)
        }))
    }

    /// Returns the SHA-256 of all bytes.
    ///
    /// # Errors As [`pieces`](Self::pieces).
    pub fn checksum(&self) -> io::Result<Checksum> {
        let mut hasher = Sha256::new();
        for piece in self.pieces(READ_AT_ONCE)? {
            hasher.update(piece?);
        }
        Ok(hasher.finalize().into())
    }
}

fn read_piece(file: &mut File, wanted: usize) -> io::Result<Bytes> {
    let mut piece = BytesMut::zeroed(wanted);
    file.read_exact(&mut piece)?;
    Ok(piece.freeze())
}

/// Most bytes stored in memory.
pub const KEPT_IN_MEMORY: u64 = 1 << 30;
const READ_AT_ONCE: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_and_memory_give_the_same() {
        let path = std::env::temp_dir().join(format!("nic-offload-payload-{}", std::process::id()));
        std::fs::write(&path, b"twelve bytes").unwrap();
        let payload = Payload::file(&path).unwrap();
        // A short file is read into memory, so the source is replaced to test the other path.
        let from_disk = Payload { source: PayloadSource::File(path.clone()), ..payload.clone() };
        assert_eq!(payload.checksum().unwrap(), from_disk.checksum().unwrap());
        let pieces = |payload: &Payload| payload.pieces(5).unwrap().collect::<io::Result<Vec<_>>>().unwrap();
        assert_eq!(pieces(&payload), pieces(&from_disk));
        std::fs::write(&path, b"less").unwrap();
        assert!(from_disk.checksum().is_err(), "a file that shrank is an error, not silence");
        std::fs::remove_file(&path).unwrap();
        assert!(Payload::file(&path).is_err());
    }

    #[test]
    fn seeded_data_repeat_only_beyond_the_stored_block() {
        let payload = Payload { bytes: 25, ..Payload::seeded(Seed(3), 10) };
        let all: Vec<u8> = payload.pieces(7).unwrap().flat_map(|piece| piece.unwrap().to_vec()).collect();
        assert_eq!(all.len(), 25);
        assert_eq!(all[..10], all[10..20]);
        assert_eq!(all[..5], all[20..]);
    }
}
