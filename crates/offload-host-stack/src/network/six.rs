//! The interface's IPv6: its own addresses, who is on its link, and which router is not far (RFC 4861 6.3, RFC 4862).
//!
//! An address that is checked for duplicates is tentative until nobody has answered for a second: packets for it are
//! not this host's, and none leave from it. What a router has said lasts as long as it said.
//!
//! Invariants: own addresses, prefixes and routers are as many as the bounds say, however many are advertised; what is
//! past its time is gone by the time that its deadline is [taken](Six::pop_due).

use crate::config::Ipv6Config;
use core::net::Ipv6Addr;
use core::time::Duration;
use offload_base::{Instant, Rng};

/// What the interface knows of IPv6.
#[derive(Clone, Debug)]
pub(super) struct Six {
    /// The link-local one first, then the configured one, if there is one.
    own: Vec<Own>,
    prefixes: Vec<Prefix>,
    routers: Vec<Router>,
    gateway: Option<Ipv6Addr>,
    /// The largest packet that the link takes, as a router told.
    mtu: Option<u16>,
    checks_duplicates: bool,
    hears_routers: bool,
    /// When routers are asked to say something, and how often still.
    solicits: Option<(Instant, u32)>,
    /// The second half of addresses made here.
    interface: u64,
}

#[derive(Clone, Copy, Debug)]
struct Own {
    address: Ipv6Addr,
    state: State,
    /// Made here from a router's prefix.
    advertised: bool,
    deprecated: bool,
    preferred_until: Instant,
    valid_until: Instant,
}

/// How far the check for duplicates has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Next thing at `at`: the probe, or, if that was sent, its end.
    Tentative {
        probed: bool,
        at: Instant,
    },
    Assigned,
    /// Somebody else has it.
    Duplicate,
}

#[derive(Clone, Copy, Debug)]
struct Prefix {
    address: Ipv6Addr,
    bits: u8,
    /// It was set up, whatever a router says of it.
    fixed: bool,
    until: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Router {
    address: Ipv6Addr,
    until: Instant,
}

/// What is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DueSix {
    /// Whether somebody has this address.
    Probe(Ipv6Addr),
    SolicitRouters,
}

/// A router's word on a prefix (RFC 4861 4.6.2); lifetimes in seconds, all ones for ever.
#[derive(Clone, Copy, Debug)]
pub(super) struct AdvertisedPrefix {
    pub(super) address: Ipv6Addr,
    pub(super) bits: u8,
    pub(super) on_link: bool,
    pub(super) autonomous: bool,
    pub(super) valid: u32,
    pub(super) preferred: u32,
}

impl Six {
    pub(super) fn new(config: &Ipv6Config, mac: [u8; 6], mut random: Rng) -> Six {
        // RFC 4862 5.4.2: hosts that are switched on together do not ask together.
        let start = Instant::from_nanos(random.below(MOST_START_DELAY.as_nanos() as u64));
        let checks_duplicates = config.detect_duplicates;
        let link_local = link_local(mac);
        let mut six = Six {
            own: Vec::new(),
            prefixes: Vec::new(),
            routers: Vec::new(),
            gateway: config.gateway,
            mtu: None,
            checks_duplicates,
            hears_routers: config.discover_routers,
            solicits: (config.discover_routers && !checks_duplicates).then_some((start, SOLICITATIONS)),
            interface: link_local.to_bits() as u64,
        };
        let forever = Instant::MAX;
        six.adopt(link_local, start, false, (forever, forever));
        if !config.address.is_unspecified() {
            six.adopt(config.address, start, false, (forever, forever));
            let bits = config.prefix_len.min(128);
            six.prefixes.push(Prefix { address: config.address, bits, fixed: true, until: forever });
        }
        six
    }

    /// Whether `address` is one of the interface's.
    pub(super) fn has(&self, address: Ipv6Addr) -> bool {
        self.assigned().any(|own| own.address == address)
    }

    /// The addresses that the interface has.
    pub(super) fn addresses(&self) -> impl Iterator<Item = Ipv6Addr> {
        self.assigned().map(|own| own.address)
    }

    /// Whether it would be one, if nobody else has it.
    pub(super) fn is_tentative(&self, address: Ipv6Addr) -> bool {
        self.own.iter().any(|own| own.address == address && matches!(own.state, State::Tentative { .. }))
    }

    /// Whether packets to the multicast address `group` of those who look like one of its own are for it: also while
    /// that one is checked.
    pub(super) fn is_solicited_at(&self, group: Ipv6Addr) -> bool {
        self.own
            .iter()
            .any(|own| own.state != State::Duplicate && super::addresses::solicited_node(own.address) == group)
    }

    /// The address under which somebody on the link is spoken to by his link-local address.
    pub(super) fn link_local(&self) -> Option<Ipv6Addr> {
        self.own.first().filter(|own| own.state == State::Assigned).map(|own| own.address)
    }

    /// The address under which `destination` is spoken to: RFC 6724 5, rules 3 and 8.
    pub(super) fn source_for(&self, destination: Ipv6Addr) -> Option<Ipv6Addr> {
        let common = |own: &&Own| (own.address.to_bits() ^ destination.to_bits()).leading_zeros();
        let others = self.own.iter().skip(1).filter(|own| own.state == State::Assigned);
        others.max_by_key(|own| (!own.deprecated, common(own))).map(|own| own.address)
    }

    /// Whether `address` has a prefix of this link's.
    pub(super) fn is_on_link(&self, address: Ipv6Addr) -> bool {
        address.is_unicast_link_local()
            || self.prefixes.iter().any(|prefix| shares(prefix.address, address, prefix.bits))
    }

    /// Where packets for elsewhere go: what was set up before what was advertised.
    pub(super) fn router(&self) -> Option<Ipv6Addr> {
        self.gateway.or(self.routers.first().map(|router| router.address))
    }

    /// The largest packet that the link takes, if a router said so.
    pub(super) fn mtu(&self) -> Option<u16> {
        self.mtu
    }

    pub(super) fn hears_routers(&self) -> bool {
        self.hears_routers
    }

    /// Somebody else has `address`, which this host was about to take.
    pub(super) fn give_up(&mut self, address: Ipv6Addr) {
        let Some(place) = self.own.iter().position(|own| own.address == address) else { return };
        if place == 0 {
            // RFC 4862 5.4.5: it was made of what should be this interface's alone, and so would be all others.
            self.own.iter_mut().for_each(|own| own.state = State::Duplicate);
            self.solicits = None;
        } else {
            self.own[place].state = State::Duplicate;
        }
    }

    /// The router at `address` takes packets for elsewhere, for as long as `lifetime`.
    pub(super) fn note_router(&mut self, now: Instant, address: Ipv6Addr, lifetime: Duration) {
        if !lifetime.is_zero() {
            // RFC 4861 6.3.7: nobody need be asked any more. One who is no router for elsewhere does not end the search.
            self.solicits = None;
        }
        let place = self.routers.iter().position(|router| router.address == address);
        let router = Router { address, until: now + lifetime };
        match place {
            Some(place) if lifetime.is_zero() => drop(self.routers.remove(place)),
            Some(place) => self.routers[place] = router,
            None if !lifetime.is_zero() && self.routers.len() < ROUTERS => self.routers.push(router),
            None => {}
        }
    }

    /// A router says how large packets may be.
    pub(super) fn note_mtu(&mut self, mtu: u32) {
        // RFC 4861 6.3.4: not less than every link takes; more than the interface takes has no effect.
        if let Some(mtu) = u16::try_from(mtu).ok().filter(|mtu| *mtu >= LEAST_MTU) {
            self.mtu = Some(mtu);
        }
    }

    /// A router says what a prefix is good for.
    pub(super) fn note_prefix(&mut self, now: Instant, prefix: &AdvertisedPrefix) {
        // RFC 4861 6.3.4, RFC 4862 5.5.3 (b, c).
        let wrong = prefix.address.is_unicast_link_local() || prefix.address.is_multicast() || prefix.bits > 128;
        if wrong || prefix.preferred > prefix.valid {
            return;
        }
        if prefix.on_link {
            self.note_on_link(now, prefix);
        }
        // RFC 4862 5.5.3 (d): an interface identifier of Ethernet's has 64 bits.
        if prefix.autonomous && prefix.bits == 64 {
            self.note_autonomous(now, prefix);
        }
    }

    fn note_on_link(&mut self, now: Instant, prefix: &AdvertisedPrefix) {
        let until = after(now, prefix.valid);
        let known = |one: &Prefix| one.bits == prefix.bits && shares(one.address, prefix.address, prefix.bits);
        match self.prefixes.iter().position(known) {
            Some(place) if self.prefixes[place].fixed => {}
            Some(place) => self.prefixes[place].until = until,
            None if prefix.valid > 0 && self.prefixes.len() < PREFIXES => {
                self.prefixes.push(Prefix { address: prefix.address, bits: prefix.bits, fixed: false, until });
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
            if prefix.valid > 0 && !taken && self.own.len() < OWN_ADDRESSES {
                self.adopt(address, now, true, (preferred, valid));
            }
            return;
        };
        own.preferred_until = preferred;
        own.deprecated = preferred <= now;
        // RFC 4862 5.5.3 (e): a forged advertisement may not end an address sooner than in two hours.
        let remaining = own.valid_until - now;
        if prefix.valid == FOREVER || valid - now > LEAST_VALID || valid > own.valid_until {
            own.valid_until = valid;
        } else if remaining > LEAST_VALID {
            own.valid_until = now + LEAST_VALID;
        }
    }

    /// When [`pop_due`](Self::pop_due) has something to tell, or to forget.
    pub(super) fn next_event(&self) -> Option<Instant> {
        let of_own = self.own.iter().flat_map(|own| {
            let checked = if let State::Tentative { at, .. } = own.state { at } else { Instant::MAX };
            let preferred = if own.deprecated { Instant::MAX } else { own.preferred_until };
            [checked, preferred, own.valid_until]
        });
        let of_others = self.prefixes.iter().map(|prefix| prefix.until);
        let of_routers = self.routers.iter().map(|router| router.until).chain(self.solicits.map(|(at, _)| at));
        of_own.chain(of_others).chain(of_routers).min().filter(|at| *at != Instant::MAX)
    }

    /// The next message that is due at `now`. What is past its time is forgotten.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<DueSix> {
        self.own.retain(|own| own.valid_until > now);
        self.prefixes.retain(|prefix| prefix.until > now);
        self.routers.retain(|router| router.until > now);
        let mut due = None;
        for (place, own) in self.own.iter_mut().enumerate() {
            own.deprecated |= own.preferred_until <= now;
            match own.state {
                State::Tentative { probed: false, at } if at <= now => {
                    own.state = State::Tentative { probed: true, at: now + PROBE_WAIT };
                    due = Some(DueSix::Probe(own.address));
                }
                State::Tentative { probed: true, at } if at <= now => {
                    own.state = State::Assigned;
                    if place == 0 && self.hears_routers {
                        self.solicits = Some((now, SOLICITATIONS));
                    }
                }
                _ => {}
            }
            if due.is_some() {
                return due;
            }
        }
        let (_, left) = self.solicits.filter(|(at, _)| *at <= now)?;
        self.solicits = (left > 1).then_some((now + BETWEEN_SOLICITATIONS, left - 1));
        Some(DueSix::SolicitRouters)
    }

    /// Takes `address`, once it has been found to be nobody's, if that is to be found out.
    fn adopt(
        &mut self,
        address: Ipv6Addr,
        at: Instant,
        advertised: bool,
        (preferred_until, valid_until): (Instant, Instant),
    ) {
        let state = if self.checks_duplicates { State::Tentative { probed: false, at } } else { State::Assigned };
        self.own.push(Own { address, state, advertised, deprecated: false, preferred_until, valid_until });
    }

    fn assigned(&self) -> impl Iterator<Item = &Own> {
        self.own.iter().filter(|own| own.state == State::Assigned)
    }
}

fn shares(prefix: Ipv6Addr, address: Ipv6Addr, bits: u8) -> bool {
    let host_bits = u128::MAX.checked_shr(u32::from(bits)).unwrap_or(0);
    (address.to_bits() ^ prefix.to_bits()) & !host_bits == 0
}

fn after(now: Instant, seconds: u32) -> Instant {
    if seconds == FOREVER { Instant::MAX } else { now + Duration::from_secs(u64::from(seconds)) }
}

/// The link-local address of an interface with an Ethernet address (RFC 4291, appendix A; RFC 2464 5).
fn link_local(mac: [u8; 6]) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac;
    Ipv6Addr::from_octets([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

/// RFC 4861 4.6.2: a lifetime without an end.
const FOREVER: u32 = u32::MAX;
/// RFC 4861 10: MAX_RTR_SOLICITATION_DELAY, RTR_SOLICITATION_INTERVAL, MAX_RTR_SOLICITATIONS, RETRANS_TIMER.
const MOST_START_DELAY: Duration = Duration::from_secs(1);
const BETWEEN_SOLICITATIONS: Duration = Duration::from_secs(4);
const SOLICITATIONS: u32 = 3;
const PROBE_WAIT: Duration = Duration::from_secs(1);
/// RFC 4862 5.5.3 (e).
const LEAST_VALID: Duration = Duration::from_secs(2 * 3600);
/// RFC 8200 5.
const LEAST_MTU: u16 = 1280;
/// Bounds on what may be advertised.
const OWN_ADDRESSES: usize = 16;
const PREFIXES: usize = 16;
const ROUTERS: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use offload_base::Seed;

    const HOUR: u32 = 3600;

    fn six(config: Ipv6Config) -> Six {
        Six::new(&config, [2, 0, 0, 0, 0, 1], Seed(1).stream("start"))
    }

    fn prefix(third: u16, valid: u32, preferred: u32) -> AdvertisedPrefix {
        let address = Ipv6Addr::new(0x2001, 0xdb8, third, 0, 0, 0, 0, 0);
        AdvertisedPrefix { address, bits: 64, on_link: true, autonomous: true, valid, preferred }
    }

    fn at(seconds: u32) -> Instant {
        Instant::ZERO + Duration::from_secs(u64::from(seconds))
    }

    #[test]
    fn an_advertisement_cannot_end_an_address_at_once() {
        let mut six = six(Ipv6Config::unassigned().with_router_discovery());
        let made: Ipv6Addr = "2001:db8:1::ff:fe00:1".parse().unwrap();
        six.note_prefix(at(0), &prefix(1, 10 * HOUR, 5 * HOUR));
        assert_eq!(six.source_for(made), Some(made));
        six.note_prefix(at(10), &prefix(1, 60, 0));
        six.pop_due(at(10 + 2 * HOUR - 1));
        assert!(six.has(made), "two hours are left to it");
        six.note_prefix(at(2 * HOUR), &prefix(1, 5, 0));
        six.pop_due(at(10 + 2 * HOUR));
        assert!(!six.has(made), "and no more, whatever is said meanwhile");
    }

    #[test]
    fn an_address_that_is_not_preferred_is_used_when_there_is_no_other() {
        let mut six = six(Ipv6Config::unassigned().with_router_discovery());
        let [old, new]: [Ipv6Addr; 2] =
            ["2001:db8:1::ff:fe00:1", "2001:db8:2::ff:fe00:1"].map(|text| text.parse().unwrap());
        six.note_prefix(at(0), &prefix(1, 10 * HOUR, 60));
        six.pop_due(at(61));
        assert_eq!(six.source_for(old), Some(old));
        six.note_prefix(at(61), &prefix(2, 10 * HOUR, 5 * HOUR));
        assert_eq!(six.source_for(old), Some(new));
        assert!(six.has(old), "it is still this host's");
    }

    #[test]
    fn what_is_advertised_has_bounds() {
        let mut six = six(Ipv6Config::unassigned().with_router_discovery());
        for number in 0..1000 {
            six.note_prefix(at(0), &prefix(number, 100, 100));
            six.note_router(at(0), Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, number), Duration::from_secs(100));
        }
        assert_eq!((six.own.len(), six.prefixes.len(), six.routers.len()), (OWN_ADDRESSES, PREFIXES, ROUTERS));
        assert_eq!(six.next_event(), Some(at(100)));
        six.pop_due(at(100));
        assert_eq!((six.own.len(), six.prefixes.len(), six.routers.len()), (1, 0, 0), "the link-local one stays");
        six.note_mtu(1279);
        six.note_mtu(100_000);
        assert_eq!(six.mtu(), None);
    }

    #[test]
    fn routers_are_asked_for_until_one_takes_packets() {
        let mut six = six(Ipv6Config::unassigned().with_router_discovery());
        let solicit = |six: &mut Six| six.next_event().and_then(|at| six.pop_due(at));
        let router = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
        assert_eq!(solicit(&mut six), Some(DueSix::SolicitRouters));
        six.note_router(at(2), router, Duration::ZERO);
        assert_eq!(solicit(&mut six), Some(DueSix::SolicitRouters), "a lifetime of zero is no router's");
        six.note_router(at(6), router, Duration::from_secs(100));
        assert_eq!((solicit(&mut six), six.router()), (None, None), "it is forgotten at its end, and nobody was asked");
    }

    #[test]
    fn whoever_finds_its_link_local_address_taken_speaks_no_ipv6() {
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
