//! Records on their way out: collected until they are whole, sealed by jobs, handed down in order.
//!
//! Invariant: `items` are in the order in which they were queued, and only the first is handed down. A record leaves it sealed,
//! by its job or here; what is not a record waits behind those before it.

use super::face::open_session;
use super::{CONTEXTS, LookasideCounters, News, RECORDS_AT_ONCE};
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

pub(super) struct SendQueue {
    client: JobClient,
    contexts: Slots<SealContext>,
    /// What came with the key of the records that are queued now.
    sealer: Option<SharedSealer>,
    /// The record whose pieces are coming.
    begun: Option<Record>,
    items: VecDeque<Item>,
    /// Items that were handed down so far: the number of the first one there is.
    first: u64,
    /// Jobs that the accelerator had no room for.
    waiting: VecDeque<Job>,
    /// Where the next byte goes.
    next: Option<Seq>,
    /// Bytes handed down, and those that are still here.
    given: u64,
    queued: usize,
    flush_owed: bool,
    failed: Option<io::ErrorKind>,
}

/// A key that records are sealed with.
struct SealContext {
    flow: FlowKey,
    session: Handle,
    key: TlsKey,
    /// Records of it that are here.
    records: usize,
    released: bool,
}

type SharedSealer = Arc<Mutex<Box<dyn Sealer>>>;

enum Item {
    /// As it belongs on the wire.
    Ready(Bytes, TxTag),
    Record(Record),
    Finish,
}

/// One that is not sealed, in pieces.
struct Record {
    context: Handle,
    unit: UnitTag,
    start: Seq,
    plain: SmallVec<[Bytes; 4]>,
    len: usize,
    sealer: Option<SharedSealer>,
}

impl SendQueue {
    pub(super) fn new(client: JobClient) -> SendQueue {
        SendQueue {
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

    /// Bytes that were not handed down yet.
    pub(super) fn queued(&self) -> usize {
        self.queued
    }

    /// Bytes that were.
    pub(super) fn given(&self) -> u64 {
        self.given
    }

    pub(super) fn add_context(&mut self, flow: FlowKey, key: &TlsKey) -> Result<Handle, ContextRefusal> {
        let session = open_session(&mut self.client, key)?;
        let context = SealContext { flow, session, key: key.clone(), records: 0, released: false };
        self.contexts.insert(context).map_err(|_| {
            self.client.close(session);
            ContextRefusal::NoSpace
        })
    }

    /// Nothing more is queued for `context`.
    pub(super) fn release(&mut self, context: Handle, news: &mut News) {
        if let Some(known) = self.contexts.get_mut(context) {
            known.released = true;
            self.end_unused(context, news);
        }
    }

    pub(super) fn install(&mut self, sealer: Box<dyn Sealer>) {
        self.sealer = Some(Arc::new(Mutex::new(sealer)));
    }

    /// Queues a piece, and gives the sequence number of its first byte. `by_jobs`: there is somebody who hands on what they seal.
    pub(super) fn push<S: SegmentStream>(
        &mut self,
        stream: &mut S,
        data: Bytes,
        tag: TxTag,
        by_jobs: bool,
        counters: &mut LookasideCounters,
    ) -> Seq {
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
            // What is to be worked on and belongs to no unit must not leave in plaintext.
            (Some(_), None) => self.fail(stream, io::ErrorKind::InvalidInput),
            (None, _) => {
                self.items.push_back(Item::Ready(data, tag));
                self.hand_down(stream);
            }
        }
        seq
    }

    /// Adds a piece to the record at hand; gives that when it is whole.
    fn collect(&mut self, seq: Seq, data: Bytes, context: Handle, unit: UnitTag) -> Option<Record> {
        let record = self.begun.get_or_insert_with(|| Record {
            context,
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

    /// Makes a job of a record, or seals it here.
    fn begin<S: SegmentStream>(
        &mut self,
        stream: &mut S,
        record: Record,
        by_jobs: bool,
        counters: &mut LookasideCounters,
    ) {
        let number = self.first + self.items.len() as u64;
        let job = match self.contexts.get_mut(record.context) {
            Some(context) if by_jobs => record.job(context, number),
            _ => None,
        };
        match job {
            Some(job) => {
                if let Some(context) = self.contexts.get_mut(record.context) {
                    context.records += 1;
                }
                self.items.push_back(Item::Record(record));
                self.submit(job);
            }
            // The device went before its last record came, or software is to seal it.
            None => match record.seal_here() {
                Some(sealed) => {
                    counters.sealed_here += 1;
                    self.items.push_back(Item::Ready(sealed, TxTag::done(record.unit)));
                    self.hand_down(stream);
                }
                None => self.fail(stream, io::ErrorKind::InvalidData),
            },
        }
    }

    fn submit(&mut self, job: Job) {
        if !self.waiting.is_empty() {
            self.waiting.push_back(job);
        } else if let Err(job) = self.client.submit(job) {
            self.waiting.push_back(job);
        }
    }

    /// Rings the doorbell; what is handed down already leaves.
    pub(super) fn flush<S: SegmentStream>(&mut self, stream: &mut S) {
        self.client.flush();
        self.flush_owed = true;
        stream.flush();
    }

    /// Closes this side behind all that is queued.
    pub(super) fn finish<S: SegmentStream>(&mut self, stream: &mut S) {
        self.items.push_back(Item::Finish);
        self.hand_down(stream);
    }

    /// Nothing more leaves.
    pub(super) fn abort(&mut self) {
        self.failed.get_or_insert(io::ErrorKind::ConnectionAborted);
        self.forget();
    }

    /// Takes in what jobs have sealed, and hands it down. True if anything was.
    pub(super) fn poll_advance<S: SegmentStream>(
        &mut self,
        stream: &mut S,
        cx: &mut Context<'_>,
        news: &mut News,
        counters: &mut LookasideCounters,
    ) -> bool {
        let before = self.first;
        loop {
            let mut submitted = false;
            while let Poll::Ready(Some(done)) = self.client.poll_done(cx) {
                self.take_in(stream, done, news, counters);
            }
            while !self.waiting.is_empty() && self.client.poll_room(cx).is_ready() {
                let Some(job) = self.waiting.pop_front() else { break };
                if let Err(job) = self.client.submit(job) {
                    self.waiting.push_front(job);
                } else {
                    submitted = true;
                }
            }
            if !submitted {
                break;
            }
            // Once more, to be woken for these too.
            self.client.flush();
        }
        self.hand_down(stream);
        let moved = self.first > before;
        if moved && self.flush_owed {
            stream.flush();
        }
        moved
    }

    /// A job has ended.
    fn take_in<S: SegmentStream>(
        &mut self,
        stream: &mut S,
        done: CompletedJob,
        news: &mut News,
        counters: &mut LookasideCounters,
    ) {
        let item = done.user.checked_sub(self.first).and_then(|at| self.items.get_mut(at as usize));
        let Some(item) = item else { return };
        let Item::Record(record) = item else { return };
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
        *item = Item::Ready(sealed, TxTag::done(unit));
        if let Some(known) = self.contexts.get_mut(context) {
            known.records -= 1;
        }
        if is_lost(done.outcome.status) && self.lose(context, news) {
            counters.contexts_lost += 1;
        }
        self.end_unused(context, news);
    }

    /// The accelerator has no session for `context` any more; whether that is news.
    fn lose(&mut self, context: Handle, news: &mut News) -> bool {
        let Some(known) = self.contexts.get(context).filter(|known| !known.released) else { return false };
        news.0.push_back(DeviceEvent::Removed { flow: known.flow, handle: context });
        if let Some(known) = self.contexts.remove(context) {
            self.client.close(known.session);
        }
        true
    }

    fn end_unused(&mut self, context: Handle, news: &mut News) {
        if self.contexts.get(context).is_some_and(|known| known.released && known.records == 0)
            && let Some(known) = self.contexts.remove(context)
        {
            self.client.close(known.session);
            news.0.push_back(DeviceEvent::Removed { flow: known.flow, handle: context });
        }
    }

    /// Hands down what is ready, as far as nothing before it is not.
    fn hand_down<S: SegmentStream>(&mut self, stream: &mut S) {
        while let Some(item) = self.items.pop_front() {
            match item {
                Item::Ready(bytes, tag) => {
                    self.queued -= bytes.len();
                    self.given += bytes.len() as u64;
                    stream.send(bytes, tag);
                }
                Item::Finish => stream.finish(),
                Item::Record(_) => {
                    self.items.push_front(item);
                    return;
                }
            }
            self.first += 1;
        }
    }

    /// Jobs will not be waited for any more.
    pub(super) fn seal_all_here<S: SegmentStream>(&mut self, stream: &mut S, counters: &mut LookasideCounters) {
        self.waiting.clear();
        for item in &mut self.items {
            let Item::Record(record) = item else { continue };
            let Some(sealed) = record.seal_here() else {
                self.fail(stream, io::ErrorKind::InvalidData);
                return;
            };
            counters.sealed_here += 1;
            *item = Item::Ready(sealed, TxTag::done(record.unit));
        }
        self.hand_down(stream);
        stream.flush();
    }

    /// What is queued cannot be sealed, and must not leave.
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

impl Record {
    /// The job that seals it, which gives back the number of its item; `None` if it is no record.
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

/// Whether a session that gave this is there no more.
pub(super) fn is_lost(status: JobStatus) -> bool {
    matches!(status, JobStatus::NoSession | JobStatus::Reset | JobStatus::Gone)
}

/// The bytes from `from` to `to` of pieces, where they lie.
pub(super) fn cut(pieces: &[Bytes], from: usize, to: usize) -> impl Iterator<Item = Bytes> {
    let mut at = 0;
    pieces.iter().filter_map(move |piece| {
        let start = at;
        at += piece.len();
        let (first, last) = (from.max(start), to.min(at));
        (first < last).then(|| piece.slice(first - start..last - start))
    })
}

/// Copies pieces together.
pub(super) fn copied(pieces: &[Bytes]) -> BytesMut {
    let _copy = cost::work(WorkKind::Copy);
    let mut bytes = BytesMut::with_capacity(pieces.iter().map(Buf::remaining).sum());
    pieces.iter().for_each(|piece| bytes.extend_from_slice(piece));
    bytes
}
