//! The common header of NVMe/TCP PDUs (NVMe/TCP Transport Specification 1.0, 3.6.1).

/// The eight bytes at the start of each PDU.
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
    /// HLEN: size of the header in bytes, without its digest.
    pub header_len: u8,
    /// PDO: offset of the data from the PDU's start in bytes, or zero if there are no data.
    pub data_offset: u8,
    /// PLEN: size of the PDU in bytes, with digests.
    pub len: u32,
}

impl PduHeader {
    /// Size of the common header in bytes.
    pub const BYTES: usize = 8;
    /// HDGSTF: a digest follows the header.
    pub const HEADER_DIGEST: u8 = 1 << 0;
    /// DDGSTF: a digest follows the data.
    pub const DATA_DIGEST: u8 = 1 << 1;

    /// Parses a common header. Any bytes are accepted; the caller checks the values.
    pub const fn parse(bytes: &[u8; PduHeader::BYTES]) -> PduHeader {
        let [kind, flags, header_len, data_offset, a, b, c, d] = *bytes;
        PduHeader { kind, flags, header_len, data_offset, len: u32::from_le_bytes([a, b, c, d]) }
    }

    /// Returns the header's bytes on the wire.
    pub const fn to_bytes(self) -> [u8; PduHeader::BYTES] {
        let [a, b, c, d] = self.len.to_le_bytes();
        [self.kind, self.flags, self.header_len, self.data_offset, a, b, c, d]
    }

    /// Tests whether a digest follows the header.
    pub const fn has_header_digest(self) -> bool {
        self.flags & PduHeader::HEADER_DIGEST != 0
    }

    /// Tests whether a digest follows the data.
    pub const fn has_data_digest(self) -> bool {
        self.flags & PduHeader::DATA_DIGEST != 0
    }
}
