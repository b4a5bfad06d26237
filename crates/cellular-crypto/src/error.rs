//! One error per operation. Misuse and forgery are different variants.

use crate::Algorithm;

/// The key has the wrong length for its algorithm: a mistake of the caller.
///
/// ```
/// use cellular_crypto::{Algorithm, Key, KeyLengthError};
///
/// let refused = Key::new(Algorithm::Snow5g, &[7; 16]).err();
/// assert_eq!(refused, Some(KeyLengthError { algorithm: Algorithm::Snow5g, found: 16 }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a key of {found} bytes for {algorithm:?}, which takes {}", algorithm.key_len())]
pub struct KeyLengthError {
    /// The key's algorithm.
    pub algorithm: Algorithm,
    /// The length given, in bytes.
    pub found: usize,
}

/// The algorithm does not support the request: a mistake of the caller. The data are unchanged.
///
/// ```
/// use cellular_crypto::{Algorithm, Iv, Key, MessageError};
///
/// let key = Key::new(Algorithm::Zuc256, &[7; 32])?;
/// let refused = key.cipher_bits(&Iv::from_bytes([0; 16]), &mut [0; 2], 11);
/// assert_eq!(refused, Err(MessageError::NotWholeBytes(Algorithm::Zuc256)));
/// # Ok::<(), cellular_crypto::KeyLengthError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// More than [`MESSAGE_MAX`](crate::MESSAGE_MAX) bytes.
    #[error("a message is at most {} bytes long", crate::MESSAGE_MAX)]
    TooLong,
    /// The slice holds fewer bits than requested.
    #[error("fewer bytes than the number of bits says")]
    Short,
    /// The 256-bit algorithms take whole bytes only.
    #[error("{0:?} takes whole bytes")]
    NotWholeBytes(Algorithm),
    /// 128-NIA has tags of 4 bytes only.
    #[error("{0:?} has tags of 4 bytes")]
    TagLength(Algorithm),
    /// 128-bit algorithms have no NCA.
    #[error("{0:?} has no AEAD: cipher and authenticate apart")]
    NoAead(Algorithm),
}

/// A message was not accepted.
///
/// ```
/// use cellular_crypto::{Algorithm, Iv, Key, VerifyError};
///
/// let key = Key::new(Algorithm::Aes128, &[7; 16])?;
/// let refused = key.verify(&Iv::from_bytes([0; 16]), b"forged", &[0; 4]);
/// assert_eq!(refused, Err(VerifyError::TagMismatch));
/// # Ok::<(), cellular_crypto::KeyLengthError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// The message is not authentic: an error of the sender or the network.
    #[error("the tag does not fit the message")]
    TagMismatch,
    /// A mistake of the caller.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// A tag has 4 to 16 bytes: a mistake of the caller.
    #[error("a tag of {0} bytes: it has 4 to 16")]
    TagBytes(usize),
}
