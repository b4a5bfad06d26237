//! The application's instructions on queued bytes: whether they may wait for more, and whether they are the last.
//!
//! Invariants: a pushed position never moves back. After `finish`, no bytes are queued.

#[derive(Debug)]
pub(super) struct SendIntent {
    /// Position up to which short segments may leave.
    pushed: u64,
    nodelay: bool,
    /// Whether this side is closed after the last queued byte.
    finishing: bool,
    /// Whether the next bytes wait for the rest of their unit.
    blocked: bool,
}

impl SendIntent {
    pub(super) fn new(nodelay: bool) -> SendIntent {
        SendIntent { pushed: 0, nodelay, finishing: false, blocked: false }
    }

    /// Lets the bytes up to `end` leave in short segments.
    pub(super) fn push(&mut self, end: u64) {
        self.pushed = end;
    }

    pub(super) fn set_nodelay(&mut self, nodelay: bool) {
        self.nodelay = nodelay;
    }

    /// Returns whether a short segment that begins at `position` may leave at once.
    pub(super) fn is_hurried(&self, position: u64) -> bool {
        self.nodelay || position < self.pushed
    }

    /// Records that no more bytes will be queued.
    pub(super) fn finish(&mut self) {
        self.finishing = true;
    }

    pub(super) fn is_finishing(&self) -> bool {
        self.finishing
    }

    /// Returns the position after everything to send, including the FIN, if bytes are queued up to `end`.
    pub(super) fn end(&self, end: u64) -> u64 {
        end + u64::from(self.finishing)
    }

    /// Returns whether the next bytes wait for the rest of their unit.
    pub(super) fn is_blocked(&self) -> bool {
        self.blocked
    }

    pub(super) fn set_blocked(&mut self, blocked: bool) {
        self.blocked = blocked;
    }
}
