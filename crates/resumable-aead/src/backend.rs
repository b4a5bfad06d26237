//! Which instructions do the work, and whether this processor has them.

use crate::Algorithm;

/// A set of instructions that a [`Key`](crate::Key) computes with.
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
    /// Safe Rust over the RustCrypto primitives, on every processor. (These use AES, carry-less multiplication and
    /// vector instructions of x86-64 and AArch64 themselves where they find them.) Whole messages go by ring.
    Portable,
    /// x86-64 with AES-NI and PCLMULQDQ, one block per instruction. AES-GCM only.
    AesNi,
    /// x86-64 with VAES and VPCLMULQDQ on 256-bit vectors. AES-GCM only.
    Avx2,
    /// x86-64 with VAES and VPCLMULQDQ on 512-bit vectors (AVX-512 F, BW, DQ, VL). AES-GCM only.
    Avx512,
}

impl Backend {
    /// All back-ends, the fastest last.
    pub const ALL: [Backend; 4] = [Backend::Portable, Backend::AesNi, Backend::Avx2, Backend::Avx512];

    /// The fastest back-end that this processor has for `algorithm`.
    pub fn best(algorithm: Algorithm) -> Backend {
        let available = Backend::ALL.into_iter().rev().find(|backend| backend.is_available(algorithm));
        available.unwrap_or(Backend::Portable)
    }

    /// Whether this back-end exists for `algorithm` and this processor has its instructions.
    pub fn is_available(self, algorithm: Algorithm) -> bool {
        match algorithm {
            Algorithm::Aes128Gcm | Algorithm::Aes256Gcm => crate::gcm::is_available(self),
            Algorithm::ChaCha20Poly1305 => crate::chacha::is_available(self),
        }
    }
}
