//! Where the headers of a packet are, IPv4 or IPv6, as much of them as cutting and joining needs.
//!
//! Invariant: the offsets of a `Headers` lie in the packet it was read from.

use offload_formats::checksum::fill_ipv4_header;
use offload_formats::{Sum, Version};

/// Offsets into an Ethernet frame that carries IP, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Headers {
    pub(super) version: Version,
    /// Where the IP header starts.
    pub(super) network: usize,
    /// Where the transport header starts.
    pub(super) transport: usize,
    /// Where the payload starts.
    pub(super) payload: usize,
}

/// A transport protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    Tcp,
    Udp,
}

impl Headers {
    /// Reads a packet whose transport header is known to start at `transport` (behind whatever extension headers
    /// there are) and to be of the kind given. `None`: it cannot be so.
    pub(super) fn with_transport_at(packet: &[u8], transport: usize, kind: Transport) -> Option<Headers> {
        let (version, network) = network_header(packet)?;
        let least = match version {
            Version::Four => IPV4_BYTES,
            Version::Six => IPV6_BYTES,
        };
        if transport < network + least {
            return None;
        }
        let header_bytes = match kind {
            Transport::Udp => UDP_BYTES,
            Transport::Tcp => usize::from(*packet.get(transport + TCP_DATA_OFFSET)? >> 4) * 4,
        };
        let payload = transport + header_bytes;
        let fits = header_bytes >= if kind == Transport::Tcp { TCP_BYTES } else { UDP_BYTES };
        (fits && payload <= packet.len()).then_some(Headers { version, network, transport, payload })
    }

    /// Reads a packet that is all there and nothing more, and carries TCP right behind an IP header that is not
    /// that of a fragment. `None`: it is something else.
    pub(super) fn of_tcp(packet: &[u8]) -> Option<Headers> {
        let (version, network) = network_header(packet)?;
        let ip = &packet[network..];
        let (transport, whole) = match version {
            Version::Four => {
                let header_bytes = usize::from(ip[0] & 0x0f) * 4;
                // RFC 791: more fragments, or an offset: the rest of the packet is elsewhere.
                let is_fragment = number(ip, 6) & 0x3fff != 0;
                if header_bytes < IPV4_BYTES || is_fragment || ip[9] != PROTOCOL_TCP {
                    return None;
                }
                (network + header_bytes, usize::from(number(ip, 2)))
            }
            Version::Six => {
                if ip[6] != PROTOCOL_TCP {
                    return None;
                }
                (network + IPV6_BYTES, IPV6_BYTES + usize::from(number(ip, 4)))
            }
        };
        if whole != ip.len() {
            return None;
        }
        Headers::with_transport_at(packet, transport, Transport::Tcp)
    }

    /// Gives the IP header the length of `packet`, and `identification` if it has one, and fills its checksum in.
    pub(super) fn set_network(&self, header: &mut [u8], packet_bytes: usize, identification: u16) {
        let ip_bytes = packet_bytes - self.network;
        let ip = &mut header[self.network..self.transport];
        match self.version {
            Version::Four => {
                set_number(ip, 2, ip_bytes as u16);
                set_number(ip, 4, identification);
                fill_ipv4_header(ip);
            }
            Version::Six => set_number(ip, 4, (ip_bytes - IPV6_BYTES) as u16),
        }
    }

    /// The identification of an IPv4 packet; zero in one that has none.
    pub(super) fn identification(&self, header: &[u8]) -> u16 {
        match self.version {
            Version::Four => number(header, self.network + 4),
            Version::Six => 0,
        }
    }

    /// Source and destination address, one behind the other.
    pub(super) fn addresses<'a>(&self, header: &'a [u8]) -> &'a [u8] {
        match self.version {
            Version::Four => &header[self.network + 12..self.network + 20],
            Version::Six => &header[self.network + 8..self.network + 40],
        }
    }

    /// The sum of the pseudo header (RFC 9293 3.1, RFC 8200 8.1) of a transport packet of so many bytes.
    pub(super) fn pseudo_sum(&self, header: &[u8], protocol: u8, transport_bytes: usize) -> Sum {
        let mut sum = Sum::default();
        sum.add(self.addresses(header));
        let bytes = (transport_bytes as u32).to_be_bytes();
        sum.add(&[0, protocol, bytes[0], bytes[1], bytes[2], bytes[3]]);
        sum
    }
}

/// Finds the IP header behind Ethernet's and as many VLAN tags as there may be, whole in its fixed part.
fn network_header(packet: &[u8]) -> Option<(Version, usize)> {
    let mut at = ETHER_TYPE;
    for _ in 0..=MOST_TAGS {
        let network = at + 2;
        let version = packet.get(network)? >> 4;
        match (number_at(packet, at)?, version) {
            (0x0800, 4) if packet.len() >= network + IPV4_BYTES => return Some((Version::Four, network)),
            (0x86dd, 6) if packet.len() >= network + IPV6_BYTES => return Some((Version::Six, network)),
            (0x8100 | 0x88a8, _) => at += 4,
            _ => return None,
        }
    }
    None
}

fn number_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

/// The number at `at`, the higher byte first.
pub(super) fn number(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// Writes a number at `at`, the higher byte first.
pub(super) fn set_number(bytes: &mut [u8], at: usize, number: u16) {
    bytes[at..at + 2].copy_from_slice(&number.to_be_bytes());
}

pub(super) const PROTOCOL_TCP: u8 = 6;
pub(super) const PROTOCOL_UDP: u8 = 17;
pub(super) const IPV4_BYTES: usize = 20;
pub(super) const IPV6_BYTES: usize = 40;
pub(super) const UDP_BYTES: usize = 8;
/// Where the checksum is in a UDP header.
pub(super) const UDP_CHECKSUM: usize = 6;
pub(super) const TCP_BYTES: usize = 20;
/// Where the length of the header is in a TCP header.
pub(super) const TCP_DATA_OFFSET: usize = 12;
/// Where the flags are in a TCP header.
pub(super) const TCP_FLAGS: usize = 13;
/// Where the checksum is in a TCP header.
pub(super) const TCP_CHECKSUM: usize = 16;
pub(super) const FIN: u8 = 0x01;
pub(super) const PSH: u8 = 0x08;
pub(super) const ACK: u8 = 0x10;
pub(super) const CWR: u8 = 0x80;
/// Where Ethernet says what it carries.
const ETHER_TYPE: usize = 12;
/// IEEE 802.1ad: a service tag and a customer tag.
const MOST_TAGS: usize = 2;
