//! Digests of whole files. They take as long as reading the files, so they are computed in pieces, with users taking
//! turns. A digest is cached until its file changes.
//!
//! Invariant: requests for the same digest share one computation, which each of them drives in its own turns. The
//! computation continues as long as one request waits, and ends with the last request.

use super::fair_queue::FairQueue;
use super::refusal::Refusal;
use crate::body::PIECE;
use crate::digest::{DigestHasher, HashAlgorithm, patience};
use crate::direct::aligned;
use crate::name::Name;
use crate::shell::Shell;
use crate::storage::{FileInfo, StoredFile};
use core::pin::pin;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, SystemTime};
use tokio::sync::{self, Notify};

pub(super) struct DigestCache {
    shell: Shell,
    turns: FairQueue,
    under_way: Mutex<HashMap<DigestKey, Weak<Computation>>>,
    /// Computed digests, newest last.
    known: Mutex<VecDeque<(DigestKey, Vec<u8>)>>,
}

/// The key of a digest: name and entity tag of a file version, and the algorithm.
type DigestKey = (Name, String, HashAlgorithm);

/// The computation of one digest.
struct Computation {
    /// Locked while a piece is read.
    progress: Arc<sync::Mutex<HashProgress>>,
    /// Notified after each piece.
    moved: Notify,
}

struct HashProgress {
    summer: Option<DigestHasher>,
    offset: u64,
    /// The digest. `None` until the end of the file was read.
    digest: Option<Vec<u8>>,
}

impl DigestCache {
    pub(super) fn new(shell: Shell, turns: usize) -> DigestCache {
        DigestCache { shell, turns: FairQueue::new(turns), under_way: Mutex::default(), known: Mutex::default() }
    }

    /// Returns the digest of `file`, the version of `name` described by `about`, for a request of `user`. `None` if the
    /// computation exceeds the [`patience`], or the file changes meanwhile. `began` is the wall-clock time for
    /// comparison with file times.
    pub(super) async fn get_or_compute(
        &self,
        user: &str,
        name: &Name,
        about: &FileInfo,
        file: &Arc<dyn StoredFile>,
        algorithm: HashAlgorithm,
        began: SystemTime,
    ) -> Result<Option<Vec<u8>>, Refusal> {
        let key = (name.clone(), about.entity_tag(), algorithm);
        if let Some(known) = self.find_cached(&key) {
            return Ok(Some(known));
        }
        let computed = self.shell.within(patience(about.size), self.compute(user, &key, file)).await;
        let Ok(digest) = computed else { return Ok(None) };
        let digest = digest?;
        if file.about()?.entity_tag() != key.1 {
            // The response has the entity tag of the earlier version, but the digest may mix both versions.
            return Ok(None);
        }
        // A second change within one tick of the file system's clock is not visible.
        let is_settled = about.changed + LONGEST_TICK < began;
        if is_settled {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            // Another request may have added the digest.
            known.retain(|(of, _)| *of != key);
            if known.len() >= MAX_CACHED {
                known.pop_front();
            }
            known.push_back((key, digest.clone()));
        }
        Ok(Some(digest))
    }

    async fn compute(&self, user: &str, key: &DigestKey, file: &Arc<dyn StoredFile>) -> io::Result<Vec<u8>> {
        let computation = self.join(key);
        loop {
            let mut moved = pin!(computation.moved.notified());
            moved.as_mut().enable();
            let turn = self.turns.take(user).await;
            let Ok(mut progress) = computation.progress.clone().try_lock_owned() else {
                // Another request is reading a piece in its own turn.
                drop(turn);
                moved.await;
                continue;
            };
            if let Some(digest) = &progress.digest {
                return Ok(digest.clone());
            }
            // The read continues if this request is dropped, so its turn must last as long.
            let (file, held) = (file.clone(), computation.clone());
            let read = self.shell.blocking(move || {
                let read = progress.advance(&*file);
                drop((progress, turn));
                held.moved.notify_waiters();
                read
            });
            read.await?;
        }
    }

    /// Returns the running computation of `key`, or a new one.
    fn join(&self, key: &DigestKey) -> Arc<Computation> {
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(computation) = under_way.get(key).and_then(Weak::upgrade) {
            return computation;
        }
        under_way.retain(|_, computation| computation.strong_count() > 0);
        let progress = HashProgress { summer: Some(DigestHasher::new(key.2)), offset: 0, digest: None };
        let computation = Arc::new(Computation { progress: Arc::new(progress.into()), moved: Notify::new() });
        under_way.insert(key.clone(), Arc::downgrade(&computation));
        computation
    }

    /// Forgets the digests of a name after its file has been replaced. The new file may have the inode and time of the
    /// old one.
    pub(super) fn forget(&self, name: &Name) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|((of, ..), _)| of != name);
    }

    fn find_cached(&self, key: &DigestKey) -> Option<Vec<u8>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter().find(|(of, _)| of == key).map(|(_, digest)| digest.clone())
    }
}

impl HashProgress {
    /// Reads and hashes the next piece.
    fn advance(&mut self, file: &dyn StoredFile) -> io::Result<()> {
        let mut piece = aligned(READ_AT_ONCE);
        let read = file.read_at(&mut piece, self.offset)?;
        self.offset += read as u64;
        if let Some(summer) = &mut self.summer {
            summer.update(&piece[..read]);
        }
        if read < READ_AT_ONCE {
            self.digest = self.summer.take().map(DigestHasher::finish);
        }
        Ok(())
    }
}

const READ_AT_ONCE: usize = 8 * PIECE;
/// The longest tick of a file system's clock. Most clocks tick every few milliseconds, some every two seconds.
const LONGEST_TICK: Duration = Duration::from_secs(2);
const MAX_CACHED: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rooted::Rooted;
    use crate::storage::Folder;

    /// A file changed within one clock tick may change again at the same time.
    #[tokio::test]
    async fn digest_of_a_new_file_is_not_remembered() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("file"), "text").unwrap();
        let (folder, name) = (Rooted::open(root.path()).unwrap(), Name::from_url("/file").unwrap());
        let file = folder.open(&name).unwrap();
        let about = file.about().unwrap();
        for (age, is_known) in [(LONGEST_TICK, false), (LONGEST_TICK + Duration::from_nanos(1), true)] {
            let now = about.changed + age;
            let digests = DigestCache::new(Shell::tokio(), 1);
            assert!(
                digests
                    .get_or_compute("user", &name, &about, &file, HashAlgorithm::Sha256, now)
                    .await
                    .unwrap()
                    .is_some()
            );
            let key = (name.clone(), about.entity_tag(), HashAlgorithm::Sha256);
            assert_eq!(digests.find_cached(&key).is_some(), is_known, "{age:?}");
        }
    }
}
