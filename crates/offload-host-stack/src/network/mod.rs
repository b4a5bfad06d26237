//! Ethernet and IP of both versions: from a frame to the segment in it, and from a segment to a packet for the device.
//!
//! - [`addresses`]: what the interface is called, and whom it reaches how;
//! - [`six`], [`routers`]: IPv6 addresses of its own, and what routers say;
//! - [`arp`], [`ndp`], [`neighbours`]: which Ethernet address the next hop has;
//! - [`icmp`], [`icmp_six`], [`quoted`]: echoes, errors in and out; [`paths`]: how large a packet may be;
//! - [`fragments`]: packets in pieces; [`identifications`]: what IPv4 tells them apart by; [`udp`]: datagrams.
//!
//! What leaves of its own accord (requests, answers, packets whose next hop is known at last) waits in the outbox
//! until the stack hands it to the device.
//!
//! Invariant: what [`Network::receive`] lets through is a whole packet for this host, and nothing behind its IP length
//! is looked at.

mod addresses;
mod arp;
mod fragments;
mod icmp;
mod icmp_six;
mod identifications;
mod ndp;
mod neighbours;
mod paths;
mod quoted;
mod routers;
mod six;
mod udp;

pub(crate) use quoted::{Undelivered, Why};

use crate::config::Config;
use crate::counters::{HostCounters, Ip};
use crate::limit::RateLimit;
use crate::tcp::segment::Segment;
use addresses::Addresses;
use bytes::Bytes;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::num::NonZeroU64;
use core::ops::Range;
use fragments::Fragments;
use icmp::Refusal;
use identifications::Identifications;
use neighbours::{Due, Hop, Neighbours};
use offload_api::rx::Checksums;
use offload_api::{
    EcnCodepoint, FlowKey, Header, LAYERS, PathCaps, Prefix, Protocol, RxMeta, RxPacket, StreamAsk, TxAsk, TxPacket,
};
use offload_base::time::earliest;
use offload_base::{Instant, Seq};
use offload_formats::protocol::{ICMP, ICMPV6, NO_NEXT_HEADER, TCP, UDP};
use offload_formats::{HeaderError, InternetSum, IpHeaders, IpVersion};
use paths::Paths;
use smallvec::SmallVec;
use smoltcp::wire::{EthernetAddress, EthernetFrame, EthernetProtocol, Ipv4Packet, Ipv6Packet, TcpPacket};
use std::collections::VecDeque;

/// The interface's addresses and whom it reaches.
#[derive(Debug)]
pub(crate) struct Network {
    mac: EthernetAddress,
    addresses: Addresses,
    neighbours: Neighbours,
    paths: Paths,
    /// What was said of datagrams, of which nothing is remembered: anybody who knows an open port can say it, and no segment
    /// gets smaller for that (RFC 5927 7).
    paths_of_datagrams: Paths,
    fragments: Fragments,
    outbox: VecDeque<TxPacket>,
    /// To ARP requests and neighbour solicitations.
    address_answers: RateLimit,
    echoes: RateLimit,
    refusals: RateLimit,
    identifications: Identifications,
}

/// What came in a frame.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// A TCP segment.
    Tcp(Parsed),
    /// A datagram for `port`.
    Datagram(ParsedDatagram),
    /// Word of a packet that did not get through.
    Undelivered(Undelivered),
}

/// A datagram found in a frame.
#[derive(Debug)]
pub(crate) struct ParsedDatagram {
    pub(crate) from: SocketAddr,
    /// The address and port of this host.
    pub(crate) to: SocketAddr,
    pub(crate) ecn: EcnCodepoint,
    /// Where in the frame the payload lies.
    pub(crate) payload: Range<usize>,
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
    /// A SYN of a flow that was open before, and waited out its end until this came: where the numbers begin that it
    /// did not use.
    pub(crate) unused_from: Option<Seq>,
}

/// Whether a frame is of interest to every shard of a host, not to one connection's alone: ARP, and ICMP of both
/// kinds.
pub(crate) fn concerns_all_shards(frame: &[u8]) -> bool {
    let Some(packet) = frame.get(ETHERNET_BYTES..) else { return false };
    match [frame[12], frame[13]] {
        [0x08, 0x06] => true,
        [0x08, 0x00] | [0x86, 0xdd] => IpHeaders::walk(packet)
            .is_ok_and(|headers| headers.fragment.is_none() && matches!(headers.protocol, ICMP | ICMPV6)),
        _ => false,
    }
}

/// A segment to be sent, with its payload and what the device is to do.
#[derive(Debug)]
pub(crate) struct Outgoing<'a> {
    pub(crate) flow: &'a FlowKey,
    pub(crate) segment: &'a Segment,
    pub(crate) fragments: SmallVec<[Bytes; 4]>,
    pub(crate) streams: [Option<StreamAsk>; LAYERS],
    /// The identification of the first packet cut from this one; IPv6 has none.
    pub(crate) ident: u16,
    /// The most payload bytes a packet may have; a longer payload is for the device to cut.
    pub(crate) mss: usize,
    /// Routers may mark the packet rather than drop it (RFC 3168 5).
    pub(crate) ecn_capable: bool,
    /// Bytes a second that the device is to keep the flow to, if it can.
    pub(crate) rate: Option<NonZeroU64>,
}

impl Network {
    pub(crate) fn new(config: &Config) -> Network {
        let mut neighbours = Neighbours::default();
        config.neighbours.iter().for_each(|(address, mac)| neighbours.fix(*address, EthernetAddress(*mac)));
        Network {
            mac: EthernetAddress(config.mac),
            addresses: Addresses::new(config),
            neighbours,
            paths: Paths::default(),
            paths_of_datagrams: Paths::default(),
            fragments: Fragments::new(config.random.stream("offload-host-stack fragments")),
            outbox: VecDeque::new(),
            address_answers: RateLimit::new(ADDRESS_ANSWERS_A_SECOND),
            echoes: RateLimit::new(ECHOES_A_SECOND),
            refusals: RateLimit::new(REFUSALS_A_SECOND).drawn_from(config.random.stream("offload-host-stack refusals")),
            identifications: Identifications::new(config.random.stream("offload-host-stack idents")),
        }
    }

    /// The interface's IPv4 address.
    pub(crate) fn address(&self) -> Ipv4Addr {
        self.addresses.four()
    }

    /// All addresses of the interface.
    pub(crate) fn all_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.all()
    }

    /// The address under which `destination` is spoken to, if the interface has one of its kind.
    pub(crate) fn source_for(&self, destination: IpAddr) -> Option<IpAddr> {
        self.addresses.source_for(destination)
    }

    /// Whether packets for `destination` can be sent at all.
    pub(crate) fn reaches(&self, destination: IpAddr) -> bool {
        self.next_hop(destination).is_some()
    }

    /// The Ethernet address to which packets for `destination` go; if it is not known, it is asked for from now on.
    pub(crate) fn resolve(&mut self, now: Instant, destination: IpAddr) -> Option<EthernetAddress> {
        match self.neighbours.find(now, self.next_hop(destination)?) {
            Hop::Known(mac) => Some(mac),
            Hop::Asked => None,
        }
    }

    pub(crate) fn set_routes(&mut self, routes: Vec<(Prefix, Option<IpAddr>)>) {
        self.addresses.set_routes(routes);
    }

    /// The neighbour to which packets for `destination` go.
    fn next_hop(&self, destination: IpAddr) -> Option<IpAddr> {
        // This host's own addresses are nobody else's way.
        let way = if self.addresses.are(destination) { destination } else { self.addresses.routed(destination) };
        self.addresses.next_hop(way, self.neighbours.is_fixed(way))
    }

    /// The largest packet with a segment that may be sent to `destination` where the interface takes `mtu`.
    pub(crate) fn path_mtu(&self, now: Instant, destination: IpAddr, mtu: u16) -> u16 {
        let mtu = self.addresses.link_mtu(destination).map_or(mtu, |of_link| of_link.min(mtu));
        self.paths.find(now, destination).map_or(mtu, |(narrow, _)| narrow.min(mtu))
    }

    /// The same of any other packet.
    pub(super) fn path_mtu_of_datagrams(&self, now: Instant, destination: IpAddr, mtu: u16) -> u16 {
        let mtu = self.path_mtu(now, destination, mtu);
        self.paths_of_datagrams.find(now, destination).map_or(mtu, |(narrow, _)| narrow.min(mtu))
    }

    /// A packet of `protocol`, of `length` bytes, was too large for the path to `destination`, which is `told` to take
    /// `mtu`. Returns what will be believed.
    pub(crate) fn narrow_path(
        &mut self,
        now: Instant,
        protocol: Protocol,
        destination: IpAddr,
        length: u16,
        told: u16,
    ) -> Option<u16> {
        let paths = match protocol {
            Protocol::Tcp => &mut self.paths,
            _ => &mut self.paths_of_datagrams,
        };
        paths.narrow(now, destination, length, told)
    }

    /// When [`handle_timeouts`](Self::handle_timeouts) wants to be called.
    pub(crate) fn next_event(&self) -> Option<Instant> {
        let of_packets = earliest(self.neighbours.next_event(), self.fragments.next_event());
        earliest(of_packets, self.addresses.next_event())
    }

    /// Asks for the addresses that are due, and gives up fragments whose time is over. Returns the TCP flows whose
    /// packets go nowhere, for nobody answered.
    pub(crate) fn handle_timeouts(&mut self, now: Instant, counters: &mut HostCounters) -> Vec<FlowKey> {
        let mut lost = Vec::new();
        self.configure_six(now, counters);
        while let Some(due) = self.neighbours.pop_due(now) {
            match due {
                Due::Ask { address: IpAddr::V4(address), at } => self.ask(address, at, counters),
                Due::Ask { address: IpAddr::V6(address), at } => self.solicit(address, at, counters),
                Due::GiveUp { waiting } => lost.extend(waiting.iter().filter_map(|packet| flow_of(&packet.header))),
            }
        }
        counters.unresolved_discards += self.neighbours.take_lost();
        self.expire_fragments(now, counters);
        lost
    }

    /// Whether datagrams find space in the outbox: half of it is for answers.
    pub(crate) fn takes_datagrams(&self) -> bool {
        self.outbox.len() < OUTBOX_PACKETS / 2
    }

    pub(crate) fn has_mail(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Finds what a packet holds for the layers above; `None`, and answered or counted, if it is nothing for them. A
    /// fragment that was the last to come becomes the whole, of which the device has said nothing.
    pub(crate) fn receive(
        &mut self,
        now: Instant,
        received: &mut RxPacket,
        counters: &mut HostCounters,
    ) -> Option<Arrival> {
        self.take_in(now, received, true, counters)
    }

    /// Takes in a packet that another shard of this host has received and answers. This shard learns from the packet, and
    /// sends only the packets that waited for an address.
    pub(crate) fn overhear(&mut self, now: Instant, received: &mut RxPacket) -> Option<Arrival> {
        // The shard that received the packet has counted it.
        self.take_in(now, received, false, &mut HostCounters::default())
    }

    fn take_in(
        &mut self,
        now: Instant,
        received: &mut RxPacket,
        answers: bool,
        counters: &mut HostCounters,
    ) -> Option<Arrival> {
        let Ok(ethernet) = EthernetFrame::new_checked(&received.frame) else {
            counters.ip_in_receives += 1;
            counters.ip_in_header_errors += 1;
            return None;
        };
        let (mine, to) = (ethernet.dst_addr() == self.mac, ethernet.dst_addr());
        let version = match ethernet.ethertype() {
            EthernetProtocol::Arp if mine || to.is_broadcast() => {
                self.on_arp(now, ethernet.payload(), answers, counters);
                return None;
            }
            EthernetProtocol::Ipv6 if self.addresses.speaks_six() => IpVersion::V6,
            EthernetProtocol::Ipv4 => IpVersion::V4,
            _ => {
                counters.ip_in_receives += 1;
                match mine {
                    true => counters.ip_in_unknown_protocols += 1,
                    false => counters.ip_in_address_errors += 1,
                }
                return None;
            }
        };
        counters.count(version, Ip::InReceives);
        // RFC 2464 7: what is for many has an address that begins like this.
        let for_many = version == IpVersion::V6 && to.0[..2] == [0x33, 0x33];
        if !(mine || for_many) {
            counters.count(version, Ip::InAddressErrors);
            return None;
        }
        match self.receive_packet(now, received, version, false, answers, counters) {
            Step::Whole => match self.receive_packet(now, received, version, true, answers, counters) {
                Step::Arrived(arrival) => Some(arrival),
                Step::Nothing => None,
                Step::Whole => {
                    // A fragment within a fragment: nobody sends such in earnest.
                    counters.count(version, Ip::InHeaderErrors);
                    None
                }
            },
            Step::Arrived(arrival) => Some(arrival),
            Step::Nothing => None,
        }
    }

    /// `in_pieces`: the packet came in fragments. `answers`: this shard answers the packet.
    fn receive_packet(
        &mut self,
        now: Instant,
        received: &mut RxPacket,
        version: IpVersion,
        in_pieces: bool,
        answers: bool,
        counters: &mut HostCounters,
    ) -> Step {
        let (checksums, came) = (received.meta.checksums, received.meta.protection);
        let reply = answers.then_some(came);
        let packet = &received.frame[ETHERNET_BYTES..];
        let parsed = match received.joined {
            Some(_) => IpHeaders::parse_joined(packet),
            None => IpHeaders::parse(packet),
        };
        let headers = match parsed {
            Ok(headers) if headers.version == version => headers,
            Err(HeaderError::Unacceptable(problem)) if version == IpVersion::V6 => {
                counters.count(version, Ip::InHeaderErrors);
                let to = Ipv6Packet::new_unchecked(packet).dst_addr();
                if self.addresses.are(to.into()) || self.addresses.are_among(to) {
                    self.report_problem(now, packet, problem, to.is_multicast(), reply, counters);
                }
                return Step::Nothing;
            }
            _ => {
                counters.count(version, Ip::InHeaderErrors);
                return Step::Nothing;
            }
        };
        if version == IpVersion::V4 && checksums == Checksums::Unchecked {
            let mut sum = InternetSum::default();
            sum.add(&packet[..headers.upper]);
            if !sum.is_right() {
                counters.checksum_errors += 1;
                return Step::Nothing;
            }
        }
        // A device that says "bad" speaks of IPv4's header or of the transport's; who cares which.
        if checksums == Checksums::Bad && headers.protocol != UDP {
            counters.checksum_errors += 1;
            return Step::Nothing;
        }
        let (source, destination) = (headers.source(packet), headers.destination(packet));
        let for_many = matches!(destination, IpAddr::V6(address) if self.addresses.are_among(address));
        if !(self.addresses.are(destination) || for_many) || !self.may_be_source(source, headers.protocol) {
            counters.count(version, Ip::InAddressErrors);
            return Step::Nothing;
        }
        if headers.fragment.is_some() {
            let whole = self.on_fragment(now, &received.frame, version, (came, reply), counters);
            let Some(whole) = whole else { return Step::Nothing };
            *received = RxPacket::new(whole, RxMeta { protection: came, ..RxMeta::default() });
            return Step::Whole;
        }
        let arrival = match (headers.protocol, version) {
            (ICMP, IpVersion::V4) => {
                let IpAddr::V4(source) = source else { return Step::Nothing };
                self.on_icmp(now, source, &packet[headers.upper..headers.end], reply, counters)
            }
            // RFC 6980 5: switches that keep forged ones out do not see what is in fragments.
            (ICMPV6, IpVersion::V6) if in_pieces && ndp::is_discovery(&packet[headers.upper..headers.end]) => {
                counters.ndp_in_errors += 1;
                // Put together, other shards would take it for a whole one.
                received.frame.clear();
                return Step::Nothing;
            }
            (ICMPV6, IpVersion::V6) => self.on_icmp_six(now, packet, &headers, reply, counters),
            _ if for_many => {
                counters.count(version, Ip::InAddressErrors);
                None
            }
            (TCP, _) => self.on_tcp(packet, &headers, checksums, counters),
            (UDP, _) => self.on_udp(packet, &headers, checksums, counters),
            (NO_NEXT_HEADER, IpVersion::V6) => None,
            _ => {
                counters.count(version, Ip::InUnknownProtocols);
                self.refuse(now, &packet[..headers.end], Refusal::Protocol, reply, counters);
                None
            }
        };
        arrival.map_or(Step::Nothing, Step::Arrived)
    }

    /// Whether a packet of `protocol` may come from `address`. Neighbours are solicited by one who has no address yet (RFC
    /// 4861 7.1.1), and who has this host's address says so by that (RFC 4862 5.4).
    fn may_be_source(&self, address: IpAddr, protocol: u8) -> bool {
        let of_discovery =
            protocol == ICMPV6 && (address == IpAddr::V6(Ipv6Addr::UNSPECIFIED) || self.addresses.are(address));
        of_discovery || self.addresses.may_be_others(address)
    }

    fn on_tcp(
        &self,
        packet: &[u8],
        headers: &IpHeaders,
        checksums: Checksums,
        counters: &mut HostCounters,
    ) -> Option<Arrival> {
        let (source, destination) = (headers.source(packet), headers.destination(packet));
        let bytes = &packet[headers.upper..headers.end];
        if checksums == Checksums::Unchecked {
            let mut sum = InternetSum::pseudo_header(TCP, source, destination, bytes.len());
            sum.add(bytes);
            if !sum.is_right() {
                counters.checksum_errors += 1;
                return None;
            }
        }
        counters.in_segments += 1;
        let Some((mut segment, header_bytes)) = Segment::parse(bytes) else {
            counters.in_errors += 1;
            return None;
        };
        segment.marked = headers.ecn(packet) == CONGESTION_EXPERIENCED;
        let local = SocketAddr::new(destination, segment.destination_port);
        let flow = FlowKey::tcp(local, SocketAddr::new(source, segment.source_port));
        let payload = ETHERNET_BYTES + headers.upper + header_bytes..ETHERNET_BYTES + headers.end;
        Some(Arrival::Tcp(Parsed { flow, segment, payload, unused_from: None }))
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
        let Outgoing { flow, segment, fragments, streams, ident, mss, ecn_capable, rate } = outgoing;
        let (source, destination) = (flow.local.ip(), flow.remote.ip());
        let version = IpVersion::of_address(&destination);
        let payload_bytes: usize = fragments.iter().map(Bytes::len).sum();
        let tcp_at = ETHERNET_BYTES + version.header_bytes();
        let tcp_bytes = segment.header_bytes();
        let mut header = Header::from_elem(0, tcp_at + tcp_bytes);
        self.write_ip(&mut header, source, destination, TCP, tcp_bytes + payload_bytes);
        if version == IpVersion::V4 {
            let mut ip = Ipv4Packet::new_unchecked(&mut header[ETHERNET_BYTES..]);
            ip.set_ident(ident);
            ip.set_checksum(0);
            ip.set_dont_frag(!self.paths.find(now, destination).is_some_and(|(_, may_fragment)| may_fragment));
        }
        if ecn_capable {
            version.set_ecn(&mut header[ETHERNET_BYTES..], ECN_CAPABLE);
        }
        segment.emit(&mut header[tcp_at..]);
        if !caps.checksum {
            fill_checksums(&mut header, version, source, destination, &fragments);
        }
        let ask = TxAsk {
            seq: segment.seq + u32::from(segment.flags.syn),
            streams,
            checksum: caps.checksum,
            mss: (payload_bytes > mss).then_some(mss as u16),
            rate: rate.filter(|_| caps.pacing),
            ..TxAsk::default()
        };
        self.address_to(now, destination, TxPacket { header, fragments, ask }, counters)
    }

    /// `address` was heard of at `mac`. What waited for that is sent.
    fn learn(&mut self, now: Instant, address: IpAddr, mac: EthernetAddress, create: bool) {
        for mut packet in self.neighbours.learn(now, address, mac, create) {
            EthernetFrame::new_unchecked(&mut packet.header[..]).set_dst_addr(mac);
            self.outbox.push_back(packet);
        }
    }

    /// Puts the next hop's address on `packet`; keeps it if that is not known.
    fn address_to(
        &mut self,
        now: Instant,
        destination: IpAddr,
        mut packet: TxPacket,
        counters: &mut HostCounters,
    ) -> Option<TxPacket> {
        let version = IpVersion::of_address(&destination);
        let Some(next_hop) = self.next_hop(destination) else {
            counters.count(version, Ip::OutNoRoutes);
            return None;
        };
        counters.count(version, Ip::OutRequests);
        match self.neighbours.find(now, next_hop) {
            Hop::Known(mac) => {
                EthernetFrame::new_unchecked(&mut packet.header[..]).set_dst_addr(mac);
                Some(packet)
            }
            Hop::Asked => {
                if !packet.ask.has_context() {
                    self.neighbours.keep(next_hop, packet);
                } else {
                    counters.unresolved_discards += 1;
                }
                None
            }
        }
    }

    /// Writes Ethernet and IP headers for `bytes` bytes of what comes behind them, but for the next hop's address. Of what
    /// the device cuts, there may be more than the length tells.
    fn write_ip(&self, header: &mut [u8], source: IpAddr, destination: IpAddr, protocol: u8, bytes: usize) {
        let mut ethernet = EthernetFrame::new_unchecked(&mut header[..]);
        ethernet.set_src_addr(self.mac);
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                ethernet.set_ethertype(EthernetProtocol::Ipv4);
                let mut ip = Ipv4Packet::new_unchecked(&mut header[ETHERNET_BYTES..]);
                let header_bytes = IpVersion::V4.header_bytes();
                ip.set_version(4);
                ip.set_header_len(header_bytes as u8);
                ip.set_hop_limit(HOP_LIMIT);
                ip.set_next_header(protocol.into());
                ip.set_src_addr(source);
                ip.set_dst_addr(destination);
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                ethernet.set_ethertype(EthernetProtocol::Ipv6);
                let mut ip = Ipv6Packet::new_unchecked(&mut header[ETHERNET_BYTES..]);
                ip.set_version(6);
                ip.set_hop_limit(HOP_LIMIT);
                ip.set_next_header(protocol.into());
                ip.set_src_addr(source);
                ip.set_dst_addr(destination);
            }
            _ => debug_assert!(false, "both ends of a flow speak one IP"),
        }
        let version = IpVersion::of_address(&destination);
        version.set_length(&mut header[ETHERNET_BYTES..], version.header_bytes() + bytes);
    }

    /// Sends what belongs to no connection to `destination`, an IPv4 header finished here.
    fn answer(&mut self, now: Instant, destination: IpAddr, mut packet: TxPacket, counters: &mut HostCounters) {
        if let IpAddr::V4(to) = destination {
            // It may be fragmented, so its identification must tell it from others. Of several that the device cuts, each
            // has its own, counted from the first one's.
            let packets = packet.ask.mss.map_or(1, |bytes| packet.payload_len().div_ceil(usize::from(bytes)));
            let ip = &mut packet.header[ETHERNET_BYTES..ETHERNET_BYTES + IpVersion::V4.header_bytes()];
            let mut ip = Ipv4Packet::new_unchecked(ip);
            ip.set_ident(self.identifications.next(ip.src_addr(), to, ip.next_header().into(), packets as u16));
            ip.fill_checksum();
        }
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

/// How far a packet has got.
enum Step {
    /// To the layers above.
    Arrived(Arrival),
    /// It was the last fragment that was missing, and is the whole now.
    Whole,
    Nothing,
}

/// The flow of a TCP packet that this host has made.
fn flow_of(header: &[u8]) -> Option<FlowKey> {
    let packet = header.get(ETHERNET_BYTES..)?;
    let headers = IpHeaders::walk(packet).ok().filter(|headers| headers.protocol == TCP)?;
    let ports = packet.get(headers.upper..headers.upper + 4)?;
    let port = |at: usize| u16::from_be_bytes([ports[at], ports[at + 1]]);
    let local = SocketAddr::new(headers.source(packet), port(0));
    Some(FlowKey::tcp(local, SocketAddr::new(headers.destination(packet), port(2))))
}

fn fill_checksums(header: &mut [u8], version: IpVersion, source: IpAddr, destination: IpAddr, fragments: &[Bytes]) {
    let (in_front, tcp_header) = header.split_at_mut(ETHERNET_BYTES + version.header_bytes());
    if version == IpVersion::V4 {
        Ipv4Packet::new_unchecked(&mut in_front[ETHERNET_BYTES..]).fill_checksum();
    }
    let bytes = tcp_header.len() + fragments.iter().map(Bytes::len).sum::<usize>();
    let mut sum = InternetSum::pseudo_header(TCP, source, destination, bytes);
    sum.add(tcp_header);
    for fragment in fragments {
        sum.add(fragment);
    }
    TcpPacket::new_unchecked(tcp_header).set_checksum(sum.finish());
}

/// Ethernet header, without a VLAN tag.
pub(crate) const ETHERNET_BYTES: usize = 14;
/// Routers that a packet may pass.
const HOP_LIMIT: u8 = 64;
/// RFC 3168 5: ECT(0), and CE.
const ECN_CAPABLE: u8 = 0b10;
const CONGESTION_EXPERIENCED: u8 = 0b11;
/// Answers, requests and resolved packets that wait for the device's room; packets that the answer to a question lets
/// go come on top, and fragments of one packet.
const OUTBOX_PACKETS: usize = 256;
/// Questions for this host's Ethernet address answered in a second.
const ADDRESS_ANSWERS_A_SECOND: u32 = 1000;
/// Echo requests answered in a second: enough for a flood of pings, not for all that a wire can carry.
const ECHOES_A_SECOND: u32 = 10_000;
/// Errors sent in a second (RFC 1812 4.3.2.8): Linux's icmp_msgs_per_sec.
const REFUSALS_A_SECOND: u32 = 1000;
