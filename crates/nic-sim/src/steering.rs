//! Steering: from a received packet's 5-tuple to the context that works on it. Exact matches only.

use core::cell::RefCell;
use offload_api::{FlowKey, Handle};
use std::collections::HashMap;

/// The steering table. It is looked up, never walked, so its order cannot matter.
#[derive(Debug, Default)]
pub(crate) struct Steering {
    flows: HashMap<FlowKey, Handle>,
    /// What was looked up last, and found or not: packets come in trains.
    last: RefCell<Option<(FlowKey, Option<Handle>)>>,
}

impl Steering {
    /// Has packets of `flow` go to `handle` from now on.
    pub(crate) fn insert(&mut self, flow: FlowKey, handle: Handle) {
        *self.last.get_mut() = None;
        self.flows.insert(flow, handle);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    /// The context for packets of `flow`.
    pub(crate) fn find(&self, flow: &FlowKey) -> Option<Handle> {
        if let Some((last, found)) = &*self.last.borrow()
            && last == flow
        {
            return *found;
        }
        let found = self.flows.get(flow).copied();
        *self.last.borrow_mut() = Some((*flow, found));
        found
    }

    /// Forgets `flow` if it goes to `handle`: a newer context may have taken its place.
    pub(crate) fn remove(&mut self, flow: &FlowKey, handle: Handle) {
        if self.find(flow) == Some(handle) {
            *self.last.get_mut() = None;
            self.flows.remove(flow);
        }
    }

    pub(crate) fn clear(&mut self) {
        *self.last.get_mut() = None;
        self.flows.clear();
    }
}
