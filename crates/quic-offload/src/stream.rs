//! The application's handles of streams.

use crate::connection::{ConnectionGuard, code_of, open};
use crate::core::{Conn, ReadResult};
use crate::error::StreamError;
use bytes::Bytes;
use core::fmt;
use core::future::poll_fn;
use core::pin::Pin;
use core::task::{Context, Poll};
use noq_proto::{FinishError, StreamId, VarInt, WriteError};
use offload_base::cost::{self, WorkKind};
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The sending half of a stream. Dropping it without [`finish`](Self::finish) resets the stream with code 0, so that
/// the peer does not take a part for the whole.
pub struct SendStream {
    held: Arc<ConnectionGuard>,
    id: StreamId,
    state: SendState,
}

/// The state of a sending stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SendState {
    Open,
    /// No data follows; the written data still arrives.
    Finished,
    /// The peer stopped the stream with this code. Only a reset is possible.
    Stopped(u64),
    Reset,
}

impl SendStream {
    pub(crate) fn new(held: Arc<ConnectionGuard>, id: StreamId) -> SendStream {
        SendStream { held, id, state: SendState::Open }
    }

    /// Returns the stream's number.
    pub fn id(&self) -> u64 {
        self.id.into()
    }

    /// Writes a part of `data`. Returns its length.
    ///
    /// # Errors
    /// If the stream or the connection has ended.
    pub fn poll_write_some(&mut self, cx: &mut Context<'_>, data: &[u8]) -> Poll<Result<usize, StreamError>> {
        let id = self.id;
        self.poll_put(cx, |conn| {
            let _scope = cost::work(WorkKind::Copy);
            conn.noq.send_stream(id).write(data)
        })
    }

    /// Sends all of `data` without copying.
    ///
    /// # Errors
    /// If the stream or the connection has ended.
    pub async fn send(&mut self, data: Bytes) -> Result<(), StreamError> {
        let mut left = [data];
        while !left[0].is_empty() {
            let id = self.id;
            poll_fn(|cx| self.poll_put(cx, |conn| conn.noq.send_stream(id).write_chunks(&mut &mut left[..]))).await?;
        }
        Ok(())
    }

    fn poll_put(
        &mut self,
        cx: &mut Context<'_>,
        f: impl FnOnce(&mut Conn) -> Result<usize, WriteError>,
    ) -> Poll<Result<usize, StreamError>> {
        self.check_open()?;
        let mut core = self.held.core();
        let conn = open(self.held.get(&mut core)?)?;
        match f(conn) {
            Ok(count) => {
                core.touch(self.held.at);
                Poll::Ready(Ok(count))
            }
            Err(WriteError::Blocked) => {
                // The waker is stored under the same lock, so that no event can be missed in between.
                let replaced = conn.waiting.writers.insert(self.id, cx.waker().clone());
                core.wake_replaced(replaced, cx.waker());
                Poll::Pending
            }
            Err(WriteError::Stopped(code)) => Poll::Ready(Err(note_stopped(&mut self.state, code))),
            Err(WriteError::ClosedStream) => Poll::Ready(Err(StreamError::Ended)),
        }
    }

    /// Checks that the stream is open.
    fn check_open(&self) -> Result<(), StreamError> {
        match self.state {
            SendState::Open => Ok(()),
            SendState::Stopped(code) => Err(StreamError::Stopped(code)),
            SendState::Finished | SendState::Reset => Err(StreamError::Ended),
        }
    }

    /// Marks the end of the stream. Written data still arrives while the connection is open.
    ///
    /// # Errors
    /// If the stream or the connection has ended.
    pub fn finish(&mut self) -> Result<(), StreamError> {
        self.check_open()?;
        let mut core = self.held.core();
        let conn = open(self.held.get(&mut core)?)?;
        let finished = match conn.noq.send_stream(self.id).finish() {
            Ok(()) => {
                self.state = SendState::Finished;
                Ok(())
            }
            Err(FinishError::Stopped(code)) => Err(note_stopped(&mut self.state, code)),
            Err(FinishError::ClosedStream) => Err(StreamError::Ended),
        };
        // The end of the stream needs a packet even if all data was sent.
        core.touch(self.held.at);
        finished
    }

    /// Waits until the peer has acknowledged the whole of a finished stream.
    ///
    /// # Errors
    /// If the peer stopped the stream, the stream was [reset](Self::reset), or the connection ended.
    pub async fn acknowledged(&mut self) -> Result<(), StreamError> {
        poll_fn(|cx| self.poll_acknowledged(cx)).await
    }

    /// Polls [`acknowledged`](Self::acknowledged).
    ///
    /// # Errors
    /// As for [`acknowledged`](Self::acknowledged).
    pub fn poll_acknowledged(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamError>> {
        match self.state {
            SendState::Open | SendState::Finished => {}
            SendState::Stopped(code) => return Poll::Ready(Err(StreamError::Stopped(code))),
            // The state machine does not tell when a peer acknowledges a reset.
            SendState::Reset => return Poll::Ready(Err(StreamError::Ended)),
        }
        let mut core = self.held.core();
        let conn = open(self.held.get(&mut core)?)?;
        match conn.noq.send_stream(self.id).stopped() {
            Ok(Some(code)) => Poll::Ready(Err(note_stopped(&mut self.state, code))),
            Ok(None) => {
                let replaced = conn.waiting.finishers.insert(self.id, cx.waker().clone());
                core.wake_replaced(replaced, cx.waker());
                Poll::Pending
            }
            // The state machine forgets a stream when all of it is acknowledged.
            Err(_) => Poll::Ready(Ok(())),
        }
    }

    /// Waits until the peer stops the stream, and returns the peer's code. Returns `None` if the peer has acknowledged
    /// the whole of a finished stream.
    ///
    /// # Errors
    /// If the stream was [reset](Self::reset), or the connection ended.
    pub async fn stopped(&mut self) -> Result<Option<u64>, StreamError> {
        match self.acknowledged().await {
            Ok(()) => Ok(None),
            Err(StreamError::Stopped(code)) => Ok(Some(code)),
            Err(error) => Err(error),
        }
    }

    /// Abandons the rest of the stream, with the application's code for the peer.
    ///
    /// # Panics
    /// If the code is above 2^62 - 1 (RFC 9000 16).
    pub fn reset(&mut self, code: u64) {
        let code = code_of(code);
        if matches!(self.state, SendState::Finished | SendState::Reset) {
            return;
        }
        self.state = SendState::Reset;
        let mut core = self.held.core();
        if let Ok(conn) = self.held.get(&mut core) {
            let _ = conn.noq.send_stream(self.id).reset(code);
            core.touch(self.held.at);
        }
    }

    /// Sets the priority. Streams of a higher number are sent first.
    pub fn set_priority(&mut self, priority: i32) {
        let _ = self.held.with(|_, conn| conn.noq.send_stream(self.id).set_priority(priority));
    }
}

/// Records that the peer stopped the stream, because the state machine forgets the code when the stream is reset.
fn note_stopped(state: &mut SendState, code: VarInt) -> StreamError {
    *state = SendState::Stopped(code.into_inner());
    StreamError::Stopped(code.into_inner())
}

impl AsyncWrite for SendStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        if data.is_empty() {
            return Poll::Ready(Ok(0));
        }
        self.poll_write_some(cx, data).map_err(Into::into)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.finish() {
            Ok(()) | Err(StreamError::Ended) => Poll::Ready(Ok(())),
            Err(error) => Poll::Ready(Err(error.into())),
        }
    }
}

impl Drop for SendStream {
    fn drop(&mut self) {
        let mut core = self.held.core();
        let waiting = self.held.get(&mut core).map(|conn| &mut conn.waiting);
        let removed = waiting.map(|waiting| (waiting.writers.remove(&self.id), waiting.finishers.remove(&self.id)));
        drop(core);
        drop(removed);
        self.reset(0);
    }
}

/// The receiving half of a stream. Dropping it before the end stops the stream with code 0.
pub struct ReceiveStream {
    held: Arc<ConnectionGuard>,
    id: StreamId,
    /// The result of the end: the stream was read completely, reset or stopped.
    end: Option<Result<(), StreamError>>,
}

impl ReceiveStream {
    pub(crate) fn new(held: Arc<ConnectionGuard>, id: StreamId) -> ReceiveStream {
        ReceiveStream { held, id, end: None }
    }

    /// Returns the stream's number.
    pub fn id(&self) -> u64 {
        self.id.into()
    }

    /// Receives the next bytes, at most `most`, without copying. Returns `None` at the end of the stream.
    ///
    /// # Errors
    /// If the peer reset the stream, or the connection ended.
    pub async fn receive(&mut self, most: usize) -> Result<Option<Bytes>, StreamError> {
        poll_fn(|cx| self.poll_next(cx, most)).await
    }

    /// Receives the rest of the stream, if it has at most `limit` bytes. If the future is dropped, the bytes received
    /// so far are lost.
    ///
    /// # Errors
    /// [`StreamError::TooLong`] if the rest is longer. The stream can still be read, but the bytes received so far are
    /// lost. Otherwise as for [`receive`](Self::receive).
    pub async fn read_to_end(&mut self, limit: usize) -> Result<Vec<u8>, StreamError> {
        let mut all = Vec::new();
        while let Some(data) = self.receive(MAX_READ).await? {
            if data.len() > limit - all.len() {
                return Err(StreamError::TooLong(limit));
            }
            all.extend_from_slice(&data);
        }
        Ok(all)
    }

    /// Polls [`receive`](Self::receive).
    ///
    /// # Errors
    /// As for [`receive`](Self::receive).
    pub fn poll_next(&mut self, cx: &mut Context<'_>, most: usize) -> Poll<Result<Option<Bytes>, StreamError>> {
        if let Some(end) = &self.end {
            return Poll::Ready(end.clone().map(|()| None));
        }
        let mut core = self.held.core();
        let conn = self.held.get(&mut core)?;
        let (next, owes) = conn.read_stream(self.id, most);
        let result = match next {
            ReadResult::Data(data) => Poll::Ready(Ok(Some(data))),
            ReadResult::Finished => {
                self.end = Some(Ok(()));
                Poll::Ready(Ok(None))
            }
            ReadResult::Reset(code) => {
                self.end = Some(Err(StreamError::Reset(code)));
                Poll::Ready(Err(StreamError::Reset(code)))
            }
            // The stream may end with its connection or by itself.
            ReadResult::Closed => Poll::Ready(Err(conn.closed.clone().map_or(StreamError::Ended, StreamError::Closed))),
            ReadResult::Nothing => match &conn.closed {
                Some(closed) => Poll::Ready(Err(closed.clone().into())),
                None => {
                    let replaced = conn.waiting.readers.insert(self.id, cx.waker().clone());
                    core.wake_replaced(replaced, cx.waker());
                    Poll::Pending
                }
            },
        };
        // The driver must send the new credit to the peer.
        if owes {
            core.touch(self.held.at);
        }
        result
    }

    /// Tells the peer that the rest of the stream is not wanted, with the application's code.
    ///
    /// # Panics
    /// If the code is above 2^62 - 1 (RFC 9000 16).
    pub fn stop(&mut self, code: u64) {
        let code = code_of(code);
        if self.end.is_some() {
            return;
        }
        self.end = Some(Err(StreamError::Ended));
        self.forget(Some(code));
    }

    fn forget(&self, code: Option<VarInt>) {
        let now = self.held.shared.now();
        let mut core = self.held.core();
        let mut removed = None;
        if let Ok(conn) = self.held.get(&mut core) {
            removed = conn.waiting.readers.remove(&self.id);
            core.forget_stream(self.held.at, now, self.id, code);
        }
        drop(core);
        drop(removed);
    }
}

impl AsyncRead for ReceiveStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let most = buffer.remaining();
        if most == 0 {
            return Poll::Ready(Ok(()));
        }
        match self.poll_next(cx, most) {
            Poll::Ready(Ok(data)) => {
                let _scope = cost::work(WorkKind::Copy);
                buffer.put_slice(&data.unwrap_or_default());
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl Drop for ReceiveStream {
    fn drop(&mut self) {
        match self.end {
            Some(_) => self.forget(None),
            None => self.stop(0),
        }
    }
}

/// Bytes per read of [`ReceiveStream::read_to_end`].
const MAX_READ: usize = 1 << 16;

impl fmt::Debug for SendStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SendStream({})", self.id)
    }
}

impl fmt::Debug for ReceiveStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReceiveStream({})", self.id)
    }
}
