//! Match keys: the fields that rules examine, as a byte string of a frame or of a rule with its mask.
//!
//! Invariant: a rule matches a frame if and only if the frame's masked key equals the rule's key and the ports are in
//! the rule's ranges. A missing field is zero.

use crate::action::TunnelSet;
use crate::matching::{EtherMatch, Match, Ports, is_vlan};
use core::net::IpAddr;
use core::ops::Range;
use offload_api::Prefix;
use offload_formats::protocol::{SCTP, TCP, UDP};
use offload_formats::{Headers, IpVersion};

/// The tunnel through which a frame arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReceivedTunnel {
    pub(crate) key: Option<u32>,
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    /// UDP ports; zero for GRE.
    pub(crate) source_port: u16,
    pub(crate) destination_port: u16,
    /// Traffic class of the outer packet, and presence of a UDP or GRE checksum.
    pub(crate) class: u8,
    pub(crate) checksum: bool,
    /// Whether the packet is an OAM packet; only Geneve has these.
    pub(crate) oam: bool,
}

/// The tunnels of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TunnelState {
    /// Tunnel through which the frame arrived.
    pub(crate) received: Option<ReceivedTunnel>,
    /// Tunnel through which the frame will leave.
    pub(crate) set: Option<TunnelSet>,
}

/// The fields of a frame or rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MatchKey([u8; BYTES]);

/// The significant bits of a key, and whether a rule has port ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MatchMask {
    bits: MatchKey,
    ranges: [bool; 2],
}

/// Port ranges of a rule: source, destination.
pub(crate) type PortRanges = [Option<(u16, u16)>; 2];

impl MatchKey {
    /// Extracts the key of a frame.
    ///
    /// # Panics
    /// If the frame is shorter than an Ethernet header.
    pub(crate) fn from_frame(frame: &[u8], headers: &Headers, received: Option<&ReceivedTunnel>) -> MatchKey {
        let mut key = MatchKey([0; BYTES]);
        key.set(DESTINATION_MAC, &frame[..6]);
        key.set(SOURCE_MAC, &frame[6..12]);
        key.set(PROTOCOL, &frame[12..14]);
        let (network, tag) = behind_tag(frame);
        key.set(NETWORK, &network.to_be_bytes());
        key.set(TAG, &(tag.unwrap_or(0) & TAG_BITS).to_be_bytes());
        key.set_network(frame, headers);
        // Without a tunnel all tunnel fields stay zero.
        if let Some(received) = received {
            key.set(TUNNEL_KEY, &received.key.unwrap_or(0).to_be_bytes());
            key.set_address(TUNNEL_SOURCE, received.source);
            key.set_address(TUNNEL_DESTINATION, received.destination);
            key.0[TUNNEL_VERSION] = version_number(received.source);
            key.0[TUNNEL_CLASS] = received.class;
            key.0[FLAGS] |=
                if received.checksum { TUNNEL_CHECKSUM } else { 0 } | if received.oam { TUNNEL_OAM } else { 0 };
            key.set(TUNNEL_PORTS.start..TUNNEL_PORTS.start + 2, &received.source_port.to_be_bytes());
            key.set(TUNNEL_PORTS.start + 2..TUNNEL_PORTS.end, &received.destination_port.to_be_bytes());
        }
        key
    }

    fn set_network(&mut self, frame: &[u8], headers: &Headers) {
        let (Some((version, at)), Some((protocol, upper))) = (headers.network(), headers.upper()) else { return };
        let (source, destination) = version.addresses(&frame[at..]);
        self.set_address(SOURCE, source);
        // IPv4 addresses use the first four bytes. The EtherType is part of the key, so families cannot collide.
        self.set_address(DESTINATION, destination);
        self.0[IP_PROTOCOL] = protocol;
        self.0[CLASS] = class_of(frame, version, at);
        if headers.is_fragment() {
            self.0[FLAGS] |= FRAGMENT | if is_first(frame, version, at, upper) { FIRST } else { 0 };
        } else if matches!(protocol, TCP | UDP | SCTP)
            && let Some(ports) = frame.get(upper..upper + 4)
        {
            self.set(PORTS, ports);
        }
    }

    /// Returns the key of a rule, with its mask and port ranges.
    pub(crate) fn from_rule(matching: &Match) -> (MatchKey, MatchMask, PortRanges) {
        let (mut key, mut mask) = (MatchKey([0; BYTES]), MatchKey([0; BYTES]));
        let mut field = |at: Range<usize>, value: &[u8], bits: &[u8]| {
            key.set(at.clone(), value);
            mask.set(at, bits);
        };
        // Fields may share bytes, so each closure ORs its bits into key and mask.
        let mut mac = |at: Range<usize>, ether: Option<EtherMatch>| {
            if let Some(ether) = ether {
                field(at, &ether.address().0, &ether.mask().0);
            }
        };
        mac(DESTINATION_MAC, matching.destination_mac);
        mac(SOURCE_MAC, matching.source_mac);
        let mut word = |at: usize, value: Option<u16>, bits: u16| {
            if let Some(value) = value {
                let (old, mask_now) = (key.word(at), mask.word(at));
                key.set(at..at + 2, &(old | value).to_be_bytes());
                mask.set(at..at + 2, &(mask_now | bits).to_be_bytes());
            }
        };
        word(PROTOCOL.start, matching.protocol, u16::MAX);
        word(NETWORK.start, matching.network(), u16::MAX);
        word(TAG.start, matching.vlan.id, 0x0fff);
        word(TAG.start, matching.vlan.priority.map(|priority| u16::from(priority) << 13), 0xe000);
        // A range cannot be expressed as a mask, so ranges are checked after the look-up.
        let mut ranges = [None, None];
        for (range, ports, at) in
            [(0, matching.source_port, PORTS.start), (1, matching.destination_port, PORTS.start + 2)]
        {
            match ports {
                Some(Ports::One(port)) => word(at, Some(port), u16::MAX),
                Some(Ports::Range(first, last)) => ranges[range] = Some((first, last)),
                None => {}
            }
        }
        word(TUNNEL_PORTS.start, matching.tunnel.source_port, u16::MAX);
        word(TUNNEL_PORTS.start + 2, matching.tunnel.destination_port, u16::MAX);
        let mut byte = |at: usize, value: u8, bits: u8| {
            key.0[at] |= value;
            mask.0[at] |= bits;
        };
        if let Some(protocol) = matching.ip_protocol {
            byte(IP_PROTOCOL, protocol, u8::MAX);
        }
        for (at, class) in [(CLASS, matching.class), (TUNNEL_CLASS, matching.tunnel.class)] {
            if let Some(class) = class {
                byte(at, class.class(), class.mask());
            }
        }
        let fragments = &matching.fragments;
        // A flag may have to be set, cleared, or ignored; the mask selects the first two cases.
        let flags = [
            (FRAGMENT, fragments.fragment),
            (FIRST, fragments.first),
            (TUNNEL_CHECKSUM, matching.tunnel.checksum),
            (TUNNEL_OAM, matching.tunnel.oam),
        ];
        for (flag, wanted) in flags {
            if let Some(wanted) = wanted {
                byte(FLAGS, if wanted { flag } else { 0 }, flag);
            }
        }
        // A tunnel address must also match the IP version, because the key has no outer EtherType.
        let tunnel = &matching.tunnel;
        if let Some(prefix) = tunnel.source.or(tunnel.destination) {
            byte(TUNNEL_VERSION, version_number(prefix.address()), u8::MAX);
        }
        if let Some(number) = tunnel.key {
            key.set(TUNNEL_KEY, &number.to_be_bytes());
            mask.set(TUNNEL_KEY, &[0xff; 4]);
        }
        for (at, prefix) in [
            (SOURCE, matching.source),
            (DESTINATION, matching.destination),
            (TUNNEL_SOURCE, tunnel.source),
            (TUNNEL_DESTINATION, tunnel.destination),
        ] {
            if let Some(prefix) = prefix {
                key.set_address(at.clone(), prefix.address());
                mask.set_address(at, ones(&prefix));
            }
        }
        (key, MatchMask { bits: mask, ranges: ranges.map(|range| range.is_some()) }, ranges)
    }

    /// Returns the key with all bits outside of `mask` cleared.
    pub(crate) fn masked(&self, mask: &MatchMask) -> MatchKey {
        let mut key = *self;
        key.0.iter_mut().zip(mask.bits.0).for_each(|(byte, bits)| *byte &= bits);
        key
    }

    /// Tests whether the ports are in the ranges.
    pub(crate) fn is_within(&self, ranges: &PortRanges) -> bool {
        let ports = [self.word(PORTS.start), self.word(PORTS.start + 2)];
        ranges.iter().zip(ports).all(|(range, port)| range.is_none_or(|(first, last)| (first..=last).contains(&port)))
    }

    fn set(&mut self, at: Range<usize>, value: &[u8]) {
        self.0[at].copy_from_slice(value);
    }

    fn set_address(&mut self, at: Range<usize>, address: IpAddr) {
        match address {
            IpAddr::V4(address) => self.set(at.start..at.start + 4, &address.octets()),
            IpAddr::V6(address) => self.set(at, &address.octets()),
        }
    }

    fn word(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.0[at], self.0[at + 1]])
    }
}

/// Returns the EtherType after the outermost tag, and that tag's control information.
fn behind_tag(frame: &[u8]) -> (u16, Option<u16>) {
    match (word(frame, 12), word(frame, 14), word(frame, 16)) {
        (Some(tag), control @ Some(_), Some(behind)) if is_vlan(tag) => (behind, control),
        (ether_type, ..) => (ether_type.unwrap_or(0), None),
    }
}

/// Returns the EtherType after all tags.
pub(crate) fn behind_tags(frame: &[u8]) -> u16 {
    let mut at = 12;
    let mut ether_type = word(frame, at).unwrap_or(0);
    while is_vlan(ether_type)
        && let Some(next) = word(frame, at + 4)
    {
        (ether_type, at) = (next, at + 4);
    }
    ether_type
}

fn word(frame: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?]))
}

/// Returns the traffic class of a packet with its IP header at `network`.
pub(crate) fn class_of(frame: &[u8], version: IpVersion, network: usize) -> u8 {
    match version {
        IpVersion::V4 => frame[network + 1],
        IpVersion::V6 => frame[network] << 4 | frame[network + 1] >> 4,
    }
}

/// Tests whether a fragment with its data at `upper` is the first of its packet.
pub(crate) fn is_first(frame: &[u8], version: IpVersion, network: usize, upper: usize) -> bool {
    let (place, bits) = match version {
        IpVersion::V4 => (&frame[network + 6..network + 8], 0x1fff),
        // The 8 bytes of the fragment header precede the data (RFC 8200 4.5).
        IpVersion::V6 => (&frame[upper - 6..upper - 4], 0xfff8),
    };
    u16::from_be_bytes([place[0], place[1]]) & bits == 0
}

/// Returns the mask of a prefix as an address.
fn ones(prefix: &Prefix) -> IpAddr {
    let all: IpAddr = if prefix.address().is_ipv4() { [0xff; 4].into() } else { [0xff; 16].into() };
    offload_api::ipsec::masked(all, prefix.bits())
}

fn version_number(address: IpAddr) -> u8 {
    if address.is_ipv4() { 4 } else { 6 }
}

const DESTINATION_MAC: Range<usize> = 0..6;
const SOURCE_MAC: Range<usize> = 6..12;
const PROTOCOL: Range<usize> = 12..14;
const NETWORK: Range<usize> = 14..16;
const TAG: Range<usize> = 16..18;
const IP_PROTOCOL: usize = 18;
const FLAGS: usize = 19;
const TUNNEL_VERSION: usize = 20;
const CLASS: usize = 21;
const TUNNEL_CLASS: usize = 22;
const PORTS: Range<usize> = 24..28;
const TUNNEL_PORTS: Range<usize> = 28..32;
const SOURCE: Range<usize> = 32..48;
const DESTINATION: Range<usize> = 48..64;
const TUNNEL_SOURCE: Range<usize> = 64..80;
const TUNNEL_DESTINATION: Range<usize> = 80..96;
const TUNNEL_KEY: Range<usize> = 96..100;
const BYTES: usize = 104;
/// Priority and VLAN id of a tag. The bit between cannot be matched.
const TAG_BITS: u16 = 0xefff;
const FRAGMENT: u8 = 1;
const FIRST: u8 = 2;
const TUNNEL_CHECKSUM: u8 = 4;
const TUNNEL_OAM: u8 = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matching::IPV4;

    /// With two tags, the EtherType after the first tag is that of the second, as in Linux.
    #[test]
    fn the_ether_type_is_read_behind_the_tags() {
        let with = |tags: usize| {
            let frame = [&[2; 12][..], &[0x81, 0, 0x60, 7].repeat(tags), &[8, 0, 0x45], &[0; 40]].concat();
            let key = MatchKey::from_frame(&frame, &Headers::parse(&frame), None);
            (key.word(PROTOCOL.start), key.word(TAG.start), key.word(NETWORK.start), behind_tags(&frame))
        };
        let tag = 0x8100;
        assert_eq!(with(0), (IPV4, 0, IPV4, IPV4));
        assert_eq!(with(1), (tag, 0x6007, IPV4, IPV4));
        assert_eq!(with(2), (tag, 0x6007, tag, IPV4));
        assert_eq!(with(3), (tag, 0x6007, tag, IPV4));
    }

    #[test]
    fn a_fragment_has_no_ports_and_the_first_one_is_known() {
        let mut frame = vec![2; 12];
        frame.extend(IPV4.to_be_bytes());
        frame.extend([0x45, 0, 0, 28, 0, 0, 0x20, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 7, 0, 9, 0, 8, 0, 0]);
        let key = |frame: &[u8]| MatchKey::from_frame(frame, &Headers::parse(frame), None);
        let first = key(&frame);
        assert_eq!((first.0[FLAGS], first.word(PORTS.start)), (FRAGMENT | FIRST, 0));
        frame[21] = 1;
        assert_eq!(key(&frame).0[FLAGS], FRAGMENT);
        frame[20..22].fill(0);
        assert_eq!((key(&frame).0[FLAGS], key(&frame).word(PORTS.start)), (0, 7));
    }
}
