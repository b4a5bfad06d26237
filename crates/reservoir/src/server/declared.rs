//! Header fields that describe the content of a request. Digests are verified before a file appears. Content codings
//! and ranges are refused if the server does not apply them.
//!
//! ```text
//! Content-Digest, Content-MD5             digests of the content of this request
//! Repr-Digest, Digest, OC-Checksum        digests of the whole file
//! ```

use super::refusal::Refusal;
use crate::blocks::BlockSum;
use crate::body::{CONTENT_DIGEST, SUBTREE, sum_in};
use crate::digest::{self, DigestHasher, HashAlgorithm, MalformedDigest};
use hyper::header::{
    ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_RANGE, CONTENT_TYPE, HeaderMap, HeaderValue, TRANSFER_ENCODING,
};
use hyper::{Method, StatusCode};

/// Digests of one sequence of bytes.
pub(super) type DigestList = Vec<(HashAlgorithm, Vec<u8>)>;

/// The digests that a request declares.
#[derive(Debug, Default)]
pub(super) struct DeclaredDigests {
    /// Digests of the request's content.
    pub(super) content: DigestList,
    /// Digests of the whole file.
    pub(super) whole: DigestList,
    /// Checksums of the content, if the content is one block.
    pub(super) sum: Option<BlockSum>,
}

impl DeclaredDigests {
    /// Parses all digests in `fields`.
    pub(super) fn new(fields: &HeaderMap) -> Result<DeclaredDigests, Refusal> {
        let mut content = read(fields, CONTENT_DIGEST, digest::read)?;
        content.extend(read(fields, CONTENT_MD5, |md5| digest::read_rfc3230(&format!("md5={md5}")))?);
        let mut whole = read(fields, "repr-digest", digest::read)?;
        whole.extend(read(fields, "digest", digest::read_rfc3230)?);
        whole.extend(read(fields, "oc-checksum", digest::read_checksum)?);
        let sum = sum_in(fields);
        if sum.is_none() && fields.contains_key(SUBTREE) {
            return Err(malformed(SUBTREE));
        }
        Ok(DeclaredDigests { content, whole, sum })
    }

    /// Tests whether no digest is declared.
    pub(super) fn is_empty(&self) -> bool {
        self.content.is_empty() && self.whole.is_empty()
    }

    /// Adds the digests in trailers.
    pub(super) fn and(mut self, trailers: Option<&HeaderMap>) -> Result<DeclaredDigests, Refusal> {
        if let Some(late) = trailers.map(DeclaredDigests::new).transpose()? {
            self.content.extend(late.content);
            self.whole.extend(late.whole);
            self.sum = self.sum.or(late.sum);
        }
        Ok(self)
    }

    /// Returns the algorithms of `digests` that must be computed while bytes arrive. CRC32C is computed in any case.
    pub(super) fn algorithms(digests: &DigestList) -> Vec<HashAlgorithm> {
        let mut algorithms = Vec::new();
        for (algorithm, _) in digests {
            if *algorithm != HashAlgorithm::Crc32c && !algorithms.contains(algorithm) {
                algorithms.push(*algorithm);
            }
        }
        algorithms
    }
}

/// Several digests over the same bytes, computed incrementally.
pub(super) struct DigestHashers(Vec<(HashAlgorithm, DigestHasher)>);

impl DigestHashers {
    pub(super) fn new(algorithms: Vec<HashAlgorithm>) -> DigestHashers {
        DigestHashers(algorithms.into_iter().map(|algorithm| (algorithm, DigestHasher::new(algorithm))).collect())
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.0.iter_mut().for_each(|(_, summer)| summer.update(bytes));
    }

    pub(super) fn finish(self) -> DigestList {
        self.0.into_iter().map(|(algorithm, summer)| (algorithm, summer.finish())).collect()
    }
}

/// Parses all lines of the field `name`. A malformed line is an error, because its digest could not be checked.
fn read(
    fields: &HeaderMap,
    name: &'static str,
    parse: impl Fn(&str) -> Result<DigestList, MalformedDigest>,
) -> Result<DigestList, Refusal> {
    let mut digests = DigestList::new();
    for line in fields.get_all(name) {
        let parsed = line.to_str().ok().and_then(|line| parse(line).ok());
        digests.extend(parsed.ok_or_else(|| malformed(name))?);
    }
    Ok(digests)
}

fn malformed(name: &str) -> Refusal {
    Refusal::new(StatusCode::BAD_REQUEST, format!("{name}: {MalformedDigest}"))
}

/// Refuses content that is not the file's own bytes, such as a compressed form.
pub(super) fn refuse_codings(method: &Method, fields: &HeaderMap) -> Result<(), Refusal> {
    // RFC 9110 section 8.4: a reader would have to decode the bytes, but the server would not tell readers.
    let is_identity = |line: &str| line.split(',').all(|coding| coding.trim().eq_ignore_ascii_case("identity"));
    if !fields.get_all(CONTENT_ENCODING).iter().all(|line| line.to_str().is_ok_and(is_identity)) {
        let text = "a Content-Encoding would be lost: send the file's own bytes";
        let mut refusal = Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, text);
        refusal.field(ACCEPT_ENCODING, "identity");
        return Err(refusal);
    }
    // RFC 9112 section 6.1. hyper decodes only `chunked` and passes other codings through.
    if single_value(fields, TRANSFER_ENCODING.as_str())?.is_some_and(|coding| !coding.eq_ignore_ascii_case("chunked")) {
        return Err(Refusal::new(StatusCode::NOT_IMPLEMENTED, "of transfer codings, the server knows chunked only"));
    }
    let kind = fields.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if kind.trim_start().get(..BYTERANGES.len()).is_some_and(|kind| kind.eq_ignore_ascii_case(BYTERANGES)) {
        return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "send one range in a request, by Content-Range"));
    }
    // RFC 9110 section 14.4: the field has no meaning with other methods.
    if single_value(fields, CONTENT_RANGE.as_str())?.is_some() && *method != Method::PUT {
        return Err(Refusal::new(StatusCode::BAD_REQUEST, "Content-Range is for PUT"));
    }
    Ok(())
}

/// Returns the value of a field that must not be repeated. A repeated field, or one that is not ASCII, is refused.
pub(super) fn single_value<'a>(fields: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, Refusal> {
    let mut lines = fields.get_all(name).iter();
    match (lines.next().map(HeaderValue::to_str), lines.next()) {
        (None, _) => Ok(None),
        (Some(Ok(value)), None) => Ok(Some(value)),
        _ => Err(Refusal::new(StatusCode::BAD_REQUEST, format!("{name} must be ASCII and must not be repeated"))),
    }
}

/// The field of RFC 1864.
const CONTENT_MD5: &str = "content-md5";
const BYTERANGES: &str = "multipart/byteranges";
