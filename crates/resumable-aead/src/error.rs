//! One error type per operation; misuse and forgery are separate errors.

use crate::{Algorithm, Backend};

/// Key length that is wrong for the algorithm: the caller's mistake.
///
/// ```
/// use resumable_aead::{Algorithm, Key, KeyLengthError};
///
/// let refused = Key::new(Algorithm::Aes128Gcm, &[7; 15]).err();
/// assert_eq!(refused, Some(KeyLengthError { algorithm: Algorithm::Aes128Gcm, found: 15 }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a key of {found} bytes for {algorithm:?}, which takes {}", algorithm.key_len())]
pub struct KeyLengthError {
    /// Algorithm of the refused key.
    pub algorithm: Algorithm,
    /// The length given, in bytes.
    pub found: usize,
}

/// Key that the requested back-end cannot make: the caller's mistake.
///
/// ```
/// use resumable_aead::{Algorithm, Backend, Key, KeyError};
///
/// let backend = Backend::best(Algorithm::Aes256Gcm);
/// let refused = Key::with_backend(Algorithm::Aes256Gcm, &[7; 16], backend).err();
/// assert!(matches!(refused, Some(KeyError::Length(_))));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The key has the wrong length.
    #[error(transparent)]
    Length(#[from] KeyLengthError),
    /// The back-end does not exist for the algorithm, or this processor lacks its instructions.
    #[error("{backend:?} does not do {algorithm:?} on this processor")]
    BackendUnavailable {
        /// The requested back-end.
        backend: Backend,
        /// Algorithm of the refused key.
        algorithm: Algorithm,
    },
}

/// Message or keystream range past [`Algorithm::message_len_max`]: the caller's mistake.
///
/// ```
/// use resumable_aead::{Algorithm, Key, MessageTooLong};
///
/// let key = Key::new(Algorithm::Aes128Gcm, &[7; 16])?;
/// let end = Algorithm::Aes128Gcm.message_len_max();
/// assert_eq!(key.apply_keystream(&[0; 12], end, &mut [0]), Err(MessageTooLong));
/// # Ok::<(), resumable_aead::KeyLengthError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the message is longer than one nonce can protect")]
pub struct MessageTooLong;

/// Message that is not authentic, or incomplete: a fault of the peer or the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the tag does not match")]
pub struct TagMismatch;

/// Misuse of a [`State`](crate::State): the caller's mistake. The state is as it was before the call, and
/// no byte was touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// The state was made with another key.
    #[error("the state belongs to another key")]
    WrongKey,
    /// The state was used in the other direction before.
    #[error("the state was used in the other direction before: use one state to encrypt and another to decrypt")]
    MixedDirections,
    /// The piece would end past [`Algorithm::message_len_max`].
    #[error(transparent)]
    MessageTooLong(#[from] MessageTooLong),
    /// A CCM state was made without the message's length.
    #[error("a message of CCM begins with its length: make the state with `State::with_len`")]
    LengthNotGiven,
    /// The piece would end past the declared length of the message.
    #[error("the piece ends past the {declared} bytes that the message began with")]
    PastLength {
        /// The declared length in bytes.
        declared: u64,
    },
    /// The message has a declared length, and bytes are missing.
    #[error("{missing} bytes of the message have not gone through: there is no tag before")]
    Unfinished {
        /// Number of missing bytes.
        missing: u64,
    },
    /// Source and destination differ in length.
    #[error("the source has {source_len} bytes and the destination {destination_len}: they must be equal")]
    LengthMismatch {
        /// Length of the source in bytes.
        source_len: usize,
        /// Length of the destination in bytes.
        destination_len: usize,
    },
}

/// Failure to verify a message.
///
/// ```
/// use resumable_aead::{Algorithm, Key, State, TagMismatch, VerifyError};
///
/// let key = Key::new(Algorithm::Aes128Gcm, &[7; 16])?;
/// let forged = State::new(&key, &[0; 12], b"").verify(&key, &[0; 16]);
/// assert_eq!(forged, Err(VerifyError::TagMismatch(TagMismatch)));
/// # Ok::<(), resumable_aead::KeyLengthError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// The tag differs, or has another length: a fault of the peer or the wire.
    #[error(transparent)]
    TagMismatch(#[from] TagMismatch),
    /// The state was used out of order: the caller's mistake.
    #[error(transparent)]
    Misuse(#[from] StateError),
}

/// Bytes that are not a serialised [`State`](crate::State).
///
/// ```
/// use resumable_aead::{State, StateBytesError};
///
/// let error = State::from_bytes(&[0xff; State::BYTES]).err();
/// assert_eq!(error, Some(StateBytesError::UnknownLayout(0xff)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StateBytesError {
    /// The layout version is unknown.
    #[error("layout {0} of a state is not known")]
    UnknownLayout(u8),
    /// The named field is impossible.
    #[error("the saved state is damaged: its {0} is impossible")]
    Invalid(&'static str),
}
