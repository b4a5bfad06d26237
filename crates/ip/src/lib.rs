//! IP packets of both families, for whoever has to look into them: a host's stack, an IPsec layer below it, a device.
//!
//! - [`headers`]: from an IP header over extension headers to what the packet carries;
//! - [`checksum`]: the Internet checksum over bytes in pieces.
//!
//! Sans-IO, and without state of its own; nothing here knows a socket, a neighbour or a route.

#![forbid(unsafe_code)]

pub mod checksum;
pub mod headers;

pub use checksum::Sum;
pub use headers::{Fragment, HeaderError, IpHeaders, Problem, Report, Version};
