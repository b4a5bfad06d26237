//! The walk over TLS 1.3 records, a byte range at a time: header, body, tag, and the next.
//!
//! Invariant: the cursor stands at one byte of one record, knows that record's number, and has been through all
//! bytes of the record before it. It is a plain value of constant size: copied before a try, put back after.
//! RFC 8446 5.2 gives the layout, 5.3 the nonce.

use crate::context::{ImageReader, ImageWriter};
use resumable_aead::{Key, NONCE_LEN, State, TAG_LEN};

/// Where in which record a stream engine stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordCursor {
    /// The record's number.
    pub(crate) number: u64,
    phase: Phase,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Header { have: u8, bytes: [u8; HEADER] },
    Body { state: State, left: u16 },
    Tag { tag: [u8; TAG_LEN], at: u8, difference: u8 },
}

/// What the engine does with bodies and tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Encrypts bodies and writes tags over the space left for them.
    Seal,
    /// Decrypts bodies, checks tags and leaves them as they are.
    Open,
}

/// Why the walk stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordError {
    /// What stands where a header should is none.
    NotARecord,
    /// A tag is wrong.
    TagMismatch,
    /// The AEAD refused; only a broken invariant makes it.
    Crypto,
}

/// What a walk over a range did, for the statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Walked {
    /// Body bytes encrypted or decrypted.
    pub(crate) body_bytes: u64,
    /// Records that ended.
    pub(crate) records: u64,
}

impl RecordCursor {
    /// At the first byte of record `number`.
    pub(crate) fn at_record(number: u64) -> RecordCursor {
        RecordCursor { number, phase: Phase::Header { have: 0, bytes: [0; HEADER] } }
    }

    /// Bytes up to the next record's header; `None` while this record's own header is not complete.
    pub(crate) fn bytes_left(&self) -> Option<u32> {
        match self.phase {
            Phase::Header { .. } => None,
            Phase::Body { left, .. } => Some(u32::from(left) + TAG_LEN as u32),
            Phase::Tag { at, .. } => Some(TAG_LEN as u32 - u32::from(at)),
        }
    }

    /// Writes the cursor out, at most 123 bytes.
    pub(crate) fn write(&self, image: &mut ImageWriter<'_>) {
        image.put_u64(self.number);
        match &self.phase {
            Phase::Header { have, bytes } => {
                image.put_u8(IN_HEADER);
                image.put_u8(*have);
                image.put(bytes);
            }
            Phase::Body { state, left } => {
                image.put_u8(IN_BODY);
                image.put_u16(*left);
                image.put(&state.to_bytes());
            }
            Phase::Tag { tag, at, difference } => {
                image.put_u8(IN_TAG);
                image.put_u8(*at);
                image.put_u8(*difference);
                image.put(tag);
            }
        }
    }

    /// Reads back what [`write`](Self::write) wrote.
    pub(crate) fn read(image: &mut ImageReader<'_>) -> Option<RecordCursor> {
        let number = image.take_u64()?;
        let phase = match image.take_u8()? {
            IN_HEADER => {
                let have = image.take_u8().filter(|have| usize::from(*have) < HEADER)?;
                Phase::Header { have, bytes: image.take()? }
            }
            IN_BODY => {
                let left = image.take_u16()?;
                Phase::Body { state: State::from_bytes(&image.take()?).ok()?, left }
            }
            IN_TAG => {
                let at = image.take_u8().filter(|at| usize::from(*at) < TAG_LEN)?;
                let difference = image.take_u8()?;
                Phase::Tag { tag: image.take()?, at, difference }
            }
            _ => return None,
        };
        Some(RecordCursor { number, phase })
    }

    /// Walks over `source`, the next bytes of the stream, and writes what becomes of them to `destination`, which
    /// is as long. After an error the cursor is of no use and `destination` holds nothing to rely on.
    pub(crate) fn walk(
        &mut self,
        mode: Mode,
        key: &Key,
        iv: &[u8; NONCE_LEN],
        mut source: &[u8],
        mut destination: &mut [u8],
    ) -> Result<Walked, RecordError> {
        let mut walked = Walked::default();
        while !source.is_empty() {
            let taken = match &mut self.phase {
                Phase::Header { have, bytes } => {
                    let start = usize::from(*have);
                    let taken = source.len().min(HEADER - start);
                    bytes[start..start + taken].copy_from_slice(&source[..taken]);
                    destination[..taken].copy_from_slice(&source[..taken]);
                    *have += taken as u8;
                    if usize::from(*have) == HEADER {
                        let header = *bytes;
                        let left = body_bytes(&header).ok_or(RecordError::NotARecord)?;
                        let state = State::new(key, &nonce(iv, self.number), &header);
                        self.phase = Phase::Body { state, left };
                    }
                    taken
                }
                Phase::Body { state, left } => {
                    let taken = source.len().min(usize::from(*left));
                    let (from, to) = (&source[..taken], &mut destination[..taken]);
                    match mode {
                        Mode::Seal => state.encrypt_to(key, from, to),
                        Mode::Open => state.decrypt_to(key, from, to),
                    }
                    .map_err(|_| RecordError::Crypto)?;
                    walked.body_bytes += taken as u64;
                    *left -= taken as u16;
                    if *left == 0 {
                        let tag = state.tag(key).map_err(|_| RecordError::Crypto)?;
                        self.phase = Phase::Tag { tag, at: 0, difference: 0 };
                    }
                    taken
                }
                Phase::Tag { tag, at, difference } => {
                    let start = usize::from(*at);
                    let taken = source.len().min(TAG_LEN - start);
                    let expected = &tag[start..start + taken];
                    match mode {
                        Mode::Seal => destination[..taken].copy_from_slice(expected),
                        Mode::Open => {
                            destination[..taken].copy_from_slice(&source[..taken]);
                            // No early way out: how much of a tag was right is nobody's business.
                            *difference |= expected.iter().zip(source).fold(0, |all, (a, b)| all | (a ^ b));
                        }
                    }
                    *at += taken as u8;
                    if usize::from(*at) == TAG_LEN {
                        if *difference != 0 {
                            return Err(RecordError::TagMismatch);
                        }
                        walked.records += 1;
                        *self = RecordCursor::at_record(self.number.wrapping_add(1));
                    }
                    taken
                }
            };
            source = &source[taken..];
            destination = &mut destination[taken..];
        }
        Ok(walked)
    }
}

/// RFC 8446 5.3: the record number, padded on the left, exclusive-or the IV.
fn nonce(iv: &[u8; NONCE_LEN], number: u64) -> [u8; NONCE_LEN] {
    let mut nonce = *iv;
    for (byte, part) in nonce[4..].iter_mut().zip(number.to_be_bytes()) {
        *byte ^= part;
    }
    nonce
}

/// The bytes between header and tag, if it is the header of an encrypted record: outer type application data,
/// legacy version 1.2, room for the inner type and the tag, and no more than RFC 8446 5.2 allows.
fn body_bytes(header: &[u8; HEADER]) -> Option<u16> {
    let [APPLICATION_DATA, 3, 3, high, low] = *header else { return None };
    let length = u16::from_be_bytes([high, low]);
    (TAG_LEN as u16 + 1..=MAX_ENCRYPTED).contains(&length).then(|| length - TAG_LEN as u16)
}

/// The bytes of the whole record, if this is the header of one.
pub(crate) fn record_bytes(header: &[u8; HEADER]) -> Option<u32> {
    body_bytes(header).map(|body| u32::from(body) + (HEADER + TAG_LEN) as u32)
}

const IN_HEADER: u8 = 1;
const IN_BODY: u8 = 2;
const IN_TAG: u8 = 3;
/// Bytes of a record header.
pub(crate) const HEADER: usize = 5;
const APPLICATION_DATA: u8 = 23;
/// RFC 8446 5.2: 2^14 + 256.
const MAX_ENCRYPTED: u16 = (1 << 14) + 256;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use resumable_aead::Algorithm;

    /// Records as software would send them, sealed by ring, and the same with plaintext and empty tags.
    fn records(key: &[u8; 16], iv: [u8; 12], first: u64, lengths: &[usize]) -> (Vec<u8>, Vec<u8>) {
        let sealing = ring::aead::LessSafeKey::new(ring::aead::UnboundKey::new(&ring::aead::AES_128_GCM, key).unwrap());
        let (mut plain, mut sealed) = (Vec::new(), Vec::new());
        for (number, length) in (first..).zip(lengths) {
            let header = [23, 3, 3, ((length + 16) >> 8) as u8, (length + 16) as u8];
            let mut body: Vec<u8> = (0..*length).map(|at| (at as u64 * 31 + number) as u8).collect();
            plain.extend_from_slice(&header);
            plain.extend_from_slice(&body);
            plain.extend_from_slice(&[0; 16]);
            let nonce = ring::aead::Nonce::assume_unique_for_key(super::nonce(&iv, number));
            sealing.seal_in_place_append_tag(nonce, ring::aead::Aad::from(header), &mut body).unwrap();
            sealed.extend_from_slice(&header);
            sealed.extend_from_slice(&body);
        }
        (plain, sealed)
    }

    fn walk_in_pieces(
        mode: Mode,
        key: &Key,
        first: u64,
        stream: &[u8],
        cuts: &[usize],
    ) -> Result<(Vec<u8>, Walked), RecordError> {
        let mut cursor = RecordCursor::at_record(first);
        let (mut out, mut total, mut at) = (Vec::new(), Walked::default(), 0);
        let mut cuts = cuts.iter().cycle();
        while at < stream.len() {
            let piece = &stream[at..stream.len().min(at + cuts.next().unwrap())];
            let mut written = vec![0xee; piece.len()];
            let walked = cursor.walk(mode, key, &[9; 12], piece, &mut written)?;
            total.body_bytes += walked.body_bytes;
            total.records += walked.records;
            out.extend(written);
            at += piece.len();
        }
        Ok((out, total))
    }

    proptest! {
        #[test]
        fn any_cuts_give_what_ring_gives(
            lengths in prop::collection::vec(1usize..3000, 1..6),
            cuts in prop::collection::vec(1usize..2000, 1..8),
            first: u64,
        ) {
            let first = first >> 1;
            let key = Key::new(Algorithm::Aes128Gcm, &[7; 16]).unwrap();
            let (plain, sealed) = records(&[7; 16], [9; 12], first, &lengths);
            let (out, walked) = walk_in_pieces(Mode::Seal, &key, first, &plain, &cuts).unwrap();
            prop_assert_eq!(&out, &sealed);
            prop_assert_eq!(walked.records, lengths.len() as u64);
            prop_assert_eq!(walked.body_bytes, lengths.iter().sum::<usize>() as u64);

            let (out, _) = walk_in_pieces(Mode::Open, &key, first, &sealed, &cuts).unwrap();
            let mut at = 0;
            for length in lengths {
                let body = at + HEADER..at + HEADER + length;
                prop_assert_eq!(&out[body.clone()], &plain[body.clone()]);
                prop_assert_eq!(&out[body.end..body.end + 16], &sealed[body.end..body.end + 16], "the tag stays");
                at = body.end + 16;
            }
        }

        #[test]
        fn one_wrong_bit_is_found(at in 0usize..2000, bit in 0u8..8) {
            let key = Key::new(Algorithm::Aes128Gcm, &[7; 16]).unwrap();
            let (_, mut sealed) = records(&[7; 16], [9; 12], 0, &[1000, 958]);
            sealed[at] ^= 1 << bit;
            let result = walk_in_pieces(Mode::Open, &key, 0, &sealed, &[700]);
            // A longer length makes the walk wait for bytes that are not there; everything else is found.
            let in_length = [3, 4].contains(&(at % 1021));
            prop_assert!(result.is_err() || in_length);
        }
    }

    #[test]
    fn headers_that_are_none() {
        for header in [[22, 3, 3, 1, 0], [23, 3, 1, 1, 0], [23, 3, 3, 0, 16], [23, 3, 3, 0x41, 1]] {
            let key = Key::new(Algorithm::Aes128Gcm, &[7; 16]).unwrap();
            assert_eq!(
                walk_in_pieces(Mode::Open, &key, 0, &header, &[5]).unwrap_err(),
                RecordError::NotARecord,
                "{header:?}"
            );
        }
    }
}
