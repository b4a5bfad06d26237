//! Tests of ARP and ICMP echo.

use crate::packets::{answers, ethernet, packet};
use crate::pair::{FOUR as ADDRESS, HostPair, MAC, PORT, PairConfig, config};
use crate::wire::WireConfig;
use core::net::Ipv4Addr;
use core::time::Duration;
use offload_api::Prefix;
use offload_base::{Instant, Seed};
use offload_host_stack::{ConnectionError, Stack, TcpConfig, TcpState};
use proptest::prelude::*;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetProtocol, Icmpv4Message, Icmpv4Packet, IpProtocol,
    Ipv4Packet,
};

fn unacquainted() -> PairConfig {
    PairConfig { acquainted: false, ..PairConfig::default() }
}

/// Returns an ARP packet of a host at `sender`.
fn arp(operation: ArpOperation, mac: [u8; 6], sender: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    let arp = ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr: EthernetAddress(mac),
        source_protocol_addr: sender.into(),
        target_hardware_addr: EthernetAddress::default(),
        target_protocol_addr: target.into(),
    };
    let mut packet = vec![0; arp.buffer_len()];
    arp.emit(&mut ArpPacket::new_unchecked(&mut packet[..]));
    ethernet([0xff; 6], EthernetProtocol::Arp, &packet)
}

/// Returns an IPv4 packet from side 0 to `to`, in a frame for side 1.
fn ip(to: [u8; 4], protocol: IpProtocol, payload: &[u8]) -> Vec<u8> {
    packet(ADDRESS[0].into(), to.into(), protocol, payload)
}

fn echo_request(number: u16, data: &[u8]) -> Vec<u8> {
    let mut message = vec![0; 8];
    message.extend_from_slice(data);
    let mut icmp = Icmpv4Packet::new_unchecked(&mut message[..]);
    icmp.set_msg_type(Icmpv4Message::EchoRequest);
    icmp.set_echo_ident(77);
    icmp.set_echo_seq_no(number);
    icmp.fill_checksum();
    message
}

/// An unfinished source route is for routers only; an option of length zero is malformed.
#[test]
fn packets_with_invalid_ip_options_are_dropped() {
    let mut pair = HostPair::new(&PairConfig::default());
    let ping = |options: [u8; 8]| {
        let mut frame = ip(ADDRESS[1], IpProtocol::Icmp, &echo_request(1, b"data"));
        frame.splice(34..34, options);
        frame[14] = 0x47;
        let bytes = (frame.len() - 14) as u16;
        frame[16..18].copy_from_slice(&bytes.to_be_bytes());
        Ipv4Packet::new_unchecked(&mut frame[14..]).fill_checksum();
        frame
    };
    assert_eq!(answers(&mut pair, &ping([148, 4, 0, 0, 1, 1, 1, 0])).len(), 1, "router alert");
    assert!(answers(&mut pair, &ping([131, 7, 4, 10, 0, 0, 7, 0])).is_empty(), "an unfinished loose source route");
    assert!(answers(&mut pair, &ping([137, 7, 4, 10, 0, 0, 7, 0])).is_empty(), "a strict source route");
    assert!(answers(&mut pair, &ping([7, 0, 4, 0, 0, 0, 0, 0])).is_empty(), "an option of length zero");
    assert_eq!(pair.stacks[1].counters().ip_in_header_errors, 3);
}

#[test]
fn address_resolution_loses_no_packets() {
    let (mut pair, ids) = HostPair::connected(&unacquainted());
    pair.stacks[0].send_copy(ids[0], &[7; 100_000]);
    let mut read = Vec::new();
    pair.run_until(|pair| {
        pair.read(1, ids[1], &mut read);
        read.len() == 100_000
    });
    let counters = pair.stacks.each_ref().map(|stack| *stack.counters());
    assert_eq!(counters.map(|counters| counters.arp_requests), [1, 0], "a request must also teach the asker's address");
    assert_eq!(counters.map(|counters| counters.arp_replies), [0, 1]);
    assert_eq!(counters[0].retransmitted_segments, 0, "the SYN must wait for the address");
}

#[test]
fn lost_arp_request_is_repeated() {
    let mut pair = HostPair::new(&unacquainted());
    let mut lost = 0;
    pair.wire.filter = Some(Box::new(move |_, _| {
        lost += 1;
        lost <= 2
    }));
    pair.open();
    // Two requests were lost. The SYN and its repetitions leave when the answer arrives.
    assert_eq!(pair.stacks[0].counters().arp_requests, 3);
    assert!((3000..=4000).contains(&pair.now.as_millis()), "the third request leaves after 1 + 2 s");
}

#[test]
fn unanswered_arp_request_fails_the_connection() {
    let mut pair = HostPair::new(&unacquainted());
    let id = pair.stacks[0].connect(pair.now, None, ([10, 0, 0, 99], PORT).into()).unwrap();
    pair.run_until(|pair| pair.stacks[0].state(id) == TcpState::Closed);
    assert_eq!(pair.stacks[0].error(id), Some(ConnectionError::Unreachable));
    assert_eq!(pair.now.as_millis(), 7000);
    let counters = pair.stacks[0].counters();
    assert_eq!((counters.arp_requests, counters.attempt_fails), (3, 1));
    assert_eq!(counters.unresolved_discards, 3, "the SYN and its two repetitions");
}

#[test]
fn announcement_updates_a_known_neighbour() {
    let (mut pair, ids) = HostPair::connected(&unacquainted());
    let elsewhere = [2, 0, 0, 0, 0, 77];
    pair.nics[0].port().deliver(&arp(ArpOperation::Request, elsewhere, ADDRESS[1], ADDRESS[1]));
    pair.run_now();
    pair.stacks[0].send_copy(ids[0], b"hello");
    pair.stacks[0].push(ids[0]);
    while pair.stacks[0].poll(pair.now, &mut pair.nics[0]) {}
    let frame = pair.nics[0].port().drain().pop_front().unwrap();
    assert_eq!(frame[..6], elsewhere);
    // News of an unknown neighbour create no entry, so the neighbour is requested.
    pair.nics[0].port().deliver(&arp(ArpOperation::Reply, elsewhere, [10, 0, 0, 50], ADDRESS[0]));
    pair.run_now();
    pair.stacks[0].connect(pair.now, None, ([10, 0, 0, 50], PORT).into()).unwrap();
    pair.run_now();
    assert_eq!(pair.stacks[0].counters().arp_requests, 2);
}

#[test]
fn announcement_does_not_change_a_static_neighbour() {
    let (mut pair, ids) = HostPair::connected(&PairConfig::default());
    pair.nics[0].port().deliver(&arp(ArpOperation::Reply, [2, 0, 0, 0, 0, 77], ADDRESS[1], ADDRESS[0]));
    pair.nics[0].port().deliver(&arp(ArpOperation::Request, [2, 0, 0, 0, 0, 77], ADDRESS[1], ADDRESS[1]));
    pair.run_now();
    pair.stacks[0].send_copy(ids[0], b"hello");
    pair.stacks[0].push(ids[0]);
    while pair.stacks[0].poll(pair.now, &mut pair.nics[0]) {}
    assert_eq!(pair.nics[0].port().drain().pop_front().unwrap()[..6], MAC[1]);
}

#[test]
fn probe_is_answered_and_own_address_claim_ignored() {
    let mut pair = HostPair::new(&unacquainted());
    let probe = arp(ArpOperation::Request, MAC[0], [0; 4], ADDRESS[1]);
    assert_eq!(answers(&mut pair, &probe).len(), 1);
    let thief = arp(ArpOperation::Request, MAC[0], ADDRESS[1], ADDRESS[1]);
    assert!(answers(&mut pair, &thief).is_empty());
    assert_eq!(pair.stacks[1].counters().arp_in_errors, 1);
}

#[test]
fn other_networks_are_reached_through_the_gateway() {
    let far: Ipv4Addr = [192, 0, 2, 1].into();
    let alone = config(0, Seed(1), TcpConfig::default());
    let mut stack = Stack::new(alone.clone());
    assert!(stack.connect(Instant::ZERO, None, (far, PORT).into()).is_err());
    let mut pair = HostPair::new(&PairConfig::default());
    pair.stacks[0] = Stack::new(alone.with_gateway(ADDRESS[1].into()));
    for nobody in [[255; 4], [10, 0, 0, 255], [10, 0, 0, 0], [224, 0, 0, 1], [0; 4], ADDRESS[0]] {
        assert!(pair.stacks[0].connect(pair.now, None, (nobody, PORT).into()).is_err(), "{nobody:?}");
    }
    // Callers that send packets of their own for the host get the same next hops.
    let asked = [far.into(), Ipv4Addr::from(ADDRESS[1]).into(), Ipv4Addr::BROADCAST.into()];
    assert_eq!(asked.map(|to| pair.stacks[0].next_hop(pair.now, to)), [Some(MAC[1]), Some(MAC[1]), None]);
    pair.stacks[0].connect(pair.now, None, (far, PORT).into()).unwrap();
    while pair.stacks[0].poll(pair.now, &mut pair.nics[0]) {}
    let syn = pair.nics[0].port().drain().pop_front().unwrap();
    assert_eq!(syn[..6], MAC[1]);
    assert_eq!(Ipv4Packet::new_checked(&syn[14..]).unwrap().dst_addr(), far);
}

/// A tunnel packet must leave for the tunnel's far end, whatever its inner destination.
#[test]
fn tunnel_route_resolves_the_far_end() {
    let inner = [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(10, 0, 0, 77)];
    let mut config = config(0, Seed(1), TcpConfig::default());
    config.neighbours.clear();
    for prefix in [Prefix::new([192, 0, 2, 0].into(), 24), Prefix::new([10, 0, 0, 77].into(), 32)] {
        config = config.with_route(prefix.unwrap(), Some(ADDRESS[1].into()));
    }
    let mut pair = HostPair::new(&unacquainted());
    pair.stacks[0] = Stack::new(config);
    for (number, far) in inner.into_iter().enumerate() {
        pair.stacks[0].connect(pair.now, None, (far, PORT).into()).unwrap();
        while pair.stacks[0].poll(pair.now, &mut pair.nics[0]) {}
        let mut sent = pair.nics[0].port().drain();
        if number == 0 {
            let asked = sent.pop_front().unwrap();
            assert_eq!(
                (&asked[12..14], &asked[38..42]),
                (&[8, 6][..], &ADDRESS[1][..]),
                "a request for the tunnel's far end"
            );
            assert!(sent.is_empty(), "the packet waits");
            pair.nics[0].port().deliver(&arp(ArpOperation::Reply, MAC[1], ADDRESS[1], ADDRESS[0]));
            while pair.stacks[0].poll(pair.now, &mut pair.nics[0]) {}
            sent = pair.nics[0].port().drain();
        }
        let syn = sent.pop_front().unwrap();
        assert_eq!((&syn[..6], Ipv4Packet::new_checked(&syn[14..]).unwrap().dst_addr()), (&MAC[1][..], far));
    }
    // Without the route, the neighbour is resolved by its own address.
    pair.stacks[0].set_routes(Vec::new());
    pair.stacks[0].connect(pair.now, None, (inner[1], PORT).into()).unwrap();
    while pair.stacks[0].poll(pair.now, &mut pair.nics[0]) {}
    let asked = pair.nics[0].port().drain().pop_front().unwrap();
    assert_eq!((&asked[12..14], &asked[38..42]), (&[8, 6][..], &inner[1].octets()[..]));
}

#[test]
fn echo_reply_returns_the_requests_data() {
    for setup in [PairConfig::default(), unacquainted()] {
        let mut pair = HostPair::new(&setup);
        let data: Vec<u8> = (0..1400u32).map(|byte| byte as u8).collect();
        let mut replies = answers(&mut pair, &ip(ADDRESS[1], IpProtocol::Icmp, &echo_request(5, &data)));
        if !setup.acquainted {
            assert_eq!(replies.len(), 1, "a request comes first");
            replies = answers(&mut pair, &arp(ArpOperation::Reply, MAC[0], ADDRESS[0], ADDRESS[1]));
        }
        let [reply] = &replies[..] else { panic!("{} replies", replies.len()) };
        assert_eq!(reply[..6], MAC[0]);
        let packet = Ipv4Packet::new_checked(&reply[14..]).unwrap();
        assert!(packet.verify_checksum() && packet.dst_addr() == Ipv4Addr::from(ADDRESS[0]));
        let icmp = Icmpv4Packet::new_checked(packet.payload()).unwrap();
        assert!(icmp.verify_checksum() && icmp.msg_type() == Icmpv4Message::EchoReply);
        assert_eq!((icmp.echo_ident(), icmp.echo_seq_no(), icmp.data()), (77, 5, &data[..]));
    }
}

#[test]
fn broken_broadcast_or_excess_pings_are_not_answered() {
    let mut pair = HostPair::new(&PairConfig::default());
    let mut broken = echo_request(1, b"data");
    broken[9] ^= 1;
    assert!(answers(&mut pair, &ip(ADDRESS[1], IpProtocol::Icmp, &broken)).is_empty());
    assert!(answers(&mut pair, &ip([10, 0, 0, 255], IpProtocol::Icmp, &echo_request(1, b""))).is_empty());
    assert_eq!(pair.stacks[1].counters().icmp_in_checksum_errors, 1);
    // All requests arrive within one second, so exactly the limit is answered.
    let flood = ip(ADDRESS[1], IpProtocol::Icmp, &echo_request(1, b""));
    let answered: usize = (0..11_000).map(|_| answers(&mut pair, &flood).len()).sum();
    assert_eq!((answered, pair.stacks[1].counters().icmp_out_limited), (10_000, 1_000));
}

#[test]
fn unknown_protocol_and_closed_port_are_reported() {
    let mut pair = HostPair::new(&PairConfig::default());
    for (protocol, code) in [(IpProtocol::Udp, 3), (IpProtocol::Unknown(132), 2)] {
        let mut body = [9; 1000];
        body[4..6].copy_from_slice(&1000u16.to_be_bytes()); // UDP length
        body[6..8].fill(0);
        let sent = ip(ADDRESS[1], protocol, &body);
        let frames = answers(&mut pair, &sent);
        let [frame] = &frames[..] else { panic!("{} answers", frames.len()) };
        let packet = Ipv4Packet::new_checked(&frame[14..]).unwrap();
        assert_eq!(packet.total_len(), 576, "RFC 1812 4.3.2.3");
        let icmp = Icmpv4Packet::new_checked(packet.payload()).unwrap();
        assert!(icmp.verify_checksum() && icmp.msg_type() == Icmpv4Message::DstUnreachable);
        assert_eq!(icmp.msg_code(), code);
        assert_eq!(packet.payload()[8..], sent[14..14 + 548]);
    }
}

#[test]
fn waiting_packets_and_arp_requests_are_bounded() {
    let mut pair = HostPair::new(&unacquainted());
    for last in 3..=254 {
        for _ in 0..4 {
            pair.stacks[0].connect(pair.now, None, ([10, 0, 0, last], PORT).into()).unwrap();
        }
    }
    pair.run_for(Duration::from_secs(20));
    assert_eq!(pair.stacks[0].counters().arp_requests, 252 * 3);
    assert_eq!(pair.stacks[0].counters().attempt_fails, 252 * 4);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The stream arrives although the wire loses, duplicates and corrupts requests and answers.
    #[test]
    fn unacquainted_hosts_connect_over_a_faulty_wire(seed: u64, loss in 0.0..0.1f64, duplicate in 0.0..0.1f64, corrupt in 0.0..0.02f64) {
        let wire = WireConfig { loss, duplicate, corrupt, ..WireConfig::default() };
        let setup = PairConfig { seed: Seed(seed), wire, ..unacquainted() };
        let mut pair = HostPair::new(&setup);
        let _ = pair.stacks[1].listen(PORT, 16);
        // After three lost requests in a row, connecting fails rightly, and is tried again.
        let mut client = pair.stacks[0].connect(pair.now, None, (ADDRESS[1], PORT).into()).unwrap();
        let mut server = None;
        pair.run_until(|pair| {
            if pair.stacks[0].state(client) == TcpState::Closed {
                client = pair.stacks[0].connect(pair.now, None, (ADDRESS[1], PORT).into()).unwrap();
            }
            server = server.or_else(|| pair.stacks[1].accept(PORT));
            server.is_some() && pair.stacks[0].state(client) == TcpState::Established
        });
    }

    #[test]
    fn arp_and_icmp_accept_any_bytes_without_panic(packets in proptest::collection::vec((any::<bool>(), proptest::collection::vec(any::<u8>(), 0..100)), 0..40)) {
        let mut pair = HostPair::new(&unacquainted());
        for (is_arp, bytes) in packets {
            let frame = if is_arp {
                let start: &[u8] = &[0, 1, 8, 0, 6, 4, 0];
                ethernet([0xff; 6], EthernetProtocol::Arp, &[start, &bytes[..]].concat())
            } else {
                ip(ADDRESS[1], IpProtocol::Icmp, &bytes)
            };
            prop_assert!(answers(&mut pair, &frame).len() <= 1);
        }
    }
}
