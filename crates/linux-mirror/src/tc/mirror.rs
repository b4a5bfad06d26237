//! The switch's side: what the agent says is what the switch is to have, and what its rules did goes back.
//!
//! ```text
//!   bytes of the agent --> receive --> poll_rules: all rules that the switch is to have, when that changed
//!                             |        report: what they did --> bytes for the agent
//!                             +------> poll_refusal: what is left to the kernel, and why
//! ```
//!
//! Invariants: there are no rules until the first snapshot is whole. A filter that is left to the kernel stands in the way of those
//! behind it, and of one that matches the same. A device that has more filters than there is room for has no rule.

use crate::tc::line::{BadLine, Line, Place, Reader, Used, VERSION};
use nic_switch::matching::{ClassMatch, TunnelMatch};
use nic_switch::{RuleAction, Device, EtherMatch, Mac, Match, Rule, RuleReport};
use offload_api::Prefix;
use offload_base::Instant;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What a kernel's filters are at a switch, without the socket that they come by.
///
/// ```
/// use nic_switch::{SwitchMode, Switch, SwitchConfig};
/// use offload_base::Instant;
/// use linux_mirror::tc::Mirror;
///
/// let mut switch = Switch::new(SwitchConfig::default());
/// switch.set_mode(SwitchMode::Switchdev);
/// let mut mirror = Mirror::new();
/// mirror.receive(b"tc-mirror 1\nbegin\ntc filter replace dev p0 ingress prio 1 handle 1 flower action drop\n");
/// assert!(mirror.poll_rules().is_none(), "the snapshot is not whole");
/// mirror.receive(b"end\n");
/// switch.replace_rules(mirror.poll_rules().unwrap())?;
/// assert!(mirror.poll_rules().is_none(), "nothing new");
/// mirror.report(Instant::ZERO, &switch.rules().collect::<Vec<_>>());
/// # Ok::<(), nic_switch::ChangeError>(())
/// ```
#[derive(Debug)]
pub struct Mirror {
    reader: Reader,
    /// Heard the agent's hello, and nothing that made no sense since.
    synchronized: bool,
    most: usize,
    told: BTreeMap<Place, Told>,
    /// Devices with more filters than there is room for.
    full: BTreeSet<Device>,
    /// Of the snapshot before, while another one is under way.
    was_full: BTreeSet<Device>,
    /// The number of the last snapshot, whether it is under way, and whether one was whole.
    snapshot: u64,
    in_snapshot: bool,
    whole: bool,
    changed: bool,
    /// How many filters came, by which they have an order.
    came: u64,
    ask: bool,
    used: BTreeMap<Place, Used>,
    refusals: VecDeque<Refusal>,
    counts: MirrorCounters,
}

#[derive(Debug)]
struct Told {
    rule: Rule,
    came: u64,
    /// The snapshot that named it last.
    snapshot: u64,
    reported: Used,
}

offload_base::counters! {
    /// Counters of a mirror of filters.
    ///
    /// ```
    /// assert_eq!(linux_mirror::tc::Mirror::new().counters().snapshots, 0);
    /// ```
    pub struct MirrorCounters {
        /// Filters that came or changed.
        pub filters_added: "tc_mirror_filters_added",
        /// Filters that went.
        pub filters_deleted: "tc_mirror_filters_deleted",
        /// Filters that are left to the kernel.
        pub filters_refused: "tc_mirror_filters_refused",
        /// Filters for which there was no room.
        pub filters_too_many: "tc_mirror_filters_too_many",
        /// Snapshots that were whole.
        pub snapshots: "tc_mirror_snapshots",
        /// Lines that made no sense.
        pub bad_lines: "tc_mirror_bad_lines",
        /// Reports to the agent.
        pub reports: "tc_mirror_reports",
    }
}

/// What is left to the kernel, and why.
///
/// ```
/// assert_eq!(linux_mirror::tc::Refusal::Version(2).to_string(), "the agent speaks version 2 of the protocol, the mirror version 1: use those of one release");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The filter has no counterpart in the switch.
    #[error("filter {0} is left to the kernel: {1}")]
    Filter(Place, String),
    /// There is more than a mirror holds.
    #[error("there are more than {1} filters: those of {0} are left to the kernel until there are fewer")]
    TooMany(Device, usize),
    /// The agent speaks another version.
    #[error("the agent speaks version {0} of the protocol, the mirror version {VERSION}: use those of one release")]
    Version(u16),
    /// The agent's bytes make no sense; it is asked to begin again.
    #[error("the agent begins again: {0}")]
    Line(BadLine),
}

impl Default for Mirror {
    fn default() -> Mirror {
        Mirror::new()
    }
}

impl Mirror {
    /// With room for 65,536 filters, as a switch has.
    pub fn new() -> Mirror {
        Mirror {
            reader: Reader::new(),
            synchronized: false,
            most: MOST,
            told: BTreeMap::new(),
            full: BTreeSet::new(),
            was_full: BTreeSet::new(),
            snapshot: 0,
            in_snapshot: false,
            whole: false,
            changed: false,
            came: 0,
            ask: true,
            used: BTreeMap::new(),
            refusals: VecDeque::new(),
            counts: MirrorCounters::default(),
        }
    }

    /// The same, with room for this many.
    #[must_use]
    pub fn with_room_for(mut self, most: usize) -> Mirror {
        self.most = most;
        self
    }

    /// Another stream begins: the agent is asked for everything.
    pub fn connect(&mut self) {
        (self.reader, self.synchronized, self.ask) = (Reader::new(), false, true);
    }

    /// Takes the next bytes of the agent.
    pub fn receive(&mut self, bytes: &[u8]) {
        let mut reader = core::mem::take(&mut self.reader);
        reader.read(bytes, |line| match line {
            Ok(Line::Hello(VERSION)) => (self.synchronized, self.in_snapshot) = (true, false),
            Ok(Line::Hello(other)) => {
                self.synchronized = false;
                self.refuse(Refusal::Version(other));
            }
            // What is left of an agent that is no more.
            _ if !self.synchronized => {}
            Ok(line) => self.take(line),
            Err(error) => self.lose(error),
        });
        self.reader = reader;
    }

    /// All rules that the switch is to have, if those are others than it was told last.
    pub fn poll_rules(&mut self) -> Option<Vec<Rule>> {
        if !self.whole || !core::mem::take(&mut self.changed) {
            return None;
        }
        let mut told: Vec<&Told> = self.told.values().filter(|told| !self.is_full(told.rule.device)).collect();
        // Of one priority, the kernel asks the mask first that was there first.
        told.sort_unstable_by_key(|told| told.came);
        let mut rules: Vec<Rule> = Vec::new();
        let mut there: BTreeMap<(Device, u32, u16, Match), usize> = BTreeMap::new();
        for Told { rule, .. } in told {
            let of = (rule.device, rule.chain, rule.priority, rule.matching);
            match there.get(&of) {
                // What the kernel tells apart is one here: if it is to decide about one of them, then about all.
                Some(at) if rule.actions == [RuleAction::Pass] => rules[*at].actions = vec![RuleAction::Pass],
                Some(_) => {}
                None => {
                    there.insert(of, rules.len());
                    rules.push(rule.clone());
                }
            }
        }
        Some(rules)
    }

    /// Whether a device has more rules than there is room for, or had when it was last known.
    fn is_full(&self, device: Device) -> bool {
        self.full.contains(&device) || self.was_full.contains(&device)
    }

    /// Tells the agent what rules did since it was told last.
    pub fn report(&mut self, now: Instant, reports: &[RuleReport]) {
        for report in reports {
            let place = Place::of(&report.rule);
            let Some(told) = place.and_then(|place| self.told.get_mut(&place)) else { continue };
            let counters = report.counters;
            let idle = counters.age(now).map(|age| age.as_millis() as u64);
            let used = Used { packets: counters.packets, bytes: counters.bytes, idle };
            if (used.packets, used.bytes) != (told.reported.packets, told.reported.bytes) {
                told.reported = used;
                self.counts.reports += 1;
                self.used.extend(place.map(|place| (place, used)));
            }
        }
    }

    /// The next bytes for the agent.
    pub fn poll_transmit(&mut self) -> Option<Vec<u8>> {
        let line = if core::mem::take(&mut self.ask) {
            Line::Ask(VERSION)
        } else if self.synchronized {
            let (place, used) = self.used.pop_first()?;
            Line::Used(place, used)
        } else {
            return None;
        };
        Some(format!("{line}\n").into_bytes())
    }

    /// What is left to the kernel since somebody asked last.
    pub fn poll_refusal(&mut self) -> Option<Refusal> {
        self.refusals.pop_front()
    }

    /// What was counted so far.
    pub fn counters(&self) -> MirrorCounters {
        self.counts
    }

    fn take(&mut self, line: Line) {
        match line {
            Line::Begins => {
                self.snapshot += 1;
                self.in_snapshot = true;
                // Until it is whole, it is not known whether there is room now.
                self.was_full.append(&mut self.full);
            }
            Line::Ends if core::mem::take(&mut self.in_snapshot) => {
                self.counts.snapshots += 1;
                self.changed |=
                    !core::mem::replace(&mut self.whole, true) | !core::mem::take(&mut self.was_full).is_empty();
                let now = self.snapshot;
                self.remove(|_, told| told.snapshot != now);
            }
            // It began before a hello, and is followed by another one.
            Line::Ends => {}
            Line::There(rule) => match rule.check() {
                Ok(()) => self.put(Rule { matching: plain(rule.matching), ..*rule }),
                Err(error) => self.lose(BadLine(error.to_string())),
            },
            Line::Gone(selection) => {
                self.remove(|place, _| selection.includes(place.device, place.chain, place.priority, place.handle));
                // The one that is gone may be one for which there was no room.
                self.ask |= self.full.contains(&selection.device);
            }
            Line::Refused(place, why) => {
                self.counts.filters_refused += 1;
                self.refuse(Refusal::Filter(place, why));
            }
            Line::Hello(_) | Line::Ask(_) | Line::Used(..) => self.lose(BadLine("it is the mirror's to say".into())),
        }
    }

    fn put(&mut self, rule: Rule) {
        let Some(place) = Place::of(&rule) else { return };
        if let Some(told) = self.told.get_mut(&place) {
            told.snapshot = self.snapshot;
            if told.rule != rule {
                told.rule = rule;
                self.changed = true;
                self.counts.filters_added += 1;
            }
            return;
        }
        if self.told.len() >= self.most {
            self.counts.filters_too_many += 1;
            if self.full.insert(place.device) {
                self.changed = true;
                self.refuse(Refusal::TooMany(place.device, self.most));
            }
            return;
        }
        self.came += 1;
        self.counts.filters_added += 1;
        self.changed = true;
        let told = Told { rule, came: self.came, snapshot: self.snapshot, reported: Used::default() };
        self.told.insert(place, told);
    }

    fn remove(&mut self, is_meant: impl Fn(&Place, &Told) -> bool) {
        let gone = self.told.extract_if(.., |place, told| is_meant(place, told));
        let used = &mut self.used;
        let count = gone.map(|(place, _)| used.remove(&place)).count() as u64;
        self.counts.filters_deleted += count;
        self.changed |= count > 0;
        // There may be room for all of them now.
        self.ask |= count > 0 && !self.full.is_empty();
    }

    /// What the agent says makes no sense: it is to begin again.
    fn lose(&mut self, error: BadLine) {
        (self.synchronized, self.ask) = (false, true);
        self.counts.bad_lines += 1;
        self.refuse(Refusal::Line(error));
    }

    fn refuse(&mut self, refusal: Refusal) {
        if self.refusals.len() >= MOST_REFUSALS {
            self.refusals.pop_front();
        }
        self.refusals.push_back(refusal);
    }
}

/// The same without masks that ask for nothing: to the switch, filters that differ in those are one.
fn plain(matching: Match) -> Match {
    let Match { destination_mac, source_mac, source, destination, class, tunnel, .. } = matching;
    let address = |prefix: Option<Prefix>| prefix.filter(|prefix| prefix.bits() > 0);
    let some = |class: Option<ClassMatch>| class.filter(|class| class.mask() != 0);
    let mac = |found: Option<EtherMatch>| found.filter(|found| found.mask() != Mac::default());
    Match {
        destination_mac: mac(destination_mac),
        source_mac: mac(source_mac),
        source: address(source),
        destination: address(destination),
        class: some(class),
        tunnel: TunnelMatch {
            source: address(tunnel.source),
            destination: address(tunnel.destination),
            class: some(tunnel.class),
            ..tunnel
        },
        ..matching
    }
}

const MOST: usize = 65_536;
const MOST_REFUSALS: usize = 1024;
