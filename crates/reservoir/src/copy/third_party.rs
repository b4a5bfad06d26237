//! Copies between two servers: as a client that asks one of them, and the rules for a copy that a server makes for a
//! client.

use super::file::{FileBlock, FileJob};
use super::list::{self, CopyItem, find_entry};
use super::place::{self, CopyEnd, CopyLocation};
use super::presence::fits;
use super::source::Pending;
use super::target::BlockTarget;
use super::{Copy, CopyError, CopyOutcome, SyncMode};
use crate::name::Name;
use crate::pace::Pace;
use crate::remote::{Remote, RemoteError, ThirdParty};
use http_rules::Preconditions;
use hyper::StatusCode;
use std::sync::Arc;

impl Copy {
    /// Makes servers copy between each other: one of them asks the other, and this machine only watches.
    #[must_use]
    pub fn third_party(mut self, way: Option<ThirdParty>) -> Copy {
        self.third_party = way;
        self
    }

    /// Shares a pacer with other copies.
    pub(crate) fn shared_pace(mut self, pace: Option<Arc<Pace>>) -> Copy {
        self.pace = pace;
        self
    }

    /// Sets preconditions that must be met when a file in a folder of this machine gets its name.
    pub(crate) fn preconditions(mut self, preconditions: Preconditions) -> Copy {
        self.preconditions = preconditions;
        self
    }

    /// Sets preconditions that must be met when a file in a folder of this machine is opened as a source.
    pub(crate) fn source_preconditions(mut self, preconditions: Preconditions) -> Copy {
        self.source_preconditions = preconditions;
        self
    }

    /// Sets whether files of the destination are replaced. If not, an existing file fails the copy.
    pub(crate) fn replaces(mut self, replaces: bool) -> Copy {
        self.replaces = replaces;
        self
    }

    /// Sets whether a digest of the other end is compared before a file gets its name, or after the upload to a server
    /// that does not verify digests. A file without such a digest fails.
    pub(crate) fn proves(mut self, proves: bool) -> Copy {
        self.proves = proves;
        self
    }

    /// Copies the file `source` to the name `to`. A folder at either end is an error.
    ///
    /// # Errors
    /// If `source` is not a file, or `to` is a folder.
    pub(crate) async fn run_file(&self, source: &CopyLocation, to: &CopyLocation) -> Result<CopyOutcome, CopyError> {
        let item = list::file(self, source, to).await?;
        Ok(self.copy(vec![item]).await)
    }

    /// Tests whether `place` exists.
    ///
    /// # Errors
    /// If its server does not answer.
    pub(crate) async fn is_there(&self, place: &CopyLocation) -> Result<bool, CopyError> {
        let (side, name) = place::CopyEnds::new(self).open(place)?;
        Ok(find_entry(self, &side, &name).await?.is_some())
    }
}

/// A copy that one server makes from or to another.
pub(super) struct ThirdPartyCopy {
    way: ThirdParty,
    by: (Arc<Remote>, Name),
    other: (Arc<Remote>, Name),
}

impl ThirdPartyCopy {
    pub(super) fn new(copy: &Copy, item: &CopyItem, way: ThirdParty) -> Result<ThirdPartyCopy, CopyError> {
        let unusable = |why| Err(CopyError::Unusable(format!("{}: {why}", item.source())));
        let (CopyEnd::Remote(from, _), CopyEnd::Remote(to, _)) = (&item.from.0, &item.to.0) else {
            return unusable("--third-party is for copies between two servers");
        };
        if from.is_bucket() || to.is_bucket() {
            return unusable("buckets cannot copy from or to other servers: leave --third-party out");
        }
        // COPY has no fields for these options.
        if copy.verify || copy.sparse || !copy.preserve.is_empty() || item.blocks.is_some() {
            return unusable(
                "servers copy whole files between them, without attributes: leave --third-party, or --verify, --sparse and --preserve out",
            );
        }
        let (from, to) = ((from.clone(), item.from.1.clone()), (to.clone(), item.to.1.clone()));
        // A pull is made by the destination, and a push by the source.
        let (by, other) = if way == ThirdParty::Pull { (to, from) } else { (from, to) };
        Ok(ThirdPartyCopy { way, by, other })
    }
}

impl BlockTarget for ThirdPartyCopy {
    fn takes_whole_file(&self) -> bool {
        true
    }

    fn transfer<'a>(&'a self, job: &'a FileJob, block: FileBlock) -> Pending<'a, ()> {
        Box::pin(async move {
            let (ThirdPartyCopy { way, by, other }, mut seen) = (self, 0);
            let (progress, size) = (&job.copy.progress, job.blocks.size());
            let mut tell = |bytes: u64| {
                let bytes = bytes.min(size);
                progress.moved(block.stream, bytes.saturating_sub(seen) as usize);
                // After an interruption, the server starts its count again. The progress must not go back.
                seen = seen.max(bytes);
            };
            let streams = (job.copy.streams, block.stream);
            by.0.have_copied(&by.1, *way, (&other.0, &other.1), streams, &mut tell).await?;
            let is_whole = match find_entry(&job.copy, &job.item.to.0, &job.item.to.1).await {
                // A write-only token cannot see the file.
                Err(CopyError::Remote(RemoteError::Refused { status: StatusCode::FORBIDDEN, .. })) => true,
                found => found?.is_some_and(|found| fits(&found.about, found.resolution, &job.item, SyncMode::Size)),
            };
            if !is_whole {
                let what = "says that the file is there, but it is not whole";
                return Err(RemoteError::Answer { name: job.item.to.1.clone(), what }.into());
            }
            // The last marker comes before the end, so the rest counts now.
            tell(size);
            Ok(())
        })
    }
}
