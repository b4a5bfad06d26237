//! The AEAD of one key generation, and its nonces.

use core::fmt;
use offload_api::{QuicCipher, QuicKey};
use offload_base::cost::{self, WorkKind};
use resumable_aead::{Algorithm, Key, TagMismatch};

/// The expanded key of one generation.
pub struct PacketKey {
    aead: Key,
    iv: [u8; 12],
}

impl PacketKey {
    /// Expands a key.
    ///
    /// # Panics
    /// Never, because a [`QuicKey`] has the length that its cipher requires.
    pub fn new(key: &QuicKey) -> PacketKey {
        let aead = Key::new(algorithm(key.cipher()), key.key());
        PacketKey { aead: aead.expect("the key has the length that its cipher requires"), iv: *key.iv() }
    }

    /// Returns the nonce of a packet: the IV combined with path and number by exclusive or
    /// (draft-ietf-quic-multipath-21 2.4). On path 0 the nonce equals that of RFC 9001 5.3.
    pub fn nonce(&self, path: u32, number: u64) -> [u8; 12] {
        let mut nonce = self.iv;
        // Each path counts its own packet numbers, so the path makes the nonce unique.
        let over = path.to_be_bytes().into_iter().chain(number.to_be_bytes());
        nonce.iter_mut().zip(over).for_each(|(byte, over)| *byte ^= over);
        nonce
    }

    /// Encrypts the payload of a packet, and returns the tag. `header` is the plain header in front.
    ///
    /// # Panics
    /// If the payload is longer than any datagram.
    pub fn seal(&self, path: u32, number: u64, header: &[u8], payload: &mut [u8]) -> [u8; crate::TAG] {
        let _crypto_scope = cost::work(WorkKind::Crypto);
        let nonce = self.nonce(path, number);
        let tag = self.aead.seal_in_place(&nonce, header, payload);
        tag.expect("a datagram is far shorter than the longest message")
    }

    /// Decrypts the payload of a packet, and verifies the tag.
    ///
    /// # Errors
    /// If the packet is not authentic. The payload must then be discarded.
    pub fn open(
        &self,
        path: u32,
        number: u64,
        header: &[u8],
        payload: &mut [u8],
        tag: &[u8; crate::TAG],
    ) -> Result<(), TagMismatch> {
        let _crypto_scope = cost::work(WorkKind::Crypto);
        let nonce = self.nonce(path, number);
        self.aead.open_in_place(&nonce, header, payload, tag)
    }
}

/// Returns the AEAD algorithm of a cipher.
pub(crate) fn algorithm(cipher: QuicCipher) -> Algorithm {
    match cipher {
        QuicCipher::Aes128Gcm => Algorithm::Aes128Gcm,
        QuicCipher::Aes256Gcm => Algorithm::Aes256Gcm,
        QuicCipher::ChaCha20Poly1305 => Algorithm::ChaCha20Poly1305,
        _ => Algorithm::Aes128Ccm,
    }
}

impl fmt::Debug for PacketKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PacketKey(..)")
    }
}

impl Drop for PacketKey {
    fn drop(&mut self) {
        // The AEAD key wipes itself. The IV is secret as well, because it masks the nonces.
        zeroize::Zeroize::zeroize(&mut self.iv);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of draft-ietf-quic-multipath-21 2.4.
    #[test]
    fn nonce_matches_the_example_of_the_draft() {
        let iv = [0x6b, 0x26, 0x11, 0x4b, 0x9c, 0xba, 0x2b, 0x63, 0xa9, 0xe8, 0xdd, 0x4f];
        let key = PacketKey::new(&QuicKey::new(QuicCipher::Aes128Gcm, &[0; 16], iv).unwrap());
        let nonce = [0x6b, 0x26, 0x11, 0x48, 0x9c, 0xba, 0x2b, 0x63, 0xa9, 0xe8, 0x09, 0x7e];
        assert_eq!(key.nonce(3, 54_321), nonce);
        // The example of a thesis on QUIC in a NIC, which combines the path identifier in the same way.
        let nonce = [0x6b, 0x26, 0x11, 0x48, 0x9c, 0xba, 0x2b, 0x63, 0xa9, 0xe8, 0x73, 0xe2];
        assert_eq!(key.nonce(3, 0xaead), nonce);
    }
}
