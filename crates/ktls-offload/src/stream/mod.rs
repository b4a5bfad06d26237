//! The stream of data: everything between the application and the records.
//!
//! - this file: the stream itself, its two sides and how they end;
//! - [`offload`]: handing directions to a device, losing them, and going back after a reset; [`policy`]: when that is done unasked;
//!   [`contexts`]: who owns what the device has for the stream; [`resync`]: helping it to find its place again;
//! - [`rekey`]: keys that change, and how the device gets the new ones;
//! - [`records`]: what is written for a device, framed under the transport's lock;
//! - [`io`]: tokio's traits; [`segments`]: the stream as a transport for a protocol above, [`above`]: the device as that sees it.
//!
//! Invariant: a side that failed or closed stays so. Whatever happens to a device changes who works, never the bytes.

mod above;
mod contexts;
mod io;
pub(crate) mod offload;
mod policy;
mod records;
mod rekey;
mod resync;
mod segments;

use crate::alert::AlertDescription;
use crate::counters::TlsCounters;
use crate::error::TlsError;
use crate::handshake::Negotiated;
use crate::keys::{KeySchedule, ScheduleError, TrafficKeys, UnsupportedKey};
use crate::messages::{self, Alert, Message, Messages, Role};
use crate::record::inbox::{self, Inbox};
use crate::record::receive::{Receiver, Record};
use crate::record::send::{Content, Sender};
use crate::record::{CONTENT_MAX, ContentType, WIRE_MAX};
use crate::tasks::{Task, Waiting};
use bytes::{Buf, Bytes};
use contexts::Contexts;
use core::fmt;
use core::future::poll_fn;
use core::task::{Context, Poll, ready};
use offload::{Returns, RxOffload};
use offload_api::{DeviceEvent, Layer, NextPiece, RxSegment, SegmentStream, SendTurn, TxTag};
use offload_base::Seq;
use policy::{MOST_SENT_AGAIN, RetransmitPolicy};
use records::{Cutter, Pieces, Records};
use rekey::Rekeys;
use resync::Resync;
use segments::AckLog;
use std::collections::VecDeque;

/// A TLS stream over the transport `S`, each direction in software or on a device.
///
/// It is `AsyncRead + AsyncWrite`; [`next_chunk`](Self::next_chunk) and [`send_chunk`](Self::send_chunk) do the same
/// without copying; and it is a [`SegmentStream`] again, for a protocol that wants to know what the device said.
///
/// A write becomes one record for each [`record size`](Self::set_record_size) of bytes and one for the rest, and what
/// was written is queued before the call returns. [`close`](Self::close) is what tells the peer that this was all. A
/// stream that is only dropped, by an error, a time-out or a task that ends early, still delivers what was written and
/// then ends without that word: the peer reads all of it, and then an error (RFC 8446 section 6.1).
///
/// One task may read and another write: each hears of what the other did to the stream, and either may stop polling at
/// any time.
///
/// ```
/// use ktls_offload::{FixedKeys, KtlsStream, TokioSegments, TrafficKeys};
/// use offload_api::{TlsKey, TlsSuite, TlsVersion};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // The keys usually come from a handshake: see `connect`.
/// let key = |byte| TlsKey::new(TlsVersion::Tls13, TlsSuite::Aes128Gcm, &[byte; 16], [byte; 12]).unwrap();
/// let keys = TrafficKeys { transmit: (0, key(1)), receive: (0, key(2)) };
/// let (near, far) = tokio::io::duplex(1 << 16);
/// let mut client = KtlsStream::new(TokioSegments::new(near), keys.clone(), Box::new(FixedKeys))?;
/// let mut server = KtlsStream::new(TokioSegments::new(far), keys.swapped(), Box::new(FixedKeys))?;
/// client.send_chunk("hello".into()).await?;
/// client.close().await?;
/// assert_eq!(server.next_chunk().await?.as_deref(), Some(&b"hello"[..]));
/// assert_eq!(server.next_chunk().await?, None);
/// # Ok(())
/// # }
/// ```
pub struct KtlsStream<S: SegmentStream> {
    stream: S,
    sender: Sender,
    receiver: Receiver,
    schedule: Box<dyn KeySchedule>,
    messages: Messages,
    negotiated: Negotiated,
    counters: TlsCounters,
    read: Side,
    write: Side,

    /// Opened content that nobody has taken.
    plain: VecDeque<RxSegment>,
    /// Bytes that `consume` was told before the application had them.
    early_credit: usize,
    /// Bytes that are done with, which `consume` is told before the transport is asked for more.
    owed_credit: usize,
    /// The transport's last word, got while nobody was reading.
    ended: Option<std::io::Result<()>>,
    rx: RxOffload,
    contexts: Contexts,
    /// A protocol above has reached for the device, and is to hear of what is not for TLS.
    watched: bool,
    events_above: VecDeque<DeviceEvent>,
    policy: RetransmitPolicy,
    resync: Resync,
    rekeys: Rekeys,
    returns: Returns,
    waiting: Waiting,

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

/// One half of the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Side {
    Open,
    Closed,
    Failed(TlsError),
    /// The transport failed.
    Lost(std::io::ErrorKind),
}

impl Side {
    /// Why nothing more can be had of a side that is neither open nor closed.
    fn error(&self) -> Option<std::io::Error> {
        match self {
            Side::Open | Side::Closed => None,
            Side::Failed(error) => Some(error.clone().into()),
            Side::Lost(kind) => Some((*kind).into()),
        }
    }
}

/// What came of a turn of writing.
enum Turn {
    /// The device had news; nothing was written.
    Heard,
    /// All is queued and leaves; the sequence number of the first byte of content.
    Written(Option<Seq>),
}

/// What a handshake leaves behind.
pub(crate) struct Established {
    sender: Sender,
    receiver: Receiver,
    schedule: Box<dyn KeySchedule>,
    role: Option<Role>,
    next: Option<(Seq, u64)>,
    negotiated: Negotiated,
}

impl Established {
    /// `role` is this end's, if it is known; `inbox` what arrived after the handshake, `next` where the next byte sent goes
    /// and how many were sent.
    pub(crate) fn new(
        keys: TrafficKeys,
        schedule: Box<dyn KeySchedule>,
        role: Option<Role>,
        inbox: Inbox,
        next: Option<(Seq, u64)>,
        negotiated: Negotiated,
    ) -> Result<Established, UnsupportedKey> {
        let sender = Sender::new(keys.transmit.0, keys.transmit.1)?;
        let receiver = Receiver::new(keys.receive.0, keys.receive.1, inbox)?;
        Ok(Established { sender, receiver, schedule, role, next, negotiated })
    }
}

impl<S: SegmentStream> KtlsStream<S> {
    /// A stream with keys agreed on elsewhere, over a transport whose next byte in either direction begins a record.
    ///
    /// # Errors
    /// [`UnsupportedKey`].
    pub fn new(stream: S, keys: TrafficKeys, schedule: Box<dyn KeySchedule>) -> Result<KtlsStream<S>, UnsupportedKey> {
        let established = Established::new(keys, schedule, None, Inbox::default(), None, Negotiated::default())?;
        Ok(KtlsStream::established(stream, established))
    }

    pub(crate) fn established(stream: S, handshake: Established) -> KtlsStream<S> {
        let Established { sender, receiver, schedule, role, next, negotiated } = handshake;
        KtlsStream {
            stream,
            messages: Messages::new(receiver.key().version(), role),
            sender,
            receiver,
            schedule,
            negotiated,
            counters: TlsCounters { curr_tx_sw: 1, curr_rx_sw: 1, tx_sw: 1, rx_sw: 1, ..TlsCounters::default() },
            read: Side::Open,
            write: Side::Open,
            plain: VecDeque::new(),
            early_credit: 0,
            owed_credit: 0,
            ended: None,
            rx: RxOffload::Software,
            contexts: Contexts::default(),
            watched: false,
            events_above: VecDeque::new(),
            policy: RetransmitPolicy::new(Some(MOST_SENT_AGAIN)),
            resync: Resync::default(),
            rekeys: Rekeys::default(),
            returns: Returns::default(),
            waiting: Waiting::default(),
            next: next.map(|(seq, _)| seq),
            acks: AckLog::new(next.map_or(0, |(_, sent)| sent)),
            record_size: CONTENT_MAX,
            records_per_key: u64::MAX,
            pad_to: 1,
            update_owed: false,
            update_answered: false,
        }
    }

    /// The next received bytes, where they lie: at most a record's content, at least one byte. `None` after the
    /// peer's close_notify.
    ///
    /// # Errors
    /// A [`TlsError`] inside; an error of the transport.
    pub async fn next_chunk(&mut self) -> std::io::Result<Option<Bytes>> {
        poll_fn(|cx| self.poll_chunk(cx)).await
    }

    /// Polls for what [`next_chunk`](Self::next_chunk) waits for.
    ///
    /// # Errors
    /// As there.
    pub fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<Option<Bytes>>> {
        ready!(self.poll_plain(cx))?;
        Poll::Ready(Ok(self.plain.pop_front().map(|range| {
            self.credit(range.data.len());
            range.data.freeze()
        })))
    }

    /// Writes all of `data`, without copying it on its way to a device. A dropped future has written some of it.
    ///
    /// # Errors
    /// A [`TlsError`] inside; an error of the transport; `BrokenPipe` after closing.
    pub async fn send_chunk(&mut self, mut data: Bytes) -> std::io::Result<()> {
        while !data.is_empty() {
            let bytes = self.write_len(data.len());
            poll_fn(|cx| self.poll_write_part(cx, &data.slice(..bytes))).await?;
            data.advance(bytes);
        }
        Ok(())
    }

    fn poll_write_part(&mut self, cx: &mut Context<'_>, part: &Bytes) -> Poll<std::io::Result<()>> {
        while self.writes_at_once(part.len()) {
            let mut whole = Some(part);
            let mut pieces = |_| whole.take().map(|part| (part.clone(), TxTag::PLAIN));
            if let Turn::Written(_) = ready!(self.poll_write_at_once(cx, &mut pieces))? {
                return Poll::Ready(Ok(()));
            }
        }
        ready!(self.poll_writable(cx))?;
        self.write_pieces(&mut core::iter::once((part.clone(), TxTag::PLAIN)))?;
        self.stream.flush();
        Poll::Ready(Ok(()))
    }

    /// Says that no more will be written, with a close_notify, and waits for nothing but the transport's promise to see
    /// to the rest. The other direction goes on. If the future is dropped, it is said all the same once it was polled.
    ///
    /// # Errors
    /// If the stream failed before.
    pub async fn close(&mut self) -> std::io::Result<()> {
        poll_fn(|cx| self.poll_close(cx)).await
    }

    /// Changes the transmit key, and asks the peer for the same if `both` (RFC 8446 section 4.6.3). A direction on a
    /// device comes back to software, and goes to the device again with the new key: with the first write after the last
    /// record of the old key is acknowledged. [`TlsCounters`] tell what became of each key.
    ///
    /// # Errors
    /// If there is no next key, which fails the stream; `BrokenPipe` after closing; `Unsupported`, and the stream goes
    /// on, with TLS 1.2.
    pub fn update_keys(&mut self, both: bool) -> std::io::Result<()> {
        self.check_writable()?;
        if !self.sender.has_key_updates() {
            return Err(TlsError::NoKeyUpdates.into());
        }
        self.send_key_update(both)?;
        self.stream.flush();
        Ok(())
    }

    /// Has every full record hold `bytes` bytes, from 1 to 16384, which is what it is at first.
    pub fn set_record_size(&mut self, bytes: usize) {
        self.record_size = bytes.clamp(1, CONTENT_MAX);
    }

    /// Pads records so that what is encrypted of each, content and type, has a multiple of `bytes` bytes, as far as a
    /// record may be as long (RFC 8446 section 5.4): then their lengths say less. 1, as at first: no padding. Records of
    /// TLS 1.2 are never padded.
    pub fn set_padding(&mut self, bytes: usize) {
        self.pad_to = bytes.max(1);
        self.sender.set_pad_to(self.pad_to);
    }

    /// Changes the transmit key at least every `records` records, two or more; before the next data, if the present key
    /// had as many. Without it, keys last as long as RFC 8446 section 5.5 lets them. With TLS 1.2, which has no key updates,
    /// the stream fails then instead.
    pub fn set_records_per_key(&mut self, records: u64) {
        self.records_per_key = records.max(2);
        self.sender.lower_limit(self.records_per_key);
    }

    /// Takes the transmit direction off its device while more than the share `most` of the bytes sent had been sent
    /// before, and gives it back when that is down to half of it; `None`: never. At first the limit is 2 %.
    pub fn set_retransmit_limit(&mut self, most: Option<f64>) {
        self.policy.set_most(most);
    }

    /// What the handshake agreed on.
    pub fn negotiated(&self) -> &Negotiated {
        &self.negotiated
    }

    /// What happened so far.
    pub fn counters(&self) -> &TlsCounters {
        &self.counters
    }

    /// Ends the stream, as dropping it does, and gives what it counted: no direction of it is anywhere any more.
    pub fn into_counters(mut self) -> TlsCounters {
        self.end();
        self.counters
    }

    /// The transport below.
    pub fn transport(&self) -> &S {
        &self.stream
    }

    /// Ready when there is content to take, or there will never be any more.
    fn poll_plain(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let content = self.poll_content(cx);
        if content.is_pending() {
            // A writer may be the one who ends the stream.
            self.waiting.wait(Task::Reader, cx);
        }
        content
    }

    fn poll_content(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let mut without_content = 0;
        // News of a device take a lock to hear; while all is settled, what has arrived needs none.
        let mut watched = self.rx.is_being_added() || self.returns.rx.is_due();
        if watched {
            self.hear_news(cx);
        }
        loop {
            if !self.plain.is_empty() {
                return Poll::Ready(Ok(()));
            }
            if self.read != Side::Open {
                return Poll::Ready(self.read.error().map_or(Ok(()), Err));
            }
            let opened = match self.receiver.next_record(&mut self.plain, &mut self.counters) {
                Ok(Some(record)) => {
                    self.note_record(&record);
                    let received = self.receive(record);
                    without_content += u32::from(self.plain.is_empty());
                    self.returns.rx.note_unit();
                    self.add_deferred(cx);
                    received
                }
                Ok(None) => {
                    if !core::mem::replace(&mut watched, true) && self.hear_news(cx) {
                        // That may have taken in whole records.
                        continue;
                    }
                    if !ready!(self.poll_more(cx))? {
                        // RFC 8446 section 6.1: without close_notify, what arrived may have been cut short.
                        self.end_reading(Side::Failed(TlsError::Truncated));
                    }
                    continue;
                }
                Err(error) => Err(error),
            };
            if let Err(error) = opened {
                self.plain.clear();
                self.fail(error);
            }
            if without_content == WITHOUT_CONTENT_AT_ONCE && self.read == Side::Open {
                // Cover traffic (RFC 8446 section 5.1) and KeyUpdates may come in any number, but other tasks have
                // their turns between them.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
    }

    /// Hears what happened to the device; whether the receive direction was to go back to it.
    fn hear_news(&mut self, cx: &mut Context<'_>) -> bool {
        self.watch_device(Task::Reader, cx);
        let returns = self.returns.rx.is_due();
        if returns {
            // Not when the news comes: whoever hears them may be a writer, whom the transport must not wake for a reader.
            self.add_deferred(cx);
        }
        returns
    }

    /// Gets the next range from the transport; false if there are no more. An error ends the direction.
    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<bool>> {
        let more = ready!(self.poll_range(cx));
        if let Err(error) = &more {
            self.end_reading(Side::Lost(error.kind()));
        }
        Poll::Ready(more)
    }

    /// Gets the next range from the transport; false if there are no more.
    fn poll_range(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<bool>> {
        self.settle_credit();
        let segment = match self.ended.take() {
            Some(ended) => ended.map(|()| None),
            None => match self.stream.poll_segment(cx) {
                Poll::Ready(segment) => segment,
                Poll::Pending => {
                    self.give_hint();
                    self.receiver.shrink();
                    inbox::shrink(&mut self.plain);
                    // A window smaller than a record would never open again. (Who waits for a device has maybe not read all.)
                    let unread: usize = self.plain.iter().map(|range| range.data.len()).sum();
                    let due = (unread + self.receiver.pending().min(WIRE_MAX)).saturating_sub(self.early_credit);
                    if due > 0 {
                        self.early_credit += due;
                        self.stream.consume(due);
                    }
                    return Poll::Pending;
                }
            },
        };
        let segment = match segment {
            Ok(Some(segment)) => segment,
            Ok(None) => return Poll::Ready(Ok(false)),
            Err(error) => return Poll::Ready(Err(error)),
        };
        self.receiver.push(segment);
        self.add_deferred(cx);
        self.answer_question();
        Poll::Ready(Ok(true))
    }

    /// Acts on a record whose content is all that nobody has taken.
    fn receive(&mut self, record: Record) -> Result<(), TlsError> {
        if record.content_type == ContentType::ApplicationData {
            self.messages.data()?;
            self.rekeys.note_data();
            self.credit(record.wire_len - record.content_len);
            return Ok(());
        }
        let mut content = Vec::with_capacity(record.content_len);
        self.plain.drain(..).for_each(|range| content.extend_from_slice(&range.data));
        self.credit(record.wire_len);
        if record.content_type == ContentType::Alert {
            if self.messages.alert(&content)? == Alert::Close {
                self.end_reading(Side::Closed);
            }
            return Ok(());
        }
        self.messages.handshake(&content)?;
        while let Some(message) = self.messages.next_message()? {
            match message {
                Message::Ticket(ticket) => self.schedule.store_ticket(&ticket).map_err(|error| match error {
                    ScheduleError::NoTickets => TlsError::UnexpectedHandshake(4),
                    other => other.into(),
                })?,
                Message::KeyUpdate { requested } => self.receive_key_update(requested)?,
                Message::Renegotiate => self.refuse_renegotiation()?,
            }
        }
        Ok(())
    }

    /// RFC 5246 section 7.2.2: a warning says no, and both go on with what they have.
    fn refuse_renegotiation(&mut self) -> Result<(), TlsError> {
        if self.write != Side::Open {
            return Ok(());
        }
        // What a used-up key has left is for the alert that ends the connection.
        if self.sender.is_used_up() {
            return Err(TlsError::KeyExhausted);
        }
        self.alert(AlertDescription::NO_RENEGOTIATION);
        Ok(())
    }

    /// Ready when something may be written.
    fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        self.poll_room(cx).map_ok(|_| ())
    }

    /// What a writer waits for; somebody else may end the stream before it comes.
    fn as_writer<T>(&self, waited: Poll<T>, cx: &Context<'_>) -> Poll<T> {
        if waited.is_pending() {
            self.waiting.wait(Task::Writer, cx);
        }
        waited
    }

    fn check_writable(&self) -> std::io::Result<()> {
        match &self.write {
            Side::Open => Ok(()),
            ended => Err(ended.error().unwrap_or_else(|| std::io::ErrorKind::BrokenPipe.into())),
        }
    }

    /// How much of a write of `length` bytes is taken at once: all of it, or whole records. The transport's room has no
    /// part in it, so that record boundaries do not depend on that.
    fn write_len(&self, length: usize) -> usize {
        if length <= WRITE_MAX { length } else { WRITE_MAX / self.record_size * self.record_size }
    }

    /// Whether a write of `bytes` bytes is records for a device and nothing else.
    fn writes_at_once(&self, bytes: usize) -> bool {
        let settled = !self.update_owed && !self.waits_to_ask() && !self.waits_to_install();
        self.write == Side::Open
            && self.sender.context().is_some()
            && settled
            && bytes.div_ceil(self.record_size) as u64 <= self.sender.records_left()
    }

    /// Hears the device's news, or makes records of `data` and has them leave, at once for a transport behind a lock.
    /// (Records for a device cost next to nothing to make. What is sealed here is sealed while nobody waits for a lock.)
    fn poll_write_at_once(&mut self, cx: &mut Context<'_>, data: &mut NextPiece<'_>) -> Poll<std::io::Result<Turn>> {
        self.waiting.wait(Task::Writer, cx);
        let mut cutter = Cutter::new(data, self.record_size);
        let KtlsStream { stream, sender, acks, counters, waiting, policy, .. } = self;
        let mut records = Records::new(&mut cutter, sender, acks, counters, policy);
        let first = match ready!(stream.poll_send(cx, waiting.waker_ref(), &mut |sent| records.next(sent)))? {
            SendTurn::Queued(first) => first,
            SendTurn::News(event) => {
                self.hear(Some(Task::Writer), Some(event));
                return Poll::Ready(Ok(Turn::Heard));
            }
        };
        let Records { wire, left, .. } = records;
        let first = first.map(|first| {
            self.next = Some(first + wire as u32);
            self.update_answered = false;
            first + self.sender.prefix_len() as u32
        });
        if left.is_none() {
            return Poll::Ready(Ok(Turn::Written(first)));
        }
        let rest = self.write_contents(left, &mut cutter)?;
        self.stream.flush();
        Poll::Ready(Ok(Turn::Written(first.or(rest))))
    }

    /// Fills records with what comes one behind the other; the last ends with it. Gives the sequence number of the first
    /// byte of content.
    fn write_pieces(&mut self, pieces: &mut dyn Iterator<Item = (Bytes, TxTag)>) -> Result<Option<Seq>, TlsError> {
        self.write_next(&mut |_| pieces.next())
    }

    /// The same, with what a turn of sending is to send.
    fn write_next(&mut self, pieces: &mut NextPiece<'_>) -> Result<Option<Seq>, TlsError> {
        self.write_contents(None, &mut Cutter::new(pieces, self.record_size))
    }

    /// Makes a record of `content`, and those of what `cutter` has.
    fn write_contents(
        &mut self,
        mut content: Option<(Pieces, usize)>,
        cutter: &mut Cutter<'_>,
    ) -> Result<Option<Seq>, TlsError> {
        let (mut first, sent) = (None, self.policy.looked());
        while let Some((pieces, length)) = content.take().or_else(|| cutter.next_content(sent)) {
            let seq = self.write_record(Content::Shared(&pieces), length)?;
            first = first.or(Some(seq));
        }
        Ok(first)
    }

    fn write_record(&mut self, content: Content<'_>, length: usize) -> Result<Seq, TlsError> {
        if self.update_owed || self.sender.must_update() {
            self.send_key_update(false)?;
        }
        self.install_transmit_key();
        self.return_to_device();
        if self.policy.note_queued(length as u64) {
            self.consult_policy();
        }
        let seq = match self.record(ContentType::ApplicationData, content) {
            Ok(seq) => seq,
            Err(error) => {
                self.fail(error.clone());
                return Err(error);
            }
        };
        self.update_answered = false;
        self.acks.record(length);
        Ok(seq)
    }

    /// Queues one record; gives the sequence number of its content.
    fn record(&mut self, content_type: ContentType, content: Content<'_>) -> Result<Seq, TlsError> {
        let KtlsStream { stream, sender, counters, next, acks, .. } = self;
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

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        if let Some(error) = self.write.error() {
            return Poll::Ready(Err(error));
        }
        self.finish_writing();
        self.poll_committed(cx)
    }

    fn finish_writing(&mut self) {
        if self.write == Side::Open {
            self.write = Side::Closed;
            self.abort_transmit_rekey();
            self.alert(AlertDescription::CLOSE_NOTIFY);
            self.stream.finish();
            self.retire_sealer();
            self.note_places();
            self.waiting.wake_all();
        }
    }

    /// Ends both directions, and says nothing of it to the peer. The transport delivers what is queued.
    fn end(&mut self) {
        if self.write == Side::Open {
            self.write = Side::Closed;
            self.abort_transmit_rekey();
        }
        self.retire_sealer();
        if self.read == Side::Open {
            self.end_reading(Side::Closed);
        }
        self.note_places();
        self.contexts.keep_only(&mut self.stream, [None; 2]);
    }

    /// Nothing more is read, whatever has arrived.
    fn end_reading(&mut self, end: Side) {
        self.read = end;
        self.receiver.clear();
        self.abort_receive_rekey();
        self.leave_receive_context();
    }

    /// Ends the connection: the peer gets its alert, then the end of the stream; both sides tell why.
    fn fail(&mut self, error: TlsError) {
        if self.write == Side::Open {
            if let Some(description) = error.alert() {
                self.alert(description);
            }
            self.stream.finish();
        }
        self.write = Side::Failed(error.clone());
        self.abort_transmit_rekey();
        self.retire_sealer();
        self.end_reading(Side::Failed(error));
        self.waiting.wake_all();
    }

    fn alert(&mut self, description: AlertDescription) {
        // Only a key without a single number left could refuse it; then the stream just ends.
        let _ = self.record(ContentType::Alert, Content::Lent(&messages::alert(description)));
        self.stream.flush();
    }

    /// Notes that `bytes` more received bytes are done with. The transport is told when there are no others, or before it
    /// is asked for more: a record may be several chunks, and a range of the transport's several records.
    fn credit(&mut self, bytes: usize) {
        let told = self.early_credit.min(bytes);
        self.early_credit -= told;
        self.owed_credit += bytes - told;
        let nothing_left = self.plain.is_empty() && self.receiver.pending() == 0;
        if nothing_left || self.read != Side::Open {
            self.settle_credit();
        }
    }

    fn settle_credit(&mut self) {
        let owed = core::mem::take(&mut self.owed_credit);
        if owed > 0 {
            self.stream.consume(owed);
        }
    }
}

impl<S: SegmentStream> Drop for KtlsStream<S> {
    fn drop(&mut self) {
        self.end();
    }
}

impl<S: SegmentStream> fmt::Debug for KtlsStream<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KtlsStream")
            .field("read", &self.read)
            .field("write", &self.write)
            .field("transmit_context", &self.transmit_context())
            .field("receive_context", &self.receive_context())
            .field("earlier_receive_keys", &self.receiver.earlier_keys())
            .finish_non_exhaustive()
    }
}

/// Of a record left to a device: prefix, content, trailer; the content of a PDU is its header, data and digest.
const PIECES: usize = 5;
/// Records without content that one poll of a reader takes in.
const WITHOUT_CONTENT_AT_ONCE: u32 = 32;
/// Most bytes of one write taken at once.
const WRITE_MAX: usize = 256 << 10;
