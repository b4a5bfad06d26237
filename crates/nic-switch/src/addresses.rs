//! The table of learned Ethernet addresses and their ports.
//!
//! Invariant: each port has a bounded number of entries, so a virtual machine with forged addresses evicts only its own
//! entries. A function's own address is always at that function's port.

use crate::matching::Mac;
use crate::port::Vport;
use core::time::Duration;
use offload_base::Instant;
use std::collections::{HashMap, VecDeque};

/// An address in a VLAN (0: no VLAN).
pub(crate) type VlanAddress = (u16, Mac);

#[derive(Debug)]
pub(crate) struct AddressTable {
    share: usize,
    aging: Duration,
    learned: HashMap<VlanAddress, LearnedPort>,
    /// Learned addresses by port, oldest first. May contain addresses that have moved to another port.
    by_port: HashMap<Vport, VecDeque<(VlanAddress, u64)>>,
    count: HashMap<Vport, usize>,
    /// Number of the last learned entry, counted over all entries.
    number: u64,
}

#[derive(Debug)]
struct LearnedPort {
    port: Vport,
    seen: Instant,
    number: u64,
}

impl AddressTable {
    pub(crate) fn new(share: usize, aging: Duration) -> AddressTable {
        let (learned, by_port, count) = (HashMap::new(), HashMap::new(), HashMap::new());
        AddressTable { share, aging, learned, by_port, count, number: 0 }
    }

    /// Records a frame from `station` at `port`.
    pub(crate) fn learn(&mut self, now: Instant, port: Vport, station: VlanAddress) {
        if let Some(learned) = self.learned.get_mut(&station) {
            learned.seen = now;
            if learned.port == port {
                return;
            }
            self.forget(&station);
        }
        // A share of 0 disables learning for all ports.
        if self.share == 0 {
            return;
        }
        while self.count.get(&port).is_some_and(|count| *count >= self.share) {
            self.forget_oldest(port);
        }
        self.number += 1;
        self.learned.insert(station, LearnedPort { port, seen: now, number: self.number });
        *self.count.entry(port).or_default() += 1;
        let queue = self.by_port.entry(port).or_default();
        queue.push_back((station, self.number));
        // Entries that have moved away are removed before the queue reaches twice the share.
        if queue.len() > 2 * self.share {
            let learned = &self.learned;
            queue.retain(|(station, number)| learned.get(station).is_some_and(|learned| learned.number == *number));
        }
    }

    /// Returns the port of `station`, if it was seen within the aging time.
    pub(crate) fn find(&self, now: Instant, station: &VlanAddress) -> Option<Vport> {
        self.learned.get(station).filter(|learned| now - learned.seen <= self.aging).map(|learned| learned.port)
    }

    /// Removes all entries of a port.
    pub(crate) fn forget_port(&mut self, port: Vport) {
        self.learned.retain(|_, learned| learned.port != port);
        self.by_port.remove(&port);
        self.count.remove(&port);
    }

    /// Removes an entry at any port.
    pub(crate) fn forget(&mut self, station: &VlanAddress) {
        if let Some(learned) = self.learned.remove(station)
            && let Some(count) = self.count.get_mut(&learned.port)
        {
            *count -= 1;
        }
    }

    fn forget_oldest(&mut self, port: Vport) {
        let Some((station, number)) = self.by_port.get_mut(&port).and_then(VecDeque::pop_front) else {
            self.count.remove(&port);
            return;
        };
        // The address may have moved away and been learned again; only the original entry is the oldest.
        if self.learned.get(&station).is_some_and(|learned| learned.number == number) {
            self.forget(&station);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn station(last: u8) -> VlanAddress {
        (0, Mac([2, 0, 0, 0, 0, last]))
    }

    #[test]
    fn a_port_with_invented_addresses_evicts_only_its_own() {
        let mut addresses = AddressTable::new(3, Duration::from_secs(300));
        let (mallory, alice) = (Vport::Virtual(0), Vport::Virtual(1));
        addresses.learn(Instant::ZERO, alice, station(200));
        (0..100).for_each(|last| addresses.learn(Instant::ZERO, mallory, station(last)));
        assert_eq!(addresses.find(Instant::ZERO, &station(200)), Some(alice));
        let kept: Vec<u8> = (0..100).filter(|last| addresses.find(Instant::ZERO, &station(*last)).is_some()).collect();
        assert_eq!(kept, [97, 98, 99]);
    }

    #[test]
    fn addresses_move_age_and_stay_within_their_share() {
        let mut addresses = AddressTable::new(2, Duration::from_secs(1));
        let later = Instant::ZERO + Duration::from_secs(2);
        let ports = [Vport::Virtual(0), Vport::Virtual(1)];
        for round in 0..100 {
            addresses.learn(Instant::ZERO, ports[round % 2], station(7));
            assert_eq!(addresses.find(Instant::ZERO, &station(7)), Some(ports[round % 2]));
        }
        assert!(addresses.by_port.values().all(|queue| queue.len() <= 5), "stale entries are swept out");
        assert_eq!(addresses.find(later, &station(7)), None);
        addresses.learn(later, ports[0], station(7));
        addresses.forget_port(ports[0]);
        assert_eq!(addresses.find(later, &station(7)), None);
    }
}
