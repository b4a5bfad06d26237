//! A tokio byte stream as a [`SegmentStream`] without a device.
//!
//! Invariant: queued bytes are written in order and once; `written + queued == sent`. Sequence numbers are stream
//! offsets modulo 2^32, from zero in each direction.

use crate::contexts::Contexts;
use crate::device::DeviceEvent;
use crate::rx::{RxMeta, RxSegment};
use crate::source::Sealer;
use crate::stream::{self, NextPiece, SegmentStream, SendProgress, SentBytes};
use crate::unit::{Handle, Layer, TxTag};
use bytes::{Buf, Bytes, BytesMut};
use core::future::Future;
use core::pin::{Pin, pin};
use core::task::{Context, Poll, Waker, ready};
use offload_base::Seq;
use offload_base::tasks::{TaskRole, WaitingTasks};
use offload_formats::FlowKey;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, DuplexStream, Join};
use tokio::net::TcpStream;
#[cfg(unix)]
use tokio::net::UnixStream;

/// A byte stream for [`TokioSegments`]: a TCP or Unix socket of tokio, a duplex stream, or two halves combined by
/// [`tokio::io::join`].
///
/// ```
/// use offload_api::ByteStream;
/// use std::pin::Pin;
/// use std::task::{Context, Poll};
/// use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
/// use tokio::net::TcpStream;
///
/// /// A socket and what goes with it.
/// struct Counted(TcpStream, u64);
///
/// impl ByteStream for Counted {
///     fn reset_when_dropped(&mut self) {
///         self.0.reset_when_dropped();
///     }
/// }
/// # impl AsyncRead for Counted {
/// #     fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
/// #         Pin::new(&mut self.0).poll_read(cx, buf)
/// #     }
/// # }
/// # impl AsyncWrite for Counted {
/// #     fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<std::io::Result<usize>> {
/// #         Pin::new(&mut self.0).poll_write(cx, buf)
/// #     }
/// #     fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
/// #         Pin::new(&mut self.0).poll_flush(cx)
/// #     }
/// #     fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
/// #         Pin::new(&mut self.0).poll_shutdown(cx)
/// #     }
/// # }
/// # let _stream = |counted: Counted| offload_api::TokioSegments::new(counted);
/// ```
///
/// Any other tokio stream can be split and joined:
///
/// ```
/// # fn over_any(stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin) {
/// let (read, write) = tokio::io::split(stream);
/// let stream = offload_api::TokioSegments::new(tokio::io::join(read, write));
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a `ByteStream`, so `TokioSegments` cannot run on it",
    note = "any `AsyncRead + AsyncWrite` can be split and joined: \
            `let (read, write) = tokio::io::split(stream); TokioSegments::new(tokio::io::join(read, write))`"
)]
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {
    /// Prepares the stream to be dropped with a reset. Written bytes that have not left are discarded instead of
    /// delivered later. Streams that support it send a reset to the peer.
    fn reset_when_dropped(&mut self);
}

impl ByteStream for TcpStream {
    fn reset_when_dropped(&mut self) {
        // An error means that the connection is gone already, so nothing can be delivered.
        let _ = self.set_zero_linger();
    }
}

/// Written bytes are in the peer's receive buffer already.
#[cfg(unix)]
impl ByteStream for UnixStream {
    fn reset_when_dropped(&mut self) {}
}

/// Written bytes are in the peer's buffer already.
impl ByteStream for DuplexStream {
    fn reset_when_dropped(&mut self) {}
}

/// Separate halves have no connection that could be reset.
impl<R: AsyncRead + Send + Unpin, W: AsyncWrite + Send + Unpin> ByteStream for Join<R, W> {
    fn reset_when_dropped(&mut self) {}
}

/// Adapts any [`ByteStream`], for example a kernel TCP socket, to carry records.
///
/// There is no device: contexts are refused and sealers dropped, so the user queues bytes that are ready for the wire.
/// There is no background task either: **after the stream is dropped, only bytes already written are delivered**.
/// Queued bytes are written whenever the stream is polled or flushed. [`poll_committed`] is ready when all bytes are
/// written; dropping the stream makes one more attempt. [`abort`] drops the underlying stream with all unsent bytes.
///
/// [`poll_committed`]: SegmentStream::poll_committed
/// [`abort`]: SegmentStream::abort
///
/// ```
/// use bytes::Bytes;
/// use offload_api::{SegmentStream, TokioSegments, TxTag};
/// use std::future::poll_fn;
/// use tokio::io::AsyncReadExt;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// let (near, mut far) = tokio::io::duplex(64);
/// let mut stream = TokioSegments::new(near);
/// stream.send(Bytes::from_static(b"hello"), TxTag::PLAIN);
/// poll_fn(|cx| stream.poll_committed(cx)).await?;
/// let mut hello = [0; 5];
/// far.read_exact(&mut hello).await?;
/// assert_eq!(&hello, b"hello");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct TokioSegments<T: ByteStream> {
    /// The underlying stream; `None` after an abort, because only closing the socket discards its bytes.
    io: Option<T>,
    queue: VecDeque<Bytes>,
    queued: usize,
    /// Whether the underlying stream may still hold written bytes.
    is_unflushed: bool,
    sent: u64,
    written: u64,
    received: u64,
    buffer: BytesMut,
    closing: Closing,
    /// The first write error. Nothing can be written afterwards.
    failed: Option<io::ErrorKind>,
    /// Tasks that wait for the write side: the writer, and a reader while bytes are queued. A stream has a single waker
    /// per side and either task may disappear without notice, so both are woken together.
    waiting: WaitingTasks,
    /// The task that waits for data; also woken by an abort.
    reader: Option<Waker>,
}

/// The state of the write side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closing {
    Open,
    Finishing,
    Finished,
    Aborted,
}

impl<T: ByteStream> TokioSegments<T> {
    /// Makes a stream over `io`.
    pub fn new(io: T) -> TokioSegments<T> {
        TokioSegments {
            io: Some(io),
            queue: VecDeque::new(),
            queued: 0,
            is_unflushed: false,
            sent: 0,
            written: 0,
            received: 0,
            buffer: BytesMut::new(),
            closing: Closing::Open,
            failed: None,
            waiting: WaitingTasks::default(),
            reader: None,
        }
    }

    /// Returns the underlying stream; `None` after an abort.
    pub fn get_ref(&self) -> Option<&T> {
        self.io.as_ref()
    }

    /// Takes the underlying stream out and ends this stream. Queued bytes that are not written are dropped, so poll
    /// [`poll_committed`](SegmentStream::poll_committed) first. Returns `None` after an abort.
    pub fn take(&mut self) -> Option<T> {
        // Taken first, so that `abort` does not reset the connection that the caller takes over.
        let io = self.io.take();
        self.abort();
        io
    }

    /// Writes the queued bytes and performs a pending shutdown; `task` waits for the end.
    fn poll_written(&mut self, task: TaskRole, cx: &Context<'_>) -> Poll<io::Result<()>> {
        // The task registers before the write, because the wakeup might arrive in between.
        self.waiting.wait(task, cx);
        let written = self.try_write();
        if written.is_ready() {
            // The other task waits for the same bytes, so it is woken too.
            self.waiting.done(task);
        }
        written
    }

    /// Writes as much as possible. Waiting tasks are woken when more can be written.
    fn try_write(&mut self) -> Poll<io::Result<()>> {
        if let Some(kind) = self.failed {
            return Poll::Ready(Err(kind.into()));
        }
        // The stream below has one waker, which wakes all waiting tasks.
        let waker = self.waiting.waker();
        let result = self.poll_write_queue(&mut Context::from_waker(&waker));
        if let Poll::Ready(Err(error)) = &result {
            self.failed = Some(error.kind());
            self.queue.clear();
            (self.queued, self.is_unflushed) = (0, false);
        }
        result
    }

    /// Calls [`try_write`](Self::try_write) without a waiting task.
    fn write_unasked(&mut self) {
        // `failed` keeps an error for the next poll.
        if self.try_write().is_ready() {
            self.waiting.wake_all();
        }
    }

    fn poll_write_queue(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.queued > 0 {
            let io = self.io.as_mut().ok_or(io::ErrorKind::ConnectionAborted)?;
            // Records are queued as header and payload, so vectored writes save system calls.
            let written = if io.is_write_vectored() {
                let mut slices = [IoSlice::new(&[]); SLICES];
                let used =
                    self.queue.iter().zip(&mut slices).map(|(bytes, slice)| *slice = IoSlice::new(bytes)).count();
                ready!(Pin::new(io).poll_write_vectored(cx, &slices[..used]))?
            } else {
                let first = self.queue.front().map_or(&[][..], |bytes| bytes);
                ready!(Pin::new(io).poll_write(cx, first))?
            };
            // A stream that accepts no bytes would loop here forever.
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.drop_written(written);
        }
        // The shutdown comes after the flush, because a shutdown does not flush in every stream.
        let io = self.io.as_mut().ok_or(io::ErrorKind::ConnectionAborted)?;
        ready!(Pin::new(&mut *io).poll_flush(cx))?;
        self.is_unflushed = false;
        if self.closing == Closing::Finishing {
            ready!(Pin::new(io).poll_shutdown(cx))?;
            self.closing = Closing::Finished;
        }
        Poll::Ready(Ok(()))
    }

    fn drop_written(&mut self, written: usize) {
        self.queued -= written;
        self.is_unflushed = true;
        self.written += written as u64;
        // A vectored write may end inside any slice.
        let mut left = written;
        while left > 0 {
            let Some(first) = self.queue.front_mut() else { return };
            if first.len() > left {
                first.advance(left);
                return;
            }
            left -= first.len();
            self.queue.pop_front();
        }
    }
}

impl<T: ByteStream> SegmentStream for TokioSegments<T> {
    fn poll_segment(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<RxSegment>>> {
        if self.queued > 0 || self.is_unflushed || self.closing == Closing::Finishing {
            // A task that only reads must keep the writes going too. Write errors are reported to the writer.
            let _ = self.poll_written(TaskRole::Reader, cx);
        }
        if !self.reader.as_ref().is_some_and(|reader| reader.will_wake(cx.waker())) {
            self.reader = Some(cx.waker().clone());
        }
        let io = self.io.as_mut().ok_or(io::ErrorKind::ConnectionAborted)?;
        if self.buffer.capacity() - self.buffer.len() < READ_MIN {
            self.buffer.reserve(READ_BYTES);
        }
        let read = ready!(pin!(io.read_buf(&mut self.buffer)).poll(cx))?;
        if read == 0 {
            return Poll::Ready(Ok(None));
        }
        let seq = Seq(self.received as u32);
        self.received += read as u64;
        // The range keeps its part of the allocation, and the next read uses the rest.
        let data = self.buffer.split().into();
        Poll::Ready(Ok(Some(RxSegment { seq, data, meta: RxMeta::default() })))
    }

    /// Unknown until the next range arrives.
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

    /// Wants more data once all queued bytes are written: the kernel's buffer serves as the send buffer.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.closing != Closing::Open {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        self.poll_written(TaskRole::Writer, cx).map_ok(|()| ROOM)
    }

    fn send(&mut self, data: Bytes, _: TxTag) -> Seq {
        let seq = Seq(self.sent as u32);
        if self.closing == Closing::Open && self.failed.is_none() && !data.is_empty() {
            self.sent += data.len() as u64;
            self.queued += data.len();
            self.queue.push_back(data);
        }
        seq
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

    fn flush(&mut self) {
        self.write_unasked();
    }

    /// Bytes count as acknowledged when the underlying stream has accepted them.
    fn poll_acked(&mut self, cx: &mut Context<'_>, offset: u64) -> Poll<io::Result<()>> {
        if self.written >= offset {
            return Poll::Ready(Ok(()));
        }
        match self.poll_written(TaskRole::Writer, cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            // Enough may be written although more is queued.
            _ if self.written >= offset => Poll::Ready(Ok(())),
            Poll::Ready(Ok(())) if self.closing != Closing::Open => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            _ => {
                // All queued bytes are written, and the awaited ones are not queued yet. The next `send` must wake the
                // writer.
                self.waiting.wait(TaskRole::Writer, cx);
                Poll::Pending
            }
        }
    }

    fn poll_committed(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_written(TaskRole::Writer, cx)
    }

    /// The underlying stream does not report this.
    fn sent(&self) -> SentBytes {
        SentBytes::default()
    }

    fn finish(&mut self) {
        if self.closing == Closing::Open {
            self.closing = Closing::Finishing;
        }
        self.write_unasked();
    }

    fn abort(&mut self) {
        // `failed` also makes later polls of the write side return the error.
        self.closing = Closing::Aborted;
        self.failed = Some(io::ErrorKind::ConnectionAborted);
        self.queue.clear();
        self.queued = 0;
        if let Some(mut io) = self.io.take() {
            io.reset_when_dropped();
        }
        self.waiting.wake_all();
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }

    /// Sealers are dropped, because all queued bytes are ready for the wire.
    fn install(&mut self, _: Layer, _: Box<dyn Sealer>) {}

    fn release(&mut self, _: Handle) {}

    fn control(&mut self, _: &mut dyn FnMut(FlowKey, &mut dyn Contexts)) -> bool {
        false
    }

    fn poll_device_event(&mut self, _: &mut Context<'_>) -> Poll<DeviceEvent> {
        Poll::Pending
    }
}

impl<T: ByteStream> Drop for TokioSegments<T> {
    fn drop(&mut self) {
        // Dropping a stream closes it in order, as the trait demands.
        if matches!(self.closing, Closing::Open | Closing::Finishing) {
            self.finish();
        }
    }
}

/// Slices per vectored write.
const SLICES: usize = 32;
/// Allocation size for reads.
const READ_BYTES: usize = 64 << 10;
/// Minimum free space of the buffer before a read.
const READ_MIN: usize = 16 << 10;
/// Bytes that the stream requests when nothing is queued.
const ROOM: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpSocket;

    #[tokio::test]
    async fn queued_bytes_go_out_while_only_reading() {
        let (near, mut far) = tokio::io::duplex(8);
        let mut stream = TokioSegments::new(near);
        assert_eq!(stream.send(Bytes::from(vec![1; 10]), TxTag::PLAIN), Seq(0));
        assert_eq!(stream.send(Bytes::from(vec![2; 10]), TxTag::PLAIN), Seq(10));
        let reader = tokio::spawn(async move {
            let segment = poll_fn(|cx| stream.poll_segment(cx)).await.unwrap().unwrap();
            (segment.seq, segment.data.to_vec(), stream.queued)
        });
        let mut all = [0; 20];
        far.read_exact(&mut all).await.unwrap();
        assert_eq!((&all[..10], &all[10..]), (&[1; 10][..], &[2; 10][..]));
        far.write_all(b"done").await.unwrap();
        assert_eq!(reader.await.unwrap(), (Seq(0), b"done".to_vec(), 0));
    }

    #[tokio::test]
    async fn dropping_writes_the_queued_bytes_and_closes() {
        let (near, mut far) = tokio::io::duplex(64);
        let mut stream = TokioSegments::new(near);
        stream.send(Bytes::from_static(b"last words"), TxTag::PLAIN);
        drop(stream);
        let mut rest = Vec::new();
        far.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, b"last words");
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn unix_stream_carries_both_directions() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let mut stream = TokioSegments::new(near);
        stream.send(Bytes::from_static(b"question"), TxTag::PLAIN);
        poll_fn(|cx| stream.poll_committed(cx)).await.unwrap();
        far.read_exact(&mut [0; 8]).await.unwrap();
        far.write_all(b"answer").await.unwrap();
        let segment = poll_fn(|cx| stream.poll_segment(cx)).await.unwrap().unwrap();
        assert_eq!(segment.data.to_vec(), b"answer");
    }

    #[tokio::test]
    async fn taken_stream_carries_on_by_itself() {
        let (near, mut far) = tokio::io::duplex(64);
        let mut stream = TokioSegments::new(near);
        stream.send(Bytes::from_static(b"first"), TxTag::PLAIN);
        poll_fn(|cx| stream.poll_committed(cx)).await.unwrap();
        let mut near = stream.take().unwrap();
        assert!(stream.take().is_none());
        drop(stream);
        near.write_all(b"second").await.unwrap();
        let mut both = [0; 11];
        far.read_exact(&mut both).await.unwrap();
        assert_eq!(&both, b"firstsecond");
    }

    /// Over the kernel's TCP, with a peer that has a small buffer and does not read.
    #[tokio::test]
    async fn undelivered_bytes_stay_undelivered_after_an_abort() {
        let listener = TcpSocket::new_v4().unwrap();
        listener.set_recv_buffer_size(4096).unwrap();
        listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = listener.listen(1).unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut far, _) = listener.accept().await.unwrap();
        let mut stream = TokioSegments::new(near);
        stream.send(Bytes::from(vec![1; 64 << 20]), TxTag::PLAIN);
        assert!(stream.poll_committed(&mut Context::from_waker(Waker::noop())).is_pending());
        // Otherwise the abort would have nothing to discard.
        assert!(stream.written > 64 << 10, "the kernel buffers more than the peer has room for: {}", stream.written);
        stream.abort();
        assert_eq!(poll_fn(|cx| stream.poll_segment(cx)).await.unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
        assert!(poll_fn(|cx| stream.poll_committed(cx)).await.is_err());
        let mut delivered = Vec::new();
        let ended = far.read_to_end(&mut delivered).await;
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        assert!((delivered.len() as u64) < stream.written, "{} of {}", delivered.len(), stream.written);
    }

    #[tokio::test]
    async fn a_lost_peer_is_an_error_and_frees_the_queue() {
        let (near, far) = tokio::io::duplex(4);
        let mut stream = TokioSegments::new(near);
        stream.send(Bytes::from(vec![0; 100]), TxTag::PLAIN);
        drop(far);
        assert!(poll_fn(|cx| stream.poll_committed(cx)).await.is_err());
        assert!(poll_fn(|cx| stream.poll_room(cx)).await.is_err());
        assert_eq!(stream.queued, 0);
    }

    #[tokio::test]
    async fn the_writer_wakes_after_the_reader_wrote_its_bytes() {
        let (near, mut far) = tokio::io::duplex(8);
        let mut stream = TokioSegments::new(near);
        stream.send(Bytes::from(vec![3; 20]), TxTag::PLAIN);
        let stream = std::sync::Arc::new(std::sync::Mutex::new(stream));
        let writer = stream.clone();
        let writer = tokio::spawn(poll_fn(move |cx| writer.lock().unwrap().poll_room(cx)));
        tokio::task::yield_now().await;
        let reader = tokio::spawn(poll_fn(move |cx| stream.lock().unwrap().poll_segment(cx)));
        tokio::task::yield_now().await;
        far.read_exact(&mut [0; 20]).await.unwrap();
        assert!(writer.await.unwrap().unwrap() > 0);
        reader.abort();
    }

    /// A waker that counts its wakeups.
    #[derive(Default)]
    struct SegmentWaker(AtomicUsize);

    impl Wake for SegmentWaker {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn task() -> (Arc<SegmentWaker>, Waker) {
        let woken = Arc::new(SegmentWaker::default());
        (woken.clone(), woken.into())
    }

    #[tokio::test]
    async fn the_writer_wakes_after_a_later_reader_has_gone() {
        let (near, mut far) = tokio::io::duplex(8);
        let mut stream = TokioSegments::new(near);
        stream.send(Bytes::from(vec![3; 20]), TxTag::PLAIN);
        let ((writes, writer), (reads, reader)) = (task(), task());
        assert!(stream.poll_room(&mut Context::from_waker(&writer)).is_pending());
        // For example a read with a timeout, or a read that lost in a `select`.
        assert!(stream.poll_segment(&mut Context::from_waker(&reader)).is_pending());
        stream.flush(); // and so does a flush, which waits for nothing
        far.read_exact(&mut [0; 8]).await.unwrap();
        assert_eq!(writes.0.load(Ordering::Relaxed), 1);
        assert_eq!(reads.0.load(Ordering::Relaxed), 1, "a reader continues the writes when the writer is gone");
    }

    /// Another task queues the awaited bytes.
    #[tokio::test]
    async fn waiters_for_unqueued_bytes_are_woken_or_get_an_error() {
        let (near, _far) = tokio::io::duplex(64);
        let mut stream = TokioSegments::new(near);
        let (writes, writer) = task();
        assert!(stream.poll_acked(&mut Context::from_waker(&writer), 4).is_pending());
        stream.send(Bytes::from_static(b"some"), TxTag::PLAIN);
        stream.flush();
        assert_eq!(writes.0.load(Ordering::Relaxed), 1);
        assert!(matches!(stream.poll_acked(&mut Context::from_waker(&writer), 4), Poll::Ready(Ok(()))));
        assert!(stream.poll_acked(&mut Context::from_waker(&writer), 5).is_pending());
        stream.finish();
        assert_eq!(writes.0.load(Ordering::Relaxed), 2);
        let Poll::Ready(Err(error)) = stream.poll_acked(&mut Context::from_waker(&writer), 5) else { panic!("told") };
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }

    #[tokio::test]
    async fn an_abort_wakes_reader_and_writer() {
        let (near, _far) = tokio::io::duplex(8);
        let mut stream = TokioSegments::new(near);
        let ((writes, writer), (reads, reader)) = (task(), task());
        assert!(stream.poll_segment(&mut Context::from_waker(&reader)).is_pending());
        stream.send(Bytes::from(vec![3; 20]), TxTag::PLAIN);
        assert!(stream.poll_acked(&mut Context::from_waker(&writer), 20).is_pending());
        stream.abort();
        assert_eq!([writes, reads].map(|task| task.0.load(Ordering::Relaxed)), [1, 1]);
    }

    #[tokio::test]
    async fn a_writer_with_room_is_not_woken_by_its_own_writes() {
        let (near, _far) = tokio::io::duplex(64);
        let mut stream = TokioSegments::new(near);
        let (writes, writer) = task();
        assert!(stream.poll_room(&mut Context::from_waker(&writer)).is_ready());
        stream.send(Bytes::from_static(b"some"), TxTag::PLAIN);
        stream.flush();
        assert_eq!(writes.0.load(Ordering::Relaxed), 0);
    }
}
