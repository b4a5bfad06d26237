//! Listens for an agent and compares what its kernel has with what the kernel was given, for `tests/linux/tc_mirror_guest.sh`.
//! Run: `cargo run -p linux-mirror --example replay -- SOCKET CASES`.
//!
//! `CASES` are what nic-switch's example `tc_cases` writes. A kernel that has all rules of a set has one more, of `card0`, whose priority is
//! the number of the set and one. Once the rest is as it was given, a frame takes that one, and what it did is told to the agent, by
//! which the guest knows that it may go on. Rules are compared but for their handles, which the kernel gives.

#![allow(clippy::print_stdout, reason = "printing is the whole purpose, so a failed write loses no other work")]

use bytes::Bytes;
use linux_mirror::Listener;
use linux_mirror::tc::Mirror;
use nic_switch::{
    RuleAction, Change, Device, Frame, FunctionConfig, Mac, SwitchMode, Rule, RuleFile, Switch, SwitchConfig, Vport,
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
    let listener = Listener::bind(&socket)?;
    println!("listening");
    let (agent, _) = listener.socket().accept()?;
    let (mut says, mut hears) = (BufReader::new(agent.try_clone()?), agent);
    let mut mirror = Mirror::new();
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
            return Err(format!("the agent went before set {next} came\n{difference}").into());
        }
        mirror.receive(&line);
        while let Some(refusal) = mirror.poll_refusal() {
            // Rules that lead to a device of the guest's alone are for the kernel.
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
        let shown = |rules: &[Rule]| rules.iter().map(|rule| nameless(rule).to_string()).collect::<BTreeSet<_>>();
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
    println!("{compared} of {} sets, {rules} rules came as they were given; {:?}", sets.len(), mirror.counters());
    // The guest ends when it has seen that.
    std::io::copy(&mut says, &mut std::io::sink())?;
    Ok(())
}

/// The rules of each set.
fn sets(cases: &str) -> Result<Vec<Vec<Rule>>, Box<dyn std::error::Error>> {
    let mut sets: Vec<Vec<Rule>> = Vec::new();
    for line in cases.lines() {
        if line.starts_with("S ") {
            sets.push(Vec::new());
        }
        let Some(arguments) = line.strip_prefix("R ") else { continue };
        // To `m0` and so on: the guest's way to see what the representor gets.
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

/// Without its handle, and what is said in several ways in one: edits in one order, the priority of a new tag.
fn nameless(rule: &Rule) -> Rule {
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
