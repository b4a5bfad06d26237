//! Address resolution, by ARP (RFC 826) for IPv4 and NDP (RFC 4861) for IPv6: which Ethernet address a neighbour has,
//! and the packets that wait to know.
//!
//! An entry is asked for by broadcast or multicast, three times a second apart, longer each time; once known, it is asked for
//! again, directly, when it is used after half a minute without news. A neighbour that asks for this host is remembered too,
//! while there is space; a station that speaks unasked can only change an entry that is there.
//!
//! Invariants: an entry with a deadline is among the deadlines once, under that deadline; entries, the packets that
//! wait, and their bytes are bounded; a static entry never changes.

use core::net::IpAddr;
use core::time::Duration;
use offload_api::TxPacket;
use offload_base::Instant;
use smoltcp::wire::EthernetAddress;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The neighbours that are known or asked for.
#[derive(Debug, Default)]
pub(crate) struct Neighbours {
    entries: BTreeMap<IpAddr, Neighbour>,
    deadlines: BTreeSet<(Instant, IpAddr)>,
    /// Entries that are not static, in the order they were made: those that are known or were, and those that never
    /// answered, which anybody can have made (RFC 6583).
    order: VecDeque<IpAddr>,
    unanswered: VecDeque<IpAddr>,
    /// Bytes of all packets that wait.
    waiting_bytes: usize,
    /// Packets that waited in vain, or found no space to wait.
    lost: u64,
}

#[derive(Debug)]
struct Neighbour {
    mac: Option<EthernetAddress>,
    /// Set up by hand.
    fixed: bool,
    /// When it was last heard of.
    confirmed: Instant,
    /// What was heard then may not be so.
    doubted: bool,
    /// Requests since then.
    requests: u32,
    /// When the next request, or giving up, is due.
    deadline: Option<Instant>,
    waiting: VecDeque<TxPacket>,
}

/// What became of a packet for a neighbour.
#[derive(Debug)]
pub(crate) enum Hop {
    /// It is to go to this address.
    Known(EthernetAddress),
    /// The address is being asked for.
    Asked,
}

/// What is to be done when an entry's time has come.
#[derive(Debug)]
pub(crate) enum Due {
    /// A request, to all or to the last known address.
    Ask { address: IpAddr, at: Option<EthernetAddress> },
    /// Nobody answered: these packets go nowhere.
    GiveUp { waiting: VecDeque<TxPacket> },
}

impl Neighbours {
    /// Adds a neighbour that stays.
    pub(crate) fn fix(&mut self, address: IpAddr, mac: EthernetAddress) {
        // The first one given for an address counts.
        self.entries
            .entry(address)
            .or_insert_with(|| Neighbour { fixed: true, ..Neighbour::known(mac, Instant::ZERO) });
    }

    /// Whether `address` was set up by hand.
    pub(crate) fn is_fixed(&self, address: IpAddr) -> bool {
        self.entries.get(&address).is_some_and(|neighbour| neighbour.fixed)
    }

    /// Where packets for `address` go; if that is not known, it is asked for from now on.
    pub(crate) fn find(&mut self, now: Instant, address: IpAddr) -> Hop {
        if !self.entries.contains_key(&address) {
            self.make_space();
            self.unanswered.push_back(address);
            self.entries.insert(address, Neighbour::asked(now));
            self.deadlines.insert((now, address));
        }
        let Some(neighbour) = self.entries.get_mut(&address) else { return Hop::Asked };
        let Some(mac) = neighbour.mac else { return Hop::Asked };
        let stale = neighbour.doubted || now - neighbour.confirmed >= REACHABLE;
        if !neighbour.fixed && neighbour.deadline.is_none() && stale {
            neighbour.deadline = Some(now);
            self.deadlines.insert((now, address));
        }
        Hop::Known(mac)
    }

    /// Keeps `packet` until the address of `address` is known, which is being asked for. The oldest that wait give
    /// way to it.
    pub(crate) fn keep(&mut self, address: IpAddr, packet: TxPacket) {
        let Some(neighbour) = self.entries.get_mut(&address).filter(|neighbour| neighbour.mac.is_none()) else {
            self.lost += 1;
            return;
        };
        let bytes = size_of_packet(&packet);
        while neighbour.waiting.len() >= WAITING_PACKETS
            || (self.waiting_bytes + bytes > WAITING_BYTES && !neighbour.waiting.is_empty())
        {
            // The oldest: whoever sent it has had the longest time to send it again.
            if let Some(oldest) = neighbour.waiting.pop_front() {
                self.waiting_bytes -= size_of_packet(&oldest);
                self.lost += 1;
            }
        }
        if self.waiting_bytes + bytes > WAITING_BYTES {
            self.lost += 1;
            return;
        }
        self.waiting_bytes += bytes;
        neighbour.waiting.push_back(packet);
    }

    /// Packets that waited in vain since the last time.
    pub(crate) fn take_lost(&mut self) -> u64 {
        core::mem::take(&mut self.lost)
    }

    /// The address that `address` has, as far as is known.
    pub(crate) fn known(&self, address: IpAddr) -> Option<EthernetAddress> {
        self.entries.get(&address)?.mac
    }

    /// The station at `address` said so unasked: it is asked for again when it is used.
    pub(crate) fn doubt(&mut self, address: IpAddr) {
        if let Some(neighbour) = self.entries.get_mut(&address).filter(|neighbour| neighbour.mac.is_some()) {
            neighbour.doubted = true;
        }
    }

    /// `address` was heard of at `mac`. `create`: it is to be remembered even if it was not asked for. Returns the
    /// packets that waited.
    pub(crate) fn learn(
        &mut self,
        now: Instant,
        address: IpAddr,
        mac: EthernetAddress,
        create: bool,
    ) -> VecDeque<TxPacket> {
        let Some(neighbour) = self.entries.get_mut(&address) else {
            // What nobody here asked for throws nothing out.
            if create && self.order.len() + self.unanswered.len() < ENTRIES {
                self.order.push_back(address);
                self.entries.insert(address, Neighbour::known(mac, now));
            }
            return VecDeque::new();
        };
        if neighbour.fixed {
            return VecDeque::new();
        }
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

    /// The next entry whose time has come, and what is to be done.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<Due> {
        let (at, address) = *self.deadlines.first()?;
        if at > now {
            return None;
        }
        self.deadlines.pop_first();
        let neighbour = self.entries.get_mut(&address)?;
        neighbour.deadline = None;
        if neighbour.requests >= REQUESTS {
            let answered = neighbour.mac.is_some();
            let waiting = self.remove(address);
            let order = if answered { &mut self.order } else { &mut self.unanswered };
            order.retain(|other| *other != address);
            self.lost += waiting.len() as u64;
            return Some(Due::GiveUp { waiting });
        }
        let next = now + FIRST_WAIT * (1 << neighbour.requests);
        neighbour.requests += 1;
        neighbour.deadline = Some(next);
        self.deadlines.insert((next, address));
        Some(Due::Ask { address, at: neighbour.mac })
    }

    pub(crate) fn next_event(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// The oldest entry that never answered goes if there is no space for another, or the oldest if all did. What waited
    /// for it goes as well: its sender sends it again.
    fn make_space(&mut self) {
        if self.order.len() + self.unanswered.len() >= ENTRIES
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

/// Entries beside static ones. Linux's gc_thresh3.
const ENTRIES: usize = 1024;
/// Packets that wait for one neighbour, and bytes that wait for all of them together.
const WAITING_PACKETS: usize = 64;
const WAITING_BYTES: usize = 1 << 20;
/// Requests before an address is given up: Linux's mcast_solicit and ucast_solicit.
const REQUESTS: u32 = 3;
/// How long the first request waits for an answer; each further one twice as long.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// How long an entry is used without asking again: Linux's base_reachable_time.
const REACHABLE: Duration = Duration::from_secs(30);

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

    /// Every other one of IPv6: to the table it is all the same.
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

    fn mac(neighbours: &mut Neighbours, now: Instant, of: u16) -> Option<EthernetAddress> {
        match neighbours.find(now, address(of)) {
            Hop::Known(mac) => Some(mac),
            Hop::Asked => None,
        }
    }

    #[test]
    fn asks_three_times_ever_more_slowly_and_gives_up() {
        let mut neighbours = Neighbours::default();
        assert_eq!(mac(&mut neighbours, at(5), 1), None);
        neighbours.keep(address(1), packet(10));
        for expected in [5, 6, 8] {
            assert_eq!(neighbours.next_event(), Some(at(expected)));
            assert!(matches!(neighbours.pop_due(at(expected)), Some(Due::Ask { at: None, .. })));
        }
        let Some(Due::GiveUp { waiting }) = neighbours.pop_due(at(12)) else { panic!("it goes on asking") };
        assert_eq!((waiting.len(), neighbours.next_event()), (1, None));
        assert!(neighbours.entries.is_empty() && neighbours.unanswered.is_empty() && neighbours.waiting_bytes == 0);
    }

    #[test]
    fn an_answer_frees_what_waited_and_is_asked_for_again_after_a_while() {
        let mut neighbours = Neighbours::default();
        assert_eq!(mac(&mut neighbours, at(0), 1), None);
        (0..3).for_each(|_| neighbours.keep(address(1), packet(10)));
        assert_eq!(neighbours.learn(at(1), address(1), MAC, false).len(), 3);
        assert_eq!((neighbours.next_event(), neighbours.waiting_bytes), (None, 0));
        assert_eq!(mac(&mut neighbours, at(30), 1), Some(MAC));
        assert_eq!(neighbours.next_event(), None);
        assert_eq!(mac(&mut neighbours, at(31), 1), Some(MAC), "used while it is asked for");
        assert!(matches!(neighbours.pop_due(at(31)), Some(Due::Ask { at: Some(MAC), .. })));
    }

    #[test]
    fn what_comes_unasked_changes_entries_but_makes_none() {
        let mut neighbours = Neighbours::default();
        neighbours.fix(address(1), MAC);
        neighbours.learn(at(0), address(1), OTHER, true);
        assert_eq!(mac(&mut neighbours, at(100), 1), Some(MAC), "static");
        assert_eq!(neighbours.next_event(), None, "and never asked for");
        neighbours.learn(at(0), address(2), OTHER, false);
        assert_eq!(neighbours.entries.len(), 1);
        neighbours.learn(at(0), address(2), MAC, true);
        neighbours.learn(at(0), address(2), OTHER, false);
        assert_eq!(mac(&mut neighbours, at(0), 2), Some(OTHER));
    }

    #[test]
    fn strangers_who_never_answer_throw_nobody_out_who_did() {
        let mut neighbours = Neighbours::default();
        mac(&mut neighbours, at(0), 1);
        neighbours.learn(at(0), address(1), MAC, false);
        neighbours.learn(at(0), address(2), MAC, true);
        for last in 10..2010 {
            assert_eq!(mac(&mut neighbours, at(0), last), None);
        }
        assert_eq!([1, 2].map(|last| mac(&mut neighbours, at(0), last)), [Some(MAC), Some(MAC)]);
        assert_eq!((neighbours.entries.len(), neighbours.order.len()), (1024, 2));
        // Of those that answered, the oldest makes room, so that nobody is kept out for ever.
        for last in 3000..5000 {
            mac(&mut neighbours, at(0), last);
            neighbours.learn(at(0), address(last), MAC, false);
        }
        assert_eq!((neighbours.entries.len(), neighbours.order.len(), neighbours.unanswered.len()), (1024, 1024, 0));
        assert_eq!(neighbours.known(address(1)), None);
    }

    #[test]
    fn everything_is_bounded() {
        let mut neighbours = Neighbours::default();
        for last in 0..3000 {
            mac(&mut neighbours, at(0), last);
            (0..100).for_each(|_| neighbours.keep(address(last), packet(1400)));
        }
        let lengths = (neighbours.entries.len(), neighbours.unanswered.len(), neighbours.deadlines.len());
        assert_eq!(lengths, (1024, 1024, 1024));
        let waiting: usize = neighbours.entries.values().map(|neighbour| neighbour.waiting.len()).sum();
        assert_eq!(neighbours.take_lost(), 300_000 - waiting as u64);
        assert_eq!(neighbours.waiting_bytes, waiting * 1400);
        assert!(neighbours.waiting_bytes <= WAITING_BYTES);
        neighbours.learn(at(0), address(9999), MAC, true);
        assert_eq!(neighbours.entries.len(), 1024, "a stranger's request throws nothing out");
    }
}
