//! What a protocol sees of a transport.

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

/// Payload bytes that a transport handed on, each time it did.
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
    /// All of them.
    pub total: u64,
    /// Those of them that had left before.
    pub again: u64,
}

impl SentBytes {
    /// What left after `earlier` was told.
    pub fn since(self, earlier: SentBytes) -> SentBytes {
        SentBytes { total: self.total.saturating_sub(earlier.total), again: self.again.saturating_sub(earlier.again) }
    }

    /// The share that had left before, 0 to 1; 0 if nothing left.
    pub fn share_again(self) -> f64 {
        if self.total == 0 { 0.0 } else { self.again as f64 / self.total as f64 }
    }
}

/// How a turn of sending ended: see [`SegmentStream::poll_send`].
///
/// ```
/// use bytes::Bytes;
/// use offload_api::{DeviceEvent, SegmentStream, SendTurn, TxTag};
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
///             Poll::Ready(Ok(SendTurn::News(event))) => act_on(event),
///             Poll::Ready(Ok(SendTurn::Queued(_))) => return Poll::Ready(Ok(())),
///             Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
///             Poll::Pending => return Poll::Pending,
///         }
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendTurn {
    /// The device has news, which may change what is to be sent. Nothing was queued.
    News(DeviceEvent),
    /// Everything is queued and leaves now; the sequence number of its first byte, `None` of nothing.
    Queued(Option<Seq>),
}

/// Gives what a turn of sending is to send, piece by piece; it hears how much has left so far.
pub type NextPiece<'a> = dyn FnMut(SentBytes) -> Option<(Bytes, TxTag)> + 'a;

/// A byte stream in both directions whose ranges keep their TCP sequence and what the device said about them,
/// and whose queued bytes carry what the device is to do with them.
///
/// A TCP stream is one; a TLS stream over it is one again; any `AsyncRead + AsyncWrite` can be made one.
///
/// **Life after the stream.** Whatever was handed to [`send`](Self::send) before it was dropped is still delivered, sealed
/// in software if need be, with nobody polling; then the connection is closed. What a protocol says at an end that was
/// meant ([`finish`](Self::finish)), such as a close_notify, it leaves out then.
///
/// No method has a default, so that nothing that wraps a stream can forget to pass one on.
pub trait SegmentStream: Send + Unpin {
    /// The next range in order; `None` when the peer has closed its side.
    ///
    /// # Errors
    /// `ConnectionReset`, `TimedOut` and the like, when the connection is lost.
    fn poll_segment(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<RxSegment>>>;

    /// Sequence number of the byte that the next range begins with, whether that has arrived or not; `None` from a
    /// transport that cannot tell before it has.
    fn next_seq(&self) -> Option<Seq>;

    /// Sequence number of the byte `bytes` behind the one that [`next_seq`](Self::next_seq) tells of; `None` from a transport
    /// that cannot tell where it will be, as one whose bytes come in records and that knows of byte 0 only.
    fn seq_after(&self, bytes: u32) -> Option<Seq>;

    /// Sequence number behind the last byte that has arrived, in order or not; `None` from a transport that cannot tell.
    fn furthest_seq(&self) -> Option<Seq>;

    /// Says that `bytes` received bytes are done with, so that the window may open again.
    fn consume(&mut self, bytes: usize);

    /// How many bytes the send queue wants, at least one when ready. More may be sent, to end a unit: only
    /// a protocol that ignores it altogether makes the queue grow without bound.
    ///
    /// # Errors
    /// When nothing can be sent any more.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>>;

    /// Queues `data`, and returns the sequence number of its first byte. Never blocks; after an error or a
    /// close the data go nowhere, as [`poll_room`](Self::poll_room) tells.
    fn send(&mut self, data: Bytes, tag: TxTag) -> Seq;

    /// [Sends](Self::send) what comes one behind the other, such as the pieces of a record, and returns the sequence number
    /// of the first byte; `None` of nothing. A transport behind a lock takes it once.
    fn send_pieces(&mut self, pieces: &mut dyn Iterator<Item = (Bytes, TxTag)>) -> Option<Seq>;

    /// A turn of sending: gives the next device event about this flow, if there is one; else, if the send queue wants
    /// anything, [sends](Self::send) all that `pieces` gives and [flushes](Self::flush) them. The task of `listener` is woken for
    /// a later event as after [`poll_device_event`](Self::poll_device_event), the one of `cx` for room as after
    /// [`poll_room`](Self::poll_room).
    ///
    /// A transport behind a lock takes it once. `pieces` is asked for something only when it is going to be queued, so it
    /// may make up its mind that late; it is asked under that lock, so it must neither use the transport nor wait.
    ///
    /// # Errors
    /// When nothing can be sent any more.
    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        listener: &Waker,
        pieces: &mut NextPiece<'_>,
    ) -> Poll<io::Result<SendTurn>>;

    /// Bytes queued are to leave now, even if they do not fill a segment.
    fn flush(&mut self);

    /// Ready once everything queued, and a [`finish`](Self::finish), will be carried out with nobody polling. A
    /// transport that lives on by itself is ready at once; one that works only while it is polled is ready when
    /// nothing is left to do.
    ///
    /// # Errors
    /// When the connection is lost first.
    fn poll_committed(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Ready once all bytes before `offset` (bytes handed to [`send`](Self::send) since the stream began) are
    /// acknowledged.
    ///
    /// # Errors
    /// When the connection is lost first.
    fn poll_acked(&mut self, cx: &mut Context<'_>, offset: u64) -> Poll<io::Result<()>>;

    /// How much has left so far. Zeros from a transport that cannot tell.
    fn sent(&self) -> SentBytes;

    /// Closes this side after everything queued; the other side goes on.
    fn finish(&mut self);

    /// Ends the connection at once: the peer sees a reset.
    fn abort(&mut self);

    /// Gives the transport what seals units of `layer` that are queued from now on. The one before is dropped when all
    /// that was queued before is acknowledged.
    fn install(&mut self, layer: Layer, sealer: Box<dyn Sealer>);

    /// Says that nothing more will be queued for `context`, a transmit context. A transport that can
    /// does not remove it before the last byte queued with it is acknowledged, or will never be sent, the stream
    /// dropped or not: what has to go out again until then still has its context. Removing it at once is safe
    /// too, for the installed sealer answers for all of it.
    fn release(&mut self, context: Handle);

    /// Calls `f` with the flow and the contexts of its device. Returns false, without a call of `f`, if no device with
    /// contexts is below.
    fn control(&mut self, f: &mut dyn FnMut(FlowKey, &mut dyn Contexts)) -> bool;

    /// The next device event about this flow.
    fn poll_device_event(&mut self, cx: &mut Context<'_>) -> Poll<DeviceEvent>;
}

/// [`SegmentStream::poll_send`] by the methods for each of its steps: for a transport that is behind no lock.
///
/// # Errors
/// As there.
pub fn poll_send_in_steps<S: SegmentStream + ?Sized>(
    stream: &mut S,
    cx: &mut Context<'_>,
    listener: &Waker,
    pieces: &mut NextPiece<'_>,
) -> Poll<io::Result<SendTurn>> {
    if let Poll::Ready(event) = stream.poll_device_event(&mut Context::from_waker(listener)) {
        return Poll::Ready(Ok(SendTurn::News(event)));
    }
    ready!(stream.poll_room(cx))?;
    let mut first = None;
    while let Some((data, tag)) = pieces(stream.sent()) {
        let seq = stream.send(data, tag);
        first = first.or(Some(seq));
    }
    stream.flush();
    Poll::Ready(Ok(SendTurn::Queued(first)))
}

/// [`SegmentStream::send_pieces`] one by one: for a transport that is behind no lock.
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
