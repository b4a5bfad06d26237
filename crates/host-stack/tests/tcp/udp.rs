//! Datagrams between hosts.

use crate::neighbours::{answers, ip};
use crate::pair::{ADDRESS, Pair, Setup};
use bytes::Bytes;
use host_stack::{OpenError, SendError};
use offload_api::rx::Checksums;
use proptest::prelude::*;
use smoltcp::wire::{IpAddress, IpProtocol, Ipv4Packet, UdpPacket};

const SERVICE: u16 = 53;

/// A datagram from port 1000 of side 0 to `port`, its checksum filled in.
fn datagram(port: u16, data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 8];
    bytes.extend_from_slice(data);
    let length = bytes.len() as u16;
    let mut udp = UdpPacket::new_unchecked(&mut bytes[..]);
    udp.set_src_port(1000);
    udp.set_dst_port(port);
    udp.set_len(length);
    udp.fill_checksum(&IpAddress::Ipv4(ADDRESS[0].into()), &IpAddress::Ipv4(ADDRESS[1].into()));
    bytes
}

fn send(pair: &mut Pair, from: u16, data: Bytes) -> Result<(), SendError> {
    pair.stacks[0].send_datagram(pair.now, from, (ADDRESS[1], SERVICE).into(), data, &pair.nics[0])
}

#[test]
fn datagrams_go_both_ways_between_strangers() {
    let mut pair = Pair::new(&Setup { acquainted: false, ..Setup::default() });
    assert_eq!(pair.stacks[1].bind_udp(Some(SERVICE)), Ok(SERVICE));
    assert_eq!(pair.stacks[1].bind_udp(Some(SERVICE)), Err(OpenError::InUse));
    let port = pair.stacks[0].bind_udp(None).unwrap();
    for data in [&b"question"[..], b"", &[7; 1472]] {
        send(&mut pair, port, Bytes::copy_from_slice(data)).unwrap();
    }
    assert_eq!(send(&mut pair, port, Bytes::from(vec![0; 1473])), Err(SendError::TooLong { most: 1472 }));
    let mut got = Vec::new();
    pair.run_until(|pair| {
        got.extend(core::iter::from_fn(|| pair.stacks[1].take_datagram(SERVICE)));
        got.len() == 3
    });
    assert_eq!(got.iter().map(|datagram| datagram.data.len()).collect::<Vec<_>>(), [8, 0, 1472]);
    assert_eq!(got[0].from, (ADDRESS[0], port).into());
    let (now, from) = (pair.now, got[0].from);
    pair.stacks[1].send_datagram(now, SERVICE, from, Bytes::from_static(b"answer"), &pair.nics[1]).unwrap();
    pair.run_until(|pair| pair.stacks[0].next_udp_ready() == Some(port));
    assert_eq!(pair.stacks[0].take_datagram(port).unwrap().data[..], b"answer"[..]);
    let counters = pair.stacks[1].counters();
    assert_eq!((counters.udp_in_datagrams, counters.udp_out_datagrams, counters.udp_no_ports), (3, 1, 0));
}

#[test]
fn a_socket_that_is_not_read_keeps_a_bounded_number() {
    let mut pair = Pair::new(&Setup::default());
    pair.stacks[1].bind_udp(Some(SERVICE)).unwrap();
    for _ in 0..200 {
        pair.nics[1].port().deliver(&ip(ADDRESS[1], IpProtocol::Udp, &datagram(SERVICE, b"spam")));
        pair.run_now();
    }
    let counters = *pair.stacks[1].counters();
    assert_eq!((counters.udp_in_datagrams, counters.udp_receive_drops), (104, 96));
    assert_eq!(pair.stacks[1].next_udp_ready(), Some(SERVICE));
    assert_eq!(pair.stacks[1].next_udp_ready(), None);
    while pair.stacks[1].take_datagram(SERVICE).is_some() {}
    pair.nics[1].port().deliver(&ip(ADDRESS[1], IpProtocol::Udp, &datagram(SERVICE, b"ham")));
    pair.run_now();
    assert_eq!(pair.stacks[1].take_datagram(SERVICE).unwrap().data[..], b"ham"[..]);
}

#[test]
fn checksums_are_checked_and_made() {
    let mut pair = Pair::new(&Setup::default());
    pair.stacks[1].bind_udp(Some(SERVICE)).unwrap();
    pair.nics[1].port().verdict = Checksums::Unchecked;
    let mut broken = datagram(SERVICE, b"data");
    broken[9] ^= 1;
    assert!(answers(&mut pair, &ip(ADDRESS[1], IpProtocol::Udp, &broken)).is_empty());
    assert_eq!(pair.stacks[1].counters().udp_in_checksum_errors, 1);
    broken[6..8].fill(0); // there is none
    assert!(answers(&mut pair, &ip(ADDRESS[1], IpProtocol::Udp, &broken)).is_empty());
    assert_eq!(pair.stacks[1].take_datagram(SERVICE).unwrap().data.len(), 4);
    let port = pair.stacks[0].bind_udp(None).unwrap();
    for number in 0..2000u16 {
        send(&mut pair, port, Bytes::copy_from_slice(&number.to_be_bytes())).unwrap();
        while pair.stacks[0].poll(pair.now, &mut pair.nics[0]) {}
        let frame = pair.nics[0].port().drain().pop_front().unwrap();
        let packet = Ipv4Packet::new_checked(&frame[14..]).unwrap();
        let udp = UdpPacket::new_checked(packet.payload()).unwrap();
        assert!(packet.verify_checksum() && udp.checksum() != 0);
        assert!(udp.verify_checksum(&packet.src_addr().into(), &packet.dst_addr().into()));
    }
}

#[test]
fn a_device_that_has_fallen_behind_stops_the_sender_and_wakes_it() {
    let mut pair = Pair::new(&Setup::default());
    pair.nics[0].port().ring = 1;
    let port = pair.stacks[0].bind_udp(None).unwrap();
    let mut sent = 0;
    while send(&mut pair, port, Bytes::from_static(b"x")) == Ok(()) {
        sent += 1;
        assert!(sent <= 128, "without bound");
    }
    assert_eq!(pair.stacks[0].next_udp_ready(), None);
    pair.run_until(|pair| pair.stacks[0].next_udp_ready() == Some(port));
    assert_eq!(send(&mut pair, port, Bytes::from_static(b"x")), Ok(()));
}

proptest! {
    #[test]
    fn any_bytes_are_a_datagram_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..60), here: bool) {
        let mut pair = Pair::new(&Setup::default());
        pair.stacks[1].bind_udp(Some(SERVICE)).unwrap();
        let mut bytes = bytes;
        if here && bytes.len() >= 8 {
            bytes[2..4].copy_from_slice(&SERVICE.to_be_bytes());
            bytes[6..8].fill(0);
        }
        prop_assert!(answers(&mut pair, &ip(ADDRESS[1], IpProtocol::Udp, &bytes)).len() <= 1);
    }
}
