//! Ethernet and IP of both versions: parses frames into segments, and builds packets of segments.
//!
//! - [`addresses`]: the interface's addresses and routes; [`six`], [`routers`]: IPv6 addresses and router discovery.
//! - [`arp`], [`ndp`], [`neighbours`]: address resolution.
//! - [`icmp`], [`icmp_six`], [`quoted`]: echoes and errors; [`paths`]: path MTUs.
//! - [`fragments`]: fragmentation and reassembly; [`identifications`]: IPv4 identifications; [`udp`]: datagrams.
//!
//! Packets without a connection (requests, answers, datagrams, and packets that waited for address resolution) wait in
//! the outbox until the stack gives them to the device.
//!
//! Invariant: a packet that [`NetworkLayer::receive`] accepts is complete and addressed to this host. Bytes after its
//! IP length are ignored.

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

pub(crate) use quoted::{IcmpErrorCause, UndeliveredPacket};

use crate::config::Config;
use crate::counters::{HostCounters, IpCounter};
use crate::limit::RateLimit;
use crate::tcp::segment::Segment;
use addresses::InterfaceAddresses;
use bytes::Bytes;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::num::NonZeroU64;
use core::ops::Range;
use fragments::IpFragments;
use icmp::UndeliverableReason;
use identifications::Identifications;
use neighbours::{NeighbourAction, NeighbourTable, NextHop};
use offload_api::rx::Checksums;
use offload_api::{
    EcnCodepoint, FlowKey, Header, LAYERS, PathCaps, Prefix, Protocol, RxMeta, RxPacket, StreamAsk, TxAsk, TxPacket,
};
use offload_base::time::earliest;
use offload_base::{Instant, Seq};
use offload_formats::protocol::{ICMP, ICMPV6, NO_NEXT_HEADER, TCP, UDP};
use offload_formats::{HeaderError, InternetSum, IpHeaders, IpVersion};
use paths::PathMtuTable;
use smallvec::SmallVec;
use smoltcp::wire::{EthernetAddress, EthernetFrame, EthernetProtocol, Ipv4Packet, Ipv6Packet, TcpPacket};
use std::collections::VecDeque;

/// The network layer of an interface.
#[derive(Debug)]
pub(crate) struct NetworkLayer {
    mac: EthernetAddress,
    addresses: InterfaceAddresses,
    neighbours: NeighbourTable,
    paths: PathMtuTable,
    /// Path MTUs reported for datagrams, kept apart from those for TCP. Sent datagrams are not recorded, so a stranger
    /// who knows an open port can forge such a report; it must not affect segments (RFC 5927 7).
    paths_of_datagrams: PathMtuTable,
    fragments: IpFragments,
    outbox: VecDeque<TxPacket>,
    /// Limit of answers to ARP requests and neighbour solicitations.
    address_answers: RateLimit,
    echoes: RateLimit,
    refusals: RateLimit,
    identifications: Identifications,
}

/// Content of a received frame.
#[derive(Debug)]
pub(crate) enum ReceivedContent {
    /// A TCP segment.
    Tcp(ParsedSegment),
    /// A datagram.
    Datagram(ParsedDatagram),
    /// An ICMP error about a sent packet.
    Undelivered(UndeliveredPacket),
}

/// A datagram parsed from a frame.
#[derive(Debug)]
pub(crate) struct ParsedDatagram {
    pub(crate) from: SocketAddr,
    /// Local address and port.
    pub(crate) to: SocketAddr,
    pub(crate) ecn: EcnCodepoint,
    /// Position of the payload in the frame.
    pub(crate) payload: Range<usize>,
}

/// A TCP segment parsed from a frame.
#[derive(Debug)]
pub(crate) struct ParsedSegment {
    /// The flow, from this host's view.
    pub(crate) flow: FlowKey,
    /// The TCP header.
    pub(crate) segment: Segment,
    /// Position of the payload in the frame.
    pub(crate) payload: Range<usize>,
    /// Lowest initial sequence number of a new connection, if the segment is a SYN that replaced a connection in
    /// TIME-WAIT.
    pub(crate) unused_from: Option<Seq>,
}

/// Returns whether a frame concerns every shard of a host: ARP, or ICMP of either version.
pub(crate) fn concerns_all_shards(frame: &[u8]) -> bool {
    let Some(packet) = frame.get(ETHERNET_BYTES..) else { return false };
    match [frame[12], frame[13]] {
        [0x08, 0x06] => true,
        [0x08, 0x00] | [0x86, 0xdd] => IpHeaders::walk(packet)
            .is_ok_and(|headers| headers.fragment.is_none() && matches!(headers.protocol, ICMP | ICMPV6)),
        _ => false,
    }
}

/// A segment to be sent, with its payload and the device's work on it.
#[derive(Debug)]
pub(crate) struct OutgoingSegment<'a> {
    pub(crate) flow: &'a FlowKey,
    pub(crate) segment: &'a Segment,
    pub(crate) fragments: SmallVec<[Bytes; 4]>,
    pub(crate) streams: [Option<StreamAsk>; LAYERS],
    /// IPv4 identification of the first packet cut from this packet.
    pub(crate) ident: u16,
    /// Maximum payload of one packet. The device cuts a longer payload.
    pub(crate) mss: usize,
    /// Whether routers may mark the packet instead of dropping it (RFC 3168 5).
    pub(crate) ecn_capable: bool,
    /// Rate for the device, in bytes per second.
    pub(crate) rate: Option<NonZeroU64>,
}

impl NetworkLayer {
    pub(crate) fn new(config: &Config) -> NetworkLayer {
        let mut neighbours = NeighbourTable::default();
        config.neighbours.iter().for_each(|(address, mac)| neighbours.fix(*address, EthernetAddress(*mac)));
        NetworkLayer {
            mac: EthernetAddress(config.mac),
            addresses: InterfaceAddresses::new(config),
            neighbours,
            paths: PathMtuTable::default(),
            paths_of_datagrams: PathMtuTable::default(),
            fragments: IpFragments::new(config.random.stream("offload-host-stack fragments")),
            outbox: VecDeque::new(),
            address_answers: RateLimit::new(MAX_ADDRESS_ANSWERS_PER_SECOND),
            echoes: RateLimit::new(MAX_ECHOES_PER_SECOND),
            refusals: RateLimit::new(MAX_ERRORS_PER_SECOND)
                .drawn_from(config.random.stream("offload-host-stack refusals")),
            identifications: Identifications::new(config.random.stream("offload-host-stack idents")),
        }
    }

    /// Returns the interface's IPv4 address.
    pub(crate) fn address(&self) -> Ipv4Addr {
        self.addresses.four()
    }

    /// Returns all addresses of the interface.
    pub(crate) fn all_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.all()
    }

    /// Returns the source address for `destination`. `None` if the interface has no address of that IP version.
    pub(crate) fn source_for(&self, destination: IpAddr) -> Option<IpAddr> {
        self.addresses.source_for(destination)
    }

    /// Returns whether `destination` has a route.
    pub(crate) fn reaches(&self, destination: IpAddr) -> bool {
        self.next_hop(destination).is_some()
    }

    /// Returns the Ethernet address of the next hop to `destination`, or starts its resolution and returns `None`.
    pub(crate) fn resolve(&mut self, now: Instant, destination: IpAddr) -> Option<EthernetAddress> {
        match self.neighbours.find(now, self.next_hop(destination)?) {
            NextHop::Known(mac) => Some(mac),
            NextHop::Asked => None,
        }
    }

    pub(crate) fn set_routes(&mut self, routes: Vec<(Prefix, Option<IpAddr>)>) {
        self.addresses.set_routes(routes);
    }

    /// Returns the neighbour that is the next hop to `destination`.
    fn next_hop(&self, destination: IpAddr) -> Option<IpAddr> {
        // Routes do not apply to this host's own addresses.
        let way = if self.addresses.is_own(destination) { destination } else { self.addresses.routed(destination) };
        self.addresses.next_hop(way, self.neighbours.is_fixed(way))
    }

    /// Returns the path MTU for segments to `destination`, where `mtu` is the interface's MTU.
    pub(crate) fn path_mtu(&self, now: Instant, destination: IpAddr, mtu: u16) -> u16 {
        let mtu = self.addresses.link_mtu(destination).map_or(mtu, |of_link| of_link.min(mtu));
        self.paths.find(now, destination).map_or(mtu, |(narrow, _)| narrow.min(mtu))
    }

    /// Returns the path MTU for other packets to `destination`.
    pub(super) fn datagram_path_mtu(&self, now: Instant, destination: IpAddr, mtu: u16) -> u16 {
        let mtu = self.path_mtu(now, destination, mtu);
        self.paths_of_datagrams.find(now, destination).map_or(mtu, |(narrow, _)| narrow.min(mtu))
    }

    /// Processes a report that a packet of `protocol` with `length` bytes exceeded the path MTU to `destination`.
    /// `told` is the reported MTU. Returns the new path MTU, or `None` if the report is implausible.
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

    /// Returns the time of the next timer, at which [`handle_timeouts`](Self::handle_timeouts) must be called.
    pub(crate) fn next_event(&self) -> Option<Instant> {
        let of_packets = earliest(self.neighbours.next_event(), self.fragments.next_event());
        earliest(of_packets, self.addresses.next_event())
    }

    /// Sends the requests that are due and drops expired fragments. Returns the TCP flows with packets dropped because
    /// address resolution failed.
    pub(crate) fn handle_timeouts(&mut self, now: Instant, counters: &mut HostCounters) -> Vec<FlowKey> {
        let mut lost = Vec::new();
        self.configure_six(now, counters);
        // Router discovery comes first, because a new address can be the source of these requests.
        while let Some(due) = self.neighbours.pop_due(now) {
            match due {
                NeighbourAction::Ask { address: IpAddr::V4(address), at } => self.send_request(address, at, counters),
                NeighbourAction::Ask { address: IpAddr::V6(address), at } => self.solicit(address, at, counters),
                NeighbourAction::GiveUp { waiting } => {
                    lost.extend(waiting.iter().filter_map(|packet| flow_of(&packet.header)))
                }
            }
        }
        counters.unresolved_discards += self.neighbours.take_lost();
        self.expire_fragments(now, counters);
        lost
    }

    /// Returns whether datagrams may enter the outbox. Half of the outbox is reserved for answers.
    pub(crate) fn takes_datagrams(&self) -> bool {
        self.outbox.len() < MAX_OUTBOX_PACKETS / 2
    }

    pub(crate) fn has_packets(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Parses a packet for the layers above. Returns `None` if the packet was handled here, or was invalid and counted.
    /// If the packet is the last fragment, it becomes the reassembled packet, for which the device has given no
    /// verdict.
    pub(crate) fn receive(
        &mut self,
        now: Instant,
        received: &mut RxPacket,
        counters: &mut HostCounters,
    ) -> Option<ReceivedContent> {
        self.receive_frame(now, received, true, counters)
    }

    /// Processes a packet that another shard of this host received and answers. This shard only learns, and
    /// sends the packets that waited for an address.
    pub(crate) fn overhear(&mut self, now: Instant, received: &mut RxPacket) -> Option<ReceivedContent> {
        // The receiving shard has counted the packet.
        self.receive_frame(now, received, false, &mut HostCounters::default())
    }

    fn receive_frame(
        &mut self,
        now: Instant,
        received: &mut RxPacket,
        answers: bool,
        counters: &mut HostCounters,
    ) -> Option<ReceivedContent> {
        let Ok(ethernet) = EthernetFrame::new_checked(&received.frame) else {
            counters.ip_in_receives += 1;
            counters.ip_in_header_errors += 1;
            return None;
        };
        let (mine, to) = (ethernet.dst_addr() == self.mac, ethernet.dst_addr());
        // A host without IPv6 treats IPv6 frames as an unknown protocol.
        let version = match ethernet.ethertype() {
            EthernetProtocol::Arp if mine || to.is_broadcast() => {
                self.on_arp(now, ethernet.payload(), answers, counters);
                return None;
            }
            EthernetProtocol::Ipv6 if self.addresses.has_ipv6() => IpVersion::V6,
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
        counters.count(version, IpCounter::InReceives);
        // RFC 2464 7: the Ethernet addresses of IPv6 multicast begin with 33:33.
        let for_many = version == IpVersion::V6 && to.0[..2] == [0x33, 0x33];
        if !(mine || for_many) {
            counters.count(version, IpCounter::InAddressErrors);
            return None;
        }
        match self.receive_packet(now, received, version, false, answers, counters) {
            ReassemblyStep::Whole => match self.receive_packet(now, received, version, true, answers, counters) {
                ReassemblyStep::Arrived(arrival) => Some(arrival),
                ReassemblyStep::Nothing => None,
                ReassemblyStep::Whole => {
                    // A fragment within a fragment: no real host sends one.
                    counters.count(version, IpCounter::InHeaderErrors);
                    None
                }
            },
            ReassemblyStep::Arrived(arrival) => Some(arrival),
            ReassemblyStep::Nothing => None,
        }
    }

    /// Parses one packet. `in_pieces` means that it was reassembled, `answers` that this shard answers it.
    fn receive_packet(
        &mut self,
        now: Instant,
        received: &mut RxPacket,
        version: IpVersion,
        in_pieces: bool,
        answers: bool,
        counters: &mut HostCounters,
    ) -> ReassemblyStep {
        let (checksums, came) = (received.meta.checksums, received.meta.protection);
        let reply = answers.then_some(came);
        let packet = &received.frame[ETHERNET_BYTES..];
        // A joined packet may exceed its length field, so the field is not compared with the packet.
        let parsed = match received.joined {
            Some(_) => IpHeaders::parse_joined(packet),
            None => IpHeaders::parse(packet),
        };
        let headers = match parsed {
            Ok(headers) if headers.version == version => headers,
            Err(HeaderError::Unacceptable(problem)) if version == IpVersion::V6 => {
                counters.count(version, IpCounter::InHeaderErrors);
                let to = Ipv6Packet::new_unchecked(packet).dst_addr();
                if self.addresses.is_own(to.into()) || self.addresses.is_member_of(to) {
                    self.report_problem(now, packet, problem, to.is_multicast(), reply, counters);
                }
                return ReassemblyStep::Nothing;
            }
            _ => {
                counters.count(version, IpCounter::InHeaderErrors);
                return ReassemblyStep::Nothing;
            }
        };
        if version == IpVersion::V4 && checksums == Checksums::Unchecked {
            let mut sum = InternetSum::default();
            sum.add(&packet[..headers.upper]);
            if !sum.is_right() {
                counters.checksum_errors += 1;
                return ReassemblyStep::Nothing;
            }
        }
        // A device reports one verdict on the IPv4 and the transport checksum. A UDP checksum of zero needs a closer
        // look.
        if checksums == Checksums::Bad && headers.protocol != UDP {
            counters.checksum_errors += 1;
            return ReassemblyStep::Nothing;
        }
        let (source, destination) = (headers.source(packet), headers.destination(packet));
        let for_many = matches!(destination, IpAddr::V6(address) if self.addresses.is_member_of(address));
        if !(self.addresses.is_own(destination) || for_many) || !self.may_be_source(source, headers.protocol) {
            counters.count(version, IpCounter::InAddressErrors);
            return ReassemblyStep::Nothing;
        }
        if headers.fragment.is_some() {
            let whole = self.on_fragment(now, &received.frame, version, (came, reply), counters);
            let Some(whole) = whole else { return ReassemblyStep::Nothing };
            *received = RxPacket::new(whole, RxMeta { protection: came, ..RxMeta::default() });
            return ReassemblyStep::Whole;
        }
        let arrival = match (headers.protocol, version) {
            (ICMP, IpVersion::V4) => {
                let IpAddr::V4(source) = source else { return ReassemblyStep::Nothing };
                self.on_icmp(now, source, &packet[headers.upper..headers.end], reply, counters)
            }
            // RFC 6980 5: switches that filter forged discovery messages cannot look into fragments.
            (ICMPV6, IpVersion::V6) if in_pieces && ndp::is_discovery(&packet[headers.upper..headers.end]) => {
                counters.ndp_in_errors += 1;
                // Otherwise the other shards would get the reassembled packet and take it for an unfragmented one.
                received.frame.clear();
                return ReassemblyStep::Nothing;
            }
            (ICMPV6, IpVersion::V6) => self.on_icmp_six(now, packet, &headers, reply, counters),
            _ if for_many => {
                counters.count(version, IpCounter::InAddressErrors);
                None
            }
            // TCP and UDP are unicast here, so the multicast case above precedes them.
            (TCP, _) => self.on_tcp(packet, &headers, checksums, counters),
            (UDP, _) => self.on_udp(packet, &headers, checksums, counters),
            (NO_NEXT_HEADER, IpVersion::V6) => None,
            _ => {
                counters.count(version, IpCounter::InUnknownProtocols);
                self.report_undeliverable(now, &packet[..headers.end], UndeliverableReason::Protocol, reply, counters);
                None
            }
        };
        arrival.map_or(ReassemblyStep::Nothing, ReassemblyStep::Arrived)
    }

    /// Returns whether a packet of `protocol` may come from `address`. A host without an address sends solicitations
    /// from the unspecified address (RFC 4861 7.1.1), and a host that has this host's address reveals it by a packet
    /// (RFC 4862 5.4).
    fn may_be_source(&self, address: IpAddr, protocol: u8) -> bool {
        let of_discovery =
            protocol == ICMPV6 && (address == IpAddr::V6(Ipv6Addr::UNSPECIFIED) || self.addresses.is_own(address));
        of_discovery || self.addresses.may_be_remote_source(address)
    }

    fn on_tcp(
        &self,
        packet: &[u8],
        headers: &IpHeaders,
        checksums: Checksums,
        counters: &mut HostCounters,
    ) -> Option<ReceivedContent> {
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
        // The flow is seen from this host, so source and destination are swapped.
        let local = SocketAddr::new(destination, segment.destination_port);
        let flow = FlowKey::tcp(local, SocketAddr::new(source, segment.source_port));
        let payload = ETHERNET_BYTES + headers.upper + header_bytes..ETHERNET_BYTES + headers.end;
        Some(ReceivedContent::Tcp(ParsedSegment { flow, segment, payload, unused_from: None }))
    }

    /// Builds the packet for a segment. Returns `None` without a route, which is counted, and while the next hop's
    /// address is being resolved; then the packet waits. A packet with a context does not wait, because its stream
    /// would have to answer for it later: it counts as lost and is sent again.
    pub(crate) fn packet(
        &mut self,
        now: Instant,
        outgoing: OutgoingSegment<'_>,
        caps: &PathCaps,
        counters: &mut HostCounters,
    ) -> Option<TxPacket> {
        let OutgoingSegment { flow, segment, fragments, streams, ident, mss, ecn_capable, rate } = outgoing;
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
            // DF is cleared only if the reported MTU was below the accepted minimum, so that routers have to fragment.
            ip.set_checksum(0);
            ip.set_dont_frag(!self.paths.find(now, destination).is_some_and(|(_, may_fragment)| may_fragment));
        }
        if ecn_capable {
            version.set_ecn(&mut header[ETHERNET_BYTES..], ECN_CAPABLE);
        }
        segment.emit(&mut header[tcp_at..]);
        // Without checksum offload the checksums are computed here, over all fragments.
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
        self.set_next_hop(now, destination, TxPacket { header, fragments, ask }, counters)
    }

    /// Records that `address` is at `mac`, and sends the waiting packets.
    fn record(&mut self, now: Instant, address: IpAddr, mac: EthernetAddress, create: bool) {
        for mut packet in self.neighbours.record(now, address, mac, create) {
            EthernetFrame::new_unchecked(&mut packet.header[..]).set_dst_addr(mac);
            self.outbox.push_back(packet);
        }
    }

    /// Sets the next hop's Ethernet address. If it is unknown, the packet waits or is dropped, and the result is
    /// `None`.
    fn set_next_hop(
        &mut self,
        now: Instant,
        destination: IpAddr,
        mut packet: TxPacket,
        counters: &mut HostCounters,
    ) -> Option<TxPacket> {
        let version = IpVersion::of_address(&destination);
        let Some(next_hop) = self.next_hop(destination) else {
            counters.count(version, IpCounter::OutNoRoutes);
            return None;
        };
        counters.count(version, IpCounter::OutRequests);
        match self.neighbours.find(now, next_hop) {
            NextHop::Known(mac) => {
                EthernetFrame::new_unchecked(&mut packet.header[..]).set_dst_addr(mac);
                Some(packet)
            }
            NextHop::Asked => {
                // A waiting packet would hold references into a stream that can be released meanwhile.
                if !packet.ask.has_context() {
                    self.neighbours.queue(next_hop, packet);
                } else {
                    counters.unresolved_discards += 1;
                }
                None
            }
        }
    }

    /// Writes the Ethernet and IP headers for `bytes` payload bytes, without the next hop's address. A packet that the
    /// device cuts may exceed the length field.
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
            _ => debug_assert!(false, "both ends of a flow must have the same IP version"),
        }
        let version = IpVersion::of_address(&destination);
        version.set_length(&mut header[ETHERNET_BYTES..], version.header_bytes() + bytes);
    }

    /// Sends a packet without a connection to `destination`, and completes its IPv4 header.
    fn answer(&mut self, now: Instant, destination: IpAddr, mut packet: TxPacket, counters: &mut HostCounters) {
        if let IpAddr::V4(to) = destination {
            // The packet may be fragmented, so it needs a unique identification. Packets cut by the device count on
            // from the first one's.
            let packets = packet.ask.mss.map_or(1, |bytes| packet.payload_len().div_ceil(usize::from(bytes)));
            let ip = &mut packet.header[ETHERNET_BYTES..ETHERNET_BYTES + IpVersion::V4.header_bytes()];
            let mut ip = Ipv4Packet::new_unchecked(ip);
            ip.set_ident(self.identifications.next(ip.src_addr(), to, ip.next_header().into(), packets as u16));
            ip.fill_checksum();
        }
        if let Some(packet) = self.set_next_hop(now, destination, packet, counters) {
            self.post(packet, counters);
        }
    }

    /// Puts a packet into the outbox. If the outbox is full, the packet is dropped and counted.
    fn post(&mut self, packet: TxPacket, counters: &mut HostCounters) {
        if self.outbox.len() < MAX_OUTBOX_PACKETS {
            self.outbox.push_back(packet);
        } else {
            counters.answers_dropped += 1;
        }
    }
}

/// Result of parsing a packet.
enum ReassemblyStep {
    /// Content for the layers above.
    Arrived(ReceivedContent),
    /// The packet was the last missing fragment, and is now the reassembled packet.
    Whole,
    Nothing,
}

/// Returns the flow of a TCP packet built by this host.
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

/// Length of an Ethernet header without VLAN tag.
pub(crate) const ETHERNET_BYTES: usize = 14;
/// Hop limit of sent packets.
const HOP_LIMIT: u8 = 64;
/// ECT(0) and CE (RFC 3168 5).
const ECN_CAPABLE: u8 = 0b10;
const CONGESTION_EXPERIENCED: u8 = 0b11;
/// Capacity of the outbox. Packets released by address resolution, and fragments of one packet, may exceed it.
const MAX_OUTBOX_PACKETS: usize = 256;
/// Maximum number of answered ARP requests and neighbour solicitations per second.
const MAX_ADDRESS_ANSWERS_PER_SECOND: u32 = 1000;
/// Maximum number of answered echo requests per second: enough for a flood ping, but not for a full link.
const MAX_ECHOES_PER_SECOND: u32 = 10_000;
/// Maximum number of ICMP errors sent per second (RFC 1812 4.3.2.8): Linux's icmp_msgs_per_sec.
const MAX_ERRORS_PER_SECOND: u32 = 1000;
