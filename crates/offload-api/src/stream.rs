//! The interface of a TCP transport to a protocol.

use crate::contexts::Contexts;
use crate::device::DeviceEvent;
use crate::rx::RxSegment;
use crate::source::Sealer;
use crate::unit::{Handle, Layer, TxTag};
use bytes::Bytes;
use core::task::{Context, Poll, Waker, ready};
use offload_base::Seq;
use offload_formats::FlowKey;
use std::io;

/// Payload bytes sent by a transport, retransmissions included.
///
/// ```
/// use offload_api::SentBytes;
///
/// let before = SentBytes { total: 1_000, again: 0 };
/// let now = SentBytes { total: 101_000, again: 3_000 };
/// assert_eq!(now.since(before).share_again(), 0.03);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SentBytes {
    /// All bytes sent.
    pub total: u64,
    /// Retransmitted bytes among them.
    pub again: u64,
}

impl SentBytes {
    /// Returns the bytes sent since the earlier reading `earlier`.
    pub fn since(self, earlier: SentBytes) -> SentBytes {
        SentBytes { total: self.total.saturating_sub(earlier.total), again: self.again.saturating_sub(earlier.again) }
    }

    /// Returns the share of retransmitted bytes, 0 to 1; 0 if nothing was sent.
    pub fn share_again(self) -> f64 {
        if self.total == 0 { 0.0 } else { self.again as f64 / self.total as f64 }
    }
}

/// The result of [`SegmentStream::poll_send`].
///
/// ```
/// use bytes::Bytes;
/// use offload_api::{DeviceEvent, SegmentStream, SendProgress, TxTag};
/// use std::task::{Context, Poll, Waker};
///
/// /// Sends a line, after whatever the device has to say.
/// fn poll_line(
///     stream: &mut impl SegmentStream,
///     cx: &mut Context<'_>,
///     listener: &Waker,
///     mut act_on: impl FnMut(DeviceEvent),
/// ) -> Poll<std::io::Result<()>> {
///     loop {
///         let mut line = Some((Bytes::from_static(b"hello\n"), TxTag::PLAIN));
///         match stream.poll_send(cx, listener, &mut |_| line.take()) {
///             Poll::Ready(Ok(SendProgress::News(event))) => act_on(event),
///             Poll::Ready(Ok(SendProgress::Queued(_))) => return Poll::Ready(Ok(())),
///             Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
///             Poll::Pending => return Poll::Pending,
///         }
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendProgress {
    /// The device has an event that may change the data to send. Nothing was queued.
    News(DeviceEvent),
    /// All pieces are queued and leave now. Contains the sequence number of the first byte; `None` if there was no
    /// piece.
    Queued(Option<Seq>),
}

/// A source of pieces to send. The argument is the number of bytes sent so far.
pub type NextPiece<'a> = dyn FnMut(SentBytes) -> Option<(Bytes, TxTag)> + 'a;

/// A byte stream with offload metadata: received ranges keep their TCP sequence number and the device's verdicts, and
/// queued bytes carry the pending work of the device.
///
/// A TCP stream implements the trait, and so does a TLS stream over it. Adapters exist for any `AsyncRead +
/// AsyncWrite`.
///
/// **After the drop.** All data passed to [`send`](Self::send) are delivered after the stream is dropped, sealed in
/// software if necessary, without polling. Then the connection is closed. A dropped stream does not send a protocol's
/// own end mark, such as close_notify; [`finish`](Self::finish) does.
///
/// No method has a default, because a wrapper could then forget to forward the method.
pub trait SegmentStream: Send + Unpin {
    /// Returns the next range in order; `None` after the peer has closed its side.
    ///
    /// # Errors
    /// `ConnectionReset`, `TimedOut` and the like, when the connection is lost.
    fn poll_segment(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<RxSegment>>>;

    /// Returns the sequence number of the next range's first byte, received or not. `None` from a transport that cannot
    /// tell before the range arrives.
    fn next_seq(&self) -> Option<Seq>;

    /// Returns the sequence number `bytes` bytes after [`next_seq`](Self::next_seq). `None` from a transport that
    /// cannot tell, such as a record layer that knows only the position of the next byte.
    fn seq_after(&self, bytes: u32) -> Option<Seq>;

    /// Returns the sequence number after the furthest received byte, in order or not. `None` from a transport that
    /// cannot tell.
    fn furthest_seq(&self) -> Option<Seq>;

    /// Marks `bytes` received bytes as consumed, so that the window may open again.
    fn consume(&mut self, bytes: usize);

    /// Returns the number of bytes that the send queue wants, at least one when ready. A protocol may send more to
    /// complete a unit. The queue grows without bound only if a protocol ignores the number altogether.
    ///
    /// # Errors
    /// When nothing can be sent any more.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>>;

    /// Queues `data` and returns the sequence number of the first byte. Never blocks. After an error or a close the
    /// data are discarded, and [`poll_room`](Self::poll_room) reports the reason.
    fn send(&mut self, data: Bytes, tag: TxTag) -> Seq;

    /// [Sends](Self::send) consecutive pieces, such as the pieces of a record, and returns the sequence number of the
    /// first byte; `None` if there are no pieces. A transport behind a lock takes the lock once.
    fn send_pieces(&mut self, pieces: &mut dyn Iterator<Item = (Bytes, TxTag)>) -> Option<Seq>;

    /// Returns the flow's next device event if there is one. Otherwise, if the send queue wants data,
    /// [sends](Self::send) all of `pieces` and [flushes](Self::flush) them. A later event wakes `listener`, as after
    /// [`poll_device_event`](Self::poll_device_event); room wakes the task of `cx`, as after
    /// [`poll_room`](Self::poll_room).
    ///
    /// A transport behind a lock takes the lock once. `pieces` is called only when its result will be queued, so the
    /// caller can decide late. `pieces` is called under the lock and must neither use the transport nor wait.
    ///
    /// # Errors
    /// When nothing can be sent any more.
    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        listener: &Waker,
        pieces: &mut NextPiece<'_>,
    ) -> Poll<io::Result<SendProgress>>;

    /// Sends queued bytes now, even if they do not fill a segment.
    fn flush(&mut self);

    /// Ready once the transport needs no more polling to deliver all queued bytes and a [`finish`](Self::finish). A
    /// transport with its own task is ready at once. A transport that works only while polled is ready when nothing is
    /// left to do.
    ///
    /// # Errors
    /// When the connection is lost first.
    fn poll_committed(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Ready once the peer has acknowledged all bytes before `offset`, counted in bytes passed to [`send`](Self::send)
    /// since the start of the stream.
    ///
    /// # Errors
    /// When the connection is lost first.
    fn poll_acked(&mut self, cx: &mut Context<'_>, offset: u64) -> Poll<io::Result<()>>;

    /// Returns the number of bytes sent so far. Zeros from a transport that cannot tell.
    fn sent(&self) -> SentBytes;

    /// Closes this side after all queued bytes; the other side stays open.
    fn finish(&mut self);

    /// Ends the connection at once with a reset.
    fn abort(&mut self);

    /// Installs the sealer of units of `layer` that are queued from now on. The previous sealer is dropped when all
    /// earlier units are acknowledged.
    fn install(&mut self, layer: Layer, sealer: Box<dyn Sealer>);

    /// Declares that nothing more will be queued for the transmit context `context`. If the transport can, it keeps the
    /// context until the last byte queued for it is acknowledged or will never be sent, even after the stream is
    /// dropped, so that retransmissions still have their context. Removing the context at once is safe too, because the
    /// installed sealer can seal all of its units.
    fn release(&mut self, context: Handle);

    /// Calls `f` with the flow and the contexts of its device. Returns false without calling `f` if there is no device
    /// with contexts.
    fn control(&mut self, f: &mut dyn FnMut(FlowKey, &mut dyn Contexts)) -> bool;

    /// Returns the next device event about this flow.
    fn poll_device_event(&mut self, cx: &mut Context<'_>) -> Poll<DeviceEvent>;
}

/// Implements [`SegmentStream::poll_send`] with the single-step methods, for a transport without a lock.
///
/// # Errors
/// As for [`SegmentStream::poll_send`].
pub fn poll_send_in_steps<S: SegmentStream + ?Sized>(
    stream: &mut S,
    cx: &mut Context<'_>,
    listener: &Waker,
    pieces: &mut NextPiece<'_>,
) -> Poll<io::Result<SendProgress>> {
    if let Poll::Ready(event) = stream.poll_device_event(&mut Context::from_waker(listener)) {
        return Poll::Ready(Ok(SendProgress::News(event)));
    }
    // A device event goes first, because it may change the data to send.
    ready!(stream.poll_room(cx))?;
    let mut first = None;
    while let Some((data, tag)) = pieces(stream.sent()) {
        let seq = stream.send(data, tag);
        first = first.or(Some(seq));
    }
    stream.flush();
    Poll::Ready(Ok(SendProgress::Queued(first)))
}

/// Implements [`SegmentStream::send_pieces`] with one `send` per piece, for a transport without a lock.
pub fn send_one_by_one<S: SegmentStream + ?Sized>(
    stream: &mut S,
    pieces: &mut dyn Iterator<Item = (Bytes, TxTag)>,
) -> Option<Seq> {
    let mut first = None;
    for (data, tag) in pieces {
        let seq = stream.send(data, tag);
        first = first.or(Some(seq));
    }
    first
}
