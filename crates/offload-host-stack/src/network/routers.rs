//! Routers asked and heard (RFC 4861 6.3), and addresses checked before they are used (RFC 4862 5.4).
//!
//! Of an advertisement this host takes the router, for as long as it serves, prefixes, addresses made of them, and the
//! link's MTU. Hop limit, timers and whatever is told by DHCPv6 stay what they are: who lowers a hop limit cuts a host off.
//!
//! Invariant: an advertisement is believed as a whole or not at all, and only if it has passed no router (6.1.2).

use super::Network;
use super::addresses::{ALL_NODES, solicited_node};
use super::icmp_six::ethernet_of;
use super::ndp::{FRESH, SOURCE_MAC, somebodys_mac};
use super::six::{AdvertisedPrefix, DueSix};
use crate::counters::HostCounters;
use core::net::{IpAddr, Ipv6Addr};
use core::time::Duration;
use offload_base::Instant;
use offload_formats::IpHeaders;
use smallvec::SmallVec;
use smoltcp::wire::{EthernetAddress, EthernetFrame, Icmpv6Message};

/// What a router says.
#[derive(Debug)]
struct Advertisement {
    lifetime: Duration,
    mac: Option<EthernetAddress>,
    mtu: Option<u32>,
    prefixes: SmallVec<[AdvertisedPrefix; 4]>,
}

impl Network {
    /// Asks what is due at `now`: who has an address, where routers are.
    pub(super) fn configure_six(&mut self, now: Instant, counters: &mut HostCounters) {
        while let Some(due) = self.addresses.pop_due(now) {
            match due {
                DueSix::Probe(address) => self.probe(address, counters),
                DueSix::SolicitRouters => self.solicit_routers(counters),
            }
        }
    }

    /// A router's advertisement arrived in `packet`, its checksum right.
    pub(super) fn on_router_advertisement(
        &mut self,
        now: Instant,
        packet: &[u8],
        headers: &IpHeaders,
        counters: &mut HostCounters,
    ) {
        counters.router_advertisements_in += 1;
        if !self.addresses.hears_routers() {
            return;
        }
        let message = &packet[headers.upper..headers.end];
        let (hop_limit, code) = (packet[7], message[1]);
        let IpAddr::V6(router) = headers.source(packet) else { return };
        let acceptable = hop_limit == FRESH && code == 0 && router.is_unicast_link_local();
        let Some(advertisement) = acceptable.then(|| Advertisement::parse(message)).flatten() else {
            counters.ndp_in_errors += 1;
            return;
        };
        if let Some(mac) = advertisement.mac {
            self.learn(now, router.into(), mac, true);
        }
        self.addresses.note_router(now, router, advertisement.lifetime);
        if let Some(mtu) = advertisement.mtu {
            self.addresses.note_mtu(mtu);
        }
        advertisement.prefixes.iter().for_each(|prefix| self.addresses.note_prefix(now, prefix));
    }

    /// Somebody has, or wants, an address that this host was about to take.
    pub(super) fn on_duplicate(&mut self, address: Ipv6Addr, counters: &mut HostCounters) {
        counters.duplicate_addresses += 1;
        self.addresses.give_up(address);
    }

    /// Asks, from nobody, whether somebody has `address`.
    fn probe(&mut self, address: Ipv6Addr, counters: &mut HostCounters) {
        counters.neighbour_solicits_out += 1;
        let mut message: SmallVec<[u8; 32]> = SmallVec::new();
        message.extend_from_slice(&[u8::from(Icmpv6Message::NeighborSolicit), 0, 0, 0, 0, 0, 0, 0]);
        message.extend_from_slice(&address.octets());
        let to = solicited_node(address);
        let mut packet = self.neighbour_message(message, Ipv6Addr::UNSPECIFIED, to);
        EthernetFrame::new_unchecked(&mut packet.header[..]).set_dst_addr(EthernetAddress(ethernet_of(to)));
        self.post(packet, counters);
    }

    fn solicit_routers(&mut self, counters: &mut HostCounters) {
        let Some(IpAddr::V6(source)) = self.addresses.source_for(ALL_NODES.into()) else { return };
        counters.router_solicits_out += 1;
        let mut message: SmallVec<[u8; 32]> = SmallVec::new();
        message.extend_from_slice(&[u8::from(Icmpv6Message::RouterSolicit), 0, 0, 0, 0, 0, 0, 0, SOURCE_MAC, 1]);
        message.extend_from_slice(&self.mac.0);
        let mut packet = self.neighbour_message(message, source, ALL_ROUTERS);
        EthernetFrame::new_unchecked(&mut packet.header[..]).set_dst_addr(EthernetAddress(ethernet_of(ALL_ROUTERS)));
        self.post(packet, counters);
    }
}

impl Advertisement {
    /// RFC 4861 4.2, 4.6; 6.1.2: an option of no length spoils all of it.
    fn parse(bytes: &[u8]) -> Option<Advertisement> {
        let word = |bytes: &[u8], at: usize| Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let lifetime = Duration::from_secs(u64::from(u16::from_be_bytes([*bytes.get(6)?, *bytes.get(7)?])));
        let mut advertisement = Advertisement { lifetime, mac: None, mtu: None, prefixes: SmallVec::new() };
        let mut options = bytes.get(16..)?;
        while let [kind, eighths, ..] = *options {
            let option = options.get(..usize::from(eighths) * 8).filter(|option| !option.is_empty())?;
            match (kind, eighths) {
                (SOURCE_MAC, 1) => {
                    advertisement.mac = Some(somebodys_mac(option)?);
                }
                (MTU, 1) => advertisement.mtu = word(option, 4),
                (PREFIX, 4) => {
                    let address: [u8; 16] = option[16..32].try_into().ok()?;
                    advertisement.prefixes.push(AdvertisedPrefix {
                        address: address.into(),
                        bits: option[2],
                        on_link: option[3] & ON_LINK != 0,
                        autonomous: option[3] & AUTONOMOUS != 0,
                        valid: word(option, 4)?,
                        preferred: word(option, 8)?,
                    });
                }
                _ => {}
            }
            options = &options[option.len()..];
        }
        options.is_empty().then_some(advertisement)
    }
}

/// RFC 4291 2.7.1.
const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
/// Options, and the flags of the first.
const PREFIX: u8 = 3;
const MTU: u8 = 5;
const ON_LINK: u8 = 0x80;
const AUTONOMOUS: u8 = 0x40;
