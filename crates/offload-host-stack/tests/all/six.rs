//! Tests of IPv6: neighbour solicitation, echo, invalid headers and fragments.

use crate::packets::{answers, packet};
use crate::pair::{HostPair, MAC, PairConfig, SIX};
use crate::transfer::pattern;
use core::net::Ipv6Addr;
use core::time::Duration;
use offload_base::Seed;
use offload_formats::IpVersion;
use offload_formats::reassembly::{FragmentOutcome, Reassembler, ReassemblyLimits};
use smoltcp::wire::{Icmpv6Packet, IpProtocol, Ipv6Packet};
use std::sync::{Arc, Mutex};

fn icmp(to: Ipv6Addr, hop_limit: u8, mut message: Vec<u8>) -> Vec<u8> {
    Icmpv6Packet::new_unchecked(&mut message[..]).fill_checksum(&SIX[0], &to);
    let mut frame = packet(SIX[0].into(), to.into(), IpProtocol::Icmpv6, &message);
    Ipv6Packet::new_unchecked(&mut frame[14..]).set_hop_limit(hop_limit);
    frame
}

/// Returns side 0's solicitation of `target`.
fn solicitation(target: Ipv6Addr) -> Vec<u8> {
    [&[135, 0, 0, 0, 0, 0, 0, 0][..], &target.octets(), &[1, 1], &MAC[0]].concat()
}

#[test]
fn solicitation_is_answered_if_it_passed_no_router() {
    let mut pair = HostPair::new(&PairConfig::default());
    let answer = answers(&mut pair, &icmp(SIX[1], 255, solicitation(SIX[1])));
    let [frame] = &answer[..] else { panic!("{} answers", answer.len()) };
    let ip = Ipv6Packet::new_checked(&frame[14..]).unwrap();
    assert_eq!((ip.src_addr(), ip.dst_addr(), ip.hop_limit()), (SIX[1], SIX[0], 255));
    let advertisement = Icmpv6Packet::new_checked(ip.payload()).unwrap();
    assert!(advertisement.verify_checksum(&SIX[1], &SIX[0]));
    assert_eq!((ip.payload()[0], ip.payload()[4]), (136, 0x60), "the solicited and override flags are set");
    assert_eq!(ip.payload()[8..24], SIX[1].octets());
    assert_eq!(ip.payload()[24..], [&[2, 1][..], &MAC[1]].concat());
    assert!(answers(&mut pair, &icmp(SIX[1], 254, solicitation(SIX[1]))).is_empty());
    assert!(answers(&mut pair, &icmp(SIX[1], 255, solicitation(SIX[0]))).is_empty(), "not its own address");
    assert_eq!(pair.stacks[1].counters().ndp_in_errors, 1);
}

/// Frames to a zero or a group address would reach no station, or all.
#[test]
fn advertisement_of_an_invalid_mac_is_ignored() {
    let mut pair = HostPair::new(&PairConfig { acquainted: false, ..PairConfig::default() });
    pair.stacks[1].connect(pair.now, None, (SIX[0], 80).into()).unwrap();
    while pair.stacks[1].poll(pair.now, &mut pair.nics[1]) {}
    assert_eq!(pair.nics[1].port().drain().len(), 1, "a solicitation");
    let advertisement = |mac: [u8; 6]| {
        icmp(SIX[1], 255, [&[136, 0, 0, 0, 0x60, 0, 0, 0][..], &SIX[0].octets(), &[2, 1], &mac].concat())
    };
    for mac in [[0; 6], [0xff; 6], [0x33, 0x33, 0, 0, 0, 1]] {
        assert!(answers(&mut pair, &advertisement(mac)).is_empty(), "{mac:?}");
    }
    assert_eq!(pair.stacks[1].counters().ndp_in_errors, 3);
    let syn = answers(&mut pair, &advertisement(MAC[0]));
    assert_eq!((syn.len(), &syn[0][..6]), (1, &MAC[0][..]));
}

/// RFC 8200 4.3: hop-by-hop options are for all routers on the path, but no router has seen these.
#[test]
fn hop_by_hop_options_after_a_fragment_are_reported() {
    let mut pair = HostPair::new(&PairConfig::default());
    let header = [&[0, 0][..], &[0, 1], &7u32.to_be_bytes(), &[17, 0, 1, 4, 0, 0, 0, 0]].concat();
    let answer = answers(&mut pair, &packet(SIX[0].into(), SIX[1].into(), IpProtocol::Ipv6Frag, &header));
    let [frame] = &answer[..] else { panic!("{} answers", answer.len()) };
    assert_eq!(frame[54..56], [4, 1], "parameter problem: a next header");
    assert_eq!(frame[58..62], 40u32.to_be_bytes());
    assert_eq!(pair.stacks[1].counters().ip6_in_header_errors, 1);
}

#[test]
fn valid_ping_is_answered_and_broken_ping_dropped() {
    let mut pair = HostPair::new(&PairConfig::default());
    let request = [&[128, 0, 0, 0, 0, 77, 0, 5][..], b"some data"].concat();
    let answer = answers(&mut pair, &icmp(SIX[1], 64, request.clone()));
    let [frame] = &answer[..] else { panic!("{} answers", answer.len()) };
    let reply = &frame[54..];
    assert!(Icmpv6Packet::new_checked(reply).unwrap().verify_checksum(&SIX[1], &SIX[0]));
    assert_eq!((reply[0], &reply[4..]), (129, &request[4..]));
    let mut broken = icmp(SIX[1], 64, request);
    *broken.last_mut().unwrap() ^= 1;
    assert!(answers(&mut pair, &broken).is_empty());
    assert_eq!(pair.stacks[1].counters().icmp6_in_checksum_errors, 1);
}

#[test]
fn unknown_option_is_reported_with_its_offset() {
    let mut pair = HostPair::new(&PairConfig::default());
    let options = [17, 0, 0x9e, 4, 0, 0, 0, 0];
    let answer = answers(&mut pair, &packet(SIX[0].into(), SIX[1].into(), IpProtocol::Ipv6Opts, &options));
    let [frame] = &answer[..] else { panic!("{} answers", answer.len()) };
    assert_eq!(frame[54..56], [4, 2], "parameter problem: an option");
    assert_eq!(frame[58..62], 42u32.to_be_bytes());
}

/// Returns a fragment of an ICMPv6 message from side 0 to side 1.
fn piece(message: &[u8], from: usize, to: usize) -> Vec<u8> {
    let more = u16::from(to < message.len());
    let header = [&[58, 0][..], &(from as u16 | more).to_be_bytes(), &7u32.to_be_bytes()].concat();
    packet(SIX[0].into(), SIX[1].into(), IpProtocol::Ipv6Frag, &[&header, &message[from..to]].concat())
}

/// Returns an echo request with `bytes` data bytes and a valid checksum.
fn long_request(bytes: usize) -> Vec<u8> {
    let mut request = [&[128, 0, 0, 0, 0, 77, 0, 5][..], &pattern(Seed(5), bytes)].concat();
    Icmpv6Packet::new_unchecked(&mut request[..]).fill_checksum(&SIX[0], &SIX[1]);
    request
}

#[test]
fn fragmented_ping_gets_a_fragmented_answer() {
    let request = long_request(4000);
    let cuts = [(0, 1448), (1448, 2896), (2896, 4008)];
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let mut pair = HostPair::new(&PairConfig::default());
        let mut answer = Vec::new();
        for index in order {
            let (from, to) = cuts[index];
            assert!(answer.is_empty(), "no answer before the last fragment");
            answer = answers(&mut pair, &piece(&request, from, to));
        }
        assert_eq!(answer.len(), 3, "{order:?}");
        assert!(answer.iter().all(|frame| frame.len() <= 1514));
        let mut pieces = Reassembler::new(ReassemblyLimits::for_version(IpVersion::V6));
        let whole = answer.iter().find_map(|frame| match pieces.insert(pair.now, frame, 14) {
            FragmentOutcome::Whole(whole) => Some(whole),
            _ => None,
        });
        let whole = whole.expect("the answer's fragments must belong together");
        let reply = &whole[54..];
        assert!(Icmpv6Packet::new_checked(reply).unwrap().verify_checksum(&SIX[1], &SIX[0]));
        assert_eq!((reply[0], &reply[4..]), (129, &request[4..]), "{order:?}");
    }
}

/// RFC 8200 4.5: reassembly times out after a minute. Only the sender of the first fragment gets an error.
#[test]
fn incomplete_packet_times_out_and_is_reported() {
    let request = long_request(2000);
    for (from, to, reported) in [(0, 1448, 1), (1448, 2008, 0)] {
        let mut pair = HostPair::new(&PairConfig::default());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let copy = seen.clone();
        pair.wire.filter = Some(Box::new(move |_, frame| {
            copy.lock().unwrap().push(frame.to_vec());
            false
        }));
        pair.nics[1].port().deliver(&piece(&request, from, to));
        pair.run_for(Duration::from_secs(59));
        assert!(seen.lock().unwrap().is_empty(), "no error before the timeout");
        pair.run_for(Duration::from_secs(2));
        let seen = seen.lock().unwrap();
        assert_eq!(seen.len(), reported);
        for frame in seen.iter() {
            let message = &frame[54..];
            assert!(Icmpv6Packet::new_checked(message).unwrap().verify_checksum(&SIX[1], &SIX[0]));
            assert_eq!(message[..2], [3, 1], "time exceeded in reassembly");
            assert_eq!(message[8..48], piece(&request, from, to)[14..54], "the error quotes the fragment");
            assert!(frame.len() <= 14 + 1280);
        }
        let counters = pair.stacks[1].counters();
        assert_eq!((counters.ip6_reassembly_timeouts, counters.icmp6_out_time_exceeded), (1, reported as u64));
    }
}

/// A router forwards at most 1300 bytes. The first datagram is lost, and later ones are fragmented.
#[test]
fn datagrams_are_fragmented_after_packet_too_big() {
    let mut pair = HostPair::new(&PairConfig::default());
    pair.stacks[1].bind_udp(Some(53)).unwrap();
    let port = pair.stacks[0].bind_udp(None).unwrap();
    let too_big = Arc::new(Mutex::new(Vec::new()));
    let told = too_big.clone();
    pair.wire.filter = Some(Box::new(move |from, frame| {
        // The simulated router drops the frame and reports the MTU of its next link.
        let stopped = from == 0 && frame.len() > 14 + 1300;
        if stopped {
            let mut message = [&[2, 0, 0, 0][..], &1300u32.to_be_bytes(), &frame[14..14 + 1232]].concat();
            Icmpv6Packet::new_unchecked(&mut message[..]).fill_checksum(&SIX[1], &SIX[0]);
            let mut answer = packet(SIX[1].into(), SIX[0].into(), IpProtocol::Icmpv6, &message);
            answer[..12].rotate_left(6); // from side 1 to side 0
            told.lock().unwrap().push(answer);
        }
        stopped
    }));
    let data = pattern(Seed(9), 1400);
    for number in 0..3 {
        let to = (SIX[1], 53).into();
        pair.stacks[0].send_datagram(pair.now, port, to, data.clone().into(), &pair.nics[0]).unwrap();
        pair.run_for(Duration::from_millis(1));
        for answer in too_big.lock().unwrap().drain(..) {
            pair.nics[0].port().deliver(&answer);
        }
        pair.run_for(Duration::from_millis(1));
        let arrived = pair.stacks[1].take_datagram(53).map(|datagram| datagram.data);
        assert_eq!(arrived.is_some(), number > 0, "datagram {number}");
        assert!(arrived.is_none_or(|arrived| arrived[..] == data[..]));
    }
    let counters = pair.stacks[0].counters();
    assert_eq!((counters.icmp6_in_too_bigs, counters.paths_narrowed), (1, 1));
    assert_eq!(pair.stacks[1].counters().ip6_reassembly_oks, 2);
}
