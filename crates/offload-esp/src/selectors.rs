//! Look-up of values by the packets that match a selector (RFC 4301 4.4.1): policies of a host or a device.
//!
//! Selectors of the same shape (equal prefix lengths, with or without ports) share a hash table. A packet is looked up
//! once per shape, so the cost depends on the number of shapes only, and not on the number of selectors.
//!
//! Invariants: the list contains a shape exactly while a selector has that shape. The values of a selector are sorted
//! by priority. `ported` counts each selector with ports, stored without them, once per value.

use offload_api::ipsec::{Packet, masked};
use offload_api::{Prefix, Selector};
use offload_base::QuickHash;
use smallvec::SmallVec;
use std::collections::HashMap;

/// Values by selector and priority.
///
/// ```
/// use offload_esp::SelectorTable;
/// use offload_api::Selector;
/// use offload_api::ipsec::Packet;
///
/// let mut table = SelectorTable::default();
/// table.insert(Selector::ANY, 0, "any").unwrap();
/// let dns = Selector { protocol: Some(17), destination_port: Some(53), ..Selector::ANY };
/// table.insert(dns, 0, "dns").unwrap();
/// let packet = Packet {
///     source: "10.0.0.1".parse().unwrap(), destination: "10.0.0.2".parse().unwrap(), protocol: 17, ports: Some((5000, 53)),
/// };
/// assert_eq!(table.find(&packet), Some(&"dns"), "the more specific one");
/// assert_eq!(table.remove(&dns, 0), Some("dns"));
/// assert_eq!(table.find(&packet), Some(&"any"));
/// ```
#[derive(Debug)]
pub struct SelectorTable<T> {
    /// Tables of values by shape, the most specific shape first.
    shapes: Vec<(SelectorShape, Values<T>)>,
    /// Selectors with ports, stored without them, by shape, with the number of values.
    ported: Vec<(SelectorShape, HashMap<Selector, usize, QuickHash>)>,
}

/// The values of one shape by selector, each list sorted by priority.
type Values<T> = HashMap<Selector, SmallVec<[(u64, T); 1]>, QuickHash>;

impl<T> Default for SelectorTable<T> {
    fn default() -> SelectorTable<T> {
        SelectorTable { shapes: Vec::new(), ported: Vec::new() }
    }
}

impl<T> SelectorTable<T> {
    /// Tests whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.shapes.is_empty()
    }

    /// Adds a value.
    ///
    /// # Errors
    /// Returns the value if there is one with this selector and priority.
    pub fn insert(&mut self, selector: Selector, priority: u64, value: T) -> Result<(), T> {
        let values = self.values_of(selector);
        match values.binary_search_by_key(&priority, |(priority, _)| *priority) {
            Ok(_) => Err(value),
            Err(place) => {
                values.insert(place, (priority, value));
                self.note_ports(&selector);
                Ok(())
            }
        }
    }

    /// Adds a value, or replaces and returns the one with this selector and priority.
    pub fn replace(&mut self, selector: Selector, priority: u64, value: T) -> Option<T> {
        let values = self.values_of(selector);
        match values.binary_search_by_key(&priority, |(priority, _)| *priority) {
            Ok(place) => Some(core::mem::replace(&mut values[place].1, value)),
            Err(place) => {
                values.insert(place, (priority, value));
                self.note_ports(&selector);
                None
            }
        }
    }

    /// Removes and returns the value of this selector and priority.
    pub fn remove(&mut self, selector: &Selector, priority: u64) -> Option<T> {
        let shape = SelectorShape::from_selector(selector);
        let at = self.shapes.iter().position(|(other, _)| *other == shape)?;
        let table = &mut self.shapes[at].1;
        let values = table.get_mut(selector)?;
        let place = values.binary_search_by_key(&priority, |(priority, _)| *priority).ok()?;
        let (_, removed) = values.remove(place);
        if values.is_empty() {
            table.remove(selector);
            if table.is_empty() {
                self.shapes.remove(at);
            }
        }
        self.forget_ports(selector);
        Some(removed)
    }

    /// Tests whether a selector with ports might match the packet of a fragment without ports: everything else matches.
    pub fn asks_for_ports(&self, fragment: &Packet) -> bool {
        let mut shapes = self.ported.iter();
        shapes.any(|(shape, table)| shape.selector(fragment).is_some_and(|selector| table.contains_key(&selector)))
    }

    /// Returns the value for a packet: the one with the lowest priority number, and among equals the most specific.
    pub fn find(&self, packet: &Packet) -> Option<&T> {
        self.find_named(packet).map(|(_, _, value)| value)
    }

    /// Returns the value for a packet, with its selector and priority.
    pub fn find_named(&self, packet: &Packet) -> Option<(&Selector, u64, &T)> {
        let mut best: Option<(&Selector, &(u64, T))> = None;
        for (shape, table) in &self.shapes {
            let Some(selector) = shape.selector(packet) else { continue };
            if let Some((selector, values)) = table.get_key_value(&selector)
                && let Some(value) = values.first()
                // Only a lower number replaces the best value, so of equals the more specific one wins: its shape comes
                // first.
                && best.is_none_or(|(_, best)| value.0 < best.0)
            {
                best = Some((selector, value));
            }
        }
        best.map(|(selector, (priority, value))| (selector, *priority, value))
    }

    /// Returns all values with their selectors and priorities.
    pub fn iter(&self) -> impl Iterator<Item = (&Selector, u64, &T)> {
        self.shapes
            .iter()
            .flat_map(|(_, table)| table)
            .flat_map(|(selector, values)| values.iter().map(move |(priority, value)| (selector, *priority, value)))
    }

    fn note_ports(&mut self, selector: &Selector) {
        let Some(portless) = without_ports(selector) else { return };
        let shape = SelectorShape::from_selector(&portless);
        let at = match self.ported.iter().position(|(other, _)| *other == shape) {
            Some(at) => at,
            None => {
                self.ported.push((shape, HashMap::default()));
                self.ported.len() - 1
            }
        };
        // Counted, because several selectors may differ in their ports only.
        *self.ported[at].1.entry(portless).or_default() += 1;
    }

    fn forget_ports(&mut self, selector: &Selector) {
        let Some(portless) = without_ports(selector) else { return };
        let shape = SelectorShape::from_selector(&portless);
        let Some(at) = self.ported.iter().position(|(other, _)| *other == shape) else { return };
        let table = &mut self.ported[at].1;
        if let Some(count) = table.get_mut(&portless) {
            *count -= 1;
            if *count == 0 {
                table.remove(&portless);
            }
        }
        if table.is_empty() {
            self.ported.remove(at);
        }
    }

    fn values_of(&mut self, selector: Selector) -> &mut SmallVec<[(u64, T); 1]> {
        let shape = SelectorShape::from_selector(&selector);
        let at = match self.shapes.iter().position(|(other, _)| *other == shape) {
            Some(at) => at,
            None => {
                // The order by specificity makes `find` prefer the more specific of two equal priorities.
                let at = self.shapes.partition_point(|(other, _)| other.order() < shape.order());
                self.shapes.insert(at, (shape, HashMap::default()));
                at
            }
        };
        self.shapes[at].1.entry(selector).or_default()
    }
}

/// Returns the position of a policy among all: of the policies that match a packet, the one with the lowest rank is the
/// one that a [`SelectorTable`] finds. Two policies that match the same packet never have the same rank.
///
/// ```
/// use offload_esp::selectors::rank;
/// use offload_api::Selector;
///
/// let dns = Selector { protocol: Some(17), destination_port: Some(53), ..Selector::ANY };
/// assert!(rank(&dns, 1) < rank(&Selector::ANY, 1), "the more specific one");
/// assert!(rank(&Selector::ANY, 0) < rank(&dns, 1), "the lower priority number");
/// ```
pub fn rank(selector: &Selector, priority: u32) -> u64 {
    u64::from(priority) << 32 | u64::from(SelectorShape::from_selector(selector).order())
}

/// Upper bound of a shape's specificity.
const MAX_SPECIFICITY: u32 = 1023;

/// Returns a selector with ports as it would be without them. Returns `None` for a selector without ports.
fn without_ports(selector: &Selector) -> Option<Selector> {
    let ports = selector.source_port.or(selector.destination_port);
    ports.map(|_| Selector { source_port: None, destination_port: None, ..*selector })
}

/// The parts of a packet that a selector compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SelectorShape {
    source: Option<(bool, u8)>,
    destination: Option<(bool, u8)>,
    protocol: bool,
    source_port: bool,
    destination_port: bool,
}

impl SelectorShape {
    fn from_selector(selector: &Selector) -> SelectorShape {
        let prefix = |prefix: Option<Prefix>| prefix.map(|prefix| (prefix.address().is_ipv6(), prefix.bits()));
        SelectorShape {
            source: prefix(selector.source),
            destination: prefix(selector.destination),
            protocol: selector.protocol.is_some(),
            source_port: selector.source_port.is_some(),
            destination_port: selector.destination_port.is_some(),
        }
    }

    /// Returns a sort key: more specific shapes come first, equally specific ones in a fixed order.
    fn order(&self) -> u32 {
        let code =
            |prefix: Option<(bool, u8)>| prefix.map_or(0, |(ipv6, bits)| 1 + u32::from(ipv6) * 33 + u32::from(bits));
        let parts = [self.protocol, self.source_port, self.destination_port];
        let parts = parts.into_iter().fold(0, |code, part| code << 1 | u32::from(part));
        // Specificity in the upper bits, then all other properties, so that different shapes never compare equal.
        (MAX_SPECIFICITY - self.specificity()) << 19 | code(self.source) << 11 | code(self.destination) << 3 | parts
    }

    /// Returns how specific a selector of this shape is. A full IPv4 address weighs as much as a full IPv6 address.
    fn specificity(&self) -> u32 {
        let prefix = |prefix: Option<(bool, u8)>| match prefix {
            None => 0,
            Some((true, bits)) => 1 + u32::from(bits),
            Some((false, bits)) => 1 + 4 * u32::from(bits),
        };
        prefix(self.source)
            + prefix(self.destination)
            + if self.protocol { 64 } else { 0 }
            + if self.source_port { 128 } else { 0 }
            + if self.destination_port { 128 } else { 0 }
    }

    /// Returns the selector of this shape that matches `packet`, if one can.
    fn selector(&self, packet: &Packet) -> Option<Selector> {
        let prefix = |shape: Option<(bool, u8)>, address: core::net::IpAddr| match shape {
            None => Some(None),
            // The packet's address, masked to the shape's prefix length, is the only prefix that can match.
            Some((ipv6, bits)) if ipv6 == address.is_ipv6() => Prefix::new(masked(address, bits), bits).map(Some),
            Some(_) => None,
        };
        let port = |wanted: bool, seen: Option<u16>| if wanted { seen.map(Some) } else { Some(None) };
        Some(Selector {
            source: prefix(self.source, packet.source)?,
            destination: prefix(self.destination, packet.destination)?,
            protocol: self.protocol.then_some(packet.protocol),
            source_port: port(self.source_port, packet.ports.map(|(source, _)| source))?,
            destination_port: port(self.destination_port, packet.ports.map(|(_, destination)| destination))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn address() -> impl Strategy<Value = core::net::IpAddr> {
        (any::<bool>(), 0u8..3, 0u8..3).prop_map(|(v6, net, host)| {
            if v6 { [0xfd00, u16::from(net), 0, 0, 0, 0, 0, u16::from(host)].into() } else { [10, net, 0, host].into() }
        })
    }

    fn selector() -> impl Strategy<Value = Selector> {
        let prefix = || {
            prop::option::of((address(), prop::sample::select(vec![0u8, 8, 16, 24, 32])))
                .prop_map(|prefix| prefix.and_then(|(address, bits)| Prefix::new(address, bits)))
        };
        let port = || prop::option::of(prop::sample::select(vec![53u16, 80]));
        (prefix(), prefix(), prop::option::of(prop::sample::select(vec![6u8, 17])), port(), port()).prop_map(
            |(source, destination, protocol, source_port, destination_port)| Selector {
                source,
                destination,
                protocol,
                source_port,
                destination_port,
            },
        )
    }

    /// A prefix of zero bits still selects the version of IP, which is more specific than no prefix.
    #[test]
    fn policies_matching_one_packet_have_unique_ranks() {
        for all in [core::net::IpAddr::from([0; 4]), [0; 16].into()] {
            let all = Prefix::new(all, 0);
            assert!(all.is_some());
            let selectors = [(all, all), (all, None), (None, all), (None, None)]
                .map(|(source, destination)| Selector { source, destination, ..Selector::ANY });
            let mut ranks = selectors.map(|selector| rank(&selector, 7));
            assert_eq!(ranks.iter().min(), Some(&ranks[0]), "it says most");
            assert_eq!(ranks.iter().max(), Some(&ranks[3]), "it says nothing");
            ranks.sort_unstable();
            assert!(ranks.is_sorted_by(|one, next| one < next), "{ranks:?}");
        }
    }

    proptest! {
        #[test]
        fn table_finds_the_same_value_as_a_linear_search(
            selectors in prop::collection::vec((selector(), 0u64..3), 0..30),
            removed in prop::collection::vec(any::<bool>(), 30),
            source in address(), destination in address(),
            protocol in prop::sample::select(vec![6u8, 17, 1]),
            ports in prop::option::of((prop::sample::select(vec![53u16, 80, 99]), prop::sample::select(vec![53u16, 80]))),
        ) {
            let (mut table, mut all) = (SelectorTable::default(), Vec::new());
            for (selector, priority) in selectors {
                let entry = (selector, priority);
                let is_new = !all.contains(&entry);
                prop_assert_eq!(table.insert(selector, priority, entry).is_ok(), is_new);
                if is_new {
                    all.push(entry);
                }
            }
            for (at, _) in removed.iter().enumerate().rev().filter(|(at, remove)| **remove && *at < all.len()).collect::<Vec<_>>() {
                let entry = all.remove(at);
                prop_assert_eq!(table.remove(&entry.0, entry.1), Some(entry));
                prop_assert_eq!(table.remove(&entry.0, entry.1), None);
            }
            let packet = Packet { source, destination, protocol, ports };
            let best = all
                .iter()
                .filter(|(selector, _)| selector.matches(&packet))
                .min_by_key(|(selector, priority)| (priority, core::cmp::Reverse(SelectorShape::from_selector(selector).specificity())));
            let found = table.find(&packet);
            // Values of the same rank are interchangeable.
            let rank = |entry: &&(Selector, u64)| (entry.1, SelectorShape::from_selector(&entry.0).specificity());
            prop_assert_eq!(found.as_ref().map(rank), best.as_ref().map(rank));
            prop_assert!(found.is_none_or(|(selector, _)| selector.matches(&packet)));
            let might = all.iter().filter_map(|(selector, _)| without_ports(selector));
            let fragment = Packet { ports: None, ..packet };
            prop_assert_eq!(table.asks_for_ports(&fragment), might.into_iter().any(|selector| selector.matches(&fragment)));
        }
    }
}
