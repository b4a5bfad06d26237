//! Mirrors the SAs and policies of a Linux kernel into a [`Keying`](ipsec::Keying): an unmodified keying daemon keys the NIC.
//!
//! ```text
//!   daemon (strongSwan, Libreswan, ip xfrm)                      host or switch outside
//!     | netlink                                                    | Keying
//!   kernel -- netlink --> Watcher --> Message, encode ==stream==> Decoder --> Mirror
//!     ^                                                                        |
//!     +------ counters, expiries <-- Agent <====================== Report <----+
//! ```
//!
//! - [`Watcher`] (`watch`, `netlink/`): a kernel's messages to [`Change`]s, and [`Report`]s to messages for the kernel;
//! - [`encode`], [`Decoder`] (`frame/`): what both sides say to each other, over any stream;
//! - [`Mirror`] (`mirror`): changes into a [`Keying`](ipsec::Keying); what it refuses, and why;
//! - [`Agent`] (`agent`), [`Channel`], [`Kernel`], [`Listener`] (`socket`): the only parts that open anything; [`supervise`] keeps an agent going;
//! - [`netlink`]: messages of any netlink, for agents of other kinds, which have [`Kernel`] and [`Channel`] from here too.
//!
//! Keys are overwritten when they are no longer needed, and nothing prints them.

#![forbid(unsafe_code)]

mod agent;
mod change;
mod channel;
mod frame;
mod kernel;
mod mirror;
pub mod netlink;
mod socket;
mod supervise;
mod watch;

pub use agent::Agent;
pub use change::{Change, MirroredPolicy, MirroredSa, Report, SaName, Unsupported, Used};
pub use channel::Channel;
pub use frame::{Decoder, FrameError, MOST_BYTES, Message, VERSION, encode};
pub use kernel::{Family, Heard, Kernel};
pub use mirror::{Mirror, MirrorCounters, Refusal};
pub use socket::{Listener, is_of_owner};
pub use supervise::supervise;
pub use watch::{KernelRefused, Watcher};

/// The crates whose types appear here, so that a program needs no other in its Cargo.toml.
pub use {offload_api as api, offload_base as base};

/// The README's example runs with the others.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
