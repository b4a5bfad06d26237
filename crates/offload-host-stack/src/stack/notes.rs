//! Per-connection state of the stack, so that no call has to look at all connections.

use crate::timers::TimerSlot;

#[derive(Debug, Default)]
pub(crate) struct StackEntry {
    /// Whether the connection is in the queue of connections that may have something to send.
    pub(super) dirty: bool,
    /// Whether the connection is in the ready queue.
    pub(super) noted: bool,
    /// Whether the connection gets the device's events.
    pub(super) controlled: bool,
    pub(super) timer: TimerSlot,
    /// Memory charged to the stack's account for this connection.
    pub(super) accounted: usize,
}
