//! The stream as a transport for a protocol above: ranges of plaintext that keep the sequence numbers of the bytes they
//! came in and what the device said about them.

use super::above::{AboveTls, When};
use super::{KtlsStream, Side, Turn};
use crate::tasks::Task;
use bytes::Bytes;
use core::task::{Context, Poll, ready};
use offload_api::{
    DeviceEvent, FlowKey, Handle, Layer, NetDevice, NextPiece, RxSegment, Sealer, SegmentStream, SendTurn, SentBytes, TxTag, engines,
};
use offload_base::Seq;
use std::collections::VecDeque;
use std::io;

impl<S: SegmentStream> SegmentStream for KtlsStream<S> {
    fn poll_segment(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<RxSegment>>> {
        ready!(self.poll_plain(cx))?;
        Poll::Ready(Ok(self.plain.pop_front()))
    }

    fn furthest_seq(&self) -> Option<Seq> {
        self.stream.furthest_seq()
    }

    /// Where the content of the next record begins, if none has begun. That is a guess: a ticket or a KeyUpdate may come
    /// first, and what was made to begin here then has to find its place, as after a loss.
    fn next_seq(&self) -> Option<Seq> {
        if let Some(range) = self.plain.front() {
            return Some(range.seq);
        }
        let next = self.stream.next_seq().filter(|_| self.receiver.pending() == 0)?;
        Some(next + self.receiver.key().format().prefix_len() as u32)
    }

    fn consume(&mut self, bytes: usize) {
        self.credit(bytes);
    }

    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.watch_device(Task::Writer, cx);
        self.check_writable()?;
        let room = self.stream.poll_room(cx);
        self.as_writer(room, cx)
    }

    /// Makes records of `data`; gives the sequence number of the first byte of their content. The units in `tag` stay
    /// with what a device is to seal, and a context in it works on the content before that.
    fn send(&mut self, data: Bytes, tag: TxTag) -> Seq {
        let first = self.send_pieces(&mut core::iter::once((data, tag)));
        first.or(self.next).unwrap_or_default()
    }

    fn seq_after(&self, bytes: u32) -> Option<Seq> {
        self.next_seq().filter(|_| bytes == 0)
    }

    /// Pieces share records, as far as these go.
    fn send_pieces(&mut self, pieces: &mut dyn Iterator<Item = (Bytes, TxTag)>) -> Option<Seq> {
        match self.write {
            // What went wrong is told by poll_room.
            Side::Open => self.write_pieces(pieces).ok().flatten(),
            _ => None,
        }
    }

    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        listener: &Waker,
        pieces: &mut NextPiece<'_>,
    ) -> Poll<io::Result<SendTurn>> {
        let mut listens = Context::from_waker(listener);
        while self.writes_at_once(0) {
            self.waiting.wait(Task::Listener, &listens);
            if let Some(event) = self.events_above.pop_front() {
                return Poll::Ready(Ok(SendTurn::News(event)));
            }
            if let Turn::Written(first) = ready!(self.poll_write_at_once(cx, pieces))? {
                return Poll::Ready(Ok(SendTurn::Queued(first)));
            }
        }
        if let Poll::Ready(event) = self.poll_device_event(&mut listens) {
            return Poll::Ready(Ok(SendTurn::News(event)));
        }
        ready!(self.poll_room(cx))?;
        let first = self.write_next(pieces)?;
        self.stream.flush();
        Poll::Ready(Ok(SendTurn::Queued(first)))
    }

    fn flush(&mut self) {
        self.stream.flush();
    }

    fn poll_acked(&mut self, cx: &mut Context<'_>, offset: u64) -> Poll<io::Result<()>> {
        if offset > self.acks.content {
            // After an end the rest will never be sent.
            self.check_writable()?;
        }
        let acked = self.stream.poll_acked(cx, self.acks.wire_offset(offset));
        ready!(self.as_writer(acked, cx))?;
        self.acks.forget(offset);
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
        let aborted = Side::Lost(io::ErrorKind::ConnectionAborted);
        self.write = aborted.clone();
        self.abort_transmit_rekey();
        // What is queued will never leave, so nobody needs the context any more.
        self.sender.come_back();
        if self.read == Side::Open || !self.plain.is_empty() {
            // Not an end that the peer told of.
            self.plain = VecDeque::new();
            self.end_reading(aborted);
        }
        self.give_back_unused();
        self.note_places();
        self.stream.abort();
        self.waiting.wake_all();
    }

    /// Goes below for the layers above; TLS brings its own.
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

    fn control(&mut self, f: &mut dyn FnMut(FlowKey, &mut dyn NetDevice)) -> bool {
        let opens = When::of(self.receive_context().is_some(), self.wants_receive_context());
        let seals = When::of(self.transmit_context().is_some(), self.waits_for_transmit_context());
        self.watched |= (opens, seals) != (When::Never, When::Never);
        self.stream.control(&mut |flow, device| f(flow, &mut AboveTls { device, opens, seals }))
    }

    fn poll_device_event(&mut self, cx: &mut Context<'_>) -> Poll<DeviceEvent> {
        // The transport tells each event once, and TLS must see it.
        self.poll_events(Some(Task::Listener), cx);
        self.events_above.pop_front().map_or(Poll::Pending, Poll::Ready)
    }
}

/// Tells the transport's offsets from the content's: which byte has to be acknowledged for a byte of content to be.
///
/// Invariant: in the order of their ends, and bounded; an entry that is dropped is answered for by the one after it,
/// so the answer may come late and never early.
#[derive(Debug)]
pub(super) struct AckLog {
    ends: VecDeque<(u64, u64)>,
    content: u64,
    wire: u64,
}

impl AckLog {
    /// A log for a stream that has `wire` bytes behind it.
    pub(super) fn new(wire: u64) -> AckLog {
        AckLog { ends: VecDeque::new(), content: 0, wire }
    }

    /// `bytes` more bytes were given to the transport.
    pub(super) fn wire(&mut self, bytes: usize) {
        self.wire += bytes as u64;
    }

    /// They ended a record with `content` bytes.
    pub(super) fn record(&mut self, content: usize) {
        self.content += content as u64;
        if self.ends.len() == ENDS_MAX {
            let mut index = 0;
            self.ends.retain(|_| {
                index += 1;
                index % 2 == 0
            });
        }
        self.ends.push_back((self.content, self.wire));
    }

    /// The transport's offset that stands for `offset` bytes of content.
    fn wire_offset(&self, offset: u64) -> u64 {
        let at = self.ends.partition_point(|(content, _)| *content < offset);
        match self.ends.get(at) {
            _ if offset == 0 => 0,
            Some((_, wire)) => *wire,
            None => self.wire.saturating_add(offset.saturating_sub(self.content)),
        }
    }

    /// The content before `offset` is acknowledged.
    fn forget(&mut self, offset: u64) {
        while self.ends.front().is_some_and(|(content, _)| *content <= offset) {
            self.ends.pop_front();
        }
    }
}

/// Ends kept: a kilobyte.
const ENDS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn content_is_never_said_to_be_acknowledged_early(lengths in prop::collection::vec(1usize..1000, 1..400)) {
            let mut log = AckLog::new(500);
            let mut exact = Vec::new();
            for length in lengths {
                log.wire(length + 22);
                log.record(length);
                exact.push((log.content, log.wire));
            }
            prop_assert!(log.ends.len() <= ENDS_MAX);
            prop_assert_eq!(log.wire_offset(0), 0);
            for (content, wire) in &exact {
                prop_assert!(log.wire_offset(*content) >= *wire);
                prop_assert!(log.wire_offset(*content) <= log.wire);
            }
            prop_assert_eq!(log.wire_offset(log.content), log.wire);
            prop_assert!(log.wire_offset(log.content + 1) > log.wire);
            prop_assert_eq!(log.wire_offset(u64::MAX), u64::MAX);
            log.forget(exact[0].0);
            prop_assert!(log.wire_offset(exact.last().unwrap().0) == log.wire);
        }
    }
}
