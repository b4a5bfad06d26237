//! A TCP connection: its state, beginning and end.
//!
//! Positions count a stream's bytes without wrapping: the SYN is at 0, the first byte at 1, the FIN after the last
//! byte. Invariant: `una <= next <= send.end() + 1`, and the flight covers exactly `una..next`.

use super::acks::OwedAcks;
use super::application::ApplicationHandle;
use super::backoff::Backoff;
use super::closed_window::ClosedWindow;
use super::congestion::{self, CongestionControl};
use super::device_events::DeviceEventQueue;
use super::ecn::EcnState;
use super::flight::FlightScoreboard;
use super::labels::PacketLabels;
use super::liveness::Liveness;
use super::outbox::SendIntent;
use super::pace::PacingRate;
use super::path::{default_mss, shift_for};
use super::recovery::LossRecovery;
use super::recv_queue::TcpReceiveQueue;
use super::report::{ConnectionError, Readiness};
use super::rtt::RttEstimator;
use super::send_queue::{FIRST_BYTE, TcpSendQueue};
use super::state::TcpState;
use super::tally::SendTally;
use crate::config::TcpConfig;
use crate::counters::HostCounters;
use crate::limit::RateLimit;
use crate::memory::MemoryLevel;
use crate::network::NetworkLayer;
use crate::stack::notes::StackEntry;
use core::time::Duration;
use offload_api::FlowKey;
use offload_base::{Instant, Seq};

/// The environment of a connection for one call: parts of the stack.
pub(crate) struct ConnectionEnv<'a> {
    pub(crate) now: Instant,
    pub(crate) config: &'a TcpConfig,
    pub(crate) counters: &'a mut HostCounters,
    pub(crate) network: &'a mut NetworkLayer,
    /// Limit of the ACKs that a stranger can provoke.
    pub(crate) challenges: &'a mut RateLimit,
    /// Memory level of all queues.
    pub(crate) memory: MemoryLevel,
}

/// A TCP connection. Each part owns the data that change together and does not know the other parts. The other files of
/// this module combine the parts.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(super) flow: FlowKey,
    pub(super) state: TcpState,
    pub(super) error: Option<ConnectionError>,
    /// The listener that has not passed the connection to the application yet.
    pub(crate) listener: Option<ListenerId>,
    pub(super) holder: ApplicationHandle,
    /// Whether a reset must still be sent.
    pub(super) reset_owed: bool,

    // Sending.
    pub(super) send: TcpSendQueue,
    pub(super) outbox: SendIntent,
    pub(super) una: u64,
    pub(super) next: u64,
    pub(super) flight: FlightScoreboard,
    pub(super) rtt: RttEstimator,
    pub(super) congestion: Box<dyn CongestionControl>,
    /// Whether the congestion window limited the last transmission.
    pub(super) window_limited: bool,
    pub(super) pace: PacingRate,
    pub(super) ecn: EcnState,
    pub(super) repair: LossRecovery,
    pub(super) backoff: Backoff,
    pub(super) closed_window: ClosedWindow,
    pub(super) labels: PacketLabels,
    pub(super) tally: SendTally,

    // Properties of the peer.
    pub(super) peer: PeerLimits,

    // Receiving.
    pub(super) receive: TcpReceiveQueue,
    pub(super) peer_fin: Option<u64>,
    pub(super) acks: OwedAcks,
    pub(super) window_scale: u8,
    pub(super) mss: usize,

    pub(super) deadlines: TcpTimers,
    pub(super) liveness: Option<Box<Liveness>>,

    // Interface to the stack and the shell.
    pub(crate) readiness: Readiness,
    pub(super) news: DeviceEventQueue,
    pub(crate) notes: StackEntry,
}

/// Identifier of a listener. A port may have several listeners, one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListenerId {
    pub(crate) port: u16,
    /// Distinguishes the listeners of one port.
    pub(crate) number: u32,
}

/// Properties that the peer announced.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PeerLimits {
    /// Send window: bytes accepted beyond `una`.
    pub(super) window: u64,
    /// Largest window so far.
    pub(super) max_window: u64,
    /// Segment that last set the window (RFC 9293 3.10.7.4: SND.WL1, SND.WL2).
    pub(super) window_seq: Seq,
    pub(super) window_ack: u64,
    pub(super) window_shift: u8,
    pub(super) scales: bool,
    pub(super) mss: u16,
    pub(super) sack: bool,
    /// TS.Recent and the time at which it was set (RFC 7323 4.3, 5.5). `None` without timestamps.
    pub(super) timestamp: Option<(u32, Instant)>,
}

/// Timers of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TcpTimers {
    /// Retransmission timeout.
    pub(super) retransmit: Option<Instant>,
    /// Tail loss probe.
    pub(super) probe: Option<Instant>,
    /// RACK's reordering timeout: late data are then declared lost.
    pub(super) reorder: Option<Instant>,
    /// Window probe, or the use of a small window.
    pub(super) persist: Option<Instant>,
    /// Delayed acknowledgment.
    pub(super) ack: Option<Instant>,
    /// End of TIME-WAIT, or of FIN-WAIT-2 without an application.
    pub(super) state: Option<Instant>,
}

impl Connection {
    /// Returns a connection in SYN-SENT, or in SYN-RECEIVED for a listener, before its first segment. `fingerprint` is
    /// a keyed hash of the flow, from which packet identifications and timestamps start.
    pub(crate) fn new(
        flow: FlowKey,
        state: TcpState,
        initial: Seq,
        fingerprint: u64,
        config: &TcpConfig,
    ) -> Connection {
        let mss = default_mss(&flow);
        Connection {
            flow,
            state,
            error: None,
            listener: None,
            holder: ApplicationHandle::default(),
            reset_owed: false,
            send: TcpSendQueue::new(initial),
            outbox: SendIntent::new(config.nodelay),
            una: 0,
            next: 0,
            flight: FlightScoreboard::default(),
            rtt: RttEstimator::new(),
            // The segment size is a default until the peer's SYN arrives.
            congestion: congestion::controller(config.congestion, mss as u64, config.initial_window),
            window_limited: false,
            pace: PacingRate::default(),
            ecn: EcnState::default(),
            repair: LossRecovery::default(),
            backoff: Backoff::default(),
            closed_window: ClosedWindow::default(),
            labels: PacketLabels::new(fingerprint),
            tally: SendTally::default(),
            peer: PeerLimits { mss: mss as u16, ..PeerLimits::default() },
            receive: TcpReceiveQueue::new(Seq(0), config.initial_receive_buffer, config.receive_buffer),
            peer_fin: None,
            acks: OwedAcks::default(),
            window_scale: if config.window_scaling { shift_for(config.receive_buffer) } else { 0 },
            mss,
            deadlines: TcpTimers::default(),
            liveness: Liveness::new(config),
            readiness: Readiness::default(),
            news: DeviceEventQueue::default(),
            notes: StackEntry::default(),
        }
    }

    pub(crate) fn flow(&self) -> FlowKey {
        self.flow
    }

    pub(crate) fn state(&self) -> TcpState {
        self.state
    }

    pub(crate) fn error(&self) -> Option<ConnectionError> {
        self.error
    }

    /// Returns whether neither the application nor the network needs the connection.
    pub(crate) fn is_done(&self) -> bool {
        self.state == TcpState::Closed && self.holder.is_gone() && !self.reset_owed
    }

    /// Returns the memory charge of the queues.
    pub(crate) fn memory(&self) -> usize {
        self.send.charged() + self.receive.charged()
    }

    /// Moves the timestamp clock back by `millis`.
    pub(crate) fn set_back_timestamps(&mut self, millis: u32) {
        self.labels.set_back(millis);
    }

    /// Moves the initial sequence number beyond `least`, up to which an earlier connection of the flow used the
    /// numbers. Must be called before data are queued.
    pub(crate) fn raise_initial_seq(&mut self, least: Seq) {
        // The clock of initial sequence numbers may not have passed a busy connection's last number.
        if !self.send.seq(0).after(least) {
            self.send = TcpSendQueue::new(least + (1 << 16) + 1);
        }
    }

    /// Returns the sequence number of the first queued byte.
    pub(crate) fn first_seq(&self) -> Seq {
        self.send.seq(FIRST_BYTE)
    }

    /// Closes the connection without an error.
    pub(super) fn close(&mut self) {
        self.state = TcpState::Closed;
        self.deadlines = TcpTimers::default();
        self.liveness = None;
        self.acks.drop_owed();
        // Each waiting task must learn that the connection has ended.
        self.readiness = Readiness::ALL;
        self.release();
    }

    /// Closes the connection because of `error`, which the application will see.
    pub(super) fn fail(&mut self, error: ConnectionError) {
        self.error.get_or_insert(error);
        self.close();
    }

    /// Frees all memory, except that of data which the application can still read.
    pub(super) fn release(&mut self) {
        self.send.release();
        self.flight = FlightScoreboard::default();
        self.receive.release();
    }

    pub(super) fn outstanding(&self) -> u64 {
        self.next - self.una
    }

    /// Returns the position of this side's FIN. `None` before the application closes this side.
    pub(super) fn fin_position(&self) -> Option<u64> {
        self.outbox.is_finishing().then(|| self.send.end())
    }

    pub(super) fn timeout(&self, config: &TcpConfig) -> Duration {
        self.rtt.timeout(config.initial_rto, config.min_rto, config.max_rto, self.backoff.exponent())
    }

    /// Returns the time of the next timer, at which [`handle_timeout`](Self::handle_timeout) must be called.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let TcpTimers { retransmit, probe, reorder, persist, ack, state } = self.deadlines;
        let liveness = self.liveness.as_ref().and_then(|liveness| liveness.deadline);
        // This runs after each packet, so it avoids a branch per deadline.
        let all = [retransmit, probe, reorder, persist, ack, state, liveness];
        let first = all.into_iter().fold(Instant::MAX, |first, at| first.min(at.unwrap_or(Instant::MAX)));
        (first != Instant::MAX).then_some(first)
    }
}

/// Returns the timestamp at `now`: milliseconds, as in Linux (RFC 7323 5.4), starting from the flow's own offset.
pub(crate) fn timestamp(offset: u32, now: Instant) -> u32 {
    offset.wrapping_add(now.as_millis() as u32)
}

#[cfg(test)]
mod tests {
    use super::super::congestion::{Cubic, NewReno};
    use super::super::recv_queue::IDLE_BYTES;
    use super::*;
    use crate::flow_table::FlowId;

    #[test]
    fn idle_connection_takes_less_than_2_kib() {
        // Besides the struct: the boxed congestion controller, the capacity kept by the receive queue (other queues
        // keep none), and the entries in the tables.
        let tables = 2 * size_of::<(FlowKey, FlowId)>() + 64;
        let all = size_of::<Connection>() + size_of::<Cubic>().max(size_of::<NewReno>()) + IDLE_BYTES + tables;
        assert!(all <= 2048, "{all} bytes, {} of them the struct", size_of::<Connection>());
    }
}
