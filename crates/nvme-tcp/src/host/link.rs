//! A stream with its queue.

use super::Offload;
use super::connector::Connector;
use super::error::{HostError, Unsuitable};
use super::receive_offload::ReceiveOffload;
use crate::context_request::SharedCounters;
use crate::core::queue::{CommandData, FinishedCommand, Queue, QueueConfig, QueueError, Submission};
use crate::pdu_sender::PduSender;
use crate::wire::Command;
use core::future::poll_fn;
use core::task::{Context, Poll};
use core::time::Duration;
use offload_api::SegmentStream;
use offload_base::{Alarm, Instant, Timers, time};
use std::io;
use std::sync::Arc;
use tracing::Span;

pub(super) struct QueueLink {
    below: OffloadStream,
    pub(super) queue: Queue,
    timers: Arc<dyn Timers>,
    alarm: Box<dyn Alarm>,
    room: usize,
}

/// A stream with its device contexts. Dropping it releases the contexts.
struct OffloadStream {
    stream: Box<dyn SegmentStream>,
    offload: ReceiveOffload,
    sending: PduSender,
}

impl OffloadStream {
    fn end_offload(&mut self) {
        self.offload.end(&mut *self.stream);
        self.sending.end(&mut *self.stream);
    }
}

impl Drop for OffloadStream {
    fn drop(&mut self) {
        self.end_offload();
    }
}

impl QueueLink {
    /// Opens a stream and the NVMe/TCP connection on it.
    pub(super) async fn open(
        connector: &dyn Connector,
        timers: &Arc<dyn Timers>,
        config: QueueConfig,
        timeout: Duration,
    ) -> Result<QueueLink, HostError> {
        let mut connecting = connector.connect();
        let mut alarm = timers.alarm();
        let deadline = timers.now() + timeout;
        let stream = poll_fn(|cx| match connecting.as_mut().poll(cx) {
            Poll::Ready(stream) => Poll::Ready(stream.map_err(HostError::from)),
            Poll::Pending => alarm.poll(cx, Some(deadline)).map(|()| Err(HostError::TimedOut("opening a stream"))),
        })
        .await?;
        let queue = Queue::new(timers.now(), config);
        let below = OffloadStream { stream, offload: ReceiveOffload::default(), sending: PduSender::default() };
        let mut link = QueueLink { below, queue, timers: timers.clone(), alarm, room: 0 };
        link.until(|queue| queue.is_open().then_some(())).await?;
        Ok(link)
    }

    /// Executes a command on a queue without other commands. A failure status is an error.
    pub(super) async fn execute(
        &mut self,
        name: &'static str,
        command: Command,
        payload: CommandData,
    ) -> Result<FinishedCommand, HostError> {
        self.execute_among(name, command, payload, drop).await
    }

    /// Executes a command on a queue with other commands, which are passed to `settle` as they end.
    pub(super) async fn execute_among(
        &mut self,
        name: &'static str,
        command: Command,
        payload: CommandData,
        mut settle: impl FnMut(FinishedCommand),
    ) -> Result<FinishedCommand, HostError> {
        let submission = Submission { command, payload };
        let now = self.timers.now();
        let Ok(id) = self.queue.submit(now, submission) else {
            return Err(HostError::Unsuitable(Unsuitable::NoRoom));
        };
        let finished = self
            // Other commands may finish first and must reach their callers.
            .until(|queue| {
                loop {
                    match queue.poll_finished()? {
                        finished if finished.id == id => return Some(finished),
                        other => settle(other),
                    }
                }
            })
            .await?;
        let completion = finished.completion;
        if completion.status.is_success() {
            Ok(finished)
        } else {
            Err(HostError::Refused { command: name, status: completion.status, result: completion.result })
        }
    }

    /// Performs one round of work. Returns false if there was nothing to do. The task is also woken at `also`.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, also: Option<Instant>) -> Result<bool, HostError> {
        self.queue.handle_timeout(self.timers.now());
        let OffloadStream { stream, offload, sending } = &mut self.below;
        let mut progress = offload.poll(cx, &mut **stream, &mut self.queue, sending);
        self.queue.poll_returned_buffers(cx.waker());
        for _ in 0..SEGMENTS {
            if self.queue.error().is_some() {
                break;
            }
            // The device can begin only where no byte has arrived, so it is asked when the stream is drained.
            let Poll::Ready(segment) = self.below.stream.poll_segment(cx)? else {
                self.below.offload.ask(&mut *self.below.stream, &self.queue);
                break;
            };
            progress = true;
            match segment {
                Some(mut segment) => {
                    self.below.stream.consume(segment.data.len());
                    self.below.offload.emulate(&mut segment.meta);
                    self.queue.handle_segment(segment);
                }
                None => self.queue.handle_end(),
            }
        }
        let OffloadStream { stream, offload, sending } = &mut self.below;
        // Buffers must be with the device before the command that reads into them is sent.
        offload.execute_orders(&mut **stream, &mut self.queue, sending.keys());
        progress |= self.transmit(cx)?;
        let OffloadStream { stream, sending, .. } = &mut self.below;
        sending.poll_arrived(cx, &mut **stream);
        if let Some(error) = self.queue.error() {
            return Err(error.clone().into());
        }
        if self.below.sending.take_erased() && self.queue.cannot_send() {
            // The data cannot be encrypted any more and would block the stream. Other commands continue on a new
            // connection.
            let why = "a volume was erased while its data were on their way";
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, why).into());
        }
        let due = time::earliest(self.queue.next_event(), also);
        progress |= self.alarm.poll(cx, due).is_ready();
        Ok(progress)
    }

    /// Has the device do its part, if there is one that can.
    pub(super) fn offload(&mut self, offload: Offload, counters: &SharedCounters, span: &Span) {
        self.below.offload.set_offload(offload, counters, span);
        self.below.sending.set_digests_by_device(offload == Offload::PlaceAndCheck, counters, span);
        self.queue.set_emulation(offload.is_emulation());
    }

    /// Closes the stream, waits for the end of its work, and returns the queue. Without `last_words`, pending data are
    /// dropped, because another connection will send the commands again.
    pub(super) async fn finish(mut self, last_words: bool) -> Queue {
        self.below.end_offload();
        if last_words {
            self.below.stream.finish();
        } else {
            self.below.stream.abort();
        }
        // A peer that acknowledges nothing must not keep the buffers forever.
        let deadline = self.timers.now() + FINISH_TIME;
        poll_fn(|cx| match self.below.stream.poll_committed(cx) {
            Poll::Ready(_) => Poll::Ready(()),
            Poll::Pending => self.alarm.poll(cx, Some(deadline)),
        })
        .await;
        self.queue
    }

    /// Works until `ready` returns a value.
    async fn until<T>(&mut self, mut ready: impl FnMut(&mut Queue) -> Option<T>) -> Result<T, HostError> {
        poll_fn(|cx| {
            loop {
                if let Some(value) = ready(&mut self.queue) {
                    return Poll::Ready(Ok(value));
                }
                match self.poll(cx, None) {
                    Ok(true) => {}
                    Ok(false) => return Poll::Pending,
                    Err(error) => return Poll::Ready(Err(error)),
                }
            }
        })
        .await
    }

    fn transmit(&mut self, cx: &mut Context<'_>) -> Result<bool, HostError> {
        let mut progress = false;
        loop {
            // A termination PDU is short and must be sent now, even without room.
            let last_word = matches!(self.queue.error(), Some(QueueError::Misbehaved(_)));
            if self.room == 0 && !last_word {
                match self.below.stream.poll_room(cx)? {
                    Poll::Ready(room) => self.room = room,
                    Poll::Pending => break,
                }
            }
            let Some(pdu) = self.queue.poll_transmit() else { break };
            progress = true;
            self.room = self.room.saturating_sub(pdu.len() as usize);
            self.below.offload.note_unit();
            self.below.sending.send(&mut *self.below.stream, pdu);
        }
        if progress {
            self.below.stream.flush();
        }
        Ok(progress)
    }
}

/// Maximum number of segments received before sending.
const SEGMENTS: usize = 32;
/// Time for a stream to send its pending data.
const FINISH_TIME: Duration = Duration::from_secs(2);
