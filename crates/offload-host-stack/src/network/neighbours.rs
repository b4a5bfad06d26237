//! Address resolution, by ARP (RFC 826) for IPv4 and NDP (RFC 4861) for IPv6: the neighbours' Ethernet addresses, and
//! the packets that wait for them.
//!
//! A new entry is requested by broadcast or multicast, up to three times at growing intervals that start at one second.
//! A resolved entry is confirmed by a direct request when it is used half a minute after the last news. A neighbour
//! that requests this host's address gets an entry, too, while there is room. Unsolicited news only update an existing
//! entry.
//!
//! Invariants:
//! - An entry with a deadline is among the deadlines once, under that deadline.
//! - The number of entries, of waiting packets, and of their bytes is bounded.
//! - A static entry never changes.

use core::net::IpAddr;
use core::time::Duration;
use offload_api::TxPacket;
use offload_base::Instant;
use smoltcp::wire::EthernetAddress;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The table of resolved and requested neighbours.
#[derive(Debug, Default)]
pub(crate) struct NeighbourTable {
    entries: BTreeMap<IpAddr, Neighbour>,
    deadlines: BTreeSet<(Instant, IpAddr)>,
    /// Dynamic entries that are or were resolved, in order of creation.
    order: VecDeque<IpAddr>,
    /// Dynamic entries that never answered, in order of creation. Anybody can cause such entries (RFC 6583).
    unanswered: VecDeque<IpAddr>,
    /// Bytes of all waiting packets.
    waiting_bytes: usize,
    /// Packets dropped after waiting in vain, or for lack of room.
    lost: u64,
}

#[derive(Debug)]
struct Neighbour {
    mac: Option<EthernetAddress>,
    /// Whether the entry is static.
    fixed: bool,
    /// Time of the last news.
    confirmed: Instant,
    /// Whether the last news may be outdated.
    doubted: bool,
    /// Requests since the last news.
    requests: u32,
    /// Time of the next request or of giving up.
    deadline: Option<Instant>,
    waiting: VecDeque<TxPacket>,
}

/// Result of a lookup.
#[derive(Debug)]
pub(crate) enum NextHop {
    /// The Ethernet address.
    Known(EthernetAddress),
    /// Resolution is under way.
    Asked,
}

/// Action due for an entry.
#[derive(Debug)]
pub(crate) enum NeighbourAction {
    /// Send a request, by multicast or to the last known address.
    Ask { address: IpAddr, at: Option<EthernetAddress> },
    /// Drop the waiting packets, because nobody answered.
    GiveUp { waiting: VecDeque<TxPacket> },
}

impl NeighbourTable {
    /// Adds a static entry.
    pub(crate) fn fix(&mut self, address: IpAddr, mac: EthernetAddress) {
        // Of several static entries for an address, the first counts.
        self.entries
            .entry(address)
            .or_insert_with(|| Neighbour { fixed: true, ..Neighbour::known(mac, Instant::ZERO) });
    }

    /// Returns whether `address` has a static entry.
    pub(crate) fn is_fixed(&self, address: IpAddr) -> bool {
        self.entries.get(&address).is_some_and(|neighbour| neighbour.fixed)
    }

    /// Looks up `address`, and starts its resolution if it is unknown.
    pub(crate) fn find(&mut self, now: Instant, address: IpAddr) -> NextHop {
        if !self.entries.contains_key(&address) {
            self.make_space();
            self.unanswered.push_back(address);
            self.entries.insert(address, Neighbour::asked(now));
            self.deadlines.insert((now, address));
        }
        let Some(neighbour) = self.entries.get_mut(&address) else { return NextHop::Asked };
        let Some(mac) = neighbour.mac else { return NextHop::Asked };
        let stale = neighbour.doubted || now - neighbour.confirmed >= REACHABLE_TIME;
        // A stale address stays in use while the neighbour is asked to confirm it.
        if !neighbour.fixed && neighbour.deadline.is_none() && stale {
            neighbour.deadline = Some(now);
            self.deadlines.insert((now, address));
        }
        NextHop::Known(mac)
    }

    /// Lets `packet` wait for the resolution of `address`. If the queue is full, the oldest packets are dropped.
    pub(crate) fn queue(&mut self, address: IpAddr, packet: TxPacket) {
        let Some(neighbour) = self.entries.get_mut(&address).filter(|neighbour| neighbour.mac.is_none()) else {
            self.lost += 1;
            return;
        };
        let bytes = size_of_packet(&packet);
        while neighbour.waiting.len() >= MAX_WAITING_PACKETS
            || (self.waiting_bytes + bytes > MAX_WAITING_BYTES && !neighbour.waiting.is_empty())
        {
            // The oldest packet: its sender has had the longest time to send it again.
            if let Some(oldest) = neighbour.waiting.pop_front() {
                self.waiting_bytes -= size_of_packet(&oldest);
                self.lost += 1;
            }
        }
        if self.waiting_bytes + bytes > MAX_WAITING_BYTES {
            self.lost += 1;
            return;
        }
        self.waiting_bytes += bytes;
        neighbour.waiting.push_back(packet);
    }

    /// Returns the number of packets dropped since the last call.
    pub(crate) fn take_lost(&mut self) -> u64 {
        core::mem::take(&mut self.lost)
    }

    /// Returns the Ethernet address of `address`, if known.
    pub(crate) fn known(&self, address: IpAddr) -> Option<EthernetAddress> {
        self.entries.get(&address)?.mac
    }

    /// Marks the entry of `address` as outdated: its next use sends a request.
    pub(crate) fn mark_outdated(&mut self, address: IpAddr) {
        if let Some(neighbour) = self.entries.get_mut(&address).filter(|neighbour| neighbour.mac.is_some()) {
            neighbour.doubted = true;
        }
    }

    /// Records that `address` is at `mac`. `create` adds a missing entry. Returns the packets that waited.
    pub(crate) fn record(
        &mut self,
        now: Instant,
        address: IpAddr,
        mac: EthernetAddress,
        create: bool,
    ) -> VecDeque<TxPacket> {
        let Some(neighbour) = self.entries.get_mut(&address) else {
            // An unsolicited entry must not displace another.
            if create && self.order.len() + self.unanswered.len() < MAX_ENTRIES {
                self.order.push_back(address);
                self.entries.insert(address, Neighbour::known(mac, now));
            }
            return VecDeque::new();
        };
        if neighbour.fixed {
            return VecDeque::new();
        }
        // The entry moves from the unanswered to the resolved ones, which are displaced last.
        if neighbour.mac.is_none() {
            self.unanswered.retain(|other| *other != address);
            self.order.push_back(address);
        }
        neighbour.mac = Some(mac);
        neighbour.confirmed = now;
        neighbour.doubted = false;
        neighbour.requests = 0;
        if let Some(deadline) = neighbour.deadline.take() {
            self.deadlines.remove(&(deadline, address));
        }
        let waiting = core::mem::take(&mut neighbour.waiting);
        self.waiting_bytes -= waiting.iter().map(size_of_packet).sum::<usize>();
        waiting
    }

    /// Returns the next due action.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<NeighbourAction> {
        let (at, address) = *self.deadlines.first()?;
        if at > now {
            return None;
        }
        self.deadlines.pop_first();
        let neighbour = self.entries.get_mut(&address)?;
        neighbour.deadline = None;
        if neighbour.requests >= MAX_REQUESTS {
            // A resolved neighbour that stopped answering is forgotten, too, so that it is requested anew.
            let answered = neighbour.mac.is_some();
            let waiting = self.remove(address);
            let order = if answered { &mut self.order } else { &mut self.unanswered };
            order.retain(|other| *other != address);
            self.lost += waiting.len() as u64;
            return Some(NeighbourAction::GiveUp { waiting });
        }
        // Growing intervals limit the load that an absent neighbour causes.
        let next = now + FIRST_WAIT * (1 << neighbour.requests);
        neighbour.requests += 1;
        neighbour.deadline = Some(next);
        self.deadlines.insert((next, address));
        Some(NeighbourAction::Ask { address, at: neighbour.mac })
    }

    pub(crate) fn next_event(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Makes room for an entry: removes the oldest entry that never answered, or else the oldest one. Packets that
    /// waited for the removed entry are dropped; their senders send them again.
    fn make_space(&mut self) {
        if self.order.len() + self.unanswered.len() >= MAX_ENTRIES
            && let Some(oldest) = self.unanswered.pop_front().or_else(|| self.order.pop_front())
        {
            self.lost += self.remove(oldest).len() as u64;
        }
    }

    fn remove(&mut self, address: IpAddr) -> VecDeque<TxPacket> {
        let Some(neighbour) = self.entries.remove(&address) else { return VecDeque::new() };
        if let Some(deadline) = neighbour.deadline {
            self.deadlines.remove(&(deadline, address));
        }
        self.waiting_bytes -= neighbour.waiting.iter().map(size_of_packet).sum::<usize>();
        neighbour.waiting
    }
}

impl Neighbour {
    fn known(mac: EthernetAddress, now: Instant) -> Neighbour {
        Neighbour {
            mac: Some(mac),
            fixed: false,
            confirmed: now,
            doubted: false,
            requests: 0,
            deadline: None,
            waiting: VecDeque::new(),
        }
    }

    fn asked(now: Instant) -> Neighbour {
        Neighbour {
            mac: None,
            fixed: false,
            confirmed: Instant::ZERO,
            doubted: false,
            requests: 0,
            deadline: Some(now),
            waiting: VecDeque::new(),
        }
    }
}

fn size_of_packet(packet: &TxPacket) -> usize {
    packet.header.len() + packet.payload_len()
}

/// Maximum number of dynamic entries: Linux's gc_thresh3.
const MAX_ENTRIES: usize = 1024;
/// Maximum number of packets that wait for one neighbour.
const MAX_WAITING_PACKETS: usize = 64;
/// Maximum bytes of packets that wait for all neighbours together.
const MAX_WAITING_BYTES: usize = 1 << 20;
/// Number of requests before an address is given up: Linux's mcast_solicit and ucast_solicit.
const MAX_REQUESTS: u32 = 3;
/// Time to wait after the first request. It doubles with each further one.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// Time for which an entry is used without a new request: Linux's base_reachable_time.
const REACHABLE_TIME: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use core::net::{Ipv4Addr, Ipv6Addr};

    const MAC: EthernetAddress = EthernetAddress([2, 0, 0, 0, 0, 9]);
    const OTHER: EthernetAddress = EthernetAddress([2, 0, 0, 0, 0, 8]);

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    /// Returns one of a series of addresses, alternately IPv4 and IPv6. The table treats both alike.
    fn address(last: u16) -> IpAddr {
        if last.is_multiple_of(2) {
            IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + u32::from(last)))
        } else {
            IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last))
        }
    }

    fn packet(bytes: usize) -> TxPacket {
        TxPacket { fragments: [Bytes::from(vec![0; bytes])].into_iter().collect(), ..TxPacket::default() }
    }

    fn mac(neighbours: &mut NeighbourTable, now: Instant, of: u16) -> Option<EthernetAddress> {
        match neighbours.find(now, address(of)) {
            NextHop::Known(mac) => Some(mac),
            NextHop::Asked => None,
        }
    }

    #[test]
    fn resolution_gives_up_after_three_requests() {
        let mut neighbours = NeighbourTable::default();
        assert_eq!(mac(&mut neighbours, at(5), 1), None);
        neighbours.queue(address(1), packet(10));
        for expected in [5, 6, 8] {
            assert_eq!(neighbours.next_event(), Some(at(expected)));
            assert!(matches!(neighbours.pop_due(at(expected)), Some(NeighbourAction::Ask { at: None, .. })));
        }
        let Some(NeighbourAction::GiveUp { waiting }) = neighbours.pop_due(at(12)) else {
            panic!("resolution must be given up")
        };
        assert_eq!((waiting.len(), neighbours.next_event()), (1, None));
        assert!(neighbours.entries.is_empty() && neighbours.unanswered.is_empty() && neighbours.waiting_bytes == 0);
    }

    #[test]
    fn answer_releases_waiting_packets_and_is_reconfirmed() {
        let mut neighbours = NeighbourTable::default();
        assert_eq!(mac(&mut neighbours, at(0), 1), None);
        (0..3).for_each(|_| neighbours.queue(address(1), packet(10)));
        assert_eq!(neighbours.record(at(1), address(1), MAC, false).len(), 3);
        assert_eq!((neighbours.next_event(), neighbours.waiting_bytes), (None, 0));
        assert_eq!(mac(&mut neighbours, at(30), 1), Some(MAC));
        assert_eq!(neighbours.next_event(), None);
        assert_eq!(mac(&mut neighbours, at(31), 1), Some(MAC), "the address is used while it is confirmed");
        assert!(matches!(neighbours.pop_due(at(31)), Some(NeighbourAction::Ask { at: Some(MAC), .. })));
    }

    #[test]
    fn unsolicited_news_update_but_create_no_entry() {
        let mut neighbours = NeighbourTable::default();
        neighbours.fix(address(1), MAC);
        neighbours.record(at(0), address(1), OTHER, true);
        assert_eq!(mac(&mut neighbours, at(100), 1), Some(MAC), "a static entry must not change");
        assert_eq!(neighbours.next_event(), None, "a static entry is never requested");
        neighbours.record(at(0), address(2), OTHER, false);
        assert_eq!(neighbours.entries.len(), 1);
        neighbours.record(at(0), address(2), MAC, true);
        neighbours.record(at(0), address(2), OTHER, false);
        assert_eq!(mac(&mut neighbours, at(0), 2), Some(OTHER));
    }

    #[test]
    fn unanswered_entries_displace_no_resolved_ones() {
        let mut neighbours = NeighbourTable::default();
        mac(&mut neighbours, at(0), 1);
        neighbours.record(at(0), address(1), MAC, false);
        neighbours.record(at(0), address(2), MAC, true);
        for last in 10..2010 {
            assert_eq!(mac(&mut neighbours, at(0), last), None);
        }
        assert_eq!([1, 2].map(|last| mac(&mut neighbours, at(0), last)), [Some(MAC), Some(MAC)]);
        assert_eq!((neighbours.entries.len(), neighbours.order.len()), (1024, 2));
        // Among resolved entries the oldest is removed, so that a new neighbour always gets an entry.
        for last in 3000..5000 {
            mac(&mut neighbours, at(0), last);
            neighbours.record(at(0), address(last), MAC, false);
        }
        assert_eq!((neighbours.entries.len(), neighbours.order.len(), neighbours.unanswered.len()), (1024, 1024, 0));
        assert_eq!(neighbours.known(address(1)), None);
    }

    #[test]
    fn entries_and_waiting_packets_are_bounded() {
        let mut neighbours = NeighbourTable::default();
        for last in 0..3000 {
            mac(&mut neighbours, at(0), last);
            (0..100).for_each(|_| neighbours.queue(address(last), packet(1400)));
        }
        let lengths = (neighbours.entries.len(), neighbours.unanswered.len(), neighbours.deadlines.len());
        assert_eq!(lengths, (1024, 1024, 1024));
        let waiting: usize = neighbours.entries.values().map(|neighbour| neighbour.waiting.len()).sum();
        assert_eq!(neighbours.take_lost(), 300_000 - waiting as u64);
        assert_eq!(neighbours.waiting_bytes, waiting * 1400);
        assert!(neighbours.waiting_bytes <= MAX_WAITING_BYTES);
        neighbours.record(at(0), address(9999), MAC, true);
        assert_eq!(neighbours.entries.len(), 1024, "an unsolicited entry must not displace another");
    }
}
