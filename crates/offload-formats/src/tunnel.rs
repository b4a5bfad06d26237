//! Tunnels for Ethernet or IP: VXLAN (RFC 7348), GRE (RFC 2784, RFC 2890) and Geneve (RFC 8926).

use crate::number;

/// A VXLAN header, carried by UDP to port 4789 and followed by an Ethernet frame.
///
/// ```
/// use offload_formats::Vxlan;
///
/// let header = Vxlan { network: 0x123456 };
/// assert_eq!(header.to_bytes(), [0x08, 0, 0, 0, 0x12, 0x34, 0x56, 0]);
/// assert_eq!(Vxlan::parse(&header.to_bytes()), Some(header));
/// assert_eq!(Vxlan::parse(&[0; 8]), None, "the flag that a network is named");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Vxlan {
    /// Network identifier (VNI), 24 bits.
    pub network: u32,
}

impl Vxlan {
    /// UDP port.
    pub const PORT: u16 = 4789;
    /// Size of the header in bytes.
    pub const BYTES: usize = 8;

    /// Parses the header at the start of a datagram's payload. Reserved bits are ignored (RFC 7348 5).
    pub fn parse(payload: &[u8]) -> Option<Vxlan> {
        let [flags, _, _, _, high, middle, low, _] = *payload.first_chunk::<{ Vxlan::BYTES }>()?;
        (flags & NETWORK_IS_NAMED != 0).then_some(Vxlan { network: u32::from_be_bytes([0, high, middle, low]) })
    }

    /// Returns the header's bytes on the wire. Only the lower 24 bits of the network are sent.
    pub const fn to_bytes(self) -> [u8; Vxlan::BYTES] {
        let [_, high, middle, low] = self.network.to_be_bytes();
        [NETWORK_IS_NAMED, 0, 0, 0, high, middle, low, 0]
    }
}

/// A GRE header, carried by IP as protocol 47.
///
/// ```
/// use offload_formats::Gre;
///
/// let gre = Gre::parse(&[0x20, 0, 0x65, 0x58, 0, 0, 0, 9]).unwrap();
/// assert_eq!((gre.protocol, gre.key, gre.bytes()), (Gre::ETHERNET, Some(9), 8));
/// assert_eq!(Gre::parse(&[0x20, 0, 0x65, 0x58]), None, "the key is missing");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gre {
    /// EtherType of the inner packet.
    pub protocol: u16,
    /// Whether the header has a checksum.
    pub checksum: bool,
    /// Key, if present.
    pub key: Option<u32>,
    /// Sequence number, if present.
    pub number: Option<u32>,
}

impl Gre {
    /// EtherType of an Ethernet frame in GRE ("transparent Ethernet bridging").
    pub const ETHERNET: u16 = 0x6558;

    /// Parses the header at the start of an IP payload. Refuses versions other than 0, and routes (RFC 1701).
    pub fn parse(packet: &[u8]) -> Option<Gre> {
        let flags = number(packet, 0)?;
        if flags & (ROUTING | VERSION) != 0 {
            return None;
        }
        let protocol = number(packet, 2)?;
        let mut at = 4;
        // RFC 2890 2: optional fields follow each other in the order of their flags, each with four bytes.
        let mut field = |flag: u16| {
            if flags & flag == 0 {
                return Some(None);
            }
            let bytes = packet.get(at..at + 4)?;
            at += 4;
            Some(Some(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])))
        };
        let (checksum, key, number) = (field(CHECKSUM)?, field(KEY)?, field(SEQUENCE)?);
        Some(Gre { protocol, checksum: checksum.is_some(), key, number })
    }

    /// Returns the size of the header in bytes.
    pub const fn bytes(&self) -> usize {
        4 + 4 * (self.checksum as usize + self.key.is_some() as usize + self.number.is_some() as usize)
    }

    /// Writes the header to the start of `packet`. A checksum field is left zero.
    ///
    /// # Panics
    /// If `packet` has fewer than [`bytes`](Self::bytes) bytes.
    ///
    /// ```
    /// use offload_formats::Gre;
    ///
    /// let gre = Gre { protocol: Gre::ETHERNET, checksum: true, key: Some(9), number: None };
    /// let mut header = [0xff; 12];
    /// gre.write(&mut header);
    /// assert_eq!(header, [0xa0, 0, 0x65, 0x58, 0, 0, 0, 0, 0, 0, 0, 9]);
    /// assert_eq!(Gre::parse(&header), Some(gre));
    /// ```
    pub fn write(&self, packet: &mut [u8]) {
        let mut flags = 0;
        let mut at = 4;
        for (flag, field) in [(CHECKSUM, self.checksum.then_some(0)), (KEY, self.key), (SEQUENCE, self.number)] {
            if let Some(field) = field {
                flags |= flag;
                packet[at..at + 4].copy_from_slice(&field.to_be_bytes());
                at += 4;
            }
        }
        packet[..2].copy_from_slice(&flags.to_be_bytes());
        packet[2..4].copy_from_slice(&self.protocol.to_be_bytes());
    }
}

/// A Geneve header, carried by UDP to port 6081.
///
/// ```
/// use offload_formats::Geneve;
///
/// let header = Geneve { network: 0x123456, protocol: Geneve::ETHERNET, option_bytes: 0, oam: false, critical: false };
/// assert_eq!(header.to_bytes(), [0, 0, 0x65, 0x58, 0x12, 0x34, 0x56, 0]);
/// assert_eq!(Geneve::parse(&header.to_bytes()), Some(header));
/// assert_eq!(Geneve::parse(&[1, 0, 0x65, 0x58, 0, 0, 1, 0]), None, "an option is missing");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Geneve {
    /// Network identifier (VNI), 24 bits.
    pub network: u32,
    /// EtherType of the inner packet.
    pub protocol: u16,
    /// Size of the options after the fixed header, in bytes: a multiple of 4 up to 252.
    pub option_bytes: u8,
    /// Whether this is a control packet between the ends of the tunnel.
    pub oam: bool,
    /// Whether the receiver must understand one of the options.
    pub critical: bool,
}

impl Geneve {
    /// UDP port.
    pub const PORT: u16 = 6081;
    /// EtherType of an Ethernet frame in Geneve.
    pub const ETHERNET: u16 = Gre::ETHERNET;
    /// Size of the fixed header in bytes.
    pub const BYTES: usize = 8;

    /// Parses the header at the start of a datagram's payload that contains all its options. Refuses versions other
    /// than 0. Reserved bits are ignored (RFC 8926 3.4).
    pub fn parse(payload: &[u8]) -> Option<Geneve> {
        let [first, flags, high_type, low_type, high, middle, low, _] = *payload.first_chunk::<{ Geneve::BYTES }>()?;
        let option_bytes = (first & 0x3f) * 4;
        let is_read = first >> 6 == 0 && payload.len() >= Geneve::BYTES + usize::from(option_bytes);
        is_read.then(|| Geneve {
            network: u32::from_be_bytes([0, high, middle, low]),
            protocol: u16::from_be_bytes([high_type, low_type]),
            option_bytes,
            oam: flags & CONTROL != 0,
            critical: flags & CRITICAL != 0,
        })
    }

    /// Returns the size of the header in bytes, with options.
    pub const fn bytes(&self) -> usize {
        Geneve::BYTES + self.option_bytes as usize
    }

    /// Returns the fixed header's bytes on the wire. Only the lower 24 bits of the network are sent.
    pub const fn to_bytes(self) -> [u8; Geneve::BYTES] {
        let [_, high, middle, low] = self.network.to_be_bytes();
        let [high_type, low_type] = self.protocol.to_be_bytes();
        let flags = if self.critical { CRITICAL } else { 0 } | if self.oam { CONTROL } else { 0 };
        [self.option_bytes / 4, flags, high_type, low_type, high, middle, low, 0]
    }
}

/// VXLAN's flag I.
const NETWORK_IS_NAMED: u8 = 0x08;
/// Geneve's flag O.
const CONTROL: u8 = 0x80;
/// Geneve's flag C.
const CRITICAL: u8 = 0x40;
const CHECKSUM: u16 = 0x8000;
const ROUTING: u16 = 0x4000;
const KEY: u16 = 0x2000;
const SEQUENCE: u16 = 0x1000;
const VERSION: u16 = 0x0007;
