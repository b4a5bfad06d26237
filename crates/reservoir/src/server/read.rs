//! GET and HEAD: files whole or by ranges, with digests; folders as lists.

use super::Server;
use super::refusal::Refusal;
use super::write::MODE;
use crate::attributes::{self, Preserve};
use crate::blocks::{BlockHasher, Blocks, USUAL_BLOCK};
use crate::body::{self, Body, FileBody};
use crate::digest::Algorithm;
use crate::listing::Entry;
use crate::name::Name;
use crate::range::{Selected, select};
use crate::storage::{About, Kind, Stored};
use crate::tokens::Grant;
use crate::watch::Watch;
use http_body_util::BodyExt;
use hyper::header::{
    ACCEPT, ACCEPT_RANGES, ALLOW, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderMap, HeaderName,
    HeaderValue, IF_MATCH, IF_RANGE, LAST_MODIFIED, RANGE, TE, TRAILER,
};
use hyper::{Method, Request, Response, StatusCode};
use std::sync::Arc;

pub(super) async fn give(
    server: &Server,
    request: &Request<()>,
    name: Name,
    grant: &Arc<Grant>,
    watch: &Watch,
) -> Result<Response<Body>, Refusal> {
    let (folder, at) = (server.0.folder.clone(), name.clone());
    let about = server.0.shell.blocking(move || folder.about(&at)).await?;
    match about.kind {
        Kind::Folder => list(server, request, name, watch).await,
        Kind::Other => Err(Refusal::new(StatusCode::NOT_FOUND, "not found")),
        Kind::File => {
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
    (file, about): (Arc<dyn Stored>, About),
    grant: &Arc<Grant>,
    watch: &Watch,
) -> Result<Response<Body>, Refusal> {
    let asked = request.headers();
    let tag = about.entity_tag();
    if field(asked, IF_MATCH).is_some_and(|known| known != "*" && known != tag) {
        return Err(Refusal::new(StatusCode::PRECONDITION_FAILED, "the file is another version now"));
    }
    // RFC 9110 section 13.1.5: a part of another version than the one that is known would be of no use.
    let same = field(asked, IF_RANGE).is_none_or(|known| known == tag);
    let selected = match field(asked, RANGE) {
        Some(range) if same => select(range, about.size),
        _ => Selected::Whole,
    };
    let (status, range) = match selected {
        Selected::Whole => (StatusCode::OK, 0..about.size),
        Selected::Part(range) => (StatusCode::PARTIAL_CONTENT, range),
        Selected::Nothing => {
            let mut refusal = Refusal::new(StatusCode::RANGE_NOT_SATISFIABLE, "the file has no such bytes");
            refusal.field(CONTENT_RANGE, format!("bytes */{}", about.size));
            return Err(refusal);
        }
    };
    let mut fields = HeaderMap::new();
    fields.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    fields.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    fields.insert(ETAG, ascii(&tag));
    fields.insert(LAST_MODIFIED, ascii(&httpdate::fmt_http_date(about.modified)));
    if status == StatusCode::PARTIAL_CONTENT {
        fields.insert(CONTENT_RANGE, ascii(&format!("bytes {}-{}/{}", range.start, range.end - 1, about.size)));
    }
    if let Some(wanted) = field(asked, attributes::FIELD).and_then(|wanted| wanted.parse().ok()) {
        let file = file.clone();
        let found = server.0.shell.blocking(move || file.attributes(wanted)).await?.to_text();
        if found.len() <= attributes::MOST_BYTES {
            fields.insert(attributes::FIELD, ascii(&found));
        }
    }
    // To hash a file takes as long as it takes.
    watch.expect(None);
    if let Some(algorithm) = field(asked, "want-repr-digest").and_then(Algorithm::wanted) {
        let digest = server.0.digests.of(name, &tag, &file, algorithm).await?;
        fields.insert("repr-digest", ascii(&algorithm.field(&digest)));
    }
    if let Some(algorithm) = field(asked, "want-digest").and_then(Algorithm::wanted_by_rfc3230) {
        let digest = server.0.digests.of(name, &tag, &file, algorithm).await?;
        fields.insert("digest", ascii(&algorithm.field_of_rfc3230(&digest)));
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
    let body = FileBody::new(server.0.shell.clone(), file, range, hasher, trailers).paced(grant.pace().cloned());
    Ok(response(status, fields, body.boxed_unsync()))
}

/// For a range that is one block, if the client takes trailers and wants CRC32C.
fn block_hasher(asked: &HeaderMap, range: &core::ops::Range<u64>, size: u64) -> Option<BlockHasher> {
    let takes = field(asked, TE).is_some_and(|te| te.split(',').any(|coding| coding.trim() == "trailers"));
    let wanted = field(asked, "want-content-digest").and_then(Algorithm::wanted) == Some(Algorithm::Crc32c);
    let block = field(asked, BLOCK).map_or(Some(USUAL_BLOCK), |block| block.parse().ok())?;
    let blocks = Blocks::new(size, block)?;
    let number = range.start / block;
    (takes && wanted && *range == blocks.range(number)).then(|| BlockHasher::new(blocks, number))
}

async fn list(server: &Server, request: &Request<()>, name: Name, watch: &Watch) -> Result<Response<Body>, Refusal> {
    let json = field(request.headers(), ACCEPT).is_some_and(|accept| accept.contains("application/x-ndjson"));
    let mut fields = HeaderMap::new();
    fields.insert(KIND, HeaderValue::from_static("folder"));
    let kind = if json { "application/x-ndjson" } else { "text/plain; charset=utf-8" };
    fields.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    if request.method() == Method::HEAD {
        return Ok(response(StatusCode::OK, fields, body::empty()));
    }
    let (folder, most, at) = (server.0.folder.clone(), server.0.limits.listed, name.clone());
    watch.expect(None);
    let listed = server.0.shell.blocking(move || {
        let mut lines = Vec::new();
        let mut bytes = 0;
        folder.list(&at, &mut |part, about| {
            let line = Entry::of(&part, &about).map(|entry| if json { entry.to_json() } else { entry.to_text() });
            bytes += line.as_ref().map_or(0, String::len);
            lines.extend(line);
            lines.len() <= most && bytes <= MOST_LISTED
        })?;
        lines.sort();
        Ok((lines.len() <= most && bytes <= MOST_LISTED).then(|| lines.concat()))
    });
    let text = listed.await?;
    watch.expect(Some(server.0.limits.stall));
    let text = text.ok_or_else(|| {
        Refusal::new(StatusCode::INSUFFICIENT_STORAGE, format!("the folder has more than {most} entries"))
    })?;
    Ok(response(StatusCode::OK, fields, body::full(text)))
}

pub(super) fn options() -> Response<Body> {
    let mut fields = HeaderMap::new();
    fields.insert(ALLOW, HeaderValue::from_static("COPY, GET, HEAD, OPTIONS, POST, PUT"));
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

/// Bytes of a block, where it is another number than the usual one.
pub(crate) const BLOCK: &str = "reservoir-block";
/// Says that a name is a folder's.
pub(crate) const KIND: &str = "reservoir-kind";
/// Bytes of a list.
const MOST_LISTED: usize = 256 << 20;
