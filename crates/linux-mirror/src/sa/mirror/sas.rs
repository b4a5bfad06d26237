//! Mirrored SAs: the kernel's SAs, and the installed ones.
//!
//! Invariants: an SA that could not be added is not installed in part. If an SA is added again, its sequence numbers
//! continue.

use super::ReplayTarget;
use super::log::SaMirrorRefusal;
use super::numbers::LastNumbers;
use crate::sa::change::{KernelSaId, KernelSaUse, MirroredSa, UnsupportedSa};
use core::net::IpAddr;
use core::time::Duration;
use ipsec::{Keying, KeyingError, SaEvent, SaId};
use offload_api::ipsec::Limits;
use offload_api::{Direction, Lifetime, OffloadKind, SaParams};
use offload_base::Instant;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug)]
pub(super) struct MirroredSas {
    local: Vec<IpAddr>,
    pub(super) offload: OffloadKind,
    /// SAs by destination and SPI, which identify an SA in the kernel.
    entries: BTreeMap<SaKey, SaEntry>,
    by_id: BTreeMap<SaId, SaKey>,
    numbers: LastNumbers,
    /// The reqids of SAs added or deleted since the last poll.
    changed: BTreeSet<u32>,
}

type SaKey = (IpAddr, u32);

/// An SA of the kernel, and its installed counterpart, if it was accepted.
#[derive(Debug)]
struct SaEntry {
    told: MirroredSa,
    /// Time at which its lifetime was received.
    at: Instant,
    added: Option<SaId>,
    /// Number of the last snapshot that named the SA.
    snapshot: u64,
    /// Use that the kernel knows.
    reported: KernelSaUse,
}

impl SaEntry {
    /// Returns the total use, in the kernel and here.
    fn used(&self, keying: &dyn Keying) -> KernelSaUse {
        // `told.used` is the kernel's count at the time the SA was added here; later counts contain our own reports.
        let here = self.added.and_then(|sa| keying.sa_use(sa)).unwrap_or_default();
        self.told.used + KernelSaUse { bytes: here.bytes, packets: here.packets }
    }
}

impl MirroredSas {
    /// Returns an empty set of SAs for a host with the addresses `local`.
    pub(super) fn new(local: &[IpAddr]) -> MirroredSas {
        MirroredSas {
            local: local.to_vec(),
            offload: OffloadKind::None,
            entries: BTreeMap::new(),
            by_id: BTreeMap::new(),
            numbers: LastNumbers::default(),
            changed: BTreeSet::new(),
        }
    }

    /// Adds or changes an SA of the kernel.
    pub(super) fn put(&mut self, to: &mut ReplayTarget<'_>, mut told: MirroredSa) {
        let name = (told.params.destination, told.params.spi);
        if let Some(entry) = self.entries.get_mut(&name) {
            entry.snapshot = to.snapshot;
            entry.reported = told.used;
            if is_same(&entry.told.params, &told.params) {
                return entry.update(to, told);
            }
            // The kernel may not know the use here yet.
            let used = entry.used(to.keying);
            told.used =
                KernelSaUse { bytes: used.bytes.max(told.used.bytes), packets: used.packets.max(told.used.packets) };
            self.remove(to, name);
        }
        if self.entries.len() >= to.most {
            to.log.counts.sas_refused += 1;
            return to.log.refuse(SaMirrorRefusal::TooMany(to.most));
        }
        let added = self.add(to, &told);
        self.by_id.extend(added.map(|sa| (sa, name)));
        self.changed.extend(added.map(|_| told.params.reqid));
        let (at, snapshot, reported) = (to.now, to.snapshot, told.used);
        self.entries.insert(name, SaEntry { told, at, added, snapshot, reported });
    }

    /// Handles an SA that cannot be mirrored. It may replace a mirrored one.
    pub(super) fn report_unsupported(&mut self, to: &mut ReplayTarget<'_>, name: KernelSaId, why: UnsupportedSa) {
        self.remove(to, (name.destination, name.spi));
        to.log.counts.sas_refused += 1;
        to.log.refuse(SaMirrorRefusal::Unsupported(name, why));
    }

    pub(super) fn remove(&mut self, to: &mut ReplayTarget<'_>, name: SaKey) {
        if let Some(entry) = self.entries.remove(&name) {
            self.delete(to, entry);
        }
    }

    pub(super) fn remove_all(&mut self, to: &mut ReplayTarget<'_>) {
        core::mem::take(&mut self.entries).into_values().for_each(|entry| self.delete(to, entry));
    }

    /// Removes the SAs that the snapshot did not name.
    pub(super) fn end_snapshot(&mut self, to: &mut ReplayTarget<'_>) {
        let old = self.entries.extract_if(.., |_, entry| entry.snapshot != to.snapshot).collect::<Vec<_>>();
        old.into_iter().for_each(|(_, entry)| self.delete(to, entry));
    }

    /// Returns the reqids of the installed SAs.
    pub(super) fn reqids(&self) -> BTreeSet<u32> {
        self.entries.values().filter(|entry| entry.added.is_some()).map(|entry| entry.told.params.reqid).collect()
    }

    /// Returns the number of installed SAs with a reqid.
    pub(super) fn count_with_reqid(&self, reqid: u32) -> usize {
        self.entries.values().filter(|entry| entry.added.is_some() && entry.told.params.reqid == reqid).count()
    }

    /// Takes the reqids of SAs added or deleted since the last call.
    pub(super) fn poll_changed(&mut self) -> BTreeSet<u32> {
        core::mem::take(&mut self.changed)
    }

    /// Returns the SA of an event, and whether it is dead.
    pub(super) fn named_expiry(&self, event: SaEvent) -> Option<(KernelSaId, bool)> {
        let (sa, hard) = match event {
            SaEvent::SoftLimit { sa, .. } => (sa, false),
            SaEvent::HardLimit { sa, .. } | SaEvent::SequenceExhausted { sa } => (sa, true),
            _ => return None,
        };
        Some((self.entries.get(self.by_id.get(&sa)?)?.told.name(), hard))
    }

    /// Returns the use of SAs that the kernel does not know yet.
    pub(super) fn changed_uses(&mut self, keying: &dyn Keying) -> impl Iterator<Item = (KernelSaId, KernelSaUse)> {
        self.entries.values_mut().filter(|entry| entry.added.is_some()).filter_map(move |entry| {
            let used = entry.used(keying);
            (core::mem::replace(&mut entry.reported, used) != used).then(|| (entry.told.name(), used))
        })
    }

    fn add(&self, to: &mut ReplayTarget<'_>, told: &MirroredSa) -> Option<SaId> {
        let name = told.name();
        let Some(direction) = self.direction_of(told) else {
            to.log.counts.sas_refused += 1;
            to.log.refuse(SaMirrorRefusal::Elsewhere(name));
            return None;
        };
        let params = SaParams {
            direction,
            last_number: match direction {
                Direction::Transmit => told.sent,
                Direction::Receive => told.received.max(self.numbers.last_number(&told.params)),
            },
            lifetime: remaining(told.params.lifetime, told.used),
            offload: self.offload,
            ..told.params.clone()
        };
        match to.keying.add_sa(to.now, params) {
            Ok(added) => {
                to.log.counts.sas_added += 1;
                if let Some(why) = added.refused {
                    to.log.counts.sas_in_software += 1;
                    to.log.refuse(SaMirrorRefusal::Software(name, why));
                }
                Some(added.sa)
            }
            Err(error) => {
                to.log.counts.sas_refused += 1;
                to.log.refuse(SaMirrorRefusal::Sa(name, error));
                if error == KeyingError::KeyReused {
                    // The kernel changed parameters that cannot change under one key, so the daemon has to negotiate a
                    // new key.
                    to.outbox.queue_expiry(name, false);
                }
                None
            }
        }
    }

    fn delete(&mut self, to: &mut ReplayTarget<'_>, entry: SaEntry) {
        // The kernel no longer has the SA, and would reject reports about it.
        to.outbox.forget(entry.told.name());
        let Some(sa) = entry.added else { return };
        self.by_id.remove(&sa);
        self.changed.insert(entry.told.params.reqid);
        if self.direction_of(&entry.told) == Some(Direction::Receive)
            && let Some(used) = to.keying.sa_use(sa)
        {
            self.numbers.note(&entry.told.params, used.number);
        }
        to.log.counts.sas_deleted += u64::from(to.keying.delete_sa(sa).is_ok());
    }

    fn direction_of(&self, told: &MirroredSa) -> Option<Direction> {
        let KernelSaId { source, destination, .. } = told.name();
        // An SA without a destination can only receive: a sender needs one.
        let known = told.direction.or_else(|| {
            (self.local.contains(&destination) || destination.is_unspecified()).then_some(Direction::Receive)
        });
        known.or_else(|| self.local.contains(&source).then_some(Direction::Transmit))
    }
}

impl SaEntry {
    /// Updates an unchanged SA, whose lifetime may differ.
    fn update(&mut self, to: &mut ReplayTarget<'_>, told: MirroredSa) {
        let lifetime = told.params.lifetime;
        let Some(sa) = self.added.filter(|_| differs((self.at, self.told.params.lifetime), (to.now, lifetime))) else {
            return;
        };
        (self.told.params.lifetime, self.at) = (lifetime, to.now);
        match to.keying.update_sa(to.now, sa, remaining(lifetime, self.used(to.keying))) {
            Ok(()) => to.log.counts.sas_updated += 1,
            Err(error) => to.log.refuse(SaMirrorRefusal::Update(told.name(), error)),
        }
    }
}

/// Returns whether a lifetime differs from an earlier one. Remaining time decreases by itself.
fn differs(old: (Instant, Lifetime), new: (Instant, Lifetime)) -> bool {
    let other_end = |old_time: Option<Duration>, new_time: Option<Duration>| match (old_time, new_time) {
        (Some(old_time), Some(new_time)) => {
            let (before, after) = (old.0 + old_time, new.0 + new_time);
            before.max(after) - before.min(after) > LIFETIME_TOLERANCE
        }
        (old_time, new_time) => old_time != new_time,
    };
    let other = |old: Limits, new: Limits| {
        (old.bytes, old.packets) != (new.bytes, new.packets) || other_end(old.time, new.time)
    };
    other(old.1.soft, new.1.soft) || other(old.1.hard, new.1.hard)
}

/// Returns the rest of a lifetime after `used`.
fn remaining(mut lifetime: Lifetime, used: KernelSaUse) -> Lifetime {
    for limits in [&mut lifetime.soft, &mut lifetime.hard] {
        // At least 1, so that a limit already reached still ends the SA with its next packet.
        limits.bytes = limits.bytes.map(|bytes| bytes.saturating_sub(used.bytes).max(1));
        limits.packets = limits.packets.map(|packets| packets.saturating_sub(used.packets).max(1));
    }
    lifetime
}

/// Returns whether both are the same SA, apart from the lifetime.
fn is_same(one: &SaParams, other: &SaParams) -> bool {
    let all = |sa: &SaParams| {
        let header = (sa.dont_fragment, sa.dscp, sa.dscp_out, sa.ecn);
        let name = (sa.source, sa.destination, sa.spi);
        (name, sa.mode, sa.reqid, sa.key.suite(), sa.esn, sa.replay_window, sa.encapsulation, sa.keep_alive, header)
    };
    all(one) == all(other) && one.key.is_same_as(&other.key)
}

/// Tolerance for the end of a lifetime: the kernel counts whole seconds, and messages take time.
const LIFETIME_TOLERANCE: Duration = Duration::from_secs(2);
