//! Mirrored policies: the kernel's policies, and the installed ones.
//!
//! The kernel distinguishes policies by more than is mirrored, so several policies may have equal selectors and
//! priorities here. They share a *slot*, and one of them is installed: an unsupported one, from which nothing passes,
//! has precedence; then the one already installed; then the one with the lowest index.
//!
//! Invariants:
//! - Packets of an unsupported policy are dropped.
//! - If there are more policies than the limit, no policy is installed and nothing passes, because a missing policy
//!   might have dropped or protected packets.

use super::ReplayTarget;
use super::log::SaMirrorRefusal;
use crate::sa::change::MirroredPolicy;
use ipsec::KeyingError;
use offload_api::{Direction, Policy, Selector};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Default)]
pub(super) struct MirroredPolicies {
    /// Policies, by the kernel's index.
    entries: BTreeMap<u32, PolicyEntry>,
    places: BTreeMap<SlotKey, PolicySlot>,
    /// Whether packets without a policy pass in the kernel, as (received, sent).
    defaults: Option<(bool, bool)>,
    /// Number of policies beyond the limit since the last snapshot began. While policies are missing, no policy is
    /// installed.
    missing: u64,
    closed: bool,
    /// Whether a snapshot was complete.
    known: bool,
    /// Whether a snapshot was requested because there may be room again.
    asked: bool,
}

#[derive(Debug)]
struct PolicyEntry {
    told: MirroredPolicy,
    /// Number of the last snapshot that named the policy.
    snapshot: u64,
}

type SlotKey = (bool, Selector, u32);

/// The policies with equal selectors and priorities, by index.
#[derive(Debug, Default)]
struct PolicySlot {
    /// Unsupported policies, from which nothing passes.
    unsupported: BTreeSet<u32>,
    others: BTreeSet<u32>,
    /// The installed policy, with its index.
    holder: Option<(u32, Policy)>,
}

impl MirroredPolicies {
    /// Adds or changes a policy of the kernel.
    pub(super) fn put(&mut self, to: &mut ReplayTarget<'_>, told: MirroredPolicy) {
        let index = told.index;
        if let Some(entry) = self.entries.get_mut(&index) {
            entry.snapshot = to.snapshot;
            if entry.told == told {
                return;
            }
            // The old policy is removed first, and no packet passes in between.
            self.remove(to, index);
        }
        if self.entries.len() >= to.most {
            to.log.counts.policies_refused += 1;
            to.log.refuse(SaMirrorRefusal::TooManyPolicies(to.most));
            self.missing += 1;
            return self.close(to);
        }
        if let Err(why) = &told.action {
            to.log.counts.policies_refused += 1;
            to.log.refuse(SaMirrorRefusal::PolicyUnsupported(index, why.clone()));
        }
        let (of, supported) = (slot_key(&told), told.action.is_ok());
        let place = self.places.entry(of).or_default();
        if supported { &mut place.others } else { &mut place.unsupported }.insert(index);
        self.entries.insert(index, PolicyEntry { told, snapshot: to.snapshot });
        self.install_first(to, of);
        if supported && !self.closed && !self.places.get(&of).is_some_and(|place| place.is_held_by(index)) {
            to.log.counts.policies_refused += 1;
            to.log.refuse(SaMirrorRefusal::Policy(index, KeyingError::Exists));
        }
    }

    pub(super) fn remove(&mut self, to: &mut ReplayTarget<'_>, index: u32) {
        if self.closed && !core::mem::replace(&mut self.asked, true) {
            // There may be room for all policies now: the deleted policy may be one that was missing here.
            to.outbox.queue_snapshot_request();
        }
        // The kernel may delete a policy that exceeded the limit here.
        let Some(entry) = self.entries.remove(&index) else { return };
        let of = slot_key(&entry.told);
        let Some(place) = self.places.get_mut(&of) else { return };
        place.unsupported.remove(&index);
        place.others.remove(&index);
        if place.is_held_by(index) {
            place.uninstall(to);
        }
        self.install_first(to, of);
    }

    pub(super) fn remove_all(&mut self, to: &mut ReplayTarget<'_>) {
        self.entries.clear();
        core::mem::take(&mut self.places).into_values().for_each(|mut place| place.uninstall(to));
        // An empty set is within any limit.
        self.missing = 0;
        self.open(to);
    }

    /// Sets the default actions for packets without a policy.
    pub(super) fn set_defaults(&mut self, to: &mut ReplayTarget<'_>, receive: bool, transmit: bool) {
        self.defaults = Some((receive, transmit));
        // Before the first snapshot is complete, policies that drop or protect may be missing.
        if !self.closed && self.known {
            self.apply_defaults(to);
        }
    }

    pub(super) fn begin_snapshot(&mut self) {
        (self.missing, self.asked) = (0, false);
    }

    /// Removes the policies that the snapshot did not name.
    pub(super) fn end_snapshot(&mut self, to: &mut ReplayTarget<'_>) {
        let stale = self.entries.iter().filter(|(_, entry)| entry.snapshot != to.snapshot);
        // The indices are collected first, because each removal changes the map.
        let stale: Vec<u32> = stale.map(|(index, _)| *index).collect();
        stale.into_iter().for_each(|index| self.remove(to, index));
        if self.missing == 0 {
            self.open(to);
        }
        if !core::mem::replace(&mut self.known, true) && !self.closed {
            self.apply_defaults(to);
        }
    }

    /// Uninstalls all policies, so that nothing passes.
    fn close(&mut self, to: &mut ReplayTarget<'_>) {
        if core::mem::replace(&mut self.closed, true) {
            return;
        }
        // The dropping defaults come first, so that no packet passes in between.
        for direction in [Direction::Receive, Direction::Transmit] {
            to.keying.set_default(direction, false);
        }
        self.places.values_mut().for_each(|place| place.uninstall(to));
    }

    /// Installs the policies again.
    fn open(&mut self, to: &mut ReplayTarget<'_>) {
        if !core::mem::replace(&mut self.closed, false) {
            return;
        }
        let all: Vec<SlotKey> = self.places.keys().copied().collect();
        all.into_iter().for_each(|of| self.install_first(to, of));
        if self.known {
            self.apply_defaults(to);
        }
    }

    fn apply_defaults(&self, to: &mut ReplayTarget<'_>) {
        if let Some((receive, transmit)) = self.defaults {
            to.keying.set_default(Direction::Receive, receive);
            to.keying.set_default(Direction::Transmit, transmit);
        }
    }

    /// Installs the policy with the highest precedence of a slot.
    fn install_first(&mut self, to: &mut ReplayTarget<'_>, of: SlotKey) {
        let Some(place) = self.places.get_mut(&of) else { return };
        // The installed policy keeps its place, so that a new one with equal rights does not interrupt traffic.
        let held = place.holder.map(|(index, _)| index).filter(|index| place.others.contains(index));
        let Some(first) = place.unsupported.first().copied().or(held).or(place.others.first().copied()) else {
            self.places.remove(&of);
            return;
        };
        let Some(entry) = self.entries.get(&first).filter(|_| !self.closed && !place.is_held_by(first)) else { return };
        place.uninstall(to);
        let policy = entry.told.policy();
        let mut added = to.keying.add_policy(policy);
        if added == Err(KeyingError::Exists) && entry.told.action.is_err() {
            // Another user has installed a policy with this selector. This policy must let nothing pass, so the other
            // one is replaced.
            let _ = to.keying.delete_policy(policy.direction, &policy.selector, policy.priority);
            added = to.keying.add_policy(policy);
        }
        place.holder = added.is_ok().then_some((first, policy));
        to.log.counts.policies_added += u64::from(added.is_ok());
    }
}

impl PolicySlot {
    fn is_held_by(&self, index: u32) -> bool {
        self.holder.is_some_and(|(holder, _)| holder == index)
    }

    fn uninstall(&mut self, to: &mut ReplayTarget<'_>) {
        if let Some((_, Policy { direction, selector, priority, .. })) = self.holder.take() {
            let _ = to.keying.delete_policy(direction, &selector, priority);
            to.log.counts.policies_deleted += 1;
        }
    }
}

fn slot_key(told: &MirroredPolicy) -> SlotKey {
    (told.direction == Direction::Receive, told.selector, told.priority)
}
