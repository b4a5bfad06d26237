//! Filters: `struct tcmsg`, its attributes, and flower's keys.
//!
//! Invariant: the match that is read is about all the frames that the kernel's filter is about, and about more of them only if something
//! of the filter is not supported.

use crate::netlink::{Bytes, attributes};
use crate::tc::actions;
use crate::tc::links::Links;
use crate::tc::unsupported::{Key, Unsupported};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use nic_switch::matching::ClassMatch;
use nic_switch::{RuleAction, Device, EtherMatch, Mac, Match, Ports, Rule, Selection};
use offload_api::Prefix;
use offload_formats::protocol;
use std::collections::BTreeMap;

/// What a message says of a filter.
#[derive(Debug)]
pub(crate) enum Said {
    /// It is there. A rule that is not the filter's leaves its frames to the kernel; and why.
    There(Box<Rule>, Option<Unsupported>),
    /// These are not there any more.
    Gone(Selection),
    /// It is about a device, or a direction, that is not the switch's.
    Nothing,
}

/// Reads a message about a filter that came (`there`) or went. `None`: this is no such message.
pub(crate) fn read(payload: &[u8], there: bool, links: &Links) -> Option<Said> {
    let head = Bytes(payload.get(..TCMSG)?);
    let (number, handle, parent, info) = (head.u32(4)?, head.u32(8)?, head.u32(12)?, head.u32(16)?);
    let Some(device) = links.find(number).filter(|_| INGRESS.contains(&parent)) else { return Some(Said::Nothing) };
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
        // Without a handle, all of this priority are; without a priority, all of the chain.
        let (priority, handle) = (Some(priority).filter(|one| *one != 0), Some(handle).filter(|one| *one != 0));
        return Some(Said::Gone(Selection { device, chain, priority, handle }));
    }
    // So the kernel begins what it says of each priority.
    if handle == 0 || priority == 0 {
        return Some(Said::Nothing);
    }
    let protocol = Some(u16::from_be(info as u16)).filter(|protocol| *protocol != ALL);
    let mut read = Read { matching: Match { protocol, ..Match::default() }, why: None };
    let kind = kind?;
    let actions = match &kind[..] {
        "flower" => read.flower(options, links),
        _ => {
            read.refuse(Unsupported::Classifier(kind));
            Vec::new()
        }
    };
    Some(read.rule(device, chain, priority, handle, actions))
}

/// A match as far as it was read, and the first reason why the rest was not.
struct Read {
    matching: Match,
    why: Option<Unsupported>,
}

impl Read {
    fn refuse(&mut self, why: Unsupported) {
        self.why.get_or_insert(why);
    }

    /// The rule of all that was read: if not all of it has a counterpart, one that leaves the frames to the kernel.
    fn rule(self, device: Device, chain: u32, priority: u16, handle: u32, actions: Vec<RuleAction>) -> Said {
        let rule = |matching, actions| Rule { device, chain, priority, handle: Some(handle), matching, actions };
        let Read { matching, why } = self;
        let whole = rule(matching, actions);
        let why = match why {
            None => match whole.check() {
                Ok(()) => return Said::There(Box::new(whole), None),
                Err(error) => error.into(),
            },
            Some(why) => why,
        };
        let pass = rule(whole.matching, vec![RuleAction::Pass]);
        let pass = if pass.check().is_ok() { pass } else { rule(Match::default(), vec![RuleAction::Pass]) };
        Said::There(Box::new(pass), Some(why))
    }

    fn flower(&mut self, options: &[u8], links: &Links) -> Vec<RuleAction> {
        let mut keys: BTreeMap<u16, Bytes<'_>> = attributes(options).collect();
        let flags = keys.remove(&key::FLAGS).and_then(|flags| flags.u32(0)).unwrap_or(0);
        if flags & SKIP_HARDWARE != 0 {
            self.refuse(Unsupported::SkipHardware);
        }
        for ignored in [key::CLASS, key::IN_HARDWARE] {
            keys.remove(&ignored);
        }
        let actions = keys.remove(&key::ACTIONS);
        self.link(&mut keys);
        self.network(&mut keys);
        self.ports(&mut keys);
        self.tunnel(&mut keys);
        // A mask of zeros asks for nothing.
        if let Some((key, _)) = keys.iter().find(|(_, value)| value.0.iter().any(|byte| *byte != 0)) {
            self.refuse(Unsupported::Key(Key(*key)));
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
        // A filter of all protocols may name one nevertheless.
        matching.protocol = matching.protocol.or(inner);
        let vlan = &mut matching.vlan;
        vlan.id = keys.remove(&key::VLAN_ID).and_then(|value| value.u16(0));
        vlan.priority = keys.remove(&key::VLAN_PRIORITY).and_then(|value| value.u8(0));
        let behind = keys.remove(&key::VLAN_ETH_TYPE).and_then(|value| value.port(0));
        // Of a tagged frame, the kernel calls the EtherType behind the tag by either name.
        let tagged = matching.protocol.is_some_and(|protocol| matches!(protocol, 0x8100 | 0x88a8));
        vlan.ether_type = behind.or(inner.filter(|inner| tagged && Some(*inner) != matching.protocol));
    }

    fn network(&mut self, keys: &mut Keys<'_>) {
        self.matching.ip_protocol = keys.remove(&key::IP_PROTOCOL).and_then(|value| value.u8(0));
        self.matching.source = self.prefix(keys, [key::IPV4_SOURCE, key::IPV6_SOURCE]);
        self.matching.destination = self.prefix(keys, [key::IPV4_DESTINATION, key::IPV6_DESTINATION]);
        self.matching.class = class(keys, key::CLASS_OF_IP);
        let number = |value: Option<Bytes<'_>>| value.and_then(|value| value.spi(0)).unwrap_or(0);
        let (flags, mask) = (number(keys.remove(&key::IP_FLAGS)), number(keys.remove(&key::IP_FLAGS_MASK)));
        let flag = |flag: u32| (mask & flag != 0).then_some(flags & flag != 0);
        self.matching.fragments.fragment = flag(IS_FRAGMENT);
        self.matching.fragments.first = flag(IS_FIRST);
        if mask & !(IS_FRAGMENT | IS_FIRST) != 0 {
            self.refuse(Unsupported::Mask(Key(key::IP_FLAGS_MASK)));
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
        let Some(places) = self.matching.ip_protocol.and_then(of) else { return };
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
                        self.refuse(Unsupported::Mask(Key(mask)));
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
                    self.why.get_or_insert(Unsupported::Mask(Key(value + 1)));
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
        // Linux notes of no received packet that it must not be fragmented, and of Geneve's critical options the switch drops packets.
        let never = TUNNEL_DONT_FRAGMENT | TUNNEL_CRITICAL;
        if mask & !(TUNNEL_CHECKSUM | TUNNEL_OAM | never) != 0 || flags & mask & never != 0 {
            self.refuse(Unsupported::Mask(Key(key::TUNNEL_FLAGS_MASK)));
        }
    }

    /// Addresses of IPv4 or IPv6: each key is followed by that of its mask.
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
            self.refuse(Unsupported::Mask(Key(key + 1)));
        }
        prefix.filter(|prefix| prefix.bits() > 0)
    }
}

type Keys<'a> = BTreeMap<u16, Bytes<'a>>;

/// A traffic class, whose key is followed by that of its mask. A mask of zeros asks for nothing.
fn class(keys: &mut Keys<'_>, key: u16) -> Option<ClassMatch> {
    let value = keys.remove(&key)?.u8(0)?;
    let mask = keys.remove(&(key + 1)).map_or(Some(u8::MAX), |mask| mask.u8(0))?;
    Some(ClassMatch::new(value, mask)).filter(|class| class.mask() != 0)
}

/// How many ones a mask begins with; `None`: others follow.
fn ones(mask: &[u8]) -> Option<u8> {
    let bits = mask.iter().fold((0, true, true), |(bits, all, right), byte| {
        let ones = byte.leading_ones();
        let right = right && (byte.count_ones() == ones) && (all || *byte == 0);
        (bits + if all { ones as u8 } else { 0 }, all && ones == 8, right)
    });
    bits.2.then_some(bits.0)
}

/// `struct tcmsg`.
const TCMSG: usize = 20;
const KIND: u16 = 1;
const OPTIONS: u16 = 2;
const CHAIN: u16 = 11;
/// The parents of filters of received frames, of clsact (and of either qdisc in a request) and of the ingress qdisc.
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
/// How much of the name of a classifier or an action is shown.
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
    /// The first and the last of each.
    pub(super) const SOURCE_PORTS: u16 = 87;
    pub(super) const DESTINATION_PORTS: u16 = 89;
    pub(super) const TUNNEL_FLAGS: u16 = 110;
    pub(super) const TUNNEL_FLAGS_MASK: u16 = 111;
}
