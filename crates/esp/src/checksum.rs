//! The Internet checksum (RFC 1071) where ESP touches it: IPv4 headers, UDP around ESP, and the transport checksum that
//! a stack left to a device which will only see it encrypted.

use crate::ip::IpView;
use crate::{PROTOCOL_TCP, PROTOCOL_UDP};
use core::net::IpAddr;

/// The one's complement sum of `bytes`, added to `sum`. Ranges of odd length only at the end.
fn add(sum: u64, bytes: &[u8]) -> u64 {
    // Four 32-bit words a turn into 64-bit sums: carries fold at the end, and the loop vectorises.
    let mut blocks = bytes.chunks_exact(16);
    let mut sums = [0u64; 4];
    for block in &mut blocks {
        for (sum, word) in sums.iter_mut().zip(block.chunks_exact(4)) {
            *sum += u64::from(u32::from_be_bytes([word[0], word[1], word[2], word[3]]));
        }
    }
    let mut total = sums.iter().sum::<u64>();
    let mut pairs = blocks.remainder().chunks_exact(2);
    for pair in &mut pairs {
        total += u64::from(u16::from_be_bytes([pair[0], pair[1]]));
    }
    if let [last] = pairs.remainder() {
        total += u64::from(*last) << 8;
    }
    sum + (total >> 32) + (total & 0xffff_ffff)
}

fn finish(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    !(sum as u16)
}

/// Fills in the checksum of the IPv4 header that `packet` starts with.
///
/// ```
/// let mut header = [0x45, 0, 0, 20, 0, 0, 0, 0, 64, 50, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
/// esp::checksum::fill_ipv4_header(&mut header);
/// assert_eq!(header[10..12], [0x66, 0xb6]);
/// ```
pub fn fill_ipv4_header(packet: &mut [u8]) {
    let header = usize::from(packet[0] & 0x0f) * 4;
    packet[10..12].fill(0);
    let sum = finish(add(0, &packet[..header]));
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// Fills in the TCP or UDP checksum of a whole packet that `view` was read from, and that of its IPv4 header. Other
/// protocols are left alone.
pub fn fill(packet: &mut [u8], view: &IpView) {
    if !view.is_ipv6() {
        fill_ipv4_header(packet);
    }
    if !view.fragment {
        fill_transport(&mut packet[view.header..view.total], view.protocol, view.source, view.destination);
    }
}

/// Fills in the checksum of what is behind an IP header, if it is TCP or UDP.
pub fn fill_transport(text: &mut [u8], protocol: u8, source: IpAddr, destination: IpAddr) {
    let field = match protocol {
        PROTOCOL_TCP => 16,
        PROTOCOL_UDP => 6,
        _ => return,
    };
    if field + 2 > text.len() {
        return;
    }
    text[field..field + 2].fill(0);
    let mut sum = finish(add(pseudo_header(source, destination, protocol, text.len()), text));
    if protocol == PROTOCOL_UDP && sum == 0 {
        sum = 0xffff; // RFC 768: zero says that there is none
    }
    text[field..field + 2].copy_from_slice(&sum.to_be_bytes());
}

/// RFC 9293 3.1, RFC 8200 8.1.
fn pseudo_header(source: IpAddr, destination: IpAddr, protocol: u8, bytes: usize) -> u64 {
    let sum = match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => add(add(0, &source.octets()), &destination.octets()),
        (IpAddr::V6(source), IpAddr::V6(destination)) => add(add(0, &source.octets()), &destination.octets()),
        _ => 0,
    };
    sum + u64::from(protocol) + bytes as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use smoltcp::wire::{IpAddress, Ipv4Packet, TcpPacket, UdpPacket};

    fn packet(v6: bool, protocol: u8, payload: &[u8]) -> Vec<u8> {
        let mut packet = if v6 {
            let mut header = vec![0x60, 0, 0, 0, 0, 0, protocol, 64];
            header.extend_from_slice(&[0x11; 32]);
            header[4..6].copy_from_slice(&(payload.len() as u16).to_be_bytes());
            header
        } else {
            let mut header = vec![0x45, 0, 0, 0, 1, 2, 0x40, 0, 64, protocol, 9, 9, 10, 0, 0, 1, 10, 0, 0, 2];
            header[2..4].copy_from_slice(&(20 + payload.len() as u16).to_be_bytes());
            header
        };
        packet.extend_from_slice(payload);
        packet
    }

    proptest! {
        #[test]
        fn smoltcp_finds_them_right(v6: bool, tcp: bool, mut payload in prop::collection::vec(any::<u8>(), 20..1500)) {
            if tcp {
                payload[12] = 0x50;
            } else {
                let length = payload.len() as u16;
                payload[4..6].copy_from_slice(&length.to_be_bytes());
            }
            let mut packet = packet(v6, if tcp { PROTOCOL_TCP } else { PROTOCOL_UDP }, &payload);
            let view = IpView::parse(&packet).unwrap();
            fill(&mut packet, &view);
            let (source, destination) = (IpAddress::from(view.source), IpAddress::from(view.destination));
            if !v6 {
                prop_assert!(Ipv4Packet::new_checked(&packet[..]).unwrap().verify_checksum());
            }
            let text = &packet[view.header..];
            if tcp {
                prop_assert!(TcpPacket::new_checked(text).unwrap().verify_checksum(&source, &destination));
            } else {
                prop_assert!(UdpPacket::new_checked(text).unwrap().verify_checksum(&source, &destination));
            }
        }
    }
}
