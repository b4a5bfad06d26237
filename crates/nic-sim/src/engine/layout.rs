//! Where the headers of a packet are: TCP or UDP, over IPv4 or IPv6, in Ethernet without a VLAN tag.
//!
//! IPv6's hop-by-hop options, destination options and used-up routing headers are parsed past, as NICs do. A fragment
//! has no layout, nor has a packet with options that are not to be passed over: nothing is offloaded for those.
//!
//! Invariant: the offsets of a `Layout` lie in the packet it was read from, and the lengths its headers claim
//! fit into that packet.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use offload_formats::{IpHeaders, Version};
use offload_api::{FlowKey, Protocol};
use offload_base::Seq;

/// Offsets into an Ethernet frame that carries TCP or UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) version: Version,
    pub(crate) protocol: Protocol,
    /// Where the transport header starts.
    pub(crate) transport: usize,
    /// Where its payload starts.
    pub(crate) payload: usize,
    /// Where the payload ends: a short frame is padded behind it.
    pub(crate) end: usize,
}

/// Where the IP header starts.
pub(crate) const IP: usize = 14;

impl Layout {
    /// Reads a frame that is all there. `None`: it is not whole, unfragmented TCP or UDP.
    pub(crate) fn of_frame(frame: &[u8]) -> Option<Layout> {
        let ip = ip_packet(frame)?;
        let headers = IpHeaders::parse(ip).ok()?;
        let layout = Layout::behind(&headers, frame)?;
        let end = match layout.protocol {
            Protocol::Udp => layout.transport + usize::from(number(frame, layout.transport + 4)),
            _ => IP + headers.end,
        };
        (layout.payload <= end && end <= IP + headers.end).then_some(Layout { end, ..layout })
    }

    /// Reads headers alone, whose lengths say nothing yet. `end` is where they end.
    pub(crate) fn of_headers(headers: &[u8]) -> Option<Layout> {
        Layout::behind(&IpHeaders::walk(ip_packet(headers)?).ok()?, headers)
    }

    /// The layout of what is behind IP's `headers` in `frame`, `end` left where the transport header ends.
    fn behind(headers: &IpHeaders, frame: &[u8]) -> Option<Layout> {
        if headers.fragment.is_some() {
            return None;
        }
        let transport = IP + headers.upper;
        let (protocol, least, header_bytes) = match headers.protocol {
            PROTOCOL_TCP => (Protocol::Tcp, TCP_BYTES, usize::from(*frame.get(transport + 12)? >> 4) * 4),
            PROTOCOL_UDP => (Protocol::Udp, UDP_BYTES, UDP_BYTES),
            _ => return None,
        };
        let payload = transport + header_bytes;
        let whole = header_bytes >= least && payload <= frame.len();
        whole.then_some(Layout { version: headers.version, protocol, transport, payload, end: payload })
    }

    /// Source and destination address, one behind the other, as the frame has them.
    pub(crate) fn addresses<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        match self.version {
            Version::Four => &frame[IP + 12..IP + 20],
            Version::Six => &frame[IP + 8..IP + 40],
        }
    }

    /// Where the transport's checksum is.
    pub(crate) fn checksum(&self) -> usize {
        self.transport + if self.protocol == Protocol::Udp { 6 } else { 16 }
    }

    /// The flow, seen by the host that receives the frame.
    pub(crate) fn flow_of_receiver(&self, frame: &[u8]) -> FlowKey {
        let port = |at: usize| number(frame, self.transport + at);
        let (source, destination): (IpAddr, IpAddr) = match self.version {
            Version::Four => {
                let address = |at: usize| Ipv4Addr::new(frame[at], frame[at + 1], frame[at + 2], frame[at + 3]);
                (address(IP + 12).into(), address(IP + 16).into())
            }
            Version::Six => {
                let address =
                    |at: usize| Ipv6Addr::from_segments(core::array::from_fn(|part| number(frame, at + 2 * part)));
                (address(IP + 8).into(), address(IP + 24).into())
            }
        };
        FlowKey { protocol: self.protocol, local: (destination, port(2)).into(), remote: (source, port(0)).into() }
    }

    /// Sequence number of the first payload byte of a TCP segment.
    pub(crate) fn seq(&self, frame: &[u8]) -> Seq {
        let at = self.transport + 4;
        Seq(u32::from_be_bytes([frame[at], frame[at + 1], frame[at + 2], frame[at + 3]]))
    }
}

/// The IP packet in a frame, if Ethernet and IP agree that it is one.
pub(crate) fn ip_packet(frame: &[u8]) -> Option<&[u8]> {
    let packet = frame.get(IP..)?;
    match (number(frame, IP - 2), packet.first()? >> 4) {
        (0x0800, 4) | (0x86dd, 6) => Some(packet),
        _ => None,
    }
}

fn number(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

pub(crate) const PROTOCOL_TCP: u8 = 6;
pub(crate) const PROTOCOL_UDP: u8 = 17;
const TCP_BYTES: usize = 20;
const UDP_BYTES: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::checksum;
    use offload_api::rx::Checksums;
    use proptest::prelude::*;
    use smoltcp::phy::ChecksumCapabilities;
    use smoltcp::wire::{IpAddress, IpProtocol, IpRepr, UdpPacket, UdpRepr};

    /// A datagram as smoltcp makes it, behind IPv6's `extensions`, and padding behind it.
    fn datagram(six: bool, next: IpProtocol, extensions: &[u8], data: &[u8]) -> Vec<u8> {
        let [source, destination] = match six {
            true => [IpAddress::v6(0xfd00, 0, 0, 0, 0, 0, 0, 1), IpAddress::v6(0xfd00, 0, 0, 0, 0, 0, 0, 2)],
            false => [IpAddress::v4(10, 0, 0, 1), IpAddress::v4(10, 0, 0, 2)],
        };
        let udp = UdpRepr { src_port: 53, dst_port: 4000 };
        let udp_bytes = udp.header_len() + data.len();
        let ip = IpRepr::new(source, destination, next, extensions.len() + udp_bytes, 64);
        let mut frame = vec![0; 12];
        frame.extend_from_slice(&if six { [0x86, 0xdd] } else { [8, 0] });
        frame.resize(14 + ip.header_len(), 0);
        let all = ChecksumCapabilities::default();
        ip.emit(&mut frame[14..], &all);
        frame.extend_from_slice(extensions);
        let at = frame.len();
        frame.resize(at + udp_bytes, 0);
        let mut packet = UdpPacket::new_unchecked(&mut frame[at..]);
        udp.emit(&mut packet, &source, &destination, data.len(), |payload| payload.copy_from_slice(data), &all);
        frame.extend_from_slice(&[0xaa; 7]);
        frame
    }

    proptest! {
        #[test]
        fn a_datagrams_checksum_is_found_right_and_made_as_smoltcp_does(
            data in prop::collection::vec(any::<u8>(), 0..1500),
            six: bool,
            bit: prop::sample::Index,
        ) {
            let frame = datagram(six, IpProtocol::Udp, &[], &data);
            let layout = Layout::of_frame(&frame).unwrap();
            prop_assert_eq!((layout.protocol, layout.end - layout.payload), (Protocol::Udp, data.len()));
            prop_assert_eq!(checksum::check(&frame, &layout), Checksums::Good);
            let mut filled = frame.clone();
            filled[layout.checksum()] ^= 0x55;
            checksum::fill(&mut filled, &layout);
            prop_assert!(filled == frame);
            // A bit of the datagram, its checksum and its lengths apart, which would be another question.
            let bit = bit.index((layout.end - layout.transport) * 8);
            if !(32..64).contains(&bit) {
                filled[layout.transport + bit / 8] ^= 1 << (bit % 8);
                prop_assert_eq!(checksum::check(&filled, &layout), Checksums::Bad);
            }
            filled[layout.checksum()..layout.checksum() + 2].fill(0);
            prop_assert_eq!(checksum::check(&filled, &layout), Checksums::Unchecked);
        }
    }

    #[test]
    fn what_a_device_parses_past_and_what_it_leaves_alone() {
        let found = |next, extensions: &[u8]| Layout::of_frame(&datagram(true, next, extensions, b"data"));
        let options = [17, 0, 1, 4, 0, 0, 0, 0];
        assert_eq!(found(IpProtocol::HopByHop, &options).unwrap().transport, 62);
        assert_eq!(found(IpProtocol::Ipv6Opts, &options).unwrap().transport, 62);
        assert_eq!(found(IpProtocol::Ipv6Route, &[17, 0, 4, 0, 0, 0, 0, 0]).unwrap().transport, 62);
        assert_eq!(found(IpProtocol::Ipv6Route, &[17, 0, 4, 1, 0, 0, 0, 0]), None, "to be routed on");
        assert_eq!(found(IpProtocol::Ipv6Opts, &[17, 0, 0x81, 4, 0, 0, 0, 0]), None, "an option to be refused");
        assert_eq!(found(IpProtocol::Ipv6Frag, &[17, 0, 0, 1, 0, 0, 0, 0]), None, "a fragment");
        assert_eq!(found(IpProtocol::Icmpv6, &[]), None);
        let mut frame = datagram(false, IpProtocol::Udp, &[], b"data");
        frame[20] = 0x20; // more fragments
        assert_eq!(Layout::of_frame(&frame), None);
        frame[20] = 0;
        frame[39] += 1; // a datagram longer than its packet
        assert_eq!(Layout::of_frame(&frame), None);
        frame[39] = 7; // shorter than its header
        assert_eq!(Layout::of_frame(&frame), None);
    }
}
