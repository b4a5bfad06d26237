//! Frames records, and seals the records that no device will seal.
//!
//! Invariant: equal contents in equal order produce equal bytes on the wire, in software and on a NIC. Each number is
//! used for one record.

use super::{CONTENT_MAX, ContentType};
use crate::counters::TlsCounters;
use crate::error::TlsError;
use crate::keys::{RecordKey, TAG_LEN, UnsupportedKey, record_limit};
use crate::sealer::RecordSealer;
use bytes::{Bytes, BytesMut};
use offload_api::{Handle, TlsKey, TlsVersion, TxTag, UnitTag};
use offload_base::cost::{self, WorkKind};
use std::sync::Arc;

/// The component that seals a direction's records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendProtection {
    /// This crate, before the record is queued.
    Software,
    /// A device, during transmission.
    Device(Handle),
}

/// Content of a record.
pub(crate) enum RecordContent<'a> {
    /// Shared pieces, each tagged with its position in the units of the layers above and with the context that fills in
    /// digests, if there is one. A device reads the content without a copy.
    Shared(&'a [(Bytes, TxTag)]),
    /// Borrowed bytes, which are copied in any case.
    Lent(&'a [u8]),
}

impl RecordContent<'_> {
    /// Returns whether a device must still fill in digests.
    pub(crate) fn wants_digests(&self) -> bool {
        matches!(self, RecordContent::Shared(pieces) if pieces.iter().any(|(_, upper)| upper.is_pending()))
    }

    fn len(&self) -> usize {
        match self {
            RecordContent::Shared(pieces) => pieces.iter().map(|(bytes, _)| bytes.len()).sum(),
            RecordContent::Lent(bytes) => bytes.len(),
        }
    }
}

/// The transmit half of a record layer.
pub(crate) struct RecordSender {
    traffic: TlsKey,
    key: Arc<RecordKey>,
    number: u64,
    limit: u64,
    protection: SendProtection,
    /// First record number that the transport's sealer of this key covers. `None` if the transport has no such sealer.
    sealed_from: Option<u64>,
    /// The multiple of bytes to which the inner plaintext is padded. 1 means no padding.
    pad_to: usize,
    /// Cache of the last prefix; most records of a stream have equal lengths.
    prefix: Bytes,
    /// Cache of the last padded trailer.
    trailer: Bytes,
}

impl RecordSender {
    pub(crate) fn new(number: u64, traffic: TlsKey) -> Result<RecordSender, UnsupportedKey> {
        Ok(RecordSender {
            key: Arc::new(RecordKey::new(&traffic)?),
            number,
            limit: record_limit(traffic.suite()),
            protection: SendProtection::Software,
            sealed_from: None,
            pad_to: 1,
            prefix: Bytes::new(),
            trailer: Bytes::new(),
            traffic,
        })
    }

    /// Frames one record and passes its pieces to `queue`. Tags in `content` tell its position in the units of the
    /// layers above and the context that fills in digests. Content without its digests is not final, so this function
    /// never seals such content: without a device the transport seals the record, and must have a sealer.
    ///
    /// # Errors
    /// [`TlsError::KeyExhausted`], [`TlsError::TooManyLayers`]. No number is then used, and the caller drops the queued
    /// pieces.
    pub(crate) fn record(
        &mut self,
        content_type: ContentType,
        content: RecordContent<'_>,
        counters: &mut TlsCounters,
        queue: &mut dyn FnMut(Bytes, TxTag),
    ) -> Result<(), TlsError> {
        let _framing = cost::work(WorkKind::Framing);
        // An exhausted key may still protect the alert that ends the connection.
        let hard_limit = if content_type == ContentType::Alert { u64::MAX - 1 } else { self.limit };
        if self.number >= hard_limit {
            return Err(TlsError::KeyExhausted);
        }
        let number = self.number;
        // The transport's sealer stops at the key's limit, so records beyond are sealed here.
        let protection = if number < self.limit { self.protection } else { SendProtection::Software };
        match protection {
            SendProtection::Software if content.wants_digests() => {
                debug_assert!(self.sealed_from.is_some());
                self.leave_to_device(number, Handle::NO_DEVICE, content_type, content, queue)?;
                counters.tx_records_sw += 1;
            }
            SendProtection::Software => {
                counters.tx_records_sw += 1;
                self.seal(number, content_type, content, queue);
            }
            SendProtection::Device(handle) => {
                self.leave_to_device(number, handle, content_type, content, queue)?;
                counters.tx_records_device += 1;
            }
        }
        // A failed record uses no number, so the caller may continue with another record.
        self.number += 1;
        Ok(())
    }

    fn seal(
        &self,
        number: u64,
        content_type: ContentType,
        content: RecordContent<'_>,
        queue: &mut dyn FnMut(Bytes, TxTag),
    ) {
        debug_assert!(content.len() <= CONTENT_MAX);
        let trailer = self.trailer_len(content.len());
        let prefix = self.key.prefix(number, content_type.code(), content.len() + trailer - TAG_LEN);
        let length = prefix.len() + content.len() + trailer;
        let mut record = BytesMut::with_capacity(length);
        record.extend_from_slice(&prefix);
        {
            let _copy = cost::work(WorkKind::Copy);
            match content {
                RecordContent::Shared(pieces) => pieces.iter().for_each(|(bytes, _)| record.extend_from_slice(bytes)),
                RecordContent::Lent(bytes) => record.extend_from_slice(bytes),
            }
        }
        // Only TLS 1.3 has the content type inside the record.
        if trailer > TAG_LEN {
            record.extend_from_slice(&[content_type.code()]);
        }
        // Padding is zero bytes after the content type (RFC 8446 section 5.4).
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
        content: RecordContent<'_>,
        queue: &mut dyn FnMut(Bytes, TxTag),
    ) -> Result<(), TlsError> {
        let trailer = self.trailer(content_type, content.len());
        let prefix = self.key.prefix(number, content_type.code(), content.len() + trailer.len() - TAG_LEN);
        // Most records have the same length, hence the same prefix: sharing it saves an allocation per record.
        if self.prefix[..] != prefix[..] {
            self.prefix = Bytes::copy_from_slice(&prefix);
        }
        let length = prefix.len() + content.len() + trailer.len();
        let place = |at: usize| UnitTag { number, at: at as u32, len: length as u32, touched_from: 0 };
        queue(self.prefix.clone(), TxTag::device(handle, place(0)));
        let copy;
        let pieces = match content {
            RecordContent::Shared(pieces) => pieces,
            RecordContent::Lent(bytes) => {
                let _copy = cost::work(WorkKind::Copy);
                copy = [(Bytes::copy_from_slice(bytes), TxTag::PLAIN)];
                &copy
            }
        };
        let mut at = prefix.len();
        for (bytes, upper) in pieces.iter().filter(|(bytes, _)| !bytes.is_empty()) {
            // The record becomes the lowest layer; units of the layers above move up by one.
            let tag = upper.within(Some(handle), place(at)).ok_or(TlsError::TooManyLayers)?;
            at += bytes.len();
            queue(bytes.clone(), tag);
        }
        // The device writes the tag into the zeroed end of the trailer.
        queue(trailer, TxTag::device(handle, place(at)));
        Ok(())
    }

    /// Returns the length of the bytes after `content` bytes of content: the inner content type if the format has one,
    /// padding, and the tag.
    fn trailer_len(&self, content: usize) -> usize {
        let inner = self.key.format().inner_type_len();
        if inner == 0 {
            return TAG_LEN; // TLS 1.2 has no padding for AEADs
        }
        // RFC 8446 section 5.4: padding must not extend the inner plaintext beyond 2^14 + 1 bytes.
        let padded = (content + inner).next_multiple_of(self.pad_to).min(CONTENT_MAX + inner);
        padded - content + TAG_LEN
    }

    /// Returns the bytes after the content for a device, with a zeroed tag that the device fills in.
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

    /// Returns whether the next record must be a KeyUpdate, because the key has room for only one more record.
    pub(crate) fn must_update(&self) -> bool {
        self.has_key_updates() && self.number.saturating_add(1) >= self.limit
    }

    /// Returns whether the version has key updates.
    pub(crate) fn has_key_updates(&self) -> bool {
        self.traffic.version() == TlsVersion::Tls13
    }

    /// Returns the length of a record's prefix in bytes.
    pub(crate) fn prefix_len(&self) -> usize {
        self.key.format().prefix_len()
    }

    /// Sets the padding multiple from the next record on.
    pub(crate) fn set_pad_to(&mut self, bytes: usize) {
        self.pad_to = bytes.max(1);
    }

    /// Returns the number of records left before the key must change or the stream must end.
    pub(crate) fn records_left(&self) -> u64 {
        let last = if self.has_key_updates() { 1 } else { 0 };
        self.limit.saturating_sub(last).saturating_sub(self.number)
    }

    /// Returns whether the key cannot protect even a KeyUpdate.
    pub(crate) fn is_used_up(&self) -> bool {
        self.number >= self.limit
    }

    /// Switches to software from the next record on. Returns true if a device sealed before.
    pub(crate) fn return_to_software(&mut self) -> bool {
        core::mem::replace(&mut self.protection, SendProtection::Software) != SendProtection::Software
    }

    /// Leaves sealing to `handle` from the next record on. The transport must already have a sealer.
    pub(crate) fn hand_over(&mut self, handle: Handle) {
        debug_assert!(self.sealed_from.is_some());
        self.protection = SendProtection::Device(handle);
    }

    /// Notes that the transport forgets the sealer of this key. Returns true if the transport had one.
    pub(crate) fn forget_sealer(&mut self) -> bool {
        self.sealed_from.take().is_some()
    }

    /// Returns the sealer that the transport needs before a device seals the first record, or `None` if the transport
    /// has it.
    pub(crate) fn sealer(&mut self) -> Option<RecordSealer> {
        if self.sealed_from.is_some() {
            return None;
        }
        self.sealed_from = Some(self.number);
        Some(RecordSealer::new(self.key.clone(), self.number, self.limit))
    }

    /// Returns the context that seals records.
    pub(crate) fn context(&self) -> Option<Handle> {
        match self.protection {
            SendProtection::Software => None,
            SendProtection::Device(handle) => Some(handle),
        }
    }

    /// Returns the number of the next record.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Returns the present key.
    pub(crate) fn key(&self) -> &TlsKey {
        &self.traffic
    }

    /// Limits the key to `records` records. If the key has protected that many already, one more is allowed.
    pub(crate) fn lower_limit(&mut self, records: u64) {
        // The extra record is the KeyUpdate, without which there is no next key.
        self.limit = self.limit.min(records.max(self.number.saturating_add(1)));
    }
}

/// Returns the trailer without padding: the inner content type if there is one, and zeroes for the tag.
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

    fn sender(suite: TlsSuite) -> RecordSender {
        sender_of(TlsVersion::Tls13, suite)
    }

    fn sender_of(version: TlsVersion, suite: TlsSuite) -> RecordSender {
        let key = TlsKey::new(version, suite, &vec![8; suite.key_len()], [6; 12]).unwrap();
        RecordSender::new(3, key).unwrap()
    }

    /// Frames a record. With a device, seals its pieces by the transport's sealer.
    fn wire(
        sender: &mut RecordSender,
        kind: ContentType,
        content: RecordContent<'_>,
        sealer: Option<&mut RecordSealer>,
    ) -> Bytes {
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
                let content = |shared| if shared { RecordContent::Shared(&pieces) } else { RecordContent::Lent(&bytes) };
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
    fn content_is_not_sealed_before_its_digests_arrive() {
        let mut sender = sender(TlsSuite::Aes128Gcm);
        sender.sealer();
        let above = Handle { index: 9, generation: 0 };
        let upper = TxTag::device(above, UnitTag { number: 9, at: 8, len: 300, touched_from: 296 });
        let mut pieces = Vec::new();
        let content = [(Bytes::from(vec![1; 100]), upper), (Bytes::from(vec![2; 50]), upper.advanced(100))];
        sender
            .record(
                ContentType::ApplicationData,
                RecordContent::Shared(&content),
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
    fn refused_highest_layer_content_uses_no_record_number() {
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
                let made =
                    sender.record(ContentType::ApplicationData, RecordContent::Shared(&content), &mut counters, queue);
                made.map(|()| pieces[0].unit(Layer::FIRST).map(|unit| unit.number))
            };
            assert_eq!(record(highest), Err(TlsError::TooManyLayers));
            assert_eq!(record(TxTag::PLAIN), Ok(Some(3)));
            assert_eq!(counters.tx_records_sw + counters.tx_records_device, 1);
        }
    }

    #[test]
    fn shared_content_reaches_a_device_uncopied_with_upper_units() {
        let mut sender = sender(TlsSuite::Aes128Gcm);
        sender.sealer();
        sender.hand_over(HANDLE);
        let content = Bytes::from(vec![1; 100]);
        let upper = TxTag::done(UnitTag { number: 9, at: 8, len: 300, touched_from: 300 });
        let mut pieces = Vec::new();
        sender
            .record(
                ContentType::ApplicationData,
                RecordContent::Shared(&[(content.slice(..30), upper), (content.slice(30..), upper.advanced(30))]),
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
        wire(&mut sender, ContentType::Handshake, RecordContent::Lent(b"x"), None);
        assert!(sender.is_used_up());
    }

    #[test]
    fn exhausted_key_protects_only_an_alert() {
        let mut sender = sender(TlsSuite::Aes128Gcm);
        sender.lower_limit(5);
        let mut record = |kind| {
            let result = sender.record(kind, RecordContent::Lent(b"x"), &mut TlsCounters::default(), &mut |_, _| ());
            (result, sender.must_update())
        };
        assert_eq!(record(ContentType::ApplicationData), (Ok(()), true), "the last number is for a KeyUpdate");
        assert_eq!(record(ContentType::Handshake), (Ok(()), true));
        assert_eq!(record(ContentType::Handshake), (Err(TlsError::KeyExhausted), true));
        assert_eq!(record(ContentType::Alert), (Ok(()), true));
    }
}
