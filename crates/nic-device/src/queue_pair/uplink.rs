//! Engine work on packets of other functions: on a NIC with a switch, the engines of the host's function process all
//! packets of the uplink.

use crate::queue_pair::receive::is_for;
use crate::queue_pair::{OpenResult, QueuePair};
use bytes::{Bytes, BytesMut};
use nic_engine::EgressClaim;
use offload_api::Handle;
use offload_base::Instant;
use offload_formats::Headers;

impl QueuePair {
    /// Returns the context that the engines' policies require for a packet.
    pub(crate) fn claims(&self, frame: &[u8], headers: &Headers) -> EgressClaim {
        let claims = self.contexts.packet_engines().map(|(_, engine)| engine.claim(frame, headers));
        claims.into_iter().find(|claim| *claim != EgressClaim::Nobody).unwrap_or(EgressClaim::Nobody)
    }

    /// Runs a frame from the uplink through its engine, if it has one. Returns the result, and the time at which the work ends.
    pub(crate) fn open_at_uplink(&mut self, now: Instant, data: &[u8], headers: &Headers) -> (OpenResult, Instant) {
        let used = self.used();
        let arrived = self.open(data, headers);
        let cost = self.cost_since(used);
        // A frame without work for an engine does not wait for the work on others, nor for the host's memory.
        if cost.is_zero() {
            return (arrived, now);
        }
        self.receive.opening_until = self.receive.opening_until.max(now) + cost;
        (arrived, self.receive.opening_until)
    }

    /// Wraps a packet by a context. Returns the packet and the time at which the work ends. `None` if the packet must not
    /// leave; the reason is counted.
    pub(crate) fn wrap(&mut self, now: Instant, context: Handle, frame: &Bytes) -> Option<(Bytes, Instant)> {
        let used = self.used();
        self.contexts.note_work(frame.len());
        let wrapped = self.wrap_whole(context, frame);
        let done_at = self.occupy(now, used);
        Some((wrapped?.freeze(), done_at))
    }

    fn wrap_whole(&mut self, context: Handle, frame: &Bytes) -> Option<BytesMut> {
        let longest = self.longest_frame();
        let Some(engine) = self.contexts.packet(context, &mut self.dma) else {
            self.note_missing(context);
            return None;
        };
        let mut wrapping = engine.begin_claimed(context, frame)?;
        engine.wrap(context, &mut wrapping, frame, longest)
    }

    /// Receives a frame that no rule of the switch took, after the engines have processed it.
    pub(crate) fn take_represented(&mut self, now: Instant, data: &[u8], headers: &Headers, arrived: OpenResult) {
        if is_for(data, self.config.mac) {
            let start = self.start(now);
            self.take_arrived(start, data, headers, arrived);
            self.finish(start);
        } else {
            self.counters.rx_drop_address += 1;
        }
    }

    /// Counts a packet that an engine dropped.
    pub(crate) fn note_dropped(&mut self, data: &[u8]) {
        self.note_received(data);
    }
}
