//! What the stack notes about each of its connections, so that no call has to look at all of them.

use crate::timers::TimerSlot;

#[derive(Debug, Default)]
pub(crate) struct Notes {
    /// It is in the queue of those that may have something to send.
    pub(super) dirty: bool,
    /// It is in the queue of those whose readiness is to be told.
    pub(super) noted: bool,
    /// The device may have something to say about it.
    pub(super) controlled: bool,
    pub(super) timer: TimerSlot,
    /// What the stack's account holds of its memory.
    pub(super) accounted: usize,
}
