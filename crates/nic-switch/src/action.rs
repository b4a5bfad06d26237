//! What a rule does with a frame.

use crate::matching::Mac;
use crate::port::Device;
use core::net::IpAddr;
use offload_formats::protocol::{TCP, UDP};
use offload_formats::{IpVersion, Protocol};

/// One step of what a rule does. Steps are taken in order; [`ends`](Action::ends) tells which of them is the last.
///
/// ```
/// use nic_switch::{Action, Device, Vport};
///
/// assert!(Action::Redirect(Device::Port(Vport::Uplink)).ends());
/// assert!(!Action::VlanPop.ends());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// The frame leaves by this device.
    Redirect(Device),
    /// A copy leaves by this device; the frame goes on.
    Mirror(Device),
    /// The frame is dropped.
    Drop,
    /// The frame goes to the representor of the port that it came from, as it is now.
    Pass,
    /// The rules of this chain decide. It is a later one than the rule's.
    Goto(u32),
    /// A later redirection or mirroring to a tunnel device wraps the frame so.
    TunnelSet(TunnelSet),
    /// Forgets which tunnel the frame has come through.
    TunnelUnset,
    /// A VLAN tag in front of all others.
    VlanPush(VlanTag),
    /// Takes the outermost VLAN tag off; of a frame without one: nothing.
    VlanPop,
    /// Changes the outermost VLAN tag; of a frame without one: nothing.
    VlanModify(VlanTag),
    /// Overwrites fields of headers, and mends the checksums over them.
    Pedit(Vec<Edit>),
    /// Computes checksums anew.
    Checksum(Checksums),
    /// Drops what exceeds a rate.
    Police(Police),
}

impl Action {
    /// Whether no step follows this one.
    pub const fn ends(&self) -> bool {
        matches!(self, Action::Redirect(_) | Action::Drop | Action::Pass | Action::Goto(_))
    }
}

/// The outer headers of a packet to be wrapped.
///
/// ```
/// let set = nic_switch::TunnelSet::new("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap());
/// assert!(set.checksum && set.key.is_none());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TunnelSet {
    /// The sender's address.
    pub source: IpAddr,
    /// The receiver's, of the same version.
    pub destination: IpAddr,
    /// The key; VXLAN and Geneve have 24 bits for it.
    pub key: Option<u32>,
    /// The UDP port that the packet goes to; that of the tunnel's kind by default.
    pub destination_port: Option<u16>,
    /// The traffic class. ECN is the inner packet's (RFC 6040).
    pub tos: u8,
    /// The hop limit; 0: the usual one, 64, and with GRE that of the packet inside, if it is untagged IP.
    pub ttl: u8,
    /// Whether UDP, or GRE, has a checksum.
    pub checksum: bool,
    /// Whether an outer IPv4 packet must not be fragmented on its way.
    pub dont_fragment: bool,
}

impl TunnelSet {
    /// From one address to another, with a checksum and without a key.
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
    /// The VLAN, 12 bits.
    pub id: u16,
    /// The priority, 3 bits. `None`: 0 of a new tag, and of a changed one what it was.
    pub priority: Option<u8>,
    /// The tag's own EtherType: 0x8100 or 0x88a8.
    pub ether_type: u16,
}

/// One field of a header and its new value.
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
    /// Ethernet's source.
    SourceMac(Mac),
    /// Ethernet's destination.
    DestinationMac(Mac),
    /// IP's source.
    Source(IpAddr),
    /// IP's destination.
    Destination(IpAddr),
    /// IPv4's type of service, IPv6's traffic class: all 8 bits.
    TrafficClass(IpVersion, u8),
    /// IPv4's time to live, IPv6's hop limit.
    HopLimit(IpVersion, u8),
    /// Adds to it modulo 256.
    AddToHopLimit(IpVersion, u8),
    /// TCP's or UDP's source port.
    SourcePort(Protocol, u16),
    /// TCP's or UDP's destination port.
    DestinationPort(Protocol, u16),
}

impl Edit {
    /// The version of IP that the field is in, or the address is of.
    pub(crate) fn version(&self) -> Option<IpVersion> {
        match self {
            Edit::Source(address) | Edit::Destination(address) => Some(IpVersion::of_address(address)),
            Edit::TrafficClass(version, _) | Edit::HopLimit(version, _) | Edit::AddToHopLimit(version, _) => {
                Some(*version)
            }
            _ => None,
        }
    }

    /// The number of the protocol that the field is in.
    pub(crate) fn protocol(&self) -> Option<u8> {
        match self {
            Edit::SourcePort(protocol, _) | Edit::DestinationPort(protocol, _) => {
                Some(if *protocol == Protocol::Tcp { TCP } else { UDP })
            }
            _ => None,
        }
    }
}

/// Which checksums are computed anew.
///
/// ```
/// assert!(!nic_switch::action::Checksums::default().tcp);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Checksums {
    /// IPv4's header's.
    pub ipv4: bool,
    /// TCP's.
    pub tcp: bool,
    /// UDP's, of datagrams that have one.
    pub udp: bool,
}

/// A rate that is not to be exceeded.
///
/// ```
/// let police = nic_switch::Police { rate: 8_000_000, burst: 10_000 };
/// assert_eq!(police.rate / 8, 1_000_000, "bytes a second");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Police {
    /// Bits a second.
    pub rate: u64,
    /// Bytes that may come at once.
    pub burst: u32,
}
