//! The sending half of a stream: turns data into records and queues these.
//!
//! Invariant: a direction that ended stays so, and only alerts are queued after its end. Records of a key are left to a
//! device only while the transport has the sealer for that key.

use super::acks::AckLog;
use super::contexts::StreamContexts;
use super::offload::NotOffloaded;
use super::policy::RetransmitPolicy;
use super::records::{Cutter, DeviceRecords, RecordPieces};
use super::{DirectionState, WRITE_MAX};
use crate::counters::TlsCounters;
use crate::error::TlsError;
use crate::keys::UnsupportedKey;
use crate::record::send::{RecordContent, RecordSender};
use crate::record::{CONTENT_MAX, ContentType};
use crate::sealer::NoKey;
use bytes::Bytes;
use core::task::{Context, Poll, ready};
use offload_api::{DeviceEvent, Direction, Handle, Layer, NextPiece, SegmentStream, SendProgress, TlsKey, TxTag};
use offload_base::Seq;
use offload_base::tasks::WaitingTasks;
use std::io;

pub(super) struct SendHalf {
    side: DirectionState,
    sender: RecordSender,
    /// Sequence number of the next byte to queue. `None` before the first byte.
    next: Option<Seq>,
    acks: AckLog,
    record_size: usize,
    records_per_key: u64,
    pad_to: usize,
    /// Whether a KeyUpdate must precede the next data.
    update_owed: bool,
    /// Whether a KeyUpdate was sent since the last data.
    update_answered: bool,
}

/// The outcome of an immediate write.
#[expect(clippy::large_enum_variant, reason = "it is taken apart where it is returned to")]
pub(super) enum ImmediateWrite {
    /// The device has events; no data were written.
    News(DeviceEvent),
    /// Records are queued. Holds the sequence number of the first content byte, and content that must wait for another
    /// action.
    Written(Option<Seq>, Option<(RecordPieces, usize)>),
}

impl SendHalf {
    /// Creates the half. `next` is the sequence number of the next byte and the number of bytes sent, if known.
    pub(super) fn new(sender: RecordSender, next: Option<(Seq, u64)>) -> SendHalf {
        SendHalf {
            side: DirectionState::Open,
            sender,
            next: next.map(|(seq, _)| seq),
            acks: AckLog::new(next.map_or(0, |(_, sent)| sent)),
            record_size: CONTENT_MAX,
            records_per_key: u64::MAX,
            pad_to: 1,
            update_owed: false,
            update_answered: false,
        }
    }

    pub(super) fn side(&self) -> &DirectionState {
        &self.side
    }

    pub(super) fn is_open(&self) -> bool {
        self.side == DirectionState::Open
    }

    /// Ends the direction.
    pub(super) fn end(&mut self, end: DirectionState) {
        self.side = end;
    }

    /// Checks that the direction is open.
    ///
    /// # Errors
    /// The error that ended the direction, or `BrokenPipe` after closing.
    pub(super) fn check(&self) -> io::Result<()> {
        match &self.side {
            DirectionState::Open => Ok(()),
            ended => Err(ended.error().unwrap_or_else(|| io::ErrorKind::BrokenPipe.into())),
        }
    }

    /// Returns the context that seals records.
    pub(super) fn context(&self) -> Option<Handle> {
        self.sender.context()
    }

    /// Creates a context and leaves records to the device from the next record on.
    pub(super) fn add_context<S: SegmentStream>(
        &mut self,
        stream: &mut S,
        contexts: &mut StreamContexts,
    ) -> Result<Handle, NotOffloaded> {
        let SendHalf { sender, next, .. } = self;
        // Sending an empty buffer returns the sequence number of the next byte.
        let start = *next.get_or_insert_with(|| stream.send(Bytes::new(), TxTag::PLAIN));
        let handle = contexts.add(stream, Direction::Transmit, start, sender.number(), sender.key())?;
        // The sealer comes before the first record for the device, which may lose the context at any time.
        if let Some(sealer) = sender.sealer() {
            stream.install(Layer::FIRST, Box::new(sealer));
        }
        sender.hand_over(handle);
        Ok(handle)
    }

    /// Seals in software from the next record on. Returns true if a device sealed before.
    pub(super) fn return_to_software(&mut self) -> bool {
        self.sender.return_to_software()
    }

    /// Retires the present key: the transport may forget its sealer with the last byte of the key's records.
    pub(super) fn retire_sealer<S: SegmentStream>(&mut self, stream: &mut S) {
        if self.sender.forget_sealer() {
            stream.install(Layer::FIRST, Box::new(NoKey));
        }
    }

    pub(super) fn set_record_size(&mut self, bytes: usize) {
        self.record_size = bytes.clamp(1, CONTENT_MAX);
    }

    #[cfg(feature = "tokio")]
    pub(super) fn record_size(&self) -> usize {
        self.record_size
    }

    pub(super) fn set_padding(&mut self, bytes: usize) {
        self.pad_to = bytes.max(1);
        self.sender.set_pad_to(self.pad_to);
    }

    pub(super) fn set_records_per_key(&mut self, records: u64) {
        self.records_per_key = records.max(2);
        self.sender.lower_limit(self.records_per_key);
    }

    /// Returns whether the version has key updates.
    pub(super) fn has_key_updates(&self) -> bool {
        self.sender.has_key_updates()
    }

    /// Returns whether the key cannot protect even a KeyUpdate.
    pub(super) fn is_used_up(&self) -> bool {
        self.sender.is_used_up()
    }

    /// Returns whether a KeyUpdate must precede the next data.
    pub(super) fn owes_update(&self) -> bool {
        self.update_owed || self.sender.must_update()
    }

    /// Notes that the peer requested a KeyUpdate. RFC 8446 section 4.6.3: the reply comes before our next data at the
    /// latest, and one reply answers any number of requests. Returns true for the first request, which is answered at
    /// once; further requests wait for data, so that the peer cannot grow the send queue.
    pub(super) fn note_update_asked(&mut self) -> bool {
        self.update_owed = true;
        !self.update_answered
    }

    /// Creates a sender for `key` with this half's settings.
    pub(super) fn fresh(&self, key: TlsKey) -> Result<RecordSender, UnsupportedKey> {
        let mut fresh = RecordSender::new(0, key)?;
        fresh.set_pad_to(self.pad_to);
        Ok(fresh)
    }

    /// Continues with `fresh`. The peer knows the new key, and the old one protects no further records.
    pub(super) fn change_key<S: SegmentStream>(&mut self, stream: &mut S, fresh: RecordSender) {
        self.retire_sealer(stream);
        self.sender = fresh;
        self.sender.lower_limit(self.records_per_key);
        self.update_owed = false;
        self.update_answered = true;
    }

    /// Returns the number of bytes taken from a write of `length` bytes: all, or a multiple of the record size. The
    /// transport's room does not matter, so that record boundaries do not depend on timing.
    pub(super) fn write_len(&self, length: usize) -> usize {
        if length <= WRITE_MAX { length } else { WRITE_MAX / self.record_size * self.record_size }
    }

    /// Returns whether a write of `bytes` bytes consists only of records for a device.
    pub(super) fn writes_at_once(&self, bytes: usize) -> bool {
        self.side == DirectionState::Open
            && self.sender.context().is_some()
            && !self.update_owed
            && bytes.div_ceil(self.record_size) as u64 <= self.sender.records_left()
    }

    /// Returns device events, or frames and sends data, in one call under the transport's lock. Framing for a device is
    /// cheap enough to do under the lock; sealing in software is not.
    pub(super) fn poll_at_once<S: SegmentStream>(
        &mut self,
        stream: &mut S,
        cx: &mut Context<'_>,
        waiting: &WaitingTasks,
        policy: &mut RetransmitPolicy,
        counters: &mut TlsCounters,
        cutter: &mut Cutter<'_>,
    ) -> Poll<io::Result<ImmediateWrite>> {
        let SendHalf { sender, acks, .. } = self;
        let mut records = DeviceRecords::new(cutter, sender, acks, counters, policy);
        let first = match ready!(stream.poll_send(cx, waiting.waker_ref(), &mut |sent| records.next(sent)))? {
            SendProgress::Queued(first) => first,
            SendProgress::News(event) => return Poll::Ready(Ok(ImmediateWrite::News(event))),
        };
        let (wire, left) = records.end();
        let first = first.map(|first| {
            self.next = Some(first + wire as u32);
            self.update_answered = false;
            first + self.sender.prefix_len() as u32
        });
        Poll::Ready(Ok(ImmediateWrite::Written(first, left)))
    }

    /// Divides `pieces` into contents of records.
    pub(super) fn cutter<'a>(&self, pieces: &'a mut NextPiece<'a>) -> Cutter<'a> {
        Cutter::new(pieces, self.record_size)
    }

    /// Queues a record with `length` bytes of data. Returns the sequence number of its content.
    pub(super) fn data<S: SegmentStream>(
        &mut self,
        stream: &mut S,
        counters: &mut TlsCounters,
        content: RecordContent<'_>,
        length: usize,
    ) -> Result<Seq, TlsError> {
        let seq = self.record(stream, counters, ContentType::ApplicationData, content)?;
        self.update_answered = false;
        self.acks.record(length);
        Ok(seq)
    }

    /// Queues one record. Returns the sequence number of its content.
    pub(super) fn record<S: SegmentStream>(
        &mut self,
        stream: &mut S,
        counters: &mut TlsCounters,
        content_type: ContentType,
        content: RecordContent<'_>,
    ) -> Result<Seq, TlsError> {
        let SendHalf { sender, next, acks, .. } = self;
        // Digests must be filled in before the record is sealed. Without a device, the transport does both.
        if content.wants_digests()
            && sender.context().is_none()
            && let Some(sealer) = sender.sealer()
        {
            stream.install(Layer::FIRST, Box::new(sealer));
        }
        let mut pieces = RecordPieces::new();
        sender.record(content_type, content, counters, &mut |bytes, tag| pieces.push((bytes, tag)))?;
        let length: usize = pieces.iter().map(|(bytes, _)| bytes.len()).sum();
        // One call, because each call takes the lock of a shared transport.
        let first = stream.send_pieces(&mut pieces.into_iter()).unwrap_or_default();
        acks.wire(length);
        *next = Some(first + length as u32);
        Ok(first + sender.prefix_len() as u32)
    }

    /// Returns the sequence number of the next byte to queue. `None` before the first byte.
    pub(super) fn next(&self) -> Option<Seq> {
        self.next
    }

    /// Returns the map between content offsets and transport offsets.
    pub(super) fn acks(&mut self) -> &mut AckLog {
        &mut self.acks
    }
}
