//! The services as a library: each performs its step on bytes, without a device and without a clock. SNOW 3G, Snow 5G
//! and ZUC are re-exported from [`cellular`], which processes many messages side by side.
//!
//! AES-GCM made of these services:
//!
//! ```
//! use crypto_services::primitives::{AesBlocks, Ghash, counters, tags_equal, xor};
//!
//! let aes = AesBlocks::new(&[7; 16]).expect("16 bytes"); // key expansion
//! let mut keystream = counters([&[1; 12][..], &[0, 0, 0, 1]].concat().try_into().expect("16 bytes"), 2);
//! aes.encrypt(&mut keystream);
//! let mut data = *b"attack at dawn";
//! xor(&mut data, keystream[1..].as_flattened());
//!
//! let mut hash_key = [[0; 16]];
//! aes.encrypt(&mut hash_key);
//! let mut ghash = Ghash::new(&hash_key[0]);
//! ghash.update(&data);
//! let mut tag = ghash.finish(0, data.len());
//! xor(&mut tag, &keystream[0]);
//! # let key = offload_transforms::SecretBytes::new(vec![7; 16]);
//! # let transform = offload_transforms::Transform::Aead { aead: offload_transforms::Aead::Aes128Gcm, key };
//! # let session = offload_transforms::Session::new(&transform).unwrap();
//! # let with = offload_transforms::Parameters { iv: [1; 16], aad: &[] };
//! # let mut sealed = bytes::BytesMut::with_capacity(64);
//! # let source = [bytes::Bytes::from_static(b"attack at dawn")];
//! # session.run(offload_transforms::TransformDirection::Apply, with, &source, &mut sealed).unwrap();
//! # assert_eq!(sealed, [&data[..], &tag].concat());
//! assert!(tags_equal(&tag, &tag.clone()));
//! ```

use aes::cipher::{BlockCipherEncrypt, KeyInit, KeyIvInit, StreamCipher};
use aes::{Aes128, Aes256};
use cmac::Cmac;
use core::fmt;
use ghash::GHash;
use ghash::universal_hash::UniversalHash;
use hmac::{Hmac, Mac};
use sha1::{Digest, Sha1};
use sha2::Sha256;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

pub use cellular_crypto as cellular;

/// A block of 16 bytes.
pub type CipherBlock = [u8; 16];

/// Key expansion and AES, block by block. The key is wiped on drop.
///
/// See [the module](self) for an example.
pub struct AesBlocks(AesSchedule);

enum AesSchedule {
    Aes128(Box<Aes128>),
    Aes256(Box<Aes256>),
}

impl AesBlocks {
    /// Expands a key of 16 or 32 bytes; `None` for other lengths.
    pub fn new(key: &[u8]) -> Option<AesBlocks> {
        let aes = match key.len() {
            16 => AesSchedule::Aes128(Box::new(Aes128::new_from_slice(key).ok()?)),
            32 => AesSchedule::Aes256(Box::new(Aes256::new_from_slice(key).ok()?)),
            _ => return None,
        };
        Some(AesBlocks(aes))
    }

    /// Encrypts each block separately.
    pub fn encrypt(&self, blocks: &mut [CipherBlock]) {
        for block in blocks {
            match &self.0 {
                AesSchedule::Aes128(aes) => aes.encrypt_block(block.into()),
                AesSchedule::Aes256(aes) => aes.encrypt_block(block.into()),
            }
        }
    }
}

impl fmt::Debug for AesBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            AesSchedule::Aes128(_) => "AesBlocks(128 bits)",
            AesSchedule::Aes256(_) => "AesBlocks(256 bits)",
        })
    }
}

/// Returns `blocks` counter blocks from `first` on. As in GCM, only the last 32 bits count, and wrap.
///
/// ```
/// use crypto_services::primitives::counters;
///
/// let blocks = counters([0xff; 16], 2);
/// assert_eq!(blocks[1][12..], [0; 4]);
/// assert_eq!(blocks[1][..12], [0xff; 12]);
/// ```
pub fn counters(first: CipherBlock, blocks: usize) -> Vec<CipherBlock> {
    let [.., a, b, c, d] = first;
    let begin = u32::from_be_bytes([a, b, c, d]);
    let block = |number: usize| {
        let mut block = first;
        block[12..].copy_from_slice(&begin.wrapping_add(number as u32).to_be_bytes());
        block
    };
    (0..blocks).map(block).collect()
}

/// XORs a keystream into data, up to the shorter length.
///
/// ```
/// let mut data = [1, 2, 3];
/// crypto_services::primitives::xor(&mut data, &[1, 2, 3]);
/// assert_eq!(data, [0; 3]);
/// ```
pub fn xor(data: &mut [u8], keystream: &[u8]) {
    data.iter_mut().zip(keystream).for_each(|(byte, mask)| *byte ^= mask);
}

/// CBC: XORs each block with the one before, the first with the IV, and encrypts the result.
///
/// ```
/// use crypto_services::primitives::{AesBlocks, cbc};
///
/// // NIST SP 800-38A F.2.1.
/// let key = 0x2b7e151628aed2a6abf7158809cf4f3c_u128.to_be_bytes();
/// let mut blocks = [0x6bc1bee22e409f96e93d7e117393172a_u128, 0xae2d8a571e03ac9c9eb76fac45af8e51].map(u128::to_be_bytes);
/// cbc(&AesBlocks::new(&key).expect("16 bytes"), core::array::from_fn(|at| at as u8), &mut blocks);
/// let encrypted = blocks.map(u128::from_be_bytes);
/// assert_eq!(encrypted, [0x7649abac8119b246cee98e9b12e9197d, 0x5086cb9b507219ee95db113a917678b2]);
/// ```
pub fn cbc(aes: &AesBlocks, iv: CipherBlock, blocks: &mut [CipherBlock]) {
    let mut before = iv;
    for block in blocks {
        xor(block, &before);
        aes.encrypt(core::slice::from_mut(block));
        before = *block;
    }
}

/// Computes the AES-CMAC of a message with a key of 16 or 32 bytes; `None` for other lengths.
///
/// ```
/// use crypto_services::primitives::cmac;
///
/// // RFC 4493, example 1.
/// let key = 0x2b7e151628aed2a6abf7158809cf4f3c_u128.to_be_bytes();
/// assert_eq!(cmac(&key, b"").map(u128::from_be_bytes), Some(0xbb1d6929e95937287fa37d129b756746));
/// ```
pub fn cmac(key: &[u8], message: &[u8]) -> Option<CipherBlock> {
    match key.len() {
        16 => Some(mac::<Cmac<Aes128>>(key, message)?.into_bytes().into()),
        32 => Some(mac::<Cmac<Aes256>>(key, message)?.into_bytes().into()),
        _ => None,
    }
}

/// Computes SHA-1.
///
/// ```
/// let hash = crypto_services::primitives::sha1(b"abc");
/// assert_eq!(hash[..8], 0xa9993e364706816a_u64.to_be_bytes());
/// ```
pub fn sha1(data: &[u8]) -> [u8; 20] {
    Sha1::digest(data).into()
}

/// Computes SHA-256.
///
/// ```
/// let hash = crypto_services::primitives::sha256(b"abc");
/// assert_eq!(hash[..8], 0xba7816bf8f01cfea_u64.to_be_bytes());
/// ```
pub fn sha256(data: &[u8]) -> [u8; 32] {
    Sha256::digest(data).into()
}

/// Computes HMAC-SHA1 with a key of any length.
///
/// ```
/// use crypto_services::primitives::hmac_sha1;
///
/// // RFC 2202, case 2.
/// assert_eq!(hmac_sha1(b"Jefe", b"what do ya want for nothing?")[..8], 0xeffcdf6ae5eb2fa2_u64.to_be_bytes());
/// ```
pub fn hmac_sha1(key: &[u8], data: &[u8]) -> [u8; 20] {
    let hmac = mac::<Hmac<Sha1>>(key, data);
    hmac.map(|hmac| hmac.into_bytes().into()).expect("HMAC accepts keys of any length")
}

/// Computes HMAC-SHA256 with a key of any length.
///
/// ```
/// use crypto_services::primitives::hmac_sha256;
///
/// // RFC 4231, case 2.
/// assert_eq!(hmac_sha256(b"Jefe", b"what do ya want for nothing?")[..8], 0x5bdcc146bf60754e_u64.to_be_bytes());
/// ```
pub fn hmac_sha256(key: &[u8], data: &[u8]) -> [u8; 32] {
    let hmac = mac::<Hmac<Sha256>>(key, data);
    hmac.map(|hmac| hmac.into_bytes().into()).expect("HMAC accepts keys of any length")
}

fn mac<M: Mac + KeyInit>(key: &[u8], data: &[u8]) -> Option<hmac::digest::CtOutput<M>> {
    let mut mac = <M as KeyInit>::new_from_slice(key).ok()?;
    mac.update(data);
    Some(mac.finalize())
}

/// GHASH. The key is wiped on drop.
///
/// See [the module](self) for an example.
#[derive(Clone)]
pub struct Ghash(GHash);

impl Ghash {
    /// Creates a hash with a hash key: the encryption of a zero block.
    pub fn new(key: &CipherBlock) -> Ghash {
        Ghash(GHash::new(key.into()))
    }

    /// Adds additional data or ciphertext, each padded with zeros to whole blocks.
    pub fn update(&mut self, data: &[u8]) {
        self.0.update_padded(data);
    }

    /// Finishes with the lengths of both in bytes.
    pub fn finish(mut self, aad: usize, data: usize) -> CipherBlock {
        let bits = |bytes: usize| (bytes as u64 * 8).to_be_bytes();
        self.0.update_padded(&[bits(aad), bits(data)].concat());
        self.0.finalize().into()
    }
}

impl fmt::Debug for Ghash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ghash")
    }
}

/// Returns `blocks` blocks of 64 bytes of ChaCha20's keystream (RFC 8439) from block 0 on, wiped on drop. `None` if the
/// key does not have 32 bytes.
///
/// ```
/// let keystream = crypto_services::primitives::chacha(&[0; 32], &[0; 12], 1).expect("32 bytes");
/// assert_eq!(keystream[..4], [0x76, 0xb8, 0xe0, 0xad]);
/// ```
pub fn chacha(key: &[u8], nonce: &[u8; 12], blocks: usize) -> Option<Zeroizing<Vec<u8>>> {
    let mut keystream = Zeroizing::new(vec![0; 64 * blocks]);
    chacha20::ChaCha20::new_from_slices(key, nonce).ok()?.apply_keystream(&mut keystream);
    Some(keystream)
}

/// Computes Poly1305 over additional data and ciphertext, as in ChaCha20-Poly1305, with a one-time key.
///
/// ```
/// assert_eq!(crypto_services::primitives::poly1305(&[0; 32], b"header", b"data"), [0; 16], "of a key of zeros");
/// ```
pub fn poly1305(key: &[u8; 32], aad: &[u8], data: &[u8]) -> CipherBlock {
    let mut mac = poly1305::Poly1305::new(key.into());
    mac.update_padded(aad);
    mac.update_padded(data);
    let bytes = |bytes: usize| (bytes as u64).to_le_bytes();
    mac.update_padded(&[bytes(aad.len()), bytes(data.len())].concat());
    mac.finalize().into()
}

/// Compares two tags in constant time.
///
/// See [the module](self) for an example.
pub fn tags_equal(one: &[u8], other: &[u8]) -> bool {
    one.ct_eq(other).into()
}

/// Computes QUIC's header mask from 16 bytes of the packet (RFC 9001 5.4.3).
///
/// ```
/// use crypto_services::primitives::{AesBlocks, header_mask};
///
/// // RFC 9001 A.2
/// let key = [0x9f, 0x50, 0x44, 0x9e, 0x04, 0xa0, 0xe8, 0x10, 0x28, 0x3a, 0x1e, 0x99, 0x33, 0xad, 0xed, 0xd2];
/// let sample = [0xd1, 0xb1, 0xc9, 0x8d, 0xd7, 0x68, 0x9f, 0xb8, 0xec, 0x11, 0xd2, 0x42, 0xb1, 0x23, 0xdc, 0x9b];
/// let mask = header_mask(&AesBlocks::new(&key).expect("16 bytes"), sample);
/// assert_eq!(mask, [0x43, 0x7b, 0x9a, 0xec, 0x36]);
/// ```
pub fn header_mask(key: &AesBlocks, sample: CipherBlock) -> [u8; 5] {
    let mut block = [sample];
    key.encrypt(&mut block);
    let [[a, b, c, d, e, ..]] = block;
    [a, b, c, d, e]
}
