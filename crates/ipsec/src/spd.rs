//! The security policy database (RFC 4301 4.4.1).
//!
//! Selectors of the same shape (how many bits of which address, ports or none) share a hash table; a packet is looked
//! up once for each shape. So a look-up costs as much as there are shapes, however many policies there are.
//!
//! Invariant: a shape is in the list exactly while a policy has it; the policies of a selector are ordered by priority.

use offload_api::ipsec::{Packet, masked};
use offload_api::{Action, KeyingError, Policy, Prefix, Selector};
use smallvec::SmallVec;
use std::collections::HashMap;

/// The policies of one direction.
///
/// ```
/// use ipsec::Spd;
/// use offload_api::ipsec::Packet;
/// use offload_api::{Action, Direction, Policy, Prefix, Selector};
///
/// let mut policies = Spd::default();
/// let policy = |selector, action| Policy { direction: Direction::Transmit, selector, priority: 0, action };
/// policies.add(policy(Selector::ANY, Action::Discard))?;
/// let dns = Selector { protocol: Some(17), destination_port: Some(53), ..Selector::ANY };
/// policies.add(policy(dns, Action::Bypass))?;
///
/// let packet = Packet {
///     source: "10.0.0.1".parse().unwrap(), destination: "10.0.0.2".parse().unwrap(), protocol: 17, ports: Some((5000, 53)),
/// };
/// assert_eq!(policies.find(&packet).unwrap().action, Action::Bypass, "the more specific one");
/// # Ok::<(), offload_api::KeyingError>(())
/// ```
#[derive(Debug, Default)]
pub struct Spd {
    /// The most specific shape first.
    shapes: Vec<(Shape, Table)>,
}

/// The policies of one shape, by selector, the lowest priority number first.
type Table = HashMap<Selector, SmallVec<[Policy; 1]>>;

/// Which parts of a packet selectors look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Shape {
    source: Option<(bool, u8)>,
    destination: Option<(bool, u8)>,
    protocol: bool,
    source_port: bool,
    destination_port: bool,
}

impl Spd {
    /// Adds a policy.
    ///
    /// # Errors
    /// If there is one of this selector and priority.
    pub fn add(&mut self, policy: Policy) -> Result<(), KeyingError> {
        let shape = Shape::of(&policy.selector);
        let at = match self.shapes.iter().position(|(other, _)| *other == shape) {
            Some(at) => at,
            None => {
                let at = self.shapes.partition_point(|(other, _)| other.specificity() >= shape.specificity());
                self.shapes.insert(at, (shape, HashMap::new()));
                at
            }
        };
        let policies = self.shapes[at].1.entry(policy.selector).or_default();
        match policies.binary_search_by_key(&policy.priority, |policy| policy.priority) {
            Ok(_) => Err(KeyingError::Exists),
            Err(place) => {
                policies.insert(place, policy);
                Ok(())
            }
        }
    }

    /// Removes the policy of this selector and priority.
    pub fn remove(&mut self, selector: &Selector, priority: u32) -> Option<Policy> {
        let shape = Shape::of(selector);
        let at = self.shapes.iter().position(|(other, _)| *other == shape)?;
        let table = &mut self.shapes[at].1;
        let policies = table.get_mut(selector)?;
        let place = policies.binary_search_by_key(&priority, |policy| policy.priority).ok()?;
        let removed = policies.remove(place);
        if policies.is_empty() {
            table.remove(selector);
            if table.is_empty() {
                self.shapes.remove(at);
            }
        }
        Some(removed)
    }

    /// The policy for a packet: the one of the lowest priority number, and among those the most specific.
    pub fn find(&self, packet: &Packet) -> Option<&Policy> {
        let mut best: Option<&Policy> = None;
        for (shape, table) in &self.shapes {
            let Some(selector) = shape.selector(packet) else { continue };
            if let Some(policy) = table.get(&selector).and_then(|policies| policies.first())
                && best.is_none_or(|best| policy.priority < best.priority)
            {
                best = Some(policy);
            }
        }
        best
    }

    /// What is done with a packet; `None`: no policy says.
    pub fn action(&self, packet: &Packet) -> Option<Action> {
        self.find(packet).map(|policy| policy.action)
    }
}

impl Shape {
    fn of(selector: &Selector) -> Shape {
        let prefix = |prefix: Option<Prefix>| prefix.map(|prefix| (prefix.address().is_ipv6(), prefix.bits()));
        Shape {
            source: prefix(selector.source),
            destination: prefix(selector.destination),
            protocol: selector.protocol.is_some(),
            source_port: selector.source_port.is_some(),
            destination_port: selector.destination_port.is_some(),
        }
    }

    /// How much a selector of this shape says. An IPv4 address says as much as an IPv6 address.
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

    /// The selector of this shape that is about `packet`, if any is.
    fn selector(&self, packet: &Packet) -> Option<Selector> {
        let prefix = |shape: Option<(bool, u8)>, address: core::net::IpAddr| match shape {
            None => Some(None),
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
    use offload_api::Direction;
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

    proptest! {
        #[test]
        fn finds_what_a_search_through_all_finds(
            selectors in prop::collection::vec((selector(), 0u32..3), 0..30),
            removed in prop::collection::vec(any::<bool>(), 30),
            source in address(), destination in address(),
            protocol in prop::sample::select(vec![6u8, 17, 1]),
            ports in prop::option::of((prop::sample::select(vec![53u16, 80, 99]), prop::sample::select(vec![53u16, 80]))),
        ) {
            let (mut spd, mut all) = (Spd::default(), Vec::new());
            for (selector, priority) in selectors {
                let policy = Policy { direction: Direction::Receive, selector, priority, action: Action::Bypass };
                let is_new = !all.contains(&policy);
                prop_assert_eq!(spd.add(policy).is_ok(), is_new);
                if is_new {
                    all.push(policy);
                }
            }
            for (at, _) in removed.iter().enumerate().rev().filter(|(at, remove)| **remove && *at < all.len()).collect::<Vec<_>>() {
                let policy = all.remove(at);
                prop_assert_eq!(spd.remove(&policy.selector, policy.priority), Some(policy));
                prop_assert_eq!(spd.remove(&policy.selector, policy.priority), None);
            }
            let packet = Packet { source, destination, protocol, ports };
            let best = all
                .iter()
                .filter(|policy| policy.selector.matches(&packet))
                .min_by_key(|policy| (policy.priority, core::cmp::Reverse(Shape::of(&policy.selector).specificity())));
            let found = spd.find(&packet);
            // Two of the same rank are as good as each other.
            let rank = |policy: &&Policy| (policy.priority, Shape::of(&policy.selector).specificity());
            prop_assert_eq!(found.as_ref().map(rank), best.as_ref().map(rank));
            prop_assert!(found.is_none_or(|policy| policy.selector.matches(&packet)));
        }
    }
}
