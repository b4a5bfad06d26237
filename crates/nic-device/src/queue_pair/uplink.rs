//! Engine work on packets of other functions: on a NIC with a switch, the engines of the host's function process all
//! packets of the uplink.

use crate::queue_pair::receive::is_for;
use crate::queue_pair::{OpenResult, QueuePair};
use bytes::{Bytes, BytesMut};
use nic_engine::Claim;
use offload_api::Handle;
use offload_base::Instant;
use offload_formats::Headers;

impl QueuePair {
    /// Returns the context that the engines' policies require for a packet.
    pub(crate) fn claims(&self, frame: &[u8], headers: &Headers) -> Claim {
        let claims = self.contexts.packet_engines().map(|(_, engine)| engine.claim(frame, headers));
        claims.into_iter().find(|claim| *claim != Claim::Nobody).unwrap_or(Claim::Nobody)
    }

    /// Wraps a packet by a context. Returns `None` if the packet must not leave; the engine counts the reason.
    pub(crate) fn wrap(&mut self, context: Handle, frame: &Bytes) -> Option<BytesMut> {
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
            self.take_arrived(now, data, headers, arrived);
        } else {
            self.counters.rx_drop_address += 1;
        }
    }

    /// Counts a packet that an engine dropped.
    pub(crate) fn note_dropped(&mut self, data: &[u8]) {
        self.note_received(data);
    }
}
