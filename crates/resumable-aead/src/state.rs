//! A message under way.
//!
//! Invariant: `position` bytes of the message went through in order, none twice; the authenticator has absorbed
//! exactly their ciphertext; `position` never exceeds [`Algorithm::message_len_max`]. A call that fails changes
//! nothing.

use std::fmt;

use bytes::BytesMut;
use subtle::ConstantTimeEq;

use crate::ccm::CcmState;
use crate::chacha::ChaChaState;
use crate::gcm::GcmState;
use crate::key::Cipher;
use crate::piece::Piece;
use crate::{Algorithm, Key, MessageTooLong, NONCE_LEN, StateError, TAG_LEN, TagMismatch, VerifyError};

/// A message under way: what its AEAD has to remember between two pieces.
///
/// A small plain value; the key is lent to each call and must be the same each time. A copy goes on independently
/// from where it was taken, which is how to try a range and go back. Pieces may have any length, zero included.
///
/// One message is either encrypted or decrypted; [`authenticate_ciphertext`](State::authenticate_ciphertext) and
/// [`authenticate_plaintext`](State::authenticate_plaintext) fit in with both, for messages some of whose pieces are
/// already on the right side.
///
/// What [`decrypt`](State::decrypt) writes is not authentic before [`verify`](State::verify) says so.
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
    pub(crate) direction: Option<Direction>,
    pub(crate) authenticator: Authenticator,
}

/// Which way a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Encrypt,
    Decrypt,
}

/// The algorithm's own part of a state.
#[derive(Clone, Copy)]
pub(crate) enum Authenticator {
    Gcm(GcmState),
    ChaCha(ChaChaState),
    Ccm(CcmState),
}

impl State {
    /// Begins a message: absorbs `aad`, stands at byte 0.
    ///
    /// A message of CCM begins with its length: a state of it that is made here refuses every call with
    /// [`StateError::LengthNotGiven`]. [`with_len`](State::with_len) begins messages of any algorithm.
    pub fn new(key: &Key, nonce: &[u8; NONCE_LEN], aad: &[u8]) -> State {
        State::begin(key, nonce, aad, None)
    }

    /// Begins a message of `len` bytes in all. CCM holds to it: no more go through, and there is no tag before all
    /// did. The other algorithms need no length and take no note of it.
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
    /// [`MessageTooLong`] when `len` is more than [`Algorithm::message_len_max`].
    pub fn with_len(key: &Key, nonce: &[u8; NONCE_LEN], aad: &[u8], len: u64) -> Result<State, MessageTooLong> {
        if len > key.algorithm().message_len_max() {
            return Err(MessageTooLong);
        }
        Ok(State::begin(key, nonce, aad, Some(len)))
    }

    /// Begins a message; a length was checked.
    pub(crate) fn begin(key: &Key, nonce: &[u8; NONCE_LEN], aad: &[u8], len: Option<u64>) -> State {
        let authenticator = match key.cipher() {
            Cipher::Gcm(key) => Authenticator::Gcm(key.start(aad)),
            Cipher::ChaCha(key) => Authenticator::ChaCha(key.start(nonce, aad)),
            Cipher::Ccm(key) => Authenticator::Ccm(key.start(nonce, aad, len)),
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

    /// What algorithm the message is under.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// How many bytes of the message went through.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Encrypts the next piece in place.
    ///
    /// # Errors
    /// [`StateError::WrongKey`], [`StateError::MixedDirections`] after a `decrypt`, [`StateError::MessageTooLong`].
    #[inline]
    pub fn encrypt(&mut self, key: &Key, data: &mut [u8]) -> Result<(), StateError> {
        self.update(key, Direction::Encrypt, Piece::InPlace(data))
    }

    /// Encrypts the next piece from `source` to `destination`, reading and writing memory once.
    ///
    /// # Errors
    /// As [`encrypt`](State::encrypt); [`StateError::LengthMismatch`].
    #[inline]
    pub fn encrypt_to(&mut self, key: &Key, source: &[u8], destination: &mut [u8]) -> Result<(), StateError> {
        self.update(key, Direction::Encrypt, copying(source, destination)?)
    }

    /// Encrypts the next piece from `source` to behind what `destination` holds: memory that was never written will do.
    ///
    /// # Errors
    /// As [`encrypt`](State::encrypt); `destination` is then as it was.
    #[inline]
    pub fn encrypt_append(&mut self, key: &Key, source: &[u8], destination: &mut BytesMut) -> Result<(), StateError> {
        self.append(key, Direction::Encrypt, source, destination)
    }

    /// Decrypts the next piece in place. Not authentic before [`verify`](State::verify) says so.
    ///
    /// # Errors
    /// [`StateError::WrongKey`], [`StateError::MixedDirections`] after an `encrypt`, [`StateError::MessageTooLong`].
    #[inline]
    pub fn decrypt(&mut self, key: &Key, data: &mut [u8]) -> Result<(), StateError> {
        self.update(key, Direction::Decrypt, Piece::InPlace(data))
    }

    /// Decrypts the next piece from `source` to `destination`, reading and writing memory once. Not authentic before
    /// [`verify`](State::verify) says so.
    ///
    /// # Errors
    /// As [`decrypt`](State::decrypt); [`StateError::LengthMismatch`].
    #[inline]
    pub fn decrypt_to(&mut self, key: &Key, source: &[u8], destination: &mut [u8]) -> Result<(), StateError> {
        self.update(key, Direction::Decrypt, copying(source, destination)?)
    }

    /// Decrypts the next piece from `source` to behind what `destination` holds: memory that was never written will do.
    /// Not authentic before [`verify`](State::verify) says so.
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
    /// As [`decrypt`](State::decrypt); `destination` is then as it was.
    #[inline]
    pub fn decrypt_append(&mut self, key: &Key, source: &[u8], destination: &mut BytesMut) -> Result<(), StateError> {
        self.append(key, Direction::Decrypt, source, destination)
    }

    /// Moves over the next piece, `data` being its ciphertext: authenticates it and deciphers nothing.
    ///
    /// # Errors
    /// [`StateError::WrongKey`], [`StateError::MessageTooLong`].
    pub fn authenticate_ciphertext(&mut self, key: &Key, data: &[u8]) -> Result<(), StateError> {
        self.check_piece(key, data.len())?;
        match (key.cipher(), &mut self.authenticator) {
            (Cipher::Gcm(key), Authenticator::Gcm(state)) => key.authenticate(state, &self.nonce, self.position, data),
            (Cipher::ChaCha(key), Authenticator::ChaCha(state)) => key.authenticate(state, self.position, data),
            (Cipher::Ccm(key), Authenticator::Ccm(state)) => key.authenticate(state, &self.nonce, self.position, data),
            _ => return Err(StateError::WrongKey),
        }
        self.position += data.len() as u64;
        Ok(())
    }

    /// Moves over the next piece, `data` being its plaintext: authenticates the ciphertext that belongs to it, and
    /// leaves `data` as it is.
    ///
    /// # Errors
    /// [`StateError::WrongKey`], [`StateError::MessageTooLong`].
    pub fn authenticate_plaintext(&mut self, key: &Key, data: &[u8]) -> Result<(), StateError> {
        self.check_piece(key, data.len())?;
        // The ciphertext passes through a buffer that stays in the nearest cache. It is no secret: no need to wipe it.
        let mut ciphertext = [0; 1024];
        for piece in data.chunks(ciphertext.len()) {
            self.crypt(key, Direction::Encrypt, Piece::Copy(piece, &mut ciphertext[..piece.len()]));
        }
        Ok(())
    }

    /// Ends the message and gives its tag: the first [`Algorithm::tag_len`] bytes, then zeros.
    ///
    /// To check a received tag, [`verify`](State::verify) compares in constant time.
    ///
    /// # Errors
    /// [`StateError::WrongKey`]; [`StateError::Unfinished`] where the message has a length.
    pub fn tag(self, key: &Key) -> Result<[u8; TAG_LEN], StateError> {
        self.check_end(key)?;
        Ok(self.compute_tag(key))
    }

    /// Ends the message and compares its tag with the one received, in constant time.
    ///
    /// # Errors
    /// [`VerifyError::TagMismatch`] when `tag` differs or is not
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
        self.crypt(key, Direction::Encrypt, Piece::InPlace(data));
    }

    /// Opens the whole message, likewise.
    pub(crate) fn open_whole(&mut self, key: &Key, data: &mut [u8]) {
        self.crypt(key, Direction::Decrypt, Piece::InPlace(data));
    }

    /// The tag of what went through. The caller checked that `key` is the state's.
    pub(crate) fn compute_tag(&self, key: &Key) -> [u8; TAG_LEN] {
        match (key.cipher(), &self.authenticator) {
            (Cipher::Gcm(key), Authenticator::Gcm(state)) => {
                key.finish(state, &self.nonce, self.aad_len, self.position)
            }
            (Cipher::ChaCha(key), Authenticator::ChaCha(state)) => key.finish(state, self.aad_len, self.position),
            (Cipher::Ccm(key), Authenticator::Ccm(state)) => key.finish(state, &self.nonce, self.position),
            _ => unreachable!("the caller checked the key"),
        }
    }

    /// Compares in constant time. The caller checked that `key` is the state's.
    pub(crate) fn compare_tag(&self, key: &Key, tag: &[u8; TAG_LEN]) -> Result<(), TagMismatch> {
        if bool::from(self.compute_tag(key).ct_eq(tag)) { Ok(()) } else { Err(TagMismatch) }
    }

    #[inline]
    fn update(&mut self, key: &Key, direction: Direction, piece: Piece<'_>) -> Result<(), StateError> {
        self.begin_update(key, direction, piece.len())?;
        self.crypt(key, direction, piece);
        Ok(())
    }

    #[inline]
    fn append(
        &mut self,
        key: &Key,
        direction: Direction,
        source: &[u8],
        destination: &mut BytesMut,
    ) -> Result<(), StateError> {
        self.begin_update(key, direction, source.len())?;
        match (key.cipher(), &mut self.authenticator) {
            (Cipher::Gcm(key), Authenticator::Gcm(state)) => {
                key.append(state, &self.nonce, self.position, direction, source, destination);
                self.position += source.len() as u64;
            }
            _ => {
                let at = destination.len();
                destination.extend_from_slice(source);
                self.crypt(key, direction, Piece::InPlace(&mut destination[at..]));
            }
        }
        Ok(())
    }

    /// Whether a piece of `len` bytes can go this way; from then on all go it.
    #[inline]
    fn begin_update(&mut self, key: &Key, direction: Direction, len: usize) -> Result<(), StateError> {
        self.check_piece(key, len)?;
        if self.direction.is_some_and(|before| before != direction) {
            return Err(StateError::MixedDirections);
        }
        self.direction = Some(direction);
        Ok(())
    }

    /// Whether `key` is the state's, and `len` more bytes are within the message's limit.
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

    /// Whether `key` is the state's, and all of a message whose length is known went through.
    fn check_end(&self, key: &Key) -> Result<(), StateError> {
        self.check_piece(key, 0)?;
        let Authenticator::Ccm(state) = &self.authenticator else { return Ok(()) };
        match state.len().map_or(0, |declared| declared - self.position) {
            0 => Ok(()),
            missing => Err(StateError::Unfinished { missing }),
        }
    }

    /// Moves over a piece that was checked.
    #[inline]
    fn crypt(&mut self, key: &Key, direction: Direction, piece: Piece<'_>) {
        let len = piece.len() as u64;
        match (key.cipher(), &mut self.authenticator) {
            (Cipher::Gcm(key), Authenticator::Gcm(state)) => {
                key.crypt(state, &self.nonce, self.position, direction, piece);
            }
            (Cipher::ChaCha(key), Authenticator::ChaCha(state)) => {
                key.crypt(state, &self.nonce, self.position, direction, piece);
            }
            (Cipher::Ccm(key), Authenticator::Ccm(state)) => {
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

fn copying<'a>(source: &'a [u8], destination: &'a mut [u8]) -> Result<Piece<'a>, StateError> {
    Piece::copying(source, destination)
        .map_err(|(source_len, destination_len)| StateError::LengthMismatch { source_len, destination_len })
}
