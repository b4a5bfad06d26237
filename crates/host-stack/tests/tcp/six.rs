//! What IPv6 has of its own: neighbours solicited, echoes answered, headers that are not acceptable.

use crate::packets::{answers, packet};
use crate::pair::{MAC, Pair, SIX, Setup};
use core::net::Ipv6Addr;
use smoltcp::wire::{Icmpv6Packet, IpProtocol, Ipv6Packet};

fn icmp(to: Ipv6Addr, hop_limit: u8, mut message: Vec<u8>) -> Vec<u8> {
    Icmpv6Packet::new_unchecked(&mut message[..]).fill_checksum(&SIX[0], &to);
    let mut frame = packet(SIX[0].into(), to.into(), IpProtocol::Icmpv6, &message);
    Ipv6Packet::new_unchecked(&mut frame[14..]).set_hop_limit(hop_limit);
    frame
}

/// Side 0 asks for the Ethernet address of `target`.
fn solicitation(target: Ipv6Addr) -> Vec<u8> {
    [&[135, 0, 0, 0, 0, 0, 0, 0][..], &target.octets(), &[1, 1], &MAC[0]].concat()
}

#[test]
fn a_solicitation_is_answered_if_it_has_passed_no_router() {
    let mut pair = Pair::new(&Setup::default());
    let answer = answers(&mut pair, &icmp(SIX[1], 255, solicitation(SIX[1])));
    let [frame] = &answer[..] else { panic!("{} answers", answer.len()) };
    let ip = Ipv6Packet::new_checked(&frame[14..]).unwrap();
    assert_eq!((ip.src_addr(), ip.dst_addr(), ip.hop_limit()), (SIX[1], SIX[0], 255));
    let advertisement = Icmpv6Packet::new_checked(ip.payload()).unwrap();
    assert!(advertisement.verify_checksum(&SIX[1], &SIX[0]));
    assert_eq!((ip.payload()[0], ip.payload()[4]), (136, 0x60), "solicited, and it overrides");
    assert_eq!(ip.payload()[8..24], SIX[1].octets());
    assert_eq!(ip.payload()[24..], [&[2, 1][..], &MAC[1]].concat());
    assert!(answers(&mut pair, &icmp(SIX[1], 254, solicitation(SIX[1]))).is_empty());
    assert!(answers(&mut pair, &icmp(SIX[1], 255, solicitation(SIX[0]))).is_empty(), "not its own address");
    assert_eq!(pair.stacks[1].counters().ndp_in_errors, 1);
}

#[test]
fn a_ping_is_answered_and_a_broken_one_is_not() {
    let mut pair = Pair::new(&Setup::default());
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
fn an_option_that_is_not_known_is_pointed_at() {
    let mut pair = Pair::new(&Setup::default());
    let options = [17, 0, 0x9e, 4, 0, 0, 0, 0];
    let answer = answers(&mut pair, &packet(SIX[0].into(), SIX[1].into(), IpProtocol::Ipv6Opts, &options));
    let [frame] = &answer[..] else { panic!("{} answers", answer.len()) };
    assert_eq!(frame[54..56], [4, 2], "parameter problem: an option");
    assert_eq!(frame[58..62], 42u32.to_be_bytes());
}
