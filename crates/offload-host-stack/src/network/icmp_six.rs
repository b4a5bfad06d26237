//! ICMPv6 (RFC 4443): answers echo requests, passes on errors about this host's packets, and reports undeliverable
//! packets. Neighbour discovery is in [`ndp`](super::ndp).
//!
//! Invariants:
//! - ICMPv6 errors and multicast packets are not answered, with the exceptions of RFC 4443 2.4 (e).
//! - The number of answers per second is bounded.
//! - An answer that contains ESP-protected bytes leaves with the same protection only.

use super::addresses::is_one_host;
use super::icmp::{ICMP_BYTES, IcmpHeader, UndeliverableReason};
use super::{IcmpErrorCause, NetworkLayer, ReceivedContent};
use crate::counters::HostCounters;
use core::net::{IpAddr, Ipv6Addr};
use offload_api::Protection;
use offload_base::Instant;
use offload_formats::protocol::ICMPV6;
use offload_formats::{InternetSum, IpHeaders, IpVersion};
use smallvec::smallvec;
use smoltcp::wire::{Icmpv6Message, Ipv6Packet};

impl NetworkLayer {
    /// Processes the ICMPv6 message in `packet`.
    pub(super) fn on_icmp_six(
        &mut self,
        now: Instant,
        packet: &[u8],
        headers: &IpHeaders,
        reply: Option<Protection>,
        counters: &mut HostCounters,
    ) -> Option<ReceivedContent> {
        let message = &packet[headers.upper..headers.end];
        let (source, destination) = (headers.source(packet), headers.destination(packet));
        counters.icmp6_in_messages += 1;
        if message.len() < ICMP_BYTES {
            counters.icmp6_in_errors += 1;
            return None;
        }
        let mut sum = InternetSum::pseudo_header(ICMPV6, source, destination, message.len());
        sum.add(message);
        if !sum.is_right() {
            counters.icmp6_in_checksum_errors += 1;
            return None;
        }
        let (kind, code) = (Icmpv6Message::from(message[0]), message[1]);
        let why = match kind {
            Icmpv6Message::EchoRequest if code == 0 => {
                counters.icmp6_in_echos += 1;
                self.answer_echo(now, (source, destination), message, reply, counters);
                return None;
            }
            // Neighbour discovery also needs the IP header, because it checks the hop limit.
            Icmpv6Message::NeighborSolicit | Icmpv6Message::NeighborAdvert => {
                self.on_neighbour_message(now, packet, headers, reply.is_some(), counters);
                return None;
            }
            Icmpv6Message::RouterAdvert => {
                self.on_router_advertisement(now, packet, headers, counters);
                return None;
            }
            Icmpv6Message::DstUnreachable => {
                counters.icmp6_in_unreachables += 1;
                if code == PORT_UNREACHABLE { IcmpErrorCause::Refused } else { IcmpErrorCause::Unreachable }
            }
            Icmpv6Message::PktTooBig => {
                counters.icmp6_in_too_bigs += 1;
                // The field has 32 bits, but no IPv6 packet here is longer than 16 bits can express.
                let mtu = u32::from_be_bytes([message[4], message[5], message[6], message[7]]);
                IcmpErrorCause::TooLarge { mtu: u16::try_from(mtu).unwrap_or(u16::MAX) }
            }
            Icmpv6Message::ParamProblem if code == UNKNOWN_NEXT_HEADER => IcmpErrorCause::Refused,
            _ => return None,
        };
        // Only an error that quotes a packet of this host matters.
        let undelivered = self.parse_quoted(&message[ICMP_BYTES..], why);
        counters.icmp6_in_errors += u64::from(undelivered.is_none());
        undelivered.map(ReceivedContent::Undelivered)
    }

    fn answer_echo(
        &mut self,
        now: Instant,
        (from, to): (IpAddr, IpAddr),
        message: &[u8],
        reply: Option<Protection>,
        counters: &mut HostCounters,
    ) {
        // RFC 4443 4.2: the answer comes from the destination address of the request or, after a multicast request,
        // from one of this host's addresses.
        let source = if self.addresses.is_own(to) { Some(to) } else { self.addresses.source_for(from) };
        let Some(source) = source else { return };
        let Some(shows) = reply.filter(|_| self.echoes.allow(now)) else {
            counters.icmp_out_limited += 1;
            return;
        };
        counters.icmp6_out_echo_replies += 1;
        let mut answer = IcmpHeader::from_slice(&message[..ICMP_BYTES]);
        answer[0] = u8::from(Icmpv6Message::EchoReply);
        self.send_icmp_six(now, (source, from), answer, &message[ICMP_BYTES..], shows, counters);
    }

    /// Reports to the sender of `packet` that it was undeliverable. `headers` are `None` if they could not be parsed.
    pub(super) fn report_six(
        &mut self,
        now: Instant,
        packet: &[u8],
        headers: Option<&IpHeaders>,
        refusal: UndeliverableReason,
        reply: Option<Protection>,
        counters: &mut HostCounters,
    ) {
        let Some(fixed) = packet.get(..IpVersion::V6.header_bytes()).map(Ipv6Packet::new_unchecked) else { return };
        let (from, to) = (fixed.src_addr(), IpAddr::V6(fixed.dst_addr()));
        let (kind, code, value) = match refusal {
            UndeliverableReason::Protocol => {
                let pointer = headers.map_or(0, IpHeaders::protocol_at);
                (Icmpv6Message::ParamProblem, UNKNOWN_NEXT_HEADER, pointer as u32)
            }
            UndeliverableReason::Port => (Icmpv6Message::DstUnreachable, PORT_UNREACHABLE, 0),
            UndeliverableReason::Incomplete => (Icmpv6Message::TimeExceeded, 1, 0),
            UndeliverableReason::Problem { code, pointer } => (Icmpv6Message::ParamProblem, code, pointer),
        };
        let source = if self.addresses.is_own(to) { Some(to) } else { self.addresses.source_for(from.into()) };
        let Some(source) = source.filter(|_| is_one_host(from)) else { return };
        // RFC 4443 2.4 (e.1): an error is not answered by an error.
        let is_error = |headers: &IpHeaders| {
            headers.protocol == ICMPV6 && packet.get(headers.upper).is_none_or(|kind| kind & 0x80 == 0)
        };
        if headers.is_some_and(is_error) {
            return;
        }
        let Some(shows) = reply.filter(|_| self.refusals.allow(now)) else {
            counters.icmp_out_limited += 1;
            return;
        };
        match kind {
            Icmpv6Message::ParamProblem => counters.icmp6_out_parameter_problems += 1,
            Icmpv6Message::TimeExceeded => counters.icmp6_out_time_exceeded += 1,
            _ => counters.icmp6_out_unreachables += 1,
        }
        let mut message: IcmpHeader = smallvec![u8::from(kind), code, 0, 0];
        message.extend_from_slice(&value.to_be_bytes());
        // The whole error must fit the minimum MTU, because errors are never fragmented.
        let quoted = &packet[..packet.len().min(QUOTED_BYTES)];
        self.send_icmp_six(now, (source, from.into()), message, quoted, shows, counters);
    }

    fn send_icmp_six(
        &mut self,
        now: Instant,
        ends: (IpAddr, IpAddr),
        mut message: IcmpHeader,
        rest: &[u8],
        shows: Protection,
        counters: &mut HostCounters,
    ) {
        fill_checksum(&mut message, rest, ends);
        self.send_message(now, ends, (ICMPV6, shows), &message, rest, counters);
    }
}

/// Computes the checksum of a message that consists of `message` and `rest`.
pub(super) fn fill_checksum(message: &mut [u8], rest: &[u8], (source, destination): (IpAddr, IpAddr)) {
    message[2..4].fill(0);
    let mut sum = InternetSum::pseudo_header(ICMPV6, source, destination, message.len() + rest.len());
    sum.add(message);
    sum.add(rest);
    message[2..4].copy_from_slice(&sum.finish().to_be_bytes());
}

/// Returns the Ethernet address of an IPv6 multicast address (RFC 2464 7).
pub(super) fn ethernet_of(multicast: Ipv6Addr) -> [u8; 6] {
    let [.., a, b, c, d] = multicast.octets();
    [0x33, 0x33, a, b, c, d]
}

/// Code of "destination unreachable" for a closed port.
const PORT_UNREACHABLE: u8 = 4;
/// Code of "parameter problem" for an unknown next header.
const UNKNOWN_NEXT_HEADER: u8 = 1;
/// Maximum length of a quoted packet: as much as fits the minimum MTU (RFC 4443 3.1).
const QUOTED_BYTES: usize = 1280 - IpVersion::V6.header_bytes() - ICMP_BYTES;
