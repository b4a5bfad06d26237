//! Ethernet and IPv4: from a frame to the segment in it, and from a segment to a packet for the device.
//!
//! - [`arp`], [`neighbours`]: which Ethernet address the next hop has;
//! - [`icmp`]: echoes, errors in and out; [`paths`]: how large a packet may be; [`udp`]: datagrams.
//!
//! What leaves of its own accord (requests, answers, packets whose next hop is known at last) waits in the outbox
//! until the stack hands it to the device.
//!
//! Invariant: what [`Network::receive`] lets through is a whole, unfragmented packet for this host, and nothing
//! behind its IP length is looked at.

mod arp;
mod icmp;
mod neighbours;
mod paths;
mod udp;

pub(crate) use icmp::{Undelivered, Why};

use crate::config::Config;
use crate::counters::HostCounters;
use crate::limit::RateLimit;
use crate::tcp::segment::Segment;
use bytes::Bytes;
use core::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use core::ops::Range;
use icmp::Refusal;
use ip_packets::Sum;
use neighbours::{Hop, Neighbours};
use offload_api::rx::Checksums;
use offload_api::{FlowKey, Handle, Header, PathCaps, TxAsk, TxPacket};
use offload_base::Instant;
use paths::Paths;
use smallvec::SmallVec;
use smoltcp::wire::{EthernetAddress, EthernetFrame, EthernetProtocol, IpProtocol, Ipv4Packet, TcpPacket};
use std::collections::VecDeque;

/// The interface's addresses and whom it reaches.
#[derive(Debug)]
pub(crate) struct Network {
    mac: EthernetAddress,
    address: Ipv4Addr,
    prefix_len: u8,
    gateway: Option<Ipv4Addr>,
    neighbours: Neighbours,
    paths: Paths,
    outbox: VecDeque<TxPacket>,
    arp_answers: RateLimit,
    echoes: RateLimit,
    refusals: RateLimit,
    /// The identification of the next packet that belongs to no connection.
    ident: u16,
}

/// What came in a frame.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// A TCP segment.
    Tcp(Parsed),
    /// A datagram for `port`.
    Datagram { port: u16, from: SocketAddr, payload: Range<usize> },
    /// Word of a TCP segment that did not get through.
    Undelivered(Undelivered),
}

/// A TCP packet found in a frame.
#[derive(Debug)]
pub(crate) struct Parsed {
    /// The flow, seen from this host.
    pub(crate) flow: FlowKey,
    /// The TCP header's content.
    pub(crate) segment: Segment,
    /// Where in the frame the payload lies.
    pub(crate) payload: Range<usize>,
}

/// A segment to be sent, with its payload and what the device is to do.
#[derive(Debug)]
pub(crate) struct Outgoing<'a> {
    pub(crate) flow: &'a FlowKey,
    pub(crate) segment: &'a Segment,
    pub(crate) fragments: SmallVec<[Bytes; 4]>,
    pub(crate) context: Option<Handle>,
    /// The identification of the first packet cut from this one.
    pub(crate) ident: u16,
    /// The most payload bytes a packet may have; a longer payload is for the device to cut.
    pub(crate) mss: usize,
}

impl Network {
    pub(crate) fn new(config: &Config) -> Network {
        let mut neighbours = Neighbours::default();
        config.neighbours.iter().for_each(|(address, mac)| neighbours.fix(*address, EthernetAddress(*mac)));
        Network {
            mac: EthernetAddress(config.mac),
            address: config.address,
            prefix_len: config.prefix_len.min(32),
            gateway: config.gateway,
            neighbours,
            paths: Paths::default(),
            outbox: VecDeque::new(),
            arp_answers: RateLimit::new(ARP_ANSWERS_A_SECOND),
            echoes: RateLimit::new(ECHOES_A_SECOND),
            refusals: RateLimit::new(REFUSALS_A_SECOND),
            ident: config.seed.stream("host-stack idents").next_u32() as u16,
        }
    }

    pub(crate) fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Whether packets for `destination` can be sent at all.
    pub(crate) fn reaches(&self, destination: IpAddr) -> bool {
        matches!(destination, IpAddr::V4(address) if self.next_hop(address).is_some())
    }

    /// The neighbour to which packets for `destination` go.
    fn next_hop(&self, destination: Ipv4Addr) -> Option<Ipv4Addr> {
        if self.is_on_link(destination) || self.neighbours.is_fixed(destination) {
            return Some(destination);
        }
        let nobody = destination.is_broadcast()
            || destination.is_multicast()
            || destination.is_unspecified()
            || destination.is_loopback();
        let elsewhere = !nobody && !self.shares_prefix(destination);
        self.gateway.filter(|_| elsewhere)
    }

    /// Whether `address` can be another host on this Ethernet.
    fn is_on_link(&self, address: Ipv4Addr) -> bool {
        let host_bits = u32::MAX.checked_shr(u32::from(self.prefix_len)).unwrap_or(0);
        let host = address.to_bits() & host_bits;
        // RFC 3021: in a network of two there is neither a broadcast address nor one of the network's own.
        let usable = self.prefix_len >= 31 || (host != 0 && host != host_bits);
        self.shares_prefix(address) && usable && address != self.address
    }

    fn shares_prefix(&self, address: Ipv4Addr) -> bool {
        let host_bits = u32::MAX.checked_shr(u32::from(self.prefix_len)).unwrap_or(0);
        (address.to_bits() ^ self.address.to_bits()) & !host_bits == 0
    }

    /// The largest packet that may be sent to `destination` where the interface takes `mtu`.
    pub(crate) fn path_mtu(&self, now: Instant, destination: IpAddr, mtu: u16) -> u16 {
        match destination {
            IpAddr::V4(address) => self.paths.find(now, address).map_or(mtu, |(narrow, _)| narrow.min(mtu)),
            IpAddr::V6(_) => mtu,
        }
    }

    /// A packet of `length` bytes was too large for the path to `destination`, which is `told` to take `mtu`. Returns
    /// what will be believed.
    pub(crate) fn narrow_path(&mut self, now: Instant, destination: IpAddr, length: u16, told: u16) -> Option<u16> {
        let IpAddr::V4(address) = destination else { return None };
        self.paths.narrow(now, address, length, told)
    }

    /// When [`handle_timeouts`](Self::handle_timeouts) wants to be called.
    pub(crate) fn next_event(&self) -> Option<Instant> {
        self.neighbours.next_event()
    }

    /// Whether datagrams find space in the outbox.
    pub(crate) fn takes_datagrams(&self) -> bool {
        self.outbox.len() < OUTBOX_PACKETS / 2
    }

    pub(crate) fn has_mail(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// The next packet that is ready for the device.
    pub(crate) fn next_mail(&mut self) -> Option<TxPacket> {
        self.outbox.pop_front()
    }

    /// Finds what a frame holds for the layers above; `None`, and answered or counted, if it is nothing for them.
    pub(crate) fn receive(
        &mut self,
        now: Instant,
        frame: &[u8],
        checksums: Checksums,
        counters: &mut HostCounters,
    ) -> Option<Arrival> {
        let Ok(ethernet) = EthernetFrame::new_checked(frame) else {
            counters.ip_in_receives += 1;
            counters.ip_in_header_errors += 1;
            return None;
        };
        let mine = ethernet.dst_addr() == self.mac;
        if ethernet.ethertype() == EthernetProtocol::Arp && (mine || ethernet.dst_addr().is_broadcast()) {
            self.on_arp(now, ethernet.payload(), counters);
            return None;
        }
        counters.ip_in_receives += 1;
        if !mine {
            counters.ip_in_address_errors += 1;
            return None;
        }
        if ethernet.ethertype() != EthernetProtocol::Ipv4 {
            counters.ip_in_unknown_protocols += 1;
            return None;
        }
        let Some(ip) = Ipv4Packet::new_checked(ethernet.payload()).ok().filter(|ip| ip.version() == 4) else {
            counters.ip_in_header_errors += 1;
            return None;
        };
        if checksums == Checksums::Bad || (checksums == Checksums::Unchecked && !ip.verify_checksum()) {
            counters.checksum_errors += 1;
            return None;
        }
        if ip.dst_addr() != self.address {
            counters.ip_in_address_errors += 1;
            return None;
        }
        // RFC 1122 3.2.1.3: a broadcast, multicast or unspecified address is nobody's source.
        let source = ip.src_addr();
        if source.is_broadcast() || source.is_multicast() || source.is_unspecified() {
            counters.ip_in_address_errors += 1;
            return None;
        }
        if ip.more_frags() || ip.frag_offset() != 0 {
            counters.ip_fragments_dropped += 1;
            return None;
        }
        let start = ETHERNET_BYTES + usize::from(ip.header_len());
        let end = ETHERNET_BYTES + usize::from(ip.total_len());
        let destination = ip.dst_addr();
        match ip.next_header() {
            IpProtocol::Tcp => {}
            IpProtocol::Udp => return self.on_udp(source, frame, start..end, checksums, counters),
            IpProtocol::Icmp => return self.on_icmp(now, source, &frame[start..end], counters),
            _ => {
                counters.ip_in_unknown_protocols += 1;
                self.refuse(now, &frame[ETHERNET_BYTES..end], Refusal::Protocol, counters);
                return None;
            }
        }
        if checksums == Checksums::Unchecked {
            let mut sum = Sum::pseudo_header(TCP, source.into(), destination.into(), end - start);
            sum.add(&frame[start..end]);
            if !sum.is_right() {
                counters.checksum_errors += 1;
                return None;
            }
        }
        counters.in_segments += 1;
        let Some((segment, header_bytes)) = Segment::parse(&frame[start..end]) else {
            counters.in_errors += 1;
            return None;
        };
        let address = |ip: Ipv4Addr, port: u16| SocketAddr::V4(SocketAddrV4::new(ip, port));
        let flow = FlowKey::tcp(address(destination, segment.destination_port), address(source, segment.source_port));
        Some(Arrival::Tcp(Parsed { flow, segment, payload: start + header_bytes..end }))
    }

    /// The packet for a segment. `None` if there is nothing to hand to the device now: there is no way to the
    /// destination, and that is counted; or the next hop's address is being asked for, and the packet waits. One that
    /// a context is to work on does not wait, for its stream would have to answer for it then: it counts as lost on
    /// its way, and is sent again like any other.
    pub(crate) fn packet(
        &mut self,
        now: Instant,
        outgoing: Outgoing<'_>,
        caps: &PathCaps,
        counters: &mut HostCounters,
    ) -> Option<TxPacket> {
        let Outgoing { flow, segment, fragments, context, ident, mss } = outgoing;
        let (IpAddr::V4(source), IpAddr::V4(destination)) = (flow.local.ip(), flow.remote.ip()) else {
            counters.ip_out_no_routes += 1;
            return None;
        };
        let payload_bytes: usize = fragments.iter().map(Bytes::len).sum();
        let tcp_bytes = segment.header_bytes();
        let mut header = Header::from_elem(0, ETHERNET_BYTES + IP_BYTES + tcp_bytes);
        self.write_ip(&mut header, destination, IpProtocol::Tcp, tcp_bytes + payload_bytes);
        let mut ip = Ipv4Packet::new_unchecked(&mut header[ETHERNET_BYTES..]);
        ip.set_ident(ident);
        ip.set_checksum(0);
        ip.set_dont_frag(!self.paths.find(now, destination).is_some_and(|(_, may_fragment)| may_fragment));
        segment.emit(&mut header[ETHERNET_BYTES + IP_BYTES..]);
        if !caps.checksum {
            fill_checksums(&mut header, source, destination, &fragments);
        }
        let ask = TxAsk {
            seq: segment.seq + u32::from(segment.flags.syn),
            context,
            checksum: caps.checksum,
            mss: (payload_bytes > mss).then_some(mss as u16),
            ..TxAsk::default()
        };
        self.address_to(now, destination, TxPacket { header, fragments, ask }, counters)
    }

    /// Puts the next hop's address on `packet`; keeps it if that is not known.
    fn address_to(
        &mut self,
        now: Instant,
        destination: Ipv4Addr,
        mut packet: TxPacket,
        counters: &mut HostCounters,
    ) -> Option<TxPacket> {
        let Some(next_hop) = self.next_hop(destination) else {
            counters.ip_out_no_routes += 1;
            return None;
        };
        counters.ip_out_requests += 1;
        match self.neighbours.find(now, next_hop) {
            Hop::Known(mac) => {
                EthernetFrame::new_unchecked(&mut packet.header[..]).set_dst_addr(mac);
                Some(packet)
            }
            Hop::Asked => {
                if packet.ask.context.is_none() {
                    self.neighbours.keep(next_hop, packet);
                } else {
                    counters.arp_unresolved_discards += 1;
                }
                None
            }
        }
    }

    /// Writes Ethernet and IPv4 headers for `bytes` bytes of what comes behind them, but for the next hop's address.
    fn write_ip(&self, header: &mut [u8], destination: Ipv4Addr, protocol: IpProtocol, bytes: usize) {
        let mut ethernet = EthernetFrame::new_unchecked(&mut header[..]);
        ethernet.set_src_addr(self.mac);
        ethernet.set_ethertype(EthernetProtocol::Ipv4);
        let mut ip = Ipv4Packet::new_unchecked(&mut header[ETHERNET_BYTES..ETHERNET_BYTES + IP_BYTES]);
        ip.set_version(4);
        ip.set_header_len(IP_BYTES as u8);
        ip.set_total_len((IP_BYTES + bytes) as u16);
        ip.set_hop_limit(64);
        ip.set_next_header(protocol);
        ip.set_src_addr(self.address);
        ip.set_dst_addr(destination);
    }

    /// Sends an answer that belongs to no connection to `destination`, its IP header finished here.
    fn answer(&mut self, now: Instant, destination: Ipv4Addr, mut packet: TxPacket, counters: &mut HostCounters) {
        // It may be fragmented, so its identification must tell it from others.
        self.ident = self.ident.wrapping_add(1);
        let mut ip = Ipv4Packet::new_unchecked(&mut packet.header[ETHERNET_BYTES..ETHERNET_BYTES + IP_BYTES]);
        ip.set_ident(self.ident);
        ip.fill_checksum();
        if let Some(packet) = self.address_to(now, destination, packet, counters) {
            self.post(packet, counters);
        }
    }

    /// Puts a packet in the outbox, if there is space.
    fn post(&mut self, packet: TxPacket, counters: &mut HostCounters) {
        if self.outbox.len() < OUTBOX_PACKETS {
            self.outbox.push_back(packet);
        } else {
            counters.answers_dropped += 1;
        }
    }
}

/// The flow of a TCP packet that this host has made.
fn flow_of(header: &[u8]) -> Option<FlowKey> {
    let ip = Ipv4Packet::new_unchecked(header.get(ETHERNET_BYTES..)?.get(..IP_BYTES)?);
    if ip.next_header() != IpProtocol::Tcp {
        return None;
    }
    let ports = header.get(ETHERNET_BYTES + IP_BYTES..)?.get(..4)?;
    let end = |address: Ipv4Addr, port: [u8; 2]| SocketAddr::V4(SocketAddrV4::new(address, u16::from_be_bytes(port)));
    let local = end(ip.src_addr(), [ports[0], ports[1]]);
    Some(FlowKey::tcp(local, end(ip.dst_addr(), [ports[2], ports[3]])))
}

fn fill_checksums(header: &mut [u8], source: Ipv4Addr, destination: Ipv4Addr, fragments: &[Bytes]) {
    let ip_header = &mut header[ETHERNET_BYTES..ETHERNET_BYTES + IP_BYTES];
    let mut ip_sum = Sum::default();
    ip_sum.add(ip_header);
    Ipv4Packet::new_unchecked(ip_header).set_checksum(ip_sum.finish());
    let tcp_header = &mut header[ETHERNET_BYTES + IP_BYTES..];
    let bytes = tcp_header.len() + fragments.iter().map(Bytes::len).sum::<usize>();
    let mut sum = Sum::pseudo_header(TCP, source.into(), destination.into(), bytes);
    sum.add(tcp_header);
    for fragment in fragments {
        sum.add(fragment);
    }
    TcpPacket::new_unchecked(tcp_header).set_checksum(sum.finish());
}

/// The protocols' numbers.
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
/// Ethernet header, without a VLAN tag.
pub(crate) const ETHERNET_BYTES: usize = 14;
/// IPv4 header, without options.
pub(crate) const IP_BYTES: usize = 20;
/// Answers, requests and resolved packets that wait for the device's room; packets that ARP let go come on top.
const OUTBOX_PACKETS: usize = 256;
/// ARP requests answered in a second.
const ARP_ANSWERS_A_SECOND: u32 = 1000;
/// Echo requests answered in a second: enough for a flood of pings, not for all that a wire can carry.
const ECHOES_A_SECOND: u32 = 10_000;
/// Errors sent in a second (RFC 1812 4.3.2.8): Linux's icmp_msgs_per_sec.
const REFUSALS_A_SECOND: u32 = 1000;
