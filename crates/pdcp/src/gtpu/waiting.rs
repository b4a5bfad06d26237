//! Tasks that wait for an event of a bearer.

use super::core::BearerState;
use super::{Bearer, NodeShared};
use ::core::task::Waker;
use offload_base::WakeList;
use std::collections::BTreeMap;

/// The tasks that wait for one event: one waker for each pending future, and no waker of a dropped future.
#[derive(Default)]
pub(super) struct WakerList {
    wakers: BTreeMap<u64, Waker>,
    next: u64,
}

impl WakerList {
    /// Removes all tasks and adds them to the list of tasks to wake. A task that must wait on registers again.
    pub(super) fn wake(&mut self, woken: &mut WakeList) {
        woken.add(::core::mem::take(&mut self.wakers).into_values());
    }
}

/// The registration of one future in a [`WakerList`]. Dropping it removes the waker.
pub(super) struct WaitingTask<'a> {
    shared: &'a NodeShared,
    tunnel: u32,
    list: fn(&mut BearerState) -> &mut WakerList,
    key: Option<u64>,
}

impl<'a> WaitingTask<'a> {
    pub(super) fn new(bearer: &'a Bearer, list: fn(&mut BearerState) -> &mut WakerList) -> WaitingTask<'a> {
        WaitingTask { shared: &bearer.shared, tunnel: bearer.tunnel.local, list, key: None }
    }

    /// Registers the task, so that the next [`WakerList::wake`] wakes it. Returns the waker of the task that polled the
    /// future before. The caller must drop that waker without the node's lock, because it may be the last one of a task
    /// that owns bearers.
    #[must_use]
    pub(super) fn register(&mut self, list: &mut WakerList, waker: &Waker) -> Option<Waker> {
        let key = *self.key.get_or_insert_with(|| {
            list.next += 1;
            list.next
        });
        list.wakers.insert(key, waker.clone())
    }
}

impl Drop for WaitingTask<'_> {
    fn drop(&mut self) {
        let Some(key) = self.key else { return };
        let mut core = self.shared.lock();
        let removed = core.bearers.get_mut(&self.tunnel).and_then(|state| (self.list)(state).wakers.remove(&key));
        drop(core);
        drop(removed);
    }
}
