//! Traffic keys: what protects the records of one direction, and where the next ones come from.
//!
//! Invariant: a nonce is the static IV combined with a record number (RFC 8446 section 5.3), so a key never meets
//! the same nonce twice as long as no number is used for two different records.

use offload_api::{TlsKey, TlsSuite, TlsVersion};
use ring::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use zeroize::Zeroize;

/// The keys of both directions with the number of the next record of each.
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
    /// Number of the next record to send, and the key that protects it.
    pub transmit: (u64, TlsKey),
    /// Number of the next record to arrive, and the key that protects it.
    pub receive: (u64, TlsKey),
}

impl TrafficKeys {
    /// The keys as the other end has them.
    pub fn swapped(self) -> TrafficKeys {
        TrafficKeys { transmit: self.receive, receive: self.transmit }
    }
}

/// Where the keys after the present ones come from, and where tickets go: the handshake's after-life.
///
/// [`connect`](crate::connect) and [`accept`](crate::accept) bring theirs; whoever has keys from elsewhere brings
/// one, or [`FixedKeys`].
pub trait KeySchedule: Send {
    /// The transmit key that follows the present one.
    ///
    /// # Errors
    /// [`ScheduleError`]: the stream then fails.
    fn next_transmit_key(&mut self) -> Result<TlsKey, ScheduleError>;

    /// The receive key that follows the present one.
    ///
    /// # Errors
    /// [`ScheduleError`]: the stream then fails.
    fn next_receive_key(&mut self) -> Result<TlsKey, ScheduleError>;

    /// Takes the body of a NewSessionTicket message.
    ///
    /// # Errors
    /// [`ScheduleError::NoTickets`] on a server, to which nobody may send one.
    fn store_ticket(&mut self, ticket: &[u8]) -> Result<(), ScheduleError>;
}

/// A schedule that ends with the present keys, and takes no tickets: for keys agreed on elsewhere, and for tests.
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

/// What a [`KeySchedule`] could not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// The schedule ends with the present keys.
    #[error("the key schedule has no further keys")]
    NoMoreKeys,
    /// This end takes no tickets.
    #[error("this end takes no session tickets")]
    NoTickets,
    /// The peer's ticket cannot be parsed.
    #[error("a session ticket cannot be parsed")]
    BadTicket,
    /// The next key is for a version or suite that the record layer does not know.
    #[error(transparent)]
    Unsupported(#[from] UnsupportedKey),
}

/// A key for a version or suite that the record layer does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("records of {version:?} with {suite:?} are not supported")]
pub struct UnsupportedKey {
    /// The version.
    pub version: TlsVersion,
    /// The suite.
    pub suite: TlsSuite,
}

/// A key ready for whole records on the CPU. ring keeps the key schedule to itself and does not wipe it.
pub(crate) struct RecordKey {
    key: LessSafeKey,
    iv: [u8; NONCE_LEN],
}

impl RecordKey {
    pub(crate) fn new(key: &TlsKey) -> Result<RecordKey, UnsupportedKey> {
        let unsupported = UnsupportedKey { version: key.version(), suite: key.suite() };
        if key.version() != TlsVersion::Tls13 {
            return Err(unsupported);
        }
        let algorithm = match key.suite() {
            TlsSuite::Aes128Gcm => &aead::AES_128_GCM,
            TlsSuite::Aes256Gcm => &aead::AES_256_GCM,
            TlsSuite::ChaCha20Poly1305 => &aead::CHACHA20_POLY1305,
            _ => return Err(unsupported),
        };
        let unbound = UnboundKey::new(algorithm, key.key()).map_err(|_| unsupported)?;
        Ok(RecordKey { key: LessSafeKey::new(unbound), iv: *key.iv() })
    }

    /// Encrypts `body` (content and its type) in place and gives the tag.
    pub(crate) fn seal(&self, number: u64, header: [u8; 5], body: &mut [u8]) -> [u8; TAG_LEN] {
        let tag = self.key.seal_in_place_separate_tag(self.nonce(number), Aad::from(header), body);
        let mut bytes = [0; TAG_LEN];
        bytes.copy_from_slice(tag.expect("a record is far shorter than the algorithm's limit").as_ref());
        bytes
    }

    /// Decrypts a body with its tag in place; false if they do not belong together.
    #[must_use]
    pub(crate) fn open(&self, number: u64, header: [u8; 5], body_and_tag: &mut [u8]) -> bool {
        self.key.open_in_place(self.nonce(number), Aad::from(header), body_and_tag).is_ok()
    }

    fn nonce(&self, number: u64) -> Nonce {
        Nonce::assume_unique_for_key(nonce(&self.iv, number))
    }
}

impl Drop for RecordKey {
    fn drop(&mut self) {
        self.iv.zeroize();
    }
}

/// A key for records that are worked on piece by piece.
pub(crate) struct PieceKey {
    pub(crate) key: resumable_aead::Key,
    iv: [u8; NONCE_LEN],
}

impl PieceKey {
    pub(crate) fn new(key: &TlsKey) -> Result<PieceKey, UnsupportedKey> {
        let unsupported = UnsupportedKey { version: key.version(), suite: key.suite() };
        let algorithm = match key.suite() {
            TlsSuite::Aes128Gcm => resumable_aead::Algorithm::Aes128Gcm,
            TlsSuite::Aes256Gcm => resumable_aead::Algorithm::Aes256Gcm,
            TlsSuite::ChaCha20Poly1305 => resumable_aead::Algorithm::ChaCha20Poly1305,
            _ => return Err(unsupported),
        };
        let expanded = resumable_aead::Key::new(algorithm, key.key()).map_err(|_| unsupported)?;
        Ok(PieceKey { key: expanded, iv: *key.iv() })
    }

    pub(crate) fn nonce(&self, number: u64) -> [u8; NONCE_LEN] {
        nonce(&self.iv, number)
    }
}

impl Drop for PieceKey {
    fn drop(&mut self) {
        self.iv.zeroize();
    }
}

/// How many records a key may protect: RFC 8446 section 5.5 gives 2^24.5 full ones for AES-GCM, and ChaCha20 runs
/// out of numbers first.
pub(crate) fn record_limit(suite: TlsSuite) -> u64 {
    match suite {
        TlsSuite::ChaCha20Poly1305 => u64::MAX - 1,
        _ => 1 << 24,
    }
}

/// RFC 8446 section 5.3.
fn nonce(iv: &[u8; NONCE_LEN], number: u64) -> [u8; NONCE_LEN] {
    let mut nonce = *iv;
    for (byte, number) in nonce[4..].iter_mut().zip(number.to_be_bytes()) {
        *byte ^= number;
    }
    nonce
}

/// Bytes of an authentication tag, the same for all suites.
pub(crate) const TAG_LEN: usize = 16;
const NONCE_LEN: usize = 12;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_goes_into_the_last_eight_bytes_of_the_nonce() {
        let iv = [0xff; 12];
        assert_eq!(nonce(&iv, 0x0102), [255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 0xfe, 0xfd]);
        assert_eq!(nonce(&[0; 12], u64::MAX), [0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255]);
    }

    #[test]
    fn both_kinds_of_key_agree_for_every_suite() {
        for suite in [TlsSuite::Aes128Gcm, TlsSuite::Aes256Gcm, TlsSuite::ChaCha20Poly1305] {
            let key = TlsKey::new(TlsVersion::Tls13, suite, &vec![3; suite.key_len()], [5; 12]).unwrap();
            let (whole, pieces) = (RecordKey::new(&key).unwrap(), PieceKey::new(&key).unwrap());
            let header = [23, 3, 3, 0, 27];
            let mut one = *b"hello world";
            let mut other = one;
            let tag = whole.seal(9, header, &mut one);
            assert_eq!(pieces.key.seal_in_place(&pieces.nonce(9), &header, &mut other).unwrap(), tag);
            assert_eq!(one, other, "{suite:?}");
        }
        assert!(
            RecordKey::new(&TlsKey::new(TlsVersion::Tls12, TlsSuite::Aes128Gcm, &[0; 16], [0; 12]).unwrap()).is_err()
        );
    }
}
