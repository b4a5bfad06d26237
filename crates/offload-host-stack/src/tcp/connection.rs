//! A connection: its state, how it begins, how it ends.
//!
//! Positions count a stream's bytes without wrapping: the SYN is at 0, the first byte at 1, the FIN behind the
//! last byte. Invariant: `una <= next <= send.end() + 1`, and the flight covers exactly `una..next`.

use super::acks::Acks;
use super::application::Holder;
use super::backoff::Backoff;
use super::closed_window::ClosedWindow;
use super::congestion::{self, CongestionControl};
use super::device_events::DeviceNews;
use super::ecn::Ecn;
use super::flight::Flight;
use super::labels::Labels;
use super::liveness::Liveness;
use super::outbox::Outbox;
use super::pace::Pace;
use super::path::{default_mss, shift_for};
use super::recovery::Repair;
use super::recv_queue::ReceiveQueue;
use super::report::{ConnectionError, Readiness};
use super::rtt::RttEstimator;
use super::send_queue::{FIRST_BYTE, SendQueue};
use super::state::State;
use super::tally::Tally;
use crate::config::TcpConfig;
use crate::counters::HostCounters;
use crate::limit::RateLimit;
use crate::memory::Level;
use crate::network::Network;
use crate::stack::notes::Notes;
use core::time::Duration;
use offload_api::FlowKey;
use offload_base::{Instant, Seq};

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

/// Each part owns what changes together, and knows nothing of the others; the files beside this one put them together.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(super) flow: FlowKey,
    pub(super) state: State,
    pub(super) error: Option<ConnectionError>,
    /// The listener that has not handed it out yet.
    pub(crate) listener: Option<ListenerName>,
    pub(super) holder: Holder,
    /// A reset is still to be sent.
    pub(super) reset_owed: bool,

    // Sending.
    pub(super) send: SendQueue,
    pub(super) outbox: Outbox,
    pub(super) una: u64,
    pub(super) next: u64,
    pub(super) flight: Flight,
    pub(super) rtt: RttEstimator,
    pub(super) congestion: Box<dyn CongestionControl>,
    /// The congestion window was what held data back, the last time something was sent.
    pub(super) window_limited: bool,
    pub(super) pace: Pace,
    pub(super) ecn: Ecn,
    pub(super) repair: Repair,
    pub(super) backoff: Backoff,
    pub(super) closed_window: ClosedWindow,
    pub(super) labels: Labels,
    pub(super) tally: Tally,

    // What the peer said.
    pub(super) peer: Peer,

    // Receiving.
    pub(super) receive: ReceiveQueue,
    pub(super) peer_fin: Option<u64>,
    pub(super) acks: Acks,
    pub(super) window_scale: u8,
    pub(super) mss: usize,

    pub(super) deadlines: Deadlines,
    pub(super) liveness: Option<Box<Liveness>>,

    // For the stack and the shell.
    pub(crate) readiness: Readiness,
    pub(super) news: DeviceNews,
    pub(crate) notes: Notes,
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
            holder: Holder::default(),
            reset_owed: false,
            send: SendQueue::new(initial),
            outbox: Outbox::new(config.nodelay),
            una: 0,
            next: 0,
            flight: Flight::default(),
            rtt: RttEstimator::new(),
            congestion: congestion::controller(config.congestion, mss as u64, config.initial_window),
            window_limited: false,
            pace: Pace::default(),
            ecn: Ecn::default(),
            repair: Repair::default(),
            backoff: Backoff::default(),
            closed_window: ClosedWindow::default(),
            labels: Labels::new(fingerprint),
            tally: Tally::default(),
            peer: Peer { mss: mss as u16, ..Peer::default() },
            receive: ReceiveQueue::new(Seq(0), config.initial_receive_buffer, config.receive_buffer),
            peer_fin: None,
            acks: Acks::default(),
            window_scale: if config.window_scaling { shift_for(config.receive_buffer) } else { 0 },
            mss,
            deadlines: Deadlines::default(),
            liveness: Liveness::new(config),
            readiness: Readiness::default(),
            news: DeviceNews::default(),
            notes: Notes::default(),
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
        self.state == State::Closed && self.holder.is_gone() && !self.reset_owed
    }

    /// What its queues take.
    pub(crate) fn memory(&self) -> usize {
        self.send.charged() + self.receive.charged()
    }

    /// Its timestamps are `millis` milliseconds behind.
    pub(crate) fn set_back_timestamps(&mut self, millis: u32) {
        self.labels.set_back(millis);
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
        self.acks.drop_owed();
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
        self.outbox.is_finishing().then(|| self.send.end())
    }

    pub(super) fn timeout(&self, config: &TcpConfig) -> Duration {
        self.rtt.timeout(config.initial_rto, config.min_rto, config.max_rto, self.backoff.exponent())
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
