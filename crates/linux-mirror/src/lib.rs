//! Mirrors the SAs, policies and flower filters of a Linux kernel to an emulated NIC, so that unmodified Linux programs
//! control the NIC.
//!
//! ```text
//!   keying daemon, tc, Open vSwitch                            host or switch outside
//!     | netlink                                                  ^ SAs, policies, rules
//!   kernel -- netlink --> Watcher -- messages ==stream==> sa::Mirror, tc::Mirror
//!     ^                                                          |
//!     +-- counters, expiries <-- Agent <==== reports <===========+
//! ```
//!
//! - [`sa`]: SAs and policies, mirrored into a [`Keying`](ipsec::Keying);
//! - [`tc`]: flower filters, mirrored into the rules of a [`nic_switch`];
//! - [`Agent`] (`agent`), [`Channel`], [`NetlinkSocket`], [`MirrorListener`] (`socket`): the only parts that open
//!   sockets and files; [`supervise`] restarts an agent;
//! - [`netlink`]: messages of any netlink family.
//!
//! Keys are overwritten when they are no longer needed, and are never printed.

#![forbid(unsafe_code)]

mod agent;
mod channel;
mod dump;
mod kernel;
pub mod netlink;
pub mod sa;
mod socket;
mod supervise;
pub mod tc;

pub use agent::Agent;
pub use channel::Channel;
pub use dump::KernelError;
pub use kernel::{Family, KernelRead, NetlinkSocket};
pub use socket::{MirrorListener, is_of_owner};
pub use supervise::supervise;

/// The crates of the types in this API, so that a program does not need its own dependency on them.
pub use {ipsec, nic_switch as switch, offload_api as api, offload_base as base};

/// Compiles the README's examples as doctests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
