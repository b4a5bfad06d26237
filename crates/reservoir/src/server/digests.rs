//! Digests of whole files, which take as long as reading them: so many at a time, and remembered as long as the file is the same.

use super::refusal::Refusal;
use crate::body::PIECE;
use crate::digest::{Algorithm, Summer};
use crate::direct::aligned;
use crate::name::Name;
use crate::shell::Shell;
use crate::storage::{About, Stored};
use hyper::StatusCode;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::sync::Semaphore;

pub(super) struct Digests {
    shell: Shell,
    turns: Semaphore,
    /// The latest last.
    known: Mutex<VecDeque<(Key, Vec<u8>)>>,
}

/// The entity tag of a version of a file, and what was computed of it.
type Key = (Name, String, Algorithm);

impl Digests {
    pub(super) fn new(shell: Shell, turns: usize) -> Digests {
        Digests { shell, turns: Semaphore::new(turns.max(1)), known: Mutex::default() }
    }

    /// The digest of `file`, which is the version of `name` that `about` describes.
    pub(super) async fn of(
        &self,
        name: &Name,
        about: &About,
        file: &Arc<dyn Stored>,
        algorithm: Algorithm,
    ) -> Result<Vec<u8>, Refusal> {
        let key = (name.clone(), about.entity_tag(), algorithm);
        if let Some(known) = self.known(&key) {
            return Ok(known);
        }
        let busy = || Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "the server is being closed");
        let _turn = self.turns.acquire().await.map_err(|_| busy())?;
        if let Some(known) = self.known(&key) {
            return Ok(known);
        }
        // Piece by piece, so that it ends when nobody waits for it any more.
        let began = SystemTime::now();
        let (mut summer, mut offset) = (Summer::new(algorithm), 0);
        loop {
            let file = file.clone();
            let (back, read) = self
                .shell
                .blocking(move || {
                    let mut piece = aligned(READ_AT_ONCE);
                    let read = file.read_at(&mut piece, offset)?;
                    summer.update(&piece[..read]);
                    Ok((summer, read))
                })
                .await?;
            summer = back;
            offset += read as u64;
            if read < READ_AT_ONCE {
                break;
            }
        }
        let digest = summer.finish();
        // What was changed meanwhile is remembered under the version that it has no longer.
        // Of two changes within a tick of the file system's clock, the second does not show.
        let is_settled = about.changed + LONGEST_TICK < began;
        if is_settled && file.about()?.entity_tag() == key.1 {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            if known.len() >= MOST_KNOWN {
                known.pop_front();
            }
            known.push_back((key, digest.clone()));
        }
        Ok(digest)
    }

    /// There is another file of this name now, which may have the number and the time of the old one.
    pub(super) fn forget(&self, name: &Name) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|((of, ..), _)| of != name);
    }

    fn known(&self, key: &Key) -> Option<Vec<u8>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter().find(|(of, _)| of == key).map(|(_, digest)| digest.clone())
    }
}

const READ_AT_ONCE: usize = 8 * PIECE;
/// File systems tell times by clocks that tick, most of them every few milliseconds, some once in two seconds.
const LONGEST_TICK: Duration = Duration::from_secs(2);
const MOST_KNOWN: usize = 1024;
