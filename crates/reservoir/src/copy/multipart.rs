//! An upload to a bucket in parts, a block each. The server keeps the parts that have come, which stands for the journal of our own servers:
//! a copy that goes on reads their blocks again. If the MD5 of one is another, the upload is that of another version of the file, and a new one is begun.

use super::file::Source;
use super::list::Item;
use super::{Copy, CopyError};
use crate::blocks::{BlockHasher, BlockSum, Blocks};
use crate::body::Body;
use crate::digest::{Algorithm, Summer};
use crate::direct::aligned;
use crate::mtime;
use crate::remote::{Remote, RemoteError};
use crate::s3::{LEAST_PART, MOST_PARTS, Part};
use crate::storage::{Stored, read_exactly};
use core::ops::Range;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

/// An upload that has begun.
pub(super) struct Multipart {
    server: Arc<Remote>,
    upload: String,
    /// What the server calls each part, by its block.
    tags: Mutex<BTreeMap<u64, String>>,
}

impl Multipart {
    /// Begins one, or takes up the last one of the same name; gives the blocks that are there too.
    pub(super) async fn open(
        copy: &Copy,
        item: &Item,
        blocks: Blocks,
        source: &Source,
        server: &Arc<Remote>,
    ) -> Result<(Multipart, BTreeMap<u64, BlockSum>), CopyError> {
        if blocks.count() > MOST_PARTS || blocks.block() < LEAST_PART {
            let text = format!(
                "{}: an upload to a bucket has at most {MOST_PARTS} parts, of 5 MiB at least: choose another --block",
                item.source()
            );
            return Err(CopyError::Unusable(text));
        }
        let (mut tags, mut present) = (BTreeMap::new(), BTreeMap::new());
        let name = &item.to.1;
        // What came by way of here from another server can be compared with nothing.
        let before = match source {
            Source::Local(file, _) if copy.resume => server.last_upload(name).await?.map(|upload| (upload, file)),
            _ => None,
        };
        let mut upload = None;
        if let Some(((id, begun), file)) = before {
            let parts = server.parts(name, &id).await?;
            // The time of its source is a part of an upload from its beginning. Servers tell times in whole seconds, and not all when uploads were begun.
            let since = mtime::in_seconds(item.about.modified);
            let mut is_of_this = parts.iter().map(|part| part.came).chain([begun]).flatten().any(|time| time >= since);
            for Part { number, size, tag, .. } in if is_of_this { parts } else { Vec::new() } {
                let block = u64::from(number).checked_sub(1).filter(|block| *block < blocks.count());
                let block = block.filter(|block| size == blocks.range(*block).end - blocks.range(*block).start);
                let mut came = None;
                if let Some(block) = block {
                    let file = file.clone();
                    let summed = copy.shell.blocking(move || sums(&*file, blocks, block)).await;
                    let (md5, sum) = summed.map_err(|error| CopyError::Local { path: item.source().into(), error })?;
                    let is_equal = tag.trim_matches('"').eq_ignore_ascii_case(&crate::digest::hexadecimal(&md5));
                    came = is_equal.then_some((block, sum));
                }
                // A part of another file, or of other blocks: the upload's time is that file's as well.
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

    /// Sends a block; the server checks its MD5, if that is given.
    pub(super) async fn put(
        &self,
        item: &Item,
        number: u64,
        body: Body,
        size: u64,
        md5: Option<Vec<u8>>,
    ) -> Result<(), RemoteError> {
        let part = u16::try_from(number + 1).expect("there are at most 10,000");
        let tag = self.server.put_part(&item.to.1, &self.upload, part, body, size, md5.as_deref()).await?;
        self.tags().insert(number, tag);
        Ok(())
    }

    /// All parts are there: they become the object.
    pub(super) async fn finish(&self, item: &Item) -> Result<(), RemoteError> {
        let tags: Vec<String> = self.tags().values().cloned().collect();
        let tags: Vec<&str> = tags.iter().map(String::as_str).collect();
        self.server.complete_upload(&item.to.1, &self.upload, &tags).await
    }

    fn tags(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, String>> {
        self.tags.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The MD5 of a range.
pub(super) fn md5(file: &dyn Stored, range: Range<u64>) -> io::Result<Vec<u8>> {
    let mut summer = Summer::new(Algorithm::Md5);
    each_piece(file, range, |piece| summer.update(piece))?;
    Ok(summer.finish())
}

/// The MD5 of a block, and its own checksums.
fn sums(file: &dyn Stored, blocks: Blocks, number: u64) -> io::Result<(Vec<u8>, BlockSum)> {
    let (mut summer, mut hasher) = (Summer::new(Algorithm::Md5), BlockHasher::new(blocks, number));
    each_piece(file, blocks.range(number), |piece| {
        summer.update(piece);
        hasher.update(piece);
    })?;
    Ok((summer.finish(), hasher.finish()))
}

fn each_piece(file: &dyn Stored, range: Range<u64>, mut take: impl FnMut(&[u8])) -> io::Result<()> {
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
