//! Many small files at once: POST of a pack into a folder, and POST of names for a pack in response.
//!
//! ```text
//! POST /folder, Content-Type: application/x-reservoir-pack     writes the files; the response lists refused files: name, tab, reason
//! POST /folder, Content-Type: application/x-reservoir-names    the response is a pack of the named small files; others are left out
//! ```

use super::Server;
use super::declared::DeclaredDigests;
use super::read::response;
use super::refusal::Refusal;
use crate::body::{self, Body, ChannelBody};
use crate::name::Name;
use crate::pack::{self, BadPack, Unpacker};
use crate::small::{self, Batch, PackEntry};
use crate::tokens::Grant;
use crate::watch::ProgressDeadline;
use core::fmt::Write;
use http_body_util::{BodyExt, Limited};
use hyper::body::Frame;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Request, Response, StatusCode};
use std::sync::Arc;
use tokio::sync::mpsc;

/// Receives a pack.
pub(super) async fn receive_pack(
    server: &Server,
    request: Request<Body>,
    into: Name,
    grant: &Arc<Grant>,
    watch: &ProgressDeadline,
) -> Result<Response<Body>, Refusal> {
    if !DeclaredDigests::new(request.headers())?.is_empty() {
        let text = "files of a pack appear before its end, and each has its hash in the pack: leave other digests out";
        return Err(Refusal::new(StatusCode::BAD_REQUEST, text));
    }
    let (mut body, mut unpacker) = (request.into_body(), Unpacker::default());
    let mut batch = Batch::new(server.0.folder.clone(), into);
    let mut failed = String::new();
    while let Some(frame) = body.frame().await {
        // Trailers are ignored.
        let Ok(data) = frame.map_err(|_| Refusal::cut_off())?.into_data() else { continue };
        if let Some(pace) = grant.pace() {
            super::write::take_turn(server, watch, pace, data.len()).await;
        }
        unpacker.push(&data);
        while let Some(file) = unpacker.next()? {
            if batch.push(file) {
                batch = land(server, batch, &mut failed, watch).await?;
            }
        }
    }
    // Without its end the pack was cut off, so files are missing.
    if !unpacker.is_ended() {
        return Err(Refusal::cut_off());
    }
    land(server, batch, &mut failed, watch).await?;
    Ok(response(StatusCode::OK, HeaderMap::new(), body::full(failed)))
}

/// Writes a batch to the medium. Returns an empty batch.
async fn land(server: &Server, batch: Batch, failed: &mut String, watch: &ProgressDeadline) -> Result<Batch, Refusal> {
    // From here on the medium is working, not the client.
    watch.expect(None);
    let names = batch.names();
    let landed = server.0.shell.blocking(move || batch.land()).await;
    watch.expect(Some(server.0.limits.stall));
    // Some files may have been renamed even if the batch failed.
    names.iter().for_each(|name| server.0.digests.forget(name));
    let (batch, refused) = landed?;
    for (name, error) in refused {
        let why = Refusal::from(error).text();
        // Writing to a string cannot fail.
        let _ = writeln!(failed, "{}\t{why}", name.to_url());
    }
    // The client reads the failures only after the last file, so they must fit in memory.
    if failed.len() > MAX_FAILURES_BYTES {
        return Err(Refusal::new(StatusCode::CONFLICT, "too many of these files cannot be here: send them one by one"));
    }
    Ok(batch)
}

/// Sends a pack of the named files.
pub(super) async fn send_pack(
    server: &Server,
    request: Request<Body>,
    from: Name,
    grant: &Arc<Grant>,
    watch: &ProgressDeadline,
) -> Result<Response<Body>, Refusal> {
    let text =
        Limited::new(request.into_body(), MAX_NAMES_BYTES).collect().await.map_err(|_| Refusal::cut_off())?.to_bytes();
    let text =
        core::str::from_utf8(&text).map_err(|_| Refusal::new(StatusCode::BAD_REQUEST, "the names are no text"))?;
    let mut wanted = Vec::new();
    for line in text.lines() {
        if wanted.len() == pack::MAX_FILES {
            return Err(Refusal::new(StatusCode::BAD_REQUEST, "a pack has at most 4096 files"));
        }
        // A valid name has no `..`, so the joined name stays below the folder of the grant.
        let below = Name::from_url(line)?;
        let at = below.path().components().try_fold(from.clone(), |name, part| name.join(part.as_os_str()))?;
        wanted.push(PackEntry { at, packed_as: below, tag: None });
    }
    watch.expect(Some(server.0.limits.stall));
    let (into, frames) = mpsc::channel(1);
    let (folder, shell, pace) = (server.0.folder.clone(), server.0.shell.clone(), grant.pace().cloned());
    server.0.shell.spawn(async move {
        let mut wanted: std::collections::VecDeque<PackEntry> = wanted.into();
        while !wanted.is_empty() {
            let folder = folder.clone();
            let gathered = shell.blocking(move || Ok((small::gather(&*folder, &mut wanted), wanted))).await;
            let Ok((gathered, rest)) = gathered else { return };
            wanted = rest;
            // Paced by piece: a piece is the unit that is in memory.
            if let Some(turn) = pace.as_ref().map(|pace| pace.take(shell.now(), gathered.bytes.len() as u64)) {
                shell.sleep_until(turn).await;
            }
            if into.send(Ok(Frame::data(gathered.bytes))).await.is_err() {
                return;
            }
        }
        let mut end = bytes::BytesMut::new();
        pack::write_end(&mut end);
        // The client may be gone, and will ask again.
        let _ = into.send(Ok(Frame::data(end.freeze()))).await;
    });
    let mut fields = HeaderMap::new();
    fields.insert(CONTENT_TYPE, HeaderValue::from_static(pack::KIND));
    Ok(response(StatusCode::OK, fields, ChannelBody::new(frames, None).boxed_unsync()))
}

impl From<BadPack> for Refusal {
    fn from(error: BadPack) -> Refusal {
        Refusal::new(StatusCode::BAD_REQUEST, error.to_string())
    }
}

/// Maximum length of the requested names: 4096 names of usual lengths.
const MAX_NAMES_BYTES: usize = 4 << 20;
/// Maximum length of the list of refused files.
const MAX_FAILURES_BYTES: usize = 4 << 20;
