//! Masks of QUIC's header protection (RFC 9001 5.4): a sample of the ciphertext, encrypted with the AEAD's
//! cipher.

use std::fmt;

use zeroize::Zeroizing;

use crate::block::{self, BlockCipher};
use crate::chacha::keystream_block;
use crate::state_bytes::array;
use crate::{Algorithm, Backend, KeyLengthError};

/// Length in bytes of the sample from which a mask is made.
pub const SAMPLE_LEN: usize = 16;

/// Length in bytes of a mask: one for the first byte of a header, four for the packet number.
pub const MASK_LEN: usize = 5;

/// A key of header protection, ready for use. Wiped when dropped, never printed.
///
/// ```
/// use resumable_aead::{Algorithm, MaskKey};
///
/// // RFC 9001 A.2.
/// let key = 0x9f50449e04a0e810283a1e9933adedd2u128.to_be_bytes();
/// let sample = 0xd1b1c98dd7689fb8ec11d242b123dc9bu128.to_be_bytes();
/// let key = MaskKey::new(Algorithm::Aes128Gcm, &key)?;
/// assert_eq!(key.mask(&sample), [0x43, 0x7b, 0x9a, 0xec, 0x36]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct MaskKey(MaskCipher);

enum MaskCipher {
    Aes(BlockCipher),
    ChaCha(Box<Zeroizing<[u8; 32]>>),
}

impl MaskKey {
    /// Expands a key for the packets that `algorithm` protects.
    ///
    /// # Errors
    /// `key` must be [`Algorithm::key_len`] bytes long.
    pub fn new(algorithm: Algorithm, key: &[u8]) -> Result<MaskKey, KeyLengthError> {
        let aes_ni = block::is_available(Backend::AesNi);
        MaskKey::with_backend(algorithm, key, if aes_ni { Backend::AesNi } else { Backend::Portable })
    }

    fn with_backend(algorithm: Algorithm, key: &[u8], backend: Backend) -> Result<MaskKey, KeyLengthError> {
        if key.len() != algorithm.key_len() {
            return Err(KeyLengthError { algorithm, found: key.len() });
        }
        if algorithm != Algorithm::ChaCha20Poly1305 {
            return Ok(MaskKey(MaskCipher::Aes(BlockCipher::new(key, backend))));
        }
        // The key is written in place, so no copy stays on the stack.
        let mut own = Box::new(Zeroizing::new([0; 32]));
        own.copy_from_slice(key);
        Ok(MaskKey(MaskCipher::ChaCha(own)))
    }

    /// Returns the mask of a sample of the ciphertext.
    pub fn mask(&self, sample: &[u8; SAMPLE_LEN]) -> [u8; MASK_LEN] {
        match &self.0 {
            // RFC 9001 5.4.3: the mask is the encrypted sample.
            MaskCipher::Aes(cipher) => array(&cipher.encrypt_block(sample), 0),
            // RFC 9001 5.4.4: the sample is a counter and a nonce, the mask is keystream.
            MaskCipher::ChaCha(key) => {
                let counter = u32::from_le_bytes(array(sample, 0));
                array(&*Zeroizing::new(keystream_block(key, &array(sample, 4), counter)), 0)
            }
        }
    }
}

impl fmt::Debug for MaskKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MaskKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use ring::aead::quic;

    /// RFC 9001 A.5.
    #[test]
    fn rfc_9001_short_header_mask_matches() {
        let half = |text: &str| u128::from_str_radix(text, 16).unwrap().to_be_bytes();
        let key = [half("25a282b9e82f06f21f488917a4fc8f1b"), half("73573685608597d0efcb076b0ab7a7a4")].concat();
        let key = MaskKey::new(Algorithm::ChaCha20Poly1305, &key).unwrap();
        assert_eq!(key.mask(&half("5e5cd55c41f69080575d7999c25a5bfb")), [0xae, 0xfe, 0xfe, 0x7d, 0x03]);
    }

    #[test]
    fn wrong_mask_key_length_is_refused() {
        let error = MaskKey::new(Algorithm::Aes128Ccm, &[0; 32]).unwrap_err();
        assert_eq!(error, KeyLengthError { algorithm: Algorithm::Aes128Ccm, found: 32 });
    }

    proptest! {
        #[test]
        fn masks_match_ring(key: [u8; 32], sample: [u8; 16]) {
            for (algorithm, ring) in [
                (Algorithm::Aes128Gcm, &quic::AES_128),
                (Algorithm::Aes256Gcm, &quic::AES_256),
                (Algorithm::ChaCha20Poly1305, &quic::CHACHA20),
                (Algorithm::Aes128Ccm, &quic::AES_128),
            ] {
                let key = &key[..algorithm.key_len()];
                let theirs = quic::HeaderProtectionKey::new(ring, key).unwrap().new_mask(&sample).unwrap();
                for backend in Backend::ALL.into_iter().filter(|&backend| block::is_available(backend)) {
                    let ours = MaskKey::with_backend(algorithm, key, backend).unwrap();
                    prop_assert_eq!(ours.mask(&sample), theirs);
                }
            }
        }
    }
}
