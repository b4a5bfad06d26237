//! Packet formats by offsets. Host stacks, IPsec layers and devices use the same parsers, so each header is found once.
//!
//! - [`frame`]: the headers of an Ethernet frame as a stack of layers, and the TCP or UDP payload in it;
//! - [`protocol`]: IP protocol numbers;
//! - [`ip`]: IP headers and extension headers, up to the transport protocol;
//! - [`view`]: the IP headers of a packet, as ESP and IPsec policies use them;
//! - [`fragments`]: facts shown by first fragments, for the later fragments; [`reassembly`]: bounded reassembly of
//!   fragments;
//! - [`tunnel`], [`gtpu`], [`esp`], [`quic`]: headers in front of other packets, readable or encrypted;
//! - [`tls`], [`nvme`]: the headers of stream units that engines track;
//! - [`segment`]: header fields of segments when packets are cut and joined;
//! - [`checksum`]: the Internet checksum, over bytes in pieces, and the checksum fields;
//! - [`flow`]: identifiers of flows.
//!
//! Offsets are in bytes. The offsets of a parsed type lie within the parsed bytes. The crate depends on no socket,
//! device or key.

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

pub use checksum::{InternetSum, native_sum};
pub use flow::{FlowKey, Protocol};
pub use fragments::FragmentMemory;
pub use frame::{Header, HeaderKind, Headers, TransportHeader};
pub use gtpu::{Gtpu, GtpuMessage};
pub use ip::{Fragment, HeaderError, HeaderProblem, IpHeaders, IpVersion, ReportRule};
pub use segment::SegmentPosition;
pub use tunnel::{Geneve, Gre, Vxlan};
pub use view::IpView;

/// Reads a big-endian number at `at`. Returns `None` if the bytes end before.
pub(crate) fn number(bytes: &[u8], at: usize) -> Option<u16> {
    let [high, low] = *bytes.get(at..)?.first_chunk::<2>()?;
    Some(u16::from_be_bytes([high, low]))
}

/// Compiles and runs the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
