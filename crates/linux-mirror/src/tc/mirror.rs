//! The mirror: turns the agent's lines into the rules of a switch, and reports the rules' use back.
//!
//! ```text
//!   bytes of the agent --> receive --> poll_rules: all rules for the switch, after a change
//!                             |        report: use of the rules --> bytes for the agent
//!                             +------> poll_refusal: filters left to the kernel, and reasons
//! ```
//!
//! Invariants:
//! - Until the first snapshot is complete, there are no rules.
//! - A filter left to the kernel becomes a rule that passes its frames to the kernel. It precedes later filters, and
//!   overrides filters with the same match.
//! - A device with more filters than the limit has no rules.

use crate::tc::line::{FilterLine, LineError, LineReader, RuleId, RuleUse, VERSION};
use nic_switch::matching::{ClassMatch, TunnelMatch};
use nic_switch::{Device, EtherMatch, Mac, Match, Rule, RuleAction, RuleReport};
use offload_api::Prefix;
use offload_base::Instant;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A mirror of a kernel's filters into a switch, without the socket.
///
/// ```
/// use nic_switch::{Switch, SwitchConfig, SwitchMode};
/// use offload_base::Instant;
/// use linux_mirror::tc::FilterMirror;
///
/// let mut switch = Switch::new(SwitchConfig::default());
/// switch.set_mode(SwitchMode::Switchdev);
/// let mut mirror = FilterMirror::new();
/// mirror.receive(b"tc-mirror 1\nbegin\ntc filter replace dev p0 ingress prio 1 handle 1 flower action drop\n");
/// assert!(mirror.poll_rules().is_none(), "the snapshot is not complete");
/// mirror.receive(b"end\n");
/// switch.replace_rules(mirror.poll_rules().unwrap())?;
/// assert!(mirror.poll_rules().is_none(), "no change since the last call");
/// mirror.report(Instant::ZERO, &switch.rules().collect::<Vec<_>>());
/// # Ok::<(), nic_switch::ChangeError>(())
/// ```
#[derive(Debug)]
pub struct FilterMirror {
    reader: LineReader,
    /// Whether the agent's hello was received, and no malformed line since.
    synchronized: bool,
    most: usize,
    told: BTreeMap<RuleId, MirroredFilter>,
    /// Devices with more filters than the limit.
    full: BTreeSet<Device>,
    /// Devices that exceeded the limit before the current snapshot.
    was_full: BTreeSet<Device>,
    /// Number of the last snapshot.
    snapshot: u64,
    /// Whether a snapshot is under way.
    in_snapshot: bool,
    /// Whether a snapshot was complete.
    whole: bool,
    changed: bool,
    /// Number of filters added so far, which determines their order.
    came: u64,
    ask: bool,
    used: BTreeMap<RuleId, RuleUse>,
    refusals: VecDeque<FilterRefusal>,
    counts: FilterMirrorCounters,
}

#[derive(Debug)]
struct MirroredFilter {
    rule: Rule,
    came: u64,
    /// Number of the last snapshot that named the filter.
    snapshot: u64,
    reported: RuleUse,
}

offload_base::counters! {
    /// Counters of a mirror of filters.
    ///
    /// ```
    /// assert_eq!(linux_mirror::tc::FilterMirror::new().counters().snapshots, 0);
    /// ```
    pub struct FilterMirrorCounters {
        /// Filters added or changed.
        pub filters_added: "tc_mirror_filters_added",
        /// Filters deleted.
        pub filters_deleted: "tc_mirror_filters_deleted",
        /// Filters left to the kernel.
        pub filters_refused: "tc_mirror_filters_refused",
        /// Filters beyond the limit.
        pub filters_too_many: "tc_mirror_filters_too_many",
        /// Complete snapshots.
        pub snapshots: "tc_mirror_snapshots",
        /// Malformed lines.
        pub bad_lines: "tc_mirror_bad_lines",
        /// Reports to the agent.
        pub reports: "tc_mirror_reports",
    }
}

/// A filter or device that is left to the kernel, and the reason; or a fault of the agent.
///
/// ```
/// assert_eq!(linux_mirror::tc::FilterRefusal::Version(2).to_string(), "the agent speaks version 2 of the protocol, the mirror version 1: use those of one release");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FilterRefusal {
    /// The filter has no counterpart in the switch.
    #[error("filter {0} is left to the kernel: {1}")]
    Filter(RuleId, String),
    /// There are more filters than the mirror can hold.
    #[error("there are more than {1} filters: those of {0} are left to the kernel until there are fewer")]
    TooMany(Device, usize),
    /// The agent speaks another protocol version.
    #[error("the agent speaks version {0} of the protocol, the mirror version {VERSION}: use those of one release")]
    Version(u16),
    /// The agent's bytes are malformed; the agent has to start again.
    #[error("the agent has to start again: {0}")]
    Line(LineError),
}

impl Default for FilterMirror {
    fn default() -> FilterMirror {
        FilterMirror::new()
    }
}

impl FilterMirror {
    /// Returns a mirror with a limit of 65,536 filters, like a switch's.
    pub fn new() -> FilterMirror {
        FilterMirror {
            reader: LineReader::new(),
            synchronized: false,
            most: DEFAULT_LIMIT,
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
            counts: FilterMirrorCounters::default(),
        }
    }

    /// Limits the number of filters.
    #[must_use]
    pub fn with_room_for(mut self, most: usize) -> FilterMirror {
        self.most = most;
        self
    }

    /// Starts a new stream, and requests a snapshot.
    pub fn connect(&mut self) {
        (self.reader, self.synchronized, self.ask) = (LineReader::new(), false, true);
    }

    /// Processes the agent's next bytes.
    pub fn receive(&mut self, bytes: &[u8]) {
        let mut reader = core::mem::take(&mut self.reader);
        reader.read(bytes, |line| match line {
            Ok(FilterLine::Hello(VERSION)) => (self.synchronized, self.in_snapshot) = (true, false),
            Ok(FilterLine::Hello(other)) => {
                self.synchronized = false;
                self.refuse(FilterRefusal::Version(other));
            }
            // The rest of a stream of a previous agent.
            _ if !self.synchronized => {}
            Ok(line) => self.take(line),
            Err(error) => self.reset(error),
        });
        self.reader = reader;
    }

    /// Returns all rules for the switch, if they changed since the last call.
    pub fn poll_rules(&mut self) -> Option<Vec<Rule>> {
        if !self.whole || !core::mem::take(&mut self.changed) {
            return None;
        }
        let mut told: Vec<&MirroredFilter> =
            self.told.values().filter(|told| !self.is_full(told.rule.device)).collect();
        // Within a priority, the kernel tries the filters in the order of their masks' creation.
        told.sort_unstable_by_key(|told| told.came);
        let mut rules: Vec<Rule> = Vec::new();
        // The switch accepts one rule per match and priority.
        let mut there: BTreeMap<(Device, u32, u16, Match), usize> = BTreeMap::new();
        for MirroredFilter { rule, .. } in told {
            let of = (rule.device, rule.chain, rule.priority, rule.matching);
            match there.get(&of) {
                // Filters that the kernel distinguishes may have equal matches here. If one is left to the kernel, all
                // are.
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

    /// Returns whether a device exceeds the limit, or did before the current snapshot.
    fn is_full(&self, device: Device) -> bool {
        self.full.contains(&device) || self.was_full.contains(&device)
    }

    /// Reports the use of rules since the last call to the agent.
    pub fn report(&mut self, now: Instant, reports: &[RuleReport]) {
        for report in reports {
            let place = RuleId::from_rule(&report.rule);
            let Some(told) = place.and_then(|place| self.told.get_mut(&place)) else { continue };
            let counters = report.counters;
            let idle = counters.age(now).map(|age| age.as_millis() as u64);
            let used = RuleUse { packets: counters.packets, bytes: counters.bytes, idle };
            // The idle time alone changes constantly and is not worth a report.
            if (used.packets, used.bytes) != (told.reported.packets, told.reported.bytes) {
                told.reported = used;
                self.counts.reports += 1;
                self.used.extend(place.map(|place| (place, used)));
            }
        }
    }

    /// Returns the next bytes for the agent.
    pub fn poll_transmit(&mut self) -> Option<Vec<u8>> {
        let line = if core::mem::take(&mut self.ask) {
            FilterLine::Ask(VERSION)
        } else if self.synchronized {
            let (place, used) = self.used.pop_first()?;
            FilterLine::Used(place, used)
        } else {
            return None;
        };
        Some(format!("{line}\n").into_bytes())
    }

    /// Returns the next refusal.
    pub fn poll_refusal(&mut self) -> Option<FilterRefusal> {
        self.refusals.pop_front()
    }

    /// Returns the counters.
    pub fn counters(&self) -> FilterMirrorCounters {
        self.counts
    }

    fn take(&mut self, line: FilterLine) {
        match line {
            FilterLine::Begins => {
                self.snapshot += 1;
                self.in_snapshot = true;
                // Until the snapshot is complete, it is unknown whether the filters fit now.
                self.was_full.append(&mut self.full);
            }
            FilterLine::Ends if core::mem::take(&mut self.in_snapshot) => {
                self.counts.snapshots += 1;
                self.changed |=
                    !core::mem::replace(&mut self.whole, true) | !core::mem::take(&mut self.was_full).is_empty();
                let now = self.snapshot;
                self.remove(|_, told| told.snapshot != now);
            }
            // The snapshot began before a hello; the hello is followed by another snapshot.
            FilterLine::Ends => {}
            FilterLine::There(rule) => match rule.check() {
                Ok(()) => self.put(Rule { matching: without_empty_masks(rule.matching), ..*rule }),
                Err(error) => self.reset(LineError(error.to_string())),
            },
            FilterLine::Gone(selection) => {
                self.remove(|place, _| selection.includes(place.device, place.chain, place.priority, place.handle));
                // The deleted filter may be one that exceeded the limit and is missing here.
                self.ask |= self.full.contains(&selection.device);
            }
            FilterLine::Refused(place, why) => {
                self.counts.filters_refused += 1;
                self.refuse(FilterRefusal::Filter(place, why));
            }
            FilterLine::Hello(_) | FilterLine::Ask(_) | FilterLine::Used(..) => {
                self.reset(LineError("only the mirror sends it".into()))
            }
        }
    }

    fn put(&mut self, rule: Rule) {
        let Some(place) = RuleId::from_rule(&rule) else { return };
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
            // One refusal per device is enough, however many filters are missing.
            if self.full.insert(place.device) {
                self.changed = true;
                self.refuse(FilterRefusal::TooMany(place.device, self.most));
            }
            return;
        }
        self.came += 1;
        self.counts.filters_added += 1;
        self.changed = true;
        let told = MirroredFilter { rule, came: self.came, snapshot: self.snapshot, reported: RuleUse::default() };
        self.told.insert(place, told);
    }

    fn remove(&mut self, is_meant: impl Fn(&RuleId, &MirroredFilter) -> bool) {
        let gone = self.told.extract_if(.., |place, told| is_meant(place, told));
        let used = &mut self.used;
        let count = gone.map(|(place, _)| used.remove(&place)).count() as u64;
        self.counts.filters_deleted += count;
        self.changed |= count > 0;
        // All filters may fit now.
        self.ask |= count > 0 && !self.full.is_empty();
    }

    /// Handles a malformed line: the agent has to start again.
    fn reset(&mut self, error: LineError) {
        (self.synchronized, self.ask) = (false, true);
        self.counts.bad_lines += 1;
        self.refuse(FilterRefusal::Line(error));
    }

    fn refuse(&mut self, refusal: FilterRefusal) {
        if self.refusals.len() >= MAX_REFUSALS {
            self.refusals.pop_front();
        }
        self.refusals.push_back(refusal);
    }
}

/// Returns the match without masks that have no effect, because the switch treats such matches as equal.
fn without_empty_masks(matching: Match) -> Match {
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

/// Default limit of filters.
const DEFAULT_LIMIT: usize = 65_536;
/// Maximum number of unread refusals.
const MAX_REFUSALS: usize = 1024;
