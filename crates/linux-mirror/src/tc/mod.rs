//! Flower filters of a kernel, mirrored into the switch of an emulated NIC, so that `tc` controls the switch.
//!
//! - [`FilterWatcher`] (`watch`; `links`, `filter`, `actions`, `pedit`): parses the kernel's messages into
//!   [`FilterChange`]s, with rules of [`nic_switch`].
//! - [`FilterLine`], [`LineReader`] (`line`): the protocol between agent and mirror, over any stream.
//! - [`FilterMirror`] (`mirror`): the rules for the switch; the filters left to the kernel, and the reasons
//!   ([`UnsupportedFilter`]).

mod actions;
pub(crate) mod agent;
mod filter;
mod line;
mod links;
mod mirror;
mod pedit;
mod unsupported;
mod watch;

pub use line::{FilterLine, LineError, LineReader, MAX_LINE_BYTES, RuleId, RuleUse, VERSION};
pub use mirror::{FilterMirror, FilterMirrorCounters, FilterRefusal};
pub use unsupported::{FlowerKey, UnsupportedFilter};
pub use watch::{FilterChange, FilterWatcher};
