//! IPv6 state of the interface: its own addresses, on-link prefixes and routers (RFC 4861 6.3, RFC 4862).
//!
//! With duplicate detection, an address is tentative until a second has passed without an answer to a probe: packets
//! for it are not accepted, and none are sent from it. Advertised information expires after its advertised lifetime.
//!
//! Invariants: the numbers of own addresses, prefixes and routers are bounded, whatever is advertised. Expired
//! information is removed when its deadline is [taken](Six::pop_due).

use crate::config::Ipv6Config;
use core::net::Ipv6Addr;
use core::time::Duration;
use offload_base::{Instant, Rng};

/// The IPv6 state of an interface.
#[derive(Clone, Debug)]
pub(super) struct Ipv6Interface {
    /// Own addresses: the link-local one first, then the configured one if any, then autoconfigured ones.
    own: Vec<OwnAddress>,
    prefixes: Vec<OnLinkPrefix>,
    routers: Vec<DefaultRouter>,
    gateway: Option<Ipv6Addr>,
    /// Link MTU advertised by a router.
    mtu: Option<u16>,
    checks_duplicates: bool,
    hears_routers: bool,
    /// Time of the next router solicitation, and the number of remaining ones.
    solicits: Option<(Instant, u32)>,
    /// Interface identifier: the second half of autoconfigured addresses.
    interface: u64,
}

#[derive(Clone, Copy, Debug)]
struct OwnAddress {
    address: Ipv6Addr,
    state: DadState,
    /// Whether the address was autoconfigured from an advertised prefix.
    advertised: bool,
    deprecated: bool,
    preferred_until: Instant,
    valid_until: Instant,
}

/// State of duplicate detection for an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DadState {
    /// Unconfirmed. `at` is the time of the probe or, after the probe, of the end of the wait.
    Tentative {
        probed: bool,
        at: Instant,
    },
    Assigned,
    /// Another host has the address.
    Duplicate,
}

#[derive(Clone, Copy, Debug)]
struct OnLinkPrefix {
    address: Ipv6Addr,
    bits: u8,
    /// Whether the prefix was configured. Advertisements do not change it.
    fixed: bool,
    until: Instant,
}

#[derive(Clone, Copy, Debug)]
struct DefaultRouter {
    address: Ipv6Addr,
    until: Instant,
}

/// A message that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DiscoveryMessage {
    /// A duplicate-address probe for an address.
    Probe(Ipv6Addr),
    SolicitRouters,
}

/// A prefix option (RFC 4861 4.6.2). Lifetimes are in seconds; all ones means unlimited.
#[derive(Clone, Copy, Debug)]
pub(super) struct AdvertisedPrefix {
    pub(super) address: Ipv6Addr,
    pub(super) bits: u8,
    pub(super) on_link: bool,
    pub(super) autonomous: bool,
    pub(super) valid: u32,
    pub(super) preferred: u32,
}

impl Ipv6Interface {
    pub(super) fn new(config: &Ipv6Config, mac: [u8; 6], mut random: Rng) -> Ipv6Interface {
        // RFC 4862 5.4.2: a random delay prevents hosts that are switched on together from sending at the same time.
        let start = Instant::from_nanos(random.below(MAX_START_DELAY.as_nanos() as u64));
        let checks_duplicates = config.detect_duplicates;
        let link_local = link_local(mac);
        let mut six = Ipv6Interface {
            own: Vec::new(),
            prefixes: Vec::new(),
            routers: Vec::new(),
            gateway: config.gateway,
            mtu: None,
            checks_duplicates,
            hears_routers: config.discover_routers,
            solicits: (config.discover_routers && !checks_duplicates).then_some((start, MAX_SOLICITATIONS)),
            interface: link_local.to_bits() as u64,
        };
        let forever = Instant::MAX;
        six.adopt(link_local, start, false, (forever, forever));
        if !config.address.is_unspecified() {
            six.adopt(config.address, start, false, (forever, forever));
            let bits = config.prefix_len.min(128);
            six.prefixes.push(OnLinkPrefix { address: config.address, bits, fixed: true, until: forever });
        }
        six
    }

    /// Returns whether `address` is assigned to the interface.
    pub(super) fn has(&self, address: Ipv6Addr) -> bool {
        self.assigned().any(|own| own.address == address)
    }

    /// Returns the assigned addresses.
    pub(super) fn addresses(&self) -> impl Iterator<Item = Ipv6Addr> {
        self.assigned().map(|own| own.address)
    }

    /// Returns whether `address` is tentative.
    pub(super) fn is_tentative(&self, address: Ipv6Addr) -> bool {
        self.own.iter().any(|own| own.address == address && matches!(own.state, DadState::Tentative { .. }))
    }

    /// Returns whether `group` is the solicited-node address of an own address, including tentative ones.
    pub(super) fn is_solicited_at(&self, group: Ipv6Addr) -> bool {
        self.own
            .iter()
            .any(|own| own.state != DadState::Duplicate && super::addresses::solicited_node(own.address) == group)
    }

    /// Returns the link-local address, if assigned. It is the source for link-local destinations.
    pub(super) fn link_local(&self) -> Option<Ipv6Addr> {
        self.own.first().filter(|own| own.state == DadState::Assigned).map(|own| own.address)
    }

    /// Returns the source address for `destination` (RFC 6724 5, rules 3 and 8).
    pub(super) fn source_for(&self, destination: Ipv6Addr) -> Option<Ipv6Addr> {
        let common = |own: &&OwnAddress| (own.address.to_bits() ^ destination.to_bits()).leading_zeros();
        let others = self.own.iter().skip(1).filter(|own| own.state == DadState::Assigned);
        others.max_by_key(|own| (!own.deprecated, common(own))).map(|own| own.address)
    }

    /// Returns whether `address` has an on-link prefix.
    pub(super) fn is_on_link(&self, address: Ipv6Addr) -> bool {
        address.is_unicast_link_local()
            || self.prefixes.iter().any(|prefix| shares(prefix.address, address, prefix.bits))
    }

    /// Returns the default router. A configured gateway precedes advertised routers.
    pub(super) fn router(&self) -> Option<Ipv6Addr> {
        self.gateway.or(self.routers.first().map(|router| router.address))
    }

    /// Returns the advertised link MTU.
    pub(super) fn mtu(&self) -> Option<u16> {
        self.mtu
    }

    pub(super) fn discovers_routers(&self) -> bool {
        self.hears_routers
    }

    /// Gives up the tentative `address`, because another host has it.
    pub(super) fn give_up(&mut self, address: Ipv6Addr) {
        let Some(place) = self.own.iter().position(|own| own.address == address) else { return };
        if place == 0 {
            // RFC 4862 5.4.5: the Ethernet address is not unique, so all addresses made of it are duplicates, too.
            self.own.iter_mut().for_each(|own| own.state = DadState::Duplicate);
            self.solicits = None;
        } else {
            self.own[place].state = DadState::Duplicate;
        }
    }

    /// Records a default router at `address` for `lifetime`.
    pub(super) fn note_router(&mut self, now: Instant, address: Ipv6Addr, lifetime: Duration) {
        if !lifetime.is_zero() {
            // RFC 4861 6.3.7: a default router ends the solicitations. A router with lifetime zero is no default
            // router.
            self.solicits = None;
        }
        // A lifetime of zero removes the router (RFC 4861 6.3.4).
        let place = self.routers.iter().position(|router| router.address == address);
        let router = DefaultRouter { address, until: now + lifetime };
        match place {
            Some(place) if lifetime.is_zero() => drop(self.routers.remove(place)),
            Some(place) => self.routers[place] = router,
            None if !lifetime.is_zero() && self.routers.len() < MAX_ROUTERS => self.routers.push(router),
            None => {}
        }
    }

    /// Records the link MTU that a router advertised.
    pub(super) fn note_mtu(&mut self, mtu: u32) {
        // RFC 4861 6.3.4: values below the minimum MTU are ignored. Values above the interface's MTU have no effect.
        if let Some(mtu) = u16::try_from(mtu).ok().filter(|mtu| *mtu >= MIN_MTU) {
            self.mtu = Some(mtu);
        }
    }

    /// Records an advertised prefix.
    pub(super) fn note_prefix(&mut self, now: Instant, prefix: &AdvertisedPrefix) {
        // RFC 4861 6.3.4, RFC 4862 5.5.3 (b, c): such a prefix is invalid.
        let wrong = prefix.address.is_unicast_link_local() || prefix.address.is_multicast() || prefix.bits > 128;
        if wrong || prefix.preferred > prefix.valid {
            return;
        }
        if prefix.on_link {
            self.note_on_link(now, prefix);
        }
        // RFC 4862 5.5.3 (d): an Ethernet interface identifier has 64 bits.
        if prefix.autonomous && prefix.bits == 64 {
            self.note_autonomous(now, prefix);
        }
    }

    fn note_on_link(&mut self, now: Instant, prefix: &AdvertisedPrefix) {
        let until = after(now, prefix.valid);
        let known = |one: &OnLinkPrefix| one.bits == prefix.bits && shares(one.address, prefix.address, prefix.bits);
        match self.prefixes.iter().position(known) {
            Some(place) if self.prefixes[place].fixed => {}
            Some(place) => self.prefixes[place].until = until,
            None if prefix.valid > 0 && self.prefixes.len() < MAX_PREFIXES => {
                self.prefixes.push(OnLinkPrefix { address: prefix.address, bits: prefix.bits, fixed: false, until });
            }
            None => {}
        }
        self.prefixes.retain(|one| one.until > now);
    }

    fn note_autonomous(&mut self, now: Instant, prefix: &AdvertisedPrefix) {
        let (valid, preferred) = (after(now, prefix.valid), after(now, prefix.preferred));
        let known = self.own.iter_mut().find(|own| own.advertised && shares(own.address, prefix.address, 64));
        let Some(own) = known else {
            let address = Ipv6Addr::from_bits(prefix.address.to_bits() >> 64 << 64 | u128::from(self.interface));
            let taken = self.own.iter().any(|own| own.address == address);
            if prefix.valid > 0 && !taken && self.own.len() < MAX_OWN_ADDRESSES {
                self.adopt(address, now, true, (preferred, valid));
            }
            return;
        };
        own.preferred_until = preferred;
        own.deprecated = preferred <= now;
        // RFC 4862 5.5.3 (e): a forged advertisement can shorten the lifetime of an address to two hours, but not
        // below.
        let remaining = own.valid_until - now;
        if prefix.valid == FOREVER || valid - now > MIN_VALID_LIFETIME || valid > own.valid_until {
            own.valid_until = valid;
        } else if remaining > MIN_VALID_LIFETIME {
            own.valid_until = now + MIN_VALID_LIFETIME;
        }
    }

    /// Returns the time at which [`pop_due`](Self::pop_due) must be called.
    pub(super) fn next_event(&self) -> Option<Instant> {
        let of_own = self.own.iter().flat_map(|own| {
            let checked = if let DadState::Tentative { at, .. } = own.state { at } else { Instant::MAX };
            let preferred = if own.deprecated { Instant::MAX } else { own.preferred_until };
            [checked, preferred, own.valid_until]
        });
        let of_others = self.prefixes.iter().map(|prefix| prefix.until);
        let of_routers = self.routers.iter().map(|router| router.until).chain(self.solicits.map(|(at, _)| at));
        of_own.chain(of_others).chain(of_routers).min().filter(|at| *at != Instant::MAX)
    }

    /// Returns the next message due at `now`, and removes expired information.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<DiscoveryMessage> {
        self.own.retain(|own| own.valid_until > now);
        self.prefixes.retain(|prefix| prefix.until > now);
        self.routers.retain(|router| router.until > now);
        let mut due = None;
        // One message per call; the caller repeats the call until nothing is due.
        for (place, own) in self.own.iter_mut().enumerate() {
            own.deprecated |= own.preferred_until <= now;
            match own.state {
                DadState::Tentative { probed: false, at } if at <= now => {
                    own.state = DadState::Tentative { probed: true, at: now + PROBE_WAIT };
                    due = Some(DiscoveryMessage::Probe(own.address));
                }
                DadState::Tentative { probed: true, at } if at <= now => {
                    own.state = DadState::Assigned;
                    if place == 0 && self.hears_routers {
                        self.solicits = Some((now, MAX_SOLICITATIONS));
                    }
                }
                _ => {}
            }
            if due.is_some() {
                return due;
            }
        }
        let (_, left) = self.solicits.filter(|(at, _)| *at <= now)?;
        self.solicits = (left > 1).then_some((now + SOLICITATION_INTERVAL, left - 1));
        Some(DiscoveryMessage::SolicitRouters)
    }

    /// Adds `address`, as tentative if duplicate detection is enabled.
    fn adopt(
        &mut self,
        address: Ipv6Addr,
        at: Instant,
        advertised: bool,
        (preferred_until, valid_until): (Instant, Instant),
    ) {
        let state = if self.checks_duplicates { DadState::Tentative { probed: false, at } } else { DadState::Assigned };
        self.own.push(OwnAddress { address, state, advertised, deprecated: false, preferred_until, valid_until });
    }

    fn assigned(&self) -> impl Iterator<Item = &OwnAddress> {
        self.own.iter().filter(|own| own.state == DadState::Assigned)
    }
}

fn shares(prefix: Ipv6Addr, address: Ipv6Addr, bits: u8) -> bool {
    let host_bits = u128::MAX.checked_shr(u32::from(bits)).unwrap_or(0);
    (address.to_bits() ^ prefix.to_bits()) & !host_bits == 0
}

fn after(now: Instant, seconds: u32) -> Instant {
    if seconds == FOREVER { Instant::MAX } else { now + Duration::from_secs(u64::from(seconds)) }
}

/// Returns the link-local address made of an Ethernet address (RFC 4291, appendix A; RFC 2464 5).
fn link_local(mac: [u8; 6]) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac;
    Ipv6Addr::from_octets([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

/// Unlimited lifetime (RFC 4861 4.6.2).
const FOREVER: u32 = u32::MAX;
/// MAX_RTR_SOLICITATION_DELAY (RFC 4861 10).
const MAX_START_DELAY: Duration = Duration::from_secs(1);
/// RTR_SOLICITATION_INTERVAL (RFC 4861 10).
const SOLICITATION_INTERVAL: Duration = Duration::from_secs(4);
/// MAX_RTR_SOLICITATIONS (RFC 4861 10).
const MAX_SOLICITATIONS: u32 = 3;
/// RETRANS_TIMER (RFC 4861 10).
const PROBE_WAIT: Duration = Duration::from_secs(1);
/// Lifetime below which an unauthenticated advertisement cannot shorten an address's (RFC 4862 5.5.3 (e)).
const MIN_VALID_LIFETIME: Duration = Duration::from_secs(2 * 3600);
/// Minimum MTU of every IPv6 link (RFC 8200 5).
const MIN_MTU: u16 = 1280;
/// Maximum number of own addresses.
const MAX_OWN_ADDRESSES: usize = 16;
/// Maximum number of on-link prefixes.
const MAX_PREFIXES: usize = 16;
/// Maximum number of default routers.
const MAX_ROUTERS: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use offload_base::Seed;

    const HOUR: u32 = 3600;

    fn six(config: Ipv6Config) -> Ipv6Interface {
        Ipv6Interface::new(&config, [2, 0, 0, 0, 0, 1], Seed(1).stream("start"))
    }

    fn prefix(third: u16, valid: u32, preferred: u32) -> AdvertisedPrefix {
        let address = Ipv6Addr::new(0x2001, 0xdb8, third, 0, 0, 0, 0, 0);
        AdvertisedPrefix { address, bits: 64, on_link: true, autonomous: true, valid, preferred }
    }

    fn at(seconds: u32) -> Instant {
        Instant::ZERO + Duration::from_secs(u64::from(seconds))
    }

    #[test]
    fn advertisement_cannot_expire_an_address_at_once() {
        let mut six = six(Ipv6Config::unassigned().with_router_discovery());
        let made: Ipv6Addr = "2001:db8:1::ff:fe00:1".parse().unwrap();
        six.note_prefix(at(0), &prefix(1, 10 * HOUR, 5 * HOUR));
        assert_eq!(six.source_for(made), Some(made));
        six.note_prefix(at(10), &prefix(1, 60, 0));
        six.pop_due(at(10 + 2 * HOUR - 1));
        assert!(six.has(made), "the address is valid for two more hours");
        six.note_prefix(at(2 * HOUR), &prefix(1, 5, 0));
        six.pop_due(at(10 + 2 * HOUR));
        assert!(!six.has(made), "the address expires after two hours");
    }

    #[test]
    fn deprecated_address_is_used_if_there_is_no_other() {
        let mut six = six(Ipv6Config::unassigned().with_router_discovery());
        let [old, new]: [Ipv6Addr; 2] =
            ["2001:db8:1::ff:fe00:1", "2001:db8:2::ff:fe00:1"].map(|text| text.parse().unwrap());
        six.note_prefix(at(0), &prefix(1, 10 * HOUR, 60));
        six.pop_due(at(61));
        assert_eq!(six.source_for(old), Some(old));
        six.note_prefix(at(61), &prefix(2, 10 * HOUR, 5 * HOUR));
        assert_eq!(six.source_for(old), Some(new));
        assert!(six.has(old), "the old address is still assigned");
    }

    #[test]
    fn advertised_state_is_bounded() {
        let mut six = six(Ipv6Config::unassigned().with_router_discovery());
        for number in 0..1000 {
            six.note_prefix(at(0), &prefix(number, 100, 100));
            six.note_router(at(0), Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, number), Duration::from_secs(100));
        }
        assert_eq!(
            (six.own.len(), six.prefixes.len(), six.routers.len()),
            (MAX_OWN_ADDRESSES, MAX_PREFIXES, MAX_ROUTERS)
        );
        assert_eq!(six.next_event(), Some(at(100)));
        six.pop_due(at(100));
        assert_eq!(
            (six.own.len(), six.prefixes.len(), six.routers.len()),
            (1, 0, 0),
            "only the link-local address remains"
        );
        six.note_mtu(1279);
        six.note_mtu(100_000);
        assert_eq!(six.mtu(), None);
    }

    #[test]
    fn routers_are_solicited_until_a_default_router_answers() {
        let mut six = six(Ipv6Config::unassigned().with_router_discovery());
        let solicit = |six: &mut Ipv6Interface| six.next_event().and_then(|at| six.pop_due(at));
        let router = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
        assert_eq!(solicit(&mut six), Some(DiscoveryMessage::SolicitRouters));
        six.note_router(at(2), router, Duration::ZERO);
        assert_eq!(
            solicit(&mut six),
            Some(DiscoveryMessage::SolicitRouters),
            "a router with lifetime zero does not end the search"
        );
        six.note_router(at(6), router, Duration::from_secs(100));
        assert_eq!((solicit(&mut six), six.router()), (None, None), "the router expires, and no solicitation is due");
    }

    #[test]
    fn duplicate_link_local_address_disables_ipv6() {
        let config = Ipv6Config::new("fd00::1".parse().unwrap()).with_duplicate_detection().with_router_discovery();
        let mut six = six(config);
        let own = link_local([2, 0, 0, 0, 0, 1]);
        assert!(six.is_tentative(own) && !six.has(own) && six.source_for(own).is_none());
        six.give_up(own);
        while let Some(at) = six.next_event() {
            assert_eq!(six.pop_due(at), None);
        }
        assert_eq!(six.addresses().count(), 0);
    }
}
