//! SAs and policies of a kernel, mirrored into a [`Keying`](ipsec::Keying), so that an unmodified keying daemon keys
//! the NIC.
//!
//! - [`SaWatcher`] (`watch`, `xfrm/`): parses the kernel's messages into [`SaChange`]s, and turns [`SaReport`]s into
//!   messages for the kernel.
//! - [`encode`], [`FrameDecoder`] (`frame/`): the protocol between agent and mirror, over any stream.
//! - [`SaMirror`] (`mirror`): applies changes to a [`Keying`](ipsec::Keying), and reports refusals.

pub(crate) mod agent;
mod change;
mod frame;
mod mirror;
mod watch;
mod xfrm;

pub use change::{KernelSaId, KernelSaUse, MirroredPolicy, MirroredSa, SaChange, SaReport, UnsupportedSa};
pub use frame::{FrameDecoder, FrameError, MAX_FRAME_BYTES, Message, VERSION, encode};
pub use mirror::{SaMirror, SaMirrorCounters, SaMirrorRefusal};
pub use watch::SaWatcher;
