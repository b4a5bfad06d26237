//! The server of a target's streams.

use super::blocking::BlockingExecutor;
use crate::context_request::{OffloadCounters, SharedCounters};
use crate::core::controller::{Connection, ConnectionId, Job, JobResult, Target};
use crate::lock;
use crate::pdu_sender::PduSender;
use core::future::{Future, poll_fn};
use core::pin::Pin;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use offload_api::SegmentStream;
use offload_base::cost::{self, WorkKind};
use offload_base::slots::ConnectionSlot;
use offload_base::{Alarm, Instant, Timers, time};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex};

/// A target with its connections, timers and threads. Clones serve the same target.
///
/// ```
/// use nvme_tcp::target::{Server, Target, TargetConfig, Threads};
/// use offload_base::Timers;
/// use std::sync::Arc;
///
/// fn listen(timers: Arc<dyn Timers>) -> std::io::Result<Server> {
///     let server = Server::new(Target::new(TargetConfig::default()).unwrap(), timers, Arc::new(Threads::new(4)?));
///     // For each stream accepted: spawn(server.serve(stream)).
///     Ok(server)
/// }
/// ```
#[derive(Clone)]
pub struct Server {
    shared: Arc<ServerShared>,
    digests_by_device: bool,
    offloads: SharedCounters,
}

struct ServerShared {
    target: Mutex<Target>,
    /// Set by [`Server::close`]: receive no more.
    closes: AtomicBool,
    mailboxes: Arc<Mailboxes>,
    timers: Arc<dyn Timers>,
    blocking: Arc<dyn BlockingExecutor>,
}

/// The mailboxes of all connections.
#[derive(Default)]
struct Mailboxes {
    inner: Mutex<BTreeMap<ConnectionId, Arc<Mailbox>>>,
    /// Tasks that wait until no mailbox is left.
    closers: Mutex<Vec<Waker>>,
}

/// Messages for a connection from other tasks and threads.
#[derive(Default)]
struct Mailbox {
    inner: Mutex<ConnectionMail>,
}

#[derive(Default)]
struct ConnectionMail {
    done: VecDeque<JobResult>,
    wakeup: bool,
    waker: Option<Waker>,
}

/// Reason why a connection ended without being closed by its host.
///
/// ```
/// use nvme_tcp::target::ServeError;
/// use std::io;
///
/// let error = ServeError::from(io::Error::from(io::ErrorKind::ConnectionReset));
/// assert_eq!(error.to_string(), "the stream was lost: connection reset");
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The stream was lost.
    #[error("the stream was lost: {0}")]
    Stream(#[from] io::Error),
}

impl Server {
    /// Creates a server for `target`. `blocking` runs jobs on storage that may block.
    pub fn new(mut target: Target, timers: Arc<dyn Timers>, blocking: Arc<dyn BlockingExecutor>) -> Server {
        let mailboxes = Arc::<Mailboxes>::default();
        let called = mailboxes.clone();
        // Bells ring on other threads, perhaps while the target is locked. Mailboxes have a lock of their own.
        target.listen(move |connections| called.wake(connections));
        let target = Mutex::new(target);
        let closes = AtomicBool::new(false);
        let shared = Arc::new(ServerShared { target, closes, mailboxes, timers, blocking });
        Server { shared, digests_by_device: false, offloads: SharedCounters::default() }
    }

    /// Lets devices below later streams fill in data digests. Without a device, the CPU computes them. A device that
    /// refuses temporarily is asked again with later PDUs.
    pub fn with_digests_by_device(self) -> Server {
        Server { digests_by_device: true, ..self }
    }

    /// Returns the counters of device requests of all streams so far.
    pub fn offload_counters(&self) -> OffloadCounters {
        *lock(&self.offloads)
    }

    /// Calls `change` on the target, and wakes the affected connections.
    pub fn with_target<R>(&self, change: impl FnOnce(&mut Target) -> R) -> R {
        let mut target = lock(&self.shared.target);
        let result = change(&mut target);
        self.shared.wake(&mut target);
        result
    }

    /// Ends all connections: received commands are executed and answered, then the streams are finished. The future is
    /// ready when the hosts have closed their ends, or after two seconds. Commands with missing data are dropped; their
    /// hosts send them again on another connection. Streams served later are finished at once.
    ///
    /// ```
    /// use nvme_tcp::target::{Server, Target, TargetConfig, Threads};
    /// use offload_base::Timers;
    /// use std::sync::Arc;
    ///
    /// async fn restart(server: Server, timers: Arc<dyn Timers>) -> std::io::Result<Server> {
    ///     server.close().await;
    ///     Ok(Server::new(Target::new(TargetConfig::default()).unwrap(), timers, Arc::new(Threads::new(4)?)))
    /// }
    /// ```
    pub fn close(&self) -> impl Future<Output = ()> + Send + use<> {
        let shared = self.shared.clone();
        poll_fn(move |cx| {
            if !shared.closes.swap(true, Ordering::AcqRel) {
                shared.mailboxes.wake_all();
            }
            shared.mailboxes.poll_empty(cx)
        })
    }

    /// Serves one stream until its host closes it or violates the protocol. A host that takes no answers, or does not
    /// send requested data, holds memory: its stream is reset after at most five minutes.
    pub fn serve<S: SegmentStream>(&self, stream: S) -> impl Future<Output = Result<(), ServeError>> + Send + use<S> {
        self.serve_with(stream, None)
    }

    /// Serves one stream like [`serve`](Server::serve), while the stream owns `slot`. Until its Connect, another stream
    /// may take the slot.
    pub fn serve_in<S: SegmentStream>(
        &self,
        slot: ConnectionSlot,
        stream: S,
    ) -> impl Future<Output = Result<(), ServeError>> + Send + use<S> {
        self.serve_with(stream, Some(slot))
    }

    fn serve_with<S: SegmentStream>(
        &self,
        stream: S,
        slot: Option<ConnectionSlot>,
    ) -> impl Future<Output = Result<(), ServeError>> + Send + use<S> {
        // A stream with a slot may lose it until its Connect: see `is_revoked`.
        let is_stranger = slot.is_some();
        let now = self.shared.timers.now();
        let connection = lock(&self.shared.target).accept(now);
        let span = tracing::debug_span!("nvme_target", connection = ?connection.id());
        tracing::debug!(parent: &span, "stream accepted");
        let mailbox = Arc::<Mailbox>::default();
        // Registered before the first poll, so that no wakeup is lost.
        lock(&self.shared.mailboxes.inner).insert(connection.id(), mailbox.clone());
        let alarm = self.shared.timers.alarm();
        let mut sending = PduSender::default();
        sending.set_digests_by_device(self.digests_by_device, &self.offloads, &span);
        ServedConnection {
            shared: self.shared.clone(),
            connection,
            span,
            stream,
            sending,
            mailbox,
            alarm,
            room: 0,
            sent: 0,
            taken: 0,
            mark: None,
            phase: ServePhase::Serving,
            closes_by: None,
            slot,
            is_stranger,
        }
    }
}

impl core::fmt::Debug for Server {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Server").finish_non_exhaustive()
    }
}

impl ServerShared {
    /// Wakes connections on behalf of the target.
    fn wake(&self, target: &mut Target) {
        let wakeups = target.take_wakeups();
        if !wakeups.is_empty() {
            self.mailboxes.wake(&wakeups);
        }
    }
}

impl Mailboxes {
    fn wake(&self, connections: &[ConnectionId]) {
        // Collected first, because waking a task may run code that takes the same lock.
        let mailboxes: Vec<Arc<Mailbox>> = {
            let inner = lock(&self.inner);
            connections.iter().filter_map(|id| inner.get(id).cloned()).collect()
        };
        for mailbox in mailboxes {
            mailbox.put(|mail| mail.wakeup = true);
        }
    }
}

impl Mailboxes {
    fn wake_all(&self) {
        let all: Vec<ConnectionId> = lock(&self.inner).keys().copied().collect();
        self.wake(&all);
    }

    /// Waits until no mailbox is left.
    fn poll_empty(&self, cx: &mut Context<'_>) -> Poll<()> {
        let inner = lock(&self.inner);
        if inner.is_empty() {
            return Poll::Ready(());
        }
        // The last mailbox is removed under the lock held here, so its removal finds this waker.
        lock(&self.closers).push(cx.waker().clone());
        Poll::Pending
    }

    fn remove(&self, connection: ConnectionId) -> Option<Arc<Mailbox>> {
        let (mailbox, closers) = {
            let mut inner = lock(&self.inner);
            let mailbox = inner.remove(&connection);
            let closers = if inner.is_empty() { core::mem::take(&mut *lock(&self.closers)) } else { Vec::new() };
            (mailbox, closers)
        };
        closers.into_iter().for_each(Waker::wake);
        mailbox
    }
}

impl Mailbox {
    fn put(&self, change: impl FnOnce(&mut ConnectionMail)) {
        let waker = {
            let mut mail = lock(&self.inner);
            change(&mut mail);
            mail.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

struct ServedConnection<S: SegmentStream> {
    shared: Arc<ServerShared>,
    connection: Connection,
    span: tracing::Span,
    stream: S,
    sending: PduSender,
    mailbox: Arc<Mailbox>,
    alarm: Box<dyn Alarm>,
    room: usize,
    /// Bytes handed to the stream, and the part of them known to be acknowledged.
    sent: u64,
    taken: u64,
    mark: Option<ProgressMark>,
    phase: ServePhase,
    /// Deadline for the host to take the remaining PDUs. `None` until the connection closes.
    closes_by: Option<Instant>,
    slot: Option<ConnectionSlot>,
    /// Whether the slot may be revoked, because the host has not sent a Connect.
    is_stranger: bool,
}

/// Progress that a host must make by a deadline.
#[derive(Clone, Copy, Debug)]
struct ProgressMark {
    /// Bytes that must be acknowledged.
    sent: u64,
    /// Number of data bytes that must be exceeded, if data were requested.
    received: Option<u64>,
    until: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServePhase {
    Serving,
    /// All PDUs are handed to the stream.
    Finishing,
    /// Waiting until the host closes its end, so that a reset does not destroy the last PDUs.
    Lingering {
        until: Instant,
    },
}

impl<S: SegmentStream> Future for ServedConnection<S> {
    type Output = Result<(), ServeError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        match this.poll_all(cx) {
            Poll::Ready(Err(error)) => {
                tracing::debug!(parent: &this.span, %error, "stream failed");
                this.connection.handle_end(&mut lock(&this.shared.target));
                Poll::Ready(Err(error.into()))
            }
            Poll::Ready(Ok(())) => {
                tracing::debug!(parent: &this.span, "stream ended");
                Poll::Ready(Ok(()))
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: SegmentStream> ServedConnection<S> {
    fn poll_all(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        for _ in 0..ROUNDS {
            // A reset tells the host that its stream was not served. A normal end would look like success.
            if self.connection.is_refused() || self.is_revoked(cx) {
                self.stream.abort();
                return Poll::Ready(Ok(()));
            }
            let progress = match self.phase {
                ServePhase::Serving => self.serve_once(cx)?,
                ServePhase::Finishing => match self.stream.poll_committed(cx)? {
                    Poll::Ready(()) => {
                        self.phase = ServePhase::Lingering { until: self.shared.timers.now() + LINGER };
                        true
                    }
                    Poll::Pending => self.check_close_deadline(cx)?,
                },
                ServePhase::Lingering { until } if self.alarm.poll(cx, Some(until)).is_ready() => {
                    return Poll::Ready(Ok(()));
                }
                ServePhase::Lingering { .. } => match self.stream.poll_segment(cx) {
                    Poll::Ready(Ok(Some(segment))) => {
                        self.stream.consume(segment.data.len());
                        true
                    }
                    Poll::Ready(_) => return Poll::Ready(Ok(())),
                    Poll::Pending => false,
                },
            };
            if !progress {
                return Poll::Pending;
            }
        }
        // Yields, so that other tasks can run.
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Returns whether another stream owns the slot now.
    fn is_revoked(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(slot) = self.slot.as_ref().filter(|_| self.is_stranger) else { return false };
        if self.connection.is_connected() {
            // Set before the check, because another thread may revoke the slot until it is busy.
            slot.set_busy();
            self.is_stranger = false;
        }
        slot.poll_revoked(cx).is_ready()
    }

    /// Performs one round of work. Returns false if there was nothing to do.
    fn serve_once(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        let closes = self.shared.closes.load(Ordering::Acquire);
        // The lock is taken for each step anew, so that connections on other threads take turns.
        {
            let mut target = lock(&self.shared.target);
            let now = self.shared.timers.now();
            self.connection.handle_timeout(now, &mut target);
            if !closes {
                self.connection.resume(now, &mut target);
            }
            self.shared.wake(&mut target);
        }
        let mut progress = self.take_mail(cx);
        progress |= self.watch_device(cx);
        if !closes {
            progress |= self.receive(cx)?;
        }
        progress |= self.work();
        progress |= self.transmit(cx)?;
        if closes && self.phase == ServePhase::Serving && self.connection.is_idle() {
            self.finish();
            return Ok(true);
        }
        if self.connection.is_closing() {
            return Ok(progress | self.check_close_deadline(cx)?);
        }
        if !self.connection.wants_input() {
            // Without anything to receive or to send, nothing would poll the stream, and its loss would go unnoticed.
            // The byte after the last one is never acknowledged, so this only registers the waker.
            let _ = self.stream.poll_acked(cx, self.sent + 1)?;
        }
        let due = self.connection.next_event(&lock(&self.shared.target));
        let looks = self.set_mark();
        if self.alarm.poll(cx, time::earliest(due, looks)).is_pending() {
            return Ok(progress);
        }
        self.check_progress(cx)?;
        Ok(true)
    }

    /// Sets a new progress deadline if the host owes something. Returns the current deadline.
    fn set_mark(&mut self) -> Option<Instant> {
        if self.mark.is_none() && (self.sent > self.taken || self.connection.expects_data()) {
            let received = self.connection.expects_data().then(|| self.connection.data_received());
            self.mark = Some(ProgressMark { sent: self.sent, received, until: self.shared.timers.now() + STALL_TIME });
        }
        self.mark.map(|mark| mark.until)
    }

    /// Resets the stream of a host that has made no progress until its deadline.
    fn check_progress(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let Some(mark) = self.mark.take_if(|mark| mark.until <= self.shared.timers.now()) else { return Ok(()) };
        let has_given = mark
            .received
            .is_none_or(|received| received < self.connection.data_received() || !self.connection.expects_data());
        // A host that owes data and acknowledgments must make progress with both.
        if has_given && self.stream.poll_acked(cx, mark.sent)?.is_ready() {
            self.taken = mark.sent;
            return Ok(());
        }
        lock(&self.shared.target).note_stalled();
        self.stream.abort();
        Err(io::ErrorKind::TimedOut.into())
    }

    /// Fails once the time for the last PDUs of a closing connection is over.
    fn check_close_deadline(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        let until = *self.closes_by.get_or_insert_with(|| self.shared.timers.now() + CLOSE_TIME);
        match self.alarm.poll(cx, Some(until)) {
            Poll::Ready(()) => {
                self.stream.abort();
                Err(io::ErrorKind::TimedOut.into())
            }
            Poll::Pending => Ok(false),
        }
    }

    fn take_mail(&mut self, cx: &mut Context<'_>) -> bool {
        let (done, wakeup) = {
            let mut mail = lock(&self.mailbox.inner);
            // Registered under the lock, so that mail put afterwards wakes this task.
            mail.waker = Some(cx.waker().clone());
            (core::mem::take(&mut mail.done), core::mem::take(&mut mail.wakeup))
        };
        if done.is_empty() && !wakeup {
            return false;
        }
        let now = self.shared.timers.now();
        let mut target = lock(&self.shared.target);
        for done in done {
            self.connection.complete(now, done, &mut target);
        }
        if wakeup {
            self.connection.handle_wakeup(&mut target);
        }
        self.shared.wake(&mut target);
        true
    }

    fn watch_device(&mut self, cx: &mut Context<'_>) -> bool {
        let mut progress = false;
        while self.sending.watches_device()
            && let Poll::Ready(event) = self.stream.poll_device_event(cx)
        {
            self.sending.handle_device_event(&event, &mut self.stream);
            progress = true;
        }
        progress
    }

    fn receive(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        let mut progress = false;
        for _ in 0..SEGMENTS {
            if !self.connection.wants_input() {
                break;
            }
            let Poll::Ready(segment) = self.stream.poll_segment(cx)? else { break };
            progress = true;
            let now = self.shared.timers.now();
            let mut target = lock(&self.shared.target);
            match segment {
                Some(segment) => {
                    self.stream.consume(segment.data.len());
                    self.connection.handle_segment(now, segment, &mut target);
                }
                None => self.connection.handle_end(&mut target),
            }
            self.shared.wake(&mut target);
        }
        Ok(progress)
    }

    fn work(&mut self) -> bool {
        let mut progress = false;
        while let Some(job) = self.connection.poll_job() {
            progress = true;
            if job.may_block() {
                advance(job, self.shared.blocking.clone(), self.mailbox.clone());
            } else {
                let _scope = cost::work(WorkKind::Application);
                let done = job.run();
                drop(_scope);
                let now = self.shared.timers.now();
                self.connection.complete(now, done, &mut lock(&self.shared.target));
            }
        }
        progress
    }

    fn transmit(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        let mut progress = false;
        loop {
            if self.room == 0 {
                match self.stream.poll_room(cx)? {
                    Poll::Ready(room) => self.room = room,
                    Poll::Pending => break,
                }
            }
            let Some(pdu) = self.connection.poll_transmit() else { break };
            progress = true;
            // A PDU may exceed the room. The stream buffers the excess.
            self.room = self.room.saturating_sub(pdu.len() as usize);
            self.sent += u64::from(pdu.len());
            self.sending.send(&mut self.stream, pdu);
        }
        if progress {
            self.stream.flush();
        }
        if self.connection.is_closing() && self.connection.is_drained() {
            self.finish();
            progress = true;
        }
        Ok(progress)
    }

    /// Finishes the stream.
    fn finish(&mut self) {
        self.stream.finish();
        self.phase = ServePhase::Finishing;
    }
}

/// Runs `job` in parts, so that many jobs share the threads. The result goes to `mailbox`.
fn advance(job: Job, blocking: Arc<dyn BlockingExecutor>, mailbox: Arc<Mailbox>) {
    let others = blocking.clone();
    blocking.run(Box::new(move || {
        let later = mailbox.clone();
        if let Some(done) = job.advance(move |job| advance(job, others, later)) {
            mailbox.put(|mail| mail.done.push_back(done));
        }
    }));
}

impl<S: SegmentStream> Drop for ServedConnection<S> {
    fn drop(&mut self) {
        self.sending.end(&mut self.stream);
        // Dropped after the mailboxes' lock is released, because dropping a result may wake other connections.
        let mailbox = self.shared.mailboxes.remove(self.connection.id());
        let mut target = lock(&self.shared.target);
        self.connection.handle_end(&mut target);
        self.shared.wake(&mut target);
        drop(target);
        drop(mailbox);
    }
}

/// Maximum number of segments received before answers are sent.
const SEGMENTS: usize = 32;
/// Maximum number of rounds before the task yields.
const ROUNDS: usize = 16;
/// Time for a host to take the remaining PDUs of a closing connection.
const CLOSE_TIME: Duration = Duration::from_secs(10);
/// Time without progress after which a host is stalled. Checked at the same interval, so a stall lasts at most twice as
/// long.
const STALL_TIME: Duration = Duration::from_secs(150);
/// Time for a host to close its end.
const LINGER: Duration = Duration::from_secs(2);
