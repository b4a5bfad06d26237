//! AES-GCM, AES-CCM and ChaCha20-Poly1305. The tag follows the ciphertext, and the nonce is the first 12 bytes of the
//! IV.

use crate::pieces::OutputBuffer;
use crate::{Fault, Parameters, SecretBytes, SpecError, TransformDirection};
use bytes::Bytes;
use resumable_aead::{Algorithm, Key, TAG_LEN};

/// An AEAD algorithm with nonces of 12 bytes and tags of 16.
///
/// ```
/// use offload_transforms::Aead;
///
/// assert_eq!((Aead::Aes128Gcm.name(), Aead::Aes128Gcm.key_len()), ("AES-128-GCM", 16));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Aead {
    /// AES-128-GCM.
    Aes128Gcm,
    /// AES-256-GCM.
    Aes256Gcm,
    /// ChaCha20-Poly1305.
    ChaCha20Poly1305,
    /// AES-128-CCM.
    Aes128Ccm,
    /// AES-256-CCM.
    Aes256Ccm,
}

impl Aead {
    /// All algorithms.
    pub const ALL: [Aead; 5] =
        [Aead::Aes128Gcm, Aead::Aes256Gcm, Aead::ChaCha20Poly1305, Aead::Aes128Ccm, Aead::Aes256Ccm];

    /// Returns the size of a key in bytes.
    pub const fn key_len(self) -> usize {
        match self {
            Aead::Aes128Gcm | Aead::Aes128Ccm => 16,
            Aead::Aes256Gcm | Aead::ChaCha20Poly1305 | Aead::Aes256Ccm => 32,
        }
    }

    /// Returns the name of the algorithm.
    pub const fn name(self) -> &'static str {
        match self {
            Aead::Aes128Gcm => "AES-128-GCM",
            Aead::Aes256Gcm => "AES-256-GCM",
            Aead::ChaCha20Poly1305 => "ChaCha20-Poly1305",
            Aead::Aes128Ccm => "AES-128-CCM",
            Aead::Aes256Ccm => "AES-256-CCM",
        }
    }

    const fn takes(self) -> &'static str {
        if self.key_len() == 16 { "16" } else { "32" }
    }
}

/// An expanded key.
pub(crate) struct AeadKey(Key);

impl AeadKey {
    pub(crate) fn new(aead: Aead, key: &SecretBytes) -> Result<AeadKey, SpecError> {
        let algorithm = match aead {
            Aead::Aes128Gcm => Algorithm::Aes128Gcm,
            Aead::Aes256Gcm => Algorithm::Aes256Gcm,
            Aead::ChaCha20Poly1305 => Algorithm::ChaCha20Poly1305,
            Aead::Aes128Ccm => Algorithm::Aes128Ccm,
            Aead::Aes256Ccm => Algorithm::Aes256Ccm,
        };
        let found = key.bytes().len();
        let wrong = SpecError::KeyLength { name: aead.name(), found, takes: aead.takes() };
        Key::new(algorithm, key.bytes()).map(AeadKey).map_err(|_| wrong)
    }

    pub(crate) fn run(
        &self,
        way: TransformDirection,
        with: Parameters<'_>,
        source: &[Bytes],
        room: &mut OutputBuffer<'_>,
    ) -> Result<(), Fault> {
        let nonce = with.iv.first_chunk().ok_or(Fault::Corrupt)?;
        room.append_all(source)?;
        let found = room.written();
        let wrong_length = |takes| Fault::SourceLength { name: "the AEAD", found, takes };
        match way {
            TransformDirection::Apply => {
                // Checked before sealing, because a failure afterwards would leave ciphertext without a tag.
                room.needs(TAG_LEN)?;
                let sealed = self.0.seal_in_place(nonce, with.aad, room.result());
                room.append(&sealed.map_err(|_| wrong_length("less under one nonce"))?)
            }
            TransformDirection::Undo => {
                let parts = room.result().split_last_chunk_mut::<TAG_LEN>();
                let (data, tag) = parts.ok_or(wrong_length("ciphertext and a tag of 16 bytes"))?;
                self.0.open_in_place(nonce, with.aad, data, tag).map_err(|_| Fault::NotAuthentic)?;
                room.shorten(TAG_LEN);
                Ok(())
            }
        }
    }
}
