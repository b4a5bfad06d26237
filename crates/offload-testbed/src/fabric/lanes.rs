//! Several wires between two ports, as between two multihomed hosts: which of them a frame takes goes by its destination.

use core::net::{IpAddr, Ipv6Addr};
use offload_formats::Headers;

/// The most wires between two ports: a host of a testbed has as many addresses.
pub(crate) const MOST_LANES: usize = 3;

/// The wire that a frame takes: what goes to IPv4 addresses, and all that is no IPv6, the first; IPv6 the second, but for
/// link-local addresses and groups, which are the third's. Those beyond the last take the last.
pub(super) fn lane_of(frame: &[u8], lanes: usize) -> usize {
    let to = Headers::parse(frame).network().map(|(version, at)| version.addresses(&frame[at..]).1);
    let lane = match to {
        Some(IpAddr::V6(to)) if to.is_unicast_link_local() || to.is_multicast() => 2,
        Some(IpAddr::V6(_)) => 1,
        _ => 0,
    };
    lane.min(lanes - 1)
}

/// The address that IPv6 makes of an Ethernet address (RFC 4291 2.5.6, appendix A).
pub(crate) fn link_local([a, b, c, d, e, f]: [u8; 6]) -> Ipv6Addr {
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}
