//! The rule table: tuple space search. Rules with the same mask share a hash table. The tables are searched in the
//! order of their best priority, until no better rule can follow.
//!
//! Invariant: each rule is in the table of its device, chain and mask exactly once; [`RuleTable::find`] returns the same
//! rule as a search over all rules ([`RuleTable::find_by_asking_all`]).
//!
//! Within a priority, the rule with the older mask wins; within a mask, where port ranges may overlap, the older rule
//! wins.

use crate::key::{MatchKey, MatchMask, PortRanges};
use crate::police::TokenBucket;
use crate::port::Device;
use crate::rule::{Change, Rule, RuleError, Selection};
use core::time::Duration;
use offload_base::{Instant, QuickHash};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The reasons for which rules were not changed.
///
/// See [`Switch::change`](crate::Switch::change) for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// The rule is invalid.
    #[error(transparent)]
    Rule(#[from] RuleError),
    /// A rule with this match at this place, or with this handle, exists.
    #[error("there is such a rule at this chain and priority: replace it, or delete it first")]
    Exists,
    /// There is no rule to delete.
    #[error("there is no such rule: nothing was deleted")]
    Missing,
    /// The table is full.
    #[error("the table is full: its frames go by the representor; delete rules, or configure more room")]
    Full,
    /// The switch is in legacy mode and has no rules.
    #[error("the switch is in legacy mode, which has no rules: set switchdev mode first")]
    Legacy,
}

/// The counters of a rule.
///
/// See [`Switch::rules`](crate::Switch::rules) for an example.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleCounters {
    /// Frames matched.
    pub packets: u64,
    /// Bytes of these frames, with Ethernet headers.
    pub bytes: u64,
    /// Time of the last match.
    pub last_used: Option<Instant>,
}

impl RuleCounters {
    /// Returns the time since the last match; `None` if the rule never matched.
    ///
    /// ```
    /// use offload_base::Instant;
    ///
    /// let counters = nic_switch::RuleCounters { last_used: Some(Instant::from_nanos(10)), ..Default::default() };
    /// assert_eq!(counters.age(Instant::from_nanos(15)).map(|age| age.as_nanos()), Some(5));
    /// ```
    pub fn age(&self, now: Instant) -> Option<Duration> {
        self.last_used.map(|last| now - last)
    }
}

/// An installed rule.
#[derive(Clone, Debug)]
pub(crate) struct InstalledRule {
    pub(crate) rule: Arc<Rule>,
    pub(crate) handle: u32,
    pub(crate) counters: RuleCounters,
    /// One bucket for each police action, in order.
    pub(crate) buckets: Vec<TokenBucket>,
    /// Time of the last sample that went to the representor, or of the first match.
    sampled: Option<Instant>,
    key: MatchKey,
    mask: MatchMask,
    ranges: PortRanges,
    /// Sequence number of the installation.
    came: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct RuleTable {
    capacity: usize,
    rules: Vec<Option<InstalledRule>>,
    free: Vec<usize>,
    by_place: BTreeMap<(Device, u32, u16, u32), usize>,
    chains: HashMap<(Device, u32), RuleChain, QuickHash>,
    /// Number of installations so far.
    came: u64,
}

#[derive(Clone, Debug, Default)]
struct RuleChain {
    /// Tables in the order of their best priority.
    tables: Vec<MaskTable>,
    /// For each mask of a priority: the sequence number of its first rule, and the number of rules.
    ranks: HashMap<(u16, MatchMask), (u64, usize), QuickHash>,
}

#[derive(Clone, Debug)]
struct MaskTable {
    mask: MatchMask,
    entries: HashMap<MatchKey, Vec<RuleEntry>, QuickHash>,
    /// Number of rules by priority.
    priorities: BTreeMap<u16, usize>,
}

/// A rule in a hash table. The derived order is the match order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct RuleEntry {
    priority: u16,
    rank: u64,
    came: u64,
    slot: usize,
}

impl MaskTable {
    fn best(&self) -> u16 {
        self.priorities.first_key_value().map_or(u16::MAX, |(priority, _)| *priority)
    }
}

impl RuleTable {
    pub(crate) fn new(capacity: usize) -> RuleTable {
        RuleTable {
            capacity,
            rules: Vec::new(),
            free: Vec::new(),
            by_place: BTreeMap::new(),
            chains: HashMap::default(),
            came: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_place.len()
    }

    /// Returns all rules by device, chain, priority and handle.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &InstalledRule> {
        self.by_place.values().filter_map(|slot| self.rules[*slot].as_ref())
    }

    /// Applies one change, or fails without an effect.
    pub(crate) fn change(&mut self, change: &Change) -> Result<(), ChangeError> {
        match change {
            Change::Add(rule) => self.add(rule, false),
            Change::Replace(rule) => self.add(rule, true),
            Change::Delete(selection) => self.delete(selection),
        }
    }

    /// Finds the rule for a frame with this key.
    pub(crate) fn find(&self, device: Device, chain: u32, key: &MatchKey) -> Option<usize> {
        let mut best: Option<RuleEntry> = None;
        for table in &self.chains.get(&(device, chain))?.tables {
            // Tables are sorted by best priority. An equal priority must still be searched, because the rank decides.
            if best.is_some_and(|best| best.priority < table.best()) {
                break;
            }
            let Some(entries) = table.entries.get(&key.masked(&table.mask)) else { continue };
            let found =
                entries.iter().find(|entry| self.installed(entry.slot).is_some_and(|rule| key.is_within(&rule.ranges)));
            best = match (best, found) {
                (Some(best), Some(found)) => Some(best.min(*found)),
                (best, found) => best.or(found.copied()),
            };
        }
        best.map(|entry| entry.slot)
    }

    /// Finds the same rule by linear search: an oracle for tests.
    #[cfg(test)]
    pub(crate) fn find_by_asking_all(&self, device: Device, chain: u32, key: &MatchKey) -> Option<usize> {
        let of_chain = |rule: &InstalledRule| rule.rule.device == device && rule.rule.chain == chain;
        let mut there: Vec<&InstalledRule> = self.iter().filter(|rule| of_chain(rule)).collect();
        let ranks = &self.chains.get(&(device, chain))?.ranks;
        there.sort_by_key(|rule| {
            let rank = ranks.get(&(rule.rule.priority, rule.mask)).map(|(rank, _)| *rank);
            (rule.rule.priority, rank, rule.came)
        });
        let rule = there.into_iter().find(|rule| key.masked(&rule.mask) == rule.key && key.is_within(&rule.ranges))?;
        self.by_place.get(&(device, chain, rule.rule.priority, rule.handle)).copied()
    }

    pub(crate) fn installed(&self, slot: usize) -> Option<&InstalledRule> {
        self.rules.get(slot)?.as_ref()
    }

    pub(crate) fn installed_mut(&mut self, slot: usize) -> Option<&mut InstalledRule> {
        self.rules.get_mut(slot)?.as_mut()
    }

    /// Copies counters from `before` for rules with the same place and match.
    pub(crate) fn inherit(&mut self, before: &RuleTable) {
        for old in before.iter() {
            let same = self.twin(&old.rule, &old.key, &old.mask, &old.ranges);
            if let Some(new) = same.and_then(|slot| self.rules[slot].as_mut()) {
                new.inherit(old);
            }
        }
    }

    fn add(&mut self, rule: &Rule, replaces: bool) -> Result<(), ChangeError> {
        rule.check()?;
        let (key, mask, ranges) = MatchKey::from_rule(&rule.matching);
        let (device, chain, priority) = (rule.device, rule.chain, rule.priority);
        let named = rule.handle.and_then(|handle| self.by_place.get(&(device, chain, priority, handle)).copied());
        let twin = self.twin(rule, &key, &mask, &ranges);
        let replaced = match (replaces, rule.handle, named, twin) {
            (false, _, None, None) => None,
            (false, ..) => return Err(ChangeError::Exists),
            // A rule with this match exists under another handle, and would be duplicated.
            (true, Some(_), named, twin) if twin.is_some() && twin != named => return Err(ChangeError::Exists),
            (true, Some(_), named, _) => named,
            (true, None, _, twin) => twin,
        };
        // A replacement needs no additional space.
        if replaced.is_none() && self.len() == self.capacity {
            return Err(ChangeError::Full);
        }
        let old = replaced.and_then(|slot| self.installed(slot)).cloned();
        let handle = old.as_ref().map(|old| old.handle).or(rule.handle);
        let handle = handle.unwrap_or_else(|| self.free_handle(device, chain, priority));
        // A replacement keeps the position of the old rule.
        let came = old.as_ref().map_or(self.came, |old| old.came);
        let now = self.came;
        self.came += 1;
        let buckets = rule.actions.iter().filter_map(TokenBucket::from_action).collect();
        let counters = RuleCounters::default();
        let slot = self.free.pop().unwrap_or_else(|| {
            self.rules.push(None);
            self.rules.len() - 1
        });
        // Insert before remove: a mask that both rules have keeps its rank.
        let chains = self.chains.entry((device, chain)).or_default();
        chains.insert(now, RuleEntry { priority, rank: now, came, slot }, mask, key);
        let rule = Arc::new(rule.clone());
        let mut new = InstalledRule { rule, handle, counters, buckets, sampled: None, key, mask, ranges, came };
        if let Some(old) = &old {
            new.inherit(old);
        }
        if let (Some(old), Some(at)) = (old, replaced) {
            self.unlink(at, &old);
        }
        self.rules[slot] = Some(new);
        self.by_place.insert((device, chain, priority, handle), slot);
        Ok(())
    }

    /// Returns the rule at the place of `rule` with the same match.
    fn twin(&self, rule: &Rule, key: &MatchKey, mask: &MatchMask, ranges: &PortRanges) -> Option<usize> {
        let tables = &self.chains.get(&(rule.device, rule.chain))?.tables;
        let entries = tables.iter().find(|table| table.mask == *mask)?.entries.get(key)?;
        let is_twin = |entry: &&RuleEntry| {
            entry.priority == rule.priority && self.installed(entry.slot).is_some_and(|other| other.ranges == *ranges)
        };
        entries.iter().find(is_twin).map(|entry| entry.slot)
    }

    fn delete(&mut self, selection: &Selection) -> Result<(), ChangeError> {
        // Rules are sorted by device, so the selection lies in one range.
        let first = (selection.device, 0, 0, 0);
        let of_device = self.by_place.range(first..).take_while(|((device, ..), _)| *device == selection.device);
        let is_meant = |place: &(Device, u32, u16, u32)| selection.includes(place.0, place.1, place.2, place.3);
        // Collected first, because the removal changes the map.
        let meant: Vec<_> =
            of_device.filter(|(place, _)| is_meant(place)).map(|(place, slot)| (*place, *slot)).collect();
        // As with tc, deleting an empty chain succeeds, but a named rule must exist.
        if meant.is_empty() && (selection.priority.is_some() || selection.handle.is_some()) {
            return Err(ChangeError::Missing);
        }
        for (place, slot) in meant {
            self.by_place.remove(&place);
            if let Some(old) = self.rules[slot].take() {
                self.unlink(slot, &old);
            }
        }
        Ok(())
    }

    fn unlink(&mut self, slot: usize, old: &InstalledRule) {
        let place = (old.rule.device, old.rule.chain);
        if let Some(chain) = self.chains.get_mut(&place) {
            chain.remove(old.rule.priority, &old.mask, &old.key, slot);
            if chain.tables.is_empty() {
                self.chains.remove(&place);
            }
        }
        self.rules[slot] = None;
        self.free.push(slot);
    }

    /// Returns a free handle of this chain and priority.
    fn free_handle(&self, device: Device, chain: u32, priority: u16) -> u32 {
        let first = (device, chain, priority, 0);
        let last = (device, chain, priority, u32::MAX);
        // Chosen handles are consecutive, so the one after the greatest is free, unless a rule has the maximum.
        let greatest = self.by_place.range(first..=last).next_back().map_or(0, |((.., handle), _)| *handle);
        greatest.checked_add(1).unwrap_or_else(|| {
            let taken = self.by_place.range(first..=last).map(|((.., handle), _)| *handle);
            (1..).zip(taken).find(|(free, taken)| free != taken).map_or(1, |(free, _)| free)
        })
    }
}

impl InstalledRule {
    /// Tests whether this frame is a sample that shows the rule's use: the first frame `every` after the last sample or
    /// the first match.
    pub(crate) fn is_sample(&mut self, now: Instant, every: Duration) -> bool {
        let due = self.sampled.is_some_and(|last| now - last >= every);
        if due || self.sampled.is_none() {
            self.sampled = Some(now);
        }
        due
    }

    fn inherit(&mut self, old: &InstalledRule) {
        (self.counters, self.sampled) = (old.counters, old.sampled);
        // Only equal limits keep their tokens: with other limits the fill level has another meaning.
        if self.buckets.iter().map(TokenBucket::police).eq(old.buckets.iter().map(TokenBucket::police)) {
            self.buckets.clone_from(&old.buckets);
        }
    }
}

impl RuleChain {
    /// Inserts an entry. A new mask gets the rank `now`.
    fn insert(&mut self, now: u64, entry: RuleEntry, mask: MatchMask, key: MatchKey) {
        let rank = self.ranks.entry((entry.priority, mask)).or_insert((now, 0));
        rank.1 += 1;
        let entry = RuleEntry { rank: rank.0, ..entry };
        let at = self.tables.iter().position(|table| table.mask == mask).unwrap_or_else(|| {
            self.tables.push(MaskTable { mask, entries: HashMap::default(), priorities: BTreeMap::new() });
            self.tables.len() - 1
        });
        let table = &mut self.tables[at];
        *table.priorities.entry(entry.priority).or_default() += 1;
        let entries = table.entries.entry(key).or_default();
        // Kept sorted, so that the first match of a bucket is the best one.
        entries.insert(entries.partition_point(|other| *other < entry), entry);
        // A lookup stops at the first table without a better priority.
        self.tables.sort_by_key(MaskTable::best);
    }

    fn remove(&mut self, priority: u16, mask: &MatchMask, key: &MatchKey, slot: usize) {
        if let Some(rank) = self.ranks.get_mut(&(priority, *mask)) {
            rank.1 -= 1;
            // A forgotten rank lets a later rule of this priority and mask rank by its own time.
            if rank.1 == 0 {
                self.ranks.remove(&(priority, *mask));
            }
        }
        let Some(at) = self.tables.iter().position(|table| table.mask == *mask) else { return };
        let table = &mut self.tables[at];
        if let Some(entries) = table.entries.get_mut(key) {
            entries.retain(|entry| entry.slot != slot);
            if entries.is_empty() {
                table.entries.remove(key);
            }
        }
        if let Some(count) = table.priorities.get_mut(&priority) {
            *count -= 1;
            if *count == 0 {
                table.priorities.remove(&priority);
            }
        }
        // Each table costs every lookup one probe, so empty tables are removed.
        if table.priorities.is_empty() {
            self.tables.remove(at);
        }
        self.tables.sort_by_key(MaskTable::best);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arbitrary;
    use crate::words::RuleFile;
    use offload_formats::Headers;
    use proptest::prelude::*;

    fn table(text: &str) -> RuleTable {
        let mut table = RuleTable::new(100);
        for change in RuleFile::parse("test", text).unwrap().changes {
            table.change(&change).unwrap();
        }
        table
    }

    fn handle(table: &RuleTable, frame: &[u8]) -> Option<u32> {
        let key = MatchKey::from_frame(frame, &Headers::parse(frame), None);
        let device = "p0".parse().unwrap();
        assert_eq!(table.find(device, 0, &key), table.find_by_asking_all(device, 0, &key));
        table.find(device, 0, &key).and_then(|slot| table.installed(slot)).map(|rule| rule.handle)
    }

    proptest! {
        #[test]
        fn lookup_finds_the_same_rule_as_a_full_search(
            changes in prop::collection::vec(arbitrary::change(), 0..60),
            frames in prop::collection::vec(arbitrary::frame(), 1..12),
        ) {
            let mut table = RuleTable::new(40);
            for change in &changes {
                let before = table.len();
                // A failed change has no effect, and a successful one changes the count as its kind demands.
                let made = table.change(change);
                match (change, made) {
                    (_, Err(_)) => prop_assert_eq!(table.len(), before),
                    (Change::Add(_), Ok(())) => prop_assert_eq!(table.len(), before + 1),
                    (Change::Replace(_), Ok(())) => prop_assert!((before..=before + 1).contains(&table.len())),
                    (Change::Delete(_), Ok(())) => prop_assert!(table.len() <= before),
                }
            }
            prop_assert_eq!(table.iter().count(), table.rules.iter().flatten().count());
            // Chains without rules must be removed.
            let places: std::collections::HashSet<(Device, u32)> =
                table.iter().map(|rule| (rule.rule.device, rule.rule.chain)).collect();
            prop_assert_eq!(places.len(), table.chains.len());
            // Both searches must find the same rule in every chain.
            for frame in &frames {
                let key = MatchKey::from_frame(frame, &Headers::parse(frame), None);
                for (device, chain) in &places {
                    prop_assert_eq!(table.find(*device, *chain, &key), table.find_by_asking_all(*device, *chain, &key));
                }
            }
            // Deleting the rules one by one must free all entries.
            for place in table.by_place.keys().copied().collect::<Vec<_>>() {
                let one = Selection { device: place.0, chain: place.1, priority: Some(place.2), handle: Some(place.3) };
                prop_assert_eq!(table.change(&Change::Delete(one)), Ok(()));
            }
            prop_assert!(table.chains.is_empty() && table.free.len() == table.rules.len());
        }
    }

    /// Two rules with one mask, and a rule with another mask installed between them.
    const THREE: &str =
        "tc filter add dev p0 ingress protocol all prio 5 handle 1 flower dst_mac 2:0:0:0:0:1 action drop
        tc filter add dev p0 ingress protocol all prio 5 handle 2 flower src_mac 2:0:0:0:0:9 action drop
        tc filter add dev p0 ingress protocol all prio 5 handle 3 flower dst_mac 2:0:0:0:0:3 action drop";
    const FRAME: [u8; 14] = [2, 0, 0, 0, 0, 3, 2, 0, 0, 0, 0, 9, 8, 0];

    #[test]
    fn of_one_priority_the_mask_that_was_there_first_counts() {
        let mut table = table(THREE);
        assert_eq!(handle(&table, &FRAME), Some(3), "its mask came with rule 1");
        let delete = |handle| {
            let text = format!("tc filter del dev p0 ingress prio 5 handle {handle}");
            RuleFile::parse("test", &text).unwrap().changes.remove(0)
        };
        table.change(&delete(1)).unwrap();
        assert_eq!(handle(&table, &FRAME), Some(3), "the mask still exists");
        table.change(&delete(3)).unwrap();
        let add = "tc filter add dev p0 ingress protocol all prio 5 handle 3 flower dst_mac 2:0:0:0:0:3 action drop";
        table.change(&RuleFile::parse("test", add).unwrap().changes[0]).unwrap();
        assert_eq!(handle(&table, &FRAME), Some(2), "the mask is new");
        assert_eq!(table.change(&delete(9)), Err(ChangeError::Missing));
    }

    #[test]
    fn a_rule_is_there_once_and_a_full_table_refuses() {
        let mut table = table(THREE);
        let change = |text: &str| RuleFile::parse("test", text).unwrap().changes.remove(0);
        let twin = "dev p0 ingress protocol all prio 5 flower src_mac 2:0:0:0:0:9 action pass";
        assert_eq!(table.change(&change(&format!("tc filter add {twin}"))), Err(ChangeError::Exists));
        assert_eq!(table.change(&change(&format!("tc filter replace {twin}"))), Ok(()));
        assert_eq!(table.len(), 3);
        let other =
            "tc filter replace dev p0 ingress protocol all prio 5 handle 1 flower src_mac 2:0:0:0:0:9 action pass";
        assert_eq!(table.change(&change(other)), Err(ChangeError::Exists), "rule 2 has this match");
        table.capacity = 3;
        let fourth = "tc filter add dev p0 ingress protocol all prio 6 flower action pass";
        assert_eq!(table.change(&change(fourth)), Err(ChangeError::Full));
        assert_eq!(
            table.change(&change(&format!("tc filter replace {twin}"))),
            Ok(()),
            "the number of rules stays the same"
        );
    }
}
