//! A file, or a part of a file, as owned buffers.
//!
//! Invariant: at most one read is in progress, and at most one piece is read and not taken. A piece contains the file's
//! bytes as of opening, as far as length and modification time tell; otherwise the piece is an error.

use super::SendFileError;
use super::blocking::{Blocking, begin, dropped};
use bytes::Bytes;
use core::fmt;
use core::future::{Future, poll_fn};
use core::ops::Range;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use offload_base::cost::{self, WorkKind};
use std::fs::{File, Metadata};
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;
use std::time::SystemTime;
use tokio::sync::oneshot;

/// A reader of a file range in pieces, which reads one piece ahead.
///
/// See [`send_file`](crate::send_file) for an example.
pub struct FilePieces {
    pool: Arc<dyn Blocking>,
    /// The file. `None` while a read is in progress, and after an error.
    file: Option<File>,
    version: FileStamp,
    /// Offset of the next piece to take.
    at: u64,
    end: u64,
    piece_bytes: usize,
    reading: Option<oneshot::Receiver<(File, Result<Bytes, SendFileError>)>>,
}

impl FilePieces {
    /// Creates a reader of `range` of `file`. `metadata` is the file's present metadata, and `pool` runs the reads. The
    /// reader moves the file's position, so clones of `file` must not read or seek.
    ///
    /// # Errors
    /// [`SendFileError::OutOfRange`].
    pub fn new(
        pool: Arc<dyn Blocking>,
        file: File,
        metadata: &Metadata,
        range: Range<u64>,
    ) -> Result<FilePieces, SendFileError> {
        if range.end > metadata.len() {
            return Err(SendFileError::OutOfRange { end: range.end, length: metadata.len() });
        }
        Ok(FilePieces {
            pool,
            file: Some(file),
            version: FileStamp::from_metadata(metadata),
            at: range.start.min(range.end),
            end: range.end,
            piece_bytes: PIECE_BYTES,
            reading: None,
        })
    }

    /// Sets the length of a piece, at least 1 byte. The default is 256 KiB, which is sixteen full records.
    #[must_use]
    pub fn with_piece_bytes(mut self, bytes: usize) -> FilePieces {
        self.piece_bytes = bytes.max(1);
        self
    }

    /// Returns the number of bytes not yet taken.
    pub fn remaining(&self) -> u64 {
        self.end - self.at
    }

    /// Returns the next piece, or `None` at the end and after an error.
    ///
    /// Dropping the future loses no data.
    pub async fn next_piece(&mut self) -> Option<Result<Bytes, SendFileError>> {
        poll_fn(|cx| self.poll_piece(cx)).await
    }

    /// Polls for the next piece; see [`next_piece`](Self::next_piece).
    pub fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, SendFileError>>> {
        if self.reading.is_none() {
            self.read_from(self.at);
        }
        let Some(reading) = &mut self.reading else { return Poll::Ready(None) };
        let read = ready!(Pin::new(reading).poll(cx));
        self.reading = None;
        Poll::Ready(Some(match read {
            Ok((file, Ok(piece))) => {
                self.file = Some(file);
                self.at += piece.len() as u64;
                self.read_from(self.at);
                Ok(piece)
            }
            Ok((_, Err(error))) => Err(error),
            Err(_) => Err(SendFileError::Read(dropped())),
        }))
    }

    /// Starts reading the piece at `at`, if there is one.
    fn read_from(&mut self, at: u64) {
        if at == self.end {
            return;
        }
        // The file is gone after an error.
        let Some(mut file) = self.file.take() else { return };
        let (version, end) = (self.version, self.end);
        // The last piece may be shorter.
        let bytes = self.piece_bytes.min(usize::try_from(end - at).unwrap_or(usize::MAX));
        self.reading = Some(begin(&*self.pool, move || {
            let _application = cost::work(WorkKind::Application);
            let piece = read(&mut file, version, at, end, bytes);
            (file, piece)
        }));
    }
}

impl fmt::Debug for FilePieces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FilePieces").field("at", &self.at).field("end", &self.end).finish_non_exhaustive()
    }
}

/// The properties by which a change of the file is detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileStamp {
    bytes: u64,
    /// `None` if the system does not report the time.
    modified: Option<SystemTime>,
}

impl FileStamp {
    fn from_metadata(metadata: &Metadata) -> FileStamp {
        FileStamp { bytes: metadata.len(), modified: metadata.modified().ok() }
    }
}

fn read(file: &mut File, version: FileStamp, at: u64, end: u64, bytes: usize) -> Result<Bytes, SendFileError> {
    let mut piece = Vec::new();
    // A fallible reservation: running out of memory must not abort a server with other clients.
    piece.try_reserve_exact(bytes).map_err(|_| SendFileError::Read(io::ErrorKind::OutOfMemory.into()))?;
    let filled = file
        .seek(SeekFrom::Start(at))
        .and_then(|_| file.take(bytes as u64).read_to_end(&mut piece))
        .map_err(SendFileError::Read)?;
    // The metadata are read after the data, so that a change during the read is detected too.
    let present = file.metadata().map_err(SendFileError::Read)?;
    if filled < bytes {
        return Err(SendFileError::Truncated { at: at + filled as u64, end });
    }
    if present.len() < end {
        return Err(SendFileError::Truncated { at: present.len(), end });
    }
    if FileStamp::from_metadata(&present) != version {
        return Err(SendFileError::Changed { at });
    }
    Ok(piece.into())
}

const PIECE_BYTES: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use super::super::InPlace;
    use super::*;
    use core::time::Duration;
    use std::path::PathBuf;
    use std::sync::Mutex;

    /// A temporary file, old enough for any change to be visible in its modification time.
    struct SampleFile(PathBuf);

    impl SampleFile {
        fn new(name: &str, content: &[u8]) -> SampleFile {
            let path = std::env::temp_dir().join(format!("nic-offload-{name}-{}", std::process::id()));
            std::fs::write(&path, content).unwrap();
            let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
            File::options().write(true).open(&path).unwrap().set_modified(long_ago).unwrap();
            SampleFile(path)
        }

        fn pieces(&self, pool: Arc<dyn Blocking>, range: Range<u64>) -> Result<FilePieces, SendFileError> {
            let file = File::open(&self.0).unwrap();
            let metadata = file.metadata().unwrap();
            FilePieces::new(pool, file, &metadata, range).map(|pieces| pieces.with_piece_bytes(4))
        }
    }

    impl Drop for SampleFile {
        fn drop(&mut self) {
            std::fs::remove_file(&self.0).unwrap();
        }
    }

    /// An executor that keeps its work until the test runs it.
    #[derive(Default)]
    struct QueuedExecutor(Mutex<Vec<Box<dyn FnOnce() + Send>>>);

    impl Blocking for QueuedExecutor {
        fn run(&self, work: Box<dyn FnOnce() + Send>) {
            self.0.lock().unwrap().push(work);
        }
    }

    fn poll(pieces: &mut FilePieces) -> Poll<Option<Result<Bytes, SendFileError>>> {
        pieces.poll_piece(&mut Context::from_waker(core::task::Waker::noop()))
    }

    fn all(pieces: &mut FilePieces) -> Result<Vec<Bytes>, SendFileError> {
        core::iter::from_fn(|| match poll(pieces) {
            Poll::Ready(piece) => piece,
            Poll::Pending => panic!("it is read in place"),
        })
        .collect()
    }

    #[test]
    fn a_range_comes_in_pieces_and_ends() {
        let sample = SampleFile::new("range", b"0123456789abcdef");
        let cut = |range| all(&mut sample.pieces(Arc::new(InPlace), range).unwrap()).unwrap();
        assert_eq!(cut(0..16), ["0123", "4567", "89ab", "cdef"]);
        assert_eq!(cut(3..9), ["3456", "78"]);
        assert!(cut(7..7).is_empty());
        let error = sample.pieces(Arc::new(InPlace), 3..17).unwrap_err();
        assert!(matches!(error, SendFileError::OutOfRange { end: 17, length: 16 }));
    }

    #[test]
    fn one_piece_is_read_ahead_and_no_more() {
        let sample = SampleFile::new("ahead", b"0123456789abcdef");
        let later = Arc::new(QueuedExecutor::default());
        let mut pieces = sample.pieces(later.clone(), 0..16).unwrap();
        let waiting = || later.0.lock().unwrap().len();
        assert!(poll(&mut pieces).is_pending());
        assert!(poll(&mut pieces).is_pending());
        assert_eq!(waiting(), 1, "asked twice, read once");
        let work = later.0.lock().unwrap().pop().unwrap();
        work();
        assert!(matches!(poll(&mut pieces), Poll::Ready(Some(Ok(piece))) if piece == "0123"));
        assert_eq!((waiting(), pieces.remaining()), (1, 12), "the next is on its way already");
        later.0.lock().unwrap().clear();
        let Poll::Ready(Some(Err(error))) = poll(&mut pieces) else { panic!("the pool dropped the work") };
        assert!(matches!(error, SendFileError::Read(_)));
        assert!(matches!(poll(&mut pieces), Poll::Ready(None)), "after an error there is nothing");
    }

    #[test]
    fn changes_of_the_file_are_reported() {
        let end = |spoil: &dyn Fn(&File), name: &str| {
            let sample = SampleFile::new(name, b"0123456789abcdef");
            let mut pieces = sample.pieces(Arc::new(InPlace), 0..16).unwrap();
            let Poll::Ready(Some(Ok(first))) = poll(&mut pieces) else { panic!("nothing has happened yet") };
            spoil(&File::options().write(true).open(&sample.0).unwrap());
            let error = all(&mut pieces).unwrap_err().to_string();
            assert_eq!(first, "0123", "what was read stays");
            assert!(all(&mut pieces).unwrap().is_empty());
            error
        };
        let cut = end(&|file| file.set_len(9).unwrap(), "cut");
        assert_eq!(cut, "the file ended at byte 9, before byte 16: it was cut short meanwhile");
        let touched = |file: &File| file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        // The second piece was already read at that time.
        assert_eq!(end(&touched, "touched"), "the file was changed before byte 8 was read");
        let longer = |file: &File| file.set_len(17).unwrap();
        assert_eq!(end(&longer, "longer"), "the file was changed before byte 8 was read");
    }
}
