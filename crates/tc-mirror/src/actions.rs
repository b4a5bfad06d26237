//! What filters do: lists of actions of `act_mirred`, `act_gact`, `act_vlan`, `act_tunnel_key`, `act_csum` and `act_pedit`.

use crate::filter::text;
use crate::links::Links;
use crate::pedit;
use crate::unsupported::Unsupported;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use nic_switch::{Action, Checksums, TunnelSet, VlanTag};
use sa_mirror::netlink::{Bytes, attributes};
use std::collections::BTreeMap;

/// Reads a list of actions.
pub(crate) fn read(list: &[u8], links: &Links) -> Result<Vec<Action>, Unsupported> {
    // By their places, which count from 1.
    let list: BTreeMap<u16, Bytes<'_>> = attributes(list).collect();
    let mut actions = Vec::new();
    for action in list.into_values() {
        let (mut kind, mut options) = (String::new(), &[][..]);
        for (name, value) in attributes(action.0) {
            match name {
                KIND => kind = text(value),
                OPTIONS => options = value.0,
                _ => {}
            }
        }
        actions.extend(one(&kind, &attributes(options).collect(), links)?);
    }
    Ok(actions)
}

type Options<'a> = BTreeMap<u16, Bytes<'a>>;

fn one(kind: &str, options: &Options<'_>, links: &Links) -> Result<Option<Action>, Unsupported> {
    let unsupported = || Unsupported::Action(kind.into());
    let parameters = *options.get(&if kind == "csum" { CSUM_PARAMETERS } else { PARAMETERS }).unwrap_or(&Bytes(&[]));
    let parameters = if kind == "pedit" { *options.get(&pedit::PARAMETERS).unwrap_or(&parameters) } else { parameters };
    let control = parameters.u32(CONTROL).ok_or_else(unsupported)?;
    let own = parameters.u32(OWN).unwrap_or(0);
    if kind == "gact" {
        // By chance.
        if options.contains_key(&PROBABILITY) {
            return Err(unsupported());
        }
        return match control {
            PIPE => Ok(None),
            // To the kernel's own stack.
            OK | TRAP => Ok(Some(Action::Pass)),
            SHOT | STOLEN | QUEUED => Ok(Some(Action::Drop)),
            goto if goto >> 28 == GOTO => Ok(Some(Action::Goto(goto & 0x0fff_ffff))),
            _ => Err(Unsupported::Control(kind.into())),
        };
    }
    let action = match kind {
        "mirred" => {
            let number = parameters.u32(DEVICE).ok_or_else(unsupported)?;
            let device = links.find(number).ok_or(Unsupported::Device(number))?;
            return match (own, control) {
                (REDIRECT, STOLEN | REDIRECTED) => Ok(Some(Action::Redirect(device))),
                (MIRROR, PIPE) => Ok(Some(Action::Mirror(device))),
                (REDIRECT | MIRROR, _) => Err(Unsupported::Control(kind.into())),
                _ => Err(unsupported()),
            };
        }
        "vlan" => vlan(own, options).ok_or_else(unsupported)?,
        "tunnel_key" => tunnel(own, options).ok_or_else(unsupported)?,
        // A checksum of ICMP that nobody changed is right.
        "csum" if own == ICMP && control == PIPE => return Ok(None),
        "csum" if own & !(IPV4 | TCP | UDP | ICMP) == 0 => {
            Action::Checksum(Checksums { ipv4: own & IPV4 != 0, tcp: own & TCP != 0, udp: own & UDP != 0 })
        }
        "pedit" => Action::Pedit(pedit::read(parameters, options).ok_or_else(unsupported)?),
        _ => return Err(unsupported()),
    };
    if control == PIPE { Ok(Some(action)) } else { Err(Unsupported::Control(kind.into())) }
}

fn vlan(what: u32, options: &Options<'_>) -> Option<Action> {
    let tag = || {
        Some(VlanTag {
            id: options.get(&3)?.u16(0)?,
            ether_type: options.get(&4).and_then(|value| value.port(0)).unwrap_or(0x8100),
            priority: options.get(&6).and_then(|value| value.u8(0)),
        })
    };
    match what {
        1 => Some(Action::VlanPop),
        2 => tag().map(Action::VlanPush),
        3 => tag().map(Action::VlanModify),
        _ => None,
    }
}

fn tunnel(what: u32, options: &Options<'_>) -> Option<Action> {
    if what == 2 {
        return Some(Action::TunnelUnset);
    }
    // Options of tunnels: the switch makes none.
    let known = |name: &u16| matches!(name, 1..=10 | 12..=14);
    if what != 1 || !options.keys().all(known) {
        return None;
    }
    let address = |ipv4: u16, ipv6: u16| match options.get(&ipv4) {
        Some(value) => Some(IpAddr::V4(Ipv4Addr::from(value.array::<4>(0)?))),
        None => Some(IpAddr::V6(Ipv6Addr::from(options.get(&ipv6)?.array::<16>(0)?))),
    };
    let byte = |name: u16| options.get(&name).and_then(|value| value.u8(0)).unwrap_or(0);
    Some(Action::TunnelSet(TunnelSet {
        source: address(3, 5)?,
        destination: address(4, 6)?,
        key: options.get(&7).and_then(|value| value.spi(0)),
        destination_port: options.get(&9).and_then(|value| value.port(0)),
        tos: byte(12),
        ttl: byte(13),
        checksum: byte(10) == 0,
        // A flag: it has no value.
        dont_fragment: options.contains_key(&14),
    }))
}

const KIND: u16 = 1;
const OPTIONS: u16 = 2;
/// Of all kinds but csum.
const PARAMETERS: u16 = 2;
const CSUM_PARAMETERS: u16 = 1;
/// `tc_gen`: what follows the action, and what the kind adds behind it.
const CONTROL: usize = 8;
const OWN: usize = 20;
/// `tcm_ifindex` of `struct tc_mirred`.
const DEVICE: usize = 24;
/// `TC_ACT_*`.
/// `TCA_GACT_PROB`.
const PROBABILITY: u16 = 3;
const OK: u32 = 0;
const SHOT: u32 = 2;
const PIPE: u32 = 3;
const STOLEN: u32 = 4;
const QUEUED: u32 = 5;
const REDIRECTED: u32 = 7;
const TRAP: u32 = 8;
const GOTO: u32 = 2;
/// `TCA_EGRESS_REDIR`, `TCA_EGRESS_MIRROR`.
const REDIRECT: u32 = 1;
const MIRROR: u32 = 2;
/// `TCA_CSUM_UPDATE_FLAG_*`.
const IPV4: u32 = 1;
const ICMP: u32 = 2;
const TCP: u32 = 8;
const UDP: u32 = 16;
