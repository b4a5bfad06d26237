//! Parser of the commands `tc filter add`, `replace` and `del`.

use super::line::{LineWords, ParseError, ParseProblem};
use super::{actions, value};
use crate::matching::{FragmentMatch, Match};
use crate::port::Device;
use crate::rule::{Change, Rule, Selection};

/// Parses a line; `None` if the line changes no rules.
pub(super) fn line(words: &mut LineWords<'_>) -> Result<Option<Change>, ParseError> {
    if words.peek().is_none() {
        return Ok(None);
    }
    words.expect_word("tc")?;
    match words.expect("filter")? {
        "filter" => filter(words).map(Some),
        "qdisc" => queueing(words).map(|()| None),
        _ => Err(words.wrong(ParseProblem::Expected("filter (or qdisc)"))),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum RuleCommand {
    Add,
    Replace,
    Delete,
}

fn filter(words: &mut LineWords<'_>) -> Result<Change, ParseError> {
    let verb = words.value("add, replace or del", |word| match word {
        "add" => Some(RuleCommand::Add),
        "replace" => Some(RuleCommand::Replace),
        "del" | "delete" => Some(RuleCommand::Delete),
        _ => None,
    })?;
    words.expect_word("dev")?;
    let device = device(words)?;
    words.expect_word("ingress")?;
    let place = place(words)?;
    // A deletion names a place only, so no match may follow.
    if verb == RuleCommand::Delete {
        return delete(words, device, &place);
    }
    if !words.take_if("flower") {
        let _ = words.expect("flower")?;
        return Err(words.wrong(ParseProblem::Expected("protocol, prio, chain, handle or flower")));
    }
    let priority = place.priority.ok_or_else(|| words.wrong(ParseProblem::Expected("all: `prio N` goes before")))?;
    let matching = matching(words, place.protocol.flatten())?;
    let actions = actions::actions(words)?;
    let rule = Rule { device, chain: place.chain.unwrap_or(0), priority, handle: place.handle, matching, actions };
    rule.check().map_err(|error| words.wrong_at(0, ParseProblem::Rule(error)))?;
    Ok(if verb == RuleCommand::Add { Change::Add(rule) } else { Change::Replace(rule) })
}

/// The place of a rule in the tables.
#[derive(Default)]
struct RulePlace {
    protocol: Option<Option<u16>>,
    priority: Option<u16>,
    chain: Option<u32>,
    handle: Option<u32>,
}

fn place(words: &mut LineWords<'_>) -> Result<RulePlace, ParseError> {
    let mut place = RulePlace::default();
    while let Some(word) = words.peek() {
        match word {
            "protocol" | "proto" => {
                words.take();
                words.once(
                    &mut place.protocol,
                    "an EtherType: ip, ipv6, arp, 802.1q, 802.1ad, all or a number",
                    value::filter_protocol,
                )?;
            }
            "prio" | "pref" | "priority" | "preference" => {
                words.take();
                words.once(&mut place.priority, "a priority from 1 to 65535", value::number)?;
            }
            "chain" => {
                words.take();
                words.once(&mut place.chain, "the number of a chain", value::number)?;
            }
            "handle" => {
                words.take();
                words.once(&mut place.handle, "the number of a rule", value::number)?;
            }
            _ => break,
        }
    }
    Ok(place)
}

fn delete(words: &mut LineWords<'_>, device: Device, place: &RulePlace) -> Result<Change, ParseError> {
    words.take_if("flower");
    if words.take().is_some() {
        return Err(
            words.wrong(ParseProblem::Expected("protocol, prio, chain or handle: rules are deleted by their place"))
        );
    }
    if place.handle == Some(0) {
        return Err(words.wrong(ParseProblem::Rule(crate::RuleError::Handle)));
    }
    // As with tc: without a chain, chain 0; without a priority, the whole chain.
    let chain = place.chain.unwrap_or(0);
    Ok(Change::Delete(Selection { device, chain, priority: place.priority, handle: place.handle }))
}

fn matching(words: &mut LineWords<'_>, protocol: Option<u16>) -> Result<Match, ParseError> {
    const MAC: &str = "an Ethernet address, with /MASK or /BITS perhaps";
    const PREFIX: &str = "an IP address, with /BITS perhaps";
    const PORTS: &str = "a port, or FIRST-LAST";
    const CLASS: &str = "a type of service, with /MASK perhaps";
    let mut matching = Match { protocol, ..Match::default() };
    // Flags share one word for two fields, so they are distributed after the loop.
    let (vlan, tunnel) = (&mut matching.vlan, &mut matching.tunnel);
    let (mut flags, mut tunnel_flags) = (None, None);
    while let Some(word) = words.take().filter(|word| *word != "action") {
        match word {
            "dst_mac" => words.once(&mut matching.destination_mac, MAC, value::ether)?,
            "src_mac" => words.once(&mut matching.source_mac, MAC, value::ether)?,
            "vlan_id" => words.once(&mut vlan.id, "a VLAN", value::number)?,
            "vlan_prio" => words.once(&mut vlan.priority, "a priority of a VLAN", value::number)?,
            "vlan_ethtype" => words.once(&mut vlan.ether_type, "an EtherType", value::ether_type)?,
            "ip_proto" => words.once(&mut matching.ip_protocol, "a protocol over IP", value::ip_protocol)?,
            "src_ip" => words.once(&mut matching.source, PREFIX, value::prefix)?,
            "dst_ip" => words.once(&mut matching.destination, PREFIX, value::prefix)?,
            "src_port" => words.once(&mut matching.source_port, PORTS, value::ports)?,
            "dst_port" => words.once(&mut matching.destination_port, PORTS, value::ports)?,
            "ip_flags" => {
                words.once(&mut flags, "frag, nofrag, firstfrag or nofirstfrag, with / between", fragments)?
            }
            "ip_tos" => words.once(&mut matching.class, CLASS, value::class)?,
            "enc_key_id" => words.once(&mut tunnel.key, "the key of a tunnel", value::number)?,
            "enc_src_ip" => words.once(&mut tunnel.source, PREFIX, value::prefix)?,
            "enc_dst_ip" => words.once(&mut tunnel.destination, PREFIX, value::prefix)?,
            "enc_src_port" => words.once(&mut tunnel.source_port, "a UDP port", value::number)?,
            "enc_dst_port" => words.once(&mut tunnel.destination_port, "a UDP port", value::number)?,
            "enc_tos" => words.once(&mut tunnel.class, CLASS, value::class)?,
            "enc_flags" => {
                words.once(&mut tunnel_flags, "tuncsum, notuncsum, tunoam or notunoam, with / between", of_tunnel)?
            }
            // `skip_sw` asks for hardware only, which is always true here. `skip_hw` must be refused.
            "skip_sw" => {}
            "skip_hw" => return Err(words.wrong(ParseProblem::SoftwareOnly)),
            word if word.starts_with("ct_") => return Err(words.wrong(ParseProblem::ConnectionState)),
            _ => {
                return Err(
                    words.wrong(ParseProblem::Expected("a word of flower that the switch has: see its chapter"))
                );
            }
        }
    }
    let [fragment, first] = flags.unwrap_or_default();
    matching.fragments = FragmentMatch { fragment, first };
    [matching.tunnel.checksum, matching.tunnel.oam] = tunnel_flags.unwrap_or_default();
    Ok(matching)
}

fn fragments(word: &str) -> Option<[Option<bool>; 2]> {
    flags(word, ["frag", "firstfrag"])
}

fn of_tunnel(word: &str) -> Option<[Option<bool>; 2]> {
    flags(word, ["tuncsum", "tunoam"])
}

/// Parses flags separated by `/`; the prefix `no` requires a flag to be absent.
fn flags(word: &str, names: [&str; 2]) -> Option<[Option<bool>; 2]> {
    let mut flags = [None; 2];
    for flag in word.split('/') {
        let (name, value) = flag.strip_prefix("no").map_or((flag, true), |name| (name, false));
        let place = names.iter().position(|known| *known == name)?;
        if flags[place].replace(value).is_some() {
            return None;
        }
    }
    Some(flags)
}

/// Parses `tc qdisc add dev X clsact` or `ingress`.
fn queueing(words: &mut LineWords<'_>) -> Result<(), ParseError> {
    words.value("add or replace", |word| matches!(word, "add" | "replace").then_some(()))?;
    words.expect_word("dev")?;
    device(words)?;
    words.value("clsact or ingress", |word| matches!(word, "clsact" | "ingress").then_some(()))?;
    match words.take() {
        None => Ok(()),
        Some(_) => Err(words.wrong(ParseProblem::Expected("the line's end"))),
    }
}

pub(super) fn device(words: &mut LineWords<'_>) -> Result<Device, ParseError> {
    words.value("a device of the switch: name p0, pf0hpf, pf0vfN, card0, vxlanN, gretapN or geneveN", |word| {
        word.parse().ok()
    })
}
