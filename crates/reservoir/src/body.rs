//! Bodies of requests and responses, above all the bytes of a stored file, read and hashed piece by piece.
//!
//! One piece is read while the previous one is sent; no further pieces are buffered. With a hasher, the checksums are
//! available after the last piece, on request in trailers too.

use crate::blocks::{BlockHasher, BlockSum};
use crate::digest::{self, HashAlgorithm, from_hexadecimal, hexadecimal};
use crate::direct::aligned;
use crate::pace::Pace;
use crate::shell::Shell;
use crate::storage::{StoredFile, read_exactly};
use bytes::Bytes;
use core::ops::Range;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full};
use hyper::HeaderMap;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::header::HeaderValue;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::mpsc;

/// The body of a request or a response.
pub(crate) type Body = UnsyncBoxBody<Bytes, io::Error>;

pub(crate) fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

pub(crate) fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// Wraps a body received over HTTP/1.1.
pub(crate) fn arriving(body: Incoming) -> Body {
    body.map_err(io::Error::other).boxed_unsync()
}

/// Wraps a body. `ended` is called when the body is dropped, at its end or earlier.
pub(crate) fn ended(body: Body, ended: impl FnMut() + Send + Unpin + 'static) -> Body {
    ObservedBody { body, ended }.boxed_unsync()
}

struct ObservedBody<F: FnMut()> {
    body: Body,
    ended: F,
}

impl<F: FnMut() + Unpin> HttpBody for ObservedBody<F> {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<F: FnMut()> Drop for ObservedBody<F> {
    fn drop(&mut self) {
        (self.ended)();
    }
}

/// The checksums of a block once known, or the error of reading its file.
pub(crate) type LateSum = Arc<Mutex<Option<io::Result<BlockSum>>>>;

type StorageRead = Pin<Box<dyn Future<Output = io::Result<(Bytes, Option<BlockHasher>)>> + Send>>;
type TurnFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A body with the bytes of a file range.
pub(crate) struct FileRangeBody {
    file: Arc<dyn StoredFile>,
    shell: Shell,
    /// The range that is not being read yet.
    rest: Range<u64>,
    reading: Option<StorageRead>,
    /// A piece that waits for the pacer.
    waiting: Option<(Bytes, TurnFuture)>,
    pace: Vec<Arc<Pace>>,
    /// Bytes not yet sent.
    left: u64,
    trailers: bool,
    sum: LateSum,
    /// Callback for each piece sent.
    told: Option<Arc<dyn Fn(usize) + Send + Sync>>,
}

impl FileRangeBody {
    /// Creates a body of the bytes in `range`, hashed by `hasher`.
    pub(crate) fn new(
        shell: Shell,
        file: Arc<dyn StoredFile>,
        range: Range<u64>,
        hasher: Option<BlockHasher>,
        trailers: bool,
    ) -> FileRangeBody {
        let left = range.end - range.start;
        let (reading, waiting, pace, sum) = (None, None, Vec::new(), LateSum::default());
        let mut body =
            FileRangeBody { file, shell, rest: range, reading, waiting, pace, left, trailers, sum, told: None };
        body.begin(hasher);
        body
    }

    /// Limits the body to the rate of each pacer.
    pub(crate) fn paced(mut self, pace: impl IntoIterator<Item = Arc<Pace>>) -> FileRangeBody {
        self.pace.extend(pace);
        self
    }

    /// Calls `told` with the length of each piece sent.
    pub(crate) fn with_progress(mut self, told: Arc<dyn Fn(usize) + Send + Sync>) -> FileRangeBody {
        self.told = Some(told);
        self
    }

    /// Returns the cell that will hold the checksums.
    pub(crate) fn sum(&self) -> LateSum {
        self.sum.clone()
    }

    /// Starts reading the next piece, if there is one.
    fn begin(&mut self, hasher: Option<BlockHasher>) {
        if self.rest.is_empty() {
            *self.sum.lock().unwrap_or_else(PoisonError::into_inner) = hasher.map(|hasher| Ok(hasher.finish()));
            return;
        }
        let end = self.rest.end.min(self.rest.start + PIECE as u64);
        let (file, range) = (self.file.clone(), self.rest.start..end);
        self.rest.start = end;
        self.reading = Some(Box::pin(self.shell.blocking(move || {
            let mut hasher = hasher;
            // Aligned, so that the read may bypass the page cache.
            let mut piece = aligned((range.end - range.start) as usize);
            read_exactly(&*file, &mut piece, range.start)?;
            if let Some(hasher) = &mut hasher {
                hasher.update(&piece);
            }
            Ok((piece.freeze(), hasher))
        })));
    }

    fn turn(&self, bytes: u64) -> TurnFuture {
        let now = self.shell.now();
        match self.pace.iter().map(|pace| pace.take(now, bytes)).max() {
            Some(turn) if turn > now => {
                let shell = self.shell.clone();
                Box::pin(async move { shell.sleep_until(turn).await })
            }
            _ => Box::pin(core::future::ready(())),
        }
    }
}

impl HttpBody for FileRangeBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let this = &mut *self;
        loop {
            if let Some((piece, turn)) = &mut this.waiting {
                ready!(turn.as_mut().poll(cx));
                let piece = core::mem::take(piece);
                this.waiting = None;
                this.left -= piece.len() as u64;
                if let Some(told) = &this.told {
                    told(piece.len());
                }
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
            let Some(reading) = &mut this.reading else {
                let trailers = core::mem::take(&mut this.trailers).then(|| finished_sum(&this.sum)).flatten();
                return Poll::Ready(trailers.map(|sum| Ok(Frame::trailers(fields_of(&sum)))));
            };
            let read = ready!(reading.as_mut().poll(cx));
            this.reading = None;
            let (piece, hasher) = match read {
                Ok(read) => read,
                Err(error) => {
                    // The connection gets a copy of the error; the sum keeps the error itself for the caller.
                    let told = io::Error::new(error.kind(), error.to_string());
                    *this.sum.lock().unwrap_or_else(PoisonError::into_inner) = Some(Err(error));
                    return Poll::Ready(Some(Err(told)));
                }
            };
            this.begin(hasher);
            let turn = this.turn(piece.len() as u64);
            this.waiting = Some((piece, turn));
        }
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0 && !self.trailers
    }

    fn size_hint(&self) -> SizeHint {
        // A body with a known length is sent without trailers.
        if self.trailers { SizeHint::default() } else { SizeHint::with_exact(self.left) }
    }
}

/// A body of frames received from a channel.
pub(crate) struct ChannelBody {
    frames: mpsc::Receiver<io::Result<Frame<Bytes>>>,
    /// Remaining data bytes, if known.
    length: Option<u64>,
}

impl ChannelBody {
    /// Creates a body of `length` data bytes, if known.
    pub(crate) fn new(frames: mpsc::Receiver<io::Result<Frame<Bytes>>>, length: Option<u64>) -> ChannelBody {
        ChannelBody { frames, length }
    }
}

impl HttpBody for ChannelBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let frame = ready!(self.frames.poll_recv(cx));
        if let (Some(length), Some(Ok(frame))) = (&mut self.length, &frame) {
            *length = length.saturating_sub(frame.data_ref().map_or(0, |data| data.len() as u64));
        }
        Poll::Ready(frame)
    }

    fn size_hint(&self) -> SizeHint {
        self.length.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

pub(crate) fn finished_sum(sum: &LateSum) -> Option<BlockSum> {
    sum.lock().unwrap_or_else(PoisonError::into_inner).as_ref()?.as_ref().ok().copied()
}

/// Takes the error of reading the block's file, if there was one.
pub(crate) fn read_error(sum: &LateSum) -> Option<io::Error> {
    sum.lock().unwrap_or_else(PoisonError::into_inner).take_if(|sum| sum.is_err())?.err()
}

/// Returns the header fields that carry a block's checksums.
pub(crate) fn fields_of(sum: &BlockSum) -> HeaderMap {
    let ascii = |text: String| HeaderValue::try_from(text).expect("digits and letters");
    let mut fields = HeaderMap::new();
    fields.insert(CONTENT_DIGEST, ascii(HashAlgorithm::Crc32c.field(&sum.crc.to_be_bytes())));
    fields.insert(SUBTREE, ascii(hexadecimal(&sum.subtree)));
    fields
}

/// Returns the checksums of a block from header fields.
pub(crate) fn sum_in(fields: &HeaderMap) -> Option<BlockSum> {
    let digests = digest::read(fields.get(CONTENT_DIGEST)?.to_str().ok()?).ok()?;
    let crc = digests.into_iter().find(|(algorithm, _)| *algorithm == HashAlgorithm::Crc32c)?.1;
    let subtree = from_hexadecimal(fields.get(SUBTREE)?.to_str().ok()?)?;
    Some(BlockSum { crc: u32::from_be_bytes(crc.try_into().ok()?), subtree: subtree.try_into().ok()? })
}

/// The field of RFC 9530 section 2.
pub(crate) const CONTENT_DIGEST: &str = "content-digest";
/// The field with a block's node in the file's BLAKE3 tree.
pub(crate) const SUBTREE: &str = "reservoir-subtree";
/// Length of a piece in bytes.
pub(crate) const PIECE: usize = 512 << 10;
