//! What a rule looks at in a frame.
//!
//! A field that a frame does not have reads as zero, as in Linux: of a fragment, the ports are 0 and 0.

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
    /// All bits set.
    pub const BROADCAST: Mac = Mac([0xff; 6]);

    /// Whether it names a group of hosts, or all.
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
            u8::from_str_radix("", 16)?;
        }
        Ok(Mac(octets))
    }
}

/// An Ethernet address of which some bits are looked at.
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
    /// The addresses that agree with `address` where `mask` has ones.
    pub fn new(address: Mac, mask: Mac) -> EtherMatch {
        let mut masked = address;
        masked.0.iter_mut().zip(mask.0).for_each(|(octet, mask)| *octet &= mask);
        EtherMatch { address: masked, mask }
    }

    /// This address alone.
    pub fn exactly(address: Mac) -> EtherMatch {
        EtherMatch { address, mask: Mac::BROADCAST }
    }

    /// The bits that are looked at, as they must be; the others are zero.
    pub fn address(&self) -> Mac {
        self.address
    }

    /// Which bits are looked at.
    pub fn mask(&self) -> Mac {
        self.mask
    }

    /// Whether this is one of the addresses.
    pub fn matches(&self, address: Mac) -> bool {
        EtherMatch::new(address, self.mask).address == self.address
    }
}

/// One port, or those from one to another.
///
/// ```
/// assert!(nic_switch::Ports::Range(10, 20).contains(20));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Ports {
    /// This one.
    One(u16),
    /// The first and the last; the first is the smaller one.
    Range(u16, u16),
}

impl Ports {
    /// Whether this is one of them.
    pub fn contains(&self, port: u16) -> bool {
        match *self {
            Ports::One(one) => port == one,
            Ports::Range(first, last) => (first..=last).contains(&port),
        }
    }
}

/// What a rule wants of the outermost VLAN tag.
///
/// See [`Match`] for an example.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VlanMatch {
    /// The VLAN, 12 bits.
    pub id: Option<u16>,
    /// The priority, 3 bits.
    pub priority: Option<u8>,
    /// The EtherType behind it: of a frame with two tags, that of the other tag.
    pub ether_type: Option<u16>,
}

/// What a rule wants of fragmentation.
///
/// See [`Match`] for an example.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FragmentMatch {
    /// Whether the packet is a fragment.
    pub fragment: Option<bool>,
    /// Whether it is a packet's first fragment.
    pub first: Option<bool>,
}

/// What a rule wants of IP's traffic class, which IPv4 calls type of service: some of its bits.
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
    /// The classes that agree with `class` where `mask` has ones.
    pub const fn new(class: u8, mask: u8) -> ClassMatch {
        ClassMatch { class: class & mask, mask }
    }

    /// The bits that are looked at, as they must be; the others are zero.
    pub const fn class(&self) -> u8 {
        self.class
    }

    /// Which bits are looked at.
    pub const fn mask(&self) -> u8 {
        self.mask
    }

    /// Whether this is one of the classes.
    pub const fn matches(&self, class: u8) -> bool {
        class & self.mask == self.class
    }
}

/// What a rule wants of the tunnel that a frame has come through.
///
/// See [`Match`] for an example.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TunnelMatch {
    /// The key: VXLAN's and Geneve's VNI, GRE's key.
    pub key: Option<u32>,
    /// The sender of the outer packet.
    pub source: Option<Prefix>,
    /// Its receiver.
    pub destination: Option<Prefix>,
    /// The UDP port that it comes from.
    pub source_port: Option<u16>,
    /// The UDP port that it goes to.
    pub destination_port: Option<u16>,
    /// The traffic class of the outer packet.
    pub class: Option<ClassMatch>,
    /// Whether UDP, or GRE, had a checksum.
    pub checksum: Option<bool>,
    /// Whether it was a control packet (OAM). Geneve alone has those.
    pub oam: Option<bool>,
}

/// Which frames a rule is about. The default is: all frames.
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
    /// The EtherType behind the addresses, that of a VLAN tag included; `None`: any.
    pub protocol: Option<u16>,
    /// The Ethernet address that it goes to.
    pub destination_mac: Option<EtherMatch>,
    /// The Ethernet address that it comes from.
    pub source_mac: Option<EtherMatch>,
    /// The VLAN tag. Only where [`protocol`](Self::protocol) is that of a tag.
    pub vlan: VlanMatch,
    /// What IP carries. This and the addresses only with an EtherType of IP.
    pub ip_protocol: Option<u8>,
    /// The sender's address.
    pub source: Option<Prefix>,
    /// The receiver's address.
    pub destination: Option<Prefix>,
    /// The sender's port; only of TCP, UDP and SCTP.
    pub source_port: Option<Ports>,
    /// The receiver's port; only of TCP, UDP and SCTP.
    pub destination_port: Option<Ports>,
    /// Fragmentation.
    pub fragments: FragmentMatch,
    /// The traffic class.
    pub class: Option<ClassMatch>,
    /// The tunnel that the frame has come through.
    pub tunnel: TunnelMatch,
}

impl Match {
    /// The EtherType of what the frame carries, behind a tag if it has one, if the rule says which.
    pub fn network(&self) -> Option<u16> {
        match self.protocol {
            Some(tag) if is_vlan(tag) => self.vlan.ether_type,
            other => other,
        }
    }

    /// Whether it looks at anything of the packet's own IP header or behind it.
    pub(crate) fn needs_ip(&self) -> bool {
        self.ip_protocol.is_some()
            || self.source.is_some()
            || self.destination.is_some()
            || self.fragments != FragmentMatch::default()
            || self.class.is_some()
    }
}

/// Whether an EtherType is that of a VLAN tag (IEEE 802.1Q, 802.1ad).
pub(crate) fn is_vlan(ether_type: u16) -> bool {
    matches!(ether_type, VLAN | SERVICE_VLAN)
}

/// Whether an address is of the version that an EtherType names.
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
    fn addresses_that_are_none_are_refused() {
        for text in
            ["", "02:00:00:00:00", "02:00:00:00:00:0a:0b", "02:00:00:00:00:1ff", "+2:00:00:00:00:0a", "g:0:0:0:0:0"]
        {
            assert!(text.parse::<Mac>().is_err(), "{text}");
        }
        assert_eq!("2:0:0:0:0:a".parse(), Ok(Mac([2, 0, 0, 0, 0, 10])));
    }

    #[test]
    fn what_follows_the_tags_is_told_by_them() {
        let tagged = VlanMatch { ether_type: Some(IPV6), ..VlanMatch::default() };
        assert_eq!(Match { protocol: Some(VLAN), vlan: tagged, ..Match::default() }.network(), Some(IPV6));
        assert_eq!(Match { protocol: Some(SERVICE_VLAN), ..Match::default() }.network(), None);
        assert_eq!(Match { protocol: Some(ARP), ..Match::default() }.network(), Some(ARP));
        assert!(is_of("::1".parse().unwrap(), IPV6) && !is_of("10.0.0.1".parse().unwrap(), IPV6));
    }
}
