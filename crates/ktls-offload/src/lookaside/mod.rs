//! TLS by accelerator jobs: the TLS engine is an accelerator beside the CPU instead of a NIC.
//!
//! ```text
//!   KtlsStream        frames records; leaves sealing and opening to "the device below"
//!       |
//!   LookasideStream   is that device: a job for each record, in both directions
//!       |      '----- job queue: plaintext in, ciphertext out, in any order
//!   SegmentStream     gets sealed records in order
//! ```
//!
//! - [`send`]: outgoing records; [`receive`]: incoming records; [`face`]: the device that the stream above sees.
//!
//! Invariant: bytes leave in the order in which they were queued, whatever the order in which jobs finish, and the end
//! of the stream comes after all of them. If the accelerator fails, outgoing records are sealed by the sealer that came
//! with their key, and incoming records are passed up as received. The bytes on the wire do not depend on the
//! accelerator.

mod face;
mod receive;
mod send;

use bytes::Bytes;
use core::fmt;
use core::future::Future;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::pin::Pin;
use core::task::{Context, Poll, Waker, ready};
use face::LookasideContexts;
use offload_api::{
    Contexts, DeviceEvent, FlowKey, Handle, Layer, NextPiece, RxSegment, Sealer, SegmentStream, SendProgress,
    SentBytes, TxTag, stream,
};
use offload_base::Seq;
use offload_base::tasks::{TaskRole, WaitingTasks};
use offload_jobs::SharedQueue;
use receive::LookasideReceiveQueue;
use send::LookasideSendQueue;
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

offload_base::counters! {
    /// Counters of a [`LookasideStream`].
    ///
    /// ```
    /// use ktls_offload::LookasideCounters;
    /// use offload_base::counters::CounterSet;
    ///
    /// let mut set = CounterSet::default();
    /// set.add(&LookasideCounters { sealed: 3, ..LookasideCounters::default() });
    /// assert_eq!(set.value("LookasideTxRecords"), 3);
    /// ```
    pub struct LookasideCounters {
        /// Records sealed by jobs.
        pub sealed: "LookasideTxRecords",
        /// Records intended for jobs and sealed in software.
        pub sealed_here: "LookasideTxRecordsSw",
        /// Records opened by jobs.
        pub opened: "LookasideRxRecords",
        /// Records intended for jobs and passed up unopened.
        pub not_opened: "LookasideRxRecordsSw",
        /// Contexts lost with the accelerator's session.
        pub contexts_lost: "LookasideContextsLost",
    }
}

/// A stream with an accelerator as its TLS device. A [`KtlsStream`](crate::KtlsStream) over it can
/// [offload](crate::KtlsStream::offload) directions as to a NIC. Data that are not offloaded pass through unchanged.
///
/// Sealed records leave in the order in which they were queued, as their jobs finish, by the task that polls
/// [`RunLookaside`]. Each byte crosses PCIe two more times than with a NIC that seals inline. A retransmission uses the
/// sealed bytes and costs the accelerator nothing; therefore [`sent`](SegmentStream::sent) reports no retransmitted
/// bytes.
///
/// ```
/// use ktls_offload::{FixedKeys, KtlsStream, LookasideStream, Offload, RunLookaside, TrafficKeys, api::TokioSegments};
/// use offload_api::{TlsKey, TlsSuite, TlsVersion, TokioTimers};
/// use offload_jobs::{PoolQueue, SharedQueue};
/// use std::sync::Arc;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // An accelerator with two threads, and the task that delivers finished jobs to its clients.
/// let (queue, runs) = SharedQueue::new(PoolQueue::new(2, 64), Arc::new(TokioTimers::current()));
/// tokio::spawn(runs);
/// let (near, far) = tokio::io::duplex(1 << 16);
/// let (segments, sends): (_, RunLookaside<_>) = LookasideStream::new(TokioSegments::new(near), &queue);
/// tokio::spawn(sends);
///
/// let key = |byte| TlsKey::new(TlsVersion::Tls13, TlsSuite::Aes128Gcm, &[byte; 16], [byte; 12]).unwrap();
/// let keys = TrafficKeys { transmit: (0, key(1)), receive: (0, key(2)) };
/// let mut client = KtlsStream::new(segments, keys.clone(), Box::new(FixedKeys))?;
/// let mut server = KtlsStream::new(TokioSegments::new(far), keys.swapped(), Box::new(FixedKeys))?;
/// assert!(client.offload(Offload::BOTH).tx.handle().is_some());
/// client.send_chunk("hello".into()).await?;
/// client.close().await?;
/// assert_eq!(server.next_chunk().await?.as_deref(), Some(&b"hello"[..]));
/// assert_eq!(client.get_ref().counters().sealed, 2, "the alert too");
/// # Ok(())
/// # }
/// ```
pub struct LookasideStream<S: SegmentStream> {
    shared: Arc<SharedLookaside<S>>,
}

/// The task that passes sealed records to the stream below a [`LookasideStream`]. It needs a task of its own, because
/// records leave when their jobs finish, and the application may not be polling then. The task ends when the stream was
/// dropped or has failed, and all data have left.
///
/// If this future is dropped earlier, records are sealed in software when queued.
pub struct RunLookaside<S: SegmentStream> {
    shared: Arc<SharedLookaside<S>>,
}

struct SharedLookaside<S> {
    /// The tasks that poll the stream above.
    waiting: WaitingTasks,
    inner: Mutex<LookasideState<S>>,
}

struct LookasideState<S> {
    stream: S,
    send: LookasideSendQueue,
    receive: LookasideReceiveQueue,
    news: EventQueue,
    counters: LookasideCounters,
    /// The waker of [`RunLookaside`]. `None` if that was dropped.
    runner: Option<Waker>,
    /// Whether the [`LookasideStream`] still exists.
    is_used: bool,
}

/// Events for the stream above.
#[derive(Default)]
struct EventQueue(VecDeque<DeviceEvent>);

impl<S: SegmentStream> LookasideStream<S> {
    /// Creates a stream over `stream` with one client of the job queue for each direction.
    pub fn new(stream: S, queue: &SharedQueue) -> (LookasideStream<S>, RunLookaside<S>) {
        let inner = LookasideState {
            send: LookasideSendQueue::new(queue.client()),
            receive: LookasideReceiveQueue::new(queue.client(), stream.next_seq()),
            stream,
            news: EventQueue::default(),
            counters: LookasideCounters::default(),
            runner: Some(Waker::noop().clone()),
            is_used: true,
        };
        let shared = Arc::new(SharedLookaside { waiting: WaitingTasks::default(), inner: Mutex::new(inner) });
        (LookasideStream { shared: shared.clone() }, RunLookaside { shared })
    }

    /// Returns the stream's counters.
    pub fn counters(&self) -> LookasideCounters {
        self.shared.lock().counters
    }

    fn lock(&mut self) -> MutexGuard<'_, LookasideState<S>> {
        self.shared.lock()
    }
}

impl<S: SegmentStream> SegmentStream for LookasideStream<S> {
    fn poll_segment(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<RxSegment>>> {
        let mut inner = self.lock();
        let LookasideState { stream, receive, news, counters, .. } = &mut *inner;
        let had = news.0.len();
        let segment = receive.poll_segment(stream, cx, news, counters);
        let has_news = news.0.len() > had;
        drop(inner);
        if has_news {
            self.shared.waiting.wake_others(TaskRole::Reader);
        }
        segment
    }

    fn next_seq(&self) -> Option<Seq> {
        Some(self.shared.lock().receive.next_seq())
    }

    fn seq_after(&self, bytes: u32) -> Option<Seq> {
        self.next_seq().map(|next| next + bytes)
    }

    fn furthest_seq(&self) -> Option<Seq> {
        let inner = self.shared.lock();
        // A transport that cannot tell its furthest byte holds no data out of order.
        Some(inner.stream.furthest_seq().unwrap_or(inner.receive.position()))
    }

    fn consume(&mut self, bytes: usize) {
        let mut inner = self.lock();
        let bytes = inner.receive.without_early(bytes);
        inner.stream.consume(bytes);
    }

    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.shared.waiting.wait(TaskRole::Writer, cx);
        let mut inner = self.lock();
        inner.send.check()?;
        if inner.send.is_full() {
            return Poll::Pending;
        }
        let queued = inner.send.queued();
        // The stream below does not know the records at jobs, which will need room too.
        inner.stream.poll_room(cx).map_ok(|room| room.saturating_sub(queued).max(1))
    }

    fn send(&mut self, data: Bytes, tag: TxTag) -> Seq {
        let mut inner = self.lock();
        let LookasideState { stream, send, counters, runner, .. } = &mut *inner;
        send.push(stream, data, tag, runner.is_some(), counters)
    }

    fn send_pieces(&mut self, pieces: &mut dyn Iterator<Item = (Bytes, TxTag)>) -> Option<Seq> {
        let mut inner = self.lock();
        let LookasideState { stream, send, counters, runner, .. } = &mut *inner;
        let mut first = None;
        for (data, tag) in pieces {
            let seq = send.push(stream, data, tag, runner.is_some(), counters);
            first = first.or(Some(seq));
        }
        first
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
        let mut inner = self.lock();
        let LookasideState { stream, send, runner, .. } = &mut *inner;
        send.flush(stream);
        // The runner must learn of the new jobs to wait for them.
        let runner = runner.clone();
        drop(inner);
        runner.into_iter().for_each(Waker::wake);
    }

    fn poll_committed(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.shared.waiting.wait(TaskRole::Writer, cx);
        let mut inner = self.lock();
        inner.send.check()?;
        if !inner.send.is_empty() {
            return Poll::Pending;
        }
        inner.stream.poll_committed(cx)
    }

    /// Forwards the offset unchanged, because sealing in place adds and removes no bytes.
    fn poll_acked(&mut self, cx: &mut Context<'_>, offset: u64) -> Poll<io::Result<()>> {
        self.shared.waiting.wait(TaskRole::Writer, cx);
        let mut inner = self.lock();
        inner.send.check()?;
        if offset > inner.send.given() && !inner.send.is_empty() {
            return Poll::Pending;
        }
        inner.stream.poll_acked(cx, offset)
    }

    fn sent(&self) -> SentBytes {
        SentBytes { again: 0, ..self.shared.lock().stream.sent() }
    }

    fn finish(&mut self) {
        let mut inner = self.lock();
        let LookasideState { stream, send, .. } = &mut *inner;
        send.finish(stream);
        drop(inner);
        self.flush();
    }

    fn abort(&mut self) {
        let mut inner = self.lock();
        inner.send.abort();
        inner.stream.abort();
        drop(inner);
        self.shared.wake_runner();
        self.shared.waiting.wake_all();
    }

    /// Installs the sealer of the first layer. Data below TLS have no units that a sealer would need to process.
    fn install(&mut self, layer: Layer, sealer: Box<dyn Sealer>) {
        if layer == Layer::FIRST {
            self.lock().send.install(sealer);
        }
    }

    fn release(&mut self, context: Handle) {
        let mut inner = self.lock();
        let LookasideState { send, news, .. } = &mut *inner;
        send.release(context, news);
        let has_news = !news.0.is_empty();
        drop(inner);
        if has_news {
            self.shared.waiting.wake_all();
        }
    }

    fn control(&mut self, f: &mut dyn FnMut(FlowKey, &mut dyn Contexts)) -> bool {
        let mut inner = self.lock();
        let LookasideState { stream, send, receive, news, runner, .. } = &mut *inner;
        let mut flow = NO_FLOW;
        stream.control(&mut |known, _| flow = known);
        f(flow, &mut LookasideContexts { send, receive, news, runs: runner.is_some() });
        let has_news = !news.0.is_empty();
        drop(inner);
        if has_news {
            self.shared.waiting.wake_all();
        }
        true
    }

    fn poll_device_event(&mut self, cx: &mut Context<'_>) -> Poll<DeviceEvent> {
        self.shared.waiting.wait(TaskRole::Listener, cx);
        let mut inner = self.lock();
        // The stream has no contexts on the device below, so that device's events are discarded.
        while inner.stream.poll_device_event(&mut Context::from_waker(Waker::noop())).is_ready() {}
        inner.news.0.pop_front().map_or(Poll::Pending, Poll::Ready)
    }
}

impl<S: SegmentStream> Drop for LookasideStream<S> {
    fn drop(&mut self) {
        let mut inner = self.lock();
        inner.is_used = false;
        let LookasideState { stream, send, .. } = &mut *inner;
        send.flush(stream);
        drop(inner);
        self.shared.wake_runner();
    }
}

impl<S: SegmentStream> Future for RunLookaside<S> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        // The waker is stored before jobs are polled, so that a job finished meanwhile wakes this task.
        let mut inner = self.shared.lock();
        let LookasideState { stream, send, news, counters, runner, is_used, .. } = &mut *inner;
        // Stored before jobs are polled, so that a job that finishes meanwhile wakes this task.
        runner.replace(cx.waker().clone());
        let had = news.0.len();
        let moved = send.poll_advance(stream, cx, news, counters);
        let ended = (!*is_used || send.has_failed()) && send.is_empty();
        let has_news = news.0.len() > had;
        if ended {
            // No one is left to get an error of the stream below.
            let _ = ready!(stream.poll_committed(cx));
        }
        drop(inner);
        if moved || has_news {
            self.shared.waiting.wake_all();
        }
        if ended { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl<S: SegmentStream> Drop for RunLookaside<S> {
    fn drop(&mut self) {
        let mut inner = self.shared.lock();
        let LookasideState { stream, send, counters, runner, .. } = &mut *inner;
        *runner = None;
        // Without this task finished jobs would never be passed down.
        send.seal_all_here(stream, counters);
        drop(inner);
        self.shared.waiting.wake_all();
    }
}

impl<S> SharedLookaside<S> {
    /// Locks the state. A poisoned lock is usable, because no code panics while it changes the state.
    fn lock(&self) -> MutexGuard<'_, LookasideState<S>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_runner(&self) {
        let runner = self.lock().runner.clone();
        runner.into_iter().for_each(Waker::wake);
    }
}

impl<S: SegmentStream> fmt::Debug for LookasideStream<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = self.shared.lock();
        f.debug_struct("LookasideStream")
            .field("to_send", &inner.send.queued())
            .field("counters", &inner.counters)
            .finish_non_exhaustive()
    }
}

impl<S: SegmentStream> fmt::Debug for RunLookaside<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunLookaside").field("to_send", &self.shared.lock().send.queued()).finish_non_exhaustive()
    }
}

/// Maximum number of records of one direction at the accelerator.
const RECORDS_AT_ONCE: usize = 64;
/// Maximum number of contexts of one direction: the present one, and earlier ones with records in flight.
const CONTEXTS: u32 = 64;
/// The flow of a transport without addresses.
const NO_FLOW: FlowKey = FlowKey::tcp(NOWHERE, NOWHERE);
const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
