//! The ESP header (RFC 4303 2), directly over IP or in UDP (RFC 3948).

/// The unencrypted fields of an ESP packet.
///
/// ```
/// use offload_formats::esp;
///
/// let header = esp::parse(&[0, 0, 0x10, 1, 0, 0, 0, 7, 99]).unwrap();
/// assert_eq!((header.spi, header.low), (0x1001, 7));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EspHeader {
    /// Security parameters index.
    pub spi: u32,
    /// Lower half of the sequence number.
    pub low: u32,
}

/// Parses the header at the start of `packet`.
pub fn parse(packet: &[u8]) -> Option<EspHeader> {
    let [a, b, c, d, e, f, g, h] = *packet.first_chunk::<HEADER_BYTES>()?;
    Some(EspHeader { spi: u32::from_be_bytes([a, b, c, d]), low: u32::from_be_bytes([e, f, g, h]) })
}

/// Size of the header in bytes.
pub const HEADER_BYTES: usize = 8;
/// The UDP port of ESP in UDP.
pub const UDP_PORT: u16 = 4500;
