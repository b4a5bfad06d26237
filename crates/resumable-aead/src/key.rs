//! An expanded key and the back-end that works with it.

use std::fmt;

use crate::ccm::CcmKey;
use crate::chacha::ChaChaKey;
use crate::gcm::GcmKey;
#[cfg(feature = "ring")]
use crate::whole::WholeMessages;
use crate::{Algorithm, Backend, KeyError, KeyLengthError, MessageTooLong, NONCE_LEN, State, TAG_LEN, TagMismatch};

/// An expanded key with the back-end chosen for this processor.
///
/// Costs up to four kilobytes on the heap; share it by `Arc`. The key is wiped there when dropped, and never printed.
/// [Making a key](crate#what-is-kept-secret-and-how) may leave copies on the stack, which are not wiped.
///
/// ```
/// use resumable_aead::{Algorithm, Key};
///
/// let key = Key::new(Algorithm::ChaCha20Poly1305, &[7; 32])?;
/// let nonce = [0; 12]; // never twice with one key
/// let mut data = *b"attack at dawn";
/// let tag = key.seal_in_place(&nonce, b"header", &mut data)?;
///
/// // A piece alone, before its neighbours arrive: readable, not yet to be trusted.
/// let mut piece: [u8; 4] = data[10..].try_into()?;
/// key.apply_keystream(&nonce, 10, &mut piece)?;
/// assert_eq!(&piece, b"dawn");
///
/// key.open_in_place(&nonce, b"header", &mut data, &tag)?;
/// assert_eq!(&data, b"attack at dawn");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Key {
    algorithm: Algorithm,
    backend: Backend,
    /// Public fingerprint of the key (see [`Key::check`]).
    check: u32,
    cipher: AeadCipher,
    /// ring's key, if ring is faster than `cipher` for whole messages.
    #[cfg(feature = "ring")]
    whole: Option<WholeMessages>,
}

/// The cipher implementation of a key.
pub(crate) enum AeadCipher {
    Gcm(GcmKey),
    ChaCha(ChaChaKey),
    Ccm(CcmKey),
}

impl Key {
    /// Expands `key`, with the fastest back-end that this processor has.
    ///
    /// # Errors
    /// `key` must be [`Algorithm::key_len`] bytes long.
    pub fn new(algorithm: Algorithm, key: &[u8]) -> Result<Key, KeyLengthError> {
        Key::expand(algorithm, key, Backend::best(algorithm))
    }

    /// Expands `key` for the given back-end: for tests and benches.
    ///
    /// # Errors
    /// [`KeyError::Length`] as in [`Key::new`]; [`KeyError::BackendUnavailable`] if
    /// [`Backend::is_available`] is false.
    pub fn with_backend(algorithm: Algorithm, key: &[u8], backend: Backend) -> Result<Key, KeyError> {
        if !backend.is_available(algorithm) {
            return Err(KeyError::BackendUnavailable { backend, algorithm });
        }
        Ok(Key::expand(algorithm, key, backend)?)
    }

    /// Returns the algorithm.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Returns the back-end.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// Seals a whole message in place and returns its tag: the first [`Algorithm::tag_len`] bytes, then zeros.
    ///
    /// # Errors
    /// [`MessageTooLong`] if `data` is longer than [`Algorithm::message_len_max`]; `data` is then untouched.
    pub fn seal_in_place(
        &self,
        nonce: &[u8; NONCE_LEN],
        aad: &[u8],
        data: &mut [u8],
    ) -> Result<[u8; TAG_LEN], MessageTooLong> {
        self.check_range(0, data.len())?;
        #[cfg(feature = "ring")]
        if let Some(whole) = &self.whole {
            return whole.seal(nonce, aad, data).ok_or(MessageTooLong);
        }
        let mut state = State::begin(self, nonce, aad, Some(data.len() as u64));
        state.seal_whole(self, data);
        Ok(state.compute_tag(self))
    }

    /// Opens a whole message in place. A tag shorter than [`TAG_LEN`] is followed by zeros.
    ///
    /// # Errors
    /// [`TagMismatch`] if the message is not authentic. A message longer than [`Algorithm::message_len_max`] never is.
    /// `data` is then filled with zeros: neither plaintext nor ciphertext is left in it.
    pub fn open_in_place(
        &self,
        nonce: &[u8; NONCE_LEN],
        aad: &[u8],
        data: &mut [u8],
        tag: &[u8; TAG_LEN],
    ) -> Result<(), TagMismatch> {
        if self.check_range(0, data.len()).is_err() {
            data.fill(0);
            return Err(TagMismatch);
        }
        #[cfg(feature = "ring")]
        if let Some(whole) = &self.whole {
            return whole.open(nonce, aad, data, tag).inspect_err(|_| data.fill(0));
        }
        let mut state = State::begin(self, nonce, aad, Some(data.len() as u64));
        state.open_whole(self, data);
        state.compare_tag(self, tag).inspect_err(|_| data.fill(0))
    }

    /// XORs the keystream from message offset `offset` (bytes) into `data`: encrypts or decrypts a piece of a
    /// message without authenticating it.
    ///
    /// # Errors
    /// [`MessageTooLong`] if the piece ends past [`Algorithm::message_len_max`]; `data` is then untouched.
    pub fn apply_keystream(&self, nonce: &[u8; NONCE_LEN], offset: u64, data: &mut [u8]) -> Result<(), MessageTooLong> {
        self.check_range(offset, data.len())?;
        match &self.cipher {
            AeadCipher::Gcm(key) => key.apply_keystream(nonce, offset, data),
            AeadCipher::ChaCha(key) => key.apply_keystream(nonce, offset, data),
            AeadCipher::Ccm(key) => key.apply_keystream(nonce, offset, data),
        }
        Ok(())
    }

    pub(crate) fn cipher(&self) -> &AeadCipher {
        &self.cipher
    }

    /// Returns a public fingerprint of the key, made from a part of the cipher's range that no message uses. Two keys
    /// have the same one with probability 2^-32.
    pub(crate) fn check(&self) -> u32 {
        self.check
    }

    /// Tests whether `len` bytes at message offset `offset` are within the limit of one nonce.
    pub(crate) fn check_range(&self, offset: u64, len: usize) -> Result<(), MessageTooLong> {
        match offset.checked_add(len as u64) {
            Some(end) if end <= self.algorithm.message_len_max() => Ok(()),
            _ => Err(MessageTooLong),
        }
    }

    fn expand(algorithm: Algorithm, key: &[u8], backend: Backend) -> Result<Key, KeyLengthError> {
        let error = KeyLengthError { algorithm, found: key.len() };
        if key.len() != algorithm.key_len() {
            return Err(error);
        }
        #[cfg(feature = "ring")]
        let whole = {
            // Our ChaCha20-Poly1305 with 256-bit vectors is slower than ring's assembly if the message is whole.
            let is_faster =
                backend == Backend::Portable || (backend == Backend::Avx2 && algorithm == Algorithm::ChaCha20Poly1305);
            if is_faster { WholeMessages::new(algorithm, key) } else { None }
        };
        let (cipher, check) = match algorithm {
            Algorithm::Aes128Gcm | Algorithm::Aes256Gcm => {
                let expanded = GcmKey::new(key, backend);
                let check = expanded.check();
                (AeadCipher::Gcm(expanded), check)
            }
            Algorithm::ChaCha20Poly1305 => {
                let expanded = ChaChaKey::new(key.try_into().map_err(|_| error)?, backend);
                let check = expanded.check();
                (AeadCipher::ChaCha(expanded), check)
            }
            Algorithm::Aes128Ccm | Algorithm::Aes256Ccm | Algorithm::Aes128Ccm8 | Algorithm::Aes256Ccm8 => {
                let expanded = CcmKey::new(key, algorithm.tag_len(), backend);
                let check = expanded.check();
                (AeadCipher::Ccm(expanded), check)
            }
        };
        Ok(Key {
            algorithm,
            backend,
            check,
            cipher,
            #[cfg(feature = "ring")]
            whole,
        })
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key")
            .field("algorithm", &self.algorithm)
            .field("backend", &self.backend)
            .finish_non_exhaustive()
    }
}
