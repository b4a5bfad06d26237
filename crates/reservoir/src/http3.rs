//! HTTP/3 bodies (RFC 9114) for client and server, over request streams of crate `h3` on `quic-offload`.
//!
//! Invariant: a stream that is given up, by either end or by its watch, is stopped or reset, so that its body never
//! looks complete.

use crate::attributes;
use crate::body::Body;
use crate::watch::ProgressDeadline;
use bytes::{Buf, Bytes};
use core::pin::Pin;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Context, Poll, ready};
use h3::error::{Code, StreamError};
use http_body_util::BodyExt;
use http_rules::http3::{BodyLength, MalformedRequest};
use hyper::HeaderMap;
use hyper::body::{Body as HttpBody, Frame};
use hyper::header::{CONTENT_LENGTH, HeaderValue};
use offload_base::time::Alarm;
use quic_offload::http3::{H3ReceiveStream, H3SendStream};
use std::io;
use std::sync::Arc;

/// The receiving side of a request stream, at a client or a server.
pub(crate) trait BodySource: Send + Unpin {
    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, StreamError>>;
    fn poll_trailers(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<HeaderMap>, StreamError>>;
    fn stop(&mut self, code: Code);
}

/// The sending side of a request stream, at a client or a server.
pub(crate) trait BodySink: Send {
    fn data(&mut self, data: Bytes) -> impl Future<Output = Result<(), StreamError>> + Send;
    fn trailers(&mut self, fields: HeaderMap) -> impl Future<Output = Result<(), StreamError>> + Send;
    fn end(&mut self) -> impl Future<Output = Result<(), StreamError>> + Send;
}

macro_rules! ends_of {
    ($side:ident) => {
        impl BodySource for h3::$side::RequestStream<H3ReceiveStream, Bytes> {
            fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, StreamError>> {
                self.poll_recv_data(cx).map_ok(|data| data.map(|mut data| data.copy_to_bytes(data.remaining())))
            }

            fn poll_trailers(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<HeaderMap>, StreamError>> {
                self.poll_recv_trailers(cx)
            }

            fn stop(&mut self, code: Code) {
                self.stop_sending(code);
            }
        }

        impl BodySink for h3::$side::RequestStream<H3SendStream<Bytes>, Bytes> {
            async fn data(&mut self, data: Bytes) -> Result<(), StreamError> {
                self.send_data(data).await
            }

            async fn trailers(&mut self, fields: HeaderMap) -> Result<(), StreamError> {
                self.send_trailers(fields).await
            }

            async fn end(&mut self) -> Result<(), StreamError> {
                self.finish().await
            }
        }
    };
}
ends_of!(client);
ends_of!(server);

/// A received body with a progress deadline.
pub(crate) struct IncomingBody<S: BodySource> {
    stream: S,
    watch: ProgressDeadline,
    alarm: Box<dyn Alarm>,
    /// The error code sent if the rest of the body is not wanted.
    unwanted: Code,
    /// The required length of the body, and the flag of a malformed body.
    length: BodyLength,
    malformed: Arc<AtomicBool>,
    /// A guard that must live as long as the body, such as a permit.
    _held: Box<dyn Send>,
    stage: BodyStage,
}

enum BodyStage {
    Data,
    Trailers,
    Ended,
}

impl<S: BodySource> IncomingBody<S> {
    pub(crate) fn new(stream: S, watch: ProgressDeadline, unwanted: Code) -> IncomingBody<S> {
        let alarm = watch.alarm();
        let (length, malformed) = (BodyLength::default(), Arc::default());
        IncomingBody { stream, watch, alarm, unwanted, length, malformed, _held: Box::new(()), stage: BodyStage::Data }
    }

    /// Makes reads fail if the body has another length or malformed trailers. `malformed` is set first.
    pub(crate) fn checked(mut self, length: BodyLength, malformed: Arc<AtomicBool>) -> IncomingBody<S> {
        (self.length, self.malformed) = (length, malformed);
        self
    }

    /// Keeps `held` alive until the body has arrived or is dropped.
    pub(crate) fn holding(self, held: impl Send + 'static) -> IncomingBody<S> {
        let mut this = self;
        // `Drop` forbids a struct update here.
        this._held = Box::new(held);
        this
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Frame<Bytes>>>> {
        if matches!(self.stage, BodyStage::Data) {
            if let Some(data) = ready!(self.stream.poll_data(cx)).map_err(io::Error::other)? {
                self.watch.moved(data.len(), false);
                // A body longer than its Content-Length is malformed (RFC 9114 section 4.1.2).
                let counted = self.length.count(data.len());
                return Poll::Ready(self.well_formed(counted).map(|()| Some(Frame::data(data))));
            }
            let whole = self.length.check_end();
            self.well_formed(whole)?;
            // A body shorter than its Content-Length was rejected above.
            self.stage = BodyStage::Trailers;
        }
        let Some(fields) = ready!(self.stream.poll_trailers(cx)).map_err(io::Error::other)? else {
            return Poll::Ready(Ok(None));
        };
        let checked = http_rules::http3::check_trailers(&fields);
        Poll::Ready(self.well_formed(checked).map(|()| Some(Frame::trailers(fields))))
    }

    fn well_formed(&mut self, checked: Result<(), MalformedRequest>) -> io::Result<()> {
        checked.map_err(|malformed| {
            // Set before the error, because the server then resets the stream instead of answering.
            self.malformed.store(true, Ordering::Relaxed);
            self.stream.stop(Code::H3_MESSAGE_ERROR);
            io::Error::new(io::ErrorKind::InvalidData, malformed)
        })
    }
}

impl<S: BodySource> HttpBody for IncomingBody<S> {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let this = &mut *self;
        if matches!(this.stage, BodyStage::Ended) {
            return Poll::Ready(None);
        }
        // Only a pending body can be late: data that arrived are delivered first.
        let Poll::Ready(next) = this.poll_next(cx) else {
            return this.watch.poll_late(&mut *this.alarm, cx).map(|late| Some(Err(late)));
        };
        if !matches!(&next, Ok(Some(frame)) if frame.is_data()) {
            this.stage = BodyStage::Ended;
        }
        Poll::Ready(next.transpose())
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.stage, BodyStage::Ended)
    }
}

impl<S: BodySource> Drop for IncomingBody<S> {
    fn drop(&mut self) {
        if !matches!(self.stage, BodyStage::Ended) {
            // The peer would otherwise send the rest of the body to nobody.
            self.stream.stop(self.unwanted);
        }
    }
}

/// Sends a whole body and waits until the peer has acknowledged the data.
pub(crate) async fn send(stream: &mut impl BodySink, mut body: Body, watch: &ProgressDeadline) -> io::Result<()> {
    while let Some(frame) = body.frame().await {
        match frame?.into_data() {
            Ok(mut data) => {
                while data.has_remaining() {
                    // Small pieces make progress visible to the deadline.
                    let piece = data.split_to(data.len().min(PIECE));
                    let len = piece.len();
                    stream.data(piece).await.map_err(io::Error::other)?;
                    watch.moved(len, false);
                }
            }
            Err(frame) => {
                if let Ok(fields) = frame.into_trailers() {
                    stream.trailers(fields).await.map_err(io::Error::other)?;
                }
            }
        }
    }
    stream.end().await.map_err(io::Error::other)
}

/// Adds Content-Length to a message head if the body's length is known. (In HTTP/1.1 hyper does this.)
pub(crate) fn tell_length(fields: &mut HeaderMap, body: &Body) {
    if let Some(length) = body.size_hint().exact()
        && !fields.contains_key(CONTENT_LENGTH)
    {
        fields.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
}

/// Maximum length of a message head.
pub(crate) const MAX_HEAD_BYTES: u64 = 2 * attributes::MAX_FIELD_BYTES as u64;
/// Maximum length of a piece given to a stream.
const PIECE: usize = 64 << 10;
