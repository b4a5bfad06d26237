//! AES by itself, for modes that are no AEAD.

use std::fmt;

use crate::Backend;
use crate::block::BlockCipher;

/// An expanded AES key, of 16 or 32 bytes, in counter mode and block by block; [`CbcMac`](crate::CbcMac) chains its blocks.
///
/// Does not authenticate data: the caller's mode has to. Wiped when dropped,
/// never printed.
///
/// ```
/// use resumable_aead::AesKey;
///
/// // SP 800-38A F.5.1.
/// let key = AesKey::new(&0x2b7e151628aed2a6abf7158809cf4f3cu128.to_be_bytes())?;
/// let mut data = 0x6bc1bee22e409f96e93d7e117393172au128.to_be_bytes();
/// key.counter_mode(0xf0f1f2f3f4f5f6f7f8f9fafbfcfdfeff, &mut data);
/// assert_eq!(data, 0x874d6191b620e3261bef6864990db6ceu128.to_be_bytes());
/// # Ok::<(), resumable_aead::AesKeyError>(())
/// ```
pub struct AesKey {
    backend: Backend,
    pub(crate) cipher: BlockCipher,
}

/// AES key that could not be made: the caller's mistake.
///
/// ```
/// use resumable_aead::{AesKey, AesKeyError};
///
/// assert_eq!(AesKey::new(&[7; 24]).err(), Some(AesKeyError::Length(24)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AesKeyError {
    /// The key length in bytes is neither 16 nor 32.
    #[error("an AES key of {0} bytes: it has 16 or 32")]
    Length(usize),
    /// This processor lacks the back-end's instructions.
    #[error("{0:?} does not do AES on this processor")]
    BackendUnavailable(Backend),
}

impl AesKey {
    /// Expands `key` with the fastest back-end that this processor has.
    ///
    /// # Errors
    /// [`AesKeyError::Length`] unless `key` has 16 or 32 bytes.
    pub fn new(key: &[u8]) -> Result<AesKey, AesKeyError> {
        let backend = Backend::ALL.into_iter().rev().find(|&backend| AesKey::is_available(backend));
        AesKey::with_backend(key, backend.unwrap_or(Backend::Portable))
    }

    /// Tests whether `backend` supports AES on this processor.
    pub fn is_available(backend: Backend) -> bool {
        crate::gcm::is_available(backend)
    }

    /// Expands `key` for the given back-end: for tests and benches.
    ///
    /// # Errors
    /// As [`AesKey::new`]; [`AesKeyError::BackendUnavailable`].
    pub fn with_backend(key: &[u8], backend: Backend) -> Result<AesKey, AesKeyError> {
        if !AesKey::is_available(backend) {
            return Err(AesKeyError::BackendUnavailable(backend));
        }
        match key.len() {
            16 | 32 => Ok(AesKey { backend, cipher: BlockCipher::new(key, backend) }),
            other => Err(AesKeyError::Length(other)),
        }
    }

    /// Returns the back-end.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// Encrypts one block.
    pub fn encrypt_block(&self, block: &[u8; 16]) -> [u8; 16] {
        self.cipher.encrypt_block(block)
    }

    /// XORs the keystream into `data`, beginning at the big-endian counter block `first`. All 128 bits of the counter block
    /// are counted; `data` need not be whole blocks.
    pub fn counter_mode(&self, first: u128, data: &mut [u8]) {
        self.cipher.counter_mode(first, data);
    }
}

impl fmt::Debug for AesKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AesKey({:?})", self.backend)
    }
}
