//! TLS by jobs: a stream whose TLS engine is an accelerator beside the CPU, not a NIC.
//!
//! ```text
//!   KtlsStream        frames records; leaves sealing and opening to "the device below"
//!       |
//!   LookasideStream   is that device: a job for each record, in both directions
//!       |      '----- job queue: plaintext there, ciphertext back, in any order
//!   SegmentStream     gets sealed records, in their order
//! ```
//!
//! - [`send`]: records on their way out; [`receive`]: records that arrive; [`face`]: the device that the stream above sees.
//!
//! Invariant: bytes leave in the order in which they were queued, whatever order jobs end in, and what ends the stream is
//! behind them all. A record that the accelerator does not give back is sealed by the sealer that came with its key, or handed
//! up as it arrived: who works changes, never the bytes.

mod face;
mod receive;
mod send;

use bytes::Bytes;
use core::fmt;
use core::future::Future;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::pin::Pin;
use core::task::{Context, Poll, Waker, ready};
use face::OnlyTls;
use offload_api::{
    Contexts, DeviceEvent, FlowKey, Handle, Layer, NextPiece, RxSegment, Sealer, SegmentStream, SendProgress,
    SentBytes, TxTag, stream,
};
use offload_base::Seq;
use offload_base::tasks::{TaskRole, WaitingTasks};
use offload_jobs::SharedQueue;
use receive::ReceiveQueue;
use send::SendQueue;
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

offload_base::counters! {
    /// What a [`LookasideStream`] counts.
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
        /// Records that jobs sealed.
        pub sealed: "LookasideTxRecords",
        /// Records that were to be sealed by jobs, and were sealed here.
        pub sealed_here: "LookasideTxRecordsSw",
        /// Records that jobs opened.
        pub opened: "LookasideRxRecords",
        /// Records that jobs were to open, and that went up as they had arrived.
        pub not_opened: "LookasideRxRecordsSw",
        /// Contexts that ended with the accelerator's session.
        pub contexts_lost: "LookasideContextsLost",
    }
}

/// A stream whose records an accelerator seals and opens: a [`KtlsStream`](crate::KtlsStream) over it finds a TLS device, and is
/// [offloaded](crate::KtlsStream::offload) to it as to a NIC. Until then, and for what the accelerator refuses or loses, it is the
/// stream below.
///
/// Sealed records leave as their jobs end, in the order in which they were queued, by the task that polls [`RunLookaside`].
/// Each byte crosses PCIe twice more than with a NIC that seals inline. What goes out again after a loss is sealed
/// already: [`sent`](SegmentStream::sent) says that nothing was sent again, for the accelerator has no work with it.
///
/// ```
/// use ktls_offload::{FixedKeys, KtlsStream, LookasideStream, Offload, RunLookaside, TrafficKeys, api::TokioSegments};
/// use offload_api::{TlsKey, TlsSuite, TlsVersion, TokioTimers};
/// use offload_jobs::{PoolQueue, SharedQueue};
/// use std::sync::Arc;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // An accelerator of two threads, and the task that gives its users their jobs back.
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
    shared: Arc<Shared<S>>,
}

/// Hands sealed records to the stream below a [`LookasideStream`]: to be polled by a task of its own, for they leave when their
/// jobs end, and nobody else may be polling then. It ends when the stream is dropped, or has failed, and all has left.
///
/// If it is dropped before, records are sealed where they are queued.
pub struct RunLookaside<S: SegmentStream> {
    shared: Arc<Shared<S>>,
}

struct Shared<S> {
    /// Who polls the stream above.
    waiting: WaitingTasks,
    inner: Mutex<Inner<S>>,
}

struct Inner<S> {
    stream: S,
    send: SendQueue,
    receive: ReceiveQueue,
    news: News,
    counters: LookasideCounters,
    /// `None`: there is none.
    runner: Option<Waker>,
    /// The stream above is there.
    is_used: bool,
}

/// What a protocol above is to hear.
#[derive(Default)]
struct News(VecDeque<DeviceEvent>);

impl<S: SegmentStream> LookasideStream<S> {
    /// Has the records of what goes over `stream` sealed and opened by jobs of `queue`, one client of it for each direction.
    pub fn new(stream: S, queue: &SharedQueue) -> (LookasideStream<S>, RunLookaside<S>) {
        let inner = Inner {
            send: SendQueue::new(queue.client()),
            receive: ReceiveQueue::new(queue.client(), stream.next_seq()),
            stream,
            news: News::default(),
            counters: LookasideCounters::default(),
            runner: Some(Waker::noop().clone()),
            is_used: true,
        };
        let shared = Arc::new(Shared { waiting: WaitingTasks::default(), inner: Mutex::new(inner) });
        (LookasideStream { shared: shared.clone() }, RunLookaside { shared })
    }

    /// What happened so far.
    pub fn counters(&self) -> LookasideCounters {
        self.shared.lock().counters
    }

    fn lock(&mut self) -> MutexGuard<'_, Inner<S>> {
        self.shared.lock()
    }
}

impl<S: SegmentStream> SegmentStream for LookasideStream<S> {
    fn poll_segment(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<RxSegment>>> {
        let mut inner = self.lock();
        let Inner { stream, receive, news, counters, .. } = &mut *inner;
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
        // One that cannot tell has nothing out of order.
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
        inner.stream.poll_room(cx).map_ok(|room| room.saturating_sub(queued).max(1))
    }

    fn send(&mut self, data: Bytes, tag: TxTag) -> Seq {
        let mut inner = self.lock();
        let Inner { stream, send, counters, runner, .. } = &mut *inner;
        send.push(stream, data, tag, runner.is_some(), counters)
    }

    fn send_pieces(&mut self, pieces: &mut dyn Iterator<Item = (Bytes, TxTag)>) -> Option<Seq> {
        let mut inner = self.lock();
        let Inner { stream, send, counters, runner, .. } = &mut *inner;
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
        let Inner { stream, send, runner, .. } = &mut *inner;
        send.flush(stream);
        // It waits for jobs, of which it did not know.
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

    /// No byte was added or taken away, so offsets are those below.
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
        let Inner { stream, send, .. } = &mut *inner;
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

    /// Nothing is below the records that could leave units unsealed.
    fn install(&mut self, layer: Layer, sealer: Box<dyn Sealer>) {
        if layer == Layer::FIRST {
            self.lock().send.install(sealer);
        }
    }

    fn release(&mut self, context: Handle) {
        let mut inner = self.lock();
        let Inner { send, news, .. } = &mut *inner;
        send.release(context, news);
        let has_news = !news.0.is_empty();
        drop(inner);
        if has_news {
            self.shared.waiting.wake_all();
        }
    }

    fn control(&mut self, f: &mut dyn FnMut(FlowKey, &mut dyn Contexts)) -> bool {
        let mut inner = self.lock();
        let Inner { stream, send, receive, news, runner, .. } = &mut *inner;
        let mut flow = NO_FLOW;
        stream.control(&mut |known, _| flow = known);
        f(flow, &mut OnlyTls { send, receive, news, runs: runner.is_some() });
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
        // Nobody has contexts there.
        while inner.stream.poll_device_event(&mut Context::from_waker(Waker::noop())).is_ready() {}
        inner.news.0.pop_front().map_or(Poll::Pending, Poll::Ready)
    }
}

impl<S: SegmentStream> Drop for LookasideStream<S> {
    fn drop(&mut self) {
        let mut inner = self.lock();
        inner.is_used = false;
        let Inner { stream, send, .. } = &mut *inner;
        send.flush(stream);
        drop(inner);
        self.shared.wake_runner();
    }
}

impl<S: SegmentStream> Future for RunLookaside<S> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut inner = self.shared.lock();
        let Inner { stream, send, news, counters, runner, is_used, .. } = &mut *inner;
        runner.replace(cx.waker().clone());
        let had = news.0.len();
        let moved = send.poll_advance(stream, cx, news, counters);
        let ended = (!*is_used || send.has_failed()) && send.is_empty();
        let has_news = news.0.len() > had;
        if ended {
            // What went wrong below is for nobody to hear.
            let _gone = ready!(stream.poll_committed(cx));
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
        let Inner { stream, send, counters, runner, .. } = &mut *inner;
        *runner = None;
        send.seal_all_here(stream, counters);
        drop(inner);
        self.shared.waiting.wake_all();
    }
}

impl<S> Shared<S> {
    /// Nothing here panics half way through a change.
    fn lock(&self) -> MutexGuard<'_, Inner<S>> {
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

/// Records of a direction that are with the accelerator, at most.
const RECORDS_AT_ONCE: usize = 64;
/// Contexts of a direction: one, and those whose records are under way when keys change.
const CONTEXTS: u32 = 64;
/// Of a transport that knows of none.
const NO_FLOW: FlowKey = FlowKey::tcp(NOWHERE, NOWHERE);
const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
