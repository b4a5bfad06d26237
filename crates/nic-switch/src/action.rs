//! Actions of rules.

use crate::matching::Mac;
use crate::port::Device;
use core::net::IpAddr;
use offload_formats::protocol::{TCP, UDP};
use offload_formats::{IpVersion, Protocol};

/// One action of a rule. Actions run in order; [`ends`](RuleAction::ends) tells whether an action is the last.
///
/// ```
/// use nic_switch::{RuleAction, Device, Vport};
///
/// assert!(RuleAction::Redirect(Device::Port(Vport::Uplink)).ends());
/// assert!(!RuleAction::VlanPop.ends());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RuleAction {
    /// Sends the frame out by this device.
    Redirect(Device),
    /// Sends a copy out by this device and continues.
    Mirror(Device),
    /// Drops the frame.
    Drop,
    /// Sends the frame, as changed so far, to the representor of its input port.
    Pass,
    /// Continues with the rules of a later chain.
    Goto(u32),
    /// Sets the outer headers for a later redirect or mirror to a tunnel device.
    TunnelSet(TunnelSet),
    /// Forgets the tunnel through which the frame arrived.
    TunnelUnset,
    /// Adds a VLAN tag in front of all others.
    VlanPush(VlanTag),
    /// Removes the outermost VLAN tag, if there is one.
    VlanPop,
    /// Changes the outermost VLAN tag, if there is one.
    VlanModify(VlanTag),
    /// Overwrites header fields and updates the checksums over them.
    Pedit(Vec<Edit>),
    /// Recomputes checksums.
    Checksum(ChecksumSet),
    /// Drops frames above a rate.
    Police(Police),
}

impl RuleAction {
    /// Tests whether the action is the last of its rule.
    pub const fn ends(&self) -> bool {
        matches!(self, RuleAction::Redirect(_) | RuleAction::Drop | RuleAction::Pass | RuleAction::Goto(_))
    }
}

/// The outer headers of a packet to be encapsulated.
///
/// ```
/// let set = nic_switch::TunnelSet::new("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap());
/// assert!(set.checksum && set.key.is_none());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TunnelSet {
    /// Outer source address.
    pub source: IpAddr,
    /// Outer destination address, of the same IP version.
    pub destination: IpAddr,
    /// Tunnel key; 24 bits for VXLAN and Geneve.
    pub key: Option<u32>,
    /// UDP destination port; the tunnel kind's port by default.
    pub destination_port: Option<u16>,
    /// Traffic class. The ECN bits come from the inner packet (RFC 6040).
    pub tos: u8,
    /// Hop limit. 0 means 64, but GRE then copies the hop limit of the inner IP packet if the inner frame has no VLAN
    /// tag.
    pub ttl: u8,
    /// Whether UDP or GRE carries a checksum.
    pub checksum: bool,
    /// Whether the outer IPv4 packet must not be fragmented.
    pub dont_fragment: bool,
}

impl TunnelSet {
    /// Makes the headers between two addresses, with a checksum and without a key.
    pub fn new(source: IpAddr, destination: IpAddr) -> TunnelSet {
        let (key, destination_port, dont_fragment) = (None, None, false);
        TunnelSet { source, destination, key, destination_port, tos: 0, ttl: 0, checksum: true, dont_fragment }
    }
}

/// A VLAN tag.
///
/// ```
/// let tag = nic_switch::VlanTag { id: 100, priority: None, ether_type: 0x8100 };
/// assert_eq!(tag.id, 100);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VlanTag {
    /// VLAN id, 12 bits.
    pub id: u16,
    /// Priority, 3 bits. `None` means 0 for a new tag, and no change for an existing tag.
    pub priority: Option<u8>,
    /// EtherType of the tag: 0x8100 or 0x88a8.
    pub ether_type: u16,
}

/// A header field with its new value.
///
/// ```
/// use nic_switch::Edit;
/// use offload_formats::IpVersion;
///
/// let one_hop_less = Edit::AddToHopLimit(IpVersion::V4, 255);
/// assert_ne!(one_hop_less, Edit::HopLimit(IpVersion::V4, 255));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Edit {
    /// Ethernet source address.
    SourceMac(Mac),
    /// Ethernet destination address.
    DestinationMac(Mac),
    /// IP source address.
    Source(IpAddr),
    /// IP destination address.
    Destination(IpAddr),
    /// IPv4 type of service or IPv6 traffic class, all 8 bits.
    TrafficClass(IpVersion, u8),
    /// IPv4 time to live or IPv6 hop limit.
    HopLimit(IpVersion, u8),
    /// Adds to the hop limit modulo 256.
    AddToHopLimit(IpVersion, u8),
    /// TCP or UDP source port.
    SourcePort(Protocol, u16),
    /// TCP or UDP destination port.
    DestinationPort(Protocol, u16),
}

impl Edit {
    /// Returns the IP version of the field or address; `None` for other headers.
    pub(crate) fn version(&self) -> Option<IpVersion> {
        match self {
            Edit::Source(address) | Edit::Destination(address) => Some(IpVersion::of_address(address)),
            Edit::TrafficClass(version, _) | Edit::HopLimit(version, _) | Edit::AddToHopLimit(version, _) => {
                Some(*version)
            }
            _ => None,
        }
    }

    /// Returns the protocol number of the field's header; `None` for Ethernet and IP fields.
    pub(crate) fn protocol(&self) -> Option<u8> {
        match self {
            Edit::SourcePort(protocol, _) | Edit::DestinationPort(protocol, _) => {
                Some(if *protocol == Protocol::Tcp { TCP } else { UDP })
            }
            _ => None,
        }
    }
}

/// The checksums to recompute.
///
/// ```
/// assert!(!nic_switch::action::ChecksumSet::default().tcp);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ChecksumSet {
    /// IPv4 header checksum.
    pub ipv4: bool,
    /// TCP checksum.
    pub tcp: bool,
    /// UDP checksum, unless the datagram has none.
    pub udp: bool,
}

/// A rate limit.
///
/// ```
/// let police = nic_switch::Police { rate: 8_000_000, burst: 10_000 };
/// assert_eq!(police.rate / 8, 1_000_000, "bytes per second");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Police {
    /// Bits per second.
    pub rate: u64,
    /// Burst size in bytes.
    pub burst: u32,
}
