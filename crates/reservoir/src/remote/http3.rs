//! Requests by HTTP/3: all on one connection, each on a stream of its own.

use super::{Remote, RemoteError, STALL};
use crate::body::Body;
use crate::http3::{Arriving, MOST_OF_A_HEAD, send, tell_length};
use crate::watch::Watch;
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

/// A connection that is kept for the next request.
#[derive(Clone)]
pub(super) struct Http3 {
    requests: SendRequest<H3Connection, Bytes>,
    connection: Connection,
    /// Of all its streams.
    watch: Watch,
}

impl Remote {
    /// One request, and its answer.
    pub(super) async fn ask_by_http3(
        &self,
        request: Request<Body>,
        stall: Option<Duration>,
    ) -> Result<Response<Body>, RemoteError> {
        let Http3 { mut requests, connection, watch: whole } = self.http3().await?;
        let watch = whole.of_stream();
        watch.expect(stall);
        let (head, body) = self.of_http3(request)?.into_parts();
        let answered = async {
            let stream = requests.send_request(Request::from_parts(head, ())).await.map_err(io::Error::other)?;
            let (mut to, mut from) = stream.split();
            // The answer may come before all is sent, and then nobody wants the rest.
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
                    // What this end cannot send, nobody answers; what the server stopped, it does.
                    if let Some(Err(error)) = &sent
                        && !error.get_ref().is_some_and(|error| error.is::<StreamError>())
                    {
                        return Err(sent.and_then(Result::err).unwrap_or_else(|| io::ErrorKind::BrokenPipe.into()));
                    }
                }
            };
            let answer = answer.map_err(io::Error::other)?;
            let body = Arriving::new(from, watch.clone(), Code::H3_REQUEST_CANCELLED);
            Ok((answer, body))
        };
        let answer = tokio::select! {
            biased;
            answer = answered => answer,
            late = late_with(&watch, &whole, stall) => {
                // Nothing comes on it: whoever is there may answer on another.
                self.leave(&connection).await;
                Err(late)
            }
        };
        let (answer, body) = match answer {
            Ok(answer) => answer,
            Err(error) => {
                // The stream has ended with its ends, and the others go on.
                if is_of_connection(&error) {
                    self.leave(&connection).await;
                }
                return Err(self.broke(&error));
            }
        };
        watch.expect(Some(STALL));
        // `h3` ends a connection when nobody can send requests any more.
        Ok(answer.map(|()| body.holding(requests).boxed_unsync()))
    }

    /// The connection's requests; of a new connection, if there is none or it ended.
    async fn http3(&self) -> Result<Http3, RemoteError> {
        let mut held = self.http3.lock().await;
        if let Some(http3) = held.as_ref().filter(|http3| http3.connection.remote_addr().is_ok()) {
            return Ok(http3.clone());
        }
        let connected = async {
            let connection = self.dial.quic(&self.host, self.port).await?;
            let mut builder = h3::client::builder();
            builder.send_grease(false).max_field_section_size(MOST_OF_A_HEAD);
            let built = builder.build(H3Connection(connection.clone())).await.map_err(io::Error::other)?;
            Ok((connection, built))
        };
        let connected = self.shell.within(STALL, connected).await.and_then(|connected| connected);
        let (connection, (mut driver, requests)) = connected.map_err(|error| self.unreached(&error))?;
        let host = self.host.clone();
        self.shell.spawn(async move {
            let ended = driver.wait_idle().await;
            // Its requests are told as well, if there are any.
            if !ended.is_h3_no_error() {
                tracing::warn!(%host, %ended, "the connection of HTTP/3 ended");
            }
        });
        let watch = Watch::new(self.shell.timers().clone());
        watch.expect(Some(STALL));
        Ok(held.insert(Http3 { requests, connection, watch }).clone())
    }

    /// Asks nothing more on a connection, which ends when what was asked on it has come.
    async fn leave(&self, left: &Connection) {
        let mut held = self.http3.lock().await;
        held.take_if(|http3| http3.connection.is_same(left));
    }

    /// The connection's, if there is one.
    pub(super) async fn round_trip_of_http3(&self) -> Option<Duration> {
        Some(self.http3.lock().await.as_ref()?.connection.statistics().rtt)
    }

    /// A request as HTTP/3 has it: the server's name in its target, and no field that is about a connection (RFC 9114 4.2).
    fn of_http3(&self, mut request: Request<Body>) -> Result<Request<Body>, RemoteError> {
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

/// Whether the next request needs another connection: this one has ended, or its server takes no more requests.
fn is_of_connection(error: &io::Error) -> bool {
    let error = error.get_ref().and_then(|error| error.downcast_ref::<StreamError>());
    matches!(error, Some(StreamError::ConnectionError { .. } | StreamError::RemoteClosing { .. }))
}

/// Ready when an answer is late: while others come on the same connection, it may be behind them.
async fn late_with(watch: &Watch, whole: &Watch, stall: Option<Duration>) -> io::Error {
    loop {
        let late = watch.late().await;
        if whole.is_late() {
            return late;
        }
        watch.expect(stall);
    }
}
