//! Syncs of a file's data.
//!
//! Invariant: syncs run one at a time, and a failed one counts against every write since the last sync that succeeded, because the system
//! reports a failed write to one caller only.

use crate::storage::Stored;
use core::sync::atomic::{AtomicU64, Ordering};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::OwnedMutexGuard;

/// Syncs of the data, numbered from 1 as they begin.
#[derive(Default)]
pub(super) struct Syncs {
    begun: AtomicU64,
    failed: AtomicU64,
    /// The number of the last sync that succeeded. The lock is held during a sync.
    done: Mutex<u64>,
    /// The turn of the work that may sync.
    turn: Arc<tokio::sync::Mutex<()>>,
}

/// The number of failed syncs of a [`Landing`](super::Landing) before a write. If that number grows before the next sync that succeeds, the
/// write is lost.
///
/// See [`Landing`](super::Landing) for an example.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SyncEpoch(u64);

impl Syncs {
    /// Returns the epoch of bytes that are written from now on.
    pub(super) fn epoch(&self) -> SyncEpoch {
        SyncEpoch(self.failed.load(Ordering::Acquire))
    }

    /// Returns the number of the first sync that covers all bytes written so far, whichever caller makes that sync.
    pub(super) fn next(&self) -> u64 {
        self.begun.load(Ordering::Acquire) + 1
    }

    /// Waits until no other work that may sync runs.
    pub(super) async fn take_turn(&self) -> OwnedMutexGuard<()> {
        self.turn.clone().lock_owned().await
    }

    /// Syncs `data`, unless a sync with the number `enough` or a later one has succeeded.
    ///
    /// # Errors
    /// If the medium fails, or has failed since `epoch`: the bytes must be written again.
    pub(super) fn sync_to(&self, data: &dyn Stored, enough: u64, epoch: SyncEpoch) -> io::Result<()> {
        // Syncs run one at a time: of two at once, the system would report a failed write to one and success to the other.
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        if self.epoch() != epoch {
            return Err(io::Error::other("the medium failed while this was written: it must be written again"));
        }
        if *done < enough {
            let number = self.begun.fetch_add(1, Ordering::AcqRel) + 1;
            if let Err(error) = data.sync() {
                self.failed.fetch_add(1, Ordering::AcqRel);
                return Err(error);
            }
            *done = number;
        }
        Ok(())
    }
}
