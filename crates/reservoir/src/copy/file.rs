//! One file: opened at both ends, copied block by block, by as many streams as come, and given its name.

use super::hash;
use super::list::{Item, glance};
use super::multipart::{self, Multipart};
use super::place::Side;
use super::{Copy, CopyError, Sync};
use crate::attributes::{Attributes, Preserve};
use crate::blocks::{BlockHasher, BlockSum, Blocks, root};
use crate::body::{FileBody, LateSum, Relayed, known, read_error};
use crate::landing::{Begin, Landing, LandingError, secure_name};
use crate::mtime::{self, Resolution};
use crate::name::Name;
use crate::remote::{
    Beginning, Ending, Expected, OfUpload, Reading, Remote, RemoteError, ThirdParty, UploadConditions, Version,
};
use crate::sink::Sink;
use crate::storage::{About, Kind, Stored, read_exactly};
use bytes::Bytes;
use core::time::Duration;
use http_body_util::BodyExt;
use hyper::StatusCode;
use hyper::body::Frame;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use tokio::sync::mpsc;

/// A file under way.
pub(super) struct FileJob {
    copy: Copy,
    pub(super) item: Item,
    blocks: Blocks,
    source: Source,
    target: Target,
    attributes: Attributes,
    /// The rights of the source. A server's file has them once an answer has told them.
    mode: OnceLock<u32>,
    state: Mutex<State>,
}

pub(super) enum Source {
    Local(Arc<dyn Stored>, About),
    Remote(Arc<Remote>, Version),
}

impl Source {
    /// Tests whether several range requests are sure to read one version. If not, one request reads the whole file.
    fn has_ranges(&self) -> bool {
        match self {
            Source::Local(..) => true,
            Source::Remote(_, version) => version.is_strong(),
        }
    }
}

enum Target {
    Landing(Arc<Landing>),
    Upload(Upload),
    /// To a bucket.
    Parts(Multipart),
    /// In one request.
    Whole(Arc<Remote>, Whole),
    /// Servers copy it.
    Asked(Asked),
}

/// A copy that one server makes from or to another.
struct Asked {
    way: ThirdParty,
    by: (Arc<Remote>, Name),
    other: (Arc<Remote>, Name),
}

/// An upload to one of our servers, or to several that have the same files: each writes the blocks of its streams.
struct Upload {
    /// The first makes the file.
    servers: Vec<Arc<Remote>>,
    id: String,
}

impl Upload {
    /// The server of a stream, and what it calls the upload.
    fn of_stream(&self, stream: usize, blocks: Blocks) -> (&Arc<Remote>, OfUpload<'_>) {
        let share = stream % self.servers.len();
        // There are no more than 64.
        let (id, shares) = (&self.id[..], self.servers.len() as u16);
        (&self.servers[share], OfUpload { id, blocks, share: share as u16, shares })
    }

    fn all(&self, blocks: Blocks) -> impl Iterator<Item = (&Arc<Remote>, OfUpload<'_>)> {
        (0..self.servers.len()).map(move |share| self.of_stream(share, blocks))
    }

    /// Begins it at all servers; gives the blocks that are there.
    async fn begin(
        &self,
        name: &Name,
        blocks: Blocks,
        beginning: Beginning<'_>,
    ) -> Result<BTreeMap<u64, BlockSum>, RemoteError> {
        let mut present = BTreeMap::new();
        for (server, of) in self.all(blocks) {
            // What the file is to have, it gets from the one that makes it.
            let attributes = beginning.attributes.filter(|_| of.share == 0);
            present.extend(server.begin(name, of, Beginning { attributes, ..beginning }).await?);
        }
        Ok(present)
    }
}

/// What is in a request with a whole file.
#[derive(Clone, Copy, PartialEq)]
enum Whole {
    /// A small file, with its digest.
    Small,
    /// Any file, to a server that knows nothing else.
    Stream,
}

struct State {
    waiting: VecDeque<u64>,
    left: u64,
    sums: BTreeMap<u64, BlockSum>,
    attempts: u32,
    ended: bool,
}

/// What came of opening a file.
pub(super) enum Opened {
    Present,
    /// Bytes that are there from before.
    Job(Arc<FileJob>, u64),
}

/// What came of finishing one.
pub(super) enum Finished {
    Done,
    /// These many blocks were not there as they should be, and are to be sent again.
    Again(u64),
    LeftToOthers,
}

impl FileJob {
    pub(super) async fn open(copy: &Copy, item: Item) -> Result<Opened, CopyError> {
        if !copy.replaces && has_anything(copy, &item).await? {
            return Err(CopyError::Exists(item.to.0.shown(&item.to.1)));
        }
        if is_present(copy, &item).await? {
            return Ok(Opened::Present);
        }
        let local = |error| CopyError::Local { path: PathBuf::from(item.source()), error };
        let mode = OnceLock::new();
        let source = match &item.from.0 {
            Side::Remote(server, _) => Source::Remote(server.clone(), FileJob::version(copy, &item, server).await?),
            Side::Local(folder, _) => {
                let (folder, name) = (folder.clone(), item.from.1.clone());
                let opened = copy.shell.blocking(move || {
                    let file = folder.open(&name)?;
                    let about = file.about()?;
                    let mode = file.attributes(Preserve { mode: true, extended: false })?.mode;
                    if about.size == 0 && file.read_at(&mut [0], 0)? > 0 {
                        let text = "the system does not tell its size (a file of /proc): copy the output of `cat`";
                        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
                    }
                    Ok((file, about, mode))
                });
                let (file, about, told) = opened.await.map_err(local)?;
                told.into_iter().for_each(|told| _ = mode.set(told));
                if item.tag.as_ref().is_none_or(|tag| *tag != about.entity_tag()) {
                    return Err(CopyError::Changed(item.source()));
                }
                Source::Local(file, about)
            }
        };
        let attributes = FileJob::attributes(copy, &item, &source).await?;
        let blocks = Blocks::new(item.size(), copy.block).expect("checked where it was set");
        let (target, present) = FileJob::open_target(copy, &item, blocks, &source, &attributes).await?;
        let mut waiting: VecDeque<u64> = match target {
            Target::Whole(..) | Target::Asked(_) => [0].into(),
            _ if !source.has_ranges() => [0].into(),
            _ => (0..blocks.count()).filter(|number| !present.contains_key(number)).collect(),
        };
        waiting.retain(|number| item.has(*number));
        let resumed = present.keys().map(|number| blocks.range(*number)).map(|range| range.end - range.start).sum();
        let left = waiting.len() as u64;
        let state = Mutex::new(State { waiting, left, sums: present, attempts: 0, ended: false });
        Ok(Opened::Job(
            Arc::new(FileJob { copy: copy.clone(), item, blocks, source, target, attributes, mode, state }),
            resumed,
        ))
    }

    /// Returns the version of a source on a server. A list may have a weak tag or no tag of a file that itself has a date.
    async fn version(copy: &Copy, item: &Item, server: &Arc<Remote>) -> Result<Version, CopyError> {
        let listed = Version::from_tag(item.tag.as_deref());
        // Servers that copy between each other check the version themselves.
        if listed.is_strong() || copy.third_party.is_some() {
            return Ok(listed);
        }
        let changed = || CopyError::Changed(item.source());
        let found = server.head(&item.from.1).await?.ok_or_else(changed)?;
        let is_same_time = item.resolution == Resolution::Unknown
            || mtime::are_same(item.time(), (found.about.modified, found.resolution));
        let is_same_tag = item.tag.is_none() || found.tag == item.tag;
        if found.about.size == item.size() && is_same_time && is_same_tag { Ok(found.version) } else { Err(changed()) }
    }

    /// What goes with the file.
    async fn attributes(copy: &Copy, item: &Item, source: &Source) -> Result<Attributes, CopyError> {
        let wanted = copy.preserve;
        if wanted.is_empty() {
            return Ok(Attributes::default());
        }
        let none = |at: &(Side, Name)| {
            CopyError::Unusable(format!(
                "{}: this server keeps no modes and attributes: leave --preserve out",
                at.0.shown(&at.1)
            ))
        };
        match &item.to.0 {
            Side::Remote(server, _) if !server.is_reservoir().await? => return Err(none(&item.to)),
            _ => {}
        }
        match source {
            Source::Remote(..) if !item.is_reservoir => Err(none(&item.from)),
            Source::Remote(server, _) => {
                let told = server.attributes(&item.from.1, wanted).await?;
                let wrong =
                    "its server does not tell its attributes, or they are too many: leave xattrs out of --preserve";
                told.ok_or_else(|| CopyError::Unusable(format!("{}: {wrong}", item.source())))
            }
            Source::Local(file, _) => {
                let file = file.clone();
                let read = copy.shell.blocking(move || file.attributes(wanted));
                read.await.map_err(|error| CopyError::Local { path: PathBuf::from(item.source()), error })
            }
        }
    }

    async fn open_target(
        copy: &Copy,
        item: &Item,
        blocks: Blocks,
        source: &Source,
        attributes: &Attributes,
    ) -> Result<(Target, BTreeMap<u64, BlockSum>), CopyError> {
        if let Some(way) = copy.third_party {
            return Ok((Target::Asked(FileJob::asked(copy, item, way)?), BTreeMap::new()));
        }
        if matches!(&item.to.0, Side::Remote(..)) {
            let unusable =
                |why| CopyError::Unusable(format!("{}: {why}: leave xattrs out of --preserve", item.source()));
            attributes.check().map_err(unusable)?;
        }
        let one_request = !source.has_ranges();
        if one_request && item.blocks.is_some() {
            return Err(CopyError::Changed(item.source()));
        }
        // The bytes that are there may belong to another version than the source's present one.
        let resume = (copy.resume || item.blocks.is_some()) && !one_request;
        let begin = if resume { Begin::Resume } else { Begin::Anew };
        match &item.to.0 {
            Side::Local(folder, _) => {
                let (folder, name, version, sparse) = (folder.clone(), item.to.1.clone(), item.version(), copy.sparse);
                let (attributes, mut preconditions) = (attributes.clone(), copy.preconditions.clone());
                if !copy.replaces {
                    preconditions = preconditions.for_new_file();
                }
                let opened = copy.shell.blocking(move || {
                    Ok(Landing::open(folder, &name, blocks, &version, begin).and_then(|landing| {
                        landing.require(preconditions);
                        if sparse {
                            landing.leave_holes();
                        }
                        landing.keep(attributes)?;
                        let sum = |number| Some((number, landing.sum(number)?));
                        let present = (0..blocks.count()).filter_map(sum).collect();
                        Ok((Target::Landing(Arc::new(landing)), present))
                    }))
                });
                let local = |error| CopyError::Local { path: PathBuf::from(item.to.0.shown(&item.to.1)), error };
                opened.await.map_err(local)?.map_err(|error| landed(item, error))
            }
            Side::Remote(server, _) if one_request && !copy.verify => {
                Ok((Target::Whole(server.of_name(&item.to.1).clone(), Whole::Stream), BTreeMap::new()))
            }
            Side::Remote(..) if one_request => Err(CopyError::Unusable(format!(
                "{}: its server does not tell its version, so that no block can be sent again: leave --verify out",
                item.source()
            ))),
            Side::Remote(server, _) if server.is_bucket() && item.size() > copy.block => {
                let (upload, present) = Multipart::open(copy, item, blocks, source, server).await?;
                Ok((Target::Parts(upload), present))
            }
            Side::Remote(server, _) if copy.verify && !server.is_reservoir().await? => {
                let shown = item.to.0.shown(&item.to.1);
                Err(CopyError::Unusable(format!(
                    "{shown}: this server cannot be asked to read its medium: leave --verify out"
                )))
            }
            Side::Remote(server, _) if !server.is_reservoir().await? => {
                Ok((Target::Whole(server.of_name(&item.to.1).clone(), Whole::Stream), BTreeMap::new()))
            }
            Side::Remote(server, _)
                if item.size() <= SMALL.min(copy.block) && matches!(source, Source::Local(..)) && !copy.verify =>
            {
                Ok((Target::Whole(server.of_name(&item.to.1).clone(), Whole::Small), BTreeMap::new()))
            }
            Side::Remote(server, _) => {
                // Parts of a plan end at times of their own.
                let shared = if item.blocks.is_none() { blocks.count() } else { 0 };
                let servers = server.writers(&item.to.1, shared);
                let id = crate::digest::hexadecimal(&blake3::hash(item.version().as_bytes()).as_bytes()[..16]);
                let (check, sparse, attributes) = (item.blocks.is_none(), copy.sparse, Some(attributes));
                let beginning = Beginning { resume, check, sparse, attributes };
                let upload = Upload { servers, id };
                let present = upload.begin(&item.to.1, blocks, beginning).await?;
                Ok((Target::Upload(upload), present))
            }
        }
    }

    /// Who is asked for a copy between servers.
    fn asked(copy: &Copy, item: &Item, way: ThirdParty) -> Result<Asked, CopyError> {
        let unusable = |why| Err(CopyError::Unusable(format!("{}: {why}", item.source())));
        let (Side::Remote(from, _), Side::Remote(to, _)) = (&item.from.0, &item.to.0) else {
            return unusable("--third-party is for copies between two servers");
        };
        if from.is_bucket() || to.is_bucket() {
            return unusable("buckets ask nobody: leave --third-party out");
        }
        if copy.verify || copy.sparse || !copy.preserve.is_empty() || item.blocks.is_some() {
            return unusable(
                "what servers copy between them is a whole file and its bytes: leave --third-party, or --verify, --sparse and --preserve out",
            );
        }
        let (from, to) = ((from.clone(), item.from.1.clone()), (to.clone(), item.to.1.clone()));
        let (by, other) = if way == ThirdParty::Pull { (to, from) } else { (from, to) };
        Ok(Asked { way, by, other })
    }

    async fn have_copied(&self, asked: &Asked, stream: usize) -> Result<(), CopyError> {
        let (Asked { way, by, other }, mut seen) = (asked, 0);
        let progress = &self.copy.progress;
        let mut tell = |bytes: u64| {
            let bytes = bytes.min(self.blocks.size());
            progress.moved(stream, bytes.saturating_sub(seen) as usize);
            seen = seen.max(bytes);
        };
        by.0.have_copied(&by.1, *way, (&other.0, &other.1), (self.copy.streams, stream), &mut tell).await?;
        let is_whole = match glance(&self.copy, &self.item.to.0, &self.item.to.1).await {
            // A token that may only write does not see what is there.
            Err(CopyError::Remote(RemoteError::Refused { status: StatusCode::FORBIDDEN, .. })) => true,
            found => found?.is_some_and(|found| fits(&found.about, found.resolution, &self.item, Sync::Size)),
        };
        if !is_whole {
            let what = "says that the file is there, but it is not whole";
            return Err(RemoteError::Answer { name: self.item.to.1.clone(), what }.into());
        }
        tell(self.blocks.size());
        Ok(())
    }

    /// The next block that nobody copies.
    pub(super) fn take(&self) -> Option<u64> {
        self.state().waiting.pop_front()
    }

    /// How many blocks of a stream are to be under way at a time: one that is copied and one behind it, and as many more as pass in the
    /// time that a request takes to be answered.
    pub(super) async fn depth(&self, stream: usize) -> usize {
        let server = match (&self.source, &self.target) {
            (Source::Remote(server, _), Target::Landing(_)) if self.item.is_reservoir => server.of_stream(stream),
            (Source::Local(..), Target::Upload(upload)) => upload.of_stream(stream, self.blocks).0,
            _ => return 1,
        };
        let round_trip = server.round_trip(stream).await.unwrap_or(Duration::ZERO);
        let bytes = round_trip.as_nanos() * FASTEST_STREAM / 8_000_000_000;
        let blocks = bytes.div_ceil(u128::from(self.copy.block)).min(MOST_AHEAD.div_ceil(u128::from(self.copy.block)));
        2 + usize::try_from(blocks).unwrap_or(0).min(MOST_BLOCKS_AHEAD)
    }

    /// Blocks that nobody copies yet.
    pub(super) fn waiting(&self) -> usize {
        self.state().waiting.len()
    }

    /// A block is there; whether it was the last.
    pub(super) fn is_last(&self) -> bool {
        let mut state = self.state();
        state.left = state.left.saturating_sub(1);
        state.left == 0
    }

    /// Whether there is nothing to copy.
    pub(super) fn has_nothing_left(&self) -> bool {
        self.state().left == 0
    }

    /// The file has failed, or is done: whether it was not before.
    pub(super) fn end(&self) -> bool {
        let mut state = self.state();
        state.waiting.clear();
        !core::mem::replace(&mut state.ended, true)
    }

    /// Copies a block.
    pub(super) async fn transfer(&self, number: u64, stream: usize) -> Result<(), CopyError> {
        let range = match self.target {
            Target::Whole(..) | Target::Asked(_) => 0..self.blocks.size(),
            _ if !self.source.has_ranges() => 0..self.blocks.size(),
            _ => self.blocks.range(number),
        };
        match (&self.target, &self.source) {
            (Target::Asked(asked), _) => self.have_copied(asked, stream).await?,
            (Target::Whole(server, Whole::Small), Source::Local(file, _)) => {
                self.put_small(server, file, stream).await?
            }
            (Target::Landing(landing), _) => {
                let mut pieces = self.pieces(number, range.clone(), stream, Some(stream)).await?;
                let mut sink = Sink::new(self.copy.shell.clone(), landing.clone(), range);
                let medium = |error| landed(&self.item, LandingError::Medium(self.item.to.1.clone(), error));
                while let Some(piece) = pieces.next(self, stream).await? {
                    sink.push(&piece).await.map_err(medium)?;
                }
                // The connection is the next block's while this one's last piece is written.
                let told = pieces.end();
                let written = sink.end().await.map_err(medium)?;
                // The block that is there came with an earlier request, and may belong to another version.
                if written.differs.is_some() {
                    return Err(CopyError::Changed(self.item.source()));
                }
                for (number, sum) in written.blocks {
                    if told.is_some_and(|told| told != sum) {
                        return Err(CopyError::Differs(self.item.source(), number));
                    }
                    self.check_source().await?;
                    let epoch = written.epoch;
                    let done = move |landing: &Landing, enough| landing.done_to(enough, number, sum, epoch);
                    landing.in_turn(&self.copy.shell, done).await.map_err(medium)?;
                    self.state().sums.insert(number, sum);
                }
            }
            (Target::Upload(upload), Source::Local(file, _)) => {
                let (server, of) = upload.of_stream(stream, self.blocks);
                let body = self.file_body(file, number, range, stream, true);
                let sum = body.sum();
                let sent = server.put_block(&self.item.to.1, of, number, body.boxed_unsync(), Some(stream)).await;
                self.sent(sent, &sum)?;
                self.check_source().await?;
                if let Some(sum) = known(&sum) {
                    self.state().sums.insert(number, sum);
                }
            }
            (Target::Upload(upload), Source::Remote(..)) => {
                let (server, of) = upload.of_stream(stream, self.blocks);
                let (body, feed) = self.relay(number, range, stream, true).await?;
                let sent = server.put_block(&self.item.to.1, of, number, body, None);
                let (sent, fed) = tokio::join!(sent, feed);
                let sum = fed.relayed(sent)?;
                self.state().sums.insert(number, sum);
            }
            (Target::Parts(upload), Source::Local(file, _)) => {
                let md5 = self.md5(file, range.clone()).await?;
                let size = range.end - range.start;
                let body = self.file_body(file, number, range, stream, false);
                let sum = body.sum();
                let sent = upload.put(&self.item, number, body.boxed_unsync(), size, Some(md5)).await;
                self.sent(sent, &sum)?;
                self.check_source().await?;
            }
            (Target::Parts(upload), Source::Remote(..)) => {
                let size = range.end - range.start;
                let (body, feed) = self.relay(number, range, stream, false).await?;
                let (sent, fed) = tokio::join!(upload.put(&self.item, number, body, size, None), feed);
                let _no_peer_compares = fed.relayed(sent)?;
            }
            (Target::Whole(server, _), Source::Local(file, _)) => {
                let conditions = match server.is_bucket() {
                    true => self.conditions(Expected::Md5(self.md5(file, range.clone()).await?)),
                    false => self.conditions(Expected::Nothing),
                };
                let body = self.file_body(file, 0, range, stream, false);
                let sum = body.sum();
                let (size, modified) = (self.blocks.size(), self.item.modified());
                let (name, body) = (&self.item.to.1, body.boxed_unsync());
                let sent = server.put_whole(name, body, size, modified, conditions, (&self.attributes, None)).await;
                self.sent(sent, &sum)?;
                self.check_source().await?;
            }
            (Target::Whole(server, _), Source::Remote(..)) => {
                let (body, feed) = self.relay(0, range, stream, false).await?;
                let (size, modified) = (self.blocks.size(), self.item.modified());
                let conditions = self.conditions(Expected::Nothing);
                let sent =
                    server.put_whole(&self.item.to.1, body, size, modified, conditions, (&self.attributes, None));
                let (sent, fed) = tokio::join!(sent, feed);
                let _no_peer_compares = fed.relayed(sent)?;
            }
        }
        Ok(())
    }

    fn conditions(&self, digest: Expected) -> UploadConditions {
        UploadConditions { digest, replaces: self.copy.replaces }
    }

    /// A small file is read whole, so that its digest goes ahead of it.
    async fn put_small(&self, server: &Arc<Remote>, file: &Arc<dyn Stored>, stream: usize) -> Result<(), CopyError> {
        let (file, size) = (file.clone(), self.blocks.size());
        let read = self.copy.shell.blocking(move || {
            let mut bytes = vec![0; size as usize];
            read_exactly(&*file, &mut bytes, 0)?;
            Ok((*blake3::hash(&bytes).as_bytes(), Bytes::from(bytes)))
        });
        let (digest, bytes) = read.await.map_err(|error| self.unreadable(error))?;
        self.check_source().await?;
        turn(&self.copy, bytes.len()).await;
        let (body, modified) = (crate::body::full(bytes), self.item.modified());
        let conditions = self.conditions(Expected::Blake3(digest));
        let attributes = (&self.attributes, self.mode.get().copied());
        server.put_whole(&self.item.to.1, body, size, modified, conditions, attributes).await?;
        self.copy.progress.moved(stream, size as usize);
        Ok(())
    }

    async fn md5(&self, file: &Arc<dyn Stored>, range: core::ops::Range<u64>) -> Result<Vec<u8>, CopyError> {
        let file = file.clone();
        let summed = self.copy.shell.blocking(move || multipart::md5(&*file, range));
        summed.await.map_err(|error| self.unreadable(error))
    }

    fn file_body(
        &self,
        file: &Arc<dyn Stored>,
        number: u64,
        range: core::ops::Range<u64>,
        stream: usize,
        trailers: bool,
    ) -> FileBody {
        let hasher = BlockHasher::new(self.blocks, number);
        let progress = self.copy.progress.clone();
        FileBody::new(self.copy.shell.clone(), file.clone(), range, Some(hasher), trailers)
            .paced(self.copy.pace.clone())
            .telling(Arc::new(move |bytes| progress.moved(stream, bytes)))
    }

    /// The bytes of a block; of our servers' by the line of a stream, if `line` says which.
    async fn pieces(
        &self,
        number: u64,
        range: core::ops::Range<u64>,
        stream: usize,
        line: Option<usize>,
    ) -> Result<Pieces, CopyError> {
        match &self.source {
            Source::Local(file, _) => Ok(Pieces::File(self.file_body(file, number, range, stream, false))),
            Source::Remote(server, version) => {
                let server = server.of_stream(stream);
                let block = self.item.is_reservoir.then_some(self.blocks.block());
                let reading = server
                    .get(
                        &self.item.from.1,
                        range,
                        self.blocks.size(),
                        version,
                        block,
                        line.filter(|_| self.item.is_reservoir),
                    )
                    .await?;
                reading.mode().into_iter().for_each(|told| _ = self.mode.set(told));
                Ok(Pieces::Net(Some(Box::new(reading)), server.clone()))
            }
        }
    }

    /// What comes from one server and goes to another: the body, and what fills it and gives its checksums.
    async fn relay(
        &self,
        number: u64,
        range: core::ops::Range<u64>,
        stream: usize,
        trailers: bool,
    ) -> Result<(crate::body::Body, impl Future<Output = Fed>), CopyError> {
        let mut pieces = self.pieces(number, range.clone(), stream, None).await?;
        let (into, frames) = mpsc::channel(2);
        let mut hasher = BlockHasher::new(self.blocks, number);
        let feed = async move {
            loop {
                let piece = match pieces.next(self, stream).await {
                    Ok(Some(piece)) => piece,
                    Ok(None) => break,
                    Err(error) => {
                        // Its end would be taken for the file's.
                        let _nobody_reads = into.send(Err(io::ErrorKind::UnexpectedEof.into())).await;
                        return Fed::Failed(error);
                    }
                };
                hasher.update(&piece);
                if into.send(Ok(Frame::data(piece))).await.is_err() {
                    return Fed::Refused;
                }
            }
            let sum = hasher.finish();
            if pieces.end().is_some_and(|told| told != sum) {
                let _nobody_reads = into.send(Err(io::ErrorKind::InvalidData.into())).await;
                return Fed::Failed(CopyError::Differs(self.item.source(), number));
            }
            if trailers && into.send(Ok(Frame::trailers(crate::body::fields_of(&sum)))).await.is_err() {
                return Fed::Refused;
            }
            Fed::Whole(sum)
        };
        let length = (!trailers).then_some(range.end - range.start);
        Ok((Relayed::new(frames, length).boxed_unsync(), feed))
    }

    /// Evaluates the outcome of a request with bytes of a file. An error of reading the file is no fault of the server or of the way there.
    fn sent(&self, sent: Result<(), RemoteError>, sum: &LateSum) -> Result<(), CopyError> {
        match read_error(sum) {
            Some(error) => Err(self.unreadable(error)),
            None => Ok(sent?),
        }
    }

    /// A source that was written to meanwhile is neither the old file nor the new one.
    async fn check_source(&self) -> Result<(), CopyError> {
        let Source::Local(file, before) = &self.source else { return Ok(()) };
        let file = file.clone();
        let now = self.copy.shell.blocking(move || file.about()).await.map_err(|error| self.unreadable(error))?;
        if now == *before { Ok(()) } else { Err(CopyError::Changed(self.item.source())) }
    }

    fn unreadable(&self, error: io::Error) -> CopyError {
        CopyError::Local { path: PathBuf::from(self.item.source()), error }
    }

    /// Whether a server knows of no upload: it was begun anew, or another part has ended the upload.
    pub(super) fn is_forgotten(&self, error: &CopyError) -> bool {
        let is_gone = matches!(error, CopyError::Remote(RemoteError::Refused { status: StatusCode::GONE, .. }));
        is_gone && matches!(self.target, Target::Upload(..))
    }

    /// Has a server go on with the upload, of which its journal knows what had arrived; `true`: the file is there already.
    pub(super) async fn take_up(&self) -> Result<bool, CopyError> {
        let Target::Upload(upload) = &self.target else { return Ok(false) };
        // By what it holds: an older file may have the same size and time.
        if has_arrived(&self.copy, &self.item, Sync::Hash).await? {
            return Ok(true);
        }
        upload.begin(&self.item.to.1, self.blocks, self.again_at_server()).await?;
        Ok(false)
    }

    /// An upload that has begun, and whose ending will tell its attributes.
    fn again_at_server(&self) -> Beginning<'static> {
        Beginning { resume: true, check: false, sparse: self.copy.sparse, attributes: None }
    }

    /// All blocks were copied: the file gets its name, unless some are not there as they should be.
    pub(super) async fn finish(&self) -> Result<Finished, CopyError> {
        let modified = self.item.modified();
        match &self.target {
            Target::Whole(_, Whole::Stream) if self.copy.proves => {
                let same = hash::is_proved(&self.copy, &self.item).await?;
                if same {
                    Ok(Finished::Done)
                } else {
                    Err(self.unproved("the server of the destination tells no digest, or another one"))
                }
            }
            Target::Whole(..) | Target::Asked(_) => Ok(Finished::Done),
            Target::Parts(upload) => match upload.finish(&self.item).await {
                // The answer of an earlier attempt was lost.
                Err(gone @ RemoteError::Refused { status: StatusCode::NOT_FOUND, .. }) => {
                    let there = has_arrived(&self.copy, &self.item, Sync::SizeTime).await?;
                    if there { Ok(Finished::Done) } else { Err(gone.into()) }
                }
                done => Ok(done.map(|()| Finished::Done)?),
            },
            Target::Landing(landing) => {
                let medium = |error| landed(&self.item, LandingError::Medium(self.item.to.1.clone(), error));
                if self.copy.verify {
                    let check = |landing: &Landing, _| landing.check();
                    let lost = landing.in_turn(&self.copy.shell, check).await.map_err(medium)?;
                    if !lost.is_empty() {
                        return self.again(lost);
                    }
                }
                if self.copy.proves {
                    self.prove(landing).await?;
                }
                self.mode().await?.into_iter().for_each(|mode| landing.inherit(mode));
                let finish = move |landing: &Landing, _| Ok(landing.finish(modified));
                match landing.in_turn(&self.copy.shell, finish).await.map_err(medium)? {
                    Err(LandingError::Unmet(..)) if !self.copy.replaces => {
                        Err(CopyError::Exists(self.item.to.0.shown(&self.item.to.1)))
                    }
                    finished => Ok(finished.map(|()| Finished::Done).map_err(|error| landed(&self.item, error))?),
                }
            }
            Target::Upload(upload) => {
                let sums: Vec<BlockSum> = self.state().sums.values().copied().collect();
                let root = match self.copy.proves {
                    // The checksums of earlier blocks were told by the server itself.
                    true => Some(hash::of_source(&self.copy, &self.item).await?),
                    false => (sums.len() as u64 == self.blocks.count()).then(|| root(&sums)),
                };
                let (name, verify) = (&self.item.to.1, self.copy.verify);
                let (attributes, mode, replaces) = (&self.attributes, self.mode().await?, self.copy.replaces);
                let ending = Ending { root, verify, modified, attributes, mode, replaces };
                for (server, of) in upload.all(self.blocks).skip(1) {
                    server.end_share(name, of).await?;
                }
                let (server, of) = upload.of_stream(0, self.blocks);
                match server.finish(name, of, ending).await {
                    Err(RemoteError::Refused { missing: Some(_), .. }) => {}
                    // Another part was quicker, or the answer of an earlier attempt was lost. An older file may have the same size and
                    // time. A plan's parts do not hash the whole file, because that takes longer than to copy a part.
                    Err(gone @ RemoteError::Refused { status: StatusCode::GONE, .. }) => {
                        let sync = if self.item.blocks.is_none() { Sync::Hash } else { Sync::SizeTime };
                        let there = has_arrived(&self.copy, &self.item, sync).await?;
                        return if there { Ok(Finished::Done) } else { Err(gone.into()) };
                    }
                    // The same reasons hold for an upload that replaces nothing.
                    Err(RemoteError::Refused { status: StatusCode::PRECONDITION_FAILED, .. }) => {
                        let there = has_arrived(&self.copy, &self.item, Sync::Hash).await?;
                        let exists = CopyError::Exists(self.item.to.0.shown(name));
                        return if there { Ok(Finished::Done) } else { Err(exists) };
                    }
                    done => return Ok(done.map(|()| Finished::Done)?),
                }
                let present = upload.begin(name, self.blocks, self.again_at_server()).await?;
                let mine = |number: &u64| self.item.has(*number) && !present.contains_key(number);
                let lost: Vec<u64> = (0..self.blocks.count()).filter(mine).collect();
                if lost.is_empty() { Ok(Finished::LeftToOthers) } else { self.again(lost) }
            }
        }
    }

    /// Compares the arrived file with the digest that the source's server tells. A differing file is discarded.
    async fn prove(&self, landing: &Arc<Landing>) -> Result<(), CopyError> {
        let Source::Remote(server, _) = &self.source else { return Ok(()) };
        let told = server.digest(&self.item.from.1, self.blocks.size(), true).await?;
        let (algorithm, told) = told.ok_or_else(|| self.unproved("its server tells no digest"))?;
        let (reading, size) = (landing.clone(), self.blocks.size());
        let same = self.copy.shell.blocking(move || {
            let same = reading.digests(0..size, &[algorithm])? == [(algorithm, told)];
            if !same {
                reading.discard()?;
            }
            Ok(same)
        });
        let medium = |error| crate::landing::LandingError::Medium(self.item.to.1.clone(), error);
        if same.await.map_err(medium)? { Ok(()) } else { Err(self.unproved("its server has another digest")) }
    }

    fn unproved(&self, why: &'static str) -> CopyError {
        CopyError::Unproved(self.item.source(), why)
    }

    /// Returns the rights of the source. If no block of the source was requested, its server is asked now.
    async fn mode(&self) -> Result<Option<u32>, CopyError> {
        match &self.source {
            Source::Remote(server, _) if self.item.is_reservoir && self.mode.get().is_none() => {
                let told = server.attributes(&self.item.from.1, Preserve { mode: true, extended: false }).await?;
                Ok(told.and_then(|told| told.mode))
            }
            _ => Ok(self.mode.get().copied()),
        }
    }

    /// Has these blocks, in their order, copied again.
    fn again(&self, lost: Vec<u64>) -> Result<Finished, CopyError> {
        let count = lost.len() as u64;
        let mut state = self.state();
        state.attempts += 1;
        if state.attempts >= ATTEMPTS {
            return Err(CopyError::Unhealed(self.item.to.0.shown(&self.item.to.1), count));
        }
        state.sums.retain(|number, _| lost.binary_search(number).is_err());
        let lost = if self.source.has_ranges() { lost } else { vec![0] };
        state.left = lost.len() as u64;
        state.waiting.extend(lost);
        Ok(Finished::Again(count))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The outcome of reading from one server for a request to another.
enum Fed {
    Whole(BlockSum),
    /// The request took no further bytes.
    Refused,
    Failed(CopyError),
}

impl Fed {
    /// Returns the checksums if the request succeeded, else the error of the end that failed first.
    fn relayed(self, sent: Result<(), RemoteError>) -> Result<BlockSum, CopyError> {
        match (self, sent) {
            (Fed::Failed(error), _) => Err(error),
            (_, Err(error)) => Err(error.into()),
            (Fed::Whole(sum), Ok(())) => Ok(sum),
            (Fed::Refused, Ok(())) => {
                let (host, error) = ("the destination".into(), "it did not take all of the file".into());
                Err(RemoteError::Connection { host, error }.into())
            }
        }
    }
}

/// Converts an error of a file that arrives in a folder of this machine; the message names the file's path.
fn landed(item: &Item, error: LandingError) -> CopyError {
    match error {
        LandingError::Medium(_, error) => CopyError::Local { path: item.to.0.shown(&item.to.1).into(), error },
        error => error.into(),
    }
}

/// Waits until so many bytes may go.
pub(super) async fn turn(copy: &Copy, bytes: usize) {
    if let Some(pace) = &copy.pace
        && let Some(turn) = pace.wait_after(copy.shell.now(), bytes as u64)
    {
        copy.shell.sleep_until(turn).await;
    }
}

/// Tests whether the item's name exists at the destination.
async fn has_anything(copy: &Copy, item: &Item) -> Result<bool, CopyError> {
    Ok(glance(copy, &item.to.0, &item.to.1).await?.is_some())
}

/// Whether the destination has the file already, as far as is asked.
async fn is_present(copy: &Copy, item: &Item) -> Result<bool, CopyError> {
    // What was finished just before a kill is not copied again.
    let goes_on = copy.resume || item.blocks.is_some();
    let sync = if goes_on && copy.sync != Sync::Hash { Sync::SizeTime } else { copy.sync };
    if sync == Sync::Nothing {
        return Ok(false);
    }
    has_arrived(copy, item, sync).await
}

/// Whether the destination has a file of this size, and of this time or hash if that counts.
pub(super) async fn has_arrived(copy: &Copy, item: &Item, sync: Sync) -> Result<bool, CopyError> {
    let found = match glance(copy, &item.to.0, &item.to.1).await {
        // A token that may only write does not see what is there.
        Err(CopyError::Remote(RemoteError::Refused { status, .. })) if status == 403 => None,
        found => found?,
    };
    match found {
        Some(found) if fits(&found.about, found.resolution, item, sync) => {
            if let Side::Local(folder, _) = &item.to.0 {
                let (folder, name) = (folder.clone(), item.to.1.clone());
                // An earlier copy may have failed by the name alone.
                let secured = copy.shell.blocking(move || Ok(secure_name(&*folder, &name))).await;
                let local = |error| CopyError::Local { path: item.to.0.shown(&item.to.1).into(), error };
                secured.map_err(local)?.map_err(|error| landed(item, error))?;
            }
            Ok(sync != Sync::Hash || hash::are_same(copy, item).await?)
        }
        _ => Ok(false),
    }
}

/// Whether this is a file of the item's size, and time if that counts.
pub(super) fn fits(found: &About, resolution: Resolution, item: &Item, sync: Sync) -> bool {
    let same_time = || mtime::are_same((found.modified, resolution), item.time());
    found.kind == Kind::File && found.size == item.size() && (sync != Sync::SizeTime || same_time())
}

/// The bytes of a block, wherever they come from.
enum Pieces {
    File(FileBody),
    Net(Option<Box<Reading>>, Arc<Remote>),
}

impl Pieces {
    async fn next(&mut self, job: &FileJob, stream: usize) -> Result<Option<Bytes>, CopyError> {
        match self {
            Pieces::File(body) => match body.frame().await {
                Some(frame) => Ok(frame.map_err(|error| job.unreadable(error))?.into_data().ok()),
                None => Ok(None),
            },
            Pieces::Net(reading, _) => {
                let Some(open) = reading else { return Ok(None) };
                let piece = open.next().await?;
                if let Some(piece) = &piece {
                    turn(&job.copy, piece.len()).await;
                    job.copy.progress.moved(stream, piece.len());
                }
                Ok(piece)
            }
        }
    }

    /// The checksums that the source tells, once all has come.
    fn end(self) -> Option<BlockSum> {
        match self {
            Pieces::File(body) => known(&body.sum()),
            Pieces::Net(reading, server) => reading.and_then(|reading| reading.end(&server)),
        }
    }
}

/// Bytes of a file that goes in one request, with its digest ahead.
const SMALL: u64 = 1 << 20;
/// How often a file is read again and mended.
const ATTEMPTS: u32 = 3;
/// Bits per second that one stream hardly exceeds: a window of 1 GiB in half a second.
const FASTEST_STREAM: u128 = 16_000_000_000;
/// Bytes that are asked for ahead of time, at most: TCP has no larger window (RFC 7323 2.3).
const MOST_AHEAD: u128 = 1 << 30;
/// The same in blocks, for blocks that are small.
const MOST_BLOCKS_AHEAD: usize = 256;
