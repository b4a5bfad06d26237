//! Compares a kernel's filters, received from an agent, with the filters given to the kernel. Used by
//! `tests/linux/tc_mirror_guest.sh`. Run: `cargo run -p linux-mirror --example replay -- SOCKET CASES`.
//!
//! `CASES` is a file written by nic-switch's example `tc_cases`. After all rules of a set, the guest adds a marker rule
//! for `card0` with the set's number plus one as its priority. When the other rules equal the set, a frame hits the
//! marker, and its use is reported to the agent, so that the guest continues. Rules are compared without handles,
//! because the kernel assigns them.

#![allow(clippy::print_stdout, reason = "printing is the only output, so a failed write loses no other work")]

use bytes::Bytes;
use linux_mirror::MirrorListener;
use linux_mirror::tc::FilterMirror;
use nic_switch::{
    Change, Device, Frame, FunctionConfig, Mac, Rule, RuleAction, RuleFile, Switch, SwitchConfig, SwitchMode, Vport,
};
use offload_base::Instant;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let [socket, cases]: [PathBuf; 2] = std::env::args_os()
        .skip(1)
        .map(PathBuf::from)
        .collect::<Vec<_>>()
        .try_into()
        .map_err(|_| "usage: replay SOCKET CASES")?;
    let sets = sets(&std::fs::read_to_string(cases)?)?;
    let listener = MirrorListener::bind(&socket)?;
    println!("listening");
    let (agent, _) = listener.socket().accept()?;
    // Lines are read one at a time, so that the mirror stops at each marker rule.
    let (mut says, mut hears) = (BufReader::new(agent.try_clone()?), agent);
    let mut mirror = FilterMirror::new();
    let mut switch = Switch::new(SwitchConfig::default());
    switch.set_mode(SwitchMode::Switchdev);
    switch.set_function(Vport::Card, FunctionConfig::new(Mac::default()));
    let (mut rules, mut compared, mut next, mut difference) = (0, 0, 0, String::new());
    while next < sets.len() {
        while let Some(bytes) = mirror.poll_transmit() {
            hears.write_all(&bytes)?;
        }
        let mut line = Vec::new();
        if says.read_until(b'\n', &mut line)? == 0 {
            return Err(format!("the agent closed the connection before set {next}\n{difference}").into());
        }
        mirror.receive(&line);
        while let Some(refusal) = mirror.poll_refusal() {
            // Rules that redirect to devices of the guest only are left to the kernel.
            if !refusal.to_string().contains("it sends to network device number") {
                return Err(refusal.to_string().into());
            }
        }
        let Some(all) = mirror.poll_rules() else { continue };
        switch.replace_rules(all.clone())?;
        let card = Device::Port(Vport::Card);
        let (marks, there): (Vec<Rule>, Vec<Rule>) = all.into_iter().partition(|rule| rule.device == card);
        let number = marks.first().map(|mark| usize::from(mark.priority) - 1);
        let Some(number) = number.filter(|number| (next..sets.len()).contains(number)) else { continue };
        let shown = |rules: &[Rule]| rules.iter().map(|rule| normalized(rule).to_string()).collect::<BTreeSet<_>>();
        let (wanted, found) = (shown(&sets[number]), shown(&there));
        if wanted != found {
            let lacks = wanted.difference(&found).map(|rule| format!("set {number} LACKS {rule}\n"));
            difference =
                lacks.chain(found.difference(&wanted).map(|rule| format!("set {number} HAS   {rule}\n"))).collect();
            continue;
        }
        (rules, compared, next) = (rules + wanted.len(), compared + 1, number + 1);
        switch.receive(Instant::ZERO, Vport::Card, Frame::from(Bytes::from_static(&[0; 60])), &mut Vec::new());
        mirror.report(Instant::from_nanos(7_000_000), &switch.rules().collect::<Vec<_>>());
    }
    while let Some(bytes) = mirror.poll_transmit() {
        hears.write_all(&bytes)?;
    }
    println!("{compared} of {} sets, {rules} rules are equal; {:?}", sets.len(), mirror.counters());
    // The guest closes the connection when it has seen the last report.
    std::io::copy(&mut says, &mut std::io::sink())?;
    Ok(())
}

/// Parses the rules of each set.
fn sets(cases: &str) -> Result<Vec<Vec<Rule>>, Box<dyn std::error::Error>> {
    let mut sets: Vec<Vec<Rule>> = Vec::new();
    for line in cases.lines() {
        if line.starts_with("S ") {
            sets.push(Vec::new());
        }
        let Some(arguments) = line.strip_prefix("R ") else { continue };
        // Redirects to `m0` and so on let the guest see the representor's frames.
        let (arguments, left) = match arguments.rsplit_once(" action mirred egress redirect dev m") {
            Some((before, _)) => (format!("{before} action pass"), true),
            None => (arguments.to_owned(), false),
        };
        for change in RuleFile::parse("cases", &format!("tc {arguments}"))?.changes {
            let Change::Add(mut rule) = change else { continue };
            if left {
                rule.actions = vec![RuleAction::Pass];
            }
            sets.last_mut().ok_or("no set")?.push(rule);
        }
    }
    Ok(sets)
}

/// Normalizes a rule: no handle, edits in one order, and an explicit priority of a new tag.
fn normalized(rule: &Rule) -> Rule {
    let mut rule = Rule { handle: None, ..rule.clone() };
    for action in &mut rule.actions {
        match action {
            RuleAction::Pedit(edits) => edits.sort_by_key(|edit| format!("{edit:?}")),
            RuleAction::VlanPush(tag) => tag.priority = tag.priority.or(Some(0)),
            _ => {}
        }
    }
    rule
}
