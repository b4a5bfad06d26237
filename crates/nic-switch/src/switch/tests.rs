//! The switch as a whole: rules, tunnels, legacy mode.

use super::passage::ID;
use super::*;
use crate::action::{RuleAction, TunnelSet};
use crate::matching::{Mac, VLAN};
use crate::overlay::{self, TunnelHeaders};
use crate::port::TunnelKind;
use crate::words::RuleFile;
use crate::{arbitrary, edit};
use bytes::{Bytes, BytesMut};
use offload_formats::{Headers, InternetSum, IpVersion};
use proptest::prelude::*;

const NOW: Instant = Instant::ZERO;

fn mac(last: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, last])
}

/// Makes a switch with three functions with the addresses 0 to 2.
fn switch(rules: &str) -> Switch {
    let mut switch = Switch::new(SwitchConfig::default());
    for number in 0..3 {
        switch.set_function(Vport::Virtual(number), FunctionConfig::new(mac(number as u8)));
    }
    switch.set_mode(SwitchMode::Switchdev);
    let changes: Vec<Change> = rules
        .lines()
        .flat_map(|line| RuleFile::parse("test", &format!("tc filter add dev {line}")).unwrap().changes)
        .collect();
    switch.change(&changes).unwrap();
    switch
}

/// Returns a datagram between two stations, from port 7 to port 9.
fn datagram(destination: Mac, source: Mac) -> Frame {
    let mut frame = [destination.0, source.0].concat();
    frame.extend([0x08, 0x00, 0x45, 0, 0, 60, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend([0, 7, 0, 9, 0, 40, 0, 0]);
    frame.extend([0x5a; 32]);
    Headers::parse(&frame).transport().unwrap().fill_checksums(&mut frame);
    Frame::from(Bytes::from(frame))
}

fn sent(switch: &mut Switch, from: Vport, frame: Frame) -> Vec<(Egress, Frame)> {
    let mut out = Vec::new();
    switch.receive(NOW, from, frame, &mut out);
    out
}

fn ways(out: &[(Egress, Frame)]) -> Vec<Egress> {
    out.iter().map(|(egress, _)| *egress).collect()
}

const ONE: Vport = Vport::Virtual(0);
const OTHER: Vport = Vport::Virtual(1);

#[test]
fn unmatched_frames_pass_between_port_and_representor() {
    let mut switch = switch("pf0vf0 ingress protocol arp prio 1 flower action drop");
    let frame = datagram(mac(1), mac(0));
    assert_eq!(sent(&mut switch, ONE, frame.clone()), [(Egress::Representor(ONE), frame.clone())]);
    let mut out = Vec::new();
    switch.inject(OTHER, frame.clone(), &mut out);
    assert_eq!(out, [(Egress::Port(OTHER), frame)]);
    assert_eq!((switch.counters().misses, switch.counters().to_representors), (1, 1));
}

/// The SA of a received frame does not apply to the output, or the frame would leave under the keys of another network.
#[test]
fn a_frame_leaves_without_its_inbound_sa() {
    let frame = datagram(mac(1), mac(0));
    let protected = Frame { sa: Some(offload_api::Handle { index: 3, generation: 1 }), ..frame.clone() };
    for (rules, egress) in [
        ("p0 ingress protocol ip prio 1 flower action mirred egress redirect dev p0", Egress::Port(Vport::Uplink)),
        ("p0 ingress protocol ip prio 1 flower action mirred egress redirect dev pf0vf1", Egress::Port(OTHER)),
        ("p0 ingress protocol arp prio 1 flower action drop", Egress::Representor(Vport::Uplink)),
    ] {
        let out = sent(&mut switch(rules), Vport::Uplink, protected.clone());
        assert_eq!(out, [(egress, frame.clone())], "{rules}");
    }
}

/// A Linux behind the representor forwards sample frames, and sees by them that the rule is in use.
#[test]
fn the_uplink_representor_gets_sampled_frames_unchanged() {
    let vxlan0 = TunnelDevice { kind: TunnelKind::Vxlan, number: 0 };
    let local: IpAddr = [192, 0, 2, 1].into();
    let set = TunnelSet { key: Some(5), destination_port: Some(4789), ..TunnelSet::new([192, 0, 2, 2].into(), local) };
    let hop = TunnelHop { destination: mac(9), source: mac(8) };
    let outer = TunnelHeaders { kind: TunnelKind::Vxlan, set, hop, source_port: 50_000, identification: 7 };
    let inner = datagram(mac(1), mac(0));
    // A plain frame at a port, a tunnel packet, and a plain frame at the uplink.
    for (device, from, frame) in [
        ("pf0vf0", ONE, inner.clone()),
        ("vxlan0", Vport::Uplink, overlay::encapsulate(&outer, &inner)),
        ("p0", Vport::Uplink, inner.clone()),
    ] {
        let action = "action vlan push id 5 pipe action mirred egress redirect dev pf0vf1";
        let mut switch = switch(&format!("{device} ingress protocol ip prio 1 flower {action}"));
        switch.add_tunnel(Tunnel::new(vxlan0, vec![local]));
        switch.set_sampling(Some(Duration::from_secs(2)));
        let to_linux = |switch: &mut Switch, milliseconds| {
            let mut out = Vec::new();
            switch.receive(NOW + Duration::from_millis(milliseconds), from, frame.clone(), &mut out);
            // A frame either goes to Linux unchanged or to the function with its new tag.
            let [(egress, sent)] = &out[..] else { panic!("{device}: one output expected: {out:?}") };
            assert_eq!(*sent == frame, *egress == Egress::Representor(from), "{device}: the sample is unchanged");
            *sent == frame
        };
        // The interval starts with the rule's first match and then with each sample.
        let times = [0, 1999, 2000, 2001, 3999, 9000, 9001];
        let samples = times.map(|time| to_linux(&mut switch, time));
        assert_eq!(samples, [false, false, true, false, false, true, false], "{device}");
        // A rule that replaces an equal one does not count as new.
        let rules: Vec<Rule> = switch.rules().map(|report| Rule::clone(&report.rule)).collect();
        switch.replace_rules(rules).unwrap();
        assert!(to_linux(&mut switch, 11_000), "{device}");
        switch.set_sampling(None);
        assert!(!to_linux(&mut switch, 20_000), "{device}");
        let counted: u64 = switch.rules().map(|report| report.counters.packets).sum();
        assert_eq!((counted, switch.counters().samples, switch.counters().misses), (9, 3, 0), "{device}");
    }
}

/// There are no tunnels behind a representor, so it gets the packet as on the wire.
#[test]
fn frames_passed_by_tunnel_rules_reach_the_uplinks_representor() {
    let vxlan0 = TunnelDevice { kind: TunnelKind::Vxlan, number: 0 };
    let local: IpAddr = [192, 0, 2, 1].into();
    let set = TunnelSet { key: Some(5), destination_port: Some(4789), ..TunnelSet::new([192, 0, 2, 2].into(), local) };
    let hop = TunnelHop { destination: mac(9), source: mac(8) };
    let outer = TunnelHeaders { kind: TunnelKind::Vxlan, set, hop, source_port: 50_000, identification: 7 };
    let frame = overlay::encapsulate(&outer, &datagram(mac(1), mac(0)));
    for actions in ["action pass", "action vlan push id 5 pipe", "action goto chain 1"] {
        let last = "vxlan0 ingress protocol ip prio 1 chain 1 flower action pass";
        let mut switch = switch(&format!("vxlan0 ingress protocol ip prio 1 flower {actions}\n{last}"));
        switch.add_tunnel(Tunnel::new(vxlan0, vec![local]));
        assert_eq!(
            sent(&mut switch, Vport::Uplink, frame.clone()),
            [(Egress::Representor(Vport::Uplink), frame.clone())],
            "{actions}"
        );
    }
}

#[test]
fn tunnel_rules_match_class_and_checksum_and_set_dont_fragment() {
    let vxlan0 = TunnelDevice { kind: TunnelKind::Vxlan, number: 0 };
    let local: IpAddr = [192, 0, 2, 1].into();
    let hop = TunnelHop { destination: mac(9), source: mac(8) };
    // Returns whether the rule takes a tunnel packet with these outer headers.
    let taken = |words: &str, tos: u8, checksum: bool, dont_fragment: bool| {
        let mut switch = switch(&format!(
            "vxlan0 ingress protocol ip prio 1 flower {words} action mirred egress redirect dev pf0vf1"
        ));
        switch.add_tunnel(Tunnel::new(vxlan0, vec![local]));
        let ends = TunnelSet::new([192, 0, 2, 2].into(), local);
        let set = TunnelSet { key: Some(5), destination_port: Some(4789), tos, checksum, dont_fragment, ..ends };
        let outer = TunnelHeaders { kind: TunnelKind::Vxlan, set, hop, source_port: 50_000, identification: 7 };
        let frame = overlay::encapsulate(&outer, &datagram(mac(1), mac(0)));
        assert_eq!(frame.bytes[20] == 0x40, dont_fragment);
        let mut sum = InternetSum::default();
        sum.add(&frame.bytes[14..34]);
        assert!(sum.is_right());
        ways(&sent(&mut switch, Vport::Uplink, frame)) == [Egress::Port(OTHER)]
    };
    // Each pair contains a matching and a mismatching value.
    for (words, tos, checksum, expected) in [
        ("enc_tos 0x10", 0x10, true, true),
        ("enc_tos 0x10", 0x14, true, false),
        ("enc_tos 0x10/0x18", 0x14, true, true),
        ("enc_flags tuncsum", 0, true, true),
        ("enc_flags tuncsum", 0, false, false),
        ("enc_flags notuncsum", 0, false, true),
        ("enc_flags notuncsum ip_flags nofrag", 0, true, false),
        ("ip_tos 0/0x3", 0, true, true),
        ("ip_tos 1/0x3", 0x10, true, false),
    ] {
        for dont_fragment in [false, true] {
            assert_eq!(
                taken(words, tos, checksum, dont_fragment),
                expected,
                "{words}, class {tos}, checksum {checksum}"
            );
        }
    }
}

#[test]
fn a_rule_may_require_or_exclude_geneve_control_packets() {
    let geneve0 = TunnelDevice { kind: TunnelKind::Geneve, number: 0 };
    let local: IpAddr = [192, 0, 2, 1].into();
    let set = TunnelSet { key: Some(5), checksum: false, ..TunnelSet::new([192, 0, 2, 2].into(), local) };
    let hop = TunnelHop { destination: mac(9), source: mac(8) };
    let outer = TunnelHeaders { kind: TunnelKind::Geneve, set, hop, source_port: 50_000, identification: 7 };
    let plain = overlay::encapsulate(&outer, &datagram(mac(1), mac(0)));
    let mut control = plain.bytes.to_vec();
    control[43] = 0x80;
    let control = Frame::from(Bytes::from(control));
    for (words, takes) in
        [("", [true; 2]), (" enc_flags tunoam", [false, true]), (" enc_flags notunoam", [true, false])]
    {
        let mut switch =
            switch(&format!("geneve0 ingress prio 1 flower{words} action mirred egress redirect dev pf0vf1"));
        switch.add_tunnel(Tunnel::new(geneve0, vec![local]));
        let taken = [&plain, &control]
            .map(|frame| ways(&sent(&mut switch, Vport::Uplink, frame.clone())) == [Egress::Port(OTHER)]);
        assert_eq!(taken, takes, "{words}");
    }
}

#[test]
fn chains_see_the_edited_frame_and_mirrors_the_earlier_one() {
    let mut switch = switch(
        "pf0vf0 ingress protocol ip prio 1 flower action mirred egress mirror dev pf0vf1 action pedit ex munge ip dst set 10.0.0.9 pipe action goto chain 1
pf0vf0 ingress protocol ip prio 1 chain 1 flower dst_ip 10.0.0.2 action drop
pf0vf0 ingress protocol ip prio 2 chain 1 flower dst_ip 10.0.0.9 action vlan push id 5 action mirred egress redirect dev p0",
    );
    let frame = datagram(mac(1), mac(0));
    let out = sent(&mut switch, ONE, frame.clone());
    assert_eq!(ways(&out), [Egress::Port(OTHER), Egress::Port(Vport::Uplink)]);
    assert_eq!(out[0].1, frame);
    let changed = &out[1].1.bytes;
    assert_eq!((&changed[12..16], &changed[34..38]), (&[0x81, 0, 0, 5][..], &[10, 0, 0, 9][..]));
    assert_eq!(Headers::parse(changed).transport().unwrap().are_checksums_right(changed), Some(true));
    let packets: Vec<u64> = switch.rules().map(|report| report.counters.packets).collect();
    assert_eq!(packets, [1, 0, 1]);
}

#[test]
fn counters_survive_replacement_and_a_rejected_change() {
    let mut switch = switch("pf0vf0 ingress protocol ip prio 1 flower ip_proto udp action drop");
    sent(&mut switch, ONE, datagram(mac(1), mac(0)));
    let report = switch.rules().next().unwrap();
    let seen = RuleCounters { packets: 1, bytes: 74, last_used: Some(NOW) };
    assert_eq!(report.counters, seen);
    let mut rule = Rule::clone(&report.rule);
    rule.actions = vec![RuleAction::Pass];
    switch.change(&[Change::Replace(rule.clone())]).unwrap();
    assert_eq!(switch.rules().next().unwrap().counters, seen);
    let other = Rule { priority: 2, ..rule.clone() };
    switch.replace_rules([other.clone(), rule.clone()]).unwrap();
    let counters: Vec<RuleCounters> = switch.rules().map(|report| report.counters).collect();
    assert_eq!(counters, [seen, RuleCounters::default()]);
    let doubled = switch.replace_rules([rule.clone(), rule.clone()]);
    assert_eq!((doubled, switch.rules().count()), (Err(ChangeError::Exists), 2));
    assert_eq!(
        switch.change(&[Change::Add(Rule { priority: 3, ..rule }), Change::Add(other)]),
        Err(ChangeError::Exists)
    );
    assert_eq!(switch.rules().count(), 2);
}

#[test]
fn frames_above_the_rate_are_dropped() {
    let mut switch = switch(
        "pf0vf0 ingress protocol ip prio 1 flower action police rate 8kbit burst 100b conform-exceed drop/pipe action mirred egress redirect dev pf0vf1",
    );
    assert_eq!(sent(&mut switch, ONE, datagram(mac(1), mac(0))).len(), 1);
    assert_eq!(sent(&mut switch, ONE, datagram(mac(1), mac(0))).len(), 0);
    let mut out = Vec::new();
    switch.receive(NOW + Duration::from_secs(1), ONE, datagram(mac(1), mac(0)), &mut out);
    assert_eq!((out.len(), switch.counters().policed), (1, 1));
}

/// Makes two hosts with a function 0 each, in one tunnel network.
fn overlay(kind: &str, six: bool, id: &str, back: &str) -> (Switch, Switch) {
    let address = |last: u8| if six { format!("fd00::{last}") } else { format!("192.0.2.{last}") };
    let host = |own: u8, other: u8| {
        let (own_address, other_address) = (address(own), address(other));
        let mut switch = switch(&format!(
            "pf0vf0 ingress prio 1 flower action tunnel_key set src_ip {own_address} dst_ip {other_address} {id} action mirred egress redirect dev {kind}
{kind} ingress prio 1 flower {back} enc_src_ip {other_address} action tunnel_key unset action mirred egress redirect dev pf0vf1"
        ));
        let Ok(Device::Tunnel(device)) = kind.parse() else { panic!("{kind}") };
        switch.add_tunnel(Tunnel::new(device, vec![own_address.parse().unwrap()]));
        switch.set_next_hop(
            other_address.parse().unwrap(),
            Some(TunnelHop { source: mac(90 + own), destination: mac(90 + other) }),
        );
        switch.set_function(OTHER, FunctionConfig { mtu: 9000, ..FunctionConfig::new(mac(7)) });
        switch
    };
    (host(1, 2), host(2, 1))
}

const TUNNELS: [(&str, &str, &str); 5] = [
    ("vxlan0", "id 77", "enc_key_id 77 enc_dst_port 4789"),
    ("vxlan0", "id 77 nocsum dst_port 4789 ttl 3 tos 8", "enc_key_id 77"),
    ("geneve0", "id 77", "enc_key_id 77"),
    ("gretap0", "id 77", "enc_key_id 77"),
    ("gretap0", "nocsum", "enc_key_id 0"),
];

#[test]
fn encapsulated_frames_are_decapsulated_at_the_other_end() {
    for (kind, id, back) in TUNNELS {
        for six in [false, true] {
            if six && id.contains("nocsum") && kind == "vxlan0" {
                continue; // RFC 8200 8.1: UDP over IPv6 has a checksum
            }
            let (mut here, mut there) = overlay(kind, six, id, back);
            let frame = datagram(mac(1), mac(0));
            let mut wrapped = sent(&mut here, ONE, frame.clone());
            assert_eq!(ways(&wrapped), [Egress::Port(Vport::Uplink)], "{kind} {id}");
            let packet = wrapped.remove(0).1;
            assert_eq!(packet.bytes[..12], [mac(92).0, mac(91).0].concat());
            assert_eq!(sent(&mut there, Vport::Uplink, packet.clone()), [(Egress::Port(OTHER), frame)], "{kind} {id}");
            // Another key or another sender matches no rule.
            let (_, mut stranger) = overlay(kind, six, id, &back.replace("77", "78").replace("id 0", "id 1"));
            assert_eq!(ways(&sent(&mut stranger, Vport::Uplink, packet)), [Egress::Representor(Vport::Uplink)]);
        }
    }
}

#[test]
fn a_large_packet_is_cut_inside_its_tunnel() {
    for (kind, id, back) in TUNNELS {
        let (mut here, mut there) = overlay(kind, false, id, back);
        let mut large = datagram(mac(1), mac(0)).bytes[..34].to_vec();
        (large[23], large[19]) = (6, 9);
        large.extend([0, 9, 0, 9, 0, 0, 0, 100, 0, 0, 0, 0, 0x50, 0x18, 0, 0, 0, 0, 0, 0]);
        large.extend((0..3500u32).map(|at| at as u8));
        let large = Frame { bytes: large.into(), cut: core::num::NonZeroU16::new(1000), ..Frame::default() };
        let wrapped = sent(&mut here, ONE, large.clone()).remove(0).1;
        let plain = overlay::cut(&large);
        let mut identifications = Vec::new();
        for (segment, plain) in overlay::cut(&wrapped).into_iter().zip(&plain) {
            identifications.push(u16::from_be_bytes([segment[18], segment[19]]));
            assert!(checksum_is_right(&segment));
            let out = sent(&mut there, Vport::Uplink, Frame::from(segment));
            assert_eq!(out, [(Egress::Port(OTHER), Frame::from(plain.clone()))], "{kind} {id}");
        }
        assert_eq!(identifications, [0, 1, 2, 3]);
        let next = sent(&mut here, ONE, datagram(mac(1), mac(0))).remove(0).1;
        assert_eq!(next.bytes[18..20], [0, 4], "identifications differ");
    }
}

fn checksum_is_right(frame: &[u8]) -> bool {
    offload_formats::checksum::is_ipv4_header_right(&frame[14..])
        && Headers::parse(frame).transport().is_none_or(|udp| udp.are_checksums_right(frame) != Some(false))
}

#[test]
fn bad_tunnel_packets_are_dropped_and_counted() {
    let (mut here, mut there) = overlay("geneve0", false, "id 77", "enc_key_id 77");
    let packet = sent(&mut here, ONE, datagram(mac(1), mac(0))).remove(0).1.bytes;
    let mut damaged = packet.to_vec();
    damaged[100] ^= 1;
    assert!(sent(&mut there, Vport::Uplink, Frame::from(Bytes::from(damaged))).is_empty());
    // A four-byte option, critical or not.
    let with_option = |critical: u8| {
        let mut packet = [&packet[..50], &[1, 2, critical, 0], &packet[50..]].concat();
        (packet[42], packet[43]) = (1, critical >> 1);
        let bytes = packet.len() - 14;
        IpVersion::V4.set_length(&mut packet[14..], bytes);
        packet[38..40].copy_from_slice(&(bytes as u16 - 20).to_be_bytes());
        Headers::parse(&packet).transport().unwrap().fill_checksums(&mut packet);
        Frame::from(Bytes::from(packet))
    };
    assert_eq!(ways(&sent(&mut there, Vport::Uplink, with_option(0))), [Egress::Port(OTHER)]);
    assert!(sent(&mut there, Vport::Uplink, with_option(0x80)).is_empty());
    assert_eq!((there.counters().tunnel_checksum, there.counters().tunnel_critical), (1, 1));
}

#[test]
fn congestion_on_the_way_is_told_inside() {
    let (mut here, mut there) = overlay("vxlan0", false, "id 77", "enc_key_id 77");
    for (inner, on_the_way, arrives) in
        [(2, 3, Some(3)), (0, 3, None), (2, 1, Some(1)), (1, 2, Some(1)), (3, 0, Some(3))]
    {
        let mut frame = datagram(mac(1), mac(0)).bytes.to_vec();
        frame[15] = inner;
        offload_formats::checksum::fill_ipv4_header(&mut frame[14..]);
        let mut packet = sent(&mut here, ONE, Frame::from(Bytes::from(frame))).remove(0).1.bytes.to_vec();
        assert_eq!(packet[15], if inner == 3 { 2 } else { inner });
        packet[15] = on_the_way;
        offload_formats::checksum::fill_ipv4_header(&mut packet[14..]);
        let out = sent(&mut there, Vport::Uplink, Frame::from(Bytes::from(packet)));
        assert_eq!(out.first().map(|(_, frame)| frame.bytes[15]), arrives, "{inner} {on_the_way}");
        assert!(out.iter().all(|(_, frame)| checksum_is_right(&frame.bytes)));
    }
    assert_eq!(there.counters().tunnel_ecn, 1);
    // Behind a tag, ECN is unchanged and does not decide about the packet.
    let mut tagged = BytesMut::from(&datagram(mac(1), mac(0)).bytes[..]);
    edit::push_vlan(&mut tagged, VLAN, 5);
    let mut packet = sent(&mut here, ONE, Frame::from(tagged.clone().freeze())).remove(0).1.bytes.to_vec();
    packet[15] = 3;
    offload_formats::checksum::fill_ipv4_header(&mut packet[14..]);
    let out = sent(&mut there, Vport::Uplink, Frame::from(Bytes::from(packet)));
    assert_eq!(out, [(Egress::Port(OTHER), Frame::from(tagged.freeze()))]);
}

#[test]
fn senders_of_too_big_frames_get_an_error() {
    let (mut here, _) = overlay("vxlan0", false, "id 77", "enc_key_id 77");
    let long = |bytes: usize| {
        let mut frame = datagram(mac(1), mac(0)).bytes.to_vec();
        frame.resize(ETHERNET_BYTES + bytes, 0);
        IpVersion::V4.set_length(&mut frame[ETHERNET_BYTES..], bytes);
        Frame::from(Bytes::from(frame))
    };
    assert_eq!(ways(&sent(&mut here, ONE, long(1450))), [Egress::Port(Vport::Uplink)]);
    let told = sent(&mut here, ONE, long(1451));
    assert_eq!(ways(&told), [Egress::Port(ONE)]);
    assert_eq!((&told[0].1.bytes[..6], &told[0].1.bytes[40..42]), (&mac(0).0[..], &1450u16.to_be_bytes()[..]));
    let device = TunnelDevice { kind: TunnelKind::Vxlan, number: 0 };
    here.add_tunnel(Tunnel { mtu: 1416, ..Tunnel::new(device, vec!["192.0.2.1".parse().unwrap()]) });
    assert_eq!(sent(&mut here, ONE, long(1417))[0].1.bytes[40..42], 1416u16.to_be_bytes());
    assert_eq!((here.counters().too_long, here.counters().told), (2, 2));
    // The number of messages is limited.
    let told = (0..1000).filter(|_| !sent(&mut here, ONE, long(1417)).is_empty()).count();
    assert!((80..200).contains(&told), "{told} messages of 590 bytes of a burst of 64 KiB");
}

#[test]
fn without_a_next_hop_the_host_gets_the_frame() {
    let (mut here, _) = overlay("vxlan0", false, "id 77", "enc_key_id 77");
    here.set_next_hop("192.0.2.2".parse().unwrap(), None);
    assert_eq!(ways(&sent(&mut here, ONE, datagram(mac(1), mac(0)))), [Egress::Representor(ONE)]);
    assert_eq!(here.counters().unresolved, 1);
}

/// The uplink's representor shows packets as on the wire.
#[test]
fn a_decapsulated_frame_without_a_next_hop_is_dropped() {
    let (mut here, mut there) = overlay("vxlan0", false, "id 77", "enc_key_id 77");
    let packet = sent(&mut here, ONE, datagram(mac(1), mac(0))).remove(0).1;
    let set = "tunnel_key set src_ip 192.0.2.2 dst_ip 192.0.2.3 id 5";
    for unset in ["", "action tunnel_key unset "] {
        let line = format!(
            "tc filter replace dev vxlan0 ingress prio 1 flower enc_key_id 77 {unset}action {set} action mirred egress redirect dev vxlan0"
        );
        let rules = RuleFile::parse("test", &line).unwrap().changes.into_iter().filter_map(|change| match change {
            Change::Replace(rule) => Some(rule),
            _ => None,
        });
        there.replace_rules(rules).unwrap();
        assert_eq!(ways(&sent(&mut there, Vport::Uplink, packet.clone())), [], "{unset}");
    }
    assert_eq!((there.counters().unresolved, there.counters().unresolved_inner), (2, 2));
    // A plaintext frame from the wire is shown as it arrived.
    let line = format!("p0 ingress prio 1 flower action {set} action mirred egress redirect dev vxlan0");
    let mut plain = switch(&line);
    let frame = datagram(mac(1), mac(0));
    assert_eq!(sent(&mut plain, Vport::Uplink, frame.clone()), [(Egress::Representor(Vport::Uplink), frame)]);
}

#[test]
fn virtual_machines_talk_without_rules() {
    let mut switch = switch("");
    switch.set_mode(SwitchMode::Legacy);
    assert_eq!(ways(&sent(&mut switch, ONE, datagram(mac(1), mac(0)))), [Egress::Port(OTHER)]);
    let all = [Egress::Port(Vport::Uplink), Egress::Port(OTHER), Egress::Port(Vport::Virtual(2))];
    assert_eq!(ways(&sent(&mut switch, ONE, datagram(Mac::BROADCAST, mac(0)))), all);
    // An unknown address is flooded to the wire; a known one is behind one port.
    assert_eq!(ways(&sent(&mut switch, ONE, datagram(mac(50), mac(0)))), [Egress::Port(Vport::Uplink)]);
    sent(&mut switch, Vport::Uplink, datagram(mac(0), mac(50)));
    assert_eq!(ways(&sent(&mut switch, OTHER, datagram(mac(50), mac(1)))), [Egress::Port(Vport::Uplink)]);
    let storms = (0..2000).filter(|_| !sent(&mut switch, ONE, datagram(Mac::BROADCAST, mac(0))).is_empty()).count();
    assert!((800..900).contains(&storms), "{storms} broadcasts of 74 bytes of a burst of 64 KiB");
    assert!(!sent(&mut switch, OTHER, datagram(Mac::BROADCAST, mac(1))).is_empty(), "each port has its own limit");
}

/// Makes two tenants, by VLAN, with two functions each, and the uplink.
fn tenants() -> Switch {
    let mut switch =
        Switch::new(SwitchConfig { storm: Police { rate: 1 << 40, burst: u32::MAX }, ..SwitchConfig::default() });
    for number in 0..4 {
        let config = FunctionConfig { vlan: Some(1 + number / 2), ..FunctionConfig::new(mac(number as u8)) };
        switch.set_function(Vport::Virtual(number), config);
    }
    switch
}

fn tenant(port: Vport) -> Option<u16> {
    match port {
        Vport::Virtual(number) => Some(1 + number / 2),
        _ => None,
    }
}

proptest! {
    /// A tenant's frames reach only functions of that tenant, and frames with a forged address reach no port.
    #[test]
    fn frames_do_not_cross_tenants(
        legacy in any::<bool>(),
        changes in prop::collection::vec(arbitrary::change(), 0..30),
        frames in prop::collection::vec((0u16..5, arbitrary::frame(), any::<bool>()), 1..30),
    ) {
        let mut switch = tenants();
        if !legacy {
            switch.set_mode(SwitchMode::Switchdev);
            // Rules may send frames anywhere, but must not change tags: tags are the administrator's decision.
            let is_plain = |change: &&Change| match change {
                Change::Add(rule) | Change::Replace(rule) => rule.actions.iter().all(|action| {
                    !matches!(action, RuleAction::VlanPush(_) | RuleAction::VlanPop | RuleAction::VlanModify(_))
                }),
                Change::Delete(_) => true,
            };
            for change in changes.iter().filter(is_plain) {
                let _ = switch.change(core::slice::from_ref(change));
            }
        }
        for (port, mut bytes, honest) in frames {
            let from = if port == 4 { Vport::Uplink } else { Vport::Virtual(port) };
            if honest && port < 4 {
                bytes[6..12].copy_from_slice(&mac(port as u8).0);
            }
            let forged = port < 4 && bytes[6..12] != mac(port as u8).0;
            let tag = edit::outermost_tag(&bytes);
            let out = sent(&mut switch, from, Frame::from(Bytes::from(bytes)));
            prop_assert!(out.is_empty() || !forged && (port == 4 || tag.is_none()));
            for (egress, frame) in out {
                if let Egress::Port(to) = egress && let Some(of) = tenant(to) {
                    let own = tenant(from).or(tag.map(|(_, control)| control & ID));
                    prop_assert_eq!(Some(of), own, "{:?} to {:?}", from, to);
                    // The VLAN's tag is removed; another tag after it is the sender's own.
                    prop_assert!(from == Vport::Uplink || edit::outermost_tag(&frame.bytes).is_none());
                }
            }
        }
    }

    #[test]
    fn any_bytes_are_switched_or_dropped(
        from in 0u16..4, bytes in prop::collection::vec(any::<u8>(), 0..120), wrapped in any::<bool>(),
    ) {
        let (mut switch, _) = overlay("vxlan0", false, "id 77", "enc_key_id 77");
        let mut frame = bytes.clone();
        if wrapped {
            let inner = Frame::from(Bytes::from(bytes));
            let hop = TunnelHop { source: mac(9), destination: mac(8) };
            let set = TunnelSet { key: Some(77), ..TunnelSet::new([192, 0, 2, 2].into(), [192, 0, 2, 1].into()) };
            let outer = TunnelHeaders { kind: TunnelKind::Vxlan, set, hop, source_port: 5, identification: 0 };
            frame = overlay::encapsulate(&outer, &inner).bytes.to_vec();
        }
        let port = if from == 3 { Vport::Uplink } else { Vport::Virtual(from) };
        sent(&mut switch, port, Frame::from(Bytes::from(frame.clone())));
        let cut = Frame { bytes: frame.into(), cut: core::num::NonZeroU16::new(9), ..Frame::default() };
        overlay::cut(&cut);
        sent(&mut switch, port, cut);
    }
}
