//! Path MTUs reported by routers (RFC 1191, RFC 8201).
//!
//! Invariant: the number of entries is bounded, and each expires after ten minutes.

use core::net::IpAddr;
use core::time::Duration;
use offload_base::Instant;
use std::collections::BTreeMap;

/// Paths with a smaller MTU than the interface.
#[derive(Debug, Default)]
pub(crate) struct PathMtuTable {
    narrow: BTreeMap<IpAddr, PathMtu>,
}

#[derive(Clone, Copy, Debug)]
struct PathMtu {
    mtu: u16,
    /// Whether the reported MTU was below the accepted minimum, so that routers have to fragment (IPv4 only).
    may_fragment: bool,
    until: Instant,
}

impl PathMtuTable {
    /// Returns the path MTU to `destination` and whether routers may fragment. `None` if no smaller MTU is known.
    pub(crate) fn find(&self, now: Instant, destination: IpAddr) -> Option<(u16, bool)> {
        if self.narrow.is_empty() {
            return None;
        }
        let narrow = self.narrow.get(&destination).filter(|narrow| now < narrow.until)?;
        Some((narrow.mtu, narrow.may_fragment))
    }

    /// Processes a report that a packet of `length` bytes to `destination` was too large. `told` is the reported MTU, 0
    /// if none was reported. Returns the new path MTU, or `None` if the report is implausible.
    pub(crate) fn narrow(&mut self, now: Instant, destination: IpAddr, length: u16, told: u16) -> Option<u16> {
        let (told, least) = match destination {
            IpAddr::V4(_) if told == 0 => (plateau_below(length), MIN_IPV4_MTU),
            IpAddr::V4(_) => (told, MIN_IPV4_MTU),
            // RFC 8201 4: no IPv6 link has a smaller MTU than the minimum.
            IpAddr::V6(_) if told < MIN_IPV6_MTU => return None,
            IpAddr::V6(_) => (told, MIN_IPV6_MTU),
        };
        if told >= length {
            return None;
        }
        let mtu = told.max(least);
        // RFC 8201 4: a report never raises the path MTU, because it may be late or forged.
        if let Some((known, _)) = self.find(now, destination).filter(|(known, _)| *known < mtu) {
            return Some(known);
        }
        let until = now + LIFETIME;
        // A flood of forged reports can displace entries, but not grow the table.
        if !self.narrow.contains_key(&destination)
            && self.narrow.len() >= MAX_PATHS
            && let Some(oldest) = self.narrow.iter().min_by_key(|(_, narrow)| narrow.until).map(|(address, _)| *address)
        {
            self.narrow.remove(&oldest);
        }
        self.narrow.insert(destination, PathMtu { mtu, may_fragment: told < least, until });
        Some(mtu)
    }
}

/// Returns the next smaller common MTU (RFC 1191 7).
fn plateau_below(length: u16) -> u16 {
    PLATEAUS.into_iter().find(|plateau| *plateau < length).unwrap_or(MIN_IPV4_MTU)
}

/// Common MTUs (RFC 1191, table 7-1).
const PLATEAUS: [u16; 10] = [32_000, 17_914, 8_166, 4_352, 2_002, 1_492, 1_006, 508, 296, 68];
/// Minimum IPv4 path MTU: Linux's min_pmtu. With a smaller one, a forged report could make a host send tiny segments.
const MIN_IPV4_MTU: u16 = 552;
/// Minimum MTU of every IPv6 link (RFC 8200 5).
const MIN_IPV6_MTU: u16 = 1280;
/// Lifetime of an entry (RFC 1191 6.3; Linux's mtu_expires).
const LIFETIME: Duration = Duration::from_secs(600);
/// Maximum number of entries.
const MAX_PATHS: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plausible_reports_apply_for_ten_minutes() {
        let (mut paths, to) = (PathMtuTable::default(), IpAddr::from([10, 1, 0, 1]));
        let later = Instant::ZERO + Duration::from_secs(601);
        assert_eq!(paths.narrow(Instant::ZERO, to, 1500, 1500), None, "a report of a larger MTU must be ignored");
        assert_eq!(paths.narrow(Instant::ZERO, to, 1500, 1400), Some(1400));
        assert_eq!(paths.find(Instant::ZERO, to), Some((1400, false)));
        assert_eq!(paths.narrow(Instant::ZERO, to, 1500, 1499), Some(1400), "a report must not raise the path MTU");
        assert_eq!(paths.find(Instant::ZERO, to), Some((1400, false)));
        assert_eq!(paths.find(later, to), None);
        assert_eq!(paths.narrow(later, to, 1500, 0), Some(1492), "without a reported MTU, the next plateau is used");
        assert_eq!(paths.narrow(later, to, 1500, 68), Some(552));
        assert_eq!(paths.find(later, to), Some((552, true)));
    }

    #[test]
    fn ipv6_path_mtu_is_at_least_1280() {
        let (mut paths, to) = (PathMtuTable::default(), IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, 1]));
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
    fn number_of_paths_is_bounded() {
        let mut paths = PathMtuTable::default();
        for number in 0..1000 {
            let now = Instant::ZERO + Duration::from_millis(u64::from(number));
            paths.narrow(now, address(number), 1500, 1400);
        }
        assert_eq!(paths.narrow.len(), MAX_PATHS);
        assert!(paths.find(Instant::ZERO, address(999)).is_some());
    }
}
