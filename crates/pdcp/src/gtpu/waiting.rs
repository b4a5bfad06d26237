//! Tasks that wait for an event of a bearer.

use super::core::BearerState;
use super::{Bearer, NodeShared};
use ::core::task::Waker;
use offload_base::WaitList;

/// The entry of a future in a [`WaitList`]. Dropping it removes the entry.
pub(super) struct WaitingTask<'a> {
    shared: &'a NodeShared,
    tunnel: u32,
    list: fn(&mut BearerState) -> &mut WaitList,
    key: Option<u64>,
}

impl<'a> WaitingTask<'a> {
    pub(super) fn new(bearer: &'a Bearer, list: fn(&mut BearerState) -> &mut WaitList) -> WaitingTask<'a> {
        WaitingTask { shared: &bearer.shared, tunnel: bearer.tunnel.local, list, key: None }
    }

    /// Registers the task, so that the next [`WaitList::wake`] wakes it. Returns the waker of the task that polled the
    /// future before. The caller must drop that waker without the node's lock, because it may be the last one of a task
    /// that owns bearers.
    #[must_use]
    pub(super) fn register(&mut self, list: &mut WaitList, waker: &Waker) -> Option<Waker> {
        list.register(&mut self.key, waker)
    }
}

impl Drop for WaitingTask<'_> {
    fn drop(&mut self) {
        let Some(key) = self.key else { return };
        let mut core = self.shared.lock();
        let removed = core.bearers.get_mut(&self.tunnel).and_then(|state| (self.list)(state).remove(key));
        drop(core);
        drop(removed);
    }
}
