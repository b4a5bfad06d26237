//! Targets on a server that receive the whole file in one request.

use super::file::{FileBlock, FileJob, FinishOutcome};
use super::source::{BlockUpload, Pending, SendBody, unreadable};
use super::target::BlockTarget;
use super::{CopyError, hash};
use crate::remote::{ExpectedDigest, Remote, UploadConditions};
use crate::storage::{StoredFile, read_exactly};
use bytes::Bytes;
use std::sync::Arc;

/// A file sent in one request, to a server without uploads by blocks.
pub(super) struct SingleRequest(Arc<Remote>);

impl SingleRequest {
    pub(super) fn new(server: &Arc<Remote>) -> SingleRequest {
        SingleRequest(server.clone())
    }

    /// Returns the digest that the server verifies.
    async fn expected(&self, job: &FileJob) -> Result<ExpectedDigest, CopyError> {
        #[cfg(feature = "s3")]
        if self.0.is_bucket()
            && let Some(md5) = super::multipart::md5(job, 0..job.blocks.size()).await?
        {
            return Ok(ExpectedDigest::Md5(md5));
        }
        let _ = job;
        Ok(ExpectedDigest::Nothing)
    }
}

impl BlockTarget for SingleRequest {
    fn takes_whole_file(&self) -> bool {
        true
    }

    fn transfer<'a>(&'a self, job: &'a FileJob, block: FileBlock) -> Pending<'a, ()> {
        Box::pin(async move {
            let conditions = UploadConditions { digest: self.expected(job).await?, replaces: job.copy.replaces };
            let (name, size, modified) = (&job.item.to.1, job.blocks.size(), job.item.modified());
            let attributes = (&job.attributes, None);
            let send: SendBody<'a> =
                Box::new(move |body, _| Box::pin(self.0.put_whole(name, body, size, modified, conditions, attributes)));
            let _ = job.source.send(job, block, BlockUpload { has_trailers: false, send }).await?;
            Ok(())
        })
    }

    fn finish<'a>(&'a self, job: &'a FileJob) -> Pending<'a, FinishOutcome> {
        Box::pin(async move {
            if job.copy.proves && !hash::is_proved(&job.copy, &job.item).await? {
                return Err(job.unproved("the server of the destination tells no digest, or another one"));
            }
            Ok(FinishOutcome::Done)
        })
    }
}

/// A small file of this machine, read as a whole, so that its digest is sent before it.
pub(super) struct SmallFile {
    server: Arc<Remote>,
    file: Arc<dyn StoredFile>,
}

impl SmallFile {
    pub(super) fn new(server: &Arc<Remote>, file: &Arc<dyn StoredFile>) -> SmallFile {
        SmallFile { server: server.clone(), file: file.clone() }
    }
}

impl BlockTarget for SmallFile {
    fn takes_whole_file(&self) -> bool {
        true
    }

    fn transfer<'a>(&'a self, job: &'a FileJob, block: FileBlock) -> Pending<'a, ()> {
        Box::pin(async move {
            let (file, size) = (self.file.clone(), job.blocks.size());
            let read = job.copy.shell.blocking(move || {
                let mut bytes = vec![0; size as usize];
                read_exactly(&*file, &mut bytes, 0)?;
                Ok((*blake3::hash(&bytes).as_bytes(), Bytes::from(bytes)))
            });
            let (digest, bytes) = read.await.map_err(|error| unreadable(&job.item, error))?;
            job.source.check(job).await?;
            job.copy.take_turn(bytes.len()).await;
            let (body, modified) = (crate::body::full(bytes), job.item.modified());
            let conditions = UploadConditions { digest: ExpectedDigest::Blake3(digest), replaces: job.copy.replaces };
            let attributes = (&job.attributes, job.mode.get().copied());
            self.server.put_whole(&job.item.to.1, body, size, modified, conditions, attributes).await?;
            job.copy.progress.moved(block.stream, size as usize);
            Ok(())
        })
    }
}
