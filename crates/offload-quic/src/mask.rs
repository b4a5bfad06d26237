//! Header protection (RFC 9001 5.4): what hides the first byte and the number.

use crate::SAMPLE;
use core::fmt;
use offload_api::{QuicCipher, QuicHeaderKey};
use ring::aead::quic;

/// The key that makes masks, ready for use.
pub struct HeaderKey(quic::HeaderProtectionKey);

impl HeaderKey {
    /// Expands a key.
    ///
    /// # Panics
    /// Never: a [`QuicHeaderKey`] is as long as its cipher wants.
    pub fn new(key: &QuicHeaderKey) -> HeaderKey {
        let algorithm = match key.cipher() {
            QuicCipher::Aes256Gcm => &quic::AES_256,
            QuicCipher::ChaCha20Poly1305 => &quic::CHACHA20,
            _ => &quic::AES_128,
        };
        let key = quic::HeaderProtectionKey::new(algorithm, key.key());
        HeaderKey(key.expect("a key is as long as its cipher wants"))
    }

    /// The mask that a sample of the ciphertext makes.
    ///
    /// # Panics
    /// Never: a sample has the length that every algorithm wants.
    pub fn mask(&self, sample: &[u8; SAMPLE]) -> [u8; 5] {
        self.0.new_mask(sample).expect("a sample is as long as every algorithm wants")
    }
}

impl fmt::Debug for HeaderKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HeaderKey(..)")
    }
}
