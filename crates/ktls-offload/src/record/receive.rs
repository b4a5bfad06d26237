//! Cuts records out of received ranges and opens the parts that the device did not decrypt.
//!
//! Invariant: the metadata of every range tells whether its bytes are ciphertext or decrypted by a device. Content is
//! released only after the tag is verified: by one device context that saw the whole record, or in software.

use super::inbox::RecordInbox;
use super::starts::RecordStarts;
use super::{CONTENT_MAX, ContentType, HEADER_LEN, VERSION};
use crate::counters::TlsCounters;
use crate::error::TlsError;
use crate::keys::{PieceKey, RecordKey, RecordPrefix, TAG_LEN, UnsupportedKey};
use bytes::BytesMut;
use offload_api::rx::{Checksums, TlsVerdict};
use offload_api::{Handle, RecordFormat, RxMeta, RxSegment, TlsKey, TlsVersion, engines};
use offload_base::Seq;
use offload_base::cost::{self, WorkKind};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;

/// An opened record. Its content is returned separately as ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// Sequence number of the first byte.
    pub(crate) start: Seq,
    /// Record number.
    pub(crate) number: u64,
    /// How the record was opened.
    pub(crate) opened: OpenedBy,
    /// Content type.
    pub(crate) content_type: ContentType,
    /// Content length in bytes.
    pub(crate) content_len: usize,
    /// Length on the wire in bytes.
    pub(crate) wire_len: usize,
}

/// The component that opened a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenedBy {
    /// The device opened the whole record.
    ByDevice,
    /// The device decrypted a part, this crate the rest.
    InPart,
    /// This crate opened the whole record.
    InSoftware,
}

/// The receive half of a record layer.
pub(crate) struct RecordReceiver {
    inbox: RecordInbox,
    traffic: TlsKey,
    key: RecordKey,
    /// The key for partly decrypted records. Created with the first such record.
    piece_key: Option<Arc<PieceKey>>,
    number: u64,
    /// The number of keys before the present one.
    epoch: u64,
    /// Contexts whose verdicts may still arrive, newest last.
    contexts: SmallVec<[RxContext; 1]>,
    starts: RecordStarts,
    /// Wire bytes of all records released.
    given: u64,
    /// Whether the device decrypted a part of the last record with the present key.
    device_has_key: bool,
    /// The last boundary found by following headers in the inbox. Saving the boundary bounds the work: a peer could
    /// otherwise force repeated walks over many small records.
    known: Boundary,
}

/// The answer to a question about a record boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BoundaryAnswer {
    /// The record of this number begins there.
    Record(u64),
    /// No record begins there, or the record is forgotten.
    Nothing,
    /// Unknown until more bytes arrive.
    NotYet,
}

/// A record boundary, relative to the start of the inbox.
#[derive(Clone, Copy, Debug, Default)]
struct Boundary {
    bytes: usize,
    records: u64,
}

/// A receive context, present or past.
struct RxContext {
    handle: Handle,
    /// Offset in the stream of the first byte that the context gets. The previous context is removed by then, so its
    /// bytes end here.
    start: u64,
    /// The epoch of the context's key.
    epoch: u64,
    /// The context's key and a wrapping offset from our record number to the device's, once the epoch is over.
    stale: Option<(Arc<PieceKey>, u64)>,
    /// Stream offset beyond which the context surely decrypted no bytes. `None` while unknown.
    until: Option<u64>,
}

/// The state of a received range's bytes.
enum ByteForm<'a> {
    /// Wire bytes, not decrypted.
    Ciphertext,
    /// Decrypted with the present key.
    Plaintext,
    /// Decrypted with an outdated key and record number, which yields neither plaintext nor ciphertext.
    Noise(&'a PieceKey, u64),
}

impl RecordReceiver {
    pub(crate) fn new(number: u64, traffic: TlsKey, inbox: RecordInbox) -> Result<RecordReceiver, UnsupportedKey> {
        Ok(RecordReceiver {
            key: RecordKey::new(&traffic)?,
            inbox,
            traffic,
            piece_key: None,
            number,
            epoch: 0,
            contexts: SmallVec::new(),
            starts: RecordStarts::default(),
            given: 0,
            device_has_key: false,
            known: Boundary::default(),
        })
    }

    /// Appends the next received range.
    pub(crate) fn push(&mut self, segment: RxSegment) {
        self.inbox.push(segment);
    }

    /// Sets the sequence number of the first range, if no range has arrived.
    pub(crate) fn begin_at(&mut self, seq: Seq) {
        self.inbox.begin_at(seq);
    }

    /// Returns whether verdicts of this context may still arrive.
    pub(crate) fn knows_context(&self, handle: Handle) -> bool {
        self.contexts.iter().any(|context| context.handle == handle)
    }

    /// Returns the number of received bytes that do not yet form a record.
    pub(crate) fn pending(&self) -> usize {
        self.inbox.len()
    }

    /// Opens the next record if the inbox holds all of it. The content is appended to `content` without empty ranges.
    ///
    /// # Errors
    /// [`TlsError`], whose alert ends the connection. `content` is then unchanged.
    pub(crate) fn next_record(
        &mut self,
        content: &mut VecDeque<RxSegment>,
        counters: &mut TlsCounters,
    ) -> Result<Option<Record>, TlsError> {
        let _framing = cost::work(WorkKind::Framing);
        let Some(header) = self.inbox.header_at(0) else {
            return Ok(None);
        };
        let format = self.key.format();
        // The header is validated before its record is complete, so that an invalid length is reported at once.
        let wire_len = HEADER_LEN + check_header(format, header)?;
        if self.inbox.len() < wire_len {
            return Ok(None);
        }
        let before = content.len();
        let start = self.inbox.start().unwrap_or_default();
        let opened = self.open(wire_len, content, counters);
        let opened = match opened.and_then(|by| check_body(format, wire_len).map(|()| by)) {
            Ok(by) => by,
            Err(error) => {
                // A failed record may have appended unauthenticated plaintext, which must not be released.
                content.truncate(before);
                counters.decrypt_error += u64::from(error == TlsError::BadRecordMac);
                return Err(error);
            }
        };
        let number = self.number;
        // A device may ask about this record long after its release.
        self.starts.note(start, number);
        self.given += wire_len as u64;
        self.known = self.known.after_record(wire_len);
        self.number = number.checked_add(1).ok_or(TlsError::KeyExhausted)?;
        let (content_type, content_len) = match format.version() {
            TlsVersion::Tls12 => {
                content.retain(|range| !range.data.is_empty());
                let content_type = ContentType::from_code(header[0]).ok_or(TlsError::UnexpectedRecord(header[0]))?;
                (content_type, wire_len - format.overhead())
            }
            _ => strip(content, before)?,
        };
        Ok(Some(Record { start, number, opened, content_type, content_len, wire_len }))
    }

    /// Cuts off a record and appends its body, including content type and padding, to `content`.
    fn open(
        &mut self,
        wire_len: usize,
        content: &mut VecDeque<RxSegment>,
        counters: &mut TlsCounters,
    ) -> Result<OpenedBy, TlsError> {
        let (body_start, body_end) = (self.key.format().prefix_len(), wire_len - TAG_LEN);
        let (mut at, mut pieces, mut changed_bytes) = (0, 0, 0);
        // The context that decrypted the whole record. Only a context that saw all bytes has verified the tag.
        let mut by_one = self.inbox.runs(wire_len).next().and_then(|(_, meta)| meta.tls_context());
        let mut device_has_key = false;
        for (run, meta) in self.inbox.runs(wire_len) {
            let side = self.side(meta);
            device_has_key |= matches!(side, ByteForm::Plaintext);
            if !matches!(side, ByteForm::Plaintext) || meta.tls_context() != by_one {
                by_one = None;
            }
            if !matches!(side, ByteForm::Ciphertext) {
                changed_bytes += overlap(at, at + run, body_start, body_end);
            }
            at += run;
            pieces += 1;
        }
        self.device_has_key = device_has_key;
        // One context saw the whole record and verified its tag, so the content is released as it is.
        if by_one.is_some() {
            counters.rx_records_device += 1;
            self.inbox.skip(body_start);
            self.inbox.take(body_end - body_start, |range| content.push_back(range));
            self.inbox.skip(TAG_LEN);
            return Ok(OpenedBy::ByDevice);
        }
        let prefix = self.take_prefix();
        // All bytes are ciphertext, so the library for whole records can open the record.
        if changed_bytes == 0 {
            counters.rx_records_sw += 1;
            self.open_whole(&prefix, wire_len, pieces == 1, content)?;
            return Ok(OpenedBy::InSoftware);
        }
        counters.rx_records_partial += 1;
        self.open_pieces(&prefix, body_end - body_start, content, counters)?;
        Ok(OpenedBy::InPart)
    }

    /// Opens a record without decrypted bytes: in place if the record lies in one range, else in a copy.
    fn open_whole(
        &mut self,
        prefix: &RecordPrefix,
        wire_len: usize,
        one_piece: bool,
        content: &mut VecDeque<RxSegment>,
    ) -> Result<(), TlsError> {
        let length = wire_len - prefix.len();
        let mut whole = None;
        if one_piece {
            self.inbox.take(length, |range| whole = Some(range));
        } else {
            let _copy = cost::work(WorkKind::Copy);
            let mut buffer = BytesMut::with_capacity(length);
            let mut meta: Option<RxMeta> = None;
            let seq = self.inbox.start().unwrap_or_default();
            self.inbox.take(length, |range| {
                buffer.extend_from_slice(&range.data);
                meta = Some(meta.map_or(range.meta, |so_far| both(so_far, range.meta)));
            });
            whole = meta.map(|meta| RxSegment { seq, data: buffer.into(), meta });
        }
        let mut whole = whole.expect("a record has at least a tag");
        let _crypto = cost::work(WorkKind::Crypto);
        if !self.key.open(self.number, prefix, whole.data.bytes_mut()) {
            return Err(TlsError::BadRecordMac);
        }
        whole.truncate(length - TAG_LEN);
        content.push_back(whole);
        Ok(())
    }

    /// Opens a partly decrypted record: software decrypts the remaining ranges in place and authenticates all of them.
    fn open_pieces(
        &mut self,
        prefix: &RecordPrefix,
        body: usize,
        content: &mut VecDeque<RxSegment>,
        counters: &mut TlsCounters,
    ) -> Result<(), TlsError> {
        let before = content.len();
        self.inbox.take(body, |range| content.push_back(range));
        let mut tag = [0; TAG_LEN];
        self.inbox.copy_off(&mut tag);

        let _crypto = cost::work(WorkKind::Crypto);
        let piece_key = self.piece_key()?;
        let mut state = piece_key.begin(self.number, prefix);
        let mut at = 0u64;
        for range in content.range_mut(before..) {
            let side = self.side(&range.meta);
            // A stage above TLS may have transformed placed data. Authentication needs the data as received.
            if !range.data.close() {
                return Err(TlsError::BadRecordMac);
            }
            let data = range.data.bytes_mut();
            let done = match side {
                ByteForm::Plaintext => state.authenticate_plaintext(&piece_key.key, data),
                ByteForm::Ciphertext => {
                    counters.rx_partial_sw_bytes += data.len() as u64;
                    state.decrypt(&piece_key.key, data)
                }
                ByteForm::Noise(earlier, number) => {
                    // Counter mode is its own inverse: applying the keystream again restores the wire bytes.
                    counters.rx_restored_bytes += data.len() as u64;
                    // Verdicts of engines above TLS were about garbage.
                    range.meta.marks.keep(engines::TLS);
                    earlier
                        .apply_keystream(number, at, data)
                        .map_err(Into::into)
                        .and_then(|()| state.decrypt(&piece_key.key, data))
                }
            };
            // A record is far shorter than any limit of the algorithm, so the only possible error is a failed
            // verification.
            done.map_err(|_| TlsError::BadRecordMac)?;
            at += range.data.len() as u64;
        }
        state.verify(&piece_key.key, &tag).map_err(|_| TlsError::BadRecordMac)
    }

    /// Cuts off the prefix of a record.
    fn take_prefix(&mut self) -> RecordPrefix {
        let mut prefix = RecordPrefix::from_elem(0, self.key.format().prefix_len());
        self.inbox.copy_off(&mut prefix);
        prefix
    }

    /// Returns the state of the bytes with this `meta` in the current record.
    fn side(&self, meta: &RxMeta) -> ByteForm<'_> {
        if meta.tls() != TlsVerdict::Decrypted {
            return ByteForm::Ciphertext;
        }
        let context = self.contexts.iter().rev().find(|context| Some(context.handle) == meta.tls_context());
        match context {
            Some(RxContext { stale: Some((key, shift)), .. }) => ByteForm::Noise(key, self.number.wrapping_add(*shift)),
            Some(context) if context.epoch == self.epoch => ByteForm::Plaintext,
            // The context belongs to no direction of this stream. Its verdict is ignored; the tag decides.
            _ => ByteForm::Ciphertext,
        }
    }

    fn piece_key(&mut self) -> Result<Arc<PieceKey>, TlsError> {
        if let Some(key) = &self.piece_key {
            return Ok(key.clone());
        }
        let key = Arc::new(PieceKey::new(&self.traffic).map_err(|unsupported| TlsError::Schedule(unsupported.into()))?);
        self.piece_key = Some(key.clone());
        Ok(key)
    }

    /// Switches to the next key, at record number 0. The last released record was the last of the old key.
    ///
    /// # Errors
    /// [`TlsError::Schedule`] if the key is not supported.
    pub(crate) fn rekey(&mut self, traffic: TlsKey) -> Result<(), TlsError> {
        debug_assert_eq!(traffic.version(), self.traffic.version(), "a version is not changed");
        let key = RecordKey::new(&traffic).map_err(|unsupported| TlsError::Schedule(unsupported.into()))?;
        // A device without the new key keeps counting, and decrypts the first packets of a record with the old key
        // before the tag fails. To undo this, the device's record number must be known.
        let passed = self.number;
        if self.contexts.iter().any(|context| context.stale.is_none()) {
            let ended = self.piece_key()?;
            for context in self.contexts.iter_mut().filter(|context| context.stale.is_none()) {
                context.stale = Some((ended.clone(), 0));
            }
        }
        for context in &mut self.contexts {
            if let Some((_, shift)) = &mut context.stale {
                *shift = shift.wrapping_add(passed);
            }
        }
        self.key = key;
        self.traffic = traffic;
        self.piece_key = None;
        self.number = 0;
        // Record numbers restart with the new key.
        self.starts.clear();
        self.epoch += 1;
        Ok(())
    }

    /// Returns the number of outdated keys kept for data that a device decrypted with them.
    pub(crate) fn earlier_keys(&self) -> usize {
        self.contexts.iter().filter(|context| context.stale.is_some()).count()
    }

    /// Notes that the device removed the context `gone`. `furthest` is the end of the transport's received data.
    pub(crate) fn note_context_gone(&mut self, gone: Handle, furthest: Option<Seq>) {
        // Packets that the device passed to its ring before the removal may still arrive.
        let until = self.offset_after(furthest).saturating_add(RING_MAX);
        for context in self.contexts.iter_mut().filter(|context| context.handle == gone) {
            context.until.get_or_insert(until);
        }
    }

    /// Drops outdated keys after all data that a device decrypted with them was released. Called for each record.
    pub(crate) fn drop_earlier_keys(&mut self, furthest: Option<Seq>) {
        if self.device_has_key {
            // The device had removed the earlier contexts before it got this key, so the transport already holds all
            // bytes that those contexts decrypted.
            let until = self.offset_after(furthest);
            for context in self.contexts.iter_mut().filter(|context| context.stale.is_some()) {
                context.until = Some(context.until.map_or(until, |known| known.min(until)));
            }
        }
        let given = self.given;
        self.contexts.retain(|context| context.stale.is_none() || context.until.is_none_or(|until| until > given));
    }

    /// Returns the stream offset of `furthest`, which has arrived, or an upper bound if `furthest` is unknown.
    fn offset_after(&self, furthest: Option<Seq>) -> u64 {
        let ahead = match (self.inbox.start(), furthest) {
            (Some(start), Some(furthest)) if furthest.at_or_after(start) => furthest.distance_from(start).into(),
            (_, Some(_)) => 0,
            (_, None) => self.inbox.len() as u64 + WINDOW_MAX,
        };
        self.given + ahead
    }

    /// Returns the first record boundary after all received bytes, and that record's number: the position at which a
    /// device may begin. `None` while the position is unknown.
    ///
    /// # Errors
    /// [`TlsError`] if received bytes are not a record, or record numbers are exhausted.
    pub(crate) fn next_boundary(&mut self) -> Result<Option<(Seq, u64)>, TlsError> {
        let Some(start) = self.inbox.start() else { return Ok(None) };
        let format = self.key.format();
        while self.known.bytes < self.inbox.len() {
            let Some(next) = self.known.next(format, &self.inbox)? else { return Ok(None) };
            self.known = next;
        }
        let number = self.number.checked_add(self.known.records).ok_or(TlsError::KeyExhausted)?;
        Ok(Some((start + self.known.bytes as u32, number)))
    }

    /// Returns the positions and numbers of the last released records, oldest first.
    pub(crate) fn last_starts(&self) -> impl Iterator<Item = (Seq, u64)> {
        self.starts.iter()
    }

    /// Returns whether a record begins at `header`, and its number.
    pub(crate) fn locate(&mut self, header: Seq) -> BoundaryAnswer {
        let Some(start) = self.inbox.start() else { return BoundaryAnswer::NotYet };
        if header.before(start) {
            return self.starts.number_at(header).map_or(BoundaryAnswer::Nothing, BoundaryAnswer::Record);
        }
        let place = header.distance_from(start) as usize;
        // A device asks about recent bytes, so most earlier headers have been followed already.
        let mut boundary = if self.known.bytes <= place { self.known } else { Boundary::default() };
        let located = loop {
            if boundary.bytes == place {
                break BoundaryAnswer::Record(self.number.wrapping_add(boundary.records));
            }
            match boundary.next(self.key.format(), &self.inbox) {
                Ok(Some(next)) if next.bytes <= place => boundary = next,
                Ok(Some(_)) | Err(_) => break BoundaryAnswer::Nothing,
                Ok(None) => break BoundaryAnswer::NotYet,
            }
        };
        if boundary.bytes > self.known.bytes {
            self.known = boundary;
        }
        located
    }

    /// Returns whether another context can be remembered. If necessary, forgets the oldest context, provided that all
    /// data it decrypted was released and none is in the inbox. The transport may still hold such data out of order, so
    /// contexts are not forgotten earlier than necessary.
    pub(crate) fn has_room_for_context(&mut self) -> bool {
        if self.contexts.len() == CONTEXTS_MAX && self.contexts[1].start <= self.given {
            self.contexts.remove(0);
        }
        self.contexts.len() < CONTEXTS_MAX
    }

    /// Accepts verdicts of the new context `handle`, which has the present key and begins at the [next
    /// boundary](Self::next_boundary). There must be [room](Self::has_room_for_context).
    pub(crate) fn add_context(&mut self, handle: Handle) {
        debug_assert!(self.contexts.len() < CONTEXTS_MAX);
        let start = self.given + self.known.bytes as u64;
        self.contexts.push(RxContext { handle, start, epoch: self.epoch, stale: None, until: None });
    }

    /// Returns the present key.
    pub(crate) fn key(&self) -> &TlsKey {
        &self.traffic
    }

    /// Frees memory that an idle stream does not need.
    pub(crate) fn shrink(&mut self) {
        self.inbox.shrink();
    }

    /// Discards received data.
    pub(crate) fn clear(&mut self) {
        self.inbox.clear();
        self.known = Boundary::default();
    }
}

impl Boundary {
    /// Returns the boundary after this record, or `None` if this record's header is incomplete.
    fn next(self, format: RecordFormat, inbox: &RecordInbox) -> Result<Option<Boundary>, TlsError> {
        let Some(header) = inbox.header_at(self.bytes) else { return Ok(None) };
        let bytes = self.bytes + HEADER_LEN + check_header(format, header)?;
        Ok(Some(Boundary { bytes, records: self.records + 1 }))
    }

    /// Returns the same boundary after the first record of `wire_len` bytes left the inbox, or the new start of the
    /// inbox if the boundary lies before that.
    fn after_record(self, wire_len: usize) -> Boundary {
        Boundary { bytes: self.bytes.saturating_sub(wire_len), records: self.records.saturating_sub(1) }
    }
}

/// Removes padding and content type (RFC 8446 section 5.4) from an opened record. Returns the type and the content
/// length.
fn strip(content: &mut VecDeque<RxSegment>, before: usize) -> Result<(ContentType, usize), TlsError> {
    let mut content_type = None;
    // The content type is the last non-zero byte; zero padding follows it.
    while content.len() > before && content_type.is_none() {
        let last = content.back_mut().expect("there are more than before");
        match last.data.iter().rposition(|byte| *byte != 0) {
            Some(at) => {
                content_type = Some(last.data[at]);
                last.truncate(at);
            }
            None => last.truncate(0),
        }
        if last.data.is_empty() {
            content.pop_back();
        }
    }
    let Some(code) = content_type else {
        return Err(TlsError::OnlyPadding);
    };
    let Some(content_type) = ContentType::from_code(code) else {
        content.truncate(before);
        return Err(TlsError::UnexpectedContent(code));
    };
    let content_len = content.range(before..).map(|range| range.data.len()).sum();
    if content_len > CONTENT_MAX {
        content.truncate(before);
        return Err(TlsError::RecordOverflow { length: content_len });
    }
    Ok((content_type, content_len))
}

/// Checks the header of a protected record and returns its length field.
fn check_header(format: RecordFormat, header: [u8; HEADER_LEN]) -> Result<usize, TlsError> {
    let [outer, major, minor, high, low] = header;
    let length = usize::from(u16::from_be_bytes([high, low]));
    if !format.has_outer_type(outer) {
        return Err(TlsError::UnexpectedRecord(outer));
    }
    if [major, minor] != VERSION {
        return Err(TlsError::UnknownVersion(u16::from_be_bytes([major, minor])));
    }
    if length > format.longest() {
        return Err(TlsError::RecordOverflow { length });
    }
    if length < format.shortest() {
        // A record shorter than its overhead cannot verify.
        return Err(TlsError::BadRecordMac);
    }
    Ok(length)
}

/// Checks the limit of RFC 8446 section 5.4: content, type and padding together exceed the maximum content by at most
/// one byte. (Records of TLS 1.2 have no padding.)
fn check_body(format: RecordFormat, wire_len: usize) -> Result<(), TlsError> {
    let length = wire_len - format.prefix_len() - TAG_LEN;
    if length > CONTENT_MAX + format.inner_type_len() { Err(TlsError::RecordOverflow { length }) } else { Ok(()) }
}

/// Returns the number of bytes common to two ranges.
fn overlap(start: usize, end: usize, other_start: usize, other_end: usize) -> usize {
    end.min(other_end).saturating_sub(start.max(other_start))
}

/// Returns the metadata of two ranges merged into one.
pub(crate) fn both(a: RxMeta, b: RxMeta) -> RxMeta {
    let checksums = if a.checksums == b.checksums { a.checksums } else { Checksums::Unchecked };
    RxMeta { checksums, ..RxMeta::default() }
}

/// Maximum number of remembered contexts: enough for several resets and key changes within one window.
const CONTEXTS_MAX: usize = 8;
/// Maximum bytes of a flow in a device's receive ring: a thousand coalesced packets.
const RING_MAX: u64 = 64 << 20;
/// The largest TCP window (RFC 7323 section 2.3).
const WINDOW_MAX: u64 = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;
    use offload_api::{TlsSuite, Verdict};

    const FIRST: Seq = Seq(u32::MAX - 10_000);
    const NUMBER: u64 = 7;

    fn receiver() -> RecordReceiver {
        let key = TlsKey::new(TlsVersion::Tls13, TlsSuite::Aes128Gcm, &[8; 16], [6; 12]).unwrap();
        RecordReceiver::new(NUMBER, key, RecordInbox::default()).unwrap()
    }

    /// Returns records with one byte of content each, for tests that never open them.
    fn tiny_records(count: usize) -> Vec<u8> {
        let mut record = vec![23, VERSION[0], VERSION[1], 0, TINY as u8 - 5];
        record.resize(TINY, 0);
        record.repeat(count)
    }

    fn push(receiver: &mut RecordReceiver, at: usize, bytes: &[u8]) {
        let data = BytesMut::from(bytes).into();
        receiver.push(RxSegment { seq: FIRST + at as u32, data, meta: RxMeta::default() });
    }

    /// Gives record `number` of `key` to the receiver, decrypted by `context` if there is one. Returns the record's
    /// end.
    fn feed(receiver: &mut RecordReceiver, key: &TlsKey, number: u64, seq: Seq, context: Option<Handle>) -> Seq {
        let sealing = RecordKey::new(key).unwrap();
        let prefix = sealing.prefix(number, 23, 101);
        let mut body = vec![23; 101];
        let tag = sealing.seal(number, &prefix, &mut body);
        let mut meta = RxMeta::default();
        if let Some(context) = context {
            body = vec![23; 101];
            meta = meta.marked(context, Verdict::Done);
        }
        let bytes = [&prefix[..], &body, &tag].concat();
        let end = seq + bytes.len() as u32;
        receiver.push(RxSegment { seq, data: BytesMut::from(&bytes[..]).into(), meta });
        assert!(receiver.next_record(&mut VecDeque::new(), &mut TlsCounters::default()).unwrap().is_some());
        end
    }

    #[test]
    fn replaced_key_is_dropped_after_its_last_decrypted_byte() {
        let key = |byte: u8| TlsKey::new(TlsVersion::Tls13, TlsSuite::Aes128Gcm, &[byte; 16], [6; 12]).unwrap();
        let handle = |index| Handle { index, generation: 0 };
        for gone in [false, true] {
            let mut receiver = RecordReceiver::new(0, key(1), RecordInbox::default()).unwrap();
            receiver.begin_at(FIRST);
            receiver.next_boundary().unwrap();
            receiver.add_context(handle(0));
            let mut seq = feed(&mut receiver, &key(1), 0, FIRST, Some(handle(0)));
            receiver.rekey(key(2)).unwrap();
            let old = receiver.contexts[0].stale.as_ref().map(|(key, _)| Arc::downgrade(key)).unwrap();
            let mut number = 0;
            let mut next = |receiver: &mut RecordReceiver, ahead: Option<u32>, context| {
                seq = feed(receiver, &key(2), number, seq, context);
                number += 1;
                receiver.drop_earlier_keys(ahead.map(|ahead| seq + ahead));
                old.upgrade().is_some()
            };
            // While the context exists, data decrypted with the old key may always arrive.
            (0..100).for_each(|_| assert!(next(&mut receiver, Some(0), None), "who knows what is under way"));
            if gone {
                // No context followed, so only the ring size bounds the data under way.
                receiver.note_context_gone(handle(0), Some(seq_of(&receiver) + 300));
                assert!(next(&mut receiver, Some(0), None));
                receiver.given += RING_MAX;
                assert!(next(&mut receiver, Some(0), None));
                assert!(!next(&mut receiver, Some(0), None));
                continue;
            }
            receiver.next_boundary().unwrap();
            receiver.add_context(handle(1));
            assert!(next(&mut receiver, Some(0), None));
            assert!(next(&mut receiver, Some(300), Some(handle(1))), "what lies beyond a hole is still to come");
            assert!(next(&mut receiver, None, Some(handle(1))), "the transport need not know how much");
            assert!(next(&mut receiver, Some(0), None));
            assert!(!next(&mut receiver, Some(0), None), "300 bytes on");
            assert_eq!((receiver.contexts.len(), receiver.earlier_keys()), (1, 0));
        }
    }

    fn seq_of(receiver: &RecordReceiver) -> Seq {
        receiver.inbox.start().unwrap()
    }

    #[test]
    fn headers_are_followed_once_however_often_somebody_asks() {
        const RECORDS: usize = 10_000;
        const SEGMENT: usize = 100;
        let bytes = tiny_records(RECORDS);
        let mut receiver = receiver();
        for (index, segment) in bytes.chunks(SEGMENT).enumerate() {
            push(&mut receiver, index * SEGMENT, segment);
            let whole = ((index * SEGMENT + segment.len()) / TINY) as u64;
            // Covers a device that asks about every segment, and a device that is offered the rest of the stream.
            let header = FIRST + (whole as usize * TINY) as u32;
            assert_eq!(receiver.locate(header), BoundaryAnswer::Record(NUMBER + whole));
            assert_eq!(receiver.locate(header + 2 * TINY as u32), BoundaryAnswer::NotYet);
            if let Some((start, number)) = receiver.next_boundary().unwrap() {
                let records = number - NUMBER;
                assert!(records == whole || records == whole + 1);
                assert_eq!(start, FIRST + (records as usize * TINY) as u32);
            }
        }
        assert_eq!(receiver.next_boundary(), Ok(Some((FIRST + bytes.len() as u32, NUMBER + RECORDS as u64))));
        // Each lookup costs a binary search over the segments and at most two visits. Each segment may cause three
        // lookups without a result.
        let segments = bytes.len() / SEGMENT;
        let each = segments.ilog2() as usize + 1 + 2;
        let most = (RECORDS + 3 * segments) * each;
        assert!(receiver.inbox.steps() <= most, "{} steps, at most {most}", receiver.inbox.steps());
    }

    #[test]
    fn records_are_located_before_and_behind_the_place_followed_to() {
        let mut receiver = receiver();
        push(&mut receiver, 0, &tiny_records(20));
        for known in [0, 5, 20] {
            assert_eq!(receiver.locate(FIRST + known * TINY as u32), BoundaryAnswer::Record(NUMBER + u64::from(known)));
            for at in 0..20 * TINY as u32 {
                let expected = match at % TINY as u32 {
                    0 => BoundaryAnswer::Record(NUMBER + u64::from(at) / TINY as u64),
                    _ => BoundaryAnswer::Nothing,
                };
                assert_eq!(receiver.locate(FIRST + at), expected, "{at} bytes on");
            }
        }
    }

    const TINY: usize = 23;
}
