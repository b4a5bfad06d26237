//! An async TCP stream: a [`SegmentStream`], and `AsyncRead + AsyncWrite`.

use super::{ConnectionWakers, Inner, Shard};
use crate::config::{CongestionAlgorithm, KeepAlive};
use crate::flow_table::FlowId;
use crate::tcp::{ConnectionError, TcpState, TcpStats};
use bytes::Bytes;
use core::fmt;
use core::net::SocketAddr;
use core::num::NonZeroU64;
use core::pin::Pin;
use core::task::{Context, Poll, Waker, ready};
use core::time::Duration;
use offload_api::{
    Contexts, DeviceEvent, FlowKey, Handle, Layer, NextPiece, RxSegment, Sealer, SegmentStream, SendProgress,
    SentBytes, TxTag,
};
use offload_base::cost::{self, WorkKind};
use offload_base::{Instant, Seq};
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A TCP connection.
///
/// As a [`SegmentStream`] it carries tagged ranges in both directions. As `AsyncRead + AsyncWrite` it is an ordinary
/// byte stream. One task at a time can wait for each event: readable, writable, acknowledged, device event.
///
/// **Dropping it** closes the connection in order. The stack delivers the queued data, sealed in software if no device
/// will seal them, and then the FIN. Nobody has to poll. Received data that were not read, or that arrive later, are
/// discarded. After all queued data are acknowledged, the stack answers them with a reset, to tell the peer.
///
/// ```
/// use offload_host_stack::TcpStream;
/// use offload_api::{SegmentStream, TxTag};
///
/// /// Sends received data back, and prints the device's TLS verdict on each segment.
/// async fn echo(mut stream: TcpStream) -> std::io::Result<()> {
///     while let Some(segment) = core::future::poll_fn(|cx| stream.poll_segment(cx)).await? {
///         println!("{:?}: {:?}", segment.seq, segment.meta.tls());
///         let bytes = segment.data.len();
///         stream.send(segment.data.freeze(), TxTag::PLAIN);
///         stream.flush();
///         stream.consume(bytes);
///     }
///     stream.finish();
///     Ok(())
/// }
/// ```
pub struct TcpStream {
    shard: Arc<Shard>,
    id: FlowId,
    flow: FlowKey,
    /// Rest of a segment that `AsyncRead` has read in part.
    unread: Option<RxSegment>,
}

impl TcpStream {
    pub(crate) fn new(shard: Arc<Shard>, id: FlowId) -> TcpStream {
        shard.add_handle();
        let flow = shard.with(|inner, _| {
            // The index may have been used by an earlier connection, whose wakers must not be called.
            *inner.waiting(id) = ConnectionWakers::default();
            inner.stack.flow(id)
        });
        TcpStream { shard, id, flow, unread: None }
    }

    /// Returns the local address and port.
    pub fn local_addr(&self) -> SocketAddr {
        self.flow.local
    }

    /// Returns the peer's address and port.
    pub fn peer_addr(&self) -> SocketAddr {
        self.flow.remote
    }

    /// Sets whether short segments leave at once. Otherwise (the default) they wait for an acknowledgment or a flush.
    pub fn set_nodelay(&self, nodelay: bool) {
        self.shard.with(|inner, now| {
            inner.stack.set_nodelay(self.id, nodelay);
            inner.transmit(now);
        });
    }

    /// Sets the probing of a silent peer. `None` disables probing.
    pub fn set_keep_alive(&self, keep_alive: Option<KeepAlive>) {
        self.shard.with(|inner, now| {
            inner.stack.set_keep_alive(now, self.id, keep_alive);
            inner.transmit(now);
        });
    }

    /// Sets the maximum time that sent bytes may stay unacknowledged; then the connection is aborted. `None` leaves the
    /// limit to the configured number of retransmissions.
    pub fn set_user_timeout(&self, timeout: Option<Duration>) {
        self.shard.with(|inner, now| {
            inner.stack.set_user_timeout(now, self.id, timeout);
            inner.transmit(now);
        });
    }

    /// Replaces the congestion control. The window is kept.
    pub fn set_congestion(&self, algorithm: CongestionAlgorithm) {
        self.shard.with(|inner, _| inner.stack.set_congestion(self.id, algorithm));
    }

    /// Sets whether data are paced: see [`Stack::set_paced`](crate::Stack::set_paced).
    pub fn set_paced(&self, paced: bool) {
        self.shard.with(|inner, now| {
            inner.stack.set_paced(self.id, paced);
            inner.transmit(now);
        });
    }

    /// Limits the send rate in bytes per second, counted as in [`TxAsk::rate`](offload_api::TxAsk::rate). The device
    /// spaces the packets. Without [`PathCaps::pacing`](offload_api::PathCaps::pacing) the limit has no effect.
    pub fn set_pacing_rate(&self, rate: Option<NonZeroU64>) {
        self.shard.with(|inner, now| {
            inner.stack.set_pacing_rate(self.id, rate);
            inner.transmit(now);
        });
    }

    /// Returns the figures of the connection.
    pub fn stats(&self) -> TcpStats {
        self.shard.with(|inner, _| inner.stack.stats(self.id))
    }

    /// Returns the sequence number of the first byte in the send direction.
    pub fn first_seq(&self) -> Seq {
        self.shard.with(|inner, _| inner.stack.first_seq(self.id))
    }

    pub(crate) fn poll_opened(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let id = self.id;
        self.shard.with(|inner, _| {
            if let Some(error) = inner.stack.error(id) {
                return Poll::Ready(Err(error.into()));
            }
            if inner.stack.state(id).is_opening() {
                store_waker(&mut inner.waiting(id).opened, cx.waker());
                return Poll::Pending;
            }
            Poll::Ready(Ok(()))
        })
    }

    /// Polls for the next received range. `None` at the end of the stream.
    fn poll_range(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<RxSegment>>> {
        if let Some(unread) = self.unread.take() {
            return Poll::Ready(Ok(Some(unread)));
        }
        let id = self.id;
        // Received data come before the end and before an error, so that no byte is lost to a reader.
        self.shard.with(|inner, now| {
            if let Some(segment) = inner.stack.take(id) {
                return Poll::Ready(Ok(Some(segment)));
            }
            if inner.stack.at_end(id) {
                return Poll::Ready(Ok(None));
            }
            if let Some(error) = inner.stack.error(id) {
                return Poll::Ready(Err(error.into()));
            }
            if inner.stack.state(id) == TcpState::Closed {
                return Poll::Ready(Ok(None));
            }
            store_waker(&mut inner.waiting(id).readable, cx.waker());
            // The peer may be waiting for data that were queued and not flushed.
            if inner.stack.has_work() {
                inner.transmit(now);
            }
            Poll::Pending
        })
    }

    /// Polls for the next device event.
    fn poll_event_of(inner: &mut Inner, id: FlowId, listener: &Waker) -> Poll<DeviceEvent> {
        match inner.stack.device_event(id) {
            Some(event) => Poll::Ready(event),
            None => {
                store_waker(&mut inner.waiting(id).device_event, listener);
                Poll::Pending
            }
        }
    }

    /// Polls for room in the send queue.
    fn poll_writable(inner: &mut Inner, id: FlowId, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if !inner.stack.may_send(id) {
            return Poll::Ready(Err(inner.stack.error(id).map_or(io::ErrorKind::BrokenPipe.into(), Into::into)));
        }
        match inner.stack.room(id) {
            0 => {
                store_waker(&mut inner.waiting(id).writable, cx.waker());
                Poll::Pending
            }
            room => Poll::Ready(Ok(room)),
        }
    }

    /// Polls for room in the send queue. Without room, the queued data are sent first.
    fn poll_room_after_sending(
        inner: &mut Inner,
        now: Instant,
        id: FlowId,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let room = TcpStream::poll_writable(inner, id, cx);
        if room.is_pending() {
            // A waiting writer flushes implicitly: a short segment held back by Nagle would otherwise block the queue.
            inner.stack.push(id);
            inner.transmit(now);
        }
        room
    }

    fn poll_all_acked(&mut self, cx: &mut Context<'_>, offset: u64) -> Poll<io::Result<()>> {
        let id = self.id;
        self.shard.with(|inner, now| {
            if inner.stack.poll_acked(id, offset) {
                return Poll::Ready(Ok(()));
            }
            if let Some(error) = inner.stack.error(id) {
                return Poll::Ready(Err(error.into()));
            }
            if inner.stack.state(id) == TcpState::Closed {
                return Poll::Ready(Err(ConnectionError::Aborted.into()));
            }
            store_waker(&mut inner.waiting(id).acknowledged, cx.waker());
            // The bytes in question must be sent before they can be acknowledged.
            inner.stack.push(id);
            inner.transmit(now);
            Poll::Pending
        })
    }
}

impl SegmentStream for TcpStream {
    fn poll_segment(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<RxSegment>>> {
        self.poll_range(cx)
    }

    fn next_seq(&self) -> Option<Seq> {
        match &self.unread {
            Some(unread) => Some(unread.seq),
            None => self.shard.with(|inner, _| inner.stack.next_taken(self.id)),
        }
    }

    fn seq_after(&self, bytes: u32) -> Option<Seq> {
        self.next_seq().map(|next| next + bytes)
    }

    fn furthest_seq(&self) -> Option<Seq> {
        self.shard.with(|inner, _| inner.stack.furthest(self.id))
    }

    fn consume(&mut self, bytes: usize) {
        self.shard.with(|inner, now| {
            if inner.stack.consume(self.id, bytes) {
                inner.transmit(now);
            }
        });
    }

    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let id = self.id;
        self.shard.with(|inner, now| TcpStream::poll_room_after_sending(inner, now, id, cx))
    }

    fn send(&mut self, data: Bytes, tag: TxTag) -> Seq {
        self.shard.with(|inner, _| inner.stack.send(self.id, data, tag))
    }

    fn send_pieces(&mut self, pieces: &mut dyn Iterator<Item = (Bytes, TxTag)>) -> Option<Seq> {
        self.shard.with(|inner, _| {
            let mut first = None;
            for (data, tag) in pieces {
                let seq = inner.stack.send(self.id, data, tag);
                first = first.or(Some(seq));
            }
            first
        })
    }

    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        listener: &Waker,
        pieces: &mut NextPiece<'_>,
    ) -> Poll<io::Result<SendProgress>> {
        let id = self.id;
        self.shard.with(|inner, now| {
            if let Poll::Ready(event) = TcpStream::poll_event_of(inner, id, listener) {
                return Poll::Ready(Ok(SendProgress::News(event)));
            }
            // Without room no piece is requested, because a requested piece must be queued.
            ready!(TcpStream::poll_room_after_sending(inner, now, id, cx))?;
            let mut first = None;
            while let Some((data, tag)) = pieces(inner.stack.sent_bytes(id)) {
                let seq = inner.stack.send(id, data, tag);
                first = first.or(Some(seq));
            }
            inner.stack.push(id);
            inner.transmit(now);
            Poll::Ready(Ok(SendProgress::Queued(first)))
        })
    }

    fn flush(&mut self) {
        self.shard.with(|inner, now| {
            inner.stack.push(self.id);
            inner.transmit(now);
        });
    }

    /// Returns at once, because the stack delivers queued data even after the stream is dropped.
    fn poll_committed(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        SegmentStream::flush(self);
        Poll::Ready(Ok(()))
    }

    fn poll_acked(&mut self, cx: &mut Context<'_>, offset: u64) -> Poll<io::Result<()>> {
        self.poll_all_acked(cx, offset)
    }

    fn sent(&self) -> SentBytes {
        self.shard.with(|inner, _| inner.stack.sent_bytes(self.id))
    }

    fn finish(&mut self) {
        self.shard.with(|inner, now| {
            inner.stack.finish(self.id);
            inner.transmit(now);
        });
    }

    fn abort(&mut self) {
        self.shard.with(|inner, now| {
            inner.stack.abort(self.id);
            inner.transmit(now);
        });
    }

    fn install(&mut self, layer: Layer, sealer: Box<dyn Sealer>) {
        self.shard.with(|inner, _| inner.stack.install(self.id, layer, sealer));
    }

    fn release(&mut self, context: Handle) {
        self.shard.with(|inner, now| {
            inner.stack.leave(self.id, context);
            inner.transmit(now);
        });
    }

    fn control(&mut self, f: &mut dyn FnMut(FlowKey, &mut dyn Contexts)) -> bool {
        self.shard.with(|inner, now| {
            let Some(contexts) = inner.device.contexts() else { return false };
            inner.stack.mark_controlled(self.id);
            f(self.flow, contexts);
            inner.device.flush(now);
            true
        })
    }

    fn poll_device_event(&mut self, cx: &mut Context<'_>) -> Poll<DeviceEvent> {
        let id = self.id;
        self.shard.with(|inner, _| TcpStream::poll_event_of(inner, id, cx.waker()))
    }
}

impl AsyncRead for TcpStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let stream = self.get_mut();
        let mut read = 0;
        while buf.remaining() > 0 {
            let mut segment = match stream.poll_range(cx) {
                Poll::Ready(Ok(Some(segment))) => segment,
                Poll::Ready(Ok(None)) => break,
                // The bytes read so far are returned first. The next call returns the error.
                Poll::Ready(Err(_)) | Poll::Pending if read > 0 => break,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            };
            let _cost_scope = cost::work(WorkKind::Copy);
            let bytes = segment.data.len().min(buf.remaining());
            buf.put_slice(&segment.data[..bytes]);
            read += bytes;
            if bytes < segment.data.len() {
                segment.split_to(bytes);
                stream.unread = Some(segment);
            }
        }
        if read > 0 {
            stream.consume(read);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for TcpStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let id = self.id;
        // `room` is at least 1, so a ready result never means zero bytes written, which would be an error for the
        // caller.
        self.shard.with(|inner, now| {
            let room = match TcpStream::poll_writable(inner, id, cx) {
                Poll::Ready(Ok(room)) => room,
                other => return other,
            };
            let bytes = room.min(buf.len());
            inner.stack.send_copy(id, &buf[..bytes]);
            inner.transmit(now);
            Poll::Ready(Ok(bytes))
        })
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        SegmentStream::flush(self.get_mut());
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        SegmentStream::finish(self.get_mut());
        Poll::Ready(Ok(()))
    }
}

impl Drop for TcpStream {
    fn drop(&mut self) {
        self.shard.with(|inner, now| {
            // The slot may be reused by the next connection with this index.
            *inner.waiting(self.id) = ConnectionWakers::default();
            inner.stack.detach(now, self.id);
            inner.transmit(now);
        });
        self.shard.remove_handle();
    }
}

impl fmt::Debug for TcpStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpStream").field("flow", &self.flow).finish_non_exhaustive()
    }
}

/// Stores the waker unless the stored one wakes the same task.
fn store_waker(kept: &mut Option<Waker>, waker: &Waker) {
    if !kept.as_ref().is_some_and(|kept| kept.will_wake(waker)) {
        *kept = Some(waker.clone());
    }
}
