//! Zero-copy writes through a layer that accepts only slices.
//!
//! The producer of a response body lends each buffer ([`LentPieces::lend`]) and passes it to the layer above, such as
//! an HTTP library. When that layer writes, the slices are looked up by address. A slice of a lent buffer is sent as a
//! share of that buffer; other slices are copied.
//!
//! Invariant: a lent buffer stays alive as long as it can be found, so an address inside the buffer always refers to
//! its bytes.

use bytes::{Bytes, BytesMut};
use core::fmt;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use offload_api::{SegmentStream, TxTag};
use offload_base::cost::{self, WorkKind};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The buffers lent to a [`SharedWrites`]. Clones share the buffers.
///
/// See [`SharedWrites`] for an example.
#[derive(Clone, Debug, Default)]
pub struct LentPieces {
    pieces: Arc<Mutex<VecDeque<Bytes>>>,
}

impl LentPieces {
    /// Lends `piece` and returns it for writing. The last 32 pieces are remembered. A piece that is written later, or
    /// is short, is copied.
    pub fn lend(&self, piece: Bytes) -> Bytes {
        if piece.len() < WORTH_SHARING {
            return piece; // short slices are copied, so the piece would never be looked up
        }
        let mut pieces = self.lock();
        // Unwritten pieces must not occupy memory forever.
        if pieces.len() == LENT_MAX {
            pieces.pop_front();
        }
        pieces.push_back(piece.clone());
        piece
    }

    /// Returns the share of a lent buffer that `slice` is. Writes arrive in order, so buffers lent earlier are dropped.
    fn find(&self, slice: &[u8]) -> Option<Bytes> {
        let mut pieces = self.lock();
        // The piece is alive, so no other buffer can have these addresses.
        let inside = |piece: &Bytes| piece.as_ptr_range().start <= slice.as_ptr() && end(slice) <= end(piece);
        let found = pieces.iter().position(inside)?;
        // Layers above write in order, so earlier buffers will not be written again.
        pieces.drain(..found);
        // A share of the same buffer, without a copy.
        let share = pieces[0].slice_ref(slice);
        if end(slice) == end(&pieces[0]) {
            pieces.pop_front();
        }
        Some(share)
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Bytes>> {
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn end(slice: &[u8]) -> *const u8 {
    slice.as_ptr_range().end
}

/// A stream that sends lent buffers without copying them. Other calls are forwarded to `S`.
///
/// ```
/// use ktls_offload::{FixedKeys, KtlsStream, SharedWrites, TrafficKeys, api::TokioSegments};
/// use offload_api::{TlsKey, TlsSuite, TlsVersion};
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let key = |byte| TlsKey::new(TlsVersion::Tls13, TlsSuite::Aes128Gcm, &[byte; 16], [byte; 12]).unwrap();
/// # let keys = TrafficKeys { transmit: (0, key(1)), receive: (0, key(2)) };
/// # let (near, far) = tokio::io::duplex(1 << 16);
/// # let server = KtlsStream::new(TokioSegments::new(near), keys.clone(), Box::new(FixedKeys))?;
/// # let mut client = KtlsStream::new(TokioSegments::new(far), keys.swapped(), Box::new(FixedKeys))?;
/// let (mut stream, pieces) = SharedWrites::new(server);
/// let body = pieces.lend(vec![7; 10_000].into());
/// stream.write_all(b"head").await?; // copied
/// stream.write_all(&body).await?; // shared
/// stream.shutdown().await?;
/// # let mut received = Vec::new();
/// # client.read_to_end(&mut received).await?;
/// # assert_eq!(received.len(), 10_004);
/// # Ok(())
/// # }
/// ```
pub struct SharedWrites<S> {
    stream: S,
    pieces: LentPieces,
    counters: WriteCounters,
}

offload_base::counters! {
    /// Counters of the bytes written to a [`SharedWrites`].
    ///
    /// ```
    /// use ktls_offload::SharedWrites;
    ///
    /// let (stream, _) = SharedWrites::new(());
    /// assert_eq!(stream.counters().shared, 0);
    /// ```
    pub struct WriteCounters {
        /// Bytes sent without a copy.
        pub shared: "write_shared_bytes",
        /// Bytes copied.
        pub copied: "write_copied_bytes",
    }
}

impl<S> SharedWrites<S> {
    /// Wraps `stream`. The second value lends buffers to it.
    pub fn new(stream: S) -> (SharedWrites<S>, LentPieces) {
        let pieces = LentPieces::default();
        (SharedWrites { stream, pieces: pieces.clone(), counters: WriteCounters::default() }, pieces)
    }

    /// Returns the inner stream.
    pub fn get_ref(&self) -> &S {
        &self.stream
    }

    /// Returns the inner stream. Data written to it directly precede later writes through this wrapper.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.stream
    }

    /// Returns the counters of the bytes written so far.
    pub fn counters(&self) -> &WriteCounters {
        &self.counters
    }

    /// Returns the inner stream, unwrapped.
    pub fn into_inner(self) -> S {
        self.stream
    }
}

impl<S: SegmentStream> SharedWrites<S> {
    /// Queues `slices` in order up to [`ENOUGH_AT_ONCE`], in whole slices, so that records end where writes end.
    /// Returns the number of bytes taken.
    fn queue(&mut self, slices: &[IoSlice<'_>]) -> usize {
        let mut taken = 0;
        let mut copied = BytesMut::new();
        for slice in slices {
            // A short write returns to the caller, who then waits for room.
            if taken >= ENOUGH_AT_ONCE {
                break;
            }
            taken += slice.len();
            // A short slice is cheaper to copy than to send separately.
            match if slice.len() < WORTH_SHARING { None } else { self.pieces.find(slice) } {
                Some(share) => {
                    if !copied.is_empty() {
                        // The copied bytes come before the shared ones in the stream.
                        self.stream.send(copied.split().freeze(), TxTag::PLAIN);
                    }
                    self.counters.shared += share.len() as u64;
                    self.stream.send(share, TxTag::PLAIN);
                }
                None => {
                    let _copy = cost::work(WorkKind::Copy);
                    self.counters.copied += slice.len() as u64;
                    copied.extend_from_slice(slice);
                }
            }
        }
        if !copied.is_empty() {
            self.stream.send(copied.freeze(), TxTag::PLAIN);
        }
        taken
    }
}

impl<S: SegmentStream + AsyncWrite> AsyncWrite for SharedWrites<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(data)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        // An empty write must not wait for room.
        if slices.iter().all(|slice| slice.is_empty()) {
            return Poll::Ready(Ok(0));
        }
        // Without room, the write takes no bytes, so queued buffers stay bounded.
        ready!(self.stream.poll_room(cx))?;
        Poll::Ready(Ok(self.queue(slices)))
    }

    /// Returns true: layers above would otherwise flatten their writes into one buffer.
    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for SharedWrites<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl<S: fmt::Debug> fmt::Debug for SharedWrites<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedWrites").field("stream", &self.stream).finish_non_exhaustive()
    }
}

/// Maximum number of remembered pieces: more than a layer above keeps waiting.
const LENT_MAX: usize = 32;
/// Number of bytes after which a write takes no further slices.
const ENOUGH_AT_ONCE: usize = 256 << 10;
/// Minimum length of a slice to be looked up among the lent buffers.
const WORTH_SHARING: usize = 2048;

#[cfg(test)]
mod tests {
    use super::*;
    use core::task::Waker;
    use offload_api::{
        Contexts, DeviceEvent, FlowKey, Handle, Layer, NextPiece, RxSegment, Sealer, SendProgress, SentBytes, stream,
    };
    use offload_base::Seq;

    /// A transport that records the sent buffers.
    #[derive(Default)]
    struct SentBuffers {
        sent: Vec<Bytes>,
        full: bool,
    }

    impl SegmentStream for SentBuffers {
        fn poll_segment(&mut self, _: &mut Context<'_>) -> Poll<io::Result<Option<RxSegment>>> {
            Poll::Pending
        }
        fn next_seq(&self) -> Option<Seq> {
            None
        }
        fn seq_after(&self, _: u32) -> Option<Seq> {
            None
        }
        fn furthest_seq(&self) -> Option<Seq> {
            None
        }
        fn consume(&mut self, _: usize) {}
        fn poll_room(&mut self, _: &mut Context<'_>) -> Poll<io::Result<usize>> {
            if self.full { Poll::Pending } else { Poll::Ready(Ok(1)) }
        }
        fn send(&mut self, data: Bytes, _: TxTag) -> Seq {
            self.sent.push(data);
            Seq(0)
        }
        fn send_pieces(&mut self, pieces: &mut dyn Iterator<Item = (Bytes, TxTag)>) -> Option<Seq> {
            stream::send_one_by_one(self, pieces)
        }
        fn poll_send(
            &mut self,
            cx: &mut Context<'_>,
            listener: &Waker,
            pieces: &mut NextPiece<'_>,
        ) -> Poll<io::Result<SendProgress>> {
            stream::poll_send_in_steps(self, cx, listener, pieces)
        }
        fn flush(&mut self) {}
        fn poll_committed(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
        fn sent(&self) -> SentBytes {
            SentBytes::default()
        }
        fn poll_acked(&mut self, _: &mut Context<'_>, _: u64) -> Poll<io::Result<()>> {
            Poll::Pending
        }
        fn finish(&mut self) {}
        fn abort(&mut self) {}
        fn install(&mut self, _: Layer, _: Box<dyn Sealer>) {}
        fn release(&mut self, _: Handle) {}
        fn control(&mut self, _: &mut dyn FnMut(FlowKey, &mut dyn Contexts)) -> bool {
            false
        }
        fn poll_device_event(&mut self, _: &mut Context<'_>) -> Poll<DeviceEvent> {
            Poll::Pending
        }
    }

    impl AsyncWrite for SentBuffers {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
            unreachable!("everything is queued by `send`")
        }
        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    fn write(stream: &mut SharedWrites<SentBuffers>, slices: &[&[u8]]) -> Poll<io::Result<usize>> {
        let slices: Vec<IoSlice<'_>> = slices.iter().map(|slice| IoSlice::new(slice)).collect();
        Pin::new(stream).poll_write_vectored(&mut Context::from_waker(Waker::noop()), &slices)
    }

    fn taken(written: Poll<io::Result<usize>>) -> usize {
        match written {
            Poll::Ready(Ok(bytes)) => bytes,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn lent_slices_are_shared_and_others_copied() {
        let (mut stream, lent) = SharedWrites::new(SentBuffers::default());
        let body = lent.lend(Bytes::from(vec![1; 10_000]));
        let stranger = vec![2; 5_000];
        assert_eq!(taken(write(&mut stream, &[b"he", b"ad", &body[..4_000], &body[4_000..], &stranger])), 15_004);
        let sent = &stream.get_ref().sent;
        assert_eq!(sent.iter().map(Bytes::len).collect::<Vec<_>>(), [4, 4_000, 6_000, 5_000]);
        assert_eq!(sent[0], "head");
        assert_eq!(sent[1].as_ptr(), body.as_ptr());
        assert_eq!(sent[2].as_ptr(), body[4_000..].as_ptr());
        assert_ne!(sent[3].as_ptr(), stranger.as_ptr());
        assert_eq!((stream.counters().shared, stream.counters().copied), (10_000, 5_004));
        assert!(lent.lock().is_empty(), "nothing is kept longer than it is looked for");
    }

    #[test]
    fn a_part_of_a_write_may_be_taken_and_the_rest_comes_again() {
        let (mut stream, lent) = SharedWrites::new(SentBuffers::default());
        let (first, second) = (lent.lend(vec![1; ENOUGH_AT_ONCE].into()), lent.lend(vec![2; 10_000].into()));
        assert_eq!(taken(write(&mut stream, &[b"head", &first, &second])), 4 + ENOUGH_AT_ONCE);
        stream.stream.full = true;
        assert!(write(&mut stream, &[&second]).is_pending());
        assert_eq!(stream.get_ref().sent.len(), 2, "no room: nothing is queued");
        stream.stream.full = false;
        assert_eq!(taken(write(&mut stream, &[&second])), 10_000);
        assert_eq!(stream.get_ref().sent[2].as_ptr(), second.as_ptr());
    }

    #[test]
    fn short_and_forgotten_pieces_are_copied() {
        let (mut stream, lent) = SharedWrites::new(SentBuffers::default());
        let short = lent.lend(vec![1; WORTH_SHARING - 1].into());
        let forgotten = lent.lend(vec![2; 5_000].into());
        for _ in 0..LENT_MAX {
            lent.lend(vec![3; 5_000].into());
        }
        assert_eq!(lent.lock().len(), LENT_MAX);
        assert_eq!(taken(write(&mut stream, &[&short, &forgotten])), short.len() + forgotten.len());
        assert_eq!(stream.get_ref().sent, [[&short[..], &forgotten[..]].concat()]);
    }

    #[test]
    fn written_pieces_are_not_remembered() {
        let (mut stream, lent) = SharedWrites::new(SentBuffers::default());
        for length in [1, 100, WORTH_SHARING - 1, WORTH_SHARING, 1] {
            let body = lent.lend(vec![1; length].into());
            assert_eq!(taken(write(&mut stream, &[b"head", &body])), 4 + length);
            assert!(lent.lock().is_empty(), "a connection that is idle now keeps an answer of {length} bytes");
        }
    }
}
