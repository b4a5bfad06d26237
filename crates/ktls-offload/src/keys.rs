//! Traffic keys and their succession.
//!
//! Invariant: a nonce is the static IV combined with the record number (in every [`RecordFormat`]). A key therefore
//! never uses a nonce twice, provided that no number is given to two different records.

use crate::aead::{RecordAead, WholeRecords};
use crate::record::HEADER_LEN;
use offload_api::record::RecordAad;
use offload_api::{RecordFormat, TlsKey, TlsSuite, TlsVersion};
use resumable_aead::State;
use smallvec::SmallVec;
use zeroize::Zeroize;

/// The keys of both directions, each with the number of its next record.
///
/// ```
/// use ktls_offload::TrafficKeys;
/// use offload_api::{TlsKey, TlsSuite, TlsVersion};
///
/// let key = |byte| TlsKey::new(TlsVersion::Tls13, TlsSuite::Aes128Gcm, &[byte; 16], [byte; 12]).unwrap();
/// let client = TrafficKeys { transmit: (0, key(1)), receive: (0, key(2)) };
/// let server = client.clone().swapped();
/// assert_eq!(server.receive.1.key(), client.transmit.1.key());
/// ```
#[derive(Clone, Debug)]
pub struct TrafficKeys {
    /// The number of the next record to send, and its key.
    pub transmit: (u64, TlsKey),
    /// The number of the next record to receive, and its key.
    pub receive: (u64, TlsKey),
}

impl TrafficKeys {
    /// Returns the keys from the other end's view.
    pub fn swapped(self) -> TrafficKeys {
        TrafficKeys { transmit: self.receive, receive: self.transmit }
    }
}

/// A source of successive traffic keys, and the sink of session tickets: the state that a handshake leaves behind.
///
/// [`connect`](crate::connect) and [`accept`](crate::accept) provide one. A caller with its own keys implements one or
/// uses [`FixedKeys`].
pub trait KeySchedule: Send {
    /// Returns the next transmit key.
    ///
    /// # Errors
    /// [`ScheduleError`]; the stream then fails.
    fn next_transmit_key(&mut self) -> Result<TlsKey, ScheduleError>;

    /// Returns the next receive key.
    ///
    /// # Errors
    /// [`ScheduleError`]; the stream then fails.
    fn next_receive_key(&mut self) -> Result<TlsKey, ScheduleError>;

    /// Stores the body of a NewSessionTicket message.
    ///
    /// # Errors
    /// [`ScheduleError::NoTickets`] on a server, because only servers send tickets.
    fn store_ticket(&mut self, ticket: &[u8]) -> Result<(), ScheduleError>;
}

/// A key schedule without further keys, which refuses tickets: for keys agreed elsewhere, and for tests.
///
/// ```
/// use ktls_offload::{FixedKeys, KeySchedule};
///
/// assert!(FixedKeys.next_transmit_key().is_err());
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct FixedKeys;

impl KeySchedule for FixedKeys {
    fn next_transmit_key(&mut self) -> Result<TlsKey, ScheduleError> {
        Err(ScheduleError::NoMoreKeys)
    }

    fn next_receive_key(&mut self) -> Result<TlsKey, ScheduleError> {
        Err(ScheduleError::NoMoreKeys)
    }

    fn store_ticket(&mut self, _: &[u8]) -> Result<(), ScheduleError> {
        Err(ScheduleError::NoTickets)
    }
}

/// Error of a [`KeySchedule`].
///
/// ```
/// use ktls_offload::{FixedKeys, KeySchedule, ScheduleError};
///
/// assert_eq!(FixedKeys.store_ticket(b"a ticket"), Err(ScheduleError::NoTickets));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// The schedule has no further keys.
    #[error("the key schedule has no further keys")]
    NoMoreKeys,
    /// This end accepts no tickets.
    #[error("this end does not accept session tickets")]
    NoTickets,
    /// The peer's ticket cannot be parsed.
    #[error("a session ticket cannot be parsed")]
    BadTicket,
    /// The next key has a version or suite that the record layer does not support.
    #[error(transparent)]
    Unsupported(#[from] UnsupportedKey),
}

/// A key with a version or suite that the record layer does not support.
///
/// ```
/// use ktls_offload::{ScheduleError, TlsSuite, TlsVersion, UnsupportedKey};
///
/// let unsupported = UnsupportedKey { version: TlsVersion::Tls12, suite: TlsSuite::ChaCha20Poly1305 };
/// assert_eq!(ScheduleError::from(unsupported).to_string(), "records of Tls12 with ChaCha20Poly1305 are not supported");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("records of {version:?} with {suite:?} are not supported")]
pub struct UnsupportedKey {
    /// The version.
    pub version: TlsVersion,
    /// The suite.
    pub suite: TlsSuite,
}

/// The bytes before a record's body: the header, and the explicit nonce if the format has one.
pub(crate) type RecordPrefix = SmallVec<[u8; 16]>;

/// A key that seals and opens whole records on the CPU. ring does not expose its expanded key and does not wipe the
/// memory.
pub(crate) struct RecordKey {
    key: RecordAead,
    format: RecordFormat,
    iv: [u8; NONCE_LEN],
}

impl RecordKey {
    pub(crate) fn new(key: &TlsKey) -> Result<RecordKey, UnsupportedKey> {
        let unsupported = UnsupportedKey { version: key.version(), suite: key.suite() };
        // `TlsVersion` is non-exhaustive, and a later version may have another nonce.
        if !matches!(key.version(), TlsVersion::Tls12 | TlsVersion::Tls13) {
            return Err(unsupported);
        }
        let expanded = RecordAead::expand(key.suite(), key.key()).ok_or(unsupported)?;
        Ok(RecordKey { key: expanded, format: key.format(), iv: *key.iv() })
    }

    pub(crate) fn format(&self) -> RecordFormat {
        self.format
    }

    /// Returns the prefix of record `number` with a body of `body` bytes.
    pub(crate) fn prefix(&self, number: u64, content_type: u8, body: usize) -> RecordPrefix {
        let mut prefix = RecordPrefix::from_slice(&self.format.header(content_type, body));
        let explicit = self.format.explicit_nonce(&self.iv, number);
        prefix.extend_from_slice(&explicit[..self.format.explicit_nonce_len()]);
        prefix
    }

    /// Encrypts `body` in place and returns the tag.
    pub(crate) fn seal(&self, number: u64, prefix: &[u8], body: &mut [u8]) -> [u8; TAG_LEN] {
        let (nonce, aad) = protection(self.format, &self.iv, number, prefix);
        self.key.seal(nonce, &aad, body)
    }

    /// Decrypts a body and its tag in place. Returns false if the tag does not match.
    #[must_use]
    pub(crate) fn open(&self, number: u64, prefix: &[u8], body_and_tag: &mut [u8]) -> bool {
        let (nonce, aad) = protection(self.format, &self.iv, number, prefix);
        self.key.open(nonce, &aad, body_and_tag)
    }
}

/// Returns the nonce and the additional data of the record `number` that begins with `prefix`.
fn protection(format: RecordFormat, iv: &[u8; NONCE_LEN], number: u64, prefix: &[u8]) -> ([u8; NONCE_LEN], RecordAad) {
    let mut header = [0; HEADER_LEN];
    let (start, explicit) = prefix.split_at(HEADER_LEN);
    header.copy_from_slice(start);
    (format.nonce(iv, number, explicit), format.aad(number, &header))
}

impl Drop for RecordKey {
    fn drop(&mut self) {
        self.iv.zeroize();
    }
}

/// A key that processes records piece by piece.
pub(crate) struct PieceKey {
    pub(crate) key: resumable_aead::Key,
    format: RecordFormat,
    iv: [u8; NONCE_LEN],
}

impl PieceKey {
    pub(crate) fn new(key: &TlsKey) -> Result<PieceKey, UnsupportedKey> {
        let unsupported = UnsupportedKey { version: key.version(), suite: key.suite() };
        let expanded = piecewise(key.suite(), key.key()).ok_or(unsupported)?;
        Ok(PieceKey { key: expanded, format: key.format(), iv: *key.iv() })
    }

    /// Begins processing the record `number` that begins with `prefix`.
    pub(crate) fn begin(&self, number: u64, prefix: &[u8]) -> State {
        let (nonce, aad) = protection(self.format, &self.iv, number, prefix);
        State::new(&self.key, &nonce, &aad)
    }

    /// Applies the keystream to the bytes at offset `at` of the body of record `number`, which encrypts or decrypts
    /// them. Only replaced keys need this method. Replaced keys belong to TLS 1.3, where the record number alone
    /// determines the nonce.
    ///
    /// # Errors
    /// If the record is too long for the algorithm; TLS records never are.
    pub(crate) fn apply_keystream(
        &self,
        number: u64,
        at: u64,
        data: &mut [u8],
    ) -> Result<(), resumable_aead::MessageTooLong> {
        let explicit = self.format.explicit_nonce(&self.iv, number);
        let nonce = self.format.nonce(&self.iv, number, &explicit[..self.format.explicit_nonce_len()]);
        self.key.apply_keystream(&nonce, at, data)
    }
}

impl Drop for PieceKey {
    fn drop(&mut self) {
        self.iv.zeroize();
    }
}

/// Expands a key for piecewise processing. Returns `None` if the suite is unknown or the key has the wrong length.
pub(crate) fn piecewise(suite: TlsSuite, key: &[u8]) -> Option<resumable_aead::Key> {
    let algorithm = match suite {
        TlsSuite::Aes128Gcm => resumable_aead::Algorithm::Aes128Gcm,
        TlsSuite::Aes256Gcm => resumable_aead::Algorithm::Aes256Gcm,
        TlsSuite::ChaCha20Poly1305 => resumable_aead::Algorithm::ChaCha20Poly1305,
        _ => return None,
    };
    resumable_aead::Key::new(algorithm, key).ok()
}

/// Returns the maximum number of records that a key may protect. RFC 8446 section 5.5 allows 2^24.5 full records for
/// AES-GCM; RFC 9325 section 4.4 applies this limit to TLS 1.2 too. ChaCha20-Poly1305 exhausts the record numbers
/// first.
pub(crate) fn record_limit(suite: TlsSuite) -> u64 {
    match suite {
        TlsSuite::ChaCha20Poly1305 => u64::MAX - 1,
        _ => 1 << 24,
    }
}

/// Length of an authentication tag in bytes, equal for all suites.
pub(crate) const TAG_LEN: usize = 16;
pub(crate) const NONCE_LEN: usize = 12;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_key_agree_for_every_format() {
        for version in [TlsVersion::Tls12, TlsVersion::Tls13] {
            for suite in [TlsSuite::Aes128Gcm, TlsSuite::Aes256Gcm, TlsSuite::ChaCha20Poly1305] {
                let key = TlsKey::new(version, suite, &vec![3; suite.key_len()], [5; 12]).unwrap();
                let (whole, pieces) = (RecordKey::new(&key).unwrap(), PieceKey::new(&key).unwrap());
                let prefix = whole.prefix(9, 23, 11);
                assert_eq!(prefix.len(), key.format().prefix_len());
                let mut one = *b"hello world";
                let mut other = one;
                let tag = whole.seal(9, &prefix, &mut one);
                let mut state = pieces.begin(9, &prefix);
                state.encrypt(&pieces.key, &mut other).unwrap();
                assert_eq!(state.tag(&pieces.key).unwrap(), tag);
                assert_eq!(one, other, "{version:?} {suite:?}");
                pieces.apply_keystream(9, 0, &mut other).unwrap();
                assert_eq!(&other, b"hello world");
                assert!(whole.open(9, &prefix, &mut [&one[..], &tag].concat()));
                assert!(!whole.open(8, &prefix, &mut [&one[..], &tag].concat()), "another number");
            }
        }
    }
}
