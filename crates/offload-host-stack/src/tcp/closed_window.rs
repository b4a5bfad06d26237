//! A peer that keeps its window closed, or offers less than is worth using: how it is asked, and since when it does.
//!
//! Invariant: nothing is remembered of a window that is open, but that a small one is to be used.

use core::time::Duration;
use offload_base::Instant;

#[derive(Debug, Default)]
pub(super) struct ClosedWindow {
    /// Probes in a row.
    probes: u32,
    probe_owed: bool,
    use_small: bool,
    /// Since when it is closed over bytes that wait.
    since: Option<Instant>,
}

impl ClosedWindow {
    /// Probes in a row, and uses of small windows.
    pub(super) fn probes(&self) -> u32 {
        self.probes
    }

    /// The wait is over: what there is of a window is used (`small`), or asked about.
    pub(super) fn act(&mut self, small: bool) {
        if small {
            self.use_small = true;
        } else {
            self.probe_owed = true;
        }
        self.probes += 1;
    }

    /// Whether a probe is to be sent, if it is `closed` still.
    pub(super) fn owes_probe(&mut self, closed: bool) -> bool {
        self.probe_owed &= closed;
        self.probe_owed
    }

    /// It was sent.
    pub(super) fn note_probed(&mut self) {
        self.probe_owed = false;
    }

    /// Whether a small window is to be used.
    pub(super) fn uses_small(&self) -> bool {
        self.use_small
    }

    /// Data were sent.
    pub(super) fn note_sent(&mut self) {
        self.use_small = false;
    }

    /// The peer offers some.
    pub(super) fn note_open(&mut self) {
        self.probes = 0;
    }

    /// Looks at the clock: it is closed over bytes that wait, or is not.
    pub(super) fn watch(&mut self, closed: bool, now: Instant) {
        self.since = if closed { self.since.or(Some(now)) } else { None };
    }

    /// For how long it is closed.
    pub(super) fn lasts(&self, now: Instant) -> Option<Duration> {
        self.since.map(|since| now - since)
    }

    /// When it will have been closed for `most`.
    pub(super) fn patience_ends(&self, most: Option<Duration>) -> Option<Instant> {
        Some(self.since? + most?)
    }
}
