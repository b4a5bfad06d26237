//! Files on their way into a stream, read once and not copied again.
//!
//! - this file: [`send_file`], for a program that has the stream itself, and what may go wrong;
//! - [`pieces`]: a file as owned buffers, read ahead by one; [`blocking`]: where reading may block;
//! - [`shared_writes`]: for a program that has the stream behind a layer that knows only slices, an HTTP library for one.
//!
//! Invariant: what was queued is never read again. A file that changes while it is sent may spoil what comes after, and
//! that is told; but a segment that is sent again, and a record that a device has to make again from its middle, have
//! the bytes they had at first. (Were the file mapped instead, other bytes would be encrypted with a nonce that was used.)

mod blocking;
mod pieces;
mod shared_writes;

pub use blocking::{Blocking, InPlace};
pub use pieces::FilePieces;
pub use shared_writes::{LentPieces, SharedWrites, WriteCounters};

use core::future::poll_fn;
use core::task::Poll;
use offload_api::{SegmentStream, TxTag};
use std::io;

/// Sends what is left of `pieces`; gives how many bytes that were. Each piece is queued as it was read, for a device to
/// encrypt where it lies. There are two pieces in memory, one being read and one waiting for room, beside what the
/// send queue holds.
///
/// After an error the peer has a part of the file, as [`FilePieces::remaining`] tells. A dropped future loses no byte:
/// another call goes on.
///
/// ```
/// use ktls_offload::{FilePieces, FixedKeys, InPlace, KtlsStream, TrafficKeys, api::TokioSegments, send_file};
/// use offload_api::{TlsKey, TlsSuite, TlsVersion};
/// use std::sync::Arc;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let path = std::env::temp_dir().join(format!("nic-offload-send-file-{}", std::process::id()));
/// # std::fs::write(&path, b"what is in it")?;
/// # let key = |byte| TlsKey::new(TlsVersion::Tls13, TlsSuite::Aes128Gcm, &[byte; 16], [byte; 12]).unwrap();
/// # let keys = TrafficKeys { transmit: (0, key(1)), receive: (0, key(2)) };
/// # let (near, far) = tokio::io::duplex(1 << 16);
/// # let mut server = KtlsStream::new(TokioSegments::new(near), keys.clone(), Box::new(FixedKeys))?;
/// # let mut client = KtlsStream::new(TokioSegments::new(far), keys.swapped(), Box::new(FixedKeys))?;
/// let file = std::fs::File::open(&path)?;
/// let metadata = file.metadata()?;
/// // With a tokio runtime at hand: Arc::new(|work: Box<dyn FnOnce() + Send>| drop(tokio::task::spawn_blocking(work)))
/// let mut pieces = FilePieces::new(Arc::new(InPlace), file, &metadata, 8..metadata.len())?;
/// assert_eq!(send_file(&mut server, &mut pieces).await?, 5);
/// server.close().await?;
/// assert_eq!(client.next_chunk().await?.as_deref(), Some(&b"in it"[..]));
/// # std::fs::remove_file(&path)?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`SendFileError`], which says whose fault it is.
pub async fn send_file<S: SegmentStream>(stream: &mut S, pieces: &mut FilePieces) -> Result<u64, SendFileError> {
    let mut sent = 0;
    loop {
        // Room first: a piece that was taken is queued with no chance to be forgotten in between.
        if pieces.remaining() > 0 {
            poll_fn(|cx| stream.poll_room(cx)).await.map_err(SendFileError::Stream)?;
        }
        let Some(piece) = pieces.next_piece().await else {
            // Whether the last piece was taken: no room is no objection.
            let taken = poll_fn(|cx| match stream.poll_room(cx) {
                Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                _ => Poll::Ready(Ok(())),
            });
            return taken.await.map(|()| sent).map_err(SendFileError::Stream);
        };
        let piece = piece?;
        sent += piece.len() as u64;
        stream.send(piece, TxTag::PLAIN);
        stream.flush();
    }
}

/// Why a file was not sent whole.
///
/// ```
/// use ktls_offload::SendFileError;
///
/// let error = SendFileError::Truncated { at: 4096, end: 8192 };
/// assert_eq!(error.to_string(), "the file ended at byte 4096, before byte 8192: it was cut short meanwhile");
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendFileError {
    /// Caller's fault: the range goes beyond the file.
    #[error("byte {end} is beyond the end of the file, which has {length} bytes")]
    OutOfRange {
        /// Where the range ends.
        end: u64,
        /// How long the file is.
        length: u64,
    },
    /// Somebody cut the file short after it was opened.
    #[error("the file ended at byte {at}, before byte {end}: it was cut short meanwhile")]
    Truncated {
        /// Where it ends now.
        at: u64,
        /// Where the range ends.
        end: u64,
    },
    /// Somebody changed the file after it was opened: what was sent before and what would come now need not belong
    /// together.
    #[error("the file was changed before byte {at} was read")]
    Changed {
        /// What was about to be sent.
        at: u64,
    },
    /// The file cannot be read.
    #[error("the file cannot be read: {0}")]
    Read(#[source] io::Error),
    /// The stream takes no more.
    #[error("the stream accepts no more data: {0}")]
    Stream(#[source] io::Error),
}

impl From<SendFileError> for io::Error {
    fn from(error: SendFileError) -> io::Error {
        let kind = match &error {
            SendFileError::OutOfRange { .. } => io::ErrorKind::InvalidInput,
            SendFileError::Truncated { .. } => io::ErrorKind::UnexpectedEof,
            SendFileError::Changed { .. } => io::ErrorKind::InvalidData,
            SendFileError::Read(error) | SendFileError::Stream(error) => error.kind(),
        };
        io::Error::new(kind, error)
    }
}
