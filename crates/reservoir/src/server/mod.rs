//! Serves a folder over HTTP/1.1 on any stream, and over HTTP/3: files by ranges with digests, uploads by blocks.
//!
//! - `read`: GET and HEAD; `digests`: digests of whole files, computed once; `turns`: fair shares of disk and cores;
//! - `third_party`: COPY from or to another server;
//! - `http3`: requests on the streams of one connection;
//! - `packs`: POST of many small files at once, and of their names to read them;
//! - `write`: POST and PUT; `declared`: digests and codings of request content; `uploads`: unfinished uploads and their
//!   owners;
//! - `refusal`: error responses.
//!
//! ```text
//! stream > DeadlineStream (drops stalled clients) > hyper > token > right and path > read or write > log line
//! ```

mod declared;
mod digests;
mod fair_queue;
mod http3;
mod packs;
mod read;
mod refusal;
#[cfg(feature = "third-party")]
mod third_party;
mod uploads;
mod write;

use crate::body::{self, Body};
#[cfg(feature = "third-party")]
use crate::dial::Dial;
use crate::name::Name;
use crate::pack;
use crate::protocol::PRODUCT;
use crate::shell::Shell;
use crate::storage::Folder;
use crate::tokens::{Grant, Right, Tokens};
use crate::watch::{DeadlineStream, ProgressDeadline};
use core::convert::Infallible;
use core::future::poll_fn;
use core::net::IpAddr;
use core::pin::{Pin, pin};
use core::task::Poll;
use core::time::Duration;
use digests::DigestCache;
use fair_queue::{FairQueue, UserShares};
use http_rules::Preconditions;
use hyper::body::{Body as HttpBody, Incoming};
use hyper::header::{ALLOW, AUTHORIZATION, CONTENT_TYPE, HeaderValue, SERVER, WWW_AUTHENTICATE};
use hyper::service::service_fn;
use hyper::{HeaderMap, Method, Request, Response, StatusCode, Version};
use hyper_util::rt::TokioIo;
use offload_base::slots::{ConnectionSlot, ConnectionSlots};
use refusal::Refusal;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::SystemTime;
#[cfg(feature = "third-party")]
use third_party::ThirdPartyAccess;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, watch};
use uploads::{ClientConnection, Uploads};

/// Resource limits and time-outs of a server.
///
/// ```
/// use offload_reservoir::ServerLimits;
///
/// let limits = ServerLimits { connections: 8, ..ServerLimits::default() };
/// assert_eq!((limits.connections, limits.uploads_of_a_user), (8, 64));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ServerLimits {
    /// Maximum number of connections. Each has at most three pieces of half a MiB in memory, or 4 MiB of a pack or its
    /// names. A further connection takes the slot of a connection without a token, or else of one waiting for its next
    /// request.
    pub connections: usize,
    /// Maximum time without a request.
    pub idle: Duration,
    /// Maximum time from the first byte of a request to the end of its head.
    pub head: Duration,
    /// Maximum time per 16 KiB of a request or response.
    pub stall: Duration,
    /// Maximum number of open uploads of one user.
    pub uploads_of_a_user: usize,
    /// Time for which an unfinished file belongs to its writer after the last request.
    pub hold: Duration,
    /// Maximum number of whole files hashed at a time.
    pub hashing: usize,
    /// Maximum number of folder listings read at a time.
    pub listing: usize,
}

impl ServerLimits {
    /// Returns the default limits.
    pub const fn defaults() -> ServerLimits {
        ServerLimits {
            connections: 1024,
            idle: Duration::from_secs(60),
            head: Duration::from_secs(10),
            stall: Duration::from_secs(60),
            uploads_of_a_user: 64,
            hold: Duration::from_secs(600),
            hashing: 4,
            listing: 4,
        }
    }
}

impl Default for ServerLimits {
    fn default() -> ServerLimits {
        ServerLimits::defaults()
    }
}

/// A server of one folder. Clones share the server.
///
/// ```
/// use offload_reservoir::copy::{Copy, CopyLocation, PlainDialer};
/// use offload_reservoir::rooted::Rooted;
/// use offload_reservoir::tokens::Tokens;
/// use offload_reservoir::{ServerLimits, Server, Shell};
/// use std::sync::Arc;
///
/// # let there = tempfile::tempdir()?;
/// # let there = there.path();
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn serve(there: &std::path::Path) -> Result<(), Box<dyn core::error::Error>> {
/// std::fs::write(there.join("film"), [7; 100_000])?;
/// let server = Server::new(Arc::new(Rooted::open(there)?), Shell::tokio(), ServerLimits::default()).open_to_all();
/// // Streams may be of any kind: TLS over TCP, or memory.
/// let dial = PlainDialer::new(move |_host: &str, _port| {
///     let (ours, theirs) = tokio::io::duplex(1 << 16);
///     let server = server.clone();
///     tokio::spawn(async move { server.serve(theirs, "memory").await });
///     Ok(ours)
/// });
/// let copy = Copy::new(Shell::tokio(), Arc::new(dial));
/// let to = CopyLocation::local(&there.join("copy of film"))?;
/// let outcome = copy.run(&[CopyLocation::parse("https://server/film", None)?], &to).await?;
/// assert_eq!((outcome.copied, outcome.failed.len()), (1, 0));
/// assert_eq!(std::fs::read(there.join("copy of film"))?, [7; 100_000]);
/// # Ok(())
/// # }
/// # serve(there)?;
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Server(Arc<ServerState>);

struct ServerState {
    folder: Arc<dyn Folder>,
    shell: Shell,
    limits: ServerLimits,
    tokens: RwLock<Arc<Tokens>>,
    /// The grant of requests without a token.
    anonymous: Option<Arc<Grant>>,
    slots: ConnectionSlots,
    /// Shares of the slots that one user may keep busy.
    busy: UserShares,
    uploads: Uploads,
    digests: DigestCache,
    lists: FairQueue,
    closing: watch::Sender<bool>,
    log: Option<AccessLog>,
    #[cfg(feature = "third-party")]
    third_party: Option<ThirdPartyAccess>,
}

/// A consumer of access log lines.
pub type AccessLog = Arc<dyn Fn(&str) + Send + Sync>;

impl Server {
    /// Creates a server of `folder`. Without tokens it refuses all requests.
    pub fn new(folder: Arc<dyn Folder>, shell: Shell, limits: ServerLimits) -> Server {
        Server(Arc::new(ServerState {
            uploads: Uploads::new(folder.clone(), shell.clone(), limits),
            digests: DigestCache::new(shell.clone(), limits.hashing),
            lists: FairQueue::new(limits.listing),
            slots: ConnectionSlots::new(limits.connections),
            // One user must leave some slots to others.
            busy: UserShares::new(limits.connections - limits.connections / 64),
            tokens: RwLock::default(),
            anonymous: None,
            closing: watch::Sender::new(false),
            log: None,
            #[cfg(feature = "third-party")]
            third_party: None,
            folder,
            shell,
            limits,
        }))
    }

    /// Grants all rights to all clients without a token, for tests and for closed networks.
    ///
    /// # Panics
    /// If the server was cloned already.
    #[must_use]
    pub fn open_to_all(mut self) -> Server {
        Arc::get_mut(&mut self.0).expect("no clones yet").anonymous = Some(Arc::new(Grant::everything()));
        self
    }

    /// Sets the access log.
    ///
    /// # Panics
    /// If the server was cloned already.
    #[must_use]
    pub fn with_log(mut self, log: AccessLog) -> Server {
        Arc::get_mut(&mut self.0).expect("no clones yet").log = Some(log);
        self
    }

    /// Enables COPY from and to other servers, at most `at_a_time` at once. `dial` should reach allowed hosts only
    /// ([`AllowlistDialer`](crate::tls::AllowlistDialer)).
    ///
    /// # Panics
    /// If the server was cloned already.
    #[cfg(feature = "third-party")]
    #[must_use]
    pub fn with_third_party(mut self, dial: Arc<dyn Dial>, at_a_time: usize) -> Server {
        let places = Arc::new(tokio::sync::Semaphore::new(at_a_time));
        Arc::get_mut(&mut self.0).expect("no clones yet").third_party = Some(ThirdPartyAccess { dial, places });
        self
    }

    /// Replaces the accepted tokens.
    pub fn set_tokens(&self, tokens: Tokens) {
        let mut present = self.0.tokens.write().unwrap_or_else(PoisonError::into_inner);
        // Keeps the rate limiters of unchanged tokens.
        *present = Arc::new(tokens.after(&present));
    }

    /// Takes a slot for a connection from `address`, for [`serve_in`](Server::serve_in). If no slot is free, a
    /// connection without a token loses its slot, or else one waiting for its next request. `None` if all connections
    /// have requests in progress.
    pub fn enter(&self, address: IpAddr) -> Option<ConnectionSlot> {
        self.0.slots.acquire(address)
    }

    /// Stops accepting requests on all connections. Requests in progress are answered, then their connections end.
    pub fn close(&self) {
        self.0.closing.send_replace(true);
    }

    /// Serves the requests on `stream` from `peer` until the stream ends.
    pub async fn serve<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(&self, stream: S, peer: &str) {
        self.converse(stream, peer, None).await;
    }

    /// Serves requests like [`serve`](Server::serve), as long as the connection has its slot.
    pub async fn serve_in<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &self,
        slot: ConnectionSlot,
        stream: S,
        peer: &str,
    ) {
        self.converse(stream, peer, Some(Arc::new(slot))).await;
    }

    async fn converse<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &self,
        stream: S,
        peer: &str,
        slot: Option<Arc<ConnectionSlot>>,
    ) {
        let watch = ProgressDeadline::new(self.0.shell.timers().clone());
        watch.idle(self.0.limits.idle, self.0.limits.head);
        let stream = DeadlineStream::new(stream, watch.clone());
        let attended = ClientConnection::default();
        let service = service_fn(|request: Request<Incoming>| {
            let mut request = request.map(body::arriving);
            // All requests of a connection carry the same identity.
            request.extensions_mut().insert(attended.clone());
            let (server, watch, slot) = (self.clone(), watch.clone(), slot.clone());
            let answered: Pin<Box<dyn Future<Output = Result<_, Infallible>> + Send>> =
                Box::pin(async move { Ok(server.answer(request, peer, watch, slot).await) });
            answered
        });
        let mut connection = hyper::server::conn::http1::Builder::new()
            .max_headers(64)
            .max_buf_size(MAX_BUFFERED)
            .serve_connection(TokioIo::new(stream), service);
        let mut closing = self.0.closing.subscribe();
        let mut closed = pin!(async move { drop(closing.wait_for(|closing| *closing).await) });
        let mut is_closing = false;
        // A client that left or stalled is no error; the log has its requests, if any.
        poll_fn(|cx| {
            if !is_closing && closed.as_mut().poll(cx).is_ready() {
                is_closing = true;
                Pin::new(&mut connection).graceful_shutdown();
            }
            let mut ended = Pin::new(&mut connection).poll(cx).map(drop);
            if ended.is_pending() && slot.as_ref().is_some_and(|slot| slot.poll_revoked(cx).is_ready()) {
                // TLS sends its closing alert only if possible at once, because the slot belongs to another connection
                // now.
                Pin::new(&mut connection).graceful_shutdown();
                let _ = Pin::new(&mut connection).poll(cx);
                ended = Poll::Ready(());
            }
            ended
        })
        .await;
    }

    async fn answer(
        &self,
        request: Request<Body>,
        peer: &str,
        watch: ProgressDeadline,
        slot: Option<Arc<ConnectionSlot>>,
    ) -> Response<Body> {
        watch.expect(Some(self.0.limits.stall));
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        // The log has "-" until the token is known.
        let mut guest = RequestContext { peer, slot, user: String::from("-"), share: None };
        let answer = self.attend(request, &watch, &mut guest).await;
        let mut answer = answer.unwrap_or_else(Refusal::into_response);
        answer.headers_mut().insert(SERVER, HeaderValue::from_static(PRODUCT));
        if let Some(log) = &self.0.log {
            // Paths are logged escaped, so that a client cannot forge log lines.
            log(&format!("{peer} {} {method} {} {}", guest.user, path.escape_debug(), answer.status().as_u16()));
        }
        // The slot stays busy until the response body ends, which may be long after this function.
        let (limits, RequestContext { slot, mut share, .. }) = (self.0.limits, guest);
        answer.map(|inner| {
            body::ended(inner, move || {
                watch.idle(limits.idle, limits.head);
                drop(share.take());
                slot.iter().for_each(|slot| slot.set_idle());
            })
        })
    }

    async fn attend(
        &self,
        request: Request<Body>,
        watch: &ProgressDeadline,
        guest: &mut RequestContext<'_>,
    ) -> Result<Response<Body>, Refusal> {
        if request.version() < Version::HTTP_2 {
            // HTTP/3 has no request target; its pseudo-headers are checked with the head.
            http_rules::check_target(&request)?;
        }
        let grant = self.grant(request.headers())?;
        guest.user = grant.name().to_owned();
        self.admit(guest)?;
        let name = Name::from_url(request.uri().path())?;
        declared::refuse_codings(request.method(), request.headers())?;
        #[cfg(feature = "third-party")]
        if request.method().as_str() == "COPY" {
            // COPY checks its rights itself, because a pull writes and a push reads.
            return third_party::copy(self, &request.map(drop), name, &grant, watch).await;
        }
        let kind = request.headers().get(CONTENT_TYPE).map(|kind| kind.as_bytes());
        let gives_pack = *request.method() == Method::POST && kind == Some(pack::NAMES.as_bytes());
        let takes_pack = *request.method() == Method::POST && kind == Some(pack::KIND.as_bytes());
        let needs = match *request.method() {
            Method::GET | Method::HEAD => Right::Read,
            Method::POST if gives_pack => Right::Read,
            Method::PUT | Method::POST => Right::Write,
            ref method if method.as_str() == "MKCOL" => Right::Write,
            Method::OPTIONS => return Ok(read::options()),
            _ => {
                let mut refusal =
                    Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "COPY, GET, HEAD, MKCOL, OPTIONS, POST or PUT");
                refusal.field(ALLOW, read::METHODS);
                return Err(refusal);
            }
        };
        // Checked before any access to the folder, so that a client learns nothing about other paths.
        if !grant.may(needs) || !grant.reaches(&name) {
            return Err(Refusal::new(StatusCode::FORBIDDEN, "the token has no such right here"));
        }
        if (gives_pack || takes_pack) && !Preconditions::from_fields(request.method(), request.headers()).is_empty() {
            let text = "a pack is of many files: send those with preconditions one by one";
            return Err(Refusal::new(StatusCode::BAD_REQUEST, text));
        }
        match *request.method() {
            Method::PUT => write::put(self, request, name, &grant, watch).await,
            Method::POST if gives_pack => packs::send_pack(self, request, name, &grant, watch).await,
            Method::POST if takes_pack => packs::receive_pack(self, request, name, &grant, watch).await,
            Method::POST => write::begin(self, &request.map(drop), name, &grant, watch).await,
            ref method if method.as_str() == "MKCOL" => self.make_folder(!request.body().is_end_stream(), name).await,
            _ => read::answer_read(self, &request.map(drop), name, &grant, watch).await,
        }
    }

    /// Marks the client's slot busy, because the client is authenticated now.
    fn admit(&self, guest: &mut RequestContext<'_>) -> Result<(), Refusal> {
        let Some(slot) = &guest.slot else { return Ok(()) };
        slot.set_busy();
        // Users without a token are distinguished by address.
        let address = || guest.peer.rsplit_once(':').map_or(guest.peer, |(address, _)| address);
        let user = if guest.user == "-" { address() } else { &guest.user };
        guest.share = self.0.busy.take(user);
        let many = || Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "this user has too many requests under way");
        guest.share.is_some().then_some(()).ok_or_else(many)
    }

    /// Answers MKCOL (RFC 4918 section 9.3). Missing parents are created too, as for PUT.
    async fn make_folder(&self, has_body: bool, name: Name) -> Result<Response<Body>, Refusal> {
        if has_body {
            return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "MKCOL takes no body here"));
        }
        let folder = self.0.folder.clone();
        let is_new = self.0.shell.blocking(move || {
            if folder.about(&name).is_ok() {
                return Ok(false);
            }
            folder.create_folder(&name)?;
            Ok(true)
        });
        if !is_new.await? {
            let mut refusal = Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "something has this name already");
            refusal.field(ALLOW, read::METHODS);
            return Err(refusal);
        }
        Ok(read::response(StatusCode::CREATED, HeaderMap::new(), body::empty()))
    }

    /// Returns the grant of a request's token.
    fn grant(&self, headers: &HeaderMap) -> Result<Arc<Grant>, Refusal> {
        let tokens = self.0.tokens.read().unwrap_or_else(PoisonError::into_inner).clone();
        let shown = headers.get(AUTHORIZATION).map(|value| value.as_bytes());
        let bearer = shown.and_then(|value| value.split_at_checked(7)).filter(|(scheme, _)| {
            // RFC 6750 section 2.1; schemes are case-insensitive (RFC 9110 section 11.1).
            scheme.eq_ignore_ascii_case(b"Bearer ")
        });
        let granted = match bearer {
            Some((_, token)) => tokens.find(token.trim_ascii(), SystemTime::now()).cloned(),
            None => None,
        };
        granted.or_else(|| self.0.anonymous.clone()).ok_or_else(|| {
            let said = if shown.is_some() { "the token is unknown or has expired" } else { "a bearer token is needed" };
            let mut refusal = Refusal::new(StatusCode::UNAUTHORIZED, said);
            refusal.field(WWW_AUTHENTICATE, "Bearer");
            refusal
        })
    }
}

/// The client of a request.
struct RequestContext<'a> {
    peer: &'a str,
    slot: Option<Arc<ConnectionSlot>>,
    user: String,
    /// The user's share of the busy slots.
    share: Option<OwnedSemaphorePermit>,
}

/// Maximum length of a request head, and of data read ahead of a body.
const MAX_BUFFERED: usize = 512 << 10;
