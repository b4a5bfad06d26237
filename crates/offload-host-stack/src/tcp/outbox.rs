//! What the application has said of the bytes that it queued: whether they wait for more, and whether they are the last.
//!
//! Invariant: what was pushed is pushed; once it is finishing, nothing more is queued.

#[derive(Debug)]
pub(super) struct Outbox {
    /// Everything before was flushed: short segments may leave.
    pushed: u64,
    nodelay: bool,
    /// This side is to be closed behind the last byte queued.
    finishing: bool,
    /// The next bytes wait for the rest of their unit.
    blocked: bool,
}

impl Outbox {
    pub(super) fn new(nodelay: bool) -> Outbox {
        Outbox { pushed: 0, nodelay, finishing: false, blocked: false }
    }

    /// What is queued up to `end` may leave in short segments.
    pub(super) fn push(&mut self, end: u64) {
        self.pushed = end;
    }

    pub(super) fn set_nodelay(&mut self, nodelay: bool) {
        self.nodelay = nodelay;
    }

    /// Whether a short segment that begins at `position` need not wait.
    pub(super) fn is_hurried(&self, position: u64) -> bool {
        self.nodelay || position < self.pushed
    }

    /// Nothing more comes.
    pub(super) fn finish(&mut self) {
        self.finishing = true;
    }

    pub(super) fn is_finishing(&self) -> bool {
        self.finishing
    }

    /// The position behind all that there is to send, bytes being queued up to `end`.
    pub(super) fn end(&self, end: u64) -> u64 {
        end + u64::from(self.finishing)
    }

    /// Whether the next bytes wait for the rest of their unit.
    pub(super) fn is_blocked(&self) -> bool {
        self.blocked
    }

    pub(super) fn set_blocked(&mut self, blocked: bool) {
        self.blocked = blocked;
    }
}
