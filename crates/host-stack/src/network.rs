//! Ethernet and IPv4: from a frame to the TCP segment in it, and from a segment to a packet for the device.
//!
//! Invariant: what [`Network::parse`] lets through is a whole, unfragmented TCP/IPv4 packet for this host, and
//! nothing behind its IP length is looked at.

use crate::checksum::Sum;
use crate::config::Config;
use crate::counters::HostCounters;
use crate::tcp::segment::Segment;
use bytes::Bytes;
use core::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use core::ops::Range;
use offload_api::rx::Checksums;
use offload_api::{FlowKey, Handle, Header, PathCaps, TxAsk, TxPacket};
use smallvec::SmallVec;
use smoltcp::wire::{EthernetAddress, EthernetFrame, EthernetProtocol, IpProtocol, Ipv4Packet, TcpPacket};

/// The interface's addresses and whom it reaches.
#[derive(Debug)]
pub(crate) struct Network {
    mac: EthernetAddress,
    address: Ipv4Addr,
    /// Sorted by address.
    neighbours: Vec<(Ipv4Addr, EthernetAddress)>,
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
        let mut neighbours: Vec<_> =
            config.neighbours.iter().map(|(address, mac)| (*address, EthernetAddress(*mac))).collect();
        neighbours.sort_unstable();
        neighbours.dedup_by_key(|(address, _)| *address);
        Network { mac: EthernetAddress(config.mac), address: config.address, neighbours }
    }

    pub(crate) fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Whether packets for `destination` can be sent at all.
    pub(crate) fn reaches(&self, destination: IpAddr) -> bool {
        matches!(destination, IpAddr::V4(address) if self.next_hop(address).is_some())
    }

    fn next_hop(&self, destination: Ipv4Addr) -> Option<EthernetAddress> {
        let found = self.neighbours.binary_search_by_key(&destination, |(address, _)| *address).ok()?;
        Some(self.neighbours[found].1)
    }

    /// Finds the TCP segment in a frame; `None`, and counted, if it is not one for this host.
    pub(crate) fn parse(&self, frame: &[u8], checksums: Checksums, counters: &mut HostCounters) -> Option<Parsed> {
        counters.ip_in_receives += 1;
        let Ok(ethernet) = EthernetFrame::new_checked(frame) else {
            counters.ip_in_header_errors += 1;
            return None;
        };
        if ethernet.dst_addr() != self.mac {
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
        if ip.next_header() != IpProtocol::Tcp {
            counters.ip_in_unknown_protocols += 1;
            return None;
        }
        let start = EthernetFrame::<&[u8]>::header_len() + usize::from(ip.header_len());
        let end = EthernetFrame::<&[u8]>::header_len() + usize::from(ip.total_len());
        let destination = ip.dst_addr();
        if checksums == Checksums::Unchecked {
            let mut sum = Sum::pseudo_header(source, destination, end - start);
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
        Some(Parsed { flow, segment, payload: start + header_bytes..end })
    }

    /// The packet for a segment; `None`, and counted, if there is no way to its destination.
    pub(crate) fn packet(
        &self,
        outgoing: Outgoing<'_>,
        caps: &PathCaps,
        counters: &mut HostCounters,
    ) -> Option<TxPacket> {
        let Outgoing { flow, segment, fragments, context, ident, mss } = outgoing;
        let (IpAddr::V4(source), IpAddr::V4(destination)) = (flow.local.ip(), flow.remote.ip()) else {
            counters.ip_out_no_routes += 1;
            return None;
        };
        let Some(next_hop) = self.next_hop(destination) else {
            counters.ip_out_no_routes += 1;
            return None;
        };
        let payload_bytes: usize = fragments.iter().map(Bytes::len).sum();
        let tcp_bytes = segment.header_bytes();
        let mut header = Header::from_elem(0, ETHERNET_BYTES + IP_BYTES + tcp_bytes);
        let mut ethernet = EthernetFrame::new_unchecked(&mut header[..]);
        ethernet.set_dst_addr(next_hop);
        ethernet.set_src_addr(self.mac);
        ethernet.set_ethertype(EthernetProtocol::Ipv4);
        let mut ip = Ipv4Packet::new_unchecked(&mut header[ETHERNET_BYTES..]);
        ip.set_version(4);
        ip.set_header_len(IP_BYTES as u8);
        ip.set_total_len((IP_BYTES + tcp_bytes + payload_bytes) as u16);
        ip.set_ident(ident);
        ip.set_dont_frag(true);
        ip.set_hop_limit(64);
        ip.set_next_header(IpProtocol::Tcp);
        ip.set_src_addr(source);
        ip.set_dst_addr(destination);
        segment.emit(&mut header[ETHERNET_BYTES + IP_BYTES..]);
        if !caps.checksum {
            fill_checksums(&mut header, source, destination, &fragments);
        }
        counters.ip_out_requests += 1;
        let ask = TxAsk {
            seq: segment.seq + u32::from(segment.flags.syn),
            context,
            checksum: caps.checksum,
            mss: (payload_bytes > mss).then_some(mss as u16),
        };
        Some(TxPacket { header, fragments, ask })
    }
}

fn fill_checksums(header: &mut [u8], source: Ipv4Addr, destination: Ipv4Addr, fragments: &[Bytes]) {
    let ip_header = &mut header[ETHERNET_BYTES..ETHERNET_BYTES + IP_BYTES];
    let mut ip_sum = Sum::default();
    ip_sum.add(ip_header);
    Ipv4Packet::new_unchecked(ip_header).set_checksum(ip_sum.finish());
    let tcp_header = &mut header[ETHERNET_BYTES + IP_BYTES..];
    let bytes = tcp_header.len() + fragments.iter().map(Bytes::len).sum::<usize>();
    let mut sum = Sum::pseudo_header(source, destination, bytes);
    sum.add(tcp_header);
    for fragment in fragments {
        sum.add(fragment);
    }
    TcpPacket::new_unchecked(tcp_header).set_checksum(sum.finish());
}

/// Ethernet header, without a VLAN tag.
pub(crate) const ETHERNET_BYTES: usize = 14;
/// IPv4 header, without options.
pub(crate) const IP_BYTES: usize = 20;
