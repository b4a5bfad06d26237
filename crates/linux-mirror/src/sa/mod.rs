//! SAs and policies of a kernel, mirrored into a [`Keying`](ipsec::Keying): an unmodified keying daemon keys the NIC.
//!
//! - [`Watcher`] (`watch`, `xfrm/`): a kernel's messages to [`Change`]s, and [`Report`]s to messages for the kernel;
//! - [`encode`], [`Decoder`] (`frame/`): what both sides say to each other, over any stream;
//! - [`Mirror`] (`mirror`): changes into a [`Keying`](ipsec::Keying); what it refuses, and why.

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
