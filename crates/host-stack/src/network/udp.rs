//! UDP headers, read and written (RFC 768; over IPv6, RFC 8200 8.1).

use super::icmp::Refusal;
use super::{Arrival, ETHERNET_BYTES, Network, OUTBOX_PACKETS, UDP};
use crate::counters::HostCounters;
use crate::udp::SendError;
use bytes::Bytes;
use core::net::SocketAddr;
use ip_packets::{IpHeaders, Sum, Version};
use offload_api::rx::Checksums;
use offload_api::{Header, PathCaps, TxAsk, TxPacket};
use offload_base::Instant;
use smallvec::smallvec;
use smoltcp::wire::UdpPacket;

impl Network {
    /// A datagram arrived in `packet`.
    pub(super) fn on_udp(
        &self,
        packet: &[u8],
        headers: &IpHeaders,
        checksums: Checksums,
        counters: &mut HostCounters,
    ) -> Option<Arrival> {
        let datagram = &packet[headers.upper..headers.end];
        let Some(udp) = UdpPacket::new_checked(datagram).ok().filter(|udp| udp.dst_port() != 0) else {
            counters.udp_in_errors += 1;
            return None;
        };
        let bytes = usize::from(udp.len());
        let source = headers.source(packet);
        let right = match (checksums, udp.checksum(), headers.version) {
            (Checksums::Good, ..) => true,
            // RFC 768: zero says that the sender made none. RFC 8200 8.1: over IPv6 it has to.
            (_, 0, version) => version == Version::Four,
            (Checksums::Bad, ..) => false,
            (Checksums::Unchecked, ..) => {
                let mut sum = Sum::pseudo_header(UDP, source, headers.destination(packet), bytes);
                sum.add(&datagram[..bytes]);
                sum.is_right()
            }
        };
        if !right {
            counters.udp_in_checksum_errors += 1;
            return None;
        }
        let start = ETHERNET_BYTES + headers.upper;
        Some(Arrival::Datagram {
            port: udp.dst_port(),
            from: SocketAddr::new(source, udp.src_port()),
            payload: start + UDP_BYTES..start + bytes,
        })
    }

    /// Tells the sender of the datagram in `frame` that nobody listens at its port.
    pub(crate) fn refuse_datagram(&mut self, now: Instant, frame: &[u8], counters: &mut HostCounters) {
        self.refuse(now, &frame[ETHERNET_BYTES..], Refusal::Port, counters);
    }

    /// Puts a datagram on its way, to be cut into fragments if the path takes no packet of its size. `caps` are the
    /// device's.
    pub(crate) fn send_datagram(
        &mut self,
        now: Instant,
        port: u16,
        to: SocketAddr,
        data: Bytes,
        caps: &PathCaps,
        counters: &mut HostCounters,
    ) -> Result<(), SendError> {
        let destination = to.ip();
        let version = Version::of(&destination);
        let source = self.addresses.source_for(destination).filter(|_| to.port() != 0 && self.reaches(destination));
        let source = source.ok_or(SendError::Unreachable)?;
        // IPv4's length counts its own header.
        let headers = UDP_BYTES + if version == Version::Four { version.header_bytes() } else { 0 };
        let most = usize::from(u16::MAX) - headers;
        if data.len() > most {
            return Err(SendError::TooLong { most });
        }
        // Half of the outbox is for answers.
        if self.outbox.len() >= OUTBOX_PACKETS / 2 {
            return Err(SendError::Full);
        }
        let bytes = UDP_BYTES + data.len();
        let udp_at = ETHERNET_BYTES + version.header_bytes();
        let mut header = Header::from_elem(0, udp_at + UDP_BYTES);
        self.write_ip(&mut header, source, destination, UDP, bytes);
        let mut udp = UdpPacket::new_unchecked(&mut header[udp_at..]);
        udp.set_src_port(port);
        udp.set_dst_port(to.port());
        udp.set_len(bytes as u16);
        // No device makes a checksum over fragments.
        let fits = version.header_bytes() + bytes <= usize::from(self.path_mtu(now, destination, caps.mtu));
        let checksum = caps.checksum && fits;
        if !checksum {
            let mut sum = Sum::pseudo_header(UDP, source, destination, bytes);
            sum.add(&header[udp_at..]);
            sum.add(&data);
            // RFC 768: a sum of zero is sent as its other form, for zero says that there is none.
            let sum = Some(sum.finish()).filter(|sum| *sum != 0).unwrap_or(u16::MAX);
            UdpPacket::new_unchecked(&mut header[udp_at..]).set_checksum(sum);
        }
        counters.udp_out_datagrams += 1;
        let fragments = if data.is_empty() { Default::default() } else { smallvec![data] };
        self.answer(
            now,
            destination,
            TxPacket { header, fragments, ask: TxAsk { checksum, ..TxAsk::default() } },
            counters,
        );
        Ok(())
    }
}

/// A UDP header.
const UDP_BYTES: usize = 8;
