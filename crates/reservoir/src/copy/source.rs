//! Sources of a file's blocks: a file of this machine, or of a server.

use super::file::{FileBlock, FileJob};
use super::list::CopyItem;
use super::place::CopyEnd;
use super::{Copy, CopyError};
use crate::attributes::{Attributes, Preserve};
use crate::blocks::{BlockHasher, BlockSum};
use crate::body::{Body, ChannelBody, FileRangeBody, fields_of, finished_sum, read_error};
use crate::mtime::{self, Resolution};
use crate::name::Name;
use crate::remote::{RangeReader, Remote, RemoteError, RemoteFileVersion};
use crate::storage::{FileInfo, Folder, StoredFile, evaluate_for};
use bytes::Bytes;
use core::pin::Pin;
use http_body_util::BodyExt;
use hyper::body::Frame;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use tokio::sync::mpsc;

/// A pending operation of a source or a target.
pub(super) type Pending<'a, T> = Pin<Box<dyn Future<Output = Result<T, CopyError>> + Send + 'a>>;

/// A pending request to the destination's server.
pub(super) type RequestFuture<'a> = Pin<Box<dyn Future<Output = Result<(), RemoteError>> + Send + 'a>>;

/// A request that sends a block to the destination.
pub(super) struct BlockUpload<'a> {
    /// Whether the block's checksums follow as trailers.
    pub(super) has_trailers: bool,
    pub(super) send: SendBody<'a>,
}

/// Sends the body of a request; over the pipelined connection of a stream, if one is given.
pub(super) type SendBody<'a> = Box<dyn FnOnce(Body, Option<usize>) -> RequestFuture<'a> + Send + 'a>;

/// The source of a file's blocks.
pub(super) trait BlockSource: Send + Sync {
    /// Tests whether several range requests are certain to read one version. If not, one request reads the whole file.
    fn has_ranges(&self) -> bool;

    /// Returns the open file. `None` if the source is on a server.
    fn file(&self) -> Option<&Arc<dyn StoredFile>> {
        None
    }

    /// Returns the server. `None` if the source is on this machine.
    fn server(&self) -> Option<&Arc<Remote>> {
        None
    }

    /// Reads the attributes to copy with the file.
    fn attributes<'a>(&'a self, copy: &'a Copy, item: &'a CopyItem) -> Pending<'a, Attributes>;

    /// Opens a block for a file of this machine.
    fn open<'a>(&'a self, job: &'a FileJob, block: FileBlock) -> Pending<'a, BlockPieces>;

    /// Sends a block. Returns its checksums, if they were computed.
    fn send<'a>(&'a self, job: &'a FileJob, block: FileBlock, put: BlockUpload<'a>) -> Pending<'a, Option<BlockSum>>;

    /// Tests that the source is still the file that was opened.
    ///
    /// # Errors
    /// If the source was written to, because the copy would mix two versions. Requests to a server specify the version
    /// instead.
    fn check<'a>(&'a self, _job: &'a FileJob) -> Pending<'a, ()> {
        Box::pin(async { Ok(()) })
    }
}

/// Opens the source of an item. If the source's mode is known, sets `mode`.
pub(super) async fn open(
    copy: &Copy,
    item: &CopyItem,
    mode: &OnceLock<u32>,
) -> Result<Box<dyn BlockSource>, CopyError> {
    Ok(match &item.from.0 {
        CopyEnd::Local(folder, _) => Box::new(LocalSource::open(copy, item, folder, mode).await?),
        CopyEnd::Remote(server, _) => Box::new(RemoteSource::open(copy, item, server).await?),
    })
}

/// A file of this machine.
struct LocalSource {
    file: Arc<dyn StoredFile>,
    /// The file's state when it was opened.
    before: FileInfo,
}

impl LocalSource {
    async fn open(
        copy: &Copy,
        item: &CopyItem,
        folder: &Arc<dyn Folder>,
        mode: &OnceLock<u32>,
    ) -> Result<LocalSource, CopyError> {
        let (folder, name) = (folder.clone(), item.from.1.clone());
        let opened = copy.shell.blocking(move || {
            let file = folder.open(&name)?;
            let about = file.about()?;
            let mode = file.attributes(Preserve { mode: true, extended: false })?.mode;
            // Files of /proc have the size 0, and a copy would be silently empty.
            if about.size == 0 && file.read_at(&mut [0], 0)? > 0 {
                let text = "the system does not tell its size (a file of /proc): copy the output of `cat`";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
            }
            Ok((file, about, mode))
        });
        let (file, before, told) = opened.await.map_err(|error| unreadable(item, error))?;
        told.into_iter().for_each(|told| _ = mode.set(told));
        // The blocks of an earlier run, if any, are those of the listed version.
        if item.tag.as_ref().is_none_or(|tag| *tag != before.entity_tag()) {
            return Err(CopyError::Changed(item.source()));
        }
        // Another file may have taken the name since the request was checked. The opened one is read from now on.
        evaluate_for(&before, &copy.source_preconditions).map_err(|unmet| CopyError::Unmet(item.source(), unmet))?;
        Ok(LocalSource { file, before })
    }

    fn body(&self, job: &FileJob, block: &FileBlock, has_trailers: bool) -> FileRangeBody {
        let hasher = BlockHasher::new(job.blocks, block.number);
        let (progress, stream) = (job.copy.progress.clone(), block.stream);
        FileRangeBody::new(job.copy.shell.clone(), self.file.clone(), block.range.clone(), Some(hasher), has_trailers)
            .paced(job.copy.pace.clone())
            .with_progress(Arc::new(move |bytes| progress.moved(stream, bytes)))
    }
}

impl BlockSource for LocalSource {
    fn has_ranges(&self) -> bool {
        true
    }

    fn file(&self) -> Option<&Arc<dyn StoredFile>> {
        Some(&self.file)
    }

    fn attributes<'a>(&'a self, copy: &'a Copy, item: &'a CopyItem) -> Pending<'a, Attributes> {
        Box::pin(async move {
            let (file, wanted) = (self.file.clone(), copy.preserve);
            let read = copy.shell.blocking(move || file.attributes(wanted));
            read.await.map_err(|error| unreadable(item, error))
        })
    }

    fn open<'a>(&'a self, job: &'a FileJob, block: FileBlock) -> Pending<'a, BlockPieces> {
        Box::pin(async move { Ok(BlockPieces::File(self.body(job, &block, false))) })
    }

    fn send<'a>(&'a self, job: &'a FileJob, block: FileBlock, put: BlockUpload<'a>) -> Pending<'a, Option<BlockSum>> {
        Box::pin(async move {
            let body = self.body(job, &block, put.has_trailers);
            // The body is moved into the request, which fills in the checksums as it reads.
            let sum = body.sum();
            let sent = (put.send)(body.boxed_unsync(), Some(block.stream)).await;
            // An error of reading the file is not an error of the server or the connection.
            if let Some(error) = read_error(&sum) {
                return Err(unreadable(&job.item, error));
            }
            sent?;
            self.check(job).await?;
            Ok(finished_sum(&sum))
        })
    }

    fn check<'a>(&'a self, job: &'a FileJob) -> Pending<'a, ()> {
        Box::pin(async move {
            let file = self.file.clone();
            let now = job.copy.shell.blocking(move || file.about()).await;
            let now = now.map_err(|error| unreadable(&job.item, error))?;
            if now == self.before { Ok(()) } else { Err(CopyError::Changed(job.item.source())) }
        })
    }
}

/// One version of a file on a server.
struct RemoteSource {
    server: Arc<Remote>,
    version: RemoteFileVersion,
}

impl RemoteSource {
    /// Determines the version of the source. A listing may have a weak tag or no tag, while the file itself has a date.
    async fn open(copy: &Copy, item: &CopyItem, server: &Arc<Remote>) -> Result<RemoteSource, CopyError> {
        let server = server.clone();
        let listed = RemoteFileVersion::from_tag(item.tag.as_deref());
        // Servers that copy between each other check the version themselves.
        if listed.is_strong() || copy.third_party.is_some() {
            return Ok(RemoteSource { server, version: listed });
        }
        let changed = || CopyError::Changed(item.source());
        let found = server.head(&item.from.1).await?.ok_or_else(changed)?;
        let is_same_time = item.resolution == Resolution::Unknown
            || mtime::are_same(item.time(), (found.about.modified, found.resolution));
        let is_same_tag = item.tag.is_none() || found.tag == item.tag;
        let is_same = found.about.size == item.size() && is_same_time && is_same_tag;
        if is_same { Ok(RemoteSource { server, version: found.version }) } else { Err(changed()) }
    }

    /// Requests a block; over the pipelined connection of its stream, if `on_line` and the server is a reservoir.
    async fn get(&self, job: &FileJob, block: &FileBlock, on_line: bool) -> Result<BlockPieces, CopyError> {
        let server = self.server.for_stream(block.stream);
        let is_reservoir = job.item.is_reservoir;
        let size = is_reservoir.then_some(job.blocks.block());
        let line = (on_line && is_reservoir).then_some(block.stream);
        let (name, range) = (&job.item.from.1, block.range.clone());
        let reading = server.get(name, range, job.blocks.size(), &self.version, size, line).await?;
        reading.mode().into_iter().for_each(|told| _ = job.mode.set(told));
        Ok(BlockPieces::Net(Some(Box::new(reading)), server.clone()))
    }
}

impl BlockSource for RemoteSource {
    fn has_ranges(&self) -> bool {
        self.version.is_strong()
    }

    fn server(&self) -> Option<&Arc<Remote>> {
        Some(&self.server)
    }

    fn attributes<'a>(&'a self, copy: &'a Copy, item: &'a CopyItem) -> Pending<'a, Attributes> {
        Box::pin(async move {
            if !item.is_reservoir {
                return Err(keeps_no_attributes(&item.from));
            }
            let told = self.server.attributes(&item.from.1, copy.preserve).await?;
            let wrong = "its server does not tell its attributes, or they are too many: leave xattrs out of --preserve";
            told.ok_or_else(|| CopyError::Unusable(format!("{}: {wrong}", item.source())))
        })
    }

    fn open<'a>(&'a self, job: &'a FileJob, block: FileBlock) -> Pending<'a, BlockPieces> {
        Box::pin(async move { self.get(job, &block, true).await })
    }

    fn send<'a>(&'a self, job: &'a FileJob, block: FileBlock, put: BlockUpload<'a>) -> Pending<'a, Option<BlockSum>> {
        Box::pin(async move {
            let pieces = self.get(job, &block, false).await?;
            let (into, frames) = mpsc::channel(2);
            let length = (!put.has_trailers).then_some(block.range.end - block.range.start);
            let sending = (put.send)(ChannelBody::new(frames, length).boxed_unsync(), None);
            // Both requests run at once, so that memory holds only a few pieces.
            let (sent, relayed) = tokio::join!(sending, relay(job, &block, pieces, put.has_trailers, into));
            relayed.sum(sent).map(Some)
        })
    }
}

/// Relays a block from one server to the request to another, followed by its checksums if `has_trailers`.
async fn relay(
    job: &FileJob,
    block: &FileBlock,
    mut pieces: BlockPieces,
    has_trailers: bool,
    into: mpsc::Sender<io::Result<Frame<Bytes>>>,
) -> RelayOutcome {
    let mut hasher = BlockHasher::new(job.blocks, block.number);
    loop {
        let piece = match pieces.next(job, block.stream).await {
            Ok(Some(piece)) => piece,
            Ok(None) => break,
            Err(error) => {
                // A clean end would look like the end of the file.
                let _ = into.send(Err(io::ErrorKind::UnexpectedEof.into())).await;
                return RelayOutcome::Failed(error);
            }
        };
        hasher.update(&piece);
        if into.send(Ok(Frame::data(piece))).await.is_err() {
            return RelayOutcome::Refused;
        }
    }
    let sum = hasher.finish();
    // The bytes were damaged between the source's medium and here, and must not reach the destination.
    if pieces.end().is_some_and(|told| told != sum) {
        let _ = into.send(Err(io::ErrorKind::InvalidData.into())).await;
        return RelayOutcome::Failed(CopyError::Differs(job.item.source(), block.number));
    }
    if has_trailers && into.send(Ok(Frame::trailers(fields_of(&sum)))).await.is_err() {
        return RelayOutcome::Refused;
    }
    RelayOutcome::Whole(sum)
}

/// The outcome of reading from one server for a request to another.
enum RelayOutcome {
    Whole(BlockSum),
    /// The request took no further bytes.
    Refused,
    Failed(CopyError),
}

impl RelayOutcome {
    /// Returns the checksums if the request succeeded, else the error of the end that failed first.
    fn sum(self, sent: Result<(), RemoteError>) -> Result<BlockSum, CopyError> {
        match (self, sent) {
            (RelayOutcome::Failed(error), _) => Err(error),
            (_, Err(error)) => Err(error.into()),
            (RelayOutcome::Whole(sum), Ok(())) => Ok(sum),
            (RelayOutcome::Refused, Ok(())) => {
                let (host, error) = ("the destination".into(), "it did not take all of the file".into());
                Err(RemoteError::Connection { host, error }.into())
            }
        }
    }
}

/// The bytes of a block, in pieces.
pub(super) enum BlockPieces {
    File(FileRangeBody),
    Net(Option<Box<RangeReader>>, Arc<Remote>),
}

impl BlockPieces {
    pub(super) async fn next(&mut self, job: &FileJob, stream: usize) -> Result<Option<Bytes>, CopyError> {
        match self {
            BlockPieces::File(body) => match body.frame().await {
                Some(frame) => Ok(frame.map_err(|error| unreadable(&job.item, error))?.into_data().ok()),
                None => Ok(None),
            },
            BlockPieces::Net(reading, _) => {
                let Some(open) = reading else { return Ok(None) };
                let piece = open.next().await?;
                if let Some(piece) = &piece {
                    job.copy.take_turn(piece.len()).await;
                    job.copy.progress.moved(stream, piece.len());
                }
                Ok(piece)
            }
        }
    }

    /// Returns the checksums that the source sent after the last piece.
    pub(super) fn end(self) -> Option<BlockSum> {
        match self {
            BlockPieces::File(body) => finished_sum(&body.sum()),
            BlockPieces::Net(reading, server) => reading.and_then(|reading| reading.end(&server)),
        }
    }
}

/// Returns the error of an unreadable source.
pub(super) fn unreadable(item: &CopyItem, error: io::Error) -> CopyError {
    CopyError::Local { path: PathBuf::from(item.source()), error }
}

/// Returns the error of a server without attributes.
pub(super) fn keeps_no_attributes((side, name): &(CopyEnd, Name)) -> CopyError {
    let text = "this server keeps no modes and attributes: leave --preserve out";
    CopyError::Unusable(format!("{}: {text}", side.shown(name)))
}
