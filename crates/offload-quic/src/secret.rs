//! Derivation of keys from a traffic secret (RFC 9001 5.1, 6.1).

use crate::key::PacketKey;
use crate::mask::HeaderKey;
use core::fmt;
use offload_api::{QuicCipher, QuicHeaderKey, QuicKey};
use ring::hkdf;
use zeroize::Zeroizing;

/// A traffic secret of one direction and generation. Never printed, and wiped on drop.
///
/// ```
/// use offload_api::QuicCipher;
/// use offload_quic::TrafficSecret;
///
/// assert!(TrafficSecret::new(QuicCipher::Aes256Gcm, &[1; 32]).is_err(), "SHA-384 gives 48 bytes");
/// ```
#[derive(Clone)]
pub struct TrafficSecret {
    cipher: QuicCipher,
    bytes: Zeroizing<Vec<u8>>,
}

/// The error for a secret with another length than the hash of its cipher suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a secret for {cipher:?} has {expected} bytes, not {given}")]
pub struct SecretLengthError {
    cipher: QuicCipher,
    expected: usize,
    given: usize,
}

impl TrafficSecret {
    /// Creates a secret from its bytes.
    ///
    /// # Errors
    /// If the length differs from that of the cipher suite's hash.
    pub fn new(cipher: QuicCipher, bytes: &[u8]) -> Result<TrafficSecret, SecretLengthError> {
        let (expected, given) = (hash(cipher).hmac_algorithm().digest_algorithm().output_len(), bytes.len());
        if expected != given {
            return Err(SecretLengthError { cipher, expected, given });
        }
        Ok(TrafficSecret { cipher, bytes: Zeroizing::new(bytes.to_vec()) })
    }

    /// Returns the cipher of the keys.
    pub fn cipher(&self) -> QuicCipher {
        self.cipher
    }

    /// Derives key and IV for a device.
    ///
    /// # Panics
    /// Never, because the derived key has the required length.
    pub fn key(&self) -> QuicKey {
        let (mut key, mut iv) = (Zeroizing::new([0; 32]), [0; 12]);
        let key = &mut key[..self.cipher.key_len()];
        self.expand(b"quic key", key);
        self.expand(b"quic iv", &mut iv);
        QuicKey::new(self.cipher, key, iv).expect("the derived key has the length that the cipher requires")
    }

    /// Derives the header key for a device. Derived from the first generation's secret, and never changed (RFC 9001
    /// 6.1).
    ///
    /// # Panics
    /// Never, because the derived key has the required length.
    pub fn header(&self) -> QuicHeaderKey {
        let mut key = Zeroizing::new([0; 32]);
        let key = &mut key[..self.cipher.key_len()];
        self.expand(b"quic hp", key);
        QuicHeaderKey::new(self.cipher, key).expect("the derived key has the length that the cipher requires")
    }

    /// Derives and expands key and IV.
    pub fn packet_key(&self) -> PacketKey {
        PacketKey::new(&self.key())
    }

    /// Derives and expands the header key.
    pub fn header_key(&self) -> HeaderKey {
        HeaderKey::new(&self.header())
    }

    /// Derives the secret of the next generation.
    #[must_use]
    pub fn next(&self) -> TrafficSecret {
        let mut bytes = Zeroizing::new(vec![0; self.bytes.len()]);
        self.expand(b"quic ku", &mut bytes);
        TrafficSecret { cipher: self.cipher, bytes }
    }

    /// Computes HKDF-Expand-Label (RFC 8446 7.1) without a context.
    fn expand(&self, label: &[u8], out: &mut [u8]) {
        let length = (out.len() as u16).to_be_bytes();
        let label_length = [(PREFIX.len() + label.len()) as u8];
        // The structure `HkdfLabel` with an empty context.
        let info = [&length[..], &label_length, PREFIX, label, &[0]];
        let secret = hkdf::Prk::new_less_safe(hash(self.cipher), &self.bytes);
        let made = secret.expand(&info, OutputLength(out.len())).and_then(|made| made.fill(out));
        made.expect("a key is at most two hashes long, and HKDF gives 255");
    }
}

impl fmt::Debug for TrafficSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TrafficSecret({:?}, ..)", self.cipher)
    }
}

struct OutputLength(usize);

impl hkdf::KeyType for OutputLength {
    fn len(&self) -> usize {
        self.0
    }
}

/// Returns the hash of a cipher suite (RFC 8446 B.4).
fn hash(cipher: QuicCipher) -> hkdf::Algorithm {
    match cipher {
        QuicCipher::Aes256Gcm => hkdf::HKDF_SHA384,
        // All other suites use SHA-256, also AES-128-CCM.
        _ => hkdf::HKDF_SHA256,
    }
}

const PREFIX: &[u8] = b"tls13 ";
