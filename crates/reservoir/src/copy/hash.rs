//! Comparison of files by hashes, which servers compute at their end.

use super::list::CopyItem;
use super::place::CopyEnd;
use super::{Copy, CopyError};
use crate::digest::{DigestHasher, HashAlgorithm};
use crate::direct::aligned;
use crate::name::Name;
use crate::storage::read_exactly;
use std::path::PathBuf;

/// Returns whether source and destination, of equal size, have the same hash. A file whose server tells no hash counts
/// as different.
pub(super) async fn are_same(copy: &Copy, item: &CopyItem) -> Result<bool, CopyError> {
    let told = match (&item.from.0, &item.to.0) {
        (_, CopyEnd::Remote(server, _)) => server.digest(&item.to.1, item.size(), false).await?,
        (CopyEnd::Remote(server, _), _) => server.digest(&item.from.1, item.size(), false).await?,
        _ => Some((HashAlgorithm::Blake3, compute(copy, &item.from, item.size(), HashAlgorithm::Blake3).await?)),
    };
    let Some((algorithm, told)) = told else { return Ok(false) };
    let other = match (&item.from.0, &item.to.0) {
        (CopyEnd::Remote(server, _), CopyEnd::Remote(..)) => {
            return Ok(server.digest(&item.from.1, item.size(), false).await? == Some((algorithm, told)));
        }
        (CopyEnd::Local(..), CopyEnd::Remote(..)) => &item.from,
        _ => &item.to,
    };
    Ok(compute(copy, other, item.size(), algorithm).await? == told)
}

/// Returns the BLAKE3 hash of a source on this machine.
pub(super) async fn source_hash(copy: &Copy, item: &CopyItem) -> Result<[u8; 32], CopyError> {
    let hash = compute(copy, &item.from, item.size(), HashAlgorithm::Blake3).await?;
    hash.try_into().map_err(|_| CopyError::Unproved(item.source(), "it is no file of this machine"))
}

/// Tests whether the destination's server tells a digest, possibly a weak one, that equals the digest of the source
/// here.
pub(super) async fn is_proved(copy: &Copy, item: &CopyItem) -> Result<bool, CopyError> {
    let CopyEnd::Remote(server, _) = &item.to.0 else { return Ok(false) };
    let Some((algorithm, told)) = server.digest(&item.to.1, item.size(), true).await? else { return Ok(false) };
    Ok(compute(copy, &item.from, item.size(), algorithm).await? == told)
}

/// Computes the hash of a file on this machine.
async fn compute(
    copy: &Copy,
    (side, name): &(CopyEnd, Name),
    size: u64,
    algorithm: HashAlgorithm,
) -> Result<Vec<u8>, CopyError> {
    let local = |error| CopyError::Local { path: PathBuf::from(side.shown(name)), error };
    let CopyEnd::Local(folder, _) = side else { return Ok(Vec::new()) };
    let (folder, name) = (folder.clone(), name.clone());
    let file = copy.shell.blocking(move || folder.open(&name)).await.map_err(local)?;
    let (mut summer, mut at) = (DigestHasher::new(algorithm), 0);
    // One piece per job, so that hashing stops when the copy is dropped.
    while at < size {
        let length = READ_AT_ONCE.min(size - at);
        let file = file.clone();
        let read = copy.shell.blocking(move || {
            let mut piece = aligned(length as usize);
            read_exactly(&*file, &mut piece, at)?;
            summer.update(&piece);
            Ok(summer)
        });
        summer = read.await.map_err(local)?;
        at += length;
    }
    Ok(summer.finish())
}

const READ_AT_ONCE: u64 = 4 << 20;
