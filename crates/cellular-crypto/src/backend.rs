//! Instruction sets, and detection of the processor's.

use crate::lane::Lane;
use crate::run::{self, GeneratorKind};
use crate::words::Words;
#[cfg(target_arch = "x86_64")]
use crate::words::avx2::{self, Avx2};
#[cfg(target_arch = "x86_64")]
use crate::words::avx512::{self, Avx512};
use crate::words::portable::Portable;

/// A set of instructions that an [`Engine`](crate::Engine) computes with.
///
/// ```
/// use cellular_crypto::Backend;
///
/// assert!(Backend::best().is_available());
/// assert!(Backend::Portable.is_available()); // everywhere
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Backend {
    /// Safe Rust, on every processor. RustCrypto's POLYVAL detects and uses carry-less multiplication of x86-64 and
    /// AArch64 itself. AES comes from `resumable-aead`, which uses the fastest instructions of the processor with every
    /// back-end.
    Portable,
    /// x86-64 with AVX2, AES-NI and PCLMULQDQ: eight messages side by side.
    Avx2,
    /// x86-64 with AVX-512 (F, BW, DQ, VL, VBMI, VBMI2), GFNI, VAES and VPCLMULQDQ: sixteen messages side by side.
    Avx512,
}

impl Backend {
    /// All back-ends, the fastest last.
    pub const ALL: [Backend; 3] = [Backend::Portable, Backend::Avx2, Backend::Avx512];

    /// Returns the fastest back-end that this processor supports.
    pub fn best() -> Backend {
        Backend::ALL.into_iter().rev().find(|backend| backend.is_available()).unwrap_or(Backend::Portable)
    }

    /// Tests whether this processor has the back-end's instructions.
    pub fn is_available(self) -> bool {
        match self {
            Backend::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Backend::Avx2 => avx2::Proof::detect().is_some(),
            #[cfg(target_arch = "x86_64")]
            Backend::Avx512 => avx512::Proof::detect().is_some(),
            #[cfg(not(target_arch = "x86_64"))]
            Backend::Avx2 | Backend::Avx512 => false,
        }
    }

    /// Runs the generators of any number of messages, up to the number of lanes at a time.
    pub(crate) fn run(self, stream: GeneratorKind, lanes: &mut [Lane<'_>]) {
        #[cfg(target_arch = "x86_64")]
        match self {
            Backend::Avx2 => {
                if let Some(proof) = avx2::Proof::detect() {
                    return lanes.chunks_mut(Avx2::LANES).for_each(|lanes| avx2::run(proof, stream, lanes));
                }
            }
            Backend::Avx512 => {
                if let Some(proof) = avx512::Proof::detect() {
                    return lanes.chunks_mut(Avx512::LANES).for_each(|lanes| avx512::run(proof, stream, lanes));
                }
            }
            Backend::Portable => {}
        }
        lanes.chunks_mut(Portable::LANES).for_each(|lanes| run::run::<Portable>((), stream, lanes));
    }
}
