//! Flower filters of a kernel, mirrored into the switch of an emulated NIC: `tc` steers it.
//!
//! - [`Watcher`] (`watch`; `links`, `filter`, `actions`, `pedit`): a kernel's messages to [`FilterChange`]s, with rules of
//!   [`nic_switch`];
//! - [`Line`], [`Reader`] (`line`): what both sides say to each other, over any stream;
//! - [`Mirror`] (`mirror`): what the switch is to have; what is left to the kernel, and why ([`Unsupported`]).

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
