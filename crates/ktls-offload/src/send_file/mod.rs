//! Sending of files over a stream, read once and without further copies.
//!
//! - this file: [`send_file`], for a program that owns the stream, and its errors;
//! - [`pieces`]: a file as owned buffers, with one piece read ahead; [`blocking`]: the executor for blocking reads;
//! - [`shared_writes`]: for a program whose stream is below a layer that accepts only slices, such as an HTTP library.
//!
//! Invariant: queued bytes are never read from the file again. A change of the file during sending may affect only
//! later pieces, and is reported. A retransmitted segment, and a record that a device must seal again from its middle,
//! keep their original bytes. With a mapped file instead, changed bytes would be encrypted under a used nonce.

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

/// Sends the rest of `pieces` and returns the number of bytes sent. Pieces are queued without a copy, and a device
/// encrypts them in place. Besides the send queue, two pieces are in memory: one being read and one waiting for room.
///
/// After an error the peer has a part of the file, as [`FilePieces::remaining`] tells. Dropping the future loses no
/// bytes: another call continues.
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
/// [`SendFileError`], which tells the cause.
pub async fn send_file<S: SegmentStream>(stream: &mut S, pieces: &mut FilePieces) -> Result<u64, SendFileError> {
    let mut sent = 0;
    loop {
        // Room is awaited first: a taken piece is then queued without an await in between, at which a dropped future
        // would lose the piece.
        if pieces.remaining() > 0 {
            poll_fn(|cx| stream.poll_room(cx)).await.map_err(SendFileError::Stream)?;
        }
        let Some(piece) = pieces.next_piece().await else {
            // All pieces are taken. Only an error of the stream matters here, not its room.
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

/// Error of sending a file.
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
    /// Caller's fault: the range ends beyond the file.
    #[error("byte {end} is beyond the end of the file, which has {length} bytes")]
    OutOfRange {
        /// End of the range.
        end: u64,
        /// Length of the file.
        length: u64,
    },
    /// The file was truncated after it was opened.
    #[error("the file ended at byte {at}, before byte {end}: it was cut short meanwhile")]
    Truncated {
        /// Present end of the file.
        at: u64,
        /// End of the range.
        end: u64,
    },
    /// The file was changed after it was opened, so earlier and later pieces may not belong together.
    #[error("the file was changed before byte {at} was read")]
    Changed {
        /// Offset of the piece that was read after the change.
        at: u64,
    },
    /// The file cannot be read.
    #[error("the file cannot be read: {0}")]
    Read(#[source] io::Error),
    /// The stream accepts no more data.
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
