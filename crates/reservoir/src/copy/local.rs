//! A target in a folder of this machine, written through a [`LandingFile`].

use super::file::{FileBlock, FileJob, FinishOutcome};
use super::list::CopyItem;
use super::source::Pending;
use super::target::{BlockTarget, OpenTarget};
use super::{Copy, CopyError};
use crate::attributes::Attributes;
use crate::blocks::Blocks;
use crate::landing::{LandingError, LandingFile, ResumeMode};
use crate::remote::Remote;
use crate::sink::Sink;
use crate::storage::Folder;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// A file received in a folder of this machine.
pub(super) struct LocalFile(Arc<LandingFile>);

impl LocalFile {
    pub(super) async fn open(
        copy: &Copy,
        item: &CopyItem,
        blocks: Blocks,
        folder: &Arc<dyn Folder>,
        attributes: &Attributes,
        resume: bool,
    ) -> Result<OpenTarget, CopyError> {
        let begin = if resume { ResumeMode::Resume } else { ResumeMode::Anew };
        let (folder, name, version, sparse) = (folder.clone(), item.to.1.clone(), item.version(), copy.sparse);
        let (attributes, mut preconditions) = (attributes.clone(), copy.preconditions.clone());
        if !copy.replaces {
            preconditions = preconditions.for_new_file();
        }
        let opened = copy.shell.blocking(move || {
            Ok(LandingFile::open(folder, &name, blocks, &version, begin).and_then(|landing| {
                landing.require(preconditions);
                if sparse {
                    landing.leave_holes();
                }
                landing.keep(attributes)?;
                let sum = |number| Some((number, landing.sum(number)?));
                let present = (0..blocks.count()).filter_map(sum).collect();
                Ok((landing, present))
            }))
        });
        let local = |error| CopyError::Local { path: PathBuf::from(item.to.0.shown(&item.to.1)), error };
        let (landing, present) = opened.await.map_err(local)?.map_err(|error| landed(item, error))?;
        Ok((Box::new(LocalFile(Arc::new(landing))), present))
    }

    /// Compares the received file with the digest that the source's server tells. A differing file is discarded.
    async fn prove(&self, job: &FileJob) -> Result<(), CopyError> {
        let Some(server) = job.source.server() else { return Ok(()) };
        let told = server.digest(&job.item.from.1, job.blocks.size(), true).await?;
        let (algorithm, told) = told.ok_or_else(|| job.unproved("its server tells no digest"))?;
        let (reading, size) = (self.0.clone(), job.blocks.size());
        let same = job.copy.shell.blocking(move || {
            let same = reading.digests(0..size, &[algorithm])? == [(algorithm, told)];
            if !same {
                reading.discard()?;
            }
            Ok(same)
        });
        let medium = |error| LandingError::Medium(job.item.to.1.clone(), error);
        if same.await.map_err(medium)? { Ok(()) } else { Err(job.unproved("its server has another digest")) }
    }
}

impl BlockTarget for LocalFile {
    fn pipelined<'a>(&'a self, job: &'a FileJob, stream: usize) -> Option<&'a Arc<Remote>> {
        job.source.server().filter(|_| job.item.is_reservoir).map(|server| server.for_stream(stream))
    }

    fn transfer<'a>(&'a self, job: &'a FileJob, block: FileBlock) -> Pending<'a, ()> {
        Box::pin(async move {
            let medium = |error| medium(&job.item, error);
            let mut pieces = job.source.open(job, block.clone()).await?;
            let mut sink = Sink::new(job.copy.shell.clone(), self.0.clone(), block.range);
            while let Some(piece) = pieces.next(job, block.stream).await? {
                sink.push(&piece).await.map_err(medium)?;
            }
            // The connection is released for the next block while this block's last piece is written.
            let told = pieces.end();
            let written = sink.end().await.map_err(medium)?;
            // The present block came with an earlier request, and may belong to another version.
            if written.differs.is_some() {
                return Err(CopyError::Changed(job.item.source()));
            }
            for (number, sum) in written.blocks {
                if told.is_some_and(|told| told != sum) {
                    return Err(CopyError::Differs(job.item.source(), number));
                }
                // Before the journal line: a block of a changed source must not be resumed.
                job.source.check(job).await?;
                let epoch = written.epoch;
                let done = move |landing: &LandingFile, enough| landing.done_to(enough, number, sum, epoch);
                self.0.in_turn(&job.copy.shell, done).await.map_err(medium)?;
                job.add_sum(number, sum);
            }
            Ok(())
        })
    }

    fn finish<'a>(&'a self, job: &'a FileJob) -> Pending<'a, FinishOutcome> {
        Box::pin(async move {
            let (landing, shell) = (&self.0, &job.copy.shell);
            let medium = |error| medium(&job.item, error);
            if job.copy.verify {
                let lost = landing.in_turn(shell, |landing, _| landing.check()).await.map_err(medium)?;
                if !lost.is_empty() {
                    return job.again(lost);
                }
            }
            if job.copy.proves {
                self.prove(job).await?;
            }
            job.source_mode().await?.into_iter().for_each(|mode| landing.inherit(mode));
            let modified = job.item.modified();
            let finish = move |landing: &LandingFile, _| Ok(landing.finish(modified));
            match landing.in_turn(shell, finish).await.map_err(medium)? {
                Err(LandingError::Unmet(..)) if !job.copy.replaces => Err(job.exists()),
                finished => Ok(finished.map(|()| FinishOutcome::Done).map_err(|error| landed(&job.item, error))?),
            }
        })
    }
}

fn medium(item: &CopyItem, error: io::Error) -> CopyError {
    landed(item, LandingError::Medium(item.to.1.clone(), error))
}

/// Converts an error of a file received in a folder of this machine; the message has the file's path.
pub(super) fn landed(item: &CopyItem, error: LandingError) -> CopyError {
    match error {
        LandingError::Medium(_, error) => CopyError::Local { path: item.to.0.shown(&item.to.1).into(), error },
        error => error.into(),
    }
}
