//! Mirrors the flower filters of a Linux kernel into the switch of an emulated NIC: `tc` steers it.
//!
//! ```text
//!   tc, ovs-vswitchd                                             the switch outside
//!     | netlink                                                    ^ rules
//!   kernel -- netlink --> Watcher --> Line ==stream==> Reader --> Mirror
//!                                      Agent <======== what rules did
//! ```
//!
//! - [`Watcher`] (`watch`; `links`, `filter`, `actions`, `pedit`): a kernel's messages to [`FilterChange`]s, with rules of
//!   [`nic_switch`];
//! - [`Line`], [`Reader`] (`line`): what both sides say to each other, over any stream;
//! - [`Mirror`] (`mirror`): what the switch is to have; what is left to the kernel, and why ([`Unsupported`]);
//! - [`Agent`] (`agent`): the only part that opens anything.

#![forbid(unsafe_code)]

mod actions;
mod agent;
mod filter;
mod line;
mod links;
mod mirror;
mod pedit;
mod unsupported;
mod watch;

pub use agent::Agent;
pub use line::{BadLine, Line, MOST_BYTES, Place, Reader, Used, VERSION};
pub use mirror::{Mirror, MirrorCounters, Refusal};
pub use unsupported::{Key, Unsupported};
pub use watch::{FilterChange, KernelRefused, Watcher};

/// The crates whose types appear here, so that a program needs no other in its Cargo.toml.
pub use {nic_switch as switch, offload_base as base};

/// The README's example runs with the others.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
