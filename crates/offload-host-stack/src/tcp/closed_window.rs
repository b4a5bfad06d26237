//! State of a peer window that is closed, or too small to use: probes, and the time since it closed.
//!
//! Invariant: an open window leaves no state, except that a small one is to be used.

use core::time::Duration;
use offload_base::Instant;

#[derive(Debug, Default)]
pub(super) struct ClosedWindow {
    /// Consecutive probes.
    probes: u32,
    probe_owed: bool,
    use_small: bool,
    /// Time since which the window is closed while bytes wait. `None` if the window is open.
    since: Option<Instant>,
}

impl ClosedWindow {
    /// Returns the number of consecutive probes and uses of a small window.
    pub(super) fn probes(&self) -> u32 {
        self.probes
    }

    /// Ends a wait: schedules the use of a small window, or else a probe.
    pub(super) fn end_closed_wait(&mut self, small: bool) {
        if small {
            self.use_small = true;
        } else {
            self.probe_owed = true;
        }
        self.probes += 1;
    }

    /// Returns whether a probe is to be sent. An open window needs no probe.
    pub(super) fn owes_probe(&mut self, closed: bool) -> bool {
        self.probe_owed &= closed;
        self.probe_owed
    }

    /// Records that the probe was sent.
    pub(super) fn note_probed(&mut self) {
        self.probe_owed = false;
    }

    /// Returns whether a small window is to be used.
    pub(super) fn uses_small(&self) -> bool {
        self.use_small
    }

    /// Records that data were sent.
    pub(super) fn note_sent(&mut self) {
        self.use_small = false;
    }

    /// Records that the window is open.
    pub(super) fn note_open(&mut self) {
        self.probes = 0;
    }

    /// Updates the time since which the window is closed over waiting bytes.
    pub(super) fn watch(&mut self, closed: bool, now: Instant) {
        self.since = if closed { self.since.or(Some(now)) } else { None };
    }

    /// Returns how long the window has been closed. `None` for an open window.
    pub(super) fn closed_time(&self, now: Instant) -> Option<Duration> {
        self.since.map(|since| now - since)
    }

    /// Returns the time at which the window will have been closed for `most`.
    pub(super) fn patience_ends(&self, most: Option<Duration>) -> Option<Instant> {
        Some(self.since? + most?)
    }
}
