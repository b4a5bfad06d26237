//! The TLS receive engine: decrypts records as their bytes arrive in order.
//!
//! All or nothing: a packet in which anything failed is left untouched. A packet from the past passes by and
//! changes nothing. When bytes are missing the engine has lost its place, and from then on leaves everything to
//! software.

use crate::engine::tls_record::{Mode, RecordCursor, Walked};
use offload_api::rx::TlsVerdict;
use offload_base::Seq;
use resumable_aead::{Key, NONCE_LEN};

/// A receive context's state.
#[derive(Clone, Debug)]
pub(crate) struct TlsReceive {
    iv: [u8; NONCE_LEN],
    place: Place,
}

#[derive(Clone, Copy, Debug)]
enum Place {
    /// `next` is the next byte of the stream, and the cursor stands there.
    Known { next: Seq, cursor: RecordCursor },
    /// Bytes are missing, or were not what they should be.
    Lost,
}

/// What the engine made of a packet's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) verdict: TlsVerdict,
    pub(crate) walked: Walked,
    /// The context lost its place with this packet.
    pub(crate) lost: bool,
}

impl TlsReceive {
    /// A context that waits for the record `number` at `start`.
    pub(crate) fn new(iv: [u8; NONCE_LEN], start: Seq, number: u64) -> TlsReceive {
        TlsReceive { iv, place: Place::Known { next: start, cursor: RecordCursor::at_record(number) } }
    }

    /// Decrypts `source`, the payload at `seq`, into `destination`, which is as long. Only with the verdict
    /// [`TlsVerdict::Decrypted`] does `destination` hold anything.
    pub(crate) fn decrypt(&mut self, key: &Key, seq: Seq, source: &[u8], destination: &mut [u8]) -> Received {
        let untouched = Received { verdict: TlsVerdict::NotDecrypted, walked: Walked::default(), lost: false };
        let Place::Known { next, cursor } = &mut self.place else { return untouched };
        if seq.before(*next) {
            // What is new in a packet that overlaps stays in software; it counts as missing when the next arrives.
            return untouched;
        }
        if seq.after(*next) {
            self.place = Place::Lost;
            return Received { lost: true, ..untouched };
        }
        match cursor.walk(Mode::Open, key, &self.iv, source, destination) {
            Ok(walked) => {
                *next += source.len() as u32;
                Received { verdict: TlsVerdict::Decrypted, walked, lost: false }
            }
            Err(_) => {
                self.place = Place::Lost;
                Received { verdict: TlsVerdict::Error, lost: true, ..untouched }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use resumable_aead::Algorithm;

    const IV: [u8; 12] = [3; 12];

    /// One record of `length` body bytes, sealed.
    fn sealed(key: &Key, number: u64, length: usize) -> Vec<u8> {
        let mut record = vec![23, 3, 3, ((length + 16) >> 8) as u8, (length + 16) as u8];
        record.resize(5 + length + 16, number as u8);
        let mut out = vec![0; record.len()];
        RecordCursor::at_record(number).walk(Mode::Seal, key, &IV, &record, &mut out).unwrap();
        out
    }

    #[test]
    fn the_past_passes_by_and_a_gap_loses_the_place() {
        let key = Key::new(Algorithm::Aes128Gcm, &[1; 16]).unwrap();
        let stream = [sealed(&key, 5, 100), sealed(&key, 6, 100), sealed(&key, 7, 100)].concat();
        let mut engine = TlsReceive::new(IV, Seq(1000), 5);
        let mut feed = |from: usize, to: usize| {
            let mut out = vec![0; to - from];
            engine.decrypt(&key, Seq(1000 + from as u32), &stream[from..to], &mut out)
        };
        assert_eq!(feed(0, 60).verdict, TlsVerdict::Decrypted);
        assert_eq!(feed(0, 60).verdict, TlsVerdict::NotDecrypted);
        assert_eq!(feed(60, 150).verdict, TlsVerdict::Decrypted);
        assert_eq!(
            feed(200, 300),
            Received { verdict: TlsVerdict::NotDecrypted, walked: Walked::default(), lost: true }
        );
        assert_eq!(feed(150, 200).verdict, TlsVerdict::NotDecrypted);
    }

    #[test]
    fn a_wrong_tag_is_an_error_once() {
        let key = Key::new(Algorithm::Aes128Gcm, &[1; 16]).unwrap();
        let mut record = sealed(&key, 0, 50);
        record[70] ^= 1;
        let mut engine = TlsReceive::new(IV, Seq(0), 0);
        let mut out = vec![0; record.len()];
        let received = engine.decrypt(&key, Seq(0), &record, &mut out);
        assert_eq!((received.verdict, received.lost), (TlsVerdict::Error, true));
        let after = engine.decrypt(&key, Seq(71), &record, &mut out);
        assert_eq!((after.verdict, after.lost), (TlsVerdict::NotDecrypted, false));
    }
}
