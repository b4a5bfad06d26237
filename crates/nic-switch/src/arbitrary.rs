//! Random rules and frames for tests. Each field has few values, so that rules overlap and match frames.

use crate::action::{ChecksumSet, Edit, Police, RuleAction, TunnelSet, VlanTag};
use crate::matching::{
    ARP, ClassMatch, EtherMatch, FragmentMatch, IPV4, IPV6, Mac, Match, Ports, SERVICE_VLAN, TunnelMatch, VLAN,
    VlanMatch,
};
use crate::port::{Device, TunnelDevice, TunnelKind, Vport};
use crate::rule::{Change, Rule, Selection};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use offload_api::Prefix;
use offload_formats::protocol::{ICMP, TCP, UDP};
use offload_formats::{Headers, IpVersion, Protocol, checksum};
use proptest::option::of;
use proptest::prelude::*;

pub(crate) fn mac() -> impl Strategy<Value = Mac> {
    (0u8..4).prop_map(|last| Mac([2, 0, 0, 0, 0, last]))
}

pub(crate) fn device() -> impl Strategy<Value = Device> {
    prop_oneof![
        4 => (0u16..3).prop_map(|number| Device::Port(Vport::Virtual(number))),
        1 => Just(Device::Port(Vport::Uplink)),
        1 => Just(Device::Port(Vport::Physical)),
        1 => Just(Device::Port(Vport::Card)),
        1 => prop_oneof![Just(TunnelKind::Vxlan), Just(TunnelKind::Gretap), Just(TunnelKind::Geneve)]
            .prop_map(|kind| Device::Tunnel(TunnelDevice { kind, number: 0 })),
    ]
}

fn version() -> impl Strategy<Value = IpVersion> {
    prop_oneof![Just(IpVersion::V4), Just(IpVersion::V6)]
}

pub(crate) fn address(version: IpVersion) -> impl Strategy<Value = IpAddr> {
    (0u8..4).prop_map(move |last| match version {
        IpVersion::V4 => Ipv4Addr::new(10, 0, 0, last).into(),
        IpVersion::V6 => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last.into()).into(),
    })
}

fn prefix(version: IpVersion) -> impl Strategy<Value = Prefix> {
    let longest = if version == IpVersion::V4 { 32u8 } else { 128 };
    (address(version), prop_oneof![Just(longest), longest - 2..=longest, 0..=longest])
        .prop_map(|(address, bits)| Prefix::new(address, bits).expect("a valid number of bits"))
}

fn ports() -> impl Strategy<Value = Ports> {
    prop_oneof![
        (1u16..5).prop_map(Ports::One),
        (1u16..4, 1u16..4).prop_map(|(first, more)| Ports::Range(first, first + more))
    ]
}

fn ether() -> impl Strategy<Value = EtherMatch> {
    (mac(), prop_oneof![3 => Just(Mac::BROADCAST), 1 => Just(Mac([0xff, 0xff, 0xff, 0, 0, 0])), 1 => Just(Mac([0, 0, 0, 0, 0, 1]))])
        .prop_map(|(address, mask)| EtherMatch::new(address, mask))
}

fn link() -> impl Strategy<Value = Match> {
    let network = prop_oneof![Just(IPV4), Just(IPV6), Just(ARP), Just(0x88b5)];
    let vlan = (prop_oneof![Just(VLAN), Just(SERVICE_VLAN)], of(0u16..3), of(0u8..3), of(network.clone()));
    let protocol = prop_oneof![
        1 => Just((None, VlanMatch::default())),
        3 => network.prop_map(|network| (Some(network), VlanMatch::default())),
        1 => vlan.prop_map(|(tag, id, priority, ether_type)| (Some(tag), VlanMatch { id, priority, ether_type })),
    ];
    (protocol, of(ether()), of(ether())).prop_map(|((protocol, vlan), destination_mac, source_mac)| Match {
        protocol,
        vlan,
        destination_mac,
        source_mac,
        ..Match::default()
    })
}

fn with_ip(link: Match) -> BoxedStrategy<Match> {
    // IP conditions are valid only with an IP EtherType.
    let version = match link.network() {
        Some(IPV4) => IpVersion::V4,
        Some(IPV6) => IpVersion::V6,
        _ => return Just(link).boxed(),
    };
    let fragments =
        (of(any::<bool>()), of(any::<bool>())).prop_map(|(fragment, first)| FragmentMatch { fragment, first });
    // Ports need TCP or UDP; ICMP has none.
    let transport = prop_oneof![
        of(Just(ICMP)).prop_map(|protocol| (protocol, None, None)),
        (prop_oneof![Just(TCP), Just(UDP)], of(ports()), of(ports()))
            .prop_map(|(protocol, source, destination)| { (Some(protocol), source, destination) }),
    ];
    (
        of(prefix(version)),
        of(prefix(version)),
        transport,
        prop_oneof![3 => Just(FragmentMatch::default()), 1 => fragments],
        prop_oneof![3 => Just(None), 1 => class().prop_map(Some)],
    )
        .prop_map(move |(source, destination, (ip_protocol, source_port, destination_port), fragments, class)| Match {
            source,
            destination,
            ip_protocol,
            source_port,
            destination_port,
            fragments,
            class,
            ..link
        })
        .boxed()
}

fn with_tunnel(matching: Match, device: Device) -> BoxedStrategy<Match> {
    if matches!(device, Device::Port(_)) {
        return Just(matching).boxed();
    }
    let ends = version().prop_flat_map(|version| (of(prefix(version)), of(prefix(version))));
    let flags = (of(any::<bool>()), of(any::<bool>()));
    (of(0u32..3), ends, of(0u16..3), of(Just(4789u16)), of(class()), flags)
        .prop_map(move |(key, (source, destination), source_port, destination_port, class, (checksum, oam))| Match {
            tunnel: TunnelMatch { key, source, destination, source_port, destination_port, class, checksum, oam },
            ..matching
        })
        .boxed()
}

/// A nonzero mask, because a rule cannot express an empty one.
fn class() -> impl Strategy<Value = ClassMatch> {
    (any::<u8>(), prop_oneof![Just(3u8), Just(0xff)]).prop_map(|(class, mask)| ClassMatch::new(class, mask))
}

fn tag() -> impl Strategy<Value = VlanTag> {
    (0u16..4, of(0u8..8), prop_oneof![Just(VLAN), Just(SERVICE_VLAN)]).prop_map(|(id, priority, ether_type)| VlanTag {
        id,
        priority,
        ether_type,
    })
}

fn tunnel_set() -> impl Strategy<Value = TunnelSet> {
    let ends = version().prop_flat_map(|version| (address(version), address(version)));
    (ends, of(0u32..1 << 24), of(1u16..9999), any::<u8>(), any::<u8>(), any::<[bool; 2]>()).prop_map(
        |((source, destination), key, destination_port, tos, ttl, [checksum, dont_fragment])| TunnelSet {
            source,
            destination,
            key,
            destination_port,
            tos,
            ttl,
            checksum,
            dont_fragment,
        },
    )
}

fn edit() -> impl Strategy<Value = Edit> {
    let protocol = prop_oneof![Just(Protocol::Tcp), Just(Protocol::Udp)];
    prop_oneof![
        mac().prop_map(Edit::SourceMac),
        mac().prop_map(Edit::DestinationMac),
        version().prop_flat_map(address).prop_map(Edit::Source),
        version().prop_flat_map(address).prop_map(Edit::Destination),
        (version(), any::<u8>()).prop_map(|(version, class)| Edit::TrafficClass(version, class)),
        (version(), any::<u8>()).prop_map(|(version, limit)| Edit::HopLimit(version, limit)),
        (version(), any::<u8>()).prop_map(|(version, more)| Edit::AddToHopLimit(version, more)),
        (protocol.clone(), any::<u16>()).prop_map(|(protocol, port)| Edit::SourcePort(protocol, port)),
        (protocol, any::<u16>()).prop_map(|(protocol, port)| Edit::DestinationPort(protocol, port)),
    ]
}

fn action() -> impl Strategy<Value = RuleAction> {
    prop_oneof![
        device().prop_map(RuleAction::Mirror),
        tunnel_set().prop_map(RuleAction::TunnelSet),
        Just(RuleAction::TunnelUnset),
        tag().prop_map(RuleAction::VlanPush),
        Just(RuleAction::VlanPop),
        tag().prop_map(RuleAction::VlanModify),
        prop::collection::vec(edit(), 1..4).prop_map(RuleAction::Pedit),
        (any::<bool>(), any::<bool>(), any::<bool>()).prop_map(|(ipv4, tcp, udp)| RuleAction::Checksum(ChecksumSet {
            ipv4,
            tcp,
            udp
        })),
        (1u64..1 << 40, 1u32..1 << 20).prop_map(|(rate, burst)| RuleAction::Police(Police { rate, burst })),
    ]
}

fn end(chain: u32) -> impl Strategy<Value = RuleAction> {
    prop_oneof![
        4 => device().prop_map(RuleAction::Redirect),
        1 => Just(RuleAction::Drop),
        1 => Just(RuleAction::Pass),
        2 => (chain + 1..chain + 3).prop_map(RuleAction::Goto),
    ]
}

/// A valid rule.
pub(crate) fn rule() -> impl Strategy<Value = Rule> {
    let place = (device(), prop_oneof![3 => Just(0u32), 1 => 1u32..3], 1u16..5, of(1u32..4));
    place.prop_flat_map(|(device, chain, priority, handle)| {
        let matching = link().prop_flat_map(with_ip).prop_flat_map(move |matching| with_tunnel(matching, device));
        (matching, prop::collection::vec(action(), 0..4), of(end(chain))).prop_map(
            move |(matching, mut actions, end)| {
                actions.extend(end);
                let mut rule = Rule { device, chain, priority, handle, matching, actions };
                // Invalid actions are removed one by one, instead of the whole rule.
                while rule.check().is_err() {
                    if rule.actions.pop().is_none() {
                        rule.actions = vec![RuleAction::Drop];
                        rule.check().expect("a rule with only `drop` is valid");
                    }
                }
                rule
            },
        )
    })
}

pub(crate) fn change() -> impl Strategy<Value = Change> {
    let selection = (device(), 0u32..3, of(1u16..5), of(1u32..4))
        .prop_map(|(device, chain, priority, handle)| Selection { device, chain, priority, handle });
    prop_oneof![
        6 => rule().prop_map(Change::Add),
        2 => rule().prop_map(Change::Replace),
        1 => selection.prop_map(Change::Delete),
    ]
}

/// A frame that these rules may match: ARP, another protocol, or TCP, UDP or ICMP over IP, whole or fragmented, with up
/// to two tags.
pub(crate) fn frame() -> impl Strategy<Value = Vec<u8>> {
    let tags = prop::collection::vec((any::<bool>(), 0u16..3, 0u8..3), 0..3);
    let ports = (1u16..6, 1u16..6);
    let protocol = prop_oneof![3 => Just(TCP), 3 => Just(UDP), 1 => Just(ICMP)];
    let network = prop_oneof![
        1 => prop_oneof![Just(ARP), Just(0x88b5)].prop_map(|ether_type| (ether_type, vec![1; 30])),
        6 => version().prop_flat_map(move |version| {
            (address(version), address(version), protocol.clone(), ports.clone(), prop_oneof![4 => Just(0u16), 1 => Just(0x2000), 1 => Just(0x2001), 1 => Just(3)])
                .prop_map(move |(source, destination, protocol, ports, place)| {
                    (version.ether_type(), packet(source, destination, protocol, ports, place))
                })
        }),
    ];
    (mac(), mac(), tags, network).prop_map(|(destination, source, tags, (ether_type, packet))| {
        let mut frame = [destination.0, source.0].concat();
        for (service, id, priority) in tags {
            frame.extend(if service { SERVICE_VLAN } else { VLAN }.to_be_bytes());
            frame.extend((u16::from(priority) << 13 | id).to_be_bytes());
        }
        frame.extend(ether_type.to_be_bytes());
        frame.extend(packet);
        frame
    })
}

/// `place` is the IPv4 field of flags and fragment offset. IPv6 packets are whole.
fn packet(source: IpAddr, destination: IpAddr, protocol: u8, ports: (u16, u16), place: u16) -> Vec<u8> {
    let mut upper = vec![0; 24];
    upper[..2].copy_from_slice(&ports.0.to_be_bytes());
    upper[2..4].copy_from_slice(&ports.1.to_be_bytes());
    // The data offset of TCP, the length of UDP, and the type of an echo request.
    match protocol {
        TCP => upper[12] = 0x50,
        UDP => upper[5] = 24,
        _ => upper[0] = 8,
    }
    let mut packet = match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let mut packet = vec![0x45, 0, 0, 44, 0, 1, 0, 0, 64, protocol, 0, 0];
            packet[6..8].copy_from_slice(&place.to_be_bytes());
            packet.extend(source.octets());
            packet.extend(destination.octets());
            packet
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let mut packet = vec![0x60, 0, 0, 0, 0, 24, protocol, 64];
            packet.extend(source.octets());
            packet.extend(destination.octets());
            packet
        }
        _ => unreachable!("two versions in one packet"),
    };
    packet.extend(upper);
    let mut frame = [&[0; 12], &IpVersion::of_address(&source).ether_type().to_be_bytes()[..], &packet].concat();
    // A fragment has no complete transport, so only the IP header gets its checksum.
    match Headers::parse(&frame).transport() {
        Some(transport) => transport.fill_checksums(&mut frame),
        None if source.is_ipv4() => checksum::fill_ipv4_header(&mut frame[14..]),
        None => {}
    }
    frame.split_off(14)
}
