//! The stream as the transport of a protocol above: plaintext ranges keep the sequence numbers of their wire bytes and
//! the device's verdicts.

use super::upper_contexts::{ContextAvailability, UpperContexts};
use super::{DirectionState, KtlsStream, WriteOutcome};
use bytes::Bytes;
use core::task::{Context, Poll, Waker, ready};
use offload_api::{
    Contexts, DeviceEvent, FlowKey, Handle, Layer, NextPiece, RxSegment, Sealer, SegmentStream, SendProgress,
    SentBytes, TxTag, engines,
};
use offload_base::Seq;
use offload_base::tasks::TaskRole;
use std::io;

impl<S: SegmentStream> SegmentStream for KtlsStream<S> {
    fn poll_segment(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<RxSegment>>> {
        ready!(self.poll_plain(cx))?;
        Poll::Ready(Ok(self.receive.take()))
    }

    fn furthest_seq(&self) -> Option<Seq> {
        self.stream.furthest_seq()
    }

    /// Returns the start of the next record's content, if no record is partly received. This is a guess: a ticket or a
    /// KeyUpdate may come first. A context that begins here must then resynchronize as after a loss.
    fn next_seq(&self) -> Option<Seq> {
        if let Some(seq) = self.receive.content_seq() {
            return Some(seq);
        }
        let next = self.stream.next_seq().filter(|_| self.receive.records().pending() == 0)?;
        Some(next + self.receive.records().key().format().prefix_len() as u32)
    }

    fn consume(&mut self, bytes: usize) {
        self.credit(bytes);
    }

    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.watch_device(TaskRole::Writer, cx);
        self.send.check()?;
        let room = self.stream.poll_room(cx);
        self.as_writer(room, cx)
    }

    /// Writes `data` as records and returns the sequence number of the first content byte. The units in `tag` stay with
    /// the records for a device. A context in `tag` processes the content before TLS does.
    fn send(&mut self, data: Bytes, tag: TxTag) -> Seq {
        let first = self.send_pieces(&mut core::iter::once((data, tag)));
        first.or(self.send.next()).unwrap_or_default()
    }

    fn seq_after(&self, bytes: u32) -> Option<Seq> {
        self.next_seq().filter(|_| bytes == 0)
    }

    /// Writes pieces that may share records.
    fn send_pieces(&mut self, pieces: &mut dyn Iterator<Item = (Bytes, TxTag)>) -> Option<Seq> {
        // An error here is reported by poll_room.
        if self.send.is_open() { self.write_pieces(&mut |_| pieces.next()).ok().flatten() } else { None }
    }

    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        listener: &Waker,
        pieces: &mut NextPiece<'_>,
    ) -> Poll<io::Result<SendProgress>> {
        let mut listens = Context::from_waker(listener);
        while self.writes_at_once(0) {
            self.waiting.wait(TaskRole::Listener, &listens);
            // Events come first: data for a lost context would be sealed in software.
            if let Some(event) = self.above.next_event() {
                return Poll::Ready(Ok(SendProgress::News(event)));
            }
            if let WriteOutcome::Written(first) = ready!(self.poll_write_at_once(cx, pieces))? {
                return Poll::Ready(Ok(SendProgress::Queued(first)));
            }
        }
        if let Poll::Ready(event) = self.poll_device_event(&mut listens) {
            return Poll::Ready(Ok(SendProgress::News(event)));
        }
        ready!(self.poll_room(cx))?;
        let first = self.write_pieces(pieces)?;
        self.stream.flush();
        Poll::Ready(Ok(SendProgress::Queued(first)))
    }

    fn flush(&mut self) {
        self.stream.flush();
    }

    fn poll_acked(&mut self, cx: &mut Context<'_>, offset: u64) -> Poll<io::Result<()>> {
        if offset > self.send.acks().content() {
            // After an end, further data will never be sent.
            self.send.check()?;
        }
        let acked = self.stream.poll_acked(cx, self.send.acks().wire_offset(offset));
        ready!(self.as_writer(acked, cx))?;
        self.send.acks().forget(offset);
        Poll::Ready(Ok(()))
    }

    fn poll_committed(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let committed = self.stream.poll_committed(cx);
        self.as_writer(committed, cx)
    }

    fn sent(&self) -> SentBytes {
        self.stream.sent()
    }

    fn finish(&mut self) {
        self.finish_writing();
    }

    fn abort(&mut self) {
        let aborted = DirectionState::Lost(io::ErrorKind::ConnectionAborted);
        self.send.end(aborted.clone());
        self.tx.abort_rekey(&mut self.counters);
        // Queued data will never leave, so the context is no longer needed.
        self.send.return_to_software();
        if self.receive.is_open() || self.receive.has_content() {
            // The peer did not end the stream, so the direction must not look closed.
            self.receive.discard();
            self.end_reading(aborted);
        }
        self.release_unused_contexts();
        self.note_places();
        self.stream.abort();
        self.waiting.wake_all();
    }

    /// Installs a sealer of a layer above at the transport. TLS installs its own sealer.
    fn install(&mut self, layer: Layer, sealer: Box<dyn Sealer>) {
        if let Some(layer) = layer.above() {
            self.stream.install(layer, sealer);
        }
    }

    fn release(&mut self, context: Handle) {
        if context.engine() != engines::TLS {
            self.stream.release(context);
        }
    }

    fn control(&mut self, f: &mut dyn FnMut(FlowKey, &mut dyn Contexts)) -> bool {
        let opens = ContextAvailability::from_flags(self.receive_context().is_some(), self.rx.wants_context());
        let seals = ContextAvailability::from_flags(self.transmit_context().is_some(), self.tx.wants_context());
        // Events are queued only for a protocol that uses the device.
        if (opens, seals) != (ContextAvailability::Never, ContextAvailability::Never) {
            self.above.note_watching();
        }
        self.stream.control(&mut |flow, contexts| f(flow, &mut UpperContexts { contexts, opens, seals }))
    }

    fn poll_device_event(&mut self, cx: &mut Context<'_>) -> Poll<DeviceEvent> {
        // The transport reports each event once, so TLS must process events before they are passed on.
        self.poll_events(Some(TaskRole::Listener), cx);
        self.above.next_event().map_or(Poll::Pending, Poll::Ready)
    }
}
