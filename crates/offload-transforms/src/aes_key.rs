//! AES with a key of 16 or 32 bytes.

use crate::{SecretBytes, SpecError};
use aes::cipher::KeyInit;
use aes::{Aes128, Aes256};

/// An expanded key, wiped on drop.
pub(crate) enum ExpandedAesKey {
    Aes128(Box<Aes128>),
    Aes256(Box<Aes256>),
}

impl ExpandedAesKey {
    pub(crate) fn new(name: &'static str, key: &SecretBytes) -> Result<ExpandedAesKey, SpecError> {
        let key = key.bytes();
        let wrong = |_| SpecError::KeyLength { name, found: key.len(), takes: "16 or 32" };
        Ok(match key.len() {
            16 => ExpandedAesKey::Aes128(Box::new(Aes128::new_from_slice(key).map_err(wrong)?)),
            // Any other length is refused by this constructor.
            _ => ExpandedAesKey::Aes256(Box::new(Aes256::new_from_slice(key).map_err(wrong)?)),
        })
    }
}

/// Evaluates an expression with the cipher, for either size of key.
macro_rules! with_aes {
    ($key:expr, $aes:ident => $body:expr) => {
        match $key {
            $crate::aes_key::ExpandedAesKey::Aes128($aes) => $body,
            $crate::aes_key::ExpandedAesKey::Aes256($aes) => $body,
        }
    };
}
pub(crate) use with_aes;
