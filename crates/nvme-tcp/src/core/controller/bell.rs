//! Connections that something happened to while somebody else had the turn: on a thread of the storage, or where the last
//! bytes of an answer were let go.
//!
//! Invariant: a connection that was rung for is passed on once, to the listener, or by
//! [`Target::take_wakeups`](super::Target::take_wakeups). Ringing takes no lock that a listener's caller may hold.

use super::connection::ConnectionId;
use core::fmt;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Calls connections to look again.
#[derive(Default)]
pub(super) struct Bell {
    rung: Mutex<Vec<ConnectionId>>,
    listener: OnceLock<Listener>,
}

pub(super) type Listener = Box<dyn Fn(&[ConnectionId]) + Send + Sync>;

impl Bell {
    /// Has `listener` hear of all that are rung for from now on; the first one given stays.
    pub(super) fn set_listener(&self, listener: Listener) {
        if self.listener.set(listener).is_ok()
            && let Some(listener) = self.listener.get()
        {
            listener(&self.take());
        }
    }

    pub(super) fn ring(&self, connections: &[ConnectionId]) {
        if connections.is_empty() {
            return;
        }
        match self.listener.get() {
            Some(listener) => listener(connections),
            None => self.rung.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(connections),
        }
    }

    /// Those that nobody heard of.
    pub(super) fn take(&self) -> Vec<ConnectionId> {
        core::mem::take(&mut *self.rung.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Debug for Bell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bell").finish_non_exhaustive()
    }
}
