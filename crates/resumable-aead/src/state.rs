//! State of an unfinished message.
//!
//! Invariant: the first `position` bytes of the message were processed in order, each once; the authenticator has absorbed
//! exactly their ciphertext; `position` never exceeds [`Algorithm::message_len_max`]. A call that fails changes
//! nothing.

use std::fmt;

use bytes::BytesMut;
use subtle::ConstantTimeEq;

use crate::ccm::CcmState;
use crate::chacha::ChaChaState;
use crate::gcm::GcmState;
use crate::key::AeadCipher;
use crate::piece::MessagePiece;
use crate::{Algorithm, Key, MessageTooLong, NONCE_LEN, StateError, TAG_LEN, TagMismatch, VerifyError};

/// The state of an AEAD between two pieces of a message.
///
/// A small plain value; the caller passes the same key to each call. A copy continues independently
/// from the same position, so a caller can try a range and go back. Pieces may have any length, zero included.
///
/// One message is either encrypted or decrypted. [`authenticate_ciphertext`](State::authenticate_ciphertext) and
/// [`authenticate_plaintext`](State::authenticate_plaintext) combine with both directions, for messages of which some pieces are
/// already encrypted or decrypted.
///
/// The output of [`decrypt`](State::decrypt) is not authentic until [`verify`](State::verify) succeeds.
///
/// ```
/// use resumable_aead::{Algorithm, Key, State};
///
/// let key = Key::new(Algorithm::Aes256Gcm, &[9; 32])?;
/// let nonce = [3; 12];
/// let mut record = *b"decrypted by the device|not decrypted";
/// let tag = key.seal_in_place(&nonce, b"", &mut record)?;
/// key.apply_keystream(&nonce, 0, &mut record[..24])?; // the device's part, plaintext now
///
/// let mut state = State::new(&key, &nonce, b"");
/// state.authenticate_plaintext(&key, &record[..24])?; // left as it is
/// state.decrypt(&key, &mut record[24..])?;
/// state.verify(&key, &tag)?;
/// assert_eq!(&record, b"decrypted by the device|not decrypted");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy)]
pub struct State {
    pub(crate) nonce: [u8; NONCE_LEN],
    pub(crate) key_check: u32,
    pub(crate) position: u64,
    pub(crate) aad_len: u64,
    pub(crate) algorithm: Algorithm,
    pub(crate) direction: Option<MessageDirection>,
    pub(crate) authenticator: Authenticator,
}

/// Encryption or decryption of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageDirection {
    Encrypt,
    Decrypt,
}

/// Authenticator state of one algorithm.
#[derive(Clone, Copy)]
pub(crate) enum Authenticator {
    Gcm(GcmState),
    ChaCha(ChaChaState),
    Ccm(CcmState),
}

impl State {
    /// Begins a message: absorbs `aad`, and stands at byte 0.
    ///
    /// A CCM message begins with its length. So for CCM, every later call fails with
    /// [`StateError::LengthNotGiven`]; use [`with_len`](State::with_len), which begins messages of any algorithm.
    pub fn new(key: &Key, nonce: &[u8; NONCE_LEN], aad: &[u8]) -> State {
        State::begin(key, nonce, aad, None)
    }

    /// Begins a message of `len` bytes in all. CCM refuses further bytes, and returns no tag before `len` bytes were
    /// processed. The other algorithms ignore the length.
    ///
    /// ```
    /// use resumable_aead::{Algorithm, Key, State, StateError};
    ///
    /// let key = Key::new(Algorithm::Aes128Ccm, &[7; 16])?;
    /// let mut data = *b"two pieces";
    /// let mut state = State::with_len(&key, &[1; 12], b"", data.len() as u64)?;
    /// state.encrypt(&key, &mut data[..3])?;
    /// assert_eq!(state.tag(&key), Err(StateError::Unfinished { missing: 7 }));
    /// state.encrypt(&key, &mut data[3..])?;
    /// key.open_in_place(&[1; 12], b"", &mut data, &state.tag(&key)?)?;
    /// assert_eq!(&data, b"two pieces");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`MessageTooLong`] if `len` is more than [`Algorithm::message_len_max`].
    pub fn with_len(key: &Key, nonce: &[u8; NONCE_LEN], aad: &[u8], len: u64) -> Result<State, MessageTooLong> {
        if len > key.algorithm().message_len_max() {
            return Err(MessageTooLong);
        }
        Ok(State::begin(key, nonce, aad, Some(len)))
    }

    /// Begins a message. The caller checked the length.
    pub(crate) fn begin(key: &Key, nonce: &[u8; NONCE_LEN], aad: &[u8], len: Option<u64>) -> State {
        let authenticator = match key.cipher() {
            AeadCipher::Gcm(key) => Authenticator::Gcm(key.start(aad)),
            AeadCipher::ChaCha(key) => Authenticator::ChaCha(key.start(nonce, aad)),
            AeadCipher::Ccm(key) => Authenticator::Ccm(key.start(nonce, aad, len)),
        };
        State {
            nonce: *nonce,
            key_check: key.check(),
            position: 0,
            aad_len: aad.len() as u64,
            algorithm: key.algorithm(),
            direction: None,
            authenticator,
        }
    }

    /// Returns the algorithm of the key.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Returns the number of message bytes processed.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Encrypts the next piece in place.
    ///
    /// # Errors
    /// [`StateError::WrongKey`], [`StateError::MixedDirections`] after a `decrypt`, [`StateError::MessageTooLong`].
    #[inline]
    pub fn encrypt(&mut self, key: &Key, data: &mut [u8]) -> Result<(), StateError> {
        self.update(key, MessageDirection::Encrypt, MessagePiece::InPlace(data))
    }

    /// Encrypts the next piece from `source` to `destination`, reading and writing memory once.
    ///
    /// # Errors
    /// As [`encrypt`](State::encrypt); [`StateError::LengthMismatch`].
    #[inline]
    pub fn encrypt_to(&mut self, key: &Key, source: &[u8], destination: &mut [u8]) -> Result<(), StateError> {
        self.update(key, MessageDirection::Encrypt, copying(source, destination)?)
    }

    /// Encrypts the next piece from `source` and appends it to `destination`, which may have uninitialised capacity.
    ///
    /// # Errors
    /// As [`encrypt`](State::encrypt); `destination` is then unchanged.
    #[inline]
    pub fn encrypt_append(&mut self, key: &Key, source: &[u8], destination: &mut BytesMut) -> Result<(), StateError> {
        self.append(key, MessageDirection::Encrypt, source, destination)
    }

    /// Decrypts the next piece in place. The result is not authentic until [`verify`](State::verify) succeeds.
    ///
    /// # Errors
    /// [`StateError::WrongKey`], [`StateError::MixedDirections`] after an `encrypt`, [`StateError::MessageTooLong`].
    #[inline]
    pub fn decrypt(&mut self, key: &Key, data: &mut [u8]) -> Result<(), StateError> {
        self.update(key, MessageDirection::Decrypt, MessagePiece::InPlace(data))
    }

    /// Decrypts the next piece from `source` to `destination`, reading and writing memory once. The result is not authentic until
    /// [`verify`](State::verify) succeeds.
    ///
    /// # Errors
    /// As [`decrypt`](State::decrypt); [`StateError::LengthMismatch`].
    #[inline]
    pub fn decrypt_to(&mut self, key: &Key, source: &[u8], destination: &mut [u8]) -> Result<(), StateError> {
        self.update(key, MessageDirection::Decrypt, copying(source, destination)?)
    }

    /// Decrypts the next piece from `source` and appends it to `destination`, which may have uninitialised capacity.
    /// The result is not authentic until [`verify`](State::verify) succeeds.
    ///
    /// ```
    /// use bytes::BytesMut;
    /// use resumable_aead::{Algorithm, Key, State};
    ///
    /// let key = Key::new(Algorithm::Aes128Gcm, &[7; 16])?;
    /// let mut sealed = *b"two packets";
    /// let tag = key.seal_in_place(&[0; 12], b"", &mut sealed)?;
    ///
    /// let (mut buffer, mut state) = (BytesMut::with_capacity(64), State::new(&key, &[0; 12], b""));
    /// state.decrypt_append(&key, &sealed[..4], &mut buffer)?;
    /// state.decrypt_append(&key, &sealed[4..], &mut buffer)?;
    /// state.verify(&key, &tag)?;
    /// assert_eq!(&buffer[..], b"two packets");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`decrypt`](State::decrypt); `destination` is then unchanged.
    #[inline]
    pub fn decrypt_append(&mut self, key: &Key, source: &[u8], destination: &mut BytesMut) -> Result<(), StateError> {
        self.append(key, MessageDirection::Decrypt, source, destination)
    }

    /// Authenticates the ciphertext of the next piece, without deciphering it.
    ///
    /// # Errors
    /// [`StateError::WrongKey`], [`StateError::MessageTooLong`].
    pub fn authenticate_ciphertext(&mut self, key: &Key, data: &[u8]) -> Result<(), StateError> {
        self.check_piece(key, data.len())?;
        match (key.cipher(), &mut self.authenticator) {
            (AeadCipher::Gcm(key), Authenticator::Gcm(state)) => {
                key.authenticate(state, &self.nonce, self.position, data)
            }
            (AeadCipher::ChaCha(key), Authenticator::ChaCha(state)) => key.authenticate(state, self.position, data),
            (AeadCipher::Ccm(key), Authenticator::Ccm(state)) => {
                key.authenticate(state, &self.nonce, self.position, data)
            }
            _ => return Err(StateError::WrongKey),
        }
        self.position += data.len() as u64;
        Ok(())
    }

    /// Authenticates the next piece, given as plaintext, as if its ciphertext had been processed. Leaves `data`
    /// unchanged.
    ///
    /// # Errors
    /// [`StateError::WrongKey`], [`StateError::MessageTooLong`].
    pub fn authenticate_plaintext(&mut self, key: &Key, data: &[u8]) -> Result<(), StateError> {
        self.check_piece(key, data.len())?;
        // The ciphertext passes through a buffer that stays in the nearest cache. Ciphertext is not secret, so the buffer is not wiped.
        let mut ciphertext = [0; 1024];
        for piece in data.chunks(ciphertext.len()) {
            self.crypt(key, MessageDirection::Encrypt, MessagePiece::Copy(piece, &mut ciphertext[..piece.len()]));
        }
        Ok(())
    }

    /// Ends the message and returns its tag: the first [`Algorithm::tag_len`] bytes, then zeros.
    ///
    /// To check a received tag, use [`verify`](State::verify), which compares in constant time.
    ///
    /// # Errors
    /// [`StateError::WrongKey`]; [`StateError::Unfinished`] if the message has a length and bytes are missing.
    pub fn tag(self, key: &Key) -> Result<[u8; TAG_LEN], StateError> {
        self.check_end(key)?;
        Ok(self.compute_tag(key))
    }

    /// Ends the message and compares its tag with the received one in constant time.
    ///
    /// # Errors
    /// [`VerifyError::TagMismatch`] if `tag` differs or is not
    /// [`Algorithm::tag_len`] bytes long; [`VerifyError::Misuse`] with
    /// [`StateError::WrongKey`] or [`StateError::Unfinished`].
    pub fn verify(self, key: &Key, tag: &[u8]) -> Result<(), VerifyError> {
        self.check_end(key)?;
        if tag.len() != self.algorithm.tag_len() {
            return Err(TagMismatch.into());
        }
        let mut padded = [0; TAG_LEN];
        padded[..tag.len()].copy_from_slice(tag);
        Ok(self.compare_tag(key, &padded)?)
    }

    /// Seals the whole message. The caller made the state with `key` and checked the length.
    pub(crate) fn seal_whole(&mut self, key: &Key, data: &mut [u8]) {
        self.crypt(key, MessageDirection::Encrypt, MessagePiece::InPlace(data));
    }

    /// Opens the whole message. The caller made the state with `key` and checked the length.
    pub(crate) fn open_whole(&mut self, key: &Key, data: &mut [u8]) {
        self.crypt(key, MessageDirection::Decrypt, MessagePiece::InPlace(data));
    }

    /// Returns the tag of the processed bytes. The caller checked that `key` is the state's.
    pub(crate) fn compute_tag(&self, key: &Key) -> [u8; TAG_LEN] {
        match (key.cipher(), &self.authenticator) {
            (AeadCipher::Gcm(key), Authenticator::Gcm(state)) => {
                key.finish(state, &self.nonce, self.aad_len, self.position)
            }
            (AeadCipher::ChaCha(key), Authenticator::ChaCha(state)) => key.finish(state, self.aad_len, self.position),
            (AeadCipher::Ccm(key), Authenticator::Ccm(state)) => key.finish(state, &self.nonce, self.position),
            _ => unreachable!("the caller checked the key"),
        }
    }

    /// Compares tags in constant time. The caller checked that `key` is the state's.
    pub(crate) fn compare_tag(&self, key: &Key, tag: &[u8; TAG_LEN]) -> Result<(), TagMismatch> {
        if bool::from(self.compute_tag(key).ct_eq(tag)) { Ok(()) } else { Err(TagMismatch) }
    }

    #[inline]
    fn update(&mut self, key: &Key, direction: MessageDirection, piece: MessagePiece<'_>) -> Result<(), StateError> {
        self.begin_update(key, direction, piece.len())?;
        self.crypt(key, direction, piece);
        Ok(())
    }

    #[inline]
    fn append(
        &mut self,
        key: &Key,
        direction: MessageDirection,
        source: &[u8],
        destination: &mut BytesMut,
    ) -> Result<(), StateError> {
        self.begin_update(key, direction, source.len())?;
        match (key.cipher(), &mut self.authenticator) {
            (AeadCipher::Gcm(key), Authenticator::Gcm(state)) => {
                key.append(state, &self.nonce, self.position, direction, source, destination);
                self.position += source.len() as u64;
            }
            _ => {
                let at = destination.len();
                destination.extend_from_slice(source);
                self.crypt(key, direction, MessagePiece::InPlace(&mut destination[at..]));
            }
        }
        Ok(())
    }

    /// Checks that a piece of `len` bytes may be processed in this direction, and fixes the direction.
    #[inline]
    fn begin_update(&mut self, key: &Key, direction: MessageDirection, len: usize) -> Result<(), StateError> {
        self.check_piece(key, len)?;
        if self.direction.is_some_and(|before| before != direction) {
            return Err(StateError::MixedDirections);
        }
        self.direction = Some(direction);
        Ok(())
    }

    /// Checks that `key` is the state's, and that `len` more bytes are within the message's limit.
    #[inline]
    fn check_piece(&self, key: &Key, len: usize) -> Result<(), StateError> {
        if key.algorithm() != self.algorithm || key.check() != self.key_check {
            return Err(StateError::WrongKey);
        }
        key.check_range(self.position, len)?;
        let Authenticator::Ccm(state) = &self.authenticator else { return Ok(()) };
        let declared = state.len().ok_or(StateError::LengthNotGiven)?;
        if declared - self.position < len as u64 {
            return Err(StateError::PastLength { declared });
        }
        Ok(())
    }

    /// Checks that `key` is the state's, and that all bytes of a message of known length were processed.
    fn check_end(&self, key: &Key) -> Result<(), StateError> {
        self.check_piece(key, 0)?;
        let Authenticator::Ccm(state) = &self.authenticator else { return Ok(()) };
        match state.len().map_or(0, |declared| declared - self.position) {
            0 => Ok(()),
            missing => Err(StateError::Unfinished { missing }),
        }
    }

    /// Processes a piece that was checked.
    #[inline]
    fn crypt(&mut self, key: &Key, direction: MessageDirection, piece: MessagePiece<'_>) {
        let len = piece.len() as u64;
        match (key.cipher(), &mut self.authenticator) {
            (AeadCipher::Gcm(key), Authenticator::Gcm(state)) => {
                key.crypt(state, &self.nonce, self.position, direction, piece);
            }
            (AeadCipher::ChaCha(key), Authenticator::ChaCha(state)) => {
                key.crypt(state, &self.nonce, self.position, direction, piece);
            }
            (AeadCipher::Ccm(key), Authenticator::Ccm(state)) => {
                key.crypt(state, &self.nonce, self.position, direction, piece);
            }
            _ => unreachable!("check_piece compared the algorithms"),
        }
        self.position += len;
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("algorithm", &self.algorithm)
            .field("position", &self.position)
            .field("direction", &self.direction)
            .finish_non_exhaustive()
    }
}

fn copying<'a>(source: &'a [u8], destination: &'a mut [u8]) -> Result<MessagePiece<'a>, StateError> {
    MessagePiece::copying(source, destination)
        .map_err(|(source_len, destination_len)| StateError::LengthMismatch { source_len, destination_len })
}
