//! Generates random rules and frames, with the output of the switch. `tests/linux/tc_guest.sh` applies the same rules
//! and frames to a Linux kernel. Run: `cargo run -p nic-switch --example tc_cases -- SEED FIRST SETS > cases`.
//!
//! Each line is a record: `S n` starts a set of rules, `R arguments` is a rule for `tc`, `F port frame` is a frame into
//! a port, and `O port frame` is a frame out of a port. Ports are `pf0vf0` and so on, and `p0` is the wire; `miss0` is
//! the representor of `pf0vf0`.
//!
//! The rules avoid cases in which Linux and hardware differ. A rule that changes addresses or ports has a `csum` after
//! it, which hardware does not need, and matches whole untagged packets, because Linux changes fragments and doubly
//! tagged packets at wrong offsets. The frames avoid such cases too: Linux accepts no GRE with a checksum at a device
//! in mode `external`, reads and writes ECN in a VLAN tag of a GRE payload, and writes it into copies that were
//! mirrored before.

#![allow(clippy::print_stdout, reason = "printing is the whole purpose, so a failed write loses no other work")]

use bytes::Bytes;
use nic_switch::action::ChecksumSet;
use nic_switch::matching::{FragmentMatch, TunnelMatch, VlanMatch};
use nic_switch::overlay::{TunnelHeaders, encapsulate};
use nic_switch::{
    Change, Device, Edit, Egress, EtherMatch, Frame, FunctionConfig, Mac, Match, Ports, Rule, RuleAction, Switch,
    SwitchConfig, SwitchMode, Tunnel, TunnelDevice, TunnelHop, TunnelKind, TunnelSet, VlanTag, Vport,
};
use offload_api::Prefix;
use offload_base::{Instant, Rng, Seed};
use offload_formats::{Headers, IpVersion, Protocol, checksum};
use std::collections::HashMap;
use std::env;
use std::fmt::Write;
use std::net::IpAddr;

fn main() {
    let mut numbers = env::args().skip(1).map(|word| word.parse::<u64>().expect("usage: tc_cases SEED FIRST SETS"));
    let mut next =
        |what| numbers.next().unwrap_or_else(|| panic!("usage: tc_cases SEED FIRST SETS: {what} is missing"));
    let (seed, first, sets) = (next("SEED"), next("FIRST"), next("SETS"));
    for set in first..first + sets {
        print!("{}", one_set(Seed(seed).derive(&format!("set {set}")).stream("case"), set));
    }
}

/// Returns a set of rules, frames and outputs.
fn one_set(mut rng: Rng, set: u64) -> String {
    let mut text = format!("S {set}\n");
    let mut switch = switch();
    let (mut protocols, mut mirrors) = (HashMap::new(), false);
    for _ in 0..4 + rng.below(9) {
        let rule = rule(&mut rng, &mut protocols);
        if switch.change(&[Change::Add(rule.clone())]).is_ok() {
            mirrors |= rule.actions.iter().any(|action| matches!(action, RuleAction::Mirror(_)));
            let _ = writeln!(text, "R filter add {}", for_linux(rule));
        }
    }
    for number in 0..FRAMES {
        let (port, frame) = frame(&mut rng, (set as u16, number), mirrors);
        let _ = writeln!(text, "F {port} {}", hex(&frame));
        let mut out = Vec::new();
        switch.receive(Instant::ZERO, port, Frame::from(Bytes::from(frame)), &mut out);
        for (egress, frame) in out {
            let way = match egress {
                Egress::Port(port) => port.to_string(),
                Egress::Representor(Vport::Virtual(number)) => format!("miss{number}"),
                Egress::Representor(_) => continue, // the guest's own stack has these
            };
            let _ = writeln!(text, "O {way} {}", hex(&frame.bytes));
        }
    }
    text
}

/// Makes the switch in the configuration that `tests/linux/tc_guest.sh` gives to Linux.
fn switch() -> Switch {
    let mut switch = Switch::new(SwitchConfig::default());
    for number in 0..FUNCTIONS {
        let config = FunctionConfig { spoof_check: false, ..FunctionConfig::new(Mac([2, 0, 0, 0, 9, number as u8])) };
        switch.set_function(Vport::Virtual(number), config);
    }
    switch.set_mode(SwitchMode::Switchdev);
    for device in [VXLAN, GRETAP] {
        let tunnel = Tunnel::new(device, vec![outer(IpVersion::V4, 1), outer(IpVersion::V6, 1)]);
        switch.add_tunnel(Tunnel { source_ports: (4789, 4789), ..tunnel });
    }
    for version in [IpVersion::V4, IpVersion::V6] {
        switch.set_next_hop(outer(version, 2), Some(TunnelHop { source: HERE, destination: THERE }));
    }
    switch
}

/// Returns the rule for Linux: frames for the representor are redirected to a visible device.
fn for_linux(mut rule: Rule) -> String {
    let Device::Port(Vport::Virtual(number)) = rule.device else { return rule.to_string() };
    match rule.actions.last() {
        Some(RuleAction::Pass) => drop(rule.actions.pop()),
        Some(last) if last.ends() => return rule.to_string(),
        _ => {}
    }
    format!("{rule} action mirred egress redirect dev m{number}")
}

fn rule(rng: &mut Rng, protocols: &mut HashMap<(Device, u32, u16), Option<u16>>) -> Rule {
    let device = match rng.below(10) {
        0..6 => Device::Port(Vport::Virtual(rng.below(FUNCTIONS.into()) as u16)),
        6 => Device::Port(Vport::Uplink),
        7 | 8 => Device::Tunnel(VXLAN),
        _ => Device::Tunnel(GRETAP),
    };
    let chain = if rng.chance(0.7) { 0 } else { 1 + rng.below(2) as u32 };
    let priority = 1 + rng.below(4) as u16;
    // In Linux, all rules of a priority have one protocol.
    let drawn = pick(
        rng,
        &[None, Some(IP), Some(IP), Some(IPV6), Some(IPV6), Some(ARP), Some(TAG), Some(TAG), Some(SERVICE_TAG)],
    );
    let protocol = *protocols.entry((device, chain, priority)).or_insert(drawn);
    let mut matching = matching(rng, protocol);
    if let Device::Tunnel(tunnel) = device {
        matching.tunnel = tunnel_match(rng, tunnel);
    }
    let mut actions = Vec::new();
    // Most rules of a tunnel device clear the received tunnel first, as generated rules do.
    if let Device::Tunnel(_) = device
        && rng.chance(0.8)
    {
        actions.push(RuleAction::TunnelUnset);
    }
    if rng.chance(0.3) {
        pedit(rng, &mut matching, &mut actions);
    }
    for _ in 0..rng.below(3) {
        let tag = VlanTag {
            id: 1 + rng.below(3) as u16,
            priority: rng.chance(0.5).then(|| rng.below(8) as u8),
            ether_type: pick(rng, &[TAG, TAG, SERVICE_TAG]),
        };
        actions.push(match rng.below(8) {
            0 => RuleAction::VlanPop,
            1 | 2 => RuleAction::VlanPush(tag),
            3 => RuleAction::VlanModify(tag),
            4 | 5 => RuleAction::Mirror(port(rng)),
            _ => RuleAction::TunnelSet(tunnel_set(rng, VXLAN)),
        });
    }
    match rng.below(10) {
        0..4 => actions.push(RuleAction::Redirect(port(rng))),
        4 | 5 => {
            let tunnel = if rng.chance(0.6) { VXLAN } else { GRETAP };
            actions.push(RuleAction::TunnelSet(tunnel_set(rng, tunnel)));
            actions.push(RuleAction::Redirect(Device::Tunnel(tunnel)));
        }
        6 => actions.push(RuleAction::Drop),
        7 => actions.push(RuleAction::Pass),
        // A goto leads to a later chain only, as the switch requires.
        8 if chain < 2 => actions.push(RuleAction::Goto(chain + 1 + rng.below(2 - u64::from(chain)) as u32)),
        _ => actions.push(RuleAction::Drop),
    }
    Rule { device, chain, priority, handle: None, matching, actions }
}

fn port(rng: &mut Rng) -> Device {
    Device::Port(if rng.chance(0.2) { Vport::Uplink } else { Vport::Virtual(rng.below(FUNCTIONS.into()) as u16) })
}

fn matching(rng: &mut Rng, protocol: Option<u16>) -> Match {
    let mut matching = Match { protocol, ..Match::default() };
    let ether = |rng: &mut Rng| {
        let mask = pick(
            rng,
            &[Mac::BROADCAST, Mac::BROADCAST, Mac([0xff, 0xff, 0xff, 0xff, 0xff, 0xfe]), Mac([0xff, 0, 0, 0, 0, 0])],
        );
        rng.chance(0.3).then(|| EtherMatch::new(mac(rng), mask))
    };
    (matching.destination_mac, matching.source_mac) = (ether(rng), ether(rng));
    if matches!(protocol, Some(TAG | SERVICE_TAG)) {
        matching.vlan = VlanMatch {
            id: rng.chance(0.5).then(|| 1 + rng.below(3) as u16),
            priority: rng.chance(0.3).then(|| rng.below(8) as u8),
            ether_type: rng.chance(0.5).then(|| pick(rng, &[IP, IPV6])),
        };
    }
    // IP conditions need an IP EtherType.
    let version = match matching.network() {
        Some(IP) => IpVersion::V4,
        Some(IPV6) => IpVersion::V6,
        _ => return matching,
    };
    let longest = if version == IpVersion::V4 { 32 } else { 128 };
    let prefix = |rng: &mut Rng| {
        let bits = longest - rng.below(3) as u8;
        rng.chance(0.3)
            .then(|| Prefix::new(inner(version, rng.below(4) as u8), bits).expect("no more bits than there are"))
    };
    (matching.source, matching.destination) = (prefix(rng), prefix(rng));
    if rng.chance(0.6) {
        matching.ip_protocol = Some(pick(rng, &[6, 6, 17, 17, if version == IpVersion::V4 { 1 } else { 58 }]));
    }
    if matches!(matching.ip_protocol, Some(6 | 17)) {
        let ports = |rng: &mut Rng| {
            let first = 1 + rng.below(4) as u16;
            match rng.below(4) {
                0 => Some(Ports::One(first)),
                1 => Some(Ports::Range(first, first + 1 + rng.below(3) as u16)),
                _ => None,
            }
        };
        (matching.source_port, matching.destination_port) = (ports(rng), ports(rng));
    }
    if rng.chance(0.15) {
        let first = rng.chance(0.5).then(|| rng.chance(0.5));
        matching.fragments = FragmentMatch { fragment: Some(rng.chance(0.5)), first };
    }
    matching
}

fn tunnel_match(rng: &mut Rng, tunnel: TunnelDevice) -> TunnelMatch {
    let version = if tunnel == GRETAP || rng.chance(0.6) { IpVersion::V4 } else { IpVersion::V6 };
    TunnelMatch {
        class: None,
        checksum: None,
        oam: None,
        key: rng.chance(0.6).then(|| 1 + rng.below(3) as u32),
        source: rng.chance(0.3).then(|| Prefix::host(outer(version, 2))),
        destination: rng.chance(0.3).then(|| Prefix::host(outer(version, 1))),
        destination_port: (tunnel == VXLAN && rng.chance(0.3)).then_some(4789),
        source_port: None, // iproute2 has no word for it
    }
}

fn tunnel_set(rng: &mut Rng, tunnel: TunnelDevice) -> TunnelSet {
    let version = if tunnel == GRETAP || rng.chance(0.6) { IpVersion::V4 } else { IpVersion::V6 };
    TunnelSet {
        key: Some(1 + rng.below(3) as u32),
        destination_port: (tunnel == VXLAN).then_some(4789),
        tos: if rng.chance(0.3) { rng.below(64) as u8 * 4 } else { 0 },
        ttl: if rng.chance(0.3) { 1 + rng.below(255) as u8 } else { 0 },
        checksum: version == IpVersion::V6 || rng.chance(0.5),
        ..TunnelSet::new(outer(version, 1), outer(version, 2))
    }
}

/// Returns random field changes, with the checksum actions that Linux needs.
fn pedit(rng: &mut Rng, matching: &mut Match, actions: &mut Vec<RuleAction>) {
    let mut edits = vec![if rng.chance(0.5) { Edit::SourceMac(mac(rng)) } else { Edit::DestinationMac(mac(rng)) }];
    let version = match matching.protocol {
        Some(IP) => IpVersion::V4,
        Some(IPV6) => IpVersion::V6,
        _ => {
            actions.push(RuleAction::Pedit(edits));
            return;
        }
    };
    let protocol = matches!(matching.ip_protocol, Some(6 | 17)).then_some(matching.ip_protocol).flatten();
    matching.fragments = FragmentMatch { fragment: Some(false), first: None };
    for _ in 0..1 + rng.below(3) {
        edits.push(match (rng.below(7), protocol) {
            (0, Some(_)) => Edit::Source(inner(version, rng.below(4) as u8)),
            (1, Some(_)) => Edit::Destination(inner(version, rng.below(4) as u8)),
            (2, Some(protocol)) => Edit::SourcePort(transport(protocol), rng.below(9) as u16),
            (3, Some(protocol)) => Edit::DestinationPort(transport(protocol), rng.below(9) as u16),
            (4, _) => Edit::TrafficClass(version, rng.next_u32() as u8),
            (5, _) => Edit::HopLimit(version, rng.next_u32() as u8),
            _ => Edit::AddToHopLimit(version, 255),
        });
    }
    actions.push(RuleAction::Pedit(edits));
    let checksums = ChecksumSet { ipv4: version == IpVersion::V4, tcp: protocol == Some(6), udp: protocol == Some(17) };
    if checksums != ChecksumSet::default() {
        actions.push(RuleAction::Checksum(checksums));
    }
}

/// Returns a random frame and its port. The payload is a mark that identifies the frame. `mirrors` tells whether a rule
/// mirrors frames.
fn frame(rng: &mut Rng, mark: (u16, u8), mirrors: bool) -> (Vport, Vec<u8>) {
    let plain = plain(rng, mark);
    if rng.chance(0.6) {
        return (Vport::Virtual(rng.below(FUNCTIONS.into()) as u16), plain);
    }
    if rng.chance(0.2) {
        return (Vport::Uplink, plain);
    }
    let device = if rng.chance(0.6) { VXLAN } else { GRETAP };
    let set = tunnel_set(rng, device);
    let version = IpVersion::of_address(&set.source);
    let key = if device == GRETAP && rng.chance(0.3) { None } else { set.key };
    let checksum = set.checksum && device != GRETAP;
    let (source, destination, tos) = (outer(version, 2), outer(version, 1), rng.next_u32() as u8);
    let set = TunnelSet { source, destination, key, tos, checksum, ..set };
    let hop = TunnelHop { source: THERE, destination: HERE };
    let source_port = 5000 + rng.below(3) as u16;
    let packet = TunnelHeaders { kind: device.kind, set, hop, source_port, identification: rng.next_u32() as u16 };
    let is_tagged = matches!(u16::from_be_bytes([plain[12], plain[13]]), TAG | SERVICE_TAG);
    let classes = if mirrors || (device == GRETAP && is_tagged) { 1 } else { 4 };
    let mut bytes = encapsulate(&packet, &Frame::from(Bytes::from(plain))).bytes.to_vec();
    // The path may have changed the ECN bits.
    if version == IpVersion::V4 {
        bytes[15] = bytes[15] & !3 | rng.below(classes) as u8;
        checksum::fill_ipv4_header(&mut bytes[14..]);
    }
    (Vport::Uplink, bytes)
}

fn plain(rng: &mut Rng, mark: (u16, u8)) -> Vec<u8> {
    let destination = if rng.chance(0.1) { Mac::BROADCAST } else { mac(rng) };
    let mut frame = [destination.0, mac(rng).0].concat();
    // Mostly untagged; doubly tagged frames are rare but must be parsed.
    for _ in 0..pick(rng, &[0, 0, 0, 0, 1, 1, 2]) {
        frame.extend(pick(rng, &[TAG, TAG, SERVICE_TAG]).to_be_bytes());
        frame.extend(((rng.below(8) as u16) << 13 | (1 + rng.below(3) as u16)).to_be_bytes());
    }
    // The mark identifies the frame at the output, wherever its headers were changed.
    let marked = [&MARK[..], &mark.0.to_be_bytes(), &[mark.1]].concat();
    let version = match rng.below(8) {
        0 => {
            frame.extend(pick(rng, &[ARP, 0x88b5]).to_be_bytes());
            frame.extend(marked);
            frame.extend([0; 28]);
            return frame;
        }
        1..5 => IpVersion::V4,
        _ => IpVersion::V6,
    };
    frame.extend(version.ether_type().to_be_bytes());
    let protocol = pick(rng, &[6u8, 6, 17, 17, 1, 58]);
    let mut upper = vec![0; 20];
    upper[..2].copy_from_slice(&(rng.below(6) as u16).to_be_bytes());
    upper[2..4].copy_from_slice(&(rng.below(6) as u16).to_be_bytes());
    upper[12] = 0x50;
    upper.extend(marked);
    upper.extend(vec![0xee; rng.below(60) as usize]);
    if protocol == 17 {
        let bytes = upper.len() as u16;
        upper[4..6].copy_from_slice(&bytes.to_be_bytes());
    }
    let network = frame.len();
    let is_fragment = rng.chance(0.15);
    // First fragment, middle fragment, last fragment.
    let place = if is_fragment { pick(rng, &[0x2000u16, 0x2001, 5]) } else { 0 };
    let (source, destination) = (inner(version, rng.below(4) as u8), inner(version, rng.below(4) as u8));
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            frame.extend([0x45, rng.next_u32() as u8, 0, 0, 0, 7]);
            frame.extend(place.to_be_bytes());
            frame.extend([1 + rng.below(250) as u8, protocol, 0, 0]);
            frame.extend(source.octets());
            frame.extend(destination.octets());
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let class = rng.next_u32() as u8;
            let next = if is_fragment { 44 } else { protocol };
            frame.extend([0x60 | class >> 4, class << 4, 0, 0, 0, 0, next, 1 + rng.below(250) as u8]);
            frame.extend(source.octets());
            frame.extend(destination.octets());
            if is_fragment {
                // IPv6 has the offset in the upper and the flag in the lowest bit.
                let offset = (place & 0x1fff) << 3 | place >> 13;
                frame.extend([protocol, 0]);
                frame.extend(offset.to_be_bytes());
                frame.extend([0, 0, 0, 7]);
            }
        }
        _ => unreachable!("two versions in one packet"),
    }
    frame.extend(upper);
    let bytes = frame.len() - network;
    version.set_length(&mut frame[network..], bytes);
    match Headers::parse(&frame).transport() {
        // A datagram over IPv4 may have no checksum (RFC 768).
        Some(udp) if udp.protocol == Protocol::Udp && version == IpVersion::V4 && rng.chance(0.2) => {
            checksum::fill_ipv4_header(&mut frame[network..]);
        }
        Some(transport) => transport.fill_checksums(&mut frame),
        None if version == IpVersion::V4 => checksum::fill_ipv4_header(&mut frame[network..]),
        None => {}
    }
    frame
}

fn transport(protocol: u8) -> Protocol {
    if protocol == 6 { Protocol::Tcp } else { Protocol::Udp }
}

fn mac(rng: &mut Rng) -> Mac {
    Mac([2, 0, 0, 0, 0, rng.below(4) as u8])
}

fn inner(version: IpVersion, last: u8) -> IpAddr {
    match version {
        IpVersion::V4 => [10, 0, 0, last].into(),
        IpVersion::V6 => [0xfd00, 0, 0, 0, 0, 0, 0, last.into()].into(),
    }
}

fn outer(version: IpVersion, last: u8) -> IpAddr {
    match version {
        IpVersion::V4 => [192, 0, 2, last].into(),
        IpVersion::V6 => [0xfd02, 0, 0, 0, 0, 0, 0, last.into()].into(),
    }
}

fn pick<T: Copy>(rng: &mut Rng, among: &[T]) -> T {
    among[rng.below(among.len() as u64) as usize]
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

const FRAMES: u8 = 24;
const FUNCTIONS: u16 = 3;
const VXLAN: TunnelDevice = TunnelDevice { kind: TunnelKind::Vxlan, number: 0 };
const GRETAP: TunnelDevice = TunnelDevice { kind: TunnelKind::Gretap, number: 1 };
/// Addresses of the two ends of the wire.
const HERE: Mac = Mac([2, 0, 0, 0, 1, 1]);
const THERE: Mac = Mac([2, 0, 0, 0, 1, 2]);
const MARK: [u8; 4] = [0xa5, 0x5a, 0xc3, 0x3c];
const IP: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const ARP: u16 = 0x0806;
const TAG: u16 = 0x8100;
const SERVICE_TAG: u16 = 0x88a8;
