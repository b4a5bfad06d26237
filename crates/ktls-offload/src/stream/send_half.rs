//! The half of a stream that sends: data become records, and records are queued.
//!
//! Invariant: a side that ended stays so, and nothing but alerts is queued behind its end. Each key's records are left to a
//! device only while the transport has the sealer for that key.

use super::acks::AckLog;
use super::contexts::Contexts;
use super::offload::NotOffloaded;
use super::policy::RetransmitPolicy;
use super::records::{Cutter, Pieces, Records};
use super::{Side, WRITE_MAX};
use crate::counters::TlsCounters;
use crate::error::TlsError;
use crate::keys::UnsupportedKey;
use crate::record::send::{Content, Sender};
use crate::record::{CONTENT_MAX, ContentType};
use crate::sealer::NoKey;
use bytes::Bytes;
use core::task::{Context, Poll, ready};
use offload_api::{DeviceEvent, Direction, Handle, Layer, NextPiece, SegmentStream, SendProgress, TlsKey, TxTag};
use offload_base::Seq;
use offload_base::tasks::WaitingTasks;
use std::io;

pub(super) struct SendHalf {
    side: Side,
    sender: Sender,
    /// Where the next byte queued goes, once a byte was queued.
    next: Option<Seq>,
    acks: AckLog,
    record_size: usize,
    records_per_key: u64,
    pad_to: usize,
    /// The peer is to get a KeyUpdate before the next data.
    update_owed: bool,
    /// It got one since the last data.
    update_answered: bool,
}

/// How far a turn of writing came.
#[expect(clippy::large_enum_variant, reason = "it is taken apart where it is returned to")]
pub(super) enum AtOnce {
    /// The device has news; nothing was written.
    News(DeviceEvent),
    /// Records are queued and leave; the sequence number of the first byte of content, and the content that has to wait
    /// for something else to happen.
    Written(Option<Seq>, Option<(Pieces, usize)>),
}

impl SendHalf {
    /// `next` says where the next byte goes and how many were sent before, if that is known.
    pub(super) fn new(sender: Sender, next: Option<(Seq, u64)>) -> SendHalf {
        SendHalf {
            side: Side::Open,
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

    pub(super) fn side(&self) -> &Side {
        &self.side
    }

    pub(super) fn is_open(&self) -> bool {
        self.side == Side::Open
    }

    /// Nothing more is written.
    pub(super) fn end(&mut self, end: Side) {
        self.side = end;
    }

    /// # Errors
    /// Why nothing can be written any more.
    pub(super) fn check(&self) -> io::Result<()> {
        match &self.side {
            Side::Open => Ok(()),
            ended => Err(ended.error().unwrap_or_else(|| io::ErrorKind::BrokenPipe.into())),
        }
    }

    /// The context that records are left to.
    pub(super) fn context(&self) -> Option<Handle> {
        self.sender.context()
    }

    /// Has a device seal from the next record on: its context, which begins there.
    pub(super) fn add_context<S: SegmentStream>(
        &mut self,
        stream: &mut S,
        contexts: &mut Contexts,
    ) -> Result<Handle, NotOffloaded> {
        let SendHalf { sender, next, .. } = self;
        // Nothing sent tells where something would go.
        let start = *next.get_or_insert_with(|| stream.send(Bytes::new(), TxTag::PLAIN));
        let handle = contexts.add(stream, Direction::Transmit, start, sender.number(), sender.key())?;
        if let Some(sealer) = sender.sealer() {
            stream.install(Layer::FIRST, Box::new(sealer));
        }
        sender.hand_over(handle);
        Ok(handle)
    }

    /// Seals here from the next record on. True if a device did so far.
    pub(super) fn come_back(&mut self) -> bool {
        self.sender.come_back()
    }

    /// The present key protects nothing more: the transport may forget it with its last byte.
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

    /// Whether the version knows key updates.
    pub(super) fn has_key_updates(&self) -> bool {
        self.sender.has_key_updates()
    }

    /// Whether not even a KeyUpdate can be protected any more.
    pub(super) fn is_used_up(&self) -> bool {
        self.sender.is_used_up()
    }

    /// Whether a KeyUpdate comes before the next data.
    pub(super) fn owes_update(&self) -> bool {
        self.update_owed || self.sender.must_update()
    }

    /// The peer asked for a KeyUpdate. RFC 8446 section 4.6.3: before our next data at the latest, and once for any number
    /// of requests. True: at once, which is so for the first; the peer cannot have the queue grow by asking on.
    pub(super) fn note_update_asked(&mut self) -> bool {
        self.update_owed = true;
        !self.update_answered
    }

    /// What seals with `key` as this half is to seal.
    pub(super) fn fresh(&self, key: TlsKey) -> Result<Sender, UnsupportedKey> {
        let mut fresh = Sender::new(0, key)?;
        fresh.set_pad_to(self.pad_to);
        Ok(fresh)
    }

    /// The peer knows of the key that `fresh` has, and nothing more is protected by the one before.
    pub(super) fn change_key<S: SegmentStream>(&mut self, stream: &mut S, fresh: Sender) {
        self.retire_sealer(stream);
        self.sender = fresh;
        self.sender.lower_limit(self.records_per_key);
        self.update_owed = false;
        self.update_answered = true;
    }

    /// How much of a write of `length` bytes is taken at once: all of it, or whole records. The transport's room has no
    /// part in it, so that record boundaries do not depend on that.
    pub(super) fn write_len(&self, length: usize) -> usize {
        if length <= WRITE_MAX { length } else { WRITE_MAX / self.record_size * self.record_size }
    }

    /// Whether a write of `bytes` bytes is records for a device and nothing else.
    pub(super) fn writes_at_once(&self, bytes: usize) -> bool {
        self.side == Side::Open
            && self.sender.context().is_some()
            && !self.update_owed
            && bytes.div_ceil(self.record_size) as u64 <= self.sender.records_left()
    }

    /// Gives the device's news, or makes records of data and has them leave, at once for a transport behind a lock.
    /// (Records for a device cost next to nothing to make. What is sealed here is sealed while nobody waits for a lock.)
    pub(super) fn poll_at_once<S: SegmentStream>(
        &mut self,
        stream: &mut S,
        cx: &mut Context<'_>,
        waiting: &WaitingTasks,
        policy: &mut RetransmitPolicy,
        counters: &mut TlsCounters,
        cutter: &mut Cutter<'_>,
    ) -> Poll<io::Result<AtOnce>> {
        let SendHalf { sender, acks, .. } = self;
        let mut records = Records::new(cutter, sender, acks, counters, policy);
        let first = match ready!(stream.poll_send(cx, waiting.waker_ref(), &mut |sent| records.next(sent)))? {
            SendProgress::Queued(first) => first,
            SendProgress::News(event) => return Poll::Ready(Ok(AtOnce::News(event))),
        };
        let (wire, left) = records.end();
        let first = first.map(|first| {
            self.next = Some(first + wire as u32);
            self.update_answered = false;
            first + self.sender.prefix_len() as u32
        });
        Poll::Ready(Ok(AtOnce::Written(first, left)))
    }

    /// Cuts `pieces` into contents of records.
    pub(super) fn cutter<'a>(&self, pieces: &'a mut NextPiece<'a>) -> Cutter<'a> {
        Cutter::new(pieces, self.record_size)
    }

    /// Queues a record of `length` bytes of data; gives the sequence number of its content.
    pub(super) fn data<S: SegmentStream>(
        &mut self,
        stream: &mut S,
        counters: &mut TlsCounters,
        content: Content<'_>,
        length: usize,
    ) -> Result<Seq, TlsError> {
        let seq = self.record(stream, counters, ContentType::ApplicationData, content)?;
        self.update_answered = false;
        self.acks.record(length);
        Ok(seq)
    }

    /// Queues one record; gives the sequence number of its content.
    pub(super) fn record<S: SegmentStream>(
        &mut self,
        stream: &mut S,
        counters: &mut TlsCounters,
        content_type: ContentType,
        content: Content<'_>,
    ) -> Result<Seq, TlsError> {
        let SendHalf { sender, next, acks, .. } = self;
        // Digests that a device was to make come before the record is sealed: without the device, the transport does both.
        if content.wants_digests()
            && sender.context().is_none()
            && let Some(sealer) = sender.sealer()
        {
            stream.install(Layer::FIRST, Box::new(sealer));
        }
        let mut pieces = Pieces::new();
        sender.record(content_type, content, counters, &mut |bytes, tag| pieces.push((bytes, tag)))?;
        let length: usize = pieces.iter().map(|(bytes, _)| bytes.len()).sum();
        let first = stream.send_pieces(&mut pieces.into_iter()).unwrap_or_default();
        acks.wire(length);
        *next = Some(first + length as u32);
        Ok(first + sender.prefix_len() as u32)
    }

    /// Where the next byte queued goes, once a byte was queued.
    pub(super) fn next(&self) -> Option<Seq> {
        self.next
    }

    /// Which bytes of the transport stand for which of the content.
    pub(super) fn acks(&mut self) -> &mut AckLog {
        &mut self.acks
    }
}
