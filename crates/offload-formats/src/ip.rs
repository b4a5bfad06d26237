//! The layout of IP packets (RFC 791, RFC 8200).
//!
//! Invariant: the offsets of an [`IpHeaders`] returned by [`IpHeaders::parse`] lie in the packet, in ascending order,
//! and every header before [`upper`](IpHeaders::upper) is complete. Unknown options are treated as their type bits
//! demand.

use crate::protocol::{DESTINATION_OPTIONS, FRAGMENT, HOP_BY_HOP, ICMPV6, ROUTING, TCP, UDP};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A version of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IpVersion {
    /// IPv4 (RFC 791).
    V4,
    /// IPv6 (RFC 8200).
    V6,
}

impl IpVersion {
    /// Returns the version of an address.
    pub const fn of_address(address: &IpAddr) -> IpVersion {
        match address {
            IpAddr::V4(_) => IpVersion::V4,
            IpAddr::V6(_) => IpVersion::V6,
        }
    }

    /// Returns the size of a header without options or extensions, in bytes.
    ///
    /// ```
    /// use offload_formats::IpVersion;
    ///
    /// assert_eq!((IpVersion::V4.header_bytes(), IpVersion::V6.header_bytes()), (20, 40));
    /// ```
    pub const fn header_bytes(self) -> usize {
        match self {
            IpVersion::V4 => IPV4_BYTES,
            IpVersion::V6 => IPV6_BYTES,
        }
    }

    /// Writes the two ECN bits (RFC 3168 5) into an IP header. The header checksum is not updated.
    ///
    /// # Panics
    /// If the header's first two bytes are missing.
    ///
    /// ```
    /// use offload_formats::{IpHeaders, IpVersion};
    ///
    /// let mut packet = [0; 40];
    /// packet[0] = 0x60; // IPv6 with no next header
    /// packet[6] = 59;
    /// IpVersion::V6.set_ecn(&mut packet, 0b10);
    /// assert_eq!(IpHeaders::walk(&packet).unwrap().ecn(&packet), 0b10);
    /// ```
    pub fn set_ecn(self, packet: &mut [u8], ecn: u8) {
        let shift = self.ecn_shift();
        packet[1] = packet[1] & !(ECN << shift) | (ecn & ECN) << shift;
    }

    /// Writes the length of a packet, `bytes` including the header, into the header. The header checksum is not
    /// updated. If the field cannot hold the length, zero is written. Such packets exist only inside a host, where the
    /// length is passed along.
    ///
    /// # Panics
    /// If the field is missing, or `bytes` is less than a header.
    ///
    /// ```
    /// use offload_formats::IpVersion;
    ///
    /// let mut header = [0x45; 20];
    /// IpVersion::V4.set_length(&mut header, 1500);
    /// assert_eq!(header[2..4], [5, 220]);
    /// IpVersion::V4.set_length(&mut header, 65_536);
    /// assert_eq!(header[2..4], [0, 0]);
    /// ```
    pub fn set_length(self, packet: &mut [u8], bytes: usize) {
        let (at, told) = match self {
            IpVersion::V4 => (2, bytes),
            // IPv6's payload length does not count the fixed header, IPv4's total length does.
            IpVersion::V6 => (4, bytes - IPV6_BYTES),
        };
        packet[at..at + 2].copy_from_slice(&u16::try_from(told).unwrap_or(0).to_be_bytes());
    }

    /// Returns the length of a packet with its header, as read from the header.
    ///
    /// # Panics
    /// If the field is missing.
    ///
    /// ```
    /// use offload_formats::IpVersion;
    ///
    /// let header = [0x60, 0, 0, 0, 0, 8, 59, 64];
    /// assert_eq!(IpVersion::V6.length(&header), 48);
    /// ```
    pub fn length(self, packet: &[u8]) -> usize {
        let told = |at: usize| usize::from(u16::from_be_bytes([packet[at], packet[at + 1]]));
        match self {
            IpVersion::V4 => told(2),
            IpVersion::V6 => IPV6_BYTES + told(4),
        }
    }

    /// Returns the source and destination of a packet.
    ///
    /// # Panics
    /// If the header is incomplete.
    ///
    /// ```
    /// use offload_formats::IpVersion;
    ///
    /// let header = [0x45, 0, 0, 20, 0, 0, 0, 0, 64, 50, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    /// let (source, destination) = IpVersion::V4.addresses(&header);
    /// assert_eq!((source.to_string(), destination.to_string()), ("10.0.0.1".into(), "10.0.0.2".into()));
    /// ```
    pub fn addresses(self, packet: &[u8]) -> (IpAddr, IpAddr) {
        (self.address(packet, 0), self.address(packet, 1))
    }

    fn address(self, packet: &[u8], which: usize) -> IpAddr {
        match self {
            IpVersion::V4 => {
                let at = 12 + 4 * which;
                IpAddr::V4(Ipv4Addr::new(packet[at], packet[at + 1], packet[at + 2], packet[at + 3]))
            }
            IpVersion::V6 => {
                let at = 8 + 16 * which;
                let mut octets = [0; 16];
                octets.copy_from_slice(&packet[at..at + 16]);
                IpAddr::V6(Ipv6Addr::from_octets(octets))
            }
        }
    }

    /// Returns the largest packet length that a header can hold.
    const fn longest(self) -> usize {
        match self {
            IpVersion::V4 => u16::MAX as usize,
            IpVersion::V6 => IPV6_BYTES + u16::MAX as usize,
        }
    }

    /// Returns the position of the ECN bits in the header's second byte. IPv6's traffic class begins in the first byte.
    const fn ecn_shift(self) -> u32 {
        match self {
            IpVersion::V4 => 0,
            IpVersion::V6 => 4,
        }
    }

    /// Returns the EtherType.
    pub const fn ether_type(self) -> u16 {
        match self {
            IpVersion::V4 => 0x0800,
            IpVersion::V6 => 0x86dd,
        }
    }
}

/// The headers of a packet, up to the transport header. Offsets count from the start of the IP header.
///
/// ```
/// use offload_formats::{IpHeaders, IpVersion};
///
/// let mut packet = vec![0; 48];
/// packet[0] = 0x60; // IPv6
/// packet[5] = 8; // bytes after the header
/// packet[6] = 17; // UDP
/// packet[39] = 1; // to ::1
/// let headers = IpHeaders::parse(&packet)?;
/// assert_eq!((headers.version, headers.protocol, headers.upper, headers.end), (IpVersion::V6, 17, 40, 48));
/// assert_eq!(headers.destination(&packet), "::1".parse::<std::net::IpAddr>().unwrap());
/// # Ok::<(), offload_formats::HeaderError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpHeaders {
    /// The packet's version of IP.
    pub version: IpVersion,
    /// Protocol (next header) number of the data at [`upper`](Self::upper).
    pub protocol: u8,
    /// Offset of the transport header. In a fragment: offset of the fragment's data.
    pub upper: usize,
    /// End of the packet, as read from its header. The bytes after the end are padding.
    pub end: usize,
    /// Position in the original packet, if this is a fragment.
    pub fragment: Option<Fragment>,
    /// End of the headers that every fragment repeats: the IPv4 header, or the headers before the fragment header.
    unfragmentable: usize,
    /// Offset of the byte that names the protocol at [`upper`](Self::upper), or the fragment header.
    named_at: usize,
}

/// The position of a fragment in its packet.
///
/// ```
/// use offload_formats::{Fragment, IpHeaders};
///
/// let mut packet = [0x45; 28];
/// packet[2..4].copy_from_slice(&[0, 28]);
/// packet[4..8].copy_from_slice(&[0, 9, 0x20, 3]);
/// packet[9] = 17;
/// let headers = IpHeaders::parse(&packet)?;
/// assert_eq!(headers.fragment, Some(Fragment { identification: 9, offset: 24, more: true }));
/// # Ok::<(), offload_formats::HeaderError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Identification, unique among the packets between two hosts.
    pub identification: u32,
    /// Offset of the data in the packet, in bytes.
    pub offset: usize,
    /// Whether more fragments follow.
    pub more: bool,
}

/// The reason that a packet's headers cannot be parsed.
///
/// ```
/// use offload_formats::{HeaderError, IpHeaders};
///
/// assert_eq!(IpHeaders::parse(&[0x45; 19]), Err(HeaderError::Truncated));
/// assert_eq!(IpHeaders::parse(&[0x00; 40]), Err(HeaderError::Version(0)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// The packet ends before its headers do, or before the end stated in its header.
    #[error("the packet ends too early")]
    Truncated,
    /// The IP version is unknown.
    #[error("there is no IP version {0}")]
    Version(u8),
    /// A length field has an impossible value.
    #[error("a length in the IP header is invalid")]
    Length,
    /// The packet has too many extension headers.
    #[error("too many extension headers")]
    TooManyExtensions,
    /// An IPv4 option is truncated, or is a source route with further hops, for which this host is not the destination.
    #[error("an option in the IPv4 header is invalid at this host")]
    Option,
    /// An extension header is not acceptable (RFC 8200 4).
    #[error("an extension header is not acceptable: {0:?}")]
    Unacceptable(HeaderProblem),
}

/// The fault in a header, as an ICMPv6 "parameter problem" reports it (RFC 4443 3.4).
///
/// See [`HeaderError`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderProblem {
    /// 0: wrong field; 1: unknown next header; 2: unknown option.
    pub code: u8,
    /// Offset of the fault in the packet.
    pub pointer: u32,
    /// Whether to report the fault to the sender.
    pub report: ReportRule,
}

/// The rule for reporting an unacceptable packet to its sender.
///
/// See [`HeaderError`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportRule {
    /// The sender is never told.
    Never,
    /// The sender is told, unless the packet went to a multicast address.
    UnlessMulticast,
    /// The sender is always told.
    Always,
}

impl IpHeaders {
    /// Parses a complete packet that starts with its IP header.
    ///
    /// # Errors
    /// If the packet is incomplete or its headers are invalid.
    pub fn parse(packet: &[u8]) -> Result<IpHeaders, HeaderError> {
        IpHeaders::walk(packet)?.within(packet)
    }

    /// Parses a packet that a device joined from several. If the packet is too long for its length field, the field is
    /// zero and the packet ends with `packet`. A packet from the wire is never that long, and a zero length is then an
    /// error, as in [`parse`](Self::parse).
    ///
    /// # Errors
    /// If the packet is incomplete or its headers are invalid.
    ///
    /// ```
    /// use offload_formats::{HeaderError, IpHeaders, IpVersion};
    ///
    /// let mut packet = vec![0x45; 100_000];
    /// packet[6..8].fill(0); // no fragment
    /// IpVersion::V4.set_length(&mut packet, 100_000);
    /// assert_eq!(IpHeaders::parse(&packet), Err(HeaderError::Length));
    /// assert_eq!(IpHeaders::parse_joined(&packet)?.end, 100_000);
    /// assert_eq!(IpHeaders::parse_joined(&packet[..1500]), Err(HeaderError::Length));
    /// # Ok::<(), offload_formats::HeaderError>(())
    /// ```
    pub fn parse_joined(packet: &[u8]) -> Result<IpHeaders, HeaderError> {
        let mut headers = IpHeaders::walk(packet)?;
        let says_nothing = match headers.version {
            IpVersion::V4 => headers.end == 0,
            IpVersion::V6 => headers.end == IPV6_BYTES,
        };
        if says_nothing && packet.len() > headers.version.longest() {
            headers.end = packet.len();
        }
        headers.within(packet)
    }

    /// Parses headers alone, of an unfinished packet or a truncated quotation. Length fields are not compared with the
    /// bytes present.
    ///
    /// # Errors
    /// If the headers are incomplete or invalid.
    pub fn walk(packet: &[u8]) -> Result<IpHeaders, HeaderError> {
        match packet.first().ok_or(HeaderError::Truncated)? >> 4 {
            4 => walk_four(packet),
            6 => walk_six(packet),
            version => Err(HeaderError::Version(version)),
        }
    }

    /// Returns the offset of the byte that holds [`protocol`](Self::protocol); in a fragment, the byte that announces
    /// the fragment header.
    pub fn protocol_at(&self) -> usize {
        self.named_at
    }

    /// Returns the end of the headers that every fragment repeats: the IPv4 header, or the headers before the fragment
    /// header.
    pub fn unfragmentable(&self) -> usize {
        self.unfragmentable
    }

    /// Returns the source of the packet that these headers were parsed from.
    pub fn source(&self, packet: &[u8]) -> IpAddr {
        self.version.address(packet, 0)
    }

    /// Returns the destination of the packet that these headers were parsed from.
    pub fn destination(&self, packet: &[u8]) -> IpAddr {
        self.version.address(packet, 1)
    }

    /// Returns the ECN bits (RFC 3168 5) of the packet that these headers were parsed from.
    pub fn ecn(&self, packet: &[u8]) -> u8 {
        packet[1] >> self.version.ecn_shift() & ECN
    }

    /// Checks that the offsets lie in `packet`.
    fn within(self, packet: &[u8]) -> Result<IpHeaders, HeaderError> {
        if self.end > packet.len() {
            return Err(HeaderError::Truncated);
        }
        // The stated end lies inside the headers, so the packet contradicts itself.
        if self.upper > self.end {
            return Err(HeaderError::Length);
        }
        Ok(self)
    }
}

fn walk_four(packet: &[u8]) -> Result<IpHeaders, HeaderError> {
    let fixed = packet.first_chunk::<IPV4_BYTES>().ok_or(HeaderError::Truncated)?;
    let header_bytes = usize::from(fixed[0] & 0x0f) * 4;
    if header_bytes < IPV4_BYTES {
        return Err(HeaderError::Length);
    }
    if packet.len() < header_bytes {
        return Err(HeaderError::Truncated);
    }
    check_options_of_four(&packet[IPV4_BYTES..header_bytes])?;
    let place = number(fixed, 6);
    let fragment = Fragment {
        identification: u32::from(number(fixed, 4)),
        offset: usize::from(place & 0x1fff) * 8,
        more: place & 0x2000 != 0,
    };
    Ok(IpHeaders {
        version: IpVersion::V4,
        protocol: fixed[9],
        upper: header_bytes,
        end: usize::from(number(fixed, 2)),
        fragment: (fragment.more || fragment.offset > 0).then_some(fragment),
        unfragmentable: header_bytes,
        named_at: 9,
    })
}

/// Checks that IPv4 options are complete (RFC 791 3.1). Refuses source routes with further hops, which only routers may
/// follow (RFC 7126 4.3, 4.4).
fn check_options_of_four(mut options: &[u8]) -> Result<(), HeaderError> {
    loop {
        options = match options {
            [] | [END_OF_OPTIONS, ..] => return Ok(()),
            [NO_OPERATION, rest @ ..] => rest,
            [kind, length, ..] => {
                let length = usize::from(*length);
                // The length counts the kind and itself, so a smaller value could never be skipped.
                let option = options.get(..length).filter(|_| length >= 2).ok_or(HeaderError::Option)?;
                let is_route = matches!(*kind, LOOSE_ROUTE | STRICT_ROUTE);
                // The pointer beyond the option's end means that the route is complete, and the packet has arrived.
                if is_route && option.get(2).is_none_or(|next| usize::from(*next) <= length) {
                    return Err(HeaderError::Option);
                }
                &options[length..]
            }
            [_] => return Err(HeaderError::Option),
        };
    }
}

fn walk_six(packet: &[u8]) -> Result<IpHeaders, HeaderError> {
    let fixed = packet.first_chunk::<IPV6_BYTES>().ok_or(HeaderError::Truncated)?;
    let mut headers = IpHeaders {
        version: IpVersion::V6,
        protocol: fixed[6],
        upper: IPV6_BYTES,
        end: IPV6_BYTES + usize::from(number(fixed, 4)),
        fragment: None,
        unfragmentable: IPV6_BYTES,
        named_at: 6,
    };
    // The bound keeps the cost of one packet constant; legitimate chains are shorter.
    for _ in 0..=MAX_EXTENSIONS {
        let (at, extension) = (headers.upper, headers.protocol);
        if !is_extension(extension) {
            return Ok(headers);
        }
        let start = packet.get(at..at + 8).ok_or(HeaderError::Truncated)?;
        if extension == FRAGMENT {
            let place = number(start, 2);
            headers.fragment = Some(Fragment {
                identification: u32::from_be_bytes([start[4], start[5], start[6], start[7]]),
                offset: usize::from(place & 0xfff8),
                more: place & 1 != 0,
            });
            if start[0] == HOP_BY_HOP {
                // Behind the fragment header, hop-by-hop options would become the first header after reassembly, where
                // they are valid, although no router saw them.
                return Err(unacceptable(1, at, ReportRule::Always));
            }
            headers.protocol = start[0];
            headers.upper = at + 8;
            // The following headers belong to the whole packet and are parsed after reassembly.
            return Ok(headers);
        }
        let bytes = (usize::from(start[1]) + 1) * 8;
        let whole = packet.get(at..at + bytes).ok_or(HeaderError::Truncated)?;
        match extension {
            // RFC 8200 4.1: hop-by-hop options must come first.
            HOP_BY_HOP if at != IPV6_BYTES => return Err(unacceptable(1, headers.named_at, ReportRule::Always)),
            // RFC 8200 4.4: an unknown routing type with segments left is refused; without, the header is skipped.
            ROUTING if whole[3] != 0 => return Err(unacceptable(0, at + 2, ReportRule::Always)),
            ROUTING => {}
            _ => check_options(whole, at)?,
        }
        headers.protocol = start[0];
        headers.named_at = at;
        headers.upper = at + bytes;
        // Headers before the fragment header are repeated in every fragment.
        headers.unfragmentable = headers.upper;
    }
    Err(HeaderError::TooManyExtensions)
}

/// Tests for an extension header of IPv6 (RFC 8200 4) that is followed by another header. ESP, AH and mobility count as
/// protocols.
///
/// ```
/// use offload_formats::ip::is_extension;
///
/// assert!(is_extension(60), "destination options");
/// assert!(!is_extension(50), "ESP");
/// ```
pub const fn is_extension(protocol: u8) -> bool {
    matches!(protocol, HOP_BY_HOP | DESTINATION_OPTIONS | ROUTING | FRAGMENT)
}

/// Tests whether `data`, which starts with a header of kind `next`, contains a complete transport header. A first
/// fragment without one is dropped (RFC 8200 4.5).
pub fn reaches_upper_layer(mut next: u8, mut data: &[u8]) -> bool {
    for _ in 0..=MAX_EXTENSIONS {
        let header_bytes = match next {
            HOP_BY_HOP | DESTINATION_OPTIONS | ROUTING => match data {
                [_, length, ..] => (usize::from(*length) + 1) * 8,
                _ => return false,
            },
            FRAGMENT => return false,
            TCP => return data.len() >= 20,
            UDP | ICMPV6 => return data.len() >= 8,
            _ => return true,
        };
        let Some(behind) = data.get(header_bytes..) else { return false };
        (next, data) = (data[0], behind);
    }
    false
}

/// Checks options. The two highest bits of an unknown option tell the action (RFC 8200 4.2).
fn check_options(header: &[u8], header_at: usize) -> Result<(), HeaderError> {
    let mut at = 2;
    while let Some(kind) = header.get(at) {
        if *kind == PAD_1 {
            at += 1;
            continue;
        }
        let bytes = usize::from(*header.get(at + 1).ok_or(HeaderError::Length)?);
        let report = match kind >> 6 {
            0 => None,
            1 => Some(ReportRule::Never),
            2 => Some(ReportRule::Always),
            _ => Some(ReportRule::UnlessMulticast),
        };
        if let Some(report) = report {
            return Err(unacceptable(2, header_at + at, report));
        }
        at += 2 + bytes;
    }
    // Options must fill the extension header exactly; an option that overruns it is a forgery.
    if at == header.len() { Ok(()) } else { Err(HeaderError::Length) }
}

fn unacceptable(code: u8, pointer: usize, report: ReportRule) -> HeaderError {
    HeaderError::Unacceptable(HeaderProblem { code, pointer: pointer as u32, report })
}

/// Reads a big-endian number at `at`.
fn number(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

const IPV4_BYTES: usize = 20;
/// Mask of the ECN bits.
const ECN: u8 = 0b11;
const IPV6_BYTES: usize = 40;
/// IPv4 options. The first two have no length byte.
const END_OF_OPTIONS: u8 = 0;
const NO_OPERATION: u8 = 1;
const LOOSE_ROUTE: u8 = 131;
const STRICT_ROUTE: u8 = 137;
const PAD_1: u8 = 0;
/// Maximum number of extension headers. RFC 8200 4.1 names five.
const MAX_EXTENSIONS: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use smoltcp::wire::{IpProtocol, Ipv6Packet, Ipv6Repr};

    fn six(next: u8, extensions: &[&[u8]]) -> Vec<u8> {
        let behind = extensions.concat();
        let mut packet = vec![0; IPV6_BYTES];
        let repr = Ipv6Repr {
            src_addr: "fd00::1".parse().unwrap(),
            dst_addr: "fd00::2".parse().unwrap(),
            next_header: IpProtocol::from(next),
            payload_len: behind.len(),
            hop_limit: 64,
        };
        repr.emit(&mut Ipv6Packet::new_unchecked(&mut packet[..]));
        packet.extend_from_slice(&behind);
        packet
    }

    #[test]
    fn known_extension_headers_are_skipped() {
        let hop_by_hop = [ROUTING, 0, 5, 2, 0, 0, 1, 0]; // router alert, padding
        let routing = [DESTINATION_OPTIONS, 1, 0, 0, 0, 0, 0, 0, 9, 9, 9, 9, 9, 9, 9, 9];
        let options = [6, 0, 0x1e, 4, 1, 2, 3, 4]; // unknown, to be skipped
        let packet = six(HOP_BY_HOP, &[&hop_by_hop, &routing, &options, &[7; 20]]);
        let headers = IpHeaders::parse(&packet).unwrap();
        assert_eq!((headers.protocol, headers.upper, headers.end), (6, 72, 92));
        assert_eq!((headers.fragment, headers.unfragmentable, headers.named_at), (None, 72, 64));
        assert_eq!(headers.source(&packet), "fd00::1".parse::<IpAddr>().unwrap());
    }

    #[test]
    fn unacceptable_header_is_reported_with_its_offset() {
        let problem = |next, extensions: &[&[u8]]| match IpHeaders::parse(&six(next, extensions)) {
            Err(HeaderError::Unacceptable(HeaderProblem { code, pointer, report })) => (code, pointer, report),
            other => panic!("{other:?}"),
        };
        for (bits, report) in
            [(0x40, ReportRule::Never), (0x80, ReportRule::Always), (0xc0, ReportRule::UnlessMulticast)]
        {
            assert_eq!(problem(DESTINATION_OPTIONS, &[&[6, 0, 0, 0x1e | bits, 3, 1, 2, 3]]), (2, 43, report));
        }
        assert_eq!(problem(ROUTING, &[&[6, 0, 4, 1, 0, 0, 0, 0]]), (0, 42, ReportRule::Always));
        let late = [&[HOP_BY_HOP, 0, 1, 4, 0, 0, 0, 0][..], &[6, 0, 1, 4, 0, 0, 0, 0]];
        assert_eq!(problem(DESTINATION_OPTIONS, &late), (1, 40, ReportRule::Always));
    }

    #[test]
    fn overrunning_options_and_long_chains_are_refused() {
        assert_eq!(IpHeaders::parse(&six(DESTINATION_OPTIONS, &[&[6, 0, 1, 5, 0, 0, 0, 0]])), Err(HeaderError::Length));
        let again = [DESTINATION_OPTIONS, 0, 1, 4, 0, 0, 0, 0];
        assert_eq!(IpHeaders::parse(&six(DESTINATION_OPTIONS, &[&again[..]; 20])), Err(HeaderError::TooManyExtensions));
        assert_eq!(
            IpHeaders::parse(&six(DESTINATION_OPTIONS, &[&[6, 1, 1, 4, 0, 0, 0, 0]])),
            Err(HeaderError::Truncated)
        );
    }

    #[test]
    fn invalid_ipv4_options_are_refused() {
        let with = |options: &[u8]| {
            let mut packet = vec![0; IPV4_BYTES + options.len() + 8];
            let bytes = packet.len() as u16;
            packet[0] = 0x40 | (5 + options.len() / 4) as u8;
            packet[2..4].copy_from_slice(&bytes.to_be_bytes());
            packet[IPV4_BYTES..IPV4_BYTES + options.len()].copy_from_slice(options);
            IpHeaders::parse(&packet).map(|headers| headers.upper)
        };
        let good: [&[u8]; 5] = [
            &[1, 1, 1, 0],
            &[0, 7, 0, 7],                // arbitrary bytes past the end
            &[148, 4, 0, 0],              // router alert
            &[131, 7, 8, 10, 0, 0, 2, 0], // a route without further hops
            &[7, 7, 4, 0, 0, 0, 0, 1],    // a record of the route
        ];
        for options in good {
            assert_eq!(with(options), Ok(IPV4_BYTES + options.len()), "{options:?}");
        }
        let bad: [&[u8]; 6] = [
            &[131, 7, 4, 10, 0, 0, 2, 0],
            &[137, 7, 4, 10, 0, 0, 2, 0],
            &[1, 137, 2, 0],
            &[7, 0, 0, 0],
            &[7, 1, 0, 0],
            &[1, 1, 7, 3],
        ];
        for options in bad {
            assert_eq!(with(options), Err(HeaderError::Option), "{options:?}");
        }
        assert_eq!(with(&[1, 1, 1, 7]), Err(HeaderError::Option), "no room for its length");
    }

    #[test]
    fn hop_by_hop_behind_fragment_header_is_refused() {
        let header = [HOP_BY_HOP, 0, 0, 1, 1, 2, 3, 4];
        let problem = HeaderProblem { code: 1, pointer: 40, report: ReportRule::Always };
        assert_eq!(IpHeaders::parse(&six(FRAGMENT, &[&header, &[0; 16]])), Err(HeaderError::Unacceptable(problem)));
    }

    #[test]
    fn fragment_fields_are_parsed() {
        let header = [17, 0, 0x01, 0xa9, 1, 2, 3, 4];
        let headers = IpHeaders::parse(&six(FRAGMENT, &[&header, &[0; 16]])).unwrap();
        let fragment = Fragment { identification: 0x0102_0304, offset: 0x1a8, more: true };
        assert_eq!((headers.fragment, headers.protocol), (Some(fragment), 17));
        assert_eq!((headers.upper, headers.unfragmentable, headers.named_at), (48, 40, 6));
    }

    proptest! {
        #[test]
        fn parser_accepts_any_bytes_without_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..200), six: bool, fits: bool) {
            if let Some(first) = bytes.first_mut() {
                *first = if six { 0x60 } else { 0x45 };
            }
            if fits && bytes.len() >= 40 {
                let (at, length) = if six { (4, bytes.len() - 40) } else { (2, bytes.len()) };
                bytes[at..at + 2].copy_from_slice(&(length as u16).to_be_bytes());
            }
            prop_assert_eq!(IpHeaders::parse_joined(&bytes), IpHeaders::parse(&bytes), "of a length that its header can tell");
            if let Ok(headers) = IpHeaders::parse(&bytes) {
                prop_assert!(headers.unfragmentable <= headers.upper && headers.upper <= headers.end);
                prop_assert!(headers.end <= bytes.len() && headers.named_at < headers.upper);
                headers.source(&bytes);
                headers.destination(&bytes);
            }
        }
    }
}
