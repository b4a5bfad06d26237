//! The IP headers of a packet, as ESP and IPsec policies use them.
//!
//! Invariant: the offsets of a view lie in the parsed bytes.

use crate::checksum::fill_ipv4_header;
use crate::frame::{ETHERNET_BYTES, Headers};
use crate::ip::{IpHeaders, IpVersion, is_extension};
use crate::number;
use crate::protocol::{DCCP, ICMPV6, SCTP, TCP, UDP, UDP_LITE};
use core::net::IpAddr;

/// The parsed fields and offsets of an IP packet.
///
/// ```
/// use offload_formats::IpView;
///
/// let mut packet = vec![0x45, 0, 0, 28, 0, 1, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
/// packet.extend_from_slice(&[0x13, 0x88, 0, 53, 0, 8, 0, 0]);
/// let view = IpView::parse(&packet).unwrap();
/// assert_eq!((view.header, view.total, view.protocol, view.dont_fragment), (20, 28, 17, true));
/// assert_eq!(view.ports(&packet), Some((5000, 53)));
/// assert!(IpView::parse(&packet[..27]).is_none(), "not all there");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpView {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Size in bytes of the headers in front of the data that a transport mode SA protects: the IP header, and for IPv6
    /// the hop-by-hop, routing and destination options (RFC 4303 3.1.1). For a fragment: the headers in front of its
    /// data.
    pub header: usize,
    /// Size of the packet in bytes.
    pub total: usize,
    /// Protocol number of the data after the headers.
    pub protocol: u8,
    /// Offset of the protocol number; in a fragment, the byte that announces the fragment header.
    pub protocol_at: usize,
    /// Type of service, or traffic class: DSCP and ECN.
    pub traffic_class: u8,
    /// Whether the packet must not be fragmented. Always true for IPv6, because routers never fragment it.
    pub dont_fragment: bool,
    /// Whether the packet is a fragment.
    pub fragment: bool,
}

impl IpView {
    /// Parses a complete packet. Bytes past its end are ignored.
    pub fn parse(packet: &[u8]) -> Option<IpView> {
        IpHeaders::parse(packet).ok().map(|headers| IpView::from_headers(&headers, packet))
    }

    /// Parses a packet that a device joined from several, which may be too long for its length field; see
    /// [`IpHeaders::parse_joined`].
    pub fn parse_joined(packet: &[u8]) -> Option<IpView> {
        IpHeaders::parse_joined(packet).ok().map(|headers| IpView::from_headers(&headers, packet))
    }

    /// Parses the headers without checking the length field; `total` is its raw value.
    pub fn parse_headers(packet: &[u8]) -> Option<IpView> {
        IpHeaders::walk(packet).ok().map(|headers| IpView::from_headers(&headers, packet))
    }

    /// Returns the view of a packet in an untagged frame with known headers. Returns `None` for a fragment, and if
    /// there is no IP packet.
    pub fn from_frame(headers: &Headers, frame: &[u8]) -> Option<IpView> {
        let (version, network) = headers.network().filter(|(_, at)| *at == ETHERNET_BYTES && !headers.is_fragment())?;
        let packet = frame.get(network..)?;
        let (protocol, upper) = headers.upper()?;
        let (traffic_class, dont_fragment) = marks(version, packet);
        let (source, destination) = version.addresses(packet);
        Some(IpView {
            source,
            destination,
            header: upper - network,
            total: version.length(packet),
            protocol,
            protocol_at: headers.protocol_at() - network,
            traffic_class,
            dont_fragment,
            fragment: false,
        })
    }

    fn from_headers(headers: &IpHeaders, packet: &[u8]) -> IpView {
        let (traffic_class, dont_fragment) = marks(headers.version, packet);
        IpView {
            source: headers.source(packet),
            destination: headers.destination(packet),
            header: headers.upper,
            total: headers.end,
            protocol: headers.protocol,
            protocol_at: headers.protocol_at(),
            traffic_class,
            dont_fragment,
            fragment: headers.fragment.is_some(),
        }
    }

    /// Tests whether the packet is IPv6.
    pub fn is_ipv6(&self) -> bool {
        self.source.is_ipv6()
    }

    /// Returns the source and destination port. Returns `None` for a fragment, and for a protocol without ports.
    pub fn ports(&self, packet: &[u8]) -> Option<(u16, u16)> {
        if self.fragment || !has_ports(self.protocol) {
            return None;
        }
        Some((number(packet, self.header)?, number(packet, self.header + 2)?))
    }

    /// Tests whether the packet of this fragment may have ports: its protocol has ports, or an IPv6 extension header
    /// hides the protocol.
    pub fn may_hide_ports(&self) -> bool {
        self.fragment && (has_ports(self.protocol) || self.hides_protocol())
    }

    /// Tests whether the protocol of this fragment's packet is hidden behind another extension header.
    pub fn hides_protocol(&self) -> bool {
        self.fragment && self.is_ipv6() && is_extension(self.protocol)
    }

    /// Tests for neighbour discovery (RFC 4861), IPv6's counterpart of ARP. Like ARP, it is exempt from policies. Its
    /// hop limit of 255 proves that no router forwarded it.
    pub fn is_neighbour_discovery(&self, packet: &[u8]) -> bool {
        let discovers = |kind: Option<&u8>| kind.is_some_and(|kind| (133..=137).contains(kind));
        self.is_ipv6()
            && self.protocol == ICMPV6
            && !self.fragment
            // RFC 4861 7.1: receivers must refuse messages with another hop limit, because a router decrements it.
            && packet[7] == 255
            && discovers(packet.get(self.header))
    }
}

/// Returns the traffic class, and whether the packet must not be fragmented.
fn marks(version: IpVersion, packet: &[u8]) -> (u8, bool) {
    match version {
        IpVersion::V4 => (packet[1], packet[6] & 0x40 != 0),
        IpVersion::V6 => (packet[0] << 4 | packet[1] >> 4, true),
    }
}

/// Sets a packet's traffic class, and updates the checksum of an IPv4 header.
pub fn set_traffic_class(packet: &mut [u8], class: u8) {
    if packet[0] >> 4 == 4 {
        packet[1] = class;
        fill_ipv4_header(packet);
    } else {
        packet[0] = packet[0] & 0xf0 | class >> 4;
        packet[1] = packet[1] & 0x0f | class << 4;
    }
}

fn has_ports(protocol: u8) -> bool {
    matches!(protocol, TCP | UDP | DCCP | SCTP | UDP_LITE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::ESP;
    use proptest::prelude::*;

    #[test]
    fn extension_headers_count_as_header() {
        let mut packet = vec![0x60, 0x12, 0x34, 0x56, 0, 24, 0, 64];
        packet.extend_from_slice(&[0x20; 32]);
        packet.extend_from_slice(&[43, 0, 1, 4, 0, 0, 0, 0]);
        packet.extend_from_slice(&[TCP, 0, 0, 0, 0, 0, 0, 0]);
        packet.extend_from_slice(&[0, 80, 1, 2, 3, 4, 5, 6]);
        let view = IpView::parse(&packet).unwrap();
        assert_eq!((view.header, view.protocol, view.protocol_at, view.total), (56, TCP, 48, 64));
        assert_eq!(view.traffic_class, 0x01);
        assert_eq!(view.ports(&packet), Some((80, 0x0102)));
        set_traffic_class(&mut packet, 0xab);
        assert_eq!((IpView::parse(&packet).unwrap().traffic_class, packet[1] & 0x0f), (0xab, 2));
    }

    #[test]
    fn fragments_may_hide_ports_and_protocol() {
        let mut packet = vec![0x60, 0, 0, 0, 0, 16, 44, 64];
        packet.extend_from_slice(&[0x20; 32]);
        packet.extend_from_slice(&[0, 0, 0, 8, 0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8]);
        let mut hidden = |protocol: u8| {
            packet[40] = protocol;
            let view = IpView::parse(&packet).unwrap();
            (view.may_hide_ports(), view.hides_protocol())
        };
        // Destination options, and a routing header.
        let seen = [TCP, UDP, 60, 43, ICMPV6, ESP].map(&mut hidden);
        let (ports, all, nothing) = ((true, false), (true, true), (false, false));
        assert_eq!(seen, [ports, ports, all, all, nothing, nothing]);
    }

    proptest! {
        #[test]
        fn garbage_is_parsed_without_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..120), version in 4u8..7) {
            if let Some(first) = bytes.first_mut() {
                *first = version << 4 | *first & 0x0f;
            }
            if let Some(view) = IpView::parse(&bytes) {
                prop_assert!(view.header <= view.total && view.total <= bytes.len() && view.protocol_at < view.header);
                view.ports(&bytes);
                view.is_neighbour_discovery(&bytes);
            }
        }
    }
}
