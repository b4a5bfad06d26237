//! Header protection (RFC 9001 5.4): masks for the first byte and the packet number.

use crate::SAMPLE;
use crate::key::algorithm;
use core::fmt;
use offload_api::QuicHeaderKey;
use resumable_aead::MaskKey;

/// The expanded header protection key.
pub struct HeaderKey(MaskKey);

impl HeaderKey {
    /// Expands a key.
    ///
    /// # Panics
    /// Never, because a [`QuicHeaderKey`] has the length that its cipher requires.
    pub fn new(key: &QuicHeaderKey) -> HeaderKey {
        let key = MaskKey::new(algorithm(key.cipher()), key.key());
        HeaderKey(key.expect("the key has the length that its cipher requires"))
    }

    /// Returns the mask for a sample of the ciphertext.
    pub fn mask(&self, sample: &[u8; SAMPLE]) -> [u8; 5] {
        self.0.mask(sample)
    }
}

impl fmt::Debug for HeaderKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HeaderKey(..)")
    }
}
