//! Router discovery (RFC 4861 6.3), and duplicate address detection (RFC 4862 5.4).
//!
//! From an advertisement, this host uses the router with its lifetime, the prefixes, addresses made of them, and the
//! link's MTU. It ignores the hop limit, timers and DHCPv6 flags, because a forged low hop limit would cut the host
//! off.
//!
//! Invariant: an advertisement is used as a whole or not at all, and only if it has passed no router (6.1.2).

use super::NetworkLayer;
use super::addresses::{ALL_NODES, solicited_node};
use super::icmp_six::ethernet_of;
use super::ndp::{MAX_HOP_LIMIT, SOURCE_MAC, parse_unicast_mac};
use super::six::{AdvertisedPrefix, DiscoveryMessage};
use crate::counters::HostCounters;
use core::net::{IpAddr, Ipv6Addr};
use core::time::Duration;
use offload_base::Instant;
use offload_formats::IpHeaders;
use smallvec::SmallVec;
use smoltcp::wire::{EthernetAddress, EthernetFrame, Icmpv6Message};

/// A parsed router advertisement.
#[derive(Debug)]
struct RouterAdvertisement {
    lifetime: Duration,
    mac: Option<EthernetAddress>,
    mtu: Option<u32>,
    prefixes: SmallVec<[AdvertisedPrefix; 4]>,
}

impl NetworkLayer {
    /// Sends the duplicate-address probes and router solicitations that are due.
    pub(super) fn configure_six(&mut self, now: Instant, counters: &mut HostCounters) {
        while let Some(due) = self.addresses.pop_due(now) {
            match due {
                DiscoveryMessage::Probe(address) => self.probe(address, counters),
                DiscoveryMessage::SolicitRouters => self.solicit_routers(counters),
            }
        }
    }

    /// Processes a router advertisement in `packet`. Its checksum was verified.
    pub(super) fn on_router_advertisement(
        &mut self,
        now: Instant,
        packet: &[u8],
        headers: &IpHeaders,
        counters: &mut HostCounters,
    ) {
        counters.router_advertisements_in += 1;
        if !self.addresses.discovers_routers() {
            return;
        }
        let message = &packet[headers.upper..headers.end];
        let (hop_limit, code) = (packet[7], message[1]);
        let IpAddr::V6(router) = headers.source(packet) else { return };
        let acceptable = hop_limit == MAX_HOP_LIMIT && code == 0 && router.is_unicast_link_local();
        let Some(advertisement) = acceptable.then(|| RouterAdvertisement::parse(message)).flatten() else {
            counters.ndp_in_errors += 1;
            return;
        };
        // The router's own address option saves a later solicitation.
        if let Some(mac) = advertisement.mac {
            self.record(now, router.into(), mac, true);
        }
        self.addresses.note_router(now, router, advertisement.lifetime);
        if let Some(mtu) = advertisement.mtu {
            self.addresses.note_mtu(mtu);
        }
        advertisement.prefixes.iter().for_each(|prefix| self.addresses.note_prefix(now, prefix));
    }

    /// Gives up a tentative address, because another host has or wants the address.
    pub(super) fn on_duplicate(&mut self, address: Ipv6Addr, counters: &mut HostCounters) {
        counters.duplicate_addresses += 1;
        self.addresses.give_up(address);
    }

    /// Sends a duplicate-address probe for `address`, from the unspecified address.
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

impl RouterAdvertisement {
    /// Parses an advertisement (RFC 4861 4.2, 4.6). An option of length zero makes the whole message invalid (6.1.2).
    fn parse(bytes: &[u8]) -> Option<RouterAdvertisement> {
        let word = |bytes: &[u8], at: usize| Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let lifetime = Duration::from_secs(u64::from(u16::from_be_bytes([*bytes.get(6)?, *bytes.get(7)?])));
        let mut advertisement = RouterAdvertisement { lifetime, mac: None, mtu: None, prefixes: SmallVec::new() };
        let mut options = bytes.get(16..)?;
        while let [kind, eighths, ..] = *options {
            let option = options.get(..usize::from(eighths) * 8).filter(|option| !option.is_empty())?;
            match (kind, eighths) {
                (SOURCE_MAC, 1) => {
                    advertisement.mac = Some(parse_unicast_mac(option)?);
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

/// Multicast address of all routers (RFC 4291 2.7.1).
const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
/// Type of the prefix option.
const PREFIX: u8 = 3;
/// Type of the MTU option.
const MTU: u8 = 5;
/// On-link flag of the prefix option.
const ON_LINK: u8 = 0x80;
/// Autonomous-configuration flag of the prefix option.
const AUTONOMOUS: u8 = 0x40;
