//! Requests to a server: on reusable connections, or on the pipelined connection of a stream.

use super::answer::ServerResponse;
use super::error::refused;
use super::{MAX_REFUSAL_BYTES, PipelinedConnections, Remote, RemoteError, STALL, field};
use crate::body::{self, Body};
use crate::dial::DialStream;
use crate::name::Name;
use crate::pipelined_connection::{self, PipelinedConnection};
use crate::protocol::{MISSING, PRODUCT};
use crate::watch::{DeadlineStream, ProgressDeadline};
use bytes::Buf;
use core::time::Duration;
use http_body_util::{BodyExt, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{AUTHORIZATION, HOST, HeaderMap, HeaderName, HeaderValue, LOCATION, USER_AGENT};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use offload_base::text::with_causes;
use std::io;
use std::sync::{Arc, PoisonError};

/// The connection of a response.
pub(super) enum Session {
    Http1 {
        requests: SendRequest<Body>,
        watch: ProgressDeadline,
    },
    /// An HTTP/3 stream, which is used up; its connection is shared.
    Http3,
}

/// An idle HTTP/1.1 connection.
pub(super) type IdleConnection = (SendRequest<Body>, ProgressDeadline);

impl Remote {
    pub(super) fn request(&self, method: Method, name: &Name) -> hyper::http::request::Builder {
        let target = match &self.bucket {
            None => Some(self.path_of(name)),
            Some(bucket) => self.target_of(bucket, &method, name),
        };
        self.request_to(method, target)
    }

    /// Returns the path and query of a name.
    pub(super) fn path_of(&self, name: &Name) -> String {
        match &self.exact {
            Some((exact, target)) if exact == name => target.clone(),
            _ => name.to_url(),
        }
    }

    /// Builds a request. Without a target the request is invalid, and [`Remote::ask`] reports that.
    pub(super) fn request_to(&self, method: Method, target: Option<String>) -> hyper::http::request::Builder {
        let target = target.unwrap_or_default();
        let mut request = Request::builder().method(method).uri(target).header(HOST, self.authority());
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

    /// Formats host and port as in a URL.
    pub(super) fn authority(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        if self.port == 443 { host } else { format!("{host}:{}", self.port) }
    }

    /// Sends a request. Any response other than success is an error with the server's text.
    pub(super) async fn ask(
        &self,
        request: hyper::http::request::Builder,
        body: Body,
        name: &Name,
        stall: Option<Duration>,
    ) -> Result<ServerResponse, RemoteError> {
        let request = with_body(request, body, name)?;
        let method = request.method().clone();
        let answer = if self.by_http3 {
            ServerResponse { answer: self.ask_by_http3(request, stall).await?, session: Session::Http3 }
        } else {
            let (mut requests, watch) = self.session().await?;
            watch.expect(stall);
            let answer = requests.send_request(request).await.map_err(|error| self.broke(&error))?;
            watch.expect(Some(STALL));
            ServerResponse { answer: answer.map(body::arriving), session: Session::Http1 { requests, watch } }
        };
        if answer.status().is_success() {
            return Ok(answer);
        }
        let (status, missing, remedy) =
            (answer.status(), missing_in(answer.headers()), self.remedy(answer.status(), answer.headers()));
        let text = self.text(answer, name, MAX_REFUSAL_BYTES).await.unwrap_or_default();
        Err(refused(method, name, status, &text, missing, remedy))
    }

    /// Sends a request on the pipelined connection of a stream, after that stream's earlier requests.
    pub(super) async fn ask_on_line(
        &self,
        request: hyper::http::request::Builder,
        body: Body,
        name: &Name,
        stream: usize,
    ) -> Result<pipelined_connection::PipelinedResponse, RemoteError> {
        let request = with_body(request, body, name)?;
        let method = request.method().clone();
        let answer = self.line(stream).await?.ask(request).await.map_err(|error| self.broke(&error))?;
        if answer.status.is_success() {
            return Ok(answer);
        }
        let (status, missing, remedy) =
            (answer.status, missing_in(&answer.fields), self.remedy(answer.status, &answer.fields));
        let text = answer.text(MAX_REFUSAL_BYTES).await.unwrap_or_default();
        Err(refused(method, name, status, &String::from_utf8_lossy(&text), missing, remedy))
    }

    /// Returns advice for a refusal that the client can remedy.
    fn remedy(&self, status: StatusCode, fields: &HeaderMap) -> Option<String> {
        if status == StatusCode::UNAUTHORIZED && self.token.is_none() && self.bucket.is_none() {
            return Some(format!(
                "no token was sent: set RESERVOIR_TOKEN, or add the line `{}:{} TOKEN` to --token-file",
                self.host, self.port
            ));
        }
        if !status.is_redirection() {
            return None;
        }
        // The query may be a signature, which must not be logged.
        let place = field(fields, LOCATION).map(|place| place.split(['?', '#']).next().unwrap_or_default());
        let place =
            place.map(|place| place.rsplit_once('@').map_or(place, |(_, place)| place).escape_debug().to_string());
        Some(format!("redirects are not followed: ask {} itself", place.as_deref().unwrap_or("the server that has it")))
    }

    /// Returns the pipelined connection of a stream. Connects if there is none, or it broke.
    pub(super) async fn line(&self, stream: usize) -> Result<Arc<PipelinedConnection>, RemoteError> {
        let place = self.lines().entry(stream).or_default().clone();
        let mut line = place.lock().await;
        match &*line {
            Some(line) if !line.is_broken() => Ok(line.clone()),
            _ => {
                let new = Arc::new(PipelinedConnection::new(self.connect().await?, self.shell.timers().clone(), STALL));
                *line = Some(new.clone());
                Ok(new)
            }
        }
    }

    pub(super) fn lines(&self) -> std::sync::MutexGuard<'_, PipelinedConnections> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an idle connection, or a new one.
    async fn session(&self) -> Result<IdleConnection, RemoteError> {
        loop {
            let idle = self.idle().pop();
            let Some((mut requests, watch)) = idle else { break };
            if requests.ready().await.is_ok() {
                return Ok((requests, watch));
            }
        }
        let stream = self.connect().await?;
        let watch = ProgressDeadline::new(self.shell.timers().clone());
        let stream = TokioIo::new(DeadlineStream::new(stream, watch.clone()));
        // XRootD 5.5 compares the case of field names, although they are case-insensitive (RFC 9110 section 5.1).
        let handshake = http1::Builder::new().title_case_headers(true).max_buf_size(512 << 10).handshake(stream).await;
        let (requests, connection) = handshake.map_err(|error| self.broke(&error))?;
        // If the connection breaks, its requests get the error.
        self.shell.spawn(async move { drop(connection.await) });
        Ok((requests, watch))
    }

    pub(super) async fn connect(&self) -> Result<Box<dyn DialStream>, RemoteError> {
        let stream = self.shell.within(STALL, self.dial.dial(&self.host, self.port)).await;
        stream.and_then(|dialed| dialed).map_err(|error| self.unreached(&error))
    }

    /// Converts an error of connecting.
    pub(super) fn unreached(&self, error: &io::Error) -> RemoteError {
        let (host, text) = (self.host.clone(), error.to_string());
        match error.kind() {
            // Certificate errors are permanent.
            io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => RemoteError::Untrusted { host, error: text },
            _ => RemoteError::Connection { host, error: text },
        }
    }

    /// Reads the rest of a response, and keeps the connection for the next request.
    pub(super) async fn give_back(&self, answer: ServerResponse) {
        let ServerResponse { answer, session } = answer;
        if Limited::new(answer.into_body(), MAX_REFUSAL_BYTES).collect().await.is_ok() {
            self.keep(session);
        }
    }

    pub(super) fn keep(&self, session: Session) {
        if let Session::Http1 { requests, watch } = session {
            watch.expect(None);
            self.idle().push((requests, watch));
        }
    }

    pub(super) async fn text(&self, answer: ServerResponse, name: &Name, most: usize) -> Result<String, RemoteError> {
        let ServerResponse { answer, session } = answer;
        let body = Limited::new(answer.into_body(), most).collect().await;
        let wrong = |what| RemoteError::Answer { name: name.clone(), what };
        let mut bytes = body.map_err(|_| wrong("was cut off, or is too long"))?.aggregate();
        self.keep(session);
        String::from_utf8(bytes.copy_to_bytes(bytes.remaining()).into()).map_err(|_| wrong("is no text"))
    }

    pub(super) fn broke(&self, error: &(dyn core::error::Error + 'static)) -> RemoteError {
        RemoteError::Connection { host: self.host.clone(), error: with_causes(error) }
    }

    pub(super) fn idle(&self) -> std::sync::MutexGuard<'_, Vec<IdleConnection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn with_body(request: hyper::http::request::Builder, body: Body, name: &Name) -> Result<Request<Body>, RemoteError> {
    request.body(body).map_err(|_| RemoteError::Unaskable(name.clone()))
}

fn missing_in(fields: &HeaderMap) -> Option<u64> {
    field(fields, HeaderName::from_static(MISSING)).and_then(|text| text.parse().ok())
}
