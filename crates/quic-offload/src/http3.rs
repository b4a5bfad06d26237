//! A connection and its streams as crate `h3` (HTTP/3, RFC 9114) wants to see them.
//!
//! Invariant: an end that `h3` drops before its time is reset or stopped, never made to look whole. Futures are made anew at
//! each poll: those of `quic-offload` lose nothing when they are dropped.

use crate::{Closed, Connection, ReceiveStream, SendStream, StreamError};
use bytes::{Buf, Bytes};
use core::future::Future;
use core::pin::pin;
use core::task::{Context, Poll, ready};
use h3::error::Code;
use h3::quic::{self, ConnectionErrorIncoming, StreamErrorIncoming, StreamId, WriteBuf};
use std::sync::Arc;

/// A connection. Clones are the same one.
///
/// ```
/// # async fn example(connection: quic_offload::Connection) -> Result<(), Box<dyn std::error::Error>> {
/// use quic_offload::http3::Streams;
///
/// let (mut driver, mut requests) = h3::client::new(Streams(connection)).await?;
/// let request = http::Request::get("https://server.test/").body(())?;
/// let mut answer = requests.send_request(request).await?;
/// answer.finish().await?;
/// println!("{}", answer.recv_response().await?.status());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Streams(pub Connection);

impl<B: Buf> quic::Connection<B> for Streams {
    type RecvStream = Receiving;
    type OpenStreams = Streams;

    fn poll_accept_recv(&mut self, cx: &mut Context<'_>) -> Poll<Result<Receiving, ConnectionErrorIncoming>> {
        pin!(self.0.accept_uni()).poll(cx).map_ok(Receiving).map_err(of_connection)
    }

    fn poll_accept_bidi(&mut self, cx: &mut Context<'_>) -> Poll<Result<Both<B>, ConnectionErrorIncoming>> {
        pin!(self.0.accept_bi()).poll(cx).map_ok(Both::new).map_err(of_connection)
    }

    fn opener(&self) -> Streams {
        self.clone()
    }
}

impl<B: Buf> quic::OpenStreams<B> for Streams {
    type BidiStream = Both<B>;
    type SendStream = Sending<B>;

    fn poll_open_bidi(&mut self, cx: &mut Context<'_>) -> Poll<Result<Both<B>, StreamErrorIncoming>> {
        pin!(self.0.open_bi()).poll(cx).map_ok(Both::new).map_err(|closed| of_stream(closed.into()))
    }

    fn poll_open_send(&mut self, cx: &mut Context<'_>) -> Poll<Result<Sending<B>, StreamErrorIncoming>> {
        pin!(self.0.open_uni()).poll(cx).map_ok(Sending::new).map_err(|closed| of_stream(closed.into()))
    }

    fn close(&mut self, code: Code, reason: &[u8]) {
        self.0.close(code.value(), Bytes::copy_from_slice(reason));
    }
}

/// A stream's end that sends. See [`Streams`] for an example.
pub struct Sending<B> {
    stream: SendStream,
    left: Option<WriteBuf<B>>,
    finished: bool,
}

impl<B> Sending<B> {
    fn new(stream: SendStream) -> Sending<B> {
        Sending { stream, left: None, finished: false }
    }
}

impl<B: Buf> quic::SendStream<B> for Sending<B> {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        while let Some(left) = self.left.as_mut().filter(|left| left.has_remaining()) {
            let count = ready!(self.stream.poll_write_some(cx, left.chunk())).map_err(of_stream)?;
            left.advance(count);
        }
        self.left = None;
        Poll::Ready(Ok(()))
    }

    fn send_data<T: Into<WriteBuf<B>>>(&mut self, data: T) -> Result<(), StreamErrorIncoming> {
        if self.left.is_some() {
            return Err(StreamErrorIncoming::Unknown("there is something to be sent first".into()));
        }
        self.left = Some(data.into());
        Ok(())
    }

    /// Ready when the peer has acknowledged everything.
    fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        ready!(self.poll_ready(cx))?;
        if !core::mem::replace(&mut self.finished, true) {
            self.stream.finish().map_err(of_stream)?;
        }
        pin!(self.stream.acknowledged()).poll(cx).map_err(of_stream)
    }

    fn reset(&mut self, code: u64) {
        self.stream.reset(code);
    }

    fn send_id(&self) -> StreamId {
        number(self.stream.id())
    }
}

/// A stream's end that receives. See [`Streams`] for an example.
pub struct Receiving(ReceiveStream);

impl quic::RecvStream for Receiving {
    type Buf = Bytes;

    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, StreamErrorIncoming>> {
        self.0.poll_next(cx, MOST_AT_ONCE).map_err(of_stream)
    }

    fn stop_sending(&mut self, code: u64) {
        self.0.stop(code);
    }

    fn recv_id(&self) -> StreamId {
        number(self.0.id())
    }
}

/// Both ends of a stream. See [`Streams`] for an example.
pub struct Both<B> {
    send: Sending<B>,
    receive: Receiving,
}

impl<B> Both<B> {
    fn new((send, receive): (SendStream, ReceiveStream)) -> Both<B> {
        Both { send: Sending::new(send), receive: Receiving(receive) }
    }
}

impl<B: Buf> quic::BidiStream<B> for Both<B> {
    type SendStream = Sending<B>;
    type RecvStream = Receiving;

    fn split(self) -> (Sending<B>, Receiving) {
        (self.send, self.receive)
    }
}

impl<B: Buf> quic::SendStream<B> for Both<B> {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        self.send.poll_ready(cx)
    }
    fn send_data<T: Into<WriteBuf<B>>>(&mut self, data: T) -> Result<(), StreamErrorIncoming> {
        self.send.send_data(data)
    }
    fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        self.send.poll_finish(cx)
    }
    fn reset(&mut self, code: u64) {
        self.send.reset(code);
    }
    fn send_id(&self) -> StreamId {
        self.send.send_id()
    }
}

impl<B> quic::RecvStream for Both<B> {
    type Buf = Bytes;

    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, StreamErrorIncoming>> {
        self.receive.poll_data(cx)
    }
    fn stop_sending(&mut self, code: u64) {
        self.receive.stop_sending(code);
    }
    fn recv_id(&self) -> StreamId {
        self.receive.recv_id()
    }
}

fn number(id: u64) -> StreamId {
    id.try_into().expect("QUIC numbers no stream above 2^62")
}

fn of_connection(closed: Closed) -> ConnectionErrorIncoming {
    match closed {
        Closed::ByPeer { code, .. } => ConnectionErrorIncoming::ApplicationClose { error_code: code },
        Closed::TimedOut => ConnectionErrorIncoming::Timeout,
        closed => ConnectionErrorIncoming::Undefined(Arc::new(closed)),
    }
}

fn of_stream(error: StreamError) -> StreamErrorIncoming {
    match error {
        StreamError::Closed(closed) => {
            StreamErrorIncoming::ConnectionErrorIncoming { connection_error: of_connection(closed) }
        }
        StreamError::Reset(error_code) | StreamError::Stopped(error_code) => {
            StreamErrorIncoming::StreamTerminated { error_code }
        }
        error => StreamErrorIncoming::Unknown(error.into()),
    }
}

/// What clients and servers call the protocol (RFC 9114 3.1), for `alpn_protocols` of rustls.
pub const ALPN: &[u8] = b"h3";
/// What is taken of a stream at a time.
const MOST_AT_ONCE: usize = 64 << 10;
