//! Files that are arriving at a server, and who writes them.
//!
//! Invariant: a name has one writer at a time: a second one is refused while the first is at work, or was within the hold time. A
//! block is received once at a time.

use super::Limits;
use super::refusal::Refusal;
use crate::blocks::Blocks;
use crate::landing::{Begin, Landing};
use crate::name::Name;
use crate::shell::Shell;
use crate::storage::Folder;
use core::ops::Range;
use hyper::StatusCode;
use offload_base::Instant;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::OnceCell;

pub(super) struct Uploads {
    folder: Arc<dyn Folder>,
    shell: Shell,
    limits: Limits,
    live: Mutex<HashMap<Name, Arc<Upload>>>,
}

/// Who writes, and what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Writer {
    pub(super) user: String,
    /// What the client calls its upload.
    pub(super) upload: String,
    pub(super) blocks: Blocks,
    /// Which share of the file: others are written by other servers of the same folder.
    pub(super) share: u16,
}

impl Writer {
    fn source(&self) -> String {
        format!("{} {}", self.user, self.upload)
    }
}

/// A file that is arriving.
pub(super) struct Upload {
    writer: Writer,
    landing: OnceCell<Arc<Landing>>,
    last: Mutex<Instant>,
    /// Blocks that requests bring now.
    receiving: Mutex<Vec<Range<u64>>>,
    /// Parts of blocks that are there, by where they begin; none touches another.
    parts: Mutex<BTreeMap<u64, u64>>,
}

impl Uploads {
    pub(super) fn new(folder: Arc<dyn Folder>, shell: Shell, limits: Limits) -> Uploads {
        Uploads { folder, shell, limits, live: Mutex::default() }
    }

    /// The upload of `name` by `writer`, begun as `begin` says unless it is live; and whether it is.
    pub(super) async fn enter(
        &self,
        name: &Name,
        writer: Writer,
        begin: Begin,
    ) -> Result<(Arc<Upload>, bool), Refusal> {
        let upload = self.live_one(name, writer)?;
        upload.touch(self.shell.now());
        let was_open = upload.landing.initialized();
        let opening = upload.landing.get_or_try_init(|| async {
            let (folder, name, writer) = (self.folder.clone(), name.clone(), upload.writer.clone());
            let opened = self.shell.blocking(move || {
                let source = writer.source();
                Ok(Landing::open_share(folder, &name, writer.blocks, &source, begin, writer.share).map(Arc::new))
            });
            opened.await?.map_err(Refusal::from)
        });
        match opening.await {
            Ok(_) => Ok((upload, was_open)),
            Err(refusal) => {
                self.leave(name, &upload);
                Err(refusal)
            }
        }
    }

    /// The one that is live, or a new one.
    fn live_one(&self, name: &Name, writer: Writer) -> Result<Arc<Upload>, Refusal> {
        let now = self.shell.now();
        let mut live = self.live();
        live.retain(|_, upload| !upload.is_idle(now, self.limits));
        if let Some(upload) = live.get(name) {
            if upload.writer == writer {
                return Ok(upload.clone());
            }
            let text = format!("another client writes {name} now: wait for that, or choose another name");
            return Err(Refusal::new(StatusCode::LOCKED, text));
        }
        let of_user = live.values().filter(|upload| upload.writer.user == writer.user).count();
        if of_user >= self.limits.uploads_of_a_user {
            let text = format!("{of_user} files of this user are unfinished: finish one first");
            return Err(Refusal::new(StatusCode::TOO_MANY_REQUESTS, text));
        }
        let upload = Arc::new(Upload {
            writer,
            landing: OnceCell::new(),
            last: Mutex::new(now),
            receiving: Mutex::default(),
            parts: Mutex::default(),
        });
        live.insert(name.clone(), upload.clone());
        Ok(upload)
    }

    /// The share that `writer` has of a file is done, as far as it is.
    pub(super) fn end_share(&self, name: &Name, writer: &Writer) {
        let mut live = self.live();
        if live.get(name).is_some_and(|upload| upload.writer == *writer) {
            live.remove(name);
        }
    }

    /// The name has no writer any more.
    pub(super) fn leave(&self, name: &Name, upload: &Arc<Upload>) {
        let mut live = self.live();
        if live.get(name).is_some_and(|one| Arc::ptr_eq(one, upload)) {
            live.remove(name);
        }
    }

    fn live(&self) -> MutexGuard<'_, HashMap<Name, Arc<Upload>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Upload {
    pub(super) fn landing(&self) -> Result<Arc<Landing>, Refusal> {
        let begun = || Refusal::new(StatusCode::CONFLICT, "the upload has not begun");
        self.landing.get().cloned().ok_or_else(begun)
    }

    /// Whether it is the share that makes the file.
    pub(super) fn is_first(&self) -> bool {
        self.writer.share == 0
    }

    fn touch(&self, now: Instant) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = now;
    }

    fn is_idle(self: &Arc<Upload>, now: Instant, limits: Limits) -> bool {
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        // Requests under way hold it too.
        Arc::strong_count(self) == 1 && now - last > limits.hold
    }

    /// Takes blocks to receive them, if nobody else does.
    pub(super) fn claim(self: &Arc<Upload>, blocks: Range<u64>) -> Result<Claim, Refusal> {
        let mut receiving = self.receiving.lock().unwrap_or_else(PoisonError::into_inner);
        if receiving.iter().any(|other| other.start < blocks.end && blocks.start < other.end) {
            return Err(Refusal::new(StatusCode::CONFLICT, "another request brings this block now: try again later"));
        }
        receiving.push(blocks.clone());
        Ok(Claim { upload: self.clone(), blocks })
    }

    /// A part of a block is there. Gives the blocks that are whole by it.
    pub(super) fn add_part(&self, part: Range<u64>) -> Result<Range<u64>, Refusal> {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut start, mut end) = (part.start, part.end);
        if let Some((from, to)) = parts.range(..=start).next_back().map(|(from, to)| (*from, *to))
            && to >= start
        {
            (start, end) = (from, end.max(to));
        }
        while let Some((from, to)) = parts.range(start..=end).next().map(|(from, to)| (*from, *to)) {
            parts.remove(&from);
            end = end.max(to);
        }
        if parts.len() >= MOST_PARTS {
            let text = "the file is in too many pieces: send ranges that follow each other";
            return Err(Refusal::new(StatusCode::CONFLICT, text));
        }
        parts.insert(start, end);
        let blocks = self.writer.blocks;
        let touched = blocks.touched(&part);
        let whole = blocks.within(&(start..end));
        Ok(touched.start.max(whole.start)..touched.end.min(whole.end))
    }
}

/// Blocks that one request receives; given back when the last of its writes is done.
pub(super) struct Claim {
    upload: Arc<Upload>,
    blocks: Range<u64>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut receiving = self.upload.receiving.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = receiving.iter().position(|blocks| *blocks == self.blocks) {
            receiving.swap_remove(at);
        }
    }
}

/// Ranges of one file that do not touch.
const MOST_PARTS: usize = 4096;
