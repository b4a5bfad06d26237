//! Filters: `struct tcmsg`, its attributes, and flower's keys.
//!
//! Invariant: the parsed match covers all frames of the kernel's filter. It covers more frames only if a part of the
//! filter is not supported.

use crate::netlink::{NetlinkBytes, attributes};
use crate::tc::actions;
use crate::tc::links::Links;
use crate::tc::unsupported::{FlowerKey, UnsupportedFilter};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use nic_switch::matching::ClassMatch;
use nic_switch::{Device, EtherMatch, Mac, Match, Ports, Rule, RuleAction, Selection};
use offload_api::Prefix;
use offload_formats::protocol;
use std::collections::BTreeMap;

/// Content of a filter message.
#[derive(Debug)]
pub(crate) enum ParsedFilter {
    /// The filter exists. If it is not supported, the rule leaves its frames to the kernel, and the reason is given.
    There(Box<Rule>, Option<UnsupportedFilter>),
    /// The selected filters are deleted.
    Gone(Selection),
    /// The filter belongs to a device or a direction outside the switch.
    Nothing,
}

/// Parses a message about an added (`there`) or deleted filter. Returns `None` if the message is invalid.
pub(crate) fn read(payload: &[u8], there: bool, links: &Links) -> Option<ParsedFilter> {
    let head = NetlinkBytes(payload.get(..TCMSG)?);
    let (number, handle, parent, info) = (head.u32(4)?, head.u32(8)?, head.u32(12)?, head.u32(16)?);
    let Some(device) = links.find(number).filter(|_| INGRESS.contains(&parent)) else {
        return Some(ParsedFilter::Nothing);
    };
    let (mut kind, mut options, mut chain) = (None, &[][..], 0);
    for (name, value) in attributes(&payload[TCMSG..]) {
        match name {
            KIND => kind = Some(value.text(MAX_NAME)),
            OPTIONS => options = value.0,
            CHAIN => chain = value.u32(0)?,
            _ => {}
        }
    }
    let priority = (info >> 16) as u16;
    if !there {
        // Without a handle, all filters of the priority are meant; without a priority, all of the chain.
        let (priority, handle) = (Some(priority).filter(|one| *one != 0), Some(handle).filter(|one| *one != 0));
        return Some(ParsedFilter::Gone(Selection { device, chain, priority, handle }));
    }
    // The kernel announces each priority by such a message.
    if handle == 0 || priority == 0 {
        return Some(ParsedFilter::Nothing);
    }
    let protocol = Some(u16::from_be(info as u16)).filter(|protocol| *protocol != ALL);
    let mut read = FlowerParser { matching: Match { protocol, ..Match::default() }, why: None };
    let kind = kind?;
    let actions = match &kind[..] {
        "flower" => read.flower(options, links),
        _ => {
            read.refuse(UnsupportedFilter::Classifier(kind));
            Vec::new()
        }
    };
    Some(read.rule(device, chain, priority, handle, actions))
}

/// The match parsed so far, and the first reason for which a part is not supported.
struct FlowerParser {
    matching: Match,
    why: Option<UnsupportedFilter>,
}

impl FlowerParser {
    fn refuse(&mut self, why: UnsupportedFilter) {
        self.why.get_or_insert(why);
    }

    /// Returns the rule for the parsed filter. If a part is not supported, the rule leaves the frames to the kernel.
    fn rule(self, device: Device, chain: u32, priority: u16, handle: u32, actions: Vec<RuleAction>) -> ParsedFilter {
        let rule = |matching, actions| Rule { device, chain, priority, handle: Some(handle), matching, actions };
        let FlowerParser { matching, why } = self;
        let whole = rule(matching, actions);
        let why = match why {
            None => match whole.check() {
                Ok(()) => return ParsedFilter::There(Box::new(whole), None),
                Err(error) => error.into(),
            },
            Some(why) => why,
        };
        let pass = rule(whole.matching, vec![RuleAction::Pass]);
        // A match that the switch rejects is widened to all frames, so that no later filter takes a frame of this
        // filter.
        let pass = if pass.check().is_ok() { pass } else { rule(Match::default(), vec![RuleAction::Pass]) };
        ParsedFilter::There(Box::new(pass), Some(why))
    }

    fn flower(&mut self, options: &[u8], links: &Links) -> Vec<RuleAction> {
        let mut keys: BTreeMap<u16, NetlinkBytes<'_>> = attributes(options).collect();
        let flags = keys.remove(&key::FLAGS).and_then(|flags| flags.u32(0)).unwrap_or(0);
        if flags & SKIP_HARDWARE != 0 {
            self.refuse(UnsupportedFilter::SkipHardware);
        }
        // These attributes select no frames.
        for ignored in [key::CLASS, key::IN_HARDWARE] {
            keys.remove(&ignored);
        }
        let actions = keys.remove(&key::ACTIONS);
        self.link(&mut keys);
        self.network(&mut keys);
        self.ports(&mut keys);
        self.tunnel(&mut keys);
        // An all-zero mask has no effect.
        if let Some((key, _)) = keys.iter().find(|(_, value)| value.0.iter().any(|byte| *byte != 0)) {
            self.refuse(UnsupportedFilter::Key(FlowerKey(*key)));
        }
        match actions::read(actions.map_or(&[], |actions| actions.0), links) {
            Ok(actions) => actions,
            Err(why) => {
                self.refuse(why);
                Vec::new()
            }
        }
    }

    fn link(&mut self, keys: &mut Keys<'_>) {
        let mut mac = |value: u16, mask: u16| {
            let address = Mac(keys.remove(&value)?.array(0)?);
            let mask = keys.remove(&mask).and_then(|mask| mask.array(0)).map_or(Mac::BROADCAST, Mac);
            Some(EtherMatch::new(address, mask)).filter(|found| found.mask() != Mac::default())
        };
        self.matching.destination_mac = mac(key::ETH_DESTINATION, key::ETH_DESTINATION_MASK);
        self.matching.source_mac = mac(key::ETH_SOURCE, key::ETH_SOURCE_MASK);
        let inner = keys.remove(&key::ETH_TYPE).and_then(|value| value.port(0));
        let matching = &mut self.matching;
        // A filter for all protocols may still name an EtherType.
        matching.protocol = matching.protocol.or(inner);
        let vlan = &mut matching.vlan;
        vlan.id = keys.remove(&key::VLAN_ID).and_then(|value| value.u16(0));
        vlan.priority = keys.remove(&key::VLAN_PRIORITY).and_then(|value| value.u8(0));
        let behind = keys.remove(&key::VLAN_ETH_TYPE).and_then(|value| value.port(0));
        // For a tagged frame, either attribute may hold the EtherType after the tag.
        let tagged = matching.protocol.is_some_and(|protocol| matches!(protocol, 0x8100 | 0x88a8));
        vlan.ether_type = behind.or(inner.filter(|inner| tagged && Some(*inner) != matching.protocol));
    }

    fn network(&mut self, keys: &mut Keys<'_>) {
        self.matching.ip_protocol = keys.remove(&key::IP_PROTOCOL).and_then(|value| value.u8(0));
        self.matching.source = self.prefix(keys, [key::IPV4_SOURCE, key::IPV6_SOURCE]);
        self.matching.destination = self.prefix(keys, [key::IPV4_DESTINATION, key::IPV6_DESTINATION]);
        self.matching.class = class(keys, key::CLASS_OF_IP);
        let number = |value: Option<NetlinkBytes<'_>>| value.and_then(|value| value.spi(0)).unwrap_or(0);
        let (flags, mask) = (number(keys.remove(&key::IP_FLAGS)), number(keys.remove(&key::IP_FLAGS_MASK)));
        let flag = |flag: u32| (mask & flag != 0).then_some(flags & flag != 0);
        self.matching.fragments.fragment = flag(IS_FRAGMENT);
        self.matching.fragments.first = flag(IS_FIRST);
        if mask & !(IS_FRAGMENT | IS_FIRST) != 0 {
            self.refuse(UnsupportedFilter::Mask(FlowerKey(key::IP_FLAGS_MASK)));
        }
    }

    fn ports(&mut self, keys: &mut Keys<'_>) {
        let of = |number: u8| match number {
            protocol::TCP => {
                Some([(key::TCP_SOURCE, key::TCP_SOURCE_MASK), (key::TCP_DESTINATION, key::TCP_DESTINATION_MASK)])
            }
            protocol::UDP => {
                Some([(key::UDP_SOURCE, key::UDP_SOURCE_MASK), (key::UDP_DESTINATION, key::UDP_DESTINATION_MASK)])
            }
            protocol::SCTP => {
                Some([(key::SCTP_SOURCE, key::SCTP_SOURCE_MASK), (key::SCTP_DESTINATION, key::SCTP_DESTINATION_MASK)])
            }
            _ => None,
        };
        // Without a protocol the port keys stay in the map, and the filter is refused because of them.
        let Some(places) = self.matching.ip_protocol.and_then(of) else { return };
        // A range has keys of its own, which are the same for all protocols.
        let ranges = [key::SOURCE_PORTS, key::DESTINATION_PORTS];
        let mut ports = [None; 2];
        for (port, ((value, mask), range)) in ports.iter_mut().zip(places.into_iter().zip(ranges)) {
            let exact = keys.remove(&value).and_then(|value| value.port(0));
            let whole = keys.remove(&mask).and_then(|mask| mask.port(0)).is_none_or(|mask| mask == u16::MAX);
            let mut end = |at: u16| keys.remove(&(range + at)).and_then(|value| value.port(0));
            *port = match (exact, end(0).zip(end(1))) {
                (_, Some((first, last))) if first == last => Some(Ports::One(first)),
                (_, Some((first, last))) => Some(Ports::Range(first, last)),
                (Some(port), None) if whole => Some(Ports::One(port)),
                (exact, None) => {
                    if exact.is_some() {
                        self.refuse(UnsupportedFilter::Mask(FlowerKey(mask)));
                    }
                    None
                }
            };
        }
        [self.matching.source_port, self.matching.destination_port] = ports;
    }

    fn tunnel(&mut self, keys: &mut Keys<'_>) {
        self.matching.tunnel.key = keys.remove(&key::TUNNEL_KEY).and_then(|value| value.spi(0));
        self.matching.tunnel.source = self.prefix(keys, [key::TUNNEL_IPV4_SOURCE, key::TUNNEL_IPV6_SOURCE]);
        self.matching.tunnel.destination =
            self.prefix(keys, [key::TUNNEL_IPV4_DESTINATION, key::TUNNEL_IPV6_DESTINATION]);
        let mut port = |value: u16| {
            let port = keys.remove(&value)?.port(0)?;
            match keys.remove(&(value + 1)).and_then(|mask| mask.port(0)) {
                None | Some(u16::MAX) => Some(port),
                Some(0) => None,
                Some(_) => {
                    self.why.get_or_insert(UnsupportedFilter::Mask(FlowerKey(value + 1)));
                    None
                }
            }
        };
        self.matching.tunnel.source_port = port(key::TUNNEL_SOURCE_PORT);
        self.matching.tunnel.destination_port = port(key::TUNNEL_DESTINATION_PORT);
        self.matching.tunnel.class = class(keys, key::TUNNEL_CLASS);
        let mut number = |key: u16| keys.remove(&key).and_then(|value| value.spi(0)).unwrap_or(0);
        let (flags, mask) = (number(key::TUNNEL_FLAGS), number(key::TUNNEL_FLAGS_MASK));
        let flag = |flag: u32| (mask & flag != 0).then_some(flags & flag != 0);
        (self.matching.tunnel.checksum, self.matching.tunnel.oam) = (flag(TUNNEL_CHECKSUM), flag(TUNNEL_OAM));
        // Linux never sets "don't fragment" for a received packet, and the switch drops packets with critical Geneve
        // options.
        let never = TUNNEL_DONT_FRAGMENT | TUNNEL_CRITICAL;
        if mask & !(TUNNEL_CHECKSUM | TUNNEL_OAM | never) != 0 || flags & mask & never != 0 {
            self.refuse(UnsupportedFilter::Mask(FlowerKey(key::TUNNEL_FLAGS_MASK)));
        }
    }

    /// Parses an IPv4 or IPv6 prefix. The key after an address is its mask.
    fn prefix(&mut self, keys: &mut Keys<'_>, [ipv4, ipv6]: [u16; 2]) -> Option<Prefix> {
        let mut both = |key: u16| Some((keys.remove(&key)?, keys.remove(&(key + 1))));
        let (key, address, ones) = if let Some((value, mask)) = both(ipv4) {
            let address = IpAddr::V4(Ipv4Addr::from(value.array::<4>(0)?));
            (ipv4, address, ones(mask.map_or(&[0xff; 4], |mask| mask.0)))
        } else {
            let (value, mask) = both(ipv6)?;
            (ipv6, IpAddr::V6(Ipv6Addr::from(value.array::<16>(0)?)), ones(mask.map_or(&[0xff; 16], |mask| mask.0)))
        };
        let prefix = ones.and_then(|bits| Prefix::new(address, bits));
        if prefix.is_none() {
            self.refuse(UnsupportedFilter::Mask(FlowerKey(key + 1)));
        }
        prefix.filter(|prefix| prefix.bits() > 0)
    }
}

type Keys<'a> = BTreeMap<u16, NetlinkBytes<'a>>;

/// Parses a traffic class. The next key is its mask. An all-zero mask has no effect.
fn class(keys: &mut Keys<'_>, key: u16) -> Option<ClassMatch> {
    let value = keys.remove(&key)?.u8(0)?;
    let mask = keys.remove(&(key + 1)).map_or(Some(u8::MAX), |mask| mask.u8(0))?;
    Some(ClassMatch::new(value, mask)).filter(|class| class.mask() != 0)
}

/// Returns the number of leading ones of a mask. `None` if other ones follow.
fn ones(mask: &[u8]) -> Option<u8> {
    let bits = mask.iter().fold((0, true, true), |(bits, all, right), byte| {
        let ones = byte.leading_ones();
        let right = right && (byte.count_ones() == ones) && (all || *byte == 0);
        (bits + if all { ones as u8 } else { 0 }, all && ones == 8, right)
    });
    bits.2.then_some(bits.0)
}

/// Length of `struct tcmsg`.
const TCMSG: usize = 20;
const KIND: u16 = 1;
const OPTIONS: u16 = 2;
const CHAIN: u16 = 11;
/// Parents of filters for received frames: clsact (and either qdisc in a request), and the ingress qdisc.
pub(super) const INGRESS: [u32; 2] = [0xffff_fff2, 0xffff_0000];
/// `ETH_P_ALL`.
const ALL: u16 = 3;
/// `TCA_CLS_FLAGS_SKIP_HW`.
const SKIP_HARDWARE: u32 = 1;
const IS_FRAGMENT: u32 = 1;
const IS_FIRST: u32 = 2;
/// `TCA_FLOWER_KEY_FLAGS_TUNNEL_*`.
const TUNNEL_CHECKSUM: u32 = 4;
const TUNNEL_DONT_FRAGMENT: u32 = 8;
const TUNNEL_OAM: u32 = 16;
const TUNNEL_CRITICAL: u32 = 32;
/// Maximum displayed length of the name of a classifier or an action.
pub(super) const MAX_NAME: usize = 32;

/// `TCA_FLOWER_*`.
mod key {
    pub(super) const CLASS: u16 = 1;
    pub(super) const ACTIONS: u16 = 3;
    pub(super) const ETH_DESTINATION: u16 = 4;
    pub(super) const ETH_DESTINATION_MASK: u16 = 5;
    pub(super) const ETH_SOURCE: u16 = 6;
    pub(super) const ETH_SOURCE_MASK: u16 = 7;
    pub(super) const ETH_TYPE: u16 = 8;
    pub(super) const IP_PROTOCOL: u16 = 9;
    pub(super) const IPV4_SOURCE: u16 = 10;
    pub(super) const IPV4_DESTINATION: u16 = 12;
    pub(super) const IPV6_SOURCE: u16 = 14;
    pub(super) const IPV6_DESTINATION: u16 = 16;
    pub(super) const TCP_SOURCE: u16 = 18;
    pub(super) const TCP_DESTINATION: u16 = 19;
    pub(super) const UDP_SOURCE: u16 = 20;
    pub(super) const UDP_DESTINATION: u16 = 21;
    pub(super) const FLAGS: u16 = 22;
    pub(super) const VLAN_ID: u16 = 23;
    pub(super) const VLAN_PRIORITY: u16 = 24;
    pub(super) const VLAN_ETH_TYPE: u16 = 25;
    pub(super) const TUNNEL_KEY: u16 = 26;
    pub(super) const TUNNEL_IPV4_SOURCE: u16 = 27;
    pub(super) const TUNNEL_IPV4_DESTINATION: u16 = 29;
    pub(super) const TUNNEL_IPV6_SOURCE: u16 = 31;
    pub(super) const TUNNEL_IPV6_DESTINATION: u16 = 33;
    pub(super) const TCP_SOURCE_MASK: u16 = 35;
    pub(super) const TCP_DESTINATION_MASK: u16 = 36;
    pub(super) const UDP_SOURCE_MASK: u16 = 37;
    pub(super) const UDP_DESTINATION_MASK: u16 = 38;
    pub(super) const SCTP_SOURCE_MASK: u16 = 39;
    pub(super) const SCTP_DESTINATION_MASK: u16 = 40;
    pub(super) const SCTP_SOURCE: u16 = 41;
    pub(super) const SCTP_DESTINATION: u16 = 42;
    pub(super) const TUNNEL_SOURCE_PORT: u16 = 43;
    pub(super) const TUNNEL_DESTINATION_PORT: u16 = 45;
    pub(super) const IP_FLAGS: u16 = 47;
    pub(super) const IP_FLAGS_MASK: u16 = 48;
    pub(super) const CLASS_OF_IP: u16 = 73;
    pub(super) const TUNNEL_CLASS: u16 = 80;
    pub(super) const IN_HARDWARE: u16 = 86;
    /// The first port of a range; the next key is the last one.
    pub(super) const SOURCE_PORTS: u16 = 87;
    pub(super) const DESTINATION_PORTS: u16 = 89;
    pub(super) const TUNNEL_FLAGS: u16 = 110;
    pub(super) const TUNNEL_FLAGS_MASK: u16 = 111;
}
