//! Ciphering and integrity protection of batches of PDUs (TS 38.323 5.8, 5.9).

use std::sync::Arc;

use bytes::BytesMut;
use cellular_crypto::{CipherJob, Direction, Engine, Iv, Key, MacJob, PduNumber, TagLen};
use offload_base::cost::{self, WorkKind};

/// The keys of one direction of a bearer. Clones share the keys, which are wiped with the last clone.
///
/// ```
/// use pdcp::Security;
/// use pdcp::crypto::{Algorithm, Direction, Key};
///
/// let key = |byte| Key::new(Algorithm::Aes128, &[byte; 16]).expect("16 bytes");
/// let uplink = Security::new(1, Direction::Uplink)?.ciphered(key(1)).authenticated(key(2));
/// assert_eq!(uplink.mac_len(), 4);
/// assert!(Security::new(33, Direction::Uplink).is_err());
/// # Ok::<(), pdcp::SecurityError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Security {
    bearer: u8,
    direction: Direction,
    ciphering: Option<Arc<Key>>,
    integrity: Option<Arc<Key>>,
    engine: Engine,
}

/// Error of the caller: an invalid bearer identity.
///
/// ```
/// use pdcp::crypto::Direction;
/// use pdcp::{Security, SecurityError};
///
/// assert_eq!(Security::new(0, Direction::Uplink).err(), Some(SecurityError(0)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is no bearer's identity: they are 1 to 32")]
pub struct SecurityError(pub u8);

impl Security {
    /// Creates a configuration without keys, so that PDUs are sent in clear. `identity` is the radio bearer's, 1 to 32.
    ///
    /// # Errors
    /// [`SecurityError`] for any other identity.
    pub fn new(identity: u8, direction: Direction) -> Result<Security, SecurityError> {
        // TS 33.501 D.2.1: BEARER is the identity minus one.
        let bearer = identity.checked_sub(1).filter(|bearer| *bearer < 32).ok_or(SecurityError(identity))?;
        Ok(Security { bearer, direction, ciphering: None, integrity: None, engine: Engine::best() })
    }

    /// Adds a key for ciphering.
    pub fn ciphered(mut self, key: Key) -> Security {
        self.ciphering = Some(Arc::new(key));
        self
    }

    /// Adds a key for integrity protection (MAC-I).
    pub fn authenticated(mut self, key: Key) -> Security {
        self.integrity = Some(Arc::new(key));
        self
    }

    /// Tests whether there are no keys: the null algorithms.
    #[cfg(feature = "offload")]
    pub(crate) fn is_null(&self) -> bool {
        self.ciphering.is_none() && self.integrity.is_none()
    }

    /// Returns the length of a MAC-I in bytes: 4, or 0 without an integrity key.
    pub fn mac_len(&self) -> usize {
        if self.integrity.is_some() { TagLen::FOUR.get() } else { 0 }
    }

    /// Writes the MAC-I into the last bytes of each PDU, which must be reserved for it, and ciphers from byte `clear`
    /// on ([`Config::clear_bytes`]). A device's engine does this with the PDUs of [`Transmitter::take_clear`].
    ///
    /// A PDU shorter than the header and MAC-I is not changed.
    ///
    /// ```
    /// use bytes::BytesMut;
    /// use pdcp::Security;
    /// use pdcp::crypto::{Algorithm, Direction, Key};
    ///
    /// let key = |byte| Key::new(Algorithm::Aes128, &[byte; 16]).expect("16 bytes");
    /// let security = Security::new(1, Direction::Uplink)?.ciphered(key(1)).authenticated(key(2));
    /// let clear = BytesMut::from(b"\x80\x07an SDU....".as_slice());
    /// let mut pdus = [(7, clear)];
    /// security.protect(2, &mut pdus);
    /// assert_eq!(security.open(2, &mut pdus), [true]);
    /// assert_eq!(pdus[0].1[..8], *b"\x80\x07an SDU");
    /// # Ok::<(), pdcp::SecurityError>(())
    /// ```
    ///
    /// [`Config::clear_bytes`]: crate::Config::clear_bytes
    /// [`Transmitter::take_clear`]: crate::Transmitter::take_clear
    pub fn protect(&self, clear: usize, pdus: &mut [(u32, BytesMut)]) {
        let _scope = cost::work(WorkKind::Crypto);
        if let Some(key) = &self.integrity {
            // The MAC-I covers the clear PDU, so it comes before ciphering.
            let tags = self.macs(key, pdus.iter().map(|(count, pdu)| (*count, self.split(pdu).0)));
            for ((_, pdu), tag) in pdus.iter_mut().zip(tags) {
                let at = self.split(pdu).0.len();
                let len = pdu.len() - at;
                pdu[at..].copy_from_slice(&tag.as_bytes()[..len]);
            }
        }
        self.cipher(clear, pdus.iter_mut().map(|(count, pdu)| (*count, &mut pdu[..])));
    }

    /// Deciphers from byte `clear` on. Returns for each PDU whether its MAC-I is valid.
    pub fn open(&self, clear: usize, pdus: &mut [(u32, BytesMut)]) -> Vec<bool> {
        let _scope = cost::work(WorkKind::Crypto);
        self.cipher(clear, pdus.iter_mut().map(|(count, pdu)| (*count, &mut pdu[..])));
        let Some(key) = &self.integrity else { return vec![true; pdus.len()] };
        let tags = self.macs(key, pdus.iter().map(|(count, pdu)| (*count, self.split(pdu).0)));
        let expected = pdus.iter().map(|(_, pdu)| self.split(pdu).1);
        tags.iter().zip(expected).map(|(tag, expected)| tag.fits(expected)).collect()
    }

    /// Tests whether PDUs under these keys and under the others could get the same key stream or MAC-I.
    pub(crate) fn shares_key(&self, other: &Security) -> bool {
        self.fingerprints().any(|key| other.fingerprints().any(|of| of == key))
    }

    /// Returns the identity of each key: direction, bearer identity, algorithm, use, and a fingerprint of the key.
    pub(crate) fn fingerprints(&self) -> impl Iterator<Item = [u8; 18]> {
        // The same key gives another key stream with another bearer, direction, algorithm or use.
        let (bearer, direction) = (self.bearer << 1, self.direction as u8 & 1);
        [(&self.ciphering, 0), (&self.integrity, 0x80)].into_iter().filter_map(move |(key, usage)| {
            let key = key.as_ref()?;
            let mut fingerprint = [0; 18];
            fingerprint[..2].copy_from_slice(&[bearer | direction, key.algorithm().number() | usage]);
            fingerprint[2..].copy_from_slice(&key.fingerprint());
            Some(fingerprint)
        })
    }

    /// Ciphers or deciphers PDUs.
    pub(crate) fn cipher<'a>(&self, clear: usize, pdus: impl Iterator<Item = (u32, &'a mut [u8])>) {
        let Some(key) = &self.ciphering else { return };
        let mut jobs: Vec<CipherJob<'_>> = pdus
            .filter_map(|(count, pdu)| {
                let iv = Iv::cipher(key.algorithm(), self.number(count));
                let start = clear.min(pdu.len());
                CipherJob::new(key, iv, &mut pdu[start..]).ok()
            })
            .collect();
        self.engine.cipher(&mut jobs);
    }

    /// Splits a PDU into the part that the MAC-I covers, and the MAC-I.
    fn split<'a>(&self, pdu: &'a [u8]) -> (&'a [u8], &'a [u8]) {
        pdu.split_at(pdu.len().saturating_sub(self.mac_len()))
    }

    fn macs<'a>(&self, key: &Key, messages: impl Iterator<Item = (u32, &'a [u8])>) -> Vec<cellular_crypto::Tag> {
        let mut jobs: Vec<MacJob<'_>> = messages
            .map(|(count, message)| {
                let iv = Iv::mac(key.algorithm(), self.number(count), TagLen::FOUR);
                MacJob::new(key, iv, message, TagLen::FOUR)
                    .expect("a PDU is short, and every algorithm has tags of 4 bytes")
            })
            .collect();
        self.engine.mac(&mut jobs);
        jobs.iter().map(MacJob::tag).collect()
    }

    fn number(&self, count: u32) -> PduNumber {
        PduNumber::new(count, self.bearer, self.direction).expect("checked when made")
    }
}
