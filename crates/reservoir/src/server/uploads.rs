//! Uploads in progress at a server, and their owners.
//!
//! Invariant: a name has one upload at a time. Another upload is refused while a request of the first is in progress,
//! and afterwards until the hold time is over. An upload yields to one of the same user as soon as its client has
//! closed its connections. A block is received once at a time.

use super::ServerLimits;
use super::declared::DigestList;
use super::refusal::Refusal;
use crate::blocks::Blocks;
use crate::landing::{LandingError, LandingFile, ResumeMode, secure_name};
use crate::name::Name;
use crate::shell::Shell;
use crate::storage::Folder;
use core::ops::Range;
use hyper::StatusCode;
use hyper::header::RETRY_AFTER;
use offload_base::Instant;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::SystemTime;
use tokio::sync::OnceCell;

pub(super) struct Uploads {
    folder: Arc<dyn Folder>,
    shell: Shell,
    limits: ServerLimits,
    live: Mutex<HashMap<Name, Arc<OpenUpload>>>,
}

/// The writer of an upload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UploadWriter {
    pub(super) user: String,
    pub(super) upload: UploadId,
    pub(super) blocks: Blocks,
    /// The share of the file that this server writes. Other servers of the same folder write the other shares.
    pub(super) share: u16,
}

/// The identity of an upload among the uploads of one user, name and size. Requests of two clients never count as one
/// upload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum UploadId {
    /// A file in one request, by the number of the request.
    Request(u64),
    /// The client's name for the upload.
    Named(String),
    /// Digests of the whole file, which each request declares.
    Digests(DigestList),
}

impl UploadWriter {
    /// Returns the text that identifies the upload in its journal. The length comes first, because names may contain
    /// spaces.
    fn source(&self) -> String {
        let upload = match &self.upload {
            UploadId::Request(number) => format!("request {number}"),
            UploadId::Named(name) => format!("named {name}"),
            UploadId::Digests(digests) => digests.iter().map(|(algorithm, value)| algorithm.field(value)).collect(),
        };
        format!("{} {} {upload}", self.user.len(), self.user)
    }
}

/// The identity of a client's connection, which is open as long as a clone exists.
#[derive(Clone, Default)]
pub(super) struct ClientConnection(Arc<()>);

/// An upload in progress.
pub(super) struct OpenUpload {
    writer: UploadWriter,
    landing: OnceCell<Arc<LandingFile>>,
    last: Mutex<Instant>,
    /// Connections that brought requests of the upload.
    connections: Mutex<Vec<Weak<()>>>,
    /// Digests of the whole file declared by requests.
    expected: Mutex<DigestList>,
    /// Blocks that requests are bringing now.
    receiving: Mutex<Vec<Range<u64>>>,
    /// Received parts of blocks, as a map from start to end. Parts do not touch each other.
    parts: Mutex<BTreeMap<u64, u64>>,
}

impl Uploads {
    pub(super) fn new(folder: Arc<dyn Folder>, shell: Shell, limits: ServerLimits) -> Uploads {
        Uploads { folder, shell, limits, live: Mutex::default() }
    }

    /// Joins the upload of `name` by `writer`, or opens one with `begin`. Also returns whether the upload was open
    /// already.
    pub(super) async fn enter(
        &self,
        name: &Name,
        writer: UploadWriter,
        begin: ResumeMode,
        connection: ClientConnection,
    ) -> Result<(Arc<OpenUpload>, bool), Refusal> {
        let upload = self.live_one(name, writer, begin, &connection)?;
        upload.touch(self.shell.now(), &connection);
        let was_open = upload.landing.initialized();
        // Concurrent requests of one upload wait here for a single opening.
        let opening = upload.landing.get_or_try_init(|| async {
            let (folder, name, writer) = (self.folder.clone(), name.clone(), upload.writer.clone());
            let opened = self.shell.blocking(move || {
                let source = writer.source();
                Ok(LandingFile::open_share(folder, &name, writer.blocks, &source, begin, writer.share).map(Arc::new))
            });
            opened.await?.map_err(Refusal::from)
        });
        match opening.await {
            Ok(_) => Ok((upload, was_open)),
            Err(refusal) => {
                // Else an upload without a landing would block the name.
                self.leave(name, &upload);
                Err(refusal)
            }
        }
    }

    /// Frees a name for a file that is not uploaded, with the rules of [`enter`](Self::enter).
    #[cfg(feature = "third-party")]
    pub(super) fn free_name(&self, name: &Name, user: &str, connection: &ClientConnection) -> Result<(), Refusal> {
        let (now, mut live) = (self.shell.now(), self.live());
        match live.get(name) {
            Some(upload) if !upload.is_idle(now, self.limits) && !upload.gives_way(user, connection) => {
                Err(self.locked(name, upload, now))
            }
            _ => {
                live.remove(name);
                Ok(())
            }
        }
    }

    /// Syncs the name of a file, if its upload failed in that last step.
    pub(super) async fn secure(&self, name: &Name) -> Result<(), Refusal> {
        let live = self.live().get(name).and_then(|upload| upload.landing.get().cloned());
        let secured = match live {
            Some(landing) if landing.may_be_renamed() => {
                landing.in_turn(&self.shell, |landing, _| Ok(landing.secure())).await?
            }
            // An upload is in progress, and readers do not wait for its blocks.
            Some(_) => Ok(()),
            None => {
                let (folder, name) = (self.folder.clone(), name.clone());
                self.shell.blocking(move || Ok(secure_name(&*folder, &name))).await?
            }
        };
        match secured {
            // Another process writes the file now.
            Err(LandingError::Taken(_)) => Ok(()),
            secured => Ok(secured?),
        }
    }

    /// Returns the open upload, or a new one.
    fn live_one(
        &self,
        name: &Name,
        writer: UploadWriter,
        begin: ResumeMode,
        connection: &ClientConnection,
    ) -> Result<Arc<OpenUpload>, Refusal> {
        let now = self.shell.now();
        let mut live = self.live();
        // Expired uploads are removed by the next request of any client, so no timer is needed.
        live.retain(|_, upload| !upload.is_idle(now, self.limits));
        if let Some(upload) = live.get(name) {
            if upload.writer == writer {
                return Ok(upload.clone());
            }
            // A late request of an earlier upload must not end the present one.
            if begin == ResumeMode::Begun || !upload.gives_way(&writer.user, connection) {
                return Err(self.locked(name, upload, now));
            }
            // This closes the landing, which holds the lock of the journal.
            live.remove(name);
        }
        let of_user: Vec<_> = live.iter().filter(|(_, upload)| upload.writer.user == writer.user).collect();
        if of_user.len() >= self.limits.uploads_of_a_user {
            // Uploads of killed clients can be resumed from their journals.
            let left = of_user.iter().filter(|(_, upload)| upload.gives_way(&writer.user, connection));
            let Some(oldest) = left.min_by_key(|(_, upload)| upload.last()).map(|(name, _)| (*name).clone()) else {
                let text = format!("{} files of this user are unfinished: finish one first", of_user.len());
                return Err(Refusal::new(StatusCode::TOO_MANY_REQUESTS, text));
            };
            // Its journal stays on the medium, so the client can still resume it.
            live.remove(&oldest);
        }
        let upload = Arc::new(OpenUpload {
            writer,
            landing: OnceCell::new(),
            last: Mutex::new(now),
            connections: Mutex::default(),
            expected: Mutex::default(),
            receiving: Mutex::default(),
            parts: Mutex::default(),
        });
        live.insert(name.clone(), upload.clone());
        Ok(upload)
    }

    /// Refuses a request until the upload gives up its name, and tells the time.
    fn locked(&self, name: &Name, upload: &Arc<OpenUpload>, now: Instant) -> Refusal {
        let left = self.limits.hold.saturating_sub(now - upload.last());
        let text = match Arc::strong_count(upload) {
            // Only the map holds the upload, so no request is in progress.
            1 => {
                let until = clock(SystemTime::now() + left);
                format!(
                    "an unfinished upload has the name {name} until {until} UTC: wait for that, or choose another name"
                )
            }
            _ => format!("another client writes {name} now: wait for that, or choose another name"),
        };
        let mut refusal = Refusal::new(StatusCode::LOCKED, text);
        if Arc::strong_count(upload) == 1 {
            refusal.field(RETRY_AFTER, left.as_secs() + 1);
        }
        refusal
    }

    /// Ends this server's share of a file.
    pub(super) fn end_share(&self, name: &Name, writer: &UploadWriter) {
        let mut live = self.live();
        if live.get(name).is_some_and(|upload| upload.writer == *writer) {
            live.remove(name);
        }
    }

    /// Removes the upload, which frees its name.
    pub(super) fn leave(&self, name: &Name, upload: &Arc<OpenUpload>) {
        let mut live = self.live();
        if live.get(name).is_some_and(|one| Arc::ptr_eq(one, upload)) {
            live.remove(name);
        }
    }

    fn live(&self) -> MutexGuard<'_, HashMap<Name, Arc<OpenUpload>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenUpload {
    pub(super) fn landing(&self) -> Result<Arc<LandingFile>, Refusal> {
        let begun = || Refusal::new(StatusCode::CONFLICT, "the upload has not begun");
        self.landing.get().cloned().ok_or_else(begun)
    }

    /// Returns whether this is the share that creates the file.
    pub(super) fn is_first(&self) -> bool {
        self.writer.share == 0
    }

    fn touch(&self, now: Instant, connection: &ClientConnection) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = now;
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        connections.retain(|one| one.strong_count() > 0);
        if !connections.iter().any(|one| one.as_ptr() == Arc::as_ptr(&connection.0)) {
            connections.push(Arc::downgrade(&connection.0));
        }
    }

    fn last(&self) -> Instant {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_idle(self: &Arc<OpenUpload>, now: Instant, limits: ServerLimits) -> bool {
        // Requests in progress hold references.
        Arc::strong_count(self) == 1 && now - self.last() > limits.hold
    }

    /// Tests whether the user's next upload may replace this upload: no request is in progress, and the client has no
    /// open connection except `connection`, which brought the next upload. A client keeps its connections between
    /// requests.
    fn gives_way(self: &Arc<OpenUpload>, user: &str, connection: &ClientConnection) -> bool {
        let connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        let is_other = |one: &Weak<()>| one.strong_count() > 0 && one.as_ptr() != Arc::as_ptr(&connection.0);
        self.writer.user == user && Arc::strong_count(self) == 1 && !connections.iter().any(is_other)
    }

    /// Replaces the required digests of the whole file.
    pub(super) fn expect_only(&self, digests: DigestList) {
        *self.expected.lock().unwrap_or_else(PoisonError::into_inner) = digests;
    }

    /// Adds required digests of the whole file, and returns all of them. A third value of an algorithm is dropped,
    /// because no file matches even two.
    pub(super) fn expect(&self, digests: &DigestList) -> DigestList {
        let mut expected = self.expected.lock().unwrap_or_else(PoisonError::into_inner);
        for digest in digests {
            let values = expected.iter().filter(|(algorithm, _)| *algorithm == digest.0).count();
            if values < 2 && !expected.contains(digest) {
                expected.push(digest.clone());
            }
        }
        expected.clone()
    }

    /// Tests whether the upload has no bytes, received or on their way.
    pub(super) fn is_empty(&self) -> bool {
        let is_empty = self.receiving.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
            && self.parts.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
        is_empty && self.landing.get().is_none_or(|landing| landing.present() == 0)
    }

    /// Claims blocks for one request, unless another request is receiving them.
    pub(super) fn claim(self: &Arc<OpenUpload>, blocks: Range<u64>) -> Result<BlockClaim, Refusal> {
        let mut receiving = self.receiving.lock().unwrap_or_else(PoisonError::into_inner);
        if receiving.iter().any(|other| other.start < blocks.end && blocks.start < other.end) {
            return Err(Refusal::new(StatusCode::CONFLICT, "another request brings this block now: try again later"));
        }
        receiving.push(blocks.clone());
        Ok(BlockClaim { upload: self.clone(), blocks })
    }

    /// Forgets parts that a request overwrites. They count again after the request has succeeded.
    pub(super) fn forget_parts(&self, range: &Range<u64>) {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let touched = parts.range(..range.end).map(|(from, to)| (*from, *to)).filter(|(_, to)| *to > range.start);
        for (from, to) in touched.collect::<Vec<_>>() {
            parts.remove(&from);
            if from < range.start {
                parts.insert(from, range.start);
            }
            if to > range.end {
                parts.insert(range.end, to);
            }
        }
    }

    /// Records a received part. Returns the blocks that are now complete.
    pub(super) fn add_part(&self, part: Range<u64>) -> Result<Range<u64>, Refusal> {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut start, mut end) = (part.start, part.end);
        if let Some((from, to)) = parts.range(..=start).next_back().map(|(from, to)| (*from, *to))
            && to >= start
        {
            (start, end) = (from, end.max(to));
        }
        // Joins all parts that the new part touches, so parts stay few.
        while let Some((from, to)) = parts.range(start..=end).next().map(|(from, to)| (*from, *to)) {
            parts.remove(&from);
            end = end.max(to);
        }
        if parts.len() >= MAX_PARTS {
            let text = "the file is in too many pieces: send ranges that follow each other";
            return Err(Refusal::new(StatusCode::CONFLICT, text));
        }
        parts.insert(start, end);
        let blocks = self.writer.blocks;
        // Blocks that were complete before this part were reported then.
        let touched = blocks.touched(&part);
        let whole = blocks.within(&(start..end));
        Ok(touched.start.max(whole.start)..touched.end.min(whole.end))
    }
}

/// A claim on the blocks that one request receives, until its last write ends.
pub(super) struct BlockClaim {
    upload: Arc<OpenUpload>,
    blocks: Range<u64>,
}

impl Drop for BlockClaim {
    fn drop(&mut self) {
        let mut receiving = self.upload.receiving.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = receiving.iter().position(|blocks| *blocks == self.blocks) {
            receiving.swap_remove(at);
        }
    }
}

/// Formats a time as hours and minutes in UTC.
fn clock(time: SystemTime) -> String {
    let minutes = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs() / 60;
    format!("{:02}:{:02}", minutes / 60 % 24, minutes % 60)
}

/// Maximum number of separate parts of one file.
const MAX_PARTS: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::HashAlgorithm;
    use crate::rooted::Rooted;

    #[tokio::test]
    async fn digests_of_parts_do_not_fill_the_memory() {
        let store = tempfile::tempdir().unwrap();
        let uploads =
            Uploads::new(Arc::new(Rooted::open(store.path()).unwrap()), Shell::tokio(), ServerLimits::defaults());
        let (name, blocks) = (Name::from_url("/file").unwrap(), Blocks::new(10, 1024).unwrap());
        let writer = UploadWriter { user: "user".into(), upload: UploadId::Named("upload".into()), blocks, share: 0 };
        let (upload, _) = uploads.enter(&name, writer, ResumeMode::Anew, ClientConnection::default()).await.unwrap();
        let digest = |number: u32| (HashAlgorithm::Crc32c, number.to_be_bytes().to_vec());
        (0..1000).for_each(|number| _ = upload.expect(&vec![digest(number)]));
        let expected = upload.expect(&vec![digest(0)]);
        assert!(expected.contains(&digest(0)) && (2..10).contains(&expected.len()), "{}", expected.len());
    }
}
