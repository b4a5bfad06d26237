//! HTTP/3 (RFC 9114) as both sides have it: bodies on request streams, by crate `h3` over `quic-offload`.
//!
//! Invariant: a stream that is given up, by either side or by its watch, is stopped or reset, and never looks whole.

use crate::attributes;
use crate::body::Body;
use crate::watch::Watch;
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

/// The receiving end of a request stream, at a client or at a server.
pub(crate) trait BodySource: Send + Unpin {
    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, StreamError>>;
    fn poll_trailers(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<HeaderMap>, StreamError>>;
    fn stop(&mut self, code: Code);
}

/// The sending end of a request stream, at a client or at a server.
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

/// A body that arrives, at the pace that its watch wants.
pub(crate) struct Arriving<S: BodySource> {
    stream: S,
    watch: Watch,
    alarm: Box<dyn Alarm>,
    /// What the other side is told if nobody wants the rest.
    unwanted: Code,
    /// The required length of the body, and the flag of a malformed body.
    length: BodyLength,
    malformed: Arc<AtomicBool>,
    /// What has to be there as long as the body.
    _held: Box<dyn Send>,
    stage: Stage,
}

enum Stage {
    Data,
    Trailers,
    Ended,
}

impl<S: BodySource> Arriving<S> {
    pub(crate) fn new(stream: S, watch: Watch, unwanted: Code) -> Arriving<S> {
        let alarm = watch.alarm();
        let (length, malformed) = (BodyLength::default(), Arc::default());
        Arriving { stream, watch, alarm, unwanted, length, malformed, _held: Box::new(()), stage: Stage::Data }
    }

    /// Makes reads fail if the body has another length or malformed trailers; they set `malformed` first.
    pub(crate) fn checked(mut self, length: BodyLength, malformed: Arc<AtomicBool>) -> Arriving<S> {
        (self.length, self.malformed) = (length, malformed);
        self
    }

    /// Keeps something until all has arrived, or nobody wants more.
    pub(crate) fn holding(self, held: impl Send + 'static) -> Arriving<S> {
        let mut this = self;
        this._held = Box::new(held);
        this
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Frame<Bytes>>>> {
        if matches!(self.stage, Stage::Data) {
            if let Some(data) = ready!(self.stream.poll_data(cx)).map_err(io::Error::other)? {
                self.watch.moved(data.len(), false);
                let counted = self.length.count(data.len());
                return Poll::Ready(self.well_formed(counted).map(|()| Some(Frame::data(data))));
            }
            let whole = self.length.check_end();
            self.well_formed(whole)?;
            self.stage = Stage::Trailers;
        }
        let Some(fields) = ready!(self.stream.poll_trailers(cx)).map_err(io::Error::other)? else {
            return Poll::Ready(Ok(None));
        };
        let checked = http_rules::http3::check_trailers(&fields);
        Poll::Ready(self.well_formed(checked).map(|()| Some(Frame::trailers(fields))))
    }

    fn well_formed(&mut self, checked: Result<(), MalformedRequest>) -> io::Result<()> {
        checked.map_err(|malformed| {
            self.malformed.store(true, Ordering::Relaxed);
            self.stream.stop(Code::H3_MESSAGE_ERROR);
            io::Error::new(io::ErrorKind::InvalidData, malformed)
        })
    }
}

impl<S: BodySource> HttpBody for Arriving<S> {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let this = &mut *self;
        if matches!(this.stage, Stage::Ended) {
            return Poll::Ready(None);
        }
        let Poll::Ready(next) = this.poll_next(cx) else {
            return this.watch.poll_late(&mut *this.alarm, cx).map(|late| Some(Err(late)));
        };
        if !matches!(&next, Ok(Some(frame)) if frame.is_data()) {
            this.stage = Stage::Ended;
        }
        Poll::Ready(next.transpose())
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.stage, Stage::Ended)
    }
}

impl<S: BodySource> Drop for Arriving<S> {
    fn drop(&mut self) {
        if !matches!(self.stage, Stage::Ended) {
            self.stream.stop(self.unwanted);
        }
    }
}

/// Sends a body to its end, and waits until it is acknowledged.
pub(crate) async fn send(stream: &mut impl BodySink, mut body: Body, watch: &Watch) -> io::Result<()> {
    while let Some(frame) = body.frame().await {
        match frame?.into_data() {
            Ok(mut data) => {
                while data.has_remaining() {
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

/// Tells the length of a body in a message's head, where it is known: in HTTP/1.1 hyper does.
pub(crate) fn tell_length(fields: &mut HeaderMap, body: &Body) {
    if let Some(length) = body.size_hint().exact()
        && !fields.contains_key(CONTENT_LENGTH)
    {
        fields.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
}

/// The longest head of a message.
pub(crate) const MOST_OF_A_HEAD: u64 = 2 * attributes::MOST_BYTES as u64;
/// What is handed to a stream at a time.
const PIECE: usize = 64 << 10;
