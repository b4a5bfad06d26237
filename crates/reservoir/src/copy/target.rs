//! Targets of a file's blocks. The choice depends on the destination, and on the source's support for ranges.
//!
//! | target | destination |
//! |---|---|
//! | [`LocalFile`] | a folder of this machine |
//! | [`ReservoirUpload`] | reservoir servers, block by block |
//! | [`SmallFile`] | a reservoir server, in one request with the file's digest first |
//! | [`SingleRequest`] | any server, in one request |
//! | `Multipart` | a bucket, in parts |
//! | `ThirdPartyCopy` | any server; two servers copy the file between them |

use super::file::{FileBlock, FileJob, FinishOutcome};
use super::list::CopyItem;
use super::local::LocalFile;
#[cfg(feature = "s3")]
use super::multipart::Multipart;
use super::place::CopyEnd;
use super::request::{SingleRequest, SmallFile};
use super::source::{BlockSource, Pending};
#[cfg(feature = "third-party")]
use super::third_party::ThirdPartyCopy;
use super::upload::ReservoirUpload;
use super::{Copy, CopyError};
use crate::attributes::Attributes;
use crate::blocks::{BlockSum, Blocks};
use crate::remote::Remote;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The target of a file's blocks.
pub(super) trait BlockTarget: Send + Sync {
    /// Tests whether the whole file is one transfer.
    fn takes_whole_file(&self) -> bool {
        false
    }

    /// Returns the server whose responses a stream waits for, if several blocks of the stream may be in flight.
    fn pipelined<'a>(&'a self, _job: &'a FileJob, _stream: usize) -> Option<&'a Arc<Remote>> {
        None
    }

    /// Copies a block.
    fn transfer<'a>(&'a self, job: &'a FileJob, block: FileBlock) -> Pending<'a, ()>;

    /// Completes the file, unless some blocks are wrong.
    fn finish<'a>(&'a self, _job: &'a FileJob) -> Pending<'a, FinishOutcome> {
        Box::pin(async { Ok(FinishOutcome::Done) })
    }

    /// Tests whether [`resume`](Self::resume) may help if the server has forgotten the upload.
    fn can_resume(&self) -> bool {
        false
    }

    /// Makes the server resume the upload from its journal. Returns `true` if the file is complete already.
    fn resume<'a>(&'a self, _job: &'a FileJob) -> Pending<'a, bool> {
        Box::pin(async { Ok(false) })
    }
}

/// An open target, and the checksums of the present blocks.
pub(super) type OpenTarget = (Box<dyn BlockTarget>, BTreeMap<u64, BlockSum>);

/// Opens the target of an item.
pub(super) async fn open(
    copy: &Copy,
    item: &CopyItem,
    blocks: Blocks,
    source: &dyn BlockSource,
    attributes: &Attributes,
) -> Result<OpenTarget, CopyError> {
    #[cfg(feature = "third-party")]
    if let Some(way) = copy.third_party {
        return Ok((Box::new(ThirdPartyCopy::new(copy, item, way)?), BTreeMap::new()));
    }
    if matches!(&item.to.0, CopyEnd::Remote(..)) {
        let unusable = |why| CopyError::Unusable(format!("{}: {why}: leave xattrs out of --preserve", item.source()));
        attributes.check().map_err(unusable)?;
    }
    // Without a strong version, two range requests may read different versions.
    let one_request = !source.has_ranges();
    if one_request && item.blocks.is_some() {
        return Err(CopyError::Changed(item.source()));
    }
    // Present bytes may belong to another version than the source's present one.
    let resume = (copy.resume || item.blocks.is_some()) && !one_request;
    let server = match &item.to.0 {
        CopyEnd::Local(folder, _) => return LocalFile::open(copy, item, blocks, folder, attributes, resume).await,
        CopyEnd::Remote(server, _) => server,
    };
    let name = &item.to.1;
    if one_request {
        if copy.verify {
            return Err(CopyError::Unusable(format!(
                "{}: its server does not tell its version, so that no block can be sent again: leave --verify out",
                item.source()
            )));
        }
        return Ok((Box::new(SingleRequest::new(server.for_name(name))), BTreeMap::new()));
    }
    #[cfg(feature = "s3")]
    if server.is_bucket() && item.size() > copy.block {
        let (upload, present) = Multipart::open(copy, item, blocks, source, server).await?;
        return Ok((Box::new(upload), present));
    }
    if !server.is_reservoir().await? {
        if copy.verify {
            let shown = item.to.0.shown(name);
            return Err(CopyError::Unusable(format!(
                "{shown}: this server cannot be asked to read its medium: leave --verify out"
            )));
        }
        return Ok((Box::new(SingleRequest::new(server.for_name(name))), BTreeMap::new()));
    }
    if let Some(file) = source.file()
        && item.size() <= SMALL.min(copy.block)
        && !copy.verify
    {
        return Ok((Box::new(SmallFile::new(server.for_name(name), file)), BTreeMap::new()));
    }
    ReservoirUpload::open(copy, item, blocks, server, attributes, resume).await
}

/// Maximum length of a file sent in one request with its digest first.
const SMALL: u64 = 1 << 20;
