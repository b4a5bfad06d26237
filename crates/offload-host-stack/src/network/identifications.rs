//! Identifications of IPv4 packets without a connection (RFC 6864). They group the fragments of a packet.
//!
//! Invariants: identifications to one destination count up, so that none is reused soon. They reveal nothing of the
//! packets to other destinations; otherwise any remote host could learn how much this host sends (RFC 7739 3).

use crate::hash::SipKey;
use core::hash::{BuildHasher, Hasher};
use core::net::Ipv4Addr;
use offload_base::Rng;

/// Generator of identifications: a keyed hash of the addresses, plus one of many counters (RFC 7739 5.3).
#[derive(Debug)]
pub(super) struct Identifications {
    key: SipKey,
    counters: Box<[u16; COUNTERS]>,
}

impl Identifications {
    pub(super) fn new(mut random: Rng) -> Identifications {
        let key = SipKey(random.next_u64(), random.next_u64());
        Identifications { key, counters: Box::new([0; COUNTERS]) }
    }

    /// Returns the first identification for the next `packets` packets of `protocol` from `source` to `destination`.
    pub(super) fn next(&mut self, source: Ipv4Addr, destination: Ipv4Addr, protocol: u8, packets: u16) -> u16 {
        let mut hasher = self.key.build_hasher();
        hasher.write_u64(u64::from(source.to_bits()) << 32 | u64::from(destination.to_bits()));
        hasher.write_u64(protocol.into());
        let hash = hasher.finish();
        // The low bits of the hash are the offset, so the counter is chosen by other bits.
        let counter = &mut self.counters[(hash >> 16) as usize % COUNTERS];
        let first = *counter;
        *counter = first.wrapping_add(packets);
        first.wrapping_add(hash as u16)
    }
}

/// Number of counters. With so many, two destinations rarely share one. If they do, each sees the other's packets in
/// the count, but not the other's offset.
const COUNTERS: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use offload_base::Seed;

    const HERE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

    #[test]
    fn identifications_per_destination_are_independent() {
        let mut identifications = Identifications::new(Seed(1).stream("idents"));
        let [one, another] = [2, 3].map(|last| Ipv4Addr::new(10, 0, 0, last));
        let first = identifications.next(HERE, one, 17, 1);
        for _ in 0..1000 {
            identifications.next(HERE, another, 17, 3);
        }
        assert_eq!(identifications.next(HERE, one, 17, 4), first.wrapping_add(1));
        assert_eq!(identifications.next(HERE, one, 17, 1), first.wrapping_add(5));
        let begins = |seed| Identifications::new(Seed(seed).stream("idents")).next(HERE, one, 17, 1);
        assert_ne!(begins(1), begins(2), "another key gives another start");
    }
}
