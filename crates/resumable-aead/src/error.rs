//! One error per operation; misuse and forgery are told apart.

use crate::{Algorithm, Backend};

/// The key has the wrong length for its algorithm: the caller's mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a key of {found} bytes for {algorithm:?}, which takes {}", algorithm.key_len())]
pub struct KeyLengthError {
    /// What the key was for.
    pub algorithm: Algorithm,
    /// The length given, in bytes.
    pub found: usize,
}

/// No key could be made with the back-end asked for: the caller's mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The key has the wrong length.
    #[error(transparent)]
    Length(#[from] KeyLengthError),
    /// The back-end does not exist for the algorithm, or this processor lacks its instructions.
    #[error("{backend:?} does not do {algorithm:?} on this processor")]
    BackendUnavailable {
        /// What was asked for.
        backend: Backend,
        /// What it was to do.
        algorithm: Algorithm,
    },
}

/// The message, or the keystream asked for, goes past [`Algorithm::message_len_max`]: the caller's mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the message is longer than one nonce can protect")]
pub struct MessageTooLong;

/// The message is not authentic, or not all of it went through: the peer's fault, or the wire's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the tag does not match")]
pub struct TagMismatch;

/// A [`State`](crate::State) was used out of order: the caller's mistake. The state is as it was before the call, and
/// no byte was touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// The key is not the one that the state was made with.
    #[error("the state belongs to another key")]
    WrongKey,
    /// One message is either encrypted or decrypted.
    #[error("the state was used in the other direction before: use one state to encrypt and another to decrypt")]
    MixedDirections,
    /// The piece would go past [`Algorithm::message_len_max`].
    #[error(transparent)]
    MessageTooLong(#[from] MessageTooLong),
    /// Source and destination differ in length.
    #[error("the source has {source_len} bytes and the destination {destination_len}: they must be equal")]
    LengthMismatch {
        /// Length of the source in bytes.
        source_len: usize,
        /// Length of the destination in bytes.
        destination_len: usize,
    },
}

/// A message did not verify.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// The tag differs, or is not 16 bytes long: the peer's fault, or the wire's.
    #[error(transparent)]
    TagMismatch(#[from] TagMismatch),
    /// The state was used out of order: the caller's mistake.
    #[error(transparent)]
    Misuse(#[from] StateError),
}

/// Bytes are not those of a [`State`](crate::State).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StateBytesError {
    /// Written by another version of the layout.
    #[error("layout {0} of a state is not known")]
    UnknownLayout(u8),
    /// A field holds what no state can hold.
    #[error("the saved state is damaged: its {0} is impossible")]
    Invalid(&'static str),
}
