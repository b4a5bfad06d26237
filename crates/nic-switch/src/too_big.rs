//! ICMP messages about oversized packets, so that the sender uses shorter ones. The switch does not fragment.
//!
//! The message's source is the packet's destination, as with Linux tunnels, because the switch has no address in the
//! sender's network.

use bytes::{Bytes, BytesMut};
use core::net::IpAddr;
use offload_formats::protocol::{ICMP, ICMPV6};
use offload_formats::{Headers, InternetSum, IpVersion, checksum};

/// Returns the message for the sender of a frame: packets may have at most `mtu` bytes. Returns `None` for packets
/// about which no message may be sent (RFC 1122 3.2.2, RFC 4443 2.4).
pub(crate) fn message(frame: &[u8], headers: &Headers, mtu: u16) -> Option<Bytes> {
    let (version, network) = headers.network()?;
    let packet = frame.get(network..)?;
    let (source, destination) = version.addresses(packet);
    let (protocol, upper) = headers.upper()?;
    // One multicast packet must not cause messages from many receivers.
    let is_group = frame[0] & 1 == 1 || is_group(destination) || is_group(source) || source.is_unspecified();
    let is_report = protocol == icmp(version) && is_report(version, frame.get(upper).copied());
    if is_group || is_report || (headers.is_fragment() && !crate::key::is_first(frame, version, network, upper)) {
        return None;
    }
    let most = match version {
        // Maximum length of the message: RFC 1812 4.3.2.3, RFC 4443 2.4 (c).
        IpVersion::V4 => 576,
        IpVersion::V6 => 1280,
    };
    // Quotes as much of the packet as fits, so that the sender can find its connection.
    let quoted = &packet[..packet.len().min(most - version.header_bytes() - ICMP_BYTES)];
    let bytes = version.header_bytes() + ICMP_BYTES + quoted.len();
    // The reply swaps the Ethernet addresses and keeps all VLAN tags.
    let mut message = BytesMut::with_capacity(network + bytes);
    message.extend_from_slice(&frame[6..12]);
    message.extend_from_slice(&frame[..6]);
    message.extend_from_slice(&frame[12..network]);
    message.resize(network + version.header_bytes(), 0);
    write_ip(&mut message[network..], destination, source);
    version.set_length(&mut message[network..], bytes);
    // RFC 1191 4: destination unreachable, fragmentation needed. RFC 4443 3.2: packet too big.
    let (kind, code) = if version == IpVersion::V4 { (3, 4) } else { (2, 0) };
    message.extend_from_slice(&[kind, code, 0, 0, 0, 0]);
    message.extend_from_slice(&mtu.to_be_bytes());
    message.extend_from_slice(quoted);
    let at = network + version.header_bytes();
    let mut sum = match version {
        IpVersion::V4 => {
            checksum::fill_ipv4_header(&mut message[network..]);
            InternetSum::default()
        }
        IpVersion::V6 => InternetSum::pseudo_header(ICMPV6, destination, source, message.len() - at),
    };
    sum.add(&message[at..]);
    message[at + 2..at + 4].copy_from_slice(&sum.finish().to_be_bytes());
    Some(message.freeze())
}

fn write_ip(packet: &mut [u8], source: IpAddr, destination: IpAddr) {
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            (packet[0], packet[6], packet[8], packet[9]) = (0x45, 0x40, HOPS, ICMP);
            packet[12..16].copy_from_slice(&source.octets());
            packet[16..20].copy_from_slice(&destination.octets());
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            (packet[0], packet[6], packet[7]) = (0x60, ICMPV6, HOPS);
            packet[8..24].copy_from_slice(&source.octets());
            packet[24..40].copy_from_slice(&destination.octets());
        }
        _ => unreachable!("both addresses are of one packet"),
    }
}

fn is_group(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_multicast() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_multicast(),
    }
}

fn icmp(version: IpVersion) -> u8 {
    if version == IpVersion::V4 { ICMP } else { ICMPV6 }
}

/// Tests whether an ICMP message is an error report. No report may be sent about a report.
fn is_report(version: IpVersion, kind: Option<u8>) -> bool {
    match (version, kind) {
        (_, None) => true,
        (IpVersion::V4, Some(kind)) => matches!(kind, 3..=5 | 11 | 12),
        (IpVersion::V6, Some(kind)) => kind < 128,
    }
}

const ICMP_BYTES: usize = 8;
const HOPS: u8 = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packet(six: bool, protocol: u8, bytes: usize) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        if six {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, (bytes >> 8) as u8, bytes as u8, protocol, 64]);
            frame.extend([0xfd; 16]);
            frame.extend([0xfe; 16]);
        } else {
            frame.extend([8, 0, 0x45, 0, ((bytes + 20) >> 8) as u8, (bytes + 20) as u8, 0, 7, 0x40, 0, 64, protocol]);
            frame.extend([0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        }
        frame.resize(frame.len() + bytes, 0x11);
        frame
    }

    #[test]
    fn the_error_comes_from_the_frames_destination() {
        for (six, most) in [(false, 576), (true, 1280)] {
            // A packet below and a packet above the length that can be quoted.
            for bytes in [100, 1460] {
                let frame = packet(six, 17, bytes);
                let message = message(&frame, &Headers::parse(&frame), 1416).unwrap();
                assert_eq!((&message[..6], &message[6..12]), (&frame[6..12], &frame[..6]));
                let headers = Headers::parse(&message);
                let (version, network) = headers.network().unwrap();
                assert_eq!(version.addresses(&message[network..]), {
                    let (source, destination) = version.addresses(&frame[network..]);
                    (destination, source)
                });
                let (protocol, at) = headers.upper().unwrap();
                assert_eq!(headers.end(), message.len());
                assert!(message.len() - network <= most);
                // ICMPv6 covers a pseudo header, ICMP does not.
                let mut sum = match six {
                    true => {
                        let (source, destination) = version.addresses(&message[network..]);
                        InternetSum::pseudo_header(protocol, source, destination, message.len() - at)
                    }
                    false => InternetSum::default(),
                };
                sum.add(&message[at..]);
                assert!(sum.is_right() && (six || checksum::is_ipv4_header_right(&message[network..])));
                assert_eq!(message[at..at + 2], if six { [2, 0] } else { [3, 4] });
                assert_eq!(message[at + 6..at + 8], 1416u16.to_be_bytes());
                // The quote starts at the IP header of the offending packet.
                assert!(frame[network..].starts_with(&message[at + 8..]));
            }
        }
    }

    #[test]
    fn nobody_is_told_of_reports_groups_and_later_fragments() {
        let told = |frame: &[u8]| message(frame, &Headers::parse(frame), 1416).is_some();
        let mut report = packet(false, 1, 600);
        report[34] = 3;
        assert!(!told(&report));
        report[34] = 8;
        assert!(told(&report), "an echo request");
        let mut group = packet(false, 17, 600);
        group[30] = 224;
        assert!(!told(&group));
        let mut fragment = packet(false, 17, 600);
        fragment[20..22].copy_from_slice(&[0x20, 0]);
        assert!(told(&fragment), "the first");
        fragment[21] = 9;
        assert!(!told(&fragment));
        assert!(!told(&[2; 60]), "no IP");
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered_or_not(bytes in prop::collection::vec(any::<u8>(), 14..200), kind in 0..3usize) {
            let mut frame = bytes;
            let claim: &[u8] = [&[][..], &[8, 0, 0x45], &[0x86, 0xdd, 0x60]][kind];
            if frame.len() > 20 {
                frame[12..12 + claim.len()].copy_from_slice(claim);
            }
            message(&frame, &Headers::parse(&frame), 100);
        }
    }
}
