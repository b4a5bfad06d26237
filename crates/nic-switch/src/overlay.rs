//! Tunnels: VXLAN, GRE and Geneve over IPv4 and IPv6.
//!
//! Invariant: `decapsulate` recovers the frame that [`encapsulate`] wrapped. Each packet on the wire has its own
//! lengths and checksums, including the segments that [`cut`] makes.

use crate::action::TunnelSet;
use crate::edit;
use crate::frame::Frame;
use crate::key::{ReceivedTunnel, behind_tags, class_of, is_first};
use crate::matching::{IPV4, IPV6, Mac};
use crate::port::TunnelKind;
use bytes::{Bytes, BytesMut};
use core::net::IpAddr;
use offload_formats::frame::ETHERNET_BYTES;
use offload_formats::ip::is_extension;
use offload_formats::protocol::{GRE, UDP};
use offload_formats::{Geneve, Gre, Headers, InternetSum, IpVersion, SegmentPosition, Vxlan, checksum};

/// The Ethernet addresses on the way to a tunnel's remote end. The host resolves them.
///
/// ```
/// use nic_switch::{Mac, TunnelHop};
///
/// let hop = TunnelHop { source: Mac([2, 0, 0, 0, 0, 1]), destination: Mac([2, 0, 0, 0, 0, 2]) };
/// assert!(!hop.destination.is_multicast());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TunnelHop {
    /// Address of the uplink.
    pub source: Mac,
    /// Address of the next hop.
    pub destination: Mac,
}

/// The outer headers of a frame.
///
/// See [`encapsulate`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunnelHeaders {
    /// Kind of the tunnel.
    pub kind: TunnelKind,
    /// IP addresses, key and options.
    pub set: TunnelSet,
    /// Ethernet addresses.
    pub hop: TunnelHop,
    /// UDP source port; unused for GRE.
    pub source_port: u16,
    /// IPv4 identification; of the first segment if the packet is cut.
    pub identification: u16,
}

/// Wraps a frame into outer headers.
///
/// ECN is copied as in Linux (RFC 3168 9.1.1, full functionality): an inner packet that met congestion gets an outer
/// header with ECT(0).
///
/// ```
/// use bytes::Bytes;
/// use nic_switch::overlay::{TunnelHeaders, cut, encapsulate};
/// use nic_switch::{Frame, Mac, TunnelHop, TunnelKind, TunnelSet};
///
/// let set = TunnelSet::new("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap());
/// let outer = TunnelHeaders {
///     kind: TunnelKind::Vxlan,
///     set: TunnelSet { key: Some(77), ..set },
///     hop: TunnelHop { source: Mac([2, 0, 0, 0, 0, 1]), destination: Mac([2, 0, 0, 0, 0, 2]) },
///     source_port: 50_000,
///     identification: 0,
/// };
/// let wrapped = encapsulate(&outer, &Frame::from(Bytes::from_static(&[7; 60])));
/// assert_eq!(wrapped.bytes.len(), 14 + 20 + 8 + 8 + 60);
/// assert_eq!(wrapped.bytes[50..], [7; 60]);
/// ```
pub fn encapsulate(outer: &TunnelHeaders, inner: &Frame) -> Frame {
    let TunnelHeaders { kind, set, hop, source_port, identification } = outer;
    let version = IpVersion::of_address(&set.destination);
    let tunnel_bytes = tunnel_bytes(*kind, set);
    let upper = ETHERNET_BYTES + version.header_bytes();
    let mut frame = BytesMut::zeroed(upper + tunnel_bytes);
    frame.extend_from_slice(&inner.bytes);
    frame[..6].copy_from_slice(&hop.destination.0);
    frame[6..12].copy_from_slice(&hop.source.0);
    frame[12..14].copy_from_slice(&version.ether_type().to_be_bytes());
    let protocol = if *kind == TunnelKind::Gretap { GRE } else { UDP };
    // Linux's GRE examines the inner packet only if it is untagged, and copies its hop limit by default.
    let looks_inside = *kind != TunnelKind::Gretap || edit::outermost_tag(&inner.bytes).is_none();
    let inside = Headers::parse_unfinished(&inner.bytes).network().filter(|_| looks_inside);
    let class = set.tos & !ECN | inside.map_or(0, |(version, at)| outer_ecn(ecn_of(&inner.bytes, version, at)));
    let hops = match inside {
        _ if set.ttl != 0 => set.ttl,
        Some((version, at)) if *kind == TunnelKind::Gretap => hops_of(&inner.bytes, version, at),
        _ => USUAL_HOPS,
    };
    // Lengths and checksums follow in `finish_outer`, because they depend on the whole frame.
    write_ip(&mut frame[ETHERNET_BYTES..], set, protocol, class, hops, *identification);
    let header = &mut frame[upper..];
    match kind {
        TunnelKind::Gretap => gre(set).write(header),
        TunnelKind::Vxlan => {
            header[UDP_BYTES..tunnel_bytes].copy_from_slice(&Vxlan { network: set.key.unwrap_or(0) }.to_bytes());
        }
        TunnelKind::Geneve => {
            let network = set.key.unwrap_or(0);
            let geneve = Geneve { network, protocol: Geneve::ETHERNET, option_bytes: 0, oam: false, critical: false };
            header[UDP_BYTES..tunnel_bytes].copy_from_slice(&geneve.to_bytes());
        }
    }
    // GRE has no ports. A tunnel without its own port uses the kind's.
    if let Some(port) = set.destination_port.or(kind.port()).filter(|_| protocol == UDP) {
        header[..2].copy_from_slice(&source_port.to_be_bytes());
        header[2..4].copy_from_slice(&port.to_be_bytes());
    }
    finish_outer(&mut frame, version, protocol, set.checksum);
    Frame { bytes: frame.freeze(), cut: inner.cut, inner: (upper + tunnel_bytes) as u16, sa: None }
}

/// Returns the bytes that a tunnel adds to a packet: everything between the outer Ethernet header and the inner packet.
///
/// ```
/// use nic_switch::{TunnelKind, TunnelSet, overlay::overhead};
///
/// let set = TunnelSet::new("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap());
/// assert_eq!(overhead(TunnelKind::Vxlan, &set), 20 + 8 + 8 + 14);
/// ```
pub fn overhead(kind: TunnelKind, set: &TunnelSet) -> usize {
    IpVersion::of_address(&set.destination).header_bytes() + tunnel_bytes(kind, set) + ETHERNET_BYTES
}

/// The result of looking for a tunnel in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TunnelEvidence {
    /// A tunnel packet, or a first fragment of one.
    Tunnel,
    /// Not a tunnel packet.
    NoTunnel,
    /// A later fragment of a UDP packet, without ports.
    Rest,
    /// The headers are not fully readable here; another reader may find a tunnel in the frame.
    Hidden,
}

/// Looks for a tunnel in a frame: UDP to a tunnel port, or GRE.
pub(crate) fn tunnel_evidence(frame: &[u8], is_port: impl Fn(u16) -> bool) -> TunnelEvidence {
    let headers = Headers::parse_unfinished(frame);
    let (Some((version, network)), Some((protocol, at))) = (headers.network(), headers.upper()) else {
        // IP with more headers or tags than the parser reads.
        return if matches!(behind_tags(frame), IPV4 | IPV6) {
            TunnelEvidence::Hidden
        } else {
            TunnelEvidence::NoTunnel
        };
    };
    match protocol {
        GRE => TunnelEvidence::Tunnel,
        UDP if headers.is_fragment() && !is_first(frame, version, network, at) => TunnelEvidence::Rest,
        UDP => match frame.get(at + 2..at + 4) {
            Some(port) if is_port(u16::from_be_bytes([port[0], port[1]])) => TunnelEvidence::Tunnel,
            Some(_) => TunnelEvidence::NoTunnel,
            None => TunnelEvidence::Hidden,
        },
        // The header after a fragment header becomes visible only after reassembly (RFC 8200 4.5).
        _ if headers.is_fragment() && is_extension(protocol) => TunnelEvidence::Hidden,
        _ => TunnelEvidence::NoTunnel,
    }
}

/// Returns the number of bytes between the outer IP header and the inner frame.
fn tunnel_bytes(kind: TunnelKind, set: &TunnelSet) -> usize {
    match kind {
        TunnelKind::Vxlan => UDP_BYTES + Vxlan::BYTES,
        TunnelKind::Geneve => UDP_BYTES + Geneve::BYTES,
        TunnelKind::Gretap => gre(set).bytes(),
    }
}

/// A decapsulated frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DecapsulatedFrame {
    pub(crate) kind: TunnelKind,
    pub(crate) received: ReceivedTunnel,
    pub(crate) inner: Bytes,
}

/// The reason why a packet was not decapsulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DecapsulationError {
    /// The packet is not a tunnel packet, or unreadable here: a fragment, or another version.
    NoTunnel,
    /// A checksum is wrong, or missing where it is mandatory (RFC 8200 8.1).
    Checksum,
    /// An unknown option is marked critical.
    Critical,
    /// The outer packet met congestion, and the inner packet cannot express it (RFC 6040 4.2).
    Congestion,
}

/// Decapsulates a packet of GRE, or of UDP to a tunnel port. `kind_of` returns the tunnel kind of a port.
pub(crate) fn decapsulate(
    frame: &Bytes,
    headers: &Headers,
    kind_of: impl FnOnce(u16) -> Option<TunnelKind>,
) -> Result<DecapsulatedFrame, DecapsulationError> {
    let (Some((version, network)), Some((protocol, upper))) = (headers.network(), headers.upper()) else {
        return Err(DecapsulationError::NoTunnel);
    };
    if headers.is_fragment() {
        return Err(DecapsulationError::NoTunnel);
    }
    let (source, destination) = version.addresses(&frame[network..]);
    let class = class_of(frame, version, network);
    let mut received = ReceivedTunnel {
        key: None,
        source,
        destination,
        source_port: 0,
        destination_port: 0,
        class,
        checksum: false,
        oam: false,
    };
    let (kind, at) = match protocol {
        UDP => {
            let udp = headers.transport().ok_or(DecapsulationError::NoTunnel)?;
            let flow = udp.flow_of_receiver(frame);
            (received.source_port, received.destination_port) = (flow.remote.port(), flow.local.port());
            let kind = kind_of(flow.local.port()).ok_or(DecapsulationError::NoTunnel)?;
            if !udp.are_checksums_right(frame).unwrap_or(version == IpVersion::V4) {
                return Err(DecapsulationError::Checksum);
            }
            received.checksum = frame[udp.header + 6..udp.header + 8] != [0; 2];
            let payload = &frame[udp.payload..udp.end];
            let (network, bytes) = match kind {
                TunnelKind::Vxlan => (Vxlan::parse(payload).map(|vxlan| vxlan.network), Vxlan::BYTES),
                TunnelKind::Geneve => {
                    let geneve = Geneve::parse(payload).filter(|geneve| geneve.protocol == Geneve::ETHERNET);
                    let geneve = geneve.ok_or(DecapsulationError::NoTunnel)?;
                    // RFC 8926 3.4: a receiver must drop packets with unknown critical options.
                    if geneve.critical {
                        return Err(DecapsulationError::Critical);
                    }
                    received.oam = geneve.oam;
                    (Some(geneve.network), geneve.bytes())
                }
                TunnelKind::Gretap => (None, 0),
            };
            received.key = Some(network.ok_or(DecapsulationError::NoTunnel)?);
            (kind, udp.payload + bytes)
        }
        GRE => {
            let packet = &frame[upper..headers.end()];
            let gre =
                Gre::parse(packet).filter(|gre| gre.protocol == Gre::ETHERNET).ok_or(DecapsulationError::NoTunnel)?;
            let mut sum = InternetSum::default();
            sum.add(packet);
            // The sum over the whole GRE packet includes its checksum field.
            if gre.checksum && !sum.is_right() {
                return Err(DecapsulationError::Checksum);
            }
            received.key = gre.key;
            received.checksum = gre.checksum;
            (TunnelKind::Gretap, upper + gre.bytes())
        }
        _ => return Err(DecapsulationError::NoTunnel),
    };
    if version == IpVersion::V4 && !checksum::is_ipv4_header_right(&frame[network..]) {
        return Err(DecapsulationError::Checksum);
    }
    if headers.end() < at + ETHERNET_BYTES {
        return Err(DecapsulationError::NoTunnel);
    }
    let inner = frame.slice(at..headers.end());
    let outer_ecn = ecn_of(frame, version, network);
    Ok(DecapsulatedFrame { kind, received, inner: take_over_ecn(inner, outer_ecn)? })
}

/// Cuts a frame into segments and computes checksums. For a tunnel packet, the inner packet is cut and each segment
/// gets outer headers. A complete frame is returned unchanged.
///
/// ```
/// use bytes::Bytes;
/// use core::num::NonZeroU16;
/// use nic_switch::{Frame, overlay::cut};
///
/// let mut large = vec![2; 12];
/// large.extend([0x08, 0x00, 0x45, 0, 0, 0, 0, 9, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
/// large.extend([0, 9, 0, 9, 0, 0, 0, 100, 0, 0, 0, 0, 0x50, 0x18, 0, 0, 0, 0, 0, 0]);
/// large.extend([7; 2500]);
/// let large = Frame { cut: NonZeroU16::new(1000), ..Frame::from(Bytes::from(large)) };
/// let segments: Vec<Bytes> = cut(&large);
/// assert_eq!(segments.iter().map(|segment| segment.len() - 54).collect::<Vec<_>>(), [1000, 1000, 500]);
/// ```
pub fn cut(frame: &Frame) -> Vec<Bytes> {
    let Some(segment_bytes) = frame.cut.map(|bytes| usize::from(bytes.get())) else { return vec![frame.bytes.clone()] };
    let at = usize::from(frame.inner);
    // The lengths are those of no segment yet, so only the unfinished parser can read the headers.
    let outer = Headers::parse_unfinished(&frame.bytes);
    let inner = Headers::parse_unfinished(&frame.bytes[at..]);
    let Some(transport) = inner.transport() else { return vec![frame.bytes.clone()] };
    let packet = &frame.bytes[at..];
    let payload = &packet[transport.payload..];
    let count = payload.len().div_ceil(segment_bytes).max(1);
    let mut segments = Vec::with_capacity(count);
    for number in 0..count {
        let offset = number * segment_bytes;
        let piece = &payload[offset..payload.len().min(offset + segment_bytes)];
        let mut segment = BytesMut::with_capacity(at + transport.payload + piece.len());
        segment.extend_from_slice(&frame.bytes[..at + transport.payload]);
        let place = SegmentPosition { number: number as u32, offset, is_last: number + 1 == count };
        transport.make_segment(&mut segment[at..], piece.len(), place);
        segment.extend_from_slice(piece);
        // The lengths are final now, so the ordinary parser finds the transport of the segment.
        let whole = Headers::parse(&segment[at..]);
        if let Some(transport) = whole.transport() {
            transport.fill_checksums(&mut segment[at..]);
        }
        if at > 0 {
            finish_segment(&mut segment, &outer, number as u16);
        }
        segments.push(segment.freeze());
    }
    segments
}

/// Adjusts the outer headers of a segment.
fn finish_segment(segment: &mut [u8], outer: &Headers, number: u16) {
    let (Some((version, network)), Some((protocol, upper))) = (outer.network(), outer.upper()) else { return };
    if version == IpVersion::V4 {
        let at = network + 4;
        let identification = u16::from_be_bytes([segment[at], segment[at + 1]]).wrapping_add(number);
        segment[at..at + 2].copy_from_slice(&identification.to_be_bytes());
    }
    let has_checksum = match protocol {
        UDP => segment[upper + 6..upper + 8] != [0, 0],
        _ => Gre::parse(&segment[upper..]).is_some_and(|gre| gre.checksum),
    };
    finish_outer(segment, version, protocol, has_checksum);
}

/// Sets lengths and checksums in the outer headers of an untagged frame.
fn finish_outer(frame: &mut [u8], version: IpVersion, protocol: u8, has_checksum: bool) {
    let upper = ETHERNET_BYTES + version.header_bytes();
    let (packet_bytes, upper_bytes) = (frame.len() - ETHERNET_BYTES, frame.len() - upper);
    version.set_length(&mut frame[ETHERNET_BYTES..], packet_bytes);
    if version == IpVersion::V4 {
        checksum::fill_ipv4_header(&mut frame[ETHERNET_BYTES..]);
    }
    let field = match protocol {
        UDP => {
            // A frame that will be cut may be longer than the field; the segments get their own length.
            let told = u16::try_from(upper_bytes).unwrap_or(0);
            frame[upper + 4..upper + 6].copy_from_slice(&told.to_be_bytes());
            upper + 6
        }
        _ => upper + 4,
    };
    if !has_checksum {
        return;
    }
    // The checksum field counts as zero in its own sum (RFC 768, RFC 2784 2.5).
    frame[field..field + 2].fill(0);
    let mut sum = InternetSum::default();
    if protocol == UDP {
        let (source, destination) = version.addresses(&frame[ETHERNET_BYTES..]);
        sum = InternetSum::pseudo_header(UDP, source, destination, upper_bytes);
    }
    sum.add(&frame[upper..]);
    // RFC 768: a computed zero is sent as all ones, because zero means no checksum.
    let value = match sum.finish() {
        0 if protocol == UDP => u16::MAX,
        value => value,
    };
    frame[field..field + 2].copy_from_slice(&value.to_be_bytes());
}

fn gre(set: &TunnelSet) -> Gre {
    Gre { protocol: Gre::ETHERNET, checksum: set.checksum, key: set.key, number: None }
}

fn write_ip(packet: &mut [u8], set: &TunnelSet, protocol: u8, class: u8, hops: u8, identification: u16) {
    match (set.source, set.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            (packet[0], packet[1], packet[8], packet[9]) = (0x45, class, hops, protocol);
            packet[4..6].copy_from_slice(&identification.to_be_bytes());
            packet[6] = if set.dont_fragment { DONT_FRAGMENT } else { 0 };
            packet[12..16].copy_from_slice(&source.octets());
            packet[16..20].copy_from_slice(&destination.octets());
        }
        (source, destination) => {
            (packet[0], packet[1], packet[6], packet[7]) = (0x60 | class >> 4, class << 4, protocol, hops);
            for (at, address) in [(8, source), (24, destination)] {
                if let IpAddr::V6(address) = address {
                    packet[at..at + 16].copy_from_slice(&address.octets());
                }
            }
        }
    }
}

fn hops_of(frame: &[u8], version: IpVersion, network: usize) -> u8 {
    frame[network + if version == IpVersion::V4 { 8 } else { 7 }]
}

fn ecn_of(frame: &[u8], version: IpVersion, network: usize) -> u8 {
    let shift = if version == IpVersion::V4 { 0 } else { 4 };
    frame[network + 1] >> shift & ECN
}

/// Returns the outer ECN bits, as Linux's INET_ECN_encapsulate.
fn outer_ecn(inner: u8) -> u8 {
    if inner == CONGESTION { CAPABLE_0 } else { inner }
}

/// Merges the outer ECN bits into the inner packet (RFC 6040 4.2), with the one deviation of Linux that the RFC
/// permits. Behind a tag, Linux leaves ECN unchanged.
fn take_over_ecn(inner: Bytes, outer: u8) -> Result<Bytes, DecapsulationError> {
    if edit::outermost_tag(&inner).is_some() {
        return Ok(inner);
    }
    let headers = Headers::parse(&inner);
    let Some((version, network)) = headers.network() else { return Ok(inner) };
    let own = ecn_of(&inner, version, network);
    let becomes = match (own, outer) {
        // The inner transport would not understand the mark, so the packet counts as lost.
        (0, CONGESTION) => return Err(DecapsulationError::Congestion),
        (0, _) | (CONGESTION, _) => own,
        (_, CONGESTION) => CONGESTION,
        (CAPABLE_0, CAPABLE_1) => CAPABLE_1,
        _ => own,
    };
    if becomes == own {
        return Ok(inner);
    }
    let mut changed = BytesMut::from(&inner[..]);
    let class = match version {
        IpVersion::V4 => changed[network + 1],
        IpVersion::V6 => changed[network] << 4 | changed[network + 1] >> 4,
    };
    edit::edit(&mut changed, &headers, &crate::Edit::TrafficClass(version, class & !ECN | becomes));
    Ok(changed.freeze())
}

const UDP_BYTES: usize = 8;
const USUAL_HOPS: u8 = 64;
/// DF flag of IPv4, in the first byte of its field (RFC 791 3.1).
const DONT_FRAGMENT: u8 = 0x40;
/// ECN bits and their values (RFC 3168 5).
const ECN: u8 = 0b11;
const CAPABLE_1: u8 = 0b01;
const CAPABLE_0: u8 = 0b10;
const CONGESTION: u8 = 0b11;

#[cfg(test)]
mod tests {
    use super::*;

    /// A single fragment that is a whole packet: Linux reassembles and decapsulates it.
    #[test]
    fn a_tunnel_behind_fragment_header_and_options_is_found() {
        let udp = [&[0, 9, 0x12, 0xb5, 0, 24, 0, 0][..], &[0; 16]].concat();
        let packet = |behind: &[u8]| {
            let mut packet =
                [&[2; 12][..], &[0x86, 0xdd, 0x60, 0, 0, 0, 0, (behind.len() + 24) as u8, 44, 64]].concat();
            packet.extend([0xfd; 32]);
            [&packet[..], behind, &udp].concat()
        };
        let shown = |frame: &[u8]| tunnel_evidence(frame, |port| port == 4789);
        assert_eq!(shown(&packet(&[17, 0, 0, 0, 0, 0, 0, 1])), TunnelEvidence::Tunnel);
        assert_eq!(shown(&packet(&[60, 0, 0, 0, 0, 0, 0, 1, 17, 0, 1, 4, 0, 0, 0, 0])), TunnelEvidence::Hidden);
        assert_eq!(shown(&packet(&[17, 0, 0, 8, 0, 0, 0, 1])), TunnelEvidence::Rest);
    }

    /// Linux does not bound the number of extension headers and tags, and knows options that the switch does not know.
    #[test]
    fn a_packet_with_too_many_headers_may_hide_a_tunnel() {
        let udp = |port: u16| [&[0, 9][..], &port.to_be_bytes(), &[0, 24, 0, 0], &[0; 16]].concat();
        // `next` names the first extension header, and the last option names UDP.
        let six = |options: &[[u8; 8]], port: u16| {
            let behind = [options.concat(), udp(port)].concat();
            let next = if options.is_empty() { 17 } else { 60 };
            let mut packet = [&[0x60, 0, 0, 0, 0, behind.len() as u8, next, 64][..], &[0xfd; 32], &behind].concat();
            if let Some(last) = options.len().checked_sub(1) {
                packet[40 + 8 * last] = 17;
            }
            packet
        };
        let four = |options: &[u8], port: u16| {
            let first = 0x45 + (options.len() / 4) as u8;
            let length = (44 + options.len()) as u8;
            [&[first, 0, 0, length, 0, 0, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2][..], options, &udp(port)]
                .concat()
        };
        // The tags are ordinary VLAN tags with id 7.
        let frame = |tags: usize, ether_type: [u8; 2], packet: &[u8]| {
            [&[2; 12][..], &[0x81, 0, 0, 7].repeat(tags), &ether_type, packet].concat()
        };
        let (six_type, four_type) = ([0x86, 0xdd], [8, 0]);
        let padding = [60, 0, 1, 4, 0, 0, 0, 0];
        // This option asks a host that does not know it to drop the packet.
        let refused = [60, 0, 0xc2, 4, 0, 1, 0, 0];
        let cases = [
            (frame(0, six_type, &six(&[], 4789)), TunnelEvidence::Tunnel),
            (frame(0, six_type, &six(&[], 9)), TunnelEvidence::NoTunnel),
            // The parser reads at most eight extension headers and two tags.
            (frame(0, six_type, &six(&[padding; 8], 4789)), TunnelEvidence::Tunnel),
            (frame(0, six_type, &six(&[padding; 9], 4789)), TunnelEvidence::Hidden),
            (frame(0, six_type, &six(&[padding; 9], 9)), TunnelEvidence::Hidden),
            (frame(0, six_type, &six(&[refused], 4789)), TunnelEvidence::Hidden),
            (frame(0, four_type, &four(&[131, 7, 4, 10, 0, 0, 2, 0], 4789)), TunnelEvidence::Hidden),
            (frame(0, four_type, &four(&[148, 4, 0, 0], 4789)), TunnelEvidence::Tunnel),
            (frame(2, four_type, &four(&[], 4789)), TunnelEvidence::Tunnel),
            (frame(3, four_type, &four(&[], 4789)), TunnelEvidence::Hidden),
            (frame(3, [8, 6], &[0; 46]), TunnelEvidence::NoTunnel),
            (frame(0, four_type, &four(&[], 4789)[..22]), TunnelEvidence::Hidden),
            (vec![0; 60], TunnelEvidence::NoTunnel),
        ];
        for (number, (frame, expected)) in cases.iter().enumerate() {
            assert_eq!(tunnel_evidence(frame, |port| port == 4789), *expected, "{number}");
        }
    }
}
