//! A connection: its state, and what the application does to it.
//!
//! Positions count a stream's bytes without wrapping: the SYN is at 0, the first byte at 1, the FIN behind the
//! last byte. Invariant: `una <= next <= send.end() + 1`, and the flight covers exactly `una..next`.

use super::congestion::{self, CongestionControl};
use super::ecn::EcnState;
use super::flight::Flight;
use super::liveness::Liveness;
use super::loss::Rack;
use super::recovery::{Recovery, TailProbe, Undo};
use super::recv_queue::ReceiveQueue;
use super::rtt::RttEstimator;
use super::segment::{HEADER_BYTES, Segment, TIMESTAMPS_BYTES};
use super::send_queue::{FIRST_BYTE, SendQueue};
use super::state::State;
use crate::config::{CongestionAlgorithm, TcpConfig};
use crate::counters::HostCounters;
use crate::limit::RateLimit;
use crate::network::Network;
use crate::timers::TimerSlot;
use bytes::Bytes;
use core::num::NonZeroU64;
use core::ops::Range;
use core::time::Duration;
use ip_packets::Version;
use offload_api::{DeviceEvent, FlowKey, Handle, Layer, PathCaps, RxSegment, Sealer, SentBytes, TxTag};
use offload_base::{Instant, Seq};
use std::collections::VecDeque;
use std::io;

/// What a connection needs from the stack around it, for one call.
pub(crate) struct Env<'a> {
    pub(crate) now: Instant,
    pub(crate) config: &'a TcpConfig,
    pub(crate) counters: &'a mut HostCounters,
    pub(crate) network: &'a mut Network,
    /// Bounds the ACKs that anyone can provoke.
    pub(crate) challenges: &'a mut RateLimit,
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub(super) flow: FlowKey,
    pub(super) state: State,
    pub(super) error: Option<ConnectionError>,
    /// The listener that has not handed it out yet.
    pub(crate) listener: Option<u16>,
    /// The application has dropped its end.
    pub(super) detached: bool,
    /// Data were thrown away because the application had dropped its end: the peer has to know.
    pub(super) discarded: bool,
    /// A reset is still to be sent.
    pub(super) reset_owed: bool,

    // Sending.
    pub(super) send: SendQueue,
    pub(super) una: u64,
    pub(super) next: u64,
    /// This side is to be closed behind the last byte queued.
    pub(super) finishing: bool,
    /// Everything before was flushed: short segments may leave.
    pub(super) pushed: u64,
    pub(super) nodelay: bool,
    /// Bytes a second at most, as the device counts them; it keeps to that.
    pub(super) pacing_rate: Option<NonZeroU64>,
    pub(super) flight: Flight,
    pub(super) rtt: RttEstimator,
    pub(super) rack: Rack,
    pub(super) congestion: Box<dyn CongestionControl>,
    /// What was sent before this position belongs to the window that was cut last.
    pub(super) cut_until: u64,
    pub(super) ecn: EcnState,
    pub(super) recovery: Recovery,
    pub(super) undo: Option<Box<Undo>>,
    pub(super) tail_probe: Option<TailProbe>,
    /// Duplicate ACKs in a row, for peers without selective ones.
    pub(super) duplicate_acks: u32,
    /// The congestion window was what held data back, the last time something was sent.
    pub(super) window_limited: bool,
    /// Timeouts in a row; probes of a closed window in a row.
    pub(super) backoff: u32,
    pub(super) probes: u32,
    /// Window probes since the peer last said anything.
    pub(super) unanswered: u32,
    /// A window probe, a tail loss probe are to be sent; a small window is to be used.
    pub(super) window_probe_owed: bool,
    pub(super) tail_probe_owed: bool,
    pub(super) window_override: bool,
    /// The next bytes wait for the rest of their unit.
    pub(super) blocked_on_unit: bool,
    pub(super) last_sent: Instant,
    pub(super) ident: u16,
    pub(super) timestamp_offset: u32,
    /// Retransmitted segments in all.
    pub(super) retransmits: u64,
    /// Payload bytes handed to the device.
    pub(super) sent_bytes: SentBytes,

    // What the peer said.
    pub(super) peer: Peer,

    // Receiving.
    pub(super) receive: ReceiveQueue,
    pub(super) peer_fin: Option<u64>,
    pub(super) ack: AckState,
    /// The first position after what was acknowledged last.
    pub(super) acked_until: u64,
    pub(super) duplicate: Option<Range<u64>>,
    pub(super) window_scale: u8,
    /// The window told last was zero.
    pub(super) window_closed: bool,
    pub(super) mss: usize,

    pub(super) deadlines: Deadlines,
    pub(super) liveness: Option<Box<Liveness>>,

    // For the stack and the shell.
    pub(crate) readiness: Readiness,
    pub(super) acked_target: Option<u64>,
    device_events: VecDeque<DeviceEvent>,
    pub(crate) dirty: bool,
    pub(crate) noted: bool,
    pub(crate) controlled: bool,
    pub(crate) timer: TimerSlot,
}

/// What the peer told about itself.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Peer {
    /// Bytes it takes beyond `una`.
    pub(super) window: u64,
    /// The largest window it ever offered.
    pub(super) max_window: u64,
    /// The segment that last set the window (RFC 9293 3.10.7.4: SND.WL1, SND.WL2).
    pub(super) window_seq: Seq,
    pub(super) window_ack: u64,
    pub(super) window_shift: u8,
    pub(super) scales: bool,
    pub(super) mss: u16,
    pub(super) sack: bool,
    /// TS.Recent and when it was set (RFC 7323 4.3, 5.5); `None` without the option.
    pub(super) timestamp: Option<(u32, Instant)>,
}

/// Whether an acknowledgment is owed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AckState {
    /// It is to leave with the next packet, or alone at the end of this turn.
    pub(super) now: bool,
    /// Segments that are still acknowledged at once, at the beginning and after a hole.
    pub(super) quick: u8,
    /// When a segment that fits nowhere was answered last.
    pub(super) answered: Option<Instant>,
}

/// When what happens if nothing arrives.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Deadlines {
    /// The retransmission timeout.
    pub(super) retransmit: Option<Instant>,
    /// The tail loss probe.
    pub(super) probe: Option<Instant>,
    /// What is late is taken for lost.
    pub(super) reorder: Option<Instant>,
    /// The peer's closed window is probed, or a small one used.
    pub(super) persist: Option<Instant>,
    /// The delayed acknowledgment.
    pub(super) ack: Option<Instant>,
    /// The state ends: TIME-WAIT, or FIN-WAIT-2 without an application.
    pub(super) state: Option<Instant>,
}

/// Why a connection ended before its time.
///
/// ```
/// use host_stack::ConnectionError;
///
/// let error = std::io::Error::from(ConnectionError::TimedOut);
/// assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionError {
    /// The peer answered the SYN with a reset.
    #[error("the peer refused the connection")]
    Refused,
    /// The peer reset the connection.
    #[error("the peer reset the connection")]
    Reset,
    /// There is no way to the peer: a router says so, or nobody on the Ethernet has its address.
    #[error("the peer cannot be reached")]
    Unreachable,
    /// The peer did not answer, however often it was asked.
    #[error("the peer does not answer")]
    TimedOut,
    /// This side aborted the connection.
    #[error("the connection was aborted")]
    Aborted,
    /// Bytes that needed encryption could not get it, neither by a device nor by software.
    #[error("queued data could not be sealed, and may not be sent otherwise")]
    Unsealable,
}

impl From<ConnectionError> for io::Error {
    fn from(error: ConnectionError) -> io::Error {
        let kind = match error {
            ConnectionError::Refused => io::ErrorKind::ConnectionRefused,
            ConnectionError::Unreachable => io::ErrorKind::HostUnreachable,
            ConnectionError::Reset => io::ErrorKind::ConnectionReset,
            ConnectionError::TimedOut => io::ErrorKind::TimedOut,
            ConnectionError::Aborted => io::ErrorKind::ConnectionAborted,
            ConnectionError::Unsealable => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}

/// What has become possible on a connection since it was last asked.
///
/// ```
/// use host_stack::Readiness;
///
/// assert!(!Readiness::default().any());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// It is open, or failed to open.
    pub opened: bool,
    /// There is something to read, the end of the stream, or an error.
    pub readable: bool,
    /// The send queue wants bytes again, or will never more.
    pub writable: bool,
    /// The bytes that were waited for are acknowledged, or never will be.
    pub acknowledged: bool,
    /// The device has something to say about the flow.
    pub device_event: bool,
}

impl Readiness {
    /// Whether anything has.
    pub fn any(self) -> bool {
        self.opened || self.readable || self.writable || self.acknowledged || self.device_event
    }

    const ALL: Readiness =
        Readiness { opened: true, readable: true, writable: true, acknowledged: true, device_event: false };
}

/// Figures of a connection, as Linux's `TCP_INFO` has them.
///
/// ```
/// use host_stack::TcpStats;
///
/// fn slow(stats: &TcpStats) -> bool {
///     stats.retransmits > 100 || stats.smoothed_rtt > Some(core::time::Duration::from_millis(300))
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpStats {
    /// Its state.
    pub state: State,
    /// Smoothed round-trip time, after the first sample.
    pub smoothed_rtt: Option<Duration>,
    /// Its mean deviation.
    pub rtt_variance: Duration,
    /// The least of the last minutes.
    pub min_rtt: Option<Duration>,
    /// The present retransmission timeout, back-off included.
    pub retransmission_timeout: Duration,
    /// Congestion window in bytes.
    pub congestion_window: u64,
    /// Slow start threshold in bytes; `u64::MAX` before the first loss.
    pub slow_start_threshold: u64,
    /// Bytes believed to be in the network.
    pub in_flight: u64,
    /// Bytes the peer takes beyond what it has acknowledged.
    pub peer_window: u64,
    /// Payload bytes of a full segment.
    pub segment_size: usize,
    /// Segments sent again.
    pub retransmits: u64,
    /// Bytes acknowledged by the peer.
    pub bytes_acknowledged: u64,
    /// Bytes received in order.
    pub bytes_received: u64,
    /// Bytes queued and not acknowledged.
    pub unacknowledged: u64,
}

impl Connection {
    /// A connection in SYN-SENT (or SYN-RECEIVED, for a listener), nothing sent yet. `fingerprint` is a keyed hash of
    /// the flow: where packet identifications and timestamps begin.
    pub(crate) fn new(flow: FlowKey, state: State, initial: Seq, fingerprint: u64, config: &TcpConfig) -> Connection {
        let mss = default_mss(&flow);
        Connection {
            flow,
            state,
            error: None,
            listener: None,
            detached: false,
            discarded: false,
            reset_owed: false,
            send: SendQueue::new(initial),
            una: 0,
            next: 0,
            finishing: false,
            pushed: 0,
            nodelay: config.nodelay,
            pacing_rate: None,
            flight: Flight::default(),
            rtt: RttEstimator::new(),
            rack: Rack::new(),
            congestion: congestion::controller(config.congestion, mss as u64, config.initial_window),
            cut_until: 0,
            ecn: EcnState::default(),
            recovery: Recovery::Open,
            undo: None,
            tail_probe: None,
            duplicate_acks: 0,
            window_limited: false,
            backoff: 0,
            probes: 0,
            unanswered: 0,
            window_probe_owed: false,
            tail_probe_owed: false,
            window_override: false,
            blocked_on_unit: false,
            last_sent: Instant::ZERO,
            ident: (fingerprint >> 16) as u16,
            timestamp_offset: (fingerprint >> 32) as u32,
            retransmits: 0,
            sent_bytes: SentBytes::default(),
            peer: Peer { mss: mss as u16, ..Peer::default() },
            receive: ReceiveQueue::new(Seq(0), config.initial_receive_buffer, config.receive_buffer),
            peer_fin: None,
            ack: AckState { now: false, quick: QUICK_ACKS, answered: None },
            acked_until: 0,
            duplicate: None,
            window_scale: if config.window_scaling { shift_for(config.receive_buffer) } else { 0 },
            window_closed: false,
            mss,
            deadlines: Deadlines::default(),
            liveness: Liveness::new(config),
            readiness: Readiness::default(),
            acked_target: None,
            device_events: VecDeque::new(),
            dirty: false,
            noted: false,
            controlled: false,
            timer: TimerSlot::default(),
        }
    }

    pub(crate) fn flow(&self) -> FlowKey {
        self.flow
    }

    pub(crate) fn state(&self) -> State {
        self.state
    }

    pub(crate) fn error(&self) -> Option<ConnectionError> {
        self.error
    }

    /// Whether neither the application nor the network needs it any more.
    pub(crate) fn is_done(&self) -> bool {
        self.state == State::Closed && self.detached && !self.reset_owed
    }

    /// Its timestamps are `millis` milliseconds behind.
    pub(crate) fn set_back_timestamps(&mut self, millis: u32) {
        self.timestamp_offset = self.timestamp_offset.wrapping_sub(millis);
    }

    /// Before anything was queued: the SYN's sequence number is beyond `least`, which an earlier connection of the flow
    /// came to.
    pub(crate) fn begin_no_earlier_than(&mut self, least: Seq) {
        if !self.send.seq(0).after(least) {
            self.send = SendQueue::new(least + (1 << 16) + 1);
        }
    }

    /// The sequence number of the first byte queued.
    pub(crate) fn first_seq(&self) -> Seq {
        self.send.seq(FIRST_BYTE)
    }

    /// Queues `data`. Goes nowhere once this side was closed.
    pub(crate) fn queue(&mut self, data: Bytes, tag: TxTag) -> Seq {
        if !self.may_queue() {
            return self.send.seq(self.send.end());
        }
        let at = self.send.append(data, tag);
        self.send.seq(at)
    }

    /// Queues a copy of `data`, which goes out as it is.
    pub(crate) fn queue_copy(&mut self, data: &[u8]) {
        if self.may_queue() {
            self.send.append_copy(data);
        }
    }

    /// Whether data may still be queued.
    pub(crate) fn may_queue(&self) -> bool {
        self.state.may_send() && !self.finishing && self.error.is_none()
    }

    /// Bytes the send queue wants.
    pub(crate) fn room(&self, config: &TcpConfig) -> usize {
        config.send_buffer.saturating_sub(self.send.unacknowledged() as usize)
    }

    /// What is queued now may leave in short segments.
    pub(crate) fn push(&mut self) {
        self.pushed = self.send.end();
    }

    pub(crate) fn set_nodelay(&mut self, nodelay: bool) {
        self.nodelay = nodelay;
    }

    /// Hands congestion control over, with the window as it is.
    pub(crate) fn set_congestion(&mut self, algorithm: CongestionAlgorithm, config: &TcpConfig) {
        let mut controller = congestion::controller(algorithm, self.mss as u64, config.initial_window);
        controller.adopt(self.congestion.window(), self.congestion.threshold());
        self.congestion = controller;
    }

    /// Whether the device is asked to keep it to a rate.
    pub(crate) fn is_paced(&self) -> bool {
        self.pacing_rate.is_some()
    }

    pub(crate) fn set_pacing_rate(&mut self, rate: Option<NonZeroU64>) {
        self.pacing_rate = rate;
    }

    pub(crate) fn install(&mut self, layer: Layer, sealer: Box<dyn Sealer>) {
        self.send.install(layer, sealer);
    }

    pub(crate) fn leave(&mut self, layer: Layer, context: Handle) {
        self.send.leave(layer, context);
    }

    /// Moves to `left` the contexts that nothing here needs any more.
    pub(crate) fn take_left(&mut self, left: &mut Vec<(Layer, Handle)>) {
        self.send.take_left(left);
    }

    /// Whether the first `bytes` bytes of the stream are acknowledged; if not, asks to be told when they are.
    pub(crate) fn poll_acked(&mut self, bytes: u64) -> bool {
        let target = FIRST_BYTE + bytes;
        let acked = self.una >= target;
        self.acked_target = (!acked).then_some(target);
        acked
    }

    /// Sequence number of the next byte for the application, once the peer has told where it begins.
    pub(crate) fn next_taken(&self) -> Option<Seq> {
        (!self.state.is_opening()).then(|| self.receive.next_taken())
    }

    /// The next range for the application.
    pub(crate) fn take(&mut self) -> Option<RxSegment> {
        self.receive.take()
    }

    /// Whether the application has read all it will ever get, and the peer has closed its side.
    pub(crate) fn at_end(&self) -> bool {
        !self.receive.has_unread() && self.peer_fin.is_some_and(|fin| self.receive.next() > fin)
    }

    /// The application is done with `bytes` bytes. Returns whether the peer should be told.
    pub(crate) fn consume(&mut self, bytes: usize) -> bool {
        self.receive.consume(bytes);
        let update = self.state.may_receive() && !self.state.is_opening() && self.receive.wants_update(self.mss);
        self.ack.now |= update;
        update
    }

    /// Closes this side behind what is queued.
    pub(crate) fn finish(&mut self) {
        if self.may_queue() {
            self.finishing = true;
            self.push();
            if self.state == State::SynSent && self.next == 0 {
                // RFC 9293 3.10.4: nothing was sent, nobody need know.
                self.close();
            }
        }
    }

    /// Ends the connection at once.
    pub(crate) fn abort(&mut self) {
        if self.state == State::Closed {
            return;
        }
        // RFC 9293 3.10.5: in these states the peer has nothing to learn.
        self.reset_owed = !matches!(self.state, State::SynSent | State::TimeWait);
        self.fail(ConnectionError::Aborted);
    }

    /// The application drops its end. What is queued is still delivered; what was not read is thrown away, and the
    /// peer gets a reset for it when everything queued has been acknowledged.
    pub(crate) fn detach(&mut self, env: &mut Env<'_>) {
        self.detached = true;
        match self.state {
            State::Closed => {}
            State::SynSent => self.close(),
            _ => {
                self.discarded |= self.receive.discard() > 0;
                if self.state == State::SynReceived && self.listener.is_some() {
                    self.abort();
                    return;
                }
                self.finish();
                if self.state == State::FinWait2 {
                    self.deadlines.state = Some(env.now + env.config.fin_timeout);
                }
                self.settle_discarded(env);
            }
        }
    }

    /// Nobody has or will ever have this end.
    pub(crate) fn orphan(&mut self) {
        self.detached = true;
    }

    /// Ends TIME-WAIT early; only a connection that nobody holds gives way.
    pub(crate) fn end_wait(&mut self) {
        if self.detached {
            self.close();
        }
    }

    /// The next device event for the application.
    pub(crate) fn take_device_event(&mut self) -> Option<DeviceEvent> {
        let event = self.device_events.pop_front();
        if self.device_events.is_empty() {
            self.device_events = VecDeque::new();
        }
        event
    }

    /// Keeps an event for the application, instead of those it makes moot: of each context the last word counts,
    /// so an application that does not ask has no more of them than it has contexts.
    pub(crate) fn note_device_event(&mut self, event: DeviceEvent) {
        if self.detached {
            return;
        }
        self.device_events.retain(|earlier| !makes_moot(&event, earlier));
        self.device_events.push_back(event);
        self.readiness.device_event = true;
    }

    /// Resets the connection if the peer has all it will get, and sent what nobody took.
    pub(super) fn settle_discarded(&mut self, env: &mut Env<'_>) {
        let delivered = self.finishing && self.una > self.send.end();
        if self.detached && self.discarded && delivered && self.state != State::Closed {
            env.counters.aborts_on_data += 1;
            self.abort();
        }
    }

    /// The connection is over, by agreement.
    pub(super) fn close(&mut self) {
        self.state = State::Closed;
        self.deadlines = Deadlines::default();
        self.liveness = None;
        self.ack.now = false;
        self.readiness = Readiness::ALL;
        self.release();
    }

    /// The connection is over, for a reason the application should know.
    pub(super) fn fail(&mut self, error: ConnectionError) {
        self.error.get_or_insert(error);
        self.close();
    }

    /// Gives back the memory of what will not be needed any more; what the application can still read stays.
    pub(super) fn release(&mut self) {
        self.send.release();
        self.flight = Flight::default();
        self.receive.release();
    }

    pub(super) fn outstanding(&self) -> u64 {
        self.next - self.una
    }

    /// The position of the FIN of this side, once it is to be sent.
    pub(super) fn fin_position(&self) -> Option<u64> {
        self.finishing.then(|| self.send.end())
    }

    pub(super) fn timeout(&self, config: &TcpConfig) -> Duration {
        self.rtt.timeout(config.initial_rto, config.min_rto, config.max_rto, self.backoff)
    }

    /// When [`handle_timeout`](Self::handle_timeout) wants to be called.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let Deadlines { retransmit, probe, reorder, persist, ack, state } = self.deadlines;
        let liveness = self.liveness.as_ref().and_then(|liveness| liveness.deadline);
        // Asked after every packet: without a branch a deadline.
        let all = [retransmit, probe, reorder, persist, ack, state, liveness];
        let first = all.into_iter().fold(Instant::MAX, |first, at| first.min(at.unwrap_or(Instant::MAX)));
        (first != Instant::MAX).then_some(first)
    }

    /// Learns from the peer's SYN.
    pub(super) fn learn(&mut self, env: &mut Env<'_>, segment: &Segment) {
        let options = &segment.options;
        self.receive = ReceiveQueue::new(segment.seq, env.config.initial_receive_buffer, env.config.receive_buffer);
        // A lower bound keeps a peer from asking for crumbs.
        self.peer.mss = options.mss.unwrap_or(default_mss(&self.flow) as u16).max(LEAST_MSS);
        self.peer.sack = env.config.sack && options.sack_permitted;
        if env.config.window_scaling
            && let Some(shift) = options.window_scale
        {
            self.peer.scales = true;
            self.peer.window_shift = shift;
        } else {
            self.window_scale = 0;
        }
        if env.config.timestamps
            && let Some(timestamps) = options.timestamps
        {
            self.peer.timestamp = Some((timestamps.value, env.now));
        }
        self.learn_ecn(env, segment);
        // RFC 7323 2.2: the window of a SYN is not scaled.
        self.peer.window = u64::from(segment.window);
        self.peer.max_window = self.peer.window;
        self.peer.window_seq = segment.seq;
        self.peer.window_ack = self.una;
    }

    /// Takes up the segment size that path and peer allow. RFC 6691: options come out of it.
    pub(super) fn fit_mss(&mut self, caps: &PathCaps) {
        let mss = self.mss_for(caps.mtu);
        if mss != self.mss {
            self.mss = mss;
            self.congestion.set_mss(mss as u64);
        }
    }

    /// Bytes of the IP header in front of its segments.
    pub(super) fn ip_bytes(&self) -> usize {
        Version::of(&self.flow.remote.ip()).header_bytes()
    }

    fn mss_for(&self, mtu: u16) -> usize {
        let path = usize::from(mtu).saturating_sub(self.ip_bytes() + HEADER_BYTES);
        let options = if self.peer.timestamp.is_some() { TIMESTAMPS_BYTES } else { 0 };
        path.min(usize::from(self.peer.mss)).saturating_sub(options).max(1)
    }

    /// Whether the segment at `seq` is one that is under way: whoever reports on another has guessed, or is late
    /// (RFC 5927 4.1).
    pub(crate) fn is_under_way(&self, seq: Seq) -> bool {
        self.send.position(seq).is_some_and(|position| self.una <= position && position < self.next)
    }

    /// The path takes packets of `mtu` bytes only. What is under way and was larger did not arrive; it is sent again,
    /// and no congestion is seen in it (RFC 1191 6.5).
    pub(crate) fn on_path_narrowed(&mut self, mtu: u16) {
        let mss = self.mss_for(mtu);
        if self.state.is_opening() || self.state == State::Closed || mss >= self.mss {
            return;
        }
        self.mss = mss;
        self.congestion.set_mss(mss as u64);
        self.flight.lose_all();
        if self.recovery.is_open() {
            self.recovery = Recovery::Timeout { until: self.next };
            self.undo = None;
            self.tail_probe = None;
            self.deadlines.probe = None;
            self.deadlines.reorder = None;
        }
    }

    /// Word that the peer cannot be reached, or does not listen. An open connection may outlive it (RFC 1122 4.2.3.9).
    pub(crate) fn on_undeliverable(&mut self, env: &mut Env<'_>, error: ConnectionError) {
        if self.state == State::SynSent {
            env.counters.attempt_fails += 1;
            self.fail(error);
        }
    }

    pub(crate) fn sent_bytes(&self) -> SentBytes {
        self.sent_bytes
    }

    pub(crate) fn stats(&self, config: &TcpConfig) -> TcpStats {
        TcpStats {
            state: self.state,
            smoothed_rtt: self.rtt.smoothed(),
            rtt_variance: self.rtt.variance(),
            min_rtt: self.rtt.min(),
            retransmission_timeout: self.timeout(config),
            congestion_window: self.congestion.window(),
            slow_start_threshold: self.congestion.threshold(),
            in_flight: self.flight.in_flight(),
            peer_window: self.peer.window,
            segment_size: self.mss,
            retransmits: self.retransmits,
            bytes_acknowledged: self.una.clamp(FIRST_BYTE, self.send.end()) - FIRST_BYTE,
            bytes_received: self
                .receive
                .next()
                .saturating_sub(1 + u64::from(self.peer_fin.is_some_and(|fin| self.receive.next() > fin))),
            unacknowledged: self.send.unacknowledged(),
        }
    }
}

/// Whether nobody needs to hear of `earlier` who hears of `event`.
fn makes_moot(event: &DeviceEvent, earlier: &DeviceEvent) -> bool {
    match (event, earlier) {
        (DeviceEvent::Reset, DeviceEvent::Removed { .. }) => false,
        (DeviceEvent::Reset, _) => true,
        (DeviceEvent::ResyncRequested { handle, .. }, DeviceEvent::ResyncRequested { handle: before, .. })
        | (
            DeviceEvent::ResyncStarted { handle, .. } | DeviceEvent::ResyncCancelled { handle, .. },
            DeviceEvent::ResyncStarted { handle: before, .. }
            | DeviceEvent::ResyncCancelled { handle: before, .. }
            | DeviceEvent::ResyncRequested { handle: before, .. },
        )
        | (
            DeviceEvent::Removed { handle, .. },
            DeviceEvent::Removed { handle: before, .. }
            | DeviceEvent::Ready { handle: before, .. }
            | DeviceEvent::ResyncStarted { handle: before, .. }
            | DeviceEvent::ResyncCancelled { handle: before, .. }
            | DeviceEvent::ResyncRequested { handle: before, .. },
        ) => handle == before,
        _ => event == earlier,
    }
}

/// The timestamp of `now`: milliseconds, as Linux's (RFC 7323 5.4), from where the flow's began.
pub(crate) fn timestamp(offset: u32, now: Instant) -> u32 {
    offset.wrapping_add(now.as_millis() as u32)
}

/// What a peer takes that does not say (RFC 9293 3.7.1).
fn default_mss(flow: &FlowKey) -> usize {
    match Version::of(&flow.remote.ip()) {
        Version::Four => 536,
        Version::Six => 1220,
    }
}

/// The shift by which a window of `bytes` fits into 16 bits.
fn shift_for(bytes: usize) -> u8 {
    (0..14).find(|shift| bytes >> shift <= usize::from(u16::MAX)).unwrap_or(14)
}

/// Linux's tcp_min_snd_mss, after CVE-2019-11479.
const LEAST_MSS: u16 = 48;
/// Linux's TCP_MAX_QUICKACKS.
pub(super) const QUICK_ACKS: u8 = 16;

#[cfg(test)]
mod tests {
    use super::super::congestion::{Cubic, NewReno};
    use super::super::recv_queue::IDLE_BYTES;
    use super::*;
    use crate::flow_table::ConnectionId;

    #[test]
    fn resync_requests_push_no_other_device_event_out() {
        let flow = FlowKey::tcp("10.0.0.1:1".parse().unwrap(), "10.0.0.2:2".parse().unwrap());
        let mut connection = Connection::new(flow, State::Established, Seq(0), 0, &TcpConfig::default());
        let [old, new] = [0, 1].map(|index| Handle { index, generation: 0 });
        let resync = |handle, header| DeviceEvent::ResyncRequested { flow, handle, header: Seq(header) };
        connection.note_device_event(DeviceEvent::Ready { flow, handle: old });
        connection.note_device_event(resync(old, 1));
        connection.note_device_event(DeviceEvent::Removed { flow, handle: old });
        connection.note_device_event(DeviceEvent::Reset);
        connection.note_device_event(DeviceEvent::Reset);
        connection.note_device_event(DeviceEvent::Ready { flow, handle: new });
        (0..1000).for_each(|header| connection.note_device_event(resync(new, header)));
        let events: Vec<DeviceEvent> = core::iter::from_fn(|| connection.take_device_event()).collect();
        let expected = [
            DeviceEvent::Removed { flow, handle: old },
            DeviceEvent::Reset,
            DeviceEvent::Ready { flow, handle: new },
            resync(new, 999),
        ];
        assert_eq!(events, expected);
    }

    #[test]
    fn an_idle_connection_takes_less_than_2_kib() {
        // Beside the struct: the boxed congestion controller, what the receive queue keeps room for (the other
        // queues keep nothing), and the entries in the tables.
        let tables = 2 * size_of::<(FlowKey, ConnectionId)>() + 64;
        let all = size_of::<Connection>() + size_of::<Cubic>().max(size_of::<NewReno>()) + IDLE_BYTES + tables;
        assert!(all <= 2048, "{all} bytes, {} of them the struct", size_of::<Connection>());
    }
}
