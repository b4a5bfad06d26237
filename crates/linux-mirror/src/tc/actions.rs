//! Actions of filters: lists of `act_mirred`, `act_gact`, `act_vlan`, `act_tunnel_key`, `act_csum` and `act_pedit`.

use crate::netlink::{NetlinkBytes, attributes};
use crate::tc::filter::MAX_NAME;
use crate::tc::links::Links;
use crate::tc::pedit;
use crate::tc::unsupported::UnsupportedFilter;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use nic_switch::{ChecksumSet, RuleAction, TunnelSet, VlanTag};
use std::collections::BTreeMap;

/// Parses a list of actions.
pub(crate) fn read(list: &[u8], links: &Links) -> Result<Vec<RuleAction>, UnsupportedFilter> {
    // Sorted by position, which counts from 1.
    let list: ActionAttributes<'_> = attributes(list).collect();
    let mut actions = Vec::new();
    for action in list.into_values() {
        let (mut kind, mut options) = (String::new(), &[][..]);
        for (name, value) in attributes(action.0) {
            match name {
                KIND => kind = value.text(MAX_NAME),
                OPTIONS => options = value.0,
                _ => {}
            }
        }
        actions.extend(read_one(&kind, &attributes(options).collect(), links)?);
    }
    Ok(actions)
}

/// Attributes of an action, by type.
pub(super) type ActionAttributes<'a> = BTreeMap<u16, NetlinkBytes<'a>>;

/// Parses one action of type `kind`. Returns `None` if the action has no effect.
fn read_one(
    kind: &str,
    options: &ActionAttributes<'_>,
    links: &Links,
) -> Result<Option<RuleAction>, UnsupportedFilter> {
    let unsupported = || UnsupportedFilter::Action(kind.into());
    let parameters =
        *options.get(&if kind == "csum" { CSUM_PARAMETERS } else { PARAMETERS }).unwrap_or(&NetlinkBytes(&[]));
    // pedit's extended form has its parameters in an attribute of its own.
    let parameters = if kind == "pedit" { *options.get(&pedit::PARAMETERS).unwrap_or(&parameters) } else { parameters };
    let control = parameters.u32(CONTROL).ok_or_else(unsupported)?;
    // Some types have no code of their own.
    let own = parameters.u32(OWN).unwrap_or(0);
    if kind == "gact" {
        // The action applies at random.
        if options.contains_key(&PROBABILITY) {
            return Err(unsupported());
        }
        return match control {
            PIPE => Ok(None),
            // The packet goes to the kernel's own stack.
            OK | TRAP => Ok(Some(RuleAction::Pass)),
            SHOT | STOLEN | QUEUED => Ok(Some(RuleAction::Drop)),
            goto if goto >> 28 == GOTO => Ok(Some(RuleAction::Goto(goto & 0x0fff_ffff))),
            _ => Err(UnsupportedFilter::Control(kind.into())),
        };
    }
    let action = match kind {
        "mirred" => {
            let number = parameters.u32(DEVICE).ok_or_else(unsupported)?;
            let device = links.find(number).ok_or(UnsupportedFilter::Device(number))?;
            // Redirection ends the processing of a frame, and mirroring continues it.
            return match (own, control) {
                (REDIRECT, STOLEN | REDIRECTED) => Ok(Some(RuleAction::Redirect(device))),
                (MIRROR, PIPE) => Ok(Some(RuleAction::Mirror(device))),
                (REDIRECT | MIRROR, _) => Err(UnsupportedFilter::Control(kind.into())),
                _ => Err(unsupported()),
            };
        }
        "vlan" => read_vlan(own, options).ok_or_else(unsupported)?,
        "tunnel_key" => read_tunnel_key(own, options).ok_or_else(unsupported)?,
        // An ICMP checksum is correct, because no action changes ICMP.
        "csum" if own == ICMP && control == PIPE => return Ok(None),
        "csum" if own & !(IPV4 | TCP | UDP | ICMP) == 0 => {
            RuleAction::Checksum(ChecksumSet { ipv4: own & IPV4 != 0, tcp: own & TCP != 0, udp: own & UDP != 0 })
        }
        "pedit" => RuleAction::Pedit(pedit::read(parameters, options).ok_or_else(unsupported)?),
        _ => return Err(unsupported()),
    };
    if control == PIPE { Ok(Some(action)) } else { Err(UnsupportedFilter::Control(kind.into())) }
}

fn read_vlan(action: u32, options: &ActionAttributes<'_>) -> Option<RuleAction> {
    let tag = || {
        Some(VlanTag {
            id: options.get(&vlan::PUSH_ID)?.u16(0)?,
            ether_type: options.get(&vlan::PUSH_PROTOCOL).and_then(|value| value.port(0)).unwrap_or(0x8100),
            priority: options.get(&vlan::PUSH_PRIORITY).and_then(|value| value.u8(0)),
        })
    };
    match action {
        vlan::POP => Some(RuleAction::VlanPop),
        vlan::PUSH => tag().map(RuleAction::VlanPush),
        vlan::MODIFY => tag().map(RuleAction::VlanModify),
        _ => None,
    }
}

fn read_tunnel_key(action: u32, options: &ActionAttributes<'_>) -> Option<RuleAction> {
    if action == tunnel_key::RELEASE {
        return Some(RuleAction::TunnelUnset);
    }
    // The switch cannot build tunnel options (`ENC_OPTIONS`).
    let known = |name: &u16| (1..=tunnel_key::NO_FRAGMENT).contains(name) && *name != tunnel_key::ENC_OPTIONS;
    if action != tunnel_key::SET || !options.keys().all(known) {
        return None;
    }
    let address = |ipv4: u16, ipv6: u16| match options.get(&ipv4) {
        Some(value) => Some(IpAddr::V4(Ipv4Addr::from(value.array::<4>(0)?))),
        None => Some(IpAddr::V6(Ipv6Addr::from(options.get(&ipv6)?.array::<16>(0)?))),
    };
    let byte = |name: u16| options.get(&name).and_then(|value| value.u8(0)).unwrap_or(0);
    Some(RuleAction::TunnelSet(TunnelSet {
        source: address(tunnel_key::ENC_IPV4_SOURCE, tunnel_key::ENC_IPV6_SOURCE)?,
        destination: address(tunnel_key::ENC_IPV4_DESTINATION, tunnel_key::ENC_IPV6_DESTINATION)?,
        key: options.get(&tunnel_key::ENC_KEY_ID).and_then(|value| value.spi(0)),
        destination_port: options.get(&tunnel_key::ENC_DESTINATION_PORT).and_then(|value| value.port(0)),
        tos: byte(tunnel_key::ENC_TOS),
        ttl: byte(tunnel_key::ENC_TTL),
        checksum: byte(tunnel_key::NO_CHECKSUM) == 0,
        // A flag attribute without a value.
        dont_fragment: options.contains_key(&tunnel_key::NO_FRAGMENT),
    }))
}

/// `TCA_ACT_KIND`.
const KIND: u16 = 1;
/// `TCA_ACT_OPTIONS`.
const OPTIONS: u16 = 2;
/// Attribute of the parameters, for all types except csum.
const PARAMETERS: u16 = 2;
/// Attribute of the parameters of csum.
const CSUM_PARAMETERS: u16 = 1;
/// Offset of the control action in `tc_gen`.
const CONTROL: usize = 8;
/// Offset of the type's own action code, after `tc_gen`.
const OWN: usize = 20;
/// Offset of `ifindex` in `struct tc_mirred`.
const DEVICE: usize = 24;
/// `TCA_GACT_PROB`.
const PROBABILITY: u16 = 3;
/// `TC_ACT_*`.
const OK: u32 = 0;
const SHOT: u32 = 2;
const PIPE: u32 = 3;
const STOLEN: u32 = 4;
const QUEUED: u32 = 5;
const REDIRECTED: u32 = 7;
const TRAP: u32 = 8;
const GOTO: u32 = 2;
/// `TCA_EGRESS_REDIR`.
const REDIRECT: u32 = 1;
/// `TCA_EGRESS_MIRROR`.
const MIRROR: u32 = 2;
/// `TCA_CSUM_UPDATE_FLAG_*`.
const IPV4: u32 = 1;
const ICMP: u32 = 2;
const TCP: u32 = 8;
const UDP: u32 = 16;

/// `TCA_VLAN_*`, and the actions `TCA_VLAN_ACT_*`.
mod vlan {
    pub(super) const PUSH_ID: u16 = 3;
    pub(super) const PUSH_PROTOCOL: u16 = 4;
    pub(super) const PUSH_PRIORITY: u16 = 6;

    pub(super) const POP: u32 = 1;
    pub(super) const PUSH: u32 = 2;
    pub(super) const MODIFY: u32 = 3;
}

/// `TCA_TUNNEL_KEY_*`, and the actions `TCA_TUNNEL_KEY_ACT_*`.
mod tunnel_key {
    pub(super) const ENC_IPV4_SOURCE: u16 = 3;
    pub(super) const ENC_IPV4_DESTINATION: u16 = 4;
    pub(super) const ENC_IPV6_SOURCE: u16 = 5;
    pub(super) const ENC_IPV6_DESTINATION: u16 = 6;
    pub(super) const ENC_KEY_ID: u16 = 7;
    pub(super) const ENC_DESTINATION_PORT: u16 = 9;
    pub(super) const NO_CHECKSUM: u16 = 10;
    pub(super) const ENC_OPTIONS: u16 = 11;
    pub(super) const ENC_TOS: u16 = 12;
    pub(super) const ENC_TTL: u16 = 13;
    pub(super) const NO_FRAGMENT: u16 = 14;

    pub(super) const SET: u32 = 1;
    pub(super) const RELEASE: u32 = 2;
}
