//! ARP packets, read and written (RFC 826, RFC 5227).

use super::neighbours::Due;
use super::{ETHERNET_BYTES, Network};
use crate::counters::HostCounters;
use core::net::Ipv4Addr;
use offload_api::{FlowKey, Header, TxAsk, TxPacket};
use offload_base::Instant;
use smoltcp::wire::{ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol};

impl Network {
    /// An ARP packet arrived. Whoever asks for this host is answered; what waited for the sender's address is sent.
    pub(super) fn on_arp(&mut self, now: Instant, packet: &[u8], counters: &mut HostCounters) {
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
        if nobody || !mac.is_unicast() || sender == self.address() {
            counters.arp_in_errors += 1;
            return;
        }
        let asked = operation == ArpOperation::Request && target == self.address();
        // RFC 5227 1.1: a probe, which has no sender's address, is to leave no trace.
        if !sender.is_unspecified() {
            let waiting = self.neighbours.learn(now, sender, mac, asked && self.is_on_link(sender));
            for mut packet in waiting {
                EthernetFrame::new_unchecked(&mut packet.header[..]).set_dst_addr(mac);
                self.outbox.push_back(packet);
            }
        }
        if asked && self.arp_answers.allow(now) {
            counters.arp_replies += 1;
            self.send_arp(ArpOperation::Reply, mac, mac, sender, counters);
        }
    }

    /// Sends the requests that are due. Returns the TCP flows whose packets go nowhere, for nobody answered.
    pub(crate) fn handle_timeouts(&mut self, now: Instant, counters: &mut HostCounters) -> Vec<FlowKey> {
        let mut lost = Vec::new();
        while let Some(due) = self.neighbours.pop_due(now) {
            match due {
                Due::Ask { address, at } => {
                    counters.arp_requests += 1;
                    let to = at.unwrap_or(EthernetAddress::BROADCAST);
                    self.send_arp(ArpOperation::Request, to, EthernetAddress::default(), address, counters);
                }
                Due::GiveUp { waiting } => {
                    lost.extend(waiting.iter().filter_map(|packet| super::flow_of(&packet.header)));
                }
            }
        }
        counters.arp_unresolved_discards += self.neighbours.take_lost();
        lost
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
            source_protocol_addr: self.address(),
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
