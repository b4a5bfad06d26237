//! Whole messages by ring, if ring is faster than the resumable back-end.
//!
//! ring is faster than the portable back-end and than ChaCha20-Poly1305 with AVX2, because it has assembly for whole messages on every
//! processor that it supports.
//!
//! # Safety of this module
//!
//! ring does not wipe its keys, so this module does. The key lies in memory of this crate that may hold any bytes
//! (`MaybeUninit`). It is written once, in `new`, and read only as the key that was written; when it is dropped, its bytes
//! are overwritten, and nothing reads them after that. ring returns the key by value and may leave a copy on the stack.
//! The key has nothing to drop, which is checked when compiling.
#![allow(unsafe_code)]

use std::mem::{MaybeUninit, needs_drop};
use std::slice;

use ring::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use zeroize::Zeroize;

use crate::{Algorithm, NONCE_LEN, TAG_LEN, TagMismatch};

/// A key that seals and opens whole messages.
pub(crate) struct WholeMessages(Box<MaybeUninit<LessSafeKey>>);

impl WholeMessages {
    /// Returns `None` if ring lacks the algorithm.
    pub(crate) fn new(algorithm: Algorithm, key: &[u8]) -> Option<Self> {
        let algorithm = match algorithm {
            Algorithm::Aes128Gcm => &aead::AES_128_GCM,
            Algorithm::Aes256Gcm => &aead::AES_256_GCM,
            Algorithm::ChaCha20Poly1305 => &aead::CHACHA20_POLY1305,
            _ => return None,
        };
        let key = LessSafeKey::new(UnboundKey::new(algorithm, key).ok()?);
        Some(WholeMessages(Box::new(MaybeUninit::new(key))))
    }

    /// Returns the tag, or `None` if ring does not support a message of that length.
    pub(crate) fn seal(&self, nonce: &[u8; NONCE_LEN], aad: &[u8], data: &mut [u8]) -> Option<[u8; TAG_LEN]> {
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let tag = self.key().seal_in_place_separate_tag(nonce, Aad::from(aad), data).ok()?;
        tag.as_ref().try_into().ok()
    }

    /// Opens a message in place. On a mismatch the caller wipes `data`.
    pub(crate) fn open(
        &self,
        nonce: &[u8; NONCE_LEN],
        aad: &[u8],
        data: &mut [u8],
        tag: &[u8; TAG_LEN],
    ) -> Result<(), TagMismatch> {
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let opened = self.key().open_in_place_separate_tag(nonce, Aad::from(aad), (*tag).into(), data, 0..);
        opened.map(|_| ()).map_err(|_| TagMismatch)
    }

    fn key(&self) -> &LessSafeKey {
        // SAFETY: `new` wrote the key, and only `drop` overwrites it.
        unsafe { self.0.assume_init_ref() }
    }
}

impl Drop for WholeMessages {
    fn drop(&mut self) {
        const { assert!(!needs_drop::<LessSafeKey>()) };
        let start = self.0.as_mut_ptr().cast::<MaybeUninit<u8>>();
        // SAFETY: these are the bytes of the box's contents, which this borrow has to itself; as bytes that may be
        // uninitialised they need no alignment and have no invalid values, before or after.
        let bytes = unsafe { slice::from_raw_parts_mut(start, size_of::<LessSafeKey>()) };
        bytes.zeroize();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_message_matches_state_piece_by_piece() {
        for algorithm in Algorithm::ALL {
            let key_bytes = vec![3; algorithm.key_len()];
            let Some(whole) = WholeMessages::new(algorithm, &key_bytes) else {
                assert!(algorithm.needs_len(), "ring has all but CCM");
                continue;
            };
            let key = crate::Key::with_backend(algorithm, &key_bytes, crate::Backend::Portable).unwrap();
            let mut sealed = [9; 1000];
            let tag = whole.seal(&[1; 12], b"aad", &mut sealed).unwrap();
            let mut pieces = [9; 1000];
            let mut state = crate::State::new(&key, &[1; 12], b"aad");
            for piece in pieces.chunks_mut(77) {
                state.encrypt(&key, piece).unwrap();
            }
            assert_eq!((state.tag(&key).unwrap(), pieces), (tag, sealed));
            assert_eq!(whole.open(&[1; 12], b"aad", &mut pieces, &tag), Ok(()));
            assert_eq!(whole.open(&[1; 12], b"aad", &mut sealed, &[0; 16]), Err(TagMismatch));
        }
    }
}
