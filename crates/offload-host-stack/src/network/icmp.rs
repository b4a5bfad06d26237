//! ICMP (RFC 792): answers echo requests, passes on errors about this host's packets, and reports undeliverable
//! packets.
//!
//! Invariants:
//! - ICMP errors and broadcast packets are not answered (RFC 1122 3.2.2).
//! - The number of answers per second is bounded.
//! - An answer that contains ESP-protected bytes leaves with the same protection only.

use super::{ETHERNET_BYTES, IcmpErrorCause, NetworkLayer, ReceivedContent};
use crate::counters::HostCounters;
use bytes::Bytes;
use core::net::{IpAddr, Ipv4Addr};
use offload_api::{Header, Protection, TxAsk, TxPacket};
use offload_base::Instant;
use offload_base::cost::{self, WorkKind};
use offload_formats::protocol::ICMP;
use offload_formats::{InternetSum, IpHeaders, IpVersion};
use smallvec::{SmallVec, smallvec};
use smoltcp::wire::{Icmpv4Message, Icmpv4Packet};

impl NetworkLayer {
    /// Processes an ICMP message from `source`.
    pub(super) fn on_icmp(
        &mut self,
        now: Instant,
        source: Ipv4Addr,
        message: &[u8],
        reply: Option<Protection>,
        counters: &mut HostCounters,
    ) -> Option<ReceivedContent> {
        counters.icmp_in_messages += 1;
        let Ok(packet) = Icmpv4Packet::new_checked(message) else {
            counters.icmp_in_errors += 1;
            return None;
        };
        // A device's verdict on checksums does not cover ICMP's.
        let mut sum = InternetSum::default();
        sum.add(message);
        if !sum.is_right() {
            counters.icmp_in_checksum_errors += 1;
            return None;
        }
        match packet.msg_type() {
            Icmpv4Message::EchoRequest if packet.msg_code() == 0 => {
                counters.icmp_in_echos += 1;
                let Some(shows) = reply.filter(|_| self.echoes.allow(now)) else {
                    counters.icmp_out_limited += 1;
                    return None;
                };
                counters.icmp_out_echo_replies += 1;
                let mut answer = IcmpHeader::from_slice(&message[..ICMP_BYTES]);
                answer[0] = u8::from(Icmpv4Message::EchoReply);
                self.send_icmp(now, source, answer, &message[ICMP_BYTES..], shows, counters);
                None
            }
            Icmpv4Message::DstUnreachable => {
                counters.icmp_in_unreachables += 1;
                let why = match packet.msg_code() {
                    2 | 3 => IcmpErrorCause::Refused,
                    // RFC 1191 4: the low half of the second word.
                    4 => IcmpErrorCause::TooLarge { mtu: u16::from_be_bytes([message[6], message[7]]) },
                    _ => IcmpErrorCause::Unreachable,
                };
                let quoted = message.get(ICMP_BYTES..).unwrap_or_default();
                // The quoted packet identifies the flow; the error's own source may be any router.
                let undelivered = self.parse_quoted(quoted, why);
                counters.icmp_in_errors += u64::from(undelivered.is_none());
                undelivered.map(ReceivedContent::Undelivered)
            }
            _ => None,
        }
    }

    /// Reports to the sender of `packet`, which begins with its IP header, that it was undeliverable. `reply` is the
    /// packet's protection, which the answer needs, too. `None` means that the packet is not answered.
    pub(super) fn report_undeliverable(
        &mut self,
        now: Instant,
        packet: &[u8],
        refusal: UndeliverableReason,
        reply: Option<Protection>,
        counters: &mut HostCounters,
    ) {
        let Ok(headers) = IpHeaders::walk(packet) else {
            // Only IPv6 reports headers that cannot be parsed.
            return self.report_six(now, packet, None, refusal, reply, counters);
        };
        let IpAddr::V4(source) = headers.source(packet) else {
            return self.report_six(now, packet, Some(&headers), refusal, reply, counters);
        };
        let (kind, code) = match refusal {
            UndeliverableReason::Protocol => (Icmpv4Message::DstUnreachable, 2),
            UndeliverableReason::Port => (Icmpv4Message::DstUnreachable, 3),
            UndeliverableReason::Incomplete => (Icmpv4Message::TimeExceeded, 1),
            UndeliverableReason::Problem { .. } => return,
        };
        let is_echo =
            |kind: u8| matches!(Icmpv4Message::from(kind), Icmpv4Message::EchoRequest | Icmpv4Message::EchoReply);
        // RFC 1122 3.2.2: an ICMP error is not answered by an error.
        if headers.protocol == ICMP && !packet.get(headers.upper).is_some_and(|kind| is_echo(*kind)) {
            return;
        }
        let Some(shows) = reply.filter(|_| self.refusals.allow(now)) else {
            counters.icmp_out_limited += 1;
            return;
        };
        match kind {
            Icmpv4Message::TimeExceeded => counters.icmp_out_time_exceeded += 1,
            _ => counters.icmp_out_unreachables += 1,
        }
        let quoted = &packet[..packet.len().min(QUOTED_BYTES)];
        self.send_icmp(now, source, smallvec![u8::from(kind), code, 0, 0, 0, 0, 0, 0], quoted, shows, counters);
    }

    fn send_icmp(
        &mut self,
        now: Instant,
        to: Ipv4Addr,
        mut message: IcmpHeader,
        rest: &[u8],
        shows: Protection,
        counters: &mut HostCounters,
    ) {
        message[2..4].fill(0);
        let mut sum = InternetSum::default();
        sum.add(&message);
        sum.add(rest);
        message[2..4].copy_from_slice(&sum.finish().to_be_bytes());
        let source = IpAddr::V4(self.addresses.four());
        self.send_message(now, (source, to.into()), (ICMP, shows), &message, rest, counters);
    }

    /// Sends an ICMP message of either IP version with a valid checksum. `shows` is the protection of the bytes that
    /// the message contains.
    pub(super) fn send_message(
        &mut self,
        now: Instant,
        (source, destination): (IpAddr, IpAddr),
        (protocol, shows): (u8, Protection),
        message: &[u8],
        rest: &[u8],
        counters: &mut HostCounters,
    ) {
        let mut header = Header::from_elem(0, ETHERNET_BYTES + IpVersion::of_address(&destination).header_bytes());
        self.write_ip(&mut header, source, destination, protocol, message.len() + rest.len());
        header.extend_from_slice(message);
        let _cost_scope = cost::work(WorkKind::Copy);
        let fragments = if rest.is_empty() { SmallVec::new() } else { smallvec![Bytes::copy_from_slice(rest)] };
        let ask = TxAsk { shows, ..TxAsk::default() };
        self.answer(now, destination, TxPacket { header, fragments, ask }, counters);
    }
}

/// The header of an ICMP message; some messages are a header only.
pub(super) type IcmpHeader = SmallVec<[u8; 8]>;

/// Reason for which a packet is undeliverable.
#[derive(Clone, Copy, Debug)]
pub(crate) enum UndeliverableReason {
    /// Unsupported protocol.
    Protocol,
    /// Closed port.
    Port,
    /// Missing fragments at the reassembly timeout.
    Incomplete,
    /// Invalid IPv6 header.
    Problem { code: u8, pointer: u32 },
}

/// Length of an ICMP header.
pub(super) const ICMP_BYTES: usize = 8;
/// Maximum length of a quoted packet: 576 bytes minus the headers (RFC 1812 4.3.2.3).
const QUOTED_BYTES: usize = 576 - 20 - ICMP_BYTES;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Ipv6Config};
    use core::time::Duration;
    use offload_api::rx::Checksums;
    use offload_api::{RxMeta, RxPacket};
    use offload_base::Seed;

    const OTHER: [[u8; 16]; 2] =
        [[10, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]];

    fn network() -> NetworkLayer {
        let own = Ipv6Config::new("fd00::1".parse().unwrap());
        let config = Config::new([10, 0, 0, 1].into(), [2, 0, 0, 0, 0, 1], Seed(1)).with_ipv6(own);
        let config = config.with_neighbour([10, 0, 0, 2].into(), [2, 0, 0, 0, 0, 2]);
        NetworkLayer::new(&config.with_neighbour("fd00::2".parse().unwrap(), [2, 0, 0, 0, 0, 2]))
    }

    /// Returns a packet for this host. `place` is IPv4's fragment field.
    fn packet(ipv6: bool, protocol: u8, place: u16, text: &[u8]) -> RxPacket {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        if ipv6 {
            frame.extend_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0, 0, text.len() as u8, protocol, 64]);
            frame.extend_from_slice(&OTHER[1]);
            frame.extend_from_slice(&[&OTHER[1][..15], &[1]].concat());
        } else {
            frame.extend_from_slice(&[8, 0, 0x45, 0, 0, 20 + text.len() as u8, 0, 7]);
            frame.extend_from_slice(&place.to_be_bytes());
            frame.extend_from_slice(&[64, protocol, 0, 0]);
            frame.extend_from_slice(&OTHER[0][..4]);
            frame.extend_from_slice(&[10, 0, 0, 1]);
        }
        frame.extend_from_slice(text);
        let meta = RxMeta { checksums: Checksums::Good, protection: Protection::Secret, ..RxMeta::default() };
        RxPacket::new(frame[..].into(), meta)
    }

    fn echo(ipv6: bool) -> Vec<u8> {
        let mut message = vec![if ipv6 { 128 } else { 8 }, 0, 0, 0, 0, 1, 0, 1, 7, 7, 7, 7];
        let mut sum = match ipv6 {
            true => {
                let [own, other] = ["fd00::1", "fd00::2"].map(|text| text.parse().unwrap());
                InternetSum::pseudo_header(58, other, own, message.len())
            }
            false => InternetSum::default(),
        };
        sum.add(&message);
        message[2..4].copy_from_slice(&sum.finish().to_be_bytes());
        message
    }

    #[test]
    fn answers_require_the_protection_of_their_request() {
        let datagram = [0x13, 0x88, 0, 9, 0, 16, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
        let option = [&[17, 0, 0x80, 4, 0, 0, 0, 0][..], &datagram].concat();
        let fragment = [&[17, 0, 0, 1, 0, 0, 0, 7][..], &datagram].concat();
        let packets = [
            packet(false, 1, 0, &echo(false)),
            packet(true, 58, 0, &echo(true)),
            packet(false, 17, 0, &datagram),
            packet(true, 17, 0, &datagram),
            packet(false, 253, 0, &datagram),
            packet(true, 253, 0, &datagram),
            packet(true, 60, 0, &option),
            packet(false, 17, 0x2000, &datagram),
            packet(true, 44, 0, &fragment),
        ];
        for (which, mut packet) in packets.into_iter().enumerate() {
            let (mut network, mut counters) = (network(), HostCounters::default());
            if let Some(ReceivedContent::Datagram(_)) = network.receive(Instant::ZERO, &mut packet, &mut counters) {
                network.refuse_datagram(Instant::ZERO, &packet.frame, packet.meta.protection, &mut counters);
            }
            let later = Instant::ZERO + Duration::from_secs(61);
            network.handle_timeouts(later, &mut counters);
            let answer =
                network.next_packet(later, 1500, &mut counters).unwrap_or_else(|| panic!("an answer to {which}"));
            assert_eq!(answer.ask, TxAsk { shows: Protection::Secret, ..TxAsk::default() }, "{which}");
        }
    }
}
