//! Sealing and opening of whole records by the chosen cryptography library.
//!
//! - [`WholeRecords`]: the interface of a library;
//! - ring (feature `ring`, on by default) takes precedence over AWS-LC (feature `aws-lc-rs`);
//! - [`resumable_aead::Key`] is the fallback without either feature.

use crate::keys::{NONCE_LEN, TAG_LEN};
use offload_api::TlsSuite;

/// A key that seals and opens whole records. The caller guarantees unique nonces.
pub(crate) trait WholeRecords: Sized {
    /// Expands a key. Returns `None` if the library lacks the suite or the key has the wrong length.
    fn expand(suite: TlsSuite, key: &[u8]) -> Option<Self>;

    /// Encrypts `body` in place and returns the tag.
    fn seal(&self, nonce: [u8; NONCE_LEN], aad: &[u8], body: &mut [u8]) -> [u8; TAG_LEN];

    /// Decrypts a body and its tag in place. Returns false if the tag does not match.
    #[must_use]
    fn open(&self, nonce: [u8; NONCE_LEN], aad: &[u8], body_and_tag: &mut [u8]) -> bool;
}

/// The key type of the chosen library.
#[cfg(feature = "ring")]
pub(crate) type RecordAead = ring::aead::LessSafeKey;
#[cfg(all(feature = "aws-lc-rs", not(feature = "ring")))]
pub(crate) type RecordAead = aws_lc_rs::aead::LessSafeKey;
#[cfg(not(any(feature = "ring", feature = "aws-lc-rs")))]
pub(crate) type RecordAead = resumable_aead::Key;

/// Implements [`WholeRecords`] for ring or AWS-LC, which share an API.
#[cfg(any(feature = "ring", feature = "aws-lc-rs"))]
macro_rules! implement_with_ring_api {
    ($($library:ident)::+) => {
        impl WholeRecords for $($library)::+::aead::LessSafeKey {
            fn expand(suite: TlsSuite, key: &[u8]) -> Option<Self> {
                use $($library)::+::aead::{AES_128_GCM, AES_256_GCM, CHACHA20_POLY1305, LessSafeKey, UnboundKey};
                let algorithm = match suite {
                    TlsSuite::Aes128Gcm => &AES_128_GCM,
                    TlsSuite::Aes256Gcm => &AES_256_GCM,
                    TlsSuite::ChaCha20Poly1305 => &CHACHA20_POLY1305,
                    _ => return None,
                };
                UnboundKey::new(algorithm, key).ok().map(LessSafeKey::new)
            }

            fn seal(&self, nonce: [u8; NONCE_LEN], aad: &[u8], body: &mut [u8]) -> [u8; TAG_LEN] {
                use $($library)::+::aead::{Aad, Nonce};
                // The record number makes the nonce unique.
                let nonce = Nonce::assume_unique_for_key(nonce);
                let tag = self.seal_in_place_separate_tag(nonce, Aad::from(aad), body);
                let mut bytes = [0; TAG_LEN];
                bytes.copy_from_slice(tag.expect("a record is far shorter than the algorithm's limit").as_ref());
                bytes
            }

            fn open(&self, nonce: [u8; NONCE_LEN], aad: &[u8], body_and_tag: &mut [u8]) -> bool {
                use $($library)::+::aead::{Aad, Nonce};
                self.open_in_place(Nonce::assume_unique_for_key(nonce), Aad::from(aad), body_and_tag).is_ok()
            }
        }
    };
}

#[cfg(feature = "ring")]
implement_with_ring_api!(ring);
#[cfg(all(feature = "aws-lc-rs", any(test, not(feature = "ring"))))]
implement_with_ring_api!(aws_lc_rs);

#[cfg(any(test, not(any(feature = "ring", feature = "aws-lc-rs"))))]
impl WholeRecords for resumable_aead::Key {
    fn expand(suite: TlsSuite, key: &[u8]) -> Option<Self> {
        crate::keys::piecewise(suite, key)
    }

    fn seal(&self, nonce: [u8; NONCE_LEN], aad: &[u8], body: &mut [u8]) -> [u8; TAG_LEN] {
        self.seal_in_place(&nonce, aad, body).expect("a record is far shorter than the algorithm's limit")
    }

    fn open(&self, nonce: [u8; NONCE_LEN], aad: &[u8], body_and_tag: &mut [u8]) -> bool {
        let Some((body, tag)) = body_and_tag.split_last_chunk_mut() else { return false };
        self.open_in_place(&nonce, aad, body, tag).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seals_and_opens<P: WholeRecords>(suite: TlsSuite, sealed_by_another: &[u8]) {
        let key = P::expand(suite, &vec![3; suite.key_len()]).expect("the suite is known");
        assert!(P::expand(suite, &[3; 7]).is_none(), "no key has 7 bytes");
        let mut body = b"a record".to_vec();
        let tag = key.seal([5; NONCE_LEN], b"header", &mut body);
        body.extend_from_slice(&tag);
        assert_eq!(body, sealed_by_another, "{suite:?}");
        assert!(!key.open([5; NONCE_LEN], b"another", &mut body.clone()));
        assert!(!key.open([6; NONCE_LEN], b"header", &mut body.clone()));
        assert!(!key.open([5; NONCE_LEN], b"header", &mut body[..TAG_LEN - 1].to_vec()));
        assert!(key.open([5; NONCE_LEN], b"header", &mut body));
        assert!(body.starts_with(b"a record"));
    }

    #[test]
    fn all_providers_make_the_same_records() {
        for suite in [TlsSuite::Aes128Gcm, TlsSuite::Aes256Gcm, TlsSuite::ChaCha20Poly1305] {
            let key = crate::keys::piecewise(suite, &vec![3; suite.key_len()]).unwrap();
            let mut sealed = b"a record".to_vec();
            let mut state = resumable_aead::State::new(&key, &[5; NONCE_LEN], b"header");
            state.encrypt(&key, &mut sealed).unwrap();
            sealed.extend_from_slice(&state.tag(&key).unwrap());
            seals_and_opens::<resumable_aead::Key>(suite, &sealed);
            seals_and_opens::<RecordAead>(suite, &sealed);
            #[cfg(feature = "aws-lc-rs")]
            seals_and_opens::<aws_lc_rs::aead::LessSafeKey>(suite, &sealed);
        }
    }
}
