//! Answers that come by HTTP/3: each request on a stream of its own.

use super::Server;
use crate::body;
use crate::http3::{Arriving, MOST_OF_A_HEAD, send, tell_length};
use crate::watch::Watch;
use bytes::Bytes;
use core::pin::pin;
use h3::error::{Code, ConnectionError};
use h3::quic::ConnectionErrorIncoming;
use h3::server::{RequestResolver, RequestStream};
use http_body_util::BodyExt;
use hyper::{Method, Request, Response};
use offload_base::slots::ConnectionSlot;
use quic_offload::http3::{Both, Streams};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

impl Server {
    /// Answers the requests of an HTTP/3 connection, until there are no more: 32 at a time, each of which takes one of the slots that
    /// [`enter`](Server::enter) gives to connections of HTTP/1.1. Others wait, and so take nothing before their heads are whole; of those that
    /// are not answered 64 at a time are read.
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
        // A client that leaves so soon has asked for nothing.
        let Ok(remote) = connection.remote_addr() else { return };
        let peer = remote.to_string();
        let mut builder = h3::server::builder();
        builder.send_grease(false).max_field_section_size(MOST_OF_A_HEAD);
        let Ok(mut http) = builder.build::<_, Bytes>(Streams(connection)).await else { return };
        let (under_way, turns) = (watch::Sender::new(0_usize), Arc::new(Semaphore::new(AT_A_TIME)));
        // A request that its client has reset is still here, and QUIC does not count it any more.
        let read = Arc::new(Semaphore::new(AT_A_TIME + MOST_WAITING));
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
                    // The client may be gone.
                    let _told = http.shutdown(0).await;
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
            count.send_modify(|count| *count += 1);
            let counted = Counted(count);
            self.0.shell.spawn(async move {
                let head = server.0.shell.within(server.0.limits.head, resolver.resolve_request()).await;
                // Without one there is nothing to answer, and its stream ends.
                if let Ok(Ok((request, stream))) = head {
                    // Nobody closes either of them. Those that came first have their turn first.
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
            // What has arrived at the client, and is not read there yet, would be lost with the connection: the client ends it.
            let ends = async { while let Ok(Some(_refused)) = http.accept().await {} };
            // It may take its time, as long as a connection may stand still.
            let _ended_or_not = self.0.shell.within(self.0.limits.stall, ends).await;
        }
    }

    async fn answer_http3(
        &self,
        request: Request<()>,
        stream: RequestStream<Both<Bytes>, Bytes>,
        peer: &str,
        slot: Arc<ConnectionSlot>,
    ) {
        let watch = Watch::new(self.0.shell.timers().clone());
        // What goes wrong with a client ends its stream, and the log has the request.
        let answered = async {
            let (mut to, from) = stream.split();
            let is_head = *request.method() == Method::HEAD;
            // RFC 9114 4.1: the rest of a request is not needed for an answer.
            let body = Arriving::new(from, watch.clone(), Code::H3_NO_ERROR).boxed_unsync();
            let answer = self.answer(request.map(|()| body), peer, watch.clone(), Some(slot.clone())).await;
            let (mut head, content) = answer.into_parts();
            tell_length(&mut head.headers, &content);
            if to.send_response(Response::from_parts(head, ())).await.is_ok() {
                let content = if is_head { body::empty() } else { content };
                let _gone = send(&mut to, content, &watch).await;
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

/// Tells why a connection ended, unless its client left it, closed or without a word.
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

/// The next request, once there is room for its head.
async fn accept(http: &mut Connection, read: &Arc<Semaphore>) -> Accepted {
    // Nobody closes it.
    let room = read.clone().acquire_owned().await.expect("open");
    Ok(http.accept().await?.map(|resolver| (resolver, room)))
}

type Connection = h3::server::Connection<Streams, Bytes>;
type Accepted = Result<Option<(RequestResolver<Streams, Bytes>, OwnedSemaphorePermit)>, ConnectionError>;

/// Requests of a connection that are answered at a time.
const AT_A_TIME: usize = 32;
/// Heads that are read, or wait for their turn, beside them: each has at most 256 KiB.
const MOST_WAITING: usize = 64;

/// A request under way, counted until it is dropped.
struct Counted(watch::Sender<usize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// Ready when `count` is zero.
async fn none_left(count: &watch::Sender<usize>) {
    // The sender is here: it cannot have gone.
    let _never_fails = count.subscribe().wait_for(|count| *count == 0).await.is_ok();
}
