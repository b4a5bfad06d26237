//! Handmade frames, and a host's answers.

use crate::pair::{ADDRESS, HostPair, MAC};
use core::net::IpAddr;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{EthernetAddress, EthernetFrame, EthernetProtocol, IpProtocol, IpRepr};

/// Returns a frame from side 0.
pub(crate) fn ethernet(to: [u8; 6], ethertype: EthernetProtocol, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; 14];
    let mut header = EthernetFrame::new_unchecked(&mut frame[..]);
    header.set_dst_addr(EthernetAddress(to));
    header.set_src_addr(EthernetAddress(MAC[0]));
    header.set_ethertype(ethertype);
    frame.extend_from_slice(payload);
    frame
}

/// Returns an IP packet in a frame from side 0 to side 1.
pub(crate) fn packet(from: IpAddr, to: IpAddr, protocol: IpProtocol, payload: &[u8]) -> Vec<u8> {
    let ip = IpRepr::new(from.into(), to.into(), protocol, payload.len(), 64);
    let mut bytes = vec![0; ip.header_len()];
    ip.emit(&mut bytes[..], &ChecksumCapabilities::default());
    bytes.extend_from_slice(payload);
    let ethertype = if to.is_ipv4() { EthernetProtocol::Ipv4 } else { EthernetProtocol::Ipv6 };
    ethernet(MAC[1], ethertype, &bytes)
}

/// Returns an IP packet from side 0's address to side 1's, in a frame.
pub(crate) fn across(protocol: IpProtocol, payload: &[u8]) -> Vec<u8> {
    packet(ADDRESS[0], ADDRESS[1], protocol, payload)
}

/// Delivers a frame to side 1 and returns the frames that side 1 sends.
pub(crate) fn answers(pair: &mut HostPair, frame: &[u8]) -> Vec<Vec<u8>> {
    pair.nics[1].port().deliver(frame);
    while pair.stacks[1].poll(pair.now, &mut pair.nics[1]) {}
    pair.nics[1].port().drain().into()
}

/// Parses the IP header of a frame.
pub(crate) fn ip_of(frame: &[u8]) -> IpRepr {
    use smoltcp::wire::{Ipv4Packet, Ipv4Repr, Ipv6Packet, Ipv6Repr};
    if frame[12..14] == [0x86, 0xdd] {
        IpRepr::Ipv6(Ipv6Repr::parse(&Ipv6Packet::new_checked(&frame[14..]).unwrap()).unwrap())
    } else {
        let packet = Ipv4Packet::new_checked(&frame[14..]).unwrap();
        IpRepr::Ipv4(Ipv4Repr::parse(&packet, &ChecksumCapabilities::default()).unwrap())
    }
}
