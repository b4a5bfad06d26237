//! NAT keep-alives (RFC 3948 4): an address translator forgets a mapping after some time without packets.
//!
//! An SA sends a keep-alive when no other packet left for its configured interval. The first packet starts the timer:
//! before, no mapping exists and the peer's Ethernet address is unknown.

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
        // A keep-alive is never queued, because the backlog is unbounded. If the device is stuck, the next interval
        // sends one.
        let queue = sa.queue;
        self.drain_backlog(now, queue);
        let leaves_by = &mut self.queues[queue];
        if leaves_by.room(&flow) == 0 {
            return;
        }
        let packet = TxPacket { header: frame[..].into(), fragments: Default::default(), ask: TxAsk::default() };
        self.counters.out_keep_alive += 1;
        // A dropped keep-alive is as good as lost on the wire.
        let _ = leaves_by.inner.transmit(now, packet, &NoRecords);
        leaves_by.inner.flush(now);
    }
}

impl Sa {
    /// Tests whether a keep-alive is due. Returns the Ethernet addresses of the last packet, and restarts the interval.
    pub(super) fn take_keep_alive(&mut self, now: Instant) -> Option<[u8; ETHERNET - 2]> {
        let due = self.keep_alive_due().filter(|due| *due <= now && !self.retired);
        let quiet = self.quiet.as_mut().filter(|_| due.is_some())?;
        quiet.since = now;
        Some(quiet.ethernet)
    }
}
