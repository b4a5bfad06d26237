//! SAs and policies of a kernel, mirrored into a [`Keying`](ipsec::Keying), so that an unmodified keying daemon keys
//! the NIC.
//!
//! - [`Watcher`] (`watch`, `xfrm/`): parses the kernel's messages into [`Change`]s, and turns [`Report`]s into messages
//!   for the kernel.
//! - [`encode`], [`Decoder`] (`frame/`): the protocol between agent and mirror, over any stream.
//! - [`Mirror`] (`mirror`): applies changes to a [`Keying`](ipsec::Keying), and reports refusals.

pub(crate) mod agent;
mod change;
mod frame;
mod mirror;
mod watch;
mod xfrm;

pub use change::{Change, MirroredPolicy, MirroredSa, Report, SaName, Unsupported, Used};
pub use frame::{Decoder, FrameError, MOST_BYTES, Message, VERSION, encode};
pub use mirror::{Mirror, MirrorCounters, Refusal};
pub use watch::Watcher;
