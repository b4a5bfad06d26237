//! Packet formats, by offsets: each header is found here once, for a host's stack, an IPsec layer and a device alike.
//!
//! - [`frame`]: the headers of an Ethernet frame as a stack of layers, and the TCP or UDP payload in it;
//! - [`protocol`]: the numbers of IP protocols;
//! - [`ip`]: from an IP header over extension headers to the protocol that the packet carries;
//! - [`view`]: the IP headers of a packet as ESP and its policies use them;
//! - [`fragments`]: what the first fragment of a packet shows of the others; [`reassembly`]: fragments put together again, within
//!   bounds;
//! - [`tunnel`], [`gtpu`], [`esp`], [`quic`]: what carries other packets, readable or encrypted;
//! - [`tls`], [`nvme`]: the units of the streams that engines follow;
//! - [`segment`]: packets cut into segments and joined of them: what is each one's own in the headers;
//! - [`checksum`]: the Internet checksum, over bytes in pieces, and the fields that hold it;
//! - [`flow`]: the name of a flow.
//!
//! Offsets are in bytes. A type that was parsed lies within the bytes that it was parsed from. Nothing here knows a socket,
//! a device or a key.

#![deny(unsafe_code)]

pub mod checksum;
pub mod esp;
pub mod flow;
pub mod fragments;
pub mod frame;
pub mod gtpu;
pub mod ip;
pub mod nvme;
pub mod protocol;
pub mod quic;
pub mod reassembly;
pub mod segment;
pub mod tls;
pub mod tunnel;
pub mod view;

pub use checksum::{Sum, native_sum};
pub use flow::{FlowKey, Protocol};
pub use fragments::Fragments;
pub use frame::{Header, Headers, Kind, Transport};
pub use gtpu::{Gtpu, GtpuMessage};
pub use ip::{Fragment, HeaderError, IpHeaders, Problem, Report, Version};
pub use segment::Segment;
pub use tunnel::{Geneve, Gre, Vxlan};
pub use view::IpView;

/// The number at `at`, the higher byte first; `None` if it is not all there.
pub(crate) fn number(bytes: &[u8], at: usize) -> Option<u16> {
    let [high, low] = *bytes.get(at..)?.first_chunk::<2>()?;
    Some(u16::from_be_bytes([high, low]))
}

/// The README's example runs with the others.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
