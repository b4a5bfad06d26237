//! Policies: selectors of packets, and the SA that protects the packets.

use super::EspMode;
use crate::direction::Direction;
use core::net::IpAddr;
use offload_formats::IpView;

/// An address prefix.
///
/// ```
/// use offload_api::Prefix;
///
/// let net = Prefix::new("10.1.0.0".parse().unwrap(), 16).unwrap();
/// assert!(net.contains("10.1.2.3".parse().unwrap()) && !net.contains("10.2.0.0".parse().unwrap()));
/// assert!(Prefix::new("10.1.0.0".parse().unwrap(), 33).is_none());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix {
    address: IpAddr,
    bits: u8,
}

impl Prefix {
    /// Makes the prefix of the first `bits` bits of `address`; `None` if the address has fewer bits.
    pub fn new(address: IpAddr, bits: u8) -> Option<Prefix> {
        // The bits after the prefix are cleared, so that equal prefixes compare equal.
        let longest = if address.is_ipv4() { 32 } else { 128 };
        (bits <= longest).then(|| Prefix { address: masked(address, bits), bits })
    }

    /// Makes the prefix of a single address.
    pub fn host(address: IpAddr) -> Prefix {
        Prefix { address, bits: if address.is_ipv4() { 32 } else { 128 } }
    }

    /// Returns the first address.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Returns the prefix length.
    pub fn bits(&self) -> u8 {
        self.bits
    }

    /// Tests whether the prefix contains `address`.
    pub fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.address.is_ipv4() && masked(address, self.bits) == self.address
        // IPv4-mapped IPv6 addresses do not match IPv4 prefixes, because policies treat the families apart.
    }
}

/// Returns `address` with all bits after the first `bits` cleared.
pub fn masked(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            // A prefix of length 0 shifts by the whole width, which `checked_shl` refuses.
            let mask = u32::MAX.checked_shl(32 - u32::from(bits.min(32))).unwrap_or(0);
            IpAddr::V4((address.to_bits() & mask).into())
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits.min(128))).unwrap_or(0);
            IpAddr::V6((address.to_bits() & mask).into())
        }
    }
}

/// The fields of a packet that selectors examine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Packet {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Transport protocol.
    pub protocol: u8,
    /// Source and destination port; `None` if the protocol has no ports or the packet does not contain them.
    pub ports: Option<(u16, u16)>,
}

impl Packet {
    /// Returns the selector fields of `packet`; `view` is the parsed header.
    ///
    /// ```
    /// use offload_api::ipsec::Packet;
    /// use offload_formats::IpView;
    ///
    /// let mut packet = vec![0x45, 0, 0, 28, 0, 1, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    /// packet.extend_from_slice(&[0x13, 0x88, 0, 53, 0, 8, 0, 0]);
    /// let view = IpView::parse(&packet).unwrap();
    /// assert_eq!(Packet::from_view(&view, &packet).ports, Some((5000, 53)));
    /// ```
    pub fn from_view(view: &IpView, packet: &[u8]) -> Packet {
        let (source, destination, protocol) = (view.source, view.destination, view.protocol);
        Packet { source, destination, protocol, ports: view.ports(packet) }
    }
}

/// A selector: the set of packets of a policy. Source and destination are those in the packet, in both directions.
///
/// ```
/// use offload_api::Selector;
/// use offload_api::ipsec::Packet;
///
/// let web = Selector { protocol: Some(6), destination_port: Some(443), ..Selector::ANY };
/// let packet = Packet {
///     source: "10.0.0.1".parse().unwrap(), destination: "10.0.0.2".parse().unwrap(), protocol: 6, ports: Some((5000, 443)),
/// };
/// assert!(web.matches(&packet) && !web.matches(&Packet { ports: None, ..packet }));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Selector {
    /// Source addresses; `None` matches all addresses of both families.
    pub source: Option<Prefix>,
    /// Destination addresses.
    pub destination: Option<Prefix>,
    /// Protocol number.
    pub protocol: Option<u8>,
    /// Source port.
    pub source_port: Option<u16>,
    /// Destination port.
    pub destination_port: Option<u16>,
}

impl Selector {
    /// Matches all packets.
    pub const ANY: Selector =
        Selector { source: None, destination: None, protocol: None, source_port: None, destination_port: None };

    /// Tests whether the selector matches `packet`. A selector with ports does not match a packet without ports, such
    /// as a fragment.
    pub fn matches(&self, packet: &Packet) -> bool {
        // A packet without ports matches only a selector without ports.
        let ports = |wanted: Option<u16>, seen: Option<u16>| wanted.is_none() || wanted == seen;
        self.source.is_none_or(|prefix| prefix.contains(packet.source))
            && self.destination.is_none_or(|prefix| prefix.contains(packet.destination))
            && self.protocol.is_none_or(|protocol| protocol == packet.protocol)
            && ports(self.source_port, packet.ports.map(|(source, _)| source))
            && ports(self.destination_port, packet.ports.map(|(_, destination)| destination))
    }

    /// Returns the selector of the opposite direction: source and destination exchanged.
    #[must_use]
    pub fn reversed(self) -> Selector {
        Selector {
            source: self.destination,
            destination: self.source,
            protocol: self.protocol,
            source_port: self.destination_port,
            destination_port: self.source_port,
        }
    }
}

/// The requirements of a policy on its SAs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Template {
    /// Mode.
    pub mode: EspMode,
    /// Source of a tunnel. `None` means the packet's own source, as always in transport mode.
    pub source: Option<IpAddr>,
    /// Destination of a tunnel.
    pub destination: Option<IpAddr>,
    /// The reqid; 0 matches any.
    pub reqid: u32,
}

impl Template {
    /// Requires a transport mode SA with this reqid.
    pub const fn transport(reqid: u32) -> Template {
        Template { mode: EspMode::Transport, source: None, destination: None, reqid }
    }

    /// Requires a tunnel between these addresses with this reqid.
    pub const fn tunnel(source: IpAddr, destination: IpAddr, reqid: u32) -> Template {
        Template { mode: EspMode::Tunnel, source: Some(source), destination: Some(destination), reqid }
    }
}

/// The action of a policy on a packet (RFC 4301 4.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Action {
    /// Drops the packet.
    Discard,
    /// Passes the packet unprotected.
    Bypass,
    /// Protects the packet by an SA, or drops it.
    Protect(Template),
}

/// A policy.
///
/// ```
/// use offload_api::{Action, Direction, Policy, Selector, Template};
///
/// let all = Policy {
///     direction: Direction::Transmit, selector: Selector::ANY, priority: 0, action: Action::Protect(Template::transport(1)),
/// };
/// assert_ne!(all, Policy { action: Action::Bypass, ..all });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Direction: sent or received packets.
    pub direction: Direction,
    /// Packets of the policy.
    pub selector: Selector,
    /// Order of the policies: lower values match first, as in Linux; among equal values, the more specific policy
    /// matches first.
    pub priority: u32,
    /// Action on the packets.
    pub action: Action,
}
