//! Frames records, and seals them unless a device will.
//!
//! Invariant: the same contents in the same order make the same bytes on the wire, in software or by a NIC; each number
//! goes to one record.

use super::{CONTENT_MAX, ContentType};
use crate::counters::TlsCounters;
use crate::error::TlsError;
use crate::keys::{RecordKey, TAG_LEN, UnsupportedKey, record_limit};
use crate::sealer::RecordSealer;
use bytes::{Bytes, BytesMut};
use offload_api::{Handle, TlsKey, TlsVersion, TxTag, UnitTag};
use offload_base::cost::{self, WorkKind};
use std::sync::Arc;

/// Who turns a record into what belongs on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protection {
    /// This crate, before it is queued.
    Software,
    /// A device, on its way out.
    Device(Handle),
}

/// Content on its way into a record.
pub(crate) enum Content<'a> {
    /// Shared, in pieces, each with its place in the units of the layers above, and with the context that is to fill
    /// digests in, if they have some: a device reads it where it is.
    Shared(&'a [(Bytes, TxTag)]),
    /// Lent: it is copied in any case.
    Lent(&'a [u8]),
}

impl Content<'_> {
    /// Whether some of it is not yet what belongs in the record.
    pub(crate) fn wants_digests(&self) -> bool {
        matches!(self, Content::Shared(pieces) if pieces.iter().any(|(_, upper)| upper.is_pending()))
    }

    fn len(&self) -> usize {
        match self {
            Content::Shared(pieces) => pieces.iter().map(|(bytes, _)| bytes.len()).sum(),
            Content::Lent(bytes) => bytes.len(),
        }
    }
}

/// The transmit half of a record layer.
pub(crate) struct Sender {
    traffic: TlsKey,
    key: Arc<RecordKey>,
    number: u64,
    limit: u64,
    protection: Protection,
    /// The number from which on the transport has a sealer for this key.
    sealed_from: Option<u64>,
    /// What inner plaintext is padded to a multiple of; 1: it is not.
    pad_to: usize,
    /// The prefix made last: most records of a stream are of one length.
    prefix: Bytes,
    /// The padded trailer made last, likewise.
    trailer: Bytes,
}

impl Sender {
    pub(crate) fn new(number: u64, traffic: TlsKey) -> Result<Sender, UnsupportedKey> {
        Ok(Sender {
            key: Arc::new(RecordKey::new(&traffic)?),
            number,
            limit: record_limit(traffic.suite()),
            protection: Protection::Software,
            sealed_from: None,
            pad_to: 1,
            prefix: Bytes::new(),
            trailer: Bytes::new(),
            traffic,
        })
    }

    /// Makes one record and gives it to `queue`, in one piece or several. `upper` says where `content` lies in the
    /// units of the layers above, if it does, and which context is to fill digests in. Then the content is not yet what
    /// belongs in the record, so that is never sealed here: without a device the transport does it, which must have a
    /// sealer.
    ///
    /// # Errors
    /// [`TlsError::KeyExhausted`], [`TlsError::TooManyLayers`]. Then no number is used; what was queued is to be dropped.
    pub(crate) fn record(
        &mut self,
        content_type: ContentType,
        content: Content<'_>,
        counters: &mut TlsCounters,
        queue: &mut dyn FnMut(Bytes, TxTag),
    ) -> Result<(), TlsError> {
        let _framing = cost::work(WorkKind::Framing);
        // The last alert may still go out with a key that is used up: it ends the connection.
        let hard_limit = if content_type == ContentType::Alert { u64::MAX - 1 } else { self.limit };
        if self.number >= hard_limit {
            return Err(TlsError::KeyExhausted);
        }
        let number = self.number;
        // The transport's sealer goes no further than the key may, so nothing beyond is left to a device.
        let protection = if number < self.limit { self.protection } else { Protection::Software };
        match protection {
            Protection::Software if content.wants_digests() => {
                debug_assert!(self.sealed_from.is_some());
                self.leave_to_device(number, Handle::NO_DEVICE, content_type, content, queue)?;
                counters.tx_records_sw += 1;
            }
            Protection::Software => {
                counters.tx_records_sw += 1;
                self.seal(number, content_type, content, queue);
            }
            Protection::Device(handle) => {
                self.leave_to_device(number, handle, content_type, content, queue)?;
                counters.tx_records_device += 1;
            }
        }
        self.number += 1;
        Ok(())
    }

    fn seal(&self, number: u64, content_type: ContentType, content: Content<'_>, queue: &mut dyn FnMut(Bytes, TxTag)) {
        debug_assert!(content.len() <= CONTENT_MAX);
        let trailer = self.trailer_len(content.len());
        let prefix = self.key.prefix(number, content_type.code(), content.len() + trailer - TAG_LEN);
        let length = prefix.len() + content.len() + trailer;
        let mut record = BytesMut::with_capacity(length);
        record.extend_from_slice(&prefix);
        {
            let _copy = cost::work(WorkKind::Copy);
            match content {
                Content::Shared(pieces) => pieces.iter().for_each(|(bytes, _)| record.extend_from_slice(bytes)),
                Content::Lent(bytes) => record.extend_from_slice(bytes),
            }
        }
        if trailer > TAG_LEN {
            record.extend_from_slice(&[content_type.code()]);
        }
        record.resize(length - TAG_LEN, 0);
        let tag = {
            let _crypto = cost::work(WorkKind::Crypto);
            self.key.seal(number, &prefix, &mut record[prefix.len()..])
        };
        record.extend_from_slice(&tag);
        queue(record.freeze(), TxTag::done(UnitTag { number, at: 0, len: length as u32, touched_from: 0 }));
    }

    fn leave_to_device(
        &mut self,
        number: u64,
        handle: Handle,
        content_type: ContentType,
        content: Content<'_>,
        queue: &mut dyn FnMut(Bytes, TxTag),
    ) -> Result<(), TlsError> {
        let trailer = self.trailer(content_type, content.len());
        let prefix = self.key.prefix(number, content_type.code(), content.len() + trailer.len() - TAG_LEN);
        if self.prefix[..] != prefix[..] {
            self.prefix = Bytes::copy_from_slice(&prefix);
        }
        let length = prefix.len() + content.len() + trailer.len();
        let place = |at: usize| UnitTag { number, at: at as u32, len: length as u32, touched_from: 0 };
        queue(self.prefix.clone(), TxTag::device(handle, place(0)));
        let copy;
        let pieces = match content {
            Content::Shared(pieces) => pieces,
            Content::Lent(bytes) => {
                let _copy = cost::work(WorkKind::Copy);
                copy = [(Bytes::copy_from_slice(bytes), TxTag::PLAIN)];
                &copy
            }
        };
        let mut at = prefix.len();
        for (bytes, upper) in pieces.iter().filter(|(bytes, _)| !bytes.is_empty()) {
            let tag = upper.within(Some(handle), place(at)).ok_or(TlsError::TooManyLayers)?;
            at += bytes.len();
            queue(bytes.clone(), tag);
        }
        queue(trailer, TxTag::device(handle, place(at)));
        Ok(())
    }

    /// Bytes that follow `content` bytes of content: its type where that is inside, padding, and the tag.
    fn trailer_len(&self, content: usize) -> usize {
        let inner = self.key.format().inner_type_len();
        if inner == 0 {
            return TAG_LEN; // there is no padding to an AEAD of TLS 1.2
        }
        // RFC 8446 section 5.4: padding must not take the inner plaintext beyond 2^14 + 1 bytes.
        let padded = (content + inner).next_multiple_of(self.pad_to).min(CONTENT_MAX + inner);
        padded - content + TAG_LEN
    }

    /// What follows the content on its way to a device, with room for the tag, which it fills in.
    fn trailer(&mut self, content_type: ContentType, content: usize) -> Bytes {
        let length = self.trailer_len(content);
        if let Some(bytes) = short_trailer(content_type, length) {
            return Bytes::from_static(bytes);
        }
        if self.trailer.len() != length || self.trailer[0] != content_type.code() {
            let mut bytes = vec![0; length];
            bytes[0] = content_type.code();
            self.trailer = bytes.into();
        }
        self.trailer.clone()
    }

    /// Whether the next record has to be a KeyUpdate, for the key has room for no more than that.
    pub(crate) fn must_update(&self) -> bool {
        self.has_key_updates() && self.number.saturating_add(1) >= self.limit
    }

    /// Whether the version knows key updates.
    pub(crate) fn has_key_updates(&self) -> bool {
        self.traffic.version() == TlsVersion::Tls13
    }

    /// Bytes of a record before its content.
    pub(crate) fn prefix_len(&self) -> usize {
        self.key.format().prefix_len()
    }

    /// Pads inner plaintext to a multiple of `bytes` from the next record on.
    pub(crate) fn set_pad_to(&mut self, bytes: usize) {
        self.pad_to = bytes.max(1);
    }

    /// How many records may be made before something has to happen to the key.
    pub(crate) fn records_left(&self) -> u64 {
        let last = if self.has_key_updates() { 1 } else { 0 };
        self.limit.saturating_sub(last).saturating_sub(self.number)
    }

    /// Whether not even a KeyUpdate can be protected any more.
    pub(crate) fn is_used_up(&self) -> bool {
        self.number >= self.limit
    }

    /// Seals in software from the next record on. True if a device did so far.
    pub(crate) fn come_back(&mut self) -> bool {
        core::mem::replace(&mut self.protection, Protection::Software) != Protection::Software
    }

    /// Leaves records to `handle` from the next one on. The transport must have a sealer by then.
    pub(crate) fn hand_over(&mut self, handle: Handle) {
        debug_assert!(self.sealed_from.is_some());
        self.protection = Protection::Device(handle);
    }

    /// The transport is to forget its sealer for this key. True if it has one.
    pub(crate) fn forget_sealer(&mut self) -> bool {
        self.sealed_from.take().is_some()
    }

    /// What the transport needs before the first record is left to a device; `None` if it has that.
    pub(crate) fn sealer(&mut self) -> Option<RecordSealer> {
        if self.sealed_from.is_some() {
            return None;
        }
        self.sealed_from = Some(self.number);
        Some(RecordSealer::new(self.key.clone(), self.number, self.limit))
    }

    /// The device that records are left to.
    pub(crate) fn context(&self) -> Option<Handle> {
        match self.protection {
            Protection::Software => None,
            Protection::Device(handle) => Some(handle),
        }
    }

    /// Number of the next record.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The key in use.
    pub(crate) fn key(&self) -> &TlsKey {
        &self.traffic
    }

    /// Has the key last for no more than `records` records, or for just one more if it had as many.
    pub(crate) fn lower_limit(&mut self, records: u64) {
        // The one more is the KeyUpdate, without which there is no other key.
        self.limit = self.limit.min(records.max(self.number.saturating_add(1)));
    }
}

/// Without padding: content type, where that is inside, and room for the tag.
fn short_trailer(content_type: ContentType, length: usize) -> Option<&'static [u8]> {
    const fn room(code: u8) -> [u8; TAG_LEN + 1] {
        let mut trailer = [0; TAG_LEN + 1];
        trailer[0] = code;
        trailer
    }
    static TAG: [u8; TAG_LEN] = [0; TAG_LEN];
    static ALERT: [u8; TAG_LEN + 1] = room(21);
    static HANDSHAKE: [u8; TAG_LEN + 1] = room(22);
    static DATA: [u8; TAG_LEN + 1] = room(23);
    match (length, content_type) {
        (TAG_LEN, _) => Some(&TAG),
        (SHORT, ContentType::Alert) => Some(&ALERT),
        (SHORT, ContentType::Handshake) => Some(&HANDSHAKE),
        (SHORT, ContentType::ApplicationData) => Some(&DATA),
        _ => None,
    }
}

const SHORT: usize = TAG_LEN + 1;

#[cfg(test)]
mod tests {
    use super::*;
    use offload_api::{Layer, Sealer, TlsSuite, Unit};
    use offload_base::Seq;
    use proptest::prelude::*;

    const HANDLE: Handle = Handle { index: 4, generation: 2 };

    fn sender(suite: TlsSuite) -> Sender {
        sender_of(TlsVersion::Tls13, suite)
    }

    fn sender_of(version: TlsVersion, suite: TlsSuite) -> Sender {
        let key = TlsKey::new(version, suite, &vec![8; suite.key_len()], [6; 12]).unwrap();
        Sender::new(3, key).unwrap()
    }

    /// Makes a record; on a device, has its pieces sealed by the transport's sealer.
    fn wire(sender: &mut Sender, kind: ContentType, content: Content<'_>, sealer: Option<&mut RecordSealer>) -> Bytes {
        let mut pieces = Vec::new();
        let mut tags = Vec::new();
        sender
            .record(kind, content, &mut TlsCounters::default(), &mut |bytes, tag| {
                pieces.push(bytes);
                tags.push(tag);
            })
            .unwrap();
        let unit = tags[0].unit(Layer::FIRST).unwrap();
        let mut at = 0;
        for (piece, tag) in pieces.iter().zip(&tags) {
            assert_eq!(tag.unit(Layer::FIRST), Some(UnitTag { at, ..unit }));
            assert_eq!(tag.context(Layer::FIRST), sealer.is_some().then_some(HANDLE));
            at += piece.len() as u32;
        }
        assert_eq!(at, unit.len);
        match sealer {
            None => pieces.remove(0),
            Some(sealer) => {
                let (layer, start) = (Layer::FIRST, Seq(0));
                let unit = Unit { layer, number: unit.number, offset: 0, start, len: unit.len, touched_from: 0 };
                sealer.seal(unit, &pieces).unwrap()
            }
        }
    }

    proptest! {
        #[test]
        fn software_and_sealed_device_records_are_the_same(
            writes in prop::collection::vec((0u8..3, prop::collection::vec(any::<u8>(), 0..3000), any::<bool>()), 1..8),
            version in prop::sample::select(vec![TlsVersion::Tls12, TlsVersion::Tls13]),
            suite in prop::sample::select(vec![TlsSuite::Aes128Gcm, TlsSuite::Aes256Gcm, TlsSuite::ChaCha20Poly1305]),
            pad_to in prop_oneof![Just(1usize), 2usize..600, Just(20_000)],
            cut in 1usize..4000,
        ) {
            let mut software = sender_of(version, suite);
            let mut device = sender_of(version, suite);
            software.set_pad_to(pad_to);
            device.set_pad_to(pad_to);
            let mut sealer = device.sealer().unwrap();
            prop_assert!(device.sealer().is_none(), "one sealer a key");
            device.hand_over(HANDLE);
            for (kind, bytes, shared) in writes {
                let kind = [ContentType::Alert, ContentType::Handshake, ContentType::ApplicationData][kind as usize];
                let pieces: Vec<_> = bytes.chunks(cut).map(|piece| (Bytes::copy_from_slice(piece), TxTag::PLAIN)).collect();
                let content = |shared| if shared { Content::Shared(&pieces) } else { Content::Lent(&bytes) };
                let one = wire(&mut software, kind, content(shared), None);
                let other = wire(&mut device, kind, content(!shared), Some(&mut sealer));
                prop_assert_eq!(&one, &other);
                let format = device.key().format();
                let inner = one.len() - format.overhead() + format.inner_type_len();
                let padded = format.inner_type_len() == 0 || inner.is_multiple_of(pad_to) || inner == CONTENT_MAX + 1;
                prop_assert!(padded, "{} bytes at a multiple of {}", inner, pad_to);
                prop_assert_eq!(format.record_len(one[..5].try_into().unwrap()), Some(one.len()));
            }
        }
    }

    #[test]
    fn content_that_waits_for_digests_is_not_sealed_before_it_has_them() {
        let mut sender = sender(TlsSuite::Aes128Gcm);
        sender.sealer();
        let above = Handle { index: 9, generation: 0 };
        let upper = TxTag::device(above, UnitTag { number: 9, at: 8, len: 300, touched_from: 296 });
        let mut pieces = Vec::new();
        let content = [(Bytes::from(vec![1; 100]), upper), (Bytes::from(vec![2; 50]), upper.advanced(100))];
        sender
            .record(
                ContentType::ApplicationData,
                Content::Shared(&content),
                &mut TlsCounters::default(),
                &mut |bytes, tag| pieces.push((bytes, tag)),
            )
            .unwrap();
        assert_eq!((&pieces[1].0[..], &pieces[2].0[..]), (&[1; 100][..], &[2; 50][..]));
        assert!(pieces.iter().all(|(_, tag)| tag.context(Layer::FIRST) == Some(Handle::NO_DEVICE)));
        let digests: Vec<_> = pieces.iter().map(|(_, tag)| tag.context(Layer::SECOND)).collect();
        assert_eq!(digests, [None, Some(above), Some(above), None]);
    }

    #[test]
    fn content_with_work_at_the_highest_layer_is_refused_and_uses_no_number() {
        let above = Handle { index: 9, generation: 0 };
        let unit = UnitTag { number: 9, at: 0, len: 100, touched_from: 0 };
        let highest = TxTag::device(above, unit).within(Some(above), unit).unwrap();
        for handle in [None, Some(HANDLE)] {
            let mut sender = sender(TlsSuite::Aes128Gcm);
            sender.sealer();
            handle.into_iter().for_each(|handle| sender.hand_over(handle));
            let mut counters = TlsCounters::default();
            let mut record = |tag| {
                let (mut pieces, content) = (Vec::new(), [(Bytes::from(vec![1; 100]), tag)]);
                let queue = &mut |_, tag: TxTag| pieces.push(tag);
                let made = sender.record(ContentType::ApplicationData, Content::Shared(&content), &mut counters, queue);
                made.map(|()| pieces[0].unit(Layer::FIRST).map(|unit| unit.number))
            };
            assert_eq!(record(highest), Err(TlsError::TooManyLayers));
            assert_eq!(record(TxTag::PLAIN), Ok(Some(3)));
            assert_eq!(counters.tx_records_sw + counters.tx_records_device, 1);
        }
    }

    #[test]
    fn shared_content_reaches_a_device_uncopied_with_the_units_above() {
        let mut sender = sender(TlsSuite::Aes128Gcm);
        sender.sealer();
        sender.hand_over(HANDLE);
        let content = Bytes::from(vec![1; 100]);
        let upper = TxTag::done(UnitTag { number: 9, at: 8, len: 300, touched_from: 300 });
        let mut pieces = Vec::new();
        sender
            .record(
                ContentType::ApplicationData,
                Content::Shared(&[(content.slice(..30), upper), (content.slice(30..), upper.advanced(30))]),
                &mut TlsCounters::default(),
                &mut |bytes, tag| pieces.push((bytes.as_ptr(), tag)),
            )
            .unwrap();
        assert_eq!((pieces[1].0, pieces[2].0), (content.as_ptr(), content[30..].as_ptr()));
        let above: Vec<_> = pieces.iter().map(|(_, tag)| tag.unit(Layer::SECOND)).collect();
        let [first, second] = [0, 30].map(|bytes| upper.advanced(bytes).unit(Layer::FIRST));
        assert_eq!(above, [None, first, second, None]);
        assert!(pieces.iter().all(|(_, tag)| tag.context(Layer::FIRST) == Some(HANDLE)));
    }

    #[test]
    fn a_limit_that_is_passed_already_leaves_room_for_a_key_update() {
        let mut sender = sender(TlsSuite::Aes128Gcm);
        sender.lower_limit(2);
        assert!(sender.must_update() && !sender.is_used_up());
        wire(&mut sender, ContentType::Handshake, Content::Lent(b"x"), None);
        assert!(sender.is_used_up());
    }

    #[test]
    fn a_used_up_key_protects_an_alert_and_nothing_else() {
        let mut sender = sender(TlsSuite::Aes128Gcm);
        sender.lower_limit(5);
        let mut record = |kind| {
            let result = sender.record(kind, Content::Lent(b"x"), &mut TlsCounters::default(), &mut |_, _| ());
            (result, sender.must_update())
        };
        assert_eq!(record(ContentType::ApplicationData), (Ok(()), true), "the last number is for a KeyUpdate");
        assert_eq!(record(ContentType::Handshake), (Ok(()), true));
        assert_eq!(record(ContentType::Handshake), (Err(TlsError::KeyExhausted), true));
        assert_eq!(record(ContentType::Alert), (Ok(()), true));
    }
}
