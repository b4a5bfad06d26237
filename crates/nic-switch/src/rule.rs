//! Rules and their validation.
//!
//! Invariant: a [`Rule`] that passed [`Rule::check`] examines only fields that its frames have, changes only headers
//! that it matches, has at most one final action, and continues only with later chains. Every frame therefore needs at
//! most as many look-ups as there are chains.

use crate::action::{Edit, RuleAction, TunnelSet};
use crate::matching::{IPV4, IPV6, Match, Ports, is_of, is_vlan};
use crate::port::{Device, TunnelKind};
use core::net::IpAddr;
use offload_api::Prefix;
use offload_formats::IpVersion;
use offload_formats::protocol::{SCTP, TCP, UDP};

/// A rule: match conditions and actions for frames of one device.
///
/// ```
/// use nic_switch::{RuleAction, Device, Match, Rule, RuleError, Vport};
///
/// let device = Device::Port(Vport::Virtual(0));
/// let mut rule = Rule { device, chain: 0, priority: 1, handle: None, matching: Match::default(), actions: vec![RuleAction::Drop] };
/// assert_eq!(rule.check(), Ok(()));
/// rule.actions.push(RuleAction::Pass);
/// assert_eq!(rule.check(), Err(RuleError::BehindTheEnd));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Input device of the frames.
    pub device: Device,
    /// Chain; frames start in chain 0.
    pub chain: u32,
    /// Priority from 1; lower values match first. Within a priority, the mask that was installed first matches first.
    pub priority: u16,
    /// Handle of the rule within its chain and priority, from 1. `None` lets the switch choose.
    pub handle: Option<u32>,
    /// Match conditions.
    pub matching: Match,
    /// Actions. If no action is final, the frame goes to the representor as changed.
    pub actions: Vec<RuleAction>,
}

/// A selection of rules.
///
/// See [`Change`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Selection {
    /// Device.
    pub device: Device,
    /// Chain.
    pub chain: u32,
    /// Priority; `None` selects all.
    pub priority: Option<u16>,
    /// Handle; `None` selects all.
    pub handle: Option<u32>,
}

impl Selection {
    /// Tests whether a rule at this place is selected.
    pub fn includes(&self, device: Device, chain: u32, priority: u16, handle: u32) -> bool {
        self.device == device
            && self.chain == chain
            && self.priority.is_none_or(|one| one == priority)
            && self.handle.is_none_or(|one| one == handle)
    }
}

/// A change of the rules.
///
/// ```
/// use nic_switch::{Change, Device, Selection, Vport};
///
/// let of_uplink = Selection { device: Device::Port(Vport::Uplink), chain: 0, priority: None, handle: None };
/// assert!(of_uplink.includes(of_uplink.device, 0, 1, 1));
/// let change = Change::Delete(of_uplink);
/// # let _ = change;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Adds a rule. No rule at this place may have its match or handle.
    Add(Rule),
    /// Replaces the rule with the same handle or, without a handle, the same match; adds the rule if there is none.
    /// Counters are kept.
    Replace(Rule),
    /// Deletes rules.
    Delete(Selection),
}

/// The reasons for which a rule is invalid.
///
/// See [`Rule`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RuleError {
    /// The rule has no actions.
    #[error("the rule does nothing: give it an action, such as `action drop`")]
    NoAction,
    /// An action follows a final one.
    #[error("an action behind one that ends is never taken: remove it, or let the one before it `pipe`")]
    BehindTheEnd,
    /// The priority is 0.
    #[error("priority 0 is invalid: count from 1")]
    Priority,
    /// The handle is 0.
    #[error("handle 0 is invalid: count from 1")]
    Handle,
    /// `goto` leads to the same chain or an earlier one.
    #[error("`goto chain` leads to later chains only: choose one beyond {0}")]
    Backwards(u32),
    /// A VLAN condition without a tag.
    #[error("the rule matches a VLAN of frames without a tag: let its protocol be 802.1q or 802.1ad")]
    NoTag,
    /// A VLAN id, priority or tag type that is out of range.
    #[error("a VLAN has 12 bits, its priority 3, and its tag is 802.1q or 802.1ad")]
    Vlan,
    /// A condition on more than one tag.
    #[error("a tag behind the first one cannot be matched: leave out the EtherType behind that")]
    SecondTag,
    /// An IP condition without an IP EtherType.
    #[error("the rule looks at IP: let its protocol, or vlan_ethtype, be ip or ipv6")]
    NotIp,
    /// An address of the other IP version.
    #[error("an address is not of the version of IP that the protocol names")]
    IpVersion,
    /// Port conditions without a protocol that has ports.
    #[error("the rule looks at ports: let its ip_proto be tcp, udp or sctp")]
    NoPorts,
    /// Port 0, which is the value of a missing port.
    #[error("port 0 cannot be matched, because tc has no syntax for it: count from 1")]
    PortZero,
    /// A port range with its end before its start.
    #[error("a range of ports ends before it begins: swap the ports")]
    Range,
    /// A tunnel condition at a port.
    #[error("frames of a port have come through no tunnel: use a tunnel device, such as vxlan0")]
    NoTunnel,
    /// A change of a header that the rule does not match.
    #[error("pedit changes a header that the rule does not match: name its protocol (ip, ipv6; ip_proto tcp, udp)")]
    Unmatched,
    /// A `pedit` without fields.
    #[error("pedit changes nothing: name a field with munge")]
    NoEdit,
    /// A `csum` without checksums.
    #[error("csum computes nothing: name ip4h, tcp or udp")]
    NoChecksum,
    /// An output to a tunnel without `tunnel_key set`.
    #[error("the tunnel's ends are not known there: `action tunnel_key set` goes before")]
    NoEnds,
    /// Tunnel ends of different IP versions.
    #[error("src_ip and dst_ip of a tunnel are of different versions of IP")]
    Ends,
    /// A tunnel key that is missing or too large.
    #[error("VXLAN and Geneve need an id, and have 24 bits for it")]
    Key,
    /// A rate or burst of zero.
    #[error("a rate or a burst of zero lets nothing through: use `action drop`")]
    Police,
}

impl Rule {
    /// Validates the rule.
    ///
    /// # Errors
    /// The first violation, with a remedy.
    pub fn check(&self) -> Result<(), RuleError> {
        if self.priority == 0 {
            return Err(RuleError::Priority);
        }
        if self.handle == Some(0) {
            return Err(RuleError::Handle);
        }
        self.check_link()?;
        self.check_network()?;
        self.check_tunnel()?;
        self.check_actions()
    }

    /// Returns the UDP tunnel ports that the rule names.
    pub(crate) fn tunnel_ports(&self) -> impl Iterator<Item = u16> + '_ {
        let wraps = self.actions.iter().filter_map(|action| match action {
            RuleAction::TunnelSet(set) => set.destination_port,
            _ => None,
        });
        wraps.chain(self.matching.tunnel.destination_port)
    }

    fn check_link(&self) -> Result<(), RuleError> {
        let Match { protocol, vlan, .. } = &self.matching;
        if *vlan != Default::default() && !protocol.is_some_and(is_vlan) {
            return Err(RuleError::NoTag);
        }
        // Only the outermost tag is part of the key.
        if vlan.ether_type.is_some_and(is_vlan) {
            return Err(RuleError::SecondTag);
        }
        let fits = vlan.id.is_none_or(|id| id < 1 << 12) && vlan.priority.is_none_or(|priority| priority < 8);
        if fits { Ok(()) } else { Err(RuleError::Vlan) }
    }

    fn check_network(&self) -> Result<(), RuleError> {
        let matching = &self.matching;
        let ip = matching.network().filter(|network| matches!(*network, IPV4 | IPV6));
        let ports = [matching.source_port, matching.destination_port];
        // Ports without an IP protocol get a more helpful error than other IP conditions.
        if !matching.needs_ip() {
            return if ports == [None, None] { Ok(()) } else { Err(RuleError::NoPorts) };
        }
        let network = ip.ok_or(RuleError::NotIp)?;
        let of_another = |prefix: &Prefix| !is_of(prefix.address(), network);
        if [matching.source, matching.destination].iter().flatten().any(of_another) {
            return Err(RuleError::IpVersion);
        }
        // Only these protocols have ports at the start of their header.
        if ports != [None, None] && !matches!(matching.ip_protocol, Some(TCP | UDP | SCTP)) {
            return Err(RuleError::NoPorts);
        }
        if ports.iter().flatten().any(|ports| ports.contains(0)) {
            return Err(RuleError::PortZero);
        }
        // A range of one port must be given as a single port, so that each rule has one printed form.
        let backwards = |ports: &Ports| matches!(*ports, Ports::Range(first, last) if first >= last);
        if ports.iter().flatten().any(backwards) { Err(RuleError::Range) } else { Ok(()) }
    }

    fn check_tunnel(&self) -> Result<(), RuleError> {
        let tunnel = &self.matching.tunnel;
        if *tunnel != Default::default() && matches!(self.device, Device::Port(_)) {
            return Err(RuleError::NoTunnel);
        }
        match (tunnel.source, tunnel.destination) {
            (Some(one), Some(other)) if one.address().is_ipv4() != other.address().is_ipv4() => Err(RuleError::Ends),
            _ => Ok(()),
        }
    }

    fn check_actions(&self) -> Result<(), RuleError> {
        let (last, before) = self.actions.split_last().ok_or(RuleError::NoAction)?;
        // An action after a final one would never run, which tc accepts silently.
        if before.iter().any(RuleAction::ends) {
            return Err(RuleError::BehindTheEnd);
        }
        // The tunnel ends are known only after `tunnel_key set`, so the check follows the order of the actions.
        let mut ends: Option<&TunnelSet> = None;
        for action in before.iter().chain([last]) {
            match action {
                RuleAction::Goto(chain) if *chain <= self.chain => return Err(RuleError::Backwards(self.chain)),
                RuleAction::TunnelSet(set) => {
                    if same_version(set.source, set.destination) {
                        ends = Some(set)
                    } else {
                        return Err(RuleError::Ends);
                    }
                }
                RuleAction::TunnelUnset => ends = None,
                RuleAction::Redirect(Device::Tunnel(tunnel)) | RuleAction::Mirror(Device::Tunnel(tunnel)) => {
                    // VXLAN and Geneve have a 24-bit network id, and GRE has an optional key of 32 bits.
                    let set = ends.ok_or(RuleError::NoEnds)?;
                    let fits = set.key.map_or(tunnel.kind == TunnelKind::Gretap, |key| {
                        tunnel.kind == TunnelKind::Gretap || key < 1 << 24
                    });
                    if !fits {
                        return Err(RuleError::Key);
                    }
                }
                RuleAction::VlanPush(tag) | RuleAction::VlanModify(tag) => {
                    let fits = tag.id < 1 << 12 && tag.priority.is_none_or(|priority| priority < 8);
                    if !fits || !is_vlan(tag.ether_type) {
                        return Err(RuleError::Vlan);
                    }
                }
                RuleAction::Pedit(edits) => self.check_edits(edits)?,
                RuleAction::Checksum(checksums) if *checksums == Default::default() => {
                    return Err(RuleError::NoChecksum);
                }
                RuleAction::Police(police) if police.rate == 0 || police.burst == 0 => return Err(RuleError::Police),
                _ => {}
            }
        }
        Ok(())
    }

    fn check_edits(&self, edits: &[Edit]) -> Result<(), RuleError> {
        if edits.is_empty() {
            return Err(RuleError::NoEdit);
        }
        let network = self.matching.network();
        let is_there = |edit: &Edit| {
            let of_version = |version: IpVersion| network == Some(version.ether_type());
            let is_ip = matches!(network, Some(IPV4 | IPV6));
            // A pedit must not write into a header that may be absent, because other bytes would then be overwritten.
            edit.version().is_none_or(of_version)
                && edit.protocol().is_none_or(|protocol| is_ip && self.matching.ip_protocol == Some(protocol))
        };
        if edits.iter().all(is_there) { Ok(()) } else { Err(RuleError::Unmatched) }
    }
}

fn same_version(one: IpAddr, other: IpAddr) -> bool {
    one.is_ipv4() == other.is_ipv4()
}
