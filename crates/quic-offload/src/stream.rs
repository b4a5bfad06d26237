//! Streams in an application's hands.

use crate::connection::{Held, code_of, open};
use crate::core::{Conn, Next};
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

/// The end of a stream that sends. Dropped without [`finish`](Self::finish), it is reset with code 0: half of something is
/// not to look like all of it.
pub struct SendStream {
    held: Arc<Held>,
    id: StreamId,
    state: SendState,
}

/// What became of a stream that sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SendState {
    Open,
    /// Nothing follows, and what was written arrives.
    Finished,
    /// The peer stopped it, with this code. Only a reset is left to do.
    Stopped(u64),
    Reset,
}

impl SendStream {
    pub(crate) fn new(held: Arc<Held>, id: StreamId) -> SendStream {
        SendStream { held, id, state: SendState::Open }
    }

    /// The stream's number.
    pub fn id(&self) -> u64 {
        self.id.into()
    }

    /// Writes some of `data`; says how much.
    ///
    /// # Errors
    /// If the stream has ended, or the connection.
    pub fn poll_write_some(&mut self, cx: &mut Context<'_>, data: &[u8]) -> Poll<Result<usize, StreamError>> {
        let id = self.id;
        self.poll_put(cx, |conn| {
            let _scope = cost::work(WorkKind::Copy);
            conn.noq.send_stream(id).write(data)
        })
    }

    /// Sends all of `data`, without a copy of its own.
    ///
    /// # Errors
    /// If the stream has ended, or the connection.
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
                conn.waiting.writers.insert(self.id, cx.waker().clone());
                Poll::Pending
            }
            Err(WriteError::Stopped(code)) => Poll::Ready(Err(note_stopped(&mut self.state, code))),
            Err(WriteError::ClosedStream) => Poll::Ready(Err(StreamError::Ended)),
        }
    }

    /// Refuses what only an open stream does.
    fn check_open(&self) -> Result<(), StreamError> {
        match self.state {
            SendState::Open => Ok(()),
            SendState::Stopped(code) => Err(StreamError::Stopped(code)),
            SendState::Finished | SendState::Reset => Err(StreamError::Ended),
        }
    }

    /// Nothing follows. What was written arrives, as long as the connection is open.
    ///
    /// # Errors
    /// If the stream has ended, or the connection.
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
        core.touch(self.held.at);
        finished
    }

    /// Waits until the peer has acknowledged all of a stream that is finished.
    ///
    /// # Errors
    /// If the peer will not read it, it was [reset](Self::reset), or the connection ended.
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
                conn.waiting.finishers.insert(self.id, cx.waker().clone());
                Poll::Pending
            }
            // The state machine has forgotten the stream, so all of it was acknowledged.
            Err(_) => Poll::Ready(Ok(())),
        }
    }

    /// Waits until the peer stops the stream, and returns the peer's code. Returns `None` if the peer has acknowledged all of a stream that is
    /// finished.
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

    /// The rest does not follow; the peer is told why, in the application's own numbers.
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
            let _done = conn.noq.send_stream(self.id).reset(code);
            core.touch(self.held.at);
        }
    }

    /// Which streams go first: those of a higher number.
    pub fn set_priority(&mut self, priority: i32) {
        let _done = self.held.with(|_, conn| conn.noq.send_stream(self.id).set_priority(priority));
    }
}

/// Keeps that the peer stopped the stream: the state machine forgets it when the stream is reset.
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

/// The end of a stream that receives. Dropped before its end, it is stopped with code 0.
pub struct ReceiveStream {
    held: Arc<Held>,
    id: StreamId,
    /// All of it was taken, or it was stopped or reset.
    end: Option<Result<(), StreamError>>,
}

impl ReceiveStream {
    pub(crate) fn new(held: Arc<Held>, id: StreamId) -> ReceiveStream {
        ReceiveStream { held, id, end: None }
    }

    /// The stream's number.
    pub fn id(&self) -> u64 {
        self.id.into()
    }

    /// The next bytes, `most` of them at most, as they came; `None`: the stream is at its end.
    ///
    /// # Errors
    /// If the peer reset the stream, or the connection ended.
    pub async fn receive(&mut self, most: usize) -> Result<Option<Bytes>, StreamError> {
        poll_fn(|cx| self.poll_next(cx, most)).await
    }

    /// Receives the whole rest of the stream, if it has at most `limit` bytes. Bytes received by a future that is dropped are lost.
    ///
    /// # Errors
    /// [`StreamError::TooLong`] if there are more: the stream goes on, without the bytes that were received. Otherwise as for
    /// [`receive`](Self::receive).
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

    /// [`receive`](Self::receive), polled.
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
            Next::Data(data) => Poll::Ready(Ok(Some(data))),
            Next::Finished => {
                self.end = Some(Ok(()));
                Poll::Ready(Ok(None))
            }
            Next::Reset(code) => {
                self.end = Some(Err(StreamError::Reset(code)));
                Poll::Ready(Err(StreamError::Reset(code)))
            }
            Next::Closed => Poll::Ready(Err(conn.closed.clone().map_or(StreamError::Ended, StreamError::Closed))),
            Next::Nothing => match &conn.closed {
                Some(closed) => Poll::Ready(Err(closed.clone().into())),
                None => {
                    conn.waiting.readers.insert(self.id, cx.waker().clone());
                    Poll::Pending
                }
            },
        };
        if owes {
            core.touch(self.held.at);
        }
        result
    }

    /// The rest is not wanted; the peer is told why, in the application's own numbers.
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

/// Bytes that [`ReceiveStream::read_to_end`] takes at a time.
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
