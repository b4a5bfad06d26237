//! Pending messages for the agent.
//!
//! Invariant: at most one message per kind and SA is pending, so an agent that never reads causes no memory growth. An
//! expiry stays pending until an agent is present or the SA is gone.

use crate::sa::change::{KernelSaId, KernelSaUse, SaReport};
use crate::sa::frame::{Message, encode};
use std::collections::BTreeMap;
use zeroize::Zeroizing;

#[derive(Debug, Default)]
pub(super) struct PendingReports {
    /// Whether the agent has to start again.
    ask: bool,
    /// Latest requested sync.
    sync: Option<u32>,
    /// SAs that need a successor. `true` marks dead SAs.
    expired: BTreeMap<KernelSaId, bool>,
    used: BTreeMap<KernelSaId, KernelSaUse>,
}

impl PendingReports {
    pub(super) fn queue_snapshot_request(&mut self) {
        self.ask = true;
    }

    pub(super) fn sync(&mut self, number: u32) {
        self.sync = Some(number);
    }

    pub(super) fn queue_expiry(&mut self, name: KernelSaId, hard: bool) {
        // A hard expiry replaces a soft one, but never the reverse.
        *self.expired.entry(name).or_default() |= hard;
    }

    pub(super) fn queue_use(&mut self, name: KernelSaId, used: KernelSaUse) {
        self.used.insert(name, used);
    }

    /// Drops the messages about a deleted SA.
    pub(super) fn forget(&mut self, name: KernelSaId) {
        self.expired.remove(&name);
        self.used.remove(&name);
    }

    /// Prepares for a new stream.
    pub(super) fn begin(&mut self) {
        (self.ask, self.sync) = (true, None);
    }

    /// Returns the next message. An agent that is not `understood` gets no reports.
    pub(super) fn next(&mut self, understood: bool) -> Option<Zeroizing<Vec<u8>>> {
        // A restart precedes all other messages, because it makes the earlier ones obsolete.
        let message = if core::mem::take(&mut self.ask) {
            Message::ask()
        } else if let Some(number) = self.sync.take() {
            Message::Sync(number)
        } else if !understood {
            return None;
        } else if let Some((name, hard)) = self.expired.pop_first() {
            Message::Report(SaReport::Expired(name, hard))
        } else {
            let (name, used) = self.used.pop_first()?;
            Message::Report(SaReport::Used(name, used))
        };
        Some(encode(&message))
    }
}
