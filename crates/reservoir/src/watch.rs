//! Progress deadlines of connections.
//!
//! Invariant: while a deadline is set, a connection without progress fails at the deadline. Bytes count as progress
//! only from [`WORTH`] on, so that one byte per minute does not keep a connection open.

use core::future::poll_fn;
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;
use offload_base::Instant;
use offload_base::time::{Alarm, Timers};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The deadline of one connection.
#[derive(Clone)]
pub(crate) struct ProgressDeadline(Arc<SharedDeadline>);

struct SharedDeadline {
    timers: Arc<dyn Timers>,
    state: Mutex<DeadlineState>,
    /// The watch of the whole connection, if this is the watch of one stream.
    whole: Option<ProgressDeadline>,
}

struct DeadlineState {
    span: Option<Duration>,
    deadline: Option<Instant>,
    renews: bool,
    /// The deadline that starts with the first byte of a request.
    first_byte: Option<Duration>,
    moved: usize,
}

impl ProgressDeadline {
    pub(crate) fn new(timers: Arc<dyn Timers>) -> ProgressDeadline {
        let state = DeadlineState { span: None, deadline: None, renews: true, first_byte: None, moved: 0 };
        ProgressDeadline(Arc::new(SharedDeadline { timers, state: Mutex::new(state), whole: None }))
    }

    /// Creates the watch of one stream of this connection. Progress of the stream counts for the connection too.
    pub(crate) fn for_stream(&self) -> ProgressDeadline {
        let state = DeadlineState { span: None, deadline: None, renews: true, first_byte: None, moved: 0 };
        let whole = Some(self.clone());
        ProgressDeadline(Arc::new(SharedDeadline { timers: self.0.timers.clone(), state: Mutex::new(state), whole }))
    }

    /// Returns whether the deadline has passed.
    pub(crate) fn is_late(&self) -> bool {
        self.state().deadline.is_some_and(|deadline| deadline <= self.0.timers.now())
    }

    /// Requires progress within each `span` from now on. `None` removes the deadline.
    pub(crate) fn expect(&self, span: Option<Duration>) {
        self.set(span, true, None);
    }

    /// Allows the connection to be idle for `idle`. After the first byte, the head must be complete within `head`.
    pub(crate) fn idle(&self, idle: Duration, head: Duration) {
        self.set(Some(idle), true, Some(head));
    }

    fn set(&self, span: Option<Duration>, renews: bool, first_byte: Option<Duration>) {
        let now = self.0.timers.now();
        let mut state = self.state();
        *state = DeadlineState { span, deadline: span.map(|span| now + span), renews, first_byte, moved: 0 };
    }

    pub(crate) fn moved(&self, bytes: usize, received: bool) {
        if let Some(whole) = &self.0.whole {
            whole.moved(bytes, received);
        }
        let now = self.0.timers.now();
        let mut state = self.state();
        if received && let Some(head) = state.first_byte.take() {
            state.deadline = Some(now + head);
            // Further bytes of the head do not extend its deadline, or a client could trickle them.
            state.renews = false;
            return;
        }
        state.moved += bytes;
        // Single bytes do not count as progress, for the same reason.
        if state.moved >= WORTH && state.renews {
            state.moved = 0;
            state.deadline = state.span.map(|span| now + span);
        }
    }

    /// Creates a timer for polling the deadline.
    pub(crate) fn alarm(&self) -> Box<dyn Alarm> {
        self.0.timers.alarm()
    }

    /// Polls until the deadline passes.
    pub(crate) fn poll_late(&self, alarm: &mut dyn Alarm, cx: &mut Context<'_>) -> Poll<io::Error> {
        let deadline = self.state().deadline;
        alarm.poll(cx, deadline).map(|()| io::Error::new(io::ErrorKind::TimedOut, "the peer stands still"))
    }

    /// Waits until the deadline passes. A changed deadline takes effect at the next poll.
    pub(crate) async fn late(&self) -> io::Error {
        let mut alarm = self.alarm();
        poll_fn(|cx| self.poll_late(&mut *alarm, cx)).await
    }

    fn state(&self) -> MutexGuard<'_, DeadlineState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stream with a watch.
pub(crate) struct DeadlineStream<S> {
    stream: S,
    watch: ProgressDeadline,
    alarm: Box<dyn Alarm>,
}

impl<S> DeadlineStream<S> {
    pub(crate) fn new(stream: S, watch: ProgressDeadline) -> DeadlineStream<S> {
        let alarm = watch.alarm();
        DeadlineStream { stream, watch, alarm }
    }

    fn poll_late<T>(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        self.watch.poll_late(&mut *self.alarm, cx).map(Err)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for DeadlineStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        match Pin::new(&mut self.stream).poll_read(cx, into) {
            Poll::Pending => self.poll_late(cx),
            Poll::Ready(Ok(())) => {
                self.watch.moved(into.filled().len() - before, true);
                Poll::Ready(Ok(()))
            }
            failed => failed,
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for DeadlineStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.stream).poll_write(cx, data) {
            Poll::Pending => self.poll_late(cx),
            written => {
                if let Poll::Ready(Ok(bytes)) = written {
                    self.watch.moved(bytes, false);
                }
                written
            }
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.stream).poll_write_vectored(cx, slices) {
            Poll::Pending => self.poll_late(cx),
            written => {
                if let Poll::Ready(Ok(bytes)) = written {
                    self.watch.moved(bytes, false);
                }
                written
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.stream).poll_flush(cx) {
            Poll::Pending => self.poll_late(cx),
            flushed => flushed,
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.stream).poll_shutdown(cx) {
            Poll::Pending => self.poll_late(cx),
            closed => closed,
        }
    }
}

/// Number of bytes that count as progress.
const WORTH: usize = 16 << 10;
