//! The Internet checksum (RFC 1071) in ESP: of the UDP header around ESP, and of a transport packet that its sender
//! left to a device. The device sees the packet only encrypted, so the checksum must be filled in before.

use core::net::IpAddr;
use offload_formats::InternetSum;
use offload_formats::IpView;
use offload_formats::protocol;

/// Fills in the TCP or UDP checksum of a whole packet parsed as `view`, and the checksum of its IPv4 header. Packets of
/// other protocols are not changed after the IP header.
pub fn fill(packet: &mut [u8], view: &IpView) {
    if !view.is_ipv6() {
        offload_formats::checksum::fill_ipv4_header(packet);
    }
    // A fragment's transport checksum covers data in other fragments.
    if !view.fragment {
        fill_transport(&mut packet[view.header..view.total], view.protocol, view.source, view.destination);
    }
}

/// Fills in the checksum of an IP payload, if it is TCP or UDP.
pub fn fill_transport(text: &mut [u8], protocol: u8, source: IpAddr, destination: IpAddr) {
    let field = match protocol {
        protocol::TCP => 16,
        protocol::UDP => 6,
        _ => return,
    };
    // A truncated header has no field to fill in.
    if field + 2 > text.len() {
        return;
    }
    text[field..field + 2].fill(0);
    let mut sum = InternetSum::pseudo_header(protocol, source, destination, text.len());
    sum.add(text);
    let sum = match sum.finish() {
        0 if protocol == protocol::UDP => 0xffff, // RFC 768: zero means that there is no checksum
        sum => sum,
    };
    text[field..field + 2].copy_from_slice(&sum.to_be_bytes());
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

    #[test]
    fn udp_checksum_is_never_zero() {
        for (protocol, field, told) in [(protocol::UDP, 6, [0xff, 0xff]), (protocol::TCP, 16, [0, 0])] {
            let mut packet = packet(false, protocol, &[0; 40]);
            packet[20 + 12] = if protocol == protocol::TCP { 0x50 } else { 0 };
            let view = IpView::parse(&packet).unwrap();
            fill(&mut packet, &view);
            // The payload supplies the missing amount, so that the sum becomes zero.
            let lacking = [packet[20 + field], packet[20 + field + 1]];
            packet[20 + 30..20 + 32].copy_from_slice(&lacking);
            fill(&mut packet, &view);
            assert_eq!(packet[20 + field..20 + field + 2], told);
        }
    }

    proptest! {
        #[test]
        fn checksums_are_valid_for_smoltcp(v6: bool, tcp: bool, mut payload in prop::collection::vec(any::<u8>(), 20..1500)) {
            if tcp {
                payload[12] = 0x50;
            } else {
                let length = payload.len() as u16;
                payload[4..6].copy_from_slice(&length.to_be_bytes());
            }
            let mut packet = packet(v6, if tcp { protocol::TCP } else { protocol::UDP }, &payload);
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
