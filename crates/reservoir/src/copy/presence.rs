//! Tests whether a file is at its destination already.

use super::list::{Item, glance};
use super::local::landed;
use super::place::Side;
use super::{Copy, CopyError, Sync, hash};
use crate::landing::secure_name;
use crate::mtime::{self, Resolution};
use crate::remote::RemoteError;
use crate::storage::{About, Kind};
use hyper::StatusCode;

/// Tests whether the item's name exists at the destination.
pub(super) async fn has_anything(copy: &Copy, item: &Item) -> Result<bool, CopyError> {
    Ok(glance(copy, &item.to.0, &item.to.1).await?.is_some())
}

/// Returns whether the destination has the file already, by the comparison that the copy requires.
pub(super) async fn is_present(copy: &Copy, item: &Item) -> Result<bool, CopyError> {
    // A file completed just before a kill is not copied again.
    let goes_on = copy.resume || item.blocks.is_some();
    let sync = if goes_on && copy.sync != Sync::Hash { Sync::SizeTime } else { copy.sync };
    if sync == Sync::Nothing {
        return Ok(false);
    }
    has_arrived(copy, item, sync).await
}

/// Returns whether the destination has a file of this size and, depending on `sync`, of this time or hash.
pub(super) async fn has_arrived(copy: &Copy, item: &Item, sync: Sync) -> Result<bool, CopyError> {
    let found = match glance(copy, &item.to.0, &item.to.1).await {
        // A write-only token cannot see files.
        Err(CopyError::Remote(RemoteError::Refused { status, .. })) if status == StatusCode::FORBIDDEN => None,
        found => found?,
    };
    match found {
        Some(found) if fits(&found.about, found.resolution, item, sync) => {
            if let Side::Local(folder, _) = &item.to.0 {
                let (folder, name) = (folder.clone(), item.to.1.clone());
                // An earlier copy may have failed after the rename.
                let secured = copy.shell.blocking(move || Ok(secure_name(&*folder, &name))).await;
                let local = |error| CopyError::Local { path: item.to.0.shown(&item.to.1).into(), error };
                secured.map_err(local)?.map_err(|error| landed(item, error))?;
            }
            Ok(sync != Sync::Hash || hash::are_same(copy, item).await?)
        }
        _ => Ok(false),
    }
}

/// Returns whether the entry is a file with the item's size and, depending on `sync`, its time.
pub(super) fn fits(found: &About, resolution: Resolution, item: &Item, sync: Sync) -> bool {
    let same_time = || mtime::are_same((found.modified, resolution), item.time());
    found.kind == Kind::File && found.size == item.size() && (sync != Sync::SizeTime || same_time())
}
