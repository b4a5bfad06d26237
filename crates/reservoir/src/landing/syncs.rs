//! Syncs of a file's data.
//!
//! Invariant: syncs run one at a time. A failed sync counts against every write since the last successful one, because
//! the system reports a failed write to one caller only.

use crate::storage::StoredFile;
use core::sync::atomic::{AtomicU64, Ordering};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::OwnedMutexGuard;

/// Syncs of the data, numbered from 1 in order of their start.
#[derive(Default)]
pub(super) struct Syncs {
    begun: AtomicU64,
    failed: AtomicU64,
    /// Number of the last successful sync. Locked during a sync.
    done: Mutex<u64>,
    /// The turn of work that may sync.
    turn: Arc<tokio::sync::Mutex<()>>,
}

/// A sync epoch: the number of failed syncs of a [`LandingFile`](super::LandingFile) before a write. If the number
/// grows before the next successful sync, the write is lost.
///
/// See [`LandingFile`](super::LandingFile) for an example.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SyncEpoch(u64);

impl Syncs {
    /// Returns the epoch of bytes written from now on.
    pub(super) fn epoch(&self) -> SyncEpoch {
        SyncEpoch(self.failed.load(Ordering::Acquire))
    }

    /// Returns the number of the first sync that covers all bytes written so far, by whichever caller.
    pub(super) fn next(&self) -> u64 {
        self.begun.load(Ordering::Acquire) + 1
    }

    /// Waits until no other work that may sync is running.
    pub(super) async fn take_turn(&self) -> OwnedMutexGuard<()> {
        self.turn.clone().lock_owned().await
    }

    /// Syncs `data`, unless sync number `enough` or a later one was successful.
    ///
    /// # Errors
    /// If the medium fails, or has failed since `epoch`: the bytes must be written again.
    pub(super) fn sync_to(&self, data: &dyn StoredFile, enough: u64, epoch: SyncEpoch) -> io::Result<()> {
        // With two concurrent syncs, the system would report a failed write to one and success to the other.
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
