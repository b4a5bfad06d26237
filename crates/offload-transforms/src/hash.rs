//! SHA-1 and SHA-256: HMAC, and access to single blocks for a MAC in constant time.

use crate::{SecretBytes, SpecError};
use hmac::{Hmac, KeyInit, Mac};
use sha1::Sha1;
use sha2::Sha256;
use zeroize::{Zeroize, ZeroizeOnDrop};

/// The hash of an HMAC.
///
/// ```
/// use offload_transforms::HmacHash;
///
/// assert_eq!((HmacHash::Sha1.len(), HmacHash::Sha256.len()), (20, 32));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HmacHash {
    /// SHA-1. Most CBC suites of TLS 1.2 use HMAC-SHA1.
    Sha1,
    /// SHA-256.
    Sha256,
}

impl HmacHash {
    /// Returns the size of the hash, and of a MAC, in bytes.
    #[expect(clippy::len_without_is_empty, reason = "no hash is empty")]
    pub const fn len(self) -> usize {
        match self {
            HmacHash::Sha1 => 20,
            HmacHash::Sha256 => 32,
        }
    }
}

/// Size of the longest hash in bytes.
pub(crate) const LONGEST: usize = 32;

/// Size of a hash block in bytes.
pub(crate) const BLOCK: usize = 64;

/// A MAC. A MAC of SHA-1 occupies the first 20 bytes.
pub(crate) type MacTag = [u8; LONGEST];

/// An expanded HMAC key.
pub(crate) struct HmacKey {
    pub(crate) hash: HmacHash,
    keyed: HmacState,
    /// Inner and outer hash of HMAC, after the block of the padded key.
    inner: HashChain,
    outer: HashChain,
}

enum HmacState {
    Sha1(Box<Hmac<Sha1>>),
    Sha256(Box<Hmac<Sha256>>),
}

impl HmacKey {
    pub(crate) fn new(hash: HmacHash, key: &SecretBytes) -> Result<HmacKey, SpecError> {
        let bytes = key.bytes();
        // A longer key would have to be hashed first (RFC 2104 2), which no protocol here needs.
        if bytes.is_empty() || bytes.len() > BLOCK {
            return Err(SpecError::KeyLength { name: "HMAC", found: bytes.len(), takes: "1 to 64" });
        }
        let wrong = |_| SpecError::KeyLength { name: "HMAC", found: bytes.len(), takes: "1 to 64" };
        let keyed = match hash {
            HmacHash::Sha1 => HmacState::Sha1(Box::new(Hmac::new_from_slice(bytes).map_err(wrong)?)),
            HmacHash::Sha256 => HmacState::Sha256(Box::new(Hmac::new_from_slice(bytes).map_err(wrong)?)),
        };
        let padded = |pad: u8| {
            let mut block = [pad; BLOCK];
            block.iter_mut().zip(bytes).for_each(|(byte, key)| *byte ^= key);
            let mut chain = HashChain::new(hash);
            chain.compress(&block);
            // The padded key must not stay on the stack.
            block.zeroize();
            chain
        };
        // RFC 2104 2: the key is masked with 0x36 for the inner hash, with 0x5c for the outer one.
        Ok(HmacKey { hash, keyed, inner: padded(0x36), outer: padded(0x5c) })
    }

    /// Computes the MAC of the concatenated `parts`.
    pub(crate) fn mac(&self, parts: &[&[u8]]) -> MacTag {
        let mut tag = MacTag::default();
        match &self.keyed {
            HmacState::Sha1(key) => {
                let mut mac = (**key).clone();
                parts.iter().for_each(|part| mac.update(part));
                tag[..20].copy_from_slice(&mac.finalize().into_bytes());
            }
            HmacState::Sha256(key) => {
                let mut mac = (**key).clone();
                parts.iter().for_each(|part| mac.update(part));
                tag.copy_from_slice(&mac.finalize().into_bytes());
            }
        }
        tag
    }

    /// Returns the inner hash after the block of the key.
    pub(crate) fn begin_inner(&self) -> HashChain {
        self.inner.clone()
    }

    /// Computes the MAC from the final value of the inner hash.
    pub(crate) fn finish(&self, inner: &MacTag) -> MacTag {
        let mut block = [0; BLOCK];
        let len = self.hash.len();
        block[..len].copy_from_slice(&inner[..len]);
        // The outer message is one block of the key and one digest, so its padding is fixed.
        block[len] = 0x80;
        block[BLOCK - 8..].copy_from_slice(&(8 * (BLOCK + len) as u64).to_be_bytes());
        let mut outer = self.outer.clone();
        outer.compress(&block);
        outer.value()
    }
}

/// The chaining value of a hash between two blocks.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub(crate) struct HashChain {
    words: [u32; 8],
    #[zeroize(skip)]
    hash: HmacHash,
}

impl HashChain {
    fn new(hash: HmacHash) -> HashChain {
        // FIPS 180-4 5.3: the initial values.
        let words = match hash {
            HmacHash::Sha1 => [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476, 0xc3d2_e1f0, 0, 0, 0],
            HmacHash::Sha256 => {
                [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19]
            }
        };
        HashChain { words, hash }
    }

    pub(crate) fn compress(&mut self, block: &[u8; BLOCK]) {
        match self.hash {
            HmacHash::Sha1 => {
                if let Some(words) = self.words.first_chunk_mut() {
                    sha1::block_api::compress(words, core::slice::from_ref(block));
                }
            }
            HmacHash::Sha256 => sha2::block_api::compress256(&mut self.words, core::slice::from_ref(block)),
        }
    }

    /// Returns the chaining value as bytes.
    pub(crate) fn value(&self) -> MacTag {
        let mut tag = MacTag::default();
        tag.chunks_exact_mut(4).zip(self.words).for_each(|(bytes, word)| bytes.copy_from_slice(&word.to_be_bytes()));
        tag
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test case 2 of RFC 2202 3 and of RFC 4231 4.3.
    #[test]
    fn hmac_matches_the_rfc_vectors() {
        let of = |hash| HmacKey::new(hash, &SecretBytes::new(b"Jefe".to_vec())).unwrap();
        let parts: [&[u8]; 2] = [b"what do ya want ", b"for nothing?"];
        let sha1 = of(HmacHash::Sha1).mac(&parts);
        let sha256 = of(HmacHash::Sha256).mac(&parts);
        assert_eq!(sha1[..4], [0xef, 0xfc, 0xdf, 0x6a]);
        assert_eq!(sha1[16..20], [0x25, 0x9a, 0x7c, 0x79]);
        assert_eq!(sha256[..4], [0x5b, 0xdc, 0xc1, 0x46]);
        assert_eq!(sha256[28..], [0x64, 0xec, 0x38, 0x43]);
    }
}
