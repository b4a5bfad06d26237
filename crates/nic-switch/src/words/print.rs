//! Printer of rules as `tc filter` lines, in the form that the parser accepts.

use super::value;
use crate::action::{ChecksumSet, Edit, Police, RuleAction, TunnelSet, VlanTag};
use crate::matching::{ClassMatch, EtherMatch, Mac, Match, Ports};
use crate::rule::{Change, Rule, Selection};
use core::fmt::{Display, Formatter, Result};
use offload_formats::{IpVersion, Protocol};

impl Display for Change {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Change::Add(rule) => write!(f, "tc filter add {rule}"),
            Change::Replace(rule) => write!(f, "tc filter replace {rule}"),
            Change::Delete(Selection { device, chain, priority, handle }) => {
                write!(f, "tc filter del dev {device} ingress")?;
                option(f, "prio", priority.as_ref())?;
                option(f, "chain", Some(*chain).filter(|chain| *chain > 0).as_ref())?;
                match handle {
                    Some(handle) => write!(f, " handle {handle} flower"),
                    None => Ok(()),
                }
            }
        }
    }
}

/// Prints the arguments of `tc filter add`.
impl Display for Rule {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let protocol = self.matching.protocol.map_or_else(|| "all".into(), value::ether_type_name);
        write!(f, "dev {} ingress protocol {protocol} prio {}", self.device, self.priority)?;
        option(f, "chain", Some(self.chain).filter(|chain| *chain > 0).as_ref())?;
        option(f, "handle", self.handle.as_ref())?;
        write!(f, " flower{}", self.matching)?;
        self.actions.iter().try_for_each(|action| write!(f, " action {action}"))
    }
}

/// Prints the flower options except the protocol, each with a leading space.
impl Display for Match {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        option(f, "dst_mac", self.destination_mac.map(ether_text).as_ref())?;
        option(f, "src_mac", self.source_mac.map(ether_text).as_ref())?;
        option(f, "vlan_id", self.vlan.id.as_ref())?;
        option(f, "vlan_prio", self.vlan.priority.as_ref())?;
        option(f, "vlan_ethtype", self.vlan.ether_type.map(value::ether_type_name).as_ref())?;
        option(f, "ip_proto", self.ip_protocol.map(|number| value::ip_protocol_name(number, self.network())).as_ref())?;
        option(f, "src_ip", self.source.as_ref().map(value::prefix_text).as_ref())?;
        option(f, "dst_ip", self.destination.as_ref().map(value::prefix_text).as_ref())?;
        option(f, "src_port", self.source_port.map(ports_text).as_ref())?;
        option(f, "dst_port", self.destination_port.map(ports_text).as_ref())?;
        option(f, "ip_tos", self.class.map(class_text).as_ref())?;
        option(
            f,
            "ip_flags",
            flags_text([(self.fragments.fragment, "frag"), (self.fragments.first, "firstfrag")]).as_ref(),
        )?;
        option(f, "enc_key_id", self.tunnel.key.as_ref())?;
        option(f, "enc_src_ip", self.tunnel.source.as_ref().map(value::prefix_text).as_ref())?;
        option(f, "enc_dst_ip", self.tunnel.destination.as_ref().map(value::prefix_text).as_ref())?;
        option(f, "enc_src_port", self.tunnel.source_port.as_ref())?;
        option(f, "enc_dst_port", self.tunnel.destination_port.as_ref())?;
        option(f, "enc_tos", self.tunnel.class.map(class_text).as_ref())?;
        option(f, "enc_flags", flags_text([(self.tunnel.checksum, "tuncsum"), (self.tunnel.oam, "tunoam")]).as_ref())
    }
}

/// Prints the words after `action`.
impl Display for RuleAction {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            RuleAction::Redirect(device) => write!(f, "mirred egress redirect dev {device}"),
            RuleAction::Mirror(device) => write!(f, "mirred egress mirror dev {device}"),
            RuleAction::Drop => f.write_str("drop"),
            RuleAction::Pass => f.write_str("pass"),
            RuleAction::Goto(chain) => write!(f, "goto chain {chain}"),
            RuleAction::TunnelSet(set) => tunnel(f, set),
            RuleAction::TunnelUnset => f.write_str("tunnel_key unset"),
            RuleAction::VlanPush(tag) => vlan(f, "push", tag),
            RuleAction::VlanPop => f.write_str("vlan pop"),
            RuleAction::VlanModify(tag) => vlan(f, "modify", tag),
            RuleAction::Pedit(edits) => {
                f.write_str("pedit ex")?;
                // The parser reads `pedit` without `pipe` as final.
                edits.iter().try_for_each(|edit| write!(f, " munge {edit}"))?;
                f.write_str(" pipe")
            }
            RuleAction::Checksum(checksums) => checksum(f, checksums),
            RuleAction::Police(Police { rate, burst }) => {
                write!(f, "police rate {rate}bit burst {burst}b conform-exceed drop/pipe")
            }
        }
    }
}

/// Prints the words after `munge`.
impl Display for Edit {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let ip = if self.version() == Some(IpVersion::V6) { "ip6" } else { "ip" };
        let hops = if self.version() == Some(IpVersion::V6) { "hoplimit" } else { "ttl" };
        let transport = |protocol: &Protocol| if *protocol == Protocol::Tcp { "tcp" } else { "udp" };
        match self {
            Edit::SourceMac(mac) => write!(f, "eth src set {mac}"),
            Edit::DestinationMac(mac) => write!(f, "eth dst set {mac}"),
            Edit::Source(address) => write!(f, "{ip} src set {address}"),
            Edit::Destination(address) => write!(f, "{ip} dst set {address}"),
            Edit::TrafficClass(IpVersion::V4, class) => write!(f, "ip tos set {class}"),
            Edit::TrafficClass(IpVersion::V6, class) => write!(f, "ip6 traffic_class set {class}"),
            Edit::HopLimit(_, limit) => write!(f, "{ip} {hops} set {limit}"),
            Edit::AddToHopLimit(_, more) => write!(f, "{ip} {hops} add {more}"),
            Edit::SourcePort(protocol, port) => write!(f, "{} sport set {port}", transport(protocol)),
            Edit::DestinationPort(protocol, port) => write!(f, "{} dport set {port}", transport(protocol)),
        }
    }
}

fn option(f: &mut Formatter<'_>, name: &str, value: Option<&impl Display>) -> Result {
    value.map_or(Ok(()), |value| write!(f, " {name} {value}"))
}

fn ether_text(ether: EtherMatch) -> String {
    if ether.mask() == Mac::BROADCAST {
        ether.address().to_string()
    } else {
        format!("{}/{}", ether.address(), ether.mask())
    }
}

fn class_text(class: ClassMatch) -> String {
    let (value, mask) = (class.class(), class.mask());
    if mask == u8::MAX { format!("0x{value:x}") } else { format!("0x{value:x}/0x{mask:x}") }
}

fn ports_text(ports: Ports) -> String {
    match ports {
        Ports::One(port) => port.to_string(),
        Ports::Range(first, last) => format!("{first}-{last}"),
    }
}

fn flags_text(flags: [(Option<bool>, &str); 2]) -> Option<String> {
    let word =
        |(flag, name): (Option<bool>, &str)| flag.map(|flag| if flag { name.into() } else { format!("no{name}") });
    let words: Vec<String> = flags.into_iter().filter_map(word).collect();
    (!words.is_empty()).then(|| words.join("/"))
}

fn tunnel(f: &mut Formatter<'_>, set: &TunnelSet) -> Result {
    write!(f, "tunnel_key set src_ip {} dst_ip {}", set.source, set.destination)?;
    option(f, "id", set.key.as_ref())?;
    option(f, "dst_port", set.destination_port.as_ref())?;
    option(f, "tos", Some(set.tos).filter(|tos| *tos > 0).as_ref())?;
    option(f, "ttl", Some(set.ttl).filter(|ttl| *ttl > 0).as_ref())?;
    f.write_str(if set.checksum { " csum" } else { " nocsum" })?;
    f.write_str(if set.dont_fragment { " nofrag" } else { "" })
}

fn vlan(f: &mut Formatter<'_>, what: &str, tag: &VlanTag) -> Result {
    write!(f, "vlan {what} id {} protocol {}", tag.id, value::ether_type_name(tag.ether_type))?;
    option(f, "priority", tag.priority.as_ref())
}

fn checksum(f: &mut Formatter<'_>, checksums: &ChecksumSet) -> Result {
    let ChecksumSet { ipv4, tcp, udp } = *checksums;
    let words: Vec<&str> = [(ipv4, "ip4h"), (tcp, "tcp"), (udp, "udp")]
        .iter()
        .filter(|(is_there, _)| *is_there)
        .map(|(_, word)| *word)
        .collect();
    write!(f, "csum {} pipe", words.join(" and "))
}
