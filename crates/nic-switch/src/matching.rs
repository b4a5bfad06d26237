//! Match conditions of rules.
//!
//! A field that a frame does not have reads as zero, as in Linux. For example, the ports of a fragment are 0.

use core::fmt;
use core::net::IpAddr;
use core::str::FromStr;
use offload_api::Prefix;

/// An Ethernet address.
///
/// ```
/// use nic_switch::Mac;
///
/// let mac: Mac = "02:00:00:00:00:0a".parse().unwrap();
/// assert_eq!((mac, mac.to_string()), (Mac([2, 0, 0, 0, 0, 10]), "02:00:00:00:00:0a".into()));
/// assert!(!mac.is_multicast());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// The broadcast address.
    pub const BROADCAST: Mac = Mac([0xff; 6]);

    /// Tests whether this is a multicast or broadcast address.
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 == 1
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl FromStr for Mac {
    type Err = core::num::ParseIntError;

    fn from_str(text: &str) -> Result<Mac, Self::Err> {
        let mut octets = [0; 6];
        let mut parts = text.split(':');
        for octet in &mut octets {
            let part = parts.next().filter(|part| part.len() <= 2 && !part.starts_with('+'));
            *octet = u8::from_str_radix(part.unwrap_or(""), 16)?;
        }
        if parts.next().is_some() {
            // `parse` of an empty string yields the error for surplus parts.
            u8::from_str_radix("", 16)?;
        }
        Ok(Mac(octets))
    }
}

/// An Ethernet address with a mask.
///
/// ```
/// use nic_switch::{EtherMatch, Mac};
///
/// let group = EtherMatch::new(Mac([1, 0, 0, 0, 0, 0]), Mac([1, 0, 0, 0, 0, 0]));
/// assert!(group.matches(Mac::BROADCAST));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EtherMatch {
    address: Mac,
    mask: Mac,
}

impl EtherMatch {
    /// Matches addresses that equal `address` in the bits of `mask`.
    pub fn new(address: Mac, mask: Mac) -> EtherMatch {
        // Stored masked, so that equal conditions compare equal.
        let mut masked = address;
        masked.0.iter_mut().zip(mask.0).for_each(|(octet, mask)| *octet &= mask);
        EtherMatch { address: masked, mask }
    }

    /// Matches a single address.
    pub fn exactly(address: Mac) -> EtherMatch {
        EtherMatch { address, mask: Mac::BROADCAST }
    }

    /// Returns the address with all bits outside of the mask cleared.
    pub fn address(&self) -> Mac {
        self.address
    }

    /// Returns the mask.
    pub fn mask(&self) -> Mac {
        self.mask
    }

    /// Tests whether `address` matches.
    pub fn matches(&self, address: Mac) -> bool {
        EtherMatch::new(address, self.mask).address == self.address
    }
}

/// A port or a range of ports.
///
/// ```
/// assert!(nic_switch::Ports::Range(10, 20).contains(20));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Ports {
    /// A single port.
    One(u16),
    /// First and last port; the first is smaller.
    Range(u16, u16),
}

impl Ports {
    /// Tests whether `port` is included.
    pub fn contains(&self, port: u16) -> bool {
        match *self {
            Ports::One(one) => port == one,
            Ports::Range(first, last) => (first..=last).contains(&port),
        }
    }
}

/// A condition on the outermost VLAN tag.
///
/// See [`Match`] for an example.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VlanMatch {
    /// VLAN id, 12 bits.
    pub id: Option<u16>,
    /// Priority, 3 bits.
    pub priority: Option<u8>,
    /// EtherType after the tag; with two tags, the second tag's.
    pub ether_type: Option<u16>,
}

/// A condition on fragmentation.
///
/// See [`Match`] for an example.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FragmentMatch {
    /// Whether the packet is a fragment.
    pub fragment: Option<bool>,
    /// Whether the packet is a first fragment.
    pub first: Option<bool>,
}

/// A condition on bits of the IP traffic class, called type of service in IPv4.
///
/// ```
/// let no_congestion_known = nic_switch::matching::ClassMatch::new(0, 3);
/// assert!(no_congestion_known.matches(0x48) && !no_congestion_known.matches(2));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClassMatch {
    class: u8,
    mask: u8,
}

impl ClassMatch {
    /// Matches classes that equal `class` in the bits of `mask`.
    pub const fn new(class: u8, mask: u8) -> ClassMatch {
        ClassMatch { class: class & mask, mask }
    }

    /// Returns the class with all bits outside of the mask cleared.
    pub const fn class(&self) -> u8 {
        self.class
    }

    /// Returns the mask.
    pub const fn mask(&self) -> u8 {
        self.mask
    }

    /// Tests whether `class` matches.
    pub const fn matches(&self, class: u8) -> bool {
        class & self.mask == self.class
    }
}

/// A condition on the tunnel through which a frame arrived.
///
/// See [`Match`] for an example.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TunnelMatch {
    /// Key: the VNI of VXLAN and Geneve, or the key of GRE.
    pub key: Option<u32>,
    /// Outer source address.
    pub source: Option<Prefix>,
    /// Outer destination address.
    pub destination: Option<Prefix>,
    /// UDP source port.
    pub source_port: Option<u16>,
    /// UDP destination port.
    pub destination_port: Option<u16>,
    /// Traffic class of the outer packet.
    pub class: Option<ClassMatch>,
    /// Whether UDP or GRE had a checksum.
    pub checksum: Option<bool>,
    /// Whether the packet was an OAM packet; only Geneve has these.
    pub oam: Option<bool>,
}

/// The match conditions of a rule. The default matches all frames.
///
/// ```
/// use nic_switch::{Match, Ports};
///
/// let web = Match {
///     protocol: Some(0x0800),
///     ip_protocol: Some(6),
///     destination_port: Some(Ports::One(443)),
///     ..Match::default()
/// };
/// assert_eq!(web.network(), Some(0x0800));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Match {
    /// EtherType after the addresses, which may be a VLAN tag's; `None` matches any.
    pub protocol: Option<u16>,
    /// Ethernet destination address.
    pub destination_mac: Option<EtherMatch>,
    /// Ethernet source address.
    pub source_mac: Option<EtherMatch>,
    /// VLAN tag. Only valid if [`protocol`](Self::protocol) is a tag's EtherType.
    pub vlan: VlanMatch,
    /// IP protocol number. IP conditions are valid only with an IP EtherType.
    pub ip_protocol: Option<u8>,
    /// IP source address.
    pub source: Option<Prefix>,
    /// IP destination address.
    pub destination: Option<Prefix>,
    /// Source port of TCP, UDP or SCTP.
    pub source_port: Option<Ports>,
    /// Destination port of TCP, UDP or SCTP.
    pub destination_port: Option<Ports>,
    /// Fragmentation.
    pub fragments: FragmentMatch,
    /// Traffic class.
    pub class: Option<ClassMatch>,
    /// Tunnel through which the frame arrived.
    pub tunnel: TunnelMatch,
}

impl Match {
    /// Returns the EtherType of the payload, after a tag if there is one; `None` if the rule leaves it open.
    pub fn network(&self) -> Option<u16> {
        match self.protocol {
            Some(tag) if is_vlan(tag) => self.vlan.ether_type,
            other => other,
        }
    }

    /// Tests whether a condition examines the packet's own IP header or payload.
    pub(crate) fn needs_ip(&self) -> bool {
        self.ip_protocol.is_some()
            || self.source.is_some()
            || self.destination.is_some()
            || self.fragments != FragmentMatch::default()
            || self.class.is_some()
    }
}

/// Tests whether an EtherType is a VLAN tag's (IEEE 802.1Q, 802.1ad).
pub(crate) fn is_vlan(ether_type: u16) -> bool {
    matches!(ether_type, VLAN | SERVICE_VLAN)
}

/// Tests whether the IP version of an address matches an EtherType.
pub(crate) fn is_of(address: IpAddr, ether_type: u16) -> bool {
    ether_type == if address.is_ipv4() { IPV4 } else { IPV6 }
}

pub(crate) const VLAN: u16 = 0x8100;
pub(crate) const SERVICE_VLAN: u16 = 0x88a8;
pub(crate) const IPV4: u16 = 0x0800;
pub(crate) const IPV6: u16 = 0x86dd;
pub(crate) const ARP: u16 = 0x0806;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_addresses_are_rejected() {
        for text in
            ["", "02:00:00:00:00", "02:00:00:00:00:0a:0b", "02:00:00:00:00:1ff", "+2:00:00:00:00:0a", "g:0:0:0:0:0"]
        {
            assert!(text.parse::<Mac>().is_err(), "{text}");
        }
        assert_eq!("2:0:0:0:0:a".parse(), Ok(Mac([2, 0, 0, 0, 0, 10])));
    }

    #[test]
    fn the_tags_give_the_ether_type_behind_them() {
        let tagged = VlanMatch { ether_type: Some(IPV6), ..VlanMatch::default() };
        assert_eq!(Match { protocol: Some(VLAN), vlan: tagged, ..Match::default() }.network(), Some(IPV6));
        assert_eq!(Match { protocol: Some(SERVICE_VLAN), ..Match::default() }.network(), None);
        assert_eq!(Match { protocol: Some(ARP), ..Match::default() }.network(), Some(ARP));
        assert!(is_of("::1".parse().unwrap(), IPV6) && !is_of("10.0.0.1".parse().unwrap(), IPV6));
    }
}
