//! The instruction sets of the back-ends, and their detection.

use crate::Algorithm;

/// An instruction set that a [`Key`](crate::Key) computes with.
///
/// ```
/// use resumable_aead::{Algorithm, Backend};
///
/// let best = Backend::best(Algorithm::Aes128Gcm);
/// assert!(best.is_available(Algorithm::Aes128Gcm));
/// assert!(Backend::Portable.is_available(Algorithm::ChaCha20Poly1305)); // everywhere
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Backend {
    /// Safe Rust over the RustCrypto primitives, on every processor. RustCrypto uses AES, carry-less multiplication and
    /// vector instructions of x86-64 and AArch64 itself if it finds them. ring processes whole messages.
    Portable,
    /// x86-64 with AES-NI and PCLMULQDQ, one block per instruction. AES-GCM and AES-CCM.
    AesNi,
    /// x86-64 with 256-bit vectors: AES-GCM with VAES and VPCLMULQDQ, ChaCha20-Poly1305 with AVX2.
    Avx2,
    /// x86-64 with 512-bit vectors: AES-GCM with VAES and VPCLMULQDQ (AVX-512 F, BW, DQ, VL), ChaCha20-Poly1305 with IFMA
    /// (AVX-512 F, BW, VL, IFMA).
    Avx512,
}

impl Backend {
    /// All back-ends, the fastest last.
    pub const ALL: [Backend; 4] = [Backend::Portable, Backend::AesNi, Backend::Avx2, Backend::Avx512];

    /// Returns the fastest back-end that this processor has for `algorithm`.
    pub fn best(algorithm: Algorithm) -> Backend {
        let available = Backend::ALL.into_iter().rev().find(|backend| backend.is_available(algorithm));
        available.unwrap_or(Backend::Portable)
    }

    /// Tests whether this back-end exists for `algorithm` and this processor has its instructions.
    pub fn is_available(self, algorithm: Algorithm) -> bool {
        match algorithm {
            Algorithm::Aes128Gcm | Algorithm::Aes256Gcm => crate::gcm::is_available(self),
            Algorithm::ChaCha20Poly1305 => crate::chacha::is_available(self),
            Algorithm::Aes128Ccm | Algorithm::Aes256Ccm | Algorithm::Aes128Ccm8 | Algorithm::Aes256Ccm8 => {
                crate::block::is_available(self)
            }
        }
    }
}
