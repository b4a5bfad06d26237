//! The security policy database (RFC 4301 4.4.1): what is done with a packet, by its addresses, protocol and ports.

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
pub struct Spd(SelectorTable<Rest>);

/// The part of a policy beside its selector: the smaller it is, the more policies a cache line holds.
type Rest = (Direction, Action);

impl Spd {
    /// Adds a policy.
    ///
    /// # Errors
    /// If there is one of this selector and priority.
    pub fn add(&mut self, policy: Policy) -> Result<(), KeyingError> {
        let rest = (policy.direction, policy.action);
        self.0.insert(policy.selector, policy.priority.into(), rest).map_err(|_| KeyingError::Exists)
    }

    /// Removes the policy of this selector and priority.
    pub fn remove(&mut self, selector: &Selector, priority: u32) -> Option<Policy> {
        let (direction, action) = self.0.remove(selector, priority.into())?;
        Some(Policy { direction, selector: *selector, priority, action })
    }

    /// The policy for a packet: the one of the lowest priority number, and among those the most specific.
    pub fn find(&self, packet: &Packet) -> Option<Policy> {
        let (selector, priority, (direction, action)) = self.0.find_named(packet)?;
        Some(Policy { direction: *direction, selector: *selector, priority: priority as u32, action: *action })
    }

    /// All of them.
    pub fn policies(&self) -> impl Iterator<Item = Policy> {
        self.0.iter().map(|(selector, priority, (direction, action))| Policy {
            direction: *direction,
            selector: *selector,
            priority: priority as u32,
            action: *action,
        })
    }

    /// Whether a policy that names ports might be about the packet of a fragment that shows none.
    pub fn asks_for_ports(&self, fragment: &Packet) -> bool {
        self.0.asks_for_ports(fragment)
    }

    /// What is done with a packet; `None`: no policy says.
    pub fn action(&self, packet: &Packet) -> Option<Action> {
        self.0.find(packet).map(|(_, action)| *action)
    }
}
