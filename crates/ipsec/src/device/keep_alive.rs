//! NAT keep-alives (RFC 3948 4): an address translator forgets whom it hears nothing of.
//!
//! An SA sends one when nothing else left by it for as long as its parameters say. It begins with its first packet: before,
//! there is nothing to keep alive, and nobody has said which Ethernet address leads to its peer.

use super::SecureDevice;
use super::transmit::flow_of;
use crate::keying::SaId;
use crate::sad::Sa;
use offload_api::ipsec::Packet;
use offload_api::{NoRecords, TxAsk, TxPacket};
use offload_base::Instant;
use offload_esp::ETHERNET;
use offload_formats::protocol;

impl SecureDevice {
    pub(super) fn send_keep_alive(&mut self, now: Instant, id: SaId, ethernet: [u8; ETHERNET - 2]) {
        let Some(sa) = self.sas.find(id) else { return };
        let Some(frame) = offload_esp::outer::keep_alive(&sa.params, &ethernet) else { return };
        let (source, destination) = (sa.params.source, sa.params.destination);
        let flow = flow_of(&Packet { source, destination, protocol: protocol::UDP, ports: None });
        // What waits for room waits without a bound: of a device that stands still, a translator hears again later.
        let queue = sa.queue;
        self.drain_backlog(now, queue);
        let leaves_by = &mut self.queues[queue];
        if leaves_by.room(&flow) == 0 {
            return;
        }
        let packet = TxPacket { header: frame[..].into(), fragments: Default::default(), ask: TxAsk::default() };
        self.counters.out_keep_alive += 1;
        let _lost_if_dropped = leaves_by.inner.transmit(now, packet, &NoRecords);
        leaves_by.inner.flush(now);
    }
}

impl Sa {
    /// Whether nothing was sent for long enough; from and to which Ethernet addresses the last packet went. It counts as
    /// sent then.
    pub(super) fn was_silent(&mut self, now: Instant) -> Option<[u8; ETHERNET - 2]> {
        let due = self.keep_alive_due().filter(|due| *due <= now && !self.retired);
        let quiet = self.quiet.as_mut().filter(|_| due.is_some())?;
        quiet.since = now;
        Some(quiet.ethernet)
    }
}
