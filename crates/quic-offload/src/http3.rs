//! The connection and stream traits of the crate `h3` (HTTP/3, RFC 9114).
//!
//! Invariants: if `h3` drops a stream early, the stream is reset or stopped, so that the peer never takes a part for
//! the whole. A peer can make `h3` buffer at most `MAX_FRAME` of a stream.

use crate::{Closed, Connection, ReceiveStream, SendStream, StreamError};
use bytes::{Buf, Bytes};
use core::task::{Context, Poll, ready};
use h3::error::Code;
use h3::quic::{self, ConnectionErrorIncoming, StreamErrorIncoming, StreamId, WriteBuf};
use std::sync::Arc;

/// A connection for `h3`. Clones share the connection.
///
/// A frame longer than 256 KiB ends its stream with H3_EXCESSIVE_LOAD, except DATA.
///
/// ```
/// # async fn example(connection: quic_offload::Connection) -> Result<(), Box<dyn std::error::Error>> {
/// use quic_offload::http3::H3Connection;
///
/// let (mut driver, mut requests) = h3::client::new(H3Connection(connection)).await?;
/// let request = http::Request::get("https://server.test/").body(())?;
/// let mut answer = requests.send_request(request).await?;
/// answer.finish().await?;
/// println!("{}", answer.recv_response().await?.status());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct H3Connection(pub Connection);

impl<B: Buf> quic::Connection<B> for H3Connection {
    type RecvStream = H3ReceiveStream;
    type OpenStreams = H3Connection;

    fn poll_accept_recv(&mut self, cx: &mut Context<'_>) -> Poll<Result<H3ReceiveStream, ConnectionErrorIncoming>> {
        self.0
            .poll_accept_uni(cx)
            .map_ok(|stream| H3ReceiveStream::new(stream, FrameParser::for_uni_stream()))
            .map_err(h3_connection_error)
    }

    fn poll_accept_bidi(&mut self, cx: &mut Context<'_>) -> Poll<Result<H3BidiStream<B>, ConnectionErrorIncoming>> {
        self.0.poll_accept_bi(cx).map_ok(H3BidiStream::new).map_err(h3_connection_error)
    }

    fn opener(&self) -> H3Connection {
        self.clone()
    }
}

impl<B: Buf> quic::OpenStreams<B> for H3Connection {
    type BidiStream = H3BidiStream<B>;
    type SendStream = H3SendStream<B>;

    fn poll_open_bidi(&mut self, cx: &mut Context<'_>) -> Poll<Result<H3BidiStream<B>, StreamErrorIncoming>> {
        self.0.poll_open_bi(cx).map_ok(H3BidiStream::new).map_err(|closed| h3_stream_error(closed.into()))
    }

    fn poll_open_send(&mut self, cx: &mut Context<'_>) -> Poll<Result<H3SendStream<B>, StreamErrorIncoming>> {
        self.0.poll_open_uni(cx).map_ok(H3SendStream::new).map_err(|closed| h3_stream_error(closed.into()))
    }

    fn close(&mut self, code: Code, reason: &[u8]) {
        self.0.close(code.value(), Bytes::copy_from_slice(reason));
    }
}

/// The sending half of a stream. See [`H3Connection`] for an example.
pub struct H3SendStream<B> {
    stream: SendStream,
    left: Option<WriteBuf<B>>,
    finished: bool,
}

impl<B> H3SendStream<B> {
    fn new(stream: SendStream) -> H3SendStream<B> {
        H3SendStream { stream, left: None, finished: false }
    }
}

impl<B: Buf> quic::SendStream<B> for H3SendStream<B> {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        while let Some(left) = self.left.as_mut().filter(|left| left.has_remaining()) {
            let count = ready!(self.stream.poll_write_some(cx, left.chunk())).map_err(h3_stream_error)?;
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

    /// Returns ready when the peer has acknowledged the whole stream.
    fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        ready!(self.poll_ready(cx))?;
        if !core::mem::replace(&mut self.finished, true) {
            self.stream.finish().map_err(h3_stream_error)?;
        }
        self.stream.poll_acknowledged(cx).map_err(h3_stream_error)
    }

    fn reset(&mut self, code: u64) {
        self.stream.reset(code);
    }

    fn send_id(&self) -> StreamId {
        number(self.stream.id())
    }
}

/// The receiving half of a stream. See [`H3Connection`] for an example.
pub struct H3ReceiveStream {
    stream: ReceiveStream,
    framing: FrameParser,
}

impl H3ReceiveStream {
    fn new(stream: ReceiveStream, framing: FrameParser) -> H3ReceiveStream {
        H3ReceiveStream { stream, framing }
    }
}

impl quic::RecvStream for H3ReceiveStream {
    type Buf = Bytes;

    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, StreamErrorIncoming>> {
        let data = ready!(self.stream.poll_next(cx, MAX_READ)).map_err(h3_stream_error)?;
        if data.as_ref().is_some_and(|data| !self.framing.takes(data)) {
            self.stream.stop(Code::H3_EXCESSIVE_LOAD.value());
            return Poll::Ready(Err(StreamErrorIncoming::Unknown("a frame is longer than 256 KiB".into())));
        }
        Poll::Ready(Ok(data))
    }

    fn stop_sending(&mut self, code: u64) {
        self.stream.stop(code);
    }

    fn recv_id(&self) -> StreamId {
        number(self.stream.id())
    }
}

/// A parser that follows frame boundaries. `h3` buffers every frame except DATA until it is complete, so lengths must
/// be limited.
struct FrameParser {
    part: FramePart,
    number: PartialVarint,
}

enum FramePart {
    /// The type of a unidirectional stream (RFC 9114 6.2).
    Purpose,
    /// The type of a frame.
    Type,
    /// The length of a frame, and whether the length is limited.
    Length(bool),
    /// The remaining bytes of a frame.
    Payload(u64),
    /// A stream without frames.
    Other,
}

impl FrameParser {
    fn for_uni_stream() -> FrameParser {
        FrameParser { part: FramePart::Purpose, number: PartialVarint::default() }
    }

    fn for_request() -> FrameParser {
        FrameParser { part: FramePart::Type, number: PartialVarint::default() }
    }

    /// Parses more bytes of the stream. Returns false if a frame is too long.
    fn takes(&mut self, mut data: &[u8]) -> bool {
        while let Some((first, rest)) = data.split_first() {
            if let FramePart::Payload(left) = &mut self.part {
                // Payload is skipped in one step, whatever its length.
                let skipped = usize::try_from(*left).unwrap_or(usize::MAX).min(data.len());
                (*left, data) = (*left - skipped as u64, &data[skipped..]);
                if *left == 0 {
                    self.part = FramePart::Type;
                }
                continue;
            }
            data = rest;
            let Some(number) = self.number.take(*first) else { continue };
            self.part = match self.part {
                FramePart::Purpose if number == CONTROL => FramePart::Type,
                FramePart::Type => FramePart::Length(number != DATA),
                // DATA may have any length, because `h3` does not buffer it.
                FramePart::Length(true) if number > MAX_FRAME => return false,
                FramePart::Length(_) => FramePart::Payload(number),
                FramePart::Purpose | FramePart::Payload(_) | FramePart::Other => FramePart::Other,
            };
            if matches!(self.part, FramePart::Payload(0)) {
                self.part = FramePart::Type;
            }
            if matches!(self.part, FramePart::Other) {
                break;
            }
        }
        true
    }
}

/// A partially received variable-length integer (RFC 9000 16).
#[derive(Default)]
struct PartialVarint {
    value: u64,
    left: u8,
}

impl PartialVarint {
    fn take(&mut self, byte: u8) -> Option<u64> {
        (self.value, self.left) = match self.left {
            0 => (u64::from(byte & 0x3f), (1 << (byte >> 6)) - 1),
            left => (self.value << 8 | u64::from(byte), left - 1),
        };
        (self.left == 0).then_some(self.value)
    }
}

/// The two halves of a stream. See [`H3Connection`] for an example.
pub struct H3BidiStream<B> {
    send: H3SendStream<B>,
    receive: H3ReceiveStream,
}

impl<B> H3BidiStream<B> {
    fn new((send, receive): (SendStream, ReceiveStream)) -> H3BidiStream<B> {
        H3BidiStream {
            send: H3SendStream::new(send),
            receive: H3ReceiveStream::new(receive, FrameParser::for_request()),
        }
    }
}

impl<B: Buf> quic::BidiStream<B> for H3BidiStream<B> {
    type SendStream = H3SendStream<B>;
    type RecvStream = H3ReceiveStream;

    fn split(self) -> (H3SendStream<B>, H3ReceiveStream) {
        (self.send, self.receive)
    }
}

impl<B: Buf> quic::SendStream<B> for H3BidiStream<B> {
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

impl<B> quic::RecvStream for H3BidiStream<B> {
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

fn h3_connection_error(closed: Closed) -> ConnectionErrorIncoming {
    match closed {
        Closed::ByPeer { code, .. } => ConnectionErrorIncoming::ApplicationClose { error_code: code },
        Closed::TimedOut => ConnectionErrorIncoming::Timeout,
        closed => ConnectionErrorIncoming::Undefined(Arc::new(closed)),
    }
}

fn h3_stream_error(error: StreamError) -> StreamErrorIncoming {
    match error {
        StreamError::Closed(closed) => {
            StreamErrorIncoming::ConnectionErrorIncoming { connection_error: h3_connection_error(closed) }
        }
        StreamError::Reset(error_code) | StreamError::Stopped(error_code) => {
            StreamErrorIncoming::StreamTerminated { error_code }
        }
        error => StreamErrorIncoming::Unknown(error.into()),
    }
}

/// The ALPN identifier of HTTP/3 (RFC 9114 3.1), for `alpn_protocols` of rustls.
pub const ALPN: &[u8] = b"h3";
/// Maximum bytes per read.
const MAX_READ: usize = 64 << 10;
/// Maximum length of a frame that is buffered until complete.
const MAX_FRAME: u64 = 256 << 10;
/// The type of the control stream, and the type of DATA frames (RFC 9114 6.2.1, 7.2.1).
const CONTROL: u64 = 0;
const DATA: u64 = 0;

#[cfg(test)]
mod tests {
    use super::*;

    /// The result does not depend on how the bytes are split.
    #[test]
    fn frames_except_data_are_bounded() {
        let data = [&[0x00, 0x80, 0x0f, 0xff, 0xff][..], &[7; 0x0f_ffff]].concat();
        let longest = [&[0x01, 0x80, 0x04, 0x00, 0x00][..], &[7; 256 << 10]].concat();
        let too_long = [0x21, 0x80, 0x04, 0x00, 0x01];
        let whole = [&data[..], &[0x01, 0x00], &longest, &[0x40, 0x21, 0x01, 0x07], &too_long].concat();
        for cut in [1, 2, 3, 7, 1000, 1 << 20] {
            let mut framing = FrameParser::for_request();
            let mut parts = whole.chunks(cut);
            let taken = parts.by_ref().take_while(|part| framing.takes(part)).count();
            assert!(taken == whole.len().div_ceil(cut) - 1 && parts.next().is_none(), "by {cut}: {taken}");
        }
    }

    #[test]
    fn only_control_streams_among_uni_streams_have_frames() {
        assert!(!FrameParser::for_uni_stream().takes(&[0x00, 0x04, 0x80, 0x04, 0x00, 0x01]));
        assert!(FrameParser::for_uni_stream().takes(&[0x02, 0x04, 0x80, 0x04, 0x00, 0x01]));
    }
}
