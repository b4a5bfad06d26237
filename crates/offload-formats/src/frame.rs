//! The headers of an Ethernet frame, found once and remembered as offsets.
//!
//! Invariant: the offsets of [`Headers`] lie in the parsed frame, in ascending order. The offsets of a
//! [`TransportHeader`] enclose a payload, and its headers agree on the payload's length.
//!
//! If a host must refuse an option or extension header, the rest of the packet is not parsed: the IP header is then the
//! last one on the stack.

use crate::flow::{FlowKey, Protocol};
use crate::ip::{IpHeaders, IpVersion};
use crate::protocol::{ESP, GRE, TCP, UDP};
use crate::tunnel::{Gre, Vxlan};
use crate::{esp, number};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use offload_base::Seq;

/// A kind of header.
///
/// See [`Headers`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HeaderKind {
    /// Ethernet: addresses and EtherType.
    Ethernet,
    /// A VLAN tag (IEEE 802.1Q, 802.1ad).
    Vlan,
    /// IPv4, options included.
    Ipv4,
    /// IPv6, extension headers included.
    Ipv6,
    /// TCP, options included.
    Tcp,
    /// UDP.
    Udp,
    /// ESP: security parameters index and sequence number. The rest of the packet is encrypted.
    Esp,
    /// VXLAN.
    Vxlan,
    /// GRE, its optional fields included.
    Gre,
}

impl HeaderKind {
    const fn bit(self) -> u16 {
        1 << self as u16
    }
}

/// One header of a frame, with its offset.
///
/// See [`Headers`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Header {
    /// The kind of header.
    pub kind: HeaderKind,
    /// Offset of the header in the frame, in bytes.
    pub at: u16,
}

/// The headers of a frame, outermost first.
///
/// ```
/// use offload_formats::{Headers, HeaderKind};
///
/// let mut frame = vec![2; 12]; // two addresses
/// frame.extend([0x81, 0x00, 0x00, 0x07, 0x08, 0x00]); // VLAN 7, IPv4
/// frame.extend([0x45, 0, 0, 32, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
/// frame.extend([0x13, 0x88, 0, 53, 0, 12, 0, 0, 1, 2, 3, 4]); // UDP
/// let headers = Headers::parse(&frame);
/// let found: Vec<_> = headers.stack().iter().map(|header| (header.kind, header.at)).collect();
/// assert_eq!(found, [(HeaderKind::Ethernet, 0), (HeaderKind::Vlan, 14), (HeaderKind::Ipv4, 18), (HeaderKind::Udp, 38)]);
/// let udp = headers.transport().unwrap();
/// assert_eq!(&frame[udp.payload..udp.end], [1, 2, 3, 4]);
/// assert_eq!(udp.flow_of_receiver(&frame).local, "10.0.0.2:53".parse().unwrap());
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Headers {
    stack: [Header; MAX_HEADERS],
    depth: u8,
    /// A bit set of the kinds on the stack.
    kinds: u16,
    /// Stack index of the innermost IP header.
    network: Option<u8>,
    /// Protocol number in the innermost IP header.
    protocol: u8,
    fragment: bool,
    /// Offset of the header of that protocol, or the end of the last header if there is no IP.
    upper: u16,
    /// Offset of the byte that holds the protocol number.
    protocol_at: u16,
    /// Start and end of the innermost TCP or UDP payload.
    payload: u16,
    end: u32,
}

impl Headers {
    /// Parses a complete frame. Never fails: the stack ends before a header that is truncated or contradicts itself. A
    /// tunnel's inner packet is not parsed; see [`enter`](Self::enter).
    pub fn parse(frame: &[u8]) -> Headers {
        let mut headers = Headers::EMPTY;
        let _ = headers.push_frame(frame, 0, LengthCheck::Checked);
        headers
    }

    /// Parses the headers of an unfinished frame. Its length fields are ignored.
    pub fn parse_unfinished(header: &[u8]) -> Headers {
        let mut headers = Headers::EMPTY;
        let _ = headers.push_frame(header, 0, LengthCheck::Ignored);
        headers
    }

    /// Parses the packet inside a tunnel (VXLAN to port 4789, or GRE), and returns its headers on top of these. Returns
    /// `None` if there is no tunnel, no readable packet in it, or no room on the stack.
    ///
    /// ```
    /// use offload_formats::{Headers, HeaderKind};
    ///
    /// let mut frame = vec![2; 12];
    /// frame.extend([0x08, 0x00]);
    /// frame.extend([0x45, 0, 0, 48, 0, 0, 0, 0, 64, 47, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    /// frame.extend([0x00, 0x00, 0x08, 0x00]); // GRE
    /// frame.extend([0x45, 0, 0, 24, 0, 0, 0, 0, 64, 253, 0, 0, 10, 9, 0, 1, 10, 9, 0, 2, 1, 2, 3, 4]);
    /// let outer = Headers::parse(&frame);
    /// let inner = outer.enter(&frame).unwrap();
    /// assert_eq!(inner.stack().last().map(|header| header.kind), Some(HeaderKind::Ipv4));
    /// assert_eq!((outer.depth(), inner.depth()), (3, 4));
    /// ```
    pub fn enter(&self, frame: &[u8]) -> Option<Headers> {
        let last = *self.stack().last()?;
        // Bytes after the outer packet are padding and must not be taken for an inner packet.
        let (frame, mut inner) = (frame.get(..self.end())?, *self);
        // The depth shows how far the parser came, so its result is not needed.
        let _ = match last.kind {
            HeaderKind::Vxlan => inner.push_frame(frame, usize::from(last.at) + Vxlan::BYTES, LengthCheck::Checked),
            HeaderKind::Gre => {
                let gre = Gre::parse(frame.get(usize::from(last.at)..)?)?;
                let at = usize::from(last.at) + gre.bytes();
                match gre.protocol {
                    Gre::ETHERNET => inner.push_frame(frame, at, LengthCheck::Checked),
                    protocol => inner.push_network(frame, at, protocol, LengthCheck::Checked),
                }
            }
            _ => None,
        };
        (inner.depth > self.depth).then_some(inner)
    }

    /// Returns the headers, outermost first.
    pub fn stack(&self) -> &[Header] {
        &self.stack[..usize::from(self.depth)]
    }

    /// Returns the number of headers.
    pub fn depth(&self) -> usize {
        self.depth.into()
    }

    /// Returns the offset of the innermost header of this kind.
    #[inline]
    pub fn find(&self, kind: HeaderKind) -> Option<usize> {
        // Most look-ups are for kinds that the frame does not have, and end here.
        if self.kinds & kind.bit() == 0 {
            return None;
        }
        self.stack().iter().rev().find(|header| header.kind == kind).map(|header| header.at.into())
    }

    /// Returns the innermost IP header's version and offset.
    pub fn network(&self) -> Option<(IpVersion, usize)> {
        let header = self.stack[usize::from(self.network?)];
        let version = if header.kind == HeaderKind::Ipv4 { IpVersion::V4 } else { IpVersion::V6 };
        Some((version, header.at.into()))
    }

    /// Returns the protocol number of the innermost IP header, and the offset of that protocol's header.
    pub fn upper(&self) -> Option<(u8, usize)> {
        self.network.map(|_| (self.protocol, self.upper.into()))
    }

    /// Returns the offset of the byte that holds the protocol number; in a fragment, the byte that announces the
    /// fragment header. Without IP, the value has no meaning.
    pub fn protocol_at(&self) -> usize {
        self.protocol_at.into()
    }

    /// Tests whether the innermost IP packet is a fragment.
    #[inline]
    pub fn is_fragment(&self) -> bool {
        self.fragment
    }

    /// Returns the end of the innermost IP packet, or of its UDP datagram. The bytes past the end are padding.
    pub fn end(&self) -> usize {
        self.end as usize
    }

    /// Returns the innermost TCP or UDP header if the packet is complete, not a fragment, and its lengths agree.
    #[inline]
    pub fn transport(&self) -> Option<TransportHeader> {
        let (version, network) = self.network()?;
        // Searched from the inside, because inside a tunnel the innermost transport is the one with the payload.
        let place = self.stack().iter().rposition(|header| matches!(header.kind, HeaderKind::Tcp | HeaderKind::Udp))?;
        // A transport header in front of the innermost IP header belongs to the tunnel.
        if place < usize::from(self.network?) {
            return None;
        }
        let header = self.stack[place];
        let protocol = if header.kind == HeaderKind::Tcp { Protocol::Tcp } else { Protocol::Udp };
        Some(TransportHeader {
            version,
            protocol,
            network,
            header: header.at.into(),
            payload: self.payload.into(),
            end: self.end as usize,
        })
    }

    fn push(&mut self, kind: HeaderKind, at: usize) -> Option<()> {
        let at = u16::try_from(at).ok()?;
        *self.stack.get_mut(usize::from(self.depth))? = Header { kind, at };
        self.depth += 1;
        self.kinds |= kind.bit();
        Some(())
    }

    /// Parses Ethernet and VLAN tags at `at`, and the headers that follow.
    fn push_frame(&mut self, frame: &[u8], at: usize, lengths: LengthCheck) -> Option<()> {
        let mut ether_type = number(frame, at + ETHER_TYPE)?;
        let start = self.depth;
        self.push(HeaderKind::Ethernet, at)?;
        let mut behind = at + ETHERNET_BYTES;
        // The bound on tags keeps a frame full of tags from filling the stack, which has a fixed size.
        while matches!(ether_type, VLAN | SERVICE_VLAN) && self.depth - start <= MAX_TAGS {
            ether_type = number(frame, behind + 2)?;
            self.push(HeaderKind::Vlan, behind)?;
            behind += VLAN_BYTES;
        }
        self.upper = u16::try_from(behind).ok()?;
        self.push_network(frame, behind, ether_type, lengths)
    }

    /// Parses IP at `at` if `ether_type` announces it, and the headers that follow.
    fn push_network(&mut self, frame: &[u8], at: usize, ether_type: u16, lengths: LengthCheck) -> Option<()> {
        let packet = frame.get(at..)?;
        let kind = match (ether_type, packet.first()? >> 4) {
            (0x0800, 4) => HeaderKind::Ipv4,
            (0x86dd, 6) => HeaderKind::Ipv6,
            _ => return None,
        };
        let ip = match lengths {
            LengthCheck::Checked => IpHeaders::parse(packet),
            LengthCheck::Ignored => IpHeaders::walk(packet),
        };
        let ip = ip.ok()?;
        let upper = u16::try_from(at + ip.upper).ok()?;
        let protocol_at = u16::try_from(at + ip.protocol_at()).ok()?;
        let end = match lengths {
            LengthCheck::Checked => at + ip.end,
            LengthCheck::Ignored => frame.len(),
        };
        let end = u32::try_from(end).ok()?;
        let network = self.depth;
        self.push(kind, at)?;
        // A fragment's payload may begin anywhere in the packet, so no upper header is looked for.
        (self.network, self.protocol, self.fragment) = (Some(network), ip.protocol, ip.fragment.is_some());
        (self.upper, self.protocol_at, self.payload, self.end) = (upper, protocol_at, upper, end);
        if self.fragment { None } else { self.push_upper(frame, lengths) }
    }

    /// Parses the header after IP, and a tunnel or ESP header in UDP.
    fn push_upper(&mut self, frame: &[u8], lengths: LengthCheck) -> Option<()> {
        let (at, end) = (usize::from(self.upper), self.end as usize);
        let packet = frame.get(..end)?;
        match self.protocol {
            TCP => {
                // The data offset counts 32-bit words, and options may reach up to the payload but not beyond the
                // packet.
                let bytes = usize::from(packet.get(at + TCP_DATA_OFFSET)? >> 4) * 4;
                if bytes < TCP_BYTES || at + bytes > end {
                    return None;
                }
                self.payload = u16::try_from(at + bytes).ok()?;
                self.push(HeaderKind::Tcp, at)
            }
            UDP => {
                let told = at + usize::from(number(packet, at + UDP_LENGTH)?);
                let data = at + UDP_BYTES;
                let end = if lengths == LengthCheck::Checked { told } else { end };
                // A datagram shorter than its IP packet is padded; a longer one is cut off or forged.
                if data > end || end > packet.len() {
                    return None;
                }
                (self.payload, self.end) = (u16::try_from(data).ok()?, end as u32);
                self.push(HeaderKind::Udp, at)?;
                match number(packet, at + 2)? {
                    Vxlan::PORT if Vxlan::parse(&packet[data..end]).is_some() => self.push(HeaderKind::Vxlan, data),
                    // RFC 3948 2.2: an SPI of zero marks an IKE message.
                    esp::UDP_PORT if esp::parse(&packet[data..end]).is_some_and(|esp| esp.spi != 0) => {
                        self.push(HeaderKind::Esp, data)
                    }
                    _ => Some(()),
                }
            }
            ESP => {
                esp::parse(packet.get(at..)?)?;
                self.push(HeaderKind::Esp, at)
            }
            GRE => {
                Gre::parse(packet.get(at..)?)?;
                self.push(HeaderKind::Gre, at)
            }
            _ => None,
        }
    }

    const EMPTY: Headers = Headers {
        stack: [Header { kind: HeaderKind::Ethernet, at: 0 }; MAX_HEADERS],
        depth: 0,
        kinds: 0,
        network: None,
        protocol: 0,
        fragment: false,
        upper: 0,
        protocol_at: 0,
        payload: 0,
        end: 0,
    };
}

impl core::fmt::Debug for Headers {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Headers").field("stack", &self.stack()).field("end", &self.end).finish_non_exhaustive()
    }
}

/// The treatment of length fields.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LengthCheck {
    Checked,
    Ignored,
}

/// The offsets of a frame's TCP or UDP header and payload, in bytes from the frame's start.
///
/// See [`Headers`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransportHeader {
    /// The version of the IP header in front.
    pub version: IpVersion,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Offset of the IP header.
    pub network: usize,
    /// Offset of the transport header.
    pub header: usize,
    /// Offset of the payload.
    pub payload: usize,
    /// End of the payload. A short frame has padding after it.
    pub end: usize,
}

impl TransportHeader {
    /// Returns the number of payload bytes.
    pub const fn payload_len(&self) -> usize {
        self.end - self.payload
    }

    /// Returns the source and destination address, adjacent as in the frame.
    #[inline]
    pub fn addresses<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        let ip = &frame[self.network..];
        match self.version {
            IpVersion::V4 => &ip[12..20],
            IpVersion::V6 => &ip[8..40],
        }
    }

    /// Returns the offset of the transport's checksum.
    pub const fn checksum(&self) -> usize {
        self.header
            + match self.protocol {
                Protocol::Tcp => 16,
                Protocol::Udp => 6,
            }
    }

    /// Returns the flow as the frame's receiver sees it.
    pub fn flow_of_receiver(&self, frame: &[u8]) -> FlowKey {
        let port = |at: usize| u16::from_be_bytes([frame[self.header + at], frame[self.header + at + 1]]);
        let (source, destination): (IpAddr, IpAddr) = match self.addresses(frame) {
            [a, b, c, d, e, f, g, h] => (Ipv4Addr::new(*a, *b, *c, *d).into(), Ipv4Addr::new(*e, *f, *g, *h).into()),
            both => {
                let address = |from: usize| {
                    let mut octets = [0; 16];
                    octets.copy_from_slice(&both[from..from + 16]);
                    Ipv6Addr::from_octets(octets).into()
                };
                (address(0), address(16))
            }
        };
        FlowKey { protocol: self.protocol, local: (destination, port(2)).into(), remote: (source, port(0)).into() }
    }

    /// Returns the sequence number of a TCP segment's first payload byte. For UDP, the value has no meaning.
    #[inline]
    pub fn seq(&self, frame: &[u8]) -> Seq {
        let at = self.header + 4;
        Seq(u32::from_be_bytes([frame[at], frame[at + 1], frame[at + 2], frame[at + 3]]))
    }
}

/// Returns the IP packet in an untagged Ethernet frame, if EtherType and IP version agree.
///
/// ```
/// use offload_formats::frame::ip_packet;
///
/// let mut frame = vec![2; 12];
/// frame.extend([0x08, 0x00, 0x45, 0]);
/// assert_eq!(ip_packet(&frame), Some(&[0x45, 0][..]));
/// frame[14] = 0x65;
/// assert_eq!(ip_packet(&frame), None);
/// ```
pub fn ip_packet(frame: &[u8]) -> Option<&[u8]> {
    let packet = frame.get(ETHERNET_BYTES..)?;
    match (number(frame, ETHER_TYPE)?, packet.first()? >> 4) {
        (0x0800, 4) | (0x86dd, 6) => Some(packet),
        _ => None,
    }
}

/// Deepest stack: Ethernet, two VLAN tags, IP, UDP, VXLAN, and inside Ethernet, two tags, IP, TCP make eleven.
const MAX_HEADERS: usize = 12;
/// Size of Ethernet's addresses and EtherType in bytes.
pub const ETHERNET_BYTES: usize = 14;
/// Offset of the EtherType.
const ETHER_TYPE: usize = 12;
const VLAN_BYTES: usize = 4;
/// EtherType of IEEE 802.1Q.
const VLAN: u16 = 0x8100;
/// EtherType of IEEE 802.1ad.
const SERVICE_VLAN: u16 = 0x88a8;
/// One service tag and one customer tag.
const MAX_TAGS: u8 = 2;
const TCP_BYTES: usize = 20;
const TCP_DATA_OFFSET: usize = 12;
const UDP_BYTES: usize = 8;
const UDP_LENGTH: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use smoltcp::phy::ChecksumCapabilities;
    use smoltcp::wire::{IpAddress, IpProtocol, IpRepr, UdpPacket, UdpRepr};

    /// A datagram built by smoltcp, with `tags` VLAN tags, IPv6 `extensions`, and padding after the packet.
    fn datagram(six: bool, tags: usize, next: IpProtocol, extensions: &[u8], port: u16, data: &[u8]) -> Vec<u8> {
        let [source, destination] = match six {
            true => [IpAddress::v6(0xfd00, 0, 0, 0, 0, 0, 0, 1), IpAddress::v6(0xfd00, 0, 0, 0, 0, 0, 0, 2)],
            false => [IpAddress::v4(10, 0, 0, 1), IpAddress::v4(10, 0, 0, 2)],
        };
        let udp = UdpRepr { src_port: 53, dst_port: port };
        let udp_bytes = udp.header_len() + data.len();
        let ip = IpRepr::new(source, destination, next, extensions.len() + udp_bytes, 64);
        let mut frame = vec![0; 12];
        for tag in 0..tags {
            frame.extend_from_slice(&[if tag == 0 { 0x88 } else { 0x81 }, if tag == 0 { 0xa8 } else { 0 }, 0, 7]);
        }
        frame.extend_from_slice(&if six { [0x86, 0xdd] } else { [8, 0] });
        let network = frame.len();
        frame.resize(network + ip.header_len(), 0);
        let all = ChecksumCapabilities::default();
        ip.emit(&mut frame[network..], &all);
        frame.extend_from_slice(extensions);
        let at = frame.len();
        frame.resize(at + udp_bytes, 0);
        let mut packet = UdpPacket::new_unchecked(&mut frame[at..]);
        udp.emit(&mut packet, &source, &destination, data.len(), |payload| payload.copy_from_slice(data), &all);
        frame.extend_from_slice(&[0xaa; 7]);
        frame
    }

    fn kinds(headers: &Headers) -> Vec<HeaderKind> {
        headers.stack().iter().map(|header| header.kind).collect()
    }

    proptest! {
        #[test]
        fn checksums_of_datagrams_match_smoltcp(
            data in prop::collection::vec(any::<u8>(), 0..1500),
            six: bool,
            tags in 0..=2usize,
            bit: prop::sample::Index,
        ) {
            let frame = datagram(six, tags, IpProtocol::Udp, &[], 4000, &data);
            let headers = Headers::parse(&frame);
            prop_assert_eq!(headers.depth(), 3 + tags);
            let udp = headers.transport().unwrap();
            prop_assert_eq!((udp.protocol, udp.payload_len(), udp.network), (Protocol::Udp, data.len(), 14 + 4 * tags));
            prop_assert_eq!(udp.are_checksums_right(&frame), Some(true));
            let mut filled = frame.clone();
            filled[udp.checksum()] ^= 0x55;
            udp.fill_checksums(&mut filled);
            prop_assert!(filled == frame);
            // Flips bits of the datagram only. Bits of checksum and lengths are covered by other tests.
            let bit = bit.index((udp.end - udp.header) * 8);
            if !(32..64).contains(&bit) {
                filled[udp.header + bit / 8] ^= 1 << (bit % 8);
                prop_assert_eq!(udp.are_checksums_right(&filled), Some(false));
            }
            filled[udp.checksum()..udp.checksum() + 2].fill(0);
            prop_assert_eq!(udp.are_checksums_right(&filled), None);
        }

        #[test]
        fn offsets_lie_in_any_frame(
            mut frame in prop::collection::vec(any::<u8>(), 0..200),
            start in prop::sample::select(vec![0, 12]),
            six: bool,
            next in prop::sample::select(vec![TCP, UDP, GRE, ESP, 44, 60]),
        ) {
            // Random bytes alone would seldom get past Ethernet.
            if start == 12 && frame.len() > 60 {
                frame[12..15].copy_from_slice(if six { &[0x86, 0xdd, 0x60] } else { &[8, 0, 0x45] });
                let (length, protocol) = if six { (18, 20) } else { (16, 23) };
                let bytes = (frame.len() - if six { 54 } else { 14 }) as u16;
                frame[length..length + 2].copy_from_slice(&bytes.to_be_bytes());
                frame[protocol] = next;
            }
            let mut headers = Headers::parse(&frame);
            loop {
                prop_assert!(headers.end() <= frame.len());
                prop_assert!(headers.stack().is_sorted_by(|one, next| one.at < next.at));
                prop_assert!(headers.stack().iter().all(|header| usize::from(header.at) < frame.len()));
                if let Some(transport) = headers.transport() {
                    prop_assert!(transport.network < transport.header && transport.header < transport.payload);
                    prop_assert!(transport.payload <= transport.end && transport.end <= frame.len());
                    transport.flow_of_receiver(&frame);
                    transport.are_checksums_right(&frame);
                }
                Headers::parse_unfinished(&frame);
                match headers.enter(&frame) {
                    Some(inner) => headers = inner,
                    None => break,
                }
            }
        }
    }

    #[test]
    fn refused_extension_headers_end_the_stack() {
        let found = |next, extensions: &[u8]| {
            Headers::parse(&datagram(true, 0, next, extensions, 4000, b"data")).transport().map(|udp| udp.header)
        };
        let options = [17, 0, 1, 4, 0, 0, 0, 0];
        assert_eq!(found(IpProtocol::HopByHop, &options), Some(62));
        assert_eq!(found(IpProtocol::Ipv6Opts, &options), Some(62));
        assert_eq!(found(IpProtocol::Ipv6Route, &[17, 0, 4, 0, 0, 0, 0, 0]), Some(62));
        assert_eq!(found(IpProtocol::Ipv6Route, &[17, 0, 4, 1, 0, 0, 0, 0]), None, "to be routed on");
        assert_eq!(found(IpProtocol::Ipv6Opts, &[17, 0, 0x81, 4, 0, 0, 0, 0]), None, "an option to be refused");
        assert_eq!(found(IpProtocol::Ipv6Frag, &[17, 0, 0, 1, 0, 0, 0, 0]), None, "a fragment");
        assert_eq!(found(IpProtocol::Icmpv6, &[]), None);
        let mut frame = datagram(false, 0, IpProtocol::Udp, &[], 4000, b"data");
        frame[20] = 0x20; // more fragments
        let fragment = Headers::parse(&frame);
        assert!(fragment.is_fragment() && fragment.transport().is_none());
        assert_eq!(fragment.upper(), Some((UDP, 34)));
        frame[20] = 0;
        frame[39] += 1; // a datagram longer than its packet
        assert_eq!(kinds(&Headers::parse(&frame)), [HeaderKind::Ethernet, HeaderKind::Ipv4]);
        frame[39] = 7; // shorter than its header
        assert_eq!(kinds(&Headers::parse(&frame)), [HeaderKind::Ethernet, HeaderKind::Ipv4]);
    }

    #[test]
    fn third_vlan_tag_is_not_parsed() {
        let frame = datagram(false, 3, IpProtocol::Udp, &[], 4000, b"data");
        assert_eq!(kinds(&Headers::parse(&frame)), [HeaderKind::Ethernet, HeaderKind::Vlan, HeaderKind::Vlan]);
    }

    #[test]
    fn tunnel_is_parsed_on_request() {
        let inner = datagram(true, 1, IpProtocol::Udp, &[], 4000, b"data");
        let carried = [&Vxlan { network: 77 }.to_bytes()[..], &inner].concat();
        let frame = datagram(false, 0, IpProtocol::Udp, &[], Vxlan::PORT, &carried);
        let outer = Headers::parse(&frame);
        assert_eq!(kinds(&outer), [HeaderKind::Ethernet, HeaderKind::Ipv4, HeaderKind::Udp, HeaderKind::Vxlan]);
        assert_eq!(outer.transport().unwrap().payload, 42);
        let both = outer.enter(&frame).unwrap();
        assert_eq!(kinds(&both)[4..], [HeaderKind::Ethernet, HeaderKind::Vlan, HeaderKind::Ipv6, HeaderKind::Udp]);
        let udp = both.transport().unwrap();
        assert_eq!((&frame[udp.payload..udp.end], udp.version), (&b"data"[..], IpVersion::V6));
        assert_eq!(udp.are_checksums_right(&frame), Some(true));
        assert_eq!(both.enter(&frame), None, "nothing is in it");
        // The inner packet is unreadable. The tunnel's own transport must not be returned in its place.
        let mut cut = frame.clone();
        cut[50 + 18 + 4..50 + 18 + 6].copy_from_slice(&[0xff; 2]);
        let both = Headers::parse(&cut).enter(&cut).unwrap();
        assert_eq!(kinds(&both)[4..], [HeaderKind::Ethernet, HeaderKind::Vlan]);
    }

    #[test]
    fn esp_is_found_over_ip_and_udp() {
        let esp = [0, 0, 16, 1, 0, 0, 0, 7, 9, 9];
        let frame = datagram(false, 0, IpProtocol::Udp, &[], 4500, &esp);
        assert_eq!(Headers::parse(&frame).find(HeaderKind::Esp), Some(42));
        let exchange = datagram(false, 0, IpProtocol::Udp, &[], 4500, &[0; 10]);
        assert_eq!(Headers::parse(&exchange).find(HeaderKind::Esp), None);
        let mut bare = frame;
        bare[23] = ESP;
        assert_eq!((Headers::parse(&bare).find(HeaderKind::Esp), Headers::parse(&bare).transport()), (Some(34), None));
    }
}
