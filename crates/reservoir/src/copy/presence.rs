//! Tests whether a file is at its destination already.

use super::list::{CopyItem, find_entry};
use super::local::landed;
use super::place::CopyEnd;
use super::{Copy, CopyError, SyncMode, hash};
use crate::landing::secure_name;
use crate::mtime::{self, Resolution};
use crate::remote::RemoteError;
use crate::storage::{FileInfo, FileKind};
use hyper::StatusCode;

/// Tests whether the item's name exists at the destination.
pub(super) async fn has_anything(copy: &Copy, item: &CopyItem) -> Result<bool, CopyError> {
    Ok(find_entry(copy, &item.to.0, &item.to.1).await?.is_some())
}

/// Returns whether the destination has the file already, by the comparison that the copy requires.
pub(super) async fn is_present(copy: &Copy, item: &CopyItem) -> Result<bool, CopyError> {
    // A file completed just before a kill is not copied again.
    let goes_on = copy.resume || item.blocks.is_some();
    let sync = if goes_on && copy.sync != SyncMode::Hash { SyncMode::SizeTime } else { copy.sync };
    if sync == SyncMode::Nothing {
        return Ok(false);
    }
    has_arrived(copy, item, sync).await
}

/// Returns whether the destination has a file of this size and, depending on `sync`, of this time or hash.
pub(super) async fn has_arrived(copy: &Copy, item: &CopyItem, sync: SyncMode) -> Result<bool, CopyError> {
    let found = match find_entry(copy, &item.to.0, &item.to.1).await {
        // A write-only token cannot see files.
        Err(CopyError::Remote(RemoteError::Refused { status, .. })) if status == StatusCode::FORBIDDEN => None,
        found => found?,
    };
    match found {
        Some(found) if fits(&found.about, found.resolution, item, sync) => {
            if let CopyEnd::Local(folder, _) = &item.to.0 {
                let (folder, name) = (folder.clone(), item.to.1.clone());
                // An earlier copy may have failed after the rename.
                let secured = copy.shell.blocking(move || Ok(secure_name(&*folder, &name))).await;
                let local = |error| CopyError::Local { path: item.to.0.shown(&item.to.1).into(), error };
                secured.map_err(local)?.map_err(|error| landed(item, error))?;
            }
            Ok(sync != SyncMode::Hash || hash::are_same(copy, item).await?)
        }
        _ => Ok(false),
    }
}

/// Returns whether the entry is a file with the item's size and, depending on `sync`, its time.
pub(super) fn fits(found: &FileInfo, resolution: Resolution, item: &CopyItem, sync: SyncMode) -> bool {
    let same_time = || mtime::are_same((found.modified, resolution), item.time());
    found.kind == FileKind::File && found.size == item.size() && (sync != SyncMode::SizeTime || same_time())
}
