//! A bucket as a server: folders as key prefixes, and multipart uploads.

use super::{BUCKET_MTIME, FolderEntry, MAX_REFUSAL_BYTES, Remote, RemoteError, STALL};
use crate::body::{self, Body};
use crate::mtime::{self, Resolution};
use crate::name::Name;
pub(crate) use crate::s3::Bucket;
pub(super) use crate::s3::refusal;
use crate::s3::{self, S3Request};
use crate::storage::{FileInfo, FileKind};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use core::time::Duration;
use hyper::header::{CONTENT_LENGTH, ETAG};
use hyper::{Method, StatusCode};
use rusty_s3::actions::{ListObjectsV2, ListObjectsV2Response};
use std::time::SystemTime;

impl Remote {
    /// Returns whether any key begins with `name` and a slash.
    pub(super) async fn is_folder_of(&self, bucket: &Bucket, name: &Name) -> Result<bool, RemoteError> {
        if name == &Name::root() {
            return Ok(true);
        }
        // An object with the folder's own name, created by some programs, counts too.
        let page = self.listed(bucket, name, None, 1).await?;
        Ok(!page.contents.is_empty() || !page.common_prefixes.is_empty())
    }

    /// Lists a folder of a bucket.
    pub(super) async fn list_bucket(&self, bucket: &Bucket, name: &Name) -> Result<Vec<FolderEntry>, RemoteError> {
        let (mut listed, mut from) = (Vec::new(), None);
        loop {
            let (page, next) = self.page(bucket, name, from.as_deref(), 1000).await?;
            let is_empty = page.is_empty();
            listed.extend(page);
            match next {
                None => return Ok(listed),
                Some(_) if is_empty || listed.len() > MAX_ENTRIES => {
                    return Err(RemoteError::Answer { name: name.clone(), what: "is a list without an end" });
                }
                next => from = next,
            }
        }
    }

    /// Returns some entries of a folder, and the token for the next ones.
    async fn page(
        &self,
        bucket: &Bucket,
        name: &Name,
        from: Option<&str>,
        most: usize,
    ) -> Result<(Vec<FolderEntry>, Option<String>), RemoteError> {
        let page = self.listed(bucket, name, from, most).await?;
        let wrong = || RemoteError::Answer { name: name.clone(), what: NO_LIST };
        let above = if name == &Name::root() { String::new() } else { format!("{}/", name.path().display()) };
        let mut listed = Vec::new();
        for object in page.contents {
            let part = object.key.strip_prefix(&above).ok_or_else(wrong)?;
            // The folder's own name, created by some programs.
            if part.is_empty() {
                continue;
            }
            let modified = object.last_modified.and_then(|time| humantime::parse_rfc3339_weak(&time).ok());
            // The time is that of the upload, in whole seconds.
            let resolution = modified.map_or(Resolution::Unknown, |_| Resolution::Seconds);
            let modified = modified.unwrap_or(SystemTime::UNIX_EPOCH);
            let about = FileInfo::without_inode(FileKind::File, object.size.unwrap_or(0), modified);
            listed.push(FolderEntry { part: part.into(), about, resolution, tag: object.etag });
        }
        for folder in page.common_prefixes {
            let part = folder.prefix.strip_prefix(&above).and_then(|part| part.strip_suffix('/')).ok_or_else(wrong)?;
            let about = FileInfo::without_inode(FileKind::Folder, 0, SystemTime::UNIX_EPOCH);
            listed.push(FolderEntry { part: part.into(), about, resolution: Resolution::Unknown, tag: None });
        }
        Ok((listed, page.next_continuation_token))
    }

    /// Requests and parses a page of a listing.
    async fn listed(
        &self,
        bucket: &Bucket,
        name: &Name,
        from: Option<&str>,
        most: usize,
    ) -> Result<ListObjectsV2Response, RemoteError> {
        let request = self.request_to(Method::GET, bucket.listing(name, from, most).ok());
        let answer = self.ask(request, body::empty(), name, Some(STALL)).await?;
        let text = self.text(answer, name, MAX_PAGE_BYTES).await?;
        let wrong = RemoteError::Answer { name: name.clone(), what: NO_LIST };
        ListObjectsV2::parse_response(&text).map_err(|_| wrong)
    }

    /// Returns the newest unfinished upload of `name` with its start time. `None` if there is none, or uploads cannot
    /// be listed.
    pub(crate) async fn last_upload(&self, name: &Name) -> Result<Option<(String, Option<SystemTime>)>, RemoteError> {
        let request = self.request_to(Method::GET, self.target(S3Request::Uploads, name));
        let answer = match self.ask(request, body::empty(), name, Some(STALL)).await {
            Err(RemoteError::Refused { status: StatusCode::FORBIDDEN | StatusCode::NOT_IMPLEMENTED, .. }) => {
                return Ok(None);
            }
            answer => answer?,
        };
        Ok(s3::last_upload(&self.text(answer, name, MAX_PAGE_BYTES).await?, name))
    }

    /// Creates an upload.
    pub(crate) async fn create_upload(&self, name: &Name, modified: Option<SystemTime>) -> Result<String, RemoteError> {
        let modified = modified.map(mtime::to_text);
        let request = self.request_to(Method::POST, self.target(S3Request::Create(modified.as_deref()), name));
        let mut request = request.header(CONTENT_LENGTH, 0);
        if let Some(modified) = modified {
            request = request.header(BUCKET_MTIME, modified);
        }
        let answer = self.ask(request, body::empty(), name, Some(STALL)).await?;
        let text = self.text(answer, name, MAX_REFUSAL_BYTES).await?;
        s3::created(&text).ok_or(RemoteError::Answer { name: name.clone(), what: "does not tell the upload's name" })
    }

    /// Returns the parts of an upload.
    pub(crate) async fn parts(&self, name: &Name, upload: &str) -> Result<Vec<s3::BucketPart>, RemoteError> {
        let (mut parts, mut after) = (Vec::new(), 0);
        loop {
            let request = self.request_to(Method::GET, self.target(S3Request::Parts(upload, after), name));
            let answer = self.ask(request, body::empty(), name, Some(STALL)).await?;
            let text = self.text(answer, name, MAX_PAGE_BYTES).await?;
            let wrong = |what| RemoteError::Answer { name: name.clone(), what };
            let (page, next) = s3::parts(&text).ok_or_else(|| wrong("is no list of parts"))?;
            parts.extend(page);
            match next {
                None => return Ok(parts),
                Some(next) if next <= after || parts.len() > MAX_PARTS => {
                    return Err(wrong("is a list without an end"));
                }
                Some(next) => after = next,
            }
        }
    }

    /// Sends a part, of which the server verifies the MD5 if given. Returns the part's tag.
    pub(crate) async fn put_part(
        &self,
        name: &Name,
        upload: &str,
        number: u16,
        body: Body,
        size: u64,
        md5: Option<&[u8]>,
    ) -> Result<String, RemoteError> {
        let mut request = self.request_to(Method::PUT, self.target(S3Request::Part(upload, number), name));
        request = request.header(CONTENT_LENGTH, size);
        if let Some(md5) = md5 {
            request = request.header(CONTENT_MD5, encode_md5(md5));
        }
        let answer = self.ask(request, body, name, Some(STALL)).await?;
        let tag = super::field(answer.headers(), ETAG).map(str::to_owned);
        self.give_back(answer).await;
        tag.ok_or(RemoteError::Answer { name: name.clone(), what: "does not tell the part's tag" })
    }

    /// Assembles the parts into the object.
    pub(crate) async fn complete_upload(&self, name: &Name, upload: &str, tags: &[&str]) -> Result<(), RemoteError> {
        let request = self.request_to(Method::POST, self.target(S3Request::Complete(upload), name));
        let body = s3::complete(tags);
        let request = request.header(CONTENT_LENGTH, body.len());
        // The server assembles the parts before it answers.
        let answer = self.ask(request, body::full(body), name, Some(ASSEMBLY)).await?;
        let text = self.text(answer, name, MAX_REFUSAL_BYTES).await?;
        let failed = RemoteError::Answer { name: name.clone(), what: "does not say that the parts became the object" };
        if s3::is_complete(&text) { Ok(()) } else { Err(failed) }
    }

    /// Returns the signed target of a HEAD or GET request. `None` if the name is not a valid key.
    pub(super) fn target_of(&self, bucket: &Bucket, method: &Method, name: &Name) -> Option<String> {
        bucket.target(if *method == Method::HEAD { S3Request::Head } else { S3Request::Get }, name).ok()
    }

    /// Returns the signed target of an object sent in one request. `None` if the name is not a valid key.
    pub(super) fn put_target(&self, bucket: &Bucket, modified: Option<&str>, name: &Name) -> Option<String> {
        bucket.target(S3Request::Put(modified), name).ok()
    }

    /// Returns the signed target of a request about a name. `None` if the name is not a valid key, or the server is no
    /// bucket.
    fn target(&self, ask: S3Request<'_>, name: &Name) -> Option<String> {
        self.bucket.as_ref()?.target(ask, name).ok()
    }
}

/// Encodes an MD5 for [`CONTENT_MD5`].
pub(super) fn encode_md5(md5: &[u8]) -> String {
    STANDARD.encode(md5)
}

/// The field of RFC 1864. S3 refuses content that differs.
pub(crate) const CONTENT_MD5: &str = "content-md5";
/// Maximum length of a page: a thousand keys of one KiB each, or parts, with their attributes.
const MAX_PAGE_BYTES: usize = 16 << 20;
const MAX_ENTRIES: usize = 10_000_000;
/// Maximum number of parts of an upload (S3).
const MAX_PARTS: usize = 10_000;
/// Time limit of a server for assembling parts.
const ASSEMBLY: Duration = Duration::from_secs(3600);
const NO_LIST: &str = "is no list of a bucket";
