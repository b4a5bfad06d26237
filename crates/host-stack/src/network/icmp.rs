//! ICMP (RFC 792): echo requests are answered, errors about this host's connections are passed on, and packets that
//! nobody here wants are refused.
//!
//! Invariant: an ICMP error is never answered, nor is anything that came by broadcast (RFC 1122 3.2.2); how many
//! answers leave in a second is bounded.

use super::{Arrival, ETHERNET_BYTES, IP_BYTES, Network};
use crate::counters::HostCounters;
use bytes::Bytes;
use core::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use ip_packets::Sum;
use offload_api::{FlowKey, Header, TxAsk, TxPacket};
use offload_base::cost::{self, Work};
use offload_base::{Instant, Seq};
use smallvec::{SmallVec, smallvec};
use smoltcp::wire::{Icmpv4Message, Icmpv4Packet, IpProtocol, Ipv4Packet};

/// A report that a segment of a connection did not get through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Undelivered {
    /// The connection's flow.
    pub(crate) flow: FlowKey,
    /// The segment's sequence number.
    pub(crate) seq: Seq,
    /// Bytes of the whole packet.
    pub(crate) length: u16,
    pub(crate) why: Why,
}

/// Why it did not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// Nobody there listens, or speaks TCP.
    Refused,
    /// There is no way to the host.
    Unreachable,
    /// A router would have to fragment it; what it could forward, 0 if it did not say.
    TooLarge { mtu: u16 },
}

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
                let mut reply: SmallVec<[u8; 8]> = SmallVec::from_slice(&message[..ICMP_BYTES]);
                reply[0] = u8::from(Icmpv4Message::EchoReply);
                self.send_icmp(now, source, reply, &message[ICMP_BYTES..], counters);
                None
            }
            Icmpv4Message::DstUnreachable => {
                counters.icmp_in_unreachables += 1;
                let undelivered = self.undelivered(packet.msg_code(), message);
                counters.icmp_in_errors += u64::from(undelivered.is_none());
                undelivered.map(Arrival::Undelivered)
            }
            _ => None,
        }
    }

    /// What a "destination unreachable" says; `None` if it is not about a TCP segment from this host.
    fn undelivered(&self, code: u8, message: &[u8]) -> Option<Undelivered> {
        let quoted = message.get(ICMP_BYTES..)?;
        // A quotation is cut short: only the header is held against its length.
        let header = Ipv4Packet::new_unchecked(quoted.get(..IP_BYTES)?);
        let header_bytes = usize::from(header.header_len());
        if header.version() != 4 || header_bytes < IP_BYTES || header.src_addr() != self.address() {
            return None;
        }
        if header.next_header() != IpProtocol::Tcp || header.frag_offset() != 0 {
            return None;
        }
        // RFC 792: at least eight bytes of what came behind the header.
        let ports = quoted.get(header_bytes..header_bytes + 8)?;
        let port = |at: usize| u16::from_be_bytes([ports[at], ports[at + 1]]);
        let end = |address: Ipv4Addr, port: u16| SocketAddr::V4(SocketAddrV4::new(address, port));
        let why = match code {
            2 | 3 => Why::Refused,
            // RFC 1191 4: the low half of the second word.
            4 => Why::TooLarge { mtu: u16::from_be_bytes([message[6], message[7]]) },
            _ => Why::Unreachable,
        };
        Some(Undelivered {
            flow: FlowKey::tcp(end(header.src_addr(), port(0)), end(header.dst_addr(), port(2))),
            seq: Seq(u32::from_be_bytes([ports[4], ports[5], ports[6], ports[7]])),
            length: header.total_len(),
            why,
        })
    }

    /// Tells the sender of a packet, given from its IP header on, that nobody wants it here.
    pub(super) fn refuse(&mut self, now: Instant, packet: &[u8], refusal: Refusal, counters: &mut HostCounters) {
        if !self.refusals.allow(now) {
            counters.icmp_out_limited += 1;
            return;
        }
        counters.icmp_out_unreachables += 1;
        let message = smallvec![u8::from(Icmpv4Message::DstUnreachable), refusal as u8, 0, 0, 0, 0, 0, 0];
        let quoted = &packet[..packet.len().min(QUOTED_BYTES)];
        let source = Ipv4Packet::new_unchecked(packet).src_addr();
        self.send_icmp(now, source, message, quoted, counters);
    }

    fn send_icmp(
        &mut self,
        now: Instant,
        to: Ipv4Addr,
        mut message: SmallVec<[u8; 8]>,
        rest: &[u8],
        counters: &mut HostCounters,
    ) {
        message[2..4].fill(0);
        let mut sum = Sum::default();
        sum.add(&message);
        sum.add(rest);
        message[2..4].copy_from_slice(&sum.finish().to_be_bytes());
        let mut header = Header::from_elem(0, ETHERNET_BYTES + IP_BYTES);
        self.write_ip(&mut header, to, IpProtocol::Icmp, message.len() + rest.len());
        header.extend_from_slice(&message);
        let _scope = cost::work(Work::Copy);
        let fragments = if rest.is_empty() { SmallVec::new() } else { smallvec![Bytes::copy_from_slice(rest)] };
        self.answer(now, to, TxPacket { header, fragments, ask: TxAsk::default() }, counters);
    }
}

/// Why a packet is not wanted: the codes of "destination unreachable".
#[derive(Clone, Copy, Debug)]
pub(crate) enum Refusal {
    Protocol = 2,
    Port = 3,
}

/// The header that all messages have.
const ICMP_BYTES: usize = 8;
/// RFC 1812 4.3.2.3: as much of the packet as makes 576 bytes with the headers in front of it.
const QUOTED_BYTES: usize = 576 - IP_BYTES - ICMP_BYTES;
