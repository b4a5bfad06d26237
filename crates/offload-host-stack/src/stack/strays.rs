//! Handling of packets without a connection, and of ICMP errors about sent packets.

use super::Stack;
use crate::network::{IcmpErrorCause, OutgoingSegment, UndeliveredPacket};
use crate::tcp::ConnectionError;
use crate::tcp::input::reset_for;
use crate::tcp::segment::Segment;
use offload_api::{FlowKey, NetDevice, NoRecords, Protocol};
use offload_base::Instant;
use smallvec::SmallVec;

impl Stack {
    pub(super) fn answer_unknown_flow(
        &mut self,
        now: Instant,
        flow: &FlowKey,
        segment: &Segment,
        payload: usize,
        device: &mut dyn NetDevice,
    ) {
        if let Some(reset) = reset_for(segment, payload)
            && self.resets.allow(now)
        {
            self.send_stray(now, flow, &reset, device);
        }
    }

    /// Handles an ICMP error about a sent packet. For TCP, the quoted sequence number must be in flight: an off-path
    /// attacker cannot know such a number (RFC 5927 4.1).
    pub(super) fn on_undelivered(&mut self, now: Instant, undelivered: &UndeliveredPacket) {
        let UndeliveredPacket { flow, seq, length, why } = *undelivered;
        if flow.protocol == Protocol::Udp {
            return self.on_undelivered_datagram(now, undelivered);
        }
        // An attacker who does not see the packets cannot know a sequence number in flight, so other reports may be
        // forged.
        let id = self.flows.find(&flow).filter(|id| self.connection(*id).is_in_flight(seq));
        let Some(id) = id else {
            self.counters.stray_icmp_errors += 1;
            return;
        };
        match why {
            IcmpErrorCause::TooLarge { mtu } => {
                let Some(mtu) = self.network.narrow_path(now, flow.protocol, flow.remote.ip(), length, mtu) else {
                    self.counters.stray_icmp_errors += 1;
                    return;
                };
                self.counters.paths_narrowed += 1;
                // The connection sends the lost packets again at once. Other connections on the path learn the MTU when
                // they send.
                self.connection_mut(id).on_path_narrowed(mtu);
            }
            IcmpErrorCause::Refused => {
                self.with(now, id, |connection, env| connection.on_undeliverable(env, ConnectionError::Refused));
            }
            IcmpErrorCause::Unreachable => {
                self.with(now, id, |connection, env| connection.on_undeliverable(env, ConnectionError::Unreachable));
            }
        }
        self.mark_dirty(id);
        self.release_if_done(id);
    }

    /// Handles an ICMP error about a datagram. Sent datagrams are not recorded, so an open source port is the only
    /// evidence that the quoted datagram was ours. A reported MTU is believed (RFC 8201 4), but for datagrams only.
    /// Errors about closed ports are ignored, because the application's own protocol has to handle an absent peer.
    fn on_undelivered_datagram(&mut self, now: Instant, undelivered: &UndeliveredPacket) {
        let UndeliveredPacket { flow, length, why, .. } = *undelivered;
        let narrowed = match why {
            IcmpErrorCause::TooLarge { mtu } if self.sockets.is_bound(flow.local.port()) => {
                self.network.narrow_path(now, flow.protocol, flow.remote.ip(), length, mtu)
            }
            _ => None,
        };
        match narrowed {
            Some(_) => self.counters.paths_narrowed += 1,
            None => self.counters.stray_icmp_errors += 1,
        }
    }

    /// Sends a reset without a connection.
    pub(super) fn send_stray(&mut self, now: Instant, flow: &FlowKey, reset: &Segment, device: &mut dyn NetDevice) {
        // A lost reset does no harm, because the peer's next segment causes another one. A queue is not worthwhile.
        if device.room(flow) == 0 {
            return;
        }
        let caps = device.path(flow);
        let outgoing = OutgoingSegment {
            flow,
            segment: reset,
            fragments: SmallVec::new(),
            streams: Default::default(),
            ident: 0,
            mss: usize::MAX,
            ecn_capable: false,
            rate: None,
        };
        if let Some(packet) = self.network.packet(now, outgoing, &caps, &mut self.counters) {
            self.counters.out_resets += 1;
            if device.transmit(now, packet, &NoRecords) != offload_api::TransmitResult::Posted {
                self.counters.device_drops += 1;
            }
        }
    }
}
