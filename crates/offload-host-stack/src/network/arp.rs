//! Parsing and building of ARP packets (RFC 826, RFC 5227).

use super::ndp::is_unicast_station;
use super::{ETHERNET_BYTES, NetworkLayer};
use crate::counters::HostCounters;
use core::net::Ipv4Addr;
use offload_api::{Header, TxAsk, TxPacket};
use offload_base::Instant;
use smoltcp::wire::{ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol};

impl NetworkLayer {
    /// Processes an ARP packet. Packets that waited for the sender's address are sent. A request for this host is
    /// answered if `answers`.
    pub(super) fn on_arp(&mut self, now: Instant, packet: &[u8], answers: bool, counters: &mut HostCounters) {
        let parsed = ArpPacket::new_checked(packet).and_then(|packet| ArpRepr::parse(&packet));
        let Ok(ArpRepr::EthernetIpv4 {
            operation,
            source_hardware_addr: mac,
            source_protocol_addr: sender,
            target_protocol_addr: target,
            ..
        }) = parsed
        else {
            counters.arp_in_errors += 1;
            return;
        };
        let nobody = sender.is_broadcast() || sender.is_multicast() || sender.is_loopback();
        // A packet that claims this host's own address is an attack or a misconfiguration.
        if nobody || !is_unicast_station(mac) || sender == self.addresses.four() {
            counters.arp_in_errors += 1;
            return;
        }
        let asked = operation == ArpOperation::Request && target == self.addresses.four();
        // RFC 5227 1.1: a probe has no sender address, and must not change the table.
        if !sender.is_unspecified() {
            let create = asked && self.addresses.is_on_link(sender.into());
            self.record(now, sender.into(), mac, create);
        }
        if asked && answers && self.address_answers.allow(now) {
            counters.arp_replies += 1;
            self.send_arp(ArpOperation::Reply, mac, mac, sender, counters);
        }
    }

    /// Sends a request for the Ethernet address of `target`, by broadcast or to the last known address.
    pub(super) fn send_request(&mut self, target: Ipv4Addr, at: Option<EthernetAddress>, counters: &mut HostCounters) {
        counters.arp_requests += 1;
        let to = at.unwrap_or(EthernetAddress::BROADCAST);
        self.send_arp(ArpOperation::Request, to, EthernetAddress::default(), target, counters);
    }

    fn send_arp(
        &mut self,
        operation: ArpOperation,
        to: EthernetAddress,
        target_hardware_addr: EthernetAddress,
        target_protocol_addr: Ipv4Addr,
        counters: &mut HostCounters,
    ) {
        let arp = ArpRepr::EthernetIpv4 {
            operation,
            source_hardware_addr: self.mac,
            source_protocol_addr: self.addresses.four(),
            target_hardware_addr,
            target_protocol_addr,
        };
        let mut header = Header::from_elem(0, ETHERNET_BYTES + arp.buffer_len());
        let mut ethernet = EthernetFrame::new_unchecked(&mut header[..]);
        ethernet.set_dst_addr(to);
        ethernet.set_src_addr(self.mac);
        ethernet.set_ethertype(EthernetProtocol::Arp);
        arp.emit(&mut ArpPacket::new_unchecked(&mut header[ETHERNET_BYTES..]));
        self.post(TxPacket { header, fragments: Default::default(), ask: TxAsk::default() }, counters);
    }
}
