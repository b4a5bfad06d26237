//! Shared test helpers: keys of every back-end, oracles, seeded randomness.

use resumable_aead::{Algorithm, Backend, Key, State};

/// Returns the key under every back-end that this processor has.
pub(crate) fn keys(algorithm: Algorithm, key: &[u8]) -> Vec<Key> {
    let available = Backend::ALL.into_iter().filter(|backend| backend.is_available(algorithm));
    available.map(|backend| Key::with_backend(algorithm, key, backend).unwrap()).collect()
}

/// Begins a message of `len` bytes.
pub(crate) fn begin(key: &Key, nonce: &[u8; 12], aad: &[u8], len: usize) -> State {
    State::with_len(key, nonce, aad, len as u64).unwrap()
}

/// Returns ciphertext and tag from an independent implementation: ring, or RustCrypto's CCM.
pub(crate) fn seal_with_others(
    algorithm: Algorithm,
    key: &[u8],
    nonce: &[u8; 12],
    aad: &[u8],
    data: &[u8],
) -> (Vec<u8>, [u8; 16]) {
    use ring::aead;
    let ring = match algorithm {
        Algorithm::Aes128Gcm => &aead::AES_128_GCM,
        Algorithm::Aes256Gcm => &aead::AES_256_GCM,
        Algorithm::ChaCha20Poly1305 => &aead::CHACHA20_POLY1305,
        _ => return seal_with_rust_crypto(algorithm, key, nonce, aad, data),
    };
    let key = aead::LessSafeKey::new(aead::UnboundKey::new(ring, key).unwrap());
    let mut data = data.to_vec();
    let nonce = aead::Nonce::assume_unique_for_key(*nonce);
    let tag = key.seal_in_place_separate_tag(nonce, aead::Aad::from(aad), &mut data).unwrap();
    (data, tag.as_ref().try_into().unwrap())
}

fn seal_with_rust_crypto(
    algorithm: Algorithm,
    key: &[u8],
    nonce: &[u8; 12],
    aad: &[u8],
    data: &[u8],
) -> (Vec<u8>, [u8; 16]) {
    use aes::{Aes128, Aes256};
    use ccm::consts::{U8, U12, U16};
    use ccm::{AeadInOut, Ccm, KeyInit};
    let (mut data, mut tag) = (data.to_vec(), [0; 16]);
    macro_rules! seal {
        ($aes:ty, $tag_len:ty) => {{
            let ccm = Ccm::<$aes, $tag_len, U12>::new_from_slice(key).unwrap();
            let short = ccm.encrypt_inout_detached(&(*nonce).into(), aad, data.as_mut_slice().into()).unwrap();
            tag[..short.len()].copy_from_slice(&short);
        }};
    }
    match algorithm {
        Algorithm::Aes128Ccm => seal!(Aes128, U16),
        Algorithm::Aes256Ccm => seal!(Aes256, U16),
        Algorithm::Aes128Ccm8 => seal!(Aes128, U8),
        Algorithm::Aes256Ccm8 => seal!(Aes256, U8),
        _ => unreachable!("the others have other oracles"),
    }
    (data, tag)
}

/// A small seeded generator (SplitMix64), so that all machines run the same cases.
pub(crate) struct SplitMix(pub(crate) u64);

impl SplitMix {
    pub(crate) fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.word() % bound as u64) as usize
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend_from_slice(&self.word().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }

    /// Returns a length for a piece: usually short, or near a back-end's block or batch length.
    pub(crate) fn len(&mut self, max: usize) -> usize {
        let len = match self.below(6) {
            0 => self.below(18),
            1 => self.below(80),
            2 => self.below(600),
            3 => [16, 32, 64, 128, 256, 512, 1024, 1448][self.below(8)] + self.below(3),
            4 => [16, 32, 64, 128, 256, 512, 1024, 1448][self.below(8)] - self.below(3),
            _ => self.below(max + 1),
        };
        len.min(max)
    }
}
