//! Parser of a rule's actions, after each `action`.
//!
//! An action may be followed by a control word; `pipe` continues with the next action. The defaults are those of tc:
//! `pedit` and `csum` pass the packet, other actions continue.

use super::line::{LineWords, ParseError, ParseProblem};
use super::{read, value};
use crate::action::{ChecksumSet, Edit, Police, RuleAction, TunnelSet, VlanTag};
use crate::matching::VLAN;
use core::net::IpAddr;
use offload_formats::{IpVersion, Protocol};

/// Parses the actions after the first `action` keyword.
pub(super) fn actions(words: &mut LineWords<'_>) -> Result<Vec<RuleAction>, ParseError> {
    let mut actions = Vec::new();
    loop {
        action(words, &mut actions)?;
        match words.take() {
            None => return Ok(actions),
            Some("action") => {}
            Some(_) => return Err(words.wrong(ParseProblem::Expected("an option of this action, nor `action`"))),
        }
    }
}

fn action(words: &mut LineWords<'_>, actions: &mut Vec<RuleAction>) -> Result<(), ParseError> {
    let word = words.expect("an action")?;
    actions.push(match word {
        "mirred" => mirred(words)?,
        "drop" | "shot" => RuleAction::Drop,
        "pass" | "ok" => RuleAction::Pass,
        "goto" => {
            words.expect_word("chain")?;
            RuleAction::Goto(words.value("the number of a chain", value::number)?)
        }
        "tunnel_key" => tunnel(words)?,
        "vlan" => vlan(words)?,
        "pedit" => pedit(words)?,
        "csum" => RuleAction::Checksum(checksums(words)?),
        "police" => RuleAction::Police(police(words)?),
        "ct" => return Err(words.wrong(ParseProblem::ConnectionState)),
        _ => return Err(words.wrong(ParseProblem::Expected("an action that the switch has: see its chapter"))),
    });
    // `pipe` continues with the next action, and other control words are actions themselves.
    let is_over = actions.last().is_some_and(RuleAction::ends);
    // Nothing can follow a final action, so no control word is read.
    if is_over || words.take_if("pipe") {
        return Ok(());
    }
    // Without a control word, `pedit` and `csum` end the rule in tc, while other actions continue.
    let passes = words.take_if("pass") || words.take_if("ok");
    if words.take_if("drop") {
        actions.push(RuleAction::Drop);
    } else if passes || matches!(word, "pedit" | "csum") {
        actions.push(RuleAction::Pass);
    }
    Ok(())
}

fn mirred(words: &mut LineWords<'_>) -> Result<RuleAction, ParseError> {
    words.expect_word("egress")?;
    let redirects = words.value("redirect or mirror", |word| match word {
        "redirect" => Some(true),
        "mirror" => Some(false),
        _ => None,
    })?;
    words.expect_word("dev")?;
    let device = read::device(words)?;
    Ok(if redirects { RuleAction::Redirect(device) } else { RuleAction::Mirror(device) })
}

fn tunnel(words: &mut LineWords<'_>) -> Result<RuleAction, ParseError> {
    let sets = words.value("set or unset", |word| match word {
        "set" => Some(true),
        "unset" => Some(false),
        _ => None,
    })?;
    if !sets {
        return Ok(RuleAction::TunnelUnset);
    }
    let (mut source, mut destination) = (None, None);
    let (mut key, mut port, mut tos, mut ttl, mut checksum) = (None, None, None, None, None);
    let mut dont_fragment = false;
    while let Some(word) = words.peek() {
        // These words end the options, and belong to the caller.
        if matches!(word, "pipe" | "action") {
            break;
        }
        words.take();
        match word {
            "src_ip" => words.once(&mut source, "an IP address", value::address)?,
            "dst_ip" => words.once(&mut destination, "an IP address", value::address)?,
            "id" => words.once(&mut key, "the key of a tunnel", value::number)?,
            "dst_port" => words.once(&mut port, "a UDP port", value::number)?,
            "tos" => words.once(&mut tos, "a type of service", value::number)?,
            "ttl" => words.once(&mut ttl, "a hop limit", value::number)?,
            // `csum` and `nocsum` set the same option, so either may occur once.
            "csum" | "nocsum" if checksum.is_none() => checksum = Some(word == "csum"),
            "nofrag" if !dont_fragment => dont_fragment = true,
            "csum" | "nocsum" | "nofrag" => return Err(words.wrong(ParseProblem::Twice)),
            _ => return Err(words.wrong(ParseProblem::Expected("an option of tunnel_key that the switch has"))),
        }
    }
    let ends: (Option<IpAddr>, Option<IpAddr>) = (source, destination);
    let (Some(source), Some(destination)) = ends else {
        return Err(words.wrong(ParseProblem::Expected("all: a tunnel has src_ip and dst_ip")));
    };
    Ok(RuleAction::TunnelSet(TunnelSet {
        key,
        destination_port: port,
        tos: tos.unwrap_or(0),
        ttl: ttl.unwrap_or(0),
        checksum: checksum.unwrap_or(true),
        dont_fragment,
        ..TunnelSet::new(source, destination)
    }))
}

fn vlan(words: &mut LineWords<'_>) -> Result<RuleAction, ParseError> {
    let what = words.expect("push, pop or modify")?;
    let (mut id, mut priority, mut tag) = (None, None, None);
    match what {
        "pop" => return Ok(RuleAction::VlanPop),
        "push" | "modify" => {}
        _ => return Err(words.wrong(ParseProblem::Expected("push, pop or modify"))),
    }
    while let Some(word) = words.peek() {
        match word {
            "id" => {
                words.take();
                words.once(&mut id, "a VLAN", value::number)?;
            }
            "priority" => {
                words.take();
                words.once(&mut priority, "a priority of a VLAN", value::number)?;
            }
            "protocol" => {
                words.take();
                words.once(&mut tag, "802.1q or 802.1ad", value::tag)?;
            }
            _ => break,
        }
    }
    let id = id.ok_or_else(|| words.wrong(ParseProblem::Expected("all: `id N` names the VLAN")))?;
    let tag = VlanTag { id, priority, ether_type: tag.unwrap_or(VLAN) };
    Ok(if what == "push" { RuleAction::VlanPush(tag) } else { RuleAction::VlanModify(tag) })
}

fn pedit(words: &mut LineWords<'_>) -> Result<RuleAction, ParseError> {
    words.expect_word("ex")?;
    let mut edits = Vec::new();
    while words.take_if("munge") {
        edits.push(edit(words)?);
    }
    Ok(RuleAction::Pedit(edits))
}

fn edit(words: &mut LineWords<'_>) -> Result<Edit, ParseError> {
    const IP: &str = "an address of this version of IP";
    let header = words.expect("eth, ip, ip6, tcp or udp")?;
    let field = words.expect("a field")?;
    let adds = field_adds(words)?;
    let version = if header == "ip6" { IpVersion::V6 } else { IpVersion::V4 };
    let transport = if header == "udp" { Protocol::Udp } else { Protocol::Tcp };
    let of_version = |word: &str| value::address(word).filter(|address| IpVersion::of_address(address) == version);
    let edit = match (header, field) {
        ("ip", "ttl") | ("ip6", "hoplimit") => {
            let hops = words.value("a number of hops", value::number)?;
            return Ok(if adds { Edit::AddToHopLimit(version, hops) } else { Edit::HopLimit(version, hops) });
        }
        ("eth", "src") => Edit::SourceMac(words.value("an Ethernet address", |word| word.parse().ok())?),
        ("eth", "dst") => Edit::DestinationMac(words.value("an Ethernet address", |word| word.parse().ok())?),
        ("ip" | "ip6", "src") => Edit::Source(words.value(IP, of_version)?),
        ("ip" | "ip6", "dst") => Edit::Destination(words.value(IP, of_version)?),
        ("ip", "tos" | "dsfield") | ("ip6", "traffic_class") => {
            Edit::TrafficClass(version, words.value("a traffic class", value::number)?)
        }
        ("tcp" | "udp", "sport") => Edit::SourcePort(transport, words.value("a port", value::number)?),
        ("tcp" | "udp", "dport") => Edit::DestinationPort(transport, words.value("a port", value::number)?),
        _ => return Err(words.wrong(ParseProblem::Expected("behind a field that the switch can change"))),
    };
    if adds { Err(words.wrong(ParseProblem::Expected("added to: only hops are"))) } else { Ok(edit) }
}

fn field_adds(words: &mut LineWords<'_>) -> Result<bool, ParseError> {
    words.value("set or add", |word| match word {
        "set" => Some(false),
        "add" => Some(true),
        _ => None,
    })
}

fn checksums(words: &mut LineWords<'_>) -> Result<ChecksumSet, ParseError> {
    let mut checksums = ChecksumSet::default();
    while let Some(word) = words.peek() {
        match word {
            "ip4h" | "iph" => checksums.ipv4 = true,
            "tcp" => checksums.tcp = true,
            "udp" => checksums.udp = true,
            "and" | "or" | "+" => {}
            _ => break,
        }
        words.take();
    }
    if checksums == ChecksumSet::default() {
        return Err(words.wrong(ParseProblem::Expected("all: csum names ip4h, tcp or udp")));
    }
    Ok(checksums)
}

fn police(words: &mut LineWords<'_>) -> Result<Police, ParseError> {
    words.expect_word("rate")?;
    let rate = words.value("a rate, such as 8mbit", value::rate)?;
    words.expect_word("burst")?;
    let burst = words.value("a size, such as 64k", value::size)?;
    words.expect_word("conform-exceed")?;
    words.expect_word("drop/pipe")?;
    Ok(Police { rate, burst })
}
