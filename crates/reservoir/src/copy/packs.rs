//! Packs of small files between this machine and reservoir servers, hundreds per request. Files left out of a pack are
//! copied separately.

use super::list::CopyItem;
use super::place::CopyEnd;
use super::presence::has_arrived;
use super::{Copy, CopyError, SyncMode};
use crate::body::ChannelBody;
use crate::mtime::Resolution;
use crate::name::Name;
use crate::pack::{self, Unpacker};
use crate::remote::{RangeReader, Remote, RemoteError};
use crate::small::{Batch, PackEntry, gather};
use crate::storage::{FileInfo, FileKind, Folder};
use bytes::BytesMut;
use http_body_util::BodyExt;
use hyper::body::Frame;
use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::OsString;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::mpsc;

/// A unit of work.
pub(super) enum WorkUnit {
    File(Box<CopyItem>),
    Pack(Vec<CopyItem>),
}

/// Groups small files with equal roots into packs, if there are enough of them.
pub(super) async fn units(copy: &Copy, items: Vec<CopyItem>) -> Vec<WorkUnit> {
    let mut known = HashMap::new();
    let mut ways: HashMap<(String, String), Vec<CopyItem>> = HashMap::new();
    let mut order = Vec::new();
    let mut units = Vec::new();
    for item in items {
        // Packs carry no attributes, and their files are not read back.
        if copy.verify || !copy.preserve.is_empty() || !is_small(copy, &item) || !goes_in_packs(&item, &mut known).await
        {
            units.push(WorkUnit::File(Box::new(item)));
            continue;
        }
        let way = (item.from.0.root(), item.to.0.root());
        if !ways.contains_key(&way) {
            // Keeps the order of the listing, which hash maps lose.
            order.push(way.clone());
        }
        ways.entry(way).or_default().push(item);
    }
    for way in order {
        let items = ways.remove(&way).unwrap_or_default();
        if items.len() < MIN_PACKED {
            units.extend(items.into_iter().map(Box::new).map(WorkUnit::File));
            continue;
        }
        // Several packs per stream, for balance.
        let most = (items.len() / (4 * copy.streams)).clamp(MIN_PACKED, pack::MAX_FILES);
        let (mut next, mut bytes) = (Vec::new(), 0);
        for item in items {
            bytes += item.size();
            next.push(item);
            if next.len() == most || bytes > MAX_PACK_BYTES {
                units.push(WorkUnit::Pack(core::mem::take(&mut next)));
                bytes = 0;
            }
        }
        if !next.is_empty() {
            units.push(WorkUnit::Pack(next));
        }
    }
    units
}

fn is_small(copy: &Copy, item: &CopyItem) -> bool {
    item.about.kind == FileKind::File
        && item.size() <= pack::MAX_FILE_BYTES.min(copy.block)
        && item.refused.is_none()
        && item.blocks.is_none()
        && copy.preconditions.is_empty()
}

/// Returns whether the item goes between a local folder and a reservoir server, in either direction.
async fn goes_in_packs(item: &CopyItem, known: &mut HashMap<String, bool>) -> bool {
    match (&item.from.0, &item.to.0) {
        (CopyEnd::Remote(..), CopyEnd::Local(..)) => item.is_reservoir,
        (CopyEnd::Local(..), CopyEnd::Remote(server, root)) => match known.get(&**root) {
            Some(ours) => *ours,
            None => {
                // If the server cannot be reached, the first file will report the error.
                let ours = server.is_reservoir().await.unwrap_or(false);
                known.insert(root.to_string(), ours);
                ours
            }
        },
        _ => false,
    }
}

/// The outcome of a pack.
#[derive(Default)]
pub(super) struct PackOutcome {
    pub(super) copied: u64,
    pub(super) present: Vec<CopyItem>,
    /// Items to copy separately.
    pub(super) left: Vec<CopyItem>,
}

/// Copies a pack over the connection of a stream.
pub(super) async fn copy_pack(
    copy: &Copy,
    known: &ListingCache,
    items: Vec<CopyItem>,
    stream: usize,
) -> Result<PackOutcome, (CopyError, Vec<CopyItem>)> {
    let mut done = PackOutcome::default();
    let mut absent = Vec::new();
    for item in items {
        match known.is_present(copy, &item).await {
            Ok(true) => done.present.push(item),
            Ok(false) => absent.push(item),
            // The separate copy reports the error.
            Err(_) => done.left.push(item),
        }
    }
    let sides = absent.first().map(|item| (item.from.0.clone(), item.to.0.clone()));
    let copied = match sides {
        None => return Ok(done),
        Some((CopyEnd::Local(folder, _), CopyEnd::Remote(server, _))) => {
            send(copy, folder, server.for_stream(stream), &absent, stream).await
        }
        Some((CopyEnd::Remote(server, _), CopyEnd::Local(folder, _))) => {
            fetch(copy, server.for_stream(stream), folder, &absent, stream).await
        }
        // `goes_in_packs` admits no other combinations.
        Some(_) => Ok(HashSet::new()),
    };
    match copied {
        Ok(arrived) => {
            done.copied = arrived.len() as u64;
            done.left.extend(absent.into_iter().filter(|item| !arrived.contains(&item.to.1)));
            Ok(done)
        }
        // The server is older, or a limit was exceeded.
        Err(CopyError::Remote(RemoteError::Refused { status, .. })) if status.is_client_error() && status != 401 => {
            done.left.extend(absent);
            Ok(done)
        }
        Err(error) => Err((error, done.present.into_iter().chain(done.left).chain(absent).collect())),
    }
}

/// Sends files in a pack. Returns the names that were accepted.
async fn send(
    copy: &Copy,
    folder: Arc<dyn Folder>,
    server: &Arc<Remote>,
    items: &[CopyItem],
    stream: usize,
) -> Result<HashSet<Name>, CopyError> {
    let into = common(items.iter().map(|item| &item.to.1));
    let below = |name: &Name| Name::from_path(name.path().strip_prefix(into.path()).unwrap_or(name.path()));
    let mut wanted = VecDeque::new();
    for item in items {
        wanted.push_back(PackEntry { at: item.from.1.clone(), packed_as: below(&item.to.1)?, tag: item.tag.clone() });
    }
    let (frames, body) = mpsc::channel(1);
    let feed = async move {
        let mut left_out = HashSet::new();
        while !wanted.is_empty() {
            let (folder, mut rest) = (folder.clone(), core::mem::take(&mut wanted));
            let gathered = copy.shell.blocking(move || Ok((gather(&*folder, &mut rest), rest))).await;
            let Ok((gathered, rest)) = gathered else {
                // Without its end the pack is incomplete, so the request fails and no file counts as sent.
                let _ = frames.send(Err(io::ErrorKind::Other.into())).await;
                drop(frames);
                return left_out;
            };
            wanted = rest;
            left_out.extend(gathered.left_out);
            copy.take_turn(gathered.bytes.len()).await;
            copy.progress.moved(stream, gathered.content as usize);
            // The request itself reports the reason for ending early.
            if frames.send(Ok(Frame::data(gathered.bytes))).await.is_err() {
                break;
            }
        }
        if wanted.is_empty() {
            let mut end = BytesMut::new();
            pack::write_end(&mut end);
            let _ = frames.send(Ok(Frame::data(end.freeze()))).await;
        }
        drop(frames);
        left_out
    };
    let (answer, left_out) = tokio::join!(server.send_pack(&into, ChannelBody::new(body, None).boxed_unsync()), feed);
    let refused = answer?;
    let mut arrived = HashSet::new();
    for item in items {
        let name = below(&item.to.1)?;
        if !left_out.contains(&name) && !refused.contains(&name) {
            arrived.insert(item.to.1.clone());
        }
    }
    Ok(arrived)
}

/// Fetches files in a pack. Returns the names that were received.
async fn fetch(
    copy: &Copy,
    server: &Arc<Remote>,
    folder: Arc<dyn Folder>,
    items: &[CopyItem],
    stream: usize,
) -> Result<HashSet<Name>, CopyError> {
    let from = common(items.iter().map(|item| &item.from.1));
    let mut wanted = HashMap::new();
    for item in items {
        let below = item.from.1.path().strip_prefix(from.path()).unwrap_or(item.from.1.path());
        wanted.insert(Name::from_path(below)?, item);
    }
    let names: String = wanted.keys().map(|name| name.to_url() + "\n").collect();
    let mut reading: RangeReader = server.fetch_pack(&from, names).await?;
    let (mut unpacker, mut batch) = (Unpacker::default(), Batch::new(folder, Name::root()));
    let (mut arrived, mut on_the_way) = (HashSet::new(), Vec::new());
    let bad = |what| RemoteError::Answer { name: from.clone(), what };
    loop {
        let piece = reading.some().await?;
        if let Some(piece) = &piece {
            copy.take_turn(piece.len()).await;
            unpacker.push(piece);
        }
        let mut is_full = false;
        while let Some(mut file) = unpacker.next().map_err(|_| bad("is no pack of files"))? {
            let item = wanted.get(&file.name).ok_or_else(|| bad("has files that were not asked for"))?;
            // The file was changed since it was listed.
            if file.bytes.len() as u64 != item.size() || file.modified != item.about.modified {
                continue;
            }
            copy.progress.moved(stream, file.bytes.len());
            file.name = item.to.1.clone();
            on_the_way.push(file.name.clone());
            is_full |= batch.push(file);
        }
        if is_full || piece.is_none() {
            let local = |error| CopyError::Local { path: items[0].to.0.shown(&items[0].to.1).into(), error };
            let (back, refused) = copy.shell.blocking(move || batch.land()).await.map_err(local)?;
            batch = back;
            arrived.extend(on_the_way.drain(..));
            arrived.retain(|name| !refused.iter().any(|(other, _)| other == name));
        }
        if piece.is_none() {
            break;
        }
    }
    if !unpacker.is_ended() {
        return Err(bad("was cut off").into());
    }
    reading.end(server);
    Ok(arrived)
}

/// Returns the deepest folder that contains all names.
fn common<'a>(mut names: impl Iterator<Item = &'a Name>) -> Name {
    let first = names.next().map(Name::folder).unwrap_or_default();
    names.fold(first, |mut common, name| {
        while !name.is_below(&common) {
            common = common.folder();
        }
        common
    })
}

/// Listings of a server's folders, requested once per folder instead of once per file.
#[derive(Default)]
pub(super) struct ListingCache(Mutex<Option<CachedListing>>);

/// The server, the folder and its entries.
type CachedListing = (String, Name, Arc<HashMap<OsString, FileInfo>>);

impl ListingCache {
    async fn is_present(&self, copy: &Copy, item: &CopyItem) -> Result<bool, CopyError> {
        let sync = if copy.resume && copy.sync != SyncMode::Hash { SyncMode::SizeTime } else { copy.sync };
        // Looking a local file up needs no listing.
        let CopyEnd::Remote(server, root) = &item.to.0 else {
            return if sync == SyncMode::Nothing { Ok(false) } else { has_arrived(copy, item, sync).await };
        };
        match sync {
            SyncMode::Nothing => Ok(false),
            // A listing has no hashes.
            SyncMode::Hash => has_arrived(copy, item, sync).await,
            SyncMode::Size | SyncMode::SizeTime => {
                let listed = self.list(server, root, &item.to.1.folder()).await?;
                let found = item.to.1.last().and_then(|last| listed.get(last));
                Ok(found.is_some_and(|found| super::presence::fits(found, Resolution::Nanoseconds, item, sync)))
            }
        }
    }

    async fn list(
        &self,
        server: &Arc<Remote>,
        root: &str,
        folder: &Name,
    ) -> Result<Arc<HashMap<OsString, FileInfo>>, CopyError> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((of, name, listed)) = known
            && of == root
            && name == *folder
        {
            return Ok(listed);
        }
        let listed = match server.list(folder).await {
            Ok(listed) => listed,
            // The folder does not exist yet, or the token is write-only.
            Err(RemoteError::Refused { status, .. }) if status == 404 || status == 403 => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        let listed = Arc::new(listed.into_iter().map(|entry| (entry.part, entry.about)).collect::<HashMap<_, _>>());
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((root.into(), folder.clone(), listed.clone()));
        Ok(listed)
    }
}

/// Minimum number of files in a pack.
const MIN_PACKED: usize = 16;
const MAX_PACK_BYTES: u64 = 32 << 20;
