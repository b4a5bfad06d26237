//! Work on namespaces that may outlive its controller.
//!
//! A write that waits for its device cannot be called back. A host that has lost its connection sends its commands
//! again, and others after them: nothing of the old ones may be carried out after that. So a host gets its next
//! controller when the work of the last is done.
//!
//! That is so once the target knows that the old controller is gone: by its connections, or when the keep-alive expires.
//! A host may well have two controllers at a time, so one that still stands does not keep it from another; if its end
//! was lost on the way, its commands and those sent again may be carried out in any order until it is noticed.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What the I/O queues of a controller have under way.
#[derive(Debug, Default)]
pub(super) struct Work {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Nothing more begins.
    ended: bool,
    running: usize,
}

/// One piece of work, under way until this is dropped.
#[derive(Debug)]
pub(super) struct Running(Arc<Work>);

impl Work {
    /// `None`: the controller is gone, and nothing is to be done for it any more.
    pub(super) fn begin(self: &Arc<Work>) -> Option<Running> {
        let mut state = self.state();
        if state.ended {
            return None;
        }
        state.running += 1;
        Some(Running(self.clone()))
    }

    /// Has nothing more begin.
    pub(super) fn end(&self) {
        self.state().ended = true;
    }

    pub(super) fn is_idle(&self) -> bool {
        self.state().running == 0
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.state().running -= 1;
    }
}
