//! Wakeups of connections by other threads: a storage thread, or the thread that drops the last bytes of an answer.
//!
//! Invariant: each ring is delivered once, to the listener or by [`Target::take_wakeups`](super::Target::take_wakeups).
//! Ringing takes no lock that the caller of a listener may hold.

use super::connection::ConnectionId;
use core::fmt;
use std::sync::{Mutex, OnceLock, PoisonError};

/// A list of connections to wake.
#[derive(Default)]
pub(super) struct ConnectionBell {
    rung: Mutex<Vec<ConnectionId>>,
    listener: OnceLock<WakeupListener>,
}

pub(super) type WakeupListener = Box<dyn Fn(&[ConnectionId]) + Send + Sync>;

impl ConnectionBell {
    /// Delivers all rings from now on to `listener`. Only the first listener is kept.
    pub(super) fn set_listener(&self, listener: WakeupListener) {
        if self.listener.set(listener).is_ok()
            && let Some(listener) = self.listener.get()
        {
            // Rings from before have to be delivered, too.
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

    /// Takes the undelivered rings.
    pub(super) fn take(&self) -> Vec<ConnectionId> {
        core::mem::take(&mut *self.rung.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Debug for ConnectionBell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionBell").finish_non_exhaustive()
    }
}
