//! A target on reservoir servers: an upload by blocks, to one server or to several servers of one file system.

use super::file::{FileBlock, FileJob, FinishOutcome};
use super::list::CopyItem;
use super::presence::has_arrived;
use super::source::{BlockUpload, Pending, SendBody};
use super::target::{BlockTarget, OpenTarget};
use super::{Copy, CopyError, SyncMode, hash};
use crate::attributes::Attributes;
use crate::blocks::{BlockSum, Blocks, root};
use crate::name::Name;
use crate::remote::{Remote, RemoteError, UploadEnd, UploadShare, UploadStart};
use hyper::StatusCode;
use std::collections::BTreeMap;
use std::sync::Arc;

/// An upload to one reservoir server, or to several with the same files. Each server receives the blocks of its
/// streams.
pub(super) struct ReservoirUpload {
    /// The servers. The first one creates the file.
    servers: Vec<Arc<Remote>>,
    id: String,
}

impl ReservoirUpload {
    pub(super) async fn open(
        copy: &Copy,
        item: &CopyItem,
        blocks: Blocks,
        server: &Arc<Remote>,
        attributes: &Attributes,
        resume: bool,
    ) -> Result<OpenTarget, CopyError> {
        // Parts of a plan end at different times, so they use one server.
        let shared = if item.blocks.is_none() { blocks.count() } else { 0 };
        let servers = server.writers(&item.to.1, shared);
        let id = crate::digest::hexadecimal(&blake3::hash(item.version().as_bytes()).as_bytes()[..16]);
        let (check, sparse, attributes) = (item.blocks.is_none(), copy.sparse, Some(attributes));
        let upload = ReservoirUpload { servers, id };
        let present = upload.begin(&item.to.1, blocks, UploadStart { resume, check, sparse, attributes }).await?;
        Ok((Box::new(upload), present))
    }

    /// Returns the server of a stream, with its view of the upload.
    fn for_stream(&self, stream: usize, blocks: Blocks) -> (&Arc<Remote>, UploadShare<'_>) {
        let share = stream % self.servers.len();
        // There are at most 64 shares.
        let (id, shares) = (&self.id[..], self.servers.len() as u16);
        (&self.servers[share], UploadShare { id, blocks, share: share as u16, shares })
    }

    fn all(&self, blocks: Blocks) -> impl Iterator<Item = (&Arc<Remote>, UploadShare<'_>)> {
        (0..self.servers.len()).map(move |share| self.for_stream(share, blocks))
    }

    /// Begins the upload at all servers. Returns the present blocks.
    async fn begin(
        &self,
        name: &Name,
        blocks: Blocks,
        beginning: UploadStart<'_>,
    ) -> Result<BTreeMap<u64, BlockSum>, RemoteError> {
        let mut present = BTreeMap::new();
        for (server, of) in self.all(blocks) {
            // The server that creates the file also sets its attributes.
            let attributes = beginning.attributes.filter(|_| of.share == 0);
            present.extend(server.begin(name, of, UploadStart { attributes, ..beginning }).await?);
        }
        Ok(present)
    }

    /// Resumes the upload. The attributes are sent at its end.
    async fn begin_again(&self, job: &FileJob) -> Result<BTreeMap<u64, BlockSum>, RemoteError> {
        let beginning = UploadStart { resume: true, check: false, sparse: job.copy.sparse, attributes: None };
        self.begin(&job.item.to.1, job.blocks, beginning).await
    }
}

impl BlockTarget for ReservoirUpload {
    fn pipelined<'a>(&'a self, job: &'a FileJob, stream: usize) -> Option<&'a Arc<Remote>> {
        job.source.file().map(|_| self.for_stream(stream, job.blocks).0)
    }

    fn transfer<'a>(&'a self, job: &'a FileJob, block: FileBlock) -> Pending<'a, ()> {
        Box::pin(async move {
            let (server, of) = self.for_stream(block.stream, job.blocks);
            let number = block.number;
            let send: SendBody<'a> =
                Box::new(move |body, line| Box::pin(server.put_block(&job.item.to.1, of, number, body, line)));
            if let Some(sum) = job.source.send(job, block, BlockUpload { has_trailers: true, send }).await? {
                job.add_sum(number, sum);
            }
            Ok(())
        })
    }

    fn finish<'a>(&'a self, job: &'a FileJob) -> Pending<'a, FinishOutcome> {
        Box::pin(async move {
            let (copy, item) = (&job.copy, &job.item);
            let sums = job.sums();
            let root = match copy.proves {
                // The checksums of resumed blocks were told by the server itself, so they prove nothing.
                true => Some(hash::source_hash(copy, item).await?),
                false => (sums.len() as u64 == job.blocks.count()).then(|| root(&sums)),
            };
            let (name, verify, modified) = (&item.to.1, copy.verify, item.modified());
            let (attributes, mode, replaces) = (&job.attributes, job.source_mode().await?, copy.replaces);
            let ending = UploadEnd { root, verify, modified, attributes, mode, replaces };
            for (server, of) in self.all(job.blocks).skip(1) {
                server.end_share(name, of).await?;
            }
            let (server, of) = self.for_stream(0, job.blocks);
            match server.finish(name, of, ending).await {
                Err(RemoteError::Refused { missing: Some(_), .. }) => {}
                // Another part was faster, or the response to an earlier attempt was lost. An older file may have the
                // same size and time, so the hash is compared. Parts of a plan skip that, because hashing the whole
                // file takes longer than copying a part.
                Err(gone @ RemoteError::Refused { status: StatusCode::GONE, .. }) => {
                    let sync = if item.blocks.is_none() { SyncMode::Hash } else { SyncMode::SizeTime };
                    let there = has_arrived(copy, item, sync).await?;
                    return if there { Ok(FinishOutcome::Done) } else { Err(gone.into()) };
                }
                // The same applies to an upload that replaces nothing.
                Err(RemoteError::Refused { status: StatusCode::PRECONDITION_FAILED, .. }) => {
                    let there = has_arrived(copy, item, SyncMode::Hash).await?;
                    return if there { Ok(FinishOutcome::Done) } else { Err(job.exists()) };
                }
                done => return Ok(done.map(|()| FinishOutcome::Done)?),
            }
            let present = self.begin_again(job).await?;
            let mine = |number: &u64| item.has(*number) && !present.contains_key(number);
            let lost: Vec<u64> = (0..job.blocks.count()).filter(mine).collect();
            if lost.is_empty() { Ok(FinishOutcome::LeftToOthers) } else { job.again(lost) }
        })
    }

    fn can_resume(&self) -> bool {
        true
    }

    fn resume<'a>(&'a self, job: &'a FileJob) -> Pending<'a, bool> {
        Box::pin(async move {
            // By hash, because an older file may have the same size and time.
            if has_arrived(&job.copy, &job.item, SyncMode::Hash).await? {
                return Ok(true);
            }
            self.begin_again(job).await?;
            Ok(false)
        })
    }
}
