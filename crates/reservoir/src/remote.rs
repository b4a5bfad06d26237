//! A server as a client sees it: connections that are kept for the next request, and the requests. `bucket`: what is another's with buckets.

mod bucket;

use crate::attributes::{self, Attributes, Preserve};
use crate::blocks::{BlockSum, Blocks};
use crate::body::{self, Body};
use crate::digest::Algorithm;
use crate::journal;
use crate::line::{self, Line};
use crate::listing::Entry;
use crate::mtime;
use crate::name::Name;
use crate::pack;
use crate::s3::{self, Ask, Bucket};
use crate::server::PRODUCT;
use crate::server::write::{BLOCKS, CHECK, MISSING, MTIME, SPARSE, UPLOAD};
use crate::shell::Shell;
use crate::storage::{About, Kind};
use crate::watch::{Watch, Watched};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{Buf, Bytes};
use core::ops::Range;
use core::pin::Pin;
use core::time::Duration;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{
    ACCEPT, AUTHORIZATION, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, HOST, HeaderMap, HeaderName, HeaderValue,
    IF_MATCH, LAST_MODIFIED, RANGE, SERVER, TE, TRAILER, TRANSFER_ENCODING, USER_AGENT,
};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use offload_base::text::with_causes;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsString;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;
use tokio::io::{AsyncRead, AsyncWrite};

/// A connection to a server, TLS included.
///
/// See [`Dial`] for an example.
pub trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Wire for S {}

/// What connects to servers.
///
/// ```
/// use offload_reservoir::remote::{Dial, Dialed, Wire};
/// use std::io;
///
/// /// Reaches nobody.
/// struct Cut;
///
/// impl Dial for Cut {
///     fn dial<'a>(&'a self, _host: &'a str, _port: u16) -> Dialed<'a> {
///         Box::pin(async { Err::<Box<dyn Wire>, _>(io::ErrorKind::NetworkUnreachable.into()) })
///     }
/// }
/// ```
pub trait Dial: Send + Sync {
    /// A new connection to `host`.
    fn dial<'a>(&'a self, host: &'a str, port: u16) -> Dialed<'a>;

    /// Whether it would try.
    fn may_reach(&self, host: &str, port: u16) -> bool {
        let _any = (host, port);
        true
    }
}

/// A connection that is being made.
pub type Dialed<'a> = Pin<Box<dyn Future<Output = io::Result<Box<dyn Wire>>> + Send + 'a>>;

/// What goes wrong with a request.
///
/// See [`Dial`] for an example of what fails with it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// The connection cannot be made, or broke.
    #[error("{host}: {error}")]
    Connection {
        /// The server.
        host: String,
        /// Why.
        error: String,
    },
    /// It is not the server that was asked for, or does not speak TLS 1.3 with AES-256-GCM.
    #[error("{host}: no secure connection: {error}: trust its authority by --cacert, if it is the right one")]
    Untrusted {
        /// The server.
        host: String,
        /// Why.
        error: String,
    },
    /// The server refuses.
    #[error("{method} {name}: the server says {status}: {text}")]
    Refused {
        /// What was asked.
        method: Method,
        /// Of which file.
        name: Name,
        /// Its answer.
        status: StatusCode,
        /// In its words.
        text: String,
        /// How many blocks of the upload it misses, if that is why.
        missing: Option<u64>,
    },
    /// The file is another one than at the beginning.
    #[error("{0} was changed on the server while it was copied: copy it again")]
    Changed(Name),
    /// It cannot be asked for.
    #[error(
        "{0} cannot be asked for: the token, the host or the name has characters that HTTP, or a bucket, does not carry"
    )]
    Unaskable(Name),
    /// The answer is not what HTTP or the request allows.
    #[error("{name}: the server's answer {what}")]
    Answer {
        /// The file.
        name: Name,
        /// What is wrong with it.
        what: &'static str,
    },
}

impl RemoteError {
    /// Whether the same request may succeed a little later.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            RemoteError::Connection { .. } => true,
            RemoteError::Refused { status, missing, text, .. } => {
                // S3's way to say that a request came too slowly.
                let too_slow = *status == StatusCode::BAD_REQUEST && text.starts_with("RequestTimeout");
                missing.is_none()
                    && (too_slow
                        || matches!(
                            *status,
                            StatusCode::CONFLICT
                                | StatusCode::REQUEST_TIMEOUT
                                | StatusCode::TOO_MANY_REQUESTS
                                | StatusCode::INTERNAL_SERVER_ERROR
                                | StatusCode::BAD_GATEWAY
                                | StatusCode::SERVICE_UNAVAILABLE
                                | StatusCode::GATEWAY_TIMEOUT
                        ))
            }
            RemoteError::Answer { .. } => true,
            RemoteError::Untrusted { .. } | RemoteError::Changed(_) | RemoteError::Unaskable(_) => false,
        }
    }
}

/// A server, and who asks it.
pub(crate) struct Remote {
    shell: Shell,
    dial: Arc<dyn Dial>,
    host: String,
    port: u16,
    token: Option<String>,
    /// It is a bucket.
    bucket: Option<Bucket>,
    /// Others that have the same files.
    stripes: Vec<Arc<Remote>>,
    /// Whether it is one of ours, once that is known.
    is_reservoir: tokio::sync::OnceCell<bool>,
    idle: Mutex<Vec<Session>>,
    /// Of each stream that asks ahead, its connection.
    lines: Mutex<Lines>,
}

/// By stream. Who makes one has others of its stream wait.
type Lines = HashMap<usize, Arc<tokio::sync::Mutex<Option<Arc<Line>>>>>;

/// A file of a server.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) about: About,
    /// Its version, as the server tells it.
    pub(crate) tag: Option<String>,
    /// Whether the server is one of ours.
    pub(crate) is_reservoir: bool,
}

/// An entry of a folder.
pub(crate) struct Listed {
    pub(crate) part: OsString,
    pub(crate) about: About,
    pub(crate) tag: Option<String>,
}

/// How an upload becomes the file.
pub(crate) struct Ending<'a> {
    pub(crate) root: Option<[u8; 32]>,
    pub(crate) verify: bool,
    pub(crate) modified: SystemTime,
    pub(crate) attributes: &'a Attributes,
}

/// What a server is to hold a whole file to.
pub(crate) enum Expected {
    Nothing,
    Blake3([u8; 32]),
    Md5(Vec<u8>),
}

struct Session {
    requests: SendRequest<Body>,
    watch: Watch,
}

impl Remote {
    pub(crate) fn new(shell: Shell, dial: Arc<dyn Dial>, host: &str, port: u16, token: Option<String>) -> Remote {
        let (bucket, stripes, is_reservoir, idle, lines) = Default::default();
        Remote { shell, dial, host: host.into(), port, token, bucket, stripes, is_reservoir, idle, lines }
    }

    pub(crate) fn of_bucket(shell: Shell, dial: Arc<dyn Dial>, bucket: Bucket) -> Remote {
        let (host, port) = bucket.server();
        Remote { bucket: Some(bucket), ..Remote::new(shell, dial, &host, port, None) }
    }

    /// With others that have the same files.
    pub(crate) fn striped(self, stripes: Vec<Arc<Remote>>) -> Remote {
        Remote { stripes, ..self }
    }

    /// The server that a stream reads from.
    pub(crate) fn of_stream(self: &Arc<Remote>, stream: usize) -> &Arc<Remote> {
        self.stripe(stream)
    }

    /// The server that a file is written by: one alone knows of its upload.
    pub(crate) fn of_name(self: &Arc<Remote>, name: &Name) -> &Arc<Remote> {
        self.stripe(usize::from(blake3::hash(name.to_url().as_bytes()).as_bytes()[0]))
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

    /// What there is under a name; `None`: nothing. `slash`: as a folder.
    pub(crate) async fn head(&self, name: &Name) -> Result<Option<Found>, RemoteError> {
        let asked = match &self.bucket {
            // The bucket itself is no object.
            Some(_) if name == &Name::root() => None,
            _ => match self.ask(self.request(Method::HEAD, name), body::empty(), name, Some(STALL)).await {
                Err(RemoteError::Refused { status: StatusCode::NOT_FOUND, .. }) => None,
                answer => Some(answer?),
            },
        };
        let Some(answer) = asked else {
            let folder = match &self.bucket {
                Some(bucket) => self.is_folder_of(bucket, name).await?,
                None => false,
            };
            let about = About { kind: Kind::Folder, size: 0, modified: SystemTime::UNIX_EPOCH };
            return Ok(folder.then_some(Found { about, tag: None, is_reservoir: false }));
        };
        let fields = answer.headers();
        let is_reservoir = field(fields, SERVER).is_some_and(is_reservoir);
        let folder = field(fields, HeaderName::from_static("reservoir-kind")) == Some("folder");
        let kind = if folder { Kind::Folder } else { Kind::File };
        let size = field(fields, CONTENT_LENGTH).and_then(|length| length.parse().ok());
        let size: Option<u64> = if folder { Some(0) } else { size };
        let size = size.ok_or(RemoteError::Answer { name: name.clone(), what: "does not tell the file's size" })?;
        let modified = field(fields, HeaderName::from_static(s3::MTIME)).and_then(mtime::from_text);
        let last = || field(fields, LAST_MODIFIED).and_then(|date| httpdate::parse_http_date(date).ok());
        let modified = modified.or_else(last).unwrap_or(SystemTime::UNIX_EPOCH);
        let tag = field(fields, ETAG).map(str::to_owned);
        let found = Found { about: About { kind, size, modified }, tag, is_reservoir };
        self.give_back(answer).await;
        Ok(Some(found))
    }

    /// Whether the server is one of ours.
    pub(crate) async fn is_reservoir(&self) -> Result<bool, RemoteError> {
        self.is_reservoir.get_or_try_init(|| self.asks_who_it_is()).await.copied()
    }

    async fn asks_who_it_is(&self) -> Result<bool, RemoteError> {
        if self.is_bucket() {
            return Ok(false);
        }
        let name = Name::root();
        let answer = match self.ask(self.request(Method::OPTIONS, &name), body::empty(), &name, Some(STALL)).await {
            // Another server may know nothing of OPTIONS.
            Err(RemoteError::Refused { status, .. }) if status != StatusCode::UNAUTHORIZED => return Ok(false),
            answer => answer?,
        };
        let ours = field(answer.headers(), SERVER).is_some_and(is_reservoir);
        self.give_back(answer).await;
        Ok(ours)
    }

    /// The entries of a folder of a bucket, or of one of our servers.
    pub(crate) async fn list(&self, name: &Name) -> Result<Vec<Listed>, RemoteError> {
        if let Some(bucket) = &self.bucket {
            return self.list_bucket(bucket, name).await;
        }
        let request = self.request(Method::GET, name).header(ACCEPT, "application/x-ndjson");
        let answer = self.ask(request, body::empty(), name, Some(STALL)).await?;
        let text = self.text(answer, name, MOST_LISTED).await?;
        let wrong = || RemoteError::Answer { name: name.clone(), what: "is no list of a folder" };
        let listed = |(part, about): (OsString, About)| Listed { part, about, tag: Some(about.entity_tag()) };
        text.lines().map(|line| Entry::from_json(line).map(listed).ok_or_else(wrong)).collect()
    }

    /// The rights and extended attributes of a file of one of our servers.
    pub(crate) async fn attributes(&self, name: &Name, wanted: Preserve) -> Result<Attributes, RemoteError> {
        let request = self.request(Method::HEAD, name).header(attributes::FIELD, wanted.to_text());
        let answer = self.ask(request, body::empty(), name, Some(STALL)).await?;
        let told = field(answer.headers(), HeaderName::from_static(attributes::FIELD)).map(Attributes::from_text);
        self.give_back(answer).await;
        let wrong =
            RemoteError::Answer { name: name.clone(), what: "does not tell the file's attributes, or too many" };
        told.flatten().ok_or(wrong)
    }

    /// The strongest hash of a file that the server tells; a bucket's, if it has it from one request.
    pub(crate) async fn digest(&self, name: &Name) -> Result<Option<(Algorithm, Vec<u8>)>, RemoteError> {
        if self.is_bucket() {
            let tag = self.head(name).await?.and_then(|found| found.tag);
            let md5 = tag.and_then(|tag| crate::digest::from_hexadecimal(tag.trim_matches('"')));
            return Ok(md5.filter(|md5| md5.len() == 16).map(|md5| (Algorithm::Md5, md5)));
        }
        let request = self.request(Method::HEAD, name).header("want-repr-digest", "blake3=10, sha-256=5, sha-512=3");
        // To hash a file takes as long as it takes.
        let answer = self.ask(request, body::empty(), name, None).await?;
        let told = field(answer.headers(), HeaderName::from_static("repr-digest")).map(crate::digest::read);
        self.give_back(answer).await;
        let is_strong = |algorithm| matches!(algorithm, Algorithm::Blake3 | Algorithm::Sha256 | Algorithm::Sha512);
        Ok(told.into_iter().flatten().find(|(algorithm, _)| is_strong(*algorithm)))
    }

    /// Sends many small files at once into a folder; gives the names of those that did not arrive.
    pub(crate) async fn send_pack(&self, into: &Name, body: Body) -> Result<HashSet<Name>, RemoteError> {
        let request = self.request(Method::POST, into).header(CONTENT_TYPE, pack::KIND);
        // The server answers when its medium has all of it, and what others wrote besides.
        let answer = self.ask(request, body, into, Some(PACK_STALL)).await?;
        let text = self.text(answer, into, MOST_LISTED).await?;
        let name = |line: &str| Name::from_url(line.split('\t').next().unwrap_or_default()).ok();
        let wrong = || RemoteError::Answer { name: into.clone(), what: "is no list of files that did not arrive" };
        text.lines().map(|line| name(line).ok_or_else(wrong)).collect()
    }

    /// Asks for many small files of a folder at once, by names, a line each.
    pub(crate) async fn fetch_pack(&self, from: &Name, names: String) -> Result<Reading, RemoteError> {
        let request = self.request(Method::POST, from).header(CONTENT_TYPE, pack::NAMES);
        let answer = Answered::Session(self.ask(request, body::full(names), from, Some(STALL)).await?);
        Ok(Reading { answer, left: 0, trailers: None, name: from.clone(), host: self.host.clone() })
    }

    /// The bytes of `range` of the version `tag`, and what gives the connection back: over the line of a stream, behind what that
    /// asked before, if `line` says which.
    pub(crate) async fn get(
        &self,
        name: &Name,
        range: Range<u64>,
        size: u64,
        tag: Option<&str>,
        block: Option<u64>,
        line: Option<usize>,
    ) -> Result<Reading, RemoteError> {
        let mut request = self.request(Method::GET, name);
        let all = range == (0..size);
        if !range.is_empty() {
            request = request.header(RANGE, format!("bytes={}-{}", range.start, range.end - 1));
        }
        // A weak tag fits no condition of this kind (RFC 9110 13.1.1).
        if let Some(tag) = tag.filter(|tag| !tag.starts_with("W/")) {
            request = request.header(IF_MATCH, tag);
        }
        if let Some(block) = block {
            request = request.header(TE, "trailers").header("connection", "TE");
            request = request.header("want-content-digest", "crc32c=10").header("reservoir-block", block);
        }
        let answer = match line {
            Some(stream) => self.ask_on_line(request, body::empty(), name, stream).await.map(Answered::Line),
            None => self.ask(request, body::empty(), name, Some(STALL)).await.map(Answered::Session),
        };
        let answer = match answer {
            Err(RemoteError::Refused { status: StatusCode::PRECONDITION_FAILED, .. }) => {
                return Err(RemoteError::Changed(name.clone()));
            }
            answer => answer?,
        };
        if let (Some(tag), Some(now)) = (tag, field(answer.headers(), ETAG))
            && tag != now
        {
            return Err(RemoteError::Changed(name.clone()));
        }
        let wrong = |what| RemoteError::Answer { name: name.clone(), what };
        match answer.status() {
            StatusCode::PARTIAL_CONTENT => {
                let told = field(answer.headers(), CONTENT_RANGE).and_then(|range| range.parse().ok());
                let told: crate::range::ContentRange = told.ok_or_else(|| wrong("has no Content-Range"))?;
                if told.size != size {
                    return Err(RemoteError::Changed(name.clone()));
                }
                if told.bytes != Some(range.clone()) {
                    return Err(wrong("has other bytes than those that were asked for"));
                }
            }
            StatusCode::OK if all => {}
            _ => {
                return Err(wrong(
                    "is the whole file: the server gives no ranges, use --streams 1 --block of its size",
                ));
            }
        }
        Ok(Reading {
            answer,
            left: range.end - range.start,
            trailers: None,
            name: name.clone(),
            host: self.host.clone(),
        })
    }

    /// Begins an upload, or takes it up again; the blocks that are there, each of them read again if `check`.
    pub(crate) async fn begin(
        &self,
        name: &Name,
        upload: &str,
        blocks: Blocks,
        resume: bool,
        check: bool,
        sparse: bool,
    ) -> Result<BTreeMap<u64, BlockSum>, RemoteError> {
        let mut request = self.of_upload(self.request(Method::POST, name), upload, blocks).header(CONTENT_LENGTH, 0);
        if resume {
            request = request.header("reservoir-resume", "?1");
        }
        if check {
            request = request.header(CHECK, "?1");
        }
        if sparse {
            request = request.header(SPARSE, "?1");
        }
        let answer = self.ask(request, body::empty(), name, None).await?;
        let text = self.text(answer, name, journal::most_bytes(blocks) as usize).await?;
        Ok(journal::blocks_of(text.split('\n').map(str::as_bytes), blocks))
    }

    /// Sends a block of an upload.
    pub(crate) async fn put_block(
        &self,
        name: &Name,
        upload: &str,
        blocks: Blocks,
        number: u64,
        body: Body,
        line: Option<usize>,
    ) -> Result<(), RemoteError> {
        let range = blocks.range(number);
        let told = format!("bytes {}-{}/{}", range.start, range.end - 1, blocks.size());
        let request = self.of_upload(self.request(Method::PUT, name), upload, blocks).header(CONTENT_RANGE, told);
        // Without a length, so that digests can follow.
        let request = request.header(TRANSFER_ENCODING, "chunked").header(TRAILER, "Content-Digest, Reservoir-Subtree");
        match line {
            Some(stream) => {
                let answer = self.ask_on_line(request, body, name, stream).await?;
                answer.text(MOST_OF_A_REFUSAL).await.map_err(|error| self.broke(&error))?;
            }
            None => {
                let answer = self.ask(request, body, name, Some(STALL)).await?;
                self.give_back(answer).await;
            }
        }
        Ok(())
    }

    /// How long the stream's requests wait for an answer at least, once that is known.
    pub(crate) async fn round_trip(&self, stream: usize) -> Option<Duration> {
        let line = self.lines().get(&stream).cloned()?;
        let line = line.lock().await.clone()?;
        line.round_trip()
    }

    /// Has an upload become the file.
    pub(crate) async fn finish(
        &self,
        name: &Name,
        upload: &str,
        blocks: Blocks,
        ending: Ending<'_>,
    ) -> Result<(), RemoteError> {
        let Ending { root, verify, modified, attributes } = ending;
        let mut request = self.of_upload(self.request(Method::PUT, name), upload, blocks).header(CONTENT_LENGTH, 0);
        request =
            request.header(CONTENT_RANGE, format!("bytes */{}", blocks.size())).header(MTIME, mtime::to_text(modified));
        if let Some(root) = root {
            request = request.header("repr-digest", Algorithm::Blake3.field(&root));
        }
        if verify {
            request = request.header("reservoir-verify", "?1");
        }
        if !attributes.is_empty() {
            request = request.header(attributes::FIELD, attributes.to_text());
        }
        // All of it may be read again before the answer.
        let answer = self.ask(request, body::empty(), name, None).await?;
        self.give_back(answer).await;
        Ok(())
    }

    /// Sends a whole file in one request.
    pub(crate) async fn put_whole(
        &self,
        name: &Name,
        body: Body,
        size: u64,
        modified: SystemTime,
        expected: Expected,
        attributes: &Attributes,
    ) -> Result<(), RemoteError> {
        let modified = mtime::to_text(modified);
        let mut request = match self.is_bucket() {
            true => {
                self.request_to(Method::PUT, self.target(Ask::Put(Some(&modified)), name)).header(s3::MTIME, modified)
            }
            false => self.request(Method::PUT, name).header(MTIME, modified),
        };
        request = request.header(CONTENT_LENGTH, size);
        if !attributes.is_empty() {
            request = request.header(attributes::FIELD, attributes.to_text());
        }
        let is_held_to = !matches!(expected, Expected::Nothing);
        request = match expected {
            Expected::Nothing => request,
            Expected::Blake3(digest) => request.header("repr-digest", Algorithm::Blake3.field(&digest)),
            Expected::Md5(md5) => request.header(bucket::CONTENT_MD5, STANDARD.encode(md5)),
        };
        let answer = self.ask(request, body, name, Some(STALL)).await?;
        self.give_back(answer).await;
        if is_held_to {
            return Ok(());
        }
        // A server may say that it is well before all has come.
        match self.head(name).await {
            Ok(Some(found)) if found.about.size == size => Ok(()),
            // A token that may only write does not see what is there.
            Err(RemoteError::Refused { status: StatusCode::FORBIDDEN, .. }) => Ok(()),
            Ok(_) => Err(RemoteError::Answer {
                name: name.clone(),
                what: "says that the file is there, but it is not whole",
            }),
            Err(error) => Err(error),
        }
    }

    fn of_upload(
        &self,
        request: hyper::http::request::Builder,
        upload: &str,
        blocks: Blocks,
    ) -> hyper::http::request::Builder {
        request.header(UPLOAD, upload).header(BLOCKS, format!("{}/{}", blocks.size(), blocks.block()))
    }

    fn request(&self, method: Method, name: &Name) -> hyper::http::request::Builder {
        let target = match (&self.bucket, &method) {
            (None, _) => Some(name.to_url()),
            (Some(_), &Method::HEAD) => self.target(Ask::Head, name),
            (Some(_), _) => self.target(Ask::Get, name),
        };
        self.request_to(method, target)
    }

    /// Without a target it cannot be made, and [`Remote::ask`] says so.
    fn request_to(&self, method: Method, target: Option<String>) -> hyper::http::request::Builder {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        let authority = if self.port == 443 { host } else { format!("{host}:{}", self.port) };
        let target = target.unwrap_or_default();
        let mut request = Request::builder().method(method).uri(target).header(HOST, authority);
        request = request.header(USER_AGENT, PRODUCT);
        match &self.token {
            Some(token) => {
                let mut value =
                    HeaderValue::try_from(format!("Bearer {token}")).unwrap_or(HeaderValue::from_static(""));
                value.set_sensitive(true);
                request.header(AUTHORIZATION, value)
            }
            None => request,
        }
    }

    /// One request. The answer is one of success; any other is an error with the server's words.
    async fn ask(
        &self,
        request: hyper::http::request::Builder,
        body: Body,
        name: &Name,
        stall: Option<Duration>,
    ) -> Result<Answer, RemoteError> {
        let request = with_body(request, body, name)?;
        let method = request.method().clone();
        let mut session = self.session().await?;
        session.watch.expect(stall);
        let answer = session.requests.send_request(request).await.map_err(|error| self.broken(&error))?;
        session.watch.expect(Some(STALL));
        let answer = Answer { answer, session };
        if answer.status().is_success() {
            return Ok(answer);
        }
        let (status, missing) = (answer.status(), missing_in(answer.headers()));
        let text = self.text(answer, name, MOST_OF_A_REFUSAL).await.unwrap_or_default();
        Err(refused(method, name, status, &text, missing))
    }

    /// The same on the line of a stream, behind what that asked before.
    async fn ask_on_line(
        &self,
        request: hyper::http::request::Builder,
        body: Body,
        name: &Name,
        stream: usize,
    ) -> Result<line::Answer, RemoteError> {
        let request = with_body(request, body, name)?;
        let method = request.method().clone();
        let answer = self.line(stream).await?.ask(request).await.map_err(|error| self.broke(&error))?;
        if answer.status.is_success() {
            return Ok(answer);
        }
        let (status, missing) = (answer.status, missing_in(&answer.fields));
        let text = answer.text(MOST_OF_A_REFUSAL).await.unwrap_or_default();
        Err(refused(method, name, status, &String::from_utf8_lossy(&text), missing))
    }

    /// The line of a stream; a new one, if there is none or it broke.
    async fn line(&self, stream: usize) -> Result<Arc<Line>, RemoteError> {
        let place = self.lines().entry(stream).or_default().clone();
        let mut line = place.lock().await;
        match &*line {
            Some(line) if !line.is_broken() => Ok(line.clone()),
            _ => {
                let new = Arc::new(Line::new(self.connect().await?, self.shell.timers().clone(), STALL));
                *line = Some(new.clone());
                Ok(new)
            }
        }
    }

    fn lines(&self) -> std::sync::MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection that waits for a request, or a new one.
    async fn session(&self) -> Result<Session, RemoteError> {
        loop {
            let idle = self.idle().pop();
            let Some(mut session) = idle else { break };
            if session.requests.ready().await.is_ok() {
                return Ok(session);
            }
        }
        let stream = self.connect().await?;
        let watch = Watch::new(self.shell.timers().clone());
        let stream = TokioIo::new(Watched::new(stream, watch.clone()));
        // XRootD 5.5 looks for names of fields as RFCs write them, though they know no case (RFC 9110 5.1).
        let handshake = http1::Builder::new().title_case_headers(true).max_buf_size(512 << 10).handshake(stream).await;
        let (requests, connection) = handshake.map_err(|error| self.broken(&error))?;
        // Its requests are told when it breaks.
        self.shell.spawn(async move { drop(connection.await) });
        Ok(Session { requests, watch })
    }

    async fn connect(&self) -> Result<Box<dyn Wire>, RemoteError> {
        let broken = |error: io::Error| {
            let (host, text) = (self.host.clone(), error.to_string());
            match error.kind() {
                // What rustls finds wrong stays wrong.
                io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => {
                    RemoteError::Untrusted { host, error: text }
                }
                _ => RemoteError::Connection { host, error: text },
            }
        };
        let stream = self.shell.within(STALL, self.dial.dial(&self.host, self.port)).await;
        stream.and_then(|dialed| dialed).map_err(broken)
    }

    /// Reads what is left of an answer, and keeps the connection for the next request.
    async fn give_back(&self, answer: Answer) {
        let Answer { answer, session } = answer;
        if Limited::new(answer.into_body(), MOST_OF_A_REFUSAL).collect().await.is_ok() {
            self.keep(session);
        }
    }

    fn keep(&self, session: Session) {
        session.watch.expect(None);
        self.idle().push(session);
    }

    async fn text(&self, answer: Answer, name: &Name, most: usize) -> Result<String, RemoteError> {
        let Answer { answer, session } = answer;
        let body = Limited::new(answer.into_body(), most).collect().await;
        let wrong = |what| RemoteError::Answer { name: name.clone(), what };
        let mut bytes = body.map_err(|_| wrong("was cut off, or is too long"))?.aggregate();
        self.keep(session);
        String::from_utf8(bytes.copy_to_bytes(bytes.remaining()).into()).map_err(|_| wrong("is no text"))
    }

    fn broken(&self, error: &hyper::Error) -> RemoteError {
        self.broke(error)
    }

    fn broke(&self, error: &(dyn core::error::Error + 'static)) -> RemoteError {
        RemoteError::Connection { host: self.host.clone(), error: with_causes(error) }
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Session>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An answer, and the connection that it came on.
struct Answer {
    answer: Response<Incoming>,
    session: Session,
}

impl Answer {
    fn status(&self) -> StatusCode {
        self.answer.status()
    }

    fn headers(&self) -> &HeaderMap {
        self.answer.headers()
    }
}

/// An answer, whichever way it was asked for.
enum Answered {
    Session(Answer),
    Line(line::Answer),
}

impl Answered {
    fn status(&self) -> StatusCode {
        match self {
            Answered::Session(answer) => answer.status(),
            Answered::Line(answer) => answer.status,
        }
    }

    fn headers(&self) -> &HeaderMap {
        match self {
            Answered::Session(answer) => answer.headers(),
            Answered::Line(answer) => &answer.fields,
        }
    }
}

/// The bytes of a range that is being read.
pub(crate) struct Reading {
    answer: Answered,
    left: u64,
    trailers: Option<HeaderMap>,
    name: Name,
    host: String,
}

impl Reading {
    /// The next bytes; `None` once all have come.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, RemoteError> {
        while let Some(data) = self.piece().await? {
            if data.len() as u64 > self.left {
                return Err(self.wrong("has more bytes than the range"));
            }
            if !data.is_empty() {
                self.left -= data.len() as u64;
                return Ok(Some(data));
            }
        }
        if self.left > 0 { Err(self.wrong("was cut off")) } else { Ok(None) }
    }

    /// The next bytes of an answer whose length nobody knows; `None` at its end.
    pub(crate) async fn some(&mut self) -> Result<Option<Bytes>, RemoteError> {
        self.piece().await
    }

    /// What comes next of the body, until its end; trailers are kept.
    async fn piece(&mut self) -> Result<Option<Bytes>, RemoteError> {
        let host = &self.host;
        let broke = |error: &(dyn core::error::Error + 'static)| RemoteError::Connection {
            host: host.clone(),
            error: with_causes(error),
        };
        match &mut self.answer {
            Answered::Line(answer) => {
                let piece = answer.next().await.map_err(|error| broke(&error))?;
                if piece.is_none() {
                    self.trailers = answer.trailers.take().or(self.trailers.take());
                }
                Ok(piece)
            }
            Answered::Session(answer) => {
                while let Some(frame) = answer.answer.body_mut().frame().await {
                    match frame.map_err(|error| broke(&error))?.into_data() {
                        Ok(data) => return Ok(Some(data)),
                        Err(frame) => self.trailers = frame.into_trailers().ok(),
                    }
                }
                Ok(None)
            }
        }
    }

    fn wrong(&self, what: &'static str) -> RemoteError {
        RemoteError::Answer { name: self.name.clone(), what }
    }

    /// All bytes have come: the checksums that the server told, if it did.
    pub(crate) fn end(self, remote: &Remote) -> Option<BlockSum> {
        if let Answered::Session(answer) = self.answer {
            remote.keep(answer.session);
        }
        self.trailers.as_ref().and_then(body::sum_in)
    }
}

fn with_body(request: hyper::http::request::Builder, body: Body, name: &Name) -> Result<Request<Body>, RemoteError> {
    request.body(body).map_err(|_| RemoteError::Unaskable(name.clone()))
}

fn refused(method: Method, name: &Name, status: StatusCode, text: &str, missing: Option<u64>) -> RemoteError {
    let text = s3::refusal(text).unwrap_or_else(|| text.lines().next().unwrap_or_default().to_owned());
    let text = text.escape_debug().to_string();
    RemoteError::Refused { method, name: name.clone(), status, text, missing }
}

fn missing_in(fields: &HeaderMap) -> Option<u64> {
    field(fields, HeaderName::from_static(MISSING)).and_then(|text| text.parse().ok())
}

fn field(fields: &HeaderMap, name: HeaderName) -> Option<&str> {
    fields.get(name)?.to_str().ok()
}

fn is_reservoir(server: &str) -> bool {
    server.split('/').next() == PRODUCT.split('/').next()
}

/// How long a server may take for the files of a pack.
const PACK_STALL: Duration = Duration::from_secs(600);
/// How long a server may stand still.
const STALL: Duration = Duration::from_secs(60);
/// What is read of an answer that nobody asked for.
const MOST_OF_A_REFUSAL: usize = 64 << 10;
const MOST_LISTED: usize = 256 << 20;
