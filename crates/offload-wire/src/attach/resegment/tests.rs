//! Comparison with the device's segmentation and with smoltcp's parser, and random input.

use super::*;
use bytes::Bytes;
use nic_sim::wire::Port;
use nic_sim::{Delays, NicConfig};
use offload_api::{NetDevice, NoRecords, TransmitResult, TxAsk, TxPacket};
use offload_base::{Instant, Seq};
use proptest::prelude::*;
use smoltcp::wire::{IpAddress, Ipv4Packet, Ipv6Packet, TcpPacket, UdpPacket};

/// A packet from a kernel: the headers, the payload, and the sum of the pseudo header in the checksum field.
fn packet(ip: &[u8], transport: &[u8], payload: &[u8]) -> Vec<u8> {
    let ether_type: [u8; 2] = if ip[0] >> 4 == 4 { [8, 0] } else { [0x86, 0xdd] };
    [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1], &ether_type[..], ip, transport, payload].concat()
}

fn ipv4(protocol: u8, identification: u16, bytes: usize) -> Vec<u8> {
    let mut header = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    set_number(&mut header, 2, (20 + bytes) as u16);
    set_number(&mut header, 4, identification);
    header
}

fn ipv6(protocol: u8, bytes: usize) -> Vec<u8> {
    let mut header = vec![0x60, 0, 0, 0, 0, 0, protocol, 64];
    set_number(&mut header, 4, bytes as u16);
    header.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    header.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    header
}

fn tcp(seq: u32, flags: u8) -> Vec<u8> {
    let mut header = vec![0x01, 0xbb, 0x13, 0x88, 0, 0, 0, 0, 0, 0, 0, 77, 0x80, flags, 1, 2, 0, 0, 0, 0];
    header[4..8].copy_from_slice(&seq.to_be_bytes());
    header.extend([1, 1, 8, 10, 0, 0, 0, 9, 0, 0, 0, 8]); // timestamps
    header
}

fn udp(payload: usize) -> Vec<u8> {
    let mut header = vec![0x01, 0xbb, 0x13, 0x88, 0, 0, 0, 0];
    set_number(&mut header, 4, (8 + payload) as u16);
    header
}

/// Writes the sum of the pseudo header into the checksum field.
fn half_done(packet: &mut [u8], transport: usize) {
    let headers = Headers::parse_unfinished(packet).transport().unwrap();
    assert_eq!(headers.header, transport);
    let sum = !headers.pseudo_sum(packet).finish();
    set_number(packet, headers.checksum(), sum);
}

/// Writes a big-endian number at `at`.
fn set_number(bytes: &mut [u8], at: usize, number: u16) {
    bytes[at..at + 2].copy_from_slice(&number.to_be_bytes());
}

fn cut(header: VnetHeader, packet: &[u8]) -> Result<Vec<Bytes>, MalformedPacket> {
    let mut resegmenter = Resegmenter::default();
    let bytes = VnetHeader::LEN + packet.len();
    resegmenter.buffer()[..VnetHeader::LEN].copy_from_slice(&header.to_bytes());
    resegmenter.buffer()[VnetHeader::LEN..bytes].copy_from_slice(packet);
    resegmenter.filled(bytes)?;
    Ok(std::iter::from_fn(|| resegmenter.next_frame()).map(|frame| frame.data).collect())
}

fn gso(kind: GsoKind, segment_bytes: u16, start: u16, offset: u16) -> VnetHeader {
    let checksum = Some(PartialChecksum { start, offset });
    VnetHeader { checksum, gso: Some(Gso { kind, segment_bytes, header_bytes: 0 }) }
}

/// Cuts the packet with the NIC's own segmentation.
fn by_the_device(packet: &[u8], header_bytes: usize, mss: u16) -> Vec<Bytes> {
    // The device must not be limited by its MTU or delayed, so that all segments come out at once.
    let config = NicConfig { mtu: 9000, line_rate: None, delays: Delays::NONE, ..NicConfig::default() };
    let (mut device, mut driver) = nic_sim::nic(config);
    let seq = Seq(u32::from_be_bytes(packet[38..42].try_into().unwrap()));
    let packet = TxPacket {
        header: packet[..header_bytes].into(),
        fragments: [Bytes::copy_from_slice(&packet[header_bytes..])].into_iter().collect(),
        ask: TxAsk { seq, checksum: true, mss: Some(mss), ..TxAsk::default() },
    };
    assert_eq!(driver.transmit(Instant::ZERO, packet, &NoRecords), TransmitResult::Posted);
    driver.flush(Instant::ZERO);
    device.process(Instant::ZERO);
    std::iter::from_fn(|| device.poll_frame(Instant::ZERO)).map(|frame| frame.data).collect()
}

proptest! {
    #[test]
    fn segments_equal_the_segments_of_the_device(
        payload in prop::collection::vec(any::<u8>(), 0..30_000),
        mss in 1u16..3000,
        seq: u32,
        identification: u16,
        flags in prop::sample::select(vec![0x10u8, 0x18, 0x19, 0x90, 0xd9]),
    ) {
        let tcp = tcp(seq, flags);
        let mut packet = packet(&ipv4(6, identification, tcp.len() + payload.len()), &tcp, &payload);
        half_done(&mut packet, 34);
        let frames = cut(gso(GsoKind::Tcp4, mss, 34, 16), &packet).unwrap();
        prop_assert_eq!(frames, by_the_device(&packet, 66, mss));
    }

    #[test]
    fn ipv6_segments_are_valid(payload in prop::collection::vec(any::<u8>(), 1..20_000), mss in 500u16..3000, seq: u32) {
        let tcp = tcp(seq, 0x18);
        let mut packet = packet(&ipv6(6, tcp.len() + payload.len()), &tcp, &payload);
        half_done(&mut packet, 54);
        let frames = cut(gso(GsoKind::Tcp6, mss, 54, 16), &packet).unwrap();
        prop_assert_eq!(frames.len(), payload.len().div_ceil(usize::from(mss)));
        let mut received = Vec::new();
        for (number, frame) in frames.iter().enumerate() {
            let ip = Ipv6Packet::new_checked(&frame[14..]).unwrap();
            prop_assert_eq!(ip.total_len(), frame.len() - 14);
            let tcp = TcpPacket::new_checked(ip.payload()).unwrap();
            prop_assert!(tcp.verify_checksum(&IpAddress::Ipv6(ip.src_addr()), &IpAddress::Ipv6(ip.dst_addr())));
            prop_assert_eq!(tcp.seq_number().0 as u32, seq.wrapping_add(received.len() as u32));
            prop_assert_eq!(tcp.psh(), number + 1 == frames.len());
            received.extend_from_slice(tcp.payload());
        }
        prop_assert_eq!(received, payload);
    }

    #[test]
    fn segmented_datagrams_are_valid(payload in prop::collection::vec(any::<u8>(), 1..20_000), bytes in 100u16..1400, six: bool) {
        let udp = udp(payload.len());
        let ip = if six { ipv6(17, 8 + payload.len()) } else { ipv4(17, 7, 8 + payload.len()) };
        let transport = 14 + ip.len();
        let mut packet = packet(&ip, &udp, &payload);
        half_done(&mut packet, transport);
        let frames = cut(gso(GsoKind::Udp, bytes, transport as u16, 6), &packet).unwrap();
        let mut received = Vec::new();
        for (number, frame) in frames.iter().enumerate() {
            let (source, destination, body): (IpAddress, IpAddress, &[u8]) = if six {
                let ip = Ipv6Packet::new_checked(&frame[14..]).unwrap();
                (ip.src_addr().into(), ip.dst_addr().into(), ip.into_inner().get(40..).unwrap())
            } else {
                let ip = Ipv4Packet::new_checked(&frame[14..]).unwrap();
                prop_assert!(ip.verify_checksum());
                prop_assert_eq!(usize::from(ip.ident()), 7 + number);
                (ip.src_addr().into(), ip.dst_addr().into(), ip.into_inner().get(20..).unwrap())
            };
            let udp = UdpPacket::new_checked(body).unwrap();
            prop_assert_eq!(usize::from(udp.len()), body.len());
            // A checksum of zero would mean that the datagram has none.
            prop_assert!(udp.checksum() != 0 && udp.verify_checksum(&source, &destination));
            received.extend_from_slice(udp.payload());
        }
        prop_assert_eq!(received, payload);
    }

    #[test]
    fn partial_checksum_is_completed(payload in prop::collection::vec(any::<u8>(), 0..1400)) {
        let mut packet = packet(&ipv4(17, 1, 8 + payload.len()), &udp(payload.len()), &payload);
        half_done(&mut packet, 34);
        let checksum = Some(PartialChecksum { start: 34, offset: 6 });
        let frames = cut(VnetHeader { checksum, gso: None }, &packet).unwrap();
        prop_assert_eq!(frames.len(), 1);
        let ip = Ipv4Packet::new_unchecked(&frames[0][14..]);
        let udp = UdpPacket::new_checked(ip.payload()).unwrap();
        prop_assert!(udp.checksum() != 0 && udp.verify_checksum(&ip.src_addr().into(), &ip.dst_addr().into()));
        prop_assert_eq!(udp.payload(), payload);
    }

    #[test]
    fn garbage_never_yields_longer_frames(
        header: [u8; 10],
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        at_network in prop::sample::select(vec![vec![8u8, 0, 0x45], vec![0x86, 0xdd, 0x60], vec![0x81, 0]]),
        sensible: bool,
    ) {
        let mut packet = bytes;
        let mut header = header;
        // Random bytes alone would seldom pass the first checks, so half of the cases get plausible headers.
        if sensible {
            header[0] = 1;
            header[1] = [0, 1, 4, 5][usize::from(header[1] % 4)];
            let field = if header[1] == 5 { 6 } else { 16 };
            header[6..10].copy_from_slice(&[34, 0, field, 0]);
            let end = packet.len().min(12 + at_network.len());
            packet.get_mut(12..end).unwrap_or_default().copy_from_slice(&at_network[..end.saturating_sub(12)]);
        }
        let mut resegmenter = Resegmenter::default();
        let bytes = header.len() + packet.len();
        resegmenter.buffer()[..header.len()].copy_from_slice(&header);
        resegmenter.buffer()[header.len()..bytes].copy_from_slice(&packet);
        if resegmenter.filled(bytes).is_ok() {
            let mut frames = 0;
            while let Some(frame) = resegmenter.next_frame() {
                frames += 1;
                // A hostile packet must not be amplified.
                prop_assert!(frame.len() <= packet.len());
            }
            prop_assert!((1..=packet.len().max(1)).contains(&frames));
        }
    }
}

#[test]
fn vlan_tag_does_not_affect_segmentation() {
    let tcp = tcp(5, 0x10);
    let plain = packet(&ipv4(6, 3, tcp.len() + 3000), &tcp, &[9; 3000]);
    let mut tagged = [&plain[..12], &[0x81, 0, 0, 5], &plain[12..]].concat();
    half_done(&mut tagged, 38);
    let frames = cut(gso(GsoKind::Tcp4, 1448, 38, 16), &tagged).unwrap();
    let untagged: Vec<Bytes> = frames.iter().map(|frame| [&frame[..12], &frame[16..]].concat().into()).collect();
    // The device segments the untagged packet. The tag must be the only difference.
    assert_eq!(untagged, by_the_device(&plain, 66, 1448));
}

#[test]
fn contradictory_headers_are_refused() {
    let tcp = tcp(5, 0x10);
    let packet = packet(&ipv4(6, 3, tcp.len() + 3000), &tcp, &[9; 3000]);
    for header in [
        gso(GsoKind::Tcp6, 1448, 34, 16),     // the packet is IPv4
        gso(GsoKind::Tcp4, 1448, 34, 6),      // not the offset of TCP's checksum
        gso(GsoKind::Tcp4, 1448, 33, 16),     // inside the IP header
        gso(GsoKind::Tcp4, 1448, 60_000, 16), // past the end
        VnetHeader { checksum: None, ..gso(GsoKind::Tcp4, 1448, 34, 16) },
        VnetHeader { checksum: Some(PartialChecksum { start: 3090, offset: 16 }), gso: None },
        VnetHeader { checksum: Some(PartialChecksum { start: u16::MAX, offset: u16::MAX }), gso: None },
    ] {
        assert_eq!(cut(header, &packet), Err(MalformedPacket::Contradiction), "{header:?}");
    }
    assert_eq!(cut(VnetHeader::default(), &[0; 13]), Err(MalformedPacket::Length(23)));
    let all = Resegmenter::default().buffer().len();
    assert_eq!(cut(VnetHeader::default(), &vec![0; all - 10]), Err(MalformedPacket::Length(all)));
}
