//! What routers have said about the packets that paths can take (RFC 1191, RFC 8201).
//!
//! Invariant: at most as many paths as the bound says, each until its ten minutes are over.

use core::net::IpAddr;
use core::time::Duration;
use offload_base::Instant;
use std::collections::BTreeMap;

/// Paths narrower than the interface.
#[derive(Debug, Default)]
pub(crate) struct Paths {
    narrow: BTreeMap<IpAddr, Narrow>,
}

#[derive(Clone, Copy, Debug)]
struct Narrow {
    mtu: u16,
    /// It is narrower still than what will be believed: routers have to fragment, as IPv4's can.
    may_fragment: bool,
    until: Instant,
}

impl Paths {
    /// The largest packet that the path to `destination` takes, if it is known to be narrow; and whether routers may
    /// fragment it.
    pub(crate) fn find(&self, now: Instant, destination: IpAddr) -> Option<(u16, bool)> {
        if self.narrow.is_empty() {
            return None;
        }
        let narrow = self.narrow.get(&destination).filter(|narrow| now < narrow.until)?;
        Some((narrow.mtu, narrow.may_fragment))
    }

    /// A router could not forward a packet of `length` bytes to `destination`, and said it would one of `told` (0: it
    /// did not say). Returns what will be believed; `None` if it makes no sense.
    pub(crate) fn narrow(&mut self, now: Instant, destination: IpAddr, length: u16, told: u16) -> Option<u16> {
        let (told, least) = match destination {
            IpAddr::V4(_) if told == 0 => (plateau_below(length), LEAST),
            IpAddr::V4(_) => (told, LEAST),
            // RFC 8201 4: a path of fewer bytes than every link has is none.
            IpAddr::V6(_) if told < LEAST_IPV6 => return None,
            IpAddr::V6(_) => (told, LEAST_IPV6),
        };
        if told >= length {
            return None;
        }
        let mtu = told.max(least);
        // RFC 8201 4: no router's word makes a path wider. It may be late, or a lie.
        if let Some((known, _)) = self.find(now, destination).filter(|(known, _)| *known < mtu) {
            return Some(known);
        }
        let until = now + LIFETIME;
        if !self.narrow.contains_key(&destination)
            && self.narrow.len() >= PATHS
            && let Some(oldest) = self.narrow.iter().min_by_key(|(_, narrow)| narrow.until).map(|(address, _)| *address)
        {
            self.narrow.remove(&oldest);
        }
        self.narrow.insert(destination, Narrow { mtu, may_fragment: told < least, until });
        Some(mtu)
    }
}

/// RFC 1191 7: the next smaller of the sizes that are common.
fn plateau_below(length: u16) -> u16 {
    PLATEAUS.into_iter().find(|plateau| *plateau < length).unwrap_or(LEAST)
}

/// RFC 1191, table 7-1.
const PLATEAUS: [u16; 10] = [32_000, 17_914, 8_166, 4_352, 2_002, 1_492, 1_006, 508, 296, 68];
/// Linux's min_pmtu: to believe less would let anyone who guesses right make a host send crumbs.
const LEAST: u16 = 552;
/// RFC 8200 5: what every link takes.
const LEAST_IPV6: u16 = 1280;
/// RFC 1191 6.3; Linux's mtu_expires.
const LIFETIME: Duration = Duration::from_secs(600);
/// Paths remembered.
const PATHS: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn believes_what_makes_sense_for_ten_minutes() {
        let (mut paths, to) = (Paths::default(), IpAddr::from([10, 1, 0, 1]));
        let later = Instant::ZERO + Duration::from_secs(601);
        assert_eq!(paths.narrow(Instant::ZERO, to, 1500, 1500), None, "it was not too large");
        assert_eq!(paths.narrow(Instant::ZERO, to, 1500, 1400), Some(1400));
        assert_eq!(paths.find(Instant::ZERO, to), Some((1400, false)));
        assert_eq!(paths.narrow(Instant::ZERO, to, 1500, 1499), Some(1400), "no wider than it was");
        assert_eq!(paths.find(Instant::ZERO, to), Some((1400, false)));
        assert_eq!(paths.find(later, to), None);
        assert_eq!(paths.narrow(later, to, 1500, 0), Some(1492), "the next plateau");
        assert_eq!(paths.narrow(later, to, 1500, 68), Some(552));
        assert_eq!(paths.find(later, to), Some((552, true)));
    }

    #[test]
    fn no_path_of_ipv6_takes_less_than_every_link_does() {
        let (mut paths, to) = (Paths::default(), IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, 1]));
        for nonsense in [0, 68, 1279, 1500] {
            assert_eq!(paths.narrow(Instant::ZERO, to, 1500, nonsense), None);
        }
        assert_eq!(paths.narrow(Instant::ZERO, to, 1500, 1280), Some(1280));
        assert_eq!(paths.find(Instant::ZERO, to), Some((1280, false)));
    }

    fn address(number: u32) -> IpAddr {
        IpAddr::from(number.to_be_bytes())
    }

    #[test]
    fn remembers_a_bounded_number() {
        let mut paths = Paths::default();
        for number in 0..1000 {
            let now = Instant::ZERO + Duration::from_millis(u64::from(number));
            paths.narrow(now, address(number), 1500, 1400);
        }
        assert_eq!(paths.narrow.len(), PATHS);
        assert!(paths.find(Instant::ZERO, address(999)).is_some());
    }
}
