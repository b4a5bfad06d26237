//! QUIC contexts of a device: 1-RTT packets sealed on the way out and opened on the way in (RFC 9001 5), on any number of paths
//! (draft-ietf-quic-multipath-21).
//!
//! A connection has a context in each direction. A packet to be sealed is handed over complete and plain, with room for its
//! tag, and an [ask](QuicAsk); the sender's stack numbers it. Received packets are found by UDP port and destination
//! connection ID; those that the device opened are as they were sent, but that the header is readable, the payload plain and
//! the tag still behind it. What it could not open is as it came.

use core::fmt;
use zeroize::{Zeroize, ZeroizeOnDrop};

/// What protects the packets of a connection.
///
/// ```
/// use offload_api::QuicCipher;
///
/// assert_eq!(QuicCipher::Aes128Gcm.confidentiality_limit(), 1 << 23);
/// assert_eq!(QuicCipher::ChaCha20Poly1305.key_len(), 32);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum QuicCipher {
    /// AEAD_AES_128_GCM.
    Aes128Gcm,
    /// AEAD_AES_256_GCM.
    Aes256Gcm,
    /// AEAD_AES_128_CCM.
    Aes128Ccm,
    /// AEAD_CHACHA20_POLY1305.
    ChaCha20Poly1305,
}

impl QuicCipher {
    /// All of them.
    pub const ALL: [QuicCipher; 4] =
        [QuicCipher::Aes128Gcm, QuicCipher::Aes256Gcm, QuicCipher::Aes128Ccm, QuicCipher::ChaCha20Poly1305];

    /// Bytes of a key: of packets, and of headers.
    pub const fn key_len(self) -> usize {
        match self {
            QuicCipher::Aes128Gcm | QuicCipher::Aes128Ccm => 16,
            QuicCipher::Aes256Gcm | QuicCipher::ChaCha20Poly1305 => 32,
        }
    }

    /// Most packets that may be sealed under one key (RFC 9001 6.6).
    pub const fn confidentiality_limit(self) -> u64 {
        match self {
            QuicCipher::Aes128Gcm | QuicCipher::Aes256Gcm => 1 << 23,
            // 2^21.5, rounded down.
            QuicCipher::Aes128Ccm => 2_965_820,
            QuicCipher::ChaCha20Poly1305 => u64::MAX,
        }
    }

    /// Most packets of a connection that may fail to open (RFC 9001 6.6).
    pub const fn integrity_limit(self) -> u64 {
        match self {
            QuicCipher::Aes128Gcm | QuicCipher::Aes256Gcm => 1 << 52,
            QuicCipher::Aes128Ccm => 2_965_820,
            QuicCipher::ChaCha20Poly1305 => 1 << 36,
        }
    }
}

/// The key and IV of one generation. Never printed; overwritten when dropped.
///
/// ```
/// use offload_api::{QuicCipher, QuicKey};
///
/// let key = QuicKey::new(QuicCipher::Aes128Gcm, &[7; 16], [1; 12]).unwrap();
/// assert_eq!((key.key().len(), key.iv()), (16, &[1; 12]));
/// assert!(!format!("{key:?}").contains('7'));
/// assert!(QuicKey::new(QuicCipher::Aes256Gcm, &[7; 16], [1; 12]).is_none(), "too short");
/// ```
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct QuicKey {
    #[zeroize(skip)]
    cipher: QuicCipher,
    key: [u8; 32],
    iv: [u8; 12],
}

impl QuicKey {
    /// A key; `None` if it is not as long as the cipher wants.
    pub fn new(cipher: QuicCipher, key: &[u8], iv: [u8; 12]) -> Option<QuicKey> {
        Some(QuicKey { cipher, key: padded(cipher, key)?, iv })
    }

    /// The algorithm.
    pub fn cipher(&self) -> QuicCipher {
        self.cipher
    }

    /// The cipher's key.
    pub fn key(&self) -> &[u8] {
        &self.key[..self.cipher.key_len()]
    }

    /// What nonces are made from.
    pub fn iv(&self) -> &[u8; 12] {
        &self.iv
    }
}

impl fmt::Debug for QuicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QuicKey({:?}, ..)", self.cipher)
    }
}

/// The key that hides first bytes and numbers, the same for all generations. Never printed; overwritten when dropped.
///
/// ```
/// use offload_api::{QuicCipher, QuicHeaderKey};
///
/// let key = QuicHeaderKey::new(QuicCipher::Aes256Gcm, &[7; 32]).unwrap();
/// assert_eq!(key.key().len(), 32);
/// assert!(QuicHeaderKey::new(QuicCipher::Aes128Gcm, &[7; 32]).is_none(), "too long");
/// ```
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct QuicHeaderKey {
    #[zeroize(skip)]
    cipher: QuicCipher,
    key: [u8; 32],
}

impl QuicHeaderKey {
    /// A key; `None` if it is not as long as the cipher wants.
    pub fn new(cipher: QuicCipher, key: &[u8]) -> Option<QuicHeaderKey> {
        Some(QuicHeaderKey { cipher, key: padded(cipher, key)? })
    }

    /// The algorithm.
    pub fn cipher(&self) -> QuicCipher {
        self.cipher
    }

    /// Its bytes.
    pub fn key(&self) -> &[u8] {
        &self.key[..self.cipher.key_len()]
    }
}

impl fmt::Debug for QuicHeaderKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QuicHeaderKey({:?}, ..)", self.cipher)
    }
}

fn padded(cipher: QuicCipher, key: &[u8]) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    (key.len() == cipher.key_len()).then(|| bytes[..key.len()].copy_from_slice(key))?;
    Some(bytes)
}
