//! ICMP (RFC 792): echo requests are answered, errors about this host's packets are passed on, and packets that
//! nobody here wants are refused.
//!
//! Invariant: an ICMP error is never answered, nor is anything that came by broadcast (RFC 1122 3.2.2); how many
//! answers leave in a second is bounded.

use super::{Arrival, ETHERNET_BYTES, ICMP, Network, Why};
use crate::counters::HostCounters;
use bytes::Bytes;
use core::net::{IpAddr, Ipv4Addr};
use ip_packets::{IpHeaders, Sum, Version};
use offload_api::{Header, TxAsk, TxPacket};
use offload_base::Instant;
use offload_base::cost::{self, Work};
use smallvec::{SmallVec, smallvec};
use smoltcp::wire::{Icmpv4Message, Icmpv4Packet};

impl Network {
    /// An ICMP message from `source` arrived.
    pub(super) fn on_icmp(
        &mut self,
        now: Instant,
        source: Ipv4Addr,
        message: &[u8],
        counters: &mut HostCounters,
    ) -> Option<Arrival> {
        counters.icmp_in_messages += 1;
        let Ok(packet) = Icmpv4Packet::new_checked(message) else {
            counters.icmp_in_errors += 1;
            return None;
        };
        // Whatever a device says of checksums, it is not of ICMP's.
        let mut sum = Sum::default();
        sum.add(message);
        if !sum.is_right() {
            counters.icmp_in_checksum_errors += 1;
            return None;
        }
        match packet.msg_type() {
            Icmpv4Message::EchoRequest if packet.msg_code() == 0 => {
                counters.icmp_in_echos += 1;
                if !self.echoes.allow(now) {
                    counters.icmp_out_limited += 1;
                    return None;
                }
                counters.icmp_out_echo_replies += 1;
                let mut reply = IcmpHeader::from_slice(&message[..ICMP_BYTES]);
                reply[0] = u8::from(Icmpv4Message::EchoReply);
                self.send_icmp(now, source, reply, &message[ICMP_BYTES..], counters);
                None
            }
            Icmpv4Message::DstUnreachable => {
                counters.icmp_in_unreachables += 1;
                let why = match packet.msg_code() {
                    2 | 3 => Why::Refused,
                    // RFC 1191 4: the low half of the second word.
                    4 => Why::TooLarge { mtu: u16::from_be_bytes([message[6], message[7]]) },
                    _ => Why::Unreachable,
                };
                let quoted = message.get(ICMP_BYTES..).unwrap_or_default();
                let undelivered = self.undelivered(quoted, why);
                counters.icmp_in_errors += u64::from(undelivered.is_none());
                undelivered.map(Arrival::Undelivered)
            }
            _ => None,
        }
    }

    /// Tells the sender of `packet`, given from its IP header on, that nobody wants it here.
    pub(super) fn refuse(&mut self, now: Instant, packet: &[u8], refusal: Refusal, counters: &mut HostCounters) {
        let Ok(headers) = IpHeaders::walk(packet) else {
            // Headers that cannot be walked are refused in IPv6 only.
            return self.refuse_six(now, packet, None, refusal, counters);
        };
        let IpAddr::V4(source) = headers.source(packet) else {
            return self.refuse_six(now, packet, Some(&headers), refusal, counters);
        };
        let (kind, code) = match refusal {
            Refusal::Protocol => (Icmpv4Message::DstUnreachable, 2),
            Refusal::Port => (Icmpv4Message::DstUnreachable, 3),
            Refusal::Incomplete => (Icmpv4Message::TimeExceeded, 1),
            Refusal::Problem { .. } => return,
        };
        let is_echo =
            |kind: u8| matches!(Icmpv4Message::from(kind), Icmpv4Message::EchoRequest | Icmpv4Message::EchoReply);
        if headers.protocol == ICMP && !packet.get(headers.upper).is_some_and(|kind| is_echo(*kind)) {
            return;
        }
        if !self.refusals.allow(now) {
            counters.icmp_out_limited += 1;
            return;
        }
        match kind {
            Icmpv4Message::TimeExceeded => counters.icmp_out_time_exceeded += 1,
            _ => counters.icmp_out_unreachables += 1,
        }
        let quoted = &packet[..packet.len().min(QUOTED_BYTES)];
        self.send_icmp(now, source, smallvec![u8::from(kind), code, 0, 0, 0, 0, 0, 0], quoted, counters);
    }

    fn send_icmp(
        &mut self,
        now: Instant,
        to: Ipv4Addr,
        mut message: IcmpHeader,
        rest: &[u8],
        counters: &mut HostCounters,
    ) {
        message[2..4].fill(0);
        let mut sum = Sum::default();
        sum.add(&message);
        sum.add(rest);
        message[2..4].copy_from_slice(&sum.finish().to_be_bytes());
        let source = IpAddr::V4(self.addresses.four());
        self.send_message(now, (source, to.into()), ICMP, &message, rest, counters);
    }

    /// Sends an ICMP message of either IP, its checksum made.
    pub(super) fn send_message(
        &mut self,
        now: Instant,
        (source, destination): (IpAddr, IpAddr),
        protocol: u8,
        message: &[u8],
        rest: &[u8],
        counters: &mut HostCounters,
    ) {
        let mut header = Header::from_elem(0, ETHERNET_BYTES + Version::of(&destination).header_bytes());
        self.write_ip(&mut header, source, destination, protocol, message.len() + rest.len());
        header.extend_from_slice(message);
        let _scope = cost::work(Work::Copy);
        let fragments = if rest.is_empty() { SmallVec::new() } else { smallvec![Bytes::copy_from_slice(rest)] };
        self.answer(now, destination, TxPacket { header, fragments, ask: TxAsk::default() }, counters);
    }
}

/// The header that all messages have, and all of some.
pub(super) type IcmpHeader = SmallVec<[u8; 8]>;

/// Why a packet is not wanted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Refusal {
    /// Nobody speaks what it carries.
    Protocol,
    /// Nobody listens at its port.
    Port,
    /// Others of its fragments did not come in time.
    Incomplete,
    /// Something in IPv6's headers is not acceptable.
    Problem { code: u8, pointer: u32 },
}

pub(super) const ICMP_BYTES: usize = 8;
/// RFC 1812 4.3.2.3: as much of the packet as makes 576 bytes with the headers in front of it.
const QUOTED_BYTES: usize = 576 - 20 - ICMP_BYTES;
