//! Calls of the application on a connection, and events of the device about its flow.

use super::Stack;
use crate::config::{CongestionAlgorithm, KeepAlive};
use crate::flow_table::FlowId;
use crate::tcp::state::TcpState;
use crate::tcp::{ConnectionError, TcpStats};
use bytes::Bytes;
use core::num::NonZeroU64;
use core::time::Duration;
use offload_api::{ContextNews, DeviceEvent, FlowKey, Handle, Layer, Protocol, RxSegment, Sealer, SentBytes, TxTag};
use offload_base::{Instant, Seq};
use smallvec::SmallVec;

impl Stack {
    /// Returns the flow of a connection.
    ///
    /// # Panics
    /// This call and all others that take a connection panic if `id` names no connection.
    pub fn flow(&self, id: FlowId) -> FlowKey {
        self.connection(id).flow()
    }

    /// Returns the state of a connection.
    pub fn state(&self, id: FlowId) -> TcpState {
        self.connection(id).state()
    }

    /// Returns the error that ended a connection. `None` while the connection lives, and after an orderly close.
    pub fn error(&self, id: FlowId) -> Option<ConnectionError> {
        self.connection(id).error()
    }

    /// Returns the figures of a connection.
    pub fn stats(&self, id: FlowId) -> TcpStats {
        self.connection(id).stats(&self.config.tcp)
    }

    /// Returns how many bytes were sent, and how many of them were retransmissions. A FIN counts as one byte.
    pub fn sent_bytes(&self, id: FlowId) -> SentBytes {
        self.connection(id).sent_bytes()
    }

    /// Returns the sequence number of the first byte in the send direction.
    pub fn first_seq(&self, id: FlowId) -> Seq {
        self.connection(id).first_seq()
    }

    /// Queues `data` and returns the sequence number of its first byte. After an error or a close, `data` are
    /// discarded.
    pub fn send(&mut self, id: FlowId, data: Bytes, tag: TxTag) -> Seq {
        self.mark_dirty(id);
        let seq = self.connection_mut(id).queue(data, tag);
        self.account(id);
        seq
    }

    /// Queues a copy of `data`, which no device context processes.
    pub fn send_copy(&mut self, id: FlowId, data: &[u8]) {
        self.mark_dirty(id);
        self.connection_mut(id).queue_copy(data);
        self.account(id);
    }

    /// Lets the data queued so far leave even in short segments.
    pub fn push(&mut self, id: FlowId) {
        self.mark_dirty(id);
        self.connection_mut(id).push();
    }

    /// Sets whether short segments are sent at once (TCP_NODELAY).
    pub fn set_nodelay(&mut self, id: FlowId, nodelay: bool) {
        self.mark_dirty(id);
        self.connection_mut(id).set_nodelay(nodelay);
    }

    /// Replaces the congestion control. The window is kept.
    pub fn set_congestion(&mut self, id: FlowId, algorithm: CongestionAlgorithm) {
        let connection = self.flows.get_mut(id).expect("a connection's id must be valid until it is detached");
        connection.set_congestion(algorithm, &self.config.tcp);
    }

    /// Sets whether data are paced: sent at the congestion window per round-trip time, times 1.2, or times 2 in slow
    /// start. The device spaces the packets. The rate set by [`set_pacing_rate`](Self::set_pacing_rate) is an upper
    /// bound.
    pub fn set_paced(&mut self, id: FlowId, paced: bool) {
        self.connection_mut(id).set_paced(paced);
        self.mark_dirty(id);
    }

    /// Limits the send rate in bytes per second (SO_MAX_PACING_RATE), counted as in
    /// [`TxAsk::rate`](offload_api::TxAsk::rate). The device spaces the packets. Without
    /// [`PathCaps::pacing`](offload_api::PathCaps::pacing) the limit has no effect.
    pub fn set_pacing_rate(&mut self, id: FlowId, rate: Option<NonZeroU64>) {
        self.connection_mut(id).set_pacing_rate(rate);
        self.mark_dirty(id);
    }

    /// Sets the probing of a silent peer (SO_KEEPALIVE). `None` disables probing.
    pub fn set_keep_alive(&mut self, now: Instant, id: FlowId, keep_alive: Option<KeepAlive>) {
        self.mark_dirty(id);
        self.connection_mut(id).set_keep_alive(now, keep_alive);
    }

    /// Sets the maximum time that sent bytes may stay unacknowledged (TCP_USER_TIMEOUT). Then the connection is
    /// aborted.
    pub fn set_user_timeout(&mut self, now: Instant, id: FlowId, timeout: Option<Duration>) {
        self.mark_dirty(id);
        self.connection_mut(id).set_user_timeout(now, timeout);
    }

    /// Returns how many more bytes the send queue should take.
    pub fn room(&self, id: FlowId) -> usize {
        self.connection(id).room(&self.config.tcp, self.memory.level())
    }

    /// Returns whether data can still be queued.
    pub fn may_send(&self, id: FlowId) -> bool {
        self.connection(id).may_queue()
    }

    /// Returns whether the first `bytes` queued bytes are acknowledged. If not, the connection becomes
    /// [ready](Self::next_ready) when they are.
    pub fn poll_acked(&mut self, id: FlowId, bytes: u64) -> bool {
        self.connection_mut(id).poll_acked(bytes)
    }

    /// Installs `sealer` for units of `layer` that are queued from now on.
    pub fn install(&mut self, id: FlowId, layer: Layer, sealer: Box<dyn Sealer>) {
        self.connection_mut(id).install(layer, sealer);
    }

    /// Removes `context` from the device once all data queued so far are acknowledged or discarded.
    pub fn leave(&mut self, id: FlowId, context: Handle) {
        self.connection_mut(id).leave(context);
        self.mark_dirty(id);
    }

    /// Returns the sequence number of the next byte that [`take`](Self::take) returns, received or not. `None` during
    /// the handshake.
    pub fn next_taken(&self, id: FlowId) -> Option<Seq> {
        self.connection(id).next_taken()
    }

    /// Returns the sequence number after the last received byte, even beyond a gap. `None` during the handshake.
    pub fn furthest(&self, id: FlowId) -> Option<Seq> {
        self.connection(id).furthest()
    }

    /// Takes the next received range in order.
    pub fn take(&mut self, id: FlowId) -> Option<RxSegment> {
        self.connection_mut(id).take()
    }

    /// Returns whether the peer has closed its side and all data before its FIN were taken.
    pub fn at_end(&self, id: FlowId) -> bool {
        self.connection(id).at_end()
    }

    /// Releases `bytes` of the taken data. Returns true if the peer needs a window update at once.
    pub fn consume(&mut self, id: FlowId, bytes: usize) -> bool {
        let level = self.memory.level();
        let update = self.connection_mut(id).consume(bytes, level);
        self.account(id);
        if update {
            self.mark_dirty(id);
        }
        update
    }

    /// Closes this side after everything queued.
    pub fn finish(&mut self, id: FlowId) {
        self.connection_mut(id).finish();
        self.mark_dirty(id);
        self.release_if_done(id);
    }

    /// Aborts a connection with a reset.
    pub fn abort(&mut self, id: FlowId) {
        self.connection_mut(id).abort();
        self.mark_dirty(id);
        self.release_if_done(id);
    }

    /// Ends the application's use of a connection. Queued data are still delivered; then the connection is released and
    /// `id` becomes invalid.
    pub fn detach(&mut self, now: Instant, id: FlowId) {
        self.with(now, id, |connection, env| connection.detach(env));
        self.mark_dirty(id);
        self.release_if_done(id);
    }

    /// Subscribes the connection to the device's events.
    pub fn mark_controlled(&mut self, id: FlowId) {
        self.connection_mut(id).notes.controlled = true;
        self.controlled.insert(id);
    }

    /// Takes the next device event for a connection.
    pub fn device_event(&mut self, id: FlowId) -> Option<DeviceEvent> {
        self.connection_mut(id).take_device_event()
    }

    pub(super) fn on_device_event(&mut self, event: DeviceEvent) {
        match event {
            // Sockets keep no flow with the stack, so they are told separately from the connections below.
            DeviceEvent::Reset => self.sockets.on_reset(),
            // A socket may have created a context with a flow. All context events reach the socket in one form,
            // `ContextNews`.
            DeviceEvent::Ready { flow, handle } if flow.protocol == Protocol::Udp => {
                self.sockets.on_news(ContextNews::Ready(handle));
            }
            DeviceEvent::Removed { flow, handle } if flow.protocol == Protocol::Udp => {
                self.sockets.on_news(ContextNews::Removed(handle));
            }
            _ => {}
        }
        match event.flow() {
            Some(flow) => {
                if let Some(id) = self.flows.find(flow) {
                    self.note_device_event(id, event);
                }
            }
            None => {
                // A reset concerns all flows. The loop over them costs little against the loss of every flow's
                // contexts.
                let controlled: SmallVec<[FlowId; 8]> = self.controlled.iter().copied().collect();
                for id in controlled {
                    self.note_device_event(id, event);
                }
            }
        }
    }

    fn note_device_event(&mut self, id: FlowId, event: DeviceEvent) {
        if let Some(connection) = self.flows.get_mut(id) {
            connection.note_device_event(event);
            self.release_if_done(id);
        }
    }
}
