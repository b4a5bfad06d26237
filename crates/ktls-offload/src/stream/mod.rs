//! The TLS stream between the application and the records.
//!
//! - this file: the stream itself, which combines the modules below, and the end of its two directions;
//! - [`send_half`] with [`records`] and [`acks`]: the sending half; [`receive_half`]: the receiving half;
//! - [`transmit_place`] with [`policy`], and [`receive_place`] with [`resync`]: the location of each direction, on the
//!   device or in software, across refusals, losses and key changes; [`contexts`]: the stream's contexts on the device;
//!   [`above`] and [`above_contexts`]: the events and contexts for a protocol above that uses the device too;
//! - [`offload`]: moving directions to a device, losing and regaining the device; [`rekey`]: key updates;
//! - [`io`]: tokio's traits; [`segments`]: the stream as the transport of a protocol above.
//!
//! The halves and the locations own their fields and do not know each other.
//!
//! Invariant: a direction that failed or closed stays so. Events on the device never change the bytes on the wire.

mod acks;
mod contexts;
#[cfg(feature = "tokio")]
mod io;
pub(crate) mod offload;
mod policy;
mod receive_half;
mod receive_location;
mod records;
mod rekey;
mod resync;
mod segments;
mod send_half;
mod transmit_location;
mod upper_contexts;
mod upper_events;

use crate::alert::AlertDescription;
use crate::counters::TlsCounters;
use crate::error::TlsError;
#[cfg(feature = "rustls")]
use crate::exporter::Exporter;
#[cfg(feature = "rustls")]
use crate::handshake::Negotiated;
use crate::keys::{KeySchedule, ScheduleError, TrafficKeys, UnsupportedKey};
use crate::messages::{self, Alert, HandshakeRole, Message, MessageReader};
use crate::record::ContentType;
use crate::record::inbox::RecordInbox;
use crate::record::receive::{Record, RecordReceiver};
use crate::record::send::{RecordContent, RecordSender};
use bytes::{Buf, Bytes};
use contexts::StreamContexts;
use core::fmt;
use core::future::poll_fn;
use core::task::{Context, Poll, ready};
use offload_api::{NextPiece, SegmentStream, TxTag};
use offload_base::Seq;
use offload_base::tasks::{TaskRole, WaitingTasks};
use receive_half::ReceiveHalf;
use receive_location::ReceiveLocation;
use records::{Cutter, RecordPieces};
use send_half::{ImmediateWrite, SendHalf};
use tracing::{Span, debug};
use transmit_location::TransmitLocation;
use upper_events::UpperEvents;

/// A TLS stream over the transport `S`. Each direction runs in software or on a device.
///
/// The stream implements `AsyncRead` and `AsyncWrite`. [`next_chunk`](Self::next_chunk) and
/// [`send_chunk`](Self::send_chunk) do the same without copying. The stream is also a [`SegmentStream`], for a protocol
/// above that uses the device's verdicts.
///
/// A write becomes full records of the [record size](Self::set_record_size) and one for the rest, which are queued
/// before the call returns. Only [`close`](Self::close) tells the peer that the data are complete. A stream that is
/// dropped after an error, a time-out or the end of its task still delivers the written data, but ends without a
/// close_notify: the peer reads all data and then an error (RFC 8446 section 6.1).
///
/// One task may read while another writes. Each task learns of state changes caused by the other, and either may stop
/// polling at any time.
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
    messages: MessageReader,
    counters: TlsCounters,
    send: SendHalf,
    receive: ReceiveHalf,
    tx: TransmitLocation,
    rx: ReceiveLocation,
    contexts: StreamContexts,
    above: UpperEvents,
    waiting: WaitingTasks,
    /// Parent span of the stream's trace events.
    span: Span,
}

/// The state of one direction.
#[derive(Clone, Debug, PartialEq, Eq)]
enum DirectionState {
    Open,
    Closed,
    Failed(TlsError),
    /// The transport failed.
    Lost(std::io::ErrorKind),
}

impl DirectionState {
    /// Returns the error of a failed direction. `None` if the direction is open or closed.
    fn error(&self) -> Option<std::io::Error> {
        match self {
            DirectionState::Open | DirectionState::Closed => None,
            DirectionState::Failed(error) => Some(error.clone().into()),
            DirectionState::Lost(kind) => Some((*kind).into()),
        }
    }
}

/// The outcome of one attempt to write.
enum WriteOutcome {
    /// The device had events; no data were written.
    HandledEvents,
    /// All data are queued. Holds the sequence number of the first content byte.
    Written(Option<Seq>),
}

/// The state that a handshake leaves behind.
pub(crate) struct HandshakeState {
    sender: RecordSender,
    receiver: RecordReceiver,
    schedule: Box<dyn KeySchedule>,
    role: Option<HandshakeRole>,
    next: Option<(Seq, u64)>,
    #[cfg(feature = "rustls")]
    negotiated: Negotiated,
    #[cfg(feature = "rustls")]
    exporter: Option<Box<Exporter>>,
}

impl HandshakeState {
    /// Creates the state. `role` is this end's role if known, `inbox` holds data that arrived after the handshake, and
    /// `next` is the sequence number of the next byte to send with the number of bytes sent.
    pub(crate) fn new(
        keys: TrafficKeys,
        schedule: Box<dyn KeySchedule>,
        role: Option<HandshakeRole>,
        inbox: RecordInbox,
        next: Option<(Seq, u64)>,
    ) -> Result<HandshakeState, UnsupportedKey> {
        let sender = RecordSender::new(keys.transmit.0, keys.transmit.1)?;
        let receiver = RecordReceiver::new(keys.receive.0, keys.receive.1, inbox)?;
        Ok(HandshakeState {
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

    /// Adds the negotiated parameters.
    #[cfg(feature = "rustls")]
    pub(crate) fn with_negotiated(self, negotiated: Negotiated, exporter: Option<Box<Exporter>>) -> HandshakeState {
        HandshakeState { negotiated, exporter, ..self }
    }
}

impl<S: SegmentStream> KtlsStream<S> {
    /// Creates a stream with keys agreed elsewhere. In both directions the transport's next byte must begin a record.
    ///
    /// # Errors
    /// [`UnsupportedKey`].
    pub fn new(stream: S, keys: TrafficKeys, schedule: Box<dyn KeySchedule>) -> Result<KtlsStream<S>, UnsupportedKey> {
        let established = HandshakeState::new(keys, schedule, None, RecordInbox::default(), None)?;
        Ok(KtlsStream::established(stream, established))
    }

    pub(crate) fn established(stream: S, handshake: HandshakeState) -> KtlsStream<S> {
        let HandshakeState { sender, receiver, schedule, role, next, .. } = handshake;
        let span = tracing::debug_span!("tls", ?role);
        KtlsStream {
            stream,
            #[cfg(feature = "rustls")]
            negotiated: handshake.negotiated,
            #[cfg(feature = "rustls")]
            exporter: handshake.exporter,
            schedule,
            messages: MessageReader::new(receiver.key().version(), role),
            counters: TlsCounters { curr_tx_sw: 1, curr_rx_sw: 1, tx_sw: 1, rx_sw: 1, ..TlsCounters::default() },
            send: SendHalf::new(sender, next),
            receive: ReceiveHalf::new(receiver),
            tx: TransmitLocation::default(),
            rx: ReceiveLocation::new(span.clone()),
            contexts: StreamContexts::default(),
            above: UpperEvents::default(),
            waiting: WaitingTasks::default(),
            span,
        }
    }

    /// Returns the next received bytes without a copy: at least one byte, at most one record's content. `None` after
    /// the peer's close_notify.
    ///
    /// # Errors
    /// An [`std::io::Error`] that contains a [`TlsError`], or an error of the transport.
    pub async fn next_chunk(&mut self) -> std::io::Result<Option<Bytes>> {
        poll_fn(|cx| self.poll_chunk(cx)).await
    }

    /// Polls for the next received bytes; see [`next_chunk`](Self::next_chunk).
    ///
    /// # Errors
    /// The errors of [`next_chunk`](Self::next_chunk).
    pub fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<Option<Bytes>>> {
        ready!(self.poll_plain(cx))?;
        Poll::Ready(Ok(self.receive.take().map(|range| {
            self.credit(range.data.len());
            range.data.freeze()
        })))
    }

    /// Writes all of `data`. Data for a device are not copied. If the future is dropped, a part of `data` may be
    /// written.
    ///
    /// # Errors
    /// An [`std::io::Error`] that contains a [`TlsError`], an error of the transport, or `BrokenPipe` after closing.
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
            if let WriteOutcome::Written(_) = ready!(self.poll_write_at_once(cx, &mut pieces))? {
                return Poll::Ready(Ok(()));
            }
        }
        ready!(self.poll_writable(cx))?;
        let mut whole = Some(part);
        self.write_pieces(&mut |_| whole.take().map(|part| (part.clone(), TxTag::PLAIN)))?;
        self.stream.flush();
        Poll::Ready(Ok(()))
    }

    /// Sends a close_notify and waits until the transport has committed to deliver the queued data. The receive
    /// direction stays open. If the future was polled once and then dropped, the close_notify is sent nevertheless.
    ///
    /// # Errors
    /// The error that ended the stream earlier.
    pub async fn close(&mut self) -> std::io::Result<()> {
        poll_fn(|cx| self.poll_close(cx)).await
    }

    /// Changes the transmit key, and requests a change of the peer's key if `both` (RFC 8446 section 4.6.3). A
    /// direction on a device returns to software. The first write after the last record of the old key is acknowledged
    /// moves the direction to the device again. [`TlsCounters`] count the outcome of each key.
    ///
    /// # Errors
    /// An error of the key schedule, which also fails the stream; `BrokenPipe` after closing; `Unsupported` with TLS
    /// 1.2, in which case the stream continues.
    pub fn update_keys(&mut self, both: bool) -> std::io::Result<()> {
        self.send.check()?;
        if !self.send.has_key_updates() {
            return Err(TlsError::NoKeyUpdates.into());
        }
        self.send_key_update(both)?;
        self.stream.flush();
        Ok(())
    }

    /// Sets the content length of a full record, from 1 to 16384 bytes. The default is 16384.
    pub fn set_record_size(&mut self, bytes: usize) {
        self.send.set_record_size(bytes);
    }

    /// Pads records so that the encrypted content and type are a multiple of `bytes` bytes, up to the maximum record
    /// length (RFC 8446 section 5.4). Padding hides the content length. The default, 1, means no padding. Records of
    /// TLS 1.2 are never padded.
    pub fn set_padding(&mut self, bytes: usize) {
        self.send.set_padding(bytes);
    }

    /// Changes the transmit key at least every `records` records (minimum 2). If the present key has protected that
    /// many already, it changes before the next data. The default is the limit of RFC 8446 section 5.5. TLS 1.2 has no
    /// key updates: the stream then fails at the limit.
    pub fn set_records_per_key(&mut self, records: u64) {
        self.send.set_records_per_key(records);
    }

    /// Sets the share of retransmitted bytes above which the transmit direction leaves its device. The direction
    /// returns when the share falls to half of the limit. `None` disables the policy. The default is 2 %.
    pub fn set_retransmit_limit(&mut self, most: Option<f64>) {
        self.tx.policy().set_most(most);
    }

    /// Returns the outcome of the handshake.
    #[cfg(feature = "rustls")]
    pub fn negotiated(&self) -> &Negotiated {
        &self.negotiated
    }

    /// Fills `output` with keying material that only the two ends of this connection can compute, for a protocol above
    /// (RFC 8446 section 7.5).
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
    /// `Unsupported` with TLS 1.2, or if the keys do not come from a handshake of this crate. `InvalidInput` if the
    /// label or the output exceeds the exporter's limits.
    #[cfg(feature = "rustls")]
    pub fn export_keying_material(&self, output: &mut [u8], label: &[u8], context: &[u8]) -> std::io::Result<()> {
        let missing =
            || std::io::Error::new(std::io::ErrorKind::Unsupported, "only handshakes of TLS 1.3 have an exporter");
        self.exporter.as_ref().ok_or_else(missing)?.export(output, label, context)
    }

    /// Returns the stream's counters.
    pub fn counters(&self) -> &TlsCounters {
        &self.counters
    }

    /// Ends the stream as dropping does, and returns its counters. The `Curr` counters are then zero.
    pub fn into_counters(mut self) -> TlsCounters {
        self.end();
        self.counters
    }

    /// Borrows the transport below.
    pub fn get_ref(&self) -> &S {
        &self.stream
    }

    /// Polls until there is content to take, or the direction has ended.
    fn poll_plain(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let content = self.poll_content(cx);
        if content.is_pending() {
            // A writer may end the stream meanwhile, and must then wake this reader.
            self.waiting.wait(TaskRole::Reader, cx);
        }
        content
    }

    fn poll_content(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let mut without_content = 0;
        // Polling for device events takes a lock of the transport. While the location is settled, received data need no
        // lock.
        let mut watched = self.rx.is_unsettled();
        if watched {
            self.handle_device_events(cx);
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
                    if !core::mem::replace(&mut watched, true) && self.handle_device_events(cx) {
                        // Complete records may have been received meanwhile.
                        continue;
                    }
                    if !ready!(self.poll_more(cx))? {
                        // RFC 8446 section 6.1: without a close_notify the data may have been truncated.
                        self.end_reading(DirectionState::Failed(TlsError::Truncated));
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
                // Cover traffic (RFC 8446 section 5.1) and KeyUpdates are unlimited in number, so other tasks get their
                // turn after every few records.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
    }

    /// Processes device events. Returns whether the receive direction was due to return to the device.
    fn handle_device_events(&mut self, cx: &mut Context<'_>) -> bool {
        self.watch_device(TaskRole::Reader, cx);
        let returns = self.rx.is_due();
        if returns {
            // This must not happen in the event handler: a writer may run the handler, and the transport must not wake
            // a writer for a reader.
            self.add_deferred(cx);
        }
        returns
    }

    /// Receives the next range from the transport. Returns false at the end. An error ends the direction.
    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<bool>> {
        let more = ready!(self.poll_range(cx));
        if let Err(error) = &more {
            self.end_reading(DirectionState::Lost(error.kind()));
        }
        Poll::Ready(more)
    }

    /// Receives the next range from the transport. Returns false at the end.
    fn poll_range(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<bool>> {
        // The window opens first, because the peer may wait for it before sending more.
        self.receive.return_credit(&mut self.stream);
        let segment = match self.receive.poll_segment(&mut self.stream, cx) {
            Poll::Ready(Ok(Some(segment))) => segment,
            Poll::Ready(Ok(None)) => return Poll::Ready(Ok(false)),
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending => {
                // The socket is drained, so the next record is still ahead of the device.
                self.rx.give_hint(&mut self.stream, self.receive.receiver(), &mut self.counters);
                self.receive.rest(&mut self.stream);
                return Poll::Pending;
            }
        };
        self.receive.receiver().push(segment);
        self.add_deferred(cx);
        // The new bytes may answer a question of the device.
        self.rx.answer_question(&mut self.stream, self.receive.receiver(), &mut self.counters);
        Poll::Ready(Ok(true))
    }

    /// Acts on a record. Its content is all that the receive half holds.
    fn act_on_record(&mut self, record: Record) -> Result<(), TlsError> {
        if record.content_type == ContentType::ApplicationData {
            self.messages.data()?;
            self.rx.note_data();
            // The content itself is credited when the application takes it.
            self.credit(record.wire_len - record.content_len);
            return Ok(());
        }
        let content = self.receive.take_whole(record.content_len);
        self.credit(record.wire_len);
        if record.content_type == ContentType::Alert {
            if self.messages.alert(&content)? == Alert::Close {
                self.end_reading(DirectionState::Closed);
            }
            return Ok(());
        }
        self.messages.handshake(&content)?;
        while let Some(message) = self.messages.next_message()? {
            match message {
                Message::Ticket(ticket) => self.schedule.store_ticket(&ticket).map_err(|error| match error {
                    // 4 is NewSessionTicket, which only servers may send.
                    ScheduleError::NoTickets => TlsError::UnexpectedHandshake(4),
                    other => other.into(),
                })?,
                Message::KeyUpdate { requested } => self.receive_key_update(requested)?,
                Message::Renegotiate => self.refuse_renegotiation()?,
            }
        }
        Ok(())
    }

    /// Refuses renegotiation. RFC 5246 section 7.2.2: after this warning both ends continue with the present keys.
    fn refuse_renegotiation(&mut self) -> Result<(), TlsError> {
        if !self.send.is_open() {
            return Ok(());
        }
        // The last record of an exhausted key is reserved for the alert that ends the connection.
        if self.send.is_used_up() {
            return Err(TlsError::KeyExhausted);
        }
        self.alert(AlertDescription::NO_RENEGOTIATION);
        Ok(())
    }

    /// Polls until the transport has room for a write.
    fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        self.poll_room(cx).map_ok(|_| ())
    }

    /// Registers the writer if `waited` is pending, because another task may end the stream meanwhile.
    fn as_writer<T>(&self, waited: Poll<T>, cx: &Context<'_>) -> Poll<T> {
        if waited.is_pending() {
            self.waiting.wait(TaskRole::Writer, cx);
        }
        waited
    }

    /// Returns whether a write of `bytes` bytes consists only of records for a device.
    fn writes_at_once(&self, bytes: usize) -> bool {
        self.send.writes_at_once(bytes) && !self.tx.waits()
    }

    /// Processes device events, or writes `data` as records for the device.
    fn poll_write_at_once(
        &mut self,
        cx: &mut Context<'_>,
        data: &mut NextPiece<'_>,
    ) -> Poll<std::io::Result<WriteOutcome>> {
        self.waiting.wait(TaskRole::Writer, cx);
        let mut cutter = self.send.cutter(data);
        let KtlsStream { stream, send, waiting, tx, counters, .. } = self;
        match ready!(send.poll_at_once(stream, cx, waiting, tx.policy(), counters, &mut cutter))? {
            ImmediateWrite::News(event) => {
                self.hear(Some(TaskRole::Writer), Some(event));
                Poll::Ready(Ok(WriteOutcome::HandledEvents))
            }
            ImmediateWrite::Written(first, None) => Poll::Ready(Ok(WriteOutcome::Written(first))),
            // The remaining content needs a key update or a policy decision first.
            ImmediateWrite::Written(first, left) => {
                let rest = self.write_contents(left, &mut cutter)?;
                self.stream.flush();
                Poll::Ready(Ok(WriteOutcome::Written(first.or(rest))))
            }
        }
    }

    /// Fills records with consecutive pieces; the last record ends with the last piece. Returns the sequence number of
    /// the first content byte.
    fn write_pieces(&mut self, pieces: &mut NextPiece<'_>) -> Result<Option<Seq>, TlsError> {
        let mut cutter = self.send.cutter(pieces);
        self.write_contents(None, &mut cutter)
    }

    /// Writes a record of `content` and then records of the remaining data in `cutter`.
    fn write_contents(
        &mut self,
        mut content: Option<(RecordPieces, usize)>,
        cutter: &mut Cutter<'_>,
    ) -> Result<Option<Seq>, TlsError> {
        let (mut first, sent) = (None, self.tx.policy().looked());
        while let Some((pieces, length)) = content.take().or_else(|| cutter.next_content(sent)) {
            let seq = self.write_record(RecordContent::Shared(&pieces), length)?;
            first = first.or(Some(seq));
        }
        Ok(first)
    }

    fn write_record(&mut self, content: RecordContent<'_>, length: usize) -> Result<Seq, TlsError> {
        if self.send.owes_update() {
            self.send_key_update(false)?;
        }
        // Only a record of data asks for the device, so an idle stream makes no requests.
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
            self.send.end(DirectionState::Closed);
            self.tx.abort_rekey(&mut self.counters);
            self.alert(AlertDescription::CLOSE_NOTIFY);
            self.stream.finish();
            self.send.retire_sealer(&mut self.stream);
            self.note_places();
            self.waiting.wake_all();
        }
    }

    /// Ends both directions without notifying the peer. The transport delivers queued data.
    fn end(&mut self) {
        if self.send.is_open() {
            self.send.end(DirectionState::Closed);
            self.tx.abort_rekey(&mut self.counters);
        }
        self.send.retire_sealer(&mut self.stream);
        if self.receive.is_open() {
            self.end_reading(DirectionState::Closed);
        }
        self.note_places();
        // The transport keeps a released transmit context until the last byte that needs it has left.
        self.contexts.keep_only(&mut self.stream, [None; 2]);
    }

    /// Ends the receive direction; received data are not read.
    fn end_reading(&mut self, end: DirectionState) {
        self.receive.end(end);
        self.rx.abort_rekey(&mut self.counters);
        self.leave_receive_context();
    }

    /// Fails the connection: sends the alert, ends the stream, and stores the error for both directions.
    fn fail(&mut self, error: TlsError) {
        debug!(parent: &self.span, %error, "TLS failed");
        if self.send.is_open() {
            if let Some(description) = error.alert() {
                self.alert(description);
            }
            self.stream.finish();
        }
        // The alert is queued, so no other record may follow.
        self.send.end(DirectionState::Failed(error.clone()));
        self.tx.abort_rekey(&mut self.counters);
        self.send.retire_sealer(&mut self.stream);
        self.end_reading(DirectionState::Failed(error));
        self.waiting.wake_all();
    }

    fn alert(&mut self, description: AlertDescription) {
        // Recording fails only if the key has no number left. The stream then ends without an alert.
        let alert = messages::alert(description);
        let _ = self.send.record(&mut self.stream, &mut self.counters, ContentType::Alert, RecordContent::Lent(&alert));
        self.stream.flush();
    }

    /// Notes that `bytes` more received bytes were consumed.
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

/// Maximum number of records without content that one poll of a reader processes.
const WITHOUT_CONTENT_AT_ONCE: u32 = 32;
/// Maximum number of bytes that one write takes.
const WRITE_MAX: usize = 256 << 10;
