//! What the application does to a connection: it queues and reads, closes, aborts, and drops its end.

use super::congestion;
use super::connection::{Connection, Env};
use super::report::ConnectionError;
use super::send_queue::FIRST_BYTE;
use super::state::State;
use crate::config::{CongestionAlgorithm, TcpConfig};
use crate::memory::Level;
use bytes::Bytes;
use core::num::NonZeroU64;
use offload_api::{Handle, Layer, RxSegment, Sealer, TxTag};
use offload_base::Seq;

/// The application's end.
///
/// Invariant: once it is gone, nobody waits, and nothing brings it back.
#[derive(Debug, Default)]
pub(super) struct Holder {
    /// The application has dropped its end.
    gone: bool,
    /// Data were thrown away because of that: the peer has to know.
    discarded: bool,
    /// The position that is waited for to be acknowledged.
    waits_for: Option<u64>,
}

impl Holder {
    pub(super) fn is_gone(&self) -> bool {
        self.gone
    }

    fn leave(&mut self) {
        self.gone = true;
    }

    /// `bytes` bytes were thrown away.
    pub(super) fn note_discarded(&mut self, bytes: u64) {
        self.discarded |= bytes > 0;
    }

    /// Whether it is gone, and has not read all.
    fn left_unread(&self) -> bool {
        self.gone && self.discarded
    }

    fn wait_for(&mut self, position: Option<u64>) {
        self.waits_for = position;
    }

    /// All before `position` is acknowledged. True if that was waited for.
    pub(super) fn note_acknowledged(&mut self, position: u64) -> bool {
        let reached = self.waits_for.is_some_and(|target| target <= position);
        if reached {
            self.waits_for = None;
        }
        reached
    }
}

impl Connection {
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
        self.state.may_send() && !self.outbox.is_finishing() && self.error.is_none()
    }

    /// Bytes the send queue wants.
    pub(crate) fn room(&self, config: &TcpConfig, memory: Level) -> usize {
        memory.wanted(config.send_buffer).saturating_sub(self.send.unacknowledged() as usize)
    }

    /// What is queued now may leave in short segments.
    pub(crate) fn push(&mut self) {
        self.outbox.push(self.send.end());
    }

    pub(crate) fn set_nodelay(&mut self, nodelay: bool) {
        self.outbox.set_nodelay(nodelay);
    }

    /// Hands congestion control over, with the window as it is.
    pub(crate) fn set_congestion(&mut self, algorithm: CongestionAlgorithm, config: &TcpConfig) {
        let mut controller = congestion::controller(algorithm, self.mss as u64, config.initial_window);
        controller.adopt(self.congestion.window(), self.congestion.threshold());
        self.congestion = controller;
    }

    /// Whether the device is asked to keep it to a rate.
    pub(crate) fn is_paced(&self) -> bool {
        self.pace.is_asked()
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

    /// Moves to `left` the contexts that nothing here needs any more.
    pub(crate) fn take_left(&mut self, left: &mut Vec<Handle>) {
        self.send.take_left(left);
    }

    /// Whether the first `bytes` bytes of the stream are acknowledged; if not, asks to be told when they are.
    pub(crate) fn poll_acked(&mut self, bytes: u64) -> bool {
        let target = FIRST_BYTE + bytes;
        let acked = self.una >= target;
        self.holder.wait_for((!acked).then_some(target));
        acked
    }

    /// Sequence number of the next byte for the application, once the peer has told where it begins.
    pub(crate) fn next_taken(&self) -> Option<Seq> {
        (!self.state.is_opening()).then(|| self.receive.next_taken())
    }

    /// Sequence number behind the last byte received; `None` while the connection is being opened.
    pub(crate) fn furthest(&self) -> Option<Seq> {
        (!self.state.is_opening()).then(|| self.receive.seq(self.receive.furthest()))
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
    pub(crate) fn consume(&mut self, bytes: usize, memory: Level) -> bool {
        self.receive.consume(bytes);
        self.receive.set_memory(memory);
        let update = self.state.may_receive() && !self.state.is_opening() && self.receive.wants_update(self.mss);
        self.acks.owe_if(update);
        update
    }

    /// Closes this side behind what is queued.
    pub(crate) fn finish(&mut self) {
        if self.may_queue() {
            self.outbox.finish();
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
        self.holder.leave();
        match self.state {
            State::Closed => {}
            State::SynSent => self.close(),
            _ => {
                self.holder.note_discarded(self.receive.discard());
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
        self.holder.leave();
    }

    /// Whether it only waits, be it for late segments or for a peer to close its side, and nobody holds it.
    pub(crate) fn is_waiting_alone(&self) -> bool {
        matches!(self.state, State::TimeWait | State::FinWait2) && self.holder.is_gone()
    }

    /// Ends such a wait early; only a connection that nobody holds gives way.
    pub(crate) fn end_wait(&mut self) {
        if self.holder.is_gone() {
            self.close();
        }
    }

    /// Resets the connection if the peer has all it will get, and sent what nobody took.
    pub(super) fn settle_discarded(&mut self, env: &mut Env<'_>) {
        let delivered = self.outbox.is_finishing() && self.una > self.send.end();
        if self.holder.left_unread() && delivered && self.state != State::Closed {
            env.counters.aborts_on_data += 1;
            self.abort();
        }
    }
}
