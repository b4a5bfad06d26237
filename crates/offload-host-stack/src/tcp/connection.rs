//! A connection: its state, how it begins, how it ends.
//!
//! Positions count a stream's bytes without wrapping: the SYN is at 0, the first byte at 1, the FIN behind the
//! last byte. Invariant: `una <= next <= send.end() + 1`, and the flight covers exactly `una..next`.

use super::congestion::{self, CongestionControl};
use super::ecn::EcnState;
use super::flight::Flight;
use super::liveness::Liveness;
use super::loss::Rack;
use super::path::{default_mss, shift_for};
use super::recovery::{Recovery, TailProbe, Undo};
use super::recv_queue::ReceiveQueue;
use super::report::{ConnectionError, Readiness};
use super::rtt::RttEstimator;
use super::send_queue::{FIRST_BYTE, SendQueue};
use super::state::State;
use crate::config::TcpConfig;
use crate::counters::HostCounters;
use crate::limit::RateLimit;
use crate::memory::Level;
use crate::network::Network;
use crate::timers::TimerSlot;
use core::num::NonZeroU64;
use core::ops::Range;
use core::time::Duration;
use offload_api::{DeviceEvent, FlowKey, SentBytes};
use offload_base::{Instant, Seq};
use std::collections::VecDeque;

/// What a connection needs from the stack around it, for one call.
pub(crate) struct Env<'a> {
    pub(crate) now: Instant,
    pub(crate) config: &'a TcpConfig,
    pub(crate) counters: &'a mut HostCounters,
    pub(crate) network: &'a mut Network,
    /// Bounds the ACKs that anyone can provoke.
    pub(crate) challenges: &'a mut RateLimit,
    /// How much of the memory for queues is taken.
    pub(crate) memory: Level,
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub(super) flow: FlowKey,
    pub(super) state: State,
    pub(super) error: Option<ConnectionError>,
    /// The listener that has not handed it out yet.
    pub(crate) listener: Option<ListenerName>,
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
    /// No faster than window and round-trip time ask for, either.
    pub(super) paced: bool,
    pub(super) flight: Flight,
    pub(super) rtt: RttEstimator,
    pub(super) rack: Rack,
    pub(super) congestion: Box<dyn CongestionControl>,
    /// What was sent before this position belongs to the window that was cut last.
    pub(super) cut_until: u64,
    /// Bytes that were outstanding behind the last new ones sent: what the network has carried. Whole windows are
    /// acknowledged at once by peers that join what they receive, so what is outstanding when a loss is found may be
    /// little.
    pub(super) carried: u64,
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
    /// Retransmission timeouts and window probes since the peer last said anything.
    pub(super) unanswered: u32,
    /// Since when the peer keeps its window closed over bytes that wait.
    pub(super) closed_since: Option<Instant>,
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
    pub(super) device_events: VecDeque<DeviceEvent>,
    pub(crate) dirty: bool,
    pub(crate) noted: bool,
    pub(crate) controlled: bool,
    pub(crate) timer: TimerSlot,
    /// What the stack's account holds of its memory.
    pub(crate) accounted: usize,
}

/// One of the listeners that a port had, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListenerName {
    pub(crate) port: u16,
    /// No other listener of the stack had it lately.
    pub(crate) number: u32,
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
            paced: false,
            flight: Flight::default(),
            rtt: RttEstimator::new(),
            rack: Rack::new(),
            congestion: congestion::controller(config.congestion, mss as u64, config.initial_window),
            cut_until: 0,
            carried: 0,
            ecn: EcnState::default(),
            recovery: Recovery::Open,
            undo: None,
            tail_probe: None,
            duplicate_acks: 0,
            window_limited: false,
            backoff: 0,
            probes: 0,
            unanswered: 0,
            closed_since: None,
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
            accounted: 0,
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

    /// What its queues take.
    pub(crate) fn memory(&self) -> usize {
        self.send.charged() + self.receive.charged()
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
}

/// The timestamp of `now`: milliseconds, as Linux's (RFC 7323 5.4), from where the flow's began.
pub(crate) fn timestamp(offset: u32, now: Instant) -> u32 {
    offset.wrapping_add(now.as_millis() as u32)
}

/// Linux's TCP_MAX_QUICKACKS.
pub(super) const QUICK_ACKS: u8 = 16;

#[cfg(test)]
mod tests {
    use super::super::congestion::{Cubic, NewReno};
    use super::super::recv_queue::IDLE_BYTES;
    use super::*;
    use crate::flow_table::ConnectionId;

    #[test]
    fn an_idle_connection_takes_less_than_2_kib() {
        // Beside the struct: the boxed congestion controller, what the receive queue keeps room for (the other
        // queues keep nothing), and the entries in the tables.
        let tables = 2 * size_of::<(FlowKey, ConnectionId)>() + 64;
        let all = size_of::<Connection>() + size_of::<Cubic>().max(size_of::<NewReno>()) + IDLE_BYTES + tables;
        assert!(all <= 2048, "{all} bytes, {} of them the struct", size_of::<Connection>());
    }
}
