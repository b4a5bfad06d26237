//! The body of a request, with a deadline for each span of bytes.

use super::super::WebFailure;
use super::super::limits::MIN_OF_A_BODY;
use super::super::patience::{ConnectionStep, StepTimeout};
use bytes::{Buf, Bytes};
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use core::time::Duration;
use h3::error::Code;
use h3::server::RequestStream;
use http_body_util::BodyExt;
use http_rules::http3::{BodyLength, MalformedRequest, check_trailers};
use hyper::body::{Body as HttpBody, Frame};
use offload_base::{Alarm, Instant};
use offload_testbed::Runtime;
use quic_offload::http3::H3ReceiveStream;
use std::sync::Arc;

/// A request's body.
pub(super) struct RequestBody {
    stream: RequestStream<H3ReceiveStream, Bytes>,
    alarm: Box<dyn Alarm>,
    runtime: Arc<dyn Runtime>,
    span: Duration,
    since: Instant,
    moved: u64,
    length: BodyLength,
    malformed: Option<MalformedRequest>,
    stage: RequestBodyStage,
}

#[derive(Clone, Copy, PartialEq)]
enum RequestBodyStage {
    Data,
    Trailers,
    Ended,
}

impl RequestBody {
    pub(super) fn new(
        stream: RequestStream<H3ReceiveStream, Bytes>,
        runtime: Arc<dyn Runtime>,
        span: Duration,
        length: BodyLength,
    ) -> RequestBody {
        let (alarm, since) = (runtime.alarm(), runtime.now());
        RequestBody {
            stream,
            alarm,
            runtime,
            span,
            since,
            moved: 0,
            length,
            malformed: None,
            stage: RequestBodyStage::Data,
        }
    }

    /// Reads the body to its end, if its length is declared: only the whole body shows whether the request is
    /// malformed.
    pub(super) async fn discard(&mut self) -> Result<(), WebFailure> {
        while self.length.declared().is_some()
            && let Some(frame) = self.frame().await
        {
            frame?;
        }
        Ok(())
    }

    /// Returns the next data and counts its bytes. At the end, checks the trailers.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, WebFailure>> {
        if self.stage == RequestBodyStage::Data {
            if let Some(mut data) = ready!(self.stream.poll_recv_data(cx))? {
                let data = data.copy_to_bytes(data.remaining());
                let counted = self.length.count(data.len());
                self.well_formed(counted)?;
                return Poll::Ready(Ok(Some(data)));
            }
            let whole = self.length.check_end();
            self.well_formed(whole)?;
            self.stage = RequestBodyStage::Trailers;
        }
        if let Some(fields) = ready!(self.stream.poll_recv_trailers(cx))? {
            self.well_formed(check_trailers(&fields))?;
        }
        Poll::Ready(Ok(None))
    }

    fn well_formed(&mut self, checked: Result<(), MalformedRequest>) -> Result<(), MalformedRequest> {
        checked.inspect_err(|malformed| {
            self.malformed = Some(*malformed);
            self.stream.stop_sending(Code::H3_MESSAGE_ERROR);
        })
    }

    /// Returns the fault of the part of the body that was read.
    pub(super) fn malformed(&self) -> Option<MalformedRequest> {
        self.malformed
    }
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = WebFailure;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, WebFailure>>> {
        let this = &mut *self;
        if this.stage == RequestBodyStage::Ended {
            return Poll::Ready(None);
        }
        let Poll::Ready(data) = this.poll_next(cx) else {
            let deadline = this.since + this.span;
            return this.alarm.poll(cx, Some(deadline)).map(|()| Some(Err(StepTimeout(ConnectionStep::Body).into())));
        };
        if !matches!(data, Ok(Some(_))) {
            this.stage = RequestBodyStage::Ended;
        }
        let data = data?;
        // The deadline is renewed only by enough bytes, so that single bytes cannot keep a request alive.
        this.moved += data.as_ref().map_or(0, Bytes::len) as u64;
        if this.moved >= MIN_OF_A_BODY {
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
