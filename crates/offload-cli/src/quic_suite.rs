//! What the ciphers of QUIC's packets are called.

use clap::ValueEnum;
use offload_api::QuicCipher;

/// A cipher of QUIC's packets, as an option's value.
///
/// ```
/// use clap::ValueEnum;
/// use offload_cli::quic_suite::QuicSuite;
/// use offload_api::QuicCipher;
///
/// let suite = QuicSuite::from_str("aes128-ccm", false).unwrap();
/// assert_eq!(QuicCipher::from(suite), QuicCipher::Aes128Ccm);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum QuicSuite {
    /// AES-128-GCM
    #[value(name = "aes128-gcm")]
    Aes128Gcm,
    /// AES-256-GCM
    #[value(name = "aes256-gcm")]
    Aes256Gcm,
    /// AES-128-CCM
    #[value(name = "aes128-ccm")]
    Aes128Ccm,
    /// ChaCha20-Poly1305
    #[value(name = "chacha20-poly1305")]
    ChaCha20Poly1305,
}

impl From<QuicSuite> for QuicCipher {
    fn from(suite: QuicSuite) -> QuicCipher {
        match suite {
            QuicSuite::Aes128Gcm => QuicCipher::Aes128Gcm,
            QuicSuite::Aes256Gcm => QuicCipher::Aes256Gcm,
            QuicSuite::Aes128Ccm => QuicCipher::Aes128Ccm,
            QuicSuite::ChaCha20Poly1305 => QuicCipher::ChaCha20Poly1305,
        }
    }
}
