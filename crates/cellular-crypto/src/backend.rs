//! Which instructions do the work, and whether this processor has them.

use crate::lane::Lane;
use crate::run::{self, Stream};
use crate::words::Words;
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
    /// Safe Rust, on every processor. (AES and POLYVAL are RustCrypto's, which use AES and carry-less multiplication of
    /// x86-64 and AArch64 themselves where they find them.)
    Portable,
}

impl Backend {
    /// All back-ends, the fastest last.
    pub const ALL: [Backend; 1] = [Backend::Portable];

    /// The fastest back-end that this processor has.
    pub fn best() -> Backend {
        Backend::ALL.into_iter().rev().find(|backend| backend.is_available()).unwrap_or(Backend::Portable)
    }

    /// Whether this processor has the back-end's instructions.
    pub fn is_available(self) -> bool {
        match self {
            Backend::Portable => true,
        }
    }

    /// How many messages a call of [`Backend::run`] takes.
    pub(crate) fn lanes(self) -> usize {
        match self {
            Backend::Portable => Portable::LANES,
        }
    }

    /// Runs the generators of at most [`Backend::lanes`] messages. The back-end is available.
    pub(crate) fn run(self, stream: Stream, lanes: &mut [Lane<'_>]) {
        match self {
            Backend::Portable => run::run::<Portable>((), stream, lanes),
        }
    }
}
