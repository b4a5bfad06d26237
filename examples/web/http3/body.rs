//! What a client sends, for which it has so much time for each so many bytes.

use super::super::Failure;
use super::super::limits::LEAST_OF_A_BODY;
use super::super::patience::{Late, Step};
use bytes::{Buf, Bytes};
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;
use h3::error::Code;
use h3::server::RequestStream;
use hyper::body::{Body as HttpBody, Frame};
use offload_base::{Alarm, Instant};
use offload_testbed::Runtime;
use quic_offload::http3::Receiving;
use std::sync::Arc;

/// A request's body.
pub(super) struct RequestBody {
    stream: RequestStream<Receiving, Bytes>,
    alarm: Box<dyn Alarm>,
    runtime: Arc<dyn Runtime>,
    span: Duration,
    since: Instant,
    moved: u64,
    ended: bool,
}

impl RequestBody {
    pub(super) fn new(
        stream: RequestStream<Receiving, Bytes>,
        runtime: Arc<dyn Runtime>,
        span: Duration,
    ) -> RequestBody {
        let (alarm, since) = (runtime.alarm(), runtime.now());
        RequestBody { stream, alarm, runtime, span, since, moved: 0, ended: false }
    }
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = Failure;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        let this = &mut *self;
        if this.ended {
            return Poll::Ready(None);
        }
        let Poll::Ready(data) = this.stream.poll_recv_data(cx) else {
            let deadline = this.since + this.span;
            return this.alarm.poll(cx, Some(deadline)).map(|()| Some(Err(Late(Step::Body).into())));
        };
        this.ended = !matches!(data, Ok(Some(_)));
        let data = data?.map(|mut data| data.copy_to_bytes(data.remaining()));
        this.moved += data.as_ref().map_or(0, Bytes::len) as u64;
        if this.moved >= LEAST_OF_A_BODY {
            (this.moved, this.since) = (0, this.runtime.now());
        }
        Poll::Ready(data.map(|data| Ok(Frame::data(data))))
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        // RFC 9114 4.1: the rest of a request is not needed for an answer.
        self.stream.stop_sending(Code::H3_NO_ERROR);
    }
}
