//! A pipelined HTTP/1.1 connection (RFC 9112 section 9.3.2): requests are sent before earlier ones are answered.
//! Otherwise every block would wait for a round trip, and a long path would carry one block per stream in each.
//!
//! Invariant: responses are read in the order of the requests, each by the task that sent the request. The reading half
//! is passed from task to task: a task gets it when the previous response was read to its end. If a request or a
//! response is abandoned halfway, the connection breaks, and all later requests fail.
//!
//! ```text
//!  request 1   head, body | ............ response 1, pass on
//!  request 2              | head, body ........ wait, response 2, pass on
//!  request 3                          | head, body ...... wait, response 3
//! ```

use crate::body::Body;
use crate::dial::DialStream;
use crate::protocol::TRANSFER_AUTHORIZATION;
use crate::watch::{DeadlineStream, ProgressDeadline};
use bytes::{Buf, Bytes, BytesMut};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;
use http_body_util::BodyExt;
use hyper::header::{CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING};
use hyper::{Method, Request, StatusCode};
use offload_base::Timers;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::{Mutex, oneshot};

type WatchedStream = DeadlineStream<Box<dyn DialStream>>;

/// A connection with requests in flight.
pub(crate) struct PipelinedConnection {
    writer: Mutex<RequestWriter>,
    state: Arc<PipelineState>,
}

struct PipelineState {
    watch: ProgressDeadline,
    timers: Arc<dyn Timers>,
    stall: Duration,
    broken: AtomicBool,
    /// Number of started requests with unread responses.
    under_way: AtomicUsize,
    /// Minimum time in nanoseconds from the end of a request to its response, without other requests in flight; 0 if
    /// unknown.
    round_trip: AtomicU64,
}

struct RequestWriter {
    /// The writing half. `None` after a request was cut off.
    half: Option<WriteHalf<WatchedStream>>,
    /// The source of the reading half for the next request.
    turn: oneshot::Receiver<ResponseReader>,
}

struct ResponseReader {
    half: ReadHalf<WatchedStream>,
    buffer: BytesMut,
}

impl PipelinedConnection {
    /// Creates a pipelined connection over an unused stream. The connection fails if it makes no progress for `stall`
    /// while requests are in flight.
    pub(crate) fn new(stream: Box<dyn DialStream>, timers: Arc<dyn Timers>, stall: Duration) -> PipelinedConnection {
        let watch = ProgressDeadline::new(timers.clone());
        let (reading, half) = tokio::io::split(DeadlineStream::new(stream, watch.clone()));
        let (first, turn) = oneshot::channel();
        // Cannot fail, because the receiver is stored below.
        let _ = first.send(ResponseReader { half: reading, buffer: BytesMut::new() });
        let state = PipelineState {
            watch,
            timers,
            stall,
            broken: AtomicBool::new(false),
            under_way: AtomicUsize::new(0),
            round_trip: AtomicU64::new(0),
        };
        PipelinedConnection { writer: Mutex::new(RequestWriter { half: Some(half), turn }), state: Arc::new(state) }
    }

    /// Returns whether the connection cannot be used any more.
    pub(crate) fn is_broken(&self) -> bool {
        self.state.broken.load(Ordering::Relaxed)
    }

    /// Returns the minimum response time without earlier requests in flight, once known.
    pub(crate) fn round_trip(&self) -> Option<Duration> {
        match self.state.round_trip.load(Ordering::Relaxed) {
            0 => None,
            nanos => Some(Duration::from_nanos(nanos)),
        }
    }

    /// Sends a request, with a chunked body if it has one, and waits for the head of its response.
    ///
    /// # Errors
    /// If the connection breaks, the response is not HTTP, or the body fails. A failed body is reported at once. The
    /// connection is broken afterwards.
    pub(crate) async fn ask(&self, request: Request<Body>) -> io::Result<PipelinedResponse> {
        let mut writer = self.writer.lock().await;
        if self.is_broken() {
            return Err(broken());
        }
        let alone = self.state.under_way.fetch_add(1, Ordering::Relaxed) == 0;
        if alone {
            self.state.watch.expect(Some(self.state.stall));
        }
        // From here on, dropping this future breaks the connection, until the response has been read.
        let (next, turn) = oneshot::channel();
        let held = ResponseGuard { state: self.state.clone(), next: Some(next) };
        let RequestWriter { half, turn: before } = &mut *writer;
        let Some(half) = half else { return Err(broken()) };
        let turn = core::mem::replace(before, turn);
        let is_head = request.method() == Method::HEAD;
        let (head, body) = head_of(request);
        let mut answering = pin!(async {
            let mut reader = turn.await.map_err(|_| broken())?;
            let head = reader.head().await?;
            io::Result::Ok((reader, head))
        });
        let ended = {
            let mut writing = pin!(write(half, head, body));
            tokio::select! {
                biased;
                written = &mut writing => FirstEvent::Written(written),
                // The server answered before the request was complete. The rest of the request is never sent.
                answered = &mut answering => FirstEvent::Answered(answered),
            }
        };
        let sent = self.state.timers.now();
        if !matches!(ended, FirstEvent::Written(Ok(()))) {
            self.state.broken.store(true, Ordering::Relaxed);
            // The stream ends after the pending responses, which cuts off the unfinished request.
            writer.half = None;
        }
        drop(writer);
        let (reader, head) = match ended {
            FirstEvent::Written(Ok(())) => answering.await?,
            // The peer waits for the rest of the request, so no response will come.
            FirstEvent::Written(Err(SendFailure::Body(error))) => return Err(error),
            // The peer may have explained in its response why it stopped reading.
            FirstEvent::Written(Err(SendFailure::Connection(error))) => answering.await.map_err(|_| error)?,
            FirstEvent::Answered(answered) => answered?,
        };
        self.state.watch.expect(Some(self.state.stall));
        if alone {
            let span = u64::try_from((self.state.timers.now() - sent).as_nanos()).unwrap_or(u64::MAX).max(1);
            let least = match self.state.round_trip.load(Ordering::Relaxed) {
                0 => span,
                // The shortest time has the least waiting at the server in it.
                known => known.min(span),
            };
            self.state.round_trip.store(least, Ordering::Relaxed);
        }
        let closes = head.fields.get(CONNECTION).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"close"));
        if closes {
            self.state.broken.store(true, Ordering::Relaxed);
        }
        let rest = framing(&head, is_head)?;
        Ok(PipelinedResponse {
            status: head.status,
            fields: head.fields,
            trailers: None,
            rest,
            reader: Some(reader),
            held,
        })
    }
}

/// The event that came first.
enum FirstEvent {
    Written(Result<(), SendFailure>),
    Answered(io::Result<(ResponseReader, ResponseHead)>),
}

/// The reason for which a request was cut off.
enum SendFailure {
    /// The body failed at this end.
    Body(io::Error),
    Connection(io::Error),
}

impl From<io::Error> for SendFailure {
    fn from(error: io::Error) -> SendFailure {
        SendFailure::Connection(error)
    }
}

/// A guard that breaks the connection unless the response was read to its end.
struct ResponseGuard {
    state: Arc<PipelineState>,
    next: Option<oneshot::Sender<ResponseReader>>,
}

impl ResponseGuard {
    /// Passes the reading half to the next request after the response has been read.
    fn hand_on(&mut self, reader: ResponseReader) {
        let Some(next) = self.next.take() else { return };
        if self.state.under_way.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.state.watch.expect(None);
        }
        // The next request may have been dropped, which has broken the connection.
        let _ = next.send(reader);
    }
}

impl Drop for ResponseGuard {
    fn drop(&mut self) {
        if self.next.is_some() {
            self.state.broken.store(true, Ordering::Relaxed);
        }
    }
}

/// A response with a body to read. Dropping it before the end of the body breaks the connection.
pub(crate) struct PipelinedResponse {
    pub(crate) status: StatusCode,
    pub(crate) fields: HeaderMap,
    /// The trailers, once the body has been read.
    pub(crate) trailers: Option<HeaderMap>,
    rest: BodyRemainder,
    reader: Option<ResponseReader>,
    held: ResponseGuard,
}

/// The remaining part of a body.
#[derive(Clone, Copy, Debug, PartialEq)]
enum BodyRemainder {
    Bytes(u64),
    /// A chunk size is next.
    Chunks,
    /// The rest of a chunk, followed by a line end.
    Chunk(u64),
    Nothing,
}

impl PipelinedResponse {
    /// Returns the next bytes, or `None` at the end, when the connection is passed to the next request.
    pub(crate) async fn next(&mut self) -> io::Result<Option<Bytes>> {
        let Some(reader) = &mut self.reader else { return Ok(None) };
        loop {
            match self.rest {
                BodyRemainder::Bytes(0) | BodyRemainder::Nothing => break,
                BodyRemainder::Bytes(left) => {
                    let piece = reader.piece(left).await?;
                    self.rest = BodyRemainder::Bytes(left - piece.len() as u64);
                    return Ok(Some(piece));
                }
                BodyRemainder::Chunks => {
                    let line = reader.line(MAX_CHUNK_HEAD_BYTES).await?;
                    self.rest = match chunk_size(&line)? {
                        0 => {
                            self.trailers = Some(reader.trailers().await?);
                            BodyRemainder::Nothing
                        }
                        size => BodyRemainder::Chunk(size),
                    };
                }
                BodyRemainder::Chunk(0) => {
                    // A chunk ends with CRLF. Anything else means that the framing is lost.
                    if !reader.line(2).await?.is_empty() {
                        return Err(garbage("a chunk does not end where it should"));
                    }
                    self.rest = BodyRemainder::Chunks;
                }
                BodyRemainder::Chunk(left) => {
                    let piece = reader.piece(left).await?;
                    self.rest = BodyRemainder::Chunk(left - piece.len() as u64);
                    return Ok(Some(piece));
                }
            }
        }
        if let Some(reader) = self.reader.take() {
            self.held.hand_on(reader);
        }
        Ok(None)
    }

    /// Returns the whole body, up to `most` bytes.
    pub(crate) async fn text(mut self, most: usize) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        while let Some(piece) = self.next().await? {
            if text.len() + piece.len() > most {
                return Err(garbage("the answer is too long"));
            }
            text.extend_from_slice(&piece);
        }
        Ok(text)
    }
}

struct ResponseHead {
    status: StatusCode,
    fields: HeaderMap,
}

/// Determines the body length (RFC 9112 section 6.3).
fn framing(head: &ResponseHead, is_head: bool) -> io::Result<BodyRemainder> {
    if is_head || matches!(head.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) {
        return Ok(BodyRemainder::Nothing);
    }
    if let Some(coding) = head.fields.get(TRANSFER_ENCODING) {
        return match coding.as_bytes().eq_ignore_ascii_case(b"chunked") {
            // With both fields, a proxy may have taken another end of the body (RFC 9112 section 6.3).
            true if !head.fields.contains_key(CONTENT_LENGTH) => Ok(BodyRemainder::Chunks),
            _ => Err(garbage("the answer's length is ambiguous")),
        };
    }
    let mut lengths = head.fields.get_all(CONTENT_LENGTH).iter();
    let length = lengths.next().and_then(|length| length.to_str().ok()).and_then(|length| length.parse().ok());
    match (length, lengths.next()) {
        (Some(length), None) => Ok(BodyRemainder::Bytes(length)),
        _ => Err(garbage("the answer's length is not known")),
    }
}

fn chunk_size(line: &[u8]) -> io::Result<u64> {
    // Chunk extensions follow a semicolon (RFC 9112 section 7.1.1).
    let digits = line.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii_end();
    let text = core::str::from_utf8(digits).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_hexdigit()));
    text.and_then(|text| u64::from_str_radix(text, 16).ok()).ok_or_else(|| garbage("a chunk has no size"))
}

impl ResponseReader {
    /// Reads more data into the buffer.
    async fn more(&mut self) -> io::Result<()> {
        self.buffer.reserve(PIECE);
        match self.half.read_buf(&mut self.buffer).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    /// Reads the head of the next final response.
    async fn head(&mut self) -> io::Result<ResponseHead> {
        loop {
            let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
            let mut parsed = httparse::Response::new(&mut fields);
            let status = parsed.parse(&self.buffer).map_err(|_| garbage("the answer is not HTTP"))?;
            match status {
                httparse::Status::Complete(length) => {
                    let code = parsed.code.and_then(|code| StatusCode::from_u16(code).ok());
                    let status = code.ok_or_else(|| garbage("the answer has no status"))?;
                    let fields = collected(parsed.headers)?;
                    self.buffer.advance(length);
                    // RFC 9110 section 15.2: informational responses precede the final one.
                    if !status.is_informational() {
                        return Ok(ResponseHead { status, fields });
                    }
                }
                httparse::Status::Partial if self.buffer.len() > MAX_HEAD_BYTES => {
                    return Err(garbage("the answer's head is too long"));
                }
                httparse::Status::Partial => self.more().await?,
            }
        }
    }

    /// Returns 1 to `most` bytes.
    async fn piece(&mut self, most: u64) -> io::Result<Bytes> {
        if self.buffer.is_empty() {
            self.more().await?;
        }
        let length = usize::try_from(most).unwrap_or(usize::MAX).min(self.buffer.len());
        Ok(self.buffer.split_to(length).freeze())
    }

    /// Returns a line without its line end.
    async fn line(&mut self, most: usize) -> io::Result<Bytes> {
        loop {
            if let Some(end) = self.buffer.iter().take(most).position(|byte| *byte == b'\n') {
                let mut line = self.buffer.split_to(end + 1).freeze();
                line.truncate(end);
                if line.last() == Some(&b'\r') {
                    line.truncate(end - 1);
                }
                return Ok(line);
            }
            if self.buffer.len() >= most {
                return Err(garbage("a line of the answer is too long"));
            }
            self.more().await?;
        }
    }

    async fn trailers(&mut self) -> io::Result<HeaderMap> {
        loop {
            // An empty trailer section is a blank line, which httparse does not accept.
            if self.buffer.starts_with(b"\r\n") {
                self.buffer.advance(2);
                return Ok(HeaderMap::new());
            }
            let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
            match httparse::parse_headers(&self.buffer, &mut fields) {
                Ok(httparse::Status::Complete((length, fields))) => {
                    let fields = collected(fields)?;
                    self.buffer.advance(length);
                    return Ok(fields);
                }
                Ok(httparse::Status::Partial) if self.buffer.len() <= MAX_HEAD_BYTES => self.more().await?,
                _ => return Err(garbage("the answer's trailers are none")),
            }
        }
    }
}

fn collected(fields: &[httparse::Header<'_>]) -> io::Result<HeaderMap> {
    let wrong = || garbage("the answer has a field that is none");
    let mut collected = HeaderMap::with_capacity(fields.len());
    for field in fields {
        let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| wrong())?;
        collected.append(name, HeaderValue::from_bytes(field.value).map_err(|_| wrong())?);
    }
    Ok(collected)
}

/// Returns the head of a request in wire format, and its body if that is chunked.
fn head_of(request: Request<Body>) -> (Vec<u8>, Option<Body>) {
    let (parts, body) = request.into_parts();
    let mut head = Vec::with_capacity(512);
    let target = parts.uri.path_and_query().map_or("/", |target| target.as_str());
    head.extend_from_slice(format!("{} {target} HTTP/1.1\r\n", parts.method).as_bytes());
    for (name, value) in &parts.headers {
        head.extend_from_slice(spelled(name.as_str()).as_bytes());
        head.extend_from_slice(b": ");
        head.extend_from_slice(value.as_bytes());
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"\r\n");
    let chunked = parts.headers.contains_key(TRANSFER_ENCODING);
    (head, chunked.then_some(body))
}

/// Capitalizes a field name as in the RFCs. Names are case-insensitive (RFC 9110 section 5.1), but XRootD 5.5 compares
/// case.
fn spelled(name: &str) -> String {
    if name == TRANSFER_AUTHORIZATION {
        return "TransferHeaderAuthorization".into();
    }
    let capital = |word: &str| word[..1].to_ascii_uppercase() + &word[1..];
    name.split('-')
        .map(|word| if word.is_empty() { String::new() } else { capital(word) })
        .collect::<Vec<_>>()
        .join("-")
}

async fn write(into: &mut WriteHalf<WatchedStream>, head: Vec<u8>, body: Option<Body>) -> Result<(), SendFailure> {
    into.write_all(&head).await?;
    if let Some(mut body) = body {
        while let Some(frame) = body.frame().await {
            match frame.map_err(SendFailure::Body)?.into_data() {
                Ok(data) if data.is_empty() => {}
                Ok(data) => {
                    let mut chunk = Bytes::from(format!("{:x}\r\n", data.len())).chain(data).chain(&b"\r\n"[..]);
                    into.write_all_buf(&mut chunk).await?;
                }
                Err(frame) => {
                    let mut last = b"0\r\n".to_vec();
                    for (name, value) in frame.trailers_ref().into_iter().flatten() {
                        last.extend_from_slice(name.as_str().as_bytes());
                        last.extend_from_slice(b": ");
                        last.extend_from_slice(value.as_bytes());
                        last.extend_from_slice(b"\r\n");
                    }
                    last.extend_from_slice(b"\r\n");
                    into.write_all(&last).await?;
                    return Ok(into.flush().await?);
                }
            }
        }
        into.write_all(b"0\r\n\r\n").await?;
    }
    Ok(into.flush().await?)
}

fn garbage(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn broken() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the connection broke before the answer came")
}

/// Maximum number of bytes per read.
const PIECE: usize = 256 << 10;
const MAX_HEAD_BYTES: usize = 64 << 10;
const MAX_CHUNK_HEAD_BYTES: usize = 256;
const MAX_FIELDS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body;
    use crate::shell::Shell;
    use http_body_util::StreamBody;
    use hyper::body::Frame;
    use tokio::io::DuplexStream;

    fn line() -> (PipelinedConnection, DuplexStream) {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        (PipelinedConnection::new(Box::new(ours), Shell::tokio().timers().clone(), Duration::from_secs(60)), theirs)
    }

    fn get(path: &str) -> Request<Body> {
        Request::get(path).header("host", "here").body(body::empty()).unwrap()
    }

    /// Reads until the data end with `end`.
    async fn heard(peer: &mut DuplexStream, end: &str) -> String {
        let mut heard = Vec::new();
        while !heard.ends_with(end.as_bytes()) {
            heard.push(peer.read_u8().await.unwrap());
        }
        String::from_utf8(heard).unwrap()
    }

    #[tokio::test]
    async fn requests_precede_responses_and_responses_match_them() {
        let (line, mut peer) = line();
        let asked = async {
            let line = &line;
            let ask = |path| async move { line.ask(get(path)).await.unwrap().text(100).await.unwrap() };
            tokio::join!(ask("/one"), ask("/two"), ask("/three"))
        };
        let served = async {
            // All three arrive before any response is sent.
            let requests = heard(&mut peer, "/three HTTP/1.1\r\nHost: here\r\n\r\n").await;
            assert!(requests.starts_with("GET /one HTTP/1.1\r\nHost: here\r\n\r\nGET /two "), "{requests}");
            for part in [
                "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-le",
                "ngth: 3\r\n\r\n1st",
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\n2n\r\n1\r\nd\r\n0\r\n\r\nHTTP/1.1 204 None\r\n\r\n",
            ] {
                peer.write_all(part.as_bytes()).await.unwrap();
            }
        };
        let (answers, ()) = tokio::join!(asked, served);
        assert_eq!(answers, (b"1st".to_vec(), b"2nd".to_vec(), Vec::new()));
        assert!(!line.is_broken() && line.round_trip().is_some());
    }

    #[tokio::test]
    async fn trailers_come_with_the_end() {
        let (line, mut peer) = line();
        let answer =
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nreservoir-subtree: ab\r\n\r\n";
        peer.write_all(answer.as_bytes()).await.unwrap();
        let mut answer = line.ask(get("/")).await.unwrap();
        assert_eq!(answer.next().await.unwrap().unwrap(), "x");
        assert!(answer.next().await.unwrap().is_none());
        assert_eq!(answer.trailers.unwrap()["reservoir-subtree"], "ab");
    }

    #[tokio::test]
    async fn a_body_is_chunked_and_its_trailers_follow() {
        let (line, mut peer) = line();
        let mut trailers = HeaderMap::new();
        trailers.insert("late", HeaderValue::from_static("yes"));
        let frames = [Frame::data(Bytes::from_static(b"hello")), Frame::trailers(trailers)];
        let body = StreamBody::new(futures_util::stream::iter(frames.map(io::Result::Ok))).boxed_unsync();
        let request = Request::put("/").header(TRANSFER_ENCODING, "chunked").body(body).unwrap();
        let served = async {
            let request = heard(&mut peer, "yes\r\n\r\n").await;
            assert!(request.ends_with("\r\n\r\n5\r\nhello\r\n0\r\nlate: yes\r\n\r\n"), "{request}");
            peer.write_all(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        };
        let (answer, ()) = tokio::join!(line.ask(request), served);
        assert_eq!(answer.unwrap().status, StatusCode::ACCEPTED);
    }

    /// A server out of space answers and stops reading. The response must be delivered, and the connection not be
    /// reused.
    #[tokio::test]
    async fn a_refusal_in_the_midst_of_a_body_is_heard() {
        let (line, mut peer) = line();
        let endless = futures_util::stream::repeat_with(|| Ok(Frame::data(Bytes::from(vec![7; 1 << 16]))));
        let body = StreamBody::new(endless).boxed_unsync();
        let request = Request::put("/").header(TRANSFER_ENCODING, "chunked").body(body).unwrap();
        peer.write_all(b"HTTP/1.1 507 Full\r\ncontent-length: 4\r\n\r\nfull").await.unwrap();
        let answer = line.ask(request).await.unwrap();
        assert_eq!(
            (answer.status, &answer.text(9).await.unwrap()[..]),
            (StatusCode::INSUFFICIENT_STORAGE, &b"full"[..])
        );
        assert!(line.is_broken());
        assert_eq!(line.ask(get("/")).await.err().unwrap().kind(), io::ErrorKind::ConnectionAborted);
    }

    /// Otherwise the peer would wait for the rest of the request, and this end for a response.
    #[tokio::test]
    async fn failed_body_is_reported_at_once_and_ends_the_connection() {
        let (line, mut peer) = line();
        let frames = [Ok(Frame::data(Bytes::from_static(b"half"))), Err(io::Error::other("the disk failed"))];
        let body = StreamBody::new(futures_util::stream::iter(frames)).boxed_unsync();
        let request = Request::put("/").header(TRANSFER_ENCODING, "chunked").body(body).unwrap();
        let asked = async {
            // An earlier request waits for its response, which comes first.
            let ahead = line.ask(get("/ahead"));
            let (ahead, failed) = tokio::join!(ahead, async {
                let failed = line.ask(request).await.err().unwrap();
                peer.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nx").await.unwrap();
                failed
            });
            assert_eq!(ahead.unwrap().text(9).await.unwrap(), b"x");
            failed
        };
        assert_eq!(asked.await.to_string(), "the disk failed");
        assert!(line.is_broken());
        let mut heard = Vec::new();
        peer.read_to_end(&mut heard).await.unwrap();
        assert!(heard.ends_with(b"4\r\nhalf\r\n"), "{}", String::from_utf8_lossy(&heard));
    }

    #[tokio::test]
    async fn dropped_response_breaks_the_connection_for_later_ones() {
        let (line, mut peer) = line();
        peer.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf").await.unwrap();
        let first = line.ask(get("/one")).await.unwrap();
        let (second, ()) = tokio::join!(line.ask(get("/two")), async { drop(first) });
        assert_eq!(second.err().unwrap().kind(), io::ErrorKind::ConnectionAborted);
        assert!(line.is_broken());
    }

    #[tokio::test]
    async fn answers_that_are_no_http_are_errors() {
        for answer in [
            "HTTP/1.1 200 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 1\r\n\r\nx",
            "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n+1\r\nx\r\n0\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nxy\r\n0\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n: no name\r\n\r\n",
            "SSH-2.0-OpenSSH\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nx",
        ] {
            let (line, mut peer) = line();
            peer.write_all(answer.as_bytes()).await.unwrap();
            drop(peer);
            let told = match line.ask(get("/")).await {
                Ok(answer) => answer.text(100).await.map(drop),
                Err(error) => Err(error),
            };
            assert!(told.is_err() && line.is_broken(), "{answer}");
        }
        let (line, mut peer) = line();
        let long = format!("HTTP/1.1 200 OK\r\nx: {}\r\n", "y".repeat(2 * MAX_HEAD_BYTES));
        let (told, _) = tokio::join!(line.ask(get("/")), async { peer.write_all(long.as_bytes()).await });
        assert_eq!(told.err().unwrap().kind(), io::ErrorKind::InvalidData);
    }
}
