//! GTP-U (TS 29.281): tunnels between nodes of a mobile network. Each end names a tunnel by a number (TEID).

use crate::number;

/// A GTP-U header, carried by UDP to port 2152. Extension headers are skipped.
///
/// ```
/// use offload_formats::{Gtpu, GtpuMessage};
///
/// let mut datagram = [0; 11];
/// Gtpu::new(GtpuMessage::Data, 0x1234, 3).write(&mut datagram);
/// datagram[8..].copy_from_slice(b"PDU");
/// assert_eq!(datagram, *b"\x30\xff\x00\x03\x00\x00\x12\x34PDU");
///
/// let header = Gtpu::parse(&datagram).unwrap();
/// assert_eq!((header.tunnel, header.message), (0x1234, GtpuMessage::Data));
/// assert_eq!(datagram[header.payload()], *b"PDU");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gtpu {
    /// Type of the message.
    pub message: GtpuMessage,
    /// Tunnel endpoint identifier (TEID) at the receiver.
    pub tunnel: u32,
    /// Sequence number, if present.
    pub number: Option<u16>,
    /// Size of the header in bytes, with options and extension headers.
    header_bytes: usize,
    payload_bytes: usize,
}

/// The type of a GTP-U message.
///
/// ```
/// use offload_formats::{Gtpu, GtpuMessage};
///
/// let header = Gtpu::parse(&[0x30, 254, 0, 0, 0, 0, 0, 1]).unwrap();
/// assert_eq!(header.message, GtpuMessage::EndMarker);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GtpuMessage {
    /// A test whether the path works.
    EchoRequest,
    /// The answer to an echo request.
    EchoResponse,
    /// The tunnel does not exist.
    ErrorIndication,
    /// The last packet of this tunnel.
    EndMarker,
    /// A user's packet (G-PDU).
    Data,
    /// Another type.
    Other(u8),
}

impl Gtpu {
    /// UDP port.
    pub const PORT: u16 = 2152;
    /// Size of the header without options, in bytes.
    pub const BYTES: usize = 8;

    /// Creates a header without options for a payload of `payload_bytes` bytes.
    ///
    /// # Panics
    /// If the payload does not fit into a length of 16 bits.
    pub fn new(message: GtpuMessage, tunnel: u32, payload_bytes: usize) -> Gtpu {
        assert!(payload_bytes <= usize::from(u16::MAX), "{payload_bytes} bytes do not fit into a datagram");
        Gtpu { message, tunnel, number: None, header_bytes: Gtpu::BYTES, payload_bytes }
    }

    /// Parses the header at the start of a complete datagram payload. Refuses versions other than 1, and GTP'
    /// (charging). Bytes after the header's length are ignored.
    pub fn parse(datagram: &[u8]) -> Option<Gtpu> {
        let [flags, message, _, _, tunnel @ ..] = *datagram.first_chunk::<{ Gtpu::BYTES }>()?;
        if flags & (VERSION | IS_GTP) != VERSION_1 | IS_GTP {
            return None;
        }
        // The length field counts all bytes after the first eight, so options and extension headers belong to it.
        let end = Gtpu::BYTES + usize::from(number(datagram, 2)?);
        let datagram = datagram.get(..end)?;
        let mut header_bytes = Gtpu::BYTES;
        let mut sequence = None;
        if flags & (EXTENSION | SEQUENCE | N_PDU) != 0 {
            let [high, low, _, mut next] = *datagram.get(header_bytes..)?.first_chunk::<4>()?;
            sequence = (flags & SEQUENCE != 0).then_some(u16::from_be_bytes([high, low]));
            header_bytes += 4;
            // TS 29.281 5.1: each of the three flags adds all three fields; a field without its flag has no meaning.
            while flags & EXTENSION != 0 && next != NO_EXTENSION {
                // An extension header states its length in units of four bytes, and names the next type in its last
                // byte.
                let bytes = 4 * usize::from(*datagram.get(header_bytes)?);
                if bytes == 0 {
                    // A zero length would keep the parser at the same place forever.
                    return None;
                }
                header_bytes += bytes;
                next = *datagram.get(header_bytes - 1)?;
            }
        }
        Some(Gtpu {
            message: GtpuMessage::from_byte(message),
            tunnel: u32::from_be_bytes(tunnel),
            number: sequence,
            header_bytes,
            payload_bytes: end - header_bytes,
        })
    }

    /// Returns the size of the header in bytes, with options and extension headers.
    pub const fn bytes(&self) -> usize {
        self.header_bytes
    }

    /// Returns the range of the payload in the datagram.
    pub const fn payload(&self) -> std::ops::Range<usize> {
        self.header_bytes..self.header_bytes + self.payload_bytes
    }

    /// Writes the header without options to the start of `datagram`.
    ///
    /// # Panics
    /// If `datagram` has fewer than [`Gtpu::BYTES`] bytes.
    pub fn write(&self, datagram: &mut [u8]) {
        datagram[..2].copy_from_slice(&[VERSION_1 | IS_GTP, self.message.to_byte()]);
        datagram[2..4].copy_from_slice(&(self.payload_bytes as u16).to_be_bytes());
        datagram[4..8].copy_from_slice(&self.tunnel.to_be_bytes());
    }
}

impl GtpuMessage {
    /// Maps a message type (TS 29.281 6.1).
    const fn from_byte(byte: u8) -> GtpuMessage {
        match byte {
            1 => GtpuMessage::EchoRequest,
            2 => GtpuMessage::EchoResponse,
            26 => GtpuMessage::ErrorIndication,
            254 => GtpuMessage::EndMarker,
            255 => GtpuMessage::Data,
            other => GtpuMessage::Other(other),
        }
    }

    const fn to_byte(self) -> u8 {
        match self {
            GtpuMessage::EchoRequest => 1,
            GtpuMessage::EchoResponse => 2,
            GtpuMessage::ErrorIndication => 26,
            GtpuMessage::EndMarker => 254,
            GtpuMessage::Data => 255,
            GtpuMessage::Other(other) => other,
        }
    }
}

const VERSION: u8 = 0xe0;
const VERSION_1: u8 = 0x20;
/// PT: the protocol is GTP, not GTP'.
const IS_GTP: u8 = 0x10;
/// The flags E, S and PN.
const EXTENSION: u8 = 0x04;
const SEQUENCE: u8 = 0x02;
const N_PDU: u8 = 0x01;
const NO_EXTENSION: u8 = 0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_and_extension_headers_are_skipped() {
        // A sequence number, and an NR RAN container of two words.
        let datagram = [
            0x36, 0xff, 0, 14, 0, 0, 0, 7, 0x12, 0x34, 0, 0x84, 2, 1, 2, 3, 4, 5, 6, 0, 0xaa, 0xbb, 0xcc, //
        ];
        let header = Gtpu::parse(&datagram[..22]).unwrap();
        assert_eq!((header.tunnel, header.number, header.bytes()), (7, Some(0x1234), 20));
        assert_eq!(datagram[header.payload()], [0xaa, 0xbb]);
        assert_eq!(Gtpu::parse(&datagram), Some(header), "what is behind the length is not read");
        for short in 0..22 {
            assert_eq!(Gtpu::parse(&datagram[..short]), None);
        }
    }

    #[test]
    fn extension_header_of_length_zero_is_refused() {
        assert_eq!(Gtpu::parse(&[0x34, 0xff, 0, 8, 0, 0, 0, 7, 0, 0, 0, 0x84, 0, 0, 0, 0x84]), None);
        // The next extension type counts only if its flag is set.
        let header = Gtpu::parse(&[0x32, 0xff, 0, 4, 0, 0, 0, 7, 0, 9, 0, 0x84]).unwrap();
        assert_eq!((header.number, header.payload()), (Some(9), 12..12));
    }

    #[test]
    fn other_versions_and_charging_are_refused() {
        assert_eq!(Gtpu::parse(&[0x50, 0xff, 0, 0, 0, 0, 0, 7]), None);
        assert_eq!(Gtpu::parse(&[0x20, 0xff, 0, 0, 0, 0, 0, 7]), None);
    }
}
