//! Outgoing records: collected until complete, sealed by jobs, and passed down in order.
//!
//! Invariant: `items` are in queueing order, and only the first item is passed down. A record becomes ready when
//! sealed, by its job or in software. Other data wait for the items before them.

use super::face::open_session;
use super::{CONTEXTS, EventQueue, LookasideCounters, RECORDS_AT_ONCE};
use bytes::{Buf, Bytes, BytesMut};
use core::task::{Context, Poll};
use offload_api::record::{RECORD_HEADER_LEN, RECORD_TAG_LEN};
use offload_api::{
    CompletedJob, ContextRefusal, DeviceEvent, FlowKey, Handle, Job, JobStatus, Layer, Sealer, SegmentStream, Slots,
    TlsKey, TxTag, Unit, UnitTag, engines,
};
use offload_base::Seq;
use offload_base::cost::{self, WorkKind};
use offload_jobs::JobClient;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

pub(super) struct LookasideSendQueue {
    client: JobClient,
    contexts: Slots<SealContext>,
    /// The sealer of the records that are being queued.
    sealer: Option<SharedSealer>,
    /// The record being collected.
    begun: Option<UnsealedRecord>,
    items: VecDeque<SendItem>,
    /// Number of items passed down so far, which is the number of the first item.
    first: u64,
    /// Jobs for which the accelerator had no room.
    waiting: VecDeque<Job>,
    /// Sequence number of the next byte to queue.
    next: Option<Seq>,
    /// Bytes passed down.
    given: u64,
    queued: usize,
    flush_owed: bool,
    failed: Option<io::ErrorKind>,
}

/// A transmit context: the key that seals records.
struct SealContext {
    flow: FlowKey,
    session: Handle,
    key: TlsKey,
    /// Records of the context in `items`.
    records: usize,
    released: bool,
}

type SharedSealer = Arc<Mutex<Box<dyn Sealer>>>;

enum SendItem {
    /// Bytes as they belong on the wire.
    Ready(Bytes, TxTag),
    UnsealedRecord(UnsealedRecord),
    Finish,
}

/// An unsealed record, in pieces.
struct UnsealedRecord {
    context: Handle,
    unit: UnitTag,
    start: Seq,
    plain: SmallVec<[Bytes; 4]>,
    len: usize,
    sealer: Option<SharedSealer>,
}

impl LookasideSendQueue {
    pub(super) fn new(client: JobClient) -> LookasideSendQueue {
        LookasideSendQueue {
            client,
            contexts: Slots::new(Handle::indices(engines::TLS, CONTEXTS)),
            sealer: None,
            begun: None,
            items: VecDeque::new(),
            first: 0,
            waiting: VecDeque::new(),
            next: None,
            given: 0,
            queued: 0,
            flush_owed: false,
            failed: None,
        }
    }

    pub(super) fn check(&self) -> io::Result<()> {
        self.failed.map_or(Ok(()), |kind| Err(kind.into()))
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    pub(super) fn is_full(&self) -> bool {
        self.items.len() >= RECORDS_AT_ONCE
    }

    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Returns the number of bytes not yet passed down.
    pub(super) fn queued(&self) -> usize {
        self.queued
    }

    /// Returns the number of bytes passed down.
    pub(super) fn given(&self) -> u64 {
        self.given
    }

    pub(super) fn add_context(&mut self, flow: FlowKey, key: &TlsKey) -> Result<Handle, ContextRefusal> {
        let session = open_session(&mut self.client, key)?;
        let context = SealContext { flow, session, key: key.clone(), records: 0, released: false };
        self.contexts.insert(context).map_err(|_| {
            // The session would otherwise occupy the accelerator for nothing.
            self.client.close(session);
            ContextRefusal::NoSpace
        })
    }

    /// Removes `context` after its last queued record.
    pub(super) fn release(&mut self, context: Handle, news: &mut EventQueue) {
        if let Some(known) = self.contexts.get_mut(context) {
            known.released = true;
            self.end_unused(context, news);
        }
    }

    pub(super) fn install(&mut self, sealer: Box<dyn Sealer>) {
        self.sealer = Some(Arc::new(Mutex::new(sealer)));
    }

    /// Queues a piece and returns the sequence number of its first byte. `by_jobs` tells whether a
    /// [`RunLookaside`](super::RunLookaside) exists that passes on sealed records.
    pub(super) fn push<S: SegmentStream>(
        &mut self,
        stream: &mut S,
        data: Bytes,
        tag: TxTag,
        by_jobs: bool,
        counters: &mut LookasideCounters,
    ) -> Seq {
        // An empty send returns the next sequence number.
        let seq = *self.next.get_or_insert_with(|| stream.send(Bytes::new(), TxTag::PLAIN));
        if data.is_empty() || self.failed.is_some() {
            return seq;
        }
        self.next = Some(seq + data.len() as u32);
        self.queued += data.len();
        match (tag.context(Layer::FIRST), tag.unit(Layer::FIRST)) {
            (Some(context), Some(unit)) => {
                if let Some(record) = self.collect(seq, data, context, unit) {
                    self.begin(stream, record, by_jobs, counters);
                }
            }
            // Data for a context must be sealed, which is impossible without a unit. Plaintext must not leave.
            (Some(_), None) => self.fail(stream, io::ErrorKind::InvalidInput),
            (None, _) => {
                self.items.push_back(SendItem::Ready(data, tag));
                self.hand_down(stream);
            }
        }
        seq
    }

    /// Appends a piece to the current record. Returns the record when complete.
    fn collect(&mut self, seq: Seq, data: Bytes, context: Handle, unit: UnitTag) -> Option<UnsealedRecord> {
        let record = self.begun.get_or_insert_with(|| UnsealedRecord {
            context,
            // The sealed record is sent as one piece, which starts at offset 0 of its unit.
            unit: UnitTag { at: 0, ..unit },
            start: seq,
            plain: SmallVec::new(),
            len: 0,
            sealer: self.sealer.clone(),
        });
        record.len += data.len();
        record.plain.push(data);
        if record.len < record.unit.len as usize { None } else { self.begun.take() }
    }

    /// Submits a job that seals the record, or seals the record in software.
    fn begin<S: SegmentStream>(
        &mut self,
        stream: &mut S,
        record: UnsealedRecord,
        by_jobs: bool,
        counters: &mut LookasideCounters,
    ) {
        let number = self.first + self.items.len() as u64;
        // A job needs the session of the record's context, and a task that passes on its result.
        let job = match self.contexts.get_mut(record.context) {
            Some(context) if by_jobs => record.job(context, number),
            _ => None,
        };
        match job {
            Some(job) => {
                if let Some(context) = self.contexts.get_mut(record.context) {
                    context.records += 1;
                }
                self.items.push_back(SendItem::UnsealedRecord(record));
                self.submit(job);
            }
            // No job: the context was removed before the record was complete, no task passes on sealed records, or the
            // data are not a record.
            None => match record.seal_here() {
                Some(sealed) => {
                    counters.sealed_here += 1;
                    self.items.push_back(SendItem::Ready(sealed, TxTag::done(record.unit)));
                    self.hand_down(stream);
                }
                None => self.fail(stream, io::ErrorKind::InvalidData),
            },
        }
    }

    fn submit(&mut self, job: Job) {
        // Waiting jobs go first, because records leave in order.
        if !self.waiting.is_empty() {
            self.waiting.push_back(job);
        } else if let Err(job) = self.client.submit(job) {
            self.waiting.push_back(job);
        }
    }

    /// Submits queued jobs to the accelerator and flushes the stream below.
    pub(super) fn flush<S: SegmentStream>(&mut self, stream: &mut S) {
        self.client.flush();
        self.flush_owed = true;
        stream.flush();
    }

    /// Closes the direction after all queued data.
    pub(super) fn finish<S: SegmentStream>(&mut self, stream: &mut S) {
        // The close must follow records that are still being sealed.
        self.items.push_back(SendItem::Finish);
        self.hand_down(stream);
    }

    /// Aborts the direction: no more data leave.
    pub(super) fn abort(&mut self) {
        // The first failure is the reason for later ones.
        self.failed.get_or_insert(io::ErrorKind::ConnectionAborted);
        self.forget();
    }

    /// Takes sealed records from jobs and passes them down. Returns true if any data were passed down.
    pub(super) fn poll_advance<S: SegmentStream>(
        &mut self,
        stream: &mut S,
        cx: &mut Context<'_>,
        news: &mut EventQueue,
        counters: &mut LookasideCounters,
    ) -> bool {
        // `first` counts every item passed down, because plain data and the close behind a sealed record leave together
        // with it.
        let before = self.first;
        loop {
            let mut submitted = false;
            while let Poll::Ready(Some(done)) = self.client.poll_done(cx) {
                self.process_finished_job(stream, done, news, counters);
            }
            while !self.waiting.is_empty() && self.client.poll_room(cx).is_ready() {
                let Some(job) = self.waiting.pop_front() else { break };
                if let Err(job) = self.client.submit(job) {
                    // Keeps the order of the jobs.
                    self.waiting.push_front(job);
                } else {
                    submitted = true;
                }
            }
            if !submitted {
                break;
            }
            // Jobs were submitted, so poll again: otherwise the task would not be woken for them.
            self.client.flush();
        }
        self.hand_down(stream);
        let moved = self.first > before;
        // The application flushed before these records were sealed, so the flush is made up for here.
        if moved && self.flush_owed {
            stream.flush();
        }
        moved
    }

    /// Processes a finished job.
    fn process_finished_job<S: SegmentStream>(
        &mut self,
        stream: &mut S,
        done: CompletedJob,
        news: &mut EventQueue,
        counters: &mut LookasideCounters,
    ) {
        // The item may be gone: an abort discards all items while their jobs still run.
        let item = done.user.checked_sub(self.first).and_then(|at| self.items.get_mut(at as usize));
        let Some(item) = item else { return };
        let SendItem::UnsealedRecord(record) = item else { return };
        let (context, unit) = (record.context, record.unit);
        let sealed = match done.outcome.status {
            JobStatus::Done => {
                counters.sealed += 1;
                Some(done.target.freeze())
            }
            _ => {
                counters.sealed_here += 1;
                record.seal_here()
            }
        };
        let Some(sealed) = sealed else {
            self.fail(stream, io::ErrorKind::InvalidData);
            return;
        };
        *item = SendItem::Ready(sealed, TxTag::done(unit));
        if let Some(known) = self.contexts.get_mut(context) {
            // A released context ends with its last record.
            known.records -= 1;
        }
        if is_lost(done.outcome.status) && self.mark_lost(context, news) {
            counters.contexts_lost += 1;
        }
        self.end_unused(context, news);
    }

    /// Notes that the accelerator lost the session of `context`. Returns true unless the context was released already.
    fn mark_lost(&mut self, context: Handle, news: &mut EventQueue) -> bool {
        let Some(known) = self.contexts.get(context).filter(|known| !known.released) else { return false };
        news.0.push_back(DeviceEvent::Removed { flow: known.flow, handle: context });
        if let Some(known) = self.contexts.remove(context) {
            self.client.close(known.session);
        }
        true
    }

    fn end_unused(&mut self, context: Handle, news: &mut EventQueue) {
        if self.contexts.get(context).is_some_and(|known| known.released && known.records == 0)
            && let Some(known) = self.contexts.remove(context)
        {
            self.client.close(known.session);
            news.0.push_back(DeviceEvent::Removed { flow: known.flow, handle: context });
        }
    }

    /// Passes ready items down, up to the first item that is not ready.
    fn hand_down<S: SegmentStream>(&mut self, stream: &mut S) {
        while let Some(item) = self.items.pop_front() {
            match item {
                SendItem::Ready(bytes, tag) => {
                    self.queued -= bytes.len();
                    self.given += bytes.len() as u64;
                    stream.send(bytes, tag);
                }
                SendItem::Finish => stream.finish(),
                SendItem::UnsealedRecord(_) => {
                    self.items.push_front(item);
                    return;
                }
            }
            self.first += 1;
        }
    }

    /// Seals all waiting records in software, because jobs are no longer awaited.
    pub(super) fn seal_all_here<S: SegmentStream>(&mut self, stream: &mut S, counters: &mut LookasideCounters) {
        self.waiting.clear();
        for item in &mut self.items {
            let SendItem::UnsealedRecord(record) = item else { continue };
            let Some(sealed) = record.seal_here() else {
                self.fail(stream, io::ErrorKind::InvalidData);
                return;
            };
            counters.sealed_here += 1;
            *item = SendItem::Ready(sealed, TxTag::done(record.unit));
        }
        self.hand_down(stream);
        stream.flush();
    }

    /// Fails the stream: queued data cannot be sealed and must not leave.
    fn fail<S: SegmentStream>(&mut self, stream: &mut S, kind: io::ErrorKind) {
        self.failed.get_or_insert(kind);
        self.forget();
        stream.abort();
    }

    fn forget(&mut self) {
        self.begun = None;
        self.waiting.clear();
        self.first += self.items.len() as u64;
        self.items.clear();
        self.queued = 0;
    }
}

impl UnsealedRecord {
    /// Creates the job that seals the record, with the item's number in `user`. Returns `None` if the data are not a
    /// record.
    fn job(&self, context: &SealContext, number: u64) -> Option<Job> {
        let format = context.key.format();
        let (prefix_len, end) = (format.prefix_len(), self.len.checked_sub(RECORD_TAG_LEN)?);
        if self.len != self.unit.len as usize || end < prefix_len {
            return None;
        }
        let mut prefix: SmallVec<[u8; 16]> = SmallVec::from_elem(0, prefix_len);
        self.plain.iter().flatten().zip(&mut prefix).for_each(|(from, to)| *to = *from);
        let header = prefix.first_chunk()?;
        if format.record_len(header) != Some(self.len) {
            return None;
        }
        let mut target = BytesMut::with_capacity(self.len);
        target.extend_from_slice(&prefix);
        let mut job = Job {
            user: number,
            source: SmallVec::new(),
            aad: SmallVec::from_slice(&format.aad(self.unit.number, header)),
            ..Job::new(context.session, Bytes::new(), target)
        };
        let nonce = format.nonce(context.key.iv(), self.unit.number, &prefix[RECORD_HEADER_LEN..]);
        job.iv[..nonce.len()].copy_from_slice(&nonce);
        job.source.extend(cut(&self.plain, prefix_len, end));
        Some(job)
    }

    fn seal_here(&self) -> Option<Bytes> {
        let UnitTag { number, len, .. } = self.unit;
        let unit = Unit { layer: Layer::FIRST, number, offset: 0, start: self.start, len, touched_from: 0 };
        let mut sealer = self.sealer.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        sealer.seal(unit, &self.plain).ok()
    }
}

/// Returns whether the session with this job status no longer exists.
pub(super) fn is_lost(status: JobStatus) -> bool {
    matches!(status, JobStatus::NoSession | JobStatus::Reset | JobStatus::Gone)
}

/// Returns the bytes `from..to` of the pieces without copying.
pub(super) fn cut(pieces: &[Bytes], from: usize, to: usize) -> impl Iterator<Item = Bytes> {
    let mut at = 0;
    pieces.iter().filter_map(move |piece| {
        let start = at;
        at += piece.len();
        let (first, last) = (from.max(start), to.min(at));
        (first < last).then(|| piece.slice(first - start..last - start))
    })
}

/// Copies the pieces into one buffer.
pub(super) fn copied(pieces: &[Bytes]) -> BytesMut {
    let _copy = cost::work(WorkKind::Copy);
    let mut bytes = BytesMut::with_capacity(pieces.iter().map(Buf::remaining).sum());
    pieces.iter().for_each(|piece| bytes.extend_from_slice(piece));
    bytes
}
