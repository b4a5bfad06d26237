//! The header of TLS records (RFC 8446 5.1, RFC 5246 6.2.1).

/// The five bytes at the start of each record.
///
/// ```
/// use offload_formats::tls::RecordHeader;
///
/// let header = RecordHeader::parse(&[23, 3, 3, 0x40, 0x11]);
/// assert_eq!((header.content_type, header.version, header.len), (23, 0x0303, 0x4011));
/// assert_eq!(header.to_bytes(), [23, 3, 3, 0x40, 0x11]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecordHeader {
    /// Content type in the header. A protected record of TLS 1.3 always shows 23.
    pub content_type: u8,
    /// The legacy version, 0x0303 in protected records.
    pub version: u16,
    /// Number of bytes after the header.
    pub len: u16,
}

impl RecordHeader {
    /// Size of the header in bytes.
    pub const BYTES: usize = 5;

    /// Parses a header. Any bytes are accepted; the caller checks the values.
    pub const fn parse(bytes: &[u8; RecordHeader::BYTES]) -> RecordHeader {
        let [content_type, a, b, c, d] = *bytes;
        RecordHeader { content_type, version: u16::from_be_bytes([a, b]), len: u16::from_be_bytes([c, d]) }
    }

    /// Returns the header's bytes on the wire.
    pub const fn to_bytes(self) -> [u8; RecordHeader::BYTES] {
        let ([a, b], [c, d]) = (self.version.to_be_bytes(), self.len.to_be_bytes());
        [self.content_type, a, b, c, d]
    }
}
