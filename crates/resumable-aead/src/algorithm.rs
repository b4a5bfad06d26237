//! The algorithms, their lengths and limits.

/// Length of a nonce in bytes, the same for all algorithms here.
pub const NONCE_LEN: usize = 12;

/// Length of a tag in bytes, the same for all algorithms here.
pub const TAG_LEN: usize = 16;

/// Length in bytes of the longest key.
pub const KEY_LEN_MAX: usize = 32;

/// An AEAD with a 12-byte nonce and a 16-byte tag.
///
/// ```
/// use resumable_aead::Algorithm;
///
/// assert_eq!(Algorithm::Aes256Gcm.key_len(), 32);
/// assert_eq!(Algorithm::Aes256Gcm.message_len_max(), (1 << 36) - 32);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Algorithm {
    /// AES-128 in Galois/Counter Mode (NIST SP 800-38D).
    Aes128Gcm,
    /// AES-256 in Galois/Counter Mode (NIST SP 800-38D).
    Aes256Gcm,
    /// ChaCha20 and Poly1305 (RFC 8439).
    ChaCha20Poly1305,
}

impl Algorithm {
    /// All algorithms.
    pub const ALL: [Algorithm; 3] = [Algorithm::Aes128Gcm, Algorithm::Aes256Gcm, Algorithm::ChaCha20Poly1305];

    /// Length of the key in bytes.
    pub const fn key_len(self) -> usize {
        match self {
            Algorithm::Aes128Gcm => 16,
            Algorithm::Aes256Gcm | Algorithm::ChaCha20Poly1305 => 32,
        }
    }

    /// Length in bytes of the longest message that one nonce can protect: where the 32-bit block counter ends.
    pub const fn message_len_max(self) -> u64 {
        match self {
            // SP 800-38D 5.2.1.1: at most 2^39 - 256 bits. Counter 1 masks the tag, 2 to 2^32 - 1 the message.
            Algorithm::Aes128Gcm | Algorithm::Aes256Gcm => ((1 << 32) - 2) * 16,
            // RFC 8439 2.8: counter 0 makes the one-time key, 1 to 2^32 - 1 are the message's.
            Algorithm::ChaCha20Poly1305 => ((1 << 32) - 1) * 64,
        }
    }
}
