//! A connection's bytes between the HTTP library and the transport. Charges queued bytes to the server's memory limit
//! and reports progress to the connection's timeouts.
//!
//! Invariant: bytes of answers that the transport holds are charged from the write until the acknowledgment or the end
//! of the connection.

use super::limits::{Capacity, Charge};
use super::patience::Patience;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use ktls_offload::{KtlsStream, SharedWrites, WriteCounters};
use offload_api::SegmentStream;
use offload_host_stack::TcpStream;
use std::io::{self, IoSlice};
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A transport that reports its queued bytes.
pub(super) trait Outstanding: SegmentStream + AsyncRead + AsyncWrite {
    /// Returns the bytes that are queued or sent and not acknowledged.
    fn outstanding(&self) -> usize;
}

impl Outstanding for TcpStream {
    fn outstanding(&self) -> usize {
        self.stats().unacknowledged as usize
    }
}

impl Outstanding for KtlsStream<TcpStream> {
    fn outstanding(&self) -> usize {
        self.get_ref().outstanding()
    }
}

/// The stream of one connection.
pub(super) struct Rationed<S> {
    stream: SharedWrites<S>,
    patience: Patience,
    charge: Charge,
    /// Bytes written since the stream began.
    written: u64,
    /// The offset that must be acknowledged before more bytes are accepted.
    waits_for: Option<u64>,
}

impl<S: Outstanding> Rationed<S> {
    pub(super) fn new(stream: SharedWrites<S>, patience: Patience, capacity: Arc<Capacity>) -> Rationed<S> {
        Rationed { stream, patience, charge: Charge::new(capacity, 0), written: 0, waits_for: None }
    }

    pub(super) fn counters(&self) -> &WriteCounters {
        self.stream.counters()
    }

    /// Returns the transport, its charge, and the number of bytes written to it.
    pub(super) fn into_parts(self) -> (S, Charge, u64) {
        (self.stream.into_inner(), self.charge, self.written)
    }

    /// Charges the bytes that the transport holds now.
    fn update_charge(&mut self) {
        self.charge.set(self.stream.get_ref().outstanding());
    }

    /// Completes when this connection may write more.
    fn poll_ration(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.waits_for.is_none() {
            self.update_charge();
            let most = self.charge.most();
            if self.charge.bytes() < most || self.written < most as u64 {
                return Poll::Ready(Ok(()));
            }
            // Once this offset is acknowledged, fewer than `most` bytes are outstanding.
            self.waits_for = Some(self.written + 1 - most as u64);
        }
        if let Some(offset) = self.waits_for {
            ready!(self.stream.get_mut().poll_acked(cx, offset))?;
            self.waits_for = None;
            self.update_charge();
        }
        Poll::Ready(Ok(()))
    }

    /// Drops the charge once everything is acknowledged, and registers a wakeup for that. Otherwise an idle connection
    /// would stay charged for bytes that were acknowledged long ago.
    fn release(&mut self, cx: &mut Context<'_>) {
        // A task that waits for a ration must not be woken for the whole amount.
        if self.charge.bytes() > WORTH_A_LOOK && self.waits_for.is_none() {
            let written = self.written;
            if self.stream.get_mut().poll_acked(cx, written).is_ready() {
                self.charge.set(0);
            }
        }
        if self.charge.bytes() <= WORTH_A_LOOK {
            self.patience.delivered();
        }
    }

    fn note_written(&mut self, bytes: usize) {
        self.written += bytes as u64;
        self.charge.set(self.charge.bytes() + bytes);
        self.patience.sent(bytes);
    }
}

impl<S: Outstanding> AsyncRead for Rationed<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.release(cx);
        let before = into.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, into))?;
        let read = into.filled().len() - before;
        if read > 0 {
            self.patience.received(read);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: Outstanding> AsyncWrite for Rationed<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(data)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_ration(cx))?;
        let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, slices))?;
        self.note_written(written);
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        self.patience.flushed();
        self.release(cx);
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Charge that an idle connection may keep. A wakeup for each acknowledgment of a short answer would cost more.
const WORTH_A_LOOK: usize = 64 << 10;
