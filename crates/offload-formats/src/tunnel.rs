//! Tunnels that carry Ethernet or IP: VXLAN (RFC 7348), GRE (RFC 2784, RFC 2890) and Geneve (RFC 8926).

use crate::number;

/// A VXLAN header, which UDP carries to port 4789; an Ethernet frame follows it.
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
    /// The network's identifier (VNI), 24 bits.
    pub network: u32,
}

impl Vxlan {
    /// The UDP port.
    pub const PORT: u16 = 4789;
    /// Bytes of the header.
    pub const BYTES: usize = 8;

    /// Reads the header at the start of a datagram's payload. Reserved bits are ignored (RFC 7348 5).
    pub fn parse(payload: &[u8]) -> Option<Vxlan> {
        let [flags, _, _, _, high, middle, low, _] = *payload.first_chunk::<{ Vxlan::BYTES }>()?;
        (flags & NETWORK_IS_NAMED != 0).then_some(Vxlan { network: u32::from_be_bytes([0, high, middle, low]) })
    }

    /// The header on the wire. Only the lower 24 bits of the network are sent.
    pub const fn to_bytes(self) -> [u8; Vxlan::BYTES] {
        let [_, high, middle, low] = self.network.to_be_bytes();
        [NETWORK_IS_NAMED, 0, 0, 0, high, middle, low, 0]
    }
}

/// A GRE header, which IP carries as protocol 47.
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
    /// The EtherType of what follows.
    pub protocol: u16,
    /// Whether a checksum is there.
    pub checksum: bool,
    /// The key, if there is one.
    pub key: Option<u32>,
    /// The sequence number, if there is one.
    pub number: Option<u32>,
}

impl Gre {
    /// The EtherType of an Ethernet frame within GRE ("transparent Ethernet bridging").
    pub const ETHERNET: u16 = 0x6558;

    /// Reads the header at the start of what IP carries. Other versions than 0, and routes (RFC 1701), are not read.
    pub fn parse(packet: &[u8]) -> Option<Gre> {
        let flags = number(packet, 0)?;
        if flags & (ROUTING | VERSION) != 0 {
            return None;
        }
        let protocol = number(packet, 2)?;
        let mut at = 4;
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

    /// Bytes of the header.
    pub const fn bytes(&self) -> usize {
        4 + 4 * (self.checksum as usize + self.key.is_some() as usize + self.number.is_some() as usize)
    }

    /// Writes the header to the start of `packet`; its checksum, if it has one, is left zero.
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

/// A Geneve header, which UDP carries to port 6081.
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
    /// The network's identifier (VNI), 24 bits.
    pub network: u32,
    /// The EtherType of what follows.
    pub protocol: u16,
    /// Bytes of options behind the fixed header, a multiple of 4 up to 252.
    pub option_bytes: u8,
    /// Whether it is a control packet, of the tunnel's ends to each other.
    pub oam: bool,
    /// Whether one of the options has to be understood by who reads the packet.
    pub critical: bool,
}

impl Geneve {
    /// The UDP port.
    pub const PORT: u16 = 6081;
    /// The EtherType of an Ethernet frame within Geneve.
    pub const ETHERNET: u16 = Gre::ETHERNET;
    /// Bytes of the fixed header.
    pub const BYTES: usize = 8;

    /// Reads the header at the start of a datagram's payload, whose options are all there. Other versions than 0 are not
    /// read; reserved bits are ignored (RFC 8926 3.4).
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

    /// Bytes of the header, options included.
    pub const fn bytes(&self) -> usize {
        Geneve::BYTES + self.option_bytes as usize
    }

    /// The fixed header on the wire. Only the lower 24 bits of the network are sent.
    pub const fn to_bytes(self) -> [u8; Geneve::BYTES] {
        let [_, high, middle, low] = self.network.to_be_bytes();
        let [high_type, low_type] = self.protocol.to_be_bytes();
        let flags = if self.critical { CRITICAL } else { 0 } | if self.oam { CONTROL } else { 0 };
        [self.option_bytes / 4, flags, high_type, low_type, high, middle, low, 0]
    }
}

/// The flag I.
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
