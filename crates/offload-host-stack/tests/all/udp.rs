//! Tests of UDP datagrams between hosts.

use crate::packets::{across, answers, ip_of};
use crate::pair::{ADDRESS, HostPair, PairConfig, SIX, TCP, config};
use crate::transfer::pattern;
use bytes::Bytes;
use core::net::SocketAddr;
use core::num::NonZeroU16;
use offload_api::mock::MockDevice;
use offload_api::rx::Checksums;
use offload_api::{EcnCodepoint, FlowKey, Protection, Protocol, RxMeta, RxPacket, TxDatagram};
use offload_base::{Instant, Seed};
use offload_formats::IpVersion;
use offload_host_stack::{SendError, SocketOpenError, Stack, TcpConfig};
use proptest::prelude::*;
use smoltcp::wire::{IpAddress, IpProtocol, UdpPacket};

const SERVICE: u16 = 53;

/// Returns a datagram from port 1000 of side 0 to `port`, with its checksum.
fn datagram(port: u16, data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 8];
    bytes.extend_from_slice(data);
    let length = bytes.len() as u16;
    let mut udp = UdpPacket::new_unchecked(&mut bytes[..]);
    udp.set_src_port(1000);
    udp.set_dst_port(port);
    udp.set_len(length);
    udp.fill_checksum(&IpAddress::from(ADDRESS[0]), &IpAddress::from(ADDRESS[1]));
    bytes
}

fn send(pair: &mut HostPair, from: u16, data: Bytes) -> Result<(), SendError> {
    pair.stacks[0].send_datagram(pair.now, from, (ADDRESS[1], SERVICE).into(), data, &pair.nics[0])
}

#[test]
fn datagrams_go_both_ways_after_address_resolution() {
    let mut pair = HostPair::new(&PairConfig { acquainted: false, ..PairConfig::default() });
    assert_eq!(pair.stacks[1].bind_udp(Some(SERVICE)), Ok(SERVICE));
    assert_eq!(pair.stacks[1].bind_udp(Some(SERVICE)), Err(SocketOpenError::InUse));
    let port = pair.stacks[0].bind_udp(None).unwrap();
    // IPv4's length field includes the IP header, and IPv6's does not.
    let most = if crate::OVER_SIX { 65_527 } else { 65_507 };
    let one_packet = 1514 - TCP - 8;
    let sizes = [8, 0, one_packet, one_packet + 1, 20_000, most];
    for size in sizes {
        send(&mut pair, port, Bytes::from(pattern(Seed(size as u64), size))).unwrap();
    }
    assert_eq!(send(&mut pair, port, Bytes::from(vec![0; most + 1])), Err(SendError::TooLong { most }));
    let mut got = Vec::new();
    pair.run_until(|pair| {
        got.extend(core::iter::from_fn(|| pair.stacks[1].take_datagram(SERVICE)));
        got.len() == sizes.len()
    });
    for (datagram, size) in got.iter().zip(sizes) {
        assert!(datagram.data[..] == pattern(Seed(size as u64), size), "{size} bytes");
    }
    assert_eq!(got[0].from, (ADDRESS[0], port).into());
    let (now, from) = (pair.now, got[0].from);
    pair.stacks[1].send_datagram(now, SERVICE, from, Bytes::from_static(b"answer"), &pair.nics[1]).unwrap();
    pair.run_until(|pair| pair.stacks[0].next_udp_ready() == Some(port));
    assert_eq!(pair.stacks[0].take_datagram(port).unwrap().data[..], b"answer"[..]);
    let counters = pair.stacks[1].counters();
    assert_eq!((counters.udp_in_datagrams, counters.udp_out_datagrams, counters.udp_no_ports), (6, 1, 0));
    let oks = counters.ip_reassembly_oks + counters.ip6_reassembly_oks;
    let requests = counters.ip_reassembly_requests + counters.ip6_reassembly_requests;
    assert_eq!((oks, requests), (3, if crate::OVER_SIX { 2 + 14 + 46 } else { 2 + 14 + 45 }));
}

fn send_segmented(pair: &mut HostPair, from: u16, data: Bytes, bytes: u16) -> Result<(), SendError> {
    let bytes = NonZeroU16::new(bytes).unwrap();
    pair.stacks[0].send_segmented(pair.now, (from, (ADDRESS[1], SERVICE).into()), data, bytes, &pair.nics[0])
}

/// A device cuts one packet into the same frames that the stack builds one by one.
#[test]
fn device_and_stack_cut_equal_segments() {
    let fits = 1514 - TCP - 8;
    let frames = [65_536, 20_000, 0].map(|tso| {
        let mut pair = HostPair::new(&PairConfig { tso, ..PairConfig::default() });
        pair.stacks[1].bind_udp(Some(SERVICE)).unwrap();
        let port = pair.stacks[0].bind_udp(Some(1000)).unwrap();
        let mut all = Vec::new();
        for (bytes, segment) in [(50_000, 1200), (9_000, fits as u16), (128 * 3, 3), (1200, 1200), (700, 1200), (0, 1)]
        {
            let data = pattern(Seed(bytes as u64), bytes);
            send_segmented(&mut pair, port, Bytes::from(data.clone()), segment).unwrap();
            while pair.stacks[0].poll(pair.now, &mut pair.nics[0]) {}
            let sent = pair.nics[0].port().drain();
            let lengths: Vec<_> = data.chunks(usize::from(segment)).map(<[u8]>::len).collect();
            for frame in &sent {
                pair.nics[1].port().deliver(frame);
            }
            all.extend(sent);
            while pair.stacks[1].poll(pair.now, &mut pair.nics[1]) {}
            let got: Vec<_> = core::iter::from_fn(|| pair.stacks[1].take_datagram(SERVICE)).collect();
            // The capacity of a socket's receive queue.
            let expected = lengths.len().clamp(1, 104);
            assert_eq!(got.len(), expected, "{bytes} bytes by {segment}");
            for (datagram, chunk) in got.iter().zip(data.chunks(usize::from(segment))) {
                assert!(datagram.data[..] == *chunk);
            }
        }
        let packets = pair.nics[0].port().packets;
        let most = if tso == 0 { 42 + 7 + 128 + 1 + 1 + 1 } else { 4 * 6 };
        assert!(packets <= most, "{packets} packets for the device");
        assert_eq!(pair.stacks[0].counters().udp_out_datagrams, 42 + 7 + 128 + 1 + 1 + 1);
        all
    });
    assert!(frames[0] == frames[1] && frames[1] == frames[2], "the frames must not depend on the cutter");
}

#[test]
fn oversized_segments_are_refused() {
    let mut pair = HostPair::new(&PairConfig::default());
    let port = pair.stacks[0].bind_udp(None).unwrap();
    let most = 1514 - TCP - 8;
    let data = Bytes::from(vec![0; 60_000]);
    assert_eq!(send_segmented(&mut pair, port, data.clone(), most as u16 + 1), Err(SendError::SegmentTooLong { most }));
    assert_eq!(send_segmented(&mut pair, port, data.clone(), 100), Err(SendError::TooLong { most: 12_800 }));
    let all = if crate::OVER_SIX { 65_527 } else { 65_507 };
    assert_eq!(send_segmented(&mut pair, port, vec![0; all + 1].into(), 1200), Err(SendError::TooLong { most: all }));
    assert_eq!(send_segmented(&mut pair, port, vec![0; all].into(), 1200), Ok(()));
}

#[test]
fn segments_wait_while_the_device_is_full() {
    let mut pair = HostPair::new(&PairConfig { tso: 0, ..PairConfig::default() });
    pair.nics[0].port().ring = 1;
    let port = pair.stacks[0].bind_udp(None).unwrap();
    let mut sent = 0;
    while send_segmented(&mut pair, port, vec![0; 100].into(), 1) == Ok(()) {
        sent += 1;
        assert!(sent <= 2, "the queue must be bounded");
    }
    assert_eq!(pair.stacks[0].next_udp_ready(), None);
    pair.run_until(|pair| pair.stacks[0].next_udp_ready() == Some(port));
    assert_eq!(send_segmented(&mut pair, port, vec![0; 100].into(), 1), Ok(()));
}

/// A lower layer may have a different path for each source address, such as one through a tunnel.
#[test]
fn path_lookup_uses_the_datagrams_source_address() {
    let mut stack = Stack::new(config(0, Seed(1), TcpConfig::default()));
    let device = MockDevice::default();
    let port = stack.bind_udp(Some(1000)).unwrap();
    let link_local = stack.addresses().into_iter().find(|address| address.is_ipv6() && *address != SIX[0]).unwrap();
    let to = SocketAddr::from((SIX[1], SERVICE));
    for source in [SIX[0].into(), link_local] {
        let datagrams = TxDatagram {
            source: Some(source),
            segment: NonZeroU16::new(100),
            ..TxDatagram::new(to, Bytes::from(vec![0; 300]))
        };
        stack.send_datagrams(Instant::ZERO, port, datagrams, &device).unwrap();
        let flow = FlowKey { protocol: Protocol::Udp, local: (source, port).into(), remote: to };
        assert_eq!(device.take_calls(), [format!("path({flow:?})")]);
    }
}

#[test]
fn unread_socket_queues_a_bounded_number_of_datagrams() {
    let mut pair = HostPair::new(&PairConfig::default());
    pair.stacks[1].bind_udp(Some(SERVICE)).unwrap();
    for _ in 0..200 {
        pair.nics[1].port().deliver(&across(IpProtocol::Udp, &datagram(SERVICE, b"spam")));
        pair.run_now();
    }
    let counters = *pair.stacks[1].counters();
    assert_eq!((counters.udp_in_datagrams, counters.udp_receive_drops), (104, 96));
    assert_eq!(pair.stacks[1].next_udp_ready(), Some(SERVICE));
    assert_eq!(pair.stacks[1].next_udp_ready(), None);
    while pair.stacks[1].take_datagram(SERVICE).is_some() {}
    pair.nics[1].port().deliver(&across(IpProtocol::Udp, &datagram(SERVICE, b"ham")));
    pair.run_now();
    assert_eq!(pair.stacks[1].take_datagram(SERVICE).unwrap().data[..], b"ham"[..]);
}

#[test]
fn datagram_keeps_its_packets_metadata() {
    let mut pair = HostPair::new(&PairConfig::default());
    pair.stacks[1].bind_udp(Some(SERVICE)).unwrap();
    let version = if crate::OVER_SIX { IpVersion::V6 } else { IpVersion::V4 };
    let said = [
        (EcnCodepoint::NotCapable, Protection::None, None),
        (EcnCodepoint::Capable0, Protection::Secret, None),
        (EcnCodepoint::CongestionExperienced, Protection::Secret, NonZeroU16::new(3)),
        (EcnCodepoint::Capable1, Protection::Authentic, None),
    ];
    for (ecn, protection, joined) in said {
        let mut frame = across(IpProtocol::Udp, &datagram(SERVICE, b"abcdefgh"));
        version.set_ecn(&mut frame[14..], ecn.bits());
        let meta = RxMeta { checksums: Checksums::Good, protection, ..RxMeta::default() };
        let packet = RxPacket { joined, ..RxPacket::new(frame[..].into(), meta) };
        pair.stacks[1].receive(pair.now, packet, &mut pair.nics[1]);
    }
    for (ecn, protection, joined) in said {
        let datagram = pair.stacks[1].take_datagram(SERVICE).unwrap();
        assert_eq!((datagram.from, datagram.to), ((ADDRESS[0], 1000).into(), (ADDRESS[1], SERVICE).into()));
        assert_eq!((datagram.ecn, datagram.joined), (ecn, joined));
        assert_eq!((datagram.meta.checksums, datagram.meta.protection), (Checksums::Good, protection));
        let parts: Vec<_> = datagram.split().map(|part| (part.data, part.ecn, part.meta.protection)).collect();
        let expected: &[&[u8]] = if joined.is_some() { &[b"abc", b"def", b"gh"] } else { &[b"abcdefgh"] };
        let expected: Vec<_> = expected.iter().map(|data| ((*data).into(), ecn, protection)).collect();
        assert_eq!(parts, expected);
    }
    assert!(pair.stacks[1].take_datagram(SERVICE).is_none());
}

#[test]
fn udp_checksums_are_verified_and_computed() {
    let mut pair = HostPair::new(&PairConfig::default());
    pair.stacks[1].bind_udp(Some(SERVICE)).unwrap();
    pair.nics[1].port().verdict = Checksums::Unchecked;
    let mut broken = datagram(SERVICE, b"data");
    broken[9] ^= 1;
    assert!(answers(&mut pair, &across(IpProtocol::Udp, &broken)).is_empty());
    assert_eq!(pair.stacks[1].counters().udp_in_checksum_errors, 1);
    broken[6..8].fill(0); // no checksum
    assert!(answers(&mut pair, &across(IpProtocol::Udp, &broken)).is_empty());
    // RFC 8200 8.1: over IPv6 a checksum is required.
    let taken = pair.stacks[1].take_datagram(SERVICE).map(|datagram| datagram.data.len());
    assert_eq!(taken, if crate::OVER_SIX { None } else { Some(4) });
    assert_eq!(pair.stacks[1].counters().udp_in_checksum_errors, if crate::OVER_SIX { 2 } else { 1 });
    let port = pair.stacks[0].bind_udp(None).unwrap();
    for number in 0..4000u16 {
        pair.nics[0].port().caps.checksum = number % 2 == 0;
        send(&mut pair, port, Bytes::copy_from_slice(&number.to_be_bytes())).unwrap();
        while pair.stacks[0].poll(pair.now, &mut pair.nics[0]) {}
        let frame = pair.nics[0].port().drain().pop_front().unwrap();
        let packet = ip_of(&frame);
        let udp = UdpPacket::new_checked(&frame[TCP..]).unwrap();
        assert!(udp.checksum() != 0 && udp.verify_checksum(&packet.src_addr(), &packet.dst_addr()));
    }
}

#[test]
fn full_device_blocks_the_sender_and_wakes_it_later() {
    let mut pair = HostPair::new(&PairConfig::default());
    pair.nics[0].port().ring = 1;
    let port = pair.stacks[0].bind_udp(None).unwrap();
    let mut sent = 0;
    while send(&mut pair, port, Bytes::from_static(b"x")) == Ok(()) {
        sent += 1;
        assert!(sent <= 128, "the queue must be bounded");
    }
    assert_eq!(pair.stacks[0].next_udp_ready(), None);
    pair.run_until(|pair| pair.stacks[0].next_udp_ready() == Some(port));
    assert_eq!(send(&mut pair, port, Bytes::from_static(b"x")), Ok(()));
}

proptest! {
    #[test]
    fn udp_accepts_any_bytes_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..60), here: bool) {
        let mut pair = HostPair::new(&PairConfig::default());
        pair.stacks[1].bind_udp(Some(SERVICE)).unwrap();
        let mut bytes = bytes;
        if here && bytes.len() >= 8 {
            bytes[2..4].copy_from_slice(&SERVICE.to_be_bytes());
            bytes[6..8].fill(0);
        }
        prop_assert!(answers(&mut pair, &across(IpProtocol::Udp, &bytes)).len() <= 1);
    }
}
