//! A connection in its endpoint, and the tasks that wait for it.

use super::unordered_reader::UnorderedReader;
use super::waiters::WakeReason;
use super::{EndpointCore, offload, silence, unordered_reader};
use crate::config::Config;
use crate::crypto::ack_delay::AckDelayState;
use crate::crypto::acknowledgements::ASKED;
use crate::crypto::keyring::Keyring;
use crate::crypto::number_of;
use crate::crypto::session::HandshakeData;
use crate::error::Closed;
use crate::statistics::Statistics;
use core::task::Waker;
use core::time::Duration;
use noq_proto::{EndpointEvent, Event, FourTuple, PathEvent, PathId, PathStatus, StreamEvent, StreamId};
use offload_base::{Instant, WaitList, WakeList};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// The state of a connection.
pub(crate) struct Conn {
    /// A number unique in the process.
    pub(crate) id: u64,
    pub(crate) noq: noq_proto::Connection,
    pub(crate) keyring: Arc<Keyring>,
    pub(crate) offload: offload::ConnectionOffload,
    pub(super) deadline: Option<Instant>,
    pub(super) is_ready: bool,
    is_client: bool,
    /// Deadline of a client's handshake. `None` once the handshake is done, and for connections that this end opened.
    pub(super) handshake_until: Option<Instant>,
    /// Whether the handshake was ever finished.
    was_open: bool,
    pub(crate) stage: ConnectionStage,
    pub(crate) closed: Option<Closed>,
    pub(crate) record: Arc<ConnectionRecord>,
    /// The parent of the connection's trace events.
    pub(crate) span: tracing::Span,
    pub(crate) waiting: ConnectionTasks,
    /// Paths in use.
    pub(crate) paths: Vec<u32>,
    abandoned: Vec<u32>,
    /// The address of a path to open, because the peer abandoned the last one.
    reopening: Option<FourTuple>,
    pub(super) watches: silence::SilenceDetector,
    /// Also used by the keys, which filter received packets.
    pub(super) reading: Arc<Mutex<UnorderedReader>>,
    pub(crate) key_updates: u64,
    /// The generation of the keys in use for sending.
    pub(super) transmit_generation: u64,
    asked: Arc<AckDelayState>,
    /// Whether the state machine panicked, so that it must not be called any more.
    pub(super) is_broken: bool,
}

/// Facts that handles can read after the connection is gone.
#[derive(Debug, Default)]
pub(crate) struct ConnectionRecord {
    why: OnceLock<Closed>,
    last: OnceLock<(HandshakeData, Statistics)>,
}

impl ConnectionRecord {
    /// Returns the reason for the end. `None` before the end.
    pub(crate) fn why(&self) -> Option<Closed> {
        self.why.get().cloned()
    }

    /// Returns the results of the handshake and the last statistics. `None` while the endpoint has the connection, and
    /// if the state machine panicked.
    pub(crate) fn last(&self) -> Option<&(HandshakeData, Statistics)> {
        self.last.get()
    }
}

/// The stage of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionStage {
    Handshake,
    Open,
    Closed,
}

/// Tasks that wait for a connection's events.
#[derive(Debug, Default)]
pub(crate) struct ConnectionTasks {
    pub(crate) readers: HashMap<StreamId, Waker>,
    pub(crate) writers: HashMap<StreamId, Waker>,
    pub(crate) finishers: HashMap<StreamId, Waker>,
    /// Lists of waiting tasks, by [`WakeReason::index`].
    lists: [WaitList; WakeReason::COUNT],
}

impl ConnectionTasks {
    /// Returns the list of tasks that wait for an event.
    pub(super) fn list(&mut self, event: WakeReason) -> &mut WaitList {
        &mut self.lists[event.index()]
    }

    /// Wakes the tasks that wait for an event.
    pub(super) fn wake(&mut self, event: WakeReason, woken: &mut WakeList) {
        self.list(event).wake(woken);
    }

    fn wake_all(&mut self, woken: &mut WakeList) {
        let ConnectionTasks { readers, writers, finishers, lists } = self;
        // Sorted, because the order of a hash table differs from run to run.
        for of in [readers, writers, finishers] {
            let mut wakers: Vec<_> = of.drain().collect();
            wakers.sort_unstable_by_key(|(id, _)| *id);
            woken.add(wakers.into_iter().map(|(_, waker)| waker));
        }
        lists.iter_mut().for_each(|list| list.wake(woken));
    }
}

fn slowest_path(noq: &noq_proto::Connection) -> Duration {
    noq.paths().into_iter().filter_map(|path| noq.rtt(path)).max().unwrap_or_default()
}

impl Conn {
    pub(super) fn new(
        noq: noq_proto::Connection,
        keyring: Arc<Keyring>,
        asked: Arc<AckDelayState>,
        handshake_until: Option<Instant>,
        config: &Config,
    ) -> Conn {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let reading = UnorderedReader::new(config);
        let is_unordered = reading.is_unordered();
        let reading = Arc::new(Mutex::new(reading));
        if is_unordered {
            // Only unordered reading loses bytes of packets with many short frames.
            keyring.lock().sift = Some(reading.clone());
        }
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let is_client = noq.side().is_client();
        // Recorded now, because the span outlives the path.
        let remote = noq.network_path(PathId::ZERO).ok().map(|path| path.remote());
        Conn {
            id,
            span: tracing::debug_span!("connection", id, is_client, remote = ?remote),
            keyring,
            offload: offload::ConnectionOffload::new(config),
            deadline: None,
            is_ready: false,
            is_client,
            handshake_until,
            was_open: false,
            stage: ConnectionStage::Handshake,
            closed: None,
            record: Arc::default(),
            waiting: ConnectionTasks::default(),
            paths: vec![0],
            abandoned: Vec::new(),
            reopening: None,
            watches: silence::SilenceDetector::default(),
            reading,
            key_updates: 0,
            transmit_generation: 0,
            asked,
            is_broken: false,
            noq,
        }
    }

    /// Tests whether an opened path was abandoned before it was in use.
    pub(crate) fn has_lost(&self, path: u32) -> bool {
        self.abandoned.contains(&path) || !self.noq.paths().into_iter().any(|known| number_of(known) == path)
    }

    /// Tests whether this is a client's connection during the handshake.
    pub(super) fn is_half_open_client(&self) -> bool {
        !self.is_client && self.stage == ConnectionStage::Handshake
    }

    /// Returns the number of paths that are open or being opened.
    pub(crate) fn open_paths(&self) -> usize {
        self.noq.paths().into_iter().filter(|path| !self.abandoned.contains(&number_of(*path))).count()
    }

    /// Returns the round-trip time of the slowest path.
    pub(crate) fn slowest_path(&self) -> Duration {
        slowest_path(&self.noq)
    }

    /// Returns the results of the handshake.
    pub(crate) fn handshake_data(&self) -> HandshakeData {
        let data = self.noq.crypto_session().handshake_data();
        data.and_then(|data| data.downcast().ok()).map(|data| *data).unwrap_or_default()
    }

    /// Returns the peer's maximum acknowledgment delay.
    pub(super) fn ack_delay(&self) -> Duration {
        if self.asked.is_agreed() { ASKED } else { silence::MAX_ACK_DELAY }
    }

    /// Tests whether the state machine may return several datagrams at once.
    pub(super) fn may_segment(&self) -> bool {
        !(self.asked.is_open() && self.keyring.lock().acknowledges_as_asked)
    }

    /// Records the generation that packets are sent under.
    pub(super) fn note_generation(&mut self, generation: Option<u64>) {
        self.transmit_generation = self.transmit_generation.max(generation.unwrap_or(0));
    }

    /// Ends the connection.
    pub(super) fn end(&mut self, why: Closed, woken: &mut WakeList) {
        // Kept bytes become readable before readers are woken.
        unordered_reader::lock(&self.reading).release();
        let Conn { closed, span, .. } = self;
        let why = closed.get_or_insert(why);
        // The first reason counts.
        if self.record.why.set(why.clone()).is_ok() {
            tracing::debug!(parent: &*span, %why, "connection closed");
        }
        self.waiting.wake_all(woken);
        self.stage = ConnectionStage::Closed;
    }
}

impl EndpointCore {
    /// Processes a connection's events, for the endpoint and the application.
    pub(crate) fn take_events(&mut self, at: usize, now: Instant) {
        self.catch_panic(at, |core| core.take_all_events(at, now));
    }

    fn take_all_events(&mut self, at: usize, now: Instant) {
        let Some(conn) = self.connections.get_mut(at) else { return };
        let woken = &mut self.woken;
        while let Some(event) = conn.noq.poll_endpoint_events() {
            if let Some(answer) = self.noq.handle_event(noq_proto::ConnectionHandle(at), event) {
                conn.noq.handle_event(answer);
            }
        }
        while let Some(event) = conn.noq.poll() {
            match event {
                // The connection was closed before this event.
                Event::Connected if conn.stage != ConnectionStage::Handshake => {}
                // Other handshakes may have filled the endpoint since this handshake began.
                Event::Connected if !conn.is_client && self.established >= self.config.max_connections => {
                    self.counters.refused += 1;
                    conn.noq.close(self.epoch + (now - Instant::ZERO), CONNECTION_REFUSED.into(), FULL.into());
                    conn.end(Closed::Here, woken);
                }
                Event::Connected => {
                    (conn.stage, conn.was_open, conn.handshake_until) = (ConnectionStage::Open, true, None);
                    self.established += 1;
                    self.counters.connections += 1;
                    tracing::debug!(parent: &conn.span, "connection opened");
                    conn.waiting.wake(WakeReason::Stage, woken);
                    conn.offload.begin();
                    if !conn.is_client {
                        self.arrived.push_back(at);
                        self.waiting.accept.wake(woken);
                    }
                }
                Event::ConnectionLost { reason } => conn.end(reason.into(), woken),
                Event::Stream(event) => conn.take_stream_event(event, woken),
                Event::DatagramReceived => conn.waiting.wake(WakeReason::Datagram, woken),
                Event::DatagramsUnblocked => conn.waiting.wake(WakeReason::DatagramRoom, woken),
                Event::Path(PathEvent::Established { id, .. }) => {
                    conn.paths.push(number_of(id));
                    tracing::debug!(parent: &conn.span, path = number_of(id), "path opened");
                    conn.waiting.wake(WakeReason::Path, woken);
                }
                Event::Path(PathEvent::Abandoned { id, reason, .. }) => {
                    tracing::debug!(parent: &conn.span, path = number_of(id), ?reason, "path abandoned");
                    conn.paths.retain(|path| *path != number_of(id));
                    if conn.is_client {
                        // The state machine still has the path, but it does not count as open.
                        conn.abandoned.push(number_of(id));
                        if conn.open_paths() == 0 {
                            conn.reopening = conn.noq.network_path(id).ok();
                        }
                    }
                    conn.waiting.wake(WakeReason::Path, woken);
                }
                // No late packets are expected after this event, and the earlier ones were opened.
                Event::Path(PathEvent::Discarded { id, .. }) => {
                    conn.abandoned.retain(|path| *path != number_of(id));
                    conn.offload.forget_path(number_of(id));
                }
                // With several paths, the state machine's first key update, after 10 to 1,000 packets, mistakes packets
                // of other paths under the old keys with higher numbers for packets under the new keys, and loses them.
                // At this point there is only one path.
                Event::HandshakeConfirmed if conn.is_client && self.config.paths > 1 => conn.noq.force_key_update(),
                // draft-ietf-quic-multipath-21 3.3: the peer's preference among paths. Only servers follow, because two
                // ends that follow each other could alternate for ever.
                Event::Path(PathEvent::RemoteStatus { id, .. }) if !conn.is_client => {
                    // The event's own status may be outdated.
                    if let Some(status) = conn.noq.remote_path_status(id) {
                        let _ = conn.noq.set_path_status(id, status); // the path may be gone
                    }
                }
                Event::HandshakeDataReady | Event::HandshakeConfirmed | Event::Path(_) | Event::NatTraversal(_) => {}
            }
        }
        if let Some(path) = conn.reopening
            && conn.stage == ConnectionStage::Open
        {
            // draft-ietf-quic-multipath-21 3.4: a client may open another path within a probe timeout. The connection
            // IDs for it may not have arrived yet.
            let opened = conn.noq.open_path(path, PathStatus::Available, self.epoch + (now - Instant::ZERO));
            if opened.is_ok() {
                conn.reopening = None;
                self.counters.reopened_paths += 1;
            }
        }
        // Reports of the packets that were opened since the last call.
        let mut keys = conn.keyring.lock();
        let [by_device, by_software] = core::mem::take(&mut keys.opened);
        self.counters.opened_by_device += by_device;
        self.counters.opened_by_software += by_software;
        let (learned, generation) = (core::mem::take(&mut keys.learned), keys.opened_generation);
        drop(keys);
        if conn.key_updates != generation {
            conn.key_updates = generation;
            tracing::debug!(parent: &conn.span, generation, "keys updated");
        }
        let Conn { noq, offload, .. } = conn;
        offload.note_opened(learned, generation, || now + silence::probe_timeout(slowest_path(noq), ASKED));
    }
}

impl EndpointCore {
    /// Ends a connection after a panic of its state machine. The peer gets a stateless reset when it sends again.
    pub(super) fn end_after_panic(&mut self, at: usize) {
        self.counters.failed += 1;
        self.discard(at, Closed::Failed);
    }

    /// Ends a connection without telling its peer.
    pub(super) fn discard(&mut self, at: usize, why: Closed) {
        let Some(conn) = self.connections.get_mut(at) else { return };
        conn.end(why, &mut self.woken);
        self.forget_by_noq(at);
        self.forget(at);
    }

    /// Frees a connection's entry in the state machine.
    pub(super) fn forget_by_noq(&mut self, at: usize) {
        // The state machine returns no event for a drained connection.
        let _ = self.noq.handle_event(noq_proto::ConnectionHandle(at), EndpointEvent::drained());
    }

    /// Removes a connection that the state machine no longer has.
    pub(super) fn forget(&mut self, at: usize) {
        let Some(mut conn) = self.connections.try_remove(at) else { return };
        // Only handles read the record, so without handles nothing is saved.
        if Arc::strong_count(&conn.record) > 1 && !conn.is_broken {
            let last = (conn.handshake_data(), conn.statistics());
            let _ = conn.record.last.set(last); // a connection is forgotten once
        }
        self.established -= usize::from(conn.was_open);
        if conn.was_open && !conn.is_client {
            // The connection was never accepted, and its index may be reused soon.
            self.arrived.retain(|arrived| *arrived != at);
        }
        if let Some(deadline) = conn.deadline {
            self.deadlines.remove(&(deadline, at));
        }
        self.forget_contexts(&conn.offload);
        self.outgoing.forget(at);
        self.waiting.drained.wake(&mut self.woken);
    }
}

impl Conn {
    fn take_stream_event(&mut self, event: StreamEvent, woken: &mut WakeList) {
        let waiting = &mut self.waiting;
        let one = match event {
            StreamEvent::Opened { dir } => {
                return waiting.wake(WakeReason::Accept(dir), woken);
            }
            StreamEvent::Available { dir } => {
                return waiting.wake(WakeReason::Open(dir), woken);
            }
            StreamEvent::Readable { id } => {
                unordered_reader::lock(&self.reading).note_frame(id);
                waiting.readers.remove(&id)
            }
            StreamEvent::Writable { id } => waiting.writers.remove(&id),
            StreamEvent::Finished { id } => waiting.finishers.remove(&id),
            StreamEvent::Stopped { id, .. } => {
                woken.add(waiting.finishers.remove(&id));
                waiting.writers.remove(&id)
            }
        };
        woken.add(one);
    }
}

/// The transport error of RFC 9000 20.1, sent as an application's code.
const CONNECTION_REFUSED: u32 = 0x02;
const FULL: &str = "there are too many connections";
