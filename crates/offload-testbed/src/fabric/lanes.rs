//! Several wires between two ports, as between two multihomed hosts. A frame's destination address selects its wire.

use core::net::{IpAddr, Ipv6Addr};
use offload_formats::Headers;

/// Maximum number of wires between two ports: a testbed host has as many addresses.
pub(crate) const MAX_LANES: usize = 3;

/// Returns the wire that a frame takes. IPv4 and non-IP frames take the first wire, IPv6 frames the second, and frames
/// to link-local and multicast IPv6 addresses the third. If there are fewer wires, the last wire carries the rest.
pub(super) fn lane_of(frame: &[u8], lanes: usize) -> usize {
    let to = Headers::parse(frame).network().map(|(version, at)| version.addresses(&frame[at..]).1);
    let lane = match to {
        Some(IpAddr::V6(to)) if to.is_unicast_link_local() || to.is_multicast() => 2,
        Some(IpAddr::V6(_)) => 1,
        _ => 0,
    };
    lane.min(lanes - 1)
}

/// Derives the link-local IPv6 address from an Ethernet address (RFC 4291 2.5.6, appendix A).
pub(crate) fn link_local([a, b, c, d, e, f]: [u8; 6]) -> Ipv6Addr {
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}
