//! What an application asks of a connection, and what the device tells about its flow.

use super::Stack;
use crate::config::{CongestionAlgorithm, KeepAlive};
use crate::flow_table::ConnectionId;
use crate::tcp::state::State;
use crate::tcp::{ConnectionError, TcpStats};
use bytes::Bytes;
use core::num::NonZeroU64;
use core::time::Duration;
use offload_api::{ContextNews, DeviceEvent, FlowKey, Handle, Layer, Protocol, RxSegment, Sealer, SentBytes, TxTag};
use offload_base::{Instant, Seq};
use smallvec::SmallVec;

impl Stack {
    /// The flow of a connection.
    ///
    /// # Panics
    /// This and all calls that take a connection panic if there is none by this name.
    pub fn flow(&self, id: ConnectionId) -> FlowKey {
        self.connection(id).flow()
    }

    /// The state of a connection.
    pub fn state(&self, id: ConnectionId) -> State {
        self.connection(id).state()
    }

    /// Why a connection ended, if it did before its time.
    pub fn error(&self, id: ConnectionId) -> Option<ConnectionError> {
        self.connection(id).error()
    }

    /// Figures of a connection.
    pub fn stats(&self, id: ConnectionId) -> TcpStats {
        self.connection(id).stats(&self.config.tcp)
    }

    /// How many bytes left so far, and how many of them again. A FIN counts as a byte.
    pub fn sent_bytes(&self, id: ConnectionId) -> SentBytes {
        self.connection(id).sent_bytes()
    }

    /// The sequence number of the first byte this side sends or sent.
    pub fn first_seq(&self, id: ConnectionId) -> Seq {
        self.connection(id).first_seq()
    }

    /// Queues `data` and returns the sequence number of its first byte. After an error or a close they go nowhere.
    pub fn send(&mut self, id: ConnectionId, data: Bytes, tag: TxTag) -> Seq {
        self.mark_dirty(id);
        let seq = self.connection_mut(id).queue(data, tag);
        self.account(id);
        seq
    }

    /// Queues a copy of `data`, to go out as it is.
    pub fn send_copy(&mut self, id: ConnectionId, data: &[u8]) {
        self.mark_dirty(id);
        self.connection_mut(id).queue_copy(data);
        self.account(id);
    }

    /// What is queued now is to leave, even in short segments.
    pub fn push(&mut self, id: ConnectionId) {
        self.mark_dirty(id);
        self.connection_mut(id).push();
    }

    /// Whether short segments leave at once from now on (TCP_NODELAY).
    pub fn set_nodelay(&mut self, id: ConnectionId, nodelay: bool) {
        self.mark_dirty(id);
        self.connection_mut(id).set_nodelay(nodelay);
    }

    /// What controls congestion from now on; the window stays.
    pub fn set_congestion(&mut self, id: ConnectionId, algorithm: CongestionAlgorithm) {
        let connection = self.flows.get_mut(id).expect("a connection's name is good until it is detached");
        connection.set_congestion(algorithm, &self.config.tcp);
    }

    /// Whether data leave no faster than they need to: the congestion window spread over the round-trip time, a fifth
    /// faster, and twice as fast in slow start. The device spaces the packets, as for [`set_pacing_rate`](Self::set_pacing_rate),
    /// whose rate is a bound on this one.
    pub fn set_paced(&mut self, id: ConnectionId, paced: bool) {
        self.connection_mut(id).set_paced(paced);
        self.mark_dirty(id);
    }

    /// How many bytes a second leave at most (SO_MAX_PACING_RATE), counted as [`TxAsk::rate`](offload_api::TxAsk::rate)
    /// counts them. The device spaces the packets; where it does not ([`PathCaps::pacing`](offload_api::PathCaps::pacing)),
    /// they leave as they would without.
    pub fn set_pacing_rate(&mut self, id: ConnectionId, rate: Option<NonZeroU64>) {
        self.connection_mut(id).set_pacing_rate(rate);
        self.mark_dirty(id);
    }

    /// Whether the peer is probed when nothing has been heard of it for long (SO_KEEPALIVE).
    pub fn set_keep_alive(&mut self, now: Instant, id: ConnectionId, keep_alive: Option<KeepAlive>) {
        self.mark_dirty(id);
        self.connection_mut(id).set_keep_alive(now, keep_alive);
    }

    /// How long bytes may wait for their acknowledgment before the connection is given up (TCP_USER_TIMEOUT).
    pub fn set_user_timeout(&mut self, now: Instant, id: ConnectionId, timeout: Option<Duration>) {
        self.mark_dirty(id);
        self.connection_mut(id).set_user_timeout(now, timeout);
    }

    /// How many bytes the send queue wants.
    pub fn room(&self, id: ConnectionId) -> usize {
        self.connection(id).room(&self.config.tcp, self.memory.level())
    }

    /// Whether data may still be queued.
    pub fn may_send(&self, id: ConnectionId) -> bool {
        self.connection(id).may_queue()
    }

    /// Whether the first `bytes` bytes this side queued are acknowledged. If not, the connection will be
    /// [ready](Self::next_ready) when they are.
    pub fn poll_acked(&mut self, id: ConnectionId, bytes: u64) -> bool {
        self.connection_mut(id).poll_acked(bytes)
    }

    /// Keeps `sealer` for units of `layer` that are queued from now on.
    pub fn install(&mut self, id: ConnectionId, layer: Layer, sealer: Box<dyn Sealer>) {
        self.connection_mut(id).install(layer, sealer);
    }

    /// Gives `context` back to the device once everything queued so far is acknowledged or given up.
    pub fn leave(&mut self, id: ConnectionId, context: Handle) {
        self.connection_mut(id).leave(context);
        self.mark_dirty(id);
    }

    /// Sequence number of the next byte that [`take`](Self::take) will give, arrived or not; `None` while the connection
    /// is being opened.
    pub fn next_taken(&self, id: ConnectionId) -> Option<Seq> {
        self.connection(id).next_taken()
    }

    /// Sequence number behind the last byte received, be it beyond a hole; `None` while the connection is being opened.
    pub fn furthest(&self, id: ConnectionId) -> Option<Seq> {
        self.connection(id).furthest()
    }

    /// The next received range in order.
    pub fn take(&mut self, id: ConnectionId) -> Option<RxSegment> {
        self.connection_mut(id).take()
    }

    /// Whether the peer has closed its side and everything before was taken.
    pub fn at_end(&self, id: ConnectionId) -> bool {
        self.connection(id).at_end()
    }

    /// `bytes` of what was taken are done with. True if the peer is to be told of the window at once.
    pub fn consume(&mut self, id: ConnectionId, bytes: usize) -> bool {
        let level = self.memory.level();
        let update = self.connection_mut(id).consume(bytes, level);
        self.account(id);
        if update {
            self.mark_dirty(id);
        }
        update
    }

    /// Closes this side after everything queued.
    pub fn finish(&mut self, id: ConnectionId) {
        self.connection_mut(id).finish();
        self.mark_dirty(id);
        self.settle(id);
    }

    /// Ends a connection at once, with a reset.
    pub fn abort(&mut self, id: ConnectionId) {
        self.connection_mut(id).abort();
        self.mark_dirty(id);
        self.settle(id);
    }

    /// The application is through with a connection: what it queued is still delivered, and then the name is
    /// no longer good.
    pub fn detach(&mut self, now: Instant, id: ConnectionId) {
        self.with(now, id, |connection, env| connection.detach(env));
        self.mark_dirty(id);
        self.settle(id);
    }

    /// From now on the connection gets the device's events.
    pub fn mark_controlled(&mut self, id: ConnectionId) {
        self.connection_mut(id).notes.controlled = true;
        self.controlled.insert(id);
    }

    /// The next device event for a connection.
    pub fn device_event(&mut self, id: ConnectionId) -> Option<DeviceEvent> {
        self.connection_mut(id).take_device_event()
    }

    pub(super) fn on_device_event(&mut self, event: DeviceEvent) {
        match event {
            DeviceEvent::Reset => self.sockets.on_reset(),
            // A socket may have named a flow of its own; what happens to its contexts, it hears in one form.
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
                // Only a reset concerns all; it costs every flow a context anyway.
                let controlled: SmallVec<[ConnectionId; 8]> = self.controlled.iter().copied().collect();
                for id in controlled {
                    self.note_device_event(id, event);
                }
            }
        }
    }

    fn note_device_event(&mut self, id: ConnectionId, event: DeviceEvent) {
        if let Some(connection) = self.flows.get_mut(id) {
            connection.note_device_event(event);
            self.settle(id);
        }
    }
}
