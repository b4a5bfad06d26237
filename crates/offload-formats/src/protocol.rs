//! IP protocol numbers, which IPv6 calls next-header values (IANA, "Assigned Internet Protocol Numbers").
//!
//! ```
//! use offload_formats::{IpHeaders, protocol};
//!
//! let packet = [0x45, 0, 0, 20, 0, 0, 0, 0, 64, protocol::ESP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
//! assert_eq!(IpHeaders::parse(&packet)?.protocol, protocol::ESP);
//! # Ok::<(), offload_formats::HeaderError>(())
//! ```

/// Hop-by-hop options of IPv6 (RFC 8200 4.3).
pub const HOP_BY_HOP: u8 = 0;
/// ICMP for IPv4 (RFC 792).
pub const ICMP: u8 = 1;
/// An IPv4 packet in another packet (RFC 2003).
pub const IPV4: u8 = 4;
/// TCP (RFC 9293).
pub const TCP: u8 = 6;
/// UDP (RFC 768).
pub const UDP: u8 = 17;
/// DCCP (RFC 4340).
pub const DCCP: u8 = 33;
/// An IPv6 packet in another packet (RFC 2473).
pub const IPV6: u8 = 41;
/// The routing header of IPv6 (RFC 8200 4.4).
pub const ROUTING: u8 = 43;
/// The fragment header of IPv6 (RFC 8200 4.5).
pub const FRAGMENT: u8 = 44;
/// GRE (RFC 2784).
pub const GRE: u8 = 47;
/// ESP (RFC 4303).
pub const ESP: u8 = 50;
/// ICMPv6 (RFC 4443).
pub const ICMPV6: u8 = 58;
/// No next header (RFC 8200 4.7). In ESP, a dummy packet (RFC 4303 2.6).
pub const NO_NEXT_HEADER: u8 = 59;
/// Destination options of IPv6 (RFC 8200 4.6).
pub const DESTINATION_OPTIONS: u8 = 60;
/// SCTP (RFC 9260).
pub const SCTP: u8 = 132;
/// UDP-Lite (RFC 3828).
pub const UDP_LITE: u8 = 136;
