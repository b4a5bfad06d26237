//! Incoming records: cut out of ranges, opened by jobs, and passed up in order like the output of a NIC.
//!
//! Invariant: every byte goes up once, in order and at its position in the stream. A record opened by a job has its
//! header and tag as received and its body decrypted, and is marked with its context. Any other byte is as received,
//! without a mark.

use super::face::open_session;
use super::send::{copied, cut, is_lost};
use super::{CONTEXTS, EventQueue, LookasideCounters, RECORDS_AT_ONCE};
use crate::record::inbox::RecordInbox;
use crate::record::receive::both;
use crate::record::{HEADER_LEN, WIRE_MAX};
use bytes::{Bytes, BytesMut};
use core::task::{Context, Poll};
use offload_api::record::RECORD_TAG_LEN;
use offload_api::{
    CompletedJob, ContextRefusal, DeviceEvent, FlowKey, Handle, Job, JobStatus, RxMeta, RxSegment, SegmentStream,
    Slots, TlsContext, TlsKey, Verdict, Way, engines,
};
use offload_base::Seq;
use offload_jobs::JobClient;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::io;

pub(super) struct LookasideReceiveQueue {
    client: JobClient,
    /// Handles of contexts. Only one context is in use at a time.
    names: Slots<()>,
    context: Option<OpenContext>,
    /// Bytes that do not yet form a record; empty without a context.
    inbox: RecordInbox,
    items: VecDeque<ReceiveItem>,
    /// Number of the first item in `items`.
    first: u64,
    waiting: VecDeque<Job>,
    /// Sequence number of the next byte to arrive.
    position: Seq,
    /// The end of the stream below.
    ended: Option<io::Result<()>>,
    /// Bytes reported to the stream below as consumed before they were.
    early: usize,
}

/// A receive context: the key that opens records.
struct OpenContext {
    handle: Handle,
    flow: FlowKey,
    session: Handle,
    key: TlsKey,
    /// Bytes before the first record.
    ahead: u32,
    /// Number of the next record.
    number: u64,
}

enum ReceiveItem {
    Ready(RxSegment),
    OpeningRecord(OpeningRecord),
}

/// A record being opened by a job.
struct OpeningRecord {
    context: Handle,
    start: Seq,
    meta: RxMeta,
    wire: SmallVec<[Bytes; 2]>,
}

impl LookasideReceiveQueue {
    /// Creates a queue. `next` is the sequence number of the first byte; if unknown, counting begins at zero.
    pub(super) fn new(client: JobClient, next: Option<Seq>) -> LookasideReceiveQueue {
        LookasideReceiveQueue {
            client,
            names: Slots::new(
                Handle::indices(engines::TLS, 2 * CONTEXTS).start + CONTEXTS
                    ..Handle::indices(engines::TLS, 2 * CONTEXTS).end,
            ),
            context: None,
            inbox: RecordInbox::default(),
            items: VecDeque::new(),
            first: 0,
            waiting: VecDeque::new(),
            position: next.unwrap_or_default(),
            ended: None,
            early: 0,
        }
    }

    /// Returns the sequence number of the next byte to pass up.
    pub(super) fn next_seq(&self) -> Seq {
        match self.items.front() {
            Some(ReceiveItem::Ready(segment)) => segment.seq,
            Some(ReceiveItem::OpeningRecord(record)) => record.start,
            None => self.inbox.start().filter(|_| self.inbox.len() > 0).unwrap_or(self.position),
        }
    }

    /// Returns the sequence number of the next byte to arrive.
    pub(super) fn position(&self) -> Seq {
        self.position
    }

    /// Returns how many of `bytes` consumed bytes were not reported to the stream below earlier.
    pub(super) fn without_early(&mut self, bytes: usize) -> usize {
        let told = self.early.min(bytes);
        self.early -= told;
        bytes - told
    }

    /// Opens records from the start of `context` on, which must not lie before the data received so far.
    pub(super) fn add_context(
        &mut self,
        flow: FlowKey,
        context: &TlsContext,
        news: &mut EventQueue,
    ) -> Result<Handle, ContextRefusal> {
        let ahead = context.start.distance_from(self.position);
        // Ranges already queued are unmarked, so the stream above opens them.
        if self.context.is_some() || !self.items.is_empty() || ahead > WIRE_MAX as u32 {
            return Err(ContextRefusal::Busy);
        }
        let session = open_session(&mut self.client, &context.key)?;
        let Ok(handle) = self.names.insert(()) else {
            self.client.close(session);
            return Err(ContextRefusal::NoSpace);
        };
        let key = context.key.clone();
        self.context = Some(OpenContext { handle, flow, session, key, ahead, number: context.number });
        news.0.push_back(DeviceEvent::Ready { flow, handle });
        Ok(handle)
    }

    /// Removes the context: the stream above opens all further records, including the records at jobs.
    pub(super) fn remove(&mut self, context: Handle, news: &mut EventQueue) {
        if self.context.as_ref().is_some_and(|known| known.handle == context)
            && let Some(known) = self.context.take()
        {
            self.client.close(known.session);
            self.names.remove(context);
            // The stream above counts on unmarked ciphertext from here on; late jobs of these records are ignored.
            for item in &mut self.items {
                if let ReceiveItem::OpeningRecord(record) = item {
                    *item = ReceiveItem::Ready(record.to_segment());
                }
            }
            self.waiting.clear();
            self.pass_on_rest();
            news.0.push_back(DeviceEvent::Removed { flow: known.flow, handle: context });
        }
    }

    /// Polls for the next range.
    pub(super) fn poll_segment<S: SegmentStream>(
        &mut self,
        stream: &mut S,
        cx: &mut Context<'_>,
        news: &mut EventQueue,
        counters: &mut LookasideCounters,
    ) -> Poll<io::Result<Option<RxSegment>>> {
        loop {
            self.process_finished_jobs(cx, news, counters);
            if let Some(segment) = self.pop_ready() {
                return Poll::Ready(Ok(Some(segment)));
            }
            if self.items.is_empty()
                && let Some(ended) = self.ended.take()
            {
                return Poll::Ready(ended.map(|()| None));
            }
            // A bound on the records at jobs also bounds the data read from the stream below.
            let may_read = self.ended.is_none() && self.items.len() < RECORDS_AT_ONCE;
            let arrived = if may_read { stream.poll_segment(cx) } else { Poll::Pending };
            match arrived {
                Poll::Ready(Ok(Some(segment))) => {
                    self.push(segment);
                    continue;
                }
                Poll::Ready(Ok(None)) => self.ended = Some(Ok(())),
                Poll::Ready(Err(error)) => self.ended = Some(Err(error)),
                Poll::Pending => {
                    self.client.flush();
                    // A job submitted since the last poll may have finished without waking this task.
                    if self.process_finished_jobs(cx, news, counters) {
                        continue;
                    }
                    self.give_early_credit(stream);
                    return Poll::Pending;
                }
            }
            self.pass_on_rest();
        }
    }

    /// Reports a partial record as consumed, because a window smaller than a record would otherwise never open again.
    fn give_early_credit<S: SegmentStream>(&mut self, stream: &mut S) {
        let due = self.inbox.len().min(WIRE_MAX).saturating_sub(self.early);
        if due > 0 {
            self.early += due;
            stream.consume(due);
        }
    }

    fn pop_ready(&mut self) -> Option<RxSegment> {
        match self.items.pop_front()? {
            ReceiveItem::Ready(segment) => {
                self.first += 1;
                Some(segment)
            }
            opening => {
                self.items.push_front(opening);
                None
            }
        }
    }

    /// Queues received bytes.
    fn push(&mut self, mut segment: RxSegment) {
        segment.seq = self.position;
        self.position = segment.end();
        let Some(context) = &mut self.context else {
            self.items.push_back(ReceiveItem::Ready(segment));
            return;
        };
        // Bytes before the context's first record belong to records that the stream above opens.
        let before = (context.ahead as usize).min(segment.data.len());
        if before > 0 {
            context.ahead -= before as u32;
            self.items.push_back(ReceiveItem::Ready(segment.split_to(before)));
        }
        self.inbox.push(segment);
        self.cut_records();
    }

    /// Turns complete records into jobs.
    fn cut_records(&mut self) {
        while let Some(header) = self.inbox.header_at(0) {
            let Some(context) = &mut self.context else { return };
            let Some(len) = context.key.format().record_len(&header) else {
                // The bytes are not a record; the stream above reports the error.
                self.pass_on_rest();
                return;
            };
            if self.inbox.len() < len {
                return;
            }
            let start = self.inbox.start().unwrap_or_default();
            let (mut wire, mut meta) = (SmallVec::<[Bytes; 2]>::new(), None);
            self.inbox.take(len, |range| {
                meta = Some(meta.map_or(range.meta, |so_far| both(so_far, range.meta)));
                wire.push(range.data.freeze());
            });
            let record = OpeningRecord { context: context.handle, start, meta: meta.unwrap_or_default(), wire };
            let number = self.first + self.items.len() as u64;
            let job = record.job(context, number, &header);
            context.number = context.number.wrapping_add(1);
            self.items.push_back(ReceiveItem::OpeningRecord(record));
            if !self.waiting.is_empty() {
                self.waiting.push_back(job);
            } else if let Err(job) = self.client.submit(job) {
                self.waiting.push_back(job);
            }
        }
    }

    /// Passes the bytes of incomplete records up as received.
    fn pass_on_rest(&mut self) {
        let LookasideReceiveQueue { inbox, items, .. } = self;
        inbox.take(inbox.len(), |range| items.push_back(ReceiveItem::Ready(range)));
    }

    /// Takes finished jobs and submits waiting ones. Returns true if there were any.
    fn process_finished_jobs(
        &mut self,
        cx: &mut Context<'_>,
        news: &mut EventQueue,
        counters: &mut LookasideCounters,
    ) -> bool {
        let mut any = false;
        while let Poll::Ready(Some(done)) = self.client.poll_done(cx) {
            any = true;
            self.note_done(done, news, counters);
        }
        while !self.waiting.is_empty() && self.client.poll_room(cx).is_ready() {
            let Some(job) = self.waiting.pop_front() else { break };
            match self.client.submit(job) {
                Ok(()) => any = true,
                Err(job) => self.waiting.push_front(job),
            }
        }
        any
    }

    fn note_done(&mut self, done: CompletedJob, news: &mut EventQueue, counters: &mut LookasideCounters) {
        let item = done.user.checked_sub(self.first).and_then(|at| self.items.get_mut(at as usize));
        let Some(item) = item else { return };
        // A record of a removed context was already passed up as received.
        let ReceiveItem::OpeningRecord(record) = item else { return };
        let context = record.context;
        let opened = match done.outcome.status {
            JobStatus::Done => record.opened(done.target),
            _ => None,
        };
        match opened {
            Some(_) => counters.opened += 1,
            None => counters.not_opened += 1,
        }
        *item = ReceiveItem::Ready(opened.unwrap_or_else(|| record.to_segment()));
        if is_lost(done.outcome.status) && self.context.as_ref().is_some_and(|known| known.handle == context) {
            counters.contexts_lost += 1;
            self.remove(context, news);
        }
    }
}

impl OpeningRecord {
    fn job(&self, context: &OpenContext, user: u64, header: &[u8; HEADER_LEN]) -> Job {
        let format = context.key.format();
        let len: usize = self.wire.iter().map(Bytes::len).sum();
        let mut target = BytesMut::with_capacity(len);
        cut(&self.wire, 0, format.prefix_len()).for_each(|piece| target.extend_from_slice(&piece));
        let nonce = format.nonce(context.key.iv(), context.number, &target[HEADER_LEN..]);
        let mut job = Job {
            user,
            way: Way::Undo,
            source: cut(&self.wire, format.prefix_len(), len).collect(),
            aad: SmallVec::from_slice(&format.aad(context.number, header)),
            ..Job::new(context.session, Bytes::new(), target)
        };
        job.iv[..nonce.len()].copy_from_slice(&nonce);
        job
    }

    /// Returns the opened record as a NIC would pass it up, with its original tag.
    fn opened(&self, mut plain: BytesMut) -> Option<RxSegment> {
        let len: usize = self.wire.iter().map(Bytes::len).sum();
        cut(&self.wire, len - RECORD_TAG_LEN, len).for_each(|piece| plain.extend_from_slice(&piece));
        let meta = self.meta.marked(self.context, Verdict::Done);
        (plain.len() == len).then(|| RxSegment { seq: self.start, data: plain.into(), meta })
    }

    fn to_segment(&self) -> RxSegment {
        RxSegment { seq: self.start, data: copied(&self.wire).into(), meta: self.meta }
    }
}
