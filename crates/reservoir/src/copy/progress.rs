//! Progress of a copy: counters that streams update and any task may read.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// The progress of a copy.
///
/// ```
/// use offload_reservoir::copy::CopyProgress;
///
/// let progress = CopyProgress::default();
/// assert_eq!((progress.bytes(), progress.all_bytes(), progress.file()), (0, 0, String::new()));
/// ```
#[derive(Debug, Default)]
pub struct CopyProgress {
    all_bytes: AtomicU64,
    all_files: AtomicU64,
    bytes: AtomicU64,
    files: AtomicU64,
    skipped: AtomicU64,
    streams: Mutex<Vec<u64>>,
    file: Mutex<String>,
}

impl CopyProgress {
    /// Returns the number of bytes copied.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes present already.
    pub fn skipped(&self) -> u64 {
        self.skipped.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes of all files.
    pub fn all_bytes(&self) -> u64 {
        self.all_bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of files that are done or have failed.
    pub fn files(&self) -> u64 {
        self.files.load(Ordering::Relaxed)
    }

    /// Returns the number of files.
    pub fn all_files(&self) -> u64 {
        self.all_files.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes copied by each stream.
    pub fn streams(&self) -> Vec<u64> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the name of the file started last.
    pub fn file(&self) -> String {
        self.file.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn begin(&self, files: u64, bytes: u64, streams: usize) {
        self.all_files.fetch_add(files, Ordering::Relaxed);
        self.all_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).resize(streams, 0);
    }

    pub(super) fn file_begins(&self, name: &str) {
        *self.file.lock().unwrap_or_else(PoisonError::into_inner) = name.into();
    }

    pub(super) fn file_ends(&self) {
        self.files.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn moved(&self, stream: usize, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        if let Some(of) = self.streams.lock().unwrap_or_else(PoisonError::into_inner).get_mut(stream) {
            *of += bytes as u64;
        }
    }

    pub(super) fn skip(&self, bytes: u64) {
        self.skipped.fetch_add(bytes, Ordering::Relaxed);
    }
}
