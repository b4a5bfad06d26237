//! Tasks that wait for an event of an endpoint or of a connection.
//!
//! Invariant: an entry lives no longer than the future that waits. The event removes the entry, or the drop of the
//! future's [`Waiter`] does.

use super::EndpointCore;
use crate::endpoint::EndpointShared;
use core::task::{Context, Poll, Waker};
use noq_proto::Dir;
use offload_base::{HasWakeList, WaitList};
use std::sync::Arc;

/// An event of a connection, for which a task waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WakeReason {
    /// The handshake is done, or the connection ended.
    Stage,
    /// A path was opened or abandoned.
    Path,
    /// The peer opened a stream.
    Accept(Dir),
    /// The peer allows one more stream.
    Open(Dir),
    /// A datagram arrived.
    Datagram,
    /// There is room for a datagram.
    DatagramRoom,
}

impl WakeReason {
    /// Number of event kinds.
    pub(super) const COUNT: usize = 8;

    /// Returns the index of the event's list.
    pub(super) fn index(self) -> usize {
        match self {
            WakeReason::Stage => 0,
            WakeReason::Path => 1,
            WakeReason::Accept(Dir::Bi) => 2,
            WakeReason::Accept(Dir::Uni) => 3,
            WakeReason::Open(Dir::Bi) => 4,
            WakeReason::Open(Dir::Uni) => 5,
            WakeReason::Datagram => 6,
            WakeReason::DatagramRoom => 7,
        }
    }
}

/// The event for which a task waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitFor {
    /// The endpoint has a new connection.
    Accept,
    /// A client waits for a decision.
    Incoming,
    /// A connection of the endpoint is drained.
    Drained,
    /// An event of the connection at this place, with this number.
    Connection(usize, u64, WakeReason),
}

impl EndpointCore {
    /// Wakes a task after another task replaced its waker. The old waker is dropped after the lock, because the waker may
    /// hold the last reference to a task with futures that take the lock when dropped.
    pub(crate) fn wake_replaced(&mut self, replaced: Option<Waker>, waker: &Waker) {
        self.wake_list().add(replaced.filter(|old| !old.will_wake(waker)));
    }

    fn wait_list(&mut self, event: WaitFor) -> Option<&mut WaitList> {
        match event {
            WaitFor::Accept => Some(&mut self.waiting.accept),
            WaitFor::Incoming => Some(&mut self.waiting.incoming),
            WaitFor::Drained => Some(&mut self.waiting.drained),
            WaitFor::Connection(at, id, awaited) => Some(self.get(at, id)?.waiting.list(awaited)),
        }
    }
}

/// A future's entry in a list of waiting tasks. Dropping the waiter removes the entry.
pub(crate) struct Waiter {
    shared: Arc<EndpointShared>,
    event: WaitFor,
    number: Option<u64>,
}

impl Waiter {
    pub(crate) fn new(shared: Arc<EndpointShared>, event: WaitFor) -> Waiter {
        Waiter { shared, event, number: None }
    }

    /// Returns the event for which the task waits.
    pub(crate) fn event(&self) -> WaitFor {
        self.event
    }

    /// Registers the task, so that the event wakes it.
    pub(crate) fn wait<T>(&mut self, core: &mut EndpointCore, cx: &Context<'_>) -> Poll<T> {
        if let Some(list) = core.wait_list(self.event) {
            let replaced = list.register(&mut self.number, cx.waker());
            core.wake_replaced(replaced, cx.waker());
        }
        Poll::Pending
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let mut core = self.shared.lock();
        let removed = core.wait_list(self.event).and_then(|list| list.remove(number));
        // A waker may hold the last reference to a task with futures that take the lock when dropped.
        drop(core);
        drop(removed);
    }
}
