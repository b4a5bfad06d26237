//! A server from a client's view, and the requests to it.
//!
//! `version`: versions of files; `asking`: requests on reusable connections; `answer`: responses; `error`: errors;
//! `bucket`: the differences of buckets; `http3`: requests on one QUIC connection; `third_party`: copies between
//! servers.

mod answer;
#[cfg(feature = "s3")]
mod bucket;
#[cfg(not(feature = "s3"))]
#[path = "no_bucket.rs"]
mod bucket;
mod error;
mod http3;
mod session;
#[cfg(feature = "third-party")]
mod third_party;
mod version;

use answer::AnyResponse;
pub(crate) use answer::RangeReader;
use bucket::Bucket;
pub use error::RemoteError;
use session::IdleConnection;
#[cfg(feature = "third-party")]
pub use third_party::ThirdParty;
pub(crate) use version::RemoteFileVersion;

use crate::attributes::{self, Attributes, Preserve};
use crate::blocks::{BlockSum, Blocks};
use crate::body::{self, Body};
use crate::dial::Dial;
use crate::digest::{HashAlgorithm, patience};
use crate::journal;
use crate::listing::ListingLine;
use crate::mtime::{self, Resolution};
use crate::name::Name;
use crate::pack;
use crate::pipelined_connection::PipelinedConnection;
use crate::protocol::{
    BLOCK, BLOCKS, CHECK, KIND, MAX_SHARES, MODE, MTIME, RESUME, SHARE, SPARSE, UPLOAD, VERIFY, is_reservoir,
};
use crate::shell::Shell;
use crate::storage::{FileInfo, FileKind};
use bytes::BytesMut;
use core::ops::Range;
use core::time::Duration;
use hyper::header::{
    ACCEPT, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderMap, HeaderName, IF_NONE_MATCH, LAST_MODIFIED,
    RANGE, SERVER, TE, TRAILER, TRANSFER_ENCODING,
};
use hyper::{Method, StatusCode};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsString;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

/// A server, with the client's credentials.
pub(crate) struct Remote {
    shell: Shell,
    dial: Arc<dyn Dial>,
    host: String,
    port: u16,
    token: Option<String>,
    /// The bucket, if the server is one.
    bucket: Option<Bucket>,
    /// A name, with the exact path and query to send for it.
    exact: Option<(Name, String)>,
    /// Further servers with the same files.
    stripes: Vec<Arc<Remote>>,
    /// Whether the server is a reservoir, once known.
    is_reservoir: tokio::sync::OnceCell<bool>,
    idle: Mutex<Vec<IdleConnection>>,
    /// Whether requests use HTTP/3, on one connection.
    by_http3: bool,
    http3: tokio::sync::Mutex<Option<http3::Http3>>,
    /// The pipelined connection of each stream.
    lines: Mutex<PipelinedConnections>,
}

/// Pipelined connections by stream. The inner lock makes other tasks wait while one connects.
type PipelinedConnections = HashMap<usize, Arc<tokio::sync::Mutex<Option<Arc<PipelinedConnection>>>>>;

/// A file on a server.
#[derive(Clone, Debug)]
pub(crate) struct RemoteFile {
    pub(crate) about: FileInfo,
    /// The resolution of the modification time.
    pub(crate) resolution: Resolution,
    /// The file's entity tag.
    pub(crate) tag: Option<String>,
    pub(crate) version: RemoteFileVersion,
    /// Whether the server is a reservoir.
    pub(crate) is_reservoir: bool,
}

/// An entry of a folder.
pub(crate) struct FolderEntry {
    pub(crate) part: OsString,
    pub(crate) about: FileInfo,
    pub(crate) resolution: Resolution,
    pub(crate) tag: Option<String>,
}

/// An upload from the view of one of the servers that write it.
#[derive(Clone, Copy)]
pub(crate) struct UploadShare<'a> {
    /// The client's name of the upload.
    pub(crate) id: &'a str,
    pub(crate) blocks: Blocks,
    pub(crate) share: u16,
    pub(crate) shares: u16,
}

/// Options for beginning an upload.
#[derive(Clone, Copy)]
pub(crate) struct UploadStart<'a> {
    /// Resume, if some blocks are present.
    pub(crate) resume: bool,
    /// Read the present blocks again.
    pub(crate) check: bool,
    pub(crate) sparse: bool,
    /// The attributes of the file, if the server does not have them yet.
    pub(crate) attributes: Option<&'a Attributes>,
}

/// Options for completing an upload.
pub(crate) struct UploadEnd<'a> {
    pub(crate) root: Option<[u8; 32]>,
    pub(crate) verify: bool,
    /// The modification time. `None` if unknown.
    pub(crate) modified: Option<SystemTime>,
    pub(crate) attributes: &'a Attributes,
    /// The mode of the source. `None` if unknown.
    pub(crate) mode: Option<u32>,
    /// Whether an existing file of the same name is replaced.
    pub(crate) replaces: bool,
}

/// Conditions that a server checks before a whole file appears.
pub(crate) struct UploadConditions {
    pub(crate) digest: ExpectedDigest,
    /// Whether an existing file of the same name is replaced.
    pub(crate) replaces: bool,
}

/// The digest that a server must verify for a whole file.
pub(crate) enum ExpectedDigest {
    Nothing,
    Blake3([u8; 32]),
    #[cfg(feature = "s3")]
    Md5(Vec<u8>),
}

impl Remote {
    pub(crate) fn new(shell: Shell, dial: Arc<dyn Dial>, host: &str, port: u16, token: Option<String>) -> Remote {
        let (bucket, exact, stripes, is_reservoir, idle, http3, lines) = Default::default();
        let by_http3 = dial.speaks_quic(host, port);
        let host = host.into();
        Remote { shell, dial, host, port, token, bucket, exact, stripes, is_reservoir, idle, by_http3, http3, lines }
    }

    #[cfg(feature = "s3")]
    pub(crate) fn for_bucket(shell: Shell, dial: Arc<dyn Dial>, bucket: Bucket) -> Remote {
        let (host, port) = bucket.server();
        Remote { bucket: Some(bucket), by_http3: false, ..Remote::new(shell, dial, &host, port, None) }
    }

    /// Sets the path and query that are sent for a name.
    pub(crate) fn asked_by(self, exact: Option<(Name, String)>) -> Remote {
        Remote { exact, ..self }
    }

    /// Tests whether the request for a name has a query.
    pub(crate) fn has_query(&self, name: &Name) -> bool {
        self.exact.as_ref().is_some_and(|(exact, _)| exact == name)
    }

    /// Adds further servers with the same files.
    pub(crate) fn striped(self, stripes: Vec<Arc<Remote>>) -> Remote {
        Remote { stripes, ..self }
    }

    /// Returns the server from which a stream reads.
    pub(crate) fn for_stream(self: &Arc<Remote>, stream: usize) -> &Arc<Remote> {
        self.stripe(stream)
    }

    /// Returns the server that writes a file. Only one server knows its upload.
    pub(crate) fn for_name(self: &Arc<Remote>, name: &Name) -> &Arc<Remote> {
        self.stripe(usize::from(blake3::hash(name.to_url().as_bytes()).as_bytes()[0]))
    }

    /// Returns the servers that together write a file of `blocks` blocks, the server of its name first.
    pub(crate) fn writers(self: &Arc<Remote>, name: &Name, blocks: u64) -> Vec<Arc<Remote>> {
        let all = (self.stripes.len() + 1).min(usize::from(MAX_SHARES));
        let count = if blocks >= 2 * all as u64 { all } else { 1 };
        let first = usize::from(blake3::hash(name.to_url().as_bytes()).as_bytes()[0]);
        (first..first + count).map(|number| self.stripe(number).clone()).collect()
    }

    fn stripe(self: &Arc<Remote>, number: usize) -> &Arc<Remote> {
        match number % (self.stripes.len() + 1) {
            0 => self,
            at => &self.stripes[at - 1],
        }
    }

    pub(crate) fn is_bucket(&self) -> bool {
        self.bucket.is_some()
    }

    /// Describes a name. Returns `None` if it does not exist.
    pub(crate) async fn head(&self, name: &Name) -> Result<Option<RemoteFile>, RemoteError> {
        let asked = match &self.bucket {
            // The bucket itself is not an object.
            Some(_) if name == &Name::root() => None,
            _ => match self.ask(self.request(Method::HEAD, name), body::empty(), name, Some(STALL)).await {
                Err(RemoteError::Refused { status: StatusCode::NOT_FOUND, .. }) => None,
                // A signature may be valid for GET only. The body is dropped unread, together with its connection.
                Err(RemoteError::Refused { status, .. }) if self.has_query(name) && status.is_client_error() => {
                    let request = self.request(Method::GET, name);
                    Some((self.ask(request, body::empty(), name, Some(STALL)).await?, false))
                }
                answer => Some((answer?, true)),
            },
        };
        let Some((answer, has_ended)) = asked else {
            let folder = match &self.bucket {
                Some(bucket) => self.is_folder_of(bucket, name).await?,
                None => false,
            };
            let about = FileInfo::without_inode(FileKind::Folder, 0, SystemTime::UNIX_EPOCH);
            let (resolution, tag, version) = (Resolution::Unknown, None, RemoteFileVersion::default());
            return Ok(folder.then_some(RemoteFile { about, resolution, tag, version, is_reservoir: false }));
        };
        let fields = answer.headers();
        // A query may lead to any other server.
        let is_reservoir = !self.has_query(name) && field(fields, SERVER).is_some_and(is_reservoir);
        let folder = field(fields, HeaderName::from_static(KIND)) == Some("folder");
        let kind = if folder { FileKind::Folder } else { FileKind::File };
        let size = field(fields, CONTENT_LENGTH).and_then(|length| length.parse().ok());
        let size: Option<u64> = if folder { Some(0) } else { size };
        let size = size.ok_or(RemoteError::Answer { name: name.clone(), what: "does not tell the file's size" })?;
        let exactly = |name| {
            let text = field(fields, HeaderName::from_static(name))?;
            Some((mtime::from_text(text)?, Resolution::from_text(text)))
        };
        let last = || {
            let date = http_rules::date::parse(field(fields, LAST_MODIFIED)?)?;
            Some((date, Resolution::Seconds))
        };
        let modified = exactly(BUCKET_MTIME).or_else(|| exactly(MTIME)).or_else(last);
        let (modified, resolution) = modified.unwrap_or((SystemTime::UNIX_EPOCH, Resolution::Unknown));
        let (tag, version) = (field(fields, ETAG).map(str::to_owned), RemoteFileVersion::from_answer(fields));
        let found =
            RemoteFile { about: FileInfo::without_inode(kind, size, modified), resolution, tag, version, is_reservoir };
        if has_ended {
            self.give_back(answer).await;
        }
        Ok(Some(found))
    }

    /// Returns whether the server is a reservoir.
    pub(crate) async fn is_reservoir(&self) -> Result<bool, RemoteError> {
        self.is_reservoir.get_or_try_init(|| self.asks_who_it_is()).await.copied()
    }

    async fn asks_who_it_is(&self) -> Result<bool, RemoteError> {
        if self.is_bucket() || self.exact.is_some() {
            return Ok(false);
        }
        let name = Name::root();
        let answer = match self.ask(self.request(Method::OPTIONS, &name), body::empty(), &name, Some(STALL)).await {
            // Other servers may not support OPTIONS.
            Err(RemoteError::Refused { status, .. }) if status != StatusCode::UNAUTHORIZED => return Ok(false),
            answer => answer?,
        };
        let ours = field(answer.headers(), SERVER).is_some_and(is_reservoir);
        self.give_back(answer).await;
        Ok(ours)
    }

    /// Lists a folder of a bucket or of a reservoir server.
    pub(crate) async fn list(&self, name: &Name) -> Result<Vec<FolderEntry>, RemoteError> {
        if let Some(bucket) = &self.bucket {
            return self.list_bucket(bucket, name).await;
        }
        let request = self.request(Method::GET, name).header(ACCEPT, "application/x-ndjson");
        let answer = AnyResponse::Session(self.ask(request, body::empty(), name, Some(STALL)).await?);
        let mut reading = RangeReader { answer, left: 0, trailers: None, name: name.clone(), host: self.host.clone() };
        let wrong = |what| RemoteError::Answer { name: name.clone(), what };
        let parse = |line: &[u8]| {
            let (part, about, tag) = core::str::from_utf8(line).ok().and_then(ListingLine::from_json)?;
            Some(FolderEntry { part, about, resolution: Resolution::Nanoseconds, tag })
        };
        let (mut listed, mut bytes, mut rest) = (Vec::new(), 0, BytesMut::new());
        while let Some(piece) = reading.some().await? {
            bytes += piece.len();
            rest.extend_from_slice(&piece);
            while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let line = rest.split_to(end + 1);
                listed.push(parse(&line[..end]).ok_or_else(|| wrong("is no list of a folder"))?);
            }
            if listed.len() > MAX_ENTRIES || bytes > MAX_LISTING_BYTES || rest.len() > MAX_LINE_BYTES {
                return Err(wrong("is a list of more than a million entries, or of more than 128 MiB"));
            }
        }
        if !rest.is_empty() {
            return Err(wrong("was cut off"));
        }
        reading.end(self);
        Ok(listed)
    }

    /// Returns the attributes of a file on a reservoir server. `None` if the server does not tell them, or they are too
    /// many.
    pub(crate) async fn attributes(&self, name: &Name, wanted: Preserve) -> Result<Option<Attributes>, RemoteError> {
        let request = self.request(Method::HEAD, name).header(attributes::FIELD, wanted.to_text());
        let answer = self.ask(request, body::empty(), name, Some(STALL)).await?;
        let told = field(answer.headers(), HeaderName::from_static(attributes::FIELD)).map(Attributes::from_text);
        self.give_back(answer).await;
        Ok(told.flatten())
    }

    /// Returns the strongest hash of a file of `size` bytes that the server tells in time. An object of a bucket has a
    /// hash only if it was uploaded in one request. Checksums against accidental errors, common in grid storage, count
    /// only if they `may_be_weak`.
    pub(crate) async fn digest(
        &self,
        name: &Name,
        size: u64,
        may_be_weak: bool,
    ) -> Result<Option<(HashAlgorithm, Vec<u8>)>, RemoteError> {
        if self.is_bucket() {
            let tag = self.head(name).await?.and_then(|found| found.tag);
            let md5 = tag.and_then(|tag| crate::digest::from_hexadecimal(tag.trim_matches('"')));
            return Ok(md5.filter(|md5| md5.len() == 16).map(|md5| (HashAlgorithm::Md5, md5)));
        }
        let mut request =
            self.request(Method::HEAD, name).header("want-repr-digest", "blake3=10, sha-256=5, sha-512=3");
        if may_be_weak && !self.is_reservoir().await? {
            request = request.header("want-digest", "sha-256, sha-512;q=0.9, md5;q=0.8, adler32;q=0.7");
        }
        // The server's own limit expires first.
        let asked = self.ask(request, body::empty(), name, None);
        let Ok(answer) = self.shell.within(patience(size) + STALL, asked).await else { return Ok(None) };
        let answer = answer?;
        let told = field(answer.headers(), HeaderName::from_static("repr-digest"));
        let mut digests = told.and_then(|told| crate::digest::read(told).ok()).unwrap_or_default();
        if may_be_weak {
            let told = field(answer.headers(), HeaderName::from_static("digest"));
            digests.extend(told.and_then(|told| crate::digest::read_rfc3230(told).ok()).unwrap_or_default());
        }
        self.give_back(answer).await;
        let is_strong =
            |algorithm| matches!(algorithm, HashAlgorithm::Blake3 | HashAlgorithm::Sha256 | HashAlgorithm::Sha512);
        Ok(digests.into_iter().find(|(algorithm, _)| may_be_weak || is_strong(*algorithm)))
    }

    /// Sends many small files at once into a folder. Returns the names of refused files.
    pub(crate) async fn send_pack(&self, into: &Name, body: Body) -> Result<HashSet<Name>, RemoteError> {
        let request = self.request(Method::POST, into).header(CONTENT_TYPE, pack::KIND);
        // The server answers after syncing its file system, including data of other writers.
        let answer = self.ask(request, body, into, Some(PACK_STALL)).await?;
        let text = self.text(answer, into, MAX_PACK_RESPONSE_BYTES).await?;
        let name = |line: &str| Name::from_url(line.split('\t').next().unwrap_or_default()).ok();
        let wrong = || RemoteError::Answer { name: into.clone(), what: "is no list of files that did not arrive" };
        text.lines().map(|line| name(line).ok_or_else(wrong)).collect()
    }

    /// Creates a folder and its missing parents.
    pub(crate) async fn make_folder(&self, name: &Name) -> Result<(), RemoteError> {
        if name == &Name::root() {
            return Ok(());
        }
        match self.make_one_folder(name).await {
            // RFC 4918 section 9.3.1: a parent is missing.
            Err(RemoteError::Refused { status: StatusCode::CONFLICT, .. }) => {}
            made => return made,
        }
        let mut above = vec![name.folder()];
        while let Some(next) = above.last().map(Name::folder).filter(|next| next != &Name::root()) {
            above.push(next);
        }
        for folder in above.iter().rev() {
            match self.make_one_folder(folder).await {
                // The folder exists, or else the last request fails.
                Err(RemoteError::Refused { status: StatusCode::METHOD_NOT_ALLOWED, .. }) => {}
                made => made?,
            }
        }
        self.make_one_folder(name).await
    }

    async fn make_one_folder(&self, name: &Name) -> Result<(), RemoteError> {
        let method = Method::from_bytes(b"MKCOL").expect("a token");
        let request = self.request_to(method, Some(name.to_url() + "/")).header(CONTENT_LENGTH, 0);
        match self.ask(request, body::empty(), name, Some(STALL)).await {
            Ok(answer) => {
                self.give_back(answer).await;
                Ok(())
            }
            Err(refused @ RemoteError::Refused { status: StatusCode::METHOD_NOT_ALLOWED, .. }) => {
                match self.head(name).await {
                    Ok(Some(found)) if found.about.kind == FileKind::Folder => Ok(()),
                    // A write-only token cannot see whether the folder exists.
                    Err(RemoteError::Refused { status: StatusCode::FORBIDDEN, .. }) => Ok(()),
                    Ok(Some(found)) if found.is_reservoir => Err(refused),
                    // Other servers do not tell kinds, but no file has a name with a slash at the end.
                    _ => {
                        let request = self.request_to(Method::HEAD, Some(name.to_url() + "/"));
                        let answer = self.ask(request, body::empty(), name, Some(STALL)).await.map_err(|_| refused)?;
                        self.give_back(answer).await;
                        Ok(())
                    }
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Requests many small files of a folder at once. `names` has a name per line.
    pub(crate) async fn fetch_pack(&self, from: &Name, names: String) -> Result<RangeReader, RemoteError> {
        let request = self.request(Method::POST, from).header(CONTENT_TYPE, pack::NAMES);
        let answer = AnyResponse::Session(self.ask(request, body::full(names), from, Some(STALL)).await?);
        Ok(RangeReader { answer, left: 0, trailers: None, name: from.clone(), host: self.host.clone() })
    }

    /// Requests the bytes of `range` of a version. If `line` is set, the request is pipelined on the connection of that
    /// stream.
    pub(crate) async fn get(
        &self,
        name: &Name,
        range: Range<u64>,
        size: u64,
        version: &RemoteFileVersion,
        block: Option<u64>,
        line: Option<usize>,
    ) -> Result<RangeReader, RemoteError> {
        let mut request = self.request(Method::GET, name);
        let all = range == (0..size);
        // HTTP has no empty range (RFC 9110 section 14.1.1). An empty file is requested as a whole.
        if !range.is_empty() {
            request = request.header(RANGE, format!("bytes={}-{}", range.start, range.end - 1));
        }
        request = version.put_in(request);
        if let Some(block) = block {
            request = request.header(TE, "trailers").header("connection", "TE");
            request = request.header("want-content-digest", "crc32c=10").header(BLOCK, block);
        }
        // HTTP/3 streams do not wait for earlier requests.
        let answer = match line.filter(|_| !self.by_http3) {
            Some(stream) => self.ask_on_line(request, body::empty(), name, stream).await.map(AnyResponse::Pipelined),
            None => self.ask(request, body::empty(), name, Some(STALL)).await.map(AnyResponse::Session),
        };
        let answer = match answer {
            Err(RemoteError::Refused { status: StatusCode::PRECONDITION_FAILED, .. }) => {
                return Err(RemoteError::Changed(name.clone()));
            }
            answer => answer?,
        };
        // Some servers ignore If-Match.
        if !version.fits(answer.headers()) {
            return Err(RemoteError::Changed(name.clone()));
        }
        let wrong = |what| RemoteError::Answer { name: name.clone(), what };
        match answer.status() {
            StatusCode::PARTIAL_CONTENT => {
                let told = field(answer.headers(), CONTENT_RANGE).and_then(|range| range.parse().ok());
                let told: http_rules::range::ContentRange = told.ok_or_else(|| wrong("has no Content-Range"))?;
                // The file grew or shrank under a weak version.
                if told.size != size {
                    return Err(RemoteError::Changed(name.clone()));
                }
                if told.bytes != Some(range.clone()) {
                    return Err(wrong("has other bytes than those that were asked for"));
                }
            }
            // Servers without ranges answer with the whole file.
            StatusCode::OK if all => {
                let length = field(answer.headers(), CONTENT_LENGTH).and_then(|length| length.parse().ok());
                if length.is_some_and(|length: u64| length != size) {
                    return Err(RemoteError::Changed(name.clone()));
                }
            }
            _ => {
                return Err(wrong(
                    "is the whole file: the server gives no ranges, use --streams 1 --block of its size",
                ));
            }
        }
        Ok(RangeReader {
            answer,
            left: range.end - range.start,
            trailers: None,
            name: name.clone(),
            host: self.host.clone(),
        })
    }

    /// Begins or resumes an upload. Returns the present blocks.
    pub(crate) async fn begin(
        &self,
        name: &Name,
        of: UploadShare<'_>,
        beginning: UploadStart<'_>,
    ) -> Result<BTreeMap<u64, BlockSum>, RemoteError> {
        let UploadStart { resume, check, sparse, attributes } = beginning;
        let mut request = of.put_in(self.request(Method::POST, name)).header(CONTENT_LENGTH, 0);
        if resume {
            request = request.header(RESUME, "?1");
        }
        if check {
            request = request.header(CHECK, "?1");
        }
        if sparse {
            request = request.header(SPARSE, "?1");
        }
        if let Some(attributes) = attributes.filter(|attributes| !attributes.is_empty()) {
            request = request.header(attributes::FIELD, attributes.to_text());
        }
        // The server may read every present block before it answers.
        let answer = self.ask(request, body::empty(), name, Some(patience(of.blocks.size()))).await?;
        let text = self.text(answer, name, journal::most_bytes(of.blocks) as usize).await?;
        Ok(journal::blocks_of(text.split('\n').map(str::as_bytes), of.blocks))
    }

    /// Sends a block of an upload.
    pub(crate) async fn put_block(
        &self,
        name: &Name,
        of: UploadShare<'_>,
        number: u64,
        body: Body,
        line: Option<usize>,
    ) -> Result<(), RemoteError> {
        let range = of.blocks.range(number);
        let told = format!("bytes {}-{}/{}", range.start, range.end - 1, of.blocks.size());
        let request = of.put_in(self.request(Method::PUT, name)).header(CONTENT_RANGE, told);
        // Chunked, so that digests can follow as trailers.
        let request = request.header(TRANSFER_ENCODING, "chunked").header(TRAILER, "Content-Digest, Reservoir-Subtree");
        match line.filter(|_| !self.by_http3) {
            Some(stream) => {
                let answer = self.ask_on_line(request, body, name, stream).await?;
                answer.text(MAX_REFUSAL_BYTES).await.map_err(|error| self.broke(&error))?;
            }
            None => {
                let answer = self.ask(request, body, name, Some(STALL)).await?;
                self.give_back(answer).await;
            }
        }
        Ok(())
    }

    /// Returns the minimum response time of a stream's requests, once known.
    pub(crate) async fn round_trip(&self, stream: usize) -> Option<Duration> {
        if self.by_http3 {
            return self.round_trip_of_http3().await;
        }
        let line = self.lines().get(&stream).cloned()?;
        let line = line.lock().await.clone()?;
        line.round_trip()
    }

    /// Ends this server's share of an upload, which another server completes.
    pub(crate) async fn end_share(&self, name: &Name, of: UploadShare<'_>) -> Result<(), RemoteError> {
        let answer = self.ask(self.ending(name, of), body::empty(), name, Some(STALL)).await?;
        self.give_back(answer).await;
        Ok(())
    }

    fn ending(&self, name: &Name, of: UploadShare<'_>) -> hyper::http::request::Builder {
        let request = of.put_in(self.request(Method::PUT, name)).header(CONTENT_LENGTH, 0);
        request.header(CONTENT_RANGE, format!("bytes */{}", of.blocks.size()))
    }

    /// Completes an upload.
    pub(crate) async fn finish(
        &self,
        name: &Name,
        of: UploadShare<'_>,
        ending: UploadEnd<'_>,
    ) -> Result<(), RemoteError> {
        let UploadEnd { root, verify, modified, attributes, mode, replaces } = ending;
        let mut request = self.ending(name, of);
        if let Some(modified) = modified {
            request = request.header(MTIME, mtime::to_text(modified));
        }
        if let Some(mode) = mode {
            request = request.header(MODE, format!("{mode:o}"));
        }
        if !replaces {
            request = request.header(IF_NONE_MATCH, "*");
        }
        if let Some(root) = root {
            request = request.header("repr-digest", HashAlgorithm::Blake3.field(&root));
        }
        if verify {
            request = request.header(VERIFY, "?1");
        }
        // Empty attributes are sent too, because an earlier copy may have had some.
        request = request.header(attributes::FIELD, attributes.to_text());
        // The server may read the whole file before it answers.
        let answer = self.ask(request, body::empty(), name, Some(patience(of.blocks.size()))).await?;
        self.give_back(answer).await;
        Ok(())
    }

    /// Sends a whole file in one request.
    pub(crate) async fn put_whole(
        &self,
        name: &Name,
        body: Body,
        size: u64,
        modified: Option<SystemTime>,
        conditions: UploadConditions,
        (attributes, mode): (&Attributes, Option<u32>),
    ) -> Result<(), RemoteError> {
        let modified = modified.map(mtime::to_text);
        let (mut request, field) = match &self.bucket {
            Some(bucket) => {
                let target = self.put_target(bucket, modified.as_deref(), name);
                (self.request_to(Method::PUT, target), BUCKET_MTIME)
            }
            None => (self.request(Method::PUT, name), MTIME),
        };
        if let Some(modified) = modified {
            request = request.header(field, modified);
        }
        request = request.header(CONTENT_LENGTH, size);
        if let Some(mode) = mode {
            request = request.header(MODE, format!("{mode:o}"));
        }
        if !attributes.is_empty() {
            request = request.header(attributes::FIELD, attributes.to_text());
        }
        if !conditions.replaces {
            request = request.header(IF_NONE_MATCH, "*");
        }
        let is_held_to = !matches!(conditions.digest, ExpectedDigest::Nothing);
        request = match conditions.digest {
            ExpectedDigest::Nothing => request,
            ExpectedDigest::Blake3(digest) => request.header("repr-digest", HashAlgorithm::Blake3.field(&digest)),
            #[cfg(feature = "s3")]
            ExpectedDigest::Md5(md5) => request.header(bucket::CONTENT_MD5, bucket::encode_md5(&md5)),
        };
        let answer = self.ask(request, body, name, Some(STALL)).await?;
        self.give_back(answer).await;
        if is_held_to {
            return Ok(());
        }
        // A server may report success before it has received the whole body.
        match self.head(name).await {
            Ok(Some(found)) if found.about.size == size => Ok(()),
            // A write-only token cannot see the file.
            Err(RemoteError::Refused { status: StatusCode::FORBIDDEN, .. }) => Ok(()),
            Ok(_) => Err(RemoteError::Answer {
                name: name.clone(),
                what: "says that the file is there, but it is not whole",
            }),
            Err(error) => Err(error),
        }
    }
}

impl UploadShare<'_> {
    fn put_in(self, request: hyper::http::request::Builder) -> hyper::http::request::Builder {
        let UploadShare { id, blocks, share, shares } = self;
        let request = request.header(UPLOAD, id).header(BLOCKS, format!("{}/{}", blocks.size(), blocks.block()));
        if shares > 1 { request.header(SHARE, format!("{share}/{shares}")) } else { request }
    }
}

fn field(fields: &HeaderMap, name: HeaderName) -> Option<&str> {
    fields.get(name)?.to_str().ok()
}

/// The field of a bucket's object that keeps the modification time.
pub(crate) const BUCKET_MTIME: &str = "x-amz-meta-mtime";
/// Time limit of a server for the files of a pack.
const PACK_STALL: Duration = Duration::from_secs(600);
/// Maximum length of the list of a pack's refused files: more than a reservoir sends.
const MAX_PACK_RESPONSE_BYTES: usize = 8 << 20;
/// Time limit without progress of a server.
const STALL: Duration = Duration::from_secs(60);
/// Maximum length of an unrequested response body that is read.
const MAX_REFUSAL_BYTES: usize = 64 << 10;
/// Maximum number of entries of a folder, length of their list, and length of a line.
const MAX_ENTRIES: usize = 1_000_000;
const MAX_LISTING_BYTES: usize = 128 << 20;
const MAX_LINE_BYTES: usize = 4 << 10;
