//! The interface's own addresses, and its routes.
//!
//! Invariant: a next hop is another host on this Ethernet: never this host, and never a multicast or broadcast address.

use super::six::{AdvertisedPrefix, DiscoveryMessage, Ipv6Interface};
use crate::config::Config;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::time::Duration;
use offload_api::Prefix;
use offload_base::Instant;

/// The own addresses, on-link prefixes and routes of an interface.
#[derive(Clone, Debug)]
pub(super) struct InterfaceAddresses {
    four: Ipv4Interface,
    six: Option<Ipv6Interface>,
    /// Static routes. The first route that contains a destination is used.
    routes: Vec<(Prefix, Option<IpAddr>)>,
}

#[derive(Clone, Copy, Debug)]
struct Ipv4Interface {
    address: Ipv4Addr,
    prefix_len: u8,
    gateway: Option<Ipv4Addr>,
}

impl InterfaceAddresses {
    pub(super) fn new(config: &Config) -> InterfaceAddresses {
        let (address, prefix_len, gateway) = (config.address, config.prefix_len.min(32), config.gateway);
        let random = config.random.stream("offload-host-stack IPv6");
        let six = config.ipv6.map(|six| Ipv6Interface::new(&six, config.mac, random));
        InterfaceAddresses { four: Ipv4Interface { address, prefix_len, gateway }, six, routes: config.routes.clone() }
    }

    pub(super) fn set_routes(&mut self, routes: Vec<(Prefix, Option<IpAddr>)>) {
        self.routes = routes;
    }

    /// Returns the interface's IPv4 address.
    pub(super) fn four(&self) -> Ipv4Addr {
        self.four.address
    }

    pub(super) fn has_ipv6(&self) -> bool {
        self.six.is_some()
    }

    /// Returns whether `address` is assigned to the interface.
    pub(super) fn is_own(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => address == self.four.address,
            IpAddr::V6(address) => self.six.as_ref().is_some_and(|six| six.has(address)),
        }
    }

    /// Returns whether this host is a member of the multicast group `address`: all nodes, or a solicited-node address
    /// (RFC 4291 2.8).
    pub(super) fn is_member_of(&self, address: Ipv6Addr) -> bool {
        self.six.as_ref().is_some_and(|six| address == ALL_NODES || six.is_solicited_at(address))
    }

    /// Returns the source address for `destination` (RFC 6724 5, rules 2 and 3, as far as there is a choice).
    pub(super) fn source_for(&self, destination: IpAddr) -> Option<IpAddr> {
        match destination {
            IpAddr::V4(_) => Some(IpAddr::V4(self.four.address)),
            IpAddr::V6(address) => {
                let six = self.six.as_ref()?;
                // RFC 6724 5, rule 2: a link-local destination needs a source of the same scope.
                let near = address.is_unicast_link_local() || link_local_multicast(address);
                let source = if near { six.link_local() } else { six.source_for(address) };
                source.map(IpAddr::V6)
            }
        }
    }

    /// Applies the static routes: returns the address that packets for `destination` are routed by.
    pub(super) fn routed(&self, destination: IpAddr) -> IpAddr {
        let route = self.routes.iter().find(|(prefix, _)| prefix.contains(destination));
        route.and_then(|(_, via)| *via).unwrap_or(destination)
    }

    /// Returns the neighbour that is the next hop to `destination`. `known` means that `destination` has a static
    /// neighbour entry.
    pub(super) fn next_hop(&self, destination: IpAddr, known: bool) -> Option<IpAddr> {
        if self.is_own(destination) {
            return None;
        }
        match destination {
            IpAddr::V4(address) => {
                if known || self.is_on_link(destination) {
                    return Some(destination);
                }
                let nobody = address.is_broadcast()
                    || address.is_multicast()
                    || address.is_unspecified()
                    || address.is_loopback();
                let elsewhere = !nobody && !self.four.shares_prefix(address);
                self.four.gateway.filter(|_| elsewhere).map(IpAddr::V4)
            }
            IpAddr::V6(address) => {
                let six = self.six.as_ref()?;
                if known || self.is_on_link(destination) {
                    return Some(destination);
                }
                let elsewhere = is_one_host(address) && !address.is_unicast_link_local();
                six.router().filter(|_| elsewhere).map(IpAddr::V6)
            }
        }
    }

    /// Returns whether another host may have sent from `address`. RFC 1122 3.2.1.3, RFC 4291 2.7: a multicast,
    /// broadcast or unspecified address is no source; and this host's own or loopback addresses never arrive from a
    /// wire.
    pub(super) fn may_be_remote_source(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => {
                let nobody = address.is_broadcast()
                    || address.is_multicast()
                    || address.is_unspecified()
                    || address.is_loopback();
                !nobody && !self.is_own(address.into()) && !self.four.is_network_or_broadcast(address)
            }
            IpAddr::V6(address) => is_one_host(address) && !self.is_own(address.into()),
        }
    }

    /// Returns whether `address` can be another host on this Ethernet.
    pub(super) fn is_on_link(&self, address: IpAddr) -> bool {
        let near = match address {
            IpAddr::V4(address) => self.four.shares_prefix(address) && !self.four.is_network_or_broadcast(address),
            IpAddr::V6(address) => is_one_host(address) && self.six.as_ref().is_some_and(|six| six.is_on_link(address)),
        };
        near && !self.is_own(address)
    }

    /// Returns all assigned addresses.
    pub(super) fn all(&self) -> impl Iterator<Item = IpAddr> {
        let six = self.six.iter().flat_map(|six| six.addresses().map(IpAddr::V6));
        core::iter::once(IpAddr::V4(self.four.address)).chain(six)
    }

    /// Returns whether `address` is tentative.
    pub(super) fn is_tentative(&self, address: Ipv6Addr) -> bool {
        self.six.as_ref().is_some_and(|six| six.is_tentative(address))
    }

    /// Gives up the tentative `address`, because another host has the address.
    pub(super) fn give_up(&mut self, address: Ipv6Addr) {
        self.six.iter_mut().for_each(|six| six.give_up(address));
    }

    /// Returns whether router advertisements are used.
    pub(super) fn discovers_routers(&self) -> bool {
        self.six.as_ref().is_some_and(Ipv6Interface::discovers_routers)
    }

    pub(super) fn note_router(&mut self, now: Instant, router: Ipv6Addr, lifetime: Duration) {
        self.six.iter_mut().for_each(|six| six.note_router(now, router, lifetime));
    }

    pub(super) fn note_mtu(&mut self, mtu: u32) {
        self.six.iter_mut().for_each(|six| six.note_mtu(mtu));
    }

    pub(super) fn note_prefix(&mut self, now: Instant, prefix: &AdvertisedPrefix) {
        self.six.iter_mut().for_each(|six| six.note_prefix(now, prefix));
    }

    /// Returns the advertised link MTU for `destination`.
    pub(super) fn link_mtu(&self, destination: IpAddr) -> Option<u16> {
        self.six.as_ref().filter(|_| destination.is_ipv6())?.mtu()
    }

    pub(super) fn next_event(&self) -> Option<Instant> {
        self.six.as_ref()?.next_event()
    }

    pub(super) fn pop_due(&mut self, now: Instant) -> Option<DiscoveryMessage> {
        self.six.as_mut()?.pop_due(now)
    }
}

impl Ipv4Interface {
    fn host_bits(&self) -> u32 {
        u32::MAX.checked_shr(u32::from(self.prefix_len)).unwrap_or(0)
    }

    /// Returns whether `address` is the network or broadcast address of the local prefix.
    fn is_network_or_broadcast(&self, address: Ipv4Addr) -> bool {
        let host_bits = self.host_bits();
        let host = address.to_bits() & host_bits;
        // RFC 3021: a prefix of 31 bits has neither.
        self.prefix_len < 31 && self.shares_prefix(address) && (host == 0 || host == host_bits)
    }

    fn shares_prefix(&self, address: Ipv4Addr) -> bool {
        (address.to_bits() ^ self.address.to_bits()) & !self.host_bits() == 0
    }
}

/// Returns whether an address can belong to one other host. IPv4-mapped addresses cannot, because they must not appear
/// on a wire (RFC 4038 4.2).
pub(super) fn is_one_host(address: Ipv6Addr) -> bool {
    let nobody = address.is_multicast() || address.is_unspecified() || address.is_loopback();
    !nobody && address.to_ipv4_mapped().is_none()
}

/// Returns the solicited-node multicast address of `address` (RFC 4291 2.7.1).
pub(super) fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., high, low] = address.segments();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | (high & 0xff), low)
}

fn link_local_multicast(address: Ipv6Addr) -> bool {
    address.segments()[0] & 0xff0f == 0xff02
}

/// Multicast address of all nodes (RFC 4291 2.7.1).
pub(super) const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Ipv6Config;
    use offload_base::Seed;

    fn addresses() -> InterfaceAddresses {
        let six = Ipv6Config::new(six("fd00:0:0:7::1")).with_gateway(six("fe80::9"));
        let config = Config::new([10, 0, 0, 1].into(), [0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde], Seed(1));
        InterfaceAddresses::new(&config.with_gateway([10, 0, 0, 9].into()).with_ipv6(six))
    }

    fn six(text: &str) -> Ipv6Addr {
        text.parse().unwrap()
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn link_local_address_follows_rfc_2464() {
        assert!(addresses().is_own(ip("fe80::3656:78ff:fe9a:bcde")));
        assert!(addresses().is_member_of(solicited_node(six("fe80::3656:78ff:fe9a:bcde"))));
        assert_eq!(solicited_node(six("4037::01:800:200e:8c6c")), six("ff02::1:ff0e:8c6c")); // RFC 4291 2.7.1
    }

    #[test]
    fn next_hop_is_the_neighbour_or_the_gateway() {
        let addresses = addresses();
        let hops = [
            ("10.0.0.200", Some("10.0.0.200")),
            ("10.0.1.1", Some("10.0.0.9")),
            ("fd00:0:0:7::2", Some("fd00:0:0:7::2")),
            ("fd00:0:0:8::2", Some("fe80::9")),
            ("fe80::2", Some("fe80::2")),
            ("10.0.0.1", None),
            ("10.0.0.255", None),
            ("224.0.0.1", None),
            ("fd00:0:0:7::1", None),
            ("ff02::1", None),
            ("::", None),
            ("::1", None),
            ("::ffff:10.0.0.2", None),
        ];
        for (to, hop) in hops {
            assert_eq!(addresses.next_hop(ip(to), false), hop.map(ip), "{to}");
        }
    }

    #[test]
    fn static_routes_lead_to_a_tunnels_far_end() {
        let prefix = |text: &str, bits| Prefix::new(ip(text), bits).unwrap();
        let config = Config::new([10, 0, 0, 1].into(), [2, 0, 0, 0, 0, 1], Seed(1))
            .with_route(prefix("10.0.0.65", 32), None)
            .with_route(prefix("10.0.0.64", 26), Some(ip("10.0.0.9")))
            .with_route(prefix("10.0.0.0", 8), Some(ip("192.0.2.1")))
            .with_route(prefix("10.0.0.2", 32), None)
            .with_route(prefix("fd00::", 8), Some(ip("10.0.0.9")));
        let mut addresses = InterfaceAddresses::new(&config);
        let ways = [
            ("10.0.0.2", "192.0.2.1"),
            ("10.0.0.70", "10.0.0.9"),
            ("10.0.0.65", "10.0.0.65"),
            ("fd01::2", "10.0.0.9"),
            ("198.51.100.1", "198.51.100.1"),
        ];
        for (to, way) in ways {
            assert_eq!(addresses.routed(ip(to)), ip(way), "{to}");
        }
        addresses.set_routes(vec![(prefix("10.0.0.0", 8), Some(ip("10.0.0.7")))]);
        assert_eq!(addresses.routed(ip("10.0.0.70")), ip("10.0.0.7"));
        assert_eq!(addresses.routed(ip("fd01::2")), ip("fd01::2"), "the old routes must be gone");
    }

    #[test]
    fn link_local_destination_gets_a_link_local_source() {
        let addresses = addresses();
        assert_eq!(addresses.source_for(ip("fe80::2")), Some(ip("fe80::3656:78ff:fe9a:bcde")));
        assert_eq!(addresses.source_for(ip("fd00:0:0:7::2")), Some(ip("fd00:0:0:7::1")));
        assert_eq!(addresses.source_for(ip("192.0.2.1")), Some(ip("10.0.0.1")));
    }
}
