//! Tunnels that carry Ethernet or IP: VXLAN (RFC 7348) and GRE (RFC 2784, RFC 2890).

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
}

/// The flag I.
const NETWORK_IS_NAMED: u8 = 0x08;
const CHECKSUM: u16 = 0x8000;
const ROUTING: u16 = 0x4000;
const KEY: u16 = 0x2000;
const SEQUENCE: u16 = 0x1000;
const VERSION: u16 = 0x0007;
