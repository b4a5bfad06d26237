//! Requests over HTTP/3: all on one connection, each on its own stream.

use super::{Remote, RemoteError, STALL};
use crate::body::Body;
use crate::http3::{IncomingBody, MAX_HEAD_BYTES, send, tell_length};
use crate::watch::ProgressDeadline;
use bytes::Bytes;
use core::pin::pin;
use core::time::Duration;
use h3::client::SendRequest;
use h3::error::{Code, StreamError};
use http_body_util::BodyExt;
use hyper::header::{CONNECTION, HOST, TRANSFER_ENCODING};
use hyper::{Request, Response, Uri};
use quic_offload::Connection;
use quic_offload::http3::H3Connection;
use std::io;

/// A reusable connection.
#[derive(Clone)]
pub(super) struct Http3 {
    requests: SendRequest<H3Connection, Bytes>,
    connection: Connection,
    /// The watch of all its streams.
    watch: ProgressDeadline,
}

impl Remote {
    /// Sends a request and returns the response.
    pub(super) async fn ask_by_http3(
        &self,
        request: Request<Body>,
        stall: Option<Duration>,
    ) -> Result<Response<Body>, RemoteError> {
        let Http3 { mut requests, connection, watch: whole } = self.http3().await?;
        let watch = whole.for_stream();
        watch.expect(stall);
        let (head, body) = self.to_http3(request)?.into_parts();
        let answered = async {
            let stream = requests.send_request(Request::from_parts(head, ())).await.map_err(io::Error::other)?;
            let (mut to, mut from) = stream.split();
            // The response may arrive before the request is complete. The rest of the request is then not needed.
            let answer = {
                let mut sending = pin!(send(&mut to, body, &watch));
                let mut answer = pin!(from.recv_response());
                let mut sent = None;
                loop {
                    tokio::select! {
                        biased;
                        answer = &mut answer => break answer,
                        done = &mut sending, if sent.is_none() => sent = Some(done),
                    }
                    // If this end cannot send its body, no response will come. If the server stopped the stream, a
                    // response will.
                    if let Some(Err(error)) = &sent
                        && !error.get_ref().is_some_and(|error| error.is::<StreamError>())
                    {
                        return Err(sent.and_then(Result::err).unwrap_or_else(|| io::ErrorKind::BrokenPipe.into()));
                    }
                }
            };
            let answer = answer.map_err(io::Error::other)?;
            let body = IncomingBody::new(from, watch.clone(), Code::H3_REQUEST_CANCELLED);
            Ok((answer, body))
        };
        let answer = tokio::select! {
            biased;
            answer = answered => answer,
            late = late_with(&watch, &whole, stall) => {
                // The connection has stalled; another connection may work.
                self.leave(&connection).await;
                Err(late)
            }
        };
        let (answer, body) = match answer {
            Ok(answer) => answer,
            Err(error) => {
                // An error of the stream ends this request only; other requests continue.
                if is_of_connection(&error) {
                    self.leave(&connection).await;
                }
                return Err(self.broke(&error));
            }
        };
        watch.expect(Some(STALL));
        // `h3` closes a connection when its last request sender is dropped.
        Ok(answer.map(|()| body.holding(requests).boxed_unsync()))
    }

    /// Returns the connection, or a new one if there is none or it ended.
    async fn http3(&self) -> Result<Http3, RemoteError> {
        let mut held = self.http3.lock().await;
        if let Some(http3) = held.as_ref().filter(|http3| http3.connection.remote_addr().is_ok()) {
            return Ok(http3.clone());
        }
        let connected = async {
            let connection = self.dial.quic(&self.host, self.port).await?;
            let mut builder = h3::client::builder();
            builder.send_grease(false).max_field_section_size(MAX_HEAD_BYTES);
            let built = builder.build(H3Connection(connection.clone())).await.map_err(io::Error::other)?;
            Ok((connection, built))
        };
        let connected = self.shell.within(STALL, connected).await.and_then(|connected| connected);
        let (connection, (mut driver, requests)) = connected.map_err(|error| self.unreached(&error))?;
        let host = self.host.clone();
        self.shell.spawn(async move {
            let ended = driver.wait_idle().await;
            // Its requests get the error too.
            if !ended.is_h3_no_error() {
                tracing::warn!(%host, %ended, "the connection of HTTP/3 ended");
            }
        });
        let watch = ProgressDeadline::new(self.shell.timers().clone());
        watch.expect(Some(STALL));
        Ok(held.insert(Http3 { requests, connection, watch }).clone())
    }

    /// Stops using a connection. It ends after its pending responses.
    async fn leave(&self, left: &Connection) {
        let mut held = self.http3.lock().await;
        held.take_if(|http3| http3.connection.is_same(left));
    }

    /// Returns the round-trip time of the connection, if there is one.
    pub(super) async fn round_trip_of_http3(&self) -> Option<Duration> {
        Some(self.http3.lock().await.as_ref()?.connection.statistics().rtt)
    }

    /// Converts a request to HTTP/3: the host goes into the target, and connection-specific fields are removed (RFC
    /// 9114 section 4.2).
    fn to_http3(&self, mut request: Request<Body>) -> Result<Request<Body>, RemoteError> {
        let authority = request.headers_mut().remove(HOST);
        request.headers_mut().remove(CONNECTION);
        request.headers_mut().remove(TRANSFER_ENCODING);
        let authority = authority.as_ref().and_then(|authority| authority.to_str().ok()).unwrap_or_default();
        let target = request.uri().path_and_query().map_or("/", |target| target.as_str());
        let uri = Uri::builder().scheme("https").authority(authority).path_and_query(target).build();
        *request.uri_mut() = uri.map_err(|error| self.broke(&error))?;
        let (mut head, body) = request.into_parts();
        tell_length(&mut head.headers, &body);
        Ok(Request::from_parts(head, body))
    }
}

/// Returns whether the next request needs another connection, because this connection has ended or takes no more
/// requests.
fn is_of_connection(error: &io::Error) -> bool {
    let error = error.get_ref().and_then(|error| error.downcast_ref::<StreamError>());
    matches!(error, Some(StreamError::ConnectionError { .. } | StreamError::RemoteClosing { .. }))
}

/// Waits until a response is late. While other responses make progress on the connection, this response may be queued
/// after them.
async fn late_with(watch: &ProgressDeadline, whole: &ProgressDeadline, stall: Option<Duration>) -> io::Error {
    loop {
        let late = watch.late().await;
        if whole.is_late() {
            return late;
        }
        watch.expect(stall);
    }
}
