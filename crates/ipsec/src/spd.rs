//! The security policy database (RFC 4301 4.4.1): the action for a packet, by its addresses, protocol and ports.

use crate::keying::KeyingError;
use offload_api::ipsec::Packet;
use offload_api::{Action, Direction, Policy, Selector};
use offload_esp::SelectorTable;

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
/// # Ok::<(), ipsec::KeyingError>(())
/// ```
#[derive(Debug, Default)]
pub struct Spd(SelectorTable<PolicyAction>);

/// Direction and action of a policy. The record is kept small so that a cache line holds more policies.
type PolicyAction = (Direction, Action);

impl Spd {
    /// Adds a policy.
    ///
    /// # Errors
    /// If a policy with this selector and priority exists.
    pub fn add(&mut self, policy: Policy) -> Result<(), KeyingError> {
        let rest = (policy.direction, policy.action);
        self.0.insert(policy.selector, policy.priority.into(), rest).map_err(|_| KeyingError::Exists)
    }

    /// Removes the policy with this selector and priority.
    pub fn remove(&mut self, selector: &Selector, priority: u32) -> Option<Policy> {
        let (direction, action) = self.0.remove(selector, priority.into())?;
        Some(Policy { direction, selector: *selector, priority, action })
    }

    /// Returns the policy for a packet: the lowest priority number wins, then the most specific selector.
    pub fn find(&self, packet: &Packet) -> Option<Policy> {
        let (selector, priority, (direction, action)) = self.0.find_named(packet)?;
        Some(Policy { direction: *direction, selector: *selector, priority: priority as u32, action: *action })
    }

    /// Returns all policies.
    pub fn policies(&self) -> impl Iterator<Item = Policy> {
        self.0.iter().map(|(selector, priority, (direction, action))| Policy {
            direction: *direction,
            selector: *selector,
            priority: priority as u32,
            action: *action,
        })
    }

    /// Tests whether a policy that names ports might match the packet of a fragment without ports.
    pub fn asks_for_ports(&self, fragment: &Packet) -> bool {
        self.0.asks_for_ports(fragment)
    }

    /// Returns the action for a packet. `None` if no policy matches.
    pub fn action(&self, packet: &Packet) -> Option<Action> {
        self.0.find(packet).map(|(_, action)| *action)
    }
}
