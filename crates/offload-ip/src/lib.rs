//! IP packets of both families cut and put together again, for a host's stack, an IPsec layer below it and a device.
//!
//! - [`fragmentation`]: packets cut into fragments that a path takes;
//! - [`reassembly`]: fragments put together again, within bounds.
//!
//! Sans-IO; nothing here knows a socket, a neighbour or a route. Headers are [`offload_formats`]' own.

#![forbid(unsafe_code)]

pub mod fragmentation;
pub mod reassembly;

pub use fragmentation::{NotFragmentable, fragment, fragment_own};
pub use reassembly::{Expired, Limits, Reassembler, Refusal, Taken};

/// The README's example runs with the others.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
