//! GET and HEAD: files, whole or by ranges, with digests; folders as listings.

use super::Server;
use super::refusal::Refusal;
use crate::attributes::{self, Preserve};
use crate::blocks::{BlockHasher, Blocks, DEFAULT_BLOCK};
use crate::body::{self, Body, FileRangeBody};
use crate::digest::HashAlgorithm;
use crate::listing::ListingLine;
use crate::mtime;
use crate::name::Name;
use crate::protocol::{BLOCK, KIND, MODE, MTIME};
use crate::storage::{FileInfo, FileKind, FolderEntries, StoredFile};
use crate::tokens::Grant;
use crate::watch::ProgressDeadline;
use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use http_rules::{CurrentState, FileReply, Preconditions, UnmetPrecondition};
use hyper::body::Frame;
use hyper::header::{
    ACCEPT, ACCEPT_RANGES, ALLOW, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, TE, TRAILER,
};
use hyper::{Method, Request, Response, StatusCode};
use std::io;
use std::sync::Arc;
use std::time::SystemTime;

pub(super) async fn answer_read(
    server: &Server,
    request: &Request<()>,
    name: Name,
    grant: &Arc<Grant>,
    watch: &ProgressDeadline,
) -> Result<Response<Body>, Refusal> {
    let (folder, at) = (server.0.folder.clone(), name.clone());
    let about = server.0.shell.blocking(move || folder.about(&at)).await?;
    match about.kind {
        FileKind::Folder => {
            match Preconditions::from_fields(request.method(), request.headers()).evaluate(CurrentState::Unversioned) {
                Ok(()) => list(server, request, name, grant).await,
                Err(UnmetPrecondition::NotModified) => {
                    Ok(response(StatusCode::NOT_MODIFIED, HeaderMap::new(), body::empty()))
                }
                Err(unmet) => Err(unmet.into()),
            }
        }
        FileKind::Other => Err(Refusal::new(StatusCode::NOT_FOUND, "not found")),
        FileKind::File => {
            if request.method() == Method::HEAD {
                // By HEAD a client learns whether its upload is complete. The upload may have failed after the rename,
                // so the name is secured.
                server.0.uploads.secure(&name).await?;
            }
            let (folder, at) = (server.0.folder.clone(), name.clone());
            let opened = server.0.shell.blocking(move || {
                let file = folder.open(&at)?;
                let about = file.about()?;
                let mode = file.attributes(Preserve { mode: true, extended: false })?.mode;
                Ok((file, about, mode))
            });
            let (file, about, mode) = opened.await?;
            let mut answer = give_file(server, request, &name, (file, about), grant, watch).await?;
            answer.headers_mut().extend(mode.map(|mode| (HeaderName::from_static(MODE), ascii(&format!("{mode:o}")))));
            Ok(answer)
        }
    }
}

async fn give_file(
    server: &Server,
    request: &Request<()>,
    name: &Name,
    (file, about): (Arc<dyn StoredFile>, FileInfo),
    grant: &Arc<Grant>,
    watch: &ProgressDeadline,
) -> Result<Response<Body>, Refusal> {
    let asked = request.headers();
    let FileReply { status, range, mut fields } =
        http_rules::reply(request.method(), asked, &about.version(), SystemTime::now());
    let refused = match status {
        StatusCode::OK | StatusCode::PARTIAL_CONTENT => None,
        StatusCode::NOT_MODIFIED => return Ok(response(status, fields, body::empty())),
        StatusCode::RANGE_NOT_SATISFIABLE => Some("the file has no such bytes"),
        _ => Some("the file is another version now"),
    };
    if let Some(text) = refused {
        return Err(Refusal::new(status, text).with_fields(fields));
    }
    fields.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    // Last-Modified has whole seconds only.
    fields.insert(MTIME, ascii(&mtime::to_text(about.modified)));
    if let Some(wanted) = field(asked, attributes::FIELD).and_then(|wanted| wanted.parse().ok()) {
        let file = file.clone();
        let found = server.0.shell.blocking(move || file.attributes(wanted)).await?.to_text();
        if found.len() <= attributes::MAX_FIELD_BYTES {
            fields.insert(attributes::FIELD, ascii(&found));
        }
    }
    // Hashing a file may take any time.
    watch.expect(None);
    if let Some(algorithm) = field(asked, "want-repr-digest").and_then(HashAlgorithm::wanted) {
        // RFC 9530 section 4: the field is a preference, so a response may lack the digest.
        if let Some(digest) =
            server.0.digests.get_or_compute(grant.name(), name, &about, &file, algorithm, SystemTime::now()).await?
        {
            fields.insert("repr-digest", ascii(&algorithm.field(&digest)));
        }
    }
    if let Some(algorithm) = field(asked, "want-digest").and_then(HashAlgorithm::wanted_by_rfc3230) {
        // RFC 9530 section 4: the field is a preference, so a response may lack the digest.
        if let Some(digest) =
            server.0.digests.get_or_compute(grant.name(), name, &about, &file, algorithm, SystemTime::now()).await?
        {
            fields.insert("digest", ascii(&algorithm.field_of_rfc3230(&digest)));
        }
    }
    watch.expect(Some(server.0.limits.stall));
    let length = range.end - range.start;
    if request.method() == Method::HEAD {
        fields.insert(CONTENT_LENGTH, length.into());
        return Ok(response(status, fields, body::empty()));
    }
    let hasher = block_hasher(asked, &range, about.size);
    let trailers = hasher.is_some();
    if trailers {
        fields.insert(TRAILER, HeaderValue::from_static("Content-Digest, Reservoir-Subtree"));
    } else {
        fields.insert(CONTENT_LENGTH, length.into());
    }
    let body = FileRangeBody::new(server.0.shell.clone(), file, range, hasher, trailers).paced(grant.pace().cloned());
    Ok(response(status, fields, body.boxed_unsync()))
}

/// Returns a hasher if the range is one block and the client accepts trailers and wants CRC32C.
fn block_hasher(asked: &HeaderMap, range: &core::ops::Range<u64>, size: u64) -> Option<BlockHasher> {
    let takes = field(asked, TE).is_some_and(|te| te.split(',').any(|coding| coding.trim() == "trailers"));
    let wanted = field(asked, "want-content-digest").and_then(HashAlgorithm::wanted) == Some(HashAlgorithm::Crc32c);
    let block = field(asked, BLOCK).map_or(Some(DEFAULT_BLOCK), |block| block.parse().ok())?;
    let blocks = Blocks::new(size, block)?;
    let number = range.start / block;
    (takes && wanted && *range == blocks.range(number)).then(|| BlockHasher::new(blocks, number))
}

async fn list(server: &Server, request: &Request<()>, name: Name, grant: &Grant) -> Result<Response<Body>, Refusal> {
    let json = field(request.headers(), ACCEPT).is_some_and(|accept| accept.contains("application/x-ndjson"));
    let mut fields = HeaderMap::new();
    fields.insert(KIND, HeaderValue::from_static("folder"));
    let kind = if json { "application/x-ndjson" } else { "text/plain; charset=utf-8" };
    fields.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    if request.method() == Method::HEAD {
        return Ok(response(StatusCode::OK, fields, body::empty()));
    }
    let folder = server.0.folder.clone();
    let entries = server.0.shell.blocking(move || folder.list(&name)).await?;
    let (server, user) = (server.clone(), grant.name().to_owned());
    // Each piece is produced when the connection has room: a client that does not read occupies the open folder, but no
    // thread.
    let pieces = stream::try_unfold(Some(entries), move |entries| {
        let (server, user) = (server.clone(), user.clone());
        async move {
            let Some(mut entries) = entries else { return Ok(None) };
            let turn = server.0.lists.take(&user).await;
            let listed = server.0.shell.blocking(move || {
                let (text, is_last) = lines(&mut entries, json)?;
                drop(turn);
                Ok((Frame::data(Bytes::from(text)), (!is_last).then_some(entries)))
            });
            listed.await.map(Some)
        }
    });
    Ok(response(StatusCode::OK, fields, StreamBody::new(pieces).boxed_unsync()))
}

/// Reads the next entries of a listing as lines. Also returns whether they are the last ones.
fn lines(entries: &mut FolderEntries, json: bool) -> io::Result<(String, bool)> {
    let mut text = String::new();
    for _ in 0..LISTED_AT_ONCE {
        let Some(entry) = entries.next() else { return Ok((text, true)) };
        let (part, about) = entry?;
        let entry = ListingLine::from_info(&part, &about);
        text += &if json { entry.to_json() } else { entry.to_text() };
    }
    Ok((text, false))
}

pub(super) fn options() -> Response<Body> {
    let mut fields = HeaderMap::new();
    fields.insert(ALLOW, HeaderValue::from_static(METHODS));
    fields.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    response(StatusCode::OK, fields, body::empty())
}

pub(super) fn response(status: StatusCode, fields: HeaderMap, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = fields;
    response
}

pub(super) fn field(fields: &HeaderMap, name: impl hyper::header::AsHeaderName) -> Option<&str> {
    fields.get(name)?.to_str().ok()
}

pub(super) fn ascii(text: &str) -> HeaderValue {
    HeaderValue::try_from(text).expect("digits, letters and quotes")
}

/// The methods of a server.
#[cfg(feature = "third-party")]
pub(super) const METHODS: &str = "COPY, GET, HEAD, MKCOL, OPTIONS, POST, PUT";
#[cfg(not(feature = "third-party"))]
pub(super) const METHODS: &str = "GET, HEAD, MKCOL, OPTIONS, POST, PUT";
/// Number of entries read in one turn. Their lines are a fraction of a [`PIECE`](crate::body::PIECE).
const LISTED_AT_ONCE: usize = 512;
