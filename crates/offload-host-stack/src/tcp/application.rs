//! The application's operations on a connection: queue, read, close, abort and drop.

use super::congestion;
use super::connection::{Connection, ConnectionEnv};
use super::report::ConnectionError;
use super::send_queue::FIRST_BYTE;
use super::state::TcpState;
use crate::config::{CongestionAlgorithm, TcpConfig};
use crate::memory::MemoryLevel;
use bytes::Bytes;
use core::num::NonZeroU64;
use offload_api::{Handle, Layer, RxSegment, Sealer, TxTag};
use offload_base::Seq;

/// The application's handle of a connection.
///
/// Invariant: after the handle is dropped, no task waits, and the handle never returns.
#[derive(Debug, Default)]
pub(super) struct ApplicationHandle {
    /// Whether the application has dropped its handle.
    gone: bool,
    /// Whether data were discarded because of that. The peer must then be told by a reset.
    discarded: bool,
    /// Position for the acknowledgment of which the application waits.
    waits_for: Option<u64>,
}

impl ApplicationHandle {
    pub(super) fn is_gone(&self) -> bool {
        self.gone
    }

    fn leave(&mut self) {
        self.gone = true;
    }

    /// Records `bytes` discarded bytes.
    pub(super) fn note_discarded(&mut self, bytes: u64) {
        self.discarded |= bytes > 0;
    }

    /// Returns whether the handle was dropped and received data were discarded.
    fn discarded_unread(&self) -> bool {
        self.gone && self.discarded
    }

    fn wait_for(&mut self, position: Option<u64>) {
        self.waits_for = position;
    }

    /// Records the acknowledgment of all bytes before `position`. Returns whether the application waited for this
    /// acknowledgment.
    pub(super) fn note_acknowledged(&mut self, position: u64) -> bool {
        let reached = self.waits_for.is_some_and(|target| target <= position);
        if reached {
            self.waits_for = None;
        }
        reached
    }
}

impl Connection {
    /// Queues `data`, or discards `data` if this side is closed.
    pub(crate) fn queue(&mut self, data: Bytes, tag: TxTag) -> Seq {
        if !self.may_queue() {
            return self.send.seq(self.send.end());
        }
        let at = self.send.append(data, tag);
        self.send.seq(at)
    }

    /// Queues a copy of `data`, which no device context processes.
    pub(crate) fn queue_copy(&mut self, data: &[u8]) {
        if self.may_queue() {
            self.send.append_copy(data);
        }
    }

    /// Returns whether data can still be queued.
    pub(crate) fn may_queue(&self) -> bool {
        self.state.may_send() && !self.outbox.is_finishing() && self.error.is_none()
    }

    /// Returns how many more bytes the send queue should take.
    pub(crate) fn room(&self, config: &TcpConfig, memory: MemoryLevel) -> usize {
        memory.wanted(config.send_buffer).saturating_sub(self.send.unacknowledged() as usize)
    }

    /// Lets the queued data leave in short segments.
    pub(crate) fn push(&mut self) {
        self.outbox.push(self.send.end());
    }

    pub(crate) fn set_nodelay(&mut self, nodelay: bool) {
        self.outbox.set_nodelay(nodelay);
    }

    /// Replaces the congestion controller. The window is kept.
    pub(crate) fn set_congestion(&mut self, algorithm: CongestionAlgorithm, config: &TcpConfig) {
        let mut controller = congestion::controller(algorithm, self.mss as u64, config.initial_window);
        controller.adopt(self.congestion.window(), self.congestion.threshold());
        self.congestion = controller;
    }

    /// Returns whether the device is asked for a rate.
    pub(crate) fn is_paced(&self) -> bool {
        self.pace.is_enabled()
    }

    pub(crate) fn set_paced(&mut self, paced: bool) {
        self.pace.set_by_window(paced);
    }

    pub(crate) fn set_pacing_rate(&mut self, rate: Option<NonZeroU64>) {
        self.pace.set_rate(rate);
    }

    pub(crate) fn install(&mut self, layer: Layer, sealer: Box<dyn Sealer>) {
        self.send.install(layer, sealer);
    }

    pub(crate) fn leave(&mut self, context: Handle) {
        self.send.leave(context);
    }

    /// Moves to `left` the scheduled contexts that no data need any more.
    pub(crate) fn take_left(&mut self, left: &mut Vec<Handle>) {
        self.send.take_left(left);
    }

    /// Returns whether the first `bytes` bytes of the stream are acknowledged. If not, the application is notified when
    /// they are.
    pub(crate) fn poll_acked(&mut self, bytes: u64) -> bool {
        let target = FIRST_BYTE + bytes;
        let acked = self.una >= target;
        self.holder.wait_for((!acked).then_some(target));
        acked
    }

    /// Returns the sequence number of the next byte for the application. `None` during the handshake.
    pub(crate) fn next_taken(&self) -> Option<Seq> {
        (!self.state.is_opening()).then(|| self.receive.next_taken())
    }

    /// Returns the sequence number after the last received byte. `None` during the handshake.
    pub(crate) fn furthest(&self) -> Option<Seq> {
        (!self.state.is_opening()).then(|| self.receive.seq(self.receive.furthest()))
    }

    /// Takes the next range for the application.
    pub(crate) fn take(&mut self) -> Option<RxSegment> {
        self.receive.take()
    }

    /// Returns whether the application has read all data and the peer has closed its side.
    pub(crate) fn at_end(&self) -> bool {
        !self.receive.has_unread() && self.peer_fin.is_some_and(|fin| self.receive.next() > fin)
    }

    /// Releases `bytes` read bytes. Returns whether the peer needs a window update.
    pub(crate) fn consume(&mut self, bytes: usize, memory: MemoryLevel) -> bool {
        self.receive.consume(bytes);
        self.receive.set_memory(memory);
        let update = self.state.may_receive() && !self.state.is_opening() && self.receive.wants_update(self.mss);
        self.acks.owe_if(update);
        update
    }

    /// Closes this side after the queued data.
    pub(crate) fn finish(&mut self) {
        if self.may_queue() {
            self.outbox.finish();
            self.push();
            if self.state == TcpState::SynSent && self.next == 0 {
                // RFC 9293 3.10.4: nothing was sent, so the peer need not be told.
                self.close();
            }
        }
    }

    /// Aborts the connection.
    pub(crate) fn abort(&mut self) {
        if self.state == TcpState::Closed {
            return;
        }
        // RFC 9293 3.10.5: in these states the peer needs no reset.
        self.reset_owed = !matches!(self.state, TcpState::SynSent | TcpState::TimeWait);
        self.fail(ConnectionError::Aborted);
    }

    /// Drops the application's handle. Queued data are still delivered. Unread data are discarded; after all queued
    /// data are acknowledged, the peer gets a reset for them.
    pub(crate) fn detach(&mut self, env: &mut ConnectionEnv<'_>) {
        self.holder.leave();
        match self.state {
            TcpState::Closed => {}
            TcpState::SynSent => self.close(),
            _ => {
                self.holder.note_discarded(self.receive.discard());
                // The connection was never accepted, so there is no data worth delivering.
                if self.state == TcpState::SynReceived && self.listener.is_some() {
                    self.abort();
                    return;
                }
                // A stream that nobody can accept any more need not be delivered.
                self.finish();
                if self.state == TcpState::FinWait2 {
                    self.deadlines.state = Some(env.now + env.config.fin_timeout);
                }
                self.reset_after_discard(env);
            }
        }
    }

    /// Marks the connection as one that no application will ever hold.
    pub(crate) fn orphan(&mut self) {
        self.holder.leave();
    }

    /// Returns whether the connection only waits, for late segments or for the peer's FIN, and its handle was dropped.
    pub(crate) fn is_waiting_without_handle(&self) -> bool {
        matches!(self.state, TcpState::TimeWait | TcpState::FinWait2) && self.holder.is_gone()
    }

    /// Ends such a wait early. Only a connection without a handle may be closed.
    pub(crate) fn end_wait(&mut self) {
        if self.holder.is_gone() {
            self.close();
        }
    }

    /// Resets the connection if all queued data were delivered and received data were discarded.
    pub(super) fn reset_after_discard(&mut self, env: &mut ConnectionEnv<'_>) {
        let delivered = self.outbox.is_finishing() && self.una > self.send.end();
        if self.holder.discarded_unread() && delivered && self.state != TcpState::Closed {
            env.counters.aborts_on_data += 1;
            self.abort();
        }
    }
}
