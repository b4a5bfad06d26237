//! IP packets of both families, for whoever has to look into them: a host's stack, an IPsec layer below it, a device.
//!
//! - [`headers`]: from an IP header over extension headers to what the packet carries;
//! - [`checksum`]: the Internet checksum over bytes in pieces;
//! - [`fragmentation`]: packets cut into fragments that a path takes;
//! - [`reassembly`]: fragments put together again, within bounds.
//!
//! Sans-IO; nothing here knows a socket, a neighbour or a route.

#![deny(unsafe_code)]

pub mod checksum;
pub mod fragmentation;
pub mod headers;
pub mod reassembly;

pub use checksum::{Sum, native_sum};
pub use fragmentation::{NotFragmentable, fragment, fragment_own};
pub use headers::{Fragment, HeaderError, IpHeaders, Problem, Report, Version};
pub use reassembly::{Expired, Limits, Reassembler, Refusal, Taken};
