//! The fields of QUIC headers that are readable without keys (RFC 8999, RFC 9000 17).

/// A packet with a short header (RFC 9000 17.3.1).
///
/// ```
/// use offload_formats::quic::ShortHeader;
///
/// let packet = [0x41, 1, 2, 3, 4, 0xaa, 0xbb];
/// let header = ShortHeader::parse(&packet, 4).unwrap();
/// assert_eq!((header.destination(&packet), header.number_at), (&[1, 2, 3, 4][..], 5));
/// assert_eq!(ShortHeader::parse(&[0xc1, 0, 0, 0, 1], 4), None, "a long header");
/// assert_eq!(ShortHeader::parse(&[0x01, 1, 2, 3, 4], 4), None, "the fixed bit is not set");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ShortHeader {
    /// Offset of the protected packet number, after the destination connection ID.
    pub number_at: usize,
}

impl ShortHeader {
    /// Parses the packet at the start of a datagram's payload. The packet does not tell the size of its destination
    /// connection ID: the receiver chose the ID and passes `cid_bytes`.
    pub fn parse(packet: &[u8], cid_bytes: usize) -> Option<ShortHeader> {
        let is_short = packet.first()? & (LONG | FIXED) == FIXED;
        (is_short && packet.len() > cid_bytes).then_some(ShortHeader { number_at: 1 + cid_bytes })
    }

    /// Parses like [`parse`](Self::parse), but ignores the fixed bit, which peers may randomize by agreement (RFC
    /// 9287).
    ///
    /// ```
    /// use offload_formats::quic::ShortHeader;
    ///
    /// assert_eq!(ShortHeader::parse_greased(&[0x01, 7, 0xaa], 1), Some(ShortHeader { number_at: 2 }));
    /// assert_eq!(ShortHeader::parse_greased(&[0x81, 7, 0xaa], 1), None, "a long header");
    /// ```
    pub fn parse_greased(packet: &[u8], cid_bytes: usize) -> Option<ShortHeader> {
        let is_short = packet.first()? & LONG == 0;
        (is_short && packet.len() > cid_bytes).then_some(ShortHeader { number_at: 1 + cid_bytes })
    }

    /// Returns the destination connection ID of the parsed packet.
    pub fn destination<'a>(&self, packet: &'a [u8]) -> &'a [u8] {
        &packet[1..self.number_at]
    }
}

/// A packet with a long header of version 1 or 2 (RFC 9000 17.2, RFC 9369), parsed as far as needed to find its end.
///
/// ```
/// use offload_formats::quic::LongHeader;
///
/// // A Handshake packet with connection IDs of 1 and 0 bytes, and 5 bytes of number and payload.
/// let packet = [0xe0, 0, 0, 0, 1, 1, 0xaa, 0, 5, 1, 2, 3, 4, 5, 0x40];
/// let header = LongHeader::parse(&packet).unwrap();
/// assert_eq!((header.version, header.number_at, header.end), (1, 9, 14));
/// assert_eq!(LongHeader::parse(&packet[..13]), None, "it is longer than that");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LongHeader {
    /// QUIC version.
    pub version: u32,
    /// Offset of the protected packet number.
    pub number_at: usize,
    /// End of the packet. Another packet may follow in the datagram.
    pub end: usize,
}

impl LongHeader {
    /// Parses the Initial, 0-RTT or Handshake packet at the start of `packet`. Returns `None` for other packets (Retry,
    /// Version Negotiation, other versions), which always fill their datagram.
    pub fn parse(packet: &[u8]) -> Option<LongHeader> {
        let [first, version @ .., _] = *packet.first_chunk::<6>()?;
        let version = u32::from_be_bytes(version);
        // QUIC version 2 renumbers the packet types, so that a middlebox cannot rely on them (RFC 9369 3.2).
        let [initial, retry] = match version {
            1 => [0, 3],
            VERSION_2 => [1, 0],
            _ => return None,
        };
        let kind = first >> 4 & 3;
        if first & LONG == 0 || kind == retry {
            return None;
        }
        let mut at = 5;
        for _ in ["destination", "source"] {
            let bytes = usize::from(*packet.get(at)?);
            // RFC 9000 17.2: longer connection IDs belong to other versions.
            at = (bytes <= MAX_CID_BYTES).then_some(at + 1 + bytes)?;
        }
        // Only Initial packets carry a token in front of the length.
        if kind == initial {
            let (token, bytes) = variable(packet.get(at..)?)?;
            at = at.checked_add(bytes)?.checked_add(token.try_into().ok()?)?;
        }
        let (length, bytes) = variable(packet.get(at..)?)?;
        let number_at = at + bytes;
        // The length comes from the network: a forged one must not overflow.
        let end = number_at.checked_add(length.try_into().ok()?)?;
        (end <= packet.len()).then_some(LongHeader { version, number_at, end })
    }
}

/// Returns the offset of the datagram's short-header packet, after its long-header packets. It is the last one (RFC
/// 9000 12.2).
///
/// ```
/// use offload_formats::quic::short_header_at;
///
/// assert_eq!(short_header_at(&[0xe0, 0, 0, 0, 1, 0, 0, 2, 9, 9, 0x40, 1]), Some(10));
/// assert_eq!(short_header_at(&[0x40, 1]), Some(0));
/// assert_eq!(short_header_at(&[0xe0, 0, 0, 0, 1, 0, 0, 2, 9, 9]), None);
/// ```
pub fn short_header_at(datagram: &[u8]) -> Option<usize> {
    let mut at = 0;
    while datagram.get(at)? & LONG != 0 {
        at += LongHeader::parse(&datagram[at..])?.end;
    }
    Some(at)
}

/// Parses a variable-length integer (RFC 9000 16) at the start of `bytes`. Returns the integer and its size in bytes.
///
/// ```
/// use offload_formats::quic::variable;
///
/// assert_eq!(variable(&[0x7b, 0xbd, 9]), Some((15_293, 2)));
/// assert_eq!(variable(&[0xc0, 0]), None);
/// ```
pub fn variable(bytes: &[u8]) -> Option<(u64, usize)> {
    let first = *bytes.first()?;
    let len = 1 << (first >> 6);
    let rest = bytes.get(1..len)?;
    Some((rest.iter().fold(u64::from(first & 0x3f), |value, byte| value << 8 | u64::from(*byte)), len))
}

/// Maximum size of a connection ID in versions 1 and 2 (RFC 9000 17.2).
pub const MAX_CID_BYTES: usize = 20;
/// The number of QUIC version 2 (RFC 9369 3.1).
const VERSION_2: u32 = 0x6b33_43cf;
const LONG: u8 = 0x80;
const FIXED: u8 = 0x40;
