//! Software sealing of records that a device cannot seal. The transport keeps a [`RecordSealer`] for as long as a
//! retransmission may need one.
//!
//! Invariant: a record sealed here equals the device's output byte for byte. Input that is not an unsealed record of
//! this crate is refused, because sealing a record twice would reveal its plaintext.

use crate::keys::{RecordKey, TAG_LEN};
use crate::record::HEADER_LEN;
use bytes::{Bytes, BytesMut};
use offload_api::{SealError, Sealer, Unit};
use offload_base::cost::{self, WorkKind};
use std::sync::Arc;

/// The [`Sealer`] of one transmit key.
pub(crate) struct RecordSealer {
    key: Arc<RecordKey>,
    first: u64,
    limit: u64,
}

impl RecordSealer {
    /// Creates a sealer for the records `first..limit` of `key`.
    pub(crate) fn new(key: Arc<RecordKey>, first: u64, limit: u64) -> RecordSealer {
        RecordSealer { key, first, limit }
    }
}

impl Sealer for RecordSealer {
    fn seal(&mut self, unit: Unit, plain: &[Bytes]) -> Result<Bytes, SealError> {
        let number = unit.number;
        let malformed = SealError::Malformed { number };
        // Numbers from the limit on belong to the next key. A nonce must never be used twice.
        if number >= self.limit {
            return Err(SealError::KeyExhausted { number });
        }
        let length: usize = plain.iter().map(Bytes::len).sum();
        let format = self.key.format();
        if number < self.first || length < format.overhead() || length != unit.len as usize {
            return Err(malformed);
        }
        let mut record = BytesMut::with_capacity(length);
        {
            let _copy = cost::work(WorkKind::Copy);
            plain.iter().for_each(|piece| record.extend_from_slice(piece));
        }
        let (prefix, rest) = record.split_at_mut(format.prefix_len());
        let (body, tag) = rest.split_at_mut(rest.len() - TAG_LEN);
        let header = prefix.first_chunk::<HEADER_LEN>().ok_or(malformed)?;
        // Another header or length shows that this crate did not frame these bytes.
        let framed =
            format.record_len(header) == Some(length) && *prefix == *self.key.prefix(number, header[0], body.len());
        // The content type follows the content. After it there are only zeros, so an all-zero body has no type.
        let typed = format.inner_type_len() == 0 || body.iter().any(|byte| *byte != 0);
        // A non-zero tag means that the record is already sealed. Sealing again would undo the counter mode.
        if !framed || !typed || tag != [0; TAG_LEN] {
            return Err(malformed);
        }
        let _crypto = cost::work(WorkKind::Crypto);
        tag.copy_from_slice(&self.key.seal(number, prefix, body));
        Ok(record.freeze())
    }
}

/// The sealer of a retired key: it refuses every record, because all records of the key are acknowledged.
pub(crate) struct NoKey;

impl Sealer for NoKey {
    fn seal(&mut self, unit: Unit, _: &[Bytes]) -> Result<Bytes, SealError> {
        Err(SealError::Malformed { number: unit.number })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use offload_api::{Layer, TlsKey, TlsSuite, TlsVersion};
    use offload_base::Seq;

    fn sealer() -> RecordSealer {
        let key = TlsKey::new(TlsVersion::Tls13, TlsSuite::Aes128Gcm, &[1; 16], [2; 12]).unwrap();
        RecordSealer::new(Arc::new(RecordKey::new(&key).unwrap()), 5, 10)
    }

    fn unit(number: u64, length: usize) -> Unit {
        Unit { layer: Layer::FIRST, number, offset: 0, start: Seq(u32::MAX), len: length as u32, touched_from: 0 }
    }

    fn record(content: &[u8]) -> Vec<u8> {
        let mut record = vec![23, 3, 3, 0, content.len() as u8 + 17];
        record.extend_from_slice(content);
        record.push(23);
        record.extend_from_slice(&[0; 16]);
        record
    }

    #[test]
    fn any_pieces_of_a_record_seal_to_the_same_bytes() {
        let whole = Bytes::from(record(b"attack at dawn"));
        let sealed = sealer().seal(unit(5, whole.len()), std::slice::from_ref(&whole)).unwrap();
        assert_eq!(sealed[..5], whole[..5]);
        for at in 0..=whole.len() {
            let pieces = [whole.slice(..at), Bytes::new(), whole.slice(at..)];
            assert_eq!(sealer().seal(unit(5, whole.len()), &pieces).unwrap(), sealed);
        }
    }

    #[test]
    fn sealer_seals_only_unsealed_records() {
        let good = record(b"attack at dawn");
        let sealed = sealer().seal(unit(6, good.len()), &[Bytes::from(good.clone())]).unwrap();
        let spoilt = |at: usize, value: u8| {
            let mut bad = good.clone();
            bad[at] = value;
            bad
        };
        let bad = [
            sealed.to_vec(),
            spoilt(0, 22),
            spoilt(1, 2),
            spoilt(4, 32),
            spoilt(good.len() - 1, 1),
            good[..21].to_vec(),
            [&good[..5], &[0; 31]].concat(), // no content type
            Vec::new(),
        ];
        for bytes in bad {
            let result = sealer().seal(unit(6, bytes.len()), &[Bytes::from(bytes.clone())]);
            assert_eq!(result, Err(SealError::Malformed { number: 6 }), "{bytes:?}");
        }
        let good = [Bytes::from(good)];
        let length = good[0].len();
        assert_eq!(sealer().seal(unit(6, length - 1), &good), Err(SealError::Malformed { number: 6 }));
        assert_eq!(sealer().seal(unit(4, length), &good), Err(SealError::Malformed { number: 4 }));
        assert_eq!(sealer().seal(unit(10, length), &good), Err(SealError::KeyExhausted { number: 10 }));
    }
}
