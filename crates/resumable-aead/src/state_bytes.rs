//! Serialised states, for a device that keeps contexts in host memory.
//!
//! Layout 1, integers little-endian: layout, algorithm, direction, a zero byte; key check (4 bytes); nonce (12); four
//! zero bytes; position (8); length of the AAD (8); then the authenticator (72 bytes, the unused rest zero). Fields that a
//! state does not use at its position are written as zeros, so that equal states have equal bytes.

use crate::ccm::CcmState;
use crate::chacha::ChaChaState;
use crate::gcm::GcmState;
use crate::state::{Authenticator, MessageDirection};
use crate::{Algorithm, State, StateBytesError};

impl State {
    /// Length in bytes of a serialised state.
    pub const BYTES: usize = AUTHENTICATOR + AUTHENTICATOR_LEN;

    /// Serialises the state. The bytes are as secret as the state: with them, anybody can forge this one message and
    /// decrypt up to a block of it.
    ///
    /// ```
    /// use resumable_aead::{Algorithm, Key, State};
    ///
    /// let key = Key::new(Algorithm::Aes128Gcm, &[1; 16])?;
    /// let mut state = State::new(&key, &[2; 12], b"");
    /// state.encrypt(&key, &mut [0; 100])?;
    /// let read_back = State::from_bytes(&state.to_bytes())?;
    /// assert_eq!(read_back.position(), 100);
    /// assert_eq!(read_back.tag(&key)?, state.tag(&key)?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn to_bytes(&self) -> [u8; State::BYTES] {
        let mut bytes = [0; State::BYTES];
        bytes[0] = LAYOUT;
        bytes[1] = match self.algorithm {
            Algorithm::Aes128Gcm => 1,
            Algorithm::Aes256Gcm => 2,
            Algorithm::ChaCha20Poly1305 => 3,
            Algorithm::Aes128Ccm => 4,
            Algorithm::Aes256Ccm => 5,
            Algorithm::Aes128Ccm8 => 6,
            Algorithm::Aes256Ccm8 => 7,
        };
        bytes[2] = match self.direction {
            None => 0,
            Some(MessageDirection::Encrypt) => 1,
            Some(MessageDirection::Decrypt) => 2,
        };
        bytes[4..8].copy_from_slice(&self.key_check.to_le_bytes());
        bytes[8..20].copy_from_slice(&self.nonce);
        bytes[24..32].copy_from_slice(&self.position.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.aad_len.to_le_bytes());
        let authenticator = match &self.authenticator {
            Authenticator::Gcm(state) => state.to_bytes(self.position),
            Authenticator::ChaCha(state) => state.to_bytes(self.position),
            Authenticator::Ccm(state) => state.to_bytes(self.position),
        };
        bytes[AUTHENTICATOR..].copy_from_slice(&authenticator);
        bytes
    }

    /// Parses the bytes that [`to_bytes`](State::to_bytes) wrote.
    ///
    /// Bytes that no valid state can have are refused. Other alterations give a state of another key, or a state whose
    /// tag will not verify.
    ///
    /// # Errors
    /// [`StateBytesError`] names the invalid field.
    pub fn from_bytes(bytes: &[u8; State::BYTES]) -> Result<State, StateBytesError> {
        if bytes[0] != LAYOUT {
            return Err(StateBytesError::UnknownLayout(bytes[0]));
        }
        let algorithm = match bytes[1] {
            1 => Algorithm::Aes128Gcm,
            2 => Algorithm::Aes256Gcm,
            3 => Algorithm::ChaCha20Poly1305,
            4 => Algorithm::Aes128Ccm,
            5 => Algorithm::Aes256Ccm,
            6 => Algorithm::Aes128Ccm8,
            7 => Algorithm::Aes256Ccm8,
            _ => return Err(StateBytesError::Invalid("algorithm")),
        };
        let direction = match bytes[2] {
            0 => None,
            1 => Some(MessageDirection::Encrypt),
            2 => Some(MessageDirection::Decrypt),
            _ => return Err(StateBytesError::Invalid("direction")),
        };
        if bytes[3] != 0 || bytes[20..24] != [0; 4] {
            return Err(StateBytesError::Invalid("padding"));
        }
        let position = u64::from_le_bytes(array(bytes, 24));
        if position > algorithm.message_len_max() {
            return Err(StateBytesError::Invalid("position"));
        }
        let authenticator: [u8; AUTHENTICATOR_LEN] = array(bytes, AUTHENTICATOR);
        let authenticator = match algorithm {
            Algorithm::Aes128Gcm | Algorithm::Aes256Gcm => {
                GcmState::from_bytes(&authenticator, position).map(Authenticator::Gcm)
            }
            Algorithm::ChaCha20Poly1305 => ChaChaState::from_bytes(&authenticator, position).map(Authenticator::ChaCha),
            Algorithm::Aes128Ccm | Algorithm::Aes256Ccm | Algorithm::Aes128Ccm8 | Algorithm::Aes256Ccm8 => {
                let len_max = algorithm.message_len_max();
                CcmState::from_bytes(&authenticator, position, len_max).map(Authenticator::Ccm)
            }
        };
        Ok(State {
            nonce: array(bytes, 8),
            key_check: u32::from_le_bytes(array(bytes, 4)),
            position,
            aad_len: u64::from_le_bytes(array(bytes, 32)),
            algorithm,
            direction,
            authenticator: authenticator.ok_or(StateBytesError::Invalid("authenticator"))?,
        })
    }
}

/// Returns the `N` bytes at `at`, which the layout's constants keep within bounds.
pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}

const LAYOUT: u8 = 1;
const AUTHENTICATOR: usize = 40;

/// Length in bytes of the algorithm's own part. Poly1305 needs all of it.
pub(crate) const AUTHENTICATOR_LEN: usize = 72;
