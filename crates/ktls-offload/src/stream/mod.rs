//! The stream of data: everything between the application and the records.
//!
//! - this file: the stream itself, which puts the following together, and how its two sides end;
//! - [`send_half`], with [`records`] and [`acks`]: the half that sends; [`receive_half`]: the half that receives;
//! - [`transmit_place`], with [`policy`], and [`receive_place`], with [`resync`]: each direction's way to a device and back, keys that change
//!   included; [`contexts`]: who owns what the device has for the stream; [`above`]: a protocol above that uses the device too,
//!   and [`above_contexts`]: the contexts lent to it;
//! - [`offload`]: handing directions to a device, losing them, and going back after a reset; [`rekey`]: keys that change;
//! - [`io`]: tokio's traits; [`segments`]: the stream as a transport for a protocol above.
//!
//! The halves and the ways own their fields, and know nothing of each other.
//!
//! Invariant: a side that failed or closed stays so. Whatever happens to a device changes who works, never the bytes.

mod above;
mod above_contexts;
mod acks;
mod contexts;
#[cfg(feature = "tokio")]
mod io;
pub(crate) mod offload;
mod policy;
mod receive_half;
mod receive_place;
mod records;
mod rekey;
mod resync;
mod segments;
mod send_half;
mod transmit_place;

use crate::alert::AlertDescription;
use crate::counters::TlsCounters;
use crate::error::TlsError;
#[cfg(feature = "rustls")]
use crate::exporter::Exporter;
#[cfg(feature = "rustls")]
use crate::handshake::Negotiated;
use crate::keys::{KeySchedule, ScheduleError, TrafficKeys, UnsupportedKey};
use crate::messages::{self, Alert, Message, Messages, Role};
use crate::record::ContentType;
use crate::record::inbox::Inbox;
use crate::record::receive::{Receiver, Record};
use crate::record::send::{Content, Sender};
use above::Above;
use bytes::{Buf, Bytes};
use contexts::Contexts;
use core::fmt;
use core::future::poll_fn;
use core::task::{Context, Poll, ready};
use offload_api::{NextPiece, SegmentStream, TxTag};
use offload_base::Seq;
use offload_base::tasks::{TaskRole, WaitingTasks};
use receive_half::ReceiveHalf;
use receive_place::ReceivePlace;
use records::{Cutter, Pieces};
use send_half::{AtOnce, SendHalf};
use tracing::{Span, debug};
use transmit_place::TransmitPlace;

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
/// use ktls_offload::{FixedKeys, KtlsStream, TrafficKeys, api::TokioSegments};
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
    #[cfg(feature = "rustls")]
    negotiated: Negotiated,
    #[cfg(feature = "rustls")]
    exporter: Option<Box<Exporter>>,
    schedule: Box<dyn KeySchedule>,
    messages: Messages,
    counters: TlsCounters,
    send: SendHalf,
    receive: ReceiveHalf,
    tx: TransmitPlace,
    rx: ReceivePlace,
    contexts: Contexts,
    above: Above,
    waiting: WaitingTasks,
    /// The parent of the stream's events.
    span: Span,
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
    #[cfg(feature = "rustls")]
    negotiated: Negotiated,
    #[cfg(feature = "rustls")]
    exporter: Option<Box<Exporter>>,
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
    ) -> Result<Established, UnsupportedKey> {
        let sender = Sender::new(keys.transmit.0, keys.transmit.1)?;
        let receiver = Receiver::new(keys.receive.0, keys.receive.1, inbox)?;
        Ok(Established {
            sender,
            receiver,
            schedule,
            role,
            next,
            #[cfg(feature = "rustls")]
            negotiated: Negotiated::default(),
            #[cfg(feature = "rustls")]
            exporter: None,
        })
    }

    /// The same, and what the handshake agreed on.
    #[cfg(feature = "rustls")]
    pub(crate) fn with_negotiated(self, negotiated: Negotiated, exporter: Option<Box<Exporter>>) -> Established {
        Established { negotiated, exporter, ..self }
    }
}

impl<S: SegmentStream> KtlsStream<S> {
    /// A stream with keys agreed on elsewhere, over a transport whose next byte in either direction begins a record.
    ///
    /// # Errors
    /// [`UnsupportedKey`].
    pub fn new(stream: S, keys: TrafficKeys, schedule: Box<dyn KeySchedule>) -> Result<KtlsStream<S>, UnsupportedKey> {
        let established = Established::new(keys, schedule, None, Inbox::default(), None)?;
        Ok(KtlsStream::established(stream, established))
    }

    pub(crate) fn established(stream: S, handshake: Established) -> KtlsStream<S> {
        let Established { sender, receiver, schedule, role, next, .. } = handshake;
        let span = tracing::debug_span!("tls", ?role);
        KtlsStream {
            stream,
            #[cfg(feature = "rustls")]
            negotiated: handshake.negotiated,
            #[cfg(feature = "rustls")]
            exporter: handshake.exporter,
            schedule,
            messages: Messages::new(receiver.key().version(), role),
            counters: TlsCounters { curr_tx_sw: 1, curr_rx_sw: 1, tx_sw: 1, rx_sw: 1, ..TlsCounters::default() },
            send: SendHalf::new(sender, next),
            receive: ReceiveHalf::new(receiver),
            tx: TransmitPlace::default(),
            rx: ReceivePlace::new(span.clone()),
            contexts: Contexts::default(),
            above: Above::default(),
            waiting: WaitingTasks::default(),
            span,
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
        Poll::Ready(Ok(self.receive.take().map(|range| {
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
            let bytes = self.send.write_len(data.len());
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
        let mut whole = Some(part);
        self.write_pieces(&mut |_| whole.take().map(|part| (part.clone(), TxTag::PLAIN)))?;
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
        self.send.check()?;
        if !self.send.has_key_updates() {
            return Err(TlsError::NoKeyUpdates.into());
        }
        self.send_key_update(both)?;
        self.stream.flush();
        Ok(())
    }

    /// Has every full record hold `bytes` bytes, from 1 to 16384, which is what it is at first.
    pub fn set_record_size(&mut self, bytes: usize) {
        self.send.set_record_size(bytes);
    }

    /// Pads records so that what is encrypted of each, content and type, has a multiple of `bytes` bytes, as far as a
    /// record may be as long (RFC 8446 section 5.4): then their lengths say less. 1, as at first: no padding. Records of
    /// TLS 1.2 are never padded.
    pub fn set_padding(&mut self, bytes: usize) {
        self.send.set_padding(bytes);
    }

    /// Changes the transmit key at least every `records` records, two or more; before the next data, if the present key
    /// had as many. Without it, keys last as long as RFC 8446 section 5.5 lets them. With TLS 1.2, which has no key updates,
    /// the stream fails then instead.
    pub fn set_records_per_key(&mut self, records: u64) {
        self.send.set_records_per_key(records);
    }

    /// Takes the transmit direction off its device while more than the share `most` of the bytes sent had been sent
    /// before, and gives it back when that is down to half of it; `None`: never. At first the limit is 2 %.
    pub fn set_retransmit_limit(&mut self, most: Option<f64>) {
        self.tx.policy().set_most(most);
    }

    /// What the handshake agreed on.
    #[cfg(feature = "rustls")]
    pub fn negotiated(&self) -> &Negotiated {
        &self.negotiated
    }

    /// Fills `output` with keying material that only both ends of this connection can make, for a protocol above (RFC 8446
    /// section 7.5).
    ///
    /// ```
    /// use ktls_offload::{KtlsStream, SegmentStream};
    ///
    /// /// Binds a login to the connection (RFC 9266).
    /// fn channel_binding(stream: &KtlsStream<impl SegmentStream>) -> std::io::Result<[u8; 32]> {
    ///     let mut binding = [0; 32];
    ///     stream.export_keying_material(&mut binding, b"EXPORTER-Channel-Binding", b"")?;
    ///     Ok(binding)
    /// }
    /// ```
    ///
    /// # Errors
    /// `Unsupported` with TLS 1.2, and if the keys are not from a handshake of this crate; `InvalidInput` if label or output
    /// are longer than the exporter allows.
    #[cfg(feature = "rustls")]
    pub fn export_keying_material(&self, output: &mut [u8], label: &[u8], context: &[u8]) -> std::io::Result<()> {
        let missing =
            || std::io::Error::new(std::io::ErrorKind::Unsupported, "only handshakes of TLS 1.3 have an exporter");
        self.exporter.as_ref().ok_or_else(missing)?.export(output, label, context)
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

    /// Borrows the transport below.
    pub fn get_ref(&self) -> &S {
        &self.stream
    }

    /// Ready when there is content to take, or there will never be any more.
    fn poll_plain(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let content = self.poll_content(cx);
        if content.is_pending() {
            // A writer may be the one who ends the stream.
            self.waiting.wait(TaskRole::Reader, cx);
        }
        content
    }

    fn poll_content(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let mut without_content = 0;
        // News of a device take a lock to hear; while all is settled, what has arrived needs none.
        let mut watched = self.rx.is_unsettled();
        if watched {
            self.hear_news(cx);
        }
        loop {
            if self.receive.has_content() {
                return Poll::Ready(Ok(()));
            }
            if !self.receive.is_open() {
                return Poll::Ready(self.receive.side().error().map_or(Ok(()), Err));
            }
            let opened = match self.receive.next_record(&mut self.counters) {
                Ok(Some(record)) => {
                    self.note_record(&record);
                    let received = self.act_on_record(record);
                    without_content += u32::from(!self.receive.has_content());
                    self.rx.note_unit();
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
                self.receive.discard();
                self.fail(error);
            }
            if without_content == WITHOUT_CONTENT_AT_ONCE && self.receive.is_open() {
                // Cover traffic (RFC 8446 section 5.1) and KeyUpdates may come in any number, but other tasks have
                // their turns between them.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
    }

    /// Hears what happened to the device; whether the receive direction was to go back to it.
    fn hear_news(&mut self, cx: &mut Context<'_>) -> bool {
        self.watch_device(TaskRole::Reader, cx);
        let returns = self.rx.is_due();
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
        self.receive.settle_credit(&mut self.stream);
        let segment = match self.receive.poll_segment(&mut self.stream, cx) {
            Poll::Ready(Ok(Some(segment))) => segment,
            Poll::Ready(Ok(None)) => return Poll::Ready(Ok(false)),
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending => {
                self.rx.give_hint(&mut self.stream, self.receive.receiver(), &mut self.counters);
                self.receive.rest(&mut self.stream);
                return Poll::Pending;
            }
        };
        self.receive.receiver().push(segment);
        self.add_deferred(cx);
        self.rx.answer_question(&mut self.stream, self.receive.receiver(), &mut self.counters);
        Poll::Ready(Ok(true))
    }

    /// Acts on a record whose content is all that nobody has taken.
    fn act_on_record(&mut self, record: Record) -> Result<(), TlsError> {
        if record.content_type == ContentType::ApplicationData {
            self.messages.data()?;
            self.rx.note_data();
            self.credit(record.wire_len - record.content_len);
            return Ok(());
        }
        let content = self.receive.take_whole(record.content_len);
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
        if !self.send.is_open() {
            return Ok(());
        }
        // What a used-up key has left is for the alert that ends the connection.
        if self.send.is_used_up() {
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
            self.waiting.wait(TaskRole::Writer, cx);
        }
        waited
    }

    /// Whether a write of `bytes` bytes is records for a device and nothing else.
    fn writes_at_once(&self, bytes: usize) -> bool {
        self.send.writes_at_once(bytes) && !self.tx.waits()
    }

    /// Hears the device's news, or writes records of `data` for it.
    fn poll_write_at_once(&mut self, cx: &mut Context<'_>, data: &mut NextPiece<'_>) -> Poll<std::io::Result<Turn>> {
        self.waiting.wait(TaskRole::Writer, cx);
        let mut cutter = self.send.cutter(data);
        let KtlsStream { stream, send, waiting, tx, counters, .. } = self;
        match ready!(send.poll_at_once(stream, cx, waiting, tx.policy(), counters, &mut cutter))? {
            AtOnce::News(event) => {
                self.hear(Some(TaskRole::Writer), Some(event));
                Poll::Ready(Ok(Turn::Heard))
            }
            AtOnce::Written(first, None) => Poll::Ready(Ok(Turn::Written(first))),
            AtOnce::Written(first, left) => {
                let rest = self.write_contents(left, &mut cutter)?;
                self.stream.flush();
                Poll::Ready(Ok(Turn::Written(first.or(rest))))
            }
        }
    }

    /// Fills records with what comes one behind the other; the last ends with it. Gives the sequence number of the first
    /// byte of content.
    fn write_pieces(&mut self, pieces: &mut NextPiece<'_>) -> Result<Option<Seq>, TlsError> {
        let mut cutter = self.send.cutter(pieces);
        self.write_contents(None, &mut cutter)
    }

    /// Makes a record of `content`, and those of what `cutter` has.
    fn write_contents(
        &mut self,
        mut content: Option<(Pieces, usize)>,
        cutter: &mut Cutter<'_>,
    ) -> Result<Option<Seq>, TlsError> {
        let (mut first, sent) = (None, self.tx.policy().looked());
        while let Some((pieces, length)) = content.take().or_else(|| cutter.next_content(sent)) {
            let seq = self.write_record(Content::Shared(&pieces), length)?;
            first = first.or(Some(seq));
        }
        Ok(first)
    }

    fn write_record(&mut self, content: Content<'_>, length: usize) -> Result<Seq, TlsError> {
        if self.send.owes_update() {
            self.send_key_update(false)?;
        }
        self.return_to_device();
        if self.tx.policy().note_queued(length as u64) {
            self.consult_policy();
        }
        self.send
            .data(&mut self.stream, &mut self.counters, content, length)
            .inspect_err(|error| self.fail(error.clone()))
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        if let Some(error) = self.send.side().error() {
            return Poll::Ready(Err(error));
        }
        self.finish_writing();
        self.poll_committed(cx)
    }

    fn finish_writing(&mut self) {
        if self.send.is_open() {
            self.send.end(Side::Closed);
            self.tx.abort_rekey(&mut self.counters);
            self.alert(AlertDescription::CLOSE_NOTIFY);
            self.stream.finish();
            self.send.retire_sealer(&mut self.stream);
            self.note_places();
            self.waiting.wake_all();
        }
    }

    /// Ends both directions, and says nothing of it to the peer. The transport delivers what is queued.
    fn end(&mut self) {
        if self.send.is_open() {
            self.send.end(Side::Closed);
            self.tx.abort_rekey(&mut self.counters);
        }
        self.send.retire_sealer(&mut self.stream);
        if self.receive.is_open() {
            self.end_reading(Side::Closed);
        }
        self.note_places();
        self.contexts.keep_only(&mut self.stream, [None; 2]);
    }

    /// Nothing more is read, whatever has arrived.
    fn end_reading(&mut self, end: Side) {
        self.receive.end(end);
        self.rx.abort_rekey(&mut self.counters);
        self.leave_receive_context();
    }

    /// Ends the connection: the peer gets its alert, then the end of the stream; both sides tell why.
    fn fail(&mut self, error: TlsError) {
        debug!(parent: &self.span, %error, "TLS failed");
        if self.send.is_open() {
            if let Some(description) = error.alert() {
                self.alert(description);
            }
            self.stream.finish();
        }
        self.send.end(Side::Failed(error.clone()));
        self.tx.abort_rekey(&mut self.counters);
        self.send.retire_sealer(&mut self.stream);
        self.end_reading(Side::Failed(error));
        self.waiting.wake_all();
    }

    fn alert(&mut self, description: AlertDescription) {
        // Only a key without a single number left could refuse it; then the stream just ends.
        let alert = messages::alert(description);
        let _ = self.send.record(&mut self.stream, &mut self.counters, ContentType::Alert, Content::Lent(&alert));
        self.stream.flush();
    }

    /// Notes that `bytes` more received bytes are done with.
    fn credit(&mut self, bytes: usize) {
        self.receive.credit(&mut self.stream, bytes);
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
            .field("read", self.receive.side())
            .field("write", self.send.side())
            .field("transmit_context", &self.transmit_context())
            .field("receive_context", &self.receive_context())
            .field("earlier_receive_keys", &self.receive.records().earlier_keys())
            .finish_non_exhaustive()
    }
}

/// Records without content that one poll of a reader takes in.
const WITHOUT_CONTENT_AT_ONCE: u32 = 32;
/// Most bytes of one write taken at once.
const WRITE_MAX: usize = 256 << 10;
