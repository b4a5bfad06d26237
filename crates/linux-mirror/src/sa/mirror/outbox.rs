//! What the agent is to be told, until somebody sends it.
//!
//! Invariant: there is one message at most of each kind and SA, so an agent that talks and does not listen fills no memory. That
//! an SA has expired waits until an agent is there, or the SA is gone.

use crate::sa::change::{Report, SaName, Used};
use crate::sa::frame::{Message, encode};
use std::collections::BTreeMap;
use zeroize::Zeroizing;

#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// The agent is to begin anew.
    ask: bool,
    /// The newest number to be synced.
    sync: Option<u32>,
    /// SAs that need a successor; `true`: that are dead.
    expired: BTreeMap<SaName, bool>,
    used: BTreeMap<SaName, Used>,
}

impl Outbox {
    pub(super) fn ask(&mut self) {
        self.ask = true;
    }

    pub(super) fn sync(&mut self, number: u32) {
        self.sync = Some(number);
    }

    pub(super) fn expired(&mut self, name: SaName, hard: bool) {
        *self.expired.entry(name).or_default() |= hard;
    }

    pub(super) fn used(&mut self, name: SaName, used: Used) {
        self.used.insert(name, used);
    }

    /// The SA is gone: the kernel has none of this name.
    pub(super) fn forget(&mut self, name: SaName) {
        self.expired.remove(&name);
        self.used.remove(&name);
    }

    /// Another stream begins.
    pub(super) fn begin(&mut self) {
        (self.ask, self.sync) = (true, None);
    }

    /// The next message; an agent that is not `understood` is told nothing but to begin anew.
    pub(super) fn next(&mut self, understood: bool) -> Option<Zeroizing<Vec<u8>>> {
        let message = if core::mem::take(&mut self.ask) {
            Message::ask()
        } else if let Some(number) = self.sync.take() {
            Message::Sync(number)
        } else if !understood {
            return None;
        } else if let Some((name, hard)) = self.expired.pop_first() {
            Message::Report(Report::Expired(name, hard))
        } else {
            let (name, used) = self.used.pop_first()?;
            Message::Report(Report::Used(name, used))
        };
        Some(encode(&message))
    }
}
