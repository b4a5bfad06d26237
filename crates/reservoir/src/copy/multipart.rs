//! A multipart upload to a bucket, one part per block. The server's list of parts serves as the journal: a resumed copy
//! reads the blocks of these parts again. If the MD5 of a part differs, the upload belongs to another version of the
//! file, and a new one is created.

use super::file::{FileBlock, FileJob, FinishOutcome};
use super::list::CopyItem;
use super::presence::has_arrived;
use super::source::{BlockSource, BlockUpload, Pending, SendBody, unreadable};
use super::target::BlockTarget;
use super::{Copy, CopyError, SyncMode};
use crate::blocks::{BlockHasher, BlockSum, Blocks};
use crate::digest::{DigestHasher, HashAlgorithm};
use crate::direct::aligned;
use crate::mtime;
use crate::remote::{Remote, RemoteError};
use crate::s3::{BucketPart, MAX_PARTS, MIN_PART};
use crate::storage::{StoredFile, read_exactly};
use core::ops::Range;
use hyper::StatusCode;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

/// An upload in progress.
pub(super) struct Multipart {
    server: Arc<Remote>,
    upload: String,
    /// The server's tag of each part, by block.
    tags: Mutex<BTreeMap<u64, String>>,
}

impl Multipart {
    /// Creates an upload, or resumes the last one of the same name. Also returns the present blocks.
    pub(super) async fn open(
        copy: &Copy,
        item: &CopyItem,
        blocks: Blocks,
        source: &dyn BlockSource,
        server: &Arc<Remote>,
    ) -> Result<(Multipart, BTreeMap<u64, BlockSum>), CopyError> {
        if blocks.count() > MAX_PARTS || blocks.block() < MIN_PART {
            let text = format!(
                "{}: an upload to a bucket has at most {MAX_PARTS} parts, of 5 MiB at least: choose another --block",
                item.source()
            );
            return Err(CopyError::Unusable(text));
        }
        let (mut tags, mut present) = (BTreeMap::new(), BTreeMap::new());
        let name = &item.to.1;
        // A relayed file from another server has no local bytes for comparison.
        let before = match source.file() {
            Some(file) if copy.resume => server.last_upload(name).await?.map(|upload| (upload, file)),
            _ => None,
        };
        let mut upload = None;
        if let Some(((id, begun), file)) = before {
            let parts = server.parts(name, &id).await?;
            // The source's modification time is part of an upload from its start. Servers tell times in whole seconds,
            // and not all tell the start of uploads.
            let since = mtime::in_seconds(item.about.modified);
            let mut is_of_this = parts.iter().map(|part| part.came).chain([begun]).flatten().any(|time| time >= since);
            for BucketPart { number, size, tag, .. } in if is_of_this { parts } else { Vec::new() } {
                let block = u64::from(number).checked_sub(1).filter(|block| *block < blocks.count());
                let block = block.filter(|block| size == blocks.range(*block).end - blocks.range(*block).start);
                let mut came = None;
                if let Some(block) = block {
                    let file = file.clone();
                    let summed = copy.shell.blocking(move || sums(&*file, blocks, block)).await;
                    let (md5, sum) = summed.map_err(|error| unreadable(item, error))?;
                    let is_equal = tag.trim_matches('"').eq_ignore_ascii_case(&crate::digest::hexadecimal(&md5));
                    came = is_equal.then_some((block, sum));
                }
                // The part belongs to another file or block size, and so does the upload with its modification time.
                let Some((block, sum)) = came else {
                    is_of_this = false;
                    break;
                };
                tags.insert(block, tag);
                present.insert(block, sum);
            }
            if is_of_this {
                upload = Some(id);
            } else {
                (tags, present) = Default::default();
            }
        }
        let upload = match upload {
            Some(upload) => upload,
            None => server.create_upload(name, item.modified()).await?,
        };
        Ok((Multipart { server: server.clone(), upload, tags: Mutex::new(tags) }, present))
    }

    fn tags(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, String>> {
        self.tags.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BlockTarget for Multipart {
    fn transfer<'a>(&'a self, job: &'a FileJob, block: FileBlock) -> Pending<'a, ()> {
        Box::pin(async move {
            let size = block.range.end - block.range.start;
            // The server verifies the MD5. It can be computed only if the part can be read twice.
            let md5 = md5(job, block.range.clone()).await?;
            let (number, name) = (block.number, &job.item.to.1);
            let send: SendBody<'a> = Box::new(move |body, _| {
                Box::pin(async move {
                    let part = u16::try_from(number + 1).expect("there are at most 10,000");
                    let tag = self.server.put_part(name, &self.upload, part, body, size, md5.as_deref()).await?;
                    self.tags().insert(number, tag);
                    Ok(())
                })
            });
            let _ = job.source.send(job, block, BlockUpload { has_trailers: false, send }).await?;
            Ok(())
        })
    }

    fn finish<'a>(&'a self, job: &'a FileJob) -> Pending<'a, FinishOutcome> {
        Box::pin(async move {
            let tags: Vec<String> = self.tags().values().cloned().collect();
            let tags: Vec<&str> = tags.iter().map(String::as_str).collect();
            match self.server.complete_upload(&job.item.to.1, &self.upload, &tags).await {
                // The response to an earlier attempt may have been lost.
                Err(gone @ RemoteError::Refused { status: StatusCode::NOT_FOUND, .. }) => {
                    let there = has_arrived(&job.copy, &job.item, SyncMode::SizeTime).await?;
                    if there { Ok(FinishOutcome::Done) } else { Err(gone.into()) }
                }
                done => Ok(done.map(|()| FinishOutcome::Done)?),
            }
        })
    }
}

/// Returns the MD5 of a range of the source. `None` if the source is on a server.
pub(super) async fn md5(job: &FileJob, range: Range<u64>) -> Result<Option<Vec<u8>>, CopyError> {
    let Some(file) = job.source.file().cloned() else { return Ok(None) };
    let summed = job.copy.shell.blocking(move || {
        let mut summer = DigestHasher::new(HashAlgorithm::Md5);
        each_piece(&*file, range, |piece| summer.update(piece))?;
        Ok(summer.finish())
    });
    summed.await.map(Some).map_err(|error| unreadable(&job.item, error))
}

/// Returns the MD5 of a block, and its checksums.
fn sums(file: &dyn StoredFile, blocks: Blocks, number: u64) -> io::Result<(Vec<u8>, BlockSum)> {
    let (mut summer, mut hasher) = (DigestHasher::new(HashAlgorithm::Md5), BlockHasher::new(blocks, number));
    each_piece(file, blocks.range(number), |piece| {
        summer.update(piece);
        hasher.update(piece);
    })?;
    Ok((summer.finish(), hasher.finish()))
}

fn each_piece(file: &dyn StoredFile, range: Range<u64>, mut take: impl FnMut(&[u8])) -> io::Result<()> {
    let mut piece = aligned(crate::body::PIECE.min((range.end - range.start) as usize));
    let mut at = range.start;
    while at < range.end {
        let part = &mut piece[..crate::body::PIECE.min((range.end - at) as usize)];
        read_exactly(file, part, at)?;
        take(part);
        at += part.len() as u64;
    }
    Ok(())
}
