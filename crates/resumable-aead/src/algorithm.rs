//! The algorithms, their lengths and limits.

/// Length of a nonce in bytes, the same for all algorithms here.
pub const NONCE_LEN: usize = 12;

/// Length in bytes of the longest tag. Every algorithm here has it, except the two with names in `Ccm8`.
pub const TAG_LEN: usize = 16;

/// An AEAD with a 12-byte nonce and a tag of 16 or 8 bytes.
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
    /// AES-128 in CCM with tags of 16 bytes (RFC 3610, NIST SP 800-38C; RFC 5116's AEAD_AES_128_CCM).
    Aes128Ccm,
    /// AES-256 in CCM with tags of 16 bytes.
    Aes256Ccm,
    /// AES-128 in CCM with tags of 8 bytes (RFC 6655's AEAD_AES_128_CCM_8).
    Aes128Ccm8,
    /// AES-256 in CCM with tags of 8 bytes.
    Aes256Ccm8,
}

impl Algorithm {
    /// All algorithms.
    pub const ALL: [Algorithm; 7] = [
        Algorithm::Aes128Gcm,
        Algorithm::Aes256Gcm,
        Algorithm::ChaCha20Poly1305,
        Algorithm::Aes128Ccm,
        Algorithm::Aes256Ccm,
        Algorithm::Aes128Ccm8,
        Algorithm::Aes256Ccm8,
    ];

    /// Returns the length of the key in bytes.
    pub const fn key_len(self) -> usize {
        match self {
            Algorithm::Aes128Gcm | Algorithm::Aes128Ccm | Algorithm::Aes128Ccm8 => 16,
            Algorithm::Aes256Gcm | Algorithm::ChaCha20Poly1305 | Algorithm::Aes256Ccm | Algorithm::Aes256Ccm8 => 32,
        }
    }

    /// Returns the length of the tag in bytes. If it is less than [`TAG_LEN`], zeros follow the tag in the arrays that this crate
    /// accepts and returns.
    pub const fn tag_len(self) -> usize {
        match self {
            Algorithm::Aes128Ccm8 | Algorithm::Aes256Ccm8 => 8,
            _ => TAG_LEN,
        }
    }

    /// Tests whether a message begins with its length. If so, [`State::with_len`](crate::State::with_len) must begin a message
    /// that arrives in pieces.
    pub const fn needs_len(self) -> bool {
        matches!(self, Algorithm::Aes128Ccm | Algorithm::Aes256Ccm | Algorithm::Aes128Ccm8 | Algorithm::Aes256Ccm8)
    }

    /// Returns the length in bytes of the longest message that one nonce can protect. The block counter bounds it, or, for CCM, the
    /// length field in the first block.
    pub const fn message_len_max(self) -> u64 {
        match self {
            // SP 800-38D 5.2.1.1: at most 2^39 - 256 bits. Counter 1 masks the tag, 2 to 2^32 - 1 the message.
            Algorithm::Aes128Gcm | Algorithm::Aes256Gcm => ((1 << 32) - 2) * 16,
            // RFC 8439 2.8: counter 0 makes the one-time key, 1 to 2^32 - 1 are the message's.
            Algorithm::ChaCha20Poly1305 => ((1 << 32) - 1) * 64,
            // RFC 5116 5.3: a nonce of 12 bytes leaves 3 for the length.
            Algorithm::Aes128Ccm | Algorithm::Aes256Ccm | Algorithm::Aes128Ccm8 | Algorithm::Aes256Ccm8 => {
                (1 << 24) - 1
            }
        }
    }
}
