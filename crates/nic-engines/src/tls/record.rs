//! The parser of TLS records, for any split of the stream: header, explicit nonce if there is one, body, tag.
//!
//! Invariant: the cursor is at one byte of one record, knows the record's number, and has processed all earlier bytes
//! of the record. The cursor is a plain value of constant size, so it is copied before an attempt and restored
//! afterwards. [`RecordFormat`] defines layout, nonce and additional data.

use bytes::BytesMut;
use core::fmt;
use nic_engine::ByteRanges;
use nic_engine::{ImageReader, ImageWriter};
use offload_api::record::EXPLICIT_NONCE_LEN;
use offload_api::{RecordFormat, TlsKey, TlsSuite, TlsVersion};
use resumable_aead::{Key, NONCE_LEN, State, TAG_LEN};
use zeroize::{Zeroize, ZeroizeOnDrop};

/// The record format and IV of a context; the key is stored separately. The IV is never printed, and overwritten when
/// dropped.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub(crate) struct RecordProtection {
    #[zeroize(skip)]
    format: RecordFormat,
    iv: [u8; NONCE_LEN],
}

impl fmt::Debug for RecordProtection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecordProtection({:?}, redacted)", self.format)
    }
}

impl RecordProtection {
    pub(crate) fn from_key(key: &TlsKey) -> RecordProtection {
        RecordProtection { format: key.format(), iv: *key.iv() }
    }

    /// Returns the length of the whole record; `None` if this is not a record header.
    pub(crate) fn record_bytes(&self, header: &[u8; HEADER]) -> Option<u32> {
        self.format.record_len(header).map(|bytes| bytes as u32)
    }

    /// Writes the protection to an image, 14 bytes.
    pub(crate) fn write(&self, image: &mut ImageWriter<'_>) {
        image.put_u8(match self.format.version() {
            TlsVersion::Tls12 => 2,
            _ => 3,
        });
        image.put_u8(match self.format.suite() {
            TlsSuite::Aes128Gcm => 1,
            TlsSuite::Aes256Gcm => 2,
            _ => 3,
        });
        image.put(&self.iv);
    }

    /// Reads the protection from an image.
    pub(crate) fn read(image: &mut ImageReader<'_>) -> Option<RecordProtection> {
        let version = match image.take_u8()? {
            2 => TlsVersion::Tls12,
            3 => TlsVersion::Tls13,
            _ => return None,
        };
        let suite = match image.take_u8()? {
            1 => TlsSuite::Aes128Gcm,
            2 => TlsSuite::Aes256Gcm,
            3 => TlsSuite::ChaCha20Poly1305,
            _ => return None,
        };
        Some(RecordProtection { format: RecordFormat::new(version, suite), iv: image.take()? })
    }
}

/// A position in a record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordCursor {
    /// Number of the record.
    pub(crate) number: u64,
    phase: RecordPhase,
}

#[derive(Clone, Copy)]
enum RecordPhase {
    Header { have: u8, bytes: [u8; HEADER] },
    Nonce { header: [u8; HEADER], have: u8, bytes: [u8; EXPLICIT_NONCE_LEN], body: u16 },
    Body { state: State, left: u16 },
    Tag { tag: [u8; TAG_LEN], at: u8, difference: u8 },
}

impl fmt::Debug for RecordPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecordPhase::Header { have, .. } => write!(f, "Header({have} bytes)"),
            RecordPhase::Nonce { have, body, .. } => write!(f, "Nonce({have} bytes, before a body of {body})"),
            RecordPhase::Body { left, .. } => write!(f, "Body({left} bytes left)"),
            // The expected tag of an unverified message would allow a reader of the log to forge the message.
            RecordPhase::Tag { at, .. } => write!(f, "Tag({at} bytes, redacted)"),
        }
    }
}

/// The work on bodies and tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordMode {
    /// Encrypts bodies and writes tags over their placeholders.
    Seal,
    /// Decrypts bodies and checks tags, which stay unchanged.
    Open,
}

/// The reason why parsing stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordError {
    /// Invalid record header.
    NotARecord,
    /// Wrong tag.
    TagMismatch,
    /// The AEAD refused, which only a broken invariant can cause.
    Crypto,
}

/// Statistics of the processed range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WalkedRecords {
    /// Body bytes encrypted or decrypted.
    pub(crate) body_bytes: u64,
    /// Records completed.
    pub(crate) records: u64,
}

impl RecordCursor {
    /// Returns the ranges of record content in `plain`, the next bytes of the stream, already decrypted. Content is the
    /// body without the last byte in TLS 1.3, which is the content type. (Rare padding counts as content, and so do
    /// alerts, because in TLS 1.3 the type comes last.)
    pub(crate) fn content(&self, protection: &RecordProtection, plain: &[u8]) -> ByteRanges {
        let format = &protection.format;
        let inner_type = format.inner_type_len();
        let mut parts = ByteRanges::new();
        let (mut header, mut have) = ([0; HEADER], 0);
        // Bytes of nonce, body and tag still to come in this record.
        let (mut before, mut body, mut after) = match self.phase {
            RecordPhase::Header { have: gathered, bytes } => {
                (header, have) = (bytes, usize::from(gathered));
                (0, 0, 0)
            }
            RecordPhase::Nonce { have, body, .. } => {
                (EXPLICIT_NONCE_LEN - usize::from(have), usize::from(body), TAG_LEN)
            }
            RecordPhase::Body { left, .. } => (0, usize::from(left), TAG_LEN),
            RecordPhase::Tag { at, .. } => (0, 0, TAG_LEN - usize::from(at)),
        };
        let mut at = 0;
        while at < plain.len() {
            let rest = plain.len() - at;
            if before + body + after == 0 {
                let taken = rest.min(HEADER - have);
                header[have..have + taken].copy_from_slice(&plain[at..at + taken]);
                (at, have) = (at + taken, have + taken);
                if have == HEADER {
                    // An invalid header cannot occur in bytes that were opened; without a length nothing more can be
                    // told.
                    let Some(length) = format.body_len(&header) else { break };
                    (before, body, after, have) = (format.explicit_nonce_len(), length, TAG_LEN, 0);
                }
            } else if before > 0 {
                let taken = rest.min(before);
                (at, before) = (at + taken, before - taken);
            } else if body > 0 {
                let taken = rest.min(body);
                // In TLS 1.3 the last byte of the body is the content type.
                let content = taken.min(body.saturating_sub(inner_type));
                if content > 0 {
                    parts.push((at, content));
                }
                (at, body) = (at + taken, body - taken);
            } else {
                let taken = rest.min(after);
                (at, after) = (at + taken, after - taken);
            }
        }
        parts
    }

    /// Returns the content bytes left in this record; `None` while the header is incomplete.
    pub(crate) fn content_left(&self, protection: &RecordProtection) -> Option<u32> {
        let body = match self.phase {
            RecordPhase::Header { .. } => return None,
            RecordPhase::Nonce { body, .. } => body,
            RecordPhase::Body { left, .. } => left,
            RecordPhase::Tag { .. } => 0,
        };
        Some(u32::from(body).saturating_sub(protection.format.inner_type_len() as u32))
    }

    /// Makes a cursor at the first byte of record `number`.
    pub(crate) fn at_record(number: u64) -> RecordCursor {
        RecordCursor { number, phase: RecordPhase::Header { have: 0, bytes: [0; HEADER] } }
    }

    /// Returns the number of bytes before the next record's header; `None` while this record's header is incomplete.
    pub(crate) fn bytes_left(&self) -> Option<u32> {
        match self.phase {
            RecordPhase::Header { .. } => None,
            RecordPhase::Nonce { have, body, .. } => {
                Some(EXPLICIT_NONCE_LEN as u32 - u32::from(have) + u32::from(body) + TAG_LEN as u32)
            }
            RecordPhase::Body { left, .. } => Some(u32::from(left) + TAG_LEN as u32),
            RecordPhase::Tag { at, .. } => Some(TAG_LEN as u32 - u32::from(at)),
        }
    }

    /// Writes the cursor to an image, at most 123 bytes.
    pub(crate) fn write(&self, image: &mut ImageWriter<'_>) {
        image.put_u64(self.number);
        match &self.phase {
            RecordPhase::Header { have, bytes } => {
                image.put_u8(IN_HEADER);
                image.put_u8(*have);
                image.put(bytes);
            }
            RecordPhase::Nonce { header, have, bytes, body } => {
                image.put_u8(IN_NONCE);
                image.put(header);
                image.put_u8(*have);
                image.put(bytes);
                image.put_u16(*body);
            }
            RecordPhase::Body { state, left } => {
                image.put_u8(IN_BODY);
                image.put_u16(*left);
                image.put(&state.to_bytes());
            }
            RecordPhase::Tag { tag, at, difference } => {
                image.put_u8(IN_TAG);
                image.put_u8(*at);
                image.put_u8(*difference);
                image.put(tag);
            }
        }
    }

    /// Reads the cursor from an image.
    pub(crate) fn read(image: &mut ImageReader<'_>) -> Option<RecordCursor> {
        let number = image.take_u64()?;
        let phase = match image.take_u8()? {
            IN_HEADER => {
                let have = image.take_u8().filter(|have| usize::from(*have) < HEADER)?;
                RecordPhase::Header { have, bytes: image.take()? }
            }
            IN_NONCE => {
                let header = image.take()?;
                let have = image.take_u8().filter(|have| usize::from(*have) < EXPLICIT_NONCE_LEN)?;
                RecordPhase::Nonce { header, have, bytes: image.take()?, body: image.take_u16()? }
            }
            IN_BODY => {
                let left = image.take_u16()?;
                RecordPhase::Body { state: State::from_bytes(&image.take()?).ok()?, left }
            }
            IN_TAG => {
                let at = image.take_u8().filter(|at| usize::from(*at) < TAG_LEN)?;
                let difference = image.take_u8()?;
                RecordPhase::Tag { tag: image.take()?, at, difference }
            }
            _ => return None,
        };
        Some(RecordCursor { number, phase })
    }

    /// Processes `source`, the next bytes of the stream, and appends the same number of result bytes to `destination`.
    /// After an error the cursor and the appended bytes are invalid.
    pub(crate) fn walk(
        &mut self,
        mode: RecordMode,
        key: &Key,
        protection: &RecordProtection,
        mut source: &[u8],
        destination: &mut BytesMut,
    ) -> Result<WalkedRecords, RecordError> {
        let mut walked = WalkedRecords::default();
        while !source.is_empty() {
            let taken = match &mut self.phase {
                RecordPhase::Header { have, bytes } => {
                    let start = usize::from(*have);
                    let taken = source.len().min(HEADER - start);
                    bytes[start..start + taken].copy_from_slice(&source[..taken]);
                    destination.extend_from_slice(&source[..taken]);
                    *have += taken as u8;
                    if usize::from(*have) == HEADER {
                        let header = *bytes;
                        let body = protection.format.body_len(&header).ok_or(RecordError::NotARecord)? as u16;
                        self.phase = match protection.format.explicit_nonce_len() {
                            0 => body_phase(key, protection, self.number, &header, &[], body),
                            _ => RecordPhase::Nonce { header, have: 0, bytes: [0; EXPLICIT_NONCE_LEN], body },
                        };
                    }
                    taken
                }
                RecordPhase::Nonce { header, have, bytes, body } => {
                    let start = usize::from(*have);
                    let taken = source.len().min(EXPLICIT_NONCE_LEN - start);
                    bytes[start..start + taken].copy_from_slice(&source[..taken]);
                    destination.extend_from_slice(&source[..taken]);
                    *have += taken as u8;
                    if usize::from(*have) == EXPLICIT_NONCE_LEN {
                        self.phase = body_phase(key, protection, self.number, header, bytes, *body);
                    }
                    taken
                }
                RecordPhase::Body { state, left } => {
                    let taken = source.len().min(usize::from(*left));
                    match mode {
                        RecordMode::Seal => state.encrypt_append(key, &source[..taken], destination),
                        RecordMode::Open => state.decrypt_append(key, &source[..taken], destination),
                    }
                    .map_err(|_| RecordError::Crypto)?;
                    walked.body_bytes += taken as u64;
                    *left -= taken as u16;
                    // An empty body ends here too, so that the tag is computed for records without content.
                    if *left == 0 {
                        let tag = state.tag(key).map_err(|_| RecordError::Crypto)?;
                        self.phase = RecordPhase::Tag { tag, at: 0, difference: 0 };
                    }
                    taken
                }
                RecordPhase::Tag { tag, at, difference } => {
                    let start = usize::from(*at);
                    let taken = source.len().min(TAG_LEN - start);
                    let expected = &tag[start..start + taken];
                    match mode {
                        RecordMode::Seal => destination.extend_from_slice(expected),
                        RecordMode::Open => {
                            destination.extend_from_slice(&source[..taken]);
                            // No early exit: the time must not reveal how many bytes of the tag were correct.
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
        }
        Ok(walked)
    }
}

/// Starts the body of a record.
fn body_phase(
    key: &Key,
    protection: &RecordProtection,
    number: u64,
    header: &[u8; HEADER],
    explicit: &[u8],
    body: u16,
) -> RecordPhase {
    let RecordProtection { format, iv } = protection;
    let state = State::new(key, &format.nonce(iv, number, explicit), &format.aad(number, header));
    RecordPhase::Body { state, left: body }
}

const IN_HEADER: u8 = 1;
const IN_BODY: u8 = 2;
const IN_TAG: u8 = 3;
const IN_NONCE: u8 = 4;
/// Length of a record header.
pub(crate) const HEADER: usize = offload_api::record::RECORD_HEADER_LEN;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;
    use resumable_aead::Algorithm;

    /// Makes the protection for the tests.
    pub(crate) fn protection(version: TlsVersion, suite: TlsSuite, iv: [u8; 12]) -> RecordProtection {
        RecordProtection { format: RecordFormat::new(version, suite), iv }
    }

    fn ciphers() -> impl Strategy<Value = (TlsVersion, TlsSuite)> {
        let version = prop::sample::select(vec![TlsVersion::Tls12, TlsVersion::Tls13]);
        (version, prop::sample::select(vec![TlsSuite::Aes128Gcm, TlsSuite::Aes256Gcm, TlsSuite::ChaCha20Poly1305]))
    }

    fn key_of(suite: TlsSuite) -> Key {
        let algorithm = match suite {
            TlsSuite::Aes128Gcm => Algorithm::Aes128Gcm,
            TlsSuite::Aes256Gcm => Algorithm::Aes256Gcm,
            _ => Algorithm::ChaCha20Poly1305,
        };
        Key::new(algorithm, &vec![7; suite.key_len()]).unwrap()
    }

    /// Returns records sealed by ring, and the same records in plaintext with empty tags. Nonces and additional data
    /// are built independently here, from the RFCs.
    fn records(version: TlsVersion, suite: TlsSuite, first: u64, lengths: &[usize]) -> (Vec<u8>, Vec<u8>) {
        let algorithm = match suite {
            TlsSuite::Aes128Gcm => &ring::aead::AES_128_GCM,
            TlsSuite::Aes256Gcm => &ring::aead::AES_256_GCM,
            _ => &ring::aead::CHACHA20_POLY1305,
        };
        let key = ring::aead::UnboundKey::new(algorithm, &vec![7; suite.key_len()]).unwrap();
        let sealing = ring::aead::LessSafeKey::new(key);
        let (mut plain, mut sealed) = (Vec::new(), Vec::new());
        for (number, length) in (first..).zip(lengths) {
            let is_12 = version == TlsVersion::Tls12;
            // Any explicit nonce is valid.
            let explicit = (number ^ 0xa5a5_0000).to_be_bytes();
            let explicit = if is_12 && suite != TlsSuite::ChaCha20Poly1305 { &explicit[..] } else { &[] };
            let kind = if is_12 { 21 + (number % 3) as u8 } else { 23 };
            let after = length + explicit.len() + 16;
            let header = [kind, 3, 3, (after >> 8) as u8, after as u8];
            let mut body: Vec<u8> = (0..*length).map(|at| (at as u64 * 31 + number) as u8).collect();
            plain.extend_from_slice(&header);
            plain.extend_from_slice(explicit);
            plain.extend_from_slice(&body);
            plain.extend_from_slice(&[0; 16]);
            let mut nonce = [9; 12];
            if explicit.is_empty() {
                nonce[4..].iter_mut().zip(number.to_be_bytes()).for_each(|(byte, part)| *byte ^= part);
            } else {
                nonce[4..].copy_from_slice(explicit);
            }
            let long = [&number.to_be_bytes()[..], &header[..3], &(*length as u16).to_be_bytes()].concat();
            let aad = if is_12 { &long[..] } else { &header };
            let nonce = ring::aead::Nonce::assume_unique_for_key(nonce);
            sealing.seal_in_place_append_tag(nonce, ring::aead::Aad::from(aad), &mut body).unwrap();
            sealed.extend_from_slice(&header);
            sealed.extend_from_slice(explicit);
            sealed.extend_from_slice(&body);
        }
        (plain, sealed)
    }

    fn walk_in_pieces(
        mode: RecordMode,
        (version, suite): (TlsVersion, TlsSuite),
        first: u64,
        stream: &[u8],
        cuts: &[usize],
    ) -> Result<(Vec<u8>, WalkedRecords), RecordError> {
        let (key, protection) = (key_of(suite), protection(version, suite, [9; 12]));
        let mut cursor = RecordCursor::at_record(first);
        let (mut out, mut total, mut at) = (BytesMut::new(), WalkedRecords::default(), 0);
        let mut cuts = cuts.iter().cycle();
        while at < stream.len() {
            let piece = &stream[at..stream.len().min(at + cuts.next().unwrap())];
            let walked = cursor.walk(mode, &key, &protection, piece, &mut out)?;
            total.body_bytes += walked.body_bytes;
            total.records += walked.records;
            at += piece.len();
            assert_eq!(out.len(), at);
        }
        Ok((out.into(), total))
    }

    proptest! {
        #[test]
        fn records_in_any_pieces_equal_rings_records(
            cipher in ciphers(),
            lengths in prop::collection::vec(prop_oneof![1usize..3000, Just(1), 16_000usize..16_384], 1..6),
            empty in any::<bool>(),
            cuts in prop::collection::vec(1usize..2000, 1..8),
            first: u64,
        ) {
            let first = first >> 1;
            let (version, suite) = cipher;
            let mut lengths = lengths;
            if empty && version == TlsVersion::Tls12 {
                lengths[0] = 0;
            }
            let (plain, sealed) = records(version, suite, first, &lengths);
            let (out, walked) = walk_in_pieces(RecordMode::Seal, cipher, first, &plain, &cuts).unwrap();
            prop_assert_eq!(&out, &sealed);
            prop_assert_eq!(walked.records, lengths.len() as u64);
            prop_assert_eq!(walked.body_bytes, lengths.iter().sum::<usize>() as u64);

            let (out, _) = walk_in_pieces(RecordMode::Open, cipher, first, &sealed, &cuts).unwrap();
            let mut at = 0;
            for length in lengths {
                let end = at + RecordFormat::new(version, suite).prefix_len() + length;
                prop_assert_eq!(&out[at..end], &plain[at..end]);
                prop_assert_eq!(&out[end..end + 16], &sealed[end..end + 16], "the tag is unchanged");
                at = end + 16;
            }
        }

        #[test]
        fn one_wrong_bit_is_found(cipher in ciphers(), at in 0usize..2000, bit in 0u8..8) {
            let (_, mut sealed) = records(cipher.0, cipher.1, 0, &[1000, 958]);
            sealed[at] ^= 1 << bit;
            let result = walk_in_pieces(RecordMode::Open, cipher, 0, &sealed, &[700]);
            // A longer length makes the parser wait for missing bytes; all other changes are detected.
            let first = RecordFormat::new(cipher.0, cipher.1).prefix_len() + 1000 + 16;
            let in_length = [3, 4].contains(&(at % first));
            prop_assert!(result.is_err() || in_length);
        }
    }

    #[test]
    fn invalid_headers_are_rejected() {
        let gcm = |version| (version, TlsSuite::Aes128Gcm);
        let tls13 = [[22, 3, 3, 1, 0], [23, 3, 1, 1, 0], [23, 3, 3, 0, 16], [23, 3, 3, 0x41, 1]];
        let tls12 = [[20, 3, 3, 1, 0], [24, 3, 3, 1, 0], [23, 3, 1, 1, 0], [23, 3, 3, 0, 23], [23, 3, 3, 0x40, 25]];
        let cases = tls13.map(|header| (gcm(TlsVersion::Tls13), header)).into_iter();
        for (cipher, header) in cases.chain(tls12.map(|header| (gcm(TlsVersion::Tls12), header))) {
            let walked = walk_in_pieces(RecordMode::Open, cipher, 0, &header, &[5]);
            assert_eq!(walked.unwrap_err(), RecordError::NotARecord, "{header:?}");
        }
    }
}
