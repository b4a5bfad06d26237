//! Tests of duplicate address detection and router discovery.

use crate::packets::{answers, ip_of, packet};
use crate::pair::{HostPair, MAC, PairConfig, SIX, config};
use core::net::{IpAddr, Ipv6Addr};
use core::time::Duration;
use offload_base::Seed;
use offload_host_stack::{Ipv6Config, SocketOpenError, Stack, TcpConfig};
use smoltcp::wire::{Icmpv6Packet, IpProtocol, Ipv6Packet};

const SECOND: Duration = Duration::from_secs(1);
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ROUTER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 9);
const ROUTER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
const FAR: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 9, 9, 0, 0, 0, 1);

/// Returns a pair with `six` on side 1, which has no neighbour entries.
fn pair(six: Ipv6Config) -> HostPair {
    let mut pair = HostPair::new(&PairConfig::default());
    let mut config = config(1, Seed(1), TcpConfig::default()).with_ipv6(six);
    config.neighbours.clear();
    pair.stacks[1] = Stack::new(config);
    pair
}

/// Returns the frames that side 1 sends until `until` has passed.
fn sent(pair: &mut HostPair, until: Duration) -> Vec<Vec<u8>> {
    let end = pair.now + until;
    let mut frames = Vec::new();
    loop {
        while pair.stacks[1].poll(pair.now, &mut pair.nics[1]) {}
        frames.extend(pair.nics[1].port().drain());
        match pair.stacks[1].next_event().filter(|at| *at <= end) {
            Some(at) => pair.now = pair.now.max(at),
            None => break,
        }
    }
    pair.now = end;
    frames
}

fn icmp(from: Ipv6Addr, to: Ipv6Addr, hop_limit: u8, mut message: Vec<u8>) -> Vec<u8> {
    Icmpv6Packet::new_unchecked(&mut message[..]).fill_checksum(&from, &to);
    let mut frame = packet(from.into(), to.into(), IpProtocol::Icmpv6, &message);
    Ipv6Packet::new_unchecked(&mut frame[14..]).set_hop_limit(hop_limit);
    frame
}

/// Returns an unsolicited advertisement of `target`.
fn claim(target: Ipv6Addr) -> Vec<u8> {
    let message = [&[136, 0, 0, 0, 0x20, 0, 0, 0][..], &target.octets(), &[2, 1, 2, 0, 0, 0, 0, 7]].concat();
    icmp(target, ALL_NODES, 255, message)
}

/// Returns an advertisement of a router for `lifetime` seconds, with prefix 2001:db8:1::/64 for `valid` seconds and an
/// MTU of 1400.
fn advertisement(from: Ipv6Addr, hop_limit: u8, lifetime: u16, valid: u32) -> Vec<u8> {
    let prefix = Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 0);
    let message = [
        &[134, 0, 0, 0, 64, 0][..],
        &lifetime.to_be_bytes(),
        &[0; 8],
        &[1, 1],
        &ROUTER_MAC,
        &[5, 1, 0, 0, 0, 0, 5, 120],
        &[3, 4, 64, 0xc0],
        &valid.to_be_bytes(),
        &valid.to_be_bytes(),
        &[0; 4],
        &prefix.octets(),
    ];
    icmp(from, ALL_NODES, hop_limit, message.concat())
}

fn ping(pair: &mut HostPair, to: Ipv6Addr) -> usize {
    let frames = answers(pair, &icmp(SIX[0], to, 64, vec![128, 0, 0, 0, 0, 77, 0, 5]));
    // If the neighbour is unknown, its solicitation is the only frame.
    frames.len()
}

#[test]
fn address_is_assigned_a_second_after_its_probe() {
    let mut pair = pair(Ipv6Config::new(SIX[1]).with_duplicate_detection());
    let probes = sent(&mut pair, SECOND);
    assert_eq!(probes.len(), 2, "one probe per address");
    for probe in &probes {
        let ip = Ipv6Packet::new_checked(&probe[14..]).unwrap();
        assert_eq!((ip.src_addr(), ip.hop_limit(), ip.payload()[0]), (Ipv6Addr::UNSPECIFIED, 255, 135));
        assert_eq!(ip.payload().len(), 24, "a probe has no link-layer address option");
        let group = [&[0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff][..], &ip.payload()[21..24]].concat();
        assert_eq!(ip.dst_addr().octets()[..], group, "the probe goes to the solicited-node address");
    }
    assert_eq!(pair.stacks[1].addresses().len(), 1, "only the IPv4 address is assigned");
    assert_eq!(ping(&mut pair, SIX[1]), 0, "a tentative address does not answer");
    let now = pair.now;
    let opened = pair.stacks[1].connect(now, None, (SIX[0], 80).into());
    assert_eq!(opened, Err(SocketOpenError::Unreachable));
    assert!(sent(&mut pair, SECOND).is_empty());
    assert!(pair.stacks[1].addresses().contains(&SIX[1].into()));
    assert_eq!(ping(&mut pair, SIX[1]), 1);
}

#[test]
fn duplicate_address_is_not_assigned() {
    let mut pair = pair(Ipv6Config::new(SIX[1]).with_duplicate_detection());
    sent(&mut pair, SECOND);
    assert!(answers(&mut pair, &claim(SIX[1])).is_empty());
    sent(&mut pair, SECOND * 5);
    let addresses = pair.stacks[1].addresses();
    assert_eq!(
        (addresses.len(), addresses.contains(&SIX[1].into())),
        (2, false),
        "only the IPv4 and the link-local address"
    );
    assert_eq!(ping(&mut pair, SIX[1]), 0);
    assert_eq!(pair.stacks[1].counters().duplicate_addresses, 1);
}

#[test]
fn simultaneous_probes_assign_the_address_to_no_host() {
    let mut pair = pair(Ipv6Config::new(SIX[1]).with_duplicate_detection());
    let probes = sent(&mut pair, SECOND);
    let probe = probes.iter().find(|probe| probe[62..78] == SIX[1].octets()).unwrap();
    assert!(answers(&mut pair, probe).is_empty());
    sent(&mut pair, SECOND * 5);
    assert!(!pair.stacks[1].addresses().contains(&SIX[1].into()));
}

#[test]
fn routers_are_solicited_three_times() {
    let mut pair = pair(Ipv6Config::unassigned().with_router_discovery());
    let frames = sent(&mut pair, SECOND * 60);
    assert_eq!(frames.len(), 3);
    for frame in &frames {
        let ip = Ipv6Packet::new_checked(&frame[14..]).unwrap();
        assert_eq!((ip.dst_addr(), ip.hop_limit()), ("ff02::2".parse().unwrap(), 255));
        assert!(ip.src_addr().is_unicast_link_local());
        assert_eq!((frame[..6].to_vec(), ip.payload()[0]), (vec![0x33, 0x33, 0, 0, 0, 2], 133));
        assert_eq!(ip.payload()[8..], [&[1, 1][..], &MAC[1]].concat());
    }
    assert_eq!(pair.stacks[1].counters().router_solicits_out, 3);
}

#[test]
fn advertisement_holds_for_its_lifetime() {
    let six = Ipv6Config::unassigned().with_duplicate_detection().with_router_discovery();
    let mut pair = pair(six);
    sent(&mut pair, SECOND * 3);
    // Without a router, no route leads to another network.
    let unreachable = pair.stacks[1].connect(pair.now, None, (FAR, 80).into());
    assert_eq!(unreachable, Err(SocketOpenError::Unreachable));
    assert!(answers(&mut pair, &advertisement(ROUTER, 255, 1800, 7200)).len() <= 1, "a probe of the new address");
    assert_eq!(sent(&mut pair, SECOND * 60).len(), 0, "no more solicitations");
    let made: IpAddr = "2001:db8:1::ff:fe00:2".parse().unwrap();
    assert!(pair.stacks[1].addresses().contains(&made));

    let id = pair.stacks[1].connect(pair.now, None, (FAR, 80).into()).unwrap();
    let frames = sent(&mut pair, Duration::ZERO);
    // A solicitation may precede the SYN, to confirm the router.
    let syn = frames.iter().find(|frame| frame[20] == 6).unwrap();
    assert_eq!(syn[..6], ROUTER_MAC, "the SYN goes to the router");
    let smoltcp::wire::IpRepr::Ipv6(ip) = ip_of(syn) else { panic!("not IPv6") };
    assert_eq!((IpAddr::V6(ip.src_addr), ip.dst_addr), (made, FAR));
    // The first TCP option.
    assert_eq!(syn[74..78], [&[2, 4][..], &(1400u16 - 60).to_be_bytes()].concat(), "the link's MTU");
    pair.stacks[1].abort(id);

    sent(&mut pair, SECOND * 1800);
    let now = pair.now;
    assert_eq!(
        pair.stacks[1].connect(now, None, (FAR, 80).into()),
        Err(SocketOpenError::Unreachable),
        "the router has expired"
    );
    sent(&mut pair, SECOND * 5400);
    assert!(!pair.stacks[1].addresses().contains(&made));
}

#[test]
fn forwarded_or_invalid_advertisements_are_ignored() {
    let mut pair = pair(Ipv6Config::unassigned().with_router_discovery());
    let good = advertisement(ROUTER, 255, 1800, 7200);
    let mut short = icmp(ROUTER, ALL_NODES, 255, vec![134, 0, 0, 0, 64, 0, 7, 8]);
    for frame in [&advertisement(ROUTER, 254, 1800, 7200), &advertisement(SIX[0], 255, 1800, 7200), &short] {
        answers(&mut pair, frame);
    }
    // An option of length zero.
    let message = [&good[54..70], &[1, 0, 0, 0, 0, 0, 0, 0][..]].concat();
    short = icmp(ROUTER, ALL_NODES, 255, message);
    answers(&mut pair, &short);
    assert_eq!((pair.stacks[1].addresses().len(), pair.stacks[1].counters().ndp_in_errors), (2, 4));
    answers(&mut pair, &good);
    assert_eq!(pair.stacks[1].addresses().len(), 3);

    let message = &good[54..];
    let fragment = |from: usize, to: usize| {
        let offset = (from as u16 | u16::from(to < message.len())).to_be_bytes();
        let piece = [&[58, 0][..], &offset, &[0, 0, 0, 7], &message[from..to]].concat();
        let mut frame = packet(ROUTER.into(), ALL_NODES.into(), IpProtocol::Ipv6Frag, &piece);
        Ipv6Packet::new_unchecked(&mut frame[14..]).set_hop_limit(255);
        frame
    };
    // RFC 6980 5: in one fragment, or in two.
    let mut wary = crate::autoconf::pair(Ipv6Config::unassigned().with_router_discovery());
    for piece in [fragment(0, message.len()), fragment(0, 48), fragment(48, message.len())] {
        answers(&mut wary, &piece);
    }
    let counters = wary.stacks[1].counters();
    assert_eq!((counters.ip6_reassembly_oks, counters.ndp_in_errors), (2, 2));
    assert_eq!((wary.stacks[1].addresses().len(), counters.router_advertisements_in), (2, 0));

    let mut deaf = HostPair::new(&PairConfig::default());
    answers(&mut deaf, &good);
    assert_eq!((deaf.stacks[1].addresses().len(), deaf.stacks[1].counters().router_advertisements_in), (3, 1));
}
