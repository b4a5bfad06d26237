//! The AEAD of one generation of keys, and its nonces.

use aes::Aes128;
use ccm::consts::{U12, U16};
use ccm::{AeadInOut, Ccm, KeyInit};
use core::fmt;
use offload_api::{QuicCipher, QuicKey};
use offload_base::cost::{self, Work};
use resumable_aead::{Algorithm, Key, TagMismatch};

/// A generation's key, ready for use.
pub struct PacketKey {
    aead: Aead,
    iv: [u8; 12],
}

enum Aead {
    Resumable(Key),
    Ccm(Box<Ccm<Aes128, U16, U12>>),
}

impl PacketKey {
    /// Expands a key.
    ///
    /// # Panics
    /// Never: a [`QuicKey`] is as long as its cipher wants.
    pub fn new(key: &QuicKey) -> PacketKey {
        let algorithm = match key.cipher() {
            QuicCipher::Aes128Gcm => Some(Algorithm::Aes128Gcm),
            QuicCipher::Aes256Gcm => Some(Algorithm::Aes256Gcm),
            QuicCipher::ChaCha20Poly1305 => Some(Algorithm::ChaCha20Poly1305),
            _ => None,
        };
        let aead = match algorithm {
            Some(algorithm) => Key::new(algorithm, key.key()).ok().map(Aead::Resumable),
            None => Ccm::new_from_slice(key.key()).ok().map(|ccm| Aead::Ccm(Box::new(ccm))),
        };
        PacketKey { aead: aead.expect("a key is as long as its cipher wants"), iv: *key.iv() }
    }

    /// The nonce of a packet: the IV, and over it path and number (draft-ietf-quic-multipath-21 2.4). On path 0 it is that of
    /// RFC 9001 5.3.
    pub fn nonce(&self, path: u32, number: u64) -> [u8; 12] {
        let mut nonce = self.iv;
        let over = path.to_be_bytes().into_iter().chain(number.to_be_bytes());
        nonce.iter_mut().zip(over).for_each(|(byte, over)| *byte ^= over);
        nonce
    }

    /// Encrypts the payload of a packet and gives its tag. `header` is what is in front of it, plain.
    ///
    /// # Panics
    /// If the payload is longer than any datagram.
    pub fn seal(&self, path: u32, number: u64, header: &[u8], payload: &mut [u8]) -> [u8; crate::TAG] {
        let _scope = cost::work(Work::Crypto);
        let nonce = self.nonce(path, number);
        match &self.aead {
            Aead::Resumable(key) => key.seal_in_place(&nonce, header, payload).ok(),
            Aead::Ccm(ccm) => {
                ccm.encrypt_inout_detached(&nonce.into(), header, payload.into()).ok().map(|tag| tag.into())
            }
        }
        .expect("a datagram is far shorter than the longest message")
    }

    /// Decrypts the payload of a packet if its tag is right.
    ///
    /// # Errors
    /// If it is not authentic; nothing of the payload is of use then.
    pub fn open(
        &self,
        path: u32,
        number: u64,
        header: &[u8],
        payload: &mut [u8],
        tag: &[u8; crate::TAG],
    ) -> Result<(), TagMismatch> {
        let _scope = cost::work(Work::Crypto);
        let nonce = self.nonce(path, number);
        match &self.aead {
            Aead::Resumable(key) => key.open_in_place(&nonce, header, payload, tag),
            Aead::Ccm(ccm) => ccm
                .decrypt_inout_detached(&nonce.into(), header, payload.into(), &(*tag).into())
                .map_err(|_| TagMismatch),
        }
    }
}

impl fmt::Debug for PacketKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PacketKey(..)")
    }
}

impl Drop for PacketKey {
    fn drop(&mut self) {
        zeroize::Zeroize::zeroize(&mut self.iv);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// draft-ietf-quic-multipath-21 2.4.
    #[test]
    fn the_nonce_of_the_draft() {
        let iv = [0x6b, 0x26, 0x11, 0x4b, 0x9c, 0xba, 0x2b, 0x63, 0xa9, 0xe8, 0xdd, 0x4f];
        let key = PacketKey::new(&QuicKey::new(QuicCipher::Aes128Gcm, &[0; 16], iv).unwrap());
        let nonce = [0x6b, 0x26, 0x11, 0x48, 0x9c, 0xba, 0x2b, 0x63, 0xa9, 0xe8, 0x09, 0x7e];
        assert_eq!(key.nonce(3, 54_321), nonce);
    }
}
