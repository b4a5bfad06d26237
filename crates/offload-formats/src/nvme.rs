//! The common header of NVMe/TCP PDUs (NVMe/TCP Transport Specification 1.0, 3.6.1).

/// The eight bytes that each PDU starts with.
///
/// ```
/// use offload_formats::nvme::PduHeader;
///
/// let header = PduHeader::parse(&[0x07, 0b10, 24, 24, 0x20, 2, 0, 0]);
/// assert_eq!((header.kind, header.header_len, header.data_offset, header.len), (7, 24, 24, 0x220));
/// assert!(header.has_data_digest() && !header.has_header_digest());
/// assert_eq!(header.to_bytes(), [0x07, 0b10, 24, 24, 0x20, 2, 0, 0]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PduHeader {
    /// PDU-Type.
    pub kind: u8,
    /// FLAGS.
    pub flags: u8,
    /// HLEN: bytes of the header, its digest not included.
    pub header_len: u8,
    /// PDO: where the data start, in bytes from the PDU's start; zero without data.
    pub data_offset: u8,
    /// PLEN: bytes of the PDU, digests included.
    pub len: u32,
}

impl PduHeader {
    /// Bytes of the common header.
    pub const BYTES: usize = 8;
    /// HDGSTF: a digest follows the header.
    pub const HEADER_DIGEST: u8 = 1 << 0;
    /// DDGSTF: a digest follows the data.
    pub const DATA_DIGEST: u8 = 1 << 1;

    /// Reads a common header. Any bytes are one: what they say is for the reader to judge.
    pub const fn parse(bytes: &[u8; PduHeader::BYTES]) -> PduHeader {
        let [kind, flags, header_len, data_offset, a, b, c, d] = *bytes;
        PduHeader { kind, flags, header_len, data_offset, len: u32::from_le_bytes([a, b, c, d]) }
    }

    /// The header on the wire.
    pub const fn to_bytes(self) -> [u8; PduHeader::BYTES] {
        let [a, b, c, d] = self.len.to_le_bytes();
        [self.kind, self.flags, self.header_len, self.data_offset, a, b, c, d]
    }

    /// Whether a digest follows the header.
    pub const fn has_header_digest(self) -> bool {
        self.flags & PduHeader::HEADER_DIGEST != 0
    }

    /// Whether a digest follows the data.
    pub const fn has_data_digest(self) -> bool {
        self.flags & PduHeader::DATA_DIGEST != 0
    }
}
