//! HTTP/3: each request on its own stream.

use super::Server;
use super::refusal::Refusal;
use super::uploads;
use crate::body::{self, Body};
use crate::http3::{IncomingBody, MAX_HEAD_BYTES, send, tell_length};
use crate::watch::ProgressDeadline;
use bytes::Bytes;
use core::pin::pin;
use core::sync::atomic::{AtomicBool, Ordering};
use h3::error::{Code, ConnectionError};
use h3::quic::ConnectionErrorIncoming;
use h3::server::{RequestResolver, RequestStream};
use http_body_util::BodyExt;
use http_rules::http3::BodyLength;
use hyper::body::Body as _;
use hyper::{Method, Request, Response, StatusCode};
use offload_base::slots::ConnectionSlot;
use quic_offload::http3::{H3BidiStream, H3Connection};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

impl Server {
    /// Serves an HTTP/3 connection until it ends. At most 32 requests are answered at a time, and each takes one of the
    /// slots that [`enter`](Server::enter) gives to HTTP/1.1 connections. Up to 64 more request heads are read; further
    /// requests wait unread and use no memory.
    ///
    /// ```
    /// # async fn example(server: offload_reservoir::Server, endpoint: quic_offload::Endpoint) {
    /// while let Some(connection) = endpoint.accept().await {
    ///     let server = server.clone();
    ///     tokio::spawn(async move { server.serve_http3(connection).await });
    /// }
    /// # }
    /// ```
    pub async fn serve_http3(&self, connection: quic_offload::Connection) {
        // A client that has already left has sent no request.
        let Ok(remote) = connection.remote_addr() else { return };
        let peer = remote.to_string();
        let mut builder = h3::server::builder();
        builder.send_grease(false).max_field_section_size(MAX_HEAD_BYTES);
        let Ok(mut http) = builder.build::<_, Bytes>(H3Connection(connection)).await else { return };
        let (under_way, turns) = (watch::Sender::new(0_usize), Arc::new(Semaphore::new(AT_A_TIME)));
        // A request that its client has reset still occupies memory here, but no longer counts in QUIC's stream limit.
        let read = Arc::new(Semaphore::new(AT_A_TIME + MAX_WAITING));
        let attended = uploads::ClientConnection::default();
        let mut closing = self.0.closing.subscribe();
        let mut closed = pin!(async move { drop(closing.wait_for(|closing| *closing).await) });
        let is_closed = loop {
            let idle = async {
                none_left(&under_way).await;
                self.0.shell.sleep(self.0.limits.idle).await;
            };
            let accepted = tokio::select! {
                biased;
                () = &mut closed => {
                    // The client may be gone, so an error does not matter.
                    let _ = http.shutdown(0).await;
                    break true;
                }
                accepted = accept(&mut http, &read) => accepted,
                () = idle => break false,
            };
            let (resolver, is_read) = match accepted {
                Ok(Some(accepted)) => accepted,
                Ok(None) => break false,
                Err(error) => {
                    tell_of(&error, &peer);
                    break false;
                }
            };
            let (server, peer, count, turns) = (self.clone(), peer.clone(), under_way.clone(), turns.clone());
            let attended = attended.clone();
            count.send_modify(|count| *count += 1);
            let counted = RequestCount(count);
            self.0.shell.spawn(async move {
                let head = server.0.shell.within(server.0.limits.head, resolver.resolve_request()).await;
                // A stream without a request head needs no response.
                if let Ok(Ok((mut request, stream))) = head {
                    request.extensions_mut().insert(attended);
                    // Neither semaphore is ever closed. Requests get their turns in order of arrival.
                    let turn = turns.acquire_owned().await;
                    let slot = Arc::new(server.0.slots.acquire_waiting(remote.ip()).await);
                    server.answer_http3(request, stream, &peer, slot).await;
                    drop(turn);
                }
                drop((counted, is_read));
            });
        };
        none_left(&under_way).await;
        if is_closed {
            // Data that the client has received but not read would be lost with the connection, so the client ends the
            // connection.
            let ends = async { while let Ok(Some(_refused)) = http.accept().await {} };
            // The client gets as much time as a stalled connection.
            let _ = self.0.shell.within(self.0.limits.stall, ends).await;
        }
    }

    async fn answer_http3(
        &self,
        request: Request<()>,
        stream: RequestStream<H3BidiStream<Bytes>, Bytes>,
        peer: &str,
        slot: Arc<ConnectionSlot>,
    ) {
        let watch = ProgressDeadline::new(self.0.shell.timers().clone());
        // A client error ends its stream only; the log has the request.
        let answered = async {
            let (mut to, mut from) = stream.split();
            let is_head = *request.method() == Method::HEAD;
            let Ok(length) = http_rules::http3::check_head(&request) else {
                from.stop_sending(Code::H3_MESSAGE_ERROR);
                return to.stop_stream(Code::H3_MESSAGE_ERROR);
            };
            let malformed = Arc::new(AtomicBool::new(false));
            // RFC 9114 section 4.1: a server may respond without reading the whole request.
            let body = IncomingBody::new(from, watch.clone(), Code::H3_NO_ERROR).checked(length, malformed.clone());
            let body = self.without_unread(request.method(), length, body.boxed_unsync(), &watch).await;
            let answer = match body {
                _ if malformed.load(Ordering::Relaxed) => None,
                Ok(body) => Some(self.answer(request.map(|()| body), peer, watch.clone(), Some(slot.clone())).await),
                Err(refusal) => Some(refusal.into_response()),
            };
            // The body may turn out malformed while the request is handled (RFC 9114 section 4.1.2).
            let Some(answer) = answer.filter(|_| !malformed.load(Ordering::Relaxed)) else {
                return to.stop_stream(Code::H3_MESSAGE_ERROR);
            };
            let (mut head, content) = answer.into_parts();
            // RFC 9110 section 8.6: a 204 has no Content-Length; a 304 or a response to HEAD may only have the one of a
            // GET.
            let is_empty = content.size_hint().exact() == Some(0);
            if !(is_empty && (is_head || matches!(head.status.as_u16(), 204 | 304))) {
                tell_length(&mut head.headers, &content);
            }
            if to.send_response(Response::from_parts(head, ())).await.is_ok() {
                let content = if is_head { body::empty() } else { content };
                let _ = send(&mut to, content, &watch).await;
            }
        };
        tokio::select! {
            biased;
            () = answered => {}
            _ = watch.late() => {}
            () = slot.revoked() => {}
        }
    }
}

impl Server {
    /// Reads the unused body of a request, if the request declares its length: only the whole body shows whether the
    /// request is malformed.
    async fn without_unread(
        &self,
        method: &Method,
        length: BodyLength,
        mut body: Body,
        watch: &ProgressDeadline,
    ) -> Result<Body, Refusal> {
        let Some(declared) = length.declared().filter(|_| !matches!(*method, Method::PUT | Method::POST)) else {
            return Ok(body);
        };
        if declared > MAX_UNREAD {
            let text = format!("{method} has no use for a body of {declared} bytes");
            return Err(Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, text));
        }
        watch.expect(Some(self.0.limits.stall));
        // The `malformed` flag tells errors of the body; otherwise the stream has ended.
        while let Some(Ok(_)) = body.frame().await {}
        Ok(body::empty())
    }
}

/// Logs the reason for which a connection ended, unless the client left.
fn tell_of(error: &ConnectionError, peer: &str) {
    let has_left = match error {
        ConnectionError::Timeout { .. }
        | ConnectionError::Remote { 0: ConnectionErrorIncoming::ApplicationClose { .. }, .. } => true,
        error => error.is_h3_no_error(),
    };
    if !has_left {
        tracing::warn!(%peer, %error, "a connection of HTTP/3 ended");
    }
}

/// Accepts the next request once there is room for its head.
async fn accept(http: &mut Connection, read: &Arc<Semaphore>) -> AcceptResult {
    // The semaphore is never closed.
    let room = read.clone().acquire_owned().await.expect("open");
    Ok(http.accept().await?.map(|resolver| (resolver, room)))
}

type Connection = h3::server::Connection<H3Connection, Bytes>;
type AcceptResult = Result<Option<(RequestResolver<H3Connection, Bytes>, OwnedSemaphorePermit)>, ConnectionError>;

/// Maximum number of requests of a connection answered at a time.
const AT_A_TIME: usize = 32;
/// Maximum number of further request heads read; each has at most 256 KiB.
const MAX_WAITING: usize = 64;

/// Maximum length of an unused body that is read.
const MAX_UNREAD: u64 = 64 << 10;

/// A request in progress, counted until dropped.
struct RequestCount(watch::Sender<usize>);

impl Drop for RequestCount {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// Waits until `count` is zero.
async fn none_left(count: &watch::Sender<usize>) {
    // The sender exists as long as this borrow, so waiting cannot fail.
    let _ = count.subscribe().wait_for(|count| *count == 0).await.is_ok();
}
