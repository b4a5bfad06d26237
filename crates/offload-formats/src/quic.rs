//! The headers of QUIC packets as far as they are readable without keys (RFC 8999, RFC 9000 17).

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
    /// Where the protected packet number starts: behind the destination connection ID.
    pub number_at: usize,
}

impl ShortHeader {
    /// Reads the packet at the start of a datagram's payload, whose destination connection ID has `cid_bytes` bytes: the
    /// receiver chose it, the packet does not tell.
    pub fn parse(packet: &[u8], cid_bytes: usize) -> Option<ShortHeader> {
        let is_short = packet.first()? & (LONG | FIXED) == FIXED;
        (is_short && packet.len() > cid_bytes).then_some(ShortHeader { number_at: 1 + cid_bytes })
    }

    /// The destination connection ID of the packet that this was read from.
    pub fn destination<'a>(&self, packet: &'a [u8]) -> &'a [u8] {
        &packet[1..self.number_at]
    }
}

const LONG: u8 = 0x80;
const FIXED: u8 = 0x40;
