//! Neighbour discovery (RFC 4861), the equivalent of ARP in IPv6.
//!
//! Router discovery and duplicate address detection are in [`routers`](super::routers). Probes of other hosts for this
//! host's addresses are answered here.
//!
//! Invariant: a message that has passed a router is ignored (7.1).

use super::addresses::{ALL_NODES, is_one_host, solicited_node};
use super::icmp_six::{ethernet_of, fill_checksum};
use super::{ETHERNET_BYTES, ICMPV6, NetworkLayer};
use crate::counters::HostCounters;
use core::net::{IpAddr, Ipv6Addr};
use offload_api::{Header, TxAsk, TxPacket};
use offload_base::Instant;
use offload_formats::{IpHeaders, IpVersion};
use smallvec::SmallVec;
use smoltcp::wire::{EthernetAddress, EthernetFrame, Icmpv6Message, Ipv6Packet};

/// The relevant parts of a solicitation or an advertisement.
#[derive(Clone, Copy, Debug)]
struct NdpMessage {
    target: Ipv6Addr,
    /// Ethernet address of a solicitation's source, or of an advertisement's target.
    mac: Option<EthernetAddress>,
    /// Solicited flag of an advertisement (RFC 4861 4.4).
    solicited: bool,
    /// Override flag of an advertisement: the message replaces a known address.
    overrides: bool,
}

impl NetworkLayer {
    /// Processes a solicitation or an advertisement in `packet`. Its checksum was verified.
    pub(super) fn on_neighbour_message(
        &mut self,
        now: Instant,
        packet: &[u8],
        headers: &IpHeaders,
        answers: bool,
        counters: &mut HostCounters,
    ) {
        let message = &packet[headers.upper..headers.end];
        let (IpAddr::V6(source), IpAddr::V6(destination)) = (headers.source(packet), headers.destination(packet))
        else {
            return;
        };
        let hop_limit = packet[7];
        let asks = message[0] == u8::from(Icmpv6Message::NeighborSolicit);
        match asks {
            true => counters.neighbour_solicits_in += 1,
            false => counters.neighbour_advertisements_in += 1,
        }
        let parsed =
            (hop_limit == MAX_HOP_LIMIT && message[1] == 0).then(|| NdpMessage::parse(message, asks)).flatten();
        let Some(message) = parsed.filter(|message| is_one_host(message.target)) else {
            counters.ndp_in_errors += 1;
            return;
        };
        match asks {
            true => self.on_solicitation(now, (source, destination), message, answers, counters),
            false => self.on_advertisement(now, source, destination, message, counters),
        }
    }

    fn on_solicitation(
        &mut self,
        now: Instant,
        (source, destination): (Ipv6Addr, Ipv6Addr),
        message: NdpMessage,
        answers: bool,
        counters: &mut HostCounters,
    ) {
        // RFC 4861 7.1.1: a host without an address probes the solicited-node address, and sends no Ethernet address.
        let nobody = source.is_unspecified();
        let wrong = if nobody {
            destination != solicited_node(message.target) || message.mac.is_some()
        } else {
            !is_one_host(source) || self.addresses.is_own(source.into())
        };
        if wrong {
            counters.ndp_in_errors += 1;
            return;
        }
        if self.addresses.is_tentative(message.target) {
            // RFC 4862 5.4.3: a prober is about to take the same address. Other hosts get no answer while the address
            // is tentative.
            if nobody {
                self.on_duplicate(message.target, counters);
            }
            return;
        }
        if !self.addresses.is_own(message.target.into()) {
            return;
        }
        if let Some(mac) = message.mac {
            // A solicitation usually precedes traffic, so its sender gets an entry.
            let create = self.addresses.is_on_link(source.into());
            let moved = self.neighbours.known(source.into()).is_some_and(|known| known != mac);
            self.record(now, source.into(), mac, create);
            if moved {
                // RFC 4861 7.2.3: a changed address is used, but does not confirm reachability.
                self.neighbours.mark_outdated(source.into());
            }
        }
        if !(answers && self.address_answers.allow(now)) {
            counters.icmp_out_limited += 1;
            return;
        }
        counters.neighbour_advertisements_out += 1;
        let flags = OVERRIDE | if nobody { 0 } else { SOLICITED };
        let to = if nobody { ALL_NODES } else { source };
        let mut packet = self.build_message(Icmpv6Message::NeighborAdvert, flags, (message.target, to), message.target);
        let mac = if nobody { Some(EthernetAddress(ethernet_of(ALL_NODES))) } else { message.mac };
        match mac {
            Some(mac) => {
                EthernetFrame::new_unchecked(&mut packet.header[..]).set_dst_addr(mac);
                self.post(packet, counters);
            }
            // The solicitation contained no Ethernet address.
            None => self.answer(now, source.into(), packet, counters),
        }
    }

    fn on_advertisement(
        &mut self,
        now: Instant,
        source: Ipv6Addr,
        destination: Ipv6Addr,
        message: NdpMessage,
        counters: &mut HostCounters,
    ) {
        let target = IpAddr::V6(message.target);
        // RFC 4861 7.1.2. An advertisement of this host's own address is invalid, too.
        if (destination.is_multicast() && message.solicited) || !is_one_host(source) || self.addresses.is_own(target) {
            counters.ndp_in_errors += 1;
            return;
        }
        if self.addresses.is_tentative(message.target) {
            self.on_duplicate(message.target, counters);
            return;
        }
        let known = self.neighbours.known(target);
        let Some(mac) = message.mac.or(known) else { return };
        // RFC 4861 7.2.5: without the override flag, another address only marks the entry as outdated.
        if known.is_some_and(|known| known != mac) && !message.overrides {
            self.neighbours.mark_outdated(target);
            return;
        }
        self.record(now, target, mac, false);
        if !message.solicited {
            self.neighbours.mark_outdated(target);
        }
    }

    /// Sends a solicitation for `target`, by multicast or to the last known Ethernet address.
    pub(super) fn solicit(&mut self, target: Ipv6Addr, at: Option<EthernetAddress>, counters: &mut HostCounters) {
        let Some(IpAddr::V6(source)) = self.addresses.source_for(target.into()) else { return };
        counters.neighbour_solicits_out += 1;
        let (to, mac) = match at {
            Some(mac) => (target, mac),
            None => (solicited_node(target), EthernetAddress(ethernet_of(solicited_node(target)))),
        };
        let mut packet = self.build_message(Icmpv6Message::NeighborSolicit, 0, (source, to), target);
        EthernetFrame::new_unchecked(&mut packet.header[..]).set_dst_addr(mac);
        self.post(packet, counters);
    }

    /// Builds a message about `target` with this host's Ethernet address. The caller sets the Ethernet destination.
    fn build_message(
        &self,
        kind: Icmpv6Message,
        flags: u8,
        (source, to): (Ipv6Addr, Ipv6Addr),
        target: Ipv6Addr,
    ) -> TxPacket {
        let own = if kind == Icmpv6Message::NeighborSolicit { SOURCE_MAC } else { TARGET_MAC };
        let mut message: SmallVec<[u8; 32]> = SmallVec::new();
        message.extend_from_slice(&[u8::from(kind), 0, 0, 0, flags, 0, 0, 0]);
        message.extend_from_slice(&target.octets());
        message.extend_from_slice(&[own, 1]);
        message.extend_from_slice(&self.mac.0);
        self.neighbour_message(message, source, to)
    }

    /// Builds a packet with a message that must not pass a router. The caller sets the Ethernet destination.
    pub(super) fn neighbour_message(
        &self,
        mut message: SmallVec<[u8; 32]>,
        source: Ipv6Addr,
        to: Ipv6Addr,
    ) -> TxPacket {
        let ends = (IpAddr::V6(source), IpAddr::V6(to));
        fill_checksum(&mut message, &[], ends);
        let mut header = Header::from_elem(0, ETHERNET_BYTES + IpVersion::V6.header_bytes());
        self.write_ip(&mut header, ends.0, ends.1, ICMPV6, message.len());
        Ipv6Packet::new_unchecked(&mut header[ETHERNET_BYTES..]).set_hop_limit(MAX_HOP_LIMIT);
        header.extend_from_slice(&message);
        TxPacket { header, fragments: SmallVec::new(), ask: TxAsk::default() }
    }
}

impl NdpMessage {
    /// Parses a message (RFC 4861 4.3, 4.4 and 4.6). An option of length zero, or an Ethernet address that no station
    /// can have, makes the whole message invalid (7.1).
    fn parse(bytes: &[u8], asks: bool) -> Option<NdpMessage> {
        let target: [u8; 16] = bytes.get(8..24)?.try_into().ok()?;
        let wanted = if asks { SOURCE_MAC } else { TARGET_MAC };
        let (mut options, mut mac) = (&bytes[24..], None);
        while let [kind, eighths, ..] = *options {
            let option = options.get(..usize::from(eighths) * 8).filter(|option| !option.is_empty())?;
            if kind == wanted && eighths == 1 {
                mac = Some(parse_unicast_mac(option)?);
            }
            options = &options[option.len()..];
        }
        let flags = if asks { 0 } else { bytes[4] };
        let (solicited, overrides) = (flags & SOLICITED != 0, flags & OVERRIDE != 0);
        options.is_empty().then_some(NdpMessage { target: target.into(), mac, solicited, overrides })
    }
}

/// Returns the Ethernet address in an option. `None` if it is zero or a group address.
pub(super) fn parse_unicast_mac(option: &[u8]) -> Option<EthernetAddress> {
    let address = EthernetAddress::from_bytes(option.get(2..8)?);
    is_unicast_station(address).then_some(address)
}

/// Returns whether an Ethernet address can belong to a station.
pub(super) fn is_unicast_station(address: EthernetAddress) -> bool {
    address.is_unicast() && address != EthernetAddress::default()
}

/// Returns whether an ICMPv6 message belongs to neighbour or router discovery: types 133 to 137.
pub(super) fn is_discovery(message: &[u8]) -> bool {
    matches!(message, [133..=137, ..])
}

/// Hop limit of a packet that has passed no router.
pub(super) const MAX_HOP_LIMIT: u8 = 255;
/// Solicited flag of an advertisement.
const SOLICITED: u8 = 0x40;
/// Override flag of an advertisement.
const OVERRIDE: u8 = 0x20;
/// Type of the option with the source's Ethernet address.
pub(super) const SOURCE_MAC: u8 = 1;
/// Type of the option with the target's Ethernet address.
const TARGET_MAC: u8 = 2;
