//! Flower filters of a kernel, mirrored into the switch of an emulated NIC, so that `tc` controls the switch.
//!
//! - [`Watcher`] (`watch`; `links`, `filter`, `actions`, `pedit`): parses the kernel's messages into [`FilterChange`]s,
//!   with rules of [`nic_switch`].
//! - [`Line`], [`Reader`] (`line`): the protocol between agent and mirror, over any stream.
//! - [`Mirror`] (`mirror`): the rules for the switch; the filters left to the kernel, and the reasons
//!   ([`Unsupported`]).

mod actions;
pub(crate) mod agent;
mod filter;
mod line;
mod links;
mod mirror;
mod pedit;
mod unsupported;
mod watch;

pub use line::{BadLine, Line, MOST_BYTES, Place, Reader, Used, VERSION};
pub use mirror::{Mirror, MirrorCounters, Refusal};
pub use unsupported::{Key, Unsupported};
pub use watch::{FilterChange, Watcher};
